"""The log of keys: who was let in by whom and why, and who no more.

It is chained as a population's log is, under a name that no population can have, and its head is signed with theirs: a
key that was slipped in, or a reason that was changed, is found in the same way. Keys belong to no population, so their
log belongs to none.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import text

from accountant import chain
from accountant.canonical import canonical
from accountant.chain import Chain, Head, Link
from accountant.errors import AccountantError
from accountant.merkle import leaf_hash, root
from service.store.writer import stamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

    from sqlalchemy import Connection

    from service.store.database import Database

NAME: Final = "(keys)"
#: Whoever has the database itself, and needs no key.
OPERATOR: Final = "operator"
KINDS: Final = ("key.known", "key.created", "key.revoked")
_LOCK: Final = 0x5749_4E56  # any number that nobody else uses
_LAST = text("SELECT number, previous, hash FROM key_entry ORDER BY number DESC LIMIT 1")
_INSERT = text(
    "INSERT INTO key_entry (number, previous, hash, at, body) VALUES (:number, :previous, :hash, :at, :body)"
)
_ALL = text("SELECT number, previous, hash, at, body FROM key_entry ORDER BY number")
_PAGE = text(
    "SELECT number, previous, hash, body FROM key_entry WHERE number < :before ORDER BY number DESC LIMIT :limit"
)
_HASHES = text("SELECT hash FROM key_entry ORDER BY number")
_KEYS = text('SELECT id, name, secret_hash, roles, expires_at, revoked FROM api_key ORDER BY id COLLATE "C"')


def created(row: Any, *, kind: str = "key.created") -> dict[str, Any]:
    """What an entry says of a key: all that decides whom it lets in, and to what. Of its secret, the digest."""
    return {
        "kind": kind,
        "key": row["id"],
        "name": row["name"],
        "roles": row["roles"].split(","),
        "expires_at": None if row["expires_at"] is None else stamp(row["expires_at"]),
        "secret_sha256": bytes(row["secret_hash"]).hex(),
    }


def append(connection: Connection, body: Mapping[str, Any], *, at: datetime, by: str, reason: str | None) -> None:
    """One more entry, in the transaction of what it tells of and before that: the first tells of keys that are there.

    Whoever appends waits for whoever else does.
    """
    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    last = connection.execute(_LAST).one_or_none()
    bodies: list[dict[str, Any]] = []
    if last is None:
        link = chain.genesis(NAME)
        older = connection.execute(_KEYS).mappings()
        bodies = [{**created(row, kind="key.known"), "revoked": row["revoked"], "actor": OPERATOR} for row in older]
    else:
        link = Link(number=last.number, previous=bytes(last.previous), hash=bytes(last.hash))
    said = {} if reason is None else {"reason": reason}
    for each in [*bodies, {**body, "actor": by, **said}]:
        spelled = canonical({**each, "at": stamp(at)})
        link = chain.append(link, spelled)
        row = {"number": link.number, "previous": link.previous, "hash": link.hash, "at": at, "body": spelled}
        connection.execute(_INSERT, row)


def head(connection: Connection) -> Head | None:
    """What a checkpoint says of this log; nothing, where it has not begun."""
    hashes = [bytes(each) for each in connection.execute(_HASHES).scalars()]
    if not hashes:
        return None
    leaves = [leaf_hash(each) for each in hashes]
    return Head(population=NAME, number=len(hashes), hash=hashes[-1], root=root(leaves))


def entries(database: Database, *, before: int | None, limit: int) -> list[dict[str, Any]]:
    """The newest entries before this one, as they are chained."""
    with database.transaction() as connection:
        rows = connection.execute(_PAGE, {"before": 2**62 if before is None else before, "limit": limit}).all()
    return [
        {
            "number": row.number,
            "previous": bytes(row.previous).hex(),
            "hash": bytes(row.hash).hex(),
            "body": json.loads(bytes(row.body)),
        }
        for row in rows
    ]


# ---------------------------------------------------------------- verification


def verified(connection: Connection, heads: Iterable[Head]) -> tuple[int, list[str]]:
    """How many entries there are, and what does not agree: chain, signed heads, and the keys that follow from them."""
    known: dict[str, tuple[Any, ...]] = {}
    counted = 0

    def log() -> Iterator[tuple[Link, bytes]]:
        nonlocal counted
        for row in connection.execute(_ALL):
            body = bytes(row.body)
            yield Link(number=row.number, previous=bytes(row.previous), hash=bytes(row.hash)), body
            counted += 1
            _apply(known, json.loads(body))

    found: Chain | None = None
    problems = []
    try:
        found = chain.verify(chain.begin(NAME), log(), heads=heads)
    except (AccountantError, KeyError, TypeError, ValueError) as problem:
        problems.append(str(problem))
    if found is not None and found.link.number:  # before its first entry, the log says nothing of any key
        problems += _differences(connection, known)
    return counted, problems


def _apply(known: dict[str, tuple[Any, ...]], document: Mapping[str, Any]) -> None:
    key = document["key"]
    match document["kind"]:
        case "key.known" | "key.created":
            known[key] = (*_facts(document), document.get("revoked", False))
        case "key.revoked":
            known[key] = (*known[key][:-1], True)
        case kind:
            raise ValueError(f"entry of a kind that this version does not know: {kind!r}")


def _facts(document: Mapping[str, Any]) -> tuple[Any, ...]:
    return document["name"], document["roles"], document["expires_at"], document["secret_sha256"]


def _differences(connection: Connection, known: Mapping[str, tuple[Any, ...]]) -> list[str]:
    there = {row["id"]: (*_facts(created(row)), row["revoked"]) for row in connection.execute(_KEYS).mappings()}
    problems = [f"key {each} lets somebody in, and no entry made it" for each in there if each not in known]
    problems += [f"key {each} was made by an entry, and is not there" for each in known if each not in there]
    return problems + [
        f"key {each} is not as the log leads to" for each in there if each in known and there[each] != known[each]
    ]
