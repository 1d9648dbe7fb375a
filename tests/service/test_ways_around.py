"""Ways around a budget or a role that somebody thought of, each closed."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import replace
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import pytest

from service.app import running
from service.errors import WrongSecrets
from service.operations import keys
from service.store.writer import Idempotency
from tests.service.fixtures_behaviour import Caller, House, pure
from tests.service.test_windows import chain, proposal, size

pytest_plugins = ("tests.service.fixtures_behaviour",)


def another_pipeline(house: House) -> Caller:
    return Caller(house.client, keys.create(house.parts.database, name="another", roles=["pipeline"])["secret"])


def test_other_secrets_cannot_make_strangers_of_known_people(house: House) -> None:
    """Under another secret every key would be new, with a full budget."""
    with tempfile.TemporaryDirectory(prefix="stint-", dir="/tmp") as folder:
        settings = replace(house.parts.settings, database_url=house.database_url, data=Path(folder))
        with pytest.raises(WrongSecrets, match="not those of this database"), running(settings, sweeps=False):
            pass


def test_a_window_cannot_name_a_task_that_is_not_charged(house: House) -> None:
    name = house.population(size("full", 1))
    task = {"name": "t", "members": {"ranges": [[0, 5]]}, "budget": {"epsilon": 0.01, "delta": 1e-7}}
    house.officer.post(f"/v1/populations/{name}/tasks", task, status=201)
    refused = house.pipeline.post("/v1/releases", {**proposal(name, 0), "task": "t"}, status=422)
    assert "leave this out" in refused["detail"]
    house.pipeline.post("/v1/releases", {**proposal(name, 0), "scope": {"ranges": [[0, 10]]}}, status=422)


def test_a_proposal_may_be_stricter_than_the_policy_and_not_laxer(house: House) -> None:
    name = house.population(10)
    house.officer.hold(name, ({"ranges": [[0, 5]]}, pure(0.9)))
    asked = {"population": name, "charges": [{"scope": {"ranges": [[0, 10]]}, "event": pure(0.5)}]}
    house.pipeline.post("/v1/releases", {**asked, "on_exhausted": "trim"}, status=403)
    house.officer.put(f"/v1/populations/{name}/policy", {"reason": "so be it", "on_exhausted": "trim"})
    assert house.pipeline.post("/v1/releases", {**asked, "on_exhausted": "deny"}, status=201)["status"] == "denied"
    held = house.pipeline.post("/v1/releases", asked, status=201)
    assert held["decision"]["trimmed"] == 5
    (charge,) = house.as_("worker").get(f"/v1/releases/{held['id']}/members")["charges"]
    assert _ordinals(charge["bitmap"]) == [5, 6, 7, 8, 9]
    house.pipeline.get(f"/v1/releases/{held['id']}/members", status=403)


def _ordinals(text: str) -> list[int]:
    from accountant.book import bitmap_from

    return list(bitmap_from(text))


def test_a_hold_that_ran_out_is_spent_even_before_anybody_looked(house: House) -> None:
    name = house.population(10)
    release = house.pipeline.hold(name, ({"ranges": [[0, 10]]}, pure(0.5)), hold_seconds=1)
    time.sleep(1.1)
    house.pipeline.post(f"/v1/releases/{release}/void", {"reason": "too late"}, status=409)
    reading = house.officer.reading(name, 0)
    assert reading["spent"] + reading["held"] == pytest.approx(0.5)


def test_a_pipeline_resolves_only_what_it_proposed(house: House) -> None:
    name = house.population(10)
    release, other = house.pipeline.hold(name, ({"ranges": [[0, 10]]}, pure(0.1))), another_pipeline(house)
    other.post(f"/v1/releases/{release}/void", {"reason": "not mine"}, status=403)
    other.post(f"/v1/releases/{release}/commit", {}, status=403)
    assert house.officer.post(f"/v1/releases/{release}/void", {"reason": "an officer may"})["status"] == "voided"


def test_a_step_that_was_paid_twice_stays_paid_when_one_is_voided(house: House) -> None:
    name = house.population(size("full", 3), epsilon=3.0)
    first = house.pipeline.post("/v1/releases", proposal(name, 0), status=201)
    house.pipeline.commit(first["id"])
    again = house.pipeline.post("/v1/releases", proposal(name, 0), status=201)
    house.pipeline.post(f"/v1/releases/{again['id']}/void", {"reason": "a duplicate"})
    assert house.pipeline.post("/v1/releases", proposal(name, 1, chain=chain(1)), status=201)["status"] == "held"


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_no_depth_of_unions_hides_a_name(house: House, depth: int) -> None:
    """Neither who is registered nor their ordinals come out of the refusal."""
    name = house.population()
    house.officer.post(f"/v1/populations/{name}/datapoints", {"keys": ["alice"]}, status=201)
    for key in ("alice", "nobody"):
        scope: dict[str, Any] = {"keys": [key]}
        for _ in range(depth):
            scope = {"union": [scope]}
        asked = {"population": name, "charges": [{"scope": scope, "event": pure(0.1)}]}
        refused = house.pipeline.ask("POST", "/v1/releases", asked, status=403)
        assert "bitmap" not in refused.text
        task = {"name": "t", "members": scope}
        house.pipeline.ask("POST", f"/v1/populations/{name}/tasks", task, status=403)


def test_scopes_that_cut_each_other_to_pieces_are_refused_quickly(house: House) -> None:
    name = house.population(100_000)
    charges = [
        {"scope": {"ranges": [[(i * 7919 + j * 104_729) % 99_000, (i * 7919 + j * 104_729) % 99_000 + 900]
                              for j in range(30)]}, "event": pure(1e-6)}
        for i in range(100)
    ]  # fmt: skip
    asked = {"population": name, "charges": charges}
    assert "cut each other" in house.pipeline.post("/v1/releases", asked, status=422)["detail"]
    many = {"population": name, "charges": [{"scope": {"ranges": [[0, 1]]}, "event": pure(1e-6)}] * 101}
    house.pipeline.post("/v1/releases", many, status=422)


def test_the_service_may_not_move_a_key_to_another_ordinal(house: House) -> None:
    with house.superuser() as connection, connection.transaction():
        connection.execute("SET LOCAL ROLE stint_service")
        with pytest.raises(Exception, match="permission denied"), connection.transaction():
            connection.execute("UPDATE datapoint SET ordinal = 0")


# ---------------------------------------------------------------- what a fresh look found


def test_a_lost_connection_costs_nobody_a_decision(house: House) -> None:
    """The writers keep their connections; one that the database ended is replaced before anybody notices."""
    population = house.population(100)
    for _ in range(3):
        assert house.pipeline.propose(population, ({"ranges": [[0, 100]]}, pure(0.01)))["status"] == "held"
        with house.superuser() as connection:
            ended = connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            ).fetchall()
        assert ended
    assert house.pipeline.propose(population, ({"ranges": [[0, 100]]}, pure(0.01)))["status"] == "held"
    assert house.parts.writer.is_alive
    assert len(house.rows("release", population)) == 4


def test_who_reads_the_database_can_try_out_no_keys(house: House) -> None:
    """Requests that hold keys leave digests of themselves behind; without the secret none can be guessed."""
    name = house.population()
    address = f"/v1/populations/{name}/datapoints"
    key = {"Idempotency-Key": house.new_name("k")}
    house.officer.post(address, {"keys": ["alice", "bob"]}, status=201)
    house.officer.post(f"{address}/erase", {"key": "alice"}, headers=key)
    asked = f"POST {address}/erase\n".encode() + json.dumps({"key": "alice"}).encode()
    stored = {bytes(digest) for row in house.rows("idempotency") for digest in row[:2]}
    assert not stored & {sha256(asked).digest(), blake2b(asked, digest_size=32).digest()}
    known = Idempotency.of(
        actor=house.parts.doorkeeper.admit(house.secrets["officer"]).id,
        key=key["Idempotency-Key"],
        request=asked,
        secret=house.parts.secrets.datapoints,
    )
    assert {known.id, known.digest} <= stored


@pytest.mark.parametrize(
    "scope",
    [
        {"ranges": [[3, 4]]},
        {"ranges": [[0, 50], [60, 69]]},
        {"union": [{"ranges": [[0, 50]]}, {"ranges": [[60, 61]]}]},
    ],
)
def test_a_pipeline_asks_about_nobody_in_particular(house: House, scope: dict[str, Any]) -> None:
    """A range of a few is a way to name them, and their reading would be the answer."""
    population = house.population(100)
    body = {"population": population, "charges": [{"scope": scope, "event": pure(0.01)}]}
    for path in ("/v1/releases", "/v1/releases?dry_run=true"):
        house.pipeline.post(path, body, status=403)
    house.pipeline.post(f"/v1/populations/{population}/tasks", {"name": "few", "members": scope}, status=403)
    assert house.officer.post("/v1/releases", body, status=201)["status"] == "held"
    assert house.pipeline.propose(population, ({"ranges": [[0, 50], [60, 70]]}, pure(0.01)))["status"] == "held"


def test_a_pipeline_sees_no_window_of_a_few(house: House) -> None:
    population = house.population(100)
    path = f"/v1/populations/{population}"
    assert len(house.pipeline.get(f"{path}/budget", windows=100)["windows"]) == 10
    assert len(house.auditor.get(f"{path}/budget", windows=100)["windows"]) == 100
    house.pipeline.post(f"{path}/tasks", {"name": "few", "members": {"next": 9}}, status=403)
    house.pipeline.post(f"{path}/tasks", {"name": "ten", "members": {"next": 10}}, status=201)


def test_a_window_model_cannot_pass_by_its_schedule(house: House) -> None:
    population = house.population(100)
    charges = [{"scope": {"ranges": [[0, 100]]}, "event": pure(0.01)}]
    refused = house.pipeline.post(
        "/v1/releases", {"population": population, "kind": "window_model", "charges": charges}, status=422
    )
    assert refused["field"] == "kind"
    labels = {"name": "label-release", "parameters": {"epsilon": 0.1, "delta": 1e-8}}
    asked = {"population": population, "mechanism": labels, "scope": {"ranges": [[0, 100]]}}
    assert house.pipeline.post("/v1/releases", {**asked, "kind": "weights"}, status=422)["field"] == "kind"
    assert house.pipeline.post("/v1/releases", asked, status=201)["kind"] == "labels"


def test_a_fault_does_not_cost_the_population_its_book(house: House) -> None:
    """Reading a long log again takes seconds: nobody can make the service do it by asking for nonsense."""
    population = house.population(100)
    path = f"/v1/populations/{population}"
    book = house.parts.books.slot(population).book
    assert book is not None
    house.officer.post(f"{path}/datapoints", {"count": 2**32}, status=422)
    house.officer.post(f"{path}/datapoints", {"count": 2**32 - 99}, status=422)
    members = {"ranges": [[0, 100]]}
    house.officer.post(f"{path}/tasks", {"name": "a", "members": members, "parts": {"\ud800": members}}, status=422)
    house.officer.post(f"{path}/tasks", {"name": "\ud800", "members": members}, status=422)
    assert house.parts.books.slot(population).book is book
