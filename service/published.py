"""Artifacts as they are handed out: whole and with the digest that the ledger has, or not at all.

A file is looked through before the first byte is sent, so that whoever asks for one that was changed is told so. Once
found right it is remembered by its inode, size and times, and looked through again only if one of those differs. What
is sent is hashed besides, and its last piece is kept back unless the digest agrees: whoever gets all bytes that the
answer announced has those that were committed, whatever became of the file meanwhile.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

from service.errors import Problem

_log = logging.getLogger(__name__)
_PIECE: Final = 1 << 20
_MOST_REMEMBERED: Final = 10_000
_looking = threading.BoundedSemaphore(4)  # files that are looked through at a time
_State: TypeAlias = tuple[int, int, int, int, int]
_right: dict[_State, str] = {}  # the digest of a file in this state


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """The file of a release, by what the ledger says of it."""

    release: str
    sha256: str
    bytes: int


def opened(artifact: Artifact, places: Sequence[Path]) -> BinaryIO:
    """The file, at the first of these places where there is one; it is the one that was committed, or a problem."""
    for place in places:
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            # To open a pipe would wait for whoever writes into it.
            handle = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                _must_be(artifact, handle)
                return os.fdopen(handle, "rb")
            except BaseException:
                os.close(handle)
                raise
    message = f"The artifact of release {artifact.release} is not in this service's folder of artifacts."
    raise Problem("artifact-absent", message)


def pieces(artifact: Artifact, file: BinaryIO) -> Iterator[bytes]:
    """All of the file, the last piece only if everything before it and itself are what was committed."""
    digest, left = hashlib.sha256(), artifact.bytes
    while left > 0:
        piece = file.read(min(_PIECE, left))
        digest.update(piece)
        left -= len(piece)
        if not piece or (left == 0 and digest.hexdigest() != artifact.sha256):
            _log.error("the artifact of %s was changed while it was sent", artifact.release)
            raise _changed(artifact)
        yield piece


def _must_be(artifact: Artifact, handle: int) -> None:
    """Compare with the ledger: by its state alone, if it was found right in that."""
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_size != artifact.bytes:
        raise _changed(artifact)
    state = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    if _right.get(state) == artifact.sha256:
        return
    if not _looking.acquire(blocking=False):
        raise Problem("busy", "Other artifacts are being looked through.")
    try:
        digest = _digest(handle)
    finally:
        _looking.release()
    if digest != artifact.sha256:
        raise _changed(artifact)
    if len(_right) >= _MOST_REMEMBERED:
        _right.clear()
    _right[state] = digest


def _digest(handle: int) -> str:
    """Of the whole file; where its reader stands does not move."""
    digest, at = hashlib.sha256(), 0
    while piece := os.pread(handle, _PIECE, at):
        digest.update(piece)
        at += len(piece)
    return digest.hexdigest()


def _changed(artifact: Artifact) -> Problem:
    return Problem(
        "artifact-changed", f"The file of release {artifact.release} does not have the sha256 {artifact.sha256}."
    )
