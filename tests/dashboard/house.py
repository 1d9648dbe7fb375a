"""A service with a history, at a real address: what pages are looked at in.

The demo population of `stint demo`; beside it a clinic whose patients have little left, with a release that was denied,
jobs, and audits of which one refutes a promise; a trial, with a task whose name is meant to break a page; and a
population of whom nobody has been registered.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import uvicorn

from accountant.audit import empirical as bounds
from accountant.audit import series
from service import demo
from service.api.context import Parts
from service.app import create_app, running
from service.client import Stint, dp_sgd
from service.operations import empirical, jobs, keys
from service.settings import Settings
from service.store.writer import Operation
from tests.service.harness import scratch
from tests.service.work import data, job

CLINIC, EMPTY = "clinic-west", "pilot"
HOSTILE = "<script>alert('task')</script> & \"quotes\""
PATIENT = "patient-0017"
PATIENTS = 200


@dataclass(frozen=True, kw_only=True)
class House:
    """Where it is, who may come in, and the names of what happened."""

    url: str
    key: str
    parts: Parts
    denied: str
    held: str
    committed: str
    certificate: bytes
    running_job: str
    audits: dict[str, str]
    officer_id: str
    keys: dict[str, str] = field(default_factory=dict)


@contextmanager
def house() -> Iterator[House]:
    """The whole history, on a PostgreSQL of its own; nobody sweeps, so that the past stays as it is."""
    with scratch() as folder, running(Settings(data=folder, lease_seconds=3600.0), sweeps=False) as parts:
        key = keys.ensure_first(parts.database)
        assert key is not None
        with _serving(parts) as url, Stint(url, key) as stint:
            demo.seed(stint)
            made = {role: stint.create_key(f"an {role}", roles=[role]) for role in ("officer", "auditor")}
            secrets = {role: each["secret"] for role, each in made.items()}
            officer = made["officer"]["id"]
            yield House(url=url, key=key, parts=parts, keys=secrets, officer_id=officer, **_clinic(stint, parts))


@contextmanager
def _serving(parts: Parts) -> Iterator[str]:
    """The application at a port of this machine."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(parts), log_config=None, lifespan="on", access_log=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        ends = time.monotonic() + 30
        while not server.started:
            assert time.monotonic() < ends, "the service is not ready after 30 seconds"
            time.sleep(0.02)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()


def _clinic(stint: Stint, parts: Parts) -> dict[str, Any]:
    stint.create_population(EMPTY, unit="record", epsilon=1.0, delta=1e-6)
    stint.create_population(CLINIC, unit="user", epsilon=1.5, delta=1e-6)
    stint.register_keys(CLINIC, [f"patient-{number:04d}" for number in range(PATIENTS)])
    for number, name in enumerate(("spring", "summer", "autumn", "winter")):
        stint.create_task(CLINIC, name, members={"ranges": [[50 * number, 50 * (number + 1)]]})
    said: dict[str, Any] = {"state": {"retained": "dp_only"}, "tuning": {"source": "public"}}

    def training(noise: float) -> dict[str, Any]:
        return dp_sgd(noise_multiplier=noise, sampling_probability=0.1, steps=50, clip_norm=1.0)

    releases: list[str] = []
    for name, noise in (("spring", 4.0), ("summer", 5.0), ("spring", 8.0), ("autumn", 6.0)):
        made = stint.propose(population=CLINIC, task=name, mechanism=training(noise), **said)
        assert made["status"] == "held", made
        stint.commit(made["id"], artifact={"sha256": f"{len(releases):064x}", "uri": f"made-up:{name}"})
        releases.append(made["id"])
    denied = stint.propose(population=CLINIC, task="spring", mechanism=training(1.0), **said)
    assert denied["status"] == "denied", denied
    held = stint.propose(population=CLINIC, task="winter", mechanism=training(5.0), hold_seconds=7200, **said)
    assert held["status"] == "held", held
    return {
        "denied": denied["id"],
        "held": held["id"],
        "committed": releases[0],
        "certificate": stint.certificate(releases[0]),
        "running_job": _jobs(stint, parts),
        "audits": _audits(stint, parts),
    }


def _jobs(stint: Stint, parts: Parts) -> str:
    """One that runs, a quarter through, and one that waits."""
    rows = data(parts)
    stint.create_population("trial", unit="user", epsilon=2.0, delta=1e-5)
    stint.register_count("trial", 60)
    stint.create_task("trial", HOSTILE, members={"ranges": [[0, 60]]})
    first, _second = (stint.submit(**job("trial", rows)).id for _ in range(2))
    begun = jobs.begin(parts.database, first, worker="a worker", lease_seconds=3600)
    assert begun is not None
    assert jobs.renew(parts.database, first, begun.token, lease_seconds=3600, step=1, steps=4)
    return first


def _audits(stint: Stint, parts: Parts) -> dict[str, str]:
    """One that is consistent and one that refutes, by scores of two normals; and one that waits for a worker."""
    found = {}
    for name, mechanism, audit, samples, shift in (
        ("consistent", "dp-sgd", "weights after one step", 6000, 0.5),
        ("violation", "l2dp-ml-as-published", "the noise is solved for", 400, 12.0),
    ):
        planned = stint.start_audit(CLINIC, mechanism=mechanism, audit=audit, samples=samples)
        begun = empirical.begin(parts.database, planned["id"], worker="a worker", lease_seconds=3600)
        assert begun is not None
        scores = _scores(planned, shift=shift)
        operation = empirical.conclude(audit=planned["id"], token=begun.token, found=scores)
        queued = Operation(population=CLINIC, actor="worker", decide=operation, idempotency=None, uses_sql=True)
        parts.writer.submit(queued).result(60)
        assert stint.empirical_audit(planned["id"])["verdict"] == name
        found[name] = planned["id"]
    found["queued"] = stint.start_audit(CLINIC, mechanism="dp-sgd", audit="weights after one step", samples=500)["id"]
    return found


def _scores(planned: dict[str, Any], *, shift: float) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    half = planned["samples"] // 2
    inside, outside = rng.normal(shift, 1.0, half), rng.normal(0.0, 1.0, half)
    delta = planned["promise"]["delta"]
    bound = bounds.from_scores(inside, outside, delta=delta, confidence=planned["confidence"])
    return {
        "bounds": [series.bound_to(bound)],
        "roc": [point._asdict() for point in bounds.roc(inside, outside, points=40)],
    }


def shuffled(links: set[str]) -> list[str]:
    """Links in an order that is the same every time and favours nobody."""
    return sorted(links, key=lambda link: random.Random(link).random())
