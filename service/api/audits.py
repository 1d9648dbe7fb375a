"""/v1/audits: have a mechanism attacked, and see what that came to."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from service.api.context import (
    MAX_PAGE,
    Anyone,
    Auditor,
    IdempotencyKey,
    Parts,
    Service,
    answered,
    decide,
    problems,
)
from service.cursors import cursor_of, name_from
from service.operations import empirical
from service.operations.keys import Actor
from service.schemas import AuditId, NewAudit, PopulationName
from service.store.writer import Decide

router = APIRouter(prefix="/v1/audits", tags=["audits"])
Audit = Annotated[AuditId, Path()]
AuditStatus = Annotated[str | None, Query(pattern=f"^({'|'.join(empirical.SORTS)})$")]


@router.post(
    "",
    status_code=201,
    responses=problems("not-found", "conflict", "key-reused"),
    summary="Plan an audit of a mechanism",
)
async def plan(
    new: NewAudit, request: Request, parts: Service, actor: Auditor, key: IdempotencyKey = None
) -> JSONResponse:
    """Its number in the population's life fixes its confidence; that, and the promise, are logged before it is run.

    A worker attacks the mechanism on made-up rows. If the promise turns out to be false, the mechanism is blocked.
    """
    operation = await run_in_threadpool(_planned, new, parts, actor)
    return answered(await decide(request, parts, actor, new.population, operation, key, uses_sql=True))


def _planned(new: NewAudit, parts: Parts, actor: Actor) -> Decide:
    asked = empirical.experiment(
        mechanism=new.mechanism,
        audit=new.audit,
        samples=new.samples,
        on_violation=new.on_violation,
        queue=new.queue,
        attempts=parts.settings.attempts,
    )
    return empirical.plan(asked, by=actor, reason=new.reason)


@router.get("", responses=problems(), summary="Audits")
def list_all(
    parts: Service,
    _actor: Anyone,
    population: Annotated[PopulationName | None, Query()] = None,
    status: AuditStatus = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
) -> dict[str, Any]:
    """Newest first, without their pictures."""
    rows = empirical.page(
        parts.database, population=population, status=status, before=name_from(cursor), limit=limit + 1
    )
    following = cursor_of({"after": rows[limit - 1]["id"]}) if len(rows) > limit else None
    items: dict[str, dict[str, Any]] = {}
    for name in {row["population"] for row in rows[:limit]}:
        with parts.books.read(name) as book:
            items |= {row["id"]: empirical.shown(row, book) for row in rows[:limit] if row["population"] == name}
    return {"items": [{**items[row["id"]], "roc": []} for row in rows[:limit]], "next": following}


@router.get("/{audit}", responses=problems("not-found"), summary="One audit")
def get(audit: Audit, parts: Service, _actor: Anyone) -> dict[str, Any]:
    """What was planned, how far it is, and what it found. Nothing in it was computed from private rows."""
    row = empirical.find(parts.database, audit)
    with parts.books.read(row["population"]) as book:
        return empirical.shown(row, book)
