"""What a run does to the data it touches, as frozen values; never how it is counted.

A kind never changes meaning: a better theorem changes an engine, another mechanism gets another kind. An event holds
nothing private, so it can be logged and published.

`noise_multiplier` and `scale` are relative to the norm bound C of **one record's contribution**. What that makes of
the sensitivity is the engines' business: C under `add_remove`, 2C under `replace_one`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import chain, count
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal, TypeAlias, assert_never, cast, get_args

from accountant.errors import InvalidDocument, InvalidInput
from accountant.units import (
    FAILURE_PROBABILITY,
    NOT_NEGATIVE,
    POSITIVE,
    POSITIVE_FAILURE_PROBABILITY,
    PROBABILITY,
    Range,
    real,
    whole,
)

Adjacency: TypeAlias = Literal["add_remove", "replace_one"]

VERSION: Final = 1
MAX_TIMES: Final = 10**12  # repetitions, also of nested repetitions together
MAX_DEPTH: Final = 32
MAX_NODES: Final = 10_000


def adjacency_of(value: object) -> Adjacency:
    """`value` as an adjacency, or an error that lists them."""
    for known in get_args(Adjacency):
        if value == known:
            return known  # type: ignore[no-any-return]
    raise InvalidInput("adjacency", value, " or ".join(map(repr, get_args(Adjacency))))


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a tree is, known without walking it, so that a hostile tree is refused as it grows."""

    depth: int = 1
    nodes: int = 1
    leaves: int = 1  # with repetition

    def __post_init__(self) -> None:
        for argument, value, most in (
            ("depth of the event", self.depth, MAX_DEPTH),
            ("number of nested events", self.nodes, MAX_NODES),
            ("times", self.leaves, MAX_TIMES),
        ):
            if value > most:
                raise InvalidInput(argument, value, f"at most {most} in one event tree")


_LEAF: Final = Shape()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaf:
    """A kind whose fields are all numbers, each with the range that `_ranges` gives."""

    _ranges: ClassVar[Mapping[str, Range]] = {}
    shape: ClassVar[Shape] = _LEAF

    def __post_init__(self) -> None:
        for name, allowed in self._ranges.items():
            object.__setattr__(self, name, real(name, getattr(self, name), allowed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaussian(_Leaf):
    """A sum with independent noise N(0, (noise_multiplier · C)²) on every coordinate; C bounds the L2 norm."""

    noise_multiplier: float
    _ranges: ClassVar[Mapping[str, Range]] = {"noise_multiplier": POSITIVE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Laplace(_Leaf):
    """A sum with independent Laplace noise of scale `scale` · C on every coordinate; C bounds the **L1** norm."""

    scale: float
    _ranges: ClassVar[Mapping[str, Range]] = {"scale": POSITIVE}


@dataclass(frozen=True, slots=True, kw_only=True)
class L2Laplace(_Leaf):
    """A sum with noise of density ∝ exp(−‖v‖₂ / (scale · C)); C bounds the L2 norm."""

    scale: float
    _ranges: ClassVar[Mapping[str, Range]] = {"scale": POSITIVE}


@dataclass(frozen=True, slots=True, kw_only=True)
class PureDP(_Leaf):
    """Any mechanism that is (ε, 0)-DP under the population's adjacency."""

    epsilon: float
    _ranges: ClassVar[Mapping[str, Range]] = {"epsilon": NOT_NEGATIVE}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApproxDP(_Leaf):
    """Any mechanism that is (ε, δ)-DP under the population's adjacency."""

    epsilon: float
    delta: float
    _ranges: ClassVar[Mapping[str, Range]] = {"epsilon": NOT_NEGATIVE, "delta": FAILURE_PROBABILITY}


@dataclass(frozen=True, slots=True, kw_only=True)
class ZCDP(_Leaf):
    """Any mechanism that is ρ-zCDP (Bun & Steinke 2016) under the population's adjacency."""

    rho: float
    _ranges: ClassVar[Mapping[str, Range]] = {"rho": NOT_NEGATIVE}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSelection(_Leaf):
    """A label set released by truncated geometric partition selection with these parameters."""

    epsilon: float
    delta: float
    _ranges: ClassVar[Mapping[str, Range]] = {"epsilon": POSITIVE, "delta": POSITIVE_FAILURE_PROBABILITY}


@dataclass(frozen=True, slots=True, kw_only=True)
class NonPrivate(_Leaf):
    """Something that no guarantee covers. No budget admits it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonSampled:
    """`event` run on a random part of the data: each record is in it independently with `sampling_probability`."""

    sampling_probability: float
    event: Event
    shape: Shape = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        probability = real("sampling_probability", self.sampling_probability, PROBABILITY)
        object.__setattr__(self, "sampling_probability", probability)
        inner = event_of(self.event).shape
        _set_shape(self, Shape(inner.depth + 1, inner.nodes + 1, inner.leaves))


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """`event` run `times` times in a row, each with fresh randomness."""

    times: int
    event: Event
    shape: Shape = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "times", whole("times", self.times, least=1, most=MAX_TIMES))
        inner = event_of(self.event).shape
        _set_shape(self, Shape(inner.depth + 1, inner.nodes + 1, inner.leaves * self.times))


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """All `events`, one after the other, each with fresh randomness. None at all costs nothing."""

    events: tuple[Event, ...]
    shape: Shape = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.events, tuple | list):
            raise InvalidInput("events", self.events, "a list of events")
        object.__setattr__(self, "events", tuple(self.events))
        inner = [event_of(event).shape for event in self.events]
        _set_shape(
            self,
            Shape(
                1 + max((shape.depth for shape in inner), default=0),
                1 + sum(shape.nodes for shape in inner),
                sum(shape.leaves for shape in inner),
            ),
        )


Leaf: TypeAlias = (
    Gaussian | Laplace | L2Laplace | PureDP | ApproxDP | ZCDP | PartitionSelection | NonPrivate | PoissonSampled
)
Event: TypeAlias = Leaf | Repeated | Composed

#: The closed table of kinds. A stored event never names code to import.
KINDS: Final[Mapping[str, type[Event]]] = MappingProxyType(
    {
        "gaussian": Gaussian,
        "laplace": Laplace,
        "l2_laplace": L2Laplace,
        "pure_dp": PureDP,
        "approx_dp": ApproxDP,
        "zcdp": ZCDP,
        "partition_selection": PartitionSelection,
        "poisson_sampled": PoissonSampled,
        "repeated": Repeated,
        "composed": Composed,
        "non_private": NonPrivate,
    }
)
_KIND_OF: Final = MappingProxyType({kind: name for name, kind in KINDS.items()})


def event_of(value: object) -> Event:
    """`value` if it is an event, or an error that says what to do."""
    if type(value) not in _KIND_OF:
        raise InvalidInput("event", value, "an event (event_from_json makes one of a document)")
    return cast(Event, value)


def leaves(event: Event, times: int = 1) -> Iterator[tuple[Leaf, int]]:
    """Every leaf with the number of times that it runs: **the** place where counts multiply."""
    match event:
        case Repeated():
            yield from leaves(event.event, times * event.times)
        case Composed():
            yield from chain.from_iterable(leaves(part, times) for part in event.events)
        case (
            Gaussian()
            | Laplace()
            | L2Laplace()
            | PureDP()
            | ApproxDP()
            | ZCDP()
            | PartitionSelection()
            | NonPrivate()
            | PoissonSampled()
        ):
            yield event, times
        case _:
            assert_never(event)


def counted(event: Event) -> dict[Leaf, int]:
    """Every different leaf with the number of times that it runs, without those that say nothing about anybody.

    It is the same for all ways to write one composition.
    """
    counts: dict[Leaf, int] = {}
    for leaf, times in leaves(event):
        if not _is_free(leaf):
            counts[leaf] = counts.get(leaf, 0) + times
    return counts


MAX_DISTINCT: Final = 1_024  # leaves of one kind that differ; of more, neighbours are put together


def coarsened(counts: Mapping[Leaf, int], *, most: int = MAX_DISTINCT) -> dict[Leaf, int]:
    """Few different leaves that cost at least as much; the same leaves if they are few already.

    Parameters are rounded to fewer bits, in the direction that costs more. Less noise is never more private, since
    noise can be added afterwards; neither is a larger sample, since replacing its output now and then by one without
    the record gives that of the smaller one. So what is proved of these holds of those.
    """
    fixed = {leaf: times for leaf, times in counts.items() if not _can_be_costlier(leaf)}
    loose = {leaf: times for leaf, times in counts.items() if leaf not in fixed}
    for bits in range(12, 1, -1):
        if len(loose) <= most:
            break
        together: dict[Leaf, int] = {}
        for leaf, times in loose.items():
            costlier = _costlier(leaf, bits)
            together[costlier] = together.get(costlier, 0) + times
        loose = together
    return fixed | loose


def _can_be_costlier(leaf: Leaf) -> bool:
    """Whether parameters may be rounded; Gaussians are cheap to add up, and a label threshold is not monotone."""
    inner = leaf.event if isinstance(leaf, PoissonSampled) else leaf
    return isinstance(inner, Laplace | L2Laplace | PureDP | ApproxDP | ZCDP) or (
        isinstance(leaf, PoissonSampled) and isinstance(inner, Gaussian)
    )


def _costlier(leaf: Leaf, bits: int) -> Leaf:
    if isinstance(leaf, PoissonSampled):
        q = min(1.0, _with_bits(leaf.sampling_probability, bits, math.ceil))
        return PoissonSampled(sampling_probability=q, event=_costlier(cast("Leaf", leaf.event), bits))
    kind = type(leaf)
    values = {name: getattr(leaf, name) for name in _fields(kind)}
    for name, value in values.items():
        if name != "delta":
            values[name] = _with_bits(value, bits, math.floor if name in {"noise_multiplier", "scale"} else math.ceil)
    return kind(**values)


def _with_bits(value: float, bits: int, rounding: Callable[[float], int]) -> float:
    mantissa, exponent = math.frexp(value)
    try:
        return math.ldexp(rounding(math.ldexp(mantissa, bits)), exponent - bits)
    except OverflowError:
        return value


def _is_free(leaf: Leaf) -> bool:
    match leaf:
        case PureDP(epsilon=0) | ApproxDP(epsilon=0, delta=0) | ZCDP(rho=0):
            return True
        case PoissonSampled():
            return leaf.sampling_probability == 0 or not counted(leaf.event)
        case _:
            return False


def event_to_json(event: Event) -> dict[str, Any]:
    """The wire form, with the version at its root.

    >>> event_to_json(Repeated(times=3, event=Gaussian(noise_multiplier=2)))
    {'version': 1, 'kind': 'repeated', 'times': 3, 'event': {'kind': 'gaussian', 'noise_multiplier': 2.0}}
    """
    return {"version": VERSION, **_to_json(event_of(event))}


def event_from_json(document: Mapping[str, Any] | str | bytes) -> Event:
    """The event that a wire document (or its JSON text) describes.

    Unknown kinds, fields and versions are errors that name the path; a document without a version is of version 1.

    >>> event_from_json({"kind": "poisson_sampled", "sampling_probability": 0.01,
    ...                  "event": {"kind": "gaussian", "noise_multiplier": 1.0}})
    PoissonSampled(sampling_probability=0.01, event=Gaussian(noise_multiplier=1.0))
    """
    if isinstance(document, str | bytes):
        try:
            document = json.loads(document, object_pairs_hook=_without_duplicates)
        except InvalidDocument:
            raise
        except (ValueError, RecursionError) as reason:
            raise InvalidDocument("document", document, f"a JSON object ({reason})") from None
    if isinstance(document, Mapping):
        version = document.get("version", VERSION)
        if isinstance(version, bool) or version != VERSION:
            raise InvalidDocument("version", version, f"{VERSION}, the only version so far")
        document = {name: value for name, value in document.items() if name != "version"}
    return _from_json(document, path="", depth=1, number=count(1))


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; the text is what is stored and audited, so no field may stand in it twice."""
    document = dict(pairs)
    if len(document) < len(pairs):
        names = [name for name, _ in pairs]
        raise InvalidDocument(max(names, key=names.count), names, "every field once")
    return document


def _to_json(event: Event) -> dict[str, Any]:
    document: dict[str, Any] = {"kind": _KIND_OF[type(event)]}
    for name in _fields(type(event)):
        value = getattr(event, name)
        match name:
            case "event":
                document[name] = _to_json(value)
            case "events":
                document[name] = [_to_json(part) for part in value]
            case _:
                document[name] = value
    return document


def _from_json(document: object, *, path: str, depth: int, number: Iterator[int]) -> Event:
    """The event at `path`; `number` counts all events of the document, so that a hostile one is refused as it grows."""
    at = path or "event"
    if depth > MAX_DEPTH:
        raise InvalidDocument(at, "deeper nesting", f"at most {MAX_DEPTH} levels")
    if next(number) > MAX_NODES:
        raise InvalidDocument(at, "more events", f"at most {MAX_NODES} in one document")
    if not isinstance(document, Mapping):
        raise InvalidDocument(at, document, "an object with a kind")
    kind_name = document.get("kind")
    kind = KINDS.get(kind_name) if isinstance(kind_name, str) else None
    if kind is None:
        raise InvalidDocument(_join(path, "kind"), kind_name, "one of " + ", ".join(KINDS))
    names = _fields(kind)
    for name in document:
        if name != "kind" and name not in names:
            shown = name if isinstance(name, str) else "a name that is no text"
            raise InvalidDocument(_join(path, shown), document[name], "no such field: " + _fields_in_words(kind))
    for name in names:
        if name not in document:
            raise InvalidDocument(_join(path, name), "nothing", "this field: " + _fields_in_words(kind))
    values = dict(document)
    del values["kind"]
    if "event" in names:
        values["event"] = _from_json(values["event"], path=_join(path, "event"), depth=depth + 1, number=number)
    if "events" in names:
        if not isinstance(values["events"], list | tuple):
            raise InvalidDocument(_join(path, "events"), values["events"], "a list of events")
        values["events"] = tuple(
            _from_json(part, path=_join(path, f"events[{place}]"), depth=depth + 1, number=number)
            for place, part in enumerate(values["events"])
        )
    try:
        return kind(**values)
    except InvalidDocument:
        raise
    except InvalidInput as error:
        raise InvalidDocument(_join(path, error.argument), error.value, error.expected) from None


def _fields_in_words(kind: type[Event]) -> str:
    return f"{_KIND_OF[kind]} has {', '.join(_fields(kind)) or 'no fields'}"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _fields(kind: type[Event]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind) if each.init)


def _set_shape(event: PoissonSampled | Repeated | Composed, shape: Shape) -> None:
    object.__setattr__(event, "shape", shape)
