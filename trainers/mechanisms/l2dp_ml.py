"""Lifelong learning from statistics that are each released once: noisy class sums and noisy second moments.

What L2DP-ML wants of the functional mechanism, in a form that holds: a least-squares classifier needs no more of a task
than Σ φ of each class and Σ φφᵀ, so these are released with fresh Gaussian noise when the task arrives, and everything
later (training, replay of all tasks, other penalties) reads them and costs nothing. Second moments as in "Analyze
Gauss" (Dwork et al. 2014), with noise on each entry of the upper triangle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from accountant.errors import InvalidInput
from trainers.labels import label_space
from trainers.ports import Made

if TYPE_CHECKING:
    from trainers.noise import Noise
    from trainers.ports import Released, Rows, Run

_PUBLIC_SEED: Final = 0
_MAX_MAP: Final = 10**8  # entries of a public projection
_CHUNK: Final = 4_096  # rows at a time
#: Norms are computed in floating point: a little less than 1 stays at most 1 whatever way it was rounded.
_UNIT: Final = 1 - 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What is known of one task: sums (labels × size), moments (size × size), and the deviation of the latter's noise.

    Off the diagonal the deviation is 1/√2 of it.
    """

    labels: tuple[str, ...]
    sums: torch.Tensor
    moments: torch.Tensor
    deviation: float


def run(run: Run) -> Made:
    """Release the statistics of a task, and the classifier over all labels of it and of the previous releases."""
    recipe = run.recipe
    space = label_space(run)
    feature_map = public_map(recipe, device=run.device)
    known = {name: recipe[name] for name in ("features", "inputs", "size")}
    earlier = [_statistics(run.inputs[f"previous.{place}"], known, place) for place in range(len(recipe["previous"]))]
    [rows] = run.rows
    sums, moments = exact_statistics(rows, space.indices(rows.y), feature_map, labels=len(space), device=run.device)
    own = noisy_statistics(
        space.names,
        sums,
        moments,
        noise=run.noise,
        noise_multiplier=run.parameters["noise_multiplier"],
        moment_weight=run.parameters["moment_weight"],
    )
    run.progress(1, 2)
    labels, weight = classifier([*earlier, own], ridge=recipe["ridge"])
    if feature_map is not None:
        weight = weight @ feature_map.cpu().T
    run.progress(2, 2)
    return Made(
        tensors={"sums": own.sums, "moments": own.moments, "weight": weight.to(torch.float32)},
        facts={
            # A row's scale does not change which output is the largest, so the map to norm 1 need not be repeated.
            "predictor": "linear",
            "labels": list(labels),
            "row_norm": None,
            "backbone": None,
            **space.facts(run.inputs),
            "statistics": {**known, "labels": list(own.labels), "deviation": own.deviation},
        },
    )


def public_map(recipe: Mapping[str, Any], *, device: str = "cpu") -> torch.Tensor | None:
    """The projection (inputs × size) of a recipe, the same at every run; None for rows as they are."""
    inputs, size = recipe["inputs"], recipe["size"]
    if recipe["features"] == "identity":
        if inputs > size:
            raise InvalidInput("recipe.inputs", inputs, f"at most {size} (recipe.size), or a projection")
        return None
    if inputs * size > _MAX_MAP:
        raise InvalidInput("recipe.size", size, f"at most {_MAX_MAP // inputs} features of {inputs} values")
    public = torch.Generator().manual_seed(_PUBLIC_SEED)
    return (torch.randn((inputs, size), generator=public, dtype=torch.float64) / math.sqrt(size)).to(device)


def exact_statistics(
    rows: Rows, indices: NDArray[np.int64], feature_map: torch.Tensor | None, *, labels: int, device: str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Σ φ for each label and Σ φφᵀ, such that a datapoint adds at most norm 1 to each, however many rows it has.

    There are as many chunks, all of one size, as the most rows need that there could be: in place of those that are
    missing, and of those without a label, stand zeros, whose φ is 0 and adds exactly nothing.
    """
    size = math.prod(rows.x.shape[1:]) if feature_map is None else feature_map.shape[1]
    sums = torch.zeros((labels, size), dtype=torch.float64, device=device)
    moments = torch.zeros((size, size), dtype=torch.float64, device=device)
    at_a_time = max(1, min(_CHUNK, rows.room))
    for start in range(0, max(1, rows.room), at_a_time):
        given, label = rows.x[start : start + at_a_time], indices[start : start + at_a_time]
        x = np.zeros((at_a_time, math.prod(rows.x.shape[1:])))
        x[: len(given)] = given.reshape(len(given), x.shape[1])
        x[: len(given)][label < 0] = 0
        unit = unit_features(torch.from_numpy(x).to(device), feature_map)
        if labels:
            place = torch.zeros(at_a_time, dtype=torch.int64)
            place[: len(given)] = torch.from_numpy(label.clip(min=0))
            sums.index_add_(0, place.to(device), unit / rows.rows_per_unit)
        moments += unit.T @ unit / rows.rows_per_unit
    return sums, moments


def unit_features(x: torch.Tensor, feature_map: torch.Tensor | None) -> torch.Tensor:
    """φ of each row: at most 1 long, 0 for a row that has no direction or is not finite."""
    mapped = x if feature_map is None else x @ feature_map
    largest = mapped.abs().amax(dim=1, keepdim=True)
    scaled = mapped / largest.clamp(min=torch.finfo(torch.float64).tiny)  # squares of it neither vanish nor overflow
    unit = _UNIT * scaled / scaled.norm(dim=1, keepdim=True).clamp(min=0.5)
    return torch.where(unit.isfinite().all(dim=1, keepdim=True), unit, torch.zeros_like(unit))


def noisy_statistics(
    labels: Sequence[str],
    sums: torch.Tensor,
    moments: torch.Tensor,
    *,
    noise: Noise,
    noise_multiplier: float,
    moment_weight: float,
) -> Statistics:
    """Both with noise of one Gaussian mechanism, of norm √(1 + w²) for each datapoint.

    A symmetric matrix has the Frobenius norm of its upper triangle with √2 on the entries off the diagonal: these
    are the coordinates that get the noise.
    """
    size = len(moments)
    above = torch.triu_indices(size, size, device=moments.device)
    stretch = torch.where(above[0] == above[1], 1.0, math.sqrt(2)).to(torch.float64)
    deviation = math.nextafter(noise_multiplier * math.hypot(1, moment_weight), math.inf)
    triangle = noise.noisy(moment_weight * stretch * moments[above[0], above[1]], deviation) / (moment_weight * stretch)
    released = torch.empty_like(moments)
    released[above[0], above[1]] = triangle
    released[above[1], above[0]] = triangle
    return Statistics(
        labels=tuple(labels),
        sums=noise.noisy(sums, deviation).cpu(),
        moments=released.cpu(),
        deviation=deviation / moment_weight,
    )


def classifier(tasks: Sequence[Statistics], *, ridge: float) -> tuple[tuple[str, ...], torch.Tensor]:
    """All labels in the order of their first task, and a least-squares weight (labels × size) over all tasks.

    What the noise made of the moments is undone as far as can be: eigenvalues below 0 are 0, and the penalty is at
    least the norm of the noise, which for a symmetric Gaussian matrix of n rows is about √(2n) deviations.
    """
    labels = tuple(dict.fromkeys(name for task in tasks for name in task.labels))
    place = {name: each for each, name in enumerate(labels)}
    size = tasks[-1].sums.shape[1]
    sums = torch.zeros((len(labels), size), dtype=torch.float64)
    for task in tasks:
        sums.index_add_(0, torch.tensor([place[name] for name in task.labels], dtype=torch.int64), task.sums)
    moments = torch.stack([task.moments for task in tasks]).sum(dim=0)
    penalty = ridge + math.sqrt(2 * size * sum(task.deviation**2 for task in tasks))
    values, vectors = torch.linalg.eigh(moments)
    inverse = (vectors / (values.clamp(min=0) + penalty)) @ vectors.T
    return labels, sums @ inverse


def _statistics(released: Released, known: Mapping[str, Any], place: int) -> Statistics:
    told = released.facts.get("statistics")
    if not isinstance(told, Mapping) or any(told.get(name) != value for name, value in known.items()):
        expected = "a release of l2dp-ml with the same features, inputs and size"
        raise InvalidInput(f"recipe.previous[{place}]", released.release, expected)
    return Statistics(
        labels=tuple(told["labels"]),
        sums=released.tensors["sums"].to(torch.float64),
        moments=released.tensors["moments"].to(torch.float64),
        deviation=told["deviation"],
    )
