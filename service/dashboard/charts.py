"""The charts of the pages: values in, a figure of HTML and SVG out. No file, no clock, no chance.

Every figure has a title, a sentence that says what it shows, a drawing and "show the numbers". What is spent or held is
an upper bound and is written rounded up, what an audit found is a lower bound and is written rounded down, and what is
not known is infinite or nothing, whichever is worse for us. A value beyond a scale is drawn at its edge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Final, Literal

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
    fits,
    fitting,
    hatch,
    label,
    line,
    lowered,
    moment,
    path,
    position,
    raised,
    short,
    tag,
    ticks,
    time_ticks,
    wide,
)  # fmt: skip
from service.dashboard.words import bound
from service.printed import sign

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markupsafe import Markup

    from accountant.audit.verdicts import Verdict
    from accountant.ledger import OnExhausted

READINGS_DRAWN: Final = 240
BARS_DRAWN: Final = 16
_LEFT, _TOP, _BOTTOM = 34.0, 20.0, 44.0
_HEIGHT: Final = 214.0
_OVER: Final = 40.0  # of the width, for those who are over the budget
_ENDS: Final = 92.0  # of the width, for what is written where lines end


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """On which terms every ε of a chart holds: with which δ, for one what, and how sure what it rests on is."""

    delta: float
    unit: str
    proof_status: str = "proved"

    def __str__(self) -> str:
        return f"{self.at}, {bound(self.proof_status)}"

    @property
    def sign(self) -> str:
        """Between ε and its number."""
        return sign(self.proof_status)

    @property
    def most(self) -> str:
        """After the name of a column whose numbers are at most so much."""
        return ", at most" if self.proof_status == "proved" else ""

    @property
    def at(self) -> str:
        """Without saying which bound it is."""
        return f"δ = {self.delta:g}, per {self.unit}"


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
    """How many datapoints have between `lower` and `upper` behind them: places on the scale, up to the budget.

    What begins at the budget are those who are over it. Where a bin ends beyond it, its end is what somebody has.
    """

    lower: float
    upper: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """The readings of the worst-off datapoint of a task or a window; `link` leads to it.

    Where there are several budgets, `budget_of` says of which this is, and `terms` on which it holds, if on others.
    """

    label: str
    spent: float | None
    held: float | None
    available: float | None
    budget: float
    link: str | None = None
    budget_of: Literal["", "for life", "own budget"] = ""
    terms: Terms | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """What an audit found, at least, and what is promised, at most; None of a promise is one without a finite ε.

    `label` names the mechanism and, after a colon, the attack, which alone is written where there is one audit.
    """

    label: str
    lower: float | None
    promise: float | None
    terms: Terms
    confidence: float
    verdict: Verdict
    link: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How often an attack said "was there" of those who were not, and of those who were."""

    false_positive: float
    true_positive: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen:
    """What would be spent and held from a time on, if things go on as they went: no bound."""

    at: datetime
    standing: float | None


# ---------------------------------------------------------------- over time


def step_chart(*, name: str, title: str, terms: Terms, readings: Sequence[Reading], until: datetime) -> Markup:
    """What was spent and held against the budget, from one reading to the next, up to `until`."""
    drawn, said = thinned(readings), "Nothing has been read yet."
    marks: list[Markup] = [hatch(name, class_="chart-held-line")]
    if drawn:
        last = drawn[-1]
        said = (
            f"At the end, ε {terms.sign} {raised(at_most(last.spent))} is spent and {raised(at_most(last.held))} held "
            f"of a budget of {raised(last.budget)} ({terms})."
        )
        if at_most(last.spent) > last.budget:
            said += " What is spent is over the budget."
        if lower := [pair for pair in pairwise(readings) if pair[1].budget < pair[0].budget]:
            one, other = lower[-1]
            said += f" The budget was lowered from {raised(one.budget)} to {raised(other.budget)} on {day(other.at)}."
        drawn, before = _since_the_first(drawn, max(until, last.at))
        said += before
        until = _not_at_once(drawn, until)
        right = WIDTH - _ENDS
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
        is_over = any(at_most(each.spent) > each.budget for each in drawn)
        over = _stairs(
            [(across(_seconds(each.at)), upward(max(at_most(each.spent), each.budget))) for each in drawn],
            across(_seconds(until)),
        )
        marks += [
            path([*spent, *reversed(standing)], class_="chart-held", closed=True, fill=f"url(#{name}-held)"),
            path([*spent, *floor], class_="chart-spent", closed=True),
            *([path([*over, *reversed(budget)], class_="chart-over", closed=True)] if is_over else []),
            *_outlines(drawn, across, upward, until),
            path(budget, class_="chart-halo"),
            path(budget, class_="chart-budget", stroke_dasharray="5 3"),
        ]
        held = at_most(last.held)
        ends = [
            (upward(last.budget), "budget", raised(last.budget), "chart-budget-label"),
            *([(upward(last.standing), "held", raised(held), "chart-held-label")] if held else []),
            (
                upward(at_most(last.spent)),
                "spent",
                raised(at_most(last.spent)),
                "chart-bad" if at_most(last.spent) > last.budget else "chart-spent-label",
            ),
        ]
        marks += _end_labels(ends, x=right + 4, width=WIDTH - right - 4)
    kept = thinned(readings)
    rows = [
        [moment(each.at), raised(at_most(each.spent)), raised(at_most(each.held)), raised(each.budget)] for each in kept
    ]
    if len(kept) < len(readings):
        said += f" Of {len(readings):,} readings, the highest of each stretch is shown."
    return figure(
        name=name, title=title, about=said, height=_HEIGHT, marks=marks,
        columns=["From (UTC)", f"Spent, ε {terms.sign}", f"Held{terms.most}", "Budget, ε"], rows=rows,
    )  # fmt: skip


def _outlines(drawn: Sequence[Reading], across: Scale, upward: Scale, until: datetime) -> Iterator[Markup]:
    """The upper edge of what is held, wherever something is."""
    ends = [*(each.at for each in drawn[1:]), until]
    for is_held, run in groupby(zip(drawn, ends, strict=True), key=lambda pair: at_most(pair[0].held) > 0):
        if is_held:
            pairs = list(run)
            places = [(across(_seconds(each.at)), upward(each.standing)) for each, _ in pairs]
            yield path(_stairs(places, across(_seconds(pairs[-1][1]))), class_="chart-held-line")


def forecast_chart(
    *,
    name: str,
    title: str,
    terms: Terms,
    readings: Sequence[Reading],
    now: datetime,
    ahead: Sequence[Foreseen],
    refused: Foreseen,
    what: str,
    on_exhausted: OnExhausted = "deny",
) -> Markup:
    """What was spent and held so far, the steps that follow if it goes on like this, and the one that is refused.

    `what` names the release that `refused` is: when it is due, and what it would bring its people to; under a policy
    that trims it is admitted, and leaves them out. All that is ahead is an extrapolation and no bound, which is said.
    Where it is far away, only its beginning is drawn.
    """
    drawn = thinned(readings)
    becomes, short_for_it = _BECOMES[on_exhausted]
    marks: list[Markup] = []
    said, rows = "Nothing has been read yet, so nothing can be extrapolated.", list[list[str]]()
    if drawn:
        last, now = drawn[-1], max(now, drawn[-1].at)
        coming = sorted((each for each in ahead if each.at > now), key=lambda each: each.at)
        end = max([refused.at, now, *(each.at for each in coming)])
        said = (
            f"So far, ε {terms.sign} {raised(last.standing)} is spent and held of a budget of {raised(last.budget)} "
            f"({terms}). By the budget alone, if it goes on like this, {what} {becomes} on {day(end)}: it would bring "
            f"them to {raised(at_most(refused.standing))}. An extrapolation, no bound."
        )
        rows = [[moment(each.at), raised(each.standing), raised(each.budget)] for each in drawn]
        drawn, before = _since_the_first(drawn, end)
        said += before
        stop = _horizon(drawn[0].at, now, end)
        right = WIDTH - _ENDS
        reach = [at_most(refused.standing), *(at_most(each.standing) for each in coming)]
        across, upward = _axes(drawn, start=drawn[0].at, stop=stop, right=right, reach=reach)
        marks += _grid(upward, across, drawn[0].at, stop, right=right)
        here = across(_seconds(now))
        standing = _stairs([(across(_seconds(each.at)), upward(each.standing)) for each in drawn], here)
        marks.append(
            path([*standing, (here, upward(0)), (standing[0][0], upward(0))], class_="chart-spent", closed=True)
        )
        level, tip = upward(last.budget), across(_seconds(min(stop, end)))
        marks += [
            line(x1=across.start, x2=right, y1=level, y2=level, class_="chart-halo"),
            line(x1=across.start, x2=right, y1=level, y2=level, class_="chart-budget", dashes="5 3"),
        ]
        steps = [
            (here, upward(last.standing)),
            *((across(_seconds(each.at)), upward(at_most(each.standing))) for each in coming if each.at <= stop),
        ]
        marks.append(path(_stairs(steps, tip), class_="chart-forecast", stroke_dasharray="4 3"))
        refusal = (tip, upward(at_most(refused.standing))) if end <= stop else None
        if refusal is not None:
            marks += [
                line(x1=tip, x2=tip, y1=steps[-1][1], y2=refusal[1], class_="chart-refused", dashes="2 2"),
                *_cross(*refusal),
            ]
        moments = [(now, "today", "chart-quiet"), *([(end, short_for_it, "chart-bad")] if refusal else [])]
        marks += _moments(across, moments, floor=upward(0), right=right)
        ends = [(level, "budget", raised(last.budget), "chart-budget-label")]
        marks += _end_labels(ends, x=right + 4, width=WIDTH - right - 4)
        rows += [
            [f"{moment(each.at)}, extrapolated", raised(at_most(each.standing)), raised(last.budget)] for each in coming
        ]
        rows.append([f"{moment(end)}, {short_for_it}", raised(at_most(refused.standing)), raised(last.budget)])
    return figure(
        name=name, title=title, about=said, height=_HEIGHT, marks=marks,
        columns=["From (UTC)", f"Spent and held, ε {terms.sign}", "Budget, ε"], rows=rows,
    )  # fmt: skip


def _cross(x: float, y: float) -> Iterator[Markup]:
    for slope in (1, -1):
        x1, x2 = max(0.0, x - 4), min(WIDTH, x + 4)
        yield line(x1=x1, x2=x2, y1=max(0.0, y - 4 * slope), y2=max(0.0, y + 4 * slope), class_="chart-refused")


#: What becomes of a release that some cannot afford, in a sentence and in a word.
_BECOMES: Final[dict[OnExhausted, tuple[str, str]]] = {
    "deny": ("is refused", "refused"),
    "trim": ("leaves them out", "left out"),
}


def _moments(
    across: Scale, moments: Sequence[tuple[datetime, str, str]], *, floor: float, right: float
) -> Iterator[Markup]:
    """Today, and perhaps the first refusal: words above the drawing that keep apart, over lines."""
    shown = [(across(_seconds(at)), words, class_) for at, words, class_ in moments]
    places = apart([each[0] for each in shown], gap=52, lowest=across.start + 8, highest=right)
    yield line(x1=shown[0][0], x2=shown[0][0], y1=_TOP, y2=floor, class_="chart-now", dashes="1 3")
    for (_, words, label_class), place in zip(shown, places, strict=True):
        yield label(words, x=place, y=_TOP - 6, class_=label_class, anchor="middle")


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


def _since_the_first(drawn: list[Reading], until: datetime) -> tuple[list[Reading], str]:
    """The readings from shortly before the first charge on, if most of the time before was empty; and a sentence.

    Whoever came late has little to show of the years before, and all of it in a corner.
    """
    first = next((place for place, each in enumerate(drawn) if each.standing > 0), 0)
    if first == 0 or (until - drawn[first].at) * 2 > until - drawn[0].at:
        return drawn, ""
    begun = drawn[first].at - (until - drawn[first].at) / 20
    start = max(begun, drawn[0].at)
    before = next(each for each in reversed(drawn[:first]) if each.at <= start)
    said = f" Before {day(drawn[first].at)}, nothing was released about them."
    return [replace(before, at=start), *(each for each in drawn if each.at > start)], said


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


def _axes(
    readings: Sequence[Reading], *, start: datetime, stop: datetime, right: float, reach: Sequence[float] = ()
) -> tuple[Scale, Scale]:
    read = [value for each in readings for value in (each.standing, at_most(each.budget))]
    values = [value for value in (*read, *reach) if value < math.inf]
    top = max([*values, 0.0]) * 1.08
    upward = Scale(lowest=0.0, highest=top or 1.0, start=_HEIGHT - _BOTTOM, stop=_TOP)
    return Scale(lowest=_seconds(start), highest=_seconds(stop), start=_left(upward), stop=right), upward


def _left(upward: Scale) -> float:
    """How much room the numbers beside a scale take: none of their digits is lost."""
    return max(_LEFT, *(wide(short(value)) + 8 for value in ticks(upward.highest)))


def _grid(upward: Scale, across: Scale, start: datetime, stop: datetime, *, right: float) -> Iterator[Markup]:
    yield from _rungs(upward, left=across.start, right=right)
    yield label("ε", x=4.0, y=_TOP - 6, class_="chart-quiet")
    for x, words in _with_room(across, start, stop):
        yield line(x1=x, x2=x, y1=upward(0), y2=upward(0) + 4, class_="chart-axis")
        yield label(words, x=x, y=upward(0) + 16, class_="chart-quiet", anchor=_anchor(x, words, right=WIDTH))
    same_day = day(start) == day(stop)
    written = f"time (UTC), {day(start)}" if same_day else f"time (UTC), {day(start)} to {day(stop)}"
    middle = max((across.start + right) / 2, wide(written) / 2)
    yield label(written, x=middle, y=_HEIGHT - 6, class_="chart-quiet", anchor="middle")


def _with_room(across: Scale, start: datetime, stop: datetime) -> list[tuple[float, str]]:
    """As many round times as can be written beside each other, and where."""
    found: list[tuple[float, str]] = []
    for most in (6, 5, 4, 3):
        found = [(across(_seconds(at)), words) for at, words in time_ticks(start, stop, most=most)]
        if not _is_crowded(found):
            return found
    while _is_crowded(found):
        found = found[::2]
    return found


def _is_crowded(written: Sequence[tuple[float, str]]) -> bool:
    spans = [_span(*each) for each in written]
    return any(right - left < 6 for (_, left), (right, _) in pairwise(spans))


def _span(x: float, words: str) -> tuple[float, float]:
    """From where to where words reach that are written at a tick."""
    size = wide(words)
    before = {"start": 0.0, "middle": size / 2, "end": size}[_anchor(x, words, right=WIDTH)]
    return x - before, x - before + size


def _rungs(upward: Scale, *, left: float, right: float) -> Iterator[Markup]:
    for value in ticks(upward.highest):
        y = upward(value)
        yield line(x1=left, x2=right, y1=y, y2=y, class_="chart-axis" if value == 0 else "chart-hair")
        yield label(short(value), x=left - 4, y=y + 4, class_="chart-quiet", anchor="end")


def _anchor(x: float, words: str, *, right: float) -> str:
    half = len(words) * LETTER * 0.3
    return "start" if x - half < 0 else "end" if x + half > right else "middle"


def _stairs(places: Sequence[tuple[float, float]], end: float) -> list[tuple[float, float]]:
    """Each height from its place to the next one, and the last up to the end."""
    stairs = [places[0]]
    for (_, before), (x, y) in pairwise(places):
        stairs += [(x, before), (x, y)]
    return [*stairs, (end, places[-1][1])]


def _end_labels(ends: Sequence[tuple[float, str, str, str]], *, x: float, width: float) -> Iterator[Markup]:
    """What lines are, written where they end, in the order of their heights and apart from each other.

    Where a word and its number have no room together, the number stands alone: it is not cut.
    """
    places = apart([y for y, *_ in ends], gap=LETTER + 2, lowest=_TOP - 4, highest=_HEIGHT - _BOTTOM)
    for y, (_, word, number, class_) in zip(places, ends, strict=True):
        words = f"{word} {number}"
        yield label(words if fits(words, width=width, bold=True) else number, x=x, y=y + 4, class_=class_)


# ---------------------------------------------------------------- over datapoints, tasks and windows


def histogram(
    *, name: str, title: str, terms: Terms, bins: Sequence[Bin], budget: float, most: float | None = None
) -> Markup:
    """How many datapoints have how much behind them; a bar that stands for anybody can be seen.

    Whoever is over the budget stands beside the scale, in a bar as wide as the others: it may be far, and is no spread.
    """
    total = sum(each.count for each in bins)
    highest_count = max((each.count for each in bins), default=0)
    marks: list[Markup] = []
    said = "Nobody has been registered."
    if total:
        fullest = max(bins, key=lambda each: each.count)
        furthest = max(each.upper for each in bins if each.count) if most is None else most
        most_of_all = (
            f"nobody has more than {raised(max(furthest, 0.0))}"
            if math.isfinite(furthest)
            else "in the last bar are some for whom no finite ε holds"
        )
        between = f"between ε = {position(fullest.lower)} and {_end(fullest, budget)}"
        if raised(max(furthest, 0.0)) == position(fullest.lower):  # as far as its lower edge, and no further
            between = f"ε = {position(fullest.lower)}"
        said = (
            f"{fullest.count:,} of {total:,} have {between} behind them, spent and held together; {most_of_all} "
            f"({terms})."
        )
        if over := sum(each.count for each in bins if each.lower >= budget):
            said += f" {over:,} {'is' if over == 1 else 'are'} over the budget."
        right = WIDTH - 10
        beyond = right - _OVER if any(each.count and each.upper > budget for each in bins) else None
        upward = Scale(lowest=0.0, highest=highest_count * 1.08, start=_HEIGHT - _BOTTOM, stop=_TOP)
        across = Scale(lowest=0.0, highest=budget, start=_left(upward) + 6, stop=right if beyond is None else beyond)
        bar = min((across.stop - across.start) / max(1, sum(each.lower < budget for each in bins)), _OVER / 2)
        marks += _counted(upward, left=across.start, right=right)
        for each in bins:
            if not each.count:
                continue
            is_over = each.lower >= budget
            left = right - bar if is_over else across(each.lower)
            width = (right if each.upper > budget else across(each.upper)) - left
            tall = max(2.0, upward(0) - upward(each.count))
            gap = min(1.0, width / 4)
            kind = "chart-over" if is_over else "chart-spent"
            marks.append(
                tag(
                    "rect", class_=kind, x=left + gap / 2, y=upward(0) - tall, width=max(width - gap, 0.5),
                    height=tall,
                )
            )  # fmt: skip
        if beyond is not None:
            marks.append(label("over", x=WIDTH, y=upward(0) + 16, class_="chart-quiet", anchor="end"))
        for value in ticks(budget):
            x = across(value)
            if beyond is not None and _span(x, short(value))[1] > WIDTH - wide("over "):
                continue
            marks += [
                line(x1=x, x2=x, y1=upward(0), y2=upward(0) + 4, class_="chart-axis"),
                label(
                    short(value),
                    x=x,
                    y=upward(0) + 16,
                    class_="chart-quiet",
                    anchor=_anchor(x, short(value), right=WIDTH),
                ),
            ]
        x = across(budget)
        marks += [
            line(x1=x, x2=x, y1=_TOP - 2, y2=upward(0), class_="chart-halo"),
            line(x1=x, x2=x, y1=_TOP - 2, y2=upward(0), class_="chart-budget", dashes="5 3"),
            label(f"budget {raised(budget)}", x=x - 4, y=_TOP + 4, class_="chart-budget-label", anchor="end"),
            label(
                "ε spent and held (at most)" if terms.sign == "≤" else "ε spent and held",
                x=(across.start + right) / 2,
                y=_HEIGHT - 6,
                class_="chart-quiet",
                anchor="middle",
            ),
            label(f"{terms.unit}s", x=2.0, y=_TOP - 5, class_="chart-quiet"),
        ]
    rows = [[f"{position(each.lower)} to {_end(each, budget)}", f"{each.count:,}"] for each in bins]
    return figure(
        name=name, title=title, about=said, height=_HEIGHT, marks=marks,
        columns=[f"Spent and held, ε {terms.sign}", f"{terms.unit.capitalize()}s"], rows=rows,
    )  # fmt: skip


def _end(given: Bin, budget: float) -> str:
    """Where a bin ends, as the next begins; beyond the budget it is what somebody has at most."""
    return raised(given.upper) if given.upper > budget else position(given.upper)


def _counted(upward: Scale, *, left: float, right: float) -> Iterator[Markup]:
    for value in ticks(upward.highest):
        if value == int(value):
            y = upward(value)
            yield line(x1=left, x2=right, y1=y, y2=y, class_="chart-axis" if value == 0 else "chart-hair")
            yield label(short(value), x=left - 4, y=y + 4, class_="chart-quiet", anchor="end")


_ROW: Final = 52.0
_OF: Final = {"": "for life", "for life": "for life", "own budget": "own"}


def bars(
    *, name: str, title: str, terms: Terms, meters: Sequence[Meter], order: Literal["least", "given"] = "least"
) -> Markup:
    """One bar for each task or window: its whole length is its budget.

    Those with least available come first, and where two have the same, the one that was given first; or all as given.
    """
    least = sorted(meters, key=lambda each: _share(_available(each), each.budget))
    ordered = least if order == "least" else list(meters)
    drawn = ordered[:BARS_DRAWN]
    several = any(each.budget_of for each in meters)
    said = "There is nothing to show yet."
    if ordered:
        first = least[0]
        of = {"own budget": "its own budget", "for life": "the budget for life"}.get(first.budget_of, "a budget")
        tighter = ", of two the one with less left of it" if several else ""
        said = (
            f"Least is available in “{fitting(first.label, width=400)}”: {lowered(_available(first))} of {of} of "
            f"ε = {raised(first.budget)} ({first.terms or terms}). A whole bar is a whole budget{tighter}. Each "
            "shows its worst-off member."
        )
    if len(drawn) < len(ordered):
        which = f"The {len(drawn)} with least available" if order == "least" else f"The first {len(drawn)}"
        said += f" {which} of {len(ordered):,} are drawn, and all are in the table."
    marks: list[Markup] = [hatch(name, class_="chart-held-line")]
    for place, each in enumerate(drawn):
        marks += _bar(each, top=place * _ROW, pattern=f"url(#{name}-held)")
    rows: list[list[str | Cell]] = [
        [
            _linked(each.label, each.link), raised(at_most(each.spent)), raised(at_most(each.held)),
            lowered(_available(each)), raised(each.budget),
            *([f"{_OF[each.budget_of]}, {(each.terms or terms).delta:g}"] if several else []),
        ]
        for each in ordered
    ]  # fmt: skip
    columns = ["Name", f"Spent, ε {terms.sign}", f"Held{terms.most}", "Available, ε", "Budget, ε", "Which, at δ ="]
    return figure(
        name=name, title=title, about=said, height=max(1, len(drawn)) * _ROW, marks=marks,
        columns=columns[: 5 + several], rows=rows,
    )  # fmt: skip


def _bar(meter: Meter, *, top: float, pattern: str) -> Iterator[Markup]:
    """The name, the bar, and below it what is spent, held and available."""
    spent, held, available = at_most(meter.spent), at_most(meter.held), _available(meter)
    across = Scale(lowest=0.0, highest=at_most(meter.budget), start=0.0, stop=WIDTH)
    edge, end = across(spent), across(spent + held)
    room = WIDTH - (wide(f"{meter.budget_of} mm") if meter.budget_of else 0)
    yield label(fitting(meter.label, width=room, bold=True), x=0.0, y=top + 12, class_="chart-name")
    if meter.budget_of:
        yield label(meter.budget_of, x=WIDTH, y=top + 12, class_="chart-quiet", anchor="end")
    yield tag("rect", class_="chart-track", x=0.0, y=top + 17, width=WIDTH, height=10.0, fill="none")
    over = spent + held > (1 + 1e-9) * at_most(meter.budget)  # no more than rounding is not over
    kind = "chart-over" if over else "chart-spent"
    yield tag("rect", class_=kind, x=0.0, y=top + 17, width=edge, height=10.0)
    yield tag("rect", class_="chart-held", x=edge, y=top + 17, width=end - edge, height=10.0, fill=pattern)
    yield label(f"spent {raised(spent)} · held {raised(held)}", x=0.0, y=top + 40, class_="chart-quiet")
    left = "over the budget" if over else f"available {lowered(available)}"
    yield label(left, x=WIDTH, y=top + 40, class_="chart-quiet", anchor="end")


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
        else "It does not disprove its promise."
        if not broken and len(intervals) == 1
        else f"None of {len(intervals):,} disproves its promise."
        if not broken
        else f"{f'{broken:,} of {len(intervals):,}' if len(intervals) > 1 else 'It'} "
        f"{'disproves its promise' if broken == 1 else 'disprove their promises'}: more leaked than was promised."
    )
    if terms := {each.terms.at for each in intervals}:
        said += f" Both at {min(terms)}." if len(terms) == 1 else " Each at its own δ and per its own unit."
    if len(drawn) < len(intervals):
        said += f" The first {len(drawn)} are drawn, and all are in the table."
    marks: list[Markup] = []
    second = 14 if len(intervals) > 1 else 0  # the line of the attack
    row = _ROW + second
    for place, each in enumerate(drawn):
        top = place * row
        icon, word, tone = _WORDS[each.verdict]
        lower, promise = at_least(each.lower), at_most(each.promise)
        left, right = across(lower), across(promise)
        verdict, y = f"{icon} {word}", top + second + 22
        mechanism, _, attack = each.label.partition(": ")
        called = mechanism if second or not attack else attack
        room = WIDTH - wide(f"{verdict} mm")
        marks += [
            label(fitting(called, width=room, bold=True), x=0.0, y=top + 12, class_="chart-name"),
            *([label(fitting(attack, width=WIDTH), x=0.0, y=top + 26, class_="chart-quiet")] if second else []),
            label(verdict, x=WIDTH, y=top + 12, class_=f"chart-{tone}", anchor="end"),
            line(x1=across.start, x2=across.stop, y1=y, y2=y, class_="chart-hair"),
            line(x1=left, x2=right, y1=y, y2=y, class_=f"chart-between-{tone}"),
            line(x1=right, x2=right, y1=y - 6, y2=y + 6, class_="chart-promise"),
            tag("circle", class_=f"chart-found-{tone}", cx=left, cy=y, r=4.0),
            label(
                f"at least {lowered(lower)} found · at most {raised(promise)} promised", x=0.0, y=top + second + 40,
                class_="chart-quiet",
            ),
        ]  # fmt: skip
    bottom = max(1, len(drawn)) * row
    for value in ticks(highest) if drawn else []:
        x, words = across(value), short(value)
        marks += [
            line(x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="chart-axis"),
            label(words, x=x, y=bottom + 16, class_="chart-quiet", anchor=_anchor(x, words, right=WIDTH)),
        ]
    if drawn:
        marks += [
            line(x1=across.start, x2=across.stop, y1=bottom, y2=bottom, class_="chart-axis"),
            label("ε: ● found, | promised", x=WIDTH, y=bottom + 32, class_="chart-quiet", anchor="end"),
        ]
    rows: list[list[str | Cell]] = [
        [
            _linked(each.label, each.link), lowered(at_least(each.lower)), raised(at_most(each.promise)), each.terms.at,
            _percent(each.confidence), each.verdict,
        ]
        for each in intervals
    ]  # fmt: skip
    return figure(
        name=name, title=title, about=said, height=bottom + 38, marks=marks,
        columns=["Audit", "Found, ε ≥", "Promised, ε ≤", "At", "Confidence", "Verdict"], rows=rows,
    )  # fmt: skip


def _percent(share: float) -> str:
    """A confidence, rounded down."""
    return f"{math.floor(share * 1e4) / 100:g} %" if math.isfinite(share) else "unknown"


def curve(
    *,
    name: str,
    title: str,
    epsilon: float | None,
    delta: float,
    points: Sequence[Rates],
    is_violated: bool = False,
) -> Markup:
    """How well an attack told who was there, against the best that (ε, δ) allows any attack.

    With the promise, true positives are at most e^ε · false positives + δ, and the same holds of the complements
    (Wasserman and Zhou 2010, theorem 2.4; Kairouz, Oh and Viswanath 2015). Beyond it is shaded. A point is a measured
    rate, not a bound: what an audit proves allows for chance and is its lower bound.
    """
    side, bottom = WIDTH - _LEFT - 16, WIDTH - 12
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
        y = bottom + 44 + 16 * place
        marks += [
            line(x1=_LEFT, x2=_LEFT + 24, y1=y - 4, y2=y - 4, class_=kind, dashes=dashes),
            label(words, x=_LEFT + 30, y=y, class_="chart-quiet"),
        ]
    outside = sum(each.true_positive > _allowed(each.false_positive, at_most(epsilon), delta) for each in ordered)
    chance = (
        ", and so does the lower bound, which allows for chance"
        if is_violated
        else "; whether that is chance is told by the lower bound"
    )
    said = (
        "No points were kept of this audit."
        if not ordered
        else "Every measured point lies within what the promise allows."
        if not outside
        else f"{outside:,} of {len(ordered):,} measured points {'lies' if outside == 1 else 'lie'} beyond what the "
        f"promise allows{chance}."
    )
    rows = [[f"{each.false_positive:.4g}", f"{each.true_positive:.4g}"] for each in ordered]
    return figure(
        name=name, title=title, about=said, height=bottom + 82, marks=marks,
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
            f"{100 * value:g}", x=x, y=upward(0) + 14, class_="chart-quiet", anchor="middle" if value < 1 else "end"
        )
        if value:
            yield label(f"{100 * value:g}", x=_LEFT - 3, y=y + 4, class_="chart-quiet", anchor="end")
    yield label("% called present, of those who were", x=4.0, y=upward(1) - 8, class_="chart-quiet")
    yield label(
        "% called present, of those who were not",
        x=across(0) + side,
        y=upward(0) + 28,
        class_="chart-quiet",
        anchor="end",
    )
