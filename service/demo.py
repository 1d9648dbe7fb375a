"""A population to look around in: three years of weekly tasks, made up from beginning to end.

Made inside the service (`stint run`), its ledger has the times of those years, the last week being the one before this,
and every entry says that it is made up. Made from outside (`stint demo`), it goes through the front door like anybody's
requests: then the years are in the names of the tasks only, and the ledger is as old as it is. There are no people and
no data behind it. The plan is the same every time, and each step leaves a mark in the ledger, so what was interrupted
is completed, and what is complete is left alone.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from service.client import StintError, dp_sgd, label_release, sliding_window

if TYPE_CHECKING:
    from service.api.context import Parts
    from service.client import Stint
    from service.made_up import MadeUp

POPULATION: Final = "demo"
QUARTER: Final = 13  # weeks
QUARTERS: Final = 12
WEEKS: Final = QUARTERS * QUARTER
WEEKLY: Final = 1_000  # arrivals
MEMORY: Final = 100  # of them that are kept for replay
PANE, PANES, WINDOW = 500, 16, 7  # datapoints in a pane, panes of the stream, panes in the window
SEED: Final = 20_230_101
_STREAM: Final = WEEKS * WEEKLY  # where the stream of the sliding window begins
_AT_A_TIME: Final = 8

Maker: TypeAlias = "Stint | MadeUp"


@dataclass(frozen=True)
class Step:
    """One request. `mark` is how the ledger shows that it was made; `do` gets the ids of earlier proposals by name."""

    mark: str
    do: Callable[[Maker, dict[str, str]], Any]


@dataclass(frozen=True)
class Group:
    """Steps that do not depend on each other, and when they are said to happen."""

    at: datetime
    steps: list[Step]


def make(
    parts: Parts, *, now: datetime, progress: Callable[[int, int], object] = lambda _done, _of: None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> int:  # fmt: skip
    """Make what is not there yet of the demo population, with the times of its three years; how many steps that took.

    Whoever stops it between two steps can have the rest made later.
    """
    from service import made_up  # noqa: PLC0415 - a client needs nothing of the service

    with made_up.history(parts, POPULATION, start=now) as maker:
        marks, ids, first = _so_far(maker)
        groups = list(plan(first or first_week(now.date())))
        made, total = 0, sum(len(group.steps) for group in groups)
        for group in groups:
            for number, step in enumerate(group.steps):
                if step.mark in marks:
                    continue
                if is_stopped():
                    return made
                maker.at = group.at + timedelta(seconds=47 * number)
                _make(step, maker, ids)
                made += 1
                progress(made, total)
    return made


def seed(stint: Stint, *, progress: Callable[[int, int], object] = lambda _done, _of: None) -> int:
    """The same over HTTP, at the times at which it is really made."""
    marks, ids, first = _so_far(stint)
    groups = [group.steps for group in plan(first or first_week(datetime.now(UTC).date()))]
    total = sum(map(len, groups))
    made = 0
    with ThreadPoolExecutor(_AT_A_TIME) as workers:  # who comes together is decided together
        for group in groups:
            missing = [step for step in group if step.mark not in marks]
            for _ in workers.map(lambda step: _make(step, stint, ids), missing):
                made += 1
                progress(made, total)
    return made


def _make(step: Step, maker: Maker, ids: dict[str, str]) -> None:
    answer = step.do(maker, ids)
    if step.mark.startswith("proposed "):
        ids[step.mark.removeprefix("proposed ")] = answer["id"]


def length() -> int:
    """How many steps there are."""
    return sum(len(group.steps) for group in plan(date(2023, 1, 2)))


def proposals() -> int:
    """How many of them propose something; the very last one does."""
    return sum(step.mark.startswith("proposed ") for group in plan(date(2023, 1, 2)) for step in group.steps)


def first_week(today: date) -> date:
    """The Monday of the first week, for three years that end with the week before this."""
    return today - timedelta(days=today.weekday(), weeks=WEEKS)


def week(number: int, *, first: date) -> str:
    """The name of a week's task.

    >>> week(3, first=date(2022, 12, 12))
    '2023-w01'
    """
    year, name, _ = (first + timedelta(weeks=number)).isocalendar()
    return f"{year}-w{name:02d}"


def _so_far(maker: Maker) -> tuple[set[str], dict[str, str], date | None]:
    """The marks that the ledger shows, the releases that were proposed, by name, and the first week, if there is one.

    What expired is resolved: what became of it is unknown for good.
    """
    marks: set[str] = set()
    ids: dict[str, str] = {}
    first: date | None = None
    size = 0
    try:
        for entry in maker.ledger(POPULATION):
            body = entry["body"]
            match body["kind"]:
                case "datapoints.registered":
                    size += body["count"]
                    marks.add(f"registered {size}")
                case "task.created":
                    marks.add(f"task {body['task']}")
                    if first is None:
                        year, _, name = body["task"].partition("-w")
                        first = date.fromisocalendar(int(year), int(name), 1)
                case "release.held" | "release.denied":
                    name = str((body["declared"].get("state") or {}).get("made_up"))
                    ids[name] = body["release"]
                    marks.add(f"proposed {name}")
                case "release.committed" | "release.voided" | "release.expired":
                    marks.add(f"resolved {body['release']}")
                case kind:
                    marks.add(kind)
    except StintError as problem:
        if problem.status != 404:
            raise
    by_id = {identity: name for name, identity in ids.items()}
    marks |= {f"resolved {name}" for identity, name in by_id.items() if f"resolved {identity}" in marks}
    return marks, ids, first


# ---------------------------------------------------------------- the story


def plan(first: date) -> Iterator[Group]:
    """The whole history from a first week on, in order."""
    story = _Story(first)
    rng = random.Random(SEED)  # noqa: S311 - the same story every time
    yield Group(
        story.at(0, hour=1),
        [
            Step(
                "population.created",
                lambda maker, _: maker.create_population(POPULATION, unit="user", epsilon=3.0, delta=1e-6),
            )
        ],
    )
    for quarter in range(QUARTERS):
        weeks = range(quarter * QUARTER, (quarter + 1) * QUARTER)
        if quarter == QUARTERS * 2 // 3:
            yield Group(story.at(weeks[0], hour=2), [_lowered()])
        yield Group(story.at(weeks[0], hour=3), [_registered(QUARTER * WEEKLY, (quarter + 1) * QUARTER * WEEKLY)])
        if quarter == QUARTERS - 1:
            yield Group(story.at(weeks[0], hour=4), [_registered(PANE * PANES, _STREAM + PANE * PANES)])
        yield from story.quarter(weeks, rng)
    yield from story.loose_ends()


@dataclass(frozen=True)
class _Story:
    """What happened when, from the Monday of the first week on."""

    first: date

    def at(self, number: int, *, day: int = 0, hour: int = 0) -> datetime:
        """A time of a week."""
        monday = datetime.combine(self.first, time(), tzinfo=UTC) + timedelta(weeks=number)
        return monday + timedelta(days=day, hours=hour, minutes=7 * number % 60, seconds=13 * number % 60)

    def name(self, number: int) -> str:
        """The task of a week."""
        return week(number, first=self.first)

    def quarter(self, weeks: range, rng: random.Random) -> Iterator[Group]:
        """Models of weeks: most are committed, some fail and are voided, some ask too much and are denied. At the end
        the labels of the quarter, and a model that replays its memories; in the last one, a stream beside them."""
        fates = {number: rng.random() for number in weeks}
        noises = {number: 1.5 if _has_own_budget(number) else rng.choice([1.2, 1.3, 1.5]) for number in weeks}
        failed = "Made up: the training diverged, and nothing was kept."
        for number in weeks:
            name = self.name(number)
            yield Group(self.at(number, hour=6), [_task(name, number)])
            if fates[number] < 0.03:
                yield Group(self.at(number, hour=8), [_proposed(f"{name} hasty", task=name, mechanism=_training(0.5))])
            training = _training(noises[number])
            yield Group(self.at(number, hour=9), [_proposed(name, task=name, mechanism=training)])
            ended = _voided(name, failed) if fates[number] > 0.95 else _committed(name)
            yield Group(self.at(number, day=1, hour=6), [ended])
            if _has_own_budget(number) and number % 5 == 0:
                # A life would have room for it; the task's own budget has none.
                again = _proposed(f"{name} once more", task=name, mechanism=_training(1.2))
                yield Group(self.at(number, day=2, hour=10), [again])
            if (step := number - WEEKS + PANES - WINDOW + 1) >= 0:
                yield from self._window(number, step)
        last, labels, replay = weeks[-1], f"{self.name(weeks[-1])} labels", f"{self.name(weeks[-1])} replay"
        told = label_release(epsilon=0.2, delta=1e-9)
        yield Group(self.at(last, day=4, hour=5), [_proposed(labels, scope=_first(WEEKLY, weeks), mechanism=told)])
        yield Group(
            self.at(last, day=4, hour=7), [_proposed(replay, scope=_first(MEMORY, weeks), mechanism=_training(1.5))]
        )
        yield Group(self.at(last, day=4, hour=20), [_committed(labels), _committed(replay)])

    def _window(self, number: int, step: int) -> Iterator[Group]:
        """A step of a window of seven panes that slides over sixteen."""
        window = sliding_window(k=3, w0=PANE, step=step, epsilon=1.5, offset=_STREAM)
        yield Group(self.at(number, day=3, hour=9), [_proposed(f"window {step}", mechanism=window)])
        yield Group(self.at(number, day=3, hour=15), [_committed(f"window {step}")])

    def loose_ends(self) -> Iterator[Group]:
        """A schedule that no life could pay, a hold that nobody resolves, so that it expires into spent, one that is
        still open, and a last denial."""
        last = WEEKS - 1
        dear = sliding_window(k=3, w0=PANE, step=0, epsilon=6.0, offset=_STREAM)
        yield Group(self.at(last, day=5, hour=9), [_proposed("window too dear", mechanism=dear)])
        training = _training(1.5)
        forgotten = _proposed("forgotten", task=self.name(last - 2), mechanism=training, hold_seconds=1)
        still_open = _proposed("open", task=self.name(last), mechanism=training, hold_seconds=30 * 86_400)
        yield Group(self.at(last, day=5, hour=11), [forgotten, still_open])
        too_much = _proposed("too much", task=self.name(last - 1), mechanism=_training(0.6))
        yield Group(self.at(last, day=5, hour=14), [too_much])


def _has_own_budget(number: int) -> bool:
    return number % 8 == 7


# ---------------------------------------------------------------- steps


def _lowered() -> Step:
    reason = "Made up: in the third year, more caution than was promised."
    return Step("policy.changed", lambda maker, _: maker.change_policy(POPULATION, reason=reason, epsilon=2.5))


def _registered(count: int, total: int) -> Step:
    return Step(f"registered {total}", lambda maker, _: maker.register_count(POPULATION, count))


def _task(name: str, number: int) -> Step:
    return Step(
        f"task {name}",
        lambda maker, _: maker.create_task(
            POPULATION,
            name,
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
    return Step(f"proposed {name}", lambda maker, _: maker.propose(population=POPULATION, **proposal))


def _committed(name: str) -> Step:
    """With the digest of its own name, since there is no artifact."""
    artifact = {"sha256": hashlib.sha256(name.encode()).hexdigest(), "uri": f"made-up:{name.replace(' ', '-')}"}
    return Step(f"resolved {name}", lambda maker, ids: maker.commit(ids[name], artifact=artifact))


def _voided(name: str, reason: str) -> Step:
    return Step(f"resolved {name}", lambda maker, ids: maker.void(ids[name], reason=reason))
