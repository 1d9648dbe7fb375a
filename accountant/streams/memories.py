"""Episodic memories: what a datapoint pays over all later tasks, by its role and by what is drawn.

A-GEM with noise keeps a **block** of every task as memory and uses it while later tasks are learned. "Continual
Learning with Differential Privacy" (Desai, Lai, Phan & Thai 2021) draws one block uniformly at each step and claims a
price that does not depend on the number of tasks (Lemma 2). It does: a block can be drawn in every later task, and is,
I·H(T−1) times on average for the first. Charged here is every step in which a datapoint can have been used.

Roles are decided by a coin per datapoint (`role`), so that a datapoint is in exactly one of the parts `train` and
`memory` of its task, and adding it moves no other. A quota ("50 per class") is not such a rule: whoever enters pushes
someone else out. Per part, the accounting is that of "Privacy Leakage via Output Label Space and Differentially Private
Continual Learning", Appendix D.4: clip each example, add noise to the batch sum, sample each datapoint independently,
and treat the projection as post-processing. A part's price is what its members pay: parts are never added up.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal, TypeAlias, get_args

from accountant.errors import InvalidInput
from accountant.events import Composed, Event, Gaussian, PoissonSampled, Repeated
from accountant.units import POSITIVE, PROBABILITY, exact, real, whole

Role: TypeAlias = Literal["train", "memory"]
#: `one_block`: each step draws one live block uniformly, as a public coin, and samples in it.
#: `union`: each step samples from all live blocks together, with the same expected sample.
#: `every_block`: each step samples from each live block.
Use: TypeAlias = Literal["one_block", "union", "every_block"]

MAX_TASKS: Final = 10_000
MAX_STEPS: Final = 10**6
MIN_KEY_BYTES: Final = 16


def role(record_id: bytes, *, key: bytes, rate: float) -> Role:
    """The part of its task that a datapoint is in: `memory` with probability `rate`, by a keyed hash of its id.

    It depends on nothing but the id and the key, so it is the same for ever and no other datapoint can change it. The
    key is drawn once, before any data is seen.

    >>> role(b"record 17", key=bytes(16), rate=0.0), role(b"record 17", key=bytes(16), rate=1.0)
    ('train', 'memory')
    """
    if not isinstance(record_id, bytes):
        raise InvalidInput("record_id", record_id, "bytes")
    threshold = exact(real("rate", rate, PROBABILITY)) * 2**256
    number = int.from_bytes(hmac.digest(_key("key", key), record_id, hashlib.sha256))
    return "memory" if number < threshold else "train"


def harmonic(number: int) -> Fraction:
    """H(n) = 1 + 1/2 + … + 1/n.

    >>> round(float(harmonic(16)), 3)
    3.381
    """
    return sum(
        (Fraction(1, each) for each in range(1, whole("number", number, least=0, most=MAX_TASKS) + 1)), Fraction()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCharge:
    """What one task's training does to a part of a task: of its own (`train`) or of an earlier one (`memory`)."""

    task: int
    part: Role
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodicMemory:
    """How tasks 1, 2, 3, … are trained, each in `steps` steps, with blocks of earlier tasks as memory.

    All numbers are public and fixed in advance. `memory_probability` is the rate within one block; blocks have equal
    numbers of slots, so over a union of n live blocks the rate of the same expected sample is 1/n of it. A block is
    retired after it has served `keep` later tasks (None: never); from then on it is not charged.
    """

    steps: int
    train_probability: float
    train_noise_multiplier: float
    memory_probability: float
    memory_noise_multiplier: float
    use: Use
    keep: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", whole("steps", self.steps, least=1, most=MAX_STEPS))
        for argument, allowed in (
            ("train_probability", PROBABILITY),
            ("train_noise_multiplier", POSITIVE),
            ("memory_probability", PROBABILITY),
            ("memory_noise_multiplier", POSITIVE),
        ):
            object.__setattr__(self, argument, real(argument, getattr(self, argument), allowed))
        if self.use not in get_args(Use):
            raise InvalidInput("use", self.use, " or ".join(map(repr, get_args(Use))))
        if self.keep is not None:
            object.__setattr__(self, "keep", whole("keep", self.keep, least=1, most=MAX_TASKS))

    def live(self, task: int) -> range:
        """The blocks that serve as memory while `task` is learned."""
        task = _task("task", task)
        return range(1 if self.keep is None else max(1, task - self.keep), task)

    def draws(self, *, seed: bytes, task: int) -> tuple[int, ...]:
        """One live block for each step of a task, uniform and independent, derived from a public seed.

        The seed is fixed before any data is seen and stored with the release, so that the draws are public and each is
        charged to the block it names. Secret draws would not be priced at the rate q divided by the number of blocks:
        a datapoint's block is drawn as a whole, and only δ shrinks with the chance of that, not ε.
        """
        seed, live = _key("seed", seed), self.live(task)
        if not live:
            return ()
        return tuple(live[_uniform(seed, f"{task}/{step}", len(live))] for step in range(self.steps))

    def charges(self, task: int, *, draws: Sequence[int] = ()) -> tuple[PartCharge, ...]:
        """What learning `task` charges, and to which part of which task. `draws` is for `one_block` alone."""
        live, times = self.live(task), self._times(task, draws)
        charged = [PartCharge(task=task, part="train", event=self._train)]
        charged += [
            PartCharge(task=block, part="memory", event=_repeated(times[block], self._memory_step(task)))
            for block in live
            if times[block]
        ]
        return tuple(charged)

    def life(self, task: int, part: Role, *, tasks: int, draws: Sequence[Sequence[int]] = ()) -> Event:
        """All that a datapoint of this part pays while tasks 1 to `tasks` are learned.

        For `one_block`, `draws[t − 1]` are the draws of task t (none for task 1). Equal steps of several tasks are one
        event.
        """
        task, tasks = _task("task", task), _task("tasks", tasks)
        if task > tasks:
            raise InvalidInput("task", task, f"one of the {tasks} tasks")
        if part == "train":
            return self._train
        if part != "memory":
            raise InvalidInput("part", part, "'train' or 'memory'")
        if self.use == "one_block" and len(draws) != tasks:
            raise InvalidInput("draws", len(draws), f"draws for each of the {tasks} tasks (none for the first)")
        steps: Counter[Event] = Counter()
        for later in range(task + 1, tasks + 1):
            times = self._times(later, draws[later - 1] if self.use == "one_block" else ())
            if times[task]:
                steps[self._memory_step(later)] += times[task]
        return Composed(events=tuple(_repeated(times, step) for step, times in steps.items()))

    def expected_draws(self, block: int, *, tasks: int) -> Fraction:
        """How often a block is drawn on average while tasks 1 to `tasks` are learned, one draw a step.

        Without retirement that is I·(H(T−1) − H(i−1)) for block i: for the first it grows like ln T, for ever.

        >>> memory = EpisodicMemory(steps=301, train_probability=0.002, train_noise_multiplier=1.0,
        ...                         memory_probability=0.01, memory_noise_multiplier=1.0, use="one_block")
        >>> round(float(memory.expected_draws(1, tasks=17)), 1)
        1017.6
        """
        block, tasks = _task("block", block), _task("tasks", tasks)
        last = tasks if self.keep is None else min(tasks, block + self.keep)
        shares = (Fraction(1, len(self.live(task))) for task in range(block + 1, last + 1))
        return self.steps * sum(shares, Fraction())

    def most_draws(self, block: int, *, tasks: int) -> int:
        """How often a block is drawn if every coin falls on it."""
        block, tasks = _task("block", block), _task("tasks", tasks)
        served = max(0, tasks - block)
        return self.steps * (served if self.keep is None else min(served, self.keep))

    @property
    def _train(self) -> Event:
        step = _sampled(self.train_probability, self.train_noise_multiplier)
        return _repeated(self.steps, step)

    def _memory_step(self, task: int) -> Event:
        blocks = len(self.live(task)) if self.use == "union" else 1
        return _sampled(self.memory_probability / blocks, self.memory_noise_multiplier)

    def _times(self, task: int, draws: Sequence[int]) -> Counter[int]:
        """In how many steps of a task each live block can be used."""
        live = self.live(task)
        if self.use != "one_block":
            if draws:
                raise InvalidInput("draws", draws, f"no draws: the use is {self.use!r}")
            return Counter(dict.fromkeys(live, self.steps))
        expected = self.steps if live else 0
        if len(draws) != expected:
            raise InvalidInput("draws", len(draws), f"{expected} draws for task {task}, one a step")
        for block in draws:
            if isinstance(block, bool) or not isinstance(block, int) or block not in live:
                raise InvalidInput("draws", block, f"a block that is live in task {task}: {live.start} to {task - 1}")
        return Counter(draws)


def _sampled(sampling_probability: float, noise_multiplier: float) -> Event:
    return PoissonSampled(sampling_probability=sampling_probability, event=Gaussian(noise_multiplier=noise_multiplier))


def _repeated(times: int, event: Event) -> Event:
    return Repeated(times=times, event=event)


def _task(argument: str, number: object) -> int:
    return whole(argument, number, least=1, most=MAX_TASKS)


def _key(argument: str, value: object) -> bytes:
    if isinstance(value, bytes) and len(value) >= MIN_KEY_BYTES:
        return value
    raise InvalidInput(
        argument, value if not isinstance(value, bytes) else len(value), f"{MIN_KEY_BYTES} or more bytes"
    )


def _uniform(seed: bytes, label: str, below: int) -> int:
    """A number in [0, below), uniform to within 2^-240: the remainder of 256 bits by a number of at most 14."""
    return int.from_bytes(hmac.digest(seed, f"stint/draw/{label}".encode(), hashlib.sha256)) % below
