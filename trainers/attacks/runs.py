"""A mechanism of the catalog run on made-up rows, as a worker runs it; and what an attack makes of it: scores.

Everything here is synthetic, so an audit at this level touches nobody's rows and costs no budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainers.catalog import mechanism
from trainers.catalog.parameters import read
from trainers.ports import Made, Rows, Run

if TYPE_CHECKING:
    import torch

    from accountant.events import Adjacency
    from trainers.noise import Noise

Document = Mapping[str, Any]


class Scores(NamedTuple):
    """Scores of runs with the datapoint and of runs without it, high where the attack thinks that it is there."""

    included: NDArray[np.float64]
    excluded: NDArray[np.float64]


class Guesses(NamedTuple):
    """One score for each canary of a single run, and whether it was in."""

    scores: NDArray[np.float64]
    included: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """What was made, as a later run sees it."""

    made: Made
    release: str = "rel_audit"

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """Of the artifact."""
        return self.made.tensors

    @property
    def facts(self) -> Mapping[str, Any]:
        """Of the artifact."""
        return self.made.facts


def made(
    name: str,
    parameters: Document,
    recipe: Document,
    rows: Sequence[Rows],
    *,
    noise: Noise,
    adjacency: Adjacency = "add_remove",
    inputs: Mapping[str, Artifact] | None = None,
) -> Made:
    """What the mechanism of this name releases: one set of rows for each charge of its quote."""
    row = mechanism(name)
    assert row.module is not None
    run = Run(
        parameters=read("parameters", row.parameters, parameters),
        recipe=row.cooked(recipe),
        adjacency=adjacency,
        rows=rows,
        noise=noise,
        inputs=inputs or {},
    )
    result: Made = import_module(row.module).run(run)
    return result


def rows_of(x: NDArray[Any] | Sequence[Any], y: Sequence[Any] | NDArray[Any], *, slots: int | None = None) -> Rows:
    """One row for each datapoint, from the first slot on; slots without a row are null."""
    wide = np.asarray(x, dtype=np.float32)
    return Rows(slots=len(wide) if slots is None else slots, unit=np.arange(len(wide)), x=wide, y=np.asarray(y))


def coins(count: int, noise: Noise) -> NDArray[np.bool_]:
    """A fair coin for each canary."""
    heads = np.zeros(count, dtype=np.bool_)
    heads[noise.chosen(count, 0.5)] = True
    return heads
