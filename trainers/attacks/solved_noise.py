"""L2DP-ML as published: the noise is solved for, from two releases or from one.

The same noise χ1 masks all records of all tasks. With saturated hidden values the update of task t is m_t u_tᵀ with
m_t = n/2 − S_t − χ1, S_t the sum of its records: so m_1 − m_2 = S_2 − S_1 has no noise in it at all, and must lie in
the plane of the two released directions. Whoever knows all records but one puts each of two candidates in its place,
and sees which of the two leaves no residue.

With hidden values that are not saturated a single release is enough. Its update is Σ (1/2 − x)(θᵀx)ᵀ over the true
records and terms of noise, which are of rank 2: two vectors of noise cannot hide d × b numbers. Taken off for the
wrong record, something of rank 3 is left.

In a single run, canary i is one of two records on an axis of its own. With one hidden value that is saturated, both
updates are multiples of m_t: a few axes that everybody knows tell which, and the difference then shows every canary.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from trainers.attacks.runs import Guesses, Scores, coins, made, rows_of
from trainers.attacks.watching import counted
from trainers.mechanisms.l2dp_ml_as_published import claimed_epsilon, initial

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from trainers.noise import Noise

_RECORDS: Final = 40
_INPUTS: Final = 5
_RATE: Final = 0.1
RECIPE: Final[Mapping[str, Any]] = {
    "label_source": "prior", "label_names": ["0", "1"], "inputs": _INPUTS, "hidden": 6, "last": 4, "scale": 1.0,
    "learning_rate": _RATE,
}  # fmt: skip
PARAMETERS: Final[Mapping[str, Any]] = {
    "tasks": [{"task": "monday", "epochs": 1}, {"task": "tuesday", "epochs": 1}], "epsilon_1": 0.05, "epsilon_2": 0.05,
}  # fmt: skip


#: Small first weights and little noise beside the records: hidden values stay within [-1, 1].
SINGLE_RECIPE: Final[Mapping[str, Any]] = {**RECIPE, "scale": 0.01}
SINGLE: Final[Mapping[str, Any]] = {
    "tasks": [{"task": "monday", "epochs": 1}], "epsilon_1": 0.05, "epsilon_2": 0.05,
}  # fmt: skip
_MANY: Final = 400
#: One hidden value, for as many inputs as canaries: the claim grows with these, and so has little of ε1.
ONE_RUN_RECIPE: Final[Mapping[str, Any]] = {**RECIPE, "hidden": 1, "last": 1}
ONE_RUN: Final[Mapping[str, Any]] = {**PARAMETERS, "epsilon_1": 0.002}
_KNOWN: Final = 20  # axes on which all records are known


def claim(*, single: bool = False) -> float:
    """What the paper claims of these parameters, for any number of tasks."""
    given, recipe, records = (SINGLE, SINGLE_RECIPE, _MANY) if single else (PARAMETERS, RECIPE, _RECORDS)
    start = initial(_INPUTS, recipe["hidden"], recipe["last"], 2, scale=recipe["scale"]).encoder
    return claimed_epsilon(given["epsilon_1"], given["epsilon_2"], start, size=records)


def claim_of(canaries: int) -> float:
    """What the paper claims where all records are canaries of `one_run`."""
    hidden, last = ONE_RUN_RECIPE["hidden"], ONE_RUN_RECIPE["last"]
    start = initial(canaries + _KNOWN, hidden, last, 2, scale=ONE_RUN_RECIPE["scale"]).encoder
    return claimed_epsilon(ONE_RUN["epsilon_1"], ONE_RUN["epsilon_2"], start, size=canaries)


def two_releases(samples: int, noise: Noise) -> Scores:
    """One record of the first task is one of two ordinary ones. Score: the residue of the second over the first's."""
    public = np.random.default_rng(0)
    first, second = public.uniform(-1, 1, size=(2, _RECORDS, _INPUTS))
    candidates = [np.concatenate([public.uniform(-1, 1, size=(1, _INPUTS)), first[1:]]) for _ in range(2)]
    labels = public.integers(0, 2, size=(2, _RECORDS)).astype(str)
    found = []
    for side, truth in enumerate(candidates):
        scores = []
        for _ in counted(samples, side=side, sides=2):
            tasks = [rows_of(truth, labels[0]), rows_of(second, labels[1])]
            released = made(
                "l2dp-ml-as-published", PARAMETERS, RECIPE, tasks, noise=noise, adjacency="replace_one"
            ).tensors
            told = [_residue(released, each, second) for each in candidates]
            scores.append(math.log(told[1]) - math.log(told[0]))
        found.append(np.array(scores))
    return Scores(found[0], found[1])


def _residue(released: Mapping[str, torch.Tensor], first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """How far the noise-free difference of the two updates is from the plane of their directions."""
    start = initial(_INPUTS, RECIPE["hidden"], RECIPE["last"], 2, scale=RECIPE["scale"]).encoder
    one, two = released["task.0.encoder"], released["task.1.encoder"]
    updates = [start - one, one - two]
    plane = torch.stack([torch.linalg.svd(update).U[:, 0] for update in updates], dim=1)
    # As the mechanism sums them: in float64, of rows that are float32.
    sums = [torch.from_numpy(each.astype(np.float32).astype(np.float64)).sum(0) for each in (first, second)]
    difference = (sums[0] - sums[1])[:, None]
    lengths = torch.linalg.lstsq(plane, difference).solution
    return max(1e-300, float((plane @ lengths - difference).norm() / difference.norm()))


def single_release(samples: int, noise: Noise) -> Scores:
    """One record of the only task is one of two. Score: what is left of rank 3 with the second, over the first's."""
    public = np.random.default_rng(1)
    task = public.uniform(-1, 1, size=(_MANY, _INPUTS))
    candidates = [np.concatenate([public.uniform(-1, 1, size=(1, _INPUTS)), task[1:]]) for _ in range(2)]
    labels = public.integers(0, 2, _MANY).astype(str)
    start = initial(_INPUTS, RECIPE["hidden"], RECIPE["last"], 2, scale=SINGLE_RECIPE["scale"]).encoder
    known = [torch.from_numpy(each.astype(np.float32).astype(np.float64)) for each in candidates]
    parts = [(0.5 - each).T @ (each @ start) for each in known]
    found = []
    for side, truth in enumerate(candidates):
        scores = []
        for _ in counted(samples, side=side, sides=2):
            released = made(
                "l2dp-ml-as-published",
                SINGLE,
                SINGLE_RECIPE,
                [rows_of(truth, labels)],
                noise=noise,
                adjacency="replace_one",
            ).tensors
            update = (start - released["task.0.encoder"]) * _MANY / _RATE
            left = [max(1e-300, float(torch.linalg.svdvals(update - part)[2])) for part in parts]
            scores.append(math.log(left[1]) - math.log(left[0]))
        found.append(np.array(scores))
    return Scores(found[0], found[1])


def one_run(canaries: int, noise: Noise) -> Guesses:
    """Canary i is 1 or −1 on its own axis in the first task, by a coin, and 1 in the second. The score
    is what it is found to be.

    Neighbours are those of `replace_one`: either way there is a record.
    """
    there = coins(canaries, noise)
    public = np.random.default_rng(2)
    known = public.uniform(-1, 1, size=(2, canaries, _KNOWN))
    axes = np.diag(np.where(there, 1.0, -1.0)), np.eye(canaries)
    labels = public.integers(0, 2, size=(2, canaries)).astype(str)
    recipe = {**ONE_RUN_RECIPE, "inputs": canaries + _KNOWN}
    tasks = [rows_of(np.hstack([axes[task], known[task]]), labels[task]) for task in range(2)]
    released = made("l2dp-ml-as-published", ONE_RUN, recipe, tasks, noise=noise, adjacency="replace_one").tensors
    start = initial(recipe["inputs"], recipe["hidden"], recipe["last"], 2, scale=recipe["scale"]).encoder
    one, two = released["task.0.encoder"], released["task.1.encoder"]
    updates = torch.cat([start - one, one - two], dim=1)  # each a multiple of n/2 − S_t − χ1
    sums = torch.from_numpy(known.astype(np.float32).astype(np.float64)).sum(dim=1)
    lengths = torch.linalg.lstsq(updates[canaries:], (sums[1] - sums[0])[:, None]).solution
    found: NDArray[np.float64] = (1 - updates[:canaries] @ lengths)[:, 0].numpy()  # 1 or −1
    return Guesses(found, there)
