"""What was charged to one datapoint, entry by entry, with how it stood after each. Nothing here changes anything."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import text

from accountant.canonical import from_canonical
from accountant.filters import Cost
from accountant.ledger import LIFELONG
from service.errors import Problem
from service.operations import statements
from service.operations.readings import finite
from service.operations.remembered import Remembered
from service.store.writer import stamp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyroaring import FrozenBitMap

    from accountant.book import Book, Release
    from accountant.histories import Spending
    from service.store.database import Database

_BODIES = text(
    "SELECT entry.body FROM entry JOIN population ON population.id = entry.population_id "
    "WHERE population.name = :name AND entry.number = ANY(:numbers) ORDER BY entry.number"
)
_TIMES = text(
    "SELECT entry.number, entry.at FROM entry JOIN population ON population.id = entry.population_id "
    "WHERE population.name = :name AND entry.number = ANY(:numbers)"
)
_POLICIES = text(
    "SELECT entry.number, entry.at, entry.body FROM entry JOIN population ON population.id = entry.population_id "
    "WHERE population.name = :name AND entry.number <= :upto AND entry.kind IN ('population.created', 'policy.changed')"
    " ORDER BY entry.number"
)
MOST_STEPS: Final = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An entry that moved the balance of a datapoint; `spent` and `held` are how it stood after it."""

    number: int
    at: str
    release: str
    became: str  # held, committed, expired or voided
    spent: float
    held: float

    def to_json(self) -> dict[str, Any]:
        """The step as an answer."""
        return {
            "entry": self.number,
            "at": self.at,
            "release": self.release,
            "became": self.became,
            "spent": finite(self.spent),
            "held": finite(self.held),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The ε that a life was measured against from an entry on."""

    number: int
    at: str
    epsilon: float


class _Holds:
    """Entries that hold releases, as long as others do not push them out: an entry never changes.

    Without decision and findings, which take most of the room, and are shown by the release's own page.
    """

    def __init__(self, most: int = 4096) -> None:
        self._most, self._lock = most, Lock()
        self._kept: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def of(self, database: Database, population: str, releases: Sequence[Release]) -> list[dict[str, Any]]:
        with self._lock:
            found = {release.id: self._kept[release.id] for release in releases if release.id in self._kept}
        if missing := [release.number for release in releases if release.id not in found]:
            with database.transaction() as connection:
                rows = connection.execute(_BODIES, {"name": population, "numbers": missing}).scalars().all()
            for body in rows:  # whoever opened the book has read it strictly already
                document = json.loads(bytes(body))
                for name in ("decision", "findings"):
                    document.pop(name, None)
                found[document["release"]] = document
        with self._lock:
            for name, document in found.items():
                self._kept[name] = document
                self._kept.move_to_end(name)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return [found[release.id] for release in releases]


_HOLDS = _Holds()


def holds(database: Database, book: Book, releases: Sequence[Release]) -> list[dict[str, Any]]:
    """The entries that held these releases, without their decisions; nobody may change what is given out."""
    return _HOLDS.of(database, book.name, releases)


def bodies(database: Database, book: Book, ordinal: int) -> list[dict[str, Any]]:
    """The entries of releases that may have touched a datapoint, oldest first, without their decisions."""
    _must_be_there(book, ordinal)
    return holds(database, book, statements.touching(book, ordinal))


def _must_be_there(book: Book, ordinal: int) -> None:
    if ordinal >= book.size:
        raise Problem("not-found", f"{book.name!r} has {book.size:,} datapoints; ordinals begin at 0.", "ordinal")


def parts(database: Database, book: Book, releases: Sequence[Release]) -> list[list[tuple[FrozenBitMap, Spending]]]:
    """Whom each of these releases charged how much: from memory, or from the log where a scope is too large."""
    unknown = [release for release in releases if release.touched is None]
    read = {document["release"]: document for document in holds(database, book, unknown)} if unknown else {}
    return [
        [(part.scope, part.spending) for part in book.held_from(read[release.id]).parts]
        if release.touched is None
        else [(scope, spending) for (_, scope), (_, spending) in zip(release.touched, release.spending, strict=True)]
        for release in releases
    ]


def life(database: Database, book: Book, ordinal: int, *, ledger: str = LIFELONG) -> list[Step]:
    """How a datapoint's balance in a ledger moved, by the filter of now.

    Holds count from the entry that made them; a commit or an expiry turns them into spent, a void takes them back.
    """
    _must_be_there(book, ordinal)
    moves: list[tuple[int, str, str, str, Cost]] = []
    touching = statements.touching(book, ordinal)
    for release, charged in zip(touching, parts(database, book, touching), strict=True):
        spending = next((spending for scope, spending in charged if ordinal in scope), ())
        cost = dict(spending).get(ledger)
        if cost is None:
            continue
        moves.append((release.number, release.at, "held", release.id, cost))
        if release.resolved is not None:
            assert release.resolved_at is not None, "both are of the same entry"
            moves.append((release.resolved, release.resolved_at, release.status, release.id, cost))
    budget = book.rules.ledgers[ledger]
    committed, holds = budget.nothing, dict[str, Cost]()
    spent = with_holds = 0.0
    steps = []
    for number, at, became, release_id, cost in sorted(moves, key=lambda move: move[0]):
        if became == "held":
            holds[release_id] = cost
        else:
            del holds[release_id]
        if became in {"held", "voided"}:  # what is committed stays, and what was held until now
            with_holds = budget.meter(Cost.sum([committed, *holds.values()]))
        else:
            committed += cost
            spent = budget.meter(committed)
            with_holds = spent if not holds else with_holds
        held = with_holds - spent if math.isfinite(with_holds) else with_holds
        steps.append(Step(number=number, at=at, release=release_id, became=became, spent=spent, held=held))
    return steps


def of_cohort(database: Database, book: Book, ordinal: int, *, ledger: str = LIFELONG) -> list[dict[str, Any]]:
    """What was spent and held by those with the history of a datapoint, against the budgets of each time.

    A task's own budget begins with its task, and does not change.
    """
    return _LIVES.of(book, (ordinal, ledger), lambda: _of_cohort(database, book, ordinal, ledger))


_LIVES: Remembered[list[dict[str, Any]]] = Remembered(64)


def _of_cohort(database: Database, book: Book, ordinal: int, ledger: str) -> list[dict[str, Any]]:
    steps = life(database, book, ordinal, ledger=ledger)
    if ledger == LIFELONG:
        return against(steps, budgets(database, book))
    task = book.tasks[ledger]
    assert task.budget is not None
    at = times_of(database, book.name, [task.number])[task.number]
    return against(steps, [Limit(number=task.number, at=at, epsilon=task.budget.epsilon)])


def times_of(database: Database, population: str, numbers: Sequence[int]) -> dict[int, str]:
    """When these entries were made."""
    with database.transaction() as connection:
        rows = connection.execute(_TIMES, {"name": population, "numbers": list(set(numbers))})
        return {row.number: stamp(row.at) for row in rows}


def budgets(database: Database, book: Book) -> list[Limit]:
    """The ε of every policy, and since when: what a life was measured against at a time."""
    with database.transaction() as connection:
        rows = connection.execute(_POLICIES, {"name": book.name, "upto": book.number}).all()
    policies = [(row.number, row.at, from_canonical(bytes(row.body))["policy"]) for row in rows]
    return [Limit(number=number, at=stamp(at), epsilon=policy["budget"]["epsilon"]) for number, at, policy in policies]


def against(steps: Sequence[Step], budgets: Sequence[Limit]) -> list[dict[str, Any]]:
    """What was spent and held against the budget of each time: a reading wherever one of the three moved.

    In the order of the ledger: where a clock was set back, an entry is shown no earlier than those before it. Of a very
    long life the newest part is given, from a reading that sums up what came before.
    """
    shown: list[dict[str, Any]] = []
    at, spent, held, budget = "", 0.0, 0.0, budgets[0].epsilon
    moments: list[Step | Limit] = [*budgets, *steps]
    for moved in sorted(moments, key=lambda each: each.number):
        at = max(at, moved.at)
        if isinstance(moved, Step):
            spent, held = moved.spent, moved.held
        else:
            budget = moved.epsilon
        reading = {"at": at, "spent": finite(spent), "held": finite(held), "budget": budget}
        if shown and shown[-1]["at"] == at:
            shown[-1] = reading
        else:
            shown.append(reading)
    return shown[-MOST_STEPS:]
