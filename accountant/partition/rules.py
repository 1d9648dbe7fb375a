"""Rules that tell a label of n datapoints with probability π(n), each with its cost and its readings.

Every rule is a frozen value of its ε and δ. `delta_upper` and `total` are promises and round up. Inclusion and drop
probabilities, and what is derived from them, are **readings**: right to 1e-12, in no direction.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from accountant.errors import InvalidInput
from accountant.events import Adjacency, adjacency_of
from accountant.units import (
    NOT_NEGATIVE,
    POSITIVE,
    POSITIVE_FAILURE_PROBABILITY,
    PROBABILITY,
    RELATIVE_MARGIN,
    Range,
    exact,
    real,
    rounded,
    whole,
)

Sizes: TypeAlias = NDArray[np.integer[Any]]
Probabilities: TypeAlias = NDArray[np.float64]

MAX_SIZE: Final = 10**18
_MAX_LABELS: Final = 10**9
_SMALLEST: Final = 5e-324  # the least positive float
_LARGEST: Final = 10**308
POSITIVE_PROBABILITY: Final = Range("a number in (0, 1]", lambda value: 0 < value <= 1)


class Parameters(NamedTuple):
    """ε and δ that belong together."""

    epsilon: float
    delta: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreePointLoss:
    """A privacy loss that is infinite with probability `infinite`, else ε or −ε: the worst that (ε, δ)-DP allows.

    Of the finite part ε has the probability e^ε / (1 + e^ε) and −ε the rest (Kairouz, Oh & Viswanath 2015). For the
    truncated geometric mechanism it is exact, in both directions: at every order some n attains it, so nothing tighter
    than (ε, δ_k) may be charged.
    """

    epsilon: float
    infinite: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", real("epsilon", self.epsilon, NOT_NEGATIVE))
        object.__setattr__(self, "infinite", real("infinite", self.infinite, PROBABILITY))

    @property
    def atoms(self) -> tuple[tuple[float, float], ...]:
        """(loss, probability), the largest loss first; the finite two share 1 − `infinite`, rounded to nearest."""
        finite, odds = 1 - self.infinite, math.exp(-self.epsilon)
        return (
            (math.inf, self.infinite),
            (self.epsilon, finite / (1 + odds)),
            (-self.epsilon, finite * odds / (1 + odds)),
        )

    def delta_upper(self, epsilon: float) -> float:
        """δ at another ε, rounded up."""
        epsilon = real("epsilon", epsilon, NOT_NEGATIVE)
        _, (loss, probability), _ = self.atoms
        if epsilon >= loss:
            return self.infinite
        return min(1.0, (self.infinite - probability * math.expm1(epsilon - loss)) * (1 + RELATIVE_MARGIN))


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRelease(ABC):
    """A rule that is (ε, δ)-DP under add/remove, if a datapoint carries one label."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", real("epsilon", self.epsilon, POSITIVE))
        object.__setattr__(self, "delta", real("delta", self.delta, POSITIVE_FAILURE_PROBABILITY))

    @property
    def delta_upper(self) -> float:
        """The δ that the rule really has at its ε, which is π(1), rounded up; never more than `delta`."""
        return self.delta

    @property
    def loss(self) -> ThreePointLoss:
        """A loss that bounds that of any one label, in both directions."""
        return ThreePointLoss(epsilon=self.epsilon, infinite=self.delta_upper)

    @property
    @abstractmethod
    def certain(self) -> int:
        """From this size on a label is always told; for unbounded noise, as far as a float can say."""

    def exactly(self, n: int, *, digits: int) -> Decimal:
        """π(n), off by less than 10^−digits, with ε and δ read as the decimals that they print as.

        A run that compares the digits of a uniform number with those of π(n), asking for more while they agree, tells
        a label with exactly this probability; no float can.
        """
        n = whole("n", n, least=0, most=MAX_SIZE)
        if n == 0:
            return Decimal(0)
        with localcontext(_digits(self.epsilon)) as context:
            context.prec += digits
            return self._exactly(Decimal(n), Decimal(repr(self.epsilon)), Decimal(repr(self.delta)))

    @abstractmethod
    def _exactly(self, n: Decimal, epsilon: Decimal, delta: Decimal) -> Decimal:
        """π(n) for n ≥ 1, in the arithmetic of the context."""

    @abstractmethod
    def _probabilities(self, n: Probabilities) -> tuple[Probabilities, NDArray[np.bool_]]:
        """For sizes n ≥ 1: the probability of being told where the second array is true, elsewhere of being dropped.

        Each is given where it keeps its digits; the other is 1 minus it.
        """

    @overload
    def inclusion_probability(self, n: int) -> float: ...
    @overload
    def inclusion_probability(self, n: Sizes) -> Probabilities: ...
    def inclusion_probability(self, n: int | Sizes) -> float | Probabilities:
        """π(n), of one size or of an array of sizes; a reading."""
        return self._reading(n, told=True)

    @overload
    def drop_probability(self, n: int) -> float: ...
    @overload
    def drop_probability(self, n: Sizes) -> Probabilities: ...
    def drop_probability(self, n: int | Sizes) -> float | Probabilities:
        """1 − π(n), with its digits where it is small; a reading."""
        return self._reading(n, told=False)

    def keeps(self, n: int, *, probability: float) -> bool:
        """Whether π(n) ≥ `probability`; a reading."""
        n = whole("n", n, least=0, most=MAX_SIZE)
        return self._keeps(n, real("probability", probability, POSITIVE_PROBABILITY))

    def smallest_kept(self, *, probability: float) -> int:
        """The least n with π(n) ≥ `probability`: which classes to hope for; a reading.

        >>> rule = TruncatedGeometric(epsilon=1.0, delta=1e-5)
        >>> rule.smallest_kept(probability=0.5), rule.smallest_kept(probability=0.99)
        (12, 16)
        """
        probability = real("probability", probability, POSITIVE_PROBABILITY)
        low, high = 0, self.certain
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._keeps(middle, probability) else (middle, high)
        return high

    def expected_labels(self, sizes: Sizes) -> float:
        """How many labels of these sizes are told on average; a reading.

        It is a function of the sizes themselves, so it is as private as they are and no part of a release.
        """
        return float(np.sum(self.inclusion_probability(_sizes("sizes", sizes))))

    def total(self, *, labels: int = 1, adjacency: Adjacency = "add_remove") -> Parameters:
        """The (ε, δ) of the whole release if a datapoint carries at most `labels` labels, rounded up.

        A datapoint changes that many counts by one, twice as many if it is replaced. Losses of independent noises add,
        and m of them are all finite with probability (1 − δ)^m (Kairouz, Oh & Viswanath 2015, Theorem 3.3).

        >>> TruncatedGeometric(epsilon=1.0, delta=1e-5).total(adjacency="replace_one")
        Parameters(epsilon=2.0, delta=1.54...e-05)
        """
        counts = changed_counts(labels, adjacency)
        if counts == 1:
            return Parameters(self.epsilon, self.delta_upper)
        delta = -math.expm1(counts * math.log1p(-self.delta_upper)) * (1 + RELATIVE_MARGIN) + 4 * _SMALLEST
        return Parameters(rounded(counts * exact(self.epsilon), towards=math.inf), min(1.0, delta))

    def _keeps(self, n: int, probability: float) -> bool:
        if probability < 0.5:
            return self._one(n, told=True) >= probability
        return self._one(n, told=False) <= 1 - probability

    def _reading(self, n: int | Sizes, *, told: bool) -> float | Probabilities:
        if not isinstance(n, np.ndarray):
            return self._one(whole("n", n, least=0, most=MAX_SIZE), told=told)
        sizes = _sizes("n", n)
        largest = min(int(sizes.max(initial=0)), self.certain)
        if largest < sizes.size:  # fewer sizes than labels: look each up
            return self._many(np.arange(largest + 1.0), told=told)[np.minimum(sizes, largest)]
        return self._many(sizes.astype(np.float64), told=told)

    def _one(self, n: int, *, told: bool) -> float:
        return float(self._many(np.array([_float(n)]), told=told)[0])

    def _many(self, n: Probabilities, *, told: bool) -> Probabilities:
        with np.errstate(over="ignore"):
            value, of_being_told = self._probabilities(np.maximum(n, 1))
        known = np.where(of_being_told == told, value, 1 - value)
        return np.where(n > 0, np.clip(known, 0.0, 1.0), 0.0 if told else 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatedGeometric(LabelRelease):
    """Told iff n + Z > k, with P[Z = x] ∝ e^(−ε|x|) for x = −k … k and the least k that keeps δ_k = π(1) ≤ δ.

    Desfontaines, Voss, Gipson & Mandayam 2022, Theorem 6. It is what the event `partition_selection` runs.
    """

    @property
    def threshold(self) -> int:
        """The smallest k for which δ_k is at most `delta`, with ε and δ read as the decimals that they print as."""
        return _threshold(self.epsilon, self.delta)

    @property
    def delta_upper(self) -> float:
        """δ_k = P[Z = k], rounded up, tight to 1e-10."""
        k = _float(self.threshold)
        weight = -math.expm1(-self.epsilon) / self._whole(k) * math.exp(-k * self.epsilon)
        # Never 0, however small; the last term is for where a float has few digits left.
        return min(self.delta, math.nextafter(weight * (1 + RELATIVE_MARGIN), 1.0) + 3 * _SMALLEST)

    @property
    def certain(self) -> int:
        """2k + 1: all of the noise is then above the threshold."""
        return 2 * self.threshold + 1

    def _probabilities(self, n: Probabilities) -> tuple[Probabilities, NDArray[np.bool_]]:
        k = _float(self.threshold)
        # Told iff Z ≥ k + 1 − n, dropped iff −Z ≥ n − k: the tail that starts at 1 or later is the one to compute.
        seldom = n <= k
        start, places = np.where(seldom, (k + 1 - n, n), (n - k, np.maximum(2 * k + 1 - n, 0)))
        return np.exp(-start * self.epsilon) * -np.expm1(-places * self.epsilon) / self._whole(k), seldom

    def _exactly(self, n: Decimal, epsilon: Decimal, delta: Decimal) -> Decimal:
        del delta
        k, q = Decimal(self.threshold), (-epsilon).exp()
        whole = 1 + q - 2 * (-(k + 1) * epsilon).exp()
        if n > k:
            dropped = ((k - n) * epsilon).exp() - (-(k + 1) * epsilon).exp() if n <= 2 * k else Decimal(0)
            return 1 - dropped / whole
        return ((n - k - 1) * epsilon).exp() * (1 - (-n * epsilon).exp()) / whole

    def _whole(self, k: float) -> float:
        """1 + e^−ε − 2e^−(k+1)ε, which is 1 − e^−ε times the sum of e^−ε|x|, as a sum of positive parts."""
        return -math.expm1(-(k + 1) * self.epsilon) - math.exp(-self.epsilon) * math.expm1(-k * self.epsilon)


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimal(LabelRelease):
    """π(n) = min(e^ε π(n−1) + δ, 1 − e^(−ε)(1 − π(n−1) − δ), 1): as large as (ε, δ)-DP allows, at every n.

    No count is made noisy, so none can be told with the label. In closed form π grows by the first rule up to the size
    `last_growing`, by the second up to `last_uncertain`, and is 1 after that (Desfontaines et al. 2022, Theorem 1,
    where they are n₁ and n₂).
    """

    @property
    def last_growing(self) -> int:
        """n₁: up to this size π(n) = δ (e^(nε) − 1) / (e^ε − 1)."""
        return _optimum(self.epsilon, self.delta).last_growing

    @property
    def last_uncertain(self) -> int:
        """n₂: larger labels are always told."""
        return _optimum(self.epsilon, self.delta).last_uncertain

    @property
    def certain(self) -> int:
        """n₂ + 1."""
        return self.last_uncertain + 1

    def _probabilities(self, n: Probabilities) -> tuple[Probabilities, NDArray[np.bool_]]:
        epsilon, delta = self.epsilon, self.delta
        growing, uncertain, dropped_there = _optimum(epsilon, delta)
        seldom = n < _float(growing) + (dropped_there >= 0.5)  # at n₁ both forms hold; take the smaller probability
        m = np.where(seldom, n - 1, n - _float(growing))
        half = np.exp(np.where(seldom, m, 0.0) * epsilon / 2)  # its square alone could overflow where δ is tiny
        told = delta * half * (half * (np.expm1(-(m + 1) * epsilon) / math.expm1(-epsilon)))
        fallen = delta * math.exp(-epsilon) * (np.expm1(-m * epsilon) / math.expm1(-epsilon))
        dropped = np.where(n <= _float(uncertain), dropped_there * np.exp(-m * epsilon) - fallen, 0.0)
        return np.where(seldom, told, dropped), seldom

    def _exactly(self, n: Decimal, epsilon: Decimal, delta: Decimal) -> Decimal:
        growing, uncertain = Decimal(self.last_growing), Decimal(self.last_uncertain)
        q = (-epsilon).exp()
        m = min(n, growing)
        told = delta * ((m - 1) * epsilon).exp() * (1 - (-m * epsilon).exp()) / (1 - q)
        if n <= growing:
            return told
        fallen = ((growing - n) * epsilon).exp()
        return Decimal(1) if n > uncertain else 1 - (1 - told) * fallen + delta * q * (1 - fallen) / (1 - q)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaplaceThreshold(LabelRelease):
    """Told iff n + Lap(1/ε) > τ, with the least τ for which π(1) ≤ δ; its exact δ is then δ itself."""

    @property
    def threshold(self) -> float:
        """τ = 1 + ln(1/(2δ))/ε for δ ≤ 1/2, rounded up, so that π(1) is not above `delta`."""
        tau = 1 - self._first / self.epsilon
        return tau + 4 * math.ulp(max(1.0, abs(tau)))

    @property
    def certain(self) -> int:
        """Where the probability of being dropped is no longer a positive float: e^−746 is 0."""
        return math.ceil(min(1 + (746 - self._first) / self.epsilon, 1e300))

    @property
    def _first(self) -> float:
        """ε (1 − τ): where a label of one datapoint stands, in scales of the noise."""
        return math.log(2 * self.delta) if self.delta <= 0.5 else -math.log(2 * (1 - self.delta))

    def _probabilities(self, n: Probabilities) -> tuple[Probabilities, NDArray[np.bool_]]:
        distance = self._first + (n - 1) * self.epsilon
        return np.exp(-np.abs(distance)) / 2, distance < 0

    def _exactly(self, n: Decimal, epsilon: Decimal, delta: Decimal) -> Decimal:
        """With the τ for which π(1) is δ: no τ has to be written down, and none is rounded."""
        if 2 * delta > 1:
            return 1 - (1 - delta) * (-(n - 1) * epsilon).exp()
        if (n - 1) * epsilon <= -(2 * delta).ln():
            return delta * ((n - 1) * epsilon).exp()
        return 1 - (-(n - 1) * epsilon).exp() / (4 * delta)


@dataclass(frozen=True, slots=True, kw_only=True)
class SteepestTest(LabelRelease):
    """Told iff an ε-DP test of the label's own datapoints says yes: the one that grows fastest from π(1) = δ.

    π(n) = min(e^ε π(n−1), 1 − e^(−ε)(1 − π(n−1))) for n ≥ 2. Up to the size `last_growing` the first binds, after that
    the second. Between neighbouring sizes n ≥ 1 it costs ε and no δ, and a new label costs δ and nothing else: it is
    the best of the general binary mechanisms (arXiv 2411.04680, Theorem C.3) that tell a lone datapoint with δ.
    """

    @property
    def last_growing(self) -> int:
        """The largest n with π(n−1) ≤ 1 / (1 + e^ε), up to which π(n) = δ e^((n−1)ε); 1 if there is none."""
        return _last_growing(self.epsilon, self.delta)

    @property
    def certain(self) -> int:
        """Where the probability of being dropped is no longer a positive float: e^−746 is 0."""
        return math.ceil(min(self.last_growing + 746 / self.epsilon, 1e300))

    def _probabilities(self, n: Probabilities) -> tuple[Probabilities, NDArray[np.bool_]]:
        growing = _float(self.last_growing)
        m = np.minimum(n, growing) - 1
        told = np.exp(math.log(self.delta) + m * self.epsilon)
        seldom = (n <= growing) & (told < 0.5)
        return np.where(seldom, told, (1 - told) * np.exp(-np.maximum(n - growing, 0.0) * self.epsilon)), seldom

    def _exactly(self, n: Decimal, epsilon: Decimal, delta: Decimal) -> Decimal:
        growing = Decimal(self.last_growing)
        told = delta * ((min(n, growing) - 1) * epsilon).exp()
        return told if n <= growing else 1 - (1 - told) * ((growing - n) * epsilon).exp()


def changed_counts(labels: int, adjacency: Adjacency) -> int:
    """How many counts one datapoint that carries `labels` labels changes, each by one."""
    labels = whole("labels", labels, least=1, most=_MAX_LABELS)
    return labels * (2 if adjacency_of(adjacency) == "replace_one" else 1)


class _Optimum(NamedTuple):
    last_growing: int
    last_uncertain: int
    dropped: float  # 1 − π at the last growing size


def _digits(epsilon: float) -> Context:
    """Arithmetic that decides which integer is meant, as floats cannot: 28 digits are left after all that cancels."""
    return Context(prec=60 + 2 * max(0, -Decimal(epsilon).adjusted()), Emax=MAX_EMAX, Emin=MIN_EMIN)


def _crossing(epsilon: Decimal, delta: Decimal) -> Decimal:
    """ln(1 + tanh(ε/2)(1/δ − 1)) / ε: the k with δ_k = δ, were it real, and where the two rules of `Optimal` meet."""
    q = (-epsilon).exp()
    return (1 + (1 - q) / (1 + q) * (1 / delta - 1)).ln() / epsilon


@lru_cache(maxsize=4096)
def _threshold(epsilon: float, delta: float) -> int:
    with localcontext(_digits(epsilon)):
        crossing = _crossing(Decimal(repr(epsilon)), Decimal(repr(delta)))
        return max(1, math.ceil(crossing + Decimal("1e-25")))  # in doubt one more, which is more private


@lru_cache(maxsize=4096)
def _last_growing(epsilon: float, delta: float) -> int:
    with localcontext(_digits(epsilon)):
        e, d = Decimal(repr(epsilon)), Decimal(repr(delta))
        q = (-e).exp()
        return max(1, 2 + math.floor((q / ((1 + q) * d)).ln() / e))  # where both bind, both say the same


@lru_cache(maxsize=4096)
def _optimum(epsilon: float, delta: float) -> _Optimum:
    with localcontext(_digits(epsilon)):
        e, d = Decimal(repr(epsilon)), Decimal(repr(delta))
        growing = 1 + math.floor(_crossing(e, d))
        q = (-e).exp()
        told = d * ((growing - 1) * e).exp() * (1 - (-growing * e).exp()) / (1 - q)
        dropped = 1 - told
        # the last m with (1 − π(n₁)) e^(−mε) ≥ δ (1 − e^(−mε)) / (e^ε − 1)
        more = math.floor((((d * q + dropped * (1 - q)) / d).ln() + e) / e)
    return _Optimum(growing, growing + more, float(dropped))


def _float(size: int) -> float:
    return float(min(size, _LARGEST))


def _sizes(argument: str, value: object) -> NDArray[np.int64]:
    if (
        isinstance(value, np.ndarray)
        and value.dtype.kind in "iu"
        and value.min(initial=0) >= 0
        and value.max(initial=0) <= MAX_SIZE
    ):
        return value.astype(np.int64, copy=False)
    raise InvalidInput(argument, value, f"an array of whole numbers from 0 to {MAX_SIZE}")
