"""Audits: experiments that a worker of ours runs on made-up rows. What was planned, and what followed, is in the log.

Only how far one is stands here, and the picture that goes with its result.
"""

from alembic import op

revision = "0003"
down_revision = "0002"

TABLES = """
CREATE TABLE audit (
    id text PRIMARY KEY,
    population_id bigint NOT NULL REFERENCES population,
    actor text NOT NULL,
    queue text NOT NULL,
    status text NOT NULL CHECK (status IN ('queued', 'running', 'concluded', 'failed')),
    verdict text,
    outcome text,
    attempt integer NOT NULL,
    attempts integer NOT NULL,
    ticket bigint,
    worker text,
    waits_since timestamptz NOT NULL,
    lease_until timestamptz,
    step bigint NOT NULL,
    steps bigint NOT NULL,
    error text,
    created_at timestamptz NOT NULL,
    started_at timestamptz,
    finished_at timestamptz,
    CHECK ((status = 'running') = (lease_until IS NOT NULL)),
    CHECK ((status = 'concluded') = (verdict IS NOT NULL)),
    CHECK ((status = 'concluded') = (outcome IS NOT NULL))
);
CREATE INDEX audits_of_a_population ON audit (population_id, id);
CREATE INDEX audits_by_status ON audit (status, lease_until);
"""

# What was asked for stays as it was asked; only how far it is changes.
RIGHTS = """
GRANT SELECT, INSERT, UPDATE (
    status, verdict, outcome, attempt, attempts, ticket, worker, waits_since, lease_until, step, steps, error,
    started_at, finished_at
) ON audit TO stint_service;
"""


def upgrade() -> None:
    """The table of audits."""
    op.execute(TABLES)
    op.execute(RIGHTS)
