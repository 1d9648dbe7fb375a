"""The outside world: HTTP, command line, client, SQL, signing."""
