"""Who is signed in: a sealed cookie that names a key and never holds it.

The cookie is encrypted and authenticated under a key that is derived from the installation's secret, so every process
on one database reads it, and nobody can make or change one. It says which API key signed in, when that ends, and a
random name for the session. At every request the key itself is looked up again: revoked or expired, its cookies are
worth nothing. So are they once somebody has signed out: the names of such sessions are kept until they would have
ended.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from sqlalchemy import text

from service.errors import Problem

if TYPE_CHECKING:
    from service.operations.keys import Actor, Doorkeeper
    from service.store.database import Database

LASTS: Final = timedelta(hours=8)  # a working day; then one signs in again
_ENDED = text("SELECT 1 FROM ended_session WHERE name = :name")
_END = text("INSERT INTO ended_session (name, until) VALUES (:name, :until) ON CONFLICT DO NOTHING")
_FORGET = text("DELETE FROM ended_session WHERE until < :now")
_NONCE_BYTES: Final = 12
_MOST_BYTES: Final = 4096  # what a browser keeps of a cookie


class SignIn(Protocol):
    """A way to sign in. API keys are one; OpenID Connect would be another, with subjects of its own."""

    def enter(self, proof: str) -> Actor:
        """Whoever shows this proof, or a problem that does not say what was wrong with it."""
        ...

    def still(self, subject: str) -> Actor:
        """Who signed in under this name earlier, as they are now; a problem if they may come in no more."""
        ...


@dataclass(frozen=True, slots=True)
class KeySignIn:
    """Sign in with the secret of an API key; the subject is the key's id."""

    doorkeeper: Doorkeeper

    def enter(self, proof: str) -> Actor:
        """The actor of this secret."""
        return self.doorkeeper.admit(proof)

    def still(self, subject: str) -> Actor:
        """The actor of this key, unless it was revoked or has ended."""
        return self.doorkeeper.known(subject)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Somebody who is signed in. `token` must come back with every form, so that no other site can send one."""

    actor: Actor
    token: str


@dataclass(frozen=True, slots=True)
class Sessions:
    """Makes and reads cookies under one secret, and remembers which of them were ended."""

    secret: bytes
    sign_in: SignIn
    database: Database

    def begin(self, actor: Actor, *, now: datetime) -> str:
        """A cookie for somebody who has just shown who they are."""
        ends = now + LASTS if actor.expires_at is None else min(now + LASTS, actor.expires_at)
        return self.seal("session", {"subject": actor.id, "name": secrets.token_hex(16), "until": ends.timestamp()})

    def read(self, cookie: str, *, now: datetime) -> Session:
        """Whose cookie this is; whoever it was, their key must still be good now, and they have not signed out."""
        found = self.open("session", cookie)
        if found is None or found["until"] <= now.timestamp() or self._is_ended(found["name"]):
            raise Problem("unauthorized", "Your session has ended: sign in again.")
        actor = self.sign_in.still(found["subject"])
        token = hmac.new(_derived(self.secret, "forms"), found["name"].encode(), sha256).hexdigest()
        return Session(actor=actor, token=token)

    def end(self, cookie: str, *, now: datetime) -> None:
        """From now on this cookie, and every copy of it, is worth nothing."""
        found = self.open("session", cookie)
        if found is not None:
            with self.database.transaction() as connection:
                connection.execute(_FORGET, {"now": now})
                connection.execute(_END, {"name": found["name"], "until": datetime.fromtimestamp(found["until"], UTC)})

    def _is_ended(self, name: str) -> bool:
        with self.database.transaction() as connection:
            return connection.execute(_ENDED, {"name": name}).one_or_none() is not None

    def seal(self, purpose: str, document: dict[str, Any]) -> str:
        """Text that only this installation can have written, and that nobody else can read."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = AESGCM(_derived(self.secret, purpose)).encrypt(nonce, json.dumps(document).encode(), purpose.encode())
        return base64.urlsafe_b64encode(nonce + sealed).decode().rstrip("=")

    def open(self, purpose: str, text: str) -> dict[str, Any] | None:
        """What was sealed for this purpose; None if it was not, or not here."""
        if len(text) > _MOST_BYTES or not text.isascii():
            return None
        try:
            given = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            nonce, sealed = given[:_NONCE_BYTES], given[_NONCE_BYTES:]
            document = AESGCM(_derived(self.secret, purpose)).decrypt(nonce, sealed, purpose.encode())
        except (InvalidTag, ValueError, binascii.Error):
            return None
        found: dict[str, Any] = json.loads(document)
        return found


@lru_cache(maxsize=16)
def _derived(secret: bytes, purpose: str) -> bytes:
    info = f"stint.dashboard.{purpose}.v1".encode()
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(secret)


def utc_now() -> datetime:
    """The clock, asked once per request."""
    return datetime.now(UTC)
