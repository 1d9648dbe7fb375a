"""The worker: takes jobs and audits from the queue, has each attempt run elsewhere, and commits what the current made.

It speaks to the ledger as the service does, with books and a writer of its own, and imports no torch: what trains is a
child process, so nothing that a mechanism does keeps this one from renewing its lease.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from procrastinate.exceptions import ConnectorException
from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from accountant.book import bitmap_to
from accountant.errors import InvalidInput
from service.api.jobs import named_releases
from service.api.releases import body_of, owner_of
from service.app import running
from service.errors import Problem
from service.operations import audits, datapoints, empirical, jobs, releases
from service.operations.empirical import BegunAudit
from service.operations.jobs import Begun
from service.placement import Attempt, Forked, Outcome, Placement
from service.staging import Staging, Unreleasable, uri
from service.store import tickets
from service.store.database import ROLE
from service.store.writer import Operation
from service.sweeper import Rescuer
from trainers.catalog import mechanism as find_mechanism

if TYPE_CHECKING:
    from accountant.audit.checklist import Audited
    from service.api.context import Parts
    from service.settings import Settings
    from service.store.writer import Decide

_log = logging.getLogger(__name__)
_TICK_SECONDS: Final = 1.0
_WAIT_SECONDS: Final = 60
_TIDY_SECONDS: Final = 60.0
_TICKET_SECONDS: Final = 30.0
_POLLING_SECONDS: Final = 5.0
_Answer = TypeVar("_Answer")
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a worker takes, and what it may read."""

    device: str = "cpu"
    queue: str = "default"
    allowed: Sequence[str] = ()
    once: bool = False
    leashed: bool = False  # it ends when its standard input does
    seed: int | None = None  # of a test: what is made then can never be committed


def work(settings: Settings, options: Options, *, say: Callable[[str], None]) -> None:
    """Work until SIGINT or SIGTERM; with `once`, until there is nothing left to do."""
    few = replace(settings, writers=1, connections=6)
    with running(few, sweeps=False) as parts, Forked() as placement:
        asyncio.run(Worker(parts, options, placement, say=say).run())


class Worker:
    """One job at a time."""

    def __init__(self, parts: Parts, options: Options, placement: Placement, *, say: Callable[[str], None]) -> None:
        self._parts, self._options, self._placement, self._say = parts, options, placement, say
        self._staging, self._rescuer = Staging(parts.settings.artifacts_folder), Rescuer(parts)
        self._lease = parts.settings.lease_seconds
        self._tick = min(_TICK_SECONDS, self._lease / 5)
        self._stopping = asyncio.Event()
        self.name = f"{socket.gethostname()}:{os.getpid()}"

    async def run(self) -> None:
        """Take tickets as they come, until a signal says stop; a second one ends the process at once."""
        await asyncio.to_thread(self._tidy)
        loop = asyncio.get_running_loop()

        def stop() -> None:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
            self._stopping.set()

        for number in _SIGNALS:
            loop.add_signal_handler(number, stop)
        chores = [asyncio.create_task(self._keep_tidy())]
        if self._options.leashed:
            chores.append(asyncio.create_task(_stop_at_end_of_input()))
        else:
            self._say(f"Waiting for jobs on queue {self._options.queue!r} for {self._options.device}.")
        told, taking = asyncio.create_task(self._stopping.wait()), asyncio.create_task(self._take_tickets())
        try:
            await asyncio.wait({told, taking}, return_when=asyncio.FIRST_COMPLETED)
            if told.done():
                taking.cancel()
            with suppress(asyncio.CancelledError):
                await taking
        finally:
            for chore in (*chores, told):
                chore.cancel()

    async def _take_tickets(self) -> None:
        """Until it is told to stop, or with `once` until there are none: a database that is away may come back.

        No attempt ends by that: whoever runs one does not look for the next.
        """
        wait = self._tick
        while True:
            began = time.monotonic()
            try:
                await self._take_tickets_while_there_is_a_database()
            except (ConnectorException, psycopg.Error) as problem:
                if self._stopping.is_set():
                    return
                if self._options.once:
                    raise problem.__cause__ or problem from None
                _log.warning("the queue cannot be reached, and is tried again", exc_info=True)
            else:
                return
            wait = self._tick if time.monotonic() - began > _TIDY_SECONDS else min(2 * wait, _TIDY_SECONDS)
            await asyncio.sleep(wait)

    async def _take_tickets_while_there_is_a_database(self) -> None:
        settings = self._parts.settings
        app = tickets.app(
            self._parts.database.url,
            role=ROLE,
            pause_seconds=settings.pause_seconds,
            wait_seconds=min(_TICKET_SECONDS, self._lease),
        )
        app.task(name=tickets.TASK)(self.attempt)
        queues = tickets.queue_names(self._options.queue, self._options.device)
        polling = min(_POLLING_SECONDS, self._lease)
        async with app.open_async():
            while True:
                await app.run_worker_async(
                    queues=queues,
                    name=self.name,
                    wait=not self._options.once,
                    delete_jobs="always",
                    shutdown_graceful_timeout=0.0,
                    install_signal_handlers=False,
                    fetch_job_polling_interval=polling,
                    update_heartbeat_interval=self._lease / 3,
                    stalled_worker_timeout=self._lease,
                )
                seconds = await asyncio.to_thread(self._next_in, queues) if self._options.once else None
                if seconds is None:
                    return
                await asyncio.sleep(min(max(seconds, self._tick), polling))  # an attempt has a delay

    def _next_in(self, queues: Sequence[str]) -> float | None:
        with self._parts.database.transaction() as connection:
            return tickets.next_in(connection, queues)

    async def _keep_tidy(self) -> None:
        while True:
            await asyncio.sleep(min(_TIDY_SECONDS, self._lease))
            await asyncio.to_thread(self._tidy)

    def _tidy(self) -> None:
        """Make up for what was left undone, by this worker's forerunners or by others."""
        for chore in (self._rescuer.rescue, self._clear_up):  # one's trouble does not stop the other
            try:
                chore()
            except (SQLAlchemyError, psycopg.Error, Problem, TimeoutError, OSError):
                _log.warning("tidying failed and will be repeated", exc_info=True)
            except Exception:  # noqa: BLE001 - a worker that tidied no more would leave commits unpublished for ever
                _log.exception("tidying failed and will be repeated")

    def _clear_up(self) -> None:
        self._staging.tidy(self._parts.database)

    # ------------------------------------------------------------ one job

    async def attempt(self, job: str) -> None:
        """One attempt at a job, from its token to its end; nothing is raised for what may happen to anybody."""
        begin = self._begin_audit if empirical.is_audit(job) else self._begin_job
        beginning = asyncio.create_task(asyncio.to_thread(begin, job))
        try:
            begun = await asyncio.shield(beginning)
        except SQLAlchemyError:
            _log.warning("job %s could not be begun", job, exc_info=True)
            return  # its ticket is gone, and the sweeper writes another
        except asyncio.CancelledError:  # told to stop, and yet it may begin: nobody can call back a thread
            with suppress(SQLAlchemyError):
                if (late := await beginning) is not None:
                    await self._stand_down(late)
            raise
        if begun is None:
            return
        bar = _Bar(begun, self._say)
        lease = asyncio.create_task(self._keep_lease(begun, bar))
        try:
            await self._carry_through(begun, bar, lease)
        finally:
            lease.cancel()

    async def _keep_lease(self, begun: Begun | BegunAudit, bar: _Bar) -> None:
        """Renew it, whatever else is done meanwhile, until the attempt is not the current one any more."""
        while True:
            await asyncio.sleep(self._tick)
            if not await asyncio.to_thread(self._renewed, begun, bar):
                return

    async def _carry_through(self, begun: Begun | BegunAudit, bar: _Bar, lease: asyncio.Task[None]) -> None:
        """From the token to the end."""
        try:
            outcome = await self._watched(begun, bar, lease)
        except Exception:  # noqa: BLE001 - a fault of this process: the job must not wait for its lease to run out
            _log.exception("attempt %s of %s could not be watched", begun.token, begun.job)
            outcome = Outcome(error="internal")
        except asyncio.CancelledError:  # told to stop
            await self._stand_down(begun)
            raise
        if outcome is None:
            return
        settling = asyncio.create_task(self._settle(begun, bar, outcome))
        try:
            await asyncio.shield(settling)
        except asyncio.CancelledError:  # it is made, and leaves if it still can
            await settling
            raise

    def _begin_job(self, job: str) -> Begun | BegunAudit | None:
        return jobs.begin(self._parts.database, job, worker=self.name, lease_seconds=self._lease)

    def _begin_audit(self, audit: str) -> Begun | BegunAudit | None:
        return empirical.begin(self._parts.database, audit, worker=self.name, lease_seconds=self._lease)

    async def _watched(self, begun: Begun | BegunAudit, bar: _Bar, lease: asyncio.Task[None]) -> Outcome | None:
        """How the attempt ended; None if it is not the current one any more, and nobody wants to know."""
        running = asyncio.create_task(self._run(begun, bar))
        ends = time.monotonic() + self._parts.settings.job_seconds
        try:
            while True:
                await asyncio.wait({running, lease}, timeout=self._tick, return_when=asyncio.FIRST_COMPLETED)
                bar.show()
                # At the end once more, since the row is to have the last step.
                if lease.done() or (running.done() and not await asyncio.to_thread(self._renewed, begun, bar)):
                    self._say(f"{begun.job}: attempt {begun.token} was cancelled, or taken over.")
                    self._staging.discard(begun.job, begun.token)
                    return None
                if running.done():
                    return running.result()
                if time.monotonic() > ends:
                    return Outcome(error="timeout")
        finally:
            bar.end()
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    async def _run(self, begun: Begun | BegunAudit, bar: _Bar) -> Outcome:
        """How the attempt ended, wherever it ran."""
        attempt = await self._answered(self._prepared, begun, bar)
        return Outcome(error="input.missing") if attempt is None else await self._placement.run(attempt)

    async def _answered(self, ask: Callable[..., _Answer], *about: Any) -> _Answer:
        """What the database says once it is there: it is asked until whoever watches the attempt ends this."""
        while True:
            try:
                return await asyncio.to_thread(ask, *about)
            except (OperationalError, InterfaceError, PoolTimeout) as problem:
                if isinstance(getattr(problem, "orig", None), psycopg.errors.QueryCanceled):  # it is there, and refuses
                    raise
                _log.warning("the database does not answer an attempt, and is asked again", exc_info=True)
            await asyncio.sleep(self._tick)

    def _prepared(self, begun: Begun | BegunAudit, bar: _Bar) -> Attempt | None:
        """Everything that the attempt needs to know; None if what it builds on is not to be had."""
        if isinstance(begun, BegunAudit):
            return self._experiment(begun, bar)
        parts = self._parts
        body = body_of(parts, begun.release)
        mechanism = find_mechanism(begun.mechanism)
        inputs: dict[str, Mapping[str, Any]] = {}
        for name, release in named_releases(mechanism, begun.recipe):
            with parts.books.read(owner_of(parts, release)) as book:
                artifact = book.releases[release].artifact
            path = self._staging.published(release, parts.database)
            if artifact is None or path is None:
                _log.warning("release %s, on which job %s builds, is not in the artifacts folder", release, begun.job)
                return None
            inputs[name] = {"release": release, "path": str(path), "sha256": artifact["sha256"]}
        with parts.books.read(begun.population) as book:
            charges = [
                {**charge, "admitted": charge["bitmap"], "proposed": bitmap_to(book.scope(asked["scope"])[0])}
                for charge, asked in zip(releases.members(book, body), body["charges"], strict=True)
            ]
            promise = {"epsilon": book.promise.epsilon, "delta": book.promise.delta}
            own = [dict(rule) for rule in book.policy.data]
            unit, adjacency, size = book.unit, book.adjacency, book.size
        with parts.database.transaction() as connection:
            others = jobs.rules_of_others(connection, begun.population)
        document = {
            "job": begun.job, "release": begun.release, "population": begun.population, "unit": unit,
            "datapoints": size, "adjacency": adjacency, "promise": promise, "mechanism": begun.mechanism,
            "parameters": begun.parameters,
            "recipe": begun.recipe, "data": begun.data, "allowed": list(self._options.allowed),
            "rules": {"own": own, "others": others},
            "backbones": str(Path(parts.settings.backbones).resolve()) if parts.settings.backbones else None,
            "cache": str((parts.settings.data / "features").resolve()),
            "device": self._options.device, "charges": charges, "inputs": inputs, "seed": self._options.seed,
            "folder": str(self._staging.folder(begun.job, begun.token)),
        }  # fmt: skip

        async def ordinals_of(keys: Sequence[str]) -> list[int]:
            return await self._answered(self._ordinals, begun.population, keys)

        return Attempt(
            document=document,
            log=self._staging.log(begun.job, begun.token),
            progress=bar.moved,
            ordinals_of=ordinals_of,
        )

    def _experiment(self, begun: BegunAudit, bar: _Bar) -> Attempt:
        """An audit as it was planned. It asks for nobody's ordinal, and is told none."""
        with self._parts.books.read(begun.population) as book:
            planned = book.audits[begun.job]
        document = {
            "audit": planned.name, "mechanism": planned.mechanism, "samples": planned.samples,
            "confidence": planned.confidence, "seed": planned.seed,
        }  # fmt: skip

        async def nobody(_: Sequence[str]) -> list[int]:
            raise ValueError("an audit reads no private rows")

        log = self._staging.log(begun.job, begun.token)
        return Attempt(document=document, log=log, progress=bar.moved, ordinals_of=nobody)

    def _ordinals(self, population: str, keys: Sequence[str]) -> list[int]:
        """The ordinal of each key, −1 for one that nobody has, or has any more."""
        secret = self._parts.secrets.datapoints
        digests: list[bytes | None] = []
        for key in keys:
            try:
                digests.append(datapoints.digest(secret, population, key))
            except InvalidInput:  # what cannot be a key is nobody's
                digests.append(None)
        known = datapoints.known(self._parts.database, population, [each for each in digests if each is not None])
        return [-1 if each is None else known.get(each, -1) for each in digests]

    def _renewed(self, begun: Begun | BegunAudit, bar: _Bar) -> bool:
        database, lease = self._parts.database, self._lease
        try:
            if isinstance(begun, BegunAudit):
                return empirical.renew(database, begun.job, begun.token, lease_seconds=lease, step=bar.step)
            return jobs.renew(database, begun.job, begun.token, lease_seconds=lease, step=bar.step, steps=bar.steps)
        except SQLAlchemyError:  # without the database nothing can be committed either; it may come back
            _log.warning("the lease of %s could not be renewed", begun.job)
            return True

    async def _settle(self, begun: Begun | BegunAudit, bar: _Bar, outcome: Outcome) -> None:
        """Commit and publish, or say why not; asked again until the answer is known, since days of work may hang on it.

        Whoever is told to stop meanwhile ends what it is about to decide, and leaves it to others if that is not known.
        """
        job, token = begun.job, begun.token
        ends = time.monotonic() + self._parts.settings.job_seconds
        ending = await asyncio.to_thread(self._ending, begun, bar, outcome)
        became = None if ending is None else await asyncio.to_thread(self._decide, begun, ending[0])
        while became is None and time.monotonic() < ends and not self._stopping.is_set():
            await asyncio.sleep(self._tick)
            ending = ending or await asyncio.to_thread(self._ending, begun, bar, outcome)
            became = None if ending is None else await asyncio.to_thread(self._decide, begun, ending[0])
        error = None if ending is None else ending[1]
        if became is None and self._stopping.is_set():
            await self._stand_down(begun)
        elif became == "refused":
            await asyncio.to_thread(self._staging.discard, job, token)
        elif became == "committed" and isinstance(begun, Begun):
            await asyncio.to_thread(self._staging.publish, job, token, begun.release)
            self._say(f"{job}: committed as {begun.release}.")
        elif became == "concluded":
            self._say(f"{job}: concluded.")
        elif became in {"queued", "failed"}:
            await asyncio.to_thread(self._staging.discard, job, token)
            if error is None:
                self._say(f"{job}: given up: what it made may not leave, or its population was frozen or closed.")
            else:
                log = self._staging.log(job, token)  # of a process: there may have been none
                words = f" The worker's own log is {log}." if log.exists() else ""
                self._say(f"{job}: attempt {token} failed: {error}.{words}")

    async def _stand_down(self, begun: Begun | BegunAudit) -> None:
        """Leave the job to another worker. What is staged goes only if so it is: a commit may have been durable."""
        if await asyncio.to_thread(self._decide, begun, _stood_down(begun)) == "queued":
            await asyncio.to_thread(self._staging.discard, begun.job, begun.token)
            self._say(f"{begun.job}: stopped; it waits for another worker.")

    def _ending(self, begun: Begun | BegunAudit, bar: _Bar, outcome: Outcome) -> tuple[Decide, str | None] | None:
        """What is to be decided of an attempt that ended, and the code if it failed; None while nobody can tell."""
        job, token, error = begun.job, begun.token, outcome.error
        if isinstance(begun, BegunAudit):
            return _audit_ending(begun, outcome, delay_seconds=self._delay(token))
        if error is None:
            try:
                artifact = self._staging.measured(job, token) | {"uri": uri(begun.release)}
                found = self._audited(begun, sha256=artifact["sha256"])
                return jobs.commit(job=job, token=token, artifact=artifact, audited=found), None
            except Unreleasable:
                error = "unreleasable"
            except (
                SQLAlchemyError,
                psycopg.Error,
                TimeoutError,
            ):  # the file is whole, and the ledger is away
                _log.warning("what attempt %s of %s made cannot be checked yet", token, job, exc_info=True)
                return None
            except Exception:  # noqa: BLE001 - whatever keeps it from being looked at keeps it from leaving
                if self._renewed(begun, bar):  # else it is nobody's fault: what it made may have been tidied away
                    _log.exception("what attempt %s of %s made could not be checked", token, job)
                error = "internal"
        self._staging.discard(job, token)
        return jobs.fail(job=job, token=token, error=error, delay_seconds=self._delay(token)), error

    def _audited(self, begun: Begun, *, sha256: str) -> Audited:
        """What there is to say against what an attempt made, before it may leave."""
        parts = self._parts
        body = body_of(parts, begun.release)
        gathered = audits.Gathered(parts.database, parts.books, self._staging.root, body)
        contents = gathered.opened(self._staging.made(begun.job, begun.token))
        if contents.sha256 != sha256:
            raise OSError("the file changed while it was looked at")
        earlier, labels = gathered.earlier(), gathered.labels()
        with parts.books.read(begun.population) as book:
            return gathered.audit(book, contents, earlier=earlier, labels=labels)

    def _delay(self, token: int) -> float:
        return self._parts.settings.retry_after(token)

    def _decide(self, begun: Begun | BegunAudit, decide: Decide) -> str | None:
        """What became of the job, or "refused" if this attempt has no say any more; None if that is not known yet."""
        operation = Operation(population=begun.population, actor=jobs.WORKER, decide=decide, uses_sql=True)
        try:
            return str(self._parts.writer.submit(operation).result(_WAIT_SECONDS).document["status"])
        except Problem as problem:
            if problem.name == "busy":
                return None
            self._say(f"{begun.job}: {problem}")
            return "refused"
        except (SQLAlchemyError, psycopg.Error, TimeoutError):
            _log.warning("what became of attempt %s of %s is not known yet", begun.token, begun.job, exc_info=True)
            return None


def _stood_down(begun: Begun | BegunAudit) -> Decide:
    if isinstance(begun, BegunAudit):
        return empirical.stand_down(audit=begun.job, token=begun.token)
    return jobs.stand_down(job=begun.job, token=begun.token)


def _audit_ending(begun: BegunAudit, outcome: Outcome, *, delay_seconds: float) -> tuple[Decide, str | None]:
    error = outcome.error
    if error is None:
        try:
            return empirical.conclude(audit=begun.job, token=begun.token, found=outcome.found or {}), None
        except (InvalidInput, LookupError, TypeError, ValueError):
            _log.exception("what attempt %s of %s found cannot be read", begun.token, begun.job)
            error = "internal"
    return empirical.fail(audit=begun.job, token=begun.token, error=error, delay_seconds=delay_seconds), error


class _Bar:
    """How far an attempt is: for the job's row, and as a line on a terminal."""

    def __init__(self, begun: Begun | BegunAudit, say: Callable[[str], None]) -> None:
        self._begun, self._started = begun, time.monotonic()
        self._shown = sys.stderr.isatty()
        self.step, self.steps = 0, 0
        say(f"{begun.job}: attempt {begun.token} at {begun.mechanism} on {begun.population}.")

    def moved(self, step: int, steps: int) -> None:
        self.step, self.steps = step, steps

    def show(self) -> None:
        """One line that is written over again and again; on no terminal, nothing. ε is that of the whole release."""
        if not self._shown:
            return
        done = self.step / self.steps if self.steps else 0.0
        taken = time.monotonic() - self._started
        left = f"{taken / done - taken:.0f} s left" if done else "starting"
        epsilon = "" if self._begun.epsilon is None else f", ε ≤ {self._begun.epsilon:.4g} in all"
        bar = "#" * round(20 * done)
        line = f"{self._begun.job} [{bar:<20}] {self.step:,}/{self.steps:,}{epsilon}, {left}"
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()

    def end(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


async def _stop_at_end_of_input() -> None:
    """Whoever holds the other end of standard input is gone: stop as if by a signal."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait() -> None:
        while os.read(0, 4096):
            pass
        with suppress(RuntimeError):  # the loop may be gone before
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=wait, name="leash", daemon=True).start()
    await ended.wait()
    os.kill(os.getpid(), signal.SIGTERM)
