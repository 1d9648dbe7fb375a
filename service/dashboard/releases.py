"""Releases: what left the house, and what did it cost?"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from fastapi import APIRouter, Query
from sqlalchemy import text

from accountant.canonical import from_canonical
from service.api import certificates as certificates_api
from service.api import ledger as ledger_api
from service.api import releases as releases_api
from service.api import reports as reports_api
from service.api.context import Parts, Service, decide
from service.api.populations import Population
from service.api.releases import ReleaseId
from service.cursors import cursor_of, number_from
from service.dashboard import labels
from service.dashboard.decisions import must_be_confirmed, reason_of
from service.dashboard.overview import disproved
from service.dashboard.pages import Asked, Done, action, mirror, page
from service.dashboard.sessions import utc_now
from service.dashboard.visitors import as_in, may
from service.errors import Problem
from service.operations import audits, certificates, jobs, keys, readings, releases, reports, statements
from service.operations.individuals import may_read, names_individuals, without_readings
from service.operations.keys import Actor
from service.printed import plain, up
from service.schemas import Artifact, Commit, Void

if TYPE_CHECKING:
    from accountant.book import Book, Release

router = APIRouter()
PAGE: Final = 50
Visitor = Annotated[Actor, as_in(releases_api.list_all)]
OneVisitor = Annotated[Actor, as_in(releases_api.get)]
Settler = Annotated[Actor, as_in(releases_api.commit, releases_api.void)]
Status = Annotated[Literal["", "held", "denied", "committed", "expired", "voided", "admitted", "charged"], Query()]
Kind = Annotated[Literal["", "weights", "labels", "prototypes", "window_model", "other"], Query()]
_DECIDED = text(
    "SELECT release.id, entry.body FROM release JOIN entry USING (population_id, number) "
    "WHERE release.id = ANY(:releases)"
)
_OVER: Final = {
    "budget.exceeded": "Over the lifelong budget.",
    "task_budget.exceeded": "Over a task's own budget.",
}
_ENTRIES = text("SELECT number, hash, body FROM entry WHERE release = :release ORDER BY number LIMIT 200")


@page(
    router,
    "/populations/{population}/releases",
    title="Releases",
    question="What left the house, and what did it cost?",
    template="releases.html",
)
def listed(
    population: Population,
    parts: Service,
    actor: Visitor,
    status: Status = "",
    kind: Kind = "",
    task: Annotated[str, Query(max_length=200)] = "",
    mechanism: Annotated[str, Query(max_length=200)] = "",
    finding: Annotated[str, Query(max_length=100)] = "",
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
) -> dict[str, Any]:
    """Newest first."""
    with parts.books.read(population) as book:
        items, following = releases.page(
            book,
            status=status or None,
            kind=kind or None,
            task=task or None,
            mechanism=mechanism or None,
            finding=finding or None,
            before=number_from(cursor),
            limit=PAGE,
        )
        unit, proof_status, bound = book.unit, book.proof_status, readings.bound(book)
        counts: dict[str, int] = {}
        mechanisms: set[str] = set()
        findings: set[str] = set()
        for release in book.releases.values():
            counts[release.status] = counts.get(release.status, 0) + 1
            findings.update(code for code, _ in release.findings)
            if release.mechanism is not None:
                mechanisms.add(release.mechanism)
    return {
        "population": population,
        "unit": unit,
        "proof_status": proof_status,
        "filter": {"status": status, "kind": kind, "task": task, "mechanism": mechanism, "finding": finding},
        "counts": counts,
        "mechanisms": sorted(mechanisms),
        "findings": sorted(findings),
        "items": decided(parts, actor, items, bound=bound),
        "next": None if following is None else cursor_of({"number": following}),
    }


def decided(parts: Parts, actor: Actor, listed: Sequence[dict[str, Any]], *, bound: str) -> list[dict[str, Any]]:
    """Releases with the highest ε before and after each, and why one was denied, as its decision said.

    Where that is not told to this key, ε is None.
    """
    with parts.database.transaction() as connection:
        rows = connection.execute(_DECIDED, {"releases": [each["id"] for each in listed]}).all()
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        body = from_canonical(bytes(row.body))
        decision = body["decision"]
        is_told = may_read(actor, datapoints=releases.read_of(decision), proposer=body["actor"])
        reasons = (decision if is_told else without_readings(decision))["reasons"]
        found[row.id] = {
            "epsilon": {**decision["epsilon"], "bound": bound} if is_told else None,
            "reason": _refused(reasons, sign="≤" if bound == "upper" else "=") if reasons else None,
        }
    return [{**each, **found[each["id"]]} for each in listed]


def _refused(reasons: Sequence[dict[str, Any]], *, sign: str) -> str:
    """The first reason, short; where only a task had no room, how far it would have come there, since ε is for life."""
    first = reasons[0]
    if first["code"] != "task_budget.exceeded" or first["budget"] is None:
        return str(_OVER.get(first["code"], first["message"]))
    at = f" (δ = {first['delta']:g})" if "delta" in first else ""  # entries of before do not say it
    reached = f"{sign} {up(first['epsilon'])} of {plain(first['budget'])}{at}"
    return f"It would fit for life, but not a task's own budget: ε {reached} in task “{first['task']}”."


def naming_individuals(parts: Parts, listed: Sequence[str]) -> set[str]:
    """Those of these releases that charge single datapoints by name, which a pipeline may ask nothing about."""
    with parts.database.transaction() as connection:
        rows = connection.execute(_DECIDED, {"releases": list(listed)}).all()
    return {
        row.id
        for row in rows
        if any(names_individuals(charge["scope"]) for charge in from_canonical(bytes(row.body))["charges"])
    }


# ---------------------------------------------------------------- one of them


@page(
    router,
    "/releases/{release}",
    title=lambda data: f"Release {data['id']}",
    question="What was asked, what was decided and why, and what became of it?",
    template="release.html",
)
def one(release: ReleaseId, parts: Service, actor: OneVisitor) -> dict[str, Any]:
    """The decision with its reasons, what was charged, what happened when, its labels, findings and certificate."""
    return _one(release, parts, actor)


def _one(release: str, parts: Parts, actor: Actor) -> dict[str, Any]:
    body = releases_api.body_of(parts, release)
    population = releases_api.owner_of(parts, release)
    entries = audits.entries_of(parts.database, release)
    with parts.books.read(population) as book:
        shown = releases.detail(book, release, body, by=actor, entries=entries)
        known = book.releases[release]
        ran_out = known.expires_at is not None and datetime.fromisoformat(known.expires_at) <= utc_now()
        job = jobs.of_release(parts.database, book, release)
        timeline = _timeline(parts, release, book) if may(actor, ledger_api.entries) else []
        return {
            **shown,
            "unit": book.unit,
            "adjacency": book.adjacency,
            "entry": known.number,
            "outcome": "admitted" if body["kind"] == "release.held" else "denied",
            "proof_status": statements.surety(book, body),
            "proof_status_for_life": book.proof_status,
            "timeline": timeline,
            "names": _names(parts, actor, [body["actor"], *(each["actor"] for each in timeline)]),
            "leans_on": sorted(known.leans_on),
            "leaned_on_by": book.leaning(release),
            "labels": next(iter(labels.of_releases(parts, [release])), None),
            "has_certificate": known.status in certificates.CERTIFIED,
            "job": None if job is None else jobs.told(job, book, by=actor),
            "ran_out": ran_out,
            "violations": disproved(
                actor, [each for each in reports.violations(book) if each["mechanism"] == known.mechanism]
            ),
            "stopped": _stopped(book, known) if known.status == "held" else None,
            "may_settle": known.status == "held"
            and known.expires_at is not None
            and (known.actor == actor.id or actor.has("officer")),
        }


def _stopped(book: Book, release: Release) -> str | None:
    """Why what is held must not leave now, if so: somebody is about to say that it did."""
    reasons = [f"an audit blocks {release.mechanism}"] if book.blocking(release.mechanism) else []
    if book.status != "open":
        reasons.append(f"{book.name} is {book.status}")
    if not reasons:
        return None
    why = ", and ".join(reasons)
    return f"{why[0].upper() if why.startswith('an ') else why[0]}{why[1:]}: it must not leave."


def _names(parts: Parts, actor: Actor, actors: Sequence[str]) -> dict[str, str]:
    """Names of keys are for those who see who did something anyway."""
    return keys.names(parts.database, actors) if actor.sees_individuals else {}


def _timeline(parts: Parts, release: str, book: Any) -> list[dict[str, Any]]:
    """Every entry of the ledger about it, in words, for whoever may read the ledger."""
    with parts.database.transaction() as connection:
        rows = connection.execute(_ENTRIES, {"release": release}).all()
    found = []
    for row in rows:
        document = from_canonical(bytes(row.body))
        found.append(
            {
                "number": row.number,
                "hash": bytes(row.hash).hex(),
                "at": document["at"],
                "actor": document["actor"],
                "kind": document["kind"],
                "text": reports.entry_in_words(book, document),
                "reason": document.get("reason"),
            }
        )
    return found


@page(
    router,
    "/releases/{release}/engines",
    title="Engines side by side",
    question="What does each way of accounting prove of this release alone?",
    template="engines.html",
)
def engines(release: ReleaseId, parts: Service, _actor: OneVisitor) -> dict[str, Any]:
    """At the δ of the budget. An engine may take a second, so the release's own page does not wait for it."""
    body = releases_api.body_of(parts, release)
    population = releases_api.owner_of(parts, release)
    with parts.books.read(population) as book:
        denied = book.releases[release].status == "denied"
        budget, adjacency, unit = book.policy.budget, book.adjacency, book.unit
        status = statements.surety(book, body)
    return {
        "population": population,
        "release": release,
        "delta": budget.delta,
        "adjacency": adjacency,
        "unit": unit,
        "proof_status": status,
        "denied": denied,
        "engines": releases.engines(body, delta=budget.delta, adjacency=adjacency),
    }


mirror(router, "/releases/{release}/certificate", certificates_api.certificate, filename="{release}.certificate.json")
mirror(router, "/releases/{release}/report", reports_api.of_release)


# ---------------------------------------------------------------- settling a hold


def _settling(release: ReleaseId, parts: Service, actor: Settler) -> dict[str, Any]:
    """The hold that would be settled."""
    found = _one(release, parts, actor)
    if found["status"] != "held":
        raise Problem("conflict", f"Release {release} is {found['status']}: there is no hold to settle.")
    return found


@action(
    router,
    "/releases/{release}/commit",
    title="It was released: commit",
    question="Did this release leave the house?",
    template="commit.html",
    data=_settling,
)
async def commit(asked: Asked) -> Done:
    """What was held is spent, for good."""
    must_be_confirmed(asked)
    digest, uri = asked.form.text("sha256"), asked.form.text("uri")
    artifact = None if digest is None else Artifact(sha256=digest, uri=uri)
    done = Commit(artifact=artifact, reason=reason_of(asked, most=2000))
    release, population = asked.shown["id"], asked.shown["population"]
    operation = releases_api.committing(release, done, asked.actor)
    await decide(asked.request, asked.parts, asked.actor, population, operation, asked.form.once)
    return Done(notice="The release is committed: what it held is spent.", to=f"/releases/{release}")


@action(
    router,
    "/releases/{release}/void",
    title="It was never released: void",
    question="Is it certain that nothing of this release left the house?",
    template="void.html",
    data=_settling,
)
async def void(asked: Asked) -> Done:
    """The hold is gone, as if it had never been."""
    if not asked.form.ticked("certain"):
        raise Problem(
            "invalid",
            "A hold is voided only by whoever is certain that nothing left the house: tick the box.",
            "certain",
        )
    why = Void(reason=reason_of(asked, most=2000))
    release, population = asked.shown["id"], asked.shown["population"]
    operation = releases.void(release=release, reason=why.reason, evidence=None, by=asked.actor)
    await decide(asked.request, asked.parts, asked.actor, population, operation, asked.form.once)
    return Done(notice="The hold is voided: its budget is available again.", to=f"/releases/{release}")
