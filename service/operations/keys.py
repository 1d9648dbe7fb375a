"""API keys: random, shown once, stored as a hash, with roles and an end."""

from __future__ import annotations

import secrets
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import text

from accountant.errors import InvalidInput
from service.errors import NotFound, Problem
from service.operations import key_log
from service.operations.releases import new_id
from service.schemas import CONTROLS, control_in
from service.store.once import Answers, once
from service.store.writer import Answer, stamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import Connection, TextClause

    from service.store.database import Database
    from service.store.writer import Idempotency

ROLES: Final = ("pipeline", "officer", "auditor", "worker", "admin")
_REMEMBERED_SECONDS: Final = 2.0  # how long a revoked key may still work
_USED_SECONDS: Final = 60.0
_FIRST_KEY_LOCK: Final = 0x5749_4E55  # any number that nobody else uses
_SHOWN_ONCE: Final = "The secret was in the first answer, and is stored nowhere: revoke this key if it was lost."

_INSERT = text(
    "INSERT INTO api_key (id, name, prefix, secret_hash, roles, created_at, expires_at) "
    "VALUES (:id, :name, :prefix, :secret_hash, :roles, :created_at, :expires_at)"
)
_FIND = text("SELECT id, name, roles, expires_at, revoked FROM api_key WHERE secret_hash = :hash")
_FIND_BY_ID = text("SELECT id, name, roles, expires_at, revoked FROM api_key WHERE id = :id")
_USED = text("UPDATE api_key SET last_used_at = :at WHERE id = :id")
_LIST = text(
    "SELECT id, name, prefix, roles, created_at, expires_at, revoked, last_used_at FROM api_key "
    'WHERE id COLLATE "C" > :after ORDER BY id COLLATE "C" LIMIT :limit'
)
_LIVE = text("SELECT count(*) FROM api_key WHERE NOT revoked AND (expires_at IS NULL OR expires_at > :now)")
_LOCKED = text("SELECT id, name, revoked FROM api_key WHERE id = :id FOR UPDATE")
_NAMES = text("SELECT id, name FROM api_key WHERE id = ANY(:ids)")
_REVOKE = text("UPDATE api_key SET revoked = true WHERE id = :id")


@dataclass(frozen=True, slots=True)
class Actor:
    """Who asks."""

    id: str
    name: str
    roles: frozenset[str]
    expires_at: datetime | None

    def has(self, *roles: str) -> bool:
        """Whether the key has one of these roles; an admin has all."""
        return bool(self.roles & {*roles, "admin"})

    @property
    def sees_individuals(self) -> bool:
        """Whether single datapoints may be shown."""
        return self.has("officer", "auditor")


def create(
    database: Database,
    *,
    name: str,
    roles: Sequence[str],
    expires_in_days: float | None = None,
    reason: str | None = None,
) -> dict[str, Any]:
    """A new key, made by whoever has the database. The answer is the only place where its secret ever stands."""
    return create_once(
        database, None, name=name, roles=roles, expires_in_days=expires_in_days, by=key_log.OPERATOR, reason=reason
    ).document


def create_once(
    database: Database,
    idempotency: Idempotency | None,
    *,
    name: str,
    roles: Sequence[str],
    expires_in_days: float | None = None,
    by: str,
    reason: str | None = None,
) -> Answer:
    """A new key, or the one that the same request made before: that answer has no secret, since none is stored.

    The log of keys says who made it, and why, in the same transaction.
    """
    now = datetime.now(UTC)
    row, secret = _made(name=name, roles=roles, expires_in_days=expires_in_days, reason=reason, now=now)

    def insert(connection: Connection) -> Answers:
        key_log.append(connection, key_log.created(row), at=now, by=by, reason=reason)
        connection.execute(_INSERT, row)
        return (
            Answer(status=201, document={**_shown(row), "secret": secret}),
            Answer(status=201, document={**_shown(row), "note": _SHOWN_ONCE}),
        )

    return once(database, idempotency, insert, at=now)


def _made(
    *,
    name: str,
    roles: Sequence[str],
    expires_in_days: float | None = None,
    reason: str | None = None,
    now: datetime,
) -> tuple[dict[str, Any], str]:
    """The row of a new key, and its secret, which is not in it."""
    if not 1 <= len(name) <= 200 or control_in(name, CONTROLS) is not None:
        raise InvalidInput("name", name, "a name of 1 to 200 characters, none of them a control character")
    if reason is not None and control_in(reason) is not None:
        raise InvalidInput("reason", reason, "a reason without control characters")
    if not roles or not set(roles) <= set(ROLES):
        raise InvalidInput("roles", list(roles), "one or more of " + ", ".join(ROLES))
    secret = "sk_" + secrets.token_urlsafe(32)
    row = {
        "id": new_id("key_", now),
        "name": name,
        "prefix": secret[:9],
        "secret_hash": _hash(secret),
        "roles": ",".join(role for role in ROLES if role in roles),
        "created_at": now,
        "expires_at": None if expires_in_days is None else now + timedelta(days=expires_in_days),
    }
    return row, secret


def ensure_first(database: Database) -> str | None:
    """On the very first start: the secret of an admin key, to be printed once. Of several at once, one makes it."""
    with database.transaction() as connection:
        # To lock the table itself takes rights that the service does not have.
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _FIRST_KEY_LOCK})
        if connection.execute(text("SELECT 1 FROM api_key LIMIT 1")).one_or_none() is not None:
            return None
        now = datetime.now(UTC)
        row, secret = _made(name="first admin", roles=["admin"], now=now)
        key_log.append(connection, key_log.created(row), at=now, by=key_log.OPERATOR, reason="the first start")
        connection.execute(_INSERT, row)
    return secret


def listed(database: Database, *, after: str, limit: int) -> list[dict[str, Any]]:
    """The next keys, oldest first, without their secrets; their ids sort by time."""
    with database.transaction() as connection:
        return [_shown(row) for row in connection.execute(_LIST, {"after": after, "limit": limit}).mappings()]


def live(database: Database) -> int:
    """How many keys open anything now: neither revoked nor ended."""
    with database.transaction() as connection:
        found: int = connection.execute(_LIVE, {"now": datetime.now(UTC)}).scalar_one()
    return found


def names(database: Database, ids: Iterable[str]) -> dict[str, str]:
    """What those of these that are keys are called. An entry names a key by its id, which says little to people."""
    with database.transaction() as connection:
        return {row.id: row.name for row in connection.execute(_NAMES, {"ids": sorted(set(ids))})}


def revoke(database: Database, identity: str, *, by: str = key_log.OPERATOR, reason: str | None = None) -> None:
    """From now on (within two seconds, on every process) this key opens nothing; the log of keys says who said so.

    Revoked twice, it is revoked as it was the first time.
    """
    with database.transaction() as connection:
        row = None if "\x00" in identity else connection.execute(_LOCKED, {"id": identity}).one_or_none()
        if row is None:
            raise NotFound("key", identity)
        if not row.revoked:
            body = {"kind": "key.revoked", "key": row.id, "name": row.name}
            key_log.append(connection, body, at=datetime.now(UTC), by=by, reason=reason)
            connection.execute(_REVOKE, {"id": identity})


def _hash(secret: str) -> bytes:
    return sha256(secret.encode()).digest()  # 256 random bits need no slow hash


def _shown(row: Any) -> dict[str, Any]:
    def at(name: str) -> str | None:
        return None if row.get(name) is None else stamp(row[name])

    return {
        "id": row["id"],
        "name": row["name"],
        "prefix": row["prefix"],
        "roles": row["roles"].split(","),
        "created_at": at("created_at"),
        "expires_at": at("expires_at"),
        "revoked": bool(row.get("revoked", False)),
        "last_used_at": at("last_used_at"),
    }


class Doorkeeper:
    """Who a secret belongs to; remembered for two seconds, so that a busy key is not looked up for every request."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._seen: dict[bytes, tuple[float, Actor]] = {}
        self._used: dict[str, float] = {}

    def remembered(self, secret: str) -> Actor | None:
        """The actor, if it was looked up a moment ago; never waits for the database."""
        found = self._seen.get(_hash(secret))
        if found is None or time.monotonic() - found[0] > _REMEMBERED_SECONDS:
            return None
        return None if _has_ended(found[1]) else found[1]

    def admit(self, secret: str) -> Actor:
        """The actor of a secret, or a refusal that does not say why."""
        hashed = _hash(secret)
        return self._admit(hashed, _FIND, {"hash": hashed})

    def known(self, identity: str) -> Actor:
        """The actor of a key by its id, for whoever has shown its secret before; refused like a secret."""
        name = identity.encode()  # shorter than a hash, so the two never meet
        found = self._seen.get(name)
        if found is not None and time.monotonic() - found[0] <= _REMEMBERED_SECONDS and not _has_ended(found[1]):
            return found[1]
        return self._admit(name, _FIND_BY_ID, {"id": identity})

    def _admit(self, name: bytes, query: TextClause, given: Mapping[str, Any]) -> Actor:
        now = datetime.now(UTC)
        with self._database.transaction() as connection:
            row = connection.execute(query, given).one_or_none()
            if row is None or row.revoked:
                raise Problem("unauthorized", "This key is not known, or no longer.")
            actor = Actor(row.id, row.name, frozenset(row.roles.split(",")), row.expires_at)
            if _has_ended(actor):
                raise Problem("unauthorized", "This key is not known, or no longer.")
            moment = time.monotonic()
            if moment - self._used.get(actor.id, -_USED_SECONDS) >= _USED_SECONDS:
                self._used[actor.id] = moment
                connection.execute(_USED, {"id": actor.id, "at": now})
        with self._lock:
            if len(self._seen) > 10_000:
                self._seen.clear()
            self._seen[name] = (time.monotonic(), actor)
        return actor


def _has_ended(actor: Actor) -> bool:
    return actor.expires_at is not None and actor.expires_at <= datetime.now(UTC)
