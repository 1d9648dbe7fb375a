"""Delivers webhooks: a thread of its own, since a receiver may be slow and holds must not wait for it."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import httpx

from service.operations import webhooks
from service.settings import webhook_key

if TYPE_CHECKING:
    from service.api.context import Parts
    from service.operations.webhooks import Taken

_log = logging.getLogger(__name__)
_AGENT: Final = "stint-webhooks/1"


class Messenger:
    """Looks again and again for what is to be told, until it is closed; what is under way then is told again later."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._loop = asyncio.new_event_loop()
        self._work = self._loop.create_task(self._deliver())
        self._thread = threading.Thread(target=self._run, name="messenger", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End, in the middle of a delivery if there is one."""
        self._loop.call_soon_threadsafe(self._work.cancel)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(asyncio.wait([self._work]))
        finally:
            self._loop.close()

    async def _deliver(self) -> None:
        while True:
            try:
                while await deliver_next(self._parts):
                    pass
            except Exception:  # noqa: BLE001 - a messenger that died would tell nobody anything any more
                _log.warning("webhooks could not be looked after, and will be again", exc_info=True)
            await asyncio.sleep(self._parts.settings.sweep_seconds)


async def deliver_next(parts: Parts) -> bool:
    """Try to deliver one webhook that is due; whether there was any."""
    taken = webhooks.take(parts.database)
    if taken is not None:
        error = await _sent(parts, taken)
        parts.metrics.deliveries.labels("delivered" if error is None else "failed").inc()
        if error is None:
            webhooks.delivered(parts.database, taken)
            _log.info("webhook %s of audit %s was delivered", taken.id, taken.audit)
        else:
            webhooks.failed(parts.database, taken, error)
            _log.warning(
                "webhook %s of audit %s was not delivered, try %d of %d: %s",
                taken.id, taken.audit, taken.tries, webhooks.TRIES, error,
            )  # fmt: skip
    for name, audit, error in webhooks.give_up(parts.database):
        parts.metrics.deliveries.labels("given_up").inc()
        _log.error("webhook %s of audit %s is given up; the last try: %s", name, audit, error)
    return taken is not None


async def _sent(parts: Parts, taken: Taken) -> str | None:
    """What went wrong, in a word; None if the receiver has it.

    It has as long as is set for all of it, redirects are not followed, and nothing of its answer is read but the
    status. Only a 2xx says that it has it. The address is in no log: it may have a token in it.
    """
    settings = parts.settings
    key = webhook_key(settings.webhook_secret)
    assert key is not None, "settings are checked at the start"
    content = webhooks.body(parts.database, parts.books, taken)
    headers = webhooks.headers(taken.id, content, key=key, at=datetime.now(UTC)) | {"user-agent": _AGENT}
    try:
        async with (
            asyncio.timeout(webhooks.ANSWER_SECONDS),
            httpx.AsyncClient(follow_redirects=False, timeout=webhooks.ANSWER_SECONDS) as client,
            client.stream("POST", settings.webhook_url, content=content, headers=headers) as answer,
        ):
            return None if answer.is_success else f"status.{answer.status_code}"
    except (TimeoutError, httpx.TimeoutException):
        return "timeout"
    except (httpx.HTTPError, httpx.InvalidURL, OSError):
        return "unreachable"
