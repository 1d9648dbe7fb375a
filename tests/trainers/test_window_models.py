"""Streams of noisy models: chains that find what they lean on, prices, and a promise that holds for ever."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from importlib import import_module
from typing import Any, Final

import numpy as np
import pytest
import torch

from accountant import InvalidInput, account, sealed
from accountant.book import Book, created, spell
from accountant.book import replay as replay_log
from accountant.events import Adjacency, Composed, Event, Gaussian, L2Laplace, Laplace, NonPrivate, PureDP, counted
from accountant.filters import Filter
from accountant.ledger import LIFELONG, standing
from accountant.streams.schedules import SlidingWindow
from accountant.units import exact
from service.operations.releases import Proposal, propose
from service.store.writer import stamp
from tests.accountant.strategies import ADJACENCIES
from trainers.catalog import mechanism
from trainers.columns import DataProblem
from trainers.erm import Objective, fit
from trainers.noise import Noise
from trainers.ports import Made, Rows, Run
from trainers.predictors import predict

Document = dict[str, Any]
AT: Final = datetime(2026, 1, 1, tzinfo=UTC)
SIZE: Final = 5  # of a row
RECIPE: Final[Document] = {
    "shape": [SIZE], "radius": 1.0, "modulus": 0.5, "iterations": 8, "label_source": "prior", "label_names": ["0", "1"],
}  # fmt: skip
#: Step 0 of each stream, with a life of ε = 0.7.
STREAMS: Final[Mapping[str, Document]] = {
    "sliding-window": {"k": 3, "w0": 2, "epsilon": 0.7},
    "multi-resolution": {"pane": 2, "epsilon": 0.7},
    "continual-release": {"pane": 2, "doublings": 2, "epsilon": 0.7},
}


@dataclass(frozen=True)
class Artifact:
    """A release that was committed."""

    release: str
    made: Made

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        return self.made.tensors

    @property
    def facts(self) -> Mapping[str, Any]:
        return self.made.facts


def data(start: int, stop: int) -> Rows:
    """Datapoints of a stream by their ordinals: the label is the sign of the first value."""
    x = np.array([np.random.default_rng(each).normal(size=SIZE) for each in range(start, stop)]).reshape(-1, SIZE)
    return Rows(
        slots=stop - start, unit=np.arange(stop - start), x=x.astype(np.float32), y=(x[:, 0] > 0).astype(np.int64)
    )


def run_of(
    name: str, parameters: Document, *, previous: Artifact | None = None, seed: int = 0, **recipe: Any
) -> tuple[Run, Any]:
    row = mechanism(name)
    quoted = row.quote(parameters, adjacency="add_remove")
    if previous is not None:
        recipe["previous"] = [previous.release]
    run = Run(
        parameters=read(row.parameters, parameters),
        recipe=row.cooked(RECIPE | recipe),
        adjacency="add_remove",
        rows=[data(charge.start or 0, charge.stop or 0) for charge in quoted.charges],
        noise=Noise.repeatable(seed),
        inputs={} if previous is None else {"previous.0": previous},
    )
    assert row.module is not None
    return run, import_module(row.module)


def read(parameters: Any, given: Document) -> Document:
    """With defaults, as a worker gets them."""
    defaults = {each.name: each.default for each in parameters if not each.when and each.name not in given}
    return {**defaults, **given}


def step(name: str, number: int, **more: Any) -> Document:
    return {**STREAMS[name], "step": number, **more}


# Chains


@pytest.mark.parametrize("name", ["sliding-window", "continual-release"])
def test_every_step_finds_what_it_leans_on_in_the_release_before(name: str) -> None:
    held: dict[str, torch.Tensor] = {}
    previous = None
    for number in range(12):
        run, module = run_of(name, step(name, number), previous=previous, seed=number)
        made = module.run(run)
        chain = [model["tensor"] for model in made.facts["models"]]
        trained = len(run.rows)
        assert set(made.tensors) == {"weight", "bias", *chain}
        for model in chain[trained:]:
            assert torch.equal(made.tensors[model], held[model]), "as it was released"
        assert not set(chain[:trained]) & set(held)
        held |= {model: made.tensors[model] for model in chain}
        assert torch.equal(made.tensors["weight"], held[chain[0]][:, :-1])
        assert torch.equal(made.tensors["bias"], held[chain[0]][:, -1])
        assert made.facts["predictor"] == "linear"
        assert made.facts["labels"] == ["0", "1"]
        previous = Artifact(f"rel_{number}", made)


def test_each_model_of_a_chain_is_trained_around_the_next() -> None:
    """With almost no noise and one step of descent, a model is its centre but for what its own block says."""
    run, module = run_of("sliding-window", step("sliding-window", 0, epsilon=1e9), iterations=1)
    made = module.run(run)
    objective = Objective(features=SIZE, labels=2, radius=1.0, modulus=0.5, iterations=1)
    centre = torch.zeros(2, SIZE + 1, dtype=torch.float64)
    for model, rows in zip(reversed(made.facts["models"]), run.rows, strict=True):
        centre = fit(objective, rows, np.asarray(rows.y), slots=rows.slots, centre=centre)
        torch.testing.assert_close(made.tensors[model["tensor"]].double(), centre, atol=1e-5, rtol=0)
    torch.testing.assert_close(made.tensors["weight"].double(), centre[:, :-1], atol=1e-5, rtol=0)


def test_a_step_without_the_models_it_leans_on_is_refused() -> None:
    first_run, module = run_of("sliding-window", step("sliding-window", 0))
    first = Artifact("rel_0", module.run(first_run))
    for previous in (None, Artifact("rel_x", Made(tensors={}, facts={"labels": ["0", "1"]}))):
        run, _ = run_of("sliding-window", step("sliding-window", 1), previous=previous)
        with pytest.raises(InvalidInput, match=r"^recipe\.previous: expected a release that holds the model of f\["):
            module.run(run)
    run, _ = run_of("sliding-window", step("sliding-window", 1), previous=first, bias=False)
    with pytest.raises(InvalidInput, match=r"^recipe\.previous: expected a linear model of 5 weights"):
        module.run(run)
    with pytest.raises(DataProblem, match=r"^data\.shape$"):
        run_of("sliding-window", step("sliding-window", 1), previous=first, shape=[SIZE, 1])


def test_labels_of_an_earlier_model_are_found_by_name() -> None:
    """A label that is new starts at zero, one that is gone is dropped, and the others keep their weights."""
    first_run, module = run_of("output-perturbation", {"epsilon": 1e6})
    first_run = with_rows(first_run, data(0, 30))
    first = Artifact("rel_0", module.run(first_run))
    run, _ = run_of("output-perturbation", {"epsilon": 1e9}, label_names=["new", "1", "0"], modulus=1e6, centre="rel_0")
    run = with_rows(run, data(0, 30), centre=first)
    weight = module.run(run).tensors["weight"]
    expected = torch.stack([torch.zeros(SIZE), first.tensors["weight"][1], first.tensors["weight"][0]])
    torch.testing.assert_close(weight, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["output-perturbation", "output-perturbation-as-published"])
def test_only_a_linear_model_is_a_centre(name: str) -> None:
    others = {
        "labels": Made(tensors={}, facts={"labels": ["0", "1"]}),
        "no labels": Made(tensors={}, facts={"labels": []}),
        "accuracy": Made(tensors={}, facts={"correct": 1.0}),
        "prototypes": Made(tensors={"sums": torch.zeros(2, SIZE)}, facts={"labels": ["0", "1"]}),
        "a network": Made(tensors={"1.weight": torch.zeros(2, SIZE)}, facts={"labels": ["0", "1"]}),
        "another shape": Made(tensors={"weight": torch.zeros(2, SIZE)}, facts={"labels": ["0", "1"]}),
    }
    weights = {"weights": 2 * (SIZE + 1)} if name.endswith("published") else {}
    run, module = run_of(name, {"epsilon": 1.0, **weights}, centre="rel_x")
    for made in others.values():
        with pytest.raises(InvalidInput, match=r"^recipe\.centre: expected a linear model of 6 weights for each label"):
            module.run(with_rows(run, data(0, 30), centre=Artifact("rel_x", made)))


def with_rows(run: Run, *rows: Rows, **inputs: Artifact) -> Run:
    return Run(
        parameters=run.parameters,
        recipe=run.recipe,
        adjacency=run.adjacency,
        rows=rows,
        noise=run.noise,
        inputs=inputs,
    )


def test_a_stream_may_begin_with_less_than_a_window() -> None:
    previous, schedule = None, SlidingWindow(k=3, w0=2, startup="partial")
    for number in range(9):
        run, module = run_of(
            "sliding-window", step("sliding-window", number, startup="partial"), previous=previous, seed=number
        )
        made = module.run(run)
        blocks = schedule.step(number).chain
        assert [(each["start"], each["stop"]) for each in made.facts["models"]] == [(b.start, b.stop) for b in blocks]
        previous = Artifact(f"rel_{number}", made)


def test_multi_resolution_releases_every_size_that_is_due() -> None:
    run, module = run_of("multi-resolution", step("multi-resolution", 3))
    reported: list[tuple[int, int]] = []
    run = Run(
        parameters=run.parameters,
        recipe=run.recipe,
        adjacency=run.adjacency,
        rows=run.rows,
        noise=run.noise,
        progress=lambda done, of: reported.append((done, of)),
    )
    made = module.run(run)
    assert [(each["start"], each["stop"]) for each in made.facts["models"]] == [(0, 8), (4, 8), (6, 8)]
    assert torch.equal(made.tensors["weight"], made.tensors["base.2.0.8"][:, :-1])
    assert reported == [(done, 24) for done in range(1, 25)]


def test_a_scope_without_any_slot_is_a_run_like_any_other() -> None:
    run, module = run_of("output-perturbation", {"epsilon": 1.0})
    given = Rows(slots=0, unit=np.zeros(0, np.int64), x=np.zeros((0, *run.recipe["shape"]), np.float32), y=np.zeros(0))
    made = module.run(replace(run, rows=[given]))
    assert all(bool(tensor.isfinite().all()) and float(tensor.abs().max()) > 0 for tensor in made.tensors.values())


@pytest.mark.parametrize("noise", [{"epsilon": 0.5}, {"noise": "gaussian", "noise_multiplier": 2.0}])
def test_an_empty_scope_releases_noise_of_the_same_size(noise: Document) -> None:
    """Nobody is there: the same program runs, and what comes out is the noise that was charged for, and that alone."""
    nobody = Rows(
        slots=40, unit=np.empty(0, dtype=np.int64), x=np.empty((0, SIZE), dtype=np.float32), y=np.empty(0, dtype="U1")
    )
    run, module = run_of("output-perturbation", noise)
    drawn = []
    for _ in range(300):
        made = module.run(with_rows(run, nobody))
        drawn.append(torch.cat([made.tensors["weight"].flatten(), made.tensors["bias"]]))
    norms = torch.stack(drawn).norm(dim=1)
    row_norm = math.sqrt(2)  # radius 1, and the constant feature
    reached = 1 - (1 + 4 * 0.5 / row_norm**2) ** -8
    contribution = math.sqrt(2) * row_norm / (0.5 * 40) * reached
    if "epsilon" in noise:
        assert float(norms.mean()) == pytest.approx(12 * contribution / 0.5, rel=0.06)
    else:
        assert float((norms**2).mean()) == pytest.approx(12 * (2 * contribution) ** 2, rel=0.1)


@pytest.mark.parametrize("noise", [{"epsilon": 0.5}, {"noise": "gaussian", "noise_multiplier": 2.0}])
def test_where_no_label_was_released_there_is_a_model_without_labels(noise: Document) -> None:
    run, module = run_of("output-perturbation", noise)
    recipe = {**run.recipe, "label_source": "released", "labels_release": "rel_labels"}
    told = Artifact("rel_labels", Made(tensors={}, facts={"labels": []}))
    run = Run(
        parameters=run.parameters,
        recipe={key: value for key, value in recipe.items() if key != "label_names"},
        adjacency=run.adjacency,
        rows=[data(0, 20)],
        noise=run.noise,
        inputs={"labels_release": told},
    )
    made = module.run(run)
    assert made.tensors["weight"].shape == (0, SIZE)
    assert predict([Artifact("rel_0", made)], data(0, 3).x).tolist() == ["", "", ""]


def test_it_runs_where_the_job_runs(device: str) -> None:
    run, module = run_of("sliding-window", step("sliding-window", 0))
    there = Run(
        parameters=run.parameters,
        recipe=run.recipe,
        adjacency="add_remove",
        rows=run.rows,
        noise=Noise.repeatable(0),
        device=device,
    )
    here, found = module.run(run), module.run(there)
    for name, tensor in found.tensors.items():
        assert tensor.device.type == "cpu"
        torch.testing.assert_close(tensor, here.tensors[name])


# Prices


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("epsilon", [0.1, 1 / 3, 8.0])
def test_one_model_costs_what_was_asked_for(epsilon: float, adjacency: Adjacency) -> None:
    [charge] = mechanism("output-perturbation").quote({"epsilon": epsilon}, adjacency=adjacency).charges
    assert isinstance(charge.event, L2Laplace)
    moved = 2 if adjacency == "replace_one" else 1
    # ‖v − shift‖ − ‖v‖ reaches ‖shift‖ = moved·C in its own direction: the loss is that over the scale.
    assert moved / charge.event.scale == pytest.approx(epsilon, rel=1e-12)
    assert account(charge.event, delta=1e-12, adjacency=adjacency).upper == pytest.approx(epsilon, rel=1e-6)
    assert Fraction(moved) / exact(charge.event.scale) <= exact(epsilon)
    noise = {"noise": "gaussian", "noise_multiplier": 3.0}
    [charge] = mechanism("output-perturbation").quote(noise, adjacency=adjacency).charges
    assert charge.event == Gaussian(noise_multiplier=3.0)
    found, mu = account(charge.event, delta=1e-5, adjacency=adjacency).upper, moved / 3

    def phi(z: float) -> float:
        return math.erfc(-z / math.sqrt(2)) / 2

    assert phi(-found / mu + mu / 2) - math.exp(found) * phi(-found / mu - mu / 2) == pytest.approx(1e-5, rel=1e-3)


@pytest.mark.parametrize("weights", [1, 2, 16, 7840])
def test_the_published_noise_is_charged_with_the_root_of_the_weights(weights: int) -> None:
    """The worst shift of norm 2C has all coordinates alike: d of them lose 2C/√d each, over a scale of 2C/ε."""
    row = mechanism("output-perturbation-as-published")
    given = {"epsilon": 0.1, "weights": weights}
    [charge] = row.quote(given, adjacency="replace_one").charges
    assert isinstance(charge.event, Laplace)
    loss = weights * (2 / math.sqrt(weights)) / (2 / 0.1)
    price = account(charge.event, delta=1e-15, adjacency="replace_one")
    assert price.upper == pytest.approx(loss, rel=1e-6)
    assert Fraction(2) / exact(charge.event.scale) >= Fraction(loss) * (1 - Fraction(1, 10**12))
    [charge] = row.quote(given | {"lipschitz": "data"}, adjacency="replace_one").charges
    assert charge.event == NonPrivate()


def by_the_card(panes: int, steps: int) -> Iterator[tuple[str, int, int]]:
    """Algorithm 4 as card M16 tells it, in panes: what is trained when, and on what."""
    t, base = panes, 0
    for _ in range(steps):
        if t == panes * 2 ** round(math.log2(t / panes)):
            base = t
            yield "base", 0, t
        else:
            i = t - base
            doubling = i & (i - 1) == 0
            yield "update", base if doubling else t - 1, t
        t += 1


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("doublings", [0, 1, 3])
def test_continual_release_has_the_noise_of_the_card(doublings: int, adjacency: Adjacency) -> None:
    """Noise 4L/(mBε)·max(1, 3/2 − b0/B) under replace-one, half of it under add/remove, and lives that stay below ε."""
    panes, pane, epsilon = 2**doublings, 10, 0.8
    factor = max(1, 1.5 - 1 / panes) * (1 if adjacency == "replace_one" else 0.5)
    suffered: dict[int, Fraction] = {}
    for number, (kind, start, stop) in enumerate(by_the_card(panes, 150)):
        given = {"pane": pane, "doublings": doublings, "step": number, "epsilon": epsilon}
        quoted = mechanism("continual-release").quote(given, adjacency=adjacency)
        [charge] = quoted.charges
        assert (charge.start, charge.stop) == (start * pane, stop * pane)
        assert isinstance(charge.event, L2Laplace)
        size, smallest = (stop - start) * pane, panes * pane if kind == "base" else pane
        assert charge.event.scale / size == pytest.approx(4 * factor / (smallest * epsilon), rel=1e-6)  # L = m = 1
        cost = (2 if adjacency == "replace_one" else 1) / exact(charge.event.scale)
        for each in range(start, stop):
            suffered[each] = suffered.get(each, Fraction()) + cost
        assert quoted.life == PureDP(epsilon=epsilon)
    assert max(suffered.values()) <= exact(epsilon)
    assert float(max(suffered.values())) >= epsilon * (0.97 if panes > 1 else 0.9)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("levels", [0, 3])
def test_multi_resolution_has_the_noise_of_the_card(levels: int, adjacency: Adjacency) -> None:
    """Noise 4L/(mBε) at every level under replace-one, a little less where levels end; each level is entered once."""
    pane, epsilon = 10, 0.8
    moved = 2 if adjacency == "replace_one" else 1
    suffered: dict[int, Counter[Event]] = {}
    life = None
    for number in range(64):
        given = {"pane": pane, "levels": levels, "step": number, "epsilon": epsilon}
        quoted = mechanism("multi-resolution").quote(given, adjacency=adjacency)
        due = [i for i in range(levels or 7) if (number + 1) % 2**i == 0]
        assert [(charge.start, charge.stop) for charge in quoted.charges] == [
            ((number + 1 - 2**i) * pane, (number + 1) * pane) for i in due
        ]
        for i, charge in zip(due, quoted.charges, strict=True):
            assert isinstance(charge.event, L2Laplace)
            last = 1 - 2.0**-levels if levels else 1
            assert charge.event.scale / (pane * 2**i) == pytest.approx(moved * 2 * last / (pane * epsilon), rel=1e-6)
            for each in range(number + 1 - 2**i, number + 1):
                suffered.setdefault(each, Counter()).update(counted(charge.event))
        life = quoted.life
    assert isinstance(life, Composed)
    whole = Counter(counted(life))
    assert all(events <= whole for events in suffered.values())
    total = sum(moved / exact(leaf.scale) for leaf in whole.elements() if isinstance(leaf, L2Laplace))
    assert exact(epsilon) * (1 - Fraction(1, 10**6)) <= total <= exact(epsilon)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_gaussian_lives_add_up_to_mu(adjacency: Adjacency) -> None:
    """Squares of 1/σ, over the worst-off datapoint of 200 steps."""
    moved, mu = 2 if adjacency == "replace_one" else 1, 0.6
    for name, given in STREAMS.items():
        suffered: dict[int, float] = {}
        for number in range(200):
            parameters = {key: value for key, value in given.items() if key != "epsilon"}
            parameters |= {"step": number, "noise": "gaussian", "mu": mu}
            for charge in mechanism(name).quote(parameters, adjacency=adjacency).charges:
                assert isinstance(charge.event, Gaussian)
                for each in range(charge.start or 0, charge.stop or 0):
                    suffered[each] = suffered.get(each, 0.0) + (moved / charge.event.noise_multiplier) ** 2
        assert 0.97 * mu**2 <= max(suffered.values()) <= mu**2 * (1 + 1e-12), name


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("preset", ["pure", "mixed"])
@pytest.mark.parametrize("name", STREAMS)
def test_a_life_fits_the_budget_that_it_was_made_for_and_no_smaller_one(
    name: str, preset: Any, adjacency: Adjacency
) -> None:
    for epsilon in (0.7, 1 / 3, 1e-3):
        life = mechanism(name).quote(step(name, 5, epsilon=epsilon), adjacency=adjacency).life
        assert life is not None
        for budget, fits in ((epsilon, True), (epsilon - 1e-9, False)):
            gate = Filter.of(epsilon=budget, delta=1e-9, preset=preset)
            standings = {gate.nothing: 1}
            assert sealed.admits(gate, Composed(events=(life,)), adjacency, standings, delta=0.0) is fits


# For ever


@pytest.mark.parametrize(
    ("name", "adjacency"),
    [("sliding-window", "add_remove"), ("multi-resolution", "replace_one"), ("continual-release", "replace_one")],
)
def test_a_thousand_windows_keep_every_life_within_the_budget(name: str, adjacency: Adjacency) -> None:
    """Through the service's own decision, on a book in memory: every step is admitted and the ledger is the witness.

    The budget is exactly that of the life. The thousand and first step is admitted as the first was. A step whose
    models nobody paid for is not, and whoever is worst off has nothing left but what levels to come will take.
    """
    steps = 1000
    last = max(charge.stop or 0 for charge in mechanism(name).quote(step(name, steps), adjacency=adjacency).charges)
    log = []
    first = created(population="stream", unit="record", adjacency=adjacency, epsilon=0.7, delta=0.0, preset="pure")
    book = Book.of(spelled(first))
    log.append((book.chain.link, spelled(first)))

    def append(body: Document, held: Any = None) -> None:
        text = book.append(body, at=stamp(AT), actor="key_test", held=held)
        log.append((book.chain.link, text))

    append({"kind": "datapoints.registered", "count": last, "keyed": False})
    for number in range(steps + 1):
        outcome = proposed(book, name, step(name, number))
        assert outcome.held is not None, (number, outcome.bodies[0]["decision"]["reasons"])
        append(outcome.bodies[0], outcome.held)
        append({"kind": "release.committed", "release": outcome.held.release})
        if number == 5:
            skipped = proposed(book, name, step(name, number + 2))
            assert (skipped.held is None) == (name != "multi-resolution")
    readings = [book.policy.budget.highest([history_cost(book, ordinal)]) for ordinal in range(last)]
    worst = readings.index(max(readings))
    assert 0.7 * 0.99 <= readings[worst] <= 0.7
    assert min(readings[: last // 4]) > 0
    more = [{"scope": {"ranges": [[worst, worst + 1]]}, "event": {"kind": "pure_dp", "epsilon": 0.0071}}]
    assert propose(Proposal(kind="weights", charges=more, hold_seconds=60, declared={}))(book, AT, None).held is None
    # The beginning, decided again from the log alone.
    assert replay_log(log[:60], verify=True).number == 60


def history_cost(book: Book, ordinal: int) -> Any:
    return standing(book.policy.budget, book.ledger.cohorts.history(ordinal), LIFELONG)


def spelled(body: Document) -> bytes:
    return spell(body, at=stamp(AT), actor="key_test")


def proposed(book: Book, name: str, parameters: Document) -> Any:
    proposal = Proposal(
        kind="window_model",
        mechanism={"name": name, "parameters": parameters},
        hold_seconds=3600,
        declared={},
    )
    return propose(proposal)(book, AT, None)


# As published


@pytest.mark.parametrize(
    ("name", "parameters", "codes"),
    [
        ("output-perturbation-as-published", {"epsilon": 0.01, "weights": 12}, ["policy.proof_status"]),
        (
            "output-perturbation-as-published",
            {"epsilon": 0.01, "weights": 12, "lipschitz": "data"},
            ["policy.proof_status", "budget.exceeded"],
        ),
        (
            "continual-release-as-published",
            {"pane": 2, "doublings": 2, "step": 0, "epsilon": 0.01},
            ["policy.proof_status", "budget.exceeded"],
        ),
    ],
)
def test_what_the_paper_prints_is_refused_unless_a_policy_accepts_it(
    name: str, parameters: Document, codes: list[str]
) -> None:
    def answer(accepts: Any) -> list[str]:
        body = created(population="p", unit="record", adjacency="replace_one", epsilon=1.0, delta=1e-6, accepts=accepts)
        book = Book.of(spelled(body))
        registered = {"kind": "datapoints.registered", "count": 100, "keyed": False}
        book.append(registered, at=stamp(AT), actor="key_test")
        ranged = mechanism(name).kind == "window_model"
        proposal = Proposal(
            kind=mechanism(name).kind,
            mechanism={"name": name, "parameters": parameters},
            scope=None if ranged else {"ranges": [[0, 50]]},
            hold_seconds=60,
            declared={},
        )
        return [each["code"] for each in propose(proposal)(book, AT, None).bodies[0]["decision"]["reasons"]]

    assert answer(("proved",)) == codes
    # Whoever accepts what was only claimed, or even refuted, still gets nothing that no budget covers.
    assert answer(("proved", "claimed", "refuted")) == codes[1:]


def test_the_published_variants_run_and_have_the_noise_that_is_printed() -> None:
    nobody = Rows(slots=40, unit=np.empty(0, dtype=np.int64), x=np.empty((0, SIZE), np.float32), y=np.empty(0, "U1"))
    row_norm = math.sqrt(2)
    lipschitz = math.sqrt(2) * row_norm
    run, module = run_of("output-perturbation-as-published", {"epsilon": 2.0, "weights": 12})
    drawn = torch.stack([module.run(with_rows(run, nobody)).tensors["weight"] for _ in range(200)])
    reached = 1 - (1 + 4 * 0.5 / row_norm**2) ** -8
    assert float(drawn.abs().mean()) == pytest.approx(2 * lipschitz / (0.5 * 40) * reached / 2.0, rel=0.08)
    wrong, _ = run_of("output-perturbation-as-published", {"epsilon": 2.0, "weights": 11})
    with pytest.raises(InvalidInput, match=r"^parameters\.weights: expected 12: the price depends on it"):
        module.run(with_rows(wrong, nobody))
    data_run, _ = run_of("output-perturbation-as-published", {"epsilon": 2.0, "weights": 12, "lipschitz": "data"})
    made = module.run(with_rows(data_run, data(0, 40)))
    assert made.tensors["weight"].shape == (2, SIZE)

    given = {"pane": 2, "doublings": 1, "epsilon": 2.0}
    base_run, module = run_of("continual-release-as-published", given | {"step": 0}, modulus=1e6)
    made = module.run(base_run)
    update_run, _ = run_of(
        "continual-release-as-published", given | {"step": 1}, previous=Artifact("rel_0", made), modulus=1e6, seed=1
    )
    spread = [
        float(module.run(update_run).tensors["update.0.4.6"].sub(made.tensors["base.0.0.4"]).abs().mean())
        for _ in range(200)
    ]
    assert np.mean(spread) == pytest.approx(4 * lipschitz / (1e6 * 2 * 2.0), rel=0.08)
