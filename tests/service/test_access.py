"""Who may do what: keys, roles, limits, and the shape of every refusal."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from service import metrics
from service.app import create_app
from service.client import Stint
from service.errors import PROBLEMS, Problem
from service.operations import keys
from service.operations.datapoints import register_count
from service.store.writer import Operation, Outcome, Writer
from tests.service.fixtures_behaviour import ROLES, Caller, House, pure, until, with_settings

pytest_plugins = ("tests.service.fixtures_behaviour",)

NOBODY = "rel_" + "0" * 26


def caller(house: House, **more: Any) -> tuple[Caller, dict[str, Any]]:
    made = keys.create(house.parts.database, name="somebody", roles=more.pop("roles", ["officer"]), **more)
    return Caller(house.client, made["secret"]), made


# ---------------------------------------------------------------- keys


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer sk_wrong", "Basic c2tfOng=", "sk_x", "Bearer key", "Bearer sk_\xff"]
)
def test_without_a_valid_key_nothing_opens(house: House, header: str | None) -> None:
    headers = {} if header is None else {b"Authorization": header.encode("latin-1")}
    answer = house.client.get("/v1/populations", headers=headers)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.json()["type"] == "urn:stint:problem:unauthorized"
    assert "wrong" not in answer.text


def test_keys_come_in_pages(house: House) -> None:
    made = [house.admin.post("/v1/keys", {"name": f"{n}", "roles": ["worker"]}, status=201)["id"] for n in range(5)]
    listed: list[str] = []
    more: dict[str, Any] = {}
    while True:
        page = house.admin.get("/v1/keys", limit=2, **more)
        assert len(page["items"]) <= 2
        listed += [each["id"] for each in page["items"]]
        if page["next"] is None:
            break
        more = {"cursor": page["next"]}
    assert listed == sorted(set(listed))
    assert listed == [each["id"] for each in house.admin.get("/v1/keys", limit=1000)["items"]]
    assert set(made) < set(listed)
    house.admin.get("/v1/keys", limit=1001, status=422)
    house.admin.get("/v1/keys", cursor="nonsense", status=422)
    with Stint(house.url, house.secrets["admin"]) as client, pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.client._PAGE", 2)
        followed = client.keys()
    assert [each["id"] for each in followed] == listed


def test_a_key_is_shown_once_and_stored_as_a_hash(house: House) -> None:
    made = house.admin.post("/v1/keys", {"name": "nightly", "roles": ["pipeline"], "expires_in_days": 30}, status=201)
    secret = made["secret"]
    assert len(secret) >= 43
    assert secret.startswith(made["prefix"])
    assert (made["roles"], made["revoked"], made["last_used_at"]) == (["pipeline"], False, None)
    assert secret not in repr(house.everything())
    me = Caller(house.client, secret).get("/v1/keys/self")
    assert me == {"id": made["id"], "name": "nightly", "roles": ["pipeline"]}
    [listed] = [each for each in house.admin.get("/v1/keys", limit=1000)["items"] if each["id"] == made["id"]]
    assert "secret" not in listed
    assert listed["last_used_at"] is not None
    assert listed["expires_at"] > listed["created_at"]


@pytest.mark.parametrize(
    "new",
    [
        {"name": "", "roles": ["pipeline"]},
        {"name": "x", "roles": []},
        {"name": "x", "roles": ["king"]},
        {"name": "x", "roles": ["pipeline"], "expires_in_days": 0},
        {"name": "x", "roles": ["pipeline"], "secret": "sk_mine"},
    ],
)
def test_a_key_that_cannot_be_is_refused(house: House, new: dict[str, Any]) -> None:
    house.admin.post("/v1/keys", new, status=422)


def test_an_expired_key_opens_nothing(house: House) -> None:
    short, _ = caller(house, expires_in_days=0.6 / 86_400)
    short.get("/v1/keys/self")
    time.sleep(0.65)  # it is remembered for longer than that, and must not be
    short.get("/v1/keys/self", status=401)


def test_a_revoked_key_opens_nothing_within_two_seconds(house: House) -> None:
    somebody, made = caller(house)
    somebody.get("/v1/keys/self")
    house.admin.ask("DELETE", f"/v1/keys/{made['id']}", status=204)
    until(lambda: somebody.ask("GET", "/v1/keys/self").status_code == 401, seconds=5)
    assert [
        each["revoked"] for each in house.admin.get("/v1/keys", limit=1000)["items"] if each["id"] == made["id"]
    ] == [True]
    house.admin.ask("DELETE", f"/v1/keys/key_{'0' * 26}", status=404)


def test_the_first_start_makes_one_admin_key(house: House) -> None:
    assert house.first is not None
    assert Caller(house.client, house.first).get("/v1/keys/self")["roles"] == ["admin"]
    assert keys.ensure_first(house.parts.database) is None
    revoked = [
        each for each in keys.listed(house.parts.database, after="", limit=1000) if each["name"] == "first admin"
    ]
    assert len(revoked) == 1


# ---------------------------------------------------------------- roles, from the document of the service itself

WATCHED = {"/healthz", "/readyz", "/metrics"}
OPEN = WATCHED | {"/v1/verify"}
#: Who may, for every operation; an admin may everything, and who is in no row may what all with a key may.
OFFICERS = ("officer",)
PIPELINES = ("pipeline", "officer")
READERS = ("officer", "auditor")
ADMINS: tuple[str, ...] = ()
MAY: dict[tuple[str, str], tuple[str, ...]] = {
    ("POST", "/v1/populations"): OFFICERS,
    ("POST", "/v1/populations/{population}/status"): OFFICERS,
    ("PUT", "/v1/populations/{population}/policy"): OFFICERS,
    ("POST", "/v1/populations/{population}/tasks"): PIPELINES,
    ("POST", "/v1/populations/{population}/datapoints"): PIPELINES,
    ("POST", "/v1/populations/{population}/datapoints/lookup"): READERS,
    ("POST", "/v1/populations/{population}/datapoints/erase"): OFFICERS,
    ("GET", "/v1/populations/{population}/datapoints/{ordinal}"): READERS,
    ("GET", "/v1/populations/{population}/datapoints/{ordinal}/statement"): READERS,
    ("POST", "/v1/populations/{population}/datapoints/statement"): READERS,
    ("GET", "/v1/populations/{population}/report"): READERS,
    ("GET", "/v1/releases/{release}/report"): READERS,
    ("POST", "/v1/releases"): PIPELINES,
    ("POST", "/v1/releases/batch"): PIPELINES,
    ("GET", "/v1/releases/{release}/members"): (*READERS, "worker"),
    ("POST", "/v1/releases/{release}/commit"): PIPELINES,
    ("POST", "/v1/releases/{release}/void"): PIPELINES,
    ("POST", "/v1/releases/{release}/audit"): ("pipeline", "officer", "auditor"),
    ("POST", "/v1/audits"): ("officer", "auditor"),
    ("POST", "/v1/jobs"): PIPELINES,
    ("POST", "/v1/jobs/{job}/cancel"): PIPELINES,
    ("POST", "/v1/advice/what-if"): PIPELINES,
    ("GET", "/v1/populations/{population}/ledger"): READERS,
    ("GET", "/v1/populations/{population}/ledger/export"): READERS,
    ("POST", "/v1/populations/{population}/ledger/verify"): READERS,
    ("GET", "/v1/populations/{population}/ledger/{number}/proof"): READERS,
    ("GET", "/v1/populations/{population}/ledger/consistency"): READERS,
    ("GET", "/v1/checkpoints/{number}"): READERS,
    ("POST", "/v1/checkpoints"): ADMINS,
    ("POST", "/v1/keys"): ADMINS,
    ("GET", "/v1/keys"): ADMINS,
    ("DELETE", "/v1/keys/{key}"): ADMINS,
    ("GET", "/v1/keys/log"): READERS,
    ("POST", "/v1/keys/log/verify"): READERS,
}
ANYBODY = {
    ("GET", "/v1/populations"),
    ("GET", "/v1/populations/{population}"),
    ("GET", "/v1/populations/{population}/policy"),
    ("GET", "/v1/populations/{population}/tasks"),
    ("GET", "/v1/populations/{population}/tasks/{task}"),
    ("GET", "/v1/populations/{population}/budget"),
    ("GET", "/v1/releases"),
    ("GET", "/v1/releases/{release}"),
    ("GET", "/v1/releases/{release}/artifact"),
    ("GET", "/v1/releases/{release}/card"),
    ("GET", "/v1/releases/{release}/certificate"),
    ("GET", "/v1/audits"),
    ("GET", "/v1/audits/{audit}"),
    ("GET", "/v1/jobs"),
    ("GET", "/v1/jobs/{job}"),
    ("GET", "/v1/jobs/{job}/logs"),
    ("GET", "/v1/mechanisms"),
    ("GET", "/v1/mechanisms/{name}"),
    ("POST", "/v1/mechanisms/{name}/price"),
    ("POST", "/v1/advice/calibrate"),
    ("POST", "/v1/advice/label-split"),
    ("GET", "/v1/checkpoints"),
    ("GET", "/v1/keys/self"),
}
VALUES = {
    "population": "nobody-here", "ordinal": "0", "release": NOBODY, "task": "t", "name": "magic", "number": "1",
    "key": "key_" + "0" * 26, "job": "job_" + "0" * 26, "audit": "aud_" + "0" * 26,
}  # fmt: skip


def operations(house: House) -> Iterator[tuple[str, str]]:
    for path, methods in house.client.get("/openapi.json").json()["paths"].items():
        for method in methods:
            yield method.upper(), path


def test_every_operation_has_its_roles_and_keeps_to_them(house: House) -> None:
    found = {operation for operation in operations(house) if operation[1] not in OPEN}
    assert found == set(MAY) | ANYBODY, "a new address needs a row here"
    for method, path in sorted(found):
        address = path.format(**VALUES)
        assert house.as_(None).ask(method, address).status_code == 401, (method, path)
        for role in ROLES:
            may = role == "admin" or (method, path) in ANYBODY or role in MAY.get((method, path), ())
            # Nothing is sent, so that whoever gets in is told that something is missing or not there.
            status = house.as_(role).ask(method, address).status_code
            assert (status == 403) is not may, (method, path, role, status)
            assert status < 500, (method, path, role, status)


def test_who_watches_needs_no_key(house: House) -> None:
    for path in sorted(WATCHED):
        house.as_(None).ask("GET", path, status=200)


def test_anybody_may_have_a_certificate_checked(house: House) -> None:
    for role in (None, *ROLES):
        answer = house.as_(role).post("/v1/verify", {"payload": ""})
        assert (answer["outcome"], answer["certificate"]) == ("broken", None)


def test_a_role_is_asked_for_before_a_body_is_read(house: House) -> None:
    answer = house.as_("worker").ask("POST", "/v1/populations", {"nonsense": 1})
    assert answer.status_code == 403
    assert "officer" in answer.json()["detail"]


# ---------------------------------------------------------------- limits


def test_a_body_that_is_too_long_is_refused_declared_or_not(house: House) -> None:
    name = house.population(10)
    with with_settings(house, body_bytes=2048) as small:
        padded = {"reason": "x" * 4000, "epsilon": 0.5}
        problem = small.officer.put(f"/v1/populations/{name}/policy", padded, status=413)
        assert problem["type"] == "urn:stint:problem:too-large"
        chunked = small.officer.ask(
            "PUT",
            f"/v1/populations/{name}/policy",
            content=(b" " * 500 for _ in range(20)),
            headers={"Content-Type": "application/json"},
        )
        assert chunked.status_code == 413, chunked.text
        assert chunked.json()["type"] == "urn:stint:problem:too-large"
        small.officer.put(f"/v1/populations/{name}/policy", {"reason": "x", "epsilon": 0.5})


def test_too_many_at_a_time_are_told_to_come_back(house: House) -> None:
    with with_settings(house, requests=1) as narrow:
        slot = house.parts.books.slot(name := house.population(10))
        answers: list[httpx.Response] = []

        def come_back_until_answered() -> None:
            """It may meet a look at the health, and is the one that is told to come back then."""
            while not answers or answers[-1].status_code == 503:
                answers.append(narrow.officer.ask("GET", f"/v1/populations/{name}"))

        waiting = threading.Thread(target=come_back_until_answered)
        with slot.lock:  # so that the first request has to wait
            waiting.start()
            until(lambda: narrow.as_(None).ask("GET", "/healthz").status_code == 503)
            busy = narrow.as_(None).ask("GET", "/healthz", status=503)
            assert busy.headers["Retry-After"] == "1"
            assert busy.json()["type"] == "urn:stint:problem:busy"
            assert busy.headers["X-Request-Id"]
        waiting.join()
        assert answers[-1].status_code == 200
        narrow.as_(None).ask("GET", "/healthz", status=200)


def test_too_many_decisions_are_told_to_come_back(house: House) -> None:
    name, parts = house.population(), house.parts
    narrow = replace(parts.settings, queue=1, writers=1)
    writer = Writer(parts.database, parts.books, narrow, parts.metrics)
    started, go = threading.Event(), threading.Event()

    def slow(*_: object) -> Outcome:
        started.set()
        go.wait(10)
        raise Problem("conflict", "enough")

    try:
        first = writer.submit(Operation(population=name, actor="a", decide=slow))
        assert started.wait(10)
        second = writer.submit(Operation(population=name, actor="a", decide=register_count(5)))
        with pytest.raises(Problem) as refused:
            writer.submit(Operation(population=name, actor="a", decide=register_count(5)))
        assert refused.value.name == "busy"
        go.set()
        with pytest.raises(Problem, match="enough"):
            first.result(10)
        assert second.result(10).document["datapoints"] == 5
    finally:
        go.set()
        writer.close()


# ---------------------------------------------------------------- the shape of an answer


def test_no_answer_sends_a_key_elsewhere(house: House) -> None:
    """An address that is nearly right is wrong: whoever is sent on takes the key along, perhaps without TLS."""
    for method, path in (("GET", "/v1/populations/"), ("POST", "/v1/releases/"), ("GET", "/healthz/")):
        answer = house.admin.ask(method, path, {} if method == "POST" else None, status=404)
        assert answer.json()["type"] == "urn:stint:problem:not-found"
        assert "Location" not in answer.headers


def test_a_request_id_is_echoed_or_made(house: House) -> None:
    for path in ("/healthz", "/v1/populations", "/nowhere"):
        given = house.client.get(path, headers={"X-Request-Id": "trace-1.2_3"})
        assert given.headers["X-Request-Id"] == "trace-1.2_3"
        made = {house.client.get(path).headers["X-Request-Id"] for _ in range(3)}
        assert len(made) == 3
        foreign = house.client.get(path, headers={"X-Request-Id": "a b\tc"})
        assert foreign.headers["X-Request-Id"] != "a b\tc"
    problem = house.client.get("/v1/populations", headers={"X-Request-Id": "trace-9"}).json()
    assert problem["instance"] == "urn:stint:request:trace-9"


@pytest.mark.parametrize(
    ("method", "path", "sent", "name"),
    [
        ("GET", "/nowhere", {}, "not-found"),
        ("GET", "/v1/populations/nobody-here", {}, "not-found"),
        ("PATCH", "/v1/populations", {}, "not-allowed"),
        ("DELETE", "/healthz", {}, "not-allowed"),
        ("POST", "/v1/populations", {"content": b"{"}, "invalid"),
        ("POST", "/v1/populations", {"content": b"[]"}, "invalid"),
        ("POST", "/v1/populations", {}, "invalid"),
        ("GET", "/v1/releases?population=a&limit=x", {}, "invalid"),
        ("POST", "/v1/populations/nobody-here/datapoints", {"content": b"x"}, "unsupported"),
        ("GET", "/v1/populations/%00", {}, "invalid"),
        ("GET", f"/v1/releases/{NOBODY}", {}, "not-found"),
    ],
)
def test_every_refusal_is_a_problem_with_the_same_fields(
    house: House, method: str, path: str, sent: dict[str, Any], name: str
) -> None:
    answer = house.officer.ask(method, path, **sent)
    kind = PROBLEMS[name]
    assert answer.status_code == kind.status, answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    document = answer.json()
    assert document["type"] == f"urn:stint:problem:{name}"
    assert (document["title"], document["status"], document["advice"]) == (kind.title, kind.status, kind.advice)
    assert document["detail"]
    assert document["instance"] == f"urn:stint:request:{answer.headers['X-Request-Id']}"


def test_text_with_a_null_is_refused_and_no_fault_of_the_database(house: House) -> None:
    house.admin.post("/v1/keys", {"name": "a\u0000b", "roles": ["pipeline"]}, status=422)
    house.admin.ask("DELETE", "/v1/keys/%00", status=422)
    name = house.population(10)
    tasks = f"/v1/populations/{name}/tasks"
    house.officer.post(tasks, {"name": "a\u0000b", "members": {"ranges": [[0, 1]]}}, status=422)
    house.officer.ask("GET", f"{tasks}/a%00b", status=404)  # one from before is found: test_kept_words
    void = house.officer.hold(name, ({"ranges": [[0, 1]]}, pure(0.1)))
    house.officer.post(f"/v1/releases/{void}/void", {"reason": "\u0000"}, status=422)
    assert house.auditor.post(f"/v1/populations/{name}/ledger/verify")["ok"]


def test_a_fault_of_ours_is_told_without_details(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a secret detail")

    monkeypatch.setattr("service.operations.keys.listed", fail)
    answer = house.admin.ask("GET", "/v1/keys", status=500)
    assert answer.json()["type"] == "urn:stint:problem:internal"
    assert "secret detail" not in answer.text
    assert "a secret detail" in caplog.text
    assert answer.headers["X-Request-Id"]


def test_two_services_in_one_process_do_not_count_together(house: House) -> None:
    assert metrics.Metrics().registry is not house.parts.metrics.registry
    assert create_app(house.parts).openapi()["info"]["title"] == "Stint"
