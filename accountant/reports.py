"""What releases cost together if all of them had been fixed in advance: a report beside the gate, never the gate.

Tight composition across releases is valid only for a schedule that nobody changed after seeing an output
(tests/accountant/adaptive.py has the counterexample), so every report carries that `CONDITION`. It shows how much of a
budget adaptivity costs, and what a plan would cost as one sealed release.

A young history is kept as the transforms of its losses on a grid: one more release is one product and one inverse
transform. An old one has next to nothing left but its lowest frequencies, and is kept as a `Sketch` of those, about
1 KiB: one more release is one short product, and δ at any ε is one short sum. Transforms of tilted laws are at most 1
in absolute value, so the frequencies that were dropped never grow, and what they may add is bounded when the sketch is
made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from accountant.engines import pairs, prv, rdp
from accountant.engines.pairs import Uncovered
from accountant.events import Adjacency, Composed, Event, Leaf, Repeated, adjacency_of, counted, event_of
from accountant.searches import closest
from accountant.units import NOT_NEGATIVE, POSITIVE_FAILURE_PROBABILITY, real

CONDITION: Final = "valid only if the schedule was fixed in advance"

MAX_FREQUENCIES: Final = 256  # of a sketch: 8 KiB
_ROOM: Final = 2  # a grid is made for a history that is so many times as long
_DROPPED: Final = 1e-7  # of δ, at most, when a sketch is made
_PRECISION: Final = 1e-6  # of ε, absolute and relative, when it is read from a sketch

Laws: TypeAlias = tuple[prv.Composed, prv.Composed]


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


def _release(event: Event, grid: prv.Grid, adjacency: Adjacency) -> tuple[Laws | None, float]:
    make = _kept_release if grid.points <= prv.KEPT_POINTS else _kept_release.__wrapped__
    return make(event, grid, adjacency)


@lru_cache(maxsize=128)
def _kept_release(event: Event, grid: prv.Grid, adjacency: Adjacency) -> tuple[Laws | None, float]:
    found = pairs.parts(event, adjacency)
    return prv.composed(prv.pairs_of(found), grid, "above") if found else None, prv.log_finite(found)


@lru_cache(maxsize=4096)
def _low_release(event: Event, grid: prv.Grid, adjacency: Adjacency, kept: int) -> tuple[Laws | None, float]:
    """The same, as far as a sketch of so many frequencies needs it: small enough to keep."""
    laws, log_finite = _release(event, grid, adjacency)
    if laws is None:
        return None, log_finite
    forward, backward = (replace(law, transform=law.transform[:kept].copy()) for law in laws)
    return (forward, backward), log_finite


def _serves(
    grid: prv.Grid, laws: tuple[prv.Composed | Band, prv.Composed | Band], spare: float, epsilon: float
) -> bool:
    """Whether the grid is still fine and long enough."""
    return (
        laws[0].steps * grid.tail <= prv.CUT_OFF * spare
        and grid.mesh <= _ROOM * prv.mesh_for(laws[0].steps, spare, epsilon)
        and all(prv.width_for(law.cumulants, grid.place, spare, epsilon / 2) <= grid.width for law in laws)
    )


class OnGrid(NamedTuple):
    """Losses in both directions on a grid, and ln of the probability that nothing gave everything away."""

    grid: prv.Grid
    laws: Laws
    log_finite: float

    def plus(self, event: Event, adjacency: Adjacency) -> OnGrid:
        """With one more release."""
        laws, log_finite = _release(event, self.grid, adjacency)
        if laws is None:
            return self
        together = (self.laws[0] + laws[0], self.laws[1] + laws[1])
        return OnGrid(self.grid, together, self.log_finite + log_finite)

    def serves(self, delta: float, epsilon: float) -> bool:
        """Whether an ε near this one is still found well."""
        return _serves(self.grid, self.laws, prv.finite_share(self.log_finite, delta), epsilon)

    def epsilon(self, delta: float) -> float:
        """The smallest ε that is proved."""
        return prv.epsilon_above(self.laws, self.grid, prv.finite_share(self.log_finite, delta))

    def sketch(self, epsilon: float, delta: float) -> Sketch | None:
        """The lowest frequencies, as many as δ near this ε needs; None while those are too many."""
        kernel = _kernel.__wrapped__(self.grid, self.grid.points // 2 + 1)  # used once, and too large to keep
        # what all frequencies from each on may add to δ, whatever ε
        sizes = np.abs(kernel.first) + np.abs(kernel.second)
        tails = [np.cumsum((np.abs(law.transform) * sizes)[::-1])[::-1] for law in self.laws]
        allowed = [
            _DROPPED * delta * math.exp(min(self.grid.tilt * epsilon - law.cumulant, 690.0)) for law in self.laws
        ]
        kept = max(int(np.searchsorted(-tail, -limit)) for tail, limit in zip(tails, allowed, strict=True)) + 1
        if kept > min(MAX_FREQUENCIES, len(sizes) - 1):
            return None
        bands = [
            Band(
                law.transform[:kept].copy(),
                law.cumulant,
                law.cumulants,
                law.log_finite,
                law.correction,
                law.few,
                law.many,
                float(tail[kept]),
                float(np.abs(law.transform).mean()),
            )
            for law, tail in zip(self.laws, tails, strict=True)
        ]
        return Sketch(self.grid, (bands[0], bands[1]), self.log_finite)


class _Kernel(NamedTuple):
    """What turns frequencies into δ: transforms of e^(−tilt · x) (1 − e^−x), as two geometric sums, and constants."""

    number: NDArray[np.int64]
    first: prv.Complexes
    second: prv.Complexes
    total: float
    place: int  # of the tilts above the grid's
    tilts: prv.Floats
    further: prv.Floats
    from_below: float


@lru_cache(maxsize=64)
def _kernel(grid: prv.Grid, kept: int) -> _Kernel:
    number = np.arange(kept, dtype=np.int64)
    frequency = number * (2 * math.pi / grid.points)
    share = np.full(kept, 2 / grid.points)
    share[0] /= 2
    first, second = (
        share * -math.expm1(-rate * grid.width) / (1 - np.exp(-rate * grid.mesh + 1j * frequency))
        for rate in (grid.tilt, grid.tilt + 1)
    )
    tilts = prv.TILTS[grid.place + 1 :]
    further = (tilts - grid.tilt) * grid.width
    return _Kernel(
        number=number,
        first=first,
        second=second,
        total=1 / -math.expm1(-grid.tilt * grid.mesh),
        place=grid.place + 1,
        tilts=tilts,
        further=further + np.log(-np.expm1(-further)),
        from_below=1 / math.expm1(min(grid.tilt * grid.width, 690.0)),
    )


class Band(NamedTuple):
    """The lowest frequencies of a composed law in one direction, and what its errors depend on."""

    low: prv.Complexes
    cumulant: float
    cumulants: prv.Floats
    log_finite: float
    correction: float
    few: int
    many: int
    dropped: float  # what the other frequencies may add, before it is scaled
    size: float

    @property
    def steps(self) -> int:
        """How many losses were added up."""
        return self.few + self.many

    def plus(self, law: prv.Composed) -> Band:
        """With one more release."""
        return Band(
            self.low * law.transform,
            self.cumulant + law.cumulant,
            self.cumulants + law.cumulants,
            self.log_finite + law.log_finite,
            self.correction + law.correction,
            self.few + law.few,
            self.many + law.many,
            self.dropped,
            self.size,
        )


class Sketch(NamedTuple):
    """A history by its lowest frequencies."""

    grid: prv.Grid
    bands: tuple[Band, Band]
    log_finite: float

    def plus(self, event: Event, adjacency: Adjacency) -> Sketch:
        """With one more release."""
        laws, log_finite = _low_release(event, self.grid, adjacency, len(self.bands[0].low))
        if laws is None:
            return self
        bands = (self.bands[0].plus(laws[0]), self.bands[1].plus(laws[1]))
        return Sketch(self.grid, bands, self.log_finite + log_finite)

    def serves(self, delta: float, epsilon: float) -> bool:
        """Whether an ε near this one is still found well."""
        return _serves(self.grid, self.bands, prv.finite_share(self.log_finite, delta), epsilon)

    def delta(self, epsilon: float) -> float:
        """An upper bound on δ at this ε, on the `CONDITION`."""
        forward, backward = self.bands
        real("epsilon", epsilon, NOT_NEGATIVE)
        epsilon = max(0.0, epsilon - max(forward.correction, backward.correction))
        grid, kernel = self.grid, _kernel(self.grid, len(forward.low))
        first = math.floor(epsilon / grid.mesh) + 1
        beyond = first * grid.mesh - epsilon
        turned = kernel.number * (first % grid.points) % grid.points
        weights = np.exp((2j * math.pi / grid.points) * turned) * (
            math.exp(-grid.tilt * beyond) * kernel.first - math.exp(-(grid.tilt + 1) * beyond) * kernel.second
        )
        finite = max(_finite(band, kernel, weights, grid, epsilon) for band in self.bands)
        return min(1.0, (finite - math.expm1(self.log_finite)) * (1 + 1e-12))

    def epsilon(self, delta: float) -> float:
        """The smallest ε that is proved at this δ."""
        if self.delta(0.0) <= delta:
            return 0.0
        low, high = 0.0, self.grid.width
        over_low, over_high = self._over(low, delta), self._over(high, delta)
        while over_high > 0:
            if high > 16 * self.grid.width:
                raise Uncovered("rounding errors are larger than δ")
            low, over_low, high = high, over_high, 2 * high
            over_high = self._over(high, delta)
        return closest(
            lambda epsilon: self._over(epsilon, delta),
            (high, over_high),
            (low, over_low),
            between=lambda fits, fails, share: fits + (fails - fits) * share,
            done=lambda fits, fails: fits - fails <= _PRECISION * (1 + fails),
        )

    def _over(self, epsilon: float, delta: float) -> float:
        return math.log(self.delta(epsilon) / delta)


def _finite(band: Band, kernel: _Kernel, weights: prv.Complexes, grid: prv.Grid, epsilon: float) -> float:
    """What finite losses add to δ in one direction, at most."""
    exponent = band.cumulant - grid.tilt * epsilon
    if exponent > 300:
        return 1.0
    noise = prv.rounding(grid.points, few=band.few, many=band.many, size=band.size) + 1e-15 * len(weights)
    value = max(0.0, float((weights @ band.low).real)) + band.dropped + 4 * kernel.total * noise
    aliased = math.exp(
        min(0.0, float((band.cumulants[kernel.place :] - kernel.tilts * epsilon - kernel.further).min()))
    )
    # What lies beyond the window is less than what wraps around from above.
    counted_above = math.exp(exponent) * value + 2 * aliased + kernel.from_below
    return counted_above * (1 + pairs.TAIL_ERROR) ** band.steps - math.expm1(band.log_finite) * (1 + 1e-12)
