"""Where budgets are going: which runs out first if the last weeks repeat themselves, and how often a release would fit.

These are extrapolations and no bounds; every one says over which period it looked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pyroaring import BitMap
from sqlalchemy import text

from accountant.canonical import from_canonical
from accountant.filters import Cost
from accountant.ledger import LIFELONG
from service.errors import NotFound
from service.operations import readings
from service.operations.releases import Priced, how_often
from service.store.writer import stamp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from accountant.book import Book, Release
    from accountant.filters import Filter
    from accountant.histories import History
    from service.store.database import Database

RECENT_DAYS: Final = 30
MOST_RELEASES: Final = 100  # that are looked at; of a busier population, the period is shorter
MOST_TIMES: Final = 10_000
FARTHEST_DAYS: Final = 36_500.0
NOTE: Final = "An extrapolation, and no bound: it supposes that the same happens to the same people again and again."
_BODIES = text(
    "SELECT entry.body FROM entry JOIN population ON population.id = entry.population_id "
    "WHERE population.name = :name AND entry.number = ANY(:numbers)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhaustion:
    """A budget that runs out first: whose, how many datapoints have that history, and in how many days."""

    ledger: str  # `LIFELONG`, or the task that has a budget of its own
    history: History
    datapoints: int
    days: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What happened lately: over how many days, by how many releases, and what each history was charged in it."""

    days: float
    releases: int
    last: str | None  # the newest of them
    charged: Mapping[tuple[str, History], Cost]


def pace(database: Database, book: Book, *, at: datetime) -> Pace | None:
    """What was charged lately to those who are in the same cohort now; None in the first day, of which nothing follows.

    A release that was voided or denied charged nobody.
    """
    age = (at - datetime.fromisoformat(book.created_at)).total_seconds() / 86_400
    if age < 1:
        return None
    since = stamp(at - timedelta(days=RECENT_DAYS))
    recent: list[Release] = []
    for release in reversed(book.releases.values()):
        if release.at < since or len(recent) == MOST_RELEASES:
            break
        if release.status in {"held", "committed", "expired"}:
            recent.append(release)
    days = min(age, float(RECENT_DAYS))
    if len(recent) == MOST_RELEASES:
        first = datetime.fromisoformat(recent[-1].at)
        days = max(1.0, (at - first).total_seconds() / 86_400)
    with database.transaction() as connection:
        rows = connection.execute(_BODIES, {"name": book.name, "numbers": [each.number for each in recent]})
        documents = [from_canonical(bytes(body)) for body in rows.scalars()]
    charged: dict[tuple[str, History], Cost] = {}
    for document in documents:
        for part in book.held_from(document).parts:
            for history, _ in book.ledger.cohorts.touched(part.scope):
                for ledger, cost in part.spending:
                    known = charged.get((ledger, history))
                    charged[ledger, history] = cost if known is None else known + cost
    return Pace(days=days, releases=len(recent), last=recent[0].id if recent else None, charged=charged)


def first_exhausted(book: Book, going: Pace) -> Exhaustion | None:
    """The budget that runs out first at this pace; None if nothing was charged to anybody."""
    sizes = dict(book.ledger.cohorts.sizes())
    found: Exhaustion | None = None
    for (ledger, history), cost in going.charged.items():
        budget = book.rules.ledgers.get(ledger)
        if budget is None:
            continue
        days = going.days * periods(budget, cost, after=readings.standing(budget, history, ledger=ledger))
        if found is None or days < found.days:
            found = Exhaustion(ledger=ledger, history=history, datapoints=sizes[history], days=days)
    return found if found is not None and math.isfinite(found.days) else None


def periods(budget: Filter, cost: Cost, *, after: Cost) -> float:
    """How often this cost fits on top, if it could be paid in parts; infinity if it costs nothing."""

    def fit(used: int, each: int, limit: int) -> float:
        return 0.0 if used > limit else (limit - used) / each if each else math.inf

    orders = zip(after.rho, cost.rho, budget.limits.rho, strict=True)
    return min(fit(after.delta, cost.delta, budget.limits.delta), max(fit(*order) for order in orders))


def forecast(book: Book, going: Pace | None, *, at: datetime) -> dict[str, Any] | None:
    """Which budget is exhausted first, and when, as an answer."""
    if going is None:
        return None
    first = first_exhausted(book, going)
    if first is None:
        return {"days": going.days, "releases": going.releases, "first": None, "note": NOTE}
    days = min(first.days, FARTHEST_DAYS)
    budget = book.rules.ledgers[first.ledger]
    return {
        "days": going.days,
        "releases": going.releases,
        "first": {
            "task": None if first.ledger == LIFELONG else first.ledger,
            "datapoints": first.datapoints,
            "days_left": days,
            "at": stamp(at + timedelta(days=days)) if days < FARTHEST_DAYS else None,
            "epsilon": readings.shown(readings.reading(budget, first.history, ledger=first.ledger)),
            "delta": budget.delta,
        },
        "note": NOTE,
    }


def repeated(database: Database, book: Book, release: str, *, times: int) -> dict[str, Any]:
    """How often a release like an earlier one, on the same people, would be admitted in a row: by the budget alone."""
    known = book.releases.get(release)
    if known is None:
        raise NotFound("release", release)
    with database.transaction() as connection:
        [body] = connection.execute(_BODIES, {"name": book.name, "numbers": [known.number]}).scalars()
    document = from_canonical(bytes(body))
    pairs = [book.charge(charge, path=f"charges[{place}]") for place, charge in enumerate(document["charges"])]
    priced = Priced(charges=[charge for charge, _ in pairs], spelled=[spelled for _, spelled in pairs], reasons=[])
    fits = how_often(book, priced, most=times)
    return {
        "like": release,
        "kind": known.kind,
        "mechanism": known.mechanism,
        "tasks": sorted(known.tasks),
        "datapoints": len(BitMap().union(*(charge.scope for charge in priced.charges))),
        "asked": times,
        "would_be_admitted": fits,
        "first_refused": fits + 1 if fits < times else None,
    }
