"""How the benchmarks take times and compare them."""

from collections.abc import Callable, Hashable, Mapping
from statistics import median
from time import perf_counter
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)


def medians(
    actions: Mapping[Name, Callable[[], object]],
    *,
    repeats: int,
    calls: int = 1,
    reset: Callable[[], object] = lambda: None,
) -> dict[Name, float]:
    """Seconds per call of each action. They take turns of `calls`, so that a busy machine slows all of them alike.

    `reset` follows every turn and is not counted, nor is the first round.
    """
    seconds: dict[Name, list[float]] = {name: [] for name in actions}
    for _ in range(repeats + 1):
        for name, action in actions.items():
            start = perf_counter()
            for _ in range(calls):
                action()
            seconds[name].append((perf_counter() - start) / calls)
            reset()
    return {name: median(taken[1:]) for name, taken in seconds.items()}


def duration(seconds: float) -> str:
    """Three digits and a unit.

    >>> duration(0.0000123), duration(57.04)
    ('12.3 µs', '57.0 s')
    """
    unit, size = next(((unit, size) for unit, size in (("s", 1.0), ("ms", 1e-3)) if seconds >= size), ("µs", 1e-6))
    number = seconds / size
    return f"{number:.{0 if number >= 100 else 1 if number >= 10 else 2}f} {unit}"


def times(ratio: float) -> str:
    """A ratio of two durations, with two digits or all before the point.

    >>> times(0.934), times(17.25), times(13703.5)
    ('0.93x', '17.2x', '13,704x')
    """
    return f"{ratio:,.{0 if ratio >= 100 else 1 if ratio >= 10 else 2}f}x"


def at_least(what: str, ratio: float, target: float) -> str:
    """A line that says whether a speed-up reaches its target."""
    return f"{'met' if ratio >= target else 'missed':<7} {what}: {times(ratio)}, target at least {target:,}x"


def at_most(what: str, ratio: float, target: float) -> str:
    """A line that says whether a growth stays within its target."""
    return f"{'met' if ratio <= target else 'missed':<7} {what}: {times(ratio)}, target at most {target:,}x"
