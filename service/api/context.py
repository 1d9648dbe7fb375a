"""What every address needs: the parts of the running service, who is asking, and how an operation is awaited."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Header, Request
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from accountant.book import bitmap_to
from service.errors import PROBLEMS, Problem
from service.metrics import Metrics
from service.operations import datapoints
from service.operations.keys import Actor, Doorkeeper
from service.schemas import ProblemDocument
from service.settings import Settings
from service.signing import Secrets
from service.store.books import Books
from service.store.database import Database
from service.store.writer import Answer, Decide, Idempotency, Operation, Writer


@dataclass(frozen=True, eq=False)
class Parts:
    """The running service."""

    settings: Settings
    database: Database
    books: Books
    writer: Writer
    doorkeeper: Doorkeeper
    secrets: Secrets
    metrics: Metrics

    def resolved(self, population: str, scope: dict[str, Any], *, nested: bool = False) -> dict[str, Any]:
        """A scope with its keys looked up; keys go no further than this. A union in a union is none, and left alone."""
        match scope:
            case {"keys": list(names), **rest} if not rest:
                digests = [datapoints.digest(self.secrets.datapoints, population, name) for name in names]
                return {"bitmap": bitmap_to(datapoints.ordinals(self.database, population, digests))}
            case {"union": list(inside), **rest} if not rest and not nested:
                return {
                    "union": [
                        self.resolved(population, each, nested=True) if isinstance(each, dict) else each
                        for each in inside
                    ]
                }
            case _:
                return scope


def parts_of(request: Request) -> Parts:
    """The running service that the request reached."""
    parts: Parts = request.app.state.parts
    return parts


async def _service(request: Request) -> Parts:  # FastAPI would give a plain function a thread, for every request
    return parts_of(request)


Service = Annotated[Parts, Depends(_service)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="A name for this request: repeated under it, it has one effect and the same answer.",
    ),
]


def requires(*roles: str) -> Any:
    """The actor, who must have one of these roles."""

    async def actor(request: Request) -> Actor:
        scheme, _, secret = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not secret.startswith("sk_"):
            raise Problem("unauthorized", "This address needs a key.")
        parts = parts_of(request)
        found = parts.doorkeeper.remembered(secret)
        if found is None:
            found = await run_in_threadpool(parts.doorkeeper.admit, secret)
        request.state.actor = found.id
        if roles and not found.has(*roles):
            raise Problem("forbidden", f"This needs a key with one of the roles: {', '.join((*roles, 'admin'))}.")
        return found

    return Depends(actor)


Anyone = Annotated[Actor, requires()]
Pipeline = Annotated[Actor, requires("pipeline", "officer")]
Officer = Annotated[Actor, requires("officer")]
Reader = Annotated[Actor, requires("officer", "auditor")]
Auditor = Annotated[Actor, requires("auditor", "officer")]
Trusted = Annotated[Actor, requires("worker", "officer", "auditor")]
Admin = Annotated[Actor, requires("admin")]


async def idempotency_of(request: Request, actor: Actor, key: str | None, *, suffix: str = "") -> Idempotency | None:
    """Under which name, and for what, a request is remembered."""
    if key is None:
        return None
    asked = f"{request.method} {request.url.path}{suffix}\n".encode() + await request.body()
    return Idempotency.of(actor=actor.id, key=key + suffix, request=asked)


async def decide(
    request: Request,
    parts: Parts,
    actor: Actor,
    population: str,
    operation: Decide,
    key: str | None,
    *,
    uses_sql: bool = False,
    suffix: str = "",
) -> Answer:
    """Queue an operation, and wait until its outcome is durable."""
    idempotency = await idempotency_of(request, actor, key, suffix=suffix)
    future = parts.writer.submit(
        Operation(population=population, actor=actor.id, decide=operation, idempotency=idempotency, uses_sql=uses_sql)
    )
    try:
        # Whoever waits longer gets no answer, but the decision may still be made: their key will find out.
        return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), _DECISION_SECONDS)
    except TimeoutError:
        raise Problem("busy", "The decision takes too long; whether it was made is not known yet.") from None


def answered(answer: Answer) -> JSONResponse:
    """An answer over HTTP; one that was given before says so."""
    headers = {"Idempotent-Replayed": "true"} if answer.replayed else None
    return JSONResponse(answer.document, status_code=answer.status, headers=headers)


def problems(*names: str) -> dict[int | str, dict[str, Any]]:
    """The problems that an address may answer with, for its documentation."""
    found: dict[int | str, list[str]] = {}
    for name in ("invalid", "unauthorized", "forbidden", "busy", "too-large", *names):
        found.setdefault(PROBLEMS[name].status, []).append(PROBLEMS[name].title)
    return {
        status: {
            "model": ProblemDocument,
            "description": "; ".join(dict.fromkeys(titles)),
            "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}},
        }
        for status, titles in found.items()
    }


def names_individuals(scope: Mapping[str, Any]) -> bool:
    """Whether a scope names single datapoints, by key or bitmap, at whatever depth."""
    inside = scope.get("union", [])
    return not set(scope) <= {"task", "part", "ranges", "union", "next"} or any(
        isinstance(each, dict) and names_individuals(each) for each in (inside if isinstance(inside, list) else [])
    )


def must_allow_names(parts: Parts, population: str) -> None:
    """Refuse a pipeline that names single datapoints, unless the policy lets it."""
    with parts.books.read(population) as book:
        if not book.policy.named_scopes:
            raise Problem("forbidden", "The policy lets pipelines name no single datapoints.", "scope")


MAX_PAGE = 1000
_DECISION_SECONDS = 120


def cursor_of(document: Mapping[str, Any]) -> str:
    """Where a list goes on, as text that nobody needs to read."""
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode()


def number_from(cursor: str | None) -> int | None:
    """The number after which (or before which) a list goes on."""
    found = _cursor_from(cursor, "number")
    if found is None or (type(found) is int and 0 <= found < 2**53):
        return found
    raise _NO_CURSOR


def name_from(cursor: str | None) -> str | None:
    """The name after which a list goes on."""
    found = _cursor_from(cursor, "after")
    if found is None or (isinstance(found, str) and found.isprintable()):
        return found
    raise _NO_CURSOR


_NO_CURSOR = Problem("invalid", "This is not a cursor that a list gave out.", "cursor")


def _cursor_from(text: str | None, name: str) -> Any:
    if text is None:
        return None
    try:
        document = json.loads(base64.urlsafe_b64decode(text.encode()))
    except (binascii.Error, ValueError, RecursionError):
        raise _NO_CURSOR from None
    if not isinstance(document, dict) or set(document) != {name} or document[name] is None:
        raise _NO_CURSOR
    return document[name]
