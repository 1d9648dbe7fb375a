"""What a pipeline says of its release: the statements of a proposal, and whole manifests for `stint audit`.

Statements are words of closed lists. A proposal may hold others, which are logged and count as not made; a manifest is
read strictly: what is not known is refused, with the nearest name that is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Final, TypeAlias, get_args

from accountant.errors import InvalidDocument, InvalidInput
from accountant.events import Adjacency, Event, event_from_json
from accountant.guarantees import Unit

VERSION: Final = 1
KINDS: Final = ("weights", "labels", "prototypes", "window_model", "other")
MAX_CHARGES: Final = 100
MAX_ITEMS: Final = 100_000
MAX_TEXT: Final = 1_000

#: A closed list of words, or what else a field takes.
Takes: TypeAlias = tuple[str, ...] | str

_SOURCES: Final = ("unused", "public", "charged", "private")

#: Each statement with its fields. The first field is the statement itself; the others say more.
STATEMENTS: Final[Mapping[str, Mapping[str, Takes]]] = MappingProxyType(
    {
        "label_space": {
            "source": ("prior", "released", "none", "data"),
            "labels": "texts",
            "digest": "text",
            "release": "text",
            "remap": "object",
            "otherwise": "text",
        },
        "state": {"retained": ("none", "dp_only", "charged_memory", "raw")},
        "tuning": {"source": ("none", "public", "charged", "private"), "releases": "texts"},
        "pretraining": {"data": ("none", "public", "released", "private"), "name": "text", "release": "text"},
        "preprocessing": {
            "normalisation": _SOURCES,
            "clip_norm": _SOURCES,
            "lipschitz": _SOURCES,
            "vocabulary": _SOURCES,
            "releases": "texts",
        },
        "sampling": {"scheme": ("poisson", "full", "shuffled", "fixed_size")},
        "empty_task": {"answer": ("same_program", "untrained", "nothing")},
        "evaluation": {"data": ("none", "public", "charged", "private"), "releases": "texts"},
        "composition": {"claim": ("ledger", "parallel")},
        "noise": {"source": ("fresh", "seeded"), "scale": "number", "tensor": "text"},
    }
)

#: The other sections of a manifest.
_SECTIONS: Final[Mapping[str, Mapping[str, Takes]]] = MappingProxyType(
    {
        "population": {
            "name": "text",
            "unit": get_args(Unit),
            "adjacency": get_args(Adjacency),
            "epsilon": "number",
            "delta": "number",
            "datapoints": "count",
        },
        "mechanism": {"name": "text", "parameters": "object"},
        "artifact": {"sha256": "digest", "head": "text", "public": "texts", "builds_on": "texts"},
    }
)
_FIELDS: Final[Mapping[str, Takes]] = MappingProxyType(
    {
        "version": "version",
        "kind": KINDS,
        "task": "text",
        "unit": get_args(Unit),
        "adjacency": get_args(Adjacency),
        "metrics": "object",
    }
)
_NAMES: Final = (*_FIELDS, *_SECTIONS, "charges", *STATEMENTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A release as its pipeline describes it."""

    kind: str = "weights"
    task: str | None = None
    unit: str | None = None  # what it counts on; the population's are in `population`
    adjacency: str | None = None
    population: Mapping[str, Any] = field(default_factory=dict)
    mechanism: Mapping[str, Any] | None = None
    charges: Sequence[Event] = ()
    scopes: Sequence[Mapping[str, Any] | None] = ()
    declared: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    artifact: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)


def manifest_from(document: object) -> Manifest:
    """The manifest that a document spells, or `InvalidDocument` that names the field and what it takes.

    >>> manifest_from({"version": 1, "pretraining": {"data": "public"}}).declared
    {'pretraining': {'data': 'public'}}
    """
    if not isinstance(document, Mapping):
        raise InvalidDocument("manifest", document, "a table of names and values")
    _known("", document, _NAMES)
    if "version" not in document:
        raise InvalidDocument("version", None, f"version = {VERSION}, the version of this form")
    plain = {name: _taken(name, document[name], takes) for name, takes in _FIELDS.items() if name in document}
    sections = {name: _section(name, document[name], takes) for name, takes in _SECTIONS.items() if name in document}
    declared = {name: _section(name, document[name], takes) for name, takes in STATEMENTS.items() if name in document}
    mechanism = sections.get("mechanism")
    if mechanism is not None:
        if "name" not in mechanism:
            raise InvalidDocument("mechanism.name", None, "the name of a mechanism")
        mechanism = {"parameters": {}, **mechanism}
    events, scopes = _charges(document.get("charges", []))
    return Manifest(
        kind=plain.get("kind", "weights"),
        task=plain.get("task"),
        unit=plain.get("unit"),
        adjacency=plain.get("adjacency"),
        population=sections.get("population", {}),
        mechanism=mechanism,
        charges=events,
        scopes=scopes,
        declared=declared,
        artifact=sections.get("artifact", {}),
        metrics=plain.get("metrics", {}),
    )


def statement(declared: Mapping[str, Any], name: str) -> str | None:
    """What a pipeline says under this name: a word of the list, None if it says nothing that can be read.

    >>> statement({"tuning": {"source": "public"}}, "tuning")
    'public'
    """
    said, (key, words) = declared.get(name), next(iter(STATEMENTS[name].items()))
    value = said.get(key) if isinstance(said, Mapping) else None
    return value if isinstance(value, str) and value in words else None


#: The constants of a mechanism, each of which is declared by itself.
CONSTANTS: Final = tuple(name for name, takes in STATEMENTS["preprocessing"].items() if isinstance(takes, tuple))


def constants(declared: Mapping[str, Any]) -> dict[str, str]:
    """Where the constants of a mechanism come from, of those that are said.

    >>> constants({"preprocessing": {"clip_norm": "public", "vocabulary": "somewhere"}})
    {'clip_norm': 'public'}
    """
    said = declared.get("preprocessing")
    given = said if isinstance(said, Mapping) else {}
    return {name: given[name] for name in CONSTANTS if isinstance(given.get(name), str) and given[name] in _SOURCES}


def is_misread(declared: Mapping[str, Any], name: str) -> bool:
    """Whether something is said under this name that is none of its words."""
    if name not in declared:
        return False
    said = declared[name]
    if not isinstance(said, Mapping):
        return True
    fields = STATEMENTS[name]
    first = next(iter(fields))
    closed = {key: words for key, words in fields.items() if isinstance(words, tuple)}
    several = len(closed) > 1  # any of them makes the statement
    if not (set(said) & set(closed) if several else first in said):
        return True
    return any(key in said and said[key] not in words for key, words in closed.items())


def texts_of(declared: Mapping[str, Any], name: str, key: str) -> list[str] | None:
    """A list of texts in a statement; None if there is none."""
    said = declared.get(name)
    value = said.get(key) if isinstance(said, Mapping) else None
    return list(value) if isinstance(value, list) and all(isinstance(each, str) for each in value) else None


def text_of(declared: Mapping[str, Any], name: str, key: str) -> str | None:
    """A text in a statement; None if there is none."""
    said = declared.get(name)
    value = said.get(key) if isinstance(said, Mapping) else None
    return value if isinstance(value, str) and value else None


def number_of(declared: Mapping[str, Any], name: str, key: str) -> float | None:
    """A number above 0 in a statement; None if there is none."""
    said = declared.get(name)
    value = said.get(key) if isinstance(said, Mapping) else None
    return (
        float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e300 else None
    )


def _known(path: str, document: Mapping[Any, Any], names: Sequence[str]) -> None:
    for name in document:
        if not isinstance(name, str) or name not in names:
            near = get_close_matches(str(name), names, n=1, cutoff=0.0)
            raise InvalidDocument(f"{path}{name}", name, f"a known name, such as {near[0]!r}")


def _section(name: str, document: object, takes: Mapping[str, Takes]) -> dict[str, Any]:
    if not isinstance(document, Mapping):
        raise InvalidDocument(name, document, f"a table with {', '.join(takes)}")
    _known(f"{name}.", document, tuple(takes))
    if not document:
        raise InvalidDocument(name, document, f"a table with {', '.join(takes)}")
    return {key: _taken(f"{name}.{key}", document[key], kind) for key, kind in takes.items() if key in document}


def _taken(path: str, value: Any, takes: Takes) -> Any:
    """A value of a field, or why it is none."""
    if isinstance(takes, tuple):
        if not isinstance(value, str) or value not in takes:
            raise InvalidDocument(path, value, " or ".join(map(repr, takes)))
        return value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    fits, expected = {
        "version": (type(value) is int and value == VERSION, f"{VERSION}, the version of this form"),
        "text": (isinstance(value, str) and 0 < len(value) <= MAX_TEXT, f"a text of 1 to {MAX_TEXT:,} characters"),
        "digest": (
            isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef"),
            "64 hexadecimal digits of a SHA-256",
        ),
        "texts": (
            isinstance(value, list)
            and len(value) <= MAX_ITEMS
            and all(isinstance(each, str) and 0 < len(each) <= MAX_TEXT for each in value),
            f"a list of at most {MAX_ITEMS:,} texts",
        ),
        "number": (is_number and 0 < value < 1e300, "a number > 0"),
        "count": (type(value) is int and 0 < value <= 2**32, "a whole number from 1 to 2^32"),
        "object": (isinstance(value, Mapping), "a table of names and values"),
    }[takes]
    if not fits:
        raise InvalidDocument(path, value, expected)
    return value


def _charges(listed: object) -> tuple[tuple[Event, ...], tuple[Mapping[str, Any] | None, ...]]:
    if not isinstance(listed, list) or len(listed) > MAX_CHARGES:
        raise InvalidDocument("charges", listed, f"a list of at most {MAX_CHARGES} charges")
    events, scopes = [], []
    for place, charge in enumerate(listed):
        path = f"charges[{place}]"
        if not isinstance(charge, Mapping) or "event" not in charge:
            raise InvalidDocument(path, charge, "a table with event, and perhaps scope")
        _known(f"{path}.", charge, ("event", "scope"))
        scope = charge.get("scope")
        if scope is not None and not isinstance(scope, Mapping):
            raise InvalidDocument(f"{path}.scope", scope, "a table such as {task = …}")
        try:
            events.append(event_from_json(charge["event"]))
        except InvalidInput as problem:
            raise InvalidDocument(f"{path}.event.{problem.argument}", problem.value, problem.expected) from None
        scopes.append(scope)
    return tuple(events), tuple(scopes)
