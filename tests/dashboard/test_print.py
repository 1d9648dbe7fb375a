"""Pages on paper: dated, with their address, unfolded, whole, and without words that only a screen gives a meaning."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.dashboard.browser import Sight, pictured
from tests.dashboard.house import CLINIC, WARD, House

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow
#: A4 without its margins, as wide as a browser prints.
PAPER = {"width": 688, "height": 970}
#: Every kind of page that somebody would file, and on how many sheets at most.
PAGES: dict[str, tuple[Callable[[House], str], int]] = {
    "overview": (lambda _: "/overview", 3),
    "population": (lambda _: f"/populations/{CLINIC}/budget", 5),
    "task": (lambda _: f"/populations/{WARD}/task?name=diagnoses", 3),
    "datapoint": (lambda _: f"/populations/{CLINIC}/datapoint?ordinal=17", 3),
    "releases": (lambda _: f"/populations/{CLINIC}/releases", 2),
    "release": (lambda house: f"/releases/{house.denied}", 4),
    "release-held": (lambda house: f"/releases/{house.held}", 4),
    "ledger": (lambda _: f"/populations/{CLINIC}/ledger", 4),
    "entry": (lambda _: f"/populations/{CLINIC}/entry?number=3", 2),
    "policy": (lambda _: f"/populations/{CLINIC}/policy", 4),
    "audit": (lambda house: f"/audits/{house.audits['violation']}", 3),
    "keys": (lambda _: "/keys/log", 2),
}


@pytest.fixture(scope="module")
def sight(browser: Browser, house: House) -> Iterator[Sight]:
    opened = Sight.of(browser, "light", url=house.url, key=house.key)
    opened.page.set_viewport_size({"width": PAPER["width"], "height": PAPER["height"]})
    yield opened
    opened.context.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_can_be_printed_and_filed(name: str, sight: Sight, house: House, tmp_path: Path) -> None:
    path, most = PAGES[name]
    page = sight.open(path(house))
    page.wait_for_load_state("networkidle")
    page.emulate_media(media="print")
    try:
        pictured(page, f"paper-{name}")
        words = page.locator("body").inner_text()
        assert re.search(r"Printed 20\d\d-\d\d-\d\d \d\d:\d\d UTC from " + re.escape(house.url + path(house)), words)
        for dangling in ("as JSON", "The same data", "Sign out", "Filter", "Show the numbers", "New version…"):
            assert dangling not in words
        assert page.locator("details:not([open]):not(figure details)").evaluate_all(
            "all => all.filter(each => [...each.children].slice(1).some(inside => !inside.checkVisibility()"
            " || inside.getBoundingClientRect().height === 0)).length"
        ) == 0  # fmt: skip
        assert page.evaluate(CUT_OFF) == []
        printed = tmp_path / "page.pdf"
        page.pdf(path=printed, format="A4")
        sheets = len(re.findall(rb"/Type\s*/Page\b", printed.read_bytes()))
        assert 1 <= sheets <= most
    finally:
        page.emulate_media(media="screen")


#: What lies beyond an edge of the paper, drawings before a line of the timeline included.
CUT_OFF = """() => {
  const cut = [], width = document.documentElement.clientWidth;
  for (const each of document.querySelectorAll("main *:not(svg *), footer *")) {
    const box = each.getBoundingClientRect();
    if (!each.checkVisibility() || box.width === 0) continue;
    const before = getComputedStyle(each, "::before");
    const left = before.position === "absolute" ? box.left + parseFloat(before.left) : box.left;
    if (left < -0.5 || box.right > width + 1) cut.push(each.outerHTML.slice(0, 120));
  }
  return cut;
}"""


def test_odds_are_printed_unfolded(sight: Sight) -> None:
    page = sight.open(f"/populations/{CLINIC}/budget")
    folded = page.locator("details", has_text="All odds").locator("p")
    assert not folded.is_visible()
    page.emulate_media(media="print")
    try:
        assert folded.evaluate("each => each.checkVisibility() && each.getBoundingClientRect().height > 0")
        assert re.search("“This one” is rel_", page.locator("#plan-result").inner_text())
    finally:
        page.emulate_media(media="screen")
