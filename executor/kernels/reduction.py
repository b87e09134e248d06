"""Sums, means and maxima over some dimensions, and the broadcast that is a sum's gradient."""

from __future__ import annotations

from executor.kernels.call import Array, Kernel, KernelCall, named
from executor.kernels.elementwise import copy_whole


def reduce_sum(call: KernelCall) -> None:
    """Sum over the dimensions `dims`."""
    (x,), (out,) = call.inputs, call.outputs
    if out.dtype.kind != "i":
        call.xp.sum(x, axis=call.integers("dims"), dtype=out.dtype, out=out)
        return
    copy_whole(call, out, call.xp.sum(x, axis=call.integers("dims"), dtype="int64"))


def mean(call: KernelCall) -> None:
    """Sum over `dims` divided by `count`, the number of elements summed in the whole tensor."""
    reduce_sum(call)
    call.xp.divide(call.outputs[0], call.number("count"), out=call.outputs[0])


def _reduced(function: str) -> Kernel:
    """Return the kernel of an array-module function that reduces the dimensions `dims`; CuPy's `amin` has no output."""

    def kernel(call: KernelCall) -> None:
        call.xp.copyto(call.outputs[0], getattr(call.xp, function)(call.inputs[0], axis=call.integers("dims")))

    return kernel


def _wide(call: KernelCall, operand: int) -> Array:
    """View a reduced operand so that it broadcasts along the reduced dimensions."""
    return call.xp.expand_dims(call.inputs[operand], call.integers("dims"))


def var(call: KernelCall) -> None:
    """Sum of squared distances from the mean, over the whole tensor's `count`."""
    (x, _), (out,) = call.inputs, call.outputs
    distance = x - _wide(call, 1)
    call.xp.multiply(distance, distance, out=distance)
    call.xp.sum(distance, axis=call.integers("dims"), out=out)
    call.xp.divide(out, call.number("count"), out=out)


def var_backward(call: KernelCall) -> None:
    """Gradient times twice the distance from the mean, over `count`."""
    distance = call.inputs[1] - _wide(call, 2)
    call.xp.multiply(distance, _wide(call, 0) * (2 / call.number("count")), out=call.outputs[0])


def count_extremes(call: KernelCall) -> None:
    """How many elements equal the extreme."""
    call.xp.copyto(call.outputs[0], (call.inputs[0] == _wide(call, 1)).sum(axis=call.integers("dims")))


def extreme_backward(call: KernelCall) -> None:
    """Give the gradient to the elements that equal the extreme; others have none, or zero times it."""
    grad, is_extreme = _wide(call, 0), call.inputs[1] == _wide(call, 2)
    if call.flag("chosen"):
        call.xp.copyto(call.outputs[0], call.xp.where(is_extreme, grad, 0))
    else:
        call.xp.multiply(grad, is_extreme, out=call.outputs[0])


def cumsum(call: KernelCall) -> None:
    """Sum of the elements up to each place (in reverse: from it on), of those that this run has."""
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


def expand(call: KernelCall) -> None:
    """Insert dimensions at the output positions `dims`, repeating the operand times `factor`."""
    x = call.xp.expand_dims(call.inputs[0], call.integers("dims"))
    if call.number("factor", 1.0) == 1:
        call.xp.copyto(call.outputs[0], x)
    else:
        call.xp.multiply(x, call.number("factor"), out=call.outputs[0])


KERNELS: dict[str, Kernel] = {
    "sum": reduce_sum,
    **{name: _reduced(name) for name in ("amax", "amin", "prod", "any", "all")},
    **named(mean, var, var_backward, count_extremes, extreme_backward, cumsum, expand),
}
