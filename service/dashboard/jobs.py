"""Jobs: what is running now, with progress."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query

from service.api import jobs as jobs_api
from service.api import populations as populations_api
from service.api.context import Service
from service.api.jobs import JobId
from service.dashboard.decisions import carried_out, must_be_confirmed, reason_of
from service.dashboard.pages import Asked, Data, Done, action, page
from service.dashboard.visitors import as_in, may
from service.operations import jobs
from service.operations.keys import Actor
from service.schemas import PopulationName

router = APIRouter()
Reader = Annotated[Actor, as_in(jobs_api.list_all, jobs_api.logs, populations_api.list_all)]
Canceller = Annotated[Actor, as_in(jobs_api.cancel)]
_PAGE = 50


@page(
    router,
    "/jobs",
    title="Jobs",
    question="What is running now?",
    template="jobs.html",
)
def every(
    parts: Service,
    actor: Reader,
    population: Annotated[PopulationName | Literal[""], Query()] = "",
    status: Annotated[Literal["", "queued", "running", "committed", "failed", "cancelled"], Query()] = "",
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
) -> Data:
    """Newest first, with how many there are of each status."""
    found = jobs_api.list_all(
        parts, actor, population=population or None, status=status or None, limit=_PAGE, cursor=cursor
    )
    for each in found["items"]:
        with parts.books.read(each["population"]) as book:
            each["tasks"] = sorted(book.releases[each["release"]].tasks)
    return {
        **found,
        "query": {"population": population, "status": status},
        "statuses": jobs.STATUSES,
        "counts": jobs.counts(parts.database),
        "populations": [each["name"] for each in populations_api.list_all(parts, actor, limit=1000)["items"]],
        "live": list(jobs.LIVE),
    }


@page(
    router,
    "/jobs/{job}",
    title=lambda data: f"{data['mechanism']['name']} in {data['population']}",
    question="How far is it, and what became of it?",
    template="job.html",
)
def one(job: JobId, parts: Service, actor: Reader) -> Data:
    """One job and its changes of status. Nothing in it was computed from data."""
    found = jobs_api.get(job, parts, actor)
    with parts.books.read(found["population"]) as book:
        status, unit, reached = book.proof_status, book.unit, book.releases[found["release"]].reached
        delta = book.policy.budget.delta if reached is None else reached[1]  # that of its decision
    return {
        **found,
        "proof_status": status,
        "delta": delta,
        "unit": unit,
        "lines": jobs_api.logs(job, parts, actor)["lines"],
        "live": found["status"] in jobs.LIVE,
        "may_cancel": may(actor, jobs_api.cancel),
    }


def cancelling(job: JobId, parts: Service, actor: Canceller) -> Data:
    """The job that would be cancelled."""
    return jobs_api.get(job, parts, actor)


@action(
    router,
    "/jobs/{job}/cancel",
    title="Cancel a job",
    question="What would follow?",
    template="job_cancel.html",
    data=cancelling,
)
async def cancelled(asked: Asked) -> Done:
    """Its release is voided, for a reason."""
    must_be_confirmed(asked)
    job, population = asked.shown["id"], asked.shown["population"]
    operation = jobs.cancel(job=job, by=asked.actor, reason=reason_of(asked))
    await carried_out(asked, population, operation, uses_sql=True)
    return Done(notice="The job is cancelled, and its release voided: nothing of it leaves.", to=f"/jobs/{job}")
