"""A service with a history, at a real address: what pages are looked at in.

The demo population of `stint run`, with the times of its three years; a stream of weekly releases,
which the forecast can be computed for by hand; beside them a clinic whose patients have little left, with a release
that was denied, jobs, and audits of which one refutes a promise; a trial, with a task whose name is meant to break a
page; a ward, whose labels were told, remapped and known before; populations that are in trouble; and one of whom nobody
is registered.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import uvicorn

from accountant.audit import empirical as bounds
from accountant.audit import series
from service import demo, made_up
from service.api.context import Parts
from service.app import create_app, running
from service.client import Stint, dp_sgd, label_release
from service.operations import empirical, jobs, keys
from service.settings import Settings
from service.store.writer import Operation
from tests.service.harness import scratch
from tests.service.work import data, ended, job, worker

CLINIC, EMPTY, WARD = "clinic-west", "pilot", "ward"
WEEKLY = "weekly"
#: Populations that somebody should look at: who is in doubt first, then who has least left.
FROZEN, SPENT, LOW = "frozen-lab", "spent-lab", "low-lab"
HOSTILE = "<script>alert('task')</script> & \"quotes\""
LONG, LONG_TASK, TINY = "p" * 100, "t" * 198, "tiny"
PATIENT = "patient-0017"
PATIENTS = 200


_NAMES = {"officer": "an officer", "auditor": "an auditor", "pipeline": "a pipeline", "worker": "a worker"}


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
    labels: dict[str, str]
    officer_id: str
    keys: dict[str, str] = field(default_factory=dict)


@contextmanager
def house() -> Iterator[House]:
    """The whole history, on a PostgreSQL of its own; nobody sweeps, so that the past stays as it is."""
    with scratch() as folder, running(Settings(data=folder, lease_seconds=3600.0), sweeps=False) as parts:
        key = keys.ensure_first(parts.database)
        assert key is not None
        with _serving(parts) as url, Stint(url, key) as stint:
            now = datetime.now(UTC)
            demo.make(parts, now=now)
            weekly(parts, now=now)
            roles = ("officer", "auditor", "pipeline", "worker")
            made = {role: stint.create_key(_NAMES[role], roles=[role], reason="the first day") for role in roles}
            secrets = {role: each["secret"] for role, each in made.items()}
            officer = made["officer"]["id"]
            yield House(url=url, key=key, parts=parts, keys=secrets, officer_id=officer, **_clinic(stint, parts))


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """A service in which not all is well."""

    url: str
    key: str
    audit: str
    held: str
    keys: dict[str, str]


@contextmanager
def trouble() -> Iterator[Trouble]:
    """Populations that are running low, exhausted and over their policy, frozen, and with a promise that was disproved.

    A hold is long overdue, since nobody sweeps.
    """
    with scratch() as folder, running(Settings(data=folder, lease_seconds=3600.0), sweeps=False) as parts:
        key = keys.ensure_first(parts.database)
        assert key is not None
        with _serving(parts) as url, Stint(url, key) as stint:
            roles = ("officer", "auditor", "pipeline", "worker")
            secrets = {role: stint.create_key(_NAMES[role], roles=[role])["secret"] for role in roles}
            for name, spent in ((LOW, 0.95), (SPENT, 0.8), ("calm-lab", 0.1)):
                _charged(stint, name, {"kind": "pure_dp", "epsilon": spent})
            stint.change_policy(SPENT, epsilon=0.5, reason="The board asked for more caution.")
            stint.create_population(FROZEN, unit="user", epsilon=2.0, delta=1e-6)
            stint.register_count(FROZEN, 100)
            training = dp_sgd(noise_multiplier=4.0, sampling_probability=0.1, steps=4, clip_norm=1.0)
            made = stint.propose(population=FROZEN, scope={"ranges": [[0, 50]]}, mechanism=training, hold_seconds=1)
            planned = stint.start_audit(
                FROZEN, mechanism="dp-sgd", audit="weights after one step", samples=3000, on_violation="freeze"
            )
            conclude(parts, planned, shift=12.0)
            yield Trouble(url=url, key=key, audit=planned["id"], held=made["id"], keys=secrets)


@contextmanager
def long_names() -> Iterator[tuple[str, str]]:
    """A service, and a key to it, in which everything has as long a name as it may have, without a place to break it.

    One task has used up its own budget, one was refused for it, and a budget is so small that its numbers are long.
    """
    with scratch() as folder, running(Settings(data=folder), sweeps=False) as parts:
        key = keys.ensure_first(parts.database)
        assert key is not None
        with _serving(parts) as url, Stint(url, key) as stint:
            stint.create_key("k" * 198, roles=["auditor"], reason="r" * 198)
            for population, epsilon in ((LONG, 3.0), (TINY, 1e-4)):
                stint.create_population(population, unit="user", epsilon=epsilon, delta=1e-6)
                stint.register_count(population, 60)
                for place, task in enumerate((LONG_TASK, "W" * 198, "fresh")):
                    own = {"epsilon": epsilon / 10, "delta": 1e-7} if place == 0 else None
                    members = {"ranges": [[20 * place, 20 * place + 20]]}
                    stint.create_task(population, task, members=members, budget=own)
                    for share in (0.1, 0.05):
                        event = {"kind": "pure_dp", "epsilon": share * epsilon}
                        charges = [{"scope": {"task": task}, "event": event}]
                        made = stint.propose(population=population, charges=charges)
                        if made["status"] == "held":
                            stint.commit(made["id"])
            stint.start_audit(LONG, mechanism="dp-sgd", audit="weights after one step", samples=500)
            rows = data(parts)
            stint.submit(**{**job(LONG, rows), "scope": {"task": "fresh"}})
            yield url, key


def _charged(stint: Stint, name: str, event: dict[str, Any]) -> None:
    """A population of a hundred people, of whom sixty were charged once."""
    stint.create_population(name, unit="user", epsilon=1.0, delta=1e-6)
    stint.register_count(name, 100)
    stint.create_task(name, "everything", members={"ranges": [[0, 60]]})
    made = stint.propose(population=name, charges=[{"scope": {"task": "everything"}, "event": event}])
    assert made["status"] == "held", made
    stint.commit(made["id"], artifact={"sha256": "0" * 64, "uri": "made-up:everything"})


def conclude(parts: Parts, planned: dict[str, Any], *, shift: float) -> None:
    """An audit as a worker ends it, by scores of two normals that are so far apart."""
    begun = empirical.begin(parts.database, planned["id"], worker="a worker", lease_seconds=3600)
    assert begun is not None
    operation = empirical.conclude(audit=planned["id"], token=begun.token, found=scores(planned, shift=shift))
    queued = Operation(population=planned["population"], actor="worker", decide=operation, uses_sql=True)
    parts.writer.submit(queued).result(60)


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


def weekly(parts: Parts, *, now: datetime) -> None:
    """40 people under ε = 1.81, pure: for four weeks, 0.15 for all on the first day and 0.05 for half on the fourth.

    Half of them have 0.8 behind them, and the same four weeks again bring them to 1.6. Then 1.75 and 1.8 are within the
    budget; so the second week after that has the first release that is refused, the sixth of its kind from now.
    """
    start = now - timedelta(days=28) + timedelta(minutes=5)
    with made_up.history(parts, WEEKLY, start=start) as maker:
        maker.create_population(WEEKLY, unit="user", epsilon=1.81, delta=1e-6, preset="pure")
        maker.register_count(WEEKLY, 40)
        maker.create_task(WEEKLY, "everybody", members={"ranges": [[0, 40]]})
        maker.create_task(WEEKLY, "half", members={"ranges": [[0, 20]]})
        for number in range(4):
            for days, task, epsilon in ((0, "everybody", 0.15), (3, "half", 0.05)):
                maker.at = start + timedelta(weeks=number, days=days, hours=1)
                told = maker.propose(
                    population=WEEKLY, task=task, mechanism=label_release(epsilon=epsilon, delta=1e-12),
                    state={"retained": "dp_only"}, tuning={"source": "public"},
                )  # fmt: skip
                assert told["status"] == "held", told
                maker.commit(told["id"])


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
        "labels": _labels(stint, parts),
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
        conclude(parts, planned, shift=shift)
        assert stint.empirical_audit(planned["id"])["verdict"] == name
        found[name] = planned["id"]
    found["queued"] = stint.start_audit(CLINIC, mechanism="dp-sgd", audit="weights after one step", samples=500)["id"]
    return found


def _labels(stint: Stint, parts: Parts) -> dict[str, str]:
    """Labels that a release told, that another was trained on, that were known before, and a pipeline's word.

    A real worker runs the jobs, from a queue of its own.
    """
    rows = data(parts, "diagnoses.npz")
    stint.create_population(WARD, unit="user", epsilon=3.0, delta=1e-5)
    stint.register_count(WARD, 60)
    stint.create_task(WARD, "diagnoses", members={"ranges": [[0, 60]]})
    asked: dict[str, Any] = {"queue": "labels", "data": {"uri": str(rows), "x": "x", "y": "y"}, "task": "diagnoses"}
    training = job(WARD, rows)
    del training["scope"], training["data"]
    model: dict[str, Any] = {"model": "linear", "shape": [4], "learning_rate": 0.1}
    process = worker(parts, "--queue", "labels")
    try:
        choice = {"name": "label-release", "parameters": {"epsilon": 1.0, "delta": 1e-6}}
        told = stint.submit(population=WARD, mechanism=choice, **asked)
        assert told.wait(seconds=60)["status"] == "committed"
        rules = {"remap": [{"from": "2", "to": "1"}, {"from": "unknown", "to": ""}], "otherwise": ""}
        recipes: dict[str, dict[str, Any]] = {
            "released": {"label_source": "released", "labels_release": told.release, **rules},
            "prior": {"label_source": "prior", "label_names": ["0", "1", "other"], "otherwise": "other"},
        }
        made = {name: stint.submit(**training | asked | {"recipe": model | recipe}) for name, recipe in recipes.items()}
        for each in made.values():
            assert each.wait(seconds=60)["status"] == "committed"
    finally:
        process.terminate()
        ended(process)
    said = {
        "source": "prior", "labels": ["healthy", "ill"], "remap": {"flu": "ill", "a typo": ""}, "otherwise": "healthy",
    }  # fmt: skip
    charges = [{"scope": {"task": "diagnoses"}, "event": {"kind": "pure_dp", "epsilon": 0.01}}]
    declared = stint.propose(population=WARD, charges=charges, label_space=said, state={"retained": "dp_only"})
    assert declared["status"] == "held"
    return {"told": told.release, **{name: each.release for name, each in made.items()}, "declared": declared["id"]}


def scores(planned: dict[str, Any], *, shift: float) -> dict[str, Any]:
    """What an attack found whose scores are those of two normals, so far apart."""
    rng = np.random.default_rng(7)
    inside, outside = (rng.normal(mean, 1.0, planned["samples"]) for mean in (shift, 0.0))  # so many of each side
    delta = planned["promise"]["delta"]
    bound = bounds.from_scores(inside, outside, delta=delta, confidence=planned["confidence"])
    return {
        "bounds": [series.bound_to(bound)],
        "roc": [point._asdict() for point in bounds.roc(inside, outside, points=40)],
    }
