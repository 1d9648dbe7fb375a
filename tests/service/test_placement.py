"""Where attempts run: what a child process may know, and what is said of its end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from service import placement
from service.placement import Attempt, ChildProcess


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


@pytest.mark.parametrize(
    ("ending", "error"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed"),
        ("os.kill(os.getpid(), signal.SIGTERM)", "killed"),
        ("os.abort()", "internal"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "internal"),
        ("sys.exit(1)", "internal"),
        ("sys.exit(0)", "internal"),
        ("os.write(int(sys.argv[3]), b'{')", "internal"),
        ("""os.write(int(sys.argv[3]), b'{"ended": "unheard of"}')""", "internal"),
        ("""os.write(int(sys.argv[3]), b'{"ended": "memory"}')""", "memory"),
    ],
)
def test_an_end_that_a_child_does_not_announce_has_a_code_too(
    ending: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever ends a process from outside is told apart from a process that crashes."""
    script = tmp_path / "child"
    script.write_text(f"#!{sys.executable}\nimport os, signal, sys\nsys.stdin.readline()\n{ending}\n")
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))

    async def nobody(_: Sequence[str]) -> list[int]:
        return []

    attempt = Attempt(document={}, log=tmp_path / "log", progress=lambda *_: None, ordinals_of=nobody)
    assert asyncio.run(ChildProcess().run(attempt)).error == error
