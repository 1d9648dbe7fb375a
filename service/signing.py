"""The two secrets of an installation, in a file that only its owner can read: the signing key, and the key of keys."""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from service.errors import WrongSecrets

if TYPE_CHECKING:
    from sqlalchemy import Connection


@dataclass(frozen=True)
class Secrets:
    """What must not be in the database: back it up with it, and keep it apart from it."""

    signing: Ed25519PrivateKey
    datapoints: bytes  # under which keys of datapoints are hashed

    @property
    def public_key(self) -> bytes:
        """The 32 bytes with which anybody can check a signature."""
        return self.signing.public_key().public_bytes_raw()


def belongs(connection: Connection, given: Secrets, folder: Path) -> None:
    """Bind a new database to these secrets, and refuse one that is bound to others."""
    from sqlalchemy import text  # noqa: PLC0415 - whoever only checks a signature waits for no database

    digest = sha256(b"stint.installation.v1\x00" + given.datapoints + given.public_key).digest()
    connection.execute(
        text("INSERT INTO installation (secrets) VALUES (:digest) ON CONFLICT DO NOTHING"), {"digest": digest}
    )
    if connection.execute(text("SELECT secrets FROM installation")).scalar_one() != digest:
        raise WrongSecrets(folder)


def load(folder: Path) -> Secrets:
    """The secrets of an installation; made at its first start, by whoever is first."""
    path = folder / "secrets.json"
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        fresh = {"signing": secrets.token_hex(32), "datapoints": secrets.token_hex(32)}
        draft = folder / f"secrets.json.{secrets.token_hex(8)}"
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(fresh, file)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(draft, path)  # unlike a rename, it never replaces what somebody else made
        draft.unlink()
    stored = json.loads(path.read_text(encoding="utf-8"))
    return Secrets(
        signing=Ed25519PrivateKey.from_private_bytes(bytes.fromhex(stored["signing"])),
        datapoints=bytes.fromhex(stored["datapoints"]),
    )


def is_signed(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether a signature is genuine."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
