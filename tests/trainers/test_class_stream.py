"""Utility on real images: CIFAR-10 as five tasks of two classes, on frozen features, at ε = 8 for each datapoint.

Noise is repeatable, so that the verdict is; how much each must win by leaves room for another draw.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from accountant import account
from accountant.calibration import calibrate_noise_multiplier
from tests.trainers.artifacts_in_memory import Artifact, released, rows_of
from trainers.backbones import Backbone, entry
from trainers.catalog import mechanism
from trainers.noise import Noise
from trainers.predictors import AGGREGATIONS, Aggregation, predict

TASKS = [["0", "1"], ["2", "3"], ["4", "5"], ["6", "7"], ["8", "9"]]
ALL = [name for task in TASKS for name in task]
CHANCE = 0.1
TRAIN, TEST = 1500, 600
EPSILON, DELTA = 8.0, 1e-5
SIZE = 1280


class Stream(NamedTuple):
    """Photographs or their features, and labels."""

    x: NDArray[np.float32]
    y: NDArray[np.str_]
    test_x: NDArray[np.float32]
    test_y: NDArray[np.str_]


def tiles(path: Path, *, down: int, across: int) -> NDArray[np.float32]:
    sheet = np.asarray(Image.open(path).convert("RGB"), dtype=np.float32)
    return sheet.reshape(down, 32, across, 32, 3).transpose(0, 2, 1, 3, 4).reshape(-1, 32, 32, 3)


def backbone_of(folder: Path, *, size: int) -> Backbone:
    weights = folder / "efficientnet_lite0" / "efficientnet-lite0-57934424.pth"
    return Backbone(entry("efficientnet-lite0", {"weights": str(weights), "size": size}))


@pytest.fixture(scope="module")
def photographs(shared_data: Path) -> Stream:
    """Rows as they are stored."""
    folder = shared_data / "cifar10_12k"
    labels = np.load(folder / "labels.npz")
    return Stream(
        tiles(folder / "train_10000.webp", down=100, across=100)[:TRAIN],
        labels["train"][:TRAIN].astype(str),
        tiles(folder / "test_2000.webp", down=40, across=50)[:TEST],
        labels["test"][:TEST].astype(str),
    )


@pytest.fixture(scope="module")
def stream(photographs: Stream, shared_data: Path) -> Stream:
    backbone = backbone_of(shared_data, size=48)
    return photographs._replace(x=backbone.features(photographs.x), test_x=backbone.features(photographs.test_x))


def task_by_task(
    stream: Stream,
    name: str,
    parameters: dict[str, Any],
    recipe: dict[str, Any],
    *,
    builds_on: str | None,
    backbones: Mapping[str, Backbone] | None = None,
) -> list[Artifact]:
    """A release for each task, each about the rows of its own task alone."""
    [charge] = mechanism(name).quote(parameters, adjacency="add_remove").charges
    assert account(charge.event, delta=DELTA).upper <= EPSILON
    made: list[Artifact] = []
    for number, task in enumerate(TASKS):
        there = np.isin(stream.y, task)
        inputs = {builds_on: made[-1]} if made and builds_on else {}
        rows, noise = rows_of(stream.x[there], stream.y[there]), Noise.repeatable(number)
        given = {"label_source": "prior", "label_names": ALL, **recipe}
        made.append(released(name, parameters, given, rows, noise=noise, inputs=inputs, backbones=backbones))
    return made


def right(stream: Stream, made: list[Artifact], aggregation: Aggregation = "argmax") -> float:
    return float((predict(made, stream.test_x, aggregation=aggregation) == stream.test_y).mean())


def steps(*, sampling_probability: float = 0.5, steps: int = 40) -> dict[str, Any]:
    found = calibrate_noise_multiplier(
        epsilon=EPSILON, delta=DELTA, sampling_probability=sampling_probability, steps=steps
    )
    return {
        "noise_multiplier": found,
        "sampling_probability": sampling_probability,
        "steps": steps,
        "clip_norm": 1.0,
    }


ADAM = {"optimiser": "adam", "learning_rate": 0.002}
SGD = {"optimiser": "sgd", "learning_rate": 0.3}


@pytest.fixture(scope="module")
def naive(stream: Stream) -> float:
    """One linear classifier that is trained on, task after task, and forgets."""
    recipe = {"model": "linear", "shape": [SIZE], **ADAM}
    return right(stream, task_by_task(stream, "dp-sgd", steps(), recipe, builds_on="start"))


def test_the_cosine_classifier_beats_chance_and_the_naive_baseline(stream: Stream, naive: float) -> None:
    noise = {"noise_multiplier": calibrate_noise_multiplier(epsilon=EPSILON, delta=DELTA)}
    made = task_by_task(stream, "cosine-classifier", noise, {"feature_size": SIZE}, builds_on="previous")
    assert right(stream, made) > max(3 * CHANCE, naive + 0.1)


def test_labels_of_their_own_task_are_enough_for_the_cosine_classifier(stream: Stream, naive: float) -> None:
    """Sums get noise only in the tasks that have the label, which is less of it."""
    noise = {"noise_multiplier": calibrate_noise_multiplier(epsilon=EPSILON, delta=DELTA)}
    previous: Artifact | None = None
    for number, task in enumerate(TASKS):
        there = np.isin(stream.y, task)
        recipe = {"label_source": "prior", "label_names": task, "feature_size": SIZE}
        rows, inputs = rows_of(stream.x[there], stream.y[there]), {"previous": previous} if previous else {}
        previous = released("cosine-classifier", noise, recipe, rows, noise=Noise.repeatable(number), inputs=inputs)
    assert previous is not None
    assert previous.facts["labels"] == ALL
    assert right(stream, [previous]) > max(4 * CHANCE, naive + 0.15)


def test_an_ensemble_beats_chance_and_the_naive_baseline_by_every_rule(stream: Stream, naive: float) -> None:
    recipe = {"feature_size": SIZE, "adapter": "last_layer", **SGD}
    made = task_by_task(stream, "peft-ensemble", steps(), recipe, builds_on=None)
    for aggregation in AGGREGATIONS:
        assert right(stream, made, aggregation) > max(3 * CHANCE, naive + 0.15), aggregation
    assert right(stream, made[:1]) < right(stream, made)  # what was learned later is added
    # Rows of one length let the outputs of different members be compared.
    longer = task_by_task(stream, "peft-ensemble", steps(), {**recipe, "feature_norm": 0.0, **ADAM}, builds_on=None)
    assert right(stream, made, "median") > right(stream, longer, "median")


@pytest.mark.slow
def test_film_beats_chance_and_the_naive_baseline(photographs: Stream, naive: float, shared_data: Path) -> None:
    """It tunes the backbone itself, so it gets few pixels and ten steps; the naive baseline has more of both.

    The norm of features lets head and FiLM each have a step size (docs/mechanisms.md), chosen on other rows.
    """
    recipe = {"backbone": "efficientnet-lite0", "adapter": "film", "feature_norm": 8.0, "learning_rate": 0.15}
    backbones = {"efficientnet-lite0": backbone_of(shared_data, size=32)}
    parameters = {**steps(sampling_probability=0.25, steps=10), "clip_norm": 2.0}
    made = task_by_task(photographs, "peft-ensemble", parameters, recipe, builds_on=None, backbones=backbones)
    said = predict(made, photographs.test_x, backbones=backbones)
    told = float((said == photographs.test_y).mean())
    error = ((told * (1 - told) + naive * (1 - naive)) / TEST) ** 0.5  # standard error of the lead, if rows were apart
    assert told > max(2.5 * CHANCE, naive + 0.06, naive + 3 * error)


def test_the_naive_baseline_forgets(stream: Stream, naive: float) -> None:
    """It knows the last task at most, which is a fifth of the test: the others win by remembering."""
    last = np.isin(stream.test_y, TASKS[-1]).mean()
    assert naive < last + 0.1
