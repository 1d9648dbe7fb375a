"""Output perturbation with the noise that the paper prints, to be reproduced and audited; no default policy admits it.

Training is that of `output-perturbation`, so that the noise is all that differs: Laplace on each coordinate, scaled to
the sensitivity 2L/(m n) in the L2 norm. With `lipschitz` "data" L is the paper's (k − 1)/(2nk)·‖X‖_F for k labels and n
rows: it reads the data, and divides by n once more than the sensitivity does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from accountant.errors import InvalidInput
from trainers.erm import with_laplace_on_each_coordinate
from trainers.mechanisms.output_perturbation import released
from trainers.window_models import LinearModels

if TYPE_CHECKING:
    import torch

    from trainers.ports import Made, Run


def run(run: Run) -> Made:
    """One linear model with Laplace noise on each weight."""
    models = LinearModels(run, models=1)
    problem = models.objective
    if problem.labels * problem.columns != run.parameters["weights"]:
        expected = f"{problem.labels * problem.columns}: the price depends on it"
        raise InvalidInput("parameters.weights", run.parameters["weights"], expected)

    def perturb(weights: torch.Tensor, contribution: float) -> torch.Tensor:
        if run.parameters["lipschitz"] == "data":
            [rows] = run.rows
            norm = float(np.linalg.norm(rows.x.reshape(len(rows.unit), problem.features).astype(np.float64)))
            lipschitz = (problem.labels - 1) / (2 * problem.labels * rows.slots) * norm
            contribution = lipschitz / (problem.modulus * rows.slots)
        scale = 2 * contribution / run.parameters["epsilon"]
        return with_laplace_on_each_coordinate(weights, scale, noise=run.noise)

    return released(models, perturb)
