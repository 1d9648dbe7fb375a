"""Likelihood ratios of single noisy releases, on neighbours that are as far apart as the mechanism lets them be.

By Neyman & Pearson no other score tells more about which of the two it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from trainers.attacks.runs import Artifact, Scores, made, rows_of
from trainers.mechanisms.dp_agem_as_published import batch_gradient
from trainers.models import build
from trainers.ports import Made
from trainers.private_sgd import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from accountant.events import Adjacency
    from trainers.noise import Noise
    from trainers.ports import Rows

    #: From what was released to a score.
    Score = Callable[[Made], float]

_PAIR: Final = {"label_source": "prior", "label_names": ["0", "1"]}
_DECIMALS: Final = 9  # of a score: below them is the rounding of the attack's own sums
_FAR: Final = 20.0  # a logit beyond which a softmax is 0 or 1 for all that matters here

Neighbours = tuple["Rows", "Rows"]


def gathered(
    name: str,
    parameters: Mapping[str, Any],
    recipe: Mapping[str, Any],
    neighbours: Neighbours,
    score: Score,
    *,
    samples: int,
    noise: Noise,
    adjacency: Adjacency = "add_remove",
    inputs: Mapping[str, Artifact] | None = None,
) -> Scores:
    """Scores of so many runs on each of two sets of rows."""
    found = [
        np.array(
            [
                score(made(name, parameters, recipe, [rows], noise=noise, adjacency=adjacency, inputs=inputs))
                for _ in range(samples)
            ]
        )
        for rows in neighbours
    ]
    return Scores(found[0].round(_DECIMALS), found[1].round(_DECIMALS))


def output_perturbation(parameters: Mapping[str, Any], samples: int, noise: Noise) -> Scores:
    """One datapoint or none, around a centre that is as wrong as can be about it: its gradient has the full norm √2 R.

    Score: the likelihood ratio, which for spherical noise is how much nearer the weights are to where the datapoint
    would have moved them than to the centre, and for Gaussian noise how far they went that way.
    """
    recipe = {"shape": [1], "bias": False, "modulus": 1.0, "iterations": 1, "centre": "rel_audit", **_PAIR}
    centre = Artifact(made=Made(tensors={"weight": torch.tensor([[-_FAR], [_FAR]])}, facts={"labels": ["0", "1"]}))
    step = 4 / (1 + 4 * 1.0)  # of gradient descent, for a radius and a modulus of 1
    gaussian = parameters.get("noise") == "gaussian"
    without = np.array([-_FAR, _FAR])
    with_it = without + step * np.array([1.0, -1.0])

    def score(released: Made) -> float:
        at = released.tensors["weight"].to(torch.float64).numpy()[:, 0]
        if gaussian:
            return float((at - without) @ (with_it - without))
        return float(np.linalg.norm(at - without) - np.linalg.norm(at - with_it))

    there, null = rows_of([[1.0]], ["0"]), rows_of(np.zeros((0, 1)), [], slots=1)
    return gathered(
        "output-perturbation",
        parameters,
        recipe,
        (there, null),
        score,
        samples=samples,
        noise=noise,
        inputs={"centre": centre},
    )


def output_perturbation_as_published(
    parameters: Mapping[str, Any], samples: int, noise: Noise, *, others: int = 0
) -> Scores:
    """A datapoint x = 1 or x = −1 of label 0, where label 1 is sure of itself at 1 and label 2 at −1.

    The two gradients differ by (−2, 1, 1), of norm √6 of at most √8, and every coordinate has its own Laplace noise:
    the score is the likelihood ratio. `others` are null datapoints, by which the paper's L from the data divides.
    """
    recipe = {
        "shape": [1], "bias": False, "modulus": 1.0, "iterations": 1, "centre": "rel_audit",
        "label_source": "prior", "label_names": ["0", "1", "2"],
    }  # fmt: skip
    middle = np.array([0.0, _FAR, -_FAR])
    centre = Artifact(made=Made(tensors={"weight": torch.tensor(middle[:, None])}, facts={"labels": ["0", "1", "2"]}))
    slots = 1 + others
    step = 0.8 / slots
    places = [middle - step * move for move in (np.array([-1.0, 1.0, 0.0]), np.array([1.0, 0.0, -1.0]))]

    def score(released: Made) -> float:
        at = released.tensors["weight"].to(torch.float64).numpy()[:, 0]
        return float(np.abs(at - places[1]).sum() - np.abs(at - places[0]).sum()) * slots

    neighbours = rows_of([[1.0]], ["0"], slots=slots), rows_of([[-1.0]], ["0"], slots=slots)
    return gathered(
        "output-perturbation-as-published",
        parameters,
        recipe,
        neighbours,
        score,
        samples=samples,
        noise=noise,
        adjacency="replace_one",
        inputs={"centre": centre},
    )


def accuracy(parameters: Mapping[str, Any], samples: int, noise: Noise) -> Scores:
    """One row that the model answers rightly, or none. Score: the likelihood ratio of the count of right answers."""
    gaussian = parameters.get("noise") == "gaussian"
    model = Artifact(
        made=Made(tensors={"weight": torch.eye(2), "bias": torch.zeros(2)}, facts={"predictor": "linear", **_FACTS})
    )

    def score(released: Made) -> float:
        right: float = released.facts["correct"]
        return right if gaussian else abs(right) - abs(right - 1)

    neighbours = rows_of([[1.0, 0.0]], ["0"]), rows_of(np.zeros((0, 2)), np.zeros(0, dtype=str), slots=1)
    recipe = {"models": ["rel_audit"]}
    return gathered(
        "accuracy", parameters, recipe, neighbours, score, samples=samples, noise=noise, inputs={"models.0": model}
    )


_FACTS: Final = {"labels": ["0", "1"]}


def whole_batches(parameters: Mapping[str, Any], samples: int, noise: Noise) -> Scores:
    """DP-AGEM as published: a datapoint that turns the clipped gradient of its batch round.

    One other datapoint pulls the other way, half as hard. With the canary the batch is clipped to one side, without it
    to the other: the step moves by twice the clip norm.
    """
    slow = {"model": "linear", "shape": [1], "learning_rate": 1e-3, "momentum": 0.0, **_PAIR}

    def score(released: Made) -> float:
        weight = released.tensors["1.weight"].to(torch.float64)
        return 1e3 * float(weight[0, 0] - weight[1, 0])

    both = rows_of(_BOTH[0], [str(label) for label in _BOTH[1]])
    alone = rows_of(_BOTH[0][:1], [str(label) for label in _BOTH[1][:1]], slots=2)
    return gathered("dp-agem-as-published", parameters, slow, (both, alone), score, samples=samples, noise=noise)


#: A row that pulls one way, and the canary, which pulls the other way twice as hard.
_BOTH: Final = ([[1_000.0], [2_000.0]], [1, 0])


def whole_batches_at_once(noise_multiplier: float, samples: int, noise: Noise) -> Scores:
    """The same with the noise of many steps drawn at once: what it is added to is asked of the mechanism's code."""
    found = []
    for count in (2, 1):
        exact = torch.full((samples,), clipped_batch(_BOTH[0][:count], _BOTH[1][:count], noise), dtype=torch.float64)
        found.append(noise.noisy(exact, noise_multiplier).numpy())
    return Scores(found[0], found[1])


def clipped_batch(x: Sequence[Sequence[float]], labels: Sequence[int], noise: Noise) -> float:
    """What DP-AGEM and DP-CL as published make of a batch, along the gradient of a long row of label 0, in clip norms.

    By the mechanism's own code, with so little noise that it does not matter.
    """
    module = build({"model": "linear", "shape": [1], "hidden": []}, outputs=2)
    source = Source.of(
        rows_of(x, labels), np.array(labels), sampling_probability=1.0, noise_multiplier=1e-9, clip_norm=1.0
    )
    gradient = torch.cat([each.flatten() for each in batch_gradient(module, source, noise)]).to(torch.float64)
    along = torch.tensor([-1.0, 1.0, 0.0, 0.0], dtype=torch.float64) / 2**0.5  # the bias is a thousandth of it
    return float(gradient @ along)
