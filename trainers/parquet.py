"""Columns of a Parquet file, read in batches; columns of lists are rows of features."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainers.catalog.data_documents import MAX_KEY
from trainers.catalog.label_spaces import MAX_NAME
from trainers.columns import MAX_BYTES, DataProblem, Open, Rows, Taken

_BATCH: Final = 1 << 14  # rows that are unpacked at once
_MAX_FOOTER: Final = 1 << 28  # bytes of one text in it, and things in one list
_SIGN_BYTES: Final = 4  # of UTF-8, at most


class Table:
    """A Parquet file, of which one column may hold keys. A null anywhere makes its row null.

    Lists of one column have one length, that of the first, in the whole file: whether a file is refused for them does
    not depend on the rows that are asked for.
    """

    def __init__(self, open_file: Open, *, keys: str = "") -> None:
        self._open, self._keys = open_file, keys
        with open_file() as stream, _file(stream) as file:
            self._names = file.schema_arrow.names
            self._types = {name: file.schema_arrow.field(name).type for name in set(self._names)}
            self._rows = file.metadata.num_rows
        self._shapes: dict[str, tuple[int, ...]] = {}

    def length(self, name: str) -> int:
        if name not in self._types:
            raise DataProblem("data.missing")
        return int(self._rows)

    def take(self, names: Sequence[str], rows: Rows | None) -> dict[str, Taken]:
        for name in names:
            self.length(name)
        wanted = list(dict.fromkeys(names))
        shapes = {name: self._shape(name) for name in wanted}
        # Of no rows, so that a type which cannot be read is refused whoever is asked for.
        found = {name: [self._read(name, pa.array([], self._types[name]), shapes[name])] for name in wanted}
        size = 0
        for batch in self._batches(wanted, rows):
            for name in wanted:
                taken = self._read(name, batch.column(name), shapes[name])
                size += taken.values.nbytes
                found[name].append(taken)
            if size > MAX_BYTES:
                raise DataProblem("data.shape")
        return {name: _together(parts) for name, parts in found.items()}

    def _batches(self, names: Sequence[str], rows: Rows | None) -> Iterator[pa.RecordBatch]:
        """The chosen rows. All are unpacked, whoever is asked for: a damaged page stops a run for nobody too."""
        with self._open() as stream, _file(stream, texts=self._texts(names)) as file:
            start = 0
            for batch in file.iter_batches(batch_size=_BATCH, columns=list(names)):
                if rows is None:
                    yield batch
                else:
                    first, last = np.searchsorted(rows, [start, start + batch.num_rows])
                    if first < last:
                        yield batch.take(pa.array(rows[first:last] - start))
                start += batch.num_rows

    def _read(self, name: str, column: Any, shape: tuple[int, ...]) -> Taken:
        return _read(column, shape, MAX_KEY if name == self._keys else MAX_NAME)

    def _texts(self, names: Sequence[str]) -> list[str]:
        """Columns of text, which stay in the dictionaries that the file has: a short file may hold long repetitions."""
        return [name for name in names if pa.types.is_string(self._types[name])]

    def _shape(self, name: str) -> tuple[int, ...]:
        """The shape of a row: by its type, or else that of the first row of the file that has one."""
        if name not in self._shapes:
            kind, shape = self._types[name], []
            while pa.types.is_fixed_size_list(kind):
                shape.append(kind.list_size)
                kind = kind.value_type
            if pa.types.is_list(kind) or pa.types.is_large_list(kind):
                shape = self._first_shape(name)
            self._shapes[name] = tuple(shape)
        return self._shapes[name]

    def _first_shape(self, name: str) -> list[int]:
        """The shape of the first list, after all were compared with it: types do not say that they are alike."""
        shape: list[int] | None = None
        for batch in self._batches([name], None):
            column = batch.column(name)
            if shape is None:
                shape = next((list(np.shape(row.as_py())) for row in column if row.is_valid), None)
            if shape is not None:
                self._read(name, column, tuple(shape))
        return shape or [0]


def _file(stream: Any, texts: Sequence[str] = ()) -> pq.ParquetFile:
    return pq.ParquetFile(
        stream,
        read_dictionary=list(texts),
        thrift_string_size_limit=_MAX_FOOTER,
        thrift_container_size_limit=_MAX_FOOTER,
    )


def _together(parts: Sequence[Taken]) -> Taken:
    some = [part for part in parts if len(part.values)] or parts[:1]
    return Taken(np.concatenate([part.values for part in some]), np.concatenate([part.valid for part in some]))


def _read(column: Any, shape: tuple[int, ...], longest: int) -> Taken:
    """The values of a batch, in rows of one shape; a text has at most so many signs."""
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _read_lists(column, valid, shape, longest)
    if pa.types.is_dictionary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _read_texts(column, valid, longest)
    if shape or not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise DataProblem("data.shape")
    return Taken(pc.fill_null(column, False if pa.types.is_boolean(kind) else 0).to_numpy(zero_copy_only=False), valid)


def _read_lists(column: Any, valid: NDArray[np.bool_], shape: tuple[int, ...], longest: int) -> Taken:
    present = column.filter(pa.array(valid))
    if not shape or not np.all(pc.list_value_length(present).to_numpy(zero_copy_only=False) == shape[0]):
        raise DataProblem("data.shape")
    inner = _read(present.flatten(), shape[1:], longest)
    values = np.zeros((len(valid), *shape), dtype=inner.values.dtype)
    values[valid] = inner.values.reshape(-1, *shape)
    whole = valid.copy()
    whole[valid] = inner.valid.reshape(-1, math.prod(shape[:1])).all(axis=1)
    return Taken(values, whole)


def _read_texts(column: Any, valid: NDArray[np.bool_], longest: int) -> Taken:
    """Texts of at most so many signs; a longer one would cost every row its length, and is null like one of no signs.

    Nothing about a word stops a run: whether it is looked at depends on who is asked for.
    """
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    words = [_word(each, longest) for each in encoded.dictionary.cast(pa.large_binary()).to_pylist()]
    texts = np.array([word or "" for word in words] or [""], dtype=np.str_)
    known = np.array([word is not None for word in words] or [False])
    which = pc.fill_null(encoded.indices, 0).to_numpy(zero_copy_only=False)
    return Taken(texts[which], valid & known[which])


def _word(spelled: bytes | None, longest: int) -> str | None:
    """A text, if it is one (the types of a file do not promise UTF-8) and no longer than it may be."""
    if spelled is None or len(spelled) > _SIGN_BYTES * longest:
        return None
    try:
        word = spelled.decode()
    except UnicodeDecodeError:
        return None
    return word if len(word) <= longest else None
