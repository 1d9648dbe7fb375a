"""A worker in this process: what it goes on with while something else is damaged, or away."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import psycopg
import pytest

from service import worker as worker_module
from service.operations import jobs
from service.placement import Attempt, Outcome
from service.staging import Staging
from service.sweeper import Rescuer
from service.worker import Options, Worker
from tests.service.harness import Local, local
from tests.service.work import data, job
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
