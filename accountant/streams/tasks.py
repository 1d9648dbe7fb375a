"""When a datapoint pays for its own task only: the preconditions of task-wise composition, as rules that are checked.

Claim (adaptive parallel composition). Let the t-th mechanism see its own task's data and what was released before, and
be (ε, δ)-DP for every such past. Then all tasks together are (ε, δ)-DP for one datapoint, however many tasks there are;
likewise for Rényi divergences and privacy loss distributions, with the largest over tasks. Proof in docs/streams.md.
"Privacy Leakage via Output Label Space and Differentially Private Continual Learning" proves it for mechanisms that do
not see earlier outputs (Theorems 3.5, B.7, B.8), and shows why emptiness must not be shown (Proposition B.6).

The claim needs what a `Task` declares. Overlap is not declared but found: bitmaps know it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from pyroaring import BitMap, FrozenBitMap

from accountant.cohorts import Scope
from accountant.errors import InvalidInput
from accountant.events import Composed, Event, event_of

MAX_TASKS: Final = 1_000
MAX_PARTS: Final = 10_000

#: What a task's mechanism reads.
Reads: TypeAlias = Literal["own_data_and_releases", "other_raw_data"]
#: What decides that a datapoint is in the task: only itself (its ordinal, time, attributes, a keyed coin), or others.
Assignment: TypeAlias = Literal["record_local", "depends_on_others"]
#: What runs when the task has no data.
EmptyTask: TypeAlias = Literal["same_program", "special_case"]
#: How sizes, the task's existence and the decision to stop become known: in advance, by a charged mechanism, or raw.
Sizes: TypeAlias = Literal["public", "charged", "exposed"]

Code: TypeAlias = Literal[
    "task.overlap",
    "task.reads_other_data",
    "task.randomness_reused",
    "task.assignment_not_local",
    "task.empty_special_case",
    "task.sizes_exposed",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task as far as composition is concerned: who is in it, what is done to them, and the facts declared.

    `noise_stream` names the source of all noise of the task; two tasks that share one share their noise.
    """

    name: str
    scope: Scope
    event: Event
    noise_stream: str
    reads: Reads
    assignment: Assignment
    empty_task: EmptyTask
    sizes: Sizes

    def __post_init__(self) -> None:
        for argument in ("name", "noise_stream"):
            if not isinstance(getattr(self, argument), str) or not getattr(self, argument):
                raise InvalidInput(argument, getattr(self, argument), "a name")
        if not isinstance(self.scope, BitMap | FrozenBitMap):
            raise InvalidInput("scope", self.scope, "a bitmap of ordinals")
        object.__setattr__(self, "scope", FrozenBitMap(self.scope))
        event_of(self.event)
        for argument, words in (
            ("reads", Reads),
            ("assignment", Assignment),
            ("empty_task", EmptyTask),
            ("sizes", Sizes),
        ):
            if getattr(self, argument) not in get_args(words):
                raise InvalidInput(argument, getattr(self, argument), " or ".join(map(repr, get_args(words))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """A precondition that does not hold: which, for which tasks, for how many datapoints, and what to do."""

    code: Code
    message: str
    tasks: tuple[str, ...]
    datapoints: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Datapoints that are in exactly these tasks, and what they pay: one event after the other."""

    tasks: tuple[str, ...]
    scope: FrozenBitMap
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskwiseComposition:
    """Who pays what, and what stands against it.

    Without breaches every datapoint pays for one task. A breach of `task.overlap` alone is already in the parts: they
    pay for all their tasks. Any other breach means that the parts prove nothing.
    """

    parts: tuple[Part, ...]
    breaches: tuple[Breach, ...]

    @property
    def holds(self) -> bool:
        """Whether each datapoint pays for its one task, whatever the number of tasks."""
        return not self.breaches

    @property
    def prices_hold(self) -> bool:
        """Whether the parts say what their datapoints pay."""
        return all(breach.code == "task.overlap" for breach in self.breaches)


def compose_taskwise(tasks: Sequence[Task]) -> TaskwiseComposition:
    """The parts of all tasks with what they pay, and every precondition that does not hold.

    >>> facts = dict(reads="own_data_and_releases", assignment="record_local", empty_task="same_program",
    ...              sizes="public")
    >>> from accountant.events import PureDP
    >>> event = PureDP(epsilon=1.0)
    >>> tasks = [Task(name="a", scope=BitMap(range(10)), event=event, noise_stream="a/noise", **facts),
    ...          Task(name="b", scope=BitMap(range(8, 20)), event=event, noise_stream="b/noise", **facts)]
    >>> for breach in compose_taskwise(tasks).breaches:
    ...     print(breach.message)
    2 datapoints of task 'b' are also in 'a': they pay for every task they are in.
    """
    names = [task.name for task in tasks]
    if not 1 <= len(tasks) <= MAX_TASKS:
        raise InvalidInput("tasks", len(tasks), f"1 to {MAX_TASKS} tasks")
    if len(set(names)) < len(names):
        raise InvalidInput("tasks", names, "tasks of different names")
    return TaskwiseComposition(
        parts=_parts(tasks), breaches=(*_overlaps(tasks), *_shared_noise(tasks), *_declared(tasks))
    )


def _parts(tasks: Sequence[Task]) -> tuple[Part, ...]:
    scopes: list[tuple[tuple[Task, ...], Scope]] = []
    for task in tasks:
        rest, split = task.scope, []
        for members, scope in scopes:
            both, without = scope & task.scope, scope - task.scope
            rest = rest - both
            split += [(who, part) for who, part in (((*members, task), both), (members, without)) if part]
        if rest:
            split.append(((task,), rest))
        if len(split) > MAX_PARTS:
            raise InvalidInput("tasks", len(split), f"overlaps that make at most {MAX_PARTS} different parts")
        scopes = split
    return tuple(
        Part(
            tasks=tuple(task.name for task in members),
            scope=FrozenBitMap(scope),
            event=members[0].event if len(members) == 1 else Composed(events=tuple(task.event for task in members)),
        )
        for members, scope in scopes
    )


def _overlaps(tasks: Sequence[Task]) -> Iterator[Breach]:
    seen = BitMap()
    for number, task in enumerate(tasks):
        again = seen & task.scope
        if again:
            others = tuple(other.name for other in tasks[:number] if other.scope.intersect(again))
            yield Breach(
                code="task.overlap",
                message=f"{len(again):,} datapoints of task {task.name!r} are also in {_listed(others)}: "
                "they pay for every task they are in.",
                tasks=(*others, task.name),
                datapoints=len(again),
            )
        seen |= task.scope


def _shared_noise(tasks: Sequence[Task]) -> Iterator[Breach]:
    by_stream: dict[str, list[Task]] = {}
    for task in tasks:
        by_stream.setdefault(task.noise_stream, []).append(task)
    for stream, sharing in by_stream.items():
        if len(sharing) > 1:
            yield _breach(
                "task.randomness_reused",
                sharing,
                f"share the noise stream {stream!r}: the difference of two outputs is free of noise. "
                "Draw fresh noise for each.",
            )


def _declared(tasks: Sequence[Task]) -> Iterator[Breach]:
    rules: tuple[tuple[Code, str, str, str], ...] = (
        (
            "task.reads_other_data",
            "reads",
            "other_raw_data",
            "read raw data outside their task: charge those datapoints too, or read only what was released.",
        ),
        (
            "task.assignment_not_local",
            "assignment",
            "depends_on_others",
            "choose members by quotas, ranks or duplicates of others. Decide by a datapoint's own ordinal or coin.",
        ),
        (
            "task.empty_special_case",
            "empty_task",
            "special_case",
            "treat an empty task differently, which shows that it is empty. Run the same program on no data.",
        ),
        (
            "task.sizes_exposed",
            "sizes",
            "exposed",
            "show sizes, existence or a stopping decision that no mechanism covers. Fix them in public or charge them.",
        ),
    )
    for code, fact, bad, message in rules:
        found = [task for task in tasks if getattr(task, fact) == bad]
        if found:
            yield _breach(code, found, message)


def _breach(code: Code, tasks: Sequence[Task], message: str) -> Breach:
    names = tuple(task.name for task in tasks)
    return Breach(
        code=code,
        message=f"Tasks {_listed(names)} {message}",
        tasks=names,
        datapoints=len(BitMap.union(*(BitMap(task.scope) for task in tasks))),
    )


def _listed(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(repr(name) for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
