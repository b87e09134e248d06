"""Operators that write at indices: each element looks up its writer, so that nothing is written twice."""

from __future__ import annotations

from math import prod

import numpy as np
import torch

from planner.pytorch.rewrite.axes import Value
from planner.pytorch.rewrite.views import densely, view
from planner.pytorch.state.contents import Content
from planner.pytorch.translate.call import TracedCall, converter, of_vectors, refuse_if
from planner.pytorch.translate.elementwise import in_dtype, masked, negated
from planner.pytorch.translate.indexing import flat_indices, indices_of
from planner.pytorch.translate.operations import as_dtype, binary, reduce, unary
from planner.pytorch.translate.shapes import expanded
from planner.pytorch.translate.translation import Translation


@converter("index_put", "_unsafe_index_put")
def _index_put(t: Translation, call: TracedCall) -> Value:
    """Invert a permutation, or write rows of the indexed dimensions merged into one."""
    value, source = call["self"], as_dtype(t, call["values"], call.dtypes[0])
    if (mask := _mask_of_data(t, call)) is not None and prod(source.shape) == 1:
        return _merged(t, value, expanded(t, source, value.shape), negated(t, mask))
    if not call.flag("accumulate") and t.is_trained(source):
        refuse_if(not _are_distinct(call, value), OVERWRITTEN)
    indices = indices_of(t, call, value)
    if _is_order(t, call, [index for _, index in indices]):
        return t.plain(t.emit_as("sort", "sort", densely(t, indices[0][1]).tensor, dim=0, descending=False)[1])
    dims = [dim for dim, _ in indices]
    rest = [dim for dim in range(value.rank) if dim not in dims]
    refuse_if(dims != list(range(dims[0], dims[0] + len(dims))), "index_put in separate dimensions: permute first")
    shape, flat = flat_indices(t, value, indices)
    kept = [value.shape[dim] for dim in rest]
    source = expanded(t, source, (*kept[: dims[0]], *shape, *kept[dims[0] :]))
    source = source.permuted([dim + dims[0] for dim in range(len(shape))] + _others(source.rank, dims[0], len(shape)))
    rows = view(t, value.permuted(dims + rest), (prod(value.shape[dim] for dim in dims), *kept))
    source = view(t, source, (prod(shape), *kept))
    if call.flag("accumulate"):
        written = binary(t, "add", rows, _rows_added(t, source, flat, rows.shape[0]))
    else:
        written = _rows_written(t, rows, source, flat)
    whole = view(t, written, (*(value.shape[dim] for dim in dims), *kept))
    return whole.permuted([(dims + rest).index(dim) for dim in range(value.rank)])


OVERWRITTEN = "not supported: PyTorch also gives a gradient to overwritten elements"


def _are_distinct(call: TracedCall, value: Value) -> bool:
    """Return True for known indices that name no element twice."""
    known = [(dim, index.tensor) for dim, index in enumerate(call.argument("indices")) if isinstance(index, Content)]
    if any(isinstance(index, Value) for index in call.argument("indices")):
        return False
    if any(index.dtype is torch.bool for _, index in known):
        return True
    places = np.broadcast_arrays(*((index % value.shape[dim]).numpy() for dim, index in known))
    rows = np.stack([place.ravel() for place in places], 1)
    return len(np.unique(rows, axis=0)) == len(rows)


def _mask_of_data(t: Translation, call: TracedCall) -> Value | None:
    """Return the index if it is a single boolean mask that depends on data."""
    first, *rest = call.argument("indices")
    return first if not rest and isinstance(first, Value) and t.dtype(first) == "bool" else None


def _others(rank: int, start: int, count: int) -> list[int]:
    return [dim for dim in range(rank) if not start <= dim < start + count]


def _is_order(t: Translation, call: TracedCall, indices: list[Value]) -> bool:
    """Return True if consecutive integers are written at a sort's indices, which inverts the permutation."""
    content, maker = call.content("values"), t.maker(indices[0].tensor)
    count = indices[0].shape[0] if indices[0].rank else 0
    is_order = maker is not None and maker.op == "sort" and maker.outputs[1] == indices[0].tensor
    in_order = content is not None and torch.equal(content.tensor, torch.arange(count))
    return len(indices) == 1 and is_order and in_order and call["self"].shape == (count,)


def _rows_added(t: Translation, source: Value, indices: Value, count: int) -> Value:
    """Return, for each of `count` rows, the sum of the rows written there."""
    source = densely(t, source)
    tensor = t.emit("index_select_backward", source.tensor, indices.tensor, dim=0, extents={"i0": count})
    t.same_axes(tensor, source.tensor, but=0)
    return t.plain(tensor)


def _rows_written(t: Translation, rows: Value, source: Value, indices: Value) -> Value:
    """Return rows replaced by those written there last."""
    writer, nobody = _last_writer(t, indices, 0, rows.shape[0])
    chosen = t.plain(t.emit("index_select", densely(t, source).tensor, writer.tensor, dim=0))
    return _merged(t, rows, chosen, nobody)


def _merged(t: Translation, value: Value, written: Value, nobody: Value) -> Value:
    """Select one value where nobody writes, else the other."""
    for _ in range(value.rank - nobody.rank):
        nobody = nobody.repeated(nobody.rank)
    nothing = in_dtype(0, t.dtype(value))
    kept = masked(t, value, negated(t, nobody), nothing)
    return binary(t, "add", kept, masked(t, written, nobody, nothing))


def _last_writer(t: Translation, indices: Value, dim: int, extent: int) -> tuple[Value, Value]:
    """Return, for each position of a dimension, its last writer, and whether it has none."""
    spread = indices.repeated(dim)
    places = _along(t, t.counted(0, extent), dim, spread.rank)
    writers = _along(t, t.counted(0, indices.shape[dim]), dim + 1, spread.rank)
    shape = (*indices.shape[:dim], extent, *indices.shape[dim:])
    other = negated(t, binary(t, "eq", densely(t, expanded(t, spread, shape)), densely(t, expanded(t, places, shape))))
    last = reduce(t, "amax", masked(t, densely(t, expanded(t, writers, shape)), other, -1), (dim + 1,))
    nobody = unary(t, "lt_scalar", last, value=0)
    return densely(t, masked(t, last, nobody, 0)), nobody


def _along(t: Translation, vector: Value, dim: int, rank: int) -> Value:
    shape = tuple(vector.shape[0] if place == dim else 1 for place in range(rank))
    return view(t, vector, shape)


@converter("scatter")
@of_vectors
def _scatter(t: Translation, call: TracedCall) -> Value:
    """Write a number, or the elements of a tensor."""
    value = call["self"]
    dim, indices = call.dim(value.rank), _indices(t, call, value)
    writer, nobody = _last_writer(t, indices, dim, value.shape[dim])
    number = call.constant("value") if "value" in call.arguments else None
    if number is not None:
        return masked(t, densely(t, value), negated(t, nobody), in_dtype(number, t.dtype(value)))
    source = expanded(t, call["value"], indices.shape) if "value" in call.arguments else call["src"]
    refuse_if(indices.shape[dim] > 1 and t.is_trained(source), OVERWRITTEN)
    chosen = t.emit("gather", densely(t, source).tensor, writer.tensor, dim=dim)
    return _merged(t, densely(t, value), t.alike(chosen, writer), nobody)


@converter("scatter_add", "scatter_reduce")
@of_vectors
def _scatter_add(t: Translation, call: TracedCall) -> Value:
    """Add every element of a tensor to the element at its index."""
    value, source = call["self"], densely(t, call["src"])
    dim, indices = call.dim(value.rank), _indices(t, call, value)
    kind = call.argument("reduce", "sum")
    refuse_if(kind != "sum" or not call.argument("include_self", True), f"scatter_reduce of {kind}: expected sum")
    extents = {f"i{dim}": value.shape[dim]}
    tensor = t.emit("gather_backward", source.tensor, indices.tensor, dim=dim, extents=extents)
    t.same_axes(tensor, source.tensor, but=dim)
    return binary(t, "add", value, t.plain(tensor))


def _indices(t: Translation, call: TracedCall, value: Value) -> Value:
    """Return indices with the shape of what is written, which may differ from the tensor's only along `dim`."""
    indices = densely(t, call["index"])
    dim = call.dim(value.rank)
    differ = [other for other in range(value.rank) if indices.shape[other] != value.shape[other] and other != dim]
    refuse_if(differ, f"{call.op} to a part of other dimensions is not supported: slice first")
    src = call["src"] if "src" in call.arguments else indices
    refuse_if(src.shape != indices.shape, f"{call.op} of a part of the source is not supported: slice first")
    t.holds_below(indices, value.shape[dim])
    return indices
