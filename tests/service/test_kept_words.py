"""What a ledger keeps for ever, in somebody's words, has no control character in it; what it kept before stays good."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from service.operations import keys, populations
from service.store.writer import Decide, Operation
from tests.service.harness import Caller, Local
from tests.service.test_dashboard import Visitor

ODD = ("a\0b", "a\x1b[31mb", "a\x7fb", "a\x85b")
SEVERAL_LINES = "an audit\r\nis under\tway"
ALL = {"ranges": [[0, 30]]}
EVENT = {"kind": "pure_dp", "epsilon": 0.2}


@pytest.fixture(scope="module")
def population(service: Local) -> str:
    return service.call.population(count=30, epsilon=2.0)


@pytest.fixture
def held(call: Caller, population: str) -> Iterator[str]:
    release = str(call.propose(population, (ALL, EVENT))["id"])
    yield release
    call("POST", f"/v1/releases/{release}/void", {"reason": "a test"})


@pytest.mark.parametrize("text", ODD)
def test_no_request_has_a_ledger_keep_a_control_character(call: Caller, population: str, held: str, text: str) -> None:
    path, before = f"/v1/populations/{population}", len(call.entries(population))
    members = {"ranges": [[0, 10]]}
    audit = {"population": population, "mechanism": "dp-sgd", "audit": "weights after one step"}
    requests: list[tuple[str, str, dict[str, Any], str]] = [
        ("POST", f"{path}/status", {"status": "frozen", "reason": text}, "reason"),
        ("PUT", f"{path}/policy", {"epsilon": 1.5, "reason": text}, "reason"),
        ("POST", f"{path}/tasks", {"name": text, "members": members}, "name"),
        ("POST", f"{path}/tasks", {"name": "t", "members": members, "parts": {text: members}}, f"parts.{text}.[key]"),
        ("POST", f"/v1/releases/{held}/void", {"reason": text}, "reason"),
        ("POST", f"/v1/releases/{held}/commit", {"reason": text}, "reason"),
        ("POST", f"/v1/releases/{held}/commit", {"artifact": {"sha256": "0" * 64, "uri": text}}, "artifact.uri"),
        ("POST", "/v1/audits", {**audit, "reason": text}, "reason"),
        ("POST", "/v1/keys", {"name": "nightly", "roles": ["worker"], "reason": text}, "reason"),
        ("POST", "/v1/keys", {"name": text, "roles": ["worker"]}, "name"),
    ]
    for method, address, body, field in requests:
        refused = call(method, address, body)
        assert (refused.status_code, refused.json().get("field")) == (422, field), address
        said = f"there is a control character in it (U+{ord(text[1]):04X}, at place 2): leave it out."
        assert refused.json()["detail"].endswith(said)
    made = call.ok("POST", "/v1/keys", {"name": "nightly", "roles": ["worker"]})["id"]
    assert call("DELETE", f"/v1/keys/{made}", params={"reason": text}).status_code == 422
    assert len(call.entries(population)) == before


def test_a_reason_may_have_several_lines_and_a_name_only_one(call: Caller, population: str) -> None:
    path = f"/v1/populations/{population}"
    call.ok("POST", f"{path}/status", {"status": "frozen", "reason": SEVERAL_LINES})
    call.ok("POST", f"{path}/status", {"status": "open", "reason": "it is over – “at last”"})
    kept = [each["body"]["reason"] for each in call.entries(population)[-2:]]
    assert kept == [SEVERAL_LINES, "it is over – “at last”"]
    named = call("POST", f"{path}/tasks", {"name": "two\nlines", "members": ALL})
    assert "U+000A, at place 4" in named.json()["detail"]


@pytest.mark.parametrize("text", ODD)
def test_no_form_has_a_ledger_keep_a_control_character(
    service: Local, call: Caller, population: str, held: str, text: str
) -> None:
    before = len(call.entries(population))
    visitor = Visitor(service)
    visitor.sign_in(keys.create(service.parts.database, name="an admin", roles=["admin", "officer"])["secret"])
    for path, more in (
        (f"/populations/{population}/status?to=frozen", {"sure": "yes"}),
        (f"/releases/{held}/void", {"certain": "yes"}),
        (f"/releases/{held}/commit", {"sure": "yes"}),
        ("/keys/new", {"sure": "yes", "name": "nightly", "roles": "worker"}),
    ):
        refused = visitor.post(path, {**visitor.form(path), **more, "reason": text})
        assert refused.status_code == 422, path
        said = (
            f"Say why, in words: there is a control character in it (U+{ord(text[1]):04X}, at place 2): leave it out."
        )
        assert said in refused.text
    named = {"sure": "yes", "name": text, "roles": "worker", "reason": "a new cluster"}
    assert visitor.post("/keys/new", {**visitor.form("/keys/new"), **named}).status_code == 422
    assert len(call.entries(population)) == before
    call.run(visitor.client.aclose())


def test_what_a_ledger_keeps_from_before_is_read_verified_and_shown(service: Local, call: Caller) -> None:
    """Only requests are refused: an entry that is there is what it is, and a task goes by the name that it has."""
    name = call.population(count=30, epsilon=2.0)

    def decided(decide: Decide) -> None:
        service.parts.writer.submit(Operation(population=name, actor="operator", decide=decide)).result(60)

    officer = keys.Actor(id="operator", name="o", roles=frozenset({"officer"}), expires_at=None)
    task = populations.create_task(name="odd\0task", members=ALL, parts={}, budget=None, by=officer)
    for decide in (
        task,
        populations.change_status(to="frozen", reason="a\0b\x1b"),
        populations.change_status(to="open", reason="again"),
    ):
        decided(decide)
    made = call.ok("POST", "/v1/releases", {"population": name, "task": "odd\0task", "charges": [], "mechanism": _SGD})
    assert made["status"] == "held"
    call.verify(name)
    service.parts.books.forget(name)
    call.verify(name)
    assert call.ok("GET", f"/v1/populations/{name}/tasks/odd%00task")["name"] == "odd\0task"
    kept = [each["body"].get("reason") for each in call.entries(name)]
    assert "a\0b\x1b" in kept
    for path in ("ledger", "policy", "tasks", "budget", "ledger.json"):
        assert call("GET", f"/populations/{name}/{path}").status_code == 200
    assert call("GET", f"/v1/populations/{name}/report").status_code == 200
    assert call("GET", f"/v1/populations/{name}/report?format=html").status_code == 200


_SGD = {
    "name": "dp-sgd",
    "parameters": {"noise_multiplier": 9.0, "sampling_probability": 0.01, "steps": 10, "clip_norm": 1.0},
}


@pytest.mark.parametrize("text", ODD)
def test_nor_does_whoever_has_the_database(service: Local, text: str) -> None:
    for name, reason in ((text, None), ("nightly", text)):
        with pytest.raises(ValueError, match="control character"):
            keys.create(service.parts.database, name=name, roles=["pipeline"], reason=reason)
