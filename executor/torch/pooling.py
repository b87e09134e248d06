"""PyTorch's kernel for the gradient of maximum pooling, of whole images without padding.

Its forward pass, which finds maxima and places at once, takes longer on a processor than that on arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import cast

import torch

from executor.kernels import KERNELS, Kernel, KernelCall, run
from executor.kernels.window import dilation
from executor.torch.computed import are_computed
from executor.torch.tensors import tensor_of

BACKWARD = "max_pool2d_with_indices_backward"


def max_pool2d_with_indices_backward(call: KernelCall) -> None:
    """Give each window's gradient to the element where its maximum first occurred."""
    (grad, offsets), out = map(tensor_of, call.inputs), tensor_of(call.outputs[0])
    extents = cast("Mapping[str, int]", call.attributes["extents"])
    is_whole = all(call.ranges[name] == (0, extents[name]) for name in ("y", "x", "dy", "dx"))
    is_dense = out.is_contiguous() and are_computed(call, [grad, offsets, out])
    if not (is_whole and is_dense) or any(call.pair("padding")):
        run(KERNELS[BACKWARD], call)
        return
    kernel, stride, steps, width = call.pair("kernel"), call.pair("stride"), dilation(call), out.shape[3]
    places = partial(torch.arange, device=grad.device)
    (down, across), (rows, columns) = map(places, kernel), map(places, grad.shape[2:])
    of_offset = (down[:, None] * (steps[0] * width) + across * steps[1]).flatten()
    of_window = rows[:, None] * (stride[0] * width) + columns * stride[1]
    maxima = of_offset.index_select(0, offsets.flatten()).view(offsets.shape).add_(of_window)
    geometry = kernel, stride, (0, 0), steps, False
    torch.ops.aten.max_pool2d_with_indices_backward.grad_input(grad, out, *geometry, maxima, grad_input=out)


POOLING: dict[str, Kernel] = {BACKWARD: max_pool2d_with_indices_backward}
"""Kernels by operator."""
