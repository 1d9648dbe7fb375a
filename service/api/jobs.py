"""/v1/jobs: submit, watch, cancel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from accountant.canonical import canonical
from accountant.errors import InvalidInput
from service.api.context import (
    MAX_PAGE,
    Anyone,
    IdempotencyKey,
    Parts,
    Pipeline,
    Service,
    answered,
    decide,
    problems,
)
from service.api.releases import owner_of, proposal_of
from service.cursors import cursor_of, name_from
from service.errors import NotFound, Problem
from service.operations import jobs
from service.operations.jobs import Work
from service.operations.keys import Actor
from service.operations.releases import Proposal
from service.schemas import NewJob, NewRelease, PopulationName
from trainers.catalog import Mechanism
from trainers.catalog import mechanism as find_mechanism
from trainers.catalog.data_documents import data_document
from trainers.labels import space_of

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
JobId = Annotated[str, Path(pattern=r"^job_[0-9A-Z]{26}$", examples=["job_01J00000000000000000000000"])]
JobStatus = Annotated[str | None, Query(pattern=f"^({'|'.join(jobs.STATUSES)})$")]


@router.post(
    "",
    status_code=201,
    responses=problems("not-found", "conflict", "key-reused"),
    summary="Submit a job",
)
async def submit(
    new: NewJob, request: Request, parts: Service, actor: Pipeline, key: IdempotencyKey = None
) -> JSONResponse:
    """Price the mechanism, propose its release, hold it and queue the job, all or nothing.

    If the release is denied the decision is recorded, and there is no job.
    """
    proposal, work = await run_in_threadpool(_read, new, parts, actor)
    require_rules = bool(parts.settings.require_data_rules)
    operation = jobs.submit(proposal, work, by=actor, require_rules=require_rules)
    return answered(await decide(request, parts, actor, new.population, operation, key, uses_sql=True))


def _read(new: NewJob, parts: Parts, actor: Actor) -> tuple[Proposal, Work]:
    """What is proposed and what is to be done, all of it checked before anything is written."""
    mechanism = find_mechanism(new.mechanism.name)
    if mechanism.module is None:
        raise Problem("invalid", f"Mechanism {mechanism.name!r} can be proposed, but no worker runs it.", "mechanism")
    recipe = mechanism.cooked(new.recipe)
    for path, named in named_releases(mechanism, recipe):
        _must_be_committed(parts, path, named)
    release = NewRelease(
        population=new.population,
        mechanism=new.mechanism,
        task=new.task,
        part=new.part,
        scope=new.scope,
        delta=new.delta,
        on_exhausted=new.on_exhausted,
        label_space=_label_space(recipe),
        state=new.state,
        tuning=new.tuning,
        pretraining=new.pretraining,
        composition=new.composition,
    )
    data = data_document(new.data)
    mechanism.check_data(data)
    work = Work(
        mechanism=mechanism.name,
        parameters=new.mechanism.parameters,
        recipe=recipe,
        data=data,
        queue=new.queue,
        device=new.device,
        attempts=parts.settings.attempts,
    )
    canonical([work.recipe, work.data])  # what has no canonical form cannot be kept, and is refused here
    return proposal_of(release, parts, actor, is_job=True), work


def named_releases(mechanism: Mechanism, recipe: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The releases that a run builds on, each with the name that the run finds it under."""
    found = []
    for name in mechanism.releases:
        match recipe.get(name):
            case list(several):
                found += [(f"{name}.{place}", release) for place, release in enumerate(several)]
            case str(release) if release:
                found.append((name, release))
    return found


def _must_be_committed(parts: Parts, path: str, release: str) -> None:
    """What was committed stays so: to look before the decision is soon enough."""
    try:
        with parts.books.read(owner_of(parts, release)) as book:
            known = book.releases[release]
            status, artifact = known.status, known.artifact
    except NotFound:
        raise InvalidInput(f"recipe.{path}", release, "the id of a release") from None
    if status != "committed" or artifact is None:
        raise InvalidInput(f"recipe.{path}", release, "a release that was committed with an artifact")


def _label_space(recipe: dict[str, Any]) -> dict[str, Any] | None:
    """What the label space depends on, as the recipe says it."""
    match recipe.get("label_source"):
        case "prior":
            return {"source": "prior", "digest": space_of(recipe, names=recipe["label_names"]).digest}
        case "released":
            return {"source": "released", "release": recipe["labels_release"]}
        case _:
            return None


@router.get("", responses=problems(), summary="Jobs")
def list_all(
    parts: Service,
    actor: Anyone,
    population: Annotated[PopulationName | None, Query()] = None,
    status: JobStatus = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
) -> dict[str, Any]:
    """Newest first."""
    found = jobs.page(parts.database, population=population, status=status, before=name_from(cursor), limit=limit + 1)
    following = cursor_of({"after": found[limit - 1]["id"]}) if len(found) > limit else None
    return {"items": [_told(each, parts, actor) for each in found[:limit]], "next": following}


@router.get("/{job}", responses=problems("not-found"), summary="One job")
def get(job: JobId, parts: Service, actor: Anyone) -> dict[str, Any]:
    """What was asked, how far it is, and what became of it. Nothing in it was computed from data."""
    return _told(jobs.find(parts.database, job), parts, actor)


def _told(row: Mapping[str, Any], parts: Parts, actor: Actor) -> dict[str, Any]:
    with parts.books.read(row["population"]) as book:
        return jobs.told(jobs.shown(row, book), book, by=actor)


@router.get("/{job}/logs", responses=problems("not-found"), summary="How a job went")
def logs(job: JobId, parts: Service, _actor: Anyone) -> dict[str, Any]:
    """Its changes of status. What a mechanism says stays on the worker's side, since it may say anything."""
    jobs.find(parts.database, job)
    return {"job": job, "lines": jobs.lines(parts.database, job)}


@router.post("/{job}/cancel", responses=problems("not-found", "conflict", "key-reused"), summary="Cancel a job")
async def cancel(
    job: JobId, request: Request, parts: Service, actor: Pipeline, key: IdempotencyKey = None
) -> JSONResponse:
    """Its release is voided, and what its attempt makes will not be published. Sent again it changes nothing."""
    row = await run_in_threadpool(jobs.find, parts.database, job)
    operation = jobs.cancel(job=job, by=actor)
    return answered(await decide(request, parts, actor, row["population"], operation, key, uses_sql=True))
