"""How long the pages of a large population take: 10⁷ datapoints in 50 tasks, 5,000 releases that were committed.

Seconds from a request to the last byte of its answer, on one kept connection and with nobody else asking; the browser
is not part of it. The first request of each page is not counted.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final
from urllib.parse import urlencode

import httpx

from benchmarks.measure import duration
from benchmarks.service import BUDGET, Client, started, stint
from service.store.embedded import embedded

SIZE: Final = 10**7
TASKS: Final = 50
RELEASES: Final = 5_000
REPEATS: Final = 9
TARGET: Final = 0.3
NAME: Final = "large"
PAGES: Final = (
    "/overview",
    f"/populations/{NAME}/budget",
    f"/populations/{NAME}/tasks",
    f"/populations/{NAME}/task?name=task-7",
    f"/populations/{NAME}/datapoint?ordinal=1234567",
    f"/populations/{NAME}/releases",
    f"/populations/{NAME}/releases?status=denied",
    "/releases/{release}",
    "/releases/{release}/engines",
    f"/populations/{NAME}/ledger",
    f"/populations/{NAME}/entry?number=3",
    f"/populations/{NAME}/policy",
    f"/populations/{NAME}/policy/change",
    f"/populations/{NAME}/policy/change?preview=yes&epsilon=1.2&accepts=proved&deny=error",
    f"/populations/{NAME}/report",
    "/mechanisms",
    "/mechanisms/dp-sgd",
    "/audits",
    "/jobs",
    "/keys",
    "/system",
)


def main() -> None:
    """Print how long every page takes, median and worst, and whether the target is met."""
    with (
        tempfile.TemporaryDirectory(prefix="stint-bench-") as name,
        embedded(Path(name) / "postgres") as url,
        started(stint, Path(name), url) as (address, key),
    ):
        fill(address, key)
        report(address, key)


def fill(address: str, key: str) -> None:
    """The population with all its releases: each on a hundredth of a task."""
    with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {key}"}, timeout=60) as client:
        made = {"name": NAME, "unit": "user", "budget": BUDGET}
        client.post("/v1/populations", json=made).raise_for_status()
        client.post(f"/v1/populations/{NAME}/datapoints", json={"count": SIZE}).raise_for_status()
        each = SIZE // TASKS
        for number in range(TASKS):
            members = {"ranges": [[number * each, (number + 1) * each]]}
            task = {"name": f"task-{number}", "members": members}
            client.post(f"/v1/populations/{NAME}/tasks", json=task).raise_for_status()
    step = SIZE // RELEASES
    Client(address, key).release_all(NAME, [[(n * step, (n + 1) * step)] for n in range(RELEASES)])


def report(address: str, key: str) -> None:
    """Every page in turn, as an officer who is signed in."""
    sent = {"Origin": address, "Accept": "text/html"}
    with httpx.Client(base_url=address, headers=sent, timeout=60) as client:
        form = urlencode({"key": key, "next": "/overview"})
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        assert client.post("/sign-in", content=form, headers=kind).status_code == 303
        listed = client.get(f"/v1/releases?population={NAME}", headers={"Authorization": f"Bearer {key}"})
        release = json.loads(listed.text)["items"][0]["id"]
        print(f"Pages of {SIZE:,} datapoints and {RELEASES:,} releases; median and worst of {REPEATS}")
        worst = {path: taken(client, path.format(release=release)) for path in PAGES}
    slowest = max(worst, key=lambda path: worst[path])
    word = "met" if worst[slowest] <= TARGET else "missed"
    print(f"{word:<7} every page within {duration(TARGET)}: the slowest took {duration(worst[slowest])}, {slowest}")


def taken(client: httpx.Client, path: str) -> float:
    """The worst of some requests, which are printed."""
    seconds = []
    for _ in range(REPEATS + 1):
        start = perf_counter()
        answer = client.get(path)
        seconds.append(perf_counter() - start)
        assert answer.status_code == 200, (path, answer.status_code, answer.text[:200])
    print(f"{path:<90}{duration(median(seconds[1:])):>10}{duration(max(seconds[1:])):>10}", flush=True)
    return max(seconds[1:])
