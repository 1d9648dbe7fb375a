"""The ledger's arithmetic: integers with a rounding direction.

A privacy loss ρ is counted in units of 10⁻¹² nats, a δ in units of 10⁻³⁰. The units are decimal because what people
write down is exact in them: ten releases of ε = 0.1 use exactly a budget of ε = 1.

A float is read as **the decimal that it prints as**, because that text is what a proposal says, what the ledger stores
and what an officer reads. What is charged rounds up, what is allowed rounds down. Sums saturate at `SATURATED`, which
no budget reaches, so a charge without any bound stays one whatever is added to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from decimal import Context, Decimal
from fractions import Fraction
from numbers import Integral, Real
from typing import Final, NamedTuple

from accountant.errors import InvalidInput

_RHO_DIGITS: Final = 12
RHO_UNITS_PER_NAT: Final = 10**_RHO_DIGITS
DELTA_UNITS: Final = 10**30
SATURATED: Final = 10**40

#: Covers the floating-point error of every ρ computed in double precision. The formulas of `accountant.engines.rdp`
#: keep full relative accuracy (no cancellation), lose at most about 3e-12 in long log-sums, and get 30 times that.
RELATIVE_MARGIN: Final = 1e-10


_LARGEST: Final = 10**308
_EXACTLY: Final = Context(prec=40)  # a float prints as at most 17 digits

_WITH_MARGIN: Final = ((1 + Fraction(RELATIVE_MARGIN)) * RHO_UNITS_PER_NAT).as_integer_ratio()


def exact(value: float) -> Fraction:
    """The decimal that a float prints as, as a fraction.

    >>> exact(0.1) * 10 == 1
    True
    """
    return Fraction(repr(float(value)))


def rounded(value: Fraction, *, towards: float) -> float:
    """A positive fraction as a float: not above it `towards` 0, not below it towards ∞."""
    if value > _LARGEST:
        return math.inf if towards else float(_LARGEST)
    nearest = float(value)
    beyond = exact(nearest) > value if towards == 0 else exact(nearest) < value
    return math.nextafter(nearest, towards) if beyond else nearest


def log(value: Fraction) -> float:
    """The logarithm of a fraction that may be too small for a float."""
    return math.log(value.numerator) - math.log(value.denominator)


def charged_rho(value: float | Fraction) -> int:
    """Units that cover a loss of `value` nats: rounded up; infinity saturates.

    A float is an approximation and gets `RELATIVE_MARGIN`; a fraction is exact and gets none.
    """
    if value == math.inf:
        return SATURATED
    numerator, denominator = value.as_integer_ratio()
    over, under = _WITH_MARGIN if isinstance(value, float) else (RHO_UNITS_PER_NAT, 1)
    return min(-(-numerator * over // (denominator * under)), SATURATED)


def charged_delta(value: Fraction) -> int:
    """Units that cover a failure probability: rounded up."""
    return min(math.ceil(value * DELTA_UNITS), SATURATED)


def allowed_delta(value: Fraction) -> int:
    """Units that a failure probability allows: rounded down."""
    return math.floor(value * DELTA_UNITS)


def allowed_rho(value: Fraction) -> int:
    """Units that a loss allows: rounded down."""
    return math.floor(value * RHO_UNITS_PER_NAT)


def nats_up(units: int) -> float:
    """A number of nats not below `units`; the nearest float is taken where it prints as the same decimal."""
    if units >= SATURATED:
        return math.inf
    value = units / RHO_UNITS_PER_NAT
    return value if _units(value) >= units else math.nextafter(value, math.inf)


def nats_down(units: int) -> float:
    """A number of nats not above `units`, so that it may be proposed again as it was printed."""
    value = units / RHO_UNITS_PER_NAT
    return value if _units(value) <= units else math.nextafter(value, -math.inf)


def _units(nats: float) -> Decimal:
    """The decimal that a float prints as, in units of ρ: exactly, and twenty times faster than as a fraction."""
    return _EXACTLY.scaleb(Decimal(repr(nats)), _RHO_DIGITS)


def delta_down(units: int) -> float:
    """A failure probability not above `units`, so that it may be charged as it was printed."""
    value = units / DELTA_UNITS
    return value if exact(value) * DELTA_UNITS <= units else math.nextafter(value, -math.inf)


class Range(NamedTuple):
    """The values that an argument may take, in words and as a test."""

    words: str
    contains: Callable[[float], bool]


POSITIVE: Final = Range("a finite number > 0", lambda value: value > 0)
NOT_NEGATIVE: Final = Range("a finite number >= 0", lambda value: value >= 0)
PROBABILITY: Final = Range("a number in [0, 1]", lambda value: 0 <= value <= 1)
FAILURE_PROBABILITY: Final = Range("a number in [0, 1)", lambda value: 0 <= value < 1)
POSITIVE_FAILURE_PROBABILITY: Final = Range("a number in (0, 1)", lambda value: 0 < value < 1)


def real(argument: str, value: object, allowed: Range) -> float:
    """`value` as a finite float of the allowed range, or an error that names the argument."""
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):
            number = float(value)
            if math.isfinite(number) and allowed.contains(number):
                return number
    raise InvalidInput(argument, value, allowed.words)


def whole(argument: str, value: object, *, least: int, most: int) -> int:
    """`value` as an integer in [least, most], or an error that names the argument."""
    if isinstance(value, Integral) and not isinstance(value, bool) and least <= int(value) <= most:
        return int(value)
    raise InvalidInput(argument, value, f"a whole number from {least} to {most}")
