"""The period report on paper: the answer on the first page, a line for each release after it, and few pages in all."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urljoin

import httpx
import pytest

from service import cli
from tests.dashboard.browser import Sight
from tests.dashboard.house import House

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

#: What an A4 page has room for within its margins, in pixels of CSS.
WIDE, TALL = 680, 998


def pages(printed: Path) -> int:
    return len(re.findall(rb"/Type\s*/Page[^s]", printed.read_bytes()))


def test_the_report_of_a_quarter_is_a_few_pages(sights: dict[str, Sight], tmp_path: Path) -> None:
    sight = sights["light"]
    page = sight.open("/populations/demo/report")
    page.locator("section[aria-labelledby=quarters] a").first.click()
    page.wait_for_url("**/report?from=**")
    page.get_by_role("link", name="Open the document to print").click()
    page.wait_for_url("**/report/document?**")
    words = page.locator("main").inner_text()
    assert "Yes. At the end, everything that was released about each of 164,000 users" in words
    assert "made up" in words
    assert re.search(r"\d+ releases were proposed: \d+ left the house; ", words)
    sight.is_accessible()
    sight.photograph("report-document")
    page.set_viewport_size({"width": 320, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    sight.photograph("report-document-narrow")
    page.set_viewport_size({"width": 1200, "height": 800})
    printed = tmp_path / "quarter.pdf"
    page.pdf(path=printed, prefer_css_page_size=True)
    assert pages(printed) <= 5
    page.emulate_media(media="print")
    page.set_viewport_size({"width": WIDE, "height": TALL})
    findings = page.locator("section[aria-labelledby=findings]").bounding_box()
    assert findings is not None
    assert findings["y"] + findings["height"] <= TALL  # it and whatever is before it is on the first page
    assert "Interim: the period ends on " in words  # a quarter that goes on
    assert words.index("What this report does not show") < words.index("Annex A")
    sight.photograph("report-document-print")
    page.emulate_media(media="null")
    page.set_viewport_size({"width": 1200, "height": 800})


def test_three_years_are_a_dozen_pages_and_can_be_checked(
    sights: dict[str, Sight], house: House, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = sights["light"].open("/populations/demo/report?from=2020-01-01")
    link = page.get_by_role("link", name="Open the document to print").get_attribute("href")
    assert link is not None
    opened = {"Authorization": f"Bearer {house.key}"}
    file, printed = tmp_path / "report.html", tmp_path / "report.pdf"
    file.write_bytes(httpx.get(urljoin(house.url, link), headers=opened, timeout=60).content)
    assert cli.main(["verify-report", str(file), "--key", house.parts.secrets.public_key.hex()]) == 0
    assert "Genuine" in capsys.readouterr().out
    page.goto(file.as_uri())
    page.pdf(path=printed, prefer_css_page_size=True)
    assert pages(printed) <= 16  # of 204 releases
