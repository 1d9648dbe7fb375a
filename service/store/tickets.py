"""The queue of jobs: procrastinate, in the same PostgreSQL as the ledger.

A ticket is procrastinate's row that says that a job, or an audit, waits. It is written in the transaction that holds
the budget or plans the audit, so there is never one without the other. That a worker has a ticket gives it no right to
anything: whether it may run a job, and whether what it made may be committed, is decided by the job's own row.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
from procrastinate import App, PsycopgConnector, SyncPsycopgConnector
from procrastinate.schema import SchemaManager
from sqlalchemy import text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

TASK: Final = "stint.job"
_waiting = App(connector=SyncPsycopgConnector())  # never opened: it writes on the connection that it is given
_TABLES: Final = (
    "procrastinate_jobs", "procrastinate_events", "procrastinate_workers", "procrastinate_periodic_defers",
)  # fmt: skip
_VERSION = text("SELECT obj_description(to_regclass('procrastinate_jobs'))")
_LATER = text("SELECT now() + make_interval(secs => :delay)")
_NEXT = text(
    "SELECT extract(epoch FROM min(coalesce(scheduled_at, now())) - now()) FROM procrastinate_jobs "
    "WHERE status = 'todo' AND queue_name = ANY(:queues)"
)
_REMOVE = text("DELETE FROM procrastinate_jobs WHERE id = :ticket AND status = 'todo'")
_TIDY = text(
    "DELETE FROM procrastinate_jobs ticket WHERE status = 'doing' AND worker_id IS NULL "
    "AND NOT EXISTS (SELECT FROM job WHERE job.ticket = ticket.id) "
    "AND NOT EXISTS (SELECT FROM audit WHERE audit.ticket = ticket.id)"
)
_SAID: Final = "of Stint, as of "


def install(connection: Connection, *, role: str) -> None:
    """Procrastinate's tables as the installed version wants them, and the rights that the service needs on them.

    They are made by procrastinate's own SQL and brought up to date by its own migrations. A comment on a table says
    which of those it has.
    """
    steps = sorted(Path(SchemaManager.get_migrations_path()).glob("*.sql"))
    newest = steps[-1].stem
    said = connection.execute(_VERSION).scalar_one()
    if said == _SAID + newest:
        return
    if said is None:
        _run(connection, SchemaManager.get_schema())
    else:
        for step in steps:
            if step.stem > said.removeprefix(_SAID):
                _run(connection, step.read_text(encoding="utf-8"))
    _run(connection, f"COMMENT ON TABLE procrastinate_jobs IS '{_SAID}{newest}'")
    for table in _TABLES:
        _run(connection, f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {role}")
        _run(connection, f"GRANT USAGE ON SEQUENCE {table}_id_seq TO {role}")


def _run(connection: Connection, statements: str) -> None:
    raw(connection).execute(statements.encode())


def raw(connection: Connection) -> psycopg.Connection[Any]:
    """The driver's own connection, in the same transaction."""
    found = connection.connection.driver_connection
    assert isinstance(found, psycopg.Connection)
    return found


def queue_name(queue: str, device: str) -> str:
    """Where a job for a device waits."""
    return f"{queue}@{device}"


def queue_names(queue: str, device: str) -> list[str]:
    """Where a worker with this device looks: `cuda:1` takes what asks for just that, or for any `cuda`."""
    return [queue_name(queue, each) for each in dict.fromkeys((device, device.partition(":")[0]))]


def put(connection: Connection, *, job: str, queue: str, device: str, delay_seconds: float = 0.0) -> int:
    """A new ticket for a job or an audit, in the transaction of this connection; nobody takes it before the delay ends.

    When that is says the clock of the database, by which tickets are taken.
    """
    later = connection.execute(_LATER, {"delay": delay_seconds}).scalar_one() if delay_seconds else None
    waiting = _waiting.configure_task(
        TASK, queue=queue_name(queue, device), connection=raw(connection), schedule_at=later
    )
    return waiting.defer(job=job)


def next_in(connection: Connection, queues: Sequence[str]) -> float | None:
    """In how many seconds a ticket in these queues may be taken; None if there is none."""
    seconds = connection.execute(_NEXT, {"queues": list(queues)}).scalar_one()
    return None if seconds is None else float(seconds)


def remove(connection: Connection, ticket: int | None) -> None:
    """A ticket that means nothing any more, unless a worker took it: that one will find out at the job's row."""
    if ticket is not None:
        connection.execute(_REMOVE, {"ticket": ticket})


def tidy(connection: Connection) -> None:
    """Forget tickets that workers took which are gone, and whose jobs have others."""
    connection.execute(_TIDY)


def app(url: str, *, role: str, pause_seconds: float, wait_seconds: float) -> App:
    """Procrastinate for a worker, with connections of its own that work as the service's role and keep no locks.

    Whoever waits longer for one is told that the database is away.
    """

    async def work_as_the_service(connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute(f"SET ROLE {role}".encode())
        await connection.execute(f"SET idle_in_transaction_session_timeout = {int(pause_seconds * 1000)}".encode())
        await connection.commit()

    return App(
        connector=PsycopgConnector(
            conninfo=url, min_size=1, max_size=4, configure=work_as_the_service, timeout=wait_seconds
        )
    )
