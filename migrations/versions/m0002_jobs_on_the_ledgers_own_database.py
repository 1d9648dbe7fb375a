"""Jobs: work that a worker of ours does under a hold, and the lines that say what became of it.

The queue is procrastinate's, which brings tables of its own: `service/store/tickets.py` installs those.
"""

from alembic import op

revision = "0002"
down_revision = "0001"

TABLES = """
CREATE TABLE job (
    id text PRIMARY KEY,
    release text NOT NULL CONSTRAINT one_job_per_release UNIQUE
        REFERENCES release DEFERRABLE INITIALLY DEFERRED,
    population_id bigint NOT NULL REFERENCES population,
    actor text NOT NULL,
    queue text NOT NULL,
    device text NOT NULL,
    mechanism text NOT NULL,
    parameters text NOT NULL,
    recipe text NOT NULL,
    data text NOT NULL,
    epsilon double precision,
    status text NOT NULL CHECK (status IN ('queued', 'running', 'committed', 'failed', 'cancelled')),
    attempt integer NOT NULL,
    attempts integer NOT NULL,
    ticket bigint,
    worker text,
    lease_until timestamptz,
    attempt_at timestamptz,
    step bigint NOT NULL,
    steps bigint NOT NULL,
    progress_at timestamptz,
    error text,
    artifact_sha256 text,
    artifact_uri text,
    artifact_bytes bigint,
    created_at timestamptz NOT NULL,
    started_at timestamptz,
    finished_at timestamptz,
    CHECK ((status = 'running') = (lease_until IS NOT NULL)),
    CHECK ((status = 'committed') = (artifact_sha256 IS NOT NULL))
);
CREATE INDEX jobs_of_a_population ON job (population_id, id);
CREATE INDEX jobs_by_status ON job (status, lease_until);
CREATE TABLE job_line (
    job text NOT NULL REFERENCES job,
    number bigint NOT NULL,
    at timestamptz NOT NULL,
    status text NOT NULL,
    attempt integer NOT NULL,
    error text,
    PRIMARY KEY (job, number)
);
"""

# What was asked for stays as it was asked; only how far it is changes.
RIGHTS = """
GRANT SELECT, INSERT, UPDATE (
    status, attempt, attempts, ticket, worker, lease_until, attempt_at, step, steps, progress_at, error,
    artifact_sha256, artifact_uri, artifact_bytes, started_at, finished_at
) ON job TO stint_service;
GRANT SELECT, INSERT ON job_line TO stint_service;
"""


def upgrade() -> None:
    """The table of jobs, and that of their lines."""
    op.execute(TABLES)
    op.execute(RIGHTS)
