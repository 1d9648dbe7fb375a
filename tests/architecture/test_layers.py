"""The layers hold, and a bad import is caught: the linters run for real on a planted tree."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = ("accountant", "trainers", "service", "migrations")


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def tree(checkout: Path, tmp_path: Path) -> Path:
    for package in PACKAGES:
        shutil.copytree(checkout / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(checkout / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_tree_itself_keeps_every_contract(tree: Path) -> None:
    report = lint_imports(tree)
    assert report.returncode == 0, report.stdout
    assert "0 broken" in report.stdout


@pytest.mark.parametrize(
    ("package", "line", "evidence"),
    [
        ("accountant", "import service", "accountant.planted -> service"),
        ("accountant", "import torch", "accountant.planted -> torch"),
        ("accountant", "from random import gauss", "accountant.planted -> random"),
        ("accountant", "from os.path import exists", "accountant.planted -> os"),
        ("trainers", "import service", "trainers.planted -> service"),
        ("trainers", "import migrations", "trainers.planted -> migrations"),
        ("migrations", "import accountant", "migrations.planted -> accountant"),
    ],
)
def test_a_bad_import_is_caught(tree: Path, package: str, line: str, evidence: str) -> None:
    (tree / package / "planted.py").write_text(f"{line}\n", encoding="utf-8")
    report = lint_imports(tree)
    assert report.returncode == 1, report.stdout
    assert evidence in report.stdout


def test_torch_in_a_process_that_answers_is_caught(tree: Path) -> None:
    for module, line in (("service/store/books.py", "import torch"), ("service/errors.py", "import opacus.optimizers")):
        path = tree / module
        before = path.read_text(encoding="utf-8")
        path.write_text(f"{before}\n{line}\n", encoding="utf-8")
        report = lint_imports(tree)
        assert report.returncode == 1, report.stdout
        assert line.removeprefix("import ").partition(".")[0] in report.stdout.partition("Broken contracts")[2]
        path.write_text(before, encoding="utf-8")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("import numpy as np\n\nrng = np.random.default_rng(0)", "TID251"),
        ("from numpy.random import default_rng\n\nrng = default_rng(0)", "TID251"),
        ('handle = open("ledger")', "PTH123"),
        ('print("spent")', "T201"),
    ],
)
def test_chance_and_files_that_no_import_gives_away_are_caught(checkout: Path, line: str, code: str) -> None:
    ruff = [sys.executable, "-m", "ruff", "check", "--output-format=concise"]
    report = subprocess.run(
        [*ruff, "--stdin-filename=accountant/planted.py", "-"],
        cwd=checkout,
        input=f"{line}\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert f": {code} " in report.stdout
