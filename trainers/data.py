"""A run's data: from a document to the rows of the datapoints that were admitted, and of nobody else.

`open_data` finds the file, within the places that the worker allows, and settles whose each row is; that is checked of
the whole file, so that whether a run stops does not depend on the scope that it asks for. `Data.rows` then reads the
rows of one scope. All that may be learned from a failure is its code.
"""

from __future__ import annotations

import math
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias, cast

import fsspec  # type: ignore[import-untyped]
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from trainers import columns, parquet
from trainers.catalog.data_documents import (
    KNOWN_SHARE,
    LOCAL,
    MAX_KEY,
    belongs_to_others,
    contradicted,
    data_document,
    split,
)
from trainers.catalog.label_spaces import MAX_NAME
from trainers.columns import Code, Columns, DataProblem, Taken
from trainers.ports import Rows

if TYPE_CHECKING:
    from pyroaring import BitMap

__all__ = ["Code", "Data", "DataProblem", "open_data"]

#: From keys to ordinals; −1 for a key that nobody has.
OrdinalsOf: TypeAlias = Callable[[Sequence[str]], NDArray[np.int64]]

_KEYS_AT_ONCE: Final = 100_000
_BLOCK: Final = 1 << 22  # bytes that are moved at once
_WHOLE: Final = 2.0**53  # up to here every whole number is a float
_FORMATS: Final = (".npz", ".npy", ".parquet", ".safetensors")


class Data:
    """A file whose rows are settled. It holds no row; `rows` reads those of a scope."""

    def __init__(self, document: dict[str, Any], file: Columns, ordinals_of: OrdinalsOf, *, size: int) -> None:
        self._document, self._file = document, file
        with _codes_only():
            lengths = {file.length(name) for name in _names(document)}
            if len(lengths) != 1:
                raise DataProblem("data.mismatch")
        [self._length] = lengths
        #: Ordinals with the places of their rows in the file; None where place and ordinal go together.
        self._settled: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
        if document["address"] != "row":
            self._settled = self._settle(ordinals_of, size=size)

    def rows(self, *, proposed: BitMap, admitted: BitMap) -> Rows:
        """The rows of datapoints in both scopes, in slots of the one that was proposed."""
        with _codes_only():
            return self._rows(_array(proposed), _array(proposed & admitted))

    def _rows(self, proposed: NDArray[np.int64], admitted: NDArray[np.int64]) -> Rows:
        document = self._document
        ordinals, places = self._placed(proposed, admitted)
        order = np.argsort(places, kind="stable")
        taken = self._file.take(_names(document, unit=False), places[order])
        x, whole = self._features([taken[name] for name in document["x"]], len(places))
        y = np.empty(0, dtype=np.int64)
        if document["y"]:
            y, labelled = _labels(taken[document["y"]])
            whole &= labelled
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        keep = whole[back]
        chosen = back[keep]
        return Rows(
            slots=len(proposed),
            unit=np.searchsorted(proposed, ordinals[keep]).astype(np.int64, copy=False),
            x=_moved_up(x, keep) if self._settled is None else x[chosen],  # already in order, or not
            y=y[chosen] if document["y"] else y,
            rows_per_unit=document["rows_per_unit"],
            file_rows=self._length,
        )

    def _placed(
        self, proposed: NDArray[np.int64], admitted: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Whose rows are wanted, by ordinal and then by place in the file, and the places where they are."""
        if self._settled is None:
            first = self._document["first"]
            if len(proposed) and (proposed[0] < first or proposed[-1] >= first + self._length):
                raise DataProblem("data.mismatch")
            return admitted, admitted - first
        ordinals, places = self._settled
        wanted = _within(ordinals, admitted)
        return ordinals[wanted], places[wanted]

    def _features(self, parts: Sequence[Taken], count: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Features as float32 after the public map, and which rows are whole: valid, and finite after it."""
        whole = np.ones(count, dtype=np.bool_)
        if any(part.values.dtype.kind not in "biuf" for part in parts):
            raise DataProblem("data.shape")
        with np.errstate(over="ignore", invalid="ignore"):
            arrays = [np.asarray(part.values, dtype=np.float32) for part in parts]
            if len(arrays) == 1 and arrays[0].ndim > 1:
                x = arrays[0]
            else:
                flat = [array.reshape(count, math.prod(array.shape[1:])) for array in arrays]
                x = np.concatenate(flat, axis=1) if flat else np.empty((count, 0), dtype=np.float32)
            scale, shift = self._document["scale"], self._document["shift"]
            if (scale, shift) != (1.0, 0.0):
                x = x * np.float32(scale) + np.float32(shift)
        for part in parts:
            whole &= part.valid
        whole &= np.isfinite(x.reshape(count, math.prod(x.shape[1:]))).all(axis=1)
        return x, whole

    def _settle(self, ordinals_of: OrdinalsOf, *, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Ordinals, rising, with the places of their first rows in the file; of everybody, whatever the scope.

        A file of other people is refused as a whole: one with an ordinal that the population of this size does not
        have, or with too small a share of keys that it has.
        """
        document = self._document
        by_key = document["address"] == "key"
        with _codes_only():
            values, valid = self._file.take([document["unit"]], None)[document["unit"]]
            if values.ndim != 1 or values.dtype.kind not in ("iuUS" if by_key else "iu"):
                raise DataProblem("data.shape")
            places = np.flatnonzero(valid)
            values = values[places]
            keys = _text(values).tolist() if by_key else []
        if by_key:  # whose faults are not the file's
            ordinals = _looked_up([str(key) for key in keys], ordinals_of)
            known = ordinals >= 0
            if len(np.unique(ordinals[known])) < KNOWN_SHARE * len(set(keys)):
                raise DataProblem("data.mismatch")
            ordinals, places = ordinals[known], places[known]
        else:
            if ((values < 0) | (values >= size)).any():
                raise DataProblem("data.mismatch")
            ordinals = values.astype(np.int64)
        order = np.argsort(ordinals, kind="stable")
        ordinals, places = ordinals[order], places[order]
        rank = np.arange(len(ordinals)) - np.searchsorted(ordinals, ordinals)
        kept = rank < document["rows_per_unit"]
        if document["rows_per_unit"] == 1 and not kept.all():
            raise DataProblem("data.mismatch")
        return ordinals[kept], places[kept]


def open_data(
    document: object,
    *,
    allowed: Sequence[str],
    ordinals_of: OrdinalsOf,
    size: int,
    own: Sequence[Mapping[str, Any]] = (),
    others: Sequence[str] = (),
) -> Data:
    """The data that a document names, within the `allowed` URI prefixes; `ordinals_of` gives −1 for a key nobody has.

    `size` is how many datapoints the population has. `own` are the rules by which its policy says whose rows are, and
    `others` the addresses of which those of other populations say it: what belongs to others is not read, and nothing
    is otherwise than a rule says, whatever link leads there.

    A document that is malformed is `InvalidInput`, which says how; all else is a `DataProblem`.
    """
    checked = data_document(document)
    with _codes_only():
        rules = [{**rule, "uri": place} for rule in own for place in _place(rule["uri"])]
        mine, theirs = [rule["uri"] for rule in rules], [place for uri in others for place in _place(uri)]

        def locate(uri: str) -> tuple[bool, str]:
            local, target = _located(uri, allowed)
            if not uri.endswith("/") and (  # of a folder the arrays in it count
                belongs_to_others(target, own=mine, others=theirs)
                or (own and contradicted(rules, checked, target) is not None)
            ):
                raise DataProblem("data.unknown")
            return local, target

        file = _opened(checked, locate)
    return Data(checked, file, ordinals_of, size=size)


def _names(document: dict[str, Any], *, unit: bool = True) -> list[str]:
    """The columns that are read, each once."""
    return list(dict.fromkeys([*document["x"], *filter(None, (document["y"], document["unit"] if unit else ""))]))


def _opened(document: dict[str, Any], locate: Callable[[str], tuple[bool, str]]) -> Columns:
    uri, names = document["uri"], _names(document)
    local, target = locate(uri)
    if uri.endswith("/"):
        if not all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name) for name in names):
            raise DataProblem("data.missing")
        return columns.npy({name: _file(*locate(f"{uri}{name}.npy")) for name in names})
    suffix = next((suffix for suffix in _FORMATS if uri.endswith(suffix)), None)
    if suffix is None:
        raise DataProblem("data.unknown")
    open_file, path, size = _file(local, target)
    if suffix == ".npy":  # one array, which has the one name that is asked for
        if len(names) != 1:
            raise DataProblem("data.missing")
        return columns.npy({names[0]: (open_file, path, size)})
    if suffix == ".npz":
        return columns.Archive(open_file)
    if suffix == ".safetensors":
        return columns.safetensors(open_file, path, size)
    return parquet.Table(open_file, keys=document["unit"])


def _place(uri: str) -> list[str]:
    """Where the address of a rule really leads, as `_located` says it; nowhere if nobody could read it."""
    if (found := split(uri)) is None:
        return []
    scheme, rest = found
    if scheme not in LOCAL:
        return [f"{scheme}://{rest}"]
    return [os.path.realpath(rest).rstrip("/") + ("/" if uri.endswith("/") else "")]


def _located(uri: str, allowed: Sequence[str]) -> tuple[bool, str]:
    """Whether a URI is a local path, and where it really leads; `data.unknown` if that is not within a prefix."""
    scheme, rest = _split(uri)
    for prefix in allowed:
        its_scheme, its_rest = _split(prefix)
        if scheme in LOCAL and its_scheme in LOCAL:
            real, base = (os.path.realpath(path) for path in (rest, its_rest))
            if real == base or real.startswith(base.rstrip("/") + "/"):
                return True, real
        elif scheme == its_scheme:
            base = its_rest.rstrip("/")
            if rest == base or rest.startswith(base + "/"):
                return False, f"{scheme}://{rest}"
    raise DataProblem("data.unknown")


def _split(uri: str) -> tuple[str, str]:
    if (found := split(uri)) is None:
        raise DataProblem("data.unknown")
    return found


def _file(local: bool, target: str) -> tuple[columns.Open, Path | None, int]:  # noqa: FBT001
    if local:
        path = Path(target)
        if not path.is_file():
            raise DataProblem("data.missing")
        return (lambda: path.open("rb")), path, path.stat().st_size
    try:
        system, place = fsspec.core.url_to_fs(target)
    except (ImportError, ValueError):  # no driver is installed for its scheme, or there is none
        raise DataProblem("data.unknown") from None
    if not system.isfile(place):
        raise DataProblem("data.missing")
    return (lambda: cast("IO[bytes]", system.open(place, "rb"))), None, int(system.size(place))


def _moved_up(x: NDArray[Any], keep: NDArray[np.bool_]) -> NDArray[Any]:
    """The rows to keep, in the memory of all: a copy that is made only where a row is null would tell of that row.

    Every row is moved, if only to where it is, so that time is the same as well.
    """
    at_a_time, stop = max(1, _BLOCK // max(1, x[:1].nbytes)), 0
    for start in range(0, len(x), at_a_time):
        some = slice(start, start + at_a_time)
        rows = x[some][keep[some]]
        x[stop : stop + len(rows)] = rows
        stop += len(rows)
    return x[:stop]


def _within(ordinals: NDArray[np.int64], admitted: NDArray[np.int64]) -> NDArray[np.bool_]:
    if not len(admitted):
        return np.zeros(len(ordinals), dtype=np.bool_)
    found: NDArray[np.bool_] = admitted[np.minimum(np.searchsorted(admitted, ordinals), len(admitted) - 1)] == ordinals
    return found


def _array(scope: BitMap) -> NDArray[np.int64]:
    return np.asarray(scope.to_array()).astype(np.int64)


def _looked_up(keys: Sequence[str], ordinals_of: OrdinalsOf) -> NDArray[np.int64]:
    keys = [key if len(key) <= MAX_KEY else "" for key in keys]  # nobody has one that is longer, or none
    parts = [
        np.asarray(ordinals_of(keys[start : start + _KEYS_AT_ONCE]), dtype=np.int64)
        for start in range(0, len(keys), _KEYS_AT_ONCE)
    ]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _labels(taken: Taken) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Labels as text or whole numbers, and which rows have one. A number that is not whole is no label."""
    values, valid = taken
    if values.ndim != 1:
        raise DataProblem("data.shape")
    if values.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            whole = (np.abs(values) <= _WHOLE) & (np.floor(values) == values)
        return np.where(whole, values, 0).astype(np.int64), valid & whole
    if values.dtype.kind in "US":
        values = _text(values)
        return values, valid & _readable(values)
    native = np.int64 if values.dtype.kind == "b" else values.dtype.newbyteorder("=")
    return values.astype(native, copy=False), valid


def _readable(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Which texts are labels: neither empty nor too long, and such as UTF-8 can write."""
    length = np.strings.str_len(labels)
    signs = np.ascontiguousarray(labels).view(np.uint32).reshape(len(labels), labels.dtype.itemsize // 4)
    strange = (signs > 0x10FFFF) | ((signs >= 0xD800) & (signs <= 0xDFFF))
    return (length > 0) & (length <= MAX_NAME) & ~strange.any(axis=1)


def _text(values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind == "S":
        return np.strings.decode(values, "utf-8", "replace")
    return values.astype(values.dtype.newbyteorder("="), copy=False)


@contextmanager
def _codes_only() -> Iterator[None]:
    """Whatever goes wrong with a file leaves as a code, without the words of the library that met it."""
    try:
        yield
    except DataProblem as problem:
        raise DataProblem(problem.code) from None
    except OSError:
        raise DataProblem("data.missing") from None
    except _BROKEN:
        raise DataProblem("data.shape") from None


_BROKEN: Final = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    pa.ArrowException,
    zipfile.BadZipFile,
    zlib.error,
)
