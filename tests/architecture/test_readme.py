"""The README's examples are executed as they stand, and so are those of the page that goes on from there."""

import doctest
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.service.terminal import service


def blocks(checkout: Path, language: str, page: str = "README.md") -> list[str]:
    text = (checkout / page).read_text(encoding="utf-8")
    return re.findall(rf"^<!-- example[^\n]*-->\n```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run(examples: list[str], names: dict[str, object] | None = None) -> dict[str, object]:
    """One name space for all, since a reader goes from top to bottom. What it holds in the end."""
    names = names or {}
    report: list[str] = []
    for block in examples:
        example = doctest.DocTestParser().get_doctest(block, names, "README.md", "README.md", 0)
        assert example.examples
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=report.append, clear_globs=False)
        names = example.globs
    assert not report, "".join(report)
    return names


def needs_service(block: str) -> bool:
    return "stint." in block


@pytest.mark.parametrize("page", ["README.md", "docs/models.md"])
def test_every_python_block_is_an_example(checkout: Path, page: str) -> None:
    text = (checkout / page).read_text(encoding="utf-8")
    assert text.count("```python\n") == len(blocks(checkout, "python", page)) > 0


def test_the_examples_do_what_they_show(checkout: Path) -> None:
    library = [block for block in blocks(checkout, "python") if not needs_service(block)]
    assert library
    run(library)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_the_first_five_minutes_with_the_service(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    curl, command_line = blocks(checkout, "sh")
    with service(worker=True) as running:
        (tmp_path / "data").symlink_to(running.folder)  # where a reader's is
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("STINT_URL", running.url)
        monkeypatch.setenv("STINT_KEY", running.key)
        answers = documents(shell(checkout, tmp_path, curl))
        assert [answer.get("status") for answer in answers] == ["open", None, None, "held", None]
        assert answers[-1]["epsilon"]["held"] > 0
        names = run([block for block in blocks(checkout, "python") if needs_service(block)])
        shown = shell(checkout, tmp_path, command_line)
        run(blocks(checkout, "python", "docs/models.md"), names)
    assert shown.startswith("clinic-a: 100,000 datapoints, 1 tasks, 4 releases, open.")
    for expected in ("by prv\n", "dry run: admitted", "clinic-a: ok, ", "\nsk_"):
        assert expected in shown


def shell(checkout: Path, folder: Path, block: str) -> str:
    """What a block of shell prints; `stint` is that of this Python and this checkout."""
    stint = folder / "stint"
    stint.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m service "$@"\n', encoding="utf-8")
    stint.chmod(0o755)
    report = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        cwd=checkout,
        env=os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert report.returncode == 0, report.stdout + report.stderr
    return report.stdout


def documents(text: str) -> list[dict[str, Any]]:
    """JSON documents, one after the other."""
    found, at = [], 0
    while at < len(text):
        document, at = json.JSONDecoder().raw_decode(text, at)
        found.append(document)
    return found
