"""Reports: everything about a population for a period, or about one release, as signed JSON or as HTML that prints."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response

from service import printed
from service.api.certificates import envelope_of
from service.api.context import Parts, Reader, Service, problems
from service.api.populations import Population
from service.api.releases import ReleaseId, owner_of
from service.errors import Problem
from service.operations import certificates, reports

router = APIRouter(prefix="/v1", tags=["evidence"])

Form = Annotated[Literal["json", "html"], Query(alias="format")]
_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = datetime(9000, 1, 1, tzinfo=UTC)
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The report, with an envelope that signs its digest",
        "content": {
            "application/json": {"schema": {"type": "object", "required": ["report", "envelope"]}},
            "text/html": {"schema": {"type": "string"}},
        },
    }
}


@router.get(
    "/populations/{population}/report",
    responses={**problems("not-found"), **_ANSWERS},
    response_class=Response,
    summary="Everything about a population for a period",
)
def of_population(
    population: Population,
    parts: Service,
    _actor: Reader,
    since: Annotated[datetime | None, Query(alias="from", description="its beginning, if left out; UTC")] = None,
    until: Annotated[datetime | None, Query(alias="to", description="not included; now, if left out; UTC")] = None,
    form: Form = "json",
) -> Response:
    """Policies in words, every entry, decisions with the reasons of refusals, budgets at the start and at the end,
    findings, certificates and checkpoints, and the method in plain words. It names nobody."""
    now = datetime.now(UTC)
    first, last = (None if each is None else _moment(each) for each in (since, until))
    last = last or now
    if first is not None and first >= min(now, last):
        raise Problem("invalid", "The period ends before it begins.", "from")
    report = reports.of_population(
        parts.database, population, since=first, until=last, now=now, certify=_certifier(parts)
    )
    return _answer(parts, report, form)


@router.get(
    "/releases/{release}/report",
    responses={**problems("not-found"), **_ANSWERS},
    response_class=Response,
    summary="Everything about one release",
)
def of_release(release: ReleaseId, parts: Service, _actor: Reader, form: Form = "json") -> Response:
    """What was asked, what was decided and why, what became of it, its findings and its certificate."""
    population = owner_of(parts, release)
    with parts.books.read(population) as book:
        has_left = book.releases[release].status in certificates.CERTIFIED
    # Its engines may take seconds, and need the book no more.
    certificate = _certifier(parts)(release) if has_left else None
    with parts.books.read(population) as book:
        report = reports.of_release(
            parts.database,
            book,
            release,
            now=datetime.now(UTC),
            certify=lambda each: certificate or _certifier(parts)(each),
        )
    return _answer(parts, report, form)


def _moment(given: datetime) -> datetime:
    """A time of the query: in UTC where it does not say, and one that a calendar can move about."""
    aware = given if given.tzinfo else given.replace(tzinfo=UTC)
    return min(max(aware, _EARLIEST), _LATEST)


def _certifier(parts: Parts) -> reports.Certify:
    def certify(release: str) -> tuple[bytes, Mapping[str, Any]]:
        content = envelope_of(parts, release)
        return content, json.loads(base64.b64decode(json.loads(content)["payload"]))["predicate"]

    return certify


def _answer(parts: Parts, report: Mapping[str, Any], form: str) -> Response:
    return printed.answer("report", reports.signed(parts.secrets, report), form)
