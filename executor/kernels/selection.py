"""Kernels that move elements, by position or by a tensor's values.

Those by values gather and sum segments instead of the descriptions' sums. A run covers a range of the selected
variable. Values outside it are left to the workers that have them, and add zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from types import ModuleType
from typing import cast

import numpy as np

from executor.kernels.call import Array, Kernel, KernelCall, Range
from executor.values import kernel_of
from tdl.operator import named

# Segment sums: each row of an output is the sum of the values assigned to it, in their order.
#
# On a GPU one kernel sums the sorted values: CuPy's `add.reduceat` subtracts cumulative sums, which cancels digits,
# and indexing by a mask waits for the device.


SOURCE = Path(__file__).with_name("segment_sums.cu")
THREADS, COLUMNS = 256, 8
"""Threads per block, and columns of a row per thread, which finds the row once."""


def segment_sums(xp: ModuleType, rows: Array, values: Array, out: Array) -> None:
    """Write to out[r, ...] the sum of values[n, ...] over rows[n] == r. Values of rows outside `out` are ignored.

    `rows` is [...], `values` is [..., *columns], and `out` is [rows, *columns]. Sums of 16 bits are computed in single
    precision and rounded once.
    """
    rows, values = rows.reshape(-1), values.reshape(rows.size, prod(out.shape[1:]))
    if xp is np:
        _on_host(rows, values, out)
    elif not values.size:
        out[...] = 0
    else:
        _on_device(xp, rows, values, out)


def _on_host(rows: Array, values: Array, out: Array) -> None:
    inside = (rows >= 0) & (rows < len(out))
    rows, values = rows[inside], values[inside]
    out[...] = 0
    if values.size:
        order = np.argsort(rows, kind="stable")
        rows, values = rows[order], values.astype(np.result_type(values, np.float32), copy=False)
        starts = np.flatnonzero(np.concatenate([np.ones(1, dtype=bool), rows[1:] != rows[:-1]]))
        out[rows[starts]] = np.add.reduceat(values[order], starts, axis=0).reshape(-1, *out.shape[1:])


def _on_device(xp: ModuleType, rows: Array, values: Array, out: Array) -> None:
    order = xp.argsort(rows, kind="stable")
    arrays = (xp.take(rows, order).astype("int64"), order, xp.ascontiguousarray(values, out.dtype))
    sums = out if out.flags.c_contiguous else xp.empty(out.shape, out.dtype)
    sizes = np.int64(rows.size), np.int64(len(out)), np.int64(values.shape[1])
    kernel = kernel_of(xp, SOURCE, f"segment_sums_{out.dtype.name}")
    threads = len(out) * -(-values.shape[1] // COLUMNS)
    kernel((-(-threads // THREADS),), (THREADS,), (*arrays, sums, *sizes))
    if sums is not out:
        xp.copyto(out, sums)


# Selection by a tensor's values, with gathers and segment sums instead of the descriptions' sums.


def _inside(indices: Array, within: Range) -> tuple[Array, Array]:
    """Return which indices lie in a range, and their positions in it (zero for the others)."""
    inside = (indices >= within[0]) & (indices < within[1])
    return inside, (indices - within[0]) * inside


def _keep(call: KernelCall, values: Array, inside: Array) -> None:
    """Write values that this run's range selects, zero elsewhere. A product would keep infinity."""
    if call.ranges["v"] == (0, _extent(call, "v")):
        call.xp.copyto(call.outputs[0], values)
    else:
        call.xp.copyto(call.outputs[0], call.xp.where(inside, values, values.dtype.type(0)))


def _extent(call: KernelCall, variable: str) -> int | None:
    """Return the extent of a variable in the whole tensors; None if the call does not say."""
    extents = call.attributes.get("extents")
    return cast("Mapping[str, int]", extents).get(variable) if extents else None


def embedding(call: KernelCall) -> None:
    """Write row number indices[...] of the weight."""
    weight, indices = call.inputs
    inside, rows = _inside(indices, call.ranges["v"])
    _keep(call, weight[rows], inside[..., None])


def index_select(call: KernelCall) -> None:
    """Write the slices of x at the indices along a dimension."""
    (x, indices), dim = call.inputs, call.integer("dim")
    inside, rows = _inside(indices, call.ranges["v"])
    shape = [-1 if other == dim else 1 for other in range(x.ndim)]
    _keep(call, call.xp.take(x, rows, axis=dim), inside.reshape(shape))


def gather(call: KernelCall) -> None:
    """Write the elements of x whose coordinate along a dimension is the index at their position."""
    (x, indices), dim = call.inputs, call.integer("dim")
    inside, rows = _inside(indices, call.ranges["v"])
    _keep(call, call.xp.take_along_axis(x, rows, axis=dim), inside)


def embedding_dense_backward(call: KernelCall) -> None:
    """Sum the gradients of all uses of each row."""
    (grad, indices), (out,) = call.inputs, call.outputs
    segment_sums(call.xp, indices - call.ranges["v"][0], grad, out)


def index_select_backward(call: KernelCall) -> None:
    """Sum the gradients of all uses of each slice."""
    (grad, indices), (out,), dim = call.inputs, call.outputs, call.integer("dim")
    xp, first = call.xp, call.ranges[f"i{dim}"][0]
    segment_sums(xp, indices - first, xp.moveaxis(grad, dim, 0), xp.moveaxis(out, dim, 0))


def gather_backward(call: KernelCall) -> None:
    """Sum the gradients of all uses of each element."""
    (grad, indices), (out,), dim = call.inputs, call.outputs, call.integer("dim")
    xp = call.xp
    inside, rows = _inside(indices, call.ranges[f"i{dim}"])
    places = xp.take_along_axis(xp.arange(out.size).reshape(out.shape), rows, axis=dim)
    sums = xp.empty(out.size, dtype=out.dtype)
    segment_sums(xp, xp.where(inside, places, -1), grad, sums)
    xp.copyto(out, sums.reshape(out.shape))


def index_of(call: KernelCall) -> None:
    """Find the first position along a dimension at which x has a value."""
    (x, value), (out,), dim = call.inputs, call.outputs, call.integer("dim")
    equal = x == call.xp.expand_dims(value, dim)
    first = call.xp.argmax(equal, axis=dim) + call.ranges["r"][0]
    call.xp.copyto(out, call.xp.where(equal.any(axis=dim), first, 2**31 - 1), casting="unsafe")


def _order(xp: ModuleType, x: Array, dim: int, descending: bool) -> Array:
    """Return the sorting permutation along a dimension. NaN counts as the greatest number."""
    if not descending:
        return xp.argsort(x, axis=dim, kind="stable")
    return x.shape[dim] - 1 - xp.flip(xp.argsort(xp.flip(x, dim), axis=dim, kind="stable"), dim)


def _in_order(count: str | None, flag: str) -> Kernel:
    """Return the kernel of sorted values along a dimension and their positions.

    `count` names the attribute with their number.
    """

    def kernel(call: KernelCall) -> None:
        (x,), dim = call.inputs, call.integer("dim")
        order = _order(call.xp, x, dim, bool(call.attributes.get(flag, flag == "largest")))
        if call.flag("nan_first"):
            numbers = ~call.xp.isnan(call.xp.take_along_axis(x, order, axis=dim))
            order = call.xp.take_along_axis(order, call.xp.argsort(numbers, axis=dim, kind="stable"), axis=dim)
        if count is not None:
            order = call.xp.take(order, call.xp.arange(call.integer(count)), axis=dim)
        call.xp.copyto(call.outputs[0], call.xp.take_along_axis(x, order, axis=dim))
        call.xp.copyto(call.outputs[1], order, casting="unsafe")

    return kernel


CHOICES: dict[str, Kernel] = {
    **named(embedding, embedding_dense_backward, index_select, index_select_backward, gather, gather_backward),
    **named(index_of),
    "sort": _in_order(None, "descending"),
    "topk": _in_order("k", "largest"),
}

CHOOSING = frozenset(("embedding", "index_select", "gather"))
SUMMING = frozenset(f"{op}_backward" for op in ("embedding_dense", "index_select", "gather"))
"""Operators whose kernels select elements of any dtype, and whose kernels sum in sufficient precision."""


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


MOVES: dict[str, Kernel] = {
    **named(reshape, unbind, stack, cat, flip, select, select_backward, slice_backward, constant_pad_nd),
    **named(diagonal),
    "slice": slice_,
}

MOVING = frozenset(MOVES)
"""Operators that only move elements, of any dtype."""

KERNELS = CHOICES | MOVES
