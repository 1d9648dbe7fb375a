"""How attempts end that do not end well, with real workers: what is said of it, and that nothing is left of it."""

from __future__ import annotations

import errno
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from service.attempt import code_of
from service.operations.jobs import ERRORS
from tests.service.harness import Caller, Local, local
from tests.service.work import attempts, data, ended, job, statuses, until, worker

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def house() -> Iterator[Local]:
    with local(lease_seconds=20.0, attempts=2) as running:
        yield running


@pytest.fixture
def population(house: Local) -> str:
    return house.call.population(count=60, epsilon=2.0, delta=1e-5)


def submit(house: Local, population: str, queue: str) -> str:
    return str(house.call.ok("POST", "/v1/jobs", job(population, data(house.parts), queue=queue))["id"])


def given_up(error: str) -> list[tuple[str, int, str | None]]:
    """The lines of a job that failed twice in the same way."""
    return [("queued", 0, None), ("running", 1, None), ("queued", 1, error), ("running", 2, None), ("failed", 2, error)]


def must_have_left_nothing(house: Local, population: str, identity: str, error: str) -> None:
    """It was given up with this code: voided, charged to nobody, and neither staged nor published."""
    call, folder = house.call, house.parts.settings.artifacts_folder
    found: dict[str, Any] = call.ok("GET", f"/v1/jobs/{identity}")
    assert (found["status"], found["error"], found["artifact"]) == ("failed", error, None)
    assert statuses(call, identity) == given_up(error)
    message = call.ok("GET", f"/v1/jobs/{identity}/logs")["lines"][-1]["message"]
    assert message == f"It was given up after 2 attempts, and nothing of it left the worker: {ERRORS[error]}."
    assert call.ok("GET", f"/v1/releases/{found['release']}")["status"] == "voided"
    assert call("GET", f"/v1/releases/{found['release']}/artifact").status_code == 409
    assert nobody_is_charged(call, population)
    assert list((folder / ".staged").iterdir()) == []
    assert not (folder / found["release"]).exists()
    call.verify(population)


def nobody_is_charged(call: Caller, population: str) -> bool:
    reading = call.reading(population, 0)
    return (reading["spent"], reading["held"]) == (0.0, 0.0)


def test_an_attempt_that_takes_too_long_is_ended(house: Local, population: str, tmp_path: Path) -> None:
    identity = submit(house, population, "slow")
    process = worker(
        house.parts, "--queue", "slow", "--once", planted=f"gate={tmp_path / 'never'}", STINT_JOB_SECONDS="5"
    )
    until(house.call, identity, lambda _: len(attempts(process)) == 1)
    seen = [*attempts(process), *psutil.Process(process.pid).children()]
    said = ended(process)
    assert f"{identity}: attempt 2 failed: timeout." in said
    assert not any(each.is_running() for each in seen)
    must_have_left_nothing(house, population, identity, "timeout")


def test_an_attempt_that_needs_more_memory_than_there_is_says_so(house: Local, population: str, tmp_path: Path) -> None:
    """Whether Python or torch ran out of it, and although hardly any is left to say it with."""
    identity = submit(house, population, "hungry")
    said = ended(worker(house.parts, "--queue", "hungry", "--once", planted=f"hungry={tmp_path / 'second'}"))
    assert f"{identity}: attempt 1 failed: memory." in said
    must_have_left_nothing(house, population, identity, "memory")


def test_an_attempt_that_somebody_kills_is_tried_again(house: Local, population: str, tmp_path: Path) -> None:
    """When everything is staged already, which is the latest that anybody can."""
    call, late = house.call, tmp_path / "late"
    first = submit(house, population, "killed")
    process = worker(house.parts, "--queue", "killed", planted=f"late={late}")
    try:
        for attempt, number in ((1, signal.SIGKILL), (2, signal.SIGTERM)):
            _staged(house, first, attempt)
            [child] = attempts(process)
            child.send_signal(number)
        until(call, first, lambda now: now["status"] == "failed")
        must_have_left_nothing(house, population, first, "killed")
        second = submit(house, population, "killed")  # which the same worker takes
        held = call.reading(population, 0)["held"]
        _staged(house, second, 1)
        [child] = attempts(process)
        child.kill()
        _staged(house, second, 2)
        late.touch()
        found = until(call, second, lambda now: now["status"] == "committed")
    finally:
        process.terminate()
        said = ended(process)
    assert process.returncode == 0, said
    assert said.count("failed: killed.") == 3
    assert found["attempt"] == 2
    assert statuses(call, second)[2] == ("queued", 1, "killed")
    kinds = [each["body"]["kind"] for each in call.entries(population) if each["body"]["kind"].startswith("release.")]
    assert kinds == ["release.held", "release.voided", "release.held", "release.committed"]
    assert call.reading(population, 0)["spent"] == pytest.approx(held)
    folder = house.parts.settings.artifacts_folder
    assert list((folder / ".staged").iterdir()) == []
    assert call("GET", f"/v1/releases/{found['release']}/artifact").status_code == 200
    call.verify(population)


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (MemoryError(), "memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), "memory"),
        (RuntimeError("std::bad_alloc"), "memory"),
        (RuntimeError("CUDA error: out of memory"), "memory"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "memory"),
        (OSError(errno.ENOSPC, "No space left on device"), "internal"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "internal"),
    ],
)
def test_what_is_said_of_a_failure_that_has_no_code_of_its_own(problem: Exception, code: str) -> None:
    assert code_of(problem) == code


def _staged(house: Local, identity: str, attempt: int) -> None:
    """Wait until an attempt has staged its last file."""
    path = house.parts.settings.artifacts_folder / ".staged" / f"{identity}.{attempt}" / "card.md"
    until(house.call, identity, lambda _: path.exists())
