"""Populations, their policies and their tasks."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import text

from accountant import book as ledger_book
from accountant.audit.findings import DEFAULT_VERDICTS, verdicts_of
from accountant.book import Book, Policy, Task
from accountant.certificates import told
from accountant.filters import Filter
from accountant.guarantees import Guarantee
from service.cursors import cursor_of
from service.errors import Problem
from service.operations import readings
from service.operations.individuals import least_told
from service.store.once import ALREADY_THERE, Answers, once
from service.store.writer import Answer, Decide, Idempotency, Outcome, stamp

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection

    from accountant.book import Body
    from accountant.chain import Link
    from accountant.guarantees import ProofStatus
    from accountant.ledger import OnExhausted
    from service.operations.keys import Actor
    from service.store.database import Database

OVERLAPS_SHOWN: Final = 100
MADE_UP: Final = "made-up"  # the actor of entries that tell of nothing that happened; no key has such a name
_INSERT = text(
    "INSERT INTO population (name, number, hash, root, created_at) VALUES (:name, 1, :hash, :root, :at) RETURNING id"
)
_INSERT_ENTRY = text(
    "INSERT INTO entry (population_id, number, previous, hash, kind, at, body) "
    "VALUES (:id, 1, :previous, :hash, 'population.created', :at, :body)"
)


def create(
    database: Database, body: Body, *, actor: str, at: datetime | None = None, idempotency: Idempotency | None = None
) -> Answer:
    """A population with its promise, which is its first entry; made now, unless its history is made up."""
    at = at or datetime.now(UTC)
    spelled = ledger_book.spell(body, at=stamp(at), actor=actor)
    book = Book.of(spelled)
    head = book.chain.head
    answer = Answer(status=201, document=shown(book))

    def insert(connection: Connection) -> Answers:
        new = {"name": book.name, "hash": head.hash, "root": head.root, "at": at}
        identity = connection.execute(_INSERT, new).scalar_one()
        first = {"id": identity, "previous": book.chain.link.previous, "hash": head.hash, "at": at, "body": spelled}
        connection.execute(_INSERT_ENTRY, first)
        return answer, answer

    try:
        return once(database, idempotency, insert, at=at)
    except ALREADY_THERE:
        raise Problem("conflict", f"There is a population {book.name!r} already.", "name") from None


def is_made_up(book: Book) -> bool:
    """Whether its history is invented, by its first release: real ones may follow, and do not make that one true."""
    return next((release.actor for release in book.releases.values()), None) == MADE_UP


def shown(book: Book) -> dict[str, Any]:
    """A population as an answer."""
    promise = book.promise
    guarantee = Guarantee(
        epsilon=promise.epsilon,
        delta=promise.delta,
        unit=book.unit,
        adjacency=book.adjacency,
        proof_status=book.proof_status,
    )
    return {
        "name": book.name,
        "unit": book.unit,
        "adjacency": book.adjacency,
        "status": book.status,
        "datapoints": book.size,
        "cohorts": len(book.ledger.cohorts),
        "tasks": len(book.tasks),
        "releases": len(book.releases),
        "promise": {
            "epsilon": promise.epsilon,
            "delta": promise.delta,
            "proof_status": guarantee.proof_status,
            "bound": readings.bound(book),
            "text": told(guarantee),
            "meaning": guarantee.meaning(),
        },
        "budget": {"epsilon": book.policy.budget.epsilon, "delta": book.policy.budget.delta},
        "policy": policy(book.policy),
        "entry": entry(book.chain.link),
    }


def policy(given: Policy) -> dict[str, Any]:
    """A policy as an answer."""
    return {
        "version": given.version,
        "epsilon": given.budget.epsilon,
        "delta": given.budget.delta,
        "on_exhausted": given.on_exhausted,
        "accepts": list(given.accepts),
        "named_scopes": given.named_scopes,
        "findings": dict(given.findings),
        "data": [dict(rule) for rule in given.data],
        "lifted": list(given.lifted),
    }


def entry(link: Link) -> dict[str, Any]:
    """Where something stands in the ledger."""
    return {"number": link.number, "hash": link.hash.hex()}


def _last(links: Sequence[Link]) -> dict[str, Any]:
    return entry(links[-1])


def etag(given: Policy) -> str:
    """What a client shows that it has seen this version."""
    return f'"{given.version}"'


def change_policy(
    *,
    reason: str,
    epsilon: float | None,
    delta: float | None,
    on_exhausted: OnExhausted | None,
    accepts: Sequence[ProofStatus] | None,
    named_scopes: bool | None,
    findings: Mapping[str, str] | None,
    data: Sequence[Mapping[str, Any]] | None,
    lift: Sequence[str],
    if_match: str | None,
) -> Decide:
    """A new version: it may lower ε or δ and change rules, never raise them.

    `lift` names audits whose violation blocks their mechanism no more; later versions keep them.
    """

    def decide(book: Book, _at: datetime, _connection: Connection | None) -> Outcome:
        if if_match is not None and if_match not in {"*", etag(book.policy)}:
            raise Problem("precondition", f"The policy is at version {book.policy.version}.", "If-Match")
        new = new_version(
            book,
            epsilon=epsilon,
            delta=delta,
            on_exhausted=on_exhausted,
            accepts=accepts,
            named_scopes=named_scopes,
            findings=findings,
            data=data,
            lift=lift,
        )
        over = readings.over(book, new.budget)
        body: Body = {"kind": "policy.changed", "policy": ledger_book.policy_to(new), "reason": reason}
        return Outcome(
            bodies=[body],
            status=200,
            respond=lambda links: {**policy(new), "already_over": over, "entry": _last(links)},
        )

    return decide


def new_version(
    book: Book,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    on_exhausted: OnExhausted | None = None,
    accepts: Sequence[ProofStatus] | None = None,
    named_scopes: bool | None = None,
    findings: Mapping[str, str] | None = None,
    data: Sequence[Mapping[str, Any]] | None = None,
    lift: Sequence[str] = (),
) -> Policy:
    """The policy that would follow this one; what is not said stays as it is."""
    now = book.policy
    for audit in lift:
        book.must_be_a_violation(audit)
    return Policy(
        version=now.version + 1,
        budget=book.lowered(epsilon=epsilon, delta=delta),
        on_exhausted=on_exhausted or now.on_exhausted,
        accepts=now.accepts if accepts is None else tuple(accepts),
        named_scopes=now.named_scopes if named_scopes is None else named_scopes,
        findings=now.findings if findings is None else {**DEFAULT_VERDICTS, **verdicts_of(findings)},
        data=now.data if data is None else tuple(data),
        lifted=tuple(dict.fromkeys((*now.lifted, *lift))),
    )


def change_status(*, to: str, reason: str) -> Decide:
    """Freeze, open again, or close for good."""

    def decide(book: Book, _at: datetime, _connection: Connection | None) -> Outcome:
        if book.status == "closed" and to != "closed":
            raise Problem("conflict", f"Population {book.name!r} is closed, for good.")
        if book.status == to:
            return Outcome(bodies=[], status=200, respond=lambda _: shown(book))
        word = "opened" if to == "open" else to
        return Outcome(
            bodies=[{"kind": f"population.{word}", "reason": reason}], status=200, respond=lambda _: shown(book)
        )

    return decide


def create_task(
    *,
    name: str,
    members: Mapping[str, Any],
    parts: Mapping[str, Mapping[str, Any]],
    budget: Filter | None,
    by: Actor,
) -> Decide:
    """A task; those that it shares datapoints with are named."""

    def decide(book: Book, _at: datetime, _connection: Connection | None) -> Outcome:
        if book.status == "closed":
            raise Problem("conflict", f"Population {book.name!r} is closed.")
        task, body = book.task(name=name, members=members, parts=parts, budget=budget)
        return Outcome(
            bodies=[body], status=201, respond=lambda links: {**task_shown(book, task, by=by), "entry": _last(links)}
        )

    return decide


def task_shown(
    book: Book, task: Task, *, by: Actor, overlaps_after: int = 0, most_overlaps: int = OVERLAPS_SHOWN
) -> dict[str, Any]:
    """A task with what is spent, held and available in it, of the worst-off member.

    Of the tasks that it shares datapoints with at most so many are shown; `overlaps_next` says where they go on. A
    reading that few members share is for who may see individuals.
    """
    least = least_told(by)
    found = list(islice(book.overlaps(task, after=overlaps_after), most_overlaps + 1))
    overlaps = found[:most_overlaps]
    return {
        "name": task.name,
        "population": book.name,
        "members": len(task.members),
        "parts": {name: len(part) for name, part in task.parts.items()},
        "epsilon": readings.worst_off(book, task.members, least=least),
        "budget": None if task.budget is None else {"epsilon": task.budget.epsilon, "delta": task.budget.delta},
        "task_epsilon": readings.worst_off(book, task.members, ledger=task.name, least=least) if task.budget else None,
        "overlaps": [{"task": other.name, "datapoints": count} for other, count in overlaps],
        "overlaps_next": cursor_of({"number": overlaps[-1][0].number}) if len(found) > most_overlaps else None,
    }
