"""Ledger: what exactly happened, and is it untouched?"""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

from fastapi import APIRouter, Query
from sqlalchemy import text
from starlette.concurrency import run_in_threadpool

from accountant.canonical import from_canonical
from service.api import ledger as ledger_api
from service.api.context import Service
from service.api.populations import Population
from service.cursors import cursor_of, number_from
from service.dashboard.pages import Asked, Done, action, mirror, page
from service.dashboard.visitors import as_in, may
from service.errors import NotFound
from service.operations import evidence, keys, reports, verifications
from service.operations.keys import Actor

router = APIRouter()
Visitor = Annotated[Actor, as_in(ledger_api.entries)]
Verifier = Annotated[Actor, as_in(ledger_api.entries, ledger_api.verify)]
PAGE: Final = 50
Kind: TypeAlias = Literal[
    "population.created", "population.frozen", "population.opened", "population.closed", "policy.changed",
    "datapoints.registered", "datapoint.erased", "datapoint.returned", "task.created", "release.held", "release.denied",
    "release.committed", "release.voided", "release.expired", "release.audited", "artifact.attached", "audit.planned",
    "audit.concluded", "audit.abandoned",
]  # fmt: skip
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_PAGE = text(
    "SELECT number, hash, body FROM entry WHERE population_id = (SELECT id FROM population WHERE name = :name) "
    "AND number < :before AND (:kind = '' OR kind = :kind) AND (:release = '' OR release = :release) "
    "ORDER BY number DESC LIMIT :limit"
)
_ENTRY = text(
    "SELECT number, previous, hash, kind, body FROM entry "
    "WHERE population_id = (SELECT id FROM population WHERE name = :name) AND number = :number"
)


def _entries(
    population: Population,
    parts: Service,
    actor: Visitor,
    kind: Annotated[Literal["", Kind], Query()] = "",
    release: Annotated[str, Query(pattern=r"^(rel_[0-9A-Z]{26})?$")] = "",
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
) -> dict[str, Any]:
    """Newest first, each in words; and what is known of the chain."""
    before = number_from(cursor)
    with parts.books.read(population) as book:
        asked = {
            "name": population, "before": 2**62 if before is None else before, "kind": kind, "release": release,
            "limit": PAGE + 1,
        }  # fmt: skip
        with parts.database.transaction() as connection:
            rows = connection.execute(_PAGE, asked).all()
            signed = evidence.last_signed(connection)
        items = []
        for row in rows[:PAGE]:
            document = from_canonical(bytes(row.body))
            items.append(
                {
                    "number": row.number, "hash": bytes(row.hash).hex(), "at": document["at"],
                    "actor": document["actor"], "kind": document["kind"], "release": document.get("release"),
                    "text": reports.entry_in_words(book, document),
                }
            )  # fmt: skip
        return {
            "population": population,
            "filter": {"kind": kind, "release": release},
            "kinds": list(KINDS),
            "entries_in_all": book.number,
            "head": book.chain.link.hash.hex(),
            "checkpoint": None if signed is None else {**signed, "covers": signed["covers"].get(population)},
            "checkpoint_seconds": parts.settings.checkpoint_seconds,
            "verified": verifications.last(parts.database, [population]).get(population),
            "may_verify": may(actor, ledger_api.verify),
            "items": items,
            "names": keys.names(parts.database, [each["actor"] for each in items]),
            "next": cursor_of({"number": rows[PAGE - 1].number}) if len(rows) > PAGE else None,
        }


page(
    router,
    "/populations/{population}/ledger",
    title="Ledger",
    question="What exactly happened, and is it untouched?",
    template="ledger.html",
)(_entries)


@page(
    router,
    "/populations/{population}/entry",
    title=lambda data: f"Entry {data['number']:,}",
    question="What does this entry say, and what binds it to the others?",
    template="entry.html",
)
def entry(
    population: Population,
    parts: Service,
    _actor: Visitor,
    number: Annotated[int, Query(ge=1, le=2**53 - 1)],
) -> dict[str, Any]:
    """As it is chained."""
    with parts.books.read(population) as book:
        with parts.database.transaction() as connection:
            row = connection.execute(_ENTRY, {"name": population, "number": number}).one_or_none()
            if row is None:
                raise NotFound("entry", number)
        document = json.loads(bytes(row.body))
        return {
            "population": population,
            "number": row.number,
            "previous": bytes(row.previous).hex(),
            "hash": bytes(row.hash).hex(),
            "kind": row.kind,
            "text": reports.entry_in_words(book, document),
            "body": document,
            "names": keys.names(parts.database, [document["actor"]]),
            "last": book.number,
        }


# ---------------------------------------------------------------- checking and taking it away


def _verifying(population: Population, parts: Service, _actor: Verifier) -> dict[str, Any]:
    """What would be verified."""
    with parts.books.read(population) as book:
        return {
            "population": population,
            "entries": book.number,
            "head": book.chain.link.hash.hex(),
            "last": verifications.last(parts.database, [population]).get(population),
            "found": None,
        }


@action(
    router,
    "/populations/{population}/verify",
    title="Verify the ledger",
    question="Is every entry as it was written, and does everything follow from them?",
    template="verify_ledger.html",
    data=_verifying,
)
async def verify(asked: Asked) -> Done:
    """Every hash, signature, price and admission again. Nothing is changed, so no reason is asked for."""
    population = asked.shown["population"]
    found = await run_in_threadpool(ledger_api.verified, asked.parts, population)
    if found["ok"]:
        said = f"Verified: all {found['entries']:,} entries are as they were written, and everything follows from them."
    else:
        said = f"The ledger does not verify: {found['problems'][0]}."
    return Done(notice=said, to=f"/populations/{population}/ledger")


mirror(router, "/populations/{population}/ledger/export", ledger_api.export)
