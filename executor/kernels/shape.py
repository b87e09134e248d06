"""Kernels that only move elements."""

from __future__ import annotations

from typing import cast

from executor.kernels.call import Kernel, KernelCall
from tdl.operator import named

Groups = tuple[tuple[str, ...], ...]


def reshape(call: KernelCall) -> None:
    """Rearrange elements. Dimensions of operand and result are mixed-radix tuples of the same variables.

    A worker's part of such a dimension is also mixed-radix, in its own numbers of indices of each variable.
    """
    source = cast(Groups, call.attributes["source"])
    target = cast(Groups, call.attributes["target"])
    (x,), (out,) = call.inputs, call.outputs
    order = [variable for group in source for variable in group]
    x = x.reshape([call.length(variable) for variable in order])
    x = x.transpose([order.index(variable) for group in target for variable in group])
    if out.flags.c_contiguous:
        call.xp.copyto(out.reshape(x.shape), x)
    else:
        call.xp.copyto(out, x.reshape(out.shape))


def unbind(call: KernelCall) -> None:
    """Write the operand at index j of the dimension `dim` to output number j."""
    dim = call.integer("dim")
    for index, out in enumerate(call.outputs):
        call.xp.copyto(out, call.inputs[0][(slice(None),) * dim + (index - call.origins[0][dim],)])


def stack(call: KernelCall) -> None:
    """Place operand number j at index j of the result's new dimension `dim`."""
    dim = call.integer("dim")
    # With one operand nothing is selected, and s has no known position.
    start, stop = call.ranges["s"] if len(call.inputs) > 1 else (0, 1)
    for index in range(start, stop):
        call.xp.copyto(call.outputs[0][(slice(None),) * dim + (index - start, ...)], call.inputs[index])


def _along(dim: int, start: int, stop: int | None = None, step: int = 1) -> tuple[slice, ...]:
    """Return the index of a range of one dimension."""
    return (slice(None),) * dim + (slice(start, stop, step),)


def cat(call: KernelCall) -> None:
    """Concatenate operands along a dimension."""
    (out,), dim, low = call.outputs, call.integer("dim"), 0
    # A single operand is read at plain indices, whose position is unknown.
    start, stop = call.ranges[f"i{dim}"] if len(call.inputs) > 1 else (0, out.shape[dim])
    for number, (x, size) in enumerate(zip(call.inputs, call.integers("sizes"), strict=True)):
        first, last = max(start, low), min(stop, low + size)
        if first < last:
            origin = low + call.origins[number][dim] if len(call.inputs) > 1 else 0
            call.xp.copyto(out[_along(dim, first - start, last - start)], x[_along(dim, first - origin, last - origin)])
        low += size


def select(call: KernelCall) -> None:
    """Take the operand at one index of a dimension."""
    dim = call.integer("dim")
    place = call.integer("index") - call.origins[0][dim]
    call.xp.copyto(call.outputs[0], call.inputs[0][(slice(None),) * dim + (place,)])


def select_backward(call: KernelCall) -> None:
    """Place the gradient at one index of a dimension of zeros."""
    (out,), dim = call.outputs, call.integer("dim")
    out[...] = 0
    start, stop = call.ranges[f"i{dim}"]
    if start <= call.integer("index") < stop:
        out[(slice(None),) * dim + (call.integer("index") - start,)] = call.inputs[0]


def _window(call: KernelCall) -> tuple[int, int, int]:
    """Return a slice's dimension, start and step."""
    attributes = call.attributes
    start = call.integer("start") if "start" in attributes else 0
    return call.integer("dim"), start, call.integer("step") if "step" in attributes else 1


def slice_(call: KernelCall) -> None:
    """Take every `step`th element of a dimension, from `start`."""
    (out,), (dim, start, step) = call.outputs, _window(call)
    first = 0
    # A whole dimension is read at plain indices, whose position is unknown.
    if start or step > 1 or call.attributes.get("skip"):
        first = call.ranges[f"i{dim}"][0] * step + start - call.origins[0][dim]
    call.xp.copyto(out, call.inputs[0][_along(dim, first, first + (out.shape[dim] - 1) * step + 1, step)])


def slice_backward(call: KernelCall) -> None:
    """Write a slice's gradient to the positions of its elements, zero elsewhere."""
    (grad,), (out,), (dim, start, step) = call.inputs, call.outputs, _window(call)
    out[...] = 0
    low, high = call.ranges[f"i{dim}"]
    origin = call.origins[0][dim]
    first = max(origin, -((start - low) // step))
    last = min(origin + grad.shape[dim] - 1, (high - 1 - start) // step)
    if first <= last:
        place = first * step + start - low
        target = _along(dim, place, place + (last - first) * step + 1, step)
        call.xp.copyto(out[target], grad[_along(dim, first - origin, last + 1 - origin)])


def constant_pad_nd(call: KernelCall) -> None:
    """Surround the operand by `low` and `high` elements of `value` along each dimension."""
    (x,), (out,) = call.inputs, call.outputs
    if not any((*call.integers("low"), *call.integers("high"))):
        call.xp.copyto(out, x)  # They may share memory.
        return
    out[...] = call.number("value", 0.0)
    source, target = [], []
    for dim, (low, high) in enumerate(zip(call.integers("low"), call.integers("high"), strict=True)):
        if not (low or high):
            source.append(slice(None))
            target.append(slice(None))
            continue
        start, origin = call.ranges[f"i{dim}"][0], call.origins[0][dim]
        first = max(0, start - low - origin)
        count = min(x.shape[dim] - first, start + out.shape[dim] - low - origin - first)
        place = first + origin + low - start
        source.append(slice(first, first + max(0, count)))
        target.append(slice(place, place + max(0, count)))
    call.xp.copyto(out[tuple(target)], x[tuple(source)])


def flip(call: KernelCall) -> None:
    """Reverse dimensions."""
    call.xp.copyto(call.outputs[0], call.xp.flip(call.inputs[0], call.integers("dims")))


def diagonal(call: KernelCall) -> None:
    """Write the elements whose coordinates in two dimensions are equal, as the last dimension."""
    dim1, dim2 = (int(call.number(name, default)) for name, default in (("dim1", 0), ("dim2", 1)))
    call.xp.copyto(call.outputs[0], call.xp.diagonal(call.inputs[0], axis1=dim1, axis2=dim2))


KERNELS: dict[str, Kernel] = {
    **named(reshape, unbind, stack, cat, flip, select, select_backward, slice_backward, constant_pad_nd),
    **named(diagonal),
    "slice": slice_,
}

MOVING = frozenset(KERNELS)
"""Operators that only move elements, of any dtype."""
