"""A worker beside a service in a terminal: started with it, started again should it die, and stopped before it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from service.settings import Settings

_STOP_SECONDS: Final = 20.0
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0


class Leash:
    """Holds the standard input of a worker's process: when this process dies, however it does, so does the worker."""

    def __init__(self, settings: Settings, *, database_url: str) -> None:
        self._environment = {
            **os.environ,
            "DATABASE_URL": database_url,
            "STINT_DATA": str(settings.data),
            "STINT_LOG_LEVEL": settings.log_level,
        }
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let go: what it runs is given back to the queue."""
        self._stopping.set()
        with self._lock:
            process = self._process
        if process is not None:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        wait = _FIRST_WAIT
        while True:
            with self._lock:
                if self._stopping.is_set():
                    return
                started = time.monotonic()
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "service", "worker", "--leashed"],
                    env=self._environment,
                    stdin=subprocess.PIPE,
                    start_new_session=True,  # a Ctrl-C of the terminal is for the service, which then stops it
                )
            with self._process as process:
                code = process.wait()
            if self._stopping.is_set():
                return
            if time.monotonic() - started > _LONGEST_WAIT:  # what ended it is not what ended those before
                wait = _FIRST_WAIT
            click.echo(f"stint: the worker ended with code {code}; another follows in {wait:g} s.", err=True)
            self._stopping.wait(wait)
            wait = min(2 * wait, _LONGEST_WAIT)
