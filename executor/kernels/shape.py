"""Kernels that only move elements: reshape, unbind, stack."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import cast

from executor.kernels.call import Array, Kernel, KernelCall

Groups = tuple[tuple[str, ...], ...]


def reshape(call: KernelCall) -> None:
    """Rearrange elements: dimensions of operand and result are mixed-radix tuples of the same variables."""
    source = cast(Groups, call.attributes["source"])
    target = cast(Groups, call.attributes["target"])
    (x,), (out,) = call.inputs, call.outputs
    for dim, group in enumerate(source):
        if x.shape[dim] != prod(call.length(variable) for variable in group):
            x = call.xp.take(x, _digit_positions(call, group, call.origins[0][dim]), axis=dim)
    order = [variable for group in source for variable in group]
    x = x.reshape([call.length(variable) for variable in order])
    x = x.transpose([order.index(variable) for group in target for variable in group])
    call.xp.copyto(out, x.reshape(out.shape))


def _digit_positions(call: KernelCall, group: tuple[str, ...], origin: int) -> Array:
    """Return where the ranges of a dimension's variables lie in its local slice, most significant variable first."""
    extents = cast("Mapping[str, int]", call.attributes.get("extents", {}))
    unknown = [variable for variable in group[1:] if variable not in extents]
    if unknown:
        raise ValueError(f"reshape: a split needs the extents of {', '.join(unknown)} in the attribute extents")
    positions = call.xp.zeros(1, dtype=call.xp.int64)
    for place, variable in enumerate(group):
        radix = extents[variable] if place else 1
        digits = call.xp.arange(*call.ranges[variable])
        positions = (positions[:, None] * radix + digits).reshape(-1)
    return positions - origin


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
