"""What was looked at, and what a client found in a file that the service does not have: in the ledger and after it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from string import Formatter
from typing import Any

import numpy as np
import pytest

from accountant import book as ledger_book
from accountant import certificates
from accountant.audit.contents import label_digest
from accountant.audit.findings import RULES
from accountant.audit.standing import IN_FILES, REPORTABLE
from accountant.book import Book
from accountant.canonical import canonical
from accountant.errors import AccountantError
from service import cli
from service.operations import audits
from service.signing import is_signed
from tests.service.audit_cases import CASES, LABELS, file_of, noise, tensors
from tests.service.fixtures_behaviour import House, pure
from tests.service.harness import Local, local
from tests.service.test_audit_rules import audited
from tests.service.work import data, ended, job, until, worker

pytest_plugins = ("tests.service.fixtures_behaviour",)

LEAK = "artifact.training_data"
SHA, OTHER = "ab" * 32, "cd" * 32


@pytest.fixture
def name(house: House) -> str:
    return house.population(100, epsilon=3.0)


@pytest.fixture
def held(house: House, name: str) -> str:
    return house.pipeline.hold(name, ({"ranges": [[0, 100]]}, pure(0.01)))


def found(*codes: str, sha256: str = SHA, **more: Any) -> dict[str, Any]:
    listed = [{"code": code, "evidence": {"tensors": 1, "words": "memory"}} for code in codes]
    return {"found": {"sha256": sha256, "checked": sorted(REPORTABLE), "findings": listed, **more}}


def audit(house: House, release: str, body: Any = None, *, role: str = "pipeline", status: int = 200) -> Any:
    return house.as_(role).post(f"/v1/releases/{release}/audit", body, status=status)


def said(house: House, release: str) -> Any:
    """What the certificate says, if it is genuine."""
    content = house.auditor.ask("GET", f"/v1/releases/{release}/certificate", status=200).content
    verdict = certificates.verify(content, is_signed=is_signed, trusted=[house.parts.secrets.public_key])
    assert verdict.outcome == "genuine", verdict.reasons
    return verdict.to_json()["certificate"]


def codes(document: Any) -> set[str]:
    return {each["code"] for each in document["findings"]}


def entries(house: House, name: str) -> list[Any]:
    return list(house.auditor.get(f"/v1/populations/{name}/ledger", limit=100)["items"])


def verified(house: House, name: str) -> None:
    found = house.auditor.post(f"/v1/populations/{name}/ledger/verify")
    assert found["ok"], found


# ---------------------------------------------------------------- a certificate says what was looked at


def test_a_release_that_nobody_looked_at_is_not_audited_and_says_so_everywhere(
    house: House, name: str, held: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    house.pipeline.commit(held, sha256=SHA)
    says = said(house, held)["audit"]
    assert (says["made"], says["artifact_opened"], says["checked"]) == (False, False, [])
    assert says["text"].startswith("Not audited: no file was opened; only what was declared was checked.")
    assert house.auditor.get(f"/v1/releases/{held}")["audit"] == says
    content = house.auditor.ask("GET", f"/v1/releases/{held}/certificate", status=200).content
    posted = house.as_(None).ask("POST", "/v1/verify", content=content, headers={"Content-Type": "application/json"})
    assert posted.json()["certificate"]["audit"] == says
    page = house.as_(None).ask("POST", "/verify", data={"certificate": content.decode()})
    assert says["text"] in page.text
    (tmp_path / "c.json").write_bytes(content)
    assert (
        cli.main(["verify-certificate", str(tmp_path / "c.json"), "--key", house.parts.secrets.public_key.hex()]) == 0
    )
    printed = capsys.readouterr().out
    assert says["text"] in printed
    assert "Findings: 0" not in printed
    report = house.auditor.get(f"/v1/populations/{name}/report")["report"]
    assert report["certificates"][0]["audit"] == says
    shown = house.auditor.ask("GET", f"/v1/populations/{name}/report", params={"format": "html"}).text
    assert "Of the 1 release that left, none had its file opened and checked: " in shown
    assert says["text"] in house.auditor.ask("GET", f"/v1/releases/{held}/report", params={"format": "html"}).text


def test_an_audit_that_had_no_file_says_that_nobody_opened_it(house: House, name: str, held: str) -> None:
    house.pipeline.commit(held, sha256=SHA)
    before = house.auditor.ask("GET", f"/v1/releases/{held}/certificate").content
    made = audit(house, held)
    says = said(house, held)["audit"]
    assert (says["made"], says["artifact_opened"], says["entry"]) == (True, False, made["entry"]["number"])
    assert says["checked"] == made["checked"]
    assert says["text"].endswith("Nobody opened the artifact.")
    after = house.auditor.ask("GET", f"/v1/releases/{held}/certificate").content
    assert before != after
    predicate = json.loads(base64.b64decode(json.loads(after)["payload"]))["predicate"]
    [entry] = [each for each in entries(house, name) if each["number"] == says["entry"]]
    assert (predicate["audit"]["entry"]["hash"], entry["body"]["kind"]) == (entry["hash"], "release.audited")
    assert house.auditor.ask("GET", f"/v1/releases/{held}/certificate").content == after
    told = [each["text"] for each in house.auditor.get(f"/v1/releases/{held}/report")["report"]["entries"]]
    assert any("the service did not open the artifact" in text for text in told)


def test_the_file_that_the_service_opened_is_said_and_its_findings_outlive_the_file(
    house: House, name: str, held: str
) -> None:
    content = file_of(tensors(**{"norm.running_mean": tensors()["head.bias"]}))
    folder = house.parts.settings.artifacts_folder / held
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(content)
    house.pipeline.commit(held, sha256=sha256(content).hexdigest())
    assert "artifact.batch_norm" in codes(audit(house, held))
    says = said(house, held)
    assert (says["audit"]["opened_by"], says["audit"]["artifact_opened"]) == ("service", True)
    (folder / "model.safetensors").unlink()
    folder.rmdir()
    again = audit(house, held)
    assert again["artifact"] is None
    for shown in (again, said(house, held), house.auditor.get(f"/v1/releases/{held}")):
        assert "artifact.batch_norm" in codes(shown)
        assert "artifact.unopened" not in codes(shown)
    assert said(house, held)["audit"]["opened_by"] == "service"
    listed = house.auditor.get("/v1/releases", population=name, finding="artifact.batch_norm")["items"]
    assert [each["id"] for each in listed] == [held]
    verified(house, name)


@pytest.fixture(scope="module")
def factory() -> Iterator[Local]:
    with local(lease_seconds=20.0, attempts=2) as running:
        yield running


@pytest.mark.slow
def test_a_worker_opens_what_it_made_and_the_ledger_says_so(factory: Local) -> None:
    call = factory.call
    population = call.population(count=60, epsilon=2.0, delta=1e-5)
    made = call.ok("POST", "/v1/jobs", job(population, data(factory.parts), tuning={"source": "public"}))
    release = made["release"]["id"]
    early = call("POST", f"/v1/releases/{release}/audit", found())
    assert (early.status_code, early.json()["field"]) == (409, "found")  # there is no file yet
    ended(worker(factory.parts, "--once"))
    assert until(call, made["id"], lambda now: now["status"] == "committed")
    body = call.entries(population)[-1]["body"]
    assert (body["kind"], "artifact.batch_norm" in body["checked"]) == ("release.committed", True)
    says = call.ok("GET", f"/v1/releases/{release}")["audit"]
    assert (says["opened_by"], says["checked"]) == ("worker", body["checked"])
    verdict = certificates.verify(
        call("GET", f"/v1/releases/{release}/certificate").content,
        is_signed=is_signed,
        trusted=[factory.parts.secrets.public_key],
    )
    assert verdict.to_json()["certificate"]["audit"] == says
    assert "opened it before it left" in says["text"]
    call.verify(population)


# ---------------------------------------------------------------- what a client found


def test_what_a_client_found_is_in_the_ledger_as_its_word_and_in_the_certificate(
    house: House, name: str, held: str
) -> None:
    house.pipeline.commit(held, sha256=SHA)
    made = audit(house, held, found(LEAK, bytes=7))
    [leak] = [each for each in made["findings"] if each["code"] == LEAK]
    who = house.pipeline.get("/v1/keys/self")["id"]
    assert (leak["basis"], leak["severity"], leak["by"], leak["denied"]) == ("attested", "error", who, True)
    assert made["denied"]
    assert made["artifact"] is None
    assert made["reported"]["sha256"] == SHA
    assert "artifact.unopened" not in codes(made)
    body = entries(house, name)[-1]["body"]
    assert (body["kind"], body["actor"], body["reported"]["artifact"]) == (
        "release.audited", who, {"sha256": SHA, "bytes": 7},
    )  # fmt: skip
    assert "artifact" not in body  # the service opened nothing
    says = said(house, held)
    assert {"code": LEAK, "basis": "attested", "severity": "error", "by": "client"} in says["findings"]
    assert (says["audit"]["opened_by"], says["audit"]["reported"]) == (
        "client", [code for code in RULES if code in REPORTABLE],
    )  # fmt: skip
    assert "artifact.batch_norm" not in says["audit"]["checked"]
    assert who not in json.dumps(says)
    report = house.auditor.get(f"/v1/releases/{held}/report")
    assert any(each["code"] == LEAK and each["by"] == who for each in report["report"]["findings"])
    page = house.auditor.ask("GET", f"/v1/releases/{held}/report", params={"format": "html"}).text
    assert "who opened the file" in page
    assert held in [each["id"] for each in house.auditor.get("/v1/releases", population=name, finding=LEAK)["items"]]
    verified(house, name)


def test_what_a_client_found_does_not_vanish_when_others_look_less_closely(house: House, name: str, held: str) -> None:
    audit(house, held, found(LEAK))
    for later in (None, {}, found(), {"found": {"sha256": SHA, "checked": ["artifact.pickle"]}}):
        assert LEAK in codes(audit(house, held, later, role="auditor"))
    house.pipeline.commit(held, sha256=SHA)
    audit(house, held)
    assert LEAK in codes(said(house, held))
    assert LEAK in codes(house.auditor.get(f"/v1/releases/{held}"))
    verified(house, name)


def test_a_commit_with_a_finding_that_denies_is_recorded_and_stopped_by_none(
    house: House, name: str, held: str
) -> None:
    """As with everything that is found of an outside pipeline's release: what left has left, and the ledger says it."""
    assert audit(house, held, found(LEAK))["denied"]
    assert house.pipeline.commit(held, sha256=SHA)["status"] == "committed"
    assert LEAK in codes(said(house, held))
    other = house.pipeline.hold(name, ({"ranges": [[0, 100]]}, pure(0.01)))
    audit(house, other, found(LEAK))
    house.pipeline.commit(other, sha256=OTHER)  # it was written again, without the rows
    assert LEAK not in codes(said(house, other))
    assert not said(house, other)["audit"]["artifact_opened"]
    assert "artifact.unopened" in codes(said(house, other))
    verified(house, name)


def test_a_policy_says_whether_what_a_client_found_denies(house: House) -> None:
    name = house.population(100, epsilon=3.0, findings={LEAK: "allow"})
    release = house.pipeline.hold(name, ({"ranges": [[0, 100]]}, pure(0.01)))
    made = audit(house, release, found(LEAK))
    assert (made["denied"], LEAK in codes(made)) == (False, True)


def test_the_same_word_is_written_once_by_each_key(house: House, name: str, held: str) -> None:
    for role, entry in (("pipeline", 1), ("pipeline", 1), ("auditor", 2), ("auditor", 2), ("pipeline", 2)):
        audit(house, held, found(LEAK), role=role)
        kinds = [each["body"]["kind"] for each in entries(house, name)]
        assert kinds.count("release.audited") == entry


def test_another_file_is_not_the_artifact(house: House, name: str, held: str) -> None:
    house.pipeline.commit(held, sha256=SHA)
    refused = audit(house, held, found(LEAK, sha256=OTHER), status=409)
    assert (refused["field"], OTHER in refused["detail"], SHA in refused["detail"]) == ("found.sha256", True, True)
    assert [each["body"]["kind"] for each in entries(house, name)].count("release.audited") == 0


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"sha256": "AB" * 32}, "found.sha256"),
        ({"sha256": None}, "found.sha256"),
        ({"checked": []}, "found.checked"),
        ({"checked": ["state.raw"]}, "found.checked.0"),
        ({"checked": ["artifact.unopened"]}, "found.checked.0"),
        ({"checked": ["artifact.pickle"]}, "found"),
        ({"findings": [{"code": "artifact.digest"}]}, "found.findings.0"),
        ({"findings": [{"code": "no.such.rule"}]}, "found.findings.0"),
        ({"findings": [{"code": LEAK, "evidence": {"row": "the patient's name"}}]}, "found.findings.0.evidence"),
        ({"findings": [{"code": LEAK, "evidence": {"words": "x" * 201}}]}, "found.findings.0.evidence"),
        ({"findings": [{"code": LEAK, "evidence": {"words": "a\nb"}}]}, "found.findings.0.evidence"),
        ({"findings": [{"code": LEAK, "evidence": {"tensors": -1}}]}, "found.findings.0.evidence"),
        ({"findings": [{"code": LEAK, "evidence": {"tensors": [1]}}]}, "found.findings.0.evidence"),
        ({"findings": [{"code": LEAK, "severity": "note"}]}, "found.findings.0.severity"),
        ({"findings": [{"code": LEAK}] * 201}, "found.findings"),
        ({"rows": 3}, "found.rows"),
    ],
)  # fmt: skip
def test_what_a_client_says_is_of_closed_lists_and_short(
    house: House, name: str, held: str, change: dict[str, Any], field: str
) -> None:
    body = found(LEAK)
    body["found"] |= change
    refused = audit(house, held, body, status=422)
    assert refused["field"].startswith(field), refused
    assert [each["body"]["kind"] for each in entries(house, name)].count("release.audited") == 0


def test_who_may_have_a_release_audited_may_say_what_they_found(house: House, held: str) -> None:
    for role, status in (("pipeline", 200), ("officer", 200), ("auditor", 200), ("worker", 403)):
        audit(house, held, found(), role=role, status=status)


def test_a_release_is_audited_so_often_and_no_oftener(house: House, held: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every entry of a release is read to say what stands against it: a key must not be able to drown that."""
    monkeypatch.setattr(audits, "MOST_ENTRIES", 2)
    audit(house, held, found(LEAK))
    audit(house, held, found("artifact.optimizer_state"))
    refused = audit(house, held, found("artifact.batch_norm"), status=409)
    assert "2 audits" in refused["detail"]
    assert {LEAK, "artifact.optimizer_state"} <= codes(audit(house, held, found(LEAK)))


def test_a_log_that_tells_of_another_file_is_found(house: House, name: str, held: str) -> None:
    house.pipeline.commit(held, sha256=SHA)
    audit(house, held, found(LEAK))
    bodies = [each["body"] for each in entries(house, name)]

    def replayed(changed: list[Any]) -> None:
        live = Book.of(canonical(changed[0]))
        links = [(live.chain.link, canonical(changed[0]))]
        for body in map(canonical, changed[1:]):
            live.apply(body)
            links.append((live.chain.link, body))
        ledger_book.replay(links, verify=True)

    replayed(bodies)
    report = bodies[-1]["reported"]
    for wrong, match in (
        ({"artifact": {"sha256": OTHER}}, "in another file"),
        ({"checked": ["state.raw"]}, "looks into files"),
    ):
        with pytest.raises(AccountantError, match=match):
            replayed([*bodies[:-1], {**bodies[-1], "reported": {**report, **wrong}}])


@pytest.mark.parametrize("code", RULES)
def test_what_only_a_file_shows_is_known_to_need_the_file(code: str, tmp_path: Path) -> None:
    """What was found in a file is not taken back without it, so rules that look into files must be known."""
    release = CASES[code][0]()
    with_file = audited(release, tmp_path)
    for path in tmp_path.iterdir():
        path.unlink()
    without = audited(replace(release, artifact=None), tmp_path)
    assert {each.code for each in with_file.findings if each not in without.findings} <= IN_FILES
    for each in with_file.findings:  # what a client may send along is what the words of the rule have a place for
        assert set(each.evidence) <= {name for _, name, _, _ in Formatter().parse(RULES[each.code].message)}


def test_a_person_is_told_what_was_found_against_a_release(house: House, name: str, held: str) -> None:
    house.pipeline.commit(held, sha256=SHA)
    audit(house, held, found(LEAK))
    stated = house.auditor.get(f"/v1/populations/{name}/datapoints/3/statement")
    assert stated["releases"][0]["findings"] == [LEAK]
    [line] = [line for section in stated["sections"] for line in section["lines"]]
    assert line.endswith(f"It may tell more than it was charged for, since a check found: {RULES[LEAK].title}.")


# ---------------------------------------------------------------- the command line


@pytest.fixture
def at_service(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STINT_URL", house.url)
    monkeypatch.setenv("STINT_KEY", house.secrets["pipeline"])


@pytest.mark.usefixtures("at_service")
def test_stint_audit_records_what_it_found_in_the_file(
    house: House, name: str, held: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = noise((20, 16), 42)
    np.save(tmp_path / "rows.npy", rows)
    content = file_of(tensors(**{"lookup.weight": np.concatenate([noise((3, 16), 1), rows[:1]])}))
    model = tmp_path / "model.safetensors"
    model.write_bytes(content)
    house.pipeline.commit(held, sha256=sha256(content).hexdigest())
    given = ["audit", "--release", held, "--artifact", str(model)]
    assert cli.main([*given, "--rows", str(tmp_path / "rows.npy"), "--no-record"]) == 1
    assert "in the ledger" not in capsys.readouterr().out
    assert LEAK not in codes(house.auditor.get(f"/v1/releases/{held}"))
    assert cli.main([*given, "--rows", str(tmp_path / "rows.npy")]) == 1
    printed = capsys.readouterr().out
    assert f"denied: {LEAK} (checked)" in printed
    assert printed.count(LEAK) == 1
    assert "is in the ledger, as your word" in printed
    assert {"code": LEAK, "basis": "attested", "severity": "error", "by": "client"} in said(house, held)["findings"]
    assert (
        cli.main([*given, "--fail-on", "error", "--json"]) == 1
    )  # without the rows: what was found before still stands
    document = json.loads(capsys.readouterr().out)
    [leak] = [each for each in document["findings"] if each["code"] == LEAK]
    assert (leak["basis"], leak["denied"], document["recorded"]) == ("attested", True, True)
    model.write_bytes(file_of(tensors()))
    assert cli.main([*given, "--fail-on", "error", "--json"]) == 1  # another file: told here, and recorded nowhere
    document = json.loads(capsys.readouterr().out)
    assert ("artifact.digest" in codes(document), document["recorded"]) == (True, False)
    assert "artifact.digest" not in codes(house.auditor.get(f"/v1/releases/{held}"))
    verified(house, name)


@pytest.mark.usefixtures("at_service")
def test_a_clean_file_is_recorded_as_looked_at(house: House, held: str, tmp_path: Path) -> None:
    model = tmp_path / "model.safetensors"
    model.write_bytes(file_of(tensors()))
    house.pipeline.commit(held, sha256=sha256(model.read_bytes()).hexdigest())
    cli.main(["audit", "--release", held, "--artifact", str(model)])
    says = said(house, held)["audit"]
    assert (says["opened_by"], "artifact.batch_norm" in says["reported"]) == ("client", True)


def test_all_findings_that_are_many_are_told_with_one_of_each_rule() -> None:
    from accountant.audit.contents import Contents
    from service.audit_cli import _found

    many = [RULES["noise.repeated"].found("checked", tensors=1, where=f"release {n}") for n in range(300)]
    last = RULES[LEAK].found("checked", tensors=1, words="memory")
    told = _found(Contents(sha256=SHA, bytes=1), [*many, last], ["noise.repeated", LEAK, "state.raw"])
    assert len(told["findings"]) == 200
    assert {each["code"] for each in told["findings"]} == {"noise.repeated", LEAK}
    assert told["checked"] == ["noise.repeated", LEAK]


@pytest.mark.parametrize("given", [["m.toml"], ["--release", "rel_1"], ["m.toml", "--artifact", "x"]])
def test_nothing_is_kept_from_nobody(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["audit", *given, "--no-record"]) == 2
    assert "give both" in capsys.readouterr().err


# ---------------------------------------------------------------- label sets as subjects


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        ({"source": "prior", "labels": LABELS}, label_digest(LABELS).removeprefix("sha256:")),
        ({"source": "prior", "labels": LABELS[::-1]}, label_digest(LABELS).removeprefix("sha256:")),
        ({"source": "prior", "labels": LABELS, "digest": f"sha256:{OTHER}"}, OTHER),
        ({"source": "released", "release": "rel_" + "0" * 26, "labels": LABELS}, label_digest(LABELS)[7:]),
        ({"source": "data", "labels": LABELS}, None),
        ({"source": "none"}, None),
        ({"source": "prior", "labels": [1]}, None),
    ],
)  # fmt: skip
def test_labels_that_are_declared_by_name_are_a_subject(
    house: House, space: dict[str, Any], expected: str | None
) -> None:
    name = house.population(100, epsilon=3.0, findings={"error": "allow"})
    release = house.pipeline.hold(name, ({"ranges": [[0, 100]]}, pure(0.01)), label_space=space)
    house.pipeline.commit(release, sha256=SHA)
    assert said(house, release)["label_space"]["sha256"] == expected
    content = house.auditor.ask("GET", f"/v1/releases/{release}/certificate").content
    subjects = json.loads(base64.b64decode(json.loads(content)["payload"]))["subject"]
    assert [each["digest"]["sha256"] for each in subjects if each["name"] == "label-set"] == (
        [] if expected is None else [expected]
    )
    assert not any(label in content.decode() for label in LABELS)
