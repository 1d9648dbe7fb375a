"""Looking changes nothing: every GET, and every POST that only asks, leaves every row as it was.

One exception: a certificate that no checkpoint covers yet has one made, as the clock would have an hour later.
"""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from service import sweeper
from service.api.context import Parts
from service.store.tables import metadata
from tests.service import work
from tests.service.harness import Caller, Local

TABLES = tuple(table for table in metadata.tables if table != "api_key")  # a key remembers when it was last used


def checksums(parts: Parts) -> dict[str, str]:
    """A digest of all rows of every table."""
    with parts.database.transaction() as connection:
        return {
            table: str(
                connection.execute(
                    text(
                        "SELECT count(*) || md5(coalesce(string_agg(each::text, '|' ORDER BY each::text), '')) "
                        f"FROM {table} AS each"
                    )
                ).scalar_one()
            )
            for table in TABLES
        }


@pytest.fixture
def furnished(call: Caller, parts: Parts) -> dict[str, Any]:
    """A population with people, keys, tasks, releases in every state, a job, an audit, and a checkpoint."""
    name = call.population(count=50, epsilon=1.0)
    call.ok("POST", f"/v1/populations/{name}/datapoints", {"keys": ["ada", "ben"]})
    call.ok(
        "POST",
        f"/v1/populations/{name}/tasks",
        {
            "name": "t",
            "members": {"ranges": [[0, 30]]},
            "parts": {"memory": {"ranges": [[0, 5]]}},
            "budget": {"epsilon": 0.5, "delta": 1e-7},
        },
    )
    event = {"kind": "pure_dp", "epsilon": 0.2}
    made = [call.propose(name, ({"task": "t"}, event))["id"] for _ in range(2)]
    call.ok("POST", f"/v1/releases/{made[0]}/commit", {"artifact": {"sha256": "0" * 64}})
    gone = call.propose(name, ({"ranges": [[5, 20]]}, event))["id"]
    call.ok("POST", f"/v1/releases/{gone}/void", {"reason": "the job was stopped"})
    denied = call.propose(name, ({"ranges": [[0, 52]]}, {"kind": "pure_dp", "epsilon": 5.0}))
    assert denied["status"] == "denied"
    job = call.ok("POST", "/v1/jobs", work.job(name, "/nowhere.npz", scope={"ranges": [[30, 50]]}))["id"]
    audit = call.ok("POST", "/v1/audits", {"population": name, "mechanism": "dp-sgd", "audit": "one run, white box"})
    sweeper.checkpoint(parts)
    number = call.ok("GET", "/v1/checkpoints")["items"][-1]["number"]
    return {
        "population": name, "release": made[1], "task": "t", "ordinal": 7, "name": "dp-sgd", "number": number,
        "job": job, "committed": made[0], "audit": audit["id"],
    }  # fmt: skip


def test_every_get_leaves_every_row_as_it_was(service: Local, furnished: dict[str, Any]) -> None:
    call, looked = service.call, 0
    before = checksums(service.parts)
    queries = {
        "/v1/releases": f"?population={furnished['population']}",
        "/v1/populations/{population}/ledger/{number}/proof": f"?checkpoint={furnished['number']}",
        "/v1/populations/{population}/ledger/consistency": "?since=1&until=3",
    }
    for route, methods in service.app.openapi()["paths"].items():
        if "get" not in methods:
            continue
        values = furnished | ({"number": 3} if "ledger" in route else {})
        if route.endswith("/certificate"):  # under the checkpoint that is there; where none is, it makes one
            values |= {"release": furnished["committed"]}
        answer = call("GET", route.format(**values) + queries.get(route, ""))
        # Only a job that was committed has files, and none was run here.
        expected = 404 if route.endswith(("/artifact", "/card")) else 200
        assert answer.status_code == expected, f"{route}: {answer.text}"
        looked += 1
        assert checksums(service.parts) == before, route
    assert looked >= 20


def test_a_question_that_is_posted_leaves_every_row_as_it_was(service: Local, furnished: dict[str, Any]) -> None:
    call, name = service.call, furnished["population"]
    proposal = {
        "population": name,
        "charges": [{"scope": {"task": "t"}, "event": {"kind": "gaussian", "noise_multiplier": 8.0}}],
    }
    costly = {"population": name, "charges": [{"scope": {"task": "t"}, "event": {"kind": "pure_dp", "epsilon": 9.0}}]}
    steps = {"noise_multiplier": 1.1, "sampling_probability": 0.01, "steps": 100, "clip_norm": 1.0}
    before = checksums(service.parts)
    for path, body in (
        ("/v1/releases?dry_run=true", proposal),
        ("/v1/releases?dry_run=true", costly),
        ("/v1/advice/what-if", {"proposal": proposal, "times": 5}),
        ("/v1/advice/calibrate", {"epsilon": 1.0, "delta": 1e-6, "sampling_probability": 0.01, "steps": 100}),
        ("/v1/advice/label-split", {"epsilon": 1.0, "delta": 1e-6, "class_size": 100, "probability": 0.9}),
        ("/v1/mechanisms/dp-sgd/price", {"parameters": steps}),
        (f"/v1/populations/{name}/datapoints/lookup", {"key": "ada"}),
        (f"/v1/populations/{name}/datapoints/statement", {"key": "ada"}),
        ("/v1/verify", {"payload": "", "payloadType": "", "signatures": []}),
        ("/v1/keys/log/verify", None),
    ):
        call.ok("POST", path, body)
        assert checksums(service.parts) == before, path
    call.ok("POST", f"/v1/populations/{name}/ledger/verify")
    after = checksums(service.parts)
    assert {table for table in after if after[table] != before[table]} == {"verification"}  # that it was done, and when


def test_a_request_that_fails_leaves_every_row_as_it_was(service: Local, furnished: dict[str, Any]) -> None:
    call, name, release = service.call, furnished["population"], furnished["release"]
    event = {"kind": "pure_dp", "epsilon": 0.1}
    before = checksums(service.parts)
    for status, method, path, body in (
        (422, "POST", "/v1/releases", {"population": name, "charges": [{"scope": {"task": "x"}, "event": event}]}),
        (422, "POST", "/v1/releases", {"population": name, "charges": [{"scope": {"task": "t"}, "event": {}}]}),
        (404, "POST", "/v1/releases", {"population": "no", "charges": [{"scope": {"task": "t"}, "event": event}]}),
        (422, "POST", f"/v1/releases/{release}/void", {}),
        (422, "PUT", f"/v1/populations/{name}/policy", {"reason": "more", "epsilon": 2.0}),
        (422, "POST", f"/v1/populations/{name}/tasks", {"name": "t", "members": {"ranges": [[0, 1]]}}),
        (422, "POST", f"/v1/populations/{name}/tasks", {"name": "u", "members": {"ranges": [[0, 100]]}}),
        (409, "POST", "/v1/populations", {"name": name, "unit": "user", "budget": {"epsilon": 9.0, "delta": 1e-6}}),
        (404, "POST", f"/v1/populations/{name}/datapoints/erase", {"key": "nobody"}),
    ):
        answer = call(method, path, body, headers={"Idempotency-Key": f"{name}-{path}-{status}"})
        assert answer.status_code == status, answer.text
        assert checksums(service.parts) == before, path


def test_a_refused_proposal_changes_no_balance(service: Local, furnished: dict[str, Any]) -> None:
    """It is recorded: the log, the list of releases and the head grow, and nothing else moves."""
    call, name = service.call, furnished["population"]
    people = range(52)
    before, readings = checksums(service.parts), [call.reading(name, ordinal) for ordinal in people]
    budget = call.ok("GET", f"/v1/populations/{name}/budget")
    refused = call.propose(name, ({"ranges": [[0, 52]]}, {"kind": "pure_dp", "epsilon": 2.0}))
    assert refused["status"] == "denied"
    after = checksums(service.parts)
    assert {table for table in TABLES if after[table] != before[table]} == {"entry", "release", "population"}
    assert [call.reading(name, ordinal) for ordinal in people] == readings
    assert call.ok("GET", f"/v1/populations/{name}/budget") == budget
