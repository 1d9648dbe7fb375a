"""Cursors: where a list goes on, as text that nobody needs to read."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from service.errors import Problem


def cursor_of(document: Mapping[str, Any]) -> str:
    """The cursor that says it."""
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode()


def number_from(cursor: str | None) -> int | None:
    """The number after which (or before which) a list goes on."""
    found = _cursor_from(cursor, "number")
    if found is None or (type(found) is int and 0 <= found < 2**53):
        return found
    raise _NO_CURSOR


def name_from(cursor: str | None) -> str | None:
    """The name after which a list goes on."""
    found = _cursor_from(cursor, "after")
    if found is None or (isinstance(found, str) and found.isprintable()):
        return found
    raise _NO_CURSOR


_NO_CURSOR = Problem("invalid", "This is not a cursor that a list gave out.", "cursor")


def _cursor_from(text: str | None, name: str) -> Any:
    if text is None:
        return None
    try:
        document = json.loads(base64.urlsafe_b64decode(text.encode()))
    except (binascii.Error, ValueError, RecursionError):
        raise _NO_CURSOR from None
    if not isinstance(document, dict) or set(document) != {name} or document[name] is None:
        raise _NO_CURSOR
    return document[name]
