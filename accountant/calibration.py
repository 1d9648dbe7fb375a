"""Guarantee → parameters: the least noise, the most steps, the largest ε that still fit.

Every answer is checked by the rule that it has to pass, a proved ε or a filter's integers, so it errs on the private
side: an exact plan is never refused by its own rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never

from accountant import partition, sealed
from accountant.engines import prove, rdp
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
    adjacency_of,
    event_of,
)
from accountant.filters import Cost, Filter
from accountant.searches import closest
from accountant.units import POSITIVE, POSITIVE_FAILURE_PROBABILITY, Range, nats_down, real, whole

#: Whether an event may run. More noise and fewer steps never turn a yes into a no.
Fits: TypeAlias = Callable[[Event], bool]

LEAST_NOISE: Final = 1e-3
MOST_NOISE: Final = 1e9
_PRECISION: Final = 1e-7  # relative, of a noise multiplier
_SMALLEST: Final = 5e-324
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
    return lambda event: prove(event, delta=delta, target=epsilon, adjacency=adjacency).upper <= epsilon


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
    """The least noise multiplier from 0.001 on with which DP-SGD is proved to be (ε, δ)-DP, and never one below it.

    It is right to seven digits.

    >>> round(calibrate_noise_multiplier(epsilon=1.0, delta=1e-5), 4)
    3.7306
    >>> round(calibrate_noise_multiplier(epsilon=1.0, delta=1e-5, sampling_probability=0.01, steps=1000), 3)
    1.415
    """
    sampling_probability = real("sampling_probability", sampling_probability, _SAMPLING)
    steps = whole("steps", steps, least=1, most=MAX_TIMES)
    return _least_proved(
        lambda noise: dp_sgd(noise_multiplier=noise, sampling_probability=sampling_probability, steps=steps),
        _Goal.of(epsilon=epsilon, delta=delta, adjacency=adjacency),
    )


def calibrate_training(
    labels: Event,
    *,
    epsilon: float,
    delta: float,
    sampling_probability: float = 1.0,
    steps: int = 1,
    adjacency: Adjacency = "add_remove",
) -> float:
    """The least noise multiplier from 0.001 on with which `labels` and DP-SGD **together** are (ε, δ)-DP.

    Both are parts of one sealed release, so nothing is lost by fixing a share of ε for either: what the label release
    does not use up is left to the training.

    >>> labels = PartitionSelection(epsilon=0.1, delta=1e-6)
    >>> round(calibrate_training(labels, epsilon=1.0, delta=1e-5, sampling_probability=0.01, steps=1000), 3)
    1.482
    """
    sampling_probability = real("sampling_probability", sampling_probability, _SAMPLING)
    steps = whole("steps", steps, least=1, most=MAX_TIMES)
    goal = _Goal.of(epsilon=epsilon, delta=delta, adjacency=adjacency)
    if goal.over(event_of(labels)) >= 0:
        raise Unattainable(f"the label release alone uses up ε = {epsilon:g} at δ = {delta:g}")

    def release(noise: float) -> Event:
        training = dp_sgd(noise_multiplier=noise, sampling_probability=sampling_probability, steps=steps)
        return Composed(events=(labels, training))

    return _least_proved(release, goal)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A label release and a training that together keep a promise, and the share of it that the label release got."""

    share: float
    labels: PartitionSelection
    noise_multiplier: float


def calibrate_split(
    *,
    epsilon: float,
    delta: float,
    n: int | Mapping[int, float] | None = None,
    probability: float = 0.99,
    sampling_probability: float = 1.0,
    steps: int = 1,
    adjacency: Adjacency = "add_remove",
) -> Split:
    """How to share (ε, δ) between telling which labels exist and training on them, in one sealed release.

    The label release gets the least share with which labels of at least `n` datapoints are told with `probability`; or,
    if `n` is a prior (sizes with weights), labels of such sizes; without an `n`, a tenth. The training gets the least
    noise with which both together keep the promise.

    >>> split = calibrate_split(epsilon=1.0, delta=1e-5, n=500, sampling_probability=0.01, steps=1000)
    >>> round(split.share, 4), round(split.noise_multiplier, 3)
    (0.0295, 1.423)
    >>> split = calibrate_split(epsilon=1.0, delta=1e-5, n={100: 1, 500: 9}, sampling_probability=0.01, steps=1000)
    >>> round(split.share, 4), round(split.noise_multiplier, 3)
    (0.1258, 1.514)
    """
    match n:
        case None:
            share = partition.HEURISTIC_SHARE
        case Mapping():
            share = partition.smallest_share_of_prior(sizes=n, probability=probability, epsilon=epsilon, delta=delta)
        case _:
            share = partition.smallest_share(n=n, probability=probability, epsilon=epsilon, delta=delta)
    rule = partition.from_share(epsilon=epsilon, delta=delta, share=share)
    labels = PartitionSelection(epsilon=rule.epsilon, delta=rule.delta)
    noise = calibrate_training(
        labels,
        epsilon=epsilon,
        delta=delta,
        sampling_probability=sampling_probability,
        steps=steps,
        adjacency=adjacency,
    )
    return Split(share=share, labels=labels, noise_multiplier=noise)


def calibrate_steps(
    *,
    epsilon: float,
    delta: float,
    noise_multiplier: float,
    sampling_probability: float = 1.0,
    adjacency: Adjacency = "add_remove",
) -> int:
    """The most steps with which DP-SGD is proved to be (ε, δ)-DP; 0 if not even one is.

    >>> calibrate_steps(epsilon=1.0, delta=1e-5, noise_multiplier=1.0, sampling_probability=0.01)
    254
    """
    sampling_probability = real("sampling_probability", sampling_probability, _SAMPLING)
    step = dp_sgd(noise_multiplier=noise_multiplier, sampling_probability=sampling_probability)
    goal = _Goal.of(epsilon=epsilon, delta=delta, adjacency=adjacency)

    def over(times: int) -> float:
        return goal.over(Repeated(times=times, event=step))

    def between(fits: int, fails: int, share: float) -> int:
        middle: int = round(fits * (fails / fits) ** share)
        return min(max(middle, fits + 1), fails - 1)

    times = max(1, most_times(lambda times: goal.is_met_by_curve(Repeated(times=times, event=step))))
    good = bad = (times, over(times))
    if bad[1] > 0:
        return 0
    while bad[1] <= 0:
        if bad[0] == MAX_TIMES:
            return MAX_TIMES
        times = min(2 * times, MAX_TIMES)
        good, bad = bad, (times, over(times))
    return closest(over, good, bad, between=between, done=lambda fits, fails: fails - fits == 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Goal:
    """A promise that an event by itself has to keep."""

    epsilon: float
    delta: float
    adjacency: Adjacency

    @classmethod
    def of(cls, *, epsilon: float, delta: float, adjacency: Adjacency) -> _Goal:
        return cls(
            epsilon=real("epsilon", epsilon, POSITIVE),
            delta=real("delta", delta, POSITIVE_FAILURE_PROBABILITY),
            adjacency=adjacency_of(adjacency),
        )

    def is_met_by_curve(self, event: Event) -> bool:
        """Whether the cheapest proof that covers every event will do."""
        return rdp.epsilon(event, delta=self.delta, adjacency=self.adjacency) <= self.epsilon

    def over(self, event: Event) -> float:
        """How far the proved ε is above the promise, as a logarithm: the promise is kept at 0 and below."""
        upper = prove(event, delta=self.delta, adjacency=self.adjacency).upper
        if upper in (0.0, math.inf):
            return math.inf if upper else -math.inf
        # exact where it matters
        return (
            max(math.log(upper / self.epsilon), _SMALLEST) if upper > self.epsilon else math.log(upper / self.epsilon)
        )


def _least_proved(release: Callable[[float], Event], goal: _Goal) -> float:
    """The least noise multiplier with which the release keeps the promise."""

    def over(noise: float) -> float:
        return goal.over(release(noise))

    try:
        noise = _least(lambda noise: goal.is_met_by_curve(release(noise)), LEAST_NOISE, MOST_NOISE, precision=0.1)
    except Unattainable:
        noise = _least(lambda noise: over(noise) <= 0, LEAST_NOISE, MOST_NOISE, precision=0.1)
    good = bad = (noise, over(noise))
    while bad[1] <= 0:
        if noise == LEAST_NOISE:
            return noise
        noise = max(noise / 1.25, LEAST_NOISE)
        good, bad = bad, (noise, over(noise))
    return closest(
        over,
        good,
        bad,
        between=lambda fits, fails, share: fits * (fails / fits) ** share,
        done=lambda fits, fails: fits <= fails * (1 + _PRECISION),
    )


def least_noise_multiplier(fits: Fits, *, sampling_probability: float = 1.0, steps: int = 1) -> float:
    """The least noise multiplier from 0.001 on with which DP-SGD fits, right to seven digits and never below."""
    sampling_probability = real("sampling_probability", sampling_probability, _SAMPLING)
    steps = whole("steps", steps, least=1, most=MAX_TIMES)

    def enough(noise: float) -> bool:
        return fits(dp_sgd(noise_multiplier=noise, sampling_probability=sampling_probability, steps=steps))

    return _least(enough, LEAST_NOISE, MOST_NOISE)


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


_LEAST, _MOST = math.ulp(0.0), math.nextafter(math.inf, 0.0)


def noisier(event: Event, factor: float) -> Event:
    """The same event with all noise `factor` times as large; a promised ε counts as 1 / noise.

    Noise that no number is large enough for is the largest that there is.

    >>> noisier(Repeated(times=3, event=Gaussian(noise_multiplier=1.0)), 1.5)
    Repeated(times=3, event=Gaussian(noise_multiplier=1.5))
    """
    factor = real("factor", factor, POSITIVE)
    match event:
        case Gaussian():
            return Gaussian(noise_multiplier=min(event.noise_multiplier * factor, _MOST))
        case Laplace():
            return Laplace(scale=min(event.scale * factor, _MOST))
        case L2Laplace():
            return L2Laplace(scale=min(event.scale * factor, _MOST))
        case PureDP():
            return PureDP(epsilon=event.epsilon / factor)
        case ApproxDP():
            return ApproxDP(epsilon=event.epsilon / factor, delta=event.delta)
        case ZCDP():
            return ZCDP(rho=event.rho / (factor * factor))
        case PartitionSelection():
            return PartitionSelection(epsilon=max(event.epsilon / factor, _LEAST), delta=event.delta)
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
    fits: Callable[[float], bool],
    least: float,
    most: float,
    *,
    what: str = "noise multiplier",
    precision: float = _PRECISION,
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
