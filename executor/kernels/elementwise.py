"""Element-wise kernels. Outputs may be the same memory as inputs: every element is read before it is written."""

from __future__ import annotations

from typing import Any

import numpy as np

from executor.kernels.blocks import Blocked
from executor.kernels.call import Array, Kernel, KernelCall, kept_where
from planner.errors import DataError

BEYOND = 2.0**31
"""From which on 32 bits have no room for whole numbers."""

BEYOND_32_BITS = (
    "integers beyond 32 bits, which a graph cannot hold: compute with them in double precision, as "
    "x.double() * 1000003 % 97 does"
)


def _unary(function: str) -> Kernel:
    """Return the kernel of a function that the array module itself has."""

    def kernel(call: KernelCall) -> None:
        getattr(call.xp, function)(call.inputs[0], out=call.outputs[0])

    return kernel


def _binary(function: str) -> Kernel:
    """Return the kernel of an array-module function of two operands that are broadcast."""

    def kernel(call: KernelCall) -> None:
        whole(call, getattr(call.xp, function), *call.once(broadcast))

    return kernel


def whole(call: KernelCall, function: Any, a: Array, b: Any) -> None:
    """Write a function of two operands; a DataError for whole numbers that the output has no room for."""
    (out,) = call.outputs
    if out.dtype.kind != "i":
        function(a, b, out=out)
        return
    copy_whole(call, out, function(a.astype("int64"), b))


def copy_whole(call: KernelCall, out: Array, exact: Array) -> None:
    """Write 64-bit integers to a 32-bit output; DataError if one does not fit."""
    call.xp.copyto(out, exact, casting="unsafe")
    require_room(call, exact != out)


def require_room(call: KernelCall, is_beyond: Array) -> None:
    """Raise DataError if any integer of a call is beyond 32 bits; on a GPU note it in `faults`, without waiting."""
    if call.faults is not None:
        call.xp.logical_or(call.faults, is_beyond.any(), out=call.faults)
    elif bool(is_beyond.any()):
        raise DataError(BEYOND_32_BITS)


def broadcast(call: KernelCall) -> tuple[Array, ...]:
    """Return the operands, the last two spread over the dimensions of the result that they have, if not all."""
    *full, a, b = call.inputs
    rank = call.outputs[0].ndim
    pairs = ((a, "a_dims"), (b, "dims"))
    return *full, *(x if call.attributes.get(key) is None else spread(x, call.integers(key), rank) for x, key in pairs)


def spread(array: Array, dims: tuple[int, ...], rank: int) -> Array:
    """View `array` as one of `rank` dimensions: its dimension j becomes dimension dims[j], the others have extent 1."""
    order = sorted(range(len(dims)), key=lambda j: dims[j])
    shape = [1] * rank
    for extent, dim in zip(array.shape, dims, strict=True):
        shape[dim] = extent
    return array.transpose(order).reshape(shape)


def relu(call: KernelCall) -> None:
    """max(x, 0), as a clip where it can be: NumPy does several numbers of that at a time, not of a maximum with one."""
    xp, (x,), (out,) = call.xp, call.inputs, call.outputs
    if x.dtype.kind == "f":
        xp.clip(x, 0, np.inf, out=out)
    else:
        xp.maximum(x, 0, out=out)


def sigmoid(call: KernelCall) -> None:
    """Compute 1 / (1 + exp(-x)): 0 where exp(-x) is more than the dtype holds."""
    xp, (x,), (out,) = call.xp, call.inputs, call.outputs
    xp.negative(x, out=out)
    with np.errstate(over="ignore"):
        xp.exp(out, out=out)
    out += 1
    xp.reciprocal(out, out=out)


def threshold_backward(call: KernelCall) -> None:
    """Pass the gradient unless the result of relu is zero."""
    grad, result = call.inputs
    call.xp.copyto(call.outputs[0], kept_where(~(result <= 0), grad))


def sigmoid_backward(call: KernelCall) -> None:
    """Gradient times result * (1 - result)."""
    grad, result = call.inputs
    slope = (1 - result) * result
    call.xp.multiply(grad, slope, out=call.outputs[0])


def tanh_backward(call: KernelCall) -> None:
    """Gradient times 1 - result^2."""
    grad, result = call.inputs
    slope = 1 - result * result
    call.xp.multiply(grad, slope, out=call.outputs[0])


def add_n(call: KernelCall) -> None:
    """Sum of all operands, from the first to the last."""
    first, *others = call.inputs
    if not others:
        call.xp.copyto(call.outputs[0], first)
        return
    *middle, last = others
    for operand in middle:
        first = first + operand
    call.xp.add(first, last, out=call.outputs[0])


def scale(call: KernelCall) -> None:
    """Multiply by the attribute `factor`."""
    whole(call, call.xp.multiply, call.inputs[0], call.number("factor"))


def cast(call: KernelCall) -> None:
    """Convert to the dtype of the output; to whole numbers towards zero, to truth values what is not zero."""
    xp, (x,), (out,) = call.xp, call.inputs, call.outputs
    if out.dtype.kind == "i" and x.dtype.kind == "f":
        require_room(call, xp.isfinite(x) & (xp.abs(x) >= BEYOND))
    xp.copyto(out, x, casting="unsafe")


UNARY = {"tanh": "tanh", "exp": "exp", "log": "log", "neg": "negative"}
BINARY = {"add": "add", "sub": "subtract", "mul": "multiply", "div": "divide"}
"""Names of an array module's functions, by operator."""

KERNELS: dict[str, Kernel] = {
    "relu": relu,
    "sigmoid": Blocked(sigmoid),
    **{op: _unary(name) for op, name in UNARY.items()},
    "threshold_backward": Blocked(threshold_backward),
    "sigmoid_backward": Blocked(sigmoid_backward),
    "tanh_backward": Blocked(tanh_backward),
    **{op: _binary(name) for op, name in BINARY.items()},
    "add_n": Blocked(add_n),
    "scale": scale,
    "cast": cast,
}
