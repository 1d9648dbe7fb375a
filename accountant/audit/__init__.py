"""Audits: what can be known against a release before it leaves, and what attacks show of it afterwards."""
