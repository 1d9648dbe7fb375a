"""Empirical audits: a mechanism is attacked by a worker of ours, on made-up rows, and held against what is promised.

The ledger has the plan before anything is run, and what followed (`accountant.audit.series`). The row of an audit says
who is at it and how far they are, by the rules that jobs have: every attempt has a number, its fencing token, and who
has an older one can renew nothing and conclude nothing. There is no hold, since no private row is read, and nothing to
cancel, since a plan has used its share of errors.

Each function that returns a `Decide` changes the row and the ledger in one transaction, under the population's lock.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from sqlalchemy import text

from accountant.audit import series
from accountant.audit.verdicts import Verdict, confidence_of
from accountant.errors import InvalidInput
from service.errors import NotFound, Problem
from service.operations import webhooks
from service.operations.jobs import ERRORS
from service.operations.populations import entry
from service.operations.releases import new_id
from service.store import tickets
from service.store.writer import Decide, Outcome, stamp
from trainers.attacks.planned import offered
from trainers.catalog import mechanism as find_mechanism

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from sqlalchemy import Connection

    from accountant.audit.series import OnViolation, PlannedAudit
    from accountant.book import Book
    from accountant.chain import Link
    from service.operations.keys import Actor
    from service.store.database import Database
    from trainers.attacks.planned import Plan

Status: TypeAlias = Literal["queued", "running", "concluded", "failed"]
STATUSES: Final[tuple[Status, ...]] = ("queued", "running", "concluded", "failed")
#: By what audits are listed: their status, or the verdict of one that is concluded.
SORTS: Final[tuple[str, ...]] = (*get_args(Verdict), *STATUSES)
DEVICE: Final = "cpu"
_PREFIX: Final = "aud_"
#: Another attempt would end in the same way.
_FINAL: Final = frozenset({"recipe.invalid"})

_INSERT = text(
    "INSERT INTO audit (id, population_id, actor, queue, status, attempt, attempts, ticket, waits_since, step, steps, "
    "created_at) SELECT :id, population.id, :actor, :queue, 'queued', 0, :attempts, :ticket, :at, 0, :samples, :at "
    "FROM population WHERE name = :population"
)
_LOCKED = text(
    "SELECT *, coalesce(lease_until < now(), false) AS lapsed, "
    "waits_since < now() - make_interval(secs => :wait) AS unserved FROM audit WHERE id = :id FOR UPDATE"
)
_SELECT: Final = (
    "SELECT audit.*, population.name AS population, webhook.id AS webhook, webhook.status AS webhook_status, "
    "webhook.tries AS webhook_tries, webhook.error AS webhook_error "
    "FROM audit JOIN population ON population.id = audit.population_id LEFT JOIN webhook ON webhook.audit = audit.id "
)
_ONE = text(_SELECT + "WHERE audit.id = :id")
_PAGE = text(
    _SELECT + "WHERE (CAST(:population AS text) IS NULL OR population.name = :population) "
    "AND (CAST(:status AS text) IS NULL OR :status IN (audit.status, audit.verdict)) "
    'AND (CAST(:before AS text) IS NULL OR audit.id COLLATE "C" < :before) '
    'ORDER BY audit.id COLLATE "C" DESC LIMIT :limit'
)
_VIOLATIONS = text(
    "SELECT count(*) FROM audit JOIN population ON population.id = audit.population_id "
    "WHERE (CAST(:population AS text) IS NULL OR population.name = :population) "
    "AND (CAST(:status AS text) IS NULL OR :status IN (audit.status, audit.verdict)) AND audit.verdict = 'violation'"
)
_BEGIN = text(
    "UPDATE audit SET attempt = attempt + 1, status = 'running', worker = :worker, step = 0, error = NULL, "
    "lease_until = now() + make_interval(secs => :lease), started_at = coalesce(started_at, now()) "
    "WHERE id = :id AND status = 'queued' RETURNING attempt"
)
_RENEW = text(
    "UPDATE audit SET lease_until = now() + make_interval(secs => :lease), step = :step "
    "WHERE id = :id AND attempt = :token AND status = 'running' RETURNING attempt"
)
_QUEUED = text(
    "UPDATE audit SET status = 'queued', lease_until = NULL, ticket = :ticket, error = :error, waits_since = now() "
    "WHERE id = :id"
)
_COUNTS = text("SELECT status, verdict, count(*) AS audits FROM audit GROUP BY status, verdict")
_MORE = text("UPDATE audit SET attempts = attempts + 1 WHERE id = :id")
_ENDED = text(
    "UPDATE audit SET status = :status, error = :error, verdict = :verdict, outcome = :outcome, lease_until = NULL, "
    "ticket = NULL, finished_at = :at WHERE id = :id"
)
# A ticket that a worker took and did not live to begin: its heart beats no more, or it left no trace at all.
_SILENT = text(
    "SELECT population.name AS population, audit.id FROM audit JOIN population ON population.id = audit.population_id "
    "LEFT JOIN procrastinate_jobs ticket ON ticket.id = audit.ticket "
    "LEFT JOIN procrastinate_workers worker ON worker.id = ticket.worker_id "
    "WHERE (audit.status = 'running' AND audit.lease_until < now()) "
    "OR (audit.status = 'queued' AND ticket.status IS DISTINCT FROM 'todo' AND "
    "coalesce(worker.last_heartbeat < now() - make_interval(secs => :lease), true)) "
    "OR (audit.status = 'queued' AND audit.waits_since < now() - make_interval(secs => :wait)) "
    "ORDER BY audit.id LIMIT 100"
)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What is asked for: all of it checked."""

    mechanism: str
    plan: Plan
    samples: int | None  # as many as the audit takes
    on_violation: OnViolation
    queue: str
    attempts: int


@dataclass(frozen=True, kw_only=True)
class BegunAudit:
    """An attempt that may run, and its fencing token."""

    job: str
    token: int
    population: str
    mechanism: str
    epsilon: float | None


def is_audit(identity: str) -> bool:
    """Whether a ticket is that of an audit."""
    return identity.startswith(_PREFIX)


def experiment(
    *, mechanism: str, audit: str | None, samples: int | None, on_violation: OnViolation, queue: str, attempts: int
) -> Experiment:
    """The experiment that a request names, if there is one."""
    found = offered(find_mechanism(mechanism).name)
    if not found:
        raise Problem(
            "invalid", f"Nothing is promised of mechanism {mechanism!r} that an audit could test.", "mechanism"
        )
    named = [plan for plan in found if audit in (None, plan.name)]
    if len(named) != 1:
        names = "; ".join(repr(plan.name) for plan in found)
        raise Problem("invalid", f"Mechanism {mechanism!r} has these audits: {names}. Name one of them.", "audit")
    plan = named[0]
    return Experiment(
        mechanism=mechanism,
        plan=plan,
        samples=samples,
        on_violation=on_violation,
        queue=queue,
        attempts=attempts,
    )


# ---------------------------------------------------------------- decisions


def plan(asked: Experiment, *, by: Actor, reason: str | None = None) -> Decide:
    """Write down what will be held against what, at which confidence and why, and queue it."""
    epsilon = asked.plan.epsilon()

    def decide(book: Book, at: datetime, connection: Connection | None) -> Outcome:
        assert connection is not None
        if book.status == "closed":
            raise Problem("conflict", f"Population {book.name!r} is closed: nothing will be released from it.")
        audit, number = new_id(_PREFIX, at), len(book.audits) + 1
        power = asked.plan.power(confidence_of(number), epsilon=epsilon)
        most = max(asked.plan.samples, power.samples or 0)
        samples = most if asked.samples is None else asked.samples
        if samples > most:
            raise Problem("invalid", f"Audit {asked.plan.name!r} takes at most {most:,} samples.", "samples")
        body = series.planned_body(
            audit=audit,
            number=number,
            mechanism=asked.mechanism,
            name=asked.plan.name,
            samples=samples,
            epsilon=epsilon,
            delta=asked.plan.delta,
            by=asked.plan.promiser,
            on_violation=asked.on_violation,
            seed=secrets.token_hex(16),
            power=power,
            reason=reason,
        )
        ticket = tickets.put(connection, job=audit, queue=asked.queue, device=DEVICE)
        row = {
            "id": audit, "population": book.name, "actor": by.id, "queue": asked.queue, "attempts": asked.attempts,
            "ticket": ticket, "samples": samples, "at": at,
        }  # fmt: skip
        connection.execute(_INSERT, row)

        def respond(links: Sequence[Link]) -> dict[str, Any]:
            return {
                "id": audit,
                "population": book.name,
                "status": "queued",
                "mechanism": asked.mechanism,
                "audit": asked.plan.name,
                "number": body["number"],
                "confidence": body["confidence"],
                "samples": samples,
                "power": body["power"],
                "promise": {**body["promise"], "bound": "upper"},
                "on_violation": asked.on_violation,
                "entry": entry(links[-1]),
            }

        return Outcome(bodies=[body], status=201, respond=respond)

    return decide


def conclude(*, audit: str, token: int, found: Mapping[str, Any]) -> Decide:
    """What the current attempt found; the verdict follows from the plan and the bound, whatever the attempt thinks.

    Refused is what cannot be read.

    Asked again by an attempt that did not hear the answer, it changes nothing and answers the same.
    """

    bound = series.bound_from(found["bounds"][0])
    picture = json.dumps({"bounds": found["bounds"], "roc": found["roc"]}, allow_nan=False)

    def decide(book: Book, at: datetime, connection: Connection | None) -> Outcome:
        assert connection is not None
        row = _locked(connection, audit)
        if (row["status"], row["attempt"]) == ("concluded", token):
            return Outcome(bodies=[], status=200, respond=lambda _: {"status": "concluded"})
        row = _current(connection, audit, token)
        try:
            body = series.concluded_body(book.unfinished(audit), bound)
        except InvalidInput:  # it is not what was planned
            return _retried_or_failed(at, connection, row, "internal")
        _end(connection, row, "concluded", at, verdict=body["verdict"], outcome=picture)
        if body["verdict"] == "violation":
            webhooks.put(connection, audit=audit, at=at)
        return Outcome(
            bodies=[body], status=200, respond=lambda links: {"status": "concluded", "entry": entry(links[-1])}
        )

    return decide


def fail(*, audit: str, token: int, error: str, delay_seconds: float = 0.0) -> Decide:
    """The current attempt found nothing: the audit is given up, or waits for the next attempt, which has a delay."""
    assert error in ERRORS

    def decide(_book: Book, at: datetime, connection: Connection | None) -> Outcome:
        assert connection is not None
        row = _current(connection, audit, token)
        return _retried_or_failed(at, connection, row, error, delay_seconds=delay_seconds)

    return decide


def stand_down(*, audit: str, token: int) -> Decide:
    """The worker is told to stop: the audit waits for another one, and this attempt does not count."""

    def decide(_book: Book, at: datetime, connection: Connection | None) -> Outcome:
        assert connection is not None
        row = _current(connection, audit, token)
        connection.execute(_MORE, {"id": audit})
        return _retried_or_failed(at, connection, {**row, "attempts": row["attempts"] + 1}, None)

    return decide


def fall_silent(*, audit: str, wait_seconds: float) -> Decide:
    """The lease of the current attempt ran out, or nobody who took the ticket lives: another attempt, or the end."""

    def decide(_book: Book, at: datetime, connection: Connection | None) -> Outcome:
        assert connection is not None
        row = _locked(connection, audit, wait_seconds=wait_seconds)
        if row["status"] == "queued":
            return _failed(at, connection, row, "queue.unserved") if row["unserved"] else _queued_again(connection, row)
        if row["lapsed"]:
            return _retried_or_failed(at, connection, row, "worker.lost")
        return Outcome(bodies=[], status=200, respond=lambda _: {"status": row["status"]})  # somebody was quicker

    return decide


def _retried_or_failed(
    at: datetime, connection: Connection, row: Mapping[str, Any], error: str | None, *, delay_seconds: float = 0.0
) -> Outcome:
    if row["attempt"] < row["attempts"] and error not in _FINAL:
        return _queued_again(connection, row, error, delay_seconds=delay_seconds)
    return _failed(at, connection, row, error)


def _failed(at: datetime, connection: Connection, row: Mapping[str, Any], error: str | None) -> Outcome:
    _end(connection, row, "failed", at, error=error)
    body = {"kind": "audit.abandoned", "audit": row["id"], "error": error}
    return Outcome(bodies=[body], status=200, respond=lambda _: {"status": "failed"})


def _queued_again(
    connection: Connection, row: Mapping[str, Any], error: str | None = None, *, delay_seconds: float = 0.0
) -> Outcome:
    tickets.remove(connection, row["ticket"])
    ticket = tickets.put(connection, job=row["id"], queue=row["queue"], device=DEVICE, delay_seconds=delay_seconds)
    connection.execute(_QUEUED, {"id": row["id"], "ticket": ticket, "error": error})
    return Outcome(bodies=[], status=200, respond=lambda _: {"status": "queued"})


def _end(
    connection: Connection,
    row: Mapping[str, Any],
    status: Status,
    at: datetime,
    *,
    error: str | None = None,
    verdict: str | None = None,
    outcome: str | None = None,
) -> None:
    tickets.remove(connection, row["ticket"])
    connection.execute(
        _ENDED,
        {
            "id": row["id"], "status": status, "error": error, "at": at, "verdict": verdict,
            "outcome": outcome,
        },
    )  # fmt: skip


def _locked(connection: Connection, audit: str, *, wait_seconds: float = 0.0) -> Mapping[str, Any]:
    row = connection.execute(_LOCKED, {"id": audit, "wait": wait_seconds}).mappings().one_or_none()
    if row is None:
        raise NotFound("audit", audit)
    return dict(row)


def _current(connection: Connection, audit: str, token: int) -> Mapping[str, Any]:
    """The row of an audit, if the attempt with this token is the one that runs."""
    row = _locked(connection, audit)
    if row["status"] != "running" or row["attempt"] != token:
        raise Problem("conflict", f"Attempt {token} of audit {audit} is not the current one any more.")
    return row


# ---------------------------------------------------------------- attempts


def begin(database: Database, audit: str, *, worker: str, lease_seconds: float) -> BegunAudit | None:
    """The next attempt at an audit that waits; None if there is nothing to do any more."""
    with database.transaction() as connection:
        token = connection.execute(_BEGIN, {"id": audit, "worker": worker, "lease": lease_seconds}).scalar_one_or_none()
        if token is None:
            return None
        row = connection.execute(_ONE, {"id": audit}).mappings().one()
        return BegunAudit(job=audit, token=token, population=row["population"], mechanism="an audit", epsilon=None)


def renew(database: Database, audit: str, token: int, *, lease_seconds: float, step: int) -> bool:
    """A longer lease, and how far it is; False if this attempt is not the current one any more."""
    with database.transaction() as connection:
        renewed = connection.execute(_RENEW, {"id": audit, "token": token, "lease": lease_seconds, "step": step})
        return renewed.one_or_none() is not None


def silent(database: Database, *, lease_seconds: float, wait_seconds: float) -> list[tuple[str, str]]:
    """Audits, with their populations, that nobody is at although somebody should be."""
    asked = {"lease": lease_seconds, "wait": wait_seconds}
    with database.transaction() as connection:
        return [(row.population, row.id) for row in connection.execute(_SILENT, asked)]


def counts(database: Database) -> dict[tuple[str, str], int]:
    """How many audits there are of each status and verdict; where there is no verdict, it is empty."""
    none = {(status, verdict): 0 for status in STATUSES for verdict in _verdicts(status)}
    with database.transaction() as connection:
        return none | {(row.status, row.verdict or ""): row.audits for row in connection.execute(_COUNTS)}


def _verdicts(status: Status) -> tuple[str, ...]:
    return get_args(Verdict) if status == "concluded" else ("",)


# ---------------------------------------------------------------- answers


def find(database: Database, audit: str) -> Mapping[str, Any]:
    """The row of an audit."""
    with database.transaction() as connection:
        row = connection.execute(_ONE, {"id": audit}).mappings().one_or_none()
    if row is None:
        raise NotFound("audit", audit)
    return dict(row)


def page(
    database: Database, *, population: str | None, status: str | None, before: str | None, limit: int
) -> list[Mapping[str, Any]]:
    """The rows of the next audits, newest first; `status` may be a verdict too."""
    asked = {"population": population, "status": status, "before": before, "limit": limit}
    with database.transaction() as connection:
        return [dict(row) for row in connection.execute(_PAGE, asked).mappings()]


def violations(database: Database, *, population: str | None, status: str | None) -> int:
    """How many audits like this disproved a promise, on whatever page they are."""
    with database.transaction() as connection:
        found: int = connection.execute(_VIOLATIONS, {"population": population, "status": status}).scalar_one()
    return found


def shown(row: Mapping[str, Any], book: Book) -> dict[str, Any]:
    """An audit as an answer: what was planned and what followed by the ledger, how far it is by its row."""
    audit = book.audits[row["id"]]
    concluded = row["status"] == "concluded"
    outcome = json.loads(row["outcome"]) if concluded else {"bounds": [], "roc": []}
    return {
        "id": audit.id,
        "population": book.name,
        "unit": book.unit,
        "status": row["status"],
        "mechanism": audit.mechanism,
        "audit": audit.name,
        "number": audit.number,
        "samples": audit.samples,
        "confidence": audit.confidence,
        "promise": {"epsilon": audit.epsilon, "delta": audit.delta, "by": audit.by, "bound": "upper"},
        "on_violation": audit.on_violation,
        "seed": audit.seed,
        "power": None if audit.power is None else audit.power._asdict(),
        "verdict": audit.verdict if concluded else None,
        "sentence": _sentence(audit, row),
        "lower_bound": series.bound_to(audit.bound) if concluded and audit.bound is not None else None,
        "fitted": next((each for each in outcome["bounds"] if each["method"] == "gaussian_dp"), None),
        "roc": outcome["roc"],
        "blocks": audit in book.blocking(audit.mechanism),
        "queue": row["queue"],
        "attempt": row["attempt"],
        "attempts": row["attempts"],
        "worker": row["worker"],
        "progress": {"step": row["steps"] if concluded else row["step"], "steps": row["steps"]},
        "error": row["error"],
        "webhook": _told(row),
        "planned_by": audit.entry,
        "ended_by": audit.ended if row["status"] in {"concluded", "failed"} else None,
        "created_at": stamp(row["created_at"]),
        "started_at": _stamp(row["started_at"]),
        "finished_at": _stamp(row["finished_at"]),
    }


def _sentence(audit: PlannedAudit, row: Mapping[str, Any]) -> str:
    if row["error"] is None:
        return audit.sentence
    return f"{audit.sentence} The last attempt: {ERRORS.get(row['error'], row['error'])}."


def _told(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Whether a violation was told to the receiver of webhooks."""
    if row["webhook"] is None:
        return None
    named = {name: row[f"webhook_{name}"] for name in ("status", "tries", "error")}
    return {"id": row["webhook"], **named}


def _stamp(at: datetime | None) -> str | None:
    return None if at is None else stamp(at)
