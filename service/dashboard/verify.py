"""Verify: can a stranger check a certificate? The answer depends on the certificate alone, and nothing is looked up."""

from __future__ import annotations

from email.errors import MessageError
from email.parser import BytesParser
from email.policy import HTTP
from typing import TYPE_CHECKING, Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from accountant import certificates
from accountant.envelopes import MAX_BYTES
from accountant.guarantees import Guarantee
from service.api.context import parts_of
from service.dashboard.pages import HEADERS, rendered
from service.dashboard.visitors import Form, anybody, read_form
from service.errors import Problem
from service.operations.keys import Actor
from service.signing import is_signed

if TYPE_CHECKING:
    from collections.abc import Mapping

router = APIRouter()
_TITLE, _QUESTION = "Check a certificate", "Is this certificate genuine?"
_MULTIPART: Final = "multipart/form-data"
_FRAMES: Final = 4096  # what a form adds around a file


@router.get("/verify", include_in_schema=False)
def ask(request: Request, _actor: Actor | None = anybody) -> Response:
    """A form to paste into, or to send a file with; for anybody."""
    return rendered(request, "verify.html", title=_TITLE, question=_QUESTION, **_empty())


@router.get("/verify.json", include_in_schema=False)
def ask_as_json(request: Request) -> Response:
    """What the page shows: the key by which certificates are known. A program asks `POST /v1/verify` for a verdict."""
    key = parts_of(request).secrets.public_key.hex()
    return JSONResponse({"public_key": key, "verdict": None}, headers=dict(HEADERS))


@router.post("/verify", include_in_schema=False)
async def check(request: Request, _actor: Actor | None = anybody) -> Response:
    """The verdict. Who asks is not asked, nothing is written, and nothing but the certificate is told."""
    try:
        content = await _content(request)
    except Problem as problem:
        return rendered(
            request,
            "verify.html",
            title=_TITLE,
            question=_QUESTION,
            problem=problem,
            status=problem.kind.status,
            **_empty(),
        )
    trusted = [parts_of(request).secrets.public_key]
    verdict = await run_in_threadpool(certificates.verify, content, is_signed=is_signed, trusted=trusted)
    pasted = content.decode("utf-8", "replace")
    found = verdict.to_json()
    return rendered(
        request,
        "verify.html",
        title=_TITLE,
        question=_QUESTION,
        verdict=found,
        pasted=pasted,
        promises=_promises(found),
        mechanism=None if verdict.predicate is None else verdict.predicate["mechanism"],
    )


def _empty() -> dict[str, Any]:
    return {"verdict": None, "pasted": "", "promises": [], "mechanism": None}


def _promises(verdict: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a certificate that can be read promises: of this release alone, and for a whole life, each with its odds."""
    said = verdict["certificate"]
    if said is None:
        return []
    found = []
    for name in ("release", "lifelong"):
        given = said["guarantee"][name]
        odds = None
        if given["epsilon_upper"] is not None:
            odds = Guarantee(
                epsilon=given["epsilon_upper"], delta=given["delta"], unit=given["unit"],
                adjacency=given["adjacency"], proof_status="proved",
            ).odds()  # fmt: skip
        if odds is not None and name == "release":
            odds = odds.replace("has seen every release and", "has seen this release alone and")
        found.append({**given, "is_alone": name == "release", "odds": odds})
    return found


async def _content(request: Request) -> bytes:
    """The certificate that was sent: the file, if there is one, or what was pasted."""
    length = request.headers.get("content-length", "")
    if not length.isdecimal() or int(length) > 3 * MAX_BYTES + _FRAMES:  # pasted, every sign may take three
        raise Problem("too-large", f"A certificate has at most {MAX_BYTES:,} bytes.")
    if request.headers.get("content-type", "").lower().startswith(_MULTIPART):
        form, file = _parts(request.headers["content-type"], await request.body())
    else:
        form, file = await read_form(request), b""
    content = file or (form.text("certificate") or "").encode()
    if not content:
        raise Problem("invalid", "Paste a certificate, or choose its file.", "certificate")
    if len(content) > MAX_BYTES:
        raise Problem("too-large", f"A certificate has at most {MAX_BYTES:,} bytes.")
    return content


def _parts(kind: str, body: bytes) -> tuple[Form, bytes]:
    """The fields of a form that carries a file, and that file.

    A form of two fields needs no library: its parts are a MIME message, which the standard library reads.
    """
    try:
        message = BytesParser(policy=HTTP).parsebytes(b"Content-Type: " + kind.encode("latin-1") + b"\r\n\r\n" + body)
        found = {
            str(part.get_param("name", header="content-disposition")): part.get_payload(decode=True)
            for part in message.iter_parts()
        }
    except (MessageError, ValueError, LookupError, AttributeError, TypeError):
        raise Problem("invalid", "The form cannot be read.", "body") from None
    file, pasted = found.get("file"), found.get("certificate")
    words = pasted.decode("utf-8", "replace") if isinstance(pasted, bytes) else ""
    return Form({"certificate": [words]}), file if isinstance(file, bytes) else b""
