"""The networks that a recipe can name, with a public start, and their weights as tensors by name."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from accountant.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PUBLIC_SEED: Final = 20_16  # of the first weights, which are no secret


class Affine(nn.Module):  # type: ignore[misc]  # torch's types are not read
    """x · scale + shift for each channel (axis 1): what FiLM tunes. It starts as the identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels))
        self.shift = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (n, channels, …)
        """The same shape."""
        channels = (1, -1, *(1,) * (x.ndim - 2))
        return x * self.scale.view(channels) + self.shift.view(channels)


def build(recipe: Mapping[str, Any], *, outputs: int) -> nn.Module:
    """The network of a recipe, from (n, *shape) to (n, outputs).

    Its weights are functions of the recipe alone, so that runs with the same recipe start alike; those of the last
    layer are zero, so that no class is preferred before the first step.
    """
    shape: Sequence[int] = recipe["shape"]
    hidden: Sequence[int] = recipe["hidden"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_PUBLIC_SEED)
        match recipe["model"]:
            case "linear":
                body, width = [nn.Flatten()], math.prod(shape)
            case "mlp":
                body, width = _perceptron(math.prod(shape), hidden)
            case "cnn":
                body, width = _convolutions(shape, hidden)
            case other:
                raise AssertionError(f"no model {other!r}")
        last = nn.Linear(width, 1)
    last.out_features = outputs  # of which there may be none, for which torch has no start of its own
    last.weight, last.bias = nn.Parameter(torch.zeros(outputs, width)), nn.Parameter(torch.zeros(outputs))
    return nn.Sequential(*body, last)


def _perceptron(width: int, hidden: Sequence[int]) -> tuple[list[nn.Module], int]:
    layers: list[nn.Module] = [nn.Flatten()]
    for after in hidden:
        layers += [nn.Linear(width, after), nn.ReLU()]
        width = after
    return layers, width


def _convolutions(shape: Sequence[int], hidden: Sequence[int]) -> tuple[list[nn.Module], int]:
    """Each convolution sees 3 × 3 and is followed by the largest of 2 × 2."""
    if len(shape) != 3 or min(shape[1:]) >> len(hidden) < 1:
        raise InvalidInput(
            "recipe.shape", list(shape), f"channels, height and width that {len(hidden)} convolutions can halve"
        )
    channels, height, width = shape
    layers: list[nn.Module] = []
    for after in hidden:
        layers += [nn.Conv2d(channels, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        channels, height, width = after, height // 2, width // 2
    return [*layers, nn.Flatten()], channels * height * width


def state(module: nn.Module) -> dict[str, torch.Tensor]:
    """Every weight and buffer by name, on the CPU, sharing no memory with the network."""
    return {name: value.detach().to("cpu", copy=True).contiguous() for name, value in module.state_dict().items()}


def load(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Give the network these weights: all of them and no others, of the same shapes."""
    expected = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    given = {name: tuple(value.shape) for name, value in tensors.items()}
    if given != expected:
        raise InvalidInput("tensors", given, f"weights of the network of the recipe, {expected}")
    module.load_state_dict(dict(tensors))
