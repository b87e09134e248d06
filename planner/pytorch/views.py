"""Values brought into the form that an operator of the catalog needs: laid anew, merged, cut, aligned, viewed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from string import ascii_letters

from planner.errors import GraphError
from planner.graph.build import ONES, ZEROS
from planner.graph.ir import Value as Attribute
from planner.pytorch.axes import Value
from planner.pytorch.translation import Group, Translation


def regrouped(t: Translation, value: Value, target: Sequence[Group]) -> Value:
    """Lay a tensor's axes anew, each group of axes one axis; the result has a dimension an axis.

    Axes of one element may be left out.
    """
    lengths = t.builder.shape(value.tensor)
    kept = [axis for group in target for axis in group]
    left = [axis for axis in range(len(lengths)) if axis not in kept]
    if any(lengths[axis] != 1 for axis in left):
        raise GraphError(f"{t.place}: a tensor of shape {lengths} cannot be laid as {tuple(target)}")
    if [list(group) for group in target] == [[axis] for axis in range(len(lengths))]:
        return Value(value.tensor, tuple((axis,) for axis in range(len(lengths))), lengths)
    letter = {axis: ascii_letters[axis] for axis in range(len(lengths))}
    source = tuple((letter[axis],) for axis in range(len(lengths)))
    ends = [tuple(letter[axis] for axis in group) for group in target]
    # Axes of one element that are left out go along with a neighbour.
    extra = tuple(letter[axis] for axis in left)
    if ends:
        ends[-1] = (*ends[-1], *extra)
    elif extra:
        return _scalar(t, value)
    found = t.emit(
        "reshape",
        value.tensor,
        source=source,
        target=tuple(ends),
        extents={letter[axis]: lengths[axis] for axis in range(len(lengths))},
    )
    for place, group in enumerate(target):
        if len(group) == 1:
            t.axes.unite((found, place), (value.tensor, group[0]))
    shape = t.builder.shape(found)
    return Value(found, tuple((axis,) for axis in range(len(shape))), shape)


def _scalar(t: Translation, value: Value) -> Value:
    """Take a tensor of one element for a scalar."""
    found = t.emit("sum", value.tensor, dims=tuple(range(len(t.builder.shape(value.tensor)))))
    return Value(found, (), ())


def dense(t: Translation, value: Value) -> str:
    """Return a tensor of exactly the value's shape."""
    present = [dim for dim in range(value.rank) if value.dims[dim]]
    laid = regrouped(t, value, [value.dims[dim] for dim in present])
    if len(present) == value.rank:
        return laid.tensor
    made = t.builder.tensors[laid.tensor]
    if made.init in (ZEROS, ONES) and not made.shape:
        # Data of that content can lie in any way, what is spread from one element has no batch.
        return t.builder.input(t._name(made.init.kind), value.shape, made.init)
    absent = tuple(dim for dim in range(value.rank) if not value.dims[dim])
    extents = {f"e{number}": value.shape[dim] for number, dim in enumerate(absent)}
    return t.emit("expand", laid.tensor, dims=absent, extents=extents)


def densely(t: Translation, value: Value) -> Value:
    """Return the value as a tensor of its shape."""
    return t.plain(dense(t, value))


def squeezed(t: Translation, value: Value) -> Value:
    """Return the value without axes of one element: its dimensions are repeated ones."""
    lengths = t.builder.shape(value.tensor)
    if 1 not in lengths:
        return value
    kept = [axis for axis in range(len(lengths)) if lengths[axis] != 1]
    laid = regrouped(t, value, [(axis,) for axis in kept])
    place = {axis: number for number, axis in enumerate(kept)}
    dims = tuple(tuple(place[axis] for axis in group if axis in place) for group in value.dims)
    return Value(laid.tensor, dims, value.shape)


def merged(t: Translation, value: Value, dim: int) -> Value:
    """Return the value with one axis for a dimension."""
    group = value.dims[dim]
    if len(group) <= 1:
        return value
    lengths = t.builder.shape(value.tensor)
    rest = [axis for axis in range(len(lengths)) if axis not in group]
    at = sum(axis < min(group) for axis in rest)
    order: list[Group] = [(axis,) for axis in rest]
    order.insert(at, group)
    laid = regrouped(t, value, order)
    place = {axis: number for number, own in enumerate(order) for axis in own}
    dims = tuple(tuple(dict.fromkeys(place[axis] for axis in own)) for own in value.dims)
    return Value(laid.tensor, dims, value.shape)


def cut(t: Translation, value: Value, dim: int, lengths: Sequence[int]) -> Value:
    """Return the value with axes of these lengths in a dimension, and ask for them at the source."""
    group, own = value.dims[dim], list(t.extent(value, value.dims[dim]))
    if own == list(lengths):
        return value
    if not group:
        raise GraphError(f"{t.place}: cannot cut a repeated dimension")
    fine = _refined(own, list(lengths))
    if fine is None:
        return cut(t, merged(t, value, dim), dim, lengths)
    value = _split(t, value, dim, own, fine)
    if fine == list(lengths):
        return value
    return _joined(t, value, dim, fine, list(lengths))


def _split(t: Translation, value: Value, dim: int, own: list[int], fine: list[int]) -> Value:
    """Cut a dimension's axes until they have the lengths `fine`."""
    if own == fine:
        return value
    at, pieces = 0, []
    for length in own:
        piece: list[int] = []
        while prod(piece) < length or (length == 1 and not piece):
            piece.append(fine[at])
            at += 1
        pieces.append(piece)
    lengths = t.builder.shape(value.tensor)
    of_axis = dict(zip(value.dims[dim], pieces, strict=True))
    source, target, groups, number = list[tuple[str, ...]](), list[tuple[str, ...]](), dict[int, Group](), 0
    extents: dict[str, Attribute] = {}
    for axis, length in enumerate(lengths):
        piece = of_axis.get(axis, [length])
        names = tuple(ascii_letters[number + offset] for offset in range(len(piece)))
        source.append(names)
        target += [(name,) for name in names]
        extents.update(zip(names, piece, strict=True))
        groups[axis] = tuple(range(number, number + len(piece)))
        number += len(piece)
        for place in range(1, len(piece)):
            t.axes.want((value.tensor, axis), prod(piece[place:]))
    found = t.emit("reshape", value.tensor, source=tuple(source), target=tuple(target), extents=extents)
    for axis, group in groups.items():
        if len(group) == 1:
            t.axes.unite((found, group[0]), (value.tensor, axis))
    dims = tuple(tuple(new for axis in own_group for new in groups[axis]) for own_group in value.dims)
    return Value(found, dims, value.shape)


def _joined(t: Translation, value: Value, dim: int, fine: list[int], lengths: list[int]) -> Value:
    """Join neighbouring axes of a dimension until they have these lengths."""
    group, at, joined = value.dims[dim], 0, []
    for length in lengths:
        start, product = at, 1
        while product < length or at == start:
            product *= fine[at]
            at += 1
        joined.append(group[start:at])
    every = len(t.builder.shape(value.tensor))
    first = {own[0]: own for own in joined}
    inner = {axis for own in joined for axis in own[1:]}
    order = [first.get(axis, (axis,)) for axis in range(every) if axis not in inner]
    laid = regrouped(t, value, order)
    place = {axis: number for number, own in enumerate(order) for axis in own}
    dims = tuple(tuple(dict.fromkeys(place[axis] for axis in own)) for own in value.dims)
    return Value(laid.tensor, dims, value.shape)


def aligned(t: Translation, one: Value, one_dim: int, other: Value, other_dim: int) -> tuple[Value, Value]:
    """Return two values whose dimensions have axes of the same lengths."""
    lengths = [list(t.extent(one, one.dims[one_dim])), list(t.extent(other, other.dims[other_dim]))]
    if lengths[0] == lengths[1]:
        return one, other
    if 1 in (*lengths[0], *lengths[1]):
        return aligned(t, squeezed(t, one), one_dim, squeezed(t, other), other_dim)
    fine = _refined(*lengths)
    if fine is None:
        return merged(t, one, one_dim), merged(t, other, other_dim)
    return cut(t, one, one_dim, fine), cut(t, other, other_dim, fine)


def view(t: Translation, value: Value, shape: Sequence[int]) -> Value:
    """Return the value with another shape of as many elements, in row-major order."""
    shape = tuple(shape)
    if shape == value.shape:
        return value
    if any(not group and extent != 1 for group, extent in zip(value.dims, value.shape, strict=True)):
        value = densely(t, value)
    flat = tuple(axis for group in value.dims for axis in group)
    whole = Value(value.tensor, (flat,), (prod(value.shape),))
    own = list(t.extent(whole, flat))
    fine = _refined([length for length in own if length != 1], [extent for extent in shape if extent != 1])
    if fine is None:
        raise GraphError(
            f"{t.place}: a view of shape {value.shape} as {shape} mixes elements of dimensions that do not "
            "divide each other; no split of them is the same before and after"
        )
    fine = _with_ones(own, fine)
    whole = _split(t, whole, 0, own, fine)
    remaining = [(axis, length) for axis, length in zip(whole.dims[0], fine, strict=True)]
    dims: list[Group] = []
    for extent in shape:
        group: list[int] = []
        product = 1
        while product < extent:
            axis, length = remaining.pop(0)
            group.append(axis)
            product *= length
        dims.append(tuple(group))
    ones = [axis for axis, _ in remaining] + [
        axis for group in dims for axis in group if t.builder.shape(whole.tensor)[axis] == 1
    ]
    found = Value(whole.tensor, tuple(dims), shape)
    return _without(t, found, set(ones)) if ones else found


def _without(t: Translation, value: Value, ones: set[int]) -> Value:
    """Drop axes of one element."""
    lengths = t.builder.shape(value.tensor)
    kept = [axis for axis in range(len(lengths)) if axis not in ones]
    laid = regrouped(t, value, [(axis,) for axis in kept])
    place = {axis: number for number, axis in enumerate(kept)}
    dims = tuple(tuple(place[axis] for axis in group if axis in place) for group in value.dims)
    return Value(laid.tensor, dims, value.shape)


def _refined(one: list[int], other: list[int]) -> list[int] | None:
    """Return the coarsest lengths of which both are groupings; None where bounds cross."""
    bounds = sorted({prod(lengths[at:]) for lengths in (one, other) for at in range(len(lengths))} | {1}, reverse=True)
    if any(large % small for large, small in pairwise(bounds)):
        return None
    return [large // small for large, small in pairwise(bounds)]


def _with_ones(own: list[int], fine: list[int]) -> list[int]:
    """Put lengths of 1 back where they stand among the lengths that `fine` refines."""
    found, rest = [], list(fine)
    for length in own:
        if length == 1:
            found.append(1)
            continue
        product = 1
        while product < length:
            product *= rest[0]
            found.append(rest.pop(0))
    return found
