"""DP-AGEM as published, for reproduction and audits: the gradient of a whole batch is clipped, then gets noise.

Steps and samples are those of "Continual Learning with Differential Privacy" (Desai, Lai, Phan & Thai 2021, Lemma 1),
with a reference gradient from every memory. One datapoint can turn a clipped batch gradient round, so the row of the
catalog charges half the noise multiplier. Algorithm 1 also prints one noisy update for each example, which would show
the size of the batch; that is not done here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import torch

from trainers.clipping import cross_entropy, refuse_mixing, trainable
from trainers.labels import label_space
from trainers.mechanisms.episodic_memory import kept, made, started
from trainers.private_sgd import Adam, Gradient, Sgd, Source, unflattened

if TYPE_CHECKING:
    from torch import nn

    from trainers.noise import Noise
    from trainers.ports import Made, Run

#: From the number of memories to those that a step reads.
Chosen: TypeAlias = Callable[[int], Sequence[int]]


def run(run: Run) -> Made:
    """The weights after `steps` steps on one task, each against the average over all memories."""
    return learned(run, range)


def learned(run: Run, chosen: Chosen) -> Made:
    """The weights after `steps` steps on one task, each against the memories that are chosen for it."""
    parameters, recipe = run.parameters, run.recipe
    space = label_space(run)
    module = started(run, space)
    refuse_mixing(module)
    rates = [parameters["train_probability"], *(parameters["memory_probability"] for _ in run.rows[1:])]
    own, *memories = [
        Source.of(
            rows,
            space.indices(rows.y),
            sampling_probability=rate,
            noise_multiplier=parameters["noise_multiplier"],
            clip_norm=parameters["clip_norm"],
            device=run.device,
        )
        for rows, rate in zip(run.rows, rates, strict=True)
    ]
    optimiser: type[Sgd | Adam] = Sgd if recipe["optimiser"] == "sgd" else Adam
    move = optimiser(trainable(module), learning_rate=recipe["learning_rate"], momentum=recipe["momentum"])
    for step in range(parameters["steps"]):
        sources = [own, *(memories[place] for place in chosen(len(memories)))]
        move(kept([batch_gradient(module, source, run.noise) for source in sources]))
        run.progress(step + 1, parameters["steps"])
    return made(module, run, space)


def batch_gradient(module: nn.Module, source: Source, noise: Noise) -> Gradient:
    """The gradient of a sample's mean loss, scaled to at most `clip_norm` as a whole, with noise."""
    parameters = trainable(module)
    rows = source.sample(noise)
    there = len(rows) > 0
    with torch.enable_grad():  # the network runs for nobody as for everybody
        outputs = module(source.x[rows if there else [-1]])
        loss = cross_entropy(outputs, source.y[rows]).mean() if there else 0 * outputs.sum()
    found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    flat = torch.cat([each.flatten() for each in found])
    norm = flat.norm(dtype=torch.float64)
    if bool(norm.isfinite()):
        flat = flat * min(1.0, (1 - 1e-5) * source.clip_norm / max(float(norm), 1e-300))
    else:
        flat = torch.zeros_like(flat)
    noisy = noise.noisy(flat, source.noise_multiplier * source.clip_norm).to(torch.float32)
    return unflattened(noisy, parameters)
