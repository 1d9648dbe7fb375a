"""The API against a model that keeps a list of charges per datapoint, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from accountant.events import Composed, event_from_json
from accountant.filters import Cost, Filter
from service import sweeper
from tests.conftest import PROFILE
from tests.service.harness import Local

EVENTS: list[dict[str, Any]] = [
    {"kind": "pure_dp", "epsilon": 0.5},
    {"kind": "pure_dp", "epsilon": 0.3},
    {"kind": "gaussian", "noise_multiplier": 5.0},
    {"kind": "laplace", "scale": 4.0},
    {"kind": "approx_dp", "epsilon": 0.1, "delta": 2e-7},
    {"kind": "non_private"},
]
MOST = 8  # datapoints
places = st.integers(0, MOST - 1)
scopes = st.one_of(
    st.tuples(places, places).map(lambda pair: {"ranges": [[min(pair), max(pair) + 1]]}),
    st.sampled_from([{"task": "a"}, {"task": "b"}, {"task": "a", "part": "half"}]),
)
charges = st.lists(st.fixed_dictionaries({"scope": scopes, "event": st.sampled_from(EVENTS)}), min_size=1, max_size=3)


@dataclass
class Model:
    """What is known of a population: whose charges are open or spent in which ledger."""

    budgets: dict[str, Filter]
    adjacency: Any
    size: int = 0
    status: str = "open"
    tasks: dict[str, tuple[range, range]] = field(default_factory=dict)
    releases: dict[str, str] = field(default_factory=dict)
    costs: dict[str, dict[tuple[str, int], Cost]] = field(default_factory=dict)  # release -> (ledger, ordinal) -> cost

    def members(self, scope: Mapping[str, Any]) -> set[int] | None:
        """Whom a scope means; None if it means nobody that exists."""
        if "task" in scope:
            if scope["task"] not in self.tasks:
                return None
            everybody, half = self.tasks[scope["task"]]
            return set(half if "part" in scope else everybody)
        ((start, stop),) = scope["ranges"]
        return set(range(start, stop)) if stop <= self.size else None

    def sums(self, ledger: str, ordinal: int) -> tuple[Cost, Cost]:
        """Committed and held."""
        committed = held = self.budgets[ledger].nothing
        for release, costs in self.costs.items():
            cost = costs.get((ledger, ordinal))
            if cost is not None and self.releases[release] in {"committed", "expired"}:
                committed = committed + cost
            elif cost is not None and self.releases[release] == "held":
                held = held + cost
        return committed, held

    def decide(self, asked: list[dict[str, Any]], on_exhausted: str) -> tuple[int, int, dict[tuple[str, int], Cost]]:
        """How many are touched, how many are exhausted, and what is charged; nothing if it is denied."""
        found = [(self.members(each["scope"]), each["scope"].get("task"), each["event"]) for each in asked]
        touched = sorted(set().union(*(scope or set() for scope, _, _ in found)))
        due: dict[tuple[str, int], Cost] = {}
        exhausted = set()
        for ordinal in touched:
            for ledger, budget in self.budgets.items():
                events = [
                    event_from_json(event)
                    for scope, task, event in found
                    if scope and ordinal in scope and ledger in ("", task)
                ]
                if events:
                    cost = budget.price(Composed(events=tuple(events)), self.adjacency)
                    due[ledger, ordinal] = cost
                    committed, held = self.sums(ledger, ordinal)
                    if not budget.admits(committed + held + cost):
                        exhausted.add(ordinal)
        if exhausted and (on_exhausted == "deny" or len(exhausted) == len(touched)):
            return len(touched), len(exhausted), {}
        return len(touched), len(exhausted), {key: cost for key, cost in due.items() if key[1] not in exhausted}


class Api(RuleBasedStateMachine):
    """Every rule does the same to the service and to the model."""

    service: Local

    def __init__(self) -> None:
        super().__init__()
        self.call = self.service.call
        self.name = self.call.population(epsilon=1.0, delta=1e-6)
        self.path = f"/v1/populations/{self.name}"
        budget = Filter.of(epsilon=1.0, delta=1e-6)
        self.model = Model(budgets={"": budget}, adjacency="add_remove")
        self.short: set[str] = set()
        self.keyed: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = []
        self.waited = False

    # -------------------------------------------------------- people and tasks

    @precondition(lambda self: self.model.size < MOST)
    @rule(count=st.integers(1, MOST))
    def register(self, count: int) -> None:
        count = min(count, MOST - self.model.size)
        answer = self.call("POST", self.path + "/datapoints", {"count": count})
        if self.model.status == "open":
            assert answer.json()["first_ordinal"] == self.model.size
            self.model.size += count
        else:
            assert answer.status_code == 409

    @precondition(lambda self: self.model.size > 1 and len(self.model.tasks) < 2)
    @rule(first=places, last=places, own=st.sampled_from([None, 0.4]))
    def create_task(self, first: int, last: int, own: float | None) -> None:
        first, last = sorted((first % self.model.size, last % self.model.size))
        name = "ab"[len(self.model.tasks)]
        half = range(first, first + (last - first) // 2 + 1)
        body: dict[str, Any] = {
            "name": name,
            "members": {"ranges": [[first, last + 1]]},
            "parts": {"half": {"ranges": [[half.start, half.stop]]}},
        }
        if own is not None:
            body["budget"] = {"epsilon": own, "delta": 1e-7}
            self.model.budgets[name] = Filter.of(epsilon=own, delta=1e-7)
        found = self.call.ok("POST", self.path + "/tasks", body)
        self.model.tasks[name] = (range(first, last + 1), half)
        shared = {
            other: len(set(self.model.tasks[name][0]) & set(members))
            for other, (members, _) in self.model.tasks.items()
            if other != name
        }
        assert {each["task"]: each["datapoints"] for each in found["overlaps"]} == {
            k: n for k, n in shared.items() if n
        }
        assert self.call("POST", self.path + "/tasks", body).status_code == 422  # a task is made once

    # -------------------------------------------------------- releases

    @precondition(lambda self: self.model.size)
    @rule(
        asked=charges,
        on_exhausted=st.sampled_from(["deny", "trim"]),
        dry_run=st.sampled_from([False, False, False, True]),
        brief=st.sampled_from([False, False, True]),
    )
    def propose(self, asked: list[dict[str, Any]], on_exhausted: str, dry_run: bool, brief: bool) -> None:  # noqa: FBT001
        body: dict[str, Any] = {"population": self.name, "charges": asked, "on_exhausted": on_exhausted, "delta": 0}
        if brief:
            body["hold_seconds"] = 1
        key = f"{self.name}-{len(self.keyed)}"
        answer = self.call(
            "POST", f"/v1/releases?dry_run={str(dry_run).lower()}", body, headers={"Idempotency-Key": key}
        )
        if not dry_run and self.model.status != "open":
            assert answer.status_code == 409
            return
        if any(self.model.members(each["scope"]) is None for each in asked):
            assert answer.status_code == 422
            return
        document = answer.json()
        touched, exhausted, due = self.model.decide(asked, on_exhausted)
        denied = not due or (dry_run and self.model.status != "open")
        assert document["decision"]["outcome"] == ("denied" if denied else "admitted")
        assert document["decision"]["datapoints"] == touched
        assert document["decision"]["trimmed"] == (exhausted if due else 0)
        if dry_run:
            assert answer.status_code == 200
            assert "id" not in document
            return
        assert answer.status_code == 201
        assert document["status"] == ("denied" if denied else "held")
        self.model.releases[document["id"]] = document["status"]
        self.model.costs[document["id"]] = due
        if brief and not denied:
            self.short.add(document["id"])
        self.keyed.append((key, "/v1/releases?dry_run=false", body, document))

    @precondition(lambda self: self.model.releases)
    @rule(which=st.integers(0, 50), verb=st.sampled_from(["commit", "void"]))
    def resolve(self, which: int, verb: str) -> None:
        release = list(self.model.releases)[which % len(self.model.releases)]
        body = {"reason": "nothing left the house"} if verb == "void" else {}
        key, path = f"{self.name}-{len(self.keyed)}", f"/v1/releases/{release}/{verb}"
        answer = self.call("POST", path, body, headers={"Idempotency-Key": key})
        before = self.model.releases[release]
        fits = {"held", "voided"} if verb == "void" else {"held", "committed", "expired"}
        if before not in fits:
            assert answer.status_code == 409
            return
        assert answer.status_code == 200
        after = before if before != "held" else "voided" if verb == "void" else "committed"
        assert answer.json()["status"] == after
        self.model.releases[release] = after
        self.keyed.append((key, path, body, answer.json()))

    @precondition(lambda self: self.keyed)
    @rule(which=st.integers(0, 50))
    def repeat(self, which: int) -> None:
        key, path, body, document = self.keyed[which % len(self.keyed)]
        again = self.call("POST", path, body, headers={"Idempotency-Key": key})
        assert again.json() == document
        assert again.headers["Idempotent-Replayed"] == "true"
        other = {**body, "kind": "labels"} if "charges" in body else {"reason": "another"}
        if "commit" not in path:
            changed = self.call("POST", path, other, headers={"Idempotency-Key": key})
            assert changed.status_code == 422
            assert changed.json()["type"] == "urn:stint:problem:key-reused"

    @precondition(lambda self: not self.waited and any(self.model.releases[each] == "held" for each in self.short))
    @rule()
    def silence(self) -> None:
        """Nobody says anything for a while: what is unknown is spent."""
        self.waited = True  # once an example, because it takes time
        time.sleep(1.01)
        sweeper.sweep(self.service.parts)
        for release in self.short:
            if self.model.releases[release] == "held":
                self.model.releases[release] = "expired"

    # -------------------------------------------------------- policies

    @rule(share=st.sampled_from([0.9, 0.7, 1.5]))
    def change_policy(self, share: float) -> None:
        now = self.model.budgets[""]
        epsilon = round(now.epsilon * share, 6)
        answer = self.call("PUT", self.path + "/policy", {"reason": "a test", "epsilon": epsilon})
        if share > 1:
            assert answer.status_code == 422
            return
        self.model.budgets[""] = new = replace(now, epsilon=epsilon)
        over = 0
        for ordinal in range(self.model.size):
            committed, held = self.model.sums("", ordinal)
            over += not new.admits(committed + held)
        assert answer.json()["already_over"] == over

    @rule(status=st.sampled_from(["open", "frozen", "open"]))
    def change_status(self, status: str) -> None:
        assert self.call.ok("POST", self.path + "/status", {"status": status, "reason": "a test"})["status"] == status
        self.model.status = status

    # -------------------------------------------------------- what is always so

    @invariant()
    def one_reading_agrees(self) -> None:
        if self.model.size:
            self._agrees(len(self.model.releases) % self.model.size)

    def _agrees(self, ordinal: int) -> None:
        shown = self.call.ok("GET", f"{self.path}/datapoints/{ordinal}")
        assert shown["epsilon"] == self._reading("", ordinal)
        for task in shown["tasks"]:
            if task["epsilon"] is not None:
                assert task["epsilon"] == self._reading(task["name"], ordinal)
        touched = {each["release"]: each["status"] for each in shown["charges"]}
        assert touched == {
            release: self.model.releases[release]
            for release, costs in self.model.costs.items()
            if ("", ordinal) in costs
        }

    def _reading(self, ledger: str, ordinal: int) -> dict[str, float]:
        committed, held = self.model.sums(ledger, ordinal)
        found = self.model.budgets[ledger].reading(committed=committed, held=held)
        return {"spent": found.spent, "held": found.held, "available": found.available, "budget": found.budget}

    def teardown(self) -> None:
        for ordinal in range(self.model.size):
            self._agrees(ordinal)
        listed = self.call.ok("GET", f"/v1/releases?population={self.name}&limit=1000")["items"]
        assert {each["id"]: each["status"] for each in listed} == self.model.releases
        self.call.verify(self.name)


def test_the_api_agrees_with_a_model(service: Local) -> None:
    examples = {"quick": 5, "default": 25, "full": 150}[PROFILE]
    machine = type("Api", (Api,), {"service": service})
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=30))
