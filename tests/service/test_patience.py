"""A worker in this process: what it goes on with while something else is damaged, or away."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from service import worker as worker_module
from service.api.releases import body_of
from service.operations import datapoints, jobs
from service.placement import Attempt, Outcome
from service.staging import Staging
from service.sweeper import Rescuer
from service.worker import Options, Worker
from tests.service.harness import Local, local
from tests.service.work import data, job, statuses
from trainers.cards import MODEL


@pytest.fixture(scope="module")
def house() -> Iterator[Local]:
    with local() as running:
        yield running


class Nowhere:
    """No attempt is run."""

    async def run(self, attempt: Attempt, /) -> Outcome:
        raise NotImplementedError(attempt)


def submit(house: Local) -> tuple[str, str]:
    """A population and a job on it."""
    population = house.call.population(count=60, epsilon=2.0, delta=1e-5)
    return population, str(house.call.ok("POST", "/v1/jobs", job(population, data(house.parts)))["id"])


def test_a_damaged_population_stops_no_chores(
    house: Local, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its silent job can neither be taken up nor given up, and what others left is tidied away all the same."""
    damaged, silent = submit(house)
    _, cancelled = submit(house)
    assert jobs.begin(house.parts.database, silent, worker="gone", lease_seconds=0.0) is not None
    house.call.ok("POST", f"/v1/jobs/{cancelled}/cancel")
    with psycopg.connect(house.parts.database.url) as owner:
        [(head,)] = owner.execute("SELECT hash FROM population WHERE name = %s", [damaged]).fetchall()
        owner.execute("UPDATE population SET hash = %s WHERE name = %s", [bytes(32), damaged])
    monkeypatch.setattr(worker_module, "_TIDY_SECONDS", 0.01)
    worker = Worker(house.parts, Options(), Nowhere(), say=print)
    worker._rescuer = Rescuer(house.parts, clock=itertools.count(step=3600.0).__next__)

    async def until_tidied_twice() -> None:
        chore = asyncio.create_task(worker._keep_tidy())
        for _ in range(2):
            left, ends = worker._staging.folder(cancelled, 1), time.monotonic() + 30
            while left.exists():
                assert not chore.done()
                assert time.monotonic() < ends
                await asyncio.sleep(0.01)
        chore.cancel()
        with suppress(asyncio.CancelledError):
            await chore

    try:
        asyncio.run(until_tidied_twice())
        assert "the log does not lead to its head" in caplog.text
        assert house.call.ok("GET", f"/v1/jobs/{cancelled}")["status"] == "cancelled"
    finally:
        with psycopg.connect(house.parts.database.url) as owner:
            owner.execute("UPDATE population SET hash = %s WHERE name = %s", [head, damaged])
    worker._tidy()
    assert house.call.ok("GET", f"/v1/jobs/{silent}")["status"] == "queued"


def test_a_folder_that_cannot_be_published_keeps_back_no_other(
    house: Local, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    staging, rows = Staging(tmp_path), list[tuple[str, str]]()
    header = json.dumps({"__metadata__": {"releasable": "true"}}).encode()
    made = len(header).to_bytes(8, "little") + header
    for number in range(2):
        _, identity = submit(house)
        release = house.call.ok("GET", f"/v1/jobs/{identity}")["release"]
        rows.append((identity, release))
        (staging.folder(identity, 1) / MODEL).write_bytes(made)
        with house.parts.database.transaction() as connection:  # as if it were committed
            connection.exec_driver_sql(
                "UPDATE job SET status = 'committed', attempt = 1, artifact_sha256 = %s WHERE id = %s",
                (sha256(made).hexdigest(), identity),
            )
        if number == 0:
            (tmp_path / release / "somebody's").mkdir(parents=True)
    staging.tidy(house.parts.database)
    (_, first), (_, second) = rows
    assert f"release {first} is not published yet" in caplog.text
    assert (tmp_path / second / MODEL).read_bytes() == made


@pytest.mark.parametrize("has_words", [True, False])
def test_a_log_is_named_where_there_is_one(house: Local, *, has_words: bool) -> None:
    _, identity = submit(house)
    said = list[str]()

    class Failing:
        async def run(self, attempt: Attempt, /) -> Outcome:
            if has_words:
                attempt.log.touch()
            return Outcome(error="recipe.invalid")

    asyncio.run(Worker(house.parts, Options(), Failing(), say=said.append).attempt(identity))
    log = house.parts.settings.artifacts_folder.resolve() / ".logs" / f"{identity}.1"
    words = f" The worker's own log is {log}." if has_words else ""
    assert said[-1] == f"{identity}: attempt 1 failed: recipe.invalid.{words}"


def test_an_attempt_goes_on_when_the_database_was_away_while_it_was_prepared_or_looked_keys_up(
    house: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is asked in vain, and it counts once."""
    population, identity = submit(house)
    asked = list[str]()

    def away_at_first(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def flickering(*arguments: Any, **named: Any) -> Any:
            asked.append(name)
            if asked.count(name) <= 2:
                raise OperationalError("SELECT", {}, Exception("the database is away"))
            return function(*arguments, **named)

        return flickering

    monkeypatch.setattr(worker_module, "body_of", away_at_first("prepared", body_of))
    monkeypatch.setattr(datapoints, "known", away_at_first("looked up", datapoints.known))

    class Asking:
        async def run(self, attempt: Attempt, /) -> Outcome:
            assert await attempt.ordinals_of(["nobody"]) == [-1]
            return Outcome(error="recipe.invalid")

    worker = Worker(house.parts, Options(), Asking(), say=print)
    worker._tick = 0.01
    asyncio.run(worker.attempt(identity))
    assert asked == ["prepared"] * 3 + ["looked up"] * 3
    assert statuses(house.call, identity) == [
        ("queued", 0, None), ("running", 1, None), ("failed", 1, "recipe.invalid"),
    ]  # fmt: skip
    house.call.verify(population)


@pytest.mark.parametrize("cancelled", [True, False])
def test_whoever_waits_for_the_database_sees_that_its_job_is_gone(
    house: Local, monkeypatch: pytest.MonkeyPatch, *, cancelled: bool
) -> None:
    """It was cancelled, or it takes longer than an attempt may take."""
    _, identity = submit(house)

    def away(*_: object) -> None:
        if cancelled:
            house.call("POST", f"/v1/jobs/{identity}/cancel")
        raise OperationalError("SELECT", {}, Exception("the database is away"))

    monkeypatch.setattr(worker_module, "body_of", away)
    parts = replace(house.parts, settings=replace(house.parts.settings, job_seconds=0.5, attempts=1))
    worker = Worker(parts, Options(), Nowhere(), say=print)
    worker._tick = 0.05
    asyncio.run(worker.attempt(identity))
    assert statuses(house.call, identity)[2] == (("cancelled", 1, None) if cancelled else ("queued", 1, "timeout"))
