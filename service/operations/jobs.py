"""Jobs: a mechanism that a worker of ours runs under a hold.

A job's outcome is known, unlike that of an outside pipeline: what an attempt makes is staged where nobody looks, and
becomes visible only by the transaction that commits the release. Every attempt has a number, its fencing token, and the
row of the job says which attempt is the current one. Whoever has an older number can renew nothing and commit nothing,
so a job whose worker fell silent may be started again under the same hold, or voided, whatever that worker still does.

Each function that returns a `Decide` changes the job and the ledger in one transaction, under the population's lock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from sqlalchemy import text

from accountant.audit.findings import denying
from accountant.canonical import canonical, from_canonical
from service.errors import NotFound, Problem
from service.operations import releases
from service.operations.individuals import may_read
from service.operations.populations import entry
from service.operations.readings import bound, finite
from service.store import tickets
from service.store.writer import Decide, Outcome, stamp
from trainers.catalog.data_documents import belongs_to_others, files, misaddressed, spelled

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy import Connection

    from accountant.audit.checklist import Audited
    from accountant.book import Body, Book
    from accountant.chain import Link
    from service.operations.keys import Actor
    from service.operations.releases import Proposal
    from service.store.database import Database

Status: TypeAlias = Literal["queued", "running", "committed", "failed", "cancelled"]
LIVE: Final = ("queued", "running")
STATUSES: Final[tuple[Status, ...]] = ("queued", "running", "committed", "failed", "cancelled")
WORKER: Final = "worker"

#: All that is ever said of why an attempt failed. A text could hold what it was computed from.
ERRORS: Final[Mapping[str, str]] = {
    "data.unknown": "the worker may not or cannot read data at this address, or cannot tell its format",
    "data.missing": "there is no such data, or no such array or column in it",
    "data.mismatch": "the rows do not belong to the datapoints of the scope as they should",
    "data.shape": "the rows do not have the shape or type that the recipe, or a model that it asks, takes",
    "backbone.unknown": "the worker has no backbone of this name",
    "backbone.changed": "the worker's backbone is not the one that an earlier release was built on",
    "backbone.weights": "the weights of the backbone are not as its configuration says",
    "backbone.shape": "rows do not have the shape that the backbone takes",
    "backbone.statistics": "the backbone would compute statistics of private rows",
    "input.missing": "an earlier release that the recipe builds on is not among the worker's artifacts, or was changed",
    "recipe.invalid": "the mechanism refuses the recipe",
    "finding.denied": "what it made has a finding for which the policy denies a release",
    "audit.violation": "an audit refuted the promise of its mechanism before it could leave",
    "population.status": "the population was frozen or closed before it could leave",
    "memory": "it needs more memory than there is",
    "timeout": "it took longer than an attempt may take",
    "killed": "the attempt's process was ended from outside",
    "worker.lost": "the worker fell silent",
    "queue.unserved": "no worker of its queue and device took it in time",
    "unreleasable": "its noise was repeatable, as in a test: what it made protects nobody",
    "internal": "a fault of ours; the worker's own log says more",
}
#: Another attempt would end in the same way.
_FINAL: Final = frozenset(
    {"data.shape", "recipe.invalid", "finding.denied", "audit.violation", "population.status", "unreleasable"}
)
#: Findings that numbers in a file can bring about; all others follow from its names, shapes and types, or the ledger.
_OF_NUMBERS: Final = frozenset(
    {"artifact.not_finite", "artifact.unreadable", "artifact.example_counts", "noise.repeated", "noise.shared"}
)
#: How the reason of a release begins that is spent without an artifact; reports say it in words of their own.
NOTHING_LEFT: Final = "it counts as left, and nothing did"

_INSERT = text(
    "INSERT INTO job (id, release, population_id, actor, queue, device, mechanism, parameters, recipe, data, epsilon, "
    "status, attempt, attempts, ticket, step, steps, created_at) SELECT :id, :release, population.id, :actor, :queue, "
    ":device, :mechanism, :parameters, :recipe, :data, :epsilon, 'queued', 0, :attempts, :ticket, 0, 0, :at "
    "FROM population WHERE name = :population"
)
_LINE = text(
    "INSERT INTO job_line (job, number, at, status, attempt, error) "
    "SELECT :job, coalesce(max(number), 0) + 1, now(), :status, :attempt, :error FROM job_line WHERE job = :job"
)
_LINES = text("SELECT at, status, attempt, error FROM job_line WHERE job = :job ORDER BY number LIMIT 1000")
_LOCKED = text("SELECT *, coalesce(lease_until < now(), false) AS lapsed FROM job WHERE id = :id FOR UPDATE")
# Its last line says since when it waits. A hold that waits for nobody would wait for ever.
_IS_UNSERVED = text("SELECT max(at) < now() - make_interval(secs => :wait) FROM job_line WHERE job = :id")
_ONE = text(
    "SELECT job.*, population.name AS population, now() AS now FROM job "
    "JOIN population ON population.id = job.population_id WHERE job.id = :id"
)
_OF_RELEASE = text(
    "SELECT job.*, population.name AS population, now() AS now FROM job "
    "JOIN population ON population.id = job.population_id WHERE job.release = :release"
)
_PAGE = text(
    "SELECT job.*, population.name AS population, now() AS now FROM job "
    "JOIN population ON population.id = job.population_id WHERE (CAST(:population AS text) IS NULL "
    "OR population.name = :population) AND (CAST(:status AS text) IS NULL OR job.status = :status) "
    'AND (CAST(:before AS text) IS NULL OR job.id COLLATE "C" < :before) ORDER BY job.id COLLATE "C" DESC LIMIT :limit'
)
_UNFINISHED = text(
    "SELECT count(*) FROM job JOIN population ON population.id = job.population_id "
    "WHERE population.name = :population AND job.status IN ('queued', 'running')"
)
_BEGIN = text(
    "UPDATE job SET attempt = attempt + 1, status = 'running', worker = :worker, step = 0, steps = 0, error = NULL, "
    "lease_until = now() + make_interval(secs => :lease), started_at = coalesce(started_at, now()), "
    "attempt_at = now(), progress_at = NULL WHERE id = :id AND status = 'queued' RETURNING attempt"
)
_RENEW = text(
    "UPDATE job SET lease_until = now() + make_interval(secs => :lease), step = :step, steps = :steps, "
    "progress_at = CASE WHEN step = :step THEN progress_at ELSE now() END "
    "WHERE id = :id AND attempt = :token AND status = 'running' RETURNING attempt"
)
_QUEUED = text("UPDATE job SET status = 'queued', lease_until = NULL, ticket = :ticket, error = :error WHERE id = :id")
_MORE = text("UPDATE job SET attempts = attempts + 1 WHERE id = :id")
_ENDED = text(
    "UPDATE job SET status = :status, error = :error, lease_until = NULL, ticket = NULL, finished_at = :at, "
    "artifact_sha256 = :sha256, artifact_uri = :uri, artifact_bytes = :bytes WHERE id = :id"
)
# A ticket that a worker took and did not live to begin: its heart beats no more, or it left no trace at all.
_SILENT = text(
    "SELECT population.name AS population, job.id FROM job JOIN population ON population.id = job.population_id "
    "LEFT JOIN procrastinate_jobs ticket ON ticket.id = job.ticket "
    "LEFT JOIN procrastinate_workers worker ON worker.id = ticket.worker_id "
    "WHERE (job.status = 'running' AND job.lease_until < now()) "
    "OR (job.status = 'queued' AND ticket.status IS DISTINCT FROM 'todo' AND "
    "coalesce(worker.last_heartbeat < now() - make_interval(secs => :lease), true)) "
    "OR (job.status = 'queued' AND (SELECT max(at) FROM job_line WHERE job_line.job = job.id) "
    "< now() - make_interval(secs => :wait)) ORDER BY job.id LIMIT 100"
)
_IS_OFFERED = text("SELECT EXISTS (SELECT FROM procrastinate_jobs WHERE id = :ticket AND status = 'todo')")
# The newest policy of each other population, if it has rules on files: a search, and not a reading of all logs. It is
# not parsed here: PostgreSQL refuses any JSON with a NUL in it, and one odd text must not stop all jobs.
_POLICIES_WITH_RULES = text(
    "SELECT newest.body FROM population, LATERAL (SELECT body FROM entry WHERE population_id = population.id "
    "AND kind IN ('population.created', 'policy.changed') ORDER BY number DESC LIMIT 1) newest "
    "WHERE population.name <> :name AND position(convert_to('\"data\"\\:[{', 'UTF8') IN newest.body) > 0"
)
_COUNTS = text("SELECT status, count(*) FROM job GROUP BY status")


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a job is asked to do, beside its proposal: all of it public, all of it checked."""

    mechanism: str
    parameters: Mapping[str, Any]
    recipe: Mapping[str, Any]
    data: Mapping[str, Any]
    queue: str
    device: str
    attempts: int


@dataclass(frozen=True, kw_only=True)
class Begun:
    """An attempt that may run: the job's row as it was when it began, and the fencing token."""

    job: str
    token: int
    release: str
    population: str
    mechanism: str
    parameters: Mapping[str, Any]
    recipe: Mapping[str, Any]
    data: Mapping[str, Any]
    device: str
    epsilon: float | None


# ---------------------------------------------------------------- decisions


def submit(proposal: Proposal, work: Work, *, by: Actor, require_rules: bool = False) -> Decide:
    """Propose the release; if it is held, write the job and its ticket as well. If it is denied there is no job.

    What a policy says about files is asked first: that of this population, and that nobody else's claims them.
    """

    def decide(book: Book, at: datetime, connection: Connection | None) -> Outcome:
        assert connection is not None
        assert proposal.hold_seconds is None
        if (problem := _refused(connection, book, work.data, require_rules=require_rules)) is not None:
            raise Problem("forbidden", problem, "data")
        proposed = releases.propose(proposal)(book, at, None)
        if proposed.held is None:
            return Outcome(
                bodies=proposed.bodies,
                status=201,
                respond=lambda links: {"id": None, "status": "denied", "release": proposed.respond(links)},
            )
        job = releases.new_id("job_", at)
        recipe = canonical(work.recipe).decode()
        body = dict(proposed.bodies[0])
        data = canonical(work.data).decode()
        digests = {
            name: f"sha256:{sha256(each.encode()).hexdigest()}" for name, each in (("recipe", recipe), ("data", data))
        }
        body["declared"] = {**body["declared"], "job": {"id": job, **digests}}
        ticket = tickets.put(connection, job=job, queue=work.queue, device=work.device)
        row = {
            "id": job,
            "release": body["release"],
            "population": book.name,
            "actor": by.id,
            "queue": work.queue,
            "device": work.device,
            "mechanism": work.mechanism,
            "parameters": canonical(work.parameters).decode(),
            "recipe": recipe,
            "data": data,
            "epsilon": body["decision"]["epsilon"]["after"],
            "attempts": work.attempts,
            "ticket": ticket,
            "at": at,
        }

        connection.execute(_INSERT, row)
        _write_line(connection, job, "queued", 0)

        def respond(links: Sequence[Link]) -> dict[str, Any]:
            return {"id": job, "status": "queued", "release": proposed.respond(links)}

        return Outcome(bodies=[body], status=201, respond=respond, held=proposed.held)

    return decide


def _refused(connection: Connection, book: Book, data: Mapping[str, Any], *, require_rules: bool) -> str | None:
    """Why a job of this population may not read these files, or not so; None if it may."""
    rules = book.policy.data
    if require_rules and not rules:
        return "Here a policy has to say whose the rows of files are, and that of this population says nothing (data)."
    if (problem := misaddressed(rules, data)) is not None:
        return problem
    own, others = (
        [*map(spelled, uris)] for uris in ([r["uri"] for r in rules], rules_of_others(connection, book.name))
    )
    for uri in files(data):
        if belongs_to_others(spelled(uri), own=own, others=others):
            return f"The policy of another population says whose the rows of {uri!r} are: only its jobs read them."
    return None


def rules_of_others(connection: Connection, population: str) -> list[str]:
    """The addresses for which policies of other populations, as they are now, say whose rows are."""
    bodies = connection.execute(_POLICIES_WITH_RULES, {"name": population}).scalars()
    return [rule["uri"] for body in bodies for rule in json.loads(bytes(body))["policy"].get("data", ())]


def cancel(*, job: str, by: Actor, reason: str | None = None) -> Decide:
    """Nothing of it will leave the worker: from here on its attempt, if one runs, can commit nothing.

    The ledger says why its release is voided; a reason that somebody gives stands beside that.
    """
    because = "the job was cancelled before anything left the worker" + ("" if reason is None else f": {reason}")

    def decide(book: Book, at: datetime, connection: Connection | None) -> Outcome:
        assert connection is not None
        row = _locked(connection, job)
        if row["actor"] != by.id and not by.has("officer"):
            raise Problem("forbidden", f"Job {job} was submitted under another key.")
        if row["status"] == "cancelled":
            return Outcome(bodies=[], status=200, respond=lambda _: _now(connection, book, job))
        if row["status"] not in LIVE:
            raise Problem("conflict", f"Job {job} is {row['status']}: there is nothing to cancel.")
        if others := book.leaning(row["release"]):
            message = f"Release {others[0]} makes use of its models: void that first, or let it run."
            raise Problem("conflict", message)
        bodies = _voided(book, row, because)
        _end(connection, row, "cancelled", at)
        return Outcome(bodies=bodies, status=200, respond=lambda _: _now(connection, book, job))

    return decide


def commit(*, job: str, token: int, artifact: Mapping[str, Any], audited: Audited | None = None) -> Decide:
    """What the current attempt made leaves the house; any other attempt is told that it is too late.

    `audited` is what its worker found when it opened that, and what it looked for.

    Asked again by an attempt that did not hear the answer, it changes nothing and answers the same. From a population
    that was frozen meanwhile nothing leaves, nothing of a mechanism that an audit blocks, and nothing with a finding
    for which the policy denies a release: the job fails, and its release is voided. If numbers of the file alone deny
    it, which are what was paid for, it is spent without an artifact: to void it would tell something of them for
    nothing. What voids it is seen whatever the numbers are, and so is all that is said of it.
    """
    findings = () if audited is None else audited.findings

    def decide(book: Book, at: datetime, connection: Connection | None) -> Outcome:
        assert connection is not None
        row = _locked(connection, job)
        if (row["status"], row["attempt"], row["artifact_sha256"]) == ("committed", token, artifact["sha256"]):
            return Outcome(bodies=[], status=200, respond=lambda _: {"status": "committed"})
        row = _current(connection, job, token)
        known = book.releases[row["release"]]
        if known.status != "held":  # nobody but a job ends the hold of a job
            raise Problem("conflict", f"Release {known.id} is {known.status}: there is nothing to commit.")
        if book.status != "open":  # a pipeline says what left; this has not, and stays
            return _retried_or_failed(book, at, connection, row, "population.status")
        if book.blocking(row["mechanism"]):
            return _retried_or_failed(book, at, connection, row, "audit.violation")
        if denied := denying(findings, book.policy.findings):
            codes = {each.code for each in denied}
            if seen := sorted(codes - _OF_NUMBERS):
                return _retried_or_failed(book, at, connection, row, "finding.denied", evidence={"findings": seen})
            _end(connection, row, "failed", at, error="finding.denied")
            because = ", ".join(sorted(codes))
            reason = f"{NOTHING_LEFT}, since numbers that were paid for deny it: {because}"
            spent: Body = {"kind": "release.committed", "release": known.id, "reason": reason}
            return Outcome(bodies=[spent], status=200, respond=lambda _: {"status": "failed"})
        body: Body = {"kind": "release.committed", "release": known.id, "artifact": dict(artifact)}
        if audited is not None:
            body["checked"] = list(audited.checked)
        if findings:
            body["findings"] = [each.to_record() for each in findings]
        _end(connection, row, "committed", at, artifact=artifact)
        return Outcome(
            bodies=[body], status=200, respond=lambda links: {"status": "committed", "entry": entry(links[-1])}
        )

    return decide


def fail(*, job: str, token: int, error: str, delay_seconds: float = 0.0) -> Decide:
    """The current attempt made nothing: the job is given up and its release voided, or it waits for the next attempt.

    That begins after a delay, since what was missing may come back.
    """
    assert error in ERRORS

    def decide(book: Book, at: datetime, connection: Connection | None) -> Outcome:
        assert connection is not None
        row = _current(connection, job, token)
        return _retried_or_failed(book, at, connection, row, error, delay_seconds=delay_seconds)

    return decide


def stand_down(*, job: str, token: int) -> Decide:
    """The worker is told to stop: the job waits for another one, and this attempt does not count."""

    def decide(book: Book, at: datetime, connection: Connection | None) -> Outcome:
        assert connection is not None
        row = _current(connection, job, token)
        connection.execute(_MORE, {"id": job})
        return _retried_or_failed(book, at, connection, {**row, "attempts": row["attempts"] + 1}, None)

    return decide


def fall_silent(*, job: str, wait_seconds: float) -> Decide:
    """The lease of the current attempt ran out, or nobody who took the ticket lives: another attempt, or the end.

    So is the end of a job that waited for longer than `wait_seconds`.
    """

    def decide(book: Book, at: datetime, connection: Connection | None) -> Outcome:
        assert connection is not None
        row = _locked(connection, job)
        if row["status"] == "queued":
            if connection.execute(_IS_UNSERVED, {"id": job, "wait": wait_seconds}).scalar_one():
                return _failed(book, at, connection, row, "queue.unserved")
            if not connection.execute(_IS_OFFERED, {"ticket": row["ticket"]}).scalar_one():
                return _queued_again(connection, row, row["error"])
        elif row["lapsed"]:
            return _retried_or_failed(book, at, connection, row, "worker.lost")
        return Outcome(bodies=[], status=200, respond=lambda _: {"status": row["status"]})  # somebody was quicker

    return decide


def _retried_or_failed(
    book: Book,
    at: datetime,
    connection: Connection,
    row: Mapping[str, Any],
    error: str | None,
    *,
    delay_seconds: float = 0.0,
    evidence: Mapping[str, Any] = MappingProxyType({}),
) -> Outcome:
    if row["attempt"] < row["attempts"] and error not in _FINAL:
        return _queued_again(connection, row, error, delay_seconds=delay_seconds)
    return _failed(book, at, connection, row, error, evidence=evidence)


def _failed(
    book: Book,
    at: datetime,
    connection: Connection,
    row: Mapping[str, Any],
    error: str | None,
    *,
    evidence: Mapping[str, Any] = MappingProxyType({}),
) -> Outcome:
    _end(connection, row, "failed", at, error=error)
    reason = f"the job failed after {row['attempt']} attempts, and nothing left the worker: {error}"
    bodies = _voided(book, row, reason, evidence)
    return Outcome(bodies=bodies, status=200, respond=lambda _: {"status": "failed"})


def _queued_again(
    connection: Connection, row: Mapping[str, Any], error: str | None, *, delay_seconds: float = 0.0
) -> Outcome:
    tickets.remove(connection, row["ticket"])
    ticket = tickets.put(
        connection, job=row["id"], queue=row["queue"], device=row["device"], delay_seconds=delay_seconds
    )
    connection.execute(_QUEUED, {"id": row["id"], "ticket": ticket, "error": error})
    _write_line(connection, row["id"], "queued", row["attempt"], error)
    return Outcome(bodies=[], status=200, respond=lambda _: {"status": "queued"})


def _voided(
    book: Book, row: Mapping[str, Any], reason: str, evidence: Mapping[str, Any] = MappingProxyType({})
) -> list[Body]:
    """What ends the hold of a job that made nothing: if others lean on its models it cannot be undone, and is spent."""
    release = row["release"]
    if book.releases[release].status != "held":
        return []
    if book.leaning(release):
        return [{"kind": "release.committed", "release": release}]
    return [
        {"kind": "release.voided", "release": release, "reason": reason, "evidence": {"job": row["id"], **evidence}}
    ]


def _end(
    connection: Connection,
    row: Mapping[str, Any],
    status: Status,
    at: datetime,
    *,
    error: str | None = None,
    artifact: Mapping[str, Any] | None = None,
) -> None:
    made = artifact or {}
    tickets.remove(connection, row["ticket"])
    connection.execute(
        _ENDED,
        {
            "id": row["id"], "status": status, "error": error, "at": at,
            "sha256": made.get("sha256"), "uri": made.get("uri"), "bytes": made.get("bytes"),
        },
    )  # fmt: skip
    _write_line(connection, row["id"], status, row["attempt"], error)


def _write_line(connection: Connection, job: str, status: str, attempt: int, error: str | None = None) -> None:
    connection.execute(_LINE, {"job": job, "status": status, "attempt": attempt, "error": error})


def _locked(connection: Connection, job: str) -> Mapping[str, Any]:
    row = connection.execute(_LOCKED, {"id": job}).mappings().one_or_none()
    if row is None:
        raise NotFound("job", job)
    return dict(row)


def _current(connection: Connection, job: str, token: int) -> Mapping[str, Any]:
    """The row of a job, if the attempt with this token is the one that runs."""
    row = _locked(connection, job)
    if row["status"] != "running" or row["attempt"] != token:
        raise Problem("conflict", f"Attempt {token} of job {job} is not the current one any more.")
    return row


# ---------------------------------------------------------------- attempts


def begin(database: Database, job: str, *, worker: str, lease_seconds: float) -> Begun | None:
    """The next attempt at a job that waits; None if there is nothing to do any more."""
    with database.transaction() as connection:
        token = connection.execute(_BEGIN, {"id": job, "worker": worker, "lease": lease_seconds}).scalar_one_or_none()
        if token is None:
            return None
        _write_line(connection, job, "running", token)
        row = connection.execute(_ONE, {"id": job}).mappings().one()
        return Begun(
            job=job,
            token=token,
            release=row["release"],
            population=row["population"],
            mechanism=row["mechanism"],
            parameters=from_canonical(row["parameters"].encode()),
            recipe=from_canonical(row["recipe"].encode()),
            data=from_canonical(row["data"].encode()),
            device=row["device"],
            epsilon=row["epsilon"],
        )


def renew(database: Database, job: str, token: int, *, lease_seconds: float, step: int, steps: int) -> bool:
    """A longer lease, and how far it is; False if this attempt is not the current one any more."""
    with database.transaction() as connection:
        renewed = connection.execute(
            _RENEW, {"id": job, "token": token, "lease": lease_seconds, "step": step, "steps": steps}
        )
        return renewed.one_or_none() is not None


def silent(database: Database, *, lease_seconds: float, wait_seconds: float) -> list[tuple[str, str]]:
    """Jobs, with their populations, that nobody is at although somebody should be."""
    asked = {"lease": lease_seconds, "wait": wait_seconds}
    with database.transaction() as connection:
        return [(row.population, row.id) for row in connection.execute(_SILENT, asked)]


def counts(database: Database) -> dict[str, int]:
    """How many jobs there are of each status."""
    with database.transaction() as connection:
        found = {status: count for status, count in connection.execute(_COUNTS)}  # noqa: C416 - rows are no pairs
    return {status: found.get(status, 0) for status in STATUSES}


# ---------------------------------------------------------------- answers


def _now(connection: Connection, book: Book, job: str) -> dict[str, Any]:
    return shown(dict(connection.execute(_ONE, {"id": job}).mappings().one()), book)


def find(database: Database, job: str) -> Mapping[str, Any]:
    """The row of a job."""
    with database.transaction() as connection:
        row = connection.execute(_ONE, {"id": job}).mappings().one_or_none()
    if row is None:
        raise NotFound("job", job)
    return dict(row)


def of_release(database: Database, book: Book, release: str) -> dict[str, Any] | None:
    """The job that makes a release, if it is one that a worker makes."""
    with database.transaction() as connection:
        row = connection.execute(_OF_RELEASE, {"release": release}).mappings().one_or_none()
    return None if row is None else shown(dict(row), book)


def unfinished(database: Database, population: str) -> int:
    """How many jobs of a population wait or run."""
    with database.transaction() as connection:
        return int(connection.execute(_UNFINISHED, {"population": population}).scalar_one())


def page(
    database: Database, *, population: str | None, status: str | None, before: str | None, limit: int
) -> list[Mapping[str, Any]]:
    """The rows of the next jobs, newest first."""
    asked = {"population": population, "status": status, "before": before, "limit": limit}
    with database.transaction() as connection:
        return [dict(row) for row in connection.execute(_PAGE, asked).mappings()]


def lines(database: Database, job: str) -> list[dict[str, Any]]:
    """How a job changed its status; the last line is what is so now."""
    with database.transaction() as connection:
        rows = connection.execute(_LINES, {"job": job}).all()
    return [
        {
            "at": stamp(row.at),
            "status": row.status,
            "attempt": row.attempt,
            "error": row.error,
            "message": _sentence(row.status, row.attempt, row.error, is_over=row is not rows[-1]),
        }
        for row in rows
    ]


def _sentence(status: str, attempt: int, error: str | None, *, is_over: bool) -> str:
    """A line of a job's history.

    >>> _sentence("running", 1, None, is_over=True), _sentence("running", 2, None, is_over=False)
    ('Attempt 1 ran.', 'Attempt 2 is running.')
    """
    because = "" if error is None else f": {ERRORS.get(error, error)}"
    waits = "waited" if is_over else "waits"
    match status:
        case "queued" if attempt == 0:
            return f"It {waits} for a worker."
        case "queued":
            return f"Attempt {attempt} came to nothing, and it {waits} for the next{because}."
        case "running":
            return f"Attempt {attempt} {'ran' if is_over else 'is running'}."
        case "committed":
            return f"Attempt {attempt} is committed."
        case "failed":
            return f"It was given up after {attempt} attempts, and nothing of it left the worker{because}."
        case _:
            return "It was cancelled, and its release voided."


def told(job: Mapping[str, Any], book: Book, *, by: Actor) -> dict[str, Any]:
    """A job as a key may see it: as its release, of few datapoints without a reading."""
    release = book.releases[job["release"]]
    is_told = may_read(by, datapoints=release.datapoints, proposer=release.actor)
    return dict(job) if is_told else {**job, "epsilon": {"after": None, "bound": None}}


def shown(row: Mapping[str, Any], book: Book) -> dict[str, Any]:
    """A job of a population as an answer. Nothing in it was computed from data."""
    finished = row["status"] == "committed"
    return {
        "id": row["id"],
        "population": row["population"],
        "release": row["release"],
        "status": row["status"],
        "mechanism": {"name": row["mechanism"], "parameters": from_canonical(row["parameters"].encode())},
        "recipe": from_canonical(row["recipe"].encode()),
        "data": from_canonical(row["data"].encode()),
        "queue": row["queue"],
        "device": row["device"],
        "attempt": row["attempt"],
        "attempts": row["attempts"],
        "worker": row["worker"],
        "progress": {
            "step": row["steps"] if finished else row["step"],
            "steps": row["steps"],
            "seconds_left": _seconds_left(row),
        },
        "epsilon": {"after": finite(row["epsilon"]) if row["epsilon"] is not None else None, "bound": bound(book)},
        "error": row["error"],
        "artifact": (
            {"sha256": row["artifact_sha256"], "uri": row["artifact_uri"], "bytes": row["artifact_bytes"]}
            if finished
            else None
        ),
        "created_at": stamp(row["created_at"]),
        "started_at": _stamp(row["started_at"]),
        "finished_at": _stamp(row["finished_at"]),
    }


def _seconds_left(row: Mapping[str, Any]) -> float | None:
    """As long again as it took so far, for every step that is left."""
    if row["status"] != "running" or not row["step"] or row["progress_at"] is None:
        return None
    taken: float = (row["progress_at"] - row["attempt_at"]).total_seconds()
    done, of = int(row["step"]), int(row["steps"])
    return round(max(0.0, taken / done * (of - done)), 1)


def _stamp(at: datetime | None) -> str | None:
    return None if at is None else stamp(at)
