"""The history of the database, one idea each. There is no database yet."""
