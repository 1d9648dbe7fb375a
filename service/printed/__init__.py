"""Documents for people, as self-contained HTML and as plain text: no script, no address to fetch anything from.

A document is a JSON object with a `title` and `sections` of sentences, which both forms print in the same words. HTML
is escaped without exception, has one style sheet inside, prints on paper, and says by its headings and captions what
it shows, so that it can be read aloud.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import textwrap
import zlib
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastapi.responses import JSONResponse, Response

from accountant.canonical import canonical, from_canonical
from accountant.guarantees import rounded_down, rounded_up

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jinja2 import Environment

_FOLDER: Final = Path(__file__).parent / "templates"
_WIDTH: Final = 100


def html(template: str, document: Mapping[str, Any]) -> bytes:
    """A document as one HTML file, the same for every spelling of it.

    A signed one is inside as well, so that the file can be checked, and compared with what it should look like.
    """
    spelled = canonical(dict(document))
    document = from_canonical(spelled)
    title = document["report"]["title"] if "report" in document else document["title"]
    page = (
        _environment()
        .get_template(f"{template}.html")
        .render(
            document=document,
            title=title,
            style=_style(),
            carried=base64.b64encode(gzip.compress(spelled, mtime=0)).decode(),
            sha256=sha256(canonical(document["report"])).hexdigest() if "report" in document else None,
        )
    )
    return _unbroken(page).encode()


def _unbroken(page: str) -> str:
    """The page with no line that ends inside a number with its sign, inside a date, or before %."""
    head, main, body = page.partition("<main>")
    pieces = re.split("(<[^>]*>)", body)
    return head + main + "".join(
        each if each.startswith("<") else _WHOLE.sub(r'<span class="whole">\g<0></span>', each) for each in pieces
    )  # fmt: skip


_WHOLE: Final = re.compile(
    r"[εδ] [=≤≥] [^\s,;:()]+|\d{4}-\d\d-\d\d(?: \d\d:\d\d(?::\d\d)? UTC)?|\d[\d.,]* %|\d[\d.]*e-\d+"
)


def carried_in(page: bytes) -> Any:
    """The signed document that an HTML file carries; None if it carries none that can be read."""
    found = _CARRIED.search(page)
    if found is None:
        return None
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(base64.b64decode(found[1], validate=True))) as packed:
            spelled = packed.read(MOST_CARRIED + 1)
    except (OSError, EOFError, ValueError, zlib.error):
        return None
    if len(spelled) > MOST_CARRIED:
        return None
    try:
        return json.loads(spelled)
    except ValueError:
        return None


def is_print_of(page: bytes, template: str, document: Mapping[str, Any]) -> bool:
    """Whether an HTML file shows a document as this version prints it; how the document is packed in it may differ."""
    try:
        expected = html(template, document)
    except Exception:  # noqa: BLE001 - whatever cannot be printed was not
        return False
    # The tag stays where it is, empty. What is inside is hidden: a second one, or one elsewhere, would hide more.
    return _CARRIED.sub(_EMPTY, expected) == _CARRIED.sub(_EMPTY, page)


_EMPTY: Final = b'<data id="signed" hidden value="">'
_CARRIED: Final = re.compile(rb'<data id="signed" hidden value="([A-Za-z0-9+/=]+)">')
MOST_CARRIED: Final = 2**28


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
    return "∞" if value is None else f"{float(rounded_down(value, digits=3)):.3g}"


def sign(proof_status: str) -> str:
    """What stands between ε and its number, which is at most so much only where that is proved.

    >>> sign("proved"), sign("refuted")
    ('≤', '=')
    """
    return "≤" if proof_status == "proved" else "="


def plain(value: float) -> str:
    """A number that somebody chose, as it is: with all of its digits and no others."""
    return repr(float(value)).removesuffix(".0")


def moment(stamp: str) -> str:
    """A time of the ledger to the second."""
    return f"{stamp[:10]} {stamp[11:19]} UTC"


def event_in_words(event: Mapping[str, Any]) -> str:
    """What a run does to the data that it touches, in a line.

    >>> sample = {"kind": "poisson_sampled", "sampling_probability": 0.01, "event": {"kind": "gaussian",
    ...     "noise_multiplier": 1.5}}
    >>> event_in_words({"kind": "repeated", "times": 200, "event": sample})
    '200 times: Gaussian noise (multiplier 1.5) on a random sample (rate 0.01)'
    """
    match event:
        case {"kind": "repeated", "times": times, "event": inside}:
            return f"{times:,} times: {event_in_words(inside)}"
        case {"kind": "composed", "events": [first, *rest]}:
            more = f", and {len(rest) - 2:,} more" if len(rest) > 2 else ""
            return " and ".join(event_in_words(each) for each in (first, *rest[:2])) + more
        case {"kind": "poisson_sampled", "sampling_probability": rate, "event": inside}:
            return f"{event_in_words(inside)} on a random sample (rate {rate:g})"
        case {"kind": "gaussian", "noise_multiplier": noise}:
            return f"Gaussian noise (multiplier {noise:g})"
        case {"kind": "laplace" | "l2_laplace", "scale": scale}:
            return f"Laplace noise (scale {scale:.4g})"
        case {"kind": "partition_selection", "epsilon": epsilon, "delta": delta}:
            return f"labels released at random (ε = {epsilon:g}, δ = {delta:g})"
        case {"kind": "pure_dp", "epsilon": epsilon}:
            return f"a guarantee of ε = {epsilon:g}"
        case {"kind": "approx_dp", "epsilon": epsilon, "delta": delta}:
            return f"a guarantee of ε = {epsilon:g} at δ = {delta:g}"
        case {"kind": "non_private"}:
            return "no privacy at all"
        case {"kind": str(kind), **others}:
            given = (name for name in sorted(others) if name != "version")
            said = ", ".join(f"{name.replace('_', ' ')} {_brief(others[name])}" for name in given)
            return f"{kind.replace('_', ' ')}{f' ({said})' if said else ''}"
        case _:
            return "an event that this version does not know"


def _brief(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)[:80]


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
    made.filters |= {
        "up": up,
        "down": down,
        "moment": moment,
        "plain": plain,
        "event": event_in_words,
        "count": "{:,}".format,
    }
    return made
