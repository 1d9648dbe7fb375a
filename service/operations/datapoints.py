"""Datapoints: registered by key or by number, looked up, erased.

A key is stored as a digest under a secret that the database does not have, so what leaks is no list of people. An
erased key keeps its digest: whoever registers it again meets the old balance, and deletion resets no budget.
"""

from __future__ import annotations

from hashlib import blake2b, sha256
from typing import TYPE_CHECKING, Any, Final

from pyroaring import BitMap, FrozenBitMap
from sqlalchemy import text

from accountant.cohorts import MAX_DATAPOINTS
from accountant.errors import InvalidInput
from service.errors import NotFound, Problem
from service.operations import readings
from service.operations.populations import entry
from service.store.writer import Decide, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from sqlalchemy import Connection

    from accountant.book import Body, Book
    from accountant.chain import Link
    from service.store.database import Database

MAX_KEY: Final = 1000
CHUNK: Final = 20_000
DIGEST_BYTES: Final = 20
KEYS_TAG: Final = b"stint.keys.v1\x00"

_KNOWN = text(
    "SELECT digest, ordinal, erased_at IS NOT NULL AS erased FROM datapoint "
    "WHERE population_id = (SELECT id FROM population WHERE name = :name) AND digest = ANY(:digests)"
)
_INSERT = text(
    "INSERT INTO datapoint (population_id, digest, ordinal) SELECT (SELECT id FROM population WHERE name = :name), d, "
    "CAST(:first AS bigint) + o - 1 FROM unnest(CAST(:digests AS bytea[])) WITH ORDINALITY AS new (d, o)"
)
_MARK = text(
    "UPDATE datapoint SET erased_at = CAST(:at AS timestamptz) "
    "WHERE population_id = (SELECT id FROM population WHERE name = :name) AND digest = ANY(:digests)"
)


def digest(secret: bytes, population: str, key: str) -> bytes:
    """What is stored of a key: keyed, and different in every population."""
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY:
        raise InvalidInput("key", "a key", f"text of 1 to {MAX_KEY} characters")
    try:
        spelled = key.encode()
    except UnicodeEncodeError:
        raise InvalidInput("key", "a key", "text without lone surrogates, which UTF-8 cannot write") from None
    return blake2b(population.encode() + b"\x00" + spelled, key=secret, digest_size=DIGEST_BYTES).digest()


def digest_of(digests: Iterable[bytes]) -> str:
    """What the log says of keys that were registered together, in the order of their ordinals.

    Each is a keyed digest already, of one length, and stays as a tombstone when its key is erased: so this can be
    computed again at any time, and without the secret it tells nobody anything about a key.
    """
    return sha256(KEYS_TAG + b"".join(digests)).hexdigest()


def _must_have_room(book: Book, count: int) -> None:
    if book.size + count > MAX_DATAPOINTS:
        raise InvalidInput("count", count, f"at most {MAX_DATAPOINTS - book.size:,}, of 2^32 in a population")


def register_count(count: int) -> Decide:
    """So many datapoints without keys; they cost no rows."""

    def decide(book: Book, _at: datetime, _connection: Connection | None) -> Outcome:
        _must_be_open(book)
        _must_have_room(book, count)
        first = book.size

        def respond(links: Sequence[Link]) -> dict[str, Any]:
            return {
                "registered": count,
                "known": 0,
                "returned": 0,
                "first_ordinal": first,
                "datapoints": book.size,
                "entry": entry(links[-1]),
            }

        body: Body = {"kind": "datapoints.registered", "count": count, "keys": None}
        return Outcome(bodies=[body], status=201, respond=respond)

    return decide


def register_digests(digests: Sequence[bytes]) -> Decide:
    """Keyed datapoints: new ones get the next ordinals, known ones keep theirs, an erased one returns to its own."""

    def decide(book: Book, _at: datetime, connection: Connection | None) -> Outcome:
        assert connection is not None
        _must_be_open(book)
        unique = list(dict.fromkeys(digests))
        rows = connection.execute(_KNOWN, {"name": book.name, "digests": unique}).all()
        known = {bytes(row.digest) for row in rows}
        back = [(bytes(row.digest), row.ordinal) for row in rows if row.erased]
        new = [each for each in unique if each not in known]
        _must_have_room(book, len(new))
        first = book.size
        bodies: list[Body] = [{"kind": "datapoint.returned", "ordinal": ordinal} for _, ordinal in back]
        if back:
            connection.execute(_MARK, {"name": book.name, "digests": [each for each, _ in back], "at": None})
        if new:
            connection.execute(_INSERT, {"name": book.name, "digests": new, "first": first})
            bodies.append({"kind": "datapoints.registered", "count": len(new), "keys": digest_of(new)})

        def respond(links: Sequence[Link]) -> dict[str, Any]:
            return {
                "registered": len(new),
                "known": len(digests) - len(new) - len(back),
                "returned": len(back),
                "first_ordinal": first,
                "datapoints": book.size,
                "entry": entry(links[-1] if links else book.chain.link),
            }

        return Outcome(bodies=bodies, status=201, respond=respond)

    return decide


def erase(given: bytes) -> Decide:
    """Forget a key: it can no longer be looked up. The ordinal's history stays, and so does its balance."""

    def decide(book: Book, at: datetime, connection: Connection | None) -> Outcome:
        assert connection is not None
        row = connection.execute(_KNOWN, {"name": book.name, "digests": [given]}).one_or_none()
        if row is None:
            raise NotFound("datapoint with this key in", book.name)
        if row.erased:
            return Outcome(bodies=[], status=200, respond=lambda _: {"erased": True, "ordinal": row.ordinal})
        connection.execute(_MARK, {"name": book.name, "digests": [given], "at": at})
        return Outcome(
            bodies=[{"kind": "datapoint.erased", "ordinal": row.ordinal}],
            status=200,
            respond=lambda links: {"erased": True, "ordinal": row.ordinal, "entry": entry(links[-1])},
        )

    return decide


def ordinals(database: Database, population: str, digests: Sequence[bytes]) -> FrozenBitMap:
    """The datapoints with these keys; all must be there. An erased one answers to its key in a scope no more."""
    with database.transaction() as connection:
        rows = connection.execute(_KNOWN, {"name": population, "digests": list(set(digests))}).all()
    missing = len(set(digests)) - sum(not row.erased for row in rows)
    if missing:
        raise Problem("invalid", f"{missing:,} of the keys are not registered, or erased.", "keys")
    return FrozenBitMap(BitMap([row.ordinal for row in rows]))


def known(database: Database, population: str, digests: Sequence[bytes]) -> dict[bytes, int]:
    """The ordinals of those digests that belong to somebody who was not erased."""
    with database.transaction() as connection:
        rows = connection.execute(_KNOWN, {"name": population, "digests": list(digests)})
        return {bytes(row.digest): row.ordinal for row in rows if not row.erased}


def find(database: Database, population: str, given: bytes) -> int:
    """The ordinal of a key."""
    with database.transaction() as connection:
        row = connection.execute(_KNOWN, {"name": population, "digests": [given]}).one_or_none()
    if row is None:
        raise NotFound("datapoint with this key in", population)
    if row.erased:
        raise Problem("gone", "This key was erased.")
    return int(row.ordinal)


def shown(book: Book, ordinal: int, charges: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One datapoint: its readings in every ledger that it is in, its tasks, and everything released about it."""
    history = book.ledger.cohorts.history(ordinal)
    budget = book.policy.budget
    tasks = [task for task in book.tasks.values() if ordinal in task.members]
    return {
        "population": book.name,
        "ordinal": ordinal,
        "erased": ordinal in book.erased,
        "epsilon": readings.shown(readings.reading(budget, history)),
        "delta": budget.delta,
        "bound": readings.bound(book),
        "tasks": [
            {
                "name": task.name,
                "parts": [name for name, part in task.parts.items() if ordinal in part],
                "epsilon": None
                if task.budget is None
                else readings.shown(readings.reading(task.budget, history, ledger=task.name)),
                "delta": None if task.budget is None else task.budget.delta,
            }
            for task in tasks
        ],
        "charges": list(charges),
    }


def _must_be_open(book: Book) -> None:
    if book.status != "open":
        raise Problem("conflict", f"Population {book.name!r} is {book.status}: nobody can be added.")
