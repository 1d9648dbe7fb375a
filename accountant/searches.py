"""Finding the last parameter that still fits, in few trials: each trial may compose a whole release."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

Number = TypeVar("Number", int, float)


def closest(
    over: Callable[[Number], float],
    good: tuple[Number, float],
    bad: tuple[Number, float],
    *,
    between: Callable[[Number, Number, float], Number],
    done: Callable[[Number, Number], bool],
) -> Number:
    """The last parameter that fits before one that fails, by false position with the Illinois rule.

    `good` and `bad` are parameters with what is over there. What is returned was found to fit, so the promise holds
    even where `over` is not quite monotone.
    """
    (fits, over_fits), (fails, over_fails) = good, bad
    last = 0
    while not done(fits, fails):
        share = over_fits / (over_fits - over_fails) if math.isfinite(over_fits - over_fails) else 0.5
        middle = between(fits, fails, min(max(share, 0.001), 0.999))
        value = over(middle)
        side = -1 if value <= 0 else 1
        if side < 0:
            fits, over_fits = middle, value
            over_fails /= 2 if last == side else 1
        else:
            fails, over_fails = middle, value
            over_fits /= 2 if last == side else 1
        last = side
    return fits
