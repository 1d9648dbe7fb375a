"""The outside world: HTTP, dashboard, command line, jobs, SQL, signing. Nothing is here yet."""
