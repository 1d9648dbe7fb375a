"""A-GEM without privacy: a step that would undo what a batch of the memories asks for is turned until it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainers.mechanisms.fine_tuning import descend
from trainers.projection import projected

if TYPE_CHECKING:
    from trainers.ports import Made, Run
    from trainers.private_sgd import Gradient


def run(run: Run) -> Made:
    """The weights after `steps` steps; the rows of every charge but the first are the memories."""
    return descend(run, memory_batch=run.parameters["memory_batch"], follow=followed)


def followed(gradient: Gradient, memory: Gradient | None) -> Gradient:
    """The gradient itself while there is no memory yet."""
    return gradient if memory is None else projected(gradient, memory)
