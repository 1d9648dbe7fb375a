"""Is this plan bounded for ever? What the worst-off datapoint pays as the number of tasks or windows grows.

"Lifelong DP" asks for one bound that holds however many tasks come. Here it is a property of a plan that is decided by
a proof where there is one, and otherwise only measured: a simulation can show how much was paid up to its horizon, but
not that nothing more will be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal, TypeAlias

from accountant.errors import InvalidInput
from accountant.events import Adjacency, adjacency_of
from accountant.streams.allocations import Allocation, Prices, Pricing, limit_of
from accountant.streams.memories import EpisodicMemory, harmonic
from accountant.streams.schedules import ContinualRelease, MultiResolution, Schedule, lives
from accountant.units import whole

Verdict: TypeAlias = Literal["bounded", "unbounded", "not_proved"]
#: Per doubling of the stream, like 1 + 1/2 + … + 1/T over T tasks, or per task.
Growth: TypeAlias = Literal["logarithmic", "harmonic", "linear"]
#: What a limit counts: a cost in the plan's own prices, steps with the plan's own noise, tasks, or ρ at Rényi order 2.
Measure: TypeAlias = Literal["cost", "steps", "tasks", "rho_at_order_2"]

USUAL_HORIZON: Final = 4_096
MAX_HORIZON: Final = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The answer, with what proves it.

    `bounded`: no life ever costs more than `limit`. `unbounded`: some life costs more than any number, and how fast.
    `not_proved`: nobody knows; the worst-off datapoint has paid `paid` at step `horizon`, and `paid_at_half` at half of
    it.
    """

    verdict: Verdict
    measure: Measure
    because: str
    limit: Fraction | None = None
    growth: Growth | None = None
    horizon: int | None = None
    paid: Fraction | None = None
    paid_at_half: Fraction | None = None


def schedule_outlook(schedule: Schedule, pricing: Pricing, *, horizon: int = USUAL_HORIZON) -> Outlook:
    """What a datapoint of a block schedule can pay at most, for ever, in the prices given.

    >>> from accountant.streams.readings import CONTINUAL_RELEASE
    >>> schedule = ContinualRelease(pane=1024, base=8192)
    >>> schedule_outlook(schedule, CONTINUAL_RELEASE["half_open"].prices).limit
    Fraction(11, 8)
    >>> schedule_outlook(schedule, CONTINUAL_RELEASE["own_size"].prices).growth
    'logarithmic'
    """
    horizon = whole("horizon", horizon, least=2, most=MAX_HORIZON)
    if isinstance(pricing, Allocation):
        if pricing.schedule != schedule:
            raise InvalidInput("pricing", pricing.schedule, f"an allocation for this schedule, {schedule}")
        return Outlook(
            verdict="bounded",
            measure="cost",
            limit=pricing.budget,
            because="the shares are the budget divided by what the longest life enters, rounded down",
        )
    limit = limit_of(schedule, pricing)
    if limit is not None:
        because = "a life enters each model once" if schedule.models else "geometric series over the levels"
        return Outlook(verdict="bounded", measure="cost", limit=limit, because=because)
    if isinstance(pricing, Prices) and _grows(schedule, pricing):
        return Outlook(
            verdict="unbounded",
            measure="cost",
            growth="logarithmic",
            because="every doubling of the stream brings another level, and levels do not become cheaper",
        )
    return _simulated(schedule, pricing, horizon)


def memory_outlook(memory: EpisodicMemory, *, adjacency: Adjacency = "add_remove") -> Outlook:
    """What a datapoint in memory can pay at most, for ever; whoever is in training pays `steps` steps, once."""
    adjacency = adjacency_of(adjacency)
    if memory.memory_probability == 0:
        return Outlook(verdict="bounded", measure="steps", limit=Fraction(0), because="memory is never sampled")
    if memory.keep is not None:
        return Outlook(
            verdict="bounded",
            measure="steps",
            limit=Fraction(memory.steps * memory.keep),
            because=f"a block is retired after {memory.keep} later tasks, whatever was drawn",
        )
    match memory.use:
        case "every_block":
            return Outlook(
                verdict="unbounded", measure="steps", growth="linear", because="every later task uses every block"
            )
        case "one_block":
            return Outlook(
                verdict="unbounded",
                measure="steps",
                growth="harmonic",
                because="the first block is drawn steps · (1 + 1/2 + … + 1/(T−1)) times on average",
            )
        case "union":
            return _union(memory, adjacency)


def tasks_outlook(*, most_tasks: int | None) -> Outlook:
    """What task-wise composition promises: a datapoint in at most `most_tasks` tasks pays for those and no more."""
    if most_tasks is None:
        return Outlook(
            verdict="unbounded", measure="tasks", growth="linear", because="a datapoint may be in every task"
        )
    limit = Fraction(whole("most_tasks", most_tasks, least=1, most=10**9))
    return Outlook(verdict="bounded", measure="tasks", limit=limit, because="other tasks do not touch the datapoint")


def expected_draws_limit(memory: EpisodicMemory) -> Fraction | None:
    """The most that any block is drawn on average, for ever: steps · H(keep), or None without retirement."""
    return None if memory.keep is None else memory.steps * harmonic(memory.keep)


def _union(memory: EpisodicMemory, adjacency: Adjacency) -> Outlook:
    r"""Sampling at rate q/n from n blocks costs at most c·(q/n)² at Rényi order 2, and Σ 1/n² ≤ π²/6 < 1.645.

    Under add_remove the divergence of order 2 is ln(1 + q²(e^(1/σ²) − 1)) (Mironov, Talwar & Zhang 2019, which also
    shows that this direction is the larger). Under replace_one, with P − Q = q(N(1) − N(−1)) and Q ≥ (1 − q) N(0), it
    is at most q²/(1 − q) · (2e^(1/σ²) − 2e^(−1/σ²)); for q = 1, the first task's term is that of two Gaussians, 4/σ².
    """
    rate, precision = memory.memory_probability, memory.memory_noise_multiplier**-2
    if precision > 700:
        raise InvalidInput("memory_noise_multiplier", memory.memory_noise_multiplier, "enough noise to bound it: 0.04")
    if adjacency == "add_remove":
        bound = memory.steps * rate**2 * math.expm1(precision) * 1.645
    else:
        factor = 4 * math.sinh(precision)
        first = 4 * precision if rate == 1 else min(4 * precision, rate**2 / (1 - rate) * factor)
        bound = memory.steps * (first + 0.645 * rate**2 / (1 - rate / 2) * factor)
    return Outlook(
        verdict="bounded",
        measure="rho_at_order_2",
        limit=Fraction(bound) * (1 + Fraction(1, 10**9)),  # above the error of a few floating-point operations
        because="the rate falls as the memory grows, and Σ 1/n² converges",
    )


def _grows(schedule: Schedule, prices: Prices) -> bool:
    """Whether endless levels have prices that do not fall."""
    match schedule:
        case MultiResolution():
            endless = [prices.base]
        case ContinualRelease():
            endless = [prices.base, prices.update]
        case _:
            endless = []
    return any(price.first > 0 and price.ratio >= 1 for price in endless)


def _simulated(schedule: Schedule, pricing: Pricing, horizon: int) -> Outlook:
    def paid(steps: int) -> Fraction:
        return max(
            sum((times * pricing.of(model) for model, times in life.models.items()), Fraction())
            for life in lives(schedule.steps(steps))
        )

    return Outlook(
        verdict="not_proved",
        measure="cost",
        horizon=horizon,
        paid=paid(horizon),
        paid_at_half=paid(horizon // 2),
        because=f"simulated for {horizon} steps; no closed form covers these prices",
    )
