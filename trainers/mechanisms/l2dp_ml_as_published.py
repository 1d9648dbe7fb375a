"""L2DP-ML as published, for reproduction and audits. It protects nobody: the noise can be solved for.

An auto-encoder (d → b) under a network (b → p → labels), trained on Taylor coefficients of their losses. Laplace noise
is drawn **once**: χ1 for rows, χ2 for hidden values, χ3 for the output layer; every record, batch and task is masked
with it ("Lifelong DP", Lai et al. 2022, Algorithms 1 and 2). What follows from that is in docs/mechanisms.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from trainers.labels import label_space
from trainers.ports import Made
from trainers.projection import projected

if TYPE_CHECKING:
    from trainers.noise import Noise
    from trainers.ports import Rows, Run

_PUBLIC_SEED: Final = 0


class Weights(NamedTuple):
    """θ1 (d × b) of the auto-encoder, then the network: (b × p) and (p × labels)."""

    encoder: torch.Tensor
    middle: torch.Tensor
    output: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """The noise of a whole lifetime: χ1 (d), χ2 (b), χ3 (p)."""

    rows: torch.Tensor
    hidden: torch.Tensor
    output: torch.Tensor


class Perturbed(NamedTuple):
    """Records as the paper calls them protected: rows x̄ (n × d), and targets (n × labels), which have no noise."""

    x: torch.Tensor
    y: torch.Tensor


def run(run: Run) -> Made:
    """Learn the tasks in their order, and release the weights after each."""
    recipe, parameters = run.recipe, run.parameters
    space = label_space(run)
    d, b, p = recipe["inputs"], recipe["hidden"], recipe["last"]
    weights = Weights(*(each.to(run.device) for each in initial(d, b, p, len(space), scale=recipe["scale"])))
    first = weights.encoder
    mask = drawn_mask(run.noise, d, b, p, epsilon_1=parameters["epsilon_1"], epsilon_2=parameters["epsilon_2"])
    mask = Mask(rows=mask.rows.to(run.device), hidden=mask.hidden.to(run.device), output=mask.output.to(run.device))
    made: dict[str, torch.Tensor] = {}
    memory: list[Perturbed] = []
    for place, (task, rows) in enumerate(zip(parameters["tasks"], run.rows, strict=True)):
        x, y = (each.to(run.device) for each in _records(rows, space.indices(rows.y), d, len(space)))
        size = recipe["batch"] or max(1, len(x))
        whole = perturbed(x, y, mask, size=size)
        for _ in range(task["epochs"]):
            for batch in _batches(whole, size, run.noise):
                gradient = coefficients(weights, batch, mask, size=size)
                if memory:
                    reference = coefficients(weights, _sample(memory, size, run.noise), mask, size=size)
                    gradient = Weights(*projected(gradient, reference))
                weights = Weights(
                    *(w - recipe["learning_rate"] * g / size for w, g in zip(weights, gradient, strict=True))
                )
        if recipe["memory"]:
            kept = torch.from_numpy(run.noise.words(len(x)).argsort()[: recipe["memory"]]).to(run.device)
            memory.append(Perturbed(whole.x[kept], whole.y[kept]))
        # A copy: after the last task the same weights are there under another name, and no file holds one place twice.
        made |= {f"task.{place}.{name}": value.to("cpu", copy=True) for name, value in weights._asdict().items()}
        run.progress(place + 1, len(parameters["tasks"]))
    made |= {name: value.cpu() for name, value in weights._asdict().items()}
    facts = {
        "labels": list(space.names),
        "tasks": [task["task"] for task in parameters["tasks"]],
        "claimed_epsilon": [
            claimed_epsilon(parameters["epsilon_1"], parameters["epsilon_2"], first, size=recipe["batch"] or rows.slots)
            for rows in run.rows
        ],
    }
    return Made(tensors=made, facts=facts)


def initial(d: int, b: int, p: int, labels: int, *, scale: float) -> Weights:
    """Public weights, the same at every run."""
    public = torch.Generator().manual_seed(_PUBLIC_SEED)
    shapes = ((d, b), (b, p), (p, labels))
    return Weights(*(scale * torch.randn(shape, generator=public, dtype=torch.float64) for shape in shapes))


def drawn_mask(noise: Noise, d: int, b: int, p: int, *, epsilon_1: float, epsilon_2: float) -> Mask:
    """Laplace noise of scale Δ_R/ε1 = d(b + 2)/ε1 on rows and hidden values, Δ_L/ε2 = 2p/ε2 on the output layer."""
    coefficient = d * (b + 2) / epsilon_1
    return Mask(
        rows=coefficient * _laplace(noise, d),
        hidden=coefficient * _laplace(noise, b),
        output=2 * p / epsilon_2 * _laplace(noise, p),
    )


def claimed_epsilon(epsilon_1: float, epsilon_2: float, encoder: torch.Tensor, *, size: int) -> float:
    """ε1 + ε1/γ_x + ε1/γ + ε2, as the paper states it for the initial weights. Nothing of it is true."""
    d, b = int(encoder.shape[0]), int(encoder.shape[1])
    per_row = d * (b + 2) / size
    per_hidden = 2 * d * (b + 2) / (size * float(encoder.abs().sum()))
    return epsilon_1 + epsilon_1 / per_row + epsilon_1 / per_hidden + epsilon_2


def perturbed(x: torch.Tensor, y: torch.Tensor, mask: Mask, *, size: int) -> Perturbed:
    """x̄ = x + χ1/n: the same shift for every record."""
    return Perturbed(x + mask.rows / size, y)


def coefficients(weights: Weights, batch: Perturbed, mask: Mask, *, size: int) -> Weights:
    """Gradients of the Taylor expansions, summed over a batch.

    Of the auto-encoder's cross-entropy Σ_r h̄_r (1/2 − x̄_r)ᵀ; of the output layer's log 2 + z/2 + z²/8 − yz, with χ3
    on the first-order coefficients of every label alike. The layer between them follows by the chain rule.
    """
    x, y = batch
    hidden = (x @ weights.encoder).clamp(-1, 1) + 2 * mask.hidden / size  # (n, b)
    raw = hidden @ weights.middle
    last = raw.clamp(-1, 1)  # (n, p)
    error = 0.5 - y + last @ weights.output / 4  # (n, labels)
    inner = (error @ weights.output.T) * (raw.abs() < 1)
    return Weights(
        encoder=(0.5 - x).T @ hidden,
        middle=hidden.T @ inner,
        output=last.T @ error + mask.output[:, None],
    )


def logits(weights: Weights, x: torch.Tensor) -> torch.Tensor:
    """What the network says of rows that are not masked."""
    hidden = (x.clamp(-1, 1) @ weights.encoder).clamp(-1, 1)
    return (hidden @ weights.middle).clamp(-1, 1) @ weights.output


def _records(rows: Rows, indices: NDArray[np.int64], d: int, labels: int) -> tuple[torch.Tensor, torch.Tensor]:
    kept = indices >= 0
    x = torch.from_numpy(rows.x[kept].astype(np.float64)).reshape(int(kept.sum()), d).clamp(-1, 1)
    y = torch.zeros((len(x), labels), dtype=torch.float64)  # of labels there may be none
    return x, y.scatter_(1, torch.from_numpy(indices[kept])[:, None], 1.0)


def _batches(records: Perturbed, size: int, noise: Noise) -> Iterator[Perturbed]:
    """The task in random order, cut into batches; what is left over is a smaller one, as in the paper."""
    if size >= len(records.x):
        yield records
        return
    order = torch.from_numpy(noise.words(len(records.x)).argsort()).to(records.x.device)
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        yield Perturbed(records.x[chosen], records.y[chosen])


def _sample(memory: Sequence[Perturbed], size: int, noise: Noise) -> Perturbed:
    x, y = (torch.cat(parts) for parts in zip(*memory, strict=True))
    chosen = torch.from_numpy(noise.words(len(x)).argsort()[:size]).to(x.device)
    return Perturbed(x[chosen], y[chosen])


def _laplace(noise: Noise, size: int) -> torch.Tensor:
    """Standard Laplace: an exponential with a random sign, from one word each."""
    words = noise.words(size)
    sign = np.where(words & np.uint64(1), 1.0, -1.0)
    return torch.from_numpy(-np.log(((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53) * sign)
