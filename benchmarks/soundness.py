"""Audits of every mechanism of the catalog: N, lower bound, claim and verdict, as the tables of docs/soundness.md.

`python3 dev.py bench soundness [mechanism …]`. Chance repeats, so that everybody gets the same tables.
"""

from __future__ import annotations

import math
import sys
from time import perf_counter

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import ndtr

from accountant import account
from accountant.audit.empirical import Tally, gaussian_split, planned, split, strongest
from accountant.events import Gaussian
from benchmarks.measure import duration
from trainers.attacks.registry import AUDITS, CONFIDENCE, Audit, Outcome, conduct
from trainers.noise import Noise

SEED = 2026
HEADER = (
    "| mechanism | audit | level | N | promise | ε ≤ | ε ≥ | Gaussian fit | verdict | what would show, from N |\n"
    "| --- | --- | --- | ---: | --- | ---: | ---: | ---: | --- | --- |"
)


def down(value: float) -> str:
    """What is measured rounds down."""
    return f"{math.floor(value * 100) / 100:.2f}"


def up(value: float) -> str:
    """What is promised rounds up."""
    return f"{math.ceil(value * 100 - 1e-9) / 100:.2f}"


def row(name: str, outcome: Outcome) -> str:
    """One line of the table."""
    audit = outcome.audit
    fitted = "" if outcome.fitted is None else down(outcome.fitted.epsilon_lower)
    promise = f"{audit.promiser}, δ = {audit.delta:g}"
    return (
        f"| `{name}` | {audit.name} | {audit.level} | {outcome.bound.samples:,} | {promise} | {up(outcome.epsilon)} "
        f"| {down(outcome.bound.epsilon_lower)} | {fitted} | {outcome.verdict} | {sees(audit)} |"
    )


def sees(audit: Audit) -> str:
    """The twin of an audit, and the fewest samples that show it."""
    return "nothing" if audit.fewest is None else f"{audit.twin}, {audit.fewest:,}"


def known_gaussian(epsilon: float, *, samples: int = 10**6, seeds: int = 200, delta: float = 1e-5) -> str:
    """Bounds on a Gaussian mechanism of this ε, as shares of it: least and median, and how many are above it.

    Counts of scores between thresholds are multinomial, so they are drawn from that law.
    """
    mu = brentq(lambda mu: account(Gaussian(noise_multiplier=1 / mu), delta=delta).upper - epsilon, 0.01, 5.0)
    at = np.linspace(7, -6, 261)
    reached = [ndtr(shift - at) for shift in (mu, 0.0)]
    counts = [np.floor(samples * each).astype(np.int64) for each in reached]
    usual = Tally(at, counts[0], counts[1], samples, samples)
    place = at == planned(usual, delta=delta, confidence=CONFIDENCE)
    found: dict[str, list[float]] = {"used": [], "chosen": [], "fitted": []}
    for seed in range(seeds):
        chance = np.random.default_rng(seed)
        parts = []
        for count in (samples // 4, samples - samples // 4):
            between = [np.diff(np.concatenate([[0.0], each, [1.0]])) for each in reached]
            counts = [np.cumsum(chance.multinomial(count, law / law.sum()))[:-1] for law in between]
            parts.append(Tally(at, counts[0], counts[1], count, count))
        first, rest = parts
        every = Tally(
            at[place],
            (first.included + rest.included)[place],
            (first.excluded + rest.excluded)[place],
            samples,
            samples,
        )
        for name, bound in (
            ("used", strongest(every, first, rest, delta=delta, confidence=CONFIDENCE)),
            ("chosen", split(first, rest, delta=delta, confidence=CONFIDENCE)),
            ("fitted", gaussian_split(first, rest, delta=delta, confidence=CONFIDENCE)),
        ):
            found[name].append(bound.epsilon_lower / epsilon)
    shares = " | ".join(f"{down(min(each))}, {down(float(np.median(each)))}" for each in found.values())
    return f"| {epsilon:g} | {shares} | {', '.join(str(sum(s > 1 for s in each)) for each in found.values())} |"


def main() -> None:
    """Conduct all audits, or those of the mechanisms that are named."""
    torch.set_num_threads(1)
    chosen = sys.argv[1:] or list(AUDITS)
    if not sys.argv[1:]:
        print("A Gaussian mechanism of known ε: shares of it, and how many of 200 bounds are above it.\n")
        print(*map(known_gaussian, (1.0, 4.0)), "", sep="\n", flush=True)
    print(f"Audits at {100 * CONFIDENCE:g} % confidence.\n\n{HEADER}")
    start = perf_counter()
    unexpected = 0
    for name in chosen:
        for audit in AUDITS[name]:
            outcome = conduct(audit, samples=audit.samples, noise=Noise.repeatable(SEED))
            print(row(name, outcome), flush=True)
            unexpected += outcome.verdict != audit.expected
    print(f"\n{duration(perf_counter() - start)}; {unexpected or 'no'} verdict(s) other than expected.")


if __name__ == "__main__":
    main()
