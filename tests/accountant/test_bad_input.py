"""Bad input is an error that names the argument and says what is expected; extreme input gets a sound answer.

Warnings are errors in all tests, and a hang ends in the time limit that every test has.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Final, get_args

import numpy as np
import pytest

from accountant import Filter, account, calibrate_noise_multiplier, calibrate_steps, event_from_json, event_to_json
from accountant.engines import ENGINES
from accountant.errors import AccountantError, InvalidDocument, InvalidInput
from accountant.events import (
    KINDS,
    MAX_DEPTH,
    MAX_NODES,
    MAX_TIMES,
    ZCDP,
    Adjacency,
    ApproxDP,
    Composed,
    Event,
    Gaussian,
    L2Laplace,
    Laplace,
    NonPrivate,
    PartitionSelection,
    PoissonSampled,
    PureDP,
    Repeated,
    adjacency_of,
)
from accountant.filters import Preset
from accountant.units import SATURATED
from tests.accountant.strategies import ADJACENCIES

HUGE: Final = 10**5000  # more digits than Python is willing to print
STEP: Final = Gaussian(noise_multiplier=1.0)

NOT_NUMBERS: Final[list[Any]] = ["1", "", b"1", None, True, False, [1.0], {}, 1j, object(), STEP, np.array([1.0, 2.0])]
NOT_FINITE: Final[list[Any]] = [math.nan, math.inf, -math.inf, HUGE, -HUGE, Fraction(HUGE), np.float64("nan")]

#: kind → field → what it must be in words, and numbers outside of that.
FIELDS: Final[dict[str, dict[str, tuple[str, list[Any]]]]] = {
    "gaussian": {"noise_multiplier": ("a finite number > 0", [0, 0.0, -0.0, -1, -5e-324])},
    "laplace": {"scale": ("a finite number > 0", [0, -1])},
    "l2_laplace": {"scale": ("a finite number > 0", [0, -1])},
    "pure_dp": {"epsilon": ("a finite number >= 0", [-1, -5e-324])},
    "approx_dp": {
        "epsilon": ("a finite number >= 0", [-1]),
        "delta": ("a number in [0, 1)", [1, 1.0, 2, -1e-9]),
    },
    "zcdp": {"rho": ("a finite number >= 0", [-1])},
    "partition_selection": {
        "epsilon": ("a finite number > 0", [0, -1]),
        "delta": ("a number in (0, 1)", [0, 1, 1.5, -1e-9]),
    },
    "poisson_sampled": {
        "sampling_probability": ("a number in [0, 1]", [-5e-324, -1, math.nextafter(1, 2), 1.5]),
    },
    "repeated": {"times": ("a whole number from 1 to", [0, -1, 1.0, 1.5, 10**30, -(10**30), MAX_TIMES + 1, 1e3])},
}
GOOD: Final[dict[str, Any]] = {
    "noise_multiplier": 1.0,
    "scale": 1.0,
    "epsilon": 1.0,
    "delta": 1e-6,
    "rho": 0.5,
    "sampling_probability": 0.5,
    "times": 3,
    "event": STEP,
}


def arguments_of(kind: str) -> dict[str, Any]:
    names = [*FIELDS[kind], *(["event"] if kind in {"poisson_sampled", "repeated"} else [])]
    return {name: GOOD[name] for name in names}


def assert_names(caught: pytest.ExceptionInfo[InvalidInput], argument: str, words: str) -> None:
    assert caught.value.argument == argument
    assert words in caught.value.expected
    message = str(caught.value)
    assert message.startswith(f"{argument}: expected {caught.value.expected}, got ")
    assert len(message) < 600, "a message repeats the value, but never at a length that the value chooses"
    assert isinstance(caught.value, ValueError | AccountantError)


CASES = [(kind, name, words) for kind, names in FIELDS.items() for name, (words, _) in names.items()]


def test_every_field_of_every_kind_is_tried() -> None:
    assert set(FIELDS) == set(KINDS) - {"composed", "non_private"}


@pytest.mark.parametrize(("kind", "name", "words"), CASES)
def test_a_bad_number_names_its_argument(kind: str, name: str, words: str) -> None:
    for bad in [*NOT_NUMBERS, *NOT_FINITE, *FIELDS[kind][name][1]]:
        with pytest.raises(InvalidInput) as caught:
            KINDS[kind](**{**arguments_of(kind), name: bad})
        assert_names(caught, name, words)


@pytest.mark.parametrize(("kind", "name", "words"), CASES)
def test_a_bad_number_in_a_document_names_its_path(kind: str, name: str, words: str) -> None:
    document = {"kind": kind, **arguments_of(kind)}
    if "event" in document:
        document["event"] = {"kind": "gaussian", "noise_multiplier": 1.0}
    for bad in [*NOT_NUMBERS, *NOT_FINITE, *FIELDS[kind][name][1]]:
        with pytest.raises(InvalidDocument) as caught:
            event_from_json({"kind": "composed", "events": [{"kind": "non_private"}, {**document, name: bad}]})
        assert_names(caught, f"events[1].{name}", words)


@pytest.mark.parametrize("bad", ["1e999", "-1e999", "NaN", "Infinity", "-Infinity", "1" + "0" * 400])
def test_json_text_of_no_finite_number_names_the_field(bad: str) -> None:
    with pytest.raises(InvalidDocument) as caught:
        event_from_json('{"kind": "laplace", "scale": ' + bad + "}")
    assert_names(caught, "scale", "a finite number > 0")


NOT_EVENTS: Final[list[Any]] = [
    None,
    "gaussian",
    3,
    HUGE,
    {"kind": "gaussian", "noise_multiplier": 1.0},
    [STEP],
    Gaussian,
    object(),
    [HUGE],
    {HUGE: HUGE},
]


@pytest.mark.parametrize(
    "use",
    [
        lambda bad: PoissonSampled(sampling_probability=0.5, event=bad),
        lambda bad: Repeated(times=2, event=bad),
        lambda bad: Composed(events=(STEP, bad)),
        event_to_json,
        lambda bad: account(bad, delta=1e-6),
        lambda bad: Filter.of(epsilon=1.0, delta=1e-6).price(bad, "add_remove"),
    ],
    ids=["sampled", "repeated", "composed", "to_json", "account", "price"],
)
def test_what_is_no_event_is_refused_wherever_an_event_is_asked_for(use: Callable[[Any], object]) -> None:
    for bad in NOT_EVENTS:
        with pytest.raises(InvalidInput) as caught:
            use(bad)
        assert_names(caught, "event", "an event")


@pytest.mark.parametrize(
    "bad",
    [None, STEP, "gaussian", 3, {STEP}, {"a": STEP}, (STEP for _ in range(3))],
    ids=lambda bad: type(bad).__name__,
)
def test_a_composition_takes_a_list(bad: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        Composed(events=bad)
    assert_names(caught, "events", "a list of events")


@pytest.mark.parametrize("bad", [0, 1, 1.5, -1e-9, math.nan, math.inf, "1e-6", None, True])
def test_the_delta_of_an_account_lies_between_zero_and_one(bad: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        account(STEP, delta=bad)
    assert_names(caught, "delta", "a number in (0, 1)")


@pytest.mark.parametrize(
    "bad", ["", "ADD_REMOVE", "add-remove", None, 1, True, ["add_remove"], pytest.param(HUGE, id="huge")]
)
def test_an_adjacency_is_one_of_two(bad: Any) -> None:
    budget = Filter.of(epsilon=1.0, delta=1e-6)
    for use in (
        adjacency_of,
        lambda value: account(STEP, delta=1e-6, adjacency=value),
        lambda value: budget.price(STEP, value),
    ):
        with pytest.raises(InvalidInput) as caught:
            use(bad)
        assert_names(caught, "adjacency", "'add_remove' or 'replace_one'")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"delta": 0}, "delta"),
        ({"delta": 1}, "delta"),
        ({"delta": math.nan}, "delta"),
        ({"sampling_probability": 0}, "sampling_probability"),
        ({"sampling_probability": 1.1}, "sampling_probability"),
        ({"sampling_probability": math.nan}, "sampling_probability"),
        ({"adjacency": "both"}, "adjacency"),
    ],
)
def test_calibration_names_what_is_wrong(arguments: dict[str, Any], name: str) -> None:
    good: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "sampling_probability": 0.1}
    with pytest.raises(InvalidInput) as caught:
        calibrate_noise_multiplier(**{**good, **arguments})
    assert caught.value.argument == name
    with pytest.raises(InvalidInput) as caught:
        calibrate_steps(**{**good, **arguments, "noise_multiplier": 1.0})
    assert caught.value.argument == name


@pytest.mark.parametrize("bad", [0, -1, 1.5, MAX_TIMES + 1, 10**30, None, "10", True])
def test_calibration_takes_a_number_of_steps(bad: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        calibrate_noise_multiplier(epsilon=1.0, delta=1e-6, steps=bad)
    assert_names(caught, "steps", "a whole number from 1 to")


# ---------------------------------------------------------------- size


def test_nested_repetitions_have_a_limit_together() -> None:
    million = Repeated(times=10**6, event=STEP)
    assert Repeated(times=10**6, event=million).shape.leaves == MAX_TIMES
    with pytest.raises(InvalidInput) as caught:
        Repeated(times=10**6 + 1, event=million)
    assert_names(caught, "times", f"at most {MAX_TIMES}")
    with pytest.raises(InvalidInput) as caught:
        Composed(events=(Repeated(times=10**6, event=million), STEP))
    assert_names(caught, "times", f"at most {MAX_TIMES}")


def nested(levels: int) -> dict[str, Any]:
    document: dict[str, Any] = {"kind": "non_private"}
    for level in range(levels - 1):
        if level % 2:
            document = {"kind": "composed", "events": [document]}
        else:
            document = {"kind": "repeated", "times": 1, "event": document}
    return document


def test_the_deepest_tree_works_everywhere() -> None:
    event = event_from_json(nested(MAX_DEPTH))
    assert event_from_json(json.dumps(event_to_json(event))) == event
    assert hash(event)
    assert repr(event)
    assert account(event, delta=0.1).upper == math.inf


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 10_000])
def test_a_deep_document_is_refused(levels: int) -> None:
    with pytest.raises(InvalidDocument) as caught:
        event_from_json(nested(levels))
    assert f"at most {MAX_DEPTH} levels" in str(caught.value)
    assert caught.value.argument.startswith(("event.", "events[0]."))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda event: Repeated(times=1, event=event),
        lambda event: Composed(events=(event,)),
        lambda event: PoissonSampled(sampling_probability=0.9, event=event),
        lambda event: PoissonSampled(sampling_probability=0.0, event=event),
    ],
    ids=["repeated", "composed", "sampled", "never_sampled"],
)
def test_a_tree_that_grows_too_deep_is_refused_where_it_does(wrap: Callable[[Event], Event]) -> None:
    event: Event = STEP
    for _ in range(MAX_DEPTH - 1):
        event = wrap(event)
    for adjacency in ADJACENCIES:  # in a time that does not double with every level
        assert account(event, delta=1e-6, adjacency=adjacency).upper < math.inf
    with pytest.raises(InvalidInput) as caught:
        wrap(event)
    assert_names(caught, "depth of the event", f"at most {MAX_DEPTH}")


@pytest.mark.parametrize("opening", ["[", '{"kind":"composed","events":[', '{"a":'])
def test_text_nested_too_deep_is_refused(opening: str) -> None:
    for text in (opening * 10**5, opening * 10**5 + "]" * 10**5):
        with pytest.raises(InvalidDocument) as caught:
            event_from_json(text)
        assert_names(caught, "document", "a JSON object")


def test_lists_nested_too_deep_are_refused() -> None:
    deep: list[Any] = []
    for _ in range(10**5):
        deep = [deep]
    for document in (deep, {"kind": "composed", "events": deep}, {"kind": deep}, {"kind": "zcdp", "rho": deep}):
        with pytest.raises(InvalidDocument) as caught:
            event_from_json(document)  # type: ignore[arg-type]
        assert len(str(caught.value)) < 600
    with pytest.raises(InvalidInput) as refused:
        PureDP(epsilon=deep)  # type: ignore[arg-type]
    assert_names(refused, "epsilon", "a finite number >= 0")


def test_a_million_events_are_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        Composed(events=(STEP,) * 10**6)
    assert_names(caught, "number of nested events", f"at most {MAX_NODES}")
    document = {"kind": "composed", "events": [{"kind": "non_private"}] * 10**6}
    for form in (document, json.dumps(document)):
        with pytest.raises(InvalidDocument, match=f"at most {MAX_NODES}"):
            event_from_json(form)


def test_shared_parts_count_as_often_as_they_stand_in_the_tree() -> None:
    """A tree of a few objects may unfold to 2^30 events."""
    event: Event = STEP
    while 2 * event.shape.nodes < MAX_NODES:
        event = Composed(events=(event, event))
    with pytest.raises(InvalidInput) as caught:
        Composed(events=(event, event))
    assert_names(caught, "number of nested events", f"at most {MAX_NODES}")
    document: dict[str, Any] = {"kind": "non_private"}
    for _ in range(30):
        document = {"kind": "composed", "events": [document, document]}
    with pytest.raises(InvalidDocument, match=f"at most {MAX_NODES}"):
        event_from_json(document)


def test_the_largest_composition_is_accounted_for() -> None:
    parts = [Gaussian(noise_multiplier=100 + place) for place in range(MAX_NODES - 1)]
    event = Composed(events=tuple(parts))
    assert 0 < account(event, delta=1e-6).upper < math.inf
    cost = Filter.of(epsilon=1.0, delta=1e-6).price(event, "add_remove")
    # Σ α/(2σ²) over σ = 100 … is a difference of trigamma functions, close to α/2 (1/99.5 − 1/(n + 99.5)).
    assert cost.rho[1] / 1e12 == pytest.approx(1 / 99.5 - 1 / (MAX_NODES + 98.5), rel=1e-4)


@pytest.mark.parametrize(
    "text",
    [
        " " * 10**7,
        '"' + "x" * 10**7 + '"',
        '{"kind": "' + "x" * 10**7 + '"}',
        '{"kind": "zcdp", "rho": "' + "x" * 10**7 + '"}',
        '{"kind": "zcdp", "rho": 1' + "0" * 10**6 + "}",
        '{"kind": "zcdp", "rho": 0.' + "0" * 10**6 + "1, " + '"x": 1}',
        '{"version": ' + "9" * 4000 + ', "kind": "non_private"}',
        '{"kind": "non_private", "' + "x" * 10**7 + '": 1}',
        b"\x00" * 10**6,
    ],
    ids=["blanks", "string", "kind", "value", "digits", "decimals", "version", "field", "zeros"],
)
def test_huge_text_is_refused_in_a_short_sentence(text: str | bytes) -> None:
    with pytest.raises(InvalidDocument) as caught:
        event_from_json(text)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "document",
    [
        {"kind": "repeated", "times": HUGE, "event": {"kind": "non_private"}},
        {"kind": "repeated", "times": [HUGE], "event": {"kind": "non_private"}},
        {"kind": HUGE},
        {"kind": [HUGE]},
        {"kind": "composed", "events": {"x": HUGE}},
        {"kind": "composed", "events": [HUGE]},
        {"kind": "non_private", HUGE: 1},
        {"version": HUGE, "kind": "non_private"},
        {"version": [HUGE], "kind": "non_private"},
        [HUGE],
        HUGE,
    ],
    ids=lambda document: type(document).__name__,
)
def test_integers_that_python_does_not_print_are_refused(document: Any) -> None:
    with pytest.raises(InvalidDocument) as caught:
        event_from_json(document)
    assert len(str(caught.value)) < 600


# ---------------------------------------------------------------- extreme, but valid

NUMBERS: Final = (5e-324, 1e-320, 1e-300, 1e-160, 1e-20, 1e-6, 1e-3, 1.0, 1e3, 3e6, 1e20, 1e160, 1e300, 1.7e308)
ONE: Final = math.nextafter(1.0, 0.0)
BUDGETS: Final = {preset: Filter.of(epsilon=3.0, delta=1e-6, preset=preset) for preset in get_args(Preset)}

EXTREME_LEAVES: Final[dict[str, list[Event]]] = {
    "gaussian": [Gaussian(noise_multiplier=number) for number in NUMBERS],
    "laplace": [Laplace(scale=number) for number in NUMBERS],
    "l2_laplace": [L2Laplace(scale=number) for number in NUMBERS],
    "pure_dp": [PureDP(epsilon=number) for number in (0.0, *NUMBERS)],
    "approx_dp": [
        ApproxDP(epsilon=number, delta=delta) for number in (0.0, *NUMBERS) for delta in (0.0, 5e-324, 1e-9, ONE)
    ],
    "zcdp": [ZCDP(rho=number) for number in (0.0, *NUMBERS)],
    "partition_selection": [
        PartitionSelection(epsilon=number, delta=delta) for number in NUMBERS for delta in (5e-324, 1e-9, ONE)
    ],
    "non_private": [NonPrivate()],
}


def around(leaf: Event) -> list[Event]:
    """The leaf, often and seldom."""
    sampled = [
        PoissonSampled(sampling_probability=q, event=leaf) for q in (0.0, 5e-324, 1e-320, 1e-100, 1e-6, 0.5, ONE, 1.0)
    ]
    return [
        leaf,
        *sampled,
        *(Repeated(times=MAX_TIMES, event=part) for part in (leaf, sampled[2], sampled[5])),
        Repeated(times=10_000, event=leaf),
        PoissonSampled(sampling_probability=1e-6, event=Repeated(times=MAX_TIMES, event=leaf)),
        PoissonSampled(sampling_probability=1e-320, event=sampled[2]),
        Composed(events=(leaf, STEP, PureDP(epsilon=0.5))),
    ]


@pytest.mark.full
@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("kind", EXTREME_LEAVES)
def test_extreme_events_have_sound_bounds_and_prices(kind: str, adjacency: Adjacency) -> None:
    wrong: list[str] = []
    for leaf in EXTREME_LEAVES[kind]:
        for event in around(leaf):
            try:
                check_bounds_and_prices(event, adjacency)
            except (ArithmeticError, ValueError, Warning, AssertionError) as error:
                wrong.append(f"{event}: {type(error).__name__} {str(error).splitlines()[0] if str(error) else ''}")
    assert not wrong, f"{len(wrong)} wrong, such as\n" + "\n".join(wrong[:20])


def check_bounds_and_prices(event: Event, adjacency: Adjacency) -> None:
    for delta in (5e-324, 1e-6, ONE):
        answers = [engine(event, delta, adjacency) for engine in ENGINES.values()]
        for lower, upper, _ in answers:
            assert 0 <= lower <= upper, delta  # false for NaN
        assert max(answer.lower for answer in answers) <= min(answer.upper for answer in answers), delta
    for budget in BUDGETS.values():
        cost = budget.price(event, adjacency)
        assert all(0 <= units <= SATURATED for units in (*cost.rho, cost.delta))


def test_every_leaf_kind_is_tried_at_its_extremes() -> None:
    assert set(EXTREME_LEAVES) == set(KINDS) - {"poisson_sampled", "repeated", "composed"}


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize(
    "event",
    [
        *(Gaussian(noise_multiplier=noise) for noise in (1e12, 1e200)),
        *(Laplace(scale=scale) for scale in (1e12, 1e200)),
        *(PureDP(epsilon=epsilon) for epsilon in (1e-12, 1e-200)),
        ZCDP(rho=5e-324),
        *(PoissonSampled(sampling_probability=q, event=STEP) for q in (1e-12, 1e-200)),
    ],
    ids=repr,
)
def test_what_is_not_free_has_a_price(event: Event, adjacency: Adjacency) -> None:
    """Rounding up gives at least one unit at every order, however small the loss."""
    for budget in BUDGETS.values():
        assert all(units >= 1 for units in budget.price(event, adjacency).rho)


@pytest.mark.parametrize("preset", get_args(Preset))
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_no_budget_admits_what_has_no_guarantee(preset: Preset, adjacency: Adjacency) -> None:
    budget = Filter.of(epsilon=1000.0, delta=0.5, preset=preset)
    for event in (NonPrivate(), Gaussian(noise_multiplier=1e-300), PureDP(epsilon=1e308), Laplace(scale=1e-320)):
        assert not budget.admits(budget.price(Composed(events=(STEP, event)), adjacency))
