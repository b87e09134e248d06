"""Selection by a tensor's values, by gathering and by sums of sorted segments instead of the descriptions' sums.

A run covers a range of the selected variable: what lies outside it is left to the workers that have it, and adds zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import cast

from executor.kernels.call import Array, Kernel, KernelCall, Range, named
from executor.kernels.segment_sums import segment_sums


def _inside(indices: Array, within: Range) -> tuple[Array, Array]:
    """Where indices lie in a range, and their places in it (zero where they do not)."""
    inside = (indices >= within[0]) & (indices < within[1])
    return inside, (indices - within[0]) * inside


def _keep(call: KernelCall, values: Array, inside: Array) -> None:
    """Write values where they are selected by this run's range, else zero; by no product, which would keep infinity."""
    if call.ranges["v"] == (0, _extent(call, "v")):
        call.xp.copyto(call.outputs[0], values)
    else:
        call.xp.copyto(call.outputs[0], call.xp.where(inside, values, values.dtype.type(0)))


def _extent(call: KernelCall, variable: str) -> int | None:
    """Return how many values a variable has in the whole tensors, if the call says so."""
    extents = call.attributes.get("extents")
    return cast("Mapping[str, int]", extents).get(variable) if extents else None


def embedding(call: KernelCall) -> None:
    """Row number indices[...] of the weight."""
    weight, indices = call.inputs
    inside, rows = _inside(indices, call.ranges["v"])
    _keep(call, weight[rows], inside[..., None])


def index_select(call: KernelCall) -> None:
    """Slices of x at the indices along a dimension."""
    (x, indices), dim = call.inputs, call.integer("dim")
    inside, rows = _inside(indices, call.ranges["v"])
    shape = [-1 if other == dim else 1 for other in range(x.ndim)]
    _keep(call, call.xp.take(x, rows, axis=dim), inside.reshape(shape))


def gather(call: KernelCall) -> None:
    """Elements of x whose coordinate along a dimension is the index that stands at their place."""
    (x, indices), dim = call.inputs, call.integer("dim")
    inside, rows = _inside(indices, call.ranges["v"])
    _keep(call, call.xp.take_along_axis(x, rows, axis=dim), inside)


def embedding_dense_backward(call: KernelCall) -> None:
    """Sum of the gradients of every row's uses."""
    (grad, indices), (out,) = call.inputs, call.outputs
    segment_sums(call.xp, indices - call.ranges["v"][0], grad, out)


def index_select_backward(call: KernelCall) -> None:
    """Sum of the gradients of every slice's uses."""
    (grad, indices), (out,), dim = call.inputs, call.outputs, call.integer("dim")
    xp, first = call.xp, call.ranges[f"i{dim}"][0]
    segment_sums(xp, indices - first, xp.moveaxis(grad, dim, 0), xp.moveaxis(out, dim, 0))


def gather_backward(call: KernelCall) -> None:
    """Sum of the gradients of every element's uses."""
    (grad, indices), (out,), dim = call.inputs, call.outputs, call.integer("dim")
    xp = call.xp
    inside, rows = _inside(indices, call.ranges[f"i{dim}"])
    places = xp.take_along_axis(xp.arange(out.size).reshape(out.shape), rows, axis=dim)
    sums = xp.empty(out.size, dtype=out.dtype)
    segment_sums(xp, xp.where(inside, places, -1), grad, sums)
    xp.copyto(out, sums.reshape(out.shape))


def index_of(call: KernelCall) -> None:
    """Find the first place along a dimension at which x has a value."""
    (x, value), (out,), dim = call.inputs, call.outputs, call.integer("dim")
    equal = x == call.xp.expand_dims(value, dim)
    first = call.xp.argmax(equal, axis=dim) + call.ranges["r"][0]
    call.xp.copyto(out, call.xp.where(equal.any(axis=dim), first, 2**31 - 1), casting="unsafe")


def _order(xp: ModuleType, x: Array, dim: int, descending: bool) -> Array:
    """Return where elements along a dimension are in order, of which what is no number is the greatest."""
    if not descending:
        return xp.argsort(x, axis=dim, kind="stable")
    return x.shape[dim] - 1 - xp.flip(xp.argsort(xp.flip(x, dim), axis=dim, kind="stable"), dim)


def _in_order(count: str | None, flag: str) -> Kernel:
    """Return the kernel of values in order along a dimension, and of where they were; `count` says how many."""

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
"""Operators whose kernels choose elements of any dtype, and whose kernels add them up in enough precision."""
