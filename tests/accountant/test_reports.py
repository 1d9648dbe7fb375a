"""Reports: one release after the other gives what composing all at once gives, and sketches err upwards."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from accountant import reports
from accountant.engines import account, prv
from accountant.engines.closed_form import gaussian_delta
from accountant.errors import InvalidInput
from accountant.events import (
    ZCDP,
    Adjacency,
    ApproxDP,
    Composed,
    Event,
    Gaussian,
    Laplace,
    NonPrivate,
    PartitionSelection,
    PoissonSampled,
    PureDP,
    Repeated,
)
from accountant.reports import OnGrid, Report, Sketch
from tests.accountant.strategies import adjacencies, fewer

NOTHING = Composed(events=())


def dp_sgd(q: float, noise: float, steps: int) -> Event:
    return Repeated(times=steps, event=PoissonSampled(sampling_probability=q, event=Gaussian(noise_multiplier=noise)))


releases = st.one_of(
    st.builds(dp_sgd, st.sampled_from([0.001, 0.01, 0.1]), st.sampled_from([0.8, 1.0, 4.0]), st.integers(1, 300)),
    st.sampled_from(
        [
            Gaussian(noise_multiplier=5.0),
            Laplace(scale=8.0),
            PureDP(epsilon=0.05),
            ApproxDP(epsilon=0.05, delta=1e-7),
            PartitionSelection(epsilon=0.1, delta=1e-7),
            NOTHING,
        ]
    ),
)


def in_turn(history: list[Event], *, delta: float, adjacency: Adjacency) -> Report:
    report = Report.of(NOTHING, delta=delta, adjacency=adjacency)
    for release in history:
        report = report.plus(release)
    return report


@fewer
@given(history=st.lists(releases, max_size=8), delta=st.sampled_from([1e-3, 1e-5, 1e-9]), adjacency=adjacencies)
def test_one_release_after_the_other_is_all_of_them_at_once(
    history: list[Event], delta: float, adjacency: Adjacency
) -> None:
    report = in_turn(history, delta=delta, adjacency=adjacency)
    together = Composed(events=tuple(history))
    truth = prv.bracket(together, delta=delta, adjacency=adjacency)
    assert report.epsilon >= truth.lower
    assert report.epsilon <= truth.upper * 1.002 + 1e-3
    assert report.epsilon == pytest.approx(
        Report.of(together, delta=delta, adjacency=adjacency).epsilon, rel=2e-3, abs=1e-3
    )


@fewer
@given(history=st.lists(releases, min_size=2, max_size=5), data=st.data())
def test_the_order_of_releases_hardly_matters(history: list[Event], data: st.DataObject) -> None:
    other = data.draw(st.permutations(history))
    mine, its = (in_turn(each, delta=1e-5, adjacency="add_remove").epsilon for each in (history, other))
    assert mine == pytest.approx(its, rel=2e-3, abs=1e-3)  # they may stand on different grids


@given(
    noises=st.lists(st.sampled_from([20.0, 33.0, 60.0]), min_size=3, max_size=30),
    epsilon=st.floats(0.01, 4),
)
def test_a_sketch_of_gaussians_is_above_the_formula_and_close_to_it(noises: list[float], epsilon: float) -> None:
    report = in_turn([Gaussian(noise_multiplier=noise) for noise in noises], delta=1e-6, adjacency="add_remove")
    assume(isinstance(report.history, Sketch))  # a short grid is kept whole
    assert isinstance(report.history, Sketch)
    mu = math.sqrt(sum(1 / (noise * noise) for noise in noises))
    truth = gaussian_delta(epsilon, mu)
    sketched = report.history.delta(epsilon)
    assert sketched >= truth.lower
    if truth.lower > 1e-9:  # it was made for 1e-6
        assert sketched <= truth.upper * 1.01


@fewer
@given(history=st.lists(releases, min_size=1, max_size=6), epsilon=st.floats(0.05, 6), adjacency=adjacencies)
def test_a_sketch_never_tells_less_than_the_truth(history: list[Event], epsilon: float, adjacency: Adjacency) -> None:
    report = in_turn([dp_sgd(0.01, 1.0, 200), *history], delta=1e-5, adjacency=adjacency)
    if not isinstance(report.history, Sketch):
        return
    delta = report.history.delta(epsilon)
    assert 0 < delta <= 1
    if delta < 1:
        event = Composed(events=(dp_sgd(0.01, 1.0, 200), *history))
        assert prv.bracket(event, delta=delta, adjacency=adjacency).lower <= epsilon


@pytest.mark.parametrize("epsilon", [0.12, 0.26, 0.52, 0.62, 1.07, 1.28, 2.19, 2.62])
@pytest.mark.parametrize("delta", [1e-2, 1e-5])
def test_a_sketch_of_all_frequencies_is_above_the_formula_and_close_to_it(epsilon: float, delta: float) -> None:
    """A grid can be so short that none of its frequencies is left out."""
    report = Report.of(PureDP(epsilon=epsilon), delta=delta)
    truth = account(PureDP(epsilon=epsilon), delta=delta)
    assert report.history is not None
    grid, law = report.history.grid, report.history.law
    assert truth.lower <= report.epsilon <= truth.upper + 1.1 * grid.mesh  # an atom may move by a whole mesh
    assert law.kept == grid.points // 2 + 1
    high = 1 / (1 + math.exp(-epsilon))
    for share in (0.0, 0.03, 0.2, 0.5, 0.77, 0.9):
        sketched = Sketch(grid, law, 0.0).delta(share * epsilon)
        true = high * -math.expm1((share - 1) * epsilon)
        assert true <= sketched <= true * 1.05 + 1e-3, share


@pytest.mark.parametrize("kept", [2, 4, 8, 16, 32])
def test_however_few_frequencies_are_kept_delta_is_not_below_that_of_all(kept: int) -> None:
    history = Report.of(dp_sgd(0.01, 1.0, 200), delta=1e-5).history
    assert isinstance(history, Sketch)
    grid = history.grid
    dropped = 2 / grid.points * float(np.abs(history.law.transform[:, kept:]).sum())
    law = history.law._replace(transform=history.law.transform[:, :kept], dropped=history.law.dropped + dropped)
    short = history._replace(law=law)
    for epsilon in (0.0, 0.3, 0.9, 1.5, 3.0):
        assert short.delta(epsilon) >= history.delta(epsilon) * (1 - 1e-3)
        true = prv.bracket(dp_sgd(0.01, 1.0, 200), delta=min(0.999, short.delta(epsilon)), adjacency="add_remove")
        assert true.lower <= epsilon


def test_a_sketch_tells_the_worse_direction_whichever_it_is() -> None:
    history = Report.of(dp_sgd(0.01, 1.0, 200), delta=1e-5).history
    assert isinstance(history, Sketch)
    rows = {name: getattr(history.law, name)[::-1] for name in ("transform", "cumulant", "cumulants", "log_finite")}
    mirrored = history._replace(law=history.law._replace(**rows))
    for epsilon in (0.0, 0.3, 0.9, 1.5, 3.0):
        assert mirrored.delta(epsilon) == pytest.approx(history.delta(epsilon), rel=1e-12)


def test_a_young_history_of_atoms_stays_on_the_grid_and_an_old_one_becomes_a_sketch() -> None:
    report = Report.of(PureDP(epsilon=1.0), delta=1e-5)
    assert isinstance(report.history, OnGrid)
    assert report.epsilon == pytest.approx(1.0, abs=0.01)
    old = Report.of(dp_sgd(0.01, 1.0, 1000), delta=1e-5)
    assert isinstance(old.history, Sketch)
    assert old.history.law.transform.nbytes <= 2048
    assert old.plus(dp_sgd(0.01, 1.0, 1000)).epsilon == pytest.approx(
        prv.upper_bound(dp_sgd(0.01, 1.0, 2000), delta=1e-5, adjacency="add_remove"), rel=1e-3
    )


def test_a_grid_is_kept_while_it_serves_and_made_anew_when_it_does_not() -> None:
    report, grids = Report.of(dp_sgd(0.01, 1.0, 100), delta=1e-5), []
    for _ in range(40):
        report = report.plus(dp_sgd(0.01, 1.0, 100))
        assert report.history is not None
        grids.append(report.history.grid)
    assert 2 <= len(set(grids)) <= 8


def test_a_history_without_pairs_is_reported_by_its_curve() -> None:
    report = Report.of(dp_sgd(0.01, 1.0, 100), delta=1e-5)
    assert report.engine == "prv"
    with_zcdp = report.plus(ZCDP(rho=0.01))
    assert with_zcdp.engine == "rdp"
    assert report.epsilon < with_zcdp.epsilon < math.inf
    assert with_zcdp.plus(Gaussian(noise_multiplier=10.0)).epsilon > with_zcdp.epsilon
    assert report.plus(NonPrivate()).epsilon == math.inf
    assert report.plus(ApproxDP(epsilon=0.1, delta=1e-4)).epsilon == math.inf


@pytest.mark.parametrize("start", [dp_sgd(0.01, 1.0, 1000), PureDP(epsilon=1.0)], ids=["sketch", "on_grid"])
def test_what_gives_everything_away_adds_up(start: Event) -> None:
    """Four releases use up most of δ; then the rest of ε is that at what is left."""
    box = ApproxDP(epsilon=0.05, delta=2e-6)
    report = in_turn([start, box, box, box, box], delta=1e-5, adjacency="add_remove")
    assert isinstance(report.history, Sketch) == (start != PureDP(epsilon=1.0))
    truth = prv.bracket(Composed(events=(start, Repeated(times=4, event=box))), delta=1e-5, adjacency="add_remove")
    assert truth.lower <= report.epsilon <= truth.upper * 1.002 + 1e-3
    assert report.plus(box).plus(box).epsilon == math.inf
    if isinstance(report.history, Sketch):
        assert report.history.delta(50.0) >= -math.expm1(4 * math.log1p(-2e-6)) * (1 - 1e-12)


def test_nothing_costs_nothing() -> None:
    report = Report.of(NOTHING, delta=1e-5)
    assert report.epsilon == 0
    assert report.plus(NOTHING).epsilon == 0
    busy = report.plus(Gaussian(noise_multiplier=3.0))
    assert busy.plus(NOTHING).epsilon == busy.epsilon


def test_a_report_says_on_what_condition_it_holds() -> None:
    assert reports.CONDITION == "valid only if the schedule was fixed in advance"


@pytest.mark.parametrize(
    ("changes", "argument"),
    [({"delta": 0.0}, "delta"), ({"adjacency": "neighbours"}, "adjacency"), ({"event": "gaussian"}, "event")],
)
def test_a_wrong_argument_is_named(changes: dict[str, object], argument: str) -> None:
    arguments = {"event": NOTHING, "delta": 1e-5, **changes}
    with pytest.raises(InvalidInput) as error:
        Report.of(arguments.pop("event"), **arguments)  # type: ignore[arg-type]
    assert error.value.argument == argument


def test_a_sketch_wants_an_epsilon() -> None:
    history = Report.of(dp_sgd(0.01, 1.0, 1000), delta=1e-5).history
    assert isinstance(history, Sketch)
    with pytest.raises(InvalidInput, match="epsilon"):
        history.delta(-1.0)


@pytest.mark.parametrize("loud", [PureDP(epsilon=400.0), Gaussian(noise_multiplier=0.05)])
def test_a_release_that_needs_too_many_points_is_reported_by_its_curve(loud: Event) -> None:
    long = Report.of(
        Repeated(times=10**6, event=PoissonSampled(sampling_probability=1e-4, event=Gaussian(noise_multiplier=5.0))),
        delta=1e-5,
    )
    report = long.plus(loud)
    assert report.engine == "rdp"
    assert 200 < report.epsilon < 500
