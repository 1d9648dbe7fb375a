"""Populations, policies and tasks over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from pyroaring import BitMap

from accountant.book import bitmap_to
from service.client import Stint
from service.operations import populations
from tests.service.fixtures_behaviour import House, pure

pytest_plugins = ("tests.service.fixtures_behaviour",)


def test_a_population_is_made_once_and_shown(house: House) -> None:
    name = house.new_name()
    asked = {"name": name, "unit": "user", "adjacency": "add_remove", "budget": {"epsilon": 3.0, "delta": 1e-6}}
    made = house.officer.post("/v1/populations", asked, status=201)
    assert made["name"] == name
    assert made["status"] == "open"
    assert made["datapoints"] == 0
    assert made["promise"]["epsilon"] == 3.0
    assert made["promise"]["bound"] == "upper"
    assert made["promise"]["meaning"]
    assert made["budget"] == {"epsilon": 3.0, "delta": 1e-6}
    assert made["entry"]["number"] == 1
    assert house.pipeline.get(f"/v1/populations/{name}") == made
    again = house.officer.post("/v1/populations", asked, status=409)
    assert again["type"] == "urn:stint:problem:conflict"
    assert again["field"] == "name"


def test_a_list_goes_on_where_its_page_ended(house: House) -> None:
    stem = house.new_name("page")
    names = [f"{stem}-{letter}" for letter in "abcde"]
    for name in reversed(names):
        house.population(name=name)
    seen: list[str] = []
    cursor: dict[str, Any] = {}
    for _ in range(200):
        page = house.pipeline.get("/v1/populations", limit=2, **cursor)
        assert len(page["items"]) <= 2
        seen += [each["name"] for each in page["items"]]
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    assert [name for name in seen if name.startswith(stem)] == names
    assert len(seen) == len(set(seen))
    assert house.pipeline.get("/v1/populations", status=422, cursor="nonsense")["field"] == "cursor"
    assert house.pipeline.get("/v1/populations", status=422, limit=1001)["field"] == "limit"


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("name", {"name": "has space"}),
        ("name", {"name": "-begins-with-a-dash"}),
        ("name", {"name": "a/b"}),
        ("name", {"name": ""}),
        ("name", {"name": "x" * 101}),
        ("unit", {"unit": "household"}),
        ("adjacency", {"adjacency": "zero_out"}),
        ("budget.epsilon", {"budget": {"epsilon": 0, "delta": 1e-6}}),
        ("budget.epsilon", {"budget": {"epsilon": -1, "delta": 1e-6}}),
        ("budget.delta", {"budget": {"epsilon": 1, "delta": 1}}),
        ("budget.delta", {"budget": {"epsilon": 1}}),
        ("budget.preset", {"budget": {"epsilon": 1, "delta": 1e-6, "preset": "loose"}}),
        ("accepts", {"accepts": []}),
        ("budgets", {"budgets": 1}),
    ],
)
def test_what_cannot_be_promised_is_refused_with_its_field(house: House, field: str, changes: dict[str, Any]) -> None:
    asked = {"name": house.new_name(), "unit": "user", "budget": {"epsilon": 1.0, "delta": 1e-6}, **changes}
    problem = house.officer.post("/v1/populations", asked, status=422)
    assert problem["field"].startswith(field)


@pytest.mark.parametrize("preset", ["mixed", "gaussian", "pure"])
def test_presets(house: House, preset: str) -> None:
    name = house.population(10, filter={"preset": preset})
    release = house.officer.hold(name, ({"ranges": [[0, 10]]}, pure(0.5)))
    house.officer.commit(release)
    assert house.officer.reading(name, 3)["spent"] == pytest.approx(0.5)
    assert house.auditor.post(f"/v1/populations/{name}/ledger/verify")["ok"]


def test_a_policy_is_lowered_and_never_raised(house: House) -> None:
    name = house.population(100, epsilon=2.0, delta=1e-6)
    address = f"/v1/populations/{name}/policy"
    house.officer.commit(house.officer.hold(name, ({"ranges": [[0, 30]]}, pure(0.9))))
    first = house.pipeline.ask("GET", address, status=200)
    assert first.headers["ETag"] == '"1"'
    lowered = house.officer.put(address, {"reason": "a new law", "epsilon": 0.8})
    assert (lowered["version"], lowered["epsilon"], lowered["delta"]) == (2, 0.8, 1e-6)
    assert lowered["already_over"] == 30
    for change in ({"epsilon": 0.9}, {"epsilon": 2.0}, {"delta": 1e-5}):
        problem = house.officer.put(address, {"reason": "growth", **change}, status=422)
        assert problem["field"] == next(iter(change))
        assert "never raised" in problem["detail"]
    house.officer.put(address, {"reason": "less still", "delta": 1e-7})
    assert house.pipeline.get(address)["delta"] == 1e-7
    house.officer.put(address, {"reason": "back again", "delta": 1e-6}, status=422)
    # The promise stays what it was, and what is allowed is what the policy says.
    shown = house.pipeline.get(f"/v1/populations/{name}")
    assert shown["promise"]["epsilon"] == 2.0
    assert shown["budget"] == {"epsilon": 0.8, "delta": 1e-7}
    assert house.officer.propose(name, ({"ranges": [[40, 50]]}, pure(0.9)))["status"] == "denied"
    assert house.officer.propose(name, ({"ranges": [[0, 10]]}, pure(0.01)))["status"] == "denied"
    assert house.officer.propose(name, ({"ranges": [[40, 50]]}, pure(0.79)))["status"] == "held"
    assert house.auditor.post(f"/v1/populations/{name}/ledger/verify")["ok"]


def test_a_policy_changes_only_for_who_has_seen_it(house: House) -> None:
    name = house.population(1)
    address = f"/v1/populations/{name}/policy"
    house.officer.put(address, {"reason": "one", "on_exhausted": "trim"}, headers={"If-Match": '"1"'})
    problem = house.officer.put(address, {"reason": "two", "epsilon": 0.5}, status=412, headers={"If-Match": '"1"'})
    assert problem["type"] == "urn:stint:problem:precondition"
    house.officer.put(address, {"reason": "two", "epsilon": 0.5}, headers={"If-Match": '"2"'})
    house.officer.put(address, {"reason": "three", "epsilon": 0.4}, headers={"If-Match": "*"})
    policy = house.pipeline.get(address)
    assert (policy["version"], policy["on_exhausted"], policy["epsilon"]) == (4, "trim", 0.4)
    house.officer.put(address, {"epsilon": 0.3}, status=422)  # without a reason


def test_frozen_and_closed(house: House) -> None:
    name = house.population(10)
    status, scope = f"/v1/populations/{name}/status", {"ranges": [[0, 10]]}
    held = house.officer.hold(name, (scope, pure(0.1)))
    assert house.officer.post(status, {"status": "frozen", "reason": "an incident"})["status"] == "frozen"
    charge = {"population": name, "charges": [{"scope": scope, "event": pure(0.1)}]}
    assert "frozen" in house.officer.post("/v1/releases", charge, status=409)["detail"]
    dry = house.officer.post("/v1/releases?dry_run=true", charge)
    assert dry["decision"]["outcome"] == "denied"
    assert dry["decision"]["reasons"][0]["code"] == "population.status"
    house.officer.post(f"/v1/populations/{name}/datapoints", {"count": 1}, status=409)
    house.officer.commit(held)  # what is held already is resolved all the same
    assert house.officer.post(status, {"status": "open", "reason": "solved"})["status"] == "open"
    house.officer.post("/v1/releases", charge, status=201)
    assert house.officer.post(status, {"status": "closed", "reason": "the study ended"})["status"] == "closed"
    number = house.pipeline.get(f"/v1/populations/{name}")["entry"]["number"]
    assert house.officer.post(status, {"status": "closed", "reason": "again"})["entry"]["number"] == number
    house.officer.post(status, {"status": "open", "reason": "regret"}, status=409)
    house.officer.post("/v1/releases", charge, status=409)
    task = {"name": "late", "members": scope}
    house.officer.post(f"/v1/populations/{name}/tasks", task, status=409)
    assert house.auditor.post(f"/v1/populations/{name}/ledger/verify")["ok"]


def test_the_overlaps_of_a_task_come_in_pages(house: House) -> None:
    tasks = f"/v1/populations/{house.population(200)}/tasks"
    for number in range(populations.OVERLAPS_SHOWN + 2):
        new = {"name": f"w{number}", "members": {"ranges": [[number, number + 50]]}}
        one = house.pipeline.post(tasks, new, status=201)
        assert len(one["overlaps"]) == min(number, 49)
        assert one["overlaps_next"] is None
    new = {"name": "all", "members": {"ranges": [[0, 200]]}}
    made = house.pipeline.post(tasks, new, status=201)
    expected = [{"task": f"w{number}", "datapoints": 50} for number in range(populations.OVERLAPS_SHOWN + 2)]
    assert made["overlaps"] == expected[: populations.OVERLAPS_SHOWN]
    shown = house.pipeline.get(f"{tasks}/all")
    assert (shown["overlaps"], shown["overlaps_next"]) == (made["overlaps"], made["overlaps_next"])
    rest = house.pipeline.get(f"{tasks}/all", cursor=shown["overlaps_next"])
    assert shown["overlaps"] + rest["overlaps"] == expected
    assert rest["overlaps_next"] is None
    [listed] = [each for each in house.pipeline.get(tasks, limit=1000)["items"] if each["name"] == "all"]
    assert (listed["overlaps"], listed["overlaps_next"]) == (made["overlaps"], made["overlaps_next"])
    house.pipeline.get(f"{tasks}/all", limit=1001, status=422)
    house.pipeline.get(f"{tasks}/all", cursor="nonsense", status=422)
    with Stint(house.url, house.secrets["pipeline"]) as client, pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.client._PAGE", 7)
        found = client.task(tasks.split("/")[3], "all")
        assert (found["overlaps"], found["overlaps_next"]) == (expected, None)


def test_tasks_from_ranges_bitmaps_and_arrivals(house: House) -> None:
    name = house.population(100)
    tasks = f"/v1/populations/{name}/tasks"
    first = house.pipeline.post(
        tasks,
        {"name": "w1", "members": {"ranges": [[0, 10], [20, 30]]}, "parts": {"memory": {"ranges": [[0, 10]]}}},
        status=201,
    )
    assert (first["members"], first["parts"], first["overlaps"]) == (20, {"memory": 10}, [])
    arrived = house.pipeline.post(tasks, {"name": "w2", "members": {"next": 40}}, status=201)
    assert (arrived["members"], arrived["overlaps"]) == (40, [])
    bits = {"bitmap": bitmap_to(BitMap([0, 25, 31, 99]))}
    mixed = house.officer.post(tasks, {"name": "w3", "members": bits}, status=201)
    assert mixed["members"] == 4
    assert mixed["overlaps"] == [{"task": "w1", "datapoints": 2}, {"task": "w2", "datapoints": 1}]
    too_many = house.pipeline.post(tasks, {"name": "w4", "members": {"next": 31}}, status=422)
    assert too_many["field"] == "members.next"
    nested = house.officer.post(
        tasks, {"name": "w5", "members": {"union": [{"task": "w3"}, {"ranges": [[40, 42]]}]}}, status=201
    )
    assert nested["members"] == 6
    page = house.pipeline.get(tasks, limit=2)
    assert [task["name"] for task in page["items"]] == ["w1", "w2"]
    rest = house.pipeline.get(tasks, limit=2, cursor=page["next"])
    assert [task["name"] for task in rest["items"]] == ["w3", "w5"]
    assert rest["next"] is None
    assert house.pipeline.get(f"{tasks}/w1")["overlaps"] == [
        {"task": "w3", "datapoints": 2},
        {"task": "w5", "datapoints": 2},
    ]
    house.pipeline.get(f"{tasks}/w9", status=404)
    who = house.officer.get(f"/v1/populations/{name}/datapoints/0")
    assert [(task["name"], task["parts"]) for task in who["tasks"]] == [("w1", ["memory"]), ("w3", []), ("w5", [])]


def test_tasks_from_keys(house: House) -> None:
    name = house.population()
    house.officer.post(f"/v1/populations/{name}/datapoints", {"keys": ["ann", "bob", "cy", "di"]}, status=201)
    made = house.officer.post(
        f"/v1/populations/{name}/tasks",
        {"name": "w1", "members": {"keys": ["di", "ann"]}, "parts": {"memory": {"keys": ["di"]}}},
        status=201,
    )
    assert (made["members"], made["parts"]) == (2, {"memory": 1})
    assert [task["name"] for task in house.officer.get(f"/v1/populations/{name}/datapoints/3")["tasks"]] == ["w1"]
    assert house.officer.get(f"/v1/populations/{name}/datapoints/1")["tasks"] == []
    unknown = house.officer.post(
        f"/v1/populations/{name}/tasks", {"name": "w2", "members": {"keys": ["ann", "zoe"]}}, status=422
    )
    assert "1 of the keys" in unknown["detail"]
    assert "zoe" not in unknown["detail"]


@pytest.mark.parametrize(
    ("field", "task"),
    [
        ("name", {"name": "twice", "members": {"ranges": [[0, 1]]}}),
        ("name", {"name": "", "members": {"ranges": [[0, 1]]}}),
        ("members", {"name": "t", "members": {}}),
        ("members", {"name": "t", "members": {"ranges": [[0, 11]]}}),
        ("members.ranges", {"name": "t", "members": {"ranges": []}}),
        ("members.ranges[0]", {"name": "t", "members": {"ranges": [[5, 5]]}}),
        ("members.ranges[0]", {"name": "t", "members": {"ranges": [[-1, 5]]}}),
        ("members.ranges[0]", {"name": "t", "members": {"ranges": [[0, True]]}}),
        ("members.bitmap", {"name": "t", "members": {"bitmap": "!"}}),
        ("members.next", {"name": "t", "members": {"next": 0}}),
        ("members.next", {"name": "t", "members": {"next": 1.5}}),
        ("members", {"name": "t", "members": {"next": 1, "ranges": [[0, 1]]}}),
        ("members.task", {"name": "t", "members": {"task": "nobody"}}),
        ("members.union", {"name": "t", "members": {"union": []}}),
        ("parts.memory", {"name": "t", "members": {"ranges": [[0, 5]]}, "parts": {"memory": {"ranges": [[4, 6]]}}}),
    ],
)
def test_a_task_that_cannot_be_is_refused_with_its_field(house: House, field: str, task: dict[str, Any]) -> None:
    name = house.population(10)
    house.officer.post(f"/v1/populations/{name}/tasks", {"name": "twice", "members": {"ranges": [[0, 5]]}}, status=201)
    problem = house.officer.post(f"/v1/populations/{name}/tasks", task, status=422)
    assert problem["field"] == field
    assert house.pipeline.get(f"/v1/populations/{name}")["entry"]["number"] == 3


def test_both_the_budget_of_a_task_and_that_of_a_life_must_admit(house: House) -> None:
    name = house.population(20, epsilon=1.0)
    task = {
        "name": "w1",
        "members": {"ranges": [[0, 10]]},
        "parts": {"memory": {"ranges": [[0, 3]]}},
        "budget": {"epsilon": 0.4, "delta": 1e-7},
    }
    made = house.officer.post(f"/v1/populations/{name}/tasks", task, status=201)
    assert made["budget"] == {"epsilon": 0.4, "delta": 1e-7}
    house.officer.commit(house.officer.hold(name, ({"task": "w1"}, pure(0.3))))
    denied = house.officer.propose(name, ({"task": "w1", "part": "memory"}, pure(0.2)))
    assert denied["status"] == "denied"
    [reason] = denied["decision"]["reasons"]
    assert (reason["code"], reason["task"], reason["datapoints"]) == ("task_budget.exceeded", "w1", 3)
    assert reason["budget"] == 0.4
    # A charge that does not name the task counts for life only, even if it is on the same people.
    house.officer.commit(house.officer.hold(name, ({"ranges": [[0, 10]]}, pure(0.5))))
    shown = house.pipeline.get(f"/v1/populations/{name}/tasks/w1")
    assert shown["task_epsilon"]["spent"] == pytest.approx(0.3)
    assert shown["epsilon"]["spent"] == pytest.approx(0.8)
    # Now it is the lifelong budget that refuses, with room left in the task's.
    house.officer.hold(name, ({"task": "w1"}, pure(0.05)))
    both = house.officer.propose(name, ({"task": "w1"}, pure(0.3)))
    assert {each["code"] for each in both["decision"]["reasons"]} == {"budget.exceeded", "task_budget.exceeded"}
    lifelong = house.officer.propose(name, ({"ranges": [[0, 10]]}, pure(0.3)))
    assert [each["code"] for each in lifelong["decision"]["reasons"]] == ["budget.exceeded"]
    one = house.officer.get(f"/v1/populations/{name}/datapoints/0")
    assert one["tasks"][0]["epsilon"]["spent"] == pytest.approx(0.3)
    assert one["tasks"][0]["epsilon"]["held"] == pytest.approx(0.05)
    budget = house.pipeline.get(f"/v1/populations/{name}/budget")
    assert budget["tasks"][0]["task_epsilon"]["spent"] == pytest.approx(0.3)
    assert house.auditor.post(f"/v1/populations/{name}/ledger/verify")["ok"]


def test_whoever_is_in_two_tasks_pays_for_both_and_others_for_one(house: House) -> None:
    name = house.population(30)
    tasks = f"/v1/populations/{name}/tasks"
    house.officer.post(tasks, {"name": "a", "members": {"ranges": [[0, 20]]}}, status=201)
    house.officer.post(tasks, {"name": "b", "members": {"ranges": [[10, 30]]}}, status=201)
    house.officer.commit(house.officer.hold(name, ({"task": "a"}, pure(0.2)), ({"task": "b"}, pure(0.3))))
    spent = [house.officer.reading(name, ordinal)["spent"] for ordinal in (0, 15, 25)]
    assert spent == pytest.approx([0.2, 0.5, 0.3])


def test_a_union_is_charged_once_for_everybody_in_it(house: House) -> None:
    name = house.population(30)
    house.officer.post(f"/v1/populations/{name}/tasks", {"name": "a", "members": {"ranges": [[0, 5]]}}, status=201)
    house.officer.post(f"/v1/populations/{name}/tasks", {"name": "b", "members": {"ranges": [[5, 9]]}}, status=201)
    union = {"union": [{"task": "a"}, {"ranges": [[3, 10]]}, {"bitmap": bitmap_to(BitMap([20]))}]}
    answer = house.officer.propose(name, (union, pure(0.25)))
    assert answer["decision"]["datapoints"] == 11
    readings = [house.officer.reading(name, ordinal)["held"] for ordinal in (0, 4, 9, 10, 20)]
    assert readings == pytest.approx([0.25, 0.25, 0.25, 0.0, 0.25])
    two = {"charges": [{"scope": {"union": [{"task": "a"}, {"task": "b"}]}, "event": pure(0.1)}], "population": name}
    assert "at most one task" in house.officer.post("/v1/releases", two, status=422)["detail"]
    inside = {"charges": [{"scope": {"union": [union]}, "event": pure(0.1)}], "population": name}
    assert house.officer.post("/v1/releases", inside, status=422)["field"] == "charges[0].scope.union[0]"


def test_how_the_budget_stands(house: House) -> None:
    name = house.population(100)
    assert house.pipeline.get(f"/v1/populations/{house.population()}/budget")["worst_off"] is None
    house.officer.commit(house.officer.hold(name, ({"ranges": [[0, 10]]}, pure(0.6))))
    house.officer.hold(name, ({"ranges": [[0, 50]]}, pure(0.2)))
    stands = house.pipeline.get(f"/v1/populations/{name}/budget")
    assert (stands["datapoints"], stands["cohorts"]) == (100, 3)
    assert stands["worst_off"]["datapoints"] == 10
    assert stands["worst_off"]["spent"] == pytest.approx(0.6)
    assert stands["worst_off"]["held"] == pytest.approx(0.2)
    by_share = {each["share"]: each["spent"] + each["held"] for each in stands["quantiles"]}
    assert by_share[0.0] == 0
    assert by_share[0.5] == 0
    assert by_share[0.75] == pytest.approx(0.2)
    assert by_share[1.0] == pytest.approx(0.8)
    assert sum(each["datapoints"] for each in stands["histogram"]) == 100


def test_each_quantile_is_of_one_number_alone(house: House) -> None:
    """Who has spent most and who has most behind them are not the same: nobody may read that none spent more."""
    name = house.population(100)
    house.officer.commit(house.officer.hold(name, ({"ranges": [[0, 10]]}, pure(0.6))))
    house.officer.commit(house.officer.hold(name, ({"ranges": [[10, 20]]}, pure(0.5))))
    house.officer.hold(name, ({"ranges": [[10, 20]]}, pure(0.3)))
    rows = {each["share"]: each for each in house.auditor.get(f"/v1/populations/{name}/budget")["quantiles"]}
    assert rows[1.0]["spent"] == pytest.approx(0.6)
    assert rows[1.0]["held"] == pytest.approx(0.3)
    assert rows[1.0]["available"] == pytest.approx(0.2, abs=1e-6)  # of those who have 0.8 behind them
    assert (rows[0.75]["spent"], rows[0.75]["held"]) == (0, 0)
    assert rows[0.9]["spent"] == pytest.approx(0.5)
    assert rows[0.9]["held"] == 0
    assert rows[0.0]["available"] == pytest.approx(1.0)
    for name in ("spent", "held"):
        assert [each[name] for each in rows.values()] == sorted(each[name] for each in rows.values())
