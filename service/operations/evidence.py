"""Evidence that nobody touched the ledger: checkpoints, proofs, and the whole log decided again."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from accountant import book as ledger_book
from accountant import chain
from accountant.book import Book
from accountant.canonical import canonical
from accountant.chain import Head, Link
from accountant.errors import AccountantError
from accountant.merkle import consistency_proof, inclusion_proof, leaf_hash
from service.errors import NotFound, Problem
from service.signing import is_signed
from service.store.writer import Decide, Outcome, stamp

if TYPE_CHECKING:
    from collections.abc import Generator

    from sqlalchemy import Connection

    from accountant.histories import History
    from service.signing import Secrets
    from service.store.books import Books
    from service.store.database import Database

_HEADS = text("SELECT name, number, hash, root FROM population ORDER BY name")
_INSERT = text(
    "INSERT INTO checkpoint (at, payload, signature, public_key, heads) "
    "VALUES (:at, :payload, :signature, :public_key, :heads) RETURNING number"
)
_ALL = "SELECT number, at, payload, signature, public_key, heads FROM checkpoint"
_CHECKPOINTS = text(f"{_ALL} ORDER BY number")
_CHECKPOINT = text(f"{_ALL} WHERE number = :number")
_NEWEST = text(f"{_ALL} ORDER BY number DESC LIMIT 1000")
_LAST = text("SELECT heads FROM checkpoint ORDER BY number DESC LIMIT 1")
_LOG = text(
    "SELECT number, previous, hash, kind, release, at, body FROM entry "
    "WHERE population_id = (SELECT id FROM population WHERE name = :name) AND number <= :upto ORDER BY number"
)
_POPULATION = text("SELECT id, number, hash, root FROM population WHERE name = :name")
_COHORTS = text("SELECT digest, number, datapoints, members, history FROM cohort WHERE population_id = :id")
_STORED = text("SELECT number FROM cohort WHERE population_id = :id LIMIT 1")
_ERASED = text("SELECT ordinal FROM datapoint WHERE population_id = :id AND erased_at IS NOT NULL")
_HOLDS = text("SELECT release, expires_at FROM hold WHERE population_id = :id")
_RELEASES = text("SELECT id, number FROM release WHERE population_id = :id")


def checkpoint(database: Database, secrets: Secrets, *, unless_same: bool = False) -> dict[str, Any] | None:
    """Sign the heads of all populations; with `unless_same`, only if one has moved since the last time."""
    at = datetime.now(UTC)
    with database.transaction() as connection:
        heads = [
            Head(population=row.name, number=row.number, hash=bytes(row.hash), root=bytes(row.root))
            for row in connection.execute(_HEADS)
        ]
        stored = canonical([_head(head) for head in heads])
        if unless_same and connection.execute(_LAST).scalar_one_or_none() == stored:
            return None
        made = chain.checkpoint(heads, at=stamp(at))
        signature = secrets.signing.sign(made.signed_bytes)
        row = {
            "at": at,
            "payload": made.payload,
            "signature": signature,
            "public_key": secrets.public_key,
            "heads": stored,
        }
        number = connection.execute(_INSERT, row).scalar_one()
    return _shown(number, row)


def checkpoints(database: Database) -> list[dict[str, Any]]:
    """The newest thousand checkpoints, oldest first, without their heads."""
    with database.transaction() as connection:
        rows = connection.execute(_NEWEST).mappings().all()
    return [
        {name: value for name, value in _shown(row["number"], row).items() if name != "heads"} for row in reversed(rows)
    ]


def one_checkpoint(database: Database, number: int) -> dict[str, Any]:
    """A checkpoint with its heads."""
    with database.transaction() as connection:
        row = connection.execute(_CHECKPOINT, {"number": number}).mappings().one_or_none()
    if row is None:
        raise NotFound("checkpoint", number)
    return _shown(number, row)


def _head(head: Head) -> dict[str, Any]:
    return {"population": head.population, "number": head.number, "hash": head.hash.hex(), "root": head.root.hex()}


def _head_from(document: dict[str, Any]) -> Head:
    return Head(
        population=document["population"],
        number=document["number"],
        hash=bytes.fromhex(document["hash"]),
        root=bytes.fromhex(document["root"]),
    )


def _shown(number: int, row: Any) -> dict[str, Any]:
    return {
        "number": number,
        "payload_type": chain.CHECKPOINT_TYPE,
        "payload": bytes(row["payload"]).decode(),
        "signature": bytes(row["signature"]).hex(),
        "public_key": bytes(row["public_key"]).hex(),
        "heads": json.loads(bytes(row["heads"])),
    }


def prove(database: Database, *, population: str, number: int, checkpoint: int) -> dict[str, Any]:
    """What shows an outsider that an entry is in the ledger that a checkpoint saw."""
    seen = one_checkpoint(database, checkpoint)
    heads = [_head_from(each) for each in seen["heads"]]
    head = next((each for each in heads if each.population == population), None)
    if head is None or not 1 <= number <= head.number:
        raise Problem("invalid", f"Checkpoint {checkpoint} did not see entry {number} of {population!r}.", "checkpoint")
    with database.transaction() as connection:
        hashes = [bytes(row.hash) for row in connection.execute(_LOG, {"name": population, "upto": head.number})]
    place = chain.prove_head(heads, population=population)
    return {
        "population": population,
        "number": number,
        "hash": hashes[number - 1].hex(),
        "path": [step.hex() for step in inclusion_proof([leaf_hash(each) for each in hashes], index=number - 1)],
        "head": _head(head),
        "head_index": place.index,
        "head_path": [step.hex() for step in place.path],
        "checkpoint": {name: value for name, value in seen.items() if name != "heads"},
    }


def prove_growth(database: Database, *, population: str, since: int, until: int) -> dict[str, Any]:
    """What shows an outsider that a ledger only grew between two of its entries."""
    with database.transaction() as connection:
        hashes = [bytes(row.hash) for row in connection.execute(_LOG, {"name": population, "upto": until})]
    if not 0 <= since <= until == len(hashes):
        raise Problem("invalid", f"{population!r} has no entries {since} to {until}.", "since")
    path = consistency_proof([leaf_hash(each) for each in hashes], old_size=since)
    return {"population": population, "since": since, "until": until, "path": [step.hex() for step in path]}


# ---------------------------------------------------------------- cohorts, as they are stored


def cohort_rows(book: Book) -> dict[bytes, tuple[int, bytes, bytes]]:
    """Every cohort by the digest of its history: how many, who, and what."""
    rows = {}
    for history, members in book.ledger.cohorts.items():
        spelled = _history(history)
        rows[sha256(spelled).digest()] = (len(members), ledger_book.bitmap_to(members).encode(), spelled)
    return rows


def _history(history: History) -> bytes:
    def spending(given: Any) -> dict[str, Any]:
        return {name: {"rho": " ".join(map(str, cost.rho)), "delta": str(cost.delta)} for name, cost in given}

    return canonical(
        {
            "committed": spending(history.committed),
            "holds": {hold.release: spending(hold.spending) for hold in history.holds},
            "digest": str(history.digest),
        }
    )


def store_cohorts() -> Decide:
    """Write a population's cohorts as they are now."""

    def decide(book: Book, _at: datetime, connection: Connection | None) -> Outcome:
        assert connection is not None
        identity = connection.execute(_POPULATION, {"name": book.name}).one().id
        if connection.execute(_STORED, {"id": identity}).scalar_one_or_none() == book.number:
            return Outcome(bodies=[], status=200, respond=lambda _: {"cohorts": len(book.ledger.cohorts)})
        connection.execute(text("DELETE FROM cohort WHERE population_id = :id"), {"id": identity})
        rows = [
            {"id": identity, "digest": key, "number": book.number, "count": count, "members": members, "history": what}
            for key, (count, members, what) in cohort_rows(book).items()
        ]
        if rows:
            connection.execute(
                text("INSERT INTO cohort VALUES (:id, :digest, :number, :count, :members, :history)"), rows
            )
        return Outcome(bodies=[], status=200, respond=lambda _: {"cohorts": len(rows)})

    return decide


# ---------------------------------------------------------------- verification


def verify(database: Database, shelf: Books | None, population: str, *, trusted: bytes | None = None) -> dict[str, Any]:
    """Rebuild a population from its log: chain, checkpoints, prices and admissions, then everything derived from it.

    Nothing is changed. The first thing that does not agree is said, with its entry. `trusted` is the public key that
    checkpoints must be signed with; without it each is checked with the key that is stored beside it, which whoever
    can change the database can change too.
    """
    problems: list[str] = []
    with database.transaction() as connection:
        connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
        row = connection.execute(_POPULATION, {"name": population}).one_or_none()
        if row is None:
            raise NotFound("population", population)
        heads = _signed_heads(connection, population, problems, trusted)
        stored = connection.execute(_COHORTS, {"id": row.id}).all()
        at_cohorts = {each.number for each in stored}
        rebuilt: dict[bytes, tuple[int, bytes, bytes]] = {}

        def log() -> Generator[tuple[Link, bytes]]:
            with connection.execute(
                _LOG, {"name": population, "upto": 2**62}, execution_options={"yield_per": 1000}
            ) as rows:
                for each in rows:
                    body = bytes(each.body)
                    yield Link(number=each.number, previous=bytes(each.previous), hash=bytes(each.hash)), body
                    _compare_columns(each, json.loads(body), problems)

        def visit(book: Book) -> None:
            if book.number in at_cohorts:
                rebuilt.update(cohort_rows(book))

        book: Book | None = None
        try:
            with closing(log()) as entries:
                book = ledger_book.replay(entries, heads=heads, verify=True, visit=visit)
        except (AccountantError, KeyError, TypeError, ValueError) as problem:
            problems.append(str(problem))
        if book is not None:
            _compare(connection, row, book, problems)
            kept = {bytes(each.digest): (each.datapoints, bytes(each.members), bytes(each.history)) for each in stored}
            if len(at_cohorts) > 1:
                problems.append("the stored cohorts are of different entries")
            elif kept != rebuilt:
                problems.append("the stored cohorts are not those that the log leads to")
    if shelf is not None and book is not None:
        try:
            with shelf.read(population) as live:
                if live.number == book.number and cohort_rows(live) != cohort_rows(book):
                    problems.append("the cohorts in memory are not those that the log leads to")
        except AssertionError as problem:
            problems.append(f"what this process remembers is not in the database: {problem}")
    return {
        "population": population,
        "ok": not problems,
        "entries": row.number,
        "cohorts": 0 if book is None else len(book.ledger.cohorts),
        "checkpoints": len(heads),
        "problems": problems,
    }


def _compare_columns(row: Any, body: dict[str, Any], problems: list[str]) -> None:
    """What is stored beside a body, to find it by, is what the body says."""
    if (row.kind, row.release, stamp(row.at)) != (body.get("kind"), body.get("release"), body.get("at")):
        problems.append(f"the kind, release or time that is stored beside entry {row.number} is not that of its body")


def _signed_heads(connection: Connection, population: str, problems: list[str], trusted: bytes | None) -> list[Head]:
    """What checkpoints with a genuine signature say of this population."""
    heads = []
    for row in connection.execute(_CHECKPOINTS).mappings():
        key = bytes(row["public_key"])
        signed = chain.pre_authentication_encoding(chain.CHECKPOINT_TYPE, bytes(row["payload"]))
        if trusted not in {None, key} or not is_signed(key, bytes(row["signature"]), signed):
            problems.append(f"the signature of checkpoint {row['number']} is not genuine")
            continue
        try:
            all_heads = [_head_from(each) for each in json.loads(bytes(row["heads"]))]
            chain.verify_heads(chain.checkpoint_from_payload(bytes(row["payload"])), all_heads)
        except (AccountantError, KeyError, TypeError, ValueError) as problem:
            problems.append(f"checkpoint {row['number']}: {problem}")
            continue
        heads += [head for head in all_heads if head.population == population]
    return heads


def _compare(connection: Connection, row: Any, book: Book, problems: list[str]) -> None:
    head = book.chain.head
    if (row.number, bytes(row.hash), bytes(row.root)) != (head.number, head.hash, head.root):
        problems.append("the head of the population is not the end of its log")
    holds = {each.release: each.expires_at for each in connection.execute(_HOLDS, {"id": row.id})}
    open_holds = {
        release.id: None if release.expires_at is None else datetime.fromisoformat(release.expires_at)
        for release in book.releases.values()
        if release.status == "held"
    }
    if holds != open_holds:
        problems.append("the open holds are not those that the log leads to")
    if set(connection.execute(_ERASED, {"id": row.id}).scalars()) != book.erased:
        problems.append("the erased keys are not those that the log leads to")
    releases = {each.id: each.number for each in connection.execute(_RELEASES, {"id": row.id})}
    if releases != {release.id: release.number for release in book.releases.values()}:
        problems.append("the list of releases is not that of the log")
