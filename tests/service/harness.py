"""The service under test, in this process or in its own, and an auditor who knows nothing of the service's books."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]
from fastapi import FastAPI
from pyroaring import BitMap

from accountant.events import ApproxDP, Composed, event_from_json
from accountant.filters import Cost, Filter
from service.api.context import Parts
from service.app import create_app, running
from service.operations import keys
from service.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60.0  # the longest that any one request may take


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder whose path is short enough for a socket in it; removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="stint-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fresh(prefix: str = "p") -> str:
    """A name that no population has yet."""
    return f"{prefix}-{secrets.token_hex(5)}"


# ---------------------------------------------------------------- in this process


class Caller:
    """Speaks HTTP to an application in this process, from any thread; a loop of its own runs it."""

    def __init__(self, app: FastAPI, key: str) -> None:
        self.app, self.key = app, key
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="caller", daemon=True)
        self._thread.start()
        self.client = in_process(app, key)

    def run(self, work: Any, *, seconds: float = SECONDS) -> Any:
        """Whatever the coroutine returns."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    def __call__(self, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
        """The answer to one request."""
        if body is not None:
            more["json"] = body
        answer: httpx.Response = self.run(self.client.request(method, path, **more))
        return answer

    def ok(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        """The document of an answer that must be a success."""
        answer = self(method, path, body, **more)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json()

    def close(self) -> None:
        """End the loop."""
        self.run(self.client.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # what most tests begin with

    def population(self, *, count: int = 0, epsilon: float = 1.0, delta: float = 1e-6, **more: Any) -> str:
        """A new population with so many datapoints."""
        name = fresh()
        budget = {"epsilon": epsilon, "delta": delta, **more.pop("budget", {})}
        self.ok("POST", "/v1/populations", {"name": name, "unit": "user", "budget": budget, **more})
        if count:
            self.ok("POST", f"/v1/populations/{name}/datapoints", {"count": count})
        return name

    def propose(self, population: str, *charges: tuple[Mapping[str, Any], Mapping[str, Any]], **more: Any) -> Any:
        """The answer to a proposal of (scope, event) pairs."""
        listed = [{"scope": scope, "event": event} for scope, event in charges]
        return self.ok("POST", "/v1/releases", {"population": population, "charges": listed, **more})

    def reading(self, population: str, ordinal: int) -> dict[str, Any]:
        """What one datapoint has spent, held and available."""
        found: dict[str, Any] = self.ok("GET", f"/v1/populations/{population}/datapoints/{ordinal}")["epsilon"]
        return found

    def entries(self, population: str) -> list[dict[str, Any]]:
        """The exported log."""
        answer = self("GET", f"/v1/populations/{population}/ledger/export")
        assert answer.status_code == 200
        return [json.loads(line) for line in answer.text.splitlines()]

    def verify(self, population: str) -> None:
        """The service finds its own log, and everything derived from it, in order."""
        found = self.ok("POST", f"/v1/populations/{population}/ledger/verify")
        assert found["ok"], found


def in_process(app: FastAPI, key: str, transport: httpx.AsyncBaseTransport | None = None) -> httpx.AsyncClient:
    """A client of an application in this process, or of whatever a transport leads to."""
    return httpx.AsyncClient(
        transport=transport or httpx.ASGITransport(app=app),
        base_url="http://stint",
        headers={"Authorization": f"Bearer {key}"},
        timeout=SECONDS,
    )


@dataclass(frozen=True)
class Local:
    """A whole service in this process, on a PostgreSQL of its own."""

    parts: Parts
    app: FastAPI
    call: Caller


@contextmanager
def local(*, sweeps: bool = False, **settings: Any) -> Iterator[Local]:
    """A service in this process; without a sweeper or delays, so that tests decide when time passes."""
    given = {"retry_seconds": 0.0, **settings}
    with scratch() as folder, running(Settings(data=folder, **given), sweeps=sweeps) as parts:
        key = keys.ensure_first(parts.database)
        assert key is not None
        app = create_app(parts)
        call = Caller(app, key)
        try:
            yield Local(parts, app, call)
        finally:
            call.close()


# ---------------------------------------------------------------- in a process of its own

_SERVE = """
import os, sys
from service.serve import serve
from service.settings import from_environment
def started(parts, url, key):
    print(key or "-", flush=True)
serve(from_environment(os.environ), started=started)
"""


class Remote:
    """The service in its own process, on the embedded PostgreSQL of a folder; it can be killed and started again."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder, self._variables, self.key = folder, variables, ""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start, and wait until it is ready."""
        environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
        environment |= {"STINT_DATA": str(self.folder), "STINT_PORT": str(self.port), "STINT_LOG_LEVEL": "ERROR"}
        with (self.folder / "stderr").open("a") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVE],
                cwd=ROOT,
                env=environment | self._variables,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self._process.stdout is not None
        said = self._process.stdout.readline().strip()
        assert said, (self.folder / "stderr").read_text()[-4000:]
        if said != "-":
            self.key = said
        ends = time.monotonic() + 30
        while time.monotonic() < ends:
            with suppress(httpx.TransportError):
                if httpx.get(self.url + "/readyz", timeout=5).status_code == 200:
                    return
            time.sleep(0.05)
        raise AssertionError("the service is not ready after 30 seconds")

    def kill(self) -> None:
        """kill -9 of the service; PostgreSQL lives on."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(30)
        self._close()

    def kill_postgres(self) -> None:
        """kill -9 of the postmaster of this folder and all its children."""
        kill_postgres(self.folder)

    def stop(self) -> int:
        """SIGTERM, and how it ended."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(60)
        self._close()
        return code

    def _close(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    def end(self) -> None:
        """Whatever still runs ends."""
        if self._process is not None:
            self.kill()
        with suppress(FileNotFoundError, psutil.NoSuchProcess, AssertionError):
            self.kill_postgres()

    def client(self) -> httpx.AsyncClient:
        """Many connections at a time."""
        limits = httpx.Limits(max_connections=100, max_keepalive_connections=100)
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=SECONDS, limits=limits)


def kill_postgres(folder: Path) -> None:
    """kill -9 of the postmaster in a data folder and all its children."""
    pid = int((folder / "postgres" / "postmaster.pid").read_text().splitlines()[0])
    postmaster = psutil.Process(pid)
    assert str(folder) in " ".join(postmaster.cmdline())
    family = [postmaster, *postmaster.children(recursive=True)]
    for each in family:  # the father first, or he would bring his children back
        with suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(family, timeout=10)


@contextmanager
def remote(**variables: str) -> Iterator[Remote]:
    """A service process that has been started, and its end."""
    with scratch() as folder:
        service = Remote(folder, **variables)
        try:
            service.start()
            yield service
        finally:
            service.end()


# ---------------------------------------------------------------- a storm


@dataclass
class Asked:
    """A request under a key, and every answer to it."""

    key: str
    path: str
    body: dict[str, Any]
    answers: list[tuple[int, dict[str, Any]]] = field(default_factory=list)

    @property
    def successes(self) -> list[dict[str, Any]]:
        """The answers that say that it happened."""
        return [document for status, document in self.answers if 200 <= status < 300]


@dataclass
class Storm:
    """Random overlapping proposals, commits, voids, retries and doubled keys, from many clients at once."""

    seed: int
    populations: Sequence[str]
    size: int
    collapses: bool = False
    asked: dict[str, Asked] = field(default_factory=dict)
    held: list[str] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    sent: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self._left = 0
        self._stop = False

    async def prepare(self, client: httpx.AsyncClient, *, epsilon: float = 1.0) -> None:
        """Populations with overlapping tasks, two of which have budgets of their own."""
        third = self.size // 3
        for name in self.populations:
            new = {"name": name, "unit": "user", "budget": {"epsilon": epsilon, "delta": 1e-6}}
            await _must(client, "/v1/populations", new)
            await _must(client, f"/v1/populations/{name}/datapoints", {"count": self.size})
            own = {"epsilon": epsilon / 2, "delta": 1e-7}
            for task, start, stop, budget in (
                ("early", 0, 2 * third, own),
                ("late", third, self.size, None),
                ("middle", third // 2, 2 * third + third // 2, {**own, "preset": "pure"}),
            ):
                members = {"ranges": [[start, stop]]}
                parts = {"memory": {"ranges": [[start, start + third // 2]]}}
                document = {"name": task, "members": members, "parts": parts}
                await _must(client, f"/v1/populations/{name}/tasks", document | ({"budget": budget} if budget else {}))

    async def run(self, client: httpx.AsyncClient, *, requests: int, clients: int = 64, patience: float = 0.0) -> None:
        """So many more requests; with `patience`, some callers hang up after at most so many seconds and ask again."""
        self._left, self._stop = requests, False
        await asyncio.gather(*(self._client(client, patience) for _ in range(clients)))

    def stop(self) -> None:
        """No more requests."""
        self._stop = True

    async def repeat_all(self, client: httpx.AsyncClient) -> None:
        """Every request once more, under its key, by 32 clients."""
        waiting = list(self.asked.values())
        self.rng.shuffle(waiting)

        async def work() -> None:
            while waiting:
                await self._send(client, waiting.pop())

        await asyncio.gather(*(work() for _ in range(32)))

    async def _client(self, client: httpx.AsyncClient, patience: float) -> None:
        while self._left > 0 and not self._stop:
            self._left -= 1
            asked = self._request()
            copies = 2 if self.rng.random() < 0.15 else 1
            if patience and self.rng.random() < 0.2:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._send(client, asked), self.rng.random() * patience)
            await asyncio.gather(*(self._send(client, asked) for _ in range(copies)))
            if any(status == 0 for status, _ in asked.answers):
                await asyncio.sleep(0.01)

    def _request(self) -> Asked:
        rng, chance = self.rng, self.rng.random()
        if self.asked and chance < 0.1:
            return rng.choice(list(self.asked.values()))  # a late retry
        key = f"{self.seed}-{len(self.asked)}"
        if self.held and chance < 0.45:
            release = rng.choice(self.held[-40:])
            if rng.random() < 0.5:
                artifact = {"artifact": {"sha256": f"{rng.getrandbits(256):064x}"}} if rng.random() < 0.5 else {}
                asked = Asked(key, f"/v1/releases/{release}/commit", artifact)
            else:
                asked = Asked(key, f"/v1/releases/{release}/void", {"reason": "the job was stopped"})
        else:
            asked = Asked(key, "/v1/releases", self._proposal())
        self.asked[key] = asked
        return asked

    def _proposal(self) -> dict[str, Any]:
        rng = self.rng
        body: dict[str, Any] = {
            "population": rng.choice(self.populations),
            "charges": [{"scope": self._scope(), "event": self._event()} for _ in range(rng.choice((1, 1, 1, 2, 3)))],
            "on_exhausted": rng.choice(("deny", "deny", "trim")),
        }
        if not self.collapses or rng.random() < 0.7:
            body["delta"] = 0
        return body

    def _scope(self, *, inside: bool = False) -> dict[str, Any]:
        rng, chance = self.rng, self.rng.random()
        if chance < 0.5 or inside:
            start = rng.randrange(self.size)
            return {"ranges": [[start, rng.randrange(start, self.size) + 1]]}
        if chance < 0.7:
            return {"task": rng.choice(("early", "late", "middle"))}
        if chance < 0.85:
            return {"task": rng.choice(("early", "late", "middle")), "part": "memory"}
        if chance < 0.95:
            return {"union": [{"task": "late", "part": "memory"}, self._scope(inside=True)]}
        return {"bitmap": base64.b64encode(BitMap(rng.sample(range(self.size), 5)).serialize()).decode()}

    def _event(self) -> dict[str, Any]:
        rng = self.rng
        return rng.choice(
            (
                {"kind": "pure_dp", "epsilon": rng.choice((0.01, 0.05, 0.1, 0.3))},
                {"kind": "gaussian", "noise_multiplier": rng.choice((8.0, 15.0, 40.0))},
                {"kind": "laplace", "scale": rng.choice((20.0, 50.0))},
                {"kind": "approx_dp", "epsilon": 0.02, "delta": 1e-9},
                {"kind": "repeated", "times": 5, "event": {"kind": "gaussian", "noise_multiplier": 60.0}},
            )
        )

    async def _send(self, client: httpx.AsyncClient, asked: Asked) -> None:
        """Once; told to come back, a caller does, a few times. Status 0 is no answer at all."""
        for _ in range(20):
            self.sent += 1
            try:
                answer = await client.post(asked.path, json=asked.body, headers={"Idempotency-Key": asked.key})
            except httpx.TransportError:
                self.statuses[0] += 1
                asked.answers.append((0, {}))
                return
            self.statuses[answer.status_code] += 1
            document = answer.json()
            asked.answers.append((answer.status_code, document))
            if asked.path == "/v1/releases" and answer.status_code == 201 and document["status"] == "held":
                self.held.append(document["id"])
            if answer.status_code != 503:
                return
            await asyncio.sleep(0.005)

    # -------------------------------------------------------- what must be true afterwards

    def check(self, ledgers: Mapping[str, Sequence[Mapping[str, Any]]], *, complete: bool = True) -> dict[str, Auditor]:
        """Everything that was answered is in the ledgers, once, and nothing is there that nobody asked for."""
        auditors = {name: Auditor.of(entries) for name, entries in ledgers.items()}
        in_ledger = {release: body for each in auditors.values() for release, body in each.proposed.items()}
        status = {release: word for each in auditors.values() for release, word in each.status.items()}
        answered: dict[str, Asked] = {}
        for asked in self.asked.values():
            successes = asked.successes
            told = {json.dumps(each, sort_keys=True) for each in successes}
            assert len(told) <= 1, f"key {asked.key} has {len(told)} answers: {told}"
            if not successes:
                continue
            if asked.path == "/v1/releases":
                document = successes[0]
                release = document["id"]
                assert release not in answered, f"{release} answers two keys"
                answered[release] = asked
                body = in_ledger[release]  # a KeyError here is an answered request that is gone
                assert same_charges(body["charges"], asked.body["charges"])
                assert (body["kind"] == "release.held") == (document["status"] == "held")
                assert body["decision"]["trimmed"] == document["decision"]["trimmed"]
            else:
                _, _, _, release, verb = asked.path.split("/")
                assert status[release] == {"commit": "committed", "void": "voided"}[verb], (release, status[release])
        if complete:
            assert set(answered) == set(in_ledger), "a release in the ledger that no key was told of"
        return auditors


def same_charges(stored: Sequence[Mapping[str, Any]], sent: Sequence[Mapping[str, Any]]) -> bool:
    """Whether an entry charges what was proposed."""
    return [(each["scope"], event_from_json(each["event"])) for each in stored] == [
        (each["scope"], event_from_json(each["event"])) for each in sent
    ]


async def _must(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    answer = await client.post(path, json=body)
    assert answer.status_code == 201, answer.text


async def exported(client: httpx.AsyncClient, population: str) -> list[dict[str, Any]]:
    """The log of a population."""
    answer = await client.get(f"/v1/populations/{population}/ledger/export")
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


async def verified(client: httpx.AsyncClient, population: str) -> None:
    """The service finds its log, and all that follows from it, in order."""
    answer = await client.post(f"/v1/populations/{population}/ledger/verify")
    assert answer.status_code == 200, answer.text
    assert answer.json()["ok"], answer.text


# ---------------------------------------------------------------- an auditor


class Auditor:
    """Adds up a log per datapoint, in plain sets and dicts, and refuses the first hold that passes a budget.

    It shares the arithmetic of a filter with the service (`price`, `+`, `admits`) and nothing else: no book, no
    cohorts, no regions, no decisions.
    """

    def __init__(self, created: Mapping[str, Any]) -> None:
        self.adjacency = created["adjacency"]
        self.budgets: dict[str, Filter] = {"": _filter(created["policy"]["budget"])}
        self.size = 0
        self.tasks: dict[tuple[str, str | None], frozenset[int]] = {}
        self.proposed: dict[str, Mapping[str, Any]] = {}
        self.status: dict[str, str] = {}
        # ledger -> ordinal -> release -> cost, of open holds; and sums of what is committed
        self.open: dict[str, dict[int, dict[str, Cost]]] = defaultdict(lambda: defaultdict(dict))
        self.committed: dict[str, dict[int, Cost]] = defaultdict(dict)

    @classmethod
    def of(cls, entries: Sequence[Mapping[str, Any]]) -> Auditor:
        """The sums that a log leads to; numbers and hashes must follow each other."""
        auditor = cls(entries[0]["body"])
        for place, entry in enumerate(entries):
            assert entry["number"] == place + 1
            if place:
                assert entry["previous"] == entries[place - 1]["hash"]
                auditor.add(entry["body"])
        return auditor

    def add(self, body: Mapping[str, Any]) -> None:
        """One entry."""
        match body["kind"]:
            case "datapoints.registered":
                self.size += body["count"]
            case "task.created":
                name = body["task"]
                self.tasks[name, None] = self.members(body["members"])
                for part, scope in body["parts"].items():
                    self.tasks[name, part] = self.members(scope)
                if "budget" in body:
                    self.budgets[name] = _filter(body["budget"])
            case "policy.changed":
                self.budgets[""] = _filter(body["policy"]["budget"])
            case "release.held":
                self._hold(body)
            case "release.denied":
                assert body["release"] not in self.proposed, "a release is proposed once"
                self.proposed[body["release"]] = body
                self.status[body["release"]] = "denied"
            case "release.committed" | "release.expired" | "release.voided" as kind:
                self._resolve(body["release"], kind.removeprefix("release."))

    def members(self, scope: Mapping[str, Any]) -> frozenset[int]:
        """Whom a scope means."""
        if "union" in scope:
            return frozenset().union(*(self.members(each) for each in scope["union"]))
        if "task" in scope:
            return self.tasks[scope["task"], scope.get("part")]
        if "bitmap" in scope:
            return frozenset(BitMap.deserialize(base64.b64decode(scope["bitmap"])))
        return frozenset(ordinal for start, stop in scope["ranges"] for ordinal in range(start, stop))

    def _task(self, scope: Mapping[str, Any]) -> str | None:
        named = {each["task"] for each in scope.get("union", [scope]) if "task" in each}
        return next(iter(named), None)

    def costs(self, body: Mapping[str, Any]) -> Iterator[tuple[str, int, Cost]]:
        """What a hold costs whom in which ledger, from its charges alone (a collapse is taken from the log)."""
        charges = [
            (self.members(each["scope"]), self._task(each["scope"]), event_from_json(each["event"]))
            for each in body["charges"]
        ]
        trimmed = self.members({"bitmap": body["trimmed"]}) if "trimmed" in body else frozenset()
        collapsed = {part["touch"]: part["collapsed"] for part in body["parts"]}
        prices: dict[tuple[str, tuple[int, ...], str], Cost] = {}
        for ordinal in sorted(frozenset().union(*(scope for scope, _, _ in charges)) - trimmed):
            assert 0 <= ordinal < self.size
            touch = ",".join(str(number) for number, each in enumerate(charges) if ordinal in each[0])
            for ledger, budget in self.budgets.items():
                counts = tuple(
                    number for number, each in enumerate(charges) if ordinal in each[0] and ledger in ("", each[1])
                )
                if not counts:
                    continue
                if (ledger, counts, touch) not in prices:
                    event: Any = Composed(events=tuple(charges[number][2] for number in counts))
                    if ledger in collapsed[touch]:
                        proved = collapsed[touch][ledger]
                        event = ApproxDP(epsilon=proved["epsilon"], delta=proved["delta"])
                    prices[ledger, counts, touch] = budget.price(event, self.adjacency)
                yield ledger, ordinal, prices[ledger, counts, touch]

    def _hold(self, body: Mapping[str, Any]) -> None:
        release = body["release"]
        assert release not in self.proposed, "a release is proposed once"
        self.proposed[release], self.status[release] = body, "held"
        seen: set[tuple[str, Cost]] = set()
        for ledger, ordinal, cost in self.costs(body):
            self.open[ledger][ordinal][release] = cost
            total = self.total(ledger, ordinal)
            if (ledger, total) not in seen:
                seen.add((ledger, total))
                assert self.budgets[ledger].admits(total), f"{release} brings {ordinal} over its budget in {ledger!r}"

    def _resolve(self, release: str, status: str) -> None:
        assert self.status[release] == "held", f"{release} is {self.status[release]} and cannot be {status}"
        self.status[release] = status
        for ledger, by_ordinal in self.open.items():
            for ordinal, holds in by_ordinal.items():
                cost = holds.pop(release, None)
                if cost is not None and status != "voided":
                    sums = self.committed[ledger]
                    sums[ordinal] = sums[ordinal] + cost if ordinal in sums else cost

    def spent(self, ledger: str, ordinal: int) -> Cost:
        """What is committed."""
        return self.committed[ledger].get(ordinal, self.budgets[ledger].nothing)

    def held(self, ledger: str, ordinal: int) -> Cost:
        """What is open."""
        total = self.budgets[ledger].nothing
        for cost in self.open[ledger][ordinal].values():
            total = total + cost
        return total

    def total(self, ledger: str, ordinal: int) -> Cost:
        """Both."""
        return self.spent(ledger, ordinal) + self.held(ledger, ordinal)

    def nobody_is_over(self) -> None:
        """Every datapoint, in every ledger."""
        for ledger, budget in self.budgets.items():
            for ordinal in range(self.size):
                assert budget.admits(self.total(ledger, ordinal)), f"{ordinal} is over its budget in {ledger!r}"

    def reading(self, ordinal: int, ledger: str = "") -> dict[str, float]:
        """What the service should show of a datapoint."""
        found = self.budgets[ledger].reading(committed=self.spent(ledger, ordinal), held=self.held(ledger, ordinal))
        return {"spent": found.spent, "held": found.held, "available": found.available, "budget": found.budget}


def _filter(document: Mapping[str, Any]) -> Filter:
    from fractions import Fraction

    return Filter(
        epsilon=float(document["epsilon"]),
        delta=float(document["delta"]),
        orders=tuple(map(float, document["orders"])),
        weights=tuple(map(Fraction, document["weights"])),
        delta_filter=Fraction(document["delta_filter"]),
        delta_parts=Fraction(document["delta_parts"]),
    )
