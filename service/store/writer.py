"""Decisions, in batches: what arrives within a few milliseconds shares one transaction and one flush to disk.

An operation decides on an open book and returns bodies; it runs no SQL unless it says so. The writer locks the
populations of a batch, runs its operations in order, appends what they return, writes all of it, and answers once it is
durable. A population has the same writer as long as anything of it waits, so its requests wait for each other here and
not in the database. All populations share the first writer, and with it transactions, until a decision takes long:
then those that come go to the next.

If anything fails, nothing of the batch happened: the books are read again from the log, and each operation gets a
transaction of its own. Only when the commit itself failed is the outcome unknown; then nobody retries but the caller,
whose idempotency key finds out.
"""

from __future__ import annotations

import json
import logging
import math
import queue
import threading
from collections import Counter
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import psycopg
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
    def of(cls, *, actor: str, key: str, request: bytes) -> Idempotency:
        """Keys of different callers never meet."""
        return cls(id=sha256(actor.encode() + b"\x00" + key.encode()).digest(), digest=sha256(request).digest())

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
        _keep(_driver(connection), [(self, answer)], at)


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
    future: Future[Answer] = field(default_factory=Future)


class Writer:
    """The threads that decide."""

    def __init__(self, database: Database, shelf: Books, settings: Settings, metrics: Metrics) -> None:
        self._database, self._shelf, self._batch, self._metrics = database, shelf, settings.batch, metrics
        self._queues: list[queue.Queue[Operation | None]] = [
            queue.Queue(settings.queue) for _ in range(settings.writers)
        ]
        self._places = threading.Lock()
        self._waiting: dict[str, tuple[int, int]] = {}  # population → its writer, and how many operations wait there
        self._since = [math.inf] * settings.writers  # when each began with what it is doing; ∞ if with nothing
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"writer-{number}", daemon=True)
            for number in range(settings.writers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, operation: Operation) -> Future[Answer]:
        """Queue a decision; its future has the answer once that is durable."""
        with self._places:
            place, waiting = self._waiting.get(operation.population) or (self._free_writer(), 0)
            try:
                self._queues[place].put_nowait(operation)
            except queue.Full:
                raise Problem("busy", "Too many decisions are waiting.") from None
            self._waiting[operation.population] = place, waiting + 1
        return operation.future

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

    def close(self) -> None:
        """Finish what is queued, then stop."""
        for each in self._queues:
            each.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        waiting = self._queues[number]
        while (first := waiting.get()) is not None:
            self._since[number] = monotonic()
            batch = [first]
            while len(batch) < self._batch:
                try:
                    following = waiting.get_nowait()
                except queue.Empty:
                    break
                if following is None:
                    self._decide(batch)
                    return
                batch.append(following)
            self._decide(batch)
            self._done(batch)
            self._since[number] = math.inf

    def _decide(self, batch: Sequence[Operation]) -> None:
        """All of them, in order; one that uses SQL by itself, since its failure would take the others along.

        Whoever hung up before this point asked for nothing; from here on nobody can, and an answer has a place to go.
        """
        group: list[Operation] = []
        for operation in batch:
            if not operation.future.set_running_or_notify_cancel():
                continue
            if operation.uses_sql:
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
            try:
                with self._database.engine.connect() as connection:
                    answers = self._answers(connection, batch, slots)
                    committing = True
                    connection.commit()
            except Exception as problem:  # noqa: BLE001 - whatever it is, the callers must hear of it
                for slot in slots:
                    slot.book = None
                if committing or len(batch) == 1:
                    for operation in batch:
                        operation.future.set_exception(problem)
                    return
                answers = None
        if answers is None:
            for operation in batch:
                self._together([operation])
            return
        for slot in slots:
            if slot.book is None:
                self._shelf.forget(slot.name)
        self._metrics.batch.observe(len(batch))
        for operation, answer in zip(batch, answers, strict=True):
            if isinstance(answer, Answer):
                operation.future.set_result(answer)
            else:
                operation.future.set_exception(answer)

    def _answers(
        self, connection: Connection, batch: Sequence[Operation], slots: Sequence[books.Slot]
    ) -> list[Answer | Exception]:
        connection.begin()
        raw = _driver(connection)
        wanted = [operation.idempotency.id for operation in batch if operation.idempotency is not None]
        with raw.pipeline():  # one round trip
            locked = raw.execute(books.LOCK, {"names": [slot.name for slot in slots]})
            answered = raw.execute(_SELECT_ANSWERS, {"ids": wanted}) if wanted else None
        opened = books.opened(connection, slots, locked)
        known = {} if answered is None else _known(answered)
        at = datetime.now(UTC)
        page = _Page(at=at)
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
        page.write(raw, {slot.name: slot.id for slot in slots}, opened)
        for kind, count in page.kinds.items():
            self._metrics.decisions.labels(kind).inc(count)
        return answers


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

    def __init__(self, at: datetime) -> None:
        self.at = at
        self._stamp = stamp(at)
        self._entries: list[tuple[str, Link, str, str | None, bytes]] = []
        self._held: dict[str, tuple[str, str | None]] = {}
        self._ended: list[str] = []
        self._answers: list[tuple[Idempotency, Answer]] = []

    def append(self, book: Book, body: Body, actor: str, held: Held | None = None) -> Link:
        """Apply a body to its book, and keep it for writing."""
        spelled = book.append(body, at=self._stamp, actor=actor, held=held)
        self._entries.append((book.name, book.chain.link, body["kind"], body.get("release"), spelled))
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

    def write(self, raw: Raw, ids: dict[str, int], opened: dict[str, Book]) -> None:
        """All of it, in as few statements as there are tables, and one round trip."""
        with raw.pipeline():
            self._write(raw, ids, opened)

    def _write(self, connection: Raw, ids: dict[str, int], opened: dict[str, Book]) -> None:
        if self._entries:
            names, links, kinds, releases, bodies = zip(*self._entries, strict=True)
            populations = [ids[name] for name in names]
            numbers = [link.number for link in links]
            connection.execute(
                _INSERT_ENTRIES,
                {
                    "populations": populations, "numbers": numbers, "previous": [link.previous for link in links],
                    "hashes": [link.hash for link in links], "kinds": list(kinds), "releases": list(releases),
                    "bodies": list(bodies), "at": self.at,
                },
            )  # fmt: skip
            proposed = [
                (release, population, number)
                for release, population, number, kind in zip(releases, populations, numbers, kinds, strict=True)
                if kind in {"release.held", "release.denied"}
            ]
            if proposed:
                ids_, owners, where = map(list, zip(*proposed, strict=True))
                connection.execute(
                    _INSERT_RELEASES, {"ids": ids_, "populations": owners, "numbers": where, "at": self.at}
                )
            changed = sorted(set(names))
            heads = [opened[name].chain.head for name in changed]
            connection.execute(
                _UPDATE_HEADS,
                {
                    "ids": [ids[name] for name in changed], "numbers": [head.number for head in heads],
                    "hashes": [head.hash for head in heads], "roots": [head.root for head in heads],
                },
            )  # fmt: skip
        if self._held:
            connection.execute(
                _INSERT_HOLDS,
                {
                    "releases": list(self._held), "populations": [ids[name] for name, _ in self._held.values()],
                    "expiries": [None if at is None else datetime.fromisoformat(at) for _, at in self._held.values()],
                },
            )  # fmt: skip
        if self._ended:
            connection.execute(_DELETE_HOLDS, {"releases": self._ended})
        if self._answers:
            self._answers.sort(key=lambda answer: answer[0].id)  # in one order, so that writers never wait in a circle
            _keep(connection, self._answers, self.at)


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


def _keep(connection: Raw, answers: Sequence[tuple[Idempotency, Answer]], at: datetime) -> None:
    connection.execute(
        _INSERT_ANSWERS,
        {
            "ids": [key.id for key, _ in answers], "digests": [key.digest for key, _ in answers],
            "statuses": [answer.status for _, answer in answers],
            "responses": [json.dumps(answer.document).encode() for _, answer in answers], "at": at,
        },
    )  # fmt: skip


def stamp(at: datetime) -> str:
    """RFC 3339 in UTC, to the microsecond."""
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


_INSERT_ENTRIES = (
    "INSERT INTO entry (population_id, number, previous, hash, kind, release, at, body) "
    "SELECT p, n, v, h, k, r, CAST(%(at)s AS timestamptz), b FROM unnest(CAST(%(populations)s AS bigint[]), "
    "CAST(%(numbers)s AS bigint[]), CAST(%(previous)s AS bytea[]), CAST(%(hashes)s AS bytea[]), "
    "CAST(%(kinds)s AS text[]), CAST(%(releases)s AS text[]), CAST(%(bodies)s AS bytea[])) AS new (p, n, v, h, k, r, b)"
)
_INSERT_RELEASES = (
    "INSERT INTO release (id, population_id, number, at) SELECT i, p, n, CAST(%(at)s AS timestamptz) "
    "FROM unnest(CAST(%(ids)s AS text[]), CAST(%(populations)s AS bigint[]), CAST(%(numbers)s AS bigint[])) "
    "AS new (i, p, n)"
)
_UPDATE_HEADS = (
    "UPDATE population SET number = n, hash = h, root = r FROM unnest(CAST(%(ids)s AS bigint[]), "
    "CAST(%(numbers)s AS bigint[]), CAST(%(hashes)s AS bytea[]), CAST(%(roots)s AS bytea[])) "
    "AS new (i, n, h, r) WHERE id = i"
)
_INSERT_HOLDS = (
    "INSERT INTO hold (release, population_id, expires_at) SELECT * FROM unnest(CAST(%(releases)s AS text[]), "
    "CAST(%(populations)s AS bigint[]), CAST(%(expiries)s AS timestamptz[]))"
)
_DELETE_HOLDS = "DELETE FROM hold WHERE release = ANY(%(releases)s)"
_INSERT_ANSWERS = (
    "INSERT INTO idempotency (id, digest, status, response, at) SELECT i, d, s, r, CAST(%(at)s AS timestamptz) "
    "FROM unnest(CAST(%(ids)s AS bytea[]), CAST(%(digests)s AS bytea[]), CAST(%(statuses)s AS integer[]), "
    "CAST(%(responses)s AS bytea[])) AS new (i, d, s, r)"
)
_SELECT_ANSWERS = "SELECT id, digest, status, response FROM idempotency WHERE id = ANY(%(ids)s)"
