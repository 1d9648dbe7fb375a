"""Prototype sums: how far a datapoint moves them, noise of its own for every label, and tasks that add up."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from accountant import InvalidInput, account
from accountant.events import Adjacency, Gaussian
from tests.trainers.artifacts_in_memory import Artifact, released, rows_of
from tests.trainers.test_backbones import TINY, images
from trainers.backbones import Backbone
from trainers.catalog import mechanism
from trainers.mechanisms import cosine_classifier
from trainers.mechanisms.cosine_classifier import noisy_sums, unit_rows
from trainers.noise import Noise, grid_step
from trainers.ports import Rows
from trainers.predictors import predict

SIZE = 24
FINE = 2.0**-30  # a deviation whose grid is finer than the steps of unit vectors


class Silent(Noise):
    """Draws zeros, so that a test sees the exact sums."""

    def __init__(self) -> None:
        super().__init__(bytes(32), releasable=False)

    def normals(self, shape: Any, *, dtype: torch.dtype = torch.float32, device: Any = "cpu") -> torch.Tensor:
        return torch.zeros(tuple(shape), dtype=dtype, device=device)


def exact_sums(
    features: NDArray[np.float32], index: NDArray[np.int64], *, labels: int, rows_per_unit: int = 1
) -> NDArray[np.float64]:
    sums = noisy_sums(
        features, index, labels=labels, rows_per_unit=rows_per_unit, deviation=FINE, noise=Silent()
    ).numpy()
    assert isinstance(sums, np.ndarray)
    return sums


def distance(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Between all sums together, never below the truth: each square is an exact multiple of 2⁻⁶⁰, added exactly."""
    steps = ((one - other) * 2.0**30).flatten()
    assert np.array_equal(steps, np.trunc(steps))
    return math.sqrt(sum(int(step) ** 2 for step in steps)) * 2.0**-30


def cases() -> list[NDArray[np.float32]]:
    chance = np.random.default_rng(0)
    one = chance.standard_normal((40, SIZE)).astype(np.float32)
    return [
        one,
        np.abs(one),
        one * np.float32(1e37),
        one * np.float32(1e-40),  # subnormal
        np.eye(40, SIZE, dtype=np.float32),
        np.ones((40, SIZE), dtype=np.float32),
    ]


# How far one datapoint moves the sums


@pytest.mark.parametrize("features", cases())
def test_whoever_comes_or_goes_moves_all_sums_together_by_at_most_one(features: NDArray[np.float32]) -> None:
    index = np.random.default_rng(1).integers(-1, 5, size=len(features))
    all_there = exact_sums(features, index, labels=5)
    moved = []
    for gone in range(len(features)):
        kept = np.arange(len(features)) != gone
        moved.append(distance(all_there, exact_sums(features[kept], index[kept], labels=5)))
    assert max(moved) <= 1
    assert max(moved) > 0.999  # and the noise is not for nothing
    assert all(
        (much > 0.5) == (label >= 0) or not row.any() for much, label, row in zip(moved, index, features, strict=True)
    )


def test_whoever_is_replaced_moves_them_by_at_most_two() -> None:
    features = np.random.default_rng(0).standard_normal((6, SIZE)).astype(np.float32)
    index = np.array([0, 0, 1, 1, 2, 2])
    before = exact_sums(features, index, labels=3)
    opposite = features.copy()
    opposite[0] *= -1
    assert 1.999 < distance(before, exact_sums(opposite, index, labels=3)) <= 2
    elsewhere = index.copy()
    elsewhere[0] = 2
    assert 1.414 < distance(before, exact_sums(features, elsewhere, labels=3)) <= math.sqrt(2)


@pytest.mark.parametrize("rows_per_unit", [1, 3, 7])
def test_all_rows_of_a_datapoint_together_move_them_by_at_most_one(rows_per_unit: int) -> None:
    chance = np.random.default_rng(2)
    for shared in (True, False):
        rows = chance.standard_normal((1 if shared else rows_per_unit, SIZE)).astype(np.float32)
        rows = np.broadcast_to(rows, (rows_per_unit, SIZE)).copy()  # all alike is the worst
        index = np.zeros(rows_per_unit, dtype=np.int64) if shared else np.arange(rows_per_unit) % 2
        moved = distance(
            exact_sums(rows, index, labels=2, rows_per_unit=rows_per_unit),
            exact_sums(rows[:0], index[:0], labels=2, rows_per_unit=rows_per_unit),
        )
        assert moved <= 1
        assert moved > 0.999 or not shared


def test_rows_that_are_zero_or_not_finite_add_nothing() -> None:
    rows = torch.zeros((4, 3))
    rows[1, 1], rows[2, 0], rows[3] = math.nan, math.inf, torch.tensor([3.0, 0.0, 4.0])
    units = unit_rows(rows, rows_per_unit=1)
    assert not units[:3].any()
    assert units[3].tolist() == pytest.approx([0.6, 0.0, 0.8], rel=2e-6)


@pytest.mark.parametrize("labels", [1, 2, 300])
def test_sums_in_pieces_are_those_of_one_loop(labels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = np.random.default_rng(3)
    features = chance.standard_normal((500, SIZE)).astype(np.float32)
    index = chance.integers(-1, labels, size=500)
    whole = exact_sums(features, index, labels=labels)
    expected = np.zeros((labels + 1, SIZE))
    np.add.at(expected, index, unit_rows(torch.from_numpy(features), rows_per_unit=1).numpy())
    assert np.array_equal(whole, expected[:labels])
    monkeypatch.setattr(cosine_classifier, "_CHUNK", 7 * SIZE)
    assert np.array_equal(exact_sums(features, index, labels=labels), whole)
    order = chance.permutation(500)
    assert np.array_equal(exact_sums(features[order], index[order], labels=labels), whole)


# Noise


def differences(sums: NDArray[np.float64], exact: NDArray[np.float64]) -> float:
    """The deviation of what noise leaves on differences between labels."""
    noise = sums - exact
    return float((noise[1:] - noise[:-1]).std())


def test_every_label_has_noise_of_its_own() -> None:
    """Equation 9 of the paper, one vector for all labels of a task, gives differences away: the control finds it."""
    features = np.random.default_rng(4).standard_normal((30, SIZE)).astype(np.float32)
    index = np.random.default_rng(5).integers(100, size=30)  # most labels have nobody
    exact = exact_sums(features, index, labels=100)
    sums = noisy_sums(features, index, labels=100, deviation=2.0, noise=Noise.repeatable(1)).numpy()
    assert (sums - exact).std() == pytest.approx(2.0, rel=0.05)
    assert differences(sums, exact) == pytest.approx(2 * math.sqrt(2), rel=0.05)
    as_printed = exact + 2.0 * Noise.repeatable(1).normals((1, SIZE), dtype=torch.float64).numpy()
    assert differences(as_printed, exact) < 1e-12


def task(recipe: dict[str, Any], x: NDArray[np.float32], y: list[str], *, seed: int, **more: Any) -> Artifact:
    recipe = {"label_source": "prior", "feature_size": SIZE, **recipe}
    rows = rows_of(x, np.array(y, dtype=str))
    return released("cosine-classifier", {"noise_multiplier": 0.5}, recipe, rows, noise=Noise.repeatable(seed), **more)


def test_an_empty_task_and_a_label_of_one_run_the_same_program() -> None:
    """With the same chance the two differ by the one row and by nothing else: no label is skipped or drawn twice."""
    x = np.random.default_rng(6).standard_normal((1, SIZE)).astype(np.float32)
    empty = task({"label_names": ["a", "b", "c"]}, x[:0], [], seed=1)
    single = task({"label_names": ["a", "b", "c"]}, x, ["b"], seed=1)
    assert empty.facts == single.facts
    moved = (single.tensors["sums"] - empty.tensors["sums"]).numpy()
    assert not moved[[0, 2]].any()
    assert moved[1] == pytest.approx(unit_rows(torch.from_numpy(x), rows_per_unit=1).numpy()[0], abs=grid_step(0.5))
    assert (empty.tensors["sums"] != 0).all()
    assert set(predict([empty], x)) <= {"a", "b", "c"}


def test_labels_outside_the_set_leave_no_trace() -> None:
    x = np.random.default_rng(7).standard_normal((4, SIZE)).astype(np.float32)
    within = task({"label_names": ["a", "b"]}, x[:2], ["a", "b"], seed=1)
    more = task({"label_names": ["a", "b"]}, x, ["a", "b", "c", ""], seed=1)
    assert torch.equal(within.tensors["sums"], more.tensors["sums"])
    assert within.facts == more.facts


def test_a_released_set_may_be_empty() -> None:
    x = np.random.default_rng(7).standard_normal((4, SIZE)).astype(np.float32)
    nothing = Artifact(release="labels", tensors={}, facts={"labels": []})
    inputs = {"labels_release": nothing}
    made = task({"label_source": "released"}, x, ["a", "b", "c", "d"], seed=1, inputs=inputs)
    assert made.tensors["sums"].shape == (0, SIZE)
    assert predict([made], x).tolist() == [""] * 4


# Tasks


def test_sums_of_tasks_add_up_and_labels_grow() -> None:
    x = np.random.default_rng(8).standard_normal((8, SIZE)).astype(np.float32)
    first = task({"label_names": ["a", "b"]}, x[:4], ["a", "b", "b", "a"], seed=1)
    alone = task({"label_names": ["c", "b"]}, x[4:], ["c", "b", "c", "b"], seed=2)
    second = task({"label_names": ["c", "b"]}, x[4:], ["c", "b", "c", "b"], seed=2, inputs={"previous": first})
    assert second.facts["labels"] == ["a", "b", "c"]
    one, two = first.tensors["sums"], alone.tensors["sums"]
    assert torch.equal(second.tensors["sums"], torch.stack([one[0], one[1] + two[1], two[0]]))


def test_only_sums_of_the_same_features_are_added() -> None:
    x = images(3)
    tiny = {"tiny": Backbone(TINY)}
    recipe = {"label_source": "prior", "label_names": ["a"], "backbone": "tiny"}
    rows, parameters = rows_of(x, ["a", "a", "b"]), {"noise_multiplier": 1.0}

    def next_task(previous: Artifact) -> Artifact:
        noise, inputs = Noise.repeatable(1), {"previous": previous}
        return released("cosine-classifier", parameters, recipe, rows, noise=noise, inputs=inputs, backbones=tiny)

    before = released("cosine-classifier", parameters, recipe, rows, noise=Noise.repeatable(1), backbones=tiny)
    assert before.facts["backbone"] == {"name": "tiny", "digest": tiny["tiny"].digest}
    assert next_task(before).tensors["sums"].shape == (1, 16)
    other = {"name": "tiny", "digest": "sha256:0"}
    for facts in ({**before.facts, "backbone": other}, {**before.facts, "predictor": "linear"}):
        with pytest.raises(InvalidInput, match=r"recipe\.previous"):
            next_task(Artifact(release="old", tensors=before.tensors, facts=facts))
    with pytest.raises(InvalidInput, match=r"recipe\.previous"):
        next_task(Artifact(release="old", tensors={"sums": torch.zeros(1, 3)}, facts=before.facts))


def test_it_runs_on_each_device(device: str) -> None:
    x = np.random.default_rng(9).standard_normal((4, SIZE)).astype(np.float32)
    recipe = {"label_source": "prior", "label_names": ["a", "b"], "feature_size": SIZE}
    rows = Rows(slots=3, unit=np.array([0, 0, 2, 2]), x=x, y=np.array(["a", "b", "a", "a"]), rows_per_unit=2)
    made = released(
        "cosine-classifier", {"noise_multiplier": 1e-3}, recipe, rows, noise=Noise.repeatable(1), device=device
    )
    units = x / np.linalg.norm(x, axis=1, keepdims=True) / 2
    expected = np.stack([units[[0, 2, 3]].sum(0), units[1]])
    assert made.tensors["sums"].numpy() == pytest.approx(expected, abs=0.01)


# The price


def analytic_epsilon(mu: float, *, delta: float) -> float:
    """The least ε of a Gaussian release whose sum moves by mu deviations (Balle & Wang 2018, theorem 8)."""

    def phi(at: float) -> float:
        return math.erfc(-at / math.sqrt(2)) / 2

    low, high = 0.0, 200.0
    for _ in range(200):
        epsilon = (low + high) / 2
        if phi(-epsilon / mu + mu / 2) - math.exp(epsilon) * phi(-epsilon / mu - mu / 2) > delta:
            low = epsilon
        else:
            high = epsilon
    return high


@pytest.mark.parametrize(("adjacency", "moves"), [("add_remove", 1), ("replace_one", 2)])
@pytest.mark.parametrize("noise_multiplier", [0.6002, 3.7306, 7.4613])
def test_the_price_is_that_of_one_gaussian(adjacency: Adjacency, moves: int, noise_multiplier: float) -> None:
    quoted = mechanism("cosine-classifier").quote({"noise_multiplier": noise_multiplier}, adjacency=adjacency)
    [charge] = quoted.charges
    assert (charge.start, charge.part, charge.task, quoted.life) == (None, None, None, None)
    expected = analytic_epsilon(moves / noise_multiplier, delta=1e-5)
    assert account(charge.event, delta=1e-5, adjacency=adjacency).upper == pytest.approx(expected, rel=1e-3)
    assert account(charge.event, delta=1e-5, adjacency=adjacency).upper >= expected * (1 - 1e-9)


def test_the_card_s_figures_are_met() -> None:
    assert analytic_epsilon(1 / 3.7306, delta=1e-5) == pytest.approx(1, rel=1e-4)
    assert analytic_epsilon(2 / 1.2005, delta=1e-5) == pytest.approx(8, rel=1e-3)


def test_what_to_do_instead_is_more_noise() -> None:
    row = mechanism("cosine-classifier")
    asked = {"noise_multiplier": 1.0}
    assert row.instead(asked, [Gaussian(noise_multiplier=2.5)], adjacency="add_remove") == {"noise_multiplier": 2.5}
