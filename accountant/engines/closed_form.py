"""Exact δ(ε) where a formula gives it: the oracle for the other engines, and the tightest answer where it applies.

An event here is a *description*, so its true ε is that of the worst mechanism which the description allows:
randomised response for `pure_dp`, the canonical three-point loss for `approx_dp` and for one
`partition_selection` (Kairouz, Oh & Viswanath 2015).

`bracket` always gives a lower bound: whoever sees the whole release also sees a part of it, so the ε of any part is
one. It gives an upper bound below ∞ where the whole event has a closed form.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Final, NamedTuple, TypeAlias, assert_never

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, gammaln, ndtr

from accountant import partition
from accountant.events import (
    ZCDP,
    Adjacency,
    ApproxDP,
    Composed,
    Event,
    Gaussian,
    L2Laplace,
    Laplace,
    NonPrivate,
    PartitionSelection,
    PoissonSampled,
    PureDP,
    Repeated,
    counted,
)
from accountant.units import exact

_MAX_FOLDS: Final = 10_000  # of identical three-point losses; beyond it the sum takes too long
_FOLD_ERROR: Final = 1e-13  # relative error of a summed δ per fold; the analytic Gaussian states its own
_TINY: Final = 1e-300
_LEAST_SHIFT: Final = 1e-100  # of a Gaussian; a smaller one is charged like this
_LARGEST: Final = 10**300  # an ε beyond it is not computed with


class Interval(NamedTuple):
    """The true value lies in [lower, upper]; a remark says why an engine knows no more."""

    lower: float
    upper: float
    remark: str = ""


#: ε → an interval that holds δ(ε), which falls with ε.
Profile: TypeAlias = Callable[[float], Interval]

_MAX_PARTS: Final = 64  # of different sizes
_NOTHING: Final = Interval(0.0, 0.0)
_UNBOUNDED: Final = Interval(math.inf, math.inf)


def bracket(event: Event, *, delta: float, adjacency: Adjacency) -> Interval:
    """An interval that holds the true ε at `delta`; its upper end is ∞ where no formula covers the whole event."""
    parts = _parts(event, adjacency)
    if not parts:
        return _NOTHING
    if len(parts) > _MAX_PARTS:
        return Interval(0.0, math.inf)  # it would take long, and say little
    intervals = [_solve_part(part, delta, adjacency) for part in parts]
    lower = max(interval.lower for interval in intervals)
    upper = intervals[0].upper if len(parts) == 1 else _solve_mixture(parts, delta)
    return Interval(min(lower, upper), upper)


def covers(event: Event, adjacency: Adjacency) -> bool:
    """Whether a formula may cover the whole event, so that `bracket` can have an upper end."""
    match _parts(event, adjacency):
        case [(PoissonSampled(), times)]:
            return times == 1
        case parts:
            return len(parts) <= 1 or (
                len(parts) <= _MAX_PARTS and all(isinstance(part, _ThreePoints | _Shift) for part in parts)
            )


class _Gaussians(NamedTuple):
    """Gaussian releases together: one shift of `mu` standard deviations (Dong, Roth & Su 2022, Corollary 3.3)."""

    mu: float


class _ThreePoints(NamedTuple):
    """`folds` losses that are ±ε, or infinite with probability `delta` each.

    `attained` says that a mechanism can lose that much on every fold at once; several label releases cannot, since the
    count at which a label may give itself away is not the one at which it loses ±ε.
    """

    epsilon: Fraction
    deltas: tuple[tuple[Fraction, int], ...]
    folds: int
    attained: bool = True


class _Shift(NamedTuple):
    """Noise that falls off exponentially, shifted by `shift` scales, `times` times.

    In one dimension both kinds of Laplace noise are the same, which bounds from below; `in_one_dimension` says that
    it also bounds from above.
    """

    shift: Fraction
    times: int
    in_one_dimension: bool


_Part: TypeAlias = _Gaussians | _ThreePoints | _Shift | tuple[PoissonSampled | ZCDP | NonPrivate, int]


def _parts(event: Event, adjacency: Adjacency) -> list[_Part]:
    """The event as independent parts, those that compose in closed form already put together; never an empty one."""
    sensitivity = 2 if adjacency == "replace_one" else 1
    precisions: list[float] = []
    three_points: defaultdict[tuple[Fraction, bool], defaultdict[Fraction, int]] = defaultdict(lambda: defaultdict(int))
    shifts: defaultdict[tuple[Fraction, bool], int] = defaultdict(int)
    others: defaultdict[PoissonSampled | ZCDP | NonPrivate, int] = defaultdict(int)
    for leaf, times in counted(event).items():
        match leaf:
            case Gaussian():
                precisions.append(times * (sensitivity / leaf.noise_multiplier) * (sensitivity / leaf.noise_multiplier))
            case PureDP():
                three_points[exact(leaf.epsilon), True][Fraction(0)] += times
            case ApproxDP():
                three_points[exact(leaf.epsilon), True][exact(leaf.delta)] += times
            case PartitionSelection():
                own = Fraction(partition.exact_delta(epsilon=leaf.epsilon, delta=leaf.delta))
                three_points[exact(leaf.epsilon), False][own] += times * sensitivity
            case Laplace() | L2Laplace():
                shifts[sensitivity / exact(leaf.scale), isinstance(leaf, Laplace)] += times
            case ZCDP() | PoissonSampled() | NonPrivate():
                others[leaf] += times
            case _:
                assert_never(leaf)
    parts: list[_Part] = [_Gaussians(max(math.sqrt(sum(sorted(precisions))), _LEAST_SHIFT))] if precisions else []
    for (epsilon, attained), deltas in three_points.items():
        parts.append(_ThreePoints(epsilon, tuple(deltas.items()), sum(deltas.values()), attained))
    parts += [_Shift(shift, times, scalar) for (shift, scalar), times in shifts.items()]
    return parts + list(others.items())


def _solve_part(part: _Part, delta: float, adjacency: Adjacency) -> Interval:
    match part:
        case _Gaussians(mu):
            return _solve(lambda epsilon: gaussian_delta(epsilon, mu), delta, start=mu * mu / 2 + mu)
        case _ThreePoints():
            together = _solve_three_points(part, delta)
            if part.attained or part.folds == 1:
                return together
            one = part._replace(deltas=((part.deltas[0][0], 1),), folds=1)
            return Interval(_solve_three_points(one, delta).lower, together.upper)
        case _Shift(shift, times, in_one_dimension):
            black_box = _solve_three_points(_as_three_points(part), delta)
            if shift > _LARGEST:
                return black_box
            # One Laplace release: δ(ε) = 1 − e^((ε − t)/2), so ε = t + 2 ln(1 − δ).
            single = float(shift) + 2 * math.log1p(-delta)
            slack = 1e-15 * (float(shift) + delta)
            upper = max(0.0, single + slack) if in_one_dimension and times == 1 else black_box.upper
            return Interval(max(0.0, single - slack), upper)
        case (PoissonSampled() as leaf, times):
            once = _solve_sampled(leaf, delta, adjacency)
            return once if times == 1 else Interval(once.lower, math.inf)
        case (ZCDP(), _):
            return Interval(0.0, math.inf)
        case (NonPrivate(), _):
            return _UNBOUNDED
        case _:
            assert_never(part)


def _solve_mixture(parts: Sequence[_Part], delta: float) -> float:
    """An upper bound for bounded losses of several sizes: as if all were as large as the largest; else ∞.

    So weakening one of many equal releases never costs more.
    """
    bounded = [_as_three_points(part) for part in parts if isinstance(part, _ThreePoints | _Shift)]
    if len(bounded) < len(parts):
        return math.inf
    deltas = tuple(entry for part in bounded for entry in part.deltas)
    largest = _ThreePoints(max(part.epsilon for part in bounded), deltas, sum(part.folds for part in bounded))
    return _solve_three_points(largest, delta).upper


def _as_three_points(part: _ThreePoints | _Shift) -> _ThreePoints:
    if isinstance(part, _ThreePoints):
        return part
    return _ThreePoints(part.shift, ((Fraction(0), part.times),), part.times)


def _solve_sampled(leaf: PoissonSampled, delta: float, adjacency: Adjacency) -> Interval:
    """One sampled event: δ′(ln(1 + q(e^ε − 1))) = q δ(ε) under add/remove.

    It is an equality for the direction that loses more (Balle, Barthe & Gaboardi 2018, Theorem 2). Under replace-one
    joint convexity still gives δ′ ≤ q δ at the same ε.
    """
    rate, inner = exact(leaf.sampling_probability), counted(leaf.event)
    while len(inner) == 1 and isinstance(nested := next(iter(inner)), PoissonSampled) and inner[nested] == 1:
        rate, inner = rate * exact(nested.sampling_probability), counted(nested.event)  # a sample of a sample
    event = Composed(events=tuple(Repeated(times=times, event=part) for part, times in inner.items()))
    q = float(rate)
    if q == 1:
        return bracket(event, delta=delta, adjacency=adjacency)
    share = exact(delta) / rate
    if share >= 1:  # with probability 1 − q the record was not even looked at
        return _NOTHING
    # δ(ε) may jump just there, so the quotient is rounded against either end.
    upper = bracket(event, delta=math.nextafter(float(share), 0.0), adjacency=adjacency).upper
    above = math.nextafter(float(share), 1.0)
    if adjacency == "replace_one" or above == 1 or any(isinstance(part, PoissonSampled) for part in inner):
        return Interval(0.0, upper if adjacency == "replace_one" else _amplified(upper, q) * (1 + 1e-12))
    lower = bracket(event, delta=above, adjacency=adjacency).lower
    return Interval(_amplified(lower, q) * (1 - 1e-12), _amplified(upper, q) * (1 + 1e-12))


def _amplified(epsilon: float, q: float) -> float:
    if epsilon < 1:
        return math.log1p(q * math.expm1(epsilon))
    return float(np.logaddexp(math.log1p(-q), math.log(q) + epsilon))


def gaussian_delta(epsilon: float, mu: float) -> Interval:
    """δ(ε) of a Gaussian shifted by `mu` standard deviations, with its rounding error.

    Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) (Balle & Wang 2018, Theorem 8).
    """
    near, far = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    # e^ε φ(far) = φ(near): both terms have the factor φ(near); what differs is Mills' ratio.
    density = math.exp(-near * near / 2)
    first = density * _scaled_tail(near) if near > 0 else float(ndtr(-near))
    second = density * _scaled_tail(far)
    # Rounding of the two terms, of the factor, and of near and far themselves (and of the μ that they come from).
    error = 1e-14 * first * (1 + near * near) + 4e-15 * density * far + _TINY
    return Interval(max(0.0, first - second - error), first - second + error)


def _scaled_tail(value: float) -> float:
    """Φ(−x) e^(x²/2) for x ≥ 0."""
    return 0.5 * float(erfcx(value / math.sqrt(2)))


def _solve_three_points(part: _ThreePoints, delta: float) -> Interval:
    """n-fold composition of one ε is exact (Kairouz, Oh & Viswanath 2015, Theorem 3.3); above that, Σε and Σδ."""
    total = part.folds * part.epsilon
    largest = float(total) if total <= _LARGEST else math.inf
    caught = math.fsum(times * math.log1p(-float(own)) for own, times in part.deltas)  # ln Π(1 − δ_i)
    # 1 − Π(1 − δ_i) (1 − δ(ε)) ≤ δ  ⇔  δ(ε) ≤ 1 − (1 − δ) / Π(1 − δ_i)
    slack = 1e-15 * (-math.log1p(-delta) - caught)  # both logarithms are right to a few roundings of their own size
    if math.log1p(-delta) - caught > slack:
        return _UNBOUNDED
    spare = -math.expm1(math.log1p(-delta) - caught)
    if part.folds > _MAX_FOLDS or largest == math.inf:
        return Interval(0.0, math.nextafter(largest, math.inf) if spare > slack else math.inf)
    profile = _folded(float(part.epsilon), part.folds)
    lower = _solve(profile, max(spare + slack, 0.0), start=largest).lower
    upper = _solve(profile, spare - slack, start=largest).upper if spare > slack else math.inf
    if sum(own * times for own, times in part.deltas) <= exact(delta):  # then ε never exceeds the sum
        upper = min(upper, math.nextafter(largest, math.inf))
    return Interval(min(lower, upper), upper)


def _folded(epsilon: float, folds: int) -> Profile:
    """δ of `folds` randomised responses, each of this ε."""
    minus = np.arange(folds + 1, dtype=np.float64)  # how often the loss was −ε
    losses = (folds - 2 * minus) * epsilon
    log_binomials = gammaln(folds + 1) - gammaln(minus + 1) - gammaln(folds - minus + 1)
    # probability of +ε is e^ε / (1 + e^ε)
    log_plus, log_minus = -np.logaddexp(0.0, -epsilon), -np.logaddexp(0.0, epsilon)
    weights: NDArray[np.float64] = np.exp(log_binomials + (folds - minus) * log_plus + minus * log_minus)

    def profile(target: float) -> Interval:
        value = float(np.sum(weights * -np.expm1(np.minimum(target - losses, 0.0))))
        beyond = float(np.sum(weights[losses * (1 + 4e-16) > target]))  # a loss is rounded, and may be a little more
        # of the weights, and of the differences between losses and target
        error = _FOLD_ERROR * (10 + folds) * value + 4e-16 * (target + losses[0]) * beyond
        return Interval(value - error, value + error)

    return profile


def _solve(profile: Profile, delta: float, *, start: float) -> Interval:
    """ε at which the falling profile reaches `delta`: the upper end surely does, the lower end surely not yet."""
    if not math.isfinite(start):
        return Interval(0.0, math.inf)
    _, upper = _edge(lambda epsilon: profile(epsilon).upper <= delta, start)
    lower, _ = _edge(lambda epsilon: profile(epsilon).lower <= delta, start)
    return Interval(lower, upper)


def _edge(reached: Callable[[float], bool], start: float) -> tuple[float, float]:
    """The ε ≥ 0 from which on `reached` holds, between neighbouring floats: not yet at the first, surely at the second.

    (0, 0) if it always holds, (∞, ∞) if it never does.
    """
    if reached(0.0):
        return 0.0, 0.0
    low, high = 0.0, max(start, 1.0)
    while not reached(high):
        low, high = high, 2 * high
        if not math.isfinite(high):
            return math.inf, math.inf
    while (middle := (low + high) / 2) not in (low, high) and high - low > 1e-15 * high:
        low, high = (low, middle) if reached(middle) else (middle, high)
    return low, high
