"""Audits: does reality agree with the promise?"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from accountant.audit.verdicts import Verdict
from service.api import audits as audits_api
from service.api import populations as populations_api
from service.api.audits import Audit
from service.api.context import Service
from service.dashboard import charts
from service.dashboard.charts import Interval, Rates, Terms
from service.dashboard.decisions import carried_out, must_be_confirmed, reason_of
from service.dashboard.ledger import entry
from service.dashboard.pages import Asked, Data, Done, action, page
from service.dashboard.policies import lifting
from service.dashboard.visitors import as_in, may
from service.errors import Problem
from service.operations import empirical
from service.operations.keys import Actor
from service.schemas import NewAudit, PopulationName
from trainers.attacks.planned import offered
from trainers.catalog import CATALOG

router = APIRouter()
Reader = Annotated[Actor, as_in(audits_api.list_all, populations_api.list_all)]
Planner = Annotated[Actor, as_in(audits_api.plan, populations_api.list_all)]
_PAGE = 50


@page(
    router,
    "/audits",
    title="Audits",
    question="Does reality agree with the promise?",
    template="audits.html",
    draw=lambda data: {"chart": _intervals("audits", "Found against promised", data["items"])},
)
def every(
    parts: Service,
    actor: Reader,
    population: Annotated[PopulationName | Literal[""], Query()] = "",
    status: Annotated[Literal["", Verdict, empirical.Status], Query()] = "",
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
) -> Data:
    """Newest first."""
    found = audits_api.list_all(
        parts, actor, population=population or None, status=status or None, limit=_PAGE, cursor=cursor
    )
    return {
        **found,
        "query": {"population": population, "status": status},
        "violations": empirical.violations(parts.database, population=population or None, status=status or None),
        "statuses": [each for each in empirical.SORTS if each != "concluded"],  # those have their verdicts
        "populations": _names(parts, actor),
        "may_plan": may(actor, audits_api.plan),
    }


def _names(parts: Service, actor: Actor) -> list[str]:
    return [each["name"] for each in populations_api.list_all(parts, actor, limit=1000)["items"]]


def _intervals(name: str, title: str, items: list[dict[str, Any]]) -> Any:
    """What was found, at least, against what is promised, at most, of those that are concluded."""
    return charts.interval_chart(
        name=name,
        title=title,
        intervals=[
            Interval(
                label=f"{each['mechanism']}: {each['audit']}"
                + (f", audit {each['number']:,} of {each['population']}" if len(items) > 1 else ""),
                lower=each["lower_bound"]["epsilon_lower"],
                promise=each["promise"]["epsilon"],
                terms=Terms(delta=each["promise"]["delta"], unit=each["unit"]),
                confidence=each["lower_bound"]["confidence"],
                verdict=each["verdict"],
                link=f"/audits/{each['id']}",
            )
            for each in items
            if each["lower_bound"] is not None
        ],
    )


# ---------------------------------------------------------------- scheduling


def new(
    parts: Service,
    actor: Planner,
    population: Annotated[PopulationName | Literal[""], Query()] = "",
    mechanism: Annotated[str, Query(max_length=200)] = "",
) -> Data:
    """Which audits there are, and of what."""
    choices = [
        {
            "mechanism": name,
            "audit": plan.name,
            "what": plan.what,
            "samples": plan.samples,
            "level": plan.level,
            "promise": {"by": plan.promiser, "epsilon": plan.epsilon(), "delta": plan.delta},
            "twin": plan.twin,
            "fewest": plan.fewest,
        }
        for name in CATALOG
        if name == mechanism
        for plan in offered(name)
    ]
    return {
        "asked": {"population": population, "mechanism": mechanism},
        "mechanisms": [name for name in CATALOG if offered(name)],
        "populations": _names(parts, actor),
        "choices": choices,
    }


@action(
    router,
    "/audits/new",
    title="Schedule an audit",
    question="Which promise should be attacked?",
    template="audit_new.html",
    data=new,
)
async def planned(asked: Asked) -> Done:
    """Write down what will be held against what, and queue it."""
    must_be_confirmed(asked)
    mechanism, _, name = (asked.form.text("choice") or "").partition(": ")
    if not name:
        raise Problem("invalid", "Choose an audit.", "choice")
    samples = asked.form.number("samples")
    if samples is not None and not (math.isfinite(samples) and samples == int(samples)):
        raise Problem("invalid", "Samples are a whole number.", "samples")
    on_violation: Literal["block", "freeze"] = "freeze" if asked.form.text("on_violation") == "freeze" else "block"
    wanted = NewAudit(
        population=asked.form.text("population") or "",
        mechanism=mechanism,
        audit=name,
        samples=None if samples is None else int(samples),
        on_violation=on_violation,
        reason=reason_of(asked),
    )
    experiment = empirical.experiment(
        mechanism=wanted.mechanism,
        audit=wanted.audit,
        samples=wanted.samples,
        on_violation=wanted.on_violation,
        queue=wanted.queue,
        attempts=asked.parts.settings.attempts,
    )
    operation = empirical.plan(experiment, by=asked.actor, reason=wanted.reason)
    answer = await carried_out(asked, wanted.population, operation, uses_sql=True)
    return Done(
        notice=f"Audit {answer.document['number']} of {wanted.population} is planned, and waits for a worker.",
        to=f"/audits/{answer.document['id']}",
    )


# ---------------------------------------------------------------- one audit


def _drawn(data: Data) -> dict[str, Any]:
    if data["lower_bound"] is None:
        return {"interval": None, "roc": None}
    points = [
        Rates(false_positive=each["false_positive_rate"], true_positive=each["true_positive_rate"])
        for each in data["roc"]
    ]
    promise = data["promise"]
    roc = charts.curve(
        name="roc",
        title="What the attack reached, against the most that the promise allows",
        epsilon=promise["epsilon"],
        delta=promise["delta"],
        points=points,
        is_violated=data["verdict"] == "violation",
    )
    return {"interval": _intervals("found", "Found against promised", [data]), "roc": roc if points else None}


@page(
    router,
    "/audits/{audit}",
    title=lambda data: f"Audit of {data['mechanism']}",
    question="Does reality agree with the promise?",
    template="audit.html",
    draw=_drawn,
)
def one(audit: Audit, parts: Service, actor: Reader) -> Data:
    """One audit: its plan, which was logged first, and what came of it."""
    found = audits_api.get(audit, parts, actor)
    plans = {plan.name: plan.what for plan in offered(found["mechanism"])} if found["mechanism"] in CATALOG else {}
    plan = entry(found["population"], parts, actor, found["planned_by"]) if actor.sees_individuals else None
    return {
        **found,
        "what": plans.get(found["audit"], ""),
        "asked": None if plan is None else {"by": plan["body"]["actor"], "reason": plan["body"].get("reason")},
        "names": {} if plan is None else plan["names"],
        "lift": lifting(found["population"], audit) if may(actor, populations_api.change_policy) else None,
    }
