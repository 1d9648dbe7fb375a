"""Scores of an attack → a lower bound on ε, with a confidence.

An attack runs a mechanism many times on a data set **with** a datapoint and as often on its neighbour **without** it,
and gives each output a score. If the mechanism is (ε, δ)-DP, every event E has

    P(E | with) ≤ e^ε P(E | without) + δ    and    P(not E | without) ≤ e^ε P(not E | with) + δ,

which are the two directions of an adjacency (Wasserman & Zhou 2010; Kairouz, Oh & Viswanath 2015, Theorem 2.1). Take
E = "the score reaches a threshold": with a lower bound p on its probability with the datapoint (true positives) and an
upper bound q without it (false positives), ε is at least the larger of ln((p − δ)/q) and ln((1 − q − δ)/(1 − p)). Both
follow from the same two bounds, so one confidence covers both. The bounds are exact for every number of samples
(Clopper & Pearson 1934), each at half of what may go wrong.

**Chosen thresholds.** A threshold that was picked because it looks best on the samples would overstate ε. Two ways are
sound and offered here. `split`: the threshold is chosen on one share of the samples and tested on the rest, which are
independent of it, so nothing needs to be corrected. `fixed`: all K thresholds are named before the samples are seen,
each is tested at 1/K of what may go wrong, and the best counts (Bonferroni: a union bound over the K tests). `planned`
names one from what the mechanism is said to do. `strongest` does both, each at half of what may go wrong: the threshold
that the promise names shows most of a mechanism that keeps it, a chosen one shows most of one that does not.

Samples are independent runs; what is measured rounds down.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainccinv, betaincinv, ndtr, ndtri

from accountant.engines import account
from accountant.errors import InvalidInput
from accountant.events import Gaussian
from accountant.units import FAILURE_PROBABILITY, POSITIVE_FAILURE_PROBABILITY, real, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

Method: TypeAlias = Literal["clopper_pearson", "gaussian_dp", "one_run"]

#: Relative, far above the error of the special functions; it is always taken off.
_MARGIN: Final = 1e-9
_CHOSEN_ON: Final = 0.25  # of the samples, where a threshold has to be chosen
_CHOSEN_AT: Final = 1e-3  # stricter than a test: a threshold that was lucky on few samples is not chosen
_CANDIDATES: Final = 400  # thresholds that are looked at
_TAIL: Final = 7.0  # deviations, beyond which no number of samples that fits here has anything
_LEAST_MU: Final = 1e-6  # a Gaussian that is told apart less than this counts as 0
MAX_SAMPLES: Final = 10**12

#: What every bound here rests on.
INDEPENDENT: Final = "samples are independent runs of the mechanism, on two data sets that differ in one datapoint"
GAUSSIAN_SHAPE: Final = (
    "the two laws of the output are told apart as two Gaussians of equal variance are, at every threshold "
    "(Dong, Roth & Su 2022): this is assumed and not tested"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerBound:
    """With probability at least `confidence`, the ε of what was attacked is at least `epsilon_lower` at `delta`.

    It holds if the `assumptions` do. `attainable` is what a perfect attack would have shown with so many `samples` (of
    each side, or canaries): where a promise lies above it, no attack could have disproved it.
    """

    epsilon_lower: float
    delta: float
    confidence: float
    method: Method
    samples: int
    assumptions: tuple[str, ...]
    attainable: float
    threshold: float | None = None

    @property
    def assumes_a_shape(self) -> bool:
        """Whether the bound rests on more than independent samples."""
        return GAUSSIAN_SHAPE in self.assumptions

    def __str__(self) -> str:
        """The result in one line, rounded down.

        >>> samples = Tally.of([2.0, 3.0, 4.0, 5.0] * 25, [0.0, 0.5, 1.0, 3.5] * 25, thresholds=[1.5])
        >>> print(fixed(samples, delta=1e-5, confidence=0.95))
        ε ≥ 2.89 (δ = 1e-05, 95 % confidence, clopper_pearson, 100 samples, lower bound)
        """
        shown = math.floor(self.epsilon_lower * 100) / 100
        assumed = ", assuming a Gaussian shape" if self.assumes_a_shape else ""
        return (
            f"ε ≥ {shown:.2f} (δ = {self.delta:g}, {100 * self.confidence:g} % confidence, {self.method}{assumed}, "
            f"{self.samples:,} samples, lower bound)"
        )


class Tally(NamedTuple):
    """How many scores reach each threshold, with the datapoint and without it: all that a bound needs to know.

    Scores of independent runs that fall between two thresholds are counts of a multinomial law, so a tally that is
    drawn from that law is worth as much as one that was counted.
    """

    thresholds: NDArray[np.float64]  # (k,)
    included: NDArray[np.int64]  # (k,) scores that reach it, with the datapoint
    excluded: NDArray[np.int64]  # (k,) and without it
    included_runs: int
    excluded_runs: int

    @classmethod
    def of(
        cls,
        included: Sequence[float] | NDArray[np.float64],
        excluded: Sequence[float] | NDArray[np.float64],
        *,
        thresholds: Sequence[float] | NDArray[np.float64],
    ) -> Tally:
        """Count scores. A score that is not a number is an error, since it would count for neither side."""
        at = np.asarray(thresholds, dtype=np.float64)
        counts = []
        for name, scores in (("included", included), ("excluded", excluded)):
            ordered = np.sort(_scores(name, scores))
            counts.append(len(ordered) - np.searchsorted(ordered, at, side="left"))
        return cls(at, counts[0], counts[1], len(included), len(excluded))


class Normals(NamedTuple):
    """The laws of scores if the promise is kept: normal with the datapoint and without it, of one deviation.

    It follows from the promise alone and never from samples, so that what is planned by it is fixed before.
    """

    included: float
    excluded: float
    deviation: float

    def tally(self, samples: int) -> Tally:
        """What so many scores a side come to on average, at thresholds from one end to the other."""
        ends = sorted((self.included, self.excluded))
        at = np.linspace(ends[0] - _TAIL * self.deviation, ends[1] + _TAIL * self.deviation, _CANDIDATES)
        reached = [ndtr((mean - at) / self.deviation) for mean in (self.included, self.excluded)]
        counts = [np.floor(samples * each).astype(np.int64) for each in reached]
        return Tally(at, counts[0], counts[1], samples, samples)


def fixed(tally: Tally, *, delta: float, confidence: float) -> LowerBound:
    """A bound from thresholds that were all named before any score was seen (Bonferroni)."""
    return _fixed(tally, delta=_delta(delta), confidence=confidence, alpha=_alpha(confidence))


def _fixed(tally: Tally, *, delta: float, confidence: float, alpha: float) -> LowerBound:
    each = alpha / len(_checked(tally).thresholds)
    # Only as the attack says it, high scores for "with": turned round they would be as many tests again.
    bounds = _epsilons(tally, delta=delta, alpha=each)[: len(tally.thresholds)]
    return _clopper_pearson(tally, int(np.argmax(bounds)), delta=delta, confidence=confidence, alpha=each)


def planned(expected: Tally, *, delta: float, confidence: float) -> float:
    """The threshold at which these counts give the largest bound.

    Of counts that are *expected* of a mechanism which is what it is said to be, it is fixed before any run, and `fixed`
    may then use every sample at it. If the mechanism is something else the bound holds all the same, and may be small.
    """
    alpha = min(_CHOSEN_AT, _alpha(confidence))
    bounds = _epsilons(_checked(expected), delta=_delta(delta), alpha=alpha)[: len(expected.thresholds)]
    return float(expected.thresholds[int(np.argmax(bounds))])


def split(chosen_on: Tally, tested_on: Tally, *, delta: float, confidence: float) -> LowerBound:
    """A bound at the threshold that is best on some samples, tested on others.

    The bound of `tested_on` is one at a threshold that does not depend on it, so its confidence is that of one test.
    """
    return _split(chosen_on, tested_on, delta=_delta(delta), confidence=confidence, alpha=_alpha(confidence))


def _split(chosen_on: Tally, tested_on: Tally, *, delta: float, confidence: float, alpha: float) -> LowerBound:
    _same_thresholds(chosen_on, tested_on)
    best = int(np.argmax(_epsilons(chosen_on, delta=delta, alpha=_CHOSEN_AT)))
    return _clopper_pearson(tested_on, best, delta=delta, confidence=confidence, alpha=alpha)


def strongest(named: Tally, chosen_on: Tally, tested_on: Tally, *, delta: float, confidence: float) -> LowerBound:
    """The larger of two bounds: of all samples at thresholds `named` before, and of `split`.

    Each is wrong with half of what may go wrong, so that the larger one is with all of it (a union bound).
    """
    delta, half = _delta(delta), _alpha(confidence) / 2
    one = _fixed(named, delta=delta, confidence=confidence, alpha=half)
    other = _split(chosen_on, tested_on, delta=delta, confidence=confidence, alpha=half)
    best = max(one, other, key=lambda bound: bound.epsilon_lower)
    return replace(best, attainable=max(one.attainable, other.attainable))


def from_scores(
    included: Sequence[float] | NDArray[np.float64],
    excluded: Sequence[float] | NDArray[np.float64],
    *,
    delta: float,
    confidence: float,
    promised: Normals | None = None,
) -> LowerBound:
    """A bound from scores: thresholds are looked for on the first quarter of each side, and tested on the rest.

    An attack says "with" where scores are high; one that has it the wrong way round is turned round on the first
    quarter as well. Where the promise says how scores are distributed, the threshold that it names is tested on all of
    them as well (`strongest`).

    >>> ones, zeros = np.full(2_000, 1.0), np.full(2_000, 0.0)
    >>> print(from_scores(ones, zeros, delta=0.0, confidence=0.95))
    ε ≥ 6.00 (δ = 0, 95 % confidence, clopper_pearson, 1,500 samples, lower bound)
    """
    chosen_on, tested_on = _halves(included, excluded)
    if promised is None:
        return split(chosen_on, tested_on, delta=delta, confidence=confidence)
    usual = promised.tally(min(len(included), len(excluded)))
    threshold = planned(usual, delta=delta, confidence=confidence)
    named = Tally.of(included, excluded, thresholds=[threshold])
    return strongest(named, chosen_on, tested_on, delta=delta, confidence=confidence)


def gaussian_split(chosen_on: Tally, tested_on: Tally, *, delta: float, confidence: float) -> LowerBound:
    """A bound that **assumes the Gaussian shape**: at the true μ, true positives are Φ(μ + Φ⁻¹(false positives)).

    So μ ≥ Φ⁻¹(p) − Φ⁻¹(q) for the bounds p and q at any one threshold, which is chosen and tested as in `split`, and ε
    at δ is that of a Gaussian mechanism of this μ (Dong, Roth & Su 2022, Corollary 2.13; as an audit: Nasr et al. 2023,
    arXiv 2302.07956). It needs far fewer samples than a tail does. For a mechanism of another shape it may be above the
    truth, so it never proves a violation.
    """
    _same_thresholds(chosen_on, tested_on)
    alpha = _alpha(confidence)
    best = int(np.argmax(_mus(chosen_on, _CHOSEN_AT)))
    mu = float(_mus(tested_on, alpha)[best]) * (1 - _MARGIN)
    most = min(tested_on.included_runs, tested_on.excluded_runs)
    perfect = Tally(np.zeros(1), np.array([most]), np.array([0]), most, most)
    return LowerBound(
        epsilon_lower=_epsilon_of_mu(mu, delta=_delta(delta)),
        delta=delta,
        confidence=confidence,
        method="gaussian_dp",
        samples=most,
        assumptions=(INDEPENDENT, GAUSSIAN_SHAPE),
        attainable=_epsilon_of_mu(float(_mus(perfect, alpha)[0]), delta=delta),
        threshold=float(tested_on.thresholds[best % len(tested_on.thresholds)]),
    )


def gaussian_from_scores(
    included: Sequence[float] | NDArray[np.float64],
    excluded: Sequence[float] | NDArray[np.float64],
    *,
    delta: float,
    confidence: float,
) -> LowerBound:
    """As `from_scores`, **assuming the Gaussian shape**."""
    chosen_on, tested_on = _halves(included, excluded)
    return gaussian_split(chosen_on, tested_on, delta=delta, confidence=confidence)


def attainable(*, samples: int, delta: float, confidence: float) -> float:
    """The largest bound that so many samples of each side can give: every one told right.

    >>> f"{attainable(samples=1000, delta=0.0, confidence=0.95):.2f}"
    '5.60'
    """
    samples = whole("samples", samples, least=1, most=MAX_SAMPLES)
    perfect = Tally(np.zeros(1), np.array([samples]), np.array([0]), samples, samples)
    return float(_epsilons(perfect, delta=_delta(delta), alpha=_alpha(confidence))[0])


class Point(NamedTuple):
    """One point of an attack's receiver operating characteristic."""

    threshold: float
    false_positive_rate: float
    true_positive_rate: float


def roc(
    included: Sequence[float] | NDArray[np.float64], excluded: Sequence[float] | NDArray[np.float64], *, points: int
) -> tuple[Point, ...]:
    """What the attack reached at up to so many thresholds, from strict to lax. A picture: it bounds nothing."""
    whole("points", points, least=2, most=10_000)
    pooled = np.concatenate([_scores("included", included), _scores("excluded", excluded)])
    at = np.unique(np.quantile(pooled, np.linspace(0, 1, points), method="nearest"))[::-1]
    tally = Tally.of(included, excluded, thresholds=at)
    return tuple(
        Point(float(threshold), float(false), float(true))
        for threshold, false, true in zip(
            at, tally.excluded / tally.excluded_runs, tally.included / tally.included_runs, strict=True
        )
    )


def proportion_lower(successes: NDArray[np.int64], trials: int, *, alpha: float) -> NDArray[np.float64]:
    """A number that is above the true probability with probability at most α (Clopper & Pearson 1934)."""
    k = np.asarray(successes, dtype=np.float64)
    bound = betaincinv(np.maximum(k, 1), np.maximum(trials - k + 1, 1), alpha)
    return np.where(k > 0, bound * (1 - _MARGIN), 0.0)


def proportion_upper(successes: NDArray[np.int64], trials: int, *, alpha: float) -> NDArray[np.float64]:
    """A number that is below the true probability with probability at most α."""
    k = np.asarray(successes, dtype=np.float64)
    bound = betainccinv(k + 1, np.maximum(trials - k, 1), alpha)
    return np.where(k < trials, np.minimum(1.0, bound * (1 + _MARGIN)), 1.0)


def _rates(tally: Tally, alpha: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """True positives at least, false positives at most: for each threshold, both right but for α."""
    return (
        proportion_lower(tally.included, tally.included_runs, alpha=alpha / 2),
        proportion_upper(tally.excluded, tally.excluded_runs, alpha=alpha / 2),
    )


def _turned(tally: Tally) -> Tally:
    """The same with "does not reach the threshold" as the event."""
    return tally._replace(included=tally.included_runs - tally.included, excluded=tally.excluded_runs - tally.excluded)


def _epsilons(tally: Tally, *, delta: float, alpha: float) -> NDArray[np.float64]:
    """The bound at each threshold, then at each with the event turned round: (2k,)."""
    both = []
    for each in (tally, _turned(tally)):
        true, false = _rates(each, alpha)
        ratios = np.maximum(
            np.maximum(true - delta, 0) / np.maximum(false, 1e-300),
            np.maximum(1 - false - delta, 0) / np.maximum(1 - true, 1e-300),
        )
        both.append(np.log(np.maximum(ratios, 1.0)) * (1 - _MARGIN))
    return np.concatenate(both)


def _mus(tally: Tally, alpha: float) -> NDArray[np.float64]:
    """How far two Gaussians are apart at least, at each threshold, then at each turned round: (2k,)."""
    both = []
    for each in (tally, _turned(tally)):
        true, false = _rates(each, alpha)
        known = (true > 0) & (false < 1)
        both.append(np.where(known, ndtri(np.where(known, true, 0.5)) - ndtri(np.where(known, false, 0.5)), -np.inf))
    return np.concatenate(both)


def _clopper_pearson(tally: Tally, place: int, *, delta: float, confidence: float, alpha: float) -> LowerBound:
    samples = min(tally.included_runs, tally.excluded_runs)
    return LowerBound(
        epsilon_lower=float(_epsilons(tally, delta=delta, alpha=alpha)[place]),
        delta=delta,
        confidence=confidence,
        method="clopper_pearson",
        samples=samples,
        assumptions=(INDEPENDENT,),
        attainable=attainable(samples=samples, delta=delta, confidence=1 - alpha),
        threshold=float(tally.thresholds[place % len(tally.thresholds)]),
    )


def _epsilon_of_mu(mu: float, *, delta: float) -> float:
    """ε of a Gaussian mechanism of this μ, from below."""
    if not mu > _LEAST_MU:
        return 0.0
    if delta == 0:
        return math.inf  # no Gaussian has a pure ε
    return account(Gaussian(noise_multiplier=1 / mu), delta=delta).lower


def _halves(
    included: Sequence[float] | NDArray[np.float64], excluded: Sequence[float] | NDArray[np.float64]
) -> tuple[Tally, Tally]:
    ones, zeros = _scores("included", included), _scores("excluded", excluded)
    cuts = [max(1, int(len(scores) * _CHOSEN_ON)) for scores in (ones, zeros)]
    for name, scores in (("included", ones), ("excluded", zeros)):
        if len(scores) < 2:
            raise InvalidInput(
                name, len(scores), "two scores or more: a threshold is chosen on some and tested on others"
            )
    at = _thresholds(ones[: cuts[0]], zeros[: cuts[1]])
    return (
        Tally.of(ones[: cuts[0]], zeros[: cuts[1]], thresholds=at),
        Tally.of(ones[cuts[0] :], zeros[cuts[1] :], thresholds=at),
    )


def _thresholds(ones: NDArray[np.float64], zeros: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scores that occurred, closer together towards both ends, where ratios are large; halfway to the next below."""
    pooled = np.unique(np.concatenate([ones, zeros]))
    if len(pooled) > _CANDIDATES:
        steps = np.geomspace(1, len(pooled) // 2, _CANDIDATES // 2).astype(np.int64)
        pooled = pooled[np.unique(np.concatenate([steps, len(pooled) - steps]))]
    below = np.concatenate([pooled[:1], pooled[:-1]])
    return below / 2 + pooled / 2


def _scores(name: str, scores: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    found = np.asarray(scores, dtype=np.float64)
    if found.ndim != 1 or not len(found) or np.isnan(found).any():
        raise InvalidInput(name, found.shape, "a list of scores that are numbers, not empty")
    return np.nan_to_num(found, posinf=np.finfo(np.float64).max / 4, neginf=np.finfo(np.float64).min / 4)


def _checked(tally: Tally) -> Tally:
    for name, counts, runs in (
        ("included", tally.included, tally.included_runs),
        ("excluded", tally.excluded, tally.excluded_runs),
    ):
        whole(f"{name}_runs", runs, least=1, most=MAX_SAMPLES)
        if len(counts) != len(tally.thresholds) or not len(counts):
            raise InvalidInput(name, len(counts), f"a count for each of {len(tally.thresholds)} thresholds")
        if int(np.min(counts)) < 0 or int(np.max(counts)) > runs:
            raise InvalidInput(name, [int(np.min(counts)), int(np.max(counts))], f"counts from 0 to {runs}")
    return tally


def _same_thresholds(chosen_on: Tally, tested_on: Tally) -> None:
    if not np.array_equal(_checked(chosen_on).thresholds, _checked(tested_on).thresholds):
        raise InvalidInput("tested_on", len(tested_on.thresholds), "the thresholds of chosen_on")


def _delta(delta: float) -> float:
    return real("delta", delta, FAILURE_PROBABILITY)


def _alpha(confidence: float) -> float:
    """What may go wrong, rounded down."""
    return (1 - real("confidence", confidence, POSITIVE_FAILURE_PROBABILITY)) * (1 - _MARGIN)
