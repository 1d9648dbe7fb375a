"""/v1/populations/{population}/ledger and /v1/checkpoints: entries, exports, proofs, verification."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import JSONResponse, StreamingResponse
from sqlalchemy import text
from starlette.concurrency import run_in_threadpool

from service.api.context import (
    MAX_PAGE,
    Admin,
    Anyone,
    Auditor,
    IdempotencyKey,
    Parts,
    Reader,
    Service,
    answered,
    idempotency_of,
    problems,
)
from service.api.populations import Population
from service.cursors import cursor_of, number_from
from service.errors import NotFound
from service.operations import evidence, verifications

router = APIRouter(prefix="/v1", tags=["ledger"])

_PAGE = text(
    "SELECT number, previous, hash, kind, body FROM entry "
    "WHERE population_id = (SELECT id FROM population WHERE name = :name) AND number > :after "
    "ORDER BY number LIMIT :limit"
)
_EXISTS = text("SELECT 1 FROM population WHERE name = :name")
Number = Annotated[int, Path(ge=1, le=2**53 - 1)]


def _shown(row: Any) -> dict[str, Any]:
    return {
        "number": row.number,
        "previous": bytes(row.previous).hex(),
        "hash": bytes(row.hash).hex(),
        "body": json.loads(bytes(row.body)),
    }


def _must_exist(parts: Service, population: str) -> None:
    with parts.database.transaction() as connection:
        if connection.execute(_EXISTS, {"name": population}).one_or_none() is None:
            raise NotFound("population", population)


@router.get("/populations/{population}/ledger", responses=problems("not-found"), summary="Entries, oldest first")
def entries(
    population: Population,
    parts: Service,
    _actor: Reader,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
) -> dict[str, Any]:
    """As they are chained; scopes say who was touched, so this is for officers and auditors."""
    _must_exist(parts, population)
    after = number_from(cursor) or 0
    with parts.database.transaction() as connection:
        rows = connection.execute(_PAGE, {"name": population, "after": after, "limit": limit + 1}).all()
    following = cursor_of({"number": rows[limit - 1].number}) if len(rows) > limit else None
    return {"items": [_shown(row) for row in rows[:limit]], "next": following}


@router.get(
    "/populations/{population}/ledger/export",
    responses={
        **problems("not-found"),
        200: {
            "description": "All entries",
            "content": {
                "application/x-ndjson": {"schema": {"type": "string"}},
                "text/csv": {"schema": {"type": "string"}},
            },
        },
    },
    response_class=StreamingResponse,
    summary="The whole ledger as a file",
)
def export(
    population: Population,
    parts: Service,
    _actor: Reader,
    form: Annotated[Literal["ndjson", "csv"], Query(alias="format")] = "ndjson",
) -> StreamingResponse:
    """NDJSON holds all that is needed to verify it elsewhere; CSV is for reading."""
    _must_exist(parts, population)

    def lines() -> Iterator[str]:
        if form == "csv":
            yield _csv(["number", "hash", "kind", "at", "actor", "release"])
        after = 0
        while True:
            with parts.database.transaction() as connection:
                rows = connection.execute(_PAGE, {"name": population, "after": after, "limit": MAX_PAGE}).all()
            if not rows:
                return
            after = rows[-1].number
            for row in rows:
                if form == "ndjson":
                    yield json.dumps(_shown(row), ensure_ascii=False) + "\n"
                else:
                    body = json.loads(bytes(row.body))
                    yield _csv(
                        [
                            row.number,
                            bytes(row.hash).hex(),
                            row.kind,
                            body["at"],
                            body["actor"],
                            body.get("release", ""),
                        ]
                    )

    kind = "application/x-ndjson" if form == "ndjson" else "text/csv"
    return StreamingResponse(
        lines(), media_type=kind, headers={"Content-Disposition": f'attachment; filename="{population}.{form}"'}
    )


def _csv(cells: list[Any]) -> str:
    written = io.StringIO()
    csv.writer(written).writerow(cells)
    return written.getvalue()


@router.post("/populations/{population}/ledger/verify", responses=problems("not-found"), summary="Rebuild and compare")
def verify(population: Population, parts: Service, _actor: Auditor) -> dict[str, Any]:
    """Every hash, signature, price and admission again, and everything that is derived from the log."""
    return verified(parts, population)


def verified(parts: Parts, population: str) -> dict[str, Any]:
    """What a verification finds now; when that was, and what came of it, is kept."""
    at = datetime.now(UTC)
    found = evidence.verify(parts.database, parts.books, population, trusted=parts.secrets.public_key)
    verifications.remember(parts.database, population, at=at, entries=found["entries"], ok=found["ok"])
    return found


@router.get(
    "/populations/{population}/ledger/{number}/proof", responses=problems("not-found"), summary="An inclusion proof"
)
def proof(
    population: Population,
    number: Number,
    checkpoint: Annotated[int, Query(ge=1, le=2**53 - 1)],
    parts: Service,
    _actor: Reader,
) -> dict[str, Any]:
    """What shows an outsider that this entry is in the ledger that a checkpoint saw (docs/ledger.md)."""
    return evidence.prove(parts.database, population=population, number=number, checkpoint=checkpoint)


@router.get(
    "/populations/{population}/ledger/consistency", responses=problems("not-found"), summary="A consistency proof"
)
def consistency(
    population: Population,
    since: Annotated[int, Query(ge=0, le=2**53 - 1)],
    until: Annotated[int, Query(ge=0, le=2**53 - 1)],
    parts: Service,
    _actor: Reader,
) -> dict[str, Any]:
    """What shows an outsider that the ledger only grew between two of its entries."""
    _must_exist(parts, population)
    return evidence.prove_growth(parts.database, population=population, since=since, until=until)


@router.get("/checkpoints", responses=problems(), summary="Signed heads of all populations")
def checkpoints(parts: Service, _actor: Anyone) -> dict[str, Any]:
    """Keep them where whoever can change the database cannot change them too."""
    return {"items": evidence.checkpoints(parts.database)}


@router.post("/checkpoints", status_code=201, responses=problems("key-reused"), summary="Sign all heads now")
async def make_checkpoint(request: Request, parts: Service, actor: Admin, key: IdempotencyKey = None) -> JSONResponse:
    """One is made by itself every hour, and at every clean stop."""
    idempotency = await idempotency_of(request, actor, key)
    return answered(await run_in_threadpool(evidence.checkpoint_once, parts.database, parts.secrets, idempotency))


@router.get("/checkpoints/{number}", responses=problems("not-found"), summary="One checkpoint")
def one_checkpoint(number: Number, parts: Service, _actor: Reader) -> dict[str, Any]:
    """With the heads that it is over."""
    return evidence.one_checkpoint(parts.database, number)
