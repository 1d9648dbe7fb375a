"""A whole service for the tests of its behaviour: real PostgreSQL, real HTTP on the loopback, one for all tests.

A test module asks for it with `pytest_plugins = ("tests.service.fixtures_behaviour",)`; a plugin's fixture is made once,
where an imported one would be made again for every module. PYTEST_DONT_REWRITE: test modules import it as well.
"""

from __future__ import annotations

import json
import logging
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import uvicorn

from service import logs
from service.api.context import Parts
from service.app import create_app, running
from service.operations import keys
from service.settings import Settings
from service.store import tables

ROLES = ("pipeline", "officer", "auditor", "worker", "admin")
PURE = {"kind": "pure_dp", "epsilon": 0.5}
PRIOR = {"source": "prior", "digest": "sha256:" + "0" * 64}
DP_ONLY = {"retained": "dp_only"}
_numbers = count(1)


def pure(epsilon: float) -> dict[str, Any]:
    """The event of a release that is ε-DP."""
    return {"kind": "pure_dp", "epsilon": epsilon}


def gaussian(noise_multiplier: float) -> dict[str, Any]:
    return {"kind": "gaussian", "noise_multiplier": noise_multiplier}


@dataclass(frozen=True)
class Caller:
    """Somebody with a key."""

    client: httpx.Client = field(repr=False)
    secret: str | None = field(repr=False)

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> httpx.Response:
        sent = dict(headers or {})
        if self.secret is not None:
            sent.setdefault("Authorization", f"Bearer {self.secret}")
        if body is not None:
            options["content"] = json.dumps(body)  # in ASCII, so that anything can be sent
            sent.setdefault("Content-Type", "application/json")
        answer = self.client.request(method, path, headers=sent, **options)
        if status is not None:
            assert answer.status_code == status, f"{method} {path}: {answer.status_code} {answer.text[:2000]}"
        return answer

    def get(self, path: str, *, status: int = 200, **parameters: Any) -> Any:
        return self.ask("GET", path, status=status, params=parameters).json()

    def post(self, path: str, body: object = None, *, status: int = 200, **options: Any) -> Any:
        return self.ask("POST", path, body, status=status, **options).json()

    def put(self, path: str, body: object, *, status: int = 200, **options: Any) -> Any:
        return self.ask("PUT", path, body, status=status, **options).json()

    def propose(self, population: str, *charges: tuple[Mapping[str, Any], Mapping[str, Any]], **more: Any) -> Any:
        """Propose events on scopes."""
        spelled = [{"scope": scope, "event": event} for scope, event in charges]
        return self.post("/v1/releases", {"population": population, "charges": spelled, **more}, status=201)

    def hold(self, population: str, *charges: tuple[Mapping[str, Any], Mapping[str, Any]], **more: Any) -> str:
        """Propose what must be held."""
        answer = self.propose(population, *charges, **more)
        assert answer["status"] == "held", answer["decision"]["reasons"]
        return str(answer["id"])

    def commit(self, release: str, **artifact: Any) -> Any:
        return self.post(f"/v1/releases/{release}/commit", {"artifact": artifact} if artifact else {})

    def reading(self, population: str, ordinal: int) -> Any:
        """Spent, held and available of one datapoint."""
        return self.get(f"/v1/populations/{population}/datapoints/{ordinal}")["epsilon"]


@dataclass(frozen=True)
class House:
    """A running service, and people with keys to it."""

    parts: Parts = field(repr=False)
    client: httpx.Client = field(repr=False)
    secrets: Mapping[str, str] = field(repr=False)
    first: str | None = field(repr=False)
    url: str = field(repr=False)

    def as_(self, role: str | None) -> Caller:
        return Caller(self.client, None if role is None else self.secrets[role])

    @property
    def officer(self) -> Caller:
        return self.as_("officer")

    @property
    def pipeline(self) -> Caller:
        return self.as_("pipeline")

    @property
    def auditor(self) -> Caller:
        return self.as_("auditor")

    @property
    def admin(self) -> Caller:
        return self.as_("admin")

    @property
    def database_url(self) -> str:
        return self.parts.database.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)

    def new_name(self, stem: str = "clinic") -> str:
        return f"{stem}-{next(_numbers)}"

    def population(self, datapoints: int = 0, *, epsilon: float = 1.0, delta: float = 1e-6, **more: Any) -> str:
        """A fresh population with so many datapoints."""
        name = str(more.pop("name", None) or self.new_name())
        budget = {"epsilon": epsilon, "delta": delta, **more.pop("filter", {})}
        self.officer.post("/v1/populations", {"name": name, "unit": "user", "budget": budget, **more}, status=201)
        if datapoints:
            self.officer.post(f"/v1/populations/{name}/datapoints", {"count": datapoints}, status=201)
        return name

    @contextmanager
    def superuser(self) -> Iterator[psycopg.Connection]:
        """Past the role of the service; every statement is its own transaction."""
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            yield connection

    def rows(self, table: str, population: str | None = None) -> list[tuple[Any, ...]]:
        """All rows of a table, in a fixed order."""
        with self.superuser() as connection:
            where = "" if population is None else "WHERE population_id = (SELECT id FROM population WHERE name = %s)"
            found = connection.execute(
                f"SELECT * FROM {table} {where} ORDER BY 1, 2".encode(),
                None if population is None else (population,),
            )
            return found.fetchall()

    def everything(self) -> dict[str, list[tuple[Any, ...]]]:
        """All rows of all tables, apart from when keys were used."""
        found = {name: self.rows(name) for name in tables.metadata.tables}
        found["api_key"] = [row[:-1] for row in found["api_key"]]
        return found


@contextmanager
def serving(parts: Parts) -> Iterator[str]:
    """The address of an HTTP server over these parts."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        create_app(parts), log_config=None, lifespan="on", access_log=False, ws="none", timeout_graceful_shutdown=5
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="http")
    thread.start()
    try:
        until(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()


@contextmanager
def with_settings(house: House, **changed: Any) -> Iterator[House]:
    """The same service over HTTP with other limits."""
    parts = replace(house.parts, settings=replace(house.parts.settings, **changed))
    with serving(parts) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield replace(house, parts=parts, client=client, url=url)


def until(condition: Callable[[], object], *, seconds: float = 20) -> None:
    """Wait for something that must happen."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def as_lines(records: list[logging.LogRecord]) -> list[dict[str, Any]]:
    """Log records as the service writes them."""
    return [json.loads(logs._AsJson().format(record)) for record in records]


@contextmanager
def short_folder() -> Iterator[Path]:
    """A folder with a short path, since PostgreSQL puts its socket there."""
    folder = tempfile.mkdtemp(prefix="stint-", dir="/tmp")
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def house() -> Iterator[House]:
    with (
        short_folder() as folder,
        running(Settings(data=folder), sweeps=False) as parts,
        serving(parts) as url,
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        first = keys.ensure_first(parts.database)
        secrets = {role: keys.create(parts.database, name=role, roles=[role])["secret"] for role in ROLES}
        yield House(parts, client, secrets, first, url)
