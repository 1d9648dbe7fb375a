"""Noisy sums of features for up to 100,000 labels, beside the time to draw their noise.

Noise of its own for every number of every sum is what the mechanism cannot do without; it is drawn here in the pieces
in which the mechanism draws it, and nothing is done with it.
"""

import gc
import resource
from typing import Final

import numpy as np
import torch

from benchmarks.measure import at_most, duration, medians, times
from trainers.mechanisms.cosine_classifier import noisy_sums
from trainers.noise import Noise

SIZE: Final = 768
ROWS: Final = 50_000
LABELS: Final = (1_000, 100_000)
REPEATS: Final = 3
TARGET: Final = 2


def main() -> None:
    """Print a line for each number of labels."""
    torch.set_num_threads(1)
    print(f"{ROWS:,} rows of {SIZE} features, median of {REPEATS}")
    print(f"{'labels':>8}{'noise':>10}{'release':>10}{'ratio':>8}")
    chance = np.random.default_rng(0)
    features = chance.standard_normal((ROWS, SIZE), dtype=np.float32)
    noise = Noise.repeatable(0)
    ratio = 0.0
    for labels in LABELS:
        index = chance.integers(labels, size=ROWS)

        def release(labels: int = labels, index: np.typing.NDArray[np.int64] = index) -> None:
            noisy_sums(features, index, labels=labels, deviation=1.0, noise=noise)

        def drawn(labels: int = labels) -> None:
            noise.normals((labels, SIZE), dtype=torch.float64)

        taken = medians({"noise": drawn, "release": release}, repeats=REPEATS, reset=gc.collect)
        ratio = taken["release"] / taken["noise"]
        print(
            f"{labels:>8,}{duration(taken['noise']):>10}{duration(taken['release']):>10}{times(ratio):>8}", flush=True
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory {peak:.1f} GB")
    print(at_most(f"{LABELS[-1]:,} labels × {SIZE} ÷ drawing the noise", ratio, TARGET))
