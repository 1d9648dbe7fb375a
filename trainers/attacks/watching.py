"""How far an attack is: samples done, of samples. Both are numbers of its plan and of a loop, and public.

Whoever loops over samples says it, and whoever conducts the audit hears it; what lies between need not carry it along.
An attack that draws all of its samples at once says nothing between its beginning and its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from trainers.ports import Progress

_HEARING: Final[ContextVar[Progress | None]] = ContextVar("_HEARING", default=None)


@contextmanager
def heard(progress: Progress) -> Iterator[None]:
    """Within this block, `progress` hears how far the samples of an attack are."""
    before = _HEARING.set(progress)
    try:
        yield
    finally:
        _HEARING.reset(before)


def counted(samples: int, *, at_a_time: int = 1, side: int = 0, sides: int = 1) -> Iterator[int]:
    """Where each batch of samples starts, as `range(0, samples, at_a_time)`; how far it is is said after each.

    Of an attack that loops over its samples for one side after the other, this is the loop of side `side`.

    >>> with heard(lambda done, of: print(done, of)):
    ...     list(counted(10, at_a_time=4, side=1, sides=2))
    7 10
    9 10
    10 10
    [0, 4, 8]
    """
    progress = _HEARING.get()
    for start in range(0, samples, at_a_time):
        yield start
        if progress is not None:
            progress((side * samples + min(samples, start + at_a_time)) // sides, samples)
