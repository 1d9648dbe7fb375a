"""Sessions that somebody ended by signing out: a copy of their cookie is worth nothing.

A row is needed until the session would have ended anyway.
"""

from alembic import op

revision = "0007"
down_revision = "0006"

TABLES = """
CREATE TABLE ended_session (
    name text PRIMARY KEY,
    until timestamptz NOT NULL
);
"""

RIGHTS = "GRANT SELECT, INSERT, DELETE ON ended_session TO stint_service;"


def upgrade() -> None:
    """The names of sessions that were ended."""
    op.execute(TABLES)
    op.execute(RIGHTS)
