"""What every address needs: the parts of the running service, who is asking, and how an operation is awaited."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, get_args, get_type_hints

from fastapi import Depends, Header, Request, params
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
    unswept: set[str] = field(default_factory=set)  # populations that are being made up: their holds ran out long ago

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


MOST_KEY_LENGTH = 200
Service = Annotated[Parts, Depends(_service)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=MOST_KEY_LENGTH,
        description="A name for this request: repeated under it, it has one effect and the same answer.",
    ),
]


def requires(*roles: str) -> Any:
    """The actor, who must have one of these roles."""

    async def actor(request: Request) -> Actor:
        return must_have(await bearer(request), roles)

    _ROLES[actor] = roles
    return Depends(actor)


_ROLES: dict[object, tuple[str, ...]] = {}


async def bearer(request: Request) -> Actor:
    """Whoever sends a key with the request."""
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not secret.startswith("sk_"):
        raise Problem("unauthorized", "This address needs a key.")
    parts = parts_of(request)
    found = parts.doorkeeper.remembered(secret)
    if found is None:
        found = await run_in_threadpool(parts.doorkeeper.admit, secret)
    request.state.actor = found.id
    return found


def must_have(actor: Actor, roles: Sequence[str]) -> Actor:
    """Refuse an actor who has none of these roles; if there are none, anybody may."""
    if roles and not actor.has(*roles):
        raise Problem("forbidden", f"This needs a key with one of the roles: {', '.join((*roles, 'admin'))}.")
    return actor


@cache
def roles_of(route: Callable[..., object]) -> tuple[str, ...]:
    """The roles that an address asks for, so that whoever shows the same elsewhere asks for the same."""
    for annotation in get_type_hints(route, include_extras=True).values():
        for each in get_args(annotation):
            if isinstance(each, params.Depends) and each.dependency in _ROLES:
                return _ROLES[each.dependency]
    raise LookupError(f"{route} lets anybody in")


Anyone = Annotated[Actor, requires()]
PROPOSERS = ("pipeline", "officer")
Pipeline = Annotated[Actor, requires(*PROPOSERS)]
Officer = Annotated[Actor, requires("officer")]
Reader = Annotated[Actor, requires("officer", "auditor")]
Auditor = Annotated[Actor, requires("auditor", "officer")]
Auditing = Annotated[Actor, requires("pipeline", "officer", "auditor")]
Trusted = Annotated[Actor, requires("worker", "officer", "auditor")]
Admin = Annotated[Actor, requires("admin")]


async def idempotency_of(request: Request, actor: Actor, key: str | None, *, suffix: str = "") -> Idempotency | None:
    """Under which name, and for what, a request is remembered."""
    if key is None:
        return None
    asked = f"{request.method} {request.url.path}{suffix}\n".encode() + await request.body()
    secret = parts_of(request).secrets.datapoints
    return Idempotency.of(actor=actor.id, key=key + suffix, request=asked, secret=secret)


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
    return await decided(parts, actor, population, operation, idempotency, uses_sql=uses_sql)


async def decided(
    parts: Parts,
    actor: Actor,
    population: str,
    operation: Decide,
    idempotency: Idempotency | None,
    *,
    uses_sql: bool = False,
) -> Answer:
    """Queue an operation under the name that the request goes by, and wait until its outcome is durable."""
    queued = Operation(
        population=population, actor=actor.id, decide=operation, idempotency=idempotency, uses_sql=uses_sql
    )
    try:
        async with asyncio.timeout(_DECISION_SECONDS):
            return await parts.writer.decision(queued)
    except TimeoutError:  # the decision may still be made: their key will find out
        raise Problem("busy", "The decision takes too long; whether it was made is not known yet.") from None


def answered(answer: Answer) -> JSONResponse:
    """An answer over HTTP; one that was given before says so."""
    headers = {"Idempotent-Replayed": "true"} if answer.replayed else None
    return _Json(answer.document, status_code=answer.status, headers=headers)


class _Json(JSONResponse):
    """The same bytes by an encoder that is made once."""

    def render(self, content: Any) -> bytes:
        return _ENCODER.encode(content).encode()


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


def must_allow_names(parts: Parts, population: str) -> None:
    """Refuse a pipeline that names single datapoints, unless the policy lets it."""
    with parts.books.read(population) as book:
        if not book.policy.named_scopes:
            raise Problem("forbidden", "The policy lets pipelines name no single datapoints.", "scope")


MAX_PAGE = 1000
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_DECISION_SECONDS = 120
