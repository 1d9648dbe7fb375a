"""No fully adaptive adversary gets more than (ε, δ) past the filter, computed exactly; wrong rules break."""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accountant.errors import InvalidInput
from accountant.events import Gaussian, PureDP
from accountant.filters import Cost, Filter, Preset
from accountant.units import exact
from tests.accountant.adaptive import (
    TWO_ORDERS,
    Answer,
    Counterexample,
    Dish,
    Move,
    Node,
    Noise,
    Pair,
    Rule,
    against_natural_pld,
    against_twelve_orders,
    against_two_orders,
    budget,
    charge,
    coin,
    delta_of,
    delta_of_strategy,
    gaussian_delta,
    gaussian_from_above,
    histories,
    last,
    mirrored,
    optimal_delta,
    randomised_response,
    renyi,
    revealing,
    some_order,
    split,
    stopped,
)

TARGETS = [(0.5, 1e-6), (1.0, 1e-5), (3.0, 1e-5), (8.0, 1e-3)]
PRESETS: tuple[Preset, ...] = ("mixed", "gaussian", "pure")


def cost(gate: Filter, pair: Pair) -> Cost:
    """The honest price of a finite mechanism: exact divergences, the worse direction, δ if it reveals."""
    revealed, rest = split(pair)
    return gate.cost(rho=charge(rest, [*gate.orders, math.inf]), delta=revealed)


def rule_of(gate: Filter) -> Rule:
    return lambda history: gate.admits(functools.reduce(operator.add, (cost(gate, pair) for pair in history)))


def within(gate: Filter, costs: Sequence[Cost], rounds: int) -> Callable[[tuple[int, ...]], bool]:
    """Whether the gate admits these counts; `rounds` ends the game, since a dish may cost almost nothing."""

    def admits(counts: tuple[int, ...]) -> bool:
        if sum(counts) > rounds:
            return False
        return gate.admits(functools.reduce(operator.add, map(operator.mul, costs, counts), gate.nothing))

    return admits


# ---------------------------------------------------------------- the machinery itself


def test_divergences_agree_with_closed_forms() -> None:
    assert delta_of(last(randomised_response(0.7)), 0.3) == pytest.approx(
        (math.exp(0.7) - math.exp(0.3)) / (1 + math.exp(0.7)), rel=1e-14
    )
    assert delta_of(last(revealing(0.01)), 5.0) == 0.01
    skewed = Pair((0.2, 0.5, 0.3), (0.5, 0.3, 0.2))
    assert renyi(skewed, 2.0) == pytest.approx(math.log(0.08 + 0.25 / 0.3 + 0.45), rel=1e-14)
    assert renyi(skewed.swapped, 2.0) == pytest.approx(math.log(1.25 + 0.18 + 0.04 / 0.3), rel=1e-14)
    assert renyi(skewed, math.inf) == pytest.approx(math.log(5 / 3), rel=1e-14)
    assert renyi(revealing(0.01), 2.0) == math.inf
    assert split(revealing(0.25)) == (0.25, Pair((1.0,), (1.0,)))


def test_the_dynamic_program_finds_what_a_search_over_all_trees_finds() -> None:
    step, epsilon = 0.25, 0.8
    menu = [
        coin(step=step, steps=1),
        coin(step=step, steps=3, probability=0.1),
        coin(step=step, steps=2, reveals=1e-3),
    ]

    def admits(counts: tuple[int, ...]) -> bool:
        return counts[0] + 2 * counts[1] + 3 * counts[2] <= 5

    def search(counts: tuple[int, ...], p: float, q: float) -> float:
        best = max(0.0, p - math.exp(epsilon) * q)
        for j, dish in enumerate(menu):
            more = tuple(n + (i == j) for i, n in enumerate(counts))
            if admits(more):
                outcomes = zip(dish.law, dish.law * np.exp(-dish.losses), strict=True)
                later = math.fsum(search(more, p * a, q * b) for a, b in outcomes if a > 0.0)
                best = max(best, p * dish.revealed + later)
        return best

    found = optimal_delta(menu, admits, epsilon=epsilon)
    assert found == pytest.approx(search((0, 0, 0), 1.0, 1.0), rel=1e-12)
    fixed = max(
        optimal_delta([dish], lambda n, times=times: n[0] <= times, epsilon=epsilon)  # type: ignore[misc]
        for dish, times in zip(menu, (5, 2, 1), strict=True)
    )
    assert found > 1.01 * fixed  # adaptivity and mixing are worth something here


def test_quadrature_agrees_with_the_analytic_gaussian() -> None:
    # Cuts that change nothing must not change δ: one Gaussian of the composed mu.
    strategy = Noise(0.4, (0.1, 0.3), tuple(Noise(0.5, (0.0,), (Noise(0.6), Noise(0.6))) for _ in range(3)))
    for epsilon in (0.5, 1.0, 3.0):
        expected = gaussian_delta(math.sqrt(0.4**2 + 0.5**2 + 0.6**2), epsilon)
        assert delta_of_strategy(strategy, epsilon) == pytest.approx(expected, abs=1e-12)
    # A stop on some losses has a corner in the payoff; the direct integral is over the first loss only.
    stops = Noise(0.7, (0.9,), (Noise(0.3), None))
    at, weight = np.polynomial.legendre.leggauss(160)
    mean, low, high = 0.7**2 / 2, -6.5, 7.5
    total = 0.0
    for left, right in ((low, 0.9), (0.9, 1.0), (1.0, high)):
        y = left + (right - left) * (1 + at) / 2
        density = np.exp(-0.5 * ((y - mean) / 0.7) ** 2) / (0.7 * math.sqrt(2 * math.pi))
        inner = np.array(
            [delta_of_strategy(Noise(0.3), 1.0 - v) if v < 0.9 else max(0, 1 - math.exp(1 - v)) for v in y]
        )
        total += (right - left) / 2 * float(weight @ (density * inner))
    assert delta_of_strategy(stops, 1.0) == pytest.approx(total, abs=1e-12)


def test_strategies_of_coins_agree_with_trees() -> None:
    tree = Node(randomised_response(0.5), (last(randomised_response(0.8)), None))
    moves = Answer(0.5, Answer(0.8), None)
    both = max(delta_of_strategy(moves, 0.4), delta_of_strategy(mirrored(moves), 0.4))
    assert both == pytest.approx(delta_of(tree, 0.4), abs=1e-15)


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.5])
def test_a_gaussian_on_the_lattice_is_dominated_from_above(mu: float) -> None:
    dish = gaussian_from_above(mu=mu, step=0.04)
    for epsilon in np.linspace(0.0, 3.0, 38):
        rounded = optimal_delta([dish], lambda counts: counts[0] <= 1, epsilon=float(epsilon))
        exact = gaussian_delta(mu, float(epsilon))
        assert exact - 1e-12 <= rounded <= exact + 0.02 * exact + 1e-3 * dish.step


# ---------------------------------------------------------------- wrong rules, broken


@pytest.mark.parametrize(
    ("example", "truth"),
    [
        (against_two_orders(), 1.875e-3),
        (against_twelve_orders(), 2.289e-5),
        (against_natural_pld(), 1.377e-5),
    ],
    ids=["two orders", "twelve orders", "natural pld"],
)
def test_the_wrong_rule_admits_every_branch_and_the_promise_is_broken(example: Counterexample, truth: float) -> None:
    assert all(example.rule(history) for history in histories(example.tree))
    assert stopped(example.tree, example.rule) == example.tree
    assert delta_of(example.tree, example.epsilon) > truth > 1.37 * example.delta


EXAMPLES = pytest.mark.parametrize(
    "example",
    [against_two_orders(), against_twelve_orders(), against_natural_pld()],
    ids=["two orders", "twelve orders", "natural pld"],
)


@EXAMPLES
@pytest.mark.parametrize("preset", PRESETS)
def test_the_filter_stops_the_counterexamples(example: Counterexample, preset: Preset) -> None:
    gate = Filter.of(epsilon=example.epsilon, delta=example.delta, preset=preset)
    admitted = [rule_of(gate)(history) for history in histories(example.tree)]
    assert not all(admitted)
    rest = stopped(example.tree, rule_of(gate))
    assert rest is None or delta_of(rest, example.epsilon) <= example.delta


@pytest.mark.parametrize("example", [against_two_orders(), against_twelve_orders()], ids=["two", "twelve"])
def test_the_filter_stops_them_with_the_whole_of_each_half_of_delta(example: Counterexample) -> None:
    """Half of δ is for approximate parts; without weights this adversary would use more than both halves."""
    gate = Filter.of(epsilon=example.epsilon, delta=2 * example.delta)
    tree = Node(revealing(example.delta), (None, None, example.tree))
    assert delta_of(tree, example.epsilon) > 1.4 * 2 * example.delta
    rest = stopped(tree, rule_of(gate))
    assert rest is not None  # revealing exactly δ″ is allowed
    assert delta_of(rest, example.epsilon) <= 2 * example.delta


def on_orders(example: Counterexample, weight: Fraction) -> Filter:
    """A filter with the orders of the broken rule and all of δ for the conversion, as that rule had it."""
    return Filter(
        epsilon=example.epsilon,
        delta=example.delta,
        orders=example.orders,
        weights=tuple(weight for _ in example.orders),
        delta_filter=exact(example.delta),
        delta_parts=Fraction(0),
    )


@pytest.mark.parametrize("example", [against_two_orders(), against_twelve_orders()], ids=["two", "twelve"])
def test_weights_repair_the_rule_on_the_same_orders(example: Counterexample) -> None:
    share = Fraction(1, len(example.orders))
    weighted = some_order(example.orders, epsilon=example.epsilon, delta=example.delta, weight=1 / len(example.orders))
    for rule in (weighted, rule_of(on_orders(example, share))):
        assert not all(rule(history) for history in histories(example.tree))
        rest = stopped(example.tree, rule)
        assert rest is not None
        assert delta_of(rest, example.epsilon) <= example.delta
    with pytest.raises(InvalidInput, match="weights"):
        on_orders(example, Fraction(1))  # the wrong rule cannot even be configured


# ---------------------------------------------------------------- a life of pure releases


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(
    ("epsilon", "each", "times"),
    [(1.0, 0.1, 10), (3.0, 0.3, 10), (1.0, 0.125, 8), (0.7, 0.7, 1), (2.2, 1.1, 2), (1.0, 1e-3, 1000)],
)
def test_pure_releases_may_use_exactly_epsilon(epsilon: float, each: float, times: int, preset: Preset) -> None:
    gate = Filter.of(epsilon=epsilon, delta=1e-5, preset=preset)
    spent = gate.nothing
    for _ in range(times):
        spent += gate.price(PureDP(epsilon=each), "add_remove")
        assert gate.admits(spent)
    assert spent == gate.price(PureDP(epsilon=each), "add_remove") * times
    # Many small releases fit finite orders as well, where there is room beyond ε; few large ones do not.
    if times <= 10 or preset == "pure":
        assert not gate.admits(spent + gate.price(PureDP(epsilon=1e-12), "add_remove"))
        assert not gate.admits(spent + gate.price(PureDP(epsilon=each), "add_remove"))


# ---------------------------------------------------------------- the optimal adversary


UNWEIGHTED = [(0.04, 8, 0.0424436), (0.04, 222, 0.001498727), (0.04, 193, 1.0)]
WEIGHTED = [(0.04, 6, 0.0556674), (0.04, 220, 0.0007396849), (0.04, 191, 1.0)]


@pytest.mark.parametrize(
    ("weight", "menu", "least", "most"),
    [(1.0, UNWEIGHTED, 1.8e-3, 2e-3), (0.5, WEIGHTED, 0.5e-3, 1e-3)],
    ids=["unweighted", "weighted"],
)
def test_the_optimal_adversary_breaks_the_unweighted_rule_only(
    weight: float, menu: Sequence[tuple[float, int, float]], least: float, most: float
) -> None:
    """Orders {2, 32} at (8, 1e-3); each menu was found by random search for the largest value."""
    dishes = [coin(step=step, steps=steps, probability=probability) for step, steps, probability in menu]
    prices = np.array([charge(dish.unless_revealed, TWO_ORDERS) for dish in dishes])
    budgets = np.array([budget(order, epsilon=8.0, delta=weight * 1e-3) for order in TWO_ORDERS])

    def some_order_has_budget(counts: tuple[int, ...]) -> bool:
        return bool(np.any(np.array(counts) @ prices <= budgets))

    assert least < optimal_delta(dishes, some_order_has_budget, epsilon=8.0) <= most


def strongest(gate: Filter, spent: Cost, price: Callable[[float], Cost], low: float, high: float) -> float | None:
    """The largest parameter in [low, high], up to 1 %, that the gate still admits, None if there is none."""
    if not gate.admits(spent + price(low)):
        return None
    while high > 1.01 * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if gate.admits(spent + price(middle)) else (low, middle)
    return low


def tuned(gate: Filter, *, step: float, steps: int, times: int, reveals: float = 0.0) -> Dish | None:
    """The coin with this loss that uses the whole budget in `times` plays."""

    def price(probability: float) -> Cost:
        dish = coin(step=step, steps=steps, probability=probability, reveals=reveals)
        return priced(gate, dish) * times

    probability = strongest(gate, gate.nothing, price, 1e-9, 1.0)
    return None if probability is None else coin(step=step, steps=steps, probability=probability, reveals=reveals)


def priced(gate: Filter, dish: Dish) -> Cost:
    rho = charge(dish.unless_revealed, [*gate.orders, math.inf])
    return gate.cost(rho=rho, delta=dish.revealed)


def best_against(gate: Filter, menu: Sequence[Dish], *, epsilon: float, rounds: int) -> float:
    return optimal_delta(menu, within(gate, [priced(gate, dish) for dish in menu], rounds), epsilon=epsilon)


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("epsilon", "delta"), TARGETS)
@settings(max_examples=max(2, settings().max_examples // 4))
@given(
    tastes=st.lists(
        st.tuples(st.integers(1, 30), st.integers(1, 6), st.sampled_from([0.0, 0.0, 0.1, 0.5])),
        min_size=1,
        max_size=4,
    )
)
def test_no_adaptive_strategy_exceeds_the_target(
    epsilon: float, delta: float, preset: Preset, tastes: list[tuple[int, int, float]]
) -> None:
    """Coins of random size, each as strong as the filter admits, revealing a share of δ; played optimally."""
    gate = Filter.of(epsilon=epsilon, delta=delta, preset=preset)
    dishes = (
        tuned(gate, step=epsilon / 20, steps=steps, times=times, reveals=share * delta / times)
        for steps, times, share in tastes
    )
    menu = [dish for dish in dishes if dish is not None]
    if menu:
        assert best_against(gate, menu, epsilon=epsilon, rounds=8) <= delta


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("epsilon", "delta"), TARGETS)
def test_coins_played_optimally_to_the_end(epsilon: float, delta: float, preset: Preset) -> None:
    """Plain coins of three sizes and one that reveals, in any number of rounds: the filter ends the game."""
    gate = Filter.of(epsilon=epsilon, delta=delta, preset=preset)
    step = epsilon / 20
    menu = [coin(step=step, steps=steps) for steps in (1, 3, 10)]
    menu.append(coin(step=step, steps=2, reveals=0.0999 * delta))
    value = best_against(gate, menu, epsilon=epsilon, rounds=10**6)
    assert value <= delta
    assert value > 0.49 * delta  # no empty game: at least what may be revealed is


# ---------------------------------------------------------------- Gaussian noise


@pytest.mark.parametrize("preset", ["mixed", "gaussian"])
@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-5), (3.0, 1e-5), (8.0, 1e-3)])
def test_noise_and_coins_until_the_filter_refuses(epsilon: float, delta: float, preset: Preset) -> None:
    """Random strategies that choose by the loss so far: the exact δ is below the target, both directions."""
    gate = Filter.of(epsilon=epsilon, delta=delta, preset=preset)
    rng = np.random.default_rng(20210)
    strategies = [move for _ in range(12) if (move := grown(gate, gate.nothing, epsilon, rng, 3)) is not None]
    assert len(strategies) == 12
    values = [max(delta_of_strategy(move, epsilon), delta_of_strategy(mirrored(move), epsilon)) for move in strategies]
    assert max(values) <= delta
    # The strategies are strong enough to break a better promise than the one given.
    assert max(delta_of_strategy(move, 0.5 * epsilon) for move in strategies) > delta


def noise(gate: Filter, mu: float) -> Cost:
    return gate.price(Gaussian(noise_multiplier=1.0 / mu), "add_remove")


def grown(gate: Filter, spent: Cost, epsilon: float, rng: np.random.Generator, depth: int) -> Move | None:
    """A random strategy; each branch ends with the strongest noise that the gate still admits there."""
    most = strongest(gate, spent, functools.partial(noise, gate), 1e-3, 20.0)
    if depth > 0 and rng.random() < 0.4:
        size = epsilon * float(rng.choice([0.02, 0.1, 0.3]))
        after = spent + gate.price(PureDP(epsilon=size), "add_remove")
        if gate.admits(after):
            likely, unlikely = (grown(gate, after, epsilon, rng, depth - 1) for _ in range(2))
            return Answer(size, likely, unlikely)
    if most is None:
        return None
    if depth == 0:
        return Noise(most)
    mu = most * math.sqrt(rng.uniform(0.1, 0.9))
    cuts = tuple(sorted(mu * rng.normal(size=2)))
    after = spent + noise(gate, mu)
    return Noise(mu, cuts, tuple(grown(gate, after, epsilon, rng, depth - 1) for _ in range(3)))


@pytest.mark.parametrize("preset", ["mixed", "gaussian"])
@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-5), (3.0, 1e-5), (8.0, 1e-3)])
def test_the_optimal_adversary_with_noise_and_coins(epsilon: float, delta: float, preset: Preset) -> None:
    """Gaussian releases of two sizes (rounded against us) and a coin, played optimally by the loss so far."""
    gate = Filter.of(epsilon=epsilon, delta=delta, preset=preset)
    most = strongest(gate, gate.nothing, functools.partial(noise, gate), 1e-3, 20.0)
    assert most is not None
    step = epsilon / 40
    sizes = [most / 2, most / 4]
    menu = [*(gaussian_from_above(mu=mu, step=step) for mu in sizes), coin(step=step, steps=4)]
    costs = [*(noise(gate, mu) for mu in sizes), gate.price(PureDP(epsilon=4 * step), "add_remove")]
    value = optimal_delta(menu, within(gate, costs, 16), epsilon=epsilon)
    assert value <= delta
    assert value >= gaussian_delta(most, epsilon) - 1e-12  # at least as strong as noise alone
