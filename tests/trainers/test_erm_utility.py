"""What noisy models of a stream are good for, on real data, at ε = 8 for a whole life."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray

from accountant import account
from accountant.events import Gaussian
from trainers.catalog import mechanism
from trainers.catalog.parameters import read
from trainers.noise import Noise
from trainers.ports import Made, Rows, Run
from trainers.predictors import predict

DELTA: Final = 1e-5
MU: Final = 1.66  # of a life; see the first test
CHANCE: Final = 0.1  # of ten labels


def test_the_lives_below_cost_at_most_eight() -> None:
    assert 7.5 < account(Gaussian(noise_multiplier=1 / MU), delta=DELTA).upper <= 8


@dataclass(frozen=True)
class Stream:
    """Rows in the order in which they arrive."""

    x: NDArray[np.float32]
    y: NDArray[Any]
    labels: Sequence[str]

    def rows(self, start: int, stop: int) -> Rows:
        return Rows(slots=stop - start, unit=np.arange(stop - start), x=self.x[start:stop], y=self.y[start:stop])

    def released(self, name: str, parameters: dict[str, Any], *, steps: int, **recipe: Any) -> list[Made]:
        """What the first steps of a mechanism release, each leaning on the one before."""
        row, made = mechanism(name), list[Made]()
        for step in range(steps):
            given = {each.name: each.default for each in row.parameters if not each.when} | parameters | {"step": step}
            charges = row.quote(given, adjacency="add_remove").charges
            names = {"previous": [f"rel_{step - 1}"]} if made and "previous" in row.releases else {}
            basics = {"shape": [self.x.shape[1]], "label_source": "prior", "label_names": list(self.labels)}
            assert row.module is not None
            run = Run(
                parameters=given,
                recipe=row.cooked(basics | recipe | names),
                adjacency="add_remove",
                rows=[self.rows(charge.start or 0, charge.stop or 0) for charge in charges],
                noise=Noise.repeatable(step),
                inputs={f"{name}.0": _Artifact(f"rel_{step - 1}", made[-1]) for name in names},
            )
            made.append(import_module(row.module).run(run))
        return made

    def accuracy(self, made: Made, start: int, stop: int) -> float:
        """On rows whose label is one of those that are known."""
        truth = self.y[start:stop].astype(str)
        known = np.isin(truth, self.labels)
        found = predict([_Artifact("rel_0", made)], self.x[start:stop][known])
        return float((found == truth[known]).mean())


@dataclass(frozen=True)
class _Artifact:
    release: str
    made: Made

    @property
    def tensors(self) -> Any:
        return self.made.tensors

    @property
    def facts(self) -> Any:
        return self.made.facts


@pytest.fixture(scope="module")
def digits(shared_data: Path) -> Stream:
    with gzip.open(shared_data / "mnist" / "train-images-idx3-ubyte.gz") as file:
        x = np.frombuffer(file.read(16 + 784 * 5000), dtype=np.uint8)[16:].reshape(-1, 784)
    with gzip.open(shared_data / "mnist" / "train-labels-idx1-ubyte.gz") as file:
        y = np.frombuffer(file.read(8 + 5000), dtype=np.uint8)[8:]
    return Stream(x=(x / 255).astype(np.float32), y=y.astype(np.int64), labels=[str(digit) for digit in range(10)])


@pytest.fixture(scope="module")
def titles(shared_data: Path) -> Stream:
    """Titles of the arXiv from 1991 to 1996, as embeddings, in the order of time; the ten most frequent categories."""
    with np.load(shared_data / "arxiv" / "minilm_int8_paperscape_10k.npz") as stored:
        x, y = stored["emb_int8"].astype(np.float32) * stored["scale"], stored["primary"]
    return Stream(x=x, y=y, labels=[str(label) for label, _ in Counter(y.tolist()).most_common(10)])


@pytest.mark.parametrize(
    ("name", "parameters", "steps", "least"),
    [
        ("sliding-window", {"k": 3, "w0": 256}, 4, 0.5),
        ("multi-resolution", {"pane": 256}, 4, 0.5),
        ("continual-release", {"pane": 256, "doublings": 2}, 4, 0.5),
    ],
)
def test_digits_are_told_apart(digits: Stream, name: str, parameters: Any, steps: int, least: float) -> None:
    """784 pixels as they are; Gaussian noise for a life of ε = 8."""
    life = {"noise": "gaussian", "mu": MU}
    made = digits.released(name, parameters | life, steps=steps, radius=8.0, modulus=1.0, iterations=25)
    assert digits.accuracy(made[-1], 4000, 5000) > least > 4 * CHANCE


def test_pure_noise_does_for_few_weights(digits: Stream) -> None:
    """Its norm grows with the number of weights and not with its root: 49 large pixels and a pane of 4000 will do."""
    pooled = digits.x.reshape(-1, 7, 4, 7, 4).mean(axis=(2, 4)).reshape(-1, 49)
    small = Stream(x=pooled, y=digits.y, labels=digits.labels)
    made = small.released(
        "sliding-window", {"k": 1, "w0": 4000, "epsilon": 8.0}, steps=1, radius=3.0, modulus=0.3, iterations=25
    )
    assert small.accuracy(made[-1], 4000, 5000) > 4 * CHANCE


@pytest.mark.parametrize(
    ("name", "parameters", "steps", "stale"),
    [
        ("sliding-window", {"k": 3, "w0": 512}, 12, 0),
        ("multi-resolution", {"pane": 512, "levels": 3}, 16, 3),  # both are models of four panes
        ("continual-release", {"pane": 512, "doublings": 2}, 13, 0),
    ],
)
def test_a_model_that_moves_beats_one_that_stays(
    titles: Stream, name: str, parameters: Any, steps: int, stale: int
) -> None:
    """Physics moved from strings to stars: the model of an early step falls behind on the last titles."""
    life = {"noise": "gaussian", "mu": MU}
    made = titles.released(name, parameters | life, steps=steps, radius=1.0, modulus=0.003, iterations=25)
    seen = max(model["stop"] for model in made[-1].facts["models"])
    stayed, moved = (titles.accuracy(each, seen, len(titles.x)) for each in (made[stale], made[-1]))
    assert moved > stayed + 0.05
    assert moved > 4 * CHANCE


@pytest.mark.parametrize(
    ("parameters", "side", "recipe"),
    [
        ({"noise": "gaussian", "noise_multiplier": 1 / MU}, 28, {"radius": 8.0, "modulus": 0.3}),
        ({"epsilon": 8.0}, 7, {"radius": 3.0, "modulus": 0.1}),  # pure noise does for few weights
    ],
)
def test_one_noisy_model_tells_digits_apart(digits: Stream, parameters: Any, side: int, recipe: Any) -> None:
    """4000 digits at ε = 8: 784 pixels with Gaussian noise, 49 large ones with pure noise."""
    x = digits.x.reshape(-1, side, 28 // side, side, 28 // side).mean(axis=(2, 4)).reshape(-1, side * side)
    seen = Stream(x=x, y=digits.y, labels=digits.labels)
    row = mechanism("output-perturbation")
    assert row.module is not None
    labels = {"shape": [x.shape[1]], "label_source": "prior", "label_names": list(seen.labels)}
    made = import_module(row.module).run(
        Run(
            parameters=read("parameters", row.parameters, parameters),
            recipe=row.cooked({**labels, **recipe, "iterations": 25}),
            adjacency="add_remove",
            rows=[seen.rows(0, 4000)],
            noise=Noise.repeatable(0),
        )
    )
    assert seen.accuracy(made, 4000, 5000) > 6 * CHANCE
