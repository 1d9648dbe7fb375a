"""Each engine against the definition of what it computes: integrals and sums at high precision, by mpmath.

A float given to an event stands for the decimal that it prints as (`accountant.units`), so oracles read it that way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from accountant.engines import account, closed_form, rdp
from accountant.events import (
    ZCDP,
    Adjacency,
    ApproxDP,
    Composed,
    Event,
    Gaussian,
    L2Laplace,
    Laplace,
    Leaf,
    NonPrivate,
    PartitionSelection,
    PoissonSampled,
    PureDP,
    Repeated,
    coarsened,
)
from accountant.partition import exact_delta
from accountant.units import RHO_UNITS_PER_NAT, charged_rho
from tests.accountant.strategies import ADJACENCIES, between, deltas, rare

DIGITS = 40
ROUNDING = mpmath.mpf("1e-25")  # of the oracles themselves: far below the last digit of a float
every_adjacency = pytest.mark.parametrize("adjacency", ADJACENCIES)


def decimal(value: float) -> Any:
    return mpmath.mpf(repr(value))


def sensitivity(adjacency: Adjacency) -> int:
    return 2 if adjacency == "replace_one" else 1


def sampled(event: Event, sampling_probability: float) -> PoissonSampled:
    return PoissonSampled(sampling_probability=sampling_probability, event=event)


# ---------------------------------------------------------------- δ(ε) by definition


def gaussian_delta(epsilon: Any, mu: Any) -> Any:
    """E[(1 − e^(ε − L))₊] for a loss L that is N(μ²/2, μ²), which two normal distribution functions give."""
    return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


def finite_delta(epsilon: Any, p: list[Any], q: list[Any]) -> Any:
    """Σ(p − e^ε q)₊ over all outcomes, the worse direction."""
    grow = mpmath.exp(epsilon)
    return max(
        mpmath.fsum(max(0, a - grow * b) for a, b in zip(p, q, strict=True)),
        mpmath.fsum(max(0, b - grow * a) for a, b in zip(p, q, strict=True)),
    )


def randomised_responses(epsilon: Any, folds: int) -> tuple[list[Any], list[Any]]:
    """The laws of all 2^folds outcomes of that many randomised responses."""
    true = 1 / (1 + mpmath.exp(-epsilon))
    outcomes = list(itertools.product((true, 1 - true), repeat=folds))
    return [mpmath.fprod(one) for one in outcomes], [mpmath.fprod(1 - each for each in one) for one in outcomes]


def hockey_stick(p: Callable[[Any], Any], q: Callable[[Any], Any], epsilon: Any, breaks: list[Any], scale: Any) -> Any:
    """∫(p − e^ε q)₊ of densities with one crossing between the breaks: found by bisection, then integrated."""
    grow = mpmath.exp(epsilon)
    low, high = breaks[0] - 60 * scale, breaks[-1] + 60 * scale

    def is_above(x: Any) -> bool:
        return bool(p(x) > grow * q(x))

    if is_above(low) == is_above(high):
        crossings = []  # both laws nowhere cross: all or nothing
    else:
        left, right, left_is_above = low, high, is_above(low)
        for _ in range(4 * DIGITS):
            middle = (left + right) / 2
            left, right = (middle, right) if is_above(middle) == left_is_above else (left, middle)
        crossings = [left]
    points = sorted([low, *(b + d * scale for b in breaks for d in (-9, -3, -1, 0, 1, 3, 9)), *crossings, high])
    return mpmath.fsum(
        mpmath.quad(lambda x: p(x) - grow * q(x), [left, right])
        for left, right in itertools.pairwise(points)
        if left < right and is_above((left + right) / 2)
    )


def normal_density(mean: Any, sigma: Any) -> Callable[[Any], Any]:
    return lambda x: mpmath.npdf(x, mean, sigma)


def laplace_density(mean: Any, scale: Any) -> Callable[[Any], Any]:
    return lambda x: mpmath.exp(-abs(x - mean) / scale) / (2 * scale)


def mixture(q: Any, absent: Callable[[Any], Any], present: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: (1 - q) * absent(x) + q * present(x)


def assert_holds_the_truth(event: Event, delta: float, adjacency: Adjacency, profile: Callable[[Any], Any]) -> None:
    """The closed form's ends lie on the two sides of where the true profile reaches δ, not off by a digit."""
    interval = closed_form.bracket(event, delta=delta, adjacency=adjacency)
    low, high = decimal(delta) * (1 - ROUNDING), decimal(delta) * (1 + ROUNDING)
    assert interval.upper == math.inf or profile(mpmath.mpf(interval.upper)) <= high, (event, delta, interval)
    assert interval.lower == 0.0 or profile(mpmath.mpf(interval.lower)) >= low, (event, delta, interval)


# ---------------------------------------------------------------- the closed form is exact

#: noise → ε at δ = 1e-5 under add/remove and replace-one: Balle & Wang 2018, to the digits of the design notes.
ANALYTIC_GAUSSIAN = [(3.7306, 1.0, 2.155), (0.6002, 8.0, 19.12)]


@pytest.mark.parametrize(("noise", "added", "replaced"), ANALYTIC_GAUSSIAN)
def test_the_analytic_gaussian_has_its_known_figures(noise: float, added: float, replaced: float) -> None:
    event = Gaussian(noise_multiplier=noise)
    for adjacency, epsilon, digits in (("add_remove", added, 1e-4), ("replace_one", replaced, 5e-4)):
        found = account(event, delta=1e-5, adjacency=adjacency)  # type: ignore[arg-type]
        assert found.upper == pytest.approx(epsilon, rel=digits)
        assert found.lower == pytest.approx(found.upper, rel=1e-12)
        assert found.engine == "closed_form"


@every_adjacency
@given(noise=between(1e-3, 1e3), times=st.integers(1, 1000), delta=between(1e-15, 0.4))
def test_the_gaussian_interval_holds_the_truth(noise: float, times: int, delta: float, adjacency: Adjacency) -> None:
    with mpmath.workdps(DIGITS):
        mu = sensitivity(adjacency) * mpmath.sqrt(times) / decimal(noise)
        event = Repeated(times=times, event=Gaussian(noise_multiplier=noise))
        assert_holds_the_truth(event, delta, adjacency, lambda epsilon: gaussian_delta(epsilon, mu))


def test_gaussians_of_different_noise_add_their_precisions() -> None:
    event = Composed(events=tuple(Gaussian(noise_multiplier=noise) for noise in (3.0, 4.0)))
    together = account(event, delta=1e-5)
    one = account(Gaussian(noise_multiplier=2.4), delta=1e-5)  # 1/9 + 1/16 = 1/2.4²
    assert together.upper == pytest.approx(one.upper, rel=1e-12)
    assert together.lower == pytest.approx(one.lower, rel=1e-12)


@every_adjacency
@given(epsilon=between(1e-3, 20), folds=st.integers(1, 6), delta=between(1e-13, 0.4))
def test_the_pure_interval_holds_all_outcomes_of_randomised_response(
    epsilon: float, folds: int, delta: float, adjacency: Adjacency
) -> None:
    with mpmath.workdps(DIGITS):
        p, q = randomised_responses(decimal(epsilon), folds)
        event = Repeated(times=folds, event=PureDP(epsilon=epsilon))
        assert_holds_the_truth(event, delta, adjacency, lambda target: finite_delta(target, p, q))


@given(epsilon=between(1e-3, 10), own=between(1e-9, 1e-3), folds=st.integers(1, 5), delta=between(1e-9, 0.3))
def test_the_approximate_interval_holds_all_outcomes_of_the_three_point_loss(
    epsilon: float, own: float, folds: int, delta: float
) -> None:
    with mpmath.workdps(DIGITS):
        p, q = randomised_responses(decimal(epsilon), folds)
        missed = 1 - (1 - decimal(own)) ** folds  # some release showed everything
        event = Repeated(times=folds, event=ApproxDP(epsilon=epsilon, delta=own))
        found = account(event, delta=delta)
        if missed > decimal(delta) * (1 + ROUNDING):
            assert found.lower == found.upper == math.inf
        else:
            assert_holds_the_truth(
                event, delta, "add_remove", lambda target: missed + (1 - missed) * finite_delta(target, p, q)
            )


@given(st.lists(between(1e-3, 5), min_size=2, max_size=5), between(1e-9, 0.3), st.sampled_from((0.0, 1e-10, 1e-4)))
def test_pure_releases_of_different_size_cost_at_least_all_their_outcomes(
    epsilons: list[float], delta: float, own: float
) -> None:
    event = Composed(events=tuple(ApproxDP(epsilon=epsilon, delta=own) for epsilon in epsilons))
    found = account(event, delta=delta)
    with mpmath.workdps(DIGITS):
        p, q = [mpmath.mpf(1)], [mpmath.mpf(1)]
        for epsilon in epsilons:
            (up, down), _ = randomised_responses(decimal(epsilon), 1)
            p, q = (
                [law * chance for law in laws for chance in chances]
                for laws, chances in ((p, (up, down)), (q, (down, up)))
            )
        missed = 1 - (1 - decimal(own)) ** len(epsilons)  # some release showed everything

        def true_delta(target: float) -> Any:
            return missed + (1 - missed) * finite_delta(mpmath.mpf(target), p, q)

        assert found.upper == math.inf or true_delta(found.upper) <= decimal(delta) * (1 + ROUNDING)
        if found.lower > 0 and missed <= decimal(delta):
            assert true_delta(found.lower) >= decimal(delta) * (1 - ROUNDING)


def test_more_folds_than_can_be_summed_cost_no_less() -> None:
    summed, added = (
        closed_form.bracket(Repeated(times=times, event=PureDP(epsilon=5.0)), delta=1e-6, adjacency="add_remove")
        for times in (10_000, 10_001)
    )
    assert summed.upper < math.inf
    assert summed.lower <= added.upper


def test_an_event_that_only_fails_costs_its_delta() -> None:
    event = ApproxDP(epsilon=0, delta=1e-7)
    for adjacency in ADJACENCIES:
        assert rdp.curve(event, (2.0,), adjacency).delta == Fraction(1, 10**7)
        assert account(event, delta=1e-7, adjacency=adjacency).upper == 0.0
        assert account(event, delta=0.9e-7, adjacency=adjacency).lower == math.inf


@every_adjacency
@given(scale=between(0.01, 100), delta=deltas)
def test_the_laplace_interval_holds_the_truth(scale: float, delta: float, adjacency: Adjacency) -> None:
    with mpmath.workdps(DIGITS):
        # Of the loss |x − t| − |x|, integrated by hand: the tails are atoms at ±t.
        shift = sensitivity(adjacency) / decimal(scale)
        assert_holds_the_truth(
            Laplace(scale=scale), delta, adjacency, lambda target: max(0, 1 - mpmath.exp((target - shift) / 2))
        )


@every_adjacency
@pytest.mark.parametrize("scale", [0.2, 1.0, 5.0])
def test_one_laplace_is_its_integral(scale: float, adjacency: Adjacency) -> None:
    with mpmath.workdps(20):
        shift = mpmath.mpf(sensitivity(adjacency))
        found = account(Laplace(scale=scale), delta=0.01, adjacency=adjacency)
        p, q = laplace_density(shift, scale), laplace_density(mpmath.mpf(0), scale)
        true = hockey_stick(p, q, mpmath.mpf(found.upper), [mpmath.mpf(0), shift], mpmath.mpf(scale))
        assert found.upper == 0.0 or float(true) == pytest.approx(0.01, rel=1e-9)


@pytest.mark.parametrize("total", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("share", [0.02, 0.2, 0.5])
def test_splitting_a_laplace_shift_over_two_coordinates_never_shows_more(total: float, share: float) -> None:
    """At every ε, so a pair of coordinates may be replaced by one, and by induction any number of them."""
    first, second = share * total, (1 - share) * total

    def one(epsilon: float, shift: float) -> float:
        if epsilon <= -shift:
            return -math.expm1(epsilon)
        return -math.expm1(min(0.0, epsilon - shift) / 2)

    for epsilon in np.linspace(-1.1 * total, 1.1 * total, 45):
        # The first coordinate's loss is t or −t in the tails, and t − 2x in between.
        inside, error = quad(
            lambda x, at: 0.5 * math.exp(-x) * one(at - first + 2 * x, second),
            0,
            first,
            args=(float(epsilon),),
            points=sorted(min(max((first - epsilon + way * second) / 2, 0), first) for way in (-1, 1)),
        )
        tails = 0.5 * one(epsilon - first, second) + 0.5 * math.exp(-first) * one(epsilon + first, second)
        assert tails + inside <= one(float(epsilon), total) + error + 1e-12


@every_adjacency
@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-5), (0.1, 1e-6), (3.0, 1e-3)])
def test_partition_selection_costs_one_or_two_three_point_losses(
    epsilon: float, delta: float, adjacency: Adjacency
) -> None:
    event = PartitionSelection(epsilon=epsilon, delta=delta)
    own = exact_delta(epsilon=epsilon, delta=delta)
    changed = sensitivity(adjacency)  # labels
    curve = rdp.curve(event, (2.0, 8.0), adjacency)
    assert curve.pure == changed * Fraction(repr(epsilon))
    assert curve.delta == changed * Fraction(own)
    black_box = rdp.curve(Repeated(times=changed, event=PureDP(epsilon=epsilon)), (2.0, 8.0), adjacency)
    np.testing.assert_array_equal(curve.rho, black_box.rho)
    # A label's first unit shows with this chance, or its last missing one hides: under replace-one, both at once.
    shown = 1 - (1 - own) ** changed
    assert account(event, delta=shown * (1 - 1e-6), adjacency=adjacency).upper == math.inf
    assert account(event, delta=shown * (1 + 1e-6), adjacency=adjacency).upper <= changed * epsilon * (1 + 1e-9)


@pytest.mark.parametrize("q", [1e-6, 0.01, 0.5, 0.999])
@pytest.mark.parametrize("noise", [0.3, 1.0, 5.0])
def test_one_sampled_gaussian_is_its_integral_in_the_worse_direction(q: float, noise: float) -> None:
    delta = q / 50
    found = account(sampled(Gaussian(noise_multiplier=noise), q), delta=delta)
    with mpmath.workdps(25):
        sigma = mpmath.mpf(noise)
        absent, present = normal_density(0, sigma), normal_density(1, sigma)
        both = mixture(mpmath.mpf(q), absent, present)
        forward, backward = (
            hockey_stick(*pair, mpmath.mpf(found.upper), [mpmath.mpf(0), mpmath.mpf(1)], sigma)
            for pair in ((both, absent), (absent, both))
        )
    assert float(max(forward, backward)) == pytest.approx(delta, rel=1e-9)
    assert backward <= forward
    assert found.lower == pytest.approx(found.upper, rel=1e-9)


@pytest.mark.parametrize("q", [0.01, 0.5])
@pytest.mark.parametrize("scale", [0.3, 2.0])
def test_one_sampled_laplace_is_its_integral_in_the_worse_direction(q: float, scale: float) -> None:
    delta = q / 50
    found = account(sampled(Laplace(scale=scale), q), delta=delta)
    with mpmath.workdps(25):
        width = mpmath.mpf(scale)
        absent, present = laplace_density(mpmath.mpf(0), width), laplace_density(mpmath.mpf(1), width)
        both = mixture(mpmath.mpf(q), absent, present)
        forward, backward = (
            hockey_stick(*pair, mpmath.mpf(found.upper), [mpmath.mpf(0), mpmath.mpf(1)], width)
            for pair in ((both, absent), (absent, both))
        )
    assert float(max(forward, backward)) == pytest.approx(delta, rel=1e-9)
    assert found.lower == pytest.approx(found.upper, rel=1e-9)


@given(epsilon=between(1e-2, 10), q=between(1e-4, 1.0), share=between(1e-6, 0.3))
def test_one_sampled_randomised_response_is_its_enumeration(epsilon: float, q: float, share: float) -> None:
    found = account(sampled(PureDP(epsilon=epsilon), q), delta=q * share)
    with mpmath.workdps(DIGITS):
        p, absent = randomised_responses(decimal(epsilon), 1)
        both = [(1 - mpmath.mpf(q)) * b + mpmath.mpf(q) * a for a, b in zip(p, absent, strict=True)]
        assert finite_delta(mpmath.mpf(found.upper), both, absent) <= mpmath.mpf(q * share) * (1 + mpmath.mpf("1e-12"))
        if found.lower > 0:
            assert finite_delta(mpmath.mpf(found.lower), both, absent) >= mpmath.mpf(q * share) * (
                1 - mpmath.mpf("1e-8")
            )


def test_a_sample_that_is_seldom_taken_is_free_at_a_delta_that_covers_it() -> None:
    assert account(sampled(NonPrivate(), 1e-6), delta=1e-6).upper == 0.0
    assert account(sampled(NonPrivate(), 1e-6), delta=0.9e-6).lower == math.inf


# ---------------------------------------------------------------- Rényi curves are their integrals

ORDERS = (1.05, 1.5, 2.0, 3.75, 8.0, 33.0, 256.0)
EXTREME_ORDERS = (*ORDERS, 1024.0)


def renyi(p: Callable[[Any], Any], q: Callable[[Any], Any], order: float, points: list[Any]) -> Any:
    """D_α(P‖Q) by quadrature."""
    alpha = decimal(order)
    total = mpmath.quad(lambda x: q(x) * (p(x) / q(x)) ** alpha, points)
    return mpmath.log(total) / (alpha - 1)


def assert_covers(rho: float, true: Any) -> None:
    assert charged_rho(float(rho)) >= true * RHO_UNITS_PER_NAT


def assert_covers_tightly(rho: float, true: Any) -> None:
    """Right to ten digits, or to a millionth of the unit in which it is charged."""
    assert_covers(rho, true)
    assert abs(mpmath.mpf(float(rho)) - true) <= mpmath.mpf("1e-10") * true + mpmath.mpf("1e-18")


@every_adjacency
@given(noise=between(1e-3, 1e6))
def test_the_gaussian_curve_is_its_formula(noise: float, adjacency: Adjacency) -> None:
    rho = rdp.curve(Gaussian(noise_multiplier=noise), EXTREME_ORDERS, adjacency).rho
    with mpmath.workdps(DIGITS):
        for order, value in zip(EXTREME_ORDERS, rho, strict=True):
            true = decimal(order) * sensitivity(adjacency) ** 2 / (2 * decimal(noise) ** 2)
            assert_covers_tightly(value, true)


@pytest.mark.parametrize("order", [1.5, 2.0, 8.0])
def test_the_formulas_are_integrals(order: float) -> None:
    alpha = decimal(order)
    for adjacency in ADJACENCIES:
        shift = mpmath.mpf(sensitivity(adjacency))
        gaussian, laplace = (
            float(rdp.curve(event, (order,), adjacency).rho[0])
            for event in (Gaussian(noise_multiplier=1.5), Laplace(scale=1.5))
        )
        spread = [*(mpmath.mpf(x) for x in (-40, -10, -3, -1, 0)), shift, *(shift * alpha + x for x in (1, 3, 10, 40))]
        with mpmath.workdps(30):
            sigma = mpmath.mpf("1.5")
            true = renyi(normal_density(shift, sigma), normal_density(0, sigma), order, spread)
            assert gaussian == pytest.approx(float(true), rel=1e-12)
            wide = [-60 * shift, *spread[2:6], 60 * shift]
            true = renyi(laplace_density(shift, sigma), laplace_density(mpmath.mpf(0), sigma), order, wide)
            assert laplace == pytest.approx(float(true), rel=1e-12)


def laplace_formula(alpha: Any, shift: Any) -> Any:
    """Mironov 2017, Proposition 6."""
    weight = alpha / (2 * alpha - 1)
    return mpmath.log(weight * mpmath.exp((alpha - 1) * shift) + (1 - weight) * mpmath.exp(-alpha * shift)) / (
        alpha - 1
    )


def randomised_response_formula(alpha: Any, epsilon: Any) -> Any:
    """Two outcomes, e^ε : 1 against 1 : e^ε."""
    up, down = mpmath.exp(alpha * epsilon), mpmath.exp((1 - alpha) * epsilon)
    return mpmath.log((up + down) / (1 + mpmath.exp(epsilon))) / (alpha - 1)


@every_adjacency
@given(scale=between(1e-3, 1e6))
def test_the_laplace_curve_is_its_formula(scale: float, adjacency: Adjacency) -> None:
    curve = rdp.curve(Laplace(scale=scale), EXTREME_ORDERS, adjacency)
    with mpmath.workdps(DIGITS):
        shift = sensitivity(adjacency) / decimal(scale)
        for order, value in zip(EXTREME_ORDERS, curve.rho, strict=True):
            assert_covers_tightly(value, laplace_formula(decimal(order), shift))
    assert curve.pure == sensitivity(adjacency) / Fraction(repr(scale))


@given(epsilon=between(1e-6, 1e4))
def test_the_pure_curve_is_that_of_randomised_response(epsilon: float) -> None:
    curve = rdp.curve(PureDP(epsilon=epsilon), EXTREME_ORDERS, "add_remove")
    with mpmath.workdps(DIGITS):
        for order, value in zip(EXTREME_ORDERS, curve.rho, strict=True):
            assert_covers_tightly(value, randomised_response_formula(decimal(order), decimal(epsilon)))
    assert curve.pure == Fraction(repr(epsilon))
    assert all(curve.rho <= np.minimum(epsilon, np.array(EXTREME_ORDERS) * epsilon**2 / 2) * (1 + 1e-12))


@pytest.mark.parametrize("order", [1 + 1e-9, 1 + 1e-6, 1 + 1e-3, 1.01])
def test_orders_next_to_one_keep_the_margin(order: float) -> None:
    with mpmath.workdps(DIGITS):
        for epsilon in (1e-6, 0.3, 3.0, 30.0):
            pure = rdp.curve(PureDP(epsilon=epsilon), (order,), "add_remove").rho[0]
            assert_covers(pure, randomised_response_formula(mpmath.mpf(order), decimal(epsilon)))
            laplace = rdp.curve(Laplace(scale=epsilon), (order,), "add_remove").rho[0]
            assert_covers(laplace, laplace_formula(mpmath.mpf(order), 1 / decimal(epsilon)))


@cache
def gauss_legendre() -> list[tuple[Any, Any]]:
    """24 nodes and weights on [−1, 1], to 40 digits."""
    with mpmath.workdps(DIGITS):
        nodes = mpmath.calculus.quadrature.GaussLegendre(mpmath.mp).calc_nodes(4, mpmath.mp.prec)
    assert len(nodes) == 24
    return list(nodes)


def sampled_divergence(order: float, q: float, noise: float, adjacency: Adjacency, *, swapped: bool = False) -> Any:
    """D_α of one Poisson-sampled Gaussian: the integral of P^α Q^(1−α), in panels of half a standard deviation.

    Both laws are mixtures of normals, so the integrand has its mass between 0 and α, or ±(2α − 1) where Q is a mixture
    too, and 13 standard deviations around. The mixtures' zeros are further from the line than a panel is long, so the
    rule gains more than a digit per node.
    """
    alpha, sigma, chance = decimal(order), decimal(noise), decimal(q)
    reach = 2 * alpha - 1 if adjacency == "replace_one" else alpha
    low, high = (-reach, mpmath.mpf(1)) if swapped else (mpmath.mpf(-1), reach)
    low, high = low - 13 * sigma, high + 13 * sigma
    panels = math.ceil((high - low) / (sigma / 2))
    half = (high - low) / panels / 2
    total = mpmath.mpf(0)
    for panel in range(panels):
        for node, weight in gauss_legendre():
            x = low + (2 * panel + 1 + node) * half
            p = 1 - chance + chance * mpmath.exp((2 * x - 1) / (2 * sigma**2))
            other = 1 - chance + chance * mpmath.exp((-2 * x - 1) / (2 * sigma**2)) if reach != alpha else mpmath.mpf(1)
            p, other = (other, p) if swapped else (p, other)
            total += weight * other * mpmath.exp(alpha * mpmath.log(p / other) - x * x / (2 * sigma**2))
    return mpmath.log(total * half / (sigma * mpmath.sqrt(2 * mpmath.pi))) / (alpha - 1)


#: Extreme and ordinary sampling, noise and orders; a full grid would take minutes.
SAMPLED = [
    *itertools.product((1.05, 2.0, 3.75, 8.0), (1e-6, 0.01, 0.5), (0.3, 1.0, 50.0)),
    (32.0, 0.01, 1.0),
    (31.5, 0.3, 3.0),
    (2.0, 0.999, 0.3),
    (1.5, 0.999, 50.0),
    (256.0, 1e-6, 50.0),
]


@pytest.mark.slow
@every_adjacency
@pytest.mark.parametrize(("order", "q", "noise"), SAMPLED)
def test_the_sampled_gaussian_curve_is_its_integral(order: float, q: float, noise: float, adjacency: Adjacency) -> None:
    event = sampled(Gaussian(noise_multiplier=noise), q)
    orders = tuple(sorted({*ORDERS, order}))
    alone, among_others = rdp.curve(event, (order,), adjacency), rdp.curve(event, orders, adjacency)
    with mpmath.workdps(DIGITS):
        true = sampled_divergence(order, q, noise, adjacency)
        assert_covers_tightly(alone.rho[0], true)
        assert_covers_tightly(among_others.rho[orders.index(order)], true)


@every_adjacency
@pytest.mark.parametrize(("order", "q", "noise"), [(100.5, 0.1, 5.0), (300.5, 0.01, 8.0), (40.5, 1e-6, 0.7)])
def test_large_fractional_orders_are_covered(order: float, q: float, noise: float, adjacency: Adjacency) -> None:
    rho = rdp.curve(sampled(Gaussian(noise_multiplier=noise), q), (order,), adjacency).rho[0]
    with mpmath.workdps(DIGITS):
        true = sampled_divergence(order, q, noise, adjacency)
        assert_covers(rho, true)
        assert rho <= 1.05 * true


@pytest.mark.parametrize(
    ("order", "q", "noise"), [(1.05, 0.01, 1.0), (2.0, 0.5, 0.5), (3.75, 1e-6, 50.0), (8.0, 0.9, 2.0)]
)
def test_the_direction_that_is_charged_is_the_larger_one(order: float, q: float, noise: float) -> None:
    with mpmath.workdps(DIGITS):
        added, removed = (sampled_divergence(order, q, noise, "add_remove", swapped=way) for way in (True, False))
        assert 0 < added < removed
        forward, backward = (sampled_divergence(order, q, noise, "replace_one", swapped=way) for way in (True, False))
        assert abs(forward - backward) <= mpmath.mpf("1e-20") * forward, "that pair is its own mirror image"


@pytest.mark.slow
@every_adjacency
@rare
@given(between(1e-6, 0.99), between(0.5, 30), between(1.05, 16))
def test_the_sampled_gaussian_curve_is_its_integral_everywhere(
    adjacency: Adjacency, q: float, noise: float, order: float
) -> None:
    rho = rdp.curve(sampled(Gaussian(noise_multiplier=noise), q), (order,), adjacency).rho[0]
    with mpmath.workdps(DIGITS):
        assert_covers_tightly(rho, sampled_divergence(order, q, noise, adjacency))


@every_adjacency
def test_gaussians_on_one_sample_are_one_gaussian(adjacency: Adjacency) -> None:
    parts = Composed(events=(Gaussian(noise_multiplier=3.0), Repeated(times=2, event=Gaussian(noise_multiplier=4.0))))
    together = rdp.curve(sampled(parts, 0.1), ORDERS, adjacency)
    one = rdp.curve(sampled(Gaussian(noise_multiplier=(1 / 9 + 2 / 16) ** -0.5), 0.1), ORDERS, adjacency)
    np.testing.assert_allclose(together.rho, one.rho, rtol=1e-12)


@every_adjacency
def test_a_sample_of_a_sample_is_a_sample(adjacency: Adjacency) -> None:
    twice = rdp.curve(sampled(sampled(Gaussian(noise_multiplier=1.0), 0.2), 0.3), ORDERS, adjacency)
    once = rdp.curve(sampled(Gaussian(noise_multiplier=1.0), 0.06), ORDERS, adjacency)
    np.testing.assert_allclose(twice.rho, once.rho, rtol=1e-12)


@every_adjacency
@given(q=between(1e-6, 1.0) | st.just(math.nextafter(1.0, 0.0)), scale=between(0.02, 50))
def test_the_pure_loss_of_a_sampled_laplace_covers_the_largest_ratio(
    q: float, scale: float, adjacency: Adjacency
) -> None:
    pure = rdp.curve(sampled(Laplace(scale=scale), q), (2.0,), adjacency).pure
    assert pure is not None
    with mpmath.workdps(DIGITS):
        shift, chance = 1 / decimal(scale), mpmath.mpf(q)  # a sampler takes q as it is: next to 1 that matters
        up, down = (mpmath.log(1 - chance + chance * mpmath.exp(way * shift)) for way in (1, -1))
        true = up - down if adjacency == "replace_one" else max(up, -down)
        assert mpmath.mpf(pure.numerator) / pure.denominator >= true * (1 - mpmath.mpf("1e-30"))
        assert float(pure) <= float(true) * (1 + 1e-9)


@every_adjacency
@given(q=between(1e-4, 0.999), epsilon=between(1e-3, 10), order=between(1.05, 64))
def test_the_curve_of_a_sampled_black_box_covers_randomised_response(
    q: float, epsilon: float, order: float, adjacency: Adjacency
) -> None:
    rho = rdp.curve(sampled(PureDP(epsilon=epsilon), q), (order,), adjacency).rho[0]
    with mpmath.workdps(DIGITS):
        p, other = randomised_responses(decimal(epsilon), 1)
        absent = other if adjacency == "add_remove" else [mpmath.mpf(1) / 2] * 2
        mixed, mixed_other = (
            [(1 - decimal(q)) * a + decimal(q) * b for a, b in zip(absent, law, strict=True)] for law in (p, other)
        )
        alpha = decimal(order)
        for left, right in ((mixed, mixed_other), (mixed_other, mixed)):
            moment = mpmath.fsum(a**alpha * b ** (1 - alpha) for a, b in zip(left, right, strict=True))
            assert_covers(rho, mpmath.log(moment) / (alpha - 1))


@given(epsilon=between(1e-3, 10), order=between(1.05, 64))
def test_l2_laplace_and_zcdp_are_what_they_promise(epsilon: float, order: float) -> None:
    for adjacency in ADJACENCIES:
        ball = rdp.curve(L2Laplace(scale=1 / epsilon), (order,), adjacency)
        pure = rdp.curve(PureDP(epsilon=sensitivity(adjacency) * epsilon), (order,), adjacency)
        np.testing.assert_allclose(ball.rho, pure.rho, rtol=1e-12)
        concentrated = rdp.curve(ZCDP(rho=epsilon), (order,), adjacency)
        np.testing.assert_allclose(concentrated.rho, [order * epsilon], rtol=1e-15)
        assert concentrated.pure is None


@every_adjacency
def test_what_has_no_guarantee_has_no_bound(adjacency: Adjacency) -> None:
    found = account(Composed(events=(NonPrivate(), PureDP(epsilon=0.1))), delta=0.5, adjacency=adjacency)
    assert found.lower == found.upper == math.inf


# ---------------------------------------------------------------- approximate parts


@given(st.lists(st.tuples(st.integers(1, 1000), between(1e-12, 1e-6)), min_size=1, max_size=5))
def test_deltas_beside_the_curve_add_up_exactly(parts: list[tuple[int, float]]) -> None:
    event = Composed(
        events=tuple(Repeated(times=times, event=ApproxDP(epsilon=0.1, delta=delta)) for times, delta in parts)
    )
    assert rdp.curve(event, (2.0,), "add_remove").delta == sum(times * Fraction(repr(delta)) for times, delta in parts)


def test_a_delta_below_the_approximate_parts_proves_nothing() -> None:
    event = Repeated(times=3, event=ApproxDP(epsilon=0.1, delta=1e-7))
    assert account(event, delta=2.9e-7).upper == math.inf
    assert account(event, delta=2.9e-7).lower == math.inf
    assert account(event, delta=3e-7).upper == pytest.approx(0.3, rel=1e-12), "all of δ is spent, Σε remains"
    assert account(event, delta=1e-3).upper < 0.3


def test_all_of_delta_in_the_parts_leaves_nothing_for_a_gaussian() -> None:
    event = Composed(events=(ApproxDP(epsilon=0.1, delta=1e-7), Gaussian(noise_multiplier=1.0)))
    assert account(event, delta=1e-7).upper == math.inf
    assert account(event, delta=1.1e-7).upper < math.inf


def test_sampling_shrinks_the_delta_of_its_event() -> None:
    event = sampled(ApproxDP(epsilon=1.0, delta=1e-6), 0.01)
    for adjacency in ADJACENCIES:
        assert rdp.curve(event, (2.0,), adjacency).delta == Fraction(1, 10**8)


# ---------------------------------------------------------------- from curve to ε


@every_adjacency
@given(noise=between(0.3, 100), delta=between(1e-12, 0.1))
def test_the_conversion_is_never_below_the_truth(noise: float, delta: float, adjacency: Adjacency) -> None:
    event = Gaussian(noise_multiplier=noise)
    upper = rdp.epsilon(event, delta=delta, adjacency=adjacency)
    with mpmath.workdps(DIGITS):
        assert gaussian_delta(mpmath.mpf(upper), sensitivity(adjacency) / decimal(noise)) <= mpmath.mpf(delta)


def test_rdp_is_within_the_known_gap_of_the_tight_figure() -> None:
    # (0.01, 1, 1000) at δ = 1e-5: the design notes have PLD 1.828 and RDP 2.101 on other orders.
    event = Repeated(times=1000, event=sampled(Gaussian(noise_multiplier=1.0), 0.01))
    assert 2.10 <= rdp.epsilon(event, delta=1e-5, adjacency="add_remove") <= 2.11


def test_replace_one_dp_sgd_covers_the_tight_figures() -> None:
    # Replace-one figures by PLD in the design notes.
    for q, noise, steps, tight in ((0.01, 1.0, 1000, 2.843), (0.1, 2.0, 400, 9.920), (0.5, 5.0, 100, 9.936)):
        event = Repeated(times=steps, event=sampled(Gaussian(noise_multiplier=noise), q))
        upper = account(event, delta=1e-5, adjacency="replace_one").upper
        assert tight <= upper <= 1.25 * tight


# ---------------------------------------------------------------- very many different leaves


def many(count: int) -> list[Leaf]:
    """Leaves of every kind that may be rounded, all different."""
    leaves: list[Leaf] = []
    for i in range(count):
        noisy, flat = Gaussian(noise_multiplier=2.0 + 1e-5 * i), Laplace(scale=3.0 + 1e-5 * i)
        leaves += [
            PoissonSampled(sampling_probability=0.01 + 1e-6 * i, event=noisy),
            PoissonSampled(sampling_probability=0.3 - 1e-6 * i, event=flat),
            Laplace(scale=20.0 + 1e-4 * i),
            PureDP(epsilon=0.001 + 1e-7 * i),
            ApproxDP(epsilon=0.002 + 1e-7 * i, delta=1e-9),
            ZCDP(rho=1e-4 + 1e-8 * i),
        ]
    return leaves


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_fewer_leaves_cost_at_least_as_much_and_hardly_more(adjacency: Adjacency) -> None:
    counts = dict.fromkeys(many(60), 2)
    fewer = coarsened(counts, most=100)
    assert sum(fewer.values()) == sum(counts.values())
    assert len(fewer) <= 100 < len(counts)
    orders = (1.5, 4.0, 32.0)
    exactly, roughly = (
        rdp.curve(Composed(events=tuple(Repeated(times=n, event=leaf) for leaf, n in each.items())), orders, adjacency)
        for each in (counts, fewer)
    )
    assert (roughly.rho >= exactly.rho).all()
    assert (roughly.rho <= exactly.rho * 1.25).all()
    assert roughly.delta == exactly.delta


def test_few_leaves_and_those_that_must_not_be_rounded_stay_as_they_are() -> None:
    few = dict.fromkeys(many(2), 1)
    assert coarsened(few) == few
    kept: dict[Leaf, int] = {PartitionSelection(epsilon=0.1 + 1e-4 * i, delta=1e-8): 1 for i in range(50)}
    kept |= {Gaussian(noise_multiplier=5.0 + i): 1 for i in range(50)}
    assert coarsened(kept, most=10) == kept


def test_an_event_of_thousands_of_parts_is_answered() -> None:
    event = Composed(events=tuple(PureDP(epsilon=0.001 + 1e-6 * i) for i in range(5000)))
    answer = account(event, delta=1e-5)
    assert answer.engine == "rdp"
    assert "too many points" in answer.remark
    fewer = Composed(events=tuple(PureDP(epsilon=0.001 + 1e-6 * i) for i in range(0, 5000, 50)))
    assert answer.upper >= account(Repeated(times=50, event=fewer), delta=1e-5).lower
