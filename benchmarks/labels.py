"""Label release of 10⁸ records and 10⁶ labels, beside one pass of `numpy.bincount` over them, in one run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from accountant.partition import TruncatedGeometric
from benchmarks.measure import at_most, duration, medians
from trainers.mechanisms.label_release import counted, run, told
from trainers.noise import Noise
from trainers.ports import Rows, Run

RECORDS = 10**8
LABELS = 10**6
REPEATS = 3
PARAMETERS = {"epsilon": 1.0, "delta": 1e-5, "labels_per_unit": 1, "rule": "geometric"}


def main() -> None:
    """Print the times, and whether the target is met."""
    y = np.random.default_rng(0).integers(0, LABELS, RECORDS)
    rows = Rows(slots=RECORDS, unit=np.arange(RECORDS), x=np.empty((RECORDS, 0), dtype=np.float32), y=y)
    release = Run(parameters=PARAMETERS, recipe={}, adjacency="add_remove", rows=[rows], noise=Noise.fresh())
    _, sizes = counted(rows, labels_per_unit=1)
    odd = replace(rows, y=np.where(rows.unit == RECORDS // 2, 10**15, y))
    rule = TruncatedGeometric(epsilon=1.0, delta=1e-5)
    taken = medians(
        {
            "numpy.bincount": lambda: np.bincount(y),
            "counted": lambda: counted(rows, labels_per_unit=1),
            "with an odd one": lambda: counted(odd, labels_per_unit=1),
            "decided": lambda: told(sizes, rule, release.noise),
            "released": lambda: run(release),
        },
        repeats=REPEATS,
    )
    print(f"{RECORDS:,} records, {LABELS:,} labels, {int(np.count_nonzero(sizes)):,} of them carried")
    for name, seconds in taken.items():
        print(f"{name:<18}{duration(seconds):>10}")
    print(at_most("counting with one label of 10¹⁵, to counting", taken["with an odd one"] / taken["counted"], 1.5))
    print(
        at_most(
            "counting and deciding, to one bincount", (taken["counted"] + taken["decided"]) / taken["numpy.bincount"], 2
        )
    )
    print(at_most("the whole release with its names, to one bincount", taken["released"] / taken["numpy.bincount"], 2))


if __name__ == "__main__":
    main()
