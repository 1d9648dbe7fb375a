"""Every page in light, in dark, on 320 pixels and without scripts; every link; every page as JSON."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from urllib.parse import urldefrag, urlencode, urljoin, urlsplit

import httpx
import pytest
from fastapi.routing import APIRoute

from service import demo
from service.dashboard import site
from tests.dashboard.browser import AXE, SIGHTS, Sight
from tests.dashboard.house import CLINIC, EMPTY, HOSTILE, House

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow


def last_quarter() -> str:
    """A task of the demo's last quarter."""
    return demo.week(demo.WEEKS - 5, first=demo.first_week(datetime.now(UTC).date()))


#: Every page by the name of its screenshot.
PAGES: dict[str, Callable[[House], str]] = {
    "overview": lambda _: "/overview",
    "population": lambda _: f"/populations/{CLINIC}/budget",
    "population-demo": lambda _: "/populations/demo/budget",
    "population-empty": lambda _: f"/populations/{EMPTY}/budget",
    "tasks": lambda _: "/populations/demo/tasks",
    "task": lambda _: f"/populations/demo/task?name={last_quarter()}",
    "task-hostile": lambda _: "/populations/trial/task?" + urlencode({"name": HOSTILE}),
    "datapoint-lookup": lambda _: f"/populations/{CLINIC}/datapoint",
    "datapoint": lambda _: f"/populations/{CLINIC}/datapoint?ordinal=17",
    "releases": lambda _: "/populations/demo/releases",
    "releases-denied": lambda _: "/populations/demo/releases?status=denied",
    "release-denied": lambda house: f"/releases/{house.denied}",
    "release-held": lambda house: f"/releases/{house.held}",
    "release-committed": lambda house: f"/releases/{house.committed}",
    "engines": lambda house: f"/releases/{house.committed}/engines",
    "commit": lambda house: f"/releases/{house.held}/commit",
    "void": lambda house: f"/releases/{house.held}/void",
    "ledger": lambda _: f"/populations/{CLINIC}/ledger",
    "entry": lambda _: f"/populations/{CLINIC}/entry?number=3",
    "verify-ledger": lambda _: f"/populations/{CLINIC}/verify",
    "policy": lambda _: "/populations/demo/policy",
    "policy-blocked": lambda _: f"/populations/{CLINIC}/policy",
    "policy-change": lambda _: "/populations/demo/policy/change",
    "policy-preview": lambda _: "/populations/demo/policy/change?preview=yes&epsilon=1.2&accepts=proved&deny=error",
    "policy-preview-refused": lambda _: "/populations/demo/policy/change?preview=yes&epsilon=9&accepts=proved",
    "freeze": lambda _: "/populations/demo/status?to=frozen",
    "close": lambda _: f"/populations/{CLINIC}/status?to=closed",
    "mechanisms": lambda _: "/mechanisms",
    "mechanism": lambda _: "/mechanisms/dp-sgd",
    "mechanism-refuted": lambda _: "/mechanisms/l2dp-ml-as-published",
    "audits": lambda _: "/audits",
    "audits-none": lambda _: "/audits?population=demo",
    "audit-consistent": lambda house: f"/audits/{house.audits['consistent']}",
    "audit-violation": lambda house: f"/audits/{house.audits['violation']}",
    "audit-queued": lambda house: f"/audits/{house.audits['queued']}",
    "audit-new": lambda _: "/audits/new?mechanism=dp-sgd",
    "jobs": lambda _: "/jobs",
    "job": lambda house: f"/jobs/{house.running_job}",
    "job-cancel": lambda house: f"/jobs/{house.running_job}/cancel",
    "report": lambda _: "/populations/demo/report",
    "report-chosen": lambda _: "/populations/demo/report?from=2026-10-01&to=2026-12-31",
    "system": lambda _: "/system",
    "keys": lambda _: "/keys",
    "key-new": lambda _: "/keys/new",
    "key-log": lambda _: "/keys/log",
    "key-revoke": lambda house: f"/keys/{house.officer_id}/revoke",
}
#: Pages that nobody has to sign in for.
PUBLIC: dict[str, str] = {"sign-in": "/sign-in", "verify": "/verify"}
#: What is printed or handed on: pages of their own, with their own style sheet.
DOCUMENTS: dict[str, Callable[[House], str]] = {
    "document-report": lambda _: "/populations/demo/report/document?from=2026-01-01",
    "document-report-release": lambda house: f"/releases/{house.denied}/report?format=html",
    "document-statement": lambda _: f"/populations/{CLINIC}/datapoint/17/statement?format=html",
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_can_be_read_by_everybody(name: str, sights: dict[str, Sight], house: House) -> None:
    look(name, PAGES[name](house), sights)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_page_can_be_read_by_everybody(name: str, strangers: dict[str, Sight]) -> None:
    look(name, PUBLIC[name], strangers)


def look(name: str, path: str, sights: dict[str, Sight]) -> None:
    for sight in sights.values():
        page = sight.open(path)
        assert page.locator("h1").count() == 1
        assert page.title().endswith("· Stint")
        sight.photograph(name)
        sight.is_accessible()
        sight.fits()
        sight.is_content()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_can_be_read_by_everybody(name: str, sights: dict[str, Sight], house: House) -> None:
    """What is handed to a regulator or to a person is a page as well, on whatever they look at it."""
    for sight in sights.values():
        page = sight.open(DOCUMENTS[name](house))
        assert page.locator("h1").count() == 1
        assert page.locator("script").count() == 0
        sight.photograph(name)
        sight.is_accessible()
        sight.fits()
        sight.is_content()


@pytest.fixture(scope="module")
def strangers(browser: Browser, house: House) -> Iterator[dict[str, Sight]]:
    """Windows of somebody who has not signed in."""
    opened = {name: Sight.of(browser, name, url=house.url, key=None) for name in SIGHTS}
    yield opened
    for each in opened.values():
        each.close()


def test_every_page_is_looked_at(house: House) -> None:
    """A page that is declared and not listed here would be looked at by nobody."""
    declared = {
        route.path
        for router in site.ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute)
        and "GET" in (route.methods or set())
        and not route.path.endswith(".json")
        and route.path not in {"/", "/static/{name:path}", "/populations/{population}"}
        and "document" not in route.tags  # what REST answers, for whoever is signed in
    }
    paths = [urlsplit(each(house)).path for each in PAGES.values()] + [urlsplit(each).path for each in PUBLIC.values()]
    patterns = [
        (path, re.compile(re.sub(r"\\{\w+(:path)?\\}", lambda found: ".+" if found[1] else "[^/]+", re.escape(path))))
        for path in declared
    ]
    assert [path for path, pattern in patterns if not any(pattern.fullmatch(each) for each in paths)] == []


class _Links(HTMLParser):
    """Where a document leads, and what can be led to in it."""

    def __init__(self) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag in {"a", "link"} and found.get("href"):
            self.links.add(str(found["href"]))
        if tag == "script" and found.get("src"):
            self.links.add(str(found["src"]))
        if found.get("id"):
            self.anchors.add(str(found["id"]))


def test_every_link_leads_somewhere(house: House) -> None:
    """From every page, one step."""
    with httpx.Client(base_url=house.url, headers={"Authorization": f"Bearer {house.key}"}, timeout=60) as client:
        seen: dict[str, _Links] = {}
        links: set[str] = set()
        for start in (*(path(house) for path in PAGES.values()), *PUBLIC.values()):
            answer = client.get(start)
            assert answer.status_code == 200, start
            found = _Links()
            found.feed(answer.text)
            seen[urldefrag(start).url] = found
            links |= {urljoin(start, link) for link in found.links}
        outside = {link for link in links if urlsplit(link).netloc}
        assert outside == set()
        for link in sorted(links):
            path, fragment = urldefrag(link)
            if path not in seen:
                answer = client.get(path)
                assert answer.status_code < 400, f"{path}: {answer.status_code} {answer.text[:300]}"
                seen[path] = _Links()
                if answer.headers["content-type"].startswith("text/html"):
                    seen[path].feed(answer.text)
            if fragment:
                assert fragment in seen[path].anchors, link


@pytest.mark.parametrize("name", PAGES)
def test_a_page_answers_as_json(name: str, house: House) -> None:
    path, _, query = PAGES[name](house).partition("?")
    opened = {"Authorization": f"Bearer {house.key}"}
    answer = httpx.get(f"{house.url}{path}.json?{query}", headers=opened, timeout=60)
    assert answer.status_code == 200
    assert isinstance(answer.json(), dict)


def test_the_vendored_checker_is_the_published_one() -> None:
    manifest = json.loads((AXE.parent / "manifest.json").read_text(encoding="utf-8"))
    assert list(manifest) == [AXE.name]
    assert hashlib.sha256(AXE.read_bytes()).hexdigest() == manifest[AXE.name]["sha256"]
    assert "Mozilla Public License" in AXE.with_name("axe-4.14.0.LICENSE").read_text(encoding="utf-8")
