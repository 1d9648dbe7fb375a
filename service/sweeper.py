"""What the service does by itself: holds that ran out become spent, jobs and audits that fell silent are taken up
again, and heads are signed. It needs no queue."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import TimeoutError as Late
from typing import TYPE_CHECKING

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from service.errors import Problem
from service.operations import empirical, evidence, jobs, key_log, releases
from service.store import tickets
from service.store.writer import Operation

if TYPE_CHECKING:
    from collections.abc import Callable

    from service.api.context import Parts

_log = logging.getLogger(__name__)
_DUE = text(
    "SELECT population.name, array_agg(hold.release ORDER BY hold.release) AS releases FROM hold "
    "JOIN population ON population.id = hold.population_id WHERE hold.expires_at <= now() GROUP BY population.name "
    "LIMIT 100"
)
ACTOR = "sweeper"
_WAIT_SECONDS = 60


class Sweeper:
    """A thread that looks again and again, until it is told to stop."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._rescuer = parts, Rescuer(parts)
        self._signed = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sweeper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop looking, and sign what there is."""
        self._stop.set()
        self._thread.join()
        try:
            checkpoint(self._parts)
        except SQLAlchemyError:
            _log.warning("no checkpoint at the end: the database does not answer")

    def _run(self) -> None:
        while not self._stop.wait(self._parts.settings.sweep_seconds):
            for chore in (self._sweep, self._rescuer.rescue, self._sign):  # one's trouble stops none of the others
                try:
                    chore()
                except (SQLAlchemyError, Problem, Late):
                    _log.warning("the sweep failed and will be repeated", exc_info=True)
                except Exception:  # noqa: BLE001 - a sweeper that died would leave holds open for ever
                    _log.exception("the sweep failed and will be repeated")

    def _sweep(self) -> None:
        sweep(self._parts)

    def _sign(self) -> None:
        if time.monotonic() - self._signed >= self._parts.settings.checkpoint_seconds:
            checkpoint(self._parts)
            self._signed = time.monotonic()


class Rescuer:
    """Takes up jobs that fell silent, once it has reached the database for as long as a lease without a break.

    While the database was away nobody could renew a lease: that one ran out then says nothing of its worker.
    """

    def __init__(self, parts: Parts, clock: Callable[[], float] = time.monotonic) -> None:
        self._parts, self._clock = parts, clock
        self._reached: float | None = None  # since when

    def rescue(self) -> int:
        """How many were taken up."""
        try:
            with self._parts.database.transaction():
                pass  # a connection from the pool is tried before it is given out
        except SQLAlchemyError:
            self._reached = None
            raise
        if self._reached is None:
            self._reached = self._clock()
        if self._clock() - self._reached < self._parts.settings.lease_seconds:
            return 0
        return rescue(self._parts)


def sweep(parts: Parts) -> int:
    """Expire every hold that ran out: what became of it is unknown, and unknown is spent."""
    with parts.database.transaction() as connection:
        due = connection.execute(_DUE).all()
    parts.metrics.sweeps.inc()
    expired, failures = 0, list[Exception]()
    for row in due:
        if row.name in parts.unswept:
            continue
        operation = Operation(population=row.name, actor=ACTOR, decide=releases.expire(releases=row.releases[:1000]))
        try:
            expired += len(parts.writer.submit(operation).result(_WAIT_SECONDS).document["expired"])
        except Exception as problem:  # noqa: BLE001 - one population's trouble leaves no other's holds open
            failures.append(problem)
    if failures:
        raise failures[0]
    return expired


def rescue(parts: Parts) -> int:
    """Give jobs and audits whose worker fell silent to another, or give them up; nothing it still makes can leave."""
    lease, wait = parts.settings.lease_seconds, parts.settings.wait_seconds
    silent = [
        *(
            (population, jobs.fall_silent(job=job, wait_seconds=wait))
            for population, job in jobs.silent(parts.database, lease_seconds=lease, wait_seconds=wait)
        ),
        *(
            (population, empirical.fall_silent(audit=audit, wait_seconds=wait))
            for population, audit in empirical.silent(parts.database, lease_seconds=lease, wait_seconds=wait)
        ),
    ]
    failures = list[Exception]()
    for population, decide in silent:
        operation = Operation(population=population, actor=ACTOR, decide=decide, uses_sql=True)
        try:
            parts.writer.submit(operation).result(_WAIT_SECONDS)
        except Exception as problem:  # noqa: BLE001 - one job's trouble leaves no other's alone
            failures.append(problem)
    if silent:
        with parts.database.transaction() as connection:
            tickets.tidy(connection)
    if failures:
        raise failures[0]
    return len(silent)


def checkpoint(parts: Parts) -> None:
    """Store the cohorts of populations that moved since the last checkpoint, then sign all heads."""
    made = evidence.checkpoint(parts.database, parts.secrets)
    if made is None:
        return
    for head in made["heads"]:
        if head["population"] == key_log.NAME:  # keys have no cohorts
            continue
        operation = Operation(
            population=head["population"], actor=ACTOR, decide=evidence.store_cohorts(), uses_sql=True
        )
        parts.writer.submit(operation).result(_WAIT_SECONDS)
