"""How far an attack is, is said while it loops, once for each batch, and only to whoever asked."""

from __future__ import annotations

import pytest

from trainers.attacks.registry import AUDITS, conduct
from trainers.attacks.watching import counted, heard
from trainers.noise import Noise


@pytest.mark.parametrize(
    ("mechanism", "audit", "samples", "reports"),
    [
        ("dp-sgd", "weights after one step", 1500, 3),
        ("label-release", "label space of a stream, derived from the data", 100, 200),
        ("l2dp-ml-as-published", "the noise is solved for", 100, 200),
        ("dp-agem-as-published", "a batch turned round, at our price", 100, 200),
    ],
)
def test_samples_are_counted_up_to_the_last(mechanism: str, audit: str, samples: int, reports: int) -> None:
    [found] = [each for each in AUDITS[mechanism] if each.name == audit]
    said: list[tuple[int, int]] = []
    with heard(lambda done, of: said.append((done, of))):
        watched = conduct(found, samples=samples, noise=Noise.repeatable(1))
    assert len(said) == reports
    assert said == sorted(said)
    assert said[-1] == (samples, samples)
    assert said[0][0] < samples
    alone = conduct(found, samples=samples, noise=Noise.repeatable(1))
    assert len(said) == reports  # nobody asked
    assert alone.bound.epsilon_lower == watched.bound.epsilon_lower


def test_who_listens_first_hears_again_when_another_is_done() -> None:
    outer: list[int] = []
    with heard(lambda done, _: outer.append(done)):
        with heard(lambda *_: None):
            assert list(counted(2)) == [0, 1]
        assert list(counted(2)) == [0, 1]
    assert outer == [1, 2]
    assert list(counted(0)) == []
