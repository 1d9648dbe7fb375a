"""Every audit that a mechanism of the catalog has, and how one is conducted.

The status of a proof is backed here: what is `proved` has audits of its price that stay consistent; what is `refuted`
has one that disproves the claim of its paper, or that shows how much is seen where nothing is claimed; what is
`claimed` has both, of our price and of the paper's claim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from accountant import account
from accountant.audit import empirical, one_run
from accountant.audit.verdicts import Verdict, verdict
from accountant.events import Gaussian, PoissonSampled, Repeated
from accountant.streams.readings import CONTINUAL_RELEASE, SLIDING_WINDOW, worst_off
from accountant.streams.schedules import ContinualRelease, SlidingWindow
from trainers.attacks import canaries, coordinates, label_sets, lifetimes, likelihood, solved_noise
from trainers.attacks.runs import Guesses, Scores
from trainers.catalog import mechanism

if TYPE_CHECKING:
    from accountant.audit.empirical import LowerBound
    from accountant.events import Adjacency
    from accountant.streams.readings import Reading
    from accountant.streams.schedules import Schedule
    from trainers.noise import Noise

#: Where an attack stands: one release of a mechanism; a training, seen once; all releases of a stream.
Level: TypeAlias = Literal["mechanism", "training", "sequence"]
#: Who promises: the price of the catalog, the paper, or nobody (a number to compare with).
Promiser: TypeAlias = Literal["catalog", "paper", "nobody"]

DELTA: Final = 1e-5
CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """An experiment against one promise: ε at `delta`, as a number that is computed when it is asked for.

    `samples` (of each side, or canaries) are those of docs/soundness.md, `tested` those of the test suite.
    """

    name: str
    level: Level
    what: str
    promiser: Promiser
    epsilon: Callable[[], float] = field(repr=False)
    delta: float
    expected: Verdict
    gather: Callable[[int, Noise], Scores | Guesses] = field(repr=False)
    samples: int
    tested: int
    gaussian: bool = False  # whether the attacked noise has the shape that the Gaussian fit assumes


class Outcome(NamedTuple):
    """What an audit came to. `fitted` assumes the Gaussian shape; None where that is not the noise's."""

    audit: Audit
    epsilon: float
    bound: LowerBound
    fitted: LowerBound | None
    verdict: Verdict
    scores: Scores | Guesses

    def document(self, *, points: int = 50) -> dict[str, Any]:
        """All of it as JSON: the promise, the lower bound and what it rests on, the verdict, and a picture."""
        sides = (
            (self.scores.scores[self.scores.included], self.scores.scores[~self.scores.included])
            if isinstance(self.scores, Guesses)
            else self.scores
        )
        return {
            "audit": self.audit.name,
            "level": self.audit.level,
            "what": self.audit.what,
            "promise": {"epsilon_upper": self.epsilon, "delta": self.audit.delta, "by": self.audit.promiser},
            "bounds": [_bound(bound) for bound in (self.bound, self.fitted) if bound is not None],
            "verdict": self.verdict,
            "roc": [point._asdict() for point in empirical.roc(*sides, points=points)],
        }


def _bound(bound: LowerBound) -> dict[str, Any]:
    return {
        "epsilon_lower": bound.epsilon_lower,
        "delta": bound.delta,
        "confidence": bound.confidence,
        "method": bound.method,
        "samples": bound.samples,
        "assumptions": list(bound.assumptions),
        "attainable": bound.attainable,
    }


def conduct(audit: Audit, *, samples: int, noise: Noise, confidence: float = CONFIDENCE) -> Outcome:
    """Gather scores, bound ε from below, and compare with the promise."""
    scores = audit.gather(samples, noise)
    fitted = None
    if isinstance(scores, Guesses):
        bound = one_run.from_scores(scores.scores, scores.included, delta=audit.delta, confidence=confidence)
    else:
        bound = empirical.from_scores(scores.included, scores.excluded, delta=audit.delta, confidence=confidence)
        if audit.gaussian:
            fitted = empirical.gaussian_from_scores(
                scores.included, scores.excluded, delta=audit.delta, confidence=confidence
            )
    epsilon = audit.epsilon()
    said = verdict(bound, epsilon=epsilon, delta=audit.delta, confidence=confidence)
    return Outcome(audit, epsilon, bound, fitted, said, scores)


def price(name: str, parameters: Mapping[str, Any], *, charge: int = 0, adjacency: Adjacency = "add_remove") -> float:
    """What the catalog's quote costs the datapoints of one charge, or over a life where it says what that is."""
    quoted = mechanism(name).quote(parameters, adjacency=adjacency)
    return account(quoted.life or quoted.charges[charge].event, delta=DELTA, adjacency=adjacency).upper


def _lemma_2(noise_multiplier: float, steps: int) -> float:
    """What Lemma 2 of DP-CL states: the steps of one task on the memory, and those of its own training, added."""
    memory = Repeated(times=steps, event=Gaussian(noise_multiplier=noise_multiplier))
    own = Repeated(
        times=steps,
        event=PoissonSampled(sampling_probability=0.01, event=Gaussian(noise_multiplier=noise_multiplier)),
    )
    return account(memory, delta=DELTA).upper + account(own, delta=DELTA).upper


def _printed(schedule: Schedule, reading: Reading, *, steps: int, epsilon: float) -> Callable[[int, Noise], Scores]:
    def gather(samples: int, noise: Noise) -> Scores:
        life, _ = worst_off(schedule, reading, steps=steps)
        return lifetimes.printed_noise(life.models, reading, epsilon, samples, noise)

    return gather


def _gathered(experiment: coordinates.Experiment, *, at_a_time: int = 1_000) -> Callable[[int, Noise], Scores]:
    return partial(coordinates.gathered, experiment, at_a_time=at_a_time)


_SGD: Final = {"noise_multiplier": 2.0, "sampling_probability": 0.5, "steps": 4, "clip_norm": 1.0}
_FULL: Final = {"noise_multiplier": 2.0, "sampling_probability": 1.0, "steps": 1, "clip_norm": 1.0}
_QUIET: Final = {"noise_multiplier": 4.0, "sampling_probability": 1.0, "steps": 1, "clip_norm": 1.0}
_LOUD: Final = {"noise_multiplier": 1.0, "sampling_probability": 1.0, "steps": 1, "clip_norm": 1.0}
_LONG: Final = {"noise_multiplier": 4.0, "sampling_probability": 0.5, "steps": 40, "clip_norm": 1.0}
_MEMORY: Final = {
    "steps": 4, "train_probability": 1.0, "train_noise_multiplier": 2.0, "memory_probability": 1.0,
    "memory_noise_multiplier": 2.0, "clip_norm": 1.0, "use": "every_block", "memories": ["monday"],
}  # fmt: skip
#: Next to no noise on the task's own gradients, so that nothing hides what the projection shows of the memory.
_REMEMBERED: Final = {**_MEMORY, "steps": 1, "train_noise_multiplier": 1e-3, "memory_noise_multiplier": 1.0}
_AGEM: Final[dict[str, Any]] = {
    "steps": 1, "train_probability": 1.0, "memory_probability": 1.0, "noise_multiplier": 2.0, "clip_norm": 1.0,
    "memories": [],
}  # fmt: skip
_LABELS: Final = {"epsilon": 1.0, "delta": 1e-5}
_SUMS: Final = {"noise_multiplier": 1.5}
_MOMENTS: Final = {"noise_multiplier": 1.5, "moment_weight": 1e-3}
_PURE: Final = {"epsilon": 2.0}
_WINDOW: Final = {"k": 2, "w0": 20, "epsilon": 3.0}
_SCALES: Final = {"pane": 20, "levels": 3, "epsilon": 3.0}
_CONTINUAL: Final = {"pane": 20, "doublings": 1, "epsilon": 3.0}
_WINDOW_GAUSSIAN: Final = {"k": 2, "w0": 20, "noise": "gaussian", "mu": 0.7}
_SCALES_GAUSSIAN: Final = {"pane": 20, "levels": 3, "noise": "gaussian", "mu": 0.7}
_CONTINUAL_GAUSSIAN: Final = {"pane": 20, "doublings": 1, "noise": "gaussian", "mu": 0.7}
_CELLS: Final = {"scale": 0.5}
_GAUSSIAN_CELLS: Final = {"noise": "gaussian", "noise_multiplier": 2.0}
_GAUSSIAN_WEIGHTS: Final = {"noise": "gaussian", "noise_multiplier": 2.0}
_COORDINATES: Final = {"epsilon": 1.0, "weights": 3}
_SECRET: Final[dict[str, Any]] = {"noise_multiplier": 2.0, "steps": 1}
#: Pure promises hold at every δ; what the catalog charges is compared at the δ of all others.
_PUBLISHED_EPSILON: Final = 1.0

#: Every mechanism of the catalog, with its audits.
AUDITS: Final[Mapping[str, tuple[Audit, ...]]] = MappingProxyType(
    {
        "dp-sgd": (
            Audit(
                name="weights after one step",
                level="mechanism",
                what="threshold on the weight along the axis of a canary that is always clipped; likelihood ratio",
                promiser="catalog",
                epsilon=lambda: price("dp-sgd", _FULL),
                delta=DELTA,
                expected="consistent",
                gather=_gathered(coordinates.by_weights(_FULL)),
                samples=50_000,
                tested=3_000,
                gaussian=True,
            ),
            Audit(
                name="weights after sampled steps",
                level="mechanism",
                what="the same after four steps on Poisson samples; the price is for who sees each step",
                promiser="catalog",
                epsilon=lambda: price("dp-sgd", _SGD),
                delta=DELTA,
                expected="consistent",
                gather=_gathered(coordinates.by_weights(_SGD)),
                samples=50_000,
                tested=2_000,
            ),
            Audit(
                name="one run, white box",
                level="training",
                what="weights along the axes of canaries, each in by a coin",
                promiser="catalog",
                epsilon=lambda: price("dp-sgd", _LOUD),
                delta=DELTA,
                expected="consistent",
                gather=partial(coordinates.guessed, coordinates.by_weights(_LOUD)),
                samples=2_000,
                tested=1_000,
            ),
            Audit(
                name="one run, white box, sampled steps",
                level="training",
                what="the same after four steps on Poisson samples",
                promiser="catalog",
                epsilon=lambda: price("dp-sgd", _SGD),
                delta=DELTA,
                expected="consistent",
                gather=partial(coordinates.guessed, coordinates.by_weights(_SGD)),
                samples=2_000,
                tested=1_000,
            ),
            Audit(
                name="one run, black box",
                level="training",
                what="losses of the released model on canaries, each in by a coin",
                promiser="catalog",
                epsilon=lambda: price("dp-sgd", _LOUD),
                delta=DELTA,
                expected="consistent",
                gather=partial(coordinates.guessed, coordinates.by_loss(_LOUD)),
                samples=2_000,
                tested=1_000,
            ),
            Audit(
                name="one run, black box, perceptron",
                level="training",
                what="losses of random rows under random labels after forty steps; nothing is worst case",
                promiser="catalog",
                epsilon=lambda: price("dp-sgd", _LONG),
                delta=DELTA,
                expected="consistent",
                gather=partial(canaries.perceptron, _LONG),
                samples=2_000,
                tested=500,
            ),
            Audit(
                name="weights after one step, replaced datapoint",
                level="mechanism",
                what="the same for a canary with one of two labels, whose clipped gradient turns round",
                promiser="catalog",
                epsilon=lambda: price("dp-sgd", _QUIET, adjacency="replace_one"),
                delta=DELTA,
                expected="consistent",
                gather=_gathered(coordinates.by_weights(_QUIET, otherwise="1")),
                samples=50_000,
                tested=2_000,
                gaussian=True,
            ),
        ),
        "peft-ensemble": (
            Audit(
                name="head after one step",
                level="mechanism",
                what="threshold on the weight of the head along the axis of a canary; likelihood ratio",
                promiser="catalog",
                epsilon=lambda: price("peft-ensemble", _FULL),
                delta=DELTA,
                expected="consistent",
                gather=_gathered(coordinates.by_weights(_FULL, "peft-ensemble")),
                samples=50_000,
                tested=2_000,
                gaussian=True,
            ),
            Audit(
                name="one run, white box",
                level="training",
                what="weights of the head along the axes of canaries, each in by a coin",
                promiser="catalog",
                epsilon=lambda: price("peft-ensemble", _LOUD),
                delta=DELTA,
                expected="consistent",
                gather=partial(coordinates.guessed, coordinates.by_weights(_LOUD, "peft-ensemble")),
                samples=2_000,
                tested=1_000,
            ),
        ),
        "episodic-memory": (
            Audit(
                name="one run, canaries in the task",
                level="training",
                what="weights along the axes of canaries of the part train, beside a memory",
                promiser="catalog",
                epsilon=lambda: price("episodic-memory", _MEMORY),
                delta=DELTA,
                expected="consistent",
                gather=partial(canaries.episodic, _MEMORY, in_memory=False),
                samples=2_000,
                tested=1_000,
            ),
            Audit(
                name="one run, canaries in the memory",
                level="training",
                what="weights along the axes of canaries of the part memory, which show by the projection alone",
                promiser="catalog",
                epsilon=lambda: price("episodic-memory", _REMEMBERED, charge=1),
                delta=DELTA,
                expected="consistent",
                gather=partial(canaries.episodic, _REMEMBERED, in_memory=True),
                samples=2_000,
                tested=1_000,
            ),
        ),
        "cosine-classifier": (
            Audit(
                name="sum of one label",
                level="mechanism",
                what="threshold on the sum of a label that one datapoint carries; likelihood ratio",
                promiser="catalog",
                epsilon=lambda: price("cosine-classifier", _SUMS),
                delta=DELTA,
                expected="consistent",
                gather=_gathered(
                    coordinates.by_sums("cosine-classifier", _SUMS, {"feature_size": 1}), at_a_time=50_000
                ),
                samples=1_000_000,
                tested=50_000,
                gaussian=True,
            ),
            Audit(
                name="sum of one label, replaced datapoint",
                level="mechanism",
                what="the same for a datapoint with one of two opposite features",
                promiser="catalog",
                epsilon=lambda: price("cosine-classifier", _SUMS, adjacency="replace_one"),
                delta=DELTA,
                expected="consistent",
                gather=_gathered(
                    coordinates.by_sums("cosine-classifier", _SUMS, {"feature_size": 1}, otherwise=-1.0),
                    at_a_time=50_000,
                ),
                samples=1_000_000,
                tested=50_000,
                gaussian=True,
            ),
        ),
        "l2dp-ml": (
            Audit(
                name="sum of one label",
                level="mechanism",
                what="threshold on the class sum of a label that one datapoint carries, moments left aside",
                promiser="catalog",
                epsilon=lambda: price("l2dp-ml", _MOMENTS),
                delta=DELTA,
                expected="consistent",
                gather=_gathered(coordinates.by_sums("l2dp-ml", _MOMENTS, {"inputs": 1}), at_a_time=50_000),
                samples=1_000_000,
                tested=50_000,
                gaussian=True,
            ),
            Audit(
                name="one run, white box",
                level="training",
                what="class sums of canaries, each in by a coin and alone with its label",
                promiser="catalog",
                epsilon=lambda: price("l2dp-ml", _MOMENTS),
                delta=DELTA,
                expected="consistent",
                gather=partial(coordinates.guessed, coordinates.by_sums("l2dp-ml", _MOMENTS, {"inputs": 1})),
                samples=2_000,
                tested=1_000,
            ),
        ),
        "label-release": (
            Audit(
                name="one more datapoint of a label",
                level="mechanism",
                what="whether a label of ten datapoints is told, beside one of nine",
                promiser="catalog",
                epsilon=lambda: price("label-release", _LABELS),
                delta=DELTA,
                expected="consistent",
                gather=_gathered(coordinates.by_label(_LABELS, others=9), at_a_time=50_000),
                samples=1_000_000,
                tested=50_000,
            ),
            Audit(
                name="label space of a stream, released",
                level="sequence",
                what="whether the label of one datapoint is in any label set of three tasks that was released",
                promiser="catalog",
                epsilon=lambda: price("label-release", _LABELS),
                delta=DELTA,
                expected="consistent",
                gather=lambda samples, noise: label_sets.attack(label_sets.released(_LABELS, noise), samples),
                samples=5_000,
                tested=300,
            ),
            Audit(
                name="label space of a stream, derived from the data",
                level="sequence",
                what="the same where a label set is what occurs in the data, which the catalog offers nowhere",
                promiser="nobody",
                epsilon=lambda: price("label-release", _LABELS),
                delta=DELTA,
                expected="violation",
                gather=lambda samples, _noise: label_sets.attack(label_sets.derived, samples),
                samples=5_000,
                tested=300,
            ),
            *(
                Audit(
                    name=f"one more datapoint of a label, rule {rule}",
                    level="mechanism",
                    what="the same with another rule",
                    promiser="catalog",
                    epsilon=partial(price, "label-release", {**_LABELS, "rule": rule}),
                    delta=DELTA,
                    expected="consistent",
                    gather=_gathered(coordinates.by_label({**_LABELS, "rule": rule}, others=others), at_a_time=50_000),
                    samples=1_000_000,
                    tested=50_000,
                )
                for rule, others in (("optimal", 9), ("laplace", 9), ("binary", 9))
            ),
        ),
        "accuracy": (
            Audit(
                name="count of right answers",
                level="mechanism",
                what="likelihood ratio of the noisy count of right answers, of one row or none",
                promiser="catalog",
                epsilon=lambda: price("accuracy", _CELLS),
                delta=DELTA,
                expected="consistent",
                gather=partial(likelihood.accuracy, _CELLS),
                samples=10_000,
                tested=1_000,
            ),
            Audit(
                name="count of right answers, Gaussian noise",
                level="mechanism",
                what="threshold on the noisy count of right answers, of one row or none",
                promiser="catalog",
                epsilon=lambda: price("accuracy", _GAUSSIAN_CELLS),
                delta=DELTA,
                expected="consistent",
                gather=partial(likelihood.accuracy, _GAUSSIAN_CELLS),
                samples=10_000,
                tested=1_000,
            ),
        ),
        "output-perturbation": (
            Audit(
                name="weights around a wrong centre",
                level="mechanism",
                what="likelihood ratio of the weights, of one datapoint with the longest gradient there is, or none",
                promiser="catalog",
                epsilon=lambda: price("output-perturbation", _PURE),
                delta=DELTA,
                expected="consistent",
                gather=partial(likelihood.output_perturbation, _PURE),
                samples=20_000,
                tested=1_000,
            ),
            Audit(
                name="weights around a wrong centre, Gaussian noise",
                level="mechanism",
                what="the same with Gaussian noise",
                promiser="catalog",
                epsilon=lambda: price("output-perturbation", _GAUSSIAN_WEIGHTS),
                delta=DELTA,
                expected="consistent",
                gather=partial(likelihood.output_perturbation, _GAUSSIAN_WEIGHTS),
                samples=20_000,
                tested=1_000,
            ),
        ),
        "multi-resolution": (
            Audit(
                name="a life at every scale",
                level="sequence",
                what="likelihood ratio of all models that one datapoint enters, on the mechanism's own runs",
                promiser="catalog",
                epsilon=lambda: price("multi-resolution", {**_SCALES, "step": 0}),
                delta=DELTA,
                expected="consistent",
                gather=lambda samples, noise: lifetimes.streams(
                    "multi-resolution", _SCALES, canary=0, steps=(0, 1, 3), samples=samples, noise=noise
                ),
                samples=4_000,
                tested=200,
            ),
            Audit(
                name="a life at every scale, Gaussian noise",
                level="sequence",
                what="the same with Gaussian noise",
                promiser="catalog",
                epsilon=lambda: price("multi-resolution", {**_SCALES_GAUSSIAN, "step": 0}),
                delta=DELTA,
                expected="consistent",
                gather=lambda samples, noise: lifetimes.streams(
                    "multi-resolution", _SCALES_GAUSSIAN, canary=0, steps=(0, 1, 3), samples=samples, noise=noise
                ),
                samples=4_000,
                tested=200,
            ),
        ),
        "continual-release": (
            Audit(
                name="a life of bases and updates",
                level="sequence",
                what="likelihood ratio of all models that the worst-off datapoint enters, on the mechanism's own runs",
                promiser="catalog",
                epsilon=lambda: price("continual-release", {**_CONTINUAL, "step": 0}),
                delta=DELTA,
                expected="consistent",
                gather=lambda samples, noise: lifetimes.streams(
                    "continual-release", _CONTINUAL, canary=40, steps=(0, 1, 2, 6), samples=samples, noise=noise
                ),
                samples=4_000,
                tested=200,
            ),
            Audit(
                name="a life of bases and updates, Gaussian noise",
                level="sequence",
                what="the same with Gaussian noise",
                promiser="catalog",
                epsilon=lambda: price("continual-release", {**_CONTINUAL_GAUSSIAN, "step": 0}),
                delta=DELTA,
                expected="consistent",
                gather=lambda samples, noise: lifetimes.streams(
                    "continual-release",
                    _CONTINUAL_GAUSSIAN,
                    canary=40,
                    steps=(0, 1, 2, 6),
                    samples=samples,
                    noise=noise,
                ),
                samples=4_000,
                tested=200,
            ),
        ),
        "sliding-window": (
            Audit(
                name="a life of windows",
                level="sequence",
                what="likelihood ratio of all models of a window chain that one datapoint enters, on its own runs",
                promiser="catalog",
                epsilon=lambda: price("sliding-window", {**_WINDOW, "step": 0}),
                delta=DELTA,
                expected="consistent",
                gather=lambda samples, noise: lifetimes.streams(
                    "sliding-window", _WINDOW, canary=60, steps=(0, 1, 2), samples=samples, noise=noise
                ),
                samples=4_000,
                tested=200,
            ),
            Audit(
                name="a life of windows, noise as the paper's Algorithm 3 prints it (R4)",
                level="sequence",
                what="lifetime sum of the printed noise at the printed sensitivity, in one coordinate; w = 15 panes",
                promiser="paper",
                epsilon=lambda: _PUBLISHED_EPSILON,
                delta=0.0,
                expected="violation",
                gather=_printed(SlidingWindow(k=4, w0=1), SLIDING_WINDOW["R4"], steps=40, epsilon=_PUBLISHED_EPSILON),
                samples=200_000,
                tested=20_000,
            ),
            Audit(
                name="a life of windows, noise for every pane (R5)",
                level="sequence",
                what="the same in the reading under which the paper's theorem holds",
                promiser="paper",
                epsilon=lambda: _PUBLISHED_EPSILON,
                delta=0.0,
                expected="consistent",
                gather=_printed(SlidingWindow(k=4, w0=1), SLIDING_WINDOW["R5"], steps=40, epsilon=_PUBLISHED_EPSILON),
                samples=200_000,
                tested=20_000,
            ),
            Audit(
                name="a life of windows, Gaussian noise",
                level="sequence",
                what="the same as the first with Gaussian noise",
                promiser="catalog",
                epsilon=lambda: price("sliding-window", {**_WINDOW_GAUSSIAN, "step": 0}),
                delta=DELTA,
                expected="consistent",
                gather=lambda samples, noise: lifetimes.streams(
                    "sliding-window", _WINDOW_GAUSSIAN, canary=60, steps=(0, 1, 2), samples=samples, noise=noise
                ),
                samples=4_000,
                tested=200,
            ),
        ),
        "dp-agem-as-published": (
            Audit(
                name="a batch turned round, at our price",
                level="mechanism",
                what="weights after one step on a batch that one datapoint turns round; likelihood ratio",
                promiser="catalog",
                epsilon=lambda: price("dp-agem-as-published", _AGEM),
                delta=DELTA,
                expected="consistent",
                gather=partial(likelihood.whole_batches, _AGEM),
                samples=20_000,
                tested=1_000,
                gaussian=True,
            ),
            Audit(
                name="a batch turned round, at the paper's price",
                level="mechanism",
                what="the same, noise of all steps at once, against one clip norm of sensitivity, as the paper counts",
                promiser="paper",
                epsilon=lambda: account(Gaussian(noise_multiplier=_AGEM["noise_multiplier"]), delta=DELTA).upper,
                delta=DELTA,
                expected="violation",
                gather=partial(likelihood.whole_batches_at_once, _AGEM["noise_multiplier"]),
                samples=1_000_000,
                tested=50_000,
                gaussian=True,
            ),
        ),
        "dp-cl-as-published": (
            Audit(
                name="secret blocks over seventeen tasks",
                level="sequence",
                what=(
                    "likelihood ratio of all noisy reference gradients of sixteen later tasks, which Lemma 2 counts; "
                    "clipped gradients and noise by the mechanism's code, the noise for all runs at once"
                ),
                promiser="paper",
                epsilon=lambda: _lemma_2(**_SECRET),
                delta=DELTA,
                expected="violation",
                gather=lambda samples, noise: lifetimes.secret_blocks(
                    tasks=17, samples=samples, noise=noise, **_SECRET
                ),
                samples=200_000,
                tested=20_000,
            ),
        ),
        "l2dp-ml-as-published": (
            Audit(
                name="the noise is solved for",
                level="sequence",
                what="two releases and linear algebra: which of two records was in the first task",
                promiser="paper",
                epsilon=solved_noise.claim,
                delta=0.0,
                expected="violation",
                gather=solved_noise.two_releases,
                samples=5_000,
                tested=200,
            ),
            Audit(
                name="a single release is enough",
                level="mechanism",
                what="one release with hidden values that are not saturated: the rank of what the noise cannot hide",
                promiser="paper",
                epsilon=partial(solved_noise.claim, single=True),
                delta=0.0,
                expected="violation",
                gather=solved_noise.single_release,
                samples=5_000,
                tested=200,
            ),
        ),
        "output-perturbation-as-published": (
            Audit(
                name="Laplace noise on each coordinate, at our price",
                level="mechanism",
                what="likelihood ratio of the weights around a wrong centre, of one of two datapoints",
                promiser="catalog",
                epsilon=lambda: price("output-perturbation-as-published", _COORDINATES, adjacency="replace_one"),
                delta=DELTA,
                expected="consistent",
                gather=partial(likelihood.output_perturbation_as_published, _COORDINATES),
                samples=20_000,
                tested=1_000,
            ),
            Audit(
                name="Laplace noise on each coordinate, at the paper's price",
                level="mechanism",
                what="the same against the claimed ε: three coordinates cost up to √3 of it",
                promiser="paper",
                epsilon=lambda: _PUBLISHED_EPSILON,
                delta=0.0,
                expected="violation",
                gather=partial(likelihood.output_perturbation_as_published, _COORDINATES),
                samples=20_000,
                tested=6_000,
            ),
            Audit(
                name="a Lipschitz constant from the data, at the paper's price",
                level="mechanism",
                what="the same with L of the paper's experiments, which divides by the datapoints once more",
                promiser="paper",
                epsilon=lambda: _PUBLISHED_EPSILON,
                delta=0.0,
                expected="violation",
                gather=partial(
                    likelihood.output_perturbation_as_published, {**_COORDINATES, "lipschitz": "data"}, others=31
                ),
                samples=5_000,
                tested=300,
            ),
        ),
        "continual-release-as-published": (
            Audit(
                name="a life of bases and updates, as printed",
                level="sequence",
                what="lifetime sum of the printed noise at the printed sensitivity, in one coordinate; B = 8 b0",
                promiser="paper",
                epsilon=lambda: _PUBLISHED_EPSILON,
                delta=0.0,
                expected="violation",
                gather=_printed(
                    ContinualRelease(pane=1, base=8),
                    CONTINUAL_RELEASE["half_open"],
                    steps=120,
                    epsilon=_PUBLISHED_EPSILON,
                ),
                samples=1_000_000,
                tested=300_000,
            ),
        ),
        "fine-tuning": (
            Audit(
                name="one run, white box",
                level="training",
                what="which weights moved; nothing is promised, and ε = 3 stands for any promise",
                promiser="nobody",
                epsilon=lambda: 3.0,
                delta=DELTA,
                expected="violation",
                gather=partial(canaries.unprotected, "fine-tuning"),
                samples=2_000,
                tested=300,
            ),
        ),
        "a-gem": (
            Audit(
                name="one run, white box",
                level="training",
                what="which weights moved; nothing is promised, and ε = 3 stands for any promise",
                promiser="nobody",
                epsilon=lambda: 3.0,
                delta=DELTA,
                expected="violation",
                gather=partial(canaries.unprotected, "a-gem"),
                samples=2_000,
                tested=300,
            ),
        ),
    }
)
