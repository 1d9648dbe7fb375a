"""The catalog: prices against calculations that do not use it, windows that cannot leave out a block, and bad input."""

from __future__ import annotations

import doctest
import inspect
import json
import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, get_args

import dp_accounting
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from pyroaring import BitMap

from accountant import InvalidInput, account
from accountant.calibration import noisier
from accountant.events import (
    Adjacency,
    Composed,
    Event,
    Gaussian,
    L2Laplace,
    Laplace,
    Leaf,
    PartitionSelection,
    PoissonSampled,
    PureDP,
    Repeated,
    counted,
)
from accountant.filters import Filter
from accountant.guarantees import ProofStatus
from accountant.ledger import Charge, Committed, Registered, Rules, apply, propose, replay
from accountant.streams.schedules import MAX_K, Block, SlidingWindow, Startup, lives
from accountant.units import exact
from tests.accountant.strategies import ADJACENCIES, adjacencies, between
from trainers import catalog
from trainers.catalog import CATALOG, REQUIRED, Bounds, Mechanism, Parameter, Priced, Quoted, mechanism

Document = dict[str, Any]

TRAINING: Final[Document] = {"noise_multiplier": 1.0, "sampling_probability": 0.01, "steps": 1000, "clip_norm": 1.0}
LABELS: Final[Document] = {"epsilon": 1.0, "delta": 1e-5}
#: Step 2 of a window of seven panes.
WINDOW: Final[Document] = {
    "k": 3,
    "w0": 10,
    "step": 2,
    "chain": [{"level": 1, "start": 70, "stop": 90}, {"level": 0, "start": 20, "stop": 30}],
    "epsilon": 1.0,
}
PUBLISHED: Final[Document] = {
    "steps": 100,
    "train_probability": 0.1,
    "memory_probability": 0.3,
    "noise_multiplier": 1.0,
    "clip_norm": 1.0,
    "memories": ["monday"],
}
#: Evaluation only, and no noise to change.
UNPRICED: Final = {"fine-tuning", "a-gem"}
EXAMPLES: Final = {
    "dp-sgd": TRAINING,
    "label-release": LABELS,
    "sliding-window": WINDOW,
    "cosine-classifier": {"noise_multiplier": 2.0},
    "peft-ensemble": TRAINING,
    "episodic-memory": {
        "steps": 100,
        "train_probability": 0.1,
        "train_noise_multiplier": 1.0,
        "memory_probability": 0.3,
        "memory_noise_multiplier": 2.0,
        "clip_norm": 1.0,
        "memories": ["monday", "tuesday"],
    },
    "dp-agem-as-published": PUBLISHED,
    "dp-cl-as-published": PUBLISHED,
    "l2dp-ml": {"noise_multiplier": 1.0},
    "l2dp-ml-as-published": {"tasks": [{"task": "monday", "epochs": 2}], "epsilon_1": 0.1, "epsilon_2": 0.1},
    "output-perturbation": {"epsilon": 1.0},
    "multi-resolution": {"pane": 10, "step": 3, "epsilon": 1.0},
    "continual-release": {"pane": 10, "doublings": 3, "step": 3, "epsilon": 1.0},
    "output-perturbation-as-published": {"epsilon": 1.0, "weights": 7840},
    "continual-release-as-published": {"pane": 10, "doublings": 3, "step": 3, "epsilon": 1.0},
    "accuracy": {"scale": 10.0},
    "fine-tuning": {"steps": 100, "batch_size": 32},
    "a-gem": {"steps": 100, "batch_size": 32, "memory_batch": 16, "memories": ["monday"]},
}


def quote(name: str, parameters: object, adjacency: Adjacency = "add_remove") -> Quoted:
    return mechanism(name).quote(parameters, adjacency=adjacency)  # type: ignore[arg-type]


def only_event(quoted: Quoted) -> Event:
    """The event of a quote that is one charge on the scope of the proposal."""
    [charge] = quoted.charges
    assert (charge.start, charge.stop, charge.part, quoted.life) == (None, None, None, None)
    return charge.event


def documents(blocks: tuple[Block, ...], offset: int = 0) -> list[Document]:
    return [{"level": b.level, "start": b.start + offset, "stop": b.stop + offset} for b in blocks]


# The table


def test_the_table_is_a_literal_with_one_row_per_name() -> None:
    assert set(CATALOG) == set(EXAMPLES)
    for name, row in CATALOG.items():
        assert row.name == name
        assert row is mechanism(name)
        assert row.proof_status in get_args(ProofStatus)
        assert row.kind in get_args(catalog.Kind)
        assert row.title
        assert row.paper
        assert row.proof_note
        assert re.fullmatch(r"M\d\d|", row.card)
        assert row.adjacencies == ADJACENCIES
        # What the table declares is what the pricing function takes.
        assert [*inspect.signature(row.pricing).parameters] == ["adjacency", *(each.name for each in row.parameters)]
    with pytest.raises(TypeError):
        CATALOG["more"] = CATALOG["dp-sgd"]  # type: ignore[index]


@pytest.mark.parametrize("name", ["", "dpsgd", "DP-SGD", None, 3, ["dp-sgd"]])
def test_an_unknown_name_is_told_the_known_ones(name: Any) -> None:
    with pytest.raises(InvalidInput, match=f"^mechanism: expected one of {', '.join(CATALOG)}, got"):
        mechanism(name)


def test_pricing_needs_no_framework(checkout: Path) -> None:
    program = (
        "import sys; from pathlib import Path; import trainers.catalog as c; "
        f"assert Path(c.__file__).is_relative_to({str(checkout)!r}), c.__file__; "
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=checkout, capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(done.stdout.split())
    assert "accountant" in loaded
    assert not loaded & {"torch", "opacus", "pydantic", "fastapi", "sqlalchemy", "service"}


def test_the_page_and_the_docstrings_do_what_they_show(checkout: Path) -> None:
    text = (checkout / "docs" / "mechanisms.md").read_text(encoding="utf-8")
    page = doctest.DocTestParser().get_doctest(text.replace("```", ""), {}, "mechanisms.md", "mechanisms.md", 0)
    assert len(page.examples) > 10
    report: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(page, out=report.append)
    assert not report, "".join(report)
    assert doctest.testmod(catalog).failed == 0
    for name, row in CATALOG.items():
        section = re.search(rf"^## `{name}`\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
        assert section, name
        assert all(f"`{each.name}`" in section[1] for each in row.parameters), name
        assert f"*{row.proof_status.capitalize()}*" in section[1]


# dp-sgd


@pytest.mark.parametrize(
    ("adjacency", "relation", "card"),
    [
        ("add_remove", dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, 1.828),
        ("replace_one", dp_accounting.NeighboringRelation.REPLACE_ONE, 2.843),
    ],
)
def test_training_costs_what_others_compute(adjacency: Adjacency, relation: Any, card: float) -> None:
    event = only_event(quote("dp-sgd", TRAINING, adjacency))
    other = PLDAccountant(relation)
    other.compose(dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0)), 1000)
    ours = account(event, delta=1e-5, adjacency=adjacency).upper
    assert ours == pytest.approx(other.get_epsilon(1e-5), rel=2e-3)
    assert ours == pytest.approx(card, abs=2e-3)


@given(between(1e-3, 1e3), between(1e-6, 1), st.integers(1, 10**12), between(1e-6, 5e5), adjacencies)
def test_training_is_a_repeated_sampled_gaussian(
    noise: float, probability: float, steps: int, clip_norm: float, adjacency: Adjacency
) -> None:
    given_parameters = {
        "noise_multiplier": noise,
        "sampling_probability": probability,
        "steps": steps,
        "clip_norm": clip_norm,
    }
    event = only_event(quote("dp-sgd", given_parameters, adjacency))
    assert event == Repeated(
        times=steps, event=PoissonSampled(sampling_probability=probability, event=Gaussian(noise_multiplier=noise))
    )
    assert only_event(quote("dp-sgd", given_parameters | {"clip_norm": 2 * clip_norm}, adjacency)) == event


# label-release


def told(k: int, epsilon: float) -> list[float]:
    """π(0) … π(2k + 1) by adding up the noise: told iff n ≥ 1 and n + Z > k, P[Z = x] ∝ e^(−ε|x|) on −k … k."""
    weights = {x: math.exp(-epsilon * abs(x)) for x in range(-k, k + 1)}
    whole = sum(weights.values())
    return [math.fsum(weight for x, weight in weights.items() if n and n + x > k) / whole for n in range(2 * k + 2)]


def divergence(pairs: list[tuple[float, float]], epsilon: float) -> float:
    """The hockey-stick divergence of independent coins, by going through all outcomes."""
    total, outcomes = 0.0, [(1.0, 1.0)]
    for p, q in pairs:
        outcomes = [(a * x, b * y) for a, b in outcomes for x, y in ((p, q), (1 - p, 1 - q))]
    for a, b in outcomes:
        total += max(0.0, a - math.exp(epsilon) * b)
    return total


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-5), (0.5, 1e-3), (2.0, 1e-6)])
def test_a_label_set_costs_what_enumeration_says(epsilon: float, delta: float) -> None:
    parameters = {"epsilon": epsilon, "delta": delta}
    event = only_event(quote("label-release", parameters))
    assert event == only_event(quote("label-release", parameters, "replace_one"))
    k = next(k for k in range(1, 100) if told(k, epsilon)[1] <= delta)
    pi = told(k, epsilon)
    steps = [pair for n in range(2 * k + 1) for pair in ((pi[n], pi[n + 1]), (pi[n + 1], pi[n]))]

    worst = max(divergence([step], epsilon) for step in steps)
    assert worst == pytest.approx(pi[1])
    assert account(event, delta=worst * (1 + 1e-9)).upper == pytest.approx(epsilon, rel=1e-6)

    # A replaced datapoint leaves one label and enters another: twice the ε, and no less.
    both = max(divergence([one, other], 2 * epsilon) for one in steps for other in steps)
    assert both == pytest.approx(2 * worst - worst**2, rel=1e-6)
    replaced = account(event, delta=both * (1 + 1e-9), adjacency="replace_one")
    assert replaced.upper == pytest.approx(2 * epsilon, rel=1e-6)
    less = max(divergence([one, other], 1.99 * epsilon) for one in steps for other in steps)
    assert less > both * (1 + 1e-9)


@pytest.mark.parametrize("labels", [1, 2, 5])
def test_a_replaced_datapoint_costs_a_label_set_twice_as_much(labels: int) -> None:
    """At every order of the gate, and in the pure part: what is not halved by the split is doubled by the engine."""
    event = only_event(quote("label-release", LABELS | {"labels_per_unit": labels}, "replace_one"))
    gate = Filter.of(epsilon=10, delta=1e-3)
    added, replaced = (gate.price(event, adjacency=adjacency) for adjacency in ADJACENCIES)
    assert replaced.delta == pytest.approx(2 * added.delta, rel=1e-9)
    assert replaced.rho == pytest.approx([2 * rho for rho in added.rho], rel=1e-9)


@pytest.mark.parametrize("labels", [2, 3, 10])
def test_several_labels_share_the_parameters(labels: int) -> None:
    event = only_event(quote("label-release", LABELS | {"labels_per_unit": labels}))
    assert isinstance(event, Repeated)
    assert isinstance(event.event, PartitionSelection)
    assert event.times == labels
    assert exact(event.event.epsilon) * labels <= 1
    assert event.event.epsilon == pytest.approx(1 / labels)
    assert 1 - (1 - event.event.delta) ** labels <= 1e-5
    assert 0.999 <= account(event, delta=1e-5).upper <= 1  # whole thresholds leave a little of δ unused


def test_two_labels_cost_what_enumeration_says() -> None:
    """Whoever carries two labels changes two counts in the same direction."""
    event = only_event(quote("label-release", {"epsilon": 1.0, "delta": 1e-4, "labels_per_unit": 2}))
    k = next(k for k in range(1, 100) if told(k, 0.5)[1] <= 1 - math.sqrt(1 - 1e-4))
    pi = told(k, 0.5)
    grown = [(pi[n + 1], pi[n]) for n in range(2 * k + 1)]
    worst = max(
        divergence(pairs, 1.0) for one in grown for two in grown for pairs in ([one, two], [one[::-1], two[::-1]])
    )
    assert worst <= 1e-4
    assert account(event, delta=worst * (1 + 1e-9)).upper == pytest.approx(1, rel=1e-6)


# sliding-window


def pipeline(k: int, startup: Startup) -> Iterator[list[tuple[int, int, int]]]:
    """What a trainer that follows the card trains at each step, in panes: its own state, none of our schedule.

    (level, start, stop), the largest first. A stream that starts with its first pane had null records before it.
    """
    cycle = 2 ** (k - 1)
    start = 0 if startup == "full" else -4 * cycle
    arrived, newest = 0, start + 2**k - 2
    while True:
        base = start + cycle - 1
        levels = {k - 1: (base, base + cycle)}
        new, old = base + cycle, base
        for level in reversed(range(k - 1)):
            if arrived >> level & 1:
                levels[level], new = (new, new + 2**level), new + 2**level
            else:
                levels[level], old = (old - 2**level, old), old - 2**level
        renewed = [level for level in levels if arrived % 2**level == 0] if arrived else list(levels)
        if newest >= 0:
            found = [(level, *levels[level]) for level in sorted(renewed, reverse=True)]
            yield [(level, max(0, first), last) for level, first, last in found if last > 0]
        arrived, newest = arrived + 1, newest + 1
        if arrived == cycle:
            start, arrived = start + cycle, 0


def released(k: int, w0: int, startup: Startup, offset: int, steps: int) -> list[list[Document]]:
    return [
        [{"level": level, "start": offset + w0 * a, "stop": offset + w0 * b} for level, a, b in blocks]
        for blocks, _ in zip(pipeline(k, startup), range(steps), strict=False)
    ]


@given(
    k=st.integers(1, 4),
    w0=st.integers(1, 3),
    startup=st.sampled_from(get_args(Startup)),
    offset=st.integers(0, 50),
    noise=st.sampled_from(({"epsilon": 1.0}, {"epsilon": 0.3}, {"noise": "gaussian", "mu": 0.7})),
    adjacency=adjacencies,
)
def test_no_life_exceeds_what_is_quoted_and_the_worst_attains_it(
    *, k: int, w0: int, startup: Startup, offset: int, noise: Document, adjacency: Adjacency
) -> None:
    """All steps of a stream are quoted, and the events of every ordinal are added up."""
    window, steps = 2**k - 1, 5 * 2**k
    suffered: dict[int, Counter[Leaf]] = {}
    lifelong: set[Event | None] = set()
    for number, blocks in enumerate(released(k, w0, startup, offset, steps)):
        parameters = {"k": k, "w0": w0, "step": number, "chain": blocks, "offset": offset, "startup": startup}
        quoted = quote("sliding-window", parameters | noise, adjacency)
        lifelong.add(quoted.life)
        assert len(quoted.charges) == len(blocks)
        for charge, block in zip(quoted.charges, blocks, strict=True):
            assert (charge.start, charge.stop, charge.part) == (block["start"], block["stop"], None)
            for ordinal in range(block["start"], block["stop"]):
                suffered.setdefault(ordinal, Counter()).update(counted(charge.event))
    [life] = lifelong
    assert life is not None
    whole = Counter(counted(life))
    assert set(whole.values()) == {1}
    assert len(whole) == k
    assert all(events <= whole for events in suffered.values())
    # Everyone who came after the first window (or at any time, if it may be partial) and has left since.
    arrived = steps + (window - 1 if startup == "full" else 0)
    settled = range(offset + (window * w0 if startup == "full" else 0), offset + (arrived - window - 2**k) * w0)
    assert settled
    assert all(suffered[ordinal] == whole for ordinal in settled)

    price = account(life, delta=1e-5, adjacency=adjacency)
    if "epsilon" in noise:
        shift = 1 if adjacency == "add_remove" else 2
        scales = [exact(leaf.scale) for leaf in whole if isinstance(leaf, L2Laplace)]
        assert len(scales) == k
        assert sum(shift / scale for scale in scales) <= exact(noise["epsilon"])
        assert price.upper == pytest.approx(noise["epsilon"], rel=1e-3)
    else:
        once = account(Gaussian(noise_multiplier=1 / noise["mu"]), delta=1e-5)
        assert price.upper == pytest.approx(once.upper, rel=1e-6)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("k", [1, 3, 4, 10])
def test_the_noise_is_that_of_the_card(k: int, adjacency: Adjacency) -> None:
    """4L(1 − 2^−k)/(m w0 ε) at every level under replace-one, half of it under add/remove; σ likewise."""
    w0, moved = 100, 2 if adjacency == "replace_one" else 1
    blocks = released(k, w0, "full", 0, 1)[0]
    assert len(blocks) == k
    contributions = [Fraction(1, w0 << block["level"]) for block in blocks]  # C with L = m = 1
    step = {"k": k, "w0": w0, "step": 0, "chain": blocks}
    pure = quote("sliding-window", step | {"epsilon": 0.8}, adjacency).charges
    for charge, contribution in zip(pure, contributions, strict=True):
        assert isinstance(charge.event, L2Laplace)
        noise = charge.event.scale * contribution
        assert noise == pytest.approx(moved * 2 * (1 - 2.0**-k) / (w0 * 0.8), rel=1e-6)
    gaussian = quote("sliding-window", step | {"noise": "gaussian", "mu": 0.8}, adjacency).charges
    for charge, contribution in zip(gaussian, contributions, strict=True):
        assert isinstance(charge.event, Gaussian)
        deviation = charge.event.noise_multiplier * contribution
        assert deviation == pytest.approx(moved / w0 * math.sqrt(4 / 3 * (1 - 4.0**-k)) / 0.8, rel=1e-6)


@pytest.mark.parametrize("startup", get_args(Startup))
@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_life_is_that_of_the_simulated_schedule(k: int, startup: Startup) -> None:
    schedule = SlidingWindow(k=k, w0=2, startup=startup)
    first = documents(schedule.step(0).trained)
    life = quote(
        "sliding-window", {"k": k, "w0": 2, "step": 0, "chain": first, "startup": startup, "epsilon": 1.0}
    ).life
    assert life is not None
    longest = max(lives(schedule.steps(5 << k)), key=lambda each: sum(each.models.values()))
    assert sum(longest.models.values()) == sum(counted(life).values()) == k


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("startup", get_args(Startup))
def test_the_gate_admits_every_step_of_a_life_and_nothing_more(startup: Startup, adjacency: Adjacency) -> None:
    k, w0, offset, steps = 3, 2, 5, 20
    rules = Rules(lifelong=Filter.of(epsilon=0.7, delta=1e-6, preset="pure"), adjacency=adjacency)
    book = replay([Registered(count=100)])
    for number, blocks in enumerate(released(k, w0, startup, offset, steps)):
        parameters = {"k": k, "w0": w0, "step": number, "chain": blocks, "offset": offset, "startup": startup}
        quoted = quote("sliding-window", parameters | {"epsilon": 0.7}, adjacency)
        charges = [Charge(scope=BitMap(range(c.start or 0, c.stop or 0)), event=c.event) for c in quoted.charges]
        decision = propose(book, rules, release=str(number), charges=charges)
        assert decision.hold is not None, decision.reasons
        apply(book, decision.hold)
        apply(book, Committed(release=str(number)))
    settled = offset + (0 if startup == "partial" else 7 * w0)
    for ordinal, outcome in ((settled, "denied"), (0, "admitted")):
        more = Charge(scope=BitMap([ordinal]), event=PureDP(epsilon=1e-12))
        assert propose(book, rules, release="more", charges=[more]).outcome == outcome


def test_blocks_that_are_left_out_are_those_of_the_schedule() -> None:
    quoted = quote("sliding-window", {key: value for key, value in WINDOW.items() if key != "chain"})
    assert quoted == quote("sliding-window", WINDOW)


def test_reused_blocks_cost_nothing() -> None:
    quoted = quote("sliding-window", WINDOW)
    assert [(charge.start, charge.stop) for charge in quoted.charges] == [(70, 90), (20, 30)]  # not [30, 70)
    one = WINDOW | {"step": 3, "chain": [{"level": 0, "start": 90, "stop": 100}]}
    assert [(charge.start, charge.stop) for charge in quote("sliding-window", one).charges] == [(90, 100)]


_TRAINED = "step 2 trains level 1 on [70, 90); level 0 on [20, 30), in this order"
_LARGE: Final[Document] = WINDOW["chain"][0]
_SMALL: Final[Document] = WINDOW["chain"][1]
_BASE: Final[Document] = {"level": 2, "start": 30, "stop": 70}


@pytest.mark.parametrize(
    ("blocks", "place", "expected"),
    [
        ([_LARGE], 1, f"level 0 on [20, 30): {_TRAINED}, got 'nothing'"),
        ([_SMALL], 0, f"level 1 on [70, 90): {_TRAINED}, got {_SMALL}"),
        ([_SMALL, _LARGE], 0, f"level 1 on [70, 90): {_TRAINED}, got {_SMALL}"),
        ([_LARGE, _SMALL, _SMALL], 2, f"no further block: {_TRAINED}, got {_SMALL}"),
        (
            [_LARGE, _SMALL, _BASE],
            2,
            f"no further block (level 2 on [30, 70) is reused, and costs nothing): {_TRAINED}, got {_BASE}",
        ),
        (
            [_BASE, _LARGE, _SMALL],
            0,
            f"level 1 on [70, 90) (level 2 on [30, 70) is reused, and costs nothing): {_TRAINED}, got {_BASE}",
        ),
        ([_LARGE | {"stop": 89}, _SMALL], 0, f"level 1 on [70, 90): {_TRAINED}, got {_LARGE | {'stop': 89}}"),
        ([_LARGE, _SMALL | {"start": 21}], 1, f"level 0 on [20, 30): {_TRAINED}, got {_SMALL | {'start': 21}}"),
        ([_LARGE, _SMALL | {"level": 1}], 1, f"level 0 on [20, 30): {_TRAINED}, got {_SMALL | {'level': 1}}"),
        ([_LARGE, _SMALL | {"stop": 31}], 1, f"level 0 on [20, 30): {_TRAINED}, got {_SMALL | {'stop': 31}}"),
    ],
    ids=("missing", "base missing", "reordered", "twice", "reused", "whole chain", "short", "cut", "level", "long"),
)
def test_blocks_that_differ_from_the_schedule_are_refused(blocks: list[Document], place: int, expected: str) -> None:
    with pytest.raises(InvalidInput) as error:
        quote("sliding-window", WINDOW | {"chain": blocks})
    assert error.value.argument == f"parameters.chain[{place}]"
    assert str(error.value) == f"parameters.chain[{place}]: expected {expected}"


def test_blocks_of_another_step_offset_or_startup_are_refused() -> None:
    shifted = [block | {"start": block["start"] + 5, "stop": block["stop"] + 5} for block in WINDOW["chain"]]
    assert quote("sliding-window", WINDOW | {"chain": shifted, "offset": 5}).charges[0].start == 75
    for change in ({"step": 3}, {"offset": 5}, {"startup": "partial"}, {"w0": 5}, {"k": 4}, {"chain": shifted}):
        with pytest.raises(InvalidInput, match=r"^parameters\.chain\[0\]: expected level . on"):
            quote("sliding-window", WINDOW | change)


@given(st.data(), st.integers(1, 6), st.integers(1, 5), st.sampled_from(get_args(Startup)), st.integers(0, 200))
def test_only_the_blocks_of_the_step_are_accepted(
    data: st.DataObject, k: int, w0: int, startup: Startup, number: int
) -> None:
    """One change anywhere, or any block left out, and the list is refused at the first block that differs."""
    right = documents(SlidingWindow(k=k, w0=w0, startup=startup).step(number).trained, offset=3)
    parameters = {"k": k, "w0": w0, "step": number, "offset": 3, "startup": startup, "epsilon": 1.0}
    assert len(quote("sliding-window", parameters | {"chain": right}).charges) == len(right)
    place = data.draw(st.integers(0, len(right) - 1))
    wrong = data.draw(
        st.sampled_from(("level", "start", "stop")).flatmap(
            lambda key: st.integers(-5, 5).filter(bool).map(lambda by: right[place] | {key: right[place][key] + by})
        )
    )
    for blocks in ([*right[:place], wrong, *right[place + 1 :]], right[:place] + right[place + 1 :]):
        if not blocks:  # as if it had been left out
            assert quote("sliding-window", parameters | {"chain": []}) == quote("sliding-window", parameters)
            continue
        with pytest.raises(InvalidInput, match=r"^parameters\.chain"):
            quote("sliding-window", parameters | {"chain": blocks})


def test_the_largest_window_and_the_smallest_budget() -> None:
    """What the bounds allow can be shared among all levels."""
    schedule = SlidingWindow(k=MAX_K, w0=1)
    step = {"k": MAX_K, "w0": 1, "step": 0, "chain": documents(schedule.step(0).trained)}
    for noise in ({"epsilon": 1e-4}, {"epsilon": 1e9}, {"noise": "gaussian", "mu": 1e-4}):
        for adjacency in ADJACENCIES:
            assert len(quote("sliding-window", step | noise, adjacency).charges) == MAX_K


# Bad input


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "dp-sgd",
            {"noise_multiplier": 0},
            "parameters.noise_multiplier: expected a finite number in [1e-06, ∞), got 0",
        ),
        ("dp-sgd", {"noise_multiplier": -1.0}, "parameters.noise_multiplier: expected a finite number in [1e-06, ∞)"),
        (
            "dp-sgd",
            {"noise_multiplier": math.nan},
            "parameters.noise_multiplier: expected a finite number in [1e-06, ∞)",
        ),
        (
            "dp-sgd",
            {"noise_multiplier": math.inf},
            "parameters.noise_multiplier: expected a finite number in [1e-06, ∞)",
        ),
        (
            "dp-sgd",
            {"noise_multiplier": 10**400},
            "parameters.noise_multiplier: expected a finite number in [1e-06, ∞)",
        ),
        ("dp-sgd", {"noise_multiplier": "1"}, "parameters.noise_multiplier: expected a finite number in [1e-06, ∞)"),
        ("dp-sgd", {"noise_multiplier": None}, "parameters.noise_multiplier: expected a finite number in [1e-06, ∞)"),
        ("dp-sgd", {"noise_multiplier": True}, "parameters.noise_multiplier: expected a finite number in [1e-06, ∞)"),
        ("dp-sgd", {"sampling_probability": 0}, "parameters.sampling_probability: expected a finite number in (0, 1]"),
        (
            "dp-sgd",
            {"sampling_probability": 1.01},
            "parameters.sampling_probability: expected a finite number in (0, 1",
        ),
        ("dp-sgd", {"steps": 0}, "parameters.steps: expected a whole number from 1 to 1000000000000, got 0"),
        ("dp-sgd", {"steps": 10**12 + 1}, "parameters.steps: expected a whole number from 1 to 1000000000000"),
        ("dp-sgd", {"steps": 1.5}, "parameters.steps: expected a whole number from 1 to 1000000000000, got 1.5"),
        ("dp-sgd", {"steps": math.nan}, "parameters.steps: expected a whole number"),
        ("dp-sgd", {"steps": math.inf}, "parameters.steps: expected a whole number"),
        ("dp-sgd", {"steps": True}, "parameters.steps: expected a whole number from 1 to 1000000000000, got True"),
        ("dp-sgd", {"steps": "1000"}, "parameters.steps: expected a whole number"),
        ("dp-sgd", {"clip_norm": 0}, "parameters.clip_norm: expected a finite number in [1e-06, 1e+06], got 0"),
        (
            "dp-sgd",
            {"delta": 1e-5},
            "parameters.delta: expected nothing: there are noise_multiplier, sampling_probability, steps, clip_norm",
        ),
        ("dp-sgd", {7: 1}, "parameters.a name that is no text: expected nothing: there are noise_multiplier"),
        ("label-release", {"epsilon": 0}, "parameters.epsilon: expected a finite number in [1e-09, 1e+09], got 0"),
        ("label-release", {"delta": 0}, "parameters.delta: expected a finite number in [1e-300, 1), got 0"),
        ("label-release", {"delta": 1}, "parameters.delta: expected a finite number in [1e-300, 1), got 1"),
        (
            "label-release",
            {"labels_per_unit": 0},
            "parameters.labels_per_unit: expected a whole number from 1 to 10000",
        ),
        ("sliding-window", {"k": 0}, "parameters.k: expected a whole number from 1 to 24, got 0"),
        ("sliding-window", {"k": 25}, "parameters.k: expected a whole number from 1 to 24, got 25"),
        ("sliding-window", {"w0": 0}, "parameters.w0: expected a whole number from 1 to 4294967296, got 0"),
        ("sliding-window", {"step": -1}, "parameters.step: expected a whole number from 0 to 10000000, got -1"),
        ("sliding-window", {"offset": -1}, "parameters.offset: expected a whole number from 0 to 4294967295, got -1"),
        ("sliding-window", {"startup": "none"}, "parameters.startup: expected 'full' or 'partial', got 'none'"),
        ("sliding-window", {"startup": ["full"]}, "parameters.startup: expected 'full' or 'partial', got ['full']"),
        ("sliding-window", {"noise": "laplace"}, "parameters.noise: expected 'pure' or 'gaussian', got 'laplace'"),
        ("sliding-window", {"epsilon": 0}, "parameters.epsilon: expected a finite number in [0.0001, 1e+09], got 0"),
        ("sliding-window", {"mu": 1}, "parameters.mu: expected nothing: it is read only if noise is 'gaussian', got 1"),
        (
            "sliding-window",
            {"noise": "gaussian"},
            "parameters.epsilon: expected nothing: it is read only if noise is 'pure', got 1.0",
        ),
        ("sliding-window", {"chain": "[]"}, "parameters.chain: expected a list of 0 to 24 objects, got '[]'"),
        ("sliding-window", {"chain": [_LARGE] * 25}, "parameters.chain: expected a list of 0 to 24 objects, got [{"),
        ("sliding-window", {"chain": [7]}, "parameters.chain[0]: expected an object with level, start, stop, got 7"),
        (
            "sliding-window",
            {"chain": [_LARGE, {"level": 0, "start": 20}]},
            "parameters.chain[1].stop: expected a value: ordinal after that of its last datapoint, got 'nothing'",
        ),
        (
            "sliding-window",
            {"chain": [_LARGE | {"kind": "base"}]},
            "parameters.chain[0].kind: expected nothing: there are level, start, stop and no others, got 'base'",
        ),
        (
            "sliding-window",
            {"chain": [_LARGE | {"level": True}]},
            "parameters.chain[0].level: expected a whole number from 0 to 23, got True",
        ),
        (
            "sliding-window",
            {"chain": [_LARGE | {"stop": 2**32 + 1}]},
            "parameters.chain[0].stop: expected a whole number from 1 to 4294967296, got 4294967297",
        ),
    ],
)
def test_bad_parameters_are_refused_by_name(name: str, change: Document, message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        quote(name, EXAMPLES[name] | change)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "noise", "others"),
    [
        *((name, "noise_multiplier", EXAMPLES[name]) for name in ("dp-sgd", "peft-ensemble", "cosine-classifier")),
        ("output-perturbation", "noise_multiplier", {"noise": "gaussian"}),
        ("accuracy", "noise_multiplier", {"noise": "gaussian"}),
        ("accuracy", "scale", {}),
    ],
)
def test_noise_is_no_less_than_floats_can_round_to(name: str, noise: str, others: Document) -> None:
    """A sum is rounded to a share of its noise, and of nothing there is none."""
    quote(name, {**others, noise: 1e-6})
    for little in (0, 5e-324, 0.99e-6):
        with pytest.raises(InvalidInput, match=rf"^parameters\.{noise}: expected a finite number in \[1e-06, ∞\)"):
            quote(name, {**others, noise: little})


@pytest.mark.parametrize("name", CATALOG)
def test_missing_parameters_are_named(name: str) -> None:
    for parameter in CATALOG[name].parameters:
        rest = {key: value for key, value in EXAMPLES[name].items() if key != parameter.name}
        unread = parameter.when is not None and parameter.name not in EXAMPLES[name]
        if parameter.default is not REQUIRED or unread:
            if parameter.name not in EXAMPLES[name]:
                assert quote(name, rest) == quote(name, EXAMPLES[name])
            continue
        with pytest.raises(InvalidInput) as error:
            quote(name, rest)
        message = f"parameters.{parameter.name}: expected a value: {parameter.description}, got 'nothing'"
        assert str(error.value) == message
    with pytest.raises(InvalidInput, match=r"^parameters\.mu: expected a value: a whole life is mu-GDP"):
        quote(
            "sliding-window", {key: value for key, value in WINDOW.items() if key != "epsilon"} | {"noise": "gaussian"}
        )


@pytest.mark.parametrize("parameters", [None, 3, "{}", [("epsilon", 1.0)], float("nan")])
def test_parameters_are_an_object(parameters: object) -> None:
    with pytest.raises(
        InvalidInput, match=r"^parameters: expected an object with epsilon, delta, labels_per_unit, rule, got"
    ):
        quote("label-release", parameters)


# Parameters that do something else instead


@pytest.mark.parametrize(
    "name", sorted(name for name in EXAMPLES if mechanism(name).proof_status == "proved" and name not in UNPRICED)
)
@given(adjacency=adjacencies, factor=between(1.0, 1e3), labels=st.integers(1, 50))
def test_noisier_events_lead_back_to_parameters(name: str, adjacency: Adjacency, factor: float, labels: int) -> None:
    given_ = {**EXAMPLES[name], **({"labels_per_unit": labels} if name == "label-release" else {})}
    wanted = [noisier(charge.event, factor) for charge in quote(name, given_, adjacency).charges]
    found = mechanism(name).instead(given_, wanted, adjacency=adjacency)
    assert found is not None
    assert set(found) == set(given_)
    for charge, event in zip(quote(name, found, adjacency).charges, wanted, strict=True):
        (ours, times), (asked, as_often) = next(iter(counted(charge.event).items())), next(iter(counted(event).items()))
        assert times == as_often
        match ours, asked:
            case (L2Laplace(scale=given), L2Laplace(scale=wished)) | (Laplace(scale=given), Laplace(scale=wished)):
                assert given == pytest.approx(wished, rel=1e-6)
            case PartitionSelection(), PartitionSelection():
                assert asked.epsilon * (1 - 1e-15) <= ours.epsilon <= asked.epsilon
                assert ours.delta == asked.delta
            case _:
                assert ours == asked


def test_events_that_a_mechanism_never_does_lead_to_no_parameters() -> None:
    for name, given_ in EXAMPLES.items():
        for events in ([], [PureDP(epsilon=1)], [PureDP(epsilon=1)] * 2):
            assert mechanism(name).instead(given_, events, adjacency="add_remove") is None


def test_an_adjacency_that_nothing_proves_is_refused() -> None:
    narrow = replace(mechanism("dp-sgd"), adjacencies=("replace_one",))
    with pytest.raises(InvalidInput, match=r"^adjacency: expected 'replace_one': nothing else is proved of dp-sgd"):
        narrow.quote(TRAINING, adjacency="add_remove")
    with pytest.raises(InvalidInput, match=r"^adjacency: expected 'add_remove' or 'replace_one', got 'swap'"):
        quote("dp-sgd", TRAINING, "swap")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: Parameter(name="n", kind="integer", description="without an end", bounds=Bounds(minimum=0)),
        lambda: Parameter(name="n", kind="string", description="without choices"),
        lambda: Parameter(name="n", kind="array", description="of what?", bounds=Bounds(minimum=0, maximum=1)),
        lambda: Priced(event=PureDP(epsilon=1), start=3),
        lambda: Priced(event=PureDP(epsilon=1), start=3, stop=4, part="memory"),
    ],
)
def test_mistakes_of_our_own_fail_at_once(mistake: Callable[[], object]) -> None:
    with pytest.raises(AssertionError):
        mistake()


def test_a_whole_number_may_be_written_as_json_likes() -> None:
    assert quote("dp-sgd", TRAINING | {"steps": 1000.0}) == quote("dp-sgd", TRAINING)
    again = json.loads(json.dumps(WINDOW).replace("70", "70.0"))
    assert quote("sliding-window", again) == quote("sliding-window", WINDOW)


# The schema


def valid(schema: Any, value: Any) -> bool:
    """Whether a value meets a JSON Schema; an unknown keyword is an error, so that none goes unchecked."""
    if isinstance(schema, bool):
        return schema
    return all(_meets(keyword, rule, schema, value) for keyword, rule in schema.items())


def _meets(keyword: str, rule: Any, schema: Mapping[str, Any], value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match keyword:
        case "$schema" | "title" | "description" | "default" | "then" | "else":
            return True
        case "type":
            return {
                "object": isinstance(value, dict),
                "array": isinstance(value, list),
                "string": isinstance(value, str),
                "number": number and math.isfinite(value),
                "integer": number and math.isfinite(value) and value == int(value),
            }[rule]
        case "enum":
            return value in rule
        case "const":
            return bool(value == rule)
        case "minimum":
            return not number or value >= rule
        case "exclusiveMinimum":
            return not number or value > rule
        case "maximum":
            return not number or value <= rule
        case "exclusiveMaximum":
            return not number or value < rule
        case "minLength":
            return not isinstance(value, str) or len(value) >= rule
        case "maxLength":
            return not isinstance(value, str) or len(value) <= rule
        case "minItems":
            return not isinstance(value, list) or len(value) >= rule
        case "maxItems":
            return not isinstance(value, list) or len(value) <= rule
        case "items":
            return not isinstance(value, list) or all(valid(rule, item) for item in value)
        case "properties":
            return not isinstance(value, dict) or all(valid(rule[key], value[key]) for key in rule if key in value)
        case "required":
            return not isinstance(value, dict) or set(rule) <= set(value)
        case "additionalProperties":
            assert rule is False
            return not isinstance(value, dict) or set(value) <= set(schema["properties"])
        case "allOf":
            return all(valid(each, value) for each in rule)
        case "if":
            return valid(schema["then"] if valid(rule, value) else schema["else"], value)
    raise AssertionError(keyword)


def accepted(row: Mechanism, parameters: Any) -> bool:
    """Whether it is quoted; blocks that differ from the schedule, or come twice, are no fault of the form."""
    try:
        row.quote(parameters, adjacency="add_remove")
    except InvalidInput as error:
        form = ((r"parameters\.chain\[\d+\]", " trains "), (r"parameters\.memories\[\d+\]", " each task once"))
        return any(re.fullmatch(where, error.argument) and what in str(error) for where, what in form)
    return True


def values(schema: Mapping[str, Any]) -> SearchStrategy[Any]:
    """Values that meet the schema of one parameter, its bounds among them."""
    match schema["type"]:
        case "string" if "enum" in schema:
            return st.sampled_from(schema["enum"])
        case "string":
            return st.text(
                min_size=schema["minLength"], max_size=max(schema["minLength"], min(schema["maxLength"], 20))
            )
        case "integer":
            return st.integers(schema["minimum"], schema["maximum"])
        case "number":
            open_below, open_above = "exclusiveMinimum" in schema, "exclusiveMaximum" in schema
            return st.floats(
                schema.get("minimum", schema.get("exclusiveMinimum")),
                schema.get("maximum", schema.get("exclusiveMaximum")),
                exclude_min=open_below,
                exclude_max=open_above,
                allow_nan=False,
                allow_infinity=False,
            )
        case "array":
            each = objects(schema["items"]) if schema["items"]["type"] == "object" else values(schema["items"])
            return st.lists(each, min_size=schema["minItems"], max_size=min(schema["maxItems"], 20))
    raise AssertionError(schema)


def objects(schema: Mapping[str, Any]) -> SearchStrategy[Document]:
    required = {name: values(schema["properties"][name]) for name in schema["required"]}
    optional = {name: values(each) for name, each in schema["properties"].items() if name not in required}
    return st.fixed_dictionaries(required, optional=optional)


junk: Final[SearchStrategy[Any]] = st.sampled_from(
    (None, True, False, 0, 1, -1, 2.0, 0.5, 5e-324, math.nan, math.inf, "", "pure", [], {}, [{}], 10**30)
)


@pytest.mark.parametrize("name", CATALOG)
@given(data=st.data())
def test_the_schema_says_what_is_accepted(name: str, data: st.DataObject) -> None:
    """Valid by the schema if and only if quoted, for documents that are valid, nearly valid, or far from it."""
    row = CATALOG[name]
    schema = row.schema()
    document = data.draw(objects(schema))
    if data.draw(st.booleans()):
        changed = data.draw(st.sampled_from((*schema["properties"], "other")))
        document[changed] = data.draw(junk)
    if data.draw(st.booleans()) and document:
        del document[data.draw(st.sampled_from(sorted(document)))]
    assert accepted(row, document) == valid(schema, document)


@pytest.mark.parametrize("name", ["dp-sgd", "label-release"])
@given(data=st.data(), adjacency=adjacencies)
def test_everything_within_the_bounds_is_quoted(name: str, data: st.DataObject, adjacency: Adjacency) -> None:
    schema = CATALOG[name].schema()
    document = data.draw(objects(schema))
    assert valid(schema, document)
    assert len(quote(name, document, adjacency).charges) == 1 + len(document.get("tasks", []))


@given(
    k=st.integers(1, MAX_K),
    w0=st.integers(1, 8),
    number=st.integers(0, 10**7),
    offset=st.integers(0, 10**6),
    startup=st.sampled_from(get_args(Startup)),
    noise=between(1e-4, 1e9).flatmap(
        lambda life: st.sampled_from(({"epsilon": life}, {"noise": "gaussian", "mu": life}))
    ),
    adjacency=adjacencies,
)
def test_every_step_within_the_bounds_is_quoted(
    *, k: int, w0: int, number: int, offset: int, startup: Startup, noise: Document, adjacency: Adjacency
) -> None:
    blocks = documents(SlidingWindow(k=k, w0=w0, startup=startup).step(number).trained, offset)
    parameters = {"k": k, "w0": w0, "step": number, "chain": blocks, "offset": offset, "startup": startup} | noise
    assert valid(CATALOG["sliding-window"].schema(), parameters)
    quoted = quote("sliding-window", parameters, adjacency)
    assert len(quoted.charges) == len(blocks)
    assert isinstance(quoted.life, Composed)


@pytest.mark.parametrize("name", CATALOG)
def test_the_schema_is_json_and_a_fresh_copy(name: str) -> None:
    row = CATALOG[name]
    schema = row.schema()
    assert json.loads(json.dumps(schema)) == schema
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["additionalProperties"] is False
    assert valid(schema, EXAMPLES[name])
    schema["properties"].clear()
    assert row.schema()["properties"]
