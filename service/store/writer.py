"""Decisions, in batches: what arrives within a few milliseconds shares one transaction and one flush to disk.

An operation decides on an open book and returns bodies; it runs no SQL unless it says so. The writer locks the
populations of a batch, runs its operations in order, appends what they return, writes all of it, and answers once it is
durable. A population has the same writer as long as anything of it waits, so its requests wait for each other here and
not in the database. All populations share the first writer, and with it transactions, until a decision takes long:
then those that come go to the next.

If anything fails, nothing of the batch happened: the books are read again from the log, and each operation gets a
transaction of its own. What is written travels with its commit, in one round trip. If that fails and the database did
not say why, the outcome is unknown; then nobody retries but the caller, whose idempotency key finds out.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import queue
import re
import threading
from collections import Counter
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from accountant.chain import Link
from service.errors import NotFound, Problem
from service.store import books

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from accountant.book import Body, Book
    from accountant.ledger import Held
    from service.metrics import Metrics
    from service.settings import Settings
    from service.store.books import Books
    from service.store.database import Database

_log = logging.getLogger(__name__)
_HELD_UP_SECONDS = 0.05
_WORD: Final = re.compile(r"[A-Za-z0-9_.:-]+")
_UNDONE: Final = frozenset({"22", "23", "40", "42", "55P03", "57014"})  # SQLSTATEs, or their classes
_UNKNOWN: Final = "40003"  # statement_completion_unknown
_WITH_FINDINGS: Final = frozenset({"release.held", "release.denied", "release.committed", "release.audited"})
Raw: TypeAlias = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a request is told."""

    status: int
    document: dict[str, Any]
    replayed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Bodies to append, and the answer, given their links."""

    bodies: Sequence[Body]
    status: int
    respond: Callable[[Sequence[Link]], dict[str, Any]]
    held: Held | None = None  # what the one body holds, if it does


@dataclass(frozen=True, slots=True, kw_only=True)
class Idempotency:
    """A caller's name for a request, and the digest of what was asked under it."""

    id: bytes
    digest: bytes

    @classmethod
    def of(cls, *, actor: str, key: str, request: bytes, secret: bytes) -> Idempotency:
        """Keys of different callers never meet.

        A request may hold keys of datapoints, so it is hashed under the installation's secret: otherwise who reads the
        database could try out names, those of the erased too.
        """
        name = actor.encode() + b"\x00" + key.encode()
        return cls(id=_keyed(secret, b"name", name), digest=_keyed(secret, b"request", request))

    def answered(self, connection: Connection) -> Answer | None:
        """What was answered under this name before, if it was the same request."""
        return self.same(_known(_driver(connection).execute(_SELECT_ANSWERS, {"ids": [self.id]})))

    def same(self, known: Mapping[bytes, tuple[bytes, Answer]]) -> Answer | None:
        """The answer among those known; another request under the same name is refused."""
        if self.id not in known:
            return None
        digest, answer = known[self.id]
        if digest != self.digest:
            raise Problem("key-reused", "This Idempotency-Key was sent before with another request.")
        return Answer(status=answer.status, document=answer.document, replayed=True)

    def remember(self, connection: Connection, answer: Answer, at: datetime) -> None:
        """Keep an answer for ever."""
        _driver(connection).execute(_INSERT_ANSWERS, {"at": at, **_kept([(self, answer)])})


Waiter: TypeAlias = Future[Answer] | asyncio.Future[Answer]  # of a thread, or on a loop
Told: TypeAlias = tuple[Waiter, Answer | Exception]


class Decide(Protocol):
    """What an operation does with an open book; `connection` is None unless it asked for one."""

    def __call__(self, book: Book, at: datetime, connection: Connection | None, /) -> Outcome: ...


@dataclass(slots=True, kw_only=True)
class Operation:
    """A decision to be made on one population."""

    population: str
    actor: str
    decide: Decide
    idempotency: Idempotency | None = None
    uses_sql: bool = False
    at: datetime | None = None  # of a history that is made up; whatever really happens, happens now
    waiter: Waiter = field(init=False)


class Writer:
    """The threads that decide."""

    def __init__(self, database: Database, shelf: Books, settings: Settings, metrics: Metrics) -> None:
        self._database, self._shelf, self._batch, self._metrics = database, shelf, settings.batch, metrics
        self._queues: list[queue.Queue[Operation | None]] = [
            queue.Queue(settings.queue) for _ in range(settings.writers)
        ]
        metrics.waiting.set_function(lambda: sum(each.qsize() for each in self._queues))
        self._places = threading.Lock()
        self._waiting: dict[str, tuple[int, int]] = {}  # population → its writer, and how many operations wait there
        self._since = [math.inf] * settings.writers  # when each began with what it is doing; ∞ if with nothing
        self._own = threading.local()  # a writer's connection: to take one from the pool and to try it takes a while
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"writer-{number}", daemon=True)
            for number in range(settings.writers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, operation: Operation) -> Future[Answer]:
        """Queue a decision; its future has the answer once that is durable."""
        waiter: Future[Answer] = Future()
        self._queue(operation, waiter)
        return waiter

    async def decision(self, operation: Operation) -> Answer:
        """Queue a decision, and wait on the loop until it is durable."""
        waiter: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._queue(operation, waiter)
        return await waiter

    def _queue(self, operation: Operation, waiter: Waiter) -> None:
        operation.waiter = waiter
        with self._places:
            place, waiting = self._waiting.get(operation.population) or (self._free_writer(), 0)
            try:
                self._queues[place].put_nowait(operation)
            except queue.Full:
                raise Problem("busy", "Too many decisions are waiting.") from None
            self._waiting[operation.population] = place, waiting + 1

    def _free_writer(self) -> int:
        """The first that is not held up; if all are, the one that began last."""
        latest = monotonic() - _HELD_UP_SECONDS
        free = (number for number, since in enumerate(self._since) if since >= latest)
        return next(free, max(range(len(self._since)), key=lambda number: self._since[number]))

    def _done(self, batch: Sequence[Operation]) -> None:
        with self._places:
            for operation in batch:
                place, waiting = self._waiting.pop(operation.population)
                if waiting > 1:
                    self._waiting[operation.population] = place, waiting - 1

    @property
    def is_alive(self) -> bool:
        """Whether decisions can be made."""
        return all(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        """Finish what is queued, then stop."""
        for each in self._queues:
            each.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        try:
            self._work(number)
        finally:
            self._hang_up()

    def _work(self, number: int) -> None:
        waiting, closed = self._queues[number], False
        while not closed and (first := waiting.get()) is not None:
            self._since[number] = monotonic()
            batch = [first]
            while len(batch) < self._batch:
                try:
                    following = waiting.get_nowait()
                except queue.Empty:
                    break
                if following is None:
                    closed = True
                    break
                batch.append(following)
            try:
                self._decide(batch)
            except Exception as problem:  # noqa: BLE001 - a writer that died would leave its populations stuck for ever
                _log.exception("a batch failed")
                _tell([(operation.waiter, problem) for operation in batch])
            finally:
                self._done(batch)
                self._since[number] = math.inf

    def _decide(self, batch: Sequence[Operation]) -> None:
        """All of them, in order; one that uses SQL by itself, since its failure would take the others along.

        One with a time of its own is by itself too. Whoever hung up before this point asked for nothing.
        """
        group: list[Operation] = []
        for operation in batch:
            if operation.waiter.cancelled():
                continue
            if operation.uses_sql or operation.at is not None:
                self._together(group)
                self._together([operation])
                group = []
            else:
                group.append(operation)
        self._together(group)

    def _together(self, batch: Sequence[Operation]) -> None:
        if not batch:
            return
        committing = False
        slots = [self._shelf.slot(name) for name in sorted({operation.population for operation in batch})]
        with ExitStack() as stack:
            for slot in slots:
                stack.enter_context(slot.lock)
            connected = self._connection is not None
            try:
                connection = self._connect()
                answers, page = self._answers(connection, batch, slots)
                committing = True
                page.commit(connection)
            except Exception as problem:  # noqa: BLE001 - whatever it is, the callers must hear of it
                for slot in slots:
                    slot.book = None
                self._hang_up()
                committing = committing and not _undone(problem)
                # The database may have hung up since the last batch: then a new connection is worth another try.
                stale = connected and isinstance(problem, DBAPIError | psycopg.OperationalError)
                if committing or (len(batch) == 1 and not stale):
                    _tell([(operation.waiter, problem) for operation in batch])
                    return
                answers, page = None, None
        if answers is None or page is None:
            for operation in batch:
                self._together([operation])
            return
        for slot in slots:
            if slot.book is None:
                self._shelf.forget(slot.name)
        self._metrics.batch.observe(len(batch))
        for kind, count in page.kinds.items():
            self._metrics.decisions.labels(kind).inc(count)
        for (code, severity), count in page.findings.items():
            self._metrics.findings.labels(code, severity).inc(count)
        _tell([(operation.waiter, answer) for operation, answer in zip(batch, answers, strict=True)])

    @property
    def _connection(self) -> Connection | None:
        return getattr(self._own, "connection", None)

    def _connect(self) -> Connection:
        if self._connection is None:
            self._own.connection = self._database.engine.connect()
            _driver(self._own.connection).autocommit = True  # else it would wait for its BEGIN, a round trip by itself
        connection: Connection = self._own.connection
        return connection

    def _hang_up(self) -> None:
        connection, self._own.connection = self._connection, None
        if connection is not None:
            for end in (connection.invalidate, connection.close):  # one that is lost cannot even be rolled back
                with suppress(DBAPIError, psycopg.Error):
                    end()

    def _answers(
        self, connection: Connection, batch: Sequence[Operation], slots: Sequence[books.Slot]
    ) -> tuple[list[Answer | Exception], _Page]:
        connection.begin()
        raw = _driver(connection)
        wanted = [operation.idempotency.id for operation in batch if operation.idempotency is not None]
        # One round trip, but no pipeline: the flush that ends one stops PostgreSQL's clock for a pause, and whoever is
        # suspended from here on would keep its locks.
        with psycopg.ClientCursor(raw) as cursor:
            cursor.execute(_OPEN, {"names": [slot.name for slot in slots], "ids": wanted})
            cursor.nextset()
            locked = cursor.fetchall()
            cursor.nextset()
            known = _known(cursor)
        opened = books.opened(connection, slots, locked)
        at = batch[0].at or datetime.now(UTC)
        page = _Page(at, {slot.name: slot.id for slot in slots}, opened)
        answers: list[Answer | Exception] = []
        for operation in batch:
            try:
                decided = _decided(connection, operation, opened, known, at)
            except (DBAPIError, psycopg.Error):
                raise  # the transaction is spoiled
            except Exception as problem:  # noqa: BLE001 - one caller's fault is not the others'
                answers.append(problem)
                continue
            if isinstance(decided, Outcome):  # from here on a failure is one of ours, and undoes the batch
                book = opened[operation.population]
                links = [page.append(book, body, operation.actor, decided.held) for body in decided.bodies]
                decided = Answer(status=decided.status, document=decided.respond(links))
                if (key := operation.idempotency) is not None:
                    known[key.id] = (key.digest, decided)
                    page.remember(key, decided)
            answers.append(decided)
        return answers, page


def _tell(answers: Sequence[Told]) -> None:
    """All who wait on one loop hear by one call: each would take a system call to wake it."""
    on_loops: dict[asyncio.AbstractEventLoop, list[Told]] = {}
    for waiter, answer in answers:
        if isinstance(waiter, asyncio.Future):
            on_loops.setdefault(waiter.get_loop(), []).append((waiter, answer))
        else:
            _tell_each([(waiter, answer)])
    for loop, told in on_loops.items():
        with suppress(RuntimeError):  # a loop that is closed has nobody left who waits
            loop.call_soon_threadsafe(_tell_each, told)


def _tell_each(answers: Sequence[Told]) -> None:
    for waiter, answer in answers:
        if waiter.done():
            continue  # hung up, or told that it takes too long
        if isinstance(answer, Answer):
            waiter.set_result(answer)
        else:
            waiter.set_exception(answer)


def _decided(
    connection: Connection,
    operation: Operation,
    opened: dict[str, Book],
    known: dict[bytes, tuple[bytes, Answer]],
    at: datetime,
) -> Outcome | Answer:
    key = operation.idempotency
    if key is not None and (before := key.same(known)) is not None:
        return before
    book = opened.get(operation.population)
    if book is None:
        raise NotFound("population", operation.population)
    return operation.decide(book, at, connection if operation.uses_sql else None)


class _Page:
    """What a batch writes."""

    def __init__(self, at: datetime, ids: Mapping[str, int], opened: Mapping[str, Book]) -> None:
        self.at = at
        self._ids, self._opened = ids, opened
        self._stamp = stamp(at)
        self._entries: list[tuple[str, Link, str, str | None, bytes]] = []
        self._held: dict[str, tuple[str, str | None]] = {}
        self._ended: list[str] = []
        self._answers: list[tuple[Idempotency, Answer]] = []
        self.findings: Counter[tuple[str, str]] = Counter()  # by code and severity

    def append(self, book: Book, body: Body, actor: str, held: Held | None = None) -> Link:
        """Apply a body to its book, and keep it for writing."""
        spelled = book.append(body, at=self._stamp, actor=actor, held=held)
        self._entries.append((book.name, book.chain.link, body["kind"], body.get("release"), spelled))
        if body["kind"] in _WITH_FINDINGS:
            told = (*body.get("findings", ()), *body.get("reported", {}).get("findings", ()))
            self.findings.update((each["code"], each["severity"]) for each in told)
        match body["kind"]:
            case "release.held":
                self._held[body["release"]] = (book.name, body.get("expires_at"))
            case "release.committed" | "release.voided" | "release.expired":
                if self._held.pop(body["release"], None) is None:
                    self._ended.append(body["release"])
        return book.chain.link

    @property
    def kinds(self) -> Counter[str]:
        """How many entries of each kind."""
        return Counter(kind for _, _, kind, _, _ in self._entries)

    def remember(self, key: Idempotency, answer: Answer) -> None:
        """Keep an answer for ever."""
        self._answers.append((key, answer))

    def commit(self, connection: Connection) -> None:
        """Write all of it and commit, in one round trip: after each the writer would wait its turn to compute again."""
        raw = _driver(connection)
        assert raw.info.transaction_status is TransactionStatus.INTRANS, "nothing is written without its locks"
        with raw.pipeline():
            self._write(raw)
            raw.commit()
        connection.commit()  # of which the driver knows that nothing is left to do

    def _write(self, raw: Raw) -> None:
        self._answers.sort(key=lambda answer: answer[0].id)  # in one order, so that writers never wait in a circle
        if not self._entries:
            if self._answers:
                raw.execute(_INSERT_ANSWERS, {"at": self.at, **_kept(self._answers)})
            return
        changed = sorted({name for name, *_ in self._entries})
        heads = [self._opened[name].chain.head for name in changed]
        raw.execute(
            _WRITE,
            {
                "at": self.at,
                "populations": _array(self._ids[name] for name, *_ in self._entries),
                "numbers": _array(link.number for _, link, *_ in self._entries),
                "previous": [link.previous for _, link, *_ in self._entries],
                "hashes": [link.hash for _, link, *_ in self._entries],
                "kinds": _array(kind for *_, kind, _, _ in self._entries),
                "releases": _array(release for *_, release, _ in self._entries),
                "bodies": [body for *_, body in self._entries],
                "changed": _array(self._ids[name] for name in changed),
                "head_numbers": _array(head.number for head in heads),
                "head_hashes": [head.hash for head in heads],
                "roots": [head.root for head in heads],
                "held": _array(self._held),
                "holders": _array(self._ids[name] for name, _ in self._held.values()),
                "expiries": _array(at for _, at in self._held.values()),
                "ended": _array(self._ended),
                **_kept(self._answers),
            },
        )


def _undone(problem: Exception) -> bool:
    """Whether the database said itself that it took everything back: bad data, a broken rule, a conflict, a time limit.

    An error of a statement makes it skip all that was sent up to the next sync, and so the commit; and a transaction
    that failed is rolled back whatever it is told. What it says when it is shut down may follow on a commit that was
    durable already. (PostgreSQL 18, protocol-flow, "Pipelining"; appendix A for the codes.)
    """
    state = problem.sqlstate if isinstance(problem, psycopg.Error) else None
    return state is not None and (state[:2] in _UNDONE or state in _UNDONE) and state != _UNKNOWN


def _array(values: Iterable[int | str | None]) -> str:
    """A list as PostgreSQL spells one; the driver takes forty microseconds for a few numbers, this three.

    Only for numbers, and for words of ours: every other sign would have to be quoted.
    """
    spelled = ["NULL" if value is None else str(value) for value in values]
    assert all(map(_WORD.fullmatch, spelled)), "a list of words"
    return "{" + ",".join(spelled) + "}"


def _driver(connection: Connection) -> Raw:
    """The driver's own connection, in the same transaction: SQLAlchemy has no pipelines."""
    raw = connection.connection.driver_connection
    assert isinstance(raw, psycopg.Connection)
    return raw


def _known(rows: Iterable[tuple[bytes, bytes, int, bytes]]) -> dict[bytes, tuple[bytes, Answer]]:
    return {
        bytes(name): (bytes(digest), Answer(status=status, document=json.loads(response)))
        for name, digest, status, response in rows
    }


def _kept(answers: Sequence[tuple[Idempotency, Answer]]) -> dict[str, Any]:
    return {
        "ids": [key.id for key, _ in answers],
        "digests": [key.digest for key, _ in answers],
        "statuses": _array(answer.status for _, answer in answers),
        "responses": [json.dumps(answer.document).encode() for _, answer in answers],
    }


def _keyed(secret: bytes, what: bytes, content: bytes) -> bytes:
    return blake2b(content, key=secret, person=what, digest_size=32).digest()


def stamp(at: datetime) -> str:
    """RFC 3339 in UTC, to the microsecond."""
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


_INSERT_ANSWERS = (
    "INSERT INTO idempotency (id, digest, status, response, at) SELECT i, d, s, r, CAST(%(at)s AS timestamptz) "
    "FROM unnest(CAST(%(ids)s AS bytea[]), CAST(%(digests)s AS bytea[]), CAST(%(statuses)s AS integer[]), "
    "CAST(%(responses)s AS bytea[])) AS new (i, d, s, r)"
)
_WRITE = f"""
WITH new AS (
    SELECT * FROM unnest(
        CAST(%(populations)s AS bigint[]), CAST(%(numbers)s AS bigint[]), CAST(%(previous)b AS bytea[]),
        CAST(%(hashes)b AS bytea[]), CAST(%(kinds)s AS text[]), CAST(%(releases)s AS text[]),
        CAST(%(bodies)b AS bytea[])
    ) AS new (p, n, v, h, k, r, b)
), entries AS (
    INSERT INTO entry (population_id, number, previous, hash, kind, release, at, body)
    SELECT p, n, v, h, k, r, CAST(%(at)s AS timestamptz), b FROM new
), releases AS (
    INSERT INTO release (id, population_id, number, at)
    SELECT r, p, n, CAST(%(at)s AS timestamptz) FROM new WHERE k IN ('release.held', 'release.denied')
), heads AS (
    UPDATE population SET number = n, hash = h, root = r FROM unnest(
        CAST(%(changed)s AS bigint[]), CAST(%(head_numbers)s AS bigint[]), CAST(%(head_hashes)b AS bytea[]),
        CAST(%(roots)b AS bytea[])
    ) AS head (i, n, h, r) WHERE id = i
), holds AS (
    INSERT INTO hold (release, population_id, expires_at) SELECT * FROM unnest(
        CAST(%(held)s AS text[]), CAST(%(holders)s AS bigint[]), CAST(%(expiries)s AS timestamptz[])
    )
), ended AS (
    DELETE FROM hold WHERE release = ANY(CAST(%(ended)s AS text[]))
)
{_INSERT_ANSWERS}"""  # noqa: S608 - of constants
_SELECT_ANSWERS = "SELECT id, digest, status, response FROM idempotency WHERE id = ANY(CAST(%(ids)s AS bytea[]))"
_OPEN = f"BEGIN; {books.LOCK}; {_SELECT_ANSWERS}"
