"""A violation is told to a real receiver: signed, at least once, with pauses that grow, and after a crash too."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from accountant.audit.verdicts import confidence_of
from accountant.errors import InvalidInput
from service.api.context import Parts
from service.app import running
from service.messenger import Messenger, deliver_next
from service.operations import empirical, webhooks
from service.settings import Settings, from_environment
from service.store.embedded import embedded
from service.store.writer import Operation
from tests.service.harness import Caller, Local, local, remote

KEY = bytes(range(32))
SECRET = "whsec_" + base64.b64encode(KEY).decode()
#: Standard Webhooks' own example.
EXAMPLE = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class Receiver:
    """An HTTP server that answers as it is told, and keeps what it was sent."""

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        self.answer: Callable[[BaseHTTPRequestHandler], object] = says(204)
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers.get("content-length", 0)))
                receiver.got.append((self.path, {k.lower(): v for k, v in self.headers.items()}, content))
                receiver.answer(self)

            def do_GET(self) -> None:
                self.do_POST()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook?token=hidden"
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


def says(status: int, **headers: str) -> Callable[[BaseHTTPRequestHandler], object]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("content-length", "0")
        handler.end_headers()

    return answer


def drips(handler: BaseHTTPRequestHandler) -> None:
    """Headers without end, each quick enough for whoever looks at single reads."""
    try:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        for number in range(200):
            handler.wfile.write(b"x-%d: 1\r\n" % number)
            time.sleep(0.05)
    except OSError:
        handler.close_connection = True


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture(scope="module")
def house() -> Iterator[Local]:
    with local() as found:
        yield found


@pytest.fixture
def parts(house: Local, receiver: Receiver) -> Parts:
    """Those of the house, which tells the receiver; nothing waits from tests before."""
    with house.parts.database.transaction() as connection:
        connection.execute(text("UPDATE webhook SET status = 'given_up', due_at = NULL, ended_at = now()"))
    settings = replace(house.parts.settings, webhook_url=receiver.url, webhook_secret=SECRET)
    return replace(house.parts, settings=settings)


def submitted(parts: Parts, population: str, decide: Any) -> dict[str, Any]:
    operation = Operation(population=population, actor="tests", decide=decide, uses_sql=True)
    document: dict[str, Any] = parts.writer.submit(operation).result(60).document
    return document


def concluded(call: Caller, parts: Parts, *, factor: float, **more: Any) -> tuple[str, str]:
    """A population and an audit in it that found this multiple of what was promised."""
    population = call.population(count=10)
    asked = {"population": population, "mechanism": "dp-sgd", "audit": "weights after one step", **more}
    planned = call.ok("POST", "/v1/audits", {"samples": 1000, **asked})
    begun = empirical.begin(parts.database, planned["id"], worker="tests", lease_seconds=60)
    assert begun is not None
    found = {
        "epsilon_lower": planned["promise"]["epsilon"] * factor, "delta": planned["promise"]["delta"],
        "confidence": confidence_of(1), "method": "clopper_pearson", "samples": 750,
        "assumptions": ["independent runs"], "attainable": 50.0,
    }  # fmt: skip
    decide = empirical.conclude(audit=planned["id"], token=begun.token, found={"bounds": [found], "roc": []})
    assert submitted(parts, population, decide)["status"] == "concluded"
    return population, planned["id"]


def deliver(parts: Parts) -> bool:
    return asyncio.run(deliver_next(parts))


def hurry(parts: Parts) -> float:
    """Make what waits due, and say how many seconds it would have waited."""
    with parts.database.transaction() as connection:
        pause = connection.execute(text("SELECT extract(epoch FROM max(due_at) - now()) FROM webhook")).scalar_one()
        connection.execute(text("UPDATE webhook SET due_at = now() WHERE status = 'waiting'"))
    return float(pause or 0)


def checked(headers: dict[str, str], content: bytes) -> dict[str, Any]:
    """What a receiver does that knows the secret and the standard, and nothing of our code."""
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + content
    expected = "v1," + base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == expected
    assert abs(time.time() - int(headers["webhook-timestamp"])) < 60
    document: dict[str, Any] = json.loads(content)
    return document


def test_the_signature_is_that_of_the_standards_own_example() -> None:
    at = datetime.fromtimestamp(1614265330, UTC)
    key = base64.b64decode(EXAMPLE.removeprefix("whsec_"))
    made = webhooks.headers("msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}', key=key, at=at)
    assert made["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_violation_is_told_once_it_is_in_the_ledger(house: Local, parts: Parts, receiver: Receiver) -> None:
    population, audit = concluded(house.call, parts, factor=2.0, on_violation="freeze")
    waiting = house.call.ok("GET", f"/v1/audits/{audit}")["webhook"]
    assert (waiting["status"], waiting["tries"], waiting["error"]) == ("waiting", 0, None)
    assert deliver(parts)
    assert not deliver(parts)
    [(path, headers, content)] = receiver.got
    assert path == "/hook?token=hidden"
    assert headers["content-type"] == "application/json"
    assert headers["webhook-id"] == waiting["id"]
    assert len(content) < 2000
    told = checked(headers, content)
    entry = house.call.entries(population)[-1]
    shown = house.call.ok("GET", f"/v1/audits/{audit}")
    assert told == {
        "type": "audit.violation",
        "timestamp": entry["body"]["at"],
        "data": {
            "population": population, "audit": audit, "mechanism": "dp-sgd", "name": "weights after one step",
            "number": 1, "confidence": confidence_of(1), "promise": shown["promise"],
            "found": {name: shown["lower_bound"][name] for name in ("epsilon_lower", "delta", "method")},
            "sentence": shown["sentence"], "on_violation": "freeze",
            "entry": {"number": entry["number"], "hash": entry["hash"]},
        },
    }  # fmt: skip
    assert shown["webhook"] == {"id": waiting["id"], "status": "delivered", "tries": 1, "error": None}
    house.call.verify(population)


def test_nothing_is_told_of_a_promise_that_holds(house: Local, parts: Parts, receiver: Receiver) -> None:
    _, audit = concluded(house.call, parts, factor=0.5)
    assert house.call.ok("GET", f"/v1/audits/{audit}")["webhook"] is None
    assert not deliver(parts)
    assert receiver.got == []


def test_tries_are_repeated_with_pauses_that_grow_and_end(
    house: Local, parts: Parts, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    _, audit = concluded(house.call, parts, factor=2.0)
    receiver.answer = says(500)
    pauses = []
    caplog.set_level(logging.WARNING, "httpx")  # as in a service
    with caplog.at_level(logging.INFO):
        for _ in range(webhooks.TRIES):
            assert deliver(parts)
            assert not deliver(parts)  # not before its pause is over
            if house.call.ok("GET", f"/v1/audits/{audit}")["webhook"]["status"] == "waiting":
                pauses.append(hurry(parts))
    assert pauses == pytest.approx(list(webhooks.PAUSES), abs=2)
    assert list(webhooks.PAUSES) == sorted(webhooks.PAUSES)
    told = house.call.ok("GET", f"/v1/audits/{audit}")["webhook"]
    assert (told["status"], told["tries"], told["error"]) == ("given_up", webhooks.TRIES, "status.500")
    assert {headers["webhook-id"] for _, headers, _ in receiver.got} == {told["id"]}
    assert len({content for _, _, content in receiver.got}) == 1
    assert [record.levelname for record in caplog.records if audit in record.getMessage()][-1] == "ERROR"
    assert "hidden" not in caplog.text
    assert "whsec" not in caplog.text
    shown = house.call("GET", "/metrics").text
    for line in (
        'stint_webhook_deliveries_total{outcome="given_up"} 1.0',
        'stint_audits{status="concluded",verdict="violation"}',
        'stint_audits{status="concluded",verdict="consistent"} 0.0',
        'stint_audits{status="running",verdict=""} 0.0',
        'stint_webhooks{status="waiting"} 0.0',
    ):
        assert line in shown
    hurry(parts)
    assert not deliver(parts)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (says(302, location="/elsewhere"), "status.302"),
        (says(307, location="/elsewhere"), "status.307"),
        (says(404), "status.404"),
        (lambda _: time.sleep(1.0), "timeout"),
        (drips, "timeout"),
        (lambda handler: handler.connection.close(), "unreachable"),
        (lambda handler: handler.wfile.write(b"SMTP ready\r\n\r\n"), "unreachable"),
    ],
)
def test_only_a_2xx_within_its_time_counts(  # noqa: PLR0917 - fixtures
    house: Local,
    parts: Parts,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[BaseHTTPRequestHandler], object],
    error: str,
) -> None:
    monkeypatch.setattr(webhooks, "ANSWER_SECONDS", 0.4)
    _, audit = concluded(house.call, parts, factor=2.0)
    receiver.answer = answer
    began = time.monotonic()
    deliver(parts)
    assert time.monotonic() - began < 3
    told = house.call.ok("GET", f"/v1/audits/{audit}")["webhook"]
    assert (told["status"], told["error"]) == ("waiting", error)
    assert [path for path, _, _ in receiver.got] == ["/hook?token=hidden"]
    receiver.answer = says(200)
    hurry(parts)
    deliver(parts)
    told = house.call.ok("GET", f"/v1/audits/{audit}")["webhook"]
    assert (told["status"], told["tries"], told["error"]) == ("delivered", 2, None)


def test_nobody_listens(house: Local, parts: Parts, receiver: Receiver) -> None:
    _, audit = concluded(house.call, parts, factor=2.0)
    deliver(replace(parts, settings=replace(parts.settings, webhook_url="http://127.0.0.1:1/")))
    assert house.call.ok("GET", f"/v1/audits/{audit}")["webhook"]["error"] == "unreachable"
    assert receiver.got == []


def test_two_services_do_not_deliver_at_once_and_the_last_try_may_be_lost(house: Local, parts: Parts) -> None:
    _, audit = concluded(house.call, parts, factor=2.0)
    first = webhooks.take(parts.database)
    assert first is not None
    assert webhooks.take(parts.database) is None
    assert webhooks.give_up(parts.database) == []
    for number in range(2, webhooks.TRIES + 1):
        hurry(parts)
        taken = webhooks.take(parts.database)
        assert taken == replace(first, tries=number)
    webhooks.failed(parts.database, first, "timeout")  # it wakes up, and its word is an old one
    assert house.call.ok("GET", f"/v1/audits/{audit}")["webhook"]["error"] is None
    assert webhooks.give_up(parts.database) == []
    hurry(parts)
    assert webhooks.take(parts.database) is None
    assert webhooks.give_up(parts.database) == [(first.id, audit, None)]
    webhooks.delivered(parts.database, first)
    assert house.call.ok("GET", f"/v1/audits/{audit}")["webhook"]["status"] == "given_up"


def test_a_messenger_ends_in_the_middle_of_a_delivery(house: Local, parts: Parts, receiver: Receiver) -> None:
    _, audit = concluded(house.call, parts, factor=2.0)
    release = threading.Event()
    receiver.answer = lambda _: release.wait(30)
    messenger = Messenger(replace(parts, settings=replace(parts.settings, sweep_seconds=0.01)))
    ends = time.monotonic() + 30
    while not receiver.got and time.monotonic() < ends:
        time.sleep(0.01)
    began = time.monotonic()
    messenger.close()
    assert time.monotonic() - began < 2
    release.set()
    assert house.call.ok("GET", f"/v1/audits/{audit}")["webhook"]["status"] == "waiting"
    receiver.answer = says(200)
    hurry(parts)
    assert deliver(parts)
    assert len({headers["webhook-id"] for _, headers, _ in receiver.got}) == 1
    assert len(receiver.got) == 2


@pytest.mark.slow
def test_a_service_that_is_killed_is_followed_by_one_that_delivers(receiver: Receiver) -> None:
    """kill -9 after the entry, in the middle of the delivery: the next service tells the same under the same name."""
    release = threading.Event()
    receiver.answer = lambda _: release.wait(60)
    variables = {"STINT_WEBHOOK_URL": receiver.url, "STINT_WEBHOOK_SECRET": SECRET, "STINT_SWEEP_SECONDS": "0.05"}
    variables["STINT_LOG_LEVEL"] = "DEBUG"
    with remote(**variables) as service, embedded(service.folder / "postgres") as url:
        _found_by_a_worker(url, service.folder, service.key)
        _until(lambda: len(receiver.got) == 1)
        service.kill()
        release.set()
        receiver.answer = says(200)
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT status, tries FROM webhook").fetchall() == [("waiting", 1)]
            connection.execute("UPDATE webhook SET due_at = now()")
        service.start()
        _until(lambda: len(receiver.got) == 2)
        with psycopg.connect(url, autocommit=True) as connection:
            _until(lambda: connection.execute("SELECT status FROM webhook").fetchall() == [("delivered",)])
        service.stop()
        logged = (service.folder / "stderr").read_text()
    assert "was delivered" in logged
    assert "hidden" not in logged
    assert SECRET not in logged
    [(_, first, one), (_, second, two)] = receiver.got
    assert checked(first, one) == checked(second, two)
    assert first["webhook-id"] == second["webhook-id"]


def _found_by_a_worker(url: str, folder: Path, key: str) -> None:
    """A process of its own would write the same entry; this one has its own books, writer and connections too."""
    with running(Settings(database_url=url, data=folder), sweeps=False) as parts:
        from service.app import create_app

        call = Caller(create_app(parts), key)
        try:
            concluded(call, parts, factor=2.0)
        finally:
            call.close()


def _until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.05)


def test_settings_that_no_webhook_could_be_sent_with_stop_the_start() -> None:
    good = {"STINT_WEBHOOK_URL": "https://example.org:8443/hook?t=1", "STINT_WEBHOOK_SECRET": SECRET}
    found = from_environment(good)
    assert (found.webhook_url, found.webhook_secret) == tuple(good.values())
    assert "example.org" not in repr(found)
    assert SECRET not in repr(found)
    short, long = (f"whsec_{base64.b64encode(bytes(count)).decode()}" for count in (23, 65))
    for variable, value in (
        ("STINT_WEBHOOK_URL", "ftp://example.org/"), ("STINT_WEBHOOK_URL", "example.org/hook"),
        ("STINT_WEBHOOK_URL", "https:///hook"), ("STINT_WEBHOOK_URL", "https://example.org:99999/"),
        ("STINT_WEBHOOK_URL", "https://example.org/a b"), ("STINT_WEBHOOK_URL", "https://example.org/\n"),
        ("STINT_WEBHOOK_URL", "https://[::1"), ("STINT_WEBHOOK_URL", ""), ("STINT_WEBHOOK_SECRET", ""),
        ("STINT_WEBHOOK_SECRET", "password"), ("STINT_WEBHOOK_SECRET", SECRET.removeprefix("whsec_")),
        ("STINT_WEBHOOK_SECRET", short), ("STINT_WEBHOOK_SECRET", long), ("STINT_WEBHOOK_SECRET", "whsec_§§§§"),
    ):  # fmt: skip
        with pytest.raises(InvalidInput) as refused:
            from_environment(good | {variable: value})
        assert refused.value.argument == variable
        assert not value or value not in str(refused.value)
