"""Dominating pairs: event → two laws that lose at least as much as the event, and their privacy losses on a grid.

A **pair** is two laws, P with the record and Q without it. It is known by the masses that both give to cells of the
loss ln(P/Q), which is all that composition needs (Zhu, Dong & Wang 2022, Theorem 10). `laws` puts them on multiples of
a mesh, from above and from below:

* from above, each cell's masses (p, q) are split onto its two ends such that both are kept. The cell is a
  post-processing of its ends, so the ends lose at least as much ("connect the dots", Doroshenko, Ghazi, Kamath, Kumar &
  Manurangsi 2022);
* from below, neighbouring cells are merged in shares such that the ratio of each union is on the grid. A merger is a
  post-processing of the cells, so it loses at most as much.

Both are off by O(mesh²) per step. Rounding errors of masses and of edges are counted against us on either side.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias, assert_never

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from accountant import partition
from accountant.engines import rdp
from accountant.events import (
    ZCDP,
    Adjacency,
    ApproxDP,
    Event,
    Gaussian,
    L2Laplace,
    Laplace,
    Leaf,
    NonPrivate,
    PartitionSelection,
    PoissonSampled,
    PureDP,
    counted,
)
from accountant.units import exact, rounded

Floats: TypeAlias = NDArray[np.float64]
Side: TypeAlias = Literal["above", "below"]

TAIL_ERROR: Final = 1e-12  # relative, of the mass of all losses above an edge
MOST_LOSS: Final = 500.0  # larger ones are not computed with: their odds leave the range of floats
_EDGE_ERROR: Final = 1e-13  # of an edge, relative to 1 + |edge|
_ROUNDING: Final = 2.0**-53
_LEAST_SHIFT: Final = 1e-9  # of a Gaussian; a smaller one is charged like this
_LEAST_LOSS: Final = 1e-30  # a smaller bound is charged like this
_LEAST_RATE: Final = 1e-30  # a lower sampling rate is charged like this
_MOST_RATE: Final = 0.999  # a higher sampling rate is charged like 1: the loss near ln(1 − q) would lose its digits
_KEPT_CELLS: Final = 2**15  # masses of more cells are not kept; of this many, they take 1 MB
_LEAST_SIGMA: Final = 0.05  # of a sampled Gaussian under replace-one; less noise leaves the range of floats


class Masses(NamedTuple):
    """Masses of both laws in each cell, with the relative error of either."""

    p: Floats
    q: Floats
    error: Floats


class Pair(ABC):
    """Two laws of one release, by the masses of their loss."""

    @abstractmethod
    def masses(self, edges: Floats) -> Masses:
        """The masses of losses between consecutive edges, upper ones included; the first and last may be infinite."""

    @property
    @abstractmethod
    def reach(self) -> float:
        """A loss that is never exceeded in absolute value, or ∞."""


@dataclass(frozen=True, slots=True)
class Normal(Pair):
    """N(shift, 1) against N(0, 1)."""

    shift: float

    def masses(self, edges: Floats) -> Masses:
        """At the point x the loss is shift · x − shift²/2."""
        points = edges / self.shift + self.shift / 2
        p, p_error = _normal(points - self.shift)
        q, q_error = _normal(points)
        return Masses(p, q, np.maximum(p_error, q_error))

    @property
    def reach(self) -> float:
        """Gaussian losses have no bound."""
        return math.inf


@dataclass(frozen=True, slots=True)
class ShiftedLaplace(Pair):
    """Laplace(shift, 1) against Laplace(0, 1): the loss is 2x − shift between its bounds, and ±shift beyond."""

    shift: float

    def masses(self, edges: Floats) -> Masses:
        """The loss has atoms at both bounds."""
        inside = np.clip((edges + self.shift) / 2, 0.0, self.shift)
        above, below = edges >= self.shift, edges < -self.shift
        p = np.where(above, 1.0, np.where(below, 0.0, 0.5 * np.exp(inside - self.shift)))
        # both laws from the side on which they keep their digits: Q by its upper tail
        q = np.where(above, 0.0, np.where(below, 1.0, 0.5 * np.exp(-inside)))
        p, q = np.diff(p), -np.diff(q)
        return Masses(p, q, np.full(len(p), 16 * _ROUNDING * (1 + self.shift) / min(1.0, _least_gap(edges))))

    @property
    def reach(self) -> float:
        """The shift."""
        return self.shift


@dataclass(frozen=True, slots=True)
class TwoPoints(Pair):
    """Randomised response, which dominates whatever is ε-DP (Kairouz, Oh & Viswanath 2015): the loss is ±ε."""

    epsilon: float

    def masses(self, edges: Floats) -> Masses:
        """Two atoms."""
        high = 1 / (1 + math.exp(-self.epsilon))
        low = math.exp(-self.epsilon) * high
        upper, lower = np.diff(edges >= self.epsilon), np.diff(edges >= -self.epsilon)
        return Masses(high * upper + low * lower, low * upper + high * lower, np.full(len(edges) - 1, 8 * _ROUNDING))

    @property
    def reach(self) -> float:
        """ε."""
        return self.epsilon


@dataclass(frozen=True, slots=True)
class Sampled(Pair):
    """(1 − q) Q + q P against Q: the record is in the sample with probability q (add/remove).

    Zhu, Dong & Wang 2022, Theorem 11; `inner` must be its own mirror image, so that it dominates both directions. With
    probability `infinite` P and Q give everything away. For P that is an infinite loss with probability q · `infinite`;
    what only Q does has the loss ln(1 − q), since the record is mostly not in the sample.
    """

    q: float
    inner: Pair
    infinite: float = 0.0

    def masses(self, edges: Floats) -> Masses:
        """The loss ε is where the inner loss is ln((e^ε − 1 + q) / q), and above ln(1 − q) everywhere."""
        growth = np.expm1(np.minimum(edges, 30.0)) / self.q
        with np.errstate(divide="ignore"):
            near = np.log1p(np.maximum(growth, -1.0))
        far = edges - math.log(self.q)  # right to e^-30
        p, q, error = self.inner.masses(np.where(edges > 30, far, near))
        p = (1 - self.q) * q + self.q * p
        if self.infinite:
            of_q_alone = self.infinite * np.diff(edges >= math.log1p(-self.q))
            p = (1 - self.infinite) * p + (1 - self.q) * of_q_alone
            q = (1 - self.infinite) * q + of_q_alone
            p[-1] += self.q * self.infinite * (edges[-1] == math.inf)
        return Masses(p, q, error + 8 * _ROUNDING)

    @property
    def reach(self) -> float:
        """The larger bound of the two directions, of finite losses."""
        inner = self.inner.reach
        if inner == math.inf:
            return inner
        up = math.log1p(self.q * math.expm1(min(inner, 30.0))) + max(inner - 30.0, 0.0)
        down = -math.log1p(-self.q) if self.infinite else -math.log1p(self.q * math.expm1(-inner))
        return max(up, down) * (1 + 1e-12)


@dataclass(frozen=True, slots=True)
class SampledReplaced(Pair):
    """(1 − q) N(0, σ²) + q N(1, σ²) against (1 − q) N(0, σ²) + q N(−1, σ²): replace-one, its own mirror image.

    Lebeda, Regehr, Kamath & Steinke 2024; Schuchardt et al. 2024.
    """

    q: float
    sigma: float

    def masses(self, edges: Floats) -> Masses:
        """The loss ε is at x = σ² (ε/2 + arsinh((1 − q) sinh(ε/2) / (q c))), with c = e^(−1/2σ²)."""
        variance = self.sigma * self.sigma
        half = np.clip(edges, -2 * MOST_LOSS, 2 * MOST_LOSS) / 2
        # With a tiny q the product may pass every float: such a point is as far out as infinity is.
        ratio = min((1 - self.q) / self.q * math.exp(0.5 / variance), math.nextafter(math.inf, 0.0))
        with np.errstate(over="ignore"):
            points = self.sigma * (half + np.arcsinh(ratio * np.sinh(half)))
        points = np.where(np.isinf(edges), edges, points)  # in standard deviations
        centre, centre_error = _normal(points)
        up, up_error = _normal(points - 1 / self.sigma)
        down, down_error = _normal(points + 1 / self.sigma)
        error = np.maximum(centre_error, np.maximum(up_error, down_error)) + 4 * _ROUNDING
        return Masses((1 - self.q) * centre + self.q * up, (1 - self.q) * centre + self.q * down, error)

    @property
    def reach(self) -> float:
        """Gaussian losses have no bound."""
        return math.inf


def _normal(points: Floats) -> tuple[Floats, Floats]:
    """Masses of N(0, 1) between consecutive points, each from the side on which it keeps its digits, and their errors.

    A tail at z is right to 4 (1 + z²) roundings, most of them of z itself. A cell of width d < 1 holds at least about
    d (1 + z) of the tail, so the difference of two tails is right to 10 (1 + z) (1 + z + 1/d) roundings.
    """
    tails, away = ndtr(-np.abs(points)), np.abs(points)
    straddles = (points[:-1] < 0) & (points[1:] > 0)
    mass = np.where(straddles, 1 - tails[:-1] - tails[1:], np.abs(np.diff(tails)))
    with np.errstate(invalid="ignore", divide="ignore"):
        nearer = np.minimum(away[:-1], away[1:])
        error = 10 * _ROUNDING * (1 + nearer) * (1 + nearer + 1 / np.minimum(np.diff(points), 1.0))
    return mass, np.where(mass > 0, error, 0.0)


def _least_gap(edges: Floats) -> float:
    finite = edges[np.isfinite(edges)]
    return float(np.diff(finite).min()) if len(finite) > 1 else 1.0


#: A pair that loses nothing.
NOTHING: Final = TwoPoints(0.0)


class Part(NamedTuple):
    """What a leaf stands for.

    `pair` dominates it, apart from the probability `infinite` that it gives everything away (an upper bound, tight to
    1e-9). `attained` is a pair that some mechanism of that description really has, beside `infinite`, so it bounds the
    truth from below; None where none is known.
    """

    pair: Pair
    infinite: float
    attained: Pair | None


class Uncovered(Exception):
    """No pair is known for the event, or it would cost too much; the text says which. Another engine answers."""


def parts(event: Event, adjacency: Adjacency) -> dict[Part, int]:
    """The event as pairs with their counts, the same for all ways to write it.

    Gaussians are put together first, since they compose exactly.
    """
    sensitivity = 2 if adjacency == "replace_one" else 1
    found: dict[Part, int] = {}
    precisions: list[float] = []
    for leaf, times in counted(event).items():
        if isinstance(leaf, Gaussian):
            precisions.append(times * (sensitivity / leaf.noise_multiplier) * (sensitivity / leaf.noise_multiplier))
            continue
        for part, copies in _leaf_parts(leaf, adjacency).items():
            found[part] = found.get(part, 0) + copies * times
    if precisions:
        normal = Normal(max(math.sqrt(sum(sorted(precisions))), _LEAST_SHIFT))
        if normal.shift * normal.shift > 4 * MOST_LOSS:  # the mean loss is half of that
            raise Uncovered(f"losses beyond {MOST_LOSS:g}")
        found[Part(normal, 0.0, normal)] = 1
    return dict(sorted(found.items(), key=repr))


def _leaf_parts(leaf: Leaf, adjacency: Adjacency) -> dict[Part, int]:
    sensitivity = 2 if adjacency == "replace_one" else 1
    match leaf:
        case Gaussian():
            return parts(leaf, adjacency)
        case Laplace():
            pair = ShiftedLaplace(_loss(sensitivity / exact(leaf.scale)))
            return {Part(pair, 0.0, pair): 1}
        case L2Laplace():
            shift = _loss(sensitivity / exact(leaf.scale))
            return {Part(TwoPoints(shift), 0.0, ShiftedLaplace(shift)): 1}
        case PureDP():
            return {_black_box(exact(leaf.epsilon)): 1}
        case ApproxDP():
            return {_black_box(exact(leaf.epsilon), exact(leaf.delta)): 1}
        case PartitionSelection():
            own = partition.exact_delta(epsilon=leaf.epsilon, delta=leaf.delta)
            # The count at which a label may give itself away is not the one at which it loses ±ε.
            return {_black_box(exact(leaf.epsilon), Fraction(own))._replace(attained=NOTHING): sensitivity}
        case PoissonSampled():
            return _sampled_parts(leaf, adjacency)
        case ZCDP():
            raise Uncovered("no pair dominates every ρ-zCDP mechanism")
        case NonPrivate():
            raise Uncovered("nothing bounds a non-private event")
        case _:
            assert_never(leaf)


def _black_box(epsilon: Fraction, delta: Fraction = Fraction(0)) -> Part:
    pair = TwoPoints(_loss(epsilon))
    infinite = rounded(delta, towards=1.0)
    if infinite >= 1:
        raise Uncovered("everything may be given away")
    return Part(pair, infinite, pair)


def _loss(bound: Fraction) -> float:
    """A bound on a loss, rounded up."""
    if bound > MOST_LOSS:
        raise Uncovered(f"a loss of more than {MOST_LOSS:g}")
    return max(rounded(bound, towards=math.inf), _LEAST_LOSS)


def _sampled_parts(leaf: PoissonSampled, adjacency: Adjacency) -> dict[Part, int]:
    """The same cases as in the rdp engine: what has no pair of its own when it is sampled is charged in full."""
    q = max(leaf.sampling_probability, _LEAST_RATE)
    inner = counted(leaf.event)
    if len(inner) == 1 and isinstance(nested := next(iter(inner)), PoissonSampled) and inner[nested] == 1:
        both = math.nextafter(q * nested.sampling_probability, 1.0)  # a sample of a sample is a sample
        return _sampled_parts(PoissonSampled(sampling_probability=both, event=nested.event), adjacency)
    full = parts(leaf.event, adjacency)
    if q == 1:
        return full
    alone = len(full) == 1 and set(full.values()) == {1}
    if q > _MOST_RATE or not alone:
        return _without_amplification(leaf, full, adjacency)
    (part,) = full
    if adjacency == "add_remove":
        attained = None if part.attained in {None, NOTHING} else Sampled(q, part.attained, part.infinite)
        return {Part(Sampled(q, part.pair, part.infinite), 0.0, attained): 1}
    if isinstance(part.pair, Normal):
        sigma = 2 / part.pair.shift  # the shift under replace-one is 2 / σ
        if sigma < _LEAST_SIGMA:
            raise Uncovered(f"a sampled Gaussian with noise below {_LEAST_SIGMA:g}")
        replaced = SampledReplaced(q, sigma)
        return {Part(replaced, 0.0, replaced): 1}
    return _without_amplification(leaf, full, adjacency)


def _without_amplification(leaf: PoissonSampled, full: dict[Part, int], adjacency: Adjacency) -> dict[Part, int]:
    """The parts charged in full, or the pure ε and δ of the rdp engine as a black box where that is much less."""
    curve = rdp.curve(leaf, (2.0,), adjacency)
    reach = sum(times * part.pair.reach for part, times in full.items())
    infinite = math.fsum(times * part.infinite for part, times in full.items())
    if curve.pure is not None and (2 * curve.pure < reach or curve.delta < infinite * (1 - 1e-9)):
        return {_black_box(curve.pure, curve.delta)._replace(attained=None): 1}
    return {part._replace(attained=None): times for part, times in full.items()}


class Law(NamedTuple):
    """Masses of a loss at `first`, `first` + 1, … times the mesh, and what lies above that and counts as infinite.

    A law `above` loses at least as much as the pair if `correction` is added to the loss and all masses are multiplied
    by 1 + `TAIL_ERROR`; a law `below` loses at most as much.
    """

    first: int
    mass: Floats
    infinite: float
    correction: float


def laws(pair: Pair, *, mesh: float, tail: float, side: Side) -> tuple[Law, Law]:
    """The loss of P against Q, and of Q against P, on multiples of `mesh`.

    Losses above which `tail` is left are cut off, on the safe side.
    """
    lowest, highest = support(pair, tail)
    first, last = math.floor(lowest / mesh) - 1, math.ceil(highest / mesh) + 1
    make_cells = _kept_cells if last - first <= _KEPT_CELLS else _kept_cells.__wrapped__
    grid, masses = make_cells(pair, first, last, mesh)
    mirrored = Masses(masses.q[::-1], masses.p[::-1], masses.error[::-1])
    make = _law_above if side == "above" else _law_below
    return make(masses, first, grid, mesh), make(mirrored, -last, -grid[::-1], mesh)


@lru_cache(maxsize=64)
def _kept_cells(pair: Pair, first: int, last: int, mesh: float) -> tuple[Floats, Masses]:
    """For laws from both sides, and other tilts."""
    grid: Floats = np.arange(first, last + 1) * np.float64(mesh)
    return grid, pair.masses(np.concatenate([[-np.inf], grid, [np.inf]]))


def _law_above(masses: Masses, first: int, grid: Floats, mesh: float) -> Law:
    p, q, error = masses
    edge_error = _EDGE_ERROR * (1 + max(-float(grid[0]), float(grid[-1])))
    mass = _split(Masses(p[1:-1], q[1:-1], error[1:-1] + edge_error), grid, mesh)
    mass[0] += p[0]
    return Law(first, mass, float(p[-1]), edge_error)


def _law_below(masses: Masses, first: int, grid: Floats, mesh: float) -> Law:
    p, q, error = masses
    return Law(first, _merged(Masses(p[1:-1], q[1:-1], error[1:-1]), grid, mesh), 0.0, 0.0)


@lru_cache(maxsize=4096)
def support(pair: Pair, tail: float) -> tuple[float, float]:
    """Losses outside of which neither law has more mass than `tail`."""
    if pair.reach <= MOST_LOSS:
        return -pair.reach, pair.reach
    sizes = np.append(MOST_LOSS * 1.25 ** np.arange(-60.0, 0.0), MOST_LOSS)
    p, q, _ = pair.masses(np.concatenate([[-np.inf], -sizes[::-1], sizes, [np.inf]]))
    either = p + q
    below, above = np.cumsum(either), np.cumsum(either[::-1])
    ends = [int(np.searchsorted(mass[: len(sizes)], tail, side="right")) for mass in (below, above)]
    if min(ends) == 0:
        raise Uncovered(f"losses beyond {MOST_LOSS:g}")
    return -float(sizes[len(sizes) - ends[0]]), float(sizes[len(sizes) - ends[1]])


def _split(cells: Masses, grid: Floats, mesh: float) -> Floats:
    """P's mass on the ends of the cells, so that P and Q keep theirs.

    With a at the lower end g, a (1 − e^−h) = q e^g − p e^−h. It is made smaller by what the errors of p, q and the
    edges can make of it: what is in doubt goes to the upper end.
    """
    p, q, error = cells
    low = np.clip((q * np.exp(grid[:-1]) - p * (math.exp(-mesh) + 3 * error)) / -math.expm1(-mesh), 0.0, p)
    mass = np.zeros(len(grid))
    mass[:-1] = low
    mass[1:] += p - low
    return mass


def _merged(cells: Masses, grid: Floats, mesh: float) -> Floats:
    """P's mass of unions of neighbouring cells whose ratio is on the grid.

    The union at the node g takes a share w of the cell above it and what the cell below did not keep. Any shares are
    sound, since the ratio of the union is checked and rounded down; these make it e^g or a little more.
    """
    p, q, error = cells
    odds = np.exp(grid)
    excess, deficit = np.maximum(p - odds[:-1] * q, 0.0), np.maximum(odds[1:] * q - p, 0.0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # A union is on the grid if the cell above it gives as much excess as the cell below it lacks:
        # kept · excess ≥ (1 − kept below) · deficit below.
        ratio = np.append(0.0, deficit[:-1] / excess[1:]) * (1 + 16 * error / mesh)
        ratio = np.where(np.isnan(ratio), 0.0, ratio)
        share = np.where(np.isinf(ratio), 1.0, ratio / (1 + ratio))
        kept = np.fmax(share, np.append(1.0, (1 - share[:-1]) * ratio[1:]))
        kept = np.minimum(np.where(np.isnan(kept), 1.0, kept), 1.0)
        kept[:-1] = np.fmax(kept[:-1], 1 - kept[1:] / ratio[1:])  # where the cell above has too little to give
    union_p, union_q, union_error = np.zeros(len(grid)), np.zeros(len(grid)), np.zeros(len(grid))
    union_p[:-1], union_q[:-1], union_error[:-1] = kept * p, kept * q, error
    union_p[1:] += (1 - kept) * p
    union_q[1:] += (1 - kept) * q
    union_error[1:] = np.maximum(union_error[1:], error) + 8 * _ROUNDING
    # a union may count P's mass only as far as Q's mass times the odds of a node that it reaches
    least_p, most_q = union_p * (1 - union_error), union_q * (1 + union_error)
    at_node, under_node = odds * most_q, odds * math.exp(-mesh) * most_q
    mass = np.where(least_p >= at_node, at_node, 0.0)
    mass[:-1] += np.where((least_p < at_node) & (least_p >= under_node), under_node, 0.0)[1:]
    return mass * (1 - 8 * _ROUNDING)
