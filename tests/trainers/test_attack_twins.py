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

from accountant.partition import per_label
from trainers import erm, private_sgd
from trainers.attacks.registry import AUDITS, conduct
from trainers.catalog import CATALOG
from trainers.clipping import clipping
from trainers.mechanisms import cosine_classifier, l2dp_ml, label_release
from trainers.noise import Noise

Patch = pytest.MonkeyPatch
#: Weakens what runs, and gives the chance that it runs with.
Weakness = Callable[[Patch], Noise]
MARGIN: Final = 1.1  # a twin's lower bound, relative to the promise


class Hushed(Noise):
    """Noise that is smaller than what it is asked to be."""

    share = 0.5
    _plain: Noise | None = None

    def _fill(self, drawn: torch.Tensor) -> None:
        super()._fill(drawn)
        drawn.mul_(self.share)

    @contextmanager
    def ahead(
        self, size: int, *, times: int, device: torch.device | str = "cpu"
    ) -> Iterator[Callable[[], torch.Tensor]]:
        with super().ahead(size, times=times, device=device) as draw:
            yield lambda: draw().mul_(self.share)

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
    def weakened(patch: Patch) -> Noise:
        patch.setattr(Hushed, "share", share)
        return Hushed.repeatable(1)

    return weakened


def unsampled(_patch: Patch) -> Noise:
    return Everybody.repeatable(1)


def reused(_patch: Patch) -> Noise:
    return Reused.repeatable(1)


def unclipped(patch: Patch) -> Noise:
    """Gradients ten times as long as the clip norm are left as they are."""

    @contextmanager
    def lax(module: torch.nn.Module, **given: Any) -> Iterator[Callable[..., Any]]:
        with clipping(module, **given) as sums:
            yield lambda x, y, *, clip_norm, **given: sums(x, y, clip_norm=10 * clip_norm, **given)

    patch.setattr(private_sgd, "clipping", lax)
    return Noise.repeatable(1)


def unscaled_rows(patch: Patch) -> Noise:
    """Rows longer than the radius are left as they are."""
    patch.setattr(erm, "_scales", lambda x, _radius: torch.ones(len(x), dtype=torch.float64))
    return Noise.repeatable(1)


def wrong_size(patch: Patch) -> Noise:
    """Noise for blocks that are three times as long as they are."""
    real = erm.Objective.contribution

    def contribution(self: erm.Objective, *, slots: int, **given: Any) -> float:
        return real(self, slots=3 * slots, **given)

    patch.setattr(erm.Objective, "contribution", contribution)
    return Noise.repeatable(1)


def unnormalised_sums(patch: Patch) -> Noise:
    patch.setattr(cosine_classifier, "unit_rows", lambda features, **_: features.to(torch.float64))
    return Noise.repeatable(1)


def unnormalised_statistics(patch: Patch) -> Noise:
    patch.setattr(l2dp_ml, "unit_features", lambda x, _feature_map: x)
    return Noise.repeatable(1)


def easily_told(patch: Patch) -> Noise:
    """Labels told as if almost half as much again had been paid."""
    patch.setattr(label_release, "per_label", lambda *, epsilon, **given: per_label(epsilon=1.4 * epsilon, **given))
    return Noise.repeatable(1)


def all_told(patch: Patch) -> Noise:
    """Every label that occurs in the data."""
    patch.setattr(label_release, "told", lambda sizes, _rule, _noise: sizes > 0)
    return Noise.repeatable(1)


class Twin(NamedTuple):
    weakness: Weakness
    samples: int


HALF: Final = hushed(0.5)
THIRD: Final = hushed(1 / 3)
EIGHTH: Final = hushed(0.125)
#: Every audit of what the catalog promises of a proved mechanism, with what it must see.
TWINS: Final[Mapping[tuple[str, str], Mapping[str, Twin]]] = {
    ("dp-sgd", "weights after one step"): {
        "half the noise": Twin(HALF, 50_000),
        "no clipping": Twin(unclipped, 3_000),
    },
    ("dp-sgd", "weights after sampled steps"): {
        "half the noise": Twin(HALF, 50_000),
    },
    ("dp-sgd", "weights after one sampled step"): {"no sampling": Twin(unsampled, 30_000)},
    ("dp-sgd", "one run, white box"): {"an eighth of the noise": Twin(EIGHTH, 2_000)},
    ("dp-sgd", "one run, white box, sampled steps"): {"an eighth of the noise": Twin(EIGHTH, 2_000)},
    ("dp-sgd", "one run, black box"): {"an eighth of the noise": Twin(EIGHTH, 2_000)},
    ("dp-sgd", "weights after one step, replaced datapoint"): {"half the noise": Twin(HALF, 50_000)},
    ("dp-sgd", "all releases of a life, each from the last"): {
        "a third of the noise": Twin(THIRD, 6_000),
        "no clipping": Twin(unclipped, 1_000),
    },
    ("dp-sgd", "all releases of a life, each from the start"): {"a third of the noise": Twin(THIRD, 6_000)},
    ("peft-ensemble", "head after one step"): {
        "half the noise": Twin(HALF, 50_000),
        "no clipping": Twin(unclipped, 3_000),
    },
    ("peft-ensemble", "head after one sampled step"): {"no sampling": Twin(unsampled, 30_000)},
    ("peft-ensemble", "one run, white box"): {"an eighth of the noise": Twin(EIGHTH, 2_000)},
    ("peft-ensemble", "one run, black box"): {"an eighth of the noise": Twin(EIGHTH, 2_000)},
    ("peft-ensemble", "all members of a life"): {"a third of the noise": Twin(THIRD, 6_000)},
    ("episodic-memory", "weights after one step, canary in the task"): {
        "half the noise": Twin(HALF, 50_000),
        "no clipping": Twin(unclipped, 3_000),
    },
    ("episodic-memory", "projection of one step, canary in the memory"): {
        "a third of the noise": Twin(THIRD, 6_000),
        "no clipping": Twin(unclipped, 1_000),
    },
    ("episodic-memory", "one run, canaries in the task"): {"an eighth of the noise": Twin(EIGHTH, 2_000)},
    ("episodic-memory", "one run, canaries in the memory"): {"an eighth of the noise": Twin(EIGHTH, 2_000)},
    ("episodic-memory", "one run, black box, canaries in the task"): {"an eighth of the noise": Twin(EIGHTH, 2_000)},
    ("episodic-memory", "one run, black box, canaries in the memory"): {"an eighth of the noise": Twin(EIGHTH, 2_000)},
    ("episodic-memory", "all releases of a life, in a task and then in memories"): {
        "an eighth of the noise": Twin(EIGHTH, 2_000)
    },
    ("cosine-classifier", "sum of one label"): {
        "half the noise": Twin(HALF, 100_000),
        "no normalisation": Twin(unnormalised_sums, 3_000),
    },
    ("cosine-classifier", "sum of one label, replaced datapoint"): {"a third of the noise": Twin(THIRD, 100_000)},
    ("cosine-classifier", "all sums of a life"): {"half the noise": Twin(HALF, 100_000)},
    ("cosine-classifier", "sums of one task less those of another"): {"noise that is reused": Twin(reused, 1_000)},
    ("l2dp-ml", "sum of one label"): {
        "half the noise": Twin(HALF, 100_000),
        "no normalisation": Twin(unnormalised_statistics, 3_000),
    },
    ("l2dp-ml", "one run, white box"): {"an eighth of the noise": Twin(EIGHTH, 2_000)},
    ("l2dp-ml", "one run, black box"): {"an eighth of the noise": Twin(EIGHTH, 2_000)},
    ("l2dp-ml", "all statistics of a life"): {"half the noise": Twin(HALF, 100_000)},
    ("l2dp-ml", "sums of one task less those of another"): {"noise that is reused": Twin(reused, 1_000)},
    ("label-release", "one more datapoint of a label"): {"told too easily": Twin(easily_told, 50_000)},
    ("label-release", "label space of a stream, released"): {"labels of the data": Twin(all_told, 300)},
    ("label-release", "one more datapoint of a label, rule optimal"): {"told too easily": Twin(easily_told, 50_000)},
    ("label-release", "one more datapoint of a label, rule laplace"): {"told too easily": Twin(easily_told, 50_000)},
    ("label-release", "one more datapoint of a label, rule binary"): {"told too easily": Twin(easily_told, 50_000)},
    ("accuracy", "count of right answers"): {"half the noise": Twin(HALF, 2_000)},
    ("accuracy", "count of right answers, Gaussian noise"): {"half the noise": Twin(HALF, 100_000)},
    ("output-perturbation", "weights around a wrong centre"): {
        "half the noise": Twin(HALF, 2_000),
        "rows of any length": Twin(unscaled_rows, 2_000),
    },
    ("output-perturbation", "weights around a wrong centre, Gaussian noise"): {"half the noise": Twin(HALF, 100_000)},
    ("multi-resolution", "a life at every scale"): {
        "a third of the noise": Twin(THIRD, 1_000),
        "noise for longer blocks": Twin(wrong_size, 1_000),
    },
    ("multi-resolution", "a life at every scale, Gaussian noise"): {"half the noise": Twin(HALF, 100_000)},
    ("continual-release", "a life of bases and updates"): {"a quarter of the noise": Twin(hushed(0.25), 1_000)},
    ("continual-release", "a life of bases and updates, Gaussian noise"): {"half the noise": Twin(HALF, 100_000)},
    ("sliding-window", "a life of windows"): {
        "a third of the noise": Twin(THIRD, 1_000),
        "rows of any length": Twin(unscaled_rows, 300),
    },
    ("sliding-window", "a life of windows, Gaussian noise"): {"half the noise": Twin(HALF, 100_000)},
}
#: Audits that see nothing, whatever runs: what an ordinary outsider gets to see of an ordinary model.
BLIND: Final = {("dp-sgd", "one run, black box, perceptron")}


def test_every_audit_of_a_proved_mechanism_has_a_twin() -> None:
    audited = {
        (name, audit.name)
        for name, audits in AUDITS.items()
        if CATALOG[name].proof_status == "proved"
        for audit in audits
        if audit.promiser == "catalog"
    }
    assert set(TWINS) == audited - BLIND
    assert audited >= BLIND
    assert {name for name, _ in TWINS} == {name for name in CATALOG if CATALOG[name].proof_status == "proved"}
    assert all(TWINS.values())


EVERY: Final = [(*key, what, twin) for key, twins in TWINS.items() for what, twin in twins.items()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "audit", "twin"),
    [(name, audit, twin) for name, audit, _, twin in EVERY],
    ids=[f"{name}: {audit}: {what}" for name, audit, what, _ in EVERY],
)
def test_twins_are_caught(name: str, audit: str, twin: Twin, monkeypatch: Patch) -> None:
    """With a margin, by counting alone, at the confidence of every other audit."""
    [found] = [each for each in AUDITS[name] if each.name == audit]
    promised = found.epsilon()
    outcome = conduct(found, samples=twin.samples, noise=twin.weakness(monkeypatch))
    assert outcome.verdict == "violation", f"{outcome.bound} against {outcome.epsilon}"
    assert outcome.epsilon == promised, "the auditor is told what it is always told"
    assert outcome.bound.epsilon_lower > MARGIN * promised


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
