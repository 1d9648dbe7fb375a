"""Every mechanism end to end: real data, jobs over HTTP, a real worker, artifacts, and what each datapoint paid.

What is released has fresh noise, so that accuracies differ from run to run: those asked for here leave much room, and
whoever lost the rows on the way does not reach them. Where data is so little that it takes an ε that nobody would
promise, it is one: what is tested is that rows arrive and are paid for. How good a mechanism is, the tests of
mechanisms show with noise that can be repeated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pyroaring import BitMap

from accountant import calibrate_noise_multiplier
from accountant.book import bitmap_to
from accountant.streams.memories import role
from service.client import Denied
from tests.acceptance.house import House, encounters, house, images, photographs
from trainers.artifacts import Stored
from trainers.backbones import configured
from trainers.catalog import CATALOG
from trainers.predictors import predict, truths

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DIGITS = [str(digit) for digit in range(10)]
PRIOR: dict[str, Any] = {"label_source": "prior", "label_names": DIGITS}
LINEAR: dict[str, Any] = {"model": "linear", "shape": [49], "learning_rate": 0.5, **PRIOR}


#: The mechanisms of which each test has jobs committed.
COMMITTED_BY: dict[str, set[str]] = {
    "test_dp_sgd_learns_a_stream_of_tasks_and_each_datapoint_pays_for_its_own": {"dp-sgd", "accuracy"},
    "test_labels_of_real_patients_are_released_and_then_learned": {"label-release", "cosine-classifier"},
    "test_accuracy_reads_codes_of_a_hierarchy_as_the_model_does": {"cosine-classifier", "accuracy"},
    "test_prototypes_and_an_ensemble_learn_clothes_class_by_class": {"cosine-classifier", "peft-ensemble"},
    "test_photographs_are_told_apart_by_features_of_a_public_backbone": {"cosine-classifier", "peft-ensemble"},
    "test_a_memory_is_charged_in_later_tasks_and_its_train_part_is_not": {"episodic-memory"},
    "test_movements_of_thirty_users_are_learned_from_statistics": {"l2dp-ml"},
    "test_a_window_slides_over_papers_and_a_life_never_costs_more_than_the_budget": {
        "sliding-window", "multi-resolution", "continual-release", "output-perturbation",
    },
    "test_what_is_claimed_runs_where_a_policy_accepts_it": {
        "dp-agem-as-published", "output-perturbation-as-published",
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def one_house(shared_data: Path) -> Iterator[House]:
    """One house for all tests of this module."""
    with house(shared_data) as running:
        yield running


@pytest.fixture
def at_home(one_house: House, request: pytest.FixtureRequest) -> Iterator[House]:
    """That house, and whether a test really had run what it is here for."""
    one_house.committed.clear()
    yield one_house
    assert set(one_house.committed) == COMMITTED_BY.get(request.function.__name__, set())


def hits(released: Any, x: NDArray[np.float32], y: NDArray[Any], **how: Any) -> float:
    """The share of held-out rows, which are public here, that are recognised."""
    return float(np.mean(predict(released, x, **how) == truths(released, np.asarray(y))))


def test_dp_sgd_learns_a_stream_of_tasks_and_each_datapoint_pays_for_its_own(at_home: House, shared_data: Path) -> None:
    x, y = images(shared_data / "mnist", "train", 4000)
    population = at_home.population(4000)
    first, second = at_home.tasks(population, [2000, 2000])
    data = {"uri": at_home.arrays(x=x, y=y), "x": "x", "y": "y"}
    noise = calibrate_noise_multiplier(epsilon=4.0, delta=1e-7, sampling_probability=0.1, steps=100)
    run = {"noise_multiplier": noise, "sampling_probability": 0.1, "steps": 100, "clip_norm": 1.0}
    one = at_home.made(population, "dp-sgd", run, task=first, recipe=LINEAR, data=data)
    paid = at_home.spent(population, 0)
    assert 0 < paid <= 8
    assert at_home.spent(population, 3999) == 0
    both = at_home.made(population, "dp-sgd", run, task=second, recipe={**LINEAR, "start": one.release}, data=data)
    assert at_home.spent(population, 0) == paid == at_home.spent(population, 3999)
    assert hits([both], *images(shared_data / "mnist", "t10k", 1000)) > 0.3
    right = at_home.made(
        population, "accuracy", {"noise": "laplace", "scale": 10.0}, task=first,
        recipe={"models": [both.release]}, data=data,
    )  # fmt: skip
    assert right.facts["accuracy"] > 0.3
    assert at_home.spent(population, 0) > paid  # to look at private rows is a release as well
    assert at_home.stint.verify(population)["ok"]


def test_labels_of_real_patients_are_released_and_then_learned(at_home: House, shared_data: Path) -> None:
    patients, codes, features = encounters(shared_data, 6000)
    people = list(dict.fromkeys(patients))
    population = at_home.population(0, unit="user", epsilon=8.0, delta=1e-5)
    at_home.stint.register_keys(population, people)
    at_home.stint.create_task(population, "all", members={"ranges": [[0, len(people)]]})
    table = at_home.table(patient=patients, code=codes, **{f"f{n}": features[:, n] for n in range(8)})
    names = [f"f{n}" for n in range(8)]
    data = {"uri": table, "x": names, "y": "code", "address": "key", "unit": "patient", "rows_per_unit": 4}
    told = at_home.made(
        population, "label-release", {"epsilon": 1.0, "delta": 1e-6, "labels_per_unit": 4}, task="all", data=data
    )
    labels = told.facts["labels"]
    patients_of = {
        code: {person for person, each in zip(patients, codes, strict=True) if each == code} for code in codes
    }
    assert 5 <= len(labels) < len(patients_of)
    assert all(len(patients_of[label]) > 10 for label in labels)  # nobody's own code is told
    prototypes = at_home.made(
        population, "cosine-classifier", {"noise_multiplier": 3.0}, task="all", data=data,
        recipe={"label_source": "released", "labels_release": told.release, "feature_size": 8},
    )  # fmt: skip
    assert prototypes.facts["labels"] == labels
    exact = np.zeros((len(labels), 8))
    told_at = {label: place for place, label in enumerate(labels)}
    for code, row in zip(codes, features / np.linalg.norm(features, axis=1, keepdims=True), strict=True):
        if code in told_at:
            exact[told_at[code]] += row / 4  # of at most four rows
    sums = prototypes.tensors["sums"].numpy()
    assert sums.shape == exact.shape
    assert np.corrcoef(sums.ravel(), exact.ravel())[0, 1] > 0.8
    assert at_home.charges(population, 0) == 2


def test_accuracy_reads_codes_of_a_hierarchy_as_the_model_does(at_home: House, shared_data: Path) -> None:
    """A model of chapters answers for codes: nobody carries the label "4", and who carries 428 is meant."""
    _, codes, features = encounters(shared_data, 6000)
    population = at_home.population(6000)
    at_home.tasks(population, [6000])
    data = {"uri": at_home.arrays(x=features, y=np.array(codes)), "x": "x", "y": "y"}
    chapters = ["2", "4", "5", "7"]
    model = at_home.made(
        population, "cosine-classifier", {"noise_multiplier": 3.0}, task="task-1", data=data,
        recipe={"label_source": "prior", "label_names": chapters, "remap_rule": "prefix", "feature_size": 8},
    )  # fmt: skip
    assert sum(code in chapters for code in codes) < 60  # compared as they are, hardly a row would be right
    exact = hits([model], features, np.array(codes))
    judged = at_home.made(
        population, "accuracy", {"scale": 0.5}, task="task-1", recipe={"models": [model.release]}, data=data
    )
    assert exact > 0.15
    assert judged.facts["accuracy"] == pytest.approx(exact, abs=0.02)


def test_prototypes_and_an_ensemble_learn_clothes_class_by_class(at_home: House, shared_data: Path) -> None:
    x, y = images(shared_data / "fashion_mnist", "train", 6000)
    keep = np.concatenate([np.flatnonzero(y // 2 == pair)[:800] for pair in range(3)])
    x, y = x[keep], y[keep]
    population = at_home.population(len(keep), epsilon=100.0)
    tasks = at_home.tasks(population, [800, 800, 800])
    data = {"uri": at_home.arrays(x=x, y=y), "x": "x", "y": "y"}
    held_x, held_y = images(shared_data / "fashion_mnist", "t10k", 2000)
    held_x, held_y = held_x[held_y < 6], held_y[held_y < 6]
    previous, adapters, sums = "", [], None
    for number, task in enumerate(tasks):
        own = {"label_source": "prior", "label_names": [str(2 * number), str(2 * number + 1)], "feature_size": 49}
        sums = at_home.made(
            population, "cosine-classifier", {"noise_multiplier": 1.0}, task=task,
            recipe={**own, "previous": previous}, data=data,
        )  # fmt: skip
        previous = sums.release
        adapters.append(
            at_home.made(
                population,
                "peft-ensemble",
                {"noise_multiplier": 0.5, "sampling_probability": 0.1, "steps": 60, "clip_norm": 1.0},
                task=task,
                recipe={**own, "adapter": "last_layer", "learning_rate": 0.5},
                data=data,
            )
        )
    assert sums is not None
    assert sums.facts["labels"] == ["0", "1", "2", "3", "4", "5"]
    assert hits([sums], held_x, held_y) > 0.5
    for number, adapter in enumerate(adapters):  # noise alone may know one pair of two, and hardly all three
        own_pair = held_y // 2 == number
        assert hits([adapter], held_x[own_pair], held_y[own_pair]) > 0.85
    assert hits(adapters, held_x, held_y) > 0.2
    assert {at_home.charges(population, ordinal) for ordinal in (0, 900, 2399)} == {2}


def test_photographs_are_told_apart_by_features_of_a_public_backbone(at_home: House, shared_data: Path) -> None:
    x, y = photographs(shared_data, 1250)
    some = {"label_source": "prior", "label_names": ["0", "1", "6", "7"]}  # aeroplanes, cars, frogs, horses
    x, y = x[np.isin(y, [0, 1, 6, 7])], y[np.isin(y, [0, 1, 6, 7])]
    population = at_home.population(200, epsilon=100.0)
    at_home.tasks(population, [200])
    data = {"uri": at_home.arrays(x=x[:200], y=y[:200]), "x": "x", "y": "y"}
    known = configured(at_home.folder / "backbones.toml")
    held_x, held_y = x[200:500].astype(np.float32), y[200:500]
    made = at_home.made(
        population,
        "cosine-classifier",
        {"noise_multiplier": 0.7},
        task="task-1",
        recipe={**some, "backbone": "efficientnet-lite0"},
        data=data,
    )
    assert made.facts["backbone"]["name"] == "efficientnet-lite0"
    assert made.tensors["sums"].shape == (4, 1280)
    assert hits([made], held_x, held_y, backbones=known) > 0.5
    features = list((at_home.folder / "features").rglob("*"))
    assert features  # kept for the next job, and for nobody else
    assert all(not path.stat().st_mode & 0o077 for path in features)
    tuned = at_home.made(
        population,
        "peft-ensemble",
        {"noise_multiplier": 0.3, "sampling_probability": 0.2, "steps": 10, "clip_norm": 1.0},
        task="task-1",
        recipe={**some, "backbone": "efficientnet-lite0", "adapter": "film", "learning_rate": 0.5},
        data=data,
    )
    scales = [name for name in tuned.tensors if not name.startswith("head.")]
    assert len(scales) == 2 * 49  # a scale and a shift for each of its normalisation layers, and no statistics
    assert {name.rpartition(".")[2] for name in scales} == {"weight", "bias"}
    assert tuned.tensors["head.weight"].shape == (4, 1280)
    assert hits([tuned], held_x, held_y, backbones=known) > 0.5


def test_a_memory_is_charged_in_later_tasks_and_its_train_part_is_not(at_home: House, shared_data: Path) -> None:
    x, y = images(shared_data / "mnist", "train", 3000)
    rng = np.random.default_rng(7)
    orders = [np.arange(49), rng.permutation(49), rng.permutation(49)]
    for place, order in enumerate(orders):  # permuted digits
        x[1000 * place : 1000 * (place + 1)] = x[1000 * place : 1000 * (place + 1)][:, order]
    population = at_home.population(3000, epsilon=8.0)
    kept = BitMap(n for n in range(3000) if role(str(n).encode(), key=bytes(16), rate=0.2) == "memory")
    own = [BitMap(range(1000 * task, 1000 * (task + 1))) for task in range(3)]
    tasks = at_home.tasks(
        population, [1000] * 3,
        memory=[{"bitmap": bitmap_to(each & kept)} for each in own],
        train=[{"bitmap": bitmap_to(each - kept)} for each in own],
    )  # fmt: skip
    data = {"uri": at_home.arrays(x=x, y=y), "x": "x", "y": "y"}
    start, made = "", None
    for number, task in enumerate(tasks):
        run = {
            "steps": 40, "train_probability": 0.1, "train_noise_multiplier": 1.0, "memory_probability": 0.1,
            "memory_noise_multiplier": 2.0, "clip_norm": 1.0, "use": "union", "memories": tasks[:number],
        }  # fmt: skip
        made = at_home.made(population, "episodic-memory", run, task=task, recipe={**LINEAR, "start": start}, data=data)
        start = made.release
    memory, train = (own[0] & kept)[0], (own[0] - kept)[0]
    assert at_home.charges(population, train) == 1
    assert at_home.charges(population, memory) == 2  # in the second task and in the third, never in its own
    assert at_home.charges(population, (own[2] & kept)[0]) == 0
    assert made is not None
    held_x, held_y = images(shared_data / "mnist", "t10k", 1000)
    assert np.mean([hits([made], held_x[:, order], held_y) for order in orders]) > 0.2


def test_movements_of_thirty_users_are_learned_from_statistics(at_home: House, shared_data: Path) -> None:
    with np.load(shared_data / "hapt" / "hapt_features.npz") as archive:
        features, y, user = archive["X"], archive["y"].astype(np.int64), archive["user"].astype(np.int64)
    low, high = np.quantile(features, [0.02, 0.98], axis=0)  # a public range in real life
    x = ((features - low) / (high - low) * 2 - 1).clip(-1, 1).astype(np.float32)
    population = at_home.population(30, unit="user", epsilon=400.0, delta=1e-3)
    at_home.tasks(population, [13, 13])  # four users are held out
    data = {
        "uri": at_home.arrays(x=x, y=y, user=user - user.min()), "x": "x", "y": "y",
        "address": "ordinal", "unit": "user", "rows_per_unit": 300,
    }  # fmt: skip
    labels = {"label_source": "prior", "label_names": [str(n) for n in range(1, 7)]}
    made: list[Stored] = []
    for task in ("task-1", "task-2"):
        recipe = {**labels, "inputs": x.shape[1], "features": "identity", "previous": [each.release for each in made]}
        made.append(
            at_home.made(
                population,
                "l2dp-ml",
                {"noise_multiplier": 0.05, "moment_weight": 1.0},
                task=task,
                recipe=recipe,
                data=data,
            )
        )
    held = (user - user.min() >= 26) & (y <= 6)
    assert hits([made[-1]], x[held], y[held]) > 0.5
    assert [at_home.charges(population, ordinal) for ordinal in range(30)] == [1] * 26 + [0] * 4


def test_a_window_slides_over_papers_and_a_life_never_costs_more_than_the_budget(
    at_home: House, shared_data: Path
) -> None:
    with np.load(shared_data / "arxiv" / "minilm_int8_daily_10k.npz") as archive:
        x = archive["emb_int8"].astype(np.float32)
        labels = archive["primary"].astype(str)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    subjects = ["cs.CV", "cs.CL", "cs.AI"]
    in_turn = np.stack([np.flatnonzero(labels == subject)[:700] for subject in subjects], axis=1).ravel()
    x, labels = x[in_turn], labels[in_turn]  # the last 900 are held out
    population = at_home.population(1200, epsilon=800.0, delta=1e-6)
    data = {"uri": at_home.arrays(x=x[:1200], y=labels[:1200]), "x": "x", "y": "y"}
    convex: dict[str, Any] = {
        "shape": [384], "radius": 1.0, "modulus": 0.1, "iterations": 60,
        "label_source": "prior", "label_names": subjects,
    }  # fmt: skip
    previous: list[str] = []
    made = None
    for step in range(4):
        made = at_home.made(
            population, "sliding-window", {"k": 2, "w0": 200, "step": step, "epsilon": 400.0},
            recipe={**convex, "previous": previous}, data=data,
        )  # fmt: skip
        previous = [*previous, made.release][-2:]
    assert made is not None
    fixed = at_home.made(
        population, "multi-resolution", {"pane": 400, "levels": 2, "step": 1, "epsilon": 200.0}, recipe=convex,
        data=data,
    )  # fmt: skip
    continual = at_home.made(
        population, "continual-release", {"pane": 200, "doublings": 1, "step": 0, "epsilon": 100.0}, recipe=convex,
        data=data,
    )  # fmt: skip
    single = at_home.made(
        population, "output-perturbation", {"noise": "pure", "epsilon": 50.0}, scope={"ranges": [[0, 1200]]},
        recipe=convex, data=data,
    )  # fmt: skip
    for model in (made, fixed, continual, single):
        assert hits([model], x[1200:], labels[1200:]) > 0.6
    worst = max(at_home.spent(population, ordinal) for ordinal in range(0, 1200, 50))
    assert 400.0 < worst <= 800.0


CONVEX: dict[str, Any] = {"shape": [49], "radius": 1.0, "modulus": 0.1, "iterations": 60, **PRIOR}
MEMORY: dict[str, Any] = {
    "steps": 5, "train_probability": 0.1, "memory_probability": 0.1, "noise_multiplier": 1.0, "clip_norm": 0.1,
    "memories": [],
}  # fmt: skip
#: Parameters, recipe, and whether the mechanism is told its datapoints.
NOT_PROVED: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "fine-tuning": ({"steps": 1, "batch_size": 10}, LINEAR, True),
    "a-gem": ({"steps": 1, "batch_size": 10, "memory_batch": 10, "memories": []}, LINEAR, True),
    "dp-agem-as-published": (MEMORY, LINEAR, True),
    "dp-cl-as-published": (MEMORY, LINEAR, True),
    "l2dp-ml-as-published": (
        {"tasks": [{"task": "task-1", "epochs": 1}], "epsilon_1": 0.5, "epsilon_2": 0.5},
        {"inputs": 49, "hidden": 8, "last": 8, "learning_rate": 0.1, **PRIOR},
        False,
    ),
    "output-perturbation-as-published": ({"epsilon": 1.0, "weights": 500}, CONVEX, True),
    "continual-release-as-published": ({"pane": 100, "doublings": 0, "step": 0, "epsilon": 1.0}, CONVEX, False),
}


def test_every_mechanism_is_run_here_or_refused_here() -> None:
    assert set(COMMITTED_BY) <= set(globals())
    assert set(NOT_PROVED) == {row.name for row in CATALOG.values() if row.proof_status != "proved"}
    assert set.union(*COMMITTED_BY.values()) >= set(CATALOG) - set(NOT_PROVED)


@pytest.mark.parametrize("name", NOT_PROVED)
def test_what_is_not_proved_is_refused_by_default(at_home: House, name: str) -> None:
    parameters, recipe, is_told = NOT_PROVED[name]
    population = at_home.population(200)
    at_home.tasks(population, [200], train=[{"ranges": [[0, 150]]}], memory=[{"ranges": [[150, 200]]}])
    uri = at_home.arrays(x=np.zeros((200, 49), np.float32), y=np.zeros(200, np.int64))
    with pytest.raises(Denied) as denied:
        at_home.stint.submit(
            population=population,
            mechanism={"name": name, "parameters": parameters},
            recipe=recipe,
            data={"uri": uri, "x": "x", "y": "y"},
            **({"task": "task-1"} if is_told else {}),
        )
    assert "policy.proof_status" in {reason["code"] for reason in denied.value.reasons}
    assert list(at_home.stint.jobs(population=population)) == []
    assert at_home.spent(population, 0) == 0


def test_what_is_claimed_runs_where_a_policy_accepts_it(at_home: House, shared_data: Path) -> None:
    """For reproduction: as jobs, at the price that our own argument gives them, to artifacts like any other."""
    x, y = images(shared_data / "mnist", "train", 1500)
    data = {"uri": at_home.arrays(x=x, y=y), "x": "x", "y": "y"}
    sizes = {
        "train": [{"ranges": [[0, 800]]}, {"ranges": [[1000, 1400]]}],
        "memory": [{"ranges": [[800, 1000]]}, {"ranges": [[1400, 1500]]}],
    }
    default = at_home.population(1500, epsilon=800.0)
    accepting = at_home.population(1500, epsilon=800.0, accepts=["proved", "claimed"])
    for population in (default, accepting):
        at_home.tasks(population, [1000, 500], **sizes)
    run = {**MEMORY, "noise_multiplier": 0.3, "steps": 60, "memories": ["task-1"]}
    learned = {**LINEAR, "learning_rate": 1.0}
    cheap = {"epsilon": 10.0, "weights": 500}
    for name, parameters, recipe in (
        ("dp-agem-as-published", run, learned),
        ("output-perturbation-as-published", cheap, CONVEX),
    ):
        with pytest.raises(Denied) as denied:
            at_home.made(default, name, parameters, task="task-2", recipe=recipe, data=data)
        assert {reason["code"] for reason in denied.value.reasons} == {"policy.proof_status"}  # the budget would do
    one = at_home.made(accepting, "dp-agem-as-published", run, task="task-2", recipe=learned, data=data)
    paid = {ordinal: at_home.spent(accepting, ordinal) for ordinal in (0, 800, 1000, 1400)}
    assert paid[0] == 0 == paid[1400], "the part train of an earlier task, and the memory of this one"
    assert paid[800] > 0
    assert 0 < paid[1000] <= 800
    # √500 times the 10 that the paper claims of a replaced datapoint, and half of it for one that is added.
    two = at_home.made(
        accepting, "output-perturbation-as-published", cheap, scope={"ranges": [[0, 800]]}, recipe=CONVEX, data=data
    )
    assert at_home.spent(accepting, 0) == pytest.approx(10 * 500**0.5 / 2, rel=1e-3)
    held_x, held_y = images(shared_data / "mnist", "t10k", 1000)
    for made in (one, two):
        card = json.loads((at_home.folder / "artifacts" / made.release / "card.json").read_text(encoding="utf-8"))
        assert card["proof_status"] == "claimed"  # whoever gets the model is told
        assert hits([made], held_x, held_y) > 0.25
    assert at_home.stint.verify(accepting)["ok"]
