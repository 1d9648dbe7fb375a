"""The mechanisms of the catalog, as functions from a `Run` to what is released: only a worker imports them."""
