"""One house, one browser and four ways to look, for all tests of pages."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.dashboard.browser import SIGHTS, Sight, launched
from tests.dashboard.house import House, Trouble, trouble
from tests.dashboard.house import house as built


@pytest.fixture(scope="session")
def house() -> Iterator[House]:
    """A service with a history."""
    with built() as made:
        yield made


@pytest.fixture(scope="session")
def troubled() -> Iterator[Trouble]:
    """A service in which not all is well."""
    with trouble() as made:
        yield made


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's chromium."""
    with launched() as running:
        yield running


@pytest.fixture(scope="session")
def sights(browser: Browser, house: House) -> Iterator[dict[str, Sight]]:
    """Windows of somebody who may see everything."""
    opened = {name: Sight.of(browser, name, url=house.url, key=house.key) for name in SIGHTS}
    yield opened
    for each in opened.values():
        each.close()
