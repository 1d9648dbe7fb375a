"""The service beside what it replaces: a bare insert per request, and a ledger with a row per datapoint.

All run on one PostgreSQL, one after the other in turns. The load comes from a process of its own that speaks HTTP/1.1
on kept connections and does as little as possible, since it shares the cores with what it measures.

- **Throughput**: each connection proposes a release on one of 100 ranges and commits it, over and over. The bare
  service (FastAPI, pydantic, psycopg) stores what it is sent: one insert, one commit, no decision. Every request counts
  as one.
- **Large populations**: a release on a tenth of 10⁷ and 10⁸ datapoints that fall into 1,000 cohorts, beside a table
  with a row per datapoint. That table has 10⁷ rows; for 10⁸ its time is **multiplied by ten**, not measured.
- **Past releases**: one more release after 100, 1,000 and 10,000, each of which cut a range of its own.
"""

from __future__ import annotations

import asyncio
import json
import math
import multiprocessing
import random
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any, Final, TypeAlias, cast

import psycopg
import uvicorn
import uvloop
from fastapi import FastAPI
from pydantic import BaseModel

from benchmarks.measure import at_least, at_most, duration, times
from service.api.context import Parts
from service.operations import keys
from service.serve import serve
from service.settings import Settings
from service.store.embedded import embedded

CONNECTIONS: Final = (16, 64)
DISJOINT: Final = 16
SECONDS, WARM_UP, TURNS = 3.0, 0.7, 2
BLOCKS: Final = 100  # ranges of a population that releases of the throughput part touch
SIZE: Final = 10**6
COHORTS: Final = 1000
PROBES: Final = 15
PAST: Final = (100, 1_000, 10_000)
NAIVE_ROWS: Final = 10**7
THROUGHPUT_TARGET, LATENCY_TARGET, NAIVE_TARGET, FLAT_TARGET = 0.5, 0.05, 1000, 1.5
EVENT: Final = {"kind": "gaussian", "noise_multiplier": 2000.0}
BARE_POOL: Final = 16
SPAWN: Final = multiprocessing.get_context("spawn")
BUDGET: Final = {"epsilon": 8.0, "delta": 1e-6}

DISJOINT_KIND: Final = f"{DISJOINT} populations"
COLUMNS: Final = "{:<16}{:>12}{:>11}{:>9}{:>7}{:>23}{:>22}{:>17}"
HEADINGS: Final = (
    "service",
    "connections",
    "answers/s",
    "pairs/s",
    "ratio",
    "propose p50/p99 ms",
    "commit p50/p99 ms",
    "per transaction",
)

Ranges: TypeAlias = list[tuple[int, int]]
Session: TypeAlias = Generator[bytes, bytes, None]  # yields requests, is sent answers (head and body)


def main() -> None:
    """Print a table per part, then whether the targets are met."""
    # An embedded PostgreSQL that survived a run would be found by the next one: each has a folder of its own.
    with tempfile.TemporaryDirectory(prefix="stint-bench-") as name:
        folder = Path(name)
        with embedded(folder / "postgres") as url:
            verdicts = throughput(folder, url)
            with started(stint, folder, url) as (address, key):
                verdicts += flat(address, key)
                verdicts += large(address, key, url)
    print("\nTargets")
    print("\n".join(verdicts))


# ---------------------------------------------------------------- throughput


@dataclass(frozen=True, kw_only=True)
class Target:
    """Whom a load generator calls, and about which populations."""

    address: str
    key: str
    decides: bool
    populations: Sequence[str]


@dataclass(kw_only=True)
class Load:
    """What a load generator saw: seconds per answer, by kind, and how long it took in all."""

    seconds: float = 0.0
    answers: dict[str, list[float]] = field(default_factory=dict)

    @property
    def per_second(self) -> float:
        """Answers per second."""
        return sum(map(len, self.answers.values())) / self.seconds

    def quantile(self, kind: str, share: float) -> float:
        """Seconds within which this share of the answers came."""
        taken = sorted(self.answers[kind])
        return taken[min(len(taken) - 1, int(share * len(taken)))]


def throughput(folder: Path, url: str) -> list[str]:
    """Answers per second of both services, in turns."""
    with started(stint, folder, url) as (address, key), started(_bare, folder, url) as (bare_address, _):
        populations = [f"load-{number}" for number in range(DISJOINT)]
        client = Client(address, key)
        for name in populations:
            client.populate(name, SIZE)
        # Every range is a cohort before the clock runs.
        step = SIZE // BLOCKS
        for name in populations:
            client.release_all(name, [[(first, first + step)] for first in range(0, SIZE, step)])
        kinds = {
            "bare insert": Target(address=bare_address, key=key, decides=False, populations=populations),
            "one population": Target(address=address, key=key, decides=True, populations=populations[:1]),
            DISJOINT_KIND: Target(address=address, key=key, decides=True, populations=populations),
        }
        print(f"Throughput, best of {TURNS} turns of {SECONDS:g} s; times per answer are of that turn")
        print(COLUMNS.format(*HEADINGS))
        ratios: dict[int, float] = {}
        for connections in CONNECTIONS:
            best: dict[str, tuple[Load, float]] = {}
            for _ in range(TURNS):
                for kind, target in kinds.items():
                    before = client.batches()
                    load = in_process(target, connections)
                    after = client.batches()
                    batch = (after[0] - before[0]) / max(1.0, after[1] - before[1])
                    if kind not in best or load.per_second > best[kind][0].per_second:
                        best[kind] = load, batch
            bare = best["bare insert"][0].per_second
            for kind, (load, batch) in best.items():
                print(line(kind, connections, load, bare, batch), flush=True)
            ratios[connections] = best[DISJOINT_KIND][0].per_second / bare
    what = f"answers/s on {DISJOINT_KIND} : bare insert"
    return [
        at_least(f"{what}, {connections} connections", ratio, THROUGHPUT_TARGET)
        for connections, ratio in ratios.items()
    ]


def line(kind: str, connections: int, load: Load, bare: float, batch: float) -> str:
    """A row of the table; a bare insert has no pairs and nothing to share."""
    shown = [f"{load.quantile(each, 0.5) * 1e3:.1f} / {load.quantile(each, 0.99) * 1e3:.1f}" for each in load.answers]
    decides = len(shown) > 1
    return COLUMNS.format(
        kind,
        connections,
        f"{load.per_second:,.0f}",
        f"{load.per_second / 2:,.0f}" if decides else "",
        f"{load.per_second / bare:.2f}",
        shown[0],
        shown[1] if decides else "",
        f"{batch:.1f}" if decides else "1",
    )


def _load(results: Connection, target: Target, connections: int) -> None:
    """The load generator, in its own process."""
    load = Load()
    chance = random.Random(0)

    def session(number: int) -> Session:
        population = target.populations[number % len(target.populations)]
        return (_releasing if target.decides else _inserting)(target.key, population, chance)

    begin = perf_counter() + WARM_UP
    sessions = [session(number) for number in range(connections)]
    uvloop.run(_drive(target.address, sessions, load, begin, begin + SECONDS))
    load.seconds = SECONDS
    results.send(load)


async def _drive(
    address: str, sessions: Sequence[Session], load: Load, begin: float = math.inf, end: float = math.inf
) -> None:
    """A connection per session, until the time is up or the sessions are over; counts what comes after `begin`."""
    host, port = address.removeprefix("http://").split(":")
    wires = [_Wire(session, load, begin, end) for session in sessions]
    for wire in wires:
        await asyncio.get_running_loop().create_connection(partial(_same, wire), host, int(port))
    await asyncio.gather(*[wire.done for wire in wires])


def _same(wire: _Wire) -> _Wire:
    return wire


class _Wire(asyncio.Protocol):
    """One kept connection: sends what its session yields, times the answer, and hands it back."""

    def __init__(self, session: Session, load: Load, begin: float, end: float) -> None:
        self._session, self._load, self._begin, self._end = session, load, begin, end
        self._buffer = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._go_on(b"")

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        lower = head.lower()
        length = int(lower.partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(body) < length:
            return
        now = perf_counter()
        if self._begin <= now < self._end:
            self._load.answers.setdefault(self._kind, []).append(now - self._sent)
        self._buffer = b""
        if now >= self._end:
            self._session.close()
        self._go_on(head + found + body)

    def _go_on(self, answer: bytes) -> None:
        try:
            request = self._session.send(answer) if answer else next(self._session)
        except StopIteration:
            self.done.set_result(None)
            self._transport.close()
        except Exception as problem:  # noqa: BLE001 - whoever waits must hear of it
            self.done.set_exception(problem)
            self._transport.close()
        else:
            self._kind = "commit" if b"/commit " in request[:80] else "propose"
            self._sent = perf_counter()
            self._transport.write(request)

    def connection_lost(self, problem: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(problem or ConnectionError("the service hung up"))


def _request(path: str, key: str, document: object) -> bytes:
    body = json.dumps(document).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _releasing(key: str, population: str, chance: random.Random) -> Session:
    """Propose and commit."""
    step = SIZE // BLOCKS
    while True:
        first = chance.randrange(BLOCKS) * step
        answer = yield _request("/v1/releases", key, _proposal(population, [(first, first + step)]))
        assert b'"status":"held"' in answer, answer
        place = answer.index(b'"id":"rel_') + 6
        answer = yield _request(f"/v1/releases/{answer[place : place + 30].decode()}/commit", key, {})
        assert b'"status":"committed"' in answer, answer


def _inserting(key: str, population: str, chance: random.Random) -> Session:
    """The same proposals, which nobody decides on."""
    step = SIZE // BLOCKS
    while True:
        first = chance.randrange(BLOCKS) * step
        answer = yield _request("/v1/releases", key, _proposal(population, [(first, first + step)]))
        assert answer.startswith(b"HTTP/1.1 201"), answer


def _proposal(population: str, ranges: Sequence[tuple[int, int]]) -> dict[str, Any]:
    return {"population": population, "charges": [{"scope": {"ranges": ranges}, "event": EVENT}]}


# ---------------------------------------------------------------- large populations


def large(address: str, key: str, url: str) -> list[str]:
    """A release on a tenth of a large population, beside a row per datapoint."""
    client = Client(address, key)
    naive = {kind: naive_seconds(url, cut(kind, NAIVE_ROWS)[1]) for kind in ("range", "blocks")}
    print(f"\nA release on a tenth of the datapoints, {COHORTS} cohorts, median of {PROBES}, one connection")
    columns = "{:<8}{:>6}{:>11}{:>12}{:>11}{:>11}{:>14}{:>11}{:>9}"
    print(columns.format("scope", "size", "ranges", "propose", "commit", "both", "naive ledger", ": propose", ": both"))
    verdicts = []
    for size in (10**7, 10**8):
        for kind in ("range", "blocks"):
            name = f"{kind}-{size}"
            cuts, scope = cut(kind, size)
            client.populate(name, size)
            client.release_all(name, cuts)
            client.release(name, scope)
            taken = [client.release(name, scope) for _ in range(PROBES)]
            proposing, committing = (median(each) for each in zip(*taken, strict=True))
            both = median(map(sum, taken))
            rows = naive[kind] * size / NAIVE_ROWS
            print(
                columns.format(
                    kind,
                    f"10^{len(str(size)) - 1}",
                    len(scope),
                    duration(proposing),
                    duration(committing),
                    duration(both),
                    duration(rows) + (" *" if size != NAIVE_ROWS else ""),
                    times(rows / proposing),
                    times(rows / both),
                ),
                flush=True,
            )
            if size == 10**8:
                verdicts += [
                    (
                        f"{'met' if proposing <= LATENCY_TARGET else 'missed':<7} decision on 10^8 datapoints, {kind}: "
                        f"{duration(proposing)}, target at most {duration(LATENCY_TARGET)}"
                    ),
                    at_least(f"naive ledger * : decision on 10^8, {kind}", rows / proposing, NAIVE_TARGET),
                ]
    print(f"* ten times what {NAIVE_ROWS:,} rows took; not measured")
    return verdicts


def cut(kind: str, size: int) -> tuple[list[Ranges], Ranges]:
    """The scopes that cut a population into 1,000 cohorts, and one that cuts a tenth out of it once more."""
    if kind == "range":
        step = size // COHORTS
        start = 3 * step + step // 3
        return [[(first, first + step)] for first in range(0, size, step)], [(start, start + size // 10)]
    block = size // (10 * COHORTS)
    starts = [number * block for number in range(10 * COHORTS)]
    random.Random(0).shuffle(starts)
    cuts = [[(first, first + block) for first in starts[number::COHORTS]] for number in range(COHORTS)]
    return cuts, [(first + block // 3, first + block // 3 + block) for first in range(0, size, 10 * block)]


def naive_seconds(url: str, scope: Ranges) -> float:
    """A row per datapoint: is there anyone over budget, then add to everyone, in one transaction. The better of two."""
    with psycopg.connect(url, autocommit=True) as connection:
        if connection.execute("SELECT to_regclass('naive')").fetchone() == (None,):
            connection.execute("CREATE TABLE naive (ordinal bigint PRIMARY KEY, spent double precision NOT NULL)")
            connection.execute("INSERT INTO naive SELECT n, 0 FROM generate_series(0, %s) AS n", [NAIVE_ROWS - 1])
            connection.execute("VACUUM ANALYZE naive")
        scoped = "FROM unnest(%s::bigint[], %s::bigint[]) AS part (a, b) WHERE ordinal >= a AND ordinal < b"
        bounds = [[a for a, _ in scope], [b for _, b in scope]]
        taken = []
        for _ in range(2):
            start = perf_counter()
            with connection.transaction():
                over = connection.execute(
                    "SELECT count(*) FROM naive, unnest(%s::bigint[], %s::bigint[]) AS part (a, b) "
                    "WHERE ordinal >= a AND ordinal < b AND spent + 1e-6 > 8",
                    bounds,
                ).fetchone()
                assert over == (0,)
                changed = connection.execute(f"UPDATE naive SET spent = spent + 1e-6 {scoped}", bounds).rowcount
                assert changed == NAIVE_ROWS // 10
            taken.append(perf_counter() - start)
            connection.execute("VACUUM naive")
    return min(taken)


# ---------------------------------------------------------------- past releases


def flat(address: str, key: str) -> list[str]:
    """One more release on a range that two cohorts share, after more and more releases elsewhere."""
    client = Client(address, key)
    size, most = 10**8, max(PAST)
    step = size // (most + 2)
    for past in PAST:
        client.populate(f"past-{past}", size)
        client.release_all(f"past-{past}", [[(number * step, (number + 1) * step)] for number in range(past)])
    taken: dict[int, list[tuple[float, float]]] = {past: [] for past in PAST}
    scope = [(10 * step + step // 2, 11 * step + step // 2)]
    for turn in range(10 * PROBES + 1):
        for past in PAST:
            pair = client.release(f"past-{past}", scope)
            if turn:
                taken[past].append(pair)
    print("\nOne more release after so many, each of which cut a range of its own: median, one connection")
    columns = "{:>8}{:>12}{:>12}{:>12}{:>8}"
    print(columns.format("past", "propose", "commit", "both", "ratio"))
    both = {past: median(map(sum, pairs)) for past, pairs in taken.items()}
    for past, pairs in taken.items():
        proposing, committing = (median(each) for each in zip(*pairs, strict=True))
        ratio = times(both[past] / both[PAST[0]])
        print(columns.format(f"{past:,}", duration(proposing), duration(committing), duration(both[past]), ratio))
    return [at_most(f"a release after {most:,} : after {PAST[0]}", both[most] / both[PAST[0]], FLAT_TARGET)]


# ---------------------------------------------------------------- the services and their clients


class Client:
    """A caller with one connection, who waits for every answer."""

    def __init__(self, address: str, key: str) -> None:
        self.address, self._key = address, key
        self._connection = HTTPConnection(address.removeprefix("http://"))

    def populate(self, name: str, size: int) -> None:
        """A population with so many datapoints."""
        self._post("/v1/populations", {"name": name, "unit": "record", "budget": BUDGET})
        self._post(f"/v1/populations/{name}/datapoints", {"count": size})

    def release(self, population: str, ranges: Ranges) -> tuple[float, float]:
        """Seconds to propose a release and to commit it."""
        start = perf_counter()
        answer = self._post("/v1/releases", _proposal(population, ranges))
        proposed = perf_counter()
        assert answer["status"] == "held", answer
        self._post(f"/v1/releases/{answer['id']}/commit", {})
        return proposed - start, perf_counter() - proposed

    def release_all(self, population: str, scopes: Sequence[Ranges]) -> None:
        """A release on each of these, by 16 connections."""
        rest = iter(scopes)

        def session() -> Session:
            for ranges in rest:
                answer = yield _request("/v1/releases", self._key, _proposal(population, ranges))
                place = answer.index(b'"id":"rel_') + 6
                identity = answer[place : place + 30].decode()
                yield _request(f"/v1/releases/{identity}/commit", self._key, {})

        uvloop.run(_drive(self.address, [session() for _ in range(16)], Load()))
        self._connection.close()  # the service has hung up if that took long; the next request connects again

    def batches(self) -> tuple[float, float]:
        """How many decisions there were so far, and in how many transactions."""
        text = self._answer("GET", "/metrics").decode()
        lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
        return float(lines["stint_batch_operations_sum"]), float(lines["stint_batch_operations_count"])

    def _post(self, path: str, document: object) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._answer("POST", path, json.dumps(document).encode()))
        return answer

    def _answer(self, method: str, path: str, body: bytes | None = None) -> bytes:
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        self._connection.request(method, path, body, headers)
        response = self._connection.getresponse()
        answer = response.read()
        assert response.status < 300, answer
        return answer


@contextmanager
def started(target: Callable[[Connection, Path, str], None], folder: Path, url: str) -> Iterator[tuple[str, str]]:
    """A service in its own process: its address, and a key."""
    ours, its = multiprocessing.Pipe()
    process = SPAWN.Process(target=target, args=(its, folder, url))
    process.start()
    try:
        if not ours.poll(60):
            raise TimeoutError("the service did not start")
        address, key = ours.recv()
        _wait_for(address)
        yield address, key
    finally:
        process.terminate()
        process.join(30)


def _wait_for(address: str) -> None:
    """Until it listens: an address is told a moment before."""
    host, port = address.removeprefix("http://").split(":")
    deadline = perf_counter() + 60
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except ConnectionRefusedError:
            if perf_counter() > deadline:
                raise
            sleep(0.05)
        else:
            return


def stint(told: Connection, folder: Path, url: str) -> None:
    """The service with its defaults; its log goes to a file."""
    sys.stderr = (folder / "stint.log").open("a")
    settings = Settings(database_url=url, data=folder, port=0)

    def tell(parts: Parts, address: str, _first: str | None) -> None:
        told.send((address, keys.create(parts.database, name="bench", roles=["admin"])["secret"]))

    serve(settings, started=tell)


class Insert(BaseModel):
    """What the bare service is sent: the shape of a proposal."""

    population: str
    charges: list[dict[str, Any]]


def _bare(told: Connection, _folder: Path, url: str) -> None:
    """FastAPI, pydantic, psycopg: one insert and one commit per request, by 16 connections to the database."""
    waiting: asyncio.Queue[psycopg.AsyncConnection] = asyncio.Queue()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE bare (id bigserial PRIMARY KEY, population text, body bytea, at timestamptz)")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        for _number in range(BARE_POOL):
            waiting.put_nowait(await psycopg.AsyncConnection.connect(url))
        yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/v1/releases", status_code=201)
    async def insert(new: Insert) -> dict[str, Any]:
        connection = await waiting.get()
        try:
            row = await connection.execute(
                "INSERT INTO bare (population, body, at) VALUES (%s, %s, now()) RETURNING id",
                [new.population, json.dumps(new.charges).encode()],
            )
            found = await row.fetchone()
            await connection.commit()
        finally:
            waiting.put_nowait(connection)
        assert found is not None
        return {"id": found[0], "population": new.population, "status": "held"}

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        told.send((f"http://127.0.0.1:{listener.getsockname()[1]}", ""))
        uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listener])


def in_process(target: Target, connections: int) -> Load:
    """What a load generator in a process of its own saw."""
    ours, its = multiprocessing.Pipe()
    process = SPAWN.Process(target=_load, args=(its, target, connections))
    process.start()
    if not ours.poll(60):
        process.kill()
        raise TimeoutError("the load generator did not answer")
    load: Load = ours.recv()
    process.join()
    return load
