"""The book of a population: every kind of body round-trips, and a log that was tampered with is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from pyroaring import BitMap, FrozenBitMap

from accountant import chain
from accountant.book import Book, bitmap_from, bitmap_to, created, filter_from, filter_to, policy_to, replay, spell
from accountant.canonical import canonical, from_canonical
from accountant.chain import Head, Link
from accountant.errors import AccountantError, BrokenChain, InvalidDocument, InvalidInput
from accountant.filters import Filter
from accountant.ledger import LIFELONG

AT, LATER = "2026-01-01T00:00:00.000000Z", "2026-01-02T00:00:00.000000Z"
Body = dict[str, Any]
Log = list[tuple[Link, bytes]]


def pure(epsilon: float) -> Body:
    return {"kind": "pure_dp", "epsilon": epsilon}


class Diary:
    """A book with the log that leads to it."""

    def __init__(self, **promise: Any) -> None:
        first = created(
            **{
                "population": "clinic",
                "unit": "user",
                "adjacency": "add_remove",
                "epsilon": 1.0,
                "delta": 1e-6,
                **promise,
            }
        )
        self.book = Book.of(spelled := spell(first, at=AT, actor="key_1"))
        self.log: Log = [(self.book.chain.link, spelled)]

    def write(self, body: Body, at: str = AT) -> Body:
        self.book.apply(spelled := spell(body, at=at, actor="key_1"))
        self.log.append((self.book.chain.link, spelled))
        return body

    def register(self, count: int) -> None:
        self.write({"kind": "datapoints.registered", "count": count})

    def task(self, name: str, members: Body, budget: Filter | None = None, **parts: Body) -> None:
        self.write(self.book.task(name=name, members=members, parts=parts, budget=budget)[1])

    def propose(self, name: str, *charges: tuple[Body, Body], stream: Body | None = None, **how: Any) -> Body:
        pairs = [self.book.charge({"scope": s, "event": e}, path=f"charges[{n}]") for n, (s, e) in enumerate(charges)]
        decision = self.book.propose(release=name, charges=[charge for charge, _ in pairs], **how)
        spelled = [body for _, body in pairs]
        if decision.hold is None:
            shown = {"outcome": "denied"}
            return self.write(
                self.book.denied_body(
                    release=name,
                    kind="weights",
                    datapoints=decision.datapoints,
                    charges=spelled,
                    declared={},
                    shown=shown,
                )
            )
        return self.write(
            self.book.held_body(
                decision,
                kind="weights",
                charges=spelled,
                expires_at=LATER,
                declared={"state": {}},
                shown={"outcome": "admitted"},
                stream=stream,
            )
        )

    def policy(self, **lower: float) -> None:
        new = replace(self.book.policy, version=self.book.policy.version + 1, budget=self.book.lowered(**lower))
        self.write({"kind": "policy.changed", "policy": policy_to(new), "reason": "less"})


def full() -> Diary:
    """Every kind of body at least once."""
    diary = Diary(on_exhausted="trim", named_scopes=True)
    diary.register(100)
    diary.task("a", {"next": 40}, Filter.of(epsilon=0.7, delta=1e-7), memory={"ranges": [[0, 5]]})
    diary.task("b", {"union": [{"task": "a", "part": "memory"}, {"bitmap": bitmap_to(BitMap([50, 70]))}]})
    diary.propose("r1", ({"task": "a"}, pure(0.5)), ({"ranges": [[30, 60]]}, pure(0.25)))
    diary.write({"kind": "release.committed", "release": "r1", "artifact": {"sha256": "00"}})
    diary.propose("r2", ({"ranges": [[0, 100]]}, {"kind": "gaussian", "noise_multiplier": 12.0}))
    diary.write({"kind": "release.voided", "release": "r2", "reason": "it crashed"})
    diary.propose("r3", ({"ranges": [[0, 100]]}, pure(0.4)))  # trims those with 0.75
    diary.write({"kind": "release.expired", "release": "r3"})
    diary.write({"kind": "artifact.attached", "release": "r3", "artifact": {"sha256": "11"}})
    diary.propose("r4", ({"ranges": [[0, 100]]}, pure(5.0)))
    diary.write({"kind": "datapoint.erased", "ordinal": 3})
    diary.write({"kind": "datapoint.erased", "ordinal": 4})
    diary.write({"kind": "datapoint.returned", "ordinal": 4})
    diary.policy(epsilon=0.95)
    diary.policy(delta=5e-7)
    for kind in ("population.frozen", "population.opened"):
        diary.write({"kind": kind, "reason": "a pause"})
    diary.propose("r5", ({"task": "b"}, pure(0.01)))
    diary.write({"kind": "population.closed", "reason": "the end"})
    return diary


def state(book: Book) -> Any:
    return (
        book.name, book.unit, book.adjacency, book.promise, book.policy, book.status, book.tasks, book.releases,
        book.erased, book.arrivals, book.chain, dict(book.ledger.cohorts.items()), book.ledger.statuses,
    )  # fmt: skip


def test_every_kind_of_body_round_trips() -> None:
    diary = full()
    kinds = {from_canonical(body)["kind"] for _, body in diary.log}
    assert kinds == {
        "population.created", "datapoints.registered", "task.created", "release.held", "release.committed",
        "release.voided", "release.expired", "release.denied", "artifact.attached", "datapoint.erased",
        "datapoint.returned", "policy.changed", "population.frozen", "population.opened", "population.closed",
    }  # fmt: skip
    for verify in (False, True):
        assert state(replay(diary.log, verify=verify)) == state(diary.book)
    assert diary.book.status == "closed"
    assert diary.book.erased == {3}
    statuses = {name: release.status for name, release in diary.book.releases.items()}
    assert statuses == {"r1": "committed", "r2": "voided", "r3": "expired", "r4": "denied", "r5": "held"}
    assert diary.book.releases["r3"].artifact == {"sha256": "11"}
    assert diary.book.policy.version == 3
    assert diary.book.policy.budget.epsilon == 0.95


def test_a_replay_stops_where_its_visitor_looks() -> None:
    diary = full()
    seen: list[int] = []
    replay(diary.log, visit=lambda book: seen.append(book.number))
    assert seen == list(range(1, len(diary.log) + 1))
    with pytest.raises(InvalidInput):
        replay([])


def test_a_head_that_a_checkpoint_saw_must_be_passed() -> None:
    diary = full()
    middle = replay(diary.log[:7]).chain.head
    end = diary.book.chain.head
    assert replay(diary.log, verify=True, heads=[middle, middle, end]).number == end.number
    wrong = Head(population="clinic", number=middle.number, hash=bytes(32), root=middle.root)
    for heads in ([wrong], [replace(middle, root=bytes(32))]):
        with pytest.raises(BrokenChain):
            replay(diary.log, verify=True, heads=heads)
    with pytest.raises(BrokenChain, match="a checkpoint saw entry"):
        replay(diary.log[:-1], verify=True, heads=[end])


def test_a_trimmed_hold_is_read_back_as_it_was_made() -> None:
    diary = Diary(on_exhausted="trim")
    diary.register(100)
    diary.propose("r1", ({"ranges": [[20, 40]]}, pure(0.8)))
    pairs = [
        diary.book.charge({"scope": {"ranges": [scope]}, "event": pure(epsilon)}, path="c")
        for scope, epsilon in (([0, 60], 0.3), ([30, 100], 0.2))
    ]
    decision = diary.book.propose(release="r2", charges=[charge for charge, _ in pairs])
    assert decision.hold is not None
    assert decision.trimmed == 20
    body = diary.book.held_body(
        decision, kind="weights", charges=[b for _, b in pairs], expires_at=None, declared={}, shown={}
    )
    assert bitmap_from(body["trimmed"]) == BitMap(range(20, 40))
    assert "expires_at" not in body
    assert diary.book.held_from(from_canonical(canonical(body))) == decision.hold
    diary.write(body)
    assert replay(diary.log, verify=True).releases["r2"].datapoints == 80


# ---------------------------------------------------------------- tampering, with all hashes mended


def rewritten(log: Log, change: Callable[[Body], Body | None]) -> Log:
    """The log that somebody writes who can mend every hash: only deciding again can find it."""
    written: Log = []
    made: Book | None = None
    for _, body in log:
        changed = change(deepcopy(from_canonical(body)))
        if changed is None:
            continue
        spelled = canonical(changed)
        previous = chain.begin("clinic") if made is None else made.chain
        grown = previous.append(spelled)
        written.append((grown.link, spelled))
        made = replace_chain(made, spelled, grown)
    return written


def replace_chain(made: Book | None, spelled: bytes, grown: Any) -> Book:
    book = Book.of(spelled) if made is None else made
    book.chain = grown
    return book


def only(kind: str, /, **changes: Any) -> Callable[[Body], Body]:
    def change(body: Body) -> Body:
        if body["kind"] == kind:
            for name, value in changes.items():
                body[name] = value(body[name]) if callable(value) else value
        return body

    return change


def cheaper(parts: list[Body]) -> list[Body]:
    spending = parts[0]["spending"][LIFELONG]
    spending["rho"] = " ".join(str(max(0, int(units) - 1)) for units in spending["rho"].split())
    return parts


def without_task(parts: list[Body]) -> list[Body]:
    for part in parts:
        part["spending"] = {name: cost for name, cost in part["spending"].items() if name == LIFELONG}
    return parts


def raised(policy: Body) -> Body:
    return {**policy, "budget": {**policy["budget"], "epsilon": 1.5}}


def reordered(policy: Body) -> Body:
    return {**policy, "budget": {**policy["budget"], "orders": [2.0], "weights": ["1"]}}


TAMPERING: dict[str, Callable[[Body], Body | None]] = {
    "a price lowered": only("release.held", parts=cheaper),
    "a part left out": only("release.held", parts=lambda parts: parts[1:]),
    "a part twice": only("release.held", parts=lambda parts: [*parts, parts[0]]),
    "a task's ledger left out": only("release.held", parts=without_task),
    "a policy raised": only("policy.changed", policy=raised),
    "another filter": only("policy.changed", policy=reordered),
    "an unknown kind": only("population.frozen", kind="population.melted"),
    "a registration left out": lambda body: None if body["kind"] == "datapoints.registered" else body,
    "a task left out": lambda body: None if body["kind"] == "task.created" else body,
    "a hold left out": lambda body: None if body.get("release") == "r3" and body["kind"] == "release.held" else body,
    "a budget larger from the start": only(
        "population.created", policy=lambda policy: {**policy, "budget": {**policy["budget"], "epsilon": 2.0}}
    ),
    "an event made milder": only(
        "release.held",
        charges=lambda charges: [{**charges[0], "event": {**charges[0]["event"], "epsilon": 0.1}}, *charges[1:]],
    ),
    "a release held twice": only("release.held", release="r1"),
    "a commit of what was denied": only("release.voided", release="r4"),
}


def simple() -> Diary:
    diary = Diary()
    diary.register(100)
    diary.task("a", {"next": 40}, Filter.of(epsilon=0.7, delta=1e-7))
    diary.propose("r1", ({"task": "a"}, pure(0.5)), ({"ranges": [[30, 60]]}, pure(0.25)))
    diary.propose("r3", ({"ranges": [[70, 80]]}, pure(0.25)))
    diary.write({"kind": "release.voided", "release": "r3", "reason": "x"})
    diary.propose("r4", ({"ranges": [[0, 100]]}, pure(5.0)))
    diary.policy(epsilon=0.9)
    diary.write({"kind": "population.frozen", "reason": "x"})
    return diary


@pytest.mark.parametrize("what", TAMPERING)
def test_a_log_that_was_written_anew_is_refused(what: str) -> None:
    log = simple().log
    assert replay(rewritten(log, lambda body: body), verify=True).number == len(log)
    change = TAMPERING[what]
    with pytest.raises((AccountantError, KeyError)):
        replay(rewritten(log, change), verify=True)


def in_a_population_that_is(*kinds: str) -> Diary:
    diary = Diary()
    diary.register(10)
    for kind in kinds:
        diary.write({"kind": f"population.{kind}", "reason": "x"})
    return diary


@pytest.mark.parametrize(
    ("kinds", "refused"),
    [
        (["opened"], None),
        (["frozen", "opened"], None),
        (["frozen"], "expected an open population: entry 4 "),
        (["closed"], "expected an open population: entry 4 "),
        (["closed", "opened"], "expected a closed population to stay closed, at entry 4"),
        (["closed", "frozen"], "expected a closed population to stay closed, at entry 4"),
    ],
)
@pytest.mark.parametrize("epsilon", [0.5, 5.0])
def test_nothing_is_decided_in_a_population_that_is_not_open(
    kinds: list[str], refused: str | None, epsilon: float
) -> None:
    diary = in_a_population_that_is(*kinds)
    decided = diary.propose("r1", ({"ranges": [[0, 10]]}, pure(epsilon)))
    assert decided["kind"] == ("release.held" if epsilon < 1 else "release.denied")
    if refused is None:
        assert replay(diary.log, verify=True).number == len(diary.log)
    else:
        with pytest.raises(InvalidInput, match=re.escape(refused)):
            replay(diary.log, verify=True)


def test_a_hold_that_ran_out_is_voided_by_nobody() -> None:
    for at, in_time in ((AT, True), ("2026-01-01T23:59:59.999999Z", True), (LATER, False), ("2027" + AT[4:], False)):
        diary = in_a_population_that_is()
        diary.propose("r1", ({"ranges": [[0, 10]]}, pure(0.5)))
        diary.write({"kind": "release.voided", "release": "r1", "reason": "x"}, at)
        if in_time:
            assert replay(diary.log, verify=True).releases["r1"].status == "voided"
        else:
            with pytest.raises(InvalidInput, match="when release 'r1' ran out: entry 4 voids it"):
                replay(diary.log, verify=True)
    diary = in_a_population_that_is()
    diary.propose("r1", ({"ranges": [[0, 10]]}, pure(0.5)))
    diary.write({"kind": "release.voided", "release": "r1", "reason": "x"}, "2026-01-01T00:00:00Z")
    with pytest.raises(InvalidDocument, match="at: expected a time like"):
        replay(diary.log, verify=True)


def test_a_release_is_not_voided_under_another_that_leans_on_its_models() -> None:
    for voided, is_free in ((["r1"], False), (["r2"], True), (["r2", "r1"], True)):
        diary = in_a_population_that_is()
        diary.propose("r1", ({"ranges": [[0, 5]]}, pure(0.5)), stream={"id": "s", "trained": ["m"], "reused": []})
        diary.propose("r2", ({"ranges": [[5, 9]]}, pure(0.5)), stream={"id": "s", "trained": ["n"], "reused": ["m"]})
        for name in voided:
            diary.write({"kind": "release.voided", "release": name, "reason": "x"})
        if is_free:
            assert replay(diary.log, verify=True).number == len(diary.log)
        else:
            with pytest.raises(InvalidInput, match="entry 5 voids it under 'r2'"):
                replay(diary.log, verify=True)


def test_any_single_change_of_a_stored_log_is_found() -> None:
    log = full().log
    for place, (link, body) in enumerate(log):
        changed = canonical({**json.loads(body), "actor": "key_2"})
        for wrong in (
            (link, changed),
            (replace(link, hash=bytes(32)), body),
            (replace(link, previous=bytes(32)), body),
            (replace(link, number=link.number + 1), body),
        ):
            with pytest.raises(AccountantError):
                replay([*log[:place], wrong, *log[place + 1 :]], verify=True)
        if 0 < place < len(log) - 1:
            with pytest.raises(AccountantError):
                replay([*log[:place], *log[place + 1 :], log[place]], verify=True)


def test_the_chain_is_looked_at_before_the_decision() -> None:
    log = full().log
    with pytest.raises(BrokenChain, match="entry 3 breaks the chain"):
        replay([*log[:2], *log[3:]], verify=True)  # the task that later entries name is missing


# ---------------------------------------------------------------- what cannot be written


@pytest.mark.parametrize(
    ("path", "scope"),
    [
        ("scope", {}),
        ("scope", {"task": "a", "ranges": [[0, 1]]}),
        ("scope", {"keys": ["ann"]}),
        ("scope", {"task": 7}),
        ("scope.task", {"task": "z"}),
        ("scope.part", {"task": "a", "part": "z"}),
        ("scope.part", {"task": "a", "part": 1}),
        ("scope.ranges", {"ranges": []}),
        ("scope.ranges[1]", {"ranges": [[0, 1], [1]]}),
        ("scope.ranges[0]", {"ranges": [[3, 2]]}),
        ("scope.ranges[0]", {"ranges": [[0.0, 1.0]]}),
        ("scope.ranges[0]", {"ranges": [[False, True]]}),
        ("scope.ranges[0]", {"ranges": [[0, 2**32 + 1]]}),
        ("scope", {"ranges": [[0, 101]]}),
        ("scope.bitmap", {"bitmap": "not base64!"}),
        ("scope.bitmap", {"bitmap": "AAAA"}),
        ("scope", {"bitmap": bitmap_to(BitMap())}),
        ("scope", {"bitmap": bitmap_to(BitMap([100]))}),
        ("scope.union", {"union": []}),
        ("scope.union", {"union": [{"ranges": [[0, 1]]}] * 101}),
        ("scope.union[0]", {"union": [{"union": [{"ranges": [[0, 1]]}]}]}),
        ("scope.union[1].ranges[0]", {"union": [{"task": "a"}, {"ranges": [[1, 1]]}]}),
        ("scope", {"union": [{"task": "a"}, {"task": "b"}]}),
    ],
)
def test_a_scope_that_cannot_be_is_refused_with_its_path(path: str, scope: Body) -> None:
    diary = Diary()
    diary.register(100)
    diary.task("a", {"next": 10})
    diary.task("b", {"next": 10})
    with pytest.raises(InvalidDocument) as refused:
        diary.book.scope(scope)
    assert refused.value.argument == path


def test_bitmaps_round_trip_and_stay_small() -> None:
    for given in (BitMap([7]), BitMap(range(10**8)), BitMap(range(0, 10**5, 3)), FrozenBitMap([2**32 - 1])):
        assert bitmap_from(bitmap_to(given)) == FrozenBitMap(given)
    assert len(bitmap_to(BitMap(range(10**8)))) < 40_000


def test_filters_round_trip() -> None:
    for preset in ("mixed", "gaussian", "pure"):
        budget = Filter.of(epsilon=0.7, delta=1e-7, preset=preset)
        assert filter_from(from_canonical(canonical(filter_to(budget)))) == budget


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("unit", {"unit": "household"}),
        ("adjacency", {"adjacency": "zero_out"}),
        ("population", {"population": ""}),
        ("epsilon", {"epsilon": -1.0}),
        ("delta", {"delta": 2.0}),
        ("accepts", {"accepts": []}),
        ("accepts", {"accepts": ["hoped"]}),
    ],
)
def test_a_promise_that_cannot_be_is_refused(field: str, wrong: Body) -> None:
    with pytest.raises(InvalidInput) as refused:
        Diary(**wrong)
    assert refused.value.argument == field


def test_a_policy_is_never_raised() -> None:
    diary = Diary()
    diary.policy(epsilon=0.5)
    for wrong in ({"epsilon": 0.6}, {"delta": 1e-5}):
        with pytest.raises(InvalidInput, match="of the policy in force: it is never raised"):
            diary.book.lowered(**wrong)
    lowered = diary.book.lowered(epsilon=0.1, delta=1e-9)
    assert (lowered.orders, lowered.weights) == (diary.book.promise.orders, diary.book.promise.weights)
    assert (
        lowered.delta_filter + lowered.delta_parts <= diary.book.promise.delta_filter + diary.book.promise.delta_parts
    )
    pure_only = Diary(delta=0.0, preset="pure")
    assert pure_only.book.lowered(epsilon=0.5).delta == 0


def test_arrivals_go_on_after_the_last_task() -> None:
    diary = Diary()
    diary.register(30)
    diary.task("a", {"next": 10})
    diary.task("b", {"ranges": [[5, 15]]})
    diary.task("c", {"next": 15})
    assert diary.book.tasks["c"].members == BitMap(range(15, 30))
    assert [(other.name, shared) for other, shared in diary.book.overlaps(diary.book.tasks["b"])] == [("a", 5)]
    assert not list(diary.book.overlaps(diary.book.tasks["b"], after=diary.book.tasks["a"].number))
    with pytest.raises(InvalidInput, match="at most 0"):
        diary.task("d", {"next": 1})
    with pytest.raises(InvalidInput, match="no task"):
        diary.task("a", {"ranges": [[0, 1]]})
