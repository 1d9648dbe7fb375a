"""Noise per model such that the worst-off datapoint of a schedule pays exactly the budget, over its whole life.

Every trained block is a release of its own: an average over n slots of losses that are L-Lipschitz, plus a penalty of
strong convexity m. One record contributes at most C = L/(m n) to its minimiser (`record_contribution`). Events state
noise relative to that C. Under `add_remove` C is the sensitivity; under `replace_one` it is 2C, so the same budget
takes twice the noise. (The paper's 2L/(λ n) is the replace-one figure.)

Pure noise must have density ∝ exp(−‖v‖₂/b): the sensitivity is one of the L2 norm, and the paper's Laplace noise on
each coordinate would cost √d times as much. Costs of pure noise add up as ε, those of Gaussian noise as μ² (Dong, Roth
& Su 2022, Corollary 3.3); both are kept as exact fractions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Final, Literal, Protocol, TypeAlias

from accountant.errors import InvalidInput, Unattainable
from accountant.events import Adjacency, Event, Gaussian, L2Laplace, adjacency_of
from accountant.streams.schedules import MAX_LEVELS, ContinualRelease, Kind, Model, MultiResolution, Schedule
from accountant.units import POSITIVE, RHO_UNITS_PER_NAT, Range, allowed_rho, exact, real, whole

Noise: TypeAlias = Literal["l2_laplace", "gaussian"]
Rule: TypeAlias = Literal["constant_noise", "equal_shares"]

MAX_SLOTS: Final = 2**64
_BUDGET: Final = Range("a number from 1e-9 to 1e9", lambda value: 1e-9 <= value <= 1e9)
#: What doubling a block does to the price of entering it while the noise stays: ε halves, μ² is quartered.
_RATIO: Final[Mapping[Noise, Fraction]] = MappingProxyType({"l2_laplace": Fraction(1, 2), "gaussian": Fraction(1, 4)})


class Pricing(Protocol):
    """What a datapoint pays for entering a model."""

    def of(self, model: Model) -> Fraction:
        """The price of one model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometric:
    """A price that changes by the same factor from each level to the next."""

    first: Fraction
    ratio: Fraction

    def at(self, level: int) -> Fraction:
        """The price of a level."""
        return self.first * self.ratio**level

    @property
    def total(self) -> Fraction | None:
        """The price of all levels together; None if there is none."""
        return self.first / (1 - self.ratio) if self.ratio < 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """A geometric price for bases and one for updates."""

    base: Geometric
    update: Geometric

    def of(self, model: Model) -> Fraction:
        """The price of one model."""
        return (self.base if model.kind == "base" else self.update).at(model.level)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Noise for every model of a schedule. The longest life costs `budget`: exactly, or in the limit if it never ends.

    Budget and shares are ε for pure noise and μ² for Gaussian noise.
    """

    schedule: Schedule
    noise: Noise
    adjacency: Adjacency
    budget: Fraction
    shares: Mapping[Model, Fraction]

    def of(self, model: Model) -> Fraction:
        """What a datapoint pays for entering a model."""
        if model not in self.shares:
            raise Unattainable(f"the budget leaves nothing for {model.kind} blocks of level {model.level}")
        return self.shares[model]

    def event(self, model: Model) -> Event:
        """The noise of one model, relative to one record's contribution C; its parameter is rounded up."""
        share, shift = self.of(model), 1 if self.adjacency == "add_remove" else 2
        if self.noise == "l2_laplace":
            return L2Laplace(scale=_least_float(shift / share, lambda scale: scale * share >= shift))
        least = Fraction(shift / math.sqrt(share))
        return Gaussian(noise_multiplier=_least_float(least, lambda noise: noise**2 * share >= shift**2))


def pure_noise(
    schedule: Schedule,
    *,
    epsilon: float,
    adjacency: Adjacency,
    rule: Rule = "constant_noise",
    weights: Sequence[float] | None = None,
) -> Allocation:
    """L2-Laplace noise whose ε add up to `epsilon` over the longest life.

    Shares are whole units of the ledger (10⁻¹² nats), so that the ledger's rounding of each release never makes it
    refuse the last one; what an ε has beyond twelve decimals is left unspent.

    `weights` are the relative shares of the levels from 0 on; for continual release two, that of all bases together and
    that of all updates together. Without them the rule decides: the same noise at every level, or the same share.

    >>> from accountant.streams.schedules import SlidingWindow
    >>> window = SlidingWindow(k=3, w0=1024)
    >>> [str(pure_noise(window, epsilon=1.0, adjacency="add_remove", weights=(2, 1, 1)).of(m)) for m in window.models]
    ['1/2', '1/4', '1/4']
    """
    units = allowed_rho(exact(real("epsilon", epsilon, _BUDGET)))
    fractions = _fractions(schedule, noise="l2_laplace", rule=rule, weights=weights)
    handed = {model: math.floor(units * fraction) for model, fraction in fractions.items()}
    if schedule.models is not None:
        if not all(handed.values()):
            raise Unattainable(f"ε = {epsilon:g} is too little to share among {len(handed)} levels")
        handed[schedule.models[0]] += units - sum(handed.values())  # what rounding down left over
    shares = {model: Fraction(number, RHO_UNITS_PER_NAT) for model, number in handed.items() if number}
    return Allocation(
        schedule=schedule,
        noise="l2_laplace",
        adjacency=adjacency_of(adjacency),
        budget=Fraction(units, RHO_UNITS_PER_NAT),
        shares=MappingProxyType(shares),
    )


def gaussian_noise(
    schedule: Schedule,
    *,
    mu: float,
    adjacency: Adjacency,
    rule: Rule = "constant_noise",
    weights: Sequence[float] | None = None,
) -> Allocation:
    """Gaussian noise such that the longest life is μ-GDP: the squares of its μ add up to `mu`².

    `weights` and equal shares are of μ². A single Gaussian release of noise multiplier z has μ = 1/z under `add_remove`
    and 2/z under `replace_one`.
    """
    budget = exact(real("mu", mu, _BUDGET)) ** 2
    fractions = _fractions(schedule, noise="gaussian", rule=rule, weights=weights)
    return Allocation(
        schedule=schedule,
        noise="gaussian",
        adjacency=adjacency_of(adjacency),
        budget=budget,
        shares=MappingProxyType({model: budget * fraction for model, fraction in fractions.items()}),
    )


def record_contribution(*, lipschitz: float, modulus: float, slots: int) -> float:
    """C = L/(m n): how far one record moves the minimiser of an average over `slots` slots with an m-convex penalty.

    `lipschitz` bounds the gradient of the loss alone and must be public; λ‖w‖² has modulus 2λ, (λ/2)‖w‖² has λ.
    """
    lipschitz, modulus = real("lipschitz", lipschitz, POSITIVE), real("modulus", modulus, POSITIVE)
    return lipschitz / (modulus * whole("slots", slots, least=1, most=MAX_SLOTS))


def limit_of(schedule: Schedule, pricing: Pricing) -> Fraction | None:
    """What the longest life costs however long the stream is, in closed form; None if it has no limit or none is known.

    Where lives enter finitely many models, once each, it is the sum. Multi-resolution without end is a geometric
    series. In continual release the worst-off datapoint is one of the first base (it enters all bases), or of the first
    pane after some base (it enters all updates up to the next base, and all later bases); the cost of the latter is
    linear in the ratio's power, so the first and the last such pane are the extremes.
    """
    if schedule.models is not None:
        return sum((pricing.of(model) for model in schedule.models), Fraction())
    if not isinstance(pricing, Prices):
        return None
    bases, updates = pricing.base.total, pricing.update.total
    match schedule:
        case MultiResolution():
            return bases
        case ContinualRelease():
            if bases is None or updates is None or pricing.base.ratio != pricing.update.ratio:
                return None
            ratio = pricing.base.ratio
            doublings = schedule.panes.bit_length() - 1
            return max(bases, updates, updates * (1 - ratio**doublings) + bases * ratio)
        case _:
            return None


def _fractions(
    schedule: Schedule, *, noise: Noise, rule: Rule, weights: Sequence[float] | None
) -> dict[Model, Fraction]:
    """Fractions of the budget by model, of which the longest life gets 1 in all."""
    if rule not in ("constant_noise", "equal_shares"):
        raise InvalidInput("rule", rule, "'constant_noise' or 'equal_shares'")
    models, given = schedule.models, _weights(schedule, weights)
    if models is not None and given is not None:
        return {model: weight / sum(given) for model, weight in zip(models, given, strict=True)}
    if models is None and rule == "equal_shares":
        raise InvalidInput("rule", rule, "'constant_noise': equal shares of endless levels have no sum")
    ratio = _RATIO[noise] if rule == "constant_noise" else Fraction(1)
    bases, updates = given or (Fraction(1), Fraction(1))
    prices = Prices(base=Geometric(first=bases, ratio=ratio), update=Geometric(first=updates, ratio=ratio))
    longest = limit_of(schedule, prices)
    assert longest is not None  # the ratio is below 1, or there are finitely many models
    if models is None:
        kinds: tuple[Kind, ...] = ("base", "update") if isinstance(schedule, ContinualRelease) else ("base",)
        models = tuple(Model(kind, level) for kind in kinds for level in range(MAX_LEVELS))
    return {model: prices.of(model) / longest for model in models}


def _weights(schedule: Schedule, weights: Sequence[float] | None) -> list[Fraction] | None:
    if weights is None:
        return None
    count = 2 if isinstance(schedule, ContinualRelease) else len(schedule.models or ())
    if not isinstance(weights, Sequence) or len(weights) != count:
        raise InvalidInput("weights", weights, f"{count} weights" if count else "no weights: levels have no end")
    return [exact(real("weights", weight, POSITIVE)) for weight in weights]


def _least_float(least: Fraction, enough: Callable[[Fraction], bool]) -> float:
    """The float from `least` upwards that, read as the decimal it prints as, is enough."""
    value = float(least)
    while not enough(exact(value)):
        value = math.nextafter(value, math.inf)
    return value
