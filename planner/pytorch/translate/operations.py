"""Building blocks of operators: element-wise functions with broadcasting, reductions, contractions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from string import ascii_letters

from planner.graph.ir import Value as Attribute
from planner.graph.training import iteration
from planner.pytorch.rewrite.axes import Value
from planner.pytorch.rewrite.views import aligned, densely, squeezed
from planner.pytorch.translate.translation import Translation


def as_dtype(t: Translation, value: Value, dtype: str) -> Value:
    """Return the value in another dtype."""
    return value if t.dtype(value) == dtype else unary(t, "cast", value, dtype=dtype)


COMMUTING = ("add", "mul", "maximum", "minimum")


def unary(t: Translation, op: str, x: Value, /, **attrs: Attribute) -> Value:
    """Apply a unary element-wise operator."""
    return t.alike(t.emit(op, x.tensor, **attrs), x)


def dropped(t: Translation, x: Value, p: float) -> Value:
    """Drop elements with probability p, by masks of the graph's own generator."""
    if not p:
        return x
    if p == 1:
        return unary(t, "scale", x, factor=0.0)
    x = densely(t, x)
    # Elements are identified by index within a node; the node count is a seed that no other node has.
    return t.alike(t.emit("dropout", x.tensor, iteration(t.builder), p=p, seed=len(t.builder.nodes)), x)


def binary(t: Translation, op: str, left: Value, right: Value, /, **attrs: Attribute) -> Value:
    """Apply an element-wise operator to two operands, with PyTorch's broadcasting."""
    rank = max(left.rank, right.rank)
    left, right = (padded(value, rank) for value in (left, right))
    for dim in range(rank):
        if left.shape[dim] != right.shape[dim]:
            left, right = (squeezed(t, v) if v.shape[dim] == 1 and v.dims[dim] else v for v in (left, right))
    for dim in range(rank):
        if left.shape[dim] == right.shape[dim] and left.dims[dim] and right.dims[dim]:
            left, right = aligned(t, left, dim, right, dim)
    left, right = _unit_axes_agree(t, left, right)
    if not _covers(left, right):
        if op in COMMUTING and _covers(right, left):
            return binary(t, op, right, left, **attrs)
        left = _spread(t, left, right)
    axis_of = {
        other: axis
        for dim in range(rank)
        for axis, other in zip(left.dims[dim], right.dims[dim], strict=bool(right.dims[dim]))
    }
    dims = tuple(axis_of[axis] for axis in range(len(axis_of)))
    if dims != tuple(range(t.rank(left.tensor))):
        attrs["dims"] = dims
    result = t.alike(t.emit(op, left.tensor, right.tensor, **attrs), left)
    for other, axis in axis_of.items():
        t.axes.unite((right.tensor, other), (result.tensor, axis))
    return Value(result.tensor, left.dims, _broadcast(left, right))


def _broadcast(left: Value, right: Value) -> tuple[int, ...]:
    return tuple(max(pair) for pair in zip(left.shape, right.shape, strict=True))


def _unit_axes_agree(t: Translation, left: Value, right: Value) -> tuple[Value, Value]:
    """Drop axes of length 1 that only one of two values has."""
    for dim in range(left.rank):
        if left.shape[dim] == right.shape[dim] == 1 and bool(left.dims[dim]) != bool(right.dims[dim]):
            return squeezed(t, left), squeezed(t, right)
    return left, right


def _spread(t: Translation, value: Value, other: Value) -> Value:
    """Repeat a value along the dimensions that only the other has."""
    rank = t.rank(value.tensor)
    dims, lengths = list(value.dims), list[int]()
    for dim in range(value.rank):
        if not value.dims[dim] and other.dims[dim]:
            extents = t.extent(other, other.dims[dim])
            dims[dim] = tuple(range(rank + len(lengths), rank + len(lengths) + len(extents)))
            lengths += extents
    tensor = t.emit(
        "expand",
        value.tensor,
        dims=tuple(range(rank, rank + len(lengths))),
        extents={f"e{number}": length for number, length in enumerate(lengths)},
    )
    t.same_axes(tensor, value.tensor)
    return Value(tensor, tuple(dims), _broadcast(value, other))


def reduce(t: Translation, op: str, value: Value, over: Sequence[int], keep: bool = False, **attrs: Attribute) -> Value:
    """Reduce dimensions, all if none are given."""
    over = tuple(dim % value.rank for dim in over) if over else tuple(range(value.rank))
    value = present(t, value, over)
    gone = {axis for dim in over for axis in value.dims[dim]}
    tensor = t.emit(op, value.tensor, dims=tuple(sorted(gone)), **attrs) if gone else value.tensor
    kept = [axis for axis in range(t.rank(value.tensor)) if axis not in gone]
    place = {axis: number for number, axis in enumerate(kept)}
    for axis, number in place.items():
        t.axes.unite((tensor, number), (value.tensor, axis))
    dims = [() if dim in over else tuple(place[axis] for axis in group) for dim, group in enumerate(value.dims)]
    shape = [1 if dim in over else extent for dim, extent in enumerate(value.shape)]
    result = Value(tensor, tuple(dims), tuple(shape))
    return result if keep else result.permuted([dim for dim in range(value.rank) if dim not in over])


Pairs = Sequence[tuple[int, int]]


def contract(t: Translation, left: Value, right: Value, summed: Pairs, shared: Pairs = ()) -> Value:
    """Multiply two values and sum over pairs of dimensions; `shared` dimensions of both are kept once.

    The result has the shared dimensions, then the first value's others, then the second's.
    """
    left = present(t, left, [a for a, _ in summed])
    right = present(t, right, [b for _, b in summed])
    for a, b in (*summed, *shared):
        if left.dims[a] and right.dims[b]:
            left, right = aligned(t, left, a, right, b)
    letters = iter(ascii_letters)
    rows = {axis: next(letters) for axis in range(t.rank(left.tensor))}
    columns: dict[int, str] = {}
    for a, b in (*summed, *shared):
        if left.dims[a] and right.dims[b]:
            columns.update({other: rows[axis] for axis, other in zip(left.dims[a], right.dims[b], strict=True)})
    columns |= {axis: next(letters) for axis in range(t.rank(right.tensor)) if axis not in columns}
    firsts, seconds = ({pair[side] for pair in (*summed, *shared)} for side in (0, 1))
    result = [
        (_named(left, rows, a) or _named(right, columns, b), max(left.shape[a], right.shape[b])) for a, b in shared
    ]
    result += [(_named(left, rows, dim), left.shape[dim]) for dim in range(left.rank) if dim not in firsts]
    result += [(_named(right, columns, dim), right.shape[dim]) for dim in range(right.rank) if dim not in seconds]
    output = "".join(names for names, _ in result)
    first, second = ("".join(names[axis] for axis in sorted(names)) for names in (rows, columns))
    tensor = _product(t, left.tensor, right.tensor, (first, second, output))
    _unite_letters(t, (left.tensor, first), (tensor, output))
    _unite_letters(t, (right.tensor, second), (tensor, output))
    _unite_letters(t, (right.tensor, second), (left.tensor, first))
    dims = tuple(tuple(map(output.index, names)) for names, _ in result)
    return Value(tensor, dims, tuple(extent for _, extent in result))


def _unite_letters(t: Translation, tensor: tuple[str, str], other: tuple[str, str]) -> None:
    """Record that axes of two tensors are the same where their letters are equal."""
    for axis, letter in enumerate(tensor[1]):
        if letter in other[1]:
            t.axes.unite((tensor[0], axis), (other[0], other[1].index(letter)))


def _named(value: Value, names: Mapping[int, str], dim: int) -> str:
    """Return the letters of a dimension's axes."""
    return "".join(names[axis] for axis in value.dims[dim])


def present(t: Translation, value: Value, dims: Iterable[int]) -> Value:
    """Return the value with axes for dimensions that are repeated."""
    return densely(t, value) if any(not value.dims[dim] and value.shape[dim] != 1 for dim in dims) else value


def _product(t: Translation, left: str, right: str, letters: tuple[str, str, str]) -> str:
    """Multiply two matrices with `mm`, and other tensors with `einsum`."""
    rows, columns, output = letters
    is_matrices = len(rows) == len(columns) == len(output) == 2 and len({*rows, *columns}) == 3
    if not is_matrices or output[0] not in rows or output[1] not in columns:
        return t.emit("einsum", left, right, equation=f"{rows},{columns}->{output}")
    transposed = {"transpose_a": rows[0] != output[0], "transpose_b": columns[1] != output[1]}
    return t.emit("mm", left, right, **{name: True for name, is_so in transposed.items() if is_so})


def padded(value: Value, rank: int) -> Value:
    """Return the value with repeated dimensions before its own."""
    missing = rank - value.rank
    return Value(value.tensor, ((),) * missing + value.dims, (1,) * missing + value.shape)


def _covers(value: Value, other: Value) -> bool:
    """Return True if a value has every axis that the other has."""
    return all(group or not others for group, others in zip(value.dims, other.dims, strict=True))
