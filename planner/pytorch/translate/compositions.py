"""Operators composed of others, because PyTorch does not decompose them or gives other gradients: norms and others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import torch
from torch import Tensor

from planner.pytorch.translate.bags import flat_bags
from planner.pytorch.translate.call import refuse_if
from planner.pytorch.translate.gradient_overrides import with_gradient
from planner.pytorch.translate.part_compositions import WRITTEN_PARTS

aten = torch.ops.aten


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


WRITTEN_OUT: Mapping[str, Callable[..., Any]] = {
    **WRITTEN_PARTS,
    "_safe_softmax": _safe_softmax,
    "clamp": _clamp,
    "clamp_max": lambda x, max: _clamp(x, high=max),
    "clamp_min": lambda x, min: _clamp(x, low=min),
    "meshgrid": _meshgrid,
    "_weight_norm": _weight_norm,
    "cosine_similarity": _cosine_similarity,
    "embedding_bag": flat_bags,
    "kl_div": _kl_div,
    "linalg_vector_norm": _vector_norm,
    "logsumexp": _logsumexp,
    "masked_scatter": _masked_scatter,
    "randint": _randint,
    "randint_like": lambda x, *bounds, **named: _randint(*bounds, x.shape, dtype=named.get("dtype") or x.dtype),
    "selu": lambda x: aten.elu(x, 1.6732632423543772, 1.0507009873554805),
}
"""Compositions by operator name."""
