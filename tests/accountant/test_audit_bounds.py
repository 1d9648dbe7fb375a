"""Lower bounds of audits: close to the truth, seldom above it, and right about what they rest on."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import binom

from accountant import InvalidInput, account
from accountant.audit.empirical import (
    Normals,
    Tally,
    attainable,
    fixed,
    from_scores,
    gaussian_from_scores,
    gaussian_split,
    planned,
    proportion_lower,
    proportion_upper,
    roc,
    split,
    strongest,
)
from accountant.events import Gaussian

DELTA: Final = 1e-5
SAMPLES: Final = 10**6
GRID: Final = np.linspace(7, -6, 261)  # thresholds, named once and for all


@lru_cache
def mu_of(epsilon: float) -> float:
    """Of the Gaussian mechanism whose true ε at δ this is."""

    def off(mu: float) -> float:
        return account(Gaussian(noise_multiplier=1 / mu), delta=DELTA).upper - epsilon

    return float(brentq(off, 0.01, 5.0))


def expected(mu: float, samples: int) -> Tally:
    """What scores N(μ, 1) and N(0, 1) come to, on average."""
    counts = [np.floor(samples * ndtr(shift - GRID)).astype(np.int64) for shift in (mu, 0.0)]
    return Tally(GRID, counts[0], counts[1], samples, samples)


def drawn(chance: np.random.Generator, mu: float, samples: int) -> Tally:
    """A tally of that many scores a side. The scores between thresholds are multinomial, so none needs to be drawn."""
    counts = []
    for shift in (mu, 0.0):
        between = np.diff(np.concatenate([[0.0], ndtr(shift - GRID), [1.0]]))
        counts.append(np.cumsum(chance.multinomial(samples, between / between.sum()))[:-1])
    return Tally(GRID, counts[0], counts[1], samples, samples)


# What must hold


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_a_gaussian_of_known_epsilon_is_nearly_found_and_seldom_exceeded(epsilon: float) -> None:
    """200 audits of 10⁶ samples a side: at least 65 % of the truth by counting, 85 % by the assumed shape; 18 above."""
    mu = mu_of(epsilon)
    threshold = planned(expected(mu, SAMPLES), delta=DELTA, confidence=0.95)
    place = int(np.flatnonzero(threshold == GRID)[0])
    counted, used, chosen, fitted = [], [], [], []
    for seed in range(200):
        chance = np.random.default_rng(seed)
        first, rest = drawn(chance, mu, SAMPLES // 4), drawn(chance, mu, SAMPLES - SAMPLES // 4)
        every = Tally(
            GRID[[place]],
            (first.included + rest.included)[[place]],
            (first.excluded + rest.excluded)[[place]],
            SAMPLES,
            SAMPLES,
        )
        counted.append(fixed(every, delta=DELTA, confidence=0.95).epsilon_lower)
        used.append(strongest(every, first, rest, delta=DELTA, confidence=0.95).epsilon_lower)
        chosen.append(split(first, rest, delta=DELTA, confidence=0.95).epsilon_lower)
        fitted.append(gaussian_split(first, rest, delta=DELTA, confidence=0.95).epsilon_lower)
    assert min(counted) >= 0.65 * epsilon
    assert min(used) >= 0.65 * epsilon, "what an audit does that knows the law of its scores"
    assert np.median(chosen) >= 0.65 * epsilon, "where nobody knows it"
    assert min(fitted) >= 0.85 * epsilon
    for bounds in (counted, used, chosen, fitted):
        assert sum(bound > epsilon for bound in bounds) <= 18


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_scores_that_were_drawn_come_to_the_same(epsilon: float) -> None:
    """No multinomial law, no grid: 10⁶ scores a side, through all that an audit does with them."""
    mu = mu_of(epsilon)
    for seed in range(8):
        chance = np.random.default_rng(seed)
        ones, zeros = chance.normal(mu, 1, SAMPLES), chance.normal(0, 1, SAMPLES)
        promised = Normals(included=mu, excluded=0.0, deviation=1.0)
        bound = from_scores(ones, zeros, delta=DELTA, confidence=0.95, promised=promised)
        assert 0.65 * epsilon <= bound.epsilon_lower <= epsilon
        assert 0.85 * epsilon <= gaussian_from_scores(ones, zeros, delta=DELTA, confidence=0.95).epsilon_lower


def test_the_threshold_of_a_promise_needs_no_samples_and_one_that_is_broken_is_caught_by_the_other() -> None:
    """Half the noise: where the promise looks, nearly nothing is any more; the threshold that was chosen sees it."""
    promised = Normals(included=1.0, excluded=0.0, deviation=2.0)
    chance, samples = np.random.default_rng(2), 50_000
    ones, zeros = chance.normal(1, 1, samples), chance.normal(0, 1, samples)
    threshold = planned(promised.tally(samples), delta=DELTA, confidence=0.95)
    named = Tally.of(ones, zeros, thresholds=[threshold])
    truth = account(Gaussian(noise_multiplier=2.0), delta=DELTA).upper
    assert fixed(named, delta=DELTA, confidence=0.95).epsilon_lower < truth
    bound = from_scores(ones, zeros, delta=DELTA, confidence=0.95, promised=promised)
    assert bound.epsilon_lower > truth
    assert bound.confidence == 0.95
    alone = from_scores(ones, zeros, delta=DELTA, confidence=0.975)
    assert bound.epsilon_lower == pytest.approx(alone.epsilon_lower, rel=1e-6), "at half of what may go wrong"
    assert attainable(samples=samples, delta=DELTA, confidence=0.975) == pytest.approx(bound.attainable, rel=1e-6)


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_half_the_noise_behind_the_auditors_back_is_caught(epsilon: float) -> None:
    """The threshold is that of the promise; the mechanism is twice as far apart as was said."""
    mu = mu_of(epsilon)
    chance = np.random.default_rng(7)
    threshold = planned(expected(mu, SAMPLES), delta=DELTA, confidence=0.95)
    ones, zeros = chance.normal(2 * mu, 1, SAMPLES), chance.normal(0, 1, SAMPLES)
    promised = Tally.of(ones, zeros, thresholds=[threshold])
    assert fixed(promised, delta=DELTA, confidence=0.95).epsilon_lower > epsilon
    assert from_scores(ones, zeros, delta=DELTA, confidence=0.95).epsilon_lower > 1.2 * epsilon
    assert gaussian_from_scores(ones, zeros, delta=DELTA, confidence=0.95).epsilon_lower > 1.9 * epsilon


def test_tallies_that_are_drawn_are_tallies_that_were_counted() -> None:
    """Means and variances of both, at a few thresholds: the multinomial law is the law of counted scores."""
    chance, mu, samples = np.random.default_rng(1), 0.5, 1_000
    by_law = np.array([drawn(chance, mu, samples).included for _ in range(400)])
    by_count = np.array(
        [
            Tally.of(chance.normal(mu, 1, samples), chance.normal(0, 1, samples), thresholds=GRID).included
            for _ in range(400)
        ]
    )
    p = ndtr(mu - GRID)
    error = np.sqrt(samples * p * (1 - p) / 400)
    for counts in (by_law, by_count):
        assert (np.abs(counts.mean(axis=0) - samples * p) <= 5 * error + 0.2).all()
        middle = (p > 0.05) & (p < 0.95)
        assert counts.var(axis=0)[middle] == pytest.approx((samples * p * (1 - p))[middle], rel=0.4)


# Confidence


@given(st.integers(1, 60), st.data())
def test_a_proportion_lies_within_its_bounds(trials: int, data: st.DataObject) -> None:
    """By definition: at the bound, what was seen has probability α, computed in fractions."""
    seen = data.draw(st.integers(0, trials))
    alpha = data.draw(st.sampled_from([0.05, 0.01, 1e-6]))
    low = float(proportion_lower(np.array([seen]), trials, alpha=alpha)[0])
    high = float(proportion_upper(np.array([seen]), trials, alpha=alpha)[0])
    assert 0 <= low <= seen / trials <= high <= 1

    def tail(p: float, counts: range) -> float:
        exact = Fraction(p)
        return float(sum(math.comb(trials, k) * exact**k * (1 - exact) ** (trials - k) for k in counts))

    if seen:
        assert tail(low, range(seen, trials + 1)) == pytest.approx(alpha, rel=1e-5)
        assert tail(low, range(seen, trials + 1)) <= alpha
    if seen < trials:
        assert tail(high, range(seen + 1)) == pytest.approx(alpha, rel=1e-5)
        assert tail(high, range(seen + 1)) <= alpha


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (1.0, 0.0), (1.0, 0.1), (3.0, 0.02)])
def test_every_way_to_bound_is_wrong_seldom_enough_where_it_matters_most(epsilon: float, delta: float) -> None:
    """The worst (ε, δ) mechanism there is, where the bound is met with equality, and a bet on the best threshold.

    Kairouz, Oh & Viswanath 2015: four outputs, one that proves each side with δ, and randomised response for the rest.
    """
    likely = (1 - delta) * math.exp(epsilon) / (1 + math.exp(epsilon))
    included = [delta, likely, 1 - delta - likely, 0.0]  # for the scores 3, 2, 1, 0
    excluded = included[::-1]
    chance = np.random.default_rng(3)
    wrong = dict.fromkeys(("fixed", "split", "turned", "strongest"), 0)
    audits, samples = 800, 400
    at = np.array([0.5, 1.5, 2.5])
    for _ in range(audits):
        tallies = []
        for count in (samples // 4, samples - samples // 4):
            reached = [np.cumsum(chance.multinomial(count, law))[:3][::-1] for law in (included, excluded)]
            tallies.append(Tally(at, reached[0], reached[1], count, count))
        first, rest = tallies
        wrong["fixed"] += fixed(rest, delta=delta, confidence=0.9).epsilon_lower > epsilon
        wrong["split"] += split(first, rest, delta=delta, confidence=0.9).epsilon_lower > epsilon
        every = Tally(at, first.included + rest.included, first.excluded + rest.excluded, samples, samples)
        wrong["strongest"] += strongest(every, first, rest, delta=delta, confidence=0.9).epsilon_lower > epsilon
        backwards = [Tally(each.thresholds, each.excluded, each.included, *each[3:]) for each in tallies]
        wrong["turned"] += split(*backwards, delta=delta, confidence=0.9).epsilon_lower > epsilon
    for name, count in wrong.items():
        assert binom.sf(count - 1, audits, 0.1) > 1e-4, name


def test_the_best_looking_threshold_without_correction_would_be_wrong_too_often() -> None:
    """What the corrections are for: two equal laws, and the best of many thresholds on the same samples."""
    chance = np.random.default_rng(5)
    naive, honest = 0, 0
    for _ in range(100):
        ones, zeros = chance.normal(size=(2, 2_000))
        at = np.quantile(ones, np.linspace(0.001, 0.999, 60))
        each = [fixed(Tally.of(ones, zeros, thresholds=[t]), delta=0.0, confidence=0.8) for t in at]
        naive += max(bound.epsilon_lower for bound in each) > 0
        honest += from_scores(ones, zeros, delta=0.0, confidence=0.8).epsilon_lower > 0
    assert naive > 30
    assert honest <= 20


def at(tally: Tally, place: int) -> Tally:
    """One threshold of a tally."""
    return tally._replace(
        thresholds=tally.thresholds[[place]], included=tally.included[[place]], excluded=tally.excluded[[place]]
    )


def test_thresholds_that_are_named_before_share_the_error() -> None:
    """The best of K, each tested at 1/K of the error; and only as the attack says it, high scores for "with"."""
    tally = Tally(np.arange(4.0), np.array([90, 70, 40, 10]), np.array([60, 20, 12, 1]), 100, 100)
    each = [fixed(at(tally, place), delta=0.01, confidence=1 - 0.05 / 4).epsilon_lower for place in range(4)]
    assert fixed(tally, delta=0.01, confidence=0.95).epsilon_lower == pytest.approx(max(each), rel=1e-6)
    backwards = tally._replace(included=tally.excluded, excluded=tally.included)
    assert fixed(backwards, delta=0.01, confidence=0.95).epsilon_lower == 0


def test_a_chosen_threshold_is_chosen_on_other_samples() -> None:
    """Where the second threshold looks better on the samples of the test, it is the first that was chosen."""
    chosen_on = Tally(np.array([0.0, 1.0]), np.array([900, 500]), np.array([200, 490]), 1_000, 1_000)
    tested_on = Tally(np.array([0.0, 1.0]), np.array([600, 990]), np.array([400, 10]), 1_000, 1_000)
    bound = split(chosen_on, tested_on, delta=0.0, confidence=0.95)
    assert bound.threshold == 0
    assert bound.epsilon_lower == fixed(at(tested_on, 0), delta=0.0, confidence=0.95).epsilon_lower
    assert bound.epsilon_lower < fixed(at(tested_on, 1), delta=0.0, confidence=0.95).epsilon_lower
    fitted = gaussian_split(chosen_on, tested_on, delta=DELTA, confidence=0.95)
    assert fitted.threshold == 0
    assert fitted == gaussian_split(at(chosen_on, 0), at(tested_on, 0), delta=DELTA, confidence=0.95)
    turned = Tally(tested_on.thresholds, tested_on.excluded, tested_on.included, 1_000, 1_000)
    assert split(turned, tested_on, delta=0.0, confidence=0.95).epsilon_lower == 0, "turned round there, and wrong here"


# Laws


def test_both_directions_are_looked_at() -> None:
    """An output that only the excluded side can have proves as much as one that only the included side can have."""
    ones, zeros = [1.0] * 900 + [0.0] * 100, [1.0] * 500 + [0.0] * 500
    forward = fixed(Tally.of(ones, zeros, thresholds=[0.5]), delta=0.0, confidence=0.95).epsilon_lower
    assert forward == pytest.approx(math.log(0.468 / 0.121), abs=0.02)  # of not E, where it is more than of E
    back = fixed(
        Tally.of([-x for x in zeros], [-x for x in ones], thresholds=[-0.5]), delta=0.0, confidence=0.95
    ).epsilon_lower
    assert back == pytest.approx(forward, rel=1e-6)


@given(st.integers(20, 400), st.floats(0, 0.2), st.floats(0.01, 0.2), st.integers(0, 2**32))
def test_a_larger_delta_and_more_confidence_prove_less(samples: int, delta: float, more: float, seed: int) -> None:
    chance = np.random.default_rng(seed)
    ones, zeros = chance.normal(1.5, 1, samples), chance.normal(0, 1, samples)
    tally = Tally.of(ones, zeros, thresholds=[0.7])
    bound = fixed(tally, delta=delta, confidence=0.9)
    assert 0 <= fixed(tally, delta=delta + more, confidence=0.9).epsilon_lower <= bound.epsilon_lower
    assert fixed(tally, delta=delta, confidence=0.99).epsilon_lower <= bound.epsilon_lower
    assert bound.epsilon_lower <= bound.attainable
    assert bound.attainable == pytest.approx(attainable(samples=samples, delta=delta, confidence=0.9))
    more_thresholds = Tally.of(ones, zeros, thresholds=[0.7, 50.0, 60.0])
    assert fixed(more_thresholds, delta=delta, confidence=0.9).epsilon_lower <= bound.epsilon_lower


def test_a_perfect_attack_proves_what_the_samples_allow() -> None:
    """3.69 for 150, 8.60 for 20,000 a side: figures of card M12, which were counted elsewhere."""
    for samples, bound in ((150, 3.69), (2_000, 6.29), (20_000, 8.60)):
        assert attainable(samples=samples, delta=0.0, confidence=0.95) == pytest.approx(bound, abs=0.01)


def test_the_assumed_shape_is_said() -> None:
    chance = np.random.default_rng(0)
    ones, zeros = chance.normal(1, 1, 4_000), chance.normal(0, 1, 4_000)
    fitted = gaussian_from_scores(ones, zeros, delta=DELTA, confidence=0.95)
    counted = from_scores(ones, zeros, delta=DELTA, confidence=0.95)
    assert fitted.assumes_a_shape
    assert "assuming a Gaussian shape" in str(fitted)
    assert not counted.assumes_a_shape
    truth = account(Gaussian(noise_multiplier=1.0), delta=DELTA).upper
    assert counted.epsilon_lower < fitted.epsilon_lower <= truth
    assert gaussian_from_scores(zeros, zeros.copy(), delta=DELTA, confidence=0.95).epsilon_lower == 0
    assert gaussian_from_scores(ones, zeros, delta=0.0, confidence=0.95).epsilon_lower == math.inf


def test_a_picture_of_an_attack() -> None:
    points = roc([1.0, 2.0, 3.0], [0.0, 1.0, 2.0], points=50)
    assert [(p.false_positive_rate, p.true_positive_rate) for p in points] == [
        (0, 1 / 3), (1 / 3, 2 / 3), (2 / 3, 1), (1, 1),
    ]  # fmt: skip
    area = np.trapezoid([p.true_positive_rate for p in points], [p.false_positive_rate for p in points])
    assert area > 0.5


@pytest.mark.parametrize(
    ("included", "excluded"),
    [([], [1.0]), ([1.0], [2.0]), ([math.nan, 1.0], [1.0, 2.0]), ([[1.0, 2.0]], [1.0, 2.0])],
)
def test_scores_that_are_none_are_refused(included: list[float], excluded: list[float]) -> None:
    with pytest.raises(InvalidInput, match=r"^(in|ex)cluded: expected"):
        from_scores(included, excluded, delta=0.0, confidence=0.95)


def test_bad_tallies_are_refused() -> None:
    good = Tally(np.zeros(1), np.array([1]), np.array([1]), 2, 2)
    for bad in (
        good._replace(included=np.array([3])),
        good._replace(excluded=np.array([-1])),
        good._replace(included=np.array([1, 1])),
        good._replace(included_runs=0),
        Tally(np.zeros(0), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 2, 2),
    ):
        with pytest.raises(InvalidInput):
            fixed(bad, delta=0.0, confidence=0.95)
    with pytest.raises(InvalidInput, match="tested_on"):
        split(good, good._replace(thresholds=np.ones(1)), delta=0.0, confidence=0.95)
    for delta, confidence in ((1.0, 0.95), (-0.1, 0.95), (0.0, 1.0), (0.0, 0.0)):
        with pytest.raises(InvalidInput):
            fixed(good, delta=delta, confidence=confidence)


def test_infinite_scores_are_the_largest_and_the_least() -> None:
    ones, zeros = [math.inf] * 400, [-math.inf] * 400
    assert from_scores(ones, zeros, delta=0.0, confidence=0.95).epsilon_lower > 4
