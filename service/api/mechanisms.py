"""/v1/mechanisms and /v1/advice: what can be done, what it costs, and what would fit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import APIRouter

from accountant import calibrate_noise_multiplier
from accountant.calibration import calibrate_training
from accountant.engines import account
from accountant.errors import Unattainable
from accountant.events import Composed, PartitionSelection, event_to_json
from accountant.partition import HEURISTIC_SHARE, from_share, smallest_share, smallest_share_of_prior
from service.api.context import Anyone, Pipeline, Service, problems
from service.api.releases import proposal_of
from service.errors import NotFound, Problem
from service.operations import releases
from service.operations.readings import finite
from service.schemas import CalibrationRequest, LabelSplitRequest, Price, WhatIf
from trainers.catalog import CATALOG, Mechanism

router = APIRouter(prefix="/v1", tags=["mechanisms"])
_calculating = threading.BoundedSemaphore(2)  # a search may take a minute; decisions need the rest of the machine


@contextmanager
def _in_turn() -> Iterator[None]:
    """At most two searches at a time; whoever comes third is told to come back."""
    if not _calculating.acquire(blocking=False):
        raise Problem("busy", "Other calculations are under way.")
    try:
        yield
    finally:
        _calculating.release()


def _shown(mechanism: Mechanism) -> dict[str, Any]:
    return {
        "name": mechanism.name,
        "title": mechanism.title,
        "kind": mechanism.kind,
        "paper": mechanism.paper,
        "card": mechanism.card,
        "adjacencies": list(mechanism.adjacencies),
        "proof_status": mechanism.proof_status,
        "proof_note": mechanism.proof_note,
        "parameters": mechanism.schema(),
        "recipe": mechanism.recipe_schema(),
        "reads": list(mechanism.reads),
        "is_run_by_workers": mechanism.module is not None,
    }


def _find(name: str) -> Mechanism:
    if name not in CATALOG:
        raise NotFound("mechanism", name)
    return CATALOG[name]


@router.get("/mechanisms", responses=problems(), summary="The catalog")
def list_all(_actor: Anyone) -> dict[str, Any]:
    """Every mechanism with its parameters and the status of its proof."""
    return {"items": [_shown(each) for each in CATALOG.values()]}


@router.get("/mechanisms/{name}", responses=problems("not-found"), summary="One mechanism")
def get(name: str, _actor: Anyone) -> dict[str, Any]:
    """Its parameters are a JSON Schema."""
    return _shown(_find(name))


@router.post("/mechanisms/{name}/price", responses=problems("not-found"), summary="What it would cost")
def price(name: str, asked: Price, _actor: Anyone) -> dict[str, Any]:
    """ε of one release by the tightest proved engine, and the events that would be charged."""
    mechanism = _find(name)
    quoted = mechanism.quote(asked.parameters, adjacency=asked.adjacency)
    event = Composed(events=tuple(each.event for each in quoted.charges))
    with _in_turn():
        found = account(event, delta=asked.delta, adjacency=asked.adjacency)
    return {
        "mechanism": name,
        "adjacency": asked.adjacency,
        "delta": asked.delta,
        "epsilon_upper": finite(found.upper),
        "epsilon_lower": found.lower,
        "engine": found.engine,
        "remark": found.remark,
        "proof_status": mechanism.proof_status,
        "events": [event_to_json(each.event) for each in quoted.charges],
    }


@router.post("/advice/calibrate", responses=problems(), summary="The smallest noise for a promise")
def calibrate(asked: CalibrationRequest, _actor: Anyone) -> dict[str, Any]:
    """For so many DP-SGD steps, rounded to the private side."""
    try:
        with _in_turn():
            noise = calibrate_noise_multiplier(
                epsilon=asked.epsilon,
                delta=asked.delta,
                sampling_probability=asked.sampling_probability,
                steps=asked.steps,
                adjacency=asked.adjacency,
            )
    except Unattainable as problem:
        raise Problem("invalid", str(problem), "epsilon") from None
    return {"noise_multiplier": float(noise), **asked.model_dump()}


@router.post("/advice/label-split", responses=problems(), summary="How to share a budget between labels and training")
def label_split(asked: LabelSplitRequest, _actor: Anyone) -> dict[str, Any]:
    """The least share that tells classes of one size, or of sizes with weights, with this probability; else a tenth.

    `labels` are the parameters of the label release. With a training, `noise_multiplier` is the least with which both
    together keep the promise. Sizes are to be guessed: those of the data are as private as the data.
    """
    if asked.class_size is not None and asked.class_sizes is not None:
        raise Problem("invalid", "class_size and class_sizes are two answers to one question.", "class_sizes")
    try:
        share = _share(asked)
    except Unattainable as problem:
        raise Problem("invalid", str(problem), "class_size" if asked.class_sizes is None else "class_sizes") from None
    labels = from_share(epsilon=asked.epsilon, delta=asked.delta, share=share)
    noise = None
    if asked.training is not None:
        try:
            with _in_turn():
                noise = calibrate_training(
                    PartitionSelection(epsilon=labels.epsilon, delta=labels.delta),
                    epsilon=asked.epsilon,
                    delta=asked.delta,
                    sampling_probability=asked.training.sampling_probability,
                    steps=asked.training.steps,
                    adjacency=asked.adjacency,
                )
        except Unattainable as problem:
            raise Problem("invalid", str(problem), "epsilon") from None
    return {
        "share": share,
        "labels": {"epsilon": labels.epsilon, "delta": labels.delta},
        "noise_multiplier": noise,
        **asked.model_dump(),
    }


def _share(asked: LabelSplitRequest) -> float:
    promise = {"probability": asked.probability, "epsilon": asked.epsilon, "delta": asked.delta}
    if asked.class_sizes is not None:
        sizes: dict[int, float] = {}
        for each in asked.class_sizes:
            sizes[each.size] = sizes.get(each.size, 0.0) + each.weight
        return smallest_share_of_prior(sizes=sizes, **promise)
    return HEURISTIC_SHARE if asked.class_size is None else smallest_share(n=asked.class_size, **promise)


@router.post("/advice/what-if", responses=problems("not-found"), summary="How often a release would still fit")
def what_if(asked: WhatIf, parts: Service, actor: Pipeline) -> dict[str, Any]:
    """How many of so many releases like this one would be admitted in a row, by the price of the first."""
    new = asked.proposal
    proposal = proposal_of(new, parts, actor)
    with parts.books.read(new.population) as book:
        found = releases.dry_run(book, proposal)
        priced = releases.price(book, proposal)
        fits = releases.how_often(book, priced, most=asked.times)
    return {"decision": found["decision"], "asked": asked.times, "would_be_admitted": fits}
