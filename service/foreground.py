"""A service in a terminal: from its first line to the signal that ends it, with nothing left behind."""

from __future__ import annotations

import errno
import json
import signal
import socket
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from service.leash import Leash

# What serves is imported where it is used: a price must not wait for a web server.
if TYPE_CHECKING:
    from service.api.context import Parts
    from service.settings import Settings


class CouldNot(Exception):
    """It could not run; the message is one line for the reader."""


@contextmanager
def database_problems() -> Iterator[None]:
    """A database that cannot be reached or read is one line."""
    import psycopg  # noqa: PLC0415
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415

    try:
        yield
    except (SQLAlchemyError, psycopg.Error) as problem:
        cause = getattr(problem, "orig", None) or problem
        raise CouldNot(f"the database cannot be used: {str(cause).splitlines()[0]}") from None
    except subprocess.SubprocessError as problem:
        raise CouldNot(f"the embedded PostgreSQL did not start: {problem}") from None


class Foreground:
    """A service in this terminal, from its first line to its last."""

    def __init__(self, settings: Settings, *, demo: bool, worker: bool, as_json: bool) -> None:
        self._settings, self._demo, self._worker, self._as_json = settings, demo, worker, as_json
        self._asked_to_stop = False
        self._may_stop = bool(settings.database_url)  # an embedded PostgreSQL is first started, then stopped
        self._making: threading.Thread | None = None

    def run(self) -> None:
        from service.serve import serve as serve_until_stopped  # noqa: PLC0415

        self._port_must_be_free()
        before = {each: signal.signal(each, self._stop) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            with warnings.catch_warnings(), database_problems():
                warnings.filterwarnings(
                    "ignore", ".*never awaited", RuntimeWarning
                )  # of a stop before the first request
                serve_until_stopped(self._settings, started=self._started)
        except KeyboardInterrupt:
            pass
        except CouldNot:
            if not self._asked_to_stop:  # a Ctrl-C reaches the starting PostgreSQL too
                raise
        except OSError as problem:
            raise self._cannot_listen(problem) from None
        finally:
            if self._making is not None:
                self._making.join(timeout=5)
            for each, handler in before.items():
                signal.signal(each, handler)
        self._say("Stopped.", event="stopped")

    def _stop(self, *_: object) -> None:
        """The first signal ends the service as soon as that leaves nothing behind; more of them change nothing."""
        first, self._asked_to_stop = not self._asked_to_stop, True
        if first and self._may_stop:
            raise KeyboardInterrupt

    def _started(self, parts: Parts, url: str, first_key: str | None) -> Callable[[], None] | None:
        self._may_stop = True
        lines = [f"Stint is running at {url}"]
        if first_key is not None:
            lines += [
                f"Admin key: {first_key}",
                "It is shown this once and stored as a hash only. To use it in a shell:",
                f"  export STINT_URL={url} STINT_KEY={first_key}",
            ]
        self._say("\n".join([*lines, "Ctrl-C stops everything."]), event="started", url=url, key=first_key)
        if self._asked_to_stop:
            raise KeyboardInterrupt
        if self._demo:
            self._making = threading.Thread(target=self._make_demo, args=(parts,), name="demo", daemon=True)
            self._making.start()
        return Leash(self._settings, database_url=parts.database.url).stop if self._worker else None

    def _make_demo(self, parts: Parts) -> None:
        """Inside the service, since its times are made up too."""
        import psycopg  # noqa: PLC0415
        from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415

        from service import demo  # noqa: PLC0415
        from service.errors import NotFound, Problem  # noqa: PLC0415

        started = time.monotonic()
        try:
            with suppress(NotFound), parts.books.read(demo.POPULATION) as book:
                if len(book.releases) >= demo.proposals():
                    self._say(f"Demo population: {demo.POPULATION} (there already).", event="demo", steps=0)
                    return
            steps = demo.make(parts, now=datetime.now(UTC), is_stopped=lambda: self._asked_to_stop)
        except (Problem, SQLAlchemyError, psycopg.Error, TimeoutError) as problem:
            if not self._asked_to_stop:
                click.echo(f"stint: the demo population is not complete: {problem}", err=True)
            return
        if self._asked_to_stop:
            return
        seconds = time.monotonic() - started
        self._say(
            f"Demo population: {demo.POPULATION} ({steps} steps of made-up history in {seconds:.1f} s).",
            event="demo",
            steps=steps,
        )

    def _say(self, text: str, **document: Any) -> None:
        if self._as_json:
            click.echo(json.dumps(document, ensure_ascii=False))
        else:
            click.echo(text)

    def _port_must_be_free(self) -> None:
        """Said before PostgreSQL is started; whoever takes the port after this is met when the service binds it."""
        try:
            where = socket.getaddrinfo(self._settings.host, self._settings.port, type=socket.SOCK_STREAM)[0]
            with socket.socket(where[0], socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(where[4])
        except OSError as problem:
            raise self._cannot_listen(problem) from None

    def _cannot_listen(self, problem: OSError) -> CouldNot:
        host, port = self._settings.host, self._settings.port
        if problem.errno == errno.EADDRINUSE:
            return CouldNot(f"port {port} of {host} is taken: stop what listens there, or choose another with --port")
        return CouldNot(f"cannot serve at {host}:{port}: {problem.strerror or problem}")
