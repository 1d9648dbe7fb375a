"""Which block of a stream is trained when, which chain of models is released, and what that makes each datapoint enter.

The schedules of "Continual and Sliding Window Release for Private Empirical Risk Minimization" (Watson, Ghosh,
Rozemberczki & Sarkar 2022, arXiv 2203.03594): Algorithm 2 (`MultiResolution`), Algorithm 4 (`ContinualRelease`) and
Algorithm 5 (`SlidingWindow`, here for every window of 2^k − 1 panes). A **pane** is the number of datapoints by which a
stream advances in one step. All ranges are half-open ranges of ordinals, so that a datapoint on a boundary is in
exactly one of two neighbouring blocks; with the inclusive ranges of the paper it is in both, and pays for both.

A schedule depends on ordinals alone, which are public, so neither the blocks nor the steps say anything about data. Its
values say who is touched how often; `accountant.streams.allocations` says how much noise that takes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeAlias

from accountant.errors import InvalidInput
from accountant.units import whole

Kind: TypeAlias = Literal["base", "update"]
Startup: TypeAlias = Literal["full", "partial"]

MAX_K: Final = 24  # a window of 2^24 − 1 panes
MAX_LEVELS: Final = 33  # block sizes of 1 to 2^32 panes: no population holds a larger block
MAX_PANE: Final = 2**32
MAX_STEPS: Final = 10**7
USUAL_STEPS: Final = 100_000


class Model(NamedTuple):
    """What a block trains: its kind, and its level. A block of level i has 2^i times the smallest size of its kind."""

    kind: Kind
    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The datapoints [start, stop) that one noisy model is trained on.

    `slots` is what the average divides by. It is stop − start, except where a block reaches back before the stream
    began: the missing datapoints are null records, and the size stays.
    """

    kind: Kind
    level: int
    start: int
    stop: int
    slots: int

    @property
    def model(self) -> Model:
        """Its kind and level, by which noise is allocated."""
        return Model(self.kind, self.level)

    def __str__(self) -> str:
        return f"f[{self.start}:{self.stop})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What happens when one more pane has arrived.

    `trained` are new noisy models, in the order of training: each is one charge on the datapoints of its block. `chain`
    is what is released: its first model, which is regularised by the second, and so on. Models of a chain that are not
    in `trained` are reused as they were released, which is post-processing. Where models stand alone (multi-resolution)
    there is no chain, and all of `trained` is released.
    """

    number: int
    start: int
    stop: int
    trained: tuple[Block, ...]
    chain: tuple[Block, ...]

    def __str__(self) -> str:
        return " <- ".join(map(str, self.chain)) or ", ".join(map(str, self.trained))


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """The datapoints [start, stop) and how often each of them enters which model."""

    start: int
    stop: int
    models: Mapping[Model, int]


class Schedule(ABC):
    """Blocks over time. Steps count from 0, the first at which something is released."""

    __slots__ = ()

    @abstractmethod
    def step(self, number: int) -> Step:
        """Step `number`, without computing those before it."""

    @abstractmethod
    def life(self, ordinal: int, *, steps: int) -> Counter[Model]:
        """How often a datapoint enters which model in the first `steps` steps, in closed form."""

    @abstractmethod
    def size(self, model: Model) -> int:
        """The slots of a block that trains this model."""

    @property
    @abstractmethod
    def models(self) -> tuple[Model, ...] | None:
        """All models that a life enters, once each; None if there is no end of them."""

    def steps(self, count: int = USUAL_STEPS) -> Iterator[Step]:
        """The first `count` steps, computed as they are asked for."""
        return map(self.step, range(steps_of(count)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindow(Schedule):
    """A model of exactly the last (2^k − 1)·w0 datapoints, renewed every w0; a datapoint enters each level once.

    The window is a base block of 2^(k−1) panes and update blocks of 2^(k−2), …, 2, 1 panes. With j panes arrived since
    the last refresh, level i is the next block of **new** panes after the base if bit i of j is 1, and the next block
    of **old** panes before it otherwise. One more pane changes exactly the levels up to the number of trailing zeros of
    j + 1; after 2^(k−1) panes everything is trained afresh around a new base.

    Why once per level: a pane that arrives as number x of a cycle is in a new block of level i iff bit i of x is 0, in
    the next base once, and in the cycle after that in an old block of level i iff bit i of x is 1.

    `startup` says what happens before a whole window has arrived: nothing (`full`), or the same schedule over a stream
    that was preceded by null records (`partial`). Source: Algorithm 5 and Example 1 (w = 7); the general chain is ours.

    >>> for step in SlidingWindow(k=3, w0=1).steps(5):
    ...     print(step)
    f[0:1) <- f[1:3) <- f[3:7)
    f[7:8) <- f[1:3) <- f[3:7)
    f[2:3) <- f[7:9) <- f[3:7)
    f[9:10) <- f[7:9) <- f[3:7)
    f[4:5) <- f[5:7) <- f[7:11)
    """

    k: int
    w0: int
    startup: Startup = "full"

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", whole("k", self.k, least=1, most=MAX_K))
        object.__setattr__(self, "w0", whole("w0", self.w0, least=1, most=MAX_PANE))
        if self.startup not in ("full", "partial"):
            raise InvalidInput("startup", self.startup, "'full' or 'partial'")

    @property
    def panes(self) -> int:
        """Panes in a window."""
        return (1 << self.k) - 1

    @property
    def models(self) -> tuple[Model, ...]:
        return tuple(self._model(level) for level in range(self.k))

    def size(self, model: Model) -> int:
        if model not in self.models:
            raise InvalidInput("model", model, f"a model of this schedule: levels 0 to {self.k - 1}, the last a base")
        return self.w0 << model.level

    def step(self, number: int) -> Step:
        number = whole("step", number, least=0, most=MAX_STEPS)
        newest = number + self._first_newest
        cycle, arrived = divmod(newest - (self.panes - 1), self._cycle)
        chain = tuple(self._chain(cycle * self._cycle, arrived))
        changed = self.k - 1 if arrived == 0 else trailing_zeros(arrived)
        return Step(
            number=number,
            start=max(0, newest - self.panes + 1) * self.w0,
            stop=(newest + 1) * self.w0,
            trained=tuple(block for block in reversed(chain) if block.level <= changed),
            chain=chain,
        )

    def life(self, ordinal: int, *, steps: int) -> Counter[Model]:
        ordinal, steps = whole("ordinal", ordinal, least=0, most=MAX_PANE**2), steps_of(steps)
        cycle, x = divmod(ordinal // self.w0 - self.panes, self._cycle)
        # Times are the newest pane when a block is trained: new blocks before the refresh that puts x into the base,
        # old blocks from the refresh after that.
        refresh = (cycle + 1) * self._cycle + self.panes - 1
        trained = {self.k - 1: refresh}
        for level in range(self.k - 1):
            if x >> level & 1:
                trained[level] = refresh + self._cycle + (x >> level + 1 << level + 1)
            else:
                trained[level] = refresh - self._cycle + ((x >> level) + 1 << level)
        first, last = self._first_newest, self._first_newest + steps - 1
        return Counter(self._model(level) for level, newest in trained.items() if first <= newest <= last)

    @property
    def _cycle(self) -> int:
        return 1 << self.k - 1  # panes from one refresh to the next

    @property
    def _first_newest(self) -> int:
        return self.panes - 1 if self.startup == "full" else 0

    def _model(self, level: int) -> Model:
        return Model("base" if level == self.k - 1 else "update", level)

    def _chain(self, window_start: int, arrived: int) -> Iterator[Block]:
        """From level 0 to the base. Blocks wholly before the stream began hold nobody and are left out."""
        base = window_start + self._cycle - 1
        new, old = base + self._cycle, base  # new panes from `new` on, old ones before `old`
        panes = [(base, new)]
        for level in range(self.k - 2, -1, -1):
            length = 1 << level
            if arrived >> level & 1:
                panes.append((new, new + length))
                new += length
            else:
                panes.append((old - length, old))
                old -= length
        for level, (start, stop) in enumerate(reversed(panes)):
            if stop > 0:
                kind = self._model(level).kind
                slots = self.w0 << level
                yield Block(kind=kind, level=level, start=max(0, start) * self.w0, stop=stop * self.w0, slots=slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiResolution(Schedule):
    """At every multiple t of 2^i·pane a model of the last 2^i·pane datapoints, for every level i < `levels`.

    A datapoint enters exactly one block of each level. Source: Algorithm 2. `levels` None is the paper's: no end.
    """

    pane: int
    levels: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "pane", whole("pane", self.pane, least=1, most=MAX_PANE))
        if self.levels is not None:
            object.__setattr__(self, "levels", whole("levels", self.levels, least=1, most=MAX_LEVELS))

    @property
    def models(self) -> tuple[Model, ...] | None:
        return None if self.levels is None else tuple(Model("base", level) for level in range(self.levels))

    def size(self, model: Model) -> int:
        most = MAX_LEVELS if self.levels is None else self.levels
        if model.kind != "base" or not 0 <= model.level < most:
            raise InvalidInput("model", model, f"a model of this schedule: a base of level 0 to {most - 1}")
        return self.pane << model.level

    def step(self, number: int) -> Step:
        number = whole("step", number, least=0, most=MAX_STEPS)
        panes, stop = number + 1, (number + 1) * self.pane
        levels = range(min(trailing_zeros(panes) + 1, self.levels or MAX_LEVELS))
        trained = tuple(
            Block(kind="base", level=level, start=stop - (self.pane << level), stop=stop, slots=self.pane << level)
            for level in levels
        )
        return Step(number=number, start=trained[-1].start, stop=stop, trained=trained, chain=())

    def life(self, ordinal: int, *, steps: int) -> Counter[Model]:
        pane, steps = whole("ordinal", ordinal, least=0, most=MAX_PANE**2) // self.pane, steps_of(steps)
        levels = range(min(steps.bit_length(), self.levels or MAX_LEVELS))
        return Counter(Model("base", level) for level in levels if (pane >> level) + 1 << level <= steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinualRelease(Schedule):
    """A model of everything so far, renewed every `pane`: bases at base·2^i, and updates between them.

    At t = base·2^i a base is trained on [0, t). At g + n·pane after the last base at g, an update is trained on
    [g, t) against that base if n is a power of two, and otherwise on the last pane alone against the last such update.
    Source: Algorithm 4, which starts with the first base. `base` is `pane` times a power of two. Which released model
    an update leans on costs nothing, so the paper's "current model" may be read in any way.
    """

    pane: int
    base: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "pane", whole("pane", self.pane, least=1, most=MAX_PANE))
        object.__setattr__(self, "base", whole("base", self.base, least=1, most=MAX_PANE**2))
        ratio, rest = divmod(self.base, self.pane)
        if rest or ratio & ratio - 1 or not 1 <= ratio <= MAX_PANE:
            raise InvalidInput("base", self.base, f"{self.pane} (the pane) times 1, 2, 4, … or 2^32")

    @property
    def panes(self) -> int:
        """Panes in the first base."""
        return self.base // self.pane

    @property
    def models(self) -> None:
        """No end of them: the stream doubles for ever."""
        return

    def size(self, model: Model) -> int:
        if not 0 <= model.level < MAX_LEVELS:
            raise InvalidInput("model", model, f"levels 0 to {MAX_LEVELS - 1}")
        return (self.base if model.kind == "base" else self.pane) << model.level

    def step(self, number: int) -> Step:
        panes = whole("step", number, least=0, most=MAX_STEPS) + self.panes
        level = (panes // self.panes).bit_length() - 1
        last_base = self.panes << level
        chain = [self._block("base", level, 0, last_base)]
        since = panes - last_base
        if since:
            doubling = since.bit_length() - 1
            chain.append(self._block("update", doubling, last_base, last_base + (1 << doubling)))
            if since != 1 << doubling:
                chain.append(self._block("update", 0, panes - 1, panes))
        return Step(number=number, start=0, stop=panes * self.pane, trained=(chain[-1],), chain=tuple(reversed(chain)))

    def life(self, ordinal: int, *, steps: int) -> Counter[Model]:
        pane, steps = whole("ordinal", ordinal, least=0, most=MAX_PANE**2) // self.pane, steps_of(steps)
        last = self.panes + steps - 1 if steps else 0  # panes that have arrived at the last step
        models: Counter[Model] = Counter()
        phase = (pane // self.panes).bit_length() - 1  # −1 before the first base
        for level in range(phase + 1, MAX_LEVELS):
            if self.panes << level <= last:
                models[Model("base", level)] += 1
        if phase >= 0:
            start = self.panes << phase
            place = pane - start + 1  # from 1
            if place & place - 1 and pane < last:
                models[Model("update", 0)] += 1
            for doubling in range((place - 1).bit_length(), start.bit_length() - 1):
                if start + (1 << doubling) <= last:
                    models[Model("update", doubling)] += 1
        return models

    def _block(self, kind: Kind, level: int, start: int, stop: int) -> Block:
        return Block(
            kind=kind, level=level, start=start * self.pane, stop=stop * self.pane, slots=(stop - start) * self.pane
        )


def sliding_window_schedule(*, k: int, w0: int, steps: int = USUAL_STEPS, startup: Startup = "full") -> Iterator[Step]:
    """The steps of a window of (2^k − 1)·w0 datapoints: per step, the blocks trained and the chain released.

    >>> step = next(sliding_window_schedule(k=2, w0=100))
    >>> (step.start, step.stop), [str(block) for block in step.trained], str(step)
    ((0, 300), ['f[100:300)', 'f[0:100)'], 'f[0:100) <- f[100:300)')
    """
    return SlidingWindow(k=k, w0=w0, startup=startup).steps(steps)


def lives(steps: Iterable[Step], *, reach_back: int = 0) -> tuple[Life, ...]:
    """How often each datapoint enters which model, by simulation: datapoints that agree are one range.

    `reach_back` lets every block begin so many datapoints earlier, as inclusive ranges do.
    """
    changes: dict[int, Counter[Model]] = {}
    for step in steps:
        for block in step.trained:
            changes.setdefault(max(0, block.start - reach_back), Counter())[block.model] += 1
            changes.setdefault(block.stop, Counter())[block.model] -= 1
    found: list[Life] = []
    current: Counter[Model] = Counter()
    ordinals = sorted(changes)
    for start, stop in pairwise(ordinals):
        for model, change in changes[start].items():
            current[model] += change
        models = {model: times for model, times in current.items() if times}
        if found and found[-1].stop == start and found[-1].models == models:
            found[-1] = Life(start=found[-1].start, stop=stop, models=found[-1].models)
        elif models:
            found.append(Life(start=start, stop=stop, models=MappingProxyType(models)))
    return tuple(found)


def trailing_zeros(number: int) -> int:
    """How often 2 divides a positive number."""
    return (number & -number).bit_length() - 1


def steps_of(count: object) -> int:
    """`count` as a number of steps."""
    return whole("steps", count, least=0, most=MAX_STEPS)
