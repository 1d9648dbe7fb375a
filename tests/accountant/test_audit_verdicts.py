"""Verdicts follow from bound, promise and confidence alone; a life of audits shares one error."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from accountant import InvalidInput
from accountant.audit.empirical import GAUSSIAN_SHAPE, LowerBound, Tally, fixed
from accountant.audit.verdicts import Power, alpha_of, at_confidence, confidence_of, verdict

BOUND = LowerBound(
    epsilon_lower=1.0,
    delta=1e-5,
    confidence=0.95,
    method="clopper_pearson",
    samples=1_000,
    assumptions=("independent",),
    attainable=5.0,
)
PROMISE: dict[str, Any] = {"epsilon": 0.9, "delta": 1e-5, "confidence": 0.95, "powerful": True}


def test_a_bound_above_the_promise_is_a_violation() -> None:
    assert verdict(BOUND, **PROMISE) == "violation"
    assert verdict(BOUND, **PROMISE | {"epsilon": 1.0}) == "consistent", "above, not at"
    assert verdict(BOUND, **PROMISE | {"powerful": False}) == "violation", "what is seen is seen"
    assert verdict(BOUND, **PROMISE | {"delta": 1e-6}) == "violation", "a promise at a smaller δ is one at a larger too"


def test_what_proves_nothing_is_inconclusive() -> None:
    assert verdict(BOUND, **PROMISE | {"confidence": 0.99}) == "inconclusive"
    assert verdict(BOUND, **PROMISE | {"delta": 1e-4}) == "inconclusive", "nothing was promised of a smaller δ"
    assert verdict(BOUND, **PROMISE | {"epsilon": 5.0}) == "inconclusive", "no attack could have shown more"
    assert verdict(BOUND, **PROMISE | {"epsilon": math.inf}) == "inconclusive"
    assert verdict(BOUND, **PROMISE | {"epsilon": 2.0, "powerful": False}) == "inconclusive", "it would not have shown"
    assumed = replace(BOUND, method="gaussian_dp", assumptions=("independent", GAUSSIAN_SHAPE))
    assert verdict(assumed, **PROMISE) == "inconclusive", "a shape that is assumed proves no violation"
    assert verdict(assumed, **PROMISE | {"epsilon": 2.0}) == "consistent"


def test_power_is_a_number_of_samples_or_never() -> None:
    assert [Power("half the noise", 500).suffices(samples) for samples in (499, 500)] == [False, True]
    assert not Power("half the noise", None).suffices(10**9)
    assert at_confidence(500, confidence_of(1)) == at_confidence(500, 0.5) == 500, "never fewer than were measured"
    assert 500 < at_confidence(500, confidence_of(2)) < at_confidence(500, confidence_of(100)) < 2_000


def test_all_audits_of_a_life_share_five_percent() -> None:
    """Σ 6/(π² j²) = 1: the first thousand use 99.9 % of it, the rest is less than 6/(π² 1000)."""
    first = math.fsum(alpha_of(number) for number in range(1, 1_001))
    rest = 0.05 * 6 / math.pi**2 / 1_000  # Σ_{j>n} 1/j² < 1/n
    assert first < first + rest
    assert first == pytest.approx(0.05, rel=1e-3)
    assert first + rest == pytest.approx(0.05, rel=1e-6)
    assert math.fsum(alpha_of(number) for number in range(1, 200_000)) <= 0.05
    assert all(confidence_of(number) >= 1 - alpha_of(number) for number in (1, 2, 17, 1_000_000, 10**9))
    assert confidence_of(1) < confidence_of(2) < confidence_of(1_000) < 1
    for bad in (0, -1, 1.5, 10**10):
        with pytest.raises(InvalidInput, match=r"^number"):
            alpha_of(bad)  # type: ignore[arg-type]


def test_audits_of_a_true_promise_seldom_raise_an_alarm_in_a_whole_life() -> None:
    """Randomised response, whose ε is met with equality, audited 20 times in each of 200 lives.

    At 95 % each, many lives would see a false alarm.
    """
    chance, lives, audits, samples, epsilon = np.random.default_rng(4), 200, 20, 300, 1.0
    right = math.exp(epsilon) / (1 + math.exp(epsilon))

    def false_alarm(confidence: float) -> bool:
        true, false = chance.binomial(samples, right), chance.binomial(samples, 1 - right)
        tally = Tally(np.zeros(1), np.array([true]), np.array([false]), samples, samples)
        bound = fixed(tally, delta=0.0, confidence=confidence)
        return verdict(bound, epsilon=epsilon, delta=0.0, confidence=confidence, powerful=True) == "violation"

    shared = sum(any(false_alarm(confidence_of(j)) for j in range(1, audits + 1)) for _ in range(lives))
    assert shared <= 0.05 * lives
    careless = sum(any(false_alarm(0.95) for _ in range(audits)) for _ in range(60))
    assert careless > 6
