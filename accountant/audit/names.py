"""What the name of a tensor tells of it, in the ways of torch, Keras, Flax, optax and scikit-learn.

Names are compared word by word; words lie between dots, slashes, colons and underscores: `layer1_bn1_running_mean` is a
running mean, and `account.weight` no count. What is told are words of finite lists, and nothing else of a name.
"""

from __future__ import annotations

import re
from typing import Final

_FROM, _TO = r"(?:(?<=[._])|^)", r"(?=[._]|$)"  # where a word begins and ends


def _phrases(*patterns: str) -> re.Pattern[str]:
    return re.compile(f"{_FROM}(?:{'|'.join(patterns)}){_TO}")


_STATISTICS: Final = _phrases(
    "running_(?:mean|var|std)", "moving_(?:mean|var|variance)", "num_batches_tracked", "batch_stats", "(?:mean|var)_ema"
)  # fmt: skip
#: Of a layer of normalisation that has a mean: Flax and Keras name its parts so.
_NORM: Final = _phrases(r"bn\d*", r"norm\d*", r"batch_?norm(?:alization)?\d*", "normali[sz]ation")
_MOMENTS: Final = frozenset({"mean", "var", "variance"})

_OPTIMIZER: Final = _phrases(
    "(?:max_)?exp_avg(?:_sq)?", "exp_inf", "momentum_buffer", "square_avg", "grad_avg", "acc_delta", "param_groups",
    "optimi[sz]er(?:_states?)?(?:_dict)?", "optim", "opt_state", "adam", "adamw", "adamax", "nadam", "adagrad",
    "adadelta", "adafactor", "rmsprop",
)  # fmt: skip
#: What lies under one of the first words and one of the second is the state of an optimizer.
_HOLDERS: Final = frozenset({"opt", "state", "states", "slots", "sgd", "lion", "lamb", "ftrl"})
_SLOTS: Final = frozenset({"mu", "nu", "m", "v", "trace", "momentum", "velocity", "accumulator"})

_WHO: Final = "samples|examples|rows|records|users|datapoints|images|patients|instances|observations"
_ONE: Final = "sample|example|row|record|user|datapoint|patient|instance|class|label|task"
_COUNTS: Final = _phrases(
    f"(?:n|num|total)_(?:train_|training_)?(?:{_WHO}|obs|data|train|seen)",
    f"(?:{_ONE})_(?:counts?|sizes|freqs?|frequency|frequencies|histogram)",
    f"(?:n|num|counts?|sizes?|{_WHO})_per_(?:class|label|task|user)",
    f"(?:{_WHO})_seen", "train_size", "dataset_size",
)  # fmt: skip
_COUNTS_AT_END: Final = ("counts", "histogram")
_COUNTS_ALONE: Final = frozenset({"counts", "histogram", "support"})

_DATA: Final = _phrases(
    "replay_buffer", "episodic_memory", "exemplars", "support_set", "coreset", "trainset",
    "(?:train|training)_(?:x|y|data|images|labels|features|texts|tokens|inputs|targets|rows|samples|examples|set)",
    "(?:x|y|data|images|labels|features|texts|inputs|targets)_(?:train|training)",
    "(?:private|raw)_(?:data|images|rows|records|samples|examples)",
)  # fmt: skip
#: Words that also name layers: they tell of data only at the end of a name, or before one of the words below.
_MAYBE_DATA: Final = frozenset(
    {"memory", "memories", "buffer", "replay", "samples", "examples", "dataset", "inputs", "data", "images"}
)
_COLUMNS: Final = frozenset({"x", "y", "data", "images", "rows", "labels", "targets", "features", "texts", "tokens"})
_LEARNED: Final = frozenset({"tokens"})  # memory_tokens are weights of transformers

_METRICS: Final = _phrases("accuracy", "acc", "auc", "auroc", "f1", "loss", "perplexity", "precision", "recall")


def statistics_in(name: str) -> frozenset[str]:
    """Words that tell of running statistics of normalisation layers."""
    plain = _plain(name)
    layer, last = _last(plain)
    moments = {last} & _MOMENTS if _NORM.search(layer) else set()
    return frozenset({*_STATISTICS.findall(plain), *moments})


def optimizer_in(name: str) -> frozenset[str]:
    """Words that tell of an optimizer's state."""
    plain = _plain(name)
    parts = frozenset(plain.split("."))
    slots = parts & _SLOTS if parts & _HOLDERS else frozenset()
    return frozenset({*_OPTIMIZER.findall(plain), *slots})


def counts_in(name: str) -> frozenset[str]:
    """Words that tell of numbers of examples."""
    plain = _plain(name)
    ends = {word for word in _COUNTS_AT_END if plain.endswith(f"_{word}")}
    return frozenset({*_COUNTS.findall(plain), *ends, *(_COUNTS_ALONE & set(plain.split(".")))})


def data_in(name: str) -> frozenset[str]:
    """Words that tell of rows of data."""
    plain = _plain(name)
    *before, last = plain.split(".")
    words = last.split("_")
    told = {last} | (set(before) if last in _COLUMNS or last.isdigit() else set())
    told |= set(words[:-1]) if words[-1] in _COLUMNS - _LEARNED else set()
    return frozenset({*_DATA.findall(plain), *(told & _MAYBE_DATA)})


def is_metric(name: str) -> bool:
    """Whether the name of an entry is that of a metric."""
    return _METRICS.search(_plain(name)) is not None


def _plain(name: str) -> str:
    return name.lower().removesuffix(":0").replace("/", ".").replace(":", ".").replace("-", "_").replace(" ", "_")


def _last(plain: str) -> tuple[str, str]:
    """A name without its last word, and that word."""
    at = max(plain.rfind("."), plain.rfind("_"))
    return plain[: max(0, at)], plain[at + 1 :]
