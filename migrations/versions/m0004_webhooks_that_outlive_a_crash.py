"""Webhooks: what is to be told to whom the operator named. A row is written with the entry that it tells of.

What it says stands in the log; only whether it was told, and how often that was tried, stands here.
"""

from alembic import op

revision = "0004"
down_revision = "0003"

TABLES = """
CREATE TABLE webhook (
    id text PRIMARY KEY,
    audit text NOT NULL CONSTRAINT one_webhook_per_audit UNIQUE REFERENCES audit,
    status text NOT NULL CHECK (status IN ('waiting', 'delivered', 'given_up')),
    tries integer NOT NULL,
    due_at timestamptz,
    error text,
    created_at timestamptz NOT NULL,
    ended_at timestamptz,
    CHECK ((status = 'waiting') = (due_at IS NOT NULL)),
    CHECK ((status = 'waiting') = (ended_at IS NULL))
);
CREATE INDEX webhooks_that_are_due ON webhook (status, due_at);
"""

# Of what it tells, and under which name, stays.
RIGHTS = """
GRANT SELECT, INSERT, UPDATE (status, tries, due_at, error, ended_at) ON webhook TO stint_service;
"""


def upgrade() -> None:
    """The table of webhooks."""
    op.execute(TABLES)
    op.execute(RIGHTS)
