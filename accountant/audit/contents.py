"""What an artifact was found to hold: values that whoever opened the file hands over, and nothing that runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from accountant.canonical import canonical

Form: TypeAlias = Literal[
    "safetensors", "pickle", "torch", "archive", "tar", "npz", "npy", "gguf", "hdf5", "onnx", "other"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One tensor of a file, by what can be said of it without keeping it.

    `digest` is over type, shape and bytes: two tensors with the same digest are the same. `values` are kept for those
    few that a check has to compare, as (rows, columns).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: str
    is_finite: bool = True
    is_constant: bool = False  # all numbers are the same, as in a bias that was never trained
    total: int | None = None  # the sum, if all are whole numbers
    data_rows: int = 0  # rows that are also rows of the data, if that was at hand
    values: NDArray[np.float64] | None = field(default=None, repr=False, compare=False)

    @property
    def size(self) -> int:
        """How many numbers."""
        product = 1
        for each in self.shape:
            product *= each
        return product

    @property
    def is_real(self) -> bool:
        """Whether its numbers are floating point, as those of everything with noise are."""
        return self.dtype.startswith(("F", "BF"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """A file that was opened, or recognised and left alone."""

    sha256: str
    bytes: int
    form: Form = "safetensors"
    problem: str | None = None  # why it cannot be read, as words of a closed list
    tensors: Sequence[Tensor] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] | None = None  # the document of an artifact that Stint wrote
    labels: Sequence[str] | None = None  # that the file names as its outputs, wherever it does

    @property
    def is_open(self) -> bool:
        """Whether its tensors were seen."""
        return self.form == "safetensors" and self.problem is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """Another release of the same population: the digests of its tensors that are not constant."""

    release: str
    digests: frozenset[str]
    rows: NDArray[np.float64] | None = field(default=None, repr=False, compare=False)  # of its noisy tensor
    labels: Sequence[str] | None = None  # that its file names


def label_digest(labels: Sequence[str]) -> str:
    """The digest of a set of labels, in whatever order they stand.

    >>> label_digest(["ill", "healthy"]) == label_digest(["healthy", "ill"])
    True
    """
    return f"sha256:{sha256(canonical(sorted(set(labels)))).hexdigest()}"
