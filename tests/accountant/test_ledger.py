"""Decisions and lives: the ledger over cohorts against a ledger that keeps every datapoint by itself."""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pyroaring import BitMap, FrozenBitMap

from accountant import account, ledger
from accountant.engines import rdp
from accountant.errors import InvalidInput, UnknownRelease
from accountant.events import (
    ApproxDP,
    Composed,
    Event,
    Gaussian,
    NonPrivate,
    PureDP,
    Repeated,
    counted,
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
    Ledger,
    Registered,
    Rules,
    Voided,
    propose,
    replay,
)
from accountant.sealed import Collapsed
from accountant.units import exact

BUDGET = Filter.of(epsilon=1.0, delta=1e-5)
TASK_BUDGET = Filter.of(epsilon=0.5, delta=1e-6)
TASKS = ["w45", "w46", "w47"]  # w47 has no budget of its own
RULES = Rules(lifelong=BUDGET, tasks={"w45": TASK_BUDGET, "w46": TASK_BUDGET})

#: Of random lives: the task whose budget is pure can pay for a Gaussian by a collapse only.
LIVES = replace(RULES, tasks={"w45": TASK_BUDGET, "w46": Filter.of(epsilon=0.8, delta=1e-5, preset="pure")})

events = st.sampled_from(
    [
        PureDP(epsilon=0.125),
        PureDP(epsilon=0.3),
        Gaussian(noise_multiplier=4.65),
        Gaussian(noise_multiplier=9.8),
        Gaussian(noise_multiplier=15.0),
        Repeated(times=100, event=PureDP(epsilon=0.005)),
        Repeated(times=3, event=Gaussian(noise_multiplier=40.0)),
        ApproxDP(epsilon=0.05, delta=2e-6),
        Composed(events=()),
        NonPrivate(),
    ]
)


def scope(*ranges: tuple[int, int]) -> BitMap:
    return BitMap().union(*[BitMap(range(start, stop)) for start, stop in ranges])


def life(count: int, *entries: Entry) -> Ledger:
    return replay([Registered(count=count), *entries])


def charge(ordinals: BitMap, event: Event, task: str | None = None) -> Charge:
    return Charge(scope=ordinals, event=event, task=task)


def total(book: Ledger, ordinal: int, name: str = LIFELONG, budget: Filter = BUDGET) -> Cost:
    history = book.cohorts.history(ordinal)
    parts = [part for part in (history.committed_in(name), history.held_in(name)) if part is not None]
    return sum(parts, budget.nothing)


Promise = tuple[float, float]  # a collapse: ε and δ


def naive_cost(budget: Filter, event: Event, promise: Promise | None) -> Cost:
    charged = event if promise is None else ApproxDP(epsilon=promise[0], delta=promise[1])
    return budget.price(charged, "add_remove")


@lru_cache
def naive_promise(budget: Filter, event: Event, least_left: Fraction) -> Promise | None:
    """The event as (ε, δ): a 32nd of δ″ above its own δ, if so much is left; ε to seven digits, from above."""
    own = rdp.curve(event, budget.orders, "add_remove").delta
    share = min(own + budget.delta_parts / 32, least_left)
    delta = float(share)
    while exact(delta) > share:
        delta = math.nextafter(delta, 0.0)
    upper = account(event, delta=delta).upper if delta > 0 else math.inf
    if math.isinf(upper):
        return None
    above = Fraction(upper) * (1 + Fraction(1, 10**8)) + Fraction(1, 10**12)
    digit = Fraction(10) ** (math.floor(math.log10(above)) - 6)
    return float(math.ceil(above / digit) * digit), delta


def naive_choice(budget: Filter, event: Event, totals: Iterable[Cost]) -> Promise | None:
    """How the release is charged to datapoints that stand there, one by one; None is the curve."""
    totals = list(totals)
    counts = counted(event)
    if not counts or (sum(counts.values()) == 1 and not {Gaussian, NonPrivate} & {type(leaf) for leaf in counts}):
        return None  # nothing to compose
    own = rdp.curve(event, budget.orders, "add_remove").delta
    left = [budget.delta_parts - Fraction(total.delta, 10**30) for total in totals]
    promise = naive_promise(budget, event, min([some for some in left if some > own], default=own))
    if promise is None:
        return None
    curve, collapsed = (naive_cost(budget, event, way) for way in (None, promise))
    by_curve, by_collapse = ([budget.admits(total + cost) for total in totals] for cost in (curve, collapsed))
    if sum(by_curve) != sum(by_collapse):
        return promise if sum(by_collapse) > sum(by_curve) else None
    both = [total for total, *admitted in zip(totals, by_curve, by_collapse, strict=True) if all(admitted)]
    worst = max(both or totals, key=lambda total: (budget.meter(total), total.delta, total.rho))
    if not both:
        return promise if budget.meter(worst + collapsed) < budget.meter(worst + curve) else None
    often, often_collapsed = (
        next(n for n in range(1, 1000) if not budget.admits(worst + cost * (n + 1))) for cost in (curve, collapsed)
    )
    if often != often_collapsed:
        return promise if often_collapsed > often else None
    before, after, otherwise = (budget.largest_pure(total) for total in (worst, worst + curve, worst + collapsed))
    saved = Fraction(collapsed.delta - curve.delta, budget.limits.delta) * (before - after)
    return promise if otherwise > after and otherwise - after >= saved else None


@dataclass
class Naive:
    """Every datapoint by itself: the charges that were ever held, how they were charged, and what became of them."""

    charges: dict[int, list[tuple[str, Charge]]] = field(default_factory=lambda: defaultdict(list))
    promises: dict[tuple[str, int, str], Promise | None] = field(default_factory=dict)
    statuses: dict[str, str] = field(default_factory=dict)

    def cost(self, ordinal: int, name: str, budget: Filter, *, statuses: set[str]) -> Cost:
        by_release = defaultdict(list)
        for release, one in self.charges[ordinal]:
            if self.statuses[release] in statuses and name in (LIFELONG, one.task):
                by_release[release].append(one.event)
        costs = [
            naive_cost(budget, Composed(events=tuple(those)), self.promises[release, ordinal, name])
            for release, those in by_release.items()
        ]
        return sum(costs, budget.nothing)

    def choices(self, release: str, charges: list[Charge]) -> set[int]:
        """Decide how the release is charged to everyone, and give those who cannot afford it."""
        refused = set()
        alike = defaultdict(list)  # datapoints by the charges that touch them
        for ordinal in BitMap().union(*[one.scope for one in charges]):
            alike[tuple(number for number, one in enumerate(charges) if ordinal in one.scope)].append(ordinal)
        for touching, ordinals in alike.items():
            for name, budget in LIVES.ledgers.items():
                those = [charges[number] for number in touching if name in (LIFELONG, charges[number].task)]
                if those:
                    event = Composed(events=tuple(one.event for one in those))
                    totals = {each: self.cost(each, name, budget, statuses={"held", "spent"}) for each in ordinals}
                    promise = naive_choice(budget, event, totals.values())
                    cost = naive_cost(budget, event, promise)
                    refused |= {each for each in ordinals if not budget.admits(totals[each] + cost)}
                    self.promises |= {(release, each, name): promise for each in ordinals}
        return refused


def recorded(hold: Held) -> dict[tuple[str, int, str], Promise | None]:
    """How the log says that everyone was charged."""
    return {
        (hold.release, ordinal, name): (found.epsilon, found.delta) if (found := collapsed.get(name)) else None
        for part in hold.parts
        for collapsed in [dict[str, Collapsed](part.collapsed)]
        for name, _ in part.spending
        for ordinal in part.scope
    }


class Lives(RuleBasedStateMachine):
    """Random lives of a small population. Cohorts and the naive ledger must agree on every decision and every sum."""

    @initialize(count=st.integers(1, 24))
    def start(self, count: int) -> None:
        self.book, self.naive, self.log, self.number = Ledger(), Naive(), list[Entry](), 0
        self.append(Registered(count=count))

    def append(self, entry: Entry) -> None:
        ledger.apply(self.book, entry)
        self.log.append(entry)

    @precondition(lambda self: self.book.cohorts.size < 40)
    @rule(count=st.integers(1, 8))
    def register(self, count: int) -> None:
        self.append(Registered(count=count))

    @rule(data=st.data(), on_exhausted=st.sampled_from(["deny", "trim"]))
    def propose(self, data: st.DataObject, on_exhausted: Any) -> None:
        ordinals = st.sets(st.integers(0, self.book.cohorts.size - 1))
        charges = data.draw(
            st.lists(
                st.builds(charge, ordinals.map(BitMap), events, st.sampled_from([None, *TASKS])),
                min_size=1,
                max_size=3,
            )
        )
        self.number += 1
        release = f"release-{self.number}"
        decision = propose(self.book, replace(LIVES, on_exhausted=on_exhausted), release=release, charges=charges)
        touched = BitMap().union(*[one.scope for one in charges])
        refused = self.naive.choices(release, charges)
        denied = bool(refused) and (on_exhausted == "deny" or refused == set(touched))
        assert decision.outcome == ("denied" if denied else "admitted")
        assert decision.datapoints == len(touched)
        assert decision.trimmed == (0 if denied else len(refused))
        if decision.hold is None:
            assert decision.reasons
            return
        kept = {key: way for key, way in self.naive.promises.items() if key[0] == release and key[1] not in refused}
        assert recorded(decision.hold) == kept
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
        for ordinal in range(self.book.cohorts.size if hasattr(self, "book") else 0):
            history = self.book.cohorts.history(ordinal)
            for name, budget in LIVES.ledgers.items():
                committed = history.committed_in(name) or budget.nothing
                held = history.held_in(name) or budget.nothing
                assert committed == self.naive.cost(ordinal, name, budget, statuses={"spent"})
                assert held == self.naive.cost(ordinal, name, budget, statuses={"held"})
                assert budget.admits(committed + held)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            again = replay(self.log, rules=replace(LIVES, on_exhausted="trim"))
            assert dict(again.cohorts.items()) == dict(self.book.cohorts.items())
            assert again.statuses == self.book.statuses


test_lives = Lives.TestCase
test_lives.settings = settings(settings(), stateful_step_count=15, suppress_health_check=[HealthCheck.too_slow])


def test_a_datapoint_is_charged_for_all_charges_of_a_release_composed_once() -> None:
    book = life(10)
    decision = propose(
        book,
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
    ledger.apply(book, decision.hold)
    # Rounded once: twice the third is one unit less than two thirds rounded up apart.
    assert total(book, 4).rho[-1] == 666_666_666_667
    assert total(book, 0).rho[-1] == 333_333_333_334
    assert total(book, 9) == BUDGET.nothing


def test_disjoint_tasks_compose_in_parallel_and_overlapping_ones_in_sequence_by_themselves() -> None:
    book = life(30)
    for release, (start, stop) in {"a": (0, 10), "b": (10, 20), "c": (5, 12)}.items():
        decision = propose(book, RULES, release=release, charges=[charge(scope((start, stop)), PureDP(epsilon=0.3))])
        assert decision.hold is not None
        ledger.apply(book, decision.hold)
    spent = [total(book, ordinal).rho[-1] / 10**12 for ordinal in (0, 5, 11, 15, 25)]
    assert spent == [0.3, 0.6, 0.6, 0.3, 0.0]


def test_a_hold_counts_in_full_until_it_is_voided() -> None:
    book = life(10)
    half = [charge(scope((0, 10)), PureDP(epsilon=0.6))]
    first = propose(book, RULES, release="first", charges=half)
    assert first.hold is not None
    ledger.apply(book, first.hold)
    assert propose(book, RULES, release="second", charges=half).outcome == "denied"
    ledger.apply(book, Voided(release="first"))
    assert dict(book.cohorts.items()) == dict(life(10).cohorts.items())
    assert propose(book, RULES, release="second", charges=half).outcome == "admitted"


@pytest.mark.parametrize("end", [Committed, Expired])
def test_silence_is_spent_like_a_commit(end: type[Committed | Expired]) -> None:
    hold = propose(life(5), RULES, release="r", charges=[charge(scope((0, 5)), PureDP(epsilon=0.6))]).hold
    assert hold is not None
    book = life(5, hold, end(release="r"))
    assert book.cohorts.history(0).held_in(LIFELONG) is None
    assert total(book, 0).rho[-1] == 600_000_000_000
    assert propose(book, RULES, release="s", charges=[charge(scope((0, 1)), PureDP(epsilon=0.5))]).outcome == "denied"


def test_a_task_has_a_ledger_of_its_own_and_both_must_admit() -> None:
    book = life(10)
    in_task = [charge(scope((0, 10)), PureDP(epsilon=0.4), "w46")]
    hold = propose(book, RULES, release="r", charges=in_task).hold
    assert hold is not None
    ledger.apply(book, hold)
    again = propose(book, RULES, release="s", charges=in_task)
    assert [reason.code for reason in again.reasons] == ["task_budget.exceeded"]
    assert again.reasons[0].ledger == "w46"
    assert "the budget of task 'w46' is ε = 0.5" in again.reasons[0].message
    # The same datapoints through another task, or through none: only the lifelong budget counts both.
    for task in ("w45", "w47", None):
        elsewhere = propose(book, RULES, release="s", charges=[charge(scope((0, 10)), PureDP(epsilon=0.4), task)])
        assert elsewhere.outcome == "admitted"
        assert elsewhere.epsilon_after == pytest.approx(0.8)
    both = propose(book, RULES, release="s", charges=[charge(scope((0, 10)), PureDP(epsilon=0.7), "w46")])
    assert [reason.code for reason in both.reasons] == ["budget.exceeded", "task_budget.exceeded"]


def denied() -> tuple[Ledger, list[Charge], Decision]:
    book = life(1000)
    first = propose(book, RULES, release="r", charges=[charge(scope((0, 400)), PureDP(epsilon=0.8))])
    assert first.hold is not None
    ledger.apply(book, first.hold)
    charges = [charge(scope((100, 600)), Repeated(times=64, event=PureDP(epsilon=0.015625)))]
    return book, charges, propose(book, RULES, release="s", charges=charges)


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
    assert "the lifelong budget is ε = 1 at δ = 1e-05" in reason.message


def test_advice_is_admitted_and_anything_between_it_and_the_proposal_is_not() -> None:
    book, charges, decision = denied()
    advice = {one.kind: one for one in decision.advice}
    assert set(advice) == {"noise", "steps", "trim"}

    def outcome(event: Event) -> str:
        return propose(book, RULES, release="s", charges=[replace(charges[0], event=event)]).outcome

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
    trimmed = propose(book, replace(RULES, on_exhausted="trim"), release="s", charges=charges)
    assert (trimmed.outcome, trimmed.trimmed, trimmed.datapoints) == ("admitted", 300, 500)


def test_there_is_no_advice_where_nothing_helps() -> None:
    decision = propose(life(10), RULES, release="r", charges=[charge(scope((0, 10)), NonPrivate())])
    assert decision.outcome == "denied"
    assert decision.advice == ()
    assert decision.epsilon_after == math.inf
    assert "beyond any ε" in decision.reasons[0].message


def test_a_trimmed_release_never_charges_who_was_trimmed() -> None:
    book, charges, _ = denied()
    before = {ordinal: book.cohorts.history(ordinal) for ordinal in (50, 100, 399)}
    hold = propose(book, replace(RULES, on_exhausted="trim"), release="s", charges=charges).hold
    assert hold is not None
    ledger.apply(book, hold)
    assert {ordinal: book.cohorts.history(ordinal) for ordinal in before} == before
    assert total(book, 400).rho[-1] == 10**12
    everyone = propose(
        book,
        replace(RULES, on_exhausted="trim"),
        release="t",
        charges=[charge(scope((100, 600)), PureDP(epsilon=0.5))],
    )
    assert everyone.outcome == "denied"


def test_an_empty_scope_is_admitted_and_costs_nobody_anything() -> None:
    book = life(5)
    decision = propose(book, RULES, release="r", charges=[charge(BitMap(), Gaussian(noise_multiplier=1.0))])
    assert decision.hold is not None
    assert decision.hold.parts == ()
    assert (decision.epsilon_before, decision.epsilon_after) == (0.0, 0.0)
    assert dict(life(5, decision.hold, Committed(release="r")).cohorts.items()) == dict(book.cohorts.items())


def test_a_log_that_resolves_what_is_not_held_is_refused() -> None:
    hold = Held(release="r", charges=(), parts=())
    unheld: list[Entry] = [Committed(release="r")]
    resolved: list[Entry] = [hold, Voided(release="r"), Expired(release="r")]
    for entries in (unheld, resolved):
        with pytest.raises(UnknownRelease, match="release 'r' has no open hold"):
            replay(entries)
    with pytest.raises(InvalidInput, match="release: expected a name that no release had before"):
        replay([hold, Voided(release="r"), hold])


def test_a_proposal_needs_charges_scopes_inside_the_population_and_a_new_release() -> None:
    book = life(5)
    one = charge(scope((0, 5)), PureDP(epsilon=0.1))
    for charges in ([], [one] * 1001):
        with pytest.raises(InvalidInput, match="charges: expected 1 to 1000 charges"):
            propose(book, RULES, release="r", charges=charges)
    with pytest.raises(InvalidInput, match="scope: expected ordinals below the population's size, 5, got 5"):
        propose(book, RULES, release="r", charges=[charge(scope((0, 6)), PureDP(epsilon=0.1))])
    hold = propose(book, RULES, release="r", charges=[one]).hold
    assert hold is not None
    ledger.apply(book, hold)
    with pytest.raises(InvalidInput, match="release: expected a name that no release had before, got 'r'"):
        propose(book, RULES, release="r", charges=[one])


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


def test_a_name_is_used_once_whatever_became_of_it_and_whoever_it_touches() -> None:
    book = life(20)
    hold = propose(book, RULES, release="r", charges=[charge(scope((0, 10)), PureDP(epsilon=0.1))]).hold
    assert hold is not None
    ledger.apply(book, hold)
    elsewhere = [charge(scope((10, 20)), PureDP(epsilon=0.1))]
    for entry in (None, Voided(release="r")):
        if entry:
            ledger.apply(book, entry)
        with pytest.raises(InvalidInput, match="release: expected a name that no release had before"):
            propose(book, RULES, release="r", charges=elsewhere)
        with pytest.raises(InvalidInput, match="release: expected a name that no release had before"):
            ledger.apply(book, hold)
    unheld: list[Entry] = [Committed(release="r"), Voided(release="s")]
    for one in unheld:
        with pytest.raises(UnknownRelease):
            ledger.apply(book, one)


def test_a_log_says_what_was_done_and_is_priced_again() -> None:
    charges = [charge(scope((0, 6)), PureDP(epsilon=0.2), "w46"), charge(scope((4, 8)), Gaussian(noise_multiplier=9.0))]
    hold = propose(life(10), RULES, release="r", charges=charges).hold
    assert hold is not None
    assert hold.charges == tuple(charges)
    log: list[Entry] = [Registered(count=10), hold]
    assert replay(log, rules=RULES).statuses == {"r": "held"}
    cheaper = replace(hold, charges=(replace(charges[0], event=PureDP(epsilon=0.1)), charges[1]))
    with pytest.raises(InvalidInput, match="spending: expected the price of these charges of release 'r'"):
        replay([Registered(count=10), cheaper], rules=RULES)
    narrower = replace(hold, charges=(replace(charges[0], scope=scope((0, 3))), charges[1]))
    with pytest.raises(InvalidInput, match="scope: expected datapoints that these charges of release 'r' touch"):
        replay([Registered(count=10), narrower], rules=RULES)
    more = replace(hold, charges=(*charges, charge(scope((0, 2)), PureDP(epsilon=0.1))))
    with pytest.raises(InvalidInput, match=r"scope: expected datapoints .* and no others"):
        replay([Registered(count=10), more], rules=RULES)


def test_scopes_that_cut_each_other_to_pieces_are_refused() -> None:
    book = life(1 << 14)
    bits = [charge(BitMap(n for n in range(1 << 14) if n >> bit & 1), PureDP(epsilon=0.001)) for bit in range(14)]
    assert propose(book, RULES, release="r", charges=bits[:8]).outcome == "admitted"
    with pytest.raises(InvalidInput, match="charges: expected scopes that cut each other into at most 1000 sets"):
        propose(book, RULES, release="r", charges=bits)


ONE = charge(BitMap([0]), PureDP(epsilon=0.1))


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: propose(life(5), RULES, release="", charges=[]), "release"),
        (lambda: propose(life(5), RULES, release=5, charges=[]), "release"),  # type: ignore[arg-type]
        *(
            (lambda bad=bad: propose(life(5), RULES, release="r", charges=[ONE], delta=bad), "delta")
            for bad in (-1e-9, 5.1e-6, 1.0, math.nan, math.inf, True, "1e-7")
        ),
        (lambda: propose(life(5), RULES, release="r", charges=[PureDP(epsilon=0.1)]), "charges"),  # type: ignore[list-item]
        (lambda: Charge(scope={1, 2}, event=PureDP(epsilon=0.1)), "scope"),  # type: ignore[arg-type]
        (lambda: Charge(scope=BitMap(), event={"kind": "gaussian"}), "event"),  # type: ignore[arg-type]
        (lambda: charge(BitMap(), PureDP(epsilon=0.1), ""), "task"),
        (lambda: Rules(lifelong=1.0), "lifelong"),  # type: ignore[arg-type]
        (lambda: Rules(lifelong=BUDGET, tasks={"a": 3}), "tasks['a']"),  # type: ignore[dict-item]
    ],
)
def test_wrong_values_are_named(call: Any, argument: str) -> None:
    with pytest.raises(InvalidInput) as error:
        call()
    assert error.value.argument == argument


def test_a_log_does_not_change_with_the_bitmap_that_it_was_made_from() -> None:
    ordinals = scope((0, 5))
    one = charge(ordinals, PureDP(epsilon=0.1))
    ordinals.add(7)
    assert list(one.scope) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("touch", [b"", b"first", b"1", b"-1", b"0,7"])
def test_a_log_whose_parts_name_no_charge_is_refused(touch: bytes) -> None:
    decision = propose(life(10), RULES, release="r", charges=[charge(scope((0, 5)), PureDP(epsilon=0.1))])
    assert decision.hold is not None
    (part,) = decision.hold.parts
    wrong = replace(decision.hold, parts=(replace(part, touch=touch),))
    with pytest.raises(InvalidInput, match="touch: expected numbers of charges of release 'r'"):
        replay([Registered(count=10), wrong], rules=RULES)


def test_a_log_that_charges_too_few_or_too_much_is_refused() -> None:
    decision = propose(life(10), RULES, release="r", charges=[charge(scope((0, 5)), PureDP(epsilon=0.6))])
    assert decision.hold is not None
    hold = decision.hold
    (part,) = hold.parts
    nobody, some = replace(hold, parts=()), replace(hold, parts=(replace(part, scope=FrozenBitMap([0])),))
    for too_few in (nobody, some):
        with pytest.raises(InvalidInput, match="parts: expected all 5 datapoints that its charges touch, got 'r'"):
            replay([Registered(count=10), too_few], rules=RULES)
    twice = replace(hold, parts=(part, replace(part, scope=FrozenBitMap([0]))))
    with pytest.raises(InvalidInput, match="parts: expected each datapoint of release 'r' once"):
        replay([Registered(count=10), twice], rules=RULES)
    with pytest.raises(InvalidInput, match="hold: expected a hold that ledger '' admits, got 's'"):
        replay([Registered(count=10), hold, replace(hold, release="s")], rules=RULES)
    lenient = replace(RULES, on_exhausted="trim")
    with pytest.raises(InvalidInput, match="trimmed: expected nobody who can afford release 'r' left out of it, got 4"):
        replay([Registered(count=10), some], rules=lenient)
    # Once the four have spent what it takes, they may be left out, and nobody else.
    before = propose(life(10), RULES, release="b", charges=[charge(scope((1, 5)), PureDP(epsilon=0.6))]).hold
    assert before is not None
    assert replay([Registered(count=10), before, some], rules=lenient).statuses == {"b": "held", "r": "held"}
    with pytest.raises(InvalidInput, match="parts: expected all 5"):
        replay([Registered(count=10), nobody], rules=lenient)
