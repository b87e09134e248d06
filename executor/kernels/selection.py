"""Selection by a tensor's values, with gathers and segment sums instead of the descriptions' sums.

A run covers a range of the selected variable. Values outside it are left to the workers that have them, and add zero.
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


KERNELS: dict[str, Kernel] = {
    **named(embedding, embedding_dense_backward, index_select, index_select_backward, gather, gather_backward),
    **named(index_of),
    "sort": _in_order(None, "descending"),
    "topk": _in_order("k", "largest"),
}

CHOOSING = frozenset(("embedding", "index_select", "gather"))
SUMMING = frozenset(f"{op}_backward" for op in ("embedding_dense", "index_select", "gather"))
"""Operators whose kernels select elements of any dtype, and whose kernels sum in sufficient precision."""
