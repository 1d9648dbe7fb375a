"""`stint audit`: what it prints in each format, how it exits, and what it says of wrong arguments and files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from accountant.audit.findings import RULES
from service.cli import main
from tests.service.audit_cases import CASES, CLEAN, LABELS, Release, clean, file_of, holding, noise, tensors


@pytest.fixture(autouse=True)
def no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STINT_URL", "STINT_KEY"):
        monkeypatch.delenv(name, raising=False)


def words(release: Release, folder: Path, *more: str) -> list[str]:
    files = {name: str(path) for name, path in release.write(folder).items()}
    found = ["audit", files.pop("manifest")]
    for name, path in files.items():
        found += [f"--{name}", path]
    return [*found, *more]


def said(capsys: pytest.CaptureFixture[str], *given: str, code: int) -> str:
    found = main(given)
    out, err = capsys.readouterr()
    assert (found, err) == (code, ""), out + err
    return out


def complained(capsys: pytest.CaptureFixture[str], *given: str) -> str:
    found = main(given)
    out, err = capsys.readouterr()
    assert (found, out) == (2, ""), out + err
    assert err.startswith("stint: ")
    assert err.count("\n") == 1
    return err


def test_a_clean_release_exits_0(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = said(capsys, *words(clean(), tmp_path), code=0)
    assert re.fullmatch(r"Clean: \d+ of \d+ rules had something to look at; none found\.\n", out)


@pytest.mark.parametrize("code", [code for code in RULES if code != "statement.unknown"])
def test_every_finding_is_printed_with_its_remedy(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, code: str
) -> None:
    rule = RULES[code]
    release = CASES[code][0]()
    out = said(capsys, *words(release, tmp_path), code=0 if rule.severity == "note" else 1)
    assert f"{code} (" in out
    assert rule.severity == "note" or rule.remedy in out
    said(capsys, *words(release, tmp_path, "--fail-on", "note"), code=1)


def test_without_a_policy_only_proved_mechanisms_pass(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    given = words(CASES["mechanism.proof_status"][0](), tmp_path)
    place = given.index("--policy")
    del given[place : place + 2]
    assert "mechanism.proof_status" in said(capsys, *given, code=1)


def test_what_makes_it_fail_can_be_chosen(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    warned = words(clean(tuning=None), tmp_path)
    said(capsys, *warned, code=1)
    said(capsys, *warned, "--fail-on", "error", code=0)
    wrong = words(clean(tuning={"source": "private"}), tmp_path)
    said(capsys, *wrong, "--fail-on", "error", code=1)


def test_a_policy_says_which_ones_deny(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    given = [*words(clean(tuning=None), tmp_path), "--fail-on", "error"]
    policy = tmp_path / "strict.toml"
    policy.write_text('[findings]\n"tuning.undeclared" = "deny"\n')
    given[given.index("--policy") + 1] = str(policy)
    assert "denied: tuning.undeclared" in said(capsys, *given, code=1)
    policy.write_text('[findings]\n"tuning.undeclared" = "allow"\n')
    assert "warning: tuning.undeclared" in said(capsys, *given, code=0)


def test_toml_says_the_same_as_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    manifest, artifact = tmp_path / "release.toml", tmp_path / "model.safetensors"
    artifact.write_bytes(file_of(tensors()))
    lines = ["version = 1", 'kind = "weights"']
    for name, value in CLEAN.items():
        if isinstance(value, dict) and name != "mechanism":
            lines += [f"[{name}]", *(f"{key} = {json.dumps(each)}" for key, each in value.items())]
    lines += ["[mechanism]", 'name = "dp-sgd"', "[mechanism.parameters]"]
    lines += [f"{key} = {each}" for key, each in CLEAN["mechanism"]["parameters"].items()]
    manifest.write_text("\n".join(lines))
    said(capsys, "audit", str(manifest), "--artifact", str(artifact), code=0)
    manifest.write_text("\n".join(lines).replace('"prior"', '"data"'))
    assert "label_space.from_data" in said(capsys, "audit", str(manifest), "--artifact", str(artifact), code=1)


# ---------------------------------------------------------------- formats


def test_json_has_everything(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    given = words(clean(state={"retained": "raw"}), tmp_path)
    found = json.loads(said(capsys, *given, "--format", "json", code=1))
    assert json.loads(said(capsys, *given, "--json", code=1)) == found
    [one] = found["findings"]
    assert (one["code"], one["basis"], one["severity"], one["denied"]) == ("state.raw", "attested", "error", True)
    assert one["remedy"] == RULES["state.raw"].remedy
    assert not found["clean"]
    assert set(found["checked"]) <= set(RULES)


def test_junit_has_a_case_for_every_rule(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    release = holding(tensors(**{"head.weight": noise((4, 16))}), tuning=None, preprocessing=None)
    root = ET.fromstring(said(capsys, *words(release, tmp_path), "--format", "junit", code=1))
    assert root.tag == "testsuites"
    [suite] = root
    cases = {case.attrib["name"]: case for case in suite}
    assert list(cases) == list(RULES)
    failed = {name for name, case in cases.items() if case.find("failure") is not None}
    skipped = {name for name, case in cases.items() if case.find("skipped") is not None}
    assert failed == {"artifact.head_width", "tuning.undeclared"}
    assert "tasks.overlap" in skipped
    assert cases["preprocessing.undeclared"].find("system-out") is not None  # a note fails nothing
    for element in (root, suite):
        assert element.attrib["tests"] == str(len(cases))
        assert element.attrib["failures"] == str(len(failed))
        assert element.attrib["skipped"] == str(len(skipped))
        assert element.attrib["errors"] == "0"


def test_sarif_has_a_result_for_every_finding(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    release = holding(tensors(**{"head.weight": noise((4, 16))}), tuning=None, preprocessing=None)
    given = words(release, tmp_path)
    found = json.loads(said(capsys, *given, "--format", "sarif", code=1))
    check_sarif(found)
    [run] = found["runs"]
    results = {each["ruleId"]: each for each in run["results"]}
    assert {code: each["level"] for code, each in results.items()} == {
        "artifact.head_width": "error", "tuning.undeclared": "warning", "preprocessing.undeclared": "note",
    }  # fmt: skip

    def place(code: str) -> str:
        uri: str = results[code]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        return uri.rpartition("/")[2]

    assert place("artifact.head_width") == "artifact.safetensors"
    assert place("tuning.undeclared") == "manifest.json"


def check_sarif(document: dict[str, Any]) -> None:
    """What SARIF 2.1.0 demands of the parts that are used here (sections 3.13, 3.14, 3.19, 3.27 and 3.49)."""
    assert set(document) == {"$schema", "version", "runs"}
    assert document["version"] == "2.1.0"
    for run in document["runs"]:
        driver = run["tool"]["driver"]
        assert driver["name"]
        identities = [rule["id"] for rule in driver["rules"]]
        assert len(identities) == len(set(identities))
        for rule in driver["rules"]:
            assert rule["shortDescription"]["text"]
            assert rule["defaultConfiguration"]["level"] in {"none", "note", "warning", "error"}
        for result in run["results"]:
            assert result["message"]["text"]
            assert result["level"] in {"none", "note", "warning", "error"}
            assert identities[result["ruleIndex"]] == result["ruleId"]
            assert all(isinstance(each, str) for each in result["partialFingerprints"].values())
            for location in result["locations"]:
                assert re.fullmatch(r"[\w./%~-]+", location["physicalLocation"]["artifactLocation"]["uri"])


@pytest.mark.parametrize("form", ["human", "json", "junit", "sarif"])
def test_a_report_is_written_to_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path, form: str) -> None:
    given = words(clean(tuning=None), tmp_path)
    printed = said(capsys, *given, "--format", form, code=1)
    target = tmp_path / "out" / "report"
    target.parent.mkdir()
    assert said(capsys, *given, "--format", form, "--output", str(target), code=1) == ""
    assert target.read_text(encoding="utf-8") == printed


def test_names_with_strange_signs_break_no_format(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "a <b> & ü"
    folder.mkdir()
    given = words(clean(tuning=None), folder)
    ET.fromstring(said(capsys, *given, "--format", "junit", code=1))
    check_sarif(json.loads(said(capsys, *given, "--format", "sarif", code=1)))


# ---------------------------------------------------------------- what else it compares with


def test_labels_of_a_label_release_are_read_from_its_artifact(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    told = tmp_path / "labels.safetensors"
    for labels, code in ((LABELS, 0), (["healthy"], 1)):
        facts = json.dumps({"labels": labels}, separators=(",", ":"))
        told.write_bytes(file_of({}, {"stint": facts, "releasable": "true"}))
        said(capsys, *words(clean(), tmp_path), "--labels", str(told), code=code)


def test_private_rows_are_looked_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import numpy as np

    data = noise((20, 16), 42)
    np.save(tmp_path / "rows.npy", data)
    np.savez(tmp_path / "rows.npz", x=data)
    (tmp_path / "rows.safetensors").write_bytes(file_of({"x": data}))
    leaking = words(holding(tensors(**{"lookup.weight": np.concatenate([noise((3, 16), 1), data[:1]])})), tmp_path)
    for ending in ("npy", "npz", "safetensors"):
        rows = ["--rows", str(tmp_path / f"rows.{ending}")]
        assert "rows of the data itself" in said(capsys, *leaking, *rows, code=1)
    for wrong, why in ((np.ones((20, 16)), "no row that could be told"), (np.arange(20), "two numbers or more")):
        np.save(tmp_path / "wrong.npy", wrong)
        assert why in complained(capsys, *leaking, "--rows", str(tmp_path / "wrong.npy"))
    innocent = tmp_path / "innocent"
    innocent.mkdir()
    said(capsys, *words(clean(), innocent), "--rows", str(tmp_path / "rows.npy"), code=0)


def test_tensors_of_a_public_file_need_no_word(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A frozen backbone is known by its numbers; where one of them was trained further, that is told."""
    import numpy as np

    frozen = {"backbone.weight": noise((16, 8), 5), "backbone.bn.running_mean": noise((8,), 6)}
    public = tmp_path / "backbone.safetensors"
    public.write_bytes(file_of({"other.name": frozen["backbone.weight"], "mean": frozen["backbone.bn.running_mean"]}))
    release = holding(tensors(**frozen))
    given = [*words(release, tmp_path), "--public", str(public)]
    said(capsys, *given, code=0)
    assert "artifact.batch_norm" in said(capsys, *words(release, tmp_path), code=1)
    declared = holding(tensors(**frozen), artifact={"public": ["backbone."]})
    assert "artifact.declared_public" in said(capsys, *words(declared, tmp_path), code=1)
    said(capsys, *words(declared, tmp_path), "--public", str(public), code=0)
    moved = {**frozen, "backbone.weight": np.nextafter(frozen["backbone.weight"], np.float32(9))}
    declared = holding(tensors(**moved), artifact={"public": ["backbone."]})
    shown = said(capsys, *words(declared, tmp_path), "--public", str(public), code=1)
    assert "1 tensors are public by the pipeline's word" in shown


def test_a_code_that_is_allowed_by_name_does_not_fail(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    given = words(clean(artifact={"public": ["body."]}, tuning=None), tmp_path)
    policy = Path(given[given.index("--policy") + 1])
    policy.write_text(json.dumps({"findings": {"artifact.declared_public": "allow"}}))
    assert "warning: artifact.declared_public" in said(capsys, *given, code=1)
    policy.write_text(json.dumps({"findings": {"artifact.declared_public": "allow", "tuning.undeclared": "allow"}}))
    said(capsys, *given, code=0)
    policy.write_text(json.dumps({"findings": {"warning": "allow"}}))  # as it is unless said otherwise
    said(capsys, *given, code=1)


# ---------------------------------------------------------------- it could not run


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["audit"], "a manifest"),
        (["audit", "--dry-run"], "a manifest"),
        (["audit", "no.toml"], "no.toml: there is no such file"),
        (["audit", "{folder}"], "there is no such file"),
        (["audit", "{manifest}", "--artifact", "no.safetensors"], "no.safetensors: there is no such file"),
        (["audit", "{manifest}", "--earlier", "no.safetensors"], "no.safetensors: there is no such file"),
        (["audit", "{manifest}", "--earlier", "{manifest}"], "nothing to compare with"),
        (["audit", "{manifest}", "--public", "{manifest}"], "nothing to compare with"),
        (["audit", "{manifest}", "--public", "no.safetensors"], "no.safetensors: there is no such file"),
        (["audit", "{manifest}", "--ledger", "{manifest}"], "no export of a ledger"),
        (["audit", "{manifest}", "--ledger", "{empty}"], "no export of a ledger"),
        (["audit", "{manifest}", "--labels", "{manifest}"], "tells no labels"),
        (["audit", "{manifest}", "--rows", "{manifest}"], "give one"),
        (["audit", "{manifest}", "--artifact", "{artifact}", "--rows", "{manifest}"], "rows are .npy"),
        (["audit", "{manifest}", "--artifact", "{artifact}", "--rows", "{artifact}"], "no array x"),
        (["audit", "{manifest}", "--policy", "{list}"], "is not a policy"),
        (["audit", "{manifest}", "--policy", "{wrong}"], "findings.errors"),
        (["audit", "{manifest}", "--format", "xml"], "xml"),
        (["audit", "{manifest}", "--fail-on", "anything"], "anything"),
        (["audit", "{manifest}", "--json", "--format", "sarif"], "exclude each other"),
        (["audit", "{manifest}", "--no-such-option"], "no-such-option"),
        (["audit", "{manifest}", "{manifest}"], "unexpected extra argument"),
        (["audit", "{manifest}", "--output", "/no/such/folder/x"], "/no/such/folder/x"),
        (["audit", "{manifest}", "--release", "rel_1"], "STINT_KEY"),
        (["audit", "{toml}"], "is not TOML"),
        (["audit", "{twice}"], "a name comes twice"),
        (["audit", "{misspelt}"], "tunning: expected a known name, such as 'tuning'"),
        (["audit", "{parameters}"], "parameters.noise_multiplier"),
    ],
)  # fmt: skip
def test_wrong_use_is_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, given: list[str], expected: str
) -> None:
    files = clean().write(tmp_path)
    places = {"folder": str(tmp_path), **{name: str(path) for name, path in files.items()}}
    for name, ending, content in (
        ("empty", "ndjson", ""),
        ("list", "json", "[]"),
        ("wrong", "json", '{"findings": {"errors": "deny"}}'),
        ("toml", "toml", "version = = 1"),
        ("twice", "json", '{"version": 1, "version": 1}'),
        ("misspelt", "json", '{"version": 1, "tunning": {}}'),
        ("parameters", "json", '{"version": 1, "mechanism": {"name": "dp-sgd", "parameters": {"clip_norm": 1}}}'),
    ):
        places[name] = str(tmp_path / f"{name}.{ending}")
        Path(places[name]).write_text(content)
    assert expected in complained(capsys, *(word.format(**places) for word in given))


def test_a_service_that_is_not_there_is_exit_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("STINT_KEY", "sk_" + "0" * 43)
    monkeypatch.setattr("service.audit_cli._PATIENCE_SECONDS", 0.1)
    complained(capsys, *words(clean(), tmp_path), "--release", "rel_01J00000000000000000000000")


def test_an_export_that_was_changed_is_no_ledger(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    given = words(CASES["tasks.overlap"][0](), tmp_path)
    path = Path(given[given.index("--ledger") + 1])
    path.write_text(path.read_text().replace('"count": 5000', '"count": 5001'))
    assert "does not follow" in complained(capsys, *given)


def test_an_audit_loads_no_framework_and_no_server(tmp_path: Path) -> None:
    """A gate in CI installs no torch, and starts at once."""
    program = (
        "import sys; from service.cli import main; code = main(sys.argv[1:]); "
        "print(sorted({'torch', 'opacus', 'fastapi', 'sqlalchemy'} & set(sys.modules)), code)"
    )
    given = [sys.executable, "-c", program, *words(clean(), tmp_path)]
    found = subprocess.run(given, capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.splitlines()[-1] == "[] 0", found.stdout + found.stderr
