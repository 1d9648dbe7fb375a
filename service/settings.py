"""Every setting, in one place: an environment variable each, with a default that suits one machine.

docs/settings.md lists them, and a test compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from accountant.errors import InvalidInput


def _setting(variable: str, default: Any, meaning: str) -> Any:
    return field(default=default, metadata={"variable": variable, "meaning": meaning})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How this service runs."""

    database_url: str = _setting(
        "DATABASE_URL", "", "a PostgreSQL server; empty: an embedded one under the data folder"
    )
    data: Path = _setting("STINT_DATA", Path("data"), "the folder of the embedded PostgreSQL and secrets")  # noqa: RUF009
    host: str = _setting("STINT_HOST", "127.0.0.1", "the address to listen on")
    port: int = _setting("STINT_PORT", 8000, "the port to listen on; 0 takes a free one")
    connections: int = _setting("STINT_CONNECTIONS", 12, "the most connections to the database")
    writers: int = _setting("STINT_WRITERS", 4, "threads that decide; a population that waits is served by one of them")
    batch: int = _setting("STINT_BATCH", 64, "the most decisions that share one transaction")
    queue: int = _setting("STINT_QUEUE", 1024, "the most decisions that wait; more are told to come back")
    requests: int = _setting("STINT_REQUESTS", 512, "the most requests at a time; more are told to come back")
    body_bytes: int = _setting("STINT_BODY_BYTES", 16 * 2**20, "the largest request, other than a registration")
    upload_bytes: int = _setting("STINT_UPLOAD_BYTES", 2**32, "the largest registration of datapoints")
    hold_seconds: int = _setting("STINT_HOLD_SECONDS", 86_400, "how long a hold waits before it expires into spent")
    sweep_seconds: float = _setting("STINT_SWEEP_SECONDS", 1.0, "how often holds that ran out are looked for")
    checkpoint_seconds: float = _setting("STINT_CHECKPOINT_SECONDS", 3600.0, "how often all heads are signed")
    statement_seconds: float = _setting("STINT_STATEMENT_SECONDS", 60.0, "the longest SQL statement of a request")
    log_level: str = _setting("STINT_LOG_LEVEL", "INFO", "DEBUG, INFO, WARNING or ERROR")


LEAST: Final[Mapping[str, float]] = {
    "port": 0, "connections": 2, "writers": 1, "batch": 1, "queue": 1, "requests": 1, "body_bytes": 1024,
    "upload_bytes": 1024, "hold_seconds": 1, "sweep_seconds": 0.01, "checkpoint_seconds": 1, "statement_seconds": 0.1,
}  # fmt: skip


def from_environment(environment: Mapping[str, str]) -> Settings:
    """The settings that these variables say; a value that cannot be read is an error that names its variable."""
    found: dict[str, Any] = {}
    for each in fields(Settings):
        variable = each.metadata["variable"]
        if variable not in environment:
            continue
        text, default = environment[variable], each.default
        try:
            match default:
                case Path():
                    found[each.name] = Path(text)
                case int() | float():
                    found[each.name] = type(default)(text)
                case _:
                    found[each.name] = text
        except ValueError:
            raise InvalidInput(variable, text, f"a value like {each.default}: {each.metadata['meaning']}") from None
        if each.name in LEAST and not found[each.name] >= LEAST[each.name]:
            raise InvalidInput(variable, text, f"at least {LEAST[each.name]:g}: {each.metadata['meaning']}")
    return Settings(**found)
