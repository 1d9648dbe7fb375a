"""What a run adds noise to, and how much: heard once, so that the noise of many runs can be drawn without the rest.

Where noise is added to something that the rows alone decide, a training need not be repeated to see its noise again.
The mechanism's own code is run once, on a source of chance that draws nothing and notes what it is asked for. Whatever
the code gets wrong before it asks, in the rows, the training or the scale of the noise, is in the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from accountant.events import Gaussian, L2Laplace
from trainers import erm
from trainers.noise import Noise, on_grid

if TYPE_CHECKING:
    from accountant.events import Event


class Asked(NamedTuple):
    """One call for noise. `exact` is what it is added to, where the source is told."""

    event: Event  # its noise, not relative to anything
    exact: torch.Tensor | None


class Overheard(Noise):
    """Chance that is none: all noise is 0. What it makes is exact, but for the grid, and must not be released."""

    def __init__(self) -> None:
        super().__init__(bytes(32), releasable=False)
        self.asked: list[Asked] = []

    def noisy(self, exact: torch.Tensor, deviation: float) -> torch.Tensor:
        """The same numbers."""
        self.asked.append(Asked(Gaussian(noise_multiplier=deviation), exact.clone()))
        return exact.clone()

    def spherical_laplace(self, size: int, scale: float) -> torch.Tensor:
        """Nothing."""
        self.asked.append(Asked(L2Laplace(scale=scale), None))
        return torch.zeros(size, dtype=torch.float64)


def again(event: Event, exact: torch.Tensor, samples: int, noise: Noise) -> torch.Tensor:
    """(samples, …): what so many runs would release, by the code that mechanisms draw noise with, before float32."""
    if isinstance(event, Gaussian):  # each number has noise of its own, so that all runs are one call
        return erm.perturbed(exact.expand(samples, *exact.shape), event, contribution=1.0, noise=noise)
    return torch.stack([erm.perturbed(exact, event, contribution=1.0, noise=noise) for _ in range(samples)])


def sharpened(heard: torch.Tensor, expected: torch.Tensor, event: Event) -> torch.Tensor:
    """What was heard off the grid: the expected numbers if they are what was heard, else what was heard.

    Spherical noise is added outside the source, so that what it is added to is heard on the grid only.
    """
    assert isinstance(event, L2Laplace)
    same = torch.equal(on_grid(expected, event.scale).to(torch.float32), heard)
    return expected if same else heard.to(torch.float64)
