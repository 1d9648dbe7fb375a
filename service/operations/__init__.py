"""What can be asked of the service: one function, one transaction. Decisions are made in `accountant`."""
