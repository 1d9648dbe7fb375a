"""Adapters on a frozen backbone: what is trained and what is not, and ensembles of one model for each task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from numpy.typing import NDArray

from accountant import InvalidInput, account
from accountant.events import Adjacency
from tests.trainers.artifacts_in_memory import Artifact, released, rows_of
from tests.trainers.test_backbones import TINY, images
from trainers.adapters import film, last_layer, restore, tensors
from trainers.backbones import Backbone, BackboneProblem
from trainers.catalog import mechanism
from trainers.clipping import clipped_sum
from trainers.columns import DataProblem
from trainers.noise import Noise
from trainers.predictors import predict

BATCH_NORMALISED = replace(TINY, name="bn", factory="tests.trainers.tiny_backbones:frozen_statistics")
BACKBONES = {"tiny": Backbone(TINY), "bn": Backbone(BATCH_NORMALISED)} | {
    name: Backbone(replace(TINY, name=name, factory=f"tests.trainers.tiny_backbones:{name}"))
    for name in ("instances", "instances_with_statistics", "volumes", "derived", "synchronised", "of_squares")
}
QUIET = {"noise_multiplier": 0.05, "sampling_probability": 1.0, "steps": 25, "clip_norm": 1.0}


def coloured(count: int, *, seed: int) -> tuple[NDArray[np.float32], NDArray[np.str_]]:
    """Noisy images, half of them red and half blue."""
    x = (images(count, seed) / 2).astype(np.float32)
    names = np.array(["red", "blue"])[np.arange(count) % 2]
    x[names == "red", ..., 0] += 120
    x[names == "blue", ..., 2] += 120
    return x, names


def member(x: NDArray[np.float32], y: Any, *, seed: int = 1, **recipe: Any) -> Artifact:
    given = {
        "label_source": "prior",
        "label_names": ["red", "blue"],
        "backbone": "tiny",
        "learning_rate": 0.5,
        **recipe,
    }
    parameters = {**QUIET, **given.pop("parameters", {})}
    device = given.pop("device", "cpu")
    rows = rows_of(x, y, slots=given.pop("slots", None))
    noise = Noise.repeatable(seed)
    return released("peft-ensemble", parameters, given, rows, noise=noise, backbones=BACKBONES, device=device)


@pytest.mark.parametrize("adapter", ["last_layer", "film"])
@pytest.mark.parametrize("backbone", ["tiny", "bn"])
def test_it_learns_and_the_backbone_stays_as_it_was(adapter: str, backbone: str, device: str) -> None:
    x, y = coloured(60, seed=1)
    before = {name: value.clone() for name, value in BACKBONES[backbone].module.state_dict().items()}
    made = member(x, y, adapter=adapter, backbone=backbone, device=device)
    test_x, test_y = coloured(40, seed=2)
    assert (predict([made], test_x, backbones=BACKBONES) == test_y).mean() > 0.8
    assert all(torch.equal(before[name], value) for name, value in BACKBONES[backbone].module.state_dict().items())
    assert not any("running" in name for name in made.tensors)
    trained = [name for name in made.tensors if not name.startswith("head.")]
    assert len(trained) == (4 if adapter == "film" else 0)  # a scale and a shift for each of two layers
    assert made.facts["backbone"] == BACKBONES[backbone].document


@pytest.mark.parametrize("backbone", ["instances", "instances_with_statistics", "volumes"])
def test_film_tunes_every_kind_of_normalisation(backbone: str) -> None:
    x, y = coloured(60, seed=1)
    before = {name: value.clone() for name, value in BACKBONES[backbone].module.state_dict().items()}
    made = member(x, y, adapter="film", backbone=backbone, parameters={"steps": 10})
    trained = [name for name in made.tensors if not name.startswith("head.")]
    assert len(trained) == (2 if backbone == "volumes" else 4)
    assert {name.rpartition(".")[2] for name in trained} == {"scale", "shift"}
    assert all(torch.equal(before[name], value) for name, value in BACKBONES[backbone].module.state_dict().items())
    assert all((made.tensors[name] != (1.5 if name.endswith("scale") else 0.2)).any() for name in trained)
    test_x, test_y = coloured(40, seed=2)
    right = (predict([made], test_x, backbones=BACKBONES) == test_y).mean()
    assert right > 0.8 or backbone == "instances", "a mean colour is what is taken off each row there"


def test_no_label_is_preferred_before_the_first_step() -> None:
    for module in (last_layer(width=5, labels=3), film(BACKBONES["tiny"], shape=(12, 12, 3), labels=3)):
        x = torch.randn(4, 5) if module.head.in_features == 5 else torch.from_numpy(images(4))
        assert not module(x).any()
        assert module.head.out_features == 3


@pytest.mark.parametrize("backbone", ["synchronised", "of_squares", "derived"])
def test_film_tunes_normalisations_where_they_are(backbone: str) -> None:
    """All that there are: of one that has a scale alone, that."""
    made = member(*coloured(60, seed=1), adapter="film", backbone=backbone, parameters={"steps": 3})
    trained = sorted(name.removeprefix("body.module.") for name in made.tensors if not name.startswith("head."))
    layers = {"of_squares": ("first", "second"), "synchronised": ("0.1", "0.4"), "derived": ("1", "4")}[backbone]
    assert trained == [
        f"{layer}.{part}" for layer in layers for part in ("bias", "weight") if f"{layer}.{part}" != "first.bias"
    ]
    before = BACKBONES[backbone].module.state_dict()
    assert all((made.tensors[f"body.module.{name}"] != before[name]).any() for name in trained)
    assert len(predict([made], coloured(40, seed=2)[0], backbones=BACKBONES)) == 40


@pytest.mark.parametrize("name", [name for name in BACKBONES if name != "tiny"])
def test_film_starts_as_the_backbone_and_stays_in_evaluation_mode(name: str) -> None:
    backbone = BACKBONES[name]
    module = film(backbone, shape=(12, 12, 3), labels=2)
    module.train()
    x = images(9)
    with torch.no_grad():
        inside = module.body(torch.from_numpy(x)).numpy()
    assert inside == pytest.approx(backbone.features(x), abs=1e-6, rel=1e-5)
    assert not any(layer.training for layer in module.body.modules())


@pytest.mark.parametrize("backbone", [*BACKBONES])
def test_each_row_of_film_is_clipped_by_itself(backbone: str) -> None:
    """Against a gradient computed for each row alone."""
    module = film(BACKBONES[backbone], shape=(12, 12, 3), labels=2)
    torch.nn.init.normal_(module.head.weight, generator=torch.Generator().manual_seed(0))
    x, y = torch.from_numpy(images(5)), torch.tensor([0, 1, 1, 0, 1])
    parameters = [each for each in module.parameters() if each.requires_grad]
    total = [torch.zeros_like(each) for each in parameters]
    for row in range(5):
        loss = torch.nn.functional.cross_entropy(module(x[row : row + 1]), y[row : row + 1])
        gradients = torch.autograd.grad(loss, parameters)
        norm = torch.cat([each.flatten() for each in gradients]).norm()
        for into, each in zip(total, gradients, strict=True):
            into.add_(each * min(1.0, float(0.3 / norm)))
    for one, each in zip(clipped_sum(module, x, y, clip_norm=0.3), total, strict=True):
        assert one.numpy() == pytest.approx(each.numpy(), abs=1e-4)


@pytest.mark.parametrize("adapter", ["last_layer", "film"])
def test_an_empty_task_and_a_label_of_one_release_a_classifier(adapter: str) -> None:
    x, y = coloured(2, seed=3)
    parameters = {**QUIET, "noise_multiplier": 1.0, "steps": 3}
    for count in (0, 1):
        made = member(x[:count], y[:count], adapter=adapter, slots=2, parameters=parameters)
        assert all(tensor.isfinite().all() and tensor.any() for tensor in made.tensors.values())
        assert made.tensors["head.weight"].shape == (2, 16)
        assert set(predict([made], x, backbones=BACKBONES)) <= {"red", "blue"}


def test_labels_outside_the_set_leave_no_trace() -> None:
    x, y = coloured(6, seed=4)
    parameters = {"noise_multiplier": 1.0, "steps": 3}
    within = member(x[:4], y[:4], slots=6, parameters=parameters)
    more = member(x, [*y[:4], "green", "0"], slots=6, parameters=parameters)
    assert within.facts == more.facts
    assert all(torch.equal(within.tensors[name], more.tensors[name]) for name in within.tensors)


def test_a_released_set_may_be_empty() -> None:
    x, y = coloured(4, seed=5)
    nothing = Artifact(release="labels", tensors={}, facts={"labels": []})
    recipe = {"label_source": "released", "backbone": "tiny", "learning_rate": 1.0}
    inputs, parameters = {"labels_release": nothing}, {**QUIET, "steps": 2}
    noise = Noise.repeatable(1)
    made = released("peft-ensemble", parameters, recipe, rows_of(x, y), noise=noise, inputs=inputs, backbones=BACKBONES)
    assert predict([made], x, backbones=BACKBONES).tolist() == [""] * 4
    full = member(x, y, parameters={"steps": 2})
    both = predict([made, full], x, backbones=BACKBONES)
    assert np.array_equal(both, predict([full], x, backbones=BACKBONES))


def test_what_does_not_fit_is_refused() -> None:
    x, y = coloured(2, seed=6)
    with pytest.raises(BackboneProblem):
        member(x, y, backbone="other")
    with pytest.raises(BackboneProblem):  # without a backbone there is nothing to tune
        member(x, y, backbone="", feature_size=432, adapter="film")
    with pytest.raises(DataProblem, match=r"^data\.shape$"):
        member(x, y, backbone="", feature_size=3)
    reciprocal = Backbone(replace(TINY, name="r", factory="tests.trainers.tiny_backbones:reciprocal"))
    with pytest.raises(InvalidInput, match=r"recipe\.adapter"):
        film(reciprocal, shape=(12, 12, 3), labels=2)
    module = last_layer(width=4, labels=2)
    with pytest.raises(InvalidInput, match="tensors"):
        restore(module, {**tensors(module), "more": torch.zeros(1)})


@pytest.mark.parametrize(
    ("adjacency", "relation"), [("add_remove", "ADD_OR_REMOVE_ONE"), ("replace_one", "REPLACE_ONE")]
)
def test_the_price_is_that_of_noisy_steps_on_poisson_samples(adjacency: Adjacency, relation: str) -> None:
    run = {"noise_multiplier": 2.0, "sampling_probability": 0.1, "steps": 60, "clip_norm": 0.7}
    quoted = mechanism("peft-ensemble").quote(run, adjacency=adjacency)
    [charge] = quoted.charges
    assert (charge.start, charge.part, charge.task, quoted.life) == (None, None, None, None)
    with pytest.raises(InvalidInput, match=r"parameters\.tasks"):  # data of other tasks is never read
        mechanism("peft-ensemble").quote({**run, "tasks": ["monday"]}, adjacency=adjacency)
    oracle = PLDAccountant(dp_accounting.NeighboringRelation[relation])
    oracle.compose(dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(2.0)), 60)
    assert account(charge.event, delta=1e-5, adjacency=adjacency).upper == pytest.approx(
        oracle.get_epsilon(1e-5), rel=0.01
    )


@pytest.mark.parametrize("name", ["peft-ensemble", "cosine-classifier"])
def test_data_without_labels_is_refused(name: str) -> None:
    recipe = {"label_source": "prior", "label_names": ["red"], "backbone": "tiny"}
    training = name == "peft-ensemble"
    parameters = QUIET if training else {"noise_multiplier": 1.0}
    rows = replace(rows_of(images(3), [0, 1, 2]), y=np.array([], dtype=np.int64))
    with pytest.raises(DataProblem, match=r"^data\.shape$"):
        released(
            name,
            parameters,
            {**recipe, **({"learning_rate": 1.0} if training else {})},
            rows,
            noise=Noise.repeatable(1),
            backbones=BACKBONES,
        )
