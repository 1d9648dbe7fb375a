"""Spent, held and available, read from a book. Nothing here changes anything."""

from __future__ import annotations

import math
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from pyroaring import BitMap

from accountant.cohorts import Scope
from accountant.guarantees import rounded_up
from accountant.ledger import LIFELONG
from accountant.ledger import standing as _standing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from accountant.book import Book
    from accountant.filters import Cost, Filter, Reading
    from accountant.histories import History

QUANTILES: Final = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
BINS: Final = 20


def finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None


def rounded(value: float) -> float | None:
    """An upper bound to twelve digits, which is no smaller."""
    return float(rounded_up(value, digits=12)) if math.isfinite(value) else None


def misquoted(book: Book, document: Mapping[str, Any]) -> str | None:
    """How the readings that a decision recorded differ from those that the log leads to; asked right after its entry.

    Readings are sums of whole numbers, so they are the same everywhere. What a refused release would have cost is not
    priced again: nobody was charged it.
    """
    budget, cohorts = book.policy.budget, book.ledger.cohorts
    said = document["decision"]["epsilon"]
    found: dict[str, float | None] = {"budget": budget.epsilon, "delta": budget.delta}
    if document["kind"] == "release.held":
        parts, release = book.held_from(document).parts, document["release"]
        touched = {history for part in parts for history, _ in cohorts.touched(part.scope)}
        found["before"] = finite(budget.highest(standing(budget, history.void(release)) for history in touched))
        found["after"] = rounded(budget.highest(standing(budget, history) for history in touched))
    elif any(each["code"] in {"budget.exceeded", "task_budget.exceeded"} for each in document["decision"]["reasons"]):
        # A release that was refused for something else was read without those whom the gate would have trimmed.
        scope = BitMap().union(*(book.scope(charge["scope"])[0] for charge in document["charges"]))
        found["before"] = finite(budget.highest(standing(budget, history) for history, _ in cohorts.touched(scope)))
    wrong = [
        f"{name} {said[name]} where the log leads to {value}" for name, value in found.items() if said[name] != value
    ]
    return None if not wrong else f"says of ε {', '.join(wrong)}"


def standing(budget: Filter, history: History, *, ledger: str = LIFELONG) -> Cost:
    """Committed and held together."""
    return _standing(budget, history, ledger)


def reading(budget: Filter, history: History, *, ledger: str = LIFELONG) -> Reading:
    """The three numbers of one history."""
    nothing = budget.nothing
    return budget.reading(committed=history.committed_in(ledger) or nothing, held=history.held_in(ledger) or nothing)


def shown(given: Reading) -> dict[str, Any]:
    """A reading as an answer."""
    return {
        "spent": finite(given.spent),
        "held": finite(given.held),
        "available": finite(given.available),
        "budget": given.budget,
    }


def worst_off(book: Book, scope: Scope, *, ledger: str = LIFELONG) -> dict[str, Any]:
    """The reading of the datapoint of a scope that has most behind it."""
    budget = book.rules.ledgers[ledger]
    histories = [history for history, _ in book.ledger.cohorts.touched(scope)]
    worst = max(histories, key=lambda history: budget.meter(standing(budget, history, ledger=ledger)))
    return shown(reading(budget, worst, ledger=ledger))


def distribution(book: Book, *, at: datetime, windows: int = 0) -> dict[str, Any]:
    """How the budget stands over all datapoints, over equal windows of arrivals, and where it is going."""
    budget = book.policy.budget
    cohorts = sorted(
        ((reading(budget, history), datapoints) for history, datapoints in book.ledger.cohorts.sizes()),
        key=lambda each: (each[0].spent + each[0].held, -each[0].available),
    )
    total = book.size
    answer: dict[str, Any] = {
        "population": book.name,
        "budget": {"epsilon": budget.epsilon, "delta": budget.delta},
        "bound": "upper",
        "datapoints": total,
        "cohorts": len(cohorts),
        "note": (
            "Meter readings: spent is the smallest budget that would admit what is committed, held how far open holds "
            "raise it, available the largest single pure release that would still fit. They need not add up."
        ),
    }
    if not cohorts:
        return answer | {
            "worst_off": None, "quantiles": [], "histogram": [], "tasks": [], "windows": [], "forecast": None
        }  # fmt: skip
    worst = cohorts[-1][0]
    answer["worst_off"] = {**shown(worst), "datapoints": cohorts[-1][1]}
    answer["forecast"] = _forecast(book, worst, at)
    edges = [total * each // windows for each in range(windows + 1)] if windows else []
    answer["windows"] = [
        {"start": start, "stop": stop, "epsilon": worst_off(book, BitMap(range(start, stop)))}
        for start, stop in pairwise(edges)
        if start < stop
    ]
    quantiles, passed, place = [], 0, 0
    for share in QUANTILES:
        wanted = max(1, math.ceil(share * total))
        while passed < wanted:
            passed += cohorts[place][1]
            place += 1
        quantiles.append({"share": share, **shown(cohorts[place - 1][0])})
    answer["quantiles"] = quantiles
    counts = [0] * BINS
    for each, datapoints in cohorts:
        used = each.spent + each.held
        counts[min(BINS - 1, int(BINS * used / budget.epsilon)) if math.isfinite(used) else BINS - 1] += datapoints
    width = budget.epsilon / BINS
    answer["histogram"] = [
        {"from": place * width, "to": (place + 1) * width, "datapoints": count} for place, count in enumerate(counts)
    ]
    answer["tasks"] = [
        {
            "name": task.name,
            "members": len(task.members),
            "epsilon": worst_off(book, task.members),
            "task_epsilon": worst_off(book, task.members, ledger=task.name) if task.budget else None,
        }
        for task in list(book.tasks.values())[:1000]
    ]
    return answer


def _forecast(book: Book, worst: Reading, at: datetime) -> dict[str, Any] | None:
    """When the worst-off datapoint runs out if things go on as they went on average: a guess, and no bound.

    None in the first day, of which nothing follows.
    """
    days = (at - datetime.fromisoformat(book.created_at)).total_seconds() / 86_400
    rate = (worst.spent + worst.held) / days if days >= 1 else 0.0
    if not 0 < rate < math.inf:
        return None
    return {
        "epsilon_per_day": rate,
        "days_left": min(worst.available / rate, 1e6),
        "note": "An extrapolation of the average so far, and no bound.",
    }
