"""/v1/populations: promises, policies, tasks and budgets."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request
from fastapi.responses import JSONResponse
from sqlalchemy import text
from starlette.concurrency import run_in_threadpool

from accountant import book as ledger_book
from accountant.canonical import canonical
from accountant.filters import Filter
from service.api.context import (
    MAX_PAGE,
    Anyone,
    IdempotencyKey,
    Officer,
    Parts,
    Pipeline,
    Service,
    answered,
    decide,
    idempotency_of,
    must_allow_names,
    problems,
)
from service.cursors import cursor_of, name_from, number_from
from service.errors import NotFound
from service.operations import outlooks, populations, readings, releases
from service.operations.individuals import LEAST_RANGE, least_told, names_individuals
from service.operations.keys import Actor
from service.schemas import Budget, NewPopulation, NewTask, PolicyChange, PopulationName, StatusChange
from service.store.writer import Decide

router = APIRouter(prefix="/v1/populations", tags=["populations"])
Population = Annotated[PopulationName, Path(description="the name of the population")]


def filter_of(budget: Budget) -> Filter:
    """The filter that a budget asks for."""
    return Filter.of(epsilon=budget.epsilon, delta=budget.delta, preset=budget.preset, delta_parts=budget.delta_parts)


@router.post(
    "", status_code=201, responses=problems("conflict", "key-reused"), summary="Promise something to a new population"
)
async def create(
    new: NewPopulation, request: Request, parts: Service, actor: Officer, key: IdempotencyKey = None
) -> JSONResponse:
    """The promise is for ever: ε and δ can only be lowered, and unit, adjacency and filter never change."""
    body = ledger_book.created(
        population=new.name,
        unit=new.unit,
        adjacency=new.adjacency,
        epsilon=new.budget.epsilon,
        delta=new.budget.delta,
        preset=new.budget.preset,
        delta_parts=new.budget.delta_parts,
        on_exhausted=new.on_exhausted,
        accepts=new.accepts,
        named_scopes=new.named_scopes,
        findings=new.findings,
        data=[rule.model_dump() for rule in new.data],
    )
    idempotency = await idempotency_of(request, actor, key)
    created = partial(populations.create, parts.database, body, actor=actor.id, idempotency=idempotency)
    return answered(await run_in_threadpool(created))


@router.get("", responses=problems(), summary="All populations")
def list_all(
    parts: Service,
    _actor: Anyone,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
) -> dict[str, Any]:
    """By name."""
    after = name_from(cursor) or ""
    with parts.database.transaction() as connection:
        names = (
            connection.execute(
                text("SELECT name FROM population WHERE name > :after ORDER BY name LIMIT :limit"),
                {"after": after, "limit": limit + 1},
            )
            .scalars()
            .all()
        )
    items = []
    for name in names[:limit]:
        with parts.books.read(name) as book:
            items.append(populations.shown(book))
    return {"items": items, "next": cursor_of({"after": names[limit - 1]}) if len(names) > limit else None}


@router.get("/{population}", responses=problems("not-found"), summary="One population")
def get(population: Population, parts: Service, _actor: Anyone) -> dict[str, Any]:
    """What was promised to it, under which policy, and how large it is."""
    with parts.books.read(population) as book:
        return populations.shown(book)


@router.post(
    "/{population}/status", responses=problems("not-found", "conflict", "key-reused"), summary="Freeze or close"
)
async def change_status(
    population: Population,
    change: StatusChange,
    request: Request,
    parts: Service,
    actor: Officer,
    key: IdempotencyKey = None,
) -> JSONResponse:
    """Nothing is released from a frozen population until it is opened again; a closed one stays closed."""
    operation = populations.change_status(to=change.status, reason=change.reason)
    return answered(await decide(request, parts, actor, population, operation, key))


@router.get("/{population}/policy", responses=problems("not-found"), summary="The policy of now")
def get_policy(population: Population, parts: Service, _actor: Anyone) -> JSONResponse:
    """Its version is its ETag."""
    with parts.books.read(population) as book:
        return JSONResponse(populations.policy(book.policy), headers={"ETag": populations.etag(book.policy)})


@router.put(
    "/{population}/policy",
    responses=problems("not-found", "conflict", "precondition", "key-reused"),
    summary="A new version of the policy",
)
async def change_policy(
    population: Population,
    change: PolicyChange,
    request: Request,
    parts: Service,
    actor: Officer,
    key: IdempotencyKey = None,
    if_match: Annotated[str | None, Header(max_length=100)] = None,
) -> JSONResponse:
    """It may lower ε or δ and change rules, never raise them; the answer says how many are already over it."""
    operation = populations.change_policy(
        reason=change.reason,
        epsilon=change.epsilon,
        delta=change.delta,
        on_exhausted=change.on_exhausted,
        accepts=change.accepts,
        named_scopes=change.named_scopes,
        findings=change.findings,
        data=None if change.data is None else [rule.model_dump() for rule in change.data],
        lift=change.lift,
        if_match=if_match,
    )
    return answered(await decide(request, parts, actor, population, operation, key))


@router.post(
    "/{population}/tasks",
    status_code=201,
    responses=problems("not-found", "conflict", "key-reused"),
    summary="A new task",
)
async def create_task(
    population: Population, new: NewTask, request: Request, parts: Service, actor: Pipeline, key: IdempotencyKey = None
) -> JSONResponse:
    """Members and parts by ranges, keys, bitmap or the next arrivals; overlaps with other tasks are reported."""
    operation = await run_in_threadpool(_task, new, parts, actor, population)
    return answered(await decide(request, parts, actor, population, operation, key))


def _task(new: NewTask, parts: Parts, actor: Actor, population: str) -> Decide:
    canonical([new.name, *new.parts])  # what cannot be logged is refused here
    scopes = [new.members, *new.parts.values()]
    if not actor.has("officer") and any(names_individuals(scope) for scope in scopes):
        must_allow_names(parts, population)
    return populations.create_task(
        name=new.name,
        members=parts.resolved(population, new.members),
        parts={name: parts.resolved(population, scope) for name, scope in new.parts.items()},
        budget=None if new.budget is None else filter_of(new.budget),
        by=actor,
    )


@router.get("/{population}/tasks", responses=problems("not-found"), summary="All tasks")
def list_tasks(
    population: Population,
    parts: Service,
    actor: Anyone,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
) -> dict[str, Any]:
    """In the order in which they were made, with what the worst-off member has spent, held and available.

    A pipeline is told no reading that fewer than ten members share: it is null then.
    """
    after = number_from(cursor) or 0
    with parts.books.read(population) as book:
        found = [task for task in book.tasks.values() if task.number > after][: limit + 1]
        items = [populations.task_shown(book, task, by=actor) for task in found[:limit]]
    return {"items": items, "next": cursor_of({"number": found[limit - 1].number}) if len(found) > limit else None}


@router.get("/{population}/tasks/{task:path}", responses=problems("not-found"), summary="One task")
def get_task(
    population: Population,
    task: str,
    parts: Service,
    actor: Anyone,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="the most overlaps")] = populations.OVERLAPS_SHOWN,
    cursor: Annotated[str | None, Query(max_length=1000, description="`overlaps_next` of an earlier answer")] = None,
) -> dict[str, Any]:
    """Its size, its parts, its own ledger, the releases that name it, and the tasks that it shares datapoints with."""
    after = number_from(cursor) or 0
    with parts.books.read(population) as book:
        if task not in book.tasks:
            raise NotFound("task", task)
        found = [each for each in book.releases.values() if task in each.tasks]
        return {
            **populations.task_shown(book, book.tasks[task], by=actor, overlaps_after=after, most_overlaps=limit),
            "releases": [releases.summary(book, each.id) for each in found[-MAX_PAGE:]],
            "releases_in_all": len(found),
        }


@router.get("/{population}/budget", responses=problems("not-found"), summary="How the budget stands")
def budget(
    population: Population,
    parts: Service,
    actor: Anyone,
    windows: Annotated[int, Query(ge=0, le=200, description="so many equal windows of arrivals")] = 0,
) -> dict[str, Any]:
    """Spent, held and available over all datapoints, per task and per window, with a forecast.

    A pipeline is shown no window of fewer than ten datapoints: there are fewer windows then. A reading that fewer than
    ten share is null for it, and a bin with fewer is part of the bin below it. The forecast is that of the dashboard,
    by the budgets alone; there is none in the first day.
    """
    least = least_told(actor)
    with parts.books.read(population) as book:
        if not actor.sees_individuals:
            windows = min(windows, book.size // LEAST_RANGE)
        found = readings.distribution(book, windows=windows, least=least)
        at = datetime.now(UTC)
        period = outlooks.lately(book, at=at, least=least)
        forecast, _ = outlooks.looked_ahead(parts.database, book, period, at=at, least=least)
        return {
            **found,
            "quantiles": readings.quantiles(book, least=least),
            "burn_rate": readings.burn_rate(book, at=at, least=least),
            "forecast": forecast,
        }
