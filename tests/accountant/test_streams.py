"""Tasks and windows: who is touched how often, what a life costs, and the published figures that follow from it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

import accountant.streams
from accountant import InvalidInput, account
from accountant.errors import Unattainable
from accountant.events import Adjacency, Composed, Event, Gaussian, L2Laplace, PureDP
from accountant.filters import Filter
from accountant.ledger import Charge, Committed, Registered, Rules, apply, propose, replay
from accountant.streams import readings
from accountant.streams.allocations import (
    Allocation,
    Geometric,
    Prices,
    gaussian_noise,
    limit_of,
    pure_noise,
    record_contribution,
)
from accountant.streams.outlooks import schedule_outlook, tasks_outlook
from accountant.streams.schedules import (
    ContinualRelease,
    Model,
    MultiResolution,
    Schedule,
    SlidingWindow,
    Step,
    lives,
    sliding_window_schedule,
)
from accountant.streams.tasks import Task, compose_taskwise
from tests.accountant.strategies import adjacencies, between

# Schedules to draw from; sizes are small enough to simulate.
panes = st.integers(1, 7)
sliding_windows = st.builds(SlidingWindow, k=st.integers(1, 6), w0=panes, startup=st.sampled_from(("full", "partial")))
multi_resolutions = st.builds(MultiResolution, pane=panes, levels=st.none() | st.integers(1, 7))
continual_releases = st.builds(
    lambda pane, doublings: ContinualRelease(pane=pane, base=pane << doublings), panes, st.integers(0, 4)
)
schedules: st.SearchStrategy[Schedule] = sliding_windows | multi_resolutions | continual_releases


def chains(k: int, count: int) -> list[str]:
    return [str(step) for step in sliding_window_schedule(k=k, w0=1, steps=count)]


# The sliding window


def test_example_1_of_the_paper() -> None:
    """w = 7 panes, from the first whole window (t = 6) to the refresh (t = 10)."""
    assert chains(3, 5) == [
        "f[0:1) <- f[1:3) <- f[3:7)",
        "f[7:8) <- f[1:3) <- f[3:7)",
        "f[2:3) <- f[7:9) <- f[3:7)",
        "f[9:10) <- f[7:9) <- f[3:7)",
        "f[4:5) <- f[5:7) <- f[7:11)",
    ]
    steps = list(sliding_window_schedule(k=3, w0=1, steps=5))
    assert [[str(block) for block in step.trained] for step in steps] == [
        ["f[3:7)", "f[1:3)", "f[0:1)"],
        ["f[7:8)"],
        ["f[7:9)", "f[2:3)"],
        ["f[9:10)"],
        ["f[7:11)", "f[5:7)", "f[4:5)"],
    ]


def test_the_window_of_15_panes() -> None:
    """As described for w = 15, up to the refresh."""
    found = chains(4, 9)
    assert found[1:5] == [
        "f[15:16) <- f[1:3) <- f[3:7) <- f[7:15)",
        "f[2:3) <- f[15:17) <- f[3:7) <- f[7:15)",
        "f[17:18) <- f[15:17) <- f[3:7) <- f[7:15)",
        "f[4:5) <- f[5:7) <- f[15:19) <- f[7:15)",
    ]
    assert found[8] == "f[8:9) <- f[9:11) <- f[11:15) <- f[15:23)"


def test_the_entry_point_is_lazy_and_bounded() -> None:
    assert accountant.streams.sliding_window_schedule is sliding_window_schedule
    steps = sliding_window_schedule(k=20, w0=10**9)
    assert next(steps).stop == (2**20 - 1) * 10**9
    assert sum(1 for _ in sliding_window_schedule(k=1, w0=1)) == 100_000


@given(sliding_windows, st.integers(0, 10**6))
def test_the_window_is_always_exactly_the_last_panes(schedule: SlidingWindow, number: int) -> None:
    step = schedule.step(number)
    assert step.stop == (number + 1 + (schedule.panes - 1 if schedule.startup == "full" else 0)) * schedule.w0
    assert step.start == max(0, step.stop - schedule.panes * schedule.w0)
    covered = sorted((block.start, block.stop) for block in step.chain)
    assert covered[0][0] == step.start
    assert covered[-1][1] == step.stop
    assert all(first[1] == second[0] for first, second in pairwise(covered))
    levels = [block.level for block in step.chain]
    assert levels == sorted(set(levels))
    assert all(block.slots == schedule.size(block.model) for block in step.chain)
    if step.stop >= schedule.panes * schedule.w0:
        assert levels == list(range(schedule.k))
        assert all(block.slots == block.stop - block.start for block in step.chain)


@given(sliding_windows, st.integers(1, 200))
def test_what_is_not_trained_is_reused(schedule: SlidingWindow, number: int) -> None:
    """A chain holds the blocks just trained and, above them, those of the step before; nothing is trained twice."""
    before, now = schedule.step(number - 1), schedule.step(number)
    trained = set(now.trained)
    assert trained <= set(now.chain)
    assert set(now.chain) - trained <= set(before.chain)
    assert [block.level for block in now.trained] == sorted((block.level for block in trained), reverse=True)
    assert not trained & set(before.chain)


@pytest.mark.parametrize("k", range(1, 11))
def test_a_datapoint_enters_each_level_exactly_once(k: int) -> None:
    """Every datapoint that comes and goes; those of the first window have a part of the levels."""
    schedule = SlidingWindow(k=k, w0=1)
    steps = 3 * 2**k
    found = lives(schedule.steps(steps))
    gone = schedule.step(steps - 1).start
    everything = dict.fromkeys(schedule.models, 1)
    for life in found:
        if schedule.panes <= life.start < gone:
            assert life.models == everything
        if life.start < schedule.panes:  # bit i of the place in the first window says whether level i is entered
            levels = {model.level for model in life.models}
            assert levels == {level for level in range(k) if life.start + 1 >> level & 1}
    assert sum(life.stop - life.start for life in found if life.start < gone) >= gone - 1
    partial = lives(SlidingWindow(k=k, w0=1, startup="partial").steps(steps))
    assert partial[0].start == 0
    assert partial[0].models == everything
    assert partial[0].stop >= steps - schedule.panes


@given(schedules, st.integers(1, 150))
def test_simulated_lives_equal_the_closed_form(schedule: Schedule, steps: int) -> None:
    for life in lives(schedule.steps(steps)):
        for ordinal in {life.start, (life.start + life.stop) // 2, life.stop - 1}:
            assert schedule.life(ordinal, steps=steps) == Counter(life.models)


@pytest.mark.parametrize(
    "schedule",
    [
        *(SlidingWindow(k=k, w0=1) for k in range(2, 11)),
        *(MultiResolution(pane=1, levels=levels) for levels in range(2, 11)),
        *(ContinualRelease(pane=1, base=2**doublings) for doublings in range(8)),
    ],
    ids=str,
)
def test_closed_forms_for_every_datapoint_of_a_long_stream(schedule: Schedule) -> None:
    steps = 2_100
    simulated = {at: life.models for life in lives(schedule.steps(steps)) for at in range(life.start, life.stop)}
    last = schedule.step(steps - 1).stop
    assert all(schedule.life(at, steps=steps) == Counter(simulated.get(at, {})) for at in range(last + 3))


@given(schedules, st.integers(0, 300))
def test_blocks_hold_what_has_arrived_and_have_their_models_size(schedule: Schedule, number: int) -> None:
    step = schedule.step(number)
    assert step.number == number
    assert step.trained
    assert all(0 <= block.start < block.stop <= step.stop for block in step.trained)
    assert all(block.slots == schedule.size(block.model) for block in step.trained)
    assert next(islice(schedule.steps(number + 1), number, None)) == step


def test_multi_resolution_releases_a_model_of_every_level_that_ends_now() -> None:
    step = MultiResolution(pane=10).step(11)
    assert str(step) == "f[110:120), f[100:120), f[80:120)"
    assert step.chain == ()
    assert str(MultiResolution(pane=10, levels=1).step(11)) == "f[110:120)"


def test_continual_release_by_hand() -> None:
    """B = 4 b0: a base at 4, updates on 1 and 2 panes, one pane against the second, then a base at 8."""
    assert [str(step) for step in ContinualRelease(pane=1, base=4).steps(6)] == [
        "f[0:4)",
        "f[4:5) <- f[0:4)",
        "f[4:6) <- f[0:4)",
        "f[6:7) <- f[4:6) <- f[0:4)",
        "f[0:8)",
        "f[8:9) <- f[0:8)",
    ]


# What the published algorithms cost, in multiples of the ε that they claim


@pytest.mark.parametrize(
    ("reading", "formula", "figures"),
    [
        ("R1", lambda k: Fraction(k, 3), (1.000, 1.333, 2.000, 3.333)),
        ("R2", lambda k: Fraction(2, 3) * (1 - Fraction(1, 2**k)), (0.583, 0.625, 0.656, 0.666)),
        ("R3", lambda k: Fraction(4, 3) - Fraction(2, 2**k), (1.083, 1.208, 1.302, 1.331)),
        ("R4", lambda k: Fraction(1, 3) + Fraction(k - 1, 2), (1.333, 1.833, 2.833, 4.833)),
        ("R5", lambda k: 1 - Fraction(4, 3 * 2**k), (0.833, 0.917, 0.979, 0.999)),
    ],
)
def test_readings_of_the_sliding_window(
    reading: str, formula: Callable[[int], Fraction], figures: tuple[float, ...]
) -> None:
    read = readings.SLIDING_WINDOW[reading]
    for k in range(1, 11):
        schedule = SlidingWindow(k=k, w0=1024)
        _, simulated = readings.worst_off(schedule, read, steps=3 * 2**k)
        assert simulated == limit_of(schedule, read.prices) == formula(k)
    for k, figure in zip((3, 4, 6, 10), figures, strict=True):
        assert float(formula(k)) == pytest.approx(figure, abs=0.00067)  # the figures are cut or rounded to 3 digits


def test_where_the_sliding_windows_claim_fails() -> None:
    """Theorem 7 (ε for life) by reading, and again if λ‖w‖² is meant literally, which halves every price."""

    def first_failure(reading: str, modulus: int) -> int | None:
        read = readings.SLIDING_WINDOW[reading]
        everything = [dict.fromkeys(SlidingWindow(k=k, w0=1).models, 1) for k in range(1, 21)]
        totals = [read.total(life, modulus_over_lambda=modulus) for life in everything]
        return next((k for k, total in enumerate(totals, start=1) if total > 1), None)

    assert {name: first_failure(name, 1) for name in readings.SLIDING_WINDOW} == {
        "R1": 4, "R2": None, "R3": 3, "R4": 3, "R5": None,
    }  # fmt: skip
    assert {name: first_failure(name, 2) for name in readings.SLIDING_WINDOW} == {
        "R1": 7, "R2": None, "R3": None, "R4": 5, "R5": None,
    }  # fmt: skip


@pytest.mark.parametrize(("ratio", "figure"), [(8, 1.375), (4, 1.25), (64, 1.484), (1, 1.0), (2, 1.0)])
def test_continual_release_costs_more_than_it_claims(ratio: int, figure: float) -> None:
    """max(1, 3/2 − b0/B) times the claim in the limit, for the first pane after the first base."""
    schedule, read = ContinualRelease(pane=16, base=16 * ratio), readings.CONTINUAL_RELEASE["half_open"]
    limit = limit_of(schedule, read.prices)
    assert limit == max(Fraction(1), Fraction(3, 2) - Fraction(1, ratio))
    assert float(limit) == pytest.approx(figure, abs=5e-4)
    life, simulated = readings.worst_off(schedule, read, steps=ratio * 2**8)
    assert limit - Fraction(1, 2**7) <= simulated < limit
    if ratio > 2:
        assert (life.start, life.stop) == (schedule.base, schedule.base + schedule.pane)
        updates = [level for level in range(10) if 2**level < ratio]
        entered = {Model("update", level): 1 for level in updates} | {Model("base", n): 1 for n in range(1, 9)}
        assert life.models == entered


@pytest.mark.parametrize(
    ("reading", "ratio", "doublings", "figure"),
    [
        ("own_size", 8, 6, 4.0),
        ("own_size", 256, 3, 5.1),
        ("inclusive", 8, 6, 1.87),
        ("inclusive", 64, 4, 1.95),
    ],
)
def test_literal_readings_of_continual_release(reading: str, ratio: int, doublings: int, figure: float) -> None:
    schedule = ContinualRelease(pane=4, base=4 * ratio)
    read = readings.CONTINUAL_RELEASE[reading]
    life, total = readings.worst_off(schedule, read, steps=ratio * (2**doublings - 1) + 1)
    assert float(total) == pytest.approx(figure, abs=0.05 if figure > 2 else 0.005)
    if reading == "inclusive":  # the one datapoint that is in the base and in its updates
        assert (life.start, life.stop) == (schedule.base - 1, schedule.base)


def test_multi_resolution_keeps_its_claim() -> None:
    everything = dict.fromkeys(MultiResolution(pane=1, levels=13).models or (), 1)
    total = readings.MULTI_RESOLUTION.total(everything)
    assert round(float(total), 5) == 0.99988
    assert total == 1 - Fraction(1, 2**13)
    assert limit_of(MultiResolution(pane=1), readings.MULTI_RESOLUTION.prices) == 1


def test_personalised_models_cost_half_of_their_claim() -> None:
    assert readings.personalised_price(pane=1024, slots=1024) == Fraction(1, 2)
    assert readings.personalised_price(pane=1024, slots=8192) == Fraction(1, 16)


def test_worst_off_needs_a_step() -> None:
    with pytest.raises(InvalidInput, match="steps"):
        readings.worst_off(SlidingWindow(k=2, w0=1), readings.SLIDING_WINDOW["R1"], steps=0)


# Noise that makes a life cost exactly the budget

finite_schedules: st.SearchStrategy[Schedule] = sliding_windows | st.builds(
    MultiResolution, pane=panes, levels=st.integers(1, 8)
)
budgets = st.integers(10**8, 10**13).map(lambda units: units / 10**12)  # multiples of the ledger's unit


def parameter(event: Event) -> Fraction:
    match event:
        case L2Laplace():
            return Fraction(repr(event.scale))
        case Gaussian():
            return Fraction(repr(event.noise_multiplier))
        case _:
            raise AssertionError(event)


@given(finite_schedules, budgets, adjacencies, st.sampled_from(("constant_noise", "equal_shares")), st.data())
def test_a_life_costs_exactly_the_budget(
    schedule: Schedule, budget: float, adjacency: Adjacency, rule: Any, data: st.DataObject
) -> None:
    assert schedule.models is not None
    count = len(schedule.models)
    weights = data.draw(st.none() | st.lists(between(0.01, 100), min_size=count, max_size=count))
    steps = 4 * 2**count
    shift = 1 if adjacency == "add_remove" else 2
    for allocation, power in (
        (pure_noise(schedule, epsilon=budget, adjacency=adjacency, rule=rule, weights=weights), 1),
        (gaussian_noise(schedule, mu=budget, adjacency=adjacency, rule=rule, weights=weights), 2),
    ):
        exact_budget = Fraction(repr(budget)) ** power
        paid = [
            sum((times * allocation.of(model) for model, times in life.models.items()), Fraction())
            for life in lives(schedule.steps(steps))
        ]
        assert max(paid) == allocation.budget == exact_budget
        # The events' own parameters, read as they print, cost no more than that, and less only by rounding.
        charged = sum((shift / parameter(allocation.event(model))) ** power for model in schedule.models)
        assert exact_budget * (1 - Fraction(1, 10**12)) <= charged <= exact_budget


@given(finite_schedules, between(0.01, 10), adjacencies)
def test_constant_noise_is_constant(schedule: Schedule, budget: float, adjacency: Adjacency) -> None:
    assert schedule.models is not None
    for allocate in (pure_noise, gaussian_noise):
        allocation: Allocation = (
            pure_noise(schedule, epsilon=budget, adjacency=adjacency)
            if allocate is pure_noise
            else gaussian_noise(schedule, mu=budget, adjacency=adjacency)
        )
        absolute = [float(parameter(allocation.event(model))) / schedule.size(model) for model in schedule.models]
        assert min(absolute) == pytest.approx(max(absolute), rel=1e-6)  # whole units of 1e-12 at the widest level


@pytest.mark.parametrize("k", [1, 3, 4, 10])
def test_scales_in_the_terms_of_the_paper(k: int) -> None:
    """With L, modulus m: 4L(1 − 2^−k)/(m w0 ε), and Δ0 √(4/3 (1 − 4^−k))/μ, under replace-one."""
    schedule, lipschitz, modulus, budget = SlidingWindow(k=k, w0=1024), 1.7, 0.3, 0.8
    pure = pure_noise(schedule, epsilon=budget, adjacency="replace_one")
    gaussian = gaussian_noise(schedule, mu=budget, adjacency="replace_one")
    half = pure_noise(schedule, epsilon=budget, adjacency="add_remove")
    sensitivity = 2 * lipschitz / (modulus * 1024)
    for model in schedule.models:
        contribution = record_contribution(lipschitz=lipschitz, modulus=modulus, slots=schedule.size(model))
        scale = float(parameter(pure.event(model))) * contribution
        assert scale == pytest.approx(4 * lipschitz * (1 - 2**-k) / (modulus * 1024 * budget), rel=1e-8)
        sigma = float(parameter(gaussian.event(model))) * contribution
        assert sigma == pytest.approx(sensitivity * math.sqrt(4 / 3 * (1 - 4**-k)) / budget, rel=1e-8)
        assert float(parameter(half.event(model))) * contribution == pytest.approx(scale / 2, rel=1e-8)
    assert math.sqrt(4 / 3) == pytest.approx(1.155, abs=5e-4)  # the price of a window against a single release


@given(sliding_windows, st.sampled_from((0.3, 1.0, 3.0)), adjacencies)
def test_a_life_of_gaussian_models_is_one_gaussian(schedule: SlidingWindow, mu: float, adjacency: Adjacency) -> None:
    allocation = gaussian_noise(schedule, mu=mu, adjacency=adjacency)
    life = account(Composed(events=tuple(map(allocation.event, schedule.models))), delta=1e-5, adjacency=adjacency)
    once = account(Gaussian(noise_multiplier=1 / mu), delta=1e-5)
    assert life.upper == pytest.approx(once.upper, rel=1e-6)


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
@pytest.mark.parametrize("epsilon", [1.0, 0.1, 0.7])
def test_the_ledger_admits_a_whole_life_and_not_one_release_more(adjacency: Adjacency, epsilon: float) -> None:
    """Levels are separate releases, and each is rounded up by itself; the shares leave room for that."""
    schedule = SlidingWindow(k=3, w0=2, startup="partial")
    allocation = pure_noise(schedule, epsilon=epsilon, adjacency=adjacency)
    rules = Rules(lifelong=Filter.of(epsilon=epsilon, delta=1e-6, preset="pure"), adjacency=adjacency)
    book = replay([Registered(count=40)])
    for step in schedule.steps(20):
        for block in step.trained:
            scope, name = BitMap(range(block.start, block.stop)), f"{step.number}/{block.level}"
            charge = Charge(scope=scope, event=allocation.event(block.model))
            decision = propose(book, rules, release=name, charges=[charge])
            assert decision.hold is not None, decision.reasons
            apply(book, decision.hold)
            apply(book, Committed(release=name))
    more = Charge(scope=BitMap([0]), event=PureDP(epsilon=1e-12))
    assert propose(book, rules, release="one more", charges=[more]).outcome == "denied"


@given(continual_releases, between(0.1, 10), adjacencies, st.none() | st.tuples(between(0.1, 10), between(0.1, 10)))
def test_continual_release_with_room_for_bases_and_updates(
    schedule: ContinualRelease, budget: float, adjacency: Adjacency, weights: tuple[float, float] | None
) -> None:
    """No life costs more than the budget; the worst-off of a long stream comes close to it."""
    steps = schedule.panes * 2**6
    simulated = lives(schedule.steps(steps))
    for allocation in (
        pure_noise(schedule, epsilon=budget, adjacency=adjacency, weights=weights),
        gaussian_noise(schedule, mu=budget, adjacency=adjacency, weights=weights),
    ):
        paid = max(
            sum((times * allocation.of(model) for model, times in life.models.items()), Fraction())
            for life in simulated
        )
        assert allocation.budget * Fraction(95, 100) <= paid <= allocation.budget


def test_continual_release_in_the_terms_of_the_paper() -> None:
    """Base 4L/(λ B ε) and updates 8L/(λ b0 ε) keep the claim: half the weight for updates, and nothing is rescaled."""
    schedule = ContinualRelease(pane=1024, base=8192)
    halved = pure_noise(schedule, epsilon=1.0, adjacency="replace_one", weights=(1, 0.5))
    assert halved.of(Model("base", 0)) == Fraction(1, 2)
    assert halved.of(Model("update", 0)) == Fraction(1, 4)
    literal = pure_noise(schedule, epsilon=1.0, adjacency="replace_one")  # the paper's scales times 11/8
    assert float(literal.of(Model("base", 0))) == pytest.approx(0.5 / 1.375, abs=1e-12)


def test_too_little_to_share() -> None:
    with pytest.raises(Unattainable, match="20 levels"):
        pure_noise(SlidingWindow(k=20, w0=1), epsilon=1e-7, adjacency="add_remove")
    with pytest.raises(Unattainable, match="level 32"):
        pure_noise(MultiResolution(pane=1), epsilon=1e-3, adjacency="add_remove").event(Model("base", 32))


# Bounded for ever?


@given(schedules, between(0.01, 10))
def test_an_allocation_is_bounded_by_its_budget(schedule: Schedule, budget: float) -> None:
    outlook = schedule_outlook(schedule, gaussian_noise(schedule, mu=budget, adjacency="add_remove"))
    assert (outlook.verdict, outlook.limit) == ("bounded", Fraction(repr(budget)) ** 2)


@pytest.mark.parametrize(
    ("schedule", "prices", "verdict", "limit"),
    [
        (SlidingWindow(k=4, w0=1), readings.SLIDING_WINDOW["R4"].prices, "bounded", Fraction(11, 6)),
        (MultiResolution(pane=1), readings.MULTI_RESOLUTION.prices, "bounded", Fraction(1)),
        (MultiResolution(pane=1), readings.SLIDING_WINDOW["R1"].prices, "unbounded", None),
        (ContinualRelease(pane=1, base=8), readings.CONTINUAL_RELEASE["half_open"].prices, "bounded", Fraction(11, 8)),
        (ContinualRelease(pane=1, base=8), readings.CONTINUAL_RELEASE["own_size"].prices, "unbounded", None),
    ],
)
def test_outlooks_of_schedules(schedule: Schedule, prices: Prices, verdict: str, limit: Fraction | None) -> None:
    outlook = schedule_outlook(schedule, prices)
    assert (outlook.verdict, outlook.limit) == (verdict, limit)
    assert outlook.growth == ("logarithmic" if verdict == "unbounded" else None)


def test_unbounded_prices_pass_every_limit() -> None:
    """Half of the claim for every doubling of the stream."""
    schedule, read = ContinualRelease(pane=1, base=8), readings.CONTINUAL_RELEASE["own_size"]
    totals = [readings.worst_off(schedule, read, steps=8 * (2**n - 1) + 1)[1] for n in range(2, 10)]
    assert all(0.4 < second - first <= 0.5 for first, second in pairwise(map(float, totals)))


def test_without_a_closed_form_the_answer_is_not_a_verdict() -> None:
    quarter = Geometric(first=Fraction(1), ratio=Fraction(1, 4))
    mixed = Prices(base=readings.MULTI_RESOLUTION.prices.base, update=quarter)
    outlook = schedule_outlook(ContinualRelease(pane=1, base=8), mixed, horizon=256)
    assert (outlook.verdict, outlook.limit, outlook.horizon) == ("not_proved", None, 256)
    assert outlook.paid is not None
    assert outlook.paid_at_half is not None
    assert Fraction(3, 2) < outlook.paid_at_half <= outlook.paid

    @dataclass(frozen=True)
    class Anything:
        def of(self, model: Model) -> Fraction:
            return Fraction(1, 1 + model.level)

    assert schedule_outlook(MultiResolution(pane=1), Anything(), horizon=64).verdict == "not_proved"
    assert schedule_outlook(MultiResolution(pane=1, levels=2), Anything()).limit == Fraction(3, 2)

    class Irregular(Schedule):
        """Somebody else's: pane n is trained on at its own step and again at every later one."""

        models = None

        def step(self, number: int) -> Step:
            whole_past = replace(MultiResolution(pane=1).step(0).trained[0], stop=number + 1, slots=number + 1)
            return Step(number=number, start=0, stop=number + 1, trained=(whole_past,), chain=(whole_past,))

        def life(self, ordinal: int, *, steps: int) -> Counter[Model]:
            return Counter({Model("base", 0): max(0, steps - ordinal)})

        def size(self, model: Model) -> int:
            return 1 + model.level

    outlook = schedule_outlook(Irregular(), readings.MULTI_RESOLUTION.prices, horizon=64)
    assert (outlook.verdict, outlook.paid, outlook.paid_at_half) == ("not_proved", Fraction(32), Fraction(16))


def test_task_wise_composition_is_bounded_if_memberships_are() -> None:
    assert tasks_outlook(most_tasks=2).limit == 2
    assert tasks_outlook(most_tasks=None).growth == "linear"


# Task-wise composition

facts: dict[str, Any] = {
    "reads": "own_data_and_releases",
    "assignment": "record_local",
    "empty_task": "same_program",
    "sizes": "public",
}


def task(name: str, members: range | set[int], **changes: Any) -> Task:
    chosen: dict[str, Any] = {"event": PureDP(epsilon=0.5), "noise_stream": name} | facts | changes
    return Task(name=name, scope=BitMap(members), **chosen)


def test_disjoint_tasks_with_good_facts_hold() -> None:
    found = compose_taskwise([task("a", range(10)), task("b", range(10, 25)), task("empty", set())])
    assert found.holds
    assert found.prices_hold
    assert [(part.tasks, len(part.scope), part.event) for part in found.parts] == [
        (("a",), 10, PureDP(epsilon=0.5)),
        (("b",), 15, PureDP(epsilon=0.5)),
    ]


def test_overlap_is_found_and_charged() -> None:
    found = compose_taskwise([task("a", range(10)), task("b", range(5, 15)), task("c", range(9, 11))])
    assert not found.holds
    assert found.prices_hold
    assert [(breach.code, breach.tasks, breach.datapoints) for breach in found.breaches] == [
        ("task.overlap", ("a", "b"), 5),
        ("task.overlap", ("a", "b", "c"), 2),
    ]
    assert {part.tasks: list(part.scope) for part in found.parts} == {
        ("a",): [0, 1, 2, 3, 4],
        ("a", "b"): [5, 6, 7, 8],
        ("a", "b", "c"): [9],
        ("b", "c"): [10],
        ("b",): [11, 12, 13, 14],
    }
    thrice = next(part for part in found.parts if len(part.tasks) == 3)
    assert thrice.event == Composed(events=(PureDP(epsilon=0.5),) * 3)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"reads": "other_raw_data"}, "task.reads_other_data"),
        ({"noise_stream": "a"}, "task.randomness_reused"),
        ({"assignment": "depends_on_others"}, "task.assignment_not_local"),
        ({"empty_task": "special_case"}, "task.empty_special_case"),
        ({"sizes": "exposed"}, "task.sizes_exposed"),
    ],
)
def test_each_fact_is_a_rule(change: dict[str, Any], code: str) -> None:
    found = compose_taskwise([task("a", range(10)), task("b", range(10, 30), **change)])
    (breach,) = found.breaches
    assert breach.code == code
    assert breach.tasks == (("a", "b") if "noise_stream" in change else ("b",))
    assert breach.datapoints == (30 if "noise_stream" in change else 20)
    assert "'b'" in breach.message
    assert not found.prices_hold


@given(st.lists(st.sets(st.integers(0, 30)), min_size=1, max_size=6))
def test_parts_are_exactly_who_is_in_which_tasks(members: list[set[int]]) -> None:
    found = compose_taskwise([task(str(number), who) for number, who in enumerate(members)])
    for part in found.parts:
        for datapoint in part.scope:
            assert part.tasks == tuple(str(number) for number, who in enumerate(members) if datapoint in who)
    assert sum(len(part.scope) for part in found.parts) == len(set[int]().union(*members))
    assert found.holds == (sum(map(len, members)) == len(set[int]().union(*members)))


def test_many_tasks_are_named_briefly() -> None:
    found = compose_taskwise([task(f"t{number}", {number}, sizes="exposed") for number in range(8)])
    assert "and 3 more" in found.breaches[0].message


# Bad input names its argument


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("k", lambda: sliding_window_schedule(k=0, w0=1)),
        ("k", lambda: sliding_window_schedule(k=25, w0=1)),
        ("k", lambda: sliding_window_schedule(k=2.5, w0=1)),  # type: ignore[arg-type]
        ("k", lambda: sliding_window_schedule(k=True, w0=1)),
        ("w0", lambda: sliding_window_schedule(k=3, w0=0)),
        ("w0", lambda: sliding_window_schedule(k=3, w0=-1)),
        ("w0", lambda: sliding_window_schedule(k=3, w0="1")),  # type: ignore[arg-type]
        ("steps", lambda: sliding_window_schedule(k=3, w0=1, steps=10**9)),
        ("startup", lambda: sliding_window_schedule(k=3, w0=1, startup="slow")),  # type: ignore[arg-type]
        ("step", lambda: SlidingWindow(k=3, w0=1).step(-1)),
        ("ordinal", lambda: SlidingWindow(k=3, w0=1).life(-1, steps=1)),
        ("model", lambda: SlidingWindow(k=3, w0=1).size(Model("base", 0))),
        ("model", lambda: MultiResolution(pane=1, levels=2).size(Model("base", 2))),
        ("model", lambda: ContinualRelease(pane=1, base=1).size(Model("base", 99))),
        ("pane", lambda: MultiResolution(pane=0)),
        ("levels", lambda: MultiResolution(pane=1, levels=99)),
        ("base", lambda: ContinualRelease(pane=4, base=12)),
        ("base", lambda: ContinualRelease(pane=4, base=6)),
        ("base", lambda: ContinualRelease(pane=4, base=2)),
        ("epsilon", lambda: pure_noise(SlidingWindow(k=3, w0=1), epsilon=0.0, adjacency="add_remove")),
        ("epsilon", lambda: pure_noise(SlidingWindow(k=3, w0=1), epsilon=math.nan, adjacency="add_remove")),
        ("mu", lambda: gaussian_noise(SlidingWindow(k=3, w0=1), mu=-1.0, adjacency="add_remove")),
        ("adjacency", lambda: gaussian_noise(SlidingWindow(k=3, w0=1), mu=1.0, adjacency="some")),  # type: ignore[arg-type]
        ("weights", lambda: gaussian_noise(SlidingWindow(k=3, w0=1), mu=1, adjacency="add_remove", weights=(1, 2))),
        ("weights", lambda: gaussian_noise(SlidingWindow(k=1, w0=1), mu=1, adjacency="add_remove", weights=(0,))),
        ("weights", lambda: gaussian_noise(MultiResolution(pane=1), mu=1, adjacency="add_remove", weights=(1,))),
        ("rule", lambda: pure_noise(MultiResolution(pane=1), epsilon=1, adjacency="add_remove", rule="equal_shares")),
        ("rule", lambda: pure_noise(MultiResolution(pane=1), epsilon=1, adjacency="add_remove", rule="no")),  # type: ignore[arg-type]
        ("modulus", lambda: record_contribution(lipschitz=1.0, modulus=0.0, slots=1)),
        ("slots", lambda: record_contribution(lipschitz=1.0, modulus=1.0, slots=0)),
        ("pane", lambda: readings.personalised_price(pane=0, slots=1)),
        ("horizon", lambda: schedule_outlook(MultiResolution(pane=1), readings.MULTI_RESOLUTION.prices, horizon=1)),
        (
            "pricing",
            lambda: schedule_outlook(
                MultiResolution(pane=1), gaussian_noise(SlidingWindow(k=3, w0=1), mu=1, adjacency="add_remove")
            ),
        ),
        ("most_tasks", lambda: tasks_outlook(most_tasks=0)),
        ("tasks", lambda: compose_taskwise([])),
        ("tasks", lambda: compose_taskwise([task("a", {1}), task("a", {2})])),
        (
            "tasks",
            lambda: compose_taskwise([task(str(bit), {n for n in range(2**14) if n >> bit & 1}) for bit in range(14)]),
        ),
        ("name", lambda: task("", {1})),
        ("scope", lambda: Task(name="a", scope={1}, event=PureDP(epsilon=1), noise_stream="a", **facts)),  # type: ignore[arg-type]
        ("event", lambda: task("a", {1}, event="gaussian")),
        ("sizes", lambda: task("a", {1}, sizes="secret")),
    ],
)
def test_bad_input_is_refused_by_name(argument: str, call: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput) as refused:
        call()
    assert refused.value.argument == argument
