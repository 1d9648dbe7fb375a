"""Report: what do I hand to the regulator?"""

from __future__ import annotations

from datetime import MAXYEAR, UTC, date, datetime, timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response

from service.api import reports as reports_api
from service.api.context import Service
from service.api.populations import Population
from service.dashboard.pages import Data, Refused, address, page
from service.dashboard.sessions import utc_now
from service.dashboard.visitors import as_in
from service.errors import Problem
from service.operations.keys import Actor

router = APIRouter()
Reader = Annotated[Actor, as_in(reports_api.of_population)]
_MONTHS = ("January to March", "April to June", "July to September", "October to December")


@page(
    router,
    "/populations/{population}/report",
    title=lambda data: f"Report on {data['population']}",
    question="What do I hand to the regulator?",
    template="report.html",
)
def choose(
    population: Population,
    parts: Service,
    _actor: Reader,
    since: Annotated[str, Query(alias="from", max_length=1000)] = "",
    until: Annotated[str, Query(alias="to", max_length=1000)] = "",
) -> Data | Refused:
    """A period, and where its document is."""
    today = utc_now().date()
    with parts.books.read(population) as book:
        created_at, entries = book.created_at, book.number
    data: Data = {
        "population": population,
        "created_at": created_at,
        "entries": entries,
        "query": {"from": since, "to": until},
        "goes_on": False,
        "documents": None,
        "quarters": [
            {**each, "to_page": address(f"/populations/{population}/report", **each["period"])}
            for each in _quarters(today, created_at)
        ],
    }
    try:
        first, last = _day("from", since), _day("to", until)
        if first is not None and last is not None and first > last:
            raise Problem("invalid", "The period ends before it begins.", "from")  # noqa: TRY301
    except Problem as problem:
        return Refused(data=data, problem=problem)
    if first is not None or last is not None:
        data["query"] = {name: "" if day is None else day.isoformat() for name, day in (("from", first), ("to", last))}
        data["documents"] = documents(population, first, last)
        data["goes_on"] = last is not None and last >= today
    return data


def documents(population: str, first: date | None, last: date | None) -> dict[str, str]:
    """Where the report of a period is, for people and for machines, and how a terminal gets it. It has the last day."""
    after = None if last is None else last + timedelta(days=1)
    path = f"/populations/{population}/report/document"
    query = {
        "from": None if first is None else first.isoformat(),
        "to": None if after is None else after.isoformat(),
    }
    return {
        "html": address(path, **query),
        "json": address(path, **query, format="json"),
        "command": " ".join(
            [
                f"stint export {population} --report",
                *(f"--{name} {day}" for name, day in query.items() if day),
                "--format html",
            ]
        ),
    }


def _quarters(today: date, created_at: str) -> list[Data]:
    """The last four quarters, this one first; those before the population was made are left out."""
    year, quarter = today.year, (today.month - 1) // 3
    found = []
    for _ in range(4):
        start = date(year, 3 * quarter + 1, 1)
        end = (date(year + 1, 1, 1) if quarter == 3 else date(year, 3 * quarter + 4, 1)) - timedelta(days=1)
        if end.isoformat() >= created_at[:10]:
            found.append(
                {
                    "title": f"{_MONTHS[quarter]} {year}",
                    "period": {"from": start.isoformat(), "to": end.isoformat()},
                    "is_over": end < today,
                }
            )
        year, quarter = (year - 1, 3) if quarter == 0 else (year, quarter - 1)
    return found


def _day(name: str, words: str) -> date | None:
    if not words:
        return None
    try:
        day = date.fromisoformat(words)
    except ValueError:
        raise Problem("invalid", f"{words!r} is not a day: write it like 2026-03-31.", name) from None
    if day.year == MAXYEAR:  # a period ends on the day after its last, which calendars must have
        raise Problem("invalid", f"{day} is too late.", name)
    return day


@router.get("/populations/{population}/report/document.json", include_in_schema=False, tags=["document"])
def signed(
    population: Population,
    parts: Service,
    actor: Reader,
    since: Annotated[datetime | None, Query(alias="from")] = None,
    until: Annotated[datetime | None, Query(alias="to")] = None,
) -> Response:
    """The same, signed, as JSON."""
    return document(population, parts, actor, since=since, until=until, form="json")


@router.get("/populations/{population}/report/document", include_in_schema=False, tags=["document"])
def document(
    population: Population,
    parts: Service,
    actor: Reader,
    since: Annotated[datetime | None, Query(alias="from")] = None,
    until: Annotated[datetime | None, Query(alias="to")] = None,
    form: Annotated[Literal["html", "json"], Query(alias="format")] = "html",
) -> Response:
    """The report itself, as the REST address gives it: signed, and whole in one file that prints."""
    until = None if until is None else until if until.tzinfo else until.replace(tzinfo=UTC)
    return reports_api.of_population(population, parts, actor, since=since, until=until, form=form)
