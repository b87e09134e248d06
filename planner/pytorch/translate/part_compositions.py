"""Operators that read or write parts of a tensor, composed of others: slices and indices."""

# ruff: noqa: PLR0913, PLR0917 -- functions have the arguments of PyTorch's operators

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from planner.pytorch.translate.call import refuse_if
from planner.pytorch.translate.gradient_overrides import with_gradient

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


WRITTEN_PARTS: Mapping[str, Callable[..., Any]] = {
    "index_put": _index_put,
    "roll": _roll,
    "scatter": _scatter,
    "select_scatter": _select_scatter,
    "slice_scatter": _slice_scatter,
    "unfold": _unfold,
}
"""Compositions by operator name."""
