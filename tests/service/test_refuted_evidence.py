"""Once an audit has refuted a mechanism, no document promises what was made by it, until the violation is lifted."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from accountant.audit.verdicts import confidence_of
from service.api.context import Parts
from service.cli import main
from service.operations import empirical
from service.store.writer import Operation
from tests.service.harness import Caller

SGD = {
    "name": "dp-sgd",
    "parameters": {"noise_multiplier": 4.0, "sampling_probability": 0.1, "steps": 4, "clip_norm": 1.0},
}


def violated(call: Caller, parts: Parts, population: str) -> str:
    asked = {"population": population, "mechanism": "dp-sgd", "audit": "weights after one step", "samples": 1000}
    planned = call.ok("POST", "/v1/audits", asked)
    begun = empirical.begin(parts.database, planned["id"], worker="tests", lease_seconds=60)
    assert begun is not None
    found = {
        "epsilon_lower": 2 * planned["promise"]["epsilon"], "delta": planned["promise"]["delta"],
        "confidence": confidence_of(1), "method": "clopper_pearson", "samples": 750,
        "assumptions": ["independent runs"], "attainable": 50.0,
    }  # fmt: skip
    decide = empirical.conclude(audit=planned["id"], token=begun.token, found={"bounds": [found], "roc": []})
    operation = Operation(population=population, actor="tests", decide=decide, uses_sql=True)
    parts.writer.submit(operation).result(60)
    identity: str = planned["id"]
    return identity


def predicate(call: Caller, release: str) -> dict[str, Any]:
    envelope = call("GET", f"/v1/releases/{release}/certificate")
    assert call.ok("POST", "/v1/verify", json.loads(envelope.content))["outcome"] == "genuine"
    found: dict[str, Any] = json.loads(base64.b64decode(envelope.json()["payload"]))["predicate"]
    return found


def printed(call: Caller, parts: Parts, release: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What a stranger reads of its certificate."""
    content = call("GET", f"/v1/releases/{release}/certificate").content
    (folder / "c.json").write_bytes(content)
    assert main(["verify-certificate", str(folder / "c.json"), "--key", parts.secrets.public_key.hex()]) == 0
    page = call("POST", "/verify", data={"certificate": content.decode()}).text
    said = capsys.readouterr().out
    assert ("found the promise of its mechanism false" in page) is ("found the promise of its mechanism false" in said)
    return said


def test_what_an_audit_refuted_has_no_bound_until_it_is_lifted(
    call: Caller, parts: Parts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    population = call.population(count=60, epsilon=2.0, delta=1e-5)
    asked = {"population": population, "scope": {"ranges": [[0, 60]]}, "mechanism": SGD}
    release = call.ok("POST", "/v1/releases", asked)["id"]
    call.ok("POST", f"/v1/releases/{release}/commit", {})
    before = predicate(call, release)
    assert before["guarantee"]["release"]["bound"] == before["guarantee"]["lifelong"]["bound"] == "upper"
    assert "violations" not in before
    assert "false" not in printed(call, parts, release, tmp_path, capsys)
    assert call.ok("GET", f"/v1/populations/{population}")["promise"]["proof_status"] == "proved"

    assert '<div class="verdict good">' in call("GET", f"/releases/{release}").text
    voided = call.ok("POST", "/v1/releases", {**asked, "scope": {"ranges": [[0, 20]]}})["id"]
    call.ok("POST", f"/v1/releases/{voided}/void", {"reason": "never ran"})
    audit = violated(call, parts, population)
    assert '<div class="verdict bad">' in call("GET", f"/releases/{release}").text
    assert '<div class="verdict plain">' in call("GET", f"/releases/{voided}").text
    after = predicate(call, release)
    for each in after["guarantee"].values():
        assert (each["proof_status"], each["bound"], each["epsilon_upper"]) == ("refuted", "none", None)
    assert [(each["audit"], each["lifted"]) for each in after["violations"]] == [(audit, False)]
    assert f"Audit {audit} found the promise of its mechanism false." in printed(call, parts, release, tmp_path, capsys)
    promise = call.ok("GET", f"/v1/populations/{population}")["promise"]
    assert (promise["proof_status"], promise["bound"]) == ("refuted", "none")
    said = call("GET", f"/v1/populations/{population}/datapoints/3/statement?format=text").text
    assert "An audit found that the promise does not hold" in " ".join(said.split())
    assert "upper bound" not in said
    for path in (f"/v1/populations/{population}/report", f"/v1/releases/{release}/report"):
        report = call.ok("GET", path)["report"]
        assert audit in report["bounds"]
        assert [(each["audit"], each["verdict"], each["blocks"]) for each in report["audits"]] == [
            (audit, "violation", True)
        ]
        assert report["promise"]["epsilon_upper"] is None
        assert report["policies"][0]["text"].endswith("A release with a finding marked “error” is denied.")
        assert [each["kind"] for each in report["decisions"][0]["events"]] == ["repeated"]
        page = call("GET", f"{path}?format=html").text
        assert f"Audit <code>{audit}</code>" in page

    call.ok("PUT", f"/v1/populations/{population}/policy", {"reason": "mended", "lift": [audit]})
    assert '<div class="verdict good">' in call("GET", f"/releases/{release}").text
    lifted = predicate(call, release)
    assert lifted["guarantee"] == before["guarantee"]
    assert [(each["audit"], each["lifted"]) for each in lifted["violations"]] == [(audit, True)]
    assert f"{audit} found the promise of its mechanism false, and a policy has lifted that." in printed(
        call, parts, release, tmp_path, capsys
    )
    assert call.ok("GET", f"/v1/populations/{population}")["promise"]["bound"] == "upper"
    call.verify(population)
    assert_it_is_still_told(call, population, release, audit)


def assert_it_is_still_told(call: Caller, population: str, release: str, audit: str) -> None:
    """Whoever reads of a life is told no less than whoever checks a certificate."""
    lifted = "An audit disproved dp-sgd, by which something was released; version 2 of the policy lifted that"
    verdict = call.ok("GET", f"/v1/populations/{population}/report")["report"]["verdict"]
    assert verdict["answer"] == "yes"
    assert verdict["text"].endswith(f"{lifted}: mended.")
    told = call.ok("GET", f"/v1/releases/{release}/report")["report"]["verdict"]
    assert told["text"].endswith(f"left the house. {lifted}: mended.")
    key = call.ok("POST", "/v1/keys", {"name": "a pipeline", "roles": ["pipeline"]})["secret"]
    for headers, why in (({}, ": mended."), ({"Authorization": f"Bearer {key}"}, ".")):
        overview = call.ok("GET", "/overview.json", headers=headers)
        [found] = [each for each in overview["violations"] if each["audit"] == audit]
        assert (found["population"], found["lifted"], found["version"]) == (population, True, 2)
        assert found["text"].endswith(f"{lifted}{why}")
        assert f"{lifted.replace('dp-sgd', f'dp-sgd in {population}')}{why}" in overview["beside"]
        for path in ("/overview", f"/populations/{population}/budget", f"/releases/{release}"):
            page = call("GET", path, headers=headers).text
            assert f"{lifted}{why}" in page, path
            assert f'href="/audits/{audit}"' in page, path
            assert ("mended" in page) is (why != "."), path


def test_a_violation_of_what_was_never_used_changes_no_promise(call: Caller, parts: Parts) -> None:
    population = call.population(count=60, epsilon=2.0, delta=1e-5)
    violated(call, parts, population)
    assert call.ok("GET", f"/v1/populations/{population}")["promise"]["proof_status"] == "proved"
    for path in ("/overview", f"/populations/{population}/budget"):
        assert "Nothing made by dp-sgd has left or may leave here." in call("GET", path).text, path


def test_policies_that_accept_less_than_proofs_show_in_the_promise(call: Caller) -> None:
    population = call.population(count=10)
    policy = f"/v1/populations/{population}/policy"
    call.ok("PUT", policy, {"reason": "to compare", "accepts": ["proved", "claimed"]})
    call.ok("PUT", policy, {"reason": "enough", "accepts": ["proved"]})
    promise = call.ok("GET", f"/v1/populations/{population}")["promise"]
    assert (promise["proof_status"], promise["bound"]) == ("claimed", "none")  # what was accepted may have left
