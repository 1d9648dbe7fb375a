"""Certificates: one for every release that left the house, and a public check of any."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from accountant import certificates as offline
from accountant.envelopes import MAX_BYTES
from service.api.context import Anyone, Parts, Service, problems
from service.api.releases import ReleaseId, body_of, owner_of
from service.errors import NotFound, Problem
from service.operations import audits, certificates
from service.signing import is_signed

router = APIRouter(prefix="/v1", tags=["evidence"])

ENVELOPE = "application/vnd.dsse.envelope.v1+json"
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["payload", "payloadType", "signatures"],
    "properties": {
        "payload": {"type": "string"},
        "payloadType": {"type": "string"},
        "signatures": {"type": "array", "items": {"type": "object"}},
    },
}


@router.get(
    "/releases/{release}/certificate",
    responses={
        **problems("not-found", "conflict"),
        200: {"description": "A DSSE envelope", "content": {ENVELOPE: {"schema": _SCHEMA}}},
    },
    response_class=Response,
    summary="A signed certificate",
)
def certificate(release: ReleaseId, parts: Service, _actor: Anyone) -> Response:
    """What is promised of a release that was committed, or that expired into spent, with proof that the ledger has it.

    Keep the bytes as they are. Anybody can check them offline (docs/evidence.md).
    """
    return Response(envelope_of(parts, release), media_type=ENVELOPE)


def envelope_of(parts: Parts, release: str) -> bytes:
    """The certificate of a release, as bytes."""
    body = body_of(parts, release)
    with parts.books.read(owner_of(parts, release)) as book:
        given = certificates.facts(book, release, body)
    entries = audits.entries_of(parts.database, release)
    return certificates.certificate(parts.database, parts.secrets, given, entries=entries, labels_of=_labels_of(parts))


def _labels_of(parts: Parts) -> Any:
    def find(release: str) -> str | None:
        try:
            with parts.books.read(owner_of(parts, release)) as book:
                artifact = book.releases[release].artifact
        except NotFound:
            return None
        return None if artifact is None else str(artifact["sha256"])

    return find


@router.post(
    "/verify",
    responses={status: said for status, said in problems().items() if status not in {401, 403}},
    openapi_extra={
        "security": [],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _SCHEMA}, ENVELOPE: {"schema": _SCHEMA}},
        },
    },
    summary="Is this certificate genuine?",
)
async def verify(request: Request, parts: Service) -> dict[str, Any]:
    """For anybody, without a key: send the certificate as it is. The answer depends on it alone, and on the public key
    of this installation, which is the one that is trusted here; nothing is looked up."""
    given = bytearray()
    async for piece in request.stream():
        given += piece
        if len(given) > MAX_BYTES:
            raise Problem("too-large", f"A certificate has at most {MAX_BYTES:,} bytes.")
    verdict = await run_in_threadpool(
        offline.verify, bytes(given), is_signed=is_signed, trusted=[parts.secrets.public_key]
    )
    return verdict.to_json()
