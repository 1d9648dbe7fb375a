"""What releases cost together if all of them had been fixed in advance: a report beside the gate, never the gate.

Tight composition across releases is valid only for a schedule that nobody changed after seeing an output
(tests/accountant/adaptive.py has the counterexample), so every report carries that `CONDITION`. It shows how much of a
budget adaptivity costs, and what a plan would cost as one sealed release.

A young history is kept as the transforms of its losses on a grid: one more release is one product and one inverse
transform. An old one has next to nothing left but its lowest frequencies, and is kept as a `Sketch` of those, about
1 KiB: one more release is one short product, and δ at any ε is one short sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

import numpy as np

from accountant.engines import pairs, prv, rdp
from accountant.engines.pairs import Uncovered
from accountant.events import Adjacency, Composed, Event, Leaf, Repeated, adjacency_of, counted, event_of
from accountant.searches import closest
from accountant.units import NOT_NEGATIVE, POSITIVE_FAILURE_PROBABILITY, real

CONDITION: Final = "valid only if the schedule was fixed in advance"

_ROOM: Final = 2  # a grid is made for a history that is so many times as long
_DROPPED: Final = 1e-6  # of δ, about, when a sketch is made
_MOST_FREQUENCIES: Final = 256  # of a sketch: some kilobytes
_PRECISION: Final = 1e-6  # of ε, absolute and relative, when it is read from a sketch


@dataclass(frozen=True, kw_only=True)
class Report:
    """An upper bound on ε at `delta` of all `leaves` together, on the `CONDITION`."""

    delta: float
    adjacency: Adjacency
    leaves: Mapping[Leaf, int]
    history: OnGrid | Sketch | None  # None where losses cannot be composed numerically

    @classmethod
    def of(cls, event: Event, *, delta: float, adjacency: Adjacency = "add_remove") -> Report:
        """The report of a history; of none at all that is `Composed(events=())`.

        >>> from accountant.events import Gaussian
        >>> report = Report.of(Composed(events=()), delta=1e-5)
        >>> for _ in range(4):
        ...     report = report.plus(Gaussian(noise_multiplier=2.0))
        >>> round(report.epsilon, 2), report.engine
        (4.38, 'prv')
        """
        leaves = counted(event_of(event))
        return _report(leaves, real("delta", delta, POSITIVE_FAILURE_PROBABILITY), adjacency_of(adjacency))

    def plus(self, event: Event) -> Report:
        """The report with one more release."""
        leaves = dict(self.leaves)
        for leaf, times in counted(event_of(event)).items():
            leaves[leaf] = leaves.get(leaf, 0) + times
        if self.history is not None:
            try:
                longer = self.history.plus(event, self.adjacency)
                if longer.serves(self.delta, self.epsilon):
                    return replace(self, leaves=leaves, history=longer)
            except Uncovered:
                pass  # then another grid, or another engine, answers for all
        return _report(leaves, self.delta, self.adjacency)

    @cached_property
    def epsilon(self) -> float:
        """The smallest ε that is proved."""
        if self.history is not None:
            return self.history.epsilon(self.delta)
        return rdp.epsilon(_composition(self.leaves), delta=self.delta, adjacency=self.adjacency)

    @property
    def engine(self) -> str:
        """Which engine proved it."""
        return "rdp" if self.history is None else "prv"


def _report(leaves: Mapping[Leaf, int], delta: float, adjacency: Adjacency) -> Report:
    event = _composition(leaves)
    report = Report(delta=delta, adjacency=adjacency, leaves=leaves, history=None)
    try:
        found = pairs.parts(event, adjacency)
        if not found:
            return report
        counts, log_finite = prv.pairs_of(found), prv.log_finite(found)
        longer = {pair: _ROOM * times for pair, times in counts.items()}
        grid = prv.grid_for(longer, prv.finite_share(log_finite, delta))
        history = OnGrid(grid, prv.composed(counts, grid, "above"), log_finite)
        return replace(report, history=history.sketch(history.epsilon(delta), delta) or history)
    except Uncovered:
        return report


def _composition(leaves: Mapping[Leaf, int]) -> Event:
    return Composed(events=tuple(Repeated(times=times, event=leaf) for leaf, times in leaves.items()))


def _release(event: Event, grid: prv.Grid, adjacency: Adjacency) -> tuple[prv.Composed | None, float]:
    make = _kept_release if grid.points <= prv.KEPT_POINTS else _kept_release.__wrapped__
    return make(event, grid, adjacency)


@lru_cache(maxsize=128)
def _kept_release(
    event: Event, grid: prv.Grid, adjacency: Adjacency, kept: int | None = None
) -> tuple[prv.Composed | None, float]:
    found = pairs.parts(event, adjacency)
    return prv.composed(prv.pairs_of(found), grid, "above", kept) if found else None, prv.log_finite(found)


#: The same, as far as a sketch of so many frequencies needs it: small enough to keep many.
_low_release = lru_cache(maxsize=4096)(_kept_release.__wrapped__)


def _serves(grid: prv.Grid, law: prv.Composed, spare: float, epsilon: float) -> bool:
    """Whether the grid is still fine and long enough."""
    return (
        law.steps * grid.tail <= prv.CUT_OFF * spare
        and grid.mesh <= _ROOM * prv.mesh_for(law.steps, spare, epsilon)
        and all(prv.width_for(row, grid.place, spare, epsilon / 2) <= grid.width for row in law.cumulants)
    )


class OnGrid(NamedTuple):
    """Losses in both directions on a grid, and ln of the probability that nothing gave everything away."""

    grid: prv.Grid
    law: prv.Composed
    log_finite: float

    def plus(self, event: Event, adjacency: Adjacency) -> OnGrid:
        """With one more release."""
        law, log_finite = _release(event, self.grid, adjacency)
        if law is None:
            return self
        return OnGrid(self.grid, self.law.plus(law).cut(self.grid.points), self.log_finite + log_finite)

    def serves(self, delta: float, epsilon: float) -> bool:
        """Whether an ε near this one is still found well."""
        return _serves(self.grid, self.law, prv.finite_share(self.log_finite, delta), epsilon)

    def epsilon(self, delta: float) -> float:
        """The smallest ε that is proved."""
        return prv.epsilon_above(self.law, self.grid, prv.finite_share(self.log_finite, delta))

    def sketch(self, epsilon: float, delta: float) -> Sketch | None:
        """The lowest frequencies, as many as δ near this ε needs; None while those are too many."""
        grid, log_scale = self.grid, float(self.law.cumulant.max()) - self.grid.tilt * epsilon
        most = _DROPPED * delta * -math.expm1(-grid.tilt * grid.mesh) * math.exp(min(-log_scale, 690.0))
        law = self.law.cut(grid.points, most)
        return Sketch(grid, law, self.log_finite) if law.kept <= _MOST_FREQUENCIES else None


class _Kernel(NamedTuple):
    """What turns frequencies into δ: transforms of e^(−tilt · x) (1 − e^−x), as two geometric sums, and constants."""

    turns: prv.Complexes
    both: prv.Complexes
    total: float
    place: int  # of the tilts above the grid's
    tilts: prv.Floats
    further: prv.Floats
    from_below: float


@lru_cache(maxsize=64)
def _kernel(grid: prv.Grid, kept: int) -> _Kernel:
    frequency = np.arange(kept) * (2 * math.pi / grid.points)
    share = np.full(kept, 2 / grid.points)
    share[0] /= 2
    if 2 * (kept - 1) == grid.points:
        share[-1] /= 2  # of all frequencies, the highest is its own mirror image too
    both = [
        share * -math.expm1(-rate * grid.width) / (1 - np.exp(-rate * grid.mesh + 1j * frequency))
        for rate in (grid.tilt, grid.tilt + 1)
    ]
    tilts = prv.TILTS[grid.place + 1 :]
    further = (tilts - grid.tilt) * grid.width
    return _Kernel(
        turns=np.array(1j * frequency),
        both=np.array(both).T.copy(),
        total=1 / -math.expm1(-grid.tilt * grid.mesh),
        place=grid.place + 1,
        tilts=tilts,
        further=further + np.log(-np.expm1(-further)),
        from_below=1 / math.expm1(min(grid.tilt * grid.width, 690.0)),
    )


class _Turned(NamedTuple):
    """A kernel for one place of a grid, which is the same for every ε from the place before on: a gate asks there."""

    weights: prv.Floats  # real and imaginary parts by turns, so that a sum with them is real
    shares: prv.Floats  # of the tilts, in the exponents of what wraps around from above; at most those of any such ε
    total: float
    place: int
    from_below: float


@lru_cache(maxsize=256)
def _turned(grid: prv.Grid, kept: int, first: int) -> _Turned:
    kernel = _kernel(grid, kept)
    both = np.exp(kernel.turns * (first % grid.points))[:, None] * kernel.both
    weights = np.stack([both.real, -both.imag], axis=1).reshape(2 * kept, 2)
    shares = kernel.tilts * ((first - 1) * grid.mesh) + kernel.further
    return _Turned(weights, shares, kernel.total, kernel.place, kernel.from_below)


class Sketch(NamedTuple):
    """A history by its lowest frequencies."""

    grid: prv.Grid
    law: prv.Composed
    log_finite: float

    def plus(self, event: Event, adjacency: Adjacency) -> Sketch:
        """With one more release."""
        law, log_finite = _low_release(event, self.grid, adjacency, self.law.kept)
        return self if law is None else Sketch(self.grid, self.law.plus(law), self.log_finite + log_finite)

    def serves(self, delta: float, epsilon: float) -> bool:
        """Whether an ε near this one is still found well."""
        return _serves(self.grid, self.law, prv.finite_share(self.log_finite, delta), epsilon)

    def delta(self, epsilon: float) -> float:
        """An upper bound on δ at this ε, on the `CONDITION`."""
        return self._delta(real("epsilon", epsilon, NOT_NEGATIVE))

    def _delta(self, epsilon: float) -> float:
        grid, law = self.grid, self.law
        epsilon -= law.correction  # below 0 if need be: the law has losses there, too
        first = math.floor(epsilon / grid.mesh) + 1
        beyond = first * grid.mesh - epsilon
        kernel = _turned(grid, law.kept, first)
        sums = law.transform.view(np.float64).dot(kernel.weights).tolist()
        of_once, of_odds = math.exp(-grid.tilt * beyond), math.exp(-(grid.tilt + 1) * beyond)
        # Angles are at most 2π · kept, and wrong by three roundings of that.
        noise = 4 * kernel.total * (law.rounding + 4e-15 * law.kept)
        exponents = np.minimum.reduce(law.cumulants[:, kernel.place :] - kernel.shares, 1).tolist()
        growth, finite = (1 + pairs.TAIL_ERROR) ** law.steps, 0.0
        for (once, odds), log_finite, cumulant, aliased in zip(
            sums, law.log_finite.tolist(), law.cumulant.tolist(), exponents, strict=True
        ):
            if cumulant - grid.tilt * epsilon > 300:
                return 1.0
            value = max(0.0, of_once * once - of_odds * odds) + noise
            counted_above = math.exp(cumulant - grid.tilt * epsilon) * value
            # What lies beyond the window is less than what wraps around from above.
            counted_above += 2 * math.exp(min(0.0, aliased)) + kernel.from_below
            infinite = -math.expm1(log_finite) * (1 + 1e-12)
            finite = max(finite, counted_above * growth + infinite)
        return min(1.0, (finite - math.expm1(self.log_finite)) * (1 + 1e-12))

    def epsilon(self, delta: float) -> float:
        """The smallest ε that is proved at this δ."""

        def over(epsilon: float) -> float:
            return math.log(self._delta(epsilon) / delta)

        low, over_low = 0.0, over(0.0)
        if over_low <= 0:
            return 0.0
        high = max(prv.chernoff(cumulants, delta) for cumulants in self.law.cumulants)
        over_high = over(high)
        while over_high > 0:
            if high > 16 * self.grid.width:
                raise Uncovered("rounding errors are larger than δ")
            low, over_low, high = high, over_high, 2 * high
            over_high = over(high)
        return closest(
            over,
            (high, over_high),
            (low, over_low),
            between=lambda fits, fails, share: fits + (fails - fits) * share,
            done=lambda fits, fails: fits - fails <= _PRECISION * (1 + fails),
        )
