"""/healthz, /readyz and /metrics: for machines that watch machines."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from sqlalchemy.exc import SQLAlchemyError

from service.api.context import Service
from service.errors import Problem
from service.operations import empirical, jobs, webhooks
from service.store.database import is_current

router = APIRouter(tags=["system"])
_UNREADY: dict[int | str, dict[str, Any]] = {503: {"description": "Not ready"}}


@router.get("/healthz", summary="Alive")
async def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz", responses=_UNREADY, summary="Ready to decide")
def readyz(parts: Service) -> dict[str, str]:
    """The database answers and has the right migrations, and there is somebody to decide."""
    if not parts.writer.is_alive:
        raise Problem("unavailable", "A writer has stopped: start the service again.")
    try:
        with parts.database.transaction() as connection:
            current = is_current(connection)
    except SQLAlchemyError:
        raise Problem("unavailable", "The database does not answer.") from None
    if not current:
        raise Problem("unavailable", "The database lacks migrations of this version: run `stint migrate`.")
    return {"status": "ready"}


@router.get("/metrics", summary="Prometheus metrics", response_class=Response)
def metrics(parts: Service) -> Response:
    """Requests, decisions, queues, jobs, audits and webhooks; nothing about anybody."""
    with suppress(SQLAlchemyError):  # without the database the rest is worth knowing all the more
        for status, count in jobs.counts(parts.database).items():
            parts.metrics.jobs.labels(status).set(count)
        for (status, verdict), count in empirical.counts(parts.database).items():
            parts.metrics.audits.labels(status, verdict).set(count)
        for status, count in webhooks.counts(parts.database).items():
            parts.metrics.webhooks.labels(status).set(count)
    return Response(generate_latest(parts.metrics.registry), media_type=CONTENT_TYPE_LATEST)
