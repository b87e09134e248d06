"""Operators that read or write by index, put in order, and count."""

from __future__ import annotations

from math import prod

import torch

from planner.graph.ir import Value as Attribute
from planner.pytorch.axes import Value
from planner.pytorch.contents import Content, value_of
from planner.pytorch.operations import as_dtype, binary, contract, reduce, unary
from planner.pytorch.operators.call import Converter, TracedCall, UnsupportedError
from planner.pytorch.operators.comparing import masked, negated
from planner.pytorch.operators.shapes import joined, sliced, taken
from planner.pytorch.translation import Translation
from planner.pytorch.views import dense, densely, merged, regrouped, view

END = 2**62


def _embedding(t: Translation, call: TracedCall) -> Value:
    if call["scale_grad_by_freq"]:
        raise UnsupportedError("embedding with scale_grad_by_freq: its gradient is another")
    weight, indices = merged(t, call["weight"], 0), call["indices"]
    if any(not group and extent != 1 for group, extent in zip(indices.dims, indices.shape, strict=True)):
        indices = densely(t, indices)
    t.holds_below(indices, weight.shape[0])
    width = weight.dims[1]
    laid = regrouped(t, weight, [weight.dims[0], *((axis,) for axis in width)])
    if len(width) > 1:
        laid = merged(t, Value(laid.tensor, ((0,), tuple(range(1, 1 + len(width)))), weight.shape), 1)
    found = t.emit("embedding", laid.tensor, indices.tensor)
    rank = len(t.builder.shape(indices.tensor))
    for axis in range(rank):
        t.axes.unite((found, axis), (indices.tensor, axis))
    t.axes.unite((found, rank), (laid.tensor, 1))
    result = Value(found, (*indices.dims, (rank,)), (*indices.shape, weight.shape[1]))
    return _without_gradient(t, call, result, indices) if call["padding_idx"] >= 0 else result


def _without_gradient(t: Translation, call: TracedCall, found: Value, indices: Value) -> Value:
    """Return rows of which that of the padding gets no gradient."""
    padding, known = int(call["padding_idx"]), call.content("indices")
    if known is not None and not bool((known.tensor == padding).any()):
        return found
    hidden = unary(t, "eq_scalar", indices, value=padding)
    hidden = Value(hidden.tensor, (*hidden.dims, ()), (*hidden.shape, 1))
    kept = masked(t, found, hidden, 0.0)
    stopped = masked(t, unary(t, "stop_gradient", found), negated(t, hidden), 0.0)
    return binary(t, "add", kept, stopped)


def _index(t: Translation, call: TracedCall) -> Value:
    """Read a dimension at whole numbers."""
    value, indices = call["self"], call["indices"]
    given = [dim for dim, one in enumerate(indices) if one is not None]
    if len(given) != 1 or t.dtype(indices[given[0]]) != "int32":
        raise UnsupportedError("an index other than by whole numbers in one dimension: use torch.where, or gather")
    (dim,) = given
    return selected(t, value, dim, _from_the_start(t, call.given("indices")[dim], value.shape[dim]))


def _from_the_start(t: Translation, indices: Value | Content, extent: int) -> Value:
    """Return indices of which none counts from the end."""
    if isinstance(indices, Content):
        own = indices.tensor
        return value_of(t, Content(torch.where(own < 0, own + extent, own)))
    if t.counts_from_zero(indices):
        return indices
    before = as_dtype(t, unary(t, "lt_scalar", indices, value=0), "int32")
    return binary(t, "add", indices, unary(t, "scale", before, factor=extent))


def _index_select(t: Translation, call: TracedCall) -> Value:
    value = call["self"]
    return selected(t, value, call.dim(value.rank), call["index"])


def selected(t: Translation, value: Value, dim: int, indices: Value) -> Value:
    """Return the elements of a dimension at some indices, whose dimensions take its place."""
    t.holds_below(indices, value.shape[dim])
    value = merged(t, value if value.dims[dim] else densely(t, value), dim)
    (axis,) = value.dims[dim]
    flat = dense(t, view(t, indices, (prod(indices.shape),)))
    found = t.emit("index_select", value.tensor, flat, dim=axis)
    for own in range(len(t.builder.shape(found))):
        if own != axis:
            t.axes.unite((found, own), (value.tensor, own))
    shape = (*value.shape[:dim], prod(indices.shape), *value.shape[dim + 1 :])
    result = Value(found, value.dims, shape)
    return view(t, result, (*value.shape[:dim], *indices.shape, *value.shape[dim + 1 :]))


def _gather(t: Translation, call: TracedCall) -> Value:
    value, indices = densely(t, call["self"]), densely(t, call["index"])
    dim = call.dim(value.rank)
    others = [at for at in range(value.rank) if at != dim and value.shape[at] != indices.shape[at]]
    for at in others:
        value = sliced(t, value, at, range(indices.shape[at]))
    value = densely(t, value)
    t.holds_below(indices, value.shape[dim])
    found = t.emit("gather", value.tensor, indices.tensor, dim=dim)
    t.same_axes(found, indices.tensor)
    return t.plain(found)


def _sort(t: Translation, call: TracedCall) -> tuple[Value, ...]:
    return _ordered(t, "sort", call["self"], call.dim(call["self"].rank), descending=bool(call["descending"]))


def _topk(t: Translation, call: TracedCall) -> tuple[Value, ...]:
    """Take the greatest elements of a dimension, or the least."""
    dim, largest = call.dim(call["self"].rank), bool(call["largest"])
    return _ordered(t, "topk", call["self"], dim, k=int(call["k"]), largest=largest)


def extreme(t: Translation, call: TracedCall) -> tuple[Value, ...]:
    """Take the greatest or the least element of a dimension, and its place."""
    if not call["self"].rank:
        raise UnsupportedError(f"{call.op} along a dimension of a scalar: expected one dimension at least")
    dim = call.dim(call["self"].rank)
    found = _ordered(t, "topk", call["self"], dim, k=1, largest=call.op == "max")
    return found if call["keepdim"] else tuple(taken(t, one, dim, 0) for one in found)


def _ordered(t: Translation, op: str, value: Value, dim: int, **attrs: Attribute) -> tuple[Value, ...]:
    """Put a dimension in order; return elements and their places."""
    if t.dtype(value) == "bool":
        raise UnsupportedError(f"{op} of truth values has no operator here")
    value = densely(t, value)
    made = t.emit_as(op, op, value.tensor, dim=dim, **attrs)
    for found in made:
        for axis in range(value.rank):
            if axis != dim:
                t.axes.unite((found, axis), (value.tensor, axis))
    return tuple(map(t.plain, made))


def _index_put(t: Translation, call: TracedCall) -> Value:
    """Turn a permutation round, which is what is made of one when numbers in order are put where it says."""
    (indices,), content = call["indices"], call.content("values")
    count = indices.shape[0]
    maker = t.maker(indices.tensor)
    is_order = maker is not None and maker.op == "sort" and maker.outputs[1] == indices.tensor
    in_order = content is not None and torch.equal(content.tensor, torch.arange(count))
    if not (is_order and in_order and call["self"].shape == (count,)) or call["accumulate"]:
        raise UnsupportedError("index_put of anything but the inverse of an order: use torch.where or one_hot")
    return t.plain(t.emit_as("sort", "sort", dense(t, indices), dim=0, descending=False)[1])


def _histc(t: Translation, call: TracedCall) -> Value:
    """Count whole numbers."""
    value, bins, low, high = call["self"], int(call["bins"]), call["min"], call["max"]
    maker = t.maker(value.tensor)
    was_whole = maker is not None and maker.op == "cast" and t.builder.tensors[maker.inputs[0]].dtype == "int32"
    if low != 0 or high != bins - 1 or not was_whole:
        raise UnsupportedError("histc of anything but whole numbers from 0, one to a bin")
    whole = as_dtype(t, densely(t, value), "int32")
    hits = t.emit("one_hot", whole.tensor, depth=bins)
    found = as_dtype(t, t.plain(hits), t.dtype(value))
    return reduce(t, "sum", found, range(found.rank - 1))


def _one_hot(t: Translation, call: TracedCall) -> Value:
    value, depth = densely(t, call["self"]), call.shapes[0][-1]
    t.holds_below(value, depth)
    call.need_not("num_classes")
    return t.plain(t.emit("one_hot", value.tensor, depth=depth))


def _grouped_product(t: Translation, call: TracedCall) -> Value:
    """Multiply each row by the matrix of its group: by all of them, and keep its own; groups end where `offs` says."""
    rows, matrices, ends = call["input"], call["weight"], call["offs"]
    count, groups = rows.shape[0], matrices.shape[0]
    numbers = t.counted(0, count)
    row = Value(numbers.tensor, (numbers.dims[0], ()), (count, 1))
    before = binary(t, "lt", _spread(t, row, (count, groups)), ends)
    inside = as_dtype(t, before, t.dtype(rows))
    # A row is before the end of its group and of all later ones.
    first = sliced(t, inside, 1, range(1))
    steps = binary(t, "sub", sliced(t, inside, 1, range(1, groups)), sliced(t, inside, 1, range(groups - 1)))
    own = joined(t, [first, steps], 1)
    every = contract(t, rows, matrices, [(1, 1)])
    return contract(t, every, own, [(1, 1)], [(0, 0)])


def _spread(t: Translation, value: Value, shape: tuple[int, int]) -> Value:
    return densely(t, Value(value.tensor, value.dims, shape))


def _slice_scatter(t: Translation, call: TracedCall) -> Value:
    value, source = call["self"], call["src"]
    dim, extent = call.dim(value.rank), value.shape[call.dim(value.rank)]
    start, stop, step = slice(call["start"], min(END, call["end"] if call["end"] is not None else END), 1).indices(
        extent
    )
    if int(call["step"]) != 1:
        raise UnsupportedError("a slice with steps that is written to")
    return _written(t, value, source, dim, range(start, stop, step))


def _select_scatter(t: Translation, call: TracedCall) -> Value:
    value, source = call["self"], call["src"]
    dim = call.dim(value.rank)
    at = int(call["index"]) % value.shape[dim]
    row = Value(
        source.tensor, (*source.dims[:dim], (), *source.dims[dim:]), (*source.shape[:dim], 1, *source.shape[dim:])
    )
    return _written(t, value, row, dim, range(at, at + 1))


def _written(t: Translation, value: Value, source: Value, dim: int, where: range) -> Value:
    """Return the value with a range of a dimension replaced."""
    parts = [sliced(t, value, dim, range(where.start))] if where.start else []
    parts.append(source)
    if where.stop < value.shape[dim]:
        parts.append(sliced(t, value, dim, range(where.stop, value.shape[dim])))
    return joined(t, parts, dim)


CONVERTERS: dict[str, Converter] = {
    "embedding": _embedding,
    "index": _index,
    "index_select": _index_select,
    "gather": _gather,
    "sort": _sort,
    "topk": _topk,
    "index_put": _index_put,
    "histc": _histc,
    "one_hot": _one_hot,
    "transformers::grouped_mm_fallback": _grouped_product,
    "slice_scatter": _slice_scatter,
    "select_scatter": _select_scatter,
}
