"""Artifacts as they are found: opened and looked at, never loaded or run. No framework is imported.

Whatever is not safetensors is recognised by its first bytes and left alone: pickles, torch archives, NumPy archives. An
archive is told from others by the names in it alone; nothing in it is ever unpacked. What is read of a
safetensors file is read in blocks: memory stays flat, however large the file is.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import pickletools
import re
import stat
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from accountant.audit.checklist import MAX_ROWS, MIN_REPEATED
from accountant.audit.contents import Contents, Earlier, Form, Tensor
from accountant.canonical import from_canonical
from accountant.errors import AccountantError
from trainers.safetensors_headers import (
    DTYPES,
    MAX_HEADER,
    Header,
    Malformed,
    Slot,
    has_too_many_parts,
    is_text,
    read_header,
    widened,
)

if TYPE_CHECKING:
    from trainers.row_copies import Rows

MAX_BYTES: Final = 1 << 40
_BLOCK: Final = 1 << 24
_MAX_INDEX: Final = 1 << 22  # bytes at the end of an archive that are looked at
_MAX_MEMBERS: Final = 10_000
_SNIFFED: Final = 1 << 16  # bytes at the start of a file by which its form is told
_TAPE_BLOCK: Final = 512
_INSTRUCTIONS: Final = 16  # of a pickle that is longer than those bytes
_KEPT: Final = 1 << 18  # numbers of a tensor that a check compares: its first rows, if it has more
#: Where files of other tools name their outputs.
_LABEL_KEYS: Final = ("labels", "label_names", "classes", "class_names", "id2label", "categories")


def opened(path: Path, *, keep: Collection[str] = (), rows: Rows | None = None) -> Contents:
    """What a file holds. `keep` names tensors whose numbers are wanted; `rows` are data that must not be in it."""
    # To open a pipe would wait for whoever writes into it, and a device has no end.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        found = os.fstat(file.fileno())
        size = left = found.st_size
        if not stat.S_ISREG(found.st_mode) or size > MAX_BYTES:
            raise OSError(errno.EINVAL, "it is no file, or larger than any artifact")
        digest = hashlib.sha256()
        while left and (piece := file.read(min(left, _BLOCK))):
            digest.update(piece)
            left -= len(piece)
        known = {"sha256": digest.hexdigest(), "bytes": size}
        file.seek(0)
        form = _form(file, size)
        if form != "safetensors":
            return Contents(form=form, **known)  # type: ignore[arg-type]  # both are what they should be
        file.seek(0)
        try:
            header = read_header(file, size)
        except Malformed as problem:
            return Contents(problem=problem.reason, **known)  # type: ignore[arg-type]
        facts = _facts(header.metadata)
        labels = _labels(facts, header.metadata)
        if labels is not None and not all(map(is_text, labels)):
            return Contents(problem="its header has text that is no Unicode", **known)  # type: ignore[arg-type]
        return Contents(
            tensors=tuple(_tensor(file, slot, keep, rows) for slot in header.slots),
            metadata=header.metadata,
            facts=facts,
            labels=labels,
            **known,  # type: ignore[arg-type]
        )


def earlier(release: str, path: Path, *, keep: Collection[str] = ()) -> Earlier | None:
    """Another release, to compare with; None if its file is not here, or cannot be read."""
    try:
        found = opened(path, keep=keep)
    except OSError:
        return None
    rows = [tensor.values for tensor in found.tensors if tensor.values is not None]
    return Earlier(
        release=release,
        digests=frozenset(
            tensor.digest
            for tensor in found.tensors
            if tensor.is_real and not tensor.is_constant and tensor.size >= MIN_REPEATED
        ),
        rows=rows[0] if rows else None,
        labels=found.labels,
    )


def labels_in(path: Path) -> list[str] | None:
    """The outputs that a safetensors file names, by its header alone; None if it names none, or cannot be read."""
    header = _header(path)
    return None if header is None else _labels(_facts(header.metadata), header.metadata)


def is_readable(path: Path) -> bool:
    """Whether a file is safetensors, by its header alone."""
    return _header(path) is not None


def _header(path: Path) -> Header | None:
    try:
        with path.open("rb") as file:
            return read_header(file, path.stat().st_size)
    except (OSError, Malformed):
        return None


# ---------------------------------------------------------------- which form it has


def _form(file: IO[bytes], size: int) -> Form:
    start = file.read(_SNIFFED)
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") <= MAX_HEADER:
        return "safetensors"  # a length may look like a pickle's first bytes
    if start[:4] in {b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08"}:
        return _archive(file, size)
    if start[257:262] == b"ustar":
        return _tape(file, size)
    for magic, form in _MAGIC.items():
        if start.startswith(magic):
            return form
    if _is_pickle(start, whole=size <= len(start)):
        return "pickle"
    return "safetensors" if size < 9 or start[8:9] == b"{" else "other"


def _is_pickle(start: bytes, *, whole: bool) -> bool:
    """Whether a file begins as a program for a pickle machine, of any protocol; it is read and never run.

    Later protocols say so in their first bytes. Those of 0 and 1 may begin with nearly any instruction, so the whole
    beginning must be made of them, as far as it was read.
    """
    if start[:1] == b"\x80" and start[1:2] in {b"\x02", b"\x03", b"\x04", b"\x05"}:
        return True
    many = 0
    try:
        for opcode, _, _ in pickletools.genops(start):
            many += 1
            if opcode.name == "STOP":
                return many > 1  # a stop alone has nothing to give back
    except (ValueError, OverflowError, UnicodeError):
        pass
    # The last instruction may have been cut off.
    return not whole and (many >= _INSTRUCTIONS or _OPENING.match(start) is not None)


#: How old pickles of lists, tables and objects begin: a container that is kept, or a name to import.
_OPENING: Final = re.compile(rb"\([ld]p\d+\n|[\]}(]q.|\(?c[\w.]+\n[\w.]+\n|\(i[\w.]+\n")
_MAGIC: Final[Mapping[bytes, Form]] = {
    b"\x93NUMPY": "npy",
    b"GGUF": "gguf",
    b"\x89HDF\r\n\x1a\n": "hdf5",
    b"\x08\x07\x12": "onnx",
    b"\x08\x08\x12": "onnx",
}


def _archive(file: IO[bytes], size: int) -> Form:
    """What a zip archive is, by the names in its index. Nothing is unpacked, so nothing can burst."""
    tail = min(size, _MAX_INDEX)
    try:
        file.seek(size - tail)
        # The index lies at the end; offsets before it are adjusted by the reader, and no member is opened.
        with zipfile.ZipFile(io.BytesIO(file.read(tail))) as archive:
            names = archive.namelist()[:_MAX_MEMBERS]
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, OverflowError):
        return "archive"
    if any(name.endswith((".pkl", ".pickle")) for name in names):
        return "torch"
    if names and all(name.endswith(".npy") for name in names):
        return "npz"
    return "archive"


def _tape(file: IO[bytes], size: int) -> Form:
    """What a tar archive is, by the names in its headers: torch's oldest files are tar archives of pickles."""
    at = 0
    for _ in range(_MAX_MEMBERS):
        if not 0 <= at <= size - _TAPE_BLOCK:
            break
        file.seek(at)
        header = file.read(_TAPE_BLOCK)
        name = header[:100].rstrip(b"\0").decode("latin-1")
        if name == "pickle" or name.endswith((".pkl", ".pickle")):
            return "torch"
        try:
            length = int(header[124:136].strip(b" \0") or b"0", 8)
        except ValueError:  # none, or one that is spelled in another way
            break
        at += _TAPE_BLOCK + -(-length // _TAPE_BLOCK) * _TAPE_BLOCK
    return "tar"


# ---------------------------------------------------------------- tensors


def _tensor(file: IO[bytes], slot: Slot, keep: Collection[str], rows: Rows | None) -> Tensor:
    dtype = np.dtype(DTYPES[slot.dtype])
    step = _BLOCK // dtype.itemsize * dtype.itemsize
    search = None if rows is None else rows.search(dtype=slot.dtype, shape=slot.shape)
    digest = hashlib.sha256(f"{slot.dtype}{list(slot.shape)}".encode())
    finite, constant, first = True, True, None
    total: int | None = 0
    kept: list[NDArray[np.float64]] = []
    file.seek(slot.start)
    left = slot.stop - slot.start
    while left:
        block = file.read(min(left, step))
        if not block:
            raise OSError("the file changed while it was read")
        left -= len(block)
        digest.update(block)
        numbers = np.frombuffer(block, dtype=dtype)
        first = numbers[0] if first is None else first
        constant = constant and bool((numbers == first).all())
        values = widened(numbers, slot.dtype)
        if values.dtype.kind == "f":
            finite = finite and bool(np.isfinite(values).all())
        total = _total(total, values)
        if search is not None:
            search.add(values)
        if slot.name in keep and (room := _KEPT - sum(each.size for each in kept)) > 0:
            kept.append(values[:room].astype(np.float64))
    wanted = slot.name in keep and bool(kept) and len(slot.shape) >= 1
    return Tensor(
        name=slot.name,
        dtype=slot.dtype,
        shape=slot.shape,
        digest=digest.hexdigest(),
        is_finite=finite,
        is_constant=constant,
        total=total,
        data_rows=0 if search is None else search.end(),
        values=_as_rows(np.concatenate(kept), slot.shape) if wanted else None,
    )


def _as_rows(values: NDArray[np.float64], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """The first rows of a tensor; a vector is one row."""
    width = int(np.prod(shape[1:])) if len(shape) > 1 else shape[0]
    whole = len(values) // width if width else 0
    return values[: whole * width].reshape(whole, width)[:MAX_ROWS]


def _total(so_far: int | None, values: NDArray[Any]) -> int | None:
    """The sum of whole numbers, also of those that are written as floating point; None once one is not whole."""
    if so_far is None:
        return None
    if values.dtype.kind == "f" and not (np.isfinite(values).all() and (values == np.floor(values)).all()):
        return None
    if values.dtype.kind == "f" and float(np.abs(values).max(initial=0)) > 2**53:
        return None
    if float(np.abs(values.astype(np.float64)).sum()) > 2**62:  # it would go round
        return None
    return so_far + int(values.sum(dtype={"f": np.float64, "u": np.uint64}.get(values.dtype.kind, np.int64)))


# ---------------------------------------------------------------- what it says of itself


def _facts(metadata: Mapping[str, str]) -> Mapping[str, Any] | None:
    try:
        said = metadata["stint"].encode()
        found = None if has_too_many_parts(said) else from_canonical(said)
    except (KeyError, AccountantError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _labels(facts: Mapping[str, Any] | None, metadata: Mapping[str, str]) -> list[str] | None:
    """The names of its outputs, if it says them in one of the usual ways."""
    told = (facts or {}).get("labels")
    if isinstance(told, list):
        return [str(each) for each in told]
    for key in _LABEL_KEYS:
        if key in metadata and not has_too_many_parts(metadata[key].encode()):
            try:
                found = json.loads(metadata[key])
            except (ValueError, RecursionError):
                found = metadata[key].split(",")
            if isinstance(found, dict):
                found = list(found.values())
            if isinstance(found, list) and all(isinstance(each, str | int) for each in found):
                return [str(each).strip() for each in found]
    return None
