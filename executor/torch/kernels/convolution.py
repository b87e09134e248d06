"""Convolution (NCHW, OIHW) and its two gradients by PyTorch, on any share of rows, columns, channels and groups.

PyTorch pads both sides alike; a worker's share of an image has padding at the tensor's border alone. So images are
framed first, as for the kernels on arrays, and PyTorch is told of no padding.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  # as PyTorch's users know it

from executor.kernels.call import Kernel, KernelCall, Range
from executor.kernels.window import Framed, Window, dilation, local_ranges, windows
from executor.torch.tensors import tensor_of


def _groups(call: KernelCall) -> int:
    return 1 if call.attributes.get("groups", 1) == 1 else call.length("g")


def _framed(call: KernelCall, operand: int) -> torch.Tensor:
    """Return an image with exactly the rows and columns that the windows read, padded where it has none."""
    along_y, along_x = windows(call)
    image = Framed(call, operand, (along_y.reads(call.ranges["y"]), along_x.reads(call.ranges["x"])), 0)
    return tensor_of(image[:])


def convolution(call: KernelCall) -> None:
    """Correlate images with filters."""
    weight = tensor_of(call.inputs[1])
    found = F.conv2d(
        _framed(call, 0), weight, stride=call.pair("stride"), dilation=dilation(call), groups=_groups(call)
    )
    tensor_of(call.outputs[0]).copy_(found)


def convolution_backward_input(call: KernelCall) -> None:
    """Gradient of the image: every window's gradient goes back to the elements that the window read."""
    grad, weight, out = tensor_of(call.inputs[0]), tensor_of(call.inputs[1]), tensor_of(call.outputs[0])
    out.zero_()
    if not grad.numel():
        return
    found = F.conv_transpose2d(grad, weight, stride=call.pair("stride"), groups=_groups(call), dilation=dilation(call))
    wanted = call.ranges["y"], call.ranges["x"]
    places = map(_overlap, windows(call), local_ranges(call, 0), wanted, found.shape[2:])
    (from_y, to_y), (from_x, to_x) = places
    out[:, :, to_y, to_x] = found[:, :, from_y, from_x]


def _overlap(window: Window, positions: Range, wanted: Range, length: int) -> tuple[slice, slice]:
    """Return where wanted rows lie among `length` that windows at `positions` read, and where among the wanted."""
    first = positions[0] * window.stride + window.offset(window.taps[0])
    start, stop = max(first, wanted[0]), min(first + length, wanted[1])
    stop = max(start, stop)
    return slice(start - first, stop - first), slice(start - wanted[0], stop - wanted[0])


def convolution_backward_weight(call: KernelCall) -> None:
    """Gradient of the weight: every tap's products of gradient and image, summed over images and windows."""
    grad, out = tensor_of(call.inputs[0]), tensor_of(call.outputs[0])
    _, found, _ = torch.ops.aten.convolution_backward(
        grad,
        _framed(call, 1),
        out,  # for its shape
        None,
        list(call.pair("stride")),
        [0, 0],
        list(dilation(call)),
        False,
        [0, 0],
        _groups(call),
        [False, True, False],
    )
    out.copy_(found)


KERNELS: dict[str, Kernel] = {
    "convolution": convolution,
    "convolution_backward_input": convolution_backward_input,
    "convolution_backward_weight": convolution_backward_weight,
}
