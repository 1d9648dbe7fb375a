"""Evidence: an outsider checks it from HTTP answers alone, and whatever is changed in the database is found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from accountant import chain
from accountant.canonical import canonical
from accountant.chain import Head, HeadProof, Link
from accountant.errors import BrokenChain, BrokenProof
from accountant.merkle import leaf_hash, verify_consistency, verify_inclusion
from service.operations import evidence
from service.sweeper import checkpoint
from tests.service.fixtures_behaviour import House, pure

pytest_plugins = ("tests.service.fixtures_behaviour",)


def lively(house: House) -> str:
    """A population to which everything has happened."""
    name = house.population(on_exhausted="trim")
    address = f"/v1/populations/{name}"
    house.officer.post(f"{address}/datapoints", {"keys": [f"p{n}" for n in range(20)]}, status=201)
    house.officer.post(f"{address}/datapoints", {"count": 80}, status=201)
    task = {
        "name": "w1",
        "members": {"next": 50},
        "parts": {"m": {"ranges": [[0, 9]]}},
        "budget": {"epsilon": 0.6, "delta": 1e-7},
    }
    house.officer.post(f"{address}/tasks", task, status=201)
    first = house.officer.hold(name, ({"task": "w1"}, pure(0.4)), ({"ranges": [[40, 60]]}, pure(0.3)))
    house.officer.commit(first, sha256="ab" * 32)
    voided = house.officer.hold(name, ({"ranges": [[0, 5]]}, pure(0.2)))
    house.officer.post(f"/v1/releases/{voided}/void", {"reason": "it crashed"})
    house.officer.hold(name, ({"ranges": [[0, 100]]}, pure(0.5)))
    house.officer.propose(name, ({"ranges": [[0, 100]]}, pure(3.0)))
    house.officer.post(f"{address}/datapoints/erase", {"key": "p3"})
    house.officer.put(f"{address}/policy", {"reason": "less", "epsilon": 0.95})
    house.officer.post(f"{address}/status", {"status": "frozen", "reason": "a pause"})
    house.officer.post(f"{address}/status", {"status": "open", "reason": "go on"})
    return name


@pytest.fixture(scope="module")
def name(house: House) -> str:
    made = lively(house)
    checkpoint(house.parts)
    house.admin.post("/v1/checkpoints", status=201)
    return made


def head_from(document: dict[str, Any]) -> Head:
    hashes = {field: bytes.fromhex(document[field]) for field in ("hash", "root")}
    return Head(population=document["population"], number=document["number"], **hashes)


# ---------------------------------------------------------------- what an outsider can check


def test_an_outsider_checks_signature_heads_and_the_whole_log(house: House, name: str) -> None:
    made = house.admin.post("/v1/checkpoints", status=201)
    shown = house.auditor.get(f"/v1/checkpoints/{made['number']}")
    assert shown == made
    assert made["number"] in [each["number"] for each in house.pipeline.get("/v1/checkpoints")["items"]]
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(shown["public_key"]))
    payload = shown["payload"].encode()
    signed = chain.pre_authentication_encoding(shown["payload_type"], payload)
    key.verify(bytes.fromhex(shown["signature"]), signed)
    with pytest.raises(InvalidSignature):
        key.verify(bytes.fromhex(shown["signature"]), signed.replace(b'"size":', b'"size":1'))
    found = chain.checkpoint_from_payload(payload)
    heads = [head_from(each) for each in shown["heads"]]
    chain.verify_heads(found, heads)
    export = house.auditor.ask("GET", f"/v1/populations/{name}/ledger/export").text.splitlines()
    entries = [json.loads(line) for line in export]
    log = [
        (
            Link(number=each["number"], previous=bytes.fromhex(each["previous"]), hash=bytes.fromhex(each["hash"])),
            canonical(each["body"]),
        )
        for each in entries
    ]
    seen = [head for head in heads if head.population == name]
    assert chain.verify(chain.begin(name), log, heads=seen).head == seen[0]
    with pytest.raises(BrokenChain):
        chain.verify(chain.begin(name), log[:-1], heads=seen)
    changed = [(link, body.replace(b'"actor"', b'"Actor"')) for link, body in log]
    with pytest.raises(BrokenChain):
        chain.verify(chain.begin(name), changed)
    by_page: list[Any] = []
    cursor: dict[str, str] = {}
    while True:
        page = house.auditor.get(f"/v1/populations/{name}/ledger", limit=4, **cursor)
        by_page += page["items"]
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    assert by_page == entries
    csv = house.auditor.ask("GET", f"/v1/populations/{name}/ledger/export?format=csv").text.splitlines()
    assert len(csv) == len(entries) + 1
    kinds = {each["body"]["kind"] for each in entries}
    assert {"release.denied", "policy.changed", "population.frozen", "datapoint.erased"} <= kinds
    assert all(each["body"]["actor"].startswith("key_") and each["body"]["at"].endswith("Z") for each in entries)


def test_one_entry_is_proved_without_the_others(house: House, name: str) -> None:
    number = house.admin.post("/v1/checkpoints", status=201)["number"]
    entries = house.auditor.get(f"/v1/populations/{name}/ledger")["items"]
    for entry in entries[:: len(entries) - 1]:
        proof = house.auditor.get(f"/v1/populations/{name}/ledger/{entry['number']}/proof", checkpoint=number)
        found = chain.checkpoint_from_payload(proof["checkpoint"]["payload"].encode())
        head = head_from(proof["head"])
        place = HeadProof(index=proof["head_index"], path=tuple(map(bytes.fromhex, proof["head_path"])))
        chain.verify_head(found, head, place)
        content = chain.entry_bytes(
            number=entry["number"], previous=bytes.fromhex(entry["previous"]), body=canonical(entry["body"])
        )
        digest = sha256(b"stint.entry.v1\x00" + content).digest()
        assert digest.hex() == proof["hash"] == entry["hash"]
        path = [bytes.fromhex(step) for step in proof["path"]]
        verify_inclusion(
            root=head.root, size=head.number, index=entry["number"] - 1, leaf=leaf_hash(digest), proof=path
        )
        for wrong in ([*path[:-1], bytes(32)], path[:-1], [*path, bytes(32)]):
            with pytest.raises(BrokenProof):
                verify_inclusion(
                    root=head.root, size=head.number, index=entry["number"] - 1, leaf=leaf_hash(digest), proof=wrong
                )
        with pytest.raises(BrokenProof):
            chain.verify_head(
                found, Head(population=name, number=head.number + 1, hash=head.hash, root=head.root), place
            )
    house.auditor.get(f"/v1/populations/{name}/ledger/9999/proof", status=422, checkpoint=number)
    house.auditor.get(f"/v1/populations/{name}/ledger/1/proof", status=404, checkpoint=999_999)


def test_growth_is_proved_without_any_entry(house: House, name: str) -> None:
    def head(of: dict[str, Any]) -> Head:
        return next(head_from(each) for each in of["heads"] if each["population"] == name)

    before = head(house.admin.post("/v1/checkpoints", status=201))
    house.officer.propose(name, ({"ranges": [[60, 61]]}, pure(0.01)))
    house.officer.propose(name, ({"ranges": [[60, 61]]}, pure(0.01)))
    after = head(house.admin.post("/v1/checkpoints", status=201))
    address = f"/v1/populations/{name}/ledger/consistency"
    proof = house.auditor.get(address, since=before.number, until=after.number)
    path = [bytes.fromhex(step) for step in proof["path"]]
    sizes = {"old_size": before.number, "new_size": after.number}
    verify_consistency(old_root=before.root, new_root=after.root, proof=path, **sizes)
    with pytest.raises(BrokenProof):
        verify_consistency(old_root=bytes(32), new_root=after.root, proof=path, **sizes)
    with pytest.raises(BrokenProof):
        verify_consistency(old_root=before.root, new_root=after.root, proof=[*path[:-1], bytes(32)], **sizes)
    house.auditor.get(address, status=422, since=3, until=after.number + 1)
    house.auditor.get(address, status=422, since=after.number, until=3)


def test_a_checkpoint_is_made_only_if_something_moved(house: House) -> None:
    checkpoint(house.parts)
    count = len(house.rows("checkpoint"))
    checkpoint(house.parts)
    assert len(house.rows("checkpoint")) == count
    house.population(1)
    checkpoint(house.parts)
    assert len(house.rows("checkpoint")) == count + 1


# ---------------------------------------------------------------- what verification finds


@contextmanager
def tampered(house: House, *statements: tuple[str, tuple[Any, ...]], tables: tuple[str, ...]) -> Iterator[None]:
    """Change rows as one who has the whole server in his hands; afterwards they are as before."""
    with house.superuser() as connection:
        connection.execute("SET session_replication_role = replica")  # neither triggers nor foreign keys
        kept = {table: house.rows(table) for table in tables}
        try:
            for statement, values in statements:
                changed = connection.execute(statement.encode(), values)
                assert changed.rowcount, "it changed something"
            yield
        finally:
            for table, rows in kept.items():
                connection.execute(f"DELETE FROM {table}".encode())
                for row in rows:
                    marks = ",".join(["%s"] * len(row))
                    connection.execute(f"INSERT INTO {table} OVERRIDING SYSTEM VALUE VALUES ({marks})".encode(), row)
            assert {table: house.rows(table) for table in tables} == kept


def problems(house: House, name: str) -> str:
    found = house.auditor.post(f"/v1/populations/{name}/ledger/verify")
    assert found["ok"] is (not found["problems"])
    return " | ".join(found["problems"])


OF = "population_id = (SELECT id FROM population WHERE name = %s)"


def changed_body(house: House, name: str, kind: str, **changes: Any) -> tuple[str, tuple[Any, ...]]:
    row = next(row for row in house.rows("entry", name) if row[4] == kind)
    body = canonical({**json.loads(row[7]), **changes})
    return f"UPDATE entry SET body = %s WHERE {OF} AND number = %s", (body, name, row[1])


def test_an_untouched_ledger_verifies_and_nothing_is_changed_by_it(house: House, name: str) -> None:
    before = house.everything()
    found = house.auditor.post(f"/v1/populations/{name}/ledger/verify")
    assert found["ok"], found["problems"]
    assert found["entries"] == len(house.rows("entry", name))
    assert found["checkpoints"] >= 2
    assert house.everything() == before
    house.auditor.post("/v1/populations/nobody-here/ledger/verify", status=404)


def test_a_changed_body_is_found(house: House, name: str) -> None:
    for kind, changes in (
        ("release.voided", {"reason": "another"}),
        ("datapoints.registered", {"count": 21}),
        ("release.denied", {"actor": "somebody"}),
    ):
        with tampered(house, changed_body(house, name, kind, **changes), tables=("entry",)):
            assert "hash" in problems(house, name)
    assert problems(house, name) == ""


def test_a_body_that_is_no_document_is_found(house: House, name: str) -> None:
    spoiled = (f"UPDATE entry SET body = %s WHERE {OF} AND number = 3", (b"nonsense", name))
    with tampered(house, spoiled, tables=("entry",)):
        assert problems(house, name) != ""


def test_an_entry_missing_in_the_middle_is_found(house: House, name: str) -> None:
    with tampered(house, (f"DELETE FROM entry WHERE {OF} AND number = 4", (name,)), tables=("entry",)):
        assert "entry 4 breaks the chain" in problems(house, name)


def test_entries_missing_at_the_end_are_found_by_a_checkpoint(house: House, name: str) -> None:
    house.admin.post("/v1/checkpoints", status=201)
    *_, before, last = house.rows("entry", name)
    cut = (f"DELETE FROM entry WHERE {OF} AND number = %s", (name, last[1]))
    with tampered(house, cut, tables=("entry",)):
        assert f"a checkpoint saw entry {last[1]}" in problems(house, name)
    # With the head mended too there is nothing but the checkpoint to find it.
    replayed = evidence.ledger_book.replay(
        (Link(number=row[1], previous=row[2], hash=row[3]), row[7]) for row in house.rows("entry", name)[:-1]
    )
    mend = ("UPDATE population SET number = %s, hash = %s, root = %s WHERE name = %s",
            (before[1], before[3], replayed.chain.head.root, name))  # fmt: skip
    with tampered(house, cut, mend, tables=("population", "entry")):
        found = problems(house, name)
        assert f"a checkpoint saw entry {last[1]}" in found
    assert problems(house, name) == ""


def test_a_head_that_moved_is_found(house: House, name: str) -> None:
    last = house.rows("entry", name)[-1][1]
    for column, value in (("number", last - 1), ("number", last + 1), ("hash", bytes(32)), ("root", bytes(32))):
        moved = (f"UPDATE population SET {column} = %s WHERE name = %s", (value, name))
        with tampered(house, moved, tables=("population",)):
            assert "the head of the population is not the end of its log" in problems(house, name)
    assert problems(house, name) == ""


def test_holds_and_releases_that_were_changed_are_found(house: House, name: str) -> None:
    for statement, table, said in (
        (f"DELETE FROM hold WHERE {OF}", "hold", "open holds"),
        (f"UPDATE hold SET expires_at = expires_at + interval '1 year' WHERE {OF}", "hold", "open holds"),
        (f"DELETE FROM release WHERE {OF} AND number > 5", "release", "list of releases"),
    ):
        with tampered(house, (statement, (name,)), tables=(table,)):
            assert said in problems(house, name)
    with tampered(
        house,
        (f"INSERT INTO hold SELECT 'rel_planted', population_id, expires_at FROM hold WHERE {OF} LIMIT 1", (name,)),
        tables=("hold",),
    ):
        assert "open holds" in problems(house, name)


def test_cohorts_that_were_changed_are_found(house: House, name: str) -> None:
    assert len(house.rows("cohort", name)) > 2
    one = f"encode(digest, 'hex') = (SELECT min(encode(digest, 'hex')) FROM cohort WHERE {OF})"
    for statement in (
        f"UPDATE cohort SET datapoints = datapoints + 1 WHERE {OF} AND {one}",
        f"UPDATE cohort SET members = 'x' WHERE {OF} AND {one}",
        f"UPDATE cohort SET history = 'x' WHERE {OF} AND {one}",
        f"DELETE FROM cohort WHERE {OF} AND {one}",
        f"UPDATE cohort SET number = number - 1 WHERE {OF} AND {one}",
    ):
        with tampered(house, (statement, (name, name)), tables=("cohort",)):
            assert "stored cohorts" in problems(house, name)


def test_columns_beside_a_body_that_were_changed_are_found(house: House, name: str) -> None:
    for statement in (
        f"UPDATE entry SET kind = 'release.denied' WHERE {OF} AND kind = 'release.held'",
        f"UPDATE entry SET release = NULL WHERE {OF} AND release IS NOT NULL",
        f"UPDATE entry SET at = at - interval '1 day' WHERE {OF}",
    ):
        with tampered(house, (statement, (name,)), tables=("entry",)):
            assert "stored beside entry" in problems(house, name)


def test_a_checkpoint_that_was_changed_is_found(house: House, name: str) -> None:
    shown = house.auditor.get("/v1/checkpoints")["items"][0]
    payload, number = shown["payload"].encode(), shown["number"]
    forger = Ed25519PrivateKey.generate()
    forged = forger.sign(chain.pre_authentication_encoding(chain.CHECKPOINT_TYPE, payload))
    ours = forger.public_key().public_bytes_raw()
    for columns, values in (
        ("signature = %s", (bytes(64),)),
        ("payload = %s", (payload.replace(b'"at":"2', b'"at":"3'),)),
        ("payload = %s", (b"nonsense",)),
        ("public_key = %s, signature = %s", (ours, forged)),
    ):
        with tampered(
            house,
            (f"UPDATE checkpoint SET {columns} WHERE number = %s", (*values, number)),
            tables=("checkpoint",),
        ):
            assert f"the signature of checkpoint {number} is not genuine" in problems(house, name)
    for heads in (b"[]", b"nonsense", b"[{}]"):
        with tampered(
            house, ("UPDATE checkpoint SET heads = %s WHERE number = %s", (heads, number)), tables=("checkpoint",)
        ):
            assert f"checkpoint {number}" in problems(house, name)
    assert problems(house, name) == ""


def test_a_log_that_was_written_anew_is_found_by_its_decisions(house: House) -> None:
    """All hashes mended and no checkpoint kept: what is left is that the gate would not have decided so."""
    name = house.population(10)
    house.officer.commit(house.officer.hold(name, ({"ranges": [[0, 10]]}, pure(0.9)), delta=0.0))
    rows = house.rows("entry", name)
    book = None
    entries: list[tuple[bytes, bytes, bytes, int]] = []
    for row in rows:
        body = json.loads(row[7])
        if body["kind"] == "release.held":
            [part] = body["parts"]
            cheaper = " ".join(str(int(units) // 2) for units in part["spending"][""]["rho"].split())
            body["parts"] = [{**part, "spending": {"": {**part["spending"][""], "rho": cheaper}}}]
        spelled = canonical(body)
        if book is None:
            book = evidence.Book.of(spelled)
        else:
            book.apply(spelled)
        entries.append((spelled, book.chain.link.previous, book.chain.link.hash, row[1]))
    assert book is not None
    statements = [
        (
            f"UPDATE entry SET body = %s, previous = %s, hash = %s WHERE {OF} AND number = %s",
            (*entry[:3], name, entry[3]),
        )
        for entry in entries
    ]
    head = book.chain.head
    mend = ("UPDATE population SET hash = %s, root = %s WHERE name = %s", (head.hash, head.root, name))
    with tampered(house, *statements, mend, tables=("population", "entry")):
        assert "price" in problems(house, name)
