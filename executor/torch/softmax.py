"""PyTorch's kernels for the parts of softmax, and for the gradient of cross entropy, of a worker's share."""

from __future__ import annotations

import numpy as np
import torch

from executor.kernels import KernelCall
from executor.kernels.softmax import dim_of
from executor.torch.computed import sum_over, widened, written

SHORT = range(8, 32)
"""Elements of rows of which PyTorch finds the greatest one by one on a processor, half as fast as of both halves."""


def amax(call: KernelCall, operands: list[torch.Tensor], out: torch.Tensor) -> None:
    """Greatest of the elements along `dims`."""
    (x,), dims = operands, call.integers("dims")
    if call.xp is np and dims == (x.ndim - 1,) and x.shape[-1] in SHORT:
        half = (x.shape[-1] + 1) // 2
        x = torch.maximum(x[..., :half], x[..., -half:])
    out.copy_(x.amax(dims) if dims else x)


def sum_exp(call: KernelCall, operands: list[torch.Tensor], out: torch.Tensor) -> None:
    """Sum of exp(x - maximum) over this run's part of every row."""
    (x, maximum), dim = operands, dim_of(call, operands[0].ndim)
    sum_over((x - maximum.unsqueeze(dim)).exp_(), (dim,), out)


def softmax(call: KernelCall, operands: list[torch.Tensor], out: torch.Tensor) -> None:
    """exp(x - maximum) / total."""
    x, maximum, total = operands
    dim = dim_of(call, x.ndim)
    torch.div((x - maximum.unsqueeze(dim)).exp_(), total.unsqueeze(dim), out=out)


def softmax_backward_sum(call: KernelCall, operands: list[torch.Tensor], out: torch.Tensor) -> None:
    """Sum of gradient times result over this run's part of every row."""
    sum_over(widened(operands[0]) * operands[1], (dim_of(call, operands[0].ndim),), out)


def softmax_backward(call: KernelCall, operands: list[torch.Tensor], out: torch.Tensor) -> None:
    """Compute result * (gradient - inner)."""
    grad, result, inner = operands
    torch.mul(grad - inner.unsqueeze(dim_of(call, grad.ndim)), result, out=out)


def _places(call: KernelCall, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where labels are among this run's classes, of others any place, and whether they are among them."""
    start, stop = call.ranges["c"]
    places = labels.long() - start
    return places.clamp(0, stop - start - 1), (places >= 0) & (places < stop - start)


def cross_entropy(call: KernelCall, operands: list[torch.Tensor], out: torch.Tensor) -> None:
    """Negative log-likelihood of the labels that are among this run's classes."""
    (x, maximum, total, labels), dim = operands, dim_of(call, operands[0].ndim)
    places, here = _places(call, labels)
    losses = widened(total).log() + maximum - x.gather(dim, places.unsqueeze(dim)).squeeze(dim)
    torch.div(losses.where(here, 0).sum(), call.number("count"), out=out)


def cross_entropy_backward(call: KernelCall, operands: list[torch.Tensor], out: torch.Tensor) -> None:
    """(softmax - one-hot label) * factor."""
    (x, *rows), dim = operands, dim_of(call, operands[0].ndim)
    maximum, total, labels = (row.unsqueeze(dim) for row in rows)
    gradient = (x - maximum).exp_().div_(total)
    places, here = _places(call, labels)
    gradient.scatter_add_(dim, places, here.to(gradient.dtype).neg_())
    torch.mul(gradient, call.number("factor"), out=out)


SOFTMAX = written(
    {
        "amax": amax,
        "sum_exp": sum_exp,
        "softmax": softmax,
        "softmax_backward_sum": softmax_backward_sum,
        "softmax_backward": softmax_backward,
        "cross_entropy": cross_entropy,
        "cross_entropy_backward": cross_entropy_backward,
    }
)
"""Kernels by operator."""
