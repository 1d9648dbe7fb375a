"""The one-run audit: a lower bound on ε from a single training on canaries (Steinke, Nasr & Jagielski 2023).

Each of m canaries is put in or left out by a fair coin of its own. The mechanism runs once. From what it released the
attack guesses for r of the canaries whether they are in, and stays silent on the others. If the mechanism is (ε, δ)-DP,
the number of right guesses is v or more with probability at most

    f(v) + 2mδ · max_{1 ≤ i ≤ m} (f(v − i) − f(v)) / i,        f(v) = P[Binomial(r, e^ε / (e^ε + 1)) ≥ v]

(arXiv 2305.08846, Theorem 5.2 and Corollary 5.4). The canaries need not be independent of each other in what they do to
the mechanism, which is why one run is enough. ε is disproved where this is at most 1 − confidence.

Whoever disproves ε disproves every smaller one too, since an (ε′, δ)-DP mechanism with ε′ ≤ ε is (ε, δ)-DP: so any ε
with a small enough p-value is a bound, and it does not matter that one is found by bisection.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy.stats import binom

from accountant.audit.empirical import LowerBound
from accountant.errors import InvalidInput
from accountant.units import FAILURE_PROBABILITY, NOT_NEGATIVE, POSITIVE_FAILURE_PROBABILITY, PROBABILITY, real, whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

MAX_CANARIES: Final = 10**7
_MARGIN: Final = 1e-9
_MOST: Final = 64.0  # no number of canaries that fits here disproves more
_STEPS: Final = 45  # of bisection: to 2e-12

COINS: Final = "each canary was in the data by a fair coin of its own, which the attack did not see"


def p_value(*, canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The most that an (ε, δ)-DP mechanism leaves to chance: the probability of `correct` right guesses or more."""
    m = whole("canaries", canaries, least=1, most=MAX_CANARIES)
    r = whole("guesses", guesses, least=0, most=m)
    v = whole("correct", correct, least=0, most=r)
    epsilon, delta = real("epsilon", epsilon, NOT_NEGATIVE), real("delta", delta, FAILURE_PROBABILITY)
    right = 1 / (1 + np.exp(-epsilon))
    reached = float(binom.sf(v - 1, r, right))
    if delta and v:
        # f(v − i) − f(v) = P[v − i ≤ W < v]; beyond i = v there is nothing more to add.
        missed = np.cumsum(binom.pmf(np.arange(v - 1, -1, -1), r, right))
        reached += 2 * m * delta * float(np.max(missed / np.arange(1, v + 1)))
    return min(1.0, reached * (1 + _MARGIN))


def epsilon_lower(*, canaries: int, guesses: int, correct: int, delta: float, confidence: float) -> float:
    """The largest ε, rounded down, that so many right guesses disprove.

    >>> f"{epsilon_lower(canaries=1000, guesses=100, correct=75, delta=1e-4, confidence=0.95):.4f}"
    '0.6729'
    """
    return _disproved(
        canaries, guesses, correct, delta, 1 - real("confidence", confidence, POSITIVE_FAILURE_PROBABILITY)
    )


@lru_cache(maxsize=4096)  # audits that are repeated ask for the same few counts
def _disproved(canaries: int, guesses: int, correct: int, delta: float, alpha: float) -> float:
    def disproved(epsilon: float) -> bool:
        found = p_value(canaries=canaries, guesses=guesses, correct=correct, epsilon=epsilon, delta=delta)
        return found <= alpha * (1 - _MARGIN)

    if not disproved(0.0):
        return 0.0
    low, high = 0.0, _MOST
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if disproved(middle) else (low, middle)
    return low


def from_scores(
    scores: Sequence[float] | NDArray[np.float64],
    included: Sequence[bool] | NDArray[np.bool_],
    *,
    delta: float,
    confidence: float,
    guesses: Sequence[int] = (),
) -> LowerBound:
    """A bound from one score for each canary, high where the attack thinks that it is in.

    For each number in `guesses` the attack says "in" of the highest scores, "out" of as many of the lowest, and
    nothing of the rest; the numbers are fixed before, and each is tested at its share of what may go wrong (a union
    bound). If there are none, a tenth, a third and all of the canaries are guessed.
    """
    found, truth = np.asarray(scores, dtype=np.float64), np.asarray(included, dtype=np.bool_)
    m = len(found)
    if found.ndim != 1 or found.shape != truth.shape or not m or np.isnan(found).any():
        raise InvalidInput("scores", list(found.shape), f"a number for each of {truth.size} canaries")
    numbers = _numbers(m, guesses)
    if numbers[-1] > m:
        raise InvalidInput("guesses", numbers[-1], f"at most the {m} canaries that there are, an even number")
    order = np.argsort(found, kind="stable")

    def right(number: int) -> int:
        half = number // 2
        return int(truth[order[-half:]].sum() + (~truth[order[:half]]).sum())

    return LowerBound(
        epsilon_lower=_best(m, {number: right(number) for number in numbers}, delta=delta, confidence=confidence),
        delta=delta,
        confidence=confidence,
        method="one_run",
        samples=m,
        assumptions=(COINS,),
        attainable=_best(m, {number: number for number in numbers}, delta=delta, confidence=confidence),
    )


def shown(*, canaries: int, right: tuple[float, float, float], delta: float, confidence: float) -> float:
    """What `from_scores` shows where these shares of guesses are right: of a tenth, a third and all of the canaries.

    Give or take two deviations of each. With δ > 0 more canaries do not always help, since at least 2δ is left to
    chance however many are guessed: beyond some confidence, nothing shows at all.

    >>> perfect = (1.0, 1.0, 1.0)
    >>> [f"{shown(canaries=1500, right=perfect, delta=1e-5, confidence=each):.2f}" for each in (0.95, 0.995, 0.9999)]
    ['5.83', '4.80', '0.00']
    """
    m = whole("canaries", canaries, least=20, most=MAX_CANARIES)
    shares = [real("right", each, PROBABILITY) for each in right]
    correct = {
        number: math.floor(number * share - 2 * math.sqrt(number * share * (1 - share)))
        for number, share in zip(_numbers(m), shares, strict=True)
    }
    return _best(m, {number: max(0, each) for number, each in correct.items()}, delta=delta, confidence=confidence)


def _numbers(canaries: int, guesses: Sequence[int] = ()) -> list[int]:
    """How many canaries are guessed: so many, or a tenth, a third and all; even numbers."""
    return sorted({2 * max(1, number // 2) for number in guesses or (canaries // 10, canaries // 3, canaries)})


def _best(canaries: int, right: Mapping[int, int], *, delta: float, confidence: float) -> float:
    """The best of the bounds for each number of guesses, of which so many were right; they share what may go wrong."""
    each = 1 - (1 - real("confidence", confidence, POSITIVE_FAILURE_PROBABILITY)) / len(right)
    return max(
        epsilon_lower(canaries=canaries, guesses=number, correct=correct, delta=delta, confidence=each)
        for number, correct in right.items()
    )
