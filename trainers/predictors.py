"""What released models say about new rows: one function for every kind of artifact.

An artifact can be predicted with if its facts say how. `facts["predictor"]` is one of `PREDICTORS`; with it go tensors
and, beside `labels`, further facts:

- `network`: the tensors are the state of the module that `models.build(facts["recipe"], outputs=len(labels))` gives.
  Facts: `recipe`, `backbone`.
- `cosine`: `sums` (labels × size), a noisy sum of unit features for each label. Facts: `backbone`.
- `adapter`: what `adapters.tensors` gives for one task; a stream has one such artifact for each task.
  Facts: `recipe`, `backbone`.
- `linear`: `weight` (labels × size; one row is enough for two labels, and speaks for the second), and `bias` (as many
  as rows) or none; further tensors are ignored. Facts: `row_norm`, `backbone`.

The facts:

- `labels`: the names of the outputs in order, as text. There may be none, if a release told none.
- `recipe`: the part of the run's recipe that the module is built from: `model`, `hidden` and `shape`; of an adapter
  `adapter`, `shape`, that of a row, and `feature_norm`, the norm at which the head sees features (0 or absent: theirs).
- `backbone`: `{"name", "digest"}` of the frozen module whose features were trained on; None or absent if rows were
  taken as they are. A backbone of another digest is refused.
- `label_rules`: how labels of the data are read as these names, newest rules first: `remap`, `remap_rule` and
  `otherwise` as in a recipe. Absent: labels are the names.
- `row_norm`: rows are scaled down to at most this L2 norm before they meet the weights; None or absent: they are not.

All of it is public or was released, so predictions on public rows are post-processing and cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import numpy as np
import torch

from accountant.errors import InvalidInput
from trainers import adapters, models
from trainers.backbones import chosen
from trainers.labels import space_of, texts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainers.backbones import Backbone
    from trainers.ports import Released

PredictorKind: TypeAlias = Literal["network", "cosine", "adapter", "linear"]
PREDICTORS: Final[tuple[PredictorKind, ...]] = get_args(PredictorKind)

#: How an ensemble of one model for each task decides; see `predict`.
Aggregation: TypeAlias = Literal["argmax", "median", "entropy"]
AGGREGATIONS: Final[tuple[Aggregation, ...]] = get_args(Aggregation)

Backbones: TypeAlias = Mapping[str, "Backbone"]
#: (n, labels): how much each row is like each label.
Scores: TypeAlias = "NDArray[np.float32]"

BATCH: Final = 256  # rows that are looked at together
#: What is said of a row where no label was ever released.
NO_LABEL: Final = ""


def predict(
    released: Sequence[Released],
    x: NDArray[np.float32],
    *,
    backbones: Backbones = MappingProxyType({}),
    aggregation: Aggregation = "argmax",
    device: str = "cpu",
) -> NDArray[np.str_]:
    """The label of each row, by the releases of one stream, oldest first.

    Where each release contains what came before it, the last one decides. Adapters know a task each, and all of them
    are asked: the largest output of any decides (`argmax`); or the largest after each model's median output is taken
    off its outputs (`median`); or the model whose outputs have the least entropy (`entropy`). A model of one label has
    nothing to compare its output with, and a softmax of one label learns nothing: by `median` and `entropy` it decides
    only where no other can, and among such the largest output does.
    """
    asked = _asked(released)
    if not asked:
        return np.full(len(x), NO_LABEL)
    names = np.array(list(dict.fromkeys(name for each in asked for name in each.facts["labels"])))
    place = {name: number for number, name in enumerate(names.tolist())}
    found = np.empty(len(x), dtype=np.int64)
    members = [(_scorer(each, backbones, device), [place[name] for name in each.facts["labels"]]) for each in asked]
    for start in range(0, len(x), BATCH):
        batch = x[start : start + BATCH]
        outputs = [(scores(batch), places) for scores, places in members]
        found[start : start + BATCH] = _decided(outputs, labels=len(names), aggregation=aggregation)
    return names[found]


def refuse_by_place(released: Sequence[Released], shape: Sequence[int], *, backbones: Backbones, device: str) -> None:
    """Refuse models that score a row otherwise at the next place of a batch, in however small a digit.

    One row more moves others to the next place, and those on the border of two answers could all change theirs at once.
    """
    rows = np.random.default_rng(0).normal(size=(BATCH, *shape)).astype(np.float32)  # public
    for each in _asked(released):
        scores = _scorer(each, backbones, device)
        if not np.array_equal(np.roll(scores(rows), 1, axis=0), scores(np.roll(rows, 1, axis=0))):
            raise InvalidInput("recipe.models", each.release, "models that score a row alike wherever it stands")


def truths(released: Sequence[Released], y: NDArray[Any]) -> NDArray[np.str_]:
    """Labels of the data as these releases name them: what `predict` should have said of each row.

    A label is read by the rules that a model was trained under (`facts["label_rules"]`), the newest that know it first;
    rules for all other labels (`otherwise`) come after all that know it by its name or its beginning. A label that none
    reads stays as it is, and so does every label if the facts have no rules.
    """
    spaces = [
        (rules, each.facts["labels"])
        for each in reversed(_asked(released))
        for rules in each.facts.get("label_rules", [])
    ]
    found = np.array(texts(y), dtype=np.object_)
    unread = np.ones(len(y), dtype=np.bool_)
    for last in ({"otherwise": ""}, {}):
        for rules, labels in spaces:
            names = np.array(labels, dtype=np.object_)
            index = space_of({"label_source": "released", **rules, **last}, names=labels).indices(y)
            read = unread & (index >= 0)
            found[read] = names[index[read]]
            unread &= ~read
    return found.astype(np.str_)


def _asked(released: Sequence[Released]) -> list[Released]:
    """Those that decide: all adapters, else the last; without those that know no label."""
    kinds = {each.facts.get("predictor") for each in released}
    if len(kinds) != 1 or not kinds <= _SCORES.keys():
        raise InvalidInput("released", [each.release for each in released], "releases of one kind of predictor")
    return [each for each in (released if kinds == {"adapter"} else released[-1:]) if each.facts["labels"]]


def _decided(
    outputs: Sequence[tuple[Scores, Sequence[int]]], *, labels: int, aggregation: Aggregation
) -> NDArray[np.int64]:
    """Which label each row gets, from what each member says of the labels that it knows."""
    if all(len(places) == 1 for _, places in outputs):
        aggregation = "argmax"
    best = np.full((len(outputs), len(outputs[0][0]), labels), -np.inf)
    weight = np.zeros(best.shape[:2])
    for number, (scores, places) in enumerate(outputs):
        said = scores - np.median(scores, axis=1, keepdims=True) if aggregation == "median" else scores
        best[number][:, places] = said
        if aggregation != "argmax" and len(places) == 1:  # no distance from its own median, and no doubts
            weight[number] = -np.inf
        else:
            weight[number] = said.max(axis=1) if aggregation != "entropy" else -_entropy(scores)
    decides = weight.argmax(axis=0)
    found: NDArray[np.int64] = best[decides, np.arange(best.shape[1])].argmax(axis=1)
    return found


def _entropy(scores: Scores) -> NDArray[np.float64]:
    """Of the softmax of each row."""
    shifted = scores.astype(np.float64) - scores.max(axis=1, keepdims=True)
    odds = np.exp(shifted)
    total = odds.sum(axis=1)
    entropy: NDArray[np.float64] = np.log(total) - (odds * shifted).sum(axis=1) / total
    return entropy


def _scorer(released: Released, backbones: Backbones, device: str) -> Callable[[NDArray[np.float32]], Scores]:
    """From rows as they are stored to scores."""
    facts = released.facts
    named = facts.get("backbone")
    backbone = chosen(backbones, named["name"], digest=named["digest"]) if named else None
    # FiLM tunes the backbone itself, so that there are no features to begin with.
    inside = facts["predictor"] == "adapter" and facts["recipe"]["adapter"] == "film"
    scores = _SCORES[facts["predictor"]](released, backbone, device)
    if backbone is None or inside:
        return scores
    features = backbone.features
    return lambda x: scores(features(x))


def _cosine(released: Released, _backbone: Backbone | None, device: str) -> Callable[[NDArray[np.float32]], Scores]:
    sums = released.tensors["sums"].to(device)
    norms = sums.norm(dim=1, keepdim=True)
    directions = (sums / norms.clamp(min=torch.finfo(sums.dtype).tiny)).to(torch.float32)
    return lambda x: (_flat(x).to(device) @ directions.T).cpu().numpy()


def _linear(released: Released, _backbone: Backbone | None, device: str) -> Callable[[NDArray[np.float32]], Scores]:
    weight = released.tensors["weight"].to(device, torch.float32)
    bias = released.tensors.get("bias", torch.zeros(len(weight))).to(device, torch.float32)
    labels, most = len(released.facts["labels"]), released.facts.get("row_norm")
    one_row = len(weight) == 1 and labels == 2
    if not one_row and len(weight) != labels:
        raise InvalidInput("weight", tuple(weight.shape), f"a row for each of {labels} labels")

    def scores(x: NDArray[np.float32]) -> Scores:
        rows = _flat(x).to(device)
        if most is not None:
            rows = rows * (most / rows.norm(dim=1, keepdim=True).clamp(min=most))
        made = rows @ weight.T + bias
        made = torch.cat([torch.zeros_like(made), made], dim=1) if one_row else made
        return made.cpu().numpy()  # type: ignore[no-any-return]

    return scores


def _network(released: Released, _backbone: Backbone | None, device: str) -> Callable[[NDArray[np.float32]], Scores]:
    module = models.build(released.facts["recipe"], outputs=len(released.facts["labels"]))
    models.load(module, released.tensors)
    return _forward(module, device)


def _adapter(released: Released, backbone: Backbone | None, device: str) -> Callable[[NDArray[np.float32]], Scores]:
    recipe, labels = released.facts["recipe"], len(released.facts["labels"])
    norm = recipe.get("feature_norm", 0.0)
    if recipe["adapter"] == "film":
        assert backbone is not None, "film is of a backbone"
        module = adapters.film(backbone, shape=recipe["shape"], labels=labels, norm=norm)
    else:
        module = adapters.last_layer(width=released.tensors["head.weight"].shape[1], labels=labels, norm=norm)
    adapters.restore(module, released.tensors)
    return _forward(module, device)


def _forward(module: Any, device: str) -> Callable[[NDArray[np.float32]], Scores]:
    module = module.to(device).eval()

    def scores(x: NDArray[np.float32]) -> Scores:
        with torch.no_grad():
            made: Scores = module(torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32)).to(device)).cpu().numpy()
        return made

    return scores


def _flat(x: NDArray[np.float32]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32)).flatten(1)


_SCORES: Final[Mapping[str, Callable[[Released, Backbone | None, str], Callable[[NDArray[np.float32]], Scores]]]] = (
    MappingProxyType({"network": _network, "cosine": _cosine, "adapter": _adapter, "linear": _linear})
)
