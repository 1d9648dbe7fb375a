"""Running it: health, metrics, logs, expiry by itself, and a stop that finishes what was begun."""

from __future__ import annotations

import json
import logging
import math
import sys
import threading
from dataclasses import fields, replace
from datetime import datetime
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy.pool import QueuePool

from accountant.errors import InvalidInput
from service import app, logs, serve
from service.operations import datapoints, keys, releases
from service.settings import LEAST, MOST, Settings, from_environment
from service.store.database import Database
from service.store.writer import Operation, Writer
from service.sweeper import Sweeper
from tests.service.fixtures_behaviour import House, as_lines, pure, serving, short_folder, until

pytest_plugins = ("tests.service.fixtures_behaviour",)


def samples(house: House) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = house.as_(None).ask("GET", "/metrics", status=200).text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_alive_and_ready(house: House) -> None:
    assert house.as_(None).get("/healthz") == {"status": "ok"}
    assert house.as_(None).get("/readyz") == {"status": "ready"}


def test_without_a_database_it_is_alive_and_not_ready(house: House, caplog: pytest.LogCaptureFixture) -> None:
    gone = Database("postgresql://nobody@127.0.0.1:1/none", house.parts.settings)
    parts = replace(house.parts, database=gone)
    try:
        with serving(parts) as url, httpx.Client(base_url=url, timeout=60) as client:
            assert client.get("/healthz").status_code == 200
            unready = client.get("/readyz")
            assert unready.status_code == 503
            assert unready.headers["Retry-After"] == "1"
            assert unready.json()["type"] == "urn:stint:problem:unavailable"
            asked = client.get("/v1/checkpoints", headers={"Authorization": f"Bearer {house.secrets['officer']}"})
            assert asked.status_code == 503
            assert asked.json()["type"] == "urn:stint:problem:unavailable"
        until(lambda: any(line["message"] == "the database failed" for line in as_lines(caplog.records)))
    finally:
        gone.close()


def test_what_is_counted(house: House) -> None:
    name = house.population(10)
    before = samples(house)
    house.officer.commit(house.officer.hold(name, ({"ranges": [[0, 10]]}, pure(0.1))))
    house.officer.propose(name, ({"ranges": [[0, 10]]}, pure(9.0)))
    house.officer.ask("GET", "/nowhere")
    after = samples(house)

    def grown(sample: str, **labels: str) -> float:
        key = (sample, tuple(sorted(labels.items())))
        return after[key] - before.get(key, 0)

    assert grown("stint_entries_total", kind="release.held") == 1
    assert grown("stint_entries_total", kind="release.committed") == 1
    assert grown("stint_entries_total", kind="release.denied") == 1
    assert grown("stint_requests_total", method="POST", route="/v1/releases", status="201") == 2
    assert grown("stint_requests_total", method="GET", route="none", status="404") == 1
    assert grown("stint_request_seconds_count", route="/v1/releases") == 2
    assert after[("stint_requests_in_flight", ())] == 1
    names = {name for name, _ in after}
    assert {"stint_batch_operations_count", "stint_decisions_waiting", "stint_sweeps_total"} <= names
    text = house.as_(None).ask("GET", "/metrics").text
    assert name not in text, "a label never says whose"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.INFO)
    return lambda: as_lines([record for record in caplog.records if record.name.startswith("service")])


def test_logs_are_json_with_request_ids_and_without_bodies(house: House, lines: Any) -> None:
    name = house.population(10)
    house.officer.ask("GET", f"/v1/populations/{name}", headers={"X-Request-Id": "trace-42"})
    house.officer.ask("GET", f"/v1/populations/{name}/datapoints/3", headers={"X-Request-Id": "trace-43"})
    until(lambda: {"trace-42", "trace-43"} <= {line.get("request_id") for line in lines()})
    one, other = (next(line for line in lines() if line.get("request_id") == f"trace-{n}") for n in (42, 43))
    assert (one["message"], one["method"], one["status"]) == ("answered", "GET", 200)
    assert one["route"] == "/v1/populations/{population}"
    assert one["actor"].startswith("key_")
    assert one["milliseconds"] > 0
    assert datetime.fromisoformat(one["at"]).tzinfo is not None
    assert other["route"].endswith("/datapoints/{ordinal}"), "which one was looked up is not for the log"


def test_a_log_line_is_one_line_whatever_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    kept, level, disabled = root.handlers[:], root.level, logging.getLogger("uvicorn.access").disabled
    try:
        root.handlers[:] = []
        logs.configure("INFO")
        try:
            raise ValueError("two\nlines")  # noqa: TRY301
        except ValueError:
            logging.getLogger("service").exception("a message\nwith ünïcode", extra={"fields": {"request_id": "r"}})
        [line] = capsys.readouterr().err.splitlines()
    finally:
        root.handlers[:] = kept
        root.setLevel(level)
        logging.getLogger("uvicorn.access").disabled = disabled
    found = json.loads(line)
    assert found["message"] == "a message\nwith ünïcode"
    assert (found["level"], found["request_id"]) == ("ERROR", "r")
    assert "ValueError: two\nlines" in found["exception"]


def test_the_sweeper_expires_and_signs_by_itself(house: House) -> None:
    name = house.population(10)
    held = house.officer.hold(name, ({"ranges": [[0, 10]]}, pure(0.1)), hold_seconds=1)
    signed = len(house.rows("checkpoint"))
    swift = replace(house.parts.settings, sweep_seconds=0.05, checkpoint_seconds=0.3)
    sweeper = Sweeper(replace(house.parts, settings=swift))
    try:
        until(lambda: house.officer.get(f"/v1/releases/{held}")["status"] == "expired")
        until(lambda: len(house.rows("checkpoint")) > signed)
        until(lambda: len(house.rows("cohort", name)) == 1)
    finally:
        sweeper.close()
    last = house.officer.get("/v1/checkpoints")["items"][-1]["number"]
    heads = house.officer.get(f"/v1/checkpoints/{last}")["heads"]
    assert {"population": name, "number": 4} in [{k: head[k] for k in ("population", "number")} for head in heads]
    assert house.auditor.post(f"/v1/populations/{name}/ledger/verify")["ok"]
    entry = house.officer.get(f"/v1/populations/{name}/ledger")["items"][-1]["body"]
    assert (entry["kind"], entry["actor"]) == ("release.expired", "sweeper")


def test_a_sweep_that_fails_is_repeated(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    name = house.population(10)
    held = house.officer.hold(name, ({"ranges": [[0, 10]]}, pure(0.1)), hold_seconds=1)
    failures = iter([RuntimeError("one"), RuntimeError("two")])
    expire = releases.expire

    def flaky(**given: Any) -> Any:
        for failure in failures:
            raise failure
        return expire(**given)

    monkeypatch.setattr(releases, "expire", flaky)
    sweeper = Sweeper(replace(house.parts, settings=replace(house.parts.settings, sweep_seconds=0.05)))
    try:
        until(lambda: house.officer.get(f"/v1/releases/{held}")["status"] == "expired")
    finally:
        sweeper.close()


def test_a_writer_that_stops_finishes_what_is_queued(house: House) -> None:
    names = [house.population() for _ in range(4)]
    writer = Writer(house.parts.database, house.parts.books, house.parts.settings, house.parts.metrics)
    futures = [
        writer.submit(Operation(population=name, actor="test", decide=datapoints.register_count(1)))
        for _ in range(50)
        for name in names
    ]
    writer.close()
    assert all(future.done() for future in futures)
    assert [house.officer.get(f"/v1/populations/{name}")["datapoints"] for name in names] == [50] * 4


def test_one_that_fails_takes_no_other_along(house: House) -> None:
    name = house.population()
    writer = Writer(house.parts.database, house.parts.books, house.parts.settings, house.parts.metrics)
    hold = threading.Event()

    def wait(*_: object) -> Any:
        hold.wait(10)
        raise RuntimeError("a fault")

    try:
        first = writer.submit(Operation(population=name, actor="test", decide=wait))
        good = [
            writer.submit(Operation(population=name, actor="test", decide=datapoints.register_count(2)))
            for _ in range(3)
        ]
        hold.set()
        with pytest.raises(RuntimeError, match="a fault"):
            first.result(10)
        assert [future.result(10).document["datapoints"] for future in good] == [2, 4, 6]
    finally:
        hold.set()
        writer.close()


@pytest.mark.slow
def test_a_service_starts_serves_and_stops_on_a_signal_with_all_in_order() -> None:
    """The whole of it in a process of its own: a first key once, SIGTERM, and a second start with the same ledger."""
    import re
    import signal
    import subprocess

    code = (
        "import sys; from pathlib import Path; from service.serve import serve; from service.settings import Settings\n"
        "def started(parts, url, first): print(url, first or 'none', flush=True)\n"
        "serve(Settings(data=Path(sys.argv[1]), port=0), started=started)"
    )
    with short_folder() as folder:
        secret, seen = "", []
        for turn in range(2):
            process = subprocess.Popen(
                [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            try:
                assert process.stdout is not None
                url, first = process.stdout.readline().split()
                if turn == 0:
                    secret = first
                assert (first == "none") is bool(turn), "the first key is printed once"
                with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {secret}"}, timeout=30) as client:
                    if turn == 0:
                        budget = {"epsilon": 1.0, "delta": 1e-6}
                        made = client.post("/v1/populations", json={"name": "p", "unit": "user", "budget": budget})
                        assert made.status_code == 201
                        assert client.post("/v1/populations/p/datapoints", json={"count": 7}).status_code == 201
                    seen.append(client.get("/v1/populations/p").json())
                    if turn:
                        assert client.get("/v1/checkpoints").json()["items"], "a clean stop signs"
                        assert client.post("/v1/populations/p/ledger/verify").json()["ok"]
            finally:
                process.send_signal(signal.SIGTERM)
                _, errors = process.communicate(timeout=60)
            assert process.returncode in (0, -signal.SIGTERM)
            logged = [json.loads(line) for line in errors.splitlines() if line.startswith("{")]
            assert any(line["message"] == "answered" for line in logged)
            assert not re.search("Traceback", errors)
        assert seen[0] == seen[1]


def test_the_service_listens_before_it_promises() -> None:
    with serve._listening(Settings(port=0)) as listener:
        assert listener.getsockname()[1] > 0


def test_settings_are_read_and_checked() -> None:
    assert from_environment({}) == Settings()
    found = from_environment({"STINT_PORT": "9000", "STINT_SWEEP_SECONDS": "0.5", "DATABASE_URL": "postgresql://x"})
    assert (found.port, found.sweep_seconds, found.database_url) == (9000, 0.5, "postgresql://x")
    for variable, value in (
        ("STINT_PORT", "http"), ("STINT_PORT", "99999"), ("STINT_WRITERS", "0"), ("STINT_SWEEP_SECONDS", "nan"),
        ("STINT_STATEMENT_SECONDS", "inf"), ("STINT_STATEMENT_SECONDS", "nan"), ("STINT_HOLD_SECONDS", "999999999999"),
        ("STINT_LOG_LEVEL", "foo"), ("STINT_LOG_LEVEL", "info"), ("STINT_CONNECTIONS", "5"),
    ):  # fmt: skip
        with pytest.raises(InvalidInput) as refused:
            from_environment({variable: value})
        assert refused.value.argument == variable


def test_every_number_has_a_least_and_a_most_and_its_default_is_between() -> None:
    numbers = {each.name: each.default for each in fields(Settings) if isinstance(each.default, int | float)}
    assert numbers.keys() == LEAST.keys() == MOST.keys()
    assert all(LEAST[name] <= default <= MOST[name] < math.inf for name, default in numbers.items())


def test_the_most_connections_are_the_most() -> None:
    with pytest.raises(InvalidInput, match="STINT_CONNECTIONS: expected at least 18, 2 more than STINT_WRITERS"):
        from_environment({"STINT_WRITERS": "16"})
    found = from_environment({"STINT_WRITERS": "16", "STINT_CONNECTIONS": "18"})
    opened = Database("postgresql://nowhere", found)
    assert isinstance(opened.engine.pool, QueuePool)
    assert opened.engine.pool.size() == 18


def test_two_services_may_share_a_database(house: House) -> None:
    """Each keeps its books up to date with what the other decided."""
    settings = replace(house.parts.settings, database_url=house.database_url)
    name = house.population(10)
    with app.running(settings, sweeps=False) as parts, serving(parts) as url:
        from tests.service.fixtures_behaviour import Caller

        with httpx.Client(base_url=url, timeout=60) as client:
            other = Caller(client, house.secrets["officer"])
            first = house.officer.hold(name, ({"ranges": [[0, 10]]}, pure(0.6)))
            assert other.propose(name, ({"ranges": [[0, 10]]}, pure(0.6)))["status"] == "denied"
            other.commit(first)
            assert house.officer.reading(name, 0)["spent"] == pytest.approx(0.6)
            other.hold(name, ({"ranges": [[5, 10]]}, pure(0.3)))
            assert house.officer.propose(name, ({"ranges": [[0, 10]]}, pure(0.3)))["status"] == "denied"
    assert house.auditor.post(f"/v1/populations/{name}/ledger/verify")["ok"]
    assert keys.ensure_first(house.parts.database) is None
