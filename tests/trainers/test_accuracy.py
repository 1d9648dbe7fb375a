"""Evaluation: accuracy on private rows, its price and its law; baselines without privacy, which no budget admits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from accountant import account
from accountant.errors import InvalidInput
from accountant.events import Adjacency, Gaussian, Laplace, NonPrivate
from accountant.filters import Filter
from tests.accountant.strategies import ADJACENCIES
from trainers import predictors
from trainers.catalog import mechanism
from trainers.columns import DataProblem
from trainers.mechanisms import a_gem, accuracy, fine_tuning
from trainers.metrics import average_accuracy, average_forgetting
from trainers.noise import Noise
from trainers.ports import Made, Rows, Run
from trainers.predictors import predict


@dataclass(frozen=True)
class Artifact:
    """What was released before."""

    release: str
    facts: dict[str, Any]
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)


#: Says "up" of rows whose first feature is positive, else "down".
MODEL = Artifact(
    "r1",
    {"predictor": "linear", "labels": ["down", "up"]},
    {"weight": torch.tensor([[-1.0, 0.0], [1.0, 0.0]]), "bias": torch.zeros(2)},
)


def rows(x: Any, y: Any, unit: Any = None, *, slots: int = 100, rows_per_unit: int = 1) -> Rows:
    x = np.asarray(x, dtype=np.float32).reshape(-1, 2)
    unit = np.arange(len(x)) if unit is None else np.asarray(unit)
    return Rows(slots=slots, unit=unit.astype(np.int64), x=x, y=np.asarray(y), rows_per_unit=rows_per_unit)


def measured(
    given: Rows, source: Noise, *, models: tuple[Artifact, ...] = (MODEL,), **parameters: Any
) -> dict[str, Any]:
    row = mechanism("accuracy")
    checked = {"noise": "laplace", **({} if "noise" in parameters else {"scale": 1.0}), **parameters}
    row.quote(checked, adjacency="add_remove")
    made = accuracy.run(
        Run(
            parameters=checked,
            recipe=row.cooked({"models": [each.release for each in models]}),
            adjacency="add_remove",
            rows=[given],
            noise=source,
            inputs={f"models.{place}": each for place, each in enumerate(models)},
        )
    )
    assert not made.tensors
    return dict(made.facts)


X, Y = [[1, 0], [2, 0], [-1, 0], [-2, 0]], ["up", "down", "down", "sideways"]


def test_right_and_wrong_answers_are_counted() -> None:
    facts = measured(rows(X, Y), Noise.repeatable(0), scale=1e-6)
    assert facts["correct"] == pytest.approx(2, abs=1e-4)
    assert facts["wrong"] == pytest.approx(2, abs=1e-4)  # a label that no model knows is answered wrongly
    assert facts["accuracy"] == pytest.approx(0.5, abs=1e-4)
    assert facts["models"] == ["r1"]
    numbers = Artifact("r2", MODEL.facts | {"labels": ["0", "1"]}, MODEL.tensors)
    facts = measured(rows(X, [1, 1, 0, 0]), Noise.repeatable(0), models=(numbers,), scale=1e-6)
    assert facts["accuracy"] == pytest.approx(1, abs=1e-4)


#: The rules of a hierarchy of codes: what begins with 250 is read as 250, except for one child.
CODES: dict[str, Any] = {"remap": [{"from": "250.9", "to": "428"}], "remap_rule": "prefix", "otherwise": ""}


def test_labels_are_read_as_in_training() -> None:
    """By remap, by the beginning, by what all others are read as; and what a release built on is read as before."""
    x = [[-1, 0], [-2, 0], [1, 0], [2, 0], [3, 0]]
    y = ["250.83", "250", "428.1", "250.9", "V57"]  # the model says 250, 250, 428, 428, 428
    plain = MODEL.facts | {"labels": ["250", "428"]}
    for rules, right in (
        ([CODES], 4),
        ([CODES | {"otherwise": "428"}], 5),
        ([CODES | {"remap": []}], 3),
        ([CODES | {"remap_rule": "exact"}], 2),
        ([{"remap": [], "remap_rule": "exact", "otherwise": "428"}, CODES], 5),
        ([], 1),
        (None, 1),
    ):
        model = Artifact("r1", plain | ({} if rules is None else {"label_rules": rules}), MODEL.tensors)
        facts = measured(rows(x, y), Noise.repeatable(0), models=(model,), scale=1e-6)
        assert (round(facts["correct"]), round(facts["wrong"])) == (right, 5 - right), rules


def test_where_no_label_was_released_nobody_is_right() -> None:
    silent = Artifact("r1", {"predictor": "linear", "labels": [], "label_rules": [CODES]}, {})
    facts = measured(rows(X, ["250", "", "a", "b"]), Noise.repeatable(0), models=(silent,), scale=1e-6)
    assert (round(facts["correct"]), round(facts["wrong"])) == (0, 4)


def test_a_row_is_answered_alike_whoever_else_is_there() -> None:
    """Rows on the border between two labels: how products round there must not depend on the number of rows."""
    chance = np.random.default_rng(0)
    weight = chance.standard_normal((2, 512)).astype(np.float32)
    model = Artifact("r1", {"predictor": "linear", "labels": ["down", "up"]}, {"weight": torch.from_numpy(weight)})
    across = (weight[1] - weight[0]) / np.linalg.norm(weight[1] - weight[0])
    border = chance.standard_normal(512)
    border -= (border @ across) * across
    for place in np.linspace(-1e-6, 1e-6, 41):
        right = set()
        for count in (1, 2, 15, 16, 257):
            x = np.tile((border + place * across).astype(np.float32), (count, 1))
            given = Rows(slots=300, unit=np.arange(count), x=x, y=np.full(count, "up"))
            facts = measured(given, Noise.repeatable(0), models=(model,), scale=1e-6)
            right.add(round(facts["correct"]) / count)
        assert right in ({0.0}, {1.0})


def test_models_that_score_by_place_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row more, and all that lie between two answers would change theirs."""

    def by_place(x: NDArray[np.float32]) -> NDArray[np.float32]:
        return x * (1 + 1e-6 * np.arange(len(x), dtype=np.float32)[:, None])

    monkeypatch.setattr(predictors, "_scorer", lambda *_: by_place)
    with pytest.raises(InvalidInput, match=r"recipe.models: expected models that score a row alike wherever it stands"):
        measured(rows([[1, 0]], ["up"]), Noise.repeatable(0))


def test_a_datapoint_of_many_rows_counts_once() -> None:
    many = rows(X, Y, [0, 0, 0, 0], rows_per_unit=4)
    facts = measured(many, Noise.repeatable(0), scale=1e-6)
    assert facts["correct"] + facts["wrong"] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_the_noise_is_that_of_the_price(noise: str) -> None:
    """Kolmogorov–Smirnov on both counts, which have noises of their own; on nobody's rows it is the noise alone."""
    parameters = {"scale": 3.0} if noise == "laplace" else {"noise": "gaussian", "noise_multiplier": 3.0}
    source, law = Noise.repeatable(1), (stats.laplace if noise == "laplace" else stats.norm)(scale=3.0)
    drawn = [measured(rows([], np.empty(0, dtype=np.str_)), source, **parameters) for _ in range(1000)]
    right, wrong = (np.array([facts[name] for facts in drawn]) for name in ("correct", "wrong"))
    for counts in (right, wrong):
        assert stats.kstest(counts, law.cdf).pvalue > 1e-3
        assert stats.kstest(counts, lambda v: law.cdf(v * 0.75)).pvalue < 1e-3
        assert np.all(counts * 2**22 == np.round(counts * 2**22))  # on a public grid
    assert abs(float(np.corrcoef(right, wrong)[0, 1])) < 0.1
    assert all(0 <= facts["accuracy"] <= 1 for facts in drawn)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_its_price(adjacency: Adjacency) -> None:
    """A Laplace histogram of L1 sensitivity 1, or 2; a Gaussian of L2 sensitivity 1, or 2."""
    sensitivity = 1 if adjacency == "add_remove" else 2
    row = mechanism("accuracy")
    [charge] = row.quote({"scale": 10.0}, adjacency=adjacency).charges
    assert charge.event == Laplace(scale=10.0)
    assert account(charge.event, delta=1e-12, adjacency=adjacency).upper == pytest.approx(sensitivity / 10, rel=1e-3)
    [charge] = row.quote({"noise": "gaussian", "noise_multiplier": 20.0}, adjacency=adjacency).charges
    assert charge.event == Gaussian(noise_multiplier=20.0)
    mu, epsilon = sensitivity / 20, account(charge.event, delta=1e-5, adjacency=adjacency).upper
    delta = stats.norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * stats.norm.cdf(-epsilon / mu - mu / 2)
    assert delta == pytest.approx(1e-5, rel=1e-3)


def test_what_is_missing_is_refused() -> None:
    with pytest.raises(DataProblem, match=r"^data\.shape$"):
        measured(rows(X, np.empty(0, dtype=np.int64)), Noise.repeatable(0))
    for parameters in ({}, {"noise": "gaussian", "scale": 1.0}, {"scale": 0.0}, {"scale": math.inf}):
        with pytest.raises(InvalidInput, match=r"^parameters"):
            mechanism("accuracy").quote(parameters, adjacency="add_remove")
    assert mechanism("accuracy").releases == ("models",)


# Without privacy


TASKS: dict[str, Any] = {"steps": 100, "batch_size": 32}


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_no_budget_admits_what_has_no_noise(adjacency: Adjacency) -> None:
    """Whatever statuses a policy accepts: the price of a single run is more than any budget."""
    gate = Filter.of(epsilon=1000, delta=0.5)
    memories = {"memory_batch": 16, "memories": ["monday", "tuesday"]}
    for name, parameters in (("fine-tuning", TASKS), ("a-gem", TASKS | memories)):
        row = mechanism(name)
        assert (row.proof_status, row.kind) == ("refuted", "weights")
        charges = row.quote(parameters, adjacency=adjacency).charges
        assert [charge.task for charge in charges] == [None, *parameters.get("memories", [])]
        for charge in charges:
            assert charge.event == NonPrivate()
            assert account(charge.event, delta=0.5, adjacency=adjacency).upper == math.inf
            assert not gate.admits(gate.price(charge.event, adjacency=adjacency))
        assert row.instead(parameters, [NonPrivate()], adjacency=adjacency) is None


def task(number: int, rng: np.random.Generator, count: int = 300) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Two classes that are told apart by the sum of two features of their own, and a third that means the opposite.

    What a task learns about the shared feature is wrong for the next one, so plain descent forgets.
    """
    y = rng.integers(0, 2, count)
    x = rng.normal(0, 0.3, (count, 6)).astype(np.float32)
    sign = np.where(y == 1, 1.0, -1.0)
    x[:, number] += sign
    x[:, 5] += sign * (1 if number % 2 else -1) * 2
    return x, y


def learned(runs: Any, name: str, stream: list[tuple[Any, Any]], tests: list[tuple[Any, Any]]) -> NDArray[np.float64]:
    """Accuracy on each task after each task."""
    found = np.zeros((len(stream), len(stream)))
    row, before = mechanism(name), None
    recipe = row.cooked(
        {
            "label_source": "prior",
            "label_names": ["0", "1"],
            "model": "mlp",
            "hidden": [16],
            "shape": [6],
            "learning_rate": 0.1,
            "momentum": 0.0,
        }
    )
    for number in range(len(stream)):
        memories = [stream[earlier] for earlier in range(number)] if name == "a-gem" else []
        parts = [stream[number], *((x[:40], y[:40]) for x, y in memories)]
        parameters = TASKS | ({"memory_batch": 32} if name == "a-gem" else {})
        made: Made = runs(
            Run(
                parameters=parameters,
                recipe=recipe,
                adjacency="add_remove",
                rows=[Rows(slots=len(y), unit=np.arange(len(y)), x=x, y=y) for x, y in parts],
                noise=Noise.repeatable(number),
                inputs={} if before is None else {"start": before},
            )
        )
        before = Artifact(f"r{number}", dict(made.facts), dict(made.tensors))
        for other, (x, y) in enumerate(tests):
            found[number, other] = np.mean(predict([before], x) == y.astype(np.str_))
    return found


def test_a_gem_forgets_less_than_fine_tuning() -> None:
    rng = np.random.default_rng(0)
    stream, tests = ([task(number, rng) for number in range(4)] for _ in range(2))
    plain = learned(fine_tuning.run, "fine-tuning", stream, tests)
    remembering = learned(a_gem.run, "a-gem", stream, tests)
    assert np.all(np.diag(plain) > 0.9)
    assert np.all(np.diag(remembering) > 0.8)
    assert average_forgetting(remembering) < average_forgetting(plain) - 0.1
    assert average_accuracy(remembering) > average_accuracy(plain) + 0.1


def test_an_empty_task_leaves_the_start() -> None:
    x, y = np.empty((0, 6), dtype=np.float32), np.empty(0, dtype=np.int64)
    found = learned(fine_tuning.run, "fine-tuning", [(x, y)], [task(0, np.random.default_rng(1))])
    assert 0.3 < found[0, 0] < 0.7
