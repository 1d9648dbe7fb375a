"""The web application: `create_app(settings)` for a server, `serve(settings)` to run one."""

from __future__ import annotations

import logging
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from accountant.errors import AccountantError
from service import signing
from service.api import (
    artifacts,
    audits,
    certificates,
    datapoints,
    jobs,
    keys,
    ledger,
    mechanisms,
    populations,
    releases,
    reports,
    system,
)
from service.api.context import Parts
from service.api.express import Express
from service.dashboard import site
from service.dashboard.pages import problem_of
from service.dashboard.problem_pages import problem_page, wants_page
from service.dashboard.visitors import recall
from service.errors import Problem, field_at
from service.messenger import Messenger
from service.metrics import Metrics
from service.middleware import Gatehouse, PageOf, as_problem
from service.operations.keys import Doorkeeper
from service.store.books import Books
from service.store.database import Database, migrate
from service.store.embedded import embedded
from service.store.writer import Writer
from service.sweeper import Sweeper

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from starlette.types import Scope

    from service.settings import Settings

_log = logging.getLogger(__name__)
DESCRIPTION = """\
A ledger that knows, for every datapoint, everything that was ever released about it, and refuses the release that
would say too much. Every ε is an upper bound. Errors are RFC 9457 problems (docs/errors.md). A POST may carry an
`Idempotency-Key`: repeated under it, a request has one effect and the same answer, for ever.
"""


@contextmanager
def database_url(settings: Settings) -> Iterator[str]:
    """Where PostgreSQL is: as set, or embedded under the data folder."""
    if settings.database_url:
        yield settings.database_url
    else:
        with embedded(settings.data / "postgres") as url:
            yield url


@contextmanager
def running(settings: Settings, *, sweeps: bool = True) -> Iterator[Parts]:
    """All parts of the service, migrated and started; at the end, everything is finished and stopped in order."""
    with ExitStack() as stack:
        url = stack.enter_context(database_url(settings))
        migrate(url)
        metrics = Metrics()
        database = Database(url, settings)
        stack.callback(database.close)
        secrets = signing.load(settings.data)
        with database.transaction() as connection:
            signing.belongs(connection, secrets, settings.data)
        books = Books(database)
        writer = Writer(database, books, settings, metrics)
        stack.callback(writer.close)
        parts = Parts(
            settings=settings,
            database=database,
            books=books,
            writer=writer,
            doorkeeper=Doorkeeper(database),
            secrets=secrets,
            metrics=metrics,
        )
        if sweeps:
            stack.callback(Sweeper(parts).close)
            if settings.webhook_url:
                stack.callback(Messenger(parts).close)
        yield parts


def create_app(parts: Parts) -> FastAPI:
    """The application over parts that run already."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.parts = parts
        yield

    app = FastAPI(
        title="Stint", version="0.1.0", description=DESCRIPTION, lifespan=lifespan, docs_url=None, redoc_url=None,
        redirect_slashes=False,  # behind a proxy, the address to go on at would be http, and a key would follow there
    )  # fmt: skip
    app.state.parts = parts
    for module in (
        releases,
        jobs,
        audits,
        artifacts,
        populations,
        datapoints,
        ledger,
        certificates,
        reports,
        mechanisms,
        keys,
        system,
    ):  # the busiest is found first
        app.include_router(module.router)
    for router in site.ROUTERS:
        app.include_router(router)
    app.add_exception_handler(Problem, _answer_problem)
    app.add_exception_handler(AccountantError, _answer_problem)
    app.add_exception_handler(RequestValidationError, _answer_problem)
    app.add_exception_handler(HTTPException, _answer_problem)
    app.add_middleware(Express, parts=parts)
    app.add_middleware(Gatehouse, settings=parts.settings, metrics=parts.metrics, page=_page_of(app))
    return app


def _page_of(app: FastAPI) -> PageOf:
    """Problems that no handler sees, as pages."""

    def page(scope: Scope, problem: Problem) -> Response | None:
        return problem_page(Request({**scope, "app": app}), problem) if wants_page(scope) else None

    return page


async def _answer_problem(request: Request, failure: Exception) -> Response:
    problem = _problem_of(failure)
    if wants_page(request.scope):
        await run_in_threadpool(recall, request)
        is_unread = isinstance(failure, RequestValidationError)
        return problem_page(request, problem_of(failure) if is_unread else problem)
    headers = {"WWW-Authenticate": "Bearer"} if problem.kind.status == 401 else {}
    if problem.kind.status == 503:
        headers["Retry-After"] = "1"
    if isinstance(failure, HTTPException) and failure.headers:
        headers |= dict(failure.headers)
    return JSONResponse(
        problem.document(request.state.request_id),
        status_code=problem.kind.status,
        media_type="application/problem+json",
        headers=headers,
    )


def _problem_of(failure: Exception) -> Problem:
    match failure:
        case RequestValidationError():
            first: dict[str, Any] = dict(failure.errors()[0])
            where = [str(each) for each in field_at(first["loc"])]
            return Problem("invalid", f"{'.'.join(where) or 'body'}: {first['msg']}.", ".".join(where) or "body")
        case HTTPException() if isinstance(failure.__cause__, Problem):
            return failure.__cause__  # the framework calls everything that stops a body a fault in it
        case HTTPException(status_code=404):
            return Problem("not-found", "There is nothing at this address.")
        case HTTPException(status_code=405):
            return Problem("not-allowed", "This address has no such method.")
        case HTTPException():
            return Problem("invalid", str(failure.detail))
        case _:
            return as_problem(failure)
