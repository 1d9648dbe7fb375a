"""Jobs and workers for tests: small data in a file, and `stint worker` as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]

from service.api.context import Parts
from tests.service.harness import ROOT, Caller

PLANTED = Path(__file__).with_name("planted")
SECONDS = 60.0
#: A number that stands in every row, and nowhere else.
PRIVATE = 48_151.5


def data(parts: Parts, name: str = "rows.npz") -> Path:
    """A file below the place that workers may read."""
    folder = parts.settings.data / "inputs"
    folder.mkdir(exist_ok=True)
    return rows(folder / name)


def rows(path: Path, *, count: int = 60) -> Path:
    """Four features, a label and a key a row."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 4)).astype(np.float32)
    x[:, 3] = PRIVATE
    np.savez(path, x=x, y=(x[:, 0] > 0).astype(np.int64), key=[f"person-{n}" for n in range(count)])
    return path


def job(population: str, uri: object, **more: Any) -> dict[str, Any]:
    """A tiny run of DP-SGD on everybody."""
    return {
        "population": population,
        "scope": {"ranges": [[0, 60]]},
        "mechanism": {
            "name": "dp-sgd",
            "parameters": {"noise_multiplier": 4.0, "sampling_probability": 0.1, "steps": 4, "clip_norm": 1.0},
        },
        "recipe": {
            "model": "linear", "shape": [4], "learning_rate": 0.1, "label_source": "prior", "label_names": ["0", "1"],
        },
        "data": {"uri": str(uri), "x": "x", "y": "y"},
        **more,
    }  # fmt: skip


def worker(
    parts: Parts, *words: str, planted: str = "", errors: int = subprocess.PIPE, **variables: str
) -> subprocess.Popen[str]:
    """`stint worker …` on the database of these parts, with faults planted in it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STINT_", "DATABASE_"))}
    environment = kept | {
        "DATABASE_URL": parts.database.url,
        "STINT_DATA": str(parts.settings.data),
        "STINT_LEASE_SECONDS": str(parts.settings.lease_seconds),
        "STINT_RETRY_SECONDS": str(parts.settings.retry_seconds),
        "STINT_PAUSE_SECONDS": str(parts.settings.pause_seconds),
        "OMP_NUM_THREADS": "1",
        "PLANTED": planted,
        "PYTHONPATH": os.pathsep.join([str(PLANTED), str(ROOT)]),
        **variables,
    }
    return subprocess.Popen(
        [sys.executable, "-m", "service", "worker", *words],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        text=True,
    )


def attempts(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The attempts that a worker runs: forked from the process that it keeps for that."""
    return [each for nursery in psutil.Process(process.pid).children() for each in nursery.children()]


def ended(process: subprocess.Popen[str]) -> str:
    """What a worker said, once it has ended."""
    return process.communicate(timeout=SECONDS)[1]


def until(call: Caller, identity: str, wanted: Callable[[Mapping[str, Any]], bool]) -> dict[str, Any]:
    """The job, once it is as it should be."""
    ends = time.monotonic() + SECONDS
    while True:
        found: dict[str, Any] = call.ok("GET", f"/v1/jobs/{identity}")
        if wanted(found):
            return found
        assert time.monotonic() < ends, found
        time.sleep(0.05)


def statuses(call: Caller, identity: str) -> list[tuple[str, int, str | None]]:
    """The lines of a job, without their times."""
    lines = call.ok("GET", f"/v1/jobs/{identity}/logs")["lines"]
    return [(line["status"], line["attempt"], line["error"]) for line in lines]
