"""PyTorch's kernels for sums, normalization and softmax, for a worker's share.

Batch norm and RMS norm have kernels of their own; `Normal` is normalization over any dimensions (layer, group, instance
norm).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from executor.kernels import KERNELS, Kernel, KernelCall, run
from executor.kernels.sums import dim_of
from executor.torch.tensors import copy_all, spread, sum_over, tensors_of, widened, written
from tdl.operator import named

aten = torch.ops.aten


def _summed(x: torch.Tensor) -> torch.Tensor:
    """Return the sum over all dimensions but the channels."""
    return x.sum([dim for dim in range(x.ndim) if dim != 1], dtype=torch.promote_types(x.dtype, torch.float32))


def _inverse_deviation(call: KernelCall, variance: torch.Tensor) -> torch.Tensor:
    return (variance + call.number("eps")).rsqrt()


def reduce_sum(call: KernelCall, operands: list[torch.Tensor], out: torch.Tensor) -> None:
    """Sum over the dimensions `dims`."""
    sum_over(operands[0], call.integers("dims"), out)


def mean(call: KernelCall, operands: list[torch.Tensor], out: torch.Tensor) -> None:
    """Sum over `dims` and divide by `count`, the number of summed elements in the whole tensor."""
    (x,), dims, count = operands, call.integers("dims"), call.number("count")
    if dims and x.dtype == out.dtype and count == math.prod(x.shape[dim] for dim in dims):
        torch.mean(x, dims, out=out)
    else:
        torch.div(x.sum(dims, dtype=torch.promote_types(x.dtype, torch.float32)) if dims else x, count, out=out)


def batch_norm(call: KernelCall, operands: list[torch.Tensor], out: torch.Tensor) -> None:
    """Normalize images by the statistics of each channel."""
    x, centre, variance, weight, bias = operands[0], *map(widened, operands[1:])
    settings = weight, bias, centre, variance, False, 0.0, call.number("eps")
    if out.is_contiguous():
        saved = x.new_empty(0, dtype=weight.dtype), x.new_empty(0, dtype=weight.dtype)
        aten.native_batch_norm.out(x, *settings, out=out, save_mean=saved[0], save_invstd=saved[1])
    else:
        out.copy_(aten.native_batch_norm(x, *settings)[0])


def batch_norm_var(call: KernelCall, operands: list[torch.Tensor], out: torch.Tensor) -> None:
    """Sum squared deviations from `mean` per channel, divided by the whole tensor's `count`."""
    x, centre = operands
    deviation = x - spread(centre, (1,), x.ndim)
    torch.div(_summed(deviation.mul_(deviation)), call.number("count"), out=out)


def batch_norm_backward_reduce(call: KernelCall, operands: list[torch.Tensor], *outs: torch.Tensor) -> None:
    """Compute the gradients of weight and bias: sums of grad * normalized x and of grad.

    On a GPU PyTorch rounds every product to the dtype of x, so everything is computed in single precision.
    """
    grad, x, centre, variance = map(widened, operands)
    statistics = None, None, centre, _inverse_deviation(call, variance)
    like, wanted = centre, (False, True, True)  # in place of the weight: a GPU only reads its dtype
    gradients = aten.native_batch_norm_backward(grad, x, like, *statistics, True, call.number("eps"), wanted)
    copy_all(outs, gradients[1:])


def batch_norm_backward(call: KernelCall, operands: list[torch.Tensor], out: torch.Tensor) -> None:
    """Compute the gradient of the input, including the paths through mean and variance."""
    grad, x, centre, variance, weight, grad_weight, grad_bias = operands
    scale = _inverse_deviation(call, variance) * weight
    share = scale / -call.number("count")
    statistics = share * grad_weight, share * grad_bias, centre, variance
    through = aten.native_batch_norm(x, *statistics, False, 0.0, call.number("eps"))[0]
    torch.addcmul(through, grad, spread(scale, (1,), x.ndim), out=out)


NORMALIZATION = written(
    {**named(mean, batch_norm, batch_norm_var, batch_norm_backward_reduce, batch_norm_backward), "sum": reduce_sum}
)
"""Kernels by operator."""


Tensors = list[torch.Tensor]


def _inverse(call: KernelCall, square: torch.Tensor) -> torch.Tensor:
    """Return 1 / sqrt(mean of squares + eps) of every row, broadcast against rows."""
    return (widened(square) + call.number("eps")).rsqrt_().unsqueeze(-1)


def mean_square(call: KernelCall, operands: Tensors, out: torch.Tensor) -> None:
    """Sum the squares of every row, divided by the whole row's `count`."""
    torch.div(widened(operands[0]).square().sum(-1), call.number("count"), out=out)


def rms_norm(call: KernelCall, operands: Tensors, out: torch.Tensor) -> None:
    """Compute x / sqrt(square + eps) * weight."""
    x, square, weight = operands
    torch.mul(x * _inverse(call, square), weight, out=out)


def backward_weight(call: KernelCall, operands: Tensors, out: torch.Tensor) -> None:
    """Compute the gradient of the weight: sums of grad * normalized x."""
    grad, x, square = operands
    products = (x * _inverse(call, square)).mul_(grad)
    sum_over(products.view(-1, products.shape[-1]), (0,), out)


def backward_sum(call: KernelCall, operands: Tensors, out: torch.Tensor) -> None:
    """Sum grad * weight * x for every row."""
    grad, x, weight = operands
    sum_over((grad * weight).mul_(x), (-1,), out)


def backward(call: KernelCall, operands: Tensors, out: torch.Tensor) -> None:
    """Compute the gradient of the input, including the path through the mean of squares."""
    grad, x, square, weight, inner = operands
    inverse = _inverse(call, square)
    factor = inverse.square() * widened(inner).unsqueeze(-1) / -call.number("count")
    torch.mul(torch.addcmul(grad * weight, x, factor), inverse, out=out)


def rotary(call: KernelCall) -> None:
    """Rotate pairs of elements of whole heads by their angles."""
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


SHORT = range(8, 32)
"""Row lengths for which PyTorch computes the maximum element by element on a CPU. Comparing both halves first is twice
as fast."""


def amax(call: KernelCall, operands: list[torch.Tensor], out: torch.Tensor) -> None:
    """Compute the maximum along `dims`."""
    (x,), dims = operands, call.integers("dims")
    if call.xp is np and dims == (x.ndim - 1,) and x.shape[-1] in SHORT:
        half = (x.shape[-1] + 1) // 2
        x = torch.maximum(x[..., :half], x[..., -half:])
    out.copy_(x.amax(dims) if dims else x)


def sum_exp(call: KernelCall, operands: list[torch.Tensor], out: torch.Tensor) -> None:
    """Sum exp(x - maximum) over this run's part of every row."""
    (x, maximum), dim = operands, dim_of(call, operands[0].ndim)
    sum_over((x - maximum.unsqueeze(dim)).exp_(), (dim,), out)


def softmax(call: KernelCall, operands: list[torch.Tensor], out: torch.Tensor) -> None:
    """Compute exp(x - maximum) / total."""
    x, maximum, total = operands
    dim = dim_of(call, x.ndim)
    torch.div((x - maximum.unsqueeze(dim)).exp_(), total.unsqueeze(dim), out=out)


def softmax_backward_sum(call: KernelCall, operands: list[torch.Tensor], out: torch.Tensor) -> None:
    """Sum gradient times result over this run's part of every row."""
    sum_over(widened(operands[0]) * operands[1], (dim_of(call, operands[0].ndim),), out)


def softmax_backward(call: KernelCall, operands: list[torch.Tensor], out: torch.Tensor) -> None:
    """Compute result * (gradient - inner)."""
    grad, result, inner = operands
    torch.mul(grad - inner.unsqueeze(dim_of(call, grad.ndim)), result, out=out)


def _places(call: KernelCall, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the positions of labels among this run's classes (arbitrary for others), and a mask of these labels."""
    start, stop = call.ranges["c"]
    places = labels.long() - start
    return places.clamp(0, stop - start - 1), (places >= 0) & (places < stop - start)


def cross_entropy(call: KernelCall, operands: list[torch.Tensor], out: torch.Tensor) -> None:
    """Compute the negative log-likelihood of the labels among this run's classes."""
    (x, maximum, total, labels), dim = operands, dim_of(call, operands[0].ndim)
    places, here = _places(call, labels)
    losses = widened(total).log() + maximum - x.gather(dim, places.unsqueeze(dim)).squeeze(dim)
    torch.div(losses.where(here, 0).sum(), call.number("count"), out=out)


def cross_entropy_backward(call: KernelCall, operands: list[torch.Tensor], out: torch.Tensor) -> None:
    """Compute (softmax - one-hot label) * factor; zero in rows with a negative label."""
    (x, *rows), dim = operands, dim_of(call, operands[0].ndim)
    maximum, total, labels = (row.unsqueeze(dim) for row in rows)
    gradient = (x - maximum).exp_().div_(total)
    places, here = _places(call, labels)
    gradient.scatter_add_(dim, places, here.to(gradient.dtype).neg_())
    torch.mul(gradient.mul_(call.number("factor")), labels >= 0, out=out)


SOFTMAX = written(
    named(amax, sum_exp, softmax, softmax_backward_sum, softmax_backward, cross_entropy, cross_entropy_backward)
)
"""Kernels by operator."""


native_batch_norm = torch.ops.aten.native_batch_norm
native_layer_norm_backward = torch.ops.aten.native_layer_norm_backward


def variance(call: KernelCall, operands: list[torch.Tensor], out: torch.Tensor) -> None:
    """Sum squared deviations from the mean over `dims`, divided by the whole tensor's `count`."""
    (x, centre), dims = operands, call.integers("dims")
    kept = [dim for dim in range(x.ndim) if dim not in dims]
    squares = (x - spread(centre, kept, x.ndim)).square_()
    torch.div(squares.sum(dims) if dims else squares, call.number("count"), out=out)


@dataclass(frozen=True, slots=True)
class Normal:
    """The operands of normalization: x, and means and variances over the dimensions in the attribute `statistics`."""

    call: KernelCall
    x: torch.Tensor
    centre: torch.Tensor
    squares: torch.Tensor

    @property
    def inverse(self) -> torch.Tensor:
        """1 / sqrt(var + eps), broadcast against x."""
        return self.spread((self.squares + self.call.number("eps")).rsqrt(), "statistics")

    @property
    def are_rows(self) -> bool:
        """True if each statistic belongs to a row of adjacent elements, in the order and with the dtype of x."""
        is_leading = self.call.integers("statistics") == tuple(range(self.centre.ndim))
        return is_leading and self.x.is_contiguous() and self.x.dtype == self.centre.dtype

    def values(self, factor: torch.Tensor | None = None, offset: torch.Tensor | None = None) -> torch.Tensor:
        """Return (x - mean) / sqrt(var + eps), optionally times a factor plus an offset for each mean."""
        if self.are_rows:  # each row is a channel of one image
            each = [None if y is None else y.reshape(-1) for y in (factor, offset, self.centre, self.squares)]
            rows = self.x.reshape(1, self.centre.numel(), -1)
            values: torch.Tensor = native_batch_norm(rows, *each, False, 0.0, self.call.number("eps"))[0]
            return values.view_as(self.x)
        values = (self.x - self.spread(self.centre, "statistics")).mul_(self.inverse)
        if factor is not None and offset is not None:
            values.mul_(self.spread(factor, "statistics")).add_(self.spread(offset, "statistics"))
        return values

    def spread(self, operand: torch.Tensor, dims: str) -> torch.Tensor:
        """Return an operand over the dimensions `dims` (an attribute) of x, broadcast against x."""
        return spread(operand, self.call.integers(dims), self.x.ndim)

    def summed(self, tensor: torch.Tensor, dims: str) -> torch.Tensor:
        """Return the sum over all but the dimensions `dims` (an attribute), in that order."""
        kept = self.call.integers(dims)
        rest = [dim for dim in range(tensor.ndim) if dim not in kept]
        wide = torch.promote_types(tensor.dtype, torch.float32)
        return (tensor.sum(rest, dtype=wide) if rest else tensor).permute([sorted(kept).index(dim) for dim in kept])


def normalize(call: KernelCall, operands: list[torch.Tensor], out: torch.Tensor) -> None:
    """Compute (x - mean) / sqrt(var + eps) * weight + bias."""
    normal = Normal(call, *operands[:3])
    weight, bias = (normal.spread(operand, "weights") for operand in operands[3:])
    torch.addcmul(bias, normal.values(), weight, out=out)


def backward_weights(call: KernelCall, operands: list[torch.Tensor], *outs: torch.Tensor) -> None:
    """Compute the gradients of weight and bias: sums of grad * normalized x and of grad."""
    grad, normal = operands[0], Normal(call, *operands[1:])
    weights = tuple(range(normal.centre.ndim, normal.x.ndim))
    if not normal.are_rows or call.integers("weights") != weights or not weights:
        copy_all(outs, (normal.summed(normal.values().mul_(grad), "weights"), normal.summed(grad, "weights")))
        return
    shape = normal.x.shape[normal.centre.ndim :]
    like = normal.x.new_empty(shape)  # placeholder for weight and bias, which are not read
    statistics = normal.spread(normal.centre, "statistics"), normal.inverse
    gradients = native_layer_norm_backward(grad, normal.x, shape, *statistics, like, like, (False, True, True))
    copy_all(outs, gradients[1:])


def backward_statistics(call: KernelCall, operands: list[torch.Tensor], *outs: torch.Tensor) -> None:
    """Sum grad * weight * normalized x, and grad * weight, for each mean and variance."""
    normal = Normal(call, *operands[1:4])
    weighted = operands[0] * normal.spread(operands[4], "weights")
    products = normal.values().mul_(weighted)
    copy_all(outs, (normal.summed(products, "statistics"), normal.summed(weighted, "statistics")))


def normalize_backward(call: KernelCall, operands: list[torch.Tensor], out: torch.Tensor) -> None:
    """Compute the gradient of the input, including the paths through mean and variance."""
    normal, count = Normal(call, *operands[1:4]), call.number("count")
    products, sums = (operand / count for operand in operands[5:])
    weighted = operands[0] * normal.spread(operands[4], "weights")
    torch.mul(weighted.sub_(normal.values(products, sums)), normal.inverse, out=out)


NORMAL = written(
    {
        "var": variance,
        "normalize": normalize,
        "normalize_backward": normalize_backward,
        "normalize_backward_weights": backward_weights,
        "normalize_backward_statistics": backward_statistics,
    }
)
"""Kernels by operator."""
