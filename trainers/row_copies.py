"""Rows of private data that stand in a tensor: found at every place of it, however it was cut, flattened or joined.

Numbers are compared as float64, so that a copy is found in whatever type it was written: a whole number equals itself
as a float, and a row that a type can only round is compared with its rounding. All windows of a row's width are hashed
at once: with v the numbers, scrambled, and B odd, Σ v[i+j]·Bʲ modulo 2⁶⁴ is a difference of prefix sums times a power
of B⁻¹ (Karp & Rabin 1987). So time is linear in the tensor, whatever the width, and memory in the width. Two different
rows have the same hash with a chance of about 2⁻⁶⁴.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InvalidInput

#: Bits by which a row is told from what stands in tensors by chance. Fewer are looked for only where a tensor's shape
#: has rows of that width: numbers such as 0, 1 stand side by side anywhere.
TELLING: Final = 48
_AT_ONCE: Final = 1 << 18  # numbers
_BASE: Final = 0x9E3779B97F4A7C15
_INVERSE: Final = pow(_BASE, -1, 1 << 64)
_MANTISSA: Final = 52

Numbers: TypeAlias = NDArray[np.float64]
Hashes: TypeAlias = NDArray[np.uint64]


class Rows:
    """Rows that must not be in an artifact, as hashes: memory does not grow with their width."""

    def __init__(self, *, width: int, anywhere: Mapping[str, _Known], by_shape: Mapping[str, _Known]) -> None:
        self.width, self._anywhere, self._by_shape = width, anywhere, by_shape
        self._powers: tuple[Hashes, Hashes] = _powers(0)

    @classmethod
    def of(cls, x: NDArray[Any]) -> Rows:
        """The rows of an array of any shape; rows of one number, or of equal ones, are nobody's."""
        if x.dtype.kind not in "biuf" or x.ndim < 2 or not x.size:
            raise InvalidInput("rows", f"{x.dtype} {list(x.shape)}", "rows of two numbers or more")
        flat = x.reshape(len(x), -1)
        width = flat.shape[1]
        anywhere: dict[str, list[Hashes]] = {kind: [] for kind in _KINDS}
        by_shape: dict[str, list[Hashes]] = {kind: [] for kind in _KINDS}
        powers = _powers(width)[0]
        step = max(1, _AT_ONCE // width)
        for start in range(0, len(flat), step):
            exact = _plain(flat[start : start + step])
            words = exact.view(np.uint64)
            exact = exact[(words != words[:, :1]).any(axis=1)]
            bits, hashes = _bits(exact), _hashes(exact, powers)
            for kind in _KINDS:
                rounded = _rounded(exact, kind)
                differs = (rounded.view(np.uint64) != exact.view(np.uint64)).any(axis=1)
                mine, told = hashes.copy(), bits >= TELLING
                mine[differs], told[differs] = _hashes(rounded[differs], powers), _bits(rounded[differs]) >= TELLING
                anywhere[kind].append(mine[told])
                by_shape[kind].append(mine[told | ~differs])
        return cls(
            width=width,
            anywhere={kind: _Known.of(np.concatenate(found)) for kind, found in anywhere.items()},
            by_shape={kind: _Known.of(np.concatenate(found)) for kind, found in by_shape.items()},
        )

    @property
    def are_told(self) -> bool:
        """Whether there is any row to look for."""
        return any(len(known.hashes) for known in self._by_shape.values())

    def search(self, *, dtype: str, shape: tuple[int, ...]) -> Search:
        """A search in a tensor of this type and shape, whose numbers come in their order."""
        kind = dtype if dtype in _KINDS else "exact"
        sizes = {int(np.prod(shape[axis:], dtype=object)) for axis in range(1, len(shape))}
        return Search(self, self._anywhere[kind], self._by_shape[kind] if self.width in sizes else None)

    def powers(self, many: int) -> tuple[Hashes, Hashes]:
        """So many powers of the base and of its inverse."""
        if len(self._powers[0]) < many:
            self._powers = _powers(many)
        return self._powers


class Search:
    """Counts the rows that stand in a tensor."""

    def __init__(self, rows: Rows, anywhere: _Known, by_shape: _Known | None) -> None:
        self._rows, self._anywhere, self._by_shape = rows, anywhere, by_shape
        self._waiting: list[Numbers] = []
        self._many, self._at = 0, 0  # numbers that wait, and the place of the first of them
        self.found = 0

    def add(self, values: NDArray[Any]) -> None:
        """The next numbers of the tensor."""
        for start in range(0, len(values), _AT_ONCE):
            piece = _plain(values[start : start + _AT_ONCE])
            self._waiting.append(piece)
            self._many += len(piece)
            if self._many >= self._rows.width + max(self._rows.width, _AT_ONCE):
                self._look()

    def end(self) -> int:
        """How many rows were found in all."""
        self._look()
        return self.found

    def _look(self) -> None:
        width = self._rows.width
        if self._many < width:
            return
        numbers = np.concatenate(self._waiting)
        powers, inverses = self._rows.powers(len(numbers))
        sums = np.zeros(len(numbers) + 1, dtype=np.uint64)
        np.cumsum(_scrambled(numbers) * powers[: len(numbers)], out=sums[1:])
        hashes = (sums[width:] - sums[:-width]) * inverses[: len(numbers) - width + 1]
        hits = self._anywhere.places(hashes)
        if self._by_shape is not None:
            first = -self._at % width
            aligned = first + width * self._by_shape.places(hashes[first::width])
            hits = np.union1d(hits, aligned)
        self.found += len(hits)
        self._at += len(hashes)
        self._waiting = [numbers[len(hashes) :]]
        self._many = len(self._waiting[0])


class _Known(NamedTuple):
    """Hashes in rising order, and a table by their first bits, which spares most searches among them."""

    hashes: Hashes
    table: NDArray[np.bool_]
    shift: int

    @classmethod
    def of(cls, hashes: Hashes) -> _Known:
        kept = np.unique(hashes)
        bits = min(24, max(8, len(kept).bit_length() + 4))
        table = np.zeros(1 << bits, dtype=np.bool_)
        table[kept >> np.uint64(64 - bits)] = True
        return cls(kept, table, 64 - bits)

    def places(self, asked: Hashes) -> NDArray[np.intp]:
        """Where one of the hashes stands."""
        if not len(self.hashes):
            return np.empty(0, dtype=np.intp)
        likely = np.flatnonzero(self.table[asked >> np.uint64(self.shift)])
        near = np.searchsorted(self.hashes, asked[likely]).clip(max=len(self.hashes) - 1)
        found: NDArray[np.intp] = likely[self.hashes[near] == asked[likely]]
        return found


#: Types that round; in all others a row stands as it is, or not at all.
_KINDS: Final = ("exact", "F32", "F16", "BF16")


def _rounded(rows: Numbers, kind: str) -> Numbers:
    """Rows as this type has them; a number that is too large for it becomes infinite, as in a copy."""
    with np.errstate(over="ignore"):
        match kind:
            case "F32":
                return _plain(rows.astype(np.float32))
            case "F16":
                return _plain(rows.astype(np.float16))
            case "BF16":  # to the nearest, and to even where two are
                bits = rows.astype(np.float32).view(np.uint32)
                up = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
                cut = ((bits + up) >> np.uint32(16)) << np.uint32(16)
                return _plain(np.where(np.isnan(rows), np.float32("nan"), cut.view(np.float32)))
            case _:
                return rows


def _plain(values: NDArray[Any]) -> Numbers:
    """As float64, with one zero and one NaN."""
    plain = values.astype(np.float64) + 0.0
    plain[np.isnan(plain)] = np.nan
    return plain


def _bits(rows: Numbers) -> NDArray[np.float64]:
    """About how many bits tell each row from others: of each number that differs from the one before, its digits."""
    before = np.concatenate([np.zeros((len(rows), 1)), rows[:, :-1]], axis=1)
    told = np.isfinite(rows) & (rows != before)
    finite = np.where(told, np.abs(rows), 0.0)
    mantissa = finite.view(np.uint64) & np.uint64((1 << _MANTISSA) - 1)
    lowest = np.maximum(mantissa & (~mantissa + np.uint64(1)), 1)
    fraction = np.where(mantissa == 0, 1.0, _MANTISSA + 1 - np.log2(lowest))  # 0.5 has one digit, 0.1 has all
    whole = np.minimum(np.log2(1 + finite), _MANTISSA + 1)
    bits: NDArray[np.float64] = (told * (1 + np.where(finite == np.floor(finite), whole, fraction))).sum(axis=1)
    return bits


def _hashes(rows: Numbers, powers: Hashes) -> Hashes:
    found: Hashes = (_scrambled(rows) * powers).sum(axis=1, dtype=np.uint64)
    return found


def _scrambled(numbers: Numbers) -> Hashes:
    """The bits of each number, mixed so that all depend on all (SplitMix64: Steele, Lea & Flood 2014)."""
    mixed: Hashes = numbers.view(np.uint64) + np.uint64(_BASE)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _powers(many: int) -> tuple[Hashes, Hashes]:
    def of(base: int) -> Hashes:
        found = np.full(many, base, dtype=np.uint64)
        found[:1] = 1
        return np.multiply.accumulate(found, dtype=np.uint64)

    return of(_BASE), of(_INVERSE)
