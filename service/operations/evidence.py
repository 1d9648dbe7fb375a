"""Evidence that nobody touched the ledger: checkpoints, proofs, and the whole log decided again."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import text

from accountant import book as ledger_book
from accountant import chain
from accountant.book import Book
from accountant.canonical import canonical
from accountant.chain import Head, Link
from accountant.errors import AccountantError, InvalidInput
from accountant.events import event_to_json
from accountant.merkle import consistency_proof, inclusion_proof, leaf_hash
from service.errors import NotFound, Problem
from service.operations import datapoints, key_log, readings
from service.operations.jobs import LIVE
from service.signing import is_signed
from service.store.once import Answers, once
from service.store.writer import Answer, Decide, Outcome, stamp
from trainers.catalog import CATALOG

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

    from sqlalchemy import Connection

    from accountant.events import Adjacency
    from accountant.histories import History
    from service.signing import Secrets
    from service.store.books import Books
    from service.store.database import Database
    from service.store.writer import Idempotency

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
_LAST_SIGNED = text("SELECT number, at, heads FROM checkpoint ORDER BY number DESC LIMIT 1")
# Clocks of several processes may differ, and a clock may go back: then the newest of all covers what there is.
_SINCE = text(
    "SELECT number, at, payload, signature, public_key, heads FROM checkpoint "
    "WHERE at >= CAST(:at AS timestamptz) - interval '1 hour' "
    "OR number = (SELECT max(number) FROM checkpoint) ORDER BY number"
)
_CHECKPOINT_LOCK = 0x5717_7C4B  # so that many who miss a checkpoint at once make one
_LOG = text(
    "SELECT number, previous, hash, kind, release, at, body FROM entry "
    "WHERE population_id = (SELECT id FROM population WHERE name = :name) AND number <= :upto ORDER BY number"
)
_HASHES = text(
    "SELECT hash FROM entry "
    "WHERE population_id = (SELECT id FROM population WHERE name = :name) AND number <= :upto ORDER BY number"
)
_POPULATION = text("SELECT id, number, hash, root FROM population WHERE name = :name")
_COHORTS = text("SELECT digest, number, datapoints, members, history FROM cohort WHERE population_id = :id")
_STORED = text("SELECT number FROM cohort WHERE population_id = :id LIMIT 1")
_KEYED = text("SELECT ordinal, digest FROM datapoint WHERE population_id = :id ORDER BY ordinal")
_ERASED = text("SELECT ordinal FROM datapoint WHERE population_id = :id AND erased_at IS NOT NULL")
_HOLDS = text("SELECT release, expires_at FROM hold WHERE population_id = :id")
_JOBS = text("SELECT id, release, status, artifact_sha256 FROM job WHERE population_id = :id ORDER BY id")
_RELEASES = text("SELECT id, number FROM release WHERE population_id = :id")
_MOST_SAID: Final = 20  # of one kind of difference; all that follow are most likely the same story


def checkpoint(database: Database, secrets: Secrets) -> dict[str, Any] | None:
    """Sign the heads of all populations, unless none has moved since the last time."""
    with database.transaction() as connection:
        heads = _heads(connection)
        if connection.execute(_LAST).scalar_one_or_none() == canonical([_head(head) for head in heads]):
            return None
        return _sign(connection, secrets, heads, datetime.now(UTC))


def checkpoint_once(database: Database, secrets: Secrets, idempotency: Idempotency | None) -> Answer:
    """Sign the heads of all populations, moved or not; the same request again gets the checkpoint that it made."""
    at = datetime.now(UTC)

    def sign(connection: Connection) -> Answers:
        answer = Answer(status=201, document=_sign(connection, secrets, _heads(connection), at))
        return answer, answer

    return once(database, idempotency, sign, at=at)


def _heads(connection: Connection) -> list[Head]:
    """Of every population, and of the log of keys, under a name that no population can have."""
    keys = key_log.head(connection)
    return [
        Head(population=row.name, number=row.number, hash=bytes(row.hash), root=bytes(row.root))
        for row in connection.execute(_HEADS)
    ] + ([] if keys is None else [keys])


def _sign(connection: Connection, secrets: Secrets, heads: list[Head], at: datetime) -> dict[str, Any]:
    made = chain.checkpoint(heads, at=stamp(at))
    row = {
        "at": at,
        "payload": made.payload,
        "signature": secrets.signing.sign(made.signed_bytes),
        "public_key": secrets.public_key,
        "heads": canonical([_head(head) for head in heads]),
    }
    return _shown(connection.execute(_INSERT, row).scalar_one(), row)


def checkpoints(database: Database) -> list[dict[str, Any]]:
    """The newest thousand checkpoints, oldest first, without their heads."""
    with database.transaction() as connection:
        rows = connection.execute(_NEWEST).mappings().all()
    return [
        {name: value for name, value in _shown(row["number"], row).items() if name != "heads"} for row in reversed(rows)
    ]


def last_signed(connection: Connection) -> dict[str, Any] | None:
    """The newest checkpoint, and up to which entry it covers each ledger that it knows."""
    row = connection.execute(_LAST_SIGNED).one_or_none()
    if row is None:
        return None
    covers = {each["population"]: each["number"] for each in json.loads(bytes(row.heads))}
    return {"number": row.number, "at": stamp(row.at), "covers": covers}


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


def covering(database: Database, secrets: Secrets, *, population: str, number: int, at: str) -> dict[str, Any]:
    """The first checkpoint under this installation's key that saw an entry; if there is none yet, it is made now.

    `at` is the entry's time. Asked again, the answer is the same.
    """
    with database.transaction() as connection:
        if (found := _covering(connection, secrets, population, number, at)) is not None:
            return found
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _CHECKPOINT_LOCK})
        found = _covering(connection, secrets, population, number, at)
        return found or _sign(connection, secrets, _heads(connection), datetime.now(UTC))


def _covering(connection: Connection, secrets: Secrets, population: str, number: int, at: str) -> dict[str, Any] | None:
    with connection.execute(_SINCE, {"at": at}, execution_options={"yield_per": 10}) as rows:
        for row in rows.mappings():
            shown = _shown(row["number"], row)
            if bytes(row["public_key"]) == secrets.public_key and any(
                each["population"] == population and each["number"] >= number for each in shown["heads"]
            ):
                return shown
    return None


def prove(database: Database, *, population: str, number: int, checkpoint: int) -> dict[str, Any]:
    """What shows an outsider that an entry is in the ledger that a checkpoint saw."""
    seen = one_checkpoint(database, checkpoint)
    head = next((each for each in seen["heads"] if each["population"] == population), None)
    if head is None or not 1 <= number <= head["number"]:
        raise Problem("invalid", f"Checkpoint {checkpoint} did not see entry {number} of {population!r}.", "checkpoint")
    proved = prove_entries(database, population=population, numbers=[number], seen=seen)
    return {"population": population, **proved["entries"][0], **{k: v for k, v in proved.items() if k != "entries"}}


def prove_entries(
    database: Database, *, population: str, numbers: Sequence[int], seen: Mapping[str, Any]
) -> dict[str, Any]:
    """Several entries under the head of their population, and that under a checkpoint which saw them."""
    heads = [_head_from(each) for each in seen["heads"]]
    head = next(each for each in heads if each.population == population)
    with database.transaction() as connection:
        rows = connection.execute(_HASHES, {"name": population, "upto": head.number})
        hashes = [bytes(each) for each in rows.scalars()]
    place = chain.prove_head(heads, population=population)
    leaves = [leaf_hash(each) for each in hashes]
    return {
        "entries": [
            {
                "number": number,
                "hash": hashes[number - 1].hex(),
                "path": [step.hex() for step in inclusion_proof(leaves, index=number - 1)],
            }
            for number in numbers
        ],
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

    Nothing is changed. The first thing that does not agree is said, with its entry; `notes` say what could not be
    compared. `trusted` is the public key that checkpoints must be signed with; without it each is checked with the key
    that is stored beside it, which whoever can change the database can change too.
    """
    problems: list[str] = []
    with database.transaction() as connection:
        connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
        connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))  # nobody waits for a reader
        row = connection.execute(_POPULATION, {"name": population}).one_or_none()
        if row is None:
            raise NotFound("population", population)
        heads = _signed_heads(connection, population, problems, trusted)
        stored = connection.execute(_COHORTS, {"id": row.id}).all()
        at_cohorts = {each.number for each in stored}
        rebuilt: dict[bytes, tuple[int, bytes, bytes]] = {}
        registrations: list[_Registration] = []
        declarations, misquoted = _Declarations(), list[str]()
        replayed: Book | None = None

        def log() -> Generator[tuple[Link, bytes]]:
            with connection.execute(
                _LOG, {"name": population, "upto": 2**62}, execution_options={"yield_per": 1000}
            ) as rows:
                for each in rows:
                    body = bytes(each.body)
                    yield Link(number=each.number, previous=bytes(each.previous), hash=bytes(each.hash)), body
                    document = json.loads(body)  # from here on the entry is applied, and its chain was checked
                    if document["kind"] in {"release.held", "release.denied"} and len(misquoted) < _MOST_SAID:
                        assert replayed is not None
                        wrong = readings.misquoted(replayed, document)
                        if wrong is not None:
                            misquoted.append(f"release {document['release']}, of entry {each.number}, {wrong}")
                    _compare_columns(each, document, problems)
                    declarations.see(each.number, document)
                    if document["kind"] == "datapoints.registered":
                        first = registrations[-1].stop if registrations else 0
                        keys = document.get("keys", "")
                        registrations.append(_Registration(each.number, first, first + document["count"], keys))

        def visit(book: Book) -> None:
            nonlocal replayed
            replayed = book
            if book.number in at_cohorts:
                rebuilt.update(cohort_rows(book))

        book: Book | None = None
        try:
            with closing(log()) as entries:
                book = ledger_book.replay(entries, heads=heads, verify=True, visit=visit)
        except (AccountantError, KeyError, TypeError, ValueError) as problem:
            problems.append(str(problem))
        problems += declarations.problems + misquoted
        if book is not None:
            _compare(connection, row, book, problems)
            with connection.execute(_KEYED, {"id": row.id}, execution_options={"yield_per": 1000}) as rows:
                problems += islice(_wrong_keys(iter(rows), registrations), _MOST_SAID)
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
        "notes": declarations.notes,
    }


def verify_keys(database: Database, *, trusted: bytes | None = None) -> dict[str, Any]:
    """The same for the log of keys: its chain, signed heads, and whether the keys are those that it leads to."""
    problems: list[str] = []
    with database.transaction() as connection:
        connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
        heads = _signed_heads(connection, key_log.NAME, problems, trusted)
        entries, found = key_log.verified(connection, heads)
    problems += found
    return {"log": "keys", "ok": not problems, "entries": entries, "checkpoints": len(heads), "problems": problems}


class _Declarations:
    """Whether holds charge what the mechanisms that they declare do. What that costs, the replay checks."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._adjacency: Adjacency | None = None
        self._accepted: Sequence[str] = ()
        self._unknown = Counter[str]()
        self._unaccepted = Counter[str]()

    def see(self, number: int, document: dict[str, Any]) -> None:
        """Compare the next body of a log; nothing is asked of any engine."""
        if document["kind"] == "population.created":
            self._adjacency = document["adjacency"]
        if document["kind"] in {"population.created", "policy.changed"}:
            self._accepted = document["policy"]["accepts"]
        elif document["kind"] == "release.held" and len(self.problems) < _MOST_SAID:
            wrong = self._difference(document)
            if wrong is not None:
                self.problems.append(f"release {document['release']}, of entry {number}, {wrong}")

    @property
    def notes(self) -> list[str]:
        """What could not be compared, since this version has no such mechanism, or thinks otherwise of its proof."""
        missing = [
            f"mechanism {name!r} is not in the catalog of this version: the charges of {count:,} holds that declare it "
            "were not compared with it"
            for name, count in sorted(self._unknown.items())
        ]
        return missing + [
            f"mechanism {name!r} is {CATALOG[name].proof_status} in the catalog of this version: {count:,} holds that "
            "declare it were admitted under a policy that does not accept that"
            for name, count in sorted(self._unaccepted.items())
        ]

    def _difference(self, document: dict[str, Any]) -> str | None:
        match document.get("declared"):
            case {"mechanism": {"name": str(name), "parameters": dict(parameters)}}:
                pass
            case {"mechanism": _}:
                return "declares a mechanism without a name or parameters"
            case _:
                # Whoever names charges trains no models on which later steps could lean for free.
                return "pays for models of a stream and declares no mechanism" if "stream" in document else None
        if name not in CATALOG:
            self._unknown[name] += 1
            return None
        if CATALOG[name].proof_status not in self._accepted:  # as it is now: it may have been another at the time
            self._unaccepted[name] += 1
        assert self._adjacency is not None
        try:
            quoted = CATALOG[name].quote(parameters, adjacency=self._adjacency)
        except InvalidInput as problem:
            return f"declares {name!r} with parameters that it does not take: {problem}"
        charges = document["charges"]
        if [each["event"] for each in charges] != [event_to_json(each.event) for each in quoted.charges]:
            return f"does not charge the events that {name!r} has with the parameters that it declares"
        for charge, each in zip(charges, quoted.charges, strict=True):
            if each.start is not None and charge["scope"] != {"ranges": [[each.start, each.stop]]}:
                return f"does not charge [{each.start}, {each.stop}), as {name!r} does with the parameters it declares"
            if each.part is not None and charge["scope"].get("part") != each.part:
                return f"does not charge part {each.part!r}, as {name!r} does with the parameters it declares"
            if each.task is not None and charge["scope"].get("task") != each.task:
                return f"does not charge task {each.task!r}, as {name!r} does with the parameters it declares"
        if document.get("stream") != quoted.models:
            return f"does not name the models that {name!r} trains and reuses with the parameters that it declares"
        return None


class _Registration(NamedTuple):
    """Ordinals [start, stop) of one entry; `keys` is their digest, None if they have none, "" where it does not say."""

    entry: int
    start: int
    stop: int
    keys: str | None

    def __str__(self) -> str:
        return f"ordinals {self.start} to {self.stop - 1}, of entry {self.entry}"


def _wrong_keys(rows: Iterator[Any], registrations: Iterable[_Registration]) -> Iterator[str]:
    """Where the table of keys, in the order of ordinals, is not what the log says."""
    row = next(rows, None)
    for each in registrations:
        found, is_whole, digest = 0, True, sha256(datapoints.KEYS_TAG)
        while row is not None and row.ordinal < each.stop:
            # Of one length, or bytes could move from one digest to the next.
            is_whole &= row.ordinal == each.start + found and len(row.digest) == datapoints.DIGEST_BYTES
            digest.update(row.digest)
            found += 1
            row = next(rows, None)
        count = each.stop - each.start
        if each.keys is None:
            if found:
                yield f"{each}, were registered without keys, and {found:,} have one"
        elif found != count and (each.keys or found):
            yield f"{each}, were registered with {count:,} keys, and {found:,} are there"
        elif not is_whole or (each.keys and digest.hexdigest() != each.keys):
            yield f"{each}, do not have the keys that were registered"
    if row is not None:
        yield f"there are keys from ordinal {row.ordinal} on, where nobody was registered"


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
    _compare_jobs(connection, row, book, problems)
    if set(connection.execute(_ERASED, {"id": row.id}).scalars()) != book.erased:
        problems.append("the erased keys are not those that the log leads to")
    releases = {each.id: each.number for each in connection.execute(_RELEASES, {"id": row.id})}
    if releases != {release.id: release.number for release in book.releases.values()}:
        problems.append("the list of releases is not that of the log")


def _compare_jobs(connection: Connection, row: Any, book: Book, problems: list[str]) -> None:
    """A hold without an end belongs to a job that is under way, and a job's row agrees with the log on its release."""
    owned = set()
    for job in connection.execute(_JOBS, {"id": row.id}):
        known = book.releases.get(job.release)
        if job.status in LIVE:
            owned.add(job.release)
            agrees = known is not None and known.status == "held"
        elif job.status == "committed":
            artifact = None if known is None else known.artifact
            agrees = artifact is not None and artifact.get("sha256") == job.artifact_sha256
        else:  # one whose models others make use of is spent, not voided
            agrees = known is not None and known.status in {"voided", "committed"} and known.artifact is None
        if not agrees:
            problems.append(f"job {job.id} is {job.status}, and its release {job.release} is not so in the log")
    endless = {each.id for each in book.releases.values() if each.status == "held" and each.expires_at is None}
    if orphans := sorted(endless - owned):
        problems.append(f"release {orphans[0]} is held without an end, and no job is under way for it")
