"""Softmax along one dimension in parts: every row's maximum comes from `amax`, all else from here."""

from __future__ import annotations

from types import ModuleType

from executor.kernels.blocks import add_up, blocks
from executor.kernels.call import Array, Kernel, KernelCall


def dim_of(call: KernelCall, rank: int) -> int:
    """Return the number of the dimension along which rows of an array run."""
    return call.integer("dim") % rank if "dim" in call.attributes else rank - 1


def _dim(call: KernelCall) -> int:
    return dim_of(call, call.inputs[0].ndim)


def _row(call: KernelCall, operand: int) -> Array:
    """View one number per row so that it broadcasts along the rows."""
    return call.xp.expand_dims(call.inputs[operand], _dim(call))


def _exponentials(xp: ModuleType, x: Array, maximum: Array) -> Array:
    """exp(x - maximum), a new array."""
    shifted = x - maximum
    xp.exp(shifted, out=shifted)
    return shifted


def sum_exp(call: KernelCall) -> None:
    """Sum of exp(x - maximum) over this run's part of every row."""
    xp, x, (out,) = call.xp, call.inputs[0], call.outputs
    out[...] = 0
    for part, maximum, total in blocks(xp, x, _row(call, 1), xp.expand_dims(out, _dim(call))):
        add_up(xp, _exponentials(xp, part, maximum), total)


def softmax(call: KernelCall) -> None:
    """exp(x - maximum) / total."""
    for out, x, maximum, total in blocks(call.xp, call.outputs[0], call.inputs[0], _row(call, 1), _row(call, 2)):
        call.xp.divide(_exponentials(call.xp, x, maximum), total, out=out)


def softmax_backward_sum(call: KernelCall) -> None:
    """Sum of gradient times result over this run's part of every row."""
    xp, (out,) = call.xp, call.outputs
    out[...] = 0
    for grad, result, total in blocks(xp, *call.inputs, xp.expand_dims(out, _dim(call))):
        add_up(xp, grad * result, total)


def softmax_backward(call: KernelCall) -> None:
    """Compute result * (gradient - inner)."""
    for out, grad, result, inner in blocks(call.xp, call.outputs[0], *call.inputs[:2], _row(call, 2)):
        call.xp.multiply(result, grad - inner, out=out)


def log_softmax(call: KernelCall) -> None:
    """Compute x - (maximum + log(total))."""
    call.xp.subtract(call.inputs[0], _row(call, 1) + call.xp.log(_row(call, 2)), out=call.outputs[0])


def log_softmax_backward(call: KernelCall) -> None:
    """Compute gradient - softmax * inner."""
    for out, grad, result, inner in blocks(call.xp, call.outputs[0], *call.inputs[:2], _row(call, 2)):
        call.xp.subtract(grad, call.xp.exp(result) * inner, out=out)


KERNELS: dict[str, Kernel] = {
    "sum_exp": sum_exp,
    "softmax": softmax,
    "softmax_backward_sum": softmax_backward_sum,
    "softmax_backward": softmax_backward,
    "log_softmax": log_softmax,
    "log_softmax_backward": log_softmax_backward,
}
