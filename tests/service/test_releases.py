"""Releases over HTTP: proposed, then denied or held, then committed, voided or expired."""

from __future__ import annotations

import dataclasses
import re
import time
from types import MappingProxyType
from typing import Any

import pytest
from pyroaring import BitMap

from accountant import account, calibrate_split
from accountant.book import bitmap_to
from accountant.calibration import dp_sgd
from accountant.events import Composed
from service.operations import keys, releases
from service.sweeper import sweep
from tests.service.fixtures_behaviour import DP_ONLY, PRIOR, Caller, House, gaussian, pure
from trainers import catalog

pytest_plugins = ("tests.service.fixtures_behaviour",)

LEDGER = ("population", "entry", "release", "hold", "cohort", "idempotency", "checkpoint")
ALL = {"ranges": [[0, 100]]}
SHA = "ab" * 32


def state(house: House) -> dict[str, Any]:
    return {table: house.rows(table) for table in LEDGER}


def body(population: str, event: dict[str, Any], scope: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"population": population, "charges": [{"scope": scope or ALL, "event": event}], **more}


# ---------------------------------------------------------------- shapes


def test_the_shapes_that_outside_checks_rely_on(house: House) -> None:
    name = house.new_name()
    house.officer.post(
        "/v1/populations",
        {"name": name, "unit": "user", "adjacency": "add_remove", "budget": {"epsilon": 3.0, "delta": 1e-6}},
        status=201,
    )
    house.officer.post(f"/v1/populations/{name}/datapoints", {"count": 100000}, status=201)
    task = {
        "name": "2026-w46",
        "members": {"ranges": [[0, 5000]]},
        "parts": {"memory": {"ranges": [[0, 500]]}},
        "budget": {"epsilon": 1.0, "delta": 1e-7},
    }
    house.officer.post(f"/v1/populations/{name}/tasks", task, status=201)
    proposal = {
        "population": name,
        "kind": "weights",
        "label_space": PRIOR,
        "state": DP_ONLY,
        "charges": [{"scope": {"task": "2026-w46"}, "event": gaussian(20.0)}],
    }
    held = house.pipeline.post("/v1/releases?dry_run=false", proposal, status=201)
    assert re.fullmatch(r"rel_[0-9A-Z]{26}", held["id"])
    assert held["status"] == "held"
    assert held["decision"]["outcome"] == "admitted"
    assert held["decision"]["reasons"] == []
    assert held["decision"]["advice"] == []
    assert held["decision"]["epsilon"]["before"] == 0
    assert 0 < held["decision"]["epsilon"]["after"] < 1
    assert held["decision"]["epsilon"]["budget"] == 3.0
    assert {each["code"]: each["severity"] for each in held["findings"]} == {  # what the proposal leaves unsaid
        "tuning.undeclared": "warning", "pretraining.undeclared": "warning",
    }  # fmt: skip
    assert held["entry"]["number"] == 4
    assert re.fullmatch("[0-9a-f]{64}", held["entry"]["hash"])
    proposal["charges"] = [{"scope": {"task": "2026-w46"}, "event": gaussian(1.0)}]
    denied = house.pipeline.post("/v1/releases?dry_run=false", proposal, status=201)
    assert denied["status"] == "denied"
    assert denied["decision"]["outcome"] == "denied"
    assert all(each["code"] and each["message"] for each in denied["decision"]["reasons"])
    assert denied["expires_at"] is None
    done = house.pipeline.post(f"/v1/releases/{held['id']}/commit", {"artifact": {"sha256": SHA, "uri": "s3://m/1"}})
    assert (done["status"], done["artifact"]) == ("committed", {"sha256": SHA, "uri": "s3://m/1"})
    one = house.officer.get(f"/v1/populations/{name}/datapoints/17")
    assert one["ordinal"] == 17
    assert set(one["epsilon"]) == {"spent", "held", "available", "budget"}
    assert one["epsilon"]["budget"] == 3.0
    assert [charge["release"] for charge in one["charges"]] == [held["id"]]
    assert one["charges"][0]["event"] == {"version": 1, **gaussian(20.0)}
    assert house.pipeline.get(f"/v1/populations/{name}/budget")["datapoints"] == 100000
    entries = house.officer.get(f"/v1/populations/{name}/ledger")["items"]
    assert [entry["number"] for entry in entries] == [1, 2, 3, 4, 5, 6]
    assert house.officer.post(f"/v1/populations/{name}/ledger/verify")["ok"]


def test_a_proposal_in_full_by_mechanism(house: House) -> None:
    name = house.population(1000, epsilon=3.0)
    house.officer.post(f"/v1/populations/{name}/tasks", {"name": "w46", "members": {"next": 500}}, status=201)
    proposal = {
        "population": name,
        "kind": "weights",
        "task": "w46",
        "mechanism": {
            "name": "dp-sgd",
            "parameters": {"noise_multiplier": 1.1, "sampling_probability": 0.01, "steps": 2000, "clip_norm": 1.0},
        },
        "label_space": {"source": "released", "release": "rel_01J00000000000000000000000"},
        "state": DP_ONLY,
        "tuning": {"source": "public"},
        "pretraining": {"data": "public", "name": "ImageNet-21k"},
    }
    held = house.pipeline.post("/v1/releases", proposal, status=201)
    assert held["status"] == "held", held["decision"]["reasons"]
    shown = house.pipeline.get(f"/v1/releases/{held['id']}")
    assert shown["declared"]["mechanism"] == proposal["mechanism"]
    assert shown["declared"]["pretraining"] == proposal["pretraining"]
    [charge] = shown["charges"]
    assert charge["datapoints"] == 500
    assert charge["scope"] == {"task": "w46"}
    assert charge["event"]["kind"] == "repeated"
    assert charge["event"]["times"] == 2000


# ---------------------------------------------------------------- hold, commit, void, expire


def test_a_dry_run_records_nothing(house: House) -> None:
    name = house.population(100)
    before = state(house)
    for epsilon, outcome in ((0.5, "admitted"), (1.5, "denied")):
        found = house.pipeline.post(
            "/v1/releases?dry_run=true", body(name, pure(epsilon)), headers={"Idempotency-Key": f"dry-{epsilon}"}
        )
        assert (found["status"], found["decision"]["outcome"]) == ("dry_run", outcome)
        assert "id" not in found
    assert state(house) == before


def test_a_hold_counts_at_once_and_a_void_gives_it_back(house: House) -> None:
    name = house.population(100)
    held = house.pipeline.hold(name, (ALL, pure(0.7)))
    reading = house.officer.reading(name, 5)
    assert (reading["spent"], reading["held"]) == (0, pytest.approx(0.7))
    assert house.pipeline.propose(name, (ALL, pure(0.4)))["status"] == "denied"
    why = {"reason": "the job never started", "evidence": {"exit_code": 1}}
    assert house.pipeline.post(f"/v1/releases/{held}/void", why)["status"] == "voided"
    assert house.officer.reading(name, 5)["held"] == 0
    number = house.pipeline.get(f"/v1/populations/{name}")["entry"]["number"]
    assert house.pipeline.post(f"/v1/releases/{held}/void", why)["entry"]["number"] == number, "void is idempotent"
    house.pipeline.post(f"/v1/releases/{held}/commit", {}, status=409)
    assert house.pipeline.propose(name, (ALL, pure(0.9)))["status"] == "held"


def test_a_commit_is_idempotent_and_final(house: House) -> None:
    name = house.population(100)
    held = house.pipeline.hold(name, (ALL, pure(0.5)))
    address = f"/v1/releases/{held}/commit"
    artifact = {"sha256": SHA, "uri": "s3://m/1", "bytes": 12, "metrics": {"accuracy": 0.9}}
    first = house.pipeline.post(address, {"artifact": artifact})
    assert first["artifact"] == artifact
    for again in ({"artifact": artifact}, {}):
        answer = house.pipeline.post(address, again)
        assert (answer["status"], answer["entry"]) == ("committed", first["entry"])
    other = house.pipeline.post(address, {"artifact": {"sha256": "cd" * 32}}, status=409)
    assert other["field"] == "artifact"
    assert house.pipeline.post(f"/v1/releases/{held}/void", {"reason": "regret"}, status=409)["status"] == 409
    assert house.officer.reading(name, 0)["spent"] == pytest.approx(0.5)
    entries = house.officer.get(f"/v1/populations/{name}/ledger")["items"]
    assert [entry["body"]["kind"] for entry in entries].count("release.committed") == 1


def test_an_artifact_may_follow_its_commit(house: House) -> None:
    name = house.population(100)
    held = house.pipeline.hold(name, (ALL, pure(0.5)))
    house.pipeline.commit(held)
    assert house.pipeline.commit(held, sha256=SHA)["artifact"] == {"sha256": SHA}
    assert house.pipeline.get(f"/v1/releases/{held}")["artifact"] == {"sha256": SHA}
    kinds = [entry["body"]["kind"] for entry in house.officer.get(f"/v1/populations/{name}/ledger")["items"]]
    assert kinds[-2:] == ["release.committed", "artifact.attached"]


def test_silence_is_spent_and_a_late_commit_only_attaches(house: House) -> None:
    name = house.population(100)
    held = house.pipeline.hold(name, (ALL, pure(0.5)), hold_seconds=1)
    later = house.pipeline.hold(name, (ALL, pure(0.1)), hold_seconds=1000)
    sweep(house.parts)
    assert house.pipeline.get(f"/v1/releases/{held}")["status"] == "held"
    time.sleep(1.05)
    assert sweep(house.parts) >= 1  # holds of other tests may have run out as well
    assert house.pipeline.get(f"/v1/releases/{held}")["status"] == "expired"
    entries = house.officer.get(f"/v1/populations/{name}/ledger")
    sweep(house.parts)
    assert house.officer.get(f"/v1/populations/{name}/ledger") == entries
    assert house.pipeline.get(f"/v1/releases/{later}")["status"] == "held"
    reading = house.officer.reading(name, 0)
    assert (reading["spent"], reading["held"]) == (pytest.approx(0.5), pytest.approx(0.1))
    assert house.pipeline.post(f"/v1/releases/{held}/void", {"reason": "it never ran"}, status=409)
    late = house.pipeline.commit(held, sha256=SHA)
    assert (late["status"], late["artifact"]) == ("expired", {"sha256": SHA})
    assert house.officer.reading(name, 0)["spent"] == pytest.approx(0.5)
    house.pipeline.post(f"/v1/releases/{held}/commit", {"artifact": {"sha256": "cd" * 32}}, status=409)
    assert house.auditor.post(f"/v1/populations/{name}/ledger/verify")["ok"]


@pytest.mark.parametrize("what", ["", "/commit", "/void"])
def test_unknown_and_malformed_ids(house: House, what: str) -> None:
    method, sent = ("POST", {"reason": "x"} if what == "/void" else {}) if what else ("GET", None)
    unknown = house.pipeline.ask(method, f"/v1/releases/rel_{'0' * 26}{what}", sent, status=404)
    assert unknown.json()["type"] == "urn:stint:problem:not-found"
    for malformed in ("rel_", "rel_" + "a" * 26, "x", "rel_" + "0" * 27):
        problem = house.pipeline.ask(method, f"/v1/releases/{malformed}{what}", sent, status=422).json()
        assert problem["field"] == "release"


def test_a_denied_release_can_be_neither_committed_nor_voided(house: House) -> None:
    name = house.population(100)
    denied = house.pipeline.propose(name, (ALL, pure(1.5)))["id"]
    house.pipeline.post(f"/v1/releases/{denied}/commit", {}, status=409)
    house.pipeline.post(f"/v1/releases/{denied}/void", {"reason": "x"}, status=409)


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("charges", {"charges": []}),
        ("charges", {"mechanism": {"name": "label-release", "parameters": {"epsilon": 0.1, "delta": 1e-9}}}),
        ("scope", {"task": "w1"}),
        ("population", {"population": "no spaces"}),
        ("kind", {"kind": "secrets"}),
        ("hold_seconds", {"hold_seconds": 0}),
        ("charges[0].event.noise_multiplier", {"charges": [{"scope": ALL, "event": gaussian(-1)}]}),
        ("charges[0].event.kind", {"charges": [{"scope": ALL, "event": {"kind": "magic"}}]}),
        ("charges[0].scope", {"charges": [{"scope": {}, "event": pure(0.1)}]}),
        ("charges[0].scope.task", {"charges": [{"scope": {"task": "\ud800"}, "event": pure(0.1)}]}),
        ("charges[0].scope", {"charges": [{"scope": {"ranges": [[0, 101]]}, "event": pure(0.1)}]}),
        ("charges.0.price", {"charges": [{"scope": ALL, "event": pure(0.1), "price": 0}]}),
        ("delta", {"delta": 1e-3}),
    ],
)
def test_what_cannot_be_read_is_refused_and_not_recorded(house: House, field: str, changes: dict[str, Any]) -> None:
    name = house.population(100)
    before = house.rows("entry", name)
    problem = house.pipeline.post("/v1/releases", {**body(name, pure(0.1)), **changes}, status=422)
    assert problem["field"] == field
    assert house.rows("entry", name) == before


def test_keys_that_are_no_text_are_refused(house: House) -> None:
    name = house.population(100)
    for wrong in (["\ud800"], [7], [""], ["x" * 1001]):
        problem = house.officer.post("/v1/releases", body(name, pure(0.1), {"keys": wrong}), status=422)
        assert problem["type"] == "urn:stint:problem:invalid"


# ---------------------------------------------------------------- denials, trim, advice


def test_a_denial_says_who_where_and_by_how_much(house: House) -> None:
    name = house.population(100)
    house.pipeline.commit(house.pipeline.hold(name, ({"ranges": [[0, 12]]}, pure(0.9))))
    before = {ordinal: house.officer.reading(name, ordinal) for ordinal in (0, 50)}
    denied = house.pipeline.propose(name, (ALL, pure(0.25)))
    [reason] = denied["decision"]["reasons"]
    assert reason["code"] == "budget.exceeded"
    assert reason["datapoints"] == 12
    assert reason["epsilon"] == pytest.approx(1.15)
    assert reason["budget"] == 1.0
    assert reason["over"] == pytest.approx(0.15)
    assert "12 datapoints" in reason["message"]
    epsilon = denied["decision"]["epsilon"]
    assert (epsilon["before"], epsilon["after"]) == (pytest.approx(0.9), pytest.approx(1.15))
    assert {ordinal: house.officer.reading(name, ordinal) for ordinal in (0, 50)} == before
    shown = house.pipeline.get(f"/v1/releases/{denied['id']}")
    assert shown["status"] == "denied"
    assert shown["decision"] == denied["decision"]


@pytest.mark.parametrize(
    "event",
    [
        pure(0.6),
        gaussian(8.0),
        {"kind": "repeated", "times": 20, "event": gaussian(30.0)},
        {"kind": "approx_dp", "epsilon": 0.8, "delta": 1e-8},
    ],
)
def test_what_is_advised_is_then_admitted(house: House, event: dict[str, Any]) -> None:
    name = house.population(100)
    house.pipeline.commit(house.pipeline.hold(name, ({"ranges": [[0, 30]]}, pure(0.6))))
    denied = house.pipeline.propose(name, (ALL, event))
    assert denied["status"] == "denied"
    advice = {each["kind"]: each for each in denied["decision"]["advice"]}
    assert {"noise", "trim"} <= set(advice)
    for kind in set(advice) - {"trim"}:
        dry = house.pipeline.post("/v1/releases?dry_run=true", body(name, advice[kind]["events"][0]))
        assert dry["decision"]["outcome"] == "admitted", kind
    assert advice["trim"]["datapoints"] == 30
    trimmed = house.officer.propose(name, (ALL, event), on_exhausted="trim")
    assert (trimmed["status"], trimmed["decision"]["trimmed"]) == ("held", 30)


def test_trim_leaves_the_exhausted_out_on_the_server(house: House) -> None:
    name = house.population(100, on_exhausted="trim")
    house.pipeline.commit(house.pipeline.hold(name, ({"ranges": [[10, 20]]}, pure(0.8))))
    trimmed = house.pipeline.propose(name, (ALL, pure(0.5)))
    assert (trimmed["status"], trimmed["decision"]["trimmed"]) == ("held", 10)
    house.pipeline.commit(trimmed["id"])
    spent = [house.officer.reading(name, ordinal)["spent"] for ordinal in (9, 10, 19, 20)]
    assert spent == pytest.approx([0.5, 0.8, 0.8, 0.5])
    who = house.officer.get(f"/v1/populations/{name}/datapoints/10")
    assert trimmed["id"] not in {charge["release"] for charge in who["charges"]}
    assert house.pipeline.get(f"/v1/releases/{trimmed['id']}")["datapoints"] == 90
    strict = house.pipeline.propose(name, (ALL, pure(0.3)), on_exhausted="deny")
    assert strict["status"] == "denied"
    nobody = house.pipeline.propose(name, ({"ranges": [[10, 20]]}, pure(0.3)))
    assert nobody["status"] == "denied", "a release about nobody is none"
    assert house.auditor.post(f"/v1/populations/{name}/ledger/verify")["ok"]


# ---------------------------------------------------------------- batch, idempotency


def test_a_batch_has_a_decision_for_each(house: House) -> None:
    name = house.population(100)
    proposals = [
        body(name, pure(0.6)),
        body(name, pure(0.6)),
        body(name, {"kind": "magic"}),
        body("nobody-here", pure(0.1)),
        body(name, pure(0.3)),
    ]
    answer = house.pipeline.post("/v1/releases/batch", {"proposals": proposals}, headers={"Idempotency-Key": "b1"})
    assert [each["status"] for each in answer["items"]] == ["held", "denied", "refused", "refused", "held"]
    problems = [each["problem"]["status"] for each in answer["items"] if each["status"] == "refused"]
    assert problems == [422, 404]
    again = house.pipeline.post("/v1/releases/batch", {"proposals": proposals}, headers={"Idempotency-Key": "b1"})
    assert [each.get("id") for each in again["items"]] == [each.get("id") for each in answer["items"]]
    assert len(house.pipeline.get("/v1/releases", population=name)["items"]) == 3
    house.pipeline.post("/v1/releases/batch", {"proposals": []}, status=422)
    house.pipeline.post("/v1/releases/batch", {"proposals": [proposals[0]] * 101}, status=422)


def test_the_same_request_under_the_same_key_has_one_effect(house: House) -> None:
    name = house.population(100)
    asked, key = body(name, pure(0.3)), {"Idempotency-Key": house.new_name("key")}
    first = house.pipeline.ask("POST", "/v1/releases", asked, headers=key, status=201)
    assert "Idempotent-Replayed" not in first.headers
    for _ in range(3):
        again = house.pipeline.ask("POST", "/v1/releases", asked, headers=key, status=201)
        assert again.headers["Idempotent-Replayed"] == "true"
        assert again.json() == first.json()
    assert house.officer.reading(name, 0)["held"] == pytest.approx(0.3)
    other = house.pipeline.post("/v1/releases", body(name, pure(0.2)), headers=key, status=422)
    assert other["type"] == "urn:stint:problem:key-reused"
    elsewhere = house.pipeline.post(f"/v1/releases/{first.json()['id']}/commit", {}, headers=key, status=422)
    assert elsewhere["type"] == "urn:stint:problem:key-reused"
    # Another actor's key of the same name is another key.
    mine = house.officer.ask("POST", "/v1/releases", asked, headers=key, status=201)
    assert "Idempotent-Replayed" not in mine.headers
    assert mine.json()["id"] != first.json()["id"]
    house.pipeline.post("/v1/releases", asked, headers={"Idempotency-Key": "x" * 201}, status=422)


def test_denials_commits_and_voids_are_replayed_too(house: House) -> None:
    name = house.population(100)
    denial = {"Idempotency-Key": house.new_name("key")}
    first = house.pipeline.post("/v1/releases", body(name, pure(1.5)), headers=denial, status=201)
    again = house.pipeline.post("/v1/releases", body(name, pure(1.5)), headers=denial, status=201)
    assert first == again
    held = house.pipeline.hold(name, (ALL, pure(0.3)))
    key = {"Idempotency-Key": house.new_name("key")}
    voided = house.pipeline.post(f"/v1/releases/{held}/void", {"reason": "x"}, headers=key)
    assert house.pipeline.post(f"/v1/releases/{held}/void", {"reason": "x"}, headers=key) == voided


def test_a_request_that_was_refused_may_be_mended_under_its_key(house: House) -> None:
    name = house.population(100)
    key = {"Idempotency-Key": house.new_name("key")}
    house.pipeline.post("/v1/releases", body(name, {"kind": "magic"}), headers=key, status=422)
    house.pipeline.post("/v1/releases", body(name, pure(0.1)), headers=key, status=201)


# ---------------------------------------------------------------- the catalog


def test_the_policy_says_which_proofs_it_accepts(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    claimed = dataclasses.replace(catalog.CATALOG["label-release"], proof_status="claimed", proof_note="A draft.")
    changed = MappingProxyType({**catalog.CATALOG, "label-release": claimed})
    monkeypatch.setattr(catalog, "CATALOG", changed)
    asked = {"kind": "labels", "scope": ALL, "mechanism": {"name": "label-release"}}
    asked["mechanism"] = {"name": "label-release", "parameters": {"epsilon": 0.2, "delta": 1e-9}}
    name = house.population(100)
    denied = house.pipeline.post("/v1/releases", {"population": name, **asked}, status=201)
    assert denied["status"] == "denied"
    [reason] = denied["decision"]["reasons"]
    assert reason["code"] == "policy.proof_status"
    assert "claimed" in reason["message"]
    assert house.officer.reading(name, 0)["held"] == 0
    house.officer.put(
        f"/v1/populations/{name}/policy", {"reason": "we take the risk", "accepts": ["proved", "claimed"]}
    )
    assert house.pipeline.post("/v1/releases", {"population": name, **asked}, status=201)["status"] == "held"
    open_minded = house.population(100, accepts=["proved", "claimed"])
    assert house.pipeline.post("/v1/releases", {"population": open_minded, **asked}, status=201)["status"] == "held"


TRAINING = {"noise_multiplier": 3.0, "sampling_probability": 0.01, "steps": 20_000, "clip_norm": 1.0}


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
@pytest.mark.parametrize(
    ("mechanism", "parameters", "changes"),
    [
        ("dp-sgd", TRAINING, {"noise": {"noise_multiplier"}, "steps": {"steps"}}),
        ("dp-sgd", {**TRAINING, "steps": 2, "noise_multiplier": 0.3}, {"noise": {"noise_multiplier"}}),
        ("label-release", {"epsilon": 0.9, "delta": 1e-9}, {"noise": {"epsilon"}}),
        (
            "label-release",
            {"epsilon": 0.9, "delta": 1e-9, "labels_per_unit": 7},
            {"noise": {"epsilon"}, "steps": {"epsilon", "delta", "labels_per_unit"}},
        ),
    ],
)
def test_the_parameters_that_are_advised_are_admitted_as_they_stand(
    house: House, adjacency: str, mechanism: str, parameters: dict[str, Any], changes: dict[str, set[str]]
) -> None:
    name = house.population(100, adjacency=adjacency)
    house.pipeline.commit(house.pipeline.hold(name, ({"ranges": [[0, 30]]}, pure(0.4))))
    asked: dict[str, Any] = {"population": name, "scope": ALL, "mechanism": {"name": mechanism}}
    asked["mechanism"]["parameters"] = parameters
    denied = house.pipeline.post("/v1/releases", asked, status=201)
    assert denied["status"] == "denied"
    advice = {each["kind"]: each for each in denied["decision"]["advice"]}
    assert set(changes) <= set(advice)
    for kind, each in advice.items():
        if kind == "trim":
            assert each["parameters"] is None
            continue
        fitting = each["parameters"]
        assert {field for field in fitting if fitting[field] != parameters.get(field)} == changes[kind]
        assert all(f"{field} = {fitting[field]!r}" in each["message"] for field in changes[kind])
        priced = house.pipeline.post(
            f"/v1/mechanisms/{mechanism}/price", {"parameters": fitting, "adjacency": adjacency}
        )
        assert priced["events"] == each["events"], "what the parameters charge is what is advised"
        again = {**asked, "mechanism": {"name": mechanism, "parameters": fitting}}
        held = house.pipeline.post("/v1/releases", again, status=201)
        assert (held["status"], held["decision"]["trimmed"]) == ("held", 0)
        house.pipeline.post(f"/v1/releases/{held['id']}/void", {"reason": "it was to be seen"})
    assert house.auditor.post(f"/v1/populations/{name}/ledger/verify")["ok"]


def test_advice_on_charges_has_no_parameters(house: House) -> None:
    denied = house.pipeline.propose(house.population(10), ({"ranges": [[0, 10]]}, pure(3.0)))
    assert denied["decision"]["advice"]
    assert [each["parameters"] for each in denied["decision"]["advice"]] == [None] * len(denied["decision"]["advice"])


def test_parameters_that_something_else_forbids_are_not_advised(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    claimed = dataclasses.replace(catalog.CATALOG["dp-sgd"], proof_status="claimed", proof_note="A draft.")
    monkeypatch.setattr(catalog, "CATALOG", MappingProxyType({**catalog.CATALOG, "dp-sgd": claimed}))
    asked = {
        "population": house.population(100),
        "scope": ALL,
        "mechanism": {"name": "dp-sgd", "parameters": {**TRAINING, "noise_multiplier": 0.5}},
    }
    denied = house.pipeline.post("/v1/releases", asked, status=201)
    assert {reason["code"] for reason in denied["decision"]["reasons"]} == {"policy.proof_status", "budget.exceeded"}
    assert all(each["parameters"] is None for each in denied["decision"]["advice"])


def test_the_catalog_is_shown_and_prices(house: House) -> None:
    shown = {each["name"]: each for each in house.pipeline.get("/v1/mechanisms")["items"]}
    assert {"dp-sgd", "label-release", "sliding-window"} <= set(shown)
    for name, each in shown.items():
        assert each["proof_status"] in {"proved", "claimed", "refuted"}
        assert each["paper"]
        assert each["parameters"]["type"] == "object"
        assert house.pipeline.get(f"/v1/mechanisms/{name}") == each
    parameters = {"noise_multiplier": 1.1, "sampling_probability": 0.01, "steps": 1000, "clip_norm": 1.0}
    priced = house.pipeline.post("/v1/mechanisms/dp-sgd/price", {"parameters": parameters, "delta": 1e-5})
    assert 0 < priced["epsilon_lower"] <= priced["epsilon_upper"] < 3
    assert priced["engine"]
    assert priced["events"][0]["times"] == 1000
    worse = house.pipeline.post(
        "/v1/mechanisms/dp-sgd/price", {"parameters": parameters, "delta": 1e-5, "adjacency": "replace_one"}
    )
    assert worse["epsilon_upper"] > priced["epsilon_upper"]
    wrong = house.pipeline.post("/v1/mechanisms/dp-sgd/price", {"parameters": {**parameters, "steps": 0}}, status=422)
    assert wrong["field"] == "parameters.steps"
    house.pipeline.get("/v1/mechanisms/magic", status=404)
    house.pipeline.post("/v1/mechanisms/magic/price", {}, status=404)
    name = house.population(100)
    unknown = {"population": name, "scope": ALL, "mechanism": {"name": "magic"}}
    assert house.pipeline.post("/v1/releases", unknown, status=422)["field"] == "mechanism"
    unscoped = {
        "population": name,
        "mechanism": {"name": "label-release", "parameters": {"epsilon": 0.1, "delta": 1e-9}},
    }
    assert house.pipeline.post("/v1/releases", unscoped, status=422)["field"] == "task"


def test_calibration_and_label_split(house: House) -> None:
    asked = {"epsilon": 2.0, "delta": 1e-5, "sampling_probability": 0.01, "steps": 1000}
    found = house.pipeline.post("/v1/advice/calibrate", asked)
    parameters = {"sampling_probability": 0.01, "steps": 1000, "clip_norm": 1.0}
    parameters["noise_multiplier"] = found["noise_multiplier"]
    priced = house.pipeline.post("/v1/mechanisms/dp-sgd/price", {"parameters": parameters, "delta": 1e-5})
    assert 1.98 < priced["epsilon_upper"] <= 2.0
    split = house.pipeline.post(
        "/v1/advice/label-split", {"epsilon": 1.0, "delta": 1e-5, "class_size": 100, "probability": 0.9}
    )
    assert 0 < split["share"] < 1
    impossible = {"epsilon": 1.0, "delta": 1e-5, "class_size": 1, "probability": 0.9}
    assert house.pipeline.post("/v1/advice/label-split", impossible, status=422)["field"] == "class_size"


def test_a_budget_is_shared_by_a_prior_on_class_sizes(house: House) -> None:
    """The answer is two jobs; priced as one release they keep the promise, and hardly less would."""
    promise: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5}
    training: dict[str, Any] = {"sampling_probability": 0.01, "steps": 1000}
    prior = [{"size": 50, "weight": 5}, {"size": 500, "weight": 45}, {"size": 50}, {"size": 5000, "weight": 49}]
    given: dict[str, Any]
    shares = []
    for given, expected in (
        ({"class_sizes": prior, "probability": 0.9}, {50: 6.0, 500: 45.0, 5000: 49.0}),
        ({"class_size": 500, "probability": 0.9}, 500),
        ({}, None),
    ):
        answer = house.pipeline.post("/v1/advice/label-split", {**promise, **given, "training": training})
        split = calibrate_split(**promise, n=expected, probability=0.9, **training)
        assert answer["share"] == split.share
        shares.append(answer["share"])
        assert answer["labels"] == {"epsilon": split.labels.epsilon, "delta": split.labels.delta}
        assert answer["noise_multiplier"] == split.noise_multiplier
        events = [split.labels, dp_sgd(noise_multiplier=answer["noise_multiplier"], **training)]
        assert 0.99 < account(Composed(events=tuple(events)), delta=1e-5).upper <= 1.0
    assert shares[-1] == 0.1  # nobody said how large classes are
    alone = house.pipeline.post("/v1/advice/label-split", {**promise, "class_sizes": prior, "probability": 0.5})
    assert alone["noise_multiplier"] is None
    for wrong, field in (
        ({"class_sizes": prior, "class_size": 5}, "class_sizes"),
        ({"class_sizes": [{"size": 1}]}, "class_sizes"),
        ({"class_sizes": []}, "class_sizes"),
        ({"class_sizes": [{"size": 5, "weight": 0}]}, "class_sizes.0.weight"),
        ({"class_size": 500, "probability": 0.4}, "probability"),
        ({"training": {"steps": 5}}, "training.sampling_probability"),
    ):
        assert house.pipeline.post("/v1/advice/label-split", {**promise, **wrong}, status=422)["field"] == field, wrong


def test_what_if_says_how_often_it_would_fit(house: House) -> None:
    name = house.population(100)
    before = state(house)
    answer = house.pipeline.post("/v1/advice/what-if", {"proposal": body(name, pure(0.3), delta=0.0), "times": 20})
    assert answer["would_be_admitted"] == 3
    assert answer["decision"]["outcome"] == "admitted"
    assert state(house) == before
    for _ in range(3):
        house.pipeline.hold(name, (ALL, pure(0.3)), delta=0.0)
    assert house.pipeline.propose(name, (ALL, pure(0.3)), delta=0.0)["status"] == "denied"


# ---------------------------------------------------------------- lists, and who sees what


def test_releases_are_listed_newest_first(house: House) -> None:
    name = house.population(100)
    made = [house.pipeline.propose(name, (ALL, pure(0.3)))["id"] for _ in range(5)]
    house.pipeline.commit(made[0])
    page = house.pipeline.get("/v1/releases", population=name, limit=3)
    rest = house.pipeline.get("/v1/releases", population=name, limit=3, cursor=page["next"])
    assert [each["id"] for each in page["items"] + rest["items"]] == made[::-1]
    assert rest["next"] is None
    statuses = {each["id"]: each["status"] for each in page["items"] + rest["items"]}
    assert [statuses[each] for each in made] == ["committed", "held", "held", "denied", "denied"]
    only = house.pipeline.ask("GET", "/v1/releases", params={"population": name, "status": "denied"}).json()["items"]
    assert [each["id"] for each in only] == made[:2:-1]
    house.pipeline.get("/v1/releases", status=404, population="nobody-here")
    house.pipeline.get("/v1/releases", status=422)


def test_a_pipeline_is_told_counts_and_not_who(house: House) -> None:
    name = house.population(named_scopes=True)
    house.officer.post(f"/v1/populations/{name}/datapoints", {"keys": ["ann", "bob", "cy"]}, status=201)
    bits = {"bitmap": bitmap_to(BitMap([1]))}
    release = house.pipeline.hold(
        name, ({"keys": ["ann"]}, pure(0.1)), (bits, pure(0.1)), ({"ranges": [[2, 3]]}, pure(0.1))
    )
    mine = house.pipeline.get(f"/v1/releases/{release}")["charges"]
    assert [charge["scope"] for charge in mine] == [None, None, {"ranges": [[2, 3]]}]
    assert [charge["datapoints"] for charge in mine] == [1, 1, 1]
    theirs = house.auditor.get(f"/v1/releases/{release}")["charges"]
    assert theirs[0]["scope"] == {"bitmap": bitmap_to(BitMap([0]))}
    assert theirs[1]["scope"] == bits
    for path in ("/datapoints/0", "/ledger", "/ledger/export", "/ledger/1/proof?checkpoint=1"):
        problem = house.pipeline.ask("GET", f"/v1/populations/{name}{path}", status=403).json()
        assert problem["type"] == "urn:stint:problem:forbidden"
    house.pipeline.post(f"/v1/populations/{name}/datapoints/lookup", {"key": "ann"}, status=403)
    house.pipeline.post(f"/v1/populations/{name}/datapoints/erase", {"key": "ann"}, status=403)
    house.pipeline.post(f"/v1/populations/{name}/ledger/verify", status=403)


NAMED = [
    {"keys": ["ann"]},
    {"bitmap": bitmap_to(BitMap([1]))},
    {"union": [{"keys": ["ann"]}]},
    {"union": [{"ranges": [[0, 1]]}, {"bitmap": bitmap_to(BitMap([1]))}]},
]


@pytest.mark.parametrize("scope", NAMED)
def test_a_pipeline_names_single_datapoints_only_where_the_policy_lets_it(house: House, scope: dict[str, Any]) -> None:
    name = house.population()
    house.officer.post(f"/v1/populations/{name}/datapoints", {"keys": ["ann", "bob", "cy"]}, status=201)
    tasks = f"/v1/populations/{name}/tasks"
    requests: list[tuple[str, dict[str, Any], int]] = [
        ("/v1/releases", body(name, pure(0.1), scope), 201),
        ("/v1/releases?dry_run=true", body(name, pure(0.1), scope), 200),
        ("/v1/advice/what-if", {"proposal": body(name, pure(0.1), scope)}, 200),
        (tasks, {"name": "t1", "members": scope}, 201),
        (tasks, {"name": "t2", "members": {"ranges": [[0, 3]]}, "parts": {"memory": scope}}, 201),
    ]
    for path, asked, _ in requests:
        assert house.pipeline.post(path, asked, status=403)["type"] == "urn:stint:problem:forbidden", path
    refused = house.pipeline.post("/v1/releases/batch", {"proposals": [body(name, pure(0.1), scope)]})
    assert refused["items"][0]["problem"]["status"] == 403
    house.officer.put(f"/v1/populations/{name}/policy", {"reason": "an agreement", "named_scopes": True})
    for path, asked, status in requests:
        house.pipeline.post(path, asked, status=status)


def test_ids_sort_by_time() -> None:
    from datetime import UTC, datetime, timedelta

    at = datetime(2026, 1, 1, tzinfo=UTC)
    made = [releases.new_id("rel_", at + timedelta(milliseconds=n)) for n in range(50)]
    assert made == sorted(made)
    assert len(set(made)) == 50


def test_workers_and_auditors_propose_nothing(house: House) -> None:
    name = house.population(100)
    for role in ("worker", "auditor"):
        house.as_(role).post("/v1/releases", body(name, pure(0.1)), status=403)
    both = keys.create(house.parts.database, name="both", roles=["worker", "pipeline"])["secret"]
    Caller(house.client, both).hold(name, (ALL, pure(0.1)))
