"""Partition selection against its own definition: every probability summed from the exact mass function."""

from __future__ import annotations

import math
from typing import Any

import mpmath  # type: ignore[import-untyped]
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from accountant.errors import InvalidInput
from accountant.partition import exact_delta, inclusion_probability, threshold
from tests.accountant.strategies import between

DIGITS = 50


def mass(k: int, epsilon: float) -> dict[int, Any]:
    """P[Z = x] ∝ e^(−ε|x|) for x = −k … k, by definition."""
    with mpmath.workdps(DIGITS):
        weights = {x: mpmath.exp(-mpmath.mpf(epsilon) * abs(x)) for x in range(-k, k + 1)}
        total = mpmath.fsum(weights.values())
        return {x: weight / total for x, weight in weights.items()}


def released(n: int, k: int, epsilon: float) -> Any:
    """The probability that a label with n units is released: n ≥ 1 and n + Z > k."""
    with mpmath.workdps(DIGITS):
        return mpmath.fsum(p for x, p in mass(k, epsilon).items() if n + x > k) if n else mpmath.mpf(0)


def delta_between(p: Any, q: Any, epsilon: float) -> Any:
    """δ(ε) of one bit that is 1 with probability p or q, in the worse direction."""
    with mpmath.workdps(DIGITS):
        grow = mpmath.exp(mpmath.mpf(epsilon))
        pairs = ((p, q), (1 - p, 1 - q))
        forward = mpmath.fsum(max(0, a - grow * b) for a, b in pairs)
        backward = mpmath.fsum(max(0, b - grow * a) for a, b in pairs)
        return max(forward, backward)


def least_threshold(epsilon: float, delta: float) -> int:
    """The smallest k with P[Z = k] ≤ δ, by trying, where P[Z = k] is the geometric series summed exactly."""
    with mpmath.workdps(DIGITS):
        ratio = mpmath.exp(-mpmath.mpf(epsilon))
        total, power, k = mpmath.mpf(1), mpmath.mpf(1), 0
        while True:
            k += 1
            power *= ratio
            total += 2 * power
            if power <= mpmath.mpf(delta) * total:
                return k


# The card of mechanism M4: (ε, δ, k, δ_k, n50, n99), its figures enumerated there by another program.
CARD = [(1.0, 1e-5, 11, 7.718e-6, 12, 16), (0.1, 1e-5, 86, 9.20e-6, 87, 126), (1.0, 1e-7, 16, 5.2e-8, None, None)]


@pytest.mark.parametrize("card", CARD)
def test_the_card_of_the_mechanism(card: tuple[float, float, int, float, int | None, int | None]) -> None:
    epsilon, delta, k, delta_k, half, most = card
    assert threshold(epsilon=epsilon, delta=delta) == k
    assert exact_delta(epsilon=epsilon, delta=delta) == pytest.approx(delta_k, rel=1e-2 if delta == 1e-7 else 1e-3)
    for n, probability in ((half, 0.5), (most, 0.99)):
        if n is not None:
            assert inclusion_probability(n, epsilon=epsilon, delta=delta) >= probability
            assert inclusion_probability(n - 1, epsilon=epsilon, delta=delta) < probability


@given(between(0.02, 20), between(1e-12, 0.9))
def test_the_threshold_is_the_smallest_that_keeps_delta(epsilon: float, delta: float) -> None:
    assert threshold(epsilon=epsilon, delta=delta) == least_threshold(epsilon, delta)


@given(between(0.02, 20), st.integers(1, 40))
def test_a_delta_just_missed_takes_the_next_threshold(epsilon: float, k: int) -> None:
    single = float(released(1, k, epsilon))
    assume(single > 1e-90)
    assert threshold(epsilon=epsilon, delta=single * (1 - 1e-12)) == k + 1
    assert threshold(epsilon=epsilon, delta=single * (1 + 1e-12)) == k


@given(between(0.05, 20), between(1e-12, 0.9))
def test_the_own_delta_is_the_chance_that_a_single_unit_shows(epsilon: float, delta: float) -> None:
    k = threshold(epsilon=epsilon, delta=delta)
    single = released(1, k, epsilon)
    own = exact_delta(epsilon=epsilon, delta=delta)
    assert single <= own <= delta
    assert own <= float(single) * (1 + 1e-9) + 5e-324


@given(between(0.05, 20), between(1e-12, 0.9), st.data())
def test_inclusion_is_the_sum_of_its_mass(epsilon: float, delta: float, data: st.DataObject) -> None:
    k = threshold(epsilon=epsilon, delta=delta)
    n = data.draw(st.integers(0, 2 * k + 2))
    assert inclusion_probability(n, epsilon=epsilon, delta=delta) == pytest.approx(
        float(released(n, k, epsilon)), rel=1e-12
    )


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-5), (0.3, 1e-3), (5.0, 1e-9), (0.05, 0.2), (1.0, 0.9)])
def test_the_release_has_exactly_this_delta_whatever_the_number_of_units(epsilon: float, delta: float) -> None:
    k = threshold(epsilon=epsilon, delta=delta)
    chances = [released(n, k, epsilon) for n in range(2 * k + 3)]
    worst = max(delta_between(chances[n], chances[n + 1], epsilon) for n in range(2 * k + 2))
    own = exact_delta(epsilon=epsilon, delta=delta)
    assert worst <= own
    assert own == pytest.approx(float(worst), rel=1e-9)
    # … and under replace-one, where one label loses a unit and another gains it: (2ε, 2δ) holds, and is needed.
    twice = max(
        _delta_of_two(chances[n], chances[n + 1], chances[m + 1], chances[m], 2 * epsilon)
        for n in (0, 1, k, 2 * k)
        for m in (0, 1, k, 2 * k)
    )
    assert twice <= 2 * own
    assert twice >= own * (2 - own) * (1 - 1e-9)


def _delta_of_two(p: Any, p_after: Any, q: Any, q_after: Any, epsilon: float) -> Any:
    """δ(ε) of two independent bits that change together."""
    with mpmath.workdps(DIGITS):
        grow = mpmath.exp(mpmath.mpf(epsilon))
        outcomes = [
            (
                (p if a else 1 - p) * (q if b else 1 - q),
                (p_after if a else 1 - p_after) * (q_after if b else 1 - q_after),
            )
            for a in (0, 1)
            for b in (0, 1)
        ]
        return max(
            mpmath.fsum(max(0, before - grow * after) for before, after in outcomes),
            mpmath.fsum(max(0, after - grow * before) for before, after in outcomes),
        )


@given(between(0.05, 20), between(1e-12, 0.5))
def test_more_units_are_never_less_likely_to_show(epsilon: float, delta: float) -> None:
    k = threshold(epsilon=epsilon, delta=delta)
    chances = [inclusion_probability(n, epsilon=epsilon, delta=delta) for n in range(2 * k + 3)]
    assert chances == sorted(chances)
    assert chances[0] == 0.0
    assert chances[2 * k + 1] == chances[2 * k + 2] == 1.0


@given(between(1e-3, 50), between(1e-15, 0.5), st.floats(0.01, 1))
def test_a_smaller_delta_never_lowers_the_threshold(epsilon: float, delta: float, factor: float) -> None:
    assert threshold(epsilon=epsilon, delta=delta * factor) >= threshold(epsilon=epsilon, delta=delta)
    assert exact_delta(epsilon=epsilon, delta=delta * factor) <= exact_delta(epsilon=epsilon, delta=delta)


@pytest.mark.parametrize("epsilon", [1e-12, 1e-8, 1.0, 40.0, 750.0, 1000.0])
@pytest.mark.parametrize("delta", [1e-100, 1e-20, 1e-5, 0.5, math.nextafter(1.0, 0.0)])
def test_extreme_parameters_keep_the_promise(epsilon: float, delta: float) -> None:
    k = threshold(epsilon=epsilon, delta=delta)
    own = exact_delta(epsilon=epsilon, delta=delta)
    with mpmath.workdps(100):
        ratio = mpmath.exp(-mpmath.mpf(epsilon))
        tip = ratio**k / (1 + 2 * ratio * (1 - ratio**k) / (1 - ratio))  # P[Z = k]: a geometric series
        assert tip <= own <= delta
    assert inclusion_probability(1, epsilon=epsilon, delta=delta) <= delta * (1 + 1e-9)
    assert 0 <= inclusion_probability(10**18, epsilon=epsilon, delta=delta) <= 1


@pytest.mark.parametrize(
    "n", [-1, 1.5, math.nan, "3", None, True, 10**18 + 1, pytest.param(10**5000, id="5,001 digits")]
)
def test_the_number_of_units_is_a_whole_number(n: Any) -> None:
    with pytest.raises(InvalidInput, match="n: expected a whole number from 0 to"):
        inclusion_probability(n, epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize("function", [threshold, exact_delta, lambda **both: inclusion_probability(3, **both)])
def test_parameters_outside_their_range_are_named(function: Any) -> None:
    for epsilon in (0, -1.0, math.nan, math.inf, "1", None, True):
        with pytest.raises(InvalidInput, match=r"^epsilon: expected a finite number > 0"):
            function(epsilon=epsilon, delta=1e-5)
    for delta in (0, 1, 1.5, -1e-9, math.nan, math.inf, "1", None, False):
        with pytest.raises(InvalidInput, match=r"^delta: expected a number in \(0, 1\)"):
            function(epsilon=1.0, delta=delta)
