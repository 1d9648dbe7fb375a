"""Noisy linear models, alone or as a chain over the blocks of a stream: trained, leaning on each other, released.

An artifact holds every model of its chain, the reused ones included, so that the step after it finds all that it leans
on in one place. To copy a released model costs nothing. The model that a step is about, the head, is also there under
the names that predictors know.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from accountant.errors import InvalidInput
from trainers.erm import Objective, fit, perturbed
from trainers.labels import label_space
from trainers.ports import Made

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from accountant.events import Event
    from accountant.streams.schedules import Block, Step
    from trainers.labels import LabelSpace
    from trainers.ports import Released, Rows, Run

    #: Makes weights fit to be released: given weights, and what one record contributes to them at most.
    Perturb = Callable[[torch.Tensor, float], torch.Tensor]


class LinearModels:
    """The models of one run: same problem, same labels, fresh noise for each."""

    def __init__(self, run: Run, *, models: int) -> None:
        self.run = run
        self.space: LabelSpace = label_space(run)
        self.objective = Objective(
            features=math.prod(run.recipe["shape"]),
            labels=len(self.space.names),
            radius=run.recipe["radius"],
            modulus=run.recipe["modulus"],
            iterations=run.recipe["iterations"],
            bias=run.recipe["bias"],
        )
        self._done, self._of = 0, models * self.objective.iterations

    def centre(self) -> torch.Tensor:
        """Zero weights, which are public."""
        return torch.zeros(self.objective.labels, self.objective.columns, dtype=torch.float64)

    def train(self, rows: Rows, *, slots: int, centre: torch.Tensor, perturb: Perturb) -> torch.Tensor:
        """One noisy model, in float32: of rows that fill at most `slots` slots, around a centre that is no secret."""
        weights = fit(
            self.objective,
            rows,
            self.space.indices(rows.y),
            slots=slots,
            centre=centre,
            device=self.run.device,
            stepped=self._stepped,
        )
        contribution = self.objective.contribution(
            slots=slots, rows_per_unit=rows.rows_per_unit, centre_norm=float(centre.to(torch.float64).norm())
        )
        return perturb(weights, contribution).cpu().to(torch.float32)

    def noisy(self, event: Event) -> Perturb:
        """The noise that an event states."""
        return lambda weights, contribution: perturbed(weights, event, contribution=contribution, noise=self.run.noise)

    def read(self, released: Released, weights: torch.Tensor, *, path: str) -> torch.Tensor:
        """Weights of an earlier release over the labels of this one: by name, and zero for labels that are new."""
        known = released.facts.get("labels")
        if not isinstance(known, list) or tuple(weights.shape) != (len(known), self.objective.columns):
            expected = f"a linear model of {self.objective.columns} weights for each label"
            raise InvalidInput(path, released.release, expected)
        place_of = {name: place for place, name in enumerate(known)}
        centre = self.centre()
        for place, name in enumerate(self.space.names):
            if name in place_of:
                centre[place] = weights[place_of[name]].to(torch.float64)
        return centre

    def parts(self, weights: torch.Tensor) -> dict[str, torch.Tensor]:
        """Weights by the names that predictors know."""
        if not self.objective.bias:
            return {"weight": weights.contiguous()}
        return {"weight": weights[:, :-1].contiguous(), "bias": weights[:, -1].contiguous()}

    def facts(self) -> dict[str, Any]:
        """What is public of every model of the run."""
        return {
            "predictor": "linear",
            "labels": list(self.space.names),
            **self.space.facts(self.run.inputs),
            "row_norm": self.objective.radius,
            "backbone": None,
            "modulus": self.objective.modulus,
            "iterations": self.objective.iterations,
            "distance_to_optimum": self.objective.distance_to_optimum,
        }

    def _stepped(self) -> None:
        self._done += 1
        self.run.progress(self._done, self._of)


def whole(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Weights and bias of a linear model as one matrix; of anything else, an empty vector."""
    weight = tensors.get("weight", torch.empty(0))
    return torch.cat([weight, tensors["bias"][:, None]], dim=1) if "bias" in tensors else weight


def release_step(run: Run, due: Step, perturbs: Callable[[LinearModels, int], Perturb]) -> Made:
    """The models of one step of a schedule. `perturbs` gives the noise of the n-th block that is trained.

    In a chain each model is trained around the next one, the last around zero; without one all are, and the head is
    the largest. Blocks are cut where the stream began, and averages divide by their full size all the same.
    """
    models = LinearModels(run, models=len(due.trained))
    assert len(run.rows) == len(due.trained), "one block, one charge, one set of rows"
    known = {block: _reused(models, block) for block in due.chain if block not in due.trained}
    leans_on = dict(zip(due.chain, due.chain[1:], strict=False))
    for number, (block, rows) in enumerate(zip(due.trained, run.rows, strict=True)):
        assert rows.slots == block.stop - block.start, "the rows of a block are those of its ordinals"
        centre = known[leans_on[block]] if block in leans_on else models.centre()
        known[block] = models.train(rows, slots=block.slots, centre=centre, perturb=perturbs(models, number))
    held = due.chain or tuple(reversed(due.trained))
    return Made(
        tensors=models.parts(known[held[0]]) | {name_of(block): known[block].to(torch.float32) for block in held},
        facts=models.facts() | {"step": due.number, "models": [_document(block) for block in held]},
    )


def name_of(block: Block) -> str:
    """The tensor of a block's model, by ordinals of the stream."""
    return f"{block.kind}.{block.level}.{block.start}.{block.stop}"


def _document(block: Block) -> dict[str, Any]:
    return {"tensor": name_of(block), "level": block.level, "start": block.start, "stop": block.stop}


def _reused(models: LinearModels, block: Block) -> torch.Tensor:
    inputs = _previous(models.run)
    for released in inputs:
        if name_of(block) in released.tensors:
            return models.read(released, released.tensors[name_of(block)], path="recipe.previous")
    raise InvalidInput(
        "recipe.previous", [released.release for released in inputs], f"a release that holds the model of {block}"
    )


def _previous(run: Run) -> Sequence[Released]:
    return [released for name, released in run.inputs.items() if name.partition(".")[0] == "previous"]
