"""What the documents say of the service is what it is: settings, errors, addresses."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from prometheus_client.metrics import MetricWrapperBase

from accountant.audit import checklist
from accountant.audit.findings import RULES
from accountant.audit.manifests import STATEMENTS, manifest_from
from accountant.certificates import REASONS
from service import audit_cli, pre_release, settings
from service.errors import PROBLEMS
from service.metrics import Metrics
from service.operations.jobs import ERRORS
from service.operations.keys import ROLES
from service.store import tables
from tests.service.fixtures_behaviour import House

pytest_plugins = ("tests.service.fixtures_behaviour",)


def rows(text: str) -> list[list[str]]:
    """The cells of every row of every table, without the headings."""
    found = re.findall(r"^\| (`.*) \|$", text, re.MULTILINE)
    return [[cell.strip() for cell in line.split(" | ")] for line in found]


@pytest.fixture(scope="module")
def document(house: House) -> dict[str, Any]:
    found: dict[str, Any] = house.client.get("/openapi.json").json()
    return found


def test_the_settings_page_lists_every_setting_with_its_default(checkout: Path) -> None:
    listed = rows((checkout / "docs" / "settings.md").read_text(encoding="utf-8"))
    declared = []
    for each in fields(settings.Settings):
        least, most = (str(limits.get(each.name, "")) for limits in (settings.LEAST, settings.MOST))
        default = f"`{each.default}`" if str(each.default) else "empty"
        declared.append([f"`{each.metadata['variable']}`", default, least, most, each.metadata["meaning"]])
    assert listed == declared


def test_the_metrics_page_lists_every_metric_with_its_labels(checkout: Path) -> None:
    listed = rows((checkout / "docs" / "metrics.md").read_text(encoding="utf-8"))
    counters = [each for each in vars(Metrics()).values() if isinstance(each, MetricWrapperBase)]
    declared = []
    for each in counters:
        [described] = each.describe()
        name = described.name + ("_total" if described.type == "counter" else "")
        declared.append([f"`{name}`", ", ".join(each._labelnames), described.documentation])
    assert listed == declared


def test_the_errors_page_lists_every_problem_with_its_status(checkout: Path) -> None:
    listed = rows((checkout / "docs" / "errors.md").read_text(encoding="utf-8"))
    assert listed == [[f"`{name}`", str(kind.status), kind.title, kind.advice] for name, kind in PROBLEMS.items()]


def test_the_jobs_page_lists_every_code_with_its_meaning(checkout: Path) -> None:
    listed = rows((checkout / "docs" / "jobs.md").read_text(encoding="utf-8"))
    assert listed == [[f"`{code}`", meaning] for code, meaning in ERRORS.items()]


def test_the_audits_page_lists_every_rule_and_every_statement(checkout: Path) -> None:
    listed = rows((checkout / "docs" / "audits.md").read_text(encoding="utf-8"))
    rules = [
        [f"`{rule.code}`", rule.severity, " or ".join(rule.bases), rule.title, rule.remedy, rule.source]
        for rule in RULES.values()
    ]
    kinds = {"texts": "a list of texts", "text": "a text", "number": "a number", "object": "a table"}
    statements = [
        [
            f"`{name}`",
            "; ".join(
                f"{field}: {', '.join(takes) if isinstance(takes, tuple) else kinds[takes]}"
                for field, takes in fields_of.items()
            ),
        ]
        for name, fields_of in STATEMENTS.items()
    ]
    assert listed == rules + statements


def test_the_manifest_of_the_audits_page_is_read_and_clean(checkout: Path) -> None:
    [text] = re.findall(r"```toml\n(.*?)```", (checkout / "docs" / "audits.md").read_text(encoding="utf-8"), re.DOTALL)
    manifest = manifest_from(tomllib.loads(text))
    found = checklist.audit(pre_release.from_manifest(manifest, accepts=("proved",))).findings
    assert [each.code for each in found] == ["artifact.unopened"]


def test_the_workflow_for_ci_uses_options_that_exist(checkout: Path) -> None:
    workflow = yaml.safe_load((checkout / "examples" / "github-actions-audit.yml").read_text(encoding="utf-8"))
    commands = [step["run"] for step in workflow["jobs"]["audit"]["steps"] if "stint audit" in step.get("run", "")]
    assert len(commands) == 2
    for command in commands:
        with audit_cli.audit.make_context("audit", command.split()[2:]) as context:
            assert context.params["artifact"] == Path("release/model.safetensors")


def test_the_evidence_page_lists_every_reason_against_a_certificate(checkout: Path) -> None:
    text = (checkout / "docs" / "evidence.md").read_text(encoding="utf-8").partition("### Checks, in their order")[2]
    listed = rows(text.partition("\n### ")[0])
    assert listed == [[f"`{code}`", meaning] for code, meaning in REASONS.items()]


def test_the_recipe_of_the_evidence_page_checks_a_certificate(checkout: Path, tmp_path: Path) -> None:
    text = (checkout / "docs" / "evidence.md").read_text(encoding="utf-8")
    program = text.partition("### With nothing but Python")[2].partition("```python\n")[2].partition("```")[0]
    stored = checkout / "tests" / "accountant" / "certificate-v1.json"
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32))).public_key().public_bytes_raw()
    changed = tmp_path / "changed.json"
    changed.write_bytes(stored.read_bytes().replace(b'"payload":"eyJ', b'"payload":"eyK'))
    for file, trusted, fine in ((stored, key, True), (stored, bytes(32), False), (changed, key, False)):
        done = subprocess.run(
            [sys.executable, "-I", "-c", program, str(file), trusted.hex()], capture_output=True, text=True, check=False
        )
        assert (done.returncode == 0) is fine, done.stderr
        assert ("upper bound" in done.stdout) is fine


def test_the_service_page_names_every_address_and_no_other(checkout: Path, document: dict[str, Any]) -> None:
    text = (checkout / "docs" / "service.md").read_text(encoding="utf-8")
    listed = {
        (method, path)
        for methods, path in re.findall(r"`([A-Z][A-Z, ]*) (/[^`?]*)`", text)
        for method in methods.split(", ")
    }
    real = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert listed == real


def test_the_service_page_names_every_role_and_every_table_that_only_grows(checkout: Path) -> None:
    text = (checkout / "docs" / "service.md").read_text(encoding="utf-8")
    assert all(f"`{role}`" in text for role in ROLES)
    assert all(f"`{table}`" in text for table in tables.ONLY_GROW)


def test_every_operation_has_a_summary_and_a_description(document: dict[str, Any]) -> None:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation.get("summary"), (method, path)
            assert operation.get("description"), (method, path)
            assert operation["operationId"]


def test_every_operation_says_how_it_can_fail(document: dict[str, Any]) -> None:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if path.startswith("/v1/"):
                needs_key = set() if operation.get("security") == [] else {"401", "403"}
                assert needs_key | {"422", "503"} <= set(operation["responses"]), (method, path)
                for status, answer in operation["responses"].items():
                    if int(status) >= 400:
                        assert "application/problem+json" in answer["content"], (method, path, status)


def test_links_of_the_documents_lead_somewhere(checkout: Path) -> None:
    for page in (checkout / "docs").glob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
