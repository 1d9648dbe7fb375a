"""How the audits of `planned` gather scores, and how one is conducted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from accountant.audit import empirical, one_run
from accountant.audit.verdicts import Verdict, verdict
from accountant.streams.readings import CONTINUAL_RELEASE, SLIDING_WINDOW, worst_off
from accountant.streams.schedules import ContinualRelease, SlidingWindow
from trainers.attacks import canaries, coordinates, label_sets, lifetimes, likelihood, sequences, solved_noise
from trainers.attacks.planned import (
    AGEM,
    CELLS,
    CONTINUAL,
    CONTINUAL_GAUSSIAN,
    COORDINATES,
    FOURTH,
    FULL,
    GAUSSIAN_CELLS,
    GAUSSIAN_WEIGHTS,
    LABELS,
    LEARNED,
    LONG,
    LOUD,
    MEMORY,
    MOMENTS,
    MOMENTS_FOURTH,
    PLANS,
    PUBLISHED_EPSILON,
    PURE,
    QUIET,
    RARE,
    RECALLED,
    RELEASES,
    REMEMBERED,
    REMEMBERINGS,
    REMINDED,
    SAMPLED,
    SCALES,
    SCALES_GAUSSIAN,
    SECRET,
    SGD,
    SUMS,
    SUMS_FOURTH,
    TAUGHT,
    WINDOW,
    WINDOW_GAUSSIAN,
    Plan,
)
from trainers.attacks.runs import Guesses, Scores

if TYPE_CHECKING:
    from accountant.audit.empirical import LowerBound
    from accountant.streams.readings import Reading
    from accountant.streams.schedules import Schedule
    from trainers.noise import Noise

CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit(Plan):
    """A plan that can be carried out."""

    gather: Gather = field(repr=False)


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
        bound = empirical.from_scores(*scores, delta=audit.delta, confidence=confidence, promised=audit.law)
        if audit.law is not None:
            fitted = empirical.gaussian_from_scores(*scores, delta=audit.delta, confidence=confidence)
    epsilon = audit.epsilon()
    powerful = audit.power(confidence, epsilon=epsilon).suffices(samples)
    said = verdict(bound, epsilon=epsilon, delta=audit.delta, confidence=confidence, powerful=powerful)
    return Outcome(audit, epsilon, bound, fitted, said, scores)


def _printed(schedule: Schedule, reading: Reading, *, steps: int, epsilon: float) -> Callable[[int, Noise], Scores]:
    def gather(samples: int, noise: Noise) -> Scores:
        life, _ = worst_off(schedule, reading, steps=steps)
        return lifetimes.printed_noise(life.models, reading, epsilon, samples, noise)

    return gather


def _gathered(experiment: coordinates.Experiment, *, at_a_time: int = 1_000) -> Callable[[int, Noise], Scores]:
    return partial(coordinates.gathered, experiment, at_a_time=at_a_time)


Gather: TypeAlias = "Callable[[int, Noise], Scores | Guesses]"
_GATHER: Final[Mapping[tuple[str, str], Gather]] = {
    ("dp-sgd", "weights after one step"): _gathered(coordinates.by_weights(FULL)),
    ("dp-sgd", "weights after sampled steps"): _gathered(coordinates.by_weights(SGD)),
    ("dp-sgd", "weights after one sampled step"): _gathered(coordinates.by_weights(RARE)),
    ("dp-sgd", "one run, white box"): partial(coordinates.guessed, coordinates.by_weights(LOUD)),
    ("dp-sgd", "one run, white box, sampled steps"): partial(coordinates.guessed, coordinates.by_weights(SGD)),
    ("dp-sgd", "one run, black box"): partial(coordinates.guessed, coordinates.by_loss(LOUD)),
    ("dp-sgd", "one run, black box, perceptron"): partial(canaries.perceptron, LONG),
    ("dp-sgd", "weights after one step, replaced datapoint"): _gathered(coordinates.by_weights(QUIET, otherwise="1")),
    ("dp-sgd", "all releases of a life, each from the last"): _gathered(
        sequences.each_from_the_last(SAMPLED, releases=RELEASES)
    ),
    ("dp-sgd", "all releases of a life, each from the start"): _gathered(
        sequences.each_from_the_start(FOURTH, "dp-sgd", releases=RELEASES)
    ),
    ("peft-ensemble", "head after one step"): _gathered(coordinates.by_weights(FULL, "peft-ensemble")),
    ("peft-ensemble", "head after one sampled step"): _gathered(coordinates.by_weights(RARE, "peft-ensemble")),
    ("peft-ensemble", "one run, white box"): partial(
        coordinates.guessed, coordinates.by_weights(LOUD, "peft-ensemble")
    ),
    ("peft-ensemble", "one run, black box"): partial(coordinates.guessed, coordinates.by_loss(LOUD, "peft-ensemble")),
    ("peft-ensemble", "all members of a life"): _gathered(
        sequences.each_from_the_start(FOURTH, "peft-ensemble", releases=RELEASES)
    ),
    ("episodic-memory", "weights after one step, canary in the task"): _gathered(
        coordinates.by_weights(TAUGHT, "episodic-memory")
    ),
    ("episodic-memory", "weights after one step of replay, canary in the memory"): _gathered(
        coordinates.by_replay(REMINDED)
    ),
    ("episodic-memory", "projection of one step, canary in the memory"): partial(
        likelihood.remembered, REMINDED["memory_noise_multiplier"]
    ),
    ("episodic-memory", "one run, canaries in the task"): partial(canaries.episodic, MEMORY, in_memory=False),
    ("episodic-memory", "one run, canaries in the memory"): partial(canaries.episodic, REMEMBERED, in_memory=True),
    ("episodic-memory", "one run, black box, canaries in the task"): partial(
        canaries.episodic, MEMORY, in_memory=False, black_box=True
    ),
    ("episodic-memory", "one run, black box, canaries in the memory"): partial(
        canaries.episodic, REMEMBERED, in_memory=True, black_box=True
    ),
    ("episodic-memory", "all releases of a life, in a task and then in memories"): partial(
        sequences.with_memories, LEARNED, RECALLED, releases=REMEMBERINGS
    ),
    ("cosine-classifier", "sum of one label"): _gathered(
        coordinates.by_sums("cosine-classifier", SUMS, {"feature_size": 1}), at_a_time=50_000
    ),
    ("cosine-classifier", "sum of one label, replaced datapoint"): _gathered(
        coordinates.by_sums("cosine-classifier", SUMS, {"feature_size": 1}, otherwise=-1.0),
        at_a_time=50_000,
    ),
    ("cosine-classifier", "all sums of a life"): _gathered(
        sequences.all_sums("cosine-classifier", SUMS_FOURTH, {"feature_size": 1}, releases=RELEASES), at_a_time=50_000
    ),
    ("cosine-classifier", "sums of one task less those of another"): _gathered(
        sequences.one_from_the_other("cosine-classifier", SUMS, {"feature_size": 1}), at_a_time=50_000
    ),
    ("l2dp-ml", "sum of one label"): _gathered(
        coordinates.by_sums("l2dp-ml", MOMENTS, {"inputs": 1}), at_a_time=50_000
    ),
    ("l2dp-ml", "one run, white box"): partial(
        coordinates.guessed, coordinates.by_sums("l2dp-ml", MOMENTS, {"inputs": 1})
    ),
    ("l2dp-ml", "one run, black box"): partial(
        coordinates.guessed, coordinates.by_answers("l2dp-ml", MOMENTS, {"inputs": 1})
    ),
    ("l2dp-ml", "all statistics of a life"): _gathered(
        sequences.all_sums("l2dp-ml", MOMENTS_FOURTH, {"inputs": 1}, releases=RELEASES), at_a_time=50_000
    ),
    ("l2dp-ml", "sums of one task less those of another"): _gathered(
        sequences.one_from_the_other("l2dp-ml", MOMENTS, {"inputs": 1}), at_a_time=50_000
    ),
    ("label-release", "one more datapoint of a label"): _gathered(
        coordinates.by_label(LABELS, others=9), at_a_time=50_000
    ),
    ("label-release", "label space of a stream, released"): lambda samples, noise: label_sets.attack(
        label_sets.released(LABELS, noise), samples
    ),
    ("label-release", "label space of a stream, derived from the data"): lambda samples, _noise: label_sets.attack(
        label_sets.derived, samples
    ),
    ("label-release", "one more datapoint of a label, rule optimal"): _gathered(
        coordinates.by_label({**LABELS, "rule": "optimal"}, others=9), at_a_time=50_000
    ),
    ("label-release", "one more datapoint of a label, rule laplace"): _gathered(
        coordinates.by_label({**LABELS, "rule": "laplace"}, others=9), at_a_time=50_000
    ),
    ("label-release", "one more datapoint of a label, rule binary"): _gathered(
        coordinates.by_label({**LABELS, "rule": "binary"}, others=9), at_a_time=50_000
    ),
    ("accuracy", "count of right answers"): partial(likelihood.accuracy, CELLS),
    ("accuracy", "count of right answers, Gaussian noise"): partial(likelihood.accuracy, GAUSSIAN_CELLS),
    ("output-perturbation", "weights around a wrong centre"): partial(likelihood.output_perturbation, PURE),
    ("output-perturbation", "weights around a wrong centre, Gaussian noise"): partial(
        likelihood.output_perturbation, GAUSSIAN_WEIGHTS
    ),
    ("multi-resolution", "a life at every scale"): lambda samples, noise: lifetimes.streams(
        "multi-resolution", SCALES, canary=0, steps=(0, 1, 3), samples=samples, noise=noise
    ),
    ("multi-resolution", "a life at every scale, Gaussian noise"): lambda samples, noise: lifetimes.streams(
        "multi-resolution", SCALES_GAUSSIAN, canary=0, steps=(0, 1, 3), samples=samples, noise=noise
    ),
    ("continual-release", "a life of bases and updates"): lambda samples, noise: lifetimes.streams(
        "continual-release", CONTINUAL, canary=1_000, steps=(0, 1, 2, 6, 14), samples=samples, noise=noise
    ),
    ("continual-release", "a life of bases and updates, Gaussian noise"): lambda samples, noise: lifetimes.streams(
        "continual-release",
        CONTINUAL_GAUSSIAN,
        canary=1_000,
        steps=(0, 1, 2, 6, 14),
        samples=samples,
        noise=noise,
    ),
    ("sliding-window", "a life of windows"): lambda samples, noise: lifetimes.streams(
        "sliding-window", WINDOW, canary=3_000, steps=(0, 1, 2), samples=samples, noise=noise
    ),
    ("sliding-window", "a life of windows, noise as the paper's Algorithm 3 prints it (R4)"): _printed(
        SlidingWindow(k=4, w0=1), SLIDING_WINDOW["R4"], steps=40, epsilon=PUBLISHED_EPSILON
    ),
    ("sliding-window", "a life of windows, noise for every pane (R5)"): _printed(
        SlidingWindow(k=4, w0=1), SLIDING_WINDOW["R5"], steps=40, epsilon=PUBLISHED_EPSILON
    ),
    ("sliding-window", "a life of windows, Gaussian noise"): lambda samples, noise: lifetimes.streams(
        "sliding-window", WINDOW_GAUSSIAN, canary=3_000, steps=(0, 1, 2), samples=samples, noise=noise
    ),
    ("dp-agem-as-published", "a batch turned round, at our price"): partial(likelihood.whole_batches, AGEM),
    ("dp-agem-as-published", "a batch turned round, at the paper's price"): partial(
        likelihood.whole_batches_at_once, AGEM["noise_multiplier"]
    ),
    ("dp-cl-as-published", "secret blocks over seventeen tasks"): lambda samples, noise: lifetimes.secret_blocks(
        tasks=17, samples=samples, noise=noise, **SECRET
    ),
    ("l2dp-ml-as-published", "the noise is solved for"): solved_noise.two_releases,
    ("l2dp-ml-as-published", "a single release is enough"): solved_noise.single_release,
    ("l2dp-ml-as-published", "one run, white box"): solved_noise.one_run,
    ("output-perturbation-as-published", "Laplace noise on each coordinate, at our price"): partial(
        likelihood.output_perturbation_as_published, COORDINATES
    ),
    ("output-perturbation-as-published", "Laplace noise on each coordinate, at the paper's price"): partial(
        likelihood.output_perturbation_as_published, COORDINATES
    ),
    ("output-perturbation-as-published", "a Lipschitz constant from the data, at the paper's price"): partial(
        likelihood.output_perturbation_as_published, {**COORDINATES, "lipschitz": "data"}, others=31
    ),
    ("continual-release-as-published", "a life of bases and updates, as printed"): _printed(
        ContinualRelease(pane=1, base=8),
        CONTINUAL_RELEASE["half_open"],
        steps=120,
        epsilon=PUBLISHED_EPSILON,
    ),
    ("fine-tuning", "one run, white box"): partial(canaries.unprotected, "fine-tuning"),
    ("a-gem", "one run, white box"): partial(canaries.unprotected, "a-gem"),
}

#: Every mechanism of the catalog, with its audits.
AUDITS: Final[Mapping[str, tuple[Audit, ...]]] = MappingProxyType(
    {
        name: tuple(
            Audit(**{each.name: getattr(plan, each.name) for each in fields(plan)}, gather=_GATHER[name, plan.name])
            for plan in plans
        )
        for name, plans in PLANS.items()
    }
)
