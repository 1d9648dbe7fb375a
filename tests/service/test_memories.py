"""Episodic memories through the service: who pays for which part, and who is turned away."""

from __future__ import annotations

from typing import Any, Final

from tests.service.fixtures_behaviour import House
from trainers.catalog.memories import parts

pytest_plugins = ("tests.service.fixtures_behaviour",)

PLAN: Final[dict[str, Any]] = {
    "steps": 20,
    "train_probability": 0.05,
    "train_noise_multiplier": 2.0,
    "memory_probability": 0.1,
    "memory_noise_multiplier": 3.0,
    "clip_norm": 1.0,
}


def asked(name: str, task: str, memories: list[str], mechanism: str = "episodic-memory", **others: Any) -> Any:
    parameters = {**(PLAN if mechanism == "episodic-memory" else {}), "memories": memories, **others}
    return {
        "population": name,
        "kind": "weights",
        "scope": {"task": task},
        "mechanism": {"name": mechanism, "parameters": parameters},
    }


def with_tasks(house: House, *ranges: range) -> str:
    """A population of 200 with a task for each range, its parts by coins."""
    name = house.population(200, epsilon=8.0)
    for place, members in enumerate(ranges):
        made = {
            "name": f"task {place}",
            "members": {"ranges": [[members.start, members.stop]]},
            "parts": parts(members, key=b"drawn once and kept", rate=0.5),
        }
        house.officer.post(f"/v1/populations/{name}/tasks", made, status=201)
    return name


def test_each_part_pays_for_itself(house: House) -> None:
    name = with_tasks(house, range(100), range(100, 200))
    for task, memories in (("task 0", []), ("task 1", ["task 0"])):
        held = house.pipeline.post("/v1/releases", asked(name, task, memories), status=201)
        assert held["status"] == "held"
    readings: dict[tuple[int, str], set[float]] = {}
    for ordinal in range(200):
        shown = house.officer.get(f"/v1/populations/{name}/datapoints/{ordinal}")
        [task] = shown["tasks"]
        [part] = task["parts"]
        readings.setdefault((ordinal // 100, part), set()).add(shown["epsilon"]["held"])
    [train], [memory] = readings[0, "train"], readings[0, "memory"]
    assert train > 0
    assert memory > 0
    assert train != memory
    assert readings[1, "train"] == {train}  # the same plan, its own task
    assert readings[1, "memory"] == {0}  # nobody has used it yet
    assert house.auditor.post(f"/v1/populations/{name}/ledger/verify")["ok"]


def test_nobody_is_in_two_blocks_of_one_sum(house: House) -> None:
    name = with_tasks(house, range(100), range(50, 150), range(150, 200))
    denied = house.pipeline.post("/v1/releases", asked(name, "task 2", ["task 0", "task 1"]), status=201)
    assert denied["status"] == "denied"
    assert [reason["code"] for reason in denied["decision"]["reasons"]] == ["mechanism.overlap"]
    for use in ({"use": "every_block"}, {"use": "one_block", "seed": "0123456789abcdef" * 2}):
        proposal = asked(name, "task 2", ["task 0", "task 1"], **use)
        assert house.pipeline.post("/v1/releases", proposal, status=201)["status"] == "held"


def test_what_was_published_is_denied(house: House) -> None:
    name = with_tasks(house, range(100), range(100, 200))
    published = {key: PLAN[key] for key in ("steps", "train_probability", "memory_probability", "clip_norm")}
    published["noise_multiplier"] = 5.0
    for mechanism, codes in (
        ("dp-agem-as-published", {"policy.proof_status"}),
        ("dp-cl-as-published", {"policy.proof_status", "budget.exceeded"}),
    ):
        denied = house.pipeline.post(
            "/v1/releases", asked(name, "task 1", ["task 0"], mechanism, **published), status=201
        )
        assert denied["status"] == "denied"
        assert {reason["code"] for reason in denied["decision"]["reasons"]} == codes
    stream = {"tasks": [{"task": "task 0", "epochs": 1}], "epsilon_1": 0.1, "epsilon_2": 0.1}
    lifelong = {
        "population": name,
        "kind": "weights",
        "scope": {"task": "task 0"},
        "mechanism": {"name": "l2dp-ml-as-published", "parameters": stream},
    }
    denied = house.pipeline.post("/v1/releases", lifelong, status=201)
    assert {reason["code"] for reason in denied["decision"]["reasons"]} == {"policy.proof_status", "budget.exceeded"}
