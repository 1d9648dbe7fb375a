"""Decisions and lives: the ledger over cohorts against a ledger that keeps every datapoint by itself."""

import math
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pyroaring import BitMap

from accountant import ledger
from accountant.cohorts import Cohorts
from accountant.errors import InvalidInput, UnknownRelease
from accountant.events import (
    ApproxDP,
    Composed,
    Event,
    Gaussian,
    NonPrivate,
    PureDP,
    Repeated,
)
from accountant.filters import Cost, Filter
from accountant.ledger import (
    LIFELONG,
    Charge,
    Committed,
    Decision,
    Entry,
    Expired,
    Held,
    Registered,
    Rules,
    Voided,
    propose,
    replay,
)

BUDGET = Filter.of(epsilon=1.0, delta=1e-5)
TASK_BUDGET = Filter.of(epsilon=0.5, delta=1e-6)
TASKS = ["w45", "w46", "w47"]  # w47 has no budget of its own
RULES = Rules(lifelong=BUDGET, tasks={"w45": TASK_BUDGET, "w46": TASK_BUDGET})

events = st.sampled_from(
    [
        PureDP(epsilon=0.125),
        PureDP(epsilon=0.3),
        Gaussian(noise_multiplier=15.0),
        Repeated(times=3, event=Gaussian(noise_multiplier=40.0)),
        ApproxDP(epsilon=0.05, delta=2e-6),
        Composed(events=()),
        NonPrivate(),
    ]
)


def scope(*ranges: tuple[int, int]) -> BitMap:
    return BitMap().union(*[BitMap(range(start, stop)) for start, stop in ranges])


def life(count: int, *entries: Entry) -> Cohorts:
    return replay([Registered(count=count), *entries])


def charge(ordinals: BitMap, event: Event, task: str | None = None) -> Charge:
    return Charge(scope=ordinals, event=event, task=task)


def total(cohorts: Cohorts, ordinal: int, name: str = LIFELONG, budget: Filter = BUDGET) -> Cost:
    history = cohorts.history(ordinal)
    parts = [part for part in (history.committed_in(name), history.held_in(name)) if part is not None]
    return sum(parts, budget.nothing)


@dataclass
class Naive:
    """Every datapoint by itself: the charges that were ever held, and what became of their releases."""

    charges: dict[int, list[tuple[str, Charge]]] = field(default_factory=lambda: defaultdict(list))
    statuses: dict[str, str] = field(default_factory=dict)

    def cost(self, ordinal: int, name: str, budget: Filter, *, statuses: set[str]) -> Cost:
        by_release = defaultdict(list)
        for release, one in self.charges[ordinal]:
            if self.statuses[release] in statuses and name in (LIFELONG, one.task):
                by_release[release].append(one.event)
        costs = [budget.price(Composed(events=tuple(those)), "add_remove") for those in by_release.values()]
        return sum(costs, budget.nothing)

    def admits(self, ordinal: int, charges: list[Charge]) -> bool:
        mine = [one for one in charges if ordinal in one.scope]
        for name, budget in RULES.ledgers.items():
            those = [one.event for one in mine if name in (LIFELONG, one.task)]
            before = self.cost(ordinal, name, budget, statuses={"held", "spent"})
            if those and not budget.admits(before + budget.price(Composed(events=tuple(those)), "add_remove")):
                return False
        return True


class Lives(RuleBasedStateMachine):
    """Random lives of a small population. Cohorts and the naive ledger must agree on every decision and every sum."""

    @initialize(count=st.integers(1, 24))
    def start(self, count: int) -> None:
        self.cohorts, self.naive, self.log, self.number = Cohorts(), Naive(), list[Entry](), 0
        self.append(Registered(count=count))

    def append(self, entry: Entry) -> None:
        ledger.apply(self.cohorts, entry)
        self.log.append(entry)

    @precondition(lambda self: self.cohorts.size < 40)
    @rule(count=st.integers(1, 8))
    def register(self, count: int) -> None:
        self.append(Registered(count=count))

    @rule(data=st.data(), on_exhausted=st.sampled_from(["deny", "trim"]))
    def propose(self, data: st.DataObject, on_exhausted: Any) -> None:
        ordinals = st.sets(st.integers(0, self.cohorts.size - 1))
        charges = data.draw(
            st.lists(
                st.builds(charge, ordinals.map(BitMap), events, st.sampled_from([None, *TASKS])),
                min_size=1,
                max_size=3,
            )
        )
        self.number += 1
        release = f"release-{self.number}"
        decision = propose(self.cohorts, replace(RULES, on_exhausted=on_exhausted), release=release, charges=charges)
        touched = BitMap().union(*[one.scope for one in charges])
        refused = {ordinal for ordinal in touched if not self.naive.admits(ordinal, charges)}
        denied = bool(refused) and (on_exhausted == "deny" or refused == set(touched))
        assert decision.outcome == ("denied" if denied else "admitted")
        assert decision.datapoints == len(touched)
        assert decision.trimmed == (0 if denied else len(refused))
        if decision.hold is None:
            assert decision.reasons
            return
        self.naive.statuses[release] = "held"
        for ordinal in set(touched) - refused:
            self.naive.charges[ordinal] += [(release, one) for one in charges if ordinal in one.scope]
        self.append(decision.hold)

    @precondition(lambda self: "held" in self.naive.statuses.values())
    @rule(data=st.data(), outcome=st.sampled_from([Committed, Expired, Voided]))
    def resolve(self, data: st.DataObject, outcome: type[Committed | Expired | Voided]) -> None:
        held = [release for release, status in self.naive.statuses.items() if status == "held"]
        release = data.draw(st.sampled_from(held))
        self.naive.statuses[release] = "void" if outcome is Voided else "spent"
        self.append(outcome(release=release))

    @invariant()
    def every_datapoint_agrees_and_none_has_overspent(self) -> None:
        for ordinal in range(self.cohorts.size if hasattr(self, "cohorts") else 0):
            history = self.cohorts.history(ordinal)
            for name, budget in RULES.ledgers.items():
                committed = history.committed_in(name) or budget.nothing
                held = history.held_in(name) or budget.nothing
                assert committed == self.naive.cost(ordinal, name, budget, statuses={"spent"})
                assert held == self.naive.cost(ordinal, name, budget, statuses={"held"})
                assert budget.admits(committed + held)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            assert dict(replay(self.log).items()) == dict(self.cohorts.items())


test_lives = Lives.TestCase


def test_a_datapoint_is_charged_for_all_charges_of_a_release_composed_once() -> None:
    cohorts = life(10)
    decision = propose(
        cohorts,
        RULES,
        release="r",
        charges=[charge(scope((0, 6)), PureDP(epsilon=1 / 3)), charge(scope((4, 8)), PureDP(epsilon=1 / 3))],
    )
    assert decision.hold is not None
    assert {(part.touch, tuple(part.scope)) for part in decision.hold.parts} == {
        (b"0", (0, 1, 2, 3)),
        (b"0,1", (4, 5)),
        (b"1", (6, 7)),
    }
    ledger.apply(cohorts, decision.hold)
    # Rounded once: twice the third is one unit less than two thirds rounded up apart.
    assert total(cohorts, 4).rho[-1] == 666_666_666_667
    assert total(cohorts, 0).rho[-1] == 333_333_333_334
    assert total(cohorts, 9) == BUDGET.nothing


def test_disjoint_tasks_compose_in_parallel_and_overlapping_ones_in_sequence_by_themselves() -> None:
    cohorts = life(30)
    for release, (start, stop) in {"a": (0, 10), "b": (10, 20), "c": (5, 12)}.items():
        decision = propose(cohorts, RULES, release=release, charges=[charge(scope((start, stop)), PureDP(epsilon=0.3))])
        assert decision.hold is not None
        ledger.apply(cohorts, decision.hold)
    spent = [total(cohorts, ordinal).rho[-1] / 10**12 for ordinal in (0, 5, 11, 15, 25)]
    assert spent == [0.3, 0.6, 0.6, 0.3, 0.0]


def test_a_hold_counts_in_full_until_it_is_voided() -> None:
    cohorts = life(10)
    half = [charge(scope((0, 10)), PureDP(epsilon=0.6))]
    first = propose(cohorts, RULES, release="first", charges=half)
    assert first.hold is not None
    ledger.apply(cohorts, first.hold)
    assert propose(cohorts, RULES, release="second", charges=half).outcome == "denied"
    ledger.apply(cohorts, Voided(release="first"))
    assert dict(cohorts.items()) == dict(life(10).items())
    assert propose(cohorts, RULES, release="second", charges=half).outcome == "admitted"


@pytest.mark.parametrize("end", [Committed, Expired])
def test_silence_is_spent_like_a_commit(end: type[Committed | Expired]) -> None:
    hold = propose(life(5), RULES, release="r", charges=[charge(scope((0, 5)), PureDP(epsilon=0.6))]).hold
    assert hold is not None
    cohorts = life(5, hold, end(release="r"))
    assert cohorts.history(0).held_in(LIFELONG) is None
    assert total(cohorts, 0).rho[-1] == 600_000_000_000
    assert (
        propose(cohorts, RULES, release="s", charges=[charge(scope((0, 1)), PureDP(epsilon=0.5))]).outcome == "denied"
    )


def test_a_task_has_a_ledger_of_its_own_and_both_must_admit() -> None:
    cohorts = life(10)
    in_task = [charge(scope((0, 10)), PureDP(epsilon=0.4), "w46")]
    hold = propose(cohorts, RULES, release="r", charges=in_task).hold
    assert hold is not None
    ledger.apply(cohorts, hold)
    again = propose(cohorts, RULES, release="s", charges=in_task)
    assert [reason.code for reason in again.reasons] == ["task_budget.exceeded"]
    assert again.reasons[0].ledger == "w46"
    assert "the budget of task 'w46' is ε = 0.5" in again.reasons[0].message
    # The same datapoints through another task, or through none: only the lifelong budget counts both.
    for task in ("w45", "w47", None):
        elsewhere = propose(cohorts, RULES, release="s", charges=[charge(scope((0, 10)), PureDP(epsilon=0.4), task)])
        assert elsewhere.outcome == "admitted"
        assert elsewhere.epsilon_after == pytest.approx(0.8)
    both = propose(cohorts, RULES, release="s", charges=[charge(scope((0, 10)), PureDP(epsilon=0.7), "w46")])
    assert [reason.code for reason in both.reasons] == ["budget.exceeded", "task_budget.exceeded"]


def denied() -> tuple[Cohorts, list[Charge], Decision]:
    cohorts = life(1000)
    first = propose(cohorts, RULES, release="r", charges=[charge(scope((0, 400)), PureDP(epsilon=0.8))])
    assert first.hold is not None
    ledger.apply(cohorts, first.hold)
    charges = [charge(scope((100, 600)), Repeated(times=64, event=PureDP(epsilon=0.015625)))]
    return cohorts, charges, propose(cohorts, RULES, release="s", charges=charges)


def test_a_denial_says_who_which_order_and_by_how_much() -> None:
    _, _, decision = denied()
    assert decision.outcome == "denied"
    assert decision.hold is None
    (reason,) = decision.reasons
    assert (reason.code, reason.datapoints) == ("budget.exceeded", 300)
    assert 1.0 < reason.epsilon == decision.epsilon_after
    assert decision.epsilon_before == 0.8
    assert reason.explanation.over == pytest.approx(reason.epsilon - 1.0)
    assert reason.message.startswith("This release would bring 300 datapoints to ε = 1.")
    assert "their lifelong budget is ε = 1 at δ = 1e-05" in reason.message


def test_advice_is_admitted_and_anything_between_it_and_the_proposal_is_not() -> None:
    cohorts, charges, decision = denied()
    advice = {one.kind: one for one in decision.advice}
    assert set(advice) == {"noise", "steps", "trim"}

    def outcome(event: Event) -> str:
        return propose(cohorts, RULES, release="s", charges=[replace(charges[0], event=event)]).outcome

    (noisy,) = advice["noise"].events
    assert isinstance(noisy, Repeated)
    assert isinstance(noisy.event, PureDP)
    assert outcome(noisy) == "admitted"
    assert outcome(replace(noisy, event=PureDP(epsilon=noisy.event.epsilon * 1.001))) == "denied"
    (fewer,) = advice["steps"].events
    assert isinstance(fewer, Repeated)
    assert outcome(fewer) == "admitted"
    assert outcome(replace(fewer, times=fewer.times + 1)) == "denied"
    assert advice["steps"].message == f"{fewer.times} steps instead of 64 would be admitted."
    assert advice["trim"].datapoints == 300
    trimmed = propose(cohorts, replace(RULES, on_exhausted="trim"), release="s", charges=charges)
    assert (trimmed.outcome, trimmed.trimmed, trimmed.datapoints) == ("admitted", 300, 500)


def test_there_is_no_advice_where_nothing_helps() -> None:
    decision = propose(life(10), RULES, release="r", charges=[charge(scope((0, 10)), NonPrivate())])
    assert decision.outcome == "denied"
    assert decision.advice == ()
    assert decision.epsilon_after == math.inf
    assert "beyond any ε" in decision.reasons[0].message


def test_a_trimmed_release_never_charges_who_was_trimmed() -> None:
    cohorts, charges, _ = denied()
    before = {ordinal: cohorts.history(ordinal) for ordinal in (50, 100, 399)}
    hold = propose(cohorts, replace(RULES, on_exhausted="trim"), release="s", charges=charges).hold
    assert hold is not None
    ledger.apply(cohorts, hold)
    assert {ordinal: cohorts.history(ordinal) for ordinal in before} == before
    assert total(cohorts, 400).rho[-1] == 10**12
    everyone = propose(
        cohorts,
        replace(RULES, on_exhausted="trim"),
        release="t",
        charges=[charge(scope((100, 600)), PureDP(epsilon=0.5))],
    )
    assert everyone.outcome == "denied"


def test_an_empty_scope_is_admitted_and_costs_nobody_anything() -> None:
    cohorts = life(5)
    decision = propose(cohorts, RULES, release="r", charges=[charge(BitMap(), Gaussian(noise_multiplier=1.0))])
    assert decision.hold == Held(release="r", parts=())
    assert (decision.epsilon_before, decision.epsilon_after) == (0.0, 0.0)
    assert dict(life(5, decision.hold, Committed(release="r")).items()) == dict(cohorts.items())


def test_a_log_that_resolves_what_is_not_held_is_refused() -> None:
    hold = Held(release="r", parts=())
    unheld: list[Entry] = [Committed(release="r")]
    resolved: list[Entry] = [hold, Voided(release="r"), Expired(release="r")]
    for entries in (unheld, resolved):
        with pytest.raises(UnknownRelease, match="release 'r' has no open hold"):
            replay(entries)
    with pytest.raises(InvalidInput, match="release: expected a release that was not held before"):
        replay([hold, Voided(release="r"), hold])


def test_a_proposal_needs_charges_scopes_inside_the_population_and_a_new_release() -> None:
    cohorts = life(5)
    one = charge(scope((0, 5)), PureDP(epsilon=0.1))
    for charges in ([], [one] * 1001):
        with pytest.raises(InvalidInput, match="charges: expected 1 to 1000 charges"):
            propose(cohorts, RULES, release="r", charges=charges)
    with pytest.raises(InvalidInput, match="scope: expected ordinals below the population's size, 5, got 5"):
        propose(cohorts, RULES, release="r", charges=[charge(scope((0, 6)), PureDP(epsilon=0.1))])
    hold = propose(cohorts, RULES, release="r", charges=[one]).hold
    assert hold is not None
    ledger.apply(cohorts, hold)
    with pytest.raises(InvalidInput, match="release: expected a release without an open hold, got 'r'"):
        propose(cohorts, RULES, release="r", charges=[one])


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"adjacency": "both"}, "adjacency"),
        ({"on_exhausted": "refund"}, "on_exhausted"),
        ({"tasks": {"": BUDGET}}, "tasks"),
    ],
)
def test_wrong_rules_name_the_argument(changes: dict[str, Any], argument: str) -> None:
    with pytest.raises(InvalidInput) as error:
        replace(RULES, **changes)
    assert error.value.argument == argument
