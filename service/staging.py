"""Where workers keep what they make: in private until its release is committed, then in a folder of the release.

A staged folder has the name of its job and the number of its attempt. Only the transaction that commits decides which
of them is published; the rename comes after it, and whoever finds a committed job whose folder is still staged makes up
for it. All other staged folders of attempts that are not current any more are removed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import text

from trainers.cards import MODEL
from trainers.safetensors_headers import MAX_HEADER

if TYPE_CHECKING:
    from sqlalchemy import Row

    from service.store.database import Database

_log = logging.getLogger(__name__)
_STAGED: Final = ".staged"
_PIECE: Final = 1 << 20
_NAMED: Final = re.compile(r"(job_[0-9A-Z]{26})\.([0-9]{1,9})")
_LOG_SECONDS: Final = 7 * 86_400
_JOBS = text("SELECT id, status, attempt, release, artifact_sha256 FROM job WHERE id = ANY(:ids)")
_COMMITTED = text(
    "SELECT id, attempt, release, artifact_sha256 FROM job WHERE release = :release AND status = 'committed'"
)


class Unreleasable(Exception):
    """What was made says of itself that it must not be released, or says nothing."""


def uri(release: str) -> str:
    """What the ledger calls a file: where it lies within the artifacts folder, wherever that is."""
    return f"stint:artifacts/{release}/{MODEL}"


def places(root: Path, *, release: str, job: str, attempt: int) -> list[Path]:
    """Where the file of a committed release may be: published, still staged, or published since the first look."""
    published = root / release / MODEL
    return [published, root / _STAGED / f"{job}.{attempt}" / MODEL, published]


class Staging:
    """The artifacts folder of a worker."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._staged, self._logs = self.root / _STAGED, self.root / ".logs"
        self.root.mkdir(parents=True, exist_ok=True)
        for private in (self._staged, self._logs):
            private.mkdir(mode=0o700, exist_ok=True)
            private.chmod(0o700)

    def folder(self, job: str, token: int) -> Path:
        """A fresh private folder for an attempt."""
        made = self._staged / f"{job}.{token}"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(mode=0o700)
        return made

    def log(self, job: str, token: int) -> Path:
        """Where an attempt's own words go. They may hold anything, and never leave the worker."""
        return self._logs / f"{job}.{token}"

    def made(self, job: str, token: int) -> Path:
        """What an attempt made, while nobody else may see it."""
        return self._staged / f"{job}.{token}" / MODEL

    def published(self, release: str, database: Database) -> Path | None:
        """The file of a release that was committed, shown now if its worker did not live to; None if it is absent."""
        path = self.root / release / MODEL
        if not path.exists():
            with database.transaction() as connection:
                row = connection.execute(_COMMITTED, {"release": release}).one_or_none()
            if row is not None:
                self._make_up_for(row)
        return path if path.exists() else None

    def discard(self, job: str, token: int) -> None:
        """Nothing of this attempt is wanted."""
        shutil.rmtree(self._staged / f"{job}.{token}", ignore_errors=True)

    def measured(self, job: str, token: int) -> dict[str, Any]:
        """Digest and size of what an attempt made, as this process finds it: or `Unreleasable`."""
        path = self.made(job, token)
        digest, size = hashlib.sha256(), 0
        with path.open("rb") as file:
            if not _is_releasable(file.read(8), file):
                raise Unreleasable
            file.seek(0)
            while piece := file.read(_PIECE):
                digest.update(piece)
                size += len(piece)
        return {"sha256": digest.hexdigest(), "bytes": size}

    def publish(self, job: str, token: int, release: str) -> None:
        """Show what was committed; done twice it changes nothing."""
        staged, target = self._staged / f"{job}.{token}", self.root / release
        with suppress(FileNotFoundError):  # another worker was quicker
            for path in staged.iterdir():
                path.chmod(0o644)
            staged.chmod(0o755)
            staged.rename(target)
            _sync(self.root)

    def _make_up_for(self, row: Row[Any]) -> None:
        """Publish what a job committed, if it is still staged and is what the ledger says."""
        with suppress(FileNotFoundError, Unreleasable):
            if self.measured(row.id, row.attempt)["sha256"] == row.artifact_sha256:
                self.publish(row.id, row.attempt, row.release)

    def tidy(self, database: Database) -> None:
        """Publish what is committed and still staged, and remove what nobody can commit any more."""
        found = {(match[1], int(match[2])) for path in self._staged.iterdir() if (match := _NAMED.fullmatch(path.name))}
        if found:
            with database.transaction() as connection:
                rows = connection.execute(_JOBS, {"ids": sorted({job for job, _ in found})}).all()
            known = {row.id: row for row in rows}
            for job, token in sorted(found):
                row = known.get(job)
                if row is None:
                    continue  # of another installation that shares the folder
                if row.status == "committed" and row.attempt == token:
                    try:
                        self._make_up_for(row)
                    except OSError:  # a folder's trouble leaves no other unpublished
                        _log.warning("release %s is not published yet", row.release, exc_info=True)
                elif row.attempt != token or row.status != "running":
                    self.discard(job, token)
        for path in self._logs.iterdir():
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < time.time() - _LOG_SECONDS:
                    path.unlink()


def _is_releasable(length: bytes, file: Any) -> bool:
    """What the header of a safetensors file says: eight bytes of length, then JSON."""
    size = int.from_bytes(length, "little")
    if len(length) < 8 or size > MAX_HEADER:
        return False
    try:
        return bool(json.loads(file.read(size))["__metadata__"]["releasable"] == "true")
    except (ValueError, KeyError, TypeError):
        return False


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
