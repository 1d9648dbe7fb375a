"""dev.py: what it refuses, when it installs again, and how a check stops."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dev


def command(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.fixture
def copy(checkout: Path, tmp_path: Path) -> Path:
    """A checkout with nothing but the files that set-up reads."""
    for name in ("dev.py", "pyproject.toml", "constraints.txt"):
        shutil.copy(checkout / name, tmp_path)
    return tmp_path


@pytest.mark.parametrize("arguments", [[], ["tset"], ["--quick"]])
def test_an_unknown_command_gets_the_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert dev.main(arguments) == 2
    assert "usage: python3 dev.py run" in capsys.readouterr().err


def test_an_old_python_is_told_so(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dev, "ROOT", copy)
    monkeypatch.setattr(dev, "OLDEST_PYTHON", (99, 1))
    assert dev.main(["run"]) == 2
    assert "needs Python 99.1 or newer" in capsys.readouterr().err
    assert not (copy / ".venv").exists()


def test_run_becomes_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # and back, after run has gone to the checkout
    became: list[object] = []
    monkeypatch.setattr(os, "execve", lambda *given: became.extend(given))
    dev.run(Path("python"), ["--no-demo"])
    assert became[:2] == [Path("python"), ["python", "-m", "service", "run", "--no-demo"]]
    assert Path.cwd() == dev.ROOT


@pytest.mark.slow
def test_a_failed_install_is_one_sentence_and_leaves_no_stamp(copy: Path) -> None:
    nowhere = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(copy), "PIP_CONFIG_FILE": os.devnull}
    for _ in range(2):  # the second call must try again, not trust what the first left behind
        report = subprocess.run(
            [sys.executable, str(copy / "dev.py"), "run"],
            cwd=copy.parent,
            env=os.environ | nowhere,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert report.returncode == 2
        assert report.stdout.startswith("Setting up")
        assert report.stderr.splitlines()[-1].startswith("dev.py: The install failed")


def test_the_stamp_notices_what_matters(
    copy: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamp = dev.fingerprint(copy)

    def after(name: str, old: str, new: str) -> str:
        text = (copy / name).read_text(encoding="utf-8")
        assert old in text
        (copy / name).write_text(text.replace(old, new, 1), encoding="utf-8")
        changed = dev.fingerprint(copy)
        (copy / name).write_text(text, encoding="utf-8")
        return changed

    assert after("pyproject.toml", "line-length = 120", "line-length = 99") == stamp
    assert after("pyproject.toml", '"pytest-cov', '"pytest-cover') != stamp
    assert after("constraints.txt", "numpy==", "numpy==1") != stamp
    moved = tmp_path_factory.mktemp("moved")
    shutil.copytree(copy, moved, dirs_exist_ok=True)
    assert dev.fingerprint(moved) != stamp
    monkeypatch.setattr(dev, "EXTRA", "service")
    assert dev.fingerprint(copy) != stamp


def test_odd_variables_do_not_reach_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_TARGET", "PIP_USER", "PIP_REQUIRE_VIRTUALENV"}
    useful = {"PIP_INDEX_URL", "PIP_CERT", "HTTPS_PROXY"}
    for name in odd | useful:
        monkeypatch.setenv(name, "x")
    assert set(dev.clean_environment()) & (odd | useful) == useful


def test_checks_stop_at_the_first_failure(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace"
    checks = [
        dev.Step("good", "unseen", command("print('fine')")),
        dev.Step("bad", "The bad one failed", command("raise SystemExit(7)"), {"STINT_HYPOTHESIS": "quick"}),
        dev.Step("late", "unseen", command(f"open({str(trace)!r}, 'w')")),
    ]
    assert dev.run_steps(checks, limit_seconds=60) == 1
    out = capfd.readouterr().out
    assert re.search(r"\[good\]\nfine\n\[good\] \d+\.\d s\n\[bad\]\n", out)
    assert "The bad one failed; to run only this step: " in out
    assert "STINT_HYPOTHESIS=quick" in out
    assert not trace.exists()
    assert dev.run_steps(checks[:1], limit_seconds=60) == 0


@pytest.mark.parametrize(("first", "second", "code"), [(1, 0, 0), (1, 1, 1), (1, 5, 1), (2, 0, 1), (3, 0, 1)])
def test_tests_that_failed_are_run_once_more_and_told(
    first: int, second: int, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """Only if all ran to the end: of a run that broke off, nobody knows what would have failed."""
    step = dev.Step(
        "tests", "They failed", command(f"raise SystemExit({first})"), {}, command(f"raise SystemExit({second})")
    )
    assert dev.run_steps([step], limit_seconds=60) == code
    assert ("some failed, see above" in capfd.readouterr().out) is (first == 1)


def test_checks_stop_at_the_limit(capfd: pytest.CaptureFixture[str]) -> None:
    endless = [dev.Step("endless", "unseen", command("import time; time.sleep(60)"))]
    assert dev.run_steps(endless, limit_seconds=0.3) == 1
    assert "[endless] stopped: all checks together may take 0.005 minutes." in capfd.readouterr().out


@pytest.mark.parametrize(
    ("tier", "arguments", "expected", "absent"),
    [
        ("default", [], ["not full", "--cov-fail-under=90"], []),
        ("default", ["-k", "law"], ["not full", "law"], ["--cov"]),
        ("quick", [], ["not slow and not full"], ["--cov"]),
        ("full", [], ["--cov-fail-under=90"], ["-m=not full", "not full"]),
    ],
)
def test_tiers_choose_tests_and_coverage(
    tier: str, arguments: list[str], expected: list[str], absent: list[str]
) -> None:
    found = dev.steps(Path("python"), tier, arguments)
    # A browser has a process of its own; a selection of tests says itself whether pages are among them.
    pages = [] if arguments else ["pages"]
    measured = ["accountant"] if "--cov-fail-under=90" in expected else []
    assert [step.name for step in found] == ["format", "lint", "types", "layers", *pages, *measured, "tests"]
    for step in found[4:]:
        wanted = set(expected) if step.name in measured else set(expected) - {"--cov-fail-under=90"}
        assert wanted <= set(step.command)
        assert not set(absent) & set(step.command)
        assert step.variables["STINT_HYPOTHESIS"] == tier
    # What has a step of its own is left out of the last, and nothing else is.
    apart = {dev.PAGES, *(dev.MEASURED if measured else ())} if pages else set()
    assert {word.removeprefix("--ignore=") for word in found[-1].command if "--ignore=" in word} == apart


def test_the_tiers_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert dev.test(Path("python"), ["--quick", "--full"]) == 2
    assert "exclude each other" in capsys.readouterr().err
