"""Features of rows that were met before, on disk.

It holds what would be computed again, bit for bit, and may be deleted at any time. Rows are known by the hash of their
numbers, which tells whether a row was met: the folder is for the worker's eyes alone.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=False)
class FeatureCache:
    """The features of one backbone, `size` numbers a row. What one call adds is one file."""

    folder: Path
    size: int

    def through(
        self, x: NDArray[np.float32], computed: Callable[[NDArray[np.float32]], NDArray[np.float32]]
    ) -> NDArray[np.float32]:
        """What `computed` would give for these rows; it is asked only for those that were not met."""
        keys = [hashlib.sha256(row.tobytes()).digest() for row in np.ascontiguousarray(x)]
        features = np.zeros((len(x), self.size), dtype=np.float32)
        missing = self._filled(keys, features)
        if missing:
            features[missing] = computed(x[missing])
            # A disk that is full, or a folder that cannot be written to, must not end a job: it would do so only where
            # a row is there that was not met.
            with suppress(OSError):
                self._add({keys[place]: features[place] for place in missing})
        return features

    def _filled(self, keys: list[bytes], features: NDArray[np.float32]) -> list[int]:
        """Fill in what is there, and say which places are not."""
        places: dict[bytes, list[int]] = {}
        for place, key in enumerate(keys):
            places.setdefault(key, []).append(place)
        for path in sorted(self.folder.glob("*.npy")):
            if not places:
                break
            try:
                stored = np.load(path, mmap_mode="r", allow_pickle=False)
            except (OSError, ValueError):
                continue  # cut short, or of another hand: as if it were not there
            if stored.dtype != self._dtype:
                continue
            for number, key in enumerate(stored["key"]):
                for place in places.pop(bytes(key), ()):
                    features[place] = stored["features"][number]
        return sorted(place for left in places.values() for place in left)

    def _add(self, made: dict[bytes, NDArray[np.float32]]) -> None:
        stored = np.zeros(len(made), dtype=self._dtype)
        stored["key"] = [np.frombuffer(key, dtype=np.uint8) for key in made]
        stored["features"] = list(made.values())
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        name = secrets.token_hex(8)
        partial = self.folder / f"{name}.partial"
        try:
            with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                np.save(file, stored, allow_pickle=False)
            partial.rename(self.folder / f"{name}.npy")  # whole or not at all
        finally:
            partial.unlink(missing_ok=True)

    @property
    def _dtype(self) -> np.dtype[np.void]:
        return np.dtype([("key", np.uint8, (32,)), ("features", np.float32, (self.size,))])
