"""What a sealed release is charged: by its Rényi curve, or collapsed to one (ε, δ), whichever leaves more.

The parameters of a sealed release are fixed before its first output, so it may be composed tightly inside. What a
filter adds up is one step per release, and for that step there are two proofs:

- the **curve** of the composed event, with its approximate parts (T4 of docs/accounting.md);
- the **collapse**: an engine proves the composed event to be (ε, δ)-DP, and every such release is a post-processing of
  "with probability δ tell all, else answer by randomised response of ε", the three-point loss of Kairouz, Oh &
  Viswanath 2015. So T4 holds with the curve of randomised response and an approximate part of δ, which is the price of
  `ApproxDP(epsilon=ε, delta=δ)`.

A collapse is tight where a curve is loose, for few releases at a small ε, and pays with a share of δ″; over many
releases curves add up better, since what is collapsed has lost its shape. Which one is charged depends on
public parameters and earlier charges alone, so the choice may be made anew at every hold.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

from accountant.engines import Account, prove
from accountant.errors import InvalidInput
from accountant.events import (
    MAX_TIMES,
    Adjacency,
    ApproxDP,
    Event,
    L2Laplace,
    Laplace,
    PartitionSelection,
    PureDP,
    adjacency_of,
    counted,
    event_of,
)
from accountant.filters import Cost, Filter
from accountant.guarantees import rounded_up
from accountant.units import (
    NOT_NEGATIVE,
    POSITIVE_FAILURE_PROBABILITY,
    RHO_UNITS_PER_NAT,
    allowed_delta,
    delta_down,
    exact,
    real,
    whole,
)

SHARES: Final = 32  # a collapse takes this part of δ″ beside the approximate part that the event has anyway

# Another machine may compute ε with other last digits (a Fourier transform sums in the order that its processor
# likes), and must still find that a log charged enough. So what is charged is a little above the proved ε, far more
# than those digits and far less than anyone would miss.
_RELATIVE_SPARE: Final = 1e-8
_SPARE: Final = 1 / RHO_UNITS_PER_NAT
_DIGITS: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Collapsed:
    """A whole release as one promise: it is (ε, δ)-DP, as the engine of this version proved. Rounded up."""

    epsilon: float
    delta: float
    engine: str
    version: str

    def __post_init__(self) -> None:
        real("epsilon", self.epsilon, NOT_NEGATIVE)
        real("delta", self.delta, POSITIVE_FAILURE_PROBABILITY)
        for argument, value in (("engine", self.engine), ("version", self.version)):
            if not isinstance(value, str) or not value:
                raise InvalidInput(argument, value, "a name")

    def __str__(self) -> str:
        return f"(ε, δ) = ({self.epsilon}, {self.delta}) by {self.engine} {self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a sealed release takes from a filter, and how that was found: collapsed, or else by its curve."""

    cost: Cost
    collapsed: Collapsed | None = None

    @property
    def declares(self) -> float:
        """The `delta` to propose the release with, where a plan counts on this price; 0 for the curve."""
        return 0.0 if self.collapsed is None else self.collapsed.delta

    def __str__(self) -> str:
        return f"charged as {self.collapsed}" if self.collapsed else "charged by its Rényi curve"


def by_curve(budget: Filter, event: Event, adjacency: Adjacency) -> Price:
    """The price of the composed event as its Rényi curve."""
    return Price(cost=budget.price(event, adjacency))


def by_collapse(budget: Filter, collapsed: Collapsed, adjacency: Adjacency) -> Price:
    """The price of any release that is (ε, δ)-DP: randomised response of ε, and δ."""
    event = ApproxDP(epsilon=collapsed.epsilon, delta=collapsed.delta)
    return Price(cost=budget.price(event, adjacency), collapsed=collapsed)


def collapse(event: Event, *, delta: float, adjacency: Adjacency) -> Collapsed | None:
    """The event as one (ε, δ) at this δ, rounded up to seven digits; None if no ε is proved.

    >>> from accountant.events import Gaussian
    >>> print(collapse(Gaussian(noise_multiplier=3.8), delta=1e-5, adjacency="add_remove"))
    (ε, δ) = (0.979975..., 1e-05) by closed_form 1
    """
    answer = _proved(event_of(event), delta, adjacency_of(adjacency))
    epsilon = answer.upper * (1 + _RELATIVE_SPARE) + _SPARE
    if not math.isfinite(epsilon):
        return None
    shown = float(rounded_up(epsilon, digits=_DIGITS))
    return Collapsed(epsilon=shown, delta=answer.delta, engine=answer.engine, version=answer.version)


def proves(event: Event, collapsed: Collapsed, adjacency: Adjacency) -> bool:
    """Whether the engines of today prove the event to be (ε, δ)-DP as it was charged."""
    answer = prove(event, delta=collapsed.delta, target=collapsed.epsilon, adjacency=adjacency)
    return answer.upper <= collapsed.epsilon


@lru_cache(maxsize=4096)  # a kind of release that is proposed again is not composed again
def _proved(event: Event, delta: float, adjacency: Adjacency) -> Account:
    return prove(event, delta=delta, adjacency=adjacency)


def choose(
    budget: Filter,
    event: Event,
    adjacency: Adjacency,
    standings: Mapping[Cost, int],
    *,
    delta: float | None = None,
) -> Price:
    """The price of a release for datapoints that stand at these totals (total → number of datapoints).

    The price that is admitted for more datapoints. If both are for as many, the worst-off of those whom both admit
    decides: the price at which it could take part in more releases like this one; if that is equal, the one that leaves
    it the larger `available`, where a collapse must save at least the share of what the curve takes that it takes of
    δ″; if that is equal, the curve. `delta` is the δ of the collapse if it was declared; 0 leaves only the curve.

    So whatever is chosen, as many releases of a kind are admitted one after the other as at either price alone: a step
    at the price that admits n of them leaves n − 1.
    """
    curve = by_curve(budget, event, adjacency)
    share = _share(budget, event, curve, standings, delta)
    if not share:
        return curve
    kept = budget.admitted(standings, curve.cost)
    if len(kept) == len(standings) and _outlasts(budget, curve, _worst_off(budget, kept), share):
        return curve  # and nothing is composed
    collapsed = _collapsed(budget, event, adjacency, share)
    if collapsed is None:
        return curve
    kept_collapsed = budget.admitted(standings, collapsed.cost)
    more = sum(standings[total] for total in kept_collapsed) - sum(standings[total] for total in kept)
    if more:
        return collapsed if more > 0 else curve
    both = set(kept).intersection(kept_collapsed)
    worst = _worst_off(budget, both or standings)
    if not both:  # a denial says how far off the release is by the price that comes closest
        return min(curve, collapsed, key=lambda price: budget.meter(worst + price.cost))
    more = budget.how_often(collapsed.cost, after=worst) - budget.how_often(curve.cost, after=worst)
    if more:
        return collapsed if more > 0 else curve
    return collapsed if _is_worth_its_delta(budget, worst, curve.cost, collapsed.cost) else curve


def admits(
    budget: Filter, event: Event, adjacency: Adjacency, standings: Iterable[Cost], *, delta: float | None = None
) -> bool:
    """Whether the price that `choose` finds is admitted for all; nothing is composed where the curve will do."""
    curve, totals = by_curve(budget, event, adjacency), list(standings)
    if len(budget.admitted(totals, curve.cost)) == len(totals):
        return True
    collapsed = _collapsed(budget, event, adjacency, _share(budget, event, curve, totals, delta))
    return collapsed is not None and len(budget.admitted(totals, collapsed.cost)) == len(totals)


def planned(budget: Filter, event: Event, adjacency: Adjacency, used: Cost, *, releases: int = 1) -> Price | None:
    """The price at which so many releases of the event are all admitted on top of what is `used`; None if at none.

    `choose` keeps to such a plan by itself, as long as each release gets the δ of the plan; beyond 32 collapsed ones
    that is less than the usual share, and is to be declared: `delta=price.declares`.
    """
    releases = whole("releases", releases, least=1, most=MAX_TIMES)
    curve = by_curve(budget, event, adjacency)
    if budget.how_often(curve.cost, after=used) >= releases:
        return curve
    share = min(_share(budget, event, curve, [used], None), (budget.limits.delta - used.delta) // releases)
    collapsed = _collapsed(budget, event, adjacency, share if share > curve.cost.delta else 0)
    fits = collapsed is not None and budget.how_often(collapsed.cost, after=used) >= releases
    return collapsed if fits else None


def _share(budget: Filter, event: Event, curve: Price, totals: Iterable[Cost], declared: float | None) -> int:
    """Units of δ for a collapse: as declared, or a part of δ″ above the event's own; 0 if there is none to spend.

    At most what remains for whoever has least, apart from those who have too little for any collapse.
    """
    if _is_bounded_once(event):
        return 0
    own, limit = curve.cost.delta, budget.limits.delta
    room = min((limit - total.delta for total in totals if limit - total.delta > own), default=0)
    units = min(room, own + limit // SHARES if declared is None else allowed_delta(exact(declared)))
    return units if units > own else 0


def _outlasts(budget: Filter, curve: Price, worst: Cost, share: int) -> bool:
    """Whether more releases fit at the curve's price than there are shares of δ left for collapses."""
    return budget.how_often(curve.cost, after=worst) > (budget.limits.delta - worst.delta) // share


def _collapsed(budget: Filter, event: Event, adjacency: Adjacency, share: int) -> Price | None:
    """The price of the event as one (ε, δ), at so many units of δ."""
    if not share:
        return None
    collapsed = collapse(event, delta=delta_down(share), adjacency=adjacency)
    return None if collapsed is None else by_collapse(budget, collapsed, adjacency)


def _worst_off(budget: Filter, totals: Collection[Cost]) -> Cost:
    if len(totals) == 1:
        return next(iter(totals))
    return max(totals, key=lambda total: (budget.meter(total), total.delta, total.rho))


def _is_bounded_once(event: Event) -> bool:
    """Nothing, or one bounded loss: its curve is randomised response already, and δ would buy about δ of its ε."""
    match list(counted(event).items()):
        case [] | [(PureDP() | ApproxDP() | Laplace() | L2Laplace() | PartitionSelection(), 1)]:
            return True
    return False


def _is_worth_its_delta(budget: Filter, total: Cost, curve: Cost, collapsed: Cost) -> bool:
    """Whether the collapse saves at least the share of `available` that it takes of δ″, and something at all.

    Else two steps of ε = 0.1 in one release would be charged as 0.1999997, and after thirty-two of those no δ would be
    left for a release that needs it.
    """
    before, after = _available(budget, total), _available(budget, total + curve)
    share = Fraction(collapsed.delta - curve.delta, budget.limits.delta)
    least = max(after + 1, math.ceil(after + share * (before - after)))
    return budget.admits_pure(total + collapsed, least)


@lru_cache(maxsize=1024)  # what this release leaves is what the next one finds
def _available(budget: Filter, total: Cost) -> int:
    return budget.largest_pure(total)
