"""The projection of averaged gradient episodic memory (A-GEM, Chaudhry et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

_NOTHING: Final = 1e-200


def projected(gradient: Sequence[torch.Tensor], reference: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The gradient without what would raise the loss of the reference: g − (g·r / ‖r‖²) r where g·r < 0, else g.

    A reference of norm 0, or so close to it that a quotient would overflow, says nothing, and the gradient is left as
    it is. Of noisy gradients this is post-processing.
    """
    inner = sum(float((g * r).sum(dtype=torch.float64)) for g, r in zip(gradient, reference, strict=True))
    square = sum(float((r * r).sum(dtype=torch.float64)) for r in reference)
    if inner >= 0 or square < _NOTHING:
        return list(gradient)
    return [g - (inner / square) * r for g, r in zip(gradient, reference, strict=True)]


def averaged(gradients: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    """The mean of several gradients, parameter by parameter."""
    return [torch.stack(parts).mean(dim=0) for parts in zip(*gradients, strict=True)]
