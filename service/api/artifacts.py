"""/v1/releases/{release}/artifact and /card: what a job of ours made, for whoever has a key."""

from __future__ import annotations

from base64 import b64encode
from typing import Annotated, Any, BinaryIO, Literal

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from accountant.errors import InvalidInput
from service import published, staging
from service.api.context import Anyone, Parts, Service, problems
from service.api.releases import ReleaseId, body_of, owner_of
from service.errors import Problem
from service.operations import jobs
from service.published import Artifact
from trainers import cards
from trainers.catalog import mechanism as find_mechanism
from trainers.catalog.parameters import read

router = APIRouter(prefix="/v1/releases", tags=["artifacts"])
_BYTES = {"type": "string", "format": "binary"}
_HEADERS = {
    "ETag": "its sha256, between quotes",
    "Repr-Digest": "its sha256, as RFC 9530 spells it",
    "Content-Disposition": "a name for the file",
}


@router.get(
    "/{release}/artifact",
    responses={
        **problems("not-found", "conflict", "artifact-absent", "artifact-changed"),
        200: {
            "description": "The file, as it was committed",
            "content": {"application/octet-stream": {"schema": _BYTES}},
            "headers": {
                name: {"description": meaning, "schema": {"type": "string"}} for name, meaning in _HEADERS.items()
            },
        },
        304: {"description": "The caller has it already"},
    },
    response_class=Response,
    summary="The artifact of a release",
)
def artifact(
    release: ReleaseId,
    parts: Service,
    _actor: Anyone,
    if_none_match: Annotated[str | None, Header(max_length=1000)] = None,
) -> Response:
    """The safetensors file that a job made of it, once it is committed.

    All bytes that are announced arrive only if they have the digest of the ledger.
    """
    row, made = _made(parts, release)
    headers = {
        "ETag": f'"{made.sha256}"',
        "Repr-Digest": f"sha-256=:{b64encode(bytes.fromhex(made.sha256)).decode()}:",
        "Content-Disposition": f'attachment; filename="{release}.safetensors"',
    }
    if _has(if_none_match, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    root = parts.settings.artifacts_folder
    places = staging.places(root, release=release, job=row["id"], attempt=row["attempt"])
    return _Sent(made, published.opened(made, places), headers)


@router.get(
    "/{release}/card",
    responses={
        **problems("not-found", "conflict"),
        200: {
            "description": "The model card",
            "content": {
                "application/json": {"schema": {"type": "object"}},
                "text/markdown": {"schema": {"type": "string"}},
            },
        },
    },
    response_class=Response,
    summary="The model card of a release",
)
def card(
    release: ReleaseId,
    parts: Service,
    _actor: Anyone,
    form: Annotated[Literal["json", "md"], Query(alias="format")] = "json",
) -> Response:
    """What was promised to whom, and how it was made: written anew from the ledger, wherever the artifact is."""
    row, made = _made(parts, release)
    body = body_of(parts, release)
    try:
        mechanism = find_mechanism(row["mechanism"]["name"])
        parameters = read("parameters", mechanism.parameters, row["mechanism"]["parameters"])
    except InvalidInput:
        message = f"The catalog has no {row['mechanism']['name']!r} like that of release {release} any more."
        raise Problem("not-found", message) from None
    with parts.books.read(row["population"]) as book:
        unit, adjacency = book.unit, book.adjacency
        promise = {"epsilon": book.promise.epsilon, "delta": book.promise.delta}
    said = cards.card(
        mechanism,
        release=release,
        population=row["population"],
        unit=unit,
        adjacency=adjacency,
        parameters=parameters,
        recipe=row["recipe"],
        events=[charge["event"] for charge in body["charges"]],
        promise=promise,
    )
    whole = cards.of_file(said, sha256=made.sha256, size=made.bytes, releasable=True)  # or it were not committed
    if form == "md":
        return Response(cards.readable(whole), media_type="text/markdown")
    return JSONResponse(whole)


def _made(parts: Parts, release: str) -> tuple[dict[str, Any], Artifact]:
    """The job that committed a release, and what the ledger says of its artifact."""
    population = owner_of(parts, release)
    with parts.books.read(population) as book:
        row, kept = jobs.of_release(parts.database, book, release), book.releases[release].artifact
    if row is None:
        raise Problem("not-found", f"Release {release} is not of a job: what became of it is with whoever proposed it.")
    if row["status"] != "committed":
        raise Problem("conflict", f"Job {row['id']} is {row['status']}: release {release} has no artifact.")
    assert kept is not None, "a job commits with its artifact"
    return row, Artifact(release=release, sha256=kept["sha256"], bytes=kept["bytes"])


def _has(given: str | None, tag: str) -> bool:
    """Whether If-None-Match names what the caller would get (RFC 9110, 13.1.2)."""
    named = {each.strip().removeprefix("W/") for each in (given or "").split(",")}
    return bool(named & {tag, "*"})


class _Sent(StreamingResponse):
    """A file on its way, which is closed however that ends."""

    def __init__(self, made: Artifact, file: BinaryIO, headers: dict[str, str]) -> None:
        super().__init__(
            published.pieces(made, file),
            media_type="application/octet-stream",
            headers={**headers, "Content-Length": str(made.bytes)},
        )
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file:
            await super().__call__(scope, receive, send)
