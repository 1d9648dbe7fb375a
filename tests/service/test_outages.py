"""PostgreSQL is killed while a worker commits, and comes back: a job is committed once, and published if it is.

The worker stops where its transaction is complete but for the commit, so that nothing depends on time. Before it goes
on, either there is no database any more, or one that waits for a standby that does not exist: then the commit is
durable, and nobody ever hears of it. (PostgreSQL 18, synchronous_standby_names.)
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest

from service.store.embedded import embedded
from service.sweeper import rescue
from tests.service import work
from tests.service.harness import Local, kill_postgres, local
from tests.service.work import data, ended, job, statuses, until, worker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def house() -> Iterator[Local]:
    """A service with a short lease, where nobody makes up for a dead worker but whom a test sends."""
    with local(lease_seconds=3.0, attempts=2) as running:
        yield running


def wait_for(something: Callable[[], object]) -> None:
    ends = time.monotonic() + work.SECONDS
    while not something():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.01)


def start_again(house: Local) -> None:
    """The database is back, and waits for nobody."""
    settings = house.parts.settings.data / "postgres" / "postgresql.auto.conf"
    kept = [line for line in settings.read_text().splitlines() if "synchronous_standby_names" not in line]
    settings.write_text("\n".join([*kept, ""]))
    with embedded(house.parts.settings.data / "postgres"):
        pass  # that of the house stops it, later


def wait_for_a_standby(house: Local) -> None:
    """From here on every commit is durable and then waits, until the database is killed."""
    url = house.parts.database.url

    def commit_until_one_waits(connection: psycopg.Connection[Any]) -> None:
        try:
            while True:
                connection.execute("SELECT pg_logical_emit_message(true, 'test', '')")
        except psycopg.OperationalError:
            connection.close()

    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        admin.execute("SELECT pg_reload_conf()")
    first = psycopg.connect(url, autocommit=True)
    number = first.info.backend_pid
    threading.Thread(target=commit_until_one_waits, args=(first,), daemon=True).start()
    wait_for_process(house, number)


def wait_for_process(house: Local, number: int) -> None:
    """Until a process of the database waits for the standby, its commit on the disk."""
    with psycopg.connect(house.parts.database.url, autocommit=True) as watching:
        asked = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event = 'SyncRep'"
        wait_for(lambda: watching.execute(asked, (number,)).fetchone())


@pytest.mark.parametrize(
    ("when", "worker_dies"),
    [
        ("before", False),
        ("before", True),
        ("after", False),
        pytest.param("after", True, marks=pytest.mark.full),  # for the worker as if it died between commit and rename
    ],
)
def test_a_database_that_fails_at_the_commit(
    house: Local, when: Literal["before", "after"], tmp_path: Path, *, worker_dies: bool
) -> None:
    call, folder = house.call, house.parts.settings.artifacts_folder
    population = call.population(count=60, epsilon=2.0, delta=1e-5)
    identity = call.ok("POST", "/v1/jobs", job(population, data(house.parts), queue="outage"))["id"]
    held = call.reading(population, 0)["held"]
    process = worker(house.parts, "--queue", "outage", planted=f"outage={tmp_path}")
    try:
        wait_for((tmp_path / "reached").exists)
        if when == "after":
            wait_for_a_standby(house)
            (tmp_path / "go").touch()
            wait_for_process(house, int((tmp_path / "reached").read_text()))
        if worker_dies:
            process.kill()
        kill_postgres(house.parts.settings.data)
        (tmp_path / "go").touch()
        killed = datetime.now(UTC)
        start_again(house)
        if worker_dies:
            found = _made_up_for(house, identity, process)
        else:
            assert process.stderr is not None
            assert any(line.startswith(f"{identity}: committed as") for line in process.stderr)
            found = call.ok("GET", f"/v1/jobs/{identity}")
    finally:
        process.terminate()
        said = ended(process)
    tries = 2 if when == "before" and worker_dies else 1
    assert (found["status"], found["attempt"]) == ("committed", tries), said
    assert (datetime.fromisoformat(found["finished_at"]) < killed) is (when == "after")
    assert statuses(call, identity) == [
        ("queued", 0, None), ("running", 1, None),
        *([("queued", 1, "worker.lost"), ("running", 2, None)] if tries == 2 else []), ("committed", tries, None),
    ]  # fmt: skip
    if not worker_dies:
        assert process.returncode == 0, said
    kinds = [each["body"]["kind"] for each in call.entries(population)]
    assert [kind for kind in kinds if kind.startswith("release.")] == ["release.held", "release.committed"]
    after = call.reading(population, 0)
    assert after["spent"] == pytest.approx(held)
    assert after["held"] == 0.0
    assert list((folder / ".staged").iterdir()) == []
    assert (folder / found["release"]).is_dir()
    assert call("GET", f"/v1/releases/{found['release']}/artifact").status_code == 200
    call.verify(population)


def _made_up_for(house: Local, identity: str, process: subprocess.Popen[str]) -> dict[str, Any]:
    """By the sweeper once the lease is over, and by another worker; before that, nothing is published."""
    call = house.call
    assert process.wait(work.SECONDS) != 0
    now: dict[str, Any] = call.ok("GET", f"/v1/jobs/{identity}")
    folder = house.parts.settings.artifacts_folder
    assert not (folder / now["release"]).exists()

    def rescued() -> bool:
        rescue(house.parts)
        return bool(call.ok("GET", f"/v1/jobs/{identity}")["status"] != "running")

    wait_for(rescued)
    ended(worker(house.parts, "--queue", "outage", "--once"))
    found: dict[str, Any] = call.ok("GET", f"/v1/jobs/{identity}")
    return found


def test_neither_an_attempt_nor_an_idle_worker_ends_with_the_database(house: Local, tmp_path: Path) -> None:
    """However long it is away: what nobody could renew is not taken for lost, and the queue is looked for again."""
    call, parts, gate = house.call, house.parts, tmp_path / "gate"
    population, uri = call.population(count=60, epsilon=2.0, delta=1e-5), data(house.parts)
    identity = call.ok("POST", "/v1/jobs", job(population, uri, queue="away"))["id"]
    process = worker(parts, "--queue", "away", planted=f"gate={gate}")
    assert process.stderr is not None
    try:
        until(call, identity, lambda now: now["progress"]["step"] == 1)
        kill_postgres(parts.settings.data)
        assert any("tidying failed" in line for line in process.stderr)  # it has noticed
        start_again(house)
        with psycopg.connect(parts.database.url, autocommit=True) as admin:  # as if it had been away for long
            admin.execute("UPDATE job SET lease_until = now() - interval '1 hour' WHERE id = %s", (identity,))
        gate.touch()
        found = until(call, identity, lambda now: now["status"] != "running")
        assert (found["status"], found["attempt"]) == ("committed", 1)

        kill_postgres(parts.settings.data)
        assert any("the queue cannot be reached" in line for line in process.stderr)
        start_again(house)
        second = call.ok("POST", "/v1/jobs", job(population, uri, queue="away"))["id"]
        found = until(call, second, lambda now: now["status"] not in {"queued", "running"})
        assert (found["status"], found["attempt"]) == ("committed", 1)
    finally:
        process.terminate()
        said = ended(process)
    assert process.returncode == 0, said
    call.verify(population)


def test_a_worker_that_works_once_says_that_there_is_no_queue(house: Local) -> None:
    """It would wait for ever otherwise, and somebody waits for it."""
    with psycopg.connect(house.parts.database.url, autocommit=True) as admin:
        admin.execute("ALTER TABLE procrastinate_workers RENAME TO procrastinate_gone")
        try:
            process = worker(house.parts, "--queue", "nobody", "--once")
            said = ended(process)
        finally:
            admin.execute("ALTER TABLE procrastinate_gone RENAME TO procrastinate_workers")
    assert process.returncode == 2
    assert said.splitlines()[-1].startswith("stint: the database cannot be used: ")
