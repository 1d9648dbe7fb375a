"""Runs of mechanisms by name, without a worker: what was made is at once what was released."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainers.catalog import mechanism
from trainers.noise import Noise
from trainers.ports import Rows, Run

if TYPE_CHECKING:
    import torch

    from trainers.backbones import Backbone


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """As `trainers.ports.Released` asks for."""

    release: str
    tensors: Mapping[str, torch.Tensor]
    facts: Mapping[str, Any]


def rows_of(x: NDArray[np.float32], y: Sequence[Any] | NDArray[Any], *, slots: int | None = None) -> Rows:
    """One row a datapoint, in the first slots."""
    return Rows(slots=len(x) if slots is None else slots, unit=np.arange(len(x)), x=x, y=np.asarray(y))


def released(
    name: str,
    parameters: Mapping[str, Any],
    recipe: Mapping[str, Any],
    rows: Rows,
    *,
    noise: Noise,
    inputs: Mapping[str, Artifact] | None = None,
    backbones: Mapping[str, Backbone] | None = None,
    device: str = "cpu",
) -> Artifact:
    """What a mechanism releases about these rows."""
    row = mechanism(name)
    assert row.module is not None
    inputs = inputs or {}
    run = Run(
        parameters=parameters,
        recipe=row.cooked({**recipe, **{each: given.release for each, given in inputs.items()}}),
        adjacency="add_remove",
        rows=[rows],
        noise=noise,
        inputs=inputs,
        backbones=backbones or {},
        device=device,
    )
    made = importlib.import_module(row.module).run(run)
    return Artifact(release=f"a {name}", tensors=made.tensors, facts=made.facts)
