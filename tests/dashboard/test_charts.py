"""Charts are well-formed, say what they show, stay inside their drawing and keep the order of values."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accountant.audit.verdicts import Verdict
from service.dashboard import charts, populations
from service.dashboard.charts import Bin, Foreseen, Interval, Meter, Rates, Reading, Terms
from service.dashboard.drawing import LETTER, apart, day, fitting, tag, ticks, time_ticks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from markupsafe import Markup

START = datetime(2026, 1, 5, tzinfo=UTC)
TERMS = Terms(delta=1e-6, unit="user")
HOSTILE = '</text><script>alert(1)</script>" onload="x\' & \x00\u202etxet \ud800'
bounds = st.one_of(st.none(), st.floats(min_value=0, max_value=1e6), st.sampled_from([math.inf, math.nan]))
budgets = st.floats(min_value=1e-3, max_value=100)
times = st.integers(min_value=0, max_value=10**8).map(lambda seconds: START + timedelta(seconds=seconds))
names = st.one_of(st.text(max_size=300), st.just(HOSTILE))
readings = st.lists(st.builds(Reading, at=times, spent=bounds, held=bounds, budget=budgets), max_size=12)
verdicts: st.SearchStrategy[Verdict] = st.sampled_from(["consistent", "violation", "inconclusive"])
bins = st.lists(st.tuples(st.floats(0, 10), st.floats(0, 3), st.integers(0, 10**9)), max_size=30).map(
    lambda found: [Bin(lower=lower, upper=lower + width, count=count) for lower, width, count in found]
)
meters = st.lists(
    st.builds(Meter, label=names, spent=bounds, held=bounds, available=bounds, budget=budgets, link=st.just("/x")),
    max_size=20,
)
intervals = st.lists(
    st.builds(
        Interval,
        label=names,
        lower=bounds,
        promise=bounds,
        terms=st.sampled_from([TERMS, Terms(delta=0.0, unit="record")]),
        confidence=st.floats(0, 1),
        verdict=verdicts,
    ),
    max_size=20,
)
rates = st.lists(st.builds(Rates, false_positive=st.floats(0, 1), true_positive=st.floats(0, 1)), max_size=20)


def parsed(made: Markup) -> ET.Element:
    return ET.fromstring(str(made))


def svg(made: Markup) -> ET.Element:
    found = parsed(made).find("svg")
    assert found is not None
    return found


def caption(made: Markup) -> str:
    """What the caption says below its title."""
    found = parsed(made).find("figcaption/span")
    assert found is not None
    return "".join(found.itertext())


def rows(made: Markup) -> list[list[str]]:
    return [["".join(cell.itertext()) for cell in row] for row in parsed(made).iter("tr")][1:]


def places(drawing: ET.Element) -> Iterator[tuple[float, float]]:
    """Every point of every mark."""
    for mark in drawing.iter():
        at = {name: float(value) for name, value in mark.attrib.items() if re.fullmatch(r"-?[\d.]+", value)}
        match mark.tag:
            case "line":
                yield at["x1"], at["y1"]
                yield at["x2"], at["y2"]
            case "rect":
                assert at["width"] >= 0
                assert at["height"] >= 0
                yield at["x"], at["y"]
                yield at["x"] + at["width"], at["y"] + at["height"]
            case "circle":
                yield at["cx"], at["cy"]
            case "text":
                yield at["x"], at["y"]
            case "path" if "M0 0 L0 5" not in mark.attrib["d"]:
                yield from ((float(x), float(y)) for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", mark.attrib["d"]))


def is_sound(made: Markup) -> None:
    """What holds of every chart, whatever it shows."""
    whole, drawing = parsed(made), svg(made)
    assert whole.tag == "figure"
    wide, tall = map(float, drawing.attrib["viewBox"].split()[2:])
    for x, y in places(drawing):
        assert -0.02 <= x <= wide + 0.02
        assert -0.02 <= y <= tall + 0.02
    assert drawing.attrib["role"] == "img"
    by_id = {each.attrib["id"]: each for each in whole.iter() if "id" in each.attrib}
    named = [by_id[each] for each in drawing.attrib["aria-labelledby"].split()]
    assert [each.tag for each in named] == ["title", "desc"]
    assert all((each.text or "").strip() for each in named)
    everything = list(whole.iter())
    assert not any("style" in each.attrib for each in everything)
    assert {each.tag for each in everything} <= {
        "figure", "figcaption", "strong", "span", "svg", "title", "desc", "defs", "pattern", "path", "line", "rect",
        "circle", "text", "details", "summary", "div", "table", "caption", "thead", "tbody", "tr", "th", "td", "a",
    }  # fmt: skip
    assert not any(name.startswith("on") for each in everything for name in each.attrib)
    assert "nan" not in re.sub(r"<(title|desc|text|td|th|a|caption|span)\b.*?</\1>", "", str(made).lower())
    str(made).encode()


ALL = {
    "step": lambda name: charts.step_chart(name="c", title=name, terms=TERMS, readings=[], until=START),
    "forecast": lambda name: charts.forecast_chart(
        name="c",
        title=name,
        terms=TERMS,
        readings=[Reading(at=START, spent=1.0, held=0.1, budget=2.0)],
        now=START,
        ahead=[Foreseen(at=START + timedelta(days=2), standing=1.6)],
        refused=Foreseen(at=START + timedelta(days=3), standing=2.1),
        what=name,
    ),
    "histogram": lambda name: charts.histogram(name="c", title=name, terms=TERMS, bins=[], budget=1.0),
    "bars": lambda name: charts.bars(
        name="c",
        title=name,
        terms=TERMS,
        meters=[Meter(label=name, spent=0.5, held=0.1, available=0.3, budget=1.0, link="/a?b=<")],
    ),
    "interval": lambda name: charts.interval_chart(
        name="c",
        title=name,
        intervals=[Interval(label=name, lower=0.5, promise=1.0, terms=TERMS, confidence=0.97, verdict="consistent")],
    ),
    "curve": lambda name: charts.curve(name="c", title=name, epsilon=1.0, delta=1e-5, points=[]),
}


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("name", [HOSTILE, "n" * 5_000, "", "ε ≤ 3", "عربي \u202e x"], ids=range(5))
def test_names_are_words_and_nothing_else(kind: str, name: str) -> None:
    made = ALL[kind](name or "–")
    is_sound(made)
    assert "<script" not in made
    assert "\u202e" not in made


@pytest.mark.parametrize("kind", ALL)
def test_ids_are_told_apart_by_the_name_of_the_chart(kind: str) -> None:
    made = parsed(ALL[kind]("x"))
    assert all(re.fullmatch("c(-.*)?", each.attrib["id"]) for each in made.iter() if "id" in each.attrib)


@pytest.mark.parametrize("name", ["", "A", "1a", 'a"', "a b", "a#"])
def test_a_chart_has_a_name_that_can_be_an_id(name: str) -> None:
    with pytest.raises(ValueError, match="name of a chart"):
        charts.histogram(name=name, title="t", terms=TERMS, bins=[], budget=1.0)


@pytest.mark.parametrize("link", ["https://elsewhere", "//elsewhere", "javascript:alert(1)", ""])
def test_links_stay_in_the_service(link: str) -> None:
    with pytest.raises(ValueError, match="leads out"):
        charts.bars(
            name="c",
            title="t",
            terms=TERMS,
            meters=[Meter(label="a", spent=0, held=0, available=1, budget=1, link=link)],
        )


# ---------------------------------------------------------------- laws


@given(found=readings, until=times)
def test_step_charts_hold_whatever_is_read(found: list[Reading], until: datetime) -> None:
    made = charts.step_chart(name="c", title="t", terms=TERMS, readings=found, until=until)
    is_sound(made)
    assert len(rows(made)) == len(found)


@given(
    found=readings, now=times, ahead=st.lists(st.builds(Foreseen, at=times, standing=bounds), max_size=5),
    refused=st.builds(Foreseen, at=times, standing=bounds),
)  # fmt: skip
def test_forecasts_hold_whatever_is_read(
    found: list[Reading], now: datetime, ahead: list[Foreseen], refused: Foreseen
) -> None:
    made = charts.forecast_chart(
        name="c", title="t", terms=TERMS, readings=found, now=now, ahead=ahead, refused=refused, what=HOSTILE
    )
    is_sound(made)
    latest = max([now, *(each.at for each in found)])
    coming = sum(each.at > latest for each in ahead)
    assert len(rows(made)) == (len(found) + coming + 1 if found else 0)


def test_no_number_of_a_life_that_is_not_proved_is_written_as_a_bound() -> None:
    read = [Reading(at=START, spent=1.0, held=0.1, budget=2.0)]
    for terms, is_bound in ((TERMS, True), (replace(TERMS, proof_status="claimed"), False)):
        for made in (
            charts.step_chart(name="c", title="t", terms=terms, readings=read, until=START),
            charts.forecast_chart(
                name="c", title="t", terms=terms, readings=read, now=START, ahead=[], what="x",
                refused=Foreseen(at=START + timedelta(days=1), standing=3.0),
            ),
            charts.histogram(name="c", title="t", terms=terms, bins=[Bin(lower=0.0, upper=1.0, count=3)], budget=1.0),
            charts.bars(
                name="c", title="t", terms=terms,
                meters=[Meter(label="a", spent=0.1, held=0.1, available=0.7, budget=1.0)],
            ),
        ):  # fmt: skip
            heads = " ".join(each.text or "" for each in parsed(made).iter("th"))
            assert ("ε ≤" in heads) == is_bound
            assert ("at most" in heads) <= is_bound
            assert ("ε =" in heads) != is_bound


def test_a_forecast_climbs_in_steps_to_the_refusal_and_says_which_it_is() -> None:
    read = [Reading(at=START - timedelta(days=each), spent=1 - each / 10, held=0.0, budget=2.0) for each in (4, 2, 0)]
    ahead = [Foreseen(at=START + timedelta(days=each), standing=1 + each / 10) for each in (2, 4, 6, 8)]
    made = charts.forecast_chart(
        name="c", title="t", terms=TERMS, readings=read, now=START, ahead=ahead, what="dp-sgd on spring, number 5,",
        refused=Foreseen(at=START + timedelta(days=10), standing=2.1),
    )  # fmt: skip
    about = caption(made)
    assert "dp-sgd on spring, number 5, is refused on 15 Jan 2026: it would bring them to 2.1." in about
    assert "ε ≤ 1 is spent and held of a budget of 2 (δ = 1e-06, per user, upper bound)" in about
    assert "no bound" in about
    line = next(each for each in svg(made).iter("path") if each.attrib["class"] == "chart-forecast")
    heights = [float(y) for _, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", line.attrib["d"])]
    assert heights == sorted(heights, reverse=True)
    assert len(set(heights)) == 5  # from where it stands, and four steps
    assert rows(made)[-1] == ["2026-01-15 00:00:00, refused", "2.1", "2"]


NUMBERS = {0.675: "0.675", 0.0012345: "0.00124", 1234.5: "1.24e+03"}


@pytest.mark.parametrize("value", NUMBERS)
def test_no_number_is_cut(value: float) -> None:
    """However narrow it is where it stands."""
    read = [Reading(at=START, spent=value, held=value, budget=value * 2)]
    drawn = [
        charts.step_chart(name="c", title="t", terms=TERMS, readings=read, until=START),
        charts.forecast_chart(
            name="c", title="t", terms=TERMS, readings=read, now=START, ahead=[], what="x",
            refused=Foreseen(at=START + timedelta(days=1), standing=3 * value),
        ),
        charts.bars(
            name="c", title="t", terms=TERMS,
            meters=[Meter(label="x" * 90, spent=value, held=value, available=value, budget=value)],
        ),
    ]  # fmt: skip
    for each in drawn:
        written = [text.text or "" for text in svg(each).iter("text") if "x" not in (text.text or "")]
        assert not any("…" in words for words in written), written
    assert any(NUMBERS[value] in (text.text or "") for text in svg(drawn[0]).iter("text"))


def test_charts_say_on_which_terms_their_numbers_hold() -> None:
    read = [Reading(at=START, spent=1.0, held=0.1, budget=2.0)]
    for made in (
        charts.step_chart(name="c", title="t", terms=TERMS, readings=read, until=START),
        charts.histogram(name="c", title="t", terms=TERMS, bins=[Bin(lower=0, upper=1, count=3)], budget=2.0),
        charts.bars(
            name="c", title="t", terms=TERMS, meters=[Meter(label="a", spent=0, held=0, available=1, budget=1)]
        ),
    ):
        assert "δ = 1e-06, per user" in caption(made)


def test_windows_stay_in_their_order_and_equal_tasks_in_that_in_which_they_came() -> None:
    found = [
        Meter(label=label, spent=0.5, held=0.0, available=0.5 if label != "9 to 10" else 0.1, budget=1.0)
        for label in ("0 to 8", "9 to 10", "100 to 200")
    ]
    given = charts.bars(name="c", title="t", terms=TERMS, meters=found, order="given")
    assert [row[0] for row in rows(given)] == ["0 to 8", "9 to 10", "100 to 200"]
    assert "Least is available in “9 to 10”" in given
    least = charts.bars(name="c", title="t", terms=TERMS, meters=found, order="least")
    assert [row[0] for row in rows(least)] == ["9 to 10", "0 to 8", "100 to 200"]


@given(found=bins, budget=budgets)
def test_histograms_hold_whatever_is_counted(found: list[Bin], budget: float) -> None:
    made = charts.histogram(name="c", title="t", terms=TERMS, bins=found, budget=budget)
    is_sound(made)
    assert len(rows(made)) == len(found)
    assert len(list(svg(made).iter("rect"))) == sum(each.count > 0 for each in found)


@given(found=meters)
def test_bars_hold_whatever_is_read(found: list[Meter]) -> None:
    made = charts.bars(name="c", title="t", terms=TERMS, meters=found)
    is_sound(made)
    assert len(rows(made)) == len(found)


@given(found=intervals)
def test_intervals_hold_whatever_was_found(found: list[Interval]) -> None:
    made = charts.interval_chart(name="c", title="t", intervals=found)
    is_sound(made)
    assert [row[-1] for row in rows(made)] == [each.verdict for each in found]


@given(found=rates, epsilon=bounds, delta=st.one_of(st.floats(0, 1), st.just(math.nan)))
def test_curves_hold_whatever_was_measured(found: list[Rates], epsilon: float | None, delta: float) -> None:
    made = charts.curve(name="c", title="t", epsilon=epsilon, delta=delta, points=found)
    is_sound(made)
    assert len(rows(made)) == len(found)


def spent_width(meter: Meter) -> float:
    return next(
        float(each.attrib["width"])
        for each in svg(charts.bars(name="c", title="t", terms=TERMS, meters=[meter])).iter("rect")
        if each.attrib["class"] in {"chart-spent", "chart-over"}
    )


@pytest.mark.parametrize(("held", "word"), [(0.5, "available 0"), (0.51, "over the budget")])
def test_a_bar_that_is_over_its_budget_says_so_in_colour_and_words(held: float, word: str) -> None:
    meter = Meter(label="a", spent=1.5, held=held, available=0.0, budget=2.0)
    drawn = svg(charts.bars(name="c", title="t", terms=TERMS, meters=[meter]))
    assert ("chart-over" in {each.get("class") for each in drawn.iter("rect")}) == (word == "over the budget")
    assert word in {each.text for each in drawn.iter("text")}


@given(spent=st.floats(0, 10), more=st.floats(0, 10), budget=budgets)
def test_more_spent_is_further_right(spent: float, more: float, budget: float) -> None:
    less, greater = (
        spent_width(Meter(label="a", spent=value, held=0.0, available=0.0, budget=budget))
        for value in (spent, spent + more)
    )
    assert less <= greater
    if spent < spent + more < budget and more > 0.01 * budget:
        assert less < greater


@given(spent=st.floats(0, 1), more=st.floats(0.02, 1))
def test_more_spent_is_higher(spent: float, more: float) -> None:
    def top(value: float) -> float:
        both = [Reading(at=START, spent=each, held=0.0, budget=3.0) for each in (value,)]
        made = svg(charts.step_chart(name="c", title="t", terms=TERMS, readings=both, until=START))
        area = next(each for each in made.iter("path") if each.attrib.get("class") == "chart-spent")
        return float(re.findall(r"M[\d.]+ ([\d.]+)", area.attrib["d"])[0])

    assert top(spent + more) < top(spent)


@given(few=st.integers(0, 10**6), more=st.integers(0, 10**6))
def test_a_fuller_bin_is_no_lower_and_somebody_is_always_seen(few: int, more: int) -> None:
    found = [Bin(lower=0, upper=1, count=few), Bin(lower=1, upper=2, count=few + more)]
    made = svg(charts.histogram(name="c", title="t", terms=TERMS, bins=found, budget=2.0))
    tall = [float(each.attrib["height"]) for each in made.iter("rect")]
    assert tall == sorted(tall)
    assert all(each >= 2 for each in tall)


@given(lower=st.floats(0, 10), promise=st.floats(0, 10), shift=st.floats(0.2, 5), verdict=verdicts)
def test_a_higher_bound_is_further_right(lower: float, promise: float, shift: float, verdict: Verdict) -> None:
    found = [
        Interval(label="a", lower=value, promise=promise, terms=TERMS, confidence=0.95, verdict=verdict)
        for value in (lower, lower + shift)
    ]
    made = svg(charts.interval_chart(name="c", title="t", intervals=found))
    left, right = (float(each.attrib["cx"]) for each in made.iter("circle"))
    assert left < right


@given(epsilon=st.floats(0, 20), delta=st.floats(0, 0.5), share=st.floats(0, 1))
def test_no_mechanism_that_keeps_its_promise_leaves_the_frontier(epsilon: float, delta: float, share: float) -> None:
    # Randomised response with a share of total failures is the worst (ε, δ) allows: its corner is on the frontier.
    told = delta + (1 - delta) / (1 + math.exp(-epsilon))
    wrong = (1 - delta) / (1 + math.exp(epsilon))
    limit = charts.frontier(epsilon=epsilon, delta=delta)
    assert limit[1].false_positive == pytest.approx(wrong, abs=1e-12)
    assert limit[1].true_positive == pytest.approx(told, abs=1e-12)
    inside = Rates(false_positive=share * wrong + (1 - share), true_positive=share * told + (1 - share))
    assert inside.true_positive <= charts._allowed(inside.false_positive, epsilon, delta) + 1e-9


# ---------------------------------------------------------------- what is written


def test_what_is_spent_is_rounded_up_and_what_is_found_down() -> None:
    made = charts.bars(
        name="c",
        title="t",
        terms=TERMS,
        meters=[Meter(label="a", spent=1.23401, held=None, available=0.99999, budget=2.5)],
    )
    assert rows(made) == [["a", "1.24", "∞", "0.999", "2.5"]]
    audit = Interval(label="a", lower=0.99999, promise=1.00001, terms=TERMS, confidence=0.969999, verdict="consistent")
    assert rows(charts.interval_chart(name="c", title="t", intervals=[audit])) == [
        ["a", "0.999", "1.01", "δ = 1e-06, per user", "96.99 %", "consistent"]
    ]


def test_more_than_a_lowered_budget_is_said_to_be_over_it() -> None:
    read = [Reading(at=START + timedelta(days=5 * n), spent=0.7, held=0.0, budget=b) for n, b in enumerate((1.0, 0.5))]
    said = [
        caption(charts.step_chart(name="c", title="t", terms=TERMS, readings=some, until=START))
        for some in (read, read[:1])
    ]
    assert f"What is spent is over the budget. The budget was lowered from 1 to 0.5 on {day(read[1].at)}." in said[0]
    assert "over the budget" not in said[1]


def test_audits_in_one_chart_have_their_attack_on_a_line_of_its_own() -> None:
    found = [
        Interval(
            label=f"dp-sgd: weights, audit {n}", lower=1, promise=2, terms=TERMS, confidence=0.9, verdict="consistent"
        )
        for n in (1, 2)
    ]
    written = [text.text for text in svg(charts.interval_chart(name="c", title="t", intervals=found)).iter("text")]
    assert [each for each in written if "dp-sgd" in (each or "")] == ["dp-sgd", "dp-sgd"]
    assert {"weights, audit 1", "weights, audit 2"} <= set(written)


@pytest.mark.parametrize(
    ("is_violated", "words"), [(True, "which allows for chance."), (False, "whether that is chance")]
)
def test_what_is_beyond_a_promise_is_left_to_chance_only_where_the_bound_is(is_violated: bool, words: str) -> None:  # noqa: FBT001
    made = charts.curve(
        name="c", title="t", epsilon=0.1, delta=0.0, points=[Rates(false_positive=0.1, true_positive=0.9)],
        is_violated=is_violated,
    )  # fmt: skip
    assert words in made


def test_what_is_not_known_is_not_available() -> None:
    unknown = Meter(label="a", spent=math.nan, held=0.0, available=math.nan, budget=2.5)
    assert rows(charts.bars(name="c", title="t", terms=TERMS, meters=[unknown])) == [["a", "∞", "0", "0", "2.5"]]


def test_a_violation_is_said_in_words() -> None:
    audit = Interval(label="a", lower=3.0, promise=1.0, terms=TERMS, confidence=0.97, verdict="violation")
    made = charts.interval_chart(name="c", title="t", intervals=[audit])
    assert "✗ violation" in made
    assert "It disproves its promise: more leaked than was promised." in made
    assert "Both at δ = 1e-06, per user." in made


def test_times_are_written_apart_from_each_other() -> None:
    for seconds in (3, 11, 17, 40, 59, 130, 3_700, 86_400, 40 * 86_400, 900 * 86_400):
        start = START + timedelta(hours=14, minutes=19, seconds=50)
        read = [Reading(at=start, spent=0.5, held=0.0, budget=1.0)]
        made = charts.step_chart(
            name="c", title="t", terms=TERMS, readings=read, until=start + timedelta(seconds=seconds)
        )
        under = [each for each in svg(made).iter("text") if float(each.attrib["y"]) == 186.0]
        assert under
        before = {"start": 0.0, "middle": 0.5, "end": 1.0}
        ends = []
        for each in under:
            size = len(each.text or "") * 6.9  # of digits of 12.5, beside each other
            left = float(each.attrib["x"]) - before[each.attrib["text-anchor"]] * size
            ends.append((left, left + size))
        assert all(later[0] - earlier[1] >= 6 for earlier, later in itertools.pairwise(ends)), (seconds, ends)


def test_what_is_held_is_outlined_only_where_something_is() -> None:
    held = (0.0, 0.2, 0.0, 0.3)
    read = [
        Reading(at=START + timedelta(days=place), spent=0.5, held=each, budget=1.0) for place, each in enumerate(held)
    ]

    def outlines(number: int) -> int:
        until = START + timedelta(days=9)
        made = charts.step_chart(name="c", title="t", terms=TERMS, readings=read[:number], until=until)
        assert ">held 0<" not in made
        return sum(
            each.attrib["class"] == "chart-held-line" and "M0 0" not in each.attrib["d"]
            for each in svg(made).iter("path")
        )

    assert [outlines(number) for number in (1, 2, 3, 4)] == [0, 1, 1, 2]


def test_a_histogram_tells_those_over_the_budget_and_the_real_maximum() -> None:
    said = {
        "budget": {"epsilon": 0.5},
        "histogram": [
            {"from": 0.0, "to": 0.25, "datapoints": 40},
            {"from": 0.25, "to": 0.5, "datapoints": 62},
        ],
    }
    found = populations.bins(said, over=60, most=0.8)
    assert [(each.lower, each.upper, each.count) for each in found] == [(0.0, 0.25, 40), (0.25, 0.5, 2), (0.5, 0.8, 60)]
    made = charts.histogram(name="c", title="t", terms=TERMS, bins=found, budget=0.5, most=0.8)
    assert "nobody has more than 0.8 " in made
    assert "60 are over the budget." in made
    assert sum(each.attrib["class"] == "chart-over" for each in svg(made).iter("rect")) == 1
    within = populations.bins(said, over=0, most=0.3)
    assert [each.count for each in within] == [40, 62]
    assert "nobody has more than 0.3 " in charts.histogram(
        name="c", title="t", terms=TERMS, bins=within, budget=0.5, most=0.3
    )


@pytest.mark.parametrize("most", [250.0, math.inf])
def test_those_over_the_budget_stand_beside_the_scale_and_are_no_spread(most: float) -> None:
    found = [Bin(lower=5.0 * place, upper=5.0 * place + 5, count=10) for place in range(20)]
    found.append(Bin(lower=100.0, upper=most, count=50))
    made = charts.histogram(name="c", title="t", terms=TERMS, bins=found, budget=100.0, most=most)
    *within, over = svg(made).iter("rect")
    assert over.attrib["class"] == "chart-over"
    assert float(over.attrib["width"]) == pytest.approx(float(within[-1].attrib["width"]), abs=0.02)
    assert float(over.attrib["x"]) > float(within[-1].attrib["x"]) + float(within[-1].attrib["width"]) + 4
    assert "over" in {each.text for each in svg(made).iter("text")}
    assert rows(made)[-2:] == [["95 to 100", "10"], [f"100 to {'250' if most == 250 else '∞'}", "50"]]
    # Whoever is not told how many they are sees one bar on both sides of the budget.
    both = [*found[:19], Bin(lower=95.0, upper=most, count=60)]
    *_, last = svg(charts.histogram(name="c", title="t", terms=TERMS, bins=both, budget=100.0)).iter("rect")
    assert last.attrib["class"] == "chart-spent"
    assert float(last.attrib["width"]) > float(over.attrib["width"])


@pytest.mark.parametrize("epsilon", [2.0, 0.1, 1.81, 1e-4, 1 / 3, 0.123456])
def test_bins_are_written_with_the_edges_that_they_share(epsilon: float) -> None:
    edges = [float(place * Fraction(str(epsilon)) / 20) for place in range(21)]
    found = [Bin(lower=lower, upper=upper, count=1) for lower, upper in itertools.pairwise(edges)]
    made = charts.histogram(name="c", title="t", terms=TERMS, bins=found, budget=epsilon)
    written = [row[0].split(" to ") for row in rows(made)]
    assert all(one[1] == other[0] for one, other in itertools.pairwise(written))
    assert all(float(lower) < float(upper) for lower, upper in written)
    assert float(written[-1][1]) == pytest.approx(epsilon, rel=1e-5)


@pytest.mark.parametrize("budget", [1e-4, 2.5e-5, 3.0, 1000.0])
def test_no_number_beside_a_scale_leaves_the_chart(budget: float) -> None:
    read = [Reading(at=START, spent=budget / 2, held=0.0, budget=budget)]
    for made in (
        charts.step_chart(name="c", title="t", terms=TERMS, readings=read, until=START),
        charts.forecast_chart(
            name="c", title="t", terms=TERMS, readings=read, now=START, ahead=[], what="x",
            refused=Foreseen(at=START + timedelta(days=1), standing=2 * budget),
        ),
        charts.histogram(
            name="c", title="t", terms=TERMS, bins=[Bin(lower=0, upper=budget, count=9_999)], budget=budget
        ),
    ):  # fmt: skip
        for each in svg(made).iter("text"):
            if each.get("text-anchor") == "end" and float(each.attrib["x"]) < 100:
                widths = {".": 4.0, "-": 4.5}  # in DejaVu Sans of 12.5, where a digit takes 8
                assert float(each.attrib["x"]) >= sum(widths.get(sign, 8.0) for sign in each.text or ""), each.text


def test_those_with_least_available_come_first_and_the_rest_is_in_the_table() -> None:
    found = [
        Meter(label=f"t{place}", spent=0.0, held=0.0, available=(place * 7 % 40) / 40, budget=1.0)
        for place in range(40)
    ]
    made = charts.bars(name="c", title="t", terms=TERMS, meters=found)
    told = [float(row[3]) for row in rows(made)]
    assert told == sorted(told)
    assert len(told) == 40
    assert len(list(svg(made).iter("rect"))) == 3 * charts.BARS_DRAWN
    assert "16 with least available of 40" in made


def test_thinned_readings_are_never_lower_than_what_was_true() -> None:
    found = [
        Reading(at=START + timedelta(hours=place), spent=abs(math.sin(place)), held=0.0, budget=3.0)
        for place in range(5_000)
    ]
    kept = charts.thinned(found)
    assert len(kept) == charts.READINGS_DRAWN
    assert kept[-1] == found[-1]
    place = -1
    for each in found:
        while place + 1 < len(kept) and kept[place + 1].at <= each.at:
            place += 1
        assert kept[place].standing >= each.standing
    assert "Of 5,000 readings" in charts.step_chart(name="c", title="t", terms=TERMS, readings=found, until=START)


# ---------------------------------------------------------------- what they are drawn with


@given(highest=st.floats(min_value=1e-9, max_value=1e12), most=st.integers(2, 9))
def test_ticks_are_few_round_and_within(highest: float, most: int) -> None:
    found = ticks(highest, most=most)
    assert found[0] == 0
    assert found[-1] <= highest * (1 + 1e-6)
    assert len(found) <= most


@given(start=times, seconds=st.integers(1, 3 * 10**9))
def test_times_are_few_in_order_and_within(start: datetime, seconds: int) -> None:
    stop = start + timedelta(seconds=seconds)
    found = [at for at, _ in time_ticks(start, stop, most=4)]
    assert found == sorted(set(found))
    assert len(found) <= 4
    assert all(start <= at <= stop for at in found)


@given(found=st.lists(st.floats(0, 200), max_size=6))
def test_labels_keep_apart_and_in_order(found: list[float]) -> None:
    moved = apart(found, gap=LETTER + 2, lowest=0, highest=200)
    assert all(-0.001 <= each <= 200.001 for each in moved)
    order = sorted(range(len(found)), key=lambda place: (found[place], moved[place]))
    spread = [moved[place] for place in order]
    assert all(later - earlier >= LETTER + 2 - 0.001 for earlier, later in itertools.pairwise(spread))


@given(words=st.text(max_size=100), width=st.floats(1, 400))
def test_what_does_not_fit_is_cut(words: str, width: float) -> None:
    assert len(fitting(words, width=width)) <= max(1, width / 6)


def test_elements_escape_attributes_and_words() -> None:
    assert tag("a", "<", title='"><x', href="/?a=1&b") == '<a title="&#34;&gt;&lt;x" href="/?a=1&amp;b">&lt;</a>'


def test_days_are_written_in_words() -> None:
    assert day(START) == "5 Jan 2026"
