"""What a datapoint pays over its life under each way to read the noise that the published algorithms leave open.

"Continual and Sliding Window Release for Private Empirical Risk Minimization" claims ε for a whole life, but says the
noise of only some blocks, and writes a penalty λ‖w‖² that it then calls λ-strongly convex. Each reading here fills the
gap in one way, as prices in multiples of the claimed ε; a total above 1 refutes the claim under that reading. Nothing
here is for use: `accountant.streams.allocations` gives noise that keeps the promise.

Prices are for the replace-one sensitivity 2L/(λ n) of the paper, with λ the modulus of convexity. If λ‖w‖² is meant
literally the modulus is 2λ, and every price is halved (`modulus_over_lambda=2`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from accountant.errors import InvalidInput
from accountant.streams.allocations import Geometric, Prices
from accountant.streams.schedules import Life, Model, Schedule, lives
from accountant.units import whole

_HALVING: Final = Fraction(1, 2)
_SAME: Final = Fraction(1)
_THIRD: Final = Fraction(1, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One way to fill the gap: in words, and as prices in multiples of the claimed ε.

    `reach_back` is 1 where ranges include both ends, so that a block takes in one datapoint more.
    """

    words: str
    prices: Prices
    reach_back: int = 0

    def total(self, life: Mapping[Model, int], *, modulus_over_lambda: int = 1) -> Fraction:
        """What a life costs, in multiples of the claimed ε."""
        modulus = whole("modulus_over_lambda", modulus_over_lambda, least=1, most=2)
        return sum((times * self.prices.of(model) for model, times in life.items()), Fraction()) / modulus


def _reading(
    words: str, base: Fraction, base_ratio: Fraction, update: Fraction, update_ratio: Fraction, *, reach_back: int = 0
) -> Reading:
    prices = Prices(base=Geometric(first=base, ratio=base_ratio), update=Geometric(first=update, ratio=update_ratio))
    return Reading(words=words, prices=prices, reach_back=reach_back)


#: Algorithm 5. The base of k levels has the scale 6L/(λ ε n) of line 4, and so the price 1/3, unless said otherwise.
SLIDING_WINDOW: Final[Mapping[str, Reading]] = MappingProxyType(
    {
        "R1": _reading("6L/(λ ε n) at every level, n its own size", _THIRD, _SAME, _THIRD, _SAME),
        "R2": _reading("6L/(λ ε w0) at every level", _THIRD, _HALVING, _THIRD, _HALVING),
        "R3": _reading("base as line 4, updates 4L/(λ ε w0) as Algorithm 3", _THIRD, _SAME, _HALVING, _HALVING),
        "R4": _reading("base as line 4, updates 4L/(λ ε n) with their own size", _THIRD, _SAME, _HALVING, _SAME),
        "R5": _reading("base as line 4, updates 6L/(λ ε w0)", _THIRD, _SAME, _THIRD, _HALVING),
    }
)

#: Algorithm 4, with base scale 4L/(λ ε B).
CONTINUAL_RELEASE: Final[Mapping[str, Reading]] = MappingProxyType(
    {
        "half_open": _reading(
            "half-open blocks, averages over the block, updates 4L/(λ ε b0)", _HALVING, _HALVING, _HALVING, _HALVING
        ),
        "own_size": _reading(
            "updates with noise for their own size 4L/(λ ε n), or sums divided by b0 whatever the block",
            _HALVING,
            _HALVING,
            _HALVING,
            _SAME,
        ),
        "inclusive": _reading(
            "blocks that include both ends: the last datapoint of a base is in its updates too",
            _HALVING,
            _HALVING,
            _HALVING,
            _HALVING,
            reach_back=1,
        ),
    }
)

#: Algorithm 2, with scale 4L/(λ ε B) at every level.
MULTI_RESOLUTION: Final = _reading("4L/(λ ε B) at every level", _HALVING, _HALVING, _HALVING, _HALVING)


def worst_off(schedule: Schedule, reading: Reading, *, steps: int) -> tuple[Life, Fraction]:
    """The datapoints that pay most in the first `steps` steps, and what they pay in multiples of the claimed ε."""
    found = lives(schedule.steps(steps), reach_back=reading.reach_back)
    if not found:
        raise InvalidInput("steps", steps, "at least one step")
    worst = max(found, key=lambda life: reading.total(life.models))
    return worst, reading.total(worst.models)


def personalised_price(*, pane: int, slots: int) -> Fraction:
    """What Algorithm 3 costs, in multiples of its ε, for a block of `slots` datapoints and noise 4L/(λ ε b0).

    Half of ε if the block is one pane, less if it is larger: provided that the loss is averaged over the block. Divided
    by b0 instead, as printed, it costs ε/2 whatever the block's size.
    """
    pane = whole("pane", pane, least=1, most=2**32)
    return Fraction(pane, 2 * whole("slots", slots, least=1, most=2**64))
