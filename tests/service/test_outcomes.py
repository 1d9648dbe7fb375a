"""How an attempt ends says nothing about rows: with or without anybody's, it ends alike, whatever is wrong.

An attempt is the only process with rows, and its code is all that leaves it before the commit. What it makes is
compared by names and shapes; numbers are for other tests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyroaring import BitMap
from safetensors.torch import save_file

from accountant.book import bitmap_to
from accountant.canonical import canonical
from accountant.events import event_to_json
from service.attempt import code_of, make
from tests.trainers.test_every_mechanism import EXAMPLES, MECHANISMS, SIZE, TASK
from trainers import artifacts
from trainers.catalog import CATALOG

COUNT: Final = 2 * TASK
#: Who is there: the rows of all others are not finite, or have a label that nobody asked for.
WHOM: Final = {"nobody": (), "one": (5,), "everybody": range(COUNT)}
#: What a data document says, and how every attempt on it ends; "" if something is made.
DOCUMENTS: Final = {
    "as it should be": ({"x": "x", "y": "y"}, ""),
    "rows too wide": ({"x": "wide", "y": "y"}, "data.shape"),
    "rows of another shape": ({"x": "square", "y": "y"}, "data.shape"),
    "no features": ({"y": "y"}, "recipe.invalid"),
    "no labels": ({"x": "x"}, "recipe.invalid"),
    "several labels a row": ({"x": "x", "y": "pairs"}, "data.shape"),
    "features that are words": ({"x": "y", "y": "y"}, "data.shape"),
}
#: These read no features, and do not mind.
WITHOUT_FEATURES: Final = {"rows too wide", "rows of another shape", "no features"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that differ in who is there, and in nothing else."""
    folder = tmp_path_factory.mktemp("rows")
    for name, whom in WHOM.items():
        there = np.isin(np.arange(COUNT), list(whom))
        for how in ("not finite", "other label"):
            kept = there if how == "not finite" else np.ones(COUNT, dtype=np.bool_)
            wide = np.where(kept[:, None], np.random.default_rng(0).normal(size=(COUNT, SIZE + 1)), np.nan)
            y = np.where(there | (how == "not finite"), (np.arange(COUNT) % 2).astype(np.str_), "stranger")
            square = wide[:, :SIZE].reshape(COUNT, 2, SIZE // 2)[:, :, :-1]
            np.savez(
                folder / f"{name}, {how}.npz",
                x=wide[:, :SIZE], wide=wide, square=square, y=y, pairs=np.stack([y, y], axis=1),
            )  # fmt: skip
    return folder


def outcome(name: str, data: dict[str, Any], staged: Path, *, place: range | None = None) -> tuple[str, object]:
    """The code of an attempt, and the names and shapes of what it made, as a worker has it made."""
    row, example = CATALOG[name], EXAMPLES[name]
    staged.mkdir(parents=True)
    inputs = {}
    for path, known in example.inputs.items():
        model = staged / path
        save_file(dict(known.tensors), model, metadata={"stint": canonical(dict(known.facts)).decode()})
        inputs[path] = {"release": known.release, "path": str(model), "sha256": artifacts.measured(model).sha256}
    charges = []
    for number, charge in enumerate(row.quote(example.parameters, adjacency="add_remove").charges):
        if charge.start is None:
            scope = BitMap(place or range(TASK * number, TASK * (number + 1)))
        else:
            scope = BitMap(range(charge.start, charge.stop or 0))
        charges.append(
            {"proposed": bitmap_to(scope), "admitted": bitmap_to(scope), "event": event_to_json(charge.event)}
        )
    document = {
        "mechanism": name, "parameters": example.parameters, "recipe": example.recipe, "data": data,
        "allowed": [str(Path(data["uri"]).parent)], "charges": charges, "inputs": inputs, "adjacency": "add_remove",
        "rules": {},
        "seed": 0, "device": "cpu", "backbones": None, "cache": None, "release": "rel_test", "population": "people",
        "unit": "record", "datapoints": COUNT, "promise": {"epsilon": 1.0, "delta": 0.0}, "folder": str(staged),
    }  # fmt: skip
    try:
        make(document, progress=lambda _done, _of: None, ordinals_of=lambda keys: np.full(len(keys), -1))
    except Exception as problem:  # noqa: BLE001 - as an attempt does
        return code_of(problem), None
    made = artifacts.read(staged / artifacts.MODEL, release="rel_test")
    return "", ({name: tuple(each.shape) for name, each in made.tensors.items()}, set(made.facts))


@pytest.mark.parametrize("document", DOCUMENTS)
@pytest.mark.parametrize("name", MECHANISMS)
def test_an_attempt_ends_alike_whoever_is_there(name: str, document: str, folder: Path, tmp_path: Path) -> None:
    given, code = DOCUMENTS[document]
    ends = {
        path.stem: outcome(name, {**given, "uri": str(path)}, tmp_path / path.stem) for path in folder.glob("*.npz")
    }
    assert len(ends) == 6
    first = ends["nobody, not finite"]
    assert all(end == first for end in ends.values()), ends
    assert first[0] == ("" if name == "label-release" and document in WITHOUT_FEATURES else code)


@pytest.mark.parametrize("column", ["when", "word", "x"])
def test_a_column_of_another_type_is_refused_whoever_has_a_row(column: str, tmp_path: Path) -> None:
    """Of datapoints without a row nothing is read, and yet its type is known."""
    table = {
        "x": pa.array(np.ones((8, SIZE)).tolist()),
        "when": pa.array(range(8), pa.timestamp("s")),
        "word": ["a"] * 8,
        "y": ["0"] * 8,
        "whose": pa.array(range(8)),
    }
    pq.write_table(pa.table(table), tmp_path / "rows.parquet")
    x = column if column == "x" else [column] * SIZE  # so many of them have the shape of a row
    data = {"uri": str(tmp_path / "rows.parquet"), "x": x, "y": "y", "address": "ordinal", "unit": "whose"}
    ends = [
        outcome("cosine-classifier", data, tmp_path / str(start), place=range(start, start + 8)) for start in (0, 8)
    ]
    assert ends[0] == ends[1]
    assert ends[0][0] == ("" if column == "x" else "data.shape")


#: Rows of a table that are asked for: nobody's, others', one of which is the odd one, that one alone, and everybody's.
ASKED: Final = (range(16, 24), range(4), range(8, 12), range(9, 10), range(16))


@pytest.mark.parametrize("name", ["cosine-classifier", "label-release"])
@pytest.mark.parametrize("odd", ["a label that is no text", "a damaged page"])
def test_one_odd_row_of_a_table_ends_nothing_of_its_own(odd: str, name: str, tmp_path: Path) -> None:
    """A job that fails costs nothing: could it fail by who is asked for, anybody could ask for one after another."""
    spelled = [b"\xff" if odd == "a label that is no text" and place == 9 else b"0" for place in range(16)]
    labels = pa.Array.from_buffers(pa.string(), 16, pa.array(spelled).buffers())
    features = pa.array(np.ones((16, SIZE)).tolist(), pa.list_(pa.float64(), SIZE))
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"x": features, "y": labels, "whose": pa.array(range(16))}), path, row_group_size=2)
    if odd == "a damaged page":
        column = pq.ParquetFile(path).metadata.row_group(9 // 2).column(1)
        broken = bytearray(path.read_bytes())
        broken[column.data_page_offset : column.data_page_offset + 4] = b"\xff" * 4
        path.write_bytes(broken)
    data = {"uri": str(path), "x": "x", "y": "y", "address": "ordinal", "unit": "whose"}
    ends = [outcome(name, data, tmp_path / str(number), place=scope) for number, scope in enumerate(ASKED)]
    assert all(end == ends[0] for end in ends), ends
    assert ends[0][0] in ({"data.shape", "data.missing"} if odd == "a damaged page" else {""})
