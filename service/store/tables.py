"""The tables, as the code uses them. migrations/ makes them; a test proves that the two agree."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData(naming_convention={"pk": "%(table_name)s_pkey", "fk": "%(table_name)s_%(column_0_name)s_fkey"})
_AT = DateTime(timezone=True)

#: One row per population: the head of its chain. To decide is to lock this row.
population = Table(
    "population",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("name", Text, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Column("root", LargeBinary, nullable=False),
    Column("created_at", _AT, nullable=False),
    UniqueConstraint("name", name="one_population_per_name"),
)

#: The truth. Only grows.
entry = Table(
    "entry",
    metadata,
    Column("population_id", BigInteger, ForeignKey("population.id"), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("previous", LargeBinary, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Column("kind", Text, nullable=False),
    Column("release", Text),
    Column("at", _AT, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("entries_of_a_release", "release", postgresql_where=text("release IS NOT NULL")),
    Index(
        "policies_of_a_population",
        "population_id",
        "number",
        postgresql_where=text("kind IN ('population.created', 'policy.changed')"),
    ),
)

#: Where the entry of a proposed release is. Only grows.
release = Table(
    "release",
    metadata,
    Column("id", Text, primary_key=True),
    Column("population_id", BigInteger, ForeignKey("population.id"), nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("at", _AT, nullable=False),
    Index("releases_of_a_population", "population_id", "number"),
)

#: Open holds and when they run out: derived from the log, so that the sweeper need not read it.
hold = Table(
    "hold",
    metadata,
    Column("release", Text, primary_key=True),
    Column("population_id", BigInteger, ForeignKey("population.id"), nullable=False),
    Column("expires_at", _AT),
    Index("holds_by_expiry", "expires_at"),
)

#: Keyed datapoints. The key itself is nowhere: only its digest under a secret that is not in the database.
datapoint = Table(
    "datapoint",
    metadata,
    Column("population_id", BigInteger, ForeignKey("population.id"), primary_key=True),
    Column("digest", LargeBinary, primary_key=True),
    Column("ordinal", BigInteger, nullable=False),
    Column("erased_at", _AT),
    UniqueConstraint("population_id", "ordinal", name="one_key_per_ordinal"),
)

#: Cohorts as they stood at an entry: derived, and compared with the log by `stint verify`.
cohort = Table(
    "cohort",
    metadata,
    Column("population_id", BigInteger, ForeignKey("population.id"), primary_key=True),
    Column("digest", LargeBinary, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("datapoints", BigInteger, nullable=False),
    Column("members", LargeBinary, nullable=False),
    Column("history", LargeBinary, nullable=False),
)

#: Answers to requests that carried an Idempotency-Key. Only grows.
idempotency = Table(
    "idempotency",
    metadata,
    Column("id", LargeBinary, primary_key=True),
    Column("digest", LargeBinary, nullable=False),
    Column("status", Integer, nullable=False),
    Column("response", LargeBinary, nullable=False),
    Column("at", _AT, nullable=False),
)

#: Signed heads of all populations. Only grows.
checkpoint = Table(
    "checkpoint",
    metadata,
    Column("number", BigInteger, Identity(always=True), primary_key=True),
    Column("at", _AT, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Column("signature", LargeBinary, nullable=False),
    Column("public_key", LargeBinary, nullable=False),
    Column("heads", LargeBinary, nullable=False),
)

#: One row: the digest of the secrets that this database belongs to. Only grows.
installation = Table(
    "installation",
    metadata,
    Column("only_one", Boolean, primary_key=True, server_default=text("true")),
    Column("secrets", LargeBinary, nullable=False),
)

#: API keys, by the hash of their secret.
api_key = Table(
    "api_key",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("prefix", Text, nullable=False),
    Column("secret_hash", LargeBinary, nullable=False),
    Column("roles", Text, nullable=False),
    Column("created_at", _AT, nullable=False),
    Column("expires_at", _AT),
    Column("revoked", Boolean, nullable=False, server_default=text("false")),
    Column("last_used_at", _AT),
    UniqueConstraint("secret_hash", name="one_key_per_secret"),
)

#: Who was let in by whom, and why: a chain of its own. Only grows.
key_entry = Table(
    "key_entry",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("previous", LargeBinary, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Column("at", _AT, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

#: Sessions of the dashboard that somebody ended before their time.
ended_session = Table(
    "ended_session",
    metadata,
    Column("name", Text, primary_key=True),
    Column("until", _AT, nullable=False),
)

#: Work that a worker of ours does under a hold: what was asked, who is at it, and how far it is.
job = Table(
    "job",
    metadata,
    Column("id", Text, primary_key=True),
    Column("release", Text, ForeignKey("release.id", deferrable=True, initially="DEFERRED"), nullable=False),
    Column("population_id", BigInteger, ForeignKey("population.id"), nullable=False),
    Column("actor", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("device", Text, nullable=False),
    Column("mechanism", Text, nullable=False),
    Column("parameters", Text, nullable=False),
    Column("recipe", Text, nullable=False),
    Column("data", Text, nullable=False),
    Column("epsilon", Double),
    Column("status", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("ticket", BigInteger),
    Column("worker", Text),
    Column("lease_until", _AT),
    Column("attempt_at", _AT),
    Column("step", BigInteger, nullable=False),
    Column("steps", BigInteger, nullable=False),
    Column("progress_at", _AT),
    Column("error", Text),
    Column("artifact_sha256", Text),
    Column("artifact_uri", Text),
    Column("artifact_bytes", BigInteger),
    Column("created_at", _AT, nullable=False),
    Column("started_at", _AT),
    Column("finished_at", _AT),
    UniqueConstraint("release", name="one_job_per_release"),
    Index("jobs_of_a_population", "population_id", "id"),
    Index("jobs_by_status", "status", "lease_until"),
)

#: How a job changed its status: all that its log shows.
job_line = Table(
    "job_line",
    metadata,
    Column("job", Text, ForeignKey("job.id"), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("at", _AT, nullable=False),
    Column("status", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("error", Text),
)

#: Experiments that a worker of ours runs on made-up rows: who is at it, and how far it is.
audit = Table(
    "audit",
    metadata,
    Column("id", Text, primary_key=True),
    Column("population_id", BigInteger, ForeignKey("population.id"), nullable=False),
    Column("actor", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("verdict", Text),
    Column("outcome", Text),
    Column("attempt", Integer, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("ticket", BigInteger),
    Column("worker", Text),
    Column("waits_since", _AT, nullable=False),
    Column("lease_until", _AT),
    Column("step", BigInteger, nullable=False),
    Column("steps", BigInteger, nullable=False),
    Column("error", Text),
    Column("created_at", _AT, nullable=False),
    Column("started_at", _AT),
    Column("finished_at", _AT),
    Index("audits_of_a_population", "population_id", "id"),
    Index("audits_by_status", "status", "lease_until"),
)

#: What is still to be told of audits, and what was: how often that was tried, and when it is tried next.
webhook = Table(
    "webhook",
    metadata,
    Column("id", Text, primary_key=True),
    Column("audit", Text, ForeignKey("audit.id"), nullable=False),
    Column("status", Text, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("due_at", _AT),
    Column("error", Text),
    Column("created_at", _AT, nullable=False),
    Column("ended_at", _AT),
    UniqueConstraint("audit", name="one_webhook_per_audit"),
    Index("webhooks_that_are_due", "status", "due_at"),
)

#: When each ledger was last verified: a note, and no evidence.
verification = Table(
    "verification",
    metadata,
    Column("population_id", BigInteger, ForeignKey("population.id"), primary_key=True, autoincrement=False),
    Column("at", _AT, nullable=False),
    Column("entries", BigInteger, nullable=False),
    Column("ok", Boolean, nullable=False),
)

#: Tables that refuse UPDATE, DELETE and TRUNCATE.
ONLY_GROW = ("entry", "release", "idempotency", "checkpoint", "installation", "key_entry")
