"""Label release by partition selection: what its parameters cost and which labels survive.

The truncated symmetric geometric mechanism (Desfontaines, Voss, Gipson & Mandayam 2022, Theorem 6): a label
seen by n ≥ 1 units is released iff n + Z > k, with P[Z = x] ∝ e^(−ε|x|) for x = −k … k. Each unit is in exactly one
label.
"""

from __future__ import annotations

import math

from accountant.units import POSITIVE, POSITIVE_FAILURE_PROBABILITY, RELATIVE_MARGIN, real, whole

_MAX_UNITS = 10**18


def threshold(*, epsilon: float, delta: float) -> int:
    """The smallest k for which the mechanism's exact δ is at most `delta`.

    >>> threshold(epsilon=1.0, delta=1e-5), threshold(epsilon=0.1, delta=1e-5), threshold(epsilon=1.0, delta=1e-7)
    (11, 86, 16)
    """
    epsilon = real("epsilon", epsilon, POSITIVE)
    delta = real("delta", delta, POSITIVE_FAILURE_PROBABILITY)
    # log1p and tanh keep the digits that e^ε − 1 and 1 − δ would lose.
    bound = math.log1p(math.tanh(epsilon / 2) * (1 / delta - 1)) / epsilon
    k = max(1, math.ceil(bound))
    return k if _weight(k, epsilon) <= delta else k + 1  # rounding may have broken the last step


def exact_delta(*, epsilon: float, delta: float) -> float:
    """An upper bound, tight to 1e-10, of the δ that the mechanism really has: that of a label with a single unit.

    >>> f"{exact_delta(epsilon=1.0, delta=1e-5):.3e}"
    '7.718e-06'
    """
    k = threshold(epsilon=epsilon, delta=delta)
    upper = math.nextafter(_weight(k, float(epsilon)) * (1 + RELATIVE_MARGIN), 1.0)  # never 0, however small
    return min(float(delta), upper)


def inclusion_probability(n: int, *, epsilon: float, delta: float) -> float:
    """The probability that a label with `n` units is released; a reading, not a bound.

    >>> round(1 - inclusion_probability(12, epsilon=1.0, delta=1e-7), 4)
    0.9951
    """
    n = whole("n", n, least=0, most=_MAX_UNITS)
    k = threshold(epsilon=epsilon, delta=delta)
    epsilon = float(epsilon)
    if n == 0:
        return 0.0
    if n > 2 * k:
        return 1.0
    above = k + 1 - n  # released iff Z >= above
    if above >= 1:
        return _tail(above, k, epsilon)
    return 1.0 - _tail(1 - above, k, epsilon)


def _normaliser(k: int, epsilon: float) -> float:
    # 1 + e^-ε − 2e^-(k+1)ε, written as a sum of two positive parts
    return -math.expm1(-epsilon) / (-math.expm1(-(k + 1) * epsilon) - math.exp(-epsilon) * math.expm1(-k * epsilon))


def _weight(k: int, epsilon: float) -> float:
    """P[Z = k]."""
    return _normaliser(k, epsilon) * math.exp(-k * epsilon)


def _tail(above: int, k: int, epsilon: float) -> float:
    """P[Z >= above] for 1 <= above <= k."""
    geometric = math.expm1(-(k + 1 - above) * epsilon) / math.expm1(-epsilon)
    return _normaliser(k, epsilon) * math.exp(-above * epsilon) * geometric
