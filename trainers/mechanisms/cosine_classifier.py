"""Sums of unit features for each label, each with noise of its own; a row is classified by its angle to them.

Sound form of Algorithm 1 of "Privacy Leakage via Output Label Space and Differentially Private Continual Learning":
card M2 says where the printed formulas of the two papers differ and what each of them would give away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from accountant.errors import InvalidInput
from trainers.backbones import features_of
from trainers.labels import label_space
from trainers.ports import Made

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from trainers.noise import Noise
    from trainers.ports import Progress, Released, Run

_CHUNK: Final = 1 << 17  # numbers at a time: sum, noise and grid meet in a cache
#: Unit vectors are multiples of this: sums of up to 2²³ of them are exact, in whatever order they are taken.
_STEP: Final = 2.0**-30


def run(run: Run) -> Made:
    """The sums of the tasks so far: those of `previous`, and those of this task with its own noise.

    Adding to released sums is post-processing, so that each datapoint pays for its own task alone (card M7). A task
    without any record runs the same program (card M8).
    """
    space = label_space(run)
    backbone, [rows] = features_of(run)
    before = run.inputs.get("previous") if run.recipe["previous"] else None
    _check(before, backbone, size=rows.x.shape[1])
    sums = noisy_sums(
        rows.x,
        space.indices(rows.y),
        labels=len(space),
        rows_per_unit=rows.rows_per_unit,
        room=rows.room,
        deviation=float(run.parameters["noise_multiplier"]),
        noise=run.noise,
        device=run.device,
        progress=run.progress,
    )
    names, sums = _added(before, space.names, sums)
    facts = {"predictor": "cosine", "labels": list(names), "backbone": backbone, **space.facts(run.inputs)}
    return Made(tensors={"sums": sums.to("cpu")}, facts=facts)


def unit_rows(features: torch.Tensor, *, rows_per_unit: int) -> torch.Tensor:
    """Each row at a norm of at most 1 / rows_per_unit, so that a datapoint's rows together move the sums by at most 1.

    The norm is divided by a little more than itself and every number is cut towards 0, so that the bound survives
    rounding. Rows that are zero or not finite are zero.
    """
    rows = features.to(torch.float64)
    norms = rows.norm(dim=1)
    there = (norms > 0) & norms.isfinite()
    rows[~there] = 0  # before the product: 0 · ∞ is not 0
    shares = torch.where(there, 1 / (norms * ((1 + 1e-6) * rows_per_unit * _STEP)), 0.0)
    return rows.mul_(shares[:, None]).trunc_().mul_(_STEP)


def noisy_sums(
    features: NDArray[np.float32],
    index: NDArray[np.int64],
    *,
    labels: int,
    deviation: float,
    noise: Noise,
    rows_per_unit: int = 1,
    room: int = 0,
    device: str = "cpu",
    progress: Progress = lambda _done, _of: None,
) -> torch.Tensor:
    """The sum of the normalised rows of each label, on the noise grid: (labels, size), in float64.

    Every label gets noise of its own, also one without a row: noise that labels shared would cancel in differences.
    Rows with index −1 are in no sum. There could be `room` rows: so many are worked on, and where one is missing zeros
    are added to a sum. Noise comes when all are added, and progress with it: how far it is depends on no row.
    """
    size = features.shape[1]
    at_a_time = max(1, _CHUNK // size)
    sums = torch.zeros((labels + 1, size), dtype=torch.float64, device=device)  # the last of what is in no sum
    room = max(room, len(index))
    for start in range(0, room, at_a_time):
        stop = min(start + at_a_time, room)
        rows, places = np.zeros((stop - start, size), dtype=np.float32), np.arange(start, stop)
        there = len(index[start:stop])
        rows[:there], places[:there] = features[start:stop], index[start:stop]
        units = unit_rows(torch.from_numpy(rows).to(device), rows_per_unit=rows_per_unit)
        sums.index_add_(0, torch.from_numpy(places % (labels + 1)).to(device), units)
    for start in range(0, labels, at_a_time):
        part = sums[start : min(start + at_a_time, labels)]
        part.copy_(noise.noisy(part, deviation))
        progress(start + len(part), labels)
    if not labels:
        progress(1, 1)
    return sums[:labels]


def _check(before: Released | None, backbone: Mapping[str, Any] | None, *, size: int) -> None:
    """Refuse to add sums of different things."""
    if before is None:
        return
    facts = before.facts
    if facts.get("predictor") != "cosine" or before.tensors["sums"].shape[1] != size:
        raise InvalidInput("recipe.previous", before.release, "a release of cosine-classifier with as many features")
    if facts["backbone"] != backbone:
        raise InvalidInput("recipe.previous", before.release, "a release with the same backbone")


def _added(before: Released | None, names: Sequence[str], sums: torch.Tensor) -> tuple[tuple[str, ...], torch.Tensor]:
    """The labels so far with what is now the sum of each; those that are new come last."""
    if before is None:
        return tuple(names), sums
    known: list[str] = before.facts["labels"]
    place = {name: number for number, name in enumerate(dict.fromkeys((*known, *names)))}
    together = torch.zeros((len(place), sums.shape[1]), dtype=torch.float64, device=sums.device)
    together[: len(known)] = before.tensors["sums"].to(together)
    together.index_add_(0, torch.tensor([place[name] for name in names], dtype=torch.int64, device=sums.device), sums)
    return tuple(place), together
