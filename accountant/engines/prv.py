"""Numerical composition of privacy losses, with a certified bracket.

Losses of independent steps add up, so the law of a release's loss is the product of the Fourier transforms of its
parts' laws (Koskela, Jälkö & Honkela 2020; Gopi, Lee & Wutschitz 2021). The laws come from `pairs`, once from above
and once from below, on a mesh that is a power of two; the grid depends on the parts only coarsely, so that many
histories share the transforms of their parts, and one more release is one product and one inverse transform.

Everything that the computer adds goes into the bracket: tails beyond a grid count as infinite loss, mass that wraps
around is bounded by Chernoff's inequality, rounding of transforms by their error analysis. Laws are tilted by
e^(θ · loss) before they are transformed, so that the part that decides δ(ε) is in the middle and not in the noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from accountant.engines import pairs
from accountant.engines.closed_form import Interval
from accountant.engines.pairs import Law, Pair, Part, Side, Uncovered
from accountant.events import Adjacency, Event

Floats: TypeAlias = NDArray[np.float64]
Complexes: TypeAlias = NDArray[np.complex128]
Counts: TypeAlias = Mapping[Pair, int]

MAX_POINTS: Final = 2**21  # of one part: some hundred megabytes while it is put on its mesh
MAX_WORK: Final = 2**24  # points of all parts together: some seconds
_SMALL_POINTS: Final = 2**15
KEPT_POINTS: Final = 2**16  # transforms of more are not kept; of this many, a part or a release takes 1 MB of its cache
MAX_FREQUENCIES: Final = 512  # of a transform of which the others were dropped
_BLOCK, _ROWS, _MOST_ROWS = 128, 8, 2048  # how a law is cut up for its lowest frequencies: so small, for one thread
_MAX_PARTS: Final = 300  # that differ; a look at each takes a millisecond or more
_MAX_STEPS: Final = 10**8  # beyond it rounding errors of the transforms win
_COARSEST: Final = 2.0**-6
_LOWER_WORK: Final = 2**19  # points of all parts together, for lower bounds
_FINER: Final = 16  # at most, for laws from below: merging loses more than splitting
PRECISION: Final = 3e-5  # of ε, relative, for the choice of the mesh
TILTS: Final = 2.0 ** np.arange(-6, 10.5, 0.5)  # every second one is a grid's
_LARGEST_EXPONENT: Final = 690.0
_SCALE_ERROR: Final = 1e-12  # of a logarithm below 1,400 in absolute value, and more
_LEAST_TOTAL: Final = 1e-250  # of tilted masses; less may have lost its digits
_ROUNDING: Final = 2.0**-53
_BUTTERFLY: Final = 6  # roundings: error of one stage of a transform, of a law of mass 1
NEGLIGIBLE: Final = 1e-6  # of δ
_TOLERABLE: Final = 1e-3  # of δ; where errors are larger, another grid is tried
_TOLERABLE_MANY: Final = 0.02  # likewise of many parts, where another grid costs more; a few parts in 10,000 of ε
_LOOSE: Final = 0.1  # of δ; where errors are larger, more effort would have found a smaller ε
_TINY: Final = 1e-3  # an ε that need not be found better
_MOST_TRIED: Final = 2**24  # of all grids of a kind, once one has given an answer
_MOST_EFFORT: Final = 2**25  # of all grids of a kind: some seconds
_EXTENDED_COST: Final = 4  # times that of doubles
_PRODUCT, _EXTENDED_PRODUCT = 0.125, 1.0  # what one costs beside a place of a transform of doubles
_INAUDIBLE: Final = 1e-16  # of the noise: so little of a transform is taken for 0
_CHEAP_FREQUENCIES: Final = 64  # that cost as much as the masses
_FEW_PARTS: Final = 8
_LONG: Final = 10_000  # steps, from which on doubles may have too few digits
_MANY: Final = 64  # steps, of which 63 make a transform below 1/2 negligible
CUT_OFF: Final = 1e-5  # of δ: losses so rare count as infinite, else the tilted law would be of nothing but them
_TAILS: Final = tuple(10.0**-digits for digits in (*range(15, 30), 40, 60))


class Exhausted(Uncovered):
    """An answer would take too long."""


class Grid(NamedTuple):
    """`points` places at multiples of `mesh`, for laws tilted by e^(tilt · loss) and cut off where `tail` is left.

    Cumulants come from laws on the `coarse` mesh. Transforms are `extended` to more digits than a double has where the
    machine can do it: after a million steps doubles are wrong by more than a tiny δ.
    """

    mesh: float
    points: int
    tilt: float
    tail: float
    coarse: float
    extended: bool = False

    @property
    def place(self) -> int:
        """Where the tilt stands among `TILTS`."""
        return int(np.searchsorted(TILTS, self.tilt))

    @property
    def width(self) -> float:
        """The range of losses that the points cover."""
        return self.points * self.mesh


def bracket(event: Event, *, delta: float, adjacency: Adjacency) -> Interval:
    """An interval that holds the true ε at `delta`; [0, ∞] with a remark where this engine gives no answer."""
    try:
        found = pairs.parts(event, adjacency)
        if not found:
            return Interval(0.0, 0.0)
        upper, grid, is_loose = _upper(found, delta)
        remark = f"prv may be looser than it could be: {_too_costly(pairs_of(found))}." if is_loose else ""
        return Interval(min(upper, _lower(found, delta, grid)), upper, remark)
    except Uncovered as reason:
        return Interval(0.0, math.inf, f"prv has no answer: {reason}")


def upper_bound(event: Event, *, delta: float, adjacency: Adjacency, precision: float = PRECISION) -> float:
    """The upper end of `bracket` alone, for a part of the work; ∞ where this engine gives no answer."""
    try:
        found = pairs.parts(event, adjacency)
        return _upper(found, delta, precision).epsilon if found else 0.0
    except Uncovered:
        return math.inf


class _Above(NamedTuple):
    """An upper bound, the grid that proved it, and whether a better one might have been found with more effort."""

    epsilon: float
    grid: Grid
    is_loose: bool


def _upper(found: Mapping[Part, int], delta: float, precision: float = PRECISION) -> _Above:
    counts = pairs_of(found)
    spare = finite_share(log_finite(found), delta)
    long = sum(counts.values()) >= _LONG
    ways: list[Iterator[Grid]] = [_grids(counts, spare, precision)]
    if long:
        ways.append(_grids(counts, spare, precision, extended=True))
    ways.append(_grids(counts, spare, 30 * precision, extended=long))
    error = (_TOLERABLE_MANY if long and len(counts) > _FEW_PARTS else _TOLERABLE) * spare
    attempt = _Attempt(counts, spare, error)
    if not any(attempt.succeeds(grids) for grids in ways) and not attempt.solutions:
        raise attempt.problem
    solution, grid = min(attempt.solutions)
    return _Above(solution.epsilon, grid, is_loose=attempt.was_stopped and solution.error > _LOOSE * spare)


class _Attempt:
    """What was found so far, on the way to an answer with an error that can be tolerated."""

    def __init__(self, counts: Counts, spare: float, error: float) -> None:
        self._counts, self._spare, self._error = counts, spare, error
        # A long run of few parts is better served by more digits than by another tilt.
        self._may_extend = len(counts) <= _FEW_PARTS and sum(counts.values()) >= _LONG
        self.solutions: list[tuple[_Solution, Grid]] = []
        self.problem = _too_costly(counts)
        self.was_stopped = False  # by the effort that another grid would take
        self._tried: set[Grid] = set()

    def succeeds(self, grids: Iterator[Grid]) -> bool:
        """Whether one of these grids is good enough; each of them may add a solution."""
        effort = Effort()
        for grid in grids:
            if grid in self._tried:
                continue
            self._tried.add(grid)
            if self.solutions and effort.spent > _MOST_TRIED:
                self.was_stopped = True
                return False
            if grid.extended and not effort.allows(sum(_effort(pair, grid, None) for pair in self._counts)):
                self.was_stopped = True
                continue
            error = math.inf
            try:
                solution = _solution(composed(self._counts, grid, "above", effort=effort), grid, self._spare)
            except Exhausted:
                self.problem, self.was_stopped = _too_costly(self._counts), True
                return False
            except Uncovered as reason:
                self.problem = reason
            else:
                self.solutions.append((solution, grid))
                error = solution.error
                if error <= self._error or solution.epsilon <= _TINY:
                    return True
            if self._may_extend and not grid.extended and error > self._spare / 2:
                return False
        return False


def _lower(found: Mapping[Part, int], delta: float, grid: Grid) -> float:
    """Whoever sees the whole release also sees the parts of it whose loss is attained."""
    attained = {part: times for part, times in found.items() if part.attained is not None}
    infinite = -math.expm1(log_finite(attained)) * (1 - 1e-8)
    counts: dict[Pair, int] = {}
    for part, times in attained.items():
        if part.attained and part.attained != pairs.NOTHING:
            counts[part.attained] = counts.get(part.attained, 0) + times
    spare = (delta - infinite) / (1 - infinite) * (1 + 1e-12)
    if not counts or spare <= 0:
        return 0.0
    finest = grid.mesh / _FINER
    while grid.points * len(counts) <= _LOWER_WORK // 2 and grid.points < KEPT_POINTS and grid.mesh > finest:
        grid = grid._replace(mesh=grid.mesh / 2, points=grid.points * 2)
    # Only P may give everything away: then its other masses are smaller by 1 − infinite, and Q's are not.
    try:
        law = composed(counts, grid, "below", effort=Effort())
    except Exhausted:
        return 0.0
    return max(0.0, _epsilon_below(law, grid, spare) + math.log1p(-infinite))


def pairs_of(found: Mapping[Part, int]) -> dict[Pair, int]:
    """How often each pair occurs."""
    counts: dict[Pair, int] = {}
    for part, times in found.items():
        counts[part.pair] = counts.get(part.pair, 0) + times
    return counts


def log_finite(found: Mapping[Part, int]) -> float:
    """ln of the probability that no part gives everything away."""
    return math.fsum(times * math.log1p(-part.infinite) for part, times in found.items())


def finite_share(log_finite: float, delta: float) -> float:
    """The δ that is left to finite losses, given that nothing gives everything away; rounded down."""
    infinite = -math.expm1(log_finite) * (1 + 1e-12)
    if delta <= infinite:
        raise Uncovered("the chance that everything is given away uses up δ")
    return (delta - infinite) / (1 - infinite) * (1 - 1e-12)


def grid_for(counts: Counts, spare: float, precision: float = PRECISION) -> Grid:
    """The grid that is likely to do with the fewest points."""
    grid = next(_grids(counts, spare, precision), None)
    if grid is None:
        raise _too_costly(counts)
    return grid


def _too_costly(counts: Counts) -> Uncovered:
    return Uncovered(f"{len(counts):,} different parts of {sum(counts.values()):,} steps need too many points")


def _grids(counts: Counts, spare: float, precision: float = PRECISION, *, extended: bool = False) -> Iterator[Grid]:
    """Grids that are fine and long enough, and no finer than that, so that others share them; the shortest first.

    There is none where all would be too costly.
    """
    steps = sum(counts.values())
    if len(counts) > _MAX_PARTS:
        raise _too_costly(counts)
    if steps > _MAX_STEPS:
        raise Uncovered(f"{steps:,} steps, and at most {_MAX_STEPS:,} are composed numerically")
    cut_off = _TOLERABLE if extended else CUT_OFF
    tail = next((tail for tail in _TAILS if steps * tail <= cut_off * spare), None)
    if tail is None:
        raise Uncovered("δ is too small")
    if not _is_affordable(counts, _coarse_mesh(steps), tail):
        return
    tables = [(_coarse_cumulants(pair, _coarse_mesh(steps), tail), times) for pair, times in counts.items()]
    totals = [np.sum([times * table[direction] for table, times in tables], axis=0) for direction in (0, 1)]
    worst = max(totals, key=lambda total: chernoff(total, spare))
    proved = (worst - math.log(spare)) / TILTS
    mesh = min(mesh_for(steps, spare, float(proved.min()), precision), _coarse_mesh(steps))
    if not _is_affordable(counts, mesh, tail):
        return
    # At the best tilt what rounding adds is a small part of δ if ε is what Chernoff's inequality proves; if it is less,
    # that part grows by e^(tilt · difference).
    most = (16 - 0.5 * math.log(spare)) / max(float(proved.min()), 1e-9)
    best = min(int(np.argmin(proved)), int(np.searchsorted(TILTS, most)), len(TILTS) - 5) // 2 * 2
    widths = {
        place: max(width_for(total, place, spare, 0.0) for total in totals)
        for place in sorted({max(best - 4, 0), max(best - 2, 0), best, best + 2})
    }
    by_width = sorted(widths, key=lambda place: widths[place])
    if len(counts) > _FEW_PARTS and steps >= _LONG and not extended:
        by_width.sort(key=lambda place: abs(place - best))  # where errors are smallest: another try would cost more
    first = widths[by_width[0]]
    if first / mesh > _SMALL_POINTS:
        # The true ε is seldom below half of what Chernoff's inequality proves.
        halves = [chernoff(total, spare) / 2 for total in totals]
        first = max(width_for(total, by_width[0], spare, half) for total, half in zip(totals, halves, strict=True))
    tries = ((by_width[0], first), *((place, widths[place]) for place in by_width))
    lengths = [(place, _length(max(min(width / mesh, 1e9), 64.0))) for place, width in tries]
    for place, points in dict.fromkeys(lengths):
        if points <= MAX_POINTS:
            yield Grid(mesh, points, float(TILTS[place]), tail, _coarse_mesh(steps), extended)


def _is_affordable(counts: Counts, mesh: float, tail: float) -> bool:
    """The cost guard: before anything is put on a mesh, its points are counted."""
    points = [_points(pair, mesh, tail) for pair in counts]
    return max(points) <= MAX_POINTS and sum(points) <= MAX_WORK


def _points(pair: Pair, mesh: float, tail: float) -> float:
    low, high = pairs.support(pair, tail)
    return (high - low) / mesh


def _coarse_mesh(steps: int) -> float:
    """A mesh that is good enough for cumulants: of a few units at the tilts that matter."""
    return min(_COARSEST, 2.0 ** math.floor(math.log2(math.sqrt(0.5 / steps))))


def mesh_for(steps: int, spare: float, guess: float, precision: float = PRECISION) -> float:
    """The mesh that so many steps need.

    (θ + 1)/2 times the variance that a mesh adds, which is a sixth of its square per step, is what ε rises by.
    """
    epsilon = max(guess, 0.05)
    tilt = min(math.log(1 / spare) / max(guess, 1e-6), float(TILTS[-1]))
    ideal = math.sqrt(12 * precision * epsilon / ((tilt + 1) * steps))
    ideal = min(ideal, epsilon / 256)  # an atom may move by a whole mesh
    return min(_COARSEST, 2.0 ** math.floor(math.log2(ideal)))


def _length(least: float) -> int:
    """The next 2^k or 3 · 2^k: lengths that transforms like, and few of them."""
    power: int = 2 ** math.ceil(math.log2(least))
    return power // 4 * 3 if power // 4 * 3 >= least else power


def chernoff(cumulants: Floats, delta: float) -> float:
    """A loss that is exceeded with probability `delta` at most."""
    return float(np.min((cumulants - math.log(delta)) / TILTS))


def width_for(cumulants: Floats, place: int, spare: float, least: float) -> float:
    """How long a grid must be for a law tilted by `place`, so that from `least` on `aliased` is next to nothing."""
    top = chernoff(cumulants, NEGLIGIBLE * spare)
    tilt, tilts = TILTS[place], TILTS[place + 1 :]
    log_share = math.log(NEGLIGIBLE * spare)
    from_above = float(np.min((cumulants[place + 1 :] - tilts * least - log_share) / (tilts - tilt)))
    return max(top - least, -log_share / float(tilt), from_above)


def aliased(cumulants: Floats, place: int, width: float, epsilon: Floats) -> Floats:
    """What a window of this width may wrongly count in δ at each ε, for a law tilted by `place`.

    A mass at x is counted at x − j · width for every j, as e^(tilt · j · width) times what it is. From below (j < 0)
    that is at most Σ e^(tilt · j · width) altogether. From above, the mass beyond ε + j · width is at most
    e^(cumulant(t) − t (ε + j · width)) by Chernoff's inequality, at any t.
    """
    tilt, tilts = float(TILTS[place]), TILTS[place + 1 :]
    from_below = 1 / math.expm1(min(tilt * width, _LARGEST_EXPONENT))
    further = (tilts - tilt) * width
    shares = cumulants[place + 1 :] - further - np.log(-np.expm1(-further))
    # It falls with ε, so the first of each block of nodes serves them all.
    block = max(1, len(epsilon) // 64)
    exponent = (shares - np.outer(epsilon[::block], tilts)).min(axis=1)
    from_above = np.exp(np.minimum(exponent, _LARGEST_EXPONENT))
    aliased: Floats = np.repeat(from_above, block)[: len(epsilon)] + from_below
    return aliased


@lru_cache(maxsize=4096)
def _coarse_cumulants(pair: Pair, mesh: float, tail: float) -> Floats:
    """ln E e^(tilt · loss) in both directions, of a coarser law from above: it loses more, so they are upper bounds."""
    laws = pairs.laws(pair, mesh=mesh, tail=tail, side="above")
    rows = _rows(laws)
    of_rows, of_places = (np.exp(np.outer(mesh * places, TILTS)) for places in _places(rows))
    sums = (_blocks(laws, rows) @ of_places).reshape(2, rows, len(TILTS))
    totals = np.einsum("dat,at->dt", sums, of_rows)
    tops = mesh * np.array([[law.first + len(law.mass) - 1] for law in laws])
    # the margin covers the rounding of exponents, which are of a few hundred where they matter, and of the sums
    margin = 1e-12 + 2 * rows * _ROUNDING
    table: Floats = np.log(np.maximum(totals, _LEAST_TOTAL)) + TILTS * tops + margin
    table[(TILTS * tops >= _LARGEST_EXPONENT) | (totals < _LEAST_TOTAL)] = math.inf
    return table


def _rows(laws: tuple[Law, Law]) -> int:
    return -(-len(laws[0].mass) // (_ROWS * _BLOCK)) * _ROWS


def _blocks(laws: tuple[Law, Law], rows: int) -> Floats:
    """The masses of both laws, in so many rows each, so that the last place of either is the last of its rows."""
    blocks = np.zeros((2, rows * _BLOCK))
    for block, law in zip(blocks, laws, strict=True):
        block[-len(law.mass) :] = law.mass
    return blocks.reshape(-1, _ROWS, _BLOCK)


def _places(rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where rows begin and where the places of a row are, as seen from the last of all: up to 0."""
    return np.arange(1 - rows, 1) * _BLOCK, np.arange(1 - _BLOCK, 1)


class Composed(NamedTuple):
    """The laws of a sum of losses, tilted and transformed, with what their errors depend on.

    Arrays have a row for each direction. `transform` may hold the lowest frequencies alone: transforms of tilted laws
    are at most 1 in absolute value, so what the others may add, `dropped`, does not grow when more is composed.
    """

    transform: Complexes
    cumulant: Floats
    cumulants: Floats  # at least the true ones, at every tilt
    log_finite: Floats  # ln of the probability that no loss is beyond the grids
    correction: float
    few: int  # steps of parts that are repeated seldom
    many: int  # steps of parts that are repeated often
    noise: float  # error of the transform of any part
    size: float  # at least the mean of the transform's absolute values
    dropped: float  # what other frequencies than those of `transform` may add to any mass

    def plus(self, other: Composed) -> Composed:
        """Both together; a report does little else, so this is written to be quick."""
        mine, theirs = self.transform, other.transform
        # either bounds the product, as far as it knows the other frequencies
        if self.kept == other.kept:
            dropped = min(self.dropped, other.dropped)
        elif self.kept < other.kept:
            theirs, dropped = theirs[:, : self.kept], self.dropped
        else:
            mine, dropped = mine[:, : other.kept], other.dropped
        return Composed(
            mine * theirs,
            self.cumulant + other.cumulant,
            self.cumulants + other.cumulants,
            self.log_finite + other.log_finite,
            self.correction + other.correction,
            self.few + other.few,
            self.many + other.many,
            max(self.noise, other.noise),
            min(self.size, other.size),
            dropped,
        )

    def repeated(self, times: int) -> Composed:
        """So many of it together."""
        few, many = (times * self.steps, 0) if times < _MANY else (0, times * self.steps)
        audible = self._audible(times)
        transform = np.zeros_like(self.transform)
        transform[audible] = _power(self.transform[audible], times)
        return self._replace(
            transform=transform,
            cumulant=times * self.cumulant,
            cumulants=times * self.cumulants,
            log_finite=times * self.log_finite,
            correction=times * self.correction,
            few=few,
            many=many,
        )

    def effort_of(self, times: int) -> float:
        """What so many of it cost, in places of transforms in double precision."""
        products = times.bit_length() + times.bit_count() - 2
        is_double = self.transform.dtype == np.complex128
        return int(np.count_nonzero(self._audible(times))) * products * (_PRODUCT if is_double else _EXTENDED_PRODUCT)

    def _audible(self, times: int) -> NDArray[np.bool_]:
        """Which frequencies are left after so many: of a long run hardly any, and its powers are soon taken."""
        doubles = self.transform.astype(np.complex128, copy=False)
        least = (_INAUDIBLE * self.noise) ** (2 / times) if times >= _MANY else 0.0
        audible: NDArray[np.bool_] = doubles.real * doubles.real + doubles.imag * doubles.imag >= least
        return audible

    @property
    def steps(self) -> int:
        """How many losses were added up."""
        return self.few + self.many

    @property
    def kept(self) -> int:
        """How many frequencies are known."""
        return int(self.transform.shape[1])

    def cut(self, points: int, most: float = 8 * _ROUNDING) -> Composed:
        """Without the frequencies that add at most so much to any mass all together, if few are left."""
        sizes = np.abs(self.transform).max(axis=0)
        tails = self.dropped + 2 / points * np.cumsum(sizes[::-1])[::-1]
        law = self._replace(size=float(tails[0]))
        kept = _length(max(int(np.searchsorted(-tails, -most)), 8))
        if kept > MAX_FREQUENCIES or kept >= self.kept:
            return law
        return law._replace(transform=self.transform[:, :kept].copy(), dropped=float(tails[kept]))

    @property
    def rounding(self) -> float:
        """How far rounding, and what was dropped, move any mass of either law.

        A transform z with error e is wrong by at most n e |z|^(n−1) in its n-th power: where |z| > 1/2 that is
        2 n e |z|^n, and elsewhere it is nothing if n is large: below 1e-17 e, and what is taken for 0 is 1e-16 e, where
        n times 1e-15 e are counted. What products and the inverse transform add is relative
        to the values. Rounding may lift |z| above 1 by so little that twice of what was dropped is enough.
        """
        of_parts = self.few + self.many * (2 * self.size + 1e-15) + self.size
        is_double = self.transform.dtype == np.complex128
        unit = _ROUNDING if is_double else float(np.finfo(self.transform.real.dtype).eps) / 2
        return self.noise * of_parts + 8 * unit * self.steps * self.size + 2 * self.dropped


class Effort:
    """How much may still be computed, in places of laws and transforms: it does not depend on what is cached."""

    def __init__(self) -> None:
        self.spent = 0.0

    def allows(self, places: float) -> bool:
        """Whether so much is left."""
        return self.spent + places <= _MOST_EFFORT

    def spend(self, places: float) -> None:
        """Take so much of it, or give up."""
        if not self.allows(places):
            raise Exhausted
        self.spent += places


def _effort(pair: Pair, grid: Grid, kept: int | None) -> float:
    """What a part costs: its masses, and either a whole transform or `kept` frequencies of it."""
    places = _points(pair, grid.mesh, grid.tail)
    if kept is None or places > _MOST_ROWS * _BLOCK:
        return places + (_EXTENDED_COST if grid.extended else 1) * grid.points
    return places * (1 + kept / _CHEAP_FREQUENCIES)


def composed(counts: Counts, grid: Grid, side: Side, kept: int | None = None, effort: Effort | None = None) -> Composed:
    """All parts together, as far as the lowest `kept` frequencies are concerned; unless told, all that matter.

    The loudest parts come first. They soon leave few frequencies, and the others are asked for those alone.
    """
    loudest = sorted(
        counts.items(), key=lambda item: -item[1] * _coarse_cumulants(item[0], grid.coarse, grid.tail)[0, grid.place]
    )
    total = None
    for pair, times in loudest:
        if effort is not None:
            effort.spend(_effort(pair, grid, kept))
        once = _once(pair, grid, side, kept)
        if effort is not None:
            effort.spend(once.effort_of(times))
        part = once.repeated(times)
        total = part if total is None else total.plus(part)
        if math.isfinite(total.dropped):
            total = total.cut(grid.points, most=0.0 if grid.extended else 8 * _ROUNDING)
            kept = total.kept if total.kept <= MAX_FREQUENCIES and not grid.extended else None
    assert total is not None
    return total


def _once(pair: Pair, grid: Grid, side: Side, kept: int | None) -> Composed:
    points = _points(pair, grid.mesh, grid.tail)
    if points > MAX_POINTS:
        raise Uncovered(f"a part needs {points:.3g} points on a mesh of {grid.mesh:.3g}")
    make = _kept_once if kept or max(grid.points, points) <= KEPT_POINTS else _kept_once.__wrapped__
    return make(pair, grid, side, kept)


@lru_cache(maxsize=256)
def _kept_once(pair: Pair, grid: Grid, side: Side, kept: int | None) -> Composed:
    laws = pairs.laws(pair, mesh=grid.mesh, tail=grid.tail, side=side)
    ends = np.array([law.first + len(law.mass) for law in laws])
    if grid.tilt * grid.mesh * ends.max() > _LARGEST_EXPONENT:
        raise Uncovered("a loss is too large for the tilt of the grid")
    rows = _rows(laws)
    unit = float(np.finfo(np.longdouble if grid.extended else np.float64).eps) / 2
    noise = _BUTTERFLY * unit * (math.log2(grid.points) + 2)
    if kept is None or rows > _MOST_ROWS or grid.tilt * grid.mesh * _BLOCK * rows > _LARGEST_EXPONENT:
        transforms, totals = zip(*(_transformed(law, grid) for law in laws), strict=True)
        transform, cumulant = np.array(transforms)[:, :kept].copy(), np.log(totals)
    else:
        transform, cumulant = _low_frequencies(laws, grid, rows, kept)
        cumulant += _SCALE_ERROR if side == "above" else -_SCALE_ERROR
        noise = max(noise, (1.5 * (rows / _ROWS + _ROWS + _BLOCK) + 98) * _ROUNDING)
    return Composed(
        transform=transform,
        cumulant=cumulant,
        cumulants=_coarse_cumulants(pair, grid.coarse, grid.tail),
        log_finite=np.log1p([-law.infinite for law in laws]),
        correction=max(law.correction for law in laws),
        few=1,
        many=0,
        noise=noise,
        size=1.0,
        dropped=0.0 if kept is None else math.inf,
    )


def _transformed(law: Law, grid: Grid) -> tuple[Complexes, float]:
    tilted = law.mass * np.exp(grid.tilt * grid.mesh * np.arange(law.first, law.first + len(law.mass)))
    total = float(tilted.sum())
    folded = np.zeros(-(-len(tilted) // grid.points) * grid.points, np.longdouble if grid.extended else np.float64)
    folded[: len(tilted)] = tilted / total
    rolled = np.roll(folded.reshape(-1, grid.points).sum(axis=0), law.first % grid.points)
    return fft.rfft(rolled), total


def _low_frequencies(laws: tuple[Law, Law], grid: Grid, rows: int, kept: int) -> tuple[Complexes, Floats]:
    """The lowest frequencies of both laws, normalised, and ln of what they were divided by.

    Place aB + b has the factor s^(aB) s^b with s = e^(tilt · mesh − i frequency), so the sum is one over b and then one
    over a, by turns of `_ROWS`. Each is wrong by √2 roundings per term of what it is at frequency 0, a product by two,
    and each of the three factors by 32 at most: exponents are exact, since tilts and meshes are powers of two, and
    angles are below 2π.
    """
    of_rows, of_places = _factors(grid.points, grid.tilt * grid.mesh, 2 ** math.ceil(math.log2(rows)), kept)
    sums = (_blocks(laws, rows) @ of_places.view(np.float64)).view(np.complex128)
    # in two stages: an error grows with the number of terms that are added one after the other
    low = (sums.reshape(2, rows, kept) * of_rows[-rows:]).reshape(2, -1, _ROWS, kept).sum(axis=1).sum(axis=1)
    totals, lasts = low[:, 0].real, np.array([law.first + len(law.mass) - 1 for law in laws])
    turned = _turned(grid.points, np.outer(lasts % grid.points, np.arange(kept)))
    return low / totals[:, None] * turned, np.log(totals) + grid.tilt * grid.mesh * lasts


@lru_cache(maxsize=4)
def _factors(points: int, growth: float, rows: int, kept: int) -> tuple[Complexes, Complexes]:
    """s^(aB) and s^b, for a and b up to 0."""
    of_rows, of_places = (
        np.exp(growth * place)[:, None] * _turned(points, np.outer(place, np.arange(kept))) for place in _places(rows)
    )
    return of_rows, of_places


def _turned(points: int, places: NDArray[np.int64]) -> Complexes:
    """e^(−2πi · place / points)."""
    turned: Complexes = np.exp((-2j * math.pi / points) * (places % points))
    return turned


def _power(base: Complexes, exponent: int) -> Complexes:
    """By squaring: the error of each multiplication is that of a rounding."""
    result = None
    while True:
        if exponent & 1:
            result = base if result is None else result * base
        exponent >>= 1
        if not exponent:
            assert result is not None
            return result
        base = base * base


class _Profile(NamedTuple):
    """δ(ε) of a composed law at the nodes of a grid from ε ≥ 0 on; `error` is what it may be wrong by.

    Between a node and the next, δ(ε) = `first` − e^(ε − base) `second`.
    """

    base: float
    offset: Floats
    first: Floats
    second: Floats
    value: Floats
    error: Floats


def _profile(law: Composed, direction: int, grid: Grid, spare: float) -> _Profile:
    mesh, points, tilt = grid.mesh, grid.points, grid.tilt
    cumulants = law.cumulants[direction]
    top = math.ceil(chernoff(cumulants, NEGLIGIBLE * spare) / mesh)
    # from ε = 0 on, and as far left as nothing overflows
    start = max(top - points + 1, 0, top - math.floor(300 / (tilt + 1) / mesh))
    base = start * mesh
    log_scale = float(law.cumulant[direction]) - tilt * base
    if start > top or log_scale > 300:
        raise Uncovered("the loss is out of range")
    index = np.arange(start, top + 1)
    offset: Floats = (index - start) * np.float64(mesh)
    shrink = math.exp(log_scale) * np.exp(-tilt * offset)
    weight = fft.irfft(law.transform[direction], points)[index % points].astype(np.float64) * shrink
    odds = np.exp(offset)
    first, second = _sums_above(weight), _sums_above(weight / odds)
    error = (
        law.rounding / -math.expm1(-tilt * mesh) * shrink
        + aliased(cumulants, grid.place, grid.width, base + offset)
        + NEGLIGIBLE * spare  # beyond the top
        + (4 * points + 16 * law.steps) * _ROUNDING * np.abs(first)  # of sums, and of each step's masses
    )
    return _Profile(base, offset, first, second, first - odds * second, error)


def _sums_above(weight: Floats) -> Floats:
    """The sum of all entries after each."""
    return np.append(np.cumsum(weight[:0:-1])[::-1], 0.0)


class _Solution(NamedTuple):
    """An ε, and what numerical errors may add to δ there."""

    epsilon: float
    error: float


def epsilon_above(law: Composed, grid: Grid, spare: float) -> float:
    """An ε at which the finite losses of neither direction have more than `spare`."""
    return _solution(law, grid, spare).epsilon


def _solution(law: Composed, grid: Grid, spare: float) -> _Solution:
    solved = [_solved_above(law, direction, grid, spare) for direction in (0, 1)]
    return _Solution(max(each.epsilon for each in solved), max(each.error for each in solved))


def _solved_above(law: Composed, direction: int, grid: Grid, spare: float) -> _Solution:
    infinite = -math.expm1(law.log_finite[direction]) * (1 + 1e-12)
    spare = (spare - infinite) / (1 + pairs.TAIL_ERROR) ** law.steps
    if spare <= 0:
        raise Uncovered("the chance that everything is given away uses up δ")
    profile = _profile(law, direction, grid, spare)
    fits = np.flatnonzero(profile.value + profile.error <= spare)
    if not len(fits):
        raise Uncovered("rounding errors are larger than δ")
    place = int(fits[0])
    offset, error = float(profile.offset[place]), float(profile.error[place])
    if place:
        before = place - 1
        needed = float(profile.first[before] + profile.error[before]) - spare
        second = float(profile.second[before])
        if needed > 0 and second > 0:
            offset = min(offset, max(float(profile.offset[before]), math.log(needed / second)))
    elif profile.base > 0:
        error = math.inf  # the true ε may be below the window
    return _Solution(max(0.0, profile.base + offset + law.correction) * (1 + 1e-12), error)


def _epsilon_below(law: Composed, grid: Grid, spare: float) -> float:
    """An ε at which the finite losses of one direction have more than `spare`."""
    return max(_solved_below(law, direction, grid, spare) for direction in (0, 1))


def _solved_below(law: Composed, direction: int, grid: Grid, spare: float) -> float:
    profile = _profile(law, direction, grid, spare)
    misses = np.flatnonzero(profile.value - profile.error > spare)
    if not len(misses):
        return 0.0
    place = int(misses[-1])
    offset = float(profile.offset[place])
    needed = float(profile.first[place] - profile.error[place]) - spare
    second = float(profile.second[place])
    if needed > 0 and second > 0 and place + 1 < len(profile.offset):
        offset = min(max(offset, math.log(needed / second)), float(profile.offset[place + 1]))
    return max(0.0, profile.base + offset) * (1 - 1e-12)
