"""Operators that read or write parts of a tensor, written in others: slices, diagonals, places, windows of volumes."""

# ruff: noqa: PLR0913, PLR0917 -- functions have the arguments of PyTorch's operators

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from planner.pytorch.translate.call import refuse_if
from planner.pytorch.translate.gradient_overrides import with_gradient

aten = torch.ops.aten


def _roll(x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    """Put the last elements of a dimension before the others."""
    if not dims:
        return _roll(x.flatten(), shifts, (0,)).view(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        if start := -shift % max(1, x.shape[dim]):
            x = torch.cat([x.narrow(dim, start, x.shape[dim] - start), x.narrow(dim, 0, start)], dim)
    return x


def _slice_scatter(
    x: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """Put a range of a dimension between what comes before and after it."""
    first, stop, _ = slice(start, end, step).indices(x.shape[dim])
    if step != 1:
        return _index_put(x, [*[None] * (dim % x.ndim), torch.arange(first, stop, step)], src)
    before, after = x.narrow(dim, 0, first), x.narrow(dim, max(first, stop), x.shape[dim] - max(first, stop))
    return torch.cat([before, src, after], dim)


def _select_scatter(x: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    row = index % x.shape[dim]
    return _slice_scatter(x, src.unsqueeze(dim), dim, row, row + 1)


def _unfold(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Put windows of a dimension side by side in its place, and their elements last."""
    x = x if x.ndim else x[None]
    dim = dimension % x.ndim
    places = torch.arange((x.shape[dim] - size) // step + 1)[:, None] * step + torch.arange(size)
    windows: Tensor = x.index_select(dim, places.flatten()).unflatten(dim, places.shape)  # type: ignore[no-untyped-call]
    return windows.movedim(dim + 1, -1)


def _diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Read a diagonal of matrices, which is every so many elements of their rows behind each other."""
    laid = x.movedim((dim1, dim2), (-2, -1))
    *_, rows, columns = laid.shape
    first = offset if offset >= 0 else -offset * columns
    count = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    return laid.flatten(-2)[..., first : first + count * (columns + 1) : columns + 1][..., :count]


def _index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    """Write at indices what has a gradient, of which what is overwritten has its share, too."""
    refuse_if(accumulate, "what is added has its gradient")
    places = list(indices)
    written = with_gradient(
        lambda x, values: aten.index_put(x, places, values.detach()),
        lambda arriving, *_: aten.index_put(arriving, places, arriving.new_zeros(())),
        lambda arriving, *_: aten.index(arriving, places),
    )
    return written(x, values.to(x.dtype).expand(aten.index(x, places).shape))


def _scatter(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """Write at indices along a dimension; as `_index_put`."""
    written = with_gradient(
        lambda x, src: x.scatter(dim, index, src.detach()),
        lambda arriving, *_: arriving.scatter(dim, index, 0),
        lambda arriving, *_: arriving.gather(dim, index),
    )
    return written(x, src)


ALONE = (1, 1, 0, 1)
"""The kernel, stride, padding and dilation of windows along an axis on which each element is alone."""


def several(numbers: Any, count: int) -> list[int]:
    """Return a number for each of so many dimensions."""
    several = [numbers] if isinstance(numbers, int) else list(numbers)
    return several * count if len(several) == 1 else several


def _pooled(pool: Callable[..., Tensor], x: Tensor, windows: Sequence[Any], *how: bool) -> Tensor:
    """Pool planes, and then the places of these along z; `windows` are kernel, stride, padding and dilation."""
    of_axes = [several(numbers, 3) for numbers in windows]
    n, channels, depth, *image = x.shape
    planes = pool(x.reshape(n, channels * depth, *image), *(numbers[1:] for numbers in of_axes), *how)
    height, width = planes.shape[-2:]
    columns = planes.reshape(n, channels, depth, height * width)
    along_z = ((numbers[0], alone) for numbers, alone in zip(of_axes, ALONE, strict=False))
    return pool(columns, *along_z, *how).reshape(n, channels, -1, height, width)


def _max_pool3d(
    x: Tensor, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Tensor:
    return _pooled(F.max_pool2d, x, (kernel_size, stride or kernel_size, padding, dilation), ceil_mode)


def _avg_pool3d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    refuse_if(divisor_override is not None, "only windows' own sizes divide")
    return _pooled(F.avg_pool2d, x, (kernel_size, stride or kernel_size, padding), ceil_mode, count_include_pad)


def max_pool_with_places(
    x: Tensor, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> tuple[Tensor, Tensor]:
    """Pool images; the place of what is greatest in a window is its number in the image."""
    refuse_if(ceil_mode, "windows lie within the image where places are told")
    n, channels, *image = x.shape
    rows, columns = several(padding, 2)
    numbers = torch.arange(image[0] * image[1], dtype=x.dtype).view(1, 1, *image)
    windows, places = (
        F.unfold(
            F.pad(part, (columns, columns, rows, rows), value=value), kernel_size, dilation, 0, stride or kernel_size
        )
        for part, value in ((x, -inf), (numbers, 0.0))
    )
    windows = windows.view(n, channels, places.shape[1], -1)
    chosen = windows.detach().argmax(2, keepdim=True)
    greatest = places[:, None].expand(n, channels, -1, -1).gather(2, chosen)
    height, width = (
        (extent + 2 * pad - apart * (taps - 1) - 1) // step + 1
        for extent, pad, apart, taps, step in zip(
            image,
            (rows, columns),
            *(several(numbers, 2) for numbers in (dilation, kernel_size, stride or kernel_size)),
            strict=True,
        )
    )
    return tuple(part.view(n, channels, height, width) for part in (windows.gather(2, chosen), greatest.long()))  # type: ignore[return-value]


WRITTEN_PARTS: Mapping[str, Callable[..., Any]] = {
    "avg_pool3d": _avg_pool3d,
    "diagonal": _diagonal,
    "index_put": _index_put,
    "max_pool2d_with_indices": max_pool_with_places,
    "max_pool3d": _max_pool3d,
    "roll": _roll,
    "scatter": _scatter,
    "select_scatter": _select_scatter,
    "slice_scatter": _slice_scatter,
    "unfold": _unfold,
}
"""By the operator's name."""
