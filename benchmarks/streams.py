"""Streams of tasks out of real data sets, for `benchmarks.accuracy`."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from accountant.streams.memories import role
from trainers.backbones import Backbone, entry
from trainers.ports import Rows

Labelled = tuple[NDArray[np.float32], NDArray[np.int64]]

MEMORY_RATE: Final = 0.5  # of a task's datapoints are kept


@dataclass(frozen=True, kw_only=True)
class Task:
    """Rows to learn from, and rows to judge by, which are public here."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    test_x: NDArray[np.float32]
    test_y: NDArray[np.int64]

    def rows(self, part: str = "all") -> Rows:
        """All rows, or those that a coin put into `train` or `memory`."""
        coins = np.array([role(n.to_bytes(8), key=bytes(16), rate=MEMORY_RATE) for n in range(len(self.x))])
        chosen = np.flatnonzero((coins == part) | (part == "all"))
        return Rows(slots=len(chosen), unit=np.arange(len(chosen)), x=self.x[chosen], y=self.y[chosen])


def permuted_digits(folder: Path, count: int) -> list[Task]:
    """So many tasks of 6,000 digits, each with an order of pixels of its own; every digit is in one task alone."""
    x, y = mnist(folder, "train", 60_000)
    test_x, test_y = mnist(folder, "t10k", 1_000)
    chance = np.random.default_rng(0)
    orders = [np.arange(784), *(chance.permutation(784) for _ in range(count - 1))]
    return [
        Task(
            x=x[6000 * n : 6000 * (n + 1)][:, order],
            y=y[6000 * n : 6000 * (n + 1)],
            test_x=test_x[:, order],
            test_y=test_y,
        )
        for n, order in enumerate(orders)
    ]


def in_pairs(train: Labelled, test: Labelled, *, most: int, most_tests: int) -> list[Task]:
    """Five tasks of two labels each."""
    (x, y), (test_x, test_y) = train, test
    return [
        Task(
            x=x[y // 2 == pair][:most],
            y=y[y // 2 == pair][:most],
            test_x=test_x[test_y // 2 == pair][:most_tests],
            test_y=test_y[test_y // 2 == pair][:most_tests],
        )
        for pair in range(5)
    ]


def photographs(folder: Path) -> list[Task]:
    """CIFAR-10 as features of EfficientNet-Lite0 at 64 pixels, five tasks of two classes."""
    weights = folder / "efficientnet_lite0" / "efficientnet-lite0-57934424.pth"
    backbone = Backbone(entry("efficientnet-lite0", {"weights": str(weights), "size": 64}))
    sheets = folder / "cifar10_12k"
    with np.load(sheets / "labels.npz") as labels:
        y, test_y = labels["train"].astype(np.int64), labels["test"].astype(np.int64)
    x = backbone.features(tiles(sheets / "train_10000.webp", down=100, across=100))
    test_x = backbone.features(tiles(sheets / "test_2000.webp", down=40, across=50))
    return in_pairs((x, y), (test_x, test_y), most=len(y), most_tests=len(test_y))


def mnist(folder: Path, kind: str, count: int) -> Labelled:
    """The first digits of `kind` (train or t10k): 784 values in [0, 1] each."""
    with gzip.open(folder / "mnist" / f"{kind}-images-idx3-ubyte.gz") as file:
        x = np.frombuffer(file.read(16 + 784 * count), dtype=np.uint8)[16:].reshape(-1, 784)
    with gzip.open(folder / "mnist" / f"{kind}-labels-idx1-ubyte.gz") as file:
        y = np.frombuffer(file.read(8 + count), dtype=np.uint8)[8:]
    return (x / np.float32(255)).astype(np.float32), y.astype(np.int64)


def pooled(x: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """Means over squares of pixels, of permuted pixels as well."""
    side = 28 // size
    made: NDArray[np.float32] = x.reshape(-1, side, size, side, size).mean(axis=(2, 4)).reshape(len(x), -1)
    return made


def tiles(path: Path, *, down: int, across: int) -> NDArray[np.float32]:
    """The photographs of a sheet."""
    with Image.open(path) as image:
        sheet = np.asarray(image.convert("RGB"), dtype=np.float32)
    return sheet.reshape(down, 32, across, 32, 3).transpose(0, 2, 1, 3, 4).reshape(-1, 32, 32, 3)
