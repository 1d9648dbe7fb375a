"""Who was let in by whom, and why: entries in a chain of their own, whose head is signed with those of populations."""

from alembic import op

revision = "0006"
down_revision = "0005"

TABLES = """
CREATE TABLE key_entry (
    number bigint PRIMARY KEY,
    previous bytea NOT NULL,
    hash bytea NOT NULL,
    at timestamptz NOT NULL,
    body bytea NOT NULL
);
CREATE TRIGGER only_grows BEFORE UPDATE OR DELETE OR TRUNCATE ON key_entry EXECUTE FUNCTION refuse_change();
"""

RIGHTS = "GRANT SELECT, INSERT ON key_entry TO stint_service;"


def upgrade() -> None:
    """The log of keys."""
    op.execute(TABLES)
    op.execute(RIGHTS)
