"""Empirical audits by real workers on a real PostgreSQL: verdicts, blocks, and workers that are killed."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from accountant.audit.verdicts import confidence_of
from service.cli import main
from service.sweeper import rescue, sweep
from tests.service import work
from tests.service.fixtures_behaviour import serving
from tests.service.harness import Caller, Local, in_process, local
from tests.service.work import data, ended, job, worker

pytestmark = pytest.mark.slow
ONE_STEP = "weights after one step"
SOLVED = "the noise is solved for"


@pytest.fixture(scope="module")
def house() -> Iterator[Local]:
    """A service with a short lease, where nobody makes up for a dead worker but whom a test sends."""
    with local(lease_seconds=3.0, pause_seconds=5.0, attempts=2) as running:
        yield running


@pytest.fixture
def call(house: Local) -> Caller:
    return house.call


def plan(call: Caller, population: str, mechanism: str, audit: str | None = None, **more: Any) -> str:
    asked = {"population": population, "mechanism": mechanism, "audit": audit, "samples": 200, **more}
    identity: str = call.ok("POST", "/v1/audits", {name: value for name, value in asked.items() if value})["id"]
    return identity


def audit(call: Caller, identity: str) -> dict[str, Any]:
    found: dict[str, Any] = call.ok("GET", f"/v1/audits/{identity}")
    return found


def until(call: Caller, identity: str, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    ends = time.monotonic() + work.SECONDS
    while not wanted(found := audit(call, identity)):
        assert time.monotonic() < ends, found
        time.sleep(0.05)
    return found


def kinds(call: Caller, population: str) -> list[str]:
    found = [each["body"]["kind"] for each in call.entries(population)]
    return [kind for kind in found if kind.startswith(("audit.", "release.", "population.f"))]


def reasons(call: Caller, population: str, mechanism: dict[str, Any]) -> list[str]:
    """Why a proposal of a mechanism would be denied."""
    asked = {"population": population, "scope": {"ranges": [[0, 60]]}, "mechanism": mechanism}
    decision = call.ok("POST", "/v1/releases?dry_run=true", asked)["decision"]
    return [each["code"] for each in decision["reasons"]]


SGD = {
    "name": "dp-sgd",
    "parameters": {"noise_multiplier": 4.0, "sampling_probability": 0.1, "steps": 4, "clip_norm": 1.0},
}


def test_audits_of_a_life_and_what_they_say(house: Local, call: Caller) -> None:
    """One proved mechanism, one refuted: numbers, confidences, verdicts, a frozen population, and a log that holds."""
    population = call.population(count=60, epsilon=2.0, delta=1e-5)
    first = plan(call, population, "dp-sgd", ONE_STEP, samples=6000)
    second = plan(call, population, "l2dp-ml-as-published", SOLVED, on_violation="freeze")
    waiting = audit(call, first)
    assert (waiting["status"], waiting["verdict"], waiting["lower_bound"]) == ("queued", None, None)
    assert kinds(call, population) == ["audit.planned"] * 2
    said = ended(worker(house.parts, "--once"))

    proved = audit(call, first)
    assert (proved["status"], proved["verdict"]) == ("concluded", "consistent"), said
    assert (proved["number"], proved["confidence"]) == (1, confidence_of(1))
    assert proved["promise"]["by"] == "catalog"
    lower = proved["lower_bound"]
    assert 0 < lower["epsilon_lower"] < proved["promise"]["epsilon"] < lower["attainable"]
    assert (lower["confidence"], lower["method"], lower["delta"]) == (confidence_of(1), "clopper_pearson", 1e-5)
    assert lower["samples"] <= proved["samples"] == 6000
    assert proved["power"]["samples"] <= 6000
    assert lower["assumptions"]
    assert proved["fitted"]["method"] == "gaussian_dp"
    assert proved["progress"] == {"step": 6000, "steps": 6000}
    assert len(proved["roc"]) > 2
    assert proved["sentence"].startswith("Nothing was found against the promise")
    assert (
        f"by an audit that would have caught the mechanism weakened to {proved['power']['twin']}" in proved["sentence"]
    )
    assert not proved["blocks"]
    assert reasons(call, population, SGD) == ["population.status"]

    refuted = audit(call, second)
    assert (refuted["verdict"], refuted["number"], refuted["confidence"]) == ("violation", 2, confidence_of(2))
    assert refuted["lower_bound"]["epsilon_lower"] > refuted["promise"]["epsilon"]
    assert refuted["promise"]["by"] == "paper"
    assert refuted["blocks"]
    why = call.ok("GET", f"/populations/{population}/policy.json")["became"]
    assert (why["audit"], why["reason"], why["entry"]) == (second, None, refuted["ended_by"])
    page = call("GET", f"/populations/{population}/policy").text
    assert f'by <a href="/audits/{second}">an audit that found a promise false</a>' in page
    assert (refuted["webhook"]["status"], proved["webhook"]) == ("waiting", None)  # nobody is told: no address is set
    assert call.ok("GET", f"/v1/populations/{population}")["status"] == "frozen"
    assert kinds(call, population) == ["audit.planned"] * 2 + ["audit.concluded"] * 2
    call.verify(population)

    listed = call.ok("GET", f"/v1/audits?population={population}&limit=1")
    assert [each["id"] for each in listed["items"]] == [second]
    assert listed["items"][0] == {**refuted, "roc": []}
    rest = call.ok("GET", f"/v1/audits?population={population}&limit=1&cursor={listed['next']}")
    assert [each["id"] for each in rest["items"]] == [first]
    assert rest["next"] is None
    assert call.ok("GET", f"/v1/audits?population={population}&status=failed")["items"] == []


def test_how_far_an_audit_is_can_be_seen_while_it_runs(house: Local, call: Caller) -> None:
    population = call.population(count=60, epsilon=2.0, delta=1e-5)
    identity = plan(call, population, "l2dp-ml-as-published", SOLVED, samples=1500)
    process = worker(house.parts, "--once")
    halfway = until(call, identity, lambda found: found["progress"]["step"] > 0 or found["status"] == "concluded")
    assert halfway["status"] == "running"
    assert 0 < halfway["progress"]["step"] < halfway["progress"]["steps"] == halfway["samples"] == 1500
    later = until(call, identity, lambda found: found["progress"]["step"] > halfway["progress"]["step"])
    ended(process)
    assert later["progress"]["steps"] == 1500
    found = audit(call, identity)
    assert (found["status"], found["progress"]) == ("concluded", {"step": 1500, "steps": 1500})


def test_the_command_line_waits_and_exits_by_what_was_found(
    house: Local, call: Caller, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    population = call.population(count=60, epsilon=2.0, delta=1e-5)
    with serving(house.parts) as url:
        monkeypatch.setenv("STINT_URL", url)
        monkeypatch.setenv("STINT_KEY", call.key)
        process = worker(house.parts)
        words = ("audits", "start", population, "--wait", "--samples")
        try:
            assert main([*words, "300", "dp-sgd", ONE_STEP, "--json"]) == 0
            found = json.loads(capsys.readouterr().out)
            assert main([*words, "200", "l2dp-ml-as-published", SOLVED]) == 1
            shown = capsys.readouterr().out
        finally:
            process.terminate()
            ended(process)
    assert (found["verdict"], found["progress"]) == ("inconclusive", {"step": 300, "steps": 300})
    assert found["power"]["samples"] > 300
    assert f"takes {found['power']['samples']:,} samples, and there were 300" in found["sentence"]
    assert "violation. The promise of" in shown
    assert "waiting, 0 tries" in shown


def test_a_violation_blocks_proposals_and_jobs_until_it_is_lifted(house: Local, call: Caller) -> None:
    """A mechanism that uses less noise than it says is found out; what a job made of it before does not leave."""
    population = call.population(count=60, epsilon=2.0, delta=1e-5)
    uri = data(house.parts)
    assert reasons(call, population, SGD) == []
    held = call.ok("POST", "/v1/jobs", job(population, uri, queue="later"))
    identity = plan(call, population, "dp-sgd", ONE_STEP, samples=2000)
    said = ended(worker(house.parts, "--once", planted="quiet"))
    found = audit(call, identity)
    assert (found["verdict"], found["blocks"]) == ("violation", True), (found, said)

    assert reasons(call, population, SGD) == ["audit.violation"]
    denied = call.ok("POST", "/v1/jobs", job(population, uri))
    assert (denied["id"], denied["status"]) == (None, "denied")
    [reason] = denied["release"]["decision"]["reasons"]
    assert reason["code"] == "audit.violation"
    assert identity in reason["message"]
    assert "lift this audit" in reason["remedy"]
    assert reasons(call, population, {"name": "label-release", "parameters": {"epsilon": 0.1, "delta": 1e-7}}) == []

    ended(worker(house.parts, "--once", "--queue", "later"))
    made = call.ok("GET", f"/v1/jobs/{held['id']}")
    assert (made["status"], made["error"], made["attempt"]) == ("failed", "audit.violation", 1)
    assert kinds(call, population)[-1] == "release.voided"

    policy = f"/v1/populations/{population}/policy"
    nobody = "aud_00000000000000000000000000"
    assert call("PUT", policy, {"reason": "x", "lift": [nobody]}).status_code == 422
    assert call.ok("PUT", policy, {"reason": "the fault is mended", "lift": [identity]})["lifted"] == [identity]
    assert reasons(call, population, SGD) == []
    assert not audit(call, identity)["blocks"]
    assert call.ok("PUT", policy, {"reason": "less", "epsilon": 1.9})["lifted"] == [identity]
    again = call.ok("POST", "/v1/jobs", job(population, uri))
    ended(worker(house.parts, "--once"))
    assert call.ok("GET", f"/v1/jobs/{again['id']}")["status"] == "committed"
    call.verify(population)


def test_a_violation_stops_what_a_pipeline_holds(house: Local, call: Caller) -> None:
    """Nothing of a blocked mechanism leaves: it is voided, or an officer says why it left, or it expires into spent."""
    population = call.population(count=60, epsilon=2.0, delta=1e-5)
    pipeline, officer = (
        in_process(house.app, call.ok("POST", "/v1/keys", {"name": role, "roles": [role]})["secret"])
        for role in ("pipeline", "officer")
    )

    def held(**more: Any) -> str:
        asked = {"population": population, **more}
        answer = call.run(pipeline.post("/v1/releases", json=asked))
        assert (answer.status_code, answer.json()["status"]) == (201, "held"), answer.text
        return str(answer.json()["id"])

    scope = {"ranges": [[0, 60]]}
    stays, left, silent = (held(mechanism=SGD, scope=scope, hold_seconds=seconds) for seconds in (600, 600, 1))
    bare = held(charges=[{"scope": scope, "event": {"kind": "pure_dp", "epsilon": 0.01}}])
    identity = plan(call, population, "dp-sgd", ONE_STEP, samples=2000)
    ended(worker(house.parts, "--once", planted="quiet"))
    assert audit(call, identity)["verdict"] == "violation"

    done = {"artifact": {"sha256": "00" * 32}}
    for client, said in ((pipeline, {}), (pipeline, {"reason": "let me"}), (officer, {})):
        answer = call.run(client.post(f"/v1/releases/{stays}/commit", json={**done, **said}))
        problem = answer.json()
        assert (answer.status_code, problem["type"]) == (409, "urn:stint:problem:blocked"), answer.text
        assert problem["audit"] == identity
        assert "void it" in problem["detail"]
        assert "an officer commits it with a reason" in problem["detail"]
    assert call.ok("GET", f"/v1/releases/{stays}")["status"] == "held", "no refund either"

    why = {"reason": "it was sent to the clinic an hour before"}
    settled = call.run(officer.post(f"/v1/releases/{left}/commit", json={**done, **why}))
    assert (settled.status_code, settled.json()["status"]) == (200, "committed"), settled.text
    again = call.run(pipeline.post(f"/v1/releases/{left}/commit", json=done))
    assert again.status_code == 200, "what is committed stays so"
    voided = call.run(pipeline.post(f"/v1/releases/{stays}/void", json={"reason": "nothing was sent"}))
    assert voided.json()["status"] == "voided"
    ends = time.monotonic() + work.SECONDS
    while call.ok("GET", f"/v1/releases/{silent}")["status"] == "held":
        sweep(house.parts)
        assert time.monotonic() < ends
        time.sleep(0.1)
    assert call.ok("GET", f"/v1/releases/{silent}")["status"] == "expired", "unknown is spent"
    # Charges that name no mechanism are nobody's: a violation of one does not stop them, unless it freezes.
    assert call.run(pipeline.post(f"/v1/releases/{bare}/commit", json=done)).status_code == 200
    call.verify(population)
    for client in (pipeline, officer):
        call.run(client.aclose())


def test_an_audit_survives_the_death_of_its_worker_and_finds_the_same(
    house: Local, call: Caller, tmp_path: Path
) -> None:
    """kill -9 in the middle; the next attempt draws the chance of the plan again, and nobody rolls the dice twice."""
    population = call.population(count=60, epsilon=2.0, delta=1e-5)
    identity = plan(call, population, "dp-sgd", ONE_STEP, samples=1000)
    gate = tmp_path / "gate"
    process: subprocess.Popen[str] = worker(house.parts, planted=f"gate={gate}")
    running = until(call, identity, lambda found: found["status"] == "running" and found["started_at"] is not None)
    assert running["attempt"] == 1
    process.kill()
    process.communicate()
    ends = time.monotonic() + work.SECONDS
    while audit(call, identity)["status"] == "running":
        rescue(house.parts)
        assert time.monotonic() < ends
        time.sleep(0.05)
    assert audit(call, identity)["error"] == "worker.lost"
    assert kinds(call, population) == ["audit.planned"]
    ended(worker(house.parts, "--once"))
    found = audit(call, identity)
    assert (found["status"], found["attempt"], found["error"]) == ("concluded", 2, None)
    assert kinds(call, population) == ["audit.planned", "audit.concluded"]

    from service.attempt import audited  # a child's own module: this process is one for as long as it takes

    document = {name: found[name] for name in ("audit", "mechanism", "samples", "confidence", "seed")}
    again = audited(document, progress=lambda *_: None)
    assert again["bounds"][0] == found["lower_bound"]
    assert again["roc"] == found["roc"]


def test_an_audit_that_fails_has_used_its_share(house: Local, call: Caller) -> None:
    population = call.population(count=60, epsilon=2.0, delta=1e-5)
    identity = plan(call, population, "dp-sgd", ONE_STEP)
    ended(worker(house.parts, "--once", planted="crash"))
    found = audit(call, identity)
    assert (found["status"], found["verdict"], found["error"], found["attempt"]) == ("failed", None, "internal", 2)
    assert "has used its share of errors" in found["sentence"]
    assert kinds(call, population) == ["audit.planned", "audit.abandoned"]
    assert audit(call, plan(call, population, "dp-sgd", ONE_STEP))["number"] == 2
    assert reasons(call, population, SGD) == []
    call.verify(population)


def test_who_may_plan_an_audit_and_of_what(house: Local, call: Caller) -> None:
    population = call.population(count=60)
    asked = {"population": population, "mechanism": "dp-sgd", "audit": ONE_STEP, "samples": 200}
    for role, status in (("pipeline", 403), ("worker", 403), ("auditor", 201), ("officer", 201), ("admin", 201)):
        key = call.ok("POST", "/v1/keys", {"name": role, "roles": [role]})["secret"]
        client = in_process(house.app, key)
        assert call.run(client.post("/v1/audits", json=asked)).status_code == status, role
        assert call.run(client.get("/v1/audits")).status_code == 200
        call.run(client.aclose())
    for changed, field in (
        ({"audit": None}, "audit"),
        ({"audit": "no such thing"}, "audit"),
        ({"samples": 50_001}, "samples"),
        ({"samples": 99}, "samples"),
        ({"mechanism": "fine-tuning"}, "mechanism"),
        ({"mechanism": "sliding-window", "audit": "a life of windows, noise for every pane (R5)"}, "audit"),
        ({"on_violation": "laugh"}, "on_violation"),
    ):
        answer = call("POST", "/v1/audits", {**asked, **changed})
        assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text
    assert call("POST", "/v1/audits", {**asked, "mechanism": "nothing"}).status_code == 422
    assert call("POST", "/v1/audits", {**asked, "population": "nowhere"}).status_code == 404
    assert call("GET", "/v1/audits/aud_00000000000000000000000000").status_code == 404
    once = {"Idempotency-Key": "an audit"}
    first = call("POST", "/v1/audits", asked, headers=once)
    again = call("POST", "/v1/audits", asked, headers=once)
    assert (again.json(), again.headers["Idempotent-Replayed"]) == (first.json(), "true")
    assert kinds(call, population).count("audit.planned") == 4
    call.ok("POST", f"/v1/populations/{population}/status", {"status": "closed", "reason": "the end"})
    assert call("POST", "/v1/audits", asked).status_code == 409
