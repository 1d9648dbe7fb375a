"""Backbones that are computed in no time, with public weights that follow from a seed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def tiny(*, size: int, normalised: Any = lambda channels: nn.GroupNorm(2, channels)) -> nn.Module:
    """Two convolutions with group normalisation: (n, 3, size, size) to (n, 16)."""
    del size
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1),
            normalised(8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            normalised(16),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )


def frozen_statistics(*, size: int) -> nn.Module:
    """The same with batch normalisation, whose statistics are not those of a fresh layer, and dropout."""
    module = tiny(size=size, normalised=nn.BatchNorm2d)
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.sub_(0.1)
            layer.running_var.mul_(0.05)
    return nn.Sequential(module, nn.Dropout(0.5))


def batch_statistics(*, size: int) -> nn.Module:
    """One that normalises by whatever rows are in the batch."""
    return tiny(size=size, normalised=lambda channels: nn.BatchNorm2d(channels, track_running_stats=False))


class Reciprocal(nn.Module):  # type: ignore[misc]
    """Not finite for a row that has a zero."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 1 / x.flatten(1)


def reciprocal(*, size: int) -> nn.Module:
    """One over each number."""
    del size
    return Reciprocal()
