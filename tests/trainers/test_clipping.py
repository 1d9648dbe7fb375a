"""Clipped sums: those of rows one by one, and of Opacus where it takes the layer; and bounded whatever a row does."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from opacus.grad_sample import GradSampleModule
from torch import nn
from torch.nn import functional

from accountant import InvalidInput
from trainers import clipping
from trainers.adapters import film, last_layer
from trainers.backbones import Backbone, Entry
from trainers.catalog import mechanism
from trainers.catalog.data_documents import MAX_ROWS_PER_UNIT
from trainers.clipping import clipped_sum, cross_entropy, trainable
from trainers.models import Affine, build

ROWS: Final = 7
CLASSES: Final = 3
Shape = tuple[int, ...]


class Twice(nn.Module):  # type: ignore[misc]
    """A layer that is used twice, once on what it made itself."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.tanh(self.layer(x)))


class Tied(nn.Module):  # type: ignore[misc]
    """A table whose weights are also those of a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 5)
        self.back = nn.Linear(5, 11, bias=False)
        self.back.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.back(torch.tanh(self.table(x))).mean(1)[:, :CLASSES]


class Own(nn.Module):  # type: ignore[misc]
    """A layer that no table knows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x * self.weight)


class Mean(nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(1)


def frozen(module: nn.Module, *places: int) -> nn.Module:
    assert isinstance(module, nn.Sequential)
    for place in places:
        module[place].requires_grad_(requires_grad=False)
    return module


def still(module: nn.Module) -> nn.Module:
    """With the statistics of a public data set, in eval mode."""
    for layer in module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.running_mean = torch.randn(layer.num_features)
            layer.running_var = torch.rand(layer.num_features) + 0.5
    return module.eval()


def convolutions(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(CLASSES))


def filmed(backbone: str, *, norm: float) -> nn.Module:
    """A tiny backbone with FiLM and a head, as a member of an ensemble has them. It takes images as they are stored."""
    entry = Entry(name="tiny", factory=f"tests.trainers.tiny_backbones:{backbone}", size=16)
    return film(Backbone(entry), shape=PHOTOGRAPH, labels=CLASSES, norm=norm)


IMAGE: Final = (4, 9, 8)
PHOTOGRAPH: Final = (12, 12, 3)
MODELS: Final[dict[str, tuple[Callable[[], nn.Module], Shape]]] = {
    "linear": (lambda: nn.Linear(6, CLASSES), (6,)),
    "no bias": (lambda: nn.Sequential(nn.Linear(6, 5, bias=False), nn.ReLU(), nn.Linear(5, CLASSES)), (6,)),
    "overwritten": (lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, CLASSES)), (6,)),
    "few places": (lambda: nn.Sequential(nn.Linear(30, 20), nn.Tanh(), Mean(), nn.Linear(20, CLASSES)), (3, 30)),
    "many places": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), Mean(), nn.Linear(4, CLASSES)), (40, 3)),
    "two axes of places": (
        lambda: nn.Sequential(nn.Linear(9, 8), nn.Tanh(), Mean(), Mean(), nn.Linear(8, CLASSES)),
        (2, 2, 9),
    ),
    "convolution": (lambda: convolutions(nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)), IMAGE),
    "strides": (lambda: convolutions(nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(0, 2), bias=False)), IMAGE),
    "dilation": (lambda: convolutions(nn.Conv2d(4, 6, 2, dilation=2, padding="same")), IMAGE),
    "groups": (lambda: convolutions(nn.Conv2d(4, 6, 3, groups=2, stride=2)), IMAGE),
    "depth-wise": (lambda: convolutions(nn.Conv2d(4, 8, 3, groups=4, padding=1)), IMAGE),
    "many channels": (lambda: convolutions(nn.Conv2d(4, 64, 3), nn.ReLU(), nn.Conv2d(64, 16, 5)), (4, 7, 7)),
    "layer norm": (lambda: nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, CLASSES)), (6,)),
    "layer norm of places": (lambda: nn.Sequential(nn.LayerNorm(6), Mean(), nn.Linear(6, CLASSES)), (4, 6)),
    "group norm": (lambda: convolutions(nn.Conv2d(4, 6, 3), nn.GroupNorm(2, 6), nn.ReLU()), IMAGE),
    "affine": (lambda: convolutions(nn.Conv2d(4, 6, 3), Affine(6), nn.ReLU()), IMAGE),
    "affine of vectors": (lambda: nn.Sequential(nn.Linear(6, 5), Affine(5), nn.Linear(5, CLASSES)), (6,)),
    "frozen batch norm": (lambda: still(convolutions(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU())), IMAGE),
    "frozen batch norm of vectors": (
        lambda: still(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, CLASSES))),
        (6,),
    ),
    "frozen batch norm of places": (
        lambda: still(nn.Sequential(nn.BatchNorm1d(5), nn.Flatten(), nn.Linear(30, CLASSES))),
        (5, 6),
    ),
    "synchronised batch norm": (lambda: still(convolutions(nn.Conv2d(4, 6, 3), nn.SyncBatchNorm(6), nn.ReLU())), IMAGE),
    "rms norm": (lambda: nn.Sequential(nn.Linear(6, 5), nn.RMSNorm(5), nn.Linear(5, CLASSES)), (6,)),
    "rms norm of places": (lambda: nn.Sequential(nn.RMSNorm(6), Mean(), nn.Linear(6, CLASSES)), (4, 6)),
    "frozen layers": (
        lambda: frozen(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Linear(4, CLASSES)), 0, 2),
        (6,),
    ),
    "used twice": (lambda: nn.Sequential(Twice(nn.Linear(6, 6)), nn.Linear(6, CLASSES)), (6,)),
    "convolution used twice": (lambda: convolutions(Twice(nn.Conv2d(4, 4, 3, padding=1))), IMAGE),
    "recipe mlp": (lambda: build({"model": "mlp", "hidden": [8, 5], "shape": [6]}, outputs=CLASSES), (6,)),
    "recipe cnn": (lambda: build({"model": "cnn", "hidden": [5, 4], "shape": [4, 9, 8]}, outputs=CLASSES), IMAGE),
    "film": (lambda: filmed("tiny", norm=0.0), PHOTOGRAPH),
    "film of batch norm at a norm": (lambda: filmed("frozen_statistics", norm=8.0), PHOTOGRAPH),
    "film of instance norm at a norm": (lambda: filmed("instances", norm=8.0), PHOTOGRAPH),
    "head at a norm": (lambda: last_layer(width=6, labels=CLASSES, norm=8.0), (6,)),
    "unknown layer": (lambda: nn.Sequential(Own(), nn.Linear(6, CLASSES)), (6,)),
    "unknown layer in evaluation mode": (
        lambda: nn.Sequential(Own(), nn.Dropout(), nn.Linear(6, 6), nn.PReLU(), nn.Linear(6, CLASSES)).eval(),
        (6,),
    ),
    "unknown convolution in evaluation mode": (lambda: convolutions(nn.Conv1d(4, 6, 3), nn.ReLU()).eval(), (4, 9)),
    "film of a kind of its own": (lambda: filmed("derived", norm=8.0), PHOTOGRAPH),
}
#: Opacus refuses what is overwritten in place and every layer with buffers, and looks at none in evaluation mode.
NOT_BY_OPACUS: Final = {name for name in MODELS if name.startswith(("film", "frozen batch", "synchronised"))} | {
    "overwritten",
    "unknown layer in evaluation mode",
    "unknown convolution in evaluation mode",
}
#: Those with a layer that the table does not know.
LEFT_TO_OPACUS: Final = {name for name in MODELS if name.startswith("unknown")} | {"film of a kind of its own"}


def made(name: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    make, shape = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        module, x = make(), 3 * torch.randn(ROWS, *shape)
        module(x)  # lazy layers take their shape
        for parameter in module.parameters():
            parameter.data += 0.1 * torch.randn(parameter.shape)
    return module, x, torch.arange(ROWS) % CLASSES


def by_opacus(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """(n, …) for each parameter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = GradSampleModule(module, loss_reduction="sum", strict=False)
        cross_entropy(wrapped(x), y).sum().backward()
        found = [parameter.grad_sample.detach().clone() for parameter in trainable(module)]
        wrapped.to_standard_module()
    module.zero_grad()
    return found


def clipped(rows: list[torch.Tensor], clip_norm: float) -> list[torch.Tensor]:
    norms = torch.cat([each.flatten(1) for each in rows], dim=1).double().norm(dim=1)
    factors = (clip_norm / norms).clamp(max=1).float()
    return [torch.einsum("n,n...->...", factors, each) for each in rows]


def flat(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([part.flatten() for part in parts])


def one_by_one(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    rows = [
        torch.autograd.grad(cross_entropy(module(x[i : i + 1]), y[i : i + 1]).sum(), trainable(module))
        for i in range(len(x))
    ]
    return [torch.stack(each) for each in zip(*rows, strict=True)]


@pytest.mark.parametrize("clip_norm", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("name", MODELS)
def test_sums_are_those_of_opacus_and_of_rows_one_by_one(name: str, clip_norm: float) -> None:
    module, x, y = made(name)
    found = clipped_sum(module, x, y, clip_norm=clip_norm)
    assert [each.shape for each in found] == [each.shape for each in trainable(module)]
    assert all(parameter.grad is None for parameter in module.parameters())
    others = [one_by_one(module, x, y)] + ([] if name in NOT_BY_OPACUS else [by_opacus(module, x, y)])
    for rows in others:
        expected = flat(clipped(rows, clip_norm))
        assert float((flat(found) - expected).norm()) <= 1e-5 * float(expected.norm())


def test_a_table_is_clipped_as_opacus_does_it() -> None:
    torch.manual_seed(3)
    x = torch.randint(11, (ROWS, 6))
    x[:, 1] = x[:, 0]  # looked up twice by the same row
    y = torch.arange(ROWS) % CLASSES
    module = nn.Sequential(nn.Embedding(11, 5), Mean(), nn.Linear(5, CLASSES))
    expected = flat(clipped(by_opacus(module, x, y), 0.05))
    found = flat(clipped_sum(module, x, y, clip_norm=0.05))
    assert float((found - expected).norm()) <= 1e-5 * float(expected.norm())


@pytest.mark.parametrize("clip_norm", [1e-2, 1e3])
def test_tied_weights_and_padding_have_one_gradient(clip_norm: float) -> None:
    """Against torch, one row at a time: two layers share a matrix, and a table ignores its padding."""
    torch.manual_seed(4)
    y = torch.arange(ROWS) % CLASSES
    for module in (Tied(), nn.Sequential(nn.Embedding(11, 5, padding_idx=2), Mean(), nn.Linear(5, CLASSES))):
        x = torch.randint(11, (ROWS, 6))
        x[:, 3] = x[:, 0]
        expected = flat(clipped(one_by_one(module, x, y), clip_norm))
        found = flat(clipped_sum(module, x, y, clip_norm=clip_norm))
        assert float((found - expected).norm()) <= 1e-5 * float(expected.norm())


@pytest.mark.parametrize("name", MODELS)
def test_one_row_never_adds_more_than_the_norm(name: str) -> None:
    module, x, y = made(name)
    for scale in (1e-6, 1.0, 1e6):
        for row in range(ROWS):
            part = clipped_sum(module, scale * x[row : row + 1], y[row : row + 1], clip_norm=0.25)
            assert float(flat(part).double().norm()) <= 0.25


@pytest.mark.parametrize("width", [784, 1024, 3072, 27_648, 150_528, 1 << 20])
def test_wide_rows_add_no_more_than_the_norm(width: int) -> None:
    """In float32 a long sum of squares loses what is small beside it: plain grey, and a few bright spots on it."""
    module, y = nn.Linear(width, 2), torch.zeros(1, dtype=torch.int64)
    nn.init.zeros_(module.weight)
    rows = [torch.full((width,), grey) for grey in (0.1, 1 / 3, 0.55, 0.9)]
    for spots in (1, 8, 32):
        rows.append(torch.full((width,), 2.0**-12.55))
        rows[-1][:spots] = 1
    for x in rows:
        found = flat(clipped_sum(module, x[None], y, clip_norm=0.01)).double()
        assert 0.01 * (1 - 1e-5) <= float(found.norm()) <= 0.01


def test_no_norm_of_the_catalog_is_lost_to_the_least_float() -> None:
    """At 1e-30 a row of 1e18 would add 1.4 times the norm: its share rounds up to the least float there is."""
    module, y = nn.Linear(1, 1, bias=False), torch.zeros(1, dtype=torch.int64)
    for name in ("dp-sgd", "peft-ensemble", "episodic-memory", "dp-agem-as-published"):
        [parameter] = [each for each in mechanism(name).parameters if each.name == "clip_norm"]
        least = parameter.bounds.minimum
        assert least is not None
        clip_norm = least / MAX_ROWS_PER_UNIT
        for size in torch.logspace(0, 19, 200):
            x = size.reshape(1, 1)
            [found] = clipped_sum(module, x, y, clip_norm=clip_norm, loss=lambda outputs, _: 0.3 * outputs[:, 0])
            assert float(found.double().norm()) <= clip_norm


@pytest.mark.parametrize("clip_norm", [1e-12, 1e-4])
def test_squares_that_vanish_do_not_hide_a_gradient(clip_norm: float) -> None:
    """A huge row whose error is tiny: each square alone is lost in float32, and their product is not."""
    module = nn.Linear(2, CLASSES, bias=False)

    def tiny(outputs: torch.Tensor, _labels: torch.Tensor) -> torch.Tensor:
        return (1e-24 * outputs).sum(1)

    found = clipped_sum(module, torch.full((1, 2), 1e18), torch.zeros(1), clip_norm=clip_norm, loss=tiny)
    assert float(flat(found).double().norm()) <= clip_norm


class Summed(nn.Module):  # type: ignore[misc]
    """A layer whose outputs are added up over places, each times its weight."""

    def __init__(self, layer: nn.Module, weights: torch.Tensor | float = 1.0) -> None:
        super().__init__()
        self.layer, self.weights = layer, weights

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.layer(x) * self.weights).sum(1)


@pytest.mark.parametrize("scale", [2.0**0, 2.0**60])
def test_rounding_where_terms_cancel_is_clipped_as_well(scale: float) -> None:
    """2²⁴ + 2 + 1 − 2²⁴ − 3 is 0, but not in float32: the row's gradient is 0 in truth, and what is summed is not."""
    x = torch.zeros(1, 4, 8)
    x[0, :, 0] = scale * torch.tensor([2.0**24 + 2, 1, -(2.0**24), -3])
    module, y = Summed(nn.Linear(8, 8, bias=False)), torch.zeros(1, dtype=torch.int64)
    [found] = clipped_sum(module, x, y, clip_norm=0.5, loss=lambda outputs, _: outputs.sum(1))
    assert float(found.norm()) <= 0.5


@pytest.mark.parametrize("scale", [2.0**0, 2.0**60])
def test_rounding_in_a_table_is_clipped_as_well(scale: float) -> None:
    module = Summed(nn.Embedding(3, 1), scale * torch.tensor([[2.0**24 + 2], [1], [-(2.0**24)], [-3]]))
    x, y = torch.zeros(1, 4, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    [found] = clipped_sum(module, x, y, clip_norm=0.5, loss=lambda outputs, _: outputs.sum(1))
    assert float(found.norm()) <= 0.5


@pytest.mark.parametrize("name", ["linear", "many places", "few places", "convolution", "groups", "unknown layer"])
@pytest.mark.parametrize("bad", [float("inf"), float("nan"), 1e38])
def test_a_row_that_is_not_finite_adds_nothing(name: str, bad: float) -> None:
    module, x, y = made(name)
    expected = clipped_sum(module, x[1:], y[1:], clip_norm=0.5)
    x[0] = bad
    found = clipped_sum(module, x, y, clip_norm=0.5)
    if bool(flat(clipped_sum(module, x[:1], y[:1], clip_norm=0.5)).any()):
        assert bad == 1e38  # large, and yet a gradient: then it is clipped like any other
        assert float((flat(found) - flat(expected)).norm()) <= 0.5 * (1 + 1e-5)
    else:
        assert torch.allclose(flat(found), flat(expected), rtol=1e-5, atol=1e-7)
    assert bool(flat(found).isfinite().all())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("count", [0, 3])
def test_rows_that_fill_up_a_batch_add_nothing(name: str, count: int) -> None:
    """Whatever they are, and whether or not they are computed like the others."""
    module, x, y = made(name)
    if x.is_floating_point():
        x[-1] = torch.inf
    for usual in (0, 5, ROWS):
        with clipping.clipping(module) as sums:
            found = flat(sums(x, y, clip_norm=0.5, count=count, usual=usual))
        expected = flat(clipped_sum(module, x[:count], y[:count], clip_norm=0.5))
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_one_more_row_on_a_kink_moves_no_other_to_its_other_side() -> None:
    """Products round differently in batches of 15 and of 16; copies of a row on the kink of a ReLU would all move."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(512, 4), nn.ReLU(), nn.Linear(4, 2))
    weight, bias = module[0].weight.detach(), module[0].bias.detach()
    base, y = torch.randn(512), torch.zeros(32, dtype=torch.int64)
    moved = 0.0
    for unit in range(4):
        kink = base - (base @ weight[unit] + bias[unit]) / (weight[unit] @ weight[unit]) * weight[unit]
        for shift in torch.linspace(-3e-6, 3e-6, 41):
            rows = (kink + shift * weight[unit]).expand(32, -1).contiguous()
            fewer, more = (flat(clipped_sum(module, rows, y, clip_norm=1.0, count=n)) for n in (15, 16))
            moved = max(moved, float((more - fewer).norm()))
    assert moved <= 1 + 1e-4


def test_an_infinite_loss_adds_nothing() -> None:
    module, x, y = made("linear")

    def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs, labels, reduction="none") / (labels != 0)

    found = clipped_sum(module, x, y, clip_norm=1.0, loss=loss)
    expected = clipped_sum(module, x[y != 0], y[y != 0], clip_norm=1.0)
    assert torch.allclose(flat(found), flat(expected), rtol=1e-5, atol=1e-7)


def test_no_rows_and_only_bad_rows_add_zeros_of_the_same_shapes() -> None:
    module, x, y = made("convolution")
    for part in (
        clipped_sum(module, x[:0], y[:0], clip_norm=1.0),
        clipped_sum(module, x * torch.nan, y, clip_norm=1.0),
    ):
        assert [each.shape for each in part] == [each.shape for each in trainable(module)]
        assert not flat(part).any()


def test_what_no_loss_depends_on_has_no_gradient() -> None:
    module = nn.Sequential(nn.Linear(6, CLASSES))
    module.add_module("idle", nn.Identity())
    module.idle.lone = nn.Linear(2, 2)
    x, y = torch.randn(4, 6), torch.zeros(4, dtype=torch.int64)
    found = clipped_sum(module, x, y, clip_norm=1.0)
    assert len(found) == 4
    assert not flat(found[2:]).any()
    assert flat(found[:2]).any()


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm2d(4),
        nn.BatchNorm2d(4, track_running_stats=False).eval(),
        nn.InstanceNorm2d(4, track_running_stats=True),
    ],
)
def test_statistics_of_private_rows_are_refused(layer: nn.Module) -> None:
    module = nn.Sequential(layer, nn.Flatten(), nn.LazyLinear(CLASSES))
    with pytest.raises(InvalidInput, match="statistics"):
        clipped_sum(module, torch.randn(ROWS, *IMAGE), torch.zeros(ROWS, dtype=torch.int64), clip_norm=1.0)


def test_rows_that_leave_the_first_axis_are_refused() -> None:
    class Folded(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x.flatten(0, 1)).unflatten(0, x.shape[:2]).sum(1)

    with pytest.raises(InvalidInput, match="first axis"):
        clipped_sum(Folded(), torch.randn(ROWS, 2, 3), torch.zeros(ROWS, dtype=torch.int64), clip_norm=1.0)


@pytest.mark.parametrize("layer", [nn.LayerNorm(6), Own()])
def test_a_sequence_as_long_as_a_batch_is_not_taken_for_its_rows(layer: nn.Module) -> None:
    """Layers that put places before rows, as torch's transformers do unless told otherwise, whoever clips them."""

    class Transposed(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer
            self.head = nn.Linear(6, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.layer(x.transpose(0, 1)).mean(0))

    with pytest.raises(InvalidInput, match="first axis"):
        clipped_sum(Transposed(), torch.randn(ROWS, ROWS, 6), torch.zeros(ROWS, dtype=torch.int64), clip_norm=1.0)


def test_what_nobody_can_clip_is_refused() -> None:
    """A batch norm that is frozen is no trouble; a kind of its own with buffers is more than Opacus takes."""

    class Kind(nn.BatchNorm1d):  # type: ignore[misc]
        pass

    module = nn.Sequential(Kind(6), nn.Linear(6, CLASSES)).eval()
    with pytest.raises(InvalidInput, match="row by row"):
        clipped_sum(module, torch.randn(ROWS, 6), torch.zeros(ROWS, dtype=torch.int64), clip_norm=1.0)


def test_known_layers_need_no_opacus(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("Opacus was asked")

    monkeypatch.setattr(clipping, "_by_opacus", never)
    for name in MODELS.keys() - LEFT_TO_OPACUS:
        module, x, y = made(name)
        clipped_sum(module, x, y, clip_norm=1.0)
    for name in LEFT_TO_OPACUS:
        module, x, y = made(name)
        with pytest.raises(AssertionError, match="was asked"):
            clipped_sum(module, x, y, clip_norm=1.0)


def test_opacus_changes_no_mode() -> None:
    """Each layer runs in the mode that it is in, and is in it afterwards: dropout stays off where it was."""
    module, x, y = made("unknown layer in evaluation mode")
    module[2].train()
    modes = [layer.training for layer in module.modules()]
    seen: list[list[bool]] = []
    module.register_forward_pre_hook(lambda *_: seen.append([layer.training for layer in module.modules()]))
    clipped_sum(module, x, y, clip_norm=1.0)
    assert [layer.training for layer in module.modules()] == modes
    assert set(map(tuple, seen)) == {tuple(modes)}


def test_what_opacus_cannot_look_at_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By name, and not by an error of its own, of which a worker could only say that something is wrong."""
    monkeypatch.setattr(GradSampleModule, "capture_activations_hook", lambda *_: None)
    module, x, y = made("unknown layer")
    with pytest.raises(InvalidInput, match="row by row"):
        clipped_sum(module, x, y, clip_norm=1.0)
