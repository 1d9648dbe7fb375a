"""Logistic regression on the scope of a release, with noise on its weights (`trainers.erm`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainers.catalog.erm import OUTPUT_PERTURBATION
from trainers.ports import Made
from trainers.window_models import LinearModels, whole

if TYPE_CHECKING:
    from trainers.ports import Run
    from trainers.window_models import Perturb


def run(run: Run) -> Made:
    """One noisy linear model, around zero or around a model that was released before."""
    [charge] = OUTPUT_PERTURBATION.quote(run.parameters, adjacency=run.adjacency).charges
    models = LinearModels(run, models=1)
    return released(models, models.noisy(charge.event))


def released(models: LinearModels, perturb: Perturb) -> Made:
    """The one model of a run, with this noise."""
    [rows] = models.run.rows
    centre = models.centre()
    if (start := models.run.inputs.get("centre")) is not None:
        centre = models.read(start, whole(start.tensors), path="recipe.centre")
    # A scope without a single datapoint is trained like any other: averages divide by what is public and not 0.
    weights = models.train(rows, slots=max(1, rows.slots), centre=centre, perturb=perturb)
    return Made(tensors=models.parts(weights), facts=models.facts())
