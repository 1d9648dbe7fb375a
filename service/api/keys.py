"""/v1/keys: who may come in."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from service.api.context import (
    MAX_PAGE,
    Admin,
    Anyone,
    Auditor,
    IdempotencyKey,
    Reader,
    Service,
    answered,
    idempotency_of,
    problems,
)
from service.cursors import cursor_of, name_from, number_from
from service.operations import evidence, key_log, keys
from service.schemas import NewKey, Reason

router = APIRouter(prefix="/v1/keys", tags=["keys"])
Why = Annotated[Reason | None, Query(description="kept in the log of keys")]
KeyId = Annotated[str, Path(pattern=r"^key_[0-9A-Z]{26}$", examples=["key_01J00000000000000000000000"])]


@router.post("", status_code=201, responses=problems("key-reused"), summary="A new key")
async def create(
    new: NewKey, request: Request, parts: Service, actor: Admin, key: IdempotencyKey = None
) -> JSONResponse:
    """Its secret is in this answer and nowhere else: repeated, the answer is the same key without it.

    The log of keys says who made it, and why, if a reason is given.
    """
    create_key = partial(
        keys.create_once,
        parts.database,
        await idempotency_of(request, actor, key),
        name=new.name,
        roles=new.roles,
        expires_in_days=new.expires_in_days,
        by=actor.id,
        reason=new.reason,
    )
    return answered(await run_in_threadpool(create_key))


@router.get("", responses=problems(), summary="All keys")
def list_all(
    parts: Service,
    _actor: Admin,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
) -> dict[str, Any]:
    """Oldest first, without their secrets."""
    found = keys.listed(parts.database, after=name_from(cursor) or "", limit=limit + 1)
    return {
        "items": found[:limit],
        "next": cursor_of({"after": found[limit - 1]["id"]}) if len(found) > limit else None,
    }


@router.get("/self", responses=problems(), summary="This key")
def myself(actor: Anyone) -> dict[str, Any]:
    """Who the service thinks you are."""
    return {"id": actor.id, "name": actor.name, "roles": sorted(actor.roles)}


@router.get("/log", responses=problems(), summary="Who was let in by whom, and why")
def log(
    parts: Service,
    _actor: Reader,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
) -> dict[str, Any]:
    """Entries of the log of keys, newest first, each bound to the one before by its hash (docs/ledger.md)."""
    found = key_log.entries(parts.database, before=number_from(cursor), limit=limit + 1)
    return {
        "items": found[:limit],
        "next": cursor_of({"number": found[limit - 1]["number"]}) if len(found) > limit else None,
    }


@router.post("/log/verify", responses=problems(), summary="Check the log of keys")
def verify(parts: Service, _actor: Auditor) -> dict[str, Any]:
    """Its chain, what signed checkpoints saw of it, and whether every key is what the log leads to."""
    return evidence.verify_keys(parts.database, trusted=parts.secrets.public_key)


@router.delete("/{key}", status_code=204, responses=problems("not-found"), summary="Revoke a key")
def revoke(key: KeyId, parts: Service, actor: Admin, reason: Why = None) -> Response:
    """Within two seconds it opens nothing any more. The log of keys says who revoked it."""
    keys.revoke(parts.database, key, by=actor.id, reason=reason)
    return Response(status_code=204)
