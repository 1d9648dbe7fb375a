"""Reports: everything of a period in one signed document that names nobody, and prints."""

from __future__ import annotations

import json
import re
import shlex
from datetime import UTC, datetime
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from accountant import envelopes
from accountant.canonical import canonical
from accountant.errors import Refused
from service import cli
from service.client import Stint, dp_sgd
from service.operations import reports
from service.printed import carried_in
from service.signing import is_signed
from service.store.writer import stamp
from service.sweeper import checkpoint, sweep
from tests.service.fixtures_behaviour import House, pure, until
from tests.service.test_evidence import changed_body, tampered
from tests.service.test_statements import well_made

pytest_plugins = ("tests.service.fixtures_behaviour",)

TASK = "w1<script>alert('x')</script>"


def now() -> str:
    return stamp(datetime.now(UTC))


@pytest.fixture(scope="module")
def story(house: House) -> dict[str, Any]:
    """A population with a past, a middle and an end."""
    name = house.population(on_exhausted="trim", epsilon=2.0)
    address = f"/v1/populations/{name}"
    house.officer.post(f"{address}/datapoints", {"keys": [f"patient-{n}" for n in range(30)]}, status=201)
    house.officer.post(f"{address}/tasks", {"name": TASK, "members": {"ranges": [[0, 12]]}}, status=201)
    early = house.officer.hold(name, ({"task": TASK}, pure(0.5)))
    house.officer.commit(early, sha256="ab" * 32, uri="s3://secret")
    middle = now()
    sgd = dp_sgd(noise_multiplier=3.0, sampling_probability=0.01, steps=50, clip_norm=1.0)
    late = house.officer.post("/v1/releases", {"population": name, "task": TASK, "mechanism": sgd}, status=201)["id"]
    house.officer.commit(late, sha256="cd" * 32)
    denied = house.officer.propose(name, ({"ranges": [[0, 30]]}, pure(9.0)), on_exhausted="deny")["id"]
    lost = house.officer.hold(name, ({"ranges": [[12, 30]]}, pure(0.1)), hold_seconds=1)
    until(lambda: sweep(house.parts) == 1)
    voided = house.officer.hold(name, ({"keys": ["patient-3"]}, pure(0.3)))
    house.officer.post(f"/v1/releases/{voided}/void", {"reason": "it crashed <b>"})
    house.officer.put(f"{address}/policy", {"reason": "the board asked", "epsilon": 1.5})
    house.officer.post(f"{address}/datapoints/erase", {"key": "patient-7"})
    checkpoint(house.parts)
    end = now()
    held = house.officer.hold(name, ({"ranges": [[0, 30]]}, pure(0.2)))
    return {"name": name, "middle": middle, "end": end, "early": early, "late": late, "denied": denied,
            "lost": lost, "voided": voided, "held": held}  # fmt: skip


def report(house: House, name: str, **query: Any) -> Any:
    return house.auditor.get(f"/v1/populations/{name}/report", **query)


def of_the_middle(house: House, story: dict[str, Any]) -> Any:
    return report(house, story["name"], **{"from": story["middle"], "to": story["end"]})


def test_a_period_has_everything_that_happened_in_it_and_nothing_else(house: House, story: dict[str, Any]) -> None:
    said = of_the_middle(house, story)["report"]
    kinds = [each["kind"] for each in said["entries"]]
    assert kinds == [
        "release.held", "release.committed", "release.denied", "release.held", "release.expired", "release.held",
        "release.voided", "policy.changed", "datapoint.erased",
    ]  # fmt: skip
    log = {each["number"]: each for each in house.auditor.get(f"/v1/populations/{story['name']}/ledger")["items"]}
    assert all(log[each["number"]]["hash"] == each["hash"] for each in said["entries"])
    assert said["head"] == {"number": said["entries"][-1]["number"], "hash": said["entries"][-1]["hash"]}
    decisions = {each["release"]: each for each in said["decisions"]}
    assert set(decisions) == {story[each] for each in ("late", "denied", "lost", "voided")}
    assert decisions[story["denied"]]["outcome"] == "denied"
    assert [each["code"] for each in decisions[story["denied"]]["reasons"]] == ["budget.exceeded"]
    assert (said["refusals"], decisions[story["late"]]["mechanism"]) == (1, "dp-sgd")
    assert [each["release"] for each in said["certificates"]] == [story["late"], story["lost"]]
    assert [each["version"] for each in said["policies"]] == [1, 2]
    assert said["policies"][1]["reason"] == "the board asked"
    assert "ε = 1.5" in said["policies"][1]["text"]
    assert "left out" in said["policies"][0]["text"]
    assert said["checkpoints"]
    found = {(each["release"], each["code"], each["entry"]) for each in said["findings"]}
    held = next(each["number"] for each in said["entries"] if each["release"] == story["late"])
    assert (story["late"], "tuning.undeclared", held) in found
    assert {each for each, _, _ in found} <= set(decisions)
    assert all(each["message"] and each["remedy"] for each in said["findings"])
    whole = report(house, story["name"])["report"]
    assert len(whole["entries"]) == len(log)
    assert whole["budgets"]["start"] is None
    assert (whole["from"], len(whole["decisions"])) == (log[1]["body"]["at"], 6)


def test_budgets_stand_as_they_stood(house: House, story: dict[str, Any]) -> None:
    said = of_the_middle(house, story)["report"]["budgets"]
    assert said["start"]["worst_off"]["spent"] == pytest.approx(0.5)
    assert (said["start"]["budget"]["epsilon"], said["end"]["budget"]["epsilon"]) == (2, 1.5)
    assert said["end"]["worst_off"]["spent"] > said["start"]["worst_off"]["spent"]
    assert said["end"]["worst_off"]["held"] == 0  # what is held was proposed later
    live = house.auditor.get(f"/v1/populations/{story['name']}/budget")
    assert report(house, story["name"])["report"]["budgets"]["end"]["worst_off"] == live["worst_off"]


def test_periods_that_follow_one_another_leave_nothing_out(house: House, story: dict[str, Any]) -> None:
    edges = [None, story["middle"], story["end"], None]
    parts = [
        report(house, story["name"], **{key: at for key, at in (("from", one), ("to", other)) if at})["report"]
        for one, other in pairwise(edges)
    ]
    whole = report(house, story["name"])["report"]
    for name in ("entries", "decisions", "certificates"):
        assert [each for part in parts for each in part[name]] == whole[name]
    for before, after in pairwise(parts):
        assert before["budgets"]["end"] == after["budgets"]["start"]
    assert parts[-1]["budgets"]["end"] == whole["budgets"]["end"]


def test_a_period_in_which_nothing_happened_begins_as_it_ends(house: House, story: dict[str, Any]) -> None:
    said = report(house, story["name"], **{"from": now()})["report"]
    assert (said["entries"], said["decisions"], said["certificates"]) == ([], [], [])
    assert said["budgets"]["start"] == said["budgets"]["end"]
    assert [each["version"] for each in said["policies"]] == [2]
    page = house.auditor.ask("GET", f"/v1/populations/{story['name']}/report", params={"from": now(), "format": "html"})
    assert "Nothing was proposed." in well_made(page.text).text


def test_the_certificates_are_those_that_the_service_gives(house: House, story: dict[str, Any]) -> None:
    for each in of_the_middle(house, story)["report"]["certificates"]:
        content = house.auditor.ask("GET", f"/v1/releases/{each['release']}/certificate", status=200).content
        assert sha256(content).hexdigest() == each["sha256"]
        assert each["epsilon_upper"] > 0


def test_how_many_nobody_opened_is_counted_over_all_that_left(
    house: House, story: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Certificates are those of the newest hundred; what the report says of files is said of all."""
    monkeypatch.setattr(reports, "MOST_CERTIFICATES", 1)
    said = report(house, story["name"])["report"]
    assert (len(said["certificates"]), said["certificates_in_all"]) == (1, 3)
    assert (said["summary"]["left"], said["summary"]["opened"]) == (3, 0)
    page = house.auditor.ask("GET", f"/v1/populations/{story['name']}/report", params={"format": "html"})
    text = " ".join(well_made(page.text).text.split())
    assert "Of the 3 releases that left, none had its file opened and checked: " in text
    assert "told of the newest 1 of 3 that left" in text
    assert "“ε alone” is that of the release's own certificate, at δ = 1e-06" in text


def test_no_report_is_signed_on_a_ledger_that_was_changed(house: House) -> None:
    name = house.population(5)
    changed = changed_body(house, name, "datapoints.registered", count=6)
    with tampered(house, changed, tables=("entry",)):
        refused = house.auditor.get(f"/v1/populations/{name}/report", status=409)
        assert "Entry 2" in refused["detail"]
    assert report(house, name)["report"]["verified"] is None
    house.auditor.post(f"/v1/populations/{name}/ledger/verify")
    verified = report(house, name)["report"]["verified"]
    assert (verified["ok"], verified["entries"]) == (True, 2)
    page = house.auditor.ask("GET", f"/v1/populations/{name}/report", params={"format": "html"})
    assert "up to entry 2, and found everything in order." in well_made(page.text).text


def test_it_names_nobody(house: House, story: dict[str, Any]) -> None:
    text = json.dumps(report(house, story["name"]))
    for private in ("patient", '"scope"', "ranges", "bitmap", "ordinal", "s3:"):
        assert private not in text, private


def test_the_same_period_has_the_same_report(house: House, story: dict[str, Any]) -> None:
    one, other = (of_the_middle(house, story)["report"] for _ in range(2))
    assert {**one, "made_at": ""} == {**other, "made_at": ""}


def test_its_digest_is_signed(house: House, story: dict[str, Any]) -> None:
    given = of_the_middle(house, story)
    trusted = [house.parts.secrets.public_key]

    def opened(document: Any, envelope: Any, keys: list[bytes] = trusted) -> envelopes.Opened:
        return envelopes.open_document(
            document, envelope, predicate_type=envelopes.REPORT_TYPE, is_signed=is_signed, trusted=keys
        )

    found = opened(given["report"], given["envelope"])
    assert found.is_trusted
    assert found.predicate["population"] == story["name"]
    assert found.subjects[0]["digest"] == {"sha256": sha256(canonical(given["report"])).hexdigest()}
    assert not opened(given["report"], given["envelope"], []).is_trusted
    changed = json.loads(json.dumps(given["report"]))
    changed["decisions"][0]["outcome"] = "denied"
    other = house.auditor.get(f"/v1/releases/{story['late']}/certificate")
    for document, envelope, keys, code in (
        (changed, given["envelope"], trusted, "document.other"),
        (None, given["envelope"], trusted, "document.other"),
        (given["report"], None, trusted, "envelope.fields"),
        (given["report"], {"x": float("inf")}, trusted, "envelope.unreadable"),
        (given["report"], given["envelope"], [bytes(32)], "signer.other"),
        (given["report"], other, trusted, "statement.predicate_type"),
    ):
        with pytest.raises(Refused) as refused:
            opened(document, envelope, keys)
        assert refused.value.code == code
        assert code in envelopes.DOCUMENT_REASONS


def test_the_page_prints_and_can_be_read_aloud(house: House, story: dict[str, Any]) -> None:
    query = {"from": story["middle"], "to": story["end"], "format": "html"}
    answer = house.auditor.ask("GET", f"/v1/populations/{story['name']}/report", params=query, status=200)
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    outline = well_made(answer.text)
    said = of_the_middle(house, story)["report"]
    sentences = [said["verdict"]["text"], said["odds"], said["odds_so_far"], said["meaning"], said["bounds"]]
    sentences += [*said["method"], *said["not_shown"]]
    sentences += [each["text"] for each in said["policies"]]
    sentences += [reason["text"] for each in said["decisions"] for reason in each["reasons"]]
    sentences += [each["title"] for each in said["summary"]["findings"]]
    for sentence in sentences:
        assert " ".join(sentence.split()) in outline.text, sentence
    for each in said["decisions"]:  # one line for each, in words
        assert outline.text.count(each["release"]) == 1
    assert "50 times: Gaussian noise (multiplier 3) on a random sample (rate 0.01)" in outline.text
    assert not re.search('"kind"|nats|datapoint|add_remove', outline.text)
    assert "lifelong budget is ε = 2 at δ = 1e-06." in outline.text
    assert "Only proved mechanisms are accepted." in outline.text
    assert "The ledger has not been verified in full yet, see Signature." in outline.text
    assert [tag for tag, _ in outline.tags].count("table") == 4


def test_the_first_page_has_the_answer_and_counts(house: House, story: dict[str, Any]) -> None:
    said = of_the_middle(house, story)["report"]
    assert said["verdict"]["answer"] == "yes"
    assert "each of 30 users" in said["verdict"]["text"]
    assert not said["is_made_up"]
    counts = {each["status"]: each["releases"] for each in said["summary"]["outcomes"]}
    assert counts == {"committed": 1, "held": 0, "expired": 1, "voided": 1, "denied": 1, "spent": 0}
    assert said["summary"]["proposed"] == 4
    assert [(each["code"], each["text"], each["releases"]) for each in said["summary"]["refused_for"]] == [
        ("budget.exceeded", "over the budget for life", 1)
    ]
    assert {each["became"] for each in said["decisions"]} == {"committed", "denied", "expired", "voided"}
    found = {each["code"]: each["releases"] for each in said["summary"]["findings"]}
    assert found["tuning.undeclared"] == len({each["release"] for each in said["findings"] if "tuning" in each["code"]})
    assert [each["text"] for each in said["summary"]["else"]] == ["1 user's key was erased"]
    who = {each["id"]: each["name"] for each in said["actors"]}
    assert who[said["policies"][1]["actor"]] == "officer"
    assert who["sweeper"] is None
    assert sum(each["entries"] for each in said["actors"]) >= len(said["entries"])


def test_a_promise_that_an_audit_refuted_is_no_yes(house: House) -> None:
    name = house.population(5, epsilon=2.0, accepts=["proved", "claimed"])
    assert report(house, name)["report"]["verdict"]["answer"] == "open"


def test_nobody_is_said_to_have_left_unopened_what_was_denied(house: House, story: dict[str, Any]) -> None:
    denied = [
        each["release"] for each in of_the_middle(house, story)["report"]["decisions"] if each["became"] == "denied"
    ]
    assert house.auditor.get(f"/v1/releases/{denied[0]}")["audit"]["text"].startswith("Not audited: it was denied")


def test_a_release_has_a_report_whatever_became_of_it(house: House, story: dict[str, Any]) -> None:
    for name, status, certificates in (
        ("late", "committed", 1), ("lost", "expired", 1), ("denied", "denied", 0), ("voided", "voided", 0),
        ("held", "held", 0),
    ):  # fmt: skip
        given = house.auditor.get(f"/v1/releases/{story[name]}/report")
        said = given["report"]
        assert (said["release"]["status"], len(said["certificates"])) == (status, certificates)
        assert {each["release"] for each in said["entries"]} == {story[name]}
        envelopes.open_document(
            said, given["envelope"], predicate_type=envelopes.REPORT_TYPE, is_signed=is_signed,
            trusted=[house.parts.secrets.public_key],
        )  # fmt: skip
        page = house.auditor.ask("GET", f"/v1/releases/{story[name]}/report?format=html", status=200)
        well_made(page.text)
    house.auditor.get(f"/v1/releases/rel_{'0' * 26}/report", status=404)


def test_periods_that_cannot_be_are_refused(
    house: House, story: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = story["name"]
    house.auditor.get("/v1/populations/nobody/report", status=404)
    backwards = {"from": story["end"], "to": story["middle"]}
    assert house.auditor.get(f"/v1/populations/{name}/report", status=422, **backwards)["field"] == "from"
    assert house.auditor.get(f"/v1/populations/{name}/report", status=422, to="2020-01-01")["field"] == "to"
    house.auditor.get(f"/v1/populations/{name}/report", status=422, to="yesterday")
    for odd in ("0001-01-01T00:00:00+14:00", "1970-01-01", "2020-01-01T00:00:00"):
        assert report(house, name, **{"from": odd})["report"]["budgets"]["start"] is None
    ahead = report(house, name, to="9999-12-31T23:59:59-14:00")["report"]
    assert ahead["entries"]
    assert ahead["to"] == ahead["made_at"] < ahead["ends"]
    page = house.auditor.ask("GET", f"/v1/populations/{name}/report", params={"to": "2999-01-01", "format": "html"})
    assert "Interim: the period ends on 2999-01-01 00:00:00 UTC." in well_made(page.text).text
    whole = report(house, name)["report"]
    assert whole["summary"]["else"][0]["text"].endswith("users were added, in 1 registration")
    assert whole["ends"] == whole["to"]
    monkeypatch.setattr(reports, "MOST_ENTRIES", 3)
    assert "shorter" in house.auditor.get(f"/v1/populations/{name}/report", status=422)["detail"]
    monkeypatch.setattr(reports, "MOST_REPLAYED", 3)
    assert "at most 3 entries" in house.auditor.get(f"/v1/populations/{name}/report", status=422)["detail"]


def test_what_is_not_proved_is_said(house: House) -> None:
    name = house.population(5, epsilon=2.0, accepts=["proved", "claimed"])
    said = report(house, name)["report"]
    assert "not proved" in said["bounds"]
    assert said["promise"]["epsilon_upper"] is None


def test_reports_at_the_command_line(
    house: House,
    story: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STINT_URL", house.url)
    monkeypatch.setenv("STINT_KEY", house.secrets["auditor"])
    monkeypatch.setenv("STINT_DATA", "nowhere")
    file, page = tmp_path / "r.json", tmp_path / "r.html"
    period = ["--from", story["middle"], "--to", story["end"]]
    assert cli.main(["export", story["name"], "--report", *period, "-o", str(file)]) == 0
    assert cli.main(["export", story["late"], "--report", "--format", "html", "-o", str(page)]) == 0
    well_made(page.read_text(encoding="utf-8"))
    capsys.readouterr()
    key = house.parts.secrets.public_key.hex()

    def check(*words: str) -> tuple[int, str]:
        code = cli.main(["verify-report", *words])
        out, err = capsys.readouterr()
        return code, out + err

    assert check(str(file), "--key", key)[0] == 0
    code, said = check(str(file))
    assert (code, said.startswith("Consistent, signer unknown")) == (1, True)
    document = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(document, indent=2), encoding="utf-8")
    assert check(str(file), "--key", key)[0] == 0  # another spelling of the same
    document["report"]["refusals"] = 0
    file.write_text(json.dumps(document), encoding="utf-8")
    code, said = check(str(file), "--key", key, "--json")
    assert (code, json.loads(said)["reasons"][0]["code"]) == (1, "document.other")
    file.write_text("[]")
    assert check(str(file), "--key", key)[0] == 1

    code, said = check(str(page), "--key", key, "--json")
    assert (code, json.loads(said)["outcome"]) == (0, "genuine")
    shown = page.read_text(encoding="utf-8")
    assert json.loads(said)["sha256"] in well_made(shown).text  # what is on paper
    [carried] = re.findall(r'<data id="signed" hidden value="[^"]+">', shown)
    for changed, reason in (
        (shown.replace('<section class="verdict', f'{carried}<section class="verdict'), "page.other"),
        (shown.replace(carried, "").replace("<h1>", f"{carried}<h1>"), "page.other"),
        (shown.replace("left the house", "was denied"), "page.other"),
        (shown.replace("<h1>", "<h1>Draft. "), "page.other"),
        (shown.replace('<data id="signed" hidden value="', '<data id="signed" hidden value="AAAA'), "envelope.fields"),
        (shown.replace('<data id="signed"', '<data id="other"'), "envelope.fields"),
    ):
        page.write_text(changed, encoding="utf-8")
        code, said = check(str(page), "--key", key, "--json")
        assert (code, json.loads(said)["reasons"][0]["code"]) == (1, reason)
    for wrong in (["--report", "--format", "csv"], ["--format", "html"], ["--from", "2026-01-01"]):
        assert cli.main(["export", story["name"], *wrong]) == 2
    assert cli.main(["export", story["late"], "--report", *period]) == 2
    with Stint(house.url, house.secrets["auditor"]) as client, pytest.raises(ValueError, match="population or about"):
        client.report()


def test_the_command_beside_a_report_gives_the_same_document(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STINT_URL", house.url)
    monkeypatch.setenv("STINT_KEY", house.secrets["auditor"])
    name = house.population(5)
    asked = {"from": "2020-01-01", "to": "2099-12-31"}
    found = house.auditor.ask("GET", f"/populations/{name}/report.json", params=asked, status=200).json()
    command = found["documents"]["command"]
    assert command == f"stint export {name} --report --from 2020-01-01 --to 2100-01-01 --format html"
    file = tmp_path / "r.html"
    assert cli.main([*shlex.split(command)[1:], "-o", str(file)]) == 0
    shown = house.auditor.ask("GET", found["documents"]["html"], status=200).content
    one, other = (carried_in(each)["report"] for each in (file.read_bytes(), shown))
    moving = {"made_at": "", "to": ""}  # the period ends now, which is later the second time
    assert one | moving == other | moving
