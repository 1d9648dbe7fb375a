"""Every POST that has an effect has it once under its Idempotency-Key: the OpenAPI document says which those are."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from service.operations import datapoints, keys
from service.store.writer import Answer, Idempotency
from tests.service.fixtures_behaviour import House, pure
from tests.service.work import job

pytest_plugins = ("tests.service.fixtures_behaviour",)

#: POSTs that ask and change nothing.
QUESTIONS = {
    "/v1/advice/calibrate",
    "/v1/advice/label-split",
    "/v1/advice/what-if",
    "/v1/mechanisms/{name}/price",
    "/v1/populations/{population}/datapoints/lookup",
    "/v1/populations/{population}/datapoints/statement",
    "/v1/populations/{population}/ledger/verify",
    "/v1/keys/log/verify",
    "/v1/verify",
}


@dataclass(frozen=True)
class Asked:
    """A request that has an effect, and another one to the same address (None where there is no other)."""

    path: str
    body: Any
    other: Any
    status: int = 200


def held(house: House) -> tuple[str, str]:
    name = house.population(10)
    return name, house.admin.hold(name, ({"ranges": [[0, 10]]}, pure(0.1)))


def proposal(name: str, epsilon: float) -> dict[str, Any]:
    return {"population": name, "charges": [{"scope": {"ranges": [[0, 10]]}, "event": pure(epsilon)}]}


def population(house: House) -> Asked:
    new = {"unit": "user", "budget": {"epsilon": 1.0, "delta": 1e-6}}
    return Asked("/v1/populations", {"name": house.new_name(), **new}, {"name": house.new_name(), **new}, 201)


def status(house: House) -> Asked:
    path = f"/v1/populations/{house.population()}/status"
    return Asked(path, {"status": "frozen", "reason": "a"}, {"status": "frozen", "reason": "b"})


def registration(house: House) -> Asked:
    return Asked(f"/v1/populations/{house.population()}/datapoints", {"count": 3}, {"count": 4}, 201)


def erasure(house: House) -> Asked:
    path = f"/v1/populations/{house.population()}/datapoints"
    house.admin.post(path, {"keys": ["a", "b"]}, status=201)
    return Asked(f"{path}/erase", {"key": "a"}, {"key": "b"})


def task(house: House) -> Asked:
    members = {"ranges": [[0, 3]]}
    path = f"/v1/populations/{house.population(10)}/tasks"
    return Asked(path, {"name": "a", "members": members}, {"name": "b", "members": members}, 201)


def release(house: House) -> Asked:
    name = house.population(10)
    return Asked("/v1/releases", proposal(name, 0.1), proposal(name, 0.2), 201)


def batch(house: House) -> Asked:
    name = house.population(10)
    one, other = ({"proposals": [proposal(name, epsilon)] * 2} for epsilon in (0.1, 0.2))
    return Asked("/v1/releases/batch", one, other)


def commit(house: House) -> Asked:
    artifact = {"artifact": {"sha256": "0" * 64}}
    return Asked(f"/v1/releases/{held(house)[1]}/commit", artifact, {})


def void(house: House) -> Asked:
    return Asked(f"/v1/releases/{held(house)[1]}/void", {"reason": "a"}, {"reason": "b"})


def audit(house: House) -> Asked:
    return Asked(f"/v1/releases/{held(house)[1]}/audit", None, {})


def new_audit(house: House) -> Asked:
    asked = {"population": house.population(), "mechanism": "dp-sgd", "audit": "one run, white box"}
    return Asked("/v1/audits", asked, {**asked, "on_violation": "freeze"}, 201)


def checkpoint(house: House) -> Asked:
    held(house)
    return Asked("/v1/checkpoints", None, {}, 201)


def new_job(house: House) -> Asked:
    name = house.population(60)
    one, other = (job(name, uri) for uri in ("/data/a.npz", "/data/b.npz"))
    return Asked("/v1/jobs", one, other, 201)


def cancel(house: House) -> Asked:
    made = house.admin.post("/v1/jobs", job(house.population(60), "/data/a.npz"), status=201)
    return Asked(f"/v1/jobs/{made['id']}/cancel", None, {})


def new_key(_: House) -> Asked:
    return Asked("/v1/keys", {"name": "a", "roles": ["auditor"]}, {"name": "a", "roles": ["admin"]}, 201)


EFFECTS: dict[str, Callable[[House], Asked]] = {
    "/v1/audits": new_audit,
    "/v1/checkpoints": checkpoint,
    "/v1/jobs": new_job,
    "/v1/jobs/{job}/cancel": cancel,
    "/v1/keys": new_key,
    "/v1/populations": population,
    "/v1/populations/{population}/datapoints": registration,
    "/v1/populations/{population}/datapoints/erase": erasure,
    "/v1/populations/{population}/status": status,
    "/v1/populations/{population}/tasks": task,
    "/v1/releases": release,
    "/v1/releases/batch": batch,
    "/v1/releases/{release}/audit": audit,
    "/v1/releases/{release}/commit": commit,
    "/v1/releases/{release}/void": void,
}


def test_every_post_with_an_effect_takes_a_key_and_no_other(house: House) -> None:
    document = house.client.get("/openapi.json").json()
    posts = {path: methods["post"] for path, methods in document["paths"].items() if "post" in methods}
    assert set(posts) == QUESTIONS | set(EFFECTS)
    for path, operation in posts.items():
        headers = {each["name"].lower() for each in operation.get("parameters", []) if each["in"] == "header"}
        assert ("idempotency-key" in headers) == (path in EFFECTS), path
        assert path not in EFFECTS or "idempotency key" in operation["responses"]["422"]["description"], path


@pytest.mark.parametrize("path", EFFECTS)
def test_it_has_one_effect_and_the_same_answer(house: House, path: str) -> None:
    asked, key = EFFECTS[path](house), {"Idempotency-Key": house.new_name("once")}
    first = house.admin.ask("POST", asked.path, asked.body, headers=key, status=asked.status)
    assert "Idempotent-Replayed" not in first.headers
    after = house.everything()
    for _ in range(2):
        again = house.admin.ask("POST", asked.path, asked.body, headers=key, status=asked.status)
        assert again.headers["Idempotent-Replayed"] == "true"
        expected = first.json()
        if path == "/v1/keys":
            assert again.json()["note"]
            expected = {**expected, "note": again.json()["note"]}
            expected.pop("secret")
        assert again.json() == expected
        assert house.everything() == after
    refused = house.admin.post(asked.path, asked.other, headers=key, status=422)
    assert refused["type"] == "urn:stint:problem:key-reused"
    assert house.everything() == after


def test_a_few_keys_are_registered_once_under_a_key(house: House) -> None:
    path, key = f"/v1/populations/{house.population()}/datapoints", {"Idempotency-Key": house.new_name("once")}
    first = house.pipeline.ask("POST", path, {"keys": ["a", "b"]}, headers=key, status=201)
    again = house.pipeline.ask("POST", path, {"keys": ["a", "b"]}, headers=key, status=201)
    assert again.json() == first.json()
    assert again.headers["Idempotent-Replayed"] == "true"
    house.pipeline.post(path, {"keys": ["c"]}, headers=key, status=422)


def test_so_many_that_they_take_two_decisions_stay_known(house: House) -> None:
    path, key = f"/v1/populations/{house.population()}/datapoints", {"Idempotency-Key": house.new_name("once")}
    body = {"keys": [str(number) for number in range(datapoints.CHUNK)]}
    assert house.pipeline.post(path, body, headers=key, status=201)["registered"] == datapoints.CHUNK
    assert house.pipeline.post(path, body, headers=key, status=201)["known"] == datapoints.CHUNK


def test_the_secret_of_a_key_is_stored_nowhere(house: House) -> None:
    key = {"Idempotency-Key": house.new_name("once")}
    made = house.admin.post("/v1/keys", {"name": "a", "roles": ["worker"]}, status=201, headers=key)
    stored = json.dumps(house.everything(), default=lambda value: value.decode("latin-1") if isinstance(value, bytes)
                        else str(value))  # fmt: skip
    assert made["id"] in stored
    assert made["secret"] not in stored
    assert made["secret"][9:] not in stored


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/keys", {"name": "a", "roles": ["auditor"]}), ("/v1/checkpoints", None)]
)
def test_at_the_same_time_too(house: House, path: str, body: Any) -> None:
    key = {"Idempotency-Key": house.new_name("once")}
    table = {"/v1/keys": "api_key", "/v1/checkpoints": "checkpoint"}[path]
    before = len(house.rows(table))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: house.admin.ask("POST", path, body, headers=key, status=201), range(8)))
    assert len(house.rows(table)) == before + 1
    assert len({json.dumps(answer.json().get("id") or answer.json()["number"]) for answer in answers}) == 1
    assert sum("Idempotent-Replayed" not in answer.headers for answer in answers) == 1


def test_what_fails_before_its_answer_is_remembered_made_no_key(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the process had died between the effect and the answer: neither is there, and the key is free."""
    under = Idempotency.of(actor="somebody", key=house.new_name("once"), request=b"", secret=b"")
    remember = Idempotency.remember

    def dies(*_: Any) -> None:
        raise RuntimeError("power")

    before = house.rows("api_key")
    monkeypatch.setattr(Idempotency, "remember", dies)
    with pytest.raises(RuntimeError, match="power"):
        keys.create_once(house.parts.database, under, name="a", roles=["worker"], by="tests")
    assert [row[0] for row in house.rows("api_key")] == [row[0] for row in before]
    monkeypatch.setattr(Idempotency, "remember", remember)
    made: Answer = keys.create_once(house.parts.database, under, name="a", roles=["worker"], by="tests")
    assert not made.replayed
    assert keys.create_once(house.parts.database, under, name="a", roles=["worker"], by="tests").replayed
