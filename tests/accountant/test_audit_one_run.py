"""The one-run audit: its theorem, the paper's figures, and its confidence under a true guarantee."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from accountant import InvalidInput
from accountant.audit.one_run import epsilon_lower, from_scores, p_value


def test_the_figures_of_the_paper() -> None:
    """Appendix D: 100 guesses of 1,000, 75 right. Section 7: 1,439 right of 1,510, of 100,000 canaries."""
    assert epsilon_lower(canaries=1_000, guesses=100, correct=75, delta=1e-4, confidence=0.95) == pytest.approx(
        0.673, abs=5e-4
    )
    assert epsilon_lower(canaries=100_000, guesses=1_510, correct=1_439, delta=1e-5, confidence=0.95) == pytest.approx(
        2.675, abs=1e-3
    )


@given(st.integers(1, 60), st.data())
def test_the_theorem_as_it_is_printed(canaries: int, data: st.DataObject) -> None:
    """Every i up to m, tails instead of sums."""
    guesses = data.draw(st.integers(0, canaries))
    correct = data.draw(st.integers(0, guesses))
    epsilon = data.draw(st.floats(0, 6))
    delta = data.draw(st.sampled_from([0.0, 1e-6, 1e-3, 0.1]))

    def f(v: int) -> float:
        return float(binom.sf(v - 1, guesses, 1 / (1 + math.exp(-epsilon))))

    most = max((f(correct - i) - f(correct)) / i for i in range(1, canaries + 1))
    printed = min(1.0, f(correct) + 2 * canaries * delta * most)
    found = p_value(canaries=canaries, guesses=guesses, correct=correct, epsilon=epsilon, delta=delta)
    assert found == pytest.approx(printed, rel=1e-6, abs=1e-12)
    assert found >= printed * (1 - 1e-12)


@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_more_canaries_give_a_tighter_bound(delta: float) -> None:
    """At the accuracy of randomised response with ε = 2, bounds rise with the canaries and stay below 2."""
    right = 1 / (1 + math.exp(-2.0))
    bounds = [
        epsilon_lower(canaries=m, guesses=m, correct=math.floor(m * right), delta=delta, confidence=0.95)
        for m in (10, 30, 100, 300, 1_000, 3_000, 10_000)
    ]
    assert bounds == sorted(bounds)
    assert bounds[0] < 0.5
    assert (bounds[-1] if delta == 0 else bounds[-3]) > 1.6
    assert bounds[-1] < 2


def test_delta_costs_more_with_more_canaries() -> None:
    """The term 2mδ: silent canaries are not free (figure 2 of the paper)."""
    bounds = [
        epsilon_lower(canaries=m, guesses=100, correct=90, delta=1e-4, confidence=0.95) for m in (100, 1_000, 10_000)
    ]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > bounds[-1]


def test_a_thousand_canaries_take_no_time() -> None:
    chance = np.random.default_rng(0)
    truth = chance.random(1_000) < 0.5
    scores = chance.normal(size=1_000) + 2 * truth
    start = time.perf_counter()
    bound = from_scores(scores, truth, delta=1e-5, confidence=0.95)
    assert time.perf_counter() - start < 2
    assert bound.epsilon_lower > 1
    assert bound.epsilon_lower < bound.attainable
    assert (bound.method, bound.samples) == ("one_run", 1_000)
    assert "coin" in bound.assumptions[0]


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (1.0, 0.02), (2.0, 1e-3)])
def test_a_true_guarantee_is_called_false_seldom_enough(epsilon: float, delta: float) -> None:
    """Each canary through the worst (ε, δ) mechanism there is; three numbers of guesses share the 10 %."""
    chance = np.random.default_rng(2)
    audits, canaries = 1_000, 60
    wrong = 0
    for _ in range(audits):
        truth = chance.random(canaries) < 0.5
        honest = chance.random(canaries) < math.exp(epsilon) / (1 + math.exp(epsilon))
        scores = np.where(truth == honest, 1.0, -1.0)
        certain = chance.random(canaries) < delta
        scores = np.where(certain, np.where(truth, 2.0, -2.0), scores)
        bound = from_scores(scores, truth, delta=delta, confidence=0.9, guesses=(6, 20, 60))
        wrong += bound.epsilon_lower > epsilon
    assert binom.sf(wrong - 1, audits, 0.1) > 1e-4


def test_guesses_are_of_both_ends_and_fixed_before() -> None:
    truth = np.array([True] * 50 + [False] * 50)
    scores = np.concatenate([np.full(50, 3.0), np.full(50, -3.0)])
    assert from_scores(scores, truth, delta=0.0, confidence=0.95).epsilon_lower > 2
    assert from_scores(-scores, truth, delta=0.0, confidence=0.95).epsilon_lower == 0
    few = from_scores(scores, truth, delta=0.0, confidence=0.95, guesses=(10,))
    assert (
        few.epsilon_lower
        == few.attainable
        == pytest.approx(epsilon_lower(canaries=100, guesses=10, correct=10, delta=0.0, confidence=0.95))
    )


def test_bad_input_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"^scores"):
        from_scores([1.0, 2.0], [True], delta=0.0, confidence=0.95)
    with pytest.raises(InvalidInput, match=r"^scores"):
        from_scores([math.nan], [True], delta=0.0, confidence=0.95)
    with pytest.raises(InvalidInput, match=r"^guesses"):
        from_scores([1.0, 2.0], [True, False], delta=0.0, confidence=0.95, guesses=(8,))
    with pytest.raises(InvalidInput, match=r"^correct"):
        p_value(canaries=10, guesses=5, correct=6, epsilon=1.0, delta=0.0)
    with pytest.raises(InvalidInput, match=r"^confidence"):
        epsilon_lower(canaries=10, guesses=5, correct=5, delta=0.0, confidence=1.0)
