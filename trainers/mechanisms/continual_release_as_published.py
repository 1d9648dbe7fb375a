"""Continual release with the noise that the paper prints, to be reproduced and audited: no budget admits it.

The schedule and the training are those of `continual-release`; bases have Laplace noise of scale 4L/(m B ε) on each
coordinate, B the first base, and updates of scale 4L/(m b0 ε), b0 a pane, whatever the size of their block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accountant.streams.schedules import ContinualRelease
from trainers.erm import with_laplace_on_each_coordinate
from trainers.window_models import release_step

if TYPE_CHECKING:
    import torch

    from trainers.ports import Made, Run
    from trainers.window_models import LinearModels, Perturb


def run(run: Run) -> Made:
    """The base or the update of one step, and what it leans on."""
    given = run.parameters
    schedule = ContinualRelease(pane=given["pane"], base=given["pane"] << given["doublings"])
    due = schedule.step(given["step"])
    [block] = due.trained
    smallest = schedule.base if block.kind == "base" else schedule.pane

    def printed(models: LinearModels, _number: int) -> Perturb:
        problem = models.objective
        scale = 4 * problem.lipschitz / (problem.modulus * smallest * given["epsilon"])

        def perturb(weights: torch.Tensor, _contribution: float) -> torch.Tensor:
            return with_laplace_on_each_coordinate(weights, scale, noise=run.noise)

        return perturb

    return release_step(run, due, printed)
