"""When ledgers were last verified, and what came of it: a note for people, and no evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from service.store.writer import stamp

if TYPE_CHECKING:
    from datetime import datetime

    from service.store.database import Database

# One that began earlier does not push out one that began later.
_REMEMBER = text(
    "INSERT INTO verification (population_id, at, entries, ok) "
    "SELECT id, CAST(:at AS timestamptz), :entries, :ok FROM population WHERE name = :name "
    "ON CONFLICT (population_id) DO UPDATE SET at = excluded.at, entries = excluded.entries, ok = excluded.ok "
    "WHERE verification.at <= excluded.at"
)
_LAST = text(
    "SELECT population.name, verification.at, verification.entries, verification.ok FROM verification "
    "JOIN population ON population.id = verification.population_id WHERE population.name = ANY(:names)"
)


def remember(database: Database, population: str, *, at: datetime, entries: int, ok: bool) -> None:
    """A verification that began at this time."""
    with database.transaction() as connection:
        connection.execute(_REMEMBER, {"name": population, "at": at, "entries": entries, "ok": ok})


def last(database: Database, populations: list[str]) -> dict[str, dict[str, Any]]:
    """The last of each, by name; those that were never verified are not there."""
    with database.transaction() as connection:
        rows = connection.execute(_LAST, {"names": populations}).all()
    return {row.name: {"at": stamp(row.at), "ok": row.ok, "entries": row.entries} for row in rows}
