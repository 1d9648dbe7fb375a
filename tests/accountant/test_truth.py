"""The upper bound against the truth, of long runs: δ(ε) by an integral along a line in the complex plane.

With K(s) = ln E e^(s · loss), δ(ε) is the integral of e^(K(s) − s ε) / (s (s + 1)) over Re s = θ, divided by 2πi, for
any θ > 0 (the inverse Laplace transform of (1 − e^−x)₊). Through the saddle point nothing cancels, and the trapezoid
rule converges faster than any power, for K as for δ: an answer to some nine digits that shares nothing with the engine,
neither grids nor tilts nor transforms. It bounds nothing, so it is of use only here.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from accountant.engines import account
from accountant.events import Adjacency, Composed, Event, Gaussian, Laplace, PoissonSampled, Repeated, counted
from tests.accountant.strategies import ADJACENCIES

Complexes: TypeAlias = NDArray[np.complex128]
Floats: TypeAlias = NDArray[np.float64]
Cumulants: TypeAlias = Callable[[Complexes], Complexes]


def normal(points: Floats, centre: float, sigma: float) -> Floats:
    """ln of a density."""
    return -(((points - centre) / sigma) ** 2) / 2 - math.log(sigma * math.sqrt(2 * math.pi))


def mixture(points: Floats, q: float, centre: float, sigma: float) -> Floats:
    return np.logaddexp(math.log1p(-q) + normal(points, 0.0, sigma), math.log(q) + normal(points, centre, sigma))


def of_a_step(leaf: Event, adjacency: Adjacency, *, mirrored: int) -> Cumulants:
    """ln E e^(s · loss) of one step."""
    match leaf:
        case PoissonSampled(sampling_probability=q, event=Gaussian(noise_multiplier=sigma)):
            points = np.arange(-12 * sigma - 1, 40 * sigma + 2, sigma * min(sigma, 1.0) / 6)
            log_p = mixture(points, q, 1.0, sigma)
            log_q = normal(points, 0.0, sigma) if adjacency == "add_remove" else mixture(points, q, -1.0, sigma)
            loss = log_p - log_q
            if mirrored and adjacency == "add_remove":
                loss, log_p = -loss, log_q
            log_p -= np.logaddexp.reduce(log_p)
            return lambda s: np.log(np.exp(np.multiply.outer(s, loss) + log_p).sum(axis=-1))
        case Gaussian(noise_multiplier=sigma):
            variance = ((1 if adjacency == "add_remove" else 2) / sigma) ** 2
            return lambda s: s * (s + 1) * (variance / 2)
        case Laplace(scale=scale):
            most = (1 if adjacency == "add_remove" else 2) / scale
            return lambda s: np.log(
                (np.exp(s * most) * (1 + 1 / (2 * s + 1)) + np.exp(-(s + 1) * most) * (1 - 1 / (2 * s + 1))) / 2
            )
        case _:
            raise NotImplementedError(leaf)


def composed(event: Event, adjacency: Adjacency, *, mirrored: int) -> Cumulants:
    parts = [(of_a_step(leaf, adjacency, mirrored=mirrored), times) for leaf, times in counted(event).items()]
    return lambda s: sum((times * cumulants(s) for cumulants, times in parts), start=np.zeros_like(s))


def log_delta(cumulants: Cumulants, epsilon: float) -> float:
    """ln δ(ε) of one direction; nan where the integral converges too slowly, far from where δ matters."""

    def along(s: Complexes) -> Complexes:
        return cumulants(s) - s * epsilon - np.log(s) - np.log1p(s)

    def at(theta: Floats) -> Floats:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            value = along(theta.astype(np.complex128)).real
        return np.where(np.isfinite(value), value, 1e300)

    saddle = minimize_scalar(
        lambda log_theta: at(np.exp([log_theta]))[0], bounds=(math.log(1e-3), math.log(3e3)), method="bounded"
    )
    theta = math.exp(saddle.x)
    below, peak, above = at(theta * np.array([0.99, 1.0, 1.01]))
    curvature = float(below - 2 * peak + above) / (0.01 * theta) ** 2
    step = min(1 / math.sqrt(max(curvature, 1e-12)), theta) / 6
    total = 0.5
    for block in range(400):
        heights = np.arange(64 * block + 1, 64 * block + 65) * step
        values = np.exp(along((theta + 1j * heights).astype(np.complex128)) - peak)
        total += float(values.real.sum())
        if float(np.abs(values).max()) < 1e-10 * total:
            return float(peak) + math.log(total * step / math.pi)
    return math.nan


def truth(event: Event, epsilon: float, adjacency: Adjacency) -> float:
    """ln δ(ε) of the worse direction."""
    return float(np.max([log_delta(composed(event, adjacency, mirrored=mirrored), epsilon) for mirrored in (0, 1)]))


def test_the_integral_is_right() -> None:
    """For Gaussians there is a closed form, and DP-SGD has the figure of the design notes."""
    for noise, epsilon in ((1.0, 1.0), (0.5, 10.0), (4.0, 0.1)):
        upper = account(Gaussian(noise_multiplier=noise), delta=1e-6).upper
        assert truth(Gaussian(noise_multiplier=noise), upper, "add_remove") == pytest.approx(math.log(1e-6), abs=1e-6)
        halves = Repeated(times=4, event=Gaussian(noise_multiplier=2 * noise))
        assert truth(halves, epsilon, "add_remove") == pytest.approx(
            truth(Gaussian(noise_multiplier=noise), epsilon, "add_remove"), abs=1e-9
        )
    steps = Repeated(times=1000, event=PoissonSampled(sampling_probability=0.01, event=Gaussian(noise_multiplier=1.0)))
    assert truth(steps, 1.8282, "add_remove") == pytest.approx(math.log(1e-5), abs=1e-3)
    assert truth(steps, 2.8426, "replace_one") == pytest.approx(math.log(1e-5), abs=1e-2)


LEAST: Final = 0.05  # ε
MOST: Final = 20.0


def long_run(chance: random.Random) -> Event:
    """One to three trainings of up to ten million steps, and now and then a Gaussian or Laplace release."""

    def size(low: float, high: float) -> float:
        return float(f"{math.exp(chance.uniform(math.log(low), math.log(high))):.4g}")

    parts: list[Event] = [
        Repeated(
            times=round(size(100, 1e7)),
            event=PoissonSampled(sampling_probability=size(1e-5, 0.1), event=Gaussian(noise_multiplier=size(0.6, 5.0))),
        )
        for _ in range(chance.choice((1, 1, 2, 3)))
    ]
    if chance.random() < 0.2:
        parts.append(Gaussian(noise_multiplier=size(2.0, 50.0)))
    if chance.random() < 0.2:
        parts.append(Laplace(scale=size(2.0, 50.0)))
    return Composed(events=tuple(parts))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_upper_is_within_one_percent_of_the_truth(seed: int) -> None:
    """Up to a million steps and down to δ = 1e-12; beyond that it is a bound still, if a looser one."""
    chance = random.Random(seed)
    sound = tight = 0
    for _ in range(400):
        adjacency = ADJACENCIES[sound % 2]
        delta = float(f"{10 ** chance.uniform(-14, -3):.3g}")
        event = long_run(chance)
        if not truth(event, MOST, adjacency) < math.log(delta) < truth(event, LEAST, adjacency):
            continue
        upper = account(event, delta=delta, adjacency=adjacency).upper
        at_upper, below = (truth(event, each, adjacency) for each in (upper, min(upper / 1.01, upper - 0.005)))
        if math.isnan(at_upper + below):
            continue
        assert at_upper <= math.log(delta) + 1e-6, (event, delta, adjacency, upper)
        sound += 1
        if sum(counted(event).values()) <= 10**6 and delta >= 1e-12:
            assert below >= math.log(delta), (event, delta, adjacency, upper)
            tight += 1
        if tight == 8:
            return
    raise AssertionError(f"only {sound} runs are in range")
