"""Where an attempt runs. Here it is a child process; an engine for many machines would be another `Placement`.

An attempt gets its document, and says how far it is, which keys it wants to have looked up, and how it ended. That is
all that passes: its own words go to a private file of the worker.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, Self

from service.operations.jobs import ERRORS
from trainers.catalog.data_documents import LOCAL, split

_log = logging.getLogger(__name__)
_LOOK_SECONDS: Final = 300  # to import torch and backbones, also from a slow disk
_END_SECONDS: Final = 5.0
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
        assert child.stdin is not None
        assert child.stderr is not None
        try:
            kept = asyncio.create_task(_keep(child.stderr, attempt.log))
            async with _read(reading) as lines:
                said = await _listen(lines, child.stdin, attempt)
            code = await child.wait()
            await kept
            return _outcome(said, code)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()


class Forked:
    """The same, forked from a process that has imported everything already: a short job need not wait for torch.

    That process (`service.nursery`) is started with the first attempt and lasts as long as this. Should it be lost, or
    not be able to fork, the attempt is a child process.
    """

    def __init__(self) -> None:
        self._nursery: _Nursery | None = None

    def __enter__(self) -> Self:
        """Nothing runs before the first attempt."""
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left."""
        self._lose()

    async def run(self, attempt: Attempt, /) -> Outcome:
        """Have one forked, listen, and see to it that nothing is left."""
        ours, theirs = socket.socketpair()
        errors, errors_end = os.pipe()
        status, status_end = os.pipe()
        try:
            self._send(b"attempt", theirs.fileno(), errors_end, status_end)
        finally:
            theirs.close()
            os.close(errors_end)
            os.close(status_end)
        async with _read(errors) as words, _read(status) as numbers:
            lines, line = await asyncio.open_connection(sock=ours, limit=_MOST_LINE)
            kept = asyncio.create_task(_keep(words, attempt.log))
            ended = False
            number = b""
            try:
                if number := await numbers.readline():
                    said = await _listen(lines, line, attempt)
                    code = await numbers.readline()
                    ended = True
                    await kept
                    return _outcome(said, int(code or -signal.SIGKILL))
            finally:
                line.close()
                if not ended:
                    await self._end(number, numbers, kept)
        _log.warning("no attempt can be forked, and each is a process that starts from nothing")
        return await ChildProcess().run(attempt)

    def _send(self, message: bytes, *descriptors: int) -> None:
        """To the process that forks; one that has ended is replaced."""
        if self._nursery is None or self._nursery.process.poll() is not None:
            self._lose()
            self._nursery = _Nursery.started()
        with suppress(OSError):  # it ends at this very moment, and whoever waits for an answer reads that there is none
            socket.send_fds(self._nursery.control, [message], descriptors)

    async def _end(self, number: bytes, numbers: asyncio.StreamReader, kept: asyncio.Task[None]) -> None:
        """End an attempt that may still run, and know that it is gone: its standard error ends with it."""
        told = b""
        if number:
            self._send(number.strip())
            with suppress(TimeoutError):
                async with asyncio.timeout(_END_SECONDS):
                    told = await numbers.read()
        if not told:
            self._lose()  # what it forked dies with it, a moment later
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await kept

    def _lose(self) -> None:
        nursery, self._nursery = self._nursery, None
        if nursery is not None:
            nursery.control.close()
            nursery.process.kill()
            nursery.process.wait()


@dataclass(frozen=True)
class _Nursery:
    process: subprocess.Popen[bytes]
    control: socket.socket

    @classmethod
    def started(cls) -> Self:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - a number is all that varies
                [sys.executable, "-m", "service.nursery", str(theirs.fileno())],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),), start_new_session=True, env=_environment(),
            )  # fmt: skip
        return cls(process, ours)


def undriven(prefixes: Sequence[str]) -> str | None:
    """Below which URI prefix attempts could read nothing on this machine, in one line; None if there is none such."""
    schemes = {found[0]: prefix for prefix in prefixes if (found := split(prefix)) is not None}
    for scheme, prefix in schemes.items():
        if scheme in LOCAL:
            continue
        import fsspec  # type: ignore[import-untyped]  # noqa: PLC0415 - most have no remote data

        try:
            fsspec.get_filesystem_class(scheme)
        except (ImportError, ValueError) as problem:  # no driver is installed, or nobody knows one
            return f"{prefix} cannot be read on this machine: {problem}"
    return None


def lacking(*, device: str, backbones: str) -> str | None:
    """What attempts would lack on this machine, in one line; None if nothing. A processor is always there."""
    if device == "cpu" and not backbones:
        return None
    try:
        asked = subprocess.run(  # noqa: S603 - words of whoever starts the worker
            [sys.executable, "-m", "service.equipment", device, backbones],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, env=_environment(), check=False,
            timeout=_LOOK_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"whether attempts could run on {device} was not known after {_LOOK_SECONDS} seconds: look at the device"
    return (asked.stderr.splitlines() or [f"ended with {asked.returncode}"])[-1] if asked.returncode else None


def _outcome(said: Outcome | None, code: int) -> Outcome:
    """What the attempt said; if it said nothing, what its end tells."""
    if said is None:
        return Outcome(error="killed" if code < 0 and -code not in _CRASHES else "internal")
    return said


@asynccontextmanager
async def _read(descriptor: int) -> AsyncIterator[asyncio.StreamReader]:
    """What comes out of a pipe."""
    lines = asyncio.StreamReader(limit=_MOST_LINE)
    pipe = os.fdopen(descriptor, "rb")
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), pipe)
    try:
        yield lines
    finally:
        transport.close()


async def _listen(lines: asyncio.StreamReader, line: asyncio.StreamWriter, attempt: Attempt) -> Outcome | None:
    """What the attempt ends with; None if it does not say."""
    try:
        await _say(line, attempt.document)
        while said := await lines.readline():
            match json.loads(said):
                case {"step": [int(done), int(of)]} if 0 <= done <= of < 2**62:
                    attempt.progress(done, of)
                case {"keys": list(keys)}:
                    await _say(line, await attempt.ordinals_of(keys))
                case {"ended": str(error), "found": dict(found)} if error == "":
                    return Outcome(error=None, found=found)
                case {"ended": str(error)} if error in {"", *ERRORS}:
                    return Outcome(error=error or None)
                case _:
                    return None
    except (ConnectionError, ValueError):  # it ended before it was told all, or talks nonsense
        return None
    return None


async def _say(line: asyncio.StreamWriter, document: object) -> None:
    line.write(json.dumps(document).encode() + b"\n")
    await line.drain()


async def _keep(words: asyncio.StreamReader, log: Path) -> None:
    """The beginning of what the child says, for whoever has the worker's machine."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        while piece := await words.read(_PIECE):
            if file.tell() < _MOST_LOG:
                file.write(piece)
                file.flush()


def _environment() -> dict[str, str]:
    """What the child may know of this process: not where the ledger is, nor its secrets."""
    return {name: value for name, value in os.environ.items() if not _OF_THE_LEDGER.match(name)}
