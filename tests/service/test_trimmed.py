"""Whoever could not afford a release was not touched by it: no page, report or certificate counts them among those."""

from __future__ import annotations

import base64
import html
import json
import re
from typing import Any

import pytest

from service import cli, printed
from service.operations import keys
from tests.service.harness import Caller, Local


def pure(epsilon: float) -> dict[str, Any]:
    return {"kind": "pure_dp", "epsilon": epsilon}


def words(page: str) -> str:
    """What is read on a page."""
    body = html.unescape(re.sub(r"<[^>]*>", " ", page.partition("<main")[2]))
    return re.sub(r" (?=[.,;:)])", "", " ".join(body.split()))


def key(service: Local, *roles: str) -> dict[str, Any]:
    secret = keys.create(service.parts.database, name="somebody", roles=roles)["secret"]
    return {"headers": {"Authorization": f"Bearer {secret}"}}


def report(call: Caller, path: str) -> tuple[dict[str, Any], str]:
    """The signed document, and what its print says."""
    return call.ok("GET", path), words(call("GET", f"{path}?format=html").text)


@pytest.fixture(scope="module")
def trimmed(service: Local) -> dict[str, Any]:
    """A release on 600 people of whom 200 had too little left."""
    call = service.call
    name = call.population(count=1000, epsilon=1.0)
    for task, start, stop in (("a", 0, 600), ("b", 400, 1000)):
        body = {"name": task, "members": {"ranges": [[start, stop]]}}
        call.ok("POST", f"/v1/populations/{name}/tasks", body)
    first = call.propose(name, ({"task": "a"}, pure(0.8)))["id"]
    call.ok("POST", f"/v1/releases/{first}/commit", {})
    made = call.propose(name, ({"task": "b"}, pure(0.8)), on_exhausted="trim")
    assert (made["decision"]["datapoints"], made["decision"]["trimmed"]) == (600, 200)
    return {"population": name, "release": made["id"], "answer": made}


def test_pages_reports_and_the_certificate_count_the_same_people(trimmed: dict[str, Any], call: Caller) -> None:
    name, path = trimmed["population"], f"/releases/{trimmed['release']}"
    settling = [words(call("GET", f"{path}/{asks}").text) for asks in ("commit", "void")]
    call.ok("POST", f"/v1{path}/commit", {})
    page = words(call("GET", path).text)
    assert "Admitted for 400 users. The highest ε among them was 0 before it and 0.8 right after it" in page
    assert "Of the 600 that it was asked for, 200 had too little left, and were left out." in page
    assert "Asked for 600; charged to 400; 200 left out, who had too little left" in page
    assert re.search(r"How it is charged .{1,80}, for 400 users", page)
    assert "To 400 users: task b, without 200 who were left out" in page
    assert "was admitted and held, for 400 users; 200 of 600 were left out." in page
    ledger = words(call("GET", f"/populations/{name}/ledger").text)
    of_release, of_period = (report(call, each) for each in (f"/v1{path}/report", f"/v1/populations/{name}/report"))
    assert "was admitted and held, for 400 users; 200 of 600 were left out." in ledger
    for told in (*settling, page, of_release[1]):
        assert "400" in told
        assert "600 users" not in told.replace("Asked for 600 users;", "")
    envelope = call.ok("GET", f"/v1{path}/certificate")
    certified = json.loads(base64.b64decode(envelope["payload"]))["predicate"]
    shown = call.ok("GET", f"/v1{path}")
    [listed] = [
        each for each in call.ok("GET", f"/v1/releases?population={name}")["items"] if each["id"] == shown["id"]
    ]
    assert {shown["datapoints"], listed["datapoints"], certified["datapoints"]} == {400}
    assert [each["charged"] for each in shown["charges"]] == [each["datapoints"] for each in certified["charges"]]
    assert shown["quotes_charged"] == [400]
    for document, told in (of_release, of_period):
        [said] = [each for each in document["report"]["decisions"] if each["release"] == shown["id"]]
        assert (said["datapoints"], said["trimmed"], said["charged"]) == (600, 200, certified["datapoints"])
        assert "Asked for 600 users; charged to 400; 200 left out." in told
    assert shown["decision"] == trimmed["answer"]["decision"]  # as it was told, and as ever
    [entry] = [each for each in call.entries(name) if each["body"].get("decision", {}).get("trimmed")]
    assert entry["body"]["decision"] == trimmed["answer"]["decision"]


def test_each_charge_and_each_price_counts_its_own(call: Caller) -> None:
    """Two tasks overlap, one of them has a budget of its own, and somebody is left out of every part."""
    name = call.population(count=100, epsilon=1.0, on_exhausted="trim")
    own = {"budget": {"epsilon": 0.9, "delta": 1e-7}}
    for task, start, stop, more in (("a", 0, 60, {}), ("b", 40, 100, own)):
        body = {"name": task, "members": {"ranges": [[start, stop]]}, **more}
        call.ok("POST", f"/v1/populations/{name}/tasks", body)
    call.propose(name, ({"ranges": [[0, 10], [40, 43], [90, 95]]}, pure(0.9)))
    release = call.propose(name, ({"task": "a"}, pure(0.2)), ({"task": "b"}, pure(0.2)))["id"]
    shown = call.ok("GET", f"/v1/releases/{release}")
    assert [(each["datapoints"], each["charged"]) for each in shown["charges"]] == [(60, 47), (60, 52)]
    quotes = [
        (each["charges"], each["task"], each["datapoints"], charged)
        for each, charged in zip(shown["decision"]["quotes"], shown["quotes_charged"], strict=True)
    ]
    assert sorted(quotes, key=repr) == sorted([
        ([0, 1], None, 20, 17), ([0], None, 40, 30), ([1], "b", 40, 35), ([1], None, 40, 35), ([1], "b", 20, 17),
    ], key=repr)  # fmt: skip
    parts = call.ok("GET", f"/v1/releases/{release}/members")["charges"]
    assert len(parts) == 2
    call.verify(name)


def test_a_pipeline_is_told_how_many_were_left_out_and_not_who(service: Local, call: Caller) -> None:
    """Ranges that overlap cut out single people: counts of each part would say who had too little left."""
    name = call.population(count=60, epsilon=1.0, on_exhausted="trim")
    call.propose(name, ({"ranges": [[0, 1], [13, 14]]}, pure(0.99)))
    charges = [({"ranges": [[start, start + 10], [20, 60]]}, pure(0.02)) for start in range(8)]
    release = call.propose(name, *charges)["id"]
    told = call.ok("GET", f"/v1/releases/{release}", **key(service, "pipeline"))
    assert (told["decision"]["datapoints"], told["decision"]["trimmed"]) == (57, 2)
    assert told["quotes_charged"] is None
    assert {each["charged"] for each in told["charges"]} == {None}
    page = words(call("GET", f"/releases/{release}", **key(service, "pipeline")).text)
    assert "Asked for 57; charged to 55; 2 left out" in page
    assert "To 50 users" in page
    assert ", without those who were left out" in page
    shown = call.ok("GET", f"/v1/releases/{release}", **key(service, "auditor"))
    assert 0 in shown["quotes_charged"]
    assert {each["charged"] for each in shown["charges"]} == {49, 50}
    few = call.propose(name, ({"ranges": [[20, 60]]}, pure(0.01)))["id"]  # nobody is left out of it
    assert call.ok("GET", f"/v1/releases/{few}", **key(service, "pipeline"))["quotes_charged"] == [40]


def test_of_a_denied_release_nobody_was_charged(call: Caller) -> None:
    """Refused for something else than the budget, it would have left people out."""
    name = call.population(count=100, epsilon=1.0, on_exhausted="trim")
    call.propose(name, ({"ranges": [[0, 20]]}, pure(0.9)))
    refused = {"population": name, "charges": [{"scope": {"ranges": [[0, 100]]}, "event": pure(0.3)}]}
    call.ok(
        "PUT", f"/v1/populations/{name}/policy", {"reason": "a trial", "findings": {"pretraining.undeclared": "deny"}}
    )
    made = call.ok("POST", "/v1/releases", refused)
    assert (made["status"], made["decision"]["trimmed"]) == ("denied", 20)
    page = words(call("GET", f"/releases/{made['id']}").text)
    assert "Asked for 100; 20 would have been left out, who had too little left" in page
    assert "To 100 users: ordinals 0 to 99" in page
    shown = call.ok("GET", f"/v1/releases/{made['id']}")
    assert ([each["charged"] for each in shown["charges"]], shown["quotes_charged"]) == ([0], [0])
    document, told = report(call, f"/v1/releases/{made['id']}/report")
    assert document["report"]["decisions"][0]["charged"] == 0
    assert "Asked for 100 users; 20 would have been left out." in told


def test_a_print_from_before_is_still_a_print(trimmed: dict[str, Any], call: Caller) -> None:
    """A report that was signed before it said how many were charged prints as it did."""
    document, _ = report(call, f"/v1/releases/{trimmed['release']}/report")
    for each in document["report"]["decisions"]:
        del each["charged"]
    assert "600 users, 200 left out." in words(printed.html("report", document).decode())


def test_the_terminal_counts_those_who_were_charged(
    trimmed: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli._show_decision(trimmed["answer"], as_json=False) == 0
    assert "admitted, 400 datapoints (200 of 600 left out), highest ε 0 → 0.8 of 1" in capsys.readouterr().out


@pytest.mark.parametrize("role", ["pipeline", "worker", "auditor"])
@pytest.mark.parametrize("left", [2, 12])
def test_what_those_few_have_left_who_were_not_left_out_is_told_to_no_pipeline(
    service: Local, call: Caller, role: str, left: int
) -> None:
    """The readings of a decision are of those whom it charges, however many were asked for."""
    name = call.population(count=20 + left, epsilon=1.0, on_exhausted="trim")
    everybody = {"ranges": [[0, 20 + left]]}
    for scope, epsilon in (({"ranges": [[0, 20]]}, 0.9), ({"ranges": [[20, 20 + left]]}, 0.375)):
        call.ok("POST", f"/v1/releases/{call.propose(name, (scope, pure(epsilon)))['id']}/commit", {})
    admitted = call.propose(name, (everybody, pure(0.25)))
    call.ok(
        "PUT", f"/v1/populations/{name}/policy", {"reason": "a trial", "findings": {"pretraining.undeclared": "deny"}}
    )
    denied = call.propose(name, (everybody, pure(0.25)))
    assert [each["decision"]["trimmed"] for each in (admitted, denied)] == [20, 20]
    assert admitted["decision"]["epsilon"]["before"] == 0.375  # whoever proposes is told, as of every release
    asks, told = key(service, role), left >= 10 or role == "auditor"
    listed = call.ok("GET", f"/populations/{name}/releases.json", **asks)["items"]
    for each in (admitted, denied):
        [line] = [item for item in listed if item["id"] == each["id"]]
        assert (line["epsilon"] is not None) == told
        for path in (f"/v1/releases/{each['id']}", f"/releases/{each['id']}.json"):
            decision = call.ok("GET", path, **asks)["decision"]
            assert (decision["epsilon"] is not None) == told
            assert all((quote["price"] is not None) == told for quote in decision["quotes"])
            assert (decision["datapoints"], decision["trimmed"]) == (20 + left, 20)  # how many, and not who
        page = words(call("GET", f"/releases/{each['id']}", **asks).text)
        assert (f"{each['decision']['epsilon']['before']:g} before, " in page) == told
