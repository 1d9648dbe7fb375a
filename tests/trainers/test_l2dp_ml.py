"""L2DP-ML: statistics that are each released once, and how the published noise is solved for."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final

import numpy as np
import pytest
import torch

from accountant import InvalidInput, account
from accountant.book import Policy
from accountant.calibration import calibrate_noise_multiplier
from accountant.events import Adjacency, Gaussian, NonPrivate
from accountant.filters import Filter
from tests.accountant.strategies import ADJACENCIES
from tests.trainers.streams import Artifact, digits, ran, rows
from trainers.catalog import mechanism
from trainers.columns import DataProblem
from trainers.mechanisms import l2dp_ml_as_published as published
from trainers.mechanisms.l2dp_ml import classifier, exact_statistics, noisy_statistics, public_map, unit_features
from trainers.noise import Noise
from trainers.ports import Made, Rows
from trainers.predictors import predict

#: ε = 8 at δ = 1e-5 under add_remove (card M2).
EIGHT: Final[dict[str, Any]] = {"noise_multiplier": 0.6003}


def recipe(labels: list[str], inputs: int, **others: Any) -> dict[str, Any]:
    return {"label_source": "prior", "label_names": labels, "inputs": inputs, **others}


# The price


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("weight", [0.1, 1.0, 7.0])
def test_the_price_is_that_of_one_gaussian(adjacency: Adjacency, weight: float) -> None:
    """δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), μ = C/σ or 2C/σ."""
    [charge] = mechanism("l2dp-ml").quote({**EIGHT, "moment_weight": weight}, adjacency=adjacency).charges
    assert (charge.part, charge.task, charge.start) == (None, None, None)
    mu = (1 if adjacency == "add_remove" else 2) / EIGHT["noise_multiplier"]
    phi = NormalDist().cdf
    epsilon = account(charge.event, delta=1e-5, adjacency=adjacency).upper
    delta = phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(1e-5, rel=1e-3)
    if adjacency == "add_remove":
        assert epsilon == pytest.approx(8, abs=0.01)


def test_other_noise_leads_back_to_parameters() -> None:
    row = mechanism("l2dp-ml")
    found = row.instead(EIGHT, [Gaussian(noise_multiplier=2.5)], adjacency="add_remove")
    assert found == {"noise_multiplier": 2.5}
    assert row.instead(EIGHT, [NonPrivate()], adjacency="add_remove") is None


def test_the_published_version_has_no_price() -> None:
    row = mechanism("l2dp-ml-as-published")
    tasks = [{"task": "a", "epochs": 1}, {"task": "b", "epochs": 3}]
    charges = row.quote({"tasks": tasks, "epsilon_1": 0.1, "epsilon_2": 0.1}, adjacency="replace_one").charges
    assert [(charge.task, charge.part) for charge in charges] == [("a", None), ("b", None)]
    assert all(account(charge.event, delta=0.5).upper == math.inf for charge in charges)
    assert row.proof_status == "refuted"
    assert row.proof_status not in Policy(version=1, budget=Filter.of(epsilon=1.0, delta=1e-6)).accepts


# What a datapoint adds


def contribution(given: Rows, feature_map: torch.Tensor | None, weight: float) -> torch.Tensor:
    sums, moments = exact_statistics(given, np.asarray(given.y), feature_map, labels=3)
    return torch.cat([sums.flatten(), weight * moments.flatten()])


@pytest.mark.parametrize("projection", [False, True])
def test_a_datapoint_adds_no_more_than_is_charged(projection: bool) -> None:  # noqa: FBT001
    """Rows of every scale, three for each datapoint: at most √(1 + w²), which rows that agree attain."""
    random = np.random.default_rng(3)
    feature_map = public_map({"features": "projection", "inputs": 5, "size": 4}) if projection else None
    x = np.concatenate(
        [
            random.normal(size=(40, 5)) * 10.0 ** random.integers(-37, 37, size=(40, 1)),
            np.zeros((3, 5)),
            np.full((3, 5), 3e38),
            np.full((2, 5), 1e-45),
        ]
    )
    for weight in (0.3, 1.0, 4.0):
        most = math.hypot(1, weight)
        norms = [
            float(contribution(rows(each[None], [1]), feature_map, weight).norm()) for each in x.astype(np.float32)
        ]
        assert max(norms) <= most
        assert max(norms) > (1 - 1e-5) * most
        assert min(norms) == 0
        three = [
            rows(x[place : place + 3], [0, 1, 1], slots=1, unit=np.zeros(3, dtype=np.int64), rows_per_unit=3)
            for place in range(len(x) - 2)
        ]
        assert max(float(contribution(each, feature_map, weight).norm()) for each in three) <= most
    # A replaced datapoint moves sums and moments by no more than twice that.
    one, other = (contribution(rows(each, [1]), feature_map, 1.0) for each in (np.ones((1, 5)), -np.ones((1, 5))))
    assert float((one - other).norm()) <= 2 * math.sqrt(2)


def test_the_noise_is_that_of_one_gaussian_mechanism() -> None:
    """On the diagonal of the moments σC/w, elsewhere σC/(w√2), which is σC for each coordinate of the norm."""
    size, weight, noise = 120, 2.0, 1.5
    exact = torch.eye(size, dtype=torch.float64)
    made = noisy_statistics(
        ["a", "b"],
        torch.ones((2, size), dtype=torch.float64),
        exact,
        noise=Noise.repeatable(5),
        noise_multiplier=noise,
        moment_weight=weight,
    )
    expected = noise * math.sqrt(1 + weight**2)
    assert torch.equal(made.moments, made.moments.T)
    assert made.deviation == pytest.approx(expected / weight)
    error = made.moments - exact
    above = error[tuple(torch.triu_indices(size, size, 1))]
    assert float(above.std()) == pytest.approx(expected / weight / math.sqrt(2), rel=0.05)
    assert float(error.diagonal().std()) == pytest.approx(expected / weight, rel=0.25)
    assert float((made.sums - 1).std()) == pytest.approx(expected, rel=0.2)
    assert abs(float(above.mean())) < 5 * expected / weight / math.sqrt(2 * len(above))
    assert not torch.equal(made.sums[0], made.sums[1])


def test_features_are_public_and_of_norm_one() -> None:
    given = {"features": "projection", "inputs": 6, "size": 3}
    one, other = public_map(given), public_map(given)
    assert one is not None
    assert other is not None
    assert torch.equal(one, other)
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0]], dtype=torch.float64)
    found = unit_features(x, None)
    assert found[0].tolist() == pytest.approx([0.6, 0.8], rel=1e-5)
    assert float(found[1:].abs().max()) == 0
    with pytest.raises(InvalidInput, match=r"^recipe\.inputs: expected at most 3"):
        public_map({"features": "identity", "inputs": 4, "size": 3})
    with pytest.raises(InvalidInput, match=r"^recipe\.size: expected at most 100 features"):
        public_map({"features": "projection", "inputs": 10**6, "size": 101})


def test_without_noise_the_classifier_is_ridge_regression() -> None:
    """Against the normal equations over the rows of both tasks together."""
    random = np.random.default_rng(2)
    x, y = random.normal(size=(90, 4)), random.integers(0, 3, 90)
    tasks = []
    for part in (slice(0, 50), slice(50, 90)):
        sums, moments = exact_statistics(rows(x[part], y[part]), y[part], None, labels=3)
        tasks.append(
            noisy_statistics(
                ["a", "b", "c"], sums, moments, noise=Noise.repeatable(1), noise_multiplier=1e-9, moment_weight=1.0
            )
        )
    labels, weight = classifier(tasks, ridge=0.5)
    unit = x.astype(np.float32).astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    expected = np.linalg.solve(unit.T @ unit + 0.5 * np.eye(4), unit.T @ np.eye(3)[y]).T
    assert labels == ("a", "b", "c")
    assert np.allclose(weight.numpy(), expected, atol=1e-4)


# Runs


def test_empty_tasks_and_single_records_run_the_same_program(device: str) -> None:
    """An empty scope, and a class without records, are noise like any other; a label outside the space is null."""
    made = [
        ran("l2dp-ml", EIGHT, recipe(["a", "b"], 3), [each], device=device)
        for each in (
            rows(np.zeros((0, 3)), np.zeros(0, dtype=str), slots=9),
            rows(np.ones((1, 3)), ["elsewhere"], slots=9),
            rows(np.ones((1, 3)), ["b"], slots=9),
        )
    ]
    empty, null, one = (each.tensors for each in made)
    assert torch.equal(empty["sums"], null["sums"])
    assert torch.equal(empty["moments"], null["moments"])
    assert float(empty["sums"].abs().min()) > 0
    difference = one["sums"] - empty["sums"]
    assert float(difference[0].abs().max()) == 0  # the other class has the same noise and no record
    assert float(difference[1].norm()) == pytest.approx(1, abs=1e-3)
    assert float((one["moments"] - empty["moments"]).norm()) == pytest.approx(1, abs=1e-3)
    assert made[0].facts == made[2].facts
    assert set(predict([made[0]], np.ones((4, 3), dtype=np.float32))) <= {"a", "b"}


def test_a_released_label_set_may_be_empty() -> None:
    """Moments are released all the same, and a later task with labels replays them."""
    nothing = Artifact(Made(tensors={}, facts={"labels": []}), release="rel_none")
    given = [rows(np.ones((4, 3)), ["a"] * 4)]
    learned = {"label_source": "released", "labels_release": "rel_none", "inputs": 3}
    empty = ran("l2dp-ml", EIGHT, learned, given, inputs={"labels_release": nothing})
    assert tuple(empty.tensors["sums"].shape) == (0, 3)
    assert set(predict([empty], np.ones((2, 3), dtype=np.float32))) == {""}
    after = ran("l2dp-ml", EIGHT, recipe(["a"], 3, previous=["rel_test"]), given, inputs={"previous.0": empty})
    assert after.facts["labels"] == ["a"]


def test_every_choice_of_features_is_a_map_of_its_own() -> None:
    [features] = [each for each in mechanism("l2dp-ml").recipe if each.name == "features"]
    known = {"inputs": 3, "size": 4}
    maps = [public_map(known | {"features": choice}) for choice in features.choices]
    shown = {"rows as they are" if each is None else str(each.tolist()) for each in maps}
    assert len(shown) == len(features.choices)


def test_statistics_of_other_features_are_not_replayed() -> None:
    given = [rows(np.ones((4, 3)), ["a"] * 4)]
    before = ran("l2dp-ml", EIGHT, recipe(["a"], 3, features="projection", size=2), given)
    for changed in ({"features": "identity"}, {"features": "projection", "size": 3}):
        with pytest.raises(InvalidInput, match=r"^recipe\.previous\[0\]: expected a release of l2dp-ml with the same"):
            ran(
                "l2dp-ml",
                EIGHT,
                recipe(["a"], 3, previous=["rel_test"], **changed),
                given,
                inputs={"previous.0": before},
            )
    with pytest.raises(DataProblem, match=r"^data\.shape$"):
        ran("l2dp-ml", EIGHT, recipe(["a"], 4), given)


@pytest.mark.parametrize("seed", [0, 100])
def test_five_tasks_of_digits_are_all_remembered(shared_data: Path, seed: int) -> None:
    """Two digits a task at ε = 8: all ten are told apart after the last, where the naive baseline knows two.

    Of either, a datapoint is in the one release of its own task, which may use up all of ε.
    """
    x, y = digits(shared_data, "train", 10_000)
    test_x, test_y = digits(shared_data, "t10k", 2_000)
    before: list[Artifact] = []
    naive: dict[str, Artifact] = {}
    everything = [str(digit) for digit in range(10)]
    training = {
        "steps": 60,
        "train_probability": 0.1,
        "train_noise_multiplier": calibrate_noise_multiplier(
            epsilon=8.0, delta=1e-5, sampling_probability=0.1, steps=60
        ),
        "memory_probability": 0.1,
        "memory_noise_multiplier": 1.0,
        "clip_norm": 1.0,
        "memories": [],
    }
    for name, parameters in (("l2dp-ml", EIGHT), ("episodic-memory", training)):
        [charge] = mechanism(name).quote(parameters, adjacency="add_remove").charges
        assert 7.99 < account(charge.event, delta=1e-5).upper <= 8, name
    for task in range(5):
        given = [rows(x[y // 2 == task], y[y // 2 == task])]
        made = ran(
            "l2dp-ml",
            EIGHT,
            recipe([str(2 * task), str(2 * task + 1)], 49, previous=[f"rel_{place}" for place in range(task)]),
            given,
            seed=seed + task,
            inputs={f"previous.{place}": each for place, each in enumerate(before)},
        )
        before.append(made)
        naive = {
            "start": ran(
                "episodic-memory",  # without memories it is DP-SGD (tested there)
                training,
                {
                    "model": "linear",
                    "shape": [49],
                    "learning_rate": 1.0,
                    "momentum": 0.0,
                    "label_source": "prior",
                    "label_names": everything,
                },
                given,
                seed=seed + task,
                inputs=naive,
            )
        }
    assert before[-1].facts["labels"] == everything

    def accuracy(released: Artifact) -> float:
        return float(np.mean(predict([released], test_x) == test_y.astype(str)))

    assert accuracy(before[-1]) > 0.6
    assert accuracy(naive["start"]) < 0.3


# As published


def learned(
    tasks: list[Rows], *, seed: int = 0, epsilon: float = 0.05, epochs: int = 1, **others: Any
) -> tuple[Artifact, published.Weights, published.Mask]:
    """The released weights, the public start, and the noise of the very same run, which nobody is told."""
    inputs = tasks[0].x.shape[1]
    cooked = recipe(["0", "1"], inputs, **{"hidden": 6, "last": 4, "scale": 1.0, **others})
    parameters = {
        "tasks": [{"task": str(place), "epochs": epochs} for place in range(len(tasks))],
        "epsilon_1": epsilon,
        "epsilon_2": epsilon,
    }
    made = ran("l2dp-ml-as-published", parameters, cooked, tasks, seed=seed)
    mask = published.drawn_mask(Noise.repeatable(seed), inputs, 6, 4, epsilon_1=epsilon, epsilon_2=epsilon)
    return made, published.initial(inputs, 6, 4, 2, scale=cooked["scale"]), mask


def stream(random: np.random.Generator, tasks: int, count: int, inputs: int) -> list[Rows]:
    return [
        rows(random.uniform(-1, 1, size=(count, inputs)), random.integers(0, 2, count).astype(str))
        for _ in range(tasks)
    ]


def test_differences_of_perturbed_records_are_free_of_noise() -> None:
    random = np.random.default_rng(0)
    x = torch.from_numpy(random.uniform(-1, 1, size=(30, 5)))
    mask = published.drawn_mask(Noise.repeatable(3), 5, 6, 4, epsilon_1=0.01, epsilon_2=0.01)
    made = published.perturbed(x, torch.zeros((30, 2)), mask, size=30).x
    assert float((made - x).abs().min()) > 1  # the noise is large
    assert torch.allclose(made[1:] - made[:-1], x[1:] - x[:-1], atol=1e-9)


def test_two_releases_give_the_noise_away() -> None:
    """Saturated hidden values: update t is m_t u_tᵀ with m_t = n/2 − S_t − χ1, so that m_2 − m_1 has no noise in it.

    Its directions are released, and two lengths that make them differ by S_1 − S_2 are found by least squares: they
    give the noise, and the wrong record for one that is not known leaves a residue.
    """
    random = np.random.default_rng(7)
    rate = 0.1
    first, second = stream(random, 2, 40, 5)
    made, start, mask = learned([first, second], learning_rate=rate)
    one, two = made.tensors["task.0.encoder"], made.tensors["task.1.encoder"]
    updates = [(start.encoder - one) * 40 / rate, (one - two) * 40 / rate]
    directions = torch.stack([torch.linalg.svd(update).U[:, 0] for update in updates], dim=1)

    def solved(known: Rows) -> tuple[torch.Tensor, torch.Tensor, float]:
        sums = [torch.from_numpy(each.x.astype(np.float64)).sum(0) for each in (known, second)]
        signed = directions * torch.tensor([-1.0, 1.0], dtype=torch.float64)
        lengths = torch.linalg.lstsq(signed, (sums[0] - sums[1])[:, None]).solution
        residue = signed @ lengths - (sums[0] - sums[1])[:, None]
        masked = lengths[0] * directions[:, 0]  # n/2 − S_1 − χ1
        rows_noise = 40 / 2 - sums[0] - masked
        shared = updates[0].T @ masked / (masked @ masked)  # u_1 = s + 2 χ2/n
        hidden_noise = (shared - (rows_noise @ start.encoder).sign()) * 40 / 2
        return rows_noise, hidden_noise, float(residue.norm() / (sums[0] - sums[1]).norm())

    rows_noise, hidden_noise, residue = solved(first)
    assert torch.allclose(rows_noise, mask.rows, rtol=1e-6)
    assert torch.allclose(hidden_noise, mask.hidden, rtol=1e-6)
    assert residue < 1e-9
    neighbour = first.x.copy()
    neighbour[0] = random.uniform(-1, 1, size=5)
    assert solved(rows(neighbour, first.y))[2] > 1e-3


def test_a_single_release_tells_the_records() -> None:
    """Unsaturated: G − Σ (1/2 − x)(θᵀx)ᵀ has rank 2 for the true records, and more for a neighbour."""
    random = np.random.default_rng(8)
    [task] = stream(random, 1, 400, 6)
    made, start, _ = learned([task], epsilon=5.0, scale=0.01, learning_rate=0.1)
    update = (start.encoder - made.tensors["task.0.encoder"]) * 400 / 0.1

    def third_singular_value(x: Any) -> float:
        known = torch.from_numpy(x.astype(np.float64))
        values = torch.linalg.svdvals(update - (0.5 - known).T @ (known @ start.encoder))
        return float(values[2] / values[0])

    neighbour = task.x.copy()
    neighbour[0] = random.uniform(-1, 1, size=6)
    assert third_singular_value(task.x) < 1e-9
    assert third_singular_value(neighbour) > 1e3 * third_singular_value(task.x)


def test_columns_of_the_output_share_their_noise() -> None:
    weights = published.initial(5, 6, 4, 2, scale=0.1)
    mask = published.drawn_mask(Noise.repeatable(1), 5, 6, 4, epsilon_1=1.0, epsilon_2=1e-3)
    batch = published.Perturbed(torch.zeros((3, 5), dtype=torch.float64), torch.eye(2, dtype=torch.float64)[[0, 1, 1]])
    found = published.coefficients(weights, batch, mask, size=3).output
    quiet = published.Mask(rows=mask.rows, hidden=mask.hidden, output=torch.zeros_like(mask.output))
    without = published.coefficients(weights, batch, quiet, size=3).output
    assert float((found - without).abs().min()) > 10
    assert torch.allclose(found[:, 0] - found[:, 1], without[:, 0] - without[:, 1], atol=1e-6)


def test_batches_epochs_orders_and_memories_run() -> None:
    """Algorithm 2 with heterogeneous epochs and a memory; where noise is no obstacle, it learns and remembers."""
    random = np.random.default_rng(5)
    tasks = []
    for shift in (0.0, 0.2):
        y = random.integers(0, 2, 300)
        x = np.clip(random.normal(size=(300, 4)) * 0.2 + np.array([[0.5], [-0.5]])[y] + shift, -1, 1)
        tasks.append(rows(x, y.astype(str)))
    parameters = {
        "tasks": [{"task": "b", "epochs": 4}, {"task": "a", "epochs": 2}],
        "epsilon_1": 1e6,
        "epsilon_2": 1e6,
    }
    cooked = recipe(["0", "1"], 4, hidden=8, last=6, batch=32, memory=50, learning_rate=0.2, scale=0.3)
    made = ran("l2dp-ml-as-published", parameters, cooked, tasks)
    weights = published.Weights(*(made.tensors[name] for name in published.Weights._fields))
    assert torch.equal(weights.encoder, made.tensors["task.1.encoder"])
    for task in tasks:
        said = published.logits(weights, torch.from_numpy(task.x.astype(np.float64))).argmax(1).numpy()
        assert np.mean(said.astype(str) == task.y) > 0.9
    assert len(made.facts["claimed_epsilon"]) == 2
    none = rows(np.zeros((0, 4)), np.zeros(0, dtype=str), slots=5)
    assert ran("l2dp-ml-as-published", parameters, cooked, [none, none]).tensors["encoder"].isfinite().all()
