"""Attacks that see every release of a stream: the lifelong adversary.

What one datapoint goes through over its life adds up. The likelihood ratio of a whole stream is the sum of those of
its models, each given the released models that it leans on, since the noise of each is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from accountant.events import Gaussian, L2Laplace
from accountant.streams.schedules import ContinualRelease, MultiResolution, Schedule, SlidingWindow
from trainers.attacks.likelihood import clipped_batch
from trainers.attacks.runs import Artifact, Scores, made, rows_of
from trainers.catalog import mechanism
from trainers.erm import Objective, fit, with_laplace_on_each_coordinate
from trainers.window_models import name_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from accountant.events import Event
    from accountant.streams.readings import Reading
    from accountant.streams.schedules import Block, Model, Step
    from trainers.noise import Noise
    from trainers.ports import Rows

Document = Mapping[str, Any]

_DECIMALS: Final = 9  # of a score: below them is the rounding of the attack's own sums
#: A few long steps: everybody but the canary soon makes the model sure that the canary's label is the other one.
_RECIPE: Final[Document] = {
    "shape": [1], "bias": False, "modulus": 0.05, "iterations": 3, "label_source": "prior", "label_names": ["0", "1"],
}  # fmt: skip
_OBJECTIVE: Final = Objective(features=1, labels=2, radius=1.0, modulus=0.05, iterations=3, bias=False)

SCHEDULES: Final[Mapping[str, Callable[[Document], Schedule]]] = {
    "sliding-window": lambda given: SlidingWindow(k=given["k"], w0=given["w0"]),
    "multi-resolution": lambda given: MultiResolution(pane=given["pane"], levels=given["levels"]),
    "continual-release": lambda given: ContinualRelease(pane=given["pane"], base=given["pane"] << given["doublings"]),
}


def streams(
    name: str, parameters: Document, *, canary: int, steps: Sequence[int], samples: int, noise: Noise
) -> Scores:
    """Streams in which everybody has the same row of label 1, but the canary, which has it with label 0 or is null.

    So the model is as wrong as it gets about the canary, whose gradient is nearly as long as the proof allows. `steps`
    are those that train on it and those that they lean on; all others are the same with it and without it.
    """
    schedule = SCHEDULES[name](parameters)
    chained = "previous" in mechanism(name).releases
    due = []
    for number in steps:
        given = {**parameters, "step": number}
        charges = mechanism(name).quote(given, adjacency="add_remove").charges
        due.append((schedule.step(number), given, [charge.event for charge in charges]))
    stream = _Stream(name=name, canary=canary, due=due, chained=chained)
    found = [np.array([stream.ratio(noise, there=there) for _ in range(samples)]) for there in (True, False)]
    return Scores(found[0].round(_DECIMALS), found[1].round(_DECIMALS))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stream:
    """The steps of a stream with their events, and who is looked for."""

    name: str
    canary: int
    due: Sequence[tuple[Step, Document, Sequence[Event]]]
    chained: bool

    def ratio(self, noise: Noise, *, there: bool) -> float:
        """The log-likelihood ratio of one stream, with the canary or without it."""
        total, before = 0.0, None
        for step, given, events in self.due:
            inputs: dict[str, Artifact] = {"previous.0": before} if before is not None and self.chained else {}
            recipe = {**_RECIPE, "previous": ["rel_audit"]} if inputs else _RECIPE
            rows = [self.rows(block, there=there) for block in step.trained]
            before = Artifact(made=made(self.name, given, recipe, rows, noise=noise, inputs=inputs))
            leans_on = dict(zip(step.chain, step.chain[1:], strict=False))
            for block, event in zip(step.trained, events, strict=True):
                if block.start <= self.canary < block.stop:
                    centre = torch.zeros(2, 1, dtype=torch.float64)
                    if block in leans_on:
                        centre = before.tensors[name_of(leans_on[block])].to(torch.float64)
                    contribution = _OBJECTIVE.contribution(slots=block.slots, centre_norm=float(centre.norm()))
                    without, with_it = (self.fitted(block, centre, there=each) for each in (False, True))
                    seen = before.tensors[name_of(block)].to(torch.float64)
                    total += _ratio(event, contribution, seen - without, with_it - without)
        return total

    def rows(self, block: Block, *, there: bool) -> Rows:
        """The rows of a block."""
        ordinals = np.arange(block.start, block.stop)
        y = np.where(ordinals == self.canary, "0" if there else "", "1")  # a label that nothing knows: null
        return rows_of(np.ones((len(y), 1)), y)

    def fitted(self, block: Block, centre: torch.Tensor, *, there: bool) -> torch.Tensor:
        """Where the weights would be without noise."""
        rows = self.rows(block, there=there)
        labels = np.array([{"0": 0, "1": 1}.get(label, -1) for label in rows.y.tolist()], dtype=np.int64)
        return fit(_OBJECTIVE, rows, labels, slots=block.slots, centre=centre)


def _ratio(event: Event, contribution: float, seen: torch.Tensor, moved: torch.Tensor) -> float:
    """ln of the density of what was seen, if the datapoint moved it so far, relative to that of noise alone."""
    match event:
        case L2Laplace():
            return float(seen.norm() - (seen - moved).norm()) / (event.scale * contribution)
        case Gaussian():
            return float((seen * moved).sum() - moved.square().sum() / 2) / (event.noise_multiplier * contribution) ** 2
        case _:
            raise AssertionError(f"no density for {event}")


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
