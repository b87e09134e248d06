"""Max pooling with indices, its inverse, pooling of volumes, and transposed convolution of volumes."""

# ruff: noqa: PLR0913, PLR0917 -- functions have the arguments of PyTorch's operators

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, prod
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from planner.pytorch.translate.call import refuse_if


def several(numbers: Any, count: int) -> list[int]:
    """Return one number per dimension."""
    several = [numbers] if isinstance(numbers, int) else list(numbers)
    return several * count if len(several) == 1 else several


def max_pool_with_places(
    x: Tensor, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> tuple[Tensor, Tensor]:
    """Pool images; return the maxima and their indices within the image."""
    refuse_if(ceil_mode, "ceil_mode with indices is not supported")
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


def _max_unpool2d(x: Tensor, indices: Tensor, output_size: Sequence[int]) -> Tensor:
    """Write elements at their indices; all elements of one index get the gradient that arrives there."""
    places, values = indices.flatten(2), x.flatten(2)
    nothing = values.new_zeros(*values.shape[:2], output_size[0] * output_size[1])
    added = nothing.scatter_add(2, places, values)
    written = nothing.scatter(2, places, values.detach())
    return (added - added.detach() + written).view(*x.shape[:2], *output_size)


def _conv_transpose3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """Convolve the volume, with zeros between its elements, with the flipped weight."""
    stride, padding, more, dilation = (several(n, 3) for n in (stride, padding, output_padding, dilation))
    kernel = weight.shape[2:]
    for dim in range(3):
        apart = x.unsqueeze(dim + 3)
        apart = torch.cat([apart, *[torch.zeros_like(apart)] * (stride[dim] - 1)], dim + 3).flatten(dim + 2, dim + 3)
        x = apart.narrow(dim + 2, 0, apart.shape[dim + 2] - stride[dim] + 1)
    reach = [apart * (taps - 1) - pad for apart, taps, pad in zip(dilation, kernel, padding, strict=True)]
    x = F.pad(x, [amount for dim in (2, 1, 0) for amount in (reach[dim], reach[dim] + more[dim])])
    inputs, outputs = weight.shape[0] // groups, weight.shape[1]
    turned = weight.reshape(groups, inputs, outputs, *kernel).transpose(1, 2).flip(3, 4, 5)
    return F.conv3d(x, turned.reshape(groups * outputs, inputs, *kernel), bias, dilation=dilation, groups=groups)


def _adaptive_max_pool(x: Tensor, output_size: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the first maximum of each adaptive window and its index within the image."""
    sizes = [output_size] if isinstance(output_size, int) else output_size
    image = x.shape[x.ndim - len(sizes) :]
    if (x.ndim, len(sizes)) == (4, 2) and not any(extent % size for extent, size in zip(image, sizes, strict=True)):
        kernel = [extent // size for extent, size in zip(image, sizes, strict=True)]
        return F.max_pool2d(x, kernel), max_pool_with_places(x, kernel)[1]
    places = torch.arange(prod(image)).view(image).expand(x.shape)
    for dim, size in zip(range(-1, -len(sizes) - 1, -1), reversed(sizes), strict=True):  # the last dimension first
        extent = x.shape[dim]
        bounds = [(place * extent // size, -(-(place + 1) * extent // size)) for place in range(size)]
        greatest, chosen_places = [], []
        for start, end in bounds:
            window = x.narrow(dim, start, end - start)
            chosen = window.detach().argmax(dim, keepdim=True)
            greatest.append(window.gather(dim, chosen))
            chosen_places.append(places.narrow(dim, start, end - start).gather(dim, chosen))
        x, places = torch.cat(greatest, dim), torch.cat(chosen_places, dim)
    return x, places


ALONE = (1, 1, 0, 1)
"""Kernel, stride, padding and dilation of windows of a single element."""


def _pooled(pool: Callable[..., Tensor], x: Tensor, windows: Sequence[Any], *how: bool) -> Tensor:
    """Pool planes and then along z; `windows` are kernel, stride, padding and dilation."""
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
    refuse_if(divisor_override is not None, "divisor_override is not supported")
    return _pooled(F.avg_pool2d, x, (kernel_size, stride or kernel_size, padding), ceil_mode, count_include_pad)


PLACES: Mapping[str, Callable[..., Any]] = {
    "avg_pool3d": _avg_pool3d,
    "max_pool2d_with_indices": max_pool_with_places,
    "max_pool3d": _max_pool3d,
    **dict.fromkeys(("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"), _adaptive_max_pool),
    "conv_transpose3d": _conv_transpose3d,
    "max_unpool2d": _max_unpool2d,
}
"""Functions by operator name."""
