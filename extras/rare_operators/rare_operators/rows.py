"""Rarely used operators along dimensions, on looked-up rows and on diagonals.

Scans combine elements in log2(extent) steps (Hillis and Steele, "Data parallel algorithms", 1986), so gradients are
those of products and selections, including at zeros and ties.
"""

# ruff: noqa: PLR0913, PLR0917 -- functions have the arguments of PyTorch's operators

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor

from planner.pytorch.translate.call import refuse_if
from planner.pytorch.translate.compositions import reduced, with_gradient

Parts = tuple[Tensor, ...]
"""Tensors of one shape that are combined together."""


def _prod(x: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    """Multiply halves until one element is left."""
    x = summable(x, dtype)
    if dim is None or not x.ndim:
        x, dim, keepdim = x.reshape(-1), 0, False
        x = torch.where((x == 0).sum() > 1, x.detach(), x)  # with several zeros, PyTorch's gradient is zero
    if not x.shape[dim]:
        return x.sum(dim, keepdim) + 1
    while (extent := x.shape[dim]) > 1:
        half = extent // 2
        pairs = x.narrow(dim, 0, half) * x.narrow(dim, half, half)
        x = torch.cat([pairs, x.narrow(dim, 2 * half, 1)], dim) if extent % 2 else pairs
    return x if keepdim else x.squeeze(dim)


def summable(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Return a tensor in the dtype of its products."""
    is_number = x.is_floating_point() or x.is_complex()
    return x.to(dtype or (x.dtype if is_number else torch.int64))


def _std_mean(x: Tensor, *arguments: Any, deviation: Callable[..., Tensor], **named: Any) -> Parts:
    """Return standard deviations, or variances, and means."""
    dims = arguments[0] if arguments and not isinstance(arguments[0], bool) else None
    keep = bool(arguments[2] if len(arguments) > 2 else named.get("keepdim", False))
    return deviation(x, *arguments, **named), x.mean(list(range(x.ndim)) if dims is None else dims, keepdim=keep)


def _diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Return a diagonal of matrices, a strided slice of their flattened rows."""
    laid = x.movedim((dim1, dim2), (-2, -1))
    *_, rows, columns = laid.shape
    first = offset if offset >= 0 else -offset * columns
    count = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    return laid.flatten(-2)[..., first : first + count * (columns + 1) : columns + 1][..., :count]


def _embedding_renorm(weight: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """Limit the norms of the rows that are looked up."""
    numbers, norms = indices.reshape(-1), torch.linalg.vector_norm(weight, norm_type, 1, keepdim=True)
    counts = weight.new_zeros(len(weight), 1).index_add(0, numbers, weight.new_ones(len(numbers), 1))
    return torch.where((counts > 0) & (norms > max_norm), weight * (max_norm / (norms + 1e-7)), weight)


def _scanned(combine: Callable[[Parts, Parts], Parts], parts: Parts, dim: int) -> Parts:
    """Return a scan: every element combined with all before it; `combine` takes earlier and later elements."""
    extent, reach = parts[0].shape[dim] if parts[0].ndim else 1, 1
    while reach < extent:
        early = tuple(part.narrow(dim, 0, extent - reach) for part in parts)
        late = tuple(part.narrow(dim, reach, extent - reach) for part in parts)
        both = combine(early, late)
        parts = tuple(torch.cat([a.narrow(dim, 0, reach), b], dim) for a, b in zip(parts, both, strict=True))
        reach *= 2
    return parts


def _cumprod(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    return _scanned(lambda early, late: (early[0] * late[0],), (summable(x, dtype),), dim)[0]


def _scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Combine the elements written to each index, with or without the existing one.

    Builds a row of all candidates per index.
    """
    dim %= max(1, x.ndim)
    extents = zip(x.shape, src.shape, strict=True)
    is_whole = index.shape == src.shape and all(a == b for d, (a, b) in enumerate(extents) if d != dim)
    refuse_if(not is_whole, "only whole rows can be scattered")
    places = torch.arange(x.shape[dim]).view(-1, *(1 for _ in range(x.ndim - dim)))
    hits = index.unsqueeze(dim) == places
    count = hits.sum(dim + 1)
    combine, nothing = COMBINED[reduce]
    rows = torch.where(hits, src.unsqueeze(dim), nothing)
    if include_self:
        rows = torch.cat([x.unsqueeze(dim + 1), rows], dim + 1)
    result = combine(rows, dim + 1)
    if reduce == "mean":
        result = result / (count + int(include_self)).clamp(min=1)
    return torch.where(count == 0, x, result)


COMBINED: Mapping[str, tuple[Callable[..., Tensor], float]] = {
    "sum": (torch.sum, 0.0),
    "mean": (torch.sum, 0.0),
    "prod": (torch.prod, 1.0),
    "amax": (torch.amax, -inf),
    "amin": (torch.amin, inf),
}
"""The combining function of each reduction and its neutral element."""


def _logcumsumexp(x: Tensor, dim: int) -> Tensor:
    return _scanned(lambda early, late: (torch.logaddexp(early[0], late[0]),), (x,), dim)[0]


def _cumulative(x: Tensor, dim: int, *, sign: int) -> Parts:
    """Return running maxima (or minima) and the last index of each; NaN stays."""
    places = torch.ones_like(x, dtype=torch.int64).cumsum(dim) - 1

    def combine(early: Parts, late: Parts) -> Parts:
        (a, _), (b, _) = early, late
        is_late = b.isnan() | (~a.isnan() & (sign * b >= sign * a))
        return tuple(torch.where(is_late, after, before) for before, after in zip(early, late, strict=True))

    return _scanned(combine, (x, places), dim)


def _as_strided(x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> Tensor:
    """Return elements by their memory layout, which is known only for a tensor with its own memory."""
    has_all = x.is_contiguous() and x.untyped_storage().nbytes() == x.numel() * x.element_size()
    refuse_if(not has_all, "it may share its memory with other tensors")
    places = torch.tensor(offset or 0)
    for extent, step in zip(size, stride, strict=True):
        places = places[..., None] + torch.arange(extent) * step
    return x.reshape(-1)[places]


def _multi_margin_loss(
    x: Tensor, target: Tensor, p: float = 1, margin: float = 1, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    """Return the margin loss: the mean over classes of the excess over the target's score minus a margin.

    The gradient at the margin is 0.
    """
    rows, labels = torch.atleast_2d(x), torch.atleast_1d(target)[:, None]  # type: ignore[no-untyped-call]
    above = (margin - rows.gather(1, labels) + rows).relu()
    above = above if p == 1 else above * above
    above = above if weight is None else above * weight[labels]
    losses = torch.where(torch.arange(rows.shape[1]) == labels, 0, above).mean(1)
    return reduced(losses if reduction or x.ndim > 1 else losses.squeeze(0), reduction)


def _cdist(a: Tensor, b: Tensor, p: float = 2.0, compute_mode: int | None = None) -> Tensor:
    """Return the norms of differences; with p = inf, all maxima get the gradient."""
    apart = a.unsqueeze(-2) - b.unsqueeze(-3)
    if p != inf:
        distances: Tensor = torch.linalg.vector_norm(apart, p, dim=-1)
        return distances
    sizes, greatest = apart.abs(), apart.detach().abs().amax(-1)
    is_greatest = sizes.detach() == greatest.unsqueeze(-1)
    return greatest + torch.where(is_greatest, sizes - sizes.detach(), 0).sum(-1)


def _embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    """Look up rows; each row's gradient is divided by its number of lookups."""
    refuse_if(not scale_grad_by_freq, "other lookups use the built-in embedding")
    numbers = indices.reshape(-1)
    counts = (numbers[:, None] == numbers).sum(1).view(*indices.shape, 1)
    shares = torch.where(indices[..., None] == padding_idx, 0, 1 / counts).to(weight.dtype)
    shared = with_gradient(
        lambda rows, _: rows, lambda arriving, _, shares: torch.where(shares == 0, 0, arriving * shares)
    )
    rows: Tensor = shared(weight[indices], shares)
    return rows


def _randperm(count: int, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return torch.rand(count, dtype=torch.float64).argsort().to(dtype or torch.int64)


def _fill_diagonal(x: Tensor, fill_value: float, wrap: bool = False) -> Tensor:
    rows, columns, *more = x.shape
    refuse_if(more or (wrap and rows > columns), "only one diagonal of a matrix can be filled")
    return torch.where(torch.arange(rows)[:, None] == torch.arange(columns), fill_value, x)


def _diagonal_scatter(x: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    laid = x.movedim((dim1, dim2), (-2, -1))
    rows, columns = torch.arange(laid.shape[-2]), torch.arange(laid.shape[-1])
    places = (rows + min(0, offset)).clamp(0, src.shape[-1] - 1)
    is_written = rows[:, None] + offset == columns
    return torch.where(is_written, src[..., places][..., None], laid).movedim((-2, -1), (dim1, dim2))


ROWS: Mapping[str, Callable[..., Any]] = {
    "var_mean": partial(_std_mean, deviation=torch.var),
    "std_mean": partial(_std_mean, deviation=torch.std),
    "embedding_renorm": _embedding_renorm,
    "prod": _prod,
    "diagonal": _diagonal,
    "addbmm": lambda x, a, b, *, beta=1, alpha=1: (beta * x if beta else 0) + alpha * (a @ b).sum(0),
    "aminmax": lambda x, *, dim=None, keepdim=False: tuple(
        function(x, list(range(x.ndim)) if dim is None else dim, keepdim) for function in (torch.amin, torch.amax)
    ),
    "as_strided": _as_strided,
    "cdist": _cdist,
    "cumprod": _cumprod,
    "cummax": partial(_cumulative, sign=1),
    "cummin": partial(_cumulative, sign=-1),
    "diagonal_scatter": _diagonal_scatter,
    "embedding": _embedding,
    "fill_diagonal": _fill_diagonal,
    "logcumsumexp": _logcumsumexp,
    "multi_margin_loss": _multi_margin_loss,
    "randperm": _randperm,
    "scatter_reduce": _scatter_reduce,
}
"""Functions by operator name."""
