"""Where an attempt runs. Here it is a child process; an engine for many machines would be another `Placement`.

An attempt gets its document, and says how far it is, which keys it wants to have looked up, and how it ended. That is
all that passes: its own words go to a private file of the worker.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from service.operations.jobs import ERRORS

_MOST_LINE: Final = 16 << 20
_MOST_LOG: Final = 1 << 20
_PIECE: Final = 1 << 16
#: Signals that a process brings upon itself; all others were sent by somebody.
_CRASHES: Final = frozenset(
    {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS, signal.SIGTRAP}
)
#: Variables that the service reads, and those that PostgreSQL's own clients do (PGPASSWORD, PGSERVICEFILE, …).
_OF_THE_LEDGER: Final = re.compile(r"STINT_|DATABASE_URL$|PG[A-Z]+$")


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One run of a job's mechanism, with the ways in which it may speak to its worker."""

    document: Mapping[str, Any]
    log: Path
    progress: Callable[[int, int], None]  # steps done, of how many
    ordinals_of: Callable[[Sequence[str]], Awaitable[list[int]]]  # of keys, −1 for one that nobody has


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How an attempt ended: it is staged, or there is a code that says why not. `found` is what an audit found."""

    error: str | None
    found: Mapping[str, Any] | None = None


class Placement(Protocol):
    """Somewhere to run attempts. To cancel `run` is to end the attempt, wherever it is."""

    async def run(self, attempt: Attempt, /) -> Outcome: ...


class ChildProcess:
    """Here, in a process of its own: it alone imports torch, and whatever it does the worker's heart goes on beating.

    The document goes in by standard input and never stands among its arguments. When this process dies its standard
    input ends, and then it ends too.
    """

    async def run(self, attempt: Attempt, /) -> Outcome:
        """Start, listen, and see to it that nothing is left."""
        reading, writing = os.pipe()
        try:
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "service.attempt", str(writing),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
                pass_fds=(writing,), start_new_session=True, env=_environment(),
            )  # fmt: skip
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        try:
            kept = asyncio.create_task(_keep(child.stderr, attempt.log))
            said = await _listen(reading, child, attempt)
            code = await child.wait()
            await kept
            if said is None:
                return Outcome(error="killed" if code < 0 and -code not in _CRASHES else "internal")
            return said
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()


async def _listen(reading: int, child: asyncio.subprocess.Process, attempt: Attempt) -> Outcome | None:
    """What the child ends with; None if it does not say."""
    assert child.stdin is not None
    lines = asyncio.StreamReader(limit=_MOST_LINE)
    pipe = os.fdopen(reading, "rb")
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), pipe)
    try:
        await _say(child, attempt.document)
        while line := await lines.readline():
            match json.loads(line):
                case {"step": [int(done), int(of)]} if 0 <= done <= of < 2**62:
                    attempt.progress(done, of)
                case {"keys": list(keys)}:
                    await _say(child, await attempt.ordinals_of(keys))
                case {"ended": str(error), "found": dict(found)} if error == "":
                    return Outcome(error=None, found=found)
                case {"ended": str(error)} if error in {"", *ERRORS}:
                    return Outcome(error=error or None)
                case _:
                    return None
    except (ConnectionError, ValueError):  # it ended before it was told all, or talks nonsense
        return None
    finally:
        transport.close()
    return None


async def _say(child: asyncio.subprocess.Process, document: object) -> None:
    assert child.stdin is not None
    child.stdin.write(json.dumps(document).encode() + b"\n")
    await child.stdin.drain()


async def _keep(words: asyncio.StreamReader | None, log: Path) -> None:
    """The beginning of what the child says, for whoever has the worker's machine."""
    assert words is not None
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        while piece := await words.read(_PIECE):
            if file.tell() < _MOST_LOG:
                file.write(piece)
                file.flush()


def _environment() -> dict[str, str]:
    """What the child may know of this process: not where the ledger is, nor its secrets."""
    return {name: value for name, value in os.environ.items() if not _OF_THE_LEDGER.match(name)}
