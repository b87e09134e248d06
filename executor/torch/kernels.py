"""PyTorch's kernels for the heavy operators, over the same calls and memory as the executor's own, which do the rest.

Statistics of normalization and the parts of softmax stay with the executor's own kernels: there work is split between
workers in the middle of what is one function in PyTorch. Images are NCHW, filters OIHW. PyTorch pads both sides alike,
but a worker's share of an image has padding at the tensor's border alone: images are framed first, and PyTorch is told
of no padding. Outputs of element-wise kernels may be the same memory as inputs.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812  # as PyTorch's users know it

from executor.kernels import KERNELS, Kernel, KernelCall, KernelSet
from executor.kernels.call import Range
from executor.kernels.window import Framed, Window, dilation, local_ranges, windows
from executor.torch.tensors import tensor_of

aten = torch.ops.aten


def _factors(call: KernelCall) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = map(tensor_of, call.inputs)
    return a.mT if call.flag("transpose_a") else a, b.mT if call.flag("transpose_b") else b


def mm(call: KernelCall) -> None:
    """Matrix product of two matrices, either one transposed."""
    torch.mm(*_factors(call), out=tensor_of(call.outputs[0]))


def add_mm(call: KernelCall) -> None:
    """Add the product of two matrices to the output."""
    tensor_of(call.outputs[0]).addmm_(*_factors(call))


def bmm(call: KernelCall) -> None:
    """Matrix products of two batches of matrices, either one transposed."""
    torch.bmm(*_factors(call), out=tensor_of(call.outputs[0]))


def _einsum(call: KernelCall) -> torch.Tensor:
    return torch.einsum(str(call.attributes["equation"]), *map(tensor_of, call.inputs))


def einsum(call: KernelCall) -> None:
    """Einstein sum in explicit form."""
    tensor_of(call.outputs[0]).copy_(_einsum(call))


def add_einsum(call: KernelCall) -> None:
    """Add an Einstein sum to the output."""
    tensor_of(call.outputs[0]).add_(_einsum(call))


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
    image, stride = _framed(call, 0), call.pair("stride")
    result = F.conv2d(image, weight, stride=stride, dilation=dilation(call), groups=_groups(call))
    tensor_of(call.outputs[0]).copy_(result)


def convolution_backward_input(call: KernelCall) -> None:
    """Gradient of the image: every window's gradient goes back to the elements that the window read."""
    grad, weight, out = tensor_of(call.inputs[0]), tensor_of(call.inputs[1]), tensor_of(call.outputs[0])
    out.zero_()
    if not grad.numel():
        return
    image = F.conv_transpose2d(grad, weight, stride=call.pair("stride"), groups=_groups(call), dilation=dilation(call))
    kept = call.ranges["y"], call.ranges["x"]
    (from_y, to_y), (from_x, to_x) = map(_overlap, windows(call), local_ranges(call, 0), kept, image.shape[2:])
    out[:, :, to_y, to_x] = image[:, :, from_y, from_x]


def _overlap(window: Window, positions: Range, kept: Range, length: int) -> tuple[slice, slice]:
    """Return where rows that are kept lie among `length` that windows at `positions` read, and where among the kept."""
    first = positions[0] * window.stride + window.offset(window.taps[0])
    start = max(first, kept[0])
    stop = max(start, min(first + length, kept[1]))
    return slice(start - first, stop - first), slice(start - kept[0], stop - kept[0])


def convolution_backward_weight(call: KernelCall) -> None:
    """Gradient of the weight: every tap's products of gradient and image, summed over images and windows."""
    grad, out = tensor_of(call.inputs[0]), tensor_of(call.outputs[0])
    tensors = grad, _framed(call, 1), out  # the last for its shape
    strides, groups, needed = (call.pair("stride"), (0, 0), dilation(call)), _groups(call), (False, True, False)
    _, gradient, _ = aten.convolution_backward(*tensors, None, *strides, False, (0, 0), groups, needed)
    out.copy_(gradient)


def _into(function: Callable[..., object], **constants: float) -> Kernel:
    """Return the kernel of a function that writes into `out`; attributes of the function's are passed on."""

    def kernel(call: KernelCall) -> None:
        function(*map(tensor_of, call.inputs), **constants, out=tensor_of(call.outputs[0]))

    return kernel


def gelu(call: KernelCall) -> None:
    """X times the normal distribution function, or its approximation by tanh.

    In single precision PyTorch's own writing into a result that is not contiguous leaves it as it was.
    """
    (x,) = map(tensor_of, call.inputs)
    tensor_of(call.outputs[0]).copy_(aten.gelu(x, approximate=_approximate(call)))


def gelu_backward(call: KernelCall) -> None:
    """Gradient of gelu."""
    grad, x = map(tensor_of, call.inputs)
    tensor_of(call.outputs[0]).copy_(aten.gelu_backward(grad, x, approximate=_approximate(call)))


def _approximate(call: KernelCall) -> str:
    return str(call.attributes.get("approximate", "none"))


def _gradient(function: Callable[..., object], *constants: float) -> Kernel:
    """Return the kernel of a gradient that is computed from the function's result."""

    def kernel(call: KernelCall) -> None:
        grad, result = map(tensor_of, call.inputs)
        function(grad, result, *constants, grad_input=tensor_of(call.outputs[0]))

    return kernel


def silu(call: KernelCall) -> None:
    """X times its logistic function."""
    (x,) = map(tensor_of, call.inputs)
    tensor_of(call.outputs[0]).copy_(aten.silu(x))


def silu_backward(call: KernelCall) -> None:
    """Gradient of silu."""
    tensor_of(call.outputs[0]).copy_(aten.silu_backward(*map(tensor_of, call.inputs)))


TORCH_KERNELS: dict[str, Kernel] = {
    "mm": mm,
    "bmm": bmm,
    "einsum": einsum,
    "convolution": convolution,
    "convolution_backward_input": convolution_backward_input,
    "convolution_backward_weight": convolution_backward_weight,
    "relu": _into(torch.clamp_min, min=0),
    "threshold_backward": _gradient(aten.threshold_backward.grad_input, 0),
    "sigmoid": _into(torch.sigmoid),
    "sigmoid_backward": _gradient(aten.sigmoid_backward.grad_input),
    "tanh": _into(torch.tanh),
    "tanh_backward": _gradient(aten.tanh_backward.grad_input),
    "gelu": gelu,
    "gelu_backward": gelu_backward,
    "silu": silu,
    "silu_backward": silu_backward,
}
"""PyTorch's kernel of an operator, by the operator's name."""

ADDING: dict[str, Kernel] = {"mm": add_mm, "einsum": add_einsum}
"""Kernels that add their result to what the output holds."""

KERNEL_SET = KernelSet(f"torch {torch.__version__}", ChainMap(TORCH_KERNELS, KERNELS), ADDING, frozenset(TORCH_KERNELS))
"""PyTorch's kernels where there are some, else those on arrays."""
