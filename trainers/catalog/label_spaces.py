"""What a classifier can answer with, as part of a recipe: labels fixed before the data is read, or released ones."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

from accountant.errors import InvalidInput
from trainers.catalog.parameters import Bounds, Parameter

MAX_LABELS: Final = 100_000
MAX_NAME: Final = 200
#: Labels that one file tells, and bytes of their names as they are spelled there: in the header of a safetensors file,
#: of which that leaves a third for all else (`trainers.safetensors_headers`).
MAX_TOLD: Final = 1_000_000
MAX_TOLD_BYTES: Final = 60_000_000
_CONTROLS: Final = bytes(range(32))

_NAME: Final = Bounds(minimum=1, maximum=MAX_NAME)
_NAME_OR_NONE: Final = Bounds(minimum=0, maximum=MAX_NAME)

#: Recipe parameters of every mechanism that needs a label space; `trainers.labels` applies them.
LABELS: Final[tuple[Parameter, ...]] = (
    Parameter(
        name="label_source",
        kind="string",
        description="labels that are known before the data is read (prior), or those that a release told (released)",
        choices=("prior", "released"),
    ),
    Parameter(
        name="label_names",
        kind="array",
        description="the labels, each once; whole numbers are written as their decimals",
        bounds=Bounds(minimum=1, maximum=MAX_LABELS),
        each=Parameter(name="label", kind="string", description="a label", bounds=_NAME),
        when=("label_source", "prior"),
    ),
    Parameter(
        name="labels_release",
        kind="string",
        description="id of the release that told the labels",
        bounds=_NAME,
        when=("label_source", "released"),
    ),
    Parameter(
        name="remap",
        kind="array",
        description="labels to read as others; to '' is to drop whoever carries it",
        bounds=Bounds(minimum=0, maximum=MAX_LABELS),
        items=(
            Parameter(name="from", kind="string", description="a label in the data", bounds=_NAME),
            Parameter(name="to", kind="string", description="a label of the space, or ''", bounds=_NAME_OR_NONE),
        ),
        default=[],
    ),
    Parameter(
        name="remap_rule",
        kind="string",
        description=(
            "a label is compared as a whole (exact), or is read as the longest label of the space or of remap "
            "that it starts with (prefix), as in a hierarchy of codes"
        ),
        default="exact",
        choices=("exact", "prefix"),
    ),
    Parameter(
        name="otherwise",
        kind="string",
        description="the label that all others are read as; '' drops whoever carries one",
        bounds=_NAME_OR_NONE,
        default="",
    ),
)

#: Recipe parameters of `LABELS` that name releases.
LABEL_RELEASES: Final = ("labels_release",)


def check_labels(recipe: Mapping[str, Any]) -> None:
    """Refuse rules that contradict themselves; each value by itself was checked when the recipe was read.

    Of a released set nobody knows the labels beforehand: what a rule reads as a label that was not told is dropped.
    """
    _check_once("recipe.remap", [pair["from"] for pair in recipe["remap"]])
    named = [*recipe.get("label_names", ()), *(name for pair in recipe["remap"] for name in pair.values())]
    if tellable(named) < len(named):
        expected = f"names of at most {MAX_TOLD_BYTES:,} bytes with those of remap: a file has no room for more"
        raise InvalidInput("recipe.label_names", f"{len(named):,} names", expected)
    if recipe["label_source"] == "prior":
        _check_once("recipe.label_names", recipe["label_names"])
        names = {*recipe["label_names"], ""}
        for place, pair in enumerate(recipe["remap"]):
            if pair["to"] not in names:
                raise InvalidInput(f"recipe.remap[{place}].to", pair["to"], "one of label_names, or ''")
        if recipe["otherwise"] not in names:
            raise InvalidInput("recipe.otherwise", recipe["otherwise"], "one of label_names, or ''")


def tellable(names: Sequence[str]) -> int:
    """How many of these names, from the first on, one file can tell.

    >>> tellable(["a"] * 3), tellable(["a" * 200] * 1_000_000)
    (3, 292682)
    """
    if len(names) > MAX_TOLD:
        names = names[:MAX_TOLD]
    if _spelled_bytes(names) <= MAX_TOLD_BYTES:
        return len(names)
    return bisect(list(accumulate(_spelled_bytes([name]) for name in names)), MAX_TOLD_BYTES)


def _spelled_bytes(names: Sequence[str]) -> int:
    r"""At least as many bytes as these names take in a header: as a list in JSON, which is a text in JSON.

    There `a` is `\"a\",`, a quotation mark within it `\\\"`, a backslash four of them and a control sign `\\u0001`.
    """
    raw = "".join(names).encode(errors="surrogatepass")
    quoted = raw.count(b'"') + raw.count(b"\\")
    controls = len(raw) - len(raw.translate(None, _CONTROLS))
    return len(raw) + 5 * len(names) + 3 * quoted + 6 * controls


def _check_once(path: str, names: Sequence[str]) -> None:
    seen: set[str] = set()
    for place, name in enumerate(names):
        if name in seen:
            raise InvalidInput(f"{path}[{place}]", name, "each label once")
        seen.add(name)
