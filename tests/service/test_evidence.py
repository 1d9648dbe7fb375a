"""Evidence: an outsider checks it from HTTP answers alone, and whatever is changed in the database is found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from hashlib import sha256
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from sqlalchemy import Connection

from accountant import chain
from accountant.book import Book, replay
from accountant.canonical import canonical
from accountant.chain import Head, HeadProof, Link
from accountant.errors import BrokenChain, BrokenProof
from accountant.events import event_to_json
from accountant.merkle import leaf_hash, verify_consistency, verify_inclusion
from service.client import dp_sgd, sliding_window
from service.operations import datapoints, releases
from service.store.writer import Decide, Operation, Outcome
from service.sweeper import checkpoint
from tests.service.fixtures_behaviour import House, gaussian, pure
from trainers.catalog import mechanism

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
    cursor: dict[str, Any] = {}
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
    after = house.everything()
    [noted] = set(after.pop("verification")) - set(before.pop("verification"))  # when, how much of it, and that it was
    assert noted[2:] == (found["entries"], True)
    assert after == before
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
    replayed = replay(
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
    shown = house.auditor.get("/v1/checkpoints")["items"][-1]
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
            book = Book.of(spelled)
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


# ---------------------------------------------------------------- what was appended in the regular way, and is wrong


def appended(house: House, name: str, operation: Decide, **changes: Any) -> str:
    """Append the bodies of an operation with other fields, as a service would that checks nothing; the last release."""

    def decide(book: Book, at: datetime, connection: Connection | None) -> Outcome:
        outcome = operation(book, at, connection)
        bodies = [{**body, **changes} for body in outcome.bodies]
        return replace(outcome, bodies=bodies, held=None, respond=lambda _: {"release": bodies[-1].get("release")})

    done = Operation(population=name, actor="somebody", decide=decide)
    return str(house.parts.writer.submit(done).result(30).document["release"])


def written(body: dict[str, Any]) -> Decide:
    return lambda _book, _at, _connection: Outcome(bodies=[body], status=200, respond=lambda _: {})


def voided(release: str) -> Decide:
    return written({"kind": "release.voided", "release": release, "reason": "x"})


def charging(scope: dict[str, Any], event: dict[str, Any], **declared: Any) -> Decide:
    return releases.propose(
        releases.Proposal(
            kind="weights", charges=[{"scope": scope, "event": event}], hold_seconds=60, declared=declared
        )
    )


def running(mechanism: dict[str, Any], scope: dict[str, Any] | None = None) -> Decide:
    return releases.propose(
        releases.Proposal(
            kind="weights", mechanism=mechanism, scope=scope, hold_seconds=60, declared={"mechanism": mechanism}
        )
    )


ALL: dict[str, Any] = {"ranges": [[0, 10]]}


def test_a_void_after_the_hold_ran_out_is_found(house: House) -> None:
    name = house.population(10)
    late = appended(house, name, charging(ALL, pure(0.5)), expires_at="2026-01-01T00:00:00.000000Z")
    assert problems(house, name) == ""
    appended(house, name, voided(late))
    assert f"when release '{late}' ran out: entry 4 voids it" in problems(house, name)


def with_reading(operation: Decide, **changed: float) -> Decide:
    """The same decision, which says something else of ε."""

    def decide(book: Book, at: datetime, connection: Connection | None) -> Outcome:
        outcome = operation(book, at, connection)
        [body] = outcome.bodies
        told = body["decision"]
        bodies = [{**body, "decision": {**told, "epsilon": {**told["epsilon"], **changed}}}]
        return replace(outcome, bodies=bodies)

    return decide


@pytest.mark.parametrize(
    ("epsilon", "changed", "said"),
    [
        (0.25, {"after": 0.3}, "says of ε after 0.3 where the log leads to 0.75"),
        (0.25, {"before": 0.0}, "says of ε before 0 where the log leads to 0.5"),
        (0.25, {"budget": 2.0}, "says of ε budget 2 where the log leads to 1.0"),
        (0.75, {"before": 0.75}, "says of ε before 0.75 where the log leads to 0.5"),
    ],
)
def test_a_recorded_reading_that_the_log_does_not_lead_to_is_found(
    house: House, epsilon: float, changed: dict[str, float], said: str
) -> None:
    """The charges are right, and what was told of them is not."""
    name = house.population(10, filter={"preset": "pure"}, delta=0.0)
    house.officer.commit(house.officer.hold(name, ({"ranges": [[0, 5]]}, pure(0.5))))
    house.officer.hold(name, ({"ranges": [[5, 10]]}, pure(0.25)))
    planted = appended(house, name, with_reading(charging(ALL, pure(epsilon)), **changed))
    assert problems(house, name) == f"release {planted}, of entry 6, {said}"


def test_recorded_readings_are_compared_whatever_happened(house: House) -> None:
    """Trimmed, denied, under a lower budget: as told, so rebuilt."""
    name = house.population(20, on_exhausted="trim")
    path = f"/v1/populations/{name}"
    house.officer.hold(name, ({"ranges": [[0, 5]]}, pure(0.9)))
    assert house.officer.propose(name, (ALL, pure(0.4)))["decision"]["trimmed"] == 5
    assert house.officer.propose(name, ({"ranges": [[0, 5]]}, pure(0.4)))["status"] == "denied"
    etag = {"If-Match": house.officer.ask("GET", f"{path}/policy").headers["ETag"]}
    house.officer.put(f"{path}/policy", {"epsilon": 0.5, "reason": "less"}, headers=etag)
    house.officer.hold(name, ({"ranges": [[10, 20]]}, gaussian(40.0)))
    assert house.officer.propose(name, ({"ranges": [[0, 20]]}, pure(0.3)))["decision"]["trimmed"] == 10
    assert problems(house, name) == ""


def test_a_decision_in_a_population_that_is_not_open_is_found(house: House) -> None:
    for status in ("frozen", "closed"):
        name = house.population(10)
        hold = house.officer.hold(name, (ALL, pure(0.5)))
        body = next(json.loads(row[7]) for row in house.rows("entry", name) if row[4] == "release.held")
        house.officer.post(f"/v1/populations/{name}/status", {"status": status, "reason": "x"})
        house.officer.post(f"/v1/releases/{hold}/void", {"reason": "it crashed"})
        assert problems(house, name) == ""
        kept = {key: value for key, value in body.items() if key not in {"at", "actor"}}
        appended(house, name, written({**kept, "release": f"rel_planted_{status}"}))
        assert f"expected an open population: entry 6 decides on release 'rel_planted_{status}'" in problems(
            house, name
        )


def test_a_void_under_a_release_that_leans_on_it_is_found(house: House) -> None:
    name = house.population(30)
    first, _ = (appended(house, name, running(sliding_window(k=2, w0=5, step=step, epsilon=0.9))) for step in (0, 1))
    assert problems(house, name) == ""
    appended(house, name, voided(first))
    assert "entry 5 voids it under" in problems(house, name)


def test_a_hold_charges_what_its_mechanism_does(house: House) -> None:
    mild = dp_sgd(noise_multiplier=20.0, sampling_probability=0.01, steps=10, clip_norm=1)
    harsh = dp_sgd(noise_multiplier=2.0, sampling_probability=0.01, steps=10, clip_norm=1)
    window = sliding_window(k=2, w0=5, step=0, epsilon=0.9)
    shifted = sliding_window(k=2, w0=5, step=0, epsilon=0.9, offset=10)
    noisier = sliding_window(k=2, w0=5, step=0, epsilon=0.8)
    narrow = {"name": "dp-sgd", "parameters": {**mild["parameters"], "steps": 0}}
    events, named = "does not charge the events that 'dp-sgd' has", "does not name the models that 'sliding-window'"
    for decide, changes, said in (
        (running(mild, ALL), {}, ""),
        (running(window), {}, ""),
        (charging(ALL, pure(0.1), state={"x": 1}), {}, ""),
        (running(mild, ALL), {"declared": {"mechanism": harsh}}, events),
        (charging(ALL, pure(0.1)), {"declared": {"mechanism": mild}}, events),
        (running(mild, ALL), {"declared": {"mechanism": narrow}}, "parameters that it does not take: parameters.steps"),
        (running(mild, ALL), {"declared": {"mechanism": "dp-sgd"}}, "without a name or parameters"),
        (running(window), {"declared": {"mechanism": noisier}}, "does not charge the events that 'sliding-window' has"),
        (running(window), {"declared": {"mechanism": shifted}}, "does not charge [1"),
        (running(window), {"stream": {"id": "s", "trained": [], "reused": []}}, named),
        (charging(ALL, pure(0.1)), {"stream": {"id": "s", "trained": ["m"], "reused": []}}, "declares no mechanism"),
    ):
        name = house.population(30)
        release = appended(house, name, decide, **changes)
        found = problems(house, name)
        assert said in found, changes
        assert (f"release {release}, of entry 3, " in found) == bool(said), found


def test_a_mechanism_that_is_no_longer_there_is_a_note(house: House) -> None:
    name = house.population(10)
    retired = {"mechanism": {"name": "retired", "parameters": {}}}
    for _ in range(2):
        appended(house, name, charging(ALL, pure(0.1)), declared=retired)
    found = house.auditor.post(f"/v1/populations/{name}/ledger/verify")
    assert (found["ok"], found["problems"]) == (True, [])
    [note] = found["notes"]
    assert note.startswith("mechanism 'retired' is not in the catalog of this version: the charges of 2 holds")


def test_a_hold_that_its_policy_would_not_accept_is_a_note(house: House) -> None:
    name = house.population(10)
    claimed: dict[str, Any] = {
        "mechanism": {"name": "output-perturbation-as-published", "parameters": {"epsilon": 0.1, "weights": 4}}
    }
    events = mechanism("output-perturbation-as-published").quote(
        claimed["mechanism"]["parameters"], adjacency="add_remove"
    )
    [charge] = events.charges
    appended(house, name, charging(ALL, event_to_json(charge.event)), declared=claimed)
    found = house.auditor.post(f"/v1/populations/{name}/ledger/verify")
    assert (found["ok"], found["problems"]) == (True, [])
    [note] = found["notes"]
    assert note.startswith("mechanism 'output-perturbation-as-published' is claimed in the catalog of this version: 1")


# ---------------------------------------------------------------- which key has which ordinal


@contextmanager
def keys_changed(house: House, name: str, *statements: str) -> Iterator[None]:
    """Change the keys of one population behind the service's back; afterwards they are as before."""
    with house.superuser() as connection:
        kept = house.rows("datapoint", name)
        try:
            for statement in statements:
                assert connection.execute(statement.encode(), (name,)).rowcount, "it changed something"
            yield
        finally:
            connection.execute(f"DELETE FROM datapoint WHERE {OF}".encode(), (name,))
            with connection.cursor() as cursor:
                cursor.executemany("INSERT INTO datapoint VALUES (%s, %s, %s, %s)", kept)
            assert house.rows("datapoint", name) == kept


def move(before: int, after: int) -> str:
    return f"UPDATE datapoint SET ordinal = {after} WHERE {OF} AND ordinal = {before}"


ADD = "INSERT INTO datapoint SELECT id, 'twenty bytes of a key', {} FROM population WHERE name = %s"


def with_keys(house: House) -> tuple[str, str]:
    """Ordinals 0 to 19 and 30 to 34 have keys, those between none; one was erased, one more came back."""
    name = house.population()
    address = f"/v1/populations/{name}/datapoints"
    house.officer.post(address, {"keys": [f"p{n}" for n in range(20)]}, status=201)
    house.officer.post(address, {"count": 10}, status=201)
    house.officer.post(address, {"keys": [f"q{n}" for n in range(5)]}, status=201)
    for key in ("p3", "q4"):
        house.officer.post(f"{address}/erase", {"key": key})
    house.officer.post(address, {"keys": ["q4", "p1"]}, status=201)
    house.officer.post(address, {"count": 1}, status=201)
    return name, address


def test_keys_that_were_changed_are_found_and_said_where(house: House) -> None:
    name, _ = with_keys(house)
    assert problems(house, name) == ""
    first, last = "ordinals 0 to 19, of entry 2, ", "ordinals 30 to 34, of entry 4, "
    for statements, said in (
        ([f"DELETE FROM datapoint WHERE {OF} AND ordinal = 7"], f"{first}were registered with 20 keys, and 19 are"),
        ([f"DELETE FROM datapoint WHERE {OF} AND ordinal = 3"], f"{first}were registered with 20 keys, and 19 are"),
        ([f"DELETE FROM datapoint WHERE {OF} AND ordinal >= 30"], f"{last}were registered with 5 keys, and 0 are"),
        ([ADD.format(25)], "ordinals 20 to 29, of entry 3, were registered without keys, and 1 have one"),
        ([ADD.format(35)], "ordinals 35 to 35, of entry 8, were registered without keys, and 1 have one"),
        ([ADD.format(36)], "there are keys from ordinal 36 on, where nobody was registered"),
        ([move(7, 25)], f"{first}were registered with 20 keys, and 19 are"),
        ([move(7, 99), move(8, 7), move(99, 8)], f"{first}do not have the keys that were registered"),
        ([move(7, 99), move(31, 7), move(99, 31)], f"{last}do not have the keys that were registered"),
        ([f"UPDATE datapoint SET digest = 'twenty bytes of keys' WHERE {OF} AND ordinal = 7"], f"{first}do not have"),
        (
            [f"DELETE FROM datapoint WHERE {OF} AND ordinal = 7", ADD.format(7)],
            f"{first}do not have the keys that were registered",
        ),
    ):
        with keys_changed(house, name, *statements):
            assert said in problems(house, name), statements
    assert problems(house, name) == ""


def test_a_byte_that_moves_from_one_digest_to_the_next_is_found(house: House) -> None:
    """All bytes in their order, and yet two keys that nobody knows: those people would begin anew."""
    name, _ = with_keys(house)
    digests = {row[2]: row[1] for row in house.rows("datapoint", name)}
    joined = digests[0] + digests[1]
    shorter, longer = joined[:19].hex(), joined[19:].hex()
    with keys_changed(
        house,
        name,
        f"UPDATE datapoint SET digest = decode('{shorter}', 'hex') WHERE {OF} AND ordinal = 0",
        f"UPDATE datapoint SET digest = decode('{longer}', 'hex') WHERE {OF} AND ordinal = 1",
    ):
        assert "ordinals 0 to 19, of entry 2, do not have the keys that were registered" in problems(house, name)


def test_the_erasure_of_a_key_leaves_the_evidence_and_no_trace_of_the_key(house: House) -> None:
    name, address = with_keys(house)
    for number in range(0, 20, 2):
        house.officer.post(f"{address}/erase", {"key": f"p{number}"})
    assert problems(house, name) == ""
    log = house.auditor.ask("GET", f"/v1/populations/{name}/ledger/export").text
    for key in ("p0", "p1"):
        digest = datapoints.digest(house.parts.secrets.datapoints, name, key)
        assert f'"{key}"' not in log
        assert digest.hex() not in log


def test_an_old_log_that_says_nothing_of_keys_is_compared_as_far_as_it_goes(house: House) -> None:
    name = house.population()
    secret = house.parts.secrets.datapoints

    def as_before(operation: Decide) -> None:
        def decide(book: Book, at: datetime, connection: Connection | None) -> Outcome:
            outcome = operation(book, at, connection)
            bodies = [{key: value for key, value in body.items() if key != "keys"} for body in outcome.bodies]
            return replace(outcome, bodies=bodies)

        done = Operation(population=name, actor="somebody", decide=decide, uses_sql=True)
        house.parts.writer.submit(done).result(30)

    as_before(datapoints.register_digests([datapoints.digest(secret, name, f"p{n}") for n in range(5)]))
    as_before(datapoints.register_count(5))
    assert problems(house, name) == ""
    for statements, said in (
        ([f"DELETE FROM datapoint WHERE {OF} AND ordinal = 2"], "ordinals 0 to 4, of entry 2, were registered with 5"),
        ([ADD.format(7)], "ordinals 5 to 9, of entry 3, were registered with 5 keys, and 1 are there"),
        ([move(4, 9)], "ordinals 0 to 4, of entry 2, were registered with 5 keys, and 4 are there"),
        ([ADD.format(10)], "from ordinal 10 on"),
    ):
        with keys_changed(house, name, *statements):
            assert said in problems(house, name), statements
    assert problems(house, name) == ""
    house.officer.post(f"/v1/populations/{name}/datapoints", {"keys": ["new"]}, status=201)
    assert problems(house, name) == ""


def test_it_does_not_say_the_same_a_thousand_times(house: House) -> None:
    name = house.population()
    for number in range(30):
        house.officer.post(f"/v1/populations/{name}/datapoints", {"keys": [f"k{number}"]}, status=201)
    with keys_changed(house, name, f"DELETE FROM datapoint WHERE {OF}"):
        found = house.auditor.post(f"/v1/populations/{name}/ledger/verify")["problems"]
    assert len(found) == 20
    assert "ordinals 0 to 0, of entry 2, were registered with 1 keys, and 0 are there" in found
