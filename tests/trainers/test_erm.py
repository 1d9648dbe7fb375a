"""Output perturbation: how far one record moves the weights, in steps and in floats, and the law of the noise."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from accountant.events import Gaussian, L2Laplace, PureDP
from trainers.erm import Objective, fit, perturbed, with_laplace_on_each_coordinate
from trainers.noise import Noise
from trainers.ports import Rows

FEATURES, LABELS = 4, 3


def problem(**changes: Any) -> Objective:
    usual: dict[str, Any] = {
        "features": FEATURES, "labels": LABELS, "radius": 2.0, "modulus": 0.3, "iterations": 40, "bias": True,
    }  # fmt: skip
    return Objective(**(usual | changes))


def rows_of(x: Any, y: Any, *, slots: int, unit: Any = None, rows_per_unit: int = 1) -> tuple[Rows, NDArray[np.int64]]:
    x, y = np.asarray(x, dtype=np.float32).reshape(-1, FEATURES), np.asarray(y, dtype=np.int64)
    unit = np.arange(len(x)) if unit is None else np.asarray(unit)
    return Rows(slots=slots, unit=unit.astype(np.int64), x=x, y=y, rows_per_unit=rows_per_unit), y


def zero(objective: Objective) -> torch.Tensor:
    return torch.zeros(objective.labels, objective.columns, dtype=torch.float64)


def weights_of(objective: Objective, data: tuple[Rows, Any], slots: int, centre: torch.Tensor) -> torch.Tensor:
    return fit(objective, *data, slots=slots, centre=centre)


def without(data: tuple[Rows, NDArray[np.int64]], slot: int) -> tuple[Rows, NDArray[np.int64]]:
    """The same block, with one slot null."""
    rows, labels = data
    kept = rows.unit != slot
    fewer = Rows(
        slots=rows.slots, unit=rows.unit[kept], x=rows.x[kept], y=rows.y[kept], rows_per_unit=rows.rows_per_unit
    )
    return fewer, labels[kept]


# How far one record moves the weights


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("iterations", [1, 3, 60])
def test_no_record_moves_the_weights_further_than_stated(seed: int, iterations: int) -> None:
    """Random blocks, half-filled ones, rows beyond the radius, centres near and far, units with several rows."""
    rng = np.random.default_rng(seed)
    slots, rows_per_unit = int(rng.integers(1, 9)), int(rng.integers(1, 4))
    objective = problem(
        iterations=iterations,
        bias=bool(rng.integers(2)),
        radius=float(rng.choice([0.5, 1.0, 5.0])),
        modulus=float(rng.choice([0.01, 0.3, 20.0])),
    )
    unit = np.repeat(np.arange(slots), rng.integers(0, rows_per_unit + 1, size=slots))
    x = rng.normal(size=(len(unit), FEATURES)) * rng.choice([0.1, 1.0, 1e4], size=(len(unit), 1))
    data = rows_of(
        x, rng.integers(-1, LABELS, size=len(unit)), slots=slots, unit=unit, rows_per_unit=rows_per_unit
    )  # −1 is null
    centre = torch.tensor(rng.normal(size=(LABELS, objective.columns)) * rng.choice([0, 1, 30]))
    most = objective.contribution(slots=slots, rows_per_unit=rows_per_unit, centre_norm=float(centre.norm()))
    assert most <= 1.001 * objective.lipschitz / (objective.modulus * slots)
    there = weights_of(objective, data, slots, centre)
    gone = [weights_of(objective, without(data, slot), slots, centre) for slot in range(slots)]
    assert max(float((there - other).norm()) for other in gone) <= most
    # Somebody else in the same slot: both are within C of the slot being null.
    other = rng.normal(size=(1, FEATURES)) * 1e4
    for slot in range(slots):
        rest, labels = without(data, slot)
        for label in range(LABELS):
            replaced = Rows(
                slots=slots,
                unit=np.append(rest.unit, slot),
                x=np.concatenate([rest.x, other.astype(np.float32)]),
                y=np.append(rest.y, label),
                rows_per_unit=rows_per_unit,
            )
            instead = fit(objective, replaced, np.append(labels, label), slots=slots, centre=centre)
            assert float((there - instead).norm()) <= 2 * most


@pytest.mark.parametrize("iterations", [1, 2, 10, 300])
@pytest.mark.parametrize("slots", [1, 7])
def test_an_adversary_attains_what_is_stated(iterations: int, slots: int) -> None:
    """A centre that is sure of the wrong label, and one record that contradicts it: no smaller C would be sound."""
    objective = problem(iterations=iterations, radius=1.0, modulus=50.0, bias=False)
    centre = zero(objective)
    centre[0, 0], centre[1, 0] = 40.0, -40.0
    x = np.zeros((1, FEATURES))
    x[0, 0] = 1e6  # scaled down to the radius
    most = objective.contribution(slots=slots, centre_norm=float(centre.norm()))
    there = weights_of(objective, rows_of(x, [1], slots=slots), slots, centre)
    empty = weights_of(objective, rows_of([], [], slots=slots), slots, centre)
    torch.testing.assert_close(empty, centre, rtol=0, atol=0)  # nobody is there, and the same program runs
    assert 0.999 * most <= float((there - empty).norm()) <= most
    # Replaced by one that pulls the other way, where the centre is sure of neither of two labels.
    centre = zero(objective)
    centre[2, 0] = 40.0
    moved = [weights_of(objective, rows_of(x, [label], slots=slots), slots, centre) for label in (0, 1)]
    assert float((moved[0] - moved[1]).norm()) <= 2 * objective.contribution(slots=slots, centre_norm=40.0)


def test_several_rows_count_as_one_record() -> None:
    """A datapoint with the same row three times is one with that row; null rows of it are as if they were not there."""
    objective, rng = problem(), np.random.default_rng(0)
    x, y = rng.normal(size=(5, FEATURES)), [0, 1, 2, 1, 0]
    once = weights_of(objective, rows_of(x, y, slots=6), 6, zero(objective))
    unit = np.array([0, 1, 2, 3, 3, 3, 4])
    thrice = rows_of(x[unit], np.array(y)[unit], slots=6, unit=unit, rows_per_unit=3)
    torch.testing.assert_close(weights_of(objective, thrice, 6, zero(objective)), once)
    null = rows_of(x[unit], [0, 1, 2, -1, 1, -1, 0], slots=6, unit=unit, rows_per_unit=3)
    torch.testing.assert_close(weights_of(objective, null, 6, zero(objective)), once)


def test_averages_divide_by_slots_and_not_by_who_came() -> None:
    objective = problem(iterations=1, bias=False)
    x = np.eye(FEATURES)[:1]
    few, many = (weights_of(objective, rows_of(x, [0], slots=slots), slots, zero(objective)) for slots in (10, 1000))
    torch.testing.assert_close(few, 100 * many)


# Why: contraction


@pytest.mark.parametrize("bias", [True, False])
def test_curvatures_lie_where_the_step_size_assumes(*, bias: bool) -> None:
    """Eigenvalues of the Hessian of J, by automatic differentiation: from m to β, and β is nearly met."""
    objective = problem(radius=3.0, modulus=0.2, bias=bias)
    rng, largest = np.random.default_rng(1), 0.0
    beta = objective.row_norm**2 / 2 + objective.modulus
    assert objective.step_size <= 2 / (beta + objective.modulus)
    for trial in range(20):
        x = rng.normal(size=(6, FEATURES)) * (1 if trial else 0)
        x[:, 0] += 0 if trial else 1
        x *= objective.radius / np.linalg.norm(x, axis=1, keepdims=True)
        wide = torch.tensor(np.hstack([x, np.ones((6, 1))]) if bias else x)
        y = torch.tensor(rng.integers(0, LABELS, size=6))
        where = torch.tensor(rng.normal(size=(LABELS, objective.columns)) * (trial % 3))
        where[2] -= 30 if trial == 0 else 0  # two labels of probability one half each: where a softmax is steepest

        def loss(flat: torch.Tensor, wide: torch.Tensor = wide, y: torch.Tensor = y) -> torch.Tensor:
            weights = flat.reshape(LABELS, -1)
            mean = torch.nn.functional.cross_entropy(wide @ weights.T, y)
            return mean + objective.modulus / 2 * weights.square().sum()

        hessian = torch.autograd.functional.hessian(loss, where.flatten())
        curvatures = torch.linalg.eigvalsh(hessian)
        assert float(curvatures[0]) >= objective.modulus * (1 - 1e-9)
        assert float(curvatures[-1]) <= beta * (1 + 1e-9)
        largest = max(largest, float(curvatures[-1]))
    assert largest >= 0.99 * beta


def test_the_contribution_is_the_end_of_the_recursion() -> None:
    """d ← max(|1 − ηm|, |1 − ηβ|) d + ηL/n, step by step, with η = 2/(β + m)."""
    for modulus, iterations in ((0.01, 5), (0.3, 40), (7.0, 300)):
        objective = problem(modulus=modulus, iterations=iterations)
        beta = objective.row_norm**2 / 2 + modulus
        step, apart = 2 / (beta + modulus), 0.0
        for _ in range(iterations):
            apart = max(abs(1 - step * modulus), abs(1 - step * beta)) * apart + step * objective.lipschitz / 12
        assert objective.contribution(slots=12) == pytest.approx(apart, rel=1e-8)
        assert objective.contribution(slots=12) >= apart


@pytest.mark.parametrize("seed", range(4))
def test_the_optimum_is_as_close_as_promised(seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = rows_of(rng.normal(size=(10, FEATURES)), rng.integers(0, LABELS, size=10), slots=10)
    centre = torch.tensor(rng.normal(size=(LABELS, FEATURES + 1)))
    best = weights_of(problem(iterations=800), data, 10, centre)
    for iterations in (1, 5, 30):
        objective = problem(iterations=iterations)
        apart = float((weights_of(objective, data, 10, centre) - best).norm())
        assert 0 < apart <= objective.distance_to_optimum


# Floats


def in_long_doubles(objective: Objective, data: tuple[Rows, NDArray[np.int64]], slots: int, centre: Any) -> Any:
    """The same descent, written again, with 64 bits of mantissa."""
    rows, labels = data
    kept = labels >= 0
    x, unit = rows.x[kept].astype(np.longdouble), rows.unit[kept]
    least = np.longdouble(objective.radius) * (1 - np.longdouble(1e-9))
    x = x * np.minimum(1, least / np.maximum(np.sqrt((x * x).sum(1, keepdims=True)), least))
    if objective.bias:
        x = np.hstack([x, np.ones((len(x), 1), dtype=np.longdouble)])
    share = 1 / np.array([np.longdouble((unit == each).sum()) for each in unit]).reshape(-1, 1)
    centre = centre.numpy().astype(np.longdouble)
    weights = centre.copy()
    for _ in range(objective.iterations):
        scores = x @ weights.T
        grown = np.exp(scores - scores.max(1, keepdims=True))
        slopes = grown / grown.sum(1, keepdims=True) - np.eye(objective.labels)[labels[kept]]
        gradient = (share * slopes).T @ x / slots + objective.modulus * (weights - centre)
        weights = weights - np.longdouble(objective.step_size) * gradient
    return weights


@pytest.mark.parametrize("far", [0.0, 1.0, 1e4])
def test_rounding_stays_within_its_share(far: float) -> None:
    """What floats add to C, which is a bound for two runs, covers the error of each."""
    rng = np.random.default_rng(3)
    objective = problem(modulus=0.01, iterations=60)
    unit = np.repeat(np.arange(60), 2)
    data = rows_of(
        rng.normal(size=(120, FEATURES)) * 10, rng.integers(-1, 3, size=120), slots=60, unit=unit, rows_per_unit=2
    )
    centre = torch.tensor(rng.normal(size=(LABELS, FEATURES + 1)) * far)
    found = weights_of(objective, data, 60, centre).numpy()
    error = float(np.linalg.norm((found - in_long_doubles(objective, data, 60, centre)).astype(float)))
    real = objective.lipschitz / (objective.modulus * 60)
    real *= -math.expm1(-60 * math.log1p(4 * objective.modulus / objective.row_norm**2))
    stated = objective.contribution(slots=60, rows_per_unit=2, centre_norm=float(centre.norm()))
    assert 0 < 2 * error <= stated - real
    assert stated <= real * 1.001


def test_large_blocks_add_up_in_chunks() -> None:
    objective, rng = problem(iterations=3), np.random.default_rng(5)
    x, y = rng.normal(size=(9000, FEATURES)), rng.integers(0, LABELS, size=9000)
    found = weights_of(objective, rows_of(x, y, slots=9001), 9001, zero(objective)).numpy()
    shown = in_long_doubles(objective, rows_of(x, y, slots=9001), 9001, zero(objective))
    np.testing.assert_allclose(found, shown.astype(float), rtol=0, atol=1e-12)


def test_bounds_do_not_break_at_the_ends() -> None:
    for radius in (1e-6, 1.0, 1e6):
        for modulus in (1e-9, 1.0, 1e6):
            for slots in (1, 10**9):
                objective = problem(radius=radius, modulus=modulus, iterations=10**6)
                most = objective.contribution(slots=slots, rows_per_unit=100, centre_norm=1e6)
                assert 0 < most < math.inf
                assert 0 <= objective.distance_to_optimum < math.inf


# The law of the noise


DRAWS: Final = 3000


def test_gaussian_noise_has_the_deviation_that_the_event_states() -> None:
    noise, weights = Noise.repeatable(1), torch.arange(6, dtype=torch.float64).reshape(2, 3)
    event = Gaussian(noise_multiplier=3.0)
    drawn = torch.stack([perturbed(weights, event, contribution=0.5, noise=noise) for _ in range(DRAWS)]) - weights
    assert float(drawn.std()) == pytest.approx(1.5, rel=0.03)
    assert float(drawn.mean()) == pytest.approx(0.0, abs=0.05)
    every = drawn.reshape(DRAWS, 6)
    assert float((every.T @ every / DRAWS - 2.25 * torch.eye(6)).abs().max()) < 0.2  # independent coordinates


def test_pure_noise_is_spherical_with_a_gamma_norm() -> None:
    """Density ∝ exp(−‖v‖/b) in d dimensions: a norm of mean d·b and variance d·b², and no direction preferred."""
    noise, weights = Noise.repeatable(2), torch.ones(2, 3, dtype=torch.float64)
    event = L2Laplace(scale=2.0)
    drawn = torch.stack([perturbed(weights, event, contribution=0.25, noise=noise) for _ in range(DRAWS)]) - weights
    every = drawn.reshape(DRAWS, 6)
    norms = every.norm(dim=1)
    assert float(norms.mean()) == pytest.approx(6 * 0.5, rel=0.03)
    assert float(norms.var()) == pytest.approx(6 * 0.25, rel=0.1)
    ways = every / norms[:, None]
    assert float(ways.mean(dim=0).abs().max()) < 0.04
    assert float((ways.T @ ways / DRAWS - torch.eye(6) / 6).abs().max()) < 0.02


def test_the_published_noise_is_laplace_on_each_coordinate() -> None:
    noise, weights = Noise.repeatable(3), torch.zeros(100, 300, dtype=torch.float64)
    drawn = with_laplace_on_each_coordinate(weights, 0.7, noise=noise)
    assert float(drawn.abs().mean()) == pytest.approx(0.7, rel=0.02)
    assert float(drawn.var()) == pytest.approx(2 * 0.49, rel=0.05)
    assert float((drawn > 0).double().mean()) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("event", [Gaussian(noise_multiplier=1.3), L2Laplace(scale=0.9)])
def test_what_is_released_lies_on_a_grid(event: Gaussian | L2Laplace) -> None:
    """Multiples of a power of two: the low bits of the weights do not show through."""
    noise = Noise.repeatable(4)
    found = perturbed(torch.full((3, 3), math.pi, dtype=torch.float64), event, contribution=0.1, noise=noise)
    assert torch.equal(found * 2**30, (found * 2**30).round())


def test_an_event_that_states_no_noise_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError):
        perturbed(torch.zeros(1, 1), PureDP(epsilon=1.0), contribution=1.0, noise=Noise.repeatable(0))
