"""Connections, transactions and migrations: one PostgreSQL, reached as a role that cannot change the ledger."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import make_url

import migrations
from service.store import tickets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from service.settings import Settings

ROLE: Final = "stint_service"
_MIGRATION_LOCK: Final = 0x5749_4E54  # any number that nobody else uses
_LOCK_SECONDS, _MIGRATION_SECONDS = 10, 600


class Database:
    """A pool of connections; `transaction` commits at the end of its block or not at all."""

    def __init__(self, url: str, settings: Settings) -> None:
        plain = make_url(url).set(drivername="postgresql")
        self.url = plain.render_as_string(hide_password=False)  # for the driver
        limits = {
            "statement_timeout": settings.statement_seconds,
            # A process that is suspended or cut off in the middle of a transaction would keep its locks for ever.
            "idle_in_transaction_session_timeout": settings.pause_seconds,
        }
        asked = [f"-c {name}={int(seconds * 1000)}" for name, seconds in limits.items()]
        options = " ".join([str(plain.query.get("options", "")), *asked]).strip()
        self.engine = _engine(
            url,
            pool_size=settings.connections,
            max_overflow=0,
            pool_timeout=30,
            pool_pre_ping=True,
            connect_args={"connect_timeout": 10, "options": options},
        )

        @event.listens_for(self.engine, "connect")
        def work_as_the_service(connection: Any, _: object) -> None:
            with connection.cursor() as cursor:
                cursor.execute(f"SET ROLE {ROLE}")
            connection.commit()

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One transaction, committed at the end of the block."""
        with self.engine.begin() as connection:
            yield connection

    def close(self) -> None:
        """Give all connections back."""
        self.engine.dispose()


def _engine(url: str, **options: Any) -> Engine:
    return create_engine(make_url(url).set(drivername="postgresql+psycopg"), **options)


def _scripts() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.set_main_option("path_separator", "os")
    return config


def migrate(url: str) -> None:
    """Bring the database up to date; whoever comes second waits and finds nothing to do."""
    engine = _engine(url)
    try:
        with engine.connect() as connection:
            connection.execute(text(f"SET statement_timeout = '{_MIGRATION_SECONDS}s'"))
            connection.execute(text("SELECT pg_advisory_lock(:lock)"), {"lock": _MIGRATION_LOCK})
            connection.execute(text(f"SET lock_timeout = '{_LOCK_SECONDS}s'"))
            connection.commit()
            try:
                config = _scripts()
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
                connection.commit()
                tickets.install(connection, role=ROLE)
                connection.commit()
            finally:
                connection.rollback()
                connection.execute(text("SELECT pg_advisory_unlock(:lock)"), {"lock": _MIGRATION_LOCK})
                connection.commit()
    finally:
        engine.dispose()


def is_current(connection: Connection) -> bool:
    """Whether the database has exactly the migrations that this code knows."""
    known, there = heads(connection)
    return known == there


def heads(connection: Connection) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The newest migrations that this code knows, and those that the database has."""
    known = tuple(ScriptDirectory.from_config(_scripts()).get_heads())
    return known, tuple(MigrationContext.configure(connection).get_current_heads())
