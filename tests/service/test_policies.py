"""Versions of a policy with their differences, and what a new one would have denied."""

from __future__ import annotations

import random
from typing import Any

import pytest

from accountant.book import Book, Policy
from accountant.canonical import from_canonical
from service.operations import policies, readings, reports
from service.operations.populations import new_version
from tests.service.harness import Caller, Local, fresh
from tests.service.test_refuted_evidence import violated


@pytest.fixture
def population(call: Caller) -> str:
    """Three releases: two on everybody, which add up, and one on a few."""
    name = call.population(count=100, epsilon=2.0, delta=1e-6)
    for start, stop, epsilon in ((0, 100, 0.3), (0, 100, 0.5), (0, 10, 0.4)):
        made = call.propose(name, ({"ranges": [[start, stop]]}, {"kind": "pure_dp", "epsilon": epsilon}))
        call.ok("POST", f"/v1/releases/{made['id']}/commit", {})
    return name


def preview(service: Local, population: str, **changes: Any) -> dict[str, Any]:
    with service.parts.books.read(population) as book:
        return policies.preview(service.parts.database, book, changes)


def test_a_lower_budget_would_have_denied_what_went_beyond_it(service: Local, population: str) -> None:
    assert [len(preview(service, population, epsilon=each)["would_have_denied"]) for each in (2.0, 1.0, 0.6, 0.1)] == [
        0, 1, 2, 3,
    ]  # fmt: skip
    found = preview(service, population, epsilon=1.0)
    assert found["changes"] == [{"what": "ε for life", "from": "2", "to": "1"}]
    assert (found["already_over"], found["datapoints"]) == (10, 100)
    assert found["text"].startswith(
        "Nobody may be charged more than ε = 1 at δ = 1e-06 for life. Only proved mechanisms"
    )
    assert "Pipelines may ask for tasks and groups only, not for chosen individuals." in found["text"]
    assert (
        preview(service, population, accepts=["proved", "claimed"])["text"].count("Proved and claimed mechanisms") == 1
    )
    assert found["looked_at"] == 3
    assert found["would_have_denied"][0]["datapoints"] == 10
    assert found["would_have_denied"][0]["reasons"] == ["It brought somebody to ε ≤ 1.2."]


def test_a_policy_that_leaves_nobody_out_would_have_denied_what_was_trimmed(service: Local, call: Caller) -> None:
    name = call.population(count=100, epsilon=1.0, delta=1e-6, on_exhausted="trim")
    releases = [
        call.propose(name, ({"ranges": [[start, 100]]}, {"kind": "pure_dp", "epsilon": 0.7})) for start in (50, 0)
    ]
    assert [each["decision"]["trimmed"] for each in releases] == [0, 50]  # the second left out those of the first
    found = preview(service, name, on_exhausted="deny")["would_have_denied"]
    assert [each["release"] for each in found] == [releases[1]["id"]]
    assert found[0]["reasons"] == [
        "Somebody could not afford it and was left out; it would have been denied as a whole."
    ]
    assert preview(service, name, epsilon=0.9)["would_have_denied"] == []


def replayed(service: Local, population: str, new: Policy) -> set[str]:
    """What the gate says if the log is replayed, and everybody who was touched is looked at after each release."""
    book: Book | None = None
    found = set()
    for _, _, body in reports.Log(service.parts.database, population):
        if book is None:
            book = Book.of(body)
        else:
            book.apply(body)
        document = from_canonical(body)
        if document["kind"] == "release.held":
            touched = {
                history
                for part in book.held_from(document).parts
                for history, _ in book.ledger.cohorts.touched(part.scope)
            }
            if not all(new.budget.admits(readings.standing(new.budget, history)) for history in touched):
                found.add(document["release"])
    return found


def test_readings_and_the_gate_agree_on_what_is_beyond(service: Local, population: str) -> None:
    """What is concluded from recorded readings is what the gate says when it is asked again."""
    with service.parts.books.read(population) as book:
        for epsilon in (0.2, 0.3, 0.5, 0.8, 1.0, 1.2, 1.5):
            new = new_version(book, epsilon=epsilon)
            found, _ = policies.would_have_denied(service.parts.database, book, new=new)
            assert {each.release for each in found} == replayed(service, population, new)


def test_what_the_gate_judges_backwards_is_what_a_replay_finds(service: Local, call: Caller) -> None:
    """Overlapping scopes, holds that are open, voided late or committed, and several δ that lie between."""
    rng = random.Random(5)
    name = call.population(count=200, epsilon=3.0, delta=1e-5)
    waiting: list[str] = []
    for _ in range(60):
        start = rng.randrange(150)
        event = {"kind": "gaussian", "noise_multiplier": rng.choice([8.0, 10.0, 14.0])}
        scope = {"ranges": [[start, start + rng.randrange(5, 50)]]}
        made = call.propose(name, (scope, event))
        if made["status"] == "held":
            waiting.append(made["id"])
        while len(waiting) > 5:
            which = waiting.pop(rng.randrange(len(waiting)))
            if rng.random() < 0.3:
                call.ok("POST", f"/v1/releases/{which}/void", {"reason": "it crashed"})
            else:
                call.ok("POST", f"/v1/releases/{which}/commit", {})
    sizes = set()
    with service.parts.books.read(name) as book:
        for delta in (1e-6, 1e-7, 1e-9, 1e-12, 1e-16):
            for epsilon in (3.0, 1.5):
                new = new_version(book, epsilon=epsilon, delta=delta)
                found, looked_at = policies.would_have_denied(service.parts.database, book, new=new)
                assert looked_at == sum(each.status != "denied" for each in book.releases.values())
                assert {each.release for each in found} == replayed(service, name, new)
                sizes.add(len(found))
    assert len(sizes) > 3  # from few to all


def test_a_new_delta_is_judged_for_the_newest_alone(
    service: Local, population: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "MOST_JUDGED", 2)
    found = preview(service, population, delta=1e-7)
    assert (found["looked_at"], found["admitted"]) == (2, 3)
    assert preview(service, population, epsilon=1.0)["looked_at"] == 3


def test_a_lower_delta_is_judged_by_the_gate(service: Local, call: Caller) -> None:
    name = call.population(count=10, epsilon=2.0, delta=1e-5)
    call.propose(name, ({"ranges": [[0, 10]]}, {"kind": "gaussian", "noise_multiplier": 4.0}))
    assert preview(service, name, delta=5e-6)["would_have_denied"] == []
    assert len(preview(service, name, delta=1e-30)["would_have_denied"]) == 1


def test_versions_say_what_changed_and_why(service: Local, call: Caller, population: str) -> None:
    call.ok("PUT", f"/v1/populations/{population}/policy", {"reason": "the board", "epsilon": 1.5})
    changed = {"reason": "a trial", "accepts": ["proved", "claimed"], "findings": {"warning": "deny"}}
    call.ok("PUT", f"/v1/populations/{population}/policy", changed)
    third, second, first = policies.versions(service.parts.database, population)
    assert [each["version"] for each in (first, second, third)] == [1, 2, 3]
    assert (first["reason"], first["changes"]) == (None, [])
    assert (second["reason"], second["changes"]) == ("the board", [{"what": "ε for life", "from": "2", "to": "1.5"}])
    assert {each["what"]: each["to"] for each in third["changes"]} == {
        "accepted mechanisms": "proved or claimed",
        "findings: warning": "deny",
    }


def test_findings_that_a_version_denies_are_reasons(service: Local, population: str) -> None:
    found = preview(service, population, findings={"warning": "deny"})["would_have_denied"]
    assert len(found) == 3
    assert all("(" in reason for each in found for reason in each["reasons"])


def test_a_link_to_a_version_asks_for_one_thing_and_changes_nothing_beside_it(service: Local, call: Caller) -> None:
    """To accept a status, or to lift what an audit blocks, leaves all other rules as strict as they were."""
    name = f"a-{fresh()}"  # the page has the first of many populations, by name
    call.ok("POST", "/v1/populations", {"name": name, "unit": "user", "budget": {"epsilon": 2.0, "delta": 1e-6}})
    call.ok("POST", f"/v1/populations/{name}/datapoints", {"count": 10})
    strict = {"reason": "be strict", "accepts": ["proved"], "findings": {"warning": "deny", "note": "deny"}}
    call.ok("PUT", f"/v1/populations/{name}/policy", strict)
    listed = call.ok("GET", "/mechanisms/dp-agem-as-published.json")["populations"]
    accept = next(each["approve"] for each in listed if each["name"] == name)
    assert changes(call, accept) == [{"what": "accepted mechanisms", "from": "proved", "to": "proved or claimed"}]
    audit = violated(call, service.parts, name)
    call.ok("PUT", f"/v1/populations/{name}/policy", {"reason": "a trial", "accepts": ["proved", "claimed"]})
    lift = call.ok("GET", f"/audits/{audit}.json")["lift"]
    assert changes(call, lift) == [{"what": "audits that block no more", "from": "nothing", "to": audit}]


def test_a_form_without_a_tick_says_so(call: Caller) -> None:
    """Browsers send nothing for a box that is not ticked; a form says beside it that there were boxes."""
    name = call.population(count=10, epsilon=2.0)
    path = f"/populations/{name}/policy/change?preview=yes"
    assert changes(call, path) == []
    assert changes(call, path + "&deny=") == [{"what": "findings: error", "from": "deny", "to": "allow"}]
    refused = call.ok("GET", path.replace("?", ".json?") + "&accepts=&deny=error")
    assert refused["refused"]["detail"] == "“Accept mechanisms whose promise is” is needed."
    form = call("GET", path, headers={"Accept": "text/html"}).text.partition('<form method="get"')[2]
    for box in ("accepts", "deny"):
        assert f'<input type="hidden" name="{box}" value="">' in form.partition("</form>")[0]


def changes(call: Caller, address: str) -> list[dict[str, str]]:
    """What the preview at this address says that would change."""
    found: list[dict[str, str]] = call.ok("GET", address.replace("?", ".json?"))["preview"]["changes"]
    return found


def test_a_long_list_says_how_much_of_it_is_elsewhere(
    call: Caller, population: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page lists the newest 500 of what a version would have denied; its JSON has the rest."""
    find = policies.would_have_denied

    def many(*args: Any, **more: Any) -> Any:
        [one, *_], looked_at = find(*args, **more)
        return [one] * 1234, looked_at

    monkeypatch.setattr(policies, "would_have_denied", many)
    path = f"/populations/{population}/policy/change"
    page = call("GET", f"{path}?preview=yes&epsilon=0.1").text
    assert "734 older ones are not shown here." in page
    assert f'<a href="{path}.json?preview=yes&amp;epsilon=0.1">As JSON, this page has all of them</a>' in page
    assert len(call.ok("GET", f"{path}.json?preview=yes&epsilon=0.1")["preview"]["would_have_denied"]) == 1234
    monkeypatch.undo()
    assert "not shown here" not in call("GET", f"{path}?preview=yes&epsilon=0.1").text
