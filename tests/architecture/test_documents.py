"""Where one fact has two copies, they agree: commands, code map, glossary, versions, pins."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import dev


@pytest.fixture(scope="module")
def project(checkout: Path) -> dict[str, Any]:
    settings = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))
    project: dict[str, Any] = settings["project"]
    return project


def section(text: str, title: str) -> str:
    """The text under a heading of level two, up to the next."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"there is no section {title!r}"
    return found[1]


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
def test_make_runs_the_words_of_dev_py(checkout: Path) -> None:
    for word in dev.COMMANDS:
        plan = subprocess.run(
            ["make", "--dry-run", "--no-print-directory", word],
            cwd=checkout,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert plan.stdout.strip() == f"python3 dev.py {word}", plan.stderr


def test_the_documents_name_only_commands_that_exist(checkout: Path) -> None:
    pattern = re.compile(r"python3 dev\.py (\w+)((?: --\w+)*)")
    for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "constraints.txt"):
        for word, options in pattern.findall((checkout / name).read_text(encoding="utf-8")):
            assert word in dev.COMMANDS, name
            assert set(options.split()) <= {"--quick", "--full"}, name
    readme = section((checkout / "README.md").read_text(encoding="utf-8"), "Two commands")
    assert {"run", "test"} <= {word for word, _ in pattern.findall(readme)}
    assert all(f"python3 dev.py {word}" in dev.USAGE for word in dev.COMMANDS)


def test_the_code_map_shows_every_module_and_nothing_else(checkout: Path) -> None:
    text = section((checkout / "ARCHITECTURE.md").read_text(encoding="utf-8"), "Code map")
    mapped = set(re.findall(r"^\| `([^`]+)`", text, re.MULTILINE))
    assert [path for path in sorted(mapped) if not (checkout / path).exists()] == []
    modules = {
        path.relative_to(checkout).as_posix()
        for path in (checkout / "accountant").rglob("*.py")
        if path.name != "__init__.py"
    }
    assert sorted(modules - mapped) == []


def test_links_between_documents_lead_somewhere(checkout: Path) -> None:
    for document in checkout.glob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
            assert (checkout / target).exists(), f"{document.name} links to {target}"


def test_each_invariant_says_how_it_is_enforced(checkout: Path) -> None:
    text = section((checkout / "ARCHITECTURE.md").read_text(encoding="utf-8"), "Invariants")
    invariants = re.split(r"^\d+\. ", text, flags=re.MULTILINE)[1:]
    assert len(invariants) == 10
    for invariant in invariants:
        assert re.search(r"\*(Enforced|To come): ", invariant), invariant
        for path in re.findall(r"`((?:tests|accountant)/[^`]*)`", invariant):
            assert (checkout / path).exists(), path


def test_the_glossary_defines_each_word_once(checkout: Path) -> None:
    rows = re.findall(r"^\| \*\*(.+?)\*\*", (checkout / "GLOSSARY.md").read_text(encoding="utf-8"), re.MULTILINE)
    words = [word for row in rows for word in row.split(", ")]
    assert len(words) == len(set(words))
    assert {"datapoint", "population", "event", "scope", "charge", "release", "cohort", "hold"} <= set(words)


def test_no_module_is_named_after_nothing(checkout: Path) -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}
    for package in ("accountant", "trainers", "service", "migrations", "tests", "benchmarks"):
        named = {path.stem for path in (checkout / package).rglob("*")}
        assert not named & vague


def test_the_changelog_opens_each_version_with_guarantees(checkout: Path, project: dict[str, Any]) -> None:
    text = (checkout / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (\S+)", text, re.MULTILINE)
    assert versions[0] == "Unreleased"
    assert versions[1] == project["version"]
    for version in versions:
        headings = re.findall(r"^### (.+)$", section(text, version), re.MULTILINE)
        assert headings[:1] == ["Guarantees"] or (version == "Unreleased" and not headings)


def test_every_declared_requirement_has_one_exact_pin(checkout: Path, project: dict[str, Any]) -> None:
    lines = (checkout / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[\w.]+", pin) for pin in pins)
    versions = dict(pin.split("==") for pin in pins)
    assert len(versions) == len(pins)
    declared = project["dependencies"] + [line for extra in project["optional-dependencies"].values() for line in extra]
    for requirement in map(Requirement, declared):
        if requirement.name != project["name"]:
            assert versions[canonicalize_name(requirement.name)] in requirement.specifier
