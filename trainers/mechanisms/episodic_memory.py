"""A task learned beside memories of earlier tasks: replay, or A-GEM, on noisy gradients.

Every step has a noisy gradient of the task's part `train`, and one or more of parts `memory` of earlier tasks. Their
mean over tasks is followed (experience replay, Chaudhry et al. 2019, arXiv 1902.10486); or the first alone, without
what would undo what the others learned (A-GEM, arXiv 1812.00420). Each gradient is a sum of clipped gradients of a
Poisson sample with noise, so either is post-processing, and each part pays for its own samples ("Privacy Leakage via
Output Label Space", Appendix D.4; docs/streams.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from accountant.errors import InvalidInput
from trainers.catalog.memories import drawn
from trainers.labels import LabelSpace, label_space
from trainers.models import build, load, state
from trainers.ports import Made, Rows
from trainers.private_sgd import Gradient, Source, train
from trainers.projection import averaged, projected

if TYPE_CHECKING:
    from torch import nn

    from trainers.ports import Run


def run(run: Run) -> Made:
    """The weights after `steps` steps on one task, from a public start or from those of the release before."""
    parameters, recipe = run.parameters, run.recipe
    space = label_space(run)
    module = started(run, space)
    own, *earlier = run.rows
    shared = {"clip_norm": parameters["clip_norm"], "device": run.device}
    learned = Source.of(
        own,
        space.indices(own.y),
        sampling_probability=parameters["train_probability"],
        noise_multiplier=parameters["train_noise_multiplier"],
        **shared,
    )
    rate = parameters["memory_probability"]
    if parameters["use"] == "union" and earlier:
        rate, earlier = rate / len(earlier), [union(earlier)]
    memories = [
        Source.of(
            block,
            space.indices(block.y),
            sampling_probability=rate,
            noise_multiplier=parameters["memory_noise_multiplier"],
            **shared,
        )
        for block in earlier
    ]
    draws = drawn(**{name: parameters[name] for name in ("steps", "use", "memories", "seed") if name in parameters})
    # Blocks that are never drawn are not charged, and their rows are not here.
    place_of = {block: place for place, block in enumerate(sorted(set(draws)), start=1)}
    train(
        module,
        [learned, *memories],
        steps=parameters["steps"],
        noise=run.noise,
        optimiser=recipe["optimiser"],
        learning_rate=recipe["learning_rate"],
        momentum=recipe["momentum"],
        combine=kept if recipe["combine"] == "projection" else partial(replayed, tasks=1 + len(parameters["memories"])),
        schedule=(lambda step: (0, place_of[draws[step]])) if draws else None,
        progress=run.progress,
        physical_batch=recipe["physical_batch"],
    )
    return made(module, run, space)


def started(run: Run, space: LabelSpace) -> nn.Module:
    """The recipe's network over the labels of the space, with the weights of the release that it starts from."""
    module = build(run.recipe, outputs=len(space))
    if "start" in run.inputs:
        start = run.inputs["start"]
        if start.facts.get("labels") != list(space.names):
            raise InvalidInput("recipe.start", start.release, "weights over the same labels in the same order")
        load(module, start.tensors)
    return module.to(run.device)


def made(module: nn.Module, run: Run, space: LabelSpace) -> Made:
    """The network with what is needed to predict with it."""
    facts: dict[str, Any] = {
        "predictor": "network",
        "labels": list(space.names),
        **space.facts(run.inputs),
        "recipe": {name: run.recipe[name] for name in ("model", "hidden", "shape")},
        "backbone": None,
    }
    return Made(tensors=state(module), facts=facts)


def replayed(gradients: Sequence[Gradient], *, tasks: int) -> Gradient:
    """The mean over all tasks: the first gradient is that of one of them, the rest are those of all others."""
    own, *memories = gradients
    if not memories:
        return own
    share = 1 / tasks
    return [share * one + (1 - share) * other for one, other in zip(own, averaged(memories), strict=True)]


def kept(gradients: Sequence[Gradient]) -> Gradient:
    """The first gradient, without what would raise the loss on the memories, which are the rest."""
    own, *memories = gradients
    return projected(own, averaged(memories)) if memories else own


def union(blocks: Sequence[Rows]) -> Rows:
    """All blocks as one, slots after slots. A datapoint may be in one of them only: the service has seen to that."""
    offsets = np.cumsum([0, *(block.slots for block in blocks)])
    return Rows(
        slots=int(offsets[-1]),
        unit=np.concatenate([block.unit + offset for block, offset in zip(blocks, offsets, strict=False)]),
        x=np.concatenate([block.x for block in blocks]),
        y=_labels(blocks),
        rows_per_unit=max(block.rows_per_unit for block in blocks),
    )


def _labels(blocks: Sequence[Rows]) -> Any:
    """Labels of all blocks, as text where they are not of one kind."""
    kinds = {block.y.dtype.kind for block in blocks}
    return np.concatenate([block.y if len(kinds) == 1 else block.y.astype(str) for block in blocks])
