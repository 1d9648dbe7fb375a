"""HTTP, one file per noun: read the request, call an operation, shape the answer."""
