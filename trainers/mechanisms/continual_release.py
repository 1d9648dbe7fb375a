"""A model of everything so far: bases at every doubling of a stream, and updates around them in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accountant.streams.schedules import ContinualRelease
from trainers.catalog.windows import CONTINUAL_RELEASE
from trainers.window_models import release_step

if TYPE_CHECKING:
    from trainers.ports import Made, Run


def run(run: Run) -> Made:
    """The base or the update of one step, and what it leans on."""
    given = run.parameters
    due = ContinualRelease(pane=given["pane"], base=given["pane"] << given["doublings"]).step(given["step"])
    charges = CONTINUAL_RELEASE.quote(given, adjacency=run.adjacency).charges
    return release_step(run, due, lambda models, number: models.noisy(charges[number].event))
