"""How long the pages of a large population take: 10⁷ datapoints in 50 tasks, three years, 5,000 releases.

Scopes overlap, as those of a stream with a replayed memory do: most releases take a tenth of a task wherever it lies,
some a whole task, some the memories of all tasks so far, some a tenth of everybody. One in twenty asks for too much and
is denied, some are voided, the last ones are still held; twenty audits are planned. The history is made up
(`service/made_up.py`), so that it is as old as it says, and the forecast has something to look at.

Seconds from a request to the last byte of its answer, on one kept connection and with nobody else asking; the browser
is not part of it. The **first** look is the one right after the ledger grew by an entry, when answers that were kept of
it are of no use; the others follow. Entries touch few people, so the population's page is also looked at right after a
new policy, under which everybody stands otherwise. The book itself is open: to replay it after a start takes seconds.
Beside the first look is the processor time that the service took for it, which is about the same on a busy machine.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final
from urllib.parse import urlencode

import httpx
import psutil  # type: ignore[import-untyped]

from benchmarks.measure import duration
from benchmarks.service import BUDGET, started, stint
from service import made_up
from service.app import running
from service.settings import Settings
from service.store.embedded import embedded

SIZE: Final = 10**7
TASKS: Final = 50
RELEASES: Final = 5_000
MEMORY: Final = 2_000  # of each task, that later ones replay
OPEN: Final = 20  # holds, at the end
AUDITS: Final = 20
YEARS: Final = 3
REPEATS: Final = 9
TARGET: Final = 0.3
NAME: Final = "large"
BUDGET_PAGE: Final = f"/populations/{NAME}/budget"
#: Every page; `{release}` is a committed one, `{denied}`, `{held}` and the others are what they say.
PAGES: Final = (
    "/overview",
    BUDGET_PAGE,
    f"{BUDGET_PAGE}?like={{release}}&times=10000",
    f"/populations/{NAME}/tasks",
    f"/populations/{NAME}/task?name=task-7",
    f"/populations/{NAME}/datapoint?ordinal=3",
    f"/populations/{NAME}/datapoint?ordinal=1234567",
    f"/populations/{NAME}/releases",
    f"/populations/{NAME}/releases?status=denied",
    "/releases/{release}",
    "/releases/{denied}",
    "/releases/{held}",
    "/releases/{release}/engines",
    "/releases/{held}/void",
    "/releases/{held}/commit",
    f"/populations/{NAME}/ledger",
    f"/populations/{NAME}/entry?number=3",
    f"/populations/{NAME}/verify",
    f"/populations/{NAME}/policy",
    f"/populations/{NAME}/policy/change",
    f"/populations/{NAME}/policy/change?preview=yes&epsilon=1.2&accepts=proved&deny=error",
    f"/populations/{NAME}/policy/change?preview=yes&delta=1e-7&accepts=proved&deny=error",
    f"/populations/{NAME}/status?to=frozen",
    f"/populations/{NAME}/report",
    "/mechanisms",
    "/mechanisms/dp-sgd",
    "/audits",
    "/audits/{audit}",
    "/audits/new?mechanism=dp-sgd",
    "/jobs",
    "/jobs/{job}",
    "/jobs/{job}/cancel",
    "/keys",
    "/keys/new",
    "/keys/log",
    "/keys/{key}/revoke",
    "/system",
    "/verify",
)
#: That is never run: what it would read is not there.
JOB: Final = {
    "population": NAME,
    "scope": {"ranges": [[0, 1000]]},
    "mechanism": {
        "name": "dp-sgd",
        "parameters": {"noise_multiplier": 1000.0, "sampling_probability": 0.01, "steps": 4, "clip_norm": 1.0},
    },
    "recipe": {
        "model": "linear", "shape": [4], "learning_rate": 0.1, "label_source": "prior", "label_names": ["0", "1"],
    },
    "data": {"uri": "nowhere.npz", "x": "x", "y": "y"},
}  # fmt: skip
#: What is made while one waits: told, and held to no target.
DOCUMENTS: Final = (f"/populations/{NAME}/report/document?from={{quarter}}",)


def main() -> None:
    """Print how long every page takes, and whether the target is met."""
    with tempfile.TemporaryDirectory(prefix="stint-bench-") as name, embedded(Path(name) / "postgres") as url:
        fill(Path(name), url)
        with started(stint, Path(name), url) as (address, key):
            report(address, key)


def fill(folder: Path, url: str, *, size: int = SIZE, releases: int = RELEASES) -> None:
    """The population with all its releases."""
    rng = random.Random(7)  # the same scopes every time
    now = datetime.now(UTC)
    start = now - timedelta(days=365 * YEARS)
    apart = (now - start - timedelta(hours=1)) / releases
    with (
        running(Settings(data=folder, database_url=url), sweeps=False) as parts,
        made_up.history(parts, NAME, start=start) as maker,
    ):
        maker.create_population(NAME, unit="user", epsilon=BUDGET["epsilon"], delta=BUDGET["delta"])
        maker.register_count(NAME, size)
        each = size // TASKS
        for number in range(TASKS):
            maker.create_task(NAME, f"task-{number}", members={"ranges": [[number * each, (number + 1) * each]]})
        for number, (kind, ranges) in enumerate(scopes(rng, size=size, releases=releases)):
            maker.at = start + (number + 1) * apart
            event: dict[str, Any] = {"kind": "gaussian", "noise_multiplier": 1000.0 + number}
            if number % 20 == 19:
                event = {"kind": "pure_dp", "epsilon": 9.0}
            scope = {"task": kind} if kind else {"ranges": ranges}
            month = 30 * 86_400
            told = maker.propose(population=NAME, charges=[{"scope": scope, "event": event}], hold_seconds=month)
            assert (told["status"] == "denied") == (number % 20 == 19), told
            if told["status"] == "held" and number < releases - OPEN:
                if number % 50 == 7:
                    maker.void(told["id"], reason="it crashed")
                else:
                    maker.commit(told["id"])


def scopes(rng: random.Random, *, size: int, releases: int) -> Iterator[tuple[str | None, list[list[int]]]]:
    """Whom each release touches: a task by its name, or ranges."""
    task = size // TASKS
    for number in range(releases):
        current = number * TASKS // releases
        chance = rng.random()
        if chance < 0.6:
            first = current * task + rng.randrange(task - task // 10)
            yield None, [[first, first + task // 10]]
        elif chance < 0.8:
            yield f"task-{current}", []
        elif chance < 0.9:
            yield None, [[each * task, each * task + MEMORY * size // SIZE] for each in range(current + 1)]
        else:
            first = rng.randrange(size - size // 10)
            yield None, [[first, first + size // 10]]


def report(address: str, key: str) -> None:
    """Every page in turn, as an officer who is signed in."""
    sent = {"Origin": address, "Accept": "text/html"}
    opened = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=address, headers=sent, timeout=120) as client:
        form = urlencode({"key": key, "next": "/overview"})
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        assert client.post("/sign-in", content=form, headers=kind).status_code == 303
        names = {"quarter": f"{datetime.now(UTC) - timedelta(days=91):%Y-%m-%d}"}
        for name, status in (("release", "committed"), ("denied", "denied"), ("held", "held")):
            listed = client.get(f"/v1/releases?population={NAME}&status={status}", headers=opened)
            names[name] = json.loads(listed.text)["items"][0]["id"]

        def made(path: str, asked: object) -> str:
            answer = client.post(path, json=asked, headers=opened).raise_for_status().json()
            return str(answer["id"])

        for _ in range(AUDITS):
            audit = {"population": NAME, "mechanism": "dp-sgd", "audit": "weights after one step", "samples": 500}
            names["audit"] = made("/v1/audits", audit)
        names["job"] = made("/v1/jobs", JOB)
        names["key"] = made("/v1/keys", {"name": "another", "roles": ["worker"]})
        budget = client.get(f"/v1/populations/{NAME}/budget", headers=opened).json()
        print(
            f"Pages of {budget['datapoints']:,} datapoints in {budget['cohorts']:,} cohorts, after {RELEASES:,} "
            f"releases; the first look at a ledger that grew, its processor time, then median and worst of {REPEATS}"
        )
        found = {path: taken(client, opened, path.format(**names)) for path in PAGES}
        changed = f"{BUDGET_PAGE}?after=a-new-policy"
        found[changed] = taken(client, opened, changed, change=tighten)
        for path in DOCUMENTS:
            taken(client, opened, path.format(**names), repeats=2)
    for place, what in enumerate(("of waiting", "of processor time")):
        slowest = max(found, key=lambda path: found[path][place])
        seconds = found[slowest][place]
        word = "met" if seconds <= TARGET else "missed"
        print(f"{word:<7} every page within {duration(TARGET)} {what}: the slowest took {duration(seconds)}, {slowest}")


def taken(
    client: httpx.Client,
    opened: dict[str, str],
    path: str,
    *,
    repeats: int = REPEATS,
    change: Callable[[httpx.Client, dict[str, str]], None] | None = None,
) -> tuple[float, float]:
    """The longest of some requests, the first among them, and the processor time of the first; all are printed."""
    (change or grow)(client, opened)
    seconds, computed = [], 0.0
    for number in range(repeats + 1):
        before, start = computing(), perf_counter()
        answer = client.get(path)
        seconds.append(perf_counter() - start)
        computed = computing() - before if number == 0 else computed
        assert answer.status_code == 200, (path, answer.status_code, answer.text[:200])
    first, *others = seconds
    shown = path if len(path) <= 86 else f"{path[:85]}…"
    print(
        f"{shown:<88}{duration(first):>10}{duration(computed):>10}{duration(median(others)):>10}"
        f"{duration(max(others)):>10}",
        flush=True,
    )
    return max(seconds), computed


def computing() -> float:
    """Seconds of processor time that the service has taken, to a hundredth."""
    [service] = multiprocessing.active_children()
    times = psutil.Process(service.pid).cpu_times()
    return float(times.user + times.system)


def grow(client: httpx.Client, opened: dict[str, str]) -> None:
    """One more entry, so that nothing that is remembered of the ledger is true any more."""
    scope = {"ranges": [[SIZE // 2, SIZE // 2 + 5000]]}
    event = {"kind": "gaussian", "noise_multiplier": 5000.0}
    proposal = {"population": NAME, "charges": [{"scope": scope, "event": event}]}
    client.post("/v1/releases", json=proposal, headers=opened).raise_for_status()


def tighten(client: httpx.Client, opened: dict[str, str]) -> None:
    """A new policy, a little stricter: what everybody has behind them is read anew."""
    policy = {"reason": "a benchmark", "delta": 0.9 * BUDGET["delta"]}
    client.put(f"/v1/populations/{NAME}/policy", json=policy, headers=opened).raise_for_status()
