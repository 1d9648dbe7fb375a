"""Registration from Parquet files: real ones, wrong ones, broken ones, and large ones in little memory."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from service import parquet
from service.api import datapoints as api
from service.client import Stint
from service.operations import datapoints
from tests.service.fixtures_behaviour import House, with_settings
from tests.service.test_datapoints import Memory, needs_proc

pytest_plugins = ("tests.service.fixtures_behaviour",)

PARQUET = {"Content-Type": parquet.MEDIA_TYPE}


def written(keys: Any, *, group: int = 1000, other: bool = True, **options: Any) -> bytes:
    """A file with the column `key`, and another before it."""
    file = io.BytesIO()
    columns = {"age": pa.array(range(len(keys)))} if other else {}
    pq.write_table(pa.table(columns | {"key": keys}), file, row_group_size=group, **options)
    return file.getvalue()


def names(count: int, stem: str = "person") -> pa.Array:
    return pa.array([f"{stem}-{number:09d}" for number in range(count)])


def send(house: House, name: str, body: bytes, *, status: int = 201) -> Any:
    pieces = (body[at : at + 30_011] for at in range(0, max(len(body), 1), 30_011))
    return house.pipeline.ask(
        "POST", f"/v1/populations/{name}/datapoints", content=pieces, headers=PARQUET, status=status
    ).json()


def found(house: House, name: str, keys: Sequence[str]) -> list[int]:
    path = f"/v1/populations/{name}/datapoints/lookup"
    return [house.officer.post(path, {"key": key})["ordinal"] for key in keys]


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param(names(5000), id="text"),
        pytest.param(names(5000).cast(pa.large_string()), id="large text"),
        pytest.param(names(5000).dictionary_encode(), id="a dictionary"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"compression": "zstd"}, {"use_dictionary": False}], ids=str)
def test_a_file_is_registered_in_its_order(house: House, keys: pa.Array, options: dict[str, Any]) -> None:
    name = house.population(3)
    answer = send(house, name, written(keys, group=700, **options))
    assert (answer["registered"], answer["known"], answer["first_ordinal"], answer["datapoints"]) == (5000, 0, 3, 5003)
    assert found(house, name, ["person-000000000", "person-000000699", "person-000004999"]) == [3, 702, 5002]
    again = send(house, name, written(keys))
    assert (again["registered"], again["known"]) == (0, 5000)
    assert house.auditor.post(f"/v1/populations/{name}/ledger/verify")["ok"]


def test_it_is_the_same_as_ndjson(house: House) -> None:
    keys = [*(f"k{number}" for number in range(datapoints.CHUNK + 10)), "k3", "ünïcode 🦆"]
    one, other = house.population(), house.population()
    lines = "".join(f'{{"key": "{key}"}}\n' for key in keys)
    path = f"/v1/populations/{other}/datapoints"
    told = house.pipeline.post(path, content=lines, headers={"Content-Type": "application/x-ndjson"}, status=201)
    answer = send(house, one, written(pa.array(keys)))
    assert {**answer, "entry": None} == {**told, "entry": None}
    counts = [
        [entry["body"].get("count") for entry in house.officer.get(f"/v1/populations/{name}/ledger")["items"]]
        for name in (one, other)
    ]
    assert counts[0] == counts[1] == [None, datapoints.CHUNK, 11]
    assert found(house, one, ["ünïcode 🦆"]) == found(house, other, ["ünïcode 🦆"])


def test_a_file_without_rows_registers_nobody(house: House) -> None:
    for keys in (pa.array([], pa.string()), pa.array([], pa.string()).dictionary_encode()):
        answer = send(house, house.population(), written(keys))
        assert (answer["registered"], answer["known"], answer["datapoints"]) == (0, 0, 0)


_TWICE = pa.Table.from_arrays([names(3), names(3)], names=["key", "key"])
_NESTED = pa.table({"key": pa.array([{"key": "a"}])})


def table(value: pa.Table) -> bytes:
    file = io.BytesIO()
    pq.write_table(value, file)
    return file.getvalue()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        pytest.param(b"", "not a Parquet file", id="nothing"),
        pytest.param(b"key\na\nb\n", "not a Parquet file", id="CSV"),
        pytest.param(b"PAR1" + bytes(100) + b"PAR1", "not a Parquet file", id="zeros between the marks"),
        pytest.param(written(names(5000))[:-1], "not a Parquet file", id="the last byte is missing"),
        pytest.param(written(names(5000))[:20_000], "not a Parquet file", id="the second half is missing"),
        pytest.param(table(pa.table({"name": names(3)})), "one column `key`", id="no such column"),
        pytest.param(table(pa.table({"Key": names(3)})), "one column `key`", id="in other letters"),
        pytest.param(table(_TWICE), "one column `key`", id="twice"),
        pytest.param(table(_NESTED), "must hold text, and holds struct", id="nested"),
        pytest.param(written(pa.array([1, 2])), "must hold text, and holds int64", id="numbers"),
        pytest.param(written(pa.array([b"a"])), "must hold text, and holds binary", id="bytes"),
        pytest.param(written(pa.array([["a"]])), "must hold text, and holds list", id="lists"),
        pytest.param(written(pa.array([None, None])), "must hold text, and holds null", id="nothing but null"),
        pytest.param(written(pa.array([None, "a"])), "Row 1 has no key", id="null at first"),
        pytest.param(written(pa.array([""])), "Row 1", id="an empty key"),
        pytest.param(written(pa.array(["a" * 1001])), "Row 1", id="a long key"),
    ],
)
def test_a_wrong_file_is_a_problem_and_registers_nobody(house: House, body: bytes, said: str) -> None:
    name = house.population()
    answer = send(house, name, body, status=422)
    assert answer["type"] == "urn:stint:problem:invalid"
    assert said in answer["detail"]
    assert "so_far" not in answer
    assert house.officer.get(f"/v1/populations/{name}")["datapoints"] == 0


def damaged(count: int) -> bytes:
    """A file whose last row group cannot be decoded, though its index is whole."""
    body = bytearray(written(names(count), group=1000, other=False, compression="zstd", use_dictionary=False))
    chunk = pq.ParquetFile(io.BytesIO(bytes(body))).metadata.row_group(count // 1000 - 1).column(0)
    start = chunk.data_page_offset
    body[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    return bytes(body)


def not_utf8(count: int) -> bytes:
    """Text whose last row is not UTF-8; a careful library would not write it."""
    values = [f"person-{number:09d}".encode() for number in range(count - 1)] + [b"\xff\xfe"]
    bad = pa.array(values, pa.binary()).view(pa.string())
    return written(bad, use_dictionary=False)


MANY = datapoints.CHUNK + 5000


@pytest.mark.parametrize(
    ("body", "said"),
    [
        pytest.param(written(pa.array([*names(MANY - 1).to_pylist(), None])), f"Row {MANY} has no key", id="null"),
        pytest.param(written(pa.array([*names(MANY - 1).to_pylist(), ""])), f"Row {MANY}: ", id="empty"),
        pytest.param(not_utf8(MANY), f"Row {MANY} is not UTF-8", id="not UTF-8"),
        pytest.param(damaged(MANY), "not all of one", id="damaged"),
    ],
)
def test_what_is_wrong_in_the_middle_says_what_is_durable(house: House, body: bytes, said: str) -> None:
    name = house.population()
    answer = send(house, name, body, status=422)
    assert said in answer["detail"]
    assert answer["so_far"] == {"registered": datapoints.CHUNK, "known": 0, "returned": 0}
    assert house.officer.get(f"/v1/populations/{name}")["datapoints"] == datapoints.CHUNK
    mended = send(house, name, written(names(MANY)))
    assert (mended["registered"], mended["known"]) == (5000, datapoints.CHUNK)


def test_row_groups_have_a_limit(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "MAX_GROUP_BYTES", 5000)
    name = house.population()
    assert "row group 0" in send(house, name, written(names(1000)), status=422)["detail"]
    assert send(house, name, written(names(1000), group=50))["registered"] == 1000


def test_a_file_that_is_too_long_is_413_and_leaves_nothing(house: House) -> None:
    name = house.population()
    body = written(names(5000), compression="none")
    before = sorted(house.parts.settings.data.iterdir())
    with with_settings(house, upload_bytes=10_000) as narrow:
        assert send(narrow, name, body, status=413)["type"] == "urn:stint:problem:too-large"
    assert sorted(house.parts.settings.data.iterdir()) == before
    assert house.officer.get(f"/v1/populations/{name}")["datapoints"] == 0


def test_so_many_files_at_a_time_and_no_more(house: House) -> None:
    name = house.population()
    taken = 0
    try:
        while api._spooling.acquire(blocking=False):
            taken += 1
        assert taken == 4, "each gave its place back"
        assert send(house, name, written(names(10)), status=503)["type"] == "urn:stint:problem:busy"
    finally:
        for _ in range(taken):
            api._spooling.release()
    assert send(house, name, written(names(10)))["registered"] == 10


def stream_in_flat_memory(house: House, count: int) -> None:
    body = written(names(count), group=50_000, other=False)
    send(house, house.population(), written(names(60_000), group=50_000))  # so that all is loaded
    with Memory() as memory:
        answer = send(house, house.population(), body)
    assert answer["registered"] == answer["datapoints"] == count
    assert memory.grown < 48, f"{memory.grown:.0f} MiB"


@needs_proc
def test_two_hundred_thousand_keys_in_flat_memory(house: House) -> None:
    stream_in_flat_memory(house, 200_000)


@needs_proc
@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_million_keys_in_flat_memory(house: House) -> None:
    stream_in_flat_memory(house, 1_000_000)


@needs_proc
def test_a_small_file_that_unfolds_is_read_in_little_memory(house: House) -> None:
    long = "a" * 100_000
    keys = pa.DictionaryArray.from_arrays(pa.array([0] * 50_000), pa.array([long]))
    body = written(keys, group=50_000, other=False)
    assert len(body) < 100_000, "and five gigabytes as text"
    with Memory() as memory:
        assert "Row 1" in send(house, house.population(), body, status=422)["detail"]
    assert memory.grown < 64, f"{memory.grown:.0f} MiB"


def test_the_client_sends_a_file_as_it_is(house: House, tmp_path: Path) -> None:
    path = tmp_path / "keys.parquet"
    path.write_bytes(written(names(100)))
    name = house.population()
    with Stint(house.url, house.secrets["pipeline"]) as client, path.open("rb") as file:
        answer = client.register_stream(name, iter(lambda: file.read(1000), b""), content_type=parquet.MEDIA_TYPE)
    assert answer["registered"] == 100
