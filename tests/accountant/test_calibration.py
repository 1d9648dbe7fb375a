"""Calibration errs on the private side, and by no more than it says."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accountant import account, calibrate_noise_multiplier, calibrate_split, calibrate_steps, partition, sealed
from accountant.calibration import (
    LEAST_NOISE,
    calibrate_training,
    dp_sgd,
    largest_pure_epsilon,
    least_noise_factor,
    least_noise_multiplier,
    most_steps,
    most_times,
    noisier,
    remaining,
)
from accountant.engines import rdp
from accountant.errors import InvalidInput, Unattainable
from accountant.events import (
    KINDS,
    MAX_TIMES,
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
from accountant.units import exact
from tests.accountant.strategies import fewer

epsilons = st.floats(0.05, 20)
deltas = st.sampled_from([1e-3, 1e-5, 1e-8])
rates = st.sampled_from([1.0, 0.5, 0.01, 1e-4])
step_counts = st.integers(1, 20_000)
adjacencies: st.SearchStrategy[Adjacency] = st.sampled_from(["add_remove", "add_remove", "add_remove", "replace_one"])


@fewer
@given(epsilon=epsilons, delta=deltas, rate=rates, steps=step_counts, adjacency=adjacencies)
def test_the_calibrated_noise_keeps_the_promise_and_no_less_does(
    epsilon: float, delta: float, rate: float, steps: int, adjacency: Adjacency
) -> None:
    noise = calibrate_noise_multiplier(
        epsilon=epsilon, delta=delta, sampling_probability=rate, steps=steps, adjacency=adjacency
    )

    def upper(multiplier: float) -> float:
        event = dp_sgd(noise_multiplier=multiplier, sampling_probability=rate, steps=steps)
        return account(event, delta=delta, adjacency=adjacency).upper

    assert upper(noise) <= epsilon
    assert noise == LEAST_NOISE or upper(noise * (1 - 1e-6)) > epsilon


@fewer
@given(epsilon=epsilons, delta=deltas, rate=rates, noise=st.floats(0.5, 50), adjacency=adjacencies)
def test_the_calibrated_steps_keep_the_promise_and_no_more_do(
    epsilon: float, delta: float, rate: float, noise: float, adjacency: Adjacency
) -> None:
    steps = calibrate_steps(
        epsilon=epsilon, delta=delta, noise_multiplier=noise, sampling_probability=rate, adjacency=adjacency
    )

    def upper(count: int) -> float:
        event = dp_sgd(noise_multiplier=noise, sampling_probability=rate, steps=count)
        return account(event, delta=delta, adjacency=adjacency).upper

    assert steps == 0 or upper(steps) <= epsilon
    assert steps == MAX_TIMES or upper(steps + 1) > epsilon


@given(
    budget=st.builds(
        Filter.of, epsilon=st.floats(0.2, 10), delta=deltas, preset=st.sampled_from(["mixed", "gaussian"])
    ),
    used=st.sampled_from([0.0, 0.5, 0.99]),
    rate=rates,
    steps=st.integers(1, 2_000),
    releases=st.integers(1, 50),
)
def test_a_plan_for_what_a_cohort_has_left_is_admitted_release_by_release(
    budget: Filter, *, used: float, rate: float, steps: int, releases: int
) -> None:
    best = max(budget.orders, key=lambda order: budget.limits.rho[budget.orders.index(order)] / order)
    rho = used * budget.limits.rho[budget.orders.index(best)] / 10**12  # of the best order's limit
    committed = budget.price(ZCDP(rho=max(0.0, rho / best)), "add_remove")
    fits = remaining(budget, committed, releases=releases)
    noise = least_noise_multiplier(fits, sampling_probability=rate, steps=steps)
    event = dp_sgd(noise_multiplier=noise, sampling_probability=rate, steps=steps)
    price = sealed.planned(budget, event, "add_remove", committed, releases=releases)
    assert price is not None
    for delta in (None, price.declares) if price.collapsed is None or releases <= 32 else (price.declares,):
        total = committed
        for _ in range(releases):
            total = total + sealed.choose(budget, event, "add_remove", {total: 1}, delta=delta).cost
            assert budget.admits(total)
    less = dp_sgd(noise_multiplier=noise * (1 - 3e-6), sampling_probability=rate, steps=steps)
    assert noise == LEAST_NOISE or not fits(less)
    assert noise == LEAST_NOISE or not budget.admits(committed + budget.price(less, "add_remove") * releases)


@given(
    epsilon=st.floats(0.01, 100), releases=st.integers(1, 1000), preset=st.sampled_from(["mixed", "gaussian", "pure"])
)
def test_a_pure_plan_deals_out_whole_units(epsilon: float, releases: int, preset: Preset) -> None:
    budget = Filter.of(epsilon=epsilon, delta=1e-6, preset=preset)
    share = largest_pure_epsilon(budget, budget.nothing, releases=releases)
    assert budget.admits(budget.price(PureDP(epsilon=share), "add_remove") * releases)
    more = PureDP(epsilon=share + 1e-9 * max(1.0, share))
    assert not budget.admits(budget.price(more, "add_remove") * releases)


def test_the_most_steps_that_a_budget_admits() -> None:
    budget = Filter.of(epsilon=3.0, delta=1e-5)
    fits = remaining(budget, budget.nothing)
    steps = most_steps(fits, noise_multiplier=1.0, sampling_probability=0.01)
    assert fits(dp_sgd(noise_multiplier=1.0, sampling_probability=0.01, steps=steps))
    assert not fits(dp_sgd(noise_multiplier=1.0, sampling_probability=0.01, steps=steps + 1))


def test_a_plan_may_collapse_its_releases() -> None:
    budget = Filter.of(epsilon=1.0, delta=1e-5, preset="pure")  # where the curve of a Gaussian never fits
    for releases in (1, 3, 32, 40):
        noise = least_noise_multiplier(remaining(budget, budget.nothing, releases=releases))
        event = dp_sgd(noise_multiplier=noise)
        price = sealed.planned(budget, event, "add_remove", budget.nothing, releases=releases)
        assert price is not None
        assert price.collapsed is not None
        assert price.declares == price.collapsed.delta
        assert 0.999 < releases * price.collapsed.epsilon <= 1.0
        assert releases * exact(price.collapsed.delta) <= budget.delta_parts
        assert budget.how_often(price.cost, after=budget.nothing) == releases


def test_the_analytic_gaussian_is_calibrated_to_its_published_noise() -> None:
    # The figures of the prototype card: δ = 1e-5, ε = 1 and 8, both adjacencies.
    for epsilon, adjacency, noise in (
        (1.0, "add_remove", 3.7306),
        (1.0, "replace_one", 7.4613),
        (8.0, "add_remove", 0.6002),
        (8.0, "replace_one", 1.2005),
    ):
        answer = calibrate_noise_multiplier(epsilon=epsilon, delta=1e-5, adjacency=adjacency)  # type: ignore[arg-type]
        assert answer == pytest.approx(noise, abs=1e-4)


def test_what_cannot_be_had_is_said() -> None:
    budget = Filter.of(epsilon=1.0, delta=0.0, preset="pure")
    with pytest.raises(Unattainable, match="no noise multiplier up to 1e\\+09 fits"):
        least_noise_multiplier(remaining(budget, budget.nothing))
    assert most_steps(remaining(budget, budget.nothing), noise_multiplier=5.0) == 0
    with pytest.raises(Unattainable, match="no factor for the noise"):
        least_noise_factor(lambda _: False)


def test_counts_are_found_up_to_the_limit() -> None:
    for truth in (0, 1, 2, 3, 1000, 12345, MAX_TIMES - 1, MAX_TIMES):
        assert most_times(lambda times, truth=truth: times <= truth) == truth  # type: ignore[misc]
    assert most_times(lambda times: times <= 7, most=5) == 5
    assert most_times(lambda _: True, most=1) == 1
    assert most_times(lambda _: False, most=1) == 0


@fewer
@given(
    epsilon=st.floats(0.3, 8),
    share=st.floats(0.01, 0.5),
    rate=st.sampled_from([0.5, 0.01]),
    steps=st.integers(1, 2_000),
    adjacency=adjacencies,
)
def test_labels_and_training_together_keep_the_promise_and_less_noise_does_not(
    epsilon: float, share: float, rate: float, steps: int, adjacency: Adjacency
) -> None:
    rule = partition.from_share(epsilon=epsilon, delta=1e-5, share=share / 2)  # two labels change under replace_one
    labels = PartitionSelection(epsilon=rule.epsilon, delta=rule.delta)
    noise = calibrate_training(
        labels, epsilon=epsilon, delta=1e-5, sampling_probability=rate, steps=steps, adjacency=adjacency
    )

    def upper(multiplier: float) -> float:
        training = dp_sgd(noise_multiplier=multiplier, sampling_probability=rate, steps=steps)
        return account(Composed(events=(labels, training)), delta=1e-5, adjacency=adjacency).upper

    assert upper(noise) <= epsilon
    assert upper(noise * (1 - 1e-6)) > epsilon


def test_composing_labels_and_training_needs_less_noise_than_sharing_the_promise_out() -> None:
    apart = calibrate_noise_multiplier(epsilon=0.9, delta=9e-6, sampling_probability=0.01, steps=1000)
    split = calibrate_split(epsilon=1.0, delta=1e-5, sampling_probability=0.01, steps=1000)
    alone = calibrate_noise_multiplier(epsilon=1.0, delta=1e-5, sampling_probability=0.01, steps=1000)
    assert split.share == partition.HEURISTIC_SHARE
    assert alone < split.noise_multiplier < apart


def test_a_split_gives_labels_the_least_share_that_keeps_them() -> None:
    few, many = (
        calibrate_split(epsilon=1.0, delta=1e-5, n=n, probability=0.99, sampling_probability=0.01, steps=1000)
        for n in (100, 2000)
    )
    for split, n in ((few, 100), (many, 2000)):
        assert split.share == partition.smallest_share(n=n, probability=0.99, epsilon=1.0, delta=1e-5)
        kept = partition.inclusion_probability(n, epsilon=split.labels.epsilon, delta=split.labels.delta)
        assert kept >= 0.99
    assert few.share > many.share
    assert few.noise_multiplier > many.noise_multiplier


def test_labels_that_leave_nothing_to_the_training_are_refused() -> None:
    with pytest.raises(Unattainable, match="the label release alone uses up ε = 1 at δ = 1e-05"):
        calibrate_training(PureDP(epsilon=1.5), epsilon=1.0, delta=1e-5)
    with pytest.raises(Unattainable, match="the label release alone"):
        calibrate_training(PartitionSelection(epsilon=0.1, delta=1e-4), epsilon=1.0, delta=1e-5)


def test_noise_is_found_where_only_tight_composition_leaves_any() -> None:
    labels = Repeated(times=100, event=PureDP(epsilon=0.1))
    by_curve = rdp.epsilon(labels, delta=1e-5, adjacency="add_remove")
    epsilon = (by_curve + account(labels, delta=1e-5).upper) / 2
    noise = calibrate_training(labels, epsilon=epsilon, delta=1e-5)
    together = Composed(events=(labels, Gaussian(noise_multiplier=noise)))
    assert account(together, delta=1e-5).upper <= epsilon


def test_sealed_steps_have_the_figures_of_the_design_notes() -> None:
    # PLD at q = 0.01, σ = 1, δ = 1e-5: 254, 2,660 and 15,576 steps, on a coarser grid than ours
    for epsilon, theirs in ((1.0, 254), (3.0, 2660), (8.0, 15576)):
        steps = calibrate_steps(epsilon=epsilon, delta=1e-5, noise_multiplier=1.0, sampling_probability=0.01)
        assert theirs <= steps <= theirs * 1.005


NOISIER: dict[Event, Event] = {
    Gaussian(noise_multiplier=1.5): Gaussian(noise_multiplier=3.0),
    Laplace(scale=0.5): Laplace(scale=1.0),
    L2Laplace(scale=0.5): L2Laplace(scale=1.0),
    PureDP(epsilon=1.0): PureDP(epsilon=0.5),
    ApproxDP(epsilon=1.0, delta=1e-7): ApproxDP(epsilon=0.5, delta=1e-7),
    ZCDP(rho=1.0): ZCDP(rho=0.25),
    PartitionSelection(epsilon=1.0, delta=1e-7): PartitionSelection(epsilon=0.5, delta=1e-7),
    NonPrivate(): NonPrivate(),
    PoissonSampled(sampling_probability=0.1, event=Gaussian(noise_multiplier=1.0)): PoissonSampled(
        sampling_probability=0.1, event=Gaussian(noise_multiplier=2.0)
    ),
    Repeated(times=3, event=PureDP(epsilon=1.0)): Repeated(times=3, event=PureDP(epsilon=0.5)),
    Composed(events=(PureDP(epsilon=1.0), Laplace(scale=1.0))): Composed(
        events=(PureDP(epsilon=0.5), Laplace(scale=2.0))
    ),
}


def test_twice_the_noise_of_every_kind() -> None:
    assert {type(event) for event in NOISIER} == set(KINDS.values())
    for event, doubled in NOISIER.items():
        assert noisier(event, 2.0) == doubled


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"sampling_probability": 0.0}, "sampling_probability"),
        ({"sampling_probability": 1.1}, "sampling_probability"),
        ({"steps": 0}, "steps"),
        ({"steps": 10**30}, "steps"),
        ({"steps": 2.5}, "steps"),
        ({"adjacency": "neighbours"}, "adjacency"),
    ],
)
def test_a_wrong_argument_is_named(changes: dict[str, Any], argument: str) -> None:
    with pytest.raises(InvalidInput) as error:
        calibrate_noise_multiplier(**{"epsilon": 1.0, "delta": 1e-5, **changes})
    assert error.value.argument == argument


def test_wrong_counts_and_factors_are_named() -> None:
    budget = Filter.of(epsilon=1.0, delta=1e-5)
    calls: dict[str, Any] = {
        "releases": lambda: remaining(budget, budget.nothing, releases=0),
        "factor": lambda: noisier(PureDP(epsilon=1.0), 0.0),
        "noise_multiplier": lambda: calibrate_steps(epsilon=1.0, delta=1e-5, noise_multiplier=0.0),
    }
    for argument, call in calls.items():
        with pytest.raises(InvalidInput) as error:
            call()
        assert error.value.argument == argument
