"""What went wrong in other ledgers and accountants, each as a test that it does not go wrong here."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import permutations
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from accountant.streams.schedules import SlidingWindow
from service import sweeper
from service.operations import jobs
from service.operations import keys as api_keys
from service.store.writer import Answer, Operation, Writer
from tests.service import work
from tests.service.harness import Auditor, Caller, Local, fresh, in_process, local

EVERYBODY = {"ranges": [[0, 10]]}


def pure(epsilon: float) -> dict[str, Any]:
    return {"kind": "pure_dp", "epsilon": epsilon}


# ---------------------------------------------------------------- negative or subnormal spends


@pytest.mark.parametrize(
    "epsilon", ["-0.1", "-0.0000001", "-5e-324", "-1e400", "1e400", "NaN", '"0.1"', "true", "null"]
)
def test_a_negative_spend_is_refused(call: Caller, epsilon: str) -> None:
    name = call.population(count=10)
    call.propose(name, (EVERYBODY, pure(0.5)))
    body = json.dumps({"population": name, "charges": [{"scope": EVERYBODY, "event": pure(0.123)}]})
    answer = call(
        "POST", "/v1/releases", content=body.replace("0.123", epsilon), headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 422
    assert call.reading(name, 0)["held"] == 0.5


@pytest.mark.parametrize(
    "event",
    [
        pure(5e-324),
        pure(1e-300),
        {"kind": "approx_dp", "epsilon": 5e-324, "delta": 0},
        {"kind": "laplace", "scale": 1e308},
        {"kind": "repeated", "times": 3, "event": pure(1e-320)},
    ],
)
def test_a_subnormal_spend_still_costs_something(call: Caller, event: dict[str, Any]) -> None:
    """Rounded up to the unit of the ledger, so no number of releases is free."""
    name = call.population(count=10, epsilon=1e-11)
    outcomes = [call.propose(name, (EVERYBODY, event), delta=0)["status"] for _ in range(11)]
    assert outcomes == ["held"] * 10 + ["denied"]


# ---------------------------------------------------------------- spend order


def test_the_order_of_spends_does_not_matter(call: Caller) -> None:
    events = [
        pure(0.2),
        {"kind": "gaussian", "noise_multiplier": 6.0},
        {"kind": "approx_dp", "epsilon": 0.1, "delta": 1e-8},
    ]
    readings = []
    for order in permutations(events):
        name = call.population(count=10, epsilon=3.0)
        made = [call.propose(name, (EVERYBODY, event), delta=0) for event in order]
        for each in made[:2]:
            call.ok("POST", f"/v1/releases/{each['id']}/commit", {})
        call.ok("POST", f"/v1/releases/{made[2]['id']}/commit", {})
        readings.append(call.reading(name, 3))
    assert all(each == readings[0] for each in readings)


# ---------------------------------------------------------------- disjoint scopes


def test_disjoint_scopes_share_nothing_and_overlapping_ones_add_up(call: Caller) -> None:
    """Parallel composition is not assumed; it is what is left when scopes do not meet."""
    name = call.population(count=10)
    both = call.propose(name, ({"ranges": [[0, 6]]}, pure(0.6)), ({"ranges": [[5, 10]]}, pure(0.3)))
    assert both["status"] == "held"
    assert [call.reading(name, each)["held"] for each in (0, 5, 9)] == [0.6, 0.9, 0.3]
    assert call.propose(name, ({"ranges": [[6, 10]]}, pure(0.7)))["status"] == "held"
    assert call.propose(name, ({"ranges": [[5, 6]]}, pure(0.2)))["status"] == "denied"


def test_a_scope_that_says_somebody_twice_charges_once(call: Caller) -> None:
    name = call.population(count=10)
    call.propose(name, ({"ranges": [[0, 6], [3, 10], [3, 4]]}, pure(0.3)))
    assert {call.reading(name, each)["held"] for each in range(10)} == {0.3}


# ---------------------------------------------------------------- reads that mutate, over-asking


def test_asking_what_is_left_spends_nothing(call: Caller) -> None:
    name = call.population(count=10)
    proposal = {"population": name, "charges": [{"scope": EVERYBODY, "event": pure(0.4)}]}
    for _ in range(5):
        assert call.ok("POST", "/v1/releases?dry_run=true", proposal)["decision"]["outcome"] == "admitted"
        call.ok("GET", f"/v1/populations/{name}/budget")
        assert call.ok("POST", "/v1/advice/what-if", {"proposal": proposal})["would_be_admitted"] == 2
        assert call.reading(name, 0) == {"spent": 0.0, "held": 0.0, "available": 1.0, "budget": 1.0}


def test_asking_for_too_much_leaves_the_budget_as_it_was(call: Caller) -> None:
    name = call.population(count=10)
    for epsilon in (1.1, 50.0, 1e300):
        assert call.propose(name, (EVERYBODY, pure(epsilon)))["status"] == "denied"
    assert call.propose(name, (EVERYBODY, {"kind": "non_private"}))["status"] == "denied"
    assert call.propose(name, (EVERYBODY, pure(1.0)))["status"] == "held"


# ---------------------------------------------------------------- windows


def test_a_window_charges_all_of_its_blocks_or_none(call: Caller) -> None:
    name = call.population(count=100)
    blocks = [({"ranges": [[start, start + 25]]}, pure(0.6)) for start in range(0, 100, 25)]
    assert call.propose(name, blocks[2])["status"] == "held"  # one block has 0.4 left
    before = [call.reading(name, each) for each in (0, 25, 50, 75)]
    assert call.propose(name, *blocks)["status"] == "denied"
    assert [call.reading(name, each) for each in (0, 25, 50, 75)] == before
    trimmed = call.propose(name, *blocks, on_exhausted="trim")
    assert (trimmed["status"], trimmed["decision"]["trimmed"]) == ("held", 25)
    assert [call.reading(name, each)["held"] for each in (0, 25, 50, 75, 99)] == [0.6] * 5


def test_a_window_model_charges_what_its_schedule_touches(call: Caller) -> None:
    """A chain that leaves a block of the schedule out is refused, whatever it would have saved."""
    schedule = SlidingWindow(k=2, w0=5)
    step = schedule.step(0)
    chain = [{"level": each.level, "start": each.start, "stop": each.stop} for each in reversed(step.chain)]
    assert len(chain) > 1
    name = call.population(count=40)
    parameters = {"k": 2, "w0": 5, "step": 0, "chain": chain, "epsilon": 0.2}

    def proposal(given: list[dict[str, int]]) -> dict[str, Any]:
        mechanism = {"name": "sliding-window", "parameters": {**parameters, "chain": given}}
        return {"population": name, "kind": "window_model", "mechanism": mechanism}

    assert call("POST", "/v1/releases", proposal(chain[:1])).status_code == 422
    assert call.ok("POST", "/v1/releases", proposal(chain))["status"] == "held"
    for block in chain:
        assert all(call.reading(name, each)["held"] > 0 for each in (block["start"], block["stop"] - 1))


# ---------------------------------------------------------------- delete and come back


def test_a_deleted_key_that_returns_meets_its_old_balance(call: Caller) -> None:
    name = call.population(named_scopes=True)
    path = f"/v1/populations/{name}/datapoints"
    call.ok("POST", path, {"keys": ["ada", "eve"]})
    call.propose(name, ({"keys": ["eve"]}, pure(0.9)))
    spent = call.ok("POST", path + "/lookup", {"key": "eve"})
    assert call.ok("POST", path + "/erase", {"key": "eve"})["erased"]
    assert call("POST", path + "/lookup", {"key": "eve"}).status_code == 410
    back = call.ok("POST", path, {"keys": ["eve", "new"]})
    assert (back["returned"], back["registered"], back["datapoints"]) == (1, 1, 3)
    again = call.ok("POST", path + "/lookup", {"key": "eve"})
    assert (again["ordinal"], again["epsilon"]) == (spent["ordinal"], spent["epsilon"])
    assert call.propose(name, ({"keys": ["eve"]}, pure(0.2)))["status"] == "denied"
    call.verify(name)


# ---------------------------------------------------------------- replace-one


@pytest.mark.parametrize("event", [{"kind": "gaussian", "noise_multiplier": 8.0}, {"kind": "laplace", "scale": 8.0}])
def test_replace_one_costs_as_much_as_it_does(call: Caller, event: dict[str, Any]) -> None:
    """The sensitivity of a clipped sum doubles, so twice the noise costs the same, and the same noise more."""
    field = next(each for each in event if each != "kind")
    adding = call.population(count=10, epsilon=9.0, adjacency="add_remove")
    replacing = call.population(count=10, epsilon=9.0, adjacency="replace_one")
    louder = call.population(count=10, epsilon=9.0, adjacency="replace_one")
    for name, noise in ((adding, 1), (replacing, 1), (louder, 2)):
        assert call.propose(name, (EVERYBODY, {**event, field: noise * event[field]}), delta=0)["status"] == "held"
    once, more, same = (call.reading(each, 0)["held"] for each in (adding, replacing, louder))
    assert same == pytest.approx(once, rel=1e-9)
    if event["kind"] == "laplace":
        assert more == pytest.approx(2 * once, rel=1e-9)
    assert more > 1.2 * once


# ---------------------------------------------------------------- idempotency keys


def test_an_old_idempotency_key_still_works_after_many_others(service: Local) -> None:
    call = service.call
    name = call.population(count=10, epsilon=100.0)
    body = {"population": name, "charges": [{"scope": EVERYBODY, "event": pure(0.01)}], "delta": 0}
    key = {"Idempotency-Key": fresh("old")}
    first = call.ok("POST", "/v1/releases", body, headers=key)
    for _ in range(200):
        call.ok("POST", "/v1/releases", body, headers={"Idempotency-Key": fresh("other")})
    again = call("POST", "/v1/releases", body, headers=key)
    assert again.json() == first
    assert again.headers["Idempotent-Replayed"] == "true"
    assert len(call.entries(name)) == 2 + 201
    with pytest.raises(DBAPIError), service.parts.database.transaction() as connection:
        connection.execute(text("DELETE FROM idempotency"))  # nobody can prune them


def test_a_population_is_made_once_under_a_key(service: Local) -> None:
    call, name = service.call, fresh()
    body = {"name": name, "unit": "user", "budget": {"epsilon": 1.0, "delta": 1e-6}}
    key = {"Idempotency-Key": fresh("new")}

    async def twins() -> list[Any]:
        return await asyncio.gather(*(call.client.post("/v1/populations", json=body, headers=key) for _ in range(4)))

    answers = call.run(twins())
    assert [each.status_code for each in answers] == [201] * 4
    assert all(each.json() == answers[0].json() for each in answers)
    assert call("POST", "/v1/populations", body).status_code == 409
    other = call("POST", "/v1/populations", {**body, "name": fresh()}, headers=key)
    assert other.json()["type"] == "urn:stint:problem:key-reused"
    assert len(call.entries(name)) == 1


def test_keys_of_different_callers_never_meet(service: Local) -> None:
    call = service.call
    name = call.population(count=10)
    other = api_keys.create(service.parts.database, name="other", roles=["pipeline"])["secret"]
    body = {"population": name, "charges": [{"scope": EVERYBODY, "event": pure(0.1)}]}
    key = fresh("shared")
    mine = call.ok("POST", "/v1/releases", body, headers={"Idempotency-Key": key})
    headers = {"Idempotency-Key": key, "Authorization": f"Bearer {other}"}
    theirs = call.ok("POST", "/v1/releases", body, headers=headers)
    assert mine["id"] != theirs["id"]


# ---------------------------------------------------------------- tolerance


def test_nothing_is_tolerated_in_the_spenders_favour(call: Caller) -> None:
    """Ten releases of 0.1 are exactly 1; one unit more, a trillionth, is too much."""
    name = call.population(count=10, epsilon=1.0, budget={"preset": "pure", "delta": 0})
    assert call.propose(name, (EVERYBODY, pure(1.000000000001)))["status"] == "denied"
    assert [call.propose(name, (EVERYBODY, pure(0.1)))["status"] for _ in range(10)] == ["held"] * 10
    assert call.reading(name, 0) == {"spent": 0.0, "held": 1.0, "available": 0.0, "budget": 1.0}
    for least in (1e-12, 1e-30, 5e-324):
        assert call.propose(name, (EVERYBODY, pure(least)))["status"] == "denied"
    assert call.propose(name, (EVERYBODY, pure(0.0)))["status"] == "held"


def test_a_delta_that_is_over_by_a_trillionth_is_denied(call: Caller) -> None:
    name = call.population(count=10, epsilon=1.0, delta=1e-6, budget={"delta_parts": 1e-7})
    over = {"kind": "approx_dp", "epsilon": 0.01, "delta": 1.000000000001e-7}
    assert call.propose(name, (EVERYBODY, over))["status"] == "denied"
    assert call.propose(name, (EVERYBODY, {**over, "delta": 1e-7}))["status"] == "held"
    assert call.propose(name, (EVERYBODY, {**over, "delta": 1e-25}))["status"] == "denied"


# ---------------------------------------------------------------- an audit record that is missing


@pytest.mark.parametrize("durable", [False, True], ids=["before it is durable", "after it is durable"])
def test_no_audit_record_is_missing_after_a_failed_commit(
    call: Caller,
    monkeypatch: pytest.MonkeyPatch,
    durable: bool,  # noqa: FBT001
) -> None:
    """The outcome is unknown to the caller; the key finds out, and there is one record and one charge."""
    name = call.population(count=10)
    body = {"population": name, "charges": [{"scope": EVERYBODY, "event": pure(0.4)}]}
    key = {"Idempotency-Key": fresh("crash")}
    real = psycopg.Connection.commit

    def fail(connection: psycopg.Connection[Any]) -> None:
        if durable:
            real(connection)
        raise psycopg.OperationalError("the connection is gone")

    with monkeypatch.context() as patch:
        patch.setattr(psycopg.Connection, "commit", fail)
        assert call("POST", "/v1/releases", body, headers=key).status_code == 503
    assert call.reading(name, 0)["held"] == (0.4 if durable else 0.0)
    answer = call("POST", "/v1/releases", body, headers=key)
    assert answer.status_code == 201
    assert ("Idempotent-Replayed" in answer.headers) == durable
    auditor = Auditor.of(call.entries(name))
    assert auditor.status == {answer.json()["id"]: "held"}
    assert call.reading(name, 0) == auditor.reading(0)
    call.verify(name)


# ---------------------------------------------------------------- stuck for ever


@pytest.fixture(scope="module")
def narrow() -> Iterator[Local]:
    """A service with a sweeper that looks often, and with fewer connections than threads."""
    with local(sweeps=True, sweep_seconds=0.1, connections=6) as running:
        yield running


def test_a_hold_whose_owner_fell_silent_is_spent(narrow: Local) -> None:
    call = narrow.call
    name = call.population(count=10)
    made = call.propose(name, (EVERYBODY, pure(0.4)), hold_seconds=1)
    assert call.reading(name, 0)["held"] == 0.4
    ends = time.monotonic() + 10
    while call.ok("GET", f"/v1/releases/{made['id']}")["status"] == "held":
        assert time.monotonic() < ends, "the hold is stuck"
        time.sleep(0.05)
    assert call.ok("GET", f"/v1/releases/{made['id']}")["status"] == "expired"
    assert (call.reading(name, 0)["spent"], call.reading(name, 0)["held"]) == (0.4, 0.0)
    assert call("POST", f"/v1/releases/{made['id']}/void", {"reason": "too late"}).status_code == 409
    late = call.ok("POST", f"/v1/releases/{made['id']}/commit", {"artifact": {"sha256": "a" * 64}})
    assert (late["status"], late["artifact"]) == ("expired", {"sha256": "a" * 64})
    assert call.reading(name, 0)["spent"] == 0.4
    call.verify(name)


def test_a_job_whose_worker_fell_silent_again_and_again_is_given_up(service: Local) -> None:
    """By the sweeper, without any worker: each attempt's lease runs out, and at last the release is voided."""
    call, parts = service.call, service.parts
    name = call.population(count=60, epsilon=2.0, delta=1e-5)
    job = call.ok("POST", "/v1/jobs", work.job(name, work.data(parts)))
    for _ in range(parts.settings.attempts):
        assert jobs.begin(parts.database, job["id"], worker="silent", lease_seconds=0) is not None
        sweeper.rescue(parts)
    found = call.ok("GET", f"/v1/jobs/{job['id']}")
    assert (found["status"], found["error"]) == ("failed", "worker.lost")
    assert call.ok("GET", f"/v1/releases/{job['release']['id']}")["status"] == "voided"
    assert call.reading(name, 0)["held"] == 0.0


def test_one_populations_trouble_leaves_no_other_hold_open(service: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    call = service.call
    names = [call.population(count=10) for _ in range(3)]
    made = {name: call.propose(name, (EVERYBODY, pure(0.4)), hold_seconds=1)["id"] for name in names}
    real = Writer.submit

    def submit(writer: Writer, operation: Operation) -> Future[Answer]:
        if operation.population == min(names):
            raise AssertionError("its book cannot be opened")
        return real(writer, operation)

    time.sleep(1.05)
    with monkeypatch.context() as patch:
        patch.setattr(Writer, "submit", submit)
        with pytest.raises(AssertionError):
            sweeper.sweep(service.parts)
    statuses = [call.ok("GET", f"/v1/releases/{made[name]}")["status"] for name in sorted(names)]
    assert statuses == ["held", "expired", "expired"]
    sweeper.sweep(service.parts)
    assert call.ok("GET", f"/v1/releases/{made[min(names)]}")["status"] == "expired"


def test_a_caller_who_hangs_up_stops_nobody(service: Local) -> None:
    """A request that is cancelled at any point leaves its population deciding, and its key with one effect."""
    call = service.call
    name = call.population(count=10, epsilon=100.0)
    body = {"population": name, "charges": [{"scope": EVERYBODY, "event": pure(0.1)}], "delta": 0}

    async def hang_up(place: int) -> None:
        async with in_process(service.app, call.key) as client:
            asked = client.post("/v1/releases", json=body, headers={"Idempotency-Key": f"{name}-{place}"})
            try:
                await asyncio.wait_for(asked, place / 4000)
            except TimeoutError:
                return

    async def everybody() -> None:
        await asyncio.gather(*(hang_up(place) for place in range(60)))

    call.run(everybody())
    for place in range(60):
        call.ok("POST", "/v1/releases", body, headers={"Idempotency-Key": f"{name}-{place}"})
    auditor = Auditor.of(call.entries(name))
    assert list(auditor.status.values()) == ["held"] * 60
    assert call.reading(name, 0) == auditor.reading(0)


def test_readers_and_writers_do_not_wait_for_each_others_connections(narrow: Local) -> None:
    """Two connections, sixteen callers: nobody holds one while he waits for another."""
    call = narrow.call
    names = [call.population(named_scopes=True) for _ in range(8)]
    for name in names:
        call.ok("POST", f"/v1/populations/{name}/datapoints", {"keys": ["a", "b"]})
    started = time.monotonic()
    with ThreadPoolExecutor(16) as pool:
        asked = [
            pool.submit(work, name)
            for name in names * 3
            for work in (
                lambda each: call.reading(each, 0),
                lambda each: call.propose(each, ({"keys": ["a"]}, pure(0.1))),
            )
        ]
        for each in asked:
            each.result(60)
    assert time.monotonic() - started < 25  # a pool that starves says so after 30


def test_a_pipeline_may_not_name_people_in_a_union_either(service: Local) -> None:
    call = service.call
    name = call.population(count=10)
    secret = api_keys.create(service.parts.database, name="pipeline", roles=["pipeline"])["secret"]
    headers = {"Authorization": f"Bearer {secret}"}
    scope = {"union": [{"bitmap": "OjAAAAEAAAAAAAAAEAAAAAAA"}]}
    task = call("POST", f"/v1/populations/{name}/tasks", {"name": "t", "members": scope}, headers=headers)
    assert task.status_code == 403
    body = {"population": name, "charges": [{"scope": scope, "event": pure(0.1)}]}
    assert call("POST", "/v1/releases", body, headers=headers).status_code == 403
    assert call("POST", "/v1/releases", body).status_code == 201
