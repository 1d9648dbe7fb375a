"""A model of the last datapoints of a stream: a chain of noisy models, of which each step trains a few anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accountant.streams.schedules import SlidingWindow
from trainers.catalog.windows import SLIDING_WINDOW
from trainers.window_models import release_step

if TYPE_CHECKING:
    from trainers.ports import Made, Run


def run(run: Run) -> Made:
    """The chain of one step; its head is the model of the window."""
    given = run.parameters
    due = SlidingWindow(k=given["k"], w0=given["w0"], startup=given["startup"]).step(given["step"])
    charges = SLIDING_WINDOW.quote(given, adjacency=run.adjacency).charges
    return release_step(run, due, lambda models, number: models.noisy(charges[number].event))
