"""Where attempts run: what a child process may know, and what is said of its end."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest
from pyroaring import BitMap

from accountant.book import bitmap_to
from accountant.events import event_to_json
from service import attempt as attempt_module
from service import placement as placement_module
from service.placement import Attempt, ChildProcess, Forked, Outcome
from trainers.artifacts import MODEL
from trainers.catalog import mechanism
from trainers.catalog.data_documents import MAX_KEY


def test_a_child_knows_nothing_of_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by our own variables nor by those that PostgreSQL's clients read by themselves."""
    kept = {
        "HOME": "/nowhere",
        "CUDA_VISIBLE_DEVICES": "0",
        "AWS_PROFILE": "rows",
        "PGO_MODE": "2",
        "MY_DATABASE_URL": "x",
    }
    secret = ("DATABASE_URL", "STINT_DATA", "STINT_KEY", "PGPASSWORD", "PGPASSFILE", "PGSERVICE", "PGHOST", "PGUSER")
    for name in secret:
        monkeypatch.setenv(name, "secret")
    for name, value in kept.items():
        monkeypatch.setenv(name, value)
    found = placement_module._environment()
    assert not set(secret) & set(found)
    assert "secret" not in found.values()
    assert {name: found[name] for name in kept} == kept


def test_the_longest_keys_are_asked_for_in_lines_that_are_read() -> None:
    """Every line that an attempt writes must be one that its worker reads, or long keys are the end of it."""
    keys = ["\N{GRINNING FACE}" * MAX_KEY] * 5_001
    written, answers = io.BytesIO(), io.BytesIO()

    class Answering(attempt_module.Line):
        def __init__(self) -> None:
            self._answers, self._reports = answers, written

        def told(self) -> Any:
            return [7] * len(json.loads(written.getvalue().splitlines()[-1])["keys"])

    assert Answering().ordinals_of(keys).tolist() == [7] * len(keys)
    assert max(map(len, written.getvalue().splitlines())) < placement_module._MOST_LINE


@pytest.mark.parametrize(
    ("ending", "error"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed"),
        ("os.kill(os.getpid(), signal.SIGTERM)", "killed"),
        ("os.abort()", "internal"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "internal"),
        ("sys.exit(1)", "internal"),
        ("sys.exit(0)", "internal"),
        ("os.write(int(sys.argv[3]), b'{')", "internal"),
        ("""os.write(int(sys.argv[3]), b'{"ended": "unheard of"}')""", "internal"),
        ("""os.write(int(sys.argv[3]), b'{"ended": "memory"}')""", "memory"),
    ],
)
def test_an_end_that_a_child_does_not_announce_has_a_code_too(
    ending: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever ends a process from outside is told apart from a process that crashes."""
    script = tmp_path / "child"
    script.write_text(f"#!{sys.executable}\nimport os, signal, sys\nsys.stdin.readline()\n{ending}\n")
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))

    async def nobody(_: Sequence[str]) -> list[int]:
        return []

    attempt = Attempt(document={}, log=tmp_path / "log", progress=lambda *_: None, ordinals_of=nobody)
    assert asyncio.run(ChildProcess().run(attempt)).error == error


# Attempts that are forked


KEYS = ["person-0", "person-1", "person-2"]


class Asked:
    """An attempt that wants keys looked up, which it must wait for: meanwhile it can be looked at, or ended."""

    def __init__(self, folder: Path, answer: Callable[[psutil.Process], Awaitable[list[int]]]) -> None:
        self._folder, self._answer = folder, answer
        self.seen: psutil.Process | None = None
        self.waits = asyncio.Event()

    async def answered(self, _: Sequence[str]) -> list[int]:
        [nursery] = psutil.Process().children()
        [self.seen] = nursery.children()
        self.waits.set()
        return await self._answer(self.seen)

    def attempt(self) -> Attempt:
        self._folder.mkdir()
        (self._folder / "made").mkdir()
        file = self._folder / "rows.npz"
        np.savez(file, x=np.ones((3, 2), dtype=np.float32), y=[0, 1, 1], key=KEYS)
        everybody = bitmap_to(BitMap(range(3)))
        [charge] = mechanism("cosine-classifier").quote({"noise_multiplier": 1.0}, adjacency="add_remove").charges
        document = {
            "release": "rel_1", "population": "people", "unit": "record", "datapoints": 3, "adjacency": "add_remove",
            "promise": {"epsilon": 1.0, "delta": 1e-5}, "mechanism": "cosine-classifier",
            "parameters": {"noise_multiplier": 1.0},
            "recipe": {"label_source": "prior", "label_names": ["0", "1"], "feature_size": 2},
            "charges": [{"proposed": everybody, "admitted": everybody, "event": event_to_json(charge.event)}],
            "inputs": {}, "data": {"uri": str(file), "x": "x", "y": "y", "address": "key", "unit": "key"},
            "allowed": [f"file://{self._folder}"], "rules": {}, "seed": None, "folder": str(self._folder / "made"),
            "backbones": None, "device": "cpu",
        }  # fmt: skip
        return Attempt(document=document, log=self._folder / "log", progress=lambda *_: None, ordinals_of=self.answered)

    @property
    def weights(self) -> bytes:
        return (self._folder / "made" / MODEL).read_bytes()


def gone(process: psutil.Process | None) -> bool:
    """Ended, though nobody may have asked yet how; a process lets go of what it holds a moment before it has ended."""
    assert process is not None
    for _ in range(100):
        try:
            if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


def descriptors(process: psutil.Process) -> set[str]:
    """Where the open descriptors of a process lead to."""
    return {str(each.readlink()) for each in Path(f"/proc/{process.pid}/fd").iterdir()}


async def right(_: psutil.Process) -> list[int]:
    return [0, 1, 2]


@pytest.mark.slow
def test_an_attempt_that_is_forked_is_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session of its own, pipes that are nobody else's, noise of its own, and no secret of the worker's."""
    monkeypatch.setenv("STINT_KEY", "secret")
    kept = list[dict[str, Any]]()

    async def look(process: psutil.Process) -> list[int]:
        kept.append(
            {
                "number": process.pid,
                "session": os.getsid(process.pid),
                "environment": process.environ(),
                "pipes": {each for each in descriptors(process) if each.startswith(("pipe:", "socket:"))},
            }
        )
        return [0, 1, 2]

    with Forked() as placement:
        asked = [Asked(tmp_path / str(number), look) for number in range(3)]
        for each in asked:
            assert asyncio.run(placement.run(each.attempt())) == Outcome(error=None)
            assert gone(each.seen)
        [nursery] = psutil.Process().children()
        assert not nursery.children(recursive=True)
    assert not nursery.is_running()
    assert len({each["number"] for each in kept}) == 3
    assert all(each["session"] == each["number"] for each in kept)
    assert not any("STINT_KEY" in each["environment"] for each in kept)
    # Its line and its standard error: neither the socket of the nursery nor anybody's status.
    assert [len(each["pipes"]) for each in kept] == [2, 2, 2]
    assert len({each.weights for each in asked}) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGKILL, "killed"), (signal.SIGTERM, "killed"), (signal.SIGSEGV, "internal")]
)
def test_whoever_ends_a_forked_attempt_ends_nothing_else(number: int, error: str, tmp_path: Path) -> None:
    async def end(process: psutil.Process) -> list[int]:
        process.send_signal(number)
        return [0, 1, 2]

    with Forked() as placement:
        assert asyncio.run(placement.run(Asked(tmp_path / "ended", end).attempt())).error == error
        [nursery] = psutil.Process().children()
        assert asyncio.run(placement.run(Asked(tmp_path / "next", right).attempt())).error is None
        assert psutil.Process().children() == [nursery]


@pytest.mark.slow
def test_a_forked_attempt_dies_with_what_it_was_forked_from(tmp_path: Path) -> None:
    """And another takes its place, since the job is tried again."""
    nurseries = list[psutil.Process]()

    async def end(process: psutil.Process) -> list[int]:
        nurseries.append(process.parent())
        process.parent().kill()
        await asyncio.sleep(0.5)
        return [0, 1, 2]

    with Forked() as placement:
        first = Asked(tmp_path / "first", end)
        assert asyncio.run(placement.run(first.attempt())).error == "killed"
        assert gone(first.seen)
        assert asyncio.run(placement.run(Asked(tmp_path / "second", right).attempt())).error is None
        [nursery] = psutil.Process().children()
        assert nursery not in nurseries


@pytest.mark.slow
def test_a_forked_attempt_that_is_cancelled_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although it, or even what would end it, does nothing any more; the next one runs."""
    monkeypatch.setattr(placement_module, "_END_SECONDS", 0.5)

    async def run(placement: Forked, name: str, answer: Callable[[psutil.Process], Awaitable[list[int]]]) -> None:
        asked = Asked(tmp_path / name, answer)
        task = asyncio.create_task(placement.run(asked.attempt()))
        await asked.waits.wait()
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert gone(asked.seen)

    async def stopped(process: psutil.Process) -> list[int]:
        process.suspend()
        return await asyncio.Future[list[int]]()

    async def all_stopped(process: psutil.Process) -> list[int]:
        process.parent().suspend()
        return await stopped(process)

    with Forked() as placement:
        asyncio.run(run(placement, "stopped", stopped))
        asyncio.run(run(placement, "all stopped", all_stopped))
        assert asyncio.run(placement.run(Asked(tmp_path / "next", right).attempt())).error is None


@pytest.mark.slow
def test_where_nothing_can_be_forked_an_attempt_starts_from_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\ncase "$2" in service.nursery) exit 1;; esac\nexec {sys.executable} "$@"\n')
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))

    async def ordinals_of(_: Sequence[str]) -> list[int]:
        return [0, 1, 2]

    with Forked() as placement:
        attempt = replace(Asked(tmp_path / "rows", right).attempt(), ordinals_of=ordinals_of)
        assert asyncio.run(placement.run(attempt)) == Outcome(error=None)
    assert "starts from nothing" in caplog.text
