"""Cohort splits: a hold on a tenth of the population, beside an array that keeps the sums of every datapoint.

The array is what cohorts replace: 15 sums of 8 bytes per datapoint, updated in place, slice by slice where
the scope allows it. Its cost is proportional to the datapoints touched, so it is measured on a population of
10⁷ in the same run (1.2 GB; 10⁸ would take 12 GB) and compared per touched datapoint.
"""

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from accountant.cohorts import Cohorts, Representation
from accountant.filters import Cost
from accountant.histories import History
from benchmarks.measure import medians, times

Form: TypeAlias = Representation | Literal["automatic"]
COST = Cost(rho=tuple(range(1, 16)), delta=1)
SHARE = 10
REPEATS = 7
ARRAY_SIZE = 10**7
COLUMNS = "{:<8}{:>5}{:>9}{:>7}  {:<9}{:>9}{:>12}{:>13}{:>18}{:>8}"
HEADINGS = (
    "scope",
    "size",
    "cohorts",
    "met",
    "form",
    "split ms",
    "ns/touched",
    "bytes/point",
    "array ns/touched",
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A population cut into cohorts by `cuts`, and a scope that cuts them again."""

    kind: str
    size: int
    cuts: Iterable[BitMap]
    scope: BitMap
    slices: tuple[slice, ...] = ()  # the scope as an array would best be told it; empty: ordinal by ordinal
    forms: tuple[Form, ...] = ("automatic",)


def main() -> None:
    """Print a line per kind of scope, size of population and representation."""
    print(f"A hold on a tenth of the datapoints, median of {REPEATS}; * a form that the rule does not choose")
    print(COLUMNS.format(*HEADINGS, "ratio"))
    sums = np.zeros((ARRAY_SIZE, len(COST.rho)), dtype=np.int64)
    for make in (ranges, blocks, random):
        for size in (10**7, 10**8):
            case = make(size)
            array_nanoseconds = array_update(sums, case)
            for representation in case.forms:
                print(line(case, representation, array_nanoseconds), flush=True)


def line(case: Case, representation: Form, array_nanoseconds: float) -> str:
    """Cut the population, then time holds; each is voided again, so that all meet the same cohorts."""
    cohorts = Cohorts(case.size, representation=representation)
    for number, cut in enumerate(case.cuts):
        cohorts.charge(cut, holding(f"cut {number}"))
        cohorts.resolve(f"cut {number}", committing(f"cut {number}"))
    split = medians(  # the round that is not counted may change the form
        {"hold": lambda: cohorts.charge(case.scope, holding("hold"))},
        repeats=REPEATS,
        reset=lambda: cohorts.resolve("hold", voiding("hold")),
    )["hold"]
    nanoseconds = split * 1e9 / len(case.scope)
    return COLUMNS.format(
        case.kind,
        f"10^{len(str(case.size)) - 1}",
        len(cohorts),
        len(cohorts.touched(case.scope)),
        cohorts.representation + ("" if representation == "automatic" else " *"),
        f"{split * 1e3:.2f}",
        f"{nanoseconds:.3f}",
        f"{cohorts.nbytes / case.size:.4f}",
        f"{array_nanoseconds:.1f}",
        times(array_nanoseconds / nanoseconds),
    )


def array_update(sums: NDArray[np.int64], case: Case) -> float:
    """Nanoseconds per touched datapoint to add a price to each datapoint's own sums."""
    price = np.array(COST.rho, dtype=np.int64)
    scope = case.scope & BitMap(range(len(sums)))
    places: Iterable[slice | NDArray[np.intp]] = [part for part in case.slices if part.stop <= len(sums)] or [
        np.frombuffer(scope.to_array(), dtype=np.uint32).astype(np.intp)
    ]

    def add() -> None:
        for place in places:
            sums[place] += price

    return medians({"add": add}, repeats=3)["add"] * 1e9 / sum(len(sums[place]) for place in places)


def holding(release: str) -> Callable[[History], History]:
    """A hold in the lifelong ledger."""
    spending = (("", COST),)
    return lambda history: history.hold(release, spending, b"")


def committing(release: str) -> Callable[[History], History]:
    """What was held is spent."""
    return lambda history: history.commit(release)


def voiding(release: str) -> Callable[[History], History]:
    """What was held is free again."""
    return lambda history: history.void(release)


def ranges(size: int) -> Case:
    """1,000 neighbouring ranges; the scope cuts two of them and covers those between."""
    step = size // 1000
    start = 3 * step + step // 3
    return Case(
        kind="ranges",
        size=size,
        cuts=[BitMap(range(first, first + step)) for first in range(step, size, step)],
        scope=BitMap(range(start, start + size // SHARE)),
        slices=(slice(start, start + ARRAY_SIZE // SHARE),),
    )


def blocks(size: int) -> Case:
    """1,000 cohorts of ten blocks strewn over the population; the scope cuts two of every ten blocks."""
    block = size // 10_000
    starts: list[int] = (np.random.default_rng(0).permutation(10_000) * block).tolist()
    slices = tuple(slice(first + block // 3, first + block // 3 + block) for first in range(0, size, SHARE * block))
    return Case(
        kind="blocks",
        size=size,
        cuts=[union([slice(first, first + block) for first in starts[cohort::1000]]) for cohort in range(1, 1000)],
        scope=union(slices),
        slices=slices,
    )


def random(size: int) -> Case:
    """Each datapoint by lot: 1,024 cohorts of 10⁷ (ten scopes at even odds), ten cohorts of 10⁸."""
    chance = np.random.default_rng(0)
    if size == 10**7:
        cuts = [members(chance.random(size, dtype=np.float32) < 0.5) for _ in range(10)]
    else:
        lot = chance.integers(10, size=size, dtype=np.uint8)
        cuts = [members(lot == cohort) for cohort in range(1, 10)]
    return Case(
        kind="random",
        size=size,
        cuts=cuts,
        scope=members(chance.random(size, dtype=np.float32) < 1 / SHARE),
        forms=("automatic", "bitmaps"),
    )


def union(parts: Iterable[slice]) -> BitMap:
    """All ordinals of the slices."""
    scope = BitMap()
    for part in parts:
        scope.add_range(part.start, part.stop)
    return scope


def members(chosen: NDArray[np.bool_]) -> BitMap:
    """The ordinals at which `chosen` is true."""
    return BitMap(array("I", np.flatnonzero(chosen).astype(np.uint32).tobytes()))
