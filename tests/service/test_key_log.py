"""Who let whom in, and why: chained, signed with the heads of populations, and compared with the keys themselves."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accountant import chain
from accountant.canonical import canonical
from service.client import Stint
from service.operations import key_log, keys
from tests.service.fixtures_behaviour import House
from tests.service.test_evidence import tampered

pytest_plugins = ("tests.service.fixtures_behaviour",)

CHANGE = "UPDATE key_entry SET body = %s WHERE number = %s"


def made(house: House, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = house.admin.post("/v1/keys", {"name": "nightly", "roles": ["pipeline"], **more}, status=201)
    return found


def problems(house: House) -> str:
    found = house.auditor.post("/v1/keys/log/verify")
    assert found["ok"] is (not found["problems"])
    return " | ".join(found["problems"])


def test_making_and_revoking_a_key_are_entries_with_reasons(house: House) -> None:
    with Stint(house.url, house.secrets["admin"]) as client:
        key = client.create_key("nightly", roles=["pipeline"], expires_in_days=3, reason="the new cluster")
        client.revoke_key(key["id"], reason="it was printed in a log")
        client.revoke_key(key["id"], reason="again")  # has no effect, and no entry
        admin = client.whoami()["id"]
        revoked, created = client.key_log()[:2]
    assert (created["body"]["kind"], revoked["body"]["kind"]) == ("key.created", "key.revoked")
    assert [each["body"]["actor"] for each in (created, revoked)] == [admin, admin]
    assert created["body"]["reason"] == "the new cluster"
    assert revoked["body"]["reason"] == "it was printed in a log"
    assert (created["body"]["key"], created["body"]["roles"]) == (key["id"], ["pipeline"])
    assert key["secret"] not in json.dumps([created, revoked])
    assert revoked["previous"] == created["hash"]
    first = house.auditor.get("/v1/keys/log", limit=1000)["items"][-1]["body"]
    assert (first["name"], first["actor"], first["reason"]) == ("first admin", key_log.OPERATOR, "the first start")
    assert problems(house) == ""


def test_a_reason_that_cannot_be_is_refused(house: House) -> None:
    for reason in ("", "x" * 201):
        house.admin.post("/v1/keys", {"name": "x", "roles": ["worker"], "reason": reason}, status=422)
    house.admin.ask("DELETE", f"/v1/keys/{made(house)['id']}?reason=", status=422)


def test_the_log_is_for_officers_and_auditors(house: House) -> None:
    for role, status in (("officer", 200), ("auditor", 200), ("admin", 200), ("pipeline", 403), ("worker", 403)):
        house.as_(role).get("/v1/keys/log", status=status)
    house.pipeline.post("/v1/keys/log/verify", status=403)


def test_the_log_comes_in_pages(house: House) -> None:
    for _ in range(3):
        made(house)
    whole = house.auditor.get("/v1/keys/log", limit=1000)["items"]
    page = house.auditor.get("/v1/keys/log", limit=2)
    rest = house.auditor.get("/v1/keys/log", limit=1000, cursor=page["next"])
    assert page["items"] + rest["items"] == whole
    assert [each["number"] for each in whole] == list(range(len(whole), 0, -1))


def test_what_was_changed_is_found(house: House) -> None:
    key = made(house, reason="the truth")
    house.admin.post("/v1/checkpoints", status=201)
    [number, *_], body = next((row, json.loads(row[4])) for row in reversed(house.rows("key_entry")))
    lie = (CHANGE, (canonical({**body, "reason": "a lie"}), number))
    with tampered(house, lie, tables=("key_entry",)):
        assert "hash" in problems(house)
    with tampered(house, ("DELETE FROM key_entry WHERE number = %s", (number,)), tables=("key_entry",)):
        assert "a checkpoint saw entry" in problems(house)
    for statement, words in (
        ("UPDATE api_key SET roles = 'admin' WHERE id = %s", "is not as the log leads to"),
        ("UPDATE api_key SET secret_hash = '\\x00' WHERE id = %s", "is not as the log leads to"),
        ("UPDATE api_key SET revoked = true WHERE id = %s", "is not as the log leads to"),
        ("UPDATE api_key SET expires_at = now() WHERE id = %s", "is not as the log leads to"),
        ("DELETE FROM api_key WHERE id = %s", "was made by an entry, and is not there"),
        (
            "INSERT INTO api_key SELECT 'key_x', name, prefix, '\\x01', 'admin', created_at FROM api_key WHERE id = %s",
            "lets somebody in, and no entry made it",
        ),
    ):
        with tampered(house, (statement, (key["id"],)), tables=("api_key",)):
            assert words in problems(house), statement
    assert problems(house) == ""


def test_a_log_that_was_written_anew_is_found_by_a_checkpoint(house: House) -> None:
    """A chain alone cannot show it: whoever changes all of it makes it whole again."""
    made(house, reason="the truth")
    house.admin.post("/v1/checkpoints", status=201)
    number, previous, _, _, spelled = house.rows("key_entry")[-1]
    before = chain.Link(number=number - 1, previous=b"", hash=bytes(previous))
    lie = canonical({**json.loads(spelled), "reason": "a lie"})
    anew = (
        "UPDATE key_entry SET body = %s, hash = %s WHERE number = %s",
        (lie, chain.append(before, lie).hash, number),
    )
    with tampered(house, anew, tables=("key_entry",)):
        assert "a checkpoint saw" in problems(house)


@pytest.mark.parametrize("revoked", [False, True])
def test_keys_that_were_there_before_the_log_are_its_first_entries(house: House, *, revoked: bool) -> None:
    key = made(house)
    if revoked:
        house.admin.ask("DELETE", f"/v1/keys/{key['id']}", status=204)
    forgotten = [("DELETE FROM checkpoint", ()), ("DELETE FROM key_entry", ())]
    house.admin.post("/v1/checkpoints", status=201)
    with tampered(house, *forgotten, tables=("checkpoint", "key_entry", "api_key")):
        assert problems(house) == ""  # it says nothing yet
        keys.create(house.parts.database, name="the first of the log", roles=["worker"])
        newest, *older = house.auditor.get("/v1/keys/log", limit=1000)["items"]
        assert newest["body"]["kind"] == "key.created"
        assert {each["body"]["kind"] for each in older} == {"key.known"}
        assert next(each["body"]["revoked"] for each in older if each["body"]["key"] == key["id"]) is revoked
        assert problems(house) == ""
    assert problems(house) == ""
