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
    connections: int = _setting(
        "STINT_CONNECTIONS", 12, "the most connections to the database; two more than threads that decide, or more"
    )
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
    pause_seconds: float = _setting(
        "STINT_PAUSE_SECONDS", 30.0, "how long a transaction may pause before the database takes its locks from it"
    )
    artifacts: str = _setting(
        "STINT_ARTIFACTS",
        "",
        "the folder that workers publish to and the service sends from; empty: `artifacts` in the data folder",
    )
    inputs: str = _setting(
        "STINT_INPUTS",
        "",
        "URI prefixes that jobs may read data below, between spaces; empty: `inputs` in the data folder",
    )
    backbones: str = _setting(
        "STINT_BACKBONES",
        "",
        "a TOML or JSON file of the backbones that jobs may name; empty: none",
    )
    lease_seconds: float = _setting(
        "STINT_LEASE_SECONDS", 30.0, "how long a worker may be silent before its job is taken from it"
    )
    wait_seconds: float = _setting(
        "STINT_WAIT_SECONDS", 604_800.0, "how long a job may wait for a worker before its release is voided"
    )
    attempts: int = _setting("STINT_ATTEMPTS", 3, "how often a job is tried before its release is voided")
    job_seconds: float = _setting("STINT_JOB_SECONDS", 86_400.0, "the longest that one attempt at a job may take")
    log_level: str = _setting("STINT_LOG_LEVEL", "INFO", "DEBUG, INFO, WARNING or ERROR")

    @property
    def artifacts_folder(self) -> Path:
        """Where workers stage and publish."""
        return Path(self.artifacts) if self.artifacts else self.data / "artifacts"

    @property
    def allowed_inputs(self) -> list[str]:
        """Below what jobs may read."""
        return self.inputs.split() or [str((self.data / "inputs").resolve())]


MAX_HOLD_SECONDS: Final = 31_536_000  # a year, whoever asks for it: a setting or a proposal
#: A writer looks keys up on a second connection while it has one; with one to spare, they take turns.
CONNECTIONS_BESIDE_WRITERS: Final = 2

LEAST: Final[Mapping[str, float]] = {
    "port": 0, "connections": 1 + CONNECTIONS_BESIDE_WRITERS, "writers": 1, "batch": 1, "queue": 1, "requests": 1,
    "body_bytes": 1024, "upload_bytes": 1024, "hold_seconds": 1, "sweep_seconds": 0.01, "checkpoint_seconds": 1,
    "statement_seconds": 0.1, "pause_seconds": 1, "lease_seconds": 0.5, "wait_seconds": 1, "attempts": 1,
    "job_seconds": 1,
}  # fmt: skip
#: Beyond these a value is a slip, or something fails later and far away: a date, a port, PostgreSQL's own limits.
MOST: Final[Mapping[str, float]] = {
    "port": 65_535, "connections": 1000, "writers": 256, "batch": 10_000, "queue": 1_000_000, "requests": 100_000,
    "body_bytes": 2**30, "upload_bytes": 2**40, "hold_seconds": MAX_HOLD_SECONDS, "sweep_seconds": 3600,
    "checkpoint_seconds": 31_536_000, "statement_seconds": 86_400, "pause_seconds": 86_400, "lease_seconds": 86_400,
    "wait_seconds": 31_536_000, "attempts": 100, "job_seconds": 31_536_000,
}  # fmt: skip
CHOICES: Final[Mapping[str, tuple[str, ...]]] = {"log_level": ("DEBUG", "INFO", "WARNING", "ERROR")}


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
        _check(each.name, variable, text, found[each.name], each.metadata["meaning"])
    settings = Settings(**found)
    if settings.connections < settings.writers + CONNECTIONS_BESIDE_WRITERS:
        least = settings.writers + CONNECTIONS_BESIDE_WRITERS
        expected = f"at least {least}, {CONNECTIONS_BESIDE_WRITERS} more than STINT_WRITERS"
        raise InvalidInput("STINT_CONNECTIONS", settings.connections, expected)
    return settings


def _check(name: str, variable: str, text: str, value: Any, meaning: str) -> None:
    """Refuse a value outside its limits; one that is not a number at all is outside of any."""
    if name in LEAST and not value >= LEAST[name]:
        raise InvalidInput(variable, text, f"at least {LEAST[name]}: {meaning}")
    if name in MOST and not value <= MOST[name]:
        raise InvalidInput(variable, text, f"at most {MOST[name]}: {meaning}")
    if name in CHOICES and value not in CHOICES[name]:
        raise InvalidInput(variable, text, f"one of {', '.join(CHOICES[name])}")
