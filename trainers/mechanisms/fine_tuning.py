"""Gradient descent without privacy: what the noise costs is seen beside it. No policy admits what it makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from accountant.errors import InvalidInput
from trainers.clipping import cross_entropy, trainable
from trainers.labels import label_space
from trainers.models import build, load, state
from trainers.ports import Made
from trainers.private_sgd import OPTIMISERS, Gradient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from trainers.noise import Noise
    from trainers.ports import Rows, Run

#: From the gradient of a batch and that of a batch of the memories, if there are any, to the one that is followed.
Follow: TypeAlias = Callable[[Gradient, Gradient | None], Gradient]


def run(run: Run) -> Made:
    """The weights after `steps` steps on random batches of the task."""
    return descend(run, memory_batch=0, follow=lambda gradient, _memory: gradient)


def descend(run: Run, *, memory_batch: int, follow: Follow) -> Made:
    """Descend on the rows of the first charge; those of the others are the memories."""
    space = label_space(run)
    module = build(run.recipe, outputs=len(space.names))
    if "start" in run.inputs:
        start = run.inputs["start"]
        if start.facts.get("labels") != list(space.names):
            raise InvalidInput("recipe.start", start.release, "weights over the same labels in the same order")
        load(module, start.tensors)
    module.to(run.device)
    task = _labelled(run.rows[:1], space.indices, run.device)
    memory = _labelled(run.rows[1:], space.indices, run.device) if run.rows[1:] else None
    recipe = run.recipe
    move = OPTIMISERS[recipe["optimiser"]](
        trainable(module), learning_rate=recipe["learning_rate"], momentum=recipe["momentum"]
    )
    for step in range(run.parameters["steps"]):
        gradient = _gradient(module, task, run.parameters["batch_size"], run.noise)
        remembered = None if memory is None else _gradient(module, memory, memory_batch, run.noise)
        move(follow(gradient, remembered))
        run.progress(step + 1, run.parameters["steps"])
    return Made(
        tensors=state(module),
        facts={
            "predictor": "network",
            "labels": list(space.names),
            **space.facts(run.inputs),
            "recipe": {name: recipe[name] for name in ("model", "hidden", "shape")},
        },
    )


def _labelled(
    parts: Sequence[Rows], indices: Callable[[np.typing.NDArray[np.generic]], np.typing.NDArray[np.int64]], device: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """All rows whose label is in the space."""
    found = [(torch.from_numpy(rows.x), torch.from_numpy(indices(rows.y))) for rows in parts]
    kept = [(x[y >= 0], y[y >= 0]) for x, y in found]
    return torch.cat([x for x, _ in kept]).to(device), torch.cat([y for _, y in kept]).to(device)


def _gradient(module: nn.Module, data: tuple[torch.Tensor, torch.Tensor], size: int, noise: Noise) -> Gradient:
    """The mean gradient of a batch that is drawn with replacement; 0 if there are no rows to draw from."""
    x, y = data
    batch = torch.from_numpy((noise.words(size) % np.uint64(max(1, len(y)))).astype(np.int64)).to(x.device)
    there = len(y) > 0
    outputs = module(x[batch] if there else x.new_zeros((size, *x.shape[1:])))
    loss = cross_entropy(outputs, y[batch]).mean() if there else 0 * outputs.sum()
    return list(torch.autograd.grad(loss, trainable(module)))
