"""Element-wise functions that PyTorch computes several times faster on a CPU, as it passes over memory once.

Outputs may be the same memory as inputs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from executor.kernels.call import Kernel, KernelCall
from executor.torch.tensors import tensor_of

aten = torch.ops.aten


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


KERNELS: dict[str, Kernel] = {
    "relu": _into(torch.clamp_min, min=0),
    "threshold_backward": _gradient(aten.threshold_backward.grad_input, 0),
    "sigmoid": _into(torch.sigmoid),
    "sigmoid_backward": _gradient(aten.sigmoid_backward.grad_input),
    "tanh": _into(torch.tanh),
    "tanh_backward": _gradient(aten.tanh_backward.grad_input),
    "gelu": gelu,
    "gelu_backward": gelu_backward,
}
