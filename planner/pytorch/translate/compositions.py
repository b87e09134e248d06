"""Operators that PyTorch decomposes not at all, or to other gradients, written in others: products, sums and the like.

What runs along a dimension is combined in about as many steps as twice the distance takes to reach its end (Hillis and
Steele, "Data parallel algorithms", 1986), so that gradients are those of products and choices, at zeros and ties, too.
"""

# ruff: noqa: PLR0913, PLR0917 -- functions have the arguments of PyTorch's operators

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf, pi
from typing import Any

import torch
from torch import Tensor

from planner.pytorch.translate.call import refuse_if
from planner.pytorch.translate.elementwise_compositions import WRITTEN_FUNCTIONS
from planner.pytorch.translate.gradient_overrides import with_gradient
from planner.pytorch.translate.part_compositions import WRITTEN_PARTS, ctc_loss
from planner.pytorch.translate.pooling_compositions import WRITTEN_POOLS

aten = torch.ops.aten

Parts = tuple[Tensor, ...]
"""Tensors of one shape that are combined together."""


def _scanned(combine: Callable[[Parts, Parts], Parts], parts: Parts, dim: int) -> Parts:
    """Combine every element with all before it; `combine` is given what is earlier, and what is later."""
    extent, reach = parts[0].shape[dim] if parts[0].ndim else 1, 1
    while reach < extent:
        early = tuple(part.narrow(dim, 0, extent - reach) for part in parts)
        late = tuple(part.narrow(dim, reach, extent - reach) for part in parts)
        both = combine(early, late)
        parts = tuple(torch.cat([a.narrow(dim, 0, reach), b], dim) for a, b in zip(parts, both, strict=True))
        reach *= 2
    return parts


def _cumprod(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    return _scanned(lambda early, late: (early[0] * late[0],), (_summable(x, dtype),), dim)[0]


def _logcumsumexp(x: Tensor, dim: int) -> Tensor:
    return _scanned(lambda early, late: (torch.logaddexp(early[0], late[0]),), (x,), dim)[0]


def _cumulative(x: Tensor, dim: int, *, sign: int) -> Parts:
    """Return the greatest elements, or the least, and the last places at which they are; what is no number stays."""
    places = torch.ones_like(x, dtype=torch.int64).cumsum(dim) - 1

    def combine(early: Parts, late: Parts) -> Parts:
        (a, _), (b, _) = early, late
        is_late = b.isnan() | (~a.isnan() & (sign * b >= sign * a))
        return tuple(torch.where(is_late, after, before) for before, after in zip(early, late, strict=True))

    return _scanned(combine, (x, places), dim)


def _prod(x: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    """Multiply neighbours until one is left."""
    x = _summable(x, dtype)
    if dim is None or not x.ndim:
        x, dim, keepdim = x.reshape(-1), 0, False
        x = torch.where((x == 0).sum() > 1, x.detach(), x)  # of several zeros PyTorch has no gradient, whatever else
    if not x.shape[dim]:
        return x.sum(dim, keepdim) + 1
    while (extent := x.shape[dim]) > 1:
        half = extent // 2
        pairs = x.narrow(dim, 0, half) * x.narrow(dim, half, half)
        x = torch.cat([pairs, x.narrow(dim, 2 * half, 1)], dim) if extent % 2 else pairs
    return x if keepdim else x.squeeze(dim)


def _summable(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Return a tensor in the dtype that products of it have."""
    is_number = x.is_floating_point() or x.is_complex()
    return x.to(dtype or (x.dtype if is_number else torch.int64))


def _masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Put elements of a source, in their order, where a mask is true."""
    mask = mask.expand(torch.broadcast_shapes(x.shape, mask.shape))  # type: ignore[no-untyped-call]
    numbers = (mask.reshape(-1).long().cumsum(0) - 1).clamp(min=0)
    return torch.where(mask, source.reshape(-1)[numbers].view(mask.shape), x)


def _as_strided(x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> Tensor:
    """Read elements where they lie; only of a tensor that has its memory to itself is that known."""
    has_all = x.is_contiguous() and x.untyped_storage().nbytes() == x.numel() * x.element_size()
    refuse_if(not has_all, "it may share its memory with other tensors")
    places = torch.tensor(offset or 0)
    for extent, step in zip(size, stride, strict=True):
        places = places[..., None] + torch.arange(extent) * step
    return x.reshape(-1)[places]


def _multi_margin_loss(
    x: Tensor, target: Tensor, p: float = 1, margin: float = 1, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    """Return the mean over classes of what they are above the target's score less a margin; no gradient at it."""
    rows, labels = torch.atleast_2d(x), torch.atleast_1d(target)[:, None]  # type: ignore[no-untyped-call]
    above = (margin - rows.gather(1, labels) + rows).relu()
    above = above if p == 1 else above * above
    above = above if weight is None else above * weight[labels]
    losses = torch.where(torch.arange(rows.shape[1]) == labels, 0, above).mean(1)
    return _reduced(losses if reduction or x.ndim > 1 else losses.squeeze(0), reduction)


def _fmax(x: Tensor, other: Tensor, *, sign: int = 1) -> Tensor:
    """Return the greater, or the lesser, of two numbers; the other of one that is none."""
    return torch.where((sign * x >= sign * other) | other.isnan(), x, other)


def _std_mean(x: Tensor, *arguments: Any, deviation: Callable[..., Tensor], **named: Any) -> Parts:
    """Return standard deviations, or variances, and means."""
    dims = arguments[0] if arguments and not isinstance(arguments[0], bool) else None
    keep = bool(arguments[2] if len(arguments) > 2 else named.get("keepdim", False))
    return deviation(x, *arguments, **named), x.mean(list(range(x.ndim)) if dims is None else dims, keepdim=keep)


def _cdist(a: Tensor, b: Tensor, p: float = 2.0, compute_mode: int | None = None) -> Tensor:
    """Return the norms of differences; of the greatest all that are it have the gradient."""
    apart = a.unsqueeze(-2) - b.unsqueeze(-3)
    if p != inf:
        distances: Tensor = torch.linalg.vector_norm(apart, p, dim=-1)
        return distances
    sizes, greatest = apart.abs(), apart.detach().abs().amax(-1)
    is_greatest = sizes.detach() == greatest.unsqueeze(-1)
    return greatest + torch.where(is_greatest, sizes - sizes.detach(), 0).sum(-1)


def _vector_norm(
    x: Tensor, ord: float = 2.0, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Return a norm of an order from 1, whose gradient is zero where it is."""
    x = x if dtype is None else x.to(dtype)
    sizes, dims = x if ord == 2 else x.abs(), list(range(x.ndim)) if dim is None else dim
    if ord in {1, inf}:
        return sizes.sum(dims, keepdim) if ord == 1 else sizes.amax(dims, keepdim)
    refuse_if(ord < 1, "its gradient has no limit where it is zero")
    total = sizes.pow(ord).sum(dims, keepdim)
    is_zero = total == 0
    return torch.where(is_zero, 1, total).pow(1 / ord).masked_fill(is_zero, 0)


def _cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Divide by lengths, of which the least are taken for longer without a change of their gradients."""
    a, b = torch.broadcast_tensors(x1, x2)  # type: ignore[no-untyped-call]
    lengths = [torch.linalg.vector_norm(x, dim=dim) for x in (a, b)]
    first, second = (x + (x.clamp(min=eps) - x).detach() for x in lengths)
    result: Tensor = (a * b).sum(dim) / (first * second)
    return result


def _logsumexp(x: Tensor, dim: list[int], keepdim: bool = False) -> Tensor:
    """Take the maximum out, whose own gradient cancels."""
    maxima = [x.amax(dim, kept).detach() for kept in (True, keepdim)]
    maxima = [maximum.masked_fill(maximum.isinf(), 0) for maximum in maxima]
    return (x - maxima[0]).exp().sum(dim, keepdim).log() + maxima[1]


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """Give each slice of a weight a length of its own; with dimension -1 the whole."""
    over = [other for other in range(v.ndim) if dim == -1 or other != dim % v.ndim]
    return v * (g / v.square().sum(over, keepdim=True).sqrt())


def _kl_div(x: Tensor, target: Tensor, reduction: int = 1, *, log_target: bool = False) -> Tensor:
    """Add up t log t - t x, of which t log t is zero where t is."""
    shares = target.exp() if log_target else target
    losses = shares * (target if log_target else target.masked_fill(target == 0, 1).log()) - shares * x
    return _reduced(losses, reduction)


def _reduced(losses: Tensor, reduction: int) -> Tensor:
    """Return losses of elements as they are, averaged or added up."""
    return losses.mean() if reduction == 1 else losses.sum() if reduction else losses


def _embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    """Look rows up whose gradients are divided by how often each is looked up."""
    refuse_if(not scale_grad_by_freq, "a table's rows are looked up otherwise")
    numbers = indices.reshape(-1)
    counts = (numbers[:, None] == numbers).sum(1).view(*indices.shape, 1)
    shares = torch.where(indices[..., None] == padding_idx, 0, 1 / counts).to(weight.dtype)
    shared = with_gradient(
        lambda rows, _: rows, lambda arriving, _, shares: torch.where(shares == 0, 0, arriving * shares)
    )
    rows: Tensor = shared(weight[indices], shares)
    return rows


def _embedding_renorm(weight: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """Bound the norms of the rows that are looked up."""
    numbers, norms = indices.reshape(-1), torch.linalg.vector_norm(weight, norm_type, 1, keepdim=True)
    counts = weight.new_zeros(len(weight), 1).index_add(0, numbers, weight.new_ones(len(numbers), 1))
    return torch.where((counts > 0) & (norms > max_norm), weight * (max_norm / (norms + 1e-7)), weight)


def _rrelu(
    x: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: object = None
) -> Tensor:
    slopes = torch.rand_like(x) * (upper - lower) + lower if training else (lower + upper) / 2
    return torch.where(x > 0, x, x * slopes)


def _angle(x: Tensor) -> Tensor:
    """Return the angles of real numbers: none, or half a turn of what is negative."""
    refuse_if(not x.is_floating_point(), "angles of whole numbers: cast them")
    return torch.where(x.isnan(), x, (x < 0).to(x.dtype) * pi)


def _randint(*bounds: Any, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    """Draw whole numbers from a lower bound, or 0, below an upper one; the last of `bounds` is the shape."""
    low, high, shape = (0, *bounds)[-3:]
    numbers: Tensor = (torch.rand(shape, dtype=torch.float64) * (high - low)).floor() + low
    return numbers.to(dtype or torch.int64)


def _randperm(count: int, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return torch.rand(count, dtype=torch.float64).argsort().to(dtype or torch.int64)


def _embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Parts:
    """Add up, average or take the greatest of the rows of each bag, which begins at its offset.

    Further results are nobody's.
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


WRITTEN_OUT: Mapping[str, Callable[..., Any]] = {
    **WRITTEN_FUNCTIONS,
    **WRITTEN_PARTS,
    **WRITTEN_POOLS,
    "_weight_norm": _weight_norm,
    "angle": with_gradient(_angle, lambda _, x: torch.zeros_like(x)),
    "cdist": _cdist,
    "cosine_similarity": _cosine_similarity,
    "embedding": _embedding,
    "embedding_bag": _embedding_bag,
    "embedding_renorm": _embedding_renorm,
    "aminmax": lambda x, *, dim=None, keepdim=False: tuple(
        function(x, list(range(x.ndim)) if dim is None else dim, keepdim) for function in (torch.amin, torch.amax)
    ),
    "fmax": _fmax,
    "fmin": partial(_fmax, sign=-1),
    "kl_div": _kl_div,
    "linalg_vector_norm": _vector_norm,
    "as_strided": _as_strided,
    "cummax": partial(_cumulative, sign=1),
    "cummin": partial(_cumulative, sign=-1),
    "cumprod": _cumprod,
    "logcumsumexp": _logcumsumexp,
    "logsumexp": _logsumexp,
    "masked_scatter": _masked_scatter,
    "multi_margin_loss": _multi_margin_loss,
    "planner::ctc_loss": ctc_loss,
    "prod": _prod,
    "randint": _randint,
    "randint_like": lambda x, *bounds, **named: _randint(*bounds, x.shape, dtype=named.get("dtype") or x.dtype),
    "randperm": _randperm,
    "rrelu": _rrelu,
    "selu": lambda x: aten.elu(x, 1.6732632423543772, 1.0507009873554805),
    "std_mean": partial(_std_mean, deviation=torch.std),
    "var_mean": partial(_std_mean, deviation=torch.var),
}
"""By the operator's name."""
