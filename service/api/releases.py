"""/v1/releases: propose, commit, void."""

from __future__ import annotations

import threading
from typing import Annotated, Any
from weakref import WeakKeyDictionary

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from sqlalchemy import text
from starlette.concurrency import run_in_threadpool

from accountant.audit.findings import is_denied
from accountant.canonical import canonical, from_canonical
from service.api.context import (
    MAX_PAGE,
    Anyone,
    Auditing,
    IdempotencyKey,
    Parts,
    Pipeline,
    Service,
    Trusted,
    answered,
    decide,
    decided,
    idempotency_of,
    must_allow_names,
    problems,
)
from service.cursors import cursor_of, number_from
from service.errors import NotFound, Problem
from service.operations import audits, releases
from service.operations.individuals import names_individuals
from service.operations.keys import Actor
from service.operations.releases import Proposal
from service.schemas import Commit, NewRelease, NewReleases, PopulationName, ReleaseAudit, Void
from service.store.writer import Answer, Decide, Idempotency
from trainers.catalog import mechanism as find_mechanism

router = APIRouter(prefix="/v1/releases", tags=["releases"])
ReleaseId = Annotated[str, Path(pattern=r"^rel_[0-9A-Z]{26}$", examples=["rel_01J00000000000000000000000"])]

_OWNER = text(
    "SELECT population.name FROM release JOIN population ON population.id = release.population_id "
    "WHERE release.id = :id"
)
_BODY = text("SELECT entry.body FROM release JOIN entry USING (population_id, number) WHERE release.id = :id")
_OWNERS_KEPT = 100_000
_LOOKING = threading.BoundedSemaphore(4)


class _Owners:
    """The populations of the latest releases. A release never moves, so what is remembered stays true."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Parts, dict[str, str]] = WeakKeyDictionary()

    def remembered(self, parts: Parts, release: str) -> str | None:
        known = self._known.get(parts)
        return None if known is None else known.get(release)

    def remember(self, parts: Parts, release: str, population: str) -> None:
        known = self._known.setdefault(parts, {})
        if len(known) >= _OWNERS_KEPT:
            known.clear()
        known[release] = population


_OWNERS = _Owners()


def proposal_of(new: NewRelease, parts: Parts, actor: Actor, *, is_job: bool = False) -> Proposal:
    """What the request proposes; the hold of a job has no end of its own."""
    if bool(new.charges) == (new.mechanism is not None):
        raise Problem("invalid", "Propose either charges or a mechanism.", "charges")
    if sum(each is not None for each in (new.task, new.scope)) > 1 or (new.part is not None and new.task is None):
        raise Problem("invalid", "Name a task (and a part of it), or a scope.", "scope")
    if new.charges and (new.task is not None or new.scope is not None):
        raise Problem("invalid", "Charges name their scopes themselves.", "scope")
    mechanism = None if new.mechanism is None else find_mechanism(new.mechanism.name)
    made = None if mechanism is None else mechanism.kind
    if mechanism is not None and new.kind not in {None, made}:
        raise Problem("invalid", f"Mechanism {mechanism.name!r} makes {made}, and not {new.kind}.", "kind")
    if made is None and new.kind == "window_model":
        # Explicit charges would pass by the check of its schedule.
        raise Problem("invalid", "A window model is proposed by its mechanism, with stream, step and chain.", "kind")
    scope = new.scope
    if new.task is not None:
        scope = {"task": new.task} if new.part is None else {"task": new.task, "part": new.part}
    declared = {name: value for name in releases.DECLARATIONS if (value := getattr(new, name)) is not None}
    if new.mechanism is not None:
        declared["mechanism"] = new.mechanism.model_dump()
    canonical(declared)  # what has no canonical form cannot be logged, and is refused here
    if not actor.has("officer"):
        for document in (scope, *(charge.scope for charge in new.charges)):
            if document is not None and names_individuals(document):
                must_allow_names(parts, new.population)
                break
    return Proposal(
        kind=new.kind or made or "weights",
        charges=[
            {"scope": parts.resolved(new.population, charge.scope), "event": charge.event} for charge in new.charges
        ],
        mechanism=None if new.mechanism is None else new.mechanism.model_dump(),
        scope=None if scope is None else parts.resolved(new.population, scope),
        delta=new.delta,
        on_exhausted=new.on_exhausted,
        may_trim=actor.has("officer"),
        hold_seconds=None if is_job else new.hold_seconds or parts.settings.hold_seconds,
        declared=declared,
    )


@router.post(
    "",
    status_code=201,
    responses={**problems("not-found", "conflict", "key-reused"), 200: {"description": "What a dry run finds"}},
    summary="Propose a release",
)
async def propose(
    new: NewRelease,
    request: Request,
    parts: Service,
    actor: Pipeline,
    dry_run: Annotated[bool, Query(description="decide, and record nothing")] = False,  # noqa: FBT002
    key: IdempotencyKey = None,
) -> JSONResponse:
    """Held or denied: always recorded, with reasons and with what would fit instead."""
    proposal = await _read(new, parts, actor)
    if dry_run:
        return JSONResponse(await run_in_threadpool(_dry_run, parts, new.population, proposal))
    return answered(await proposed(parts, actor, new.population, proposal, await idempotency_of(request, actor, key)))


async def proposed(
    parts: Parts, actor: Actor, population: str, proposal: Proposal, idempotency: Idempotency | None
) -> Answer:
    """The decision on a proposal, recorded."""
    answer = await decided(parts, actor, population, releases.propose(proposal), idempotency)
    _OWNERS.remember(parts, answer.document["id"], population)
    return answer


async def _read(new: NewRelease, parts: Parts, actor: Actor) -> Proposal:
    """The proposal; one that needs no look at the database does not wait for a thread."""
    return (
        await run_in_threadpool(proposal_of, new, parts, actor) if names_anyone(new) else proposal_of(new, parts, actor)
    )


def names_anyone(new: NewRelease) -> bool:
    """Whether a proposal names single datapoints."""
    return any(names_individuals(scope) for scope in (new.scope or {}, *(charge.scope for charge in new.charges)))


def _dry_run(parts: Parts, population: str, proposal: Proposal) -> dict[str, Any]:
    with parts.books.read(population) as book:
        return releases.dry_run(book, proposal)


@router.post(
    "/batch",
    responses=problems("not-found", "conflict", "key-reused"),
    summary="Propose several releases, one after the other",
)
async def propose_all(
    new: NewReleases,
    request: Request,
    response: Response,
    parts: Service,
    actor: Pipeline,
    key: IdempotencyKey = None,
) -> dict[str, Any]:
    """Each has its own decision; one that cannot be read is answered with its problem and stops none of the others."""
    items: list[dict[str, Any]] = []
    replayed: list[bool] = []
    for number, each in enumerate(new.proposals):
        try:
            operation = releases.propose(await _read(each, parts, actor))
            answer = await decide(request, parts, actor, each.population, operation, key, suffix=f"#{number}")
            items.append(answer.document)
            replayed.append(answer.replayed)
        except (Problem, ValueError) as problem:
            if isinstance(problem, Problem) and problem.name == "key-reused":
                raise  # of the whole request, not of this one
            shown = problem if isinstance(problem, Problem) else Problem("invalid", str(problem))
            items.append({"status": "refused", "problem": shown.document(request.state.request_id)})
    if replayed and all(replayed):
        response.headers["Idempotent-Replayed"] = "true"
    return {"items": items}


@router.get("", responses=problems("not-found"), summary="The releases of a population")
def list_all(
    population: Annotated[PopulationName, Query()],
    parts: Service,
    _actor: Anyone,
    status: Annotated[str | None, Query(pattern="^(held|denied|committed|expired|voided|admitted|charged)$")] = None,
    kind: Annotated[str | None, Query(max_length=100)] = None,
    task: Annotated[str | None, Query(max_length=200)] = None,
    mechanism: Annotated[str | None, Query(max_length=200)] = None,
    finding: Annotated[str | None, Query(max_length=100, description="by its code")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
) -> dict[str, Any]:
    """Newest first."""
    with parts.books.read(population) as book:
        items, following = releases.page(
            book,
            status=status,
            kind=kind,
            task=task,
            mechanism=mechanism,
            finding=finding,
            before=number_from(cursor),
            limit=limit,
        )
    return {"items": items, "next": None if following is None else cursor_of({"number": following})}


@router.get("/{release}", responses=problems("not-found"), summary="One release")
def get(release: ReleaseId, parts: Service, actor: Anyone) -> dict[str, Any]:
    """Its charges, its decision and what became of it.

    Where fewer than ten datapoints are charged, a pipeline or a worker that did not propose it is told no ε, price or
    advice.
    """
    body = body_of(parts, release)
    entries = audits.entries_of(parts.database, release)
    with parts.books.read(owner_of(parts, release)) as book:
        shown = releases.detail(book, release, body, by=actor, entries=entries)
        budget, adjacency = book.policy.budget, book.adjacency
    # They may take seconds, and need the book no more.
    return {**shown, "engines": releases.engines(body, delta=budget.delta, adjacency=adjacency)}


@router.get("/{release}/members", responses=problems("not-found"), summary="Whom it was charged to")
def members(release: ReleaseId, parts: Service, _actor: Trusted) -> dict[str, Any]:
    """For the trusted side that trains: each charge with its datapoints as a bitmap, without those who were trimmed."""
    body = body_of(parts, release)
    with parts.books.read(owner_of(parts, release)) as book:
        return {"release": release, "charges": releases.members(book, body)}


def body_of(parts: Parts, release: str) -> dict[str, Any]:
    """The entry that the release was proposed with."""
    with parts.database.transaction() as connection:
        body = connection.execute(_BODY, {"id": release}).scalar_one_or_none()
    if body is None:
        raise NotFound("release", release)
    found: dict[str, Any] = from_canonical(bytes(body))
    return found


@router.post(
    "/{release}/commit",
    responses=problems("not-found", "conflict", "blocked", "key-reused"),
    summary="It left the house",
)
async def commit(
    release: ReleaseId, done: Commit, request: Request, parts: Service, actor: Pipeline, key: IdempotencyKey = None
) -> JSONResponse:
    """What was held is spent. Sent again it changes nothing; after expiry it can only attach the artifact.

    Of a mechanism that an audit blocks nothing leaves: void the hold, or, if it has left, have an officer commit it
    with a reason.
    """
    operation = committing(release, done, actor)
    return answered(await decide(request, parts, actor, await _population_of(parts, release), operation, key))


def committing(release: str, done: Commit, actor: Actor) -> Decide:
    """What a commit does."""
    artifact = None if done.artifact is None else done.artifact.model_dump(exclude_none=True)
    canonical([artifact, done.evaluation, done.reason])
    return releases.commit(release=release, artifact=artifact, by=actor, evaluation=done.evaluation, reason=done.reason)


@router.post(
    "/{release}/void", responses=problems("not-found", "conflict", "key-reused"), summary="Nothing left the house"
)
async def void(
    release: ReleaseId, why: Void, request: Request, parts: Service, actor: Pipeline, key: IdempotencyKey = None
) -> JSONResponse:
    """For a reason, which is recorded: the hold is gone, as if it had never been."""
    canonical(why.evidence)
    population = await _population_of(parts, release)
    operation = releases.void(release=release, reason=why.reason, evidence=why.evidence, by=actor)
    return answered(await decide(request, parts, actor, population, operation, key))


@router.post(
    "/{release}/audit", responses=problems("not-found", "conflict", "key-reused"), summary="Check it against the rules"
)
async def audit(
    release: ReleaseId,
    request: Request,
    parts: Service,
    actor: Auditing,
    asked: ReleaseAudit | None = None,
    key: IdempotencyKey = None,
) -> JSONResponse:
    """What is known of it (declarations, ledger, job, policy, artifact) against docs/audits.md; findings are recorded.

    An artifact is opened if it lies in the artifacts folder, and never run. Whoever has opened it elsewhere may say
    what they `found` there: that is recorded as their word, if the digest is that of the artifact, or if none is
    committed yet. Sent again it adds no entry, unless something else is found.
    """
    report = None if asked is None or asked.found is None else audits.report_from(asked.found)
    population, operation = await run_in_threadpool(_audited, parts, release, actor, report)
    return answered(await decide(request, parts, actor, population, operation, key))


def _audited(parts: Parts, release: str, actor: Actor, report: dict[str, Any] | None) -> tuple[str, Decide]:
    """What the checklist finds, and the operation that writes it down; so many at a time, since files are read."""
    if not _LOOKING.acquire(blocking=False):
        raise Problem("busy", "Other releases are being audited.")
    try:
        return _looked_at(parts, release, actor, report)
    finally:
        _LOOKING.release()


def _looked_at(parts: Parts, release: str, actor: Actor, report: dict[str, Any] | None) -> tuple[str, Decide]:
    """Files are read without the book's lock."""
    entries = audits.entries_of(parts.database, release)
    gathered = audits.Gathered(parts.database, parts.books, parts.settings.artifacts_folder, body_of(parts, release))
    try:
        contents = gathered.opened(gathered.file(release))
    except OSError:  # it is elsewhere, or not there yet
        contents = None
    earlier, labels = ([], None) if contents is None else (gathered.earlier(), gathered.labels())
    with parts.books.read(gathered.population) as book:
        since = [each for _, each in reversed(entries[1:])]
        audited = gathered.audit(book, contents, earlier=earlier, labels=labels, since=since)
        verdicts, version = book.policy.findings, book.policy.version
        committed = book.releases[release].artifact
    artifact = None if contents is None else {"sha256": contents.sha256, "bytes": contents.bytes}
    body = audits.body_of_audit(release, audited, policy=version, artifact=artifact, report=report)
    found = audits.findings_of([*entries, (0, {**body, "actor": actor.id})])
    denied = [is_denied(each, verdicts) for each in found]
    shown = {
        "release": release,
        "population": gathered.population,
        "denied": any(denied),
        "findings": [{**each.to_json(), "denied": refused} for each, refused in zip(found, denied, strict=True)],
        "checked": list(audited.checked),
        "artifact": artifact,
        "reported": None if report is None else {**report["artifact"], "checked": report["checked"]},
        "committed": None if committed is None else {"sha256": committed["sha256"]},
        "policy": {"version": version, "findings": dict(verdicts)},
    }
    return gathered.population, audits.record(body, by=actor.id, entries=entries, shown=shown)


async def _population_of(parts: Parts, release: str) -> str:
    known = remembered_owner(parts, release)
    return await run_in_threadpool(owner_of, parts, release) if known is None else known


def remembered_owner(parts: Parts, release: str) -> str | None:
    """The population of a release, if it is one of the latest."""
    return _OWNERS.remembered(parts, release)


def owner_of(parts: Parts, release: str) -> str:
    """The population of a release."""
    if (known := remembered_owner(parts, release)) is not None:
        return known
    with parts.database.transaction() as connection:
        name = connection.execute(_OWNER, {"id": release}).scalar_one_or_none()
    if name is None:
        raise NotFound("release", release)
    _OWNERS.remember(parts, release, str(name))
    return str(name)
