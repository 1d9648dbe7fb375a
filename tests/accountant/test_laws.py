"""Laws that every kind obeys in every engine, in `account` and in the prices of every filter.

A kind that is added to `KINDS` must say here how it is made weaker, and an engine that is added to `ENGINES` is tested
at once. Prices are integers, so laws of equality hold for them exactly; intervals of ε come out of root searches and
may differ by `TOLERANCE`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accountant.engines import ENGINES, VERSIONS, account
from accountant.engines.closed_form import Interval
from accountant.events import (
    KINDS,
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
)
from accountant.filters import Filter, Preset
from tests.accountant.strategies import ADJACENCIES, adjacencies, deltas, events_of, fewer, trees

TOLERANCE: Final = 1e-9  # of ε, relative and absolute: three-point losses are solved to a relative 1e-9 of δ
MESH_TOLERANCE: Final = 5e-3  # where two different events are compared: each is put on a grid of its own
MESHED: Final = {"prv", "account"}

FILTERS: Final = {
    preset: Filter.of(epsilon=3.0, delta=1e-5, preset=preset)
    for preset in get_args(Preset)  # prices depend on the orders, which differ
}

every_kind = pytest.mark.parametrize("kind", KINDS)
every_adjacency = pytest.mark.parametrize("adjacency", ADJACENCIES)


def bounds(event: Event, delta: float, adjacency: Adjacency) -> dict[str, Interval]:
    """What each engine says, and what all say together."""
    answers = {name: engine(event, delta, adjacency) for name, engine in ENGINES.items()}
    best = account(event, delta=delta, adjacency=adjacency)
    return {**answers, "account": Interval(best.lower, best.upper)}


def prices(event: Event, adjacency: Adjacency) -> dict[str, tuple[int, ...]]:
    """The integers that each filter charges: ρ per order, then δ."""
    costs = {preset: budget.price(event, adjacency) for preset, budget in FILTERS.items()}
    return {preset: (*cost.rho, cost.delta) for preset, cost in costs.items()}


def assert_same(left: Event, right: Event, delta: float, adjacency: Adjacency) -> None:
    assert prices(left, adjacency) == prices(right, adjacency)
    others = bounds(right, delta, adjacency)
    for name, interval in bounds(left, delta, adjacency).items():
        assert interval[:2] == pytest.approx(others[name][:2], rel=TOLERANCE, abs=TOLERANCE), name


def assert_at_most(
    less: Event, more: Event, delta: float, adjacency: Adjacency, *, units: int = 0, other: Adjacency | None = None
) -> None:
    """`less` costs at most what `more` costs (under the `other` adjacency, if given).

    `units` is for prices that are computed from different parameters, each with its own floating-point error: then
    they may be out of order by that many units and a relative 1e-9.
    """
    limits = prices(more, other or adjacency)
    for preset, price in prices(less, adjacency).items():
        for mine, limit in zip(price, limits[preset], strict=True):
            assert mine <= limit + units * (1 + limit // 10**9), (preset, less, more)
    others = bounds(more, delta, other or adjacency)
    for name, interval in bounds(less, delta, adjacency).items():
        assert interval.upper <= slightly_above(others[name].upper, name), (name, less, more)


def slightly_above(epsilon: float, engine: str) -> float:
    tolerance = MESH_TOLERANCE if engine in MESHED else TOLERANCE
    return epsilon * (1 + tolerance) + tolerance


# ---------------------------------------------------------------- how each kind is made weaker

Weaker = Callable[[Any, float], Iterator[Event]]


def _weaker_approx_dp(event: ApproxDP, factor: float) -> Iterator[Event]:
    yield ApproxDP(epsilon=event.epsilon * factor, delta=event.delta)
    yield ApproxDP(epsilon=event.epsilon, delta=event.delta * factor)


def _weaker_partition_selection(event: PartitionSelection, factor: float) -> Iterator[Event]:
    # Only δ: the threshold is a whole number, so with a smaller ε the mechanism's own δ may come closer to `delta`.
    yield PartitionSelection(epsilon=event.epsilon, delta=event.delta * factor)


def _weaker_poisson_sampled(event: PoissonSampled, factor: float) -> Iterator[Event]:
    yield PoissonSampled(sampling_probability=event.sampling_probability * factor, event=event.event)
    for inner in weaker(event.event, factor):
        yield PoissonSampled(sampling_probability=event.sampling_probability, event=inner)


def _weaker_repeated(event: Repeated, factor: float) -> Iterator[Event]:
    yield Repeated(times=math.ceil(event.times * factor), event=event.event)
    for inner in weaker(event.event, factor):
        yield Repeated(times=event.times, event=inner)


def _weaker_composed(event: Composed, factor: float) -> Iterator[Event]:
    for place in range(len(event.events)):
        yield Composed(events=event.events[:place] + event.events[place + 1 :])
    yield Composed(events=tuple(next(weaker(part, factor), part) for part in event.events))


#: kind → ways to make an event of that kind cost no more: the smaller the factor in (0, 1), the weaker.
WEAKER: Final[Mapping[str, Weaker]] = {
    "gaussian": lambda event, factor: iter([Gaussian(noise_multiplier=event.noise_multiplier / factor)]),
    "laplace": lambda event, factor: iter([Laplace(scale=event.scale / factor)]),
    "l2_laplace": lambda event, factor: iter([L2Laplace(scale=event.scale / factor)]),
    "pure_dp": lambda event, factor: iter([PureDP(epsilon=event.epsilon * factor)]),
    "approx_dp": _weaker_approx_dp,
    "zcdp": lambda event, factor: iter([ZCDP(rho=event.rho * factor)]),
    "partition_selection": _weaker_partition_selection,
    "non_private": lambda _, factor: iter([Gaussian(noise_multiplier=factor), PureDP(epsilon=1 / factor)]),
    "poisson_sampled": _weaker_poisson_sampled,
    "repeated": _weaker_repeated,
    "composed": _weaker_composed,
}
_NAMES: Final = {kind: name for name, kind in KINDS.items()}


def weaker(event: Event, factor: float) -> Iterator[Event]:
    return WEAKER[_NAMES[type(event)]](event, factor)


factors = st.sampled_from((0.99, 0.5))

#: Events that say nothing about anybody.
FREE: Final[list[Event]] = [
    PureDP(epsilon=0),
    ApproxDP(epsilon=0, delta=0),
    ZCDP(rho=0),
    PoissonSampled(sampling_probability=0, event=Gaussian(noise_multiplier=0.1)),
    PoissonSampled(sampling_probability=0, event=NonPrivate()),
    Repeated(times=1000, event=PureDP(epsilon=0)),
    Composed(events=()),
    Composed(events=(PureDP(epsilon=0), Composed(events=(ZCDP(rho=0),)))),
]
FREE_IN_DISGUISE: Final[list[Event]] = [
    *FREE,
    PoissonSampled(sampling_probability=0.5, event=Composed(events=())),
    PoissonSampled(sampling_probability=0.5, event=PoissonSampled(sampling_probability=0, event=NonPrivate())),
]


# ---------------------------------------------------------------- nothing is left out


def test_every_kind_says_how_it_is_made_weaker() -> None:
    assert set(WEAKER) == set(KINDS)


def test_every_engine_has_a_version() -> None:
    assert set(VERSIONS) == set(ENGINES)


# ---------------------------------------------------------------- equalities


@every_adjacency
@every_kind
@fewer
@given(st.data(), st.integers(1, 12), deltas)
def test_repeating_is_composing_copies(
    kind: str, adjacency: Adjacency, data: st.DataObject, times: int, delta: float
) -> None:
    event = data.draw(events_of(kind))
    repeated, copies = Repeated(times=times, event=event), Composed(events=(event,) * times)
    assert_same(repeated, copies, delta, adjacency)


@every_adjacency
@every_kind
@fewer
@given(st.data(), deltas)
def test_the_order_of_a_composition_does_not_matter(
    kind: str, adjacency: Adjacency, data: st.DataObject, delta: float
) -> None:
    events = [data.draw(events_of(kind)), *data.draw(st.lists(trees(max_leaves=2), min_size=1, max_size=3))]
    shuffled = data.draw(st.permutations(events))
    assert_same(Composed(events=tuple(events)), Composed(events=tuple(shuffled)), delta, adjacency)


@every_adjacency
@every_kind
@fewer
@given(st.data(), st.integers(1, 5), deltas)
def test_nesting_does_not_matter(
    kind: str, adjacency: Adjacency, data: st.DataObject, times: int, delta: float
) -> None:
    first, second, third = (data.draw(part) for part in (events_of(kind), trees(max_leaves=2), trees(max_leaves=2)))
    flat = Composed(events=(first, second, third))
    assert_same(Composed(events=(first, Composed(events=(second, third)))), flat, delta, adjacency)
    assert_same(Composed(events=(Composed(events=(first, second)), Composed(events=(third,)))), flat, delta, adjacency)
    together = Repeated(times=times, event=Composed(events=(first, second)))
    apart = Composed(events=(Repeated(times=times, event=first), Repeated(times=times, event=second)))
    assert_same(together, apart, delta, adjacency)


@every_adjacency
@every_kind
@fewer
@given(st.data(), st.sampled_from(FREE), deltas)
def test_a_free_event_changes_nothing(
    kind: str, adjacency: Adjacency, data: st.DataObject, free: Event, delta: float
) -> None:
    event = data.draw(events_of(kind))
    assert_same(Composed(events=(event, free)), event, delta, adjacency)


@every_adjacency
@pytest.mark.parametrize("free", FREE_IN_DISGUISE, ids=repr)
def test_a_free_event_costs_nothing(free: Event, adjacency: Adjacency) -> None:
    assert {bound.upper for bound in bounds(free, 1e-6, adjacency).values()} == {0.0}
    assert {unit for price in prices(free, adjacency).values() for unit in price} == {0}


@every_adjacency
@pytest.mark.parametrize("free", FREE_IN_DISGUISE, ids=repr)
def test_a_free_event_inside_a_sample_changes_nothing(free: Event, adjacency: Adjacency) -> None:
    step = Gaussian(noise_multiplier=1.0)
    alone = PoissonSampled(sampling_probability=0.01, event=step)
    accompanied = PoissonSampled(sampling_probability=0.01, event=Composed(events=(step, free)))
    assert_same(accompanied, alone, 1e-6, adjacency)


# ---------------------------------------------------------------- inequalities


@every_adjacency
@every_kind
@fewer
@given(st.data(), factors, deltas)
def test_a_weaker_event_never_costs_more(
    kind: str, adjacency: Adjacency, data: st.DataObject, factor: float, delta: float
) -> None:
    event = data.draw(events_of(kind))
    for less in weaker(event, factor):
        assert_at_most(less, event, delta, adjacency, units=1)


@every_adjacency
@every_kind
@fewer
@given(st.data(), trees(max_leaves=2), deltas)
def test_composing_never_costs_less(
    kind: str, adjacency: Adjacency, data: st.DataObject, more: Event, delta: float
) -> None:
    event = data.draw(events_of(kind))
    assert_at_most(event, Composed(events=(event, more)), delta, adjacency)
    assert_at_most(more, Composed(events=(event, more)), delta, adjacency)


@every_adjacency
@every_kind
@fewer
@given(st.data(), deltas)
def test_no_engine_contradicts_another(kind: str, adjacency: Adjacency, data: st.DataObject, delta: float) -> None:
    event = data.draw(events_of(kind))
    answers = bounds(event, delta, adjacency)
    for name, interval in answers.items():
        assert 0.0 <= interval.lower <= interval.upper, name  # false for NaN too
        for other, its in answers.items():
            assert its.lower <= interval.upper, (other, "is above", name)
    best = account(event, delta=delta, adjacency=adjacency)
    # an engine is not asked where another has closed the interval to 1e-9
    assert best.upper == pytest.approx(min(answers[name].upper for name in ENGINES), rel=TOLERANCE)
    assert best.lower == pytest.approx(max(answers[name].lower for name in ENGINES), rel=TOLERANCE)
    assert answers[best.engine].upper == best.upper
    assert (best.version, best.delta, best.adjacency) == (VERSIONS[best.engine], delta, adjacency)


@every_adjacency
@every_kind
@fewer
@given(st.data(), deltas, deltas)
def test_a_larger_delta_never_needs_a_larger_epsilon(
    kind: str, adjacency: Adjacency, data: st.DataObject, first: float, second: float
) -> None:
    event = data.draw(events_of(kind))
    strict, lax = bounds(event, min(first, second), adjacency), bounds(event, max(first, second), adjacency)
    for name, interval in lax.items():
        assert interval.upper <= slightly_above(strict[name].upper, name), name
        # a lower bound may be loose, and then it need not fall
        limit = strict[name].upper if name in MESHED else strict[name].lower
        assert interval.lower <= slightly_above(limit, name), name


relative_to_the_norm_bound = st.one_of(
    *(events_of(kind) for kind in ("gaussian", "laplace", "l2_laplace", "partition_selection")),
    st.builds(
        PoissonSampled,
        sampling_probability=st.sampled_from((1e-6, 0.01, 0.3, 1.0)),
        event=events_of("laplace")
        | events_of("l2_laplace")
        | st.builds(Gaussian, noise_multiplier=st.sampled_from((0.5, 1.0, 8.0))),
    ),
)


@given(relative_to_the_norm_bound, st.integers(1, 100), deltas)
def test_replacing_a_record_never_costs_less_than_adding_one(step: Event, times: int, delta: float) -> None:
    event = Repeated(times=times, event=step)
    assert_at_most(event, event, delta, "add_remove", units=1, other="replace_one")


@given(adjacencies, st.sampled_from((PureDP(epsilon=0.7), ApproxDP(epsilon=0.7, delta=1e-9), ZCDP(rho=0.2))), deltas)
def test_what_is_stated_under_the_populations_adjacency_costs_the_same_under_both(
    adjacency: Adjacency, event: Event, delta: float
) -> None:
    assert bounds(event, delta, adjacency) == bounds(event, delta, "add_remove")
    assert prices(event, adjacency) == prices(event, "add_remove")


# ---------------------------------------------------------------- corners of the same laws that are seldom drawn


@every_adjacency
@pytest.mark.parametrize("sampling_probability", [0.5, 0.99, math.nextafter(1.0, 0.0)])
@pytest.mark.parametrize(
    "event",
    [
        Gaussian(noise_multiplier=1.0),
        Repeated(times=100, event=PureDP(epsilon=0.1)),
        Repeated(times=100, event=ApproxDP(epsilon=0.1, delta=1e-9)),
        Repeated(times=20, event=PartitionSelection(epsilon=0.2, delta=1e-8)),
        Composed(events=(Laplace(scale=1.0), ApproxDP(epsilon=0.3, delta=1e-8))),
        Composed(events=(Gaussian(noise_multiplier=1.0), Laplace(scale=1.0))),
    ],
    ids=repr,
)
def test_a_sample_never_costs_more_than_everything(
    event: Event, sampling_probability: float, adjacency: Adjacency
) -> None:
    sampled = PoissonSampled(sampling_probability=sampling_probability, event=event)
    assert_at_most(sampled, event, 1e-5, adjacency, units=1)


@every_adjacency
@pytest.mark.parametrize("sampling_probability", [0.01, 0.5])
def test_more_noise_on_a_sample_never_costs_more_at_any_scale(
    sampling_probability: float, adjacency: Adjacency
) -> None:
    scales = [0.9 * 10**exponent for exponent in range(-9, 13)]
    for smaller, larger in pairwise(scales):
        more, less = (
            PoissonSampled(sampling_probability=sampling_probability, event=Gaussian(noise_multiplier=noise))
            for noise in (smaller, larger)
        )
        # Repeated, so that the units in which a price is rounded do not hide a difference.
        assert_at_most(Repeated(times=10**12, event=less), Repeated(times=10**12, event=more), 1e-5, adjacency, units=1)


@every_adjacency
@pytest.mark.parametrize(
    "part",
    [
        PureDP(epsilon=0.1),
        ApproxDP(epsilon=0.1, delta=1e-9),
        PartitionSelection(epsilon=0.1, delta=1e-9),
        Laplace(scale=10.0),
        L2Laplace(scale=10.0),
        ZCDP(rho=0.005),
        Gaussian(noise_multiplier=10.0),
        PoissonSampled(sampling_probability=0.1, event=Gaussian(noise_multiplier=1.0)),
    ],
    ids=repr,
)
def test_weakening_one_part_of_many_never_costs_more(part: Event, adjacency: Adjacency) -> None:
    many = Composed(events=(Repeated(times=100, event=part), part))
    for less in weaker(part, 0.99):
        one_weaker = Composed(events=(Repeated(times=100, event=part), less))
        best = account(one_weaker, delta=1e-5, adjacency=adjacency).upper
        assert best <= account(many, delta=1e-5, adjacency=adjacency).upper * (1 + TOLERANCE)
