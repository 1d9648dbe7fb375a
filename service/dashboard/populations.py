"""Population and task: what has been promised to these people, and what is left?"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Query
from fastapi.responses import RedirectResponse
from pyroaring import BitMap

from accountant import book as ledger_book
from accountant import certificates as certified
from accountant.ledger import LIFELONG
from service.api import mechanisms as mechanisms_api
from service.api import populations as populations_api
from service.api.context import LEAST_RANGE, Parts, Service
from service.api.populations import Population
from service.cursors import cursor_of, number_from
from service.dashboard import charts, labels
from service.dashboard.pages import HEADERS, address, page
from service.dashboard.releases import epsilons, naming_individuals
from service.dashboard.sessions import utc_now
from service.dashboard.visitors import as_in, may
from service.errors import NotFound, Problem
from service.operations import lives, outlooks, populations, readings, releases, reports
from service.operations.keys import Actor
from service.store.writer import stamp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from markupsafe import Markup

    from accountant.book import Book, Release
    from accountant.histories import History

router = APIRouter()
Visitor = Annotated[Actor, as_in(populations_api.budget)]
TaskVisitor = Annotated[Actor, as_in(populations_api.get_task)]
Like = Annotated[str | None, Query(pattern=r"^(rel_[0-9A-Z]{26})?$", description="repeat this release")]
Times = Annotated[int, Query(ge=1, le=outlooks.MOST_TIMES, description="so often")]
TASKS_SHOWN, WINDOWS_SHOWN, LIKE_SHOWN, TASK_PAGE, TASK_RELEASES = 12, 12, 25, 50, 50
_ADMITTED: Final = frozenset({"held", "committed", "expired"})


@router.get("/populations/{population}", include_in_schema=False)
def short(population: Population, _actor: Visitor) -> RedirectResponse:
    """The name alone leads to its first page."""
    return RedirectResponse(f"/populations/{population}/budget", status_code=303, headers=dict(HEADERS))


# ---------------------------------------------------------------- what its page shows


def _budget_charts(data: Mapping[str, Any]) -> dict[str, Markup | None]:
    now = datetime.fromisoformat(data["at"])
    budget, population = data["budget"], data["population"]
    drawn: dict[str, Markup | None] = dict.fromkeys(("steps", "histogram", "tasks", "windows", "forecast"))
    if data["history"]:
        drawn["steps"] = charts.step_chart(
            name="steps", title="Spent and held by the worst-off, over time", readings=over_time(data["history"]),
            until=now,
        )  # fmt: skip
    if budget["histogram"]:
        drawn["histogram"] = charts.histogram(
            name="histogram", title="How much datapoints have behind them",
            bins=_bins(budget),
            budget=budget["budget"]["epsilon"],
        )  # fmt: skip
    if budget["tasks"]:
        drawn["tasks"] = charts.bars(
            name="tasks", title="Tasks with least left",
            meters=[_meter(each["name"], each["epsilon"], task_address(population, each["name"]))
                    for each in budget["tasks"]],
        )  # fmt: skip
    if len(budget["windows"]) > 1:
        drawn["windows"] = charts.bars(
            name="windows", title="Windows of arrivals",
            meters=[_meter(f"{each['start']:,} to {each['stop'] - 1:,}", each["epsilon"], None)
                    for each in budget["windows"]],
        )  # fmt: skip
    ahead = data["forecast"]
    if ahead is not None and ahead["history"]:
        first, plan = ahead["first"], data["plan"]
        refused = None
        if plan is not None and plan["refused_at"] is not None:
            refused = charts.Mark(at=datetime.fromisoformat(plan["refused_at"]), label="first refusal")
        drawn["forecast"] = charts.forecast_chart(
            name="forecast", title="If the last weeks repeat themselves", readings=over_time(ahead["history"]),
            now=now, exhausted_at=None if first["at"] is None else datetime.fromisoformat(first["at"]),
            refused=refused,
        )  # fmt: skip
    return drawn


def _bins(budget: Mapping[str, Any]) -> list[charts.Bin]:
    """The histogram; its last bin has everybody who is beyond, and ends where the worst-off is."""
    bins = [charts.Bin(lower=each["from"], upper=each["to"], count=each["datapoints"]) for each in budget["histogram"]]
    worst = budget["worst_off"]
    reached = sum(each for each in (worst["spent"], worst["held"]) if each is not None)
    last = bins[-1]
    return [*bins[:-1], charts.Bin(lower=last.lower, upper=max(last.upper, reached), count=last.count)]


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
    population: Population, parts: Service, actor: Visitor, like: Like = None, times: Times = 20
) -> dict[str, Any]:
    """The policy in words, what it means, how the budget stands and where it is going."""
    at = utc_now()
    with parts.books.read(population) as book:
        windows = WINDOWS_SHOWN if actor.sees_individuals else min(WINDOWS_SHOWN, book.size // LEAST_RANGE)
        shown = populations.shown(book)
        promise = certified.lifelong(
            promise=book.promise, unit=book.unit, adjacency=book.adjacency, accepted=[book.proof_status]
        ).guarantee
        going = outlooks.pace(parts.database, book, at=at)
        ahead = outlooks.forecast(book, going, at=at)
        since = lives.budgets(parts.database, book)
        if ahead is not None:
            first = None if going is None else outlooks.first_exhausted(book, going)
            ahead["history"] = [] if first is None else _of_ledger(parts, book, actor, first, since)
            if first is not None and not actor.sees_individuals and first.datapoints < LEAST_RANGE:
                del ahead["first"]["epsilon"]  # of a few people
        worst = readings.worst_history(book, BitMap(range(book.size))) if book.size else None
        admitted = _repeatable(parts, book, actor, like)
        asked = like or (admitted[0].id if admitted else None)
        return {
            "population": population,
            "at": stamp(at),
            "status": book.status,
            "unit": book.unit,
            "adjacency": book.adjacency,
            "promise": {**shown["promise"], "text": str(promise), "odds": promise.odds(), "meaning": promise.meaning()},
            "policy": {
                **shown["policy"],
                "text": reports.policy_in_words(ledger_book.policy_to(book.policy)),
            },
            "budget": readings.distribution(book, at=at, windows=windows, tasks=TASKS_SHOWN),
            "tasks": len(book.tasks),
            "releases": len(book.releases),
            "open_holds": sum(release.status == "held" for release in book.releases.values()),
            "history": [] if worst is None else _history(parts, book, actor, worst, since),
            "worst_ordinal": _member(book, worst) if worst is not None and actor.sees_individuals else None,
            "forecast": ahead,
            "plan": None if asked is None else _plan(parts, book, asked, times, going, at),
            "repeatable": [releases.summary(book, release.id) for release in admitted],
        }


def _repeatable(parts: Parts, book: Book, actor: Actor, like: str | None) -> list[Release]:
    """The newest releases that this key may ask a what-if about, as its REST address says.

    How often a release would still fit on a few people tells what they have left: who may not name them is not told.
    """
    if not (actor.sees_individuals or may(actor, mechanisms_api.what_if)):
        if like is not None:
            raise Problem("forbidden", "This key asks no what-if.", "like")
        return []
    found = [release for release in reversed(book.releases.values()) if release.status in _ADMITTED][:LIKE_SHOWN]
    if actor.sees_individuals or book.policy.named_scopes:
        return found
    naming = naming_individuals(parts, [release.id for release in found] + ([] if like is None else [like]))
    if like in naming:
        raise Problem("forbidden", "The policy lets pipelines name no single datapoints.", "like")
    return [release for release in found if release.id not in naming]


def _member(book: Book, history: History) -> int:
    return int(book.ledger.cohorts.members(BitMap(range(book.size)), [history]).min())


def _history(
    parts: Parts, book: Book, actor: Actor, history: History, since: list[tuple[str, float]], *, ledger: str = LIFELONG
) -> list[dict[str, Any]]:
    """How those with this history came to it. Of a few people only whoever may see individuals is shown that."""
    members = book.ledger.cohorts.members(BitMap(range(book.size)), [history])
    if not actor.sees_individuals and len(members) < LEAST_RANGE:
        return []
    ordinal = int(members.min())
    documents = lives.bodies(parts.database, book, ordinal)
    return lives.against(lives.life(parts.database, book, ordinal, documents, ledger=ledger), since)


def _of_ledger(
    parts: Parts, book: Book, actor: Actor, first: outlooks.Exhaustion, since: list[tuple[str, float]]
) -> list[dict[str, Any]]:
    """The same in the ledger that runs out first: a life, or a task with a budget of its own, from its beginning."""
    if first.ledger != LIFELONG:
        task = book.tasks[first.ledger]
        assert task.budget is not None
        made = lives.times_of(parts.database, book.name, [task.number])[task.number]
        since = [(made, task.budget.epsilon)]
    return _history(parts, book, actor, first.history, since, ledger=first.ledger)


def _plan(parts: Parts, book: Book, like: str, times: int, going: outlooks.Pace | None, at: datetime) -> dict[str, Any]:
    """So many releases like one, at the pace of the last weeks: which of them is refused first, and about when."""
    found = outlooks.repeated(parts.database, book, like, times=times)
    refused_at = None
    if going is not None and going.releases and found["first_refused"] is not None:
        days = min(found["first_refused"] * going.days / going.releases, outlooks.FARTHEST_DAYS)
        refused_at = stamp(at + timedelta(days=days))
    return {**found, "refused_at": refused_at}


# ---------------------------------------------------------------- tasks


@page(
    router,
    "/populations/{population}/tasks",
    title="Tasks",
    question="What is learned together, and what is left for it?",
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
    _actor: TaskVisitor,
    name: Annotated[str, Query(min_length=1, max_length=200)],
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
) -> dict[str, Any]:
    """Its members, its readings, its releases, and which labels they told, remapped or took from a prior."""
    with parts.books.read(population) as book:
        if name not in book.tasks:
            raise NotFound("task", name)
        shown = populations.task_shown(book, book.tasks[name])
        items, following = releases.page(book, task=name, before=number_from(cursor), limit=TASK_RELEASES)
        known = {
            "population": population,
            "unit": book.unit,
            "delta": book.policy.budget.delta,
            **shown,
            "entry": book.tasks[name].number,
            "releases_in_all": sum(name in each.tasks for each in book.releases.values()),
        }
    costs = epsilons(parts, [each["id"] for each in items])
    return {
        **known,
        "releases": [{**each, "epsilon": costs[each["id"]]} for each in items],
        "next": None if following is None else cursor_of({"number": following}),
        "labels": labels.of_releases(parts, [each["id"] for each in items if each["status"] in _ADMITTED]),
    }
