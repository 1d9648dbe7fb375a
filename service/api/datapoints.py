"""/v1/populations/{population}/datapoints: registration, single datapoints, erasure."""

from __future__ import annotations

import csv
import json
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, BinaryIO, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from accountant.book import Book
from accountant.errors import InvalidInput
from service import parquet, printed
from service.api.context import (
    IdempotencyKey,
    Officer,
    Pipeline,
    Reader,
    Service,
    answered,
    decide,
    problems,
)
from service.api.populations import Population
from service.errors import Problem
from service.operations import datapoints, lives, statements
from service.operations.keys import Actor
from service.schemas import Key, NewDatapoints
from service.store.writer import Answer, stamp

router = APIRouter(prefix="/v1/populations/{population}/datapoints", tags=["datapoints"])

_LINE_BYTES = 16 * 1024
_spooling = threading.BoundedSemaphore(4)  # files on the disk at a time, each as long as an upload may be
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": NewDatapoints.model_json_schema(),
                "example": {"count": 100000},
            },
            "application/x-ndjson": {"schema": {"type": "string"}, "example": '{"key": "a"}\n{"key": "b"}\n'},
            "text/csv": {"schema": {"type": "string"}, "example": "key\na\nb\n"},
            parquet.MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}},
        },
    }
}
_FORMS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The statement",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/plain": {"schema": {"type": "string"}},
            "text/html": {"schema": {"type": "string"}},
        },
    }
}
Form = Annotated[Literal["json", "text", "html"], Query(alias="format")]


@router.post(
    "",
    status_code=201,
    responses=problems("not-found", "conflict", "unsupported", "key-reused"),
    openapi_extra=_BODY,
    summary="Register datapoints",
)
async def register(
    population: Population, request: Request, parts: Service, actor: Pipeline, key: IdempotencyKey = None
) -> JSONResponse:
    """`{"count": n}` of ordinals, or keys: a few as JSON, any number as NDJSON (`{"key": …}` a line) or CSV (a column
    `key`), read as they come, or as a Parquet file (a column `key`), read once it is all there. What is registered
    shows at once in the population's size; sent again, a key is known."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    match kind:
        case "application/json":
            try:
                new = NewDatapoints.model_validate_json(await request.body())
            except ValidationError as problem:
                first = problem.errors()[0]
                raise Problem("invalid", first["msg"], ".".join(map(str, first["loc"])) or "body") from None
            if (new.count is None) == (new.keys is None):
                raise Problem("invalid", "Send either a count or keys.", "count")
            if new.count is not None:
                operation = datapoints.register_count(new.count)
                return answered(await decide(request, parts, actor, population, operation, key))
            listed = new.keys or []
            at_once = key if len(listed) < datapoints.CHUNK else None  # one decision, which can be remembered
            return await _streamed(request, parts, actor, population, _listed(listed), at_once)
        case "application/x-ndjson" | "application/jsonl":
            return await _streamed(request, parts, actor, population, _from_ndjson(_lines(request)))
        case "text/csv":
            return await _streamed(request, parts, actor, population, _from_csv(_lines(request)))
        case parquet.MEDIA_TYPE:
            async with _spooled(request, parts) as file:
                return await _streamed(request, parts, actor, population, _from_parquet(file))
        case _:
            expected = f"application/json, application/x-ndjson, text/csv or {parquet.MEDIA_TYPE}"
            raise Problem("unsupported", f"The content type is {kind[:100]!r}; send {expected}.", "Content-Type")


async def _streamed(
    request: Request,
    parts: Service,
    actor: Actor,
    population: str,
    keys: AsyncIterator[tuple[str, str]],
    idempotency_key: str | None = None,
) -> JSONResponse:
    """Chunk by chunk, each durable before the next is read, so memory stays flat and nothing that was read is lost."""
    total = {"registered": 0, "known": 0, "returned": 0}
    last = Answer(status=201, document={})
    first: int | None = None
    chunk: list[bytes] = []

    async def flush() -> None:
        nonlocal last, first
        operation = datapoints.register_digests(list(chunk))
        last = await decide(request, parts, actor, population, operation, idempotency_key, uses_sql=True)
        first = last.document["first_ordinal"] if first is None else first
        for name in total:
            total[name] += last.document[name]
        chunk.clear()

    try:
        async for place, key in keys:
            try:
                chunk.append(datapoints.digest(parts.secrets.datapoints, population, key))
            except InvalidInput as problem:
                raise Problem("invalid", f"{place}: {problem}.", "key") from None
            if len(chunk) >= datapoints.CHUNK:
                await flush()
        await flush()
    except Problem as problem:
        if any(total.values()):
            problem.extra = {**problem.extra, "so_far": dict(total)}  # these are durable; to send all again is safe
        raise
    return answered(replace(last, document={**last.document, **total, "first_ordinal": first}))


@asynccontextmanager
async def _spooled(request: Request, parts: Service) -> AsyncIterator[BinaryIO]:
    """The body as a nameless file: a Parquet file is read from its end. It is at most as long as a request may be."""
    if not _spooling.acquire(blocking=False):
        raise Problem("busy", "Other files are being registered.")
    try:
        with tempfile.TemporaryFile(dir=parts.settings.data) as file:
            async for piece in request.stream():
                try:
                    await run_in_threadpool(file.write, piece)
                except OSError:
                    raise Problem("busy", "There is no room on the disk for this file.") from None
            yield file
    finally:
        _spooling.release()


async def _from_parquet(file: BinaryIO) -> AsyncIterator[tuple[str, str]]:
    chunks = parquet.keys(file)
    while (chunk := await run_in_threadpool(next, chunks, None)) is not None:
        for place, key in chunk:
            yield place, key


async def _listed(keys: list[str]) -> AsyncIterator[tuple[str, str]]:
    for number, key in enumerate(keys):
        yield f"keys[{number}]", key


async def _lines(request: Request) -> AsyncIterator[str]:
    rest = b""
    async for piece in request.stream():
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield _decoded(line)
        if len(rest) > _LINE_BYTES:
            raise Problem("invalid", f"A line is longer than {_LINE_BYTES} bytes.", "body")
    if rest:
        yield _decoded(rest)


def _decoded(line: bytes) -> str:
    try:
        return line.decode().rstrip("\r")
    except UnicodeDecodeError:
        raise Problem("invalid", "A line is not UTF-8.", "body") from None


async def _from_ndjson(lines: AsyncIterator[str]) -> AsyncIterator[tuple[str, str]]:
    number = 0
    async for line in lines:
        number += 1
        if not line.strip():
            continue
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            raise Problem("invalid", f"Line {number} is not JSON.", "body") from None
        if not isinstance(document, dict) or set(document) != {"key"} or not isinstance(document["key"], str):
            raise Problem("invalid", f'Line {number} is not {{"key": "…"}}.', "body")
        yield f"Line {number}", document["key"]


async def _from_csv(lines: AsyncIterator[str]) -> AsyncIterator[tuple[str, str]]:
    number, place = 0, -1
    async for line in lines:
        number += 1
        if not line.strip():
            continue
        if place < 0:
            line = line.removeprefix("\ufeff")  # noqa: PLW2901 - a mark of the encoding, which spreadsheets put there
        try:
            cells = next(csv.reader([line], strict=True))
        except csv.Error:  # such as a quoted line break, which would otherwise pass as two keys
            raise Problem("invalid", f"Line {number} is not a line of CSV by itself.", "body") from None
        if place < 0:
            if "key" not in cells:
                raise Problem("invalid", "The first line names the columns, and one of them must be `key`.", "body")
            place = cells.index("key")
        elif place >= len(cells):
            raise Problem("invalid", f"Line {number} has no `key`.", "body")
        else:
            yield f"Line {number}", cells[place]


@router.post(
    "/lookup", responses=problems("not-found", "gone"), summary="Everything released about one datapoint, by its key"
)
async def lookup(population: Population, wanted: Key, parts: Service, _actor: Reader) -> dict[str, Any]:
    """The key is in the body, since addresses are logged."""
    digest = datapoints.digest(parts.secrets.datapoints, population, wanted.key)
    ordinal = await run_in_threadpool(datapoints.find, parts.database, population, digest)
    return await run_in_threadpool(_shown, parts, population, ordinal)


@router.post("/erase", responses=problems("not-found", "key-reused"), summary="Forget a key")
async def erase(
    population: Population, wanted: Key, request: Request, parts: Service, actor: Officer, key: IdempotencyKey = None
) -> JSONResponse:
    """The key can no longer be looked up; what was released stays charged to whoever comes back with it."""
    operation = datapoints.erase(datapoints.digest(parts.secrets.datapoints, population, wanted.key))
    return answered(await decide(request, parts, actor, population, operation, key, uses_sql=True))


@router.get("/{ordinal}", responses=problems("not-found"), summary="Everything released about one datapoint")
def get(
    population: Population, ordinal: Annotated[int, Path(ge=0, lt=2**32)], parts: Service, _actor: Reader
) -> dict[str, Any]:
    """Its readings, its tasks, and every release that touched it."""
    return _shown(parts, population, ordinal)


def _shown(parts: Service, population: str, ordinal: int) -> dict[str, Any]:
    with parts.books.read(population) as book:
        charges = [
            each for body in lives.bodies(parts.database, book, ordinal) for each in _charges(book, body, ordinal)
        ]
        return datapoints.shown(book, ordinal, charges)


def _charges(book: Book, document: dict[str, Any], ordinal: int) -> list[dict[str, Any]]:
    """What this release charged to the datapoint; nothing if it was trimmed."""
    release = book.releases[document["release"]]
    touch = statements.touch_of(book, document, ordinal)
    return [
        {
            "release": release.id,
            "kind": release.kind,
            "status": release.status,
            "at": release.at,
            "event": document["charges"][int(number)]["event"],
        }
        for number in ([] if touch is None else touch.split(","))
    ]


# ---------------------------------------------------------------- statements


@router.get(
    "/{ordinal}/statement",
    responses={**problems("not-found"), **_FORMS},
    response_class=Response,
    summary="What has been released about one person, in plain words",
)
def statement(
    population: Population,
    ordinal: Annotated[int, Path(ge=0, lt=2**32)],
    parts: Service,
    _actor: Reader,
    form: Form = "json",
) -> Response:
    """To hand to that person: every release that may have used their data, what it costs at most, and what that means
    as attack odds. As JSON, as text or as HTML that prints."""
    return _stated(parts, population, ordinal, form)


@router.post(
    "/statement",
    responses={**problems("not-found", "gone"), **_FORMS},
    response_class=Response,
    summary="The same, by key",
)
async def statement_by_key(
    population: Population, wanted: Key, parts: Service, _actor: Reader, form: Form = "json"
) -> Response:
    """The key is in the body, since addresses are logged."""
    digest = datapoints.digest(parts.secrets.datapoints, population, wanted.key)
    ordinal = await run_in_threadpool(datapoints.find, parts.database, population, digest)
    return await run_in_threadpool(_stated, parts, population, ordinal, form)


def _stated(parts: Service, population: str, ordinal: int, form: str) -> Response:
    with parts.books.read(population) as book:
        bodies = lives.bodies(parts.database, book, ordinal)
        document = statements.statement(book, ordinal, bodies, at=stamp(datetime.now(UTC)))
    return printed.answer("statement", document, form)
