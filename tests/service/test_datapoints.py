"""Datapoints: streamed by the hundred thousand, counted by the hundred million, erased, and never shown by key."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from service.operations import datapoints
from tests.service.fixtures_behaviour import House, as_lines, pure, with_settings

pytest_plugins = ("tests.service.fixtures_behaviour",)

NDJSON = {"Content-Type": "application/x-ndjson"}
CSV = {"Content-Type": "text/csv"}


def as_ndjson(keys: Iterator[str]) -> Iterator[bytes]:
    for key in keys:
        yield b'{"key": "%b"}\n' % key.encode()


def as_csv(keys: Iterator[str]) -> Iterator[bytes]:
    yield b"name,key,note\r\n"
    for key in keys:
        yield b'x,"%b",y\r\n' % key.encode()


def pieces(lines: Iterator[bytes], size: int = 30_011) -> Iterator[bytes]:
    """Cut anywhere, as networks do."""
    rest = b""
    for line in lines:
        rest += line
        if len(rest) >= size:
            yield rest[:size]
            rest = rest[size:]
    yield rest


class Memory:
    """The most memory that this process had inside the block, above what it had before."""

    def __enter__(self) -> Self:
        self._pages = Path("/proc/self/statm")
        self._before = self._most = self._now()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _now(self) -> int:
        return int(self._pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self._most = max(self._most, self._now())

    @property
    def grown(self) -> float:
        """In MiB."""
        return (self._most - self._before) / 2**20


def register(house: House, name: str, lines: Iterator[bytes], kind: dict[str, str]) -> Any:
    return house.pipeline.ask(
        "POST", f"/v1/populations/{name}/datapoints", headers=kind, content=pieces(lines), status=201
    ).json()


def keys(count: int, stem: str = "person") -> Iterator[str]:
    return (f"{stem}-{number:09d}" for number in range(count))


needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")


def stream_and_compare(house: House, count: int, *, known: int) -> None:
    register(house, house.population(), as_ndjson(keys(datapoints.CHUNK)), NDJSON)  # so that all is loaded
    name = house.population()
    with Memory() as memory:
        first = register(house, name, as_ndjson(keys(count)), NDJSON)
        again = register(house, name, as_csv(keys(known)), CSV)
    assert (first["registered"], first["known"], first["first_ordinal"]) == (count, 0, 0)
    assert first["datapoints"] == count
    assert (again["registered"], again["known"], again["datapoints"]) == (0, known, count)
    # A chunk of keys and its digests are a few MiB; all keys as text would be ninety bytes each, and more as rows.
    assert memory.grown < 32, f"{memory.grown:.0f} MiB"
    found = house.officer.post(f"/v1/populations/{name}/datapoints/lookup", {"key": f"person-{count - 1:09d}"})
    assert found["ordinal"] == count - 1
    entries = house.officer.get(f"/v1/populations/{name}/ledger")["items"]
    assert len(entries) == 1 + count // datapoints.CHUNK


@needs_proc
def test_two_hundred_thousand_keys_are_streamed_in_flat_memory(house: House) -> None:
    stream_and_compare(house, 200_000, known=100_000)


@needs_proc
@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_million_keys_are_streamed_in_flat_memory(house: House) -> None:
    stream_and_compare(house, 1_000_000, known=200_000)


def test_progress_shows_while_a_registration_runs(house: House) -> None:
    name = house.population()
    sizes: list[int] = []

    def lines() -> Iterator[bytes]:
        for number, line in enumerate(as_ndjson(keys(3 * datapoints.CHUNK + 5))):
            if number and number % datapoints.CHUNK == 0:
                time.sleep(0.3)
                shown = httpx.get(
                    f"{house.url}/v1/populations/{name}",
                    headers={"Authorization": f"Bearer {house.secrets['officer']}"},
                )
                sizes.append(shown.json()["datapoints"])
            yield line

    answer = register(house, name, lines(), NDJSON)
    assert answer["registered"] == 3 * datapoints.CHUNK + 5
    assert sizes == sorted(sizes)
    assert sizes[-1] > 0, "it shows before the end"


def test_a_hundred_million_cost_no_rows_and_no_time(house: House) -> None:
    name = house.population()
    started = time.perf_counter()
    made = house.officer.post(f"/v1/populations/{name}/datapoints", {"count": 10**8}, status=201)
    assert (made["registered"], made["datapoints"]) == (10**8, 10**8)
    release = house.pipeline.hold(
        name, ({"ranges": [[0, 5 * 10**7]]}, pure(0.4)), ({"ranges": [[10**6, 10**8]]}, pure(0.2))
    )
    house.pipeline.commit(release)
    spent = [house.officer.reading(name, ordinal)["spent"] for ordinal in (0, 10**6, 10**8 - 1)]
    budget = house.pipeline.get(f"/v1/populations/{name}/budget")
    seconds = time.perf_counter() - started
    assert spent == pytest.approx([0.4, 0.6, 0.2])
    assert budget["datapoints"] == 10**8
    assert house.rows("datapoint", name) == []
    assert seconds < 5
    house.officer.get(f"/v1/populations/{name}/datapoints/{10**8}", status=404)
    assert house.officer.get(f"/v1/populations/{name}/datapoints/{2**32}", status=422)["field"] == "ordinal"
    beyond = {"count": 2**32}
    assert house.officer.post(f"/v1/populations/{name}/datapoints", beyond, status=422)["field"] == "count"
    assert house.pipeline.get(f"/v1/populations/{name}")["datapoints"] == 10**8, "and nothing of it happened"


def test_keys_and_ordinals_may_be_mixed_and_known_keys_keep_their_ordinals(house: House) -> None:
    name = house.population()
    address = f"/v1/populations/{name}/datapoints"
    first = house.pipeline.post(address, {"keys": ["ann", "bob", "ann"]}, status=201)
    assert (first["registered"], first["known"], first["datapoints"]) == (2, 1, 2)
    house.pipeline.post(address, {"count": 10}, status=201)
    more = house.pipeline.post(address, {"keys": ["bob", "cy", "ann"]}, status=201)
    assert (more["registered"], more["known"], more["first_ordinal"], more["datapoints"]) == (1, 2, 12, 13)
    found = {key: house.officer.post(f"{address}/lookup", {"key": key})["ordinal"] for key in ("ann", "bob", "cy")}
    assert found == {"ann": 0, "bob": 1, "cy": 12}
    other = house.population()
    house.pipeline.post(f"/v1/populations/{other}/datapoints", {"keys": ["bob"]}, status=201)
    digests = {row[1] for row in house.rows("datapoint", name)} & {row[1] for row in house.rows("datapoint", other)}
    assert digests == set(), "a key has another digest in every population"
    house.officer.post(f"{address}/lookup", {"key": "zoe"}, status=404)


def test_an_erased_key_is_gone_and_meets_its_old_balance(house: House) -> None:
    name = house.population()
    address = f"/v1/populations/{name}/datapoints"
    house.pipeline.post(address, {"keys": ["ann", "bob"]}, status=201)
    house.officer.commit(house.officer.hold(name, ({"keys": ["bob"]}, pure(0.8))))
    erased = house.officer.post(f"{address}/erase", {"key": "bob"})
    assert (erased["erased"], erased["ordinal"]) == (True, 1)
    gone = house.officer.post(f"{address}/lookup", {"key": "bob"}, status=410)
    assert gone["type"] == "urn:stint:problem:gone"
    assert "bob" not in json.dumps(gone)
    again = house.officer.post(f"{address}/erase", {"key": "bob"})
    assert again == {"erased": True, "ordinal": 1}
    house.officer.post(f"{address}/erase", {"key": "zoe"}, status=404)
    by_key = {"population": name, "charges": [{"scope": {"keys": ["bob"]}, "event": pure(0.1)}]}
    house.officer.post("/v1/releases", by_key, status=422)
    kept = house.officer.get(f"{address}/1")
    assert kept["erased"]
    assert kept["epsilon"]["spent"] == pytest.approx(0.8)
    # Whoever is deleted and comes back has the balance of before, and no new one.
    back = house.pipeline.post(address, {"keys": ["bob", "cy"]}, status=201)
    assert (back["registered"], back["returned"], back["known"]) == (1, 1, 0)
    found = house.officer.post(f"{address}/lookup", {"key": "bob"})
    assert (found["ordinal"], found["erased"]) == (1, False)
    assert found["epsilon"]["spent"] == pytest.approx(0.8)
    assert house.officer.propose(name, ({"keys": ["bob"]}, pure(0.5)))["status"] == "denied"
    kinds = [entry["body"]["kind"] for entry in house.officer.get(f"/v1/populations/{name}/ledger")["items"]]
    assert kinds.count("datapoint.erased") == 1
    assert kinds.count("datapoint.returned") == 1
    assert house.auditor.post(f"/v1/populations/{name}/ledger/verify")["ok"]


GOOD = b"".join(as_ndjson(keys(datapoints.CHUNK + 3)))


@pytest.mark.parametrize(
    ("kind", "content", "line", "so_far"),
    [
        (NDJSON, b'{"key": "a"}\n{"key": }\n', 2, None),
        (NDJSON, b'{"key": "a"}\n\n[1]\n', 3, None),
        (NDJSON, b'{"key": "a", "name": "Ann"}\n', 1, None),
        (NDJSON, b'{"key": 7}\n', 1, None),
        (NDJSON, b'{"key": "a"}\n{"key": ""}\n', 2, None),
        (NDJSON, b'{"key": "\\ud800"}\n', 1, None),
        (NDJSON, b'{"key": "' + b"x" * 1001 + b'"}\n', 1, None),
        (NDJSON, GOOD + b"nonsense\n", datapoints.CHUNK + 4, datapoints.CHUNK),
        (CSV, b'key\na\nb,c\n"d\n', 4, None),
        (CSV, b"name,key\nann,a\nbob\n", 3, None),
        (CSV, b"key\na\rb\n", 2, None),
        (CSV, b'name,key\n"Ann\nBo",a\n', 2, None),
        (CSV, b"name,key\nann,\n", 2, None),
    ],
)
def test_a_line_that_cannot_be_read_is_named_and_sending_all_again_is_safe(
    house: House, kind: dict[str, str], content: bytes, line: int, so_far: int | None
) -> None:
    name = house.population()
    address = f"/v1/populations/{name}/datapoints"
    problem = house.pipeline.ask("POST", address, headers=kind, content=content, status=422).json()
    assert f"Line {line}" in problem["detail"]
    if so_far is None:
        assert "so_far" not in problem
        assert house.pipeline.get(f"/v1/populations/{name}")["datapoints"] == 0
        return
    assert problem["so_far"] == {"registered": so_far, "known": 0, "returned": 0}
    assert house.pipeline.get(f"/v1/populations/{name}")["datapoints"] == so_far
    again = house.pipeline.ask("POST", address, headers=kind, content=GOOD, status=201).json()
    assert (again["registered"], again["known"]) == (3, so_far)


@pytest.mark.parametrize(
    ("kind", "content", "detail"),
    [
        (NDJSON, b'{"key": "\xff"}\n', "UTF-8"),
        (NDJSON, b"x" * 20_000, "longer"),
        (CSV, b"name,note\nann,x\n", "must be `key`"),
    ],
)
def test_what_is_no_list_of_keys_is_refused(house: House, kind: dict[str, str], content: bytes, detail: str) -> None:
    address = f"/v1/populations/{house.population()}/datapoints"
    assert detail in house.pipeline.ask("POST", address, headers=kind, content=content, status=422).json()["detail"]


@pytest.mark.parametrize("new", [{}, {"count": 1, "keys": ["a"]}, {"count": 0}, {"count": 1.5}, {"keys": [""]}, [], 7])
def test_a_registration_is_a_count_or_keys(house: House, new: object) -> None:
    house.pipeline.post(f"/v1/populations/{house.population()}/datapoints", new, status=422)


def test_types_that_are_not_read(house: House) -> None:
    address = f"/v1/populations/{house.population()}/datapoints"
    for kind in ("application/parquet", "text/plain", ""):
        sent = house.pipeline.ask("POST", address, headers={"Content-Type": kind}, content=b"x", status=415)
        assert sent.json()["field"] == "Content-Type"


def test_a_registration_has_its_own_limit(house: House) -> None:
    name = house.population()
    address = f"/v1/populations/{name}/datapoints"
    with with_settings(house, upload_bytes=2_000_000, body_bytes=2_000) as small:
        fits = b"".join(as_ndjson(keys(1_000)))
        small.pipeline.ask("POST", address, headers=NDJSON, content=fits, status=201)
        small.pipeline.ask("POST", address, headers=NDJSON, content=b" " * 2_000_001, status=413)
        too_many = as_ndjson(keys(100_000, "too-many"))  # without a declared length
        problem = small.pipeline.ask("POST", address, headers=NDJSON, content=pieces(too_many), status=413).json()
        assert problem["so_far"]["registered"] == small.pipeline.get(f"/v1/populations/{name}")["datapoints"] - 1_000
        small.pipeline.ask("POST", address, {"keys": ["x" * 900] * 3}, status=413)


def test_a_key_is_nowhere(house: House, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    name = house.population()
    address = f"/v1/populations/{name}/datapoints"
    marks = [f"Zyx{number}Qwv" for number in range(5)]
    house.officer.post(address, {"keys": marks[:3]}, status=201, headers={"Idempotency-Key": house.new_name("k")})
    house.officer.ask("POST", address, headers=NDJSON, content=b"".join(as_ndjson(iter(marks))), status=201)
    house.officer.ask("POST", address, headers=CSV, content=b"".join(as_csv(iter(marks))), status=201)
    house.officer.post(f"{address}/lookup", {"key": marks[0]})
    house.officer.post(f"{address}/lookup", {"key": marks[0] + "?"}, status=404)
    house.officer.post(f"/v1/populations/{name}/tasks", {"name": "t", "members": {"keys": marks[:4]}}, status=201)
    scope = {"keys": marks[:2]}
    house.officer.hold(name, (scope, pure(0.3)), ({"union": [scope, {"keys": marks[2:3]}]}, pure(0.1)))
    asked = {"population": name, "charges": [{"scope": scope, "event": pure(5.0)}]}
    house.officer.post("/v1/releases", asked, status=201, headers={"Idempotency-Key": house.new_name("k")})
    house.officer.post(f"{address}/erase", {"key": marks[4]}, headers={"Idempotency-Key": house.new_name("k")})
    house.officer.post(
        "/v1/releases", {**asked, "charges": [{"scope": {"keys": marks, "x": 1}, "event": {}}]}, status=422
    )
    seen = {
        "tables": repr((house.everything(), house.rows("datapoint", name))),
        "log": json.dumps(as_lines(caplog.records)),
        "metrics": house.as_(None).ask("GET", "/metrics").text,
        "ledger": house.officer.ask("GET", f"/v1/populations/{name}/ledger/export").text,
        "files": "".join(path.read_text() for path in house.parts.settings.data.glob("*.json")),
    }
    assert '"answered"' in seen["log"], "there is a log to look at"
    assert name in seen["tables"]
    for place, text in seen.items():
        for mark in marks:
            assert mark not in text, place
            assert mark.encode().hex() not in text, place


def test_a_digest_is_keyed() -> None:
    one = datapoints.digest(b"a" * 32, "clinic", "ann")
    assert len(one) == 20
    assert one == datapoints.digest(b"a" * 32, "clinic", "ann")
    assert (
        len({one, datapoints.digest(b"b" * 32, "clinic", "ann"), datapoints.digest(b"a" * 32, "cli", "nic\x00ann")})
        == 3
    )


def test_a_mark_of_the_encoding_is_no_part_of_a_column(house: House) -> None:
    """Spreadsheets write one at the beginning of a CSV file."""
    name = house.population()
    answer = house.officer.ask(
        "POST",
        f"/v1/populations/{name}/datapoints",
        headers=CSV,
        content="\ufeffkey,group\nalice,1\nbob,2\n".encode(),
        status=201,
    )
    assert answer.json()["registered"] == 2
    house.officer.post(f"/v1/populations/{name}/datapoints/lookup", {"key": "alice"})
