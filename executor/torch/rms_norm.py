"""PyTorch's kernels for the parts of RMS norm, over rows of the last dimension, and for rotary positions."""

from __future__ import annotations

import torch

from executor.kernels import KERNELS, Kernel, KernelCall, run
from executor.torch.computed import sum_over, widened, written
from executor.torch.tensors import tensors_of

Tensors = list[torch.Tensor]


def _inverse(call: KernelCall, square: torch.Tensor) -> torch.Tensor:
    """1 / sqrt(mean of squares + eps) of every row, as it broadcasts against rows."""
    return (widened(square) + call.number("eps")).rsqrt_().unsqueeze(-1)


def mean_square(call: KernelCall, operands: Tensors, out: torch.Tensor) -> None:
    """Sum of squares of every row, over the whole row's `count`."""
    torch.div(widened(operands[0]).square().sum(-1), call.number("count"), out=out)


def rms_norm(call: KernelCall, operands: Tensors, out: torch.Tensor) -> None:
    """Compute x / sqrt(square + eps) * weight."""
    x, square, weight = operands
    torch.mul(x * _inverse(call, square), weight, out=out)


def backward_weight(call: KernelCall, operands: Tensors, out: torch.Tensor) -> None:
    """Gradient of the weight: sums of grad * normalized x."""
    grad, x, square = operands
    products = (x * _inverse(call, square)).mul_(grad)
    sum_over(products.view(-1, products.shape[-1]), (0,), out)


def backward_sum(call: KernelCall, operands: Tensors, out: torch.Tensor) -> None:
    """Sum grad * weight * x for every row."""
    grad, x, weight = operands
    sum_over((grad * weight).mul_(x), (-1,), out)


def backward(call: KernelCall, operands: Tensors, out: torch.Tensor) -> None:
    """Gradient of the input, through the mean of squares as well."""
    grad, x, square, weight, inner = operands
    inverse = _inverse(call, square)
    factor = inverse.square() * widened(inner).unsqueeze(-1) / -call.number("count")
    torch.mul(torch.addcmul(grad * weight, x, factor), inverse, out=out)


def rotary(call: KernelCall) -> None:
    """Turn pairs of elements by their angles, of whole heads."""
    (x, cos, sin), (out,), half = *tensors_of(call), call.integer("half")
    if call.ranges["j"] != (0, 2 * half) or not x.shape[-1] == cos.shape[-1] == sin.shape[-1] == 2 * half:
        run(KERNELS["rotary"], call)
        return
    low, high = widened(sin).chunk(2, -1)
    signed = torch.cat((high, -low) if call.flag("inverse") else (-low, high), -1)
    torch.addcmul(x * widened(cos), x.roll(half, -1), signed, out=out)


RMS_NORM: dict[str, Kernel] = {
    **written(
        {
            "mean_square": mean_square,
            "rms_norm": rms_norm,
            "rms_norm_backward_weight": backward_weight,
            "rms_norm_backward_sum": backward_sum,
            "rms_norm_backward": backward,
        }
    ),
    "rotary": rotary,
}
"""Kernels by operator."""
