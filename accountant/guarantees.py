"""What is promised, and what that means to a person.

A guarantee is an **upper** bound: whatever an attacker does with everything that was released, knowing all the other
data, stays below the odds given here. They follow from (ε, δ) alone (Kairouz, Oh & Viswanath 2015, Theorem 2.1), so
they are the best that any attacker could reach, not the success of a particular attack.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Final, Literal, TypeAlias, get_args

from accountant.errors import InvalidInput
from accountant.events import Adjacency, adjacency_of
from accountant.units import FAILURE_PROBABILITY, PROBABILITY, Range, real

Unit: TypeAlias = Literal["record", "user"]
ProofStatus: TypeAlias = Literal["proved", "claimed", "refuted"]

#: From what may be relied on to what may not.
_STATUSES: Final[tuple[ProofStatus, ...]] = ("proved", "claimed", "refuted")
_EPSILON: Final = Range("a number >= 0, or infinity", lambda value: value >= 0)
#: An attacker who may be right this often is told practically everything.
HOLLOW: Final = 0.9995
_FALSE_POSITIVE_RATES: Final = (0.001, 0.1)  # beside 1 in 100, of which most is said


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """(ε, δ)-differential privacy of one `unit` under an adjacency, with the status of its proof."""

    epsilon: float
    delta: float
    unit: Unit
    adjacency: Adjacency
    proof_status: ProofStatus

    def __post_init__(self) -> None:
        if self.epsilon != math.inf:
            real("epsilon", self.epsilon, _EPSILON)
        real("delta", self.delta, FAILURE_PROBABILITY)
        if self.unit not in get_args(Unit):
            raise InvalidInput("unit", self.unit, " or ".join(map(repr, get_args(Unit))))
        adjacency_of(self.adjacency)
        if self.proof_status not in _STATUSES:
            raise InvalidInput("proof_status", self.proof_status, " or ".join(map(repr, _STATUSES)))

    def implies(self, other: Guarantee) -> bool:
        """Whether whoever keeps this promise also keeps `other`; promises of different things never do."""
        return (
            (self.unit, self.adjacency) == (other.unit, other.adjacency)
            and self.epsilon <= other.epsilon
            and self.delta <= other.delta
            and _STATUSES.index(self.proof_status) <= _STATUSES.index(other.proof_status)
        )

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """The largest share of the guilty that an attacker can name who names at most this share of the innocent.

        min(1, e^ε a + δ, 1 − e^−ε (1 − δ − a)) at the false positive rate a, rounded up.
        """
        rate = real("false_positive_rate", false_positive_rate, PROBABILITY)
        if self.epsilon == math.inf:
            return 1.0
        grown = math.exp(min(self.epsilon + math.log(rate), 1.0)) if rate else 0.0  # anything above 1 will do
        bound = min(1.0, grown + self.delta, 1 - (1 - self.delta - rate) * math.exp(-self.epsilon))
        return min(1.0, max(rate, bound * (1 + 1e-12)))

    def posterior(self, prior: float, *, false_positive_rate: float) -> float:
        """How sure one can be of a positive answer of such an attacker, who before it gave it the chance `prior`.

        The odds grow at most by the ratio of true to false positives; for δ = 0 that is at most e^ε.
        """
        prior = real("prior", prior, PROBABILITY)
        rate = real("false_positive_rate", false_positive_rate, PROBABILITY)
        found = prior * self.true_positive_rate(rate)
        missed = (1 - prior) * rate
        return found / (found + missed) if found + missed else prior

    def best_guess(self) -> float:
        """How often an attacker can be right about a fair coin: (e^ε + δ) / (e^ε + 1), rounded up."""
        shrink = math.exp(-self.epsilon)
        return min(1.0, (1 + self.delta * shrink) / (1 + shrink) * (1 + 1e-12))

    @property
    def is_hollow(self) -> bool:
        """Whether it promises practically nothing: an attacker may be right 99.95 % of the time, or more often."""
        return self.best_guess() >= HOLLOW

    def __str__(self) -> str:
        """The promise in one line, as certificates spell it for ever; `in_words` is for people.

        >>> print(Guarantee(epsilon=1.30001, delta=1e-6, unit="user", adjacency="add_remove", proof_status="proved"))
        ε ≤ 1.31 (δ = 1e-06, per user, add_remove, proved, upper bound)
        >>> print(Guarantee(epsilon=1.30001, delta=1e-6, unit="user", adjacency="add_remove", proof_status="refuted"))
        ε = 1.31 (δ = 1e-06, per user, add_remove, refuted, no bound)
        """
        epsilon = "∞" if self.epsilon == math.inf else str(rounded_up(self.epsilon, digits=3))
        return self._line(epsilon, self.adjacency)

    def in_words(self) -> str:
        """The promise in one line, for people.

        >>> promise = Guarantee(epsilon=2, delta=1e-6, unit="user", adjacency="add_remove", proof_status="proved")
        >>> print(promise.in_words())
        ε ≤ 2 (δ = 1e-06, per user, with or without one user, proved, upper bound)
        """
        one = f"one {self.unit}"
        adjacent = f"with or without {one}" if self.adjacency == "add_remove" else f"with {one} replaced"
        epsilon = "∞" if self.epsilon == math.inf else f"{rounded_up(self.epsilon, digits=3).normalize():f}"
        return self._line(epsilon, adjacent)

    def _line(self, epsilon: str, adjacent: str) -> str:
        delta = f"{float(rounded_up(self.delta, digits=6)):g}"
        sign, bound = ("≤", "upper bound") if self.proof_status == "proved" else ("=", "no bound")
        return f"ε {sign} {epsilon} (δ = {delta}, per {self.unit}, {adjacent}, {self.proof_status}, {bound})"

    def odds(self) -> str:
        """What the promise means, in one sentence.

        >>> print(Guarantee(epsilon=1, delta=1e-6, unit="user", adjacency="add_remove", proof_status="proved").odds())
        An attacker ... can tell whether one user was in the data at most 73.2 % of the time; a coin is right 50 %.
        >>> print(Guarantee(epsilon=9, delta=0, unit="user", adjacency="add_remove", proof_status="proved").odds())
        An attacker ... at most 99.988 % of the time; a coin is right 50 %. That promises practically nothing.
        """
        if self.proof_status != "proved" or self.epsilon == math.inf:
            return self.meaning()
        said = (
            "An attacker who has seen every release and knows everything about everyone else can tell whether one "
            f"{self.unit} {self._secret} at most {_percent(self.best_guess())} of the time; a coin is right 50 %."
        )
        return f"{said} That promises practically nothing." if self.is_hollow else said

    @property
    def _secret(self) -> str:
        return "was in the data" if self.adjacency == "add_remove" else "had one value and not another"

    def meaning(self) -> str:
        """What the promise means as attack odds, in sentences that an officer can read."""
        secret = self._secret
        if self.proof_status != "proved":
            return f"This is not a proved promise: its status is {self.proof_status}. Do not rely on {self.in_words()}."
        if self.epsilon == math.inf:
            return f"This promises nothing: what was released may show for certain whether a {self.unit} {secret}."
        others, those = (
            ("were not in the data", "were")
            if self.adjacency == "add_remove"
            else ("had the other value", "had the one")
        )
        further = "".join(
            f"; for 1 in {round(1 / rate):,}, {_percent(self.true_positive_rate(rate))}"
            for rate in _FALSE_POSITIVE_RATES
        )
        return (
            "Take an attacker who has seen every release and knows everything about everyone else. Asked whether one "
            f"{self.unit} {secret}, the attacker is right at most {_percent(self.best_guess())} of the time (a coin: "
            f"50 %). An attacker who wrongly says yes for 1 in 100 of those who {others} finds at most "
            f"{_percent(self.true_positive_rate(0.01))} of those who {those}{further}. If the attacker wrongly says "
            "yes for 1 in 100, a yes raises a suspicion of 1 in 100 to at most "
            f"{_percent(self.posterior(0.01, false_positive_rate=0.01))}."
        )


def rounded_up(value: float, *, digits: int) -> Decimal:
    """`value` with this many significant digits, never below it: what is promised rounds up."""
    return Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(float(value)))


def rounded_down(value: float, *, digits: int) -> Decimal:
    """`value` with this many significant digits, never above it: what is measured rounds down."""
    return Context(prec=digits, rounding=ROUND_FLOOR).create_decimal(repr(float(value)))


def _percent(share: float) -> str:
    if share >= 1:
        return "100 %"
    # Two digits of what is missing to certainty, so that 99.99 % never reads as 100 %.
    digits = 3 if share < 0.99 else 1 + math.ceil(-math.log10(1 - share))
    shown = rounded_up(100 * share, digits=digits)
    return "100 %" if shown >= 100 else f"{shown:f} %"
