"""Chance for mechanisms: words of a stream cipher, and what is drawn from them.

Whoever knows all records but one can subtract them from a release and look at the noise itself. A generator whose state
can be solved for from its outputs would then give away the noise on the last record, and torch's generator for the CPU
starts from 32 bits, which can be tried out. So every bit here comes from AES-256 in counter mode under a key of the
operating system, which lives and ends with the `Noise` that holds it.

Floating-point numbers are not reals: what is drawn is a Gaussian up to rounding, and low bits would show what was added
to what (Mironov 2012). `noisy` keeps none of them: it rounds to a public grid that is coarse beside the rounding, and
fine beside the noise. docs/trainers.md has the figures.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

_CHUNK: Final = 1 << 17  # normals at a time, up to half as many more: what is between fits a cache
_ZEROS: Final = bytes(12 * _CHUNK)
_TOGETHER: Final = 1 << 18  # normals that a stream draws at a time
_COINS: Final = 1 << 17  # that samples throw at a time
_BLOCK: Final = 16  # bytes that the cipher may want beyond its output
_GRID_BITS: Final = 10


class Noise:
    """A source of chance. What was drawn from a `repeatable` one protects nobody and must not be released."""

    def __init__(self, key: bytes, *, releasable: bool) -> None:
        self._cipher = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
        # Fresh memory would take longer than the cipher.
        self._words = np.empty(len(_ZEROS) + _BLOCK, dtype=np.uint8)
        self._between = torch.empty((3, 0), dtype=torch.float64)
        self.releasable = releasable

    @classmethod
    def fresh(cls) -> Noise:
        """Chance that nobody has seen: 256 bits of the operating system's."""
        return cls(secrets.token_bytes(32), releasable=True)

    @classmethod
    def repeatable(cls, seed: int) -> Noise:
        """The same at every call, for tests and benchmarks."""
        return cls(hashlib.sha256(f"stint test noise {seed}".encode()).digest(), releasable=False)

    def __repr__(self) -> str:
        """Without the key, which must not get into a log."""
        return f"Noise(releasable={self.releasable})"

    __reduce__ = None  # type: ignore[assignment]  # a copy would draw the same again

    def words(self, count: int) -> NDArray[np.uint64]:
        """Independent uniform words of 64 bits."""
        return self._drawn(8 * count).view(np.uint64)

    def _drawn(self, count: int) -> NDArray[np.uint8]:
        """So many bytes of the stream."""
        drawn = np.empty(count + _BLOCK, dtype=np.uint8)
        self._cipher.update_into(bytes(count), drawn.data)
        return drawn[:count]

    def integer(self, below: int) -> int:
        """A uniform integer in [0, below), exactly."""
        assert below > 0
        bits = (below - 1).bit_length()
        while True:
            drawn = int.from_bytes(self._cipher.update(bytes((bits + 7) // 8)), "little") & ((1 << bits) - 1)
            if drawn < below:
                return drawn

    def chosen(self, count: int, probability: float) -> NDArray[np.int64]:
        """Which of `count` things a Poisson sample holds: each by its own coin, heads with at most `probability`.

        A coin is 64 bits below a threshold: the probability rounded down to a multiple of 2⁻⁶⁴, so that nobody is in
        more samples than was paid for. The first 16 bits nearly always decide, and the others are drawn where not.
        """
        assert 0 <= probability <= 1
        if probability == 1:
            return np.arange(count, dtype=np.int64)
        first, rest = divmod(int(math.ldexp(probability, 64)), 1 << 48)
        coins = self._drawn(2 * count).view(np.uint16)
        chosen = np.flatnonzero(coins <= first)
        open_ = np.flatnonzero(coins[chosen] == first)
        if not len(open_):
            return chosen
        tails = self.words(len(open_)) >> np.uint64(16) >= np.uint64(rest)
        return np.delete(chosen, open_[tails])

    def samples(self, count: int, probability: float, *, times: int) -> Iterator[NDArray[np.int64]]:
        """So many Poisson samples of `count` things, each as `chosen` draws one; some are drawn at a time."""
        together = max(1, min(_COINS // max(count, 1), times))
        for start in range(0, times, together):
            several = min(together, times - start)
            chosen = self.chosen(several * count, probability)
            stops = np.searchsorted(chosen, np.arange(1, several) * count)
            for number, sample in enumerate(np.split(chosen, stops)):
                yield sample - number * count

    def normals(
        self, shape: Sequence[int], *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> torch.Tensor:
        """Independent standard normals, computed in float64 (Box & Muller 1958).

        A radius has 64 random bits, so that it reaches 9.4; what is missing beyond that has probability 5e-20 each.
        """
        drawn = torch.empty(tuple(shape), dtype=dtype, device=device)
        self._fill(drawn.view(-1))
        return drawn

    def _fill(self, drawn: torch.Tensor) -> None:
        """Normals into a vector."""
        count, device = len(drawn), drawn.device
        size = max(1, math.ceil(count / max(1, round(count / _CHUNK))))  # alike, since each takes a dozen calls
        if self._between.device != device or self._between.shape[1] < (size + 1) // 2:
            self._between = torch.empty((3, (size + 1) // 2), dtype=torch.float64, device=device)
        for start in range(0, count, size):
            part = drawn[start : start + size]
            pairs = (len(part) + 1) // 2
            self._cipher.update_into(memoryview(_ZEROS)[: 16 * pairs], self._words.data)
            words = torch.from_numpy(self._words[: 16 * pairs].view(np.int64)).to(device)
            radius, angle, turned = self._between[:, :pairs]
            # Without its sign a word is exact where it is small, which is where the radius is large.
            _radii(radius.copy_(words[:pairs]).abs_().add_(0.5).mul_(2.0**-63))
            angle.copy_(words[pairs:]).mul_(math.pi * 2.0**-63)
            torch.mul(radius, torch.cos(angle, out=turned), out=part[:pairs])
            rest = len(part) - pairs
            torch.mul(radius[:rest], angle.sin_()[:rest], out=part[pairs:])

    def stream(
        self, size: int, *, times: int, kept: int = 1, device: torch.device | str = "cpu"
    ) -> Iterator[torch.Tensor]:
        """So many `times`, `size` normals in float64, of a stream of their own.

        They are drawn many at a time. A vector may be changed, and stays until the `kept`-th after it is asked for:
        then its memory is filled again.
        """
        own = Noise(self._drawn(32).tobytes(), releasable=self.releasable)
        together = max(1, min(_TOGETHER // max(size, 1), times))
        many = 1 + (kept + together - 2) // together  # blocks that hold `kept` vectors in a row, wherever they begin
        blocks = torch.empty((many, together, size), dtype=torch.float64, device=device)

        def vectors() -> Iterator[torch.Tensor]:
            """The first block has one vector alone, since somebody waits for it."""
            for number, start in enumerate(chain(range(min(times, 1)), range(1, times, together))):
                block = blocks[number % len(blocks), : min(together, times - start) if start else 1]
                own._fill(block.view(-1))
                yield from block

        return vectors()

    def noisy(self, exact: torch.Tensor, deviation: float) -> torch.Tensor:
        """`exact` with Gaussian noise, in float64, on a grid of which the deviation is about a thousand steps."""
        step = grid_step(deviation)
        drawn = self.normals(exact.shape, dtype=torch.float64, device=exact.device)
        return drawn.mul_(deviation / step).add_(exact, alpha=1 / step).round_().mul_(step)

    def spherical_laplace(self, size: int, scale: float) -> torch.Tensor:
        """A vector with density proportional to exp(−‖v‖ / scale): a Gamma(size) norm in a uniform direction.

        By Marsaglia & Tsang 2000; the norm is its scale times about `size`.
        """
        assert size >= 1
        direction = self.normals((size,), dtype=torch.float64)
        norm = float(direction.norm())
        return direction * (scale * self._gamma(size) / norm)

    def _gamma(self, shape: int) -> float:
        rest = shape - 1 / 3
        while True:
            normal = float(self.normals((1,), dtype=torch.float64))
            cube = (1 + normal / math.sqrt(9 * rest)) ** 3
            if cube <= 0:
                continue
            uniform = (int(self.words(1)[0]) + 1) * 2.0**-64
            if math.log(uniform) < normal * normal / 2 + rest - rest * cube + rest * math.log(cube):
                return rest * cube


def _radii(uniform: torch.Tensor) -> None:
    """√(−2 log u) in place; on a processor numpy takes half as long for it as torch."""
    if uniform.device.type != "cpu":
        uniform.log_().mul_(-2).sqrt_()
        return
    within = uniform.numpy()
    np.log(within, out=within)
    np.multiply(within, -2, out=within)
    np.sqrt(within, out=within)


def grid_step(deviation: float) -> float:
    """The power of two to whose multiples noisy values are rounded: between 2⁻¹¹ and 2⁻¹⁰ of the deviation."""
    return math.ldexp(1.0, math.frexp(deviation)[1] - 1 - _GRID_BITS)


def on_grid(values: torch.Tensor, deviation: float) -> torch.Tensor:
    """Rounded to the grid of this deviation: no bits are left that tell of a sum."""
    step = grid_step(deviation)
    return (values / step).round_().mul_(step)
