"""Audits of every mechanism, with fixed noise: what is proved stays consistent, what is refuted is refuted."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch

from accountant import calibrate_noise_multiplier
from accountant.audit import empirical, one_run
from accountant.audit.verdicts import verdict
from accountant.streams.readings import CONTINUAL_RELEASE, worst_off
from accountant.streams.schedules import ContinualRelease
from benchmarks import soundness
from trainers import window_models
from trainers.attacks import canaries, coordinates, label_sets, lifetimes, likelihood, overheard, solved_noise
from trainers.attacks.planned import (
    CONTINUAL,
    DELTA,
    L2DP_CLAIM,
    L2DP_ONE_RUN_CLAIM,
    L2DP_SINGLE_CLAIM,
    LOUD,
    MOMENTS,
    PLANS,
    REMEMBERED,
    SCALES,
    WINDOW,
    offered,
    price,
    shifted,
)
from trainers.attacks.registry import AUDITS, CONFIDENCE, Audit, conduct
from trainers.attacks.runs import Scores, made, rows_of
from trainers.catalog import CATALOG
from trainers.noise import Noise

EVERY: Final = [(name, audit) for name, audits in AUDITS.items() for audit in audits]


# The registry


def test_every_mechanism_has_an_audit() -> None:
    assert set(AUDITS) == set(CATALOG)
    assert all(AUDITS.values())


@pytest.mark.parametrize("name", CATALOG)
def test_the_status_of_every_proof_is_backed(name: str) -> None:
    """Proved: our price stands. Refuted: the claim falls. Claimed: our price stands and the paper's claim falls."""
    ours = {audit.expected for audit in AUDITS[name] if audit.promiser == "catalog" and audit.fewest is not None}
    theirs = {audit.expected for audit in AUDITS[name] if audit.promiser != "catalog"}
    match CATALOG[name].proof_status:
        case "proved":
            assert ours == {"consistent"}
        case "refuted":
            assert ours == set()
            assert theirs == {"violation"}
            price_of = [audit.epsilon() for audit in AUDITS[name]]
            assert all(math.isfinite(each) for each in price_of), "a claim that is refuted is a number"
        case "claimed":
            assert ours == {"consistent"}
            assert theirs == {"violation"}


def test_a_promise_is_known_without_torch() -> None:
    """The claims that need the first weights are written down, a little too high rather than too low."""
    for written, computed in (
        (L2DP_CLAIM, solved_noise.claim()),
        (L2DP_SINGLE_CLAIM, solved_noise.claim(single=True)),
        (L2DP_ONE_RUN_CLAIM, solved_noise.claim_of(2_000)),
    ):
        assert computed <= written < computed + 1e-3
    assert max(map(solved_noise.claim_of, range(100, 2_001, 100))) <= L2DP_ONE_RUN_CLAIM
    without = "import sys, trainers.attacks.planned; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", without], check=False).returncode == 0


@pytest.mark.parametrize("name", CATALOG)
def test_what_is_offered_is_held_against_what_a_population_is_told(name: str) -> None:
    """So a mechanism that is proved is never blocked for what a paper says, nor for what somebody else might do."""
    expected = {"violation"} if CATALOG[name].proof_status == "refuted" else {"consistent"}
    found = offered(name)
    assert {plan.expected for plan in found} <= expected
    assert bool(found) == (name not in {"fine-tuning", "a-gem"}), "nobody promises anything of those"
    assert set(found) <= set(PLANS[name])


def test_every_audit_has_a_name_of_its_own() -> None:
    for audits in AUDITS.values():
        assert len({audit.name for audit in audits}) == len(audits)
    assert {audit.level for _, audit in EVERY} == {"mechanism", "training", "sequence"}
    assert all(audit.tested <= audit.samples for _, audit in EVERY)


#: Audits whose row of docs/soundness.md takes too long for a test: runs of each sample, or half a million and more.
LENGTHY: Final = {
    ("multi-resolution", "a life at every scale"),
    ("multi-resolution", "a life at every scale, Gaussian noise"),
    ("continual-release", "a life of bases and updates"),
    ("continual-release", "a life of bases and updates, Gaussian noise"),
    ("sliding-window", "a life of windows"),
    ("sliding-window", "a life of windows, Gaussian noise"),
    ("output-perturbation", "weights around a wrong centre"),
    ("accuracy", "count of right answers"),
    ("output-perturbation-as-published", "Laplace noise on each coordinate, at our price"),
    ("output-perturbation-as-published", "Laplace noise on each coordinate, at the paper's price"),
    ("output-perturbation-as-published", "a Lipschitz constant from the data, at the paper's price"),
    ("dp-agem-as-published", "a batch turned round, at our price"),
    ("l2dp-ml-as-published", "the noise is solved for"),
    ("l2dp-ml-as-published", "a single release is enough"),
    ("episodic-memory", "projection of one step, canary in the memory"),
    ("label-release", "label space of a stream, released"),
}


@pytest.mark.parametrize(
    ("name", "audit"),
    [
        pytest.param(
            name, audit, id=f"{name}: {audit.name}",
            marks=pytest.mark.full if (name, audit.name) in LENGTHY else pytest.mark.slow,
        )
        for name, audit in EVERY
    ],
)  # fmt: skip
def test_audits_come_to_what_they_should(name: str, audit: Audit) -> None:
    """Smaller versions of docs/soundness.md, at 95 %; the noise is that of every run of the suite."""
    outcome = conduct(audit, samples=audit.tested, noise=Noise.repeatable(1))
    assert outcome.verdict == audit.expected, f"{name}: {outcome.bound} against {outcome.epsilon}"
    assert outcome.bound.delta == audit.delta
    assert outcome.bound.confidence == CONFIDENCE
    if audit.expected == "consistent":
        assert outcome.bound.epsilon_lower < outcome.epsilon < outcome.bound.attainable
    if audit.promiser == "catalog" and outcome.fitted is not None:
        assert outcome.fitted.epsilon_lower <= outcome.epsilon
        assert outcome.fitted.epsilon_lower > 0.6 * outcome.epsilon, "the attack sees nearly all that there is"


@pytest.mark.parametrize(
    ("name", "audit"),
    [(name, audit) for name, audit in EVERY if audit.law is not None],
    ids=[f"{name}: {audit.name}" for name, audit in EVERY if audit.law is not None],
)
def test_the_law_that_a_promise_names_is_that_of_the_scores(name: str, audit: Audit) -> None:
    """Means and deviations of real runs: streams, whose neighbours come short of the proof, by a tenth at most."""
    assert audit.law is not None
    scores = audit.gather(1_000, Noise.repeatable(8))
    assert isinstance(scores, Scores)
    short = 0.1 if audit.law.deviation < 1 else 0.0
    for found, mean in ((scores.included, audit.law.included), (scores.excluded, audit.law.excluded)):
        assert found.std() == pytest.approx(audit.law.deviation, rel=0.1 + short), name
        assert found.mean() == pytest.approx(mean, abs=0.15 * audit.law.deviation), name


@pytest.mark.full
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_an_audit_of_a_mechanism_of_known_epsilon_nearly_finds_it(epsilon: float) -> None:
    """10⁶ samples by the mechanism's own code and noise, through `conduct`, at 95 %.

    At least 65 % of the truth by counting and 85 % by the assumed shape; half the noise is caught.
    """
    noise_multiplier = calibrate_noise_multiplier(epsilon=epsilon, delta=DELTA, sampling_probability=1.0, steps=1)
    [known] = [each for each in AUDITS["cosine-classifier"] if each.name == "sum of one label"]

    promised = shifted({"noise_multiplier": noise_multiplier})

    def audit(really: float) -> Audit:
        sums = coordinates.by_sums("cosine-classifier", {"noise_multiplier": really}, {"feature_size": 1})
        gather = partial(coordinates.gathered, sums, at_a_time=50_000)
        return replace(known, epsilon=lambda: epsilon, law=promised, gather=gather)

    for seed in range(3):
        outcome = conduct(audit(noise_multiplier), samples=10**6, noise=Noise.repeatable(seed))
        assert outcome.verdict == "consistent"
        assert 0.65 * epsilon <= outcome.bound.epsilon_lower <= epsilon
        assert outcome.fitted is not None
        assert 0.85 * epsilon <= outcome.fitted.epsilon_lower
    behind = conduct(audit(noise_multiplier / 2), samples=10**6, noise=Noise.repeatable(0))
    assert behind.verdict == "violation"
    assert behind.bound.epsilon_lower > 1.2 * epsilon


# Noise that is less than what was said; `test_attack_twins.py` has every mechanism's


def test_a_single_training_with_far_too_little_noise_is_caught() -> None:
    """An eighth of the noise that was said, from one run on a thousand canaries; with all of it, nothing is found."""
    said = {"noise_multiplier": 2.0, "sampling_probability": 1.0, "steps": 1, "clip_norm": 1.0}
    for noise_multiplier, expected in ((0.25, "violation"), (2.0, "consistent")):
        experiment = coordinates.by_weights({**said, "noise_multiplier": noise_multiplier})
        guesses = coordinates.guessed(experiment, 1_000, Noise.repeatable(1))
        bound = one_run.from_scores(guesses.scores, guesses.included, delta=DELTA, confidence=CONFIDENCE)
        epsilon = price("dp-sgd", said)
        assert verdict(bound, epsilon=epsilon, delta=DELTA, confidence=CONFIDENCE, powerful=True) == expected


def figures(checkout: Path) -> list[str]:
    text = (checkout / "docs" / "soundness.md").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line.count("|") == 11 and line.startswith("| `")]


@pytest.mark.slow
def test_lengthy_audits_are_audits() -> None:
    assert {(name, audit.name) for name, audit in EVERY} > LENGTHY


MANY: Final = 20_000  # samples: such a row is compared where time is no matter
CHEAP: Final = [
    pytest.param(
        name, audit, id=f"{name}: {audit.name}", marks=pytest.mark.full if audit.samples > MANY else pytest.mark.slow
    )
    for name, audit in EVERY
    if (name, audit.name) not in LENGTHY
]


@pytest.mark.parametrize(("name", "audit"), CHEAP)
def test_the_page_of_figures_has_the_rows_of_the_benchmark(name: str, audit: Audit, checkout: Path) -> None:
    """To the last digit: the noise of the benchmark repeats."""
    outcome = conduct(audit, samples=audit.samples, noise=Noise.repeatable(soundness.SEED))
    assert soundness.row(name, outcome) in figures(checkout)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_the_page_of_figures_says_how_close_bounds_come(epsilon: float, checkout: Path) -> None:
    assert soundness.known_gaussian(epsilon) in (checkout / "docs" / "soundness.md").read_text(encoding="utf-8")


def test_the_page_of_figures_has_a_row_for_every_audit(checkout: Path) -> None:
    """In the order of the registry, each with the verdict that is expected, and bounds on the right side of it."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in figures(checkout)]
    assert [(row[0].strip("`"), row[1], row[2], row[8], row[9]) for row in rows] == [
        (name, audit.name, audit.level, audit.expected, soundness.sees(audit)) for name, audit in EVERY
    ]
    for row, (_, audit) in zip(rows, EVERY, strict=True):
        upper, lower = float(row[5]), float(row[6])
        assert upper == pytest.approx(audit.epsilon(), abs=0.011)
        assert (lower > upper) == (audit.expected == "violation"), row
        assert audit.samples * 3 // 4 <= int(row[3].replace(",", "")) <= audit.samples


# What attacks rest on


def test_canaries_with_their_own_coordinate_do_not_see_each_other() -> None:
    """The weight along an axis is a sum of clipped steps of its own canary and of its own noise, but for rounding."""
    parameters = {"noise_multiplier": 2.0, "sampling_probability": 1.0, "steps": 3, "clip_norm": 1.0}
    size = 100
    experiment = coordinates.by_weights(parameters)
    everybody = experiment(np.ones(size, dtype=np.bool_), Noise.repeatable(5))
    nobody = experiment(np.zeros(size, dtype=np.bool_), Noise.repeatable(5))
    one = experiment(np.arange(size) == 17, Noise.repeatable(5))
    others = np.arange(size) != 17
    # In units of a clipped step: each weight moved by three of its own, whoever else was there.
    assert everybody - nobody == pytest.approx(np.full(size, 3.0), abs=1e-2)
    assert (one - nobody)[17] == pytest.approx(3.0, abs=1e-2)
    assert np.abs((one - nobody)[others]).max() < 1e-2
    assert np.std(nobody) == pytest.approx(2.0 * math.sqrt(3), rel=0.3)


def test_scores_are_those_of_the_likelihood_ratio() -> None:
    """N(1, σ²) and N(0, σ²) by real runs of prototypes: means and deviation."""
    scores = coordinates.gathered(
        coordinates.by_sums("cosine-classifier", {"noise_multiplier": 1.5}, {"feature_size": 1}),
        20_000,
        Noise.repeatable(0),
        at_a_time=10_000,
    )
    assert scores.included.mean() == pytest.approx(1, abs=0.05)
    assert scores.excluded.mean() == pytest.approx(0, abs=0.05)
    assert scores.excluded.std() == pytest.approx(1.5, rel=0.03)


def test_more_canaries_of_a_real_training_give_a_tighter_bound() -> None:
    """The median of nine trainings; none is above what is promised."""
    parameters = {"noise_multiplier": 1.0, "sampling_probability": 1.0, "steps": 1, "clip_norm": 1.0}
    promised = price("dp-sgd", parameters)
    medians = []
    for count in (60, 250, 1_000):
        bounds = []
        for seed in range(9):
            guesses = coordinates.guessed(coordinates.by_weights(parameters), count, Noise.repeatable(seed))
            found = one_run.from_scores(guesses.scores, guesses.included, delta=DELTA, confidence=CONFIDENCE)
            bounds.append(found.epsilon_lower)
        assert max(bounds) < promised
        medians.append(float(np.median(bounds)))
    assert medians == sorted(medians)
    assert medians[0] < medians[-1]
    assert medians[-1] > 1


@pytest.mark.parametrize(
    ("white", "black"),
    [
        *(
            (coordinates.by_weights(LOUD, name), coordinates.by_loss(LOUD, name))
            for name in ("dp-sgd", "peft-ensemble")
        ),
        (
            coordinates.by_sums("l2dp-ml", MOMENTS, {"inputs": 1}),
            coordinates.by_answers("l2dp-ml", MOMENTS, {"inputs": 1}),
        ),
    ],
    ids=["dp-sgd", "peft-ensemble", "l2dp-ml"],
)
def test_white_box_and_black_box_see_the_same_of_a_linear_model(
    white: coordinates.Experiment, black: coordinates.Experiment
) -> None:
    one, other = (coordinates.guessed(each, 400, Noise.repeatable(2)) for each in (white, black))
    assert np.corrcoef(one.scores, other.scores)[0, 1] > 0.99
    assert (one.included == other.included).all()


@pytest.mark.parametrize("in_memory", [False, True])
def test_black_boxes_see_a_task_and_its_memories_as_well(*, in_memory: bool) -> None:
    white, black = (
        canaries.episodic(REMEMBERED, 400, Noise.repeatable(2), in_memory=in_memory, black_box=each)
        for each in (False, True)
    )
    assert np.corrcoef(white.scores, black.scores)[0, 1] > 0.99
    assert (white.included == black.included).all()


# Streams

STREAMS: Final[Mapping[str, tuple[Mapping[str, Any], int, tuple[int, ...]]]] = {
    "multi-resolution": (SCALES, 0, (0, 1)),
    "continual-release": (CONTINUAL, 1_000, (0, 1, 2)),
    "sliding-window": (WINDOW, 3_000, (0, 1, 2)),
}


def life_of(name: str, **changed: Any) -> lifetimes.Life:
    parameters, canary, steps = STREAMS[name]
    given = {key: value for key, value in {**parameters, **changed}.items() if value is not None}
    return lifetimes.Life.of(name, given, canary=canary, steps=steps)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [{}, {"noise": "gaussian", "mu": 0.7, "epsilon": None}], ids=["pure", "gaussian"])
@pytest.mark.parametrize("name", STREAMS)
def test_noise_that_is_drawn_again_is_that_of_the_mechanisms_own_runs(name: str, noise: Mapping[str, Any]) -> None:
    """Bit by bit: what a run would release with this chance is what the attack takes for a sample of it."""
    life = life_of(name, **noise)
    drawn = 0
    for there in (True, False):
        for number, (step, given, _) in enumerate(life.due):
            first = step.trained[0]
            if first in step.chain[:-1]:  # it leans on another: such trainings are run for each sample
                continue
            rows = [life.rows(block, there=there) for block in step.trained]
            run = made(name, given, lifetimes.LENGTHY, rows, noise=Noise.repeatable(number))
            event, exact = life.from_zero(number, there=there)[0]
            [again] = overheard.again(event, exact, 1, Noise.repeatable(number))
            assert torch.equal(again.to(torch.float32), run.tensors[window_models.name_of(first)])
            drawn += 1
    assert drawn >= 4


@pytest.mark.parametrize("name", ["continual-release", "sliding-window"])
def test_trainings_with_an_axis_of_their_own_are_those_of_one(name: str) -> None:
    """Many trainings around noisy models in one run move as each of them does alone, whoever else is there."""
    life = life_of(name, noise="gaussian", mu=0.7, epsilon=None)
    centres = torch.from_numpy(np.random.default_rng(1).normal(size=(7, 2, 1))).to(torch.float32)
    for there in (True, False):
        together = life.around(1, centres, overheard.Overheard(), there=there)
        alone = [life.around(1, each[None], overheard.Overheard(), there=there)[0] for each in centres]
        assert torch.allclose(together, torch.stack(alone), rtol=1e-6, atol=0)
        moved = (together - centres).norm(dim=(1, 2))
        assert (moved.min() > 0) == there


@pytest.mark.slow
@pytest.mark.parametrize("name", STREAMS)
def test_lives_move_by_nearly_all_that_the_proof_allows(name: str) -> None:
    life = life_of(name)
    lengthy, brief = (lifetimes.objective(recipe) for recipe in (lifetimes.LENGTHY, lifetimes.BRIEF))
    for number, (step, _given, _events) in enumerate(life.due):
        for place, block in enumerate(step.trained):
            if block in step.chain[:-1]:
                if block.start <= life.canary < block.stop:
                    centre = life.from_zero(number - 1, there=False)[0][1][None]
                    moved = lifetimes.first_step(centre, block.slots).norm()
                    assert 0.97 < float(moved) / brief.contribution(slots=block.slots) <= 1
            elif block in life.looked_at and block.start <= life.canary < block.stop:
                without, with_it = (life.from_zero(number, there=there)[place][1] for there in (False, True))
                share = float((with_it - without).norm()) / lengthy.contribution(slots=block.slots)
                assert 0.9 < share <= 1


# Sequences


def test_a_derived_label_set_gives_its_datapoint_away_every_time() -> None:
    scores = label_sets.attack(label_sets.derived, 50)
    assert (scores.included == 1).all()
    assert (scores.excluded == 0).all()


def test_a_released_label_set_hides_it() -> None:
    parameters = {"epsilon": 1.0, "delta": 1e-5}
    scores = label_sets.attack(label_sets.released(parameters, Noise.repeatable(4)), 200)
    assert scores.included.sum() <= 1
    assert scores.excluded.sum() == 0
    told = label_sets.released(parameters, Noise.repeatable(4))(rows_of(np.zeros((60, 1)), np.repeat([0, 1], 30)))
    assert told == ["0", "1"], "while common labels are told"


def test_solved_noise_is_right_every_time() -> None:
    scores = solved_noise.two_releases(40, Noise.repeatable(6))
    assert scores.included.min() > 0
    assert scores.excluded.max() < 0
    assert np.median(scores.included) > 20, "ten digits nearer than the wrong record"
    assert solved_noise.claim() < 1
    alone = solved_noise.single_release(40, Noise.repeatable(6))
    assert alone.included.min() > 0
    assert alone.excluded.max() < 0
    assert solved_noise.claim(single=True) < 1
    once = solved_noise.one_run(40, Noise.repeatable(6))
    assert once.scores == pytest.approx(np.where(once.included, 1.0, -1.0), abs=1e-6)


def test_secret_blocks_leak_more_with_every_task_while_the_claim_stays() -> None:
    bounds = []
    for tasks in (2, 5, 17):
        scores = lifetimes.secret_blocks(
            noise_multiplier=2.0, tasks=tasks, steps=1, samples=100_000, noise=Noise.repeatable(1)
        )
        found = empirical.gaussian_from_scores(scores.included, scores.excluded, delta=DELTA, confidence=CONFIDENCE)
        bounds.append(found.epsilon_lower)
    assert bounds == sorted(bounds)
    assert bounds[-1] > 1.2 * bounds[0]


def test_a_batch_that_is_clipped_as_a_whole_turns_round() -> None:
    """With one more row it points the other way: why DP-AGEM as published is charged for twice the clip norm."""
    noise = Noise.repeatable(0)
    with_it = likelihood.clipped_batch([[1_000.0], [2_000.0]], [1, 0], noise)
    without = likelihood.clipped_batch([[1_000.0]], [1], noise)
    assert with_it == pytest.approx(1, abs=1e-3)
    assert without == pytest.approx(-1, abs=1e-3)


def test_the_worst_off_of_a_published_stream_pays_more_than_the_claim() -> None:
    """1.375 ε for B = 8 b0 in the limit (card M16); losses add up to what the readings say, and no more."""
    [audit] = AUDITS["continual-release-as-published"]
    scores = audit.gather(50_000, Noise.repeatable(2))
    assert isinstance(scores, Scores)
    _, total = worst_off(ContinualRelease(pane=1, base=8), CONTINUAL_RELEASE["half_open"], steps=120)
    assert 1.3 < float(total) < 1.375
    assert scores.included.max() == pytest.approx(float(total), abs=1e-6)


def test_attacks_repeat_with_their_noise() -> None:
    one, other = (
        made("cosine-classifier", {"noise_multiplier": 1.0}, {"feature_size": 1, "label_source": "prior",
              "label_names": ["0"]}, [rows_of([[1.0]], ["0"])], noise=Noise.repeatable(9)).tensors["sums"]
        for _ in range(2)
    )  # fmt: skip
    assert one.tolist() == other.tolist()


def test_an_outcome_is_a_document() -> None:
    """What a job will keep: numbers that say which bound they are, what they assume, and a picture."""
    for name in ("cosine-classifier", "fine-tuning"):
        audit = AUDITS[name][0]
        told = json.loads(json.dumps(conduct(audit, samples=300, noise=Noise.repeatable(1)).document(points=10)))
        assert told["promise"]["epsilon_upper"] == audit.epsilon()
        assert told["verdict"] in {"consistent", "violation", "inconclusive"}
        assert {bound["method"] for bound in told["bounds"]} <= {"clopper_pearson", "gaussian_dp", "one_run"}
        for bound in told["bounds"]:
            assert 0 <= bound["epsilon_lower"] <= bound["attainable"]
            assert any("Gaussian" in each or "Gaussians" in each for each in bound["assumptions"]) == (
                bound["method"] == "gaussian_dp"
            )
        assert told["roc"][-1] == {**told["roc"][-1], "false_positive_rate": 1.0, "true_positive_rate": 1.0}
