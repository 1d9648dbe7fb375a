"""Where budgets are going: which release is refused first if the last weeks repeat themselves, and how often one fits.

What was admitted lately is taken as a plan: the same releases, in the same order and at the same distances, happen to
the same people again and again. The first of them that the gate would refuse is looked for, by exact sums. That is an
extrapolation and no bound, and says over which period it looked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pyroaring import BitMap

from accountant.filters import Cost
from accountant.ledger import LIFELONG
from accountant.units import SATURATED
from service.errors import NotFound, Problem
from service.operations import lives, readings
from service.operations.releases import Priced, how_often
from service.operations.remembered import Remembered
from service.store.writer import stamp
from trainers.catalog import CATALOG

if TYPE_CHECKING:
    from accountant.book import Book, Release
    from accountant.filters import Filter
    from accountant.histories import History, Spending
    from service.store.database import Database

RECENT_DAYS: Final = 30
MOST_RELEASES: Final = 100  # that are looked at; of a busier population, the period is shorter
LEAST_RELEASES: Final = 2  # one alone has no pace
MOST_TIMES: Final = 10_000
STEPS_AHEAD: Final = 120
FARTHEST_DAYS: Final = 36_500.0
NOTE: Final = (
    "An extrapolation by the budgets alone, and no bound: it supposes that the same happens to the same people again "
    "and again."
)
ADMITTED: Final = frozenset({"held", "committed", "expired"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """What was admitted lately, oldest first, in the days since `start`; of few datapoints perhaps without them."""

    start: datetime
    days: float
    releases: tuple[Release, ...]
    left_out: bool = False

    def offset(self, place: int) -> float:
        """How many days after its start a release was proposed."""
        return (datetime.fromisoformat(self.releases[place].at) - self.start).total_seconds() / 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What one release of the period charges to somebody in a ledger."""

    place: int  # among the releases of the period
    cost: Cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The first planned release that would be refused: after so many whole repetitions, the one at this place.

    `history` is that of the datapoints it would bring furthest in the ledger that has no room for them; `datapoints`
    are all that have no room there. `plan` is what the period charges to such a history.
    """

    repetitions: int
    place: int
    ledger: str  # `LIFELONG`, or the task that has a budget of its own
    history: History
    datapoints: int
    plan: tuple[Planned, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The first refusal, if there is one, and whether people who are too few to be told of were left out of it."""

    refusal: Refusal | None
    left_out: bool


def lately(book: Book, *, at: datetime, least: int = 1) -> Period | None:
    """What was admitted in the last days; None in the first day, of which nothing follows.

    Releases that touched fewer than `least` datapoints are left out, for whoever may not be told of so few. One that
    was voided or denied charged nobody.
    """
    created = datetime.fromisoformat(book.created_at)
    if at - created < timedelta(days=1):
        return None
    start = max(created, at - timedelta(days=RECENT_DAYS))
    since = stamp(start)
    recent: list[Release] = []
    left_out = False
    for release in reversed(book.releases.values()):
        if release.at < since:
            break
        if release.status in ADMITTED and release.datapoints < least:
            left_out = True
        elif release.status in ADMITTED:
            if len(recent) == MOST_RELEASES:  # then the period begins with the one that is left out
                start = datetime.fromisoformat(release.at)
                break
            recent.append(release)
    days = max((at - start).total_seconds() / 86_400, 1e-6)
    return Period(start=start, days=days, releases=tuple(reversed(recent)), left_out=left_out)


def first_refused(database: Database, book: Book, period: Period, *, least: int = 1) -> Outlook:
    """The first release that would be refused if the period repeats itself, of those who are at least so many."""
    numbers = tuple(release.number for release in period.releases)
    return _OUTLOOKS.of(book, (numbers, least), lambda: _first_refused(database, book, period.releases, least))


_OUTLOOKS: Remembered[Outlook] = Remembered()


def _first_refused(database: Database, book: Book, releases: Sequence[Release], least: int) -> Outlook:
    spendings: dict[tuple[int, int], Spending] = {}
    touching: dict[History, list[tuple[int, int]]] = {}
    # Those in a cohort were touched by the same charges: where one of them is in a scope, all are.
    witnesses = book.ledger.cohorts.witnesses()
    ordinals = BitMap(witnesses)
    for place, charged in enumerate(lives.parts(database, book, releases)):
        for which, (scope, spending) in enumerate(charged):
            spendings[place, which] = spending
            for ordinal in ordinals & scope:
                touching.setdefault(witnesses[ordinal], []).append((place, which))
    alike: dict[tuple[tuple[int, int], ...], list[History]] = {}
    for history, by in touching.items():
        alike.setdefault(tuple(by), []).append(history)
    everybody = readings.everybody(book)
    found: list[Refusal] = []
    left_out = False
    for touches, histories in alike.items():
        for ledger, plan in _plans((place, spendings[place, which]) for place, which in touches).items():
            budget = book.rules.ledgers.get(ledger)
            if budget is None:
                continue
            whole = Cost.sum([each.cost for each in plan])
            for history in histories:
                if everybody[history].datapoints < least:
                    left_out = True
                    continue
                repetitions = budget.how_often(whole, after=readings.standing(budget, history, ledger=ledger))
                if repetitions == SATURATED or (found and repetitions > found[0].repetitions):
                    continue
                place = _refused_at(budget, history, ledger, plan, repetitions)
                one = Refusal(
                    repetitions=repetitions, place=place, ledger=ledger, history=history, plan=plan,
                    datapoints=everybody[history].datapoints,
                )  # fmt: skip
                if found and (repetitions, place) < (found[0].repetitions, found[0].place):
                    found.clear()
                if not found or (repetitions, place) == (found[0].repetitions, found[0].place):
                    found.append(one)
    return Outlook(refusal=_worst(book, found), left_out=left_out)


def _plans(spending: Iterable[tuple[int, Spending]]) -> dict[str, tuple[Planned, ...]]:
    """What is charged to a ledger, by which of the releases."""
    plans: dict[str, list[Planned]] = {}
    for place, charged in spending:
        for ledger, cost in charged:
            plans.setdefault(ledger, []).append(Planned(place=place, cost=cost))
    return {ledger: tuple(plan) for ledger, plan in plans.items()}


def _refused_at(budget: Filter, history: History, ledger: str, plan: Sequence[Planned], repetitions: int) -> int:
    """The place of the release that no longer fits; after so many repetitions there is one."""
    total = readings.standing(budget, history, ledger=ledger)
    total = Cost.sum([total, *([Cost.sum([each.cost for each in plan]) * repetitions] if repetitions else [])])
    for each in plan:
        total += each.cost
        if not budget.admits(total):
            return each.place
    raise AssertionError("a whole repetition more would have fitted")


def _worst(book: Book, found: Sequence[Refusal]) -> Refusal | None:
    """Of those whom one release would bring over: the ledger of most of them, and the history that is furthest."""
    if not found:
        return None
    by_ledger: dict[str, list[Refusal]] = {}
    for each in found:
        by_ledger.setdefault(each.ledger, []).append(each)
    ledger, those = max(by_ledger.items(), key=lambda item: (sum(each.datapoints for each in item[1]), item[0]))
    budget = book.rules.ledgers[ledger]
    worst = max(those, key=lambda each: budget.meter(reached(book, each)))
    return Refusal(
        repetitions=worst.repetitions, place=worst.place, ledger=ledger, history=worst.history,
        datapoints=sum(each.datapoints for each in those), plan=worst.plan,
    )  # fmt: skip


def reached(book: Book, refusal: Refusal) -> Cost:
    """What those would have behind them whom the refused release would bring over, had it been admitted."""
    budget = book.rules.ledgers[refusal.ledger]
    costs = [each.cost for each in refusal.plan]
    before = [Cost.sum(costs) * refusal.repetitions] if refusal.repetitions else []
    last = [each.cost for each in refusal.plan if each.place <= refusal.place]
    return Cost.sum([readings.standing(budget, refusal.history, ledger=refusal.ledger), *before, *last])


def looked_ahead(
    database: Database, book: Book, period: Period | None, *, at: datetime, least: int = 1
) -> tuple[dict[str, Any] | None, Refusal | None]:
    """The forecast, and the refusal that it names; one release alone is no plan."""
    is_plan = period is not None and len(period.releases) >= LEAST_RELEASES
    outlook = first_refused(database, book, period, least=least) if period and is_plan else None
    return forecast(book, period, outlook, at=at), None if outlook is None else outlook.refusal


def refused_at_once(book: Book, mechanisms: Iterable[str | None]) -> list[str]:
    """Why the gate would refuse what is made by these mechanisms now, whatever budgets have room for, in sentences."""
    if book.status != "open":
        return [f"Nothing is admitted {'while it is frozen' if book.status == 'frozen' else 'any more: it is closed'}."]
    said = []
    for name in sorted(set(filter(None, mechanisms))):
        if book.blocking(name):
            said.append(f"Whatever is made by {name} is refused at once: an audit blocks it.")
        elif name in CATALOG and (status := CATALOG[name].proof_status) not in book.policy.accepts:
            said.append(
                f"Whatever is made by {name} is refused at once: it is {status}, which the policy does not accept."
            )
    return said


def forecast(book: Book, period: Period | None, outlook: Outlook | None, *, at: datetime) -> dict[str, Any] | None:
    """Which release is refused first by the budgets alone, when, and whom it would bring over how far, as an answer.

    What is refused for something else, and why, is in `refused_at_once`; the budgets are read as if it were not.
    `left_out` says that there are others, too few to be told of, who may be refused earlier.
    """
    if period is None:
        return None
    left_out = period.left_out or (outlook is not None and outlook.left_out)
    said = {
        "days": period.days, "releases": len(period.releases), "left_out": left_out, "first": None, "note": NOTE,
        "refused_at_once": refused_at_once(book, [each.mechanism for each in period.releases]),
    }  # fmt: skip
    if outlook is None or (refusal := outlook.refusal) is None:
        return said
    budget = book.rules.ledgers[refusal.ledger]
    days = min(refusal.repetitions * period.days + period.offset(refusal.place), FARTHEST_DAYS)
    like = period.releases[refusal.place]
    same = [each for each in period.releases if _series(each) == _series(like)]
    return said | {
        "first": {
            "task": None if refusal.ledger == LIFELONG else refusal.ledger,
            "datapoints": refusal.datapoints,
            "days_left": days,
            "at": stamp(at + timedelta(days=days)) if days < FARTHEST_DAYS else None,
            "epsilon": readings.shown(readings.reading(budget, refusal.history, ledger=refusal.ledger)),
            "delta": budget.delta,
            "like": like.id,
            "kind": like.kind,
            "mechanism": like.mechanism,
            "tasks": sorted(like.tasks),
            "number": refusal.repetitions * len(same) + same.index(like) + 1,  # of its series, counted from now
            "would_bring_to": readings.finite(budget.meter(reached(book, refusal))),
            "ahead": _ahead(book, period, refusal, at=at) if days < FARTHEST_DAYS else [],
        },
    }


def _series(release: Release) -> tuple[str, str | None, frozenset[str]]:
    """What makes releases the same again and again, to a reader: their kind, mechanism and tasks."""
    return release.kind, release.mechanism, release.tasks


def in_words(*, kind: str, mechanism: str | None, tasks: Sequence[str]) -> str:
    """What a series of releases is called.

    >>> in_words(kind="weights", mechanism="dp-sgd", tasks=["spring", "summer"])
    'dp-sgd on spring and summer'
    """
    on = "" if not tasks else f" on {' and '.join(tasks[:2])}{' and more' if len(tasks) > 2 else ''}"
    return f"{mechanism or kind}{on}"


def _ahead(book: Book, period: Period, refusal: Refusal, *, at: datetime) -> list[dict[str, Any]]:
    """How the reading would rise up to the refusal, step by step; of very many, the last of each repetition or more."""
    budget, plan = book.rules.ledgers[refusal.ledger], refusal.plan
    total = readings.standing(budget, refusal.history, ledger=refusal.ledger)
    whole = Cost.sum([each.cost for each in plan])
    stride = 1 + refusal.repetitions * len(plan) // STEPS_AHEAD
    found: list[tuple[float, Cost]] = []
    if stride == 1:
        for repetition in range(refusal.repetitions):
            for each in plan:
                total += each.cost
                found.append((repetition * period.days + period.offset(each.place), total))
    else:
        every = max(1, refusal.repetitions * 2 // STEPS_AHEAD)
        for done in range(every, refusal.repetitions + 1, every):
            found.append((done * period.days, Cost.sum([total, whole * done])))  # noqa: PERF401 - as above
        total = Cost.sum([total, whole * refusal.repetitions])
    for each in plan:
        if each.place < refusal.place:
            total += each.cost
            found.append((refusal.repetitions * period.days + period.offset(each.place), total))
    return [
        {"at": stamp(at + timedelta(days=days)), "standing": readings.finite(budget.meter(cost))}
        for days, cost in found
    ]


# ---------------------------------------------------------------- what if


def repeated(
    database: Database, book: Book, release: str, *, times: int, period: Period | None, at: datetime, least: int = 1
) -> dict[str, Any]:
    """How often a release like an earlier one, on the same people, would be admitted in a row: by the budget alone.

    With when the first refusal is due, at the pace of those of the period that are on the same people by the same
    mechanism; none if there is not more than one.
    """
    known = book.releases.get(release)
    if known is None:
        raise NotFound("release", release)
    if known.datapoints < least:
        raise Problem(
            "forbidden", f"It touches {known.datapoints} datapoints: so few are shown to no pipeline.", "like"
        )
    if known.status == "denied":
        raise Problem("invalid", f"Release {release} was denied: what was admitted can be repeated.", "like")
    [document] = lives.holds(database, book, [known])
    pairs = [book.charge(charge, path=f"charges[{place}]") for place, charge in enumerate(document["charges"])]
    priced = Priced(charges=[charge for charge, _ in pairs], spelled=[spelled for _, spelled in pairs], reasons=[])
    fits = how_often(book, priced, most=times)
    scopes = [charge["scope"] for charge in document["charges"]]
    alike = 0
    if period is not None:
        same = [each for each in period.releases if _series(each) == _series(known)]
        alike = sum(
            [charge["scope"] for charge in each["charges"]] == scopes for each in lives.holds(database, book, same)
        )
    refused_at = None
    if period is not None and alike >= LEAST_RELEASES and fits < times:
        days = min((fits + 1) * period.days / alike, FARTHEST_DAYS)
        refused_at = stamp(at + timedelta(days=days)) if days < FARTHEST_DAYS else None
    return {
        "like": release,
        "kind": known.kind,
        "mechanism": known.mechanism,
        "tasks": sorted(known.tasks),
        "datapoints": len(BitMap().union(*(charge.scope for charge in priced.charges))),
        "asked": times,
        "would_be_admitted": fits,
        "first_refused": fits + 1 if fits < times else None,
        "alike": alike,
        "refused_at": refused_at,
        "refused_at_once": refused_at_once(book, [known.mechanism]),
    }
