"""Every mechanism of the catalog on every device that is here: from a file to what is released, on made-up rows.

What a mechanism is good for is tested elsewhere. Here is what all of them owe: the same program whoever is there, a row
that is not finite is nobody's, and progress that comes to its end.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
from pyroaring import BitMap

from tests.trainers.streams import Artifact
from tests.trainers.test_artifacts import CARD
from trainers import artifacts
from trainers.catalog import CATALOG
from trainers.catalog.parameters import read
from trainers.data import open_data
from trainers.noise import Noise
from trainers.ports import Made, Run

Document = dict[str, Any]
SIZE: Final = 6  # of a row
TASK: Final = 20  # datapoints of each charge, unless the charge itself says which
BROKEN: Final = 3  # the datapoint whose row is not finite
NAMES: Final[Document] = {"label_source": "prior", "label_names": ["0", "1"]}
NETWORK: Final[Document] = {"model": "mlp", "hidden": [4], "shape": [SIZE], "learning_rate": 0.1, **NAMES}
CONVEX: Final[Document] = {"shape": [SIZE], "modulus": 0.5, "iterations": 3, **NAMES}
SAMPLED: Final[Document] = {"noise_multiplier": 1.0, "sampling_probability": 0.5, "steps": 3, "clip_norm": 1.0}
PUBLISHED: Final[Document] = {
    "steps": 3, "train_probability": 0.5, "memory_probability": 0.5, "noise_multiplier": 1.0, "clip_norm": 1.0,
    "memories": ["monday"],
}  # fmt: skip


def linear() -> Artifact:
    """A model that was released before."""
    return Artifact(
        Made(
            tensors={"weight": torch.eye(2, SIZE), "bias": torch.zeros(2)},
            facts={"predictor": "linear", "labels": ["0", "1"]},
        )
    )


@dataclass(frozen=True, kw_only=True)
class Example:
    """Enough to run a mechanism once."""

    parameters: Document
    recipe: Document = field(default_factory=dict)
    inputs: Mapping[str, Artifact] = field(default_factory=dict)


EXAMPLES: Final[Mapping[str, Example]] = {
    "dp-sgd": Example(parameters={**SAMPLED, "tasks": ["monday"]}, recipe=NETWORK),
    "label-release": Example(parameters={"epsilon": 4.0, "delta": 1e-2}),
    "sliding-window": Example(parameters={"k": 2, "w0": 8, "step": 0, "epsilon": 1.0}, recipe=CONVEX),
    "episodic-memory": Example(
        parameters={
            "steps": 3, "train_probability": 0.5, "train_noise_multiplier": 1.0, "memory_probability": 0.5,
            "memory_noise_multiplier": 1.0, "clip_norm": 1.0, "memories": ["monday"],
        },
        recipe=NETWORK,
    ),
    "l2dp-ml": Example(parameters={"noise_multiplier": 1.0}, recipe={"inputs": SIZE, **NAMES}),
    "dp-agem-as-published": Example(parameters=PUBLISHED, recipe=NETWORK),
    "dp-cl-as-published": Example(parameters=PUBLISHED, recipe=NETWORK),
    "l2dp-ml-as-published": Example(
        parameters={"tasks": [{"task": "monday", "epochs": 2}], "epsilon_1": 0.5, "epsilon_2": 0.5},
        recipe={"inputs": SIZE, "hidden": 4, "last": 4, **NAMES},
    ),
    "cosine-classifier": Example(parameters={"noise_multiplier": 1.0}, recipe={"feature_size": SIZE, **NAMES}),
    "peft-ensemble": Example(parameters=SAMPLED, recipe={"feature_size": SIZE, "learning_rate": 0.1, **NAMES}),
    "output-perturbation": Example(parameters={"epsilon": 1.0}, recipe=CONVEX),
    "multi-resolution": Example(parameters={"pane": 8, "step": 1, "epsilon": 1.0}, recipe=CONVEX),
    "continual-release": Example(parameters={"pane": 8, "doublings": 1, "step": 0, "epsilon": 1.0}, recipe=CONVEX),
    "output-perturbation-as-published": Example(
        parameters={"epsilon": 1.0, "weights": 2 * (SIZE + 1)}, recipe=CONVEX
    ),
    "continual-release-as-published": Example(
        parameters={"pane": 8, "doublings": 1, "step": 0, "epsilon": 1.0}, recipe=CONVEX
    ),
    "accuracy": Example(
        parameters={"scale": 1.0}, recipe={"models": ["rel_test"]}, inputs={"models.0": linear()}
    ),
    "fine-tuning": Example(parameters={"steps": 3, "batch_size": 4}, recipe=NETWORK),
    "a-gem": Example(
        parameters={"steps": 3, "batch_size": 4, "memory_batch": 4, "memories": ["monday"]}, recipe=NETWORK
    ),
}  # fmt: skip

MECHANISMS: Final = [name for name, row in CATALOG.items() if row.module is not None]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of two classes; one of them is not finite."""
    chance = np.random.default_rng(0)
    y = chance.integers(0, 2, 2 * TASK)
    x = chance.normal(size=(2 * TASK, SIZE)).astype(np.float32)
    x[:, 0] += 2 * y
    x[BROKEN, 1] = np.nan
    path = tmp_path_factory.mktemp("rows") / "rows.npz"
    np.savez(path, x=x, y=y)
    return path


def ran(
    name: str, file: Path, *, device: str = "cpu", without: range | None = None, example: Example | None = None
) -> Made:
    """What is made of the rows in the file, as an attempt makes it, but with noise that repeats.

    Datapoints `without` were trimmed: they keep their slots.
    """
    row, example = CATALOG[name], example or EXAMPLES[name]
    quoted = row.quote(example.parameters, adjacency="add_remove")
    data = open_data(
        {"uri": str(file), "x": "x", "y": "y"},
        allowed=[f"{file.parent}/"],
        ordinals_of=lambda keys: np.full(len(keys), -1, dtype=np.int64),
        size=2 * TASK,
    )
    given = []
    for place, charge in enumerate(quoted.charges):
        start, stop = (TASK * place, TASK * (place + 1)) if charge.start is None else (charge.start, charge.stop)
        proposed = BitMap(range(start, stop or 0))
        given.append(data.rows(proposed=proposed, admitted=proposed - BitMap(without or ())))
    steps: list[tuple[int, int]] = []
    assert row.module is not None
    made: Made = importlib.import_module(row.module).run(
        Run(
            parameters=read("parameters", row.parameters, example.parameters),
            recipe=row.cooked(example.recipe),
            adjacency="add_remove",
            rows=given,
            noise=Noise.repeatable(0),
            inputs=example.inputs,
            device=device,
            progress=lambda done, of: steps.append((done, of)),
        )
    )
    assert steps == sorted(steps), "progress does not go back"
    assert steps[-1][0] == steps[-1][1] > 0, "and ends"
    assert len({of for _, of in steps}) == 1
    return made


def shapes(made: Made) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in made.tensors.items()}


def test_every_mechanism_has_an_example() -> None:
    assert set(EXAMPLES) == set(MECHANISMS)


@pytest.mark.parametrize("name", MECHANISMS)
def test_it_runs_where_the_job_runs(name: str, file: Path, device: str) -> None:
    made = ran(name, file, device=device)
    assert made.tensors or name in {"label-release", "accuracy"}
    assert all(bool(tensor.isfinite().all()) for tensor in made.tensors.values())
    assert {tensor.device.type for tensor in made.tensors.values()} <= {"cpu"}, "an artifact is of no device"
    if "predictor" in made.facts:
        assert made.facts["label_rules"] == [{"remap": [], "remap_rule": "exact", "otherwise": ""}]


def told(name: str, labels: list[str], *, bias: bool = True) -> Example:
    """Its example, with labels that a release told."""
    example = EXAMPLES[name]
    recipe = {key: value for key, value in example.recipe.items() if key != "label_names"}
    known = {"label_source": "released", "labels_release": "rel_labels"} | ({} if bias else {"bias": False})
    parameters = dict(example.parameters)
    if name == "output-perturbation-as-published":
        parameters["weights"] = len(labels) * (SIZE + bias)
    inputs = {**example.inputs, "labels_release": Artifact(Made(tensors={}, facts={"labels": labels}))}
    return Example(parameters=parameters, recipe=recipe | known, inputs=inputs)


LABELLED: Final = [name for name in MECHANISMS if "label_source" in EXAMPLES[name].recipe]
BIASED: Final = [name for name in LABELLED if any(each.name == "bias" for each in CATALOG[name].recipe)]


@pytest.mark.parametrize("labels", [[], ["0"], ["7"], ["0", "1"]], ids=["none", "one", "nobody's", "both"])
@pytest.mark.parametrize(("name", "bias"), [*((name, True) for name in LABELLED), *((name, False) for name in BIASED)])
def test_what_is_made_of_any_labels_is_written_and_read(
    name: str,
    bias: bool,  # noqa: FBT001 - of a parametrisation
    labels: list[str],
    file: Path,
    tmp_path: Path,
) -> None:
    """Also with one label or none, which is what a small task releases."""
    if name == "output-perturbation-as-published" and not labels:
        with pytest.raises(ValueError, match=r"parameters.weights: expected"):
            ran(name, file, example=told(name, labels, bias=bias))
        return
    made = ran(name, file, example=told(name, labels, bias=bias))
    artifacts.write(tmp_path, made, CARD, releasable=False)
    found = artifacts.read(tmp_path / artifacts.MODEL, release="rel_1")
    assert found.facts["labels"] == labels
    assert {each: tensor.tolist() for each, tensor in found.tensors.items()} == {
        each: tensor.tolist() for each, tensor in made.tensors.items()
    }


@pytest.mark.parametrize("name", [name for name in MECHANISMS if CATALOG[name].proof_status == "proved"])
def test_nobody_is_released_like_everybody(name: str, file: Path, device: str) -> None:
    """Of an empty scope comes what comes of a full one, by names, shapes and facts; the numbers are noise."""
    full, empty = ran(name, file, device=device), ran(name, file, device=device, without=range(2 * TASK))
    assert shapes(empty) == shapes(full)
    if name == "label-release":
        assert full.facts["labels"] == ["0", "1"]
        assert empty.facts["labels"] == []
        return
    assert set(empty.facts) == set(full.facts)
    noisy = {"correct", "wrong", "accuracy"}  # what the mechanism `accuracy` is there to tell
    assert {k: v for k, v in empty.facts.items() if k not in noisy} == {
        k: v for k, v in full.facts.items() if k not in noisy
    }
    assert all(bool(tensor.isfinite().all()) for tensor in empty.tensors.values())


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_row_that_is_not_finite_is_nobodys(name: str, file: Path) -> None:
    """To the last bit it is as if that datapoint had been trimmed; without another one it is not."""
    broken, trimmed = ran(name, file), ran(name, file, without=range(BROKEN, BROKEN + 1))
    assert broken.facts == trimmed.facts
    assert broken.tensors.keys() == trimmed.tensors.keys()
    assert all(torch.equal(broken.tensors[each], trimmed.tensors[each]) for each in broken.tensors)
    if broken.tensors:
        fewer = ran(name, file, without=range(BROKEN + 1, TASK))
        assert any(not torch.equal(broken.tensors[each], fewer.tensors[each]) for each in broken.tensors)
