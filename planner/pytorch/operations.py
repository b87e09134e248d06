"""What operators are made of: element-wise functions with broadcasting, reductions, contractions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from string import ascii_letters

from planner.graph.dropout import iteration
from planner.graph.ir import Value as Attribute
from planner.pytorch.axes import Value
from planner.pytorch.translation import Translation
from planner.pytorch.views import aligned, densely, squeezed


def as_dtype(t: Translation, value: Value, dtype: str) -> Value:
    """Return the value in another dtype."""
    return value if t.dtype(value) == dtype else unary(t, "cast", value, dtype=dtype)


COMMUTING = ("add", "mul", "maximum", "minimum")


def unary(t: Translation, op: str, x: Value, /, **attrs: Attribute) -> Value:
    """Apply an element-wise operator of one operand."""
    return t.alike(t.emit(op, x.tensor, **attrs), x)


def dropped(t: Translation, x: Value, p: float) -> Value:
    """Drop elements with probability p, by masks of the graph's own."""
    if not p:
        return x
    x = densely(t, x)
    # Every element of a tensor has one of its own; the number of nodes so far is a seed that no other node has.
    return t.alike(t.emit("dropout", x.tensor, iteration(t.builder), p=p, seed=len(t.builder.nodes)), x)


def binary(t: Translation, op: str, one: Value, other: Value, /, **attrs: Attribute) -> Value:
    """Apply an element-wise operator of two operands that are broadcast as in PyTorch."""
    rank = max(one.rank, other.rank)
    one, other = (_padded(value, rank) for value in (one, other))
    for dim in range(rank):
        if one.shape[dim] != other.shape[dim]:
            one = squeezed(t, one) if one.shape[dim] == 1 and one.dims[dim] else one
            other = squeezed(t, other) if other.shape[dim] == 1 and other.dims[dim] else other
        elif one.dims[dim] and other.dims[dim]:
            one, other = aligned(t, one, dim, other, dim)
    one, other = _unit_axes_agree(t, one, other)
    if not _covers(one, other):
        if op in COMMUTING and _covers(other, one):
            return binary(t, op, other, one, **attrs)
        one = _spread(t, one, other)
    axis_of = {
        theirs: own
        for dim in range(rank)
        for own, theirs in zip(one.dims[dim], other.dims[dim], strict=bool(other.dims[dim]))
    }
    dims = tuple(axis_of[axis] for axis in range(len(axis_of)))
    if dims != tuple(range(len(t.builder.shape(one.tensor)))):
        attrs["dims"] = dims
    found = t.emit(op, one.tensor, other.tensor, **attrs)
    t.same_axes(found, one.tensor)
    for theirs, own in axis_of.items():
        t.axes.unite((other.tensor, theirs), (found, own))
    shape = tuple(max(pair) for pair in zip(one.shape, other.shape, strict=True))
    return Value(found, one.dims, shape)


def _unit_axes_agree(t: Translation, one: Value, other: Value) -> tuple[Value, Value]:
    """Drop axes of one element where only one of two values has them."""
    for dim in range(one.rank):
        if one.shape[dim] == other.shape[dim] == 1 and bool(one.dims[dim]) != bool(other.dims[dim]):
            return squeezed(t, one), squeezed(t, other)
    return one, other


def _spread(t: Translation, one: Value, other: Value) -> Value:
    """Repeat a value along the dimensions that only the other has."""
    dims, inserted = list(one.dims), list[int]()
    lengths: dict[str, Attribute] = {}
    at = len(t.builder.shape(one.tensor))
    for dim in range(one.rank):
        if not one.dims[dim] and other.dims[dim]:
            own = t.extent(other, other.dims[dim])
            dims[dim] = tuple(range(at, at + len(own)))
            for length in own:
                lengths[f"e{len(inserted)}"] = length
                inserted.append(at)
                at += 1
    found = t.emit("expand", one.tensor, dims=tuple(inserted), extents=lengths)
    for axis in range(len(t.builder.shape(one.tensor))):
        t.axes.unite((found, axis), (one.tensor, axis))
    shape = tuple(max(pair) for pair in zip(one.shape, other.shape, strict=True))
    return Value(found, tuple(dims), shape)


def reduce(t: Translation, op: str, value: Value, over: Sequence[int], keep: bool = False, **attrs: Attribute) -> Value:
    """Reduce dimensions."""
    over = tuple(dim % value.rank for dim in over) if over else tuple(range(value.rank))
    if any(not value.dims[dim] and value.shape[dim] != 1 for dim in over):
        value = densely(t, value)
    gone = {axis for dim in over for axis in value.dims[dim]}
    found = t.emit(op, value.tensor, dims=tuple(sorted(gone)), **attrs) if gone else value.tensor
    kept = [axis for axis in range(len(t.builder.shape(value.tensor))) if axis not in gone]
    place = {axis: number for number, axis in enumerate(kept)}
    for axis, number in place.items():
        t.axes.unite((found, number), (value.tensor, axis))
    dims = [() if dim in over else tuple(place[axis] for axis in group) for dim, group in enumerate(value.dims)]
    shape = [1 if dim in over else extent for dim, extent in enumerate(value.shape)]
    if not keep:
        dims = [group for dim, group in enumerate(dims) if dim not in over]
        shape = [extent for dim, extent in enumerate(shape) if dim not in over]
    return Value(found, tuple(dims), tuple(shape))


Pairs = Sequence[tuple[int, int]]


def contract(t: Translation, one: Value, other: Value, summed: Pairs, shared: Pairs = ()) -> Value:
    """Multiply two values and sum over pairs of dimensions; `shared` dimensions of both are kept once.

    The result has the shared dimensions, then the first value's others, then the second's.
    """
    one = _present(t, one, [a for a, _ in summed])
    other = _present(t, other, [b for _, b in summed])
    for a, b in (*summed, *shared):
        if one.dims[a] and other.dims[b]:
            one, other = aligned(t, one, a, other, b)
    letters = iter(ascii_letters)
    mine = {axis: next(letters) for axis in range(len(t.builder.shape(one.tensor)))}
    theirs: dict[int, str] = {}
    for a, b in (*summed, *shared):
        if one.dims[a] and other.dims[b]:
            theirs.update({there: mine[here] for here, there in zip(one.dims[a], other.dims[b], strict=True)})
    for axis in range(len(t.builder.shape(other.tensor))):
        theirs.setdefault(axis, "")
        theirs[axis] = theirs[axis] or next(letters)
    rows = [dim for dim in range(one.rank) if dim not in {a for a, _ in (*summed, *shared)}]
    columns = [dim for dim in range(other.rank) if dim not in {b for _, b in (*summed, *shared)}]
    groups = [
        tuple(mine[axis] for axis in one.dims[a]) or tuple(theirs[axis] for axis in other.dims[b]) for a, b in shared
    ]
    groups += [tuple(mine[axis] for axis in one.dims[dim]) for dim in rows]
    groups += [tuple(theirs[axis] for axis in other.dims[dim]) for dim in columns]
    shape = [max(one.shape[a], other.shape[b]) for a, b in shared]
    shape += [one.shape[dim] for dim in rows] + [other.shape[dim] for dim in columns]
    left, right = ("".join(own[axis] for axis in sorted(own)) for own in (mine, theirs))
    output = "".join(letter for group in groups for letter in group)
    found = _product(t, one.tensor, other.tensor, (left, right, output))
    for tensor, own in ((one.tensor, left), (other.tensor, right)):
        for axis, letter in enumerate(own):
            if letter in output:
                t.axes.unite((tensor, axis), (found, output.index(letter)))
    for axis, letter in enumerate(right):
        if letter in left:
            t.axes.unite((other.tensor, axis), (one.tensor, left.index(letter)))
    dims = tuple(tuple(output.index(letter) for letter in group) for group in groups)
    return Value(found, dims, tuple(shape))


def _present(t: Translation, value: Value, dims: Iterable[int]) -> Value:
    """Return the value with axes for dimensions that are repeated."""
    return densely(t, value) if any(not value.dims[d] and value.shape[d] != 1 for d in dims) else value


def _product(t: Translation, one: str, other: str, letters: tuple[str, str, str]) -> str:
    """Multiply two matrices as such, and other tensors by an equation."""
    left, right, output = letters
    is_matrices = len(left) == len(right) == len(output) == 2 and len({*left, *right}) == 3
    if is_matrices and output[0] in left and output[1] in right:
        attrs: dict[str, Attribute] = {}
        if left[0] != output[0]:
            attrs["transpose_a"] = True
        if right[1] != output[1]:
            attrs["transpose_b"] = True
        return t.emit("mm", one, other, **attrs)
    return t.emit("einsum", one, other, equation=f"{left},{right}->{output}")


def _padded(value: Value, rank: int) -> Value:
    """Return the value with repeated dimensions before its own."""
    missing = rank - value.rank
    return Value(value.tensor, ((),) * missing + value.dims, (1,) * missing + value.shape)


def _covers(one: Value, other: Value) -> bool:
    """Whether a value has every axis that the other has."""
    return all(own or not theirs for own, theirs in zip(one.dims, other.dims, strict=True))
