"""Kernels that only move elements: reshape, unbind, stack."""

from __future__ import annotations

from typing import cast

from executor.kernels.call import Kernel, KernelCall

Groups = tuple[tuple[str, ...], ...]


def reshape(call: KernelCall) -> None:
    """Rearrange elements: dimensions of operand and result are mixed-radix tuples of the same variables.

    What a worker holds of such a dimension is mixed radix too, in the numbers of indices it has of each variable.
    """
    source = cast(Groups, call.attributes["source"])
    target = cast(Groups, call.attributes["target"])
    (x,), (out,) = call.inputs, call.outputs
    order = [variable for group in source for variable in group]
    x = x.reshape([call.length(variable) for variable in order])
    x = x.transpose([order.index(variable) for group in target for variable in group])
    call.xp.copyto(out, x.reshape(out.shape))


def unbind(call: KernelCall) -> None:
    """Output number j is the operand at index j of the dimension `dim`."""
    dim = call.integer("dim")
    for index, out in enumerate(call.outputs):
        call.xp.copyto(out, call.inputs[0][(slice(None),) * dim + (index - call.origins[0][dim],)])


def stack(call: KernelCall) -> None:
    """Place operand number j at index j of the result's new dimension `dim`."""
    dim = call.integer("dim")
    # With one operand there is nothing to choose, and s is not an index whose place is known.
    start, stop = call.ranges["s"] if len(call.inputs) > 1 else (0, 1)
    for index in range(start, stop):
        call.xp.copyto(call.outputs[0][(slice(None),) * dim + (index - start,)], call.inputs[index])


KERNELS: dict[str, Kernel] = {"reshape": reshape, "unbind": unbind, "stack": stack}
