"""Where it is going, as somebody reads it: the sentence, the chart and what-if say the same, in every sight."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import httpx
import pytest

from service import demo
from service.dashboard.drawing import day
from tests.dashboard.browser import Sight
from tests.dashboard.house import WEEKLY, House

if TYPE_CHECKING:
    from typing import Any

pytestmark = pytest.mark.slow


def data(house: House, population: str) -> dict[str, Any]:
    opened = {"Authorization": f"Bearer {house.key}"}
    found: dict[str, Any] = httpx.get(f"{house.url}/populations/{population}/budget.json", headers=opened).json()
    return found


def test_the_forecast_of_the_ward_is_what_was_computed_by_hand(sights: dict[str, Sight], house: House) -> None:
    first = data(house, WEEKLY)["forecast"]["first"]
    due = datetime.fromisoformat(first["at"])
    assert abs(due - datetime.now(UTC) - timedelta(days=28 + 7, hours=1)) < timedelta(minutes=10)
    assert (first["datapoints"], first["text"]) == (20, "the 6th further release of label-release on everybody")
    for sight in sights.values():
        page = sight.open(f"/populations/{WEEKLY}/budget")
        section = page.locator("section[aria-labelledby=ahead]")
        said = section.locator("p.lead").inner_text()
        assert (
            "the 6th further release of label-release on everybody is the first to be refused: about "
            f"{due:%Y-%m-%d}, in 35 days" in said
        )
        assert "20 users" in section.inner_text()
        chart = page.locator("figure#forecast")
        assert f"is refused on {day(due)}: it would bring them to 1.95" in chart.inner_text()
        assert "δ = 1e-06, per user" in chart.inner_text()
        assert chart.locator("svg text", has_text="refused").count() == 1
        sight.photograph("forecast-weekly")
        sight.is_content()


def test_what_if_names_its_own_refusal_and_leaves_the_chart_alone(sights: dict[str, Sight]) -> None:
    page = sights["light"].open(f"/populations/{WEEKLY}/budget")
    chart = page.locator("figure#forecast figcaption").inner_text()
    page.get_by_label("How often, one after the other").fill("2")
    page.get_by_role("button", name="Preview").click()
    page.wait_for_url("**times=2**")
    assert "all admitted" in page.locator("#plan-result").inner_text()
    assert page.locator("figure#forecast figcaption").inner_text() == chart
    sights["light"].is_content()


def test_the_demo_has_three_years_behind_it_and_says_that_they_are_made_up(
    sights: dict[str, Sight], house: House
) -> None:
    opened = {"Authorization": f"Bearer {house.key}"}
    ledger = httpx.get(f"{house.url}/v1/populations/demo/ledger/export", headers=opened).text.splitlines()
    began = datetime.fromisoformat(json.loads(ledger[0])["body"]["at"])
    assert began.date() == demo.first_week(datetime.now(UTC).date())
    found = data(house, "demo")
    assert found["forecast"]["first"] is not None
    page = sights["light"].open("/populations/demo/budget")
    assert "made up" in page.locator("main").inner_text()
    assert page.locator("figure#forecast").count() == 1


def test_text_in_charts_can_be_read_on_a_small_screen(sights: dict[str, Sight]) -> None:
    page = sights["narrow"].open(f"/populations/{WEEKLY}/budget")
    sizes = page.evaluate(
        "[...document.querySelectorAll('svg.chart-drawing')].map(each => "
        "parseFloat(getComputedStyle(each).fontSize) * each.getBoundingClientRect().width / each.viewBox.baseVal.width)"
    )
    assert len(sizes) >= 4
    assert min(sizes) >= 11
