r"""Strongly convex logistic regression whose answer one record can move only so far, and the noise that hides it.

For a block of n slots the objective is

    J(w) = (1/n) Σ ℓ(w; x, y) + (m/2) ‖w − w_g‖²,

ℓ the cross-entropy of a softmax, w_g a centre that is public or was released, and rows x scaled down to a public norm
R. It is minimised by gradient descent over all rows, from w_g, with a public step and a public number of steps.

**How far one record moves the result.** ‖∇ℓ‖ = ‖p − e_y‖ ‖x‖ ≤ √2 R = L. The Hessian of ℓ is at most R²/2 (that of a
softmax is at most 1/2), so all curvatures of J lie between m and β = R²/2 + m, and a step of size η ≤ 2/(β + m) shrinks
distances by 1 − ηm at least. Two runs whose data differ in one record therefore drift apart by at most ηL/n a step and
are drawn together in between: after T steps they are within

    C = (L/(m n)) (1 − (1 − ηm)^T) ≤ L/(m n)

of each other. The optimum need not be reached for that, nor be known: what is bounded is the program that runs. Under
`replace_one` a record leaves and another comes, which is 2C. Source: card M13 of the design; Wu, Li, Kumar, Chaudhuri,
Jha & Naughton 2017 (arXiv 1606.04722) use the same recursion for stochastic steps, and Bousquet & Elisseeff 2002 bound
the exact minimiser.

A datapoint with several rows counts with the mean of their losses, which has the same L and R. One without rows adds
nothing, and n stays: it is public. So is the distance to the optimum, at most (1 − ηm)^T L/m, whatever the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from accountant.events import Gaussian, L2Laplace
from trainers.noise import on_grid

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from accountant.events import Event
    from trainers.noise import Noise
    from trainers.ports import Rows

_CHUNK: Final = 4096  # rows at a time
_UNIT: Final = 2.0**-53  # relative error of one operation on floats
_MARGIN: Final = 1e-9  # relative, above the error of the few operations that compute a bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What is minimised and by how many steps. All of it is public."""

    features: int
    labels: int
    radius: float  # R, to which rows are scaled down
    modulus: float  # m, of the penalty (m/2)‖w − w_g‖²
    iterations: int  # T
    bias: bool = True  # a further feature that is 1; its weight is penalised like all others

    @property
    def columns(self) -> int:
        """Weights of one label."""
        return self.features + self.bias

    @property
    def row_norm(self) -> float:
        """The most that a row can measure, the constant feature included."""
        return math.hypot(self.radius, 1.0) if self.bias else self.radius

    @property
    def lipschitz(self) -> float:
        """L, of one record's loss."""
        return math.sqrt(2) * self.row_norm

    @property
    def step_size(self) -> float:
        """η, a little below 2/(β + m): above it, distances would shrink less than 1 − ηm."""
        return (1 - _MARGIN) * 2 / (self.row_norm**2 / 2 + 2 * self.modulus)

    @property
    def distance_to_optimum(self) -> float:
        """How far the result, before noise, is from the minimiser at most: (1 − ηm)^T L/m for every data."""
        shrinks = -math.log1p(-min(self.step_size * self.modulus, 1 - _MARGIN))
        return (1 + _MARGIN) * math.exp(-self.iterations * shrinks) * self.lipschitz / self.modulus

    def contribution(self, *, slots: int, rows_per_unit: int = 1, centre_norm: float = 0.0) -> float:
        """C: how far one datapoint moves what `fit` returns, in the L2 norm, rounding included.

        At 2/(β + m), which is no less than the step that is taken, 1 − ηm = 1/(1 + 4m/R²).
        """
        reached = -math.expm1(-self.iterations * math.log1p(4 * self.modulus / self.row_norm**2))
        exact = self.lipschitz / (self.modulus * slots) * reached
        return (1 + _MARGIN) * (exact + self._rounding(slots * rows_per_unit, centre_norm))

    def _rounding(self, rows: int, centre_norm: float) -> float:
        """How far two runs in floats are from the same two runs in real numbers, added.

        Errors of a step are contracted as the runs themselves are, so that an error of e in each step makes at most
        e/(ηm) in the end. What e is made of, with u = 2⁻⁵³, each with room to spare: logits are sums of `columns`
        products and reach R‖w‖, so probabilities are off by a factor θ; gradients are sums over the rows, by chunks;
        the penalty, and the step itself. ‖w‖ is at most ‖w_g‖ + L/m, since on no data at all w stays at w_g.
        (Higham 2002, section 3.1, for sums and products in any order.)
        """
        reach = centre_norm + 2 * self.lipschitz / self.modulus
        summed = min(rows, _CHUNK) + -(-rows // _CHUNK) + 8
        off = 4 * (self.columns + 8) * _UNIT * self.row_norm * reach + (self.labels + 16) * _UNIT
        gradient = self.row_norm * (off + 8 * _UNIT) + 2 * summed * _UNIT * self.lipschitz
        step = gradient + 16 * _UNIT * self.modulus * reach + 4 * _UNIT * reach / self.step_size
        return 2 * step / self.modulus


def fit(
    objective: Objective,
    rows: Rows,
    labels: NDArray[np.int64],
    *,
    slots: int,
    centre: torch.Tensor,
    device: str = "cpu",
    stepped: Callable[[], None] = lambda: None,
) -> torch.Tensor:
    """The weights (labels × columns) after all steps, in float64 and **without noise**: not to be released.

    `labels` has an index for each row, −1 for one that is null. Whatever the data, the same steps are done, each on as
    many chunks, all of one size, as the most rows need that there could be. In place of those that are missing stand
    zeros with the share 0: 0 · p is 0 in floats too, so that they add exactly nothing, and no error to a sum.
    """
    at_a_time = max(1, min(_CHUNK, rows.room))
    x, y, shares = _filled(objective, rows, labels, room=-(-max(1, rows.room) // at_a_time) * at_a_time)
    x, y, shares, scales = x.to(device), y.to(device), shares.to(device), _scales(x, objective.radius).to(device)
    centre = centre.to(device=device, dtype=torch.float64)
    weights = centre.clone()
    for _ in range(objective.iterations):
        gradient = torch.zeros_like(weights)
        for start in range(0, len(x) if objective.labels else 0, at_a_time):  # without a label no row has one
            part = slice(start, start + at_a_time)
            wide = x[part].to(torch.float64).mul_(scales[part, None])
            if objective.bias:
                wide = torch.cat([wide, wide.new_ones(len(wide), 1)], dim=1)
            slopes = torch.softmax(wide @ weights.T, dim=1)
            slopes[torch.arange(len(wide), device=device), y[part]] -= 1
            gradient += slopes.mul_(shares[part, None]).T @ wide
        weights -= objective.step_size * (gradient / slots + objective.modulus * (weights - centre))
        stepped()
    return weights


def _filled(
    objective: Objective, rows: Rows, labels: NDArray[np.int64], *, room: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows that have a label, their labels, and the share of each in its datapoint's loss; then zeros."""
    kept = np.flatnonzero(labels >= 0)
    unit = rows.unit[kept]
    x, y = np.zeros((room, objective.features), dtype=np.float32), np.zeros(room, dtype=np.int64)
    shares = np.zeros(room)
    x[: len(kept)] = rows.x.reshape(len(rows.unit), objective.features)[kept]
    y[: len(kept)] = labels[kept]
    shares[: len(kept)] = (1.0 / np.bincount(unit, minlength=1).clip(min=1))[unit]
    return torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(shares)


def _scales(x: torch.Tensor, radius: float) -> torch.Tensor:
    """By what each row is multiplied so that its norm is at most the radius; a little less, for rounding."""
    least = radius * (1 - _MARGIN)
    norms = torch.cat([part.to(torch.float64).norm(dim=1) for part in x.split(_CHUNK)])
    return (least / norms.clamp(min=least)).clamp_(max=1)


def perturbed(weights: torch.Tensor, event: Event, *, contribution: float, noise: Noise) -> torch.Tensor:
    """The weights with the noise that the event states relative to one record's contribution, in float64 on a grid."""
    if not weights.numel():  # no label was ever released: there is nothing to hide
        return weights
    match event:
        case Gaussian():
            return noise.noisy(weights, event.noise_multiplier * contribution)
        case L2Laplace():
            scale = event.scale * contribution
            drawn = noise.spherical_laplace(weights.numel(), scale).reshape(weights.shape).to(weights.device)
            return on_grid(weights + drawn, scale)
        case _:
            raise AssertionError(f"no noise for {event}")


def with_laplace_on_each_coordinate(weights: torch.Tensor, scale: float, *, noise: Noise) -> torch.Tensor:
    """The noise of the paper as it is printed: for an L2 sensitivity it costs √d times as much, d the coordinates."""
    half = [
        torch.from_numpy(noise.words(weights.numel()).astype(np.float64)).add_(0.5).mul_(2.0**-64).log_()
        for _ in range(2)
    ]
    drawn = (half[0] - half[1]).mul_(scale).reshape(weights.shape).to(weights.device)  # of two exponentials
    return on_grid(weights + drawn, scale)
