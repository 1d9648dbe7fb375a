"""Every audit that a mechanism of the catalog has: what is attacked, and which promise that is held against.

`registry` adds how scores are gathered. This part needs no torch, so that a service can plan an audit, and write down
what will be held against what, before anything is run.

The status of a proof is backed here: what is `proved` has audits of its price that stay consistent; what is `refuted`
has one that disproves the claim of its paper, or that shows how much is seen where nothing is claimed; what is
`claimed` has both, of our price and of the paper's claim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from accountant import account
from accountant.audit import one_run
from accountant.audit.empirical import Normals
from accountant.audit.series import MAX_SAMPLES
from accountant.audit.verdicts import Power, at_confidence
from accountant.events import Composed, Gaussian, PoissonSampled, Repeated
from trainers.catalog import mechanism

if TYPE_CHECKING:
    from accountant.audit.verdicts import Verdict
    from accountant.events import Adjacency

#: Where an attack stands: one release of a mechanism; a training, seen once; all releases of a stream.
Level: TypeAlias = Literal["mechanism", "training", "sequence"]
#: Who promises: the price of the catalog, the paper, or nobody (a number to compare with).
Promiser: TypeAlias = Literal["catalog", "paper", "nobody"]

DELTA: Final = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An experiment against one promise: ε at `delta`, as a number that is computed when it is asked for.

    `samples` (of each side, or canaries) are those of docs/soundness.md, `tested` those of the test suite.

    An audit that finds nothing says something only if it would have found a fault. So each names its `twin`, the
    mechanism weakened in this way, and the `fewest` samples at which that was caught 20 times of 20, or 40 of 40 of
    draws from its law where runs are slow, at the confidence of a population's first audit
    (`tests/trainers/test_attack_twins.py` has the twins, and catches them at that number). Of what is refuted, the twin
    is what runs. An audit without one is blind, and no evidence of anything.
    """

    name: str
    level: Level
    what: str
    promiser: Promiser
    epsilon: Callable[[], float] = field(repr=False)
    delta: float
    expected: Verdict
    samples: int
    tested: int
    twin: str = ""
    fewest: int | None = None
    right: tuple[float, float, float] | None = None  # of one training, shares of its twin's guesses (`one_run.shown`)
    law: Normals | None = None  # of the scores if the promise is kept, where their noise is Gaussian by construction

    def power(self, confidence: float, *, epsilon: float) -> Power:
        """What it would see at this confidence of a promise of ε: its twin, from so many samples on, or never."""
        if self.fewest is None:
            return Power(self.twin, None)
        samples = at_confidence(self.fewest, confidence)
        shows = samples <= MAX_SAMPLES and (
            self.right is None
            or samples == self.fewest  # where it was measured
            or one_run.shown(canaries=samples, right=self.right, delta=self.delta, confidence=confidence) > epsilon
        )
        return Power(self.twin, samples if shows else None)


def price(name: str, parameters: Mapping[str, Any], *, charge: int = 0, adjacency: Adjacency = "add_remove") -> float:
    """What the catalog's quote costs the datapoints of one charge, or over a life where it says what that is."""
    quoted = mechanism(name).quote(parameters, adjacency=adjacency)
    return account(quoted.life or quoted.charges[charge].event, delta=DELTA, adjacency=adjacency).upper


def life(name: str, *releases: Mapping[str, Any], charges: Sequence[int] = ()) -> float:
    """What all of these releases cost a datapoint that each of them touches, composed as the accountant does it.

    Their parameters were fixed before, so that this is tighter than what a filter charges for releases that anybody
    may choose as they come. `charges` says which charge of each quote is the datapoint's, by default
    the first.
    """
    quotes = [mechanism(name).quote(each, adjacency="add_remove").charges for each in releases]
    events = [quote[place].event for quote, place in zip(quotes, charges or [0] * len(quotes), strict=True)]
    return account(Composed(events=tuple(events)), delta=DELTA).upper


def _lemma_2(noise_multiplier: float, steps: int) -> float:
    """What Lemma 2 of DP-CL states: the steps of one task on the memory, and those of its own training, added."""
    memory = Repeated(times=steps, event=Gaussian(noise_multiplier=noise_multiplier))
    own = Repeated(
        times=steps,
        event=PoissonSampled(sampling_probability=0.01, event=Gaussian(noise_multiplier=noise_multiplier)),
    )
    return account(memory, delta=DELTA).upper + account(own, delta=DELTA).upper


def shifted(parameters: Mapping[str, Any], *, releases: int = 1, otherwise: float = 0.0) -> Normals:
    """Scores that are sums over releases, each in units of what one datapoint moves it by."""
    deviation = parameters["noise_multiplier"] * releases**0.5
    return Normals(included=releases, excluded=otherwise * releases, deviation=deviation)


def log_ratios(parameters: Mapping[str, Any]) -> Normals:
    """Scores that are log-likelihood ratios of Gaussians that are μ deviations apart."""
    mu = parameters["mu"]
    return Normals(included=mu**2 / 2, excluded=-(mu**2) / 2, deviation=mu)


SGD: Final = {"noise_multiplier": 2.0, "sampling_probability": 0.5, "steps": 4, "clip_norm": 1.0}
FULL: Final = {"noise_multiplier": 2.0, "sampling_probability": 1.0, "steps": 1, "clip_norm": 1.0}
#: One step on a sample that holds a tenth of everybody.
RARE: Final = {"noise_multiplier": 1.0, "sampling_probability": 0.1, "steps": 1, "clip_norm": 1.0}
QUIET: Final = {"noise_multiplier": 4.0, "sampling_probability": 1.0, "steps": 1, "clip_norm": 1.0}
LOUD: Final = {"noise_multiplier": 1.0, "sampling_probability": 1.0, "steps": 1, "clip_norm": 1.0}
LONG: Final = {"noise_multiplier": 4.0, "sampling_probability": 0.5, "steps": 40, "clip_norm": 1.0}
MEMORY: Final = {
    "steps": 4, "train_probability": 1.0, "train_noise_multiplier": 2.0, "memory_probability": 1.0,
    "memory_noise_multiplier": 2.0, "clip_norm": 1.0, "use": "every_block", "memories": ["monday"],
}  # fmt: skip
#: Next to no noise on the task's own gradients, so that nothing hides what the projection shows of the memory.
REMEMBERED: Final = {**MEMORY, "steps": 1, "train_noise_multiplier": 1e-3, "memory_noise_multiplier": 1.0}
#: Lives of trainings, all of which touch the same datapoint.
RELEASES: Final = 4
SAMPLED: Final = {**SGD, "steps": 1}
FOURTH: Final = {**FULL, "noise_multiplier": 4.0}
SUMS_FOURTH: Final = {"noise_multiplier": 3.0}
MOMENTS_FOURTH: Final = {"noise_multiplier": 3.0, "moment_weight": 1e-3}
REMEMBERINGS: Final = 16
LEARNED: Final = {**MEMORY, "steps": 1, "train_noise_multiplier": 4.0}
RECALLED: Final = {**REMEMBERED, "train_noise_multiplier": 1e-6, "memory_noise_multiplier": 4.0}
#: A single step of either part at the noise of `FULL`.
TAUGHT: Final = {**MEMORY, "steps": 1, "memories": []}
REMINDED: Final[dict[str, Any]] = {**REMEMBERED, "memory_noise_multiplier": 2.0}
AGEM: Final[dict[str, Any]] = {
    "steps": 1, "train_probability": 1.0, "memory_probability": 1.0, "noise_multiplier": 2.0, "clip_norm": 1.0,
    "memories": [],
}  # fmt: skip
LABELS: Final = {"epsilon": 1.0, "delta": 1e-5}
SUMS: Final = {"noise_multiplier": 1.5}
MOMENTS: Final = {"noise_multiplier": 1.5, "moment_weight": 1e-3}
PURE: Final = {"epsilon": 2.0}
WINDOW: Final = {"k": 2, "w0": 1000, "epsilon": 3.0}
SCALES: Final = {"pane": 1000, "levels": 3, "epsilon": 3.0}
CONTINUAL: Final = {"pane": 500, "doublings": 1, "epsilon": 3.0}
WINDOW_GAUSSIAN: Final = {"k": 2, "w0": 1000, "noise": "gaussian", "mu": 0.7}
SCALES_GAUSSIAN: Final = {"pane": 1000, "levels": 3, "noise": "gaussian", "mu": 0.7}
CONTINUAL_GAUSSIAN: Final = {"pane": 500, "doublings": 1, "noise": "gaussian", "mu": 0.7}
CELLS: Final = {"scale": 0.5}
GAUSSIAN_CELLS: Final = {"noise": "gaussian", "noise_multiplier": 2.0}
GAUSSIAN_WEIGHTS: Final = {"noise": "gaussian", "noise_multiplier": 2.0}
COORDINATES: Final = {"epsilon": 1.0, "weights": 3}
SECRET: Final[dict[str, Any]] = {"noise_multiplier": 2.0, "steps": 1}
#: Pure promises hold at every δ; what the catalog charges is compared at the δ of all others.
PUBLISHED_EPSILON: Final = 1.0
#: What the paper claims of the attacked parameters (`solved_noise.claim`, which needs the first weights), rounded up.
L2DP_CLAIM: Final = 0.8703
L2DP_SINGLE_CLAIM: Final = 0.6721
L2DP_ONE_RUN_CLAIM: Final = 0.5785  # for 2,000 canaries; of fewer it is less

#: Every mechanism of the catalog, with the plans of its audits.
PLANS: Final[Mapping[str, tuple[Plan, ...]]] = MappingProxyType(
    {
        "dp-sgd": (
            Plan(
                name="weights after one step",
                level="mechanism",
                what="threshold on the weight along the axis of a canary that is always clipped; likelihood ratio",
                promiser="catalog",
                epsilon=lambda: price("dp-sgd", FULL),
                delta=DELTA,
                expected="consistent",
                samples=50_000,
                tested=5_000,
                twin="a third of the noise",
                fewest=5_000,
                law=shifted(FULL),
            ),
            Plan(
                name="weights after sampled steps",
                level="mechanism",
                what="weight along the axis of a canary after four sampled steps; the price is for who sees each step",
                promiser="catalog",
                epsilon=lambda: price("dp-sgd", SGD),
                delta=DELTA,
                expected="consistent",
                samples=50_000,
                tested=5_000,
                twin="a third of the noise",
                fewest=5_000,
            ),
            Plan(
                name="weights after one sampled step",
                level="mechanism",
                what="likelihood ratio of the weight along the axis of a canary, after one step on a Poisson sample",
                promiser="catalog",
                epsilon=lambda: price("dp-sgd", RARE),
                delta=DELTA,
                expected="consistent",
                samples=50_000,
                tested=20_000,
                twin="no sampling",
                fewest=20_000,
            ),
            Plan(
                name="one run, white box",
                level="training",
                what="weights along the axes of canaries, each in by a coin",
                promiser="catalog",
                epsilon=lambda: price("dp-sgd", LOUD),
                delta=DELTA,
                expected="consistent",
                samples=2_000,
                tested=1_500,
                twin="an eighth of the noise",
                fewest=1_500,
                right=(1.0, 1.0, 0.98),
            ),
            Plan(
                name="one run, white box, sampled steps",
                level="training",
                what="weights along the axes of canaries, each in by a coin, after four steps on Poisson samples",
                promiser="catalog",
                epsilon=lambda: price("dp-sgd", SGD),
                delta=DELTA,
                expected="consistent",
                samples=2_000,
                tested=2_000,
                twin="an eighth of the noise",
                fewest=2_000,
                right=(0.955, 0.955, 0.885),
            ),
            Plan(
                name="one run, black box",
                level="training",
                what="losses of the released model on canaries, each in by a coin",
                promiser="catalog",
                epsilon=lambda: price("dp-sgd", LOUD),
                delta=DELTA,
                expected="consistent",
                samples=2_000,
                tested=1_500,
                twin="an eighth of the noise",
                fewest=1_500,
                right=(1.0, 1.0, 0.98),
            ),
            Plan(
                name="one run, black box, perceptron",
                level="training",
                what="losses of random rows under random labels after forty steps; nothing is worst case",
                promiser="catalog",
                epsilon=lambda: price("dp-sgd", LONG),
                delta=DELTA,
                expected="inconclusive",
                samples=2_000,
                tested=500,
            ),
            Plan(
                name="weights after one step, replaced datapoint",
                level="mechanism",
                what="weight along the axis of a canary with one of two labels, whose clipped gradient turns round",
                promiser="catalog",
                epsilon=lambda: price("dp-sgd", QUIET, adjacency="replace_one"),
                delta=DELTA,
                expected="consistent",
                samples=50_000,
                tested=5_000,
                twin="a third of the noise",
                fewest=5_000,
                law=shifted(QUIET, otherwise=-1.0),
            ),
            Plan(
                name="all releases of a life, each from the last",
                level="sequence",
                what="likelihood ratio of every step of four, on Poisson samples, each of them released",
                promiser="catalog",
                epsilon=lambda: life("dp-sgd", *[SAMPLED] * RELEASES),
                delta=DELTA,
                expected="consistent",
                samples=50_000,
                tested=5_000,
                twin="a third of the noise",
                fewest=5_000,
            ),
            Plan(
                name="all releases of a life, each from the start",
                level="sequence",
                what="sum over four trainings on the same datapoints; likelihood ratio",
                promiser="catalog",
                epsilon=lambda: life("dp-sgd", *[FOURTH] * RELEASES),
                delta=DELTA,
                expected="consistent",
                samples=50_000,
                tested=3_000,
                twin="a third of the noise",
                fewest=3_000,
                law=shifted(FOURTH, releases=RELEASES),
            ),
        ),
        "peft-ensemble": (
            Plan(
                name="head after one step",
                level="mechanism",
                what="threshold on the weight of the head along the axis of a canary; likelihood ratio",
                promiser="catalog",
                epsilon=lambda: price("peft-ensemble", FULL),
                delta=DELTA,
                expected="consistent",
                samples=50_000,
                tested=5_000,
                twin="a third of the noise",
                fewest=5_000,
                law=shifted(FULL),
            ),
            Plan(
                name="head after one sampled step",
                level="mechanism",
                what="likelihood ratio of the head's weight along a canary's axis, after one step on a Poisson sample",
                promiser="catalog",
                epsilon=lambda: price("peft-ensemble", RARE),
                delta=DELTA,
                expected="consistent",
                samples=50_000,
                tested=20_000,
                twin="no sampling",
                fewest=20_000,
            ),
            Plan(
                name="one run, white box",
                level="training",
                what="weights of the head along the axes of canaries, each in by a coin",
                promiser="catalog",
                epsilon=lambda: price("peft-ensemble", LOUD),
                delta=DELTA,
                expected="consistent",
                samples=2_000,
                tested=1_500,
                twin="an eighth of the noise",
                fewest=1_500,
                right=(1.0, 1.0, 0.98),
            ),
            Plan(
                name="one run, black box",
                level="training",
                what="losses of the released model on canaries, each in by a coin",
                promiser="catalog",
                epsilon=lambda: price("peft-ensemble", LOUD),
                delta=DELTA,
                expected="consistent",
                samples=2_000,
                tested=1_500,
                twin="an eighth of the noise",
                fewest=1_500,
                right=(1.0, 1.0, 0.98),
            ),
            Plan(
                name="all members of a life",
                level="sequence",
                what="sum over the heads of four tasks that hold the same datapoints; likelihood ratio",
                promiser="catalog",
                epsilon=lambda: life("peft-ensemble", *[FOURTH] * RELEASES),
                delta=DELTA,
                expected="consistent",
                samples=50_000,
                tested=3_000,
                twin="a third of the noise",
                fewest=3_000,
                law=shifted(FOURTH, releases=RELEASES),
            ),
        ),
        "episodic-memory": (
            Plan(
                name="weights after one step, canary in the task",
                level="mechanism",
                what="threshold on the weight along the axis of a canary that is always clipped; likelihood ratio",
                promiser="catalog",
                epsilon=lambda: price("episodic-memory", TAUGHT),
                delta=DELTA,
                expected="consistent",
                samples=50_000,
                tested=5_000,
                twin="a third of the noise",
                fewest=5_000,
                law=shifted(FULL),
            ),
            Plan(
                name="weights after one step of replay, canary in the memory",
                level="mechanism",
                what="threshold on the weight along the axis of a canary that a memory replays; likelihood ratio",
                promiser="catalog",
                epsilon=lambda: price("episodic-memory", REMINDED, charge=1),
                delta=DELTA,
                expected="consistent",
                samples=50_000,
                tested=5_000,
                twin="a third of the noise",
                fewest=5_000,
                law=shifted(FULL),
            ),
            Plan(
                name="projection of one step, canary in the memory",
                level="mechanism",
                what="how far the projection moves a step, of a memory of one datapoint or none; noise of all at once",
                promiser="catalog",
                epsilon=lambda: price("episodic-memory", REMINDED, charge=1),
                delta=DELTA,
                expected="consistent",
                samples=50_000,
                tested=3_000,
                twin="a third of the noise",
                fewest=3_000,
            ),
            Plan(
                name="one run, canaries in the task",
                level="training",
                what="weights along the axes of canaries of the part train, beside a memory",
                promiser="catalog",
                epsilon=lambda: price("episodic-memory", MEMORY),
                delta=DELTA,
                expected="consistent",
                samples=2_000,
                tested=1_500,
                twin="an eighth of the noise",
                fewest=1_500,
                right=(1.0, 1.0, 0.98),
            ),
            Plan(
                name="one run, canaries in the memory",
                level="training",
                what="weights along the axes of canaries of the part memory, which show by the projection alone",
                promiser="catalog",
                epsilon=lambda: price("episodic-memory", REMEMBERED, charge=1),
                delta=DELTA,
                expected="consistent",
                samples=2_000,
                tested=1_500,
                twin="an eighth of the noise",
                fewest=1_500,
                right=(1.0, 1.0, 0.98),
            ),
            Plan(
                name="one run, black box, canaries in the task",
                level="training",
                what="losses of the released model on canaries of the part train, beside a memory",
                promiser="catalog",
                epsilon=lambda: price("episodic-memory", MEMORY),
                delta=DELTA,
                expected="consistent",
                samples=2_000,
                tested=1_500,
                twin="an eighth of the noise",
                fewest=1_500,
                right=(1.0, 1.0, 0.98),
            ),
            Plan(
                name="one run, black box, canaries in the memory",
                level="training",
                what="losses of the released model on canaries of the part memory",
                promiser="catalog",
                epsilon=lambda: price("episodic-memory", REMEMBERED, charge=1),
                delta=DELTA,
                expected="consistent",
                samples=2_000,
                tested=1_500,
                twin="an eighth of the noise",
                fewest=1_500,
                right=(1.0, 1.0, 0.98),
            ),
            Plan(
                name="all releases of a life, in a task and then in memories",
                level="sequence",
                what="sum over the weights of a task and of fifteen later ones that all read the canaries; seen once",
                promiser="catalog",
                epsilon=lambda: life(
                    "episodic-memory",
                    *(LEARNED, *[RECALLED] * (REMEMBERINGS - 1)),
                    charges=(0, *[1] * (REMEMBERINGS - 1)),
                ),
                delta=DELTA,
                expected="consistent",
                samples=2_000,
                tested=1_500,
                twin="an eighth of the noise",
                fewest=1_500,
                right=(1.0, 1.0, 0.98),
            ),
        ),
        "cosine-classifier": (
            Plan(
                name="sum of one label",
                level="mechanism",
                what="threshold on the sum of a label that one datapoint carries; likelihood ratio",
                promiser="catalog",
                epsilon=lambda: price("cosine-classifier", SUMS),
                delta=DELTA,
                expected="consistent",
                samples=1_000_000,
                tested=50_000,
                twin="a third of the noise",
                fewest=5_000,
                law=shifted(SUMS),
            ),
            Plan(
                name="sum of one label, replaced datapoint",
                level="mechanism",
                what="threshold on the sum of a label, for a datapoint with one of two opposite features",
                promiser="catalog",
                epsilon=lambda: price("cosine-classifier", SUMS, adjacency="replace_one"),
                delta=DELTA,
                expected="consistent",
                samples=1_000_000,
                tested=50_000,
                twin="a third of the noise",
                fewest=20_000,
                law=shifted(SUMS, otherwise=-1.0),
            ),
            Plan(
                name="all sums of a life",
                level="sequence",
                what="what each of four tasks added to the sums so far, summed; likelihood ratio",
                promiser="catalog",
                epsilon=lambda: life("cosine-classifier", *[SUMS_FOURTH] * RELEASES),
                delta=DELTA,
                expected="consistent",
                samples=500_000,
                tested=50_000,
                twin="a third of the noise",
                fewest=3_000,
                law=shifted(SUMS_FOURTH, releases=RELEASES),
            ),
            Plan(
                name="sums of one task less those of another",
                level="sequence",
                what="what one task added, less what one without the datapoint did: noise that they share cancels",
                promiser="catalog",
                epsilon=lambda: price("cosine-classifier", SUMS),
                delta=DELTA,
                expected="consistent",
                samples=500_000,
                tested=50_000,
                twin="noise that is reused",
                fewest=100,
            ),
        ),
        "l2dp-ml": (
            Plan(
                name="sum of one label",
                level="mechanism",
                what="threshold on the class sum of a label that one datapoint carries, moments left aside",
                promiser="catalog",
                epsilon=lambda: price("l2dp-ml", MOMENTS),
                delta=DELTA,
                expected="consistent",
                samples=1_000_000,
                tested=50_000,
                twin="a third of the noise",
                fewest=5_000,
                law=shifted(MOMENTS),
            ),
            Plan(
                name="one run, white box",
                level="training",
                what="class sums of canaries, each in by a coin and alone with its label",
                promiser="catalog",
                epsilon=lambda: price("l2dp-ml", MOMENTS),
                delta=DELTA,
                expected="consistent",
                samples=2_000,
                tested=1_000,
                twin="an eighth of the noise",
                fewest=300,
                right=(1.0, 1.0, 0.98),
            ),
            Plan(
                name="one run, black box",
                level="training",
                what="losses of the released classifier on canaries, each in by a coin and alone with its label",
                promiser="catalog",
                epsilon=lambda: price("l2dp-ml", MOMENTS),
                delta=DELTA,
                expected="consistent",
                samples=2_000,
                tested=1_000,
                twin="an eighth of the noise",
                fewest=300,
                right=(1.0, 1.0, 0.98),
            ),
            Plan(
                name="all statistics of a life",
                level="sequence",
                what="class sums of four tasks, summed; likelihood ratio, moments left aside",
                promiser="catalog",
                epsilon=lambda: life("l2dp-ml", *[MOMENTS_FOURTH] * RELEASES),
                delta=DELTA,
                expected="consistent",
                samples=500_000,
                tested=50_000,
                twin="a third of the noise",
                fewest=3_000,
                law=shifted(MOMENTS_FOURTH, releases=RELEASES),
            ),
            Plan(
                name="sums of one task less those of another",
                level="sequence",
                what="class sums of one task, less those of one without the datapoint: noise that they share cancels",
                promiser="catalog",
                epsilon=lambda: price("l2dp-ml", MOMENTS),
                delta=DELTA,
                expected="consistent",
                samples=500_000,
                tested=50_000,
                twin="noise that is reused",
                fewest=100,
            ),
        ),
        "label-release": (
            Plan(
                name="one more datapoint of a label",
                level="mechanism",
                what="whether a label of ten datapoints is told, beside one of nine",
                promiser="catalog",
                epsilon=lambda: price("label-release", LABELS),
                delta=DELTA,
                expected="consistent",
                samples=1_000_000,
                tested=50_000,
                twin="telling labels too easily",
                fewest=5_000,
            ),
            Plan(
                name="label space of a stream, released",
                level="sequence",
                what="whether the label of one datapoint is in any label set of three tasks that was released",
                promiser="catalog",
                epsilon=lambda: price("label-release", LABELS),
                delta=DELTA,
                expected="consistent",
                samples=5_000,
                tested=300,
                twin="telling every label of the data",
                fewest=100,
            ),
            Plan(
                name="label space of a stream, derived from the data",
                level="sequence",
                what="whether a label of one datapoint is in a set of all labels in the data, as no mechanism offers",
                promiser="nobody",
                epsilon=lambda: price("label-release", LABELS),
                delta=DELTA,
                expected="violation",
                samples=5_000,
                tested=300,
                twin="the mechanism as it is",
                fewest=100,
            ),
            *(
                Plan(
                    name=f"one more datapoint of a label, rule {rule}",
                    level="mechanism",
                    what="whether a label of ten datapoints is told, beside one of nine, with another rule",
                    promiser="catalog",
                    epsilon=partial(price, "label-release", {**LABELS, "rule": rule}),
                    delta=DELTA,
                    expected="consistent",
                    samples=1_000_000,
                    tested=50_000,
                    twin="telling labels too easily",
                    fewest=5_000,
                )
                for rule, others in (("optimal", 9), ("laplace", 9), ("binary", 9))
            ),
        ),
        "accuracy": (
            Plan(
                name="count of right answers",
                level="mechanism",
                what="likelihood ratio of the noisy count of right answers, of one row or none",
                promiser="catalog",
                epsilon=lambda: price("accuracy", CELLS),
                delta=DELTA,
                expected="consistent",
                samples=20_000,
                tested=2_000,
                twin="a third of the noise",
                fewest=200,
            ),
            Plan(
                name="count of right answers, Gaussian noise",
                level="mechanism",
                what="threshold on the noisy count of right answers, of one row or none",
                promiser="catalog",
                epsilon=lambda: price("accuracy", GAUSSIAN_CELLS),
                delta=DELTA,
                expected="consistent",
                samples=1_000_000,
                tested=50_000,
                twin="a third of the noise",
                fewest=5_000,
                law=shifted(GAUSSIAN_CELLS),
            ),
        ),
        "output-perturbation": (
            Plan(
                name="weights around a wrong centre",
                level="mechanism",
                what="likelihood ratio of the weights, of one datapoint with the longest gradient there is, or none",
                promiser="catalog",
                epsilon=lambda: price("output-perturbation", PURE),
                delta=DELTA,
                expected="consistent",
                samples=50_000,
                tested=2_000,
                twin="a third of the noise",
                fewest=700,
            ),
            Plan(
                name="weights around a wrong centre, Gaussian noise",
                level="mechanism",
                what="likelihood ratio of the weights, of one datapoint with the longest gradient; Gaussian noise",
                promiser="catalog",
                epsilon=lambda: price("output-perturbation", GAUSSIAN_WEIGHTS),
                delta=DELTA,
                expected="consistent",
                samples=1_000_000,
                tested=50_000,
                twin="a third of the noise",
                fewest=3_000,
                law=shifted(GAUSSIAN_WEIGHTS),
            ),
        ),
        "multi-resolution": (
            Plan(
                name="a life at every scale",
                level="sequence",
                what="likelihood ratio of all models that one datapoint enters, on the mechanism's own runs",
                promiser="catalog",
                epsilon=lambda: price("multi-resolution", {**SCALES, "step": 0}),
                delta=DELTA,
                expected="consistent",
                samples=50_000,
                tested=1_500,
                twin="a third of the noise",
                fewest=1_500,
            ),
            Plan(
                name="a life at every scale, Gaussian noise",
                level="sequence",
                what="likelihood ratio of all models that one datapoint enters, on its own runs; Gaussian noise",
                promiser="catalog",
                epsilon=lambda: price("multi-resolution", {**SCALES_GAUSSIAN, "step": 0}),
                delta=DELTA,
                expected="consistent",
                samples=1_000_000,
                tested=50_000,
                twin="a third of the noise",
                fewest=7_000,
                law=log_ratios(SCALES_GAUSSIAN),
            ),
        ),
        "continual-release": (
            Plan(
                name="a life of bases and updates",
                level="sequence",
                what="likelihood ratio of all models that the worst-off datapoint enters, on the mechanism's own runs",
                promiser="catalog",
                epsilon=lambda: price("continual-release", {**CONTINUAL, "step": 0}),
                delta=DELTA,
                expected="consistent",
                samples=50_000,
                tested=1_500,
                twin="a quarter of the noise",
                fewest=1_000,
            ),
            Plan(
                name="a life of bases and updates, Gaussian noise",
                level="sequence",
                what="likelihood ratio of all models that the worst-off datapoint enters; Gaussian noise",
                promiser="catalog",
                epsilon=lambda: price("continual-release", {**CONTINUAL_GAUSSIAN, "step": 0}),
                delta=DELTA,
                expected="consistent",
                samples=500_000,
                tested=20_000,
                twin="a third of the noise",
                fewest=5_000,
                law=log_ratios(CONTINUAL_GAUSSIAN),
            ),
        ),
        "sliding-window": (
            Plan(
                name="a life of windows",
                level="sequence",
                what="likelihood ratio of all models of a window chain that one datapoint enters, on its own runs",
                promiser="catalog",
                epsilon=lambda: price("sliding-window", {**WINDOW, "step": 0}),
                delta=DELTA,
                expected="consistent",
                samples=50_000,
                tested=1_500,
                twin="a third of the noise",
                fewest=1_000,
            ),
            Plan(
                name="a life of windows, noise as the paper's Algorithm 3 prints it (R4)",
                level="sequence",
                what="lifetime sum of the printed noise at the printed sensitivity, in one coordinate; w = 15 panes",
                promiser="paper",
                epsilon=lambda: PUBLISHED_EPSILON,
                delta=0.0,
                expected="violation",
                samples=200_000,
                tested=20_000,
                twin="the mechanism as it is",
                fewest=5_000,
            ),
            Plan(
                name="a life of windows, noise for every pane (R5)",
                level="sequence",
                what="lifetime sum of the noise in the reading under which the paper's theorem holds; w = 15 panes",
                promiser="paper",
                epsilon=lambda: PUBLISHED_EPSILON,
                delta=0.0,
                expected="consistent",
                samples=200_000,
                tested=20_000,
                twin="half the scale of the noise",
                fewest=3_000,
            ),
            Plan(
                name="a life of windows, Gaussian noise",
                level="sequence",
                what="likelihood ratio of all models of a window chain that one datapoint enters; Gaussian noise",
                promiser="catalog",
                epsilon=lambda: price("sliding-window", {**WINDOW_GAUSSIAN, "step": 0}),
                delta=DELTA,
                expected="consistent",
                samples=500_000,
                tested=20_000,
                twin="a third of the noise",
                fewest=3_000,
                law=log_ratios(WINDOW_GAUSSIAN),
            ),
        ),
        "dp-agem-as-published": (
            Plan(
                name="a batch turned round, at our price",
                level="mechanism",
                what="weights after one step on a batch that one datapoint turns round; likelihood ratio",
                promiser="catalog",
                epsilon=lambda: price("dp-agem-as-published", AGEM),
                delta=DELTA,
                expected="consistent",
                samples=20_000,
                tested=3_000,
                twin="an eighth of the noise",
                fewest=700,
                law=shifted(AGEM, otherwise=-1.0),
            ),
            Plan(
                name="a batch turned round, at the paper's price",
                level="mechanism",
                what="weights after steps on a batch that is turned round, against one clip norm, as the paper counts",
                promiser="paper",
                epsilon=lambda: account(Gaussian(noise_multiplier=AGEM["noise_multiplier"]), delta=DELTA).upper,
                delta=DELTA,
                expected="violation",
                samples=1_000_000,
                tested=50_000,
                twin="the mechanism as it is",
                fewest=20_000,
                law=shifted(AGEM, otherwise=-1.0),
            ),
        ),
        "dp-cl-as-published": (
            Plan(
                name="secret blocks over seventeen tasks",
                level="sequence",
                what=(
                    "likelihood ratio of all noisy reference gradients of sixteen later tasks, which Lemma 2 counts; "
                    "clipped gradients and noise by the mechanism's code, the noise for all runs at once"
                ),
                promiser="paper",
                epsilon=lambda: _lemma_2(**SECRET),
                delta=DELTA,
                expected="violation",
                samples=200_000,
                tested=20_000,
                twin="the mechanism as it is",
                fewest=7_000,
            ),
        ),
        "l2dp-ml-as-published": (
            Plan(
                name="the noise is solved for",
                level="sequence",
                what="two releases and linear algebra: which of two records was in the first task",
                promiser="paper",
                epsilon=lambda: L2DP_CLAIM,
                delta=0.0,
                expected="violation",
                samples=5_000,
                tested=200,
                twin="the mechanism as it is",
                fewest=100,
            ),
            Plan(
                name="a single release is enough",
                level="mechanism",
                what="one release with hidden values that are not saturated: the rank of what the noise cannot hide",
                promiser="paper",
                epsilon=lambda: L2DP_SINGLE_CLAIM,
                delta=0.0,
                expected="violation",
                samples=5_000,
                tested=200,
                twin="the mechanism as it is",
                fewest=100,
            ),
            Plan(
                name="one run, white box",
                level="training",
                what="two releases and linear algebra: which of two records each canary was, of one training",
                promiser="paper",
                epsilon=lambda: L2DP_ONE_RUN_CLAIM,
                delta=0.0,
                expected="violation",
                samples=2_000,
                tested=300,
                twin="the mechanism as it is",
                fewest=100,
                right=(1.0, 1.0, 0.95),
            ),
        ),
        "output-perturbation-as-published": (
            Plan(
                name="Laplace noise on each coordinate, at our price",
                level="mechanism",
                what="likelihood ratio of the weights around a wrong centre, of one of two datapoints",
                promiser="catalog",
                epsilon=lambda: price("output-perturbation-as-published", COORDINATES, adjacency="replace_one"),
                delta=DELTA,
                expected="consistent",
                samples=20_000,
                tested=3_000,
                twin="half the scale of the noise",
                fewest=3_000,
            ),
            Plan(
                name="Laplace noise on each coordinate, at the paper's price",
                level="mechanism",
                what="likelihood ratio of the weights against the claimed ε: three coordinates cost up to √3 of it",
                promiser="paper",
                epsilon=lambda: PUBLISHED_EPSILON,
                delta=0.0,
                expected="violation",
                samples=20_000,
                tested=10_000,
                twin="the mechanism as it is",
                fewest=10_000,
            ),
            Plan(
                name="a Lipschitz constant from the data, at the paper's price",
                level="mechanism",
                what="likelihood ratio of the weights with the paper's L, which divides by the datapoints once more",
                promiser="paper",
                epsilon=lambda: PUBLISHED_EPSILON,
                delta=0.0,
                expected="violation",
                samples=5_000,
                tested=300,
                twin="the mechanism as it is",
                fewest=100,
            ),
        ),
        "continual-release-as-published": (
            Plan(
                name="a life of bases and updates, as printed",
                level="sequence",
                what="lifetime sum of the printed noise at the printed sensitivity, in one coordinate; B = 8 b0",
                promiser="paper",
                epsilon=lambda: PUBLISHED_EPSILON,
                delta=0.0,
                expected="violation",
                samples=1_000_000,
                tested=300_000,
                twin="the mechanism as it is",
                fewest=100_000,
            ),
        ),
        "fine-tuning": (
            Plan(
                name="one run, white box",
                level="training",
                what="which weights moved; nothing is promised, and ε = 3 stands for any promise",
                promiser="nobody",
                epsilon=lambda: 3.0,
                delta=DELTA,
                expected="violation",
                samples=2_000,
                tested=300,
                twin="the mechanism as it is",
                fewest=300,
                right=(1.0, 1.0, 0.98),
            ),
        ),
        "a-gem": (
            Plan(
                name="one run, white box",
                level="training",
                what="which weights moved; nothing is promised, and ε = 3 stands for any promise",
                promiser="nobody",
                epsilon=lambda: 3.0,
                delta=DELTA,
                expected="violation",
                samples=2_000,
                tested=300,
                twin="the mechanism as it is",
                fewest=300,
                right=(1.0, 1.0, 0.98),
            ),
        ),
    }
)


def offered(name: str) -> tuple[Plan, ...]:
    """The audits of a mechanism that are about what a population is told of it.

    That is the price of the catalog; of a mechanism that is refuted, the claim of its paper. What a paper claims of a
    mechanism that is charged by a price of ours is no promise to anybody, and neither is a number of nobody's. An audit
    that is blind is not offered: what it does not find is no evidence.
    """
    by = "paper" if mechanism(name).proof_status == "refuted" else "catalog"
    return tuple(plan for plan in PLANS[name] if plan.promiser == by and plan.fewest is not None)
