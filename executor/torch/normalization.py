"""PyTorch's kernels for sums and batch norm, of a worker's share: statistics are of the whole batch."""

from __future__ import annotations

import math

import torch

from executor.kernels import KernelCall
from executor.torch.computed import copy_all, sum_over, widened, written

aten = torch.ops.aten


def _channels(vector: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """View a vector over the channels so that it broadcasts against `like`."""
    return vector.view(-1, *(1,) * (like.ndim - 2))


def _summed(x: torch.Tensor) -> torch.Tensor:
    """Sum over all dimensions but the channels'."""
    return x.sum([dim for dim in range(x.ndim) if dim != 1], dtype=torch.promote_types(x.dtype, torch.float32))


def _inverse_deviation(call: KernelCall, variance: torch.Tensor) -> torch.Tensor:
    return (variance + call.number("eps")).rsqrt()


def reduce_sum(call: KernelCall, operands: list[torch.Tensor], out: torch.Tensor) -> None:
    """Sum over the dimensions `dims`."""
    sum_over(operands[0], call.integers("dims"), out)


def mean(call: KernelCall, operands: list[torch.Tensor], out: torch.Tensor) -> None:
    """Sum over `dims` divided by `count`, the number of elements summed in the whole tensor."""
    (x,), dims, count = operands, call.integers("dims"), call.number("count")
    if dims and x.dtype == out.dtype and count == math.prod(x.shape[dim] for dim in dims):
        torch.mean(x, dims, out=out)
    else:
        torch.div(x.sum(dims, dtype=torch.promote_types(x.dtype, torch.float32)) if dims else x, count, out=out)


def batch_norm(call: KernelCall, operands: list[torch.Tensor], out: torch.Tensor) -> None:
    """Normalize images by statistics of each channel."""
    x, centre, variance, weight, bias = operands[0], *map(widened, operands[1:])
    settings = weight, bias, centre, variance, False, 0.0, call.number("eps")
    if out.is_contiguous():
        saved = x.new_empty(0, dtype=weight.dtype), x.new_empty(0, dtype=weight.dtype)
        aten.native_batch_norm.out(x, *settings, out=out, save_mean=saved[0], save_invstd=saved[1])
    else:
        out.copy_(aten.native_batch_norm(x, *settings)[0])


def batch_norm_var(call: KernelCall, operands: list[torch.Tensor], out: torch.Tensor) -> None:
    """Sum of squared deviations from `mean` per channel, over the whole tensor's `count`."""
    x, centre = operands
    deviation = x - _channels(centre, x)
    torch.div(_summed(deviation.mul_(deviation)), call.number("count"), out=out)


def batch_norm_backward_reduce(call: KernelCall, operands: list[torch.Tensor], *outs: torch.Tensor) -> None:
    """Gradients of weight and bias: sums of grad * normalized x and of grad.

    On a GPU PyTorch rounds every product to the dtype of x, so that all is in single precision.
    """
    grad, x, centre, variance = map(widened, operands)
    statistics = None, None, centre, _inverse_deviation(call, variance)
    like, wanted = centre, (False, True, True)  # a weight, of which a GPU asks the dtype alone
    gradients = aten.native_batch_norm_backward(grad, x, like, *statistics, True, call.number("eps"), wanted)
    copy_all(outs, gradients[1:])


def batch_norm_backward(call: KernelCall, operands: list[torch.Tensor], out: torch.Tensor) -> None:
    """Gradient of the input, through the mean and the variance as well."""
    grad, x, centre, variance, weight, grad_weight, grad_bias = operands
    scale = _inverse_deviation(call, variance) * weight
    share = scale / -call.number("count")
    statistics = share * grad_weight, share * grad_bias, centre, variance
    through = aten.native_batch_norm(x, *statistics, False, 0.0, call.number("eps"))[0]
    torch.addcmul(through, grad, _channels(scale, x), out=out)


NORMALIZATION = written(
    {
        "sum": reduce_sum,
        "mean": mean,
        "batch_norm": batch_norm,
        "batch_norm_var": batch_norm_var,
        "batch_norm_backward_reduce": batch_norm_backward_reduce,
        "batch_norm_backward": batch_norm_backward,
    }
)
"""Kernels by operator."""
