"""The forecast against numbers that were computed by hand: pure releases under a pure budget add up exactly."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from service import made_up
from service.api.context import Parts
from service.errors import Problem
from service.operations import outlooks
from service.operations.populations import MADE_UP, is_made_up
from service.sweeper import sweep
from tests.service.harness import Caller, fresh
from tests.service.test_refuted_evidence import SGD, violated

NOW = datetime.now(UTC).replace(microsecond=0)
CLAIMED = {
    "name": "output-perturbation-as-published",
    "parameters": {"epsilon": 0.1, "weights": 10, "lipschitz": "public"},
}
EVERYBODY, HALF = {"ranges": [[0, 40]]}, {"ranges": [[0, 20]]}


def pure(scope: dict[str, Any], epsilon: float) -> dict[str, Any]:
    return {"charges": [{"scope": scope, "event": {"kind": "pure_dp", "epsilon": epsilon}}], "kind": "other"}


@contextmanager
def history(
    parts: Parts,
    *,
    days: float,
    epsilon: float = 1.01,
    tasks: Sequence[tuple[str, dict[str, Any], float | None]] = (),
    **rest: Any,
) -> Iterator[tuple[str, made_up.MadeUp]]:
    """A population of 40 that is so many days old."""
    name = fresh("made")
    with made_up.history(parts, name, start=NOW - timedelta(days=days)) as maker:
        maker.create_population(name, unit="user", epsilon=epsilon, delta=1e-6, **{"preset": "pure"} | rest)
        maker.register_count(name, 40)
        for task, members, own in tasks:
            budget = None if own is None else {"epsilon": own, "delta": 1e-7}
            maker.create_task(name, task, members=members, budget=budget)
        yield name, maker


def released(maker: made_up.MadeUp, name: str, ago: timedelta, **proposal: Any) -> str:
    """One that was committed so long ago."""
    maker.at = NOW - ago
    told = maker.propose(population=name, **proposal)
    assert told["status"] == "held", told
    maker.commit(told["id"])
    return str(told["id"])


def ahead(parts: Parts, name: str, *, least: int = 1) -> dict[str, Any]:
    with parts.books.read(name) as book:
        period = outlooks.lately(book, at=NOW, least=least)
        assert period is not None
        refusal = outlooks.first_refused(parts.database, book, period, least=least)
        said = outlooks.forecast(book, period, refusal, at=NOW)
    assert said is not None
    return said


def at(days: float) -> str:
    return (NOW + timedelta(days=days)).isoformat(timespec="microseconds").replace("+00:00", "Z")


def test_the_first_refusal_is_the_one_that_finds_no_room(parts: Parts) -> None:
    """Four weeks of 0.15 for all and 0.05 for half: those have 0.8. Then 0.95, 1, and 1.15 is over 1.01."""
    with history(parts, days=28) as (name, maker):
        for week in range(4):
            ago = timedelta(weeks=4 - week)
            released(maker, name, ago - timedelta(days=1), **pure(EVERYBODY, 0.15))
            released(maker, name, ago - timedelta(days=4), **pure(HALF, 0.05))
    said = ahead(parts, name)
    first = said["first"]
    assert (said["days"], said["releases"]) == (28.0, 8)
    assert (first["task"], first["datapoints"], first["number"]) == (None, 20, 3)
    assert first["epsilon"]["spent"] == pytest.approx(0.8)
    assert first["at"] == at(8)  # the second week's first, a day into it
    assert first["would_bring_to"] == pytest.approx(1.15)
    assert [(each["at"], round(each["standing"], 9)) for each in first["ahead"]] == [(at(1), 0.95), (at(4), 1.0)]


def test_whole_repetitions_are_counted(parts: Parts) -> None:
    """Two weeks of 0.1: 0.2 behind everybody, four times two more bring 1, and the ninth is over 1.05."""
    with history(parts, days=14, epsilon=1.05) as (name, maker):
        last = [released(maker, name, timedelta(days=days), **pure(EVERYBODY, 0.1)) for days in (13, 6)]
    first = ahead(parts, name)["first"]
    assert (first["number"], first["like"], first["datapoints"]) == (9, last[0], 40)
    assert first["at"] == at(4 * 14 + 1)
    assert [round(each["standing"], 9) for each in first["ahead"]] == [round(0.3 + 0.1 * n, 9) for n in range(8)]
    assert first["would_bring_to"] == pytest.approx(1.1)


def test_a_tasks_own_budget_may_run_out_first(parts: Parts) -> None:
    """Of life 0.9 is left and goes by 0.1 a week; of the task's own 0.25, three fit no more than two."""
    tasks = [("all", EVERYBODY, None), ("own", HALF, 0.25)]
    event = {"kind": "pure_dp", "epsilon": 0.1}
    with history(parts, days=14, tasks=tasks) as (name, maker):
        for days in (13, 6):
            charges = [{"scope": {"task": "own"}, "event": event}]
            released(maker, name, timedelta(days=days), charges=charges, kind="other")
    first = ahead(parts, name)["first"]
    assert (first["task"], first["datapoints"], first["at"], first["number"]) == ("own", 20, at(1), 1)
    assert first["would_bring_to"] > 0.25


def test_what_cost_nobody_anything_does_not_count(parts: Parts) -> None:
    """Neither what was denied nor what was voided; and what was released a long time ago is over."""
    with history(parts, days=100) as (name, maker):
        released(maker, name, timedelta(days=50), **pure(EVERYBODY, 0.5))
        for days in (20, 10):
            released(maker, name, timedelta(days=days), **pure(HALF, 0.1))
        maker.at = NOW - timedelta(days=5)
        assert maker.propose(population=name, **pure(EVERYBODY, 0.9))["status"] == "denied"
        voided = maker.propose(population=name, **pure(EVERYBODY, 0.2))
        maker.void(voided["id"], reason="it crashed")
    said = ahead(parts, name)
    assert (said["days"], said["releases"]) == (30.0, 2)
    # 0.7 so far; two more come to 0.9, the next to 1, and the one after that is over.
    assert (said["first"]["number"], said["first"]["at"]) == (4, at(30 + 20))


def test_one_release_is_no_pace_and_the_first_day_tells_nothing(parts: Parts, call: Caller) -> None:
    with history(parts, days=6) as (name, maker):
        only = released(maker, name, timedelta(days=2), **pure(HALF, 0.4))
    page = call.ok("GET", f"/populations/{name}/budget.json")
    assert (page["forecast"]["releases"], page["forecast"]["first"]) == (1, None)
    assert (page["plan"]["like"], page["plan"]["first_refused"], page["plan"]["refused_at"]) == (only, 2, None)
    assert "too few to tell" in call("GET", f"/populations/{name}/budget", headers={"Accept": "text/html"}).text
    young = call.population(count=10)
    assert call.ok("GET", f"/populations/{young}/budget.json")["forecast"] is None


def test_what_costs_almost_nothing_is_refused_in_no_century(parts: Parts, call: Caller) -> None:
    with history(parts, days=10) as (name, maker):
        for days in (8, 4):
            released(maker, name, timedelta(days=days), **pure(EVERYBODY, 1e-6))
    first = call.ok("GET", f"/populations/{name}/budget.json")["forecast"]["first"]
    assert (first["at"], first["ahead"]) == (None, [])
    assert "within a century" in call("GET", f"/populations/{name}/budget").text


def test_of_very_many_repetitions_a_part_is_drawn(parts: Parts) -> None:
    """0.002 a day: 505 fit into 1.01, and 10 of them are there already."""
    with history(parts, days=10) as (name, maker):
        for days in range(10):
            released(maker, name, timedelta(days=days, hours=12), **pure(EVERYBODY, 0.00199))
    first = ahead(parts, name)["first"]
    assert first["number"] == 507 - 10 + 1  # 507 of them come to 1.00893
    drawn = [each["standing"] for each in first["ahead"]]
    assert len(drawn) <= outlooks.STEPS_AHEAD
    assert drawn == sorted(drawn)
    assert drawn[-1] == pytest.approx(507 * 0.00199)


def test_a_busy_population_is_looked_at_for_a_shorter_time(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlooks, "MOST_RELEASES", 3)
    with history(parts, days=20) as (name, maker):
        for days in (10, 8, 6, 4, 2):
            released(maker, name, timedelta(days=days), **pure(EVERYBODY, 0.01))
    said = ahead(parts, name)
    assert (said["days"], said["releases"]) == (8.0, 3)  # since the one before them


def test_the_pace_of_a_plan_is_that_of_releases_like_it(parts: Parts, call: Caller) -> None:
    """Half gets 0.1 every week, and everybody something else every day: only the first are like it."""
    with history(parts, days=28) as (name, maker):
        for days in range(20):
            released(maker, name, timedelta(days=days, hours=1), **pure({"ranges": [[20, 40]]}, 0.001))
        weekly = [timedelta(days=2 + 7 * week, hours=2) for week in range(3)]
        like = [released(maker, name, ago, **pure(HALF, 0.1)) for ago in weekly][-1]
    found = call.ok("GET", f"/populations/{name}/budget.json?like={like}&times=50")
    plan = found["plan"]
    assert (plan["alike"], plan["would_be_admitted"], plan["first_refused"]) == (3, 7, 8)  # 0.3 + 0.7 is within 1.01
    assert plan["refused_at"] == (
        datetime.fromisoformat(found["at"]) + timedelta(days=8 * found["forecast"]["days"] / 3)
    ).isoformat(timespec="microseconds").replace("+00:00", "Z")


def test_pipelines_are_told_nothing_of_a_few(parts: Parts, call: Caller) -> None:
    """As by the REST addresses: neither by the forecast, nor by what they ask to be repeated."""
    with history(parts, days=10) as (name, maker):
        for days in (8, 4):
            released(maker, name, timedelta(days=days), **pure(EVERYBODY, 0.01))
        alone = released(maker, name, timedelta(days=2), **pure({"ranges": [[5, 6]]}, 0.9))
    key = call.ok("POST", "/v1/keys", {"name": "a pipeline", "roles": ["pipeline"]})["secret"]
    path, opened = f"/populations/{name}/budget.json", {"Authorization": f"Bearer {key}"}
    told = call.ok("GET", path, headers=opened)
    assert told["forecast"]["releases"] == 2
    assert told["forecast"]["first"]["datapoints"] == 39
    assert alone not in [each["id"] for each in told["repeatable"]]
    assert told["plan"]["like"] != alone
    assert call("GET", f"{path}?like={alone}", headers=opened).status_code == 403
    officer = call.ok("GET", path)
    assert officer["forecast"]["first"]["datapoints"] == 1
    assert officer["plan"]["like"] == alone


def test_nobody_is_said_to_be_safe_where_a_few_were_left_out(parts: Parts, call: Caller) -> None:
    """Everybody has a history of their own: a pipeline is told of nobody, and not that nobody will run out."""
    with history(parts, days=10) as (name, maker):
        for days, first in ((8, 0), (6, 20)):
            released(maker, name, timedelta(days=days), **pure({"ranges": [[first, first + 20]]}, 0.01))
        for person in range(40):  # each with a history of their own
            released(maker, name, timedelta(days=2), **pure({"ranges": [[person, person + 1]]}, 0.001 * (person + 1)))
    key = call.ok("POST", "/v1/keys", {"name": "a pipeline", "roles": ["pipeline"]})["secret"]
    opened = {"Authorization": f"Bearer {key}"}
    told = call.ok("GET", f"/populations/{name}/budget.json", headers=opened)["forecast"]
    assert (told["releases"], told["first"], told["left_out"]) == (2, None, True)
    page = call("GET", f"/populations/{name}/budget", headers=opened).text
    assert "nobody of whom this key is told runs out" in page
    assert "they are left out, and may have no room sooner" in page
    assert "cost nobody anything" not in page
    assert not call.ok("GET", f"/populations/{name}/budget.json")["forecast"]["left_out"]


def test_under_a_policy_that_trims_nothing_is_said_to_be_refused(parts: Parts, call: Caller) -> None:
    with history(parts, days=10, tasks=[("all", EVERYBODY, None)]) as (name, maker):
        for days in (8, 4):
            released(maker, name, timedelta(days=days), **pure({"task": "all"}, 0.2))
        maker.change_policy(name, reason="nobody should wait for others", on_exhausted="trim")
    page = call("GET", f"/populations/{name}/budget").text
    going = page[page.index('id="ahead"') :]
    assert "is the first to leave somebody out" in going
    assert "leaves them out on" in going
    assert "number 4 leaves somebody out" in going
    assert "refused" not in re.sub(r"chart-refused", "", going)


def test_what_is_not_open_admits_nothing_whatever_budgets_have_room_for(parts: Parts, call: Caller) -> None:
    with history(parts, days=10, tasks=[("all", EVERYBODY, None)]) as (name, maker):
        for days in (8, 4):
            released(maker, name, timedelta(days=days), **pure({"task": "all"}, 0.2))
    address = f"/populations/{name}/budget"
    before = call.ok("GET", f"{address}.json")
    assert before["forecast"]["refused_at_once"] == before["plan"]["refused_at_once"] == []
    assert '<p class="lead">If the last 10 days' in call("GET", address).text
    for status, said in (("frozen", "Nothing is admitted while it is frozen."), ("closed", "admitted any more: it is")):
        call.ok("POST", f"/v1/populations/{name}/status", {"status": status, "reason": "an audit is under way"})
        told = call.ok("GET", f"{address}.json")
        assert told["forecast"]["first"]["number"] == before["forecast"]["first"]["number"]
        for each in (told["forecast"], told["plan"]):
            assert len(each["refused_at_once"]) == 1
            assert said in each["refused_at_once"][0]
        page = call("GET", address).text
        going = page[page.index('id="ahead"') :]
        assert '<p class="lead">By the budget alone, if the last 10 days repeat themselves' in going
        assert going.index(said) < going.index("is the first to be refused")
        assert re.search(f"{said}.* By the budget alone:", going[going.index('id="plan-result"') :])


def test_what_an_audit_blocks_or_the_policy_does_not_accept_is_refused_at_once(parts: Parts, call: Caller) -> None:
    with history(parts, days=10, epsilon=8.0, preset="mixed", accepts=["proved", "claimed"]) as (name, maker):
        for days in (8, 4):
            for mechanism in (SGD, CLAIMED):
                released(maker, name, timedelta(days=days), mechanism=mechanism, scope=EVERYBODY)
        maker.at = NOW - timedelta(days=1)
        maker.change_policy(name, reason="proofs alone", accepts=["proved"])
    claimed = f"Whatever is made by {CLAIMED['name']} is refused at once: it is claimed, which the policy does not"
    assert [each.removesuffix(" accept.") for each in ahead(parts, name)["refused_at_once"]] == [claimed]
    violated(call, parts, name)
    blocked = "Whatever is made by dp-sgd is refused at once: an audit blocks it."
    assert blocked in ahead(parts, name)["refused_at_once"]
    assert blocked in call("GET", f"/populations/{name}/budget").text


def test_there_is_one_forecast(parts: Parts, call: Caller) -> None:
    """REST and the page tell the same, of nobody whom the key may not see."""
    with history(parts, days=10) as (name, maker):
        for days in (8, 4):
            released(maker, name, timedelta(days=days), **pure(EVERYBODY, 0.01))
        released(maker, name, timedelta(days=2), **pure({"ranges": [[5, 6]]}, 0.9))
    key = call.ok("POST", "/v1/keys", {"name": "a pipeline", "roles": ["pipeline"]})["secret"]
    for headers, datapoints in (({}, 1), ({"Authorization": f"Bearer {key}"}, 39)):
        page = call.ok("GET", f"/populations/{name}/budget.json", headers=headers)
        first = call.ok("GET", f"/v1/populations/{name}/budget", headers=headers)["forecast"]["first"]
        assert "forecast" not in page["budget"]
        assert (first["datapoints"], first["number"]) == (datapoints, page["forecast"]["first"]["number"])
        assert first["days_left"] == pytest.approx(page["forecast"]["first"]["days_left"], abs=0.01)


# ---------------------------------------------------------------- what is made up


def test_a_made_up_history_has_its_times_and_says_what_it_is(parts: Parts, call: Caller) -> None:
    with history(parts, days=500) as (name, maker):
        made = released(maker, name, timedelta(days=400), **pure(HALF, 0.1))
    entries = call.entries(name)
    assert {each["body"]["actor"] for each in entries} == {MADE_UP}
    days = [(NOW - datetime.fromisoformat(each["body"]["at"])).total_seconds() / 86_400 for each in entries]
    assert days == [500, 500, 400, 400]
    call.verify(name)
    with parts.books.read(name) as book:
        assert is_made_up(book)
    assert "made up" in call("GET", f"/populations/{name}/budget").text
    real = call.population(count=40)
    call.propose(real, (HALF, {"kind": "pure_dp", "epsilon": 0.1}))
    with parts.books.read(real) as book:
        assert not is_made_up(book)
    assert "made up" not in call("GET", f"/populations/{real}/budget").text
    assert made in call("GET", f"/populations/{name}/releases").text


def test_nobody_can_say_when_something_happened(call: Caller) -> None:
    """Over HTTP an entry has the time at which it is decided."""
    name = call.population(count=10)
    for more in ({"at": "2020-01-01T00:00:00Z"}, {"actor": MADE_UP}):
        body = {"population": name, **pure(HALF, 0.1), **more}
        assert call("POST", "/v1/releases", body).status_code == 422


def test_holds_of_a_history_in_the_making_are_left_alone(parts: Parts) -> None:
    with history(parts, days=50) as (name, maker):
        maker.at = NOW - timedelta(days=40)
        held = maker.propose(population=name, hold_seconds=60, **pure(HALF, 0.1))["id"]
        sweep(parts)
        assert maker.commit(held)["status"] == "committed"
        left = maker.propose(population=name, hold_seconds=60, **pure(HALF, 0.1))["id"]
    sweep(parts)
    with parts.books.read(name) as book:
        assert book.releases[left].status == "expired"
    with parts.database.transaction() as connection:
        count = connection.execute(text("SELECT count(*) FROM hold WHERE release = :id"), {"id": left})
        assert count.scalar_one() == 0


def test_a_release_that_nobody_knows_cannot_be_repeated(parts: Parts, call: Caller) -> None:
    name = call.population(count=10)
    with parts.books.read(name) as book, pytest.raises(Problem):
        outlooks.repeated(parts.database, book, "rel_x", times=1, period=None, at=NOW)
