"""PyTorch's kernels for normalization over any dimensions (layer, group, instance norm), of a worker's share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from executor.kernels import Kernel, KernelCall
from executor.torch.computed import Tensors, computed, written


def spread(tensor: torch.Tensor, dims: Sequence[int], rank: int) -> torch.Tensor:
    """View a tensor, whose dimensions are the dimensions `dims` of another, so that it broadcasts against that."""
    shape = [1] * rank
    for extent, dim in zip(tensor.shape, dims, strict=True):
        shape[dim] = extent
    return tensor.permute(sorted(range(len(dims)), key=dims.__getitem__)).reshape(shape)


def variance(call: KernelCall, operands: list[torch.Tensor]) -> Tensors:
    """Sum of squared deviations from the mean over `dims`, over the whole tensor's `count`."""
    (x, centre), dims = operands, call.integers("dims")
    kept = [dim for dim in range(x.ndim) if dim not in dims]
    squares = (x - spread(centre, kept, x.ndim)).square_()
    return ((squares.sum(dims) if dims else squares) / call.number("count"),)


@dataclass(frozen=True, slots=True)
class Normal:
    """What is normalized: x, with its means, and the inverses of its deviations, so that they broadcast against it."""

    call: KernelCall
    x: torch.Tensor
    centre: torch.Tensor
    inverse: torch.Tensor

    @classmethod
    def of(cls, call: KernelCall, x: torch.Tensor, centre: torch.Tensor, squares: torch.Tensor) -> Normal:
        """Return that of a call, given its x, means and variances."""
        inverse, dims = (squares + call.number("eps")).rsqrt(), call.integers("statistics")
        return cls(call, x, spread(centre, dims, x.ndim), spread(inverse, dims, x.ndim))

    def values(self) -> torch.Tensor:
        """Return (x - mean) / sqrt(var + eps), a new tensor."""
        return (self.x - self.centre).mul_(self.inverse)

    def spread(self, operand: torch.Tensor, dims: str) -> torch.Tensor:
        """View an operand whose dimensions are the dimensions `dims` (an attribute) of x so that it broadcasts."""
        return spread(operand, self.call.integers(dims), self.x.ndim)

    def summed(self, tensor: torch.Tensor, dims: str) -> torch.Tensor:
        """Sum over all but the dimensions `dims` (an attribute), put in that order."""
        kept = self.call.integers(dims)
        rest = [dim for dim in range(tensor.ndim) if dim not in kept]
        return (tensor.sum(rest) if rest else tensor.clone()).permute([sorted(kept).index(dim) for dim in kept])


def normalize(call: KernelCall, operands: list[torch.Tensor], out: torch.Tensor) -> None:
    """Compute (x - mean) / sqrt(var + eps) * weight + bias."""
    normal = Normal.of(call, *operands[:3])
    weight, bias = (normal.spread(operand, "weights") for operand in operands[3:])
    torch.add(normal.values().mul_(weight), bias, out=out)


def backward_weights(call: KernelCall, operands: list[torch.Tensor]) -> Tensors:
    """Gradients of weight and bias: sums of grad * normalized x and of grad."""
    grad, normal = operands[0], Normal.of(call, *operands[1:])
    return normal.summed(normal.values().mul_(grad), "weights"), normal.summed(grad, "weights")


def backward_statistics(call: KernelCall, operands: list[torch.Tensor]) -> Tensors:
    """Sum grad * weight * normalized x, and grad * weight, for each mean and variance."""
    normal = Normal.of(call, *operands[1:4])
    weighted = operands[0] * normal.spread(operands[4], "weights")
    return normal.summed(normal.values().mul_(weighted), "statistics"), normal.summed(weighted, "statistics")


def backward(call: KernelCall, operands: list[torch.Tensor], out: torch.Tensor) -> None:
    """Gradient of the input, through the mean and the variance as well."""
    normal, count = Normal.of(call, *operands[1:4]), call.number("count")
    products, sums = (normal.spread(operand, "statistics") / count for operand in operands[5:])
    weighted = operands[0] * normal.spread(operands[4], "weights")
    torch.mul(weighted.sub_(normal.values().mul_(products).add_(sums)), normal.inverse, out=out)


NORMAL: dict[str, Kernel] = {
    **computed(
        {
            "var": variance,
            "normalize_backward_weights": backward_weights,
            "normalize_backward_statistics": backward_statistics,
        }
    ),
    **written({"normalize": normalize, "normalize_backward": backward}),
}
"""Kernels by operator."""
