"""Audits of every mechanism of the catalog: N, lower bound, claim and verdict, as the table of docs/soundness.md.

`python3 dev.py bench soundness [mechanism …]`. The noise repeats, so that everybody gets the same table.
"""

from __future__ import annotations

import math
import sys
from time import perf_counter

import torch

from benchmarks.measure import duration
from trainers.attacks.registry import AUDITS, CONFIDENCE, Outcome, conduct
from trainers.noise import Noise

SEED = 2026
HEADER = (
    "| mechanism | audit | level | N | promise | ε ≤ | ε ≥ | Gaussian fit | verdict |\n"
    "| --- | --- | --- | ---: | --- | ---: | ---: | ---: | --- |"
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
        f"| {down(outcome.bound.epsilon_lower)} | {fitted} | {outcome.verdict} |"
    )


def main() -> None:
    """Conduct all audits, or those of the mechanisms that are named."""
    torch.set_num_threads(1)
    chosen = sys.argv[1:] or list(AUDITS)
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
