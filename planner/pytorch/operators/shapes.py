"""Operators that regroup, order, take apart and put together dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from planner.graph.ir import FLOATING
from planner.pytorch.axes import Value
from planner.pytorch.operations import as_dtype
from planner.pytorch.operators.call import Converter, TracedCall, UnsupportedError
from planner.pytorch.translation import Translation
from planner.pytorch.views import dense, densely, merged, squeezed, view

END = 2**62


def permuted(value: Value, order: Sequence[int]) -> Value:
    """Return the value with its dimensions in another order."""
    return Value(value.tensor, tuple(value.dims[dim] for dim in order), tuple(value.shape[dim] for dim in order))


def _view(t: Translation, call: TracedCall) -> Value:
    call.need_not()
    return view(t, call["self"], call.shapes[0])


def _permute(t: Translation, call: TracedCall) -> Value:
    value = call["self"]
    return permuted(value, [dim % value.rank for dim in call["dims"]])


def _moved(t: Translation, call: TracedCall) -> Value:
    """Move dimensions to other places; the rest stay in order."""
    value = call["self"]
    source, target = ([dim % value.rank for dim in _several(call[name])] for name in ("source", "destination"))
    rest = iter(dim for dim in range(value.rank) if dim not in source)
    moved = dict(zip(target, source, strict=True))
    return permuted(value, [moved[at] if at in moved else next(rest) for at in range(value.rank)])


def _several(given: Sequence[int] | int) -> Sequence[int]:
    return [given] if isinstance(given, int) else given


def _transpose(t: Translation, call: TracedCall) -> Value:
    value = call["self"]
    order = list(range(value.rank))
    one, other = (call["dim0"], call["dim1"]) if "dim0" in call.arguments else (0, value.rank - 1)
    if value.rank:
        order[one], order[other] = order[other], order[one]
    return permuted(value, order)


def _unsqueeze(t: Translation, call: TracedCall) -> Value:
    value = call["self"]
    at = int(call["dim"]) % (value.rank + 1)
    return Value(value.tensor, (*value.dims[:at], (), *value.dims[at:]), (*value.shape[:at], 1, *value.shape[at:]))


def _expand(t: Translation, call: TracedCall) -> Value:
    call.need_not()
    return expanded(t, call["self"], call.shapes[0])


def expanded(t: Translation, value: Value, shape: Sequence[int]) -> Value:
    """Repeat a value to a shape."""
    missing = len(shape) - value.rank
    dims, own = ((),) * missing + value.dims, (1,) * missing + value.shape
    if any(group and now != then for group, now, then in zip(dims, shape, own, strict=True)):
        value = squeezed(t, value)
        dims = ((),) * missing + value.dims
    return Value(value.tensor, dims, tuple(shape))


def _broadcast(t: Translation, call: TracedCall) -> tuple[Value, ...]:
    """Leave broadcasting to the operators that follow, where shapes are equal."""
    return tuple(expanded(t, value, call.shapes[0]) for value in call["tensors"])


def taken(t: Translation, value: Value, dim: int, index: int) -> Value:
    """Return the value at an index of a dimension."""
    index %= value.shape[dim]
    shape = (*value.shape[:dim], *value.shape[dim + 1 :])
    while group := value.dims[dim]:
        rest = prod(t.extent(value, group[1:]))
        axis, at = group[0], index // rest
        index %= rest
        found = t.emit("select", value.tensor, dim=axis, index=at)
        dims = tuple(tuple(own - (own > axis) for own in group if own != axis) for group in value.dims)
        for own in range(len(t.builder.shape(value.tensor))):
            if own != axis:
                t.axes.unite((found, own - (own > axis)), (value.tensor, own))
        value = Value(found, dims, value.shape)
    return Value(value.tensor, (*value.dims[:dim], *value.dims[dim + 1 :]), shape)


def _select(t: Translation, call: TracedCall) -> Value:
    value = call["self"]
    return taken(t, value, call.dim(value.rank), int(call["index"]))


def sliced(t: Translation, value: Value, dim: int, wanted: range) -> Value:
    """Return a range of a dimension."""
    start, stop, step = wanted.start, wanted.stop, wanted.step
    extent = value.shape[dim]
    if (start, stop, step) == (0, extent, 1):
        return value
    length = -(-(stop - start) // step)
    shape = (*value.shape[:dim], length, *value.shape[dim + 1 :])
    if not value.dims[dim]:
        return Value(value.tensor, value.dims, shape)
    within = prod(t.extent(value, value.dims[dim][1:]))
    is_whole = step == 1 and not start % within and not stop % within
    if step == 1 and length < extent and not extent % length and not start % length and len(value.dims[dim]) == 1:
        t.axes.want((value.tensor, value.dims[dim][0]), length)
    if not is_whole:
        value, within = merged(t, value, dim), 1
    axis = value.dims[dim][0]
    size = t.builder.shape(value.tensor)[axis]
    first, last = start // within, -(-stop // within)
    if last - first == 1:
        chosen = taken(t, _front(value, dim), dim, first)
        return Value(chosen.tensor, chosen.dims, shape)
    used = first + (last - first - 1) // step * step + 1
    found = t.emit("slice", value.tensor, dim=axis, start=first, skip=size - used, step=step)
    for own in range(len(t.builder.shape(found))):
        if own != axis:
            t.axes.unite((found, own), (value.tensor, own))
    return Value(found, value.dims, shape)


def _front(value: Value, dim: int) -> Value:
    """Make a dimension's first axis a dimension of its own before it, for `taken` to remove."""
    group = value.dims[dim]
    dims = (*value.dims[:dim], group[:1], group[1:], *value.dims[dim + 1 :])
    return Value(value.tensor, dims, (*value.shape[:dim], END, 0, *value.shape[dim + 1 :]))


def _slice(t: Translation, call: TracedCall) -> Value:
    value = call["self"]
    dim = call.dim(value.rank)
    extent, step = value.shape[dim], int(call["step"])
    start, stop = (_bound(call[name], extent, default) for name, default in (("start", 0), ("end", extent)))
    return sliced(t, value, dim, range(start, max(start, stop), step))


def _bound(given: int | None, extent: int, default: int) -> int:
    if given is None:
        return default
    return min(max(given + extent if given < 0 else given, 0), extent)


def pieces(t: Translation, value: Value, dim: int, sizes: Sequence[int]) -> tuple[Value, ...]:
    """Cut a dimension into ranges; where they are all of one size, and an axis runs over them, take it apart."""
    group = value.dims[dim]
    if len(set(sizes)) == 1 and len(group) > 1 and t.extent(value, group[:1]) == (len(sizes),):
        axis = group[0]
        tensors = t.emit_as("unbind", "unbind", value.tensor, dim=axis, n=len(sizes))
        dims = tuple(tuple(own - (own > axis) for own in one if own != axis) for one in value.dims)
        shape = (*value.shape[:dim], sizes[0], *value.shape[dim + 1 :])
        for found in tensors:
            for own in range(len(t.builder.shape(value.tensor))):
                if own != axis:
                    t.axes.unite((found, own - (own > axis)), (value.tensor, own))
        return tuple(Value(found, dims, shape) for found in tensors)
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    return tuple(sliced(t, value, dim, range(start, start + size)) for start, size in zip(starts, sizes, strict=True))


def _split(t: Translation, call: TracedCall) -> tuple[Value, ...]:
    call.need_not()
    value = call["self"]
    dim = call.dim(value.rank)
    return pieces(t, value, dim, [shape[dim] for shape in call.shapes])


def _unbind(t: Translation, call: TracedCall) -> tuple[Value, ...]:
    value = call["self"]
    dim = call.dim(value.rank)
    if len(value.dims[dim]) == 1:
        axis = value.dims[dim][0]
        tensors = t.emit_as("unbind", "unbind", value.tensor, dim=axis, n=value.shape[dim])
        dims = tuple(tuple(own - (own > axis) for own in one) for at, one in enumerate(value.dims) if at != dim)
        for found in tensors:
            for own in range(len(t.builder.shape(value.tensor))):
                if own != axis:
                    t.axes.unite((found, own - (own > axis)), (value.tensor, own))
        shape = (*value.shape[:dim], *value.shape[dim + 1 :])
        return tuple(Value(found, dims, shape) for found in tensors)
    return tuple(taken(t, value, dim, index) for index in range(value.shape[dim]))


def _cat(t: Translation, call: TracedCall) -> Value:
    values = [as_dtype(t, call.value(one), call.dtypes[0]) for one in call.given("tensors") if prod(one.shape)]
    return joined(t, values, call.dim(values[0].rank))


def joined(t: Translation, values: Sequence[Value], dim: int) -> Value:
    """Put values one after another along a dimension."""
    if len(values) == 1:
        return values[0]
    tensors = [dense(t, value) for value in values]
    found = t.emit("cat", *tensors, dim=dim, sizes=tuple(value.shape[dim] for value in values))
    for tensor in tensors:
        for axis in range(len(t.builder.shape(found))):
            if axis != dim:
                t.axes.unite((found, axis), (tensor, axis))
    return t.plain(found)


def _stack(t: Translation, call: TracedCall) -> Value:
    values = call["tensors"]
    dim = int(call["dim"]) % (values[0].rank + 1)
    return stacked(t, values, dim)


def stacked(t: Translation, values: Sequence[Value], dim: int) -> Value:
    """Put values of one shape side by side along a new dimension."""
    tensors = [dense(t, value) for value in values]
    found = t.emit("stack", *tensors, dim=dim, extents={"s": len(values)})
    for tensor in tensors:
        for axis in range(len(t.builder.shape(tensor))):
            t.axes.unite((found, axis + (axis >= dim)), (tensor, axis))
    t.axes.note_stacked((found, dim))
    return t.plain(found)


def _pad(t: Translation, call: TracedCall) -> Value:
    value: Value = call["self"]
    low, high = [0] * value.rank, [0] * value.rank
    if (mode := call.get("mode", "constant")) != "constant":
        raise UnsupportedError(f"pad with mode {mode}: expected constant")
    filling = call.get("value") or 0
    for place, amount in enumerate(call["pad"]):
        dim = value.rank - 1 - place // 2
        if amount >= 0:
            (high if place % 2 else low)[dim] = int(amount)
            continue
        kept = range(value.shape[dim] + amount) if place % 2 else range(-amount, value.shape[dim])
        value = sliced(t, value, dim, kept)
    if not any((*low, *high)):
        return value
    value = densely(t, value)
    return t.plain(
        t.emit(
            "constant_pad_nd", value.tensor, low=tuple(low), high=tuple(high), sizes=value.shape,
            value=float(filling) if call.dtypes[0] in FLOATING else int(filling),
        )
    )  # fmt: skip


def _flip(t: Translation, call: TracedCall) -> Value:
    value = densely(t, call["self"])
    dims = tuple(dim % value.rank for dim in call["dims"])
    return t.plain(t.emit("flip", value.tensor, dims=dims, sizes=tuple(value.shape[dim] for dim in dims)))


def _roll(t: Translation, call: TracedCall) -> Value:
    """Put the last elements of a dimension before the others."""
    value: Value = call["self"]
    if not call["dims"]:
        raise UnsupportedError("roll of all elements in a row: expected dims")
    for shift, dim in zip(call["shifts"], call["dims"], strict=True):
        at, extent = dim % value.rank, value.shape[dim]
        if cut := -shift % extent:
            value = joined(t, [sliced(t, value, at, range(*ends)) for ends in ((cut, extent), (0, cut))], at)
    return value


def _repeat(t: Translation, call: TracedCall) -> Value:
    """Repeat every dimension as a whole, by a dimension before it."""
    value, repeats = call["self"], call["repeats"]
    missing = len(repeats) - value.rank
    dims = [group for own in ((),) * missing + value.dims for group in ((), own)]
    shape = [extent for pair in zip(repeats, (1,) * missing + value.shape, strict=True) for extent in pair]
    return view(t, Value(value.tensor, tuple(dims), tuple(shape)), call.shapes[0])


CONVERTERS: dict[str, Converter] = {
    **dict.fromkeys(("view", "reshape", "flatten", "unflatten", "squeeze", "_unsafe_view", "squeeze_"), _view),
    **dict.fromkeys(("transpose", "t"), _transpose),
    "numpy_T": lambda t, call: permuted(call["self"], range(call["self"].rank)[::-1]),
    "permute": _permute,
    "movedim": _moved,
    "unsqueeze": _unsqueeze,
    "expand": _expand,
    "expand_as": _expand,
    "broadcast_tensors": _broadcast,
    "select": _select,
    "slice": _slice,
    "split": _split,
    "split_with_sizes": _split,
    "chunk": _split,
    "unbind": _unbind,
    "cat": _cat,
    "stack": _stack,
    "pad": _pad,
    "constant_pad_nd": _pad,
    "flip": _flip,
    "roll": _roll,
    "repeat": _repeat,
}
