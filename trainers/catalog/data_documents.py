"""Where a run's rows lie and whose they are, as a document that anybody may see."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

from accountant.cohorts import MAX_DATAPOINTS
from accountant.errors import InvalidInput
from trainers.catalog.parameters import Bounds, Parameter, object_schema, read

MAX_ROWS_PER_UNIT: Final = 10_000
MAX_KEY: Final = 1_000  # signs of a datapoint's key, as the service takes them
KNOWN_SHARE: Final = 0.5  # of the keys of a file, that the population must have; else it is another one's file
LOCAL: Final = ("", "file", "local")  # schemes of paths on the worker's own machine
_TEXT: Final = Bounds(minimum=1, maximum=4096)

DATA: Final[tuple[Parameter, ...]] = (
    Parameter(
        name="uri",
        kind="string",
        description="of a .npz, .npy, .parquet or .safetensors file, or of a folder of .npy files, which ends in /",
        bounds=_TEXT,
    ),
    Parameter(
        name="x",
        kind="array",
        description="names of the arrays or columns that are the features, side by side",
        bounds=Bounds(minimum=0, maximum=10_000),
        each=Parameter(name="name", kind="string", description="an array or a column", bounds=_TEXT),
        default=[],
    ),
    Parameter(
        name="y",
        kind="string",
        description="name of the array or column of labels; '' if there are none",
        bounds=Bounds(minimum=0, maximum=4096),
        default="",
    ),
    Parameter(
        name="address",
        kind="string",
        description="whose a row is: row i is that of ordinal first + i (row), or a column has ordinals or keys",
        choices=("row", "ordinal", "key"),
        default="row",
    ),
    Parameter(
        name="first",
        kind="integer",
        description="ordinal of the first row",
        bounds=Bounds(minimum=0, maximum=MAX_DATAPOINTS - 1),
        default=0,
        when=("address", "row"),
    ),
    Parameter(
        name="unit",
        kind="string",
        description="name of the array or column of ordinals or keys; '' if rows are addressed by their place",
        bounds=Bounds(minimum=0, maximum=4096),
        default="",
    ),
    Parameter(
        name="rows_per_unit",
        kind="integer",
        description="how many rows of one datapoint are used at most: the first in the file",
        bounds=Bounds(minimum=1, maximum=MAX_ROWS_PER_UNIT),
        default=1,
    ),
    Parameter(name="scale", kind="number", description="a public number that features are multiplied by", default=1.0),
    Parameter(name="shift", kind="number", description="a public number that is added after that", default=0.0),
)


def data_document(document: object) -> dict[str, Any]:
    """A data document, checked, with defaults filled in; a single name of features may stand without its list.

    >>> data_document({"uri": "file:///data/mnist.npz", "x": "x", "y": "y"})["x"]
    ['x']
    """
    if isinstance(document, Mapping) and isinstance(document.get("x"), str):
        document = {**document, "x": [document["x"]]}
    if isinstance(document, Mapping) and "known_share" in document:  # who could choose it could count by it
        expected = f"nothing: it is {KNOWN_SHARE:g} for every file; put rows of other people into another file"
        raise InvalidInput("data.known_share", document["known_share"], expected)
    read_one = read("data", DATA, document)
    if "@" in read_one["uri"].partition("://")[2].partition("/")[0]:
        raise InvalidInput("data.uri", "one with a user", "no user or password in it: whoever sees jobs sees it")
    by_place = read_one["address"] == "row"
    if by_place == bool(read_one["unit"]):
        expected = "nothing: rows are addressed by their place" if by_place else "the column that says whose a row is"
        raise InvalidInput("data.unit", read_one["unit"] or "nothing", expected)
    if by_place and read_one["rows_per_unit"] != 1:
        raise InvalidInput("data.rows_per_unit", read_one["rows_per_unit"], "1 where rows are addressed by their place")
    if not read_one["x"] and not read_one["y"]:
        raise InvalidInput("data.x", "nothing", "features or labels")
    return read_one


def data_schema() -> dict[str, Any]:
    """The JSON Schema of a data document, draft 2020-12."""
    schema = object_schema(DATA)
    schema["properties"]["x"] = {
        "description": schema["properties"]["x"]["description"],
        "anyOf": [{"type": "string", "minLength": 1, "maxLength": 4096}, schema["properties"]["x"]],
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Data of a job", **schema}


def files(document: Mapping[str, Any]) -> list[str]:
    """The addresses that are read: that of a file, or those of the arrays in a folder."""
    uri = str(document["uri"])
    if not uri.endswith("/"):
        return [uri]
    return [f"{uri}{name}.npy" for name in (*document["x"], document["y"], document["unit"]) if name]


def split(uri: str) -> tuple[str, str] | None:
    """Scheme and path of an address; None if it has to be interpreted: steps up, escapes, chained file systems.

    >>> split("S3://bucket/rows.npz"), split("/data/rows.npz"), split("s3://bucket/my%20rows.npz")
    (('s3', 'bucket/rows.npz'), ('', '/data/rows.npz'), None)
    """
    scheme, mark, rest = uri.partition("://")
    if not mark:
        scheme, rest = "", uri
    scheme = scheme.lower()
    if "\0" in uri or "::" in uri or (scheme and not re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme)):
        return None
    if scheme in LOCAL:
        return (scheme, rest) if rest.startswith("/") else None
    if unquote(rest) != rest or any(sign in rest for sign in "?#\\") or posixpath.normpath(rest) != rest.rstrip("/"):
        return None
    return scheme, rest


def spelled(uri: str) -> str:
    """An address in one spelling, so that the same place compares equal; links are for whoever can see them.

    >>> spelled("file:///data/./b/../a.npz"), spelled("/data//folder/")
    ('/data/a.npz', '/data/folder/')
    """
    scheme, mark, rest = uri.partition("://")
    if mark and scheme.lower() not in LOCAL:
        return f"{scheme.lower()}://{rest}"
    path = rest if mark else uri
    return "/" + posixpath.normpath(path).lstrip("/") + ("/" if path.endswith("/") and path.strip("/") else "")


def covers(rule: str, uri: str) -> bool:
    """Whether a rule is about this file: by its address, or by that of a folder above it."""
    return uri == rule or (rule.endswith("/") and uri.startswith(rule))


def belongs_to_others(uri: str, *, own: Sequence[str], others: Sequence[str]) -> bool:
    """Whether rules of other populations say whose the rows of a file are, and none of ours says it as closely.

    All addresses are spelled alike. Where two populations have a rule for the same file, both may read it.
    """
    ours, theirs = (max((len(each) for each in rules if covers(each, uri)), default=-1) for rules in (own, others))
    return theirs > ours


def misaddressed(rules: Sequence[Mapping[str, Any]], document: Mapping[str, Any]) -> str | None:
    """Why a document may not say so whose rows these are; None if it may.

    Without rules its word is all there is. With rules it must agree with them on every file that it reads, and a file
    that none covers is refused, and so is one whose address has a step up: where that leads, a link may decide.
    """
    if not rules:
        return None
    alike = [{**rule, "uri": spelled(rule["uri"])} for rule in rules]
    for uri in files(document):
        if ".." in uri.split("/"):
            return _no_rule(uri)
        if (problem := contradicted(alike, document, spelled(uri))) is not None:
            return problem
    return None


def contradicted(rules: Sequence[Mapping[str, Any]], document: Mapping[str, Any], uri: str) -> str | None:
    """Why rules do not let a document say so whose the rows of this one file are; None if they do.

    All addresses are spelled alike. The longest rule that covers the file decides; if there are several, each does.
    """
    covering = [rule for rule in rules if covers(rule["uri"], uri)]
    if not covering:
        return _no_rule(uri)
    longest = max(len(rule["uri"]) for rule in covering)
    for rule in (each for each in covering if len(each["uri"]) == longest):
        by_place = rule["address"] == "row"
        wanted = {"address": rule["address"]} | ({"first": rule["first"]} if by_place else {"unit": rule["unit"]})
        if any(document.get(name) != value for name, value in wanted.items()):
            said = ", ".join(f"{name} {value!r}" for name, value in wanted.items())
            return f"The policy says whose the rows of {rule['uri']!r} are: {said}."
        if document["rows_per_unit"] > rule["rows_per_unit"]:
            return f"The policy allows {rule['rows_per_unit']} rows of one datapoint in {rule['uri']!r}."
    return None


def _no_rule(uri: str) -> str:
    return f"The policy says whose the rows of files are, and has no rule for {uri!r}."
