"""What a run does is measured by public sizes: as much for nobody, or for one, as for everybody.

Counted and not timed: how often a solver, a network or a map of features is called, and on how many rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest
import torch

from tests.trainers.streams import Artifact, ran
from tests.trainers.test_every_mechanism import EXAMPLES, SIZE, TASK
from trainers import erm, labels, predictors
from trainers.catalog import CATALOG
from trainers.mechanisms import cosine_classifier, l2dp_ml, label_release
from trainers.noise import Noise
from trainers.ports import Rows

MOST: Final = 3  # rows of one datapoint
Called = list[tuple[int, ...]]


def given(name: str, there: int, *, file_rows: int | None = None) -> list[Rows]:
    """For each charge the rows of so many datapoints, the first of them with several; all others are null."""
    found = []
    for charge in CATALOG[name].quote(EXAMPLES[name].parameters, adjacency="add_remove").charges:
        slots = TASK if charge.start is None else (charge.stop or 0) - charge.start
        unit = np.repeat(np.arange(slots), np.where(np.arange(slots) < 2, MOST, 1))
        unit = unit[unit < there]
        x = np.random.default_rng(0).normal(size=(len(unit), SIZE)).astype(np.float32)
        y = np.where(np.arange(len(unit)) % 4, unit % 2, 7)  # of which no label space knows 7
        found.append(Rows(slots=slots, unit=unit, x=x, y=y, rows_per_unit=MOST, file_rows=file_rows))
    return found


def watched(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> Called:
    """The shapes of what a function is given from now on."""
    called: Called = []
    kept: Callable[..., Any] = getattr(owner, name)

    def noted(x: torch.Tensor, *others: Any, **options: Any) -> Any:
        called.append(tuple(x.shape))
        return kept(x, *others, **options)

    monkeypatch.setattr(owner, name, noted)
    return called


CONVEX = ("output-perturbation", "sliding-window", "multi-resolution", "continual-release")


@pytest.mark.parametrize("file_rows", [None, 25])
@pytest.mark.parametrize("name", [*CONVEX, "l2dp-ml", "cosine-classifier", "accuracy"])
def test_as_many_rows_are_worked_on_for_nobody(
    name: str, file_rows: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the most that there could be: rows that are missing, or have no label, are zeros."""
    for owner, chunk in ((erm, 8), (l2dp_ml, 8), (cosine_classifier, 8 * SIZE)):
        monkeypatch.setattr(owner, "_CHUNK", chunk)
    place = {"l2dp-ml": (l2dp_ml, "unit_features"), "cosine-classifier": (cosine_classifier, "unit_rows"),
             "accuracy": (predictors, "_flat")}.get(name, (torch, "softmax"))  # fmt: skip
    called = watched(monkeypatch, *place)
    example, counts = EXAMPLES[name], []
    for there in (TASK, 1, 0):
        ran(name, example.parameters, example.recipe, given(name, there, file_rows=file_rows), inputs=example.inputs)
        counts.append(called.copy())
        called.clear()
    assert counts[0]
    assert counts[0] == counts[1] == counts[2]
    least = min(MOST * (8 if name in CONVEX[1:] else TASK), file_rows or TASK * MOST)
    assert sum(each[0] for each in counts[0]) >= least * example.recipe.get("iterations", 1)


@pytest.mark.parametrize("there", [TASK, 7, 1, 0])
def test_progress_of_prototypes_begins_when_all_rows_are_added(there: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and their labels would be counted by whoever watches it otherwise."""
    monkeypatch.setattr(cosine_classifier, "_CHUNK", 2 * SIZE)
    called = watched(monkeypatch, cosine_classifier, "unit_rows")
    [rows], names = given("cosine-classifier", there), 5
    cosine_classifier.noisy_sums(
        rows.x,
        np.where(rows.y < names, rows.y, -1),
        labels=names,
        deviation=1.0,
        noise=Noise.repeatable(0),
        room=rows.room,
        progress=lambda done, of: called.append((done, of)),
    )
    chunks = [(2, SIZE)] * (rows.room // 2)
    assert called == [*chunks, (2, names), (4, names), (5, names)]


@pytest.mark.parametrize("odd", [3, -1, labels.TABLE, 10**15])
def test_an_odd_label_has_no_other_sorted(odd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sorting takes twenty times as long as counting: a clock would tell that one record is there."""
    monkeypatch.setattr(label_release, "_AT_ONCE", labels.FEW // 3)
    y = np.arange(labels.FEW) % 50
    y[500] = odd
    expected = np.unique(y, return_counts=True)
    called = watched(monkeypatch, np, "unique"), watched(monkeypatch, labels, "_sorted")
    rows = Rows(slots=len(y), unit=np.arange(len(y)), x=np.empty((len(y), 0), dtype=np.float32), y=y)
    np.testing.assert_array_equal(label_release.counted(rows, labels_per_unit=1), expected)
    np.testing.assert_array_equal(labels.distinct(y)[0], expected[0])
    assert called == ([(int(odd != 3),)], [(int(odd != 3),)])


@pytest.mark.parametrize("name", ["accuracy", "fine-tuning", "a-gem", "dp-agem-as-published", "dp-cl-as-published"])
def test_a_network_runs_as_often_for_nobody(name: str) -> None:
    network = Artifact(ran("fine-tuning", *_trained("fine-tuning"), given("fine-tuning", TASK)).made)
    inputs = {"models.0": network} if name == "accuracy" else EXAMPLES[name].inputs
    counts = []
    for there in (TASK, 1, 0):
        calls: list[Any] = []
        with torch.nn.modules.module.register_module_forward_pre_hook(
            lambda module, _, seen=calls: seen.append(module)
        ):
            ran(name, *_trained(name), given(name, there), inputs=inputs)
        counts.append(len(calls))
    assert counts[0] > 0
    assert counts[0] == counts[1] == counts[2]


def _trained(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return EXAMPLES[name].parameters, EXAMPLES[name].recipe


@pytest.mark.parametrize("there", [TASK, 7, 1])
def test_zeros_in_place_of_rows_add_exactly_nothing(there: int) -> None:
    """Sums are the same numbers however much room there was; weights are, up to the rounding that is accounted for."""
    [rows] = given("l2dp-ml", there)
    index = np.where(rows.y < 2, rows.y, -1)
    tight, wide = ({"rows": _roomy(rows, room)} for room in (len(rows), 5_000))
    sums = [l2dp_ml.exact_statistics(each["rows"], index, None, labels=2)[0] for each in (tight, wide)]
    assert torch.equal(*sums)
    problem = erm.Objective(features=SIZE, labels=2, radius=1.0, modulus=0.5, iterations=20)
    fitted = [
        erm.fit(problem, each["rows"], index, slots=TASK, centre=torch.zeros(2, SIZE + 1)) for each in (tight, wide)
    ]
    assert float((fitted[0] - fitted[1]).norm()) <= problem._rounding(TASK * MOST, 0.0)
    assert not torch.equal(fitted[0], torch.zeros(2, SIZE + 1))


def _roomy(rows: Rows, room: int) -> Rows:
    slots = -(-room // MOST)
    return Rows(slots=slots, unit=rows.unit, x=rows.x, y=rows.y, rows_per_unit=MOST, file_rows=room)
