"""Label release: which labels exist, each told with a probability that depends on its number of datapoints alone.

Only whether a label is told leaves this module, so no noise is drawn for its own sake: a uniform number is compared
with the probability, digit by digit, until they differ. That is the law that was paid for, exactly, for every rule.
"""

from __future__ import annotations

from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np

from accountant.partition import LaplaceThreshold, Optimal, SteepestTest, TruncatedGeometric, per_label
from trainers.catalog.label_spaces import MAX_TOLD, tellable
from trainers.labels import FEW, TABLE, distinct, texts, unsigned
from trainers.ports import Made

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from accountant.partition import LabelRelease
    from trainers.noise import Noise
    from trainers.ports import Rows, Run

RULES: Final[Mapping[str, type[LabelRelease]]] = MappingProxyType(
    {"geometric": TruncatedGeometric, "optimal": Optimal, "laplace": LaplaceThreshold, "binary": SteepestTest}
)

_AT_ONCE: Final = 1 << 22  # labels
_CLEAR: Final = 1e-9  # of a probability and a word in floats, which are right to 1e-12
_WORD: Final = 64


def run(run: Run) -> Made:
    """The labels that are told, in rising order: whole numbers by value, texts by their signs.

    Of more than a file can tell, the first; it says how many are left out. Both follow from what was paid for, while a
    run that failed by the length of its answer would be one that tells that length for nothing.
    """
    [rows] = run.rows
    given = run.parameters
    each = per_label(epsilon=given["epsilon"], delta=given["delta"], labels=given["labels_per_unit"])
    rule = RULES[given["rule"]](epsilon=each.epsilon, delta=each.delta)
    labels, sizes = counted(rows, labels_per_unit=given["labels_per_unit"])
    kept = labels[told(sizes, rule, run.noise)]
    names = texts(kept)
    run.progress(1, 1)
    # So many whole numbers always have room, and need not be measured: it is a part of the time of a large release.
    most = len(names) if kept.dtype.kind in "iu" and len(names) <= MAX_TOLD else tellable(names)
    if most == len(names):
        return Made(tensors={}, facts={"labels": names})
    return Made(tensors={}, facts={"labels": names[:most], "labels_left_out": len(names) - most})


def counted(rows: Rows, *, labels_per_unit: int) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    """Every label that somebody carries, and by how many datapoints it is carried.

    A datapoint counts once for a label, and for the first `labels_per_unit` of its labels: what it adds depends on
    nobody else.
    """
    if rows.rows_per_unit == 1:
        return _sizes(rows.y)
    labels, which = distinct(rows.y)
    # Whoever carries a label twice counts at the first row that has it. Rows of a datapoint stand together.
    order = np.argsort(rows.unit * max(1, len(labels)) + which, kind="stable")
    unit, label = rows.unit[order], which[order]
    again = np.zeros(len(order), dtype=np.bool_)
    again[order[1:]] = (unit[1:] == unit[:-1]) & (label[1:] == label[:-1])
    unit, label = rows.unit[~again], which[~again]
    first = np.searchsorted(unit, unit)
    allowed = np.arange(len(unit)) - first < labels_per_unit
    sizes = np.bincount(label[allowed], minlength=len(labels))
    return labels[sizes > 0], sizes[sizes > 0]


def _sizes(y: NDArray[np.generic]) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    """Whole numbers that index a table are counted in one pass, whatever others there are; these alone are sorted.

    So one label of any size, which may be one person's, costs a copy of the part that it stands in and no more.
    """
    if y.dtype.kind not in "iu" or len(y) < FEW:
        labels, which = distinct(y)
        return labels, np.bincount(which, minlength=len(labels))
    sizes = np.zeros(TABLE + 1, dtype=np.int64)  # the last is of those that index no table
    rest = [y[:0]]
    for start in range(0, len(y), _AT_ONCE):
        part = y[start : start + _AT_ONCE]
        places = unsigned(part)
        if (beyond := places >= TABLE).any():
            rest.append(part[beyond])
            places = np.minimum(places, TABLE)
        sizes += np.bincount(places.view(np.int64), minlength=TABLE + 1)
    near = np.flatnonzero(sizes[:TABLE])
    far, of_far = np.unique(np.concatenate(rest), return_counts=True)
    labels = np.concatenate([near.astype(y.dtype), far])
    rising = np.argsort(labels, kind="stable")
    return labels[rising], np.concatenate([sizes[near], of_far])[rising]


def told(sizes: NDArray[np.int64], rule: LabelRelease, noise: Noise) -> NDArray[np.bool_]:
    """Whether each label is told: independently, with exactly the probability π of its size.

    A word decides where it is clear of π in floats by more than they can be wrong; that leaves about one label in
    10⁸, which is decided by as many further digits as it takes.
    """
    probability = rule.inclusion_probability(sizes)
    words = noise.words(len(sizes))
    above = words * 2.0**-_WORD
    above -= probability
    yes = above < 0
    undecided = np.flatnonzero(np.abs(above, out=above) < _CLEAR)
    for place in undecided.tolist():
        yes[place] = sizes[place] > 0 and _below(int(words[place]), int(sizes[place]), rule, noise)
    return yes


def _below(drawn: int, size: int, rule: LabelRelease, noise: Noise) -> bool:
    """Whether a uniform number that begins with this word is below π(size)."""
    bits, digits = _WORD, 40
    while True:
        middle, error = Fraction(rule.exactly(size, digits=digits)), Fraction(1, 10**digits)
        if Fraction(drawn + 1, 1 << bits) <= middle - error:
            return True
        if Fraction(drawn, 1 << bits) >= middle + error:
            return False
        drawn = drawn << _WORD | int(noise.words(1)[0])
        bits, digits = bits + _WORD, digits + 20
