"""All releases of a life of trainings: whoever sees θ¹, …, θᵐ adds up what each tells of one datapoint.

A datapoint that several releases touch pays for each of them. What an attack on one release sees stays the same however
many there are; only who looks at all of them can tell whether a ledger forgot one. Canaries have a coordinate of their
own (`coordinates`), so that a life of m releases of thousands of canaries is thousands of independent lives; where a
step mixes canaries (`with_memories`), a life is seen once.

- Noise of each release is its own, so the likelihood ratio of a life is the product of those of its releases.
- Two releases that share their noise give it away in a difference, which tells of a datapoint that one of them touches
  less than the release itself as long as the noise is fresh, and everything if it is not (`one_from_the_other`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trainers.attacks.coordinates import along_each_axis, difference, label_rows, long_rows, recipe_of, step_of
from trainers.attacks.runs import Artifact, Guesses, coins, made, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from trainers.attacks.coordinates import Experiment
    from trainers.noise import Noise
    from trainers.ports import Made

_BEFORE: Final = "rel_audit"
_MEMORY: Final = "monday"


def each_from_the_last(parameters: Mapping[str, Any], *, releases: int) -> Experiment:
    """DP-SGD by one step at a time, each from the weights that were released last: every step is seen.

    Score: the likelihood ratio. A step moves the weights along the canary's axis by one clipped gradient if it was
    sampled, and by noise.
    """
    assert parameters["steps"] == 1, "a release is a step"
    rate, deviation = parameters["sampling_probability"], parameters["noise_multiplier"]

    def experiment(there: NDArray[np.bool_], noise: Noise) -> NDArray[np.float64]:
        x, y = long_rows(there)
        recipe = {**recipe_of("dp-sgd", len(there)), "start": _BEFORE}
        total, at, before = np.zeros(len(there)), np.zeros(len(there)), dict[str, Artifact]()
        for _ in range(releases):
            released = made("dp-sgd", parameters, recipe, [rows_of(x, y)], noise=noise, inputs=before)
            now = difference(released.tensors["1.weight"])
            moved = (now - at) / step_of(parameters, len(there))
            total += np.log1p(rate * np.expm1((2 * moved - 1) / (2 * deviation**2)))
            at, before = now, {"start": Artifact(made=released)}
        return total

    return experiment


def each_from_the_start(parameters: Mapping[str, Any], name: str, *, releases: int) -> Experiment:
    """The same datapoints trained on again and again, from the public start. Score: the sum over all releases.

    With full samples that is the likelihood ratio; the last release tells no more of them than the first.
    """
    assert parameters["sampling_probability"] == 1

    def experiment(there: NDArray[np.bool_], noise: Noise) -> NDArray[np.float64]:
        x, y = long_rows(there)
        recipe, total = recipe_of(name, len(there)), np.zeros(len(there))
        for _ in range(releases):
            released = made(name, parameters, recipe, [rows_of(x, y)], noise=noise)
            total += along_each_axis(released) / step_of(parameters, len(there))
        return total

    return experiment


def with_memories(
    own: Mapping[str, Any], later: Mapping[str, Any], canaries: int, noise: Noise, *, releases: int
) -> Guesses:
    """Canaries that a task is trained on, and that are then a memory beside each of the later tasks; seen once.

    In a later task they show by the projection: the task pulls against all of them, which is taken out of it as far as
    they are there (`canaries.episodic`). Later tasks start from the first release, since one that has been pulled at
    is sure of itself and no longer pulls. Score: the sum over all releases, each in units of its own spread, since the
    projection hides the scale of what it takes out.
    """
    there = coins(canaries, noise)
    x, y = long_rows(there)
    rows, against = rows_of(x, y), rows_of(np.full((1, canaries), x.max()), ["1"])
    recipe = {**recipe_of("episodic-memory", canaries), "combine": "projection"}
    first = made("episodic-memory", {**own, "memories": []}, recipe, [rows], noise=noise)
    start = difference(first.tensors["1.weight"])
    moved = [start]
    for _ in range(releases - 1):
        released = made(
            "episodic-memory",
            {**later, "memories": [_MEMORY]},
            {**recipe, "start": _BEFORE},
            [against, rows],
            noise=noise,
            inputs={"start": Artifact(made=first)},
        )
        moved.append(difference(released.tensors["1.weight"]) - start)
    return Guesses(np.sum([each / np.std(each) for each in moved], axis=0), there)


def all_sums(name: str, parameters: Mapping[str, Any], recipe: Mapping[str, Any], *, releases: int) -> Experiment:
    """Class sums of tasks that all hold the canary. Score: their sum, which is the likelihood ratio."""

    def experiment(there: NDArray[np.bool_], noise: Noise) -> NDArray[np.float64]:
        total = np.zeros(len(there))
        for sums in _sums(name, parameters, recipe, [there] * releases, noise):
            total += sums
        return total

    return experiment


def one_from_the_other(name: str, parameters: Mapping[str, Any], recipe: Mapping[str, Any]) -> Experiment:
    """Class sums of a task that holds the canary, less those of a later task that does not."""

    def experiment(there: NDArray[np.bool_], noise: Noise) -> NDArray[np.float64]:
        first, second = _sums(name, parameters, recipe, [there, np.zeros_like(there)], noise)
        return first - second

    return experiment


def _sums(
    name: str,
    parameters: Mapping[str, Any],
    recipe: Mapping[str, Any],
    tasks: list[NDArray[np.bool_]],
    noise: Noise,
) -> Iterator[NDArray[np.float64]]:
    """What each task added to the class sums, of a stream in which each release builds on all before it."""
    before: list[Made] = []
    for there in tasks:
        rows, space = label_rows(there)
        releases: dict[str, Any] = {}
        inputs: dict[str, Artifact] = {}
        if name == "cosine-classifier":  # sums of all tasks so far
            if before:
                releases, inputs = {"previous": _BEFORE}, {"previous": Artifact(made=before[-1])}
        else:
            releases = {"previous": [_BEFORE] * len(before)}
            inputs = {f"previous.{place}": Artifact(made=each) for place, each in enumerate(before)}
        released = made(name, parameters, {**recipe, **space, **releases}, [rows], noise=noise, inputs=inputs)
        seen: NDArray[np.float64] = released.tensors["sums"][:, 0].numpy()
        yield seen - (before[-1].tensors["sums"][:, 0].numpy() if before and name == "cosine-classifier" else 0.0)
        before.append(released)
