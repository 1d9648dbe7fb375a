"""What is trained on a frozen backbone for one task: a head, and with FiLM its normalisation layers' affine parts.

Statistics of normalisation layers stay those that the public backbone came with: a batch's own would mix its rows, and
no gradient could be clipped by itself.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from accountant.errors import InvalidInput
from trainers.models import Affine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainers.backbones import Backbone

_NOTHING: Final = 1e-12  # a row of this norm is left at 0, and its gradient is finite
_NORMALISATIONS: Final = (nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
#: Their scale and shift are taken out of them, so that rows are clipped as those of any other layer are.
_OPENED: Final = (nn.BatchNorm3d, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


class Tuned(nn.Module):  # type: ignore[misc]  # torch is not read
    """A frozen body and a head that starts at zero, so that no label is preferred before the first step.

    The body stays in evaluation mode whatever mode is asked for. If there is a `norm`, the head sees each row's
    features at that L2 norm, whatever they came with: a function of one row alone.
    """

    def __init__(self, body: nn.Module, *, width: int, outputs: int, norm: float) -> None:
        super().__init__()
        self.body, self.norm = body, norm
        self.head = nn.Linear(width, outputs)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, …) to (n, outputs)."""
        features = self.body(x).flatten(1)
        if self.norm:
            lengths = torch.linalg.vector_norm(features, dim=1, keepdim=True)
            features = features * (self.norm / lengths.clamp(min=_NOTHING))
        return self.head(features)

    def train(self, mode: bool = True) -> Tuned:  # noqa: FBT001, FBT002  # torch calls it so
        super().train(mode)
        self.body.eval()
        return self


class _Prepared(nn.Module):  # type: ignore[misc]
    """A copy of a backbone's module that takes rows as they are stored, so that only a batch at a time is resized."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.module = copy.deepcopy(backbone.module)
        self._prepare = backbone.prepared

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(self._prepare(x))


class _Opened(nn.Module):  # type: ignore[misc]
    """A normalisation without its scale and shift, then these: the same function of a row.

    An instance normalisation looks at one row by itself, unless it keeps running statistics, which stay public.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.affine = Affine(len(layer.weight))
        with torch.no_grad():
            self.affine.scale.copy_(layer.weight)
            self.affine.shift.copy_(layer.bias)
        self.layer = layer
        layer.affine, layer.weight, layer.bias = False, None, None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.affine(self.layer(x))


def last_layer(*, width: int, labels: int, norm: float = 0.0) -> Tuned:
    """A head on features that were computed beforehand."""
    return Tuned(nn.Identity(), width=width, outputs=_outputs(labels), norm=norm)


def film(backbone: Backbone, *, shape: Sequence[int], labels: int, norm: float = 0.0) -> Tuned:
    """A head, and a scale and a shift for each channel of each normalisation layer (Perez et al. 2018)."""
    body = _Prepared(backbone)
    for name, layer in [*body.named_modules()]:
        if isinstance(layer, _OPENED) and layer.weight is not None:
            around, _, place = name.rpartition(".")
            setattr(body.get_submodule(around), place, _Opened(layer))
    tuned = [
        layer
        for layer in body.modules()
        if isinstance(layer, Affine) or (isinstance(layer, _NORMALISATIONS) and layer.weight is not None)
    ]
    if not tuned:
        raise InvalidInput(
            "recipe.adapter", "film", f"a backbone with normalisation layers, which {backbone.name} is not"
        )
    for layer in tuned:
        layer.requires_grad_(True)  # noqa: FBT003
    module = Tuned(body, width=backbone.width(shape), outputs=_outputs(labels), norm=norm)
    module.to(backbone.device)
    return module


def _outputs(labels: int) -> int:
    """As many as there are labels. A label set that was released may be empty: one output then, which nobody reads."""
    return max(1, labels)


def tensors(module: Tuned) -> dict[str, torch.Tensor]:
    """What was trained, by name; the rest is the public backbone's."""
    return {
        name: parameter.detach().to("cpu", copy=True).contiguous()
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }


def restore(module: Tuned, given: Mapping[str, torch.Tensor]) -> None:
    """Give the module what was trained: all of it and nothing else."""
    expected = {name: tuple(each.shape) for name, each in module.named_parameters() if each.requires_grad}
    shapes = {name: tuple(each.shape) for name, each in given.items()}
    if shapes != expected:
        raise InvalidInput("tensors", shapes, f"what this adapter has, {expected}")
    module.load_state_dict(dict(given), strict=False)
