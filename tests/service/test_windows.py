"""Window models over HTTP: a whole stream, step by step, and no datapoint over the life that was promised."""

from __future__ import annotations

from typing import Any

import pytest

from accountant.streams.schedules import SlidingWindow, Startup
from tests.service.fixtures_behaviour import House, pure

pytest_plugins = ("tests.service.fixtures_behaviour",)

PANE, LEVELS = 3, 3  # a window of seven panes
STEPS = 8
LIFE = 0.9


def chain(step: int, *, offset: int = 0, startup: Startup = "full") -> list[dict[str, int]]:
    blocks = SlidingWindow(k=LEVELS, w0=PANE, startup=startup).step(step).trained
    return [{"level": b.level, "start": b.start + offset, "stop": b.stop + offset} for b in blocks]


def proposal(population: str, step: int, **more: Any) -> dict[str, Any]:
    parameters = {"k": LEVELS, "w0": PANE, "step": step, "chain": chain(step), "epsilon": LIFE, **more}
    return {
        "population": population,
        "kind": "window_model",
        "mechanism": {"name": "sliding-window", "parameters": parameters},
    }


def size(startup: Startup, steps: int) -> int:
    return max(block["stop"] for step in range(steps) for block in chain(step, startup=startup))


@pytest.mark.parametrize("startup", ["full", "partial"])
def test_every_step_of_a_stream_is_held_and_no_life_exceeds_the_promise(house: House, startup: Startup) -> None:
    datapoints = size(startup, STEPS)
    name = house.population(datapoints, epsilon=1.0)
    touched: set[int] = set()
    for step in range(STEPS):
        asked = proposal(name, step, startup=startup, chain=chain(step, startup=startup))
        held = house.pipeline.post("/v1/releases", asked, status=201)
        assert held["status"] == "held", held["decision"]["reasons"]
        house.pipeline.commit(held["id"])
        charges = house.pipeline.get(f"/v1/releases/{held['id']}")["charges"]
        expected = [
            {"ranges": [[block["start"], block["stop"]]]} for block in asked["mechanism"]["parameters"]["chain"]
        ]
        assert [charge["scope"] for charge in charges] == expected
        touched |= {n for [[a, b]] in (scope["ranges"] for scope in expected) for n in range(a, b)}
        assert touched, "somebody is"
    readings = [house.officer.reading(name, ordinal) for ordinal in range(datapoints)]
    assert max(each["spent"] for each in readings) == pytest.approx(LIFE)
    assert all(each["spent"] <= LIFE * (1 + 1e-9) for each in readings)
    assert all((each["spent"] > 0) == (ordinal in touched) for ordinal, each in enumerate(readings))
    assert house.auditor.post(f"/v1/populations/{name}/ledger/verify")["ok"]


def test_an_offset_moves_a_stream_and_two_streams_share_a_budget(house: House) -> None:
    length = size("full", 2)
    name = house.population(length + 5, epsilon=1.0)
    first = house.pipeline.post("/v1/releases", proposal(name, 0, chain=chain(0, offset=5), offset=5), status=201)
    assert first["status"] == "held"
    assert house.officer.reading(name, 4)["held"] == 0
    assert house.officer.reading(name, 5)["held"] > 0
    # The same people in a second stream: together they would pass the budget.
    again = house.pipeline.post("/v1/releases", proposal(name, 0, chain=chain(0, offset=5), offset=5), status=201)
    assert again["status"] == "denied"
    assert again["decision"]["reasons"][0]["code"] == "budget.exceeded"


def left_out(step: int) -> list[dict[str, int]]:
    return chain(step)[1:]


def shortened(step: int) -> list[dict[str, int]]:
    first, *rest = chain(step)
    return [{**first, "stop": first["stop"] - 1}, *rest]


def reversed_chain(step: int) -> list[dict[str, int]]:
    return chain(step)[::-1]


def of_another_step(step: int) -> list[dict[str, int]]:
    return chain(step + 1)


@pytest.mark.parametrize("wrong", [left_out, shortened, reversed_chain, of_another_step])
def test_a_wrong_chain_is_refused_and_charges_nobody(house: House, wrong: Any) -> None:
    name = house.population(size("full", STEPS))
    asked = proposal(name, 2, chain=wrong(2))
    assert asked["mechanism"]["parameters"]["chain"] != chain(2)
    problem = house.pipeline.post("/v1/releases", asked, status=422)
    assert problem["field"].startswith("parameters.chain")
    assert house.pipeline.get(f"/v1/populations/{name}")["entry"]["number"] == 2
    assert house.pipeline.get("/v1/releases", population=name)["items"] == []


def test_a_schedule_whose_life_does_not_fit_is_denied_at_its_first_step(house: House) -> None:
    name = house.population(size("full", STEPS), epsilon=0.8)
    denied = house.pipeline.post("/v1/releases", proposal(name, 0), status=201)
    assert denied["status"] == "denied"
    codes = {reason["code"]: reason["message"] for reason in denied["decision"]["reasons"]}
    assert "schedule.exceeded" in codes
    assert "0.8" in codes["schedule.exceeded"]
    assert house.officer.reading(name, 0)["held"] == 0
    # A single block of it would have fitted; it is the life that does not.
    one = proposal(name, 1)
    denied_too = house.pipeline.post("/v1/releases", one, status=201)
    assert [each["code"] for each in denied_too["decision"]["reasons"]] == ["schedule.exceeded", "schedule.unpaid"]
    what_if = house.pipeline.post("/v1/advice/what-if", {"proposal": one})
    assert what_if["would_be_admitted"] == 0


def test_a_step_leans_only_on_models_that_were_paid_for(house: House) -> None:
    """Else a pipeline could begin at any step, and release models of people whom nobody charged for them."""
    name = house.population(size("full", STEPS))
    skipped = house.pipeline.post("/v1/releases", proposal(name, 1), status=201)
    assert skipped["status"] == "denied"
    assert [each["code"] for each in skipped["decision"]["reasons"]] == ["schedule.unpaid"]
    first = house.pipeline.post("/v1/releases", proposal(name, 0), status=201)
    assert first["status"] == "held"
    second = house.pipeline.post("/v1/releases", proposal(name, 1), status=201)
    assert second["status"] == "held", "a hold has paid already: it counts in full"
    other = house.pipeline.post("/v1/releases", proposal(name, 1, epsilon=LIFE / 2), status=201)
    assert other["status"] == "denied", "another budget is another stream"
    why = {"reason": "nothing was trained"}
    house.pipeline.post(f"/v1/releases/{first['id']}/void", why, status=409)  # the second step makes use of it
    house.pipeline.post(f"/v1/releases/{second['id']}/void", why)
    house.pipeline.post(f"/v1/releases/{first['id']}/void", why)
    third = house.pipeline.post("/v1/releases", proposal(name, 2), status=201)
    assert third["decision"]["reasons"][0]["code"] == "schedule.unpaid", "a voided model never left"


def test_a_window_that_has_not_arrived_cannot_be_charged(house: House) -> None:
    name = house.population(size("full", 1) - 1)
    assert house.pipeline.post("/v1/releases", proposal(name, 0), status=422)["type"] == "urn:stint:problem:invalid"


def test_a_step_that_was_voided_may_be_repeated(house: House) -> None:
    name = house.population(size("full", STEPS))
    for _ in range(3):
        held = house.pipeline.post("/v1/releases", proposal(name, 0), status=201)
        assert held["status"] == "held"
        house.pipeline.post(f"/v1/releases/{held['id']}/void", {"reason": "the training crashed before an output"})
    house.pipeline.commit(house.pipeline.post("/v1/releases", proposal(name, 0), status=201)["id"])
    assert house.pipeline.post("/v1/releases", proposal(name, 0), status=201)["status"] == "denied"


@pytest.mark.parametrize("noise", [{"epsilon": 0.5}, {"epsilon": None, "noise": "gaussian", "mu": 0.1}])
def test_a_first_step_that_somebody_cannot_afford_is_advised_a_smaller_life(
    house: House, noise: dict[str, Any]
) -> None:
    name = house.population(size("full", STEPS), epsilon=1.0)
    house.officer.commit(house.officer.hold(name, ({"ranges": [[0, 4]]}, pure(0.98))))
    asked = proposal(name, 0, **noise)
    parameters = asked["mechanism"]["parameters"]
    if parameters["epsilon"] is None:
        del parameters["epsilon"]
    denied = house.pipeline.post("/v1/releases", asked, status=201)
    assert {reason["code"] for reason in denied["decision"]["reasons"]} == {"budget.exceeded"}
    [advice] = [each for each in denied["decision"]["advice"] if each["kind"] == "noise"]
    budget = "mu" if "mu" in parameters else "epsilon"
    assert 0 < advice["parameters"][budget] < parameters[budget]
    assert {**advice["parameters"], budget: None} == {**parameters, budget: None}
    asked["mechanism"]["parameters"] = advice["parameters"]
    priced = house.pipeline.post("/v1/mechanisms/sliding-window/price", {"parameters": advice["parameters"]})
    assert priced["events"] == advice["events"]
    assert house.pipeline.post("/v1/releases", asked, status=201)["status"] == "held"


def test_a_later_step_is_advised_no_other_stream(house: House) -> None:
    """With other noise it would lean on models that nobody was charged for."""
    name = house.population(size("full", STEPS), epsilon=1.0)
    assert house.pipeline.post("/v1/releases", proposal(name, 0), status=201)["status"] == "held"
    house.officer.hold(name, ({"ranges": [[21, 24]]}, pure(0.95)))
    denied = house.pipeline.post("/v1/releases", proposal(name, 1), status=201)
    assert denied["status"] == "denied"
    assert denied["decision"]["advice"]
    assert all(each["parameters"] is None for each in denied["decision"]["advice"])
