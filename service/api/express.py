"""Proposals and commits, which come by the thousand, past the framework's router.

A request that is plain and valid is read by the same models and decided by the same operations as at its address in
`releases`. Every other one (a query, a key that was not seen lately, a body that is no proposal) goes on to that
address, and is answered there. What is saved is routing and the injection of dependencies, most of what such a request
costs.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from pydantic import ValidationError

from service.api import releases
from service.api.context import MOST_KEY_LENGTH, PROPOSERS, answered, decided
from service.schemas import Commit, NewRelease
from service.store.writer import Idempotency

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from service.api.context import Parts
    from service.operations.keys import Actor
    from service.store.writer import Answer

_COMMIT: Final = re.compile(r"/v1/releases/(rel_[0-9A-Z]{26})/commit")


class _Route(NamedTuple):
    """What metrics and logs call an address."""

    path: str


_PROPOSED, _COMMITTED = _Route("/v1/releases"), _Route("/v1/releases/{release}/commit")


class Express:
    """Pure ASGI, in front of the application."""

    def __init__(self, app: ASGIApp, parts: Parts) -> None:
        self._app, self._parts = app, parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        committed = None
        if (
            scope["type"] != "http"
            or scope["method"] != "POST"
            or scope["query_string"]
            or (scope["path"] != _PROPOSED.path and not (committed := _COMMIT.fullmatch(scope["path"])))
        ):
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        actor = self._actor(headers)
        key = headers.get(b"idempotency-key")
        if (
            actor is None
            or len(headers) < len(scope["headers"])  # which of two is meant is not decided here
            or headers.get(b"content-type") != b"application/json"
            or (key is not None and not 1 <= len(key) <= MOST_KEY_LENGTH)
        ):
            await self._app(scope, receive, send)
            return
        read = await _read(receive)
        body = b"".join(message.get("body", b"") for message in read)
        asked = f"POST {scope['path']}\n".encode() + body
        secret = self._parts.secrets.datapoints
        idempotency = key and Idempotency.of(actor=actor.id, key=key.decode("latin-1"), request=asked, secret=secret)
        # before the answer, since a refusal is logged as well
        scope["route"], scope["state"]["actor"] = _PROPOSED if committed is None else _COMMITTED, actor.id
        answer = await self._answer(body, actor, idempotency or None, committed)
        if answer is None:
            await self._app(scope, _again(read, receive), send)
            return
        await answered(answer)(scope, receive, send)

    def _actor(self, headers: dict[bytes, bytes]) -> Actor | None:
        """Who is asking, if that is remembered and they may."""
        scheme, _, secret = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        actor = self._parts.doorkeeper.remembered(secret.decode("latin-1"))
        return actor if actor is not None and actor.has(*PROPOSERS) else None

    async def _answer(
        self, body: bytes, actor: Actor, idempotency: Idempotency | None, committed: re.Match[str] | None
    ) -> Answer | None:
        """The answer, or None if the request is not plain."""
        try:
            document = json.loads(body)
            new = (NewRelease if committed is None else Commit).model_validate(document)
        except (ValueError, RecursionError, ValidationError):
            return None
        parts = self._parts
        if isinstance(new, NewRelease):
            if releases.names_anyone(new):
                return None  # that takes a thread
            proposal = releases.proposal_of(new, parts, actor)
            return await releases.proposed(parts, actor, new.population, proposal, idempotency)
        assert committed is not None
        release = committed[1]
        population = releases.remembered_owner(parts, release)
        if population is None:
            return None
        return await decided(parts, actor, population, releases.committing(release, new, actor), idempotency)


async def _read(receive: Receive) -> list[Message]:
    """All of a body; the limits were set further out."""
    read = [await receive()]
    while read[-1].get("more_body", False):
        read.append(await receive())
    return read


def _again(read: list[Message], receive: Receive) -> Receive:
    """What was read already, then what follows."""
    rest = iter(read)

    async def replayed() -> Message:
        message = next(rest, None)
        return await receive() if message is None else message

    return replayed
