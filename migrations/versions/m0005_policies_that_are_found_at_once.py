"""The newest policy of every population is found without reading its log: jobs ask all of them whose a file is."""

from alembic import op

revision = "0005"
down_revision = "0004"

INDEX = """
CREATE INDEX policies_of_a_population ON entry (population_id, number)
    WHERE kind IN ('population.created', 'policy.changed');
"""


def upgrade() -> None:
    """An index over few of many entries."""
    op.execute(INDEX)
