"""PyTorch's kernels for sums and batch norm, of a worker's share: statistics are of the whole batch.

On a processor in single or double precision; elsewhere the kernels on arrays run.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from executor.kernels import KERNELS, Kernel, KernelCall, run
from executor.torch.tensors import tensor_of

Computation = Callable[[KernelCall, list[torch.Tensor]], tuple[torch.Tensor, ...]]
"""What a kernel's outputs are to be, by its call and operands."""

WIDE = (torch.float32, torch.float64)


def _channels(vector: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """View a vector over the channels so that it broadcasts against `like`."""
    return vector.view(-1, *(1,) * (like.ndim - 2))


def _summed(x: torch.Tensor) -> torch.Tensor:
    """Sum over all dimensions but the channels'."""
    return x.sum([dim for dim in range(x.ndim) if dim != 1])


def _inverse_deviation(call: KernelCall, variance: torch.Tensor) -> torch.Tensor:
    return (variance + call.number("eps")).rsqrt()


def reduce_sum(call: KernelCall, operands: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Sum over the dimensions `dims`."""
    dims = call.integers("dims")
    return (operands[0].sum(dims) if dims else operands[0],)


def mean(call: KernelCall, operands: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Sum over `dims` divided by `count`, the number of elements summed in the whole tensor."""
    return (reduce_sum(call, operands)[0] / call.number("count"),)


def batch_norm_var(call: KernelCall, operands: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Sum of squared deviations from `mean` per channel, over the whole tensor's `count`."""
    x, centre = operands
    return (_summed((x - _channels(centre, x)).square_()) / call.number("count"),)


def batch_norm_backward_reduce(call: KernelCall, operands: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Gradients of weight and bias: sums of grad * normalized x and of grad."""
    grad, x, centre, variance = operands
    statistics = None, None, centre, _inverse_deviation(call, variance)
    wanted = (False, True, True)
    gradients = torch.ops.aten.native_batch_norm_backward(grad, x, None, *statistics, True, call.number("eps"), wanted)
    return tuple(gradients[1:])


def batch_norm_backward(call: KernelCall, operands: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Gradient of the input, through the mean and the variance as well."""
    grad, x, centre, variance, weight, grad_weight, grad_bias = operands
    inverse, count = _inverse_deviation(call, variance), call.number("count")
    scale = inverse * weight
    through = x - _channels(centre, x)
    through *= _channels(-scale * inverse * grad_weight / count, x)
    through -= _channels(scale * grad_bias / count, x)
    return (through.addcmul_(grad, _channels(scale, x)),)


def _kernel(op: str, compute: Computation) -> Kernel:
    """Return the kernel of a computation."""

    def kernel(call: KernelCall) -> None:
        operands = [*map(tensor_of, call.inputs)]
        if operands[0].device.type != "cpu" or not all(one.dtype in WIDE and one.numel() for one in operands):
            run(KERNELS[op], call)
            return
        for out, result in zip(call.outputs, compute(call, operands), strict=True):
            tensor_of(out).copy_(result)

    return kernel


NORMALIZATION: dict[str, Kernel] = {
    op: _kernel(op, compute)
    for op, compute in {
        "sum": reduce_sum,
        "mean": mean,
        "batch_norm_var": batch_norm_var,
        "batch_norm_backward_reduce": batch_norm_backward_reduce,
        "batch_norm_backward": batch_norm_backward,
    }.items()
}
"""Kernels by operator."""
