"""Run the service until it is told to stop."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any

import uvicorn

from service import logs
from service.app import create_app, running
from service.dashboard import pages
from service.operations import keys

if TYPE_CHECKING:
    from collections.abc import Callable

    from service.api.context import Parts
    from service.settings import Settings

_DRAIN_SECONDS = 20
_BACKLOG = 2048
# The loop and the writers share one interpreter, and give it away at every wait for a socket. Getting it back from a
# thread that computes takes up to this long; with Python's 5 ms a transaction of four round trips would take 20 ms.
_SWITCH_SECONDS = 0.0005


def serve(settings: Settings, *, started: Callable[[Parts, str, str | None], Any]) -> None:
    """Serve until SIGINT or SIGTERM: requests under way are answered, queued decisions made, then all is closed.

    `started` hears the address, and the secret of the first key if this is the first start. If it returns something to
    call, that is called when no request is answered any more, while the database is still there.
    """
    logs.configure(settings.log_level)
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) in {signal.SIG_DFL, signal.default_int_handler}:  # else the caller sees to it
                signal.signal(number, _leave)
    sys.setswitchinterval(_SWITCH_SECONDS)
    with running(settings) as parts, _listening(settings) as listener:
        first = keys.ensure_first(parts.database)
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        config = uvicorn.Config(
            create_app(parts), log_config=None, timeout_graceful_shutdown=_DRAIN_SECONDS, lifespan="on",
            access_log=False, server_header=False, proxy_headers=False, timeout_keep_alive=30,
        )  # fmt: skip
        pages.environment()  # here, or an early request would make another
        threading.Thread(target=pages.get_ready, name="templates", daemon=True).start()
        ending = started(parts, f"http://{shown}:{port}", first)
        try:
            uvicorn.Server(config).run(sockets=[listener])
        finally:
            if ending is not None:
                ending()


def _leave(_number: int, _frame: object) -> None:
    """End as if the program had come to its end. uvicorn drains, then raises the signal once more; by default that
    would end the process on the spot, with PostgreSQL running and decisions in the queue."""
    raise SystemExit(0)


def _listening(settings: Settings) -> socket.socket:
    """Listening before anything is promised: the printed address is the right one, and who comes early waits."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
