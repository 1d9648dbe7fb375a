"""A process that has imported what attempts need, and forks one for each: `python -m service.nursery FD`.

To import torch takes a second or two, to fork hardly any time. What an attempt is does not change: a process and a
session of its own, with its own line to the worker, that nobody else's rows were ever in. This process reads no row and
no document, opens no device and starts no thread of Python's; threads of the numerical libraries know how to be forked.

FD is a socket to the worker. A message that brings three descriptors starts an attempt: they are its line, its standard
error, and a pipe on which its number is told, and at the end its code. A message of such a number ends that attempt
with everything that it started. When the worker closes the socket, or dies, all attempts end, and so does this process.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
import threading
from contextlib import suppress
from typing import Final, NoReturn

from service import attempt
from trainers.catalog import CATALOG

_MOST_MESSAGE: Final = 64
_PR_SET_PDEATHSIG: Final = 1


def main(descriptor: int) -> None:
    """Serve until the worker is gone."""
    for each in CATALOG.values():
        if each.module is not None:
            importlib.import_module(each.module)
    gc.collect()
    gc.freeze()  # what all attempts share is not looked through in each of them, so its pages stay shared
    Nursery(socket.socket(fileno=descriptor)).serve()


class Nursery:
    """The attempts that were started and have not ended."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._statuses: dict[int, int] = {}  # by the attempt's number, where its code is told
        self._woken, self._waking = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waking)

    def serve(self) -> None:
        """Until the worker is gone; nothing is left then."""
        try:
            while True:
                ready, _, _ = select.select([self._control.fileno(), self._woken], [], [])
                if self._woken in ready:
                    os.read(self._woken, _MOST_MESSAGE)
                    self._bury()
                if self._control.fileno() in ready and not self._heard():
                    return
        finally:
            for number in self._statuses:
                _end(number)

    def _heard(self) -> bool:
        """Do what the next message says; False if there will be no more."""
        message, descriptors, _, _ = socket.recv_fds(self._control, _MOST_MESSAGE, 3)
        if descriptors:
            self._start(*descriptors)
        elif message and (number := int(message)) in self._statuses:
            _end(number)
        return bool(message)

    def _start(self, line: int, errors: int, status: int) -> None:
        assert threading.active_count() == 1, "a lock of another thread would stay locked in the child for ever"
        parent = os.getpid()
        number = os.fork()
        if number == 0:
            self._be_born(line, errors, status, parent=parent)
        os.close(line)
        os.close(errors)
        self._statuses[number] = status
        _tell(status, number)

    def _be_born(self, line: int, errors: int, status: int, *, parent: int) -> NoReturn:
        """In the child: leave everything behind that is not the attempt's, and become it."""
        try:
            _die_with(parent)
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for descriptor, place in ((line, 0), (nowhere, 1), (errors, 2)):
                os.dup2(descriptor, place)
            # Whoever waits for the last holder of one of these to be gone must not wait for this process.
            for each in (line, nowhere, errors, status, self._woken, self._waking, *self._statuses.values()):
                os.close(each)
            self._control.close()
            attempt.main(os.dup(0))
        finally:
            os._exit(1)

    def _bury(self) -> None:
        """Tell the worker of those that ended, and end what they left running."""
        for number in list(self._statuses):
            # Not reaped yet, so that its number cannot be another's while its session is ended.
            if os.waitid(os.P_PID, number, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            _end(number)
            _, code = os.waitpid(number, 0)
            status = self._statuses.pop(number)
            _tell(status, os.waitstatus_to_exitcode(code))
            os.close(status)


def _tell(status: int, number: int) -> None:
    with suppress(BrokenPipeError):  # the worker does not want to know any more
        os.write(status, b"%d\n" % number)


def _end(number: int) -> None:
    """A child that is not reaped, and its session if it has one yet."""
    os.kill(number, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.killpg(number, signal.SIGKILL)


def _die_with(parent: int) -> None:
    """When the parent dies, however it does, this process is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was too late to be told
        os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
