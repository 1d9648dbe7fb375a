"""`dp-sgd` as a run: on real digits, on nobody, on a stream of tasks, and what it is charged."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from numpy.typing import NDArray

from accountant import InvalidInput, account
from accountant.calibration import calibrate_noise_multiplier
from accountant.events import Adjacency, Composed, Event
from trainers.catalog import mechanism
from trainers.mechanisms.dp_sgd import run as dp_sgd
from trainers.models import build, load
from trainers.noise import Noise
from trainers.ports import Made, Rows, Run

ROW: Final = mechanism("dp-sgd")
DELTA: Final = 1e-5
DIGITS: Final = [str(digit) for digit in range(10)]
TRAINING: Final[dict[str, Any]] = {
    "noise_multiplier": 1.1,
    "sampling_probability": 0.1,
    "steps": 120,
    "clip_norm": 1.0,
}
RECIPE: Final[dict[str, Any]] = {
    "model": "linear",
    "shape": [784],
    "learning_rate": 0.5,
    "label_source": "prior",
    "label_names": DIGITS,
}


@dataclass(frozen=True)
class Digits:
    x: NDArray[np.float32]
    y: NDArray[np.int64]

    def only(self, digits: Sequence[int]) -> Digits:
        kept = np.isin(self.y, digits)
        return Digits(self.x[kept], self.y[kept])

    def rows(self, slots: int | None = None) -> Rows:
        return Rows(slots=slots or len(self.y), unit=np.arange(len(self.y)), x=self.x, y=self.y)

    def right(self, made: Made) -> float:
        """The share of these that a release tells rightly."""
        module = build(made.facts["recipe"], outputs=len(made.facts["labels"]))
        load(module, made.tensors)
        with torch.no_grad():
            told = module(torch.from_numpy(self.x)).argmax(1).numpy()
        return float(np.mean(np.array(made.facts["labels"])[told] == self.y.astype(str)))


NOBODY: Final = Digits(np.empty((0, 784), dtype=np.float32), np.empty(0, dtype=np.int64))


@dataclass(frozen=True)
class Release:
    tensors: Any
    facts: Any
    release: str = "rel_1"


@pytest.fixture(scope="session")
def digits(shared_data: Path) -> tuple[Digits, Digits]:
    """4,000 to train on and 1,000 to test on."""

    def read(name: str, header: int, count: int) -> NDArray[np.uint8]:
        with gzip.open(shared_data / "mnist" / name) as file:
            return np.frombuffer(file.read(header + count)[header:], dtype=np.uint8)

    images = read("train-images-idx3-ubyte.gz", 16, 5000 * 784).reshape(5000, 784)
    x = np.divide(images, 255, dtype=np.float32)
    y = read("train-labels-idx1-ubyte.gz", 8, 5000).astype(np.int64)
    return Digits(x[:4000], y[:4000]), Digits(x[4000:], y[4000:])


def training(
    *rows: Rows,
    parameters: dict[str, Any] | None = None,
    recipe: dict[str, Any] | None = None,
    seed: int = 1,
    device: str = "cpu",
    adjacency: Adjacency = "add_remove",
    start: Made | None = None,
    progress: Any = lambda _done, _of: None,
) -> Made:
    parameters = TRAINING | {"tasks": [f"t{n}" for n in range(len(rows) - 1)]} | (parameters or {})
    assert len(ROW.quote(parameters, adjacency=adjacency).charges) == len(rows)
    inputs = {} if start is None else {"start": Release(start.tensors, start.facts)}
    cooked = ROW.cooked(RECIPE | (recipe or {}) | ({} if start is None else {"start": "rel_1"}))
    return dp_sgd(
        Run(
            parameters=parameters,
            recipe=cooked,
            adjacency=adjacency,
            rows=rows,
            noise=Noise.repeatable(seed),
            inputs=inputs,
            device=device,
            progress=progress,
        )
    )


def test_digits_are_told_at_epsilon_8(digits: tuple[Digits, Digits], device: str) -> None:
    train, test = digits
    [charge] = ROW.quote(TRAINING, adjacency="add_remove").charges
    assert account(charge.event, delta=DELTA).upper <= 8
    told: list[tuple[int, int]] = []
    made = training(train.rows(), device=device, progress=lambda done, of: told.append((done, of)))
    assert test.right(made) > 0.75
    assert told == [(step, 120) for step in range(1, 121)]
    assert made.facts["labels"] == DIGITS
    assert all(tensor.device.type == "cpu" for tensor in made.tensors.values())


@pytest.mark.parametrize(
    "recipe",
    [
        {"model": "mlp", "hidden": [32], "optimiser": "adam", "learning_rate": 0.01},
        {"model": "cnn", "hidden": [4], "shape": [1, 28, 28], "learning_rate": 0.3, "physical_batch": 100},
    ],
    ids=["mlp-adam", "cnn"],
)
def test_other_models_and_optimisers_learn_too(digits: tuple[Digits, Digits], recipe: dict[str, Any]) -> None:
    train, test = (Digits(each.x.reshape(-1, *recipe.get("shape", [784])), each.y) for each in digits)
    made = training(train.rows(), recipe=recipe, parameters={"steps": 40})
    assert test.right(made) > 0.5


def test_an_empty_task_runs_the_same_program(digits: tuple[Digits, Digits], device: str) -> None:
    """Same shapes, same progress, weights of noise alone: nothing tells that nobody was there."""
    train, test = digits
    told: dict[str, list[tuple[int, int]]] = {"empty": [], "full": []}
    empty = training(NOBODY.rows(slots=4000), device=device, progress=lambda *at: told["empty"].append(at))
    full = training(train.rows(), device=device, progress=lambda *at: told["full"].append(at))
    assert told["empty"] == told["full"]
    assert empty.facts == full.facts
    assert {name: each.shape for name, each in empty.tensors.items()} == {
        name: each.shape for name, each in full.tensors.items()
    }
    weights = empty.tensors["1.weight"]
    assert bool((weights != 0).all())
    # 120 steps of SGD with momentum 0.9 on noise of deviation σ / 400: each step is taken about tenfold in the end.
    expected = 0.5 * TRAINING["noise_multiplier"] / 400 * 10 * np.sqrt(120)
    assert 0.7 * expected < float(weights.std()) < 1.1 * expected
    assert test.right(empty) < 0.4
    assert training(NOBODY.rows(slots=0), parameters={"steps": 2}).tensors.keys() == empty.tensors.keys()


def test_what_one_datapoint_changes_is_bounded(digits: tuple[Digits, Digits]) -> None:
    """One step of plain descent, everyone sampled: a digit that is turned white moves the weights by at most
    2 · clip_norm · learning_rate / slots under replace_one, by half of that if it is null."""
    train, _ = digits
    parameters = {"steps": 1, "sampling_probability": 1.0, "noise_multiplier": 1e-6, "clip_norm": 0.1}

    def weights(given: Digits, adjacency: Adjacency = "add_remove", slots: int = 4000) -> torch.Tensor:
        made = training(given.rows(slots), parameters=parameters, adjacency=adjacency, recipe={"learning_rate": 1.0})
        return torch.cat([each.flatten() for each in made.tensors.values()]).double()

    replaced = Digits(np.concatenate([train.x[:-1], 1 - train.x[-1:]]), np.append(train.y[:-1], 9 - train.y[-1]))
    moved = (weights(train, "replace_one") - weights(replaced, "replace_one")).norm()
    assert 0.1 / 4000 < float(moved) <= 2 * 0.1 / 4000 * 1.01
    null = Digits(train.x[:-1], train.y[:-1])
    assert float((weights(train) - weights(null)).norm()) == pytest.approx(0.1 / 4000, rel=0.01)


def test_a_stream_forgets_from_its_last_release_and_not_with_all_its_data(digits: tuple[Digits, Digits]) -> None:
    """The naive baseline starts from the last release; the full-data baseline samples the earlier task as well.

    Either has ε = 8 for the life of a datapoint. With all data an early one is in both releases, which are so much
    noisier; a late one is in the last alone.
    """
    train, test = digits
    early, late = train.only([0, 1, 2, 3, 4]), train.only([5, 6, 7, 8, 9])
    old, new = test.only([0, 1, 2, 3, 4]), test.only([5, 6, 7, 8, 9])

    def at(releases: int) -> dict[str, Any]:
        """Noise with which a datapoint may be in so many of the releases."""
        steps, sampling = TRAINING["steps"] * releases, TRAINING["sampling_probability"]
        found = calibrate_noise_multiplier(epsilon=8.0, delta=DELTA, sampling_probability=sampling, steps=steps)
        return {"noise_multiplier": found}

    def charged(parameters: dict[str, Any], tasks: list[str]) -> list[Event]:
        """What a release takes from the datapoints of its own task, then from those of the others."""
        quoted = ROW.quote(TRAINING | parameters | {"tasks": tasks}, adjacency="add_remove")
        return [charge.event for charge in quoted.charges]

    def for_life(*events: Event) -> float:
        return account(Composed(events=events), delta=DELTA).upper

    once, twice = at(1), at(2)
    [of_naive] = charged(once, [])
    assert 7.9 < for_life(of_naive) <= 8  # an early datapoint in the first release, a late one in the second
    [in_first] = charged(twice, [])
    of_late, of_early = charged(twice, ["early"])
    assert 7.9 < for_life(in_first, of_early) <= 8
    assert for_life(of_late) <= 8

    first = training(early.rows(), parameters=once)
    naive = training(late.rows(), start=first, seed=2, parameters=once)
    full_first = training(early.rows(), parameters=twice)
    full = training(late.rows(), early.rows(), seed=2, parameters=twice)
    assert min(old.right(first), old.right(full_first)) > 0.8
    assert new.right(naive) > 0.6
    assert old.right(naive) < old.right(first) - 0.2
    assert old.right(full) > old.right(naive) + 0.2
    assert test.right(full) > 0.65 > test.right(naive)


def test_a_start_over_other_labels_is_refused() -> None:
    first = training(NOBODY.rows(slots=10), parameters={"steps": 1})
    with pytest.raises(InvalidInput, match=r"recipe.start: expected weights over the same labels"):
        training(NOBODY.rows(slots=10), start=first, recipe={"label_names": DIGITS[::-1]})
    with pytest.raises(InvalidInput, match="weights of the network"):
        training(NOBODY.rows(slots=10), start=first, recipe={"model": "mlp", "hidden": [3]})


def test_labels_outside_the_space_are_null_records() -> None:
    """The same noise, the same weights: whoever has a label that is not asked for might as well not be there."""
    some = Digits(np.ones((6, 784), dtype=np.float32), np.array([0, 1, 2, 0, 1, 2]))
    two = {"label_names": ["0", "1"]}
    with_them = training(some.rows(), recipe=two, parameters={"steps": 3})
    kept = some.y < 2
    rows = Rows(slots=6, unit=np.flatnonzero(kept), x=some.x[kept], y=some.y[kept])
    without = training(rows, recipe=two, parameters={"steps": 3})
    assert all(torch.equal(with_them.tensors[name], without.tensors[name]) for name in without.tensors)


def test_a_released_label_set_may_be_empty() -> None:
    """Nobody's label was told: the classifier has no class, and the run is like any other."""
    told = Release({}, {"labels": []})
    recipe = ROW.cooked(
        {name: value for name, value in RECIPE.items() if name != "label_names"}
        | {"label_source": "released", "labels_release": "rel_1"}
    )
    some = Digits(np.ones((6, 784), dtype=np.float32), np.arange(6))
    made = dp_sgd(
        Run(
            parameters=TRAINING | {"steps": 2, "tasks": []},
            recipe=recipe,
            adjacency="add_remove",
            rows=[some.rows()],
            noise=Noise.repeatable(1),
            inputs={"labels_release": told},
        )
    )
    assert made.facts["labels"] == []
    assert made.tensors["1.weight"].shape == (0, 784)


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_each_task_is_charged_what_others_compute(adjacency: Adjacency) -> None:
    parameters = TRAINING | {"tasks": ["spring", "summer"]}
    quoted = ROW.quote(parameters, adjacency=adjacency)
    assert [charge.task for charge in quoted.charges] == [None, "spring", "summer"]
    relation = {
        "add_remove": dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
        "replace_one": dp_accounting.NeighboringRelation.REPLACE_ONE,
    }[adjacency]
    other = PLDAccountant(relation)
    other.compose(dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(1.1)), 120)
    for charge in quoted.charges:
        ours = account(charge.event, delta=DELTA, adjacency=adjacency).upper
        assert ours == pytest.approx(other.get_epsilon(DELTA), rel=2e-3)


def test_advice_changes_all_tasks_alike() -> None:
    parameters = TRAINING | {"tasks": ["spring"]}
    noisier = ROW.quote(parameters | {"noise_multiplier": 2.0}, adjacency="add_remove").charges[0].event
    event = ROW.quote(parameters, adjacency="add_remove").charges[0].event
    assert ROW.instead(parameters, [noisier, noisier], adjacency="add_remove") == parameters | {"noise_multiplier": 2.0}
    assert ROW.instead(parameters, [noisier, event], adjacency="add_remove") is None


def test_a_recipe_names_the_releases_that_it_builds_on() -> None:
    assert set(ROW.releases) == {"start", "labels_release"}
    assert ROW.module == dp_sgd.__module__
    assert ROW.cooked(RECIPE)["start"] == ""
