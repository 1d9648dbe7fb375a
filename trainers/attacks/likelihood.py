"""Likelihood ratios of single noisy releases, on neighbours that are as far apart as the mechanism lets them be.

By Neyman & Pearson no other score tells more about which of the two it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from trainers.attacks.overheard import Overheard, again, sharpened
from trainers.attacks.runs import Artifact, Scores, made, rows_of
from trainers.attacks.watching import counted
from trainers.mechanisms.dp_agem_as_published import batch_gradient
from trainers.mechanisms.episodic_memory import kept
from trainers.models import build
from trainers.ports import Made
from trainers.private_sgd import Source, noisy_gradient

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from accountant.events import Adjacency
    from trainers.noise import Noise
    from trainers.ports import Rows

    #: From what was released to a score.
    Score = Callable[[Made], float]

_PAIR: Final = {"label_source": "prior", "label_names": ["0", "1"]}
_DECIMALS: Final = 9  # of a score: below them is the rounding of the attack's own sums
_AXES: Final = 200  # so many that the norm of their noise is known
_AT_A_TIME: Final = 1_000  # runs whose noise is drawn together
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
                for _ in counted(samples, side=side, sides=2)
            ]
        )
        for side, rows in enumerate(neighbours)
    ]
    return Scores(found[0].round(_DECIMALS), found[1].round(_DECIMALS))


def output_perturbation(parameters: Mapping[str, Any], samples: int, noise: Noise) -> Scores:
    """One datapoint or none, around a centre that is as wrong as can be about it: its gradient has the full norm √2 R.

    Score: the likelihood ratio, which for spherical noise is how much nearer the weights are to where the datapoint
    would have moved them than to the centre, and for Gaussian noise how far they went that way. The training is run
    once on each side, and its noise drawn for each sample. The row is longer than R, to which it is scaled down.
    """
    recipe = {"shape": [1], "bias": False, "modulus": 1.0, "iterations": 1, "centre": "rel_audit", **_PAIR}
    centre = Artifact(made=Made(tensors={"weight": torch.tensor([[-_FAR], [_FAR]])}, facts={"labels": ["0", "1"]}))
    step = 4 / (1 + 4 * 1.0)  # of gradient descent, for a radius and a modulus of 1
    gaussian = parameters.get("noise") == "gaussian"
    without = torch.tensor([[-_FAR], [_FAR]], dtype=torch.float64)
    with_it = without + step * torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    neighbours = rows_of([[2.0]], ["0"]), rows_of(np.zeros((0, 1)), [], slots=1)
    found = []
    for rows, expected in zip(neighbours, (with_it, without), strict=True):
        chance = Overheard()
        run = made("output-perturbation", parameters, recipe, [rows], noise=chance, inputs={"centre": centre})
        [(event, told)] = chance.asked
        exact = sharpened(run.tensors["weight"], expected, event) if told is None else told
        seen = again(event, exact, samples, noise).to(torch.float32).to(torch.float64)
        if gaussian:
            shift = with_it - without
            scores = ((seen - without) * shift).sum(dim=(1, 2)) / shift.square().sum()
        else:
            scores = (seen - without).flatten(1).norm(dim=1) - (seen - with_it).flatten(1).norm(dim=1)
        found.append(scores.numpy().round(_DECIMALS))
    return Scores(found[0], found[1])


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
    """One row that the model answers rightly, or none. Score: the likelihood ratio of the count of right answers.

    The answers are counted once on each side, and the noise is drawn for each sample.
    """
    gaussian = parameters.get("noise") == "gaussian"
    model = Artifact(
        made=Made(tensors={"weight": torch.eye(2), "bias": torch.zeros(2)}, facts={"predictor": "linear", **_FACTS})
    )
    neighbours = rows_of([[1.0, 0.0]], ["0"]), rows_of(np.zeros((0, 2)), np.zeros(0, dtype=str), slots=1)
    found = []
    for rows in neighbours:
        chance = Overheard()
        run = made("accuracy", parameters, {"models": ["rel_audit"]}, [rows], noise=chance, inputs={"models.0": model})
        exact = torch.tensor([run.facts["correct"]], dtype=torch.float64)  # whole numbers are on every grid
        right = again(chance.asked[0].event, exact, samples, noise).numpy()[:, 0]
        found.append((right if gaussian else np.abs(right) - np.abs(right - 1)).round(_DECIMALS))
    return Scores(found[0], found[1])


_FACTS: Final = {"labels": ["0", "1"]}


def whole_batches(parameters: Mapping[str, Any], samples: int, noise: Noise) -> Scores:
    """DP-AGEM as published: a datapoint that turns the clipped gradient of its batch round.

    One other datapoint pulls the other way, half as hard. With the canary the batch is clipped to one side, without it
    to the other: the step moves by twice the clip norm.
    """
    slow = {"model": "linear", "shape": [1], "learning_rate": 1e-3, "momentum": 0.0, **_PAIR}

    def score(released: Made) -> float:
        weight = released.tensors["1.weight"].to(torch.float64)
        return 1e3 * float(weight[0, 0] - weight[1, 0]) / 2**0.5  # in clip norms

    both = rows_of(_BOTH[0], [str(label) for label in _BOTH[1]])
    alone = rows_of(_BOTH[0][:1], [str(label) for label in _BOTH[1][:1]], slots=2)
    return gathered("dp-agem-as-published", parameters, slow, (both, alone), score, samples=samples, noise=noise)


def remembered(noise_multiplier: float, samples: int, noise: Noise) -> Scores:
    """Episodic memory: a memory that holds one datapoint or none, beside a task that pulls the other way.

    Where the noisy gradient of the memory points against the task's, it is taken out of that: the weights then move by
    (r · e / ‖r‖²) r, r the memory's gradient and e the datapoint's, and the norm of r is nearly that of the noise on
    many weights. Score: how far they move along axes on which nobody has anything, which rises with r · e from 0 on.
    Clipped gradients and the projection are the mechanism's; the noise on the memory's is drawn for all runs at once,
    and the task's own is left out.
    """
    row = np.zeros((1, _AXES))
    row[0, 0] = 1_000.0
    task = _clipped(row, [1], noise)
    found = []
    for memory in (_clipped(row, [0], noise), torch.zeros_like(task)):
        scores = []
        for start in range(0, samples, _AT_A_TIME):
            exact = memory.expand(min(_AT_A_TIME, samples - start), -1)
            for seen in noise.noisy(exact, noise_multiplier):
                [step] = kept([[task], [seen]])
                scores.append(float(step[: 2 * _AXES].view(2, _AXES)[:, 1:].norm()))
        found.append(np.array(scores).round(_DECIMALS))
    return Scores(found[0], found[1])


def _clipped(x: NDArray[np.float64], labels: Sequence[int], noise: Noise) -> torch.Tensor:
    """The sum of clipped gradients of these rows at the public start of a linear model, in clip norms."""
    module = build({"model": "linear", "shape": [x.shape[1]], "hidden": []}, outputs=2)
    source = Source.of(
        rows_of(x, labels), np.array(labels), sampling_probability=1.0, noise_multiplier=1e-9, clip_norm=1.0
    )
    return torch.cat([each.flatten() for each in noisy_gradient(module, source, noise)]).to(torch.float64)


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
