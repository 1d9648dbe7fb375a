"""A step of private training beside one that is not private, and beside Opacus, in one run and with one thread each.

Every step gathers its batch from the same rows, moves the weights by plain gradient descent, and is whole: ours draws
its Poisson sample and its noise from the stream cipher. Both are drawn by a second thread meanwhile, which needs a
second core; the column "one core" has them drawn in between instead. "All cores" lets torch have every core, as a
worker does by default: both are drawn in between, and it is a multiple of the step that is not private on all cores.

Then accuracy and forgetting on streams of real data (`benchmarks.accuracy`, `benchmarks.shapes`), some minutes, label
release and prototypes; each is also had alone: `bench trainers steps`, `accuracy`, `shapes`, `labels`, `prototypes`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import accuracy, labels, prototypes, shapes
from benchmarks.measure import at_most, duration, medians, times
from trainers.ahead import cores
from trainers.models import build
from trainers.noise import Noise
from trainers.ports import Rows
from trainers.private_sgd import Source, train

ROWS = 1 << 14
BATCHES = (256, 1024)
REPEATS = 5
HOOKS_STEPS = 1  # of a turn; others take those of their case
RATE = 1e-3
COLUMNS = "{:<24}{:>6}{:>14}{:>10}{:>12}{:>12}{:>12}{:>12}"
HEADINGS = ("model", "batch", "not private", "ours", "one core", "all cores", "ghost", "hooks")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A network and how much longer its step may take than one that is not private."""

    name: str
    recipe: dict[str, Any]
    outputs: int
    target: float
    steps: int  # of a turn: so many that what is done once for a training hardly counts

    def network(self) -> nn.Module:
        """With weights that are not zero, so that all of it has gradients."""
        module = build(self.recipe, outputs=self.outputs)
        nn.init.normal_(list(module.children())[-1].weight, std=0.01)
        return module


CASES = (
    Case(
        name="linear 768-100",
        recipe={"model": "linear", "hidden": [], "shape": [768]},
        outputs=100,
        target=1.15,
        steps=96,
    ),
    Case(
        name="MLP 784-256-256-10",
        recipe={"model": "mlp", "hidden": [256, 256], "shape": [784]},
        outputs=10,
        target=1.4,
        steps=96,
    ),
    Case(
        name="CNN 16-32, 28 x 28",
        recipe={"model": "cnn", "hidden": [16, 32], "shape": [1, 28, 28]},
        outputs=10,
        target=1.6,
        steps=24,
    ),
)


def main() -> None:
    """Print times of steps, then accuracies, label release and prototypes; or those that are named."""
    torch.set_num_threads(1)
    parts = {
        "steps": step_times,
        "accuracy": accuracy.report,
        "shapes": shapes.report,
        "labels": labels.main,
        "prototypes": prototypes.main,
    }
    chosen = sys.argv[1:] or list(parts)
    if not set(chosen) <= set(parts):
        sys.exit(f"There are these parts: {', '.join(parts)}.")
    for name in chosen:
        parts[name]()


def step_times() -> None:
    """Print times of a step as multiples of the step that is not private."""
    print(f"One step, as a multiple of the step that is not private; median of {REPEATS} turns of many steps")
    print(COLUMNS.format(*HEADINGS))
    verdicts = []
    for case in CASES:
        for batch in BATCHES:
            turn = medians(turns(case, batch), repeats=REPEATS)
            taken = {name: seconds / (HOOKS_STEPS if name == "hooks" else case.steps) for name, seconds in turn.items()}
            plain = taken["not private"]
            taken["all cores"] *= plain / taken["not private, all cores"]
            ratios = [times(taken[name] / plain) for name in HEADINGS[3:]]
            print(COLUMNS.format(case.name, batch, duration(plain), *ratios), flush=True)
            verdicts.append(at_most(f"{case.name} at {batch}", taken["ours"] / plain, case.target))
    print(*verdicts, sep="\n")


def turns(case: Case, batch: int) -> dict[str, Callable[[], None]]:
    """What is compared, by name: each takes so many steps."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, *case.recipe["shape"], generator=generator)
    y = torch.randint(case.outputs, (ROWS,), generator=generator)
    source = Source.of(
        Rows(slots=ROWS, unit=np.arange(ROWS), x=x.numpy(), y=y.numpy()),
        y.numpy(),
        sampling_probability=batch / ROWS,
        noise_multiplier=1.0,
        clip_norm=1.0,
    )
    noise = Noise.fresh()

    def ours(private: nn.Module) -> None:
        train(
            private,
            [source],
            steps=case.steps,
            noise=noise,
            optimiser="sgd",
            learning_rate=RATE,
            physical_batch=2 * batch,
        )

    plain = plain_steps(case, x, y, batch)
    networks = [case.network() for _ in range(3)]
    return {
        "not private": plain,
        "ours": partial(ours, networks[0]),
        "one core": in_between(partial(ours, networks[1])),
        "not private, all cores": on_all_cores(plain),
        "all cores": on_all_cores(partial(ours, networks[2])),
        "ghost": opacus_steps(case, x, y, batch, mode="ghost"),
        "hooks": opacus_steps(case, x, y, batch, mode="hooks"),
    }


def in_between(steps: Callable[[], None]) -> Callable[[], None]:
    """With nothing done ahead by another thread."""

    def alone() -> None:
        with mock.patch("trainers.private_sgd.ahead", lambda items, **_: nullcontext(items)):
            steps()

    return alone


def on_all_cores(steps: Callable[[], None]) -> Callable[[], None]:
    """With as many threads of torch as there are cores."""

    def together() -> None:
        torch.set_num_threads(cores())
        try:
            steps()
        finally:
            torch.set_num_threads(1)

    return together


def plain_steps(case: Case, x: torch.Tensor, y: torch.Tensor, batch: int) -> Callable[[], None]:
    """Gradient descent as torch does it."""
    module = case.network()
    optimiser = torch.optim.SGD(module.parameters(), lr=RATE)
    criterion = nn.CrossEntropyLoss()

    def steps() -> None:
        for _ in range(case.steps):
            rows = torch.randint(ROWS, (batch,))
            optimiser.zero_grad()
            criterion(module(x[rows]), y[rows]).backward()
            optimiser.step()

    return steps


def opacus_steps(case: Case, x: torch.Tensor, y: torch.Tensor, batch: int, *, mode: str) -> Callable[[], None]:
    """Opacus' step on batches that are handed to it, without the time of its data loader."""
    module = case.network()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = PrivacyEngine().make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=RATE),
            criterion=nn.CrossEntropyLoss(),
            data_loader=DataLoader(TensorDataset(x, y), batch_size=batch),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            grad_sample_mode=mode,
        )
    private, optimiser = made[0], made[1]
    criterion = made[2] if mode == "ghost" else nn.CrossEntropyLoss()

    def steps() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(HOOKS_STEPS if mode == "hooks" else case.steps):
                rows = torch.randint(ROWS, (batch,))
                optimiser.zero_grad()
                criterion(private(x[rows]), y[rows]).backward()
                optimiser.step()

    return steps
