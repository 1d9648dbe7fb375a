"""The short way for proposals and commits answers as the long way does, and leaves to it what is not plain."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from service.api import express
from service.api.context import answered
from tests.service.fixtures_behaviour import Caller, House, gaussian, pure, until

pytest_plugins = ("tests.service.fixtures_behaviour",)

LONG_WAY = {"Content-Type": "application/json; charset=utf-8"}
ALL = {"ranges": [[0, 100]]}
SHA = "ab" * 32


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The statuses of answers that came by the short way."""
    statuses: list[int] = []
    original = answered

    def noticed(answer: Any) -> Any:
        statuses.append(answer.status)
        return original(answer)

    monkeypatch.setattr(express, "answered", noticed)
    return statuses


def alike(answer: httpx.Response) -> tuple[int, str, bool, Any]:
    """An answer without what differs between any two of them."""
    text = re.sub(r"rel_[0-9A-Z]{26}|clinic-\d+|[0-9a-f]{64}|\d{4}-\d\d-\d\dT[\d:.]+Z|request:\w+", "…", answer.text)
    return answer.status_code, answer.headers["content-type"], "idempotent-replayed" in answer.headers, json.loads(text)


def both_ways(caller: Caller, path: str, body: object, **headers: str) -> tuple[Any, Any]:
    short = caller.ask("POST", path, body, headers=headers)
    long = caller.ask("POST", path, body, headers={**headers, **LONG_WAY})
    return alike(short), alike(long)


def test_plain_requests_take_the_short_way(house: House, taken: list[int]) -> None:
    population = house.population(100)
    house.pipeline.get("/v1/releases", population=population)  # whose key it is is known from here on
    held = house.pipeline.hold(population, (ALL, pure(0.1)))
    house.pipeline.commit(held)
    assert taken == [201, 200]
    assert house.pipeline.propose(population, (ALL, pure(5.0)))["status"] == "denied"
    assert taken == [201, 200, 201]
    assert house.pipeline.get("/v1/releases/" + held)["status"] == "committed"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"charges": [{"scope": ALL, "event": gaussian(50.0)}]}, 201),
        ({"charges": [{"scope": ALL, "event": pure(5.0)}]}, 201),
        ({"charges": [{"scope": {"ranges": [[0, 101]]}, "event": pure(0.1)}]}, 422),
        ({"charges": [{"scope": ALL, "event": {"kind": "gaussian", "noise_multiplier": -1}}]}, 422),
        ({"charges": [{"scope": {"task": "none"}, "event": pure(0.1)}]}, 422),
        ({"charges": [{"scope": {"keys": ["a"]}, "event": pure(0.1)}]}, 403),
        ({"charges": []}, 422),
        ({"charges": "none"}, 422),
        ({"unknown": 1}, 422),
        ({"mechanism": {"name": "dp-sgd", "parameters": {}}, "scope": ALL}, 422),
        ({"mechanism": {"name": "magic", "parameters": {}}, "scope": ALL}, 422),
        ({"charges": [{"scope": ALL, "event": pure(0.1)}], "hold_seconds": 0}, 422),
        ({"population": "nobody", "charges": [{"scope": ALL, "event": pure(0.1)}]}, 404),
    ],
)
def test_a_proposal_has_the_same_answer_both_ways(house: House, more: dict[str, Any], expected: int) -> None:
    answers = []
    for headers in ({}, LONG_WAY):
        population = house.population(100)
        answers.append(house.pipeline.ask("POST", "/v1/releases", {"population": population, **more}, headers=headers))
    assert answers[0].status_code == expected, answers[0].text
    assert alike(answers[0]) == alike(answers[1])


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"text"', b"\xff", b'{"a": NaN}', b"[" * 5000])
def test_what_is_no_document_has_the_same_answer_both_ways(house: House, body: bytes) -> None:
    held = house.pipeline.hold(house.population(100), (ALL, pure(0.1)))
    for path in ("/v1/releases", f"/v1/releases/{held}/commit"):
        answers = [
            alike(house.pipeline.ask("POST", path, headers=headers, content=body))
            for headers in ({"Content-Type": "application/json"}, LONG_WAY)
        ]
        assert answers[0] == answers[1]
        assert answers[0][0] == 422


def test_a_commit_has_the_same_answer_both_ways(house: House) -> None:
    population = house.population(100)

    def held() -> str:
        return house.pipeline.hold(population, (ALL, pure(0.01)))

    def compared(body: object, release: str, second: str, caller: Caller = house.pipeline) -> int:
        short = caller.ask("POST", f"/v1/releases/{release}/commit", body)
        long = caller.ask("POST", f"/v1/releases/{second}/commit", body, headers=LONG_WAY)
        answers = [re.sub(r'"number": ?\d+', "", json.dumps(alike(each))) for each in (short, long)]
        assert answers[0] == answers[1]
        return short.status_code

    first, second = held(), held()
    assert compared({"artifact": {"sha256": "short"}}, first, second) == 422
    assert compared({}, first, second, house.auditor) == 403
    assert compared({"artifact": {"sha256": SHA, "uri": "s3://a"}}, first, second) == 200
    assert compared({"artifact": {"sha256": SHA, "uri": "s3://a"}}, first, second) == 200
    assert compared({"artifact": {"sha256": "cd" * 32}}, first, second) == 409
    nobodys = "rel_" + "0" * 26
    assert compared({}, nobodys, nobodys) == 404
    assert compared({}, "rel_1", "rel_1") == 422


def test_a_key_names_the_same_request_both_ways(house: House, taken: list[int]) -> None:
    """An answer that was given by one way is found again by the other."""
    population = house.population(100)
    body = {"population": population, "charges": [{"scope": ALL, "event": pure(0.1)}]}
    house.pipeline.get("/v1/releases", population=population)
    for number, (first, second) in enumerate((({}, LONG_WAY), (LONG_WAY, {}))):
        key = {"Idempotency-Key": f"{population} {number}"}
        sent = [house.pipeline.ask("POST", "/v1/releases", body, headers={**key, **way}) for way in (first, second)]
        assert sent[0].json() == sent[1].json()
        assert [answer.headers.get("idempotent-replayed") for answer in sent] == [None, "true"]
        other = house.pipeline.ask("POST", "/v1/releases", {**body, "kind": "labels"}, headers=key)
        assert (other.status_code, other.json()["type"]) == (422, "urn:stint:problem:key-reused")
    assert taken == [201, 201]
    assert len(house.rows("release", population)) == 2
    short, long = both_ways(house.pipeline, "/v1/releases", body, **{"Idempotency-Key": "k" * 201})
    assert short == long
    assert short[0] == 422


def test_limits_hold_on_the_short_way(house: House, taken: list[int]) -> None:
    house.pipeline.get("/v1/releases", population=house.population(1))
    body = json.dumps({"population": "x" * (house.parts.settings.body_bytes + 1)})

    def pieces() -> Iterator[bytes]:
        yield body[:100].encode()
        yield body[100:].encode()

    for content in (body.encode(), pieces()):
        answer = house.pipeline.ask(
            "POST", "/v1/releases", content=content, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == 413
    assert not taken


def test_a_revoked_key_ends_on_the_short_way(house: House) -> None:
    population = house.population(100)
    new = house.admin.post("/v1/keys", {"name": "leaver", "roles": ["pipeline"]}, status=201)
    leaver = Caller(house.client, new["secret"])
    assert leaver.propose(population, (ALL, pure(0.01)))["status"] == "held"
    house.admin.ask("DELETE", f"/v1/keys/{new['id']}", status=204)
    body = {"population": population, "charges": [{"scope": ALL, "event": pure(0.01)}]}
    until(lambda: leaver.ask("POST", "/v1/releases", body).status_code == 401, seconds=5)


def test_two_keys_on_one_request_mean_the_same_both_ways(house: House, taken: list[int]) -> None:
    population = house.population(100)
    house.pipeline.get("/v1/releases", population=population)
    body = json.dumps({"population": population, "charges": [{"scope": ALL, "event": pure(0.1)}]})
    for way in ("application/json", LONG_WAY["Content-Type"]):
        headers = [
            ("Authorization", f"Bearer {house.secrets['pipeline']}"),
            ("Content-Type", way),
            ("Idempotency-Key", population),
            ("Idempotency-Key", f"{population} again"),
        ]
        assert house.client.post("/v1/releases", content=body, headers=headers).status_code == 201
    assert len(house.rows("release", population)) == 1
    assert not taken


def test_a_refusal_on_the_short_way_is_counted_where_it_belongs(house: House) -> None:
    population = house.population(100)
    house.pipeline.get("/v1/releases", population=population)

    def refused() -> float:
        sample = house.parts.metrics.registry.get_sample_value(
            "stint_requests_total", {"method": "POST", "route": "/v1/releases", "status": "422"}
        )
        return sample or 0.0

    before = refused()
    short = {"population": population, "charges": [{"scope": {"ranges": [[0, 101]]}, "event": pure(0.1)}]}
    house.pipeline.post("/v1/releases", short, status=422)
    until(lambda: refused() == before + 1)
