"""`stint run` from nothing to a running service and back: what it prints, and that nothing is left behind."""

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from service.store import embedded as embedded_module
from service.store.embedded import embedded
from tests.service.terminal import command, lines_until, servers_of, short_folder, stop

pytestmark = pytest.mark.slow


@pytest.fixture
def folder() -> Iterator[Path]:
    """A data folder with a path short enough for a socket."""
    with short_folder() as made:
        yield made


def test_the_first_start_prints_a_key_once_and_ctrl_c_leaves_nothing(
    folder: Path, record_property: Callable[[str, object], None]
) -> None:
    first = command(folder, "run")
    lines = lines_until(first, "Demo population: demo (")
    url = re.findall(r"^Stint is running at (http://127\.0\.0\.1:\d+)$", lines[0])[0]
    keys = re.findall(r"^Admin key: (sk_\S+)$", "\n".join(lines), re.MULTILINE)
    assert len(keys) == 1
    opened = {"Authorization": f"Bearer {keys[0]}"}
    population = httpx.get(f"{url}/v1/populations/demo", headers=opened).json()
    assert population["tasks"] == 156
    assert servers_of(folder)
    out, err = stop(first)
    assert (first.returncode, out, err) == (0, "Stopped.\n", "")
    assert not servers_of(folder)

    started = time.monotonic()
    second = command(folder, "run")
    lines = lines_until(second, "Demo population: demo (there already)")
    record_property("second start in seconds", round(time.monotonic() - started, 1))  # told, and no promise
    assert not any("sk_" in line for line in lines)
    url = lines[0].rpartition(" ")[2]
    again = httpx.get(f"{url}/v1/populations/demo", headers=opened).json()
    assert again["entry"]["number"] - population["entry"]["number"] in {0, 1}  # the forgotten hold may have expired
    found = httpx.post(f"{url}/v1/populations/demo/ledger/verify", headers=opened, timeout=60).json()
    assert found["ok"], found["problems"]
    until = time.monotonic() + 30
    while True:  # the forgotten hold expires by itself, once the sweeper has looked
        releases = httpx.get(f"{url}/v1/releases?population=demo&limit=1000", headers=opened).json()["items"]
        statuses = {each["status"] for each in releases}
        if "expired" in statuses or time.monotonic() > until:
            break
        time.sleep(0.2)
    assert statuses == {"held", "denied", "committed", "voided", "expired"}
    assert {each["kind"] for each in releases} == {"weights", "labels", "window_model"}
    out, err = stop(second, signal.SIGTERM)
    assert (second.returncode, out, err) == (0, "Stopped.\n", "")
    assert not servers_of(folder)


@pytest.mark.parametrize("trace", ["postgres", "postgres/PG_VERSION", "postgres/postmaster.pid"])
def test_a_stop_during_the_start_leaves_nothing(folder: Path, trace: str) -> None:
    process = command(folder, "run", "--no-demo")
    while not (folder / trace).exists():
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out.endswith("Stopped.\n")
    assert "Traceback" not in err
    assert not servers_of(folder)


def test_an_interrupted_demo_is_completed_by_the_next_start(folder: Path) -> None:
    first = command(folder, "run", "--json")
    document = json.loads(lines_until(first, "started")[0])
    opened = {"Authorization": f"Bearer {document['key']}"}
    while True:
        seen = httpx.get(f"{document['url']}/v1/populations/demo", headers=opened)
        if seen.is_success and seen.json()["tasks"] > 20:
            break
        time.sleep(0.1)
    stop(first)
    second = command(folder, "run", "--json")
    line = json.loads(lines_until(second, '"demo"')[-1])
    url = line.get("url")
    out, _ = stop(second)
    assert line["event"] == "demo"
    assert 0 < line["steps"] < 574
    assert url is None
    third = command(folder, "run", "--json")
    assert json.loads(lines_until(third, '"demo"')[-1])["steps"] == 0
    out, _ = stop(third)
    assert json.loads(out) == {"event": "stopped"}


def test_a_taken_port_is_one_line(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = command(folder, "run", port=taken.getsockname()[1])
        out, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert out == ""
    assert re.fullmatch(r"stint: port \d+ of 127\.0\.0\.1 is taken: .*\n", err)
    assert not (folder / "postgres").exists()


def test_verify_beside_a_running_service_does_not_stop_its_database(folder: Path) -> None:
    service = command(folder, "serve")
    lines = lines_until(service, "Ctrl-C")
    url = lines[0].rpartition(" ")[2]
    beside = command(folder, "verify", "--data", str(folder), "--json")
    out, err = beside.communicate(timeout=60)
    [keys] = json.loads(out)  # no population yet, but the log of the first key
    assert (beside.returncode, keys["log"], keys["ok"]) == (0, "keys", True), err
    assert httpx.get(f"{url}/readyz").json() == {"status": "ready"}
    stop(service)
    assert service.returncode == 0
    assert not servers_of(folder)


def test_whoever_leaves_last_stops_the_database(folder: Path) -> None:
    """Here a worker that was there before the service, and goes before it."""
    made, _ = (process := command(folder, "migrate")).communicate(timeout=60)
    assert (process.returncode, made) == (0, "The database is up to date.\n")
    with (folder / "said").open("w") as said:
        worker = command(folder, "worker", errors=said)
        until = time.monotonic() + 60
        while "Waiting for jobs" not in (folder / "said").read_text():
            assert worker.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        service = command(folder, "run", "--no-demo", "--no-worker")
        try:
            url = lines_until(service, "Ctrl-C")[0].rpartition(" ")[2]
            stop(worker, signal.SIGTERM)
            assert worker.returncode == 0
            assert httpx.get(f"{url}/readyz").json() == {"status": "ready"}
        finally:
            stop(service)
    assert service.returncode == 0
    assert not servers_of(folder)


_COME_AND_GO = """
import sys, time
from pathlib import Path
import psycopg
from service.store.embedded import embedded
for seconds in map(float, sys.argv[2:]):
    with embedded(Path(sys.argv[1])) as url:
        with psycopg.connect(url) as connection:
            time.sleep(seconds)
            connection.execute("SELECT 1")
"""


def test_who_comes_while_the_database_is_stopped_has_it_started_again(folder: Path) -> None:
    """Several come and go, now alone and now together: each has a database while it is there, and none is left."""
    stays = (["0", "0", "0.3"], ["0", "0.2", "0"], ["0.1", "0", "0"])
    words = [sys.executable, "-c", _COME_AND_GO, str(folder / "postgres")]
    processes = [subprocess.Popen([*words, *seconds], stderr=subprocess.PIPE, text=True) for seconds in stays]
    said = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], said
    assert not servers_of(folder)


def test_a_database_that_nobody_shares_is_not_waited_for_for_ever(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a process of an earlier version holds it."""
    monkeypatch.setattr(embedded_module, "_PATIENCE_SECONDS", 0.2)
    folder.mkdir(exist_ok=True)
    with (folder / "postgres.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(subprocess.SubprocessError, match="does not let go"), embedded(folder / "postgres"):
            pass
    assert not (folder / "postgres" / "PG_VERSION").exists()


def test_an_unreachable_database_is_one_line(folder: Path) -> None:
    process = command(folder, "run", variables={"DATABASE_URL": "postgresql://127.0.0.1:1/none"})
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert re.fullmatch(r"stint: the database cannot be used: .*\n", err)
