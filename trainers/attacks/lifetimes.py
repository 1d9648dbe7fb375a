"""Attacks that see every release of a stream: the lifelong adversary.

What one datapoint goes through over its life adds up. The likelihood ratio of a whole stream is the sum of those of
its models, each given the released models that it leans on, since the noise of each is its own.

**The worst neighbours of a training from zero.** A datapoint moves the weights by all that the proof allows if its
gradient has the full norm at every step, and nothing draws the weights back but the penalty. At the start it has half
of it: no label is preferred yet. Somebody else must make the model wrong about it, but whoever pulls at the weights
also bends the objective, which draws them back. A row of norm s pulls by s and bends by s²: so everybody else has the
same *short* row, of the other label, and many of them over many steps make the model sure. Of what the proof allows,
92 to 95 % are left then (`tests/trainers/test_attacks.py` measures it). A training around a released model that is
already wrong moves by all of it at its first step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from accountant.events import Gaussian, L2Laplace
from accountant.streams.schedules import ContinualRelease, MultiResolution, Schedule, SlidingWindow
from trainers.attacks.likelihood import clipped_batch
from trainers.attacks.overheard import Overheard, again, sharpened
from trainers.attacks.runs import Artifact, Scores, made
from trainers.catalog import mechanism
from trainers.erm import Objective, fit, with_laplace_on_each_coordinate
from trainers.ports import Made, Rows
from trainers.window_models import name_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from accountant.events import Event
    from accountant.streams.readings import Reading
    from accountant.streams.schedules import Block, Model, Step
    from trainers.noise import Noise

Document = Mapping[str, Any]

_DECIMALS: Final = 9  # of a score: below them is the rounding of the attack's own sums
_SHORT: Final = 0.02  # norm of everybody's row
_LONG: Final = 1_000.0  # norm of the canary's, which is scaled down to 1
_MODULUS: Final = 0.003
_AT_A_TIME: Final = 1_000  # trainings of one run
_PAIR: Final[Document] = {"label_source": "prior", "label_names": ["0", "1"]}
#: Trainings from zero: so many steps that what they begin with is forgotten.
LENGTHY: Final[Document] = {"shape": [1], "bias": False, "modulus": _MODULUS, "iterations": 300, **_PAIR}
#: Trainings around a model that is wrong already: one step shows all.
BRIEF: Final[Document] = {**LENGTHY, "iterations": 1, "previous": ["rel_audit"]}

SCHEDULES: Final[Mapping[str, Callable[[Document], Schedule]]] = {
    "sliding-window": lambda given: SlidingWindow(k=given["k"], w0=given["w0"]),
    "multi-resolution": lambda given: MultiResolution(pane=given["pane"], levels=given["levels"]),
    "continual-release": lambda given: ContinualRelease(pane=given["pane"], base=given["pane"] << given["doublings"]),
}


def streams(
    name: str, parameters: Document, *, canary: int, steps: Sequence[int], samples: int, noise: Noise
) -> Scores:
    """Streams in which all models are wrong about one datapoint, the canary, which is there or is null.

    `steps` are those that train on it and those that they lean on; all others are the same with it and without it.
    Trainings from zero are run once on each side (`overheard`), and their noise is drawn for each sample; trainings
    around a noisy model are run for each sample, with its own. In a chain, the canary is alone in its pane.
    """
    life = Life.of(name, parameters, canary=canary, steps=steps)
    found = [life.ratios(samples, noise, there=there).round(_DECIMALS) for there in (True, False)]
    return Scores(found[0], found[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """The steps of a stream with their events, and who is looked for."""

    name: str
    canary: int
    pane: int
    due: Sequence[tuple[Step, Document, Sequence[Event]]]
    chained: bool
    heard: dict[tuple[int, bool], Sequence[tuple[Event, torch.Tensor]]] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, parameters: Document, *, canary: int, steps: Sequence[int]) -> Life:
        """The given steps of the stream with these parameters."""
        schedule = SCHEDULES[name](parameters)
        due = []
        for number in steps:
            given = {**parameters, "step": number}
            charges = mechanism(name).quote(given, adjacency="add_remove").charges
            due.append((schedule.step(number), given, [charge.event for charge in charges]))
        pane = parameters["w0" if name == "sliding-window" else "pane"]
        return cls(name=name, canary=canary, pane=pane, due=due, chained="previous" in mechanism(name).releases)

    def ratios(self, samples: int, noise: Noise, *, there: bool) -> NDArray[np.float64]:
        """The log-likelihood ratios of so many streams, with the canary or without it."""
        total = np.zeros(samples)
        released: dict[Block, torch.Tensor] = {}
        for number, (step, _given, events) in enumerate(self.due):
            leans_on = dict(zip(step.chain, step.chain[1:], strict=False))
            for place, block in enumerate(step.trained):
                inside = block.start <= self.canary < block.stop
                if block not in self.looked_at:
                    continue  # all that it tells of the canary, the model that it leans on tells
                if block not in leans_on:
                    without, with_it = (self.from_zero(number, there=each)[place] for each in (False, True))
                    event, exact = with_it if there else without
                    seen = again(event, exact, samples, noise).to(torch.float32)
                    moved = seen.to(torch.float64) - without[1]
                    shift = (with_it[1] - without[1]).expand_as(moved)
                else:
                    centre = released[leans_on[block]]
                    seen = self.around(number, centre, noise, there=there)
                    moved = seen.to(torch.float64) - centre.to(torch.float64)
                    event, shift = _absolute(events[place], slots=block.slots), first_step(centre, block.slots)
                released[block] = seen
                if inside:
                    total += _ratios(event, moved, shift)
        return total

    @property
    def looked_at(self) -> set[Block]:
        """The blocks with the canary in them, and those that their models lean on."""
        found: set[Block] = set()
        for step, _given, _events in self.due:
            with_it = [block for block in step.trained if block.start <= self.canary < block.stop]
            leans_on = dict(zip(step.chain, step.chain[1:], strict=False))
            found.update(with_it, (leans_on[block] for block in with_it if block in leans_on))
        return found

    def from_zero(self, number: int, *, there: bool) -> Sequence[tuple[Event, torch.Tensor]]:
        """For each model that a step trains, its noise and what that is added to; of those that lean on none."""
        if (number, there) not in self.heard:
            step, given, _ = self.due[number]
            chance = Overheard()
            rows = [self.rows(block, there=there) for block in step.trained]
            recipe = {**LENGTHY, "previous": []} if self.chained else LENGTHY
            tensors = made(self.name, given, recipe, rows, noise=chance).tensors
            found = []
            for block, (event, told) in zip(step.trained, chance.asked, strict=True):
                exact = tensors[name_of(block)].to(torch.float64) if told is None else told
                if told is None and block in self.looked_at:
                    exact = sharpened(tensors[name_of(block)], self.fitted(block, there=there), event)
                found.append((event, exact))
            self.heard[number, there] = found
        return self.heard[number, there]

    def around(self, number: int, centres: torch.Tensor, noise: Noise, *, there: bool) -> torch.Tensor:
        """The model that a step trains around another, once for each of these.

        Gaussian noise is drawn for each weight by itself, so that many such trainings are one run: each has a slot and
        an axis of its own, where nobody else has anything, and its own model to lean on there.
        """
        step, given, [event] = self.due[number]
        [block] = step.trained
        [leaned_on] = [each for each in step.chain if each != block]
        at_a_time = min(_AT_A_TIME, block.slots) if isinstance(event, Gaussian) else 1
        found = []
        for some in centres.split(at_a_time):
            count = len(some) if there else 0
            rows = Rows(
                slots=block.slots,
                unit=np.arange(count),
                x=_LONG * np.eye(count, len(some), dtype=np.float32),
                y=np.full(count, "0"),
            )
            before = Made(tensors={name_of(leaned_on): some[:, :, 0].T.contiguous()}, facts={"labels": ["0", "1"]})
            recipe, inputs = {**BRIEF, "shape": [len(some)]}, {"previous.0": Artifact(made=before)}
            run = made(self.name, given, recipe, [rows], noise=noise, inputs=inputs)
            found.append(run.tensors[name_of(block)].T)
        return torch.cat(found)[:, :, None]

    def rows(self, block: Block, *, there: bool) -> Rows:
        """The rows of a block: everybody's short one, of label 1, and the canary's long one, of label 0."""
        ordinals = np.arange(block.start, block.stop)
        if self.chained:  # nobody else in the canary's pane
            ordinals = ordinals[(ordinals // self.pane != self.canary // self.pane) | (ordinals == self.canary)]
        if not there:
            ordinals = ordinals[ordinals != self.canary]
        here = ordinals == self.canary
        return Rows(
            slots=block.stop - block.start,
            unit=ordinals - block.start,
            x=np.where(here, _LONG, _SHORT).astype(np.float32)[:, None],
            y=np.where(here, "0", "1"),
        )

    def fitted(self, block: Block, *, there: bool) -> torch.Tensor:
        """Where a training from zero ends without noise, if all is as it should be."""
        rows = self.rows(block, there=there)
        zero = torch.zeros(2, 1, dtype=torch.float64)
        return fit(objective(LENGTHY), rows, rows.y.astype(np.int64), slots=block.slots, centre=zero)


def objective(recipe: Document) -> Objective:
    """What a recipe minimises."""
    return Objective(
        features=1, labels=2, radius=1.0, modulus=recipe["modulus"], iterations=recipe["iterations"], bias=False
    )


def _absolute(event: Event, *, slots: int) -> Event:
    """The noise of a training around a model, relative to nothing: for the score, which need not be exact."""
    contribution = objective(BRIEF).contribution(slots=slots)
    if isinstance(event, Gaussian):
        return Gaussian(noise_multiplier=event.noise_multiplier * contribution)
    assert isinstance(event, L2Laplace)
    return L2Laplace(scale=event.scale * contribution)


def first_step(centres: torch.Tensor, slots: int) -> torch.Tensor:
    """How far one step moves each of these models if the canary is there, alone in its block."""
    wide = centres.to(torch.float64)
    wrong = torch.sigmoid(wide[:, 1, 0] - wide[:, 0, 0])
    length = objective(BRIEF).step_size / slots * wrong
    return torch.stack([length, -length], dim=1)[:, :, None]


def _ratios(event: Event, seen: torch.Tensor, moved: torch.Tensor) -> NDArray[np.float64]:
    """ln of the density of what was seen, if the datapoint moved it so far, relative to that of noise alone."""
    flat, shift = seen.flatten(1), moved.flatten(1)
    match event:
        case L2Laplace():
            found = (flat.norm(dim=1) - (flat - shift).norm(dim=1)) / event.scale
        case Gaussian():
            found = ((flat * shift).sum(dim=1) - shift.square().sum(dim=1) / 2) / event.noise_multiplier**2
        case _:
            raise AssertionError(f"no density for {event}")
    ratios: NDArray[np.float64] = found.numpy()
    return ratios


def printed_noise(life: Mapping[Model, int], reading: Reading, epsilon: float, samples: int, noise: Noise) -> Scores:
    """The noise of the paper on every model of a life, which moves by the paper's own sensitivity, in one coordinate.

    Training is left out: at 2L/(λ n), the shift of a replaced datapoint that the paper states, what is left is the sum
    over a life. The noise is drawn by the code of the `as-published` mechanisms; N coordinates of a vector are N runs.
    In more than one coordinate it would cost √d times that (`output-perturbation-as-published`).
    """
    found = [np.zeros(samples), np.zeros(samples)]
    for model, times in life.items():
        share = float(reading.prices.of(model)) * epsilon  # of ε: the shift, in units of the noise
        for _ in range(times):
            for side, moved in ((0, 1.0), (1, 0.0)):
                exact = torch.full((samples,), moved, dtype=torch.float64)
                seen = with_laplace_on_each_coordinate(exact, 1 / share, noise=noise).numpy()
                found[side] += share * (np.abs(seen) - np.abs(seen - 1))
    return Scores(found[0].round(_DECIMALS), found[1].round(_DECIMALS))


def secret_blocks(*, noise_multiplier: float, tasks: int, steps: int, samples: int, noise: Noise) -> Scores:
    """DP-CL as published: every noisy reference gradient that the first memory may have been drawn for.

    These gradients are what Lemma 2 of the paper counts; its adversary sees them. The memory's only datapoint has label
    0 or label 1, and turns the clipped gradient round. In task t it is drawn with probability 1/(t − 1) at each step,
    in secret; other memories add nothing along its gradient. What a batch's gradient is, is asked of the mechanism's
    own code; then the noise is drawn for N runs at once, by the code that the mechanism draws it with.
    """
    sides = [clipped_batch([[1_000.0]], [label], noise) for label in (0, 1)]
    found = []
    for side in sides:
        total = np.zeros(samples)
        for task in range(2, tasks + 1):
            rate = 1 / (task - 1)
            for _ in range(steps):
                drawn = np.zeros(samples)
                drawn[noise.chosen(samples, rate)] = side
                seen = noise.noisy(torch.from_numpy(drawn), noise_multiplier).numpy()
                total += _mixed(seen, sides[0], rate, noise_multiplier) - _mixed(seen, sides[1], rate, noise_multiplier)
        found.append(total.round(_DECIMALS))
    return Scores(found[0], found[1])


def _mixed(seen: NDArray[np.float64], side: float, rate: float, deviation: float) -> NDArray[np.float64]:
    """ln of the density of a shift that is there with a probability, relative to none."""
    ratio: NDArray[np.float64] = np.log1p(rate * np.expm1((seen * side - side * side / 2) / deviation**2))
    return ratio
