"""One member of an ensemble: an adapter and a head on a frozen backbone, trained on the data of one task alone.

Algorithm 2 of "Privacy Leakage via Output Label Space and Differentially Private Continual Learning". Members of other
tasks are other releases; `trainers.predictors` asks all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainers.adapters import film, last_layer, tensors
from trainers.backbones import chosen, features_of
from trainers.labels import label_space
from trainers.ports import Made
from trainers.private_sgd import Source, train

if TYPE_CHECKING:
    from trainers.ports import Run


def run(run: Run) -> Made:
    """What was trained in `steps` noisy steps from a public start, over all labels of the label space."""
    space, norm = label_space(run), run.recipe["feature_norm"]
    if run.recipe["adapter"] == "film":
        backbone = chosen(run.backbones, run.recipe["backbone"])
        document, [rows] = backbone.document, run.rows
        module = film(backbone, shape=rows.x.shape[1:], labels=len(space), norm=norm)
    else:
        document, [rows] = features_of(run)  # type: ignore[assignment]  # rows may be features already
        module = last_layer(width=rows.x.shape[1], labels=len(space), norm=norm)
    source = Source.of(
        rows,
        space.indices(rows.y),
        sampling_probability=run.parameters["sampling_probability"],
        noise_multiplier=run.parameters["noise_multiplier"],
        clip_norm=run.parameters["clip_norm"],
        device=run.device,
    )
    train(
        module.to(run.device),
        [source],
        steps=run.parameters["steps"],
        noise=run.noise,
        optimiser=run.recipe["optimiser"],
        learning_rate=run.recipe["learning_rate"],
        momentum=run.recipe["momentum"],
        progress=run.progress,
        physical_batch=run.recipe["physical_batch"],
    )
    facts = {
        "predictor": "adapter",
        "labels": list(space.names),
        **space.facts(run.inputs),
        "recipe": {"adapter": run.recipe["adapter"], "shape": list(rows.x.shape[1:]), "feature_norm": norm},
        "backbone": document,
    }
    return Made(tensors=tensors(module), facts=facts)
