"""Where attempts run: what a child process may know."""

from __future__ import annotations

import pytest

from service import placement


def test_a_child_knows_nothing_of_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by our own variables nor by those that PostgreSQL's clients read by themselves."""
    kept = {
        "HOME": "/nowhere",
        "CUDA_VISIBLE_DEVICES": "0",
        "AWS_PROFILE": "rows",
        "PGO_MODE": "2",
        "MY_DATABASE_URL": "x",
    }
    secret = ("DATABASE_URL", "STINT_DATA", "STINT_KEY", "PGPASSWORD", "PGPASSFILE", "PGSERVICE", "PGHOST", "PGUSER")
    for name in secret:
        monkeypatch.setenv(name, "secret")
    for name, value in kept.items():
        monkeypatch.setenv(name, value)
    found = placement._environment()
    assert not set(secret) & set(found)
    assert "secret" not in found.values()
    assert {name: found[name] for name in kept} == kept
