"""Files of named columns, of which chosen rows are read: .npy, .npz, .safetensors and .parquet.

A file is not trusted. No pickle is ever loaded; headers are limited before they are parsed, and what they promise is
compared with the size of the file before anything is allocated. Whatever is wrong is a `DataProblem`: a code, and
nothing of what the file says.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trainers.safetensors_headers import DTYPES, Malformed, read_header, widened

Code: TypeAlias = Literal["data.unknown", "data.missing", "data.mismatch", "data.shape"]
#: Opens the file for reading from its start.
Open: TypeAlias = Callable[[], IO[bytes]]
Rows: TypeAlias = NDArray[np.int64]

MAX_BYTES: Final = 1 << 36  # of the rows that are taken of one column
_MAX_HEADER: Final = 10_000  # of an array
_BLOCK: Final = 1 << 24  # bytes that are read at once
_PACKINGS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # as numpy writes them; others take memory as they like
_KINDS: Final = "biufUS"


class DataProblem(Exception):
    """Why data cannot be used. The code is all that may leave the worker."""

    def __init__(self, code: Code) -> None:
        super().__init__(code)
        self.code: Code = code


class Taken(NamedTuple):
    """Rows of a column, and which of them have a value."""

    values: NDArray[Any]
    valid: NDArray[np.bool_]


class Columns(Protocol):
    """A file of named columns."""

    def length(self, name: str) -> int:
        """How many rows a column has."""

    def take(self, names: Sequence[str], rows: Rows | None) -> dict[str, Taken]:
        """The rows of these columns, rising; all of them if None. A row keeps its shape even if there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Where an array lies in a file."""

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool = False
    spelled: str = ""  # the type as a safetensors file names it: numpy has not all of them

    def __post_init__(self) -> None:
        if self.dtype.hasobject or self.dtype.names or self.dtype.kind not in _KINDS:
            raise DataProblem("data.shape")
        if not self.shape or min(self.shape) < 0 or (not self.dtype.itemsize and self.shape[0]):
            raise DataProblem("data.shape")

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def widened(self, values: NDArray[Any]) -> Taken:
        values = widened(values, self.spelled)
        return Taken(values, np.ones(len(values), dtype=np.bool_))


def _chosen(rows: Rows | None, layout: _Layout) -> Rows:
    chosen = np.arange(layout.shape[0], dtype=np.int64) if rows is None else rows
    if len(chosen) * layout.row_bytes > MAX_BYTES:
        raise DataProblem("data.shape")
    return chosen


def _streamed(stream: IO[bytes], layout: _Layout, rows: Rows, *, skip: Callable[[int], object]) -> NDArray[Any]:
    """The rows of an array whose first byte is next; `skip` passes over bytes. Blocks without a row are passed over."""
    taken = np.empty((len(rows), *layout.shape[1:]), dtype=layout.dtype)
    if not layout.row_bytes or not len(rows):
        return taken
    step = max(1, _BLOCK // layout.row_bytes)
    for start in range(0, int(rows[-1]) + 1, step):
        stop = min(start + step, layout.shape[0])
        first, last = np.searchsorted(rows, [start, stop])
        size = (stop - start) * layout.row_bytes
        if first == last:
            skip(size)
            continue
        block = stream.read(size)
        if len(block) != size:
            raise DataProblem("data.shape")
        whole = np.frombuffer(block, dtype=layout.dtype).reshape(stop - start, *layout.shape[1:])
        taken[first:last] = whole[rows[first:last] - start]
    return taken


@dataclass(frozen=True, slots=True)
class Arrays:
    """Arrays that lie in a file as they are: memory-mapped where the file is local, read in blocks elsewhere."""

    layouts: Mapping[str, _Layout]
    files: Mapping[str, tuple[Open, Path | None]]

    def length(self, name: str) -> int:
        return self._layout(name).shape[0]

    def take(self, names: Sequence[str], rows: Rows | None) -> dict[str, Taken]:
        return {name: self._take(name, rows) for name in names}

    def _layout(self, name: str) -> _Layout:
        if name not in self.layouts:
            raise DataProblem("data.missing")
        return self.layouts[name]

    def _take(self, name: str, rows: Rows | None) -> Taken:
        layout = self._layout(name)
        chosen = _chosen(rows, layout)
        open_file, path = self.files[name]
        if path is not None and layout.bytes:
            order: Literal["F", "C"] = "F" if layout.fortran else "C"
            mapped = np.memmap(path, layout.dtype, mode="r", offset=layout.offset, shape=layout.shape, order=order)
            together = len(chosen) and int(chosen[-1] - chosen[0]) == len(chosen) - 1
            part = mapped[int(chosen[0]) : int(chosen[-1]) + 1] if together else mapped[chosen]
            return layout.widened(np.array(part))
        if layout.fortran and len(layout.shape) > 1:
            raise DataProblem("data.shape")
        with open_file() as stream:
            stream.seek(layout.offset)
            return layout.widened(_streamed(stream, layout, chosen, skip=lambda size: stream.seek(size, io.SEEK_CUR)))


def npy(files: Mapping[str, tuple[Open, Path | None, int]]) -> Arrays:
    """Files of one array each, by name, with their sizes in bytes."""
    layouts = {}
    for name, (open_file, _, size) in files.items():
        with open_file() as stream:
            layout = _npy_layout(stream)
        if layout.offset + layout.bytes > size:
            raise DataProblem("data.shape")
        layouts[name] = layout
    return Arrays(layouts, {name: (open_file, path) for name, (open_file, path, _) in files.items()})


def _npy_layout(stream: IO[bytes]) -> _Layout:
    """The header of an array, of a version and a length that are looked at before it is parsed."""
    start = stream.read(12)
    if len(start) != 12 or start[:6] != b"\x93NUMPY" or start[6:8] not in (b"\x01\x00", b"\x02\x00"):
        raise DataProblem("data.shape")
    old = start[6] == 1
    length = int.from_bytes(start[8:10] if old else start[8:12], "little")
    if length > _MAX_HEADER:
        raise DataProblem("data.shape")
    rest = stream.read(length - (2 if old else 0))
    header = io.BytesIO(start[8:] + rest)
    parse = np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = parse(header, max_header_size=_MAX_HEADER)
    return _Layout(offset=8 + header.tell(), dtype=dtype, shape=shape, fortran=fortran and len(shape) > 1)


def safetensors(open_file: Open, path: Path | None, size: int) -> Arrays:
    """The tensors of a safetensors file."""
    try:
        with open_file() as stream:
            header = read_header(stream, size)
    except Malformed:
        raise DataProblem("data.shape") from None
    layouts = {
        slot.name: _Layout(offset=slot.start, dtype=np.dtype(DTYPES[slot.dtype]), shape=slot.shape, spelled=slot.dtype)
        for slot in header.slots
        if slot.shape  # a number has no rows
    }
    return Arrays(layouts, dict.fromkeys(layouts, (open_file, path)))


@dataclass(frozen=True, slots=True)
class Archive:
    """The arrays of a .npz file. It is read as a stream, so that no more is unpacked at once than a block."""

    open_file: Open

    def length(self, name: str) -> int:
        with self._opened(name) as (_, layout):
            return layout.shape[0]

    def take(self, names: Sequence[str], rows: Rows | None) -> dict[str, Taken]:
        return {name: self._take(name, rows) for name in names}

    @contextmanager
    def _opened(self, name: str) -> Iterator[tuple[IO[bytes], _Layout]]:
        """The array of this name from its first byte on."""
        with self.open_file() as stream, zipfile.ZipFile(stream) as archive:
            if f"{name}.npy" not in archive.namelist():
                raise DataProblem("data.missing")
            member = archive.getinfo(f"{name}.npy")
            if member.compress_type not in _PACKINGS:
                raise DataProblem("data.shape")
            with archive.open(member) as packed:
                layout = _npy_layout(packed)
                if layout.offset + layout.bytes != member.file_size:
                    raise DataProblem("data.shape")
                yield packed, layout

    def _take(self, name: str, rows: Rows | None) -> Taken:
        with self._opened(name) as (packed, layout):
            chosen = _chosen(rows, layout)
            if layout.fortran:  # its rows lie scattered
                if layout.bytes > MAX_BYTES:
                    raise DataProblem("data.shape")
                whole = np.frombuffer(packed.read(layout.bytes), dtype=layout.dtype)
                values = whole.reshape(layout.shape, order="F")[chosen]
            else:
                values = _streamed(packed, layout, chosen, skip=packed.read)
            while packed.read(_BLOCK):  # the sum of all bytes is compared at the end
                pass
            return layout.widened(values)
