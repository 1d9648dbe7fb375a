"""Sealed releases: two proofs for one step, the choice between them, and a log that can be checked anywhere."""

import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from accountant import account, sealed
from accountant.calibration import least_noise_multiplier, remaining
from accountant.engines import Account, prove
from accountant.errors import InvalidInput
from accountant.events import (
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
from accountant.filters import Cost, Filter, Preset
from accountant.ledger import (
    LIFELONG,
    Charge,
    Committed,
    Decision,
    Held,
    Ledger,
    Part,
    Registered,
    Rules,
    propose,
    replay,
)
from accountant.sealed import Collapsed, Price
from accountant.units import DELTA_UNITS, delta_down, exact
from tests.accountant.adaptive import Dish, coin, gaussian_from_above, optimal_delta
from tests.accountant.strategies import trees

PRESETS: list[Preset] = ["mixed", "gaussian", "pure"]
BUDGET = Filter.of(epsilon=1.0, delta=1e-5)
RULES = Rules(lifelong=BUDGET)
TOO_LOUD_FOR_ITS_CURVE = Gaussian(noise_multiplier=4.65)  # admitted by a collapse alone
QUIET = Gaussian(noise_multiplier=40.0)
DP_SGD = Repeated(times=254, event=PoissonSampled(sampling_probability=0.01, event=Gaussian(noise_multiplier=1.0)))

budgets = st.builds(
    Filter.of,
    epsilon=st.sampled_from([0.3, 1.0, 3.0, 8.0]),
    delta=st.sampled_from([1e-8, 1e-5, 1e-3]),
    preset=st.sampled_from(PRESETS),
)
adjacencies: st.SearchStrategy[Adjacency] = st.sampled_from(["add_remove", "replace_one"])
composed = st.one_of(
    st.builds(Gaussian, noise_multiplier=st.floats(0.5, 300)),
    st.builds(Repeated, times=st.integers(2, 300), event=st.builds(PureDP, epsilon=st.floats(1e-3, 0.2))),
    st.builds(
        lambda noise, delta: Composed(events=(Gaussian(noise_multiplier=noise), ApproxDP(epsilon=0.02, delta=delta))),
        st.floats(2, 100),
        st.sampled_from([1e-12, 1e-9, 1e-6]),
    ),
)


def by_collapse(
    budget: Filter, event: Event, *, delta: float | None = None, adjacency: Adjacency = "add_remove"
) -> Price:
    """At a 32nd of δ″, unless told otherwise."""
    share = float(budget.delta_parts / 32) if delta is None else delta
    collapsed = sealed.collapse(event, delta=share, adjacency=adjacency)
    assert collapsed is not None
    return sealed.by_collapse(budget, collapsed, adjacency)


def choice(budget: Filter, event: Event, *totals: Cost, delta: float | None = None) -> Price:
    standings = dict.fromkeys(totals or [budget.nothing], 1)
    return sealed.choose(budget, event, "add_remove", standings, delta=delta)


def lives(budget: Filter, event: Event, used: Cost, *, delta: float | None = None) -> Iterator[Cost]:
    """The totals of one release of the event after the other, while they are admitted."""
    total = used
    while True:
        total += sealed.choose(budget, event, "add_remove", {total: 1}, delta=delta).cost
        if not budget.admits(total):
            return
        yield total


def decide(rules: Rules, *charges: Charge, book: Ledger | None = None, delta: float | None = None) -> Decision:
    return propose(book or replay([Registered(count=10)]), rules, release="r", charges=charges, delta=delta)


def everyone(event: Event, task: str | None = None) -> Charge:
    return Charge(scope=BitMap(range(10)), event=event, task=task)


# ---------------------------------------------------------------- what a collapse costs


@given(event=trees(), delta=st.sampled_from([1e-12, 1e-7, 1e-3]), adjacency=adjacencies, budget=budgets)
def test_a_collapse_is_proved_and_costs_what_such_a_promise_costs(
    event: Event, delta: float, adjacency: Adjacency, budget: Filter
) -> None:
    answer = account(event, delta=delta, adjacency=adjacency)
    collapsed = sealed.collapse(event, delta=delta, adjacency=adjacency)
    if math.isinf(answer.upper):
        assert collapsed is None
        return
    assert collapsed is not None
    assert (collapsed.delta, collapsed.engine, collapsed.version) == (delta, answer.engine, answer.version)
    # Above what was proved by more than a machine differs from another, and by less than anyone would miss.
    assert Fraction(answer.upper) * (1 + Fraction(9, 10**9)) < Fraction(collapsed.epsilon)
    assert collapsed.epsilon <= answer.upper * (1 + 1.1e-6) + 1e-11
    assert float(f"{collapsed.epsilon:.6e}") == collapsed.epsilon
    cost = sealed.by_collapse(budget, collapsed, adjacency).cost
    assert cost == budget.price(ApproxDP(epsilon=collapsed.epsilon, delta=delta), "add_remove")
    assert Fraction(cost.rho[-1], 10**12) >= exact(collapsed.epsilon)
    assert Fraction(cost.delta, DELTA_UNITS) >= exact(delta)


def test_a_machine_with_other_last_digits_finds_the_same_promise_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    collapsed = sealed.collapse(QUIET, delta=1e-7, adjacency="add_remove")
    assert collapsed is not None

    def elsewhere(off: float) -> bool:
        def other(event: Event, *, delta: float, target: float, adjacency: Adjacency) -> Account:
            here = prove(event, delta=delta, target=target, adjacency=adjacency)
            return replace(here, upper=here.upper * (1 + off))

        with monkeypatch.context() as patch:
            patch.setattr(sealed, "prove", other)
            return sealed.proves(QUIET, collapsed, "add_remove")

    assert elsewhere(9e-9)
    assert not elsewhere(2e-6)


@given(units=st.integers(1, DELTA_UNITS - 1))
def test_a_share_of_delta_is_printed_without_growing(units: int) -> None:
    assert units * (1 - Fraction(1, 2**50)) <= exact(delta_down(units)) * DELTA_UNITS <= units


# ---------------------------------------------------------------- no adversary gets past the gate


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-3), (1.0, 1e-2), (3.0, 1e-3)])
def test_the_best_adversary_with_collapsed_releases_stays_within_the_promise(
    epsilon: float, delta: float, preset: Preset
) -> None:
    """The optimal strategy over Gaussians charged by a collapse, by their curve, and coins that may tell all."""
    budget, step = Filter.of(epsilon=epsilon, delta=delta, preset=preset), epsilon / 16
    mu, share = epsilon / 4, float(budget.delta_parts / 3)
    noise = gaussian_from_above(mu=mu, step=step)
    menu: list[Dish] = [noise, noise, coin(step=step, steps=4, reveals=share / 2), coin(step=step, steps=2)]
    costs = [
        by_collapse(budget, Gaussian(noise_multiplier=1 / mu), delta=share).cost,
        budget.price(Gaussian(noise_multiplier=1 / mu), "add_remove"),
        budget.price(ApproxDP(epsilon=4 * step, delta=share / 2), "add_remove"),
        budget.price(PureDP(epsilon=2 * step), "add_remove"),
    ]

    def admits(counts: tuple[int, ...]) -> bool:
        total = budget.nothing
        for count, cost in zip(counts, costs, strict=True):
            total += cost * count
        return sum(counts) <= 6 and budget.admits(total)

    assert admits((1, 0, 0, 0))
    assert optimal_delta(menu, admits, epsilon=epsilon) <= delta * (1 + 1e-9)


@given(budget=budgets, event=composed, delta=st.none() | st.sampled_from([0.0, 1e-9, 1e-6]))
def test_a_whole_life_of_a_kind_costs_no_more_than_was_promised(
    budget: Filter, event: Event, delta: float | None
) -> None:
    totals = list(islice(lives(budget, event, budget.nothing, delta=delta), 100))
    if totals:
        assert totals[-1].delta <= budget.limits.delta
        truth = account(Repeated(times=len(totals), event=event), delta=budget.delta)
        assert truth.lower <= budget.epsilon


@given(
    budget=budgets,
    noises=st.lists(st.floats(0.6, 60), min_size=1, max_size=30),
    delta=st.none() | st.sampled_from([1e-9, 1e-6, 1e-4]),
)
def test_a_life_of_gaussians_costs_no_more_than_was_promised(
    budget: Filter, noises: list[float], delta: float | None
) -> None:
    total, released = budget.nothing, []
    for noise in noises:
        event = Gaussian(noise_multiplier=noise)
        after = total + sealed.choose(budget, event, "add_remove", {total: 1}, delta=delta).cost
        if budget.admits(after):
            total = after
            released.append(event)
    assert account(Composed(events=tuple(released)), delta=budget.delta).lower <= budget.epsilon


# ---------------------------------------------------------------- the choice


def test_what_only_a_collapse_admits_is_collapsed() -> None:
    assert not BUDGET.admits(BUDGET.price(TOO_LOUD_FOR_ITS_CURVE, "add_remove"))
    price = choice(BUDGET, TOO_LOUD_FOR_ITS_CURVE)
    assert price.collapsed is not None
    assert BUDGET.admits(price.cost)
    assert str(price) == f"charged as {price.collapsed}"
    assert str(price.collapsed).startswith("(ε, δ) = (0.98")


def test_a_sealed_gaussian_needs_less_noise_than_its_curve() -> None:
    for times in (1, 100):

        def curve_alone(event: Event) -> bool:
            return BUDGET.admits(BUDGET.price(event, "add_remove"))

        by_curve = least_noise_multiplier(curve_alone, steps=times)
        both = least_noise_multiplier(remaining(BUDGET, BUDGET.nothing), steps=times)
        assert both < 0.98 * by_curve
        admitted = everyone(Repeated(times=times, event=Gaussian(noise_multiplier=both)))
        assert decide(RULES, admitted).outcome == "admitted"
        louder = everyone(Repeated(times=times, event=Gaussian(noise_multiplier=both * 0.999)))
        assert decide(RULES, louder).outcome == "denied"


def test_a_release_of_which_many_fit_keeps_its_curve() -> None:
    price = choice(BUDGET, QUIET)
    collapsed = by_collapse(BUDGET, QUIET)
    # The collapse would leave more for one pure release, and less for this kind: it has lost its shape.
    assert BUDGET.largest_pure(collapsed.cost) > BUDGET.largest_pure(price.cost)
    assert BUDGET.how_often(collapsed.cost, after=BUDGET.nothing) < BUDGET.how_often(price.cost, after=BUDGET.nothing)
    assert price.collapsed is None
    assert str(price) == "charged by its Rényi curve"


@given(
    budget=st.builds(
        Filter.of,
        epsilon=st.sampled_from([0.3, 1.0, 3.0]),
        delta=st.sampled_from([1e-5, 1e-3]),
        preset=st.sampled_from(PRESETS),
    ),
    event=composed,
    pure=st.sampled_from([0.0, 0.1, 0.25]),
)
def test_no_fewer_releases_of_a_kind_fit_than_at_either_price_alone(budget: Filter, event: Event, pure: float) -> None:
    used = budget.price(PureDP(epsilon=pure), "add_remove")
    curve = sealed.by_curve(budget, event, "add_remove").cost
    collapsed = by_collapse(budget, event, delta=delta_down(curve.delta + budget.limits.delta // 32)).cost
    alone = max(budget.how_often(curve, after=used), budget.how_often(collapsed, after=used))
    if alone > 40:
        return
    assert sum(1 for _ in lives(budget, event, used)) >= alone


@given(budget=budgets, event=composed, used=st.floats(0, 0.9), times=st.integers(0, 5))
def test_how_often_counts_admissions(budget: Filter, event: Event, used: float, times: int) -> None:
    cost, after = budget.price(event, "add_remove"), budget.price(PureDP(epsilon=used * budget.epsilon), "add_remove")
    count = budget.how_often(cost, after=after)
    assert budget.admits(after + cost * times) == (times <= count) or times == 0
    assert budget.admits(after + cost * count)
    assert not budget.admits(after + cost * (count + 1))


def test_on_a_tie_the_one_that_leaves_more_if_it_is_worth_its_delta() -> None:
    pure = Filter.of(epsilon=1.0, delta=1e-5, preset="pure")
    worth, not_worth = Repeated(times=64, event=PureDP(epsilon=1 / 64)), Repeated(times=10, event=PureDP(epsilon=0.05))
    for event, expected in ((worth, True), (not_worth, False)):
        curve, collapsed = sealed.by_curve(pure, event, "add_remove"), by_collapse(pure, event)
        often = [pure.how_often(price.cost, after=pure.nothing) for price in (curve, collapsed)]
        assert often[0] == often[1]
        assert pure.largest_pure(collapsed.cost) > pure.largest_pure(curve.cost)
        assert (choice(pure, event).collapsed is not None) is expected


def test_exact_decimals_are_not_given_away_for_a_millionth() -> None:
    twice = Composed(events=(PureDP(epsilon=0.05), PureDP(epsilon=0.05)))
    totals = list(lives(BUDGET, twice, BUDGET.nothing))
    assert totals[9].rho[-1] == 10**12
    assert totals[9].delta == 0


@pytest.mark.parametrize(
    "event",
    [
        PureDP(epsilon=0.3),
        ApproxDP(epsilon=0.3, delta=1e-7),
        Laplace(scale=3.0),
        L2Laplace(scale=3.0),
        PartitionSelection(epsilon=0.3, delta=1e-7),
        Composed(events=()),
        Composed(events=(PureDP(epsilon=0.0), Repeated(times=1, event=Laplace(scale=3.0)))),
        NonPrivate(),
    ],
)
def test_one_bounded_loss_is_its_own_collapse(event: Event) -> None:
    assert choice(BUDGET, event).collapsed is None


def test_the_price_is_the_one_that_more_datapoints_can_pay() -> None:
    fresh, no_delta = BUDGET.nothing, replace(BUDGET.nothing, delta=BUDGET.limits.delta)
    near_the_end = BUDGET.price(PureDP(epsilon=0.99), "add_remove")
    gaussian = Gaussian(noise_multiplier=5.0)  # a curve that fits, and so does its collapse
    assert BUDGET.admits(choice(BUDGET, gaussian, delta=0.0).cost)
    for standings, is_collapsed in (
        ({fresh: 1, no_delta: 1}, False),
        ({no_delta: 1}, False),
        ({fresh: 1, near_the_end: 5}, None),
    ):
        price = sealed.choose(BUDGET, gaussian, "add_remove", standings)
        best = max(
            sum(datapoints for total, datapoints in standings.items() if BUDGET.admits(total + other.cost))
            for other in (sealed.by_curve(BUDGET, gaussian, "add_remove"), by_collapse(BUDGET, gaussian))
        )
        assert sum(n for total, n in standings.items() if BUDGET.admits(total + price.cost)) == best
        assert is_collapsed is None or (price.collapsed is not None) is is_collapsed
    # Who has no δ left does not take the collapse from the others: with `trim` they are still admitted.
    price = sealed.choose(BUDGET, TOO_LOUD_FOR_ITS_CURVE, "add_remove", {fresh: 1, no_delta: 5})
    assert price.collapsed is not None


def test_the_worst_off_decides() -> None:
    event = Repeated(times=100, event=PureDP(epsilon=0.005))
    fresh, worse = BUDGET.nothing, BUDGET.price(PureDP(epsilon=0.78), "add_remove")
    # Fresh datapoints can take seventeen of these by their curve; the others one, and a collapse leaves them more.
    assert choice(BUDGET, event, fresh).collapsed is None
    assert choice(BUDGET, event, worse).collapsed is not None
    assert choice(BUDGET, event, fresh, worse) == choice(BUDGET, event, worse)


def test_the_choice_does_not_depend_on_the_order_of_the_standings() -> None:
    totals = [BUDGET.price(PureDP(epsilon=epsilon), "add_remove") for epsilon in (0.1, 0.2, 0.3, 0.4)]
    gaussian = Gaussian(noise_multiplier=8.0)
    assert choice(BUDGET, gaussian, *totals) == choice(BUDGET, gaussian, *reversed(totals))


def test_a_denial_names_the_price_that_comes_closest() -> None:
    decision = decide(RULES, everyone(Gaussian(noise_multiplier=4.0)))
    assert decision.outcome == "denied"
    (quote,) = decision.quotes
    assert quote.price.collapsed is not None
    assert (
        decision.epsilon_after
        == quote.price.collapsed.epsilon
        < BUDGET.meter(BUDGET.price(Gaussian(noise_multiplier=4.0), "add_remove"))
    )


def test_a_known_kind_of_release_is_not_composed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def counting(event: Event, *, delta: float, adjacency: Adjacency) -> Account:
        asked.append(event)
        return prove(event, delta=delta, adjacency=adjacency)

    monkeypatch.setattr(sealed, "prove", counting)
    sealed._proved.cache_clear()
    for _ in range(3):
        decide(RULES, everyone(TOO_LOUD_FOR_ITS_CURVE))
    assert len(asked) == 1
    asked.clear()
    decide(RULES, everyone(Gaussian(noise_multiplier=400.0)))  # thousands fit
    decide(RULES, everyone(PureDP(epsilon=0.25)))
    assert asked == []
    charges = [Charge(scope=BitMap([n % 10]), event=Gaussian(noise_multiplier=5.0 + n)) for n in range(10)]
    cut = [Charge(scope=BitMap(range(n)), event=Gaussian(noise_multiplier=30.0 + n)) for n in range(1, 100)]
    assert len(decide(RULES, *charges).quotes) == 10
    assert len(asked) <= 10
    asked.clear()
    decide(RULES, *cut, book=replay([Registered(count=100)]))
    assert asked == []  # a release in so many pieces keeps its curves
    sealed._proved.cache_clear()


# ---------------------------------------------------------------- δ: shares, declarations, exhaustion


@pytest.mark.parametrize("own", [0.0, 1e-7])
def test_a_collapse_takes_a_share_above_what_the_event_takes_anyway(own: float) -> None:
    budget = Filter.of(epsilon=1.0, delta=1e-5, preset="pure")  # where a Gaussian is always collapsed
    event = Composed(events=(Gaussian(noise_multiplier=20.0), ApproxDP(epsilon=0.01, delta=own)))
    collapsed = choice(budget, event).collapsed
    assert collapsed is not None
    assert exact(collapsed.delta) == budget.delta_parts / 32 + exact(own)


def test_a_declared_delta_is_used() -> None:
    for delta in (1e-7, 5e-6):
        price = choice(BUDGET, TOO_LOUD_FOR_ITS_CURVE, delta=delta)
        if price.collapsed is not None:
            assert price.collapsed.delta == price.declares == delta
    assert choice(BUDGET, TOO_LOUD_FOR_ITS_CURVE, delta=0.0).collapsed is None
    # With all of δ″ for one release, less noise will do.
    louder = everyone(Gaussian(noise_multiplier=4.0))
    assert decide(RULES, louder).outcome == "denied"
    decision = decide(RULES, louder, delta=5e-6)
    assert decision.hold is not None
    ((name, collapsed),) = decision.hold.parts[0].collapsed
    assert (name, collapsed.delta) == (LIFELONG, 5e-6)
    book = replay([Registered(count=10), decision.hold], rules=RULES)
    assert decide_again(book, Gaussian(noise_multiplier=4.65)).outcome == "denied"


def decide_again(book: Ledger, event: Event) -> Decision:
    return propose(book, RULES, release="again", charges=[everyone(event)])


def test_a_collapse_takes_no_more_delta_than_the_worst_off_has() -> None:
    budget = Filter.of(epsilon=1.0, delta=1e-5, preset="pure")
    event = Gaussian(noise_multiplier=40.0)
    for left in (budget.limits.delta // 100, budget.limits.delta // 10**6):
        low = replace(budget.nothing, delta=budget.limits.delta - left)
        for delta in (None, 1e-6):
            collapsed = choice(budget, event, low, budget.nothing, delta=delta).collapsed
            assert collapsed is not None
            assert left * (1 - Fraction(1, 10**15)) <= exact(collapsed.delta) * DELTA_UNITS <= left


def test_without_delta_there_is_only_the_curve() -> None:
    exhausted = replace(BUDGET.nothing, delta=BUDGET.limits.delta)
    assert choice(BUDGET, TOO_LOUD_FOR_ITS_CURVE, exhausted).collapsed is None
    assert not sealed.admits(BUDGET, TOO_LOUD_FOR_ITS_CURVE, "add_remove", [exhausted])
    none = Filter.of(epsilon=1.0, delta=1e-5, delta_parts=0.0)
    assert choice(none, TOO_LOUD_FOR_ITS_CURVE).collapsed is None
    assert choice(Filter.of(epsilon=1.0, delta=0.0, preset="pure"), QUIET).collapsed is None
    over = replace(BUDGET.nothing, delta=2 * BUDGET.limits.delta)  # a budget that was lowered
    assert choice(BUDGET, TOO_LOUD_FOR_ITS_CURVE, over).collapsed is None


def test_thirty_two_collapses_use_up_delta_exactly() -> None:
    budget = Filter.of(epsilon=20.0, delta=1e-5, preset="pure")
    totals = list(lives(budget, QUIET, budget.nothing))
    assert len(totals) == 32
    assert totals[-1].delta == budget.limits.delta


# ---------------------------------------------------------------- the ledger


def test_every_ledger_chooses_for_itself() -> None:
    pure = Filter.of(epsilon=0.8, delta=1e-6, preset="pure")
    rules = replace(RULES, tasks={"w45": pure})
    decision = decide(rules, everyone(QUIET, "w45"))
    assert decision.hold is not None
    assert [(quote.ledger, quote.price.collapsed is not None) for quote in decision.quotes] == [
        (LIFELONG, False),
        ("w45", True),
    ]
    (part,) = decision.hold.parts
    assert [name for name, _ in part.collapsed] == ["w45"]
    book = replay([Registered(count=10), decision.hold, Committed(release="r")], rules=rules)
    assert book.cohorts.history(3).committed_in("w45") == by_collapse(pure, Composed(events=(QUIET,))).cost
    assert book.cohorts.history(3).committed_in(LIFELONG) == BUDGET.price(QUIET, "add_remove")


def test_quotes_say_how_each_part_of_a_release_is_charged() -> None:
    loud = Charge(scope=BitMap(range(5)), event=TOO_LOUD_FOR_ITS_CURVE)
    quiet = Charge(scope=BitMap(range(5, 10)), event=PureDP(epsilon=0.2))
    decision = decide(RULES, loud, quiet)
    assert [(quote.charges, quote.datapoints, quote.price.collapsed is not None) for quote in decision.quotes] == [
        ((0,), 5, True),
        ((1,), 5, False),
    ]


def test_replace_one_is_collapsed_under_its_own_adjacency() -> None:
    rules = replace(RULES, adjacency="replace_one")
    assert decide(rules, everyone(TOO_LOUD_FOR_ITS_CURVE)).outcome == "denied"
    decision = decide(rules, everyone(Gaussian(noise_multiplier=2 * 4.65)))
    assert decision.hold is not None
    ((_, collapsed),) = decision.hold.parts[0].collapsed
    assert sealed.proves(Gaussian(noise_multiplier=2 * 4.65), collapsed, "replace_one")
    replay([Registered(count=10), decision.hold], rules=rules)
    same_log_elsewhere = replace(decision.hold, charges=(everyone(TOO_LOUD_FOR_ITS_CURVE),))
    with pytest.raises(InvalidInput, match="collapsed: expected an"):
        replay([Registered(count=10), same_log_elsewhere], rules=rules)


def test_who_cannot_pay_is_trimmed_and_the_others_are_collapsed() -> None:
    rules = replace(RULES, on_exhausted="trim")
    first = propose(
        replay([Registered(count=10)]),
        rules,
        release="first",
        charges=[Charge(scope=BitMap(range(7)), event=ApproxDP(epsilon=0.0, delta=5e-6))],
    )
    assert first.hold is not None
    book = replay([Registered(count=10), first.hold])
    decision = decide(rules, everyone(TOO_LOUD_FOR_ITS_CURVE), book=book)
    assert (decision.outcome, decision.trimmed) == ("admitted", 7)
    assert decision.hold is not None
    (part,) = decision.hold.parts
    assert list(part.scope) == [7, 8, 9]
    assert part.collapsed


@pytest.mark.parametrize("delta", [None, 1e-6])
def test_advice_counts_on_the_price_that_it_will_get(delta: float | None) -> None:
    charge = everyone(Repeated(times=16, event=Gaussian(noise_multiplier=15.0)))
    decision = decide(RULES, charge, delta=delta)
    assert decision.outcome == "denied"
    for advice in decision.advice:
        (event,) = advice.events
        assert decide(RULES, everyone(event), delta=delta).outcome == "admitted"
    noisy, fewer = (advice.events[0] for advice in decision.advice)
    assert isinstance(noisy, Repeated)
    assert isinstance(noisy.event, Gaussian)
    assert isinstance(fewer, Repeated)
    less = replace(noisy, event=Gaussian(noise_multiplier=noisy.event.noise_multiplier * 0.999))
    for event in (less, replace(fewer, times=fewer.times + 1)):
        assert decide(RULES, everyone(event), delta=delta).outcome == "denied"
    # By the curve alone the same advice would ask for more noise.
    assert not BUDGET.admits(BUDGET.price(noisy, "add_remove"))


# ---------------------------------------------------------------- a log that charged too little


def collapsed_hold() -> Held:
    hold = decide(RULES, everyone(TOO_LOUD_FOR_ITS_CURVE)).hold
    assert hold is not None
    assert hold.parts[0].collapsed
    return hold


def tampered(hold: Held, **changes: Any) -> Held:
    """The first part charged as another promise, with the spending that goes with it unless it is given."""
    part: Part = hold.parts[0]
    ((name, collapsed),) = part.collapsed
    spending = changes.pop("spending", None)
    other = replace(collapsed, **changes)
    if spending is None:
        spending = ((name, sealed.by_collapse(BUDGET, other, "add_remove").cost),)
    return replace(hold, parts=(replace(part, spending=spending, collapsed=((name, other),)),))


def test_a_log_that_charged_too_little_is_refused() -> None:
    hold = collapsed_hold()
    ((_, collapsed),) = hold.parts[0].collapsed
    replay([Registered(count=10), hold], rules=RULES)
    honest = hold.parts[0].spending
    cheap = ((LIFELONG, BUDGET.price(PureDP(epsilon=0.1), "add_remove")),)
    for changes, argument in (
        ({"epsilon": collapsed.epsilon * (1 - 1e-5)}, "collapsed"),
        ({"delta": collapsed.delta * (1 - 1e-4)}, "collapsed"),
        ({"epsilon": collapsed.epsilon * (1 - 1e-5), "spending": honest}, "collapsed"),
        ({"epsilon": collapsed.epsilon * (1 + 1e-5), "spending": honest}, "spending"),
        ({"delta": collapsed.delta * (1 + 1e-5), "spending": honest}, "spending"),
        ({"spending": cheap}, "spending"),
        ({"spending": ()}, "spending"),
    ):
        with pytest.raises(InvalidInput) as error:
            replay([Registered(count=10), tampered(hold, **changes)], rules=RULES)
        assert error.value.argument == argument, changes
    # What charges more than it had to is no undercharge.
    replay([Registered(count=10), tampered(hold, epsilon=collapsed.epsilon * 1.01)], rules=RULES)


def test_a_log_cannot_hide_or_invent_a_collapse() -> None:
    hold = collapsed_hold()
    part = hold.parts[0]
    ((_, collapsed),) = part.collapsed
    for wrong in (
        replace(part, collapsed=()),  # then the curve is due
        replace(part, collapsed=((LIFELONG, collapsed), ("w45", collapsed))),  # for a ledger that is not touched
        replace(part, spending=((LIFELONG, BUDGET.nothing),)),
    ):
        with pytest.raises(InvalidInput, match="spending: expected the price of these charges of release 'r'"):
            replay([Registered(count=10), replace(hold, parts=(wrong,))], rules=RULES)


def test_a_log_of_dp_sgd_is_the_same_whoever_replays_it() -> None:
    budget = Filter.of(epsilon=3.0, delta=1e-5, preset="pure")  # where only a collapse will do
    rules = Rules(lifelong=budget)
    decision = decide(rules, everyone(DP_SGD))
    assert decision.hold is not None
    sealed._proved.cache_clear()
    book = replay([Registered(count=10), decision.hold], rules=rules)
    assert decide(rules, everyone(DP_SGD)).hold == decision.hold
    assert budget.meter(book.cohorts.history(0).held_in(LIFELONG) or budget.nothing) == decision.epsilon_after


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"epsilon": -0.1}, "epsilon"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"engine": ""}, "engine"),
        ({"version": 1}, "version"),
    ],
)
def test_a_wrong_promise_is_named(changes: dict[str, Any], argument: str) -> None:
    with pytest.raises(InvalidInput) as error:
        Collapsed(**{"epsilon": 1.0, "delta": 1e-7, "engine": "rdp", "version": "1", **changes})
    assert error.value.argument == argument


def test_wrong_arguments_are_named() -> None:
    calls: dict[str, Any] = {
        "event": lambda: sealed.collapse("gaussian", delta=1e-7, adjacency="add_remove"),  # type: ignore[arg-type]
        "delta": lambda: sealed.collapse(QUIET, delta=0.0, adjacency="add_remove"),
        "adjacency": lambda: sealed.collapse(QUIET, delta=1e-7, adjacency="both"),  # type: ignore[arg-type]
        "releases": lambda: sealed.planned(BUDGET, QUIET, "add_remove", BUDGET.nothing, releases=0),
    }
    for argument, call in calls.items():
        with pytest.raises(InvalidInput) as error:
            call()
        assert error.value.argument == argument


def test_a_sealed_plan_fits_where_hardly_a_step_does() -> None:
    """At (1, 1e-5) and q = 0.01, σ = 1: 254 steps as one release that may use all of δ, two one after the other."""
    step = PoissonSampled(sampling_probability=0.01, event=Gaussian(noise_multiplier=1.0))
    budget = Filter.of(epsilon=1.0, delta=1e-5, preset="pure")
    for steps, fits in ((254, True), (255, False)):
        plan = Repeated(times=steps, event=step)
        assert sealed.admits(budget, plan, "add_remove", [budget.nothing], delta=1e-5) == fits
    mixed = Filter.of(epsilon=1.0, delta=1e-5)
    assert mixed.how_often(sealed.by_curve(mixed, step, "add_remove").cost, after=mixed.nothing) <= 2
    assert sealed.admits(mixed, Repeated(times=200, event=step), "add_remove", [mixed.nothing], delta=5e-6)
