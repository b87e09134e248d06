"""Operators composed of others, because PyTorch does not decompose them or gives other gradients: norms and others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from planner.pytorch.translate.call import refuse_if
from tdl.operator import named

# Functions with explicit gradients, where PyTorch's differ from those that would follow.


def with_gradient(function: Callable[..., Tensor], *gradients: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return an element-wise function with explicit gradients, one per differentiable operand.

    A gradient is a function of the arriving gradient and of the arguments. The differentiable operands come first and
    have one shape.
    """

    def written(*arguments: Any) -> Tensor:
        operands = [torch.ops.planner.operand(x) for x in arguments[: len(gradients)]]
        given = *operands, *arguments[len(gradients) :]
        result = function(*given)
        arriving = torch.ops.planner.arriving(result, operands)
        made_of = [gradient(arriving, *given) for gradient in gradients]
        chosen: Tensor = torch.ops.planner.with_gradient([result], operands, [arriving], made_of)[0]
        return chosen

    return written


# Operators that read or write parts of a tensor, composed of others: slices and indices.


# ruff: noqa: PLR0913, PLR0917 -- functions have the arguments of PyTorch's operators


# Operators composed of others, because PyTorch does not decompose them or gives other gradients.


aten = torch.ops.aten


def _roll(x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    """Move the last elements of a dimension before the others."""
    if not dims:
        return _roll(x.flatten(), shifts, (0,)).view(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        if start := -shift % max(1, x.shape[dim]):
            x = torch.cat([x.narrow(dim, start, x.shape[dim] - start), x.narrow(dim, 0, start)], dim)
    return x


def _slice_scatter(
    x: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """Insert a range of a dimension between what comes before and after it."""
    first, stop, _ = slice(start, end, step).indices(x.shape[dim])
    if step != 1:
        return _index_put(x, [*[None] * (dim % x.ndim), torch.arange(first, stop, step)], src)
    before, after = x.narrow(dim, 0, first), x.narrow(dim, max(first, stop), x.shape[dim] - max(first, stop))
    return torch.cat([before, src, after], dim)


def _select_scatter(x: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    row = index % x.shape[dim]
    return _slice_scatter(x, src.unsqueeze(dim), dim, row, row + 1)


def _unfold(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Lay windows of a dimension side by side in its place, with their elements last."""
    x = x if x.ndim else x[None]
    dim = dimension % x.ndim
    places = torch.arange((x.shape[dim] - size) // step + 1)[:, None] * step + torch.arange(size)
    windows: Tensor = x.index_select(dim, places.flatten()).unflatten(dim, places.shape)  # type: ignore[no-untyped-call]
    return windows.movedim(dim + 1, -1)


def _index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """Write values at indices; both the values and the rest of the tensor receive gradients, as in PyTorch."""
    refuse_if(accumulate, "index_put with accumulate is not composed here")
    places = list(indices)
    written = with_gradient(
        lambda x, values: aten.index_put(x, places, values.detach()),
        lambda arriving, *_: aten.index_put(arriving, places, arriving.new_zeros(())),
        lambda arriving, *_: aten.index(arriving, places),
    )
    return written(x, values.to(x.dtype).expand(aten.index(x, places).shape))


def _scatter(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """Write at indices along a dimension, with gradients as in `_index_put`."""
    written = with_gradient(
        lambda x, src: x.scatter(dim, index, src.detach()),
        lambda arriving, *_: arriving.scatter(dim, index, 0),
        lambda arriving, *_: arriving.gather(dim, index),
    )
    return written(x, src)


WRITTEN_PARTS: Mapping[str, Callable[..., Any]] = named(
    _index_put, _roll, _scatter, _select_scatter, _slice_scatter, _unfold
)
"""Compositions by operator name."""


# Embedding bags: sum, mean or maximum of their rows.


# ruff: noqa: PLR0913, PLR0917 -- functions have the arguments of PyTorch's


def bags(x: Tensor, weight: Tensor, offsets: Tensor | None = None, *settings: Any, **named: Any) -> Tensor:
    """Return the sum, mean or maximum of the rows of bags of equal length; PyTorch handles other bags."""
    given = {**dict(zip(BAG_SETTINGS, settings, strict=False)), **named}
    if x.ndim != PAIR or any(given.get(name) for name in ("max_norm", "scale_grad_by_freq")):
        return F.embedding_bag(x, weight, offsets, **given)
    mode, shares, left_out = given.get("mode", "mean"), given.get("per_sample_weights"), given.get("padding_idx")
    rows = F.embedding(x, weight)
    rows = rows if shares is None else rows * shares[..., None]
    counts: Any = x.shape[1]
    if left_out is not None:
        inside = (x != left_out % len(weight))[..., None]
        rows, counts = rows.where(inside, -inf if mode == "max" else 0), inside.sum(1)
    if mode == "max":
        greatest = rows.gather(1, rows.detach().argmax(1, keepdim=True)).squeeze(1)
        return greatest if left_out is None else greatest.masked_fill(counts == 0, 0)
    result = rows.sum(1)
    return result if mode == "sum" else result / (counts if left_out is None else counts.clamp(min=1))


PAIR = 2


BAG_SETTINGS = (
    "max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse", "per_sample_weights", "include_last_offset",
    "padding_idx",
)  # fmt: skip
"""Further arguments of the functions of bags, in order."""


def flat_bags(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Tensor, ...]:
    """Return the sum, mean or maximum of the rows of each bag, which begins at its offset.

    The further results are unused.
    """
    refuse_if(scale_grad_by_freq, "bags have no gradients by frequency")
    starts = offsets[:-1] if include_last_offset else offsets
    bag = torch.searchsorted(starts, torch.arange(len(indices)), right=True) - 1
    read = torch.ones_like(bag) if padding_idx is None else (indices != padding_idx % len(weight)).long()
    rows, counts = weight[indices], torch.zeros_like(starts).index_add(0, bag, read)[:, None]
    if mode == 2:
        inside = (bag == torch.arange(len(starts))[:, None]) & (read > 0)
        reached = torch.where(inside[..., None], rows, -inf)
        result = reached.gather(1, reached.detach().argmax(1, keepdim=True)).squeeze(1).masked_fill(counts == 0, 0)
    else:
        shares = read.to(weight.dtype) if per_sample_weights is None else read * per_sample_weights
        result = weight.new_zeros(len(starts), weight.shape[1]).index_add(0, bag, rows * shares[:, None])
        result = result / counts.clamp(min=1) if mode else result
    return result, bag, bag, bag


def _masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Write elements of a source, in order, where a mask is true."""
    mask = mask.expand(torch.broadcast_shapes(x.shape, mask.shape))  # type: ignore[no-untyped-call]
    numbers = (mask.reshape(-1).long().cumsum(0) - 1).clamp(min=0)
    return torch.where(mask, source.reshape(-1)[numbers].view(mask.shape), x)


def _vector_norm(
    x: Tensor, ord: float = 2.0, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Return a norm of order at least 1; its gradient is zero where the norm is zero."""
    x = x if dtype is None else x.to(dtype)
    sizes, dims = x if ord == 2 else x.abs(), list(range(x.ndim)) if dim is None else dim
    if ord in {1, inf}:
        return sizes.sum(dims, keepdim) if ord == 1 else sizes.amax(dims, keepdim)
    refuse_if(ord < 1, "a norm of order below 1 has no gradient at zero")
    total = sizes.pow(ord).sum(dims, keepdim)
    is_zero = total == 0
    return torch.where(is_zero, 1, total).pow(1 / ord).masked_fill(is_zero, 0)


def _cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Divide by lengths that are at least `eps`, without a change of their gradients."""
    a, b = torch.broadcast_tensors(x1, x2)  # type: ignore[no-untyped-call]
    lengths = [torch.linalg.vector_norm(x, dim=dim) for x in (a, b)]
    first, second = (x + (x.clamp(min=eps) - x).detach() for x in lengths)
    result: Tensor = (a * b).sum(dim) / (first * second)
    return result


def _logsumexp(x: Tensor, dim: list[int], keepdim: bool = False) -> Tensor:
    """Subtract the maximum, whose own gradient cancels."""
    maxima = [x.amax(dim, kept).detach() for kept in (True, keepdim)]
    maxima = [maximum.masked_fill(maximum.isinf(), 0) for maximum in maxima]
    return (x - maxima[0]).exp().sum(dim, keepdim).log() + maxima[1]


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """Scale each slice of a weight to a length of its own; with dimension -1, the whole weight."""
    over = [other for other in range(v.ndim) if dim == -1 or other != dim % v.ndim]
    return v * (g / v.square().sum(over, keepdim=True).sqrt())


def _kl_div(x: Tensor, target: Tensor, reduction: int = 1, *, log_target: bool = False) -> Tensor:
    """Sum t log t - t x, where t log t is zero if t is."""
    shares = target.exp() if log_target else target
    losses = shares * (target if log_target else target.masked_fill(target == 0, 1).log()) - shares * x
    return reduced(losses, reduction)


def reduced(losses: Tensor, reduction: int) -> Tensor:
    """Return the losses of elements unchanged, averaged or summed."""
    return losses.mean() if reduction == 1 else losses.sum() if reduction else losses


def _randint(*bounds: Any, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    """Draw integers from a lower bound, or 0, below an upper one; the last of `bounds` is the shape."""
    low, high, shape = (0, *bounds)[-3:]
    numbers: Tensor = (torch.rand(shape, dtype=torch.float64) * (high - low)).floor() + low
    return numbers.to(dtype or torch.int64)


def _clamp(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """Clamp by tensors; at a tie the gradient goes to the element."""
    bounded = {(True, True): _clamp_both, (True, False): _clamp_min, (False, True): _clamp_max}
    bounds = [torch.as_tensor(bound, dtype=x.dtype) for bound in (low, high) if bound is not None]
    operands = torch.broadcast_tensors(x, *bounds)  # type: ignore[no-untyped-call]
    return bounded[low is not None, high is not None](*operands)


_clamp_min = with_gradient(
    torch.maximum,
    lambda arriving, x, low: torch.where(x >= low, arriving, 0),
    lambda arriving, x, low: torch.where(x < low, arriving, 0),
)
_clamp_max = with_gradient(
    torch.minimum,
    lambda arriving, x, high: torch.where(x <= high, arriving, 0),
    lambda arriving, x, high: torch.where(x > high, arriving, 0),
)
_clamp_both = with_gradient(
    lambda x, low, high: torch.minimum(torch.maximum(x, low), high),
    lambda arriving, x, low, high: torch.where((x >= low) & (x <= high), arriving, 0),
    lambda arriving, x, low, high: torch.where((x < low) & (low < high), arriving, 0),
    lambda arriving, x, low, high: torch.where((x > high) | (high < low), arriving, 0),
)


def _safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return a softmax that is zero, with zero gradient, where all elements are -inf."""
    is_hidden = (x == -inf).all(dim, keepdim=True)
    return x.masked_fill(is_hidden, 0).softmax(dim, dtype).masked_fill(is_hidden, 0)


def _meshgrid(tensors: Sequence[Tensor], *, indexing: str = "ij") -> list[Tensor]:
    """Return the coordinates of all points of a grid."""
    order = [*range(len(tensors))]
    if indexing == "xy":
        order[:2] = order[1::-1]
    rows = [x.reshape([-1 if dim == at else 1 for dim in order]) for at, x in enumerate(tensors)]
    return torch.broadcast_tensors(*rows)  # type: ignore[no-any-return, no-untyped-call]


def _added_product(x: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Add to a product in the product's dtype; PyTorch's decomposition widens half precision to float32."""
    product = left @ right if alpha == 1 else (left @ right) * alpha
    return (x if beta == 1 else x * beta) + product if beta else product


WRITTEN_OUT: Mapping[str, Callable[..., Any]] = {
    **named(_clamp, _meshgrid, _cosine_similarity, _kl_div, _logsumexp, _masked_scatter, _randint),
    **WRITTEN_PARTS,
    **dict.fromkeys(("addmm", "addmv", "baddbmm"), _added_product),
    "_safe_softmax": _safe_softmax,
    "clamp_max": lambda x, max: _clamp(x, high=max),
    "clamp_min": lambda x, min: _clamp(x, low=min),
    "_weight_norm": _weight_norm,
    "embedding_bag": flat_bags,
    "linalg_vector_norm": _vector_norm,
    "randint_like": lambda x, *bounds, **named: _randint(*bounds, x.shape, dtype=named.get("dtype") or x.dtype),
    "selu": lambda x: aten.elu(x, 1.6732632423543772, 1.0507009873554805),
}
"""Compositions by operator name."""
