"""What scripts do: filter, preview, poll, check and confirm; and that they hide nothing that is refused."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from service.client import Stint
from service.operations import jobs
from tests.dashboard.browser import Sight
from tests.dashboard.house import CLINIC, House, conclude

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow


@pytest.fixture
def sight(browser: Browser, house: House) -> Iterator[Sight]:
    """A new window of an officer."""
    opened = Sight.of(browser, "light", url=house.url, key=house.keys["officer"])
    yield opened
    opened.context.close()


def without_reload(sight: Sight) -> None:
    """Leave a mark in the page that only a load of the whole page takes away."""
    sight.page.evaluate("window.stillHere = true")


def was_swapped(sight: Sight) -> bool:
    return bool(sight.page.evaluate("window.stillHere === true"))


def test_a_filter_swaps_the_table_its_address_and_where_the_data_is(sight: Sight, house: House) -> None:
    page = sight.open(f"/populations/{CLINIC}/releases")
    without_reload(sight)
    page.get_by_label("Outcome").select_option("denied")
    page.wait_for_url("**/releases?status=denied**")
    page.locator("#results").get_by_text(house.denied[:14]).wait_for()
    outcomes = page.locator("#results tbody td[data-label=Outcome]").all_inner_texts()
    assert {each.split("\n")[0].strip() for each in outcomes} == {"denied"}
    assert all(len(each.split("\n")) == 2 for each in outcomes)  # and why
    assert was_swapped(sight)
    data = page.locator("#as-json").get_attribute("href")
    assert data is not None
    assert re.search(r"/releases\.json\?.*status=denied", data)
    shown = page.locator("#results").inner_text()
    page.reload()
    assert page.locator("#results").inner_text() == shown  # the state is in the address
    page.go_back()
    page.wait_for_url("**/releases")
    page.wait_for_function("document.querySelector('#f-status').value === ''")
    assert page.locator("#results tbody tr").count() > len(outcomes)
    sight.is_content()


def test_a_filter_of_audits_swaps_what_they_say_and_whose_is_scheduled(sight: Sight) -> None:
    page = sight.open("/audits")
    without_reload(sight)
    assert "disprove" in page.locator("p.lead").inner_text()
    page.get_by_label("Population").select_option("demo")
    page.wait_for_url("**/audits?population=demo**")
    page.locator("p.lead").get_by_text("No audit of demo has been planned").wait_for()
    assert page.get_by_role("link", name="Schedule an audit…").get_attribute("href") == "/audits/new?population=demo"
    assert was_swapped(sight)
    sight.is_content()


def test_a_what_if_brings_everything_that_depends_on_it_up_to_date(sight: Sight) -> None:
    page = sight.open(f"/populations/{CLINIC}/budget")
    without_reload(sight)
    page.get_by_label("How often, one after the other").fill("7")
    page.get_by_label("How often, one after the other").blur()
    page.wait_for_url("**/budget?**times=7**")
    page.locator("#plan-result").get_by_text(re.compile(r"\b7\b|refused")).first.wait_for()
    assert was_swapped(sight)
    section = page.locator("section[aria-labelledby=ahead]")
    shown, data = section.inner_text(), page.locator("#as-json").get_attribute("href")
    page.reload()
    assert section.inner_text() == shown
    assert page.locator("#as-json").get_attribute("href") == data
    assert "times=7" in (data or "")


def test_what_is_refused_is_seen(sight: Sight) -> None:
    page = sight.open(f"/populations/{CLINIC}/budget")
    times = page.get_by_label("How often, one after the other")
    times.evaluate("field => field.removeAttribute('min')")
    times.fill("0")
    times.blur()
    refusal = page.locator("[role=alert]")
    refusal.wait_for()
    assert "“How often” has to be at least 1." in refusal.inner_text()
    assert page.evaluate("scrollY") > 100  # one is far down the page, and sees it all the same
    box, asked = refusal.bounding_box(), times.bounding_box()
    assert box is not None
    assert asked is not None
    assert asked["y"] + asked["height"] <= box["y"]  # the field that it speaks of is not under it
    assert page.locator("#plan-result").inner_text() == refusal.inner_text()  # in the place of an answer
    sight.is_accessible()
    sight.photograph("refused-with-scripts")
    times.fill("3")
    times.blur()
    page.wait_for_url("**times=3**")
    refusal.wait_for(state="detached")  # what is mended is no longer complained of


def test_a_certificate_is_checked_where_it_was_pasted(browser: Browser, house: House) -> None:
    stranger = Sight.of(browser, "light", url=house.url, key=None)
    page = stranger.open("/verify")
    without_reload(stranger)
    page.get_by_role("button", name="Check it").click()
    page.locator("#said [role=alert]").wait_for()
    assert "Paste a certificate" in page.locator("#said").inner_text()
    page.get_by_label("Or its text").fill(house.certificate.decode())
    page.get_by_role("button", name="Check it").click()
    page.locator("#verdict h2").get_by_text("genuine").wait_for()
    assert page.locator("#said").inner_text() == ""
    page.get_by_label("Or its text").fill(house.certificate.replace(b"A", b"B", 1).decode())
    page.get_by_role("button", name="Check it").click()
    page.locator("#verdict h2").get_by_text("broken").wait_for()
    page.get_by_label("Or its text").fill("")
    page.get_by_role("button", name="Check it").click()
    page.locator("#said [role=alert]").wait_for()
    assert page.locator("#verdict").inner_text() == ""  # nothing is said of what is no longer there
    assert was_swapped(stranger)
    stranger.context.close()


def test_whoever_is_no_longer_signed_in_is_led_to_the_sign_in(sight: Sight) -> None:
    page = sight.open(f"/populations/{CLINIC}/releases")
    sight.context.clear_cookies()
    page.get_by_label("Outcome").select_option("held")
    page.wait_for_url("**/sign-in?next=**")
    assert "status%3Dheld" in page.url
    page.get_by_label("API key").wait_for()


def test_a_job_is_watched_without_touching_the_page(sight: Sight, house: House) -> None:
    page = sight.open(f"/jobs/{house.running_job}")
    without_reload(sight)
    page.get_by_text("Parameters and recipe").click()  # opened, it stays open
    assert "Step 1 of 4" in page.locator("#now").inner_text()
    token = jobs.find(house.parts.database, house.running_job)["attempt"]
    assert jobs.renew(house.parts.database, house.running_job, token, lease_seconds=3600, step=2, steps=4)
    page.locator("#now").get_by_text("Step 2 of 4").wait_for()
    assert page.locator("details[open] pre").is_visible()
    assert was_swapped(sight)
    assert jobs.renew(house.parts.database, house.running_job, token, lease_seconds=3600, step=1, steps=4)
    sight.is_content()


def test_an_audit_is_watched_until_its_verdict(sight: Sight, house: House) -> None:
    with Stint(house.url, house.key) as stint:
        planned = stint.start_audit("trial", mechanism="dp-sgd", audit="weights after one step", samples=1000)
    page = sight.open(f"/audits/{planned['id']}")
    without_reload(sight)
    assert page.locator("#found").count() == 0
    conclude(house.parts, planned, shift=0.5)
    page.locator("#found-numbers").wait_for()  # the whole page, once, when there is more to show
    assert page.locator("svg").count() > 0
    assert was_swapped(sight)
    sight.is_content()


# ---------------------------------------------------------------- confirmations


def proposed(house: House) -> str:
    with Stint(house.url, house.key) as stint:
        charges = [{"scope": {"ranges": [[0, 20]]}, "event": {"kind": "pure_dp", "epsilon": 0.001}}]
        made: dict[str, Any] = stint.propose(population="demo", charges=charges, state={"retained": "dp_only"})
    assert made["status"] == "held"
    return str(made["id"])


def test_an_action_is_confirmed_where_its_button_is(sight: Sight, house: House) -> None:
    release = proposed(house)
    page = sight.open(f"/releases/{release}")
    without_reload(sight)
    page.get_by_role("link", name="It was released: commit…").click()
    asked = page.locator("#confirm")
    asked.get_by_label("Reason").wait_for()
    assert was_swapped(sight)
    assert page.url.endswith(release)  # looking is no state
    sight.is_accessible()
    sight.photograph("release-confirm")
    page.get_by_role("link", name="It was never released: void…").click()
    asked.get_by_label("I am certain").wait_for()
    assert asked.get_by_role("button").all_inner_texts() == ["It was never released: void"]
    asked.get_by_label("Reason").fill("The run was stopped.")
    asked.get_by_label("I am certain").check()
    asked.get_by_role("button", name="It was never released: void").click()
    page.get_by_role("status").wait_for()
    assert "voided" in page.get_by_role("status").inner_text()
    assert "The run was stopped." in page.locator("ol.timeline").inner_text()
    sight.is_content()


def test_an_action_that_came_too_late_says_so(sight: Sight, house: House) -> None:
    release = proposed(house)
    page = sight.open(f"/releases/{release}")
    with Stint(house.url, house.key) as stint:
        stint.void(release, reason="somebody else was quicker")
    page.get_by_role("link", name="It was released: commit…").click()
    page.locator("#said [role=alert]").wait_for()
    assert "there is no hold to settle" in page.locator("#said").inner_text()
    assert page.locator("#confirm").inner_text() == ""


def test_a_form_from_elsewhere_is_refused_though_its_victim_is_signed_in(sight: Sight, house: House) -> None:
    """The cookie is sent by no other site; and were it sent, the form lacks the token, and its origin is another."""
    before = ledger(house)
    path = f"{house.url}/populations/pilot/status?to=frozen"
    elsewhere = house.url.replace("127.0.0.1", "localhost")  # another site, which anybody could have made
    form = f"""<form method="post" action="{path}"><input name="reason" value="forged"><input name="sure" value="yes">
      <input name="csrf" value="guessed"><input name="once" value="x"><button>A prize</button></form>"""
    page = sight.page
    page.route(f"{elsewhere}/", lambda route: route.fulfill(body=form, content_type="text/html"))
    page.goto(f"{elsewhere}/")
    with page.expect_navigation(url="**/populations/pilot/status**") as sent:
        page.get_by_role("button", name="A prize").click()
    assert sent.value.status in {401, 403}
    cookies = {each["name"]: each["value"] for each in sight.context.cookies()}  # as if a browser had sent them
    fields = {"reason": "forged", "sure": "yes", "csrf": "guessed", "once": "x"}
    for headers in ({}, {"Origin": elsewhere}, {"Origin": house.url}):
        answer = httpx.post(path, data=fields, headers=headers, cookies=cookies)
        assert answer.status_code == 403, headers
    assert ledger(house) == before


def ledger(house: House) -> str:
    opened = {"Authorization": f"Bearer {house.key}"}
    return httpx.get(f"{house.url}/v1/populations/pilot/ledger/export", headers=opened).text
