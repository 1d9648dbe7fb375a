"""What needs no open book, done once: the effect and the remembered answer share one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from psycopg.errors import UniqueViolation
from sqlalchemy.exc import IntegrityError

from service.store.writer import Answer, Idempotency

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from sqlalchemy import Connection

    from service.store.database import Database

#: What a row that is there already is refused with, by SQLAlchemy and by the driver.
ALREADY_THERE = (IntegrityError, UniqueViolation)
#: The answer of now, and the one that repetitions get: they differ where a secret is shown once.
Answers: TypeAlias = tuple[Answer, Answer]


def once(
    database: Database, idempotency: Idempotency | None, work: Callable[[Connection], Answers], *, at: datetime
) -> Answer:
    """Do the work and remember its answer, or find the answer that the same request had before."""
    try:
        with database.transaction() as connection:
            if idempotency is not None and (known := idempotency.answered(connection)) is not None:
                return known
            answer, kept = work(connection)
            if idempotency is not None:
                idempotency.remember(connection, kept, at)
            return answer
    except ALREADY_THERE:
        if idempotency is not None:
            with database.transaction() as connection:  # whoever was first may have been the same request
                if (known := idempotency.answered(connection)) is not None:
                    return known
        raise
