"""The whole of Stint as its users meet it: a service, a worker, real data."""
