"""Label spaces: total, record by record, fixed beforehand, and the same for real codes as by hand."""

from __future__ import annotations

import csv
import io
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accountant.errors import InvalidInput
from trainers.catalog.label_spaces import LABELS, MAX_LABELS
from trainers.catalog.parameters import read
from trainers.labels import _sorted, _tabled, distinct, label_space, space_of, texts
from trainers.noise import Noise
from trainers.ports import Run


def recipe(**given_: Any) -> dict[str, Any]:
    return read("recipe", LABELS, {"label_source": "prior", **given_})


def prior(names: list[str], **rules: Any) -> Any:
    return space_of(recipe(label_names=names, **rules), names=names)


@dataclass
class Told:
    """A release of labels."""

    facts: dict[str, Any]
    release: str = "r1"
    tensors: dict[str, Any] = field(default_factory=dict)


def test_whole_labels() -> None:
    space = prior(["cat", "dog", "7"], remap=[{"from": "puppy", "to": "dog"}, {"from": "cat", "to": ""}])
    assert space.indices(np.array(["dog", "puppy", "cat", "cow", "7", ""])).tolist() == [1, 1, -1, -1, 2, -1]
    assert space.indices(np.array([7, 8, -7])).tolist() == [2, -1, -1]
    assert space.indices(np.array([7], dtype=np.uint8)).tolist() == [2]
    assert space.indices(np.array(["dog", 7], dtype=object)).tolist() == [1, 2]
    assert prior(["a", "b"], otherwise="b").indices(np.array(["a", "x"])).tolist() == [0, 1]
    assert space.indices(np.empty(0, dtype=np.int64)).tolist() == []
    assert prior(["1", "0"]).indices(np.array([True, False])).tolist() == [0, 1]


def test_hierarchies() -> None:
    space = prior(["A", "AB", "C"], remap=[{"from": "ABX", "to": "C"}, {"from": "AZ", "to": ""}], remap_rule="prefix")
    labels = np.array(["A", "A1", "AB", "AB9", "ABX", "ABX1", "AZ", "AZ3", "C", "", "a"])
    assert space.indices(labels).tolist() == [0, 0, 1, 1, 2, 2, -1, -1, 2, -1, -1]
    assert [space.index(label) for label in labels.tolist()] == space.indices(labels).tolist()


_text = st.text(alphabet="ab1.", max_size=4)


@given(st.data())
def test_rules_are_total_and_see_one_record_at_a_time(data: st.DataObject) -> None:
    names = data.draw(st.lists(_text.filter(bool), min_size=1, max_size=6, unique=True))
    froms = data.draw(st.lists(_text.filter(bool), max_size=6, unique=True))
    remap = [{"from": each, "to": data.draw(st.sampled_from(["", *names]))} for each in froms]
    rule, otherwise = data.draw(st.sampled_from(["exact", "prefix"])), data.draw(st.sampled_from(["", *names]))
    space = prior(names, remap=remap, remap_rule=rule, otherwise=otherwise)
    labels = data.draw(st.lists(_text, max_size=20))
    found = space.indices(np.array(labels, dtype=np.str_)).tolist()
    targets = {name: name for name in names} | {pair["from"]: pair["to"] for pair in remap}
    for label, index in zip(labels, found, strict=True):
        beginnings = [label[:length] for length in range(len(label), 0, -1)] if rule == "prefix" else [label]
        read_as = next((targets[each] for each in beginnings if each in targets), otherwise)
        assert index == (names.index(read_as) if read_as else -1)
        assert space.indices(np.array([label], dtype=np.str_)).tolist() == [index]


def test_the_digest_is_of_all_that_decides() -> None:
    base = prior(["a", "b"])
    assert base.digest == prior(["a", "b"]).digest
    others = [
        prior(["b", "a"]),
        prior(["a", "b", "c"]),
        prior(["a", "b"], otherwise="a"),
        prior(["a", "b"], remap_rule="prefix"),
        prior(["a", "b"], remap=[{"from": "c", "to": "a"}]),
    ]
    assert len({each.digest for each in [base, *others]}) == 6
    assert base.digest.startswith("sha256:")
    assert len(base.digest) == 71


@pytest.mark.parametrize(
    ("rules", "path"),
    [
        ({"label_names": ["a", "a"]}, "recipe.label_names[1]"),
        ({"label_names": []}, "recipe.label_names"),
        ({"label_names": [""]}, "recipe.label_names[0]"),
        ({"label_names": ["a"], "otherwise": "b"}, "recipe.otherwise"),
        ({"label_names": ["a"], "remap": [{"from": "c", "to": "b"}]}, "recipe.remap[0].to"),
        ({"label_names": ["a"], "remap": [{"from": "c", "to": "a"}, {"from": "c", "to": ""}]}, "recipe.remap[1]"),
        ({"label_names": ["a"], "labels_release": "r1"}, "recipe.labels_release"),
        ({"label_names": ["a"], "remap_rule": "suffix"}, "recipe.remap_rule"),
    ],
)
def test_rules_that_contradict_themselves_are_refused(rules: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidInput) as error:
        prior(rules["label_names"], **{key: value for key, value in rules.items() if key != "label_names"})
    assert error.value.argument == path


def run_with(recipe_: dict[str, Any], facts: dict[str, Any] | None = None) -> Run:
    return Run(
        parameters={},
        recipe=recipe_,
        adjacency="add_remove",
        rows=[],
        noise=Noise.repeatable(0),
        inputs={} if facts is None else {"labels_release": Told(facts)},
    )


def test_released_labels() -> None:
    """What nobody was told of is dropped, whatever a rule says of it."""
    told = read(
        "recipe",
        LABELS,
        {
            "label_source": "released",
            "labels_release": "r1",
            "remap": [{"from": "x", "to": "b"}, {"from": "y", "to": "rare"}],
            "otherwise": "rare",
        },
    )
    space = label_space(run_with(told, {"labels": ["a", "b"]}))
    assert space.indices(np.array(["a", "b", "x", "y", "z"])).tolist() == [0, 1, 1, -1, -1]
    nothing = label_space(run_with(told, {"labels": []}))
    assert (len(nothing), nothing.indices(np.array(["a"])).tolist()) == (0, [-1])
    for facts in ({}, {"labels": "ab"}, {"labels": [1]}):
        with pytest.raises(InvalidInput, match=r"^recipe\.labels_release"):
            label_space(run_with(told, facts))
    assert label_space(run_with(recipe(label_names=["q"]))).names == ("q",)


@given(st.lists(st.one_of(st.integers(-5, 5), st.integers(-(2**63), 2**63 - 1)), max_size=30), st.booleans())
def test_distinct_is_unique_of_numpy(values: list[int], as_text: bool) -> None:  # noqa: FBT001
    for dtype in (np.int64, np.int8, np.uint16, np.uint64):
        array = np.array([value % (1 << 62) if dtype == np.uint64 else value for value in values]).astype(dtype)
        y = array.astype(np.str_) if as_text else array
        unique, inverse = np.unique(y, return_inverse=True)
        for way in (distinct, _sorted) if as_text else (distinct, _sorted, _tabled):
            found, which = way(y)
            assert found.dtype == y.dtype
            np.testing.assert_array_equal(found, unique)
            np.testing.assert_array_equal(which, inverse)


def test_as_many_labels_as_are_allowed() -> None:
    names = [f"{number:05d}" for number in range(MAX_LABELS)]
    space = prior(names, remap_rule="prefix")
    labels = np.array([f"{number % MAX_LABELS:05d}.{number % 7}" for number in range(0, 300_000, 3)])
    np.testing.assert_array_equal(space.indices(labels), np.arange(0, 300_000, 3) % MAX_LABELS)
    with pytest.raises(InvalidInput, match=r"^recipe\.label_names"):
        prior([*names, "x"])
    with pytest.raises(InvalidInput, match="a file has no room for more"):  # before anything runs
        prior([name + "\N{GRINNING FACE}" * 195 for name in names])


def encounters(shared_data: Path, *columns: str) -> list[tuple[str, ...]]:
    """Columns of the hospital encounters, row by row."""
    with zipfile.ZipFile(shared_data / "diabetes130_icd9" / "dataset_diabetes.zip") as archive:
        text = io.TextIOWrapper(archive.open("dataset_diabetes/diabetic_data.csv"), encoding="utf-8", newline="")
        return [tuple(row[column] for column in columns) for row in csv.DictReader(text)]


def test_a_public_list_of_categories_covers_all_diagnoses(shared_data: Path) -> None:
    """1,234 categories; codes below 100 stand in the data without their zeros, and with decimals for details."""
    with (shared_data / "diabetes130_icd9" / "icd9cm_v32_categories.csv").open(encoding="utf-8") as file:
        names = [row["category"] for row in csv.DictReader(file)]
    assert len(names) == 1234
    zeros = [{"from": str(int(name)), "to": name} for name in names if name.startswith("0")]
    space = prior(names, remap=zeros, remap_rule="prefix")
    codes = np.array([code for [code] in encounters(shared_data, "diag_1")])
    found = space.indices(codes)
    by_hand = {name: place for place, name in enumerate(names)}
    for code, index in zip(codes.tolist(), found.tolist(), strict=True):
        whole = code.partition(".")[0]
        assert index == (-1 if code == "?" else by_hand[whole.zfill(3) if whole.isdigit() else whole])
    assert 0 < np.count_nonzero(found < 0) < 100  # the missing ones
    assert texts(distinct(codes)[0][:1]) == ["10"]


def test_an_artifact_says_by_what_rules_labels_were_read() -> None:
    """Its own first, then those of all that it builds on, each once; a stream under one set of rules has one."""
    first = prior(["a"], remap_rule="prefix")
    then = prior(["a"], remap=[{"from": "x", "to": "a"}], otherwise="a")
    plain = {"remap": [], "remap_rule": "prefix", "otherwise": ""}
    other = {"remap": [{"from": "x", "to": "a"}], "remap_rule": "exact", "otherwise": "a"}
    one = Told(first.facts({}))
    assert one.facts == {"label_space": first.digest, "label_rules": [plain]}
    assert first.facts({"previous": one})["label_rules"] == [plain]
    two = Told(then.facts({"previous": one, "labels_release": Told({"labels": ["a"]})}))
    assert two.facts["label_rules"] == [other, plain]
    assert first.facts({"start": two})["label_rules"] == [plain, other]
