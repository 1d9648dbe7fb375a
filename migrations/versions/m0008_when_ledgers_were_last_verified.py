"""When each ledger was last verified, and what came of it: for people who ask how old an answer is.

It is a note and no evidence. Whoever can change the ledger can change it too.
"""

from alembic import op

revision = "0008"
down_revision = "0007"

TABLE = """
CREATE TABLE verification (
    population_id bigint PRIMARY KEY REFERENCES population,
    at timestamptz NOT NULL,
    entries bigint NOT NULL,
    ok boolean NOT NULL
);
"""

RIGHTS = """
GRANT SELECT, INSERT, UPDATE (at, entries, ok) ON verification TO stint_service;
"""


def upgrade() -> None:
    """The table of verifications."""
    op.execute(TABLE)
    op.execute(RIGHTS)
