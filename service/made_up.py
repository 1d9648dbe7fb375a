"""Histories that never happened, for demonstrations and tests: real decisions, at times that were chosen.

Whatever really happens is entered at the time at which it is decided; no address lets anybody say another. Here the
same operations are asked with a time of their own, from inside the service, so that a population made up today can have
years behind it. Every such entry names `made-up` where others name a key, which nobody can have, and pages and reports
say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from accountant import book as ledger_book
from accountant.canonical import from_canonical
from accountant.filters import Filter
from service.api.releases import proposal_of
from service.errors import NotFound
from service.operations import datapoints, populations, releases, reports
from service.operations.keys import Actor
from service.operations.populations import MADE_UP
from service.schemas import NewRelease
from service.store.writer import Operation

if TYPE_CHECKING:
    from service.api.context import Parts
    from service.store.writer import Decide

_ACTOR: Final = Actor(id=MADE_UP, name=MADE_UP, roles=frozenset({"officer", "pipeline"}), expires_at=None)
_WAIT_SECONDS: Final = 60


@contextmanager
def history(parts: Parts, population: str, *, start: datetime) -> Iterator[MadeUp]:
    """Somebody who writes the history of one population, beginning at `start`; its holds are left alone meanwhile.

    They ran out long ago, and would be expired between two of its steps.
    """
    parts.unswept.add(population)
    try:
        yield MadeUp(parts, population, at=start)
    finally:
        parts.unswept.discard(population)


class MadeUp:
    """Does what the client does, to one population, at the time `at`: set it before each step."""

    def __init__(self, parts: Parts, population: str, *, at: datetime) -> None:
        self._parts, self._population, self.at = parts, population, at

    def create_population(self, name: str, *, unit: Any, epsilon: float, delta: float, **rest: Any) -> dict[str, Any]:
        """The population, with its promise."""
        assert name == self._population
        body = ledger_book.created(
            population=name, unit=unit, adjacency="add_remove", epsilon=epsilon, delta=delta, **rest
        )
        return populations.create(self._parts.database, body, actor=_ACTOR.id, at=self.at).document

    def register_count(self, _population: str, count: int) -> dict[str, Any]:
        """So many datapoints without keys."""
        return self._decided(datapoints.register_count(count))

    def create_task(
        self,
        _population: str,
        name: str,
        *,
        members: Mapping[str, Any],
        parts: Mapping[str, Any] | None = None,
        budget: Mapping[str, float] | None = None,
    ) -> dict[str, Any]:
        """A task, with a budget of its own if it has one."""
        own = None if budget is None else Filter.of(epsilon=budget["epsilon"], delta=budget["delta"])
        return self._decided(
            populations.create_task(name=name, members=members, parts=parts or {}, budget=own, by=_ACTOR)
        )

    def change_policy(self, _population: str, *, reason: str, **changes: Any) -> dict[str, Any]:
        """A new version."""
        kept = dict.fromkeys(("epsilon", "delta", "on_exhausted", "accepts", "named_scopes", "findings", "data"))
        operation = populations.change_policy(**{**kept, "lift": (), "if_match": None, **changes, "reason": reason})
        return self._decided(operation)

    def propose(self, **proposal: Any) -> dict[str, Any]:
        """Held or denied, as the gate decides."""
        new = NewRelease.model_validate(proposal)
        return self._decided(releases.propose(proposal_of(new, self._parts, _ACTOR)))

    def commit(self, release: str, *, artifact: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """It left the house."""
        return self._decided(releases.commit(release=release, artifact=artifact, by=_ACTOR))

    def void(self, release: str, *, reason: str) -> dict[str, Any]:
        """Nothing of it left."""
        return self._decided(releases.void(release=release, reason=reason, evidence=None, by=_ACTOR))

    def ledger(self, population: str) -> Iterator[dict[str, Any]]:
        """The entries so far; none if there is no such population."""
        with suppress(NotFound):
            for number, _, body in reports.Log(self._parts.database, population):
                yield {"number": number, "body": from_canonical(body)}

    def _decided(self, operation: Decide) -> dict[str, Any]:
        queued = Operation(population=self._population, actor=_ACTOR.id, decide=operation, at=self.at)
        return self._parts.writer.submit(queued).result(_WAIT_SECONDS).document
