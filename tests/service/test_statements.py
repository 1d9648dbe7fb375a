"""Statements: what one person is told, in the same words as JSON, text and HTML, and to whom it is told."""

from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from accountant.guarantees import Guarantee
from service import cli, printed
from service.client import Stint, dp_sgd
from service.dashboard.words import begun
from service.sweeper import sweep
from tests.service.fixtures_behaviour import House, pure, until

pytest_plugins = ("tests.service.fixtures_behaviour",)

TASK = "w1<script>alert('x')</script>"
VOID = {"meta", "link", "br", "hr", "img", "input", "col"}


class Outline(HTMLParser):
    """Reads a page strictly: every tag is closed in its order; remembers tags, attributes, ids and text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == [], f"left open: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._apart(tag)
        assert len(dict(attrs)) == len(attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open[-1] == tag, f"</{tag}> where {self._open[-1]} is open"
        self._open.pop()
        self._apart(tag)

    def _apart(self, tag: str) -> None:
        if tag != "span":  # which is inside a sentence
            self.words.append(" ")

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


def well_made(page: str) -> Outline:
    """An HTML file that fetches nothing, runs nothing, and can be read aloud."""
    assert page.startswith("<!DOCTYPE html>")
    outline = Outline(page)
    names = [tag for tag, _ in outline.tags]
    assert not {"script", "link", "img", "iframe", "object", "form", "base"} & set(names)
    for tag, attributes in outline.tags:
        assert not any(name.startswith("on") or name in {"src", "href", "style"} for name in attributes), (
            tag,
            attributes,
        )
    assert dict(outline.tags)["html"] == {"lang": "en"}
    assert names.count("h1") == names.count("main") == names.count("title") == 1
    levels = [int(tag[1]) for tag in names if re.fullmatch("h[1-6]", tag)]
    assert all(after - before <= 1 for before, after in pairwise(levels)), levels
    ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    labelled = [attributes["aria-labelledby"] for _, attributes in outline.tags if "aria-labelledby" in attributes]
    assert set(labelled) <= set(ids)
    assert names.count("table") == names.count("caption")
    assert all(attributes.get("scope") in {"col", "row", "colgroup"} for tag, attributes in outline.tags if tag == "th")
    assert not re.search(r"url\(|@import", page)
    return outline


def colours(block: str) -> dict[str, tuple[float, ...]]:
    found = re.findall(r"--(\w+): #([0-9a-f]{6})", block)
    return {name: tuple(int(digits[n : n + 2], 16) / 255 for n in (0, 2, 4)) for name, digits in found}


def luminance(colour: tuple[float, ...]) -> float:
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def test_text_has_enough_contrast_on_screen_in_the_dark_and_on_paper() -> None:
    """WCAG 2.2, 1.4.3 (AA): at least 4.5 to 1."""
    blocks = re.findall(r":root \{(.*?)\}", printed._style(), re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        used = colours(block)
        for ink in ("ink", "quiet"):
            for paper in ("paper", "band"):
                assert contrast(used[ink], used[paper]) >= 4.5, (block, ink, paper)


@pytest.fixture(scope="module")
def name(house: House) -> str:
    made = house.population(epsilon=3.0)
    address = f"/v1/populations/{made}"
    house.officer.post(f"{address}/datapoints", {"keys": [f"p{n}" for n in range(20)]}, status=201)
    house.officer.post(f"{address}/tasks", {"name": TASK, "members": {"ranges": [[0, 12]]}}, status=201)
    sgd = dp_sgd(noise_multiplier=2.0, sampling_probability=0.01, steps=100, clip_norm=1.0)
    first = house.officer.post("/v1/releases", {"population": made, "task": TASK, "mechanism": sgd}, status=201)
    house.officer.commit(first["id"], sha256="ab" * 32)
    house.officer.hold(made, ({"ranges": [[0, 11]]}, pure(0.2)), kind="labels", hold_seconds=1)
    until(lambda: sweep(house.parts) == 1)
    voided = house.officer.hold(made, ({"ranges": [[0, 11]]}, pure(0.3)))
    house.officer.post(f"/v1/releases/{voided}/void", {"reason": "it crashed"})
    house.officer.hold(made, ({"ranges": [[2, 12]]}, pure(0.25)))
    house.officer.propose(made, ({"ranges": [[0, 11]]}, pure(30.0)))
    return made


def stated(house: House, name: str, ordinal: int, form: str = "json") -> Any:
    answer = house.auditor.ask(
        "GET", f"/v1/populations/{name}/datapoints/{ordinal}/statement?format={form}", status=200
    )
    assert answer.headers["Cache-Control"] == "no-store"
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    return answer.json() if form == "json" else answer.text


def test_a_person_is_told_every_release_and_what_it_means(house: House, name: str) -> None:
    said = stated(house, name, 3)
    assert [each["status"] for each in said["releases"]] == ["committed", "expired", "voided", "held"]
    assert said["epsilon"] == house.auditor.reading(name, 3)
    assert (said["bound"], said["promise"]["bound"], said["promise"]["epsilon_upper"]) == ("upper", "upper", 3)
    for each, most in zip(said["releases"][1:], (0.2, 0.3, 0.25), strict=True):
        assert 0 < each["epsilon_upper"] <= most
    promise = Guarantee(epsilon=3.0, delta=1e-6, unit="user", adjacency="add_remove", proof_status="proved")
    sentences = [line for section in said["sections"] for line in section["paragraphs"] + section["lines"]]
    assert promise.meaning() in sentences
    assert said["sections"][1]["paragraphs"][0] == promise.odds()
    assert any("δ is the small chance that this does not hold, about 1 in 1,000,000." in line for line in sentences)
    assert "number 3, counted from 0 in the order of arrival" in sentences[0]
    assert any("it has left" in line and "stochastic gradient descent" in line for line in sentences)
    assert any("counts as if it had left" in line for line in sentences)
    assert any("nothing of it left" in line and "By itself" not in line for line in sentences)
    assert any("planned beforehand" in line for line in sentences)
    assert said["tasks"] == [TASK]


def test_what_was_spent_without_a_file_is_not_said_to_have_left(house: House) -> None:
    made = house.population(epsilon=3.0)
    house.officer.post(f"/v1/populations/{made}/datapoints", {"count": 5}, status=201)
    release = house.officer.hold(made, ({"ranges": [[0, 5]]}, pure(0.5)))
    house.officer.post(f"/v1/releases/{release}/commit", {"reason": "its file was denied"})
    [line] = next(each["lines"] for each in stated(house, made, 2)["sections"] if each["lines"])
    assert "it counts as if it had left, and no file of it is on record. By itself it stays within ε" in line


def test_a_person_about_whom_nothing_was_released_is_told_so(house: House, name: str) -> None:
    said = stated(house, name, 19)
    assert said["releases"] == []
    assert said["epsilon"]["spent"] == 0
    assert any("Nothing" in line for section in said["sections"] for line in section["paragraphs"])
    house.auditor.get(f"/v1/populations/{name}/datapoints/20/statement", status=404)


def test_text_and_html_say_the_same_words(house: House, name: str) -> None:
    said = stated(house, name, 3)
    page = stated(house, name, 3, "html")
    outline = well_made(page)
    plain = " ".join(stated(house, name, 3, "text").split())
    for section in said["sections"][1:]:  # the first has the time
        for line in (section["title"], *section["paragraphs"], *section["lines"]):
            assert " ".join(line.split()) in outline.text
            assert " ".join(line.split()) in plain
    assert TASK in outline.text
    assert "&lt;script&gt;" in page


def test_only_officers_and_auditors_see_individuals(house: House, name: str) -> None:
    for role, status in (("pipeline", 403), ("worker", 403), ("officer", 200), ("auditor", 200), ("admin", 200)):
        house.as_(role).ask("GET", f"/v1/populations/{name}/datapoints/3/statement", status=status)
        body = {"key": "p3"}
        house.as_(role).ask("POST", f"/v1/populations/{name}/datapoints/statement", body, status=status)


def test_a_statement_by_key_is_that_of_its_ordinal_and_an_erased_key_is_gone(house: House, name: str) -> None:
    path = f"/v1/populations/{name}/datapoints/statement"
    by_key = house.officer.post(path, {"key": "p5"})
    assert {**by_key, "at": "", "sections": []} == {**stated(house, name, 5), "at": "", "sections": []}
    assert "p5" not in json.dumps(by_key)
    house.officer.post(path, {"key": "nobody"}, status=404)
    house.officer.post(f"/v1/populations/{name}/datapoints/erase", {"key": "p7"})
    assert house.officer.post(path, {"key": "p7"}, status=410)["type"] == "urn:stint:problem:gone"
    said = stated(house, name, 7)
    assert said["erased"] is True
    assert "erased" in said["sections"][0]["paragraphs"][1]


def test_odds_so_far_count_what_is_held(house: House) -> None:
    """Nobody knows yet what became of a hold, and an attacker who has seen every release may have seen that one."""
    made = house.population(20, epsilon=3.0, filter={"preset": "pure"}, delta=0.0)
    house.officer.commit(house.officer.hold(made, ({"ranges": [[0, 20]]}, pure(0.5))))
    path = f"/populations/{made}"

    def told() -> dict[str, str]:
        """Each place with its whole sentence, from its lead on."""
        statement = next(each for each in stated(house, made, 3)["sections"] if each["title"] == "How much that is")
        pages = {
            "statement": statement["paragraphs"][-1],
            "datapoint": house.auditor.ask("GET", f"{path}/datapoint?ordinal=3", status=200).text,
            "population": house.auditor.ask("GET", f"{path}/budget", status=200).text,
            "report": house.auditor.ask("GET", f"/v1{path}/report?format=html", status=200).text,
        }
        data = (f"{path}/datapoint.json?ordinal=3", f"{path}/budget.json", f"/v1{path}/report")
        answers = [house.auditor.ask("GET", each, status=200).json() for each in data]
        for found in (*answers[:2], answers[2]["report"]):
            pages |= {f"json {len(pages)}": found["odds_so_far"]}
        return {place: " ".join(re.sub(r"<[^>]*>", "", text).split()) for place, text in pages.items()}

    leads = {
        "statement": (
            "what has been spent means",
            "what has been spent and what may still leave, taken together, mean",
        ),
        "datapoint": (
            "By what was released so far, an attacker",
            "By what was released so far, holds included, an attacker",
        ),
        "population": (
            "For them, by what was released so far, an attacker",
            "For them, by what was released so far, holds included, an attacker",
        ),
        "report": ("For whoever has spent most, that", "For whoever has most behind them, holds included, that"),
    }
    for held, epsilon in ((False, 0.5), (True, 1.25)):
        if held:
            house.officer.hold(made, ({"ranges": [[0, 20]]}, pure(0.75)))
        promise = Guarantee(epsilon=epsilon, delta=0.0, unit="user", adjacency="add_remove", proof_status="proved")
        for place, text in told().items():
            sentence = promise.meaning() if place == "statement" else promise.odds()
            assert (begun(sentence) if place in {"datapoint", "population"} else sentence) in text, place
            assert place not in leads or leads[place][held] in text, place


def test_what_is_not_proved_is_not_told_as_odds(house: House) -> None:
    name = house.population(5, epsilon=3.0, accepts=["proved", "refuted"])
    house.officer.commit(house.officer.hold(name, ({"ranges": [[0, 5]]}, pure(0.1))))
    said = stated(house, name, 0)
    assert (said["promise"]["proof_status"], said["promise"]["epsilon_upper"]) == ("refuted", None)
    sentences = " ".join(line for section in said["sections"] for line in section["paragraphs"])
    assert "not a proved promise" in sentences
    assert "right at most" not in sentences


@pytest.mark.usefixtures("house")
def test_statements_at_the_command_line(
    house: House, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STINT_URL", house.url)
    monkeypatch.setenv("STINT_KEY", house.secrets["auditor"])
    assert cli.main(["statement", name, "3"]) == 0
    assert capsys.readouterr().out.startswith(f"What has been released about user 3 of {name}\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("p3\n"))
    assert cli.main(["statement", name, "--key", "-", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ordinal"] == 3
    assert cli.main(["statement", name, "3", "--format", "html", "--output", str(tmp_path / "s.html")]) == 0
    well_made((tmp_path / "s.html").read_text(encoding="utf-8"))
    assert cli.main(["statement", name]) == 2
    assert cli.main(["statement", name, "99"]) == 1
    with Stint(house.url, house.secrets["auditor"]) as client, pytest.raises(ValueError, match="one datapoint"):
        client.statement(name)
