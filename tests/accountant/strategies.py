"""Events of every kind to draw from, so that a law written once runs over all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias, get_args

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from accountant.events import (
    KINDS,
    ZCDP,
    Adjacency,
    ApproxDP,
    Composed,
    Event,
    Gaussian,
    L2Laplace,
    Laplace,
    NonPrivate,
    PartitionSelection,
    PoissonSampled,
    PureDP,
    Repeated,
)

Events: TypeAlias = SearchStrategy[Event]

ADJACENCIES: Final[tuple[Adjacency, ...]] = get_args(Adjacency)

#: For laws that run once per kind and adjacency: an eighth of the profile's examples each.
fewer: Final = settings(max_examples=max(5, settings().max_examples // 8))

#: For laws whose oracle takes a second.
rare: Final = settings(max_examples=max(5, settings().max_examples // 10))


def between(low: float, high: float) -> SearchStrategy[float]:
    """Numbers of all sizes from `low` to `high`, both positive."""
    return st.floats(math.log(low), math.log(high)).map(lambda size: min(max(math.exp(size), low), high))


deltas: Final = between(1e-12, 0.3)
adjacencies: Final = st.sampled_from(ADJACENCIES)

# A curve of a sampled Gaussian under replace-one takes a tenth of a second, so its parameters come from a
# grid, where the engine's cache helps; `test_engines` checks the formula itself off the grid.
_sampling_probabilities: Final = st.sampled_from((1e-6, 0.01, 0.3, 1.0))
_sampled_gaussians: Final[Events] = st.builds(Gaussian, noise_multiplier=st.sampled_from((0.5, 1.0, 8.0)))

#: kind → events with that kind at the root, given the events that may stand inside.
_OF_KIND: Final[Mapping[str, Callable[[Events], Events]]] = {
    "gaussian": lambda _: st.builds(Gaussian, noise_multiplier=between(0.3, 100)),
    "laplace": lambda _: st.builds(Laplace, scale=between(0.1, 100)),
    "l2_laplace": lambda _: st.builds(L2Laplace, scale=between(0.1, 100)),
    "pure_dp": lambda _: st.builds(PureDP, epsilon=between(1e-4, 10)),
    "approx_dp": lambda _: st.builds(ApproxDP, epsilon=between(1e-4, 10), delta=between(1e-12, 1e-2)),
    "zcdp": lambda _: st.builds(ZCDP, rho=between(1e-6, 10)),
    "partition_selection": lambda _: st.builds(
        PartitionSelection, epsilon=between(1e-2, 10), delta=between(1e-12, 1e-2)
    ),
    "non_private": lambda _: st.builds(NonPrivate),
    "poisson_sampled": lambda inner: st.builds(
        PoissonSampled, sampling_probability=_sampling_probabilities, event=_sampled_gaussians | inner
    ),
    "repeated": lambda inner: st.builds(Repeated, times=st.integers(1, 1000), event=inner),
    "composed": lambda inner: st.builds(Composed, events=st.lists(inner, max_size=3).map(tuple)),
}

WITH_EVENTS_INSIDE: Final = ("poisson_sampled", "repeated", "composed")


def known_kinds() -> set[str]:
    """Kinds that can be drawn; a test compares it with the table of kinds."""
    return set(_OF_KIND)


_leaves: Final[Events] = st.one_of(
    *(_OF_KIND[kind](st.nothing()) for kind in KINDS if kind in _OF_KIND and kind not in WITH_EVENTS_INSIDE)
)


def trees(max_leaves: int = 4) -> Events:
    """Trees of all kinds."""
    return st.recursive(
        _leaves,
        lambda inner: st.one_of(*(_OF_KIND[kind](inner) for kind in WITH_EVENTS_INSIDE)),
        max_leaves=max_leaves,
    )


def events_of(kind: str) -> Events:
    """Events with this kind at the root."""
    return _OF_KIND[kind](trees(max_leaves=2))
