"""The charts of the pages: values in, a figure of HTML and SVG out. No file, no clock, no chance.

Every figure has a title, a sentence that says what it shows, a drawing and "show the numbers". What is spent or held is
an upper bound and is written rounded up, what an audit found is a lower bound and is written rounded down, and what is
not known is infinite or nothing, whichever is worse for us. A value beyond a scale is drawn at its edge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from service.dashboard.drawing import (
    LETTER,
    WIDTH,
    Cell,
    Scale,
    apart,
    at_least,
    at_most,
    day,
    figure,
    fitting,
    hatch,
    label,
    line,
    lowered,
    moment,
    path,
    raised,
    short,
    tag,
    ticks,
    time_ticks,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markupsafe import Markup

    from accountant.audit.verdicts import Verdict

READINGS_DRAWN: Final = 240
BARS_DRAWN: Final = 16
_LEFT, _TOP, _BOTTOM = 34.0, 16.0, 40.0
_HEIGHT: Final = 210.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Upper bounds on what was spent and held from a time on, and the budget since then; None where there is none."""

    at: datetime
    spent: float | None
    held: float | None
    budget: float

    @property
    def standing(self) -> float:
        """Spent and held together."""
        return at_most(self.spent) + at_most(self.held)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """How many datapoints have between `lower` and `upper` behind them."""

    lower: float
    upper: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """The readings of the worst-off datapoint of a task or a window; `link` leads to it."""

    label: str
    spent: float | None
    held: float | None
    available: float | None
    budget: float
    link: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """What an audit found, at least, and what is promised, at most; None of a promise is one without a finite ε."""

    label: str
    lower: float | None
    promise: float | None
    confidence: float
    verdict: Verdict
    link: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How often an attack said "was there" of those who were not, and of those who were."""

    false_positive: float
    true_positive: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that is expected at a time."""

    at: datetime
    label: str


# ---------------------------------------------------------------- over time


def step_chart(*, name: str, title: str, readings: Sequence[Reading], until: datetime) -> Markup:
    """What was spent and held against the budget, from one reading to the next, up to `until`."""
    drawn, said = thinned(readings), "Nothing has been read yet."
    marks: list[Markup] = [hatch(name, class_="chart-held-line")]
    if drawn:
        last = drawn[-1]
        said = (
            f"At the end, ε ≤ {raised(at_most(last.spent))} is spent and {raised(at_most(last.held))} held of a budget "
            f"of {raised(last.budget)}: upper bounds, for whoever has most behind them."
        )
        until = _not_at_once(drawn, until)
        right = WIDTH - 84
        across, upward = _axes(drawn, start=drawn[0].at, stop=until, right=right)
        marks += _grid(upward, across, drawn[0].at, until, right=right)
        floor = [(x, upward(0)) for x in (across(_seconds(until)), across(_seconds(drawn[0].at)))]
        spent = _stairs(
            [(across(_seconds(each.at)), upward(at_most(each.spent))) for each in drawn], across(_seconds(until))
        )
        standing = _stairs(
            [(across(_seconds(each.at)), upward(each.standing)) for each in drawn], across(_seconds(until))
        )
        budget = _stairs([(across(_seconds(each.at)), upward(each.budget)) for each in drawn], across(_seconds(until)))
        marks += [
            path([*spent, *reversed(standing)], class_="chart-held", closed=True, fill=f"url(#{name}-held)"),
            path([*spent, *floor], class_="chart-spent", closed=True),
            path(standing, class_="chart-held-line"),
            path(budget, class_="chart-budget", stroke_dasharray="5 3"),
        ]
        ends = [
            (upward(last.budget), f"budget {raised(last.budget)}", "chart-budget-label"),
            (upward(last.standing), f"held {raised(at_most(last.held))}", "chart-held-label"),
            (upward(at_most(last.spent)), f"spent {raised(at_most(last.spent))}", "chart-spent-label"),
        ]
        marks += _end_labels(ends, x=right + 4, width=WIDTH - right - 4)
    rows = [
        [moment(each.at), raised(at_most(each.spent)), raised(at_most(each.held)), raised(each.budget)]
        for each in drawn
    ]
    if len(drawn) < len(readings):
        said += f" Of {len(readings):,} readings, the highest of each stretch is shown."
    return figure(
        name=name, title=title, about=said, height=_HEIGHT, marks=marks,
        columns=["From (UTC)", "Spent, ε ≤", "Held, at most", "Budget, ε"], rows=rows,
    )  # fmt: skip


def forecast_chart(
    *,
    name: str,
    title: str,
    readings: Sequence[Reading],
    now: datetime,
    exhausted_at: datetime | None,
    refused: Mark | None = None,
) -> Markup:
    """What was spent and held so far, and a straight line from there to where the budget is reached.

    The line is an extrapolation and no bound, which is said. Where its end is far away, only its beginning is drawn.
    """
    drawn = thinned(readings)
    marks: list[Markup] = []
    said, rows = "Nothing has been read yet, so nothing can be extrapolated.", []
    if drawn:
        last, now = drawn[-1], max(now, drawn[-1].at)
        end = exhausted_at if exhausted_at is not None and exhausted_at > now and last.budget < math.inf else None
        said = _outlook(exhausted_at, end, refused)
        stop = _horizon(drawn[0].at, now, end)
        if refused is not None:
            stop = max(stop, _horizon(drawn[0].at, now, refused.at))
        right = WIDTH - 84
        across, upward = _axes(drawn, start=drawn[0].at, stop=stop, right=right)
        marks += _grid(upward, across, drawn[0].at, stop, right=right)
        here = across(_seconds(now))
        standing = _stairs([(across(_seconds(each.at)), upward(each.standing)) for each in drawn], here)
        marks.append(
            path([*standing, (here, upward(0)), (standing[0][0], upward(0))], class_="chart-spent", closed=True)
        )
        level = upward(last.budget)
        marks.append(line(x1=across.start, x2=right, y1=level, y2=level, class_="chart-budget", dashes="5 3"))
        if end is not None:
            share = (_seconds(min(stop, end)) - _seconds(now)) / (_seconds(end) - _seconds(now))
            start = min(last.standing, last.budget)
            tip = (across(_seconds(min(stop, end))), upward(start + share * (last.budget - start)))
            marks.append(path([(here, upward(start)), tip], class_="chart-forecast", stroke_dasharray="4 3"))
            if end <= stop:
                marks.append(tag("circle", class_="chart-end", cx=tip[0], cy=tip[1], r=3.5))
        marks += _moments(across, now=now, refused=refused, floor=upward(0), right=right)
        ends = [
            (level, f"budget {raised(last.budget)}", "chart-budget-label"),
            (upward(last.standing), f"so far {raised(last.standing)}", "chart-spent-label"),
        ]
        marks += _end_labels(ends, x=right + 4, width=WIDTH - right - 4)
        rows = [[moment(each.at), raised(each.standing), raised(each.budget)] for each in drawn]
        if exhausted_at is not None:
            rows.append([f"{moment(exhausted_at)}, extrapolated", raised(last.budget), raised(last.budget)])
    return figure(
        name=name, title=title, about=said, height=_HEIGHT, marks=marks,
        columns=["From (UTC)", "Spent and held, ε ≤", "Budget, ε"], rows=rows,
    )  # fmt: skip


def _outlook(exhausted_at: datetime | None, end: datetime | None, refused: Mark | None) -> str:
    if exhausted_at is None:
        said = "Nothing follows from what happened so far: at the current rate, the budget is not used up."
    elif end is not None:
        said = f"If it goes on like this, the budget is used up on {day(end)}. An extrapolation, no bound."
    else:
        said = "The budget of whoever has most behind them is used up."
    return said if refused is None else f"{said} The first to be refused: {refused.label}, on {day(refused.at)}."


def _moments(across: Scale, *, now: datetime, refused: Mark | None, floor: float, right: float) -> Iterator[Markup]:
    """Today, and the first refusal: lines across the drawing, with words above them that keep apart."""
    shown: list[tuple[float, str, str, str, str | None]] = [
        (across(_seconds(now)), "today", "chart-now", "chart-quiet", "1 3")
    ]
    if refused is not None and refused.at <= datetime.fromtimestamp(across.highest, UTC):
        shown.append((across(_seconds(refused.at)), "first refused", "chart-refused", "chart-bad", None))
    places = apart([each[0] for each in shown], gap=60, lowest=_LEFT + 8, highest=right)
    for (x, words, class_, label_class, dashes), place in zip(shown, places, strict=True):
        yield line(x1=x, x2=x, y1=_TOP, y2=floor, class_=class_, dashes=dashes)
        yield label(words, x=place, y=_TOP - 5, class_=label_class, anchor="middle")


def thinned(readings: Sequence[Reading]) -> list[Reading]:
    """The readings in order of time, or of each stretch the highest and at the end the last: never lower than it was.

    A stretch begins where its first reading began, so that what is drawn is at least what was true at every time.
    """
    ordered = sorted(readings, key=lambda each: each.at)
    if len(ordered) <= READINGS_DRAWN:
        return ordered
    edges = [len(ordered[:-1]) * each // (READINGS_DRAWN - 1) for each in range(READINGS_DRAWN)]
    stretches = [ordered[start:stop] for start, stop in pairwise(edges)]
    highest = [replace(max(each, key=lambda reading: reading.standing), at=each[0].at) for each in stretches]
    return [*highest, ordered[-1]]


def _seconds(at: datetime) -> float:
    return at.timestamp()


def _not_at_once(readings: Sequence[Reading], until: datetime) -> datetime:
    """An end that leaves the last reading some width."""
    first, last = readings[0].at, readings[-1].at
    return max(until, last + max(last - first, timedelta(minutes=1)) / 40)


def _horizon(start: datetime, now: datetime, end: datetime | None) -> datetime:
    """How far to draw: to the end and a little more, but so that what has happened takes a fifth of the width."""
    so_far = max(now - start, timedelta(minutes=1))
    if end is None:
        return now + so_far / 10
    return min(end, now + 4 * so_far) + so_far / 10


def _axes(readings: Sequence[Reading], *, start: datetime, stop: datetime, right: float) -> tuple[Scale, Scale]:
    values = [value for each in readings for value in (each.standing, at_most(each.budget)) if value < math.inf]
    across = Scale(lowest=_seconds(start), highest=_seconds(stop), start=_LEFT, stop=right)
    top = max([*values, 0.0]) * 1.08
    return across, Scale(lowest=0.0, highest=top or 1.0, start=_HEIGHT - _BOTTOM, stop=_TOP)


def _grid(upward: Scale, across: Scale, start: datetime, stop: datetime, *, right: float) -> Iterator[Markup]:
    yield from _rungs(upward, right=right)
    yield label("ε", x=4.0, y=_TOP - 4, class_="chart-quiet")
    for at, words in time_ticks(start, stop, most=5):
        x = across(_seconds(at))
        yield line(x1=x, x2=x, y1=upward(0), y2=upward(0) + 4, class_="chart-axis")
        yield label(words, x=x, y=upward(0) + 15, class_="chart-quiet", anchor=_anchor(x, words, right=WIDTH))
    same_day = day(start) == day(stop)
    written = f"time (UTC), {day(start)}" if same_day else f"time (UTC), {day(start)} to {day(stop)}"
    yield label(written, x=(across.start + right) / 2, y=_HEIGHT - 6, class_="chart-quiet", anchor="middle")


def _rungs(upward: Scale, *, right: float) -> Iterator[Markup]:
    for value in ticks(upward.highest):
        y = upward(value)
        yield line(x1=_LEFT, x2=right, y1=y, y2=y, class_="chart-axis" if value == 0 else "chart-hair")
        yield label(short(value), x=_LEFT - 4, y=y + 4, class_="chart-quiet", anchor="end")


def _anchor(x: float, words: str, *, right: float) -> str:
    half = len(words) * LETTER * 0.3
    return "start" if x - half < 0 else "end" if x + half > right else "middle"


def _stairs(places: Sequence[tuple[float, float]], end: float) -> list[tuple[float, float]]:
    """Each height from its place to the next one, and the last up to the end."""
    stairs = [places[0]]
    for (_, before), (x, y) in pairwise(places):
        stairs += [(x, before), (x, y)]
    return [*stairs, (end, places[-1][1])]


def _end_labels(ends: Sequence[tuple[float, str, str]], *, x: float, width: float) -> Iterator[Markup]:
    """What lines are, written where they end, in the order of their heights and apart from each other."""
    places = apart([y for y, _, _ in ends], gap=LETTER + 2, lowest=_TOP - 4, highest=_HEIGHT - _BOTTOM)
    for y, (_, words, class_) in zip(places, ends, strict=True):
        yield label(fitting(words, width=width, bold=True), x=x, y=y + 4, class_=class_)


# ---------------------------------------------------------------- over datapoints, tasks and windows


def histogram(*, name: str, title: str, bins: Sequence[Bin], budget: float) -> Markup:
    """How many datapoints have how much behind them; a bar that stands for anybody can be seen."""
    total = sum(each.count for each in bins)
    most = max((each.count for each in bins), default=0)
    marks: list[Markup] = []
    said = "Nobody has been registered."
    if total:
        fullest = max(bins, key=lambda each: each.count)
        furthest = max(each.upper for each in bins if each.count)
        said = (
            f"{fullest.count:,} of {total:,} have between {fullest.lower:.3g} and {raised(fullest.upper)} behind them, "
            f"spent and held together; nobody has more than {raised(max(furthest, 0.0))}."
        )
        right = WIDTH - 10
        highest = max([budget, *(each.upper for each in bins if math.isfinite(each.upper))])
        across = Scale(lowest=0.0, highest=highest, start=_LEFT + 6, stop=right)
        upward = Scale(lowest=0.0, highest=most * 1.08, start=_HEIGHT - _BOTTOM, stop=_TOP)
        marks += _counted(upward, right=right)
        for each in bins:
            if not each.count:
                continue
            left, wide = across(each.lower), across(each.upper) - across(each.lower)
            tall = max(2.0, upward(0) - upward(each.count))
            gap = min(1.0, wide / 4)
            marks.append(
                tag(
                    "rect", class_="chart-spent", x=left + gap / 2, y=upward(0) - tall, width=max(wide - gap, 0.5),
                    height=tall,
                )
            )  # fmt: skip
        for value in ticks(highest):
            x = across(value)
            marks += [
                line(x1=x, x2=x, y1=upward(0), y2=upward(0) + 4, class_="chart-axis"),
                label(
                    short(value),
                    x=x,
                    y=upward(0) + 15,
                    class_="chart-quiet",
                    anchor=_anchor(x, short(value), right=WIDTH),
                ),
            ]
        x = across(budget)
        marks += [
            line(x1=x, x2=x, y1=_TOP - 2, y2=upward(0), class_="chart-budget", dashes="5 3"),
            label(f"budget {raised(budget)}", x=x - 4, y=_TOP + 4, class_="chart-budget-label", anchor="end"),
            label("spent and held, ε ≤", x=WIDTH / 2, y=_HEIGHT - 6, class_="chart-quiet", anchor="middle"),
            label("datapoints", x=2.0, y=_TOP - 5, class_="chart-quiet"),
        ]
    rows = [[f"{each.lower:.3g} to {raised(max(each.upper, 0.0))}", f"{each.count:,}"] for each in bins]
    return figure(
        name=name, title=title, about=said, height=_HEIGHT, marks=marks,
        columns=["Spent and held, ε ≤", "Datapoints"], rows=rows,
    )  # fmt: skip


def _counted(upward: Scale, *, right: float) -> Iterator[Markup]:
    for value in ticks(upward.highest):
        if value == int(value):
            y = upward(value)
            yield line(x1=_LEFT + 6, x2=right, y1=y, y2=y, class_="chart-axis" if value == 0 else "chart-hair")
            yield label(short(value), x=_LEFT + 2, y=y + 4, class_="chart-quiet", anchor="end")


_ROW: Final = 46.0


def bars(*, name: str, title: str, meters: Sequence[Meter]) -> Markup:
    """One bar for each task or window: its whole length is its budget. Those with least available come first."""
    ordered = sorted(meters, key=lambda each: (_share(_available(each), each.budget), each.label))
    drawn = ordered[:BARS_DRAWN]
    said = "There is nothing to show yet."
    if ordered:
        first = ordered[0]
        said = (
            f"Least is available in {fitting(first.label, width=400)}: {lowered(_available(first))} of a budget of "
            f"{raised(first.budget)}. Spent and held are upper bounds; a whole bar is a whole budget."
        )
    if len(drawn) < len(ordered):
        said += f" The {len(drawn)} with least available of {len(ordered):,} are drawn, and all are in the table."
    marks: list[Markup] = [hatch(name, class_="chart-held-line")]
    for place, each in enumerate(drawn):
        top = place * _ROW
        spent, held, available = at_most(each.spent), at_most(each.held), _available(each)
        across = Scale(lowest=0.0, highest=at_most(each.budget), start=0.0, stop=WIDTH)
        edge, end = across(spent), across(spent + held)
        figures = (
            f"spent {raised(spent)} · held {raised(held)} · available {lowered(available)} of {raised(each.budget)}"
        )
        marks += [
            label(fitting(each.label, width=WIDTH, bold=True), x=0.0, y=top + 11, class_="chart-name"),
            tag("rect", class_="chart-track", x=0.0, y=top + 16, width=WIDTH, height=10.0, fill="none"),
            tag("rect", class_="chart-spent", x=0.0, y=top + 16, width=edge, height=10.0),
            tag(
                "rect",
                class_="chart-held",
                x=edge,
                y=top + 16,
                width=end - edge,
                height=10.0,
                fill=f"url(#{name}-held)",
            ),
            label(fitting(figures, width=WIDTH + 20), x=0.0, y=top + 38, class_="chart-quiet"),
        ]
    rows: list[list[str | Cell]] = [
        [
            _linked(each.label, each.link), raised(at_most(each.spent)), raised(at_most(each.held)),
            lowered(_available(each)), raised(each.budget),
        ]
        for each in ordered
    ]  # fmt: skip
    return figure(
        name=name, title=title, about=said, height=max(1, len(drawn)) * _ROW, marks=marks,
        columns=["Name", "Spent, ε ≤", "Held, at most", "Available, ε", "Budget, ε"], rows=rows,
    )  # fmt: skip


def _available(meter: Meter) -> float:
    """What is not known is not available; no limit is available only where the budget has none."""
    if meter.available is None:
        return math.inf if meter.budget == math.inf else 0.0
    return at_least(meter.available)


def _share(available: float, budget: float) -> float:
    return math.inf if available == math.inf else available / budget if budget > 0 else 0.0


def _linked(words: str, link: str | None) -> str | Cell:
    return words if link is None else Cell(words=words, link=link)


# ---------------------------------------------------------------- audits

_WORDS: Final = {
    "consistent": ("✓", "consistent", "good"),
    "violation": ("✗", "violation", "bad"),
    "inconclusive": ("?", "inconclusive", "warn"),
}


def interval_chart(*, name: str, title: str, intervals: Sequence[Interval]) -> Markup:
    """What audits found, at least, against what is promised, at most: one line for each."""
    finite = [
        value for each in intervals for value in (at_least(each.lower), at_most(each.promise)) if value < math.inf
    ]
    highest = max([*finite, 0.0]) * 1.1 or 1.0
    across = Scale(lowest=0.0, highest=highest, start=4.0, stop=WIDTH - 12)
    drawn = intervals[:BARS_DRAWN]
    broken = sum(each.verdict == "violation" for each in intervals)
    said = (
        "No audit has been concluded."
        if not intervals
        else f"None of {len(intervals):,} disproves its promise."
        if not broken
        else f"{broken:,} of {len(intervals):,} disprove a promise: at least so much leaked, and less was promised."
    )
    if len(drawn) < len(intervals):
        said += f" The first {len(drawn)} are drawn, and all are in the table."
    marks: list[Markup] = []
    for place, each in enumerate(drawn):
        top = place * _ROW
        icon, word, tone = _WORDS[each.verdict]
        lower, promise = at_least(each.lower), at_most(each.promise)
        left, right = across(lower), across(promise)
        verdict, y = f"{icon} {word}", top + 21
        marks += [
            label(fitting(each.label, width=WIDTH, bold=True), x=0.0, y=top + 11, class_="chart-name"),
            label(verdict, x=WIDTH, y=top + 38, class_=f"chart-{tone}", anchor="end"),
            line(x1=across.start, x2=across.stop, y1=y, y2=y, class_="chart-hair"),
            line(x1=left, x2=right, y1=y, y2=y, class_=f"chart-between-{tone}"),
            line(x1=right, x2=right, y1=y - 6, y2=y + 6, class_="chart-promise"),
            tag("circle", class_=f"chart-found-{tone}", cx=left, cy=y, r=4.0),
            label(
                f"at least {lowered(lower)} found · at most {raised(promise)} promised", x=0.0, y=top + 38,
                class_="chart-quiet",
            ),
        ]  # fmt: skip
    bottom = max(1, len(drawn)) * _ROW
    for value in ticks(highest) if drawn else []:
        x, words = across(value), short(value)
        marks += [
            line(x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="chart-axis"),
            label(words, x=x, y=bottom + 15, class_="chart-quiet", anchor=_anchor(x, words, right=WIDTH)),
        ]
    if drawn:
        marks += [
            line(x1=across.start, x2=across.stop, y1=bottom, y2=bottom, class_="chart-axis"),
            label("ε: ● found, | promised", x=WIDTH, y=bottom + 30, class_="chart-quiet", anchor="end"),
        ]
    rows: list[list[str | Cell]] = [
        [
            _linked(each.label, each.link), lowered(at_least(each.lower)), raised(at_most(each.promise)),
            _percent(each.confidence), each.verdict,
        ]
        for each in intervals
    ]  # fmt: skip
    return figure(
        name=name, title=title, about=said, height=bottom + 34, marks=marks,
        columns=["Audit", "Found, ε ≥", "Promised, ε ≤", "Confidence", "Verdict"], rows=rows,
    )  # fmt: skip


def _percent(share: float) -> str:
    """A confidence, rounded down."""
    return f"{math.floor(share * 1e4) / 100:g} %" if math.isfinite(share) else "unknown"


def curve(*, name: str, title: str, epsilon: float | None, delta: float, points: Sequence[Rates]) -> Markup:
    """How well an attack told who was there, against the best that (ε, δ) allows any attack.

    With the promise, true positives are at most e^ε · false positives + δ, and the same holds of the complements
    (Wasserman and Zhou 2010, theorem 2.4; Kairouz, Oh and Viswanath 2015). Beyond it is shaded. A point is a measured
    rate, not a bound: what an audit proves allows for chance and is its lower bound.
    """
    side, bottom = WIDTH - _LEFT - 16, WIDTH - 16
    across = Scale(lowest=0.0, highest=1.0, start=_LEFT, stop=_LEFT + side)
    upward = Scale(lowest=0.0, highest=1.0, start=bottom, stop=bottom - side)
    limit = frontier(epsilon=at_most(epsilon), delta=delta)
    ordered = sorted(
        (each for each in points if _rates(each)), key=lambda each: (each.false_positive, each.true_positive)
    )
    corner = (across(0), upward(1))
    edge = [(across(each.false_positive), upward(each.true_positive)) for each in limit]
    marks: list[Markup] = [
        path([*edge, corner], class_="chart-beyond", closed=True, fill="none"),
        *_square(across, upward, side=side),
        path([(across(0), upward(0)), (across(1), upward(1))], class_="chart-guess", stroke_dasharray="2 3"),
        path(edge, class_="chart-budget", stroke_dasharray="5 3"),
    ]
    if ordered:
        places = [(across(each.false_positive), upward(each.true_positive)) for each in ordered]
        marks.append(path(places, class_="chart-measured"))
        if len(places) <= 60:
            marks += [tag("circle", class_="chart-point", cx=x, cy=y, r=2.5) for x, y in places]
    for place, (kind, words, dashes) in enumerate(
        (
            ("chart-measured", "measured by the attack", None),
            ("chart-budget", f"the most that ε ≤ {raised(at_most(epsilon))} allows (δ = {delta:.3g})", "5 3"),
            ("chart-guess", "guessing", "2 3"),
        )
    ):
        y = bottom + 38 + 14 * place
        marks += [
            line(x1=_LEFT, x2=_LEFT + 24, y1=y - 4, y2=y - 4, class_=kind, dashes=dashes),
            label(words, x=_LEFT + 30, y=y, class_="chart-quiet"),
        ]
    outside = sum(each.true_positive > _allowed(each.false_positive, at_most(epsilon), delta) for each in ordered)
    said = (
        "No points were kept of this audit."
        if not ordered
        else "Every measured point lies within what the promise allows."
        if not outside
        else f"{outside:,} of {len(ordered):,} measured points lie beyond what the promise allows; whether that is "
        "chance is told by the lower bound."
    )
    rows = [[f"{each.false_positive:.4g}", f"{each.true_positive:.4g}"] for each in ordered]
    return figure(
        name=name, title=title, about=said, height=bottom + 72, marks=marks,
        columns=["False positives", "True positives"], rows=rows,
    )  # fmt: skip


def frontier(*, epsilon: float, delta: float) -> list[Rates]:
    """The corners of the most that (ε, δ) allows, from no false positives to all.

    >>> [(each.false_positive, each.true_positive) for each in frontier(epsilon=0.0, delta=0.0)]
    [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0), (1.0, 1.0)]
    """
    delta = min(max(delta, 0.0), 1.0) if not math.isnan(delta) else 1.0
    bend = (1 - delta) * math.exp(-epsilon) / (1 + math.exp(-epsilon))
    corners = [(0.0, delta), (bend, 1 - bend), (1 - delta, 1.0), (1.0, 1.0)]
    return [Rates(false_positive=x, true_positive=y) for x, y in corners]


def _allowed(false_positive: float, epsilon: float, delta: float) -> float:
    if epsilon > 700:
        return 1.0
    return min(1.0, math.exp(epsilon) * false_positive + delta, 1 - math.exp(-epsilon) * (1 - delta - false_positive))


def _rates(given: Rates) -> bool:
    return 0 <= given.false_positive <= 1 and 0 <= given.true_positive <= 1


def _square(across: Scale, upward: Scale, *, side: float) -> Iterator[Markup]:
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, y = across(value), upward(value)
        kind = "chart-axis" if value == 0 else "chart-hair"
        yield line(x1=x, x2=x, y1=upward(0), y2=upward(1), class_=kind)
        yield line(x1=across(0), x2=across(1), y1=y, y2=y, class_=kind)
        yield label(
            f"{100 * value:g}", x=x, y=upward(0) + 13, class_="chart-quiet", anchor="middle" if value < 1 else "end"
        )
        if value:
            yield label(f"{100 * value:g}", x=_LEFT - 3, y=y + 4, class_="chart-quiet", anchor="end")
    yield label("% called present, of those who were", x=4.0, y=upward(1) - 8, class_="chart-quiet")
    yield label(
        "% called present, of those who were not",
        x=across(0) + side,
        y=upward(0) + 25,
        class_="chart-quiet",
        anchor="end",
    )
