"""One service with its own PostgreSQL for all tests of a process; every test makes its own populations."""

from collections.abc import Iterator

import pytest

from service.api.context import Parts
from tests.service.harness import Caller, Local, local


@pytest.fixture(scope="session")
def service() -> Iterator[Local]:
    """The application in this process, over a real PostgreSQL, without a sweeper."""
    with local() as running:
        yield running


@pytest.fixture
def call(service: Local) -> Caller:
    """Requests of an admin."""
    return service.call


@pytest.fixture
def parts(service: Local) -> Parts:
    """What the application runs on."""
    return service.parts
