"""Operators that read or write by index, sort, and count."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import cast

import torch
from numpy import broadcast_shapes

from planner.graph.ir import Value as Attribute
from planner.pytorch.rewrite.axes import Value
from planner.pytorch.rewrite.views import aligned, dense, densely, merged, regrouped, relaid, single, view
from planner.pytorch.state.contents import Content, value_of
from planner.pytorch.translate.call import TracedCall, converter, of_vectors, refuse_if
from planner.pytorch.translate.elementwise import masked, negated
from planner.pytorch.translate.operations import as_dtype, binary, present, reduce, unary
from planner.pytorch.translate.shapes import expanded, sliced, taken
from planner.pytorch.translate.translation import Translation


@converter("embedding")
def _embedding(t: Translation, call: TracedCall) -> Value:
    refuse_if(call.flag("scale_grad_by_freq"), "embedding with scale_grad_by_freq is not supported")
    weight, indices = merged(t, call["weight"], 0), call["indices"]
    if any(not group and extent != 1 for group, extent in zip(indices.dims, indices.shape, strict=True)):
        indices = densely(t, indices)
    t.holds_below(indices, weight.shape[0])
    width = weight.dims[1]
    laid = regrouped(t, weight, [weight.dims[0], *((axis,) for axis in width)])
    if len(width) > 1:
        laid = merged(t, Value(laid.tensor, ((0,), tuple(range(1, 1 + len(width)))), weight.shape), 1)
    tensor, rank = t.emit("embedding", laid.tensor, indices.tensor), t.rank(indices.tensor)
    t.same_axes(tensor, indices.tensor)
    t.axes.unite((tensor, rank), (laid.tensor, 1))
    rows = Value(tensor, (*indices.dims, (rank,)), (*indices.shape, weight.shape[1]))
    return _without_gradient(t, call, rows, indices) if call.integer("padding_idx") >= 0 else rows


def _without_gradient(t: Translation, call: TracedCall, rows: Value, indices: Value) -> Value:
    """Return rows in which the padding row gets no gradient."""
    padding, known = call.integer("padding_idx"), call.content("indices")
    if known is not None and not bool((known.tensor == padding).any()):
        return rows
    hidden = unary(t, "eq_scalar", indices, value=padding).repeated(indices.rank)
    kept = masked(t, rows, hidden, 0.0)
    stopped = masked(t, unary(t, "stop_gradient", rows), negated(t, hidden), 0.0)
    return binary(t, "add", kept, stopped)


@converter("index")
def _index(t: Translation, call: TracedCall) -> Value:
    """Read dimensions at integer indices, one after the other if the indices run along distinct dimensions."""
    value = call["self"]
    indices = indices_of(t, call, value)
    shape = broadcast_shapes(*(index.shape for _, index in indices))
    runs = [_runs_along(index, len(shape)) for _, index in indices]
    dims = [dim for dim, _ in indices]
    first = dims[0] if dims == list(range(dims[0], dims[0] + len(dims))) else 0
    if len({dim for run in runs for dim in run}) < sum(map(len, runs)):
        return _read_together(t, value, indices, first)
    for dim, index in indices:
        value = _read(t, value, dim, view(t, index, (prod(index.shape),)))
    rest = [dim for dim in range(value.rank) if dim not in dims]
    before, after = ([value.shape[dim] for dim in part] for part in (rest[:first], rest[first:]))
    laid = value.permuted([*rest[:first], *dims, *rest[first:]])
    laid = view(t, laid, (*before, *(shape[at] for run in runs for at in run), *after))
    order = [at for run in runs for at in run]
    places = [first + order.index(at) for at in sorted(order)]
    laid = laid.permuted([*range(first), *places, *range(first + len(order), laid.rank)])
    return view(t, laid, (*before, *shape, *after))


Indices = list[tuple[int, Value]]
"""Indexed dimensions, in order, with their indices."""


def indices_of(t: Translation, call: TracedCall, value: Value) -> Indices:
    """Return the indices of an operator; a known boolean mask becomes the indices of its true elements."""
    indices, dim = Indices(), 0
    for index in call.argument("indices"):
        is_known = isinstance(index, Content)
        if is_known and index.tensor.dtype is torch.bool:
            numbers = map(Content, index.tensor.nonzero(as_tuple=True))
            indices += [(dim + n, value_of(t, number)) for n, number in enumerate(numbers)]
            dim += index.tensor.ndim
            continue
        if index is not None:
            kind = "bool" if is_known else t.dtype(index)
            refuse_if(not is_known and kind == "bool", f"{call.op} by a data-dependent mask: use torch.where")
            start = _from_the_start(t, index, value.shape[dim])
            t.holds_below(start, value.shape[dim])
            indices.append((dim, start))
        dim += 1
    return indices


def _runs_along(index: Value, rank: int) -> list[int]:
    """Return the dimensions, among those of all indices, along which an index runs."""
    return [dim + rank - index.rank for dim, extent in enumerate(index.shape) if extent != 1]


def _read(t: Translation, value: Value, dim: int, index: Value) -> Value:
    """Return the elements of a dimension at the indices in a vector."""
    maker = t.maker(index.tensor)
    if index.dims[0] and maker is not None and maker.op == "arange":
        start, step = (cast("int", maker.attrs[name]) for name in ("start", "step"))
        if step > 0:
            return sliced(t, value, dim, range(start, start + (index.shape[0] - 1) * step + 1, step))
    return selected(t, value, dim, index)


def flat_indices(t: Translation, value: Value, indices: Indices) -> tuple[tuple[int, ...], Value]:
    """Return the shape of all indices, and a flat vector of indices into the merged dimensions."""
    shape = broadcast_shapes(*(index.shape for _, index in indices))
    number, inner = None, 1
    for dim, index in reversed(indices):
        scaled = densely(t, expanded(t, index, shape))
        scaled = scaled if inner == 1 else unary(t, "scale", scaled, factor=inner)
        number = scaled if number is None else binary(t, "add", scaled, number)
        inner *= value.shape[dim]
    assert number is not None
    return shape, densely(t, view(t, number, (prod(shape),)))


def _read_together(t: Translation, value: Value, indices: Indices, first: int) -> Value:
    """Read the dimensions merged into one; the indices' dimensions start at dimension `first`."""
    dims = [dim for dim, _ in indices]
    rest = [dim for dim in range(value.rank) if dim not in dims]
    shape, flat = flat_indices(t, value, indices)
    order = [*rest[:first], *dims, *rest[first:]]
    kept = [value.shape[dim] for dim in rest]
    rows = prod(value.shape[dim] for dim in dims)
    laid = view(t, value.permuted(order), (*kept[:first], rows, *kept[first:]))
    return view(t, selected(t, laid, first, flat), (*kept[:first], *shape, *kept[first:]))


def _from_the_start(t: Translation, indices: Value | Content, extent: int) -> Value:
    """Return indices of which none counts from the end."""
    if isinstance(indices, Content):
        content = indices.tensor
        return value_of(t, Content(torch.where(content < 0, content + extent, content)))
    if t.counts_from_zero(indices):
        return indices
    is_negative = as_dtype(t, unary(t, "lt_scalar", indices, value=0), "int32")
    return binary(t, "add", indices, unary(t, "scale", is_negative, factor=extent))


@converter("index_select")
@of_vectors
def _index_select(t: Translation, call: TracedCall) -> Value:
    value = call["self"]
    return selected(t, value, call.dim(value.rank), call["index"])


def selected(t: Translation, value: Value, dim: int, indices: Value) -> Value:
    """Return the elements of a dimension at indices, whose dimensions take its place."""
    t.holds_below(indices, value.shape[dim])
    value, axis = single(t, value, dim)
    count = prod(indices.shape)
    tensor = t.emit("index_select", value.tensor, dense(t, view(t, indices, (count,))), dim=axis)
    t.same_axes(tensor, value.tensor, but=axis)
    rows = Value(tensor, value.dims, value.shape).resized(dim, count)
    return view(t, rows, (*value.shape[:dim], *indices.shape, *value.shape[dim + 1 :]))


@converter("gather")
@of_vectors
def _gather(t: Translation, call: TracedCall) -> Value:
    value, indices = densely(t, call["self"]), densely(t, call["index"])
    dim = call.dim(value.rank)
    for other in range(value.rank):
        if other != dim and value.shape[other] != indices.shape[other]:
            value = sliced(t, value, other, range(indices.shape[other]))
    value = densely(t, value)
    t.holds_below(indices, value.shape[dim])
    return t.alike(t.emit("gather", value.tensor, indices.tensor, dim=dim), indices)


@converter("sort")
@of_vectors
def _sort(t: Translation, call: TracedCall) -> tuple[Value, ...]:
    return _ordered(t, "sort", call["self"], call.dim(call["self"].rank), descending=call.flag("descending"))


@converter("topk")
@of_vectors
def _topk(t: Translation, call: TracedCall) -> tuple[Value, ...]:
    """Return the largest elements of a dimension, or the smallest."""
    dim = call.dim(call["self"].rank)
    return _ordered(t, "topk", call["self"], dim, k=call.integer("k"), largest=call.flag("largest"))


ENDS: Mapping[str, Mapping[str, bool]] = {"max": {"largest": True}, "min": {"largest": False, "nan_first": True}}
"""Which element is taken; NaN is larger than all for max, and smaller than all for min."""


@of_vectors
def extreme(t: Translation, call: TracedCall) -> tuple[Value, ...]:
    """Return the largest or smallest element of a dimension, and its position."""
    dim = call.dim(call["self"].rank)
    results = _ordered(t, "topk", call["self"], dim, k=1, **ENDS[call.op])
    return results if call.flag("keepdim") else tuple(taken(t, result, dim, 0) for result in results)


def _ordered(t: Translation, op: str, value: Value, dim: int, **attributes: Attribute) -> tuple[Value, ...]:
    """Sort a dimension; return elements and their positions."""
    refuse_if(t.dtype(value) == "bool", f"{op} of booleans is not supported")
    value, axis = single(t, present(t, value, range(value.rank)), dim)
    tensors = t.emit_as(op, op, value.tensor, dim=axis, **attributes)
    for tensor in tensors:
        t.same_axes(tensor, value.tensor, but=axis)
    count = t.builder.shape(tensors[0])[axis]
    return tuple(Value(tensor, value.dims, value.shape).resized(dim, count) for tensor in tensors)


@converter("argmax", "argmin")
def _argmax(t: Translation, call: TracedCall) -> Value:
    """Return the position of the first largest or smallest element."""
    value, dim = call["self"], call.argument("dim")
    if dim is None:
        value, dim = view(t, value, (prod(value.shape),)), 0
    value = as_dtype(t, value, "int32") if t.dtype(value) == "bool" else value
    _, places = _ordered(t, "topk", value, dim % max(1, value.rank), k=1, **ENDS[call.op[-3:]])
    call.ignore("keepdim")
    return view(t, places, call.shapes[0])


@converter("histc")
def _histc(t: Translation, call: TracedCall) -> Value:
    value, bins = call["self"], call.integer("bins")
    maker = t.maker(value.tensor)
    was_whole = maker is not None and maker.op == "cast" and t.builder.tensors[maker.inputs[0]].dtype == "int32"
    refuse_if(
        (call.number("min"), call.number("max")) != (0, bins - 1) or not was_whole,
        "histc is supported only for integers from 0 with one bin each",
    )
    whole = as_dtype(t, densely(t, value), "int32")
    hits = as_dtype(t, one_hot(t, whole.tensor, bins), t.dtype(value))
    return reduce(t, "sum", hits, range(hits.rank - 1))


@converter("one_hot")
def _one_hot(t: Translation, call: TracedCall) -> Value:
    value, depth = densely(t, call["self"]), call.shapes[0][-1]
    t.holds_below(value, depth)
    call.ignore("num_classes")
    return one_hot(t, value.tensor, depth)


def one_hot(t: Translation, numbers: str, depth: int) -> Value:
    """Return, for every number of a tensor, booleans that are true at that number."""
    return t.plain(t.emit("one_hot", numbers, depth=depth))


@converter("_grouped_mm", "transformers::grouped_mm_fallback")
def _grouped_mm(t: Translation, call: TracedCall) -> Value:
    """Multiply each row by the matrix of its group. `offs` ends the groups, which are consecutive rows."""
    rows, ends = call.first("input", "self"), call["offs"]
    numbers = densely(t, t.counted(0, rows.shape[0]).repeated(1, ends.shape[0]))
    before = as_dtype(t, negated(t, binary(t, "lt", numbers, ends)), "int32")
    return _grouped_product(t, rows, call.first("weight", "mat2"), reduce(t, "sum", before, (1,)))


@converter("planner::grouped_rows")
def _grouped_rows(t: Translation, call: TracedCall) -> Value:
    """Multiply each row by the matrix of its group, by the number of each row's group."""
    return _grouped_product(t, call["rows"], call["matrices"], call["groups"])


def _grouped_product(t: Translation, rows: Value, matrices: Value, groups: Value) -> Value:
    refuse_if((rows.rank, matrices.rank) != (2, 3), "a grouped product of other than rows and a matrix per group")
    t.holds_below(groups, matrices.shape[0])
    rows, matrices, groups = (value if all(value.dims) else densely(t, value) for value in (rows, matrices, groups))
    rows, groups = aligned(t, rows, 0, groups, 0)
    rows, matrices = aligned(t, rows, 1, merged(t, matrices, 0), 1)
    first, summed, columns = matrices.dims
    transpose = [*summed, *columns] != sorted([*summed, *columns])
    rows = relaid(t, rows, [(axis,) for dim in rows.dims for axis in dim])
    order = (*first, *columns, *summed) if transpose else (*first, *summed, *columns)
    matrices = relaid(t, matrices, [(axis,) for axis in order])
    groups = relaid(t, groups, [(axis,) for axis in groups.dims[0]])
    tensor = t.emit("grouped_mm", rows.tensor, matrices.tensor, groups.tensor, transpose=transpose)
    count, rank = len(rows.dims[0]), t.rank(tensor)
    result = Value(tensor, (tuple(range(count)), tuple(range(count, rank))), (rows.shape[0], matrices.shape[2]))
    shared = (rows, 0, result, 0), (groups, 0, result, 0), (matrices, 2, result, 1), (rows, 1, matrices, 1)
    for value, dim, other, of_other in shared:
        for axis, counterpart in zip(value.dims[dim], other.dims[of_other], strict=True):
            t.axes.unite((value.tensor, axis), (other.tensor, counterpart))
    return result
