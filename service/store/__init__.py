"""All SQL, and the books that are kept in memory beside it."""
