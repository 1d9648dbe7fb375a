"""Jobs over HTTP, and the decisions that attempts meet. No worker runs here: see test_worker.py."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import psycopg
import pytest
from procrastinate.schema import SchemaManager
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from accountant.audit.checklist import Audited
from accountant.audit.findings import RULES as CHECKED
from accountant.audit.findings import Finding
from accountant.canonical import canonical
from service.api.context import Parts
from service.app import create_app
from service.errors import Problem
from service.operations import jobs, keys
from service.store import tickets
from service.store.database import Database
from service.store.writer import Decide, Operation
from service.sweeper import Rescuer, Sweeper, rescue, sweep
from tests.service.harness import ROOT, Caller, Local, fresh, in_process
from tests.service.work import job, statuses
from trainers.catalog import CATALOG

ARTIFACT = {"sha256": "a" * 64, "bytes": 1, "uri": "stint:artifacts/x"}


@pytest.fixture
def population(call: Caller) -> str:
    return call.population(count=60, epsilon=2.0, delta=1e-5)


def submit(call: Caller, population: str, **more: Any) -> str:
    made = call.ok("POST", "/v1/jobs", job(population, "/data/rows.npz", **more))
    assert made["status"] == "queued", made["release"]["decision"]
    return str(made["id"])


def decided(parts: Parts, population: str, decide: Decide) -> dict[str, Any]:
    operation = Operation(population=population, actor=jobs.WORKER, decide=decide, uses_sql=True)
    return parts.writer.submit(operation).result(30).document


def begun(parts: Parts, identity: str, *, lease: float = 60.0) -> int:
    found = jobs.begin(parts.database, identity, worker="tester", lease_seconds=lease)
    assert found is not None
    return found.token


def waiting(parts: Parts, identity: str) -> list[tuple[int, str]]:
    """The tickets of a job, with the state that they are in."""
    with parts.database.transaction() as connection:
        rows = connection.execute(
            text("SELECT id, CAST(status AS text) FROM procrastinate_jobs WHERE args->>'job' = :job ORDER BY id"),
            {"job": identity},
        )
        return [(row[0], row[1]) for row in rows]


def as_role(service: Local, *roles: str) -> Caller:
    secret = keys.create(service.parts.database, name="somebody", roles=roles)["secret"]
    other = Caller.__new__(Caller)
    other.__dict__ = {**service.call.__dict__, "key": secret, "client": in_process(service.app, secret)}
    return other


# ---------------------------------------------------------------- submitting


def test_hold_job_and_ticket_are_there_together(call: Caller, parts: Parts, population: str) -> None:
    made = call.ok("POST", "/v1/jobs", job(population, "/data/rows.npz"))
    release = call.ok("GET", f"/v1/releases/{made['release']['id']}")
    assert (release["status"], release["expires_at"]) == ("held", None)
    found = call.ok("GET", f"/v1/jobs/{made['id']}")
    assert found["release"] == release["id"]
    assert found["recipe"]["momentum"] == 0.9  # with defaults
    declared = release["declared"]["job"]
    for name in ("recipe", "data"):
        assert declared[name] == f"sha256:{sha256(canonical(found[name])).hexdigest()}"
    assert found["epsilon"]["after"] == made["release"]["decision"]["epsilon"]["after"]
    assert [state for _, state in waiting(parts, made["id"])] == ["todo"]
    sweep(parts)
    assert call.ok("GET", f"/v1/releases/{release['id']}")["status"] == "held"  # it lives by its job's lease
    call.verify(population)


def test_a_denied_release_is_recorded_and_makes_no_job(call: Caller, population: str) -> None:
    new = job(population, "/data/rows.npz")
    new["mechanism"]["parameters"]["noise_multiplier"] = 0.1
    made = call.ok("POST", "/v1/jobs", new)
    assert (made["id"], made["status"], made["release"]["status"]) == (None, "denied", "denied")
    assert call.ok("GET", f"/v1/releases/{made['release']['id']}")["status"] == "denied"
    assert call.ok("GET", f"/v1/jobs?population={population}")["items"] == []
    call.verify(population)


def test_a_job_submitted_twice_under_one_key_is_one_job(call: Caller, parts: Parts, population: str) -> None:
    new, headers = job(population, "/data/rows.npz"), {"Idempotency-Key": population}
    first, second = (call("POST", "/v1/jobs", new, headers=headers) for _ in range(2))
    assert first.json() == second.json()
    assert second.headers["Idempotent-Replayed"] == "true"
    assert len(call.ok("GET", f"/v1/jobs?population={population}")["items"]) == 1
    assert len(waiting(parts, first.json()["id"])) == 1
    new["queue"] = "other"
    assert call("POST", "/v1/jobs", new, headers=headers).status_code == 422


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"recipe": {"model": "linear"}}, "recipe"),
        ({"recipe": {"no": 1}}, "recipe"),
        ({"data": {"uri": "/x.npz"}}, "data"),
        ({"data": {"uri": "/x.npz", "x": "x"}}, "data.y"),
        ({"data": {"uri": "/x.npz", "y": "y"}}, "data.x"),
        ({"mechanism": {"name": "label-release", "parameters": {"epsilon": 0.1, "delta": 1e-9}}, "recipe": {},
          "data": {"uri": "/x.npz", "x": "x"}}, "data.y"),
        ({"data": {"uri": "\ud800.npz", "x": "x"}}, ""),
        ({"queue": "A"}, "queue"),
        ({"queue": "q" * 25}, "queue"),
        ({"device": "tpu"}, "device"),
        ({"hold_seconds": 5}, "hold_seconds"),
        ({"mechanism": {"name": "dp-sgd", "parameters": {}}}, ""),
        ({"mechanism": {"name": "nothing", "parameters": {}}}, "mechanism"),
        ({"task": "t", "scope": {"ranges": [[0, 60]]}}, "scope"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_job_is_422_and_writes_nothing(
    call: Caller, population: str, change: dict[str, Any], field: str
) -> None:
    new = json.dumps(job(population, "/data/rows.npz", **change)).encode()
    answer = call("POST", "/v1/jobs", content=new, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422, answer.text
    assert answer.json().get("field", "").startswith(field)
    assert call.ok("GET", f"/v1/releases?population={population}")["items"] == []


RULES = [
    {"uri": "/clinic/", "address": "key", "unit": "patient", "rows_per_unit": 4},
    {"uri": "/clinic/rows/", "address": "row", "first": 7},
    {"uri": "/clinic/one.npz", "address": "ordinal", "unit": "number"},
    {"uri": "file:///clinic//rows/arrays/./y.npy", "address": "row", "first": 9},
]


@pytest.mark.parametrize(
    ("data", "word"),
    [
        ({"uri": "/clinic/a.npz", "address": "key", "unit": "patient", "rows_per_unit": 4}, ""),
        ({"uri": "/clinic/a.npz", "address": "key", "unit": "patient"}, ""),
        ({"uri": "/clinic/rows/a.npz", "first": 7}, ""),
        ({"uri": "/clinic/one.npz", "address": "ordinal", "unit": "number"}, ""),
        ({"uri": "/clinic/a.npz", "address": "key", "unit": "patient", "rows_per_unit": 5}, "allows 4 rows"),
        ({"uri": "/clinic/a.npz", "address": "key", "unit": "label"}, "unit 'patient'"),
        ({"uri": "/clinic/a.npz", "address": "ordinal", "unit": "patient"}, "address 'key'"),
        ({"uri": "/clinic/rows/a.npz"}, "first 7"),
        ({"uri": "/clinic/rows/a.npz", "address": "key", "unit": "patient"}, "address 'row'"),
        ({"uri": "/clinic/one.npz.npz", "address": "ordinal", "unit": "number"}, "address 'key'"),
        ({"uri": "/clinic/rows/../a.npz", "first": 7}, "no rule"),
        ({"uri": "/clinic/./one.npz", "address": "key", "unit": "patient"}, "address 'ordinal'"),
        ({"uri": "/clinic//one.npz", "address": "key", "unit": "patient"}, "address 'ordinal'"),
        ({"uri": "file:///clinic/one.npz", "address": "key", "unit": "patient"}, "address 'ordinal'"),
        ({"uri": "/clinic/rows//a.npz", "first": 7}, ""),
        ({"uri": "/clinic/rows/", "first": 7}, ""),
        ({"uri": "/clinic/rows/arrays/", "first": 7}, "first 9"),
        ({"uri": "/clinic/rows/arrays/", "first": 9}, "first 7"),  # of its other array
        ({"uri": "/other/a.npz", "address": "key", "unit": "patient"}, "no rule"),
    ],
)
def test_a_policy_says_whose_rows_are(call: Caller, population: str, data: dict[str, Any], word: str) -> None:
    call.ok("PUT", f"/v1/populations/{population}/policy", {"reason": "whose rows are", "data": RULES})
    assert call.ok("GET", f"/v1/populations/{population}")["policy"]["data"][0]["unit"] == "patient"
    before = len(call.entries(population))
    answer = call("POST", "/v1/jobs", job(population, "") | {"data": {"x": "x", "y": "y", **data}})
    if word:
        assert (answer.status_code, answer.json()["field"]) == (403, "data")
        assert word in answer.json()["detail"]
        assert len(call.entries(population)) == before
    else:
        assert (answer.status_code, answer.json()["status"]) == (201, "queued")
    call.verify(population)


@pytest.mark.parametrize(
    ("uri", "refused"),
    [
        ("{0}/b/rows.npz", True),
        ("file://{0}/b/rows.npz", True),
        ("FILE://{0}/b/rows.npz", True),
        ("{0}//b/./rows.npz", True),
        ("{0}/a/../b/rows.npz", True),
        ("{0}/b/folder/", True),
        ("{0}/one/", True),  # its array y is a file that is claimed
        ("s3://bucket{0}/rows.npz", True),
        ("S3://bucket{0}/rows.npz", True),
        ("{0}/rows.npz", False),
        ("{0}/bb/rows.npz", False),
        ("{0}/b.npz", False),
        ("s3://other{0}/rows.npz", False),
    ],
)
def test_a_file_that_a_policy_claims_is_read_by_its_population_alone(
    call: Caller, population: str, uri: str, *, refused: bool
) -> None:
    place = f"/data/{fresh('claimed')}"
    addresses = (f"file://{place}/b/", f"{place}/one/y.npy", f"s3://bucket{place}/")
    rules = [{"uri": each, "address": "row"} for each in (*addresses, f"{place}\0/", "nowhere")]
    owner = call.population(count=60, epsilon=2.0, delta=1e-5)
    call.ok("PUT", f"/v1/populations/{owner}/policy", {"reason": "ours", "data": rules})
    before = len(call.entries(population))
    answer = call("POST", "/v1/jobs", job(population, uri.format(place)))
    if refused:
        assert (answer.status_code, answer.json()["field"]) == (403, "data")
        assert "another population" in answer.json()["detail"]
        assert owner not in answer.text
        assert len(call.entries(population)) == before
    else:
        assert answer.status_code == 201
    spelled_as_its_rule = {"uri": f"file://{place}/b/rows.npz", "x": "x", "y": "y"}
    assert call.ok("POST", "/v1/jobs", job(owner, "") | {"data": spelled_as_its_rule})["status"] == "queued"
    if refused and uri == "{0}/b/rows.npz":  # who has a rule that is as close reads it too, and who lifts it lets go
        for mine, status in ((f"{place}/", 403), (f"{place}/b/", 201)):
            change = {"reason": "both", "data": [{"uri": mine, "address": "row"}]}
            call.ok("PUT", f"/v1/populations/{population}/policy", change)
            assert call("POST", "/v1/jobs", job(population, f"{place}/b/rows.npz")).status_code == status
        call.ok("PUT", f"/v1/populations/{population}/policy", {"reason": "none", "data": []})
        call.ok("PUT", f"/v1/populations/{owner}/policy", {"reason": "none", "data": []})
        assert call("POST", "/v1/jobs", job(population, f"{place}/b/rows.npz")).status_code == 201


def test_a_house_may_ask_for_rules(call: Caller, parts: Parts, population: str) -> None:
    """Where it does, a population whose policy says nothing of files has no jobs, and all else goes on."""
    strict = Caller(create_app(replace(parts, settings=replace(parts.settings, require_data_rules=1))), call.key)
    with closing(strict) as asked:
        answer = asked("POST", "/v1/jobs", job(population, "/data/rows.npz"))
        assert (answer.status_code, answer.json()["field"]) == (403, "data")
        change = {"reason": "whose", "data": [{"uri": f"/{population}/", "address": "row"}]}
        asked.ok("PUT", f"/v1/populations/{population}/policy", change)
        assert asked("POST", "/v1/jobs", job(population, f"/{population}/rows.npz")).status_code == 201


def test_all_policies_are_asked_by_a_search(parts: Parts) -> None:
    """Whatever the logs hold besides."""
    with parts.database.transaction() as connection:
        connection.execute(text("SET LOCAL enable_seqscan = off"))  # on tables of a few rows it is the quickest
        plan = connection.execute(text(f"EXPLAIN {jobs._POLICIES_WITH_RULES.text}"), {"name": "x"})
        assert any("policies_of_a_population" in str(line) for line in plan)


def test_a_mechanism_that_no_worker_runs_is_no_job(call: Caller, population: str) -> None:
    paper_only = [each.name for each in CATALOG.values() if each.module is None]
    for name in paper_only:
        answer = call("POST", "/v1/jobs", job(population, "/x.npz", mechanism={"name": name, "parameters": {}}))
        assert answer.status_code == 422
        assert "no worker" in answer.json()["detail"]
    shown = {each["name"]: each for each in call.ok("GET", "/v1/mechanisms")["items"]}
    assert [name for name, each in shown.items() if not each["is_run_by_workers"]] == paper_only
    assert "learning_rate" in shown["dp-sgd"]["recipe"]["properties"]


@pytest.mark.parametrize("named", ["rel_0", "rel_01J00000000000000000000000", "held"])
def test_a_run_builds_on_committed_releases_alone(call: Caller, population: str, named: str) -> None:
    if named == "held":
        charge = ({"ranges": [[0, 60]]}, {"kind": "pure_dp", "epsilon": 0.01})
        named = call.propose(population, charge)["id"]
    new = job(population, "/data/rows.npz")
    new["recipe"]["start"] = named
    answer = call("POST", "/v1/jobs", new)
    assert answer.status_code == 422
    assert answer.json()["field"] == "recipe.start"


def test_who_may_do_what(service: Local, population: str) -> None:
    pipeline, other, auditor = (as_role(service, role) for role in ("pipeline", "pipeline", "auditor"))
    identity = submit(pipeline, population)
    assert auditor("POST", "/v1/jobs", job(population, "/x.npz")).status_code == 403
    assert auditor("GET", f"/v1/jobs/{identity}").status_code == 200
    assert auditor("POST", f"/v1/jobs/{identity}/cancel").status_code == 403
    assert other("POST", f"/v1/jobs/{identity}/cancel").status_code == 403
    few = job(population, "/x.npz", scope={"ranges": [[0, 5]]})
    assert pipeline("POST", "/v1/jobs", few).status_code == 403  # names single people
    assert pipeline.ok("POST", f"/v1/jobs/{identity}/cancel")["status"] == "cancelled"


def test_a_job_on_few_people_tells_no_more_on_the_page_of_its_release(service: Local, population: str) -> None:
    officer, pipeline = (as_role(service, role) for role in ("officer", "pipeline"))
    for span, told in (((0, 5), False), ((0, 20), True)):
        made = officer.ok("POST", "/v1/jobs", job(population, "/x.npz", scope={"ranges": [span]}))
        path = f"/releases/{made['release']['id']}.json"
        assert officer.ok("GET", path)["job"]["epsilon"]["after"] is not None
        for found in (pipeline.ok("GET", path)["job"], pipeline.ok("GET", f"/v1/jobs/{made['id']}")):
            assert (found["epsilon"]["after"] is not None, found["epsilon"]["bound"] is not None) == (told, told)


# ---------------------------------------------------------------- looking


def test_lists_come_in_pages_newest_first(call: Caller, population: str) -> None:
    made = [submit(call, population) for _ in range(3)]
    first = call.ok("GET", f"/v1/jobs?population={population}&limit=2")
    assert [each["id"] for each in first["items"]] == made[:0:-1]
    rest = call.ok("GET", f"/v1/jobs?population={population}&limit=2&cursor={first['next']}")
    assert ([each["id"] for each in rest["items"]], rest["next"]) == (made[:1], None)
    call.ok("POST", f"/v1/jobs/{made[1]}/cancel")
    only = call.ok("GET", f"/v1/jobs?population={population}&status=cancelled")["items"]
    assert [each["id"] for each in only] == made[1:2]
    assert 'stint_jobs{status="cancelled"}' in call("GET", "/metrics").text
    assert call("GET", "/v1/jobs/job_01J00000000000000000000000").status_code == 404
    assert call("GET", "/v1/jobs/job_01J00000000000000000000000/logs").status_code == 404
    assert call("POST", "/v1/jobs/job_01J00000000000000000000000/cancel").status_code == 404


def test_who_comes_second_to_a_job_that_fell_silent_writes_nothing(parts: Parts, call: Caller, population: str) -> None:
    """The sweeper and every worker look for such jobs, and may find the same one."""
    identity = submit(call, population)
    begun(parts, identity, lease=-1.0)
    for _ in range(2):
        decided(parts, population, jobs.fall_silent(job=identity, wait_seconds=3600))
    assert statuses(call, identity) == [("queued", 0, None), ("running", 1, None), ("queued", 1, "worker.lost")]
    assert [state for _, state in waiting(parts, identity)].count("todo") == 1


def test_progress_is_steps_and_time_left(call: Caller, parts: Parts, population: str) -> None:
    identity = submit(call, population)
    token = begun(parts, identity)
    assert jobs.renew(parts.database, identity, token, lease_seconds=60, step=10, steps=40)
    found = call.ok("GET", f"/v1/jobs/{identity}")
    assert (found["progress"]["step"], found["progress"]["steps"]) == (10, 40)
    assert found["progress"]["seconds_left"] >= 0
    assert found["worker"] == "tester"


# ---------------------------------------------------------------- ending


def test_a_waiting_job_is_cancelled_with_its_hold_and_its_ticket(call: Caller, parts: Parts, population: str) -> None:
    identity = submit(call, population)
    release = call.ok("GET", f"/v1/jobs/{identity}")["release"]
    for _ in range(2):
        assert call.ok("POST", f"/v1/jobs/{identity}/cancel")["status"] == "cancelled"
    assert waiting(parts, identity) == []
    assert call.ok("GET", f"/v1/releases/{release}")["status"] == "voided"
    assert jobs.begin(parts.database, identity, worker="late", lease_seconds=60) is None
    assert call.reading(population, 0)["held"] == 0.0
    call.verify(population)


@pytest.mark.parametrize(("word", "body"), [("commit", {}), ("void", {"reason": "mine"})])
def test_nobody_but_the_job_ends_its_hold(call: Caller, population: str, word: str, body: dict[str, str]) -> None:
    identity = submit(call, population)
    release = call.ok("GET", f"/v1/jobs/{identity}")["release"]
    answer = call("POST", f"/v1/releases/{release}/{word}", body)
    assert answer.status_code == 409
    assert "job" in answer.json()["detail"]
    assert call.ok("GET", f"/v1/releases/{release}")["status"] == "held"


def test_an_attempt_commits_once_and_only_while_it_is_the_current_one(
    call: Caller, parts: Parts, population: str
) -> None:
    identity = submit(call, population)
    old = begun(parts, identity, lease=0.0)
    assert jobs.begin(parts.database, identity, worker="second", lease_seconds=60) is None  # one at a time
    rescue(parts)
    assert not jobs.renew(parts.database, identity, old, lease_seconds=60, step=1, steps=1)
    with pytest.raises(Problem, match="not the current"):  # although nobody else has begun yet
        decided(parts, population, jobs.commit(job=identity, token=old, artifact=ARTIFACT))
    new = begun(parts, identity)
    assert new == old + 1
    for decide in (
        jobs.commit(job=identity, token=old, artifact=ARTIFACT),
        jobs.fail(job=identity, token=old, error="internal"),
        jobs.stand_down(job=identity, token=old),
    ):
        with pytest.raises(Problem, match="not the current"):
            decided(parts, population, decide)
    for _ in range(2):  # who did not hear the answer asks again
        became = decided(parts, population, jobs.commit(job=identity, token=new, artifact=ARTIFACT))
        assert became["status"] == "committed"
    for late in (
        jobs.commit(job=identity, token=new, artifact=ARTIFACT | {"sha256": "b" * 64}),
        jobs.commit(job=identity, token=old, artifact=ARTIFACT),
    ):
        with pytest.raises(Problem, match="not the current"):
            decided(parts, population, late)
    kinds = [each["body"]["kind"] for each in call.entries(population)]
    assert kinds.count("release.committed") == 1
    found = call.ok("GET", f"/v1/jobs/{identity}")
    assert (found["status"], found["artifact"]) == ("committed", ARTIFACT)
    assert call("POST", f"/v1/jobs/{identity}/cancel").status_code == 409
    call.verify(population)


def test_a_cancelled_attempt_commits_nothing(call: Caller, parts: Parts, population: str) -> None:
    identity = submit(call, population)
    token = begun(parts, identity)
    call.ok("POST", f"/v1/jobs/{identity}/cancel")
    assert not jobs.renew(parts.database, identity, token, lease_seconds=60, step=1, steps=1)
    with pytest.raises(Problem):
        decided(parts, population, jobs.commit(job=identity, token=token, artifact=ARTIFACT))
    assert call.reading(population, 0)["spent"] == 0.0


def test_nothing_leaves_a_population_that_was_frozen_meanwhile(call: Caller, parts: Parts, population: str) -> None:
    identity = submit(call, population)
    token = begun(parts, identity)
    call.ok("POST", f"/v1/populations/{population}/status", {"status": "frozen", "reason": "an audit"})
    became = decided(parts, population, jobs.commit(job=identity, token=token, artifact=ARTIFACT))
    assert became["status"] == "failed"
    found = call.ok("GET", f"/v1/jobs/{identity}")
    assert (found["status"], found["error"], found["artifact"]) == ("failed", "population.status", None)
    assert call.reading(population, 0) == {**call.reading(population, 0), "spent": 0.0, "held": 0.0}
    call.verify(population)


def test_what_numbers_alone_deny_is_spent(call: Caller, parts: Parts, population: str) -> None:
    """That weights are not finite says something of them. Nobody learns that for nothing, nor that they are finite."""

    def ended_with(*codes: str) -> tuple[str, float, dict[str, Any]]:
        before = call.reading(population, 0)["spent"]
        identity = submit(call, population)
        findings = tuple(
            Finding(code=code, basis="checked", severity=CHECKED[code].severity, message="It is so.") for code in codes
        )
        audited = Audited(findings=findings, checked=tuple(CHECKED))
        decide = jobs.commit(job=identity, token=begun(parts, identity), artifact=ARTIFACT, audited=audited)
        assert decided(parts, population, decide) == {"status": "failed"}
        found = call.ok("GET", f"/v1/jobs/{identity}")
        assert (found["status"], found["error"], found["artifact"]) == ("failed", "finding.denied", None)
        release = call.ok("GET", f"/v1/releases/{found['release']}")
        assert release["artifact"] is None
        assert call("GET", f"/v1/releases/{found['release']}/artifact").status_code == 409
        now = call.reading(population, 0)
        assert now["held"] == 0.0
        call.verify(population)
        return release["status"], now["spent"] - before, call.entries(population)[-1]["body"]

    status, paid, said = ended_with("artifact.not_finite", "artifact.unreadable")
    assert (status, paid > 0) == ("committed", True)
    assert "artifact.not_finite, artifact.unreadable" in said["reason"]
    report = call.ok("GET", f"/v1/populations/{population}/report")["report"]
    assert {each["status"]: each["releases"] for each in report["summary"]["outcomes"] if each["releases"]} == {
        "spent": 1
    }
    assert (report["summary"]["left"], report["decisions"][0]["became"]) == (0, "spent")
    assert report["entries"][-1]["text"].startswith(
        f"Nothing of release {said['release']} left; what was held is spent"
    )
    # What a name tells is the same whatever the numbers are, and so is what becomes of it, and all that is said.
    both, alone = ended_with("artifact.not_finite", "artifact.batch_norm"), ended_with("artifact.batch_norm")
    assert both[:2] == alone[:2] == ("voided", 0.0)
    assert both[2]["evidence"]["findings"] == alone[2]["evidence"]["findings"] == ["artifact.batch_norm"]


def test_a_job_is_tried_as_often_as_allowed_and_then_voided(call: Caller, parts: Parts, population: str) -> None:
    identity = submit(call, population)
    for attempt in range(1, parts.settings.attempts + 1):
        assert call.ok("GET", f"/v1/jobs/{identity}")["status"] == "queued"
        token = begun(parts, identity, lease=0.0 if attempt == 2 else 60.0)
        if attempt == 2:
            rescue(parts)  # of all jobs of all tests whose lease is over
        else:
            decided(parts, population, jobs.fail(job=identity, token=token, error="memory"))
    found = call.ok("GET", f"/v1/jobs/{identity}")
    assert (found["status"], found["error"]) == ("failed", "memory")
    assert [error for _, _, error in statuses(call, identity)] == [
        None, None, "memory", None, "worker.lost", None, "memory",
    ]  # fmt: skip
    assert call.reading(population, 0)["held"] == 0.0
    release = call.ok("GET", f"/v1/releases/{found['release']}")
    assert release["status"] == "voided"
    call.verify(population)


def test_another_attempt_waits_longer_each_time(call: Caller, parts: Parts, population: str) -> None:
    """What was missing may come back. An attempt that does not count, and one whose worker is gone, have no delay."""
    identity = submit(call, population, queue="delayed")
    queues = tickets.queue_names("delayed", "cpu")

    def due() -> float | None:
        with parts.database.transaction() as connection:
            return tickets.next_in(connection, queues)

    assert due() == 0.0
    token = begun(parts, identity)
    decided(parts, population, jobs.stand_down(job=identity, token=token))
    assert due() == 0.0
    token = begun(parts, identity, lease=0.0)
    rescue(parts)
    assert due() == 0.0
    token = begun(parts, identity)
    decided(parts, population, jobs.fail(job=identity, token=token, error="data.missing", delay_seconds=300.0))
    found = due()
    assert found is not None
    assert 200 < found <= 300
    assert call.ok("GET", f"/v1/jobs/{identity}")["status"] == "queued"
    rescue(parts)  # it waits, and is not silent
    assert due() == pytest.approx(found, abs=90)
    call.ok("POST", f"/v1/jobs/{identity}/cancel")
    assert due() is None
    assert replace(parts.settings, retry_seconds=10.0, wait_seconds=12.0).retry_after(1) == 6.0


def test_a_lease_that_ran_out_while_the_database_was_away_says_nothing(
    call: Caller, parts: Parts, population: str
) -> None:
    """Whoever judges it has reached the database for a whole lease before."""
    identity, now, lease = submit(call, population), [0.0], parts.settings.lease_seconds
    begun(parts, identity, lease=0.0)
    rescuer = Rescuer(parts, clock=lambda: now[0])
    for moment in (0.0, lease - 1):
        now[0] = moment
        assert rescuer.rescue() == 0
    rescuer._parts = replace(parts, database=Database("postgresql://127.0.0.1:1/nowhere", parts.settings))
    with pytest.raises(OperationalError):
        rescuer.rescue()
    rescuer._parts = parts
    for moment in (lease, 2 * lease - 1):  # since it is back
        now[0] = moment
        assert rescuer.rescue() == 0
    assert call.ok("GET", f"/v1/jobs/{identity}")["status"] == "running"
    now[0] = 2 * lease
    assert rescuer.rescue() >= 1
    assert call.ok("GET", f"/v1/jobs/{identity}")["status"] == "queued"


def test_the_sweeper_takes_up_jobs_with_patience(call: Caller, parts: Parts, population: str) -> None:
    identity = submit(call, population)
    begun(parts, identity, lease=0.0)

    def status_after(lease: float) -> str:
        sweeper = Sweeper(replace(parts, settings=replace(parts.settings, sweep_seconds=0.01, lease_seconds=lease)))
        swept = parts.metrics.sweeps._value.get()
        try:
            while parts.metrics.sweeps._value.get() < swept + 5:
                time.sleep(0.01)
        finally:
            sweeper.close()
        return str(call.ok("GET", f"/v1/jobs/{identity}")["status"])

    assert status_after(600.0) == "running"
    assert status_after(0.0) == "queued"


@pytest.mark.parametrize("error", ["recipe.invalid", "data.shape"])
def test_what_cannot_end_better_is_not_tried_again(call: Caller, parts: Parts, population: str, error: str) -> None:
    identity = submit(call, population)
    decided(parts, population, jobs.fail(job=identity, token=begun(parts, identity), error=error))
    assert call.ok("GET", f"/v1/jobs/{identity}")["status"] == "failed"


def test_a_ticket_that_was_taken_and_never_begun_is_written_again(call: Caller, parts: Parts, population: str) -> None:
    identity = submit(call, population)
    [(ticket, _)] = waiting(parts, identity)
    assert rescue(parts) == 0
    with parts.database.transaction() as connection:  # as a worker that died between the two
        connection.execute(text("UPDATE procrastinate_jobs SET status = 'doing' WHERE id = :id"), {"id": ticket})
    rescue(parts)
    [(other, state)] = waiting(parts, identity)
    assert (other != ticket, state) == (True, "todo")
    assert call.ok("GET", f"/v1/jobs/{identity}")["status"] == "queued"
    assert rescue(parts) == 0


def test_a_job_that_nobody_serves_is_given_up_in_the_end(call: Caller, parts: Parts, population: str) -> None:
    identity = submit(call, population)
    assert rescue(parts) == 0
    with psycopg.connect(parts.database.url) as owner:  # the service itself may not
        owner.execute("UPDATE job_line SET at = at - interval '8 days' WHERE job = %s", [identity])
    rescue(parts)
    found = call.ok("GET", f"/v1/jobs/{identity}")
    assert (found["status"], found["error"]) == ("failed", "queue.unserved")
    assert call.ok("GET", f"/v1/releases/{found['release']}")["status"] == "voided"
    assert call.reading(population, 0)["held"] == 0.0
    assert waiting(parts, identity) == []
    assert rescue(parts) == 0
    call.verify(population)


def test_verify_finds_a_hold_without_its_job(call: Caller, parts: Parts, population: str) -> None:
    identity = submit(call, population)
    with parts.database.transaction() as connection:
        connection.execute(text("UPDATE job SET status = 'failed' WHERE id = :id"), {"id": identity})
    found = call.ok("POST", f"/v1/populations/{population}/ledger/verify")
    assert not found["ok"]
    assert any("held without an end" in each for each in found["problems"])
    with parts.database.transaction() as connection:
        connection.execute(text("UPDATE job SET status = 'queued' WHERE id = :id"), {"id": identity})
    call.verify(population)


def test_procrastinates_tables_are_brought_up_to_date_once(parts: Parts) -> None:
    """As an older procrastinate left them: made by its migrations up to a version, which a comment names."""
    steps = sorted(Path(SchemaManager.get_migrations_path()).glob("*.sql"))
    older = [step for step in steps if step.name < "03.01"]
    schema = fresh("s").replace("-", "_")
    with parts.database.engine.connect() as connection:
        connection.exec_driver_sql("RESET ROLE")
        connection.exec_driver_sql(f"CREATE SCHEMA {schema}")
        connection.exec_driver_sql(f"SET LOCAL search_path TO {schema}")
        for step in older:
            tickets.raw(connection).execute(step.read_bytes())
        connection.exec_driver_sql(f"COMMENT ON TABLE procrastinate_jobs IS 'of Stint, as of {older[-1].stem}'")
        for _ in range(2):  # the second time there is nothing to do, or it would fail
            tickets.install(connection, role="stint_service")
        said = connection.exec_driver_sql("SELECT obj_description(to_regclass('procrastinate_jobs'))").scalar_one()
        assert said == f"of Stint, as of {steps[-1].stem}"
        found = connection.exec_driver_sql("SELECT to_regclass('procrastinate_workers')").scalar_one()
        assert found is not None
        connection.rollback()


@pytest.mark.slow
def test_neither_a_web_process_nor_a_worker_imports_torch() -> None:
    code = "import sys, service.serve, service.cli, service.worker; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False).returncode == 0
