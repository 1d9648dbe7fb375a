"""Frozen public modules that turn a row into features, by the names that a worker's configuration gives them.

A job names a backbone; code and weights are the worker's. What a backbone makes of a row depends on that row alone:
the module is in evaluation mode, keeps the statistics that it came with, and sees batches of one shape, so that not
even rounding tells which rows stood beside it. Public rows show whether it is so before any other is looked at. To
apply it is a map on records, and every guarantee passes through it.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from accountant.canonical import canonical
from accountant.errors import InvalidInput
from trainers.feature_cache import FeatureCache

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainers.ports import Rows, Run

#: Rows that pass a module at a time; a batch that is not full is filled with zeros.
_BATCH: Final = 64
_PROBES: Final = 2  # public rows that are looked at in both batches, a small one and a large one
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_FACTORY: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")

Code: TypeAlias = Literal[
    "backbone.unknown", "backbone.changed", "backbone.weights", "backbone.shape", "backbone.statistics"
]


class BackboneProblem(Exception):
    """A backbone that cannot be used. The code is all that may leave the worker."""

    def __init__(self, code: Code, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A backbone as a worker's configuration describes it.

    `factory` is `module:function`; called with `size`, the function returns a module from (n, channels, size, size) to
    (n, features), which is then given the tensors of the `weights` file. With `size` 0 rows are taken in the shape that
    they have. A row x becomes (x − shift) / scale, number by number or channel by channel.
    """

    name: str
    factory: str
    weights: Path | None = None
    weights_sha256: str | None = None
    size: int = 0
    channels: int = 3
    shift: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidInput("backbones", self.name, "a name of lower-case letters, digits, '.', '_' and '-'")
        at = f"backbones.{self.name}"
        if not isinstance(self.factory, str) or not _FACTORY.fullmatch(self.factory):
            raise InvalidInput(f"{at}.factory", self.factory, "module:function")
        if not isinstance(self.size, int) or not 0 <= self.size <= 4096:
            raise InvalidInput(f"{at}.size", self.size, "a number of pixels up to 4096, or 0 to leave rows as they are")
        for name, values in (("shift", self.shift), ("scale", self.scale)):
            if len(values) not in (1, self.channels) or not all(np.isfinite(values)):
                raise InvalidInput(f"{at}.{name}", values, f"one finite number, or {self.channels}")
        if not all(value > 0 for value in self.scale):
            raise InvalidInput(f"{at}.scale", self.scale, "numbers above 0")


#: What a configuration need not say of these names. EfficientNet-Lite normalises 0…255 by 127 and 128.
BUILT_IN: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "efficientnet-lite0": {
            "factory": "trainers.backbones:efficientnet_lite0",
            "size": 224,
            "shift": (127.0,),
            "scale": (128.0,),
        }
    }
)


@dataclass(frozen=True, eq=False)
class Backbone:
    """One entry, loaded when it is first used."""

    entry: Entry
    cache: Path | None = None
    device: str = "cpu"

    @property
    def name(self) -> str:
        return self.entry.name

    @cached_property
    def _weights(self) -> bytes | None:
        if self.entry.weights is None:
            return None
        try:
            content = self.entry.weights.read_bytes()
        except OSError as error:
            raise BackboneProblem("backbone.weights", f"The weights of {self.name} cannot be read.") from error
        pinned = self.entry.weights_sha256
        if pinned is not None and hashlib.sha256(content).hexdigest() != pinned:
            raise BackboneProblem("backbone.weights", f"The weights of {self.name} are not those that were pinned.")
        return content

    @cached_property
    def digest(self) -> str:
        """What features mean: the factory's path, the hash of the weights, and the preparation of rows.

        Without a file the weights are those that the factory made: one that draws them anew is another every time.
        """
        weights = _hash_of(self.module) if self._weights is None else hashlib.sha256(self._weights).hexdigest()
        meaning = {
            "factory": self.entry.factory,
            "weights": weights,
            "size": self.entry.size,
            "channels": self.entry.channels,
            "shift": list(self.entry.shift),
            "scale": list(self.entry.scale),
            "resize": "bilinear",
        }
        return "sha256:" + hashlib.sha256(canonical(meaning)).hexdigest()

    @property
    def document(self) -> dict[str, str]:
        """As the facts of an artifact name it."""
        return {"name": self.name, "digest": self.digest}

    @cached_property
    def module(self) -> nn.Module:
        """The module, frozen. Whoever tunes it takes a copy."""
        path, function = self.entry.factory.split(":")
        module: nn.Module = getattr(importlib.import_module(path), function)(size=self.entry.size)
        if self._weights is not None:
            # Tensors that the module has no place for, such as those of a classifier that was cut off, are left out.
            missing = module.load_state_dict(_tensors(self.entry.weights, self._weights), strict=False).missing_keys
            if missing:
                raise BackboneProblem("backbone.weights", f"The weights of {self.name} lack {', '.join(missing)}.")
        for each in module.modules():
            if isinstance(each, nn.modules.batchnorm._BatchNorm) and each.running_mean is None:  # noqa: SLF001
                sentence = f"{self.name} normalises by the statistics of a batch, which is private."
                raise BackboneProblem("backbone.statistics", sentence)
        return module.to(self.device).requires_grad_(False).eval()  # noqa: FBT003

    def prepared(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows as the module takes them: channels first, resized (bilinear), normalised."""
        if self.entry.size:
            if rows.ndim == 4 and rows.shape[1] != self.entry.channels:
                rows = rows.permute(0, 3, 1, 2).contiguous()
            if rows.ndim != 4 or rows.shape[1] != self.entry.channels:
                sentence = f"A row for {self.name} is an image of {self.entry.channels} channels, first or last."
                raise BackboneProblem("backbone.shape", sentence)
            size = (self.entry.size, self.entry.size)
            if rows.shape[2:] != size:
                rows = functional.interpolate(rows, size=size, mode="bilinear", align_corners=False, antialias=True)
        return (rows - _by_channel(self.entry.shift, rows)) / _by_channel(self.entry.scale, rows)

    def width(self, shape: Sequence[int]) -> int:
        """How many features it makes of a row of this shape."""
        width: int = self._probed(tuple(shape)).shape[1]
        return width

    def features(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """The features of each row, from the cache where they are there; zeros where any of them is not finite."""
        probe = self._probed(x.shape[1:])
        if self.cache is None:
            return self._computed(x)
        folder = hashlib.sha256(self.digest.encode() + repr(x.shape[1:]).encode() + probe.tobytes()).hexdigest()
        return FeatureCache(self.cache / folder, size=probe.shape[1]).through(x, self._computed)

    def featured(self, rows: Rows) -> Rows:
        """These rows with features for x, without those whose features are not finite or all zero: they are null."""
        features = self.features(rows.x)
        there = features.any(axis=1)
        y = rows.y[there] if len(rows.y) else rows.y
        return replace(rows, unit=rows.unit[there], x=features[there], y=y)

    @cached_property
    def _probes(self) -> dict[tuple[int, ...], NDArray[np.float32]]:
        return {}

    def _probed(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """The features of public rows of this shape, which tell one program, device or version from another.

        They must be the same to the bit at the beginning of a batch that is zero and at the end of a full one. Whatever
        looks at the rows of a batch together, or draws chance of its own, or rounds by place, shows itself there.
        """
        if shape not in self._probes:
            rows = _public_rows(shape)
            alone, among = self._batch(rows[:_PROBES]), self._batch(rows[::-1])[::-1][:_PROBES]
            if alone.tobytes() != among.tobytes():
                sentence = f"What {self.name} makes of a row depends on the rows beside it, or on its place among them."
                raise BackboneProblem("backbone.statistics", sentence)
            self._probes[shape] = alone
        return self._probes[shape]

    def _computed(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        batches = [self._batch(x[start : start + _BATCH]) for start in range(0, max(len(x), 1), _BATCH)]
        features = np.concatenate(batches)
        features[~np.isfinite(features).all(axis=1)] = 0
        return features

    def _batch(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        full = np.zeros((_BATCH, *x.shape[1:]), dtype=np.float32)
        full[: len(x)] = x
        with torch.no_grad():
            made = self.module(self.prepared(torch.from_numpy(full).to(self.device))).reshape(_BATCH, -1)
        features: NDArray[np.float32] = made.to("cpu", torch.float32).numpy()
        return features[: len(x)]


def configured(path: Path, *, cache: Path | None = None, device: str = "cpu") -> Mapping[str, Backbone]:
    """The backbones of a configuration file, TOML or JSON, with a table `backbones` of one table for each name.

    Paths of weights are relative to the file. Nothing is loaded before it is used.
    """
    text = path.read_text(encoding="utf-8")
    document = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    tables = document.get("backbones") if isinstance(document, dict) else None
    if not isinstance(tables, dict):
        raise InvalidInput("backbones", tables, "a table with one table for each backbone")
    entries = [entry(name, table, folder=path.parent) for name, table in tables.items()]
    return MappingProxyType({each.name: Backbone(each, cache, device) for each in entries})


def entry(name: str, table: object, *, folder: Path = Path()) -> Entry:
    """One entry, from a table of a configuration."""
    known = [*Entry.__dataclass_fields__]
    if not isinstance(table, Mapping):
        raise InvalidInput(f"backbones.{name}", table, f"a table with some of {', '.join(known[1:])}")
    for key in table:
        if key not in known[1:]:
            raise InvalidInput(f"backbones.{name}.{key}", table[key], f"nothing: there are {', '.join(known[1:])}")
    given: dict[str, Any] = {**BUILT_IN.get(name, {}), **table}
    if given.get("weights") is not None:
        given["weights"] = folder / given["weights"]
    for key in ("shift", "scale"):
        value = given.get(key, ())
        given[key] = tuple(map(float, value if isinstance(value, Sequence) else (value,))) or getattr(_DEFAULT, key)
    return Entry(**{"factory": "", **given, "name": name})


def option(text: str) -> Entry:
    """One entry, from a word of a command line: `name=module:factory,weights=path,size=96`.

    >>> option("tiny=package.nets:tiny,size=16").size
    16
    >>> option("efficientnet-lite0,weights=lite0.pth,size=96").scale
    (128.0,)
    """
    first, *rest = text.split(",")
    name, _, factory = first.partition("=")
    table: dict[str, Any] = {"factory": factory} if factory else {}
    for word in rest:
        key, _, value = word.partition("=")
        table[key] = int(value) if key in ("size", "channels") else float(value) if key in ("shift", "scale") else value
    return entry(name, table)


def chosen(backbones: Mapping[str, Backbone], name: str, *, digest: str | None = None) -> Backbone:
    """The backbone of this name, and of this digest where an artifact was made with it."""
    if name not in backbones:
        raise BackboneProblem("backbone.unknown", f"This worker has no backbone {name!r}.")
    found = backbones[name]
    if digest is not None and found.digest != digest:
        raise BackboneProblem("backbone.changed", f"The backbone {name!r} is not the one that was built on.")
    return found


def features_of(run: Run) -> tuple[dict[str, str] | None, list[Rows]]:
    """The rows of a run as features, and the backbone that made them; None if they were features already."""
    if run.recipe["backbone"]:
        backbone = chosen(run.backbones, run.recipe["backbone"])
        return backbone.document, [backbone.featured(rows) for rows in run.rows]
    return None, [replace(rows, x=rows.x.reshape(len(rows), math.prod(rows.x.shape[1:]))) for rows in run.rows]


def efficientnet_lite0(*, size: int) -> nn.Module:
    """EfficientNet-Lite0 without its classifier: (n, 3, size, size) to (n, 1280)."""
    factory: Callable[..., Any] = importlib.import_module("efficientnet_lite_pytorch").EfficientNet.from_name
    # Dropped connections are for training, with chance that is not ours.
    module: nn.Module = factory("efficientnet-lite0", image_size=size, drop_connect_rate=0, dropout_rate=0)
    module._fc = nn.Identity()  # noqa: SLF001
    return module


def _tensors(path: Path | None, content: bytes) -> Mapping[str, torch.Tensor]:
    """The tensors of a weights file. Nothing in it is run."""
    if path is not None and path.suffix == ".safetensors":
        return importlib.import_module("safetensors.torch").load(content)  # type: ignore[no-any-return]
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)  # type: ignore[no-any-return]


def _by_channel(values: Sequence[float], rows: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=rows.dtype, device=rows.device).reshape(-1, *(1,) * max(rows.ndim - 2, 0))


def _public_rows(shape: Sequence[int]) -> NDArray[np.float32]:
    """A full batch of different rows, every other one small and every other one as large as a photograph's.

    In large numbers a softmax looks at one place alone, and in small ones a unit may be silent.
    """
    values = np.random.default_rng(0).integers(256, size=(_BATCH, *shape), dtype=np.uint8)
    size = np.where(np.arange(_BATCH) % 2, np.float32(1), np.float32(1 / 256))
    return values.astype(np.float32) * size.reshape(-1, *(1,) * len(shape))


def _hash_of(module: nn.Module) -> str:
    """Of all parameters and buffers, by name, type and shape."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(canonical([name, str(tensor.dtype), list(tensor.shape)]))
        digest.update(tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


_DEFAULT: Final = Entry(name="default", factory="none:none")
