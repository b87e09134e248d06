"""Softmax along one dimension in parts: every row's maximum comes from `amax`, all else from here."""

from __future__ import annotations

from executor.kernels.call import Array, Kernel, KernelCall


def _dim(call: KernelCall) -> int:
    """Return the number of the dimension along which rows run."""
    rank: int = call.inputs[0].ndim
    return call.integer("dim") % rank if "dim" in call.attributes else rank - 1


def _row(call: KernelCall, operand: int) -> Array:
    """View one number per row so that it broadcasts along the rows."""
    return call.xp.expand_dims(call.inputs[operand], _dim(call))


def _exponentials(call: KernelCall) -> Array:
    """exp(x - maximum), a new array."""
    shifted = call.inputs[0] - _row(call, 1)
    call.xp.exp(shifted, out=shifted)
    return shifted


def sum_exp(call: KernelCall) -> None:
    """Sum of exp(x - maximum) over this run's part of every row."""
    call.xp.sum(_exponentials(call), axis=_dim(call), out=call.outputs[0])


def softmax(call: KernelCall) -> None:
    """exp(x - maximum) / total."""
    call.xp.divide(_exponentials(call), _row(call, 2), out=call.outputs[0])


def softmax_backward_sum(call: KernelCall) -> None:
    """Sum of gradient times result over this run's part of every row."""
    grad, result = call.inputs
    call.xp.sum(grad * result, axis=_dim(call), out=call.outputs[0])


def softmax_backward(call: KernelCall) -> None:
    """Compute result * (gradient - inner)."""
    grad, result, _ = call.inputs
    call.xp.multiply(result, grad - _row(call, 2), out=call.outputs[0])


def log_softmax(call: KernelCall) -> None:
    """Compute x - (maximum + log(total))."""
    call.xp.subtract(call.inputs[0], _row(call, 1) + call.xp.log(_row(call, 2)), out=call.outputs[0])


def log_softmax_backward(call: KernelCall) -> None:
    """Compute gradient - softmax * inner."""
    grad, result, _ = call.inputs
    call.xp.subtract(grad, call.xp.exp(result) * _row(call, 2), out=call.outputs[0])


KERNELS: dict[str, Kernel] = {
    "sum_exp": sum_exp,
    "softmax": softmax,
    "softmax_backward_sum": softmax_backward_sum,
    "softmax_backward": softmax_backward,
    "log_softmax": log_softmax,
    "log_softmax_backward": log_softmax_backward,
}
