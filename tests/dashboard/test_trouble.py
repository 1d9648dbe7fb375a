"""What pages look like when not all is well, under every role: red answers, nothing left, holds that are overdue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.dashboard.browser import SIGHTS, Sight
from tests.dashboard.house import FROZEN, LOW, SPENT, Trouble

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow
PAGES: dict[str, Callable[[Trouble], str]] = {
    "trouble-overview": lambda _: "/overview",
    "trouble-low": lambda _: f"/populations/{LOW}/budget",
    "trouble-exhausted": lambda _: f"/populations/{SPENT}/budget",
    "trouble-over-policy": lambda _: f"/populations/{SPENT}/policy",
    "trouble-frozen": lambda _: f"/populations/{FROZEN}/policy",
    "trouble-overdue": lambda troubled: f"/releases/{troubled.held}",
    "trouble-datapoint": lambda _: f"/populations/{SPENT}/datapoint?ordinal=3",
    "trouble-violation": lambda troubled: f"/audits/{troubled.audit}",
}
ROLES = ("officer", "auditor", "pipeline", "worker")


@pytest.fixture(scope="module")
def windows(browser: Browser, troubled: Trouble) -> Iterator[dict[str, Sight]]:
    opened = {name: Sight.of(browser, name, url=troubled.url, key=troubled.key) for name in SIGHTS}
    yield opened
    for each in opened.values():
        each.close()


@pytest.mark.parametrize("name", PAGES)
def test_trouble_can_be_read_by_everybody(name: str, windows: dict[str, Sight], troubled: Trouble) -> None:
    for sight in windows.values():
        sight.open(PAGES[name](troubled))
        sight.photograph(name)
        sight.is_accessible()
        sight.fits()
        sight.is_content()


def test_a_chart_of_people_beyond_their_budget_says_how_far(windows: dict[str, Sight]) -> None:
    """The last bar has everybody who is beyond: it ends where they are, and not at the budget."""
    words = windows["light"].open(f"/populations/{SPENT}/budget").locator("figure", has_text="How much").inner_text()
    assert "nobody has more than 0.8" in words


@pytest.mark.parametrize("role", ROLES)
def test_every_role_finds_its_way_in_a_browser(role: str, browser: Browser, troubled: Trouble) -> None:
    """Every place that the navigation shows opens, and what a role may not do is not offered."""
    sight = Sight.of(browser, "light", url=troubled.url, key=troubled.keys[role])
    page = sight.open(f"/populations/{SPENT}/budget")
    sight.photograph(f"role-{role}-budget")
    places = page.locator("header nav a, nav.within li a").evaluate_all("links => links.map(each => each.pathname)")
    assert (f"/populations/{SPENT}/ledger" in places) == (role in {"officer", "auditor"})
    assert "/keys" not in places
    for path in places:
        sight.open(path)
        sight.is_accessible()
        sight.is_content()
    page = sight.open(f"/releases/{troubled.held}")
    sight.photograph(f"role-{role}-release")
    assert (page.get_by_role("link", name="It was released: commit…").count() == 1) == (role == "officer")
    assert (page.locator("#timeline").count() == 1) == (role in {"officer", "auditor"})
    page = sight.open(f"/populations/{SPENT}/policy")
    sight.photograph(f"role-{role}-policy")
    assert (page.get_by_role("link", name="New version…").count() == 1) == (role == "officer")
    assert ("The board asked for more caution." in page.content()) == (role in {"officer", "auditor"})
    sight.context.close()
