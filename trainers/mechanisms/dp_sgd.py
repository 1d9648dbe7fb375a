"""DP-SGD on the rows of a task: from a public start, or from weights that were released before.

Task by task from the last release is the papers' naive baseline; with the datapoints of earlier tasks sampled as well,
each under a charge of its own, it is their full-data baseline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from accountant.errors import InvalidInput
from trainers.labels import label_space
from trainers.models import build, load, state
from trainers.ports import Made
from trainers.private_sgd import Gradient, Source, train

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainers.ports import Run


def run(run: Run) -> Made:
    """The weights of the recipe's network after `steps` noisy steps, over the classes of the label space."""
    space = label_space(run)
    module = build(run.recipe, outputs=len(space.names))
    if "start" in run.inputs:
        start = run.inputs["start"]
        if start.facts.get("labels") != list(space.names):
            raise InvalidInput("recipe.start", start.release, "weights over the same labels in the same order")
        load(module, start.tensors)
    module.to(run.device)
    sources = [
        Source.of(
            rows,
            space.indices(rows.y),
            sampling_probability=run.parameters["sampling_probability"],
            noise_multiplier=run.parameters["noise_multiplier"],
            clip_norm=run.parameters["clip_norm"],
            device=run.device,
        )
        for rows in run.rows
    ]
    weights = [source.expected for source in sources]

    def together(gradients: Sequence[Gradient]) -> Gradient:
        """The mean over all datapoints: means of the sources by their sizes, which are public."""
        return [
            torch.stack([weight / sum(weights) * part for weight, part in zip(weights, parts, strict=True)]).sum(0)
            for parts in zip(*gradients, strict=True)
        ]

    train(
        module,
        sources,
        steps=run.parameters["steps"],
        noise=run.noise,
        optimiser=run.recipe["optimiser"],
        learning_rate=run.recipe["learning_rate"],
        momentum=run.recipe["momentum"],
        combine=together if len(sources) > 1 else lambda gradients: gradients[0],
        progress=run.progress,
        physical_batch=run.recipe["physical_batch"],
    )
    return Made(
        tensors=state(module),
        facts={
            "predictor": "network",
            "labels": list(space.names),
            **space.facts(run.inputs),
            "recipe": {name: run.recipe[name] for name in ("model", "hidden", "shape")},
        },
    )
