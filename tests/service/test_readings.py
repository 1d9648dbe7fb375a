"""What is kept of a book between looks is what a look from the beginning would find."""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from service.api.context import Parts
from service.operations import lives, readings
from tests.service.harness import Caller


def test_standings_that_are_kept_are_those_of_now(call: Caller, parts: Parts) -> None:
    """Whatever moved since the last look: holds, what became of them, people, and the policy."""
    name = call.population(count=40, epsilon=2.0)

    def look() -> list[float]:
        with parts.books.read(name) as book:
            budget = book.policy.budget
            found = readings.everybody(book)
            cohorts = dict(book.ledger.cohorts.sizes())
            assert {history: each.datapoints for history, each in found.items()} == cohorts
            assert {history: each.meter for history, each in found.items()} == {
                history: budget.meter(readings.standing(budget, history)) for history in cohorts
            }
            return sorted(each.meter for each in found.values())

    seen = [look()]
    made = [
        call.propose(name, ({"ranges": [[start, start + 20]]}, {"kind": "gaussian", "noise_multiplier": 20.0}))["id"]
        for start in (0, 10, 20)
    ]
    seen.append(look())
    call.ok("POST", f"/v1/releases/{made[0]}/commit", {"artifact": {"sha256": "0" * 64}})
    call.ok("POST", f"/v1/releases/{made[1]}/void", {"reason": "the job was stopped"})
    seen.append(look())
    call.ok("POST", f"/v1/populations/{name}/datapoints", {"count": 5})
    seen.append(look())
    call.ok("PUT", f"/v1/populations/{name}/policy", {"reason": "to be sure", "delta": 1e-9})
    seen.append(look())
    assert all(before != after for before, after in pairwise(seen))  # each of them moved something


def test_a_life_has_the_times_of_its_entries(call: Caller, parts: Parts) -> None:
    name = call.population(count=10)
    made = [call.propose(name, ({"ranges": [[0, 10]]}, {"kind": "pure_dp", "epsilon": 0.1}))["id"] for _ in range(2)]
    call.ok("POST", f"/v1/releases/{made[0]}/commit", {"artifact": {"sha256": "0" * 64}})
    call.ok("POST", f"/v1/releases/{made[1]}/void", {"reason": "the job was stopped"})
    times = {
        entry["number"]: entry["body"]["at"] for entry in call.ok("GET", f"/v1/populations/{name}/ledger")["items"]
    }
    with parts.books.read(name) as book:
        steps = lives.life(parts.database, book, 3)
    assert [step.became for step in steps] == ["held", "held", "committed", "voided"]
    assert [step.at for step in steps] == [times[step.number] for step in steps]


def test_a_clock_that_was_set_back_takes_nothing_from_a_life() -> None:
    """Entries count in the order of the ledger, whatever their times are: the last reading is the one of now."""
    early, late = "2026-01-01T09:59:59.000000Z", "2026-01-01T10:00:00.000000Z"
    steps = [
        lives.Step(number=number, at=at, release=f"rel_{number}", became="held", spent=0.0, held=held)
        for number, at, held in ((2, late, 0.5), (4, early, 1.0))
    ]
    limits = [lives.Limit(number=1, at=early, epsilon=3.0), lives.Limit(number=3, at=early, epsilon=2.0)]
    assert lives.against(steps, limits) == [
        {"at": early, "spent": 0.0, "held": 0.0, "budget": 3.0},
        {"at": late, "spent": 0.0, "held": 1.0, "budget": 2.0},
    ]


def test_many_populations_can_be_looked_at_at_once(call: Caller, parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept makes room for what is looked at elsewhere, whoever comes between."""
    monkeypatch.setattr(readings, "_MOST_SEEN", 1)
    interval = sys.getswitchinterval()
    books = []
    for _ in range(4):
        with parts.books.read(call.population(count=3)) as book:
            books.append(book)

    def look(place: int) -> None:
        for turn in range(2000):
            readings.everybody(books[(place + turn) % len(books)])

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(len(books)) as pool:
            list(pool.map(look, range(len(books))))
    finally:
        sys.setswitchinterval(interval)


def pure(epsilon: float) -> dict[str, Any]:
    return {"kind": "pure_dp", "epsilon": epsilon}


def test_tasks_with_least_left_are_those_of_their_tighter_budget(call: Caller, parts: Parts) -> None:
    """What is available is the smaller of two shares: a task that is used up is not the one with most left."""
    name = call.population(count=40, epsilon=3.0)
    for place, (task, own, spent) in enumerate((("fresh", None, 0.25), ("capped", 0.2, 0.2), ("wide", 2.0, 0.5))):
        budget = {} if own is None else {"budget": {"epsilon": own, "delta": 1e-7}}
        scope = {"ranges": [[10 * place, 10 * place + 10]]}
        call.ok("POST", f"/v1/populations/{name}/tasks", {"name": task, "members": scope, **budget})
        assert call.propose(name, ({"task": task}, pure(spent)))["status"] == "held"
    denied = call.propose(name, ({"task": "capped"}, pure(0.01)))
    assert [each["code"] for each in denied["decision"]["reasons"]] == ["task_budget.exceeded"]
    with parts.books.read(name) as book:
        for most, listed in ((12, ["capped", "wide", "fresh"]), (1, ["capped"])):
            assert [each["name"] for each in readings.distribution(book, tasks=most)["tasks"]] == listed
        assert [each["name"] for each in readings.distribution(book)["tasks"]] == ["fresh", "capped", "wide"]
        assert readings.used_up(book) == 1
    shown = call.ok("GET", f"/populations/{name}/budget.json")
    assert shown["tasks_used_up"] == 1
    assert shown["budget"]["tasks"][0]["task_epsilon"]["available"] == 0.0
    page = re.sub(r"<[^>]+>", "", call("GET", f"/populations/{name}/budget").text)
    assert "Least is available in “capped”: 0 of its own budget of ε = 0.2 (δ = 1e-07, per user, upper bound)." in page
    assert "1 task has nothing left in its own budget for some members" in page
    assert "own, 1e-07" in page  # in the table; and of life where that is tighter
    assert "for life, 1e-06" in page
    overview = call.ok("GET", "/overview.json")
    assert any("nothing left in" in each and name in each for each in overview["beside"])


def test_the_tasks_with_least_left_are_found_exactly_among_many(call: Caller, parts: Parts) -> None:
    """By the largest release that still fits, whatever else a search for each of them would find."""
    name = call.population(count=60, epsilon=1.0)
    for place in range(20):
        task = {"name": f"t{place}", "members": {"ranges": [[3 * place, 3 * place + 3]]}}
        if place % 3 == 0:
            task["budget"] = {"epsilon": 0.5, "delta": 1e-7}
        call.ok("POST", f"/v1/populations/{name}/tasks", task)
        event = pure(0.02 * place + 0.01) if place % 2 else {"kind": "gaussian", "noise_multiplier": 12.0 + place}
        assert call.propose(name, ({"task": task["name"]}, event))["status"] == "held"
    with parts.books.read(name) as book:
        every = readings.distribution(book)["tasks"]
        found = readings.distribution(book, tasks=7)["tasks"]

    def share(task: dict[str, Any]) -> float:
        return min(readings.share_available(each) for each in (task["epsilon"], task["task_epsilon"]) if each)

    assert [share(each) for each in found] == sorted(map(share, every))[:7]


@pytest.mark.parametrize("epsilon", [2.0, 0.1, 1.81])
def test_edges_of_the_histogram_are_of_few_digits_and_whoever_is_at_one_is_above_it(
    epsilon: float, call: Caller, parts: Parts
) -> None:
    name = call.population(count=20, epsilon=epsilon)
    with parts.books.read(name) as book:
        untouched = readings.distribution(book)["histogram"]
    edges = [untouched[0]["from"], *(each["to"] for each in untouched)]
    assert all(len(repr(each)) <= 7 for each in edges), edges
    assert edges[0] == 0
    assert edges[-1] == epsilon
    assert [each["from"] for each in untouched[1:]] == edges[1:-1]
    assert call.propose(name, ({"ranges": [[0, 5]]}, pure(edges[3])))["status"] == "held"
    with parts.books.read(name) as book:
        found = {each["from"]: each["datapoints"] for each in readings.distribution(book)["histogram"]}
        reading = readings.worst_of_all(book).meter
    assert {lower: count for lower, count in found.items() if count} == {
        0.0: 15,
        edges[3 if reading >= edges[3] else 2]: 5,
    }
