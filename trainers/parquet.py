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

from trainers.catalog.label_spaces import MAX_NAME
from trainers.columns import MAX_BYTES, DataProblem, Open, Rows, Taken

_BATCH: Final = 1 << 14  # rows that are unpacked at once
_MAX_FOOTER: Final = 1 << 28  # bytes of one text in it, and things in one list


class Table:
    """A Parquet file. A null anywhere makes its row null.

    Lists of one column have one length, that of the first, in the whole file: whether a file is refused for them does
    not depend on the rows that are asked for.
    """

    def __init__(self, open_file: Open) -> None:
        self._open = open_file
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
        found = {name: [_read(pa.array([], self._types[name]), shapes[name])] for name in wanted}
        size = 0
        for batch in self._batches(wanted, rows):
            for name in wanted:
                taken = _read(batch.column(name), shapes[name])
                size += taken.values.nbytes
                found[name].append(taken)
            if size > MAX_BYTES:
                raise DataProblem("data.shape")
        return {name: _together(parts) for name, parts in found.items()}

    def _batches(self, names: Sequence[str], rows: Rows | None) -> Iterator[pa.RecordBatch]:
        """The chosen rows; groups of rows without any are not read."""
        with self._open() as stream, _file(stream, texts=self._texts(names)) as file:
            start = 0
            for group in range(file.num_row_groups):
                stop = start + file.metadata.row_group(group).num_rows
                if rows is None or np.diff(np.searchsorted(rows, [start, stop]))[0]:
                    for batch in file.iter_batches(batch_size=_BATCH, row_groups=[group], columns=list(names)):
                        if rows is None:
                            yield batch
                        else:
                            first, last = np.searchsorted(rows, [start, start + batch.num_rows])
                            if first < last:
                                yield batch.take(pa.array(rows[first:last] - start))
                        start += batch.num_rows
                start = stop

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
                _read(column, tuple(shape))
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


def _read(column: Any, shape: tuple[int, ...]) -> Taken:
    """The values of a batch, in rows of one shape."""
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _read_lists(column, valid, shape)
    if pa.types.is_dictionary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _read_texts(column, valid)
    if shape or not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise DataProblem("data.shape")
    return Taken(pc.fill_null(column, False if pa.types.is_boolean(kind) else 0).to_numpy(zero_copy_only=False), valid)


def _read_lists(column: Any, valid: NDArray[np.bool_], shape: tuple[int, ...]) -> Taken:
    present = column.filter(pa.array(valid))
    if not shape or not np.all(pc.list_value_length(present).to_numpy(zero_copy_only=False) == shape[0]):
        raise DataProblem("data.shape")
    inner = _read(present.flatten(), shape[1:])
    values = np.zeros((len(valid), *shape), dtype=inner.values.dtype)
    values[valid] = inner.values.reshape(-1, *shape)
    whole = valid.copy()
    whole[valid] = inner.valid.reshape(-1, math.prod(shape[:1])).all(axis=1)
    return Taken(values, whole)


def _read_texts(column: Any, valid: NDArray[np.bool_]) -> Taken:
    """Texts that are no longer than a label may be; a longer one would cost every row its length."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    words = encoded.dictionary.cast(pa.large_string()).to_pylist()
    short = np.array([word is not None and len(word) <= MAX_NAME for word in words] or [False])
    texts = np.array([word if fits else "" for word, fits in zip(words, short, strict=False)] or [""], dtype=np.str_)
    which = pc.fill_null(encoded.indices, 0).to_numpy(zero_copy_only=False)
    return Taken(texts[which], valid & short[which])
