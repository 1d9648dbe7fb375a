"""64 clients at once: nobody over budget, nothing lost, nothing twice, and the log says the same as the live state."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from itertools import cycle
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import text

from accountant import book as ledger_book
from accountant.canonical import canonical
from accountant.chain import Link
from service.app import create_app, running
from service.operations.evidence import cohort_rows
from tests.service.harness import Local, Storm, exported, fresh, in_process, local, verified

CLIENTS = 64


@pytest.mark.parametrize(
    ("seed", "populations", "requests", "settings"),
    [
        pytest.param(1, 1, 300, {}, id="a gust"),
        pytest.param(2, 1, 1500, {}, id="one population", marks=pytest.mark.slow),
        pytest.param(
            3, 4, 1200, {"requests": 40, "queue": 24}, id="four populations, too few places", marks=pytest.mark.full
        ),
    ],
)
def test_nothing_overspends_in_a_storm(seed: int, populations: int, requests: int, settings: dict[str, Any]) -> None:
    with local(sweeps=True, **settings) as service:
        asyncio.run(_storm(service, seed=seed, populations=populations, requests=requests))


class _InTurn(httpx.AsyncBaseTransport):
    """Every request goes to the next of several services."""

    def __init__(self, *apps: FastAPI) -> None:
        self._next = cycle([httpx.ASGITransport(app=app) for app in apps])

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await next(self._next).handle_async_request(request)


def test_nothing_overspends_between_two_services() -> None:
    """On one database, with books, writers and sweepers of their own; even retries go to the other one."""
    with local(sweeps=True) as one:
        url = one.parts.database.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
        with running(replace(one.parts.settings, database_url=url)) as parts:
            both = _InTurn(one.app, create_app(parts))
            asyncio.run(_storm(one, seed=4, populations=2, requests=300, transport=both))


async def _storm(
    service: Local, *, seed: int, populations: int, requests: int, transport: httpx.AsyncBaseTransport | None = None
) -> None:
    names = [fresh("storm") for _ in range(populations)]
    storm = Storm(seed=seed, populations=names, size=60, collapses=populations > 1)
    async with in_process(service.app, service.call.key, transport) as client:
        deadlocks = _deadlocks(service)
        await storm.prepare(client, epsilon=2.0)
        await storm.run(client, requests=requests, clients=CLIENTS, patience=0.05)
        await storm.repeat_all(client)

        answers = [answer for asked in storm.asked.values() for answer in asked.answers]
        assert {status for status, _ in answers} <= {200, 201, 409, 503}
        assert all(document["type"] == "urn:stint:problem:busy" for status, document in answers if status == 503)
        auditors = storm.check({name: await exported(client, name) for name in names})
        words = [word for auditor in auditors.values() for word in auditor.status.values()]
        assert {"held", "committed", "voided", "denied"} <= set(words), "this storm blew too little"
        for name, auditor in auditors.items():
            auditor.nobody_is_over()
            await verified(client, name)
            for ordinal in random.Random(seed).sample(range(storm.size), 12):
                shown = (await client.get(f"/v1/populations/{name}/datapoints/{ordinal}")).json()
                assert shown["epsilon"] == auditor.reading(ordinal)
                for task in shown["tasks"]:
                    if task["epsilon"] is not None:
                        assert task["epsilon"] == auditor.reading(ordinal, task["name"])
            _replays(service, name, await exported(client, name))
        assert _deadlocks(service) == deadlocks


def _replays(service: Local, name: str, entries: list[dict[str, Any]]) -> None:
    """A stranger with the exported file comes to the cohorts that the service has in memory."""
    log = [
        (
            Link(number=each["number"], previous=bytes.fromhex(each["previous"]), hash=bytes.fromhex(each["hash"])),
            canonical(each["body"]),
        )
        for each in entries
    ]
    rebuilt = ledger_book.replay(log, verify=True)
    with service.parts.books.read(name) as live:
        assert cohort_rows(rebuilt) == cohort_rows(live)
        assert {each.id: each.status for each in rebuilt.releases.values()} == {
            each.id: each.status for each in live.releases.values()
        }


def _deadlocks(service: Local) -> int:
    with service.parts.database.transaction() as connection:
        found = connection.execute(text("SELECT sum(deadlocks) FROM pg_stat_database")).scalar_one()
    return int(found)
