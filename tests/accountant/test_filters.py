"""The gate's arithmetic and its readings; what no adversary can do to it is in test_adaptive_adversaries.py."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accountant.errors import InvalidInput
from accountant.events import (
    ApproxDP,
    Composed,
    Event,
    Gaussian,
    NonPrivate,
    PartitionSelection,
    PoissonSampled,
    PureDP,
    Repeated,
)
from accountant.filters import ORDERS, Cost, Filter, Preset, Reading
from accountant.units import RHO_UNITS_PER_NAT, SATURATED

PRESETS: list[Preset] = ["mixed", "gaussian", "pure"]
budgets = st.builds(
    Filter.of,
    epsilon=st.floats(0.01, 20),
    delta=st.sampled_from([1e-9, 1e-6, 1e-5, 1e-3]),
    preset=st.sampled_from(PRESETS),
)
events = st.one_of(
    st.builds(PureDP, epsilon=st.floats(0, 2)),
    st.builds(Gaussian, noise_multiplier=st.floats(0.5, 200)),
    st.builds(ApproxDP, epsilon=st.floats(0, 1), delta=st.sampled_from([0.0, 1e-9, 1e-7])),
)


def price(budget: Filter, event: Event) -> Cost:
    return budget.price(event, "add_remove")


@pytest.mark.parametrize("order", ORDERS)
def test_a_limit_is_the_weighted_tight_conversion_rounded_down(order: float) -> None:
    budget = Filter.of(epsilon=3.0, delta=1e-6)
    place = ORDERS.index(order)
    # (α, B)-RDP converts to ε at a share w δ′ of δ, here w = 1/14 and δ′ = δ/2
    share = 1e-6 / 2 / 14
    rho = budget.limits.rho[place] / RHO_UNITS_PER_NAT
    epsilon = rho + math.log(1 - 1 / order) - (math.log(share) + math.log(order)) / (order - 1)
    assert 3.0 - 1e-10 < epsilon <= 3.0 + 1e-14


def test_presets_split_delta_as_documented() -> None:
    mixed, gaussian, pure = (Filter.of(epsilon=1.0, delta=1e-5, preset=preset) for preset in PRESETS)
    for budget in (mixed, gaussian):
        assert budget.delta_filter == budget.delta_parts == Fraction(1, 200_000)
    assert (pure.delta_filter, pure.delta_parts) == (Fraction(0), Fraction(1, 100_000))
    assert mixed.orders == ORDERS
    assert mixed.weights == (Fraction(1, 14),) * 14
    assert gaussian.weights == (Fraction(1, 3),) * 3
    assert pure.orders == ()


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0, 8.0])
def test_the_gaussian_preset_admits_more_gaussian_releases_than_any_other_three_orders(epsilon: float) -> None:
    def admitted(budget: Filter) -> float:
        cost = price(budget, Gaussian(noise_multiplier=1.0)).rho
        return max(limit / used for limit, used in zip(budget.limits.rho, cost, strict=True))

    best = Filter.of(epsilon=epsilon, delta=1e-5, preset="gaussian")
    for start in range(len(ORDERS) - 2):
        orders = ORDERS[start : start + 3]
        other = replace(best, orders=orders)
        assert admitted(other) <= admitted(best)
    assert admitted(best) > admitted(Filter.of(epsilon=epsilon, delta=1e-5))


def test_a_share_of_delta_for_approximate_parts_can_be_chosen() -> None:
    budget = Filter.of(epsilon=1.0, delta=1e-5, delta_parts=1e-6)
    assert budget.delta_filter == Fraction(9, 1_000_000)
    one = price(budget, ApproxDP(epsilon=0.01, delta=1e-7))
    assert budget.admits(one * 10)
    assert not budget.admits(one * 11)


@given(budgets, st.lists(events, max_size=6), st.lists(events, max_size=3))
def test_admission_is_the_meter_within_the_budget(budget: Filter, committed: list[Event], held: list[Event]) -> None:
    spent, pending = price(budget, Composed(events=tuple(committed))), price(budget, Composed(events=tuple(held)))
    total = spent + pending
    assert budget.admits(total) == (budget.meter(total) <= budget.epsilon) or total == budget.nothing
    explanation = budget.explain(total)
    assert explanation.admitted == budget.admits(total) == (explanation.over <= 0 and explanation.delta_over <= 0)


@given(budgets, st.lists(events, max_size=6))
def test_available_is_the_largest_pure_release_that_is_admitted(budget: Filter, committed: list[Event]) -> None:
    used = price(budget, Composed(events=tuple(committed)))
    available = budget.reading(committed=used, held=budget.nothing).available
    if budget.admits(used):
        assert budget.admits(used + price(budget, PureDP(epsilon=available)))
        more = PureDP(epsilon=available + 1e-9 * max(1, available))
        assert not budget.admits(used + price(budget, more))
    else:
        assert available == 0


@given(budgets, st.lists(events, max_size=4), st.lists(events, min_size=1, max_size=4))
def test_held_is_the_rise_of_the_meter(budget: Filter, committed: list[Event], held: list[Event]) -> None:
    spent, pending = price(budget, Composed(events=tuple(committed))), price(budget, Composed(events=tuple(held)))
    reading = budget.reading(committed=spent, held=pending)
    assert reading.spent == budget.meter(spent)
    together = budget.meter(spent + pending)
    if pending == budget.nothing:
        assert reading.held == 0
    elif math.isinf(together):
        assert math.isinf(reading.held)
    else:
        assert reading.spent + reading.held == pytest.approx(together, abs=1e-11)
    assert reading.budget == budget.epsilon


@pytest.mark.parametrize("preset", PRESETS)
def test_a_life_without_releases_reads_zero_and_leaves_the_whole_budget(preset: Preset) -> None:
    budget = Filter.of(epsilon=1.25, delta=1e-5, preset=preset)
    reading = budget.reading(committed=budget.nothing, held=budget.nothing)
    assert (reading.spent, reading.held, reading.available) == (0.0, 0.0, 1.25)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("event", [NonPrivate(), PoissonSampled(sampling_probability=0.5, event=NonPrivate())])
def test_no_budget_admits_what_has_no_bound(preset: Preset, event: Event) -> None:
    budget = Filter.of(epsilon=1000.0, delta=0.5, preset=preset)
    cost = price(budget, event)
    assert not budget.admits(cost)
    assert budget.meter(cost) == math.inf
    assert str(budget.explain(cost)) == "no order has a finite cost"
    # Saturated stays saturated whatever is added.
    assert not budget.admits(cost + price(budget, PureDP(epsilon=0.1)) * 10**12)


def test_a_voided_hold_never_makes_an_admitted_life_inadmissible() -> None:
    budget = Filter.of(epsilon=3.0, delta=1e-5)
    parts = [price(budget, Gaussian(noise_multiplier=5.0)), price(budget, PureDP(epsilon=0.7))]
    assert budget.admits(parts[0] + parts[1])
    assert all(budget.admits(part) for part in parts)


def test_a_sealed_release_is_rounded_once() -> None:
    # Three releases of ε = 1/3 are one unit over when rounded apart; a plan sealed as one release is exact.
    budget = Filter.of(epsilon=1.0, delta=1e-5)
    third = 1 / 3
    apart = price(budget, PureDP(epsilon=third)) * 3
    sealed = price(budget, Repeated(times=3, event=PureDP(epsilon=third)))
    assert apart.rho[-1] == 1_000_000_000_002
    assert sealed.rho[-1] == 1_000_000_000_000
    assert budget.admits(sealed)


def test_label_release_takes_its_exact_delta() -> None:
    budget = Filter.of(epsilon=1.0, delta=1e-5)
    cost = price(budget, PartitionSelection(epsilon=1.0, delta=1e-5))
    assert 7.718e-6 < cost.delta / 10**30 < 7.719e-6
    assert budget.price(PartitionSelection(epsilon=1.0, delta=1e-5), "replace_one").delta == 2 * cost.delta


@given(budgets, st.lists(st.floats(0, 1e3), min_size=15, max_size=15), st.floats(0, 0.5))
def test_a_known_curve_is_rounded_up(budget: Filter, rho: list[float], delta: float) -> None:
    cost = budget.cost(rho=rho[: len(budget.limits.rho)], delta=delta)
    assert all(units >= Fraction(value) * 10**12 for units, value in zip(cost.rho, rho, strict=False))
    assert cost.delta >= Fraction(repr(delta)) * 10**30


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"epsilon": 1e9}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"delta": -1e-9}, "delta"),
        ({"delta": math.nan}, "delta"),
        ({"delta": 5e-324}, "delta"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 0.0, "preset": "gaussian"}, "delta"),
        ({"preset": "best"}, "preset"),
        ({"delta_parts": 1e-4}, "delta_parts"),
        ({"delta_parts": 1e-5}, "delta_parts"),
        ({"delta_parts": -1e-6}, "delta_parts"),
    ],
)
def test_a_wrong_budget_names_the_argument(arguments: dict[str, object], argument: str) -> None:
    with pytest.raises(InvalidInput) as error:
        Filter.of(**{"epsilon": 1.0, "delta": 1e-5, **arguments})  # type: ignore[arg-type]
    assert error.value.argument == argument


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"orders": (2.0, 2.0)}, "orders"),
        ({"orders": (3.0, 2.0)}, "orders"),
        ({"orders": (1.0, 2.0)}, "orders"),
        ({"orders": (1.000001, 2.0)}, "orders"),
        ({"orders": (2.0, 5000.0)}, "orders"),
        ({"weights": (Fraction(1, 2), Fraction(2, 3))}, "weights"),
        ({"weights": (Fraction(1, 2), Fraction(0))}, "weights"),
        ({"weights": (Fraction(1, 2),)}, "weights"),
        ({"delta_filter": Fraction(1, 2)}, "delta_filter"),
        ({"delta_filter": Fraction(0)}, "delta"),
        ({"delta_parts": Fraction(-1)}, "delta_filter"),
    ],
)
def test_a_stored_filter_that_proves_nothing_is_refused(changes: dict[str, object], argument: str) -> None:
    valid = Filter(
        epsilon=1.0,
        delta=1e-5,
        orders=(2.0, 32.0),
        weights=(Fraction(1, 2), Fraction(1, 2)),
        delta_filter=Fraction(1, 200_000),
        delta_parts=Fraction(1, 200_000),
    )
    with pytest.raises(InvalidInput) as error:
        replace(valid, **changes)  # type: ignore[arg-type]
    assert error.value.argument == argument


def test_a_curve_of_the_wrong_length_or_below_zero_is_refused() -> None:
    budget = Filter.of(epsilon=1.0, delta=1e-5)
    for rho in ([0.1], [-0.1] * 15, [math.nan] * 15):
        with pytest.raises(InvalidInput) as error:
            budget.cost(rho=rho)
        assert error.value.argument == "rho"


def test_a_pure_budget_needs_no_delta() -> None:
    budget = Filter.of(epsilon=1.0, delta=0.0, preset="pure")
    assert budget.admits(price(budget, PureDP(epsilon=1.0)))
    assert not budget.admits(price(budget, ApproxDP(epsilon=0.1, delta=1e-30)))
    assert not budget.admits(price(budget, Gaussian(noise_multiplier=1e6)))


def test_an_explanation_says_which_order_binds_and_by_how_much() -> None:
    budget = Filter.of(epsilon=1.0, delta=1e-5)
    over = budget.explain(price(budget, PureDP(epsilon=1.25)))
    assert (over.order, over.over) == (math.inf, 0.25)
    assert str(over) == "even order ∞ (the sum of pure ε), which comes closest, is over by 0.25 nats"
    gaussian = budget.explain(price(budget, Gaussian(noise_multiplier=1.0)))
    assert gaussian.order in ORDERS
    # What is lacking is what the meter reads above the budget.
    assert gaussian.over == pytest.approx(budget.meter(price(budget, Gaussian(noise_multiplier=1.0))) - 1.0)
    parts = budget.explain(price(budget, ApproxDP(epsilon=0.1, delta=6e-6)))
    assert str(parts) == "the approximate parts are over their share of δ by 1e-06"
    fine = budget.explain(price(budget, PureDP(epsilon=0.25)))
    assert str(fine) == "order ∞ (the sum of pure ε) has 0.75 nats to spare"


# The short ways are the long ways


amounts = st.one_of(st.integers(0, 2 * 10**13), st.sampled_from([0, SATURATED - 1, SATURATED]))
costs = st.builds(
    lambda rho, delta: Cost(rho=tuple(rho), delta=delta),
    st.lists(amounts, min_size=len(ORDERS) + 1, max_size=len(ORDERS) + 1),
    st.one_of(st.integers(0, 10**24), st.just(SATURATED)),
)
MIXED = Filter.of(epsilon=8.0, delta=1e-6)


@given(st.lists(costs, min_size=1, max_size=6))
def test_sums_saturate_in_any_grouping(parts: list[Cost]) -> None:
    by_hand = Cost(
        rho=tuple(min(sum(column), SATURATED) for column in zip(*(part.rho for part in parts), strict=True)),
        delta=min(sum(part.delta for part in parts), SATURATED),
    )
    assert Cost.sum(parts) == sum(parts, MIXED.nothing) == by_hand


@given(st.lists(costs, max_size=6), costs)
def test_who_is_admitted_is_who_the_sum_admits(totals: list[Cost], cost: Cost) -> None:
    assert MIXED.admitted(totals, cost) == [total for total in totals if MIXED.admits(total + cost)]


@given(costs)
def test_a_reading_is_the_least_excess(total: Cost) -> None:
    excess = min(
        SATURATED if used == SATURATED else used - limit
        for used, limit in zip(total.rho, MIXED.limits.rho, strict=True)
    )
    expected = min(max(0, MIXED.limits.rho[-1] + excess), SATURATED) if total.delta <= MIXED.limits.delta else SATURATED
    assert MIXED._meter_units(total) == (0 if total == MIXED.nothing else expected)


def test_costs_of_different_orders_do_not_meet() -> None:
    one, other = MIXED.nothing, Filter.of(epsilon=1.0, delta=0.0, preset="pure").nothing
    for meet in (lambda: one + other, lambda: Cost.sum([one, other]), lambda: MIXED.admits(other)):
        with pytest.raises(ValueError, match="orders"):
            meet()


@given(budgets, st.lists(events, max_size=4), st.integers(1, 5))
def test_the_largest_pure_release_is_found_by_halving_too(budget: Filter, life: list[Event], releases: int) -> None:
    total = sum((price(budget, event) for event in life), budget.nothing)

    def fits(units: int) -> bool:
        return budget.admits_pure(total, units, releases=releases)

    low, high = 0, budget.limits.rho[-1] + 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    assert budget.largest_pure(total, releases=releases) == low


def test_nothing_held_reads_as_nothing_beside_an_infinite_spent() -> None:
    budget = Filter.of(epsilon=1.0, delta=1e-8)
    lost = budget.cost(rho=[0.1] * (len(budget.orders) + 1), delta=1e-7)  # more of δ than there ever is
    assert budget.reading(committed=lost, held=budget.nothing) == Reading(
        spent=math.inf, held=0.0, available=0.0, budget=1.0
    )
    assert budget.reading(committed=lost, held=lost).held == math.inf
