"""Which tensors of a file answer with labels, and how wide they are: by what the file says, or by the names of layers.

A layer's weight has a row for each output, as torch writes it; a kernel has a column for each, as Keras and Flax do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from accountant.audit.contents import Contents, Tensor

#: What the layer that answers is usually called.
_HEADS: Final = frozenset(
    {
        "head", "heads", "classifier", "classifiers", "clf", "fc", "logits", "score", "predictions", "last_layer",
        "output_layer",
    }
)  # fmt: skip
_HEAD_ENDINGS: Final = ("_head", "_classifier", "_logits")
_ROWS, _COLUMNS, _BIASES = frozenset({"weight"}), frozenset({"kernel", "w"}), ("bias", "b")
_MOST_DIGITS: Final = 9  # of a layer's number


def own_head(contents: Contents) -> str | None:
    """The tensor by which an artifact of ours says that it answers; None if it is not one, or says nothing."""
    match (contents.facts or {}).get("predictor"):
        case "cosine":
            return "sums"
        case "linear":
            return "weight"
        case "adapter":
            return "head.weight"
        case "network":  # layers are numbered
            numbered = [
                (int(number), tensor.name)
                for tensor in contents.tensors
                for number, _, kind in (tensor.name.partition("."),)
                if number.isdecimal() and len(number) <= _MOST_DIGITS and kind == "weight"
            ]
            return max(numbered)[1] if numbered else "0.weight"
        case _:
            return None


def widths(tensors: Mapping[str, Tensor], name: str) -> tuple[int, ...]:
    """How many outputs a tensor has, and the bias beside it; empty if it is not there, or has nothing to count."""
    found = tensors.get(name)
    if found is None or not found.shape:
        return ()
    layer = _layer(name)
    width = found.shape[-1] if layer.kind in _COLUMNS else found.shape[0]
    biases = [tensors[each] for kind in _BIASES if (each := f"{layer.prefix}{kind}{layer.rest}") in tensors]
    is_weight = layer.kind in _ROWS | _COLUMNS
    return (width, *(bias.shape[-1] for bias in biases if is_weight and bias.shape))


def likely(tensors: Mapping[str, Tensor]) -> Sequence[str]:
    """The tensors that answer by the name of their layer, or, where there is none, of a module that they lie in."""
    layers = [(name, _layer(name)) for name, tensor in tensors.items() if len(tensor.shape) > 1]
    weights = [(name, layer.path) for name, layer in layers if layer.kind in _ROWS | _COLUMNS and layer.path]
    by_layer = [name for name, path in weights if _is_head(path[-1])]
    return by_layer or [name for name, path in weights if any(map(_is_head, path))]


def _is_head(word: str) -> bool:
    return word in _HEADS or word.endswith(_HEAD_ENDINGS)


class _Layer(NamedTuple):
    """A tensor's name, taken apart: `head.weight` is `head.`, its path (head,), the kind weight, and no rest."""

    prefix: str
    path: tuple[str, ...]
    kind: str
    rest: str


def _layer(name: str) -> _Layer:
    plain = name.removesuffix(":0")
    at = max(plain.rfind(mark) for mark in "./_") + 1
    path = plain[: max(0, at - 1)].lower().replace("/", ".").split(".")
    return _Layer(prefix=plain[:at], path=tuple(filter(None, path)), kind=plain[at:].lower(), rest=name[len(plain) :])
