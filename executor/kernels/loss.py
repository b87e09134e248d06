"""Losses of labels. Scores are gathered by label; each run sums its part and divides by the whole `count`."""

from __future__ import annotations

from executor.kernels.call import Array, Kernel, KernelCall
from tdl.operator import named


def dim_of(call: KernelCall, rank: int) -> int:
    """Return the dimension of an array along which the classes run."""
    return call.integer("dim") % rank if "dim" in call.attributes else rank - 1


def _chosen(call: KernelCall, scores: Array, labels: Array) -> tuple[Array, Array]:
    """Return which labels are among this run's classes, and the scores of the labels (arbitrary for the others)."""
    (start, stop), dim = call.ranges["c"], dim_of(call, scores.ndim)
    inside = (labels >= start) & (labels < stop)
    places = call.xp.expand_dims((labels - start) * inside, dim)
    return inside, call.xp.take_along_axis(scores, places, dim).squeeze(dim)


def _hit(call: KernelCall, labels: Array) -> Array:
    """Return True where a class of this run is the label."""
    dim = dim_of(call, labels.ndim + 1)
    classes = call.xp.arange(*call.ranges["c"]).reshape(-1, *(1,) * (labels.ndim - dim))
    return call.xp.expand_dims(labels, dim) == classes


def _mean(call: KernelCall, losses: Array) -> None:
    """Write the sum of losses divided by `count`."""
    (out,) = call.outputs
    call.xp.sum(losses, out=out)
    call.xp.divide(out, call.number("count"), out=out)


def nll_loss(call: KernelCall) -> None:
    """Compute minus the log-probabilities of the labels."""
    inside, chosen = _chosen(call, *call.inputs)
    _mean(call, call.xp.where(inside, -chosen, 0))


def nll_loss_backward(call: KernelCall) -> None:
    """Compute minus the gradient over `count` at the labels, zero elsewhere."""
    grad, labels = call.inputs
    call.xp.multiply(_hit(call, labels), -grad / call.number("count"), out=call.outputs[0])


def cross_entropy(call: KernelCall) -> None:
    """Compute the negative log-likelihood of the labels among this run's classes."""
    x, maximum, total, labels = call.inputs
    inside, chosen = _chosen(call, x, labels)
    losses = call.xp.log(total) + maximum - chosen
    _mean(call, call.xp.where(inside, losses, call.xp.zeros_like(total)))


KERNELS: dict[str, Kernel] = named(nll_loss, nll_loss_backward, cross_entropy)
