"""What pages count is counted over everything, and not over the page that is shown."""

from __future__ import annotations

import re

import pytest

from service.dashboard import audits as audit_pages
from service.dashboard import keys as key_pages
from service.operations import empirical, keys
from service.store.writer import Operation
from service.sweeper import checkpoint
from tests.service.harness import Caller, Local, local
from tests.service.test_refuted_evidence import violated


def test_violations_are_counted_on_whatever_page_they_are(
    service: Local, call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = call.population(count=60, epsilon=2.0, delta=1e-5)
    violated(call, service.parts, name)
    later = {"population": name, "mechanism": "dp-sgd", "audit": "weights after one step", "samples": 1000}
    call.ok("POST", "/v1/audits", later)
    monkeypatch.setattr(audit_pages, "_PAGE", 1)
    page = call("GET", f"/audits?population={name}").text
    assert "1 audit disproves a promise" in page
    found = call("GET", f"/audits?population={name}&status=violation").text
    assert f"dp-sgd in {name}</a>, which is blocked there until a policy lifts that." in found
    assert "audit 1 of its population" in found
    assert call.ok("GET", f"/v1/audits?population={name}&status=inconclusive")["items"] == []
    assert "This filter shows no audit." in call("GET", f"/audits?population={name}&status=consistent").text
    assert '<span class="joined">δ = 1e-05</span>, per user' in page  # beside what was promised
    assert "No audit here disproves its promise" in call("GET", f"/audits?population={name}&status=queued").text
    monkeypatch.setattr(audit_pages, "_PAGE", 50)
    assert "Both at δ = 1e-05, per user." in call("GET", f"/audits?population={name}").text


def test_a_mechanism_says_of_each_audit_how_far_it_came(service: Local, call: Caller) -> None:
    name = call.population(count=60, epsilon=2.0, delta=1e-5)
    asked = {"population": name, "mechanism": "dp-sgd", "audit": "weights after one step", "samples": 1000}
    planned, lost = (call.ok("POST", "/v1/audits", asked)["id"] for _ in range(2))
    with service.parts.database.transaction() as connection:
        connection.exec_driver_sql("UPDATE audit SET waits_since = now() - interval '1 day' WHERE id = %s", (lost,))
    decide = empirical.fall_silent(audit=lost, wait_seconds=60)
    operation = Operation(population=name, actor="tests", decide=decide, uses_sql=True)
    service.parts.writer.submit(operation).result(60)
    stages = {each["id"]: each["stage"] for each in call.ok("GET", "/mechanisms/dp-sgd.json")["audits"]}
    assert (stages[planned], stages[lost]) == ("planned", "abandoned")
    page = call("GET", "/mechanisms/dp-sgd").text
    assert "queued or running" in page
    assert "abandoned" in page


def test_who_planned_an_audit_and_why_is_told_where_the_ledger_may_be_read(service: Local, call: Caller) -> None:
    name = call.population(count=60, epsilon=2.0, delta=1e-5)
    asked = {"population": name, "mechanism": "dp-sgd", "audit": "weights after one step", "samples": 1000}
    planned = call.ok("POST", "/v1/audits", asked | {"reason": "before the autumn release"})["id"]
    path, number = f"/audits/{planned}", call.ok("GET", f"/v1/audits/{planned}")["planned_by"]
    entry = f"/populations/{name}/entry?number={number}"
    page = call("GET", path).text
    assert ": before the autumn release</dd>" in page
    assert f'href="{entry}">entry {number}</a>' in page
    assert "not started yet" in page
    key = {"Authorization": f"Bearer {keys.create(service.parts.database, name='p', roles=['pipeline'])['secret']}"}
    page = call("GET", path, headers=key).text
    assert "autumn" not in page
    assert entry not in page


def test_keys_that_have_ended_open_nothing_and_are_not_counted(
    service: Local, call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def live() -> int:
        count: int = call.ok("GET", "/keys.json")["live"]
        return count

    before, database = live(), service.parts.database
    keys.create(database, name="ended", roles=["worker"], expires_in_days=-1)
    assert live() == before
    revoked = keys.create(database, name="to be revoked", roles=["worker"])["id"]
    assert live() == before + 1
    keys.revoke(database, revoked)
    monkeypatch.setattr(key_pages, "_KEYS", 1)
    assert live() == before
    assert f"{before} key" in call("GET", "/keys").text


def test_what_is_signed_is_told_up_to_the_entry_that_was_signed() -> None:
    with local(checkpoint_seconds=14_400.0) as alone:
        call = alone.call
        name = call.population(count=10)
        ledger = f"/populations/{name}/ledger"
        assert "not yet; one is made every 4 hours" in call("GET", ledger).text
        assert "one is made every 4 hours" in call("GET", "/overview").text
        checkpoint(alone.parts)
        assert "up to this entry" in call("GET", ledger).text
        assert call.ok("GET", "/overview.json")["checkpoint"]["grown"] == 0
        call.ok("POST", f"/v1/populations/{name}/datapoints", {"count": 1})
        assert "up to entry 2; the rest is signed with the next" in call("GET", ledger).text
        assert "1 of 1 has entries since" in call("GET", "/overview").text
        other = call.population()
        assert "which does not have this ledger yet" in call("GET", f"/populations/{other}/ledger").text


def test_a_policy_says_who_is_over_it_and_what_frozen_means(service: Local, call: Caller) -> None:
    name = call.population(count=40, epsilon=1.0)
    call.propose(name, ({"ranges": [[0, 12]]}, {"kind": "pure_dp", "epsilon": 0.8}))
    path = f"/populations/{name}/policy"
    assert call.ok("GET", f"{path}.json")["over"] == 0
    call.ok("PUT", f"/v1{path}", {"reason": "less", "epsilon": 0.5})
    assert "12 users have more behind them already than the policy allows" in call("GET", path).text
    pipeline = keys.create(service.parts.database, name="nightly", roles=["pipeline"])["secret"]
    told = call.ok("GET", f"{path}.json", headers={"Authorization": f"Bearer {pipeline}"})
    assert told["over"] is None  # not told
    call.ok("POST", f"/v1/populations/{name}/status", {"status": "frozen", "reason": "a look"})
    frozen = re.sub(r"<[^>]+>", "", call("GET", path).text)
    assert "While frozen, nothing can be proposed, and what is held must not leave, until it is opened again." in frozen
    entry = call.ok("GET", f"/populations/{name}/ledger.json")["items"][0]["number"]
    assert re.search(rf"Frozen since 2\d{{3}}-\d\d-\d\d \d\d:\d\d UTC, by .+: a look \(entry {entry}\)\.", frozen)
    told = call.ok("GET", f"{path}.json", headers={"Authorization": f"Bearer {pipeline}"})["became"]
    assert {key for key, value in told.items() if value is not None} == {"at"}
    refused = call("GET", f"{path}/change?preview=yes&epsilon=9").text
    assert "ε may be at most 0.5, that of the policy in force: it is never raised. You asked for 9." in refused
    assert "δ: &#39;x&#39; is not a number." in call("GET", f"{path}/change?preview=yes&delta=x").text
