"""The audits of a population's life: what a plan fixes, what follows from a bound, and logs that say otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from accountant.audit.empirical import GAUSSIAN_SHAPE, INDEPENDENT, LowerBound
from accountant.audit.series import concluded_body, planned_body
from accountant.audit.verdicts import FALSE_ALARMS, Power, confidence_of
from accountant.book import policy_to, replay
from accountant.canonical import from_canonical
from accountant.errors import AccountantError, InvalidInput
from tests.accountant.test_book import Body, Diary, only, pure, rewritten

DELTA = 1e-5


def bound(number: int, epsilon: float, **more: Any) -> LowerBound:
    """What audit `number` found of a mechanism."""
    given = LowerBound(
        epsilon_lower=epsilon, delta=DELTA, confidence=confidence_of(number), method="clopper_pearson", samples=750,
        assumptions=(INDEPENDENT,), attainable=5.0,
    )  # fmt: skip
    return replace(given, **more)


PLAN: dict[str, Any] = {
    "mechanism": "dp-sgd", "name": "one step", "samples": 1000, "epsilon": 2.0, "delta": DELTA, "by": "catalog",
    "on_violation": "block", "seed": "00" * 16, "power": Power("half the noise", 1000),
}  # fmt: skip


def plan(diary: Diary, name: str, **more: Any) -> None:
    diary.write(planned_body(audit=name, **{"number": len(diary.book.audits) + 1, **PLAN, **more}))


def conclude(diary: Diary, name: str, epsilon: float, **more: Any) -> None:
    planned = diary.book.audits[name]
    diary.write(concluded_body(planned, bound(planned.number, epsilon, **more)))


def lift(diary: Diary, *names: str) -> None:
    policy = replace(diary.book.policy, version=diary.book.policy.version + 1, lifted=names)
    diary.write({"kind": "policy.changed", "policy": policy_to(policy), "reason": "the fault is mended"})


def hold(diary: Diary, name: str, *, mechanism: str = "dp-sgd", expires_at: str | None = None) -> Body:
    charge, spelled = diary.book.charge({"scope": {"ranges": [[0, 10]]}, "event": pure(0.01)}, path="c")
    return diary.write(
        diary.book.held_body(
            diary.book.propose(release=name, charges=[charge]),
            kind="weights",
            charges=[spelled],
            expires_at=expires_at,
            declared={"mechanism": {"name": mechanism, "parameters": {}}},
            shown={},
        )
    )


def full() -> Diary:
    """Two holds, a violation that is lifted, an audit that came to nothing, and one that says nothing."""
    diary = Diary()
    diary.register(100)
    hold(diary, "r1")
    plan(diary, "a1")
    conclude(diary, "a1", 2.5)
    diary.write({"kind": "release.voided", "release": "r1", "reason": "an audit"})
    hold(diary, "r2", mechanism="label-release")
    lift(diary, "a1")
    hold(diary, "r3")
    diary.write({"kind": "release.committed", "release": "r3", "artifact": {"sha256": "00"}})
    plan(diary, "a2")
    diary.write({"kind": "audit.abandoned", "audit": "a2", "error": "memory"})
    plan(diary, "a3", on_violation="freeze")
    conclude(diary, "a3", 1.0)
    return diary


def test_a_plan_fixes_the_confidence_and_the_share_of_one_that_fails_is_used() -> None:
    diary = full()
    assert replay(diary.log, verify=True).audits == diary.book.audits
    audits = list(diary.book.audits.values())
    assert [audit.number for audit in audits] == [1, 2, 3]
    assert [audit.confidence for audit in audits] == [confidence_of(number) for number in (1, 2, 3)]
    assert sum(1 - audit.confidence for audit in audits) < FALSE_ALARMS
    assert [audit.stage for audit in audits] == ["concluded", "abandoned", "concluded"]
    assert [audit.verdict for audit in audits] == ["violation", None, "consistent"]
    assert [audit.sentence.split(":")[0] for audit in audits] == [
        "The promise of ε ≤ 2 at δ = 1e-05 for 'dp-sgd' is false",
        "Audit 2 of this population, of 'dp-sgd', came to nothing, and has used its share of errors.",
        (
            "Nothing was found against the promise of ε ≤ 2 at δ = 1e-05 for 'dp-sgd', by an audit that would have "
            "caught the mechanism weakened to half the noise"
        ),
    ]


@pytest.mark.parametrize(
    ("promised", "shown", "words"),
    [
        (
            1.9931,
            1.2345,
            "by an audit that would have caught the mechanism weakened to half the noise: an attack showed ε ≥ 1.23 ",
        ),
        (1.9931, 1.9967, "of ε ≤ 1.994 at δ = 1e-05 for 'dp-sgd' is false: an attack showed ε ≥ 1.996 "),
    ],
)
def test_a_promise_is_shown_rounded_up_and_a_bound_down_yet_apart(promised: float, shown: float, words: str) -> None:
    diary = Diary()
    plan(diary, "a1", epsilon=promised)
    conclude(diary, "a1", shown)
    said = diary.book.audits["a1"].sentence
    assert words in said
    assert said.endswith("from 750 runs with the datapoint and 750 without, of 1,000 planned of each).")


def test_a_violation_blocks_its_mechanism_until_it_is_lifted_by_name() -> None:
    diary = Diary()
    plan(diary, "a1")
    assert diary.book.blocking("dp-sgd") == []
    conclude(diary, "a1", 2.5)
    assert [audit.id for audit in diary.book.blocking("dp-sgd")] == ["a1"]
    assert diary.book.blocking("label-release") == []
    assert diary.book.blocking(None) == []
    assert diary.book.status == "open"
    plan(diary, "a2")
    conclude(diary, "a2", 2.5)
    lift(diary, "a1")
    assert [audit.id for audit in diary.book.blocking("dp-sgd")] == ["a2"]
    lift(diary, "a1", "a2")
    assert diary.book.blocking("dp-sgd") == []
    assert {name: each.version for name, each in diary.book.lifts.items()} == {"a1": 2, "a2": 3}
    assert {each.reason for each in diary.book.lifts.values()} == {"the fault is mended"}


def test_a_violation_may_freeze_in_the_same_entry() -> None:
    for epsilon, became in ((2.5, "frozen"), (1.0, "open")):
        diary = Diary()
        plan(diary, "a1", on_violation="freeze")
        conclude(diary, "a1", epsilon)
        assert diary.book.status == became
        assert replay(diary.log, verify=True).status == became


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "violation"),
        ({"assumptions": (INDEPENDENT, GAUSSIAN_SHAPE), "method": "gaussian_dp"}, "inconclusive"),
        ({"epsilon_lower": 1.0, "attainable": 1.5}, "inconclusive"),
    ],
)
def test_a_verdict_follows_from_the_numbers(more: dict[str, Any], said: str) -> None:
    diary = Diary()
    plan(diary, "a1")
    body = concluded_body(diary.book.audits["a1"], replace(bound(1, 2.5), **more))
    assert body["verdict"] == said


@pytest.mark.parametrize(
    ("power", "said", "words"),
    [
        (
            Power("half the noise", 1000),
            "consistent",
            "caught the mechanism weakened to half the noise: an attack showed ε ≥ 1 ",
        ),
        (
            Power("half the noise", 1001),
            "inconclusive",
            "since catching the mechanism weakened to half the noise takes 1,001 samples, and there were 1,000",
        ),
        (
            Power("half the noise", None),
            "inconclusive",
            "since at the confidence of audit 1 this attack would not catch the mechanism weakened to half the noise",
        ),
    ],
)
def test_what_was_not_found_says_something_only_if_it_would_have_been(power: Power, said: str, words: str) -> None:
    diary = Diary()
    plan(diary, "a1", power=power)
    conclude(diary, "a1", 1.0)
    audit = replay(diary.log, verify=True).audits["a1"]
    assert (audit.power, audit.verdict) == (power, said)
    assert words in audit.sentence
    plan(diary, "a2", power=power)
    conclude(diary, "a2", 2.5)
    assert diary.book.audits["a2"].verdict == "violation", "what is seen is seen, however few the samples"


def test_verdicts_of_plans_that_do_not_say_their_power_are_what_they_were() -> None:
    """Logs from before plans said it: consistent was what a perfect attack could have disproved."""
    diary = Diary()
    diary.register(100)
    hold(diary, "r1", expires_at="2026-01-02T00:00:00.000000Z")
    for name, epsilon in (("a1", 1.0), ("a2", 2.5)):
        body = planned_body(audit=name, **{**PLAN, "number": len(diary.book.audits) + 1})
        diary.write({key: value for key, value in body.items() if key != "power"})
        conclude(diary, name, epsilon)
    diary.write({"kind": "release.committed", "release": "r1"})  # which such a violation did not stop
    audits = replay(diary.log, verify=True).audits
    assert [audits[name].verdict for name in ("a1", "a2")] == ["consistent", "violation"]
    assert "does not say what it would have seen" in audits["a1"].sentence


@pytest.mark.parametrize("said", [{"twin": "half"}, {"twin": 1, "samples": 2}, {"twin": "half", "samples": 0}, 7])
def test_a_power_that_is_none_is_refused(said: object) -> None:
    diary = Diary()
    with pytest.raises(InvalidInput):
        diary.write({**planned_body(audit="a1", **{**PLAN, "number": 1}), "power": said})


@pytest.mark.parametrize(
    "more",
    [{"confidence": 0.95}, {"delta": 1e-4}, {"samples": 1001}, {"method": "gaussian_dp"}],
    ids=lambda more: next(iter(more)),
)
def test_a_bound_of_something_else_than_was_planned_is_refused(more: dict[str, Any]) -> None:
    diary = Diary()
    plan(diary, "a1")
    with pytest.raises(InvalidInput):
        concluded_body(diary.book.audits["a1"], replace(bound(1, 2.5), **more))


def test_what_has_ended_or_was_never_planned_cannot_be_concluded() -> None:
    diary = full()
    ended = diary.book.audits
    for name in ("a1", "a2"):
        body = concluded_body(ended[name], bound(ended[name].number, 1.0))
        with pytest.raises(InvalidInput):
            diary.write(body)
    for name in ("a1", "nobody"):
        with pytest.raises(InvalidInput):
            diary.write({"kind": "audit.abandoned", "audit": name, "error": "memory"})
    with pytest.raises(InvalidInput):
        plan(diary, "a1")


def of(audit: str, kind: str, **changes: Any) -> Callable[[Body], Body]:
    change = only(kind, **changes)
    return lambda body: change(body) if body.get("audit") == audit else body


TAMPERING: dict[str, Callable[[Body], Body | None]] = {
    "a violation made consistent": of("a1", "audit.concluded", verdict="consistent"),
    "a violation made up": of("a3", "audit.concluded", verdict="violation"),
    "a lower bound lowered": of("a1", "audit.concluded", bound=lambda b: {**b, "epsilon_lower": 1.0}),
    "a bound raised": of("a3", "audit.concluded", bound=lambda b: {**b, "epsilon_lower": 3.0}),
    "a weaker confidence": of("a1", "audit.concluded", bound=lambda b: {**b, "confidence": 0.95}),
    "a plan with a weaker confidence": of("a3", "audit.planned", confidence=confidence_of(1)),
    "a plan with the number of another": of("a3", "audit.planned", number=2),
    "a plan of no number": of("a3", "audit.planned", number=0),
    "another promise": of("a1", "audit.planned", promise=lambda p: {**p, "epsilon": 9.0}),
    "a plan of less power": of("a3", "audit.planned", power=lambda power: {**power, "samples": 1001}),
    "a plan left out": lambda body: None if body.get("audit") == "a2" else body,
    "a mechanism that was blocked all the same": only(
        "release.held", declared=lambda _: {"mechanism": {"name": "dp-sgd", "parameters": {}}}
    ),
    "a block that nobody lifted": lambda body: None if body["kind"] == "policy.changed" else body,
    "a block lifted that there is not": only(
        "policy.changed", policy=lambda policy: {**policy, "lifted": ["a1", "a3"]}
    ),
}


@pytest.mark.parametrize("what", TAMPERING)
def test_a_log_with_other_verdicts_is_refused(what: str) -> None:
    log = full().log
    assert replay(rewritten(log, lambda body: body), verify=True).number == len(log)
    with pytest.raises(AccountantError):
        replay(rewritten(log, TAMPERING[what]), verify=True)


def test_what_a_job_made_is_not_published_once_its_mechanism_is_blocked() -> None:
    diary = Diary()
    diary.register(100)
    hold(diary, "r1")
    plan(diary, "a1")
    conclude(diary, "a1", 2.5)
    diary.write({"kind": "release.committed", "release": "r1", "artifact": {"sha256": "00"}})
    with pytest.raises(InvalidInput, match="publishes what a job made"):
        replay(diary.log, verify=True)


@pytest.mark.parametrize("said", [{}, {"reason": "it had left before"}], ids=["no reason", "a reason"])
def test_what_a_pipeline_holds_is_committed_only_with_a_reason_once_its_mechanism_is_blocked(said: Body) -> None:
    diary = Diary()
    diary.register(100)
    for name in ("r1", "r2"):
        hold(diary, name, expires_at="2026-01-02T00:00:00.000000Z")
    plan(diary, "a1")
    conclude(diary, "a1", 2.5)
    diary.write({"kind": "release.expired", "release": "r2"})  # unknown is spent, whatever was found
    diary.write({"kind": "release.committed", "release": "r1", **said})
    if said:
        assert replay(diary.log, verify=True).releases["r1"].status == "committed"
    else:
        with pytest.raises(InvalidInput, match="commits release 'r1', and no officer says why"):
            replay(diary.log, verify=True)


def test_a_policy_without_lifted_audits_is_spelled_as_it_always_was() -> None:
    diary = Diary()
    diary.policy(epsilon=0.9)
    assert all("lifted" not in from_canonical(body)["policy"] for _, body in diary.log)
