"""Mechanisms that are weakened behind the auditor's back: the same audit that finds nothing wrong now finds it.

What is proved stays consistent (`test_attacks.py`); that says little unless the audit would have seen a fault. So every
audit of a promise of the catalog has twins here, in which the code that runs is not the code that was proved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from accountant.audit.series import LEAST_SAMPLES
from accountant.audit.verdicts import confidence_of
from accountant.partition import per_label
from trainers import erm, private_sgd
from trainers.attacks import lifetimes
from trainers.attacks.planned import offered
from trainers.attacks.registry import AUDITS, CONFIDENCE, Audit, conduct
from trainers.attacks.runs import Guesses
from trainers.clipping import clipping
from trainers.mechanisms import cosine_classifier, l2dp_ml, label_release, output_perturbation_as_published
from trainers.noise import Noise

Patch = pytest.MonkeyPatch
#: Weakens what runs, and gives the source of chance that it runs with.
Weakness = Callable[[Patch], type[Noise]]
MARGIN: Final = 1.1  # a twin's lower bound, relative to the promise


class Hushed(Noise):
    """Noise that is smaller than what it is asked to be."""

    share = 0.5
    _plain: Noise | None = None

    def _fill(self, drawn: torch.Tensor) -> None:
        super()._fill(drawn)
        drawn.mul_(self.share)

    def stream(
        self, size: int, *, times: int, kept: int = 1, device: torch.device | str = "cpu"
    ) -> Iterator[torch.Tensor]:
        for vector in super().stream(size, times=times, kept=kept, device=device):
            yield vector.mul_(self.share)

    def spherical_laplace(self, size: int, scale: float) -> torch.Tensor:
        if self._plain is None:  # whose normals are whole: a norm is drawn from them
            self._plain = Noise(self.words(4).tobytes(), releasable=False)
        return self._plain.spherical_laplace(size, self.share * scale)


class Reused(Noise):
    """Noise that is drawn once and is the same at every call."""

    def noisy(self, exact: torch.Tensor, deviation: float) -> torch.Tensor:
        return Noise.repeatable(1).noisy(exact, deviation)


class Everybody(Noise):
    """Samples that leave nobody out."""

    def chosen(self, count: int, probability: float) -> NDArray[np.int64]:
        del probability
        return np.arange(count, dtype=np.int64)


def hushed(share: float) -> Weakness:
    def weakened(patch: Patch) -> type[Noise]:
        patch.setattr(Hushed, "share", share)
        return Hushed

    return weakened


def unsampled(_patch: Patch) -> type[Noise]:
    return Everybody


def reused(_patch: Patch) -> type[Noise]:
    return Reused


def as_it_is(_patch: Patch) -> type[Noise]:
    """Nothing needs to be weakened: the promise is false of what runs."""
    return Noise


def unclipped(patch: Patch) -> type[Noise]:
    """Gradients ten times as long as the clip norm are left as they are."""

    @contextmanager
    def lax(module: torch.nn.Module, **given: Any) -> Iterator[Callable[..., Any]]:
        with clipping(module, **given) as sums:
            yield lambda x, y, *, clip_norm, **given: sums(x, y, clip_norm=10 * clip_norm, **given)

    patch.setattr(private_sgd, "clipping", lax)
    return Noise


def unscaled_rows(patch: Patch) -> type[Noise]:
    """Rows longer than the radius are left as they are."""
    patch.setattr(erm, "_scales", lambda x, _radius: torch.ones(len(x), dtype=torch.float64))
    return Noise


def wrong_size(patch: Patch) -> type[Noise]:
    """Noise for blocks that are three times as long as they are."""
    real = erm.Objective.contribution

    def contribution(self: erm.Objective, *, slots: int, **given: Any) -> float:
        return real(self, slots=3 * slots, **given)

    patch.setattr(erm.Objective, "contribution", contribution)
    return Noise


def unnormalised_sums(patch: Patch) -> type[Noise]:
    patch.setattr(cosine_classifier, "unit_rows", lambda features, **_: features.to(torch.float64))
    return Noise


def unnormalised_statistics(patch: Patch) -> type[Noise]:
    patch.setattr(l2dp_ml, "unit_features", lambda x, _feature_map: x)
    return Noise


def easily_told(patch: Patch) -> type[Noise]:
    """Labels told as if almost half as much again had been paid."""
    patch.setattr(label_release, "per_label", lambda *, epsilon, **given: per_label(epsilon=1.4 * epsilon, **given))
    return Noise


def half_the_scale(patch: Patch) -> type[Noise]:
    """Laplace noise on each coordinate of half the scale that it is asked for."""
    real = erm.with_laplace_on_each_coordinate

    def lax(exact: torch.Tensor, scale: float, *, noise: Noise) -> torch.Tensor:
        return real(exact, scale / 2, noise=noise)

    for module in (erm, lifetimes, output_perturbation_as_published):
        patch.setattr(module, "with_laplace_on_each_coordinate", lax)
    return Noise


def all_told(patch: Patch) -> type[Noise]:
    """Every label that occurs in the data."""
    patch.setattr(label_release, "told", lambda sizes, _rule, _noise: sizes > 0)
    return Noise


class Twin(NamedTuple):
    """A weakness, and at how many samples it must show: unless said, the fewest that its plan names."""

    weakness: Weakness
    samples: int | None = None


HALF: Final = hushed(0.5)
THIRD: Final = hushed(1 / 3)
QUARTER: Final = hushed(0.25)
EIGHTH: Final = hushed(0.125)
ITSELF: Final = {"the mechanism as it is": Twin(as_it_is)}
#: Every audit, with what it must see.
TWINS: Final[Mapping[tuple[str, str], Mapping[str, Twin]]] = {
    ("dp-sgd", "weights after one step"): {
        "a third of the noise": Twin(THIRD),
        "half the noise": Twin(HALF, 50_000),
        "no clipping": Twin(unclipped),
    },
    ("dp-sgd", "weights after sampled steps"): {
        "a third of the noise": Twin(THIRD),
        "half the noise": Twin(HALF, 50_000),
    },
    ("dp-sgd", "weights after one sampled step"): {"no sampling": Twin(unsampled)},
    ("dp-sgd", "one run, white box"): {"an eighth of the noise": Twin(EIGHTH)},
    ("dp-sgd", "one run, white box, sampled steps"): {"an eighth of the noise": Twin(EIGHTH)},
    ("dp-sgd", "one run, black box"): {"an eighth of the noise": Twin(EIGHTH)},
    ("dp-sgd", "weights after one step, replaced datapoint"): {
        "a third of the noise": Twin(THIRD),
        "half the noise": Twin(HALF, 50_000),
    },
    ("dp-sgd", "all releases of a life, each from the last"): {
        "a third of the noise": Twin(THIRD),
        "no clipping": Twin(unclipped),
    },
    ("dp-sgd", "all releases of a life, each from the start"): {"a third of the noise": Twin(THIRD)},
    ("peft-ensemble", "head after one step"): {
        "a third of the noise": Twin(THIRD),
        "half the noise": Twin(HALF, 50_000),
        "no clipping": Twin(unclipped),
    },
    ("peft-ensemble", "head after one sampled step"): {"no sampling": Twin(unsampled)},
    ("peft-ensemble", "one run, white box"): {"an eighth of the noise": Twin(EIGHTH)},
    ("peft-ensemble", "one run, black box"): {"an eighth of the noise": Twin(EIGHTH)},
    ("peft-ensemble", "all members of a life"): {"a third of the noise": Twin(THIRD)},
    ("episodic-memory", "weights after one step, canary in the task"): {
        "a third of the noise": Twin(THIRD),
        "half the noise": Twin(HALF, 50_000),
        "no clipping": Twin(unclipped),
    },
    ("episodic-memory", "projection of one step, canary in the memory"): {
        "a third of the noise": Twin(THIRD),
        "no clipping": Twin(unclipped),
    },
    ("episodic-memory", "one run, canaries in the task"): {"an eighth of the noise": Twin(EIGHTH)},
    ("episodic-memory", "one run, canaries in the memory"): {"an eighth of the noise": Twin(EIGHTH)},
    ("episodic-memory", "one run, black box, canaries in the task"): {"an eighth of the noise": Twin(EIGHTH)},
    ("episodic-memory", "one run, black box, canaries in the memory"): {"an eighth of the noise": Twin(EIGHTH)},
    ("episodic-memory", "all releases of a life, in a task and then in memories"): {
        "an eighth of the noise": Twin(EIGHTH)
    },
    ("cosine-classifier", "sum of one label"): {
        "a third of the noise": Twin(THIRD),
        "half the noise": Twin(HALF, 100_000),
        "no normalisation": Twin(unnormalised_sums),
    },
    ("cosine-classifier", "sum of one label, replaced datapoint"): {"a third of the noise": Twin(THIRD)},
    ("cosine-classifier", "all sums of a life"): {
        "a third of the noise": Twin(THIRD),
        "half the noise": Twin(HALF, 100_000),
    },
    ("cosine-classifier", "sums of one task less those of another"): {"noise that is reused": Twin(reused)},
    ("l2dp-ml", "sum of one label"): {
        "a third of the noise": Twin(THIRD),
        "half the noise": Twin(HALF, 100_000),
        "no normalisation": Twin(unnormalised_statistics),
    },
    ("l2dp-ml", "one run, white box"): {"an eighth of the noise": Twin(EIGHTH)},
    ("l2dp-ml", "one run, black box"): {"an eighth of the noise": Twin(EIGHTH)},
    ("l2dp-ml", "all statistics of a life"): {
        "a third of the noise": Twin(THIRD),
        "half the noise": Twin(HALF, 100_000),
    },
    ("l2dp-ml", "sums of one task less those of another"): {"noise that is reused": Twin(reused)},
    ("label-release", "one more datapoint of a label"): {"telling labels too easily": Twin(easily_told)},
    ("label-release", "label space of a stream, released"): {"telling every label of the data": Twin(all_told)},
    ("label-release", "one more datapoint of a label, rule optimal"): {"telling labels too easily": Twin(easily_told)},
    ("label-release", "one more datapoint of a label, rule laplace"): {"telling labels too easily": Twin(easily_told)},
    ("label-release", "one more datapoint of a label, rule binary"): {"telling labels too easily": Twin(easily_told)},
    ("accuracy", "count of right answers"): {"a third of the noise": Twin(THIRD), "half the noise": Twin(HALF, 2_000)},
    ("accuracy", "count of right answers, Gaussian noise"): {
        "a third of the noise": Twin(THIRD),
        "half the noise": Twin(HALF, 100_000),
    },
    ("output-perturbation", "weights around a wrong centre"): {
        "a third of the noise": Twin(THIRD),
        "half the noise": Twin(HALF, 2_000),
        "rows of any length": Twin(unscaled_rows),
    },
    ("output-perturbation", "weights around a wrong centre, Gaussian noise"): {
        "a third of the noise": Twin(THIRD),
        "half the noise": Twin(HALF, 100_000),
    },
    ("multi-resolution", "a life at every scale"): {
        "a third of the noise": Twin(THIRD),
        "noise for longer blocks": Twin(wrong_size),
    },
    ("multi-resolution", "a life at every scale, Gaussian noise"): {
        "a third of the noise": Twin(THIRD),
        "half the noise": Twin(HALF, 100_000),
    },
    ("continual-release", "a life of bases and updates"): {"a quarter of the noise": Twin(QUARTER)},
    ("continual-release", "a life of bases and updates, Gaussian noise"): {
        "a third of the noise": Twin(THIRD),
        "half the noise": Twin(HALF, 100_000),
    },
    ("sliding-window", "a life of windows"): {
        "a third of the noise": Twin(THIRD),
        "rows of any length": Twin(unscaled_rows),
    },
    ("sliding-window", "a life of windows, Gaussian noise"): {
        "a third of the noise": Twin(THIRD),
        "half the noise": Twin(HALF, 100_000),
    },
    ("episodic-memory", "weights after one step of replay, canary in the memory"): {
        "a third of the noise": Twin(THIRD),
        "no clipping": Twin(unclipped),
    },
    ("dp-agem-as-published", "a batch turned round, at our price"): {"an eighth of the noise": Twin(EIGHTH)},
    ("output-perturbation-as-published", "Laplace noise on each coordinate, at our price"): {
        "half the scale of the noise": Twin(half_the_scale)
    },
    ("sliding-window", "a life of windows, noise for every pane (R5)"): {
        "half the scale of the noise": Twin(half_the_scale)
    },
    **{
        (name, audit.name): ITSELF
        for name, audits in AUDITS.items()
        for audit in audits
        if audit.expected == "violation"
    },
}
#: Audits that see nothing, whatever runs: what an ordinary outsider gets to see of an ordinary model.
BLIND: Final = {("dp-sgd", "one run, black box, perceptron")}


@pytest.mark.slow
def test_every_audit_has_a_twin_and_says_which() -> None:
    """The plan's own word of what it would see is one of those that are caught here; an audit without one is blind."""
    every = {(name, audit.name): audit for name, audits in AUDITS.items() for audit in audits}
    assert set(TWINS) == set(every) - BLIND
    for key, audit in every.items():
        if key in BLIND:
            assert (audit.twin, audit.fewest, audit.expected) == ("", None, "inconclusive")
            assert audit.name not in {plan.name for plan in offered(key[0])}, "it would be no evidence"
        else:
            assert TWINS[key][audit.twin].samples is None
            assert audit.fewest is not None
            assert LEAST_SAMPLES <= audit.fewest <= audit.tested <= audit.samples
            assert (audit.right is not None) == isinstance(audit.gather(20, Noise.repeatable(1)), Guesses)


#: Mechanisms of which each sample is a run of its own.
RUNS: Final = {"dp-agem-as-published", "output-perturbation-as-published", "sliding-window", "continual-release"}
EVERY: Final = [(*key, what, twin) for key, twins in TWINS.items() for what, twin in twins.items()]


def found(name: str, audit: str) -> Audit:
    [each] = [each for each in AUDITS[name] if each.name == audit]
    return each


#: Whose runs train many models: their twins are looked for where time is no matter.
LENGTHY: Final = {"multi-resolution", "continual-release", "sliding-window", "output-perturbation-as-published"}


@pytest.mark.parametrize(
    ("name", "audit", "twin"),
    [
        pytest.param(
            name, audit, twin, id=f"{name}: {audit}: {what}",
            marks=pytest.mark.full if name in LENGTHY else pytest.mark.slow,
        )
        for name, audit, what, twin in EVERY
    ],
)  # fmt: skip
def test_twins_are_caught(name: str, audit: str, twin: Twin, monkeypatch: Patch) -> None:
    """By counting alone: at the fewest samples of the plan in a population's first audit, three times of three.

    Where each sample is a run of its own, once. Those with a number of their own at 95 %, with a margin.
    """
    attack = found(name, audit)
    promised, chance = attack.epsilon(), twin.weakness(monkeypatch)
    assert attack.fewest is not None
    confidence, margin = (confidence_of(1), 1.0) if twin.samples is None else (CONFIDENCE, MARGIN)
    seeds = (1, 2, 3) if twin.samples is None and name not in RUNS else (1,)
    for seed in seeds:
        outcome = conduct(
            attack, samples=twin.samples or attack.fewest, noise=chance.repeatable(seed), confidence=confidence
        )
        assert outcome.verdict == "violation", f"{outcome.bound} against {outcome.epsilon}"
        assert outcome.epsilon == promised, "the auditor is told what it is always told"
        assert outcome.bound.epsilon_lower > margin * promised


@pytest.mark.slow
@pytest.mark.parametrize("number", [3, 30, 300])
@pytest.mark.parametrize(
    ("name", "audit"),
    [
        ("dp-sgd", "weights after one step"),
        ("cosine-classifier", "sum of one label"),
        ("label-release", "one more datapoint of a label"),
        ("accuracy", "count of right answers"),
        ("l2dp-ml", "one run, white box"),
        ("l2dp-ml-as-published", "one run, white box"),
    ],
)
def test_later_audits_say_how_many_samples_their_confidence_takes(
    name: str, audit: str, number: int, monkeypatch: Patch
) -> None:
    """A twin is caught with that many; where the plan says never, what would be consistent is inconclusive."""
    attack = found(name, audit)
    confidence, epsilon = confidence_of(number), attack.epsilon()
    power = attack.power(confidence, epsilon=epsilon)
    assert power.twin == attack.twin
    if power.samples is None:
        assert attack.right is not None, "more samples always show more, but for canaries of one run"
        outcome = conduct(attack, samples=attack.samples, noise=Noise.repeatable(1), confidence=confidence)
        assert outcome.verdict == "inconclusive"
        return
    assert attack.fewest is not None
    assert power.samples > attack.fewest
    chance = TWINS[name, audit][attack.twin].weakness(monkeypatch)
    for seed in (1, 2):
        outcome = conduct(attack, samples=power.samples, noise=chance.repeatable(seed), confidence=confidence)
        assert outcome.verdict == "violation", f"{outcome.bound} against {epsilon}"


@pytest.mark.parametrize("samples", [100, 300, 1_000])
@pytest.mark.parametrize("share", [0.5, 0.25])
def test_few_samples_of_a_weakened_mechanism_are_never_consistent(
    share: float, samples: int, monkeypatch: Patch
) -> None:
    """Weights after one step show half the noise, and a quarter of it, with more samples than these."""
    noise = hushed(share)(monkeypatch).repeatable(1)
    outcome = conduct(found("dp-sgd", "weights after one step"), samples=samples, noise=noise)
    assert outcome.verdict in {"inconclusive", "violation"}


def test_what_sees_nothing_says_nothing(monkeypatch: Patch) -> None:
    """A thousandth of the noise does not show in the losses of a perceptron, so that all of it says nothing either."""
    for key in BLIND:
        outcome = conduct(found(*key), samples=500, noise=hushed(1e-3)(monkeypatch).repeatable(1))
        assert outcome.verdict == "inconclusive"
        assert outcome.bound.epsilon_lower < 0.1 * outcome.epsilon


@pytest.mark.parametrize("name", ["cosine-classifier", "l2dp-ml"])
def test_noise_that_is_reused_is_seen_by_nobody_who_looks_at_one_release(name: str) -> None:
    """Why sequences are attacked: each release is as noisy as it should be, and their difference has no noise."""
    alone, together = (
        next(audit for audit in AUDITS[name] if audit.name == each)
        for each in ("sum of one label", "sums of one task less those of another")
    )
    assert alone.epsilon() == together.epsilon()
    assert conduct(alone, samples=25_000, noise=Reused.repeatable(1)).verdict == "consistent"
    assert conduct(together, samples=1_000, noise=Reused.repeatable(1)).verdict == "violation"
    assert conduct(together, samples=25_000, noise=Noise.repeatable(1)).verdict == "consistent"
