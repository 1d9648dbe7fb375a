"""How an action reaches the writer: once, however often its form is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from service.api.context import decided
from service.errors import Problem
from service.schemas import control_in
from service.store.writer import Idempotency

if TYPE_CHECKING:
    from service.dashboard.pages import Asked
    from service.store.writer import Answer, Decide

_NOT_ASKED = frozenset({"csrf", "once"})


def idempotency(asked: Asked) -> Idempotency:
    """The name under which this form has one effect: what it carries, and what was filled in."""
    fields = sorted((name, values) for name, values in asked.form.fields.items() if name not in _NOT_ASKED)
    request = f"{asked.request.method} {asked.request.url.path}?{asked.request.url.query}\n{fields!r}".encode()
    secret = asked.parts.secrets.datapoints
    return Idempotency.of(actor=asked.actor.id, key=f"form:{asked.form.once}", request=request, secret=secret)


async def carried_out(asked: Asked, population: str, operation: Decide, *, uses_sql: bool = False) -> Answer:
    """The answer of an operation, once it is durable."""
    return await decided(asked.parts, asked.actor, population, operation, idempotency(asked), uses_sql=uses_sql)


def reason_of(asked: Asked, *, most: int = 200) -> str:
    """The reason that the ledger keeps: one that says something."""
    found = asked.form.text("reason")
    if found is None or len(found) > most:
        raise Problem("invalid", f"Say why, in 1 to {most:,} characters: the ledger keeps it.", "reason")
    if (problem := control_in(found)) is not None:
        raise Problem("invalid", f"Say why, in words: {problem}.", "reason")
    return found


def must_be_confirmed(asked: Asked) -> None:
    """Refuse what was sent without the tick that says that it is meant."""
    if not asked.form.ticked("sure"):
        raise Problem("invalid", "Tick the box that says that you mean it.", "sure")
