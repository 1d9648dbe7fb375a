"""System: is the machine healthy?"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Request
from sqlalchemy import Connection, text

from service.api import populations as populations_api
from service.api.context import Parts, Service
from service.dashboard.pages import Data, page
from service.dashboard.sessions import utc_now
from service.dashboard.visitors import as_in
from service.dashboard.words import duration, plural
from service.operations import jobs
from service.operations.keys import Actor
from service.printed import moment
from service.store.database import heads
from service.store.writer import stamp

router = APIRouter()
Reader = Annotated[Actor, as_in(populations_api.list_all)]
_OVERDUE = text(
    "SELECT count(*) AS holds, min(expires_at) AS since FROM hold "
    "WHERE expires_at < CAST(:now AS timestamptz) - make_interval(secs => :patience)"
)
_CHECKPOINT = text("SELECT number, at FROM checkpoint ORDER BY number DESC LIMIT 1")
_NEWEST = text(
    "SELECT max(entry.at) FROM population "
    "JOIN entry ON entry.population_id = population.id AND entry.number = population.number"
)
_SINCE = text("SELECT min(created_at) FROM api_key")  # the first thing that an installation makes
_SIZES = text("SELECT count(*) AS populations, coalesce(sum(number), 0) AS entries FROM population")
_SERVER = text("SELECT current_setting('server_version') AS version, pg_database_size(current_database()) AS bytes")


def checks(parts: Parts, now: datetime) -> list[dict[str, Any]]:
    """Whether decisions are made, the database is of this version, holds are expired and checkpoints are signed."""
    with parts.database.transaction() as connection:
        known, there = heads(connection)
        return [
            _check(
                "writer", parts.writer.is_alive, "Decisions are made.", "A writer has stopped: start the service again."
            ),
            _check(
                "database",
                known == there,
                f"PostgreSQL answers, and has the migrations of this version ({', '.join(there)}).",
                f"The database is at {', '.join(there) or 'nothing'}, and this version wants {', '.join(known)}: run "
                "`stint migrate`.",
            ),
            _swept(connection, parts, now),
            _signed(connection, parts, now),
        ]


@page(router, "/system", title="System", question="Is the machine healthy?", template="system.html")
def system(request: Request, parts: Service, _actor: Reader) -> Data:
    """Health, version, migrations, what the sweeper has left undone, and the age of the last checkpoint."""
    checked = checks(parts, utc_now())
    with parts.database.transaction() as connection:
        sizes = connection.execute(_SIZES).one()
        server = connection.execute(_SERVER).one()
    return {
        "is_healthy": all(each["ok"] for each in checked),
        "checks": checked,
        "version": request.app.version,
        "postgresql": {"version": server.version, "bytes": int(server.bytes)},
        "populations": int(sizes.populations),
        "entries": int(sizes.entries),
        "jobs": jobs.counts(parts.database),
        "public_key": parts.secrets.public_key.hex(),
        "settings": {
            "sweep_seconds": parts.settings.sweep_seconds,
            "checkpoint_seconds": parts.settings.checkpoint_seconds,
        },
    }


def _check(name: str, ok: bool, good: str, bad: str) -> dict[str, Any]:  # noqa: FBT001 - a verdict, not a mode
    return {"name": name, "ok": ok, "text": good if ok else bad}


def _swept(connection: Connection, parts: Parts, now: datetime) -> dict[str, Any]:
    """The sweeper works if no hold has been due for much longer than it takes to look."""
    patience = 3 * parts.settings.sweep_seconds + 10
    row = connection.execute(_OVERDUE, {"now": now, "patience": patience}).one()
    return _check(
        "sweeper",
        not row.holds,
        "No hold that ran out waits to be expired.",
        f"The sweeper is late: {plural(row.holds, 'hold')} ran out and still counts as held, since "
        f"{_moment(row.since)}. Nothing is lost by that. If it lasts, start the service again.",
    )


def _signed(connection: Connection, parts: Parts, now: datetime) -> dict[str, Any]:
    """The last checkpoint is as young as it should be, or nothing has happened since."""
    row = connection.execute(_CHECKPOINT).one_or_none()
    newest = connection.execute(_NEWEST).scalar_one_or_none()
    patience = 3 * parts.settings.checkpoint_seconds + 60
    if row is None:  # it is due so long after the first start, whatever the times in the ledger say
        waited = (now - connection.execute(_SINCE).scalar_one()).total_seconds()
        soon = f"The first checkpoint is signed within {duration(parts.settings.checkpoint_seconds)} of the start."
        return _check(
            "checkpoint",
            newest is None or waited <= patience,
            "There is nothing to sign yet." if newest is None else soon,
            f"No checkpoint has been signed yet, {duration(waited)} after the first key was made.",
        )
    behind = 0.0 if newest is None or newest <= row.at else (now - row.at).total_seconds()
    return _check(
        "checkpoint",
        behind <= patience,
        f"Checkpoint {row.number:,} was signed on {_moment(row.at)}.",
        f"Checkpoint {row.number:,} is the last, of {_moment(row.at)}, and entries came after it.",
    )


def _moment(at: datetime | None) -> str:
    return "now" if at is None else moment(stamp(at))
