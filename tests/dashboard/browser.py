"""Debian's chromium, as a person with it sees a page: in light, in dark, on a small screen, and without scripts."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, expect, sync_playwright

AXE = Path(__file__).parent / "vendor" / "axe-4.14.0.min.js"
SCREENSHOTS = Path(__file__).resolve().parents[2] / ".screenshots"
NARROW = 320
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
#: What a context of the browser is like.
SIGHTS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light", "viewport": {"width": 1200, "height": 800}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1200, "height": 800}},
    "narrow": {"color_scheme": "light", "viewport": {"width": NARROW, "height": 640}},
    "scriptless": {
        "color_scheme": "light",
        "viewport": {"width": 1200, "height": 800},
        "java_script_enabled": False,
    },
}
_WATCH = """
window.stintRefused = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.stintRefused.push(event.violatedDirective + " " + event.blockedURI + " " + (event.sample || "")));
"""


def chromium() -> str:
    """Where it is. Where it is not, tests are skipped, but never where all of them must run."""
    found = shutil.which("chromium")
    if found is None:
        if os.environ.get("CI"):
            raise RuntimeError("chromium is not installed, and these checks must not be left out: see .ci/run")
        pytest.skip("chromium is absent: apt-get install chromium")
    return found


@contextmanager
def launched() -> Iterator[Browser]:
    """One browser."""
    path = chromium()
    arguments = ["--disable-gpu", "--font-render-hinting=none"]
    if os.geteuid() == 0:  # its sandbox asks for another user
        arguments.append("--no-sandbox")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments, chromium_sandbox=False)
        try:
            yield browser
        finally:
            browser.close()


def pictured(page: Page, name: str) -> None:
    """A picture of the whole page. A busy browser says now and then that it cannot, and can when asked again."""
    SCREENSHOTS.mkdir(exist_ok=True)
    path = SCREENSHOTS / f"{name}.png"
    try:
        page.screenshot(path=path, full_page=True, animations="disabled")
    except Error:
        page.screenshot(path=path, full_page=True, animations="disabled")


def _runs_scripts(name: str) -> bool:
    runs: bool = SIGHTS[name].get("java_script_enabled", True)
    return runs


@dataclass
class Sight:
    """A page of a browser that notes everything it complains about."""

    name: str
    context: BrowserContext
    page: Page
    complaints: list[str] = field(default_factory=list)
    reader: Page | None = None  # where axe looks at what was seen without scripts

    @classmethod
    def of(cls, browser: Browser, name: str, *, url: str, key: str | None, **more: Any) -> Sight:
        """A window as `SIGHTS` says, signed in by the form if there is a key."""
        context = browser.new_context(base_url=url, reduced_motion="reduce", **SIGHTS[name], **more)
        if _runs_scripts(name):
            context.add_init_script(_WATCH)
        made = cls(name, context, context.new_page())
        made.page.set_default_timeout(15_000)
        made.page.on("console", made._heard)
        made.page.on("pageerror", lambda error: made.complaints.append(f"error: {error}"))
        if key is not None:
            made.sign_in(key)
        return made

    def sign_in(self, key: str) -> None:
        """As a person does."""
        self.page.goto("/sign-in")
        self.page.get_by_label("API key").fill(key)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url("**/overview")

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(f"{message.type}: {message.text}")

    def open(self, path: str, *, status: int = 200) -> Page:
        """Go there, and wait until nothing more is fetched."""
        self.complaints.clear()
        answer = self.page.goto(path, wait_until="load")
        assert answer is not None
        assert answer.status == status, f"{path}: {answer.status}"
        if status >= 400:  # the browser says so as well, and that is as it should be
            self.complaints[:] = [each for each in self.complaints if "Failed to load resource" not in each]
        return self.page

    def is_content(self) -> None:
        """No error, no warning, and nothing that the page's policy had to stop."""
        if _runs_scripts(self.name):
            self.complaints += self.page.evaluate("window.stintRefused")
        assert self.complaints == [], f"{self.page.url}: {self.complaints}"

    def is_accessible(self) -> None:
        """No violation of WCAG 2 A and AA that axe can find."""
        page = self.page if _runs_scripts(self.name) else self._read()
        page.evaluate(AXE.read_text(encoding="utf-8") + ";0")
        found = page.evaluate(
            "rules => axe.run(document, {runOnly: {type: 'tag', values: rules}, resultTypes: ['violations']})", RULES
        )
        broken = [
            f"{rule['id']}: {rule['help']}: {node['html'][:200]} {node.get('failureSummary', '')[:300]}"
            for rule in found["violations"]
            for node in rule["nodes"]
        ]
        assert broken == [], self.page.url + "\n" + "\n".join(broken)

    def _read(self) -> Page:
        """What is seen without scripts, in a window that runs axe, which needs timers, and no script of the site."""
        if self.reader is None:
            browser = self.context.browser
            assert browser is not None
            self.reader = browser.new_context(**SIGHTS[self.name] | {"java_script_enabled": True}).new_page()
            self.reader.route("**/*.js*", lambda route: route.fulfill(body="", content_type="text/javascript"))
        seen, url = self.page.content(), self.page.url.partition("#")[0]
        self.reader.route(url, lambda route: route.fulfill(body=seen, content_type="text/html; charset=utf-8"))
        self.reader.goto(url, wait_until="load")
        self.reader.unroute(url)
        return self.reader

    def close(self) -> None:
        """All windows that it opened."""
        for each in (self.context, *([] if self.reader is None else [self.reader.context])):
            each.close()

    def fits(self) -> None:
        """Nothing sticks out of the window."""
        wide, shown = self.page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        if wide > shown:
            culprits = self.page.evaluate(
                "limit => [...document.querySelectorAll('main *, header *, nav *, footer *')]"
                ".filter(each => each.getBoundingClientRect().right > limit + 1 && !each.closest('.table, svg, pre'))"
                ".slice(0, 5).map(each => each.outerHTML.slice(0, 150))",
                shown,
            )
            raise AssertionError(f"{self.page.url} is {wide} wide on {shown}: {json.dumps(culprits, indent=1)}")

    def photograph(self, name: str) -> None:
        """For people to look at, with all that the page fetches after it was opened."""
        expect(self.page.locator(".htmx-request")).to_have_count(0)
        pictured(self.page, f"{name}-{self.name}")
