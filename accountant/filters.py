"""The gate: a fully adaptive privacy filter over a datapoint's whole life.

People choose the next release after they have seen the last, so what composes releases must hold for charges that are
chosen adaptively. The weighted Rényi filter does (docs/accounting.md, T3 and T4). With orders Λ and weights w, Σw ≤ 1,
fixed at creation, a release is admitted if **some** order α still has

    Σρ(α) ≤ B(α) = ε − ln(1 − 1/α) + (ln(w(α) δ′) + ln α) / (α − 1),

and Σδ ≤ δ″. Then the whole life is (ε, δ′ + δ″)-DP. Proof: exp((α − 1)(loss − Σρ(α))) is a supermartingale (Feldman &
Zrnic 2021), so the paths on which order α has budget contribute at most w(α) δ′ to δ(ε), and the paths of all orders
together cover every life. Order ∞ has B = ε at weight 0, since a loss that is bounded by ε adds nothing to δ: a life of
pure releases may use exactly ε (Rogers, Roth, Ullman & Vadhan 2016).

Without the weights the rule is **not** valid; `tests/accountant/test_adaptive_adversaries.py` breaks it.

All comparisons are exact, on the integers of `accountant.units`: costs are rounded up, limits down.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from operator import add, le, sub
from typing import Final, Literal, TypeAlias, get_args

import numpy as np

from accountant.engines import rdp
from accountant.errors import InvalidInput
from accountant.events import Adjacency, Event, adjacency_of, event_of
from accountant.units import (
    FAILURE_PROBABILITY,
    RHO_UNITS_PER_NAT,
    SATURATED,
    Range,
    allowed_delta,
    allowed_rho,
    charged_delta,
    charged_rho,
    exact,
    log,
    nats_down,
    nats_up,
    real,
)

Preset: TypeAlias = Literal["mixed", "gaussian", "pure"]

ORDERS: Final[rdp.Orders] = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 128.0, 256.0)

_BUDGET_DELTA: Final = Range("0, or a number from 1e-30 to below 1", lambda value: value == 0 or 1e-30 <= value < 1)
_BUDGET_EPSILON: Final = Range("a number in (0, 1000]", lambda value: 0 < value <= 1000)
_ORDER: Final = Range("orders from 1.01 to 1024", lambda value: 1.01 <= value <= 1024)
_MAX_ORDERS: Final = 64
_GAUSSIAN_ORDERS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a release takes from a filter: units of ρ per order (∞ is last), and units of δ."""

    rho: tuple[int, ...]
    delta: int

    def __add__(self, other: Cost) -> Cost:
        _same_orders(self, other)
        return _saturated(tuple(map(add, self.rho, other.rho)), self.delta + other.delta)

    @classmethod
    def sum(cls, costs: Sequence[Cost]) -> Cost:
        """The sum of one or more, order by order: sums that saturate have no order of their own."""
        if len(costs) == 1:
            return costs[0]
        for cost in costs:
            _same_orders(costs[0], cost)
        return _saturated(tuple(map(sum, zip(*[cost.rho for cost in costs], strict=True))), sum(c.delta for c in costs))

    def __mul__(self, times: int) -> Cost:
        return Cost(
            rho=tuple(min(times * mine, SATURATED) for mine in self.rho), delta=min(times * self.delta, SATURATED)
        )


def _same_orders(one: Cost, other: Cost) -> None:
    if len(one.rho) != len(other.rho):
        raise ValueError(f"costs of {len(one.rho)} and of {len(other.rho)} orders")


def _saturated(rho: tuple[int, ...], delta: int) -> Cost:
    if max(rho, default=0) > SATURATED:
        rho = tuple([each if each < SATURATED else SATURATED for each in rho])  # noqa: FURB136 - a call each takes longer
    return Cost(rho=rho, delta=min(delta, SATURATED))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The three numbers on every page, in nats: meter readings of one filter, which need not add up.

    `spent` is the smallest ε under which this filter would admit what is committed; `held` is the rise of that reading
    when open holds are added; `available` is the largest single pure-DP ε that would still be admitted. The proved
    guarantee is the budget.
    """

    spent: float
    held: float
    available: float
    budget: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """How a total stands against the limits: the order that comes closest to admitting it, and by how much it fails.

    Negative amounts are room to spare. `order` is ∞ where the pure sum is what counts.
    """

    admitted: bool
    order: float
    over: float
    delta_over: float

    def __str__(self) -> str:
        order = "order ∞ (the sum of pure ε)" if math.isinf(self.order) else f"order {self.order:g}"
        if self.admitted:
            return f"{order} has {-self.over:.6g} nats to spare"
        reasons = []
        if math.isinf(self.over):
            reasons.append("no order has a finite cost")
        elif self.over > 0:
            reasons.append(f"even {order}, which comes closest, is over by {self.over:.6g} nats")
        if self.delta_over > 0:
            reasons.append(f"the approximate parts are over their share of δ by {self.delta_over:.3g}")
        return " and ".join(reasons)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A lifelong budget (ε, δ) with the orders and weights that were fixed when it was made.

    Make one with `Filter.of`; the constructor is for restoring stored values.
    """

    epsilon: float
    delta: float
    orders: rdp.Orders
    weights: tuple[Fraction, ...]
    delta_filter: Fraction  # δ′, for the conversion
    delta_parts: Fraction  # δ″, for approximate parts
    limits: Cost = field(init=False, repr=False, compare=False)
    nothing: Cost = field(init=False, repr=False, compare=False)  # the cost of a life without releases
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        real("epsilon", self.epsilon, _BUDGET_EPSILON)
        real("delta", self.delta, _BUDGET_DELTA)
        for order in self.orders:
            real("orders", order, _ORDER)
        if len(self.orders) > _MAX_ORDERS or list(self.orders) != sorted(set(self.orders)):
            raise InvalidInput("orders", self.orders, f"at most {_MAX_ORDERS} different orders, smallest first")
        if len(self.weights) != len(self.orders) or sum(self.weights) > 1 or any(w <= 0 for w in self.weights):
            raise InvalidInput("weights", self.weights, "a weight > 0 per order, with a sum of at most 1")
        if min(self.delta_filter, self.delta_parts) < 0 or self.delta_filter + self.delta_parts > exact(self.delta):
            raise InvalidInput("delta_filter", self.delta_filter, "shares >= 0 whose sum is at most delta")
        if self.orders and not self.delta_filter:
            raise InvalidInput("delta", self.delta, 'a number > 0, or the preset "pure" that needs none')
        object.__setattr__(self, "limits", self._limits())
        object.__setattr__(self, "nothing", Cost(rho=(0,) * len(self.limits.rho), delta=0))
        # Filters are looked up in caches at every decision, and fractions are slow to hash.
        parts = (self.epsilon, self.delta, self.orders, self.weights, self.delta_filter, self.delta_parts)
        object.__setattr__(self, "_hash", hash(parts))

    def __hash__(self) -> int:
        return self._hash

    @classmethod
    def of(cls, *, epsilon: float, delta: float, preset: Preset = "mixed", delta_parts: float | None = None) -> Filter:
        """A filter for the budget (ε, δ). `delta_parts` is the share for approximate parts, by default half of δ.

        `mixed` spreads its weight over all orders; `gaussian` puts it on the three orders that admit the most Gaussian
        releases; `pure` uses order ∞ alone, needs no δ, and leaves all of it to approximate parts.
        """
        epsilon = real("epsilon", epsilon, _BUDGET_EPSILON)
        total = exact(real("delta", delta, _BUDGET_DELTA))
        if preset not in get_args(Preset):
            raise InvalidInput("preset", preset, " or ".join(map(repr, get_args(Preset))))
        default = total if preset == "pure" else total / 2
        parts = default if delta_parts is None else exact(real("delta_parts", delta_parts, FAILURE_PROBABILITY))
        if parts > total or (parts == total > 0 and preset != "pure"):
            raise InvalidInput("delta_parts", delta_parts, f"below delta, {delta!r}, of which the filter needs a share")

        def with_orders(orders: rdp.Orders) -> Filter:
            return cls(
                epsilon=epsilon,
                delta=float(delta),
                orders=orders,
                weights=tuple(Fraction(1, len(orders)) for _ in orders),
                delta_filter=total - parts if orders else Fraction(0),
                delta_parts=parts,
            )

        match preset:
            case "mixed":
                return with_orders(ORDERS)
            case "pure":
                return with_orders(())
            case "gaussian":
                # One order alone has weight 1; three have 1/3 each. A Gaussian costs α per unit of variance.
                admits = {order: with_orders((order,)).limits.rho[0] / order for order in ORDERS}
                best = sorted(sorted(ORDERS, key=lambda order: -admits[order])[:_GAUSSIAN_ORDERS])
                return with_orders(tuple(best))

    def _limits(self) -> Cost:
        finite = []
        for order, weight in zip(self.orders, self.weights, strict=True):
            log_share = log(weight * self.delta_filter)
            terms = (self.epsilon, -math.log1p(-1 / order), (log_share + math.log(order)) / (order - 1))
            # Each term is right to a few parts in 1e16; the margin takes 1e-12 of their sizes off.
            margin = 1e-12 * sum(map(abs, terms))
            finite.append(allowed_rho(Fraction(math.fsum(terms) - margin)))
        return Cost(rho=(*finite, allowed_rho(exact(self.epsilon))), delta=allowed_delta(self.delta_parts))

    def price(self, event: Event, adjacency: Adjacency) -> Cost:
        """What one sealed release takes from this filter, rounded up."""
        return _price(event_of(event), self.orders, adjacency_of(adjacency))

    def cost(self, *, rho: Sequence[float], delta: float = 0.0) -> Cost:
        """A cost from a known curve: ρ per order and the pure ε last (∞ where there is none), rounded up."""
        if len(rho) != len(self.limits.rho):
            raise InvalidInput("rho", len(rho), f"{len(self.limits.rho)} values, one per order and one for order ∞")
        if not all(value >= 0 for value in rho):
            raise InvalidInput("rho", list(rho), "numbers >= 0")
        delta = real("delta", delta, FAILURE_PROBABILITY)
        return Cost(rho=tuple(charged_rho(float(value)) for value in rho), delta=charged_delta(exact(delta)))

    def admits(self, total: Cost) -> bool:
        """Whether a life may contain charges of this total: committed, held and proposed together."""
        _same_orders(total, self.limits)
        return total.delta <= self.limits.delta and any(map(le, total.rho, self.limits.rho))

    def admitted(self, totals: Iterable[Cost], cost: Cost) -> list[Cost]:
        """Those of the totals to which this cost may be added.

        No limit is saturated, so `total + cost` is within a limit exactly if `total` is within what the cost leaves.
        """
        _same_orders(cost, self.limits)
        room, delta = tuple(map(sub, self.limits.rho, cost.rho)), self.limits.delta - cost.delta
        return [total for total in totals if total.delta <= delta and any(map(le, total.rho, room))]

    def how_often(self, cost: Cost, *, after: Cost) -> int:
        """How many releases of this cost would be admitted one after the other; `SATURATED` if they cost nothing."""

        def fit(used: int, each: int, limit: int) -> int:
            return 0 if used > limit else (limit - used) // each if each else SATURATED

        orders = zip(after.rho, cost.rho, self.limits.rho, strict=True)
        return min(fit(after.delta, cost.delta, self.limits.delta), max(fit(*order) for order in orders))

    def explain(self, total: Cost) -> Explanation:
        """Which order binds and by how much."""
        over, order = min(zip(self._excess(total), (*self.orders, math.inf), strict=True))
        return Explanation(
            admitted=self.admits(total),
            order=order,
            over=nats_up(over),
            delta_over=float(Fraction(total.delta - self.limits.delta, charged_delta(Fraction(1)))),
        )

    def meter(self, total: Cost) -> float:
        """The smallest ε under which this filter, with the same orders, weights and δ, would admit `total`."""
        return nats_up(self._meter_units(total))

    def highest(self, totals: Iterable[Cost]) -> float:
        """The reading of the worst-off; 0 if there is nobody."""
        return nats_up(max(map(self._meter_units, totals), default=0))

    def _meter_units(self, total: Cost) -> int:
        if total == self.nothing:
            return 0
        if total.delta > self.limits.delta:
            return SATURATED
        # Every limit moves with ε one to one, so the excess at the best order is what ε lacks.
        least: int = min(map(sub, total.rho, self.limits.rho))
        if least > SATURATED // 2:  # perhaps at an order that is saturated, and then it is no number
            least = min(self._excess(total))
        return min(max(0, self.limits.rho[-1] + least), SATURATED)

    def _excess(self, total: Cost) -> list[int]:
        """How far each order is over its limit."""
        return [
            SATURATED if used == SATURATED else used - limit
            for used, limit in zip(total.rho, self.limits.rho, strict=True)
        ]

    def reading(self, *, committed: Cost, held: Cost) -> Reading:
        """Spent, held and available of a datapoint with these sums."""
        spent, with_holds = self._meter_units(committed), self._meter_units(committed + held)
        is_lost = with_holds == SATURATED and held != self.nothing  # between two infinities there is no rise to tell
        return Reading(
            spent=nats_up(spent),
            held=math.inf if is_lost else nats_up(with_holds - spent),
            available=nats_down(self.largest_pure(committed + held)),
            budget=self.epsilon,
        )

    def largest_pure(self, total: Cost, *, releases: int = 1) -> int:
        """Units of the largest pure-DP ε that may still be released, `releases` times."""

        _same_orders(total, self.limits)
        if total.delta > self.limits.delta:
            return 0
        room = tuple(map(sub, self.limits.rho, total.rho))

        def left(units: int) -> int:  # at the best order; not below 0 exactly if so much may be released
            best: int = max(map(sub, room, [releases * each for each in self._pure(units).rho]))
            return best

        low, high = 0, self.limits.rho[-1] + 1
        spare, lack = left(low), left(high)
        if spare < 0:
            return 0
        while lack >= 0:
            low, high, spare, lack = high, 2 * high, lack, left(2 * high)
        # What is left is smooth, so the chord between the ends meets 0 near the answer; every third step halves.
        step = 0
        while high - low > 1:
            step += 1
            chord = low + (high - low) * spare // (spare - lack) if step % 3 else (low + high) // 2
            middle = min(max(chord, low + 1), high - 1)
            rest = left(middle)
            if rest >= 0:
                low, spare, lack = middle, rest, -(-lack // 2)
            else:
                high, lack, spare = middle, rest, spare // 2
            lack = min(lack, -1)
        return low

    def admits_pure(self, total: Cost, units: int, *, releases: int = 1) -> bool:
        """Whether a pure-DP ε of so many units may still be released, `releases` times."""
        return self.admits(total + self._pure(units) * releases)

    def _pure(self, units: int) -> Cost:
        return _rounded_up(rdp.randomised_response(np.array(self.orders), Fraction(units, RHO_UNITS_PER_NAT)))


@lru_cache(maxsize=4096)
def _price(event: Event, orders: rdp.Orders, adjacency: Adjacency) -> Cost:
    return _rounded_up(rdp.curve(event, orders, adjacency))


def _rounded_up(curve: rdp.Curve) -> Cost:
    pure = SATURATED if curve.pure is None else charged_rho(curve.pure)
    return Cost(rho=(*(charged_rho(float(value)) for value in curve.rho), pure), delta=charged_delta(curve.delta))
