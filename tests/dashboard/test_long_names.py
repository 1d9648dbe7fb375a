"""Names as long as they may be push nothing off the screen or the paper, and break no other word."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest

from tests.dashboard.browser import SIGHTS, Sight, pictured
from tests.dashboard.house import LONG, LONG_TASK, TINY, long_names
from tests.dashboard.test_print import CUT_OFF

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, ViewportSize

pytestmark = pytest.mark.slow
PAGES = {
    "overview": "/overview",
    "population": f"/populations/{LONG}/budget",
    "population-tiny": f"/populations/{TINY}/budget",
    "tasks": f"/populations/{LONG}/tasks",
    "task": f"/populations/{LONG}/task?{urlencode({'name': LONG_TASK})}",
    "releases": f"/populations/{LONG}/releases",
    "ledger": f"/populations/{LONG}/ledger",
    "audits": "/audits",
    "jobs": "/jobs",
    "mechanism": "/mechanisms/dp-sgd",
    "keys": "/keys",
    "key-log": "/keys/log",
}
SCREEN: ViewportSize = {"width": 1280, "height": 800}
PAPER: ViewportSize = {"width": 720, "height": 970}
#: Tables that are wider than their place.
_SIDEWAYS = """() => [...document.querySelectorAll(".table")].filter(each => each.scrollWidth > each.clientWidth + 1)
  .map(each => `${each.scrollWidth} on ${each.clientWidth}: ${each.innerText.slice(0, 80)}`)"""
#: Words, numbers, dates and ids in tables that are broken at the end of a line, and have no hyphen or slash.
_BROKEN = """() => {
  const found = [], range = document.createRange();
  const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode;
    if (!text.parentElement.closest("td, th") || !text.parentElement.checkVisibility()) continue;
    for (const word of text.data.matchAll(/\\d{4}-\\d\\d-\\d\\d|\\d[\\d.]*e-\\d+|[^\\s\\/-]+/g)) {
      if (word[0].length > 34) continue;
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(each => Math.round(each.top))).size > 1) found.push(word[0]);
    }
  }
  return found;
}"""
#: Words that reach beyond the drawing that they are in, by more than letters reach beyond their own places.
_OUTSIDE = """() => [...document.querySelectorAll(".chart-drawing text")].filter(each => {
  const words = each.getBoundingClientRect(), drawing = each.closest("svg").getBoundingClientRect();
  return words.left < drawing.left - 1 || words.right > drawing.right + 1;
}).map(each => each.textContent)"""


@pytest.fixture(scope="module")
def windows(browser: Browser) -> Iterator[dict[str, Sight]]:
    with long_names() as (url, key):
        opened = {name: Sight.of(browser, name, url=url, key=key) for name in SIGHTS}
        opened["light"].page.set_viewport_size(SCREEN)
        yield opened
        for each in opened.values():
            each.close()


@pytest.mark.parametrize("name", PAGES)
def test_long_names_fit_on_every_screen(name: str, windows: dict[str, Sight]) -> None:
    for sight in windows.values():
        page = sight.open(PAGES[name])
        page.locator("figure details").evaluate_all("all => all.forEach(each => each.open = true)")
        sight.photograph(f"long-{name}")
        sight.fits()
        sight.is_content()
        assert page.evaluate(_OUTSIDE) == []
        assert page.evaluate(_BROKEN) == []
        if sight.name == "light":
            assert page.evaluate(_SIDEWAYS) == []


@pytest.mark.parametrize("name", PAGES)
def test_long_names_fit_on_paper(name: str, windows: dict[str, Sight]) -> None:
    sight = windows["light"]
    page = sight.open(PAGES[name])
    page.emulate_media(media="print")
    page.set_viewport_size(PAPER)
    try:
        pictured(page, f"paper-long-{name}")
        assert page.evaluate(CUT_OFF) == []
        assert page.evaluate(_SIDEWAYS) == []
        assert page.evaluate(_BROKEN) == []
    finally:
        page.set_viewport_size(SCREEN)
        page.emulate_media(media="screen")
