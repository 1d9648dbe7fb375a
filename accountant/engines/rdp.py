"""Rényi differential privacy: event → curve, curve → ε.

`curve` gives a ρ(α) that is at least D_α of every pair of neighbours in both directions, for each finite order, with
the loss at order ∞ (pure ε) and an explicit δ for approximate parts beside it: the event is δ-approximately
(α, ρ(α))-RDP for all orders at once (docs/accounting.md, T4). Composition adds all three (Mironov 2017, Proposition 1).

Every formula is written without cancellation, so a ρ has full relative precision also where it is tiny;
`accountant.units.RELATIVE_MARGIN` covers what double precision loses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias, assert_never

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from accountant import partition
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
    coarsened,
    counted,
)
from accountant.units import RELATIVE_MARGIN, exact, log

Orders: TypeAlias = tuple[float, ...]
Floats: TypeAlias = NDArray[np.float64]

#: Where `epsilon` looks for the best order, before it looks closer between the neighbours of that. Any grid is sound.
ORDERS: Final[Orders] = (
    *(1.05, 1.1, 1.25, 1.5, 1.75, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0),
    *(192.0, 256.0, 384.0, 512.0, 768.0, 1024.0),
)
_STEPS_BETWEEN: Final = 8

_LEAST_SIGMA: Final = 1e-6  # below it sampling is not counted, and no exponent overflows
_MOST_SIGMA: Final = 1e9  # more noise is charged like this, and nothing underflows
_LEAST_RATE: Final = 1e-100  # a lower one is charged like this one, and nothing underflows
_MAX_NODES: Final = 2**15  # of one quadrature
_QUADRATURE_EXPONENT: Final = 60.0  # quadrature error is e^-60 of the integral's scale
_TAIL_EXPONENT: Final = 200.0  # truncated tails are e^-200 of what the sampled part contributes
_LARGEST_EXPONENT: Final = 690.0  # beyond it e^x overflows
_SMALLEST: Final = 5e-324
_SMALL: Final = 0.02  # where a series serves better


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """ρ per finite order, the pure ε at order ∞ (`None`: there is none), and the δ of approximate parts."""

    rho: Floats
    pure: Fraction | None
    delta: Fraction


def curve(event: Event, orders: Orders, adjacency: Adjacency) -> Curve:
    """The curve of a whole tree: the sum over its leaves, the same to the last digit in whatever order they stand.

    Of a tree with very many different leaves it is the curve of fewer that cost at least as much.
    """
    parts = [_times(_leaf_curve(leaf, orders, adjacency), times) for leaf, times in coarsened(counted(event)).items()]
    if len(parts) == 1:
        return parts[0]
    pures = [part.pure for part in parts]
    return Curve(
        rho=np.array([_sum([float(part.rho[place]) for part in parts]) for place in range(len(orders))]),
        pure=None if None in pures else sum((pure for pure in pures if pure is not None), Fraction(0)),
        delta=sum((part.delta for part in parts), Fraction(0)),
    )


def _sum(values: Sequence[float]) -> float:
    try:
        return math.fsum(values)
    except OverflowError:
        return math.inf


def epsilon(event: Event, *, delta: float, adjacency: Adjacency) -> float:
    """The smallest ε that the curve proves at `delta`, rounded up.

    The conversion of Canonne, Kamath & Steinke 2020 (Proposition 12):
    ε = ρ + ln(1 − 1/α) − (ln δ + ln α) / (α − 1), with δ less the approximate parts. Times α − 1 it is convex in α, so
    ε falls and then rises with α, and the best order is a neighbour of the best on a coarse grid.
    """
    coarse = curve(event, ORDERS, adjacency)
    spare = exact(delta) - coarse.delta
    if spare < 0:
        return math.inf
    pure = math.inf if coarse.pure is None else _up(coarse.pure)
    if spare == 0:
        return pure
    log_spare = log(spare)
    first = _converted(ORDERS, coarse.rho, log_spare)
    closer = _between(int(np.argmin(first)))
    second = _converted(closer, curve(event, closer, adjacency).rho, log_spare)
    return max(0.0, min(pure, float(first.min()), float(second.min())))


def _converted(orders: Orders, rho: Floats, log_delta: float) -> Floats:
    alpha = np.array(orders)
    shrink, slope = np.log1p(-1 / alpha), -(log_delta + np.log(alpha)) / (alpha - 1)
    epsilon: Floats = rho + shrink + slope + RELATIVE_MARGIN * (rho + np.abs(shrink) + np.abs(slope))
    return epsilon


def _between(place: int) -> Orders:
    """Orders around one of `ORDERS`, the same ones between two neighbours whichever of them was best."""
    return tuple(
        low + (high - low) * step / _STEPS_BETWEEN
        for low, high in pairwise(ORDERS[max(0, place - 1) : place + 2])
        for step in range(1, _STEPS_BETWEEN)
    )


@lru_cache(maxsize=4096)
def _leaf_curve(leaf: Leaf, orders: Orders, adjacency: Adjacency) -> Curve:
    alpha = np.array(orders)
    sensitivity = 2 if adjacency == "replace_one" else 1  # in units of C, for what is relative to C
    with np.errstate(over="ignore", divide="ignore"):
        match leaf:
            case Gaussian():
                return _without_pure(alpha / 2 * np.square(sensitivity / np.float64(leaf.noise_multiplier)))
            case ZCDP():
                return _without_pure(alpha * leaf.rho)
            case Laplace():
                shift = sensitivity / exact(leaf.scale)
                return Curve(rho=_laplace(alpha, _float(shift)), pure=shift, delta=Fraction(0))
            case L2Laplace():
                return randomised_response(alpha, sensitivity / exact(leaf.scale))
            case PureDP():
                return randomised_response(alpha, exact(leaf.epsilon))
            case ApproxDP():
                return randomised_response(alpha, exact(leaf.epsilon), delta=exact(leaf.delta))
            case PartitionSelection():
                # Under replace_one two labels change, each by one unit: two independent mechanisms.
                delta = Fraction(partition.exact_delta(epsilon=leaf.epsilon, delta=leaf.delta))
                one = randomised_response(alpha, exact(leaf.epsilon), delta=delta)
                return _times(one, sensitivity)
            case PoissonSampled():
                return _poisson_sampled(leaf, orders, adjacency)
            case NonPrivate():
                return _without_pure(np.full(len(orders), math.inf))
            case _:
                assert_never(leaf)


def _without_pure(rho: Floats) -> Curve:
    return Curve(rho=rho, pure=None, delta=Fraction(0))


def _times(one: Curve, times: int) -> Curve:
    with np.errstate(over="ignore"):  # beyond the largest float is infinite, and below the smallest is not free
        rho = np.maximum(times * one.rho, _SMALLEST)
    return Curve(rho=rho, pure=None if one.pure is None else times * one.pure, delta=times * one.delta)


def _up(value: Fraction) -> float:
    number = _float(value)
    return number if number == math.inf or Fraction(number) >= value else math.nextafter(number, math.inf)


def _float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def randomised_response(alpha: Floats, pure: Fraction, *, delta: Fraction = Fraction(0)) -> Curve:
    """The worst curve of any pure ε: that of randomised response, which dominates every (ε, 0)-DP pair
    (Kairouz, Oh & Viswanath 2015).

    ln[cosh((α − ½)ε) / cosh(ε/2)] / (α − 1), as a sum of positive terms.
    """
    half = _float(pure) / 2
    near = np.minimum(alpha * half, 1.0) / alpha  # `half`, or so small that nothing overflows where it is not used
    small = np.log1p(2 * np.sinh(alpha * near) * np.sinh((alpha - 1) * near) / np.cosh(near))
    # ln cosh x = x + ln(1 + e^-2x) − ln 2, above the line and below it; the two logarithms are taken as one
    wrong = 1 / (1 + math.exp(min(2 * half, 700.0)))
    large = 2 * (alpha - 1) * half + np.log1p(wrong * np.expm1(-4 * (alpha - 1) * half))
    return Curve(rho=np.where(alpha * half < 1, small, large) / (alpha - 1), pure=pure, delta=delta)


def _laplace(alpha: Floats, shift: float) -> Floats:
    """Laplace noise of scale 1 and a shift t (Mironov 2017, Proposition 6).

    ln[α/(2α−1) e^((α−1)t) + (α−1)/(2α−1) e^(−αt)] / (α − 1); the terms of first order in t cancel and are left out.
    Convex in t, so it also covers a vector of L1 norm t.
    """
    if shift == math.inf:
        return np.full_like(alpha, math.inf)
    up, down = alpha / (2 * alpha - 1), (alpha - 1) / (2 * alpha - 1)
    small = np.log1p(up * _exp_beyond_linear((alpha - 1) * shift) + down * _exp_beyond_linear(-alpha * shift))
    large = (alpha - 1) * shift + np.log1p(down * np.expm1(-(2 * alpha - 1) * shift))
    return np.where(alpha * shift < 1, small, large) / (alpha - 1)


def _exp_beyond_linear(value: Floats) -> Floats:
    """e^x − 1 − x, without cancellation near 0."""
    series = np.zeros_like(value)
    near = np.clip(value, -0.5, 0.5)
    for j in range(15, 1, -1):  # Horner: x²/2 (1 + x/3 (1 + x/4 (…)))
        series = near / j * (1 + series) if j > 2 else near * near / 2 * (1 + series)
    return np.where(np.abs(value) < 0.5, series, np.expm1(value) - value)


def _poisson_sampled(leaf: PoissonSampled, orders: Orders, adjacency: Adjacency) -> Curve:
    """Amplification by sampling, by the theorem that the inner event allows.

    Without one the inner event is charged in full: Rényi divergence is quasi-convex, so a sample never costs more.
    """
    q = leaf.sampling_probability
    inner = list(counted(leaf.event).items())
    if q == 1:
        return curve(leaf.event, orders, adjacency)
    if len(inner) == 1 and isinstance(nested := inner[0][0], PoissonSampled) and inner[0][1] == 1:
        # A sample of a sample is a sample.
        both = math.nextafter(q * nested.sampling_probability, 1.0)
        return _leaf_curve(PoissonSampled(sampling_probability=both, event=nested.event), orders, adjacency)
    gaussians = [(part.noise_multiplier, times) for part, times in inner if isinstance(part, Gaussian)]
    if gaussians and len(gaussians) == len(inner):
        # Several Gaussians on one sample are one Gaussian of the summed precision.
        precision = _sum([times / noise / noise for noise, times in gaussians])
        sigma = 1 / math.sqrt(max(precision, 1 / (_MOST_SIGMA * _MOST_SIGMA)))
        return _without_pure(_sampled_gaussian(orders, q, sigma, adjacency))
    full = curve(leaf.event, orders, adjacency)
    alone = len(inner) == 1 and inner[0][1] == 1
    if full.pure is None or (full.delta and not alone):
        # One split into good and bad part must serve all orders, so there is no best of both where δ > 0.
        return full
    pure = min(full.pure, _amplified(full.pure, q, inner, adjacency))
    sampled = randomised_response(np.array(orders), pure, delta=full.delta * exact(q))
    return Curve(rho=np.minimum(sampled.rho, full.rho), pure=pure, delta=sampled.delta)


def _amplified(pure: Fraction, q: float, inner: Sequence[tuple[Leaf, int]], adjacency: Adjacency) -> Fraction:
    """The pure ε of a sampled event.

    Add/remove: ln(1 + q(e^ε − 1)), and δ becomes qδ (Balle, Barthe & Gaboardi 2018, Theorem 8). Replace-one: where a
    record shifts Laplace noise by t, (1 − q + qe^t) / (1 − q + qe^−t) bounds the ratio of the two mixtures; a black box
    says nothing about the record's absence, so it keeps its ε (δ becomes qδ by joint convexity).
    """
    if adjacency == "add_remove":
        upper = _log_mixture(q, _float(pure))
    elif all(isinstance(part, Laplace | L2Laplace) for part, _ in inner):
        shift = _float(pure / 2)
        upper = _log_mixture(q, shift) - _log_mixture(q, -shift)
    else:
        return pure
    return Fraction(upper) * (1 + Fraction(RELATIVE_MARGIN)) if upper < math.inf else pure


def _log_mixture(q: float, exponent: float) -> float:
    """ln(1 − q + q e^exponent)."""
    if abs(exponent) < 1:
        return math.log1p(q * math.expm1(exponent))
    return float(np.logaddexp(math.log1p(-q), math.log(q) + exponent))


def _sampled_gaussian(orders: Orders, q: float, sigma: float, adjacency: Adjacency) -> Floats:
    """D_α of one Poisson-sampled Gaussian step.

    Add/remove: P = (1−q) N(0, σ²) + q N(1, σ²) against Q = N(0, σ²), which is the larger direction at every order
    (Mironov, Talwar & Zhang 2019, Theorems 4 and 5). Replace-one: the record contributes +1 to P and −1 to Q when it is
    sampled (Lebeda, Regehr, Kamath & Steinke 2024; Schuchardt et al. 2024), a pair that is its own mirror image.
    """
    shift = 2 if adjacency == "replace_one" else 1
    unsampled: Floats = np.array(orders) / 2 * np.square(shift / np.float64(sigma))
    if not orders or sigma < _LEAST_SIGMA:
        return unsampled
    q = max(q, _LEAST_RATE)
    if adjacency == "replace_one":
        return np.minimum(unsampled, _quadrature(orders, q, sigma, adjacency))
    # D_α increases with α, so the next integer order bounds a fractional one where quadrature gives up.
    sampled = _integer_orders(tuple(map(math.ceil, orders)), q, sigma)
    fractional = [place for place, alpha in enumerate(orders) if alpha % 1]
    if fractional:
        between = tuple(orders[place] for place in fractional)
        sampled[fractional] = np.minimum(sampled[fractional], _quadrature(between, q, sigma, adjacency))
    return np.minimum(unsampled, sampled)


class _Terms(NamedTuple):
    """k = 2 … α for one order after the other, with what does not depend on the mechanism."""

    k: Floats
    log_binomials: Floats
    remaining: Floats  # α − k
    starts: NDArray[np.int64]  # where each order's run begins
    lengths: NDArray[np.int64]


@lru_cache(maxsize=64)
def _terms(orders: tuple[int, ...]) -> _Terms:
    lengths = np.array(orders) - 1
    k = np.concatenate([np.arange(2.0, order + 1) for order in orders])
    order = np.repeat(np.array(orders, dtype=float), lengths)
    logs = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)  # right to 2e-12
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    return _Terms(k, logs, order - k, starts, lengths)


def _integer_orders(orders: tuple[int, ...], q: float, sigma: float) -> Floats:
    """Integer orders in closed form (Mironov, Talwar & Zhang 2019, section 3.3).

    E_Q[(P/Q)^α] − 1 = Σ_{k≥2} C(α,k) (1−q)^(α−k) q^k (e^(k(k−1)/2σ²) − 1): the binomial weights sum to 1, and taking
    that 1 out leaves only positive terms.
    """
    terms = _terms(orders)
    k = np.arange(2.0, max(orders) + 1)
    exponent = k * (k - 1) / (2 * sigma * sigma)
    # ln(e^x − 1), exact for small and for large x
    log_growth = np.where(exponent > 30, exponent, np.log(np.expm1(np.minimum(exponent, 30.0))))
    per_k = k * math.log(q) + log_growth
    log_terms = terms.log_binomials + terms.remaining * math.log1p(-q) + per_k[terms.k.astype(np.int64) - 2]
    peak = np.maximum.reduceat(log_terms, terms.starts)
    total = np.add.reduceat(np.exp(log_terms - np.repeat(peak, terms.lengths)), terms.starts)
    rho: Floats = np.logaddexp(0.0, peak + np.log(total)) / terms.lengths
    return rho


@lru_cache(maxsize=64)
def _octaves(orders: Orders) -> list[tuple[NDArray[np.bool_], Floats]]:
    """Orders within a factor of two, which share the nodes of a quadrature: where they stand, and they themselves."""
    octaves = np.floor(np.log2(orders))
    return [(octaves == octave, np.array(orders)[octaves == octave]) for octave in sorted(set(octaves.tolist()))]


def _quadrature(orders: Orders, q: float, sigma: float, adjacency: Adjacency) -> Floats:
    """Any orders by quadrature; ∞ where it would take too many nodes or overflow."""
    rule = _trapezoid_replaced if adjacency == "replace_one" else _trapezoid_added
    rho = np.empty(len(orders))
    for members, alpha in _octaves(orders):
        rho[members] = rule(alpha, q, sigma)
    return rho


def _trapezoid_added(alpha: Floats, q: float, sigma: float) -> Floats:
    """The trapezoidal rule for add/remove, with a proved error bound.

    With A the density of P over that of Q = N(0, σ²), E_Q[A^α] − 1 = ∫ Q ψ(A − 1), where ψ(u) = (1+u)^α − 1 − αu ≥ 0.
    A has no zero with |Im z| < πσ², so on a strip of half-width θσ² the integrand is analytic, and its integral is at
    most M = e^(θ²σ²/2) (I + 2 + 2α). The rule with step h then errs by at most 2M / (e^(2πθσ²/h) − 1) (Trefethen &
    Weideman 2014, Theorem 5.1). h is a step for which that is e^−60 (I + 2 + 2α).
    """
    variance, largest = sigma * sigma, float(alpha[-1])
    tail = _TAIL_EXPONENT - largest * math.log(q)
    base = _QUADRATURE_EXPONENT + math.log(2) + 1e-9
    theta = min(3.1, math.sqrt(2 * base) / sigma)
    step = 2 * math.pi * theta * variance / (base + theta * theta * variance / 2)
    reach = _width(tail) * sigma
    exponents = (largest + reach) / variance, largest * (largest - 1) / (2 * variance)  # of A, and of the integral
    if (largest + 2 * reach) / step > _MAX_NODES or max(exponents) > _LARGEST_EXPONENT:
        return np.full_like(alpha, math.inf)
    x = np.arange(-reach, largest + reach, step)
    change = q * np.expm1((x - 0.5) / variance)
    orders, log_weight = alpha[:, None], x * x * (-0.5 / variance)
    weight = np.exp(log_weight)
    integrand = np.where(
        np.abs(orders * change) < _SMALL,
        _power_series(orders, change) * weight,
        np.exp(orders * np.log1p(change) + log_weight) - (1 + orders * change) * weight,
    )
    excess = integrand.sum(axis=1) * (step / math.sqrt(2 * math.pi * variance))
    scale = excess + 2 + 2 * alpha
    # Beyond the nodes: A^α is at most e^(α(2x−1)/2σ²), a Gaussian tail around α; the rest is at most (1 + 2α) Q.
    error = scale * (math.exp(-_QUADRATURE_EXPONENT) + math.exp(-tail)) + np.exp(
        alpha * (alpha - 1) / (2 * variance) - tail
    )
    rho: Floats = np.log1p(excess + error) / (alpha - 1)
    return rho


def _width(tail: float) -> float:
    """Standard deviations beyond which a Gaussian's mass is e^−tail, with e^60 left for polynomial factors."""
    return math.sqrt(2 * (tail + 60))


def _power_series(alpha: Floats, change: Floats) -> Floats:
    """(1+u)^α − 1 − αu where αu is small, by Horner: C(α,2)u² (1 + (α−2)u/3 (1 + (α−3)u/4 (…)))."""
    near = np.clip(change, -1.0, 1.0)
    series = np.zeros(np.broadcast_shapes(alpha.shape, change.shape))
    for j in range(9, 2, -1):
        series = (alpha - j + 1) / j * near * (1 + series)
    value: Floats = alpha * (alpha - 1) / 2 * near * near * (1 + series)
    return value


def _trapezoid_replaced(alpha: Floats, q: float, sigma: float) -> Floats:
    """The trapezoidal rule for replace-one, in logarithms, with a proved error bound.

    As for add/remove, with B the density of Q over that of N(0, σ²): E_Q[(P/Q)^α] − 1 = ∫ Q ψ(A/B − 1). Where θ < π/2,
    |B| on the strip is at least cos(θ) B, so M = e^(θ²σ²/2) (cos(θ)^(1−α) I + 2 + 2α).
    """
    variance, largest = sigma * sigma, float(alpha[-1])
    log_q, log_not_q = math.log(q), math.log1p(-q)
    tail = _TAIL_EXPONENT - largest * log_q
    theta = np.geomspace(min(0.01, 1 / sigma), 1.5, 128)
    exponent = (
        _QUADRATURE_EXPONENT + math.log(2) + 1e-9 + theta * theta * variance / 2 - (largest - 1) * np.log(np.cos(theta))
    )
    step = float(np.max(2 * math.pi * theta * variance / exponent))
    left, right = -1 - _width(tail) * sigma, 2 * largest - 1 + _width(tail) * sigma
    if (right - left) / step > _MAX_NODES:
        return np.full_like(alpha, math.inf)
    x = np.arange(left, right, step)
    forward, backward = (2 * x - 1) / (2 * variance), (-2 * x - 1) / (2 * variance)
    log_b = np.logaddexp(log_not_q, log_q + backward)
    log_ratio = np.logaddexp(log_not_q, log_q + forward) - log_b
    with np.errstate(over="ignore"):
        up, down = np.exp(log_q + forward - log_b), np.exp(log_q + backward - log_b)
        # A/B − 1; the difference of two nearly equal terms is taken by expm1
        change = np.where(np.abs(x) < variance / 2, down * np.expm1(np.clip(2 * x / variance, -1, 1)), up - down)
    log_weight = -x * x / (2 * variance) - 0.5 * math.log(2 * math.pi * variance) + log_b
    log_terms = log_weight + _log_power_beyond_linear(alpha[:, None], change, log_ratio)
    peak = log_terms.max(axis=1)
    log_sum = peak + np.log(np.exp(log_terms - peak[:, None]).sum(axis=1)) + math.log(step)
    # Beyond the last node B ≥ 1 − q, and B ≥ q e^backward: a Gaussian tail around α, or around 2α − 1.
    log_cap = alpha * (alpha - 1) / (2 * variance)
    log_cap = np.minimum(log_cap - (alpha - 1) * log_not_q, 4 * log_cap - (alpha - 1) * log_q)
    log_scale = np.logaddexp(log_sum, np.log(2 + 2 * alpha))
    log_error = np.logaddexp(log_scale - _QUADRATURE_EXPONENT, np.maximum(log_cap, log_scale) - tail)
    rho: Floats = np.logaddexp(0.0, np.logaddexp(log_sum, log_error)) / (alpha - 1)
    return rho


def _log_power_beyond_linear(alpha: Floats, change: Floats, log_ratio: Floats) -> Floats:
    """ln((1+u)^α − 1 − αu), where u = `change` and ln(1+u) = `log_ratio`; each formula where it is exact."""
    is_small = alpha * np.abs(change) < _SMALL
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        small = np.log(_power_series(alpha, np.where(is_small, change, 0.0)))
        # log1p keeps the digits of a small change that the ratio of two densities has lost
        power = alpha * np.where(np.abs(change) < 0.5, np.log1p(np.clip(change, -0.5, 0.5)), log_ratio)
        middle = np.log(np.expm1(np.minimum(power, 50.0)) - alpha * np.minimum(change, 1e30))
        large = power + np.log1p(-np.exp(np.log1p(alpha * np.clip(change, 0, 1e300)) - power))
    return np.where(is_small, small, np.where(power < 40, middle, large))
