"""What a run draws is what its quote charges: coins by number, scope and rate, and noise by its size in what leaves.

Prices are tested on the catalog and noise on the functions that add it. Here both meet, for every mechanism that has a
finite price: the real `run` is run on scopes where nobody is, so that what leaves is noise alone, wide enough that its
size is known to far less than the 3 % that are allowed; and a `Noise` writes down every coin that is thrown. Noise is
measured in units of what one datapoint contributes, by formulas of this file; the same runs with hardly any noise, on
data with and without a datapoint of several large rows, show that nobody contributes more.
"""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from accountant.events import (
    Adjacency,
    ApproxDP,
    Event,
    Gaussian,
    L2Laplace,
    Laplace,
    NonPrivate,
    PartitionSelection,
    PoissonSampled,
    Repeated,
)
from tests.accountant.strategies import ADJACENCIES
from tests.trainers.streams import Artifact
from tests.trainers.test_every_mechanism import EXAMPLES, MECHANISMS, SIZE, linear
from trainers.backbones import Backbone, Entry
from trainers.catalog import CATALOG
from trainers.catalog.parameters import read
from trainers.catalog.quotes import Quoted
from trainers.mechanisms.label_release import RULES
from trainers.noise import Noise
from trainers.ports import Made, Rows, Run

Document = dict[str, Any]
Vector: TypeAlias = torch.Tensor

WIDE: Final = 10_000  # values of a row
ALLOWED: Final = 0.03
ROWS: Final = 3  # of a datapoint that is there or not
NAMES: Final[Document] = {"label_source": "prior", "label_names": ["0", "1"]}
RATE: Final = 0.25  # of learning: a power of two, so that steps add up exactly but for the last bits
NETWORK: Final[Document] = {
    "model": "linear", "shape": [WIDE], "optimiser": "sgd", "learning_rate": RATE, "momentum": 0.0, **NAMES,
}  # fmt: skip
RADIUS, MODULUS, ITERATIONS = 2.0, 0.5, 3
CONVEX: Final[Document] = {
    "shape": [WIDE], "radius": RADIUS, "modulus": MODULUS, "iterations": ITERATIONS, "bias": False, **NAMES,
}  # fmt: skip


def wide(*, size: int) -> nn.Module:
    """A backbone whose one layer FiLM tunes: a scale, which starts at 1, and a shift for each value of a row."""
    del size
    return nn.Sequential(nn.Flatten(), nn.LayerNorm(WIDE))


class Recorder(Noise):
    """Chance that repeats, and a list of the coins that were thrown: for how many, and with which probability."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed.to_bytes(32), releasable=False)
        self.coins: list[tuple[int, float]] = []
        self.thrown = 0

    def chosen(self, count: int, probability: float) -> NDArray[np.int64]:
        self.thrown += count
        return super().chosen(count, probability)

    def samples(self, count: int, probability: float, *, times: int) -> Iterator[NDArray[np.int64]]:
        for sample in super().samples(count, probability, times=times):
            self.coins.append((count, probability))
            yield sample


class Heads(Recorder):
    """Coins that all show heads: everybody is in every sample."""

    def samples(self, count: int, probability: float, *, times: int) -> Iterator[NDArray[np.int64]]:
        for _ in super().samples(count, probability, times=times):
            yield np.arange(count, dtype=np.int64)


class Left(NamedTuple):
    """Noise that left: under which charge, and in units of the most that one datapoint contributes there."""

    charge: int
    name: str
    values: Vector


@dataclass(kw_only=True)
class Ran:
    """One run on nobody."""

    parameters: Document
    quoted: Quoted
    slots: Sequence[int]
    coins: list[tuple[int, float]]
    made: Made
    before: Made | None
    #: Of mechanisms that take steps: each step's noisy gradients, flat, and the one that it followed.
    gradients: list[list[Vector]]
    followed: list[Vector]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Runs of one mechanism, each after the one before, and how its noise is read off what it released."""

    runs: Sequence[Document]
    recipe: Document
    look: Callable[[Ran], list[Left]]
    inputs: Mapping[str, Artifact] = field(default_factory=dict)
    backbones: Mapping[str, Backbone] = field(default_factory=dict)  # of rows of WIDE values
    sizes: Sequence[int] = (40, 52, 64, 76)  # slots of charges that do not say which: all different


def nobody(slots: int, width: int) -> Rows:
    return Rows(
        slots=slots,
        unit=np.empty(0, dtype=np.int64),
        x=np.empty((0, width), dtype=np.float32),
        y=np.empty(0, dtype=np.int64),
    )


def everybody(slots: int, width: int, *, complete: bool) -> Rows:
    """A small row in every slot; in one of them, if the scope is complete, several large rows."""
    rng = np.random.default_rng(slots)
    unit = np.sort(np.concatenate([np.arange(slots), np.ones(ROWS - 1, dtype=np.int64)]))
    x = rng.normal(size=(len(unit), width)).astype(np.float32) / np.float32(math.sqrt(width))
    large = unit == 1
    x[large], x[large, 0] = 100.0, 0.0
    y = np.where(large, 1, 0)
    kept = ~large | complete
    return Rows(slots=slots, unit=unit[kept], x=x[kept], y=y[kept], rows_per_unit=ROWS)


def flat(tensors: Sequence[Vector]) -> Vector:
    return torch.cat([each.detach().flatten().to(torch.float64) for each in tensors])


def watched(module: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[list[list[Vector]], list[Vector]]:
    """What every step of a mechanism combines, and what comes of it; what it does stays the same."""
    gradients: list[list[Vector]] = []
    followed: list[Vector] = []

    def watching(combine: Callable[..., Any]) -> Callable[..., Any]:
        def combined(given: Sequence[list[Vector]]) -> Any:
            gradients.append([flat(each) for each in given])
            found = combine(given)
            followed.append(flat(found))
            return found

        return combined

    if hasattr(module, "train"):
        train = module.train
        default = train.__kwdefaults__["combine"]
        monkeypatch.setattr(
            module, "train", lambda *given, **named: train(*given, **named | {"combine": watching(
                named.get("combine", default)
            )})
        )  # fmt: skip
    elif hasattr(module, "kept"):
        monkeypatch.setattr(module, "kept", watching(module.kept))
    return gradients, followed


def run_of(
    name: str,
    case: Case,
    parameters: Document,
    before: Made | None,
    *,
    adjacency: Adjacency,
    noise: Recorder,
    without: int | None = None,
) -> Ran:
    """The mechanism on scopes where nobody is; or everybody, but for one in the charge `without` (−1: in none)."""
    row = CATALOG[name]
    quoted = row.quote(parameters, adjacency=adjacency)
    slots = [
        case.sizes[place] if charge.start is None or charge.stop is None else charge.stop - charge.start
        for place, charge in enumerate(quoted.charges)
    ]
    recipe, inputs = dict(case.recipe), dict(case.inputs)
    if before is not None and "previous" in row.releases:
        recipe["previous"], inputs["previous.0"] = ["rel_test"], Artifact(before)
    width = recipe.get("inputs") or recipe.get("feature_size") or math.prod(recipe.get("shape", [SIZE]))
    width = WIDE if case.backbones else width
    assert row.module is not None
    module = importlib.import_module(row.module)
    noise.coins, noise.thrown = [], 0
    with pytest.MonkeyPatch.context() as patch:
        gradients, followed = watched(module, patch)
        made: Made = module.run(
            Run(
                parameters=read("parameters", row.parameters, parameters),
                recipe=row.cooked(recipe),
                adjacency=adjacency,
                rows=[
                    nobody(each, width) if without is None else everybody(each, width, complete=place != without)
                    for place, each in enumerate(slots)
                ],
                noise=noise,
                inputs=inputs,
                backbones=case.backbones,
            )
        )
    assert noise.thrown == sum(count for count, _ in noise.coins), "a coin that belongs to no sample"
    return Ran(
        parameters=parameters, quoted=quoted, slots=slots, coins=noise.coins, made=made, before=before,
        gradients=gradients, followed=followed,
    )  # fmt: skip


# What a charge says


def leaf(event: Event) -> Event:
    """What is done each time."""
    while isinstance(event, Repeated | PoissonSampled):
        event = event.event
    return event


def charged_coins(quoted: Quoted, slots: Sequence[int]) -> list[tuple[int, float]]:
    """The coins that charges pay for. Those of one sum are thrown together, over the slots of all of its charges."""
    alone = [(charge.event, slots[n]) for n, charge in enumerate(quoted.charges) if n not in quoted.one_sum]
    shared = {quoted.charges[n].event for n in quoted.one_sum}
    assert len(shared) <= 1, "whoever is in one sum pays the same"
    coins: list[tuple[int, float]] = []
    for event, count in [*alone, *((event, sum(slots[n] for n in quoted.one_sum)) for event in shared)]:
        times, once = (event.times, event.event) if isinstance(event, Repeated) else (1, event)
        if isinstance(once, PoissonSampled):
            coins += [(count, once.sampling_probability)] * times
    return sorted(coins)


def share_of_charged(values: Vector, event: Event) -> float:
    """How large the noise is, beside what the event says of it."""
    size = int(values.numel())
    match leaf(event):
        case Gaussian(noise_multiplier=noise):
            return float(values.square().mean().sqrt()) / noise
        case L2Laplace(scale=scale):  # the norm is Gamma(size)
            return float(values.norm()) / (size * scale)
        case Laplace(scale=scale):
            return float(values.abs().mean()) / scale
        case other:
            raise AssertionError(f"no noise of {other} is known here")


def echo(values: Vector) -> float:
    """How much of a vector comes again in itself, at whatever distance: 1 is all, and chance leaves a few 1/√n."""
    spectrum = torch.fft.rfft(values)
    again = torch.fft.irfft(spectrum.abs().square(), n=values.numel()) / values.square().sum()
    return float(again[1:].abs().max())


# How noise is read off a release


def sums_of_gradients(clip: float, *, divided: bool = True, ones: Sequence[str] = ()) -> Callable[[Ran], list[Left]]:
    """Each coin goes with a gradient, and by its slots with a charge; sums are divided by what a sample expects.

    Weights start at 0, but for those that start at `ones`.
    """

    def look(ran: Ran) -> list[Left]:
        released = flat([tensor - float(name in ones) for name, tensor in ran.made.tensors.items()])
        torch.testing.assert_close(released, -RATE * torch.stack(ran.followed).sum(0), rtol=1e-5, atol=1e-6)
        charge_of = {count: place for place, count in enumerate(ran.slots)}
        if ran.quoted.one_sum:
            charge_of[sum(ran.slots[place] for place in ran.quoted.one_sum)] = ran.quoted.one_sum[0]
        gradients = [each for step in ran.gradients for each in step]
        return [
            Left(
                charge_of[count],
                f"draw {number} of {count} slots",
                gradient * (max(1.0, rate * count) if divided else 1.0) / clip,
            )
            for number, ((count, rate), gradient) in enumerate(zip(ran.coins, gradients, strict=True))
        ]

    return look


def of_labels(ran: Ran) -> list[Left]:
    """A row has norm 1, and is in the sum of one label; each label has noise of its own."""
    return [Left(0, f"label {place}", each) for place, each in enumerate(ran.made.tensors["sums"])]


def of_statistics(ran: Ran) -> list[Left]:
    """A datapoint adds φ and w φφᵀ, of norm √(1 + w²) together; √2 is due off the diagonal, which is there twice."""
    weight = ran.parameters["moment_weight"]
    sums, moments = ran.made.tensors["sums"], ran.made.tensors["moments"]
    assert torch.equal(moments, moments.T)
    size = len(moments)
    row, column = torch.triu_indices(size, size, 1)
    above, diagonal = math.sqrt(2) * weight * moments[row, column], weight * moments.diagonal()
    unit = math.hypot(1, weight)
    return [Left(0, "sums", sums.flatten() / unit), Left(0, "moments", torch.cat([above, diagonal]) / unit)]


def erm_contribution(slots: int) -> float:
    """L/(m n) (1 − (1 − ηm)^T) with L = √2 R and 1 − ηm = 1/(1 + 4m/R²), as docs/mechanisms.md derives it."""
    reached = 1 - (1 + 4 * MODULUS / RADIUS**2) ** -ITERATIONS
    return math.sqrt(2) * RADIUS / (MODULUS * slots) * reached


def of_one_model(ran: Ran) -> list[Left]:
    return [Left(0, "weights", ran.made.tensors["weight"].flatten().double() / erm_contribution(ran.slots[0]))]


def of_each_coordinate(ran: Ran) -> list[Left]:
    """A shift of C in the L2 norm is one of up to √d C in the L1 norm, by which this event measures."""
    [model] = of_one_model(ran)
    return [model._replace(values=model.values / math.sqrt(model.values.numel()))]


def of_blocks(*, leaning: bool, pane: str = "") -> Callable[[Ran], list[Left]]:
    """Models of nobody are their centres and noise. Averages divide by a block's full size, which levels double."""

    def look(ran: Ran) -> list[Left]:
        held = ran.made.facts["models"]
        offset = ran.parameters.get("offset", 0)
        found = []
        for place, model in enumerate(held):
            mine = [
                number
                for number, charge in enumerate(ran.quoted.charges)
                if (charge.start, charge.stop) == (model["start"] + offset, model["stop"] + offset)
            ]
            weights = ran.made.tensors[model["tensor"]].double()
            if not mine:  # reused: what was released before, to the last bit
                assert ran.before is not None
                assert torch.equal(weights, ran.before.tensors[model["tensor"]].double())
                continue
            [charge] = mine
            if leaning and place + 1 < len(held):
                weights = weights - ran.made.tensors[held[place + 1]["tensor"]].double()
            slots = ran.parameters[pane] << model["level"] if pane else model["stop"] - model["start"]
            found.append(Left(charge, model["tensor"], weights.flatten() / erm_contribution(slots)))
        return found

    return look


def of_counts(ran: Ran) -> list[Left]:
    facts = ran.made.facts
    return [Left(0, "counts", torch.tensor([facts["correct"], facts["wrong"]], dtype=torch.float64))]


# The cases


def memories(use: str, *, count: int = 3) -> Document:
    return {
        "steps": 6, "train_probability": 0.3, "train_noise_multiplier": 0.8, "memory_probability": 0.6,
        "memory_noise_multiplier": 1.7, "clip_norm": 0.5, "use": use, "memories": ["a", "b", "c"][:count],
        **({"seed": "1f" * 16} if use == "one_block" else {}),
    }  # fmt: skip


STEPS: Final[Document] = {"noise_multiplier": 1.3, "sampling_probability": 0.3, "steps": 4, "clip_norm": 0.7}


def stream(steps: int, **parameters: Any) -> list[Document]:
    return [{**parameters, "step": step} for step in range(steps)]


GAUSSIAN: Final[Document] = {"noise": "gaussian", "mu": 1.5}
TIMES: Final = 8_000  # runs of a mechanism that releases two numbers

CASES: Final[Mapping[str, Sequence[Case]]] = {
    "dp-sgd": [
        Case(runs=[STEPS], recipe=NETWORK, look=sums_of_gradients(0.7)),
        Case(runs=[{**STEPS, "tasks": ["a", "b"]}], recipe=NETWORK, look=sums_of_gradients(0.7)),
    ],
    "episodic-memory": [
        Case(runs=[memories(use, count=count)], recipe=NETWORK, look=sums_of_gradients(0.5))
        for use in ("union", "every_block", "one_block")
        for count in (3, 2)
    ],
    "dp-agem-as-published": [  # one datapoint can turn a batch round: it contributes twice the clip norm
        Case(
            runs=[
                {
                    "steps": 4,
                    "train_probability": 0.3,
                    "memory_probability": 0.6,
                    "noise_multiplier": 1.3,
                    "clip_norm": 0.5,
                    "memories": ["a", "b"],
                }
            ],
            recipe=NETWORK,
            look=sums_of_gradients(2 * 0.5, divided=False),
        )
    ],
    "peft-ensemble": [
        Case(
            runs=[STEPS],
            recipe={
                "feature_size": WIDE,
                "optimiser": "sgd",
                "learning_rate": RATE,
                "momentum": 0.0,
                **NAMES,
            },
            look=sums_of_gradients(0.7),
        ),
        Case(
            runs=[STEPS],
            recipe={
                "backbone": "wide",
                "adapter": "film",
                "optimiser": "sgd",
                "learning_rate": RATE,
                "momentum": 0.0,
                **NAMES,
            },
            look=sums_of_gradients(0.7, ones=["body.module.1.weight"]),
            backbones={"wide": Backbone(Entry(name="wide", factory=f"{__name__}:wide"))},
        ),
    ],
    "cosine-classifier": [
        Case(runs=[{"noise_multiplier": 1.3}], recipe={"feature_size": WIDE, **NAMES}, look=of_labels)
    ],
    "l2dp-ml": [
        Case(
            runs=[{"noise_multiplier": 1.3, "moment_weight": weight}],
            recipe={"inputs": 150, "label_source": "prior", "label_names": [str(each) for each in range(80)]},
            look=of_statistics,
        )
        for weight in (0.3, 2.0)
    ],
    "output-perturbation": [
        Case(runs=[{"epsilon": 0.7}], recipe=CONVEX, look=of_one_model),
        Case(runs=[{"noise": "gaussian", "noise_multiplier": 1.3}], recipe=CONVEX, look=of_one_model),
    ],
    "output-perturbation-as-published": [
        Case(runs=[{"epsilon": 0.7, "weights": 2 * WIDE}], recipe=CONVEX, look=of_each_coordinate)
    ],
    "sliding-window": [
        Case(runs=stream(5, k=3, w0=4, **more), recipe=CONVEX, look=of_blocks(leaning=True, pane="w0"))
        for more in ({"epsilon": 0.7}, GAUSSIAN, {"epsilon": 0.7, "startup": "partial", "offset": 9})
    ],
    "multi-resolution": [
        Case(runs=stream(4, pane=4, **more), recipe=CONVEX, look=of_blocks(leaning=False, pane="pane"))
        for more in ({"epsilon": 0.7}, GAUSSIAN, {"epsilon": 0.7, "levels": 2, "offset": 9})
    ],
    "continual-release": [
        Case(runs=stream(6, pane=4, doublings=1, **more), recipe=CONVEX, look=of_blocks(leaning=True))
        for more in ({"epsilon": 0.7}, {**GAUSSIAN, "offset": 9})
    ],
    "accuracy": [
        Case(runs=[given] * TIMES, recipe={"models": ["rel_test"]}, look=of_counts, inputs={"models.0": linear()})
        for given in ({"scale": 1.3}, {"noise": "gaussian", "noise_multiplier": 1.3})
    ],
}


EVERY_CASE: Final = pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(name, case, id=f"{name}-{number}", marks=[pytest.mark.slow] if len(case.runs) == TIMES else [])
        for name, cases in CASES.items()
        for number, case in enumerate(cases, start=1)
    ],
)


def test_every_mechanism_that_has_a_price_is_measured() -> None:
    """Labels are told or not: there is no noise to be measured in them, and their own test is below."""
    priced = {
        name
        for name in MECHANISMS
        if not any(
            isinstance(leaf(charge.event), NonPrivate)
            for charge in CATALOG[name].quote(EXAMPLES[name].parameters, adjacency="add_remove").charges
        )
    }
    assert set(CASES) | {"label-release"} == priced


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@EVERY_CASE
def test_coins_and_noise_are_those_that_are_charged(name: str, case: Case, adjacency: Adjacency) -> None:
    noise, before = Recorder(), None
    found: dict[str, list[Vector]] = {}
    event_of: dict[str, Event] = {}
    for parameters in case.runs:
        ran = run_of(name, case, parameters, before, adjacency=adjacency, noise=noise)
        before = ran.made
        paid = charged_coins(ran.quoted, ran.slots)
        thrown = sorted(ran.coins)
        assert [count for count, _ in thrown] == [count for count, _ in paid], "whose coins, and how many"
        assert all(was <= due for (_, was), (_, due) in zip(thrown, paid, strict=True)), "and with which rate"
        assert [rate for _, rate in thrown] == pytest.approx([rate for _, rate in paid], rel=1e-9)
        left = case.look(ran)
        places = {each.charge for each in left} | {*ran.quoted.one_sum}
        assert places == set(range(len(ran.quoted.charges))), "every charge is for something that left"
        for each in left:
            found.setdefault(each.name, []).append(each.values)
            event_of[each.name] = ran.quoted.charges[each.charge].event
    noises = {what: torch.cat(values) for what, values in found.items()}
    for what, values in noises.items():
        assert values.numel() >= WIDE, "or its size would not be known"
        assert share_of_charged(values, event_of[what]) == pytest.approx(1, abs=ALLOWED), what
        assert echo(values) < 7 / math.sqrt(values.numel()), "noise that is used twice cancels in differences"
    for one, other in combinations(noises.values(), 2):
        if one.numel() == other.numel():
            assert abs(float(one @ other / (one.norm() * other.norm()))) < 6 / math.sqrt(one.numel())


# Nobody contributes more than the unit that noise is measured in

QUIET: Final[Document] = {
    "noise_multiplier": 1e-6, "train_noise_multiplier": 1e-6, "memory_noise_multiplier": 1e-6, "scale": 1e-6,
    "epsilon": 1e6, "mu": 1e6, "steps": 1,
}  # fmt: skip


@EVERY_CASE
def test_nobody_contributes_more_than_the_unit_of_noise(name: str, case: Case) -> None:
    """With the same noise twice, the difference is what one datapoint of one charge did."""
    parameters = case.runs[0] | {key: value for key, value in QUIET.items() if key in case.runs[0]}

    def left(without: int) -> tuple[Quoted, list[Left]]:
        ran = run_of(name, case, parameters, None, adjacency="add_remove", noise=Heads(), without=without)
        return ran.quoted, case.look(ran)

    quoted, complete = left(-1)
    for number, charge in enumerate(quoted.charges):
        mine = quoted.one_sum[0] if number in quoted.one_sum else number
        pairs = zip(complete, left(number)[1], strict=True)
        moved = torch.cat([one.values - other.values for one, other in pairs if one.charge == mine])
        norm = float(moved.norm(p=1 if isinstance(leaf(charge.event), Laplace) else 2))
        assert 0.2 < norm < 1 + 1e-4, number


def test_noise_of_another_size_would_be_noticed() -> None:
    """The ruler: 3 % is many of its own deviations."""
    noise = Recorder()
    for count in (2 * TIMES, 2 * WIDE):
        values = noise.normals((count,), dtype=torch.float64)
        assert share_of_charged(1.3 * values, Gaussian(noise_multiplier=1.3)) == pytest.approx(1, abs=ALLOWED)
        assert share_of_charged(1.24 * values, Gaussian(noise_multiplier=1.3)) < 1 - ALLOWED
    vector = noise.spherical_laplace(2 * WIDE, 1.3)
    assert share_of_charged(vector, L2Laplace(scale=1.3)) == pytest.approx(1, abs=ALLOWED)
    assert share_of_charged(0.95 * vector, L2Laplace(scale=1.3)) < 1 - ALLOWED


# Labels


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("labels_per_unit", [1, 3])
def test_labels_are_told_with_the_probabilities_that_are_charged(
    rule: str, labels_per_unit: int, adjacency: Adjacency
) -> None:
    """Thousands of labels of each size, each datapoint with more of them than it is allowed."""
    parameters = {"epsilon": 1.5, "delta": 0.05, "rule": rule, "labels_per_unit": labels_per_unit}
    [charge] = CATALOG["label-release"].quote(parameters, adjacency=adjacency).charges
    counts = charge.event.times if isinstance(charge.event, Repeated) else 1
    each = leaf(charge.event)
    assert isinstance(each, PartitionSelection | ApproxDP)
    told_by_promise = isinstance(each, ApproxDP) and adjacency == "replace_one"
    assert counts == labels_per_unit * (2 if told_by_promise else 1), "one for each count that a datapoint changes"
    law = RULES[rule](epsilon=each.epsilon, delta=each.delta)

    of_each, sizes = 1_200, np.arange(1, 13)
    groups, beyond = of_each // labels_per_unit, 2
    names, unit, first, owner = [], [], 0, 0
    expected: list[int] = []
    for size in sizes.tolist():
        for _ in range(groups):  # `size` datapoints share these labels, and carry others that count for nobody
            mine = list(range(first, first + labels_per_unit))
            for _ in range(size):
                names += mine + [-1 - place for place in range(beyond)]
                unit += [owner] * (labels_per_unit + beyond)
                owner += 1
            expected += [size] * labels_per_unit
            first += labels_per_unit
    rows = Rows(
        slots=owner,
        unit=np.array(unit, dtype=np.int64),
        x=np.empty((len(unit), 0), dtype=np.float32),
        y=np.array(names, dtype=np.int64),
        rows_per_unit=labels_per_unit + beyond,
    )
    module = importlib.import_module(CATALOG["label-release"].module or "")
    made: Made = module.run(
        Run(
            parameters=read("parameters", CATALOG["label-release"].parameters, parameters),
            recipe=CATALOG["label-release"].cooked({}),
            adjacency=adjacency,
            rows=[rows],
            noise=Recorder(1),
        )
    )
    told = np.array(made.facts["labels"], dtype=np.int64)
    assert np.all(told >= 0), "nobody is allowed to count for those that come after"
    size_of = np.array(expected)
    found = Counter(size_of[told].tolist())
    total = groups * labels_per_unit
    for size in sizes.tolist():
        pi = float(law.inclusion_probability(np.array([size]))[0])
        deviation = math.sqrt(total * pi * (1 - pi))
        assert abs(found[size] - total * pi) <= 4.5 * deviation + 1e-6 * total, size
