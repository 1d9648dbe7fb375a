"""Data connectors: the same rows from every format, nobody's but those that were admitted, and hostile files."""

from __future__ import annotations

import doctest
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pyroaring import BitMap
from safetensors.numpy import save_file

import trainers.columns
import trainers.data
from accountant.errors import InvalidInput
from service.operations import datapoints
from trainers.catalog.data_documents import MAX_KEY, data_document, data_schema
from trainers.data import DataProblem, open_data
from trainers.ports import Rows

Document = dict[str, Any]
X = np.arange(40, dtype=np.float32).reshape(10, 4)
Y = np.arange(10) % 3
KEYS = np.array([f"k{place}" for place in range(10)])
BY_PLACE: Document = {"address": "row", "first": 0, "unit": "", "rows_per_unit": 1}  # what rules say besides where


def by_number(keys: Sequence[str]) -> NDArray[np.int64]:
    """k7 is 7; whoever is called otherwise is unknown."""
    return np.array([int(key[1:]) if key.startswith("k") else -1 for key in keys], dtype=np.int64)


def rows(
    folder: Path | str,
    document: Document,
    *,
    proposed: Any = range(10),
    admitted: Any = range(10),
    ordinals_of: Callable[[Sequence[str]], NDArray[np.int64]] = by_number,
    size: int = 1 << 22,
) -> Rows:
    allowed = [str(folder)] if isinstance(folder, str) else [f"file://{folder}"]
    document = {"x": "x", "y": "y"} | document
    if not document["uri"].startswith(("/", "memory:", "file:")):
        document["uri"] = f"file://{folder}/{document['uri']}"
    data = open_data(document, allowed=allowed, ordinals_of=ordinals_of, size=size)
    return data.rows(proposed=BitMap(proposed), admitted=BitMap(admitted))


def code(folder: Path | str, document: Document, **options: Any) -> str:
    """The problem, and that it says nothing else."""
    with pytest.raises(DataProblem) as problem:
        rows(folder, document, **options)
    assert problem.value.args == (problem.value.code,)
    assert problem.value.__cause__ is None
    assert problem.value.__suppress_context__ or problem.value.__context__ is None
    return problem.value.code


def write(folder: Path, x: NDArray[Any] = X, y: NDArray[Any] = Y, unit: NDArray[Any] = KEYS) -> None:
    """The same columns in every format."""
    np.savez(folder / "a.npz", x=x, y=y, unit=unit)
    np.savez_compressed(folder / "packed.npz", x=x, y=y, unit=unit)
    (folder / "arrays").mkdir()
    for name, array in (("x", x), ("y", y), ("unit", unit)):
        np.save(folder / "arrays" / f"{name}.npy", array)
    np.savez(folder / "fortran.npz", x=np.asfortranarray(x), y=y, unit=unit)
    numbers = np.array([by_number([key])[0] for key in unit]) if unit.dtype.kind == "U" else unit
    save_file({"x": x, "y": y, "unit": numbers}, folder / "a.safetensors")
    table = {"x": pa.array(x.tolist()), "y": pa.array(y), "unit": pa.array(unit)}
    pq.write_table(pa.table(table), folder / "a.parquet", row_group_size=3)


FORMATS = ("a.npz", "packed.npz", "fortran.npz", "arrays/", "a.safetensors", "a.parquet")


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_rows(name: str, tmp_path: Path) -> None:
    write(tmp_path)
    found = rows(tmp_path, {"uri": name}, admitted=(0, 3, 4, 9, 77))
    assert (found.slots, found.rows_per_unit, found.x.dtype) == (10, 1, np.dtype(np.float32))
    assert found.unit.tolist() == [0, 3, 4, 9]
    np.testing.assert_array_equal(found.x, X[[0, 3, 4, 9]])
    assert found.y.tolist() == Y[[0, 3, 4, 9]].tolist()
    everybody = rows(tmp_path, {"uri": name})
    np.testing.assert_array_equal(everybody.x, X)
    nobody = rows(tmp_path, {"uri": name}, admitted=())
    assert (len(nobody), nobody.x.shape, nobody.slots) == (0, (0, 4), 10)
    shifted = rows(tmp_path, {"uri": name, "first": 100}, proposed=(101, 105, 109), admitted=(105, 109))
    assert shifted.unit.tolist() == [1, 2]
    np.testing.assert_array_equal(shifted.x, X[[5, 9]])


@pytest.mark.parametrize("name", [name for name in FORMATS if "safetensors" not in name])
def test_rows_are_found_by_key(name: str, tmp_path: Path) -> None:
    shuffled = np.array([f"k{place}" for place in (4, 2, 9, 0, 7, 1, 8, 3, 6, 5)])
    shuffled[2] = "stranger"  # so nobody has ordinal 9
    write(tmp_path, unit=shuffled)
    document = {"uri": name, "address": "key", "unit": "unit"}
    found = rows(tmp_path, document, proposed=range(2, 20), admitted=(9, 2, 7, 4, 0))
    assert found.slots == 18
    assert found.unit.tolist() == [0, 2, 5]  # ordinals 2, 4 and 7
    np.testing.assert_array_equal(found.x, X[[1, 0, 4]])
    assert found.y.tolist() == Y[[1, 0, 4]].tolist()


@pytest.mark.parametrize("name", ["a.npz", "arrays/", "a.safetensors", "a.parquet"])
def test_units_with_many_rows_keep_their_first(name: str, tmp_path: Path) -> None:
    unit = np.array([5, 3, 5, 5, 3, 8, 5, 1, 3, 3])
    write(tmp_path, unit=unit)
    document = {"uri": name, "address": "ordinal", "unit": "unit", "rows_per_unit": 2}
    found = rows(tmp_path, document, admitted=(3, 5, 1))
    assert found.rows_per_unit == 2
    assert found.unit.tolist() == [1, 3, 3, 5, 5]
    np.testing.assert_array_equal(found.x, X[[7, 1, 4, 0, 2]])
    assert code(tmp_path, document | {"rows_per_unit": 1}) == "data.mismatch"
    # Whether a run stops does not depend on whom it asks for.
    assert code(tmp_path, document | {"rows_per_unit": 1}, proposed=(8,), admitted=(8,)) == "data.mismatch"


@given(
    st.lists(st.integers(0, 6), max_size=20), st.integers(1, 3), st.sets(st.integers(0, 6)), st.sets(st.integers(0, 6))
)
def test_what_a_unit_gives_depends_on_itself_alone(
    tmp_path_factory: pytest.TempPathFactory, unit: list[int], most: int, proposed: set[int], admitted: set[int]
) -> None:
    folder = tmp_path_factory.mktemp("units")
    x = np.arange(len(unit), dtype=np.float32)
    np.savez(folder / "a.npz", x=x, unit=np.array(unit, dtype=np.int32))
    document = {"uri": "a.npz", "y": "", "address": "ordinal", "unit": "unit", "rows_per_unit": most}
    if most == 1 and len(set(unit)) < len(unit):
        assert code(folder, document, proposed=proposed, admitted=admitted) == "data.mismatch"
        return
    found = rows(folder, document, proposed=proposed, admitted=admitted)
    expected = [
        (slot, place)
        for slot, ordinal in enumerate(sorted(proposed))
        if ordinal in admitted
        for place in [place for place, owner in enumerate(unit) if owner == ordinal][:most]
    ]
    assert list(zip(found.unit.tolist(), found.x[:, 0].tolist(), strict=True)) == expected


def test_rows_that_are_not_finite_are_null(tmp_path: Path) -> None:
    x = X.astype(np.float64)
    x[1, 2], x[4, 0], x[6, 3] = np.nan, np.inf, 1e300  # the last is no float32
    write(tmp_path, x=x)
    for name in FORMATS:
        found = rows(tmp_path, {"uri": name})
        assert found.unit.tolist() == [0, 2, 3, 5, 7, 8, 9]
        assert found.slots == 10
        assert np.isfinite(found.x).all()


@pytest.mark.parametrize("name", ["arrays/", "a.npz", "fortran.npz", "a.safetensors"])
def test_a_null_row_takes_no_memory_of_its_own(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Features are there once, and a block of them, whether all rows are whole or one is not."""
    monkeypatch.setattr(trainers.data, "_BLOCK", 1 << 14)
    monkeypatch.setattr(trainers.columns, "_BLOCK", 1 << 14)
    peaks, size = [], 1000 * 256 * 4
    for null in ([], [0], [500], [999]):
        x = np.random.default_rng(0).normal(size=(1000, 256)).astype(np.float32)
        x[null, 3] = np.nan
        folder = tmp_path / str(null)
        folder.mkdir()
        write(folder, x, np.arange(1000), np.arange(1000))
        tracemalloc.start()
        found = rows(folder, {"uri": name, "y": ""}, proposed=range(1000), admitted=range(1000))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        np.testing.assert_array_equal(found.x, np.delete(x, null, axis=0))
        np.testing.assert_array_equal(found.unit, np.delete(np.arange(1000), null))
    assert max(peaks) - min(peaks) < 0.02 * size
    assert name == "fortran.npz" or max(peaks) < 1.5 * size


def test_the_public_map(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(6, dtype=np.uint8).reshape(3, 2) * 51, y=np.zeros(3))
    found = rows(tmp_path, {"uri": "a.npz", "scale": 1 / 255, "shift": -0.5}, proposed=range(3))
    np.testing.assert_allclose(found.x, np.arange(6).reshape(3, 2) / 5 - 0.5, atol=1e-6)
    assert not len(rows(tmp_path, {"uri": "a.npz", "scale": 1e300}, proposed=range(1), admitted=[1]))


def test_columns_of_a_table_stand_side_by_side(tmp_path: Path) -> None:
    table = pa.table(
        {
            "a": pa.array([1.0, None, 3.0, 4.0]),
            "b": pa.array([5, 6, 7, 8], pa.int8()),
            "pair": pa.array([[1.0, 2.0], [3.0, 4.0], None, [5.0, None]]),
            "fixed": pa.array([[1, 2]] * 4, pa.list_(pa.int16(), 2)),
            "square": pa.array([[[1.0, 2.0], [3.0, 4.0]]] * 4),
            "label": pa.array(["x", "y", None, "z" * 300]).dictionary_encode(),
            "ragged": pa.array([[1.0], [1.0, 2.0], [1.0], [1.0]]),
            "when": pa.array([1, 2, 3, 4], pa.timestamp("s")),
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")

    def read(**document: Any) -> Rows:
        return rows(tmp_path, {"uri": "t.parquet"} | document, proposed=range(4))

    assert read(x=["a", "b"], y="").x.tolist() == [[1, 5], [3, 7], [4, 8]]
    assert read(x=["pair", "b"], y="").x.tolist() == [[1, 2, 5], [3, 4, 6]]
    assert read(x="fixed", y="").x.shape == (4, 2)
    assert read(x="square", y="").x.shape == (4, 2, 2)
    labelled = read(x=[], y="label")
    assert (labelled.y.tolist(), labelled.x.shape) == (["x", "y"], (2, 0))
    for wrong in ("ragged", "when", "label"):
        assert code(tmp_path, {"uri": "t.parquet", "x": wrong, "y": ""}, proposed=range(4)) == "data.shape"
    assert code(tmp_path, {"uri": "t.parquet", "x": "a", "y": "pair"}, proposed=range(4)) == "data.shape"


@pytest.mark.parametrize("row", range(6))
@pytest.mark.parametrize("lists", [[[1.0, 2.0]] * 5 + [[1.0]], [[[1.0], [2.0]]] * 5 + [[[1.0], [2.0, 3.0]]]])
def test_lists_of_different_lengths_stop_every_scope(row: int, lists: list[Any], tmp_path: Path) -> None:
    """Were only rows of the scope looked at, a failure would tell whose list is odd."""
    pq.write_table(pa.table({"x": pa.array(lists)}), tmp_path / "t.parquet", row_group_size=1)
    document = {"uri": "t.parquet", "x": "x", "y": ""}
    assert code(tmp_path, document, proposed=range(6), admitted=[row]) == "data.shape"


def test_labels_that_are_none_make_their_rows_null(tmp_path: Path) -> None:
    """A number that is not whole, no text at all, or what UTF-8 cannot write: the row is null, and nothing stops."""
    np.savez(tmp_path / "n.npz", x=X, y=np.array([1, 2.5, np.nan, np.inf, 3, -4, 2.0**60, 0, 1, 2]))
    assert rows(tmp_path, {"uri": "n.npz"}).y.tolist() == [1, 3, -4, 0, 1, 2]
    text = np.array(["a", "", "\ud800", "ü", "b" * 201, "c", "1", "2", "3", "4"])
    text = np.array(text, dtype="<U201")
    np.savez(tmp_path / "t.npz", x=X, y=text)
    assert rows(tmp_path, {"uri": "t.npz"}).y.tolist() == ["a", "ü", "c", "1", "2", "3", "4"]
    raw = text.view(np.uint32).reshape(10, -1).copy()
    raw[0, 0] = 0x7FFFFFFF  # no character at all
    np.savez(tmp_path / "r.npz", x=X, y=raw.view("<U201").ravel())
    assert rows(tmp_path, {"uri": "r.npz"}).y.tolist() == ["ü", "c", "1", "2", "3", "4"]
    np.savez(tmp_path / "b.npz", x=X, y=np.array([b"a", b"\xff"] * 5))
    assert set(rows(tmp_path, {"uri": "b.npz"}).y.tolist()) == {"a", "\ufffd"}
    words = [b"a", b"\xff", b"", "ü".encode(), b"b" * 201, "ü".encode() * 200, None, b"c", b"c", b"d\xc3"]
    for kind in (pa.string(), pa.large_string()):
        spelled = pa.array(words, pa.large_binary() if kind == pa.large_string() else pa.binary())
        told = pa.Array.from_buffers(kind, 10, spelled.buffers(), spelled.null_count)  # whose bytes nobody looks at
        for column in (told, told.dictionary_encode()):
            pq.write_table(pa.table({"x": pa.array(X.tolist()), "y": column}), tmp_path / "p.parquet")
            assert rows(tmp_path, {"uri": "p.parquet"}).y.tolist() == ["a", "ü", "ü" * 200, "c", "c"]
    np.savez(tmp_path / "o.npz", x=X, y=np.arange(10).astype(">i2"))
    assert rows(tmp_path, {"uri": "o.npz"}).y.tolist() == [*range(10)]


def test_brain_floats(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file as save

    save({"x": torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16), "n": torch.tensor(3)}, tmp_path / "b.safetensors")
    assert rows(tmp_path, {"uri": "b.safetensors", "y": ""}, proposed=[0]).x.tolist() == [[1.5, -2.0]]
    assert code(tmp_path, {"uri": "b.safetensors", "x": "n", "y": ""}) == "data.missing"


# What does not fit


def test_counts_and_names_must_fit(tmp_path: Path) -> None:
    write(tmp_path)
    for name in FORMATS:
        assert code(tmp_path, {"uri": name}, proposed=range(11)) == "data.mismatch"
        # Who was trimmed needs a row all the same: the file has to be that of the scope.
        assert code(tmp_path, {"uri": name}, proposed=range(11), admitted=[1]) == "data.mismatch"
        assert code(tmp_path, {"uri": name, "first": 1}) == "data.mismatch"
        assert code(tmp_path, {"uri": name, "x": "z"}) == "data.missing"
        assert code(tmp_path, {"uri": name, "y": "z"}) == "data.missing"
        assert code(tmp_path, {"uri": name, "address": "key", "unit": "z"}) == "data.missing"
        assert code(tmp_path, {"uri": name, "address": "ordinal", "unit": "x"}) == "data.shape"
    np.savez(tmp_path / "b.npz", x=X, y=Y[:9], s=np.array(3.0), text=KEYS)
    assert code(tmp_path, {"uri": "b.npz"}) == "data.mismatch"
    assert code(tmp_path, {"uri": "b.npz", "y": "s"}) == "data.shape"  # a number has no rows
    assert code(tmp_path, {"uri": "b.npz", "x": "text", "y": ""}) == "data.shape"
    assert code(tmp_path, {"uri": "a.npz", "address": "ordinal", "unit": "unit"}) == "data.shape"
    strangers = {"uri": "a.npz", "address": "key", "unit": "unit"}
    assert code(tmp_path, strangers, ordinals_of=lambda keys: np.full(len(keys), -1)) == "data.mismatch"
    assert code(tmp_path, {"uri": "nothing.npz"}) == "data.missing"
    assert code(tmp_path, {"uri": "arrays/x.npy"}) == "data.missing"  # it has no labels
    assert rows(tmp_path, {"uri": "arrays/x.npy", "y": ""}).x.shape == (10, 4)
    assert rows(tmp_path, {"uri": "arrays/y.npy", "x": []}).y.tolist() == Y.tolist()


@pytest.mark.parametrize("scope", [range(10), [3], []])
def test_a_file_of_other_people_is_refused_as_a_whole(scope: Sequence[int], tmp_path: Path) -> None:
    """By one ordinal that the population does not have, or by too small a share of its keys; whoever is asked for."""
    asked: Document = {"proposed": scope, "admitted": scope}
    by_ordinal = {"uri": "a.npz", "address": "ordinal", "unit": "unit"}
    for strange in (10, -1, 5_000, 2**40):
        np.savez(tmp_path / "a.npz", x=X, y=Y, unit=np.where(np.arange(10) == 9, strange, np.arange(10)))
        assert code(tmp_path, by_ordinal, size=10, **asked) == "data.mismatch"
        assert strange != 10 or len(rows(tmp_path, by_ordinal, size=11, **asked)) == len(scope) - (9 in scope)
    np.savez(tmp_path / "a.npz", x=X, y=Y, unit=np.full(10, 2**64 - 1, dtype=np.uint64))
    assert code(tmp_path, by_ordinal, size=10, **asked) == "data.mismatch"
    by_key = {"uri": "k.npz", "address": "key", "unit": "unit", "rows_per_unit": 10}
    for strangers, stops in ((0, False), (5, False), (6, True), (10, True)):
        keys = np.where(np.arange(10) < 10 - strangers, KEYS, [f"stranger {place}" for place in range(10)])
        np.savez(tmp_path / "k.npz", x=X, y=Y, unit=keys)
        if stops:
            assert code(tmp_path, by_key, **asked) == "data.mismatch"
        else:
            rows(tmp_path, by_key, **asked)
    # Keys count, and not rows: one known person with nine rows is one of two.
    np.savez(tmp_path / "k.npz", x=X, y=Y, unit=np.where(np.arange(10) < 9, "k3", "stranger"))
    rows(tmp_path, by_key, **asked)


def test_long_keys_are_found_and_longer_ones_are_not_asked_for(tmp_path: Path) -> None:
    """A key may be longer than a label, and the whole of it counts; what can be nobody's goes to nobody."""
    assert MAX_KEY == datapoints.MAX_KEY
    keys = [f"k{place:0999}" for place in range(8)] + ["k" + "0" * 1_000 + "8", "k9"]
    np.savez(tmp_path / "a.npz", x=X, y=Y, unit=np.array(keys))
    pq.write_table(pa.table({"x": pa.array(X.tolist()), "y": Y, "unit": keys}), tmp_path / "a.parquet")
    asked: list[str] = []

    def heard(keys: Sequence[str]) -> NDArray[np.int64]:
        asked.extend(keys)
        return by_number(keys)

    for name in ("a.npz", "a.parquet"):
        found = rows(tmp_path, {"uri": name, "address": "key", "unit": "unit"}, ordinals_of=heard)
        assert found.unit.tolist() == [*range(8), 9]
    assert max(map(len, asked)) == MAX_KEY


def test_a_failing_lookup_is_not_the_files_fault(tmp_path: Path) -> None:
    write(tmp_path)

    def down(_keys: Sequence[str]) -> NDArray[np.int64]:
        raise ConnectionError("no database")

    with pytest.raises(ConnectionError):
        rows(tmp_path, {"uri": "a.npz", "address": "key", "unit": "unit"}, ordinals_of=down)


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({}, "data.uri"),
        ({"uri": "a.npz"}, "data.x"),
        ({"uri": "a.npz", "x": "x", "unit": "u"}, "data.unit"),
        ({"uri": "a.npz", "x": "x", "address": "key"}, "data.unit"),
        ({"uri": "a.npz", "x": "x", "address": "row", "rows_per_unit": 2}, "data.rows_per_unit"),
        ({"uri": "a.npz", "x": "x", "address": "key", "unit": "u", "first": 3}, "data.first"),
        ({"uri": "a.npz", "x": "x", "rows_per_unit": 0}, "data.rows_per_unit"),
        ({"uri": "a.npz", "x": "x", "address": "key", "unit": "u", "known_share": 0.5}, "data.known_share"),
        ({"uri": "a.npz", "x": "x", "scale": float("nan")}, "data.scale"),
        ({"uri": "a.npz", "x": "x", "password": "?"}, "data.password"),
        ({"uri": "a.npz", "x": 3}, "data.x"),
        ({"uri": "s3://me:secret@bucket/a.npz", "x": "x"}, "data.uri"),
    ],
)
def test_documents_that_contradict_themselves(document: Document, path: str) -> None:
    with pytest.raises(InvalidInput) as error:
        data_document(document)
    assert error.value.argument == path
    json.dumps(data_schema())


def test_the_page_does_what_it_shows(checkout: Path) -> None:
    text = (checkout / "docs" / "data.md").read_text(encoding="utf-8")
    page = doctest.DocTestParser().get_doctest(text.replace("```", ""), {}, "data.md", "data.md", 0)
    assert page.examples
    report: list[str] = []
    doctest.DocTestRunner().run(page, out=report.append)
    assert not report, "".join(report)


# Places


def test_what_other_populations_claim_is_not_read_by_any_link(tmp_path: Path) -> None:
    """A rule is about the place that its address leads to, and so is the address of a job."""
    for name in ("ours", "theirs", "theirs/shared"):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "a.npz", x=X, y=Y)
        np.save(tmp_path / name / "x.npy", X)
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    (tmp_path / "ours" / "link.npz").symlink_to(tmp_path / "theirs" / "a.npz")

    def opened(uri: str, *, own: Sequence[str] = (), others: Sequence[str] = ("theirs/",)) -> bool:
        mine = [BY_PLACE | {"uri": f"{tmp_path}/{each}"} for each in own]
        theirs = [f"{tmp_path}/{each}" for each in others]
        document = {"uri": f"{tmp_path}/{uri}", "x": "x"}
        try:
            open_data(document, allowed=[str(tmp_path)], ordinals_of=by_number, size=10, own=mine, others=theirs)
        except DataProblem as problem:
            return problem.code != "data.unknown"
        return True

    assert opened("ours/a.npz")
    for uri in ("theirs/a.npz", "link/a.npz", "ours/link.npz", "ours/../theirs/a.npz", "theirs/", "link/shared/"):
        assert not opened(uri)
        assert opened(uri, others=())
    assert not opened("theirs/a.npz", others=["link/"])  # whose rule goes by a link
    assert not opened("theirs/", others=["theirs/x.npy"])  # of the arrays in a folder, one
    assert opened("theirs/shared/a.npz", own=["theirs/shared/"])
    assert opened("theirs/a.npz", own=["link/"])
    assert not opened("theirs/shared/a.npz", own=["theirs/"], others=["theirs/shared/a.npz"])
    assert opened("ours/a.npz", others=["no address", "s3://a?b"])


@pytest.mark.parametrize(
    ("uri", "address", "agrees"),
    [
        ("clinic/visits.npz", "ordinal", True),
        ("clinic/visits.npz", "row", False),
        ("clinic/./visits.npz", "row", False),
        ("clinic//visits.npz", "row", False),
        ("clinic/../clinic/visits.npz", "row", False),
        ("clinic/other.npz", "row", True),
        ("clinic/link.npz", "row", False),  # of the visits
        ("clinic/link.npz", "ordinal", True),
        ("link/visits.npz", "row", False),
        ("clinic/out.npz", "row", False),  # to a place that no rule covers
        ("clinic/arrays/", "row", False),  # one of its arrays has a rule of its own
        ("clinic/arrays/", "ordinal", False),
        ("clinic/arrays/plain/", "row", True),
    ],
)
def test_a_rule_is_about_the_place_and_not_its_spelling(uri: str, address: str, agrees: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """The closest rule decides of every file that is read, however it is written and whatever link leads there."""
    for folder in ("clinic/arrays/plain", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("clinic/visits.npz", "clinic/other.npz", "elsewhere/a.npz"):
        np.savez(tmp_path / name, x=X, y=Y, unit=np.arange(10))
    for folder in ("clinic/arrays", "clinic/arrays/plain"):
        for name, array in (("x", X), ("y", Y), ("unit", np.arange(10))):
            np.save(tmp_path / folder / f"{name}.npy", array)
    (tmp_path / "clinic" / "link.npz").symlink_to(tmp_path / "clinic" / "visits.npz")
    (tmp_path / "clinic" / "out.npz").symlink_to(tmp_path / "elsewhere" / "a.npz")
    (tmp_path / "link").symlink_to(tmp_path / "clinic")
    by_ordinal = BY_PLACE | {"address": "ordinal", "unit": "unit"}
    rules = [
        BY_PLACE | {"uri": f"{tmp_path}/clinic/"},
        by_ordinal | {"uri": f"{tmp_path}//link/./visits.npz"},
        by_ordinal | {"uri": f"{tmp_path}/clinic/arrays/y.npy"},
    ]
    more = {"unit": "unit"} if address == "ordinal" else {}
    document = data_document({"uri": f"{tmp_path}/{uri}", "x": "x", "y": "y", "address": address, **more})
    asked: Document = {"allowed": [str(tmp_path)], "ordinals_of": by_number, "size": 10, "own": rules}
    if agrees:
        assert len(open_data(document, **asked).rows(proposed=BitMap(range(10)), admitted=BitMap(range(10)))) == 10
    else:
        with pytest.raises(DataProblem, match=r"data\.unknown"):
            open_data(document, **asked)


def test_rules_that_lead_nowhere_let_nothing_through(tmp_path: Path) -> None:
    write(tmp_path)
    document = {"uri": f"{tmp_path}/a.npz", "x": "x", "y": "y"}
    own = [BY_PLACE | {"uri": "no address"}]
    with pytest.raises(DataProblem, match=r"data\.unknown"):
        open_data(document, allowed=[str(tmp_path)], ordinals_of=by_number, size=10, own=own)


def test_only_allowed_places_are_read(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (tmp_path / "in-other").mkdir()
    for folder in (inside, outside, tmp_path / "in-other"):
        np.savez(folder / "a.npz", x=X, y=Y)
    (inside / "link.npz").symlink_to(outside / "a.npz")
    (inside / "folder").symlink_to(outside)
    (inside / "near.npz").symlink_to(inside / "a.npz")
    os.mkfifo(inside / "pipe.npz")
    (inside / "arrays").mkdir()
    (inside / "arrays" / "x.npy").symlink_to(outside / "a.npz")

    def at(uri: str) -> Document:
        return {"uri": uri}

    for good in (f"{inside}/a.npz", f"file://{inside}/a.npz", f"{inside}/near.npz", f"{inside}/../in/a.npz"):
        assert len(rows(inside, at(good))) == 10
    for bad in (
        f"{outside}/a.npz",
        f"{inside}/../out/a.npz",
        f"file://{inside}/../out/a.npz",
        f"{inside}/link.npz",
        f"{inside}/folder/a.npz",
        f"{tmp_path}/in-other/a.npz",
        f"simplecache::file://{inside}/a.npz",
        f"file://{inside}/a.npz::file://{outside}/a.npz",
        f"memory://{inside}/a.npz",
        f"{inside}/a.npz\0",
        f"{inside}/a.txt",
        "/etc/passwd",
    ):
        assert code(inside, at(bad)) == "data.unknown", bad
    assert code(inside, {"uri": f"{inside}/arrays/", "y": ""}) == "data.unknown"
    assert code(inside, {"uri": f"{inside}/", "x": "../out/a", "y": ""}) == "data.missing"
    assert code(inside, at(f"{inside}/pipe.npz")) == "data.missing"  # and it does not wait for a writer
    for uri in ("a.npz", "file://a.npz", "file:a.npz", "../a.npz", "~/a.npz"):
        with pytest.raises(DataProblem, match=r"^data\.unknown$"):
            open_data({"uri": uri, "x": "x"}, allowed=[f"file://{inside}"], ordinals_of=by_number, size=10)


def test_remote_places() -> None:
    memory = fsspec.filesystem("memory")
    for name in ("npz", "safetensors", "parquet"):
        memory.pipe(f"/bucket/in/a.{name}", b"")
    packed = io.BytesIO()
    np.savez(packed, x=X, y=Y)
    memory.pipe("/bucket/in/a.npz", packed.getvalue())
    memory.pipe("/bucket/out/a.npz", packed.getvalue())
    single = io.BytesIO()
    np.save(single, X)
    memory.pipe("/bucket/in/x.npy", single.getvalue())
    table = io.BytesIO()
    pq.write_table(pa.table({"x": pa.array(X.tolist()), "y": pa.array(Y)}), table)
    memory.pipe("/bucket/in/a.parquet", table.getvalue())
    allowed = "memory://bucket/in"
    for name in ("a.npz", "a.parquet"):
        assert rows(allowed, {"uri": f"{allowed}/{name}"}, admitted=[3, 5]).x.tolist() == X[[3, 5]].tolist()
    assert rows(allowed, {"uri": f"{allowed}/x.npy", "y": ""}, admitted=[9]).x.tolist() == X[[9]].tolist()
    assert code(allowed, {"uri": f"{allowed}/b.npz"}) == "data.missing"
    for bad in ("out/a.npz", "in/../out/a.npz", "in/%2e%2e/out/a.npz", "in//a.npz", "in/./a.npz", "inner/a.npz"):
        assert code(allowed, {"uri": f"memory://bucket/{bad}"}) == "data.unknown", bad


def test_a_place_without_a_driver_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker says so when it starts; what comes later is said of the address, and is no fault of ours."""
    monkeypatch.setitem(sys.modules, "s3fs", None)  # as if it were not installed
    for allowed in ("s3://bucket/in", "nosuch://bucket/in"):
        with pytest.raises(DataProblem, match=r"^data\.unknown$"):
            open_data({"uri": f"{allowed}/a.npz", "x": "x"}, allowed=[allowed], ordinals_of=by_number, size=10)


# Hostile files


def header(text: str, *, version: int = 1, claimed: int | None = None) -> bytes:
    body = text.encode() + b"\n"
    length = struct.pack("<H" if version == 1 else "<I", len(body) if claimed is None else claimed)
    return b"\x93NUMPY" + bytes([version, 0]) + length + body


class Bomb:
    """Leaves a trace if it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.putenv, ("STINT_TEST_PICKLED", "yes")


def hostile_arrays() -> dict[str, bytes]:
    pickled = io.BytesIO()
    np.save(pickled, np.array([Bomb()] * 10, dtype=object), allow_pickle=True)
    plain = "{'descr': '<f4', 'fortran_order': False, 'shape': %s, }"
    return {
        "pickled": pickled.getvalue(),
        "bare pickle": pickle.dumps(Bomb()),
        "structured": header("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (10,), }") + bytes(40),
        "too large": header(plain % "(10, 10000000000000)") + bytes(400),
        "negative": header(plain % "(-1, 10)") + bytes(40),
        "overflow": header(plain % f"(10, {2**62}, {2**62})") + bytes(40),
        "no shape": header(plain % "()") + bytes(4),
        "long header": header(plain % "(10, 1)" + " " * 20_000) + bytes(40),
        "claimed header": header(plain % "(10, 1)", version=2, claimed=2**32 - 1) + bytes(40),
        "code in header": header("__import__('os').system('true')") + bytes(40),
        "nested header": header("(" * 5000 + ")" * 5000, version=2) + bytes(40),
        "cut": header(plain % "(10, 4)") + bytes(100),
        "empty text": header("{'descr': '<U0', 'fortran_order': False, 'shape': (1000000000000,), }"),
        "dates": header("{'descr': '<M8[s]', 'fortran_order': False, 'shape': (10,), }") + bytes(80),
        "empty": b"",
    }


@pytest.mark.parametrize("name", hostile_arrays())
def test_hostile_arrays(name: str, tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(hostile_arrays()[name])
    assert code(tmp_path, {"uri": "x.npy", "y": ""}) == "data.shape"
    good = io.BytesIO()
    np.save(good, X)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", hostile_arrays()[name])
        archive.writestr("good.npy", good.getvalue())
    assert code(tmp_path, {"uri": "x.npz", "y": ""}) == "data.shape"
    assert len(rows(tmp_path, {"uri": "x.npz", "x": "good", "y": ""})) == 10
    seen = subprocess.run(["env"], capture_output=True, text=True, check=True).stdout
    assert "STINT_TEST_PICKLED" not in seen


@pytest.mark.parametrize("packing", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_archives_are_packed_as_numpy_packs_them(packing: int, tmp_path: Path) -> None:
    """Other packings may take memory that nobody limits, and fail in ways of their own."""
    array = io.BytesIO()
    np.save(array, X)
    with zipfile.ZipFile(tmp_path / "x.npz", "w", packing) as archive:
        archive.writestr("x.npy", array.getvalue())
    whole = (tmp_path / "x.npz").read_bytes()
    for damaged in (whole, whole[:60] + bytes(20) + whole[80:]):
        (tmp_path / "x.npz").write_bytes(damaged)
        assert code(tmp_path, {"uri": "x.npz", "y": ""}) == "data.shape"


def test_an_archive_that_unpacks_to_much_is_not_unpacked(tmp_path: Path) -> None:
    """4 MB of zeros in 4 KB: only the rows that are admitted are kept, and all bytes are what was packed."""
    size = 1 << 22
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        zeros = header(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({size},), }}") + bytes(size)
        archive.writestr("x.npy", zeros)
        archive.writestr("y.npy", zeros[:-1])  # less than its header says
    assert rows(tmp_path, {"uri": "x.npz", "y": ""}, admitted=[3]).x.tolist() == [[0.0]]
    assert code(tmp_path, {"uri": "x.npz", "x": "y", "y": ""}) == "data.shape"
    too_many = {"uri": "x.npz", "y": "", "address": "ordinal", "unit": "x"}
    assert code(tmp_path, too_many) == "data.mismatch"  # all of them are ordinal 0
    whole = (tmp_path / "x.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    assert code(tmp_path, {"uri": "cut.npz", "y": ""}) == "data.shape"
    (tmp_path / "changed.npz").write_bytes(whole[:1000] + b"\xff" * 50 + whole[1050:])
    assert code(tmp_path, {"uri": "changed.npz", "y": ""}) == "data.shape"


@pytest.mark.parametrize(
    "index",
    [
        {"x": {"dtype": "F32", "shape": [10, 4], "data_offsets": [0, 160_000]}},
        {"x": {"dtype": "F32", "shape": [10, 4], "data_offsets": [80, 240]}},
        {"x": {"dtype": "F32", "shape": [10, 4], "data_offsets": [-160, 0]}},
        {"x": {"dtype": "F32", "shape": [10, 10**12], "data_offsets": [0, 160]}},
        {"x": {"dtype": "F32", "shape": [-10, -4], "data_offsets": [0, 160]}},
        {"x": {"dtype": "F32", "shape": [10.0, 4.0], "data_offsets": [0, 160]}},
        {"x": {"dtype": "O", "shape": [10, 4], "data_offsets": [0, 160]}},
        {"x": {"shape": [10, 4]}},
        {"x": None},
        [],
    ],
    ids=str,
)
def test_hostile_tensors(index: Any, tmp_path: Path) -> None:
    text = json.dumps(index).encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(160))
    assert code(tmp_path, {"uri": "x.safetensors", "y": ""}) == "data.shape"


def test_hostile_indices_and_tables(tmp_path: Path) -> None:
    for length in (2**63, 2**26, 1000):
        (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", length) + b"{}" + bytes(100))
        assert code(tmp_path, {"uri": "x.safetensors", "y": ""}) == "data.shape"
    nested = b"[" * 200_000
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(nested)) + nested)
    assert code(tmp_path, {"uri": "x.safetensors", "y": ""}) == "data.shape"
    write(tmp_path)
    whole = (tmp_path / "a.parquet").read_bytes()
    for number, broken in enumerate((b"", b"PAR1", whole[:-20], whole[:4] + bytes(len(whole) - 8) + whole[-4:])):
        (tmp_path / f"b{number}.parquet").write_bytes(broken)
        assert code(tmp_path, {"uri": f"b{number}.parquet"}) in {"data.shape", "data.missing"}


def test_long_texts_in_a_small_table_stay_small(tmp_path: Path) -> None:
    """A dictionary says a long text once and a million rows point at it: it is no label, and costs its rows nothing."""
    words = pa.DictionaryArray.from_arrays(pa.array(np.arange(100_000) % 2, pa.int32()), ["a", "b" * 1_000_000])
    pq.write_table(pa.table({"y": words}), tmp_path / "t.parquet")
    found = rows(tmp_path, {"uri": "t.parquet", "x": []}, proposed=range(100_000), admitted=range(100_000))
    assert (len(found), found.y.dtype.itemsize) == (50_000, 4)
