"""What tests of the service run against: one in this process for all of them, or one of a module's own.

Every test makes its own populations.
"""

from collections.abc import Iterator

import pytest

from service.api.context import Parts
from service.client import Stint
from tests.service.harness import Caller, Local, local
from tests.service.terminal import Running
from tests.service.terminal import service as in_a_process


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


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    """A service in a process of its own."""
    with in_a_process() as started:
        yield started


@pytest.fixture
def stint(running: Running) -> Iterator[Stint]:
    """A client to it."""
    with Stint(running.url, running.key) as client:
        yield client
