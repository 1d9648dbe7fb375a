"""Episodic memories: prices against plain counting, projections, sensitivities, and a stream of real digits."""

from __future__ import annotations

import hashlib
import hmac
import math
from collections import Counter
from pathlib import Path
from typing import Any, Final

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from pyroaring import FrozenBitMap

from accountant import InvalidInput, account
from accountant.book import Policy, bitmap_from
from accountant.events import Adjacency, Gaussian, Leaf, NonPrivate, PoissonSampled, Repeated, counted
from accountant.filters import Filter
from accountant.streams.memories import EpisodicMemory, Role, Use
from tests.accountant.strategies import ADJACENCIES
from tests.trainers.streams import Artifact, digits, ran, rows
from trainers.catalog import mechanism
from trainers.catalog.memories import drawn, parts
from trainers.clipping import trainable
from trainers.mechanisms.dp_agem_as_published import batch_gradient
from trainers.mechanisms.episodic_memory import union
from trainers.metrics import average_accuracy, average_forgetting
from trainers.models import build
from trainers.noise import Noise
from trainers.ports import Rows
from trainers.predictors import predict
from trainers.private_sgd import Source, noisy_gradient
from trainers.projection import averaged, projected

SEED: Final = "0123456789abcdef" * 2
PLAN: Final[dict[str, Any]] = {
    "steps": 40,
    "train_probability": 0.1,
    "train_noise_multiplier": 0.9,
    "memory_probability": 0.3,
    "memory_noise_multiplier": 2.0,
    "clip_norm": 1.0,
}
PUBLISHED: Final[dict[str, Any]] = {
    "steps": 30,
    "train_probability": 0.1,
    "memory_probability": 0.3,
    "noise_multiplier": 1.5,
    "clip_norm": 1.0,
}
ROLES: Final[tuple[Role, ...]] = ("train", "memory")
USES: Final[tuple[Use, ...]] = ("union", "every_block", "one_block")
LINEAR: Final[dict[str, Any]] = {"model": "linear", "learning_rate": 1.0, "momentum": 0.0, "label_source": "prior"}


def planned(use: Use, memories: list[str], **changes: Any) -> dict[str, Any]:
    return {**PLAN, "use": use, "memories": memories, **({"seed": SEED} if use == "one_block" else {}), **changes}


def sampled(probability: float, noise: float) -> PoissonSampled:
    return PoissonSampled(sampling_probability=probability, event=Gaussian(noise_multiplier=noise))


# Prices


def draws_by_hand(steps: int, blocks: int) -> list[int]:
    """The block of each step, from 0, from the documented derivation."""
    words = (
        hmac.digest(SEED.encode(), f"stint/draw/{blocks + 1}/{step}".encode(), hashlib.sha256) for step in range(steps)
    )
    return [int.from_bytes(word) % blocks for word in words]


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("use", USES)
def test_each_part_is_charged_what_it_is_read(use: Use, adjacency: Adjacency) -> None:
    names = ["mon", "tue", "wed"]
    own, *earlier = mechanism("episodic-memory").quote(planned(use, names), adjacency=adjacency).charges
    assert (own.task, own.part, own.event) == (None, "train", Repeated(times=40, event=sampled(0.1, 0.9)))
    assert [(each.task, each.part) for each in earlier] == [(name, "memory") for name in names]
    times = Counter(draws_by_hand(40, 3)) if use == "one_block" else Counter({0: 40, 1: 40, 2: 40})
    rate = 0.3 / 3 if use == "union" else 0.3
    assert [each.event for each in earlier] == [
        Repeated(times=times[place], event=sampled(rate, 2.0)) for place in range(3)
    ]


@pytest.mark.parametrize(
    ("adjacency", "relation"),
    [
        ("add_remove", dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE),
        ("replace_one", dp_accounting.NeighboringRelation.REPLACE_ONE),
    ],
)
def test_prices_are_those_that_others_compute(adjacency: Adjacency, relation: Any) -> None:
    """Of the sound row, and of the published one with half the noise."""
    sound = mechanism("episodic-memory").quote(planned("union", ["a"]), adjacency=adjacency).charges
    published = mechanism("dp-agem-as-published").quote({**PUBLISHED, "memories": ["a"]}, adjacency=adjacency).charges
    expected = [(0.1, 0.9, 40), (0.3, 2.0, 40), (0.1, 0.75, 30), (0.3, 0.75, 30)]
    for charge, (probability, noise, steps) in zip((*sound, *published), expected, strict=True):
        other = PLDAccountant(relation, value_discretization_interval=2e-3)
        other.compose(dp_event.PoissonSampledDpEvent(probability, dp_event.GaussianDpEvent(noise)), steps)
        ours = account(charge.event, delta=1e-5, adjacency=adjacency).upper
        assert ours == pytest.approx(other.get_epsilon(1e-5), rel=1e-2)


@pytest.mark.parametrize("keep", [None, 2])
@pytest.mark.parametrize("use", USES)
def test_a_stream_of_releases_charges_a_life_and_no_part_for_the_other(use: Use, keep: int | None) -> None:
    """Every task is quoted by itself; what each part was charged is what `EpisodicMemory.life` says of it."""
    tasks = 6
    plan = EpisodicMemory(**{k: v for k, v in PLAN.items() if k != "clip_norm"}, use=use, keep=keep)
    charged: dict[tuple[int, str], Counter[Leaf]] = {}
    draws: list[list[int]] = []
    for task in range(1, tasks + 1):
        live = list(plan.live(task))
        parameters = planned(use, [str(block) for block in live])
        places = drawn(**{key: parameters[key] for key in ("steps", "use", "memories", "seed") if key in parameters})
        draws.append([live[place] for place in places])
        for charge in mechanism("episodic-memory").quote(parameters, adjacency="add_remove").charges:
            assert charge.part is not None
            key = (task if charge.task is None else int(charge.task), charge.part)
            charged.setdefault(key, Counter()).update(counted(charge.event))
    for task in range(1, tasks + 1):
        for part in ROLES:
            life = plan.life(task, part, tasks=tasks, draws=draws if use == "one_block" else ())
            assert charged.get((task, part), Counter()) == Counter(counted(life))


def test_only_a_union_is_one_sum() -> None:
    row = mechanism("episodic-memory")
    assert row.quote(planned("union", ["a", "b"]), adjacency="add_remove").one_sum == (1, 2)
    assert row.quote(planned("every_block", ["a", "b"]), adjacency="add_remove").one_sum == ()
    assert row.quote(planned("one_block", ["a", "b"]), adjacency="add_remove").one_sum == ()


@pytest.mark.parametrize("name", ["episodic-memory", "dp-agem-as-published"])
def test_no_task_is_named_twice(name: str) -> None:
    given_ = planned("union", ["a", "b", "a"]) if name == "episodic-memory" else {**PUBLISHED, "memories": ["a"] * 2}
    with pytest.raises(InvalidInput, match=r"^parameters\.memories\[[12]\]: expected each task once, got 'a'"):
        mechanism(name).quote(given_, adjacency="add_remove")


def test_the_first_task_has_no_memories_and_a_block_that_is_not_drawn_no_charge() -> None:
    for use in USES:
        [own] = mechanism("episodic-memory").quote(planned(use, []), adjacency="add_remove").charges
        assert own.part == "train"
    few = planned("one_block", [str(block) for block in range(8)], steps=3)
    charges = mechanism("episodic-memory").quote(few, adjacency="add_remove").charges[1:]
    assert [charge.task for charge in charges] == [str(block) for block in sorted(set(draws_by_hand(3, 8)))]
    assert len(charges) < 8


def test_other_noise_and_fewer_steps_lead_back_to_parameters() -> None:
    row = mechanism("episodic-memory")
    given_ = planned("every_block", ["a", "b"])
    wanted = [Repeated(times=20, event=sampled(0.1, 3.0)), *[Repeated(times=20, event=sampled(0.3, 4.0))] * 2]
    found = row.instead(given_, wanted, adjacency="add_remove")
    assert found == given_ | {"steps": 20, "train_noise_multiplier": 3.0, "memory_noise_multiplier": 4.0}
    uneven = [*wanted[:2], Repeated(times=20, event=sampled(0.3, 5.0))]
    assert row.instead(given_, uneven, adjacency="add_remove") is None
    drawn_ = planned("one_block", ["a"])
    assert row.instead(drawn_, wanted[:2], adjacency="add_remove") is None
    noisier = [Repeated(times=40, event=sampled(0.1, 3.0)), Repeated(times=40, event=sampled(0.3, 4.0))]
    assert row.instead(drawn_, noisier, adjacency="add_remove") is not None


@pytest.mark.parametrize(("name", "status"), [("dp-agem-as-published", "claimed"), ("dp-cl-as-published", "refuted")])
def test_what_was_published_is_not_accepted_unless_asked_for(name: str, status: str) -> None:
    row = mechanism(name)
    assert row.proof_status == status
    assert row.proof_status not in Policy(version=1, budget=Filter.of(epsilon=1.0, delta=1e-6)).accepts
    events = [
        charge.event for charge in row.quote({**PUBLISHED, "memories": ["a", "b"]}, adjacency="add_remove").charges
    ]
    if name == "dp-cl-as-published":
        assert events == [NonPrivate()] * 3
        assert all(account(event, delta=0.5).upper == math.inf for event in events)
    for charge, part in zip(
        row.quote({**PUBLISHED, "memories": ["a"]}, adjacency="add_remove").charges, ("train", "memory"), strict=True
    ):
        assert charge.part == part


# Parts


def test_parts_are_coins_that_nobody_else_can_turn() -> None:
    def members(ordinals: list[int]) -> dict[str, FrozenBitMap]:
        found = parts(ordinals, key=b"0123456789abcdef", rate=0.25)
        return {part: FrozenBitMap(bitmap_from(document["bitmap"])) for part, document in found.items()}

    everybody = members(list(range(4000)))
    assert everybody["train"] | everybody["memory"] == FrozenBitMap(range(4000))
    assert not everybody["train"] & everybody["memory"]
    assert abs(len(everybody["memory"]) - 1000) < 5 * math.sqrt(4000 * 0.25 * 0.75)
    for missing in (0, 17, 3999):
        fewer = members([ordinal for ordinal in range(4000) if ordinal != missing])
        for part in ("train", "memory"):
            assert fewer[part] == everybody[part] - FrozenBitMap([missing])


# The projection

vectors = arrays.arrays(np.float64, 6, elements=st.floats(-1e6, 1e6, allow_subnormal=False))


@given(vectors, vectors)
def test_what_is_projected_no_longer_raises_the_loss_of_the_reference(g: Any, r: Any) -> None:
    gradient = [torch.from_numpy(g[:4]).reshape(2, 2), torch.from_numpy(g[4:])]
    reference = [torch.from_numpy(r[:4]).reshape(2, 2), torch.from_numpy(r[4:])]
    found = projected(gradient, reference)
    flat = torch.cat([each.flatten() for each in found]).numpy()
    if g @ r >= 0 or r @ r < 1e-200:
        assert np.array_equal(flat, g)
        return
    scale = float(np.linalg.norm(g) * np.linalg.norm(r))
    assert flat @ r == pytest.approx(0, abs=1e-9 * scale)
    assert np.linalg.norm(flat) <= np.linalg.norm(g) * (1 + 1e-9)
    # What is orthogonal to the reference is left alone.
    assert np.allclose(flat - (flat @ r / (r @ r)) * r, g - (g @ r / (r @ r)) * r, atol=1e-9 * (1 + np.linalg.norm(g)))


def test_projections_of_known_gradients() -> None:
    gradient = [torch.tensor([1.0, -1.0])]
    assert projected(gradient, [torch.tensor([0.0, 2.0])])[0].tolist() == [1.0, 0.0]
    assert projected(gradient, [torch.tensor([0.0, -2.0])])[0].tolist() == [1.0, -1.0]
    assert projected(gradient, [torch.zeros(2)])[0].tolist() == [1.0, -1.0]
    assert averaged([[torch.tensor([1.0, 2.0])], [torch.tensor([3.0, 6.0])]])[0].tolist() == [2.0, 4.0]


# Sensitivities


def source(x: Any, y: Any, *, clip_norm: float = 0.5, **others: Any) -> Source:
    return Source.of(
        rows(x, y, **others),
        np.asarray(y),
        sampling_probability=1.0,
        noise_multiplier=1e-9,
        clip_norm=clip_norm,
    )


def flattened(gradient: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([each.flatten() for each in gradient])


def test_one_datapoint_moves_a_reference_gradient_by_the_clip_norm() -> None:
    """Everybody in turn is left out or replaced, of blocks with several rows for each; large rows attain the bound."""
    random = np.random.default_rng(1)
    slots, clip = 12, 0.5
    module = build({"model": "mlp", "hidden": [5], "shape": [3]}, outputs=3)
    with torch.no_grad():
        for each in trainable(module):
            each.copy_(torch.from_numpy(random.normal(size=tuple(each.shape))))
    unit = np.repeat(np.arange(slots), 2)
    x, y = random.normal(size=(2 * slots, 3)) * 50, random.integers(0, 3, 2 * slots)

    def total(x: Any, y: Any, unit: Any) -> torch.Tensor:
        both = [
            rows(x[unit < 6], y[unit < 6], slots=6, unit=unit[unit < 6], rows_per_unit=2),
            rows(x[unit >= 6], y[unit >= 6], slots=6, unit=unit[unit >= 6] - 6, rows_per_unit=2),
        ]
        joined = union(both)
        assert joined.slots == slots
        assert joined.unit.tolist() == unit.tolist()
        block = Source.of(joined, np.asarray(joined.y), sampling_probability=1.0, noise_multiplier=1e-9, clip_norm=clip)
        return flattened(noisy_gradient(module, block, Noise.repeatable(0), normaliser=1.0))

    whole, added, moved = total(x, y, unit), list[float](), list[float]()
    for out in range(slots):
        rest = unit != out
        added.append(float((total(x[rest], y[rest], unit[rest]) - whole).norm()))
        other = x.copy()
        other[~rest] *= -1
        moved.append(float((total(other, y, unit) - whole).norm()))
    assert max(added) <= clip * (1 + 1e-4)
    assert max(added) > 0.9 * clip
    assert max(moved) <= 2 * clip * (1 + 1e-4)


def test_one_datapoint_turns_a_clipped_batch_round() -> None:
    """Why the published clipping is charged with half the noise: 2·clip_norm is attained, and not exceeded."""
    module = build({"model": "linear", "hidden": [], "shape": [1]}, outputs=2)
    few = source([[1.0]] * 3, [0] * 3)
    more = source([[1.0]] * 3 + [[-500.0]], [0] * 4)
    one, other = (flattened(batch_gradient(module, each, Noise.repeatable(0))) for each in (few, more))
    nothing = flattened(batch_gradient(module, source(np.zeros((0, 1)), np.zeros(0, dtype=int)), Noise.repeatable(0)))
    assert float(one.norm()) == pytest.approx(0.5, rel=1e-4)
    assert float(nothing.norm()) < 1e-6
    assert 0.65 < float((one - other).norm()) <= 1.0 * (1 + 1e-4)
    assert float((one - other)[:2].norm()) > float(other[:2].norm()) > 0.49


# Runs


def recipe(labels: list[str], width: int, **others: Any) -> dict[str, Any]:
    return {**LINEAR, "shape": [width], "label_names": labels, **others}


def blobs(random: np.random.Generator, label: int, count: int) -> Rows:
    centre = np.eye(3)[label] * 2
    return rows(random.normal(size=(count, 3)) * 0.3 + centre, [label] * count)


@pytest.mark.parametrize("use", USES)
def test_every_use_runs_on_every_device(use: Use, device: str) -> None:
    random = np.random.default_rng(0)
    parameters = planned(use, [str(block) for block in range(6)], steps=4)
    charges = mechanism("episodic-memory").quote(parameters, adjacency="add_remove").charges
    given_ = [blobs(random, 2, 30), *(blobs(random, int(str(charge.task)) % 2, 20) for charge in charges[1:])]
    first = ran("episodic-memory", parameters, recipe(["0", "1", "2"], 3), given_, device=device)
    again = ran(
        "episodic-memory", parameters, recipe(["0", "1", "2"], 3), given_, inputs={"start": first}, device=device
    )
    assert first.facts["predictor"] == "network"
    assert not torch.equal(first.tensors["1.weight"], again.tensors["1.weight"])
    assert set(predict([again], given_[0].x)) <= {"0", "1", "2"}


@pytest.mark.parametrize("name", ["dp-agem-as-published", "dp-cl-as-published"])
def test_what_was_published_runs(name: str) -> None:
    random = np.random.default_rng(0)
    given_ = [blobs(random, 2, 200), blobs(random, 0, 100), blobs(random, 1, 100)]
    parameters = {**PUBLISHED, "noise_multiplier": 0.3, "memories": ["a", "b"]}
    made = ran(name, parameters, recipe(["0", "1", "2"], 3, learning_rate=0.3), given_)
    assert np.mean(predict([made], given_[0].x) == "2") > 0.9
    alone = ran(name, {**parameters, "memories": []}, recipe(["0", "1", "2"], 3), given_[:1])
    assert alone.tensors["1.weight"].isfinite().all()


def test_weights_over_other_labels_are_no_start() -> None:
    random = np.random.default_rng(0)
    first = ran("episodic-memory", planned("union", [], steps=1), recipe(["0", "1"], 3), [blobs(random, 0, 5)])
    with pytest.raises(InvalidInput, match=r"^recipe\.start: expected weights over the same labels"):
        ran(
            "episodic-memory",
            planned("union", [], steps=1),
            recipe(["1", "0"], 3),
            [blobs(random, 0, 5)],
            inputs={"start": first},
        )


@pytest.mark.parametrize("use", USES)
def test_empty_tasks_and_single_records_run_the_same_program(use: Use) -> None:
    """An empty scope, memory or class is noise alone, and the same noise as with a record that drew no gradient."""
    none = rows(np.zeros((0, 3)), np.zeros(0, dtype=np.int64), slots=20)
    unknown = rows(np.ones((1, 3)), [7], slots=20)  # a label outside the space is a null record
    one = rows(np.ones((1, 3)), [1], slots=20)
    parameters = planned(use, ["a", "b"], steps=5, train_probability=1.0, memory_probability=1.0)
    charges = mechanism("episodic-memory").quote(parameters, adjacency="add_remove").charges
    made = [
        ran("episodic-memory", parameters, recipe(["0", "1"], 3), [each] * len(charges))
        for each in (none, unknown, one)
    ]
    weights = [each.tensors["1.weight"] for each in made]
    assert all(bool(weight.isfinite().all()) and float(weight.abs().min()) > 0 for weight in weights)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert made[0].facts == made[2].facts


def test_without_memories_it_is_dp_sgd() -> None:
    given_ = [blobs(np.random.default_rng(0), 1, 40)]
    naive = {"steps": 40, "sampling_probability": 0.1, "noise_multiplier": 0.9, "clip_norm": 1.0}
    ours = ran("episodic-memory", planned("union", []), recipe(["0", "1"], 3), given_)
    theirs = ran("dp-sgd", naive, recipe(["0", "1"], 3), given_)
    assert ours.tensors.keys() == theirs.tensors.keys()
    assert all(torch.equal(ours.tensors[name], theirs.tensors[name]) for name in ours.tensors)


@pytest.mark.parametrize("combine", ["projection", "replay"])
def test_a_stream_of_digits_is_forgotten_less_than_without_memories(combine: str, shared_data: Path) -> None:
    """Three tasks of two digits each at ε ≤ 8 for life: memories against none, which is the naive baseline."""
    x, y = digits(shared_data, "train", 12_000)
    test_x, test_y = digits(shared_data, "t10k", 2_000)
    labels = [str(digit) for digit in range(6)]
    tasks = [np.flatnonzero(y // 2 == task)[:2000] for task in range(3)]
    kept = [
        {
            part: np.array(bitmap_from(document["bitmap"]))
            for part, document in parts([int(each) for each in task], key=b"0123456789abcdef", rate=0.5).items()
        }
        for task in tasks
    ]
    plan = {**PLAN, "steps": 60}
    promise = EpisodicMemory(**{k: v for k, v in plan.items() if k != "clip_norm"}, use="union")
    for part in ROLES:
        life = promise.life(1, part, tasks=3)
        assert account(life, delta=1e-5).upper <= 8

    def measured(released: Artifact) -> list[float]:
        said = predict([released], test_x)
        return [float(np.mean((said == test_y.astype(str))[test_y // 2 == task])) for task in range(3)]

    def learned(*, remember: bool) -> np.ndarray[Any, Any]:
        before: dict[str, Artifact] = {}
        accuracy = np.zeros((3, 3))
        for task in range(3):
            memories = range(task) if remember else ()
            own = kept[task]["train"] if remember else tasks[task]
            given_ = [rows(x[each], y[each]) for each in (own, *(kept[earlier]["memory"] for earlier in memories))]
            parameters = {**plan, "use": "union", "memories": [str(earlier) for earlier in memories]}
            chosen = recipe(labels, 49, combine=combine)
            made = ran("episodic-memory", parameters, chosen, given_, seed=task, inputs=before)
            before = {"start": made}
            accuracy[task] = measured(made)
        return accuracy

    memories, without = learned(remember=True), learned(remember=False)
    assert average_accuracy(memories) > 3 / 6
    assert average_accuracy(memories) > average_accuracy(without) + 0.15
    assert average_forgetting(memories) < average_forgetting(without) - 0.2
