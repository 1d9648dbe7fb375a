"""The history of the database, one idea each; `service.store.database.migrate` runs it."""
