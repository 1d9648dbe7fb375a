"""Sums of clipped gradients: what one row adds to the sum never has a norm above `clip_norm`.

The norm of a row's gradient is found from what went into each layer and what came back to it, and the sum is one more
product with the rows weighted by their clipping: no gradient of a single row is written down unless it is smaller than
what went in and came back (book-keeping: Bu, Wang, Zha & Karypis 2023, arXiv 2210.00038; Goodfellow 2015, arXiv
1510.01799). Layers that are not known here are left to Opacus.

Whatever a row does, its part of the sum is bounded: the factor is computed from the very quantities that are summed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeAlias

import torch
from torch import nn
from torch.nn import functional

from accountant.errors import InvalidInput
from trainers.models import Affine

if TYPE_CHECKING:
    from torch.autograd.graph import GradientEdge

#: From outputs and labels to one loss for each row.
Loss: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_ROUNDING: Final = 2.0**-17  # of a norm: more than rounding in float32 makes of it
_SUMMED: Final = 1024  # squares that float32 adds up in one go: longer sums would lose more than that
_CANCELLED: Final = 2.0**-6  # of a norm: what rounding may come to before it is counted
_CACHED: Final = 1 << 18  # numbers that a cache holds
_LEAST: Final = 1e-30  # of a square: below it squares are lost, and a gradient counts as no smaller


def cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The logarithmic loss of each row; none where there is no label to choose from."""
    if outputs.shape[1] == 0:
        return outputs.sum(1)
    return functional.cross_entropy(outputs, labels, reduction="none")


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """What training changes, in the order of `parameters()`."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


class ClippedSum(Protocol):
    """Sums of one network, prepared once for many batches."""

    def __call__(
        self, x: torch.Tensor, y: torch.Tensor, *, clip_norm: float, count: int | None = None, usual: int = 0
    ) -> list[torch.Tensor]: ...


def clipped_sum(
    module: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    clip_norm: float,
    loss: Loss = cross_entropy,
    count: int | None = None,
) -> list[torch.Tensor]:
    """Σ of the rows' gradients, each scaled to a norm of at most `clip_norm`, for each trainable parameter in order.

    A row whose gradient is not finite adds nothing. Every layer keeps the rows on its first axis. Rows after the first
    `count` go through the network and add nothing: products round differently in batches of another size, and rows on
    the kink of a ReLU, or large ones on the border of two labels, would all change sides when one more comes. Once
    through, a row's part is a smooth function of what was found, and those after the first `usual` are left out of
    norms and sums: up to there others have the factor zero, so that few rows, or none, take as long as usual.
    """
    with clipping(module, loss=loss) as sums:
        return sums(x, y, clip_norm=clip_norm, count=count)


@contextmanager
def clipping(module: nn.Module, *, loss: Loss = cross_entropy) -> Iterator[ClippedSum]:
    """`clipped_sum` of this network, whose layers are looked at once; within the block nothing else may run it."""
    refuse_mixing(module)
    parameters = trainable(module)
    with ExitStack() as stack:
        gradients: Callable[[nn.Module, torch.Tensor, torch.Tensor, Loss, int], _Gradients]
        if not _known(module):
            gradients = _by_opacus
        elif _is_head(module) and loss is cross_entropy:
            gradients = _in_closed_form
        else:
            gradients = stack.enter_context(_Tape(module))

        shapes = set[torch.Size]()  # of rows that were looked at

        def sums(
            x: torch.Tensor, y: torch.Tensor, *, clip_norm: float, count: int | None = None, usual: int = 0
        ) -> list[torch.Tensor]:
            if x.shape[1:] not in shapes:
                _refuse_moved(module, x)
                shapes.add(x.shape[1:])
            counted = len(x) if count is None else count
            computed = max(counted, usual)
            found = gradients(module, x, y, loss, computed) if len(x) else {}
            if not found or not computed:
                return [torch.zeros_like(parameter) for parameter in parameters]
            with torch.no_grad():
                factors = _factors(list(found.values()), clip_norm)
                factors[counted:] = 0
                return [
                    found[parameter].weighted(factors).view_as(parameter)
                    if parameter in found
                    else torch.zeros_like(parameter)
                    for parameter in parameters
                ]

        yield sums


def _factors(gradients: Sequence[_Gradient], clip_norm: float) -> torch.Tensor:
    """(n,) What each row is multiplied by; rows that are not finite become zero."""
    squares = gradients[0].squares()
    for gradient in gradients[1:]:
        squares = squares + gradient.squares()
    if not math.isfinite(float(squares.sum())):  # of the rows or of their sum; 0 · ∞ is not 0
        bad = ~squares.isfinite()
        for gradient in gradients:
            gradient.clear(bad)
        squares = squares.masked_fill(bad, 1.0)
    return squares.clamp(min=_LEAST).rsqrt_().mul_((1 - _ROUNDING) * clip_norm).clamp_(max=1)


def refuse_mixing(module: nn.Module) -> None:
    """Refuse a layer whose outputs or buffers for one row depend on other rows: no row can be clipped by itself."""
    for name, layer in module.named_modules():
        batch = isinstance(layer, nn.modules.batchnorm._BatchNorm)  # noqa: SLF001
        instance = isinstance(layer, nn.modules.instancenorm._InstanceNorm)  # noqa: SLF001
        if batch and not instance and (layer.training or layer.running_mean is None):
            raise InvalidInput("model", f"{name}: {type(layer).__name__}", "no statistics of a batch: freeze it (eval)")
        if instance and layer.training and layer.track_running_stats:
            raise InvalidInput("model", f"{name}: {type(layer).__name__}", "no running statistics of private data")


def _refuse_moved(module: nn.Module, like: torch.Tensor) -> None:
    """Refuse a trained layer that has rows on another axis than its first: it would be clipped along that one.

    Public rows show it, two and then three: a sequence may be as long as one batch, and not as both.
    """

    def look(layer: nn.Module, went: tuple[Any, ...], output: Any) -> None:
        for each in (*went, *(output if isinstance(output, tuple) else (output,))):
            if isinstance(each, torch.Tensor) and (each.ndim == 0 or len(each) != rows):
                raise InvalidInput("model", type(layer).__name__, "layers that keep the rows on their first axis")

    hooks = [layer.register_forward_hook(look) for layer in module.modules() if _trained(layer)]
    try:
        with torch.no_grad():
            for rows in (2, 3):
                module(like.new_zeros(rows, *like.shape[1:]))
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def wherever_a_row_stands(module: nn.Module, batches: Sequence[torch.Tensor], *, loss: Loss) -> Iterator[None]:
    """Within the block a network makes the same of a row at every place of batches like these, to the last bit.

    One row more moves others to the next place. If products round otherwise there, as they do where the end of a batch
    is no whole tile, or at the border of what two threads have, then rows on the kink of a ReLU all change sides at
    once, and a datapoint moves a sum by more than was paid for. Public rows show it, under weights of chance, which are
    never all zero; then one thread does the work, and a network that rounds by place even so is refused.
    """
    threads = torch.get_num_threads()
    try:
        for batch in batches:
            look = _look_of(module, batch, loss)
            if look in _STEADY:
                continue
            if _rounds_by_place(module, batch, loss):
                torch.set_num_threads(1)
                if _rounds_by_place(module, batch, loss):
                    raise InvalidInput(
                        "recipe.physical_batch", len(batch), "a size at which the network rounds alike at every place"
                    )
            elif look is not None:
                _STEADY[look] = None
                while len(_STEADY) > _MOST_STEADY:
                    _STEADY.pop(next(iter(_STEADY)), None)
        yield
    finally:
        torch.set_num_threads(threads)


def _look_of(module: nn.Module, like: torch.Tensor, loss: Loss) -> Hashable:
    """All that decides how a network of torch's own layers rounds, but for its weights; None where others are in it."""
    if any(not type(each).__module__.startswith("torch.nn.") for each in module.modules()):
        return None
    trained = tuple(parameter.requires_grad for parameter in module.parameters())
    return repr(module), trained, loss, like.shape, like.dtype, like.device, torch.get_num_threads()


#: What was seen to be steady, newest last: a process that trains the same network often looks at it once.
_STEADY: dict[Hashable, None] = {}
_MOST_STEADY: Final = 256


def _rounds_by_place(module: nn.Module, like: torch.Tensor, loss: Loss) -> bool:
    """Whether outputs of trained layers, or what comes back to them, are others at the next place of such a batch."""
    chance = torch.Generator().manual_seed(0)

    def drawn(shape: Sequence[int], scale: float = 1.0) -> torch.Tensor:
        return torch.randn(shape, generator=chance).mul_(scale)

    rows = drawn(like.shape).to(like) if like.is_floating_point() else torch.zeros_like(like)
    parameters = trainable(module)
    with torch.no_grad():
        kept = [parameter.clone() for parameter in parameters]
        for parameter in parameters:
            parameter.copy_(drawn(parameter.shape, scale=max(1, parameter[:1].numel()) ** -0.5))
    try:
        there, next_to_it = (_seen_of(module, each, loss) for each in (rows, rows.roll(1, dims=0)))
    finally:
        with torch.no_grad():
            for parameter, before in zip(parameters, kept, strict=True):
                parameter.copy_(before)
    return not all(torch.equal(one.roll(1, dims=0), other) for one, other in zip(there, next_to_it, strict=True))


def _seen_of(module: nn.Module, x: torch.Tensor, loss: Loss) -> list[torch.Tensor]:
    """The outputs of a network and of its trained layers, and what comes back to those of the layers."""
    outputs: list[torch.Tensor] = []
    hooks = [
        layer.register_forward_hook(lambda _layer, _went, output: outputs.append(output))
        for layer in module.modules()
        if _trained(layer)
    ]
    try:
        with torch.enable_grad():
            last = module(x)
            losses = loss(last, torch.zeros(len(x), dtype=torch.int64, device=x.device))
            back = torch.autograd.grad(losses.sum(), outputs, allow_unused=True)
        return [each.detach() for each in (last, *outputs, *back) if each is not None]
    finally:
        for hook in hooks:
            hook.remove()


class _Gradient(Protocol):
    """The gradients of one parameter, for all rows."""

    def squares(self) -> torch.Tensor:
        """(n,) The squared norm of each row's, rounded up."""

    def weighted(self, factors: torch.Tensor) -> torch.Tensor:
        """Their sum, each times its factor."""

    def each(self) -> torch.Tensor:
        """(n, …) Written down."""

    def clear(self, rows: torch.Tensor) -> None:
        """Make those of these rows zero."""


_Gradients: TypeAlias = dict[nn.Parameter, _Gradient]
_Found: TypeAlias = Iterator[tuple[nn.Parameter, _Gradient]]


@dataclass(slots=True)
class _Written:
    """Row by row, where that is small."""

    rows: torch.Tensor  # (n, …)
    _found: torch.Tensor | None = None  # what is asked for twice where a weight has a bias

    def squares(self) -> torch.Tensor:
        if self._found is None:
            self._found = _squares(self.rows.flatten(1))
        return self._found

    def weighted(self, factors: torch.Tensor) -> torch.Tensor:
        return factors @ self.rows.flatten(1)

    def each(self) -> torch.Tensor:
        return self.rows

    def clear(self, rows: torch.Tensor) -> None:
        self.rows, self._found = _cleared(self.rows, rows), None


@dataclass(slots=True)
class _Product:
    """came[i]ᵀ · went[i] for row i, of one place: a linear layer on vectors."""

    went: torch.Tensor  # (n, inputs)
    came: _Written  # (n, outputs): the bias's

    def squares(self) -> torch.Tensor:
        return _squares(self.went) * self.came.squares()

    def weighted(self, factors: torch.Tensor) -> torch.Tensor:
        return (self.came.rows * factors[:, None]).T @ self.went

    def each(self) -> torch.Tensor:
        return self.came.rows[:, :, None] * self.went[:, None, :]

    def clear(self, rows: torch.Tensor) -> None:
        self.went = _cleared(self.went, rows)
        self.came.clear(rows)


@dataclass(slots=True)
class _Places:
    """Σ over places p of came[i, p]ᵀ · went[i, p] for row i: a layer that is applied at many places."""

    went: torch.Tensor  # (n, places, inputs)
    came: torch.Tensor  # (n, places, outputs)

    def squares(self) -> torch.Tensor:
        """‖Σ_p c_pᵀ w_p‖² = Σ_{p, q} (w_p · w_q)(c_p · c_q), in float64: a row may be made so that terms cancel."""
        products = _pairs(self.went) * _pairs(self.came)
        return _summed(products, products.sum((1, 2))).to(self.came.dtype)

    def weighted(self, factors: torch.Tensor) -> torch.Tensor:
        return (self.came * factors[:, None, None]).flatten(0, 1).T @ self.went.flatten(0, 1)

    def each(self) -> torch.Tensor:
        return torch.bmm(self.came.mT, self.went)

    def clear(self, rows: torch.Tensor) -> None:
        self.went, self.came = _cleared(self.went, rows), _cleared(self.came, rows)


@dataclass(slots=True)
class _Looked:
    """Rows of a table that were looked up: what came back is added at their places."""

    went: torch.Tensor  # (n, places) of whole numbers
    came: torch.Tensor  # (n, places, width)
    table: int
    ignored: int | None

    def squares(self) -> torch.Tensor:
        same = (self.went[:, :, None] == self.went[:, None, :]) & self._counted()[:, :, None]
        products = _pairs(self.came) * same
        return _summed(products, products.sum((1, 2))).to(self.came.dtype)

    def weighted(self, factors: torch.Tensor) -> torch.Tensor:
        came = self.came * (factors[:, None] * self._counted())[:, :, None]
        return came.new_zeros(self.table, came.shape[2]).index_add_(0, self.went.flatten(), came.flatten(0, 1))

    def each(self) -> torch.Tensor:
        came = self.came * self._counted()[:, :, None]
        rows = came.new_zeros(len(came), self.table, came.shape[2])
        return rows.scatter_add_(1, self.went[:, :, None].expand_as(came), came)

    def clear(self, rows: torch.Tensor) -> None:
        self.came = _cleared(self.came, rows)

    def _counted(self) -> torch.Tensor:
        return torch.ones_like(self.went, dtype=torch.bool) if self.ignored is None else self.went != self.ignored


def _cleared(values: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return values.masked_fill(rows.view(-1, *(1,) * (values.ndim - 1)), 0)


def _squares(rows: torch.Tensor) -> torch.Tensor:
    """(n, width) to (n,): squared norms, none too small to be multiplied."""
    return _norms(rows).square_().clamp_(min=_LEAST)


def _norms(rows: torch.Tensor) -> torch.Tensor:
    """(n, width) to (n,): norms, of wide rows from those of their pieces, in float64.

    torch adds up 8 to 16 sums side by side, so that of 1,024 squares at most 128 are rounded one after the other: a
    norm loses no more than 2⁻¹⁸ of itself (Higham 2002, section 4.2), a product of two no more than `_ROUNDING`.
    """
    if rows.shape[1] <= _SUMMED:
        return torch.linalg.vector_norm(rows, dim=1)
    pieces = torch.stack([torch.linalg.vector_norm(piece, dim=1) for piece in rows.split(_SUMMED // 4, dim=1)])
    return torch.linalg.vector_norm(pieces, dim=0, dtype=torch.float64).to(rows.dtype)


def _pairs(rows: torch.Tensor) -> torch.Tensor:
    """(n, places, width) to (n, places, places): products of all pairs."""
    exact = rows.to(torch.float64)
    return torch.bmm(exact, exact.mT)


def _summed(products: torch.Tensor, squares: torch.Tensor) -> torch.Tensor:
    """Squared norms of sums over places, given products of all pairs of terms, as float32 may make of them.

    Where large terms cancel, what is summed in float32 is rounding: up to places · 2⁻²⁴ · Σ ‖term‖ (Higham 2002,
    section 3.1), however small the sum is in truth. It counts where it is no longer small beside the norm; below that
    it is no more than the rounding of a sum over rows.
    """
    sizes = products.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt().sum(1)
    lost = products.shape[1] * 2.0**-23 * sizes
    norms = squares.clamp(min=0).sqrt()
    return torch.where(lost > _CANCELLED * norms, norms + lost, norms).square()


def _places(went: torch.Tensor, came: torch.Tensor) -> _Gradient:
    """(n, places, inputs) and (n, places, outputs), in the form that takes least."""
    if went.shape[1] == 1:
        return _Product(went[:, 0], _Written(came[:, 0]))
    pairs = _Places(went, came)
    return pairs if _cheaper_in_pairs(went.shape[1], went.shape[2] * came.shape[2]) else _Written(pairs.each())


def _cheaper_in_pairs(places: int, size: int) -> bool:
    """Whether products of all pairs of places, 2 · places², are fewer than the numbers of a row's gradient.

    Whichever are fewer are written down (Bu, Mao & Xu 2022, arXiv 2205.10683).
    """
    return 2 * places**2 < size


def _linear(layer: nn.Linear, went: torch.Tensor, came: torch.Tensor) -> _Found:
    if came.ndim > 2:
        went, came = went.flatten(1, -2), came.flatten(1, -2)
    vectors = _Written(came) if came.ndim == 2 else None
    if layer.weight.requires_grad:
        yield layer.weight, _places(went, came) if vectors is None else _Product(went, vectors)
    if layer.bias is not None:
        yield layer.bias, vectors or _Written(came.sum(1))


def _convolution(layer: nn.Conv2d, went: torch.Tensor, came: torch.Tensor) -> _Found:
    places = (came.shape[2], came.shape[3])
    came = came.flatten(2)  # (n, outputs, places)
    if layer.bias is not None:
        yield layer.bias, _Written(came.sum(2))
    if not layer.weight.requires_grad:
        return
    seen = _seen(layer, _padded(layer, went), places)
    if layer.groups == 1 and _cheaper_in_pairs(came.shape[2], layer.weight.numel()):
        yield layer.weight, _places(seen.flatten(4).flatten(1, 3).mT, came.mT)
        return
    # (n, groups, outputs, inputs) some rows at a time, so that what they saw stays in a cache.
    grouped = came.unflatten(1, (layer.groups, -1))
    written = came.new_empty(*grouped.shape[:3], layer.weight[0].numel())
    together = max(1, _CACHED // seen.shape[1:].numel())
    cached = came.new_empty(together, *seen.shape[1:])
    for rows in (slice(start, start + together) for start in range(0, len(came), together)):
        patches = cached[: len(came[rows])].copy_(seen[rows]).flatten(4).flatten(1, 3)
        torch.matmul(grouped[rows], patches.unflatten(1, (layer.groups, -1)).mT, out=written[rows])
    yield layer.weight, _Written(written)


def _seen(layer: nn.Conv2d, padded: torch.Tensor, places: tuple[int, int]) -> torch.Tensor:
    """(n, inputs, *kernel, *places): what each weight met at each place, a view that repeats the rows' numbers.

    Copied from here patches take half as long as by `unfold`, which is also laid out so.
    """
    n, inputs, down, right = padded.stride()
    (apart_down, apart_right), (step_down, step_right) = layer.dilation, layer.stride
    return padded.as_strided(
        (*padded.shape[:2], *layer.kernel_size, *places),
        (n, inputs, apart_down * down, apart_right * right, step_down * down, step_right * right),
    )


def _padded(layer: nn.Conv2d, went: torch.Tensor) -> torch.Tensor:
    """What the convolution saw, with what it padded written out."""
    sides: list[int] = []
    for axis in (1, 0):  # the last axis first
        if layer.padding == "same":
            both = layer.dilation[axis] * (layer.kernel_size[axis] - 1)
            sides += [both // 2, both - both // 2]
        else:
            sides += [0, 0] if layer.padding == "valid" else [layer.padding[axis]] * 2
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return functional.pad(went, sides, mode=mode) if any(sides) else went


def _normalised(layer: nn.Module, went: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    """What a layer multiplies by its weight, and the axes that it repeats the weight along, rows left out."""
    match layer:
        case nn.LayerNorm() | nn.RMSNorm():
            normalise = functional.layer_norm if isinstance(layer, nn.LayerNorm) else functional.rms_norm
            axes = tuple(range(1, went.ndim - len(layer.normalized_shape)))
            return normalise(went, layer.normalized_shape, eps=layer.eps), axes
        case nn.GroupNorm():
            return functional.group_norm(went, layer.num_groups, eps=layer.eps), tuple(range(2, went.ndim))
        case Affine():
            return went, tuple(range(2, went.ndim))
        case _:
            assert isinstance(layer, nn.modules.batchnorm._BatchNorm)  # noqa: SLF001
            plain = functional.batch_norm(went, layer.running_mean, layer.running_var, eps=layer.eps)
            return plain, tuple(range(2, went.ndim))


def _affine(layer: nn.Module, went: torch.Tensor, came: torch.Tensor) -> _Found:
    plain, axes = _normalised(layer, went)
    own = isinstance(layer, Affine)
    weight, bias = (layer.scale, layer.shift) if own else (layer.weight, getattr(layer, "bias", None))
    if weight is not None:
        yield weight, _Written((came * plain).sum(axes) if axes else came * plain)
    if bias is not None:
        yield bias, _Written(came.sum(axes) if axes else came)


def _embedding(layer: nn.Embedding, went: torch.Tensor, came: torch.Tensor) -> _Found:
    went = went.reshape(len(went), -1)
    came = came.reshape(*went.shape, came.shape[-1])
    yield layer.weight, _Looked(went, came, layer.num_embeddings, layer.padding_idx)


_LAYERS: Final[dict[type[nn.Module], Callable[[Any, torch.Tensor, torch.Tensor], _Found]]] = {
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
    nn.LayerNorm: _affine,
    nn.RMSNorm: _affine,
    nn.GroupNorm: _affine,
    nn.BatchNorm1d: _affine,
    nn.BatchNorm2d: _affine,
    nn.SyncBatchNorm: _affine,
    Affine: _affine,
    nn.Embedding: _embedding,
}


def _trained(layer: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in layer.parameters(recurse=False))


def _known(module: nn.Module) -> bool:
    """Whether every layer that is trained is one of the table's, and not a kind of its own derived from one."""
    for layer in module.modules():
        if _trained(layer):
            odd = isinstance(layer, nn.Embedding) and (layer.scale_grad_by_freq or layer.max_norm is not None)
            if type(layer) not in _LAYERS or odd:
                return False
    return True


class _Tape:
    """One forward and one backward pass that writes down what went into each layer and what came back to it."""

    def __init__(self, module: nn.Module) -> None:
        self._layers = [layer for layer in module.modules() if _trained(layer)]
        self._uses: list[tuple[nn.Module, torch.Tensor, int, GradientEdge]] = []
        self._rows = 0

    def __enter__(self) -> Self:
        self._hooks = [layer.register_forward_hook(self._record) for layer in self._layers]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _record(self, layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        if not self._rows:  # only looked at
            return
        [went] = inputs
        assert len(went) == self._rows == len(output), f"{type(layer).__name__} moved its rows"
        # The edge stays that of this output although an activation may overwrite it in place.
        version = went._version  # noqa: SLF001
        self._uses.append((layer, went.detach(), version, torch.autograd.graph.get_gradient_edge(output)))

    def __call__(self, module: nn.Module, x: torch.Tensor, y: torch.Tensor, loss: Loss, count: int) -> _Gradients:
        self._rows, uses = len(x), self._uses
        try:
            with torch.enable_grad():
                losses = loss(module(x), y)
            assert losses.shape == (len(x),), "one loss for each row"
            came = torch.autograd.grad(losses.sum(), [use[3] for use in uses], allow_unused=True)
            found: dict[nn.Parameter, list[_Gradient]] = {}
            with torch.no_grad():
                for (layer, went, version, _), back in zip(uses, came, strict=True):
                    kind = type(layer)
                    assert went._version == version, f"what went into {kind.__name__} was overwritten"  # noqa: SLF001
                    if back is None:
                        continue
                    for parameter, gradient in _LAYERS[kind](layer, went[:count], back[:count]):
                        if parameter.requires_grad:
                            found.setdefault(parameter, []).append(gradient)
                return {parameter: _one(parameter, parts) for parameter, parts in found.items()}
        finally:
            self._rows = 0
            uses.clear()


def _is_head(module: nn.Module) -> bool:
    """Whether all that is trained is the last of layers in a row, a linear one that is used once."""
    if type(module) is not nn.Sequential or len(module) == 0 or type(module[-1]) is not nn.Linear:
        return False
    before = {layer for part in module[:-1] for layer in part.modules()}
    return module[-1] not in before and not any(map(_trained, before))


def _in_closed_form(module: nn.Module, x: torch.Tensor, y: torch.Tensor, _: Loss, count: int) -> _Gradients:
    """Of a head under the logarithmic loss: softmax less the label comes back to it, and needs no tape."""
    assert isinstance(module, nn.Sequential)
    *body, head = module
    with torch.no_grad():
        went = x
        for layer in body:
            went = layer(went)
        came = head(went)[:count].softmax(1)
        if came.shape[1]:  # a set of labels may be empty
            came.scatter_(1, y[:count, None], -1.0, reduce="add")
        return dict(_linear(head, went[:count], came))


def _one(parameter: nn.Parameter, uses: list[_Gradient]) -> _Gradient:
    """The gradient of a parameter that was used so often: its norm is not to be had from those of its parts."""
    if len(uses) == 1:
        return uses[0]
    return _Written(torch.stack([use.each().flatten(1) for use in uses]).sum(0).unflatten(1, parameter.shape))


@cache
def _recorder() -> Any:
    """Opacus' wrapper, which itself records nothing in evaluation mode; the layers stay in the mode that they have."""
    from opacus.grad_sample import GradSampleModule  # noqa: PLC0415  # it takes seconds, and few models need it

    class Recorder(GradSampleModule):  # type: ignore[misc]
        def capture_activations_hook(self, module: nn.Module, went: Any, output: Any) -> None:
            mode, module.training = module.training, True  # after its forward pass
            try:
                super().capture_activations_hook(module, went, output)
            finally:
                module.training = mode

    return Recorder


def _by_opacus(module: nn.Module, x: torch.Tensor, y: torch.Tensor, loss: Loss, count: int) -> _Gradients:
    """The gradient of every row, written down."""
    parameters = trainable(module)
    problem = InvalidInput("model", type(module).__name__, "layers whose gradients can be had row by row")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, on hooks that Opacus sets
        try:
            wrapped = _recorder()(module, loss_reduction="sum", strict=False)  # refuse_mixing is our check
        except NotImplementedError:
            raise problem from None
        try:
            with torch.enable_grad():
                losses = loss(wrapped(x), y)
                try:
                    losses.sum().backward()
                except ValueError:  # of a layer that it cannot look at
                    raise problem from None
            if any(each.grad is not None and each.grad_sample is None for each in parameters):
                raise problem
            return {
                each: _Written(each.grad_sample.detach()[:count]) for each in parameters if each.grad_sample is not None
            }
        finally:
            wrapped.to_standard_module()
            module.zero_grad()
