"""What happens to every request: an id, limits, a measured and logged answer, and a problem for every failure."""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from itertools import count
from typing import TYPE_CHECKING, Final, TypeAlias

import psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from accountant.errors import AccountantError, InvalidInput
from service.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from service.metrics import Metrics
    from service.settings import Settings

_log = logging.getLogger("service.requests")
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
_UPLOAD: Final = re.compile(r"/v1/populations/[^/]+/datapoints")
_RETRY_SECONDS: Final = b"1"
#: A problem as a page, for a browser that asked for one; None for everybody else.
PageOf: TypeAlias = "Callable[[Scope, Problem], Response | None]"


class Gatehouse:
    """Pure ASGI, so that a stream stays a stream."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics, page: PageOf) -> None:
        self._app, self._settings, self._metrics, self._page = app, settings, metrics, page
        self._in_flight = 0
        self._first, self._count = secrets.token_hex(6), count(1)

    def _new_id(self) -> str:
        """Of this process alone; nothing needs it to be hard to guess, and fresh chance would cost a system call."""
        return f"{self._first}{next(self._count):08x}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        request_id = given if given and _REQUEST_ID.fullmatch(given) else self._new_id()
        scope.setdefault("state", {})["request_id"] = request_id
        started, status = time.perf_counter(), 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id.encode())]
            await send(message)

        self._in_flight += 1
        self._metrics.in_flight.set(self._in_flight)
        try:
            if self._in_flight > self._settings.requests:
                raise Problem("busy", "Too many requests are being answered.")  # noqa: TRY301
            await self._app(scope, self._limited(scope, headers, receive), answer)
        except Exception as failure:  # noqa: BLE001 - every failure has an answer
            problem = as_problem(failure)
            if problem.name == "internal":
                _log.error("failed", exc_info=failure, extra={"fields": {"request_id": request_id}})
            if problem.name == "unavailable":  # by its class: the text may hold what was to be stored
                error = type(getattr(failure, "orig", None) or failure).__name__
                _log.error("the database failed", extra={"fields": {"request_id": request_id, "error": error}})
            if not status:
                page = self._page(scope, problem)
                if page is None:
                    await _send_problem(problem, request_id, answer)
                else:
                    await page(scope, receive, answer)
        finally:
            self._in_flight -= 1
            self._metrics.in_flight.set(self._in_flight)
            route = getattr(scope.get("route"), "path", "none")
            seconds = time.perf_counter() - started
            self._metrics.requests.labels(scope["method"], route, status).inc()
            self._metrics.seconds.labels(route).observe(seconds)
            _log.info(
                "answered",
                extra={
                    "fields": {
                        "request_id": request_id, "method": scope["method"], "route": route, "status": status,
                        "milliseconds": round(seconds * 1000, 2), "actor": scope["state"].get("actor"),
                    }
                },
            )  # fmt: skip

    def _limited(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> Receive:
        """A body that is longer than it may be is refused as soon as that shows."""
        upload = bool(_UPLOAD.fullmatch(scope["path"])) and not headers.get(b"content-type", b"").startswith(
            b"application/json"
        )
        most = self._settings.upload_bytes if upload else self._settings.body_bytes
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and float(declared) > most:  # of any number of digits
            raise Problem("too-large", f"The request has more than {most:,} bytes.")
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > most:
                raise Problem("too-large", f"The request has more than {most:,} bytes.")
            return message

        return counted


def as_problem(failure: Exception) -> Problem:
    """What a request is told of a failure; what it was is in the log."""
    if isinstance(failure, Problem):
        return failure
    if isinstance(failure, AccountantError):
        return Problem("invalid", str(failure), failure.argument if isinstance(failure, InvalidInput) else None)
    if isinstance(failure, DBAPIError | PoolTimeout | psycopg.Error):
        return Problem("unavailable", "The database cannot be reached, or took too long.")
    return Problem("internal", "Something went wrong that should not; nothing of the request was recorded.")


async def _send_problem(problem: Problem, request_id: str, send: Send) -> None:
    body = json.dumps(problem.document(request_id)).encode()
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode())]
    if problem.kind.status == 503:
        headers.append((b"retry-after", _RETRY_SECONDS))
    if problem.kind.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": problem.kind.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
