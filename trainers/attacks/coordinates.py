"""Canaries with a coordinate of their own: many independent runs against one datapoint each, for the price of one.

Where noise is drawn for each coordinate by itself, and canary i moves coordinate i alone and by as much as any
datapoint may, the score of canary i depends on whether *it* is there and on noise that no other score has seen. So a
run with m such canaries is m independent experiments, each on two neighbours that differ in canary i.

- Gradients: canary i is a long row along axis i of a linear model. Its gradient is longer than the clip norm whatever
  the weights, so that it is always clipped to the same vector, which is on axis i but for a millionth on the bias.
  The weights after all steps show the sum over the steps; the likelihood ratio of a sum of sampled Gaussians rises
  with it, so no attack on the released weights tells more.
- Prototypes and class sums: canary i is the only record of label i.
- Label sets: the canary is one more datapoint of label i.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from trainers.attacks.runs import Guesses, Scores, coins, made, rows_of
from trainers.attacks.watching import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from trainers.noise import Noise
    from trainers.ports import Made, Rows

    #: Which canaries are in, and chance → a score for each.
    Experiment = Callable[[NDArray[np.bool_], Noise], NDArray[np.float64]]

_AT_A_TIME: Final = 1_000  # canaries of one run
_LONG: Final = 1_000.0  # of a row, beside the 1 of its bias
_SLOW: Final = 1e-3  # rate at which weights stay so small that every canary's gradient is clipped
_PAIR: Final = {"label_source": "prior", "label_names": ["0", "1"]}


def gathered(experiment: Experiment, samples: int, noise: Noise, *, at_a_time: int = _AT_A_TIME) -> Scores:
    """So many scores a side: in each run every other canary is in."""
    found: tuple[list[NDArray[np.float64]], list[NDArray[np.float64]]] = ([], [])
    for start in counted(samples, at_a_time=at_a_time // 2):
        count = 2 * min(at_a_time // 2, samples - start)
        there = np.arange(count) % 2 == 0
        scores = experiment(there, noise)
        found[0].append(scores[there])
        found[1].append(scores[~there])
    return Scores(np.concatenate(found[0]), np.concatenate(found[1]))


def guessed(experiment: Experiment, canaries: int, noise: Noise) -> Guesses:
    """One run in which each canary is in by a fair coin of its own."""
    there = coins(canaries, noise)
    return Guesses(experiment(there, noise), there)


def long_rows(there: NDArray[np.bool_], *, otherwise: str = "") -> tuple[NDArray[np.float32], list[str]]:
    """Rows along their own axes, of label 0; one that is not there has a label that nothing knows, and so is null.

    With `otherwise` it is there all the same, with this label: neighbours by replacement.
    """
    return _LONG * np.eye(len(there), dtype=np.float32), ["0" if each else otherwise for each in there]


def difference(weight: torch.Tensor) -> NDArray[np.float64]:
    """How far a linear model prefers label 0 to label 1 along each axis."""
    found: NDArray[np.float64] = (weight[0] - weight[1]).to(torch.float64).numpy()
    return found


def along_each_axis(released: Made) -> NDArray[np.float64]:
    """The same of a model whatever the names of its tensors."""
    return difference(next(each for key, each in released.tensors.items() if key.endswith("weight")))


def step_of(parameters: Mapping[str, Any], size: int) -> float:
    """By how much one step moves the difference of the two labels along the axis of a canary that was sampled."""
    rate = parameters.get("sampling_probability", parameters.get("train_probability"))
    expected: float = max(1.0, rate * size)
    return _SLOW * math.sqrt(2) * float(parameters["clip_norm"]) / expected


def by_weights(parameters: Mapping[str, Any], name: str = "dp-sgd", *, otherwise: str = "") -> Experiment:
    """White box: the weights along each canary's axis, which is their inner product with its clipped gradient.

    In units of what one step moves them by, so that runs with fewer canaries have scores of the same scale.
    """

    def experiment(there: NDArray[np.bool_], noise: Noise) -> NDArray[np.float64]:
        x, y = long_rows(there, otherwise=otherwise)
        released = made(name, parameters, recipe_of(name, len(there)), [rows_of(x, y)], noise=noise)
        return along_each_axis(released) / step_of(parameters, len(there))

    return experiment


def by_replay(parameters: Mapping[str, Any]) -> Experiment:
    """White box: canaries of a memory that is replayed beside a task of null datapoints, whose noise is next to none.

    Replay follows the mean of the task's gradient and the memory's: so a canary moves half a step.
    """

    def experiment(there: NDArray[np.bool_], noise: Noise) -> NDArray[np.float64]:
        x, y = long_rows(there)
        nobody = rows_of(x[:0], [], slots=len(there))
        recipe = {**recipe_of("episodic-memory", len(there)), "combine": "replay"}
        released = made("episodic-memory", parameters, recipe, [nobody, rows_of(x, y)], noise=noise)
        return along_each_axis(released) / (step_of(parameters, len(there)) / 2)

    return experiment


def by_loss(parameters: Mapping[str, Any], name: str = "dp-sgd") -> Experiment:
    """Black box: how small the loss of the released model is on each canary; its weights are not looked at."""

    def experiment(there: NDArray[np.bool_], noise: Noise) -> NDArray[np.float64]:
        x, y = long_rows(there)
        released = made(name, parameters, recipe_of(name, len(there)), [rows_of(x, y)], noise=noise)
        return -losses(outputs(released, x), np.zeros(len(x), dtype=np.int64))

    return experiment


def outputs(released: Made, x: NDArray[np.float32]) -> torch.Tensor:
    """What a linear model says about each label of each row: all that a black box shows."""
    named = {end: each for key, each in released.tensors.items() for end in ("weight", "bias") if key.endswith(end)}
    found: torch.Tensor = torch.from_numpy(x) @ named["weight"].T
    return found + named["bias"] if "bias" in named else found


def losses(outputs: torch.Tensor, labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """The cross-entropy of each row."""
    wide, expected = outputs.to(torch.float64), torch.from_numpy(labels)
    found: NDArray[np.float64] = torch.nn.functional.cross_entropy(wide, expected, reduction="none").numpy()
    return found


def recipe_of(name: str, size: int) -> dict[str, Any]:
    """A linear model of so many features, that hardly moves. Rows keep their length, so that the bias gets little."""
    slow = {"learning_rate": _SLOW, "momentum": 0.0, **_PAIR}
    if name == "peft-ensemble":
        return {"feature_size": size, "feature_norm": 0.0, **slow}
    return {"model": "linear", "shape": [size], **slow}


def by_sums(
    name: str, parameters: Mapping[str, Any], recipe: Mapping[str, Any], *, otherwise: float | None = None
) -> Experiment:
    """Class sums of one number: each canary is alone with its label, and every label gets noise of its own.

    A canary's number is scaled down to 1. One that is not there is null, or with `otherwise` has this number instead.
    """

    def experiment(there: NDArray[np.bool_], noise: Noise) -> NDArray[np.float64]:
        rows, space = label_rows(there, otherwise=otherwise)
        released = made(name, parameters, {**recipe, **space}, [rows], noise=noise)
        found: NDArray[np.float64] = released.tensors["sums"][:, 0].numpy()
        return found

    return experiment


def by_answers(name: str, parameters: Mapping[str, Any], recipe: Mapping[str, Any]) -> Experiment:
    """Black box: how small the loss of the released classifier is on each canary, of features of one number."""

    def experiment(there: NDArray[np.bool_], noise: Noise) -> NDArray[np.float64]:
        rows, space = label_rows(there)
        released = made(name, parameters, {**recipe, **space}, [rows], noise=noise)
        said = outputs(released, np.ones((1, 1), dtype=np.float32)).expand(len(there), -1)  # of a row like all others
        return -losses(said, np.arange(len(there)))

    return experiment


def label_rows(there: NDArray[np.bool_], *, otherwise: float | None = None) -> tuple[Rows, dict[str, Any]]:
    """A canary for each label, and the label space."""
    labels = [str(place) for place in range(len(there))]
    present = np.flatnonzero(there) if otherwise is None else np.arange(len(there))
    x = np.where(there, _LONG, otherwise or 0.0)[present, None]
    rows = rows_of(x, [labels[place] for place in present], slots=len(there))
    return rows, {"label_source": "prior", "label_names": labels}


def by_label(parameters: Mapping[str, Any], *, others: int) -> Experiment:
    """Whether label i is told, of which `others` datapoints are certain and the canary is one more."""

    def experiment(there: NDArray[np.bool_], noise: Noise) -> NDArray[np.float64]:
        y = np.repeat(np.arange(len(there)), others + there)
        told = made("label-release", parameters, {}, [rows_of(np.zeros((len(y), 1)), y)], noise=noise).facts["labels"]
        found = np.zeros(len(there))
        found[[int(label) for label in told]] = 1.0
        return found

    return experiment
