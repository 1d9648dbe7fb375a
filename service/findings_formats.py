"""Findings as people and machines read them: lines, JSON, JUnit XML and SARIF 2.1.0."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote
from xml.etree import ElementTree as ET

from accountant.audit.findings import RULES, SEVERITIES, Finding, Severity

_SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS: Final = MappingProxyType({"error": "error", "warning": "warning", "note": "note"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an audit came to. `failing` are the findings for which it fails, `reasons` why a service denies.

    `is_told` says whether a service has recorded what was found in the file.
    """

    manifest: str
    artifact: str | None
    findings: Sequence[Finding]
    failing: Sequence[Finding]
    denied: Sequence[Finding]
    checked: Sequence[str]
    reasons: Sequence[Mapping[str, Any]] = ()
    is_told: bool = False

    @property
    def is_clean(self) -> bool:
        """Whether nothing is against the release."""
        return not self.failing and not self.reasons


def human(report: Report) -> str:
    """A line for each finding, with what to do, and a sentence at the end."""
    lines = []
    for finding in sorted(report.findings, key=lambda each: SEVERITIES.index(each.severity)):
        word = "denied" if finding in report.denied else finding.severity
        by = "" if finding.by is None else f", by the word of {finding.by}"
        lines.append(f"{word}: {finding.code} ({finding.basis}{by}): {finding.message}")
        if finding.code in RULES and finding.severity != "note":
            lines.append(f"  {RULES[finding.code].remedy}")
    lines += [f"denied: {reason['code']}: {reason['message']}" for reason in report.reasons]
    counted = ", ".join(
        f"{number} {severity}{'s' if number != 1 else ''}"
        for severity in SEVERITIES
        if (number := sum(each.severity == severity for each in report.findings))
    )
    outcome = "Clean" if report.is_clean else "Not clean"
    lines.append(
        f"{outcome}: {len(report.checked)} of {len(RULES)} rules had something to look at; {counted or 'none'} found."
    )
    if report.is_told:
        lines.append("What was looked at in the file, and what was found there, is in the ledger, as your word.")
    return "\n".join(lines) + "\n"


def as_json(report: Report) -> str:
    """Everything, as one object."""
    document = {
        "version": 1,
        "manifest": report.manifest,
        "artifact": report.artifact,
        "clean": report.is_clean,
        "findings": [{**each.to_json(), "denied": each in report.denied} for each in report.findings],
        "reasons": [dict(each) for each in report.reasons],
        "checked": list(report.checked),
        "recorded": report.is_told,
    }
    return json.dumps(document, ensure_ascii=False, indent=2) + "\n"


def junit(report: Report) -> str:
    """A test case for each rule: failed, passed, or skipped where there was nothing to look at."""
    failing = {each.code for each in report.failing}
    skipped = [code for code in RULES if code not in report.checked and not _of(report, code)]
    counts = {
        "tests": str(len(RULES) + bool(report.reasons)),
        "failures": str(len(failing) + bool(report.reasons)),
        "errors": "0",
        "skipped": str(len(skipped)),
    }
    root = ET.Element("testsuites", {"name": "stint audit", **counts})
    suite = ET.SubElement(root, "testsuite", {"name": report.manifest, **counts, "time": "0"})
    for code, rule in RULES.items():
        case = ET.SubElement(suite, "testcase", {"classname": "stint.audit", "name": code, "time": "0"})
        found = _of(report, code)
        text = "\n".join(f"{each.severity} ({each.basis}): {each.message}" for each in found)
        if code in failing:
            failure = ET.SubElement(case, "failure", {"type": rule.severity, "message": _printable(rule.title)})
            failure.text = _printable(f"{text}\n{rule.remedy}\nSource: {rule.source}")
        elif found:
            ET.SubElement(case, "system-out").text = _printable(text)
        elif code in skipped:
            ET.SubElement(case, "skipped", {"message": "there was nothing to look at"})
    if report.reasons:
        case = ET.SubElement(suite, "testcase", {"classname": "stint.audit", "name": "decision", "time": "0"})
        failure = ET.SubElement(case, "failure", {"type": "denied", "message": "The service denies it"})
        failure.text = _printable("\n".join(f"{each['code']}: {each['message']}" for each in report.reasons))
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _of(report: Report, code: str) -> list[Finding]:
    return [each for each in report.findings if each.code == code]


def _printable(text: str) -> str:
    """Text that XML can hold."""
    return "".join(sign if sign in "\t\n" or sign >= " " else "�" for sign in text)


def sarif(report: Report) -> str:
    """SARIF 2.1.0 (OASIS): a rule for each of ours, a result for each finding, at the manifest or at the artifact."""
    places = {code: number for number, code in enumerate(RULES)}
    results = [
        {
            "ruleId": finding.code,
            **({"ruleIndex": places[finding.code]} if finding.code in places else {}),
            "level": _LEVELS[finding.severity],
            "message": {"text": finding.message},
            "locations": [{"physicalLocation": {"artifactLocation": {"uri": _uri(_place(report, finding))}}}],
            "partialFingerprints": {
                "stintFinding/v1": f"{finding.code}:{json.dumps(dict(finding.evidence), sort_keys=True)}"
            },
            "properties": {
                "basis": finding.basis,
                "denied": finding in report.denied,
                "evidence": dict(finding.evidence),
            },
        }
        for finding in report.findings
    ]
    results += [
        {
            "ruleId": str(reason["code"]),
            "level": "error",
            "message": {"text": str(reason["message"])},
            "locations": [{"physicalLocation": {"artifactLocation": {"uri": _uri(report.manifest)}}}],
        }
        for reason in report.reasons
    ]
    driver = {
        "name": "stint audit",
        "version": version("stint"),
        "rules": [
            {
                "id": rule.code,
                "shortDescription": {"text": rule.title},
                "fullDescription": {"text": f"{rule.title}. Source: {rule.source}."},
                "help": {"text": rule.remedy},
                "defaultConfiguration": {"level": _LEVELS[rule.severity]},
            }
            for rule in RULES.values()
        ],
    }
    run = {"tool": {"driver": driver}, "results": results, "columnKind": "unicodeCodePoints"}
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, ensure_ascii=False, indent=2) + "\n"


def _place(report: Report, finding: Finding) -> str:
    """Where a finding is shown: at the file that it was found in."""
    of_file = finding.code.startswith(("artifact.", "noise.")) and finding.basis == "checked"
    return report.artifact if of_file and report.artifact is not None else report.manifest


def _uri(path: str) -> str:
    return quote(path.replace("\\", "/"))


#: How a report may be written.
FORMATS: Final[Mapping[str, Callable[[Report], str]]] = MappingProxyType(
    {"human": human, "json": as_json, "junit": junit, "sarif": sarif}
)


def at_least(findings: Sequence[Finding], severity: Severity) -> list[Finding]:
    """Those of this severity, and worse."""
    return [each for each in findings if SEVERITIES.index(each.severity) <= SEVERITIES.index(severity)]
