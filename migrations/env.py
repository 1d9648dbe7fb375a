"""What alembic runs: every migration in a transaction of its own, on the connection that it is given."""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection, transaction_per_migration=True)
context.run_migrations()
