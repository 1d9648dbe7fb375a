"""A commit that fails, provoked in PostgreSQL itself: what the writer knows of it, and what it then does."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from service.metrics import Metrics
from service.operations import datapoints
from service.store.writer import Answer, Operation, Writer
from tests.service.fixtures_behaviour import House, pure, until

pytest_plugins = ("tests.service.fixtures_behaviour",)

FAILS = "RAISE EXCEPTION 'not this one' USING ERRCODE = 'check_violation'"
ENDS = "PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10)"
MOMENTS = {
    "write": "CREATE TRIGGER provoked AFTER INSERT ON entry FOR EACH ROW {}",
    "commit": "CREATE CONSTRAINT TRIGGER provoked AFTER INSERT ON entry DEFERRABLE INITIALLY DEFERRED FOR EACH ROW {}",
}


@contextmanager
def provoked(house: House, population: str, what: str, *, moment: str) -> Iterator[None]:
    """Something that befalls every transaction with an entry of this population: as it is written, or committed."""
    with house.superuser() as connection:
        [identity] = connection.execute("SELECT id FROM population WHERE name = %s", (population,)).fetchone() or ()
        connection.execute(
            "CREATE FUNCTION provoked() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS "
            f"$$ BEGIN {what}; RETURN NULL; END $$".encode()
        )
        try:
            run = f"WHEN (NEW.population_id = {identity}) EXECUTE FUNCTION provoked()"
            connection.execute(MOMENTS[moment].format(run).encode())
            yield
        finally:
            connection.execute("DROP FUNCTION provoked CASCADE")


def together(house: House, names: Sequence[str]) -> list[Future[Answer]]:
    """One more datapoint for each, in one batch: they queue up behind an operation that waits for them."""
    writer = Writer(house.parts.database, house.parts.books, house.parts.settings, house.parts.metrics)
    begun, queued = threading.Event(), threading.Event()

    def wait(*_: object) -> Any:
        begun.set()
        queued.wait(10)
        raise RuntimeError("done waiting")

    try:
        first = writer.submit(Operation(population=names[0], actor="test", decide=wait))
        assert begun.wait(10)
        futures = [
            writer.submit(Operation(population=name, actor="test", decide=datapoints.register_count(1)))
            for name in names
        ]
        queued.set()
        assert isinstance(first.exception(10), RuntimeError)
    finally:
        queued.set()
        writer.close()
    return futures


def counts(house: House, names: Sequence[str]) -> list[int]:
    for name in names:
        assert house.auditor.post(f"/v1/populations/{name}/ledger/verify")["ok"]
    return [house.officer.get(f"/v1/populations/{name}")["datapoints"] for name in names]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_broken_rule_undoes_a_commit_and_costs_nobody_else_theirs(house: House, moment: str) -> None:
    """The database said so: nothing happened, and each may be tried by itself."""
    names = [house.population() for _ in range(3)]
    with provoked(house, names[1], FAILS, moment=moment):
        one, other, third = together(house, names)
    assert isinstance(other.exception(0), psycopg.errors.CheckViolation)
    assert [one.result(0).document["datapoints"], third.result(0).document["datapoints"]] == [1, 1]
    assert counts(house, names) == [1, 0, 1]
    assert [each.result(0).status for each in together(house, names)] == [201] * 3
    assert counts(house, names) == [2, 1, 2]


@pytest.mark.parametrize("moment", MOMENTS)
def test_after_a_lost_connection_nobody_but_the_callers_tries_again(house: House, moment: str) -> None:
    """The commit had been sent: whether it took place is not known here, although a key finds out."""
    names = [house.population() for _ in range(3)]
    with provoked(house, names[1], ENDS, moment=moment):
        failed = together(house, names)
    assert all(isinstance(each.exception(0), psycopg.OperationalError) for each in failed)
    assert counts(house, names) == [0, 0, 0]
    assert [each.result(0).status for each in together(house, names)] == [201] * 3
    assert counts(house, names) == [1, 1, 1]


@pytest.mark.parametrize(("end", "status"), [("pg_terminate_backend", 503), ("pg_cancel_backend", 201)])
def test_a_commit_that_was_durable_is_never_repeated(house: House, end: str, status: int) -> None:
    """A commit that waits for a standby is durable already. Who ends the wait, or the connection, undoes nothing."""
    name = house.population(10)
    house.pipeline.hold(name, ({"ranges": [[0, 10]]}, pure(0.1)))
    body = {"population": name, "charges": [{"scope": {"ranges": [[0, 10]]}, "event": pure(0.6)}]}
    key = {"Idempotency-Key": house.new_name("durable")}
    answers = []

    def ask() -> None:
        answers.append(house.pipeline.ask("POST", "/v1/releases", body, headers=key))

    thread = threading.Thread(target=ask)
    with house.superuser() as connection:
        try:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
            connection.execute("SELECT pg_reload_conf()")
            until(lambda: connection.execute("SHOW synchronous_standby_names").fetchone() == ("nobody",))
            thread.start()
            waiting = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            until(lambda: connection.execute(f"SELECT {end}(pid) {waiting}".encode()).fetchall())
            thread.join(20)
        finally:
            connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
            connection.execute("SELECT pg_reload_conf()")
    [answer] = answers
    assert answer.status_code == status
    again = house.pipeline.ask("POST", "/v1/releases", body, headers=key, status=201)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.json()["status"] == "held"
    assert len(house.rows("release", name)) == 2
    assert house.officer.reading(name, 0)["held"] == pytest.approx(0.7)
    assert house.auditor.post(f"/v1/populations/{name}/ledger/verify")["ok"]


def test_how_many_wait_is_counted(house: House) -> None:
    name, metrics = house.population(), Metrics()
    writer = Writer(house.parts.database, house.parts.books, house.parts.settings, metrics)
    begun, go_on = threading.Event(), threading.Event()

    def wait(*_: object) -> Any:
        begun.set()
        go_on.wait(10)
        raise RuntimeError("done waiting")

    def waiting() -> float | None:
        return metrics.registry.get_sample_value("stint_decisions_waiting")

    assert waiting() == 0
    try:
        writer.submit(Operation(population=name, actor="test", decide=wait))
        assert begun.wait(10)
        for _ in range(3):
            writer.submit(Operation(population=name, actor="test", decide=datapoints.register_count(1)))
        assert waiting() == 3
    finally:
        go_on.set()
        writer.close()
    assert waiting() == 0
