"""What `account` promises at the places where rounding, jumps and mixtures could break it."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accountant import account, event_from_json
from accountant.errors import InvalidDocument
from accountant.events import ApproxDP, Composed, Gaussian, PartitionSelection, PoissonSampled, PureDP, Repeated
from accountant.filters import Filter, Preset
from accountant.partition import inclusion_probability, threshold
from accountant.units import exact


@given(q=st.floats(0.01, 0.99), own=st.floats(1e-9, 1e-3), steps=st.integers(-2, 2))
def test_a_sampled_black_box_has_no_bound_below_its_own_delta(q: float, own: float, steps: int) -> None:
    # δ(ε) of the sampled event jumps to ∞ below q·δ; the product and its neighbours in floats are where it could slip.
    delta = q * own
    for _ in range(abs(steps)):
        delta = math.nextafter(delta, math.inf if steps > 0 else 0.0)
    found = account(PoissonSampled(sampling_probability=q, event=ApproxDP(epsilon=1.0, delta=own)), delta=delta)
    if exact(q) * exact(own) > exact(delta):
        assert found.upper == math.inf


@pytest.mark.parametrize(("epsilon", "delta", "folds"), [(0.5, 0.05, 3), (1.0, 0.1, 2), (1.0, 0.01, 2)])
def test_several_label_releases_never_lose_less_than_the_lower_bound(epsilon: float, delta: float, folds: int) -> None:
    # Brute force: each release sees its own count n of the label, with the record or without; all counts are tried.
    counts = range(2 * threshold(epsilon=epsilon, delta=delta) + 1)
    told = [inclusion_probability(n, epsilon=epsilon, delta=delta) for n in range(len(counts) + 1)]

    def truth(target: float) -> float:
        worst = 0.0
        for sizes in itertools.combinations_with_replacement(counts, folds):
            for more, fewer in ((1, 0), (0, 1)):
                total = 0.0
                for seen in itertools.product((True, False), repeat=folds):
                    p = math.prod(told[n + more] if s else 1 - told[n + more] for n, s in zip(sizes, seen, strict=True))
                    q = math.prod(
                        told[n + fewer] if s else 1 - told[n + fewer] for n, s in zip(sizes, seen, strict=True)
                    )
                    total += max(0.0, p - math.exp(target) * q)
                worst = max(worst, total)
        return worst

    event = Repeated(times=folds, event=PartitionSelection(epsilon=epsilon, delta=delta))
    for share in (0.9, 1.5, 2.5):
        found = account(event, delta=share * delta)
        assert found.lower == 0 or truth(found.lower) >= share * delta * (1 - 1e-9)
        assert found.upper == math.inf or truth(found.upper) <= share * delta * (1 + 1e-9)


def test_weakening_one_of_many_equal_releases_never_costs_more() -> None:
    equal = Repeated(times=20, event=PureDP(epsilon=0.1))
    weaker = Composed(events=(Repeated(times=19, event=PureDP(epsilon=0.1)), PureDP(epsilon=0.05)))
    assert account(weaker, delta=1e-5).upper <= account(equal, delta=1e-5).upper


@pytest.mark.parametrize("preset", ["mixed", "gaussian"])
def test_what_is_not_free_is_charged_at_least_a_unit(preset: Preset) -> None:
    budget = Filter.of(epsilon=1.0, delta=1e-5, preset=preset)
    for event in (Gaussian(noise_multiplier=1e163), PureDP(epsilon=1e-200)):
        assert min(budget.price(event, "add_remove").rho) >= 1
        assert account(event, delta=1e-5).upper < 1e-3


def test_a_document_says_everything_once() -> None:
    with pytest.raises(InvalidDocument, match="noise_multiplier: expected every field once"):
        event_from_json('{"kind": "gaussian", "noise_multiplier": 1, "noise_multiplier": 100}')
