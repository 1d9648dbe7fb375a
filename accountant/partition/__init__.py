"""Label release by partition selection: which labels may be told, at what cost, and which of them survive.

A label that n ≥ 1 datapoints carry is told with a probability π(n) that depends on n alone, independently of all other
labels, and a label that nobody carries is never told. What such a rule costs is decided by π; what it is good for too.

- `TruncatedGeometric` is what the event `partition_selection` runs; `threshold`, `exact_delta` and
  `inclusion_probability` are short for it.
- `Optimal` has the largest π(n) that (ε, δ)-DP allows, at every n, and so bounds all others: `least_drop_probability`.
- `LaplaceThreshold` is the older way; `SteepestTest` is the best of those that need δ for new labels alone.
- `binary_delta` and `sequence_delta` are for any other rule.

A rule's own (ε, δ) holds under add/remove for a datapoint that carries one label. `per_label` and `total` go from there
to several labels and to replace-one. `from_share`, `smallest_share` and `smallest_share_of_prior` advise how much of a
budget labels need.
docs/label-release.md gives the reasons.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, overload

import numpy as np

from accountant.errors import InvalidInput, Unattainable
from accountant.events import Adjacency
from accountant.partition.rules import (
    MAX_SIZE,
    POSITIVE_PROBABILITY,
    LabelRelease,
    LaplaceThreshold,
    Optimal,
    Parameters,
    Probabilities,
    Sizes,
    SteepestTest,
    ThreePointLoss,
    TruncatedGeometric,
    changed_counts,
)
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

__all__ = [
    "HEURISTIC_SHARE",
    "LabelRelease",
    "LaplaceThreshold",
    "Optimal",
    "Parameters",
    "SteepestTest",
    "ThreePointLoss",
    "TruncatedGeometric",
    "binary_delta",
    "binary_delta_as_published",
    "exact_delta",
    "from_share",
    "inclusion_probability",
    "least_drop_probability",
    "per_label",
    "sequence_delta",
    "smallest_share",
    "smallest_share_of_prior",
    "threshold",
]

#: The part of a budget that label release gets unless someone asks. Where every class has hundreds of records, less
#: than this already tells all labels (Tobaben, Alrawajfeh, Klasson, Heikkilä, Solin & Honkela, arXiv 2411.04680).
HEURISTIC_SHARE: Final = 0.1

MAX_PRIOR: Final = 1000  # sizes

_READING_ERROR: Final = 1e-12
_SEQUENCE_ERROR: Final = 1e-14
_SHARE_PRECISION: Final = 1e-9  # relative
_SMALLEST_PART: Final = 1e-322  # of ε or δ: less is no float
_LARGEST_EXPONENT: Final = 709.0  # e to this is a float
_LIKELY: Final = Range("a number in [0.5, 1]", lambda value: 0.5 <= value <= 1)


def threshold(*, epsilon: float, delta: float) -> int:
    """The smallest k for which the truncated geometric mechanism's exact δ is at most `delta`.

    >>> threshold(epsilon=1.0, delta=1e-5), threshold(epsilon=0.1, delta=1e-5), threshold(epsilon=1.0, delta=1e-7)
    (11, 86, 16)
    """
    return TruncatedGeometric(epsilon=epsilon, delta=delta).threshold


def exact_delta(*, epsilon: float, delta: float) -> float:
    """An upper bound, tight to 1e-10, of the δ that the mechanism really has: that of a label with a single datapoint.

    >>> f"{exact_delta(epsilon=1.0, delta=1e-5):.3e}"
    '7.718e-06'
    """
    return TruncatedGeometric(epsilon=epsilon, delta=delta).delta_upper


@overload
def inclusion_probability(n: int, *, epsilon: float, delta: float) -> float: ...
@overload
def inclusion_probability(n: Sizes, *, epsilon: float, delta: float) -> Probabilities: ...
def inclusion_probability(n: int | Sizes, *, epsilon: float, delta: float) -> float | Probabilities:
    """The probability that the truncated geometric mechanism tells a label with `n` datapoints; a reading, not a bound.

    >>> round(1 - inclusion_probability(12, epsilon=1.0, delta=1e-7), 4)
    0.9951
    """
    return TruncatedGeometric(epsilon=epsilon, delta=delta).inclusion_probability(n)


def least_drop_probability(n: int, *, epsilon: float, delta: float) -> float:
    """No (ε, δ)-DP rule drops a label of `n` datapoints with a smaller probability than this, rounded down.

    A rule that never tells a label which nobody carries has π(0) = 0, and each further datapoint may raise π by no
    more than `Optimal` raises it. What the truncated geometric mechanism itself does is a little worse: it drops 12
    datapoints at (1, 1e-7) with probability 0.9951.

    >>> [round(least_drop_probability(n, epsilon=1.0, delta=1e-7), 4) for n in (12, 13)]
    [0.9905, 0.9743]
    """
    return max(0.0, Optimal(epsilon=epsilon, delta=delta).drop_probability(n) - _READING_ERROR)


def binary_delta(*, told_alone: float) -> float:
    """The exact δ of telling y iff an ε-DP test of y's own datapoints says yes: its probability on a single one.

    Only a new label costs δ. Between p₁ and nothing it is p₁ in one direction and 1 − e^ε (1 − p₁) ≤ p₁ in the other.
    """
    return real("told_alone", told_alone, PROBABILITY)


def binary_delta_as_published(*, epsilon: float, told_alone: float) -> float:
    """max(1/(1 − p₁) − e^ε, p₁): valid, but never below the exact p₁, and soon above 1 (arXiv 2411.04680, Theorem C.3).

    For comparison; nothing is charged by it.

    >>> round(binary_delta_as_published(epsilon=1.0, told_alone=0.75), 2), binary_delta(told_alone=0.75)
    (1.28, 0.75)
    """
    epsilon = real("epsilon", epsilon, NOT_NEGATIVE)
    p = real("told_alone", told_alone, PROBABILITY)
    return math.inf if p == 1 else max(1 / (1 - p) - math.exp(min(epsilon, _LARGEST_EXPONENT)), p)


def sequence_delta(told: Probabilities, *, epsilon: float) -> float:
    """The δ of any rule at `epsilon`, rounded up by 1e-14: `told` is π(0), π(1), … up to where it stays the same.

    It is the largest hockey-stick divergence of two neighbouring sizes in either direction. For probabilities a and b
    that is the larger of a − e^ε b and (1 − a) − e^ε (1 − b), or 0 if neither is positive.
    """
    epsilon = real("epsilon", epsilon, NOT_NEGATIVE)
    array = np.asarray(told)
    if array.dtype.kind != "f" or array.ndim != 1 or array.size == 0 or not np.all((array >= 0) & (array <= 1)):
        raise InvalidInput("told", told, "a non-empty array of numbers in [0, 1]")
    raised = math.exp(min(epsilon, _LARGEST_EXPONENT))  # a smaller factor only makes δ larger
    gains = [
        float(np.max(more - raised * less, initial=0.0))
        for side in (array, 1 - array)
        for more, less in ((side[1:], side[:-1]), (side[:-1], side[1:]))
    ]
    return min(1.0, max(gains) + _SEQUENCE_ERROR)


def per_label(*, epsilon: float, delta: float, labels: int = 1, adjacency: Adjacency = "add_remove") -> Parameters:
    """The ε and δ to run a rule with, so that the whole release is (ε, δ)-DP; both rounded down.

    With κ labels per datapoint they are ε/κ and 1 − (1 − δ)^(1/κ) (Desfontaines et al. 2022, on several partitions),
    with 2κ for κ under replace-one. That nobody carries more than κ labels must be enforced on each datapoint alone.

    >>> per_label(epsilon=1.0, delta=1e-5, labels=4)
    Parameters(epsilon=0.25, delta=2.5...e-06)
    """
    epsilon = real("epsilon", epsilon, POSITIVE)
    delta = real("delta", delta, POSITIVE_FAILURE_PROBABILITY)
    counts = changed_counts(labels, adjacency)
    if counts == 1:
        return Parameters(epsilon, delta)
    each = -math.expm1(math.log1p(-delta * (1 - 2 * RELATIVE_MARGIN)) / counts)  # so that `total` may round up
    return Parameters(rounded(exact(epsilon) / counts, towards=0.0), each)


def from_share(*, epsilon: float, delta: float, share: float = HEURISTIC_SHARE) -> TruncatedGeometric:
    """The mechanism that gets `share` of ε and of δ, both rounded down.

    >>> from_share(epsilon=1.0, delta=1e-5)
    TruncatedGeometric(epsilon=0.1, delta=1e-06)
    """
    epsilon = real("epsilon", epsilon, POSITIVE)
    delta = real("delta", delta, POSITIVE_FAILURE_PROBABILITY)
    part = exact(real("share", share, POSITIVE_PROBABILITY))
    return TruncatedGeometric(
        epsilon=rounded(part * exact(epsilon), towards=0.0), delta=rounded(part * exact(delta), towards=0.0)
    )


def smallest_share(*, n: int, probability: float, epsilon: float, delta: float) -> float:
    """The least share of (ε, δ) with which labels of at least `n` datapoints are told with `probability`; a reading.

    A probability of at least one half is asked for, because only there does more ε always help: π(n) ≥ 1/2 means n > k,
    and then π grows with ε while k stays, and again when k falls. Below, a larger ε with the same k narrows the noise
    and tells small labels *less* often.

    >>> round(smallest_share(n=500, probability=0.99, epsilon=1.0, delta=1e-5), 4)
    0.0295
    """
    n = whole("n", n, least=1, most=MAX_SIZE)
    probability = real("probability", probability, _LIKELY)

    def enough(share: float) -> bool:
        return from_share(epsilon=epsilon, delta=delta, share=share).keeps(n, probability=probability)

    if not enough(1.0):
        everything = from_share(epsilon=epsilon, delta=delta, share=1.0)
        raise Unattainable(
            f"all of ε = {epsilon:g}, δ = {delta:g} tells labels of {n} with probability "
            f"{everything.inclusion_probability(n):.3g}, not {probability:g}; labels of "
            f"{everything.smallest_kept(probability=probability)} and more would be told that often"
        )
    return _least_share(enough, least_part=min(epsilon, delta))


def smallest_share_of_prior(*, sizes: Mapping[int, float], probability: float, epsilon: float, delta: float) -> float:
    """The least share of (ε, δ) that tells a label of unknown size with `probability`; a reading.

    `sizes` is the prior: sizes of classes, each with a weight, in any unit. Counted is a size that is told more likely
    than not, with its π: less than half may fall as the share grows (see `smallest_share`), and this sum does not, so
    that there is one least share. What is told on average is that much or more.

    >>> prior = {30: 1.0, 300: 2.0, 3000: 7.0}
    >>> [
    ...     round(smallest_share_of_prior(sizes=prior, probability=probability, epsilon=1.0, delta=1e-5), 4)
    ...     for probability in (0.6, 0.85, 0.99)
    ... ]
    [0.004, 0.0385, 0.4322]
    """
    probability = real("probability", probability, POSITIVE_PROBABILITY)
    if not isinstance(sizes, Mapping) or not 0 < len(sizes) <= MAX_PRIOR:
        raise InvalidInput("sizes", sizes, f"sizes with their weights, one to {MAX_PRIOR} of them")
    known = np.array([whole("sizes", n, least=1, most=MAX_SIZE) for n in sizes], dtype=np.int64)
    weights = np.array([real(f"sizes[{n}]", weight, POSITIVE) for n, weight in sizes.items()])
    weights /= weights.max()  # so that their sum is a number
    wanted = probability * math.fsum(weights)

    def told(share: float) -> float:
        probabilities = from_share(epsilon=epsilon, delta=delta, share=share).inclusion_probability(known)
        return math.fsum(np.where(probabilities >= 0.5, weights * probabilities, 0.0))

    if told(1.0) < wanted:
        raise Unattainable(
            f"all of ε = {epsilon:g}, δ = {delta:g} tells a label of these sizes with probability "
            f"{told(1.0) / math.fsum(weights):.3g}, not {probability:g}"
        )
    return _least_share(lambda share: told(share) >= wanted, least_part=min(epsilon, delta))


def _least_share(enough: Callable[[float], bool], *, least_part: float) -> float:
    """Where a share begins to be enough: one is, and so is every larger one."""
    low, high = 0.5, 1.0
    while low * least_part >= _SMALLEST_PART and enough(low):
        low, high = low / 2, low
    while high > low * (1 + _SHARE_PRECISION):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
