"""The officer's five journeys, end to end in a browser: what somebody with five minutes comes for."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import httpx
import pytest

from service.client import Stint
from tests.dashboard.browser import Sight
from tests.dashboard.house import CLINIC, FROZEN, LOW, PATIENT, SPENT, House, Trouble

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def officer(browser: Browser, house: House) -> Iterator[Sight]:
    """A window of somebody with the key of an officer."""
    opened = Sight.of(browser, "light", url=house.url, key=house.keys["officer"])
    yield opened
    opened.context.close()


def test_find_the_population_in_trouble(browser: Browser, troubled: Trouble) -> None:
    """The answer is no, it says why, and what is in doubt stands first, then who has nothing left."""
    sight = Sight.of(browser, "light", url=troubled.url, key=troubled.keys["officer"])
    page = sight.open("/overview")
    verdict = page.locator(".verdict")
    assert "bad" in (verdict.get_attribute("class") or "").split()
    assert "Not for certain" in verdict.inner_text()
    assert f"an audit disproved dp-sgd, by which a release of {FROZEN} was admitted" in verdict.inner_text()
    rows = page.locator("section[aria-labelledby=populations] tbody tr")
    names = [each.partition("\n")[0].strip() for each in rows.locator("th").all_inner_texts()]
    assert [name.split(" ")[0].split("\t")[0] for name in names] == [FROZEN, SPENT, LOW, "calm-lab"]
    standing = {name: rows.nth(place).inner_text() for place, name in enumerate((FROZEN, SPENT, LOW, "calm-lab"))}
    assert "exhausted" in standing[SPENT]
    assert "60 over the policy" in standing[SPENT]
    assert "running low" in standing[LOW]
    assert "inside" in standing["calm-lab"]
    assert "frozen" in standing[FROZEN]
    assert "in doubt" in standing[FROZEN]
    page.get_by_role("link", name=SPENT, exact=True).first.click()
    page.wait_for_url(f"**/populations/{SPENT}/budget")
    words = page.locator("section[aria-labelledby=worst]").inner_text()
    assert "0.8 spent" in words
    assert "0 available" in words
    sight.is_content()
    sight.context.close()


def test_explain_why_a_release_was_denied(officer: Sight, house: House) -> None:
    """From the first page, by what an officer sees and clicks."""
    page = officer.open("/overview")
    page.get_by_role("link", name=CLINIC, exact=True).first.click()
    page.wait_for_url(f"**/populations/{CLINIC}/budget")
    page.get_by_role("navigation", name=f"Population {CLINIC}").get_by_role("link", name="Releases").click()
    page.wait_for_url("**/releases")
    page.get_by_label("Outcome").select_option("denied")
    page.wait_for_url("**status=denied**")
    page.locator(f"#results a[href='/releases/{house.denied}']").click()
    page.wait_for_url(f"**/releases/{house.denied}")
    words = page.locator("main").inner_text()
    assert "denied" in words
    assert "It would have brought 50 users to ε ≤ " in words  # what, in a sentence
    assert "50 users would be at ε ≤ " in words  # the reason
    assert "nats" not in words  # unless somebody wants to know
    assert "would be admitted" in words  # the advice
    officer.is_content()


def test_tighten_a_policy(officer: Sight, house: House) -> None:
    page = officer.open(f"/populations/{CLINIC}/policy/change?preview=yes&epsilon=0.1")
    denied = page.locator("#denied ~ .table tbody tr")
    assert denied.count() > 0
    assert all("It brought somebody to ε ≤ " in each for each in denied.all_inner_texts())
    denied.get_by_role("link").first.click()
    page.wait_for_url("**/releases/rel_**")
    page = officer.open("/populations/trial/policy")
    page.get_by_role("link", name="New version…").click()
    page.get_by_label("ε for life").fill("0.5")
    page.get_by_role("button", name="Preview").click()
    page.wait_for_url("**/policy/change?**")
    preview = page.locator("#preview")
    preview.get_by_text("What changes").wait_for()
    assert "ε for life" in preview.inner_text()
    assert "version 2 replaces version 1 at once; ε for life = 0.5 can never be raised again" in preview.inner_text()
    assert preview.get_by_role("link", name="Cancel").count() == 1
    preview.get_by_label("Reason").fill("The board asked for more caution.")
    preview.get_by_label(re.compile("I mean it")).check()
    preview.get_by_role("button", name="Put version 2 into force").click()
    page.wait_for_url("**/populations/trial/policy")
    assert "Version 2 of the policy of trial is in force." in page.get_by_role("status").inner_text()
    assert "The board asked for more caution." in page.locator("main").inner_text()
    opened = {"Authorization": f"Bearer {house.key}"}
    policy = httpx.get(f"{house.url}/v1/populations/trial/policy", headers=opened).json()
    assert (policy["version"], policy["epsilon"]) == (2, 0.5)
    last = httpx.get(f"{house.url}/v1/populations/trial/ledger/export", headers=opened).text.splitlines()[-1]
    assert "The board asked for more caution." in last
    officer.is_content()


def test_print_the_quarterly_report(officer: Sight, house: House, tmp_path: Path) -> None:
    page = officer.open(f"/populations/{CLINIC}/report")
    page.locator("section[aria-labelledby=quarters] a").first.click()
    page.wait_for_url("**/report?from=**")
    page.get_by_role("link", name="Open the document to print").click()
    page.wait_for_url("**/report/document?**")
    officer.is_content()
    officer.is_accessible()
    assert page.locator("h1").inner_text() == f"Report on population {CLINIC}"
    assert house.denied in page.locator("main").inner_text()
    printed = tmp_path / "report.pdf"
    page.pdf(path=printed, format="A4")
    content = printed.read_bytes()
    assert content.startswith(b"%PDF-")
    assert len(content) > 20_000


def test_look_up_one_person(officer: Sight) -> None:
    page = officer.open(f"/populations/{CLINIC}/datapoint")
    page.get_by_label("By the person's identifier").fill(PATIENT)
    page.get_by_role("button", name="Look up").first.click()
    page.wait_for_url("**/datapoint?**ordinal=17**")
    assert PATIENT not in page.url
    words = page.locator("main").inner_text()
    assert "2 releases that left" in words
    officer.is_content()
    page.get_by_role("link", name="A statement in plain words").click()
    page.wait_for_url("**/statement**")
    officer.is_accessible()
    assert "ε" in page.locator("main").inner_text()


# ---------------------------------------------------------------- other actions


def test_a_stranger_checks_a_certificate_and_learns_nothing_else(browser: Browser, house: House) -> None:
    stranger = Sight.of(browser, "scriptless", url=house.url, key=None)
    try:
        page = stranger.open("/verify")
        page.get_by_label("The file of a certificate").set_input_files(
            {"name": "certificate.json", "mimeType": "application/json", "buffer": house.certificate}
        )
        page.get_by_role("button", name="Check it").click()
        assert "genuine" in page.locator("#verdict h2").inner_text()
        stranger.photograph("verify-genuine")
        said = page.locator("#verdict").inner_text()
        alone, life = said.index("This release alone"), said.index("Everything ever released about one user, together")
        assert re.search(r"ε ≤ 0\.\d+ \(δ = 1e-06, per user, with or without one user, upper bound\)", said[alone:life])
        assert "An attacker who has seen this release alone and knows" in said[alone:life]
        assert "ε ≤ 1.5 (δ = 1e-06, per user, with or without one user, upper bound)" in said[life:]
        assert "An attacker who has seen every release and knows" in said[life:]
        broken = house.certificate.replace(b"A", b"B", 1).decode()
        page.get_by_label("Or its text").fill(broken)
        page.get_by_role("button", name="Check it").click()
        assert "broken" in page.locator("#verdict h2").inner_text()
        assert page.locator("nav[aria-label=Site]").count() == 0
        assert stranger.context.cookies() == []
    finally:
        stranger.context.close()


def test_what_only_an_answer_shows_can_be_read_by_everybody(sights: dict[str, Sight], house: House) -> None:
    """Pages that have no address of their own: the secret of a key, and verdicts on certificates."""
    broken = house.certificate.replace(b"A", b"B", 1)
    for name, sight in sights.items():
        for verdict, given in (("genuine", house.certificate), ("broken", broken)):
            page = sight.open("/verify")
            page.get_by_label("Or its text").fill(given.decode())
            page.get_by_role("button", name="Check it").click()
            page.locator("#verdict h2").get_by_text(verdict).wait_for()
            sight.photograph(f"verdict-{verdict}")
            sight.is_accessible()
            sight.fits()
        page = sight.open("/keys/new")
        page.get_by_label("Name").fill(f"seen in {name}")
        page.locator("input[name=roles][value=worker]").check()
        page.get_by_label("Reason").fill("To look at the page.")
        page.get_by_label("I mean it").check()
        page.get_by_role("button", name="Make the key").click()
        page.locator("code.secret").wait_for()
        sight.photograph("key-made")
        sight.is_accessible()
        sight.fits()
        sight.is_content()


def test_a_key_is_shown_once_and_revoked(sights: dict[str, Sight], house: House) -> None:
    sight = sights["scriptless"]
    page = sight.open("/keys/new")
    page.get_by_label("Name").fill("for a journey")
    page.locator("input[name=roles][value=auditor]").check()
    page.get_by_label("Reason").fill("A journey needs it.")
    page.get_by_label("I mean it").check()
    page.get_by_role("button", name="Make the key").click()
    secret = page.locator("code.secret").inner_text()
    opened = {"Authorization": f"Bearer {secret}"}
    assert httpx.get(f"{house.url}/v1/keys/self", headers=opened).json()["roles"] == ["auditor"]
    page = sight.open("/keys")
    assert secret not in page.content()
    page.get_by_role("link", name="Revoke for a journey").click()
    page.get_by_label("Reason").fill("The journey is over.")
    page.get_by_label("I mean it").check()
    page.get_by_role("button", name="Revoke the key").click()
    assert "no longer works" in page.get_by_role("status").inner_text()
    said = sight.open("/keys/log").locator("main").inner_text()
    assert "A journey needs it." in said
    assert "The journey is over." in said
    assert "Nothing in it was changed" in said


def test_an_audit_is_scheduled_and_a_job_cancelled(sights: dict[str, Sight], house: House) -> None:
    page = sights["light"].open("/audits/new?mechanism=dp-sgd&population=trial")
    page.get_by_label("weights after one step", exact=False).first.check()
    page.get_by_role("textbox", name="Samples").fill("500")
    page.get_by_label("Reason").fill("The yearly look.")
    page.get_by_label(re.compile("I mean it")).check()
    page.get_by_role("button", name="Schedule it").click()
    page.wait_for_url("**/audits/aud_**")
    assert "waits for a worker" in page.get_by_role("status").inner_text()
    opened = {"Authorization": f"Bearer {house.key}"}
    said = httpx.get(f"{house.url}/v1/populations/trial/ledger/export", headers=opened).text.splitlines()[-1]
    assert json.loads(said)["body"]["reason"] == "The yearly look."
    entries = (
        sights["light"].open("/populations/trial/ledger?kind=audit.planned").locator("tbody tr").first.inner_text()
    )
    assert "is planned; nothing is known yet. Why: The yearly look." in entries
    assert "..." not in entries
    waiting = httpx.get(f"{house.url}/v1/jobs?status=queued", headers={"Authorization": f"Bearer {house.key}"}).json()[
        "items"
    ][0]["id"]
    page = sights["light"].open(f"/jobs/{waiting}/cancel")
    page.get_by_label("Reason").fill("Nobody needs it.")
    page.get_by_label("I mean it").check()
    page.get_by_role("button", name="Cancel the job").click()
    page.wait_for_url(f"**/jobs/{waiting}")
    assert "cancelled" in page.locator("main").inner_text()


def test_a_population_is_frozen_for_a_reason_and_opened_again(sights: dict[str, Sight], house: House) -> None:
    opened = {"Authorization": f"Bearer {house.key}"}
    for to, button in (("frozen", "Freeze"), ("open", "Open")):
        page = sights["scriptless"].open(f"/populations/pilot/status?to={to}")
        page.get_by_label("Reason").fill(f"Made {to} by a test.")
        page.get_by_label("I mean it").check()
        page.get_by_role("button", name=button, exact=True).click()
        assert httpx.get(f"{house.url}/v1/populations/pilot", headers=opened).json()["status"] == to
    said = httpx.get(f"{house.url}/v1/populations/pilot/ledger/export", headers=opened).text
    assert "Made frozen by a test." in said


def test_a_status_is_approved_and_nothing_beside_it_changes(officer: Sight, house: House) -> None:
    opened = {"Authorization": f"Bearer {house.key}"}
    strict = {"reason": "be strict", "findings": {"warning": "deny"}}
    httpx.put(f"{house.url}/v1/populations/pilot/policy", json=strict, headers=opened).raise_for_status()
    before = httpx.get(f"{house.url}/v1/populations/pilot/policy", headers=opened).json()
    page = officer.open("/mechanisms/dp-agem-as-published")
    page.get_by_role("link", name="Accept what is claimed in pilot…").click()
    page.wait_for_url("**/populations/pilot/policy/change?**")
    preview = page.locator("#preview")
    assert preview.locator("table").first.locator("tbody tr").count() == 1  # one change, and no other
    preview.get_by_label("Reason").fill("A trial of the paper.")
    preview.get_by_label(re.compile("I mean it")).check()
    preview.get_by_role("button", name=re.compile("into force")).click()
    page.wait_for_url("**/populations/pilot/policy")
    after = httpx.get(f"{house.url}/v1/populations/pilot/policy", headers=opened).json()
    assert after["accepts"] == ["proved", "claimed"]
    assert after["findings"] == before["findings"]
    officer.is_content()


def test_a_hold_is_committed_for_a_reason(officer: Sight, house: House) -> None:
    with Stint(house.url, house.key) as stint:
        charges = [{"scope": {"ranges": [[0, 20]]}, "event": {"kind": "pure_dp", "epsilon": 0.001}}]
        release = stint.propose(population="demo", charges=charges, state={"retained": "dp_only"})["id"]
    page = officer.open(f"/releases/{release}")
    page.get_by_role("link", name="It was released: commit…").click()
    asked = page.locator("#confirm")
    asked.get_by_label("Reason").fill("It is in production.")
    asked.get_by_role("button", name="It was released: commit").click()  # without the tick the browser stops it
    assert page.get_by_role("status").count() == 0
    asked.get_by_label(re.compile("I mean it")).check()
    asked.get_by_role("button", name="It was released: commit").click()
    page.get_by_role("status").wait_for()
    assert "what it held is spent" in page.get_by_role("status").inner_text()
    assert "It is in production." in page.locator("ol.timeline").inner_text()
    officer.is_content()
