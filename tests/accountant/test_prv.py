"""The numerical engine against exact losses: formulas at forty digits, sums over all outcomes, and integrals.

None of the oracles here knows a grid of losses, a Fourier transform or a tilt. A float given to an event stands for the
decimal that it prints as; a float given to a pair is itself.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, NamedTuple, TypeAlias

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import fft
from scipy.special import ndtr

from accountant import partition, reports
from accountant.engines import account, pairs, prv
from accountant.engines.pairs import Law, Normal, Pair, Sampled, SampledReplaced, ShiftedLaplace, Side, TwoPoints
from accountant.events import (
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
from accountant.units import exact
from tests.accountant.strategies import ADJACENCIES, adjacencies, between, fewer, rare, trees

Floats: TypeAlias = NDArray[np.float64]
Profile: TypeAlias = Callable[[Any], Any]

DIGITS: Final = 40
EXACT: Final = 1e-25  # relative error of a δ at that many digits
INTEGRATED: Final = 1e-9  # relative error of a δ that was summed in double precision

SIDES: Final[tuple[Side, ...]] = ("above", "below")

every_adjacency = pytest.mark.parametrize("adjacency", ADJACENCIES)


def decimal(value: float) -> Any:
    return mpmath.mpf(repr(value))


def sampled(event: Event, q: float) -> PoissonSampled:
    return PoissonSampled(sampling_probability=q, event=event)


def times(number: int, event: Event) -> Repeated:
    return Repeated(times=number, event=event)


def together(*events: Event) -> Composed:
    return Composed(events=events)


#: From here on the bracket must be tight; below it rounding of the transforms may win.
LEAST_DELTA: Final = 1e-11


def assert_holds_the_truth(event: Event, delta: float, adjacency: Adjacency, profile: Profile, error: float) -> None:
    """The bracket's ends lie on the two sides of where the true profile, right to `error`, reaches δ.

    Where it matters, `upper` is within 1 % or 0.005 of the truth.
    """
    found = prv.bracket(event, delta=delta, adjacency=adjacency)
    case = (event, delta, adjacency, found)
    if delta >= LEAST_DELTA:
        assert found.remark == "", case
    target = decimal(delta)
    assert 0 <= found.lower <= found.upper, case
    if found.remark:
        assert found.lower == 0.0, case
        assert found.upper == math.inf, case
        return
    assert profile(mpmath.mpf(found.upper)) <= target * (1 + mpmath.mpf(error)), case
    assert found.lower == 0 or profile(mpmath.mpf(found.lower)) >= target * (1 - mpmath.mpf(error)), case
    if delta >= LEAST_DELTA and 0.05 <= found.upper <= 20:
        nearer = min(found.upper / 1.01, found.upper - 0.005)
        assert nearer <= 0 or profile(mpmath.mpf(nearer)) > target * (1 - mpmath.mpf(error)), case


# ---------------------------------------------------------------- pairs on a grid


class Tails(NamedTuple):
    """The chances that the loss is above and below a number, under both laws."""

    p_above: Any
    q_above: Any
    p_below: Any
    q_below: Any


def tails(pair: Pair, edge: Any) -> Tails:
    """By formula, at the precision of the context."""
    one, none = mpmath.mpf(1), mpmath.mpf(0)
    match pair:
        case Normal():
            shift = mpmath.mpf(pair.shift)
            x = edge / shift + shift / 2
            return Tails(mpmath.ncdf(shift - x), mpmath.ncdf(-x), mpmath.ncdf(x - shift), mpmath.ncdf(x))
        case ShiftedLaplace():
            shift = mpmath.mpf(pair.shift)
            if abs(edge) > shift:
                return Tails(one, one, none, none) if edge < 0 else Tails(none, none, one, one)
            x = (edge + shift) / 2
            p, q = mpmath.exp(x - shift) / 2, mpmath.exp(-x) / 2
            above = (none, none) if edge == shift else (1 - p, q)
            below = (none, none) if edge == -shift else (p, 1 - q)
            return Tails(*above, *below)
        case TwoPoints():
            epsilon = mpmath.mpf(pair.epsilon)
            high = 1 / (1 + mpmath.exp(-epsilon))
            low = mpmath.exp(-epsilon) * high
            return Tails(
                high * (epsilon > edge) + low * (-epsilon > edge),
                low * (epsilon > edge) + high * (-epsilon > edge),
                high * (epsilon < edge) + low * (-epsilon < edge),
                low * (epsilon < edge) + high * (-epsilon < edge),
            )
        case Sampled():
            chance = mpmath.mpf(pair.q)
            ratio = mpmath.expm1(edge) + chance  # what q e^(inner loss) must exceed
            if ratio <= 0:
                return Tails(one, one, none, none)
            inner = tails(pair.inner, mpmath.log(ratio / chance))
            return Tails(
                (1 - chance) * inner.q_above + chance * inner.p_above,
                inner.q_above,
                (1 - chance) * inner.q_below + chance * inner.p_below,
                inner.q_below,
            )
        case SampledReplaced():
            chance, sigma = mpmath.mpf(pair.q), mpmath.mpf(pair.sigma)
            odds = (1 - chance) / chance * mpmath.exp(1 / (2 * sigma**2))
            x = sigma * (edge / 2 + mpmath.asinh(odds * mpmath.sinh(edge / 2)))
            over, under = (
                [
                    (1 - chance) * mpmath.ncdf(-way * x) + chance * mpmath.ncdf(way * (mean / sigma - x))
                    for mean in (1, -1)
                ]
                for way in (1, -1)
            )
            return Tails(*over, *under)
        case _:
            raise NotImplementedError(pair)


def hockey_sticks(pair: Pair, epsilon: float) -> tuple[Any, Any]:
    """δ(ε) of P against Q and of Q against P; ε may be negative."""
    above, below = tails(pair, mpmath.mpf(epsilon)), tails(pair, -mpmath.mpf(epsilon))
    grow = mpmath.exp(mpmath.mpf(epsilon))
    return above.p_above - grow * above.q_above, below.q_below - grow * below.p_below


def grid_delta(law: Law, mesh: float, epsilon: float) -> Any:
    """δ(ε) of what a law stands for, infinite losses and the corrections that it asks for included."""
    losses = np.arange(law.first, law.first + len(law.mass)) * np.longdouble(mesh)
    beyond = losses + np.longdouble(law.correction) - np.longdouble(epsilon)
    finite = np.sum(law.mass[beyond > 0] * -np.expm1(-beyond[beyond > 0]))
    return mpmath.mpf(float(finite)) + mpmath.mpf(float(finite - np.longdouble(float(finite))))


TINY: Final = 1e-280  # what is smaller leaves the range of floats
SUMMATION: Final = 64 * float(np.finfo(np.longdouble).eps)

SMOOTH: Final[tuple[Pair, ...]] = (
    *(Normal(shift) for shift in (1e-9, 1e-3, 0.3, 2.0, 11.0, 18.0)),
    *(Sampled(q, Normal(shift)) for q in (1e-9, 0.01, 0.5, 0.999, 0.999999) for shift in (1e-6, 0.5, 3.0, 18.0)),
    *(SampledReplaced(q, sigma) for q in (1e-9, 0.01, 0.5, 0.999, 0.999999) for sigma in (0.1, 0.4, 2.0, 1e6)),
)
WITH_ATOMS: Final[tuple[Pair, ...]] = (
    *(ShiftedLaplace(shift) for shift in (1e-6, 0.1, 0.25, 1.7, 30.0, 400.0)),
    *(Sampled(q, ShiftedLaplace(shift)) for q in (1e-9, 0.01, 0.999999) for shift in (1e-3, 1.7, 30.0)),
    # on a node, next to one on either side, between nodes
    *(TwoPoints(epsilon) for epsilon in (1e-6, 0.25, math.nextafter(0.25, 0), math.nextafter(0.25, 1), 1.3, 499.0)),
    *(Sampled(q, TwoPoints(epsilon)) for q in (1e-9, 0.01, 0.999999) for epsilon in (1e-3, 1.7, 30.0)),
)
MESHES: Final = (2.0**-6, 2.0**-11, 2.0**-16)


def cases() -> Iterator[Any]:
    """Pairs on meshes and at tails, each with each of the others; those that fit into a million nodes."""
    for place, pair in enumerate((*SMOOTH, *WITH_ATOMS)):
        mesh, tail = MESHES[place % 3], (1e-30, 1e-60)[place % 2]
        lowest, highest = pairs.support(pair, tail)
        if (highest - lowest) / mesh < 1e6:
            yield pytest.param(pair, mesh, tail, id=f"{pair}-{mesh:.2g}-{tail:g}")


@pytest.mark.parametrize(("pair", "mesh", "tail"), list(cases()))
def test_laws_on_a_grid_hold_the_pair_between_them(pair: Pair, mesh: float, tail: float) -> None:
    above, below = (pairs.laws(pair, mesh=mesh, tail=tail, side=side) for side in ("above", "below"))
    chance = np.random.default_rng(1)
    with mpmath.workdps(DIGITS):
        for direction in (0, 1):
            over, under = above[direction], below[direction]
            nodes = np.arange(over.first, over.first + len(over.mass)) * mesh
            where = chance.choice(nodes, size=8, p=over.mass / over.mass.sum())
            between_nodes = chance.choice(nodes, size=4, p=over.mass / over.mass.sum()) + mesh * chance.random(4)
            ends = [nodes[0] - 1, nodes[0], nodes[1], -mesh / 3, 0.0, nodes[-2], nodes[-1] - mesh / 3, nodes[-1]]
            for epsilon in map(float, (*where, *between_nodes, *ends)):
                true = hockey_sticks(pair, epsilon)[direction]
                most = grid_delta(over, mesh, epsilon) * (1 + pairs.TAIL_ERROR) + mpmath.mpf(over.infinite)
                least = grid_delta(under, mesh, epsilon)
                assert most >= true * (1 - mpmath.mpf(SUMMATION)) - TINY, (direction, epsilon)
                assert least <= true * (1 + mpmath.mpf(SUMMATION)), (direction, epsilon)


@pytest.mark.parametrize("pair", [*SMOOTH, *WITH_ATOMS], ids=repr)
def test_little_is_left_outside_the_support(pair: Pair) -> None:
    for tail in (1e-30, 1e-60):
        lowest, highest = pairs.support(pair, tail)
        # a law's grid is longer by a node on either side, which is where rounding of a bound goes
        margin = 1e-9 * (1 + highest)
        with mpmath.workdps(DIGITS):
            over, under = tails(pair, mpmath.mpf(highest + margin)), tails(pair, mpmath.mpf(lowest - margin))
            assert max(over.p_above, over.q_above, under.p_below, under.q_below) <= mpmath.mpf(tail)


@pytest.mark.parametrize("mesh", [MESHES[0], MESHES[-1]])
@pytest.mark.parametrize("pair", SMOOTH, ids=repr)
def test_the_masses_of_cells_are_as_right_as_they_say(pair: Pair, mesh: float) -> None:
    lowest, highest = pairs.support(pair, 1e-30)
    chance = np.random.default_rng(2)
    with mpmath.workdps(DIGITS):
        for left in chance.uniform(lowest, highest, size=6):
            edges = np.floor(left / mesh) * mesh + mesh * np.arange(3)
            p, q, error = pair.masses(edges)
            ends = [tails(pair, mpmath.mpf(float(edge))) for edge in edges]
            for cell in range(2):
                for mass, above, below in ((p, "p_above", "p_below"), (q, "q_above", "q_below")):
                    if getattr(ends[cell], above) < 0.5:
                        true = getattr(ends[cell], above) - getattr(ends[cell + 1], above)
                    else:
                        true = getattr(ends[cell + 1], below) - getattr(ends[cell], below)
                    if true > TINY:
                        # An edge is right to _EDGE_ERROR, and next to ln(1 − q) to a rounding of e^edge; that moves
                        # mass between neighbours, which have about the same.
                        edge = float(edges[cell])
                        moved = pairs._EDGE_ERROR * (1 + abs(edge)) + 2.0**-52 * math.exp(-edge) * (edge < 0)
                        assert abs(mass[cell] / true - 1) <= error[cell] + 40 * moved / mesh, (edge, mesh)


# ---------------------------------------------------------------- formulas


def gaussian_delta(epsilon: Any, mu: Any) -> Any:
    return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


@every_adjacency
@given(between(1e-3, 15), st.integers(1, 10**6), between(1e-12, 0.5) | between(1e-40, 1e-12))
def test_gaussians_are_the_analytic_gaussian(adjacency: Adjacency, shift: float, number: int, delta: float) -> None:
    changed = 2 if adjacency == "replace_one" else 1
    noise = changed * math.sqrt(number) / shift
    with mpmath.workdps(DIGITS):
        mu = changed * mpmath.sqrt(number) / decimal(noise)
        event = times(number, Gaussian(noise_multiplier=noise))

        def profile(epsilon: Any) -> Any:
            return gaussian_delta(epsilon, mu)

        assert_holds_the_truth(event, delta, adjacency, profile, EXACT)


class TwoOutcomes(NamedTuple):
    """The chance of the outcome that loses more, under both laws, and what either outcome loses."""

    p: Any
    q: Any
    more: Any
    less: Any


def two_outcomes(epsilon: float, q: float = 1.0) -> tuple[TwoOutcomes, TwoOutcomes]:
    """Randomised response, answered by those who are in a sample, in both directions."""
    high = 1 / (1 + mpmath.exp(-decimal(epsilon)))
    low = mpmath.exp(-decimal(epsilon)) * high
    yes, no = ((1 - decimal(q)) * absent + decimal(q) * present for absent, present in ((low, high), (high, low)))
    up, down = mpmath.log(yes / low), mpmath.log(no / high)
    return TwoOutcomes(yes, low, up, down), TwoOutcomes(high, no, -down, -up)


def binomial_delta(epsilon: Any, number: int, one: TwoOutcomes) -> Any:
    """Σ_k C(n, k) (P − e^ε Q)₊: only how often the worse outcome came matters. Summed from the largest term on."""
    first = max(0, int(mpmath.floor((epsilon - number * one.less) / (one.more - one.less))) + 1)
    if first > number:
        return mpmath.mpf(0)
    middle = max(first, int(number * one.p))
    log_binomial = mpmath.loggamma(number + 1) - mpmath.loggamma(middle + 1) - mpmath.loggamma(number - middle + 1)
    largest = mpmath.exp(log_binomial + middle * mpmath.log(one.p) + (number - middle) * mpmath.log(1 - one.p))
    odds, total = one.p / (1 - one.p), mpmath.mpf(0)
    grow, step = mpmath.exp(epsilon - number * one.less), mpmath.exp(one.less - one.more)
    for way in (1, -1):
        term, k = largest, middle
        shrunk = grow * step**middle  # e^(ε − loss)
        while first <= k <= number and term > total * mpmath.mpf(10) ** -(DIGITS - 10):
            total += term * (1 - shrunk) if way == 1 or k < middle else 0
            term *= (number - k) * odds / (k + 1) if way == 1 else k / ((number - k + 1) * odds)
            shrunk, k = shrunk * step**way, k + way
    return total


def repeated_response(number: int, epsilon: float, q: float = 1.0, own: float = 0.0) -> Profile:
    """δ of that many sampled randomised responses, each of which tells all with probability `own`."""
    directions = two_outcomes(epsilon, q)
    missed = -mpmath.expm1(number * mpmath.log1p(-decimal(own)))

    def profile(target: Any) -> Any:
        return missed + (1 - missed) * max(binomial_delta(target, number, one) for one in directions)

    return profile


@fewer
@given(
    st.integers(1, 3000),
    between(0.01, 10),
    st.sampled_from((0, 12)),
    between(1e-12, 0.4) | between(1e-40, 1e-12),
    adjacencies,
)
def test_black_boxes_are_the_binomial_formula(
    number: int, size: float, bits: int, delta: float, adjacency: Adjacency
) -> None:
    epsilon = size / math.sqrt(number)
    epsilon = max(1, round(epsilon * 2**bits)) / 2**bits if bits else epsilon  # with few bits it is on a node
    with mpmath.workdps(DIGITS):
        event = times(number, PureDP(epsilon=epsilon))
        assert_holds_the_truth(event, delta, adjacency, repeated_response(number, epsilon), EXACT)
        own = float(f"{delta / (3 * number):.3g}")
        assert_holds_the_truth(
            times(number, ApproxDP(epsilon=epsilon, delta=own)),
            delta,
            adjacency,
            repeated_response(number, epsilon, own=own),
            1e-15,  # 1 − Π(1 − δ) is a double
        )


#: Rates next to 1 and to 0, losses on a node, few large and many small steps; δ large and tiny.
SAMPLED_RESPONSES: Final = [
    (1, 3.0, 0.5, 1e-6),
    (2, 0.25, 0.25, 0.01),
    (40, 20.0, 1e-3, 1e-9),
    (300, 30.0, 1.6e-4, 0.03),
    (1000, 0.02, 0.999998, 1e-5),
    (1000, 0.5, 0.05, 1e-35),
    (3372, 30.0, 1.6e-4, 0.3),
    (100_000, 0.05, 0.1, 1e-10),
    (1_000_000, 0.0027, 0.9997, 0.3),
    (3_000_000, 0.001, 0.38, 3e-9),
]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "epsilon", "q", "delta"), SAMPLED_RESPONSES)
def test_sampled_black_boxes_are_the_binomial_formula(number: int, epsilon: float, q: float, delta: float) -> None:
    with mpmath.workdps(DIGITS):
        event = times(number, sampled(PureDP(epsilon=epsilon), q))
        assert_holds_the_truth(event, delta, "add_remove", repeated_response(number, epsilon, q), EXACT)


def laplace_delta(epsilon: Any, number: int, shift: Any) -> Any:
    """`number` Laplace releases: each loses t (chance ½), −t (chance e^−t / 2), or 2x − t with density e^(x − t) / 2.

    The density of several depends on their sum alone, whose volume is that of Irwin and Hall.
    """
    total = mpmath.mpf(0)
    for up, down in itertools.product(range(number + 1), repeat=2):
        inside = number - up - down
        if inside < 0:
            continue
        ways = mpmath.factorial(number) / mpmath.fprod(map(mpmath.factorial, (up, down, inside)))
        weight = ways * mpmath.exp(-down * shift) / 2**number
        loss = (up - down - inside) * shift
        if inside == 0:
            total += weight * max(mpmath.mpf(0), 1 - mpmath.exp(epsilon - loss))
            continue

        def density(x: Any, inside: int = inside) -> Any:
            terms = (
                (-1) ** k * mpmath.binomial(inside, k) * max(x - k * shift, 0) ** (inside - 1) for k in range(inside)
            )
            return mpmath.exp(x - inside * shift) * mpmath.fsum(terms) / mpmath.factorial(inside - 1)

        def excess(x: Any, loss: Any = loss, density: Profile = density) -> Any:
            return density(x) * (1 - mpmath.exp(epsilon - loss - 2 * x))

        start = max(mpmath.mpf(0), (epsilon - loss) / 2)
        panels = [start, *(k * shift for k in range(inside + 1) if k * shift > start)]
        total += weight * mpmath.fsum(mpmath.quad(excess, panel) for panel in itertools.pairwise(panels))
    return total


@pytest.mark.slow
@every_adjacency
@pytest.mark.parametrize(
    ("number", "scale", "delta"), [(1, 1.0, 0.1), (2, 0.7, 1e-5), (2, 16.0, 0.01), (3, 1.0, 1e-8), (5, 4.0, 0.003)]
)
def test_laplace_releases_are_their_sums(number: int, scale: float, delta: float, adjacency: Adjacency) -> None:
    with mpmath.workdps(25):
        shift = (2 if adjacency == "replace_one" else 1) / decimal(scale)

        def profile(epsilon: Any) -> Any:
            return laplace_delta(epsilon, number, shift)

        assert abs(profile(-number * shift) - (1 - mpmath.exp(-number * shift))) < 1e-20, "all mass is there"
        event = times(number, Laplace(scale=scale))
        assert_holds_the_truth(event, delta, adjacency, profile, 1e-15)


# ---------------------------------------------------------------- integrals and sums over outcomes


class Outcomes(NamedTuple):
    """A release in one direction as weighted losses: all outcomes of it, or the nodes of a rule that integrates it."""

    loss: Floats
    weight: Floats

    def __mul__(self, other: Outcomes) -> Outcomes:  # type: ignore[override]
        """Both releases."""
        return Outcomes(
            np.add.outer(self.loss, other.loss).ravel(), np.multiply.outer(self.weight, other.weight).ravel()
        )


Directions: TypeAlias = tuple[Outcomes, Outcomes]


def weighed(p: Floats, q: Floats) -> Directions:
    """Outcomes with these chances."""
    loss = np.log(p) - np.log(q)
    return Outcomes(loss, p), Outcomes(-loss, q)


def response(epsilon: float, q: float = 1.0) -> Directions:
    both = np.array([1 / (1 + math.exp(-epsilon)), 1 / (1 + math.exp(epsilon))])
    return weighed((1 - q) * both[::-1] + q * both, both[::-1])


def shifted_laplace(shift: float, q: float = 1.0) -> Directions:
    """Atoms below 0 and above the shift; between them 40 nodes of Gauss and Legendre on panels of at most 1."""
    nodes, weights = np.polynomial.legendre.leggauss(40)
    panels = np.linspace(0, shift, math.ceil(shift) + 1)
    x = np.concatenate([(a + b) / 2 + (b - a) / 2 * nodes for a, b in itertools.pairwise(panels)])
    width = np.concatenate([(b - a) / 2 * weights for a, b in itertools.pairwise(panels)])
    present = np.concatenate([[math.exp(-shift) / 2], width * np.exp(x - shift) / 2, [0.5]])
    absent = np.concatenate([[0.5], width * np.exp(-x) / 2, [math.exp(-shift) / 2]])
    return weighed((1 - q) * absent + q * present, absent)


def sampled_gaussian(q: float, sigma: float, adjacency: Adjacency, step: float = 0.2) -> Directions:
    """Equidistant nodes: the integrands are analytic, so the error falls off faster than any power of the step."""
    reach = 10 + 1 / sigma
    x = np.arange(-reach if adjacency == "replace_one" else -10, reach, step)
    density = np.exp(-x * x / 2) * step / math.sqrt(2 * math.pi)

    def ratio(way: int) -> Floats:
        tilted: Floats = 1 - q + q * np.exp(way * x / sigma - 0.5 / sigma**2)
        return tilted

    return weighed(density * ratio(1), density * (ratio(-1) if adjacency == "replace_one" else 1))


def normal_profile(shift: float) -> tuple[Callable[[Floats], Floats], Callable[[Floats], Floats]]:
    """δ(ε) of N(shift, 1) against N(0, 1), at all ε at once; its own mirror image."""

    def delta(epsilon: Floats) -> Floats:
        near, far = epsilon / shift - shift / 2, epsilon / shift + shift / 2
        value: Floats = ndtr(-near) - np.exp(np.minimum(epsilon, 700)) * ndtr(-far)
        return np.maximum(value, 0.0)

    return delta, delta


def sampled_normal_profile(q: float, sigma: float) -> tuple[Callable[[Floats], Floats], Callable[[Floats], Floats]]:
    """δ(ε) of (1 − q) N(0, σ²) + q N(1, σ²) against N(0, σ²), and the other way round: where the densities cross."""

    def crossing(loss: Floats) -> Floats:
        with np.errstate(divide="ignore"):
            point: Floats = sigma * np.log(np.maximum(np.expm1(np.minimum(loss, 700)) + q, 0) / q) + 0.5 / sigma
        return point

    def removed(epsilon: Floats) -> Floats:
        x, grow = crossing(epsilon), np.exp(np.minimum(epsilon, 700))
        return (1 - q - grow) * ndtr(-x) + q * ndtr(1 / sigma - x)

    def added(epsilon: Floats) -> Floats:
        x, grow = crossing(-epsilon), np.exp(np.minimum(epsilon, 700))
        return (1 - grow * (1 - q)) * ndtr(x) - grow * q * ndtr(x - 1 / sigma)

    return removed, added


def composed_profile(
    parts: Sequence[Directions],
    last: tuple[Callable[[Floats], Floats], Callable[[Floats], Floats]],
    missed: float = 0.0,
) -> Profile:
    """δ(ε) of all parts together, the last by its own profile: E δ(ε − losses of the others)."""
    both = []
    for direction in (0, 1):
        before = Outcomes(np.zeros(1), np.ones(1))
        for part in parts:
            before = before * part[direction]
        both.append(before)

    def profile(epsilon: Any) -> Any:
        worst = max(
            float(np.sum(before.weight * delta(float(epsilon) - before.loss)))
            for before, delta in zip(both, last, strict=True)
        )
        return mpmath.mpf(missed + (1 - missed) * worst)

    return profile


def test_the_integrals_of_one_law_are_one() -> None:
    for q, sigma in ((0.01, 0.5), (0.5, 1.0), (0.999, 3.0)):
        for adjacency in ADJACENCIES:
            for way in sampled_gaussian(q, sigma, adjacency):
                assert float(way.weight.sum()) == pytest.approx(1, abs=1e-13)
                assert float((way.weight * np.exp(-way.loss)).sum()) == pytest.approx(1, abs=1e-13)
    for way in shifted_laplace(1.7, 0.3):
        assert float(way.weight.sum()) == pytest.approx(1, abs=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folds", "q", "sigma", "delta", "step"),
    [
        (1, 1e-4, 0.6, 1e-7, 0.2),
        (1, 0.9999, 1.5, 1e-5, 0.2),
        (2, 1e-4, 0.6, 1e-7, 0.0001),  # the second profile is steep where the first loses much
        (2, 0.01, 0.8, 1e-6, 0.0005),
        (2, 0.3, 0.4, 1e-9, 0.01),
        (2, 0.999998, 1.0, 1e-6, 0.05),
        (3, 0.1, 1.0, 1e-7, 0.02),
        (3, 0.9, 2.0, 0.05, 0.1),
        (4, 0.3, 2.0, 1e-6, 0.15),
        (4, 0.9, 2.0, 0.2, 0.2),
        (4, 0.9999, 1.5, 1e-5, 0.2),
    ],
)
def test_sampled_gaussians_are_their_integrals(folds: int, q: float, sigma: float, delta: float, step: float) -> None:
    profile, coarser = (
        composed_profile(
            [sampled_gaussian(q, sigma, "add_remove", each)] * (folds - 1), sampled_normal_profile(q, sigma)
        )
        for each in (step, 1.25 * step)
    )
    event = times(folds, sampled(Gaussian(noise_multiplier=sigma), q))
    at = prv.upper_bound(event, delta=delta, adjacency="add_remove")
    error = float(abs(profile(at) / coarser(at) - 1))
    assert error < 1e-7, "the rule itself must be right"
    assert_holds_the_truth(event, delta, "add_remove", profile, INTEGRATED + 10 * error)


#: Parts that an integral can compose with a Gaussian: event, its outcomes under add/remove, and under replace-one.
PARTS: Final[Sequence[tuple[Event, Directions, Directions | None]]] = [
    (
        sampled(Gaussian(noise_multiplier=0.9), 0.2),
        sampled_gaussian(0.2, 0.9, "add_remove"),
        sampled_gaussian(0.2, 0.9, "replace_one"),
    ),
    (
        sampled(Gaussian(noise_multiplier=2.0), 0.7),
        sampled_gaussian(0.7, 2.0, "add_remove"),
        sampled_gaussian(0.7, 2.0, "replace_one"),
    ),
    (Laplace(scale=1.5), shifted_laplace(1 / 1.5), shifted_laplace(2 / 1.5)),
    (sampled(Laplace(scale=0.5), 0.1), shifted_laplace(2.0, 0.1), None),
    (PureDP(epsilon=0.7), response(0.7), response(0.7)),
    (sampled(PureDP(epsilon=2.0), 0.3), response(2.0, 0.3), None),
]


@every_adjacency
@pytest.mark.parametrize("delta", [1e-9, 1e-4, 0.2])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_parts_of_every_kind_beside_a_gaussian_are_their_integrals(
    number: int, delta: float, adjacency: Adjacency
) -> None:
    changed = 2 if adjacency == "replace_one" else 1
    known = [(event, added if changed == 1 else replaced) for event, added, replaced in PARTS]
    for chosen in itertools.combinations([(event, law) for event, law in known if law is not None], number):
        event = together(Gaussian(noise_multiplier=1.7), *(part for part, _ in chosen))
        profile = composed_profile([law for _, law in chosen], normal_profile(changed / 1.7))
        assert_holds_the_truth(event, delta, adjacency, profile, INTEGRATED)


@given(
    st.lists(st.tuples(between(1e-3, 4), st.sampled_from((0.0, 1e-9, 1e-6))), min_size=1, max_size=12),
    between(0.05, 4),
    between(1e-5, 0.3),
    adjacencies,
)
def test_different_black_boxes_beside_a_gaussian_are_all_their_outcomes(
    boxes: list[tuple[float, float]], shift: float, delta: float, adjacency: Adjacency
) -> None:
    noise = (2 if adjacency == "replace_one" else 1) / shift
    event = together(
        Gaussian(noise_multiplier=noise), *(ApproxDP(epsilon=epsilon, delta=own) for epsilon, own in boxes)
    )
    missed = -math.expm1(math.fsum(math.log1p(-own) for _, own in boxes))
    profile = composed_profile([response(epsilon) for epsilon, _ in boxes], normal_profile(shift), missed)
    assert_holds_the_truth(event, delta, adjacency, profile, INTEGRATED)


@pytest.mark.parametrize("q", [1.0, 0.2])
@pytest.mark.parametrize(
    ("epsilon", "own", "noise"), [(1.0, 1e-5, 2.0), (0.5, 1e-4, 0.8), (3.0, 1e-3, 1.0), (0.01, 0.02, 1.0)]
)
def test_label_release_beside_a_gaussian_costs_what_some_count_costs(
    epsilon: float, own: float, noise: float, q: float
) -> None:
    """Each count of a label is a mechanism that is told or not; the truth is the worst count, at most the upper end."""
    release = PartitionSelection(epsilon=epsilon, delta=own)
    event = together(Gaussian(noise_multiplier=noise), release if q == 1 else sampled(release, q))
    sizes = np.arange(0, 2 * partition.threshold(epsilon=epsilon, delta=own) + 3)
    told = np.concatenate([[0.0], partition.inclusion_probability(sizes[1:], epsilon=epsilon, delta=own)])
    gaussian, _ = normal_profile(1 / noise)

    def true_delta(target: float) -> float:
        worst = 0.0
        for fewer_told, more_told in itertools.pairwise(told):
            present, absent = np.array([more_told, 1 - more_told]), np.array([fewer_told, 1 - fewer_told])
            present = (1 - q) * absent + q * present
            for p, other in ((present, absent), (absent, present)):
                sure = float(p[other == 0].sum())
                both = (p > 0) & (other > 0)
                loss = np.log(p[both] / other[both])
                worst = max(worst, sure + float((p[both] * gaussian(target - loss)).sum()))
        return worst

    for delta in (2 * own, 20 * own):
        found = prv.bracket(event, delta=delta, adjacency="add_remove")
        assert found.remark == ""
        assert true_delta(found.upper) <= delta
        assert found.lower == 0 or true_delta(found.lower) >= delta * (1 - 1e-6)
        assert found.upper > 0


@every_adjacency
def test_l2_laplace_lies_between_one_coordinate_and_a_black_box(adjacency: Adjacency) -> None:
    shift = 0.5 * (2 if adjacency == "replace_one" else 1)
    ball, one_coordinate, black_box = (
        prv.bracket(times(5, event), delta=1e-3, adjacency=adjacency)
        for event in (L2Laplace(scale=2.0), Laplace(scale=2.0), PureDP(epsilon=shift))
    )
    assert ball.upper == black_box.upper > one_coordinate.upper
    assert ball.lower == pytest.approx(one_coordinate.lower, rel=1e-3)
    assert ball.lower < one_coordinate.upper


@pytest.mark.parametrize(("epsilon", "q"), [(2.0, 0.01), (1.0, 0.3), (0.5, 0.9)])
def test_releases_that_share_a_sample_lose_no_less_than_the_lower_end(epsilon: float, q: float) -> None:
    """Two randomised responses, answered by those who are in one sample: all their outcomes."""
    event = sampled(together(PureDP(epsilon=epsilon), PureDP(epsilon=epsilon)), q)
    both = response(epsilon)[0] * response(epsilon)[0]
    present, absent = both.weight, both.weight * np.exp(-both.loss)
    directions = weighed((1 - q) * absent + q * present, absent)
    for delta in (0.1, 0.01, 1e-3, 1e-5):
        found = prv.bracket(event, delta=delta, adjacency="add_remove")
        lower, upper = (
            max(float(np.sum(way.weight * np.maximum(0.0, -np.expm1(end - way.loss)))) for way in directions)
            for end in (found.lower, found.upper)
        )
        assert found.lower == 0 or lower >= delta * (1 - 1e-9)
        assert upper <= delta * (1 + 1e-9)


@every_adjacency
@pytest.mark.parametrize("inner", [Laplace(scale=1.0), together(Gaussian(noise_multiplier=1.0), Laplace(scale=1.0))])
def test_what_is_charged_in_full_has_no_lower_end_of_its_own(inner: Event, adjacency: Adjacency) -> None:
    """One in a hundred is in the sample: whatever happens there, ε is small at a δ that a hundredth of it has."""
    found = prv.bracket(sampled(inner, 0.01), delta=1e-3, adjacency=adjacency)
    most = account(inner, delta=0.1, adjacency=adjacency).upper
    assert found.lower <= math.log1p(0.01 * math.expm1(most)) - math.log1p(0.01 * math.expm1(-most))
    assert found.upper > 0


def test_what_nobody_is_known_to_lose_adds_nothing_to_the_lower_end() -> None:
    known = {pairs.Part(Normal(1.0), 0.0, Normal(1.0)): 1, pairs.Part(TwoPoints(0.5), 1e-4, TwoPoints(0.5)): 1}
    grid = prv.Grid(2.0**-8, 2**12, 2.0, 1e-20, 2.0**-6)
    alone = prv._lower(known, 1e-3, grid)
    assert alone > 1
    for unknown in (pairs.Part(TwoPoints(1.0), 0.0, None), pairs.Part(TwoPoints(1.0), 5e-4, None)):
        assert prv._lower({**known, unknown: 3}, 1e-3, grid) == alone
        assert prv._lower({unknown: 3}, 1e-3, grid) == 0


@pytest.mark.parametrize(("outer", "inner"), [(0.1, 0.3), (0.7, 0.7), (0.123456789, 0.987654321), (1e-3, 1e-3)])
def test_a_sample_of_a_sample_is_charged_at_no_lower_rate(outer: float, inner: float) -> None:
    for adjacency in ADJACENCIES:
        (part,) = pairs.parts(sampled(sampled(Gaussian(noise_multiplier=1.0), inner), outer), adjacency)
        assert isinstance(part.pair, Sampled | SampledReplaced)
        assert Fraction(part.pair.q) >= Fraction(outer) * Fraction(inner)


@pytest.mark.parametrize("scale", [0.1, 0.3, 0.7, 1.1, 2.3, 49.0, 301.0])
def test_bounds_of_losses_are_rounded_up(scale: float) -> None:
    for adjacency, changed in zip(ADJACENCIES, (1, 2), strict=True):
        for event in (Laplace(scale=scale), L2Laplace(scale=scale)):
            (part,) = pairs.parts(event, adjacency)
            assert exact(part.pair.reach) >= changed / exact(scale)
    (box,) = pairs.parts(ApproxDP(epsilon=scale, delta=scale * 1e-6), "add_remove")
    assert exact(box.pair.reach) >= exact(scale)
    assert exact(box.infinite) >= exact(scale * 1e-6)


def test_a_replaced_record_can_give_away_its_old_label_and_its_new_one() -> None:
    """Under replace-one a release of labels is charged twice."""
    release = PartitionSelection(epsilon=1.0, delta=1e-6)
    once, twice = (prv.log_finite(pairs.parts(release, adjacency)) for adjacency in ("add_remove", "replace_one"))
    assert once < 0
    assert twice == pytest.approx(2 * once, rel=1e-9)


# ---------------------------------------------------------------- where there is no answer

NOISY_STEP: Final = sampled(Gaussian(noise_multiplier=1.0), 0.01)

#: why → an event, and the δ at which it has no numerical answer for that reason.
UNCOVERED: Final[Mapping[str, tuple[Event, float]]] = {
    "no pair dominates every ρ-zCDP mechanism": (together(ZCDP(rho=0.1), NOISY_STEP), 1e-5),
    "1,000,000,000 steps": (times(10**9, sampled(Gaussian(noise_multiplier=5.0), 1e-5)), 1e-5),
    "δ is too small": (times(10, NOISY_STEP), 1e-57),
    "rounding errors are larger than δ": (times(30, sampled(PureDP(epsilon=1.0), 0.5)), 1e-30),
    "losses beyond 500": (times(2, sampled(Gaussian(noise_multiplier=0.03), 0.5)), 1e-5),
    "a loss of more than 500": (times(2, sampled(Laplace(scale=0.001), 0.5)), 1e-5),
    "need too many points": (times(10**5, sampled(PureDP(epsilon=20.0), 0.5)), 1e-5),
}


@contextmanager
def memory_below(megabytes: float) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < megabytes * 1e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("reason", UNCOVERED)
def test_another_engine_answers_and_the_account_says_why(reason: str) -> None:
    event, delta = UNCOVERED[reason]
    whole = account(event, delta=delta)
    prv._coarse_cumulants.cache_clear()
    pairs.support.cache_clear()
    with memory_below(50):
        found = prv.bracket(event, delta=delta, adjacency="add_remove")
    assert reason in found.remark
    assert (found.lower, found.upper) == (0.0, math.inf)
    assert prv.upper_bound(event, delta=delta, adjacency="add_remove") == math.inf
    assert whole.engine == "rdp"
    assert whole.remark == found.remark
    assert 0 < whole.upper < math.inf


@pytest.mark.parametrize(("limit", "most"), [("MAX_WORK", 2**10), ("_MOST_EFFORT", 2**12)])
def test_too_many_different_parts_have_no_answer(limit: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    event = together(NOISY_STEP, *(Laplace(scale=3.0 + number) for number in range(50)))
    assert account(event, delta=1e-5).engine == "prv"
    monkeypatch.setattr(prv, limit, most)
    found = account(event, delta=1e-5)
    assert found.engine == "rdp"
    assert "51 different parts" in found.remark


def products(exponent: int) -> int:
    """How many products a power takes, by taking one of what counts them."""
    taken = 0

    class Factor:
        def __mul__(self, _: Factor) -> Factor:
            nonlocal taken
            taken += 1
            return self

    factor: Any = Factor()
    prv_power(factor, exponent)
    return taken


prv_power: Final = prv._power  # as it is when no test watches it


@pytest.mark.parametrize("number", [1, 2, 3, 63, 64, 1000, 10**8])
def test_powers_are_counted_before_they_are_taken(number: int) -> None:
    """By what they cost beside a transform; frequencies of which nothing is left cost nothing."""
    law = prv._kept_once(Normal(0.3), prv.Grid(2.0**-7, 512, 2.0, 1e-15, 2.0**-7), "above", None)
    left = law.transform.size if number < 64 else int(np.count_nonzero(law.repeated(number).transform))
    assert law.effort_of(number) == pytest.approx(prv._PRODUCT * left * products(number))
    assert left < law.transform.size or number < 64


@pytest.mark.parametrize("number", [64, 100, 10**4])
@pytest.mark.parametrize("extended", [False, True])
def test_frequencies_of_which_nothing_is_left_are_within_the_error(number: int, *, extended: bool) -> None:
    grid = prv.Grid(2.0**-7, 1024, 2.0, 1e-15, 2.0**-7, extended)
    once = prv._kept_once(Normal(0.05), grid, "above", None)
    law = once.repeated(number)
    silent = law.transform == 0
    assert silent.any()
    with np.errstate(under="ignore"):
        missing = np.where(silent, np.abs(once.transform) ** number, 0.0)
    assert missing.max() <= 2e-16 * once.noise < 1e-3 * law.cut(grid.points, 0.0).rounding
    assert np.array_equal(law.transform[~silent], prv_power(once.transform, number)[~silent])


LONG_AND_LOUD: Final = {
    "three trainings of little noise": together(
        times(10**5, sampled(Gaussian(noise_multiplier=0.3), 0.01)),
        times(10**4, sampled(Gaussian(noise_multiplier=0.2), 1e-4)),
        times(100, sampled(Gaussian(noise_multiplier=0.1), 1e-3)),
    ),
    "kinds of all lengths": together(
        times(10**7, sampled(Gaussian(noise_multiplier=1.0), 1e-5)),
        times(10**6, sampled(Laplace(scale=1.0), 1e-4)),
        times(10**5, sampled(PureDP(epsilon=1.0), 1e-4)),
        Gaussian(noise_multiplier=0.5),
        PureDP(epsilon=100.0),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG_AND_LOUD)
def test_long_runs_do_not_hide_products(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Powers of transforms once took three times as long as the transforms, and were not counted."""
    spent: list[float] = []

    def counted_power(base: prv.Complexes, exponent: int) -> prv.Complexes:
        unit = prv._PRODUCT if base.dtype == np.complex128 else prv._EXTENDED_PRODUCT
        spent.append(base.size * products(exponent) * unit)
        return prv_power(base, exponent)

    grids: list[prv.Grid] = []
    composed = prv.composed

    def watched(counts: prv.Counts, grid: prv.Grid, side: Side, **options: Any) -> prv.Composed:
        if side == "above":
            grids.append(grid)
        return composed(counts, grid, side, **options)

    monkeypatch.setattr(prv, "_power", counted_power)
    monkeypatch.setattr(prv, "composed", watched)
    found = prv.bracket(LONG_AND_LOUD[name], delta=1e-5, adjacency="add_remove")
    assert found.upper < math.inf
    assert sum(spent) <= prv._MOST_EFFORT
    assert len(set(grids)) == len(grids), "no grid is tried twice"


def trainings(chance: random.Random, number: int, steps: int) -> Event:
    rate = chance.choice((1e-5, 1e-4, 1e-3, 1e-2))
    return together(
        *(
            times(
                round(steps * chance.uniform(0.5, 1.5)),
                sampled(Gaussian(noise_multiplier=chance.uniform(0.6, 3.0)), rate * chance.uniform(0.5, 1.0)),
            )
            for _ in range(number)
        )
    )


@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_computed_beyond_the_limit(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many different parts there are, and whatever was cached; the last of them is not begun."""
    monkeypatch.setattr(prv, "_MOST_EFFORT", 2**20)
    places: list[float] = []
    once, chance = prv._once, random.Random(seed)

    def counted(pair: Pair, grid: prv.Grid, side: Side, kept: int | None) -> prv.Composed:
        part = once(pair, grid, side, kept)
        width = part.transform.shape[1]
        # what was computed, by its results: all frequencies of the grid, or the few that were asked for
        places.append(prv._points(pair, grid.mesh, grid.tail) + (grid.points if width > prv.MAX_FREQUENCIES else width))
        return part

    power = prv._power

    def counted_power(base: prv.Complexes, exponent: int) -> prv.Complexes:
        unit = prv._PRODUCT if base.dtype == np.complex128 else prv._EXTENDED_PRODUCT
        places.append(base.size * products(exponent) * unit)
        return power(base, exponent)

    monkeypatch.setattr(prv, "_once", counted)
    monkeypatch.setattr(prv, "_power", counted_power)
    answers = []
    for steps in (10, 10**3, 10**5):
        event = trainings(chance, 20, steps)
        answers.append(account(event, delta=1e-9))
        assert sum(places) <= 4 * 2**20  # three kinds of grids from above, and once from below
        assert account(event, delta=1e-9) == answers[-1]
        places.clear()
    assert any("20 different parts" in answer.remark for answer in answers)


def test_little_noise_in_a_sample_has_no_answer_under_replace_one() -> None:
    event = times(2, sampled(Gaussian(noise_multiplier=0.049), 0.5))
    assert "noise below 0.05" in account(event, delta=1e-5, adjacency="replace_one").remark


def test_an_answer_has_no_remark() -> None:
    found = account(times(100, NOISY_STEP), delta=1e-5)
    assert (found.engine, found.remark) == ("prv", "")


@pytest.mark.parametrize(
    "event", [NonPrivate(), ApproxDP(epsilon=0.1, delta=1e-5)], ids=["non_private", "all_of_delta"]
)
def test_a_remark_is_only_about_what_is_missing(event: Event) -> None:
    found = account(together(event, Gaussian(noise_multiplier=1.0)), delta=1e-5)
    assert found.upper == math.inf
    assert found.remark == ""


def test_large_compositions_take_bounded_memory() -> None:
    event = times(10**6, sampled(Gaussian(noise_multiplier=1.0), 1e-4))
    with memory_below(600):
        found = prv.bracket(event, delta=1e-6, adjacency="add_remove")
    assert found.upper < math.inf


def test_nothing_costs_nothing() -> None:
    for event in (together(), PureDP(epsilon=0), sampled(Gaussian(noise_multiplier=1.0), 0.0)):
        assert prv.bracket(event, delta=1e-5, adjacency="add_remove") == (0.0, 0.0, "")
        assert prv.upper_bound(event, delta=1e-5, adjacency="add_remove") == 0.0


# ---------------------------------------------------------------- one composition, one answer


@every_adjacency
def test_order_and_nesting_make_no_difference(adjacency: Adjacency) -> None:
    parts: list[Event] = [
        times(300, NOISY_STEP),
        times(200, sampled(Gaussian(noise_multiplier=2.0), 0.05)),
        Gaussian(noise_multiplier=3.0),
        Gaussian(noise_multiplier=7.0),
        Laplace(scale=3.0),
        L2Laplace(scale=4.0),
        PartitionSelection(epsilon=0.5, delta=1e-7),
    ]
    asked = prv.bracket(together(*parts), delta=1e-5, adjacency=adjacency)
    assert 0 < asked.lower < asked.upper < math.inf
    nested = together(parts[4], together(*parts[5:], together(parts[3], parts[1])), parts[0], parts[2])
    split = together(*(times(n, part) for n in (100, 200) for part in (NOISY_STEP,)), *parts[1:])
    for other in (together(*reversed(parts)), nested, split):
        assert prv.bracket(other, delta=1e-5, adjacency=adjacency) == asked
    assert prv.upper_bound(together(*parts), delta=1e-5, adjacency=adjacency) == asked.upper


def test_what_was_asked_before_makes_no_difference() -> None:
    event = together(times(300, NOISY_STEP), Laplace(scale=3.0))
    first = prv.bracket(event, delta=1e-5, adjacency="add_remove")
    prv.bracket(together(event, times(1000, NOISY_STEP)), delta=1e-7, adjacency="add_remove")
    for cache in (prv._kept_once, prv._factors, prv._coarse_cumulants, pairs.support, pairs._kept_cells):
        cache.cache_clear()
    assert prv.bracket(event, delta=1e-5, adjacency="add_remove") == first


@given(trees(), between(1e-50, 1e-12) | between(1e-12, 0.5), adjacencies)
def test_trees_of_all_kinds_have_brackets_in_order_and_no_warnings(
    event: Event, delta: float, adjacency: Adjacency
) -> None:
    """Warnings are errors in all our tests; no engine contradicts another."""
    found = prv.bracket(event, delta=delta, adjacency=adjacency)
    assert 0 <= found.lower <= found.upper
    assert (found.remark != "") == (found.upper == math.inf)
    assert prv.upper_bound(event, delta=delta, adjacency=adjacency) == found.upper
    whole = account(event, delta=delta, adjacency=adjacency)
    assert found.lower <= whole.upper
    assert whole.lower <= found.upper


def test_masses_that_leave_the_range_of_floats_cause_no_warning() -> None:
    rare_step = sampled(Gaussian(noise_multiplier=43.33846005010819), 0.001)
    event = together(Gaussian(noise_multiplier=1.0), rare_step)
    assert prv.bracket(event, delta=1e-27, adjacency="replace_one").upper > 0
    pairs.laws(SampledReplaced(0.5, 9616.659187043771), mesh=2.0**-8, tail=1e-60, side="below")


@rare
@given(trees(2), between(1e-8, 0.1), adjacencies)
def test_a_larger_delta_never_costs_more_than_the_bracket_is_wide(
    event: Event, delta: float, adjacency: Adjacency
) -> None:
    smaller, larger = (prv.bracket(event, delta=each, adjacency=adjacency) for each in (delta / 2, delta))
    if not smaller.remark:
        assert larger.lower <= smaller.upper


# ---------------------------------------------------------------- grids that are too short, tails that are too thick


def ill_fitting_grids() -> Iterator[tuple[float, prv.Grid]]:
    for shift, width, tilt, tail in itertools.product(
        (0.3, 1.0, 3.0), (1, 2, 4, 8, 16, 32), (0.25, 1.0, 4.0, 16.0), (1e-30, 1e-7)
    ):
        yield shift, prv.Grid(2.0**-7, width * 2**7, tilt, tail, 2.0**-6)


FOUR_STEPS: Final = 4


@pytest.mark.parametrize("delta", [0.2, 1e-2, 2e-6])
def test_an_upper_bound_on_a_grid_that_does_not_fit_is_loose_but_sound(delta: float) -> None:
    """What wraps around, and what is cut off, is counted against us."""
    answers = 0
    for shift, grid in ill_fitting_grids():
        counts: dict[Pair, int] = {Normal(shift): FOUR_STEPS}
        with suppress(pairs.Uncovered), mpmath.workdps(DIGITS):
            upper = prv.epsilon_above(prv.composed(counts, grid, "above"), grid, delta)
            answers += 1
            assert gaussian_delta(mpmath.mpf(upper), shift * mpmath.sqrt(FOUR_STEPS)) <= delta, (shift, grid, upper)
    assert answers > 20


def test_a_lower_bound_on_a_grid_that_does_not_fit_is_loose_but_sound() -> None:
    answers = 0
    for (shift, grid), delta in itertools.product(ill_fitting_grids(), (0.2, 1e-2, 2e-6)):
        counts: dict[Pair, int] = {Normal(shift): FOUR_STEPS}
        with suppress(pairs.Uncovered), mpmath.workdps(DIGITS):
            lower = prv._epsilon_below(prv.composed(counts, grid, "below"), grid, delta)
            true = gaussian_delta(mpmath.mpf(lower), shift * mpmath.sqrt(FOUR_STEPS))
            answers += lower > 0
            assert lower == 0 or true >= delta, (shift, grid, delta, lower)
    assert answers > 20


def test_a_sketch_on_a_grid_that_does_not_fit_is_loose_but_sound() -> None:
    told = 0
    for shift, grid in ill_fitting_grids():
        law = prv.composed({Normal(shift): FOUR_STEPS}, grid, "above").cut(grid.points, 1e-14)
        if law.kept > grid.points // 2:
            continue
        sketch = reports.Sketch(grid, law, 0.0)
        with mpmath.workdps(DIGITS):
            for epsilon in (0.0, 0.1, 0.3, 1.0, 2.0, 3.7, 6.0, 12.0, 20.0):
                true = gaussian_delta(mpmath.mpf(epsilon), shift * mpmath.sqrt(FOUR_STEPS))
                delta = sketch.delta(epsilon)
                told += delta < 1
                assert delta >= true * (1 - mpmath.mpf(1e-12)), (shift, grid, epsilon)
    assert told > 300


@pytest.mark.parametrize("tilt", [2.0**-6, 0.25, 1.0, 4.0])
def test_an_atom_beyond_the_end_of_a_short_grid_counts_in_full(tilt: float) -> None:
    """It wraps around to a place next to ε, where it would count for next to nothing."""
    grid = prv.Grid(2.0**-6, 64, tilt, 1e-20, 2.0**-6)
    for loss in (1.0, 1 + grid.mesh, 1 + 2 * grid.mesh, 1.5, 2 + grid.mesh):
        law = prv.composed({TwoPoints(loss): 1}, grid, "above")
        chance = 1 / (1 + math.exp(-loss))
        for epsilon in (0.0, grid.mesh / 2, grid.mesh, 0.3, 1.0):
            true = chance * max(0.0, -math.expm1(epsilon - loss))
            assert reports.Sketch(grid, law, 0.0).delta(epsilon) >= true * (1 - 1e-12), (loss, epsilon)
        for delta in (0.3, 0.05, 1e-3):
            with suppress(pairs.Uncovered):
                upper = prv.epsilon_above(law, grid, delta)
                assert chance * -math.expm1(upper - loss) <= delta * (1 + 1e-12), (loss, delta)


#: What a grid of few points holds in nearly all digits: losses on its nodes, or a little above one of them.
ON_NODES: Final = TwoPoints(0.25)
ABOVE_A_NODE: Final = TwoPoints(0.25 + 1e-12)


@pytest.mark.parametrize("size", [0.0, 1e-9, 1e-5, 1e-3])
@pytest.mark.parametrize("tilt", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("number", [1, 4, 30])
def test_masses_that_are_wrong_by_what_is_admitted_leave_the_bounds_sound(
    number: int, tilt: float, size: float
) -> None:
    """All masses of the tilted law too small, or too large, or either; bounds from the exact sum over outcomes."""
    mesh, points = 2.0**-4, 2**9
    grid = prv.Grid(mesh, points, tilt, 1e-20, 2.0**-6)
    boxes = {"above": ON_NODES, "below": ABOVE_A_NODE}
    laws = {side: prv.composed({boxes[side]: number}, grid, side) for side in SIDES}
    chance, answers = np.random.default_rng(3), 0
    with mpmath.workdps(DIGITS):
        for side, how in itertools.product(SIDES, range(3)):
            law, (one, _) = laws[side], two_outcomes(boxes[side].epsilon)
            shape = law.transform.shape[0], points
            moved = (np.full(shape, -size), np.full(shape, size), chance.uniform(-size, size, shape))[how]
            wrong = law._replace(
                transform=np.fft.rfft(np.fft.irfft(law.transform, points) + moved), dropped=law.dropped + size / 2
            )
            for delta in (0.3, 0.05, 1e-3, 1e-5):
                with suppress(pairs.Uncovered):
                    if side == "above":
                        upper = prv.epsilon_above(wrong, grid, delta)
                        assert binomial_delta(mpmath.mpf(upper), number, one) <= delta, (how, delta)
                        answers += 1
                    else:
                        lower = prv._epsilon_below(wrong, grid, delta)
                        assert lower == 0 or binomial_delta(mpmath.mpf(lower), number, one) >= delta, (how, delta)
    assert answers or size * tilt > 1e-5


@pytest.mark.parametrize("number", [1, 4, 12])
@pytest.mark.parametrize("infinite", [1e-3, 0.02])
def test_what_is_cut_off_counts_at_every_step_and_in_every_part(infinite: float, number: int) -> None:
    """Q's loss against P of a sampled black box, of which some is infinite; beside another that has it too."""
    grid = prv.Grid(2.0**-6, 2**11, 2.0, 1e-20, 2.0**-6)
    half = Sampled(0.5, ON_NODES, infinite)
    chance = 0.5 * infinite
    both: tuple[dict[Pair, int], ...] = ({half: number}, {half: number, Sampled(0.5, TwoPoints(0.5), infinite): 2})
    for counts in both:
        steps = sum(counts.values())
        law = prv.composed(counts, grid, "above")
        sure = -math.expm1(steps * math.log1p(-chance))
        assert -math.expm1(float(law.log_finite.min())) >= sure * (1 - 1e-12)
        with pytest.raises(pairs.Uncovered):
            prv.epsilon_above(law, grid, sure * (1 - 1e-9))
        assert prv.epsilon_above(law, grid, sure * 1.01) > 0
        top = 0.5 * steps
        assert reports.Sketch(grid, law, 0.0)._delta(top) >= sure * (1 - 1e-12)
        assert reports.Sketch(grid, law, math.log1p(-0.1))._delta(top) >= sure + 0.1 * (1 - sure) * (1 - 1e-12)


# ---------------------------------------------------------------- the lowest frequencies alone


@pytest.mark.parametrize("side", ["above", "below"])
@pytest.mark.parametrize("points", [2**10, 3 * 2**12])
@pytest.mark.parametrize(
    "pair", [Normal(0.3), Sampled(0.01, Normal(1.0)), TwoPoints(1.3), ShiftedLaplace(0.7)], ids=repr
)
def test_low_frequencies_are_those_of_the_whole_transform(pair: Pair, points: int, side: Side) -> None:
    grid = prv.Grid(2.0**-9, points, 4.0, 1e-20, 2.0**-6)
    whole, low = (prv._kept_once(pair, grid, side, kept) for kept in (None, 96))
    assert low.dropped == math.inf
    assert np.abs(low.transform - whole.transform[:, :96]).max() <= whole.noise + low.noise
    assert np.abs(whole.transform).max() <= 1 + whole.noise
    higher = low.cumulant - whole.cumulant if side == "above" else whole.cumulant - low.cumulant
    assert (higher > 0).all()
    assert (higher < 2e-12).all()


@pytest.mark.parametrize("side", ["above", "below"])
def test_what_later_parts_do_to_dropped_frequencies_is_within_the_error(side: Side) -> None:
    counts: dict[Pair, int] = {Sampled(0.01, Normal(1 / (1 + number / 5))): 100 for number in range(6)}
    grid = prv.grid_for(counts, 1e-5)
    law = prv.composed(counts, grid, side)
    parts = [(prv._kept_once(pair, grid, side, None), times) for pair, times in counts.items()]
    powers = (part.repeated(times)._replace(transform=prv_power(part.transform, times)) for part, times in parts)
    whole = functools.reduce(prv.Composed.plus, powers).cut(grid.points, 0.0)  # with all frequencies
    assert law.kept < prv.MAX_FREQUENCIES < whole.kept
    tilted, truth = (np.fft.irfft(each.transform, grid.points) for each in (law, whole))
    assert np.abs(tilted - truth).max() <= law.rounding + whole.rounding
    assert law.rounding < 1e-9 * truth.max()


# ---------------------------------------------------------------- errors as large as an engine may make them


@dataclass(frozen=True)
class Clumsy(Pair):
    """A pair whose masses are wrong by all that it admits, which is not the same in all cells.

    What P misses as a whole is up to `error`, and no part of what a law promises.
    """

    inner: Pair
    error: float
    way_p: int
    way_q: int

    def masses(self, edges: Floats) -> pairs.Masses:
        p, q, own = self.inner.masses(edges)
        error = self.error * (1 + np.arange(len(p)) % 3) / 3
        return pairs.Masses(p * (1 + self.way_p * error), q * (1 + self.way_q * error), own + error)

    @property
    def reach(self) -> float:
        return self.inner.reach


@pytest.mark.parametrize("error", [1e-9, 1e-4, 0.02])
@pytest.mark.parametrize("pair", [TwoPoints(0.25), TwoPoints(0.7), Normal(0.5), Sampled(0.1, Normal(2.0))], ids=repr)
def test_whatever_errors_masses_admit_the_laws_hold_the_pair_between_them(pair: Pair, error: float) -> None:
    mesh = 2.0**-6
    epsilons = np.concatenate([np.arange(-8, 20) * mesh, np.arange(-2, 8) * 0.1003])
    with mpmath.workdps(DIGITS):
        true = [hockey_sticks(pair, float(epsilon)) for epsilon in epsilons]
        for ways in itertools.product((-1, 1), repeat=2):
            clumsy = Clumsy(pair, error, *ways)
            above, below = (pairs.laws(clumsy, mesh=mesh, tail=1e-20, side=side) for side in ("above", "below"))
            for direction in (0, 1):
                for epsilon, both in zip(map(float, epsilons), true, strict=True):
                    most = grid_delta(above[direction], mesh, epsilon) * (1 + pairs.TAIL_ERROR)
                    most = most / (1 - mpmath.mpf(error)) + mpmath.mpf(above[direction].infinite) + mpmath.mpf(1e-20)
                    assert most >= both[direction] * (1 - mpmath.mpf(SUMMATION)), (ways, direction, epsilon)
                    least = grid_delta(below[direction], mesh, epsilon)
                    assert least <= both[direction] * (1 + mpmath.mpf(SUMMATION)), (ways, direction, epsilon)


@dataclass(frozen=True)
class Displaced(Pair):
    """A pair that finds every edge too low or too high by all that `_EDGE_ERROR` admits."""

    inner: Pair
    way: int

    def masses(self, edges: Floats) -> pairs.Masses:
        finite = np.where(np.isfinite(edges), edges, 0.0)
        return self.inner.masses(edges + self.way * pairs._EDGE_ERROR * (1 + np.abs(finite)))

    @property
    def reach(self) -> float:
        return self.inner.reach


@dataclass(frozen=True)
class Atoms(Pair):
    """Losses with their chances, in cells whose lower edges are found too low and whose upper edges too high."""

    mesh: float
    losses: tuple[float, ...]
    chances: tuple[float, ...]

    def masses(self, edges: Floats) -> pairs.Masses:
        finite = np.where(np.isfinite(edges), edges, 0.0)
        ways = np.where(np.round(finite / self.mesh) % 2 == 0, -1, 1)
        places = np.searchsorted(edges + ways * pairs._EDGE_ERROR * (1 + np.abs(finite)), self.losses) - 1
        p, q = np.zeros(len(edges) - 1), np.zeros(len(edges) - 1)
        np.add.at(p, places, self.chances)
        np.add.at(q, places, np.array(self.chances) * np.exp(-np.array(self.losses)))
        return pairs.Masses(p, q, np.full(len(p), 4 * 2.0**-53))

    @property
    def reach(self) -> float:
        return 1.0


@pytest.mark.parametrize("rest", [0.0, 1e-3, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("size", [1e-9, 1e-4, 1e-3])
def test_losses_a_little_beyond_the_ends_of_their_cell_are_split_safely(
    rest: float, size: float, admitted: Callable[[str, float], None]
) -> None:
    admitted("_EDGE_ERROR", size)
    mesh = 2.0**-6
    losses, chances = (0.25 - size, 0.25 + mesh + size), (1 - rest, rest)
    pair = Atoms(mesh, losses, chances)
    cells = pair.masses(np.arange(-70, 71) * np.float64(mesh))
    assert np.count_nonzero(cells.p) == 1
    (over, _) = pairs.laws(pair, mesh=mesh, tail=1e-20, side="above")
    (under, _) = pairs.laws(pair, mesh=mesh, tail=1e-20, side="below")
    for epsilon in (*np.linspace(0.2, 0.25 + mesh, 30), *losses):
        true = sum(chance * max(0.0, -math.expm1(epsilon - loss)) for loss, chance in zip(losses, chances, strict=True))
        assert grid_delta(over, mesh, float(epsilon)) >= true * (1 - 1e-12), epsilon
        assert grid_delta(under, mesh, float(epsilon)) <= true * (1 + 1e-12), epsilon


@pytest.mark.parametrize("tail", [1e-4, 0.02, 0.3])
@pytest.mark.parametrize("pair", [Normal(0.5), Normal(3.0), Sampled(0.1, Normal(2.0)), SampledReplaced(0.3, 0.7)])
def test_laws_that_are_cut_off_where_much_is_left_hold_the_pair_between_them(pair: Pair, tail: float) -> None:
    mesh = 2.0**-6
    above, below = (pairs.laws(pair, mesh=mesh, tail=tail, side=side) for side in SIDES)
    with mpmath.workdps(DIGITS):
        for epsilon in (-9.0, -2.0, -0.7, -0.1, 0.0, 0.1, 0.3, 0.7, 1.3, 4.0, 9.0):
            for direction, true in enumerate(hockey_sticks(pair, epsilon)):
                over, under = above[direction], below[direction]
                most = grid_delta(over, mesh, epsilon) * (1 + pairs.TAIL_ERROR) + mpmath.mpf(over.infinite)
                assert most >= true * (1 - mpmath.mpf(SUMMATION)), (direction, epsilon)
                assert grid_delta(under, mesh, epsilon) <= true * (1 + mpmath.mpf(SUMMATION)), (direction, epsilon)


@dataclass(frozen=True)
class Thin(Pair):
    """A pair that lacks of all masses what `TAIL_ERROR` admits."""

    inner: Pair

    def masses(self, edges: Floats) -> pairs.Masses:
        p, q, error = self.inner.masses(edges)
        return pairs.Masses(p / (1 + pairs.TAIL_ERROR), q / (1 + pairs.TAIL_ERROR), error)

    @property
    def reach(self) -> float:
        return self.inner.reach


def forget() -> None:
    """What was computed with another error."""
    for cache in (prv._kept_once, prv._coarse_cumulants, pairs.support, pairs._kept_cells):
        cache.cache_clear()


@pytest.fixture
def admitted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, float], None]]:
    """Sets how large an error the engine admits."""

    def admit(name: str, size: float) -> None:
        monkeypatch.setattr(pairs, name, size)
        forget()

    yield admit
    forget()


WRONG: Final[Mapping[Pair, str]] = {
    Displaced(Normal(0.3), 1): "_EDGE_ERROR",
    Displaced(Normal(0.3), -1): "_EDGE_ERROR",
    Thin(Normal(0.3)): "TAIL_ERROR",
}


@pytest.mark.parametrize("number", [3, 70])
@pytest.mark.parametrize("size", [1e-4, 3e-3])
@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_errors_of_edges_and_tails_are_counted_at_every_step(
    wrong: Displaced | Thin, size: float, number: int, admitted: Callable[[str, float], None]
) -> None:
    admitted(WRONG[wrong], size)
    true = normal_profile(0.3 * math.sqrt(number))[0]
    grid = prv.Grid(2.0**-8, 2**13, 2.0, 1e-25, 2.0**-6)
    law = prv.composed({wrong: number}, grid, "above")
    sketch = reports.OnGrid(grid, law, 0.0).sketch(1.0, 1e-5)
    assert sketch is not None
    for delta in (0.1, 1e-3, 1e-5):
        upper = prv.epsilon_above(law, grid, delta)
        assert upper > 0
        assert float(true(np.array(upper))) <= delta * (1 + 1e-9)
        assert float(true(np.array(1.0))) <= sketch.delta(1.0) * (1 + 1e-9)
        assert float(true(np.array(upper))) <= sketch.delta(upper) * (1 + 1e-9)
        lower = prv._epsilon_below(prv.composed({wrong: number}, grid, "below"), grid, delta)
        assert lower == 0 or float(true(np.array(lower))) >= delta * (1 - 1e-9)


@pytest.mark.parametrize("number", [1, 3, 8])
@pytest.mark.parametrize("size", [1e-9, 1e-4, 3e-3])
def test_a_loss_that_is_taken_for_one_below_its_edge_is_corrected(
    size: float, number: int, admitted: Callable[[str, float], None]
) -> None:
    """The atom is above a node by nearly what an edge may be wrong by, so it is counted in the cell below."""
    admitted("_EDGE_ERROR", size)
    mesh = 2.0**-6
    epsilon = 0.25 + 1.2 * size
    wrong = Displaced(TwoPoints(epsilon), 1)
    grid = prv.Grid(mesh, 2**10, 2.0, 1e-25, 2.0**-6)
    law = prv.composed({wrong: number}, grid, "above")
    # The other direction has the atom on the safe side of its edge, so it is not asked.
    rows = {name: getattr(law, name)[[0, 0]] for name in ("transform", "cumulant", "cumulants", "log_finite")}
    law = law._replace(**rows)
    with mpmath.workdps(DIGITS):
        one, _ = two_outcomes(epsilon)
        all_worse = float(one.p**number)
        for share in (0.5, 0.1, 1e-3):
            upper = prv.epsilon_above(law, grid, share * all_worse)
            assert binomial_delta(mpmath.mpf(upper), number, one) <= share * all_worse
            assert upper <= number * (0.25 + 2 * size)
            nearer = max(0.0, upper - 2 * law.correction)
            assert reports.Sketch(grid, law, 0.0).delta(nearer) >= binomial_delta(mpmath.mpf(nearer), number, one)


# ---------------------------------------------------------------- laws of few points, composed by hand


def random_composed(chance: np.random.Generator, points: int, loud: int) -> prv.Composed:
    """A law of `points` places in either direction, of which that of the `loud` one is rougher; right in all digits."""
    laws = chance.dirichlet(np.full(points, 20.0), size=2)
    laws[loud] = chance.dirichlet(np.full(points, 0.5))
    return prv.Composed(
        transform=np.fft.rfft(laws),
        cumulant=np.zeros(2),
        cumulants=np.zeros((2, len(prv.TILTS))),
        log_finite=np.zeros(2),
        correction=0.0,
        few=1,
        many=0,
        noise=0.0,
        size=1.0,
        dropped=0.0,
    )


@pytest.mark.parametrize("seed", range(20))
def test_what_is_dropped_and_how_loud_the_rest_is_bounds_the_masses(seed: int) -> None:
    points, chance = 64, np.random.default_rng(seed)
    laws = [random_composed(chance, points, int(loud)) for loud in chance.integers(0, 2, size=3)]
    whole, cut = laws[0], laws[0].cut(points, 0.3)
    for law in laws[1:]:
        whole = whole.plus(law)
        short = law._replace(transform=law.transform[:, : cut.kept], dropped=math.inf)  # it knows no others
        for each in (cut.plus(law), law.plus(cut), cut.plus(short), short.plus(cut)):
            assert_holds_masses(each, whole, points)
        cut = cut.plus((law, short)[chance.integers(2)]).cut(points, float(chance.choice([0.01, 0.1, 0.3])))
        assert_holds_masses(cut, whole, points)
    assert cut.kept < whole.kept


def assert_holds_masses(law: prv.Composed, whole: prv.Composed, points: int) -> None:
    masses, true = (np.fft.irfft(each.transform, points) for each in (law, whole))
    assert np.abs(masses - true).max() <= law.rounding
    mean = np.abs(np.fft.fft(true, axis=1)).mean(axis=1)
    assert (mean <= law.size * (1 + 1e-12)).all()


@pytest.mark.parametrize("way", [-1, 1j])
@pytest.mark.parametrize("number", [1, 2, 3, 63, 64, 1000])
def test_an_error_of_a_transform_is_counted_however_often_it_is_repeated(number: int, way: complex) -> None:
    """At all frequencies at once, of a law that has next to none but the lowest."""
    points, error = 64, 1e-7
    bell = np.exp(-(((np.arange(points) - 32) / 8) ** 2))
    law = random_composed(np.random.default_rng(0), points, 0)
    law = law._replace(transform=np.fft.rfft(np.array([bell, bell]) / bell.sum()))
    wrong = law._replace(transform=law.transform + way * error, noise=error)
    masses, true = (np.fft.irfft(each.transform**number, points) for each in (wrong, law))
    moved = np.abs(masses - true).max()
    assert 0 < moved <= wrong.repeated(number).cut(points, 0.0).rounding


@pytest.mark.parametrize("extended", [False, True])
@pytest.mark.parametrize("kept", [None, 16])
def test_no_transform_claims_more_digits_than_its_numbers_have(*, extended: bool, kept: int | None) -> None:
    grid = prv.Grid(2.0**-8, 2**10, 2.0, 1e-20, 2.0**-6, extended)
    for side in SIDES:
        law = prv._kept_once(Normal(0.3), grid, side, kept)
        unit = float(np.finfo(law.transform.real.dtype).eps) / 2
        # a sum over a row and one over rows, or as many stages as points have binary digits
        assert law.noise >= unit * (10 if kept is None else prv._BLOCK)
        assert law.repeated(3).plus(law).noise == law.plus(law.repeated(100)).noise == law.noise
        assert law.repeated(3).rounding >= 3 * law.noise
        louder = law._replace(noise=2 * law.noise)
        assert law.plus(louder).noise == louder.plus(law).noise == louder.noise


@pytest.mark.parametrize("number", [1, 3, 63, 64, 1000, 10**6])
@pytest.mark.parametrize("extended", [False, True])
def test_masses_of_many_steps_are_as_right_as_they_say(number: int, *, extended: bool) -> None:
    """Against sums over outcomes at forty digits; the grid is so short that they wrap around many times."""
    mesh, points, tilt = 2.0**-6, 64, 2.0
    grid = prv.Grid(mesh, points, tilt, 1e-20, 2.0**-6, extended)
    pair = TwoPoints(2.0**-6 * 5)
    for side in SIDES:
        once = prv._kept_once(pair, grid, side, None)
        law = once.repeated(number)
        (one, _) = pairs.laws(pair, mesh=mesh, tail=grid.tail, side=side)
        with mpmath.workdps(DIGITS):
            tilted = [
                mpmath.mpf(float(mass)) * mpmath.exp(tilt * mesh * (one.first + place))
                for place, mass in enumerate(one.mass)
            ]
            total = mpmath.fsum(tilted)
            true = [mpmath.mpf(0)] * points
            for place, mass in enumerate(tilted):
                true[(one.first + place) % points] += mass / total
            true = cyclic_power(true, number)
            masses = fft.irfft(law.transform[0], points)
            split = [mpmath.mpf(float(mass)) + mpmath.mpf(float(mass - float(mass))) for mass in masses]
            # tilted masses themselves are doubles, and wrong by a few roundings of what they are
            of_masses = 16 * number * mpmath.mpf(2) ** -53
            assert all(abs(a - b) <= law.rounding + of_masses * b for a, b in zip(split, true, strict=True))
            assert law.rounding <= number * (1e-17 if extended else 2e-14)


def cyclic_power(law: list[Any], exponent: int) -> list[Any]:
    """By squaring."""
    result = [mpmath.mpf(1)] + [mpmath.mpf(0)] * (len(law) - 1)
    while exponent:
        if exponent & 1:
            result = cyclic_product(result, law)
        law, exponent = cyclic_product(law, law), exponent >> 1
    return result


def cyclic_product(one: list[Any], other: list[Any]) -> list[Any]:
    there = [place for place, mass in enumerate(other) if mass]
    return [mpmath.fsum(one[place - k] * other[k] for k in there) for place in range(len(one))]


# ---------------------------------------------------------------- what a critical read found


def test_only_one_direction_of_a_sampled_black_box_gives_everything_away() -> None:
    """Q against P loses at most ln(1 / (1 − q)); the worse direction of this tree is that one, with ε = 0.193717."""
    event = together(
        times(5, sampled(PureDP(epsilon=0.4347869799322911), 0.2524229478331522)),
        times(2, sampled(ApproxDP(epsilon=1e-6, delta=0.9), 0.003)),
    )
    found = account(event, delta=0.03445178090113734)
    assert found.lower <= 0.193717
    assert 0.1937 <= found.upper <= 0.1938


def test_a_sampled_black_box_with_a_large_delta_is_its_three_points() -> None:
    event = together(
        times(4, sampled(ApproxDP(epsilon=0.933, delta=0.13), 0.2155)), times(4, ApproxDP(epsilon=0.0188, delta=1.4e-6))
    )
    found = account(event, delta=0.187)
    assert 0.1288 <= found.upper <= 0.1288 + 0.005  # by exact sums over outcomes
    assert found.lower <= 0.1288


@pytest.mark.parametrize("repetitions", [10**6, 10**7, 5 * 10**7])
def test_no_valid_event_takes_gigabytes(repetitions: int) -> None:
    event = together(times(repetitions, PureDP(epsilon=1e-6)), PureDP(epsilon=400.0))
    with memory_below(600):
        found = account(event, delta=1e-5)
    assert 400 <= found.upper <= 401


@pytest.mark.parametrize("noise", [0.97, 1.0341086, 1.03410872])
def test_a_long_run_at_a_tiny_delta_does_not_jump(noise: float) -> None:
    event = times(10**6, sampled(Gaussian(noise_multiplier=noise), 1e-4))
    upper = prv.upper_bound(event, delta=1e-12, adjacency="add_remove")
    assert 0.79 < upper < 0.95  # one grid alone gave 1.25


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
@pytest.mark.parametrize(
    "event",
    [
        Gaussian(noise_multiplier=1.7),
        times(300, Gaussian(noise_multiplier=20.0)),
        times(40, PureDP(epsilon=0.1)),
        times(7, ApproxDP(epsilon=0.3, delta=1e-10)),
        Laplace(scale=0.8),
    ],
    ids=repr,
)
def test_what_has_a_closed_form_is_answered_to_nine_digits(event: Event, delta: float, adjacency: Adjacency) -> None:
    found = account(event, delta=delta, adjacency=adjacency)
    assert found.engine == "closed_form"
    assert found.upper - found.lower <= 1e-9 * max(1.0, found.upper)


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_one_sampled_gaussian_has_a_closed_form_under_add_remove(delta: float) -> None:
    found = account(sampled(Gaussian(noise_multiplier=0.9), 0.05), delta=delta)
    assert found.engine == "closed_form"
    assert found.upper - found.lower <= 1e-9 * max(1.0, found.upper)
