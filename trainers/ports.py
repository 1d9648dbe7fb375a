"""What a worker hands to a mechanism, and what it gets back.

A mechanism is a function from a `Run` to a `Made`. It opens no file, asks no service, draws chance from `run.noise`
alone, and says how far it is by `run.progress`, which carries nothing that was computed from data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from trainers.columns import DataProblem
from trainers.row_shapes import fits

if TYPE_CHECKING:
    from accountant.events import Adjacency
    from trainers.backbones import Backbone
    from trainers.noise import Noise

Label: TypeAlias = str | int
#: Steps done, of how many.
Progress: TypeAlias = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of one charge: only of datapoints that were admitted, and of all of those that have any.

    `slots` is the number of datapoints in the scope as it was proposed, which is public. Datapoints are numbered in it
    by their ordinals' order; one that was trimmed, or whose rows are not finite, keeps its slot and has no row: it is
    null, and nothing else tells it from one that is there. Rows of a datapoint stand together, at most
    `rows_per_unit` of them.

    `file_rows` is how many rows the file has, for everybody in it. It bounds how many there can be, where that is less
    than the slots allow.
    """

    slots: int
    unit: NDArray[np.int64]  # (n,) the slot of each row's datapoint, rising
    x: NDArray[np.float32]  # (n, …) finite
    y: NDArray[Any]  # (n,) labels, as text or whole numbers; empty where the data has none
    rows_per_unit: int = 1
    file_rows: int | None = None

    @property
    def room(self) -> int:
        """The most rows that there could be. Public: what work is measured by, so that it is the same for nobody."""
        most = self.slots * self.rows_per_unit
        return most if self.file_rows is None else min(most, self.file_rows)

    def __len__(self) -> int:
        """How many rows. Private: it may not be shown, nor divide anything."""
        return len(self.unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What a mechanism releases, once its release is committed: tensors, and facts that JSON can hold.

    Both are computed from noisy values and public ones alone.
    """

    tensors: Mapping[str, torch.Tensor]
    facts: Mapping[str, Any] = field(default_factory=dict)


class Released(Protocol):
    """An artifact that was released before; to build on it costs nothing."""

    @property
    def release(self) -> str: ...

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]: ...

    @property
    def facts(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One attempt at one release. There is none on rows that are not such as its recipe says (`data.shape`)."""

    parameters: Mapping[str, Any]  # what was priced, checked, with defaults
    recipe: Mapping[str, Any]  # what was not: model, optimiser, labels; public all the same
    adjacency: Adjacency
    rows: Sequence[Rows]  # one for each charge of the quote, in its order
    noise: Noise
    inputs: Mapping[str, Released] = field(default_factory=dict)  # by the name that the recipe gives them
    backbones: Mapping[str, Backbone] = field(default_factory=dict)  # of the worker's configuration, by name
    device: str = "cpu"
    progress: Progress = lambda _done, _of: None

    def __post_init__(self) -> None:
        for rows in self.rows:
            if len(rows.y) != len(rows) or not fits(tuple(rows.x.shape[1:]), self.recipe, self.inputs):
                raise DataProblem("data.shape")


class Mechanism(Protocol):
    """How a mechanism is run."""

    def __call__(self, run: Run, /) -> Made: ...
