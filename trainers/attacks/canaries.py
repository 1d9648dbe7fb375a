"""Training on canaries, once: what the one-run audit looks at (`accountant.audit.one_run`).

Scores of one run may depend on each other in any way, so canaries share steps, memories and projections here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from trainers.attacks.coordinates import difference, long_rows, losses, outputs, recipe_of
from trainers.attacks.runs import Guesses, coins, made, rows_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainers.noise import Noise

_MEMORY: Final = "monday"
_HIDDEN: Final = 16
_SIZE: Final = 20


def episodic(
    parameters: Mapping[str, Any], canaries: int, noise: Noise, *, in_memory: bool, black_box: bool = False
) -> Guesses:
    """A task beside a memory, canaries in the one or in the other; by the weights along each axis, or by losses.

    Canaries of the memory show by the projection: the task pulls against all of them, which is taken out of it as far
    as they are there.
    """
    there = coins(canaries, noise)
    x, y = long_rows(there)
    against = rows_of(np.full((1, canaries), x.max()), ["1"])
    own, memory = (against, rows_of(x, y)) if in_memory else (rows_of(x, y), against)
    given = {**parameters, "memories": [_MEMORY], "use": "every_block"}
    recipe = {**recipe_of("episodic-memory", canaries), "combine": "projection"}
    released = made("episodic-memory", given, recipe, [own, memory], noise=noise)
    if black_box:
        return Guesses(-losses(outputs(released, x), np.zeros(canaries, dtype=np.int64)), there)
    return Guesses(difference(released.tensors["1.weight"]), there)


def perceptron(parameters: Mapping[str, Any], canaries: int, noise: Noise) -> Guesses:
    """DP-SGD on a perceptron, with random rows under random labels for canaries; black box, by their losses.

    Nothing here is worst case: it is what an outsider may see of an ordinary model.
    """
    public = np.random.default_rng(1)
    x = public.normal(size=(canaries, _SIZE)).astype(np.float32)
    y = public.integers(0, 2, canaries)
    there = coins(canaries, noise)
    recipe = {
        "model": "mlp", "hidden": [_HIDDEN], "shape": [_SIZE], "learning_rate": 0.5, "momentum": 0.0,
        "label_source": "prior", "label_names": ["0", "1"],
    }  # fmt: skip
    labels = [str(label) if each else "" for label, each in zip(y, there, strict=True)]
    tensors = made("dp-sgd", parameters, recipe, [rows_of(x, labels)], noise=noise).tensors
    hidden = torch.relu(torch.from_numpy(x) @ tensors["1.weight"].T + tensors["1.bias"])
    return Guesses(-losses(hidden @ tensors["3.weight"].T + tensors["3.bias"], y), there)


def unprotected(name: str, canaries: int, noise: Noise) -> Guesses:
    """Training without privacy: a weight that no row pulls at stays where it was, and one that is pulled at moves."""
    there = coins(canaries, noise)
    x, y = long_rows(there)
    parameters: dict[str, Any] = {"steps": 40, "batch_size": canaries}
    rows = [rows_of(x / x.max(), y)]
    if name == "a-gem":
        parameters |= {"memory_batch": 1, "memories": []}
    released = made(name, parameters, recipe_of(name, canaries), rows, noise=noise)
    return Guesses(difference(released.tensors["1.weight"]), there)
