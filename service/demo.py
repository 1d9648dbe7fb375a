"""A population to look around in: three years of weekly tasks, made up from beginning to end.

Everything goes through the service like anybody's requests, and the ledger's times are the real ones: the years are in
the names of the tasks only. There are no people and no data behind it. The plan is the same every time, and each step
leaves a mark in the ledger, so what was interrupted is completed, and what is complete is left alone.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from service.client import StintError, dp_sgd, label_release, sliding_window

if TYPE_CHECKING:
    from service.client import Stint

POPULATION: Final = "demo"
YEARS: Final = (2023, 2024, 2025)
QUARTER: Final = 13  # weeks
QUARTERS: Final = 4 * len(YEARS)
WEEKLY: Final = 1_000  # arrivals
MEMORY: Final = 100  # of them that are kept for replay
PANE, PANES, WINDOW = 500, 16, 7  # datapoints in a pane, panes of the stream, panes in the window
SEED: Final = 20_230_101
_STREAM: Final = QUARTERS * QUARTER * WEEKLY  # where the stream of the sliding window begins
_AT_A_TIME: Final = 8


@dataclass(frozen=True)
class Step:
    """One request. `mark` is how the ledger shows that it was made; `do` gets the ids of earlier proposals by name."""

    mark: str
    do: Callable[[Stint, dict[str, str]], Any]


def seed(stint: Stint, *, progress: Callable[[int, int], object] = lambda _done, _of: None) -> int:
    """Make what is not there yet of the demo population; how many steps that took."""
    groups = list(plan())
    marks, ids = _so_far(stint)
    total = sum(map(len, groups))
    made = 0

    def make(step: Step) -> None:
        answer = step.do(stint, ids)
        if step.mark.startswith("proposed "):
            ids[step.mark.removeprefix("proposed ")] = answer["id"]

    with ThreadPoolExecutor(_AT_A_TIME) as workers:  # who comes together is decided together
        for group in groups:
            missing = [step for step in group if step.mark not in marks]
            for _ in workers.map(make, missing):
                made += 1
                progress(made, total)
    return made


def length() -> int:
    """How many steps there are."""
    return sum(map(len, plan()))


def proposals() -> int:
    """How many of them propose something; the very last one does."""
    return sum(step.mark.startswith("proposed ") for group in plan() for step in group)


def _so_far(stint: Stint) -> tuple[set[str], dict[str, str]]:
    """The marks that the ledger shows, and the releases that were proposed, by name."""
    marks: set[str] = set()
    ids: dict[str, str] = {}
    size = 0
    try:
        for entry in stint.ledger(POPULATION):
            body = entry["body"]
            match body["kind"]:
                case "datapoints.registered":
                    size += body["count"]
                    marks.add(f"registered {size}")
                case "task.created":
                    marks.add(f"task {body['task']}")
                case "release.held" | "release.denied":
                    name = str((body["declared"].get("state") or {}).get("made_up"))
                    ids[name] = body["release"]
                    marks.add(f"proposed {name}")
                case "release.committed" | "release.voided":
                    marks.add(f"resolved {body['release']}")
                case kind:
                    marks.add(kind)
    except StintError as problem:
        if problem.status != 404:
            raise
    by_id = {identity: name for name, identity in ids.items()}
    return marks | {f"resolved {name}" for identity, name in by_id.items() if f"resolved {identity}" in marks}, ids


# ---------------------------------------------------------------- the story


def plan() -> Iterator[list[Step]]:
    """The whole history: groups in order, and within a group steps that do not depend on each other."""
    rng = random.Random(SEED)  # noqa: S311 - the same story every time
    yield [
        Step(
            "population.created",
            lambda stint, _: stint.create_population(POPULATION, unit="user", epsilon=3.0, delta=1e-6),
        )
    ]
    for quarter in range(QUARTERS):
        if quarter == QUARTERS * 2 // 3:
            yield [_lowered()]
        yield [_registered(QUARTER * WEEKLY, (quarter + 1) * QUARTER * WEEKLY)]
        yield from _quarter(range(quarter * QUARTER, (quarter + 1) * QUARTER), rng)
    yield [_registered(PANE * PANES, _STREAM + PANE * PANES)]
    yield from _stream()
    yield from _loose_ends()


def _week(number: int) -> str:
    year, week = divmod(number, 4 * QUARTER)
    return f"{YEARS[year]}-w{week + 1:02d}"


def _has_own_budget(number: int) -> bool:
    return number % 8 == 7


def _quarter(weeks: range, rng: random.Random) -> Iterator[list[Step]]:
    """Models of weeks: most are committed, some fail and are voided, some ask too much and are denied. At the end the
    labels of the quarter, and a model that replays its memories."""
    fates = {number: rng.random() for number in weeks}
    noises = {number: 1.5 if _has_own_budget(number) else rng.choice([1.2, 1.3, 1.5]) for number in weeks}
    failed = "Made up: the training diverged, and nothing was kept."
    yield [_task(number) for number in weeks]
    hasty = [_week(number) for number in weeks if fates[number] < 0.03]
    yield [_proposed(f"{name} hasty", task=name, mechanism=_training(0.5)) for name in hasty]
    yield [_proposed(_week(number), task=_week(number), mechanism=_training(noises[number])) for number in weeks]
    yield [_voided(_week(number), failed) if fates[number] > 0.95 else _committed(_week(number)) for number in weeks]
    again = [_week(number) for number in weeks if _has_own_budget(number) and number % 5 == 0]
    # A life would have room for it; the task's own budget has none.
    yield [_proposed(f"{name} once more", task=name, mechanism=_training(1.2)) for name in again]
    labels, replay = f"{_week(weeks[-1])} labels", f"{_week(weeks[-1])} replay"
    yield [_proposed(labels, scope=_first(WEEKLY, weeks), mechanism=label_release(epsilon=0.2, delta=1e-9))]
    yield [_proposed(replay, scope=_first(MEMORY, weeks), mechanism=_training(1.5))]
    yield [_committed(labels), _committed(replay)]


def _stream() -> Iterator[list[Step]]:
    """A window of seven panes that slides over sixteen, and a schedule that no life could pay."""
    steps = range(PANES - WINDOW + 1)
    for step in steps:
        window = sliding_window(k=3, w0=PANE, step=step, epsilon=1.5, offset=_STREAM)
        yield [_proposed(f"window {step}", mechanism=window)]
    yield [_committed(f"window {step}") for step in steps]
    dear = sliding_window(k=3, w0=PANE, step=0, epsilon=6.0, offset=_STREAM)
    yield [_proposed("window too dear", mechanism=dear)]


def _loose_ends() -> Iterator[list[Step]]:
    """A hold that nobody resolves, so that it expires into spent, one that is still open, and a last denial."""
    last = QUARTERS * QUARTER - 1
    yield [
        _proposed("forgotten", task=_week(last - 2), mechanism=_training(1.5), hold_seconds=1),
        _proposed("open", task=_week(last), mechanism=_training(1.5), hold_seconds=30 * 86_400),
    ]
    yield [_proposed("too much", task=_week(last - 1), mechanism=_training(0.6))]


# ---------------------------------------------------------------- steps


def _lowered() -> Step:
    reason = "Made up: from 2025 on, more caution than was promised."
    return Step("policy.changed", lambda stint, _: stint.change_policy(POPULATION, reason=reason, epsilon=2.5))


def _registered(count: int, total: int) -> Step:
    return Step(f"registered {total}", lambda stint, _: stint.register_count(POPULATION, count))


def _task(number: int) -> Step:
    return Step(
        f"task {_week(number)}",
        lambda stint, _: stint.create_task(
            POPULATION,
            _week(number),
            members={"ranges": [[number * WEEKLY, (number + 1) * WEEKLY]]},
            parts={"memory": _first(MEMORY, range(number, number + 1))},
            budget={"epsilon": 1.0, "delta": 1e-7} if _has_own_budget(number) else None,
        ),
    )


def _first(count: int, weeks: range) -> dict[str, Any]:
    """The first `count` arrivals of each of these weeks."""
    return {"ranges": [[week * WEEKLY, week * WEEKLY + count] for week in weeks]}


def _training(noise: float) -> dict[str, Any]:
    return dp_sgd(noise_multiplier=noise, sampling_probability=0.01, steps=200, clip_norm=1.0)


def _proposed(name: str, **proposal: Any) -> Step:
    proposal |= {"state": {"retained": "dp_only", "made_up": name}, "tuning": {"source": "public"}}
    return Step(f"proposed {name}", lambda stint, _: stint.propose(population=POPULATION, **proposal))


def _committed(name: str) -> Step:
    """With the digest of its own name, since there is no artifact."""
    artifact = {"sha256": hashlib.sha256(name.encode()).hexdigest(), "uri": f"made-up:{name.replace(' ', '-')}"}
    return Step(f"resolved {name}", lambda stint, ids: stint.commit(ids[name], artifact=artifact))


def _voided(name: str, reason: str) -> Step:
    return Step(f"resolved {name}", lambda stint, ids: stint.void(ids[name], reason=reason))
