"""The database: migrations and tables agree, what is written stays, and any PostgreSQL will do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from psycopg import sql
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.engine import make_url

from service import app, signing
from service.operations import keys
from service.settings import Settings
from service.store import database, tables
from tests.service.fixtures_behaviour import House, short_folder

pytest_plugins = ("tests.service.fixtures_behaviour",)


@contextmanager
def empty_database(house: House, name: str) -> Iterator[str]:
    """The URL of a database of its own on the same server."""
    with house.superuser() as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        yield make_url(house.database_url).set(database=name).render_as_string(hide_password=False)
    finally:
        with house.superuser() as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def engine_of(url: str) -> Iterator[Engine]:
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
    try:
        yield engine
    finally:
        engine.dispose()


def _ours(_object: object, name: str | None, kind: str, *_: object) -> bool:
    """Whether it is ours to declare: the tables of the queue are procrastinate's."""
    return not (kind == "table" and str(name).startswith("procrastinate_"))


def test_migrations_make_exactly_the_declared_tables(house: House) -> None:
    with engine_of(house.database_url) as engine, engine.connect() as connection:
        opts = {"compare_type": True, "compare_server_default": True, "include_schemas": False, "include_object": _ours}
        context = MigrationContext.configure(connection, opts=opts)
        assert compare_metadata(context, tables.metadata) == []


def test_the_comparison_would_notice_a_difference(house: House) -> None:
    with engine_of(house.database_url) as engine, engine.connect() as connection:
        connection.execute(text("ALTER TABLE entry ALTER COLUMN kind TYPE varchar(500)"))
        connection.execute(text("ALTER TABLE hold ADD COLUMN note text"))
        context = MigrationContext.configure(connection, opts={"compare_type": True, "include_object": _ours})
        assert len(compare_metadata(context, tables.metadata)) == 2
        connection.rollback()


def test_constraints_and_keys_are_those_declared(house: House) -> None:
    with engine_of(house.database_url) as engine, engine.connect() as connection:
        for table in tables.metadata.tables.values():
            found = connection.execute(
                text(
                    "SELECT conname FROM pg_constraint WHERE conrelid = CAST(:t AS regclass) AND contype IN ('p','u')"
                ),
                {"t": table.name},
            )
            declared = {str(each.name) for each in table.constraints if each.name and "fkey" not in str(each.name)}
            assert declared <= set(found.scalars()) | {f"{table.name}_pkey"}


def test_every_table_that_only_grows_has_its_trigger(house: House) -> None:
    with house.superuser() as connection:
        found = connection.execute(
            "SELECT c.relname, t.tgenabled, t.tgtype FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid "
            "WHERE t.tgname = 'only_grows'"
        ).fetchall()
    assert {name for name, _, _ in found} == set(tables.ONLY_GROW)
    before, delete, update, truncate = 2, 8, 16, 32
    for _, enabled, kind in found:
        assert enabled == "O"
        assert kind & before
        assert kind & delete
        assert kind & update
        assert kind & truncate


STATEMENTS = {
    "UPDATE": "UPDATE {table} SET {column} = {column}",
    "DELETE": "DELETE FROM {table}",
    "TRUNCATE": "TRUNCATE {table} CASCADE",
}


@pytest.mark.parametrize("word", STATEMENTS)
@pytest.mark.parametrize("table", tables.ONLY_GROW)
@pytest.mark.parametrize("role", ["superuser", database.ROLE])
def test_what_is_written_stays(house: House, table: str, word: str, role: str) -> None:
    statement = STATEMENTS[word].format(table=table, column=list(tables.metadata.tables[table].columns)[-1].name)
    with house.superuser() as connection:
        if role != "superuser":
            connection.execute(f"SET ROLE {role}".encode())
        # A statement trigger speaks even where there is no row; the role is stopped before it.
        error = psycopg.errors.RestrictViolation if role == "superuser" else psycopg.errors.InsufficientPrivilege
        with pytest.raises(error):
            connection.execute(statement.encode())


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM population",
        "DELETE FROM datapoint",
        "DELETE FROM api_key",
        "UPDATE hold SET expires_at = NULL",
        "UPDATE cohort SET datapoints = 0",
        "UPDATE job SET release = release",
        "UPDATE job SET data = data",
        "DELETE FROM job",
        "DELETE FROM job_line",
        "UPDATE job_line SET error = NULL",
        "ALTER TABLE entry DISABLE TRIGGER only_grows",
        "DROP TABLE hold",
        "CREATE TABLE planted (a int)",
        "UPDATE alembic_version SET version_num = '0'",
        "SET session_replication_role = replica",
    ],
)
def test_the_role_of_the_service_can_do_no_more_than_it_must(house: House, statement: str) -> None:
    with house.superuser() as connection:
        connection.execute(f"SET ROLE {database.ROLE}".encode())
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(statement.encode())


def test_every_connection_of_the_service_has_that_role(house: House) -> None:
    with house.parts.database.transaction() as connection:
        assert connection.execute(text("SELECT current_user")).scalar_one() == database.ROLE


def test_two_that_migrate_at_once_make_one_database(house: House) -> None:
    with empty_database(house, "migrated_twice") as url:
        failures: list[Exception] = []

        def migrate() -> None:
            try:
                database.migrate(url)
            except Exception as problem:  # noqa: BLE001 - whatever it is, the test must hear of it
                failures.append(problem)

        threads = [threading.Thread(target=migrate) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        database.migrate(url)
        with engine_of(url) as engine, engine.connect() as connection:
            assert database.is_current(connection)
            held = connection.execute(text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")).scalar_one()
            assert held == 0


def test_a_migration_waits_a_limited_time_for_the_one_before(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_MIGRATION_SECONDS", 1)
    with empty_database(house, "locked") as url, psycopg.connect(url, autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(%s)", (database._MIGRATION_LOCK,))
        with pytest.raises(Exception, match="statement timeout"):
            database.migrate(url)


def test_a_service_runs_on_a_server_that_is_named(house: House) -> None:
    with empty_database(house, "elsewhere") as url, short_folder() as folder:
        settings = Settings(database_url=url, data=folder)
        with app.running(settings, sweeps=False) as parts:
            assert not (folder / "postgres").exists()
            first = keys.ensure_first(parts.database)
            assert first is not None
            assert first.startswith("sk_")
            assert keys.ensure_first(parts.database) is None
            with parts.database.transaction() as connection:
                assert database.is_current(connection)
        assert signing.load(folder).public_key == parts.secrets.public_key, "made once, then read"
        assert (folder / "secrets.json").stat().st_mode & 0o077 == 0


def test_two_first_starts_make_one_admin_key(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    # Whoever has looked is slow to insert: time enough for the others to look as well.
    monkeypatch.setattr(keys, "_INSERT", text(f"{keys._INSERT} RETURNING pg_sleep(0.3)"))
    with (
        empty_database(house, "first_twice") as url,
        short_folder() as folder,
        app.running(Settings(database_url=url, data=folder), sweeps=False) as parts,
    ):
        with ThreadPoolExecutor(3) as threads:
            secrets = list(threads.map(keys.ensure_first, [parts.database] * 3))
        assert len([secret for secret in secrets if secret is not None]) == 1
        assert len(keys.listed(parts.database, after="", limit=10)) == 1


def test_a_database_of_another_version_is_not_ready(house: House) -> None:
    assert house.as_(None).get("/readyz") == {"status": "ready"}
    with house.superuser() as connection:
        [(version,)] = connection.execute("SELECT version_num FROM alembic_version").fetchall()
        connection.execute("UPDATE alembic_version SET version_num = '0000'")
        try:
            problem = house.as_(None).get("/readyz", status=503)
            assert "migrations" in problem["detail"]
        finally:
            connection.execute("UPDATE alembic_version SET version_num = %s", (version,))
    assert house.as_(None).get("/readyz") == {"status": "ready"}


def test_the_head_of_a_population_is_the_end_of_its_log(house: House) -> None:
    name = house.population(10)
    release = house.officer.hold(name, ({"ranges": [[0, 5]]}, {"kind": "pure_dp", "epsilon": 0.1}))
    house.officer.commit(release)
    with house.superuser() as connection:
        number, head = (
            connection.execute("SELECT number, hash FROM population WHERE name = %s", (name,)).fetchone() or ()
        )
    entries = house.rows("entry", name)
    assert [row[1] for row in entries] == [1, 2, 3, 4]
    assert (number, head) == (4, entries[-1][3])
    assert [row[2] for row in entries[1:]] == [row[3] for row in entries[:-1]]


def test_a_statement_takes_a_limited_time(house: House) -> None:
    limited: Any = replace(house.parts.settings, statement_seconds=0.2)
    slow = database.Database(house.database_url, limited)
    try:
        with pytest.raises(Exception, match="statement timeout"), slow.transaction() as connection:
            connection.execute(text("SELECT pg_sleep(5)"))
    finally:
        slow.close()
