r"""Fully adaptive adversaries, computed exactly: what a privacy filter must withstand.

Nothing here knows the filter under test. There are four parts: finite interaction trees with their exact
hockey-stick divergence; explicit trees that break plausible but wrong rules; the *optimal* adversary over a
menu of mechanisms by dynamic programming; strategies of Gaussian noise and coins that look at the loss so
far, by quadrature.

Setting: Rogers et al. 2016 (the adversary picks the next mechanism after seeing the last outcome, the filter
sees only parameters), Feldman & Zrnic 2021 (Rényi filters), Whitehouse et al. 2023 (approximate parts).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

Floats: TypeAlias = NDArray[np.float64]


# ---------------------------------------------------------------- finite interactions


@dataclass(frozen=True, slots=True)
class Pair:
    """A mechanism on two neighbouring datasets: the laws `p` and `q` of its outcome. Zeros are allowed."""

    p: tuple[float, ...]
    q: tuple[float, ...]

    def __post_init__(self) -> None:
        assert len(self.p) == len(self.q)
        for law in (self.p, self.q):
            assert min(law) >= 0.0
            assert abs(math.fsum(law) - 1.0) < 1e-12

    @property
    def swapped(self) -> Pair:
        return Pair(self.q, self.p)


@dataclass(frozen=True, slots=True)
class Node:
    """Play `pair`, then go on with the child of the outcome; None stops there."""

    pair: Pair
    children: tuple[Node | None, ...]

    def __post_init__(self) -> None:
        assert len(self.children) == len(self.pair.p)

    @property
    def swapped(self) -> Node:
        return Node(self.pair.swapped, tuple(child and child.swapped for child in self.children))


def last(pair: Pair) -> Node:
    """Play `pair` and stop."""
    return Node(pair, (None,) * len(pair.p))


def binary(p: float, q: float) -> Pair:
    return Pair((p, 1.0 - p), (q, 1.0 - q))


def randomised_response(epsilon: float) -> Pair:
    return binary(1.0 / (1.0 + math.exp(-epsilon)), 1.0 / (1.0 + math.exp(epsilon)))


def revealing(probability: float) -> Pair:
    """Shows which dataset it ran on with this probability, and nothing otherwise; (0, probability)-DP."""
    return Pair((probability, 0.0, 1.0 - probability), (0.0, probability, 1.0 - probability))


def _leaves(node: Node, p: float, q: float) -> Iterator[tuple[float, float]]:
    for child, a, b in zip(node.children, node.pair.p, node.pair.q, strict=True):
        if child is None:
            yield p * a, q * b
        else:
            yield from _leaves(child, p * a, q * b)


def delta_of(tree: Node, epsilon: float) -> float:
    """The smallest δ for which the whole interaction is (ε, δ)-DP, both directions; exact up to rounding."""
    factor = math.exp(epsilon)
    return max(math.fsum(max(0.0, p - factor * q) for p, q in _leaves(way, 1.0, 1.0)) for way in (tree, tree.swapped))


def renyi(pair: Pair, order: float) -> float:
    """D_order(P ‖ Q) in nats, this direction only; `math.inf` is an order too."""
    support = [(a, b) for a, b in zip(pair.p, pair.q, strict=True) if a > 0.0]
    if any(b == 0.0 for _, b in support):
        return math.inf
    if math.isinf(order):
        return max(math.log(a / b) for a, b in support)
    terms = [order * math.log(a) + (1.0 - order) * math.log(b) for a, b in support]
    top = max(terms)
    return max(0.0, (top + math.log(math.fsum(math.exp(term - top) for term in terms))) / (order - 1.0))


def charge(pair: Pair, orders: Sequence[float]) -> list[float]:
    """The Rényi curve that a ledger must charge: the worse direction at each order."""
    return [max(renyi(pair, order), renyi(pair.swapped, order)) for order in orders]


def split(pair: Pair) -> tuple[float, Pair]:
    """(d, R) such that the pair is: with probability d reveal everything, otherwise R.

    The form that approximate Rényi parts need (Whitehouse et al. 2023): the same d on both sides.
    """
    both = [(a, b) for a, b in zip(pair.p, pair.q, strict=True) if a > 0.0 and b > 0.0]
    kept_p, kept_q = math.fsum(a for a, _ in both), math.fsum(b for _, b in both)
    assert abs(kept_p - kept_q) < 1e-15
    revealed = math.fsum(a for a, b in zip(pair.p, pair.q, strict=True) if b == 0.0)
    return revealed, Pair(tuple(a / kept_p for a, _ in both), tuple(b / kept_q for _, b in both))


# ---------------------------------------------------------------- rules that a gate might follow

#: Says whether the last of these mechanisms may run after the others did.
Rule: TypeAlias = Callable[[Sequence[Pair]], bool]


def histories(tree: Node, before: tuple[Pair, ...] = ()) -> Iterator[tuple[Pair, ...]]:
    """Every list of mechanisms that some course of the interaction asks a filter to admit."""
    history = (*before, tree.pair)
    yield history
    for child in tree.children:
        if child is not None:
            yield from histories(child, history)


def stopped(tree: Node, rule: Rule, before: tuple[Pair, ...] = ()) -> Node | None:
    """The same adversary where `rule` decides: what it refuses is not played."""
    history = (*before, tree.pair)
    if not rule(history):
        return None
    return Node(tree.pair, tuple(child and stopped(child, rule, history) for child in tree.children))


def budget(order: float, *, epsilon: float, delta: float) -> float:
    """The largest Rényi divergence of this finite order that implies (ε, δ)-DP by the tight conversion."""
    return epsilon - math.log1p(-1.0 / order) + math.log(delta * order) / (order - 1.0)


def some_order(orders: Sequence[float], *, epsilon: float, delta: float, weight: float = 1.0) -> Rule:
    """Admit while **some** order α has Σρ(α) ≤ B(α), each B read from the conversion at weight · δ.

    With weight 1 it is the tempting rule, and wrong: different outcomes may use different orders, each up to
    the whole δ. With weight 1/len(orders) it is sound (Feldman & Zrnic 2021 at each order, summed over
    orders).
    """
    budgets = [budget(order, epsilon=epsilon, delta=weight * delta) for order in orders]

    def admits(history: Sequence[Pair]) -> bool:
        curves = [charge(pair, orders) for pair in history]
        return any(math.fsum(spent) <= most for spent, most in zip(zip(*curves, strict=True), budgets, strict=True))

    return admits


def natural_pld(*, epsilon: float, delta: float) -> Rule:
    """Admit while the realised path, composed as if it had been fixed in advance, has δ(ε) ≤ δ.

    Wrong for choices that depend on outcomes: every path is judged by its own average over the paths not
    taken.
    """

    def admits(history: Sequence[Pair]) -> bool:
        tree: Node | None = None
        for pair in reversed(history):
            tree = Node(pair, (tree,) * len(pair.p))
        return tree is None or delta_of(tree, epsilon) <= delta

    return admits


# ---------------------------------------------------------------- counterexamples


@dataclass(frozen=True, slots=True)
class Counterexample:
    """A strategy that a wrong rule admits on every branch although the target does not hold."""

    epsilon: float
    delta: float
    rule: Rule
    tree: Node
    orders: tuple[float, ...] = ()  # of the rule, where it has any


TWO_ORDERS: Final = (2.0, 32.0)
TWELVE_ORDERS: Final = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0)


def against_two_orders() -> Counterexample:
    """δ(8) = 1.8755e-3 under "some order of {2, 32} has budget" for (8, 1e-3).

    Found by numerical optimisation: binary mechanisms are extremal (data processing), so the search had two
    parameters for the first mechanism and one for each of the others. The usual outcome spends what order 2
    leaves on a rare large loss, the unusual one what order 32 leaves on an almost certain loss.
    """
    usual = binary(0.0018112673, 3.0127137e-07)
    unusual = binary(0.99955446, 0.000445502110)
    return Counterexample(
        epsilon=8.0,
        delta=1e-3,
        rule=some_order(TWO_ORDERS, epsilon=8.0, delta=1e-3),
        tree=Node(binary(0.9692014998, 0.9775705872), (last(usual), last(unusual))),
        orders=TWO_ORDERS,
    )


def against_twelve_orders() -> Counterexample:
    """δ(1) = 2.2893e-5 under "some of twelve orders has budget" for (1, 1e-5); found in the same way.

    The three outcomes use orders 64, 12 and 24.
    """
    first = Pair((0.00080206359, 0.9738929969, 0.02530493951), (0.0005828862, 0.9791336919, 0.0202834219))
    then = (
        binary(0.66782576, 0.332174224),
        binary(8.5684889e-05, 2.87402936e-05),
        binary(0.006273132, 0.00275912327),
    )
    return Counterexample(
        epsilon=1.0,
        delta=1e-5,
        rule=some_order(TWELVE_ORDERS, epsilon=1.0, delta=1e-5),
        tree=Node(first, tuple(map(last, then))),
        orders=TWELVE_ORDERS,
    )


def against_natural_pld() -> Counterexample:
    """δ(1) = 1.377e-5 under "the composed PLD of the realised path gives ≤ 1e-5 at ε = 1".

    After a coin of ε = 0.5: on +, a loss of 1.4 with a small probability, which exceeds 1 only together with
    the +; on −, a mechanism that reveals everything with probability just below 1e-5. Each path's average
    counts the half that this path did not take.
    """
    a = 2.7071e-5
    return Counterexample(
        epsilon=1.0,
        delta=1e-5,
        rule=natural_pld(epsilon=1.0, delta=1e-5),
        tree=Node(randomised_response(0.5), (last(binary(a, a * math.exp(-1.4))), last(revealing(9.9999e-6)))),
    )


# ---------------------------------------------------------------- the optimal adversary over a menu


@dataclass(frozen=True, slots=True)
class Dish:
    """A mechanism whose privacy loss lies on a lattice and which is its own mirror image (swap P and Q).

    `law[i]` is the P-probability of the loss (i − span) · step; what is missing to 1 is revealed outright.
    Because it is its own mirror image, one direction of every divergence is both.
    """

    law: Floats
    step: float

    def __post_init__(self) -> None:
        losses = self.losses
        assert len(self.law) % 2 == 1
        assert float(self.law.min()) >= 0.0
        assert self.revealed >= 0.0
        assert np.allclose(self.law[::-1], self.law * np.exp(-losses), rtol=1e-9, atol=1e-15)

    @property
    def span(self) -> int:
        return len(self.law) // 2

    @property
    def losses(self) -> Floats:
        return self.step * np.arange(-self.span, self.span + 1, dtype=np.float64)

    @property
    def revealed(self) -> float:
        return max(0.0, 1.0 - math.fsum(self.law))

    @property
    def unless_revealed(self) -> Pair:
        """The pair conditional on nothing being revealed: the Rényi part of an approximate mechanism."""
        p = self.law[self.law > 0.0] / math.fsum(self.law)
        q = p * np.exp(-self.losses[self.law > 0.0])
        return Pair(tuple(p.tolist()), tuple((q / math.fsum(q)).tolist()))


def coin(*, step: float, steps: int, probability: float = 1.0, reveals: float = 0.0) -> Dish:
    """First of all `reveals`; else, with `probability`, randomised response of ε = steps · step."""
    law = np.zeros(2 * steps + 1)
    law[-1] = probability / (1.0 + math.exp(-steps * step))
    law[0] = probability / (1.0 + math.exp(steps * step))
    law[steps] += 1.0 - probability
    return Dish(law * (1.0 - reveals), step)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The exact δ(ε) of N(mu, 1) against N(0, 1) (Balle & Wang 2018)."""
    return float(ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)))


def gaussian_from_above(*, mu: float, step: float, tail: float = 1e-14) -> Dish:
    """A lattice mechanism that dominates N(mu, 1) against N(0, 1).

    Its δ(ε) equals the Gaussian's at lattice points and is linear in e^ε between them ("connect the dots",
    Doroshenko et al. 2022), hence above it everywhere. An adversary's value is convex in the likelihood
    ratio, so the adversary that plays this dish is at least as strong as the one that plays the Gaussian.
    """
    span = 1
    while gaussian_delta(mu, span * step) > tail:
        span += 1
    above = [gaussian_delta(mu, step * i) for i in range(span + 1)]
    below = 1.0 - math.exp(-step) * (1.0 - above[1])  # δ(−ε) of a pair that is its own mirror image
    ratios = np.exp(step * np.arange(-1, span + 1, dtype=np.float64))
    slopes = np.append(np.diff([below, *above]) / np.diff(ratios), 0.0)
    upper = np.maximum(np.diff(slopes), 0.0)  # Q-masses at losses ≥ 0: where the slope of δ changes
    law = np.concatenate([upper[:0:-1], upper * ratios[1:]])
    return Dish(law / max(1.0, math.fsum(law)), step)


def optimal_delta(menu: Sequence[Dish], admits: Callable[[tuple[int, ...]], bool], *, epsilon: float) -> float:
    """The largest δ(ε) over all fully adaptive strategies that play from `menu` while `admits` allows it.

    Exact dynamic programming over (how often each dish was played, loss so far): a strategy's δ(ε) is its
    expected (1 − e^(ε − loss))₊ under P, so the best next dish depends on nothing else. `admits` must be
    monotone: what it refuses, it refuses with more played as well.
    """
    step = menu[0].step
    assert all(dish.step == step for dish in menu)
    layers: list[set[tuple[int, ...]]] = [{(0,) * len(menu)}]
    allowed: dict[tuple[int, ...], bool] = {}
    while layers[-1]:
        grown = {_one_more(counts, j) for counts in layers[-1] for j in range(len(menu))}
        allowed |= {counts: admits(counts) for counts in grown}
        layers.append({counts for counts in grown if allowed[counts]})
    reach = max(sum(n * dish.span for n, dish in zip(c, menu, strict=True)) for layer in layers for c in layer)
    stop = _payoff(step * np.arange(-reach, reach + 1, dtype=np.float64), epsilon)
    after: dict[tuple[int, ...], Floats] = {}
    for layer in reversed(layers):
        now: dict[tuple[int, ...], Floats] = {}
        for counts in layer:
            best = stop
            for j, dish in enumerate(menu):
                later = after.get(_one_more(counts, j))
                if later is not None:
                    # Losses beyond `reach` cannot occur from here, so what pads them is never read at loss 0.
                    padded = np.pad(later, dish.span)
                    value = np.full_like(stop, dish.revealed)
                    for i in np.flatnonzero(dish.law):
                        value += dish.law[i] * padded[i : i + len(stop)]
                    best = np.maximum(best, value)
            now[counts] = best
        after = now
    return float(after[(0,) * len(menu)][reach])


def _one_more(counts: tuple[int, ...], dish: int) -> tuple[int, ...]:
    return (*counts[:dish], counts[dish] + 1, *counts[dish + 1 :])


def _payoff(losses: Floats, epsilon: float) -> Floats:
    return np.asarray(-np.expm1(np.minimum(0.0, epsilon - losses)))


# ---------------------------------------------------------------- strategies with Gaussian noise


@dataclass(frozen=True, slots=True)
class Noise:
    """Release with N(mu, 1) against N(0, 1), then go on by where the loss so far lies between the `cuts`.

    No `then` at all stops whatever came out.
    """

    mu: float
    cuts: tuple[float, ...] = ()
    then: tuple[Move | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """Randomised response, then go on by the answer."""

    epsilon: float
    likely: Move | None = None
    unlikely: Move | None = None


Move: TypeAlias = Noise | Answer

_TAIL: Final = 9.0  # standard deviations; what lies beyond weighs 1e-19
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)


def delta_of_strategy(move: Move, epsilon: float) -> float:
    """δ(ε) of an adaptive strategy of noise and coins; absolute error below 1e-11.

    The strategy's value is propagated backwards through the loss by Gauss–Legendre panels no wider than the
    narrowest noise involved, cut where the strategy or the payoff has a corner; a last Gaussian release is in
    closed form. All mechanisms are their own mirror images, but a strategy is not: the other direction is
    `mirrored`.
    """
    return float(_value(move, np.zeros(1), epsilon)[0])


def mirrored(move: Move) -> Move:
    """The same strategy seen from the other dataset: every loss changes its sign."""
    if isinstance(move, Answer):
        return Answer(move.epsilon, _mirrored(move.unlikely), _mirrored(move.likely))
    return Noise(
        move.mu,
        tuple(-cut for cut in reversed(move.cuts)),
        tuple(_mirrored(child) for child in reversed(move.then)),
    )


def _mirrored(move: Move | None) -> Move | None:
    return move and mirrored(move)


def _value(move: Move | None, losses: Floats, epsilon: float) -> Floats:
    """Expected payoff under P, going on with `move` from each of these losses."""
    if move is None:
        return _payoff(losses, epsilon)
    if isinstance(move, Answer):
        likely = 1.0 / (1.0 + math.exp(-move.epsilon))
        return likely * _value(move.likely, losses + move.epsilon, epsilon) + (1.0 - likely) * _value(
            move.unlikely, losses - move.epsilon, epsilon
        )
    mu = move.mu
    if not move.then:
        gap = (losses - epsilon) / mu
        return np.asarray(ndtr(gap + mu / 2) - np.exp(epsilon - losses + log_ndtr(gap - mu / 2)))
    if len(losses) == 0:
        return losses
    low, high = float(losses.min()) + mu**2 / 2 - _TAIL * mu, float(losses.max()) + mu**2 / 2 + _TAIL * mu
    total = np.zeros_like(losses)
    bounds = (low, *(min(max(cut, low), high) for cut in move.cuts), high)
    for (left, right), child in zip(pairwise(bounds), move.then, strict=True):
        if left < right:
            corners = [corner for corner in _corners(child, epsilon) if left < corner < right]
            at, weight = _panels([left, *sorted(corners), right], min(mu, _narrowest(child)))
            density = np.exp(-0.5 * ((at - losses[:, None]) / mu - mu / 2) ** 2) / (mu * math.sqrt(2 * math.pi))
            total += density @ (weight * _value(child, at, epsilon))
    return total


def _panels(corners: Sequence[float], widest: float) -> tuple[Floats, Floats]:
    edges = np.concatenate(
        [np.linspace(a, b, max(2, math.ceil((b - a) / widest) + 1))[:-1] for a, b in pairwise(corners)]
        + [np.array(corners[-1:])]
    )
    half = np.diff(edges)[:, None] / 2
    return (edges[:-1, None] + half * (1.0 + _NODES)).ravel(), (half * _WEIGHTS).ravel()


def _corners(move: Move | None, epsilon: float) -> list[float]:
    """Losses where the value of going on with `move` is not smooth."""
    if move is None:
        return [epsilon]
    if isinstance(move, Noise):
        return []
    up, down = _corners(move.likely, epsilon), _corners(move.unlikely, epsilon)
    return [corner - move.epsilon for corner in up] + [corner + move.epsilon for corner in down]


def _narrowest(move: Move | None) -> float:
    if move is None:
        return math.inf
    return move.mu if isinstance(move, Noise) else min(_narrowest(move.likely), _narrowest(move.unlikely))
