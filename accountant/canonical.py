"""The one spelling of a JSON document (RFC 8785), so that equal documents have equal hashes and signatures.

The spelling of numbers is the library's. Plain documents are spelled here, which takes a fifth of the time; whatever is
out of the ordinary (names beyond ASCII, whose order is another one) goes to the library, after what has no canonical
form was refused with its path.
"""

from __future__ import annotations

import json
import math
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Any, Final

import rfc8785

from accountant.errors import InvalidDocument

MAX_INTEGER: Final = 2**53 - 1  # beyond it, JSON's numbers are no longer exact
MAX_DEPTH: Final = 64
MAX_BYTES: Final = 2**26
_TEXT: Final = frozenset({str})


def canonical(document: object) -> bytes:
    r"""The one spelling of a JSON document (RFC 8785), so that equal documents have equal hashes.

    Only plain values pass: null, booleans, numbers, text, lists, tuples and dicts with text keys. An integer beyond
    2⁵³ − 1 is refused, because readers disagree on it: write it as text. Errors name the path.

    >>> canonical({"b": [1.0, 1e30, None], "a": "\u20ac"}).decode()
    '{"a":"€","b":[1,1e+30,null]}'
    """
    try:
        return _spelled(document, MAX_DEPTH).encode()
    except (_Unusual, UnicodeEncodeError):
        _check(document, path="", depth=0)
        return rfc8785.dumps(document)  # type: ignore[arg-type]  # _check saw that it is


class _Unusual(Exception):
    """Not for the short way."""


def _spelled(value: object, levels: int) -> str:
    """The canonical text of a plain value that is nested at most `levels` deep."""
    kind = type(value)
    if kind is str:
        return encode_basestring(value)  # type: ignore[arg-type]  # the kind says it, here and below
    if kind is dict and levels:
        if not set(map(type, value)) <= _TEXT or not "".join(value).isascii():  # type: ignore[call-overload,arg-type]
            raise _Unusual
        names = sorted(value)  # type: ignore[call-overload]
        return "{" + ",".join([f"{encode_basestring(n)}:{_spelled(value[n], levels - 1)}" for n in names]) + "}"  # type: ignore[index]
    if (kind is list or kind is tuple) and levels:
        return "[" + ",".join([_spelled(part, levels - 1) for part in value]) + "]"  # type: ignore[attr-defined]
    if kind is int and -MAX_INTEGER <= value <= MAX_INTEGER:  # type: ignore[operator]
        return str(value)
    if kind is float and math.isfinite(value):  # type: ignore[arg-type]
        return _spelled_float(value)
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    raise _Unusual


@lru_cache(maxsize=4096)  # the same ε and δ stand in every entry
def _spelled_float(value: float) -> str:
    return rfc8785.dumps(value).decode()


def from_canonical(text: bytes) -> Any:
    """The document whose canonical bytes these are; any other spelling of it is refused.

    An integer beyond 2⁵³ − 1 is read as the double that it stands for in JSON, which canonical text may hold (1e20 is
    written as a one with twenty zeros).
    """
    if type(text) is not bytes or len(text) > MAX_BYTES:
        raise InvalidDocument("document", text, f"canonical JSON, as at most {MAX_BYTES} bytes")
    try:
        document = json.loads(text.decode(), parse_int=_read_integer)
    except (ValueError, RecursionError) as reason:
        raise InvalidDocument("document", text, f"JSON in UTF-8 ({reason})") from None
    if canonical(document) != text:
        raise InvalidDocument("document", text, "the canonical spelling of RFC 8785, which canonical() gives")
    return document


def _read_integer(digits: str) -> int | float:
    number = float(digits)
    return int(number) if abs(number) <= MAX_INTEGER else number


def _check(value: object, *, path: str, depth: int) -> None:
    """Refuse what has no canonical form, with its path. Subclasses are refused: they may print as anything."""
    at = path or "document"
    if depth > MAX_DEPTH:
        raise InvalidDocument(at, "deeper nesting", f"at most {MAX_DEPTH} levels")
    kind = type(value)
    if kind is str:
        _check_text(at, value)
    elif kind is int:
        if not -MAX_INTEGER <= value <= MAX_INTEGER:  # type: ignore[operator]
            raise InvalidDocument(at, value, "a whole number of at most 2**53 - 1; write a larger one as text")
    elif kind is float:
        if not math.isfinite(value):  # type: ignore[arg-type]
            raise InvalidDocument(at, value, "a finite number; JSON has no other")
    elif isinstance(value, dict) and kind is dict:
        for name, part in value.items():
            if type(name) is not str:
                raise InvalidDocument(at, name, "names that are text")
            _check_text(f"a name in {at}", name)
            _check(part, path=f"{path}.{name}" if path else name, depth=depth + 1)
    elif isinstance(value, list | tuple) and kind in (list, tuple):
        for place, part in enumerate(value):
            _check(part, path=f"{path}[{place}]", depth=depth + 1)
    elif value is not None and kind is not bool:
        raise InvalidDocument(at, value, "null, true, false, a number, text, a list or a dict, of Python's own types")


def _check_text(at: str, value: object) -> None:
    try:
        str(value).encode()
    except UnicodeEncodeError:
        raise InvalidDocument(at, value, "text without lone surrogates, which UTF-8 cannot write") from None
