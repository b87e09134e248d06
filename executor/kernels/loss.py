"""Losses over whole batches, and their gradients; a run sums its part and divides by the whole tensor's `count`."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import ModuleType

import numpy as np

from executor.kernels.call import Array, Kernel, KernelCall, named
from executor.kernels.softmax import dim_of
from executor.kernels.special import sign
from tdl.catalog.loss import LEAST_LOG, LEAST_VARIANCE

Row = Callable[..., Array]


def _chosen(call: KernelCall, scores: Array, labels: Array) -> tuple[Array, Array]:
    """Where labels are among this run's classes, and the scores of the labels (anything where they are not)."""
    (start, stop), dim = call.ranges["c"], dim_of(call, scores.ndim)
    inside = (labels >= start) & (labels < stop)
    places = call.xp.expand_dims((labels - start) * inside, dim)
    return inside, call.xp.take_along_axis(scores, places, dim).squeeze(dim)


def _hit(call: KernelCall, labels: Array) -> Array:
    """True for this run's classes that are the labels."""
    dim = dim_of(call, labels.ndim + 1)
    classes = call.xp.arange(*call.ranges["c"]).reshape(-1, *(1,) * (labels.ndim - dim))
    return call.xp.expand_dims(labels, dim) == classes


def _mean(call: KernelCall, losses: Array) -> None:
    """Write the sum of losses over `count`."""
    (out,) = call.outputs
    call.xp.sum(losses, out=out)
    call.xp.divide(out, call.number("count"), out=out)


def nll_loss(call: KernelCall) -> None:
    """Minus the labels' log-probabilities."""
    inside, chosen = _chosen(call, *call.inputs)
    _mean(call, call.xp.where(inside, -chosen, 0))


def nll_loss_backward(call: KernelCall) -> None:
    """Minus the gradient over `count` at the labels, else zero."""
    grad, labels = call.inputs
    call.xp.multiply(_hit(call, labels), -grad / call.number("count"), out=call.outputs[0])


def cross_entropy(call: KernelCall) -> None:
    """Negative log-likelihood of the labels that are among this run's classes."""
    x, maximum, total, labels = call.inputs
    inside, chosen = _chosen(call, x, labels)
    losses = call.xp.log(total) + maximum - chosen
    _mean(call, call.xp.where(inside, losses, call.xp.zeros_like(total)))


def cross_entropy_backward(call: KernelCall) -> None:
    """(softmax - one-hot label) * factor."""
    x, maximum, total, labels = call.inputs
    dim = dim_of(call, x.ndim)
    gradient = x - call.xp.expand_dims(maximum, dim)
    call.xp.exp(gradient, out=gradient)
    gradient /= call.xp.expand_dims(total, dim)
    gradient -= _hit(call, labels)
    call.xp.multiply(gradient, call.number("factor"), out=call.outputs[0])


def _logs(xp: ModuleType, probability: Array) -> tuple[Array, Array]:
    """Return the logarithms of a probability and of its complement, or LEAST_LOG where they are less."""
    with np.errstate(divide="ignore"):
        return xp.maximum(xp.log(probability), LEAST_LOG), xp.maximum(xp.log1p(-probability), LEAST_LOG)


def _binary_cross_entropy(xp: ModuleType, x: Array, target: Array) -> Array:
    log, log_of_rest = _logs(xp, x)
    return -(target * log + (1 - target) * log_of_rest)


LOSSES: dict[str, Row] = {
    "mse_loss": lambda xp, x, t: xp.square(x - t),
    "l1_loss": lambda xp, x, t: xp.abs(x - t),
    "smooth_l1_loss": lambda xp, x, t: _smooth(xp.minimum(xp.abs(x - t), 1), xp.abs(x - t)),
    "binary_cross_entropy": _binary_cross_entropy,
    "binary_cross_entropy_with_logits": lambda xp, x, t: xp.logaddexp(0, x) - x * t,
    "kl_div": lambda xp, x, t: t * xp.log(t) - t * x,
}
"""Loss of every element, from the array module, x and target."""

SLOPES: dict[str, Row] = {
    "mse_loss": lambda xp, x, t: (2 * (x - t), 2 * (t - x)),
    "l1_loss": lambda xp, x, t: (sign(xp, x - t), sign(xp, t - x)),
    "smooth_l1_loss": lambda xp, x, t: (xp.clip(x - t, -1, 1), xp.clip(t - x, -1, 1)),
    "binary_cross_entropy": lambda xp, x, t: (
        (x - t) / xp.maximum(x * (1 - x), LEAST_VARIANCE),
        operator.neg(operator.sub(*_logs(xp, x))),
    ),
    "binary_cross_entropy_with_logits": lambda xp, x, t: (0.5 + 0.5 * xp.tanh(0.5 * x) - t, -x),
    "kl_div": lambda xp, x, t: (-t, xp.log(t) - x + 1),
}
"""Its derivatives by x and by target."""


def _smooth(near: Array, distance: Array) -> Array:
    """Half the square up to distance 1, from there on a straight line."""
    return near * (distance - 0.5 * near)


def _loss(row: Row) -> Kernel:
    def kernel(call: KernelCall) -> None:
        _mean(call, row(call.xp, *call.inputs))

    return kernel


def _loss_backward(row: Row) -> Kernel:
    def kernel(call: KernelCall) -> None:
        grad, x, target = call.inputs
        factor = grad / call.number("count")
        slopes = [slope * factor for slope in row(call.xp, x, target)]
        for out, slope in zip(call.outputs, slopes, strict=True):
            call.xp.copyto(out, slope)

    return kernel


KERNELS: dict[str, Kernel] = {
    **named(nll_loss, nll_loss_backward, cross_entropy, cross_entropy_backward),
    **{name: _loss(row) for name, row in LOSSES.items()},
    **{f"{name}_backward": _loss_backward(row) for name, row in SLOPES.items()},
}
