"""kill -9 of the service, and of PostgreSQL, in the middle of a storm: what was answered is there, and only once."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable

import httpx
import pytest

from service.store.embedded import embedded
from tests.service.harness import Remote, Storm, exported, fresh, remote, verified

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
ROUNDS = 2
_log = logging.getLogger(__name__)


def _kill_service(service: Remote) -> None:
    service.kill()


def _kill_postgres(service: Remote) -> None:
    service.kill_postgres()
    time.sleep(0.3)  # the service is up, and answers that it cannot
    service.kill()


@pytest.mark.parametrize(("seed", "kill"), [(11, _kill_service), (12, _kill_postgres)], ids=["service", "postgres"])
def test_whatever_was_answered_survives_a_crash(seed: int, kill: Callable[[Remote], None]) -> None:
    rng = random.Random(seed)
    names = [fresh("crash") for _ in range(2)]
    storm = Storm(seed=seed, populations=names, size=40)
    with remote() as service:
        asyncio.run(_prepare(service, storm))
        for round_ in range(ROUNDS):
            delay = rng.uniform(0.3, 1.8)
            before = storm.sent
            asyncio.run(_storm_until_killed(service, storm, kill, delay))
            _log.warning("seed %d, round %d: %.2f s, %d requests", seed, round_, delay, storm.sent - before)
            service.start()
            asyncio.run(_check(service, storm, complete=False))
        asyncio.run(_repeat(service, storm))
        asyncio.run(_check(service, storm, complete=True))
    _log.warning("seed %d: %d requests, %s", seed, storm.sent, dict(storm.statuses))
    assert set(storm.statuses) <= {0, 200, 201, 409, 503}
    assert storm.statuses[0], "no request was under way at any kill"


async def _prepare(service: Remote, storm: Storm) -> None:
    async with service.client() as client:
        await storm.prepare(client, epsilon=4.0)


async def _storm_until_killed(service: Remote, storm: Storm, kill: Callable[[Remote], None], delay: float) -> None:
    async with service.client() as client:
        blowing = asyncio.create_task(storm.run(client, requests=10_000))
        await asyncio.sleep(delay)
        await asyncio.to_thread(kill, service)
        storm.stop()
        await blowing


async def _repeat(service: Remote, storm: Storm) -> None:
    """Every key once more: those that were answered get the same answer, and the others at last one."""
    async with service.client() as client:
        await storm.repeat_all(client)


async def _check(service: Remote, storm: Storm, *, complete: bool) -> None:
    async with service.client() as client:
        ledgers = {name: await exported(client, name) for name in storm.populations}
        for auditor in storm.check(ledgers, complete=complete).values():
            auditor.nobody_is_over()
        for name in storm.populations:
            await verified(client, name)


def test_a_stop_finishes_what_it_began() -> None:
    """SIGTERM in a storm: what was answered is there, PostgreSQL is stopped, and a checkpoint says where it ended."""
    storm = Storm(seed=13, populations=[fresh("stop")], size=40)
    with remote() as service:
        asyncio.run(_prepare(service, storm))
        asyncio.run(_storm_until_killed(service, storm, _stop, 0.7))
        assert not (service.folder / "postgres" / "postmaster.pid").exists()
        service.start()
        assert asyncio.run(_checkpoints(service)) == 1
        asyncio.run(_repeat(service, storm))
        asyncio.run(_check(service, storm, complete=True))


def _stop(service: Remote) -> None:
    assert service.stop() == 0


async def _checkpoints(service: Remote) -> int:
    async with service.client() as client:
        return len((await client.get("/v1/checkpoints")).json()["items"])


def test_a_service_outlives_its_postgres() -> None:
    """While there is none it says so at once, and when it is back all goes on: nobody has to start it again."""
    with (
        remote() as service,
        httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {service.key}"}, timeout=20) as client,
    ):
        name = fresh("restart")
        new = {"name": name, "unit": "user", "budget": {"epsilon": 1.0, "delta": 1e-6}}
        assert client.post("/v1/populations", json=new).status_code == 201
        assert client.post(f"/v1/populations/{name}/datapoints", json={"count": 40}).status_code == 201
        charge = {"scope": {"ranges": [[0, 40]]}, "event": {"kind": "pure_dp", "epsilon": 0.1}}

        def propose() -> int:
            return client.post("/v1/releases", json={"population": name, "charges": [charge]}).status_code

        assert propose() == 201
        service.kill_postgres()
        assert [propose(), propose()] == [503, 503]
        assert client.get("/readyz").status_code == 503
        with embedded(service.folder / "postgres"):
            assert [propose() for _ in range(3)] == [201, 201, 201]
            assert client.get("/readyz").status_code == 200
            asyncio.run(_verified(service, name))
            assert service.stop() == 0


async def _verified(service: Remote, name: str) -> None:
    async with service.client() as client:
        await verified(client, name)
