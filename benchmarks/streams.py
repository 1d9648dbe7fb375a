"""Streams of tasks out of real data sets, for `benchmarks.accuracy`."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from functools import cache
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
    return in_groups(train, test, labels=2, most=most, most_tests=most_tests)


def in_groups(train: Labelled, test: Labelled, *, labels: int, most: int, most_tests: int) -> list[Task]:
    """Ten labels as tasks of so many each."""
    (x, y), (test_x, test_y) = train, test
    return [
        Task(
            x=x[y // labels == number][:most],
            y=y[y // labels == number][:most],
            test_x=test_x[test_y // labels == number][:most_tests],
            test_y=test_y[test_y // labels == number][:most_tests],
        )
        for number in range(10 // labels)
    ]


@cache
def photographs(folder: Path) -> list[Task]:
    """CIFAR-10 as features of EfficientNet-Lite0 at 64 pixels, five tasks of two classes."""
    backbone = backbone_of(folder, size=64)
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


def blurred(tasks: list[Task], share: float) -> list[Task]:
    """Tasks where this share of each class is dealt out to all tasks alike, and the rest stays where it was."""
    if not share:
        return tasks
    parts: list[list[tuple[NDArray[np.float32], NDArray[np.int64]]]] = [[] for _ in tasks]
    for number, task in enumerate(tasks):
        for label in np.unique(task.y):
            rows = np.flatnonzero(task.y == label)
            moved = rows[: round(share * len(rows))]
            parts[number].append((task.x[rows[len(moved) :]], task.y[rows[len(moved) :]]))
            for place, each in enumerate(np.array_split(moved, len(tasks))):
                parts[place].append((task.x[each], task.y[each]))
    return [
        Task(
            x=np.concatenate([x for x, _ in part]),
            y=np.concatenate([y for _, y in part]),
            test_x=task.test_x,
            test_y=task.test_y,
        )
        for part, task in zip(parts, tasks, strict=True)
    ]


def pictures(folder: Path, *, size: int, rows: int, labels: int) -> tuple[Backbone, list[Task]]:
    """The first photographs of each class of CIFAR-10, so many classes a task, and the backbone that looks at them."""
    sheets = folder / "cifar10_12k"
    with np.load(sheets / "labels.npz") as stored:
        y, test_y = stored["train"].astype(np.int64), stored["test"].astype(np.int64)
    x, test_x = (
        tiles(sheets / name, down=down, across=across)
        for name, down, across in (("train_10000.webp", 100, 100), ("test_2000.webp", 40, 50))
    )
    first = np.sort(np.concatenate([np.flatnonzero(y == label)[:rows] for label in range(10)]))
    tests = slice(1000)
    tasks = in_groups(
        (x[first], y[first]), (test_x[tests], test_y[tests]), labels=labels, most=labels * rows, most_tests=1000
    )
    return backbone_of(folder, size=size), tasks


def backbone_of(folder: Path, *, size: int) -> Backbone:
    """EfficientNet-Lite0 at so many pixels."""
    weights = folder / "efficientnet_lite0" / "efficientnet-lite0-57934424.pth"
    return Backbone(entry("efficientnet-lite0", {"weights": str(weights), "size": size}))


#: Users that the archive holds out.
HELD_OUT: Final = (2, 4, 9, 10, 12, 13, 18, 20, 24)
HERTZ: Final = (50, 20, 10, 5)
_WINDOW: Final = 128  # readings at 50 Hz


def movements(folder: Path) -> list[Task]:
    """Windows of 2.56 s of one of six activities, each as a device of one of four rates would have measured it.

    Every fourth window is in a task. Of eight signals (acceleration and turning along three axes, and their norms) a
    window has mean, deviation, least, largest and mean change, scaled by what a telephone can measure: a function of
    one window.
    """
    with np.load(folder / "hapt" / "hapt_signals_int16.npz") as archive:
        signals = archive["signals"] * np.repeat([archive["acc_scale"] / 2, archive["gyro_scale"] / 4], 3)
        label, starts = archive["label"].astype(np.int64), archive["recording_start"]
        users = np.repeat(archive["recording_user"], np.diff(starts))
    norms = np.stack([np.linalg.norm(signals[:, :3], axis=1), np.linalg.norm(signals[:, 3:], axis=1)], axis=1)
    signals = np.concatenate([signals, norms], axis=1)
    inside = [
        start
        for start in range(0, len(label) - _WINDOW, _WINDOW // 2)
        if 1 <= label[start] <= 6
        and np.all(label[start : start + _WINDOW] == label[start])
        and users[start] == users[start + _WINDOW - 1]
    ]
    tasks = []
    for place, rate in enumerate(HERTZ):
        chosen = np.array(inside[place :: len(HERTZ)])
        at = np.round(np.arange(0, _WINDOW, 50 / rate)).astype(np.int64)
        windows = signals[chosen[:, None] + at[at < _WINDOW][None, :]]  # (n, readings, 8)
        made = [
            windows.mean(1),
            windows.std(1),
            windows.min(1),
            windows.max(1),
            np.abs(np.diff(windows, axis=1)).mean(1),
        ]
        x = np.concatenate([*made, np.ones((len(chosen), 1))], axis=1).clip(-1, 1).astype(np.float32)
        test = np.isin(users[chosen], HELD_OUT)
        y = label[chosen]
        tasks.append(Task(x=x[~test], y=y[~test], test_x=x[test], test_y=y[test]))
    return tasks


def titles(folder: Path) -> tuple[NDArray[np.float32], NDArray[np.str_]]:
    """Titles of papers in the order in which they appeared, as unit features, and their subjects."""
    with np.load(folder / "arxiv" / "minilm_int8_daily_10k.npz") as archive:
        x, labels = archive["emb_int8"].astype(np.float32), archive["primary"].astype(np.str_)
    return x / np.linalg.norm(x, axis=1, keepdims=True), labels
