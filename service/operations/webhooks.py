"""Webhooks: a violation is told to the receiver that the operator named, at least once.

The row is written in the transaction of the entry that it tells of, so there is never one without the other, and is
there for whoever comes after a crash. What is told is read from the ledger when it is sent. A try is counted, and the
next one set, before it is made: whoever dies in it is followed by another.

Spelled and signed as Standard Webhooks (standardwebhooks.com, version 1.0.0): receivers have libraries for it.
"""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from sqlalchemy import text

from accountant.canonical import canonical
from service.operations.releases import new_id
from service.store.writer import stamp

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy import Connection

    from service.store.books import Books
    from service.store.database import Database

Status: TypeAlias = Literal["waiting", "delivered", "given_up"]
STATUSES: Final[tuple[Status, ...]] = ("waiting", "delivered", "given_up")
KIND: Final = "audit.violation"
#: How long a receiver may take, from the first packet to the status of its answer.
ANSWER_SECONDS: Final = 10.0
#: How long to wait after each try that failed, in seconds: eight tries in about 28 hours.
PAUSES: Final = (5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, 36_000.0)
TRIES: Final = len(PAUSES) + 1
_PREFIX: Final = "msg_"

_INSERT = text(
    "INSERT INTO webhook (id, audit, status, tries, due_at, created_at) VALUES (:id, :audit, 'waiting', 0, :at, :at)"
)
# Whoever takes it has as long as an answer may take, and as much again, before another would.
_TAKE = text(
    "UPDATE webhook SET tries = webhook.tries + 1, due_at = now() + make_interval(secs => :seconds) "
    "FROM audit JOIN population ON population.id = audit.population_id "
    "WHERE audit.id = webhook.audit AND webhook.id = (SELECT id FROM webhook WHERE status = 'waiting' "
    "AND tries < :most AND due_at <= now() ORDER BY due_at, id LIMIT 1 FOR UPDATE SKIP LOCKED) "
    "RETURNING webhook.id, webhook.audit, webhook.tries, population.name AS population"
)
_DELIVERED = text(
    "UPDATE webhook SET status = 'delivered', due_at = NULL, error = NULL, ended_at = now() "
    "WHERE id = :id AND status = 'waiting'"
)
_FAILED = text(
    "UPDATE webhook SET error = :error, due_at = now() + make_interval(secs => :pause) "
    "WHERE id = :id AND tries = :tries AND status = 'waiting'"
)
# The last try failed, or whoever made it did not live to say.
_GIVEN_UP = text(
    "UPDATE webhook SET status = 'given_up', due_at = NULL, ended_at = now() "
    "WHERE status = 'waiting' AND tries >= :most AND due_at <= now() RETURNING id, audit, error"
)
_COUNTS = text("SELECT status, count(*) AS webhooks FROM webhook GROUP BY status")
_ENTRY = text(
    "SELECT entry.hash, entry.at FROM entry JOIN population ON population.id = entry.population_id "
    "WHERE population.name = :population AND entry.number = :number"
)


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A webhook that the caller is to deliver now."""

    id: str
    audit: str
    population: str
    tries: int  # this one included


def put(connection: Connection, *, audit: str, at: datetime) -> None:
    """Have the violation that an audit found told, in the transaction of its entry."""
    connection.execute(_INSERT, {"id": new_id(_PREFIX, at), "audit": audit, "at": at})


def take(database: Database) -> Taken | None:
    """The next webhook that is due, if there is one; nobody else is given it while it is being delivered."""
    asked = {"most": TRIES, "seconds": 2 * ANSWER_SECONDS}
    with database.transaction() as connection:
        row = connection.execute(_TAKE, asked).mappings().one_or_none()
    return None if row is None else Taken(**row)


def delivered(database: Database, taken: Taken) -> None:
    """The receiver said that it has it."""
    with database.transaction() as connection:
        connection.execute(_DELIVERED, {"id": taken.id})


def failed(database: Database, taken: Taken, error: str) -> None:
    """The receiver did not say that it has it: another try, after a pause that grows, or none if this was the last."""
    pause = PAUSES[taken.tries - 1] if taken.tries < TRIES else 0.0
    with database.transaction() as connection:
        connection.execute(_FAILED, {"id": taken.id, "tries": taken.tries, "error": error, "pause": pause})


def give_up(database: Database) -> list[tuple[str, str, str | None]]:
    """Webhooks, each with its audit and last error, whose tries are all used, and which are given up by this."""
    with database.transaction() as connection:
        return [(row.id, row.audit, row.error) for row in connection.execute(_GIVEN_UP, {"most": TRIES})]


def counts(database: Database) -> dict[str, int]:
    """How many webhooks there are of each status."""
    with database.transaction() as connection:
        found = {row.status: row.webhooks for row in connection.execute(_COUNTS)}
    return {status: found.get(status, 0) for status in STATUSES}


def body(database: Database, books: Books, taken: Taken) -> bytes:
    """What is told, from the ledger: the same at every try, and nothing of anybody."""
    with books.read(taken.population) as book:
        audit = book.audits[taken.audit]
    assert audit.bound is not None
    assert audit.verdict == "violation"
    with database.transaction() as connection:
        entry = connection.execute(_ENTRY, {"population": taken.population, "number": audit.ended}).one()
    bound = audit.bound
    document: dict[str, Any] = {
        "type": KIND,
        "timestamp": stamp(entry.at),
        "data": {
            "population": taken.population,
            "audit": audit.id,
            "mechanism": audit.mechanism,
            "name": audit.name,
            "number": audit.number,
            "confidence": audit.confidence,
            "promise": {"epsilon": audit.epsilon, "delta": audit.delta, "by": audit.by, "bound": "upper"},
            "found": {"epsilon_lower": bound.epsilon_lower, "delta": bound.delta, "method": bound.method},
            "sentence": audit.sentence,
            "on_violation": audit.on_violation,
            "entry": {"number": audit.ended, "hash": bytes(entry.hash).hex()},
        },
    }
    return canonical(document)


def headers(taken_id: str, content: bytes, *, key: bytes, at: datetime) -> dict[str, str]:
    """What a receiver checks: the name under which it may have come before, when it was sent, and by whom.

    The signature is HMAC-SHA256 over `id.timestamp.content`, under the secret that both sides know.
    """
    timestamp = str(int(at.timestamp()))
    signature = hmac.digest(key, f"{taken_id}.{timestamp}.".encode() + content, "sha256")
    return {
        "content-type": "application/json",
        "webhook-id": taken_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": "v1," + base64.b64encode(signature).decode(),
    }
