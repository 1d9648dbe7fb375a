"""What all charts are drawn with: elements that escape, scales, ticks, labels that keep apart, the frame of a figure.

Nothing here has a style of its own: marks carry classes, which the style sheets colour, and presentation attributes,
which a strict content policy allows. A drawing is 320 units wide and laid out for letters of 12.5, so that it can be
read on a screen of 320 pixels; on a wider one, where it is drawn larger, the style sheet writes smaller ones.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup, escape

from service.dashboard.words import unbroken
from service.printed import down, up

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WIDTH: Final = 320.0
LETTER: Final = 12.5
_LETTER_WIDTH, _BOLD_WIDTH = 7.2, 8.0  # of an average letter, rather too wide
_REGULAR: Final = 0.92  # of the width of a bold letter
# What turns writing around or is no writing at all; names are other people's words.
_UNWRITTEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
_NAME: Final = re.compile("[a-z][a-z0-9-]*")
_DAY: Final = 86_400


def tag(kind: str, *children: object, **attributes: object) -> Markup:
    """An element. Whatever is no Markup is escaped; `class_` is a class, and other underscores are hyphens.

    >>> tag("text", "<b>", class_="label", text_anchor="end", x=1.5)
    Markup('<text class="label" text-anchor="end" x="1.5">&lt;b&gt;</text>')
    """
    # As plain text, since a page has thousands of them, and Markup's own `format` takes five times as long.
    written = [
        f' {name.rstrip("_").replace("_", "-")}="{escape(_written(value))}"'
        for name, value in attributes.items()
        if value is not None
    ]
    inside = [str(child if isinstance(child, Markup) else escape(_written(child))) for child in children]
    return Markup(f"<{kind}{''.join(written)}>{''.join(inside)}</{kind}>")  # noqa: S704 - names are ours, and values escaped


def _written(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return _UNWRITTEN.sub("", str(value).encode("utf-8", "replace").decode())


def label(words: str, *, x: float, y: float, class_: str, anchor: str = "start") -> Markup:
    """Words in a drawing."""
    return tag("text", words, class_=class_, x=x, y=y, text_anchor=anchor)


def line(*, x1: float, y1: float, x2: float, y2: float, class_: str, dashes: str | None = None) -> Markup:
    """A straight line."""
    return tag(
        "line", class_=class_, x1=x1, y1=y1, x2=x2, y2=y2, stroke="currentColor", stroke_dasharray=dashes
    )  # fmt: skip


def path(points: Iterable[tuple[float, float]], *, class_: str, closed: bool = False, **attributes: Any) -> Markup:
    """A line through points, or the area inside of it."""
    drawn = " ".join(f"{'L' if place else 'M'}{x:.2f} {y:.2f}" for place, (x, y) in enumerate(points))
    if closed:
        return tag("path", class_=class_, d=f"{drawn} Z", **attributes)
    return tag("path", class_=class_, d=drawn, **({"fill": "none", "stroke": "currentColor"} | attributes))


def fitting(words: str, *, width: float, bold: bool = False) -> str:
    """The words, or as many of their letters as fit, with an ellipsis; the whole is in the table.

    For names. A number is never cut: half of one is another.

    >>> fitting("a population with a long name", width=92), fitting("W" * 40, width=92), fitting("ill-lit", width=92)
    ('a populati…', 'WWWWWW…', 'ill-lit')
    """
    words, width = _written(words), width if bold else width / _REGULAR
    ends = list(accumulate(map(_room, words), initial=0.0))
    return words if ends[-1] <= width else f"{words[: max(0, bisect_right(ends, width - _room('…')) - 1)]}…"


def _room(letter: str) -> float:
    """How wide a bold letter is in DejaVu Sans, where letters are wider than in most fonts, or a little more."""
    if ord(letter) > 0x24F:  # beyond Latin letters
        return 15.5
    if letter in "mwMW@%":
        return 14.0
    if letter in "fijlrtIJ .,:;'\"|!/()[]-_*":
        return 6.8
    return 11.5 if letter.isupper() or letter in "+=<>#^~&" else 9.0


def wide(words: str) -> float:
    """How much room words take, rather too much.

    >>> wide("12:00") <= 40
    True
    """
    return len(words) * _LETTER_WIDTH


def fits(words: str, *, width: float, bold: bool = False) -> bool:
    """Whether words have room, whichever letters they are made of."""
    return len(words) <= _most(width, bold=bold)


def _most(width: float, *, bold: bool) -> int:
    return max(1, int(width / (_BOLD_WIDTH if bold else _LETTER_WIDTH)))


def apart(places: Sequence[float], *, gap: float, lowest: float, highest: float) -> list[float]:
    """Places moved as little as needed to be `gap` apart, in their order, within limits that leave room for all.

    >>> apart([50, 51, 90], gap=10, lowest=0, highest=100)
    [50, 60, 90]
    """
    order = sorted(range(len(places)), key=lambda each: places[each])
    moved = [0.0] * len(places)
    floor = lowest
    for each in order:
        floor = moved[each] = max(places[each], floor)
        floor += gap
    ceiling = highest
    for each in reversed(order):
        moved[each] = min(moved[each], ceiling)
        ceiling = moved[each] - gap
    return moved


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """From values to places, straight, and never outside of `start` to `stop`: what lies beyond is drawn at the edge.

    >>> Scale(lowest=0, highest=2, start=0, stop=100)(1)
    50.0
    """

    lowest: float
    highest: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        """The place of a value."""
        if math.isnan(value):
            raise ValueError("A place was asked for what is no number.")
        extent = self.highest - self.lowest
        share = 0.0 if extent <= 0 else (min(max(value, self.lowest), self.highest) - self.lowest) / extent
        return self.start + share * (self.stop - self.start)


def ticks(highest: float, *, most: int = 5) -> list[float]:
    """Round numbers from 0 to `highest`, at steps of 1, 2 or 5 times a power of ten.

    >>> ticks(2.7), ticks(0)
    ([0.0, 1.0, 2.0], [0.0])
    """
    if not 0 < highest < math.inf:
        return [0.0]
    power = 10.0 ** math.floor(math.log10(highest / most))
    step = next(power * each for each in (1, 2, 5, 10, 20) if highest / (power * each) <= most - 1)
    return [step * each for each in range(int(highest / step + 1e-9) + 1)]


def short(number: float) -> str:
    """A count or a tick in few letters.

    >>> [short(each) for each in (0.25, 12, 12_500, 3e6)]
    ['0.25', '12', '12.5k', '3M']
    """
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= limit:
            return f"{number / (1e3 if letter == 'k' else limit):.3g}{letter}"
    return f"{number:g}"


# ---------------------------------------------------------------- numbers


def at_most(value: float | None) -> float:
    """An upper bound as a number; of what is not known, there is none."""
    return math.inf if value is None or math.isnan(value) else max(0.0, value)


def at_least(value: float | None) -> float:
    """A lower bound as a number; what is not known shows nothing."""
    return 0.0 if value is None or math.isnan(value) else max(0.0, value)


def raised(value: float) -> str:
    """An upper bound in words: three digits, no smaller."""
    return up(value) if math.isfinite(value) else "∞"


def position(value: float) -> str:
    """A place on a scale, of which six digits are enough: the end of a bin and the beginning of the next are alike.

    >>> position(0.30000000000000004), position(0.15), position(1 / 3), position(math.inf)
    ('0.3', '0.15', '0.333333', '∞')
    """
    return f"{value:.6g}" if math.isfinite(value) else "∞"


def lowered(value: float) -> str:
    """A lower bound in words: three digits, no larger."""
    return down(value) if math.isfinite(value) else "∞"


# ---------------------------------------------------------------- times


def moment(at: datetime) -> str:
    """A time to the second."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def day(at: datetime) -> str:
    """A day in words."""
    return f"{at.astimezone(UTC):%-d %b %Y}"


def time_ticks(start: datetime, stop: datetime, *, most: int = 5) -> list[tuple[datetime, str]]:
    """At most so many round times between two, with what is written at them."""
    start, stop = start.astimezone(UTC), stop.astimezone(UTC)
    seconds = (stop - start).total_seconds()
    for step in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 2 * 3600, 3 * 3600, 6 * 3600, 12 * 3600):
        if seconds / step <= most - 1:
            form = "%H:%M:%S" if step < 60 else "%H:%M"
            return [(at, f"{at:{form}}") for at in _stepped(start, stop, step)]
    for days in (1, 2, 5, 10, 15):
        if seconds / (days * _DAY) <= most - 1:
            return [(at, f"{at:%-d %b}") for at in _stepped(start, stop, days * _DAY)]
    for months in (1, 2, 3, 6, 12, 24, 60, 120, 240, 600, 1200, 6000, 12_000, 60_000):
        if seconds / (months * 30.4 * _DAY) <= most - 1:
            return [(at, f"{at:%Y}" if at.month == 1 else f"{at:%b}") for at in _first_days(start, stop, months)]
    return []


def _stepped(start: datetime, stop: datetime, step: int) -> list[datetime]:
    """Multiples of a step, counted from midnight."""
    midnight = start.replace(hour=0, minute=0, second=0, microsecond=0)
    first = math.ceil((start - midnight).total_seconds() / step)
    last = math.floor((stop - midnight).total_seconds() / step)
    return [midnight + timedelta(seconds=step * each) for each in range(first, last + 1)]


def _first_days(start: datetime, stop: datetime, months: int) -> list[datetime]:
    """First days of months, every so many, counted from the year 1."""
    found = []
    for number in range(math.ceil((12 * (start.year - 1) + start.month - 1) / months) * months, 12 * 9999, months):
        at = datetime(number // 12 + 1, number % 12 + 1, 1, tzinfo=UTC)
        if at > stop:
            break
        if at >= start:
            found.append(at)
    return found


# ---------------------------------------------------------------- frames


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell of a table that leads to what it is about."""

    words: str
    link: str


def figure(
    *,
    name: str,
    title: str,
    about: str,
    height: float,
    marks: Iterable[Markup],
    columns: Sequence[str],
    rows: Sequence[Sequence[str | Cell]],
) -> Markup:
    """A drawing with its title, its description and its numbers. `name` tells it from the others of the page."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be the name of a chart: small letters, digits and hyphens make one.")
    if not rows:
        height, marks = 24.0, [label("nothing to draw yet", x=0.0, y=15.0, class_="chart-quiet")]
    drawing = tag(
        "svg",
        tag("title", title, id=f"{name}-title"),
        tag("desc", about, id=f"{name}-about"),
        *marks,
        class_="chart-drawing",
        viewBox=f"0 0 {WIDTH:g} {height:g}",
        role="img",
        aria_labelledby=f"{name}-title {name}-about",
        font_size=LETTER,
        fill="currentColor",
    )
    return tag(
        "figure",
        tag("figcaption", tag("strong", title), " ", tag("span", unbroken(_written(about)), class_="chart-about")),
        drawing,
        _numbers(title, columns, rows),
        class_="chart",
        id=name,
    )


def _numbers(title: str, columns: Sequence[str], rows: Sequence[Sequence[str | Cell]]) -> Markup:
    head = tag("tr", *(tag("th", each, scope="col") for each in columns))
    body = [
        tag(
            "tr",
            tag("th", _cell(row[0], whole=True), scope="row"),
            *(tag("td", _cell(each), class_="number") for each in row[1:]),
        )
        for row in rows
    ]
    table = tag("table", tag("caption", title), tag("thead", head), tag("tbody", *body))
    region = tag("div", table, class_="table", role="region", aria_label=f"Numbers: {title}", tabindex=0)
    summary = tag("summary", "Show the numbers", tag("span", f" of “{title}”", class_="visually-hidden"))
    return tag("details", summary, region, class_="chart-numbers")


def _cell(cell: str | Cell, *, whole: bool = False) -> object:
    if isinstance(cell, str):
        return unbroken(_written(cell)) if whole else cell
    if not cell.link.startswith("/") or cell.link.startswith("//"):
        raise ValueError(f"{cell.link!r} leads out of the service.")
    return tag("a", cell.words, href=cell.link)


def hatch(name: str, *, class_: str) -> Markup:
    """Stripes with which an area is filled, so that it can be told from a plain one without colour."""
    stripe = tag("path", d="M0 0 L0 5", class_=class_, stroke="currentColor", stroke_width=3)
    pattern = tag(
        "pattern", stripe, id=f"{name}-held", width=5, height=5,
        patternUnits="userSpaceOnUse", patternTransform="rotate(45)",
    )  # fmt: skip
    return tag("defs", pattern)
