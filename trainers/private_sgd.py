"""The training loop of every mechanism that descends along noisy gradients.

Reading order: `train` takes steps; each step asks every source for a `noisy_gradient`, combines them, and moves the
weights. Everything after the noise is post-processing, so the optimiser and `combine` may be anything.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import torch
from torch import nn

from trainers.ahead import ahead
from trainers.clipping import ClippedSum, Loss, clipping, cross_entropy, trainable, wherever_a_row_stands
from trainers.noise import grid_step

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainers.noise import Noise
    from trainers.ports import Progress, Rows

Gradient: TypeAlias = list[torch.Tensor]
#: From the noisy gradients of the sources of a step to the one that is followed.
Combine: TypeAlias = Callable[[Sequence[Gradient]], Gradient]
#: From the number of a step to the sources that it samples, always the same ones.
Schedule: TypeAlias = Callable[[int], Sequence[int]]

_TILE: Final = 32  # rows: batches are of whole tiles, since products round what is left of one otherwise
_TOGETHER: Final = 2  # samples that are drawn and laid out in one go, with their noise: more no longer fit a cache
_MEMORY: Final = 1 << 25  # bytes that these may take; of large networks and rows there are fewer in one go


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One stream of samples: each of `slots` datapoints is in a sample by a coin of its own.

    A datapoint may have up to `rows_per_unit` rows. Each is clipped to its share of `clip_norm`, so that together they
    add no more than that. The noise on a sum has the deviation noise_multiplier · clip_norm.
    """

    x: torch.Tensor  # (n + 1, …), the last of which is a null row, to fill batches with
    y: torch.Tensor  # (n + 1,) of whole numbers
    unit: NDArray[np.int64]  # (n,) the slot of each row, rising
    slots: int
    rows_per_unit: int
    sampling_probability: float
    noise_multiplier: float
    clip_norm: float

    @classmethod
    def of(
        cls,
        rows: Rows,
        labels: NDArray[np.int64],
        *,
        sampling_probability: float,
        noise_multiplier: float,
        clip_norm: float,
        device: str = "cpu",
    ) -> Source:
        """The rows with the labels that a label space gives them. Below 0 is no label: such a row is null."""
        kept = labels >= 0
        x, y = (np.zeros((np.count_nonzero(kept) + 1, *each.shape[1:]), each.dtype) for each in (rows.x, labels))
        np.compress(kept, rows.x, axis=0, out=x[:-1])
        np.compress(kept, labels, out=y[:-1])
        return cls(
            x=torch.from_numpy(x).to(device),
            y=torch.from_numpy(y).to(device),
            unit=rows.unit[kept],
            slots=rows.slots,
            rows_per_unit=rows.rows_per_unit,
            sampling_probability=sampling_probability,
            noise_multiplier=noise_multiplier,
            clip_norm=clip_norm,
        )

    @property
    def expected(self) -> float:
        """What sums are divided by: the datapoints that a sample has on average, of slots and not of rows."""
        return max(1.0, self.sampling_probability * self.slots)

    @property
    def deviation(self) -> float:
        """Of the noise on a sum."""
        return self.noise_multiplier * self.clip_norm

    @property
    def grid(self) -> float:
        """What noisy sums are multiples of."""
        return grid_step(self.deviation)

    def batch(self, most: int) -> int:
        """Rows that are computed at a time: a public number of whole tiles.

        As many as a sample seldom exceeds, but no more tiles than `most` rows take.
        """
        usual = self.rows_per_unit * self.expected
        return _TILE * math.ceil(min(most, usual + 2 * math.sqrt(usual)) / _TILE)

    def samples(self, noise: Noise, *, times: int) -> Iterator[NDArray[np.int64]]:
        """Which rows each of so many Poisson samples of the datapoints has. Private.

        Found in the same way whether or not somebody is null, so that it takes no longer where somebody is.
        """
        stops = np.cumsum(np.bincount(self.unit, minlength=self.slots))  # of the rows of each slot
        starts = np.concatenate([[0], stops[:-1]])
        for chosen in noise.samples(self.slots, self.sampling_probability, times=times):
            first = starts[chosen]
            count = stops[chosen] - first
            before = np.cumsum(count) - count  # rows of the sample that are those of earlier slots
            yield np.repeat(first - before, count) + np.arange(count.sum())

    def sample(self, noise: Noise) -> NDArray[np.int64]:
        """One of them."""
        [rows] = self.samples(noise, times=1)
        return rows

    def space(self, size: int) -> Space:
        """Memory for what is computed at a time: to use it again takes less than to ask for more in every step."""
        return Space(x=self.x.new_zeros(size, *self.x.shape[1:]), y=self.y.new_zeros(size))


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """A batch of one public size. The first rows are those of a part of a sample, the others are null."""

    x: torch.Tensor  # (size, …)
    y: torch.Tensor  # (size,)

    def parts(self, source: Source, sample: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        """Lay out a sample part by part: how many rows a part has, and how many it usually has.

        What is usual is public, and there are as many parts for few rows, or none, as there usually are: how long a
        step takes tells no more of them, and what fails, fails for nobody as for everybody.
        """
        size, usual = len(self.x), math.floor(source.rows_per_unit * source.expected)
        for start in range(0, max(len(sample), usual), size):
            rows = sample[start : start + size]
            places = np.full(size, len(source.x) - 1)
            places[: len(rows)] = rows
            chosen = torch.from_numpy(places).to(source.x.device)
            torch.index_select(source.x, 0, chosen, out=self.x)
            torch.index_select(source.y, 0, chosen, out=self.y)
            yield len(rows), min(max(0, usual - start), size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """All that chance decides of one gradient, whatever the weights: its noise, and its sample part by part."""

    noise: torch.Tensor  # float64, one for each trainable weight, in steps of the grid
    space: Space
    parts: Iterator[tuple[int, int]]  # of the sample; the first is laid out already

    @classmethod
    def of(cls, source: Source, space: Space, sample: NDArray[np.int64], normals: torch.Tensor) -> Drawn:
        """The first part of a sample laid out, and the noise that standard normals are."""
        parts = space.parts(source, sample)
        return cls(noise=normals.mul_(source.deviation / source.grid), space=space, parts=chain([next(parts)], parts))


def noisy_gradient(
    module: nn.Module,
    source: Source,
    noise: Noise,
    *,
    normaliser: float | None = None,
    physical_batch: int = 512,
    loss: Loss = cross_entropy,
) -> Gradient:
    """(Σ of clipped gradients of a Poisson sample + Gaussian noise) / normaliser, a public constant.

    An empty sample is not special: it is a step of noise alone. A large one is added up in parts of about
    `physical_batch` rows, all of one public size, at which a row adds the same wherever it stands and however many
    others there are; in place of those that are missing stand others that add nothing.
    """
    parameters = trainable(module)
    normals = noise.normals((size_of(parameters),), dtype=torch.float64, device=source.x.device)
    space = source.space(source.batch(physical_batch))
    with wherever_a_row_stands(module, [space.x], loss=loss), clipping(module, loss=loss) as sums:
        drawn = Drawn.of(source, space, source.sample(noise), normals)
        return _noisy_gradient(parameters, source, drawn, sums=sums, normaliser=normaliser or source.expected)


def _noisy_gradient(
    parameters: Sequence[torch.Tensor], source: Source, drawn: Drawn, *, sums: ClippedSum, normaliser: float
) -> Gradient:
    """The same for one of many steps, which share what was prepared of the network."""
    space, totals = drawn.space, unflattened(drawn.noise, parameters)  # noise, to which the gradients are added
    share = source.clip_norm / source.rows_per_unit
    for count, usual in drawn.parts:
        clipped = sums(space.x, space.y, clip_norm=share, count=count, usual=usual)
        for total, each in zip(totals, clipped, strict=True):
            total.add_(each, alpha=1 / source.grid)
    # As float32 first, which takes less time: a cell of the grid is an interval all the same, public and as long.
    gradient = drawn.noise.to(torch.float32).round_().mul_(source.grid / normaliser)
    return unflattened(gradient, parameters)


def size_of(parameters: Sequence[torch.Tensor]) -> int:
    """How many weights there are in all."""
    return sum(each.numel() for each in parameters)


def unflattened(flat: torch.Tensor, like: Sequence[torch.Tensor]) -> Gradient:
    """One vector as tensors of these shapes, in order."""
    parts = flat.split([each.numel() for each in like])
    return [part.view_as(each) for part, each in zip(parts, like, strict=True)]


def first(gradients: Sequence[Gradient]) -> Gradient:
    """The gradient of the first source."""
    return gradients[0]


def train(
    module: nn.Module,
    sources: Sequence[Source],
    *,
    steps: int,
    noise: Noise,
    optimiser: str,
    learning_rate: float,
    momentum: float = 0.0,
    combine: Combine = first,
    schedule: Schedule | None = None,
    progress: Progress = lambda _done, _of: None,
    physical_batch: int = 512,
    loss: Loss = cross_entropy,
) -> None:
    """Take `steps` noisy steps, each from the sources that `schedule` names (all of them if there is none)."""
    parameters = trainable(module)
    move = OPTIMISERS[optimiser](parameters, learning_rate=learning_rate, momentum=momentum)
    everything = range(len(sources))

    def places() -> Iterator[Sequence[int]]:
        """The sources of each step. Of many steps no list is kept."""
        return (everything if schedule is None else schedule(step) for step in range(steps))

    times = Counter(dict.fromkeys(everything, steps) if schedule is None else chain.from_iterable(places()))
    size = size_of(parameters)
    sizes = [source.batch(physical_batch) for source in sources]
    bytes_of_one = 8 * size + max(sizes, default=0) * sources[0].x[-1].nbytes
    together = max(1, min(_TOGETHER, _MEMORY // bytes_of_one))
    most = 2 * together  # exist at a time
    normals = noise.stream(size, times=times.total(), kept=most, device=parameters[0].device)
    samples = [source.samples(noise, times=times[place]) for place, source in enumerate(sources)]
    spaces = {size: [sources[0].space(size) for _ in range(most)] for size in set(sizes)}

    def draws() -> Iterator[Drawn]:
        for number, place in enumerate(chain.from_iterable(places())):
            space = spaces[sizes[place]][number % most]
            yield Drawn.of(sources[place], space, next(samples[place]), next(normals))

    with (
        wherever_a_row_stands(module, [space[0].x for space in spaces.values()], loss=loss),
        clipping(module, loss=loss) as sums,
        ahead(draws(), together=together) as drawn,
    ):
        for step, sampled in enumerate(places()):
            gradients = [
                _noisy_gradient(parameters, sources[place], next(drawn), sums=sums, normaliser=sources[place].expected)
                for place in sampled
            ]
            move(combine(gradients))
            progress(step + 1, steps)


class Sgd:
    """Gradient descent; `momentum` is the share of the last step that is taken again (Polyak 1964)."""

    def __init__(self, parameters: Sequence[torch.Tensor], *, learning_rate: float, momentum: float) -> None:
        self._parameters, self._rate, self._momentum = parameters, learning_rate, momentum
        self._velocity = [torch.zeros_like(each) for each in parameters] if momentum else None

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def __call__(self, gradient: Gradient) -> None:
        """One step."""
        if self._velocity is not None:
            for velocity, each in zip(self._velocity, gradient, strict=True):
                velocity.mul_(self._momentum).add_(each)
            gradient = self._velocity
        for parameter, each in zip(self._parameters, gradient, strict=True):
            parameter.sub_(each, alpha=self._rate)


class Adam:
    """Adam (Kingma & Ba 2015, Algorithm 1), with β₂ = 0.999; `momentum` is its β₁."""

    def __init__(self, parameters: Sequence[torch.Tensor], *, learning_rate: float, momentum: float) -> None:
        self._parameters, self._rate, self._momentum = parameters, learning_rate, momentum
        self._mean = [torch.zeros_like(each) for each in parameters]
        self._square = [torch.zeros_like(each) for each in parameters]
        self._steps = 0

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def __call__(self, gradient: Gradient) -> None:
        """One step."""
        self._steps += 1
        keep, keep_square = self._momentum, 0.999
        rate = self._rate * (1 - keep_square**self._steps) ** 0.5 / (1 - keep**self._steps)
        for parameter, mean, square, each in zip(self._parameters, self._mean, self._square, gradient, strict=True):
            mean.mul_(keep).add_(each, alpha=1 - keep)
            square.mul_(keep_square).addcmul_(each, each, value=1 - keep_square)
            parameter.addcdiv_(mean, square.sqrt().add_(1e-8), value=-rate)


OPTIMISERS: Final[Mapping[str, type[Sgd | Adam]]] = MappingProxyType({"sgd": Sgd, "adam": Adam})
