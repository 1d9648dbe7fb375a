"""How often released models are right on private rows: two noisy counts, and their ratio."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from accountant.errors import InvalidInput
from trainers.noise import on_grid
from trainers.ports import Made
from trainers.predictors import BATCH, NO_LABEL, predict, refuse_by_place, truths

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainers.ports import Rows, Run


def run(run: Run) -> Made:
    """Noisy counts of right and of wrong answers, each row of a datapoint counting for its share of one.

    Labels are read by the rules that the models were trained under, which are public and look at one row at a time.
    A label that no model knows is answered wrongly, as is every row where no label was released. The share of right
    answers is taken of the noisy counts and not of the slots, since how many of those are null is private.
    """
    [rows] = run.rows
    released = [run.inputs[f"models.{place}"] for place in range(len(run.recipe["models"]))]
    if len(rows.y) != len(rows):
        raise InvalidInput("data.y", "nothing", "the labels that answers are compared with")
    refuse_by_place(released, rows.x.shape[1:], backbones=run.backbones, device=run.device)
    answers = predict(
        released,
        _whole_batches(rows),
        backbones=run.backbones,
        aggregation=run.recipe["aggregation"],
        device=run.device,
    )[: len(rows)]
    right = (truths(released, rows.y) == answers) & (answers != NO_LABEL)
    noisy = _noisy(torch.tensor(_shares(right, rows), dtype=torch.float64), run)
    run.progress(1, 1)
    correct, wrong = noisy.tolist()
    total = correct + wrong
    return Made(
        tensors={},
        facts={
            "correct": correct,
            "wrong": wrong,
            "accuracy": min(1.0, max(0.0, correct / total)) if total > 0 else 0.0,
            "models": [each.release for each in released],
        },
    )


def _whole_batches(rows: Rows) -> NDArray[np.float32]:
    """The rows, and rows of zeros, in whole batches: as many as the most rows need that there could be, and one.

    The last digits of a product depend on how many rows it has. In a batch that grows by one row, all rows that lie on
    the border between two answers could change theirs: a datapoint would move the counts by more than one.
    """
    whole = np.zeros((-(-max(1, rows.room) // BATCH) * BATCH, *rows.x.shape[1:]), dtype=np.float32)
    whole[: len(rows)] = rows.x
    return whole


def _shares(right: NDArray[np.bool_], rows: Rows) -> tuple[float, float]:
    """What is counted: at most 1 in all for a datapoint, whatever the number of its rows."""
    return np.count_nonzero(right) / rows.rows_per_unit, np.count_nonzero(~right) / rows.rows_per_unit


def _noisy(counts: torch.Tensor, run: Run) -> torch.Tensor:
    given = run.parameters
    if given["noise"] == "gaussian":
        return run.noise.noisy(counts, given["noise_multiplier"])
    # In one dimension spherical noise is Laplace noise; each count gets its own.
    drawn = torch.cat([run.noise.spherical_laplace(1, given["scale"]) for _ in counts])
    return on_grid(counts + drawn, given["scale"])
