"""What the overview and the system page say of an installation from its first minute on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from service.dashboard import overview, system
from service.operations import verifications
from service.sweeper import checkpoint
from tests.service.harness import Local, local


@pytest.fixture(scope="module")
def alone() -> Iterator[Local]:
    """An installation of its own: what is said here is said of all populations."""
    with local() as running:
        yield running


JOB = {
    "mechanism": {
        "name": "dp-sgd",
        "parameters": {"noise_multiplier": 100.0, "sampling_probability": 0.01, "steps": 4, "clip_norm": 1.0},
    },
    "recipe": {
        "model": "linear", "shape": [4], "learning_rate": 0.1, "label_source": "prior", "label_names": ["0", "1"],
    },
    "data": {"uri": "nowhere.npz", "x": "x", "y": "y"},
}  # fmt: skip


def seen(service: Local) -> dict[str, Any]:
    found: dict[str, Any] = service.call.ok("GET", "/overview.json")
    return found


def test_how_long_ago_ledgers_were_verified_is_said_and_kept(alone: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    call = alone.call
    first, second = call.population(count=5), call.population(count=7)
    assert seen(alone)["sentence"].endswith("No ledger has been verified yet: this is what they say as they stand.")
    call.verify(first)
    said = seen(alone)
    assert said["sentence"].endswith(f"The ledger of {second} has not been verified yet.")
    call.verify(second)
    assert "All ledgers were verified, the longest ago" in seen(alone)["sentence"]
    monkeypatch.setattr(overview, "utc_now", lambda: datetime.now(UTC) + timedelta(days=3))
    assert seen(alone)["sentence"].endswith("All ledgers were verified, the longest ago 3 days ago.")
    call.ok("POST", f"/v1/populations/{first}/datapoints", {"count": 1})
    said = seen(alone)
    assert said["sentence"].endswith("the longest ago 3 days ago; 1 of 2 have grown since.")
    assert said["answer"] == "yes"
    # It is in the database, so another process, or the next start, knows it as well.
    known = verifications.last(alone.parts.database, [first, second])
    assert {name: (each["ok"], each["entries"]) for name, each in known.items()} == {
        first: (True, 2),
        second: (True, 2),
    }
    assert {each["name"]: each["verified"]["entries"] for each in said["populations"]} == {first: 2, second: 2}


def test_a_ledger_that_does_not_verify_is_a_no_until_it_does(alone: Local) -> None:
    name = alone.call.population(count=3)
    now = datetime.now(UTC)
    verifications.remember(alone.parts.database, name, at=now, entries=2, ok=False)
    said = seen(alone)
    assert said["answer"] == "no"
    assert f"the ledger of {name} did not verify" in said["sentence"]
    verifications.remember(alone.parts.database, name, at=now - timedelta(hours=1), entries=1, ok=True)
    assert seen(alone)["answer"] == "no"  # one that began earlier says nothing newer
    alone.call.verify(name)
    assert seen(alone)["answer"] == "yes"


def test_badges_lead_to_the_verification_for_whoever_may_do_it(alone: Local) -> None:
    name = alone.call.population()
    link = f'href="/populations/{name}/verify"'
    assert link in alone.call("GET", "/overview").text
    for role, may in (("auditor", True), ("pipeline", False)):
        key = alone.call.ok("POST", "/v1/keys", {"name": f"a {role}", "roles": [role]})["secret"]
        opened = {"Authorization": f"Bearer {key}"}
        assert (link in alone.call("GET", "/overview", headers=opened).text) == may
        assert alone.call("GET", f"/populations/{name}/verify", headers=opened).status_code == (200 if may else 403)


def test_a_young_installation_is_healthy_and_one_that_never_signs_is_not(
    alone: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone.call.population(count=3)

    def check() -> dict[str, Any]:
        shown = alone.call.ok("GET", "/system.json")
        [found] = [each for each in shown["checks"] if each["name"] == "checkpoint"]
        return {"healthy": shown["is_healthy"], **found}

    assert check()["healthy"]
    assert check()["text"] == "The first checkpoint is signed within 60 minutes of the start."
    assert seen(alone)["not_in_order"] == []
    monkeypatch.setattr(system, "utc_now", lambda: datetime.now(UTC) + timedelta(hours=5))
    late = check()
    assert not late["ok"]
    assert "No checkpoint has been signed yet, 6 hours after" in late["text"]
    monkeypatch.setattr(overview, "utc_now", lambda: datetime.now(UTC) + timedelta(hours=5))
    assert seen(alone)["not_in_order"] == [late["text"]]
    assert "is not in order. No checkpoint has been signed yet" in alone.call("GET", "/overview").text
    checkpoint(alone.parts)
    assert check()["ok"]


def test_what_is_not_proved_or_breaks_a_rule_is_no_yes() -> None:
    """The overview says what the signed report says, and no ε of such a life is called a bound."""
    with local() as doubtful:
        call = doubtful.call
        assert seen(doubtful)["answer"] == "none"
        name = call.population(count=20, accepts=["proved", "claimed"])
        call.ok("POST", f"/v1/populations/{name}/tasks", {"name": "t", "members": {"ranges": [[0, 20]]}})
        release = call.propose(name, ({"task": "t"}, {"kind": "pure_dp", "epsilon": 0.1}))["id"]
        said = seen(doubtful)
        verdict = call.ok("GET", f"/v1/populations/{name}/report")["report"]["verdict"]
        assert said["answer"] == verdict["answer"] == "open"
        assert said["sentence"].startswith("Not for certain. ")
        assert [each["standing"] for each in said["populations"]] == ["in doubt"]
        assert verdict["text"].replace("What was charged", f"What was charged in {name}") in said["sentence"]
        denied = call.propose(name, ({"task": "t"}, {"kind": "pure_dp", "epsilon": 9.0}))
        job = call.ok("POST", "/v1/jobs", {**JOB, "population": name, "task": "t"})
        for path in (
            "/overview", f"/populations/{name}/budget", f"/populations/{name}/tasks",
            f"/populations/{name}/task?name=t", f"/populations/{name}/datapoint?ordinal=3",
            f"/populations/{name}/releases", f"/releases/{release}", f"/releases/{denied['id']}", f"/jobs/{job['id']}",
        ):  # fmt: skip
            page = call("GET", path).text.replace("every ε is an upper bound", "")
            if path.endswith("/budget"):
                assert "but it is not guaranteed: a policy accepted mechanisms whose privacy is only claimed" in page
                assert "All odds" not in page  # of which there are none
            assert "claimed, no bound" in page, path
            assert not re.search("upper bound|ε ≤|Held, at most", page), path
        statement = f"/v1/populations/{name}/datapoints/3/statement"
        reported = f"/v1/populations/{name}/report"
        for path in (f"/populations/{name}/policy", f"{reported}?format=html"):
            assert not re.search("ε ≤|(spent|held),? at most", call("GET", path).text), path
        words = " ".join(call("GET", f"{statement}?format=text").text.split())
        assert re.search(r"Spent: ε = 0\. Releases that may still leave would raise that by [\d.]+\.", words)
        for path in (f"/v1/populations/{name}/budget", f"/v1/populations/{name}/datapoints/3", statement):
            assert call.ok("GET", path)["bound"] == "none", path
        for decision in (denied["decision"], call.ok("GET", f"/v1/releases/{release}")["decision"]):
            assert decision["epsilon"]["bound"] == "none"
        assert {each["epsilon"]["bound"] for each in call.ok("GET", reported)["report"]["decisions"]} == {"none"}
        assert call.ok("GET", f"/v1/jobs/{job['id']}")["epsilon"]["bound"] == "none"
        call.verify(name)
    with local() as doubtful:
        call = doubtful.call
        name = call.population(count=20, findings={"error": "allow"})
        charges = ({"ranges": [[0, 20]]}, {"kind": "pure_dp", "epsilon": 0.1})
        release = call.propose(name, charges, label_space={"source": "data"})["id"]
        assert seen(doubtful)["answer"] == "yes"  # nothing has left
        call.ok("POST", f"/v1/releases/{release}/commit", {})
        said = seen(doubtful)
        verdict = call.ok("GET", f"/v1/populations/{name}/report")["report"]["verdict"]
        assert said["answer"] == verdict["answer"] == "open"
        assert "but 1 release that left breaks a rule on which it rests" in said["sentence"]
        assert "but 1 release that left breaks a rule on which it rests" in verdict["text"]


def test_a_population_about_which_nothing_was_released_is_no_doubt_and_those_in_doubt_come_first() -> None:
    with local() as service:
        call = service.call
        empty = call.population(count=0, accepts=["proved", "claimed"])
        calm = call.population(count=20)
        call.propose(calm, ({"ranges": [[0, 20]]}, {"kind": "pure_dp", "epsilon": 0.3}))
        said = seen(service)
        assert said["answer"] == "yes"
        assert {each["name"]: each["standing"] for each in said["populations"]} == {calm: "inside", empty: "inside"}
        claimed = call.population(count=20, accepts=["proved", "claimed"])
        call.propose(claimed, ({"ranges": [[0, 20]]}, {"kind": "pure_dp", "epsilon": 0.1}))
        said = seen(service)
        assert said["sentence"].startswith(f"Yes for 2 of 3 populations. What was charged in {claimed} is within")
        assert [each["name"] for each in said["populations"]] == [claimed, calm, empty]
        assert said["in_doubt"] == 1
        assert "in doubt" in call("GET", f"/populations/{claimed}/budget").text
        assert "in doubt" not in call("GET", f"/populations/{calm}/budget").text


def test_findings_are_grouped_by_code_over_populations() -> None:
    def glanced(name: str, *findings: tuple[str, str, int, str]) -> dict[str, Any]:
        keys = ("code", "severity", "releases", "at")
        return {"name": name, "findings": [dict(zip(keys, each, strict=True)) for each in findings]}

    found = overview.by_code(
        [glanced("a", ("X", "warning", 2, "2026-01-02")), glanced("b", ("Y", "error", 1, "2026-01-01"),
         ("X", "warning", 3, "2026-01-03"))]
    )  # fmt: skip
    assert [(each["code"], each["releases"], each["at"]) for each in found] == [
        ("Y", 1, "2026-01-01"),
        ("X", 5, "2026-01-03"),
    ]
    assert [each["name"] for each in found[1]["populations"]] == ["b", "a"]  # by number


def test_holds_that_are_not_listed_are_counted() -> None:
    with local() as service:
        call = service.call
        name = call.population(count=20, epsilon=5.0)
        for _ in range(overview.HOLDS_SHOWN + 1):
            call.propose(name, ({"ranges": [[0, 20]]}, {"kind": "pure_dp", "epsilon": 0.1}))
        said = seen(service)
        assert (len(said["holds"]), said["holds_in_all"], said["held_by_jobs"]) == (overview.HOLDS_SHOWN, 9, 0)
        page = call("GET", "/overview").text
        assert "And 1 more.</p>" in page
        assert '<span class="screen-only">; open what stands there to do it</span>' in page


def test_an_epsilon_that_promises_practically_nothing_is_told_so_in_words() -> None:
    """Within such a promise everything is, and that says nothing."""
    with local() as alone:
        call = alone.call
        assert seen(alone)["hollow"] == []
        sound = call.population(count=20, epsilon=3.0)
        said = seen(alone)
        assert (said["hollow"], said["beside"]) == ([], [])
        assert "practically" not in call("GET", "/overview").text
        large = call.population(count=10, epsilon=100.0)
        said = seen(alone)
        assert (said["answer"], said["hollow"]) == ("yes", [large])
        assert f"is within its promise, but that of {large} is practically none." in said["sentence"]
        [remark] = said["beside"]
        assert remark == (
            f"Practically nothing is promised in {large}: an attacker who has seen every release may be right 99.95 % "
            "of the time, or more often, about any one of them."
        )
        assert {each["name"]: each["hollow"] for each in said["populations"]} == {sound: False, large: True}
        page = call("GET", "/overview").text
        assert page.count("promises practically nothing</span>") == 1  # beside its standing, as a word
        assert 'class="verdict warn"' in page
        for name, hollow in ((sound, False), (large, True)):
            path = f"/populations/{name}/budget"
            assert call.ok("GET", f"{path}.json")["promise"]["hollow"] == hollow
            page = call("GET", path).text
            assert ("promises practically nothing</span>" in page) == hollow
            assert ("That promises practically nothing." in page) == hollow
            report = call.ok("GET", f"/v1/populations/{name}/report")["report"]
            assert ("That promises practically nothing." in report["odds"]) == hollow
