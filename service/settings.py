"""Every setting, in one place: an environment variable each, with a default that suits one machine.

docs/settings.md lists them, and a test compares.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from accountant.errors import InvalidInput


def _setting(variable: str, default: Any, meaning: str, *, secret: bool = False) -> Any:
    return field(default=default, repr=not secret, metadata={"variable": variable, "meaning": meaning})


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
    require_data_rules: int = _setting(
        "STINT_REQUIRE_DATA_RULES",
        0,
        "1: a job is refused unless its population's policy says whose the rows of its file are; 0: its word will do",
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
    retry_seconds: float = _setting(
        "STINT_RETRY_SECONDS",
        10.0,
        "how long a job waits before its second attempt; before each one after that twice as long, up to 5 minutes",
    )
    job_seconds: float = _setting("STINT_JOB_SECONDS", 86_400.0, "the longest that one attempt at a job may take")
    webhook_url: str = _setting(
        "STINT_WEBHOOK_URL",
        "",
        "where to tell that an audit found a violation, http or https; empty: nowhere",
        secret=True,  # addresses of receivers often have a token in them
    )
    webhook_secret: str = _setting(
        "STINT_WEBHOOK_SECRET",
        "",
        "signs what is told there: `whsec_` and the base64 of 24 to 64 random bytes",
        secret=True,
    )
    log_level: str = _setting("STINT_LOG_LEVEL", "INFO", "DEBUG, INFO, WARNING or ERROR")

    @property
    def artifacts_folder(self) -> Path:
        """Where workers stage and publish."""
        return Path(self.artifacts) if self.artifacts else self.data / "artifacts"

    @property
    def allowed_inputs(self) -> list[str]:
        """Below what jobs may read."""
        return located("STINT_INPUTS", self.inputs.split() or [str((self.data / "inputs").resolve())])

    def retry_after(self, attempt: int) -> float:
        """How many seconds a job waits once this attempt at it came to nothing; never until nobody seems to serve it.

        >>> [Settings(retry_seconds=10.0).retry_after(attempt) for attempt in (1, 2, 3, 1000)]
        [10.0, 20.0, 40.0, 300]
        """
        doublings = min(attempt - 1, 10)
        return min(self.retry_seconds * 2.0**doublings, MOST["retry_seconds"], self.wait_seconds / 2)


MAX_HOLD_SECONDS: Final = 31_536_000  # a year, whoever asks for it: a setting or a proposal
#: A writer looks keys up on a second connection while it has one; with one to spare, they take turns.
CONNECTIONS_BESIDE_WRITERS: Final = 2

LEAST: Final[Mapping[str, float]] = {
    "port": 0, "connections": 1 + CONNECTIONS_BESIDE_WRITERS, "writers": 1, "batch": 1, "queue": 1, "requests": 1,
    "body_bytes": 1024, "upload_bytes": 1024, "hold_seconds": 1, "sweep_seconds": 0.01, "checkpoint_seconds": 1,
    "statement_seconds": 0.1, "pause_seconds": 1, "lease_seconds": 0.5, "wait_seconds": 1, "attempts": 1,
    "retry_seconds": 0, "job_seconds": 1, "require_data_rules": 0,
}  # fmt: skip
#: Beyond these a value is a slip, or something fails later and far away: a date, a port, PostgreSQL's own limits.
MOST: Final[Mapping[str, float]] = {
    "port": 65_535, "connections": 1000, "writers": 256, "batch": 10_000, "queue": 1_000_000, "requests": 100_000,
    "body_bytes": 2**30, "upload_bytes": 2**40, "hold_seconds": MAX_HOLD_SECONDS, "sweep_seconds": 3600,
    "checkpoint_seconds": 31_536_000, "statement_seconds": 86_400, "pause_seconds": 86_400, "lease_seconds": 86_400,
    "wait_seconds": 31_536_000, "attempts": 100, "retry_seconds": 300, "job_seconds": 31_536_000,
    "require_data_rules": 1,
}  # fmt: skip
WEBHOOK_PREFIX: Final = "whsec_"
WEBHOOK_KEY_BYTES: Final = range(24, 65)
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
    _check_webhook(settings)
    return settings


def located(name: str, prefixes: Sequence[str]) -> list[str]:
    """URI prefixes as those who compare them need them: a path of this machine begins at its root.

    With one that cannot be compared, nothing could be read below any other either.
    """
    from trainers.catalog.data_documents import split  # noqa: PLC0415 - a price must not wait for it

    absolute = [each if "://" in each else str(Path(each).absolute()) for each in prefixes]
    for each, prefix in zip(prefixes, absolute, strict=True):
        if not each or split(prefix) is None:
            expected = "a path, or a URI like file:///data/ or s3://bucket/data/, without steps up, escapes or queries"
            raise InvalidInput(name, each, expected)
    return absolute


def _check_webhook(settings: Settings) -> None:
    """Refuse an address that nothing can be sent to, and one without a secret; neither is shown, even if it is wrong.

    What cannot be read at the start would be found out when a violation is to be told.
    """
    url, secret = settings.webhook_url, settings.webhook_secret
    if url and not _is_address(url):
        raise InvalidInput("STINT_WEBHOOK_URL", _hidden(url), "an address like https://example.org/stint")
    if secret and webhook_key(secret) is None:
        expected = "whsec_ and the base64 of 24 to 64 random bytes, as `openssl rand -base64 32` makes them"
        raise InvalidInput("STINT_WEBHOOK_SECRET", _hidden(secret), expected)
    if bool(url) != bool(secret):
        there, missing = ("URL", "SECRET") if url else ("SECRET", "URL")
        raise InvalidInput(f"STINT_WEBHOOK_{missing}", "", f"to be set, since STINT_WEBHOOK_{there} is")


def webhook_key(secret: str) -> bytes | None:
    """The bytes that a secret spells as Standard Webhooks do; None if it spells none."""
    try:
        key = base64.b64decode(secret.removeprefix(WEBHOOK_PREFIX).encode(), validate=True)
    except ValueError:
        return None
    return key if secret.startswith(WEBHOOK_PREFIX) and len(key) in WEBHOOK_KEY_BYTES else None


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port  # out of range, or no number
    except ValueError:
        return False
    plain = url.isascii() and url.isprintable() and " " not in url and "\\" not in url
    return plain and parts.scheme in {"http", "https"} and bool(parts.hostname) and port != 0 and not parts.fragment


def _hidden(text: str) -> str:
    return f"{len(text)} characters"


def _check(name: str, variable: str, text: str, value: Any, meaning: str) -> None:
    """Refuse a value outside its limits; one that is not a number at all is outside of any."""
    if name in LEAST and not value >= LEAST[name]:
        raise InvalidInput(variable, text, f"at least {LEAST[name]}: {meaning}")
    if name in MOST and not value <= MOST[name]:
        raise InvalidInput(variable, text, f"at most {MOST[name]}: {meaning}")
    if name in CHOICES and value not in CHOICES[name]:
        raise InvalidInput(variable, text, f"one of {', '.join(CHOICES[name])}")
