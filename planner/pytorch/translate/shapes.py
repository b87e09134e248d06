"""Operators that regroup, permute, split and join dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import torch
import torch.nn.functional as F  # noqa: N812

from planner.graph.ir import FLOATING
from planner.pytorch.rewrite.axes import Value
from planner.pytorch.rewrite.views import dense, densely, merged, squeezed, view
from planner.pytorch.translate.call import TracedCall, converter, of_vectors
from planner.pytorch.translate.operations import as_dtype
from planner.pytorch.translate.translation import Translation

END = 2**62


@converter("view", "reshape", "flatten", "unflatten", "squeeze", "_unsafe_view")
def _view(t: Translation, call: TracedCall) -> Value:
    call.ignore()
    return view(t, call["self"], call.shapes[0])


@converter("permute")
def _permute(t: Translation, call: TracedCall) -> Value:
    value = call["self"]
    return value.permuted([dim % value.rank for dim in call.integers("dims")])


@converter("transpose")
def _transpose(t: Translation, call: TracedCall) -> Value:
    value = call["self"]
    order, first, second = list(range(value.rank)), call.integer("dim0"), call.integer("dim1")
    if value.rank:
        order[first], order[second] = order[second], order[first]
    return value.permuted(order)


@converter("unsqueeze")
def _unsqueeze(t: Translation, call: TracedCall) -> Value:
    value = call["self"]
    return value.repeated(call.dim(value.rank + 1))


@converter("expand", "expand_as")
def _expand(t: Translation, call: TracedCall) -> Value:
    call.ignore()
    return expanded(t, call["self"], call.shapes[0])


def expanded(t: Translation, value: Value, shape: Sequence[int]) -> Value:
    """Repeat a value to a shape."""
    missing = len(shape) - value.rank
    dims, before = ((),) * missing + value.dims, (1,) * missing + value.shape
    if any(group and now != then for group, now, then in zip(dims, shape, before, strict=True)):
        value = squeezed(t, value)
        dims = ((),) * missing + value.dims
    return Value(value.tensor, dims, tuple(shape))


def taken(t: Translation, value: Value, dim: int, index: int) -> Value:
    """Return the value at an index of a dimension."""
    index %= value.shape[dim]
    shape = (*value.shape[:dim], *value.shape[dim + 1 :])
    while group := value.dims[dim]:
        inner = prod(t.extent(value, group[1:]))
        tensor = t.emit("select", value.tensor, dim=group[0], index=index // inner)
        index %= inner
        value = _lacking(t, tensor, value, group[0])
    return Value(value.tensor, (*value.dims[:dim], *value.dims[dim + 1 :]), shape)


def _lacking(t: Translation, tensor: str, value: Value, axis: int) -> Value:
    """Return a tensor that lacks one axis of a value's tensor as a value of the same dimensions and extents."""
    t.same_axes(tensor, value.tensor, but=axis)
    dims = tuple(tuple(other - (other > axis) for other in group if other != axis) for group in value.dims)
    return Value(tensor, dims, value.shape)


@converter("select")
def _select(t: Translation, call: TracedCall) -> Value:
    value = call["self"]
    return taken(t, value, call.dim(value.rank), call.integer("index"))


def sliced(t: Translation, value: Value, dim: int, wanted: range) -> Value:
    """Return a range of a dimension."""
    start, stop, step = wanted.start, wanted.stop, wanted.step
    extent = value.shape[dim]
    if (start, stop, step) == (0, extent, 1):
        return value
    length = -(-(stop - start) // step)
    shape = (*value.shape[:dim], length, *value.shape[dim + 1 :])
    if not value.dims[dim] or not length:  # an empty range is a constant, so this value is never read
        return Value(value.tensor, value.dims, shape)
    inner = prod(t.extent(value, value.dims[dim][1:]))
    if step == 1 and length < extent and not extent % length and not start % length and len(value.dims[dim]) == 1:
        t.axes.want((value.tensor, value.dims[dim][0]), length)
    if step != 1 or start % inner or stop % inner:
        value, inner = merged(t, value, dim), 1
    axis = value.dims[dim][0]
    size = t.builder.shape(value.tensor)[axis]
    first, last = start // inner, -(-stop // inner)
    if last - first == 1:
        chosen = taken(t, _front(value, dim), dim, first)
        return Value(chosen.tensor, chosen.dims, shape)
    end = first + (last - first - 1) // step * step + 1
    tensor = t.emit("slice", value.tensor, dim=axis, start=first, skip=size - end, step=step)
    t.same_axes(tensor, value.tensor, but=axis)
    return Value(tensor, value.dims, shape)


def _front(value: Value, dim: int) -> Value:
    """Make a dimension's first axis a separate dimension before it, for `taken` to remove."""
    group = value.dims[dim]
    dims = (*value.dims[:dim], group[:1], group[1:], *value.dims[dim + 1 :])
    return Value(value.tensor, dims, (*value.shape[:dim], END, 0, *value.shape[dim + 1 :]))


@converter("slice")
def _slice(t: Translation, call: TracedCall) -> Value:
    value = call["self"]
    dim = call.dim(value.rank)
    return sliced(t, value, dim, range_of(call, value.shape[dim]))


def range_of(call: TracedCall, extent: int) -> range:
    """Return the range of a dimension that a slice selects."""
    start, stop, step = slice(call.argument("start"), call.argument("end"), call.integer("step")).indices(extent)
    return range(start, max(start, stop), step)


def pieces(t: Translation, value: Value, dim: int, sizes: Sequence[int]) -> tuple[Value, ...]:
    """Cut a dimension into ranges; if they are the steps of its first axis, unbind that."""
    group = value.dims[dim]
    if len(set(sizes)) == 1 and len(group) > 1 and t.extent(value, group[:1]) == (len(sizes),):
        return _unbound(t, value.resized(dim, sizes[0]), group[0], len(sizes))
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    return tuple(sliced(t, value, dim, range(start, start + size)) for start, size in zip(starts, sizes, strict=True))


def _unbound(t: Translation, value: Value, axis: int, count: int) -> tuple[Value, ...]:
    tensors = t.emit_as("unbind", "unbind", value.tensor, dim=axis, n=count)
    return tuple(_lacking(t, tensor, value, axis) for tensor in tensors)


@converter("split", "split_with_sizes", "chunk")
def _split(t: Translation, call: TracedCall) -> tuple[Value, ...]:
    call.ignore()
    dim = call.dim(call["self"].rank)
    return pieces(t, call["self"], dim, [shape[dim] for shape in call.shapes])


@converter("unbind")
def _unbind(t: Translation, call: TracedCall) -> tuple[Value, ...]:
    value = call["self"]
    dim = call.dim(value.rank)
    if len(value.dims[dim]) != 1:
        return tuple(taken(t, value, dim, index) for index in range(value.shape[dim]))
    kept = [other for other in range(value.rank) if other != dim]
    return tuple(part.permuted(kept) for part in _unbound(t, value, value.dims[dim][0], value.shape[dim]))


@converter("cat")
def _cat(t: Translation, call: TracedCall) -> Value:
    tensors = [tensor for tensor in call.argument("tensors") if prod(tensor.shape)]
    values = [as_dtype(t, call.value(tensor), call.dtypes[0]) for tensor in tensors]
    return joined(t, values, call.dim(values[0].rank))


def joined(t: Translation, values: Sequence[Value], dim: int) -> Value:
    """Concatenate values along a dimension."""
    if len(values) == 1:
        return values[0]
    tensors = [dense(t, value) for value in values]
    whole = t.emit("cat", *tensors, dim=dim, sizes=tuple(value.shape[dim] for value in values))
    for tensor in tensors:
        t.same_axes(whole, tensor, but=dim)
    return t.plain(whole)


@converter("stack")
def _stack(t: Translation, call: TracedCall) -> Value:
    values = call.tensors("tensors")
    return stacked(t, values, call.dim(values[0].rank + 1))


def stacked(t: Translation, values: Sequence[Value], dim: int) -> Value:
    """Stack values of one shape along a new dimension."""
    tensors = [dense(t, value) for value in values]
    whole = t.emit("stack", *tensors, dim=dim, extents={"s": len(values)})
    for tensor in tensors:
        t.same_axes(tensor, whole, but=dim)
    return t.plain(whole)


@converter("pad", "constant_pad_nd")
def _pad(t: Translation, call: TracedCall) -> Value:
    """Pad dimensions, the last one first; negative amounts remove elements."""
    value, mode = call["self"], call.argument("mode", "constant")
    amounts = call.integers("pad")
    pairs = zip(amounts[::2], amounts[1::2], strict=True)
    by_dim = {value.rank - 1 - number: pair for number, pair in enumerate(pairs)}
    if mode != "constant":
        return _repeated_at_bounds(t, value, by_dim, mode)
    for dim, (low, high) in by_dim.items():
        value = sliced(t, value, dim, range(max(0, -low), value.shape[dim] + min(0, high)))
    return padded(
        t, value, {dim: (max(0, low), max(0, high)) for dim, (low, high) in by_dim.items()}, call.argument("value") or 0
    )


Amounts = Mapping[int, tuple[int, int]]
"""Number of elements put before and after those of a dimension, by dimension."""


def padded(t: Translation, value: Value, amounts: Amounts, filling: float = 0) -> Value:
    """Return the value padded with a number along some dimensions."""
    low, high = (tuple(amounts.get(dim, (0, 0))[side] for dim in range(value.rank)) for side in (0, 1))
    if not any((*low, *high)):
        return value
    value = densely(t, value)
    filling = float(filling) if t.dtype(value) in FLOATING else int(filling)
    return t.plain(t.emit("constant_pad_nd", value.tensor, low=low, high=high, sizes=value.shape, value=filling))


def _repeated_at_bounds(t: Translation, value: Value, amounts: Amounts, mode: str) -> Value:
    """Return the value padded with its own elements: reflected, replicated or circular."""
    for dim, (low, high) in amounts.items():
        extent = value.shape[dim]
        places = F.pad(torch.arange(extent, dtype=torch.float64)[None], (low, high), mode)[0].int().tolist()
        ends = (*places[:low], *places[low + extent :])
        parts = [taken(t, value, dim, place).repeated(dim) for place in ends]
        value = joined(t, [*parts[:low], value, *parts[low:]], dim)
    return value


@converter("flip")
@of_vectors
def _flip(t: Translation, call: TracedCall) -> Value:
    value = densely(t, call["self"])
    dims = tuple(dim % value.rank for dim in call.integers("dims"))
    return t.plain(t.emit("flip", value.tensor, dims=dims, sizes=tuple(value.shape[dim] for dim in dims)))
