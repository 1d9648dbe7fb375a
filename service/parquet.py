"""Keys out of a Parquet file, a few thousand at a time, however many there are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Final

from service.errors import Problem

MEDIA_TYPE: Final = "application/vnd.apache.parquet"  # as it is registered with IANA
_ROWS: Final = 10_000  # that are decoded at a time
_BUFFER_BYTES: Final = 2**20  # that are read at a time; without it, a row group's column would be read whole
MAX_GROUP_BYTES: Final = 2**27  # of the keys in one row group, before compression: the reader keeps them together


@contextmanager
def _readable() -> Iterator[None]:
    """What the library says of a file is not repeated: it may hold bytes of the file."""
    import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 - large, and needed by few

    try:
        yield
    except (pa.ArrowException, OSError):
        raise Problem("invalid", "The body is not a Parquet file, or not all of one.", "body") from None


def keys(file: BinaryIO) -> Iterator[list[tuple[str, str]]]:
    """The column `key`, as rows with their names; a row that cannot be read ends it, after all before it.

    Values are read as references into the file's own dictionary, so that one long value which a small file repeats a
    million times is in memory once. What is kept is the distinct keys of a row group.
    """
    import pyarrow.parquet as pq  # type: ignore[import-untyped]  # noqa: PLC0415

    with _readable():
        metadata = _checked(pq.ParquetFile(file))
        opened = pq.ParquetFile(
            file, metadata=metadata, read_dictionary=["key"], pre_buffer=False, buffer_size=_BUFFER_BYTES
        )
        batches = opened.iter_batches(batch_size=_ROWS, columns=["key"], use_threads=False)
    number = 0
    while True:
        with _readable():
            batch = next(batches, None)
        if batch is None:
            return
        found, problem = _read(batch.column(0), number)
        number += len(found)
        yield found
        if problem is not None:
            raise problem


def _checked(opened: Any) -> Any:
    """The metadata of a file that has such a column."""
    import pyarrow as pa  # noqa: PLC0415

    columns = opened.schema_arrow.get_all_field_indices("key")
    if len(columns) != 1:
        raise Problem("invalid", "The file must have one column `key`.", "body")
    kind = opened.schema_arrow.field(columns[0]).type
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(plain) or pa.types.is_large_string(plain)):
        raise Problem("invalid", f"The column `key` must hold text, and holds {str(plain)[:100]}.", "body")
    metadata = opened.metadata
    place = next(place for place in range(metadata.num_columns) if opened.schema.column(place).path == "key")
    for number in range(metadata.num_row_groups):
        if metadata.row_group(number).column(place).total_uncompressed_size > MAX_GROUP_BYTES:
            detail = f"The keys of row group {number} have more than {MAX_GROUP_BYTES:,} bytes: write smaller groups."
            raise Problem("invalid", detail, "body")
    return metadata


def _read(column: Any, before: int) -> tuple[list[tuple[str, str]], Problem | None]:
    """Rows up to the first that cannot be read, and why it cannot."""
    found: list[tuple[str, str]] = []
    words: dict[int, str] = {}
    for number, place in enumerate(column.indices.to_pylist(), start=before + 1):
        if place is None:
            return found, Problem("invalid", f"Row {number} has no key.", "key")
        if place not in words:
            try:
                words[place] = column.dictionary[place].as_py()
            except UnicodeDecodeError:
                return found, Problem("invalid", f"Row {number} is not UTF-8.", "key")
        found.append((f"Row {number}", words[place]))
    return found, None
