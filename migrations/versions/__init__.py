"""Migrations in order. Each runs beside the previous version of the code."""
