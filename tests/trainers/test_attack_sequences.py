"""Attacks on all releases of a life catch what attacks on each of them cannot: a release that nobody charged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pytest

from accountant import Filter
from accountant.audit.verdicts import verdict
from accountant.filters import Cost
from trainers.attacks import coordinates, sequences
from trainers.attacks.planned import (
    DELTA,
    FOURTH,
    LEARNED,
    MOMENTS_FOURTH,
    RECALLED,
    RELEASES,
    REMEMBERINGS,
    SAMPLED,
    SUMS_FOURTH,
    life,
    price,
)
from trainers.attacks.registry import AUDITS, CONFIDENCE, Audit, conduct
from trainers.attacks.runs import Guesses, Scores
from trainers.catalog import mechanism
from trainers.noise import Noise

Gather = Callable[[int, Noise], Scores | Guesses]


class Life(NamedTuple):
    """A stream of trainings that all touch the same datapoint: the attack for a number of releases, and their cost."""

    audit: str
    gather: Callable[[int], Gather]
    once: Callable[[], float]
    costs: Callable[[int], float]
    releases: int
    samples: int


def _many(experiment: Callable[[int], coordinates.Experiment], at_a_time: int = 1_000) -> Callable[[int], Gather]:
    return lambda releases: partial(coordinates.gathered, experiment(releases), at_a_time=at_a_time)


def _from_the_start(name: str) -> Callable[[int], Gather]:
    return _many(lambda releases: sequences.each_from_the_start(FOURTH, name, releases=releases))


def _memories(releases: int) -> float:
    later = releases - 1
    return life("episodic-memory", LEARNED, *[RECALLED] * later, charges=(0, *[1] * later))


LIVES: Final[Mapping[str, Life]] = {
    "dp-sgd, each from the last": Life(
        "all releases of a life, each from the last",
        _many(lambda releases: sequences.each_from_the_last(SAMPLED, releases=releases)),
        lambda: price("dp-sgd", SAMPLED),
        lambda releases: life("dp-sgd", *[SAMPLED] * releases),
        16,
        6_000,
    ),
    "dp-sgd, each from the start": Life(
        "all releases of a life, each from the start",
        _from_the_start("dp-sgd"),
        lambda: price("dp-sgd", FOURTH),
        lambda releases: life("dp-sgd", *[FOURTH] * releases),
        16,
        4_000,
    ),
    "peft-ensemble": Life(
        "all members of a life",
        _from_the_start("peft-ensemble"),
        lambda: price("peft-ensemble", FOURTH),
        lambda releases: life("peft-ensemble", *[FOURTH] * releases),
        16,
        4_000,
    ),
    "episodic-memory": Life(
        "all releases of a life, in a task and then in memories",
        lambda releases: partial(sequences.with_memories, LEARNED, RECALLED, releases=releases),
        lambda: max(price("episodic-memory", LEARNED), price("episodic-memory", RECALLED, charge=1)),
        _memories,
        REMEMBERINGS,
        2_000,
    ),
    "cosine-classifier": Life(
        "all sums of a life",
        _many(
            lambda releases: sequences.all_sums(
                "cosine-classifier", SUMS_FOURTH, {"feature_size": 1}, releases=releases
            ),
            20_000,
        ),
        lambda: price("cosine-classifier", SUMS_FOURTH),
        lambda releases: life("cosine-classifier", *[SUMS_FOURTH] * releases),
        12,
        20_000,
    ),
    "l2dp-ml": Life(
        "all statistics of a life",
        _many(lambda releases: sequences.all_sums("l2dp-ml", MOMENTS_FOURTH, {"inputs": 1}, releases=releases), 20_000),
        lambda: price("l2dp-ml", MOMENTS_FOURTH),
        lambda releases: life("l2dp-ml", *[MOMENTS_FOURTH] * releases),
        12,
        20_000,
    ),
}


def audit_of(name: str) -> Audit:
    [found] = [each for each in AUDITS[name.partition(",")[0]] if each.name == LIVES[name].audit]
    assert found.level == "sequence"
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", LIVES)
def test_a_release_that_nobody_charged_is_seen_by_who_sees_them_all(name: str) -> None:
    """Charged once and released many times: no attack on one release sees it, the attack on all of them does."""
    known, audit = LIVES[name], audit_of(name)
    together, alone = (
        conduct(
            replace(audit, epsilon=known.once, gather=known.gather(releases)),
            samples=known.samples,
            noise=Noise.repeatable(1),
        )
        for releases in (known.releases, 1)
    )
    assert together.verdict == "violation", f"{together.bound} against {together.epsilon}"
    assert together.bound.epsilon_lower > 1.1 * together.epsilon
    assert alone.verdict == "consistent"
    honest = known.costs(known.releases)
    assert verdict(together.bound, epsilon=honest, delta=DELTA, confidence=CONFIDENCE, powerful=True) == "consistent"


@pytest.mark.parametrize("name", LIVES)
def test_a_ledger_charges_a_life_no_less_than_what_is_audited(name: str) -> None:
    """A filter adds up the releases as they come; what audits hold against is tighter, and grows with each of them."""
    known = LIVES[name]
    releases = REMEMBERINGS if name == "episodic-memory" else RELEASES
    promised = audit_of(name).epsilon()
    assert promised == known.costs(releases)
    assert promised > known.costs(1) == pytest.approx(known.once())
    ledger = Filter.of(epsilon=100.0, delta=DELTA)
    parameters: Mapping[str, Mapping[str, Any]] = {
        "dp-sgd, each from the last": SAMPLED, "dp-sgd, each from the start": FOURTH, "peft-ensemble": FOURTH,
        "episodic-memory": LEARNED, "cosine-classifier": SUMS_FOURTH, "l2dp-ml": MOMENTS_FOURTH,
    }  # fmt: skip
    event = mechanism(name.partition(",")[0]).quote(parameters[name], adjacency="add_remove").charges[0].event
    assert ledger.meter(Cost.sum([ledger.price(event, "add_remove")] * releases)) >= promised


def test_a_life_moves_scores_as_far_as_its_releases_together() -> None:
    """μ of a life is the root of the sum of squares, by real runs: means and deviations of scores."""
    for experiment, expected in (
        (sequences.each_from_the_start(FOURTH, "dp-sgd", releases=4), 2 / 4),
        (sequences.all_sums("cosine-classifier", SUMS_FOURTH, {"feature_size": 1}, releases=4), 2 / 3),
        (sequences.one_from_the_other("l2dp-ml", {**MOMENTS_FOURTH}, {"inputs": 1}), 1 / (3 * 2**0.5)),
    ):
        scores = coordinates.gathered(experiment, 6_000, Noise.repeatable(4), at_a_time=2_000)
        apart = (scores.included.mean() - scores.excluded.mean()) / scores.excluded.std()
        assert apart == pytest.approx(expected, abs=0.08)
    guesses = sequences.with_memories(LEARNED, RECALLED, 2_000, Noise.repeatable(4), releases=16)
    ones, zeros = guesses.scores[guesses.included], guesses.scores[~guesses.included]
    assert (ones.mean() - zeros.mean()) / np.std(zeros) == pytest.approx(1, abs=0.1)
