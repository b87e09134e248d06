"""Sums, means and maxima over some dimensions, and the broadcast that is a sum's gradient."""

from __future__ import annotations

from executor.kernels.call import Kernel, KernelCall


def reduce_sum(call: KernelCall) -> None:
    """Sum over the dimensions `dims`."""
    (x,), (out,) = call.inputs, call.outputs
    call.xp.sum(x, axis=call.integers("dims"), dtype=out.dtype, out=out)


def mean(call: KernelCall) -> None:
    """Sum over `dims` divided by `count`, the number of elements summed in the whole tensor."""
    reduce_sum(call)
    call.xp.divide(call.outputs[0], call.number("count"), out=call.outputs[0])


def amax(call: KernelCall) -> None:
    """Maximum over the dimensions `dims`."""
    call.xp.amax(call.inputs[0], axis=call.integers("dims"), out=call.outputs[0])


def expand(call: KernelCall) -> None:
    """Insert dimensions at the output positions `dims`, repeating the operand times `factor`."""
    x = call.xp.expand_dims(call.inputs[0], call.integers("dims"))
    call.xp.multiply(x, call.number("factor", 1.0), out=call.outputs[0])


KERNELS: dict[str, Kernel] = {"sum": reduce_sum, "mean": mean, "amax": amax, "expand": expand}
