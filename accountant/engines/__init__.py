"""Event → bounds on ε. Engines see leaves with their counts, never a loop over repetitions.

An engine takes (event, delta, adjacency) and returns an interval that holds the true ε. `account` intersects what the
engines say: each is a proof, so the smallest upper bound and the largest lower bound both hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from accountant.engines import closed_form, prv, rdp
from accountant.engines.closed_form import Interval
from accountant.events import Adjacency, Event, adjacency_of, event_of
from accountant.units import POSITIVE_FAILURE_PROBABILITY, real

Engine: TypeAlias = Callable[[Event, float, Adjacency], Interval]


def _closed_form(event: Event, delta: float, adjacency: Adjacency) -> Interval:
    return closed_form.bracket(event, delta=delta, adjacency=adjacency)


def _rdp(event: Event, delta: float, adjacency: Adjacency) -> Interval:
    return Interval(0.0, rdp.epsilon(event, delta=delta, adjacency=adjacency))


def _prv(event: Event, delta: float, adjacency: Adjacency) -> Interval:
    return prv.bracket(event, delta=delta, adjacency=adjacency)


#: Every engine with the version of its proofs; a stored number names both.
ENGINES: Final[Mapping[str, Engine]] = MappingProxyType({"closed_form": _closed_form, "rdp": _rdp, "prv": _prv})
VERSIONS: Final[Mapping[str, str]] = MappingProxyType({"closed_form": "1", "rdp": "1", "prv": "1"})


def _covered_form(event: Event, delta: float, adjacency: Adjacency) -> Interval:
    return _closed_form(event, delta, adjacency) if closed_form.covers(event, adjacency) else Interval(0.0, math.inf)


def _prv_above(event: Event, delta: float, adjacency: Adjacency) -> Interval:
    return Interval(0.0, prv.upper_bound(event, delta=delta, adjacency=adjacency))


#: The same proofs of upper bounds without work on lower ones.
_PROVERS: Final[Mapping[str, Engine]] = {"closed_form": _covered_form, "rdp": _rdp, "prv": _prv_above}

_CLOSED: Final = 1e-9  # relative; an interval as short as this is an answer
_CLOSE: Final = 1e-3  # relative; a grid may be off by a part of this


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The true ε of an event at `delta` lies in [lower, upper].

    `upper` already contains conversion, discretisation, truncation, quadrature and floating-point error, so it may be
    promised. `engine` is the one that proved it; `remark` says why a tighter engine had no answer, or no better one.
    """

    lower: float
    upper: float
    delta: float
    adjacency: Adjacency
    engine: str
    version: str
    remark: str = ""


def account(event: Event, *, delta: float, adjacency: Adjacency = "add_remove") -> Account:
    """Bounds on the ε of `event` at `delta`, by the tightest engine; none is asked once there is nothing left to gain.

    >>> from accountant.events import Gaussian
    >>> account(Gaussian(noise_multiplier=3.7306), delta=1e-5)  # doctest: +ELLIPSIS
    Account(lower=1.0000..., upper=1.0000..., delta=1e-05, adjacency='add_remove', engine='closed_form', ...)
    """
    event, delta, adjacency = _checked(event, delta, adjacency)
    answers: dict[str, Interval] = {}
    for name, engine in ENGINES.items():
        answers[name] = engine(event, delta, adjacency)
        if answers[name].upper <= answers[name].lower * (1 + _CLOSED):
            break
    return _best(answers, delta, adjacency)


def prove(event: Event, *, delta: float, target: float = 0.0, adjacency: Adjacency = "add_remove") -> Account:
    """An upper bound on ε for less work than `account`: engines are asked until one proves `target`.

    `lower` is what comes for free.
    """
    event, delta, adjacency = _checked(event, delta, adjacency)
    answers: dict[str, Interval] = {}
    for name, engine in _PROVERS.items():
        answers[name] = engine(event, delta, adjacency)
        if answers[name].upper <= max(target, answers[name].lower * (1 + _CLOSED)):
            break
    else:
        if target < answers["prv"].upper <= target * (1 + _CLOSE):  # a finer grid may prove it
            finer = prv.upper_bound(event, delta=delta, adjacency=adjacency, precision=prv.PRECISION / 16)
            answers["prv"] = Interval(0.0, min(finer, answers["prv"].upper))
    return _best(answers, delta, adjacency)


def _checked(event: Event, delta: float, adjacency: Adjacency) -> tuple[Event, float, Adjacency]:
    return event_of(event), real("delta", delta, POSITIVE_FAILURE_PROBABILITY), adjacency_of(adjacency)


def _best(answers: Mapping[str, Interval], delta: float, adjacency: Adjacency) -> Account:
    best = min(answers, key=lambda name: answers[name].upper)
    upper = answers[best].upper
    return Account(
        lower=min(upper, max(answer.lower for answer in answers.values())),
        upper=upper,
        delta=delta,
        adjacency=adjacency,
        engine=best,
        version=VERSIONS[best],
        remark=" ".join(answer.remark for answer in answers.values() if answer.remark and best != "closed_form"),
    )
