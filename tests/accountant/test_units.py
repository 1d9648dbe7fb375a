"""The ledger's integers: what is charged rounds up, what is allowed rounds down, what people write is exact."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accountant.errors import InvalidInput
from accountant.filters import Cost
from accountant.units import (
    DELTA_UNITS,
    FAILURE_PROBABILITY,
    NOT_NEGATIVE,
    POSITIVE,
    POSITIVE_FAILURE_PROBABILITY,
    PROBABILITY,
    RELATIVE_MARGIN,
    RHO_UNITS_PER_NAT,
    SATURATED,
    Range,
    allowed_delta,
    allowed_rho,
    charged_delta,
    charged_rho,
    exact,
    nats_down,
    nats_up,
    real,
    whole,
)

finite = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
amounts = st.fractions(min_value=0, max_value=10**9)
probabilities = st.fractions(min_value=0, max_value=1)
unit_counts = st.integers(0, 10**15) | st.integers(10**16, 10**20) | st.integers(10**20, SATURATED - 1)


def nats(units: int) -> Fraction:
    return Fraction(units, RHO_UNITS_PER_NAT)


@given(finite)
def test_a_float_is_the_decimal_that_it_prints_as(value: float) -> None:
    assert exact(value) == Fraction(Decimal(repr(value)))
    assert float(exact(value)) == value


@given(st.integers(0, 10**6))
def test_decimals_of_six_digits_are_exact_in_units(millionths: int) -> None:
    value = float(Fraction(millionths, 10**6))
    assert charged_rho(exact(value)) == allowed_rho(exact(value)) == millionths * 10**6
    assert charged_delta(exact(value)) == allowed_delta(exact(value)) == millionths * 10**24


def test_ten_times_a_tenth_is_one() -> None:
    assert 10 * charged_rho(exact(0.1)) == allowed_rho(exact(1.0))
    assert 10 * charged_delta(exact(1e-7)) == allowed_delta(exact(1e-6))
    assert sum([0.1] * 10) != 1.0, "which floats get wrong"


@given(amounts)
def test_an_exact_charge_rounds_up_to_the_next_unit(value: Fraction) -> None:
    units = charged_rho(value)
    assert nats(units - 1) < value <= nats(units)


@given(amounts)
def test_an_allowance_rounds_down_to_the_next_unit(value: Fraction) -> None:
    units = allowed_rho(value)
    assert nats(units) <= value < nats(units + 1)


@given(probabilities)
def test_a_failure_probability_is_charged_up_and_allowed_down(value: Fraction) -> None:
    charged, allowed = charged_delta(value), allowed_delta(value)
    assert Fraction(charged - 1, DELTA_UNITS) < value <= Fraction(charged, DELTA_UNITS)
    assert Fraction(allowed, DELTA_UNITS) <= value < Fraction(allowed + 1, DELTA_UNITS)


@given(finite)
def test_a_computed_charge_covers_its_margin_and_little_more(value: float) -> None:
    units = charged_rho(value)
    with_margin = Fraction(value) * (1 + Fraction(RELATIVE_MARGIN))
    if with_margin <= nats(SATURATED):
        assert nats(units - 1) < with_margin <= nats(units)
    else:
        assert units == SATURATED


@given(finite, finite)
def test_charges_keep_the_order_of_losses(first: float, second: float) -> None:
    low, high = sorted((first, second))
    assert charged_rho(low) <= charged_rho(high)
    assert charged_rho(exact(low)) <= charged_rho(exact(high))


def test_nothing_costs_nothing_and_the_least_loss_costs_a_unit() -> None:
    assert charged_rho(0.0) == charged_rho(Fraction(0)) == charged_delta(Fraction(0)) == 0
    assert charged_rho(5e-324) == charged_rho(Fraction(1, 10**400)) == charged_delta(Fraction(1, 10**400)) == 1
    assert allowed_rho(Fraction(1, 10**400)) == allowed_delta(Fraction(1, 10**400)) == 0


def test_what_has_no_bound_saturates() -> None:
    assert charged_rho(math.inf) == charged_rho(1.7e308) == charged_rho(Fraction(10**400)) == SATURATED
    assert charged_delta(Fraction(10**400)) == SATURATED
    assert nats_up(SATURATED) == nats_up(SATURATED + 1) == math.inf


@given(st.integers(0, SATURATED), st.integers(0, SATURATED), st.integers(1, 10**12))
def test_sums_saturate_and_stay_saturated(first: int, second: int, times: int) -> None:
    unbounded, other = Cost(rho=(SATURATED, first), delta=SATURATED), Cost(rho=(second, second), delta=second)
    assert unbounded * times == Cost(rho=(SATURATED, min(first * times, SATURATED)), delta=SATURATED)
    assert unbounded + other == Cost(rho=(SATURATED, min(first + second, SATURATED)), delta=SATURATED)


@given(unit_counts)
def test_nats_up_is_the_nearest_float_that_covers_the_units(units: int) -> None:
    value = nats_up(units)
    assert exact(value) >= nats(units)
    assert units == 0 or exact(math.nextafter(value, 0.0)) < nats(units)


@given(unit_counts)
def test_nats_down_is_the_nearest_float_that_the_units_cover(units: int) -> None:
    value = nats_down(units)
    assert exact(value) <= nats(units)
    assert exact(math.nextafter(value, math.inf)) > nats(units)


@given(unit_counts)
def test_what_is_proposed_again_as_it_was_printed_is_not_refused(units: int) -> None:
    assert charged_rho(exact(nats_down(units))) <= units
    assert allowed_rho(exact(nats_up(units))) >= units


RANGES: list[tuple[Range, list[float], list[float]]] = [
    (POSITIVE, [5e-324, 1, 1.7e308], [0.0, -0.0, -1.0]),
    (NOT_NEGATIVE, [0.0, -0.0, 5e-324, 1.7e308], [-5e-324, -1.0]),
    (PROBABILITY, [0.0, 0.5, 1.0], [-5e-324, math.nextafter(1.0, 2.0)]),
    (FAILURE_PROBABILITY, [0.0, 0.5, math.nextafter(1.0, 0.0)], [-5e-324, 1.0]),
    (POSITIVE_FAILURE_PROBABILITY, [5e-324, math.nextafter(1.0, 0.0)], [0.0, 1.0]),
]


@pytest.mark.parametrize(("allowed", "inside", "outside"), RANGES, ids=lambda value: getattr(value, "words", ""))
def test_ranges_hold_what_their_words_say(allowed: Range, inside: list[float], outside: list[float]) -> None:
    for value in inside:
        assert real("argument", value, allowed) == value
    for value in [*outside, math.nan, math.inf, -math.inf, 10**400]:
        with pytest.raises(InvalidInput) as caught:
            real("argument", value, allowed)
        assert caught.value.argument == "argument"
        assert caught.value.expected == allowed.words


@pytest.mark.parametrize("value", ["1", b"1", None, True, False, 1j, [1.0], np.True_, Decimal(1), object()])
def test_only_numbers_are_numbers(value: Any) -> None:
    with pytest.raises(InvalidInput, match="argument: expected a finite number >= 0"):
        real("argument", value, NOT_NEGATIVE)
    with pytest.raises(InvalidInput, match="argument: expected a whole number from 0 to 9"):
        whole("argument", value, least=0, most=9)


@pytest.mark.parametrize("value", [np.float32(0.5), np.float64(0.5), Fraction(1, 2)])
def test_numbers_of_other_types_become_floats(value: Any) -> None:
    assert real("argument", value, PROBABILITY) == 0.5
    assert type(real("argument", value, PROBABILITY)) is float


@pytest.mark.parametrize("value", [2, 10, np.int8(5), np.int64(7)])
def test_whole_numbers_are_taken_at_both_ends(value: Any) -> None:
    assert whole("argument", value, least=2, most=10) == value
    assert type(whole("argument", value, least=2, most=10)) is int


@pytest.mark.parametrize("value", [1, 11, -(10**30), 2.0, 2.5, math.nan, pytest.param(10**5000, id="5,001 digits")])
def test_other_whole_numbers_are_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match="argument: expected a whole number from 2 to 10"):
        whole("argument", value, least=2, most=10)


@given(st.one_of(st.integers(-(10**16), 10**16), st.integers(0, 10**39)))
def test_nats_are_the_nearest_decimal_on_the_right_side(units: int) -> None:
    nearest = units / RHO_UNITS_PER_NAT
    decimal = exact(nearest) * RHO_UNITS_PER_NAT
    assert nats_up(units) == (nearest if decimal >= units else math.nextafter(nearest, math.inf))
    assert nats_down(units) == (nearest if decimal <= units else math.nextafter(nearest, -math.inf))
