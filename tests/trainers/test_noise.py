"""Chance: that it has the laws it claims, that streams are apart, and that no key gets out."""

from __future__ import annotations

import copy
import math
import pickle
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from trainers.noise import Noise, grid_step, on_grid

SEED = 11
MANY = 400_000


@pytest.fixture
def noise() -> Noise:
    return Noise.repeatable(SEED)


def test_normals_are_normal(noise: Noise) -> None:
    for dtype in (torch.float32, torch.float64):
        drawn = noise.normals((MANY,), dtype=dtype).double().numpy()
        assert stats.kstest(drawn, "norm").pvalue > 1e-3
        for order, moment in ((1, 0), (2, 1), (3, 0), (4, 3), (6, 15)):
            spread = math.sqrt(math.prod(range(2 * order - 1, 0, -2)) / MANY)
            assert abs(np.mean(drawn**order) - moment) < 5 * spread


def test_tails_are_as_heavy_as_they_must_be(noise: Noise) -> None:
    """Chi-square over cells that grow rarer: 2⁻¹ … 2⁻¹⁶ on each side."""
    drawn = noise.normals((4 * MANY,), dtype=torch.float64).numpy()
    low = np.asarray(stats.norm.ppf([2.0**-k for k in range(16, 0, -1)]))
    edges = np.concatenate([[-np.inf], low, -low[-2::-1], [np.inf]])
    seen, _ = np.histogram(drawn, edges)
    expected = np.diff(stats.norm.cdf(edges)) * len(drawn)
    assert expected.min() > 10
    assert stats.chisquare(seen, expected).pvalue > 1e-3


def test_a_radius_reaches_where_its_64_bits_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The words that make the farthest and the nearest pair, and the odd ones: no infinity, no NaN."""
    extremes = np.array([0, 1, -1, -(2**63), 2**63 - 1, 0, 0, 0, 0, 2**62], dtype=np.int64)

    class Fixed:
        def update_into(self, data: bytes, out: memoryview) -> None:
            out[: len(data)] = extremes.tobytes()[: len(data)]

    noise = Noise.repeatable(SEED)
    monkeypatch.setattr(noise, "_cipher", Fixed())
    drawn = noise.normals((10,), dtype=torch.float64)
    radius = torch.hypot(drawn[:5], drawn[5:])
    assert radius.tolist() == pytest.approx(
        [math.sqrt(128 * math.log(2)), *2 * [math.sqrt(2 * (63 * math.log(2) - math.log(1.5)))], 0, 0]
    )
    assert bool(drawn.isfinite().all())


def test_pairs_and_neighbours_are_not_correlated(noise: Noise) -> None:
    drawn = noise.normals((1 << 18,), dtype=torch.float64).numpy()
    for lag in (1, 2, 1 << 14, 1 << 15):  # half a chunk lies between the two of a pair
        for power in (1, 2):
            one, other = drawn[lag:] ** power, drawn[:-lag] ** power
            assert abs(np.corrcoef(one, other)[0, 1]) < 5 / math.sqrt(len(one))


@pytest.mark.parametrize(
    "size", [0, 1, 2, 3, *(pieces * (1 << 16) + rest for pieces in (2, 3, 5) for rest in (-1, 0, 1))]
)
def test_any_number_of_normals(noise: Noise, size: int) -> None:
    drawn = noise.normals((size,))
    assert drawn.shape == (size,)
    assert drawn.dtype == torch.float32
    assert len(set(drawn.tolist())) >= 0.99 * size


def test_a_seed_repeats_and_fresh_chance_does_not() -> None:
    once, again, other = Noise.repeatable(1), Noise.repeatable(1), Noise.repeatable(2)
    assert torch.equal(once.normals((9,)), again.normals((9,)))
    assert not torch.equal(once.normals((9,)), other.normals((9,)))
    assert not torch.equal(Noise.fresh().normals((9,)), Noise.fresh().normals((9,)))
    assert Noise.fresh().releasable
    assert not once.releasable


def test_no_copy_and_no_key_in_words() -> None:
    noise = Noise.fresh()
    for take in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            take(noise)
    assert repr(noise) == "Noise(releasable=True)"


def test_normals_of_a_stream_are_its_own() -> None:
    def some(size: int, calls: int) -> list[torch.Tensor]:
        noise = Noise.repeatable(SEED)
        drawn = [vector.clone() for vector in noise.stream(size, times=calls)]
        return [*drawn, noise.normals((size,), dtype=torch.float64)]

    for size, calls in ((3, 9_000), (70_000, 3)):
        first, second = some(size, calls), some(size, calls)
        assert len(first) == calls + 1
        assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
        drawn = torch.cat(first).numpy()
        assert len(set(drawn.tolist())) == len(drawn)
        assert stats.kstest(drawn, "norm").pvalue > 1e-3
    inside = some(5, 2)[-1]
    noise = Noise.repeatable(SEED)
    noise._drawn(32)
    assert torch.equal(inside, noise.normals((5,), dtype=torch.float64))  # the stream takes none of it


@pytest.mark.parametrize("size", [30_000, 100_000, 300_000])
def test_vectors_of_a_stream_stay_as_long_as_they_are_kept(size: int) -> None:
    """Several of them lie in one block, or each in its own."""
    kept, times = 4, 12
    drawn = [vector.clone() for vector in Noise.repeatable(SEED).stream(size, times=times)]
    last: list[torch.Tensor] = []
    for number, vector in enumerate(Noise.repeatable(SEED).stream(size, times=times, kept=kept), start=1):
        last = [*last, vector][-kept:]
        assert all(torch.equal(*pair) for pair in zip(last, drawn[number - len(last) : number], strict=True))


@pytest.mark.parametrize("probability", [0.0, 1e-6, 2.0**-16, 0.3, 0.5, 0.999, 1.0])
def test_coins_fall_as_often_as_they_should(noise: Noise, probability: float) -> None:
    chosen = noise.chosen(MANY, probability)
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    assert stats.binomtest(len(chosen), MANY, probability).pvalue > 1e-3 if 0 < probability < 1 else True
    assert probability or not len(chosen)
    assert probability < 1 or len(chosen) == MANY


@pytest.mark.parametrize(("count", "times"), [(1000, 1), (1000, 7), (30_000, 11), (1 << 18, 2), (0, 3), (5, 0)])
def test_samples_that_are_drawn_together_are_those_of_coins_of_their_own(count: int, times: int) -> None:
    """Each coin of the stream decides for one thing of one sample; between 4 and 131,072 are thrown at a time."""
    found = list(Noise.repeatable(SEED).samples(count, 0.01, times=times))
    together = max(1, (1 << 17) // max(count, 1))
    noise, expected = Noise.repeatable(SEED), []
    for start in range(0, times, together):
        several = min(together, times - start)
        heads = np.zeros(several * count, dtype=np.bool_)
        heads[noise.chosen(several * count, 0.01)] = True
        expected += [np.flatnonzero(each).tolist() for each in heads.reshape(several, count)]
    assert [sample.tolist() for sample in found] == expected


def test_a_probability_is_rounded_down_and_the_last_bit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all words of 64 bits exactly ⌊p · 2⁶⁴⌋ are heads: those on either side of the threshold are tried."""
    for probability in (0.3, 1e-9, 2.0**-64, 1 - 2.0**-53, 0.5):
        threshold = int(Fraction(probability) * 2**64)
        for word in (threshold - 1, threshold, threshold + 1):
            noise = Noise.repeatable(SEED)
            coin = np.array([word >> 48], dtype=np.uint16)
            rest = np.array([(word & ((1 << 48) - 1)) << 16], dtype=np.uint64)
            monkeypatch.setattr(noise, "_drawn", lambda _count, coin=coin: coin.view(np.uint8))
            monkeypatch.setattr(noise, "words", lambda count, rest=rest: rest[:count])
            assert len(noise.chosen(1, probability)) == (word < threshold)
    assert len(Noise.repeatable(SEED).chosen(1000, 2.0**-65)) == 0


@pytest.mark.parametrize("below", [1, 2, 3, 7, 10, 256, 257])
def test_integers_are_uniform(noise: Noise, below: int) -> None:
    drawn = Counter(noise.integer(below) for _ in range(40 * below + 2000))
    assert set(drawn) == set(range(below))
    if below > 1:
        assert stats.chisquare([drawn[value] for value in range(below)]).pvalue > 1e-3


def test_integers_may_be_large(noise: Noise) -> None:
    below = 3 * 2**200
    drawn = [noise.integer(below) for _ in range(3000)]
    assert all(0 <= value < below for value in drawn)
    assert stats.chisquare(list(Counter(value * 3 // below for value in drawn).values())).pvalue > 1e-3


@pytest.mark.parametrize("size", [1, 2, 50])
def test_spherical_laplace_has_a_gamma_norm_and_no_direction(noise: Noise, size: int) -> None:
    drawn = torch.stack([noise.spherical_laplace(size, 0.5) for _ in range(2000)]).numpy()
    norms = np.linalg.norm(drawn, axis=1)
    assert stats.kstest(norms, "gamma", args=(size, 0, 0.5)).pvalue > 1e-3
    signs = (drawn[:, 0] > 0).sum()
    assert stats.binomtest(int(signs), len(drawn), 0.5).pvalue > 1e-3
    if size > 1:
        spread = np.cov((drawn / norms[:, None]).T) * size
        assert np.abs(spread - np.eye(size)).max() < 0.2


@pytest.mark.parametrize("deviation", [1e-9, 0.3, 1.0, 1.5, 2.0, 7e8])
def test_noisy_values_lie_on_a_public_grid(noise: Noise, deviation: float) -> None:
    step = grid_step(deviation)
    assert deviation / 2048 < step <= deviation / 1024
    assert math.frexp(step)[0] == 0.5
    exact = torch.linspace(-3 * deviation, 1e4 * deviation, 50_001, dtype=torch.float64)
    found = noise.noisy(exact, deviation)
    assert torch.equal(found / step, (found / step).round())
    assert stats.kstest(((found - exact) / deviation).numpy(), "norm").pvalue > 1e-3
    assert torch.equal(on_grid(found, deviation), found)
    assert torch.equal(exact, torch.linspace(-3 * deviation, 1e4 * deviation, 50_001, dtype=torch.float64))
