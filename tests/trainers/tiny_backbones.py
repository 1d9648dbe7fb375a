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


def instances(*, size: int) -> nn.Module:
    """The same with a normalisation of each row by itself."""
    return _scaled(tiny(size=size, normalised=lambda channels: nn.InstanceNorm2d(channels, affine=True)))


def instances_with_statistics(*, size: int) -> nn.Module:
    """The same with statistics that it came with."""
    module = tiny(
        size=size, normalised=lambda channels: nn.InstanceNorm2d(channels, affine=True, track_running_stats=True)
    )
    for layer in module.modules():
        if isinstance(layer, nn.InstanceNorm2d):
            layer.running_mean.sub_(0.1)
            layer.running_var.mul_(0.05)
    return _scaled(module)


class ChannelsFirst(nn.LayerNorm):  # type: ignore[misc]
    """Over the channels of each place, as image networks derive it from torch's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


def derived(*, size: int) -> nn.Module:
    """The same with a layer normalisation of a kind of its own."""
    return _scaled(tiny(size=size, normalised=ChannelsFirst))


def synchronised(*, size: int) -> nn.Module:
    """That with statistics, as it was trained by several processes."""
    return nn.SyncBatchNorm.convert_sync_batchnorm(frozen_statistics(size=size))


class OfSquares(nn.Module):  # type: ignore[misc]
    """Places, then a normalisation without means and one with them."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.first, self.second = nn.Conv2d(3, 16, 3, stride=2), nn.RMSNorm(16), nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(self.body(x).flatten(2).mT).relu().mean(1))


def of_squares(*, size: int) -> nn.Module:
    """As language models have it: one normalisation that has a scale alone."""
    del size
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return OfSquares()


def volumes(*, size: int) -> nn.Module:
    """Images as films of one picture, with batch normalisation over three axes."""
    del size
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        module = nn.Sequential(
            nn.Unflatten(1, (3, 1)),
            nn.Conv3d(3, 8, (1, 3, 3), stride=2, padding=(0, 1, 1)),
            nn.BatchNorm3d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool3d(2),
            nn.Flatten(),
        )
    module[2].running_var.mul_(0.05)
    return _scaled(module)


def _scaled(module: nn.Module) -> nn.Module:
    """Scales and shifts that are not those of a fresh layer."""
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm3d | nn.InstanceNorm2d | nn.LayerNorm):
            nn.init.constant_(layer.weight, 1.5)
            nn.init.constant_(layer.bias, 0.2)
    return module


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


class Map(nn.Module):  # type: ignore[misc]
    """Any function of a batch."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x.flatten(1))


class Attention(nn.Module):  # type: ignore[misc]
    """Of the parts of a row to each other, or, in torch's default order of axes, of the rows of a batch."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.reshape(len(x), -1, 8)).flatten(1)


def mean_of_the_batch(*, size: int) -> nn.Module:
    """Rows without what they have in common."""
    del size
    return Map(lambda x: x - x.mean(0))


def attention_over_the_batch(*, size: int) -> nn.Module:
    """A layer whose user forgot that the rows come first."""
    del size
    return Attention(batch_first=False)


def attention_along_a_row(*, size: int) -> nn.Module:
    """The same, as it should be."""
    del size
    return Attention(batch_first=True)


def chance(*, size: int) -> nn.Module:
    """Dropout that was forgotten."""
    del size
    return Map(lambda x: nn.functional.dropout(x, training=True))


def place(*, size: int) -> nn.Module:
    """Rows that are told apart by their place."""
    del size
    return Map(lambda x: x + torch.arange(len(x))[:, None])


def drawn_anew(*, size: int) -> nn.Module:
    """Weights that nobody fixed."""
    del size
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8))
