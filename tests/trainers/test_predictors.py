"""Predictions of every kind of artifact, and the three ways in which an ensemble decides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from accountant import InvalidInput
from tests.trainers.artifacts_in_memory import Artifact
from tests.trainers.test_backbones import TINY, images
from trainers import models
from trainers.backbones import Backbone, BackboneProblem
from trainers.predictors import AGGREGATIONS, PREDICTORS, Aggregation, predict, truths

X = np.eye(3, dtype=np.float32)


def artifact(predictor: str, tensors: dict[str, Any], **facts: Any) -> Artifact:
    given = {name: torch.as_tensor(value, dtype=torch.float32) for name, value in tensors.items()}
    return Artifact(release=predictor, tensors=given, facts={"predictor": predictor, **facts})


def head(weight: list[list[float]], labels: list[str], bias: list[float] | None = None) -> Artifact:
    tensors = {"head.weight": weight, "head.bias": bias or [0.0] * len(weight)}
    return artifact("adapter", tensors, labels=labels, recipe={"adapter": "last_layer", "shape": [3]}, backbone=None)


def test_a_cosine_classifier_looks_at_angles_alone() -> None:
    sums = [[1.0, 0.0, 0.1], [0.0, 90.0, 80.0], [0.0, 0.0, 0.001]]
    told = predict([artifact("cosine", {"sums": sums}, labels=["a", "b", "c"], backbone=None)], X)
    assert told.tolist() == ["a", "b", "c"]


def test_a_linear_model_scales_rows_down_and_may_have_one_row() -> None:
    weight, bias = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [0.0, 0.5]
    plain = artifact("linear", {"weight": weight, "bias": bias}, labels=["a", "b"])
    assert predict([plain], 4 * X).tolist() == ["a", "b", "b"]
    small = artifact("linear", {"weight": weight, "bias": bias}, labels=["a", "b"], row_norm=0.4)
    assert predict([small], 4 * X).tolist() == ["b", "b", "b"]
    single = artifact("linear", {"weight": [[1.0, -1.0, 0.5]]}, labels=["no", "yes"], row_norm=None)
    assert predict([single], X).tolist() == ["yes", "no", "yes"]
    with pytest.raises(InvalidInput, match="weight"):
        predict([artifact("linear", {"weight": weight}, labels=["a", "b", "c"])], X)


def test_a_network_is_built_from_its_recipe() -> None:
    recipe = {"model": "mlp", "hidden": [4], "shape": [3]}
    module = models.build(recipe, outputs=2)
    torch.nn.init.normal_(module[-1].weight, generator=torch.Generator().manual_seed(1))
    made = Artifact(
        release="n",
        tensors=models.state(module),
        facts={"predictor": "network", "labels": ["a", "b"], "recipe": recipe},
    )
    with torch.no_grad():
        expected = np.array(["a", "b"])[module(torch.from_numpy(X)).argmax(1).numpy()]
    assert predict([made], X).tolist() == expected.tolist()


def test_the_last_release_decides_where_it_contains_the_others() -> None:
    one = artifact("cosine", {"sums": [[1.0, 1.0, 1.0]]}, labels=["a"])
    two = artifact("cosine", {"sums": [[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]}, labels=["a", "b"])
    assert predict([one, two], X).tolist() == ["a", "b", "b"]


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    # Outputs for the first row: (5, 4) of one member, (3, −3, 0) of the other.
    [("argmax", "a"), ("median", "c"), ("entropy", "c")],
)
def test_an_ensemble_decides_by_the_rule_that_is_asked_for(aggregation: Aggregation, expected: str) -> None:
    one = head([[5.0, 0.0, 0.0], [4.0, 0.0, 0.0]], ["a", "b"])
    two = head([[3.0, 0.0, 0.0], [-3.0, 0.0, 0.0], [0.0, 0.0, 0.0]], ["c", "d", "e"])
    for members in ([one, two], [two, one]):
        assert predict(members, X[:1], aggregation=aggregation).tolist() == [expected]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_members_may_share_labels_and_all_are_asked(aggregation: Aggregation) -> None:
    """Each knows one row well; what they say of the same label meets in that label."""
    one = head([[9.0, 0.0, 0.0], [0.0, 0.1, 0.0], [0.0, 0.0, 0.0]], ["a", "b", "z"])
    two = head([[0.0, 9.0, 0.0], [0.1, 0.0, 0.0], [0.0, 0.0, 0.0]], ["b", "a", "z"])
    assert predict([one, two], X[:2], aggregation=aggregation).tolist() == ["a", "b"]
    assert predict([two], X[:2], aggregation=aggregation).tolist() == ["a", "b"]


@pytest.mark.parametrize("aggregation", ["median", "entropy"])
def test_a_member_of_one_label_decides_only_where_no_other_can(aggregation: Aggregation) -> None:
    """Also where the others are undecided, and wherever it stands; among such members the largest output decides."""
    single = head([[100.0, 100.0, 100.0]], ["only"])
    other = head([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]], ["a", "b"])
    for members in ([single, other], [other, single]):
        assert predict(members, X, aggregation=aggregation).tolist() == ["a", "b", "a"]
        assert predict(members, X, aggregation="argmax").tolist() == ["only"] * 3
    assert predict([single], X[:2], aggregation=aggregation).tolist() == ["only", "only"]
    less = head([[200.0, 0.0, 0.0]], ["less"])
    assert predict([single, less], X[:2], aggregation=aggregation).tolist() == ["less", "only"]


def test_a_changed_backbone_is_refused() -> None:
    tiny = {"tiny": Backbone(TINY)}
    facts = {"labels": ["a", "b"], "backbone": tiny["tiny"].document}
    made = artifact("cosine", {"sums": np.random.default_rng(0).random((2, 16))}, **facts)
    assert len(predict([made], images(300), backbones=tiny)) == 300
    changed = artifact("cosine", made.tensors, **{**facts, "backbone": {"name": "tiny", "digest": "sha256:0"}})  # type: ignore[arg-type]
    with pytest.raises(BackboneProblem):
        predict([changed], images(1), backbones=tiny)
    with pytest.raises(BackboneProblem):
        predict([made], images(1))


def test_releases_of_different_kinds_or_of_none_are_refused() -> None:
    cosine = artifact("cosine", {"sums": [[1.0, 0.0, 0.0]]}, labels=["a"])
    labels = Artifact(release="l", tensors={}, facts={"labels": ["a"]})
    for wrong in ([], [labels], [cosine, head([[1.0, 0.0, 0.0]], ["a"])]):
        with pytest.raises(InvalidInput, match="released"):
            predict(wrong, X)
    assert set(PREDICTORS) == {"network", "cosine", "adapter", "linear"}
    assert predict([cosine], X[:0]).tolist() == []


def test_labels_are_read_by_the_rules_of_the_models_that_decide() -> None:
    """Members know their own: the newest that names a label reads it, and only then those that read all others."""
    exact: dict[str, Any] = {"remap": [], "remap_rule": "exact", "otherwise": ""}
    prefix = exact | {"remap_rule": "prefix"}
    old = artifact("adapter", {}, labels=["250"], label_rules=[prefix])
    new = artifact("adapter", {}, labels=["other"], label_rules=[exact | {"otherwise": "other"}])
    assert truths([old, new], np.array(["250.1", "7", "other", "250"])).tolist() == ["250", "other", "other", "250"]
    assert truths([old], np.array([2501, 7])).tolist() == ["250", "7"]  # whole numbers are their decimals
    last = artifact("cosine", {}, labels=["a"], label_rules=[exact])
    first = artifact("cosine", {}, labels=["b"], label_rules=[prefix])
    assert truths([first, last], np.array(["bb", "a", "ab"])).tolist() == ["bb", "a", "ab"]  # the last alone decides
    assert truths([last], np.array([], dtype=np.str_)).shape == (0,)
