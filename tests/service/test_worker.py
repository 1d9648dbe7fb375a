"""Workers as real processes on a real PostgreSQL: what they commit, and what is left of those that are killed."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest
from numpy.typing import NDArray
from safetensors import safe_open

from service.client import Denied, Stint, dp_sgd
from service.staging import Staging
from service.sweeper import rescue
from tests.service import work
from tests.service.harness import Caller, Local, local
from tests.service.terminal import command, lines_until, short_folder, stop
from tests.service.work import attempts, data, ended, job, statuses, until, worker

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def house() -> Iterator[Local]:
    """A service."""
    with local(lease_seconds=20.0, attempts=2) as running:
        yield running


@pytest.fixture(scope="module")
def alone() -> Iterator[Local]:
    """A service with a short lease, where nobody makes up for a dead worker but whom a test sends."""
    with local(lease_seconds=3.0, pause_seconds=5.0, attempts=2) as running:
        yield running


@pytest.fixture(scope="module")
def hand(house: Local) -> Iterator[subprocess.Popen[str]]:
    """A worker on the default queue for all tests that do not kill theirs."""
    process = worker(house.parts)
    yield process
    process.terminate()
    assert process.wait(work.SECONDS) == 0
    process.communicate()


@pytest.fixture
def call(house: Local) -> Caller:
    return house.call


@pytest.fixture
def uri(house: Local) -> Path:
    return data(house.parts)


@pytest.fixture
def population(call: Caller) -> str:
    return people(call)


def people(call: Caller) -> str:
    return call.population(count=60, epsilon=2.0, delta=1e-5)


def artifact(house: Local, found: dict[str, Any]) -> Path:
    path: Path = house.parts.settings.artifacts_folder / found["release"] / "model.safetensors"
    assert found["artifact"]["uri"] == f"stint:artifacts/{found['release']}/model.safetensors"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == found["artifact"]["sha256"]
    return path


def everything_shown(call: Caller, population: str, identity: str) -> str:
    """All that the service says of a job, its release and its population."""
    found = call.ok("GET", f"/v1/jobs/{identity}")
    paths = [
        f"/v1/jobs/{identity}", f"/v1/jobs/{identity}/logs", "/v1/jobs", f"/v1/releases/{found['release']}",
        f"/v1/populations/{population}", f"/v1/populations/{population}/ledger", "/metrics",
        f"/v1/populations/{population}/ledger/export",
    ]  # fmt: skip
    return "\n".join(call("GET", path).text for path in paths)


def releases(call: Caller, population: str) -> list[str]:
    """The entries of a ledger that are of releases."""
    kinds: list[str] = [each["body"]["kind"] for each in call.entries(population)]
    return [kind for kind in kinds if kind.startswith("release.")]


def staged(house: Local) -> list[str]:
    return sorted(path.name for path in (house.parts.settings.artifacts_folder / ".staged").iterdir())


def reached(folder: Path) -> None:
    """Wait until a worker is where a test wants it."""
    ends = time.monotonic() + work.SECONDS
    while not (folder / "reached").exists():
        assert time.monotonic() < ends, folder.name
        time.sleep(0.01)


def pass_time(house: Local, wanted: Callable[[], bool]) -> None:
    """Rescue what fell silent, as the sweeper does, until something is so."""
    ends = time.monotonic() + work.SECONDS
    while not wanted():
        rescue(house.parts)
        assert time.monotonic() < ends
        time.sleep(0.05)


@pytest.mark.usefixtures("hand")
def test_a_job_is_committed_with_its_artifact_and_charged_once(
    house: Local, call: Caller, population: str, uri: Path
) -> None:
    made = call.ok("POST", "/v1/jobs", job(population, uri))
    held = call.reading(population, 0)
    assert (held["spent"], held["held"]) == (0.0, made["release"]["decision"]["epsilon"]["after"])
    found = until(call, made["id"], lambda now: now["status"] == "committed")
    assert found["progress"]["step"] == found["progress"]["steps"] == 4
    assert statuses(call, made["id"]) == [("queued", 0, None), ("running", 1, None), ("committed", 1, None)]
    with safe_open(artifact(house, found), framework="np") as file:
        assert file.get_tensor("1.weight").shape == (2, 4)
        assert json.loads(file.metadata()["stint"])["labels"] == ["0", "1"]
    spent = call.reading(population, 59)
    assert spent["spent"] == pytest.approx(held["held"])
    assert spent["held"] == 0.0
    release = call.ok("GET", f"/v1/releases/{found['release']}")
    assert release["status"] == "committed"
    assert release["artifact"] == found["artifact"]
    assert release["declared"]["job"]["id"] == made["id"]
    assert release["declared"]["label_space"]["source"] == "prior"
    card = json.loads((artifact(house, found).with_name("card.json")).read_text())
    assert card["artifact"]["sha256"] == found["artifact"]["sha256"]
    assert 0 < card["guarantee"]["epsilon_upper"] <= found["epsilon"]["after"] + 1e-6
    assert str(work.PRIVATE) not in everything_shown(call, population, made["id"])
    call.verify(population)

    # A second run starts from what the first one released, with rows that are addressed by key.
    keyed = call.population(epsilon=2.0, delta=1e-5)
    call.ok("POST", f"/v1/populations/{keyed}/datapoints", {"keys": [f"person-{n}" for n in range(60)]})
    again = job(keyed, uri)
    again["recipe"]["start"] = found["release"]
    again["data"] |= {"address": "key", "unit": "key"}
    second = until(
        call, call.ok("POST", "/v1/jobs", again)["id"], lambda now: now["status"] not in {"queued", "running"}
    )
    assert (second["status"], second["error"]) == ("committed", None)
    artifact(house, second)
    assert staged(house) == []


RADIUS, MODULUS, ITERATIONS = 1.0, 0.5, 30


def regression(x: NDArray[np.float64], y: NDArray[np.int64], *, slots: int) -> NDArray[np.float64]:
    """What `output-perturbation` does before its noise, once more: two labels, no bias, rows of norm 1."""
    weights = np.zeros((2, x.shape[1]))
    for _ in range(ITERATIONS):
        scores = np.exp(x @ weights.T)
        slopes = scores / scores.sum(axis=1, keepdims=True) - np.eye(2)[y]
        weights -= 2 / (RADIUS**2 / 2 + 2 * MODULUS) * (slopes.T @ x / slots + MODULUS * weights)
    return weights


@pytest.mark.usefixtures("hand")
def test_whoever_was_trimmed_keeps_a_slot_and_is_neither_read_nor_charged(house: Local, call: Caller) -> None:
    """Half of the scope has nothing left. Noise is small beside what those rows, or missing slots, would change."""
    count, gone, noise = 10_000, 5_000, 4.0
    population = call.population(count=count, epsilon=2.0, delta=1e-5, on_exhausted="trim")
    before = call.propose(population, ({"ranges": [[0, gone]]}, {"kind": "pure_dp", "epsilon": 1.9}))
    call.ok("POST", f"/v1/releases/{before['id']}/commit", {"artifact": {"sha256": "0" * 64}})
    spent = call.reading(population, 0)["spent"]
    # Those who are gone point one way, and those who are left another: what a weight learned tells from whom.
    x, y = np.zeros((count, 2), dtype=np.float32), np.arange(count) % 4 // 3
    x[:gone, 0] = x[gone:, 1] = 1.0
    uri = data(house.parts).with_name("trimmed.npz")
    np.savez(uri, x=x, y=y)
    new = job(
        population,
        uri,
        scope={"ranges": [[0, count]]},
        mechanism={
            "name": "output-perturbation", "parameters": {"noise": "gaussian", "noise_multiplier": noise},
        },
        recipe={
            "shape": [2], "radius": RADIUS, "modulus": MODULUS, "iterations": ITERATIONS, "bias": False,
            "label_source": "prior", "label_names": ["0", "1"],
        },
    )  # fmt: skip
    made = call.ok("POST", "/v1/jobs", new)
    assert made["release"]["decision"]["trimmed"] == gone
    found = until(call, made["id"], lambda now: now["status"] not in {"queued", "running"})
    assert (found["status"], found["error"]) == ("committed", None)
    with safe_open(artifact(house, found), framework="np") as file:
        weights = file.get_tensor("weight")
    # √2 R/(m n) is what one datapoint contributes at most; eight deviations are never passed.
    room = 8 * noise * 2**0.5 * RADIUS / (MODULUS * count)
    own, labels = x[gone:].astype(np.float64), y[gone:]
    assert np.abs(weights - regression(own, labels, slots=count)).max() < room
    assert np.abs(weights - regression(own, labels, slots=count - gone)).max() > 2 * room
    assert np.abs(weights - regression(x.astype(np.float64), y, slots=count)).max() > 2 * room
    for ordinal in (0, gone - 1, gone, count - 1):
        shown = call.ok("GET", f"/v1/populations/{population}/datapoints/{ordinal}")
        assert [each["release"] for each in shown["charges"]] == [before["id"] if ordinal < gone else found["release"]]
    assert call.reading(population, gone - 1)["spent"] == spent
    assert 0 < call.reading(population, gone)["spent"] <= 2.0
    call.verify(population)


@pytest.mark.usefixtures("hand")
def test_data_that_cannot_be_had_is_tried_again_and_then_voided(house: Local, call: Caller, population: str) -> None:
    """Here: it lies outside of what the worker may read."""
    new, error = job(population, "/etc/hostname.npz"), "data.unknown"
    made = call.ok("POST", "/v1/jobs", new)
    found = until(call, made["id"], lambda now: now["status"] == "failed")
    assert (found["error"], found["attempt"], found["artifact"]) == (error, 2, None)
    assert statuses(call, made["id"]) == [
        ("queued", 0, None), ("running", 1, None), ("queued", 1, error), ("running", 2, None), ("failed", 2, error),
    ]  # fmt: skip
    assert call.ok("GET", f"/v1/releases/{found['release']}")["status"] == "voided"
    assert call.reading(population, 0)["held"] == 0.0
    assert staged(house) == []
    call.verify(population)


def test_another_attempt_has_a_delay_in_which_data_may_come_back(
    house: Local, call: Caller, population: str, uri: Path
) -> None:
    """Also with `--once`, which ends when nothing is left to do; and a file is moved into its place meanwhile."""
    place = uri.with_name("later.npz")
    made = call.ok("POST", "/v1/jobs", job(population, place, queue="later"))
    process = worker(house.parts, "--queue", "later", "--once", STINT_RETRY_SECONDS="3")
    try:
        until(call, made["id"], lambda now: now["error"] == "data.missing")
        work.rows(uri.with_name("moving.npz")).rename(place)
    finally:
        said = ended(process)
    assert statuses(call, made["id"]) == [
        ("queued", 0, None), ("running", 1, None), ("queued", 1, "data.missing"), ("running", 2, None),
        ("committed", 2, None),
    ], said  # fmt: skip
    lines = call.ok("GET", f"/v1/jobs/{made['id']}/logs")["lines"]
    failed, again = (datetime.fromisoformat(line["at"]) for line in lines[2:4])
    assert again - failed >= timedelta(seconds=3)
    call.verify(population)


@pytest.mark.usefixtures("hand")
def test_what_is_committed_is_there_for_the_next_job_though_its_worker_died(
    house: Local, call: Caller, population: str, uri: Path
) -> None:
    """Between its commit and the rename: another worker, which tidied up a while ago, publishes it on the spot."""
    first = call.ok("POST", "/v1/jobs", job(population, uri, queue="dies"))
    process = worker(house.parts, "--queue", "dies", planted="die=publish")
    ended(process)
    assert process.returncode == -signal.SIGKILL
    new = job(people(call), uri)
    new["recipe"]["start"] = first["release"]["id"]
    second = call.ok("POST", "/v1/jobs", new)
    found = until(call, second["id"], lambda now: now["status"] not in {"queued", "running"})
    assert (found["status"], found["attempt"], found["error"]) == ("committed", 1, None)
    artifact(house, call.ok("GET", f"/v1/jobs/{first['id']}"))
    assert staged(house) == []


@pytest.mark.usefixtures("hand")
def test_how_a_job_ends_says_nothing_about_a_label(house: Local, call: Caller, population: str) -> None:
    """Ordinal 17 alone has this label. A network that does not fit its row is refused with and without it, at once."""
    path = house.parts.settings.data / "inputs" / "rare.npz"
    np.savez(path, x=np.ones((60, 4), dtype=np.float32), y=np.where(np.arange(60) == 17, "rare", "common"))
    recipe = {"model": "linear", "shape": [3], "learning_rate": 0.1, "label_source": "prior", "label_names": ["rare"]}
    for scope in ([0, 30], [30, 60], [8, 18], [7, 17]):
        made = call.ok("POST", "/v1/jobs", job(population, path, recipe=recipe, scope={"ranges": [scope]}))
        found = until(call, made["id"], lambda now: now["status"] not in {"queued", "running"})
        assert (found["status"], found["error"], found["attempt"]) == ("failed", "data.shape", 1)
        assert call.ok("GET", f"/v1/releases/{found['release']}")["status"] == "voided"
    call.verify(population)


@pytest.mark.usefixtures("hand")
def test_a_worker_reads_neither_what_others_claim_nor_a_file_of_other_people(
    house: Local, call: Caller, population: str
) -> None:
    """Not by a link, which only a worker can see, and not if its ordinals are beyond the population."""
    folder = house.parts.settings.data / "inputs"
    for name in ("theirs", "mine"):
        (folder / name).mkdir()
    work.rows(folder / "theirs" / "rows.npz")
    (folder / "mine" / "rows.npz").symlink_to(folder / "theirs" / "rows.npz")
    x = np.ones((60, 4), dtype=np.float32)
    np.savez(folder / "far.npz", x=x, y=np.zeros(60, dtype=np.int64), whose=np.arange(60) + 1)
    owner = people(call)
    for name, whose in ((owner, "theirs"), (population, "mine")):
        change = {"reason": "whose", "data": [{"uri": f"{folder / whose}/", "address": "row"}]}
        call.ok("PUT", f"/v1/populations/{name}/policy", change)
    far = {"uri": str(folder / "far.npz"), "x": "x", "y": "y", "address": "ordinal", "unit": "whose"}
    for name, new, ends in (
        (owner, job(owner, folder / "theirs" / "rows.npz"), ("committed", None)),
        (population, job(population, folder / "mine" / "rows.npz"), ("failed", "data.unknown")),
        (stranger := people(call), job(stranger, "") | {"data": far}, ("failed", "data.mismatch")),
    ):
        made = call.ok("POST", "/v1/jobs", new)
        found = until(call, made["id"], lambda now: now["status"] not in {"queued", "running"})
        assert (found["status"], found["error"]) == ends
        assert (call.reading(name, 0)["spent"] > 0) == (ends[0] == "committed")
        call.verify(name)


def test_what_a_mechanism_says_when_it_fails_stays_on_the_workers_side(
    house: Local, call: Caller, population: str, uri: Path
) -> None:
    made = call.ok("POST", "/v1/jobs", job(population, uri, queue="crash"))
    said = ended(worker(house.parts, "--queue", "crash", "--once", planted="crash"))
    found = call.ok("GET", f"/v1/jobs/{made['id']}")
    assert (found["status"], found["error"]) == ("failed", "internal")
    assert str(work.PRIVATE) not in everything_shown(call, population, made["id"]) + said
    with house.parts.database.engine.connect() as connection:
        for table in ("job", "job_line", "procrastinate_jobs", "procrastinate_events"):
            rows = connection.exec_driver_sql(f"SELECT * FROM {table}").all()
            assert str(work.PRIVATE) not in str(rows)
    log = house.parts.settings.artifacts_folder / ".logs" / f"{made['id']}.1"
    assert str(work.PRIVATE) in log.read_text()  # or the test would prove nothing
    assert log.stat().st_mode & 0o077 == 0
    assert log.parent.stat().st_mode & 0o077 == 0


def test_repeatable_noise_is_never_committed(house: Local, call: Caller, population: str, uri: Path) -> None:
    made = call.ok("POST", "/v1/jobs", job(population, uri, queue="seed"))
    said = ended(worker(house.parts, "--queue", "seed", "--once", "--seed", "1"))
    assert "unreleasable" in said
    found = call.ok("GET", f"/v1/jobs/{made['id']}")
    assert (found["status"], found["error"], found["attempt"]) == ("failed", "unreleasable", 1)
    assert call.ok("GET", f"/v1/releases/{found['release']}")["status"] == "voided"
    assert not (house.parts.settings.artifacts_folder / found["release"]).exists()


def test_a_running_job_is_cancelled_and_its_worker_goes_on(alone: Local, tmp_path: Path) -> None:
    house, call, population, uri = alone, alone.call, people(alone.call), data(alone.parts)
    made = call.ok("POST", "/v1/jobs", job(population, uri, queue="cancel"))
    process = worker(house.parts, "--queue", "cancel", planted=f"gate={tmp_path / 'gate'}")
    try:
        running = until(call, made["id"], lambda now: now["progress"]["step"] == 1)
        assert running["status"] == "running"
        child = attempts(process)
        assert len(child) == 1
        cancelled = call.ok("POST", f"/v1/jobs/{made['id']}/cancel")
        assert cancelled["status"] == "cancelled"
        assert call.reading(population, 0)["held"] == 0.0
        psutil.wait_procs(child, timeout=work.SECONDS)
        assert not child[0].is_running()
        # It takes the next one, and gives it back when it is told to stop: that attempt does not count.
        following = call.ok("POST", "/v1/jobs", job(population, uri, queue="cancel"))
        until(call, following["id"], lambda now: now["progress"]["step"] == 1)
    finally:
        process.terminate()
        said = ended(process)
    assert process.returncode == 0, said
    back = call.ok("GET", f"/v1/jobs/{following['id']}")
    assert (back["status"], back["attempt"], back["attempts"]) == ("queued", 1, 3)
    assert staged(house) == []
    call.ok("POST", f"/v1/jobs/{following['id']}/cancel")
    call.verify(population)


@pytest.mark.parametrize("where", ["begun", "checked"])
def test_a_worker_that_is_told_to_stop_leaves_nothing_half_done(alone: Local, where: str, tmp_path: Path) -> None:
    """What just began waits for another worker and does not count; what is made leaves, since nothing else is to do."""
    call, population, uri = alone.call, people(alone.call), data(alone.parts)
    made = call.ok("POST", "/v1/jobs", job(population, uri, queue=where))
    process = worker(alone.parts, "--queue", where, planted=f"{where}={tmp_path}")
    try:
        reached(tmp_path)
        process.terminate()
        time.sleep(0.5)  # in which it would have gone, were nothing to be waited for
        assert process.poll() is None
    finally:
        (tmp_path / "go").touch()
        said = ended(process)
    assert process.returncode == 0, said
    found = call.ok("GET", f"/v1/jobs/{made['id']}")
    if where == "begun":
        assert (found["status"], found["attempt"], found["attempts"]) == ("queued", 1, 3)
        assert statuses(call, made["id"]) == [("queued", 0, None), ("running", 1, None), ("queued", 1, None)]
        call.ok("POST", f"/v1/jobs/{made['id']}/cancel")
    else:
        assert (found["status"], found["attempt"]) == ("committed", 1)
        artifact(alone, found)
    assert staged(alone) == []
    call.verify(population)


@pytest.mark.parametrize("where", ["prepared", "checked"])
def test_the_lease_is_kept_while_an_attempt_is_prepared_and_while_what_it_made_is_checked(
    alone: Local, where: str, tmp_path: Path
) -> None:
    """However long that takes: here until after the lease with which it began."""
    call, population, uri = alone.call, people(alone.call), data(alone.parts)
    made = call.ok("POST", "/v1/jobs", job(population, uri, queue=f"long-{where}"))
    words, seconds = ("--queue", f"long-{where}", "--once"), 6
    process = worker(alone.parts, *words, planted=f"{where}={tmp_path}", STINT_LEASE_SECONDS=str(seconds))
    try:
        reached(tmp_path)
        first = lease(alone, made["id"])
        pass_time(alone, lambda: lease(alone, made["id"]) > first + timedelta(seconds=seconds))
    finally:
        (tmp_path / "go").touch()
        said = ended(process)
    assert statuses(call, made["id"]) == [("queued", 0, None), ("running", 1, None), ("committed", 1, None)], said
    artifact(alone, call.ok("GET", f"/v1/jobs/{made['id']}"))
    assert staged(alone) == []
    call.verify(population)


def lease(house: Local, identity: str) -> datetime:
    """Until when nobody else takes a job that runs."""
    with house.parts.database.transaction() as connection:
        found = connection.exec_driver_sql("SELECT status, lease_until FROM job WHERE id = %s", (identity,)).one()
    assert found.status == "running"
    until: datetime = found.lease_until
    return until


def test_what_is_cancelled_while_it_is_checked_ends_without_a_fault(alone: Local, tmp_path: Path) -> None:
    """Another worker has tidied away the file that is looked at."""
    call, population, uri = alone.call, people(alone.call), data(alone.parts)
    made = call.ok("POST", "/v1/jobs", job(population, uri, queue="late"))
    process = worker(alone.parts, "--queue", "late", "--once", planted=f"checked={tmp_path}")
    try:
        reached(tmp_path)
        call.ok("POST", f"/v1/jobs/{made['id']}/cancel")
        Staging(alone.parts.settings.artifacts_folder).tidy(alone.parts.database)
        assert staged(alone) == []
    finally:
        (tmp_path / "go").touch()
        said = ended(process)
    assert process.returncode == 0, said
    assert "not the current one" in said
    assert "Traceback" not in said
    assert [status for status, *_ in statuses(call, made["id"])] == ["queued", "running", "cancelled"]
    call.verify(population)


def test_on_a_terminal_a_bar_shows_steps_epsilon_and_the_time_left(alone: Local, tmp_path: Path) -> None:
    """On a real one; elsewhere there are lines and nothing is written over."""
    call, population, uri = alone.call, people(alone.call), data(alone.parts)
    made = call.ok("POST", "/v1/jobs", job(population, uri, queue="bar"))
    ours, theirs = pty.openpty()
    process = worker(alone.parts, "--queue", "bar", "--once", planted=f"gate={tmp_path / 'gate'}", errors=theirs)
    os.close(theirs)
    try:
        shown = seen(ours, "left")
        (tmp_path / "gate").touch()
        shown += seen(ours, "committed")
        assert process.wait(work.SECONDS) == 0
    finally:
        process.kill()
        os.close(ours)
    epsilon = call.ok("GET", f"/v1/jobs/{made['id']}")["epsilon"]["after"]
    found = re.findall(r"\r\x1b\[K\S+ \[([# ]{20})\] 1/4, ε ≤ (\S+) in all, (\d+) s left", shown)
    assert found, shown
    bar, said, _ = found[-1]
    assert bar == "#####" + " " * 15
    assert float(said) == pytest.approx(epsilon, rel=1e-3)
    assert "\r\x1b[K" in shown[shown.index("s left") :]  # cleared before the next line
    second = call.ok("POST", "/v1/jobs", job(population, uri, queue="bar"))
    quiet = ended(worker(alone.parts, "--queue", "bar", "--once"))
    assert call.ok("GET", f"/v1/jobs/{second['id']}")["status"] == "committed"
    assert "\x1b" not in quiet
    assert "left" not in quiet


def seen(terminal: int, wanted: str) -> str:
    """What is written to a terminal, until this is."""
    text, ends = b"", time.monotonic() + work.SECONDS
    while wanted.encode() not in text:
        assert time.monotonic() < ends, text
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                text += os.read(terminal, 4096)
            except OSError:  # nobody holds its other end
                raise AssertionError(text) from None
    return text.decode()


def test_a_worker_that_is_killed_at_any_moment_leaves_one_commit_or_none(alone: Local, tmp_path: Path) -> None:
    house, call, population, uri = alone, alone.call, people(alone.call), data(alone.parts)
    made = call.ok("POST", "/v1/jobs", job(population, uri, queue="kill"))
    identity = made["id"]
    before = call.reading(population, 0)["held"]

    first = worker(house.parts, "--queue", "kill", planted=f"gate={tmp_path / 'gate'}")
    until(call, identity, lambda now: now["progress"]["step"] == 1)
    children = psutil.Process(first.pid).children(recursive=True)
    assert len(children) == 2  # the attempt, and what it was forked from
    first.kill()
    ended(first)
    _, alive = psutil.wait_procs(children, timeout=work.SECONDS)
    assert not alive  # nobody could commit what it makes
    pass_time(house, lambda: call.ok("GET", f"/v1/jobs/{identity}")["status"] == "queued")
    assert call.reading(population, 0) == pytest.approx({**call.reading(population, 0), "held": before, "spent": 0.0})

    second = worker(house.parts, "--queue", "kill", planted="die=commit")
    ended(second)
    assert second.returncode == -signal.SIGKILL
    assert staged(house) == [f"{identity}.2"]
    found = call.ok("GET", f"/v1/jobs/{identity}")
    assert (found["status"], found["attempt"]) == ("running", 2)
    assert call.reading(population, 0)["spent"] == 0.0
    pass_time(house, lambda: call.ok("GET", f"/v1/jobs/{identity}")["status"] != "running")
    failed = call.ok("GET", f"/v1/jobs/{identity}")  # of two attempts none is left
    assert (failed["status"], failed["error"]) == ("failed", "worker.lost")
    assert call.reading(population, 0)["held"] == 0.0

    after = call.ok("POST", "/v1/jobs", job(population, uri, queue="kill"))["id"]
    third = worker(house.parts, "--queue", "kill", planted="die=publish")
    ended(third)
    assert third.returncode == -signal.SIGKILL
    found = call.ok("GET", f"/v1/jobs/{after}")
    assert found["status"] == "committed"
    assert not (house.parts.settings.artifacts_folder / found["release"]).exists()
    ended(worker(house.parts, "--queue", "kill", "--once"))  # makes up for it before anything else
    artifact(house, found)
    assert staged(house) == []
    assert call.reading(population, 0)["spent"] == pytest.approx(before)
    assert releases(call, population) == ["release.held", "release.voided", "release.held", "release.committed"]
    call.verify(population)


STAGED = ["card.json", "card.md", "model.safetensors"]
#: What is staged when a worker is killed: after it began, while its attempt stages, before it checks what was made, and
#: in the transaction that commits, with everything written.
MOMENTS = {"begun": [], "staging": ["model.safetensors"], "checked": STAGED, "written": STAGED}


def test_nothing_is_seen_of_attempts_that_are_killed_until_one_is_not(alone: Local, tmp_path: Path) -> None:
    """One job that dies everywhere, with as many attempts as that takes."""
    house, call, population, uri = alone, alone.call, people(alone.call), data(alone.parts)
    made = call.ok("POST", "/v1/jobs", job(population, uri, queue="moments"))
    identity, release = made["id"], made["release"]["id"]
    by_decree(house, "UPDATE job SET attempts = 9 WHERE id = %s", identity)
    before, lost = call.reading(population, 0)["held"], set[str]()

    for moment in MOMENTS:
        (tmp_path / moment).mkdir()
        planted = f"{moment}={tmp_path / moment}"
        process = worker(house.parts, "--queue", "moments", planted=planted, STINT_LEASE_SECONDS="60")
        try:
            lost |= digests(house, identity, moment, tmp_path / moment)
            if moment == "staging":  # the attempt alone is killed first, and its worker has another run
                [child] = attempts(process)
                (tmp_path / moment / "reached").unlink()
                child.kill()
                lost |= digests(house, identity, moment, tmp_path / moment)
            children = psutil.Process(process.pid).children(recursive=True)
        finally:
            process.kill()
            said = ended(process)
        assert process.returncode == -signal.SIGKILL, said
        assert not psutil.wait_procs(children, timeout=work.SECONDS)[1], moment
        by_decree(house, "UPDATE job SET lease_until = now() WHERE id = %s", identity)
        pass_time(house, lambda: call.ok("GET", f"/v1/jobs/{identity}")["status"] == "queued")
        assert call("GET", f"/v1/releases/{release}/artifact").status_code == 409, moment
        assert not (house.parts.settings.artifacts_folder / release).exists(), moment
        assert releases(call, population) == ["release.held"], moment
        reading = call.reading(population, 0)
        assert (reading["spent"], reading["held"]) == (0.0, before), moment
        call.verify(population)

    ended(worker(house.parts, "--queue", "moments", "--once"))
    errors = ["worker.lost", "killed", "worker.lost", "worker.lost", "worker.lost"]
    ends = [("queued", 0, None), *(("queued", number, error) for number, error in enumerate(errors, 1))]
    assert statuses(call, identity) == [
        *(line for end in ends for line in (end, ("running", end[1] + 1, None))), ("committed", 6, None),
    ]  # fmt: skip
    found = call.ok("GET", f"/v1/jobs/{identity}")
    artifact(house, found)
    shown = hashlib.sha256(call("GET", f"/v1/releases/{release}/artifact").content).hexdigest()
    assert shown == found["artifact"]["sha256"]
    assert len(lost) == 4  # all but the first had a model, and no two the same
    assert shown not in lost
    assert staged(house) == []
    assert releases(call, population) == ["release.held", "release.committed"]
    reading = call.reading(population, 0)
    assert (reading["spent"], reading["held"]) == (pytest.approx(before), 0.0)
    call.verify(population)


def by_decree(house: Local, statement: str, identity: str) -> None:
    """Change the row of a job, so that nobody waits for a lease or needs another service."""
    with house.parts.database.transaction() as connection:
        connection.exec_driver_sql(statement, (identity,))


def digests(house: Local, identity: str, moment: str, folder: Path) -> set[str]:
    """Of the model that the current attempt has staged, if it has one, once its worker has reached a moment."""
    reached(folder)
    attempt = house.call.ok("GET", f"/v1/jobs/{identity}")["attempt"]
    mine = house.parts.settings.artifacts_folder / ".staged" / f"{identity}.{attempt}"
    assert sorted(path.name for path in mine.glob("*")) == MOMENTS[moment]
    return {hashlib.sha256(path.read_bytes()).hexdigest() for path in mine.glob("model.safetensors")}


@pytest.mark.parametrize("where", ["commit", "decision"])
def test_a_zombie_can_neither_commit_nor_publish(alone: Local, where: str) -> None:
    """Stopped before its commit, or within it: then the database takes from it the lock that all others wait for."""
    house, call, population, uri = alone, alone.call, people(alone.call), data(alone.parts)
    made = call.ok("POST", "/v1/jobs", job(population, uri, queue="zombie"))
    identity = made["id"]
    zombie = worker(house.parts, "--queue", "zombie", planted=f"pause={where}")
    try:
        ends = time.monotonic() + work.SECONDS
        while psutil.Process(zombie.pid).status() != psutil.STATUS_STOPPED:
            assert time.monotonic() < ends
            time.sleep(0.02)
        mine = house.parts.settings.artifacts_folder / ".staged" / f"{identity}.1" / "model.safetensors"
        digest = hashlib.sha256(mine.read_bytes()).hexdigest()
        pass_time(house, lambda: call.ok("GET", f"/v1/jobs/{identity}")["status"] == "queued")
        ended(worker(house.parts, "--queue", "zombie", "--once"))
        found = call.ok("GET", f"/v1/jobs/{identity}")
        assert (found["status"], found["attempt"]) == ("committed", 2)
        assert found["artifact"]["sha256"] != digest
        zombie.send_signal(signal.SIGCONT)
        assert zombie.stderr is not None
        assert any("not the current one" in line for line in zombie.stderr)  # it asks again, and then knows
        zombie.terminate()
        ended(zombie)
    finally:
        zombie.kill()
        zombie.communicate()
    assert zombie.returncode == 0
    assert call.ok("GET", f"/v1/jobs/{identity}")["artifact"] == found["artifact"]
    artifact(house, found)
    assert staged(house) == []
    assert releases(call, population) == ["release.held", "release.committed"]
    call.verify(population)


@pytest.mark.usefixtures("hand")
def test_two_workers_on_one_queue_run_every_job_once(house: Local, call: Caller, population: str, uri: Path) -> None:
    other = worker(house.parts)
    assert other.stderr is not None
    assert "Waiting for jobs" in other.stderr.readline()  # or the first would have done it all
    try:
        made = [call.ok("POST", "/v1/jobs", job(population, uri))["id"] for _ in range(6)]
        found = [until(call, each, lambda now: now["status"] not in {"queued", "running"}) for each in made]
    finally:
        other.terminate()
        said = ended(other)
    assert other.returncode == 0, said
    assert [(each["status"], each["attempt"]) for each in found] == [("committed", 1)] * 6
    for each in made:
        assert statuses(call, each) == [("queued", 0, None), ("running", 1, None), ("committed", 1, None)]
    assert len({each["worker"] for each in found}) <= 2
    call.verify(population)


def test_stint_run_has_a_worker_that_ends_with_it() -> None:
    """From the first start to an artifact, by the client and the command line; Ctrl-C leaves nothing."""
    with short_folder() as folder:
        (folder / "inputs").mkdir()
        uri = work.rows(folder / "inputs" / "rows.npz")
        process = command(folder, "run", "--no-demo", "--json")
        try:
            started = json.loads(lines_until(process, "started")[0])
            with Stint(started["url"], started["key"]) as stint:
                stint.create_population("clinic-a", unit="record", epsilon=2.0, delta=1e-5)
                stint.register_count("clinic-a", 60)
                seen = list[tuple[int, int]]()
                made = stint.submit(**job("clinic-a", uri))
                found = made.wait(seconds=work.SECONDS, progress=lambda *steps: seen.append(steps))
                assert (found["status"], made.status) == ("committed", "committed")
                assert seen
                assert [line["status"] for line in stint.job_lines(made.id)] == ["queued", "running", "committed"]
                with pytest.raises(Denied):
                    stint.submit(**job("clinic-a", uri, scope={"ranges": [[0, 60]]}, mechanism=dp_sgd(
                        noise_multiplier=0.1, sampling_probability=0.1, steps=4, clip_norm=1.0
                    )))  # fmt: skip
                waits = stint.submit(**job("clinic-a", uri, queue="nobody"))
                with pytest.raises(TimeoutError):
                    waits.wait(seconds=0.01)
                assert waits.cancel()["status"] == "cancelled"
                assert [each["id"] for each in stint.jobs(population="clinic-a", status="committed")] == [made.id]
            variables = {"STINT_URL": started["url"], "STINT_KEY": started["key"]}
            shown, _ = command(folder, "jobs", "show", made.id, variables=variables).communicate(timeout=work.SECONDS)
            assert f"{made.id}: committed, dp-sgd on clinic-a, step 4 of 4" in shown
            assert found["artifact"]["sha256"] in shown
            family = psutil.Process(process.pid).children(recursive=True)
            assert any("worker" in " ".join(each.cmdline()) for each in family)
        finally:
            _, err = stop(process)
        assert (folder / "artifacts" / made.release / "model.safetensors").exists()
        _, alive = psutil.wait_procs(family, timeout=work.SECONDS)
        assert not alive
        assert "Traceback" not in err
