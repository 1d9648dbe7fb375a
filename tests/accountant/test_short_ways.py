"""A book that appends what it decides is the book that its log leads to."""

from __future__ import annotations

from typing import Any

import pytest

from accountant import book as module
from accountant.book import Body, Book

AT, ACTOR = "2026-01-01T00:00:00.000000Z", "key_test"


def opened() -> tuple[Book, list[bytes]]:
    body = module.created(population="clinic", unit="record", adjacency="add_remove", epsilon=3.0, delta=1e-6)
    log = [module.spell(body, at=AT, actor=ACTOR)]
    return Book.of(log[0]), log


def proposed(book: Book, release: str, ranges: list[list[int]], event: dict[str, Any]) -> tuple[Body, Any]:
    charge, spelled = book.charge({"scope": {"ranges": ranges}, "event": event}, path="charges[0]")
    decision = book.propose(release=release, charges=[charge])
    if decision.hold is None:
        shown = {"outcome": "denied"}
        body = book.denied_body(
            release=release, kind="weights", datapoints=decision.datapoints, charges=[spelled], declared={}, shown=shown
        )
        return body, None
    body = book.held_body(
        decision, kind="weights", charges=[spelled], expires_at=AT, declared={}, shown={"outcome": "admitted"}
    )
    return body, decision.hold


def same(one: Book, other: Book) -> bool:
    return (
        one.chain == other.chain
        and one.releases == other.releases
        and one.ledger.statuses == other.ledger.statuses
        and list(one.ledger.cohorts.items()) == list(other.ledger.cohorts.items())
    )


@pytest.mark.parametrize("trusting", [True, False])
def test_what_is_appended_is_what_is_replayed(trusting: bool) -> None:  # noqa: FBT001
    book, log = opened()

    def append(body: Body, held: Any = None) -> None:
        log.append(book.append(body, at=AT, actor=ACTOR, held=held if trusting else None))
        read = Book.of(log[0])
        for each in log[1:]:
            read.apply(each)
        assert same(book, read)

    append({"kind": "datapoints.registered", "count": 1000})
    for number, (ranges, noise) in enumerate(
        [([[0, 500]], 4.0), ([[250, 750], [800, 900]], 5.0), ([[0, 1000]], 6.0), ([[10, 20]], 0.1), ([[0, 300]], 8.0)]
    ):
        append(*proposed(book, f"rel-{number}", ranges, {"kind": "gaussian", "noise_multiplier": noise}))
    assert book.releases["rel-3"].status == "denied"
    append({"kind": "release.committed", "release": "rel-0", "artifact": {"metrics": {"accuracy": 1.0}}})
    append({"kind": "release.committed", "release": "rel-1"})
    append({"kind": "release.voided", "release": "rel-2", "reason": "no output"})
    append({"kind": "release.expired", "release": "rel-4"})
    assert repr(book.releases["rel-0"].artifact) == "{'metrics': {'accuracy': 1}}"
