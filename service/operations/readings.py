"""Spent, held and available, read from a book. Nothing here changes anything."""

from __future__ import annotations

import math
from datetime import datetime
from functools import lru_cache
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
    return _reading(budget, history.committed_in(ledger) or nothing, history.held_in(ledger) or nothing)


@lru_cache(maxsize=1 << 15)
def _reading(budget: Filter, committed: Cost, held: Cost) -> Reading:
    """To find out what is available takes a search; a cohort stays as it is until it is charged again."""
    return budget.reading(committed=committed, held=held)


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
    return shown(reading(book.rules.ledgers[ledger], worst_history(book, scope, ledger=ledger), ledger=ledger))


def worst_history(book: Book, scope: Scope, *, ledger: str = LIFELONG) -> History:
    """The history of the datapoint of a scope that has most behind it."""
    budget = book.rules.ledgers[ledger]
    histories = [history for history, _ in book.ledger.cohorts.touched(scope)]
    return max(histories, key=lambda history: budget.meter(standing(budget, history, ledger=ledger)))


def distribution(book: Book, *, at: datetime, windows: int = 0, tasks: int | None = None) -> dict[str, Any]:
    """How the budget stands over all datapoints, over equal windows of arrivals, and where it is going.

    With `tasks`, of so many tasks whose worst-off member has most behind it, worst first; else of the first thousand.
    """
    budget = book.policy.budget
    meters = {history: budget.meter(standing(budget, history)) for history, _ in book.ledger.cohorts.sizes()}
    cohorts = sorted(book.ledger.cohorts.sizes(), key=lambda each: meters[each[0]])
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
    worst = reading(budget, cohorts[-1][0])
    answer["worst_off"] = {**shown(worst), "datapoints": cohorts[-1][1]}
    answer["forecast"] = _forecast(book, worst, at)
    edges = [total * each // windows for each in range(windows + 1)] if windows else []

    def worst_of(scope: Scope) -> History:
        return max((history for history, _ in book.ledger.cohorts.touched(scope)), key=meters.__getitem__)

    answer["windows"] = [
        {"start": start, "stop": stop, "epsilon": shown(reading(budget, worst_of(BitMap(range(start, stop)))))}
        for start, stop in pairwise(edges)
        if start < stop
    ]
    quantiles, passed, place = [], 0, 0
    for share in QUANTILES:
        wanted = max(1, math.ceil(share * total))
        while passed < wanted:
            passed += cohorts[place][1]
            place += 1
        quantiles.append({"share": share, **shown(reading(budget, cohorts[place - 1][0]))})
    answer["quantiles"] = quantiles
    counts = [0] * BINS
    for history, datapoints in cohorts:
        used = meters[history]
        counts[min(BINS - 1, int(BINS * used / budget.epsilon)) if math.isfinite(used) else BINS - 1] += datapoints
    width = budget.epsilon / BINS
    answer["histogram"] = [
        {"from": place * width, "to": (place + 1) * width, "datapoints": count} for place, count in enumerate(counts)
    ]
    listed = [(task, worst_of(task.members)) for task in list(book.tasks.values())[: 1000 if tasks is None else None]]
    if tasks is not None:
        listed = sorted(listed, key=lambda each: meters[each[1]], reverse=True)[:tasks]
    answer["tasks"] = [
        {
            "name": task.name,
            "members": len(task.members),
            "epsilon": shown(reading(budget, history)),
            "task_epsilon": worst_off(book, task.members, ledger=task.name) if task.budget else None,
        }
        for task, history in listed
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
