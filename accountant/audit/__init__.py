"""Audits: what can be said against a promise. Where that is a number, it is a lower bound with a confidence."""
