"""Attacks that see every release of a stream: the lifelong adversary.

What one datapoint goes through over its life adds up. The likelihood ratio of a whole stream is the sum of those of
its models, each given the released models that it leans on, since the noise of each is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from accountant.events import L2Laplace
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
_RECIPE: Final[Document] = {
    "shape": [1], "bias": False, "modulus": 1.0, "iterations": 1, "label_source": "prior", "label_names": ["0", "1"],
}  # fmt: skip
_OBJECTIVE: Final = Objective(features=1, labels=2, radius=1.0, modulus=1.0, iterations=1, bias=False)

SCHEDULES: Final[Mapping[str, Callable[[Document], Schedule]]] = {
    "sliding-window": lambda given: SlidingWindow(k=given["k"], w0=given["w0"]),
    "multi-resolution": lambda given: MultiResolution(pane=given["pane"], levels=given["levels"]),
    "continual-release": lambda given: ContinualRelease(pane=given["pane"], base=given["pane"] << given["doublings"]),
}


def streams(
    name: str, parameters: Document, *, canary: int, steps: Sequence[int], samples: int, noise: Noise
) -> Scores:
    """Streams in which only the datapoint with this ordinal has a row, or nobody has one.

    `steps` are those that train on it and those that they lean on; the others see null records alone, and the same in
    both streams.
    """
    schedule = SCHEDULES[name](parameters)
    chained = "previous" in mechanism(name).releases
    due = []
    for number in steps:
        given = {**parameters, "step": number}
        charges = mechanism(name).quote(given, adjacency="add_remove").charges
        due.append((schedule.step(number), given, [charge.event for charge in charges]))
    found = [
        np.array(
            [_stream(name, due, canary if there else None, canary, noise, chained=chained) for _ in range(samples)]
        )
        for there in (True, False)
    ]
    return Scores(found[0].round(_DECIMALS), found[1].round(_DECIMALS))


def _stream(
    name: str,
    due: Sequence[tuple[Step, Document, Sequence[Event]]],
    present: int | None,
    canary: int,
    noise: Noise,
    *,
    chained: bool,
) -> float:
    """The log-likelihood ratio of one stream."""
    total, before = 0.0, None
    for step, given, events in due:
        reuses = before is not None and chained
        before = Artifact(
            made=made(
                name,
                given,
                {**_RECIPE, "previous": ["rel_audit"]} if reuses else _RECIPE,
                [_rows(block, present) for block in step.trained],
                noise=noise,
                inputs={"previous.0": before} if reuses and before is not None else {},
            )
        )
        leans_on = dict(zip(step.chain, step.chain[1:], strict=False))
        for block, event in zip(step.trained, events, strict=True):
            if not block.start <= canary < block.stop:
                continue
            centre = torch.zeros(2, 1, dtype=torch.float64)
            if block in leans_on:
                centre = before.tensors[name_of(leans_on[block])].to(torch.float64)
            moved = fit(
                _OBJECTIVE, rows_of([[1.0]], ["0"]), np.zeros(1, dtype=np.int64), slots=block.slots, centre=centre
            )
            assert isinstance(event, L2Laplace)
            scale = event.scale * _OBJECTIVE.contribution(slots=block.slots, centre_norm=float(centre.norm()))
            seen = before.tensors[name_of(block)].to(torch.float64)
            total += float((seen - centre).norm() - (seen - moved).norm()) / scale
    return total


def _rows(block: Block, canary: int | None) -> Rows:
    """The rows of a block: that of the canary, or none."""
    slots = block.stop - block.start
    if canary is None or not block.start <= canary < block.stop:
        return rows_of(np.zeros((0, 1)), np.zeros(0, dtype=str), slots=slots)
    return rows_of([[1.0]], ["0"], slots=slots)


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
