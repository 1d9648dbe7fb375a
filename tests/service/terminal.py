"""`stint …` as a process of its own, on a data folder of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO


@contextmanager
def short_folder() -> Iterator[Path]:
    """A data folder with a path short enough for a socket."""
    made = Path(tempfile.mkdtemp(prefix="stint-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def command(
    folder: Path,
    *words: str,
    port: int = 0,
    variables: Mapping[str, str] | None = None,
    errors: int | IO[str] = subprocess.PIPE,
) -> subprocess.Popen[str]:
    """`stint …` as a process of its own, in a process group of its own.

    Whoever has it run for long gives it a file for `errors`: a pipe that nobody reads is full at some time, and then
    whoever writes to it waits for ever.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STINT_", "DATABASE_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "service", *words],
        env=kept | {"STINT_DATA": str(folder), "STINT_PORT": str(port), **(variables or {})},
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        start_new_session=True,
    )


def stop(process: subprocess.Popen[str], with_signal: int = signal.SIGINT) -> tuple[str, str]:
    process.send_signal(with_signal)
    return process.communicate(timeout=60)


def lines_until(process: subprocess.Popen[str], wanted: str) -> list[str]:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if wanted in line:
            return lines
    raise AssertionError(f"it ended before {wanted!r}: {lines} {process.communicate()}")


def servers_of(folder: Path) -> list[str]:
    """Command lines of processes that work on the folder's PostgreSQL."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if "postgres" in words and str(folder) in words:
            found.append(words)
    return found


@dataclass
class Running:
    """A service that answers."""

    folder: Path
    url: str
    key: str
    process: subprocess.Popen[str]

    def restart(self) -> None:
        """Stop it, and start it again at the same address."""
        stop(self.process)
        self.process = command(
            self.folder, "run", "--no-demo", "--no-worker", "--json", port=int(self.url.rpartition(":")[2])
        )
        lines_until(self.process, "started")


@contextmanager
def service(*, worker: bool = False) -> Iterator[Running]:
    """A fresh service without a demo, and its admin key; with a worker beside it until it is restarted, if asked."""
    with short_folder() as folder:
        process = command(folder, "run", "--no-demo", *(() if worker else ("--no-worker",)), "--json")
        running: Running | None = None
        try:
            started = json.loads(lines_until(process, "started")[0])
            running = Running(folder=folder, url=started["url"], key=started["key"], process=process)
            yield running
        finally:
            stop(process if running is None else running.process)
