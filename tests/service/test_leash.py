"""A worker beside a service: how soon it is started again."""

from __future__ import annotations

from pathlib import Path
from threading import Lock, Thread
from types import SimpleNamespace
from typing import Self

import pytest

from service import leash
from service.leash import Leash
from service.settings import Settings


def test_a_worker_that_lived_for_long_is_started_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends in quick succession are waited for longer and longer; one that comes after a day is the first again."""
    lives, now, waits = iter([0.0, 0.0, 3.0, 61.0, 0.0]), [0.0], list[float]()

    class Process:
        def __init__(self, *_: object, **__: object) -> None: ...

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...

        def wait(self, *_: float) -> int:
            now[0] += next(lives)
            return 1

        def terminate(self) -> None: ...

    class Stopping:
        def is_set(self) -> bool:
            return len(waits) == 5

        def set(self) -> None: ...

        def wait(self, seconds: float) -> None:
            waits.append(seconds)

    monkeypatch.setattr(leash, "subprocess", SimpleNamespace(Popen=Process, PIPE=None))
    monkeypatch.setattr(leash, "time", SimpleNamespace(monotonic=lambda: now[0]), raising=False)
    monkeypatch.setattr(leash, "threading", SimpleNamespace(Event=Stopping, Lock=Lock, Thread=Thread))
    Leash(Settings(data=Path("nowhere")), database_url="postgresql://nowhere")._thread.join(10)
    assert waits == [1.0, 2.0, 4.0, 1.0, 2.0]
