"""Whether rows have the shape that a run expects: told by the shape of the whole array, which is known without a row.

It is asked before any row or label is looked at. Were it found out by a network that fails on its first row, a job that
fails and one that does not would tell whether anybody in its scope has a row with such a label.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from trainers.ports import Released


def fits(shape: tuple[int, ...], recipe: Mapping[str, Any], inputs: Mapping[str, Released]) -> bool:
    """Whether a row of this shape is what the recipe, or a model that it asks, takes.

    What a backbone takes is its own business: it is run for nobody as for everybody.

    >>> fits((28, 28), {"shape": [28, 28]}, {}), fits((784,), {"shape": [28, 28]}, {})
    (True, False)
    """
    if "models" in recipe:
        return all(_fits_model(shape, inputs[f"models.{place}"]) for place in range(len(recipe["models"])))
    if "shape" in recipe:
        return shape == tuple(recipe["shape"])
    if "inputs" in recipe:
        return bool(math.prod(shape) == recipe["inputs"])
    if "backbone" in recipe:
        return math.prod(shape) > 0 if recipe["backbone"] else bool(math.prod(shape) == recipe["feature_size"])
    return True  # nobody reads features


def _fits_model(shape: tuple[int, ...], released: Released) -> bool:
    facts, tensors = released.facts, released.tensors
    built, kind = facts.get("recipe") or {}, str(facts.get("predictor"))
    if kind == "network" or (kind == "adapter" and built["adapter"] == "film"):
        return shape == tuple(built["shape"])
    if facts.get("backbone") or kind not in _WEIGHTS or not facts.get("labels"):  # without labels nothing is asked
        return math.prod(shape) > 0
    return bool(math.prod(shape) == tensors[_WEIGHTS[kind]].shape[1])


#: The tensor whose second axis is as wide as a row.
_WEIGHTS: Final[Mapping[str, str]] = {"cosine": "sums", "linear": "weight", "adapter": "head.weight"}
