"""Label spaces: which index a record's label has, by rules that were fixed before any record was read.

A rule that is chosen by looking at the data moves many records when one is added, and then no guarantee of what is
trained on them holds (docs/mechanisms.md). So a `LabelSpace` is made from a recipe and released artifacts alone, has a
digest of all that it depends on, and maps every label by itself: to an index, or to −1, which makes its record null.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from accountant.canonical import canonical
from accountant.errors import InvalidInput
from trainers.catalog.label_spaces import check_labels

if TYPE_CHECKING:
    from trainers.ports import Released, Run

#: Whole numbers below it are counted in a table, all others sorted; fixed, so that no label moves others from one to
#: the other, and the time that they take tells of nobody.
TABLE: Final = 1 << 20
#: Fewer labels than these are sorted, all of them: up to about here that takes no longer than a table does.
FEW: Final = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSpace:
    """A total map from labels to indices of `names`, record by record.

    >>> space = LabelSpace(names=("250", "428"), sources={"250": 0, "428": 1, "V": -1}, prefix=True)
    >>> space.indices(np.array(["250.83", "428", "V57", "9"]))
    array([ 0,  1, -1, -1])
    """

    names: tuple[str, ...]
    sources: Mapping[str, int] = field(repr=False)  # labels and beginnings of labels that a rule knows
    prefix: bool = False
    otherwise: int = -1
    digest: str = ""
    rules: Mapping[str, Any] = field(default_factory=dict, repr=False)  # as the recipe says them

    def __len__(self) -> int:
        return len(self.names)

    def index(self, label: str) -> int:
        """The index of one label, or −1."""
        return self._longest(label, self._lengths()) if self.prefix else self.sources.get(label, self.otherwise)

    def indices(self, y: NDArray[Any]) -> NDArray[np.int64]:
        """The index of each label, −1 for a record that is dropped. Whole numbers are compared as their decimals."""
        found, which = distinct(y)
        if not self.prefix:
            sources, otherwise = self.sources, self.otherwise
            known = [sources.get(label, otherwise) for label in texts(found)]
        else:
            lengths = self._lengths()
            known = [self._longest(label, lengths) for label in texts(found)]
        return np.array(known, dtype=np.int64)[which]

    def facts(self, inputs: Mapping[str, Released]) -> dict[str, Any]:
        """What an artifact says of its label space: its digest, and the rules by which labels are read.

        `label_rules` are its own and those of all that it builds on, newest first and each once: whoever compares its
        answers with labels of the data needs them (`trainers.predictors.truths`). They are public, as recipes are.
        """
        earlier = [rules for each in reversed([*inputs.values()]) for rules in each.facts.get("label_rules", [])]
        told: dict[bytes, Any] = {}
        for rules in (self.rules, *earlier):
            told.setdefault(canonical(dict(rules)), dict(rules))
        return {"label_space": self.digest, "label_rules": [*told.values()]}

    def _lengths(self) -> list[int]:
        return sorted({len(source) for source in self.sources}, reverse=True)

    def _longest(self, label: str, lengths: list[int]) -> int:
        sources = self.sources
        for length in lengths:
            if length <= len(label) and (found := sources.get(label[:length])) is not None:
                return found
        return self.otherwise


def label_space(run: Run) -> LabelSpace:
    """The label space of a run's recipe; call it before `run.rows` is looked at."""
    recipe = run.recipe
    if recipe["label_source"] == "prior":
        return space_of(recipe, names=recipe["label_names"])
    told = run.inputs["labels_release"].facts.get("labels")
    if not isinstance(told, list) or not all(isinstance(name, str) for name in told):
        raise InvalidInput("recipe.labels_release", recipe["labels_release"], "a release that told labels")
    return space_of(recipe, names=told)


def space_of(recipe: Mapping[str, Any], *, names: list[str]) -> LabelSpace:
    """The label space of these names under the rules of a recipe, or `InvalidInput`."""
    check_labels(recipe)
    index = {name: place for place, name in enumerate(names)}
    sources = {**index, **{pair["from"]: index.get(pair["to"], -1) for pair in recipe["remap"]}}
    rules = {
        "names": list(names),
        "remap": [[pair["from"], pair["to"]] for pair in recipe["remap"]],
        "rule": recipe["remap_rule"],
        "otherwise": recipe["otherwise"],
    }
    return LabelSpace(
        names=tuple(names),
        sources=sources,
        prefix=recipe["remap_rule"] == "prefix",
        otherwise=index.get(recipe["otherwise"], -1),
        digest="sha256:" + hashlib.sha256(canonical(rules)).hexdigest(),
        rules={name: recipe[name] for name in ("remap", "remap_rule", "otherwise")},
    )


def distinct(y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The different labels, rising, and which of them each record carries: numpy's `unique`, in less time.

    Whole numbers that index a table are counted in it, unless they are few; all else is sorted once.
    """
    if y.dtype.kind == "O":
        y = np.array([str(label) for label in y], dtype=np.dtypes.StringDType())
    if y.dtype.kind == "b":
        y = y.astype(np.int64)
    return _tabled(y) if y.dtype.kind in "iu" and len(y) >= FEW else _sorted(y)


def _tabled(y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """As `distinct`, of whole numbers."""
    places = np.minimum(unsigned(y), TABLE).view(np.int64)  # the last is of those that index no table
    present = np.bincount(places, minlength=TABLE + 1)[:TABLE] > 0
    near = np.flatnonzero(present).astype(y.dtype)
    rest = np.flatnonzero(places == TABLE)
    far, which_far = _sorted(y[rest])
    negative = int(np.searchsorted(far, 0))
    which = np.append(np.cumsum(present) + (negative - 1), 0)[places]
    which[rest] = which_far + np.where(which_far < negative, 0, len(near))
    return np.concatenate([far[:negative], near, far[negative:]]), which


def unsigned(y: NDArray[Any]) -> NDArray[np.uint64]:
    """Whole numbers without their signs: a negative one is larger than any table."""
    return y.astype(np.int64, copy=False).view(np.uint64)


def _sorted(y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """As `distinct`, of anything."""
    order = np.argsort(y, kind="stable")
    ordered = y[order]
    new = np.ones(len(y), dtype=np.bool_)
    new[1:] = ordered[1:] != ordered[:-1]
    which = np.empty(len(y), dtype=np.int64)
    which[order] = np.cumsum(new) - 1
    return ordered[new], which


def texts(labels: NDArray[Any]) -> list[str]:
    """Labels as text; a whole number is its decimals."""
    if labels.dtype.kind in "iu" and len(labels):  # one text that is taken apart is made sooner than a million
        return repr(labels.tolist())[1:-1].split(", ")
    return list(map(str, labels.tolist()))
