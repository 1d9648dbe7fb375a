"""Spent, held and available, read from a book. Nothing here changes anything."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import Counter, OrderedDict
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from pyroaring import BitMap

from accountant.cohorts import Scope
from accountant.guarantees import rounded_up
from accountant.ledger import LIFELONG
from accountant.ledger import standing as _standing
from accountant.units import RHO_UNITS_PER_NAT
from service.operations.remembered import Remembered

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from accountant.book import Book, Task
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


def bound(book: Book) -> str:
    """Which bound readings of a life are: none, where something that was accepted is not proved."""
    return "upper" if book.proof_status == "proved" else "none"


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


def over(book: Book, budget: Filter) -> int:
    """How many datapoints have more behind them already than a budget allows."""
    sizes = book.ledger.cohorts.sizes()
    return sum(datapoints for history, datapoints in sizes if not budget.admits(standing(budget, history)))


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


def worst_off(book: Book, scope: Scope, *, ledger: str = LIFELONG, least: int = 1) -> dict[str, Any] | None:
    """The reading of the datapoint of a scope that has most behind it; None if fewer than `least` share its history."""
    return _worst(book, scope, book.rules.ledgers[ledger], ledger).told(least)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worst:
    """Who of a scope has most behind them in a ledger: the history that they have, and how many have it."""

    budget: Filter
    ledger: str
    history: History
    sharing: int

    def told(self, least: int) -> dict[str, Any] | None:
        """The reading as an answer; None if fewer than `least` share the history."""
        if self.sharing < least:
            return None
        return shown(reading(self.budget, self.history, ledger=self.ledger))

    def used(self) -> float:
        """The share of the budget that is spent and held, by the meter."""
        return self.budget.meter(self._behind) / self.budget.epsilon

    def has(self, share: float) -> bool:
        """Whether so much of the budget is available still, which takes no search."""
        return self.budget.admits_pure(self._behind, math.ceil(share * self.budget.epsilon * RHO_UNITS_PER_NAT))

    @property
    def _behind(self) -> Cost:
        return standing(self.budget, self.history, ledger=self.ledger)


def _worst(book: Book, scope: Scope, budget: Filter, ledger: str) -> _Worst:
    history, sharing = max(
        book.ledger.cohorts.touched(scope),
        key=lambda each: (budget.meter(standing(budget, each[0], ledger=ledger)), each[1]),
    )
    return _Worst(budget=budget, ledger=ledger, history=history, sharing=sharing)


def share_available(read: Mapping[str, Any]) -> float:
    """How much of its budget an answer's reading has left; what is not known is not available."""
    share: float = (read["available"] or 0.0) / read["budget"]
    return share


def used_up(book: Book) -> int:
    """How many tasks have members to whom nothing is available in the task's own budget, whatever life has left.

    Charges that name a task touch its members alone, so what histories have in its ledger says all of it.
    """
    budgets = {name: task.budget for name, task in book.tasks.items() if task.budget is not None}
    found: set[str] = set()
    for history, _ in book.ledger.cohorts.sizes() if budgets else ():
        for spending in (history.committed, *[hold.spending for hold in history.holds]):
            for name, _ in spending:
                if name in budgets and name not in found and _is_used_up(budgets[name], history, name):
                    found.add(name)
    return len(found)


@lru_cache(maxsize=1 << 15)
def _is_used_up(budget: Filter, history: History, ledger: str) -> bool:
    near = budget.meter(standing(budget, history, ledger=ledger)) > 0.999 * budget.epsilon
    return near and reading(budget, history, ledger=ledger).available <= 0


@dataclass(frozen=True, slots=True)
class Standing:
    """How many datapoints have a history, and what that has behind it, spent and held, by the current policy."""

    history: History
    datapoints: int
    meter: float


def everybody(book: Book) -> Mapping[History, Standing]:
    """Every cohort with its standing."""

    head, budget = book.chain.link.hash, book.policy.budget
    seen, of, known = _SEEN.get(id(book), (None, budget, {}))
    if seen == head:
        return known
    if of != budget:
        known = {}
    behind = {}
    for history, datapoints in book.ledger.cohorts.sizes():
        # An entry touches few cohorts; what the others have behind them follows from their histories, and stays.
        same = known.get(history)
        meter = budget.meter(standing(budget, history)) if same is None else same.meter
        behind[history] = Standing(history, datapoints, meter)
    with _SEEING:
        _SEEN[id(book)] = head, budget, behind
        _SEEN.move_to_end(id(book))
        while len(_SEEN) > _MOST_SEEN:
            _SEEN.popitem(last=False)
    return behind


#: What was found of a book last, after which entry and by which policy. A head and a history mean the same in every
#: book, so that nothing goes wrong if one has the identity of another that is gone.
_SEEN: OrderedDict[int, tuple[bytes, Filter, Mapping[History, Standing]]] = OrderedDict()
_MOST_SEEN: Final = 64
_SEEING = Lock()


def worst_of_all(book: Book) -> Standing:
    """The cohort that has most behind it, of several the largest; there must be one."""
    return max(everybody(book).values(), key=_badly)


def _badly(cohort: Standing) -> tuple[float, int]:
    return cohort.meter, cohort.datapoints


def distribution(book: Book, *, windows: int = 0, tasks: int | None = None, least: int = 1) -> dict[str, Any]:
    """How the budget stands over all datapoints, and over equal windows of arrivals.

    A reading that fewer than `least` share is None, and what is counted by readings is put together until there are so
    many. With `tasks`, of so many tasks of which the smallest share is available to a member, for life or in the task's
    own budget, smallest first, and of which both are told: their order tells of readings. Else of the first thousand.
    """
    return _DISTRIBUTIONS.of(book, (windows, tasks, least), lambda: _distribution(book, windows, tasks, least))


_DISTRIBUTIONS: Remembered[dict[str, Any]] = Remembered(64)


def _distribution(book: Book, windows: int, tasks: int | None, least: int) -> dict[str, Any]:
    budget = book.policy.budget
    behind = everybody(book)
    total = book.size
    answer: dict[str, Any] = {
        "population": book.name,
        "budget": {"epsilon": budget.epsilon, "delta": budget.delta},
        "bound": bound(book),
        "datapoints": total,
        "cohorts": len(behind),
        "note": (
            "Spent, held and available need not add up: spent is the smallest budget that would admit what is "
            "committed, held is how far open holds raise it, and available is the largest single release with a pure "
            "ε that would still fit."
        ),
    }
    if not behind:
        return answer | {"worst_off": None, "histogram": [], "tasks": [], "windows": []}

    def told(history: History, sharing: int) -> dict[str, Any] | None:
        return shown(reading(budget, history)) if sharing >= least else None

    worst = worst_of_all(book)
    known = told(worst.history, worst.datapoints)
    answer["worst_off"] = None if known is None else {**known, "datapoints": worst.datapoints}
    starts = [total * each // windows for each in range(windows + 1)] if windows else []

    def worst_of(scope: Scope) -> tuple[History, int]:
        return max(book.ledger.cohorts.touched(scope), key=lambda each: (behind[each[0]].meter, each[1]))

    answer["windows"] = [
        {"start": start, "stop": stop, "epsilon": told(*worst_of(BitMap(range(start, stop))))}
        for start, stop in pairwise(starts)
        if start < stop
    ]
    edges = [float(place * Fraction(str(budget.epsilon)) / BINS) for place in range(BINS + 1)]  # of few digits, as ε is
    counts = [0] * BINS
    for each in behind.values():
        counts[min(BINS, bisect_right(edges, each.meter)) - 1] += each.datapoints
    answer["histogram"] = _joined(
        [
            {"from": lower, "to": upper, "datapoints": count}
            for (lower, upper), count in zip(pairwise(edges), counts, strict=True)
        ],
        least,
    )
    listed = [
        (task, _Worst(budget=budget, ledger=LIFELONG, history=history, sharing=sharing), own)
        for task in list(book.tasks.values())[: 1000 if tasks is None else None]
        for history, sharing in [worst_of(task.members)]
        for own in [None if task.budget is None else _worst(book, task.members, task.budget, task.name)]
    ]
    if tasks is not None:
        listed = _least_left(listed, most=tasks, least=least)
    answer["tasks"] = [
        {
            "name": task.name,
            "members": len(task.members),
            "epsilon": life.told(least),
            "budget": None if task.budget is None else {"epsilon": task.budget.epsilon, "delta": task.budget.delta},
            "task_epsilon": None if own is None else own.told(least),
        }
        for task, life, own in listed
    ]
    return answer


def _least_left(
    tasks: Sequence[tuple[Task, _Worst, _Worst | None]], *, most: int, least: int
) -> list[tuple[Task, _Worst, _Worst | None]]:
    """So many of those that are told, smallest share available in one of their budgets first.

    What is available takes a search, but not whether it is less than that of others: the fullest are looked at first.
    """
    standings = [[each for each in (life, own) if each is not None] for _, life, own in tasks]
    told = [place for place, both in enumerate(standings) if all(each.sharing >= least for each in both)]
    kept: list[tuple[float, int]] = []
    for place in sorted(told, key=lambda place: -max(each.used() for each in standings[place])):
        both = standings[place]
        if len(kept) < most or not all(each.has(kept[-1][0]) for each in both):
            shares = [share_available(read) for each in both if (read := each.told(least)) is not None]
            insort(kept, (min(shares), place))
            del kept[most:]
    return [tasks[place] for _, place in kept]


def _joined(bins: Sequence[dict[str, Any]], least: int) -> list[dict[str, Any]]:
    """The same bins, each with nobody or with at least so many: one with fewer becomes one with the bin below it.

    The lowest has nothing below it, and joins those above.
    """
    found: list[dict[str, Any]] = []
    for each in reversed(bins):
        if found and 0 < found[-1]["datapoints"] < least:
            each = _both(each, found.pop())  # noqa: PLW2901
        found.append(each)
    while len(found) > 1 and 0 < found[-1]["datapoints"] < least:
        found.append(_both(found.pop(), found.pop()))
    return found[::-1]


def _both(lower: dict[str, Any], upper: dict[str, Any]) -> dict[str, Any]:
    return {"from": lower["from"], "to": upper["to"], "datapoints": lower["datapoints"] + upper["datapoints"]}


def quantiles(book: Book, *, least: int = 1) -> list[dict[str, Any]]:
    """Of each share of the datapoints: at most so much is spent by them, at most so much held, at least so much left.

    Each by itself, so the last has the most that anybody has spent, the most that is held of anybody, and the least
    that is available to anybody: three different datapoints, perhaps. A number that fewer than `least` have is None.
    """
    return _QUANTILES.of(book, least, lambda: _quantiles(book, least))


_QUANTILES: Remembered[list[dict[str, Any]]] = Remembered(64)


def _quantiles(book: Book, least: int) -> list[dict[str, Any]]:
    found = [(reading(book.policy.budget, each.history), each.datapoints) for each in everybody(book).values()]
    if not found:
        return []
    spent = _at_shares([(each.spent, count) for each, count in found], least)
    held = _at_shares([(each.held, count) for each, count in found], least)
    available = _at_shares([(each.available, count) for each, count in found], least, falling=True)
    return [
        {
            "share": share,
            "spent": spent[place],
            "held": held[place],
            "available": available[place],
            "budget": book.policy.budget.epsilon,
        }
        for place, share in enumerate(QUANTILES)
    ]


def _at_shares(values: Sequence[tuple[float, int]], least: int, *, falling: bool = False) -> list[float | None]:
    """The smallest value that is not below those of each share of the datapoints; `falling`, not above."""
    having: Counter[float] = Counter()
    for value, count in values:
        having[value] += count
    ordered = sorted(having.items(), reverse=falling)
    total = having.total()
    found: list[float | None] = []
    passed, place = 0, 0
    for share in QUANTILES:
        wanted = max(1, math.ceil(share * total))
        while passed < wanted:
            passed += ordered[place][1]
            place += 1
        value, sharing = ordered[place - 1]
        found.append(finite(value) if sharing >= least else None)
    return found


def burn_rate(book: Book, *, at: datetime, least: int = 1) -> dict[str, Any] | None:
    """What those who are worst off have behind them for each day so far: an average, and no bound.

    None in the first day, and if fewer than `least` share that history: what is left by the day gives a reading away.
    """
    days = (at - datetime.fromisoformat(book.created_at)).total_seconds() / 86_400
    worst = worst_of_all(book) if book.size else None
    if worst is None or worst.datapoints < least or days < 1:
        return None
    read = reading(book.policy.budget, worst.history)
    return {"epsilon_per_day": finite((read.spent + read.held) / days), "days": days}
