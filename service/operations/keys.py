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
from service.operations.releases import new_id
from service.store.writer import stamp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from service.store.database import Database

ROLES: Final = ("pipeline", "officer", "auditor", "worker", "admin")
_REMEMBERED_SECONDS: Final = 2.0  # how long a revoked key may still work
_USED_SECONDS: Final = 60.0

_INSERT = text(
    "INSERT INTO api_key (id, name, prefix, secret_hash, roles, created_at, expires_at) "
    "VALUES (:id, :name, :prefix, :secret_hash, :roles, :created_at, :expires_at)"
)
_FIND = text("SELECT id, name, roles, expires_at, revoked FROM api_key WHERE secret_hash = :hash")
_USED = text("UPDATE api_key SET last_used_at = :at WHERE id = :id")
_LIST = text(
    "SELECT id, name, prefix, roles, created_at, expires_at, revoked, last_used_at FROM api_key ORDER BY created_at, id"
)
_REVOKE = text("UPDATE api_key SET revoked = true WHERE id = :id RETURNING id")


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
    database: Database, *, name: str, roles: Sequence[str], expires_in_days: float | None = None
) -> dict[str, Any]:
    """A new key. The answer is the only place where its secret ever stands."""
    if not 1 <= len(name) <= 200 or "\x00" in name:
        raise InvalidInput("name", name, "a name of 1 to 200 characters, none of them null")
    if not roles or not set(roles) <= set(ROLES):
        raise InvalidInput("roles", list(roles), "one or more of " + ", ".join(ROLES))
    now = datetime.now(UTC)
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
    with database.transaction() as connection:
        connection.execute(_INSERT, row)
    return {**_shown(row), "secret": secret}


def ensure_first(database: Database) -> str | None:
    """On the very first start: the secret of an admin key, to be printed once."""
    with database.transaction() as connection:
        if connection.execute(text("SELECT 1 FROM api_key LIMIT 1")).one_or_none() is not None:
            return None
    return str(create(database, name="first admin", roles=["admin"])["secret"])


def listed(database: Database) -> list[dict[str, Any]]:
    """All keys, without their secrets."""
    with database.transaction() as connection:
        return [_shown(row) for row in connection.execute(_LIST).mappings()]


def revoke(database: Database, identity: str) -> None:
    """From now on (within two seconds, on every process) this key opens nothing."""
    with database.transaction() as connection:
        if "\x00" in identity or connection.execute(_REVOKE, {"id": identity}).one_or_none() is None:
            raise NotFound("key", identity)


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
        now = datetime.now(UTC)
        with self._database.transaction() as connection:
            row = connection.execute(_FIND, {"hash": hashed}).one_or_none()
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
            self._seen[hashed] = (time.monotonic(), actor)
        return actor


def _has_ended(actor: Actor) -> bool:
    return actor.expires_at is not None and actor.expires_at <= datetime.now(UTC)
