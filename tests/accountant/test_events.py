"""Events are values with one wire form, and counts multiply in one place."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import FrozenInstanceError, fields
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accountant import event_from_json, event_to_json
from accountant.errors import InvalidDocument
from accountant.events import (
    KINDS,
    VERSION,
    ZCDP,
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
    counted,
    leaves,
)
from tests.accountant.strategies import events_of, known_kinds, trees

GAUSSIAN = {"kind": "gaussian", "noise_multiplier": 1.0}

#: What is promised to the outside, kind by kind. A change here breaks stored ledgers.
WIRE: list[tuple[dict[str, Any], Event]] = [
    (GAUSSIAN, Gaussian(noise_multiplier=1.0)),
    ({"kind": "laplace", "scale": 2.0}, Laplace(scale=2.0)),
    ({"kind": "l2_laplace", "scale": 0.5}, L2Laplace(scale=0.5)),
    ({"kind": "pure_dp", "epsilon": 0.3}, PureDP(epsilon=0.3)),
    ({"kind": "approx_dp", "epsilon": 0.3, "delta": 1e-7}, ApproxDP(epsilon=0.3, delta=1e-7)),
    ({"kind": "zcdp", "rho": 0.05}, ZCDP(rho=0.05)),
    ({"kind": "partition_selection", "epsilon": 0.1, "delta": 1e-6}, PartitionSelection(epsilon=0.1, delta=1e-6)),
    (
        {"kind": "poisson_sampled", "sampling_probability": 0.01, "event": GAUSSIAN},
        PoissonSampled(sampling_probability=0.01, event=Gaussian(noise_multiplier=1.0)),
    ),
    (
        {"kind": "repeated", "times": 1000, "event": GAUSSIAN},
        Repeated(times=1000, event=Gaussian(noise_multiplier=1.0)),
    ),
    (
        {"kind": "composed", "events": [GAUSSIAN, {"kind": "non_private"}]},
        Composed(events=(Gaussian(noise_multiplier=1.0), NonPrivate())),
    ),
    ({"kind": "composed", "events": []}, Composed(events=())),
    ({"kind": "non_private"}, NonPrivate()),
]


def test_the_table_of_kinds_is_the_documented_one() -> None:
    assert dict(KINDS) == {document["kind"]: type(event) for document, event in WIRE}


def test_every_kind_can_be_drawn() -> None:
    assert known_kinds() == set(KINDS)


@pytest.mark.parametrize(("document", "event"), WIRE, ids=lambda value: getattr(value, "get", lambda _: "")("kind"))
def test_the_wire_form_is_as_documented(document: dict[str, Any], event: Event) -> None:
    assert event_from_json(document) == event
    assert event_from_json({"version": 1, **document}) == event
    assert event_to_json(event) == {"version": 1, **document}
    assert list(event_to_json(event))[:2] == ["version", "kind"]


@given(trees())
def test_a_json_round_trip_changes_nothing(event: Event) -> None:
    document = event_to_json(event)
    text = json.dumps(document, allow_nan=False)
    assert event_from_json(document) == event
    assert event_from_json(text) == event
    assert event_from_json(text.encode()) == event
    assert event_to_json(event_from_json(text)) == document
    assert document["version"] == VERSION


@pytest.mark.parametrize("kind", KINDS)
def test_a_version_stands_at_the_root_only(kind: str) -> None:
    document, _ = next(pair for pair in WIRE if pair[0]["kind"] == kind)
    with pytest.raises(InvalidDocument) as caught:
        event_from_json({"kind": "composed", "events": [{"version": 1, **document}]})
    assert caught.value.argument == "events[0].version"


@pytest.mark.parametrize(
    ("document", "path", "words"),
    [
        ({"kind": "exponential"}, "kind", "one of gaussian, laplace"),
        ({"kind": "accountant.events.Gaussian"}, "kind", "one of gaussian, laplace"),
        ({"kind": ["gaussian"]}, "kind", "one of gaussian, laplace"),
        ({}, "kind", "one of gaussian, laplace"),
        ({"version": 2, **GAUSSIAN}, "version", "expected 1"),
        ({"version": 0, **GAUSSIAN}, "version", "expected 1"),
        ({"version": "1", **GAUSSIAN}, "version", "expected 1"),
        ({"version": True, **GAUSSIAN}, "version", "expected 1"),
        ({"version": None, **GAUSSIAN}, "version", "expected 1"),
        ({"kind": "gaussian"}, "noise_multiplier", "gaussian has noise_multiplier"),
        ({**GAUSSIAN, "sigma": 1.0}, "sigma", "gaussian has noise_multiplier"),
        ({"kind": "non_private", "epsilon": 1.0}, "epsilon", "non_private has no fields"),
        ({**GAUSSIAN, "shape": 1}, "shape", "no such field"),
        ({"kind": "repeated", "times": 3, "event": GAUSSIAN, "shape": {}}, "shape", "no such field"),
        ({"kind": "approx_dp", "epsilon": 1.0}, "delta", "approx_dp has epsilon, delta"),
        ({"kind": "repeated", "times": 3, "event": {}}, "event.kind", "one of gaussian, laplace"),
        ({"kind": "repeated", "times": 3, "event": [GAUSSIAN]}, "event", "an object with a kind"),
        ({"kind": "composed", "events": GAUSSIAN}, "events", "a list of events"),
        ({"kind": "composed", "events": "gaussian"}, "events", "a list of events"),
        (
            {"kind": "composed", "events": [GAUSSIAN, {"kind": "repeated", "times": 2, "event": {"kind": "zcdp"}}]},
            "events[1].event.rho",
            "zcdp has rho",
        ),
        (
            {"kind": "composed", "events": [GAUSSIAN, {"kind": "gaussian", "noise_multiplier": -1}]},
            "events[1].noise_multiplier",
            "> 0",
        ),
        ([GAUSSIAN], "event", "an object with a kind"),
        (None, "event", "an object with a kind"),
        ("null", "event", "an object with a kind"),
        ("{", "document", "a JSON object"),
        ("", "document", "a JSON object"),
        (b"\xff\xfe\xfa", "document", "a JSON object"),
    ],
)
def test_what_is_no_event_is_an_error_that_names_the_path(document: Any, path: str, words: str) -> None:
    with pytest.raises(InvalidDocument) as caught:
        event_from_json(document)
    assert caught.value.argument == path
    assert str(caught.value).startswith(f"{path}: expected ")
    assert words in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_every_kind_is_required_and_no_other_is_taken(kind: str) -> None:
    document = next(document for document, _ in WIRE if document["kind"] == kind)
    for name in set(document) - {"kind"}:
        with pytest.raises(InvalidDocument) as caught:
            event_from_json({field: value for field, value in document.items() if field != name})
        assert caught.value.argument == name
    with pytest.raises(InvalidDocument) as caught:
        event_from_json({**document, "surprise": 1})
    assert caught.value.argument == "surprise"


def naive_leaves(event: Event) -> list[Event]:
    """Every leaf as often as it runs, by running."""
    match event:
        case Repeated():
            return [leaf for _ in range(event.times) for leaf in naive_leaves(event.event)]
        case Composed():
            return [leaf for part in event.events for leaf in naive_leaves(part)]
    return [event]


small_trees = st.recursive(
    st.sampled_from((Gaussian(noise_multiplier=1.0), Gaussian(noise_multiplier=2), PureDP(epsilon=0.1), NonPrivate())),
    lambda inner: (
        st.builds(Repeated, times=st.integers(1, 4), event=inner)
        | st.builds(Composed, events=st.lists(inner, max_size=3).map(tuple))
    ),
    max_leaves=6,
)


@given(small_trees)
def test_counts_multiply_through_the_tree(event: Event) -> None:
    runs = Counter(naive_leaves(event))
    assert counted(event) == runs
    unfolded = Counter(dict.fromkeys(runs, 0))
    for leaf, times in leaves(event):
        unfolded[leaf] += times
    assert unfolded == runs
    assert event.shape.leaves == runs.total()


def test_nested_repetitions_multiply() -> None:
    step = Gaussian(noise_multiplier=1.0)
    nested = Repeated(times=3, event=Repeated(times=5, event=Composed(events=(step, Repeated(times=7, event=step)))))
    assert list(leaves(nested)) == [(step, 15), (step, 105)]
    assert counted(nested) == {step: 120}


def test_what_is_sampled_together_stays_one_leaf() -> None:
    sampled = PoissonSampled(sampling_probability=0.1, event=Repeated(times=5, event=Gaussian(noise_multiplier=1.0)))
    assert counted(Repeated(times=2, event=sampled)) == {sampled: 2}


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
def test_events_are_frozen_hashable_values(kind: str, data: st.DataObject) -> None:
    event = data.draw(events_of(kind))
    again = event_from_json(event_to_json(event))
    assert again == event
    assert hash(again) == hash(event)
    assert repr(again) == repr(event)
    for field in fields(event):
        with pytest.raises(FrozenInstanceError):
            setattr(event, field.name, 1)


def test_a_number_is_its_value_and_not_its_type() -> None:
    assert Gaussian(noise_multiplier=1) == Gaussian(noise_multiplier=1.0) == Gaussian(noise_multiplier=np.float64(1))
    assert len({Gaussian(noise_multiplier=1), Gaussian(noise_multiplier=1.0)}) == 1
    assert type(Gaussian(noise_multiplier=1).noise_multiplier) is float
    assert type(Repeated(times=cast(int, np.int64(3)), event=NonPrivate()).times) is int
    assert event_from_json('{"kind": "pure_dp", "epsilon": 1}') == PureDP(epsilon=1.0)


def test_kinds_with_equal_numbers_differ() -> None:
    assert len({Laplace(scale=1.0), L2Laplace(scale=1.0), Gaussian(noise_multiplier=1.0), PureDP(epsilon=1.0)}) == 4


def test_a_list_of_events_becomes_a_tuple() -> None:
    parts = [NonPrivate()]
    event = Composed(events=parts)  # type: ignore[arg-type]
    parts.clear()
    assert event == Composed(events=(NonPrivate(),))


def test_the_adjacencies_are_the_two_documented_ones() -> None:
    assert [adjacency_of(name) for name in ("add_remove", "replace_one")] == ["add_remove", "replace_one"]


def test_the_smallest_and_largest_numbers_survive_the_wire() -> None:
    for number in (5e-324, 0.1 + 0.2, math.nextafter(1.0, 0.0), 1.7976931348623157e308):
        event = Gaussian(noise_multiplier=number)
        assert event_from_json(json.dumps(event_to_json(event))) == event
