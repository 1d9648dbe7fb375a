"""Guarantee → parameters: the least noise, the most steps, the largest ε that still fit.

Every answer is checked by the rule that it has to pass, `account` or a filter's integers, so it errs on the private
side: an exact plan is never refused by its own rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias, assert_never

from accountant import sealed
from accountant.engines import account
from accountant.errors import Unattainable
from accountant.events import (
    MAX_TIMES,
    ZCDP,
    Adjacency,
    ApproxDP,
    Composed,
    Event,
    Gaussian,
    L2Laplace,
    Laplace,
    NonPrivate,
    PartitionSelection,
    PoissonSampled,
    PureDP,
    Repeated,
)
from accountant.filters import Cost, Filter
from accountant.units import POSITIVE, POSITIVE_FAILURE_PROBABILITY, Range, nats_down, real, whole

#: Whether an event may run. More noise and fewer steps never turn a yes into a no.
Fits: TypeAlias = Callable[[Event], bool]

LEAST_NOISE: Final = 1e-3
MOST_NOISE: Final = 1e9
_PRECISION: Final = 1e-9  # relative, of a noise multiplier
_SAMPLING: Final = Range("a number in (0, 1]", lambda value: 0 < value <= 1)


def dp_sgd(*, noise_multiplier: float, sampling_probability: float = 1.0, steps: int = 1) -> Event:
    """`steps` noisy sums over Poisson samples: what DP-SGD does to the data."""
    step: Event = Gaussian(noise_multiplier=noise_multiplier)
    if sampling_probability != 1:
        step = PoissonSampled(sampling_probability=sampling_probability, event=step)
    return Repeated(times=steps, event=step)


def within(*, epsilon: float, delta: float, adjacency: Adjacency = "add_remove") -> Fits:
    """Fits if the event by itself is proved to be (ε, δ)-DP."""
    epsilon = real("epsilon", epsilon, POSITIVE)
    delta = real("delta", delta, POSITIVE_FAILURE_PROBABILITY)
    return lambda event: account(event, delta=delta, adjacency=adjacency).upper <= epsilon


def remaining(budget: Filter, used: Cost, *, adjacency: Adjacency = "add_remove", releases: int = 1) -> Fits:
    """Fits if `releases` releases of the event are admitted on top of what is `used`, one after the other.

    They are priced as `sealed.planned` says; where that collapses more than 32 of them, its δ is to be declared.
    """
    releases = whole("releases", releases, least=1, most=MAX_TIMES)
    return lambda event: sealed.planned(budget, event, adjacency, used, releases=releases) is not None


def calibrate_noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    sampling_probability: float = 1.0,
    steps: int = 1,
    adjacency: Adjacency = "add_remove",
) -> float:
    """The least noise multiplier from 0.001 on with which DP-SGD is (ε, δ)-DP, right to nine digits and never below.

    >>> round(calibrate_noise_multiplier(epsilon=1.0, delta=1e-5), 4)
    3.7306
    """
    fits = within(epsilon=epsilon, delta=delta, adjacency=adjacency)
    return least_noise_multiplier(fits, sampling_probability=sampling_probability, steps=steps)


def calibrate_steps(
    *,
    epsilon: float,
    delta: float,
    noise_multiplier: float,
    sampling_probability: float = 1.0,
    adjacency: Adjacency = "add_remove",
) -> int:
    """The most steps with which DP-SGD is (ε, δ)-DP; 0 if not even one is."""
    fits = within(epsilon=epsilon, delta=delta, adjacency=adjacency)
    return most_steps(fits, noise_multiplier=noise_multiplier, sampling_probability=sampling_probability)


def least_noise_multiplier(fits: Fits, *, sampling_probability: float = 1.0, steps: int = 1) -> float:
    """The least noise multiplier from 0.001 on with which DP-SGD fits, right to nine digits and never below."""
    sampling_probability = real("sampling_probability", sampling_probability, _SAMPLING)
    steps = whole("steps", steps, least=1, most=MAX_TIMES)

    def enough(noise: float) -> bool:
        return fits(dp_sgd(noise_multiplier=noise, sampling_probability=sampling_probability, steps=steps))

    return _least(enough, LEAST_NOISE, MOST_NOISE, what="noise multiplier")


def most_steps(fits: Fits, *, noise_multiplier: float, sampling_probability: float = 1.0) -> int:
    """The most steps with which DP-SGD fits, up to a million million; 0 if not even one does."""
    sampling_probability = real("sampling_probability", sampling_probability, _SAMPLING)
    step = dp_sgd(noise_multiplier=noise_multiplier, sampling_probability=sampling_probability)
    return most_times(lambda times: fits(Repeated(times=times, event=step)))


def most_times(fits: Callable[[int], bool], *, most: int = MAX_TIMES) -> int:
    """The largest count up to `most` that fits; 0 if 1 does not."""
    low, high = 0, 1
    while high < most and fits(high):
        low, high = high, min(2 * high, most)
    if high == most and fits(high):
        return most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def largest_pure_epsilon(budget: Filter, used: Cost, *, releases: int = 1) -> float:
    """The largest ε such that so many pure-DP releases of it are admitted on top of what is `used`.

    The budget's integer units are dealt out, so the plan adds up exactly:

    >>> plan = Filter.of(epsilon=1.0, delta=1e-5)
    >>> share = largest_pure_epsilon(plan, plan.nothing, releases=3)
    >>> share, plan.admits(plan.price(PureDP(epsilon=share), "add_remove") * 3)
    (0.333333333333, True)
    """
    releases = whole("releases", releases, least=1, most=MAX_TIMES)
    return nats_down(budget.largest_pure(used, releases=releases))


def least_noise_factor(fits: Callable[[float], bool]) -> float:
    """The least factor from 1 on by which all noise must grow to fit (see `noisier`): four digits, never below."""
    return _least(fits, 1.0, MOST_NOISE, what="factor for the noise", precision=1e-4)


def noisier(event: Event, factor: float) -> Event:
    """The same event with all noise `factor` times as large; a promised ε counts as 1 / noise.

    >>> noisier(Repeated(times=3, event=Gaussian(noise_multiplier=1.0)), 1.5)
    Repeated(times=3, event=Gaussian(noise_multiplier=1.5))
    """
    factor = real("factor", factor, POSITIVE)
    match event:
        case Gaussian():
            return Gaussian(noise_multiplier=event.noise_multiplier * factor)
        case Laplace():
            return Laplace(scale=event.scale * factor)
        case L2Laplace():
            return L2Laplace(scale=event.scale * factor)
        case PureDP():
            return PureDP(epsilon=event.epsilon / factor)
        case ApproxDP():
            return ApproxDP(epsilon=event.epsilon / factor, delta=event.delta)
        case ZCDP():
            return ZCDP(rho=event.rho / (factor * factor))
        case PartitionSelection():
            return PartitionSelection(epsilon=event.epsilon / factor, delta=event.delta)
        case NonPrivate():
            return event
        case PoissonSampled():
            return PoissonSampled(sampling_probability=event.sampling_probability, event=noisier(event.event, factor))
        case Repeated():
            return Repeated(times=event.times, event=noisier(event.event, factor))
        case Composed():
            return Composed(events=tuple(noisier(part, factor) for part in event.events))
        case _:
            assert_never(event)


def _least(
    fits: Callable[[float], bool], least: float, most: float, *, what: str, precision: float = _PRECISION
) -> float:
    if fits(least):
        return least
    low, high = least, max(1.0, 2 * least)
    while not fits(high):
        if high == most:
            raise Unattainable(f"no {what} up to {most:g} fits")
        low, high = high, min(2 * high, most)
    while high > low * (1 + precision):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
