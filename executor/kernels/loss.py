"""The softmax cross entropy in parts: every sample's maximum comes from `amax`, the sum and the loss from here."""

from __future__ import annotations

from executor.kernels.call import Array, Kernel, KernelCall


def _exponentials(call: KernelCall, x: Array, maximum: Array) -> Array:
    """exp(x - maximum), a new array."""
    shifted = x - maximum[:, None]
    call.xp.exp(shifted, out=shifted)
    return shifted


def sum_exp(call: KernelCall) -> None:
    """Sum of exp(x - maximum) over the classes of this run."""
    x, maximum = call.inputs
    call.xp.sum(_exponentials(call, x, maximum), axis=1, out=call.outputs[0])


def cross_entropy(call: KernelCall) -> None:
    """Negative log-likelihood of the labels that are among this run's classes, over the whole batch's `count`."""
    xp, (x, maximum, total, labels), (out,) = call.xp, call.inputs, call.outputs
    start, stop = call.ranges["c"]
    inside = (labels >= start) & (labels < stop)
    column = xp.where(inside, labels - start, 0)
    chosen = x[xp.arange(len(labels)), column]
    losses = xp.where(inside, xp.log(total) + maximum - chosen, xp.zeros_like(total))
    xp.sum(losses, out=out)
    xp.divide(out, call.number("count"), out=out)


def cross_entropy_backward(call: KernelCall) -> None:
    """(softmax - one-hot label) * factor."""
    xp, (x, maximum, total, labels), (out,) = call.xp, call.inputs, call.outputs
    gradient = _exponentials(call, x, maximum)
    gradient /= total[:, None]
    gradient -= labels[:, None] == xp.arange(*call.ranges["c"])
    xp.multiply(gradient, call.number("factor"), out=out)


KERNELS: dict[str, Kernel] = {
    "sum_exp": sum_exp,
    "cross_entropy": cross_entropy,
    "cross_entropy_backward": cross_entropy_backward,
}
