"""Label release: prices of all rules by enumeration, a sampler against the law it must have, and real codes."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from accountant import account
from accountant.audit import names
from accountant.events import Adjacency, ApproxDP, PartitionSelection, Repeated
from accountant.partition import (
    LabelRelease,
    LaplaceThreshold,
    Optimal,
    SteepestTest,
    TruncatedGeometric,
    sequence_delta,
)
from tests.accountant.strategies import ADJACENCIES
from tests.trainers.test_labels import encounters
from trainers.catalog import label_spaces, mechanism
from trainers.labels import FEW
from trainers.mechanisms.label_release import RULES, counted, run, told
from trainers.noise import Noise
from trainers.ports import Made, Rows, Run

KINDS = (TruncatedGeometric, Optimal, LaplaceThreshold, SteepestTest)


def rows(y: Any, unit: Any = None, *, slots: int | None = None, rows_per_unit: int = 1) -> Rows:
    y = np.asarray(y)
    unit = np.arange(len(y)) if unit is None else np.asarray(unit, dtype=np.int64)
    return Rows(
        slots=int(unit.max(initial=-1)) + 1 if slots is None else slots,
        unit=unit,
        x=np.empty((len(y), 0), dtype=np.float32),
        y=y,
        rows_per_unit=rows_per_unit,
    )


def released(given_rows: Rows, noise: Noise, **parameters: Any) -> Made:
    row = mechanism("label-release")
    checked = {"epsilon": 1.0, "delta": 1e-5, "labels_per_unit": 1, "rule": "geometric"} | parameters
    row.quote(checked, adjacency="add_remove")
    return run(Run(parameters=checked, recipe={}, adjacency="add_remove", rows=[given_rows], noise=noise))


# Prices


def enumerated(rule: str, epsilon: float, delta: float) -> list[float]:
    """π(0), π(1), … by the definition of each rule, until it is 1 or nearly so."""
    pi = [0.0]
    if rule == "geometric":
        k = 1
        while True:
            weights = [math.exp(-epsilon * abs(x)) for x in range(-k, k + 1)]
            if weights[-1] / sum(weights) <= delta:
                break
            k += 1
        pi += [
            sum(w for x, w in zip(range(-k, k + 1), weights, strict=True) if n + x > k) / sum(weights)
            for n in range(1, 2 * k + 2)
        ]
        return pi
    while pi[-1] < 1 - 1e-9:
        n, last = len(pi), pi[-1]
        match rule:
            case "optimal":
                pi.append(min(math.exp(epsilon) * last + delta, 1 - math.exp(-epsilon) * (1 - last - delta), 1.0))
            case "laplace":
                tau = 1 + math.log(1 / (2 * delta)) / epsilon
                pi.append(float(stats.laplace(scale=1 / epsilon).sf(tau - n)))
            case "binary":
                grown = min(math.exp(epsilon) * last, 1 - math.exp(-epsilon) * (1 - last))
                pi.append(delta if n == 1 else grown)
    return pi


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-5), (0.5, 1e-3), (2.0, 1e-6)])
def test_every_rule_runs_what_it_says_and_costs_what_it_says(rule: str, epsilon: float, delta: float) -> None:
    pi = np.array(enumerated(rule, epsilon, delta))
    kind = RULES[rule](epsilon=epsilon, delta=delta)
    np.testing.assert_allclose(kind.inclusion_probability(np.arange(len(pi))), pi, atol=1e-11)
    assert [float(kind.exactly(n, digits=30)) for n in range(len(pi))] == pytest.approx(pi.tolist(), abs=1e-11)
    own = sequence_delta(pi, epsilon=epsilon)
    assert own == pytest.approx(pi[1], rel=1e-6)  # a label of one datapoint is the worst
    for adjacency in ADJACENCIES:
        parameters = {"epsilon": epsilon, "delta": delta, "rule": rule}
        [charge] = mechanism("label-release").quote(parameters, adjacency=adjacency).charges
        counts = 1 if adjacency == "add_remove" else 2
        price = account(charge.event, delta=-math.expm1(counts * math.log1p(-own * (1 + 1e-9))), adjacency=adjacency)
        assert price.upper == pytest.approx(counts * epsilon, rel=1e-6)


@pytest.mark.parametrize("rule", ["optimal", "laplace", "binary"])
def test_a_replaced_datapoint_costs_no_more_than_is_quoted(rule: str) -> None:
    """By going through all outcomes of the two labels that it leaves and enters, for all pairs of sizes."""
    epsilon, delta = 0.7, 1e-3
    pi = np.array(enumerated(rule, epsilon, delta)[:40])
    [charge] = (
        mechanism("label-release")
        .quote({"epsilon": epsilon, "delta": delta, "rule": rule}, adjacency="replace_one")
        .charges
    )
    assert charge.event == Repeated(times=2, event=ApproxDP(epsilon=epsilon, delta=delta))
    grown, shrunk = list(itertools.pairwise(pi)), [(b, a) for a, b in itertools.pairwise(pi)]
    for order in (0.0, 0.5, 0.7, 1.0, 1.4, 2.0):
        worst = 0.0
        for (p1, q1), (p2, q2) in itertools.product(grown, shrunk):
            outcomes = itertools.product(((p1, q1), (1 - p1, 1 - q1)), ((p2, q2), (1 - p2, 1 - q2)))
            worst = max(worst, sum(max(0.0, a * c - math.exp(order) * b * d) for (a, b), (c, d) in outcomes))
        if worst > 1e-9:
            assert account(charge.event, delta=worst * (1 - 1e-9), adjacency="replace_one").upper >= order * (1 - 1e-9)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("labels", [1, 3])
def test_advice_leads_back_to_parameters(rule: str, labels: int, adjacency: Adjacency) -> None:
    row = mechanism("label-release")
    given_ = {"epsilon": 1.0, "delta": 1e-5, "rule": rule, "labels_per_unit": labels}
    [charge] = row.quote(given_, adjacency=adjacency).charges
    half: Any = charge.event
    each: Any = half.event if isinstance(half, Repeated) else half
    less = type(each)(epsilon=each.epsilon / 2, delta=each.delta)
    wanted = Repeated(times=half.times, event=less) if isinstance(half, Repeated) else less
    instead = row.instead(given_, [wanted], adjacency=adjacency)
    assert instead is not None
    assert instead["epsilon"] == pytest.approx(0.5)
    assert {key: value for key, value in instead.items() if key != "epsilon"} == {
        key: value for key, value in given_.items() if key != "epsilon"
    }
    assert row.instead(given_, [PartitionSelection(epsilon=1.0, delta=1e-5)] * 2, adjacency=adjacency) is None


# The steepest test


@given(st.floats(0.01, 5), st.floats(1e-12, 0.99))
def test_the_steepest_test_needs_delta_for_new_labels_alone(epsilon: float, delta: float) -> None:
    rule = SteepestTest(epsilon=epsilon, delta=delta)
    pi = rule.inclusion_probability(np.arange(1, min(rule.certain, 2000)))
    assert sequence_delta(np.concatenate([[0.0], pi]), epsilon=epsilon) == pytest.approx(delta, rel=1e-9)
    assert sequence_delta(pi, epsilon=epsilon) < 1e-13 * math.exp(epsilon)
    # Nothing that is told alone as seldom, and needs no more δ, is told more often.
    laplace = LaplaceThreshold(epsilon=epsilon, delta=delta).inclusion_probability(np.arange(1, len(pi) + 1))
    assert np.all(pi >= laplace - 1e-12)


# The sampler


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epsilon", [1e-9, 1e-3, 1.0, 50.0, 1e9])
@pytest.mark.parametrize("delta", [1e-300, 1e-5, 0.3, 0.6, 1 - 1e-9])
def test_floats_are_right_where_they_decide(kind: type[LabelRelease], epsilon: float, delta: float) -> None:
    """The sampler trusts a float to 1e-9; digits of another arithmetic say how far it is off."""
    rule = kind(epsilon=epsilon, delta=delta)
    far = min(rule.certain, 10**18 - 2)
    sizes = {1, 2, 3, 10, 100, far // 3, far // 2 - 1, far // 2, far // 2 + 1, far - 1, far, far + 1}
    for size in sorted(size for size in sizes if size >= 1):
        assert abs(rule.exactly(size, digits=30) - Decimal(rule.inclusion_probability(size))) < Decimal("1e-12")
    few, many = rule.exactly(3, digits=10), rule.exactly(3, digits=80)
    assert abs(few - many) < Decimal("1e-10")
    assert rule.exactly(0, digits=5) == 0


class Scripted(Noise):
    """Words that a test has chosen."""

    def __init__(self, *words: int) -> None:
        super().__init__(bytes(32), releasable=False)
        self._left = list(words)

    def words(self, count: int) -> NDArray[np.uint64]:
        drawn, self._left = self._left[:count], self._left[count:]
        assert len(drawn) == count, "more words than were expected"
        return np.array(drawn, dtype=np.uint64)

    def done(self) -> bool:
        return not self._left


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 5, 12, 13])
def test_a_word_that_agrees_with_the_probability_asks_for_more(kind: type[LabelRelease], size: int) -> None:
    """The label is told iff the uniform number is below π, however late their digits differ."""
    rule = kind(epsilon=1.0, delta=1e-5)
    digits = int(Fraction(rule.exactly(size, digits=150)) * 2**192)  # three words of π
    first, second, third = digits >> 128, digits >> 64 & (2**64 - 1), digits & (2**64 - 1)
    sizes = np.array([size])
    for words, expected in (
        ((first - 1,), True),
        ((first + 1,), False),
        ((first, second - 1), True),
        ((first, second + 1), False),
        ((first, second, third - 1), True),
        ((first, second, third + 1), False),
    ):
        noise = Scripted(*words)
        assert told(sizes, rule, noise).tolist() == [expected]
        assert noise.done()


@pytest.mark.parametrize("kind", KINDS)
def test_labels_are_told_as_often_as_they_should(kind: type[LabelRelease]) -> None:
    """Chi-square over the sizes that are neither rare nor certain, with a fixed seed."""
    rule = kind(epsilon=0.5, delta=1e-3)
    sizes, times = np.arange(60), 20_000
    found = told(np.tile(sizes, times), rule, Noise.repeatable(5)).reshape(times, -1).sum(axis=0)
    pi = rule.inclusion_probability(sizes)
    uncertain = (pi * times > 10) & ((1 - pi) * times > 10)
    assert np.count_nonzero(uncertain) > 10
    chi = float(np.sum((found - times * pi)[uncertain] ** 2 / (times * pi * (1 - pi))[uncertain]))
    degrees = int(np.count_nonzero(uncertain))
    assert 0.001 < stats.chi2(degrees).sf(chi) < 0.999
    assert found[0] == 0  # nobody carries it
    assert np.all(found[pi > 1 - 1e-9] == times)
    # Another law would be noticed: that of a neighbouring size.
    off = rule.inclusion_probability(sizes + 1)[uncertain]
    wrong = float(np.sum((found[uncertain] - times * off) ** 2 / np.maximum(times * off * (1 - off), 1)))
    assert stats.chi2(degrees).sf(wrong) < 1e-6


# The run


def carried(y: list[Any], unit: list[int], most: int) -> dict[Any, int]:
    """How many datapoints carry each label, slowly."""
    kept: dict[int, list[Any]] = {}
    for owner, label in zip(unit, y, strict=True):
        mine = kept.setdefault(owner, [])
        if label not in mine and len(mine) < most:
            mine.append(label)
    return dict(Counter(label for mine in kept.values() for label in mine))


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(-3, 4)), max_size=30),
    st.integers(1, 4),
    st.sampled_from([np.int64, np.int8, np.str_]),
)
def test_a_datapoint_counts_once_for_each_of_its_first_labels(
    pairs: list[tuple[int, int]], most: int, dtype: type
) -> None:
    pairs.sort(key=lambda pair: pair[0])
    unit, y = [pair[0] for pair in pairs], [dtype(pair[1]) for pair in pairs]
    many = rows(np.array(y, dtype=dtype), unit, rows_per_unit=30)
    labels, sizes = counted(many, labels_per_unit=most)
    assert dict(zip(labels.tolist(), sizes.tolist(), strict=True)) == carried(
        [v.item() if dtype != np.str_ else str(v) for v in y], unit, most
    )


def test_labels_of_single_rows_are_counted_in_one_pass() -> None:
    few = [np.array(y) for y in ([5, 5, 0, 2**40], [5, 5, 0, 9], [-1, -1, 3], ["b", "a", "b"])]
    few += [np.array([5, -7, 5, 3], dtype=np.int8), np.array([5, 2**64 - 1, 5], dtype=np.uint64)]
    for array in (*few, *(np.resize(each, FEW) for each in few), np.empty(0, dtype=np.int64)):
        labels, sizes = counted(rows(array), labels_per_unit=1)
        unique, expected = np.unique(array, return_counts=True)
        np.testing.assert_array_equal(labels, unique)
        np.testing.assert_array_equal(sizes, expected)


@pytest.mark.parametrize("rule", RULES)
def test_what_is_released(rule: str) -> None:
    y = np.repeat(["large", "alone", "more"], [500, 1, 400])
    made = released(rows(y), Noise.repeatable(1), rule=rule)
    assert made == Made(tensors={}, facts={"labels": ["large", "more"]})
    shuffled = np.random.default_rng(0).permutation(y)
    assert released(rows(shuffled), Noise.repeatable(1), rule=rule) == made
    numbers = np.repeat([10, 9, -1], [500, 400, 1])  # in order of their values
    assert released(rows(numbers), Noise.repeatable(1), rule=rule).facts == {"labels": ["9", "10"]}
    for empty in (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.str_)):
        assert released(rows(empty, slots=100), Noise.repeatable(1), rule=rule).facts == {"labels": []}
        many = rows(empty, slots=100, rows_per_unit=3)
        assert released(many, Noise.repeatable(1), rule=rule).facts == {"labels": []}


def test_whoever_carries_more_labels_than_stated_adds_no_more() -> None:
    """One datapoint with a thousand labels: without the bound it would have a thousand chances."""
    y = np.arange(1000)
    generous = {"delta": 0.9, "rule": "binary"}
    made = released(rows(y, np.zeros(1000, dtype=np.int64), rows_per_unit=1000), Noise.repeatable(2), **generous)
    assert made.facts["labels"] in ([], ["0"])
    spread = released(rows(y, rows_per_unit=1000), Noise.repeatable(2), **generous)
    assert len(spread.facts["labels"]) > 850


def test_real_codes(shared_data: Path) -> None:
    """717 primary diagnoses of hospital encounters: the 82 that one encounter has are as good as never told."""
    codes = np.array([code for [code] in encounters(shared_data, "diag_1")])
    names, sizes = np.unique(codes, return_counts=True)
    alone = set(names[sizes == 1].tolist())
    assert (len(names), len(alone)) == (717, 82)
    noise, times = Noise.repeatable(3), 100
    expected = TruncatedGeometric(epsilon=1.0, delta=1e-5).expected_labels(sizes)
    lists = [released(rows(codes), noise).facts["labels"] for _ in range(times // 10)]
    assert all(found == sorted(found) and set(found) <= set(names.tolist()) for found in lists)
    assert not any(alone & set(found) for found in lists)  # 82 · 10 chances of 7.7e-6
    kept = [int(told(sizes, TruncatedGeometric(epsilon=1.0, delta=1e-5), noise).sum()) for _ in range(times)]
    assert np.mean(kept) == pytest.approx(expected, abs=3)
    assert len(lists[0]) == pytest.approx(expected, abs=40)


def test_users_with_several_codes(shared_data: Path) -> None:
    """Unit = patient: three diagnoses of every encounter; a patient counts for at most four labels."""
    found = encounters(shared_data, "patient_nbr", "diag_1", "diag_2", "diag_3")[:30_000]
    pairs = sorted(((patient, code) for patient, *codes in found for code in codes), key=lambda pair: pair[0])
    _, unit = np.unique(np.array([patient for patient, _ in pairs]), return_inverse=True)
    many = rows(np.array([code for _, code in pairs]), unit, rows_per_unit=60)
    labels, sizes = counted(many, labels_per_unit=4)
    assert sizes.sum() <= 4 * many.slots
    assert sizes.max() <= many.slots
    slow = carried([code for _, code in pairs], unit.tolist(), 4)
    assert dict(zip(labels.tolist(), sizes.tolist(), strict=True)) == slow
    made = released(many, Noise.repeatable(4), labels_per_unit=4)
    assert 50 < len(made.facts["labels"]) < len(labels)


def test_of_more_labels_than_a_file_can_tell_the_first_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what was paid for: a run that failed here would tell for nothing how much there is."""
    y = np.repeat([f"label {number:03}" for number in range(300)], 50)
    whole = released(rows(y), Noise.repeatable(1)).facts
    assert len(whole["labels"]) == 300
    assert "labels_left_out" not in whole
    for limit, room, kept in (("MAX_TOLD", 100, 100), ("MAX_TOLD_BYTES", 14 * 20, 20), ("MAX_TOLD_BYTES", 1, 0)):
        with monkeypatch.context() as patched:
            patched.setattr(label_spaces, limit, room)
            told = released(rows(y), Noise.repeatable(1)).facts
        assert told == {"labels": whole["labels"][:kept], "labels_left_out": 300 - kept}
    assert not names.counts_in("labels_left_out")  # of examples
