"""What an audit says of a promise, and how many audits may say it before one of them is wrong."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from accountant.units import NOT_NEGATIVE, POSITIVE_FAILURE_PROBABILITY, real, whole

if TYPE_CHECKING:
    from accountant.audit.empirical import LowerBound

Verdict: TypeAlias = Literal["consistent", "violation", "inconclusive"]

#: The share of populations in which an audit may ever call a true promise false.
FALSE_ALARMS: Final = 0.05
MAX_AUDITS: Final = 10**9


class Power(NamedTuple):
    """What an audit would see: its twin, a mechanism weakened in this way, from so many samples on; None: never."""

    twin: str
    samples: int | None

    def suffices(self, samples: int) -> bool:
        """Whether so many samples would have shown the twin."""
        return self.samples is not None and samples >= self.samples


def weakened(twin: str) -> str:
    """A twin in a sentence.

    >>> weakened("a third of the noise"), weakened("the mechanism as it is")
    ('the mechanism weakened to a third of the noise', 'the mechanism as it is')
    """
    return twin if twin.startswith("the mechanism") else f"the mechanism weakened to {twin}"


def verdict(bound: LowerBound, *, epsilon: float, delta: float, confidence: float, powerful: bool) -> Verdict:
    """What a lower bound says of the promise (ε, δ), for whoever asks for this confidence.

    `violation`: the bound is above ε. It must have the confidence that was asked for, rest on nothing but how the
    samples were drawn, and be one at a δ not below the promised one, since (ε, δ) promises nothing about smaller δ.

    `consistent`: it is not, and a mechanism that is weaker than was said would have shown: the audit is `powerful`
    enough for its twin (`Power.suffices`), and a perfect attack with so many samples would have gone beyond ε.

    `inconclusive`: neither. The samples were too few, or the attack sees nothing, or the bound does not meet the
    conditions of a violation and is above ε all the same, or its confidence is too low.

    >>> from accountant.audit.empirical import Tally, fixed
    >>> told = Tally.of([1.0] * 500, [0.0] * 500, thresholds=[0.5])
    >>> bound = fixed(told, delta=1e-5, confidence=0.95)
    >>> [verdict(bound, epsilon=epsilon, delta=1e-5, confidence=0.95, powerful=True) for epsilon in (1.0, 8.0)]
    ['violation', 'inconclusive']
    """
    epsilon = math.inf if epsilon == math.inf else real("epsilon", epsilon, NOT_NEGATIVE)
    real("confidence", confidence, POSITIVE_FAILURE_PROBABILITY)
    proves = bound.confidence >= confidence and bound.delta >= delta
    if bound.epsilon_lower > epsilon:
        return "violation" if proves and not bound.assumes_a_shape else "inconclusive"
    return "consistent" if proves and powerful and bound.attainable > epsilon else "inconclusive"


def alpha_of(number: int, *, total: float = FALSE_ALARMS) -> float:
    """What audit `number` (from 1) of a population may go wrong with: total · 6/(π² number²), rounded down.

    Σ 1/j² = π²/6, so all audits that there will ever be call a true promise false with probability at most `total`,
    by a union bound: whatever they look at, and whatever earlier ones made one look at next. The first may use 61 %.

    >>> [f"{alpha_of(number):.4f}" for number in (1, 2, 10)]
    ['0.0304', '0.0076', '0.0003']
    """
    number = whole("number", number, least=1, most=MAX_AUDITS)
    total = real("total", total, POSITIVE_FAILURE_PROBABILITY)
    return total * 6 / (math.pi * number) ** 2 * (1 - 1e-12)


def at_confidence(samples: int, confidence: float) -> int:
    """How many samples show at this confidence what so many show at that of a population's first audit, rounded up.

    Those of Clopper & Pearson, and of binomial tails, grow by no more than ln(2/α): a false positive rate of 0 in N is
    known up to ln(2/α)/N, and elsewhere the quantile of a normal law grows by its square root. An estimate: it says
    when nothing can be told, and no bound rests on it.
    """
    alpha = 1 - real("confidence", confidence, POSITIVE_FAILURE_PROBABILITY)
    return math.ceil(samples * max(1.0, math.log(2 / alpha) / math.log(2 / alpha_of(1))) - 1e-6)


def confidence_of(number: int, *, total: float = FALSE_ALARMS) -> float:
    """The confidence that audit `number` (from 1) of a population must have, rounded up."""
    return math.nextafter(1 - alpha_of(number, total=total), 1)
