"""The label-space attack: who sees the label sets of all tasks looks for a label that one datapoint alone carries.

A classifier over the labels that occur in its data gives it away for certain: the set has the label or has it not,
whatever was done to the weights ("Privacy Leakage via Output Label Space", Proposition 4.1). Labels that were released
by partition selection, or fixed before, do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trainers.attacks.runs import Scores, made, rows_of
from trainers.attacks.watching import counted
from trainers.labels import texts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trainers.noise import Noise
    from trainers.ports import Rows

    #: From the rows of a task to the labels that its classifier answers with.
    LabelSet = Callable[[Rows], Sequence[str]]

_TASKS: Final = 3
_COMMON: Final = 30  # datapoints of each label that everybody knows of


def derived(rows: Rows) -> list[str]:
    """What must not be done: the labels that occur in the data."""
    return sorted(set(texts(rows.y)))


def released(parameters: Mapping[str, Any], noise: Noise) -> LabelSet:
    """The labels that `label-release` tells."""

    def told(rows: Rows) -> Sequence[str]:
        labels: Sequence[str] = made("label-release", parameters, {}, [rows], noise=noise).facts["labels"]
        return labels

    return told


def attack(label_set: LabelSet, samples: int) -> Scores:
    """Streams of three tasks; in the second, somebody carries the label 7 or nobody does. Score: whether 7 was seen."""
    common = np.repeat([0, 1], _COMMON)
    found = []
    for side, there in enumerate((True, False)):
        tasks = [
            np.concatenate([common, [7]]) if there and task == 1 else common  # the rare one is in the second task
            for task in range(_TASKS)
        ]
        rows = [rows_of(np.zeros((len(y), 1)), y, slots=2 * _COMMON + 1) for y in tasks]
        told = [float(any("7" in label_set(each) for each in rows)) for _ in counted(samples, side=side, sides=2)]
        found.append(np.array(told))
    return Scores(found[0], found[1])
