"""Population and task: what has been promised to these people, and what is left?"""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, Field, ValidationError
from pyroaring import BitMap

from accountant import book as ledger_book
from accountant import certificates as certified
from accountant.ledger import LIFELONG
from service.api import mechanisms as mechanisms_api
from service.api import populations as populations_api
from service.api.context import Parts, Service
from service.api.populations import Population
from service.cursors import cursor_of, number_from
from service.dashboard import charts, labels
from service.dashboard.overview import disproved, glance, told
from service.dashboard.pages import HEADERS, Refused, address, page, problem_of
from service.dashboard.releases import decided, naming_individuals
from service.dashboard.sessions import utc_now
from service.dashboard.visitors import as_in, may
from service.dashboard.words import nth
from service.errors import NotFound, Problem
from service.operations import lives, outlooks, populations, readings, releases, reports, statements
from service.operations.individuals import LEAST_RANGE, least_told
from service.operations.keys import Actor
from service.store.writer import stamp

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from markupsafe import Markup

    from accountant.book import Book, Release
    from accountant.histories import History

router = APIRouter()
Visitor = Annotated[Actor, as_in(populations_api.budget)]
TaskVisitor = Annotated[Actor, as_in(populations_api.get_task)]
Like = Annotated[str | None, Query(pattern=r"^(rel_[0-9A-Z]{26})?$", description="repeat this release")]
Times = Annotated[str, Query(max_length=1000, description="so often")]
TASKS_SHOWN, WINDOWS_SHOWN, LIKE_SHOWN, TASK_PAGE, TASK_RELEASES = 12, 12, 25, 50, 50


class WhatIf(BaseModel):
    """How often a release is repeated."""

    times: Annotated[int, Field(ge=1, le=outlooks.MOST_TIMES)]


@router.get("/populations/{population}", include_in_schema=False)
def short(population: Population, _actor: Visitor) -> RedirectResponse:
    """The name alone leads to its first page."""
    return RedirectResponse(f"/populations/{population}/budget", status_code=303, headers=dict(HEADERS))


# ---------------------------------------------------------------- what its page shows


def _budget_charts(data: Mapping[str, Any]) -> dict[str, Markup | None]:
    now = datetime.fromisoformat(data["at"])
    budget, population = data["budget"], data["population"]
    status = data["promise"]["proof_status"]
    terms = charts.Terms(delta=budget["budget"]["delta"], unit=data["unit"], proof_status=status)
    drawn: dict[str, Markup | None] = dict.fromkeys(("steps", "histogram", "tasks", "windows", "forecast"))
    if data["history"]:
        drawn["steps"] = charts.step_chart(
            name="steps", title="Spent and held by the worst-off, over time", terms=terms,
            readings=over_time(data["history"]), until=now,
        )  # fmt: skip
    if worst := budget["worst_off"]:
        most = sum(math.inf if each is None else each for each in (worst["spent"], worst["held"]))
        drawn["histogram"] = charts.histogram(
            name="histogram", title=f"How much is spent and held, by {data['unit']}", terms=terms, most=most,
            bins=bins(budget, over=data["over_policy"], most=most),
            budget=budget["budget"]["epsilon"],
        )  # fmt: skip
    if budget["tasks"]:
        drawn["tasks"] = charts.bars(
            name="tasks", title="Tasks with least left", terms=terms, order="least",
            meters=[_tighter(each, terms, task_address(population, each["name"])) for each in budget["tasks"]],
        )  # fmt: skip
    windows = [each for each in budget["windows"] if each["epsilon"] is not None]
    if len(windows) > 1:
        drawn["windows"] = charts.bars(
            name="windows", title="By order of arrival", terms=terms, order="given",
            meters=[_meter(f"arrivals {each['start']:,} to {each['stop'] - 1:,}", each["epsilon"], None)
                    for each in windows],
        )  # fmt: skip
    drawn["forecast"] = _forecast_chart(data, now)
    return drawn


def bins(budget: Mapping[str, Any], *, over: int | None, most: float) -> list[charts.Bin]:
    """The histogram up to the budget; `over` are beyond, and have a bin of their own up to where the worst-off is.

    They are counted in the last bin of the reading, which ends there where it is not told how many they are.
    """
    found = [charts.Bin(lower=each["from"], upper=each["to"], count=each["datapoints"]) for each in budget["histogram"]]
    last, edge = found[-1], budget["budget"]["epsilon"]
    if over is None:
        return [*found[:-1], replace(last, upper=max(edge, most))]
    if not over:
        return found
    within = charts.Bin(lower=last.lower, upper=edge, count=last.count - over)
    return [*found[:-1], within, charts.Bin(lower=edge, upper=max(edge, most), count=over)]


def _forecast_chart(data: Mapping[str, Any], now: datetime) -> Markup | None:
    """The people whom the first refusal is about, so far and ahead; none where it is too far away, or of too few."""
    first = None if data["forecast"] is None else data["forecast"]["first"]
    if first is None or first["at"] is None or not first["history"]:
        return None
    whose = f"{first['datapoints']:,} {data['unit']}{'' if first['datapoints'] == 1 else 's'}"
    where = "" if first["task"] is None else f", in the own budget of task {first['task']}"
    return charts.forecast_chart(
        name="forecast",
        title=f"The first to have no room: {whose}{where}",
        terms=charts.Terms(delta=first["delta"], unit=data["unit"], proof_status=data["promise"]["proof_status"]),
        readings=over_time(first["history"]),
        now=now,
        ahead=[
            charts.Foreseen(at=datetime.fromisoformat(each["at"]), standing=each["standing"]) for each in first["ahead"]
        ],
        refused=charts.Foreseen(at=datetime.fromisoformat(first["at"]), standing=first["would_bring_to"]),
        what=first["text"],
        on_exhausted=data["policy"]["on_exhausted"],
    )


def over_time(history: list[dict[str, Any]]) -> list[charts.Reading]:
    """Readings as a chart takes them."""
    return [
        charts.Reading(
            at=datetime.fromisoformat(each["at"]), spent=each["spent"], held=each["held"], budget=each["budget"]
        )
        for each in history
    ]


def _meter(label: str, reading: Mapping[str, Any], link: str | None) -> charts.Meter:
    return charts.Meter(
        label=label, spent=reading["spent"], held=reading["held"], available=reading["available"],
        budget=reading["budget"], link=link,
    )  # fmt: skip


def _tighter(task: Mapping[str, Any], terms: charts.Terms, link: str) -> charts.Meter:
    """The reading of which the smaller share is available: for life, or in the task's own budget."""
    life, own = task["epsilon"], task["task_epsilon"]
    if own is None:
        return _meter(task["name"], life, link)
    if readings.share_available(life) <= readings.share_available(own):
        return replace(_meter(task["name"], life, link), budget_of="for life")
    of = replace(terms, delta=task["budget"]["delta"])
    return replace(_meter(task["name"], own, link), budget_of="own budget", terms=of)


def task_address(population: str, task: str) -> str:
    """The page of a task: its name may hold anything, so it is in the query."""
    return address(f"/populations/{population}/task", name=task)


@page(
    router,
    "/populations/{population}/budget",
    title=lambda data: data["population"],
    question="What has been promised to these people, and what is left?",
    template="budget.html",
    draw=_budget_charts,
)
def budget(
    population: Population, parts: Service, actor: Visitor, like: Like = None, times: Times = "20"
) -> dict[str, Any] | Refused:
    """The policy in words, what it means, how the budget stands and where it is going."""
    at = utc_now()
    least = least_told(actor)
    often, problem = 0, None
    try:
        often = WhatIf.model_validate({"times": times}).times
    except ValidationError as failure:
        problem = problem_of(failure)
    with parts.books.read(population) as book:
        named = 1 if book.policy.named_scopes else least  # of whom a what-if may be asked
        windows = WINDOWS_SHOWN if actor.sees_individuals else min(WINDOWS_SHOWN, book.size // LEAST_RANGE)
        shown = populations.shown(book)
        promise = certified.lifelong(
            promise=book.promise, unit=book.unit, adjacency=book.adjacency, accepted=[book.proof_status]
        ).guarantee
        standing = readings.distribution(book, windows=windows, tasks=TASKS_SHOWN, least=least)
        worst = readings.worst_of_all(book).history if book.size else None
        period = outlooks.lately(book, at=at, least=least)
        admitted = _repeatable(parts, book, actor, like, least=named)
        forecast = _forecast(parts, book, actor, period, at)
        asked = like or _likely(admitted, forecast)
        data = {
            "population": population,
            "at": stamp(at),
            "status": book.status,
            **_glanced(book, actor),
            "violations": disproved(actor, reports.violations(book)),
            "is_made_up": populations.is_made_up(book),
            "unit": book.unit,
            "adjacency": book.adjacency,
            "promise": {
                **shown["promise"],
                "text": str(promise),
                "odds": promise.odds(),
                "meaning": promise.meaning(),
                "hollow": promise.is_hollow,
            },
            "policy": {
                **shown["policy"],
                "text": reports.policy_in_words(ledger_book.policy_to(book.policy)),
                "odds": replace(promise, epsilon=book.policy.budget.epsilon, delta=book.policy.budget.delta).odds(),
            },
            "budget": standing,
            "left_out": len(standing["tasks"]) < min(TASKS_SHOWN, len(book.tasks))
            or any(each["epsilon"] is None for each in standing["windows"]),
            "odds_so_far": None
            if worst is None or standing["worst_off"] is None
            else statements.odds_so_far(book, worst),
            "tasks": len(book.tasks),
            "releases": len(book.releases),
            "open_holds": sum(release.status == "held" for release in book.releases.values()),
            "history": [] if worst is None else _history(parts, book, actor, worst),
            "worst_ordinal": _member(book, worst) if worst is not None and actor.sees_individuals else None,
            "forecast": forecast,
            "query": {"like": asked, "times": times},
            "plan": None
            if asked is None or problem is not None
            else outlooks.repeated(parts.database, book, asked, times=often, period=period, at=at, least=named),
            "repeatable": [releases.summary(book, release.id) for release in admitted],
        }
    return data if problem is None else Refused(data=data, problem=problem)


def _glanced(book: Book, actor: Actor) -> dict[str, Any]:
    """What the overview says of it in a word."""
    found = told(glance(book), actor)
    return {name: found[name] for name in ("standing", "room", "over_policy", "tasks_used_up", "promise_kept")}


def _repeatable(parts: Parts, book: Book, actor: Actor, like: str | None, *, least: int) -> list[Release]:
    """The newest releases that this key may ask a what-if about, as its REST address says.

    How often a release would still fit on a few people tells what they have left: who may not name them is not told.
    """
    if not (actor.sees_individuals or may(actor, mechanisms_api.what_if)):
        if like is not None:
            raise Problem("forbidden", "This key asks no what-if.", "like")
        return []
    admitted = [release for release in reversed(book.releases.values()) if release.status in outlooks.ADMITTED]
    found = [release for release in admitted if release.datapoints >= least][:LIKE_SHOWN]
    if actor.sees_individuals or book.policy.named_scopes:
        return found
    naming = naming_individuals(parts, [release.id for release in found] + ([] if like is None else [like]))
    if like in naming:
        raise Problem("forbidden", "The policy lets pipelines ask for no chosen individuals.", "like")
    return [release for release in found if release.id not in naming]


def _likely(admitted: Sequence[Release], forecast: Mapping[str, Any] | None) -> str | None:
    """What a what-if is about unless somebody says: the release whose like is refused first, else the newest."""
    first = forecast["first"] if forecast is not None else None
    refused = next((release.id for release in admitted if first is not None and release.id == first["like"]), None)
    return refused or (admitted[0].id if admitted else None)


def _member(book: Book, history: History) -> int:
    return int(book.ledger.cohorts.members(BitMap(range(book.size)), [history]).min())


def _history(
    parts: Parts, book: Book, actor: Actor, history: History, *, ledger: str = LIFELONG
) -> list[dict[str, Any]]:
    """How those with this history came to it. Of a few people only whoever may see individuals is shown that.

    In the ledger of a task with a budget of its own, from its beginning.
    """
    members = book.ledger.cohorts.members(BitMap(range(book.size)), [history])
    if len(members) < least_told(actor):
        return []
    return lives.of_cohort(parts.database, book, int(members.min()), ledger=ledger)


def _forecast(
    parts: Parts, book: Book, actor: Actor, period: outlooks.Period | None, at: datetime
) -> dict[str, Any] | None:
    """Which planned release is the first to be refused, in words too."""
    said, refusal = outlooks.looked_ahead(parts.database, book, period, at=at, least=least_told(actor))
    if said is not None and refusal is not None:
        first = said["first"]
        series = outlooks.in_words(kind=first["kind"], mechanism=first["mechanism"], tasks=first["tasks"])
        first["text"] = f"the {nth(first['number'])} further release of {series}"
        first["history"] = _history(parts, book, actor, refusal.history, ledger=refusal.ledger)
    return said


# ---------------------------------------------------------------- tasks


@page(
    router,
    "/populations/{population}/tasks",
    title="Tasks",
    question="What is learned from whom, and what is left?",
    template="tasks.html",
)
def tasks(
    population: Population,
    parts: Service,
    actor: Visitor,
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
) -> dict[str, Any]:
    """Newest last, with what the worst-off member has spent, held and available."""
    found = populations_api.list_tasks(population, parts, actor, limit=TASK_PAGE, cursor=cursor)
    with parts.books.read(population) as book:
        return {
            "population": population,
            "unit": book.unit,
            "proof_status": book.proof_status,
            "delta": book.policy.budget.delta,
            "tasks_in_all": len(book.tasks),
            **found,
        }


@page(
    router,
    "/populations/{population}/task",
    title=lambda data: f"Task {data['name']}",
    question="What was learned from this task, and what is left for its members?",
    template="task.html",
)
def task(
    population: Population,
    parts: Service,
    actor: TaskVisitor,
    name: Annotated[str, Query(min_length=1, max_length=200)],
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
) -> dict[str, Any]:
    """Its members, its readings, its releases, and which labels they told, remapped or took from a prior."""
    with parts.books.read(population) as book:
        if name not in book.tasks:
            raise NotFound("task", name)
        shown = populations.task_shown(book, book.tasks[name], by=actor)
        items, following = releases.page(book, task=name, before=number_from(cursor), limit=TASK_RELEASES)
        known = {
            "population": population,
            "unit": book.unit,
            "proof_status": book.proof_status,
            "delta": book.policy.budget.delta,
            **shown,
            "entry": book.tasks[name].number,
            "releases_in_all": sum(name in each.tasks for each in book.releases.values()),
        }
        bound = readings.bound(book)
    return {
        **known,
        "releases": decided(parts, actor, items, bound=bound),
        "next": None if following is None else cursor_of({"number": following}),
        "labels": labels.of_releases(parts, [each["id"] for each in items if each["status"] in outlooks.ADMITTED]),
    }
