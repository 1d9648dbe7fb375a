"""Streams of tasks for tests: real digits, and mechanisms run on them one after the other."""

from __future__ import annotations

import gzip
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainers.catalog import mechanism
from trainers.noise import Noise
from trainers.ports import Made, Rows, Run


@dataclass(frozen=True)
class Artifact:
    """Something that was made, as a later run sees it."""

    made: Made
    release: str = "rel_test"

    @property
    def tensors(self) -> Mapping[str, Any]:
        return self.made.tensors

    @property
    def facts(self) -> Mapping[str, Any]:
        return self.made.facts


def digits(folder: Path, kind: str, count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The first MNIST digits of `kind` (train or t10k), averaged over 4 × 4 pixels: 49 values in [0, 1]."""
    with gzip.open(folder / "mnist" / f"{kind}-images-idx3-ubyte.gz") as file:
        file.read(16)
        images = np.frombuffer(file.read(count * 784), dtype=np.uint8).reshape(count, 7, 4, 7, 4)
    with gzip.open(folder / "mnist" / f"{kind}-labels-idx1-ubyte.gz") as file:
        file.read(8)
        labels = np.frombuffer(file.read(count), dtype=np.uint8).astype(np.int64)
    return (images.mean(axis=(2, 4)) / 255).reshape(count, 49).astype(np.float32), labels


def rows(x: NDArray[Any], y: Sequence[Any] | NDArray[Any], **others: Any) -> Rows:
    """One row for each datapoint, unless `others` say otherwise."""
    given = {"slots": len(x), "unit": np.arange(len(x)), **others}
    return Rows(x=np.asarray(x, dtype=np.float32), y=np.asarray(y), **given)


def ran(
    name: str,
    parameters: Mapping[str, Any],
    recipe: Mapping[str, Any],
    given: Sequence[Rows],
    *,
    seed: int = 0,
    inputs: Mapping[str, Artifact] | None = None,
    device: str = "cpu",
) -> Artifact:
    """What a mechanism of the catalog makes, run as a worker runs it: one `Rows` for each charge."""
    row = mechanism(name)
    defaults = {each.name: each.default for each in row.parameters if each.name not in parameters and not each.when}
    quoted = row.quote(parameters, adjacency="add_remove")
    assert len(quoted.charges) == len(given)
    assert row.module is not None
    steps: list[tuple[int, int]] = []
    made: Made = importlib.import_module(row.module).run(
        Run(
            parameters={**defaults, **parameters},
            recipe=row.cooked(recipe),
            adjacency="add_remove",
            rows=given,
            noise=Noise.repeatable(seed),
            inputs=inputs or {},
            device=device,
            progress=lambda done, of: steps.append((done, of)),
        )
    )
    assert steps
    assert steps[-1][0] == steps[-1][1]
    return Artifact(made)
