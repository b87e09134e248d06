"""Reductions by functions of the array module, cumulative sums, and losses of labels.

Scores are gathered by label; each run sums its part and divides by the whole `count`.
"""

from __future__ import annotations

from executor.kernels.call import Array, Kernel, KernelCall, copy_whole
from tdl.operator import named


def reduce_sum(call: KernelCall) -> None:
    """Sum over the dimensions `dims`."""
    (x,), (out,) = call.inputs, call.outputs
    if out.dtype.kind != "i":
        call.xp.sum(x, axis=call.integers("dims"), dtype=out.dtype, out=out)
        return
    copy_whole(call, out, call.xp.sum(x, axis=call.integers("dims"), dtype="int64"))


def mean(call: KernelCall) -> None:
    """Sum over `dims` and divide by `count`, the number of summed elements in the whole tensor."""
    reduce_sum(call)
    call.xp.divide(call.outputs[0], call.number("count"), out=call.outputs[0])


def _reduced(function: str) -> Kernel:
    """Return the kernel of a function that reduces the dimensions `dims`. CuPy's `amin` does not support `out`."""

    def kernel(call: KernelCall) -> None:
        call.xp.copyto(call.outputs[0], getattr(call.xp, function)(call.inputs[0], axis=call.integers("dims")))

    return kernel


# These two are faster than derived kernels: blocks gain nothing if little is computed per element.


def mean_square(call: KernelCall) -> None:
    """Sum the squares of this run's part of every row, divided by the whole row's `count`."""
    (x,), (out,) = call.inputs, call.outputs
    call.xp.divide((x * x).sum(axis=-1), call.number("count"), out=out)


def count_extremes(call: KernelCall) -> None:
    """Count the elements that equal the extreme."""
    (x, extreme), dims = call.inputs, call.integers("dims")
    call.xp.copyto(call.outputs[0], (x == call.xp.expand_dims(extreme, dims)).sum(axis=dims))


def cumsum(call: KernelCall) -> None:
    """Compute cumulative sums, in reverse if requested, of the elements that this run has."""
    xp, (x,), (out,), dim = call.xp, call.inputs, call.outputs, call.integer("dim")
    (start, stop), places = call.ranges["r"], xp.arange(*call.ranges[f"i{dim}"])
    if call.flag("reverse"):
        x = xp.flip(x, dim)
        count = stop - xp.clip(places, start, stop)
    else:
        count = xp.clip(places + 1, start, stop) - start
    sums = xp.concatenate([xp.zeros_like(x[(slice(None),) * dim + (slice(0, 1),)]), xp.cumsum(x, axis=dim)], axis=dim)
    taken = xp.take(sums, count, axis=dim)
    if out.dtype.kind == "i":
        copy_whole(call, out, taken)
    else:
        xp.copyto(out, taken)


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


KERNELS: dict[str, Kernel] = {
    "sum": reduce_sum,
    **{name: _reduced(name) for name in ("amax", "amin", "prod", "any", "all")},
    **named(mean, mean_square, count_extremes, cumsum, nll_loss, nll_loss_backward, cross_entropy),
}
