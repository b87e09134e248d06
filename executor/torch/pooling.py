"""PyTorch's kernels for maximum pooling of whole images.

Its forward pass, which computes maxima and positions together, is slower on a CPU than that on arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import cast

import numpy as np
import torch

from executor.kernels import KERNELS, Kernel, KernelCall, run
from executor.kernels.pooling import dilation
from executor.torch.tensors import are_computed, tensors_of

aten = torch.ops.aten
FORWARD, BACKWARD = "max_pool2d_with_indices", "max_pool2d_with_indices_backward"


def _is_whole(call: KernelCall, tensors: list[torch.Tensor], image: torch.Tensor) -> bool:
    """Return whether a call has dense images and all windows, each narrower than the image."""
    extents, (_, across) = cast("Mapping[str, int]", call.attributes["extents"]), call.pair("kernel")
    is_whole = all(call.ranges[name] == (0, extents[name]) for name in ("y", "x", "dy", "dx") if name in extents)
    is_dense = image.is_contiguous() and are_computed(call, tensors)
    return is_whole and is_dense and image.is_floating_point() and (across - 1) * dilation(call)[1] < image.shape[3]


def _starts(call: KernelCall, image: torch.Tensor, windows: torch.Tensor) -> torch.Tensor:
    """Return the flat positions in an image at which windows start.

    Positions in the padding count from the row before.
    """
    (down, across), padding, width = call.pair("stride"), call.pair("padding"), image.shape[3]
    rows, columns = map(partial(torch.arange, device=image.device), windows.shape[2:])
    return (rows[:, None] * down - padding[0]) * width + (columns * across - padding[1])


def max_pool2d_with_indices(call: KernelCall) -> None:
    """Compute each window's maximum, and the offset within the whole window of its first occurrence."""
    (image,), (values, offsets) = tensors_of(call)
    if call.xp is np or not _is_whole(call, [image], image):
        run(KERNELS[FORWARD], call)
        return
    kernel, steps, width = call.pair("kernel"), dilation(call), image.shape[3]
    maxima, places = aten.max_pool2d_with_indices(image, kernel, call.pair("stride"), call.pair("padding"), steps)
    values.copy_(maxima)
    distances = places.sub_(_starts(call, image, values))
    rows = distances.div(steps[0] * width, rounding_mode="floor").mul_(kernel[1])
    offsets.copy_(rows.add_(distances.remainder_(width).div_(steps[1], rounding_mode="floor")))


def max_pool2d_with_indices_backward(call: KernelCall) -> None:
    """Add each window's gradient to the element where its maximum first occurred."""
    (grad, offsets), (out,) = tensors_of(call)
    if not _is_whole(call, [grad, offsets, out], out):
        run(KERNELS[BACKWARD], call)
        return
    kernel, steps, width = call.pair("kernel"), dilation(call), out.shape[3]
    down, across = map(partial(torch.arange, device=grad.device), kernel)
    nowhere = down.new_full((1,), -out.numel())  # NaN has an offset beyond all others
    of_offset = torch.cat(((down[:, None] * (steps[0] * width) + across * steps[1]).flatten(), nowhere))
    places = of_offset.index_select(0, offsets.flatten()).view(offsets.shape).add_(_starts(call, out, grad))
    geometry = kernel, call.pair("stride"), call.pair("padding"), steps, False
    aten.max_pool2d_with_indices_backward.grad_input(grad, out, *geometry, places.clamp_(min=-1), grad_input=out)


POOLING: dict[str, Kernel] = {FORWARD: max_pool2d_with_indices, BACKWARD: max_pool2d_with_indices_backward}
"""Kernels by operator."""
