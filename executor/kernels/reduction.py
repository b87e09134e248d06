"""Reductions by functions of the array module, which add up in one call, and running sums."""

from __future__ import annotations

from executor.kernels.call import Kernel, KernelCall, named
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


# These two take less time than derived kernels, whose blocks gain nothing where little is computed of an element.


def mean_square(call: KernelCall) -> None:
    """Sum of squares of this run's part of every row, over the whole row's `count`."""
    (x,), (out,) = call.inputs, call.outputs
    call.xp.divide((x * x).sum(axis=-1), call.number("count"), out=out)


def count_extremes(call: KernelCall) -> None:
    """How many elements equal the extreme."""
    (x, extreme), dims = call.inputs, call.integers("dims")
    call.xp.copyto(call.outputs[0], (x == call.xp.expand_dims(extreme, dims)).sum(axis=dims))


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


KERNELS: dict[str, Kernel] = {
    "sum": reduce_sum,
    **{name: _reduced(name) for name in ("amax", "amin", "prod", "any", "all")},
    **named(mean, mean_square, count_extremes, cumsum),
}
