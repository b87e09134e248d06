"""PyTorch's kernels for normalization over any dimensions (layer, group, instance norm), for a worker's share."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from executor.kernels import KernelCall
from executor.torch.tensors import copy_all, spread, written

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


def backward(call: KernelCall, operands: list[torch.Tensor], out: torch.Tensor) -> None:
    """Compute the gradient of the input, including the paths through mean and variance."""
    normal, count = Normal(call, *operands[1:4]), call.number("count")
    products, sums = (operand / count for operand in operands[5:])
    weighted = operands[0] * normal.spread(operands[4], "weights")
    torch.mul(weighted.sub_(normal.values(products, sums)), normal.inverse, out=out)


NORMAL = written(
    {
        "var": variance,
        "normalize": normalize,
        "normalize_backward": backward,
        "normalize_backward_weights": backward_weights,
        "normalize_backward_statistics": backward_statistics,
    }
)
"""Kernels by operator."""
