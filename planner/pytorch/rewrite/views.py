"""Bring values into the form that an operator of the catalog needs: reshaped, merged, cut, aligned, viewed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from string import ascii_letters

from planner.errors import GraphError
from planner.graph.build import ONES, ZEROS
from planner.graph.ir import Value as Attribute, groups
from planner.pytorch.rewrite.axes import Value
from planner.pytorch.translate.translation import Group, Translation


def regrouped(t: Translation, value: Value, target: Sequence[Group]) -> Value:
    """Regroup a tensor's axes, each group becoming one axis; the result has one dimension per axis.

    Axes of length 1 may be omitted.
    """
    lengths = t.builder.shape(value.tensor)
    kept = {axis for group in target for axis in group}
    left = [axis for axis in range(len(lengths)) if axis not in kept]
    if any(lengths[axis] != 1 for axis in left):
        raise GraphError(f"{t.place}: a tensor of shape {lengths} cannot be regrouped as {tuple(target)}")
    if [list(group) for group in target] == [[axis] for axis in range(len(lengths))]:
        return t.plain(value.tensor)
    if not target:
        return Value(t.emit("sum", value.tensor, dims=tuple(range(len(lengths)))), (), ())  # of one element
    letters = ascii_letters[: len(lengths)]
    # Omitted axes of length 1 are merged with a neighbour.
    joined = [*target[:-1], (*target[-1], *left)]
    tensor = t.emit(
        "reshape",
        value.tensor,
        source=tuple((letter,) for letter in letters),
        target=tuple(tuple(letters[axis] for axis in group) for group in joined),
        extents=dict(zip(letters, lengths, strict=True)),
    )
    for place, group in enumerate(target):
        if len(group) == 1:
            t.axes.unite((tensor, place), (value.tensor, group[0]))
    return t.plain(tensor)


def dense(t: Translation, value: Value) -> str:
    """Return a tensor of exactly the value's shape."""
    present = [dim for dim in range(value.rank) if value.dims[dim]]
    laid = regrouped(t, value, [value.dims[dim] for dim in present])
    if len(present) == value.rank:
        return laid.tensor
    tensor = t.builder.tensors[laid.tensor]
    if tensor.init in (ZEROS, ONES) and not tensor.shape:
        # An input of that content may have any layout; one expanded from a single element would have no batch.
        return t.builder.input(t._name(tensor.init.kind), value.shape, tensor.init)
    absent = tuple(dim for dim in range(value.rank) if not value.dims[dim])
    extents = {f"e{number}": value.shape[dim] for number, dim in enumerate(absent)}
    return t.emit("expand", laid.tensor, dims=absent, extents=extents)


def densely(t: Translation, value: Value) -> Value:
    """Return the value as a tensor of its shape."""
    return t.plain(dense(t, value))


def laid_as(t: Translation, value: Value, source: Value) -> str:
    """Return a tensor of the value's elements, with the axes declared for a source of the same shape."""
    if [t.extent(value, group) for group in value.dims] == [t.extent(source, group) for group in source.dims]:
        return regrouped(t, value, [(axis,) for group in value.dims for axis in group]).tensor
    whole, lengths = dense(t, value), t.builder.shape(source.tensor)
    if lengths == value.shape:
        return whole
    letters = ascii_letters[: len(lengths)]
    tensor = t.emit(
        "reshape",
        whole,
        source=tuple(tuple(letters[axis] for axis in group) for group in source.dims),
        target=tuple((letter,) for letter in letters),
        extents=dict(zip(letters, lengths, strict=True)),
    )
    for dim, group in enumerate(source.dims):
        if len(group) == 1:
            t.axes.unite((tensor, group[0]), (whole, dim))
    return tensor


def relaid(t: Translation, value: Value, order: Sequence[Group]) -> Value:
    """Regroup a tensor's axes, each group becoming one axis; the value keeps its dimensions, without omitted axes."""
    laid = regrouped(t, value, order)
    place = {axis: number for number, group in enumerate(order) for axis in group}
    dims = (tuple(dict.fromkeys(place[axis] for axis in group if axis in place)) for group in value.dims)
    return Value(laid.tensor, tuple(dims), value.shape)


def squeezed(t: Translation, value: Value) -> Value:
    """Return the value without axes of length 1; their dimensions become repeated ones."""
    lengths = t.builder.shape(value.tensor)
    return relaid(t, value, [(axis,) for axis, n in enumerate(lengths) if n != 1]) if 1 in lengths else value


def merged(t: Translation, value: Value, dim: int) -> Value:
    """Return the value with a single axis for a dimension."""
    group = value.dims[dim]
    if len(group) <= 1:
        return value
    rest = [axis for axis in range(t.rank(value.tensor)) if axis not in group]
    order: list[Group] = [(axis,) for axis in rest]
    order.insert(sum(axis < min(group) for axis in rest), group)
    return relaid(t, value, order)


def single(t: Translation, value: Value, dim: int) -> tuple[Value, int]:
    """Return the value with a single axis for a dimension, repeated or not, and that axis."""
    value = merged(t, value if value.dims[dim] else densely(t, value), dim)
    (axis,) = value.dims[dim]
    return value, axis


def cut(t: Translation, value: Value, dim: int, lengths: Sequence[int]) -> Value:
    """Return the value with axes of these lengths in a dimension, and request them at the source."""
    group, present = value.dims[dim], list(t.extent(value, value.dims[dim]))
    if present == list(lengths):
        return value
    if not group:
        raise GraphError(f"{t.place}: cannot cut a repeated dimension")
    fine = _refined(present, list(lengths))
    if fine is None:
        return cut(t, merged(t, value, dim), dim, lengths)
    value = _split(t, value, dim, present, fine)
    if fine == list(lengths):
        return value
    return _joined(t, value, dim, fine, list(lengths))


def _split(t: Translation, value: Value, dim: int, lengths: list[int], fine: list[int]) -> Value:
    """Cut a dimension's axes, which have `lengths`, into the lengths `fine`."""
    if lengths == fine:
        return value
    pieces = dict(zip(value.dims[dim], _grouped(fine, lengths), strict=True))
    source, cuts, extents, number = list[tuple[str, ...]](), list[Group](), dict[str, Attribute](), 0
    for axis, length in enumerate(t.builder.shape(value.tensor)):
        piece = pieces.get(axis, [length])
        names = tuple(ascii_letters[number : number + len(piece)])
        source.append(names)
        extents.update(zip(names, piece, strict=True))
        cuts.append(tuple(range(number, number + len(piece))))
        number += len(piece)
        for place in range(1, len(piece)):
            t.axes.want((value.tensor, axis), prod(piece[place:]))
    target = tuple((name,) for names in source for name in names)
    tensor = t.emit("reshape", value.tensor, source=tuple(source), target=target, extents=extents)
    for axis, group in enumerate(cuts):
        if len(group) == 1:
            t.axes.unite((tensor, group[0]), (value.tensor, axis))
    dims = tuple(tuple(new for axis in group for new in cuts[axis]) for group in value.dims)
    return Value(tensor, dims, value.shape)


def _grouped(fine: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """Return fine lengths in groups, one per length that they refine.

    >>> _grouped([2, 3, 1, 4], [6, 1, 4])
    [[2, 3], [1], [4]]
    """
    return [[fine[axis] for axis in axes] for axes in groups(lengths, fine) or ()]


def _joined(t: Translation, value: Value, dim: int, fine: list[int], lengths: list[int]) -> Value:
    """Merge neighbouring axes of a dimension, which have lengths `fine`, into axes of `lengths`."""
    axes = iter(value.dims[dim])
    joined = [tuple(next(axes) for _ in group) for group in _grouped(fine, lengths)]
    first = {group[0]: group for group in joined}
    inner = {axis for group in joined for axis in group[1:]}
    return relaid(t, value, [first.get(axis, (axis,)) for axis in range(t.rank(value.tensor)) if axis not in inner])


def aligned(t: Translation, left: Value, left_dim: int, right: Value, right_dim: int) -> tuple[Value, Value]:
    """Return two values whose dimensions have axes of equal lengths."""
    lengths = [list(t.extent(left, left.dims[left_dim])), list(t.extent(right, right.dims[right_dim]))]
    if lengths[0] == lengths[1]:
        return left, right
    if 1 in (*lengths[0], *lengths[1]):
        return aligned(t, squeezed(t, left), left_dim, squeezed(t, right), right_dim)
    fine = _refined(*lengths)
    if fine is None:
        return merged(t, left, left_dim), merged(t, right, right_dim)
    return cut(t, left, left_dim, fine), cut(t, right, right_dim, fine)


def view(t: Translation, value: Value, shape: Sequence[int]) -> Value:
    """Return the value with another shape of equally many elements, in row-major order."""
    shape = tuple(shape)
    if shape == value.shape:
        return value
    if any(not group and extent != 1 for group, extent in zip(value.dims, value.shape, strict=True)):
        value = squeezed(t, value)
        value = densely(t, value.permuted([dim for dim in range(value.rank) if value.shape[dim] != 1]))
    flat = tuple(axis for group in value.dims for axis in group)
    whole = Value(value.tensor, (flat,), (prod(value.shape),))
    lengths = list(t.extent(whole, flat))
    fine = _refined([length for length in lengths if length != 1], [extent for extent in shape if extent != 1])
    if fine is None:
        return view(t, _flattened(t, whole, _common(lengths, shape)), shape)
    fine = _with_ones(lengths, fine)
    whole = _split(t, whole, 0, lengths, fine)
    remaining = list(zip(whole.dims[0], fine, strict=True))
    dims: list[Group] = []
    for extent in shape:
        group: list[int] = []
        product = 1
        while product < extent:
            axis, length = remaining.pop(0)
            group.append(axis)
            product *= length
        dims.append(tuple(group))
    ones = {axis for axis, _ in remaining}
    ones |= {axis for group in dims for axis in group if t.builder.shape(whole.tensor)[axis] == 1}
    result = Value(whole.tensor, tuple(dims), shape)
    kept = [(axis,) for axis in range(t.rank(whole.tensor)) if axis not in ones]
    return relaid(t, result, kept) if ones else result


def _common(lengths: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Return the lengths of runs whose bounds both shapes share.

    >>> _common([2, 3, 4], [2, 6, 2]), _common([4, 3, 5], [4, 5, 3])
    ([2, 12], [4, 15])
    """
    left, right = ({prod(extents[place:]) for place in range(len(extents) + 1)} for extents in (lengths, shape))
    return [large // small for large, small in pairwise(sorted(left & right, reverse=True))]


def _flattened(t: Translation, whole: Value, runs: Sequence[int]) -> Value:
    """Return a value of one dimension with an axis per run of these lengths; elements mix within a run."""
    axes = iter(whole.dims[0])
    grouped = _grouped(t.extent(whole, whole.dims[0]), runs)
    laid = regrouped(t, whole, [tuple(next(axes) for _ in group) for group in grouped])
    return Value(laid.tensor, tuple((axis,) for axis in range(len(runs))), tuple(runs))


def _refined(left: list[int], right: list[int]) -> list[int] | None:
    """Return the coarsest lengths that refine both; None if bounds cross."""
    products = {prod(lengths[place:]) for lengths in (left, right) for place in range(len(lengths))}
    bounds = sorted(products | {1}, reverse=True)
    if any(large % small for large, small in pairwise(bounds)):
        return None
    return [large // small for large, small in pairwise(bounds)]


def _with_ones(lengths: list[int], fine: list[int]) -> list[int]:
    """Reinsert lengths of 1 at their positions among the lengths that `fine` refines."""
    grouped = iter(_grouped(fine, [length for length in lengths if length != 1]))
    return [piece for length in lengths for piece in ([1] if length == 1 else next(grouped))]
