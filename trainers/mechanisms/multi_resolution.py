"""Models of the last 1, 2, 4, … panes of a stream, each for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accountant.streams.schedules import MultiResolution
from trainers.catalog.windows import MULTI_RESOLUTION
from trainers.window_models import release_step

if TYPE_CHECKING:
    from trainers.ports import Made, Run


def run(run: Run) -> Made:
    """All models that are due; the head is the largest."""
    given = run.parameters
    due = MultiResolution(pane=given["pane"], levels=given["levels"] or None).step(given["step"])
    charges = MULTI_RESOLUTION.quote(given, adjacency=run.adjacency).charges
    return release_step(run, due, lambda models, number: models.noisy(charges[number].event))
