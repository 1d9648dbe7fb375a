"""Documents for people, as self-contained HTML and as plain text: no script, no address to fetch anything from.

A document is a JSON object with a `title` and `sections` of sentences, which both forms print in the same words. HTML
is escaped without exception, has one style sheet inside, prints on paper, and says by its headings and captions what
it shows, so that it can be read aloud.
"""

from __future__ import annotations

import base64
import textwrap
from decimal import ROUND_FLOOR, Context
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastapi.responses import JSONResponse, Response

from accountant.guarantees import rounded_up

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jinja2 import Environment

_FOLDER: Final = Path(__file__).parent / "templates"
_WIDTH: Final = 100
_DOWN: Final = Context(prec=3, rounding=ROUND_FLOOR)


def html(template: str, document: Mapping[str, Any]) -> bytes:
    """A document as one HTML file."""
    title = document["report"]["title"] if "report" in document else document["title"]
    page = _environment().get_template(f"{template}.html").render(document=document, title=title, style=_style())
    return page.encode()


def answer(template: str, document: Mapping[str, Any], form: str) -> Response:
    """A document over HTTP: as JSON, as text or as HTML. Nobody keeps a copy on the way."""
    match form:
        case "html":
            return Response(html(template, document), media_type="text/html; charset=utf-8", headers=headers())
        case "text":
            return Response(text(document), media_type="text/plain; charset=utf-8", headers=headers())
        case _:
            return JSONResponse(document, headers=headers())


def headers() -> dict[str, str]:
    """What tells a browser to show the page and to do nothing else with it."""
    digest = base64.b64encode(sha256(_style().encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }


def text(document: Mapping[str, Any]) -> str:
    """A document as plain text: its title, and its sections with their paragraphs and lists."""
    lines = [document["title"], "=" * len(document["title"]), ""]
    for section in document["sections"]:
        lines += [section["title"], "-" * len(section["title"]), ""]
        for paragraph in section["paragraphs"]:
            lines += [*textwrap.wrap(paragraph, _WIDTH), ""]
        for line in section["lines"]:
            lines += textwrap.wrap(line, _WIDTH, initial_indent="- ", subsequent_indent="  ")
        if section["lines"]:
            lines.append("")
    return "\n".join(lines)


def up(value: float | None) -> str:
    """An upper bound with three digits, which is no smaller; where there is none, infinity."""
    return "∞" if value is None else f"{float(rounded_up(value, digits=3)):.3g}"


def down(value: float | None) -> str:
    """A lower bound, or what would still be admitted, with three digits, which is no larger; without limit, infinity.

    >>> down(1.2649), down(0.0004567), down(0.3), up(1.2601)
    ('1.26', '0.000456', '0.3', '1.27')
    """
    return "∞" if value is None else f"{float(_DOWN.create_decimal(repr(float(value)))):.3g}"


def plain(value: float) -> str:
    """A number that somebody chose, as it is: with all of its digits and no others."""
    return repr(float(value)).removesuffix(".0")


def moment(stamp: str) -> str:
    """A time of the ledger to the second."""
    return f"{stamp[:10]} {stamp[11:19]} UTC"


@cache
def _style() -> str:
    """The style sheet, as it stands between its tags: its digest is in the policy."""
    return (_FOLDER / "style.css").read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415 - few requests print

    made = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"up": up, "down": down, "moment": moment}
    return made
