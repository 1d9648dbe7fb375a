"""Datapoint: what has been released about this one person?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Query
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, Field, ValidationError
from starlette.concurrency import run_in_threadpool

from accountant.guarantees import Guarantee
from service.api import datapoints as datapoints_api
from service.api.context import Service
from service.api.populations import Population
from service.dashboard import charts
from service.dashboard.pages import HEADERS, Asked, Data, Refused, action, address, mirror, problem_of
from service.dashboard.populations import over_time
from service.dashboard.sessions import utc_now
from service.dashboard.visitors import as_in
from service.errors import Problem
from service.operations import datapoints, lives, statements
from service.operations.keys import Actor
from service.operations.readings import finite
from service.schemas import Key
from service.store.writer import stamp

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

router = APIRouter()
Visitor = Annotated[Actor, as_in(datapoints_api.get, datapoints_api.lookup)]
PAGE: Final = 100


class Place(BaseModel):
    """Whom a form or an address asks about."""

    ordinal: Annotated[int, Field(ge=0, lt=2**32)]


def _shown(
    population: Population,
    parts: Service,
    _actor: Visitor,
    asked: Annotated[str, Query(alias="ordinal", max_length=1000)] = "",
    before: Annotated[int | None, Query(ge=1, le=2**53, description="entries before this one")] = None,
) -> Data | Refused:
    """One datapoint, or only the question which."""
    with parts.books.read(population) as book:
        known: Data = {"population": population, "unit": book.unit, "datapoints": book.size, "ordinal": None}
        known["query"] = {"ordinal": asked}
        if not asked:
            return known
        try:
            ordinal = Place.model_validate({"ordinal": asked}).ordinal
            steps = lives.life(parts.database, book, ordinal)
        except (Problem, ValidationError) as failure:
            return Refused(data=known, problem=problem_of(failure))
        shown = datapoints.shown(book, ordinal, [])
        del shown["charges"]
        budget = book.policy.budget
        history = lives.against(steps, lives.budgets(parts.database, book))
        holds = [step for step in reversed(steps) if step.became == "held"]
        listed = [step for step in holds if before is None or step.number < before]
        shown_here = [book.releases[step.release] for step in listed[:PAGE]]
        by_release = {each["release"]: each for each in lives.holds(parts.database, book, shown_here)}
        items = []
        for step in listed[:PAGE]:
            release = book.releases[step.release]
            items.append(
                {
                    "release": release.id,
                    "entry": step.number,
                    "at": step.at,
                    "status": release.status,
                    "kind": release.kind,
                    "mechanism": release.mechanism,
                    "tasks": sorted(release.tasks),
                    "epsilon_alone": statements.alone(book, by_release[release.id], ordinal),
                    "total_after": finite(step.spent + step.held),
                }
            )
        touched = {step.release for step in steps}
        return {
            **known,
            **shown,
            "at": stamp(utc_now()),
            "budget": {"epsilon": budget.epsilon, "delta": budget.delta},
            "proof_status": book.proof_status,
            "promise": {"epsilon": book.promise.epsilon, "delta": book.promise.delta},
            "odds": Guarantee(
                epsilon=book.promise.epsilon, delta=book.promise.delta, unit=book.unit, adjacency=book.adjacency,
                proof_status=book.proof_status,
            ).odds(),
            "odds_so_far": statements.odds_so_far(book, book.ledger.cohorts.history(ordinal)),
            "releases": len(touched),
            "left": sum(book.releases[name].status in {"committed", "expired"} for name in touched),
            "held": sum(book.releases[name].status == "held" for name in touched),
            "voided": sum(book.releases[name].status == "voided" for name in touched),
            "items": items,
            "next": listed[PAGE - 1].number if len(listed) > PAGE else None,
            "history": history if steps else [],
        }  # fmt: skip


def _draw(data: Mapping[str, Any]) -> dict[str, Any]:
    if not data.get("history"):
        return {"steps": None}
    now: datetime = over_time([data["history"][-1] | {"at": data["at"]}])[0].at
    title = f"Spent and held of {data['unit']} {data['ordinal']:,}, over time"
    terms = charts.Terms(delta=data["budget"]["delta"], unit=data["unit"], proof_status=data["proof_status"])
    drawn = charts.step_chart(
        name="steps", title=title, terms=terms, readings=over_time(data["history"]), until=now
    )  # fmt: skip
    return {"steps": drawn}


@action(
    router,
    "/populations/{population}/datapoint",
    title=lambda data: (
        "Look up one datapoint" if data["ordinal"] is None else f"{data['unit'].title()} {data['ordinal']:,}"
    ),
    question="What has been released about this one person?",
    template="datapoint.html",
    data=_shown,
    draw=_draw,
)
async def look_up(asked: Asked) -> RedirectResponse:
    """By key, which travels in the body, since addresses are logged; or by ordinal. Nothing is changed."""
    population, key, given = asked.shown["population"], asked.form.text("key"), asked.form.text("ordinal")
    if key is not None:
        wanted = Key(key=key)
        digest = datapoints.digest(asked.parts.secrets.datapoints, population, wanted.key)
        ordinal = await run_in_threadpool(datapoints.find, asked.parts.database, population, digest)
    elif given is not None:
        ordinal = Place.model_validate({"ordinal": given}).ordinal
    else:
        raise Problem("invalid", "Give a key, or an ordinal: a whole number from 0.", "key")
    to = address(f"/populations/{population}/datapoint", ordinal=ordinal)
    return RedirectResponse(to, status_code=303, headers=dict(HEADERS))


mirror(router, "/populations/{population}/datapoint/{ordinal}/statement", datapoints_api.statement)
