"""Cases of operators that move elements, or select them by a tensor's values."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

from executor.cases import Case, Draw, Generate
from operator_verification.cases.operands import groups
from planner.graph.ir import Value

RESHAPES = (
    "b s h -> (bs) h", "(bs) h -> b s h", "n (cyx) -> n c y x", "n c y x -> n (cyx)",
    "a b (cd) -> a c b d", "(ab) c -> a (bc)",
)  # fmt: skip


def _reshape(draw: Draw) -> Case:
    source, target = (groups(side) for side in RESHAPES[draw.size(0, len(RESHAPES) - 1)].split("->"))
    extents: dict[str, Value] = {}
    shape = []
    for group in source:
        sizes = draw.sizes(len(group), 2, 4)
        # The first extent of a dimension follows from the others and the operand's shape.
        extents.update(zip(group[1:], sizes[1:], strict=True))
        shape.append(prod(sizes))
    return Case((draw.array(*shape),), {"source": source, "target": target, "extents": extents})


def _unbind(draw: Draw) -> Case:
    shape = draw.shape(1, 3)
    dim = draw.size(0, len(shape) - 1)
    return Case((draw.array(*shape),), {"dim": dim, "n": shape[dim]})


def _stack(draw: Draw) -> Case:
    shape, count = draw.shape(0, 3), draw.size(1, 4)
    return Case(tuple(draw.array(*shape) for _ in range(count)), {"dim": draw.size(0, len(shape))})


def _permute(draw: Draw) -> Case:
    shape = draw.shape()
    return Case((draw.array(*shape),), {"dims": draw.subset(len(shape), len(shape))})


def _cat(draw: Draw) -> Case:
    shape, sizes = list(draw.shape()), draw.shape(1, 4, 1, 4)
    dim = draw.size(0, len(shape) - 1)
    arrays = tuple(draw.array(*shape[:dim], size, *shape[dim + 1 :]) for size in sizes)
    return Case(arrays, {"dim": dim, "sizes": sizes})


def _select(draw: Draw, *, backward: bool) -> Case:
    shape = draw.shape()
    dim = draw.size(0, len(shape) - 1)
    attributes: dict[str, Value] = {"dim": dim, "index": draw.size(0, shape[dim] - 1)}
    if not backward:
        return Case((draw.array(*shape),), attributes)
    rest = shape[:dim] + shape[dim + 1 :]
    return Case((draw.array(*rest),), {**attributes, "extents": {f"i{dim}": shape[dim]}})


def _slice(draw: Draw, *, backward: bool) -> Case:
    shape, length = list(draw.shape()), draw.size(1, 4)
    step, start, skip = draw.size(1, 3), draw.size(0, 3), draw.size(0, 3)
    dim = draw.size(0, len(shape) - 1)
    whole = start + (length - 1) * step + 1 + skip
    attributes: dict[str, Value] = {"dim": dim, "start": start, "step": step}
    shape[dim] = length if backward else whole
    attributes |= {"extents": {f"i{dim}": whole}} if backward else {"skip": skip}
    return Case((draw.array(*shape),), attributes)


def _pad(draw: Draw) -> Case:
    shape = draw.shape()
    low, high = (tuple(draw.size(0, 2) for _ in shape) for _ in range(2))
    value = (0.0, -1.5)[draw.size(0, 1)]
    attributes: dict[str, Value] = {"low": low, "high": high, "value": value, "sizes": shape}
    padded = tuple(map(sum, zip(low, shape, high, strict=True)))
    return Case((draw.array(*shape),), attributes, shapes=(padded,))


def _flip(draw: Draw) -> Case:
    shape = draw.shape()
    dims = draw.subset(len(shape), 1)
    return Case((draw.array(*shape),), {"dims": dims, "sizes": tuple(shape[dim] for dim in dims)})


def _diagonal(draw: Draw, *, backward: bool) -> Case:
    rank, size = draw.size(2, 4), draw.size(2, 4)
    dim1, dim2 = draw.subset(rank, rank)[:2]
    shape = [size if dim in (dim1, dim2) else draw.size(2, 4) for dim in range(rank)]
    attributes: dict[str, Value] = {"dim1": dim1, "dim2": dim2}
    if not backward:
        return Case((draw.array(*shape),), attributes)
    rest = [extent for dim, extent in enumerate(shape) if dim not in (dim1, dim2)]
    return Case((draw.array(*rest, size),), {**attributes, "extents": {f"i{dim2}": size}})


def _embedding(draw: Draw, *, backward: bool) -> Case:
    (rows, width), shape = draw.sizes(2, 2, 6), draw.shape(1, 2)
    if backward:
        return Case((draw.array(*shape, width), draw.below(rows, *shape)), {"extents": {"v": rows}})
    return Case((draw.array(rows, width), draw.below(rows, *shape)), extents={"v": rows})


def _by_indices(draw: Draw, *, each: bool, backward: bool) -> Case:
    """Draw indices along a dimension: one for `each` element, or one for every slice."""
    shape = list(draw.shape())
    dim = draw.size(0, len(shape) - 1)
    chosen = [*shape[:dim], draw.size(2, 5), *shape[dim + 1 :]]
    indices = draw.below(shape[dim], *(chosen if each else chosen[dim : dim + 1]))
    if not backward:
        return Case((draw.array(*shape), indices), {"dim": dim}, extents={"v": shape[dim]})
    return Case((draw.array(*chosen), indices), {"dim": dim, "extents": {f"i{dim}": shape[dim]}})


def _index_of(draw: Draw) -> Case:
    shape = draw.shape()
    dim = draw.size(0, len(shape) - 1)
    x = draw.array(*shape)
    # Some values do not occur.
    value = x.max(axis=dim) + draw.below(2, *shape[:dim], *shape[dim + 1 :])
    return Case((x, value), {"dim": dim})


def _in_order(draw: Draw, flag: str) -> Case:
    shape = draw.shape()
    attributes: dict[str, Value] = {"dim": (dim := draw.size(0, len(shape) - 1)), flag: draw.flag()}
    if flag == "largest":
        attributes |= {"k": draw.size(1, shape[dim]), "nan_first": draw.flag()}
    return Case((draw.array(*shape),), attributes)


def _one_hot(draw: Draw) -> Case:
    depth = draw.size(2, 6)
    dtype: dict[str, Value] = {"dtype": "float64"} if draw.flag() else {}
    return Case((draw.below(depth, *draw.shape(0, 3)),), {"depth": depth, **dtype})


def _arange(draw: Draw) -> Case:
    extents: dict[str, Value] = {"i": draw.size(2, 64)}
    return Case((), {"start": draw.size(-3, 3), "step": draw.size(1, 3), "extents": extents})


PAIRS: dict[str, Callable[..., Case]] = {
    "select": _select,
    "slice": _slice,
    "diagonal": _diagonal,
    "index_select": partial(_by_indices, each=False),
    "gather": partial(_by_indices, each=True),
}
"""Operators with a gradient of their own, whose cases are drawn in the same way."""

CASES: dict[str, Generate] = {
    **{op: partial(draw, backward=False) for op, draw in PAIRS.items()},
    **{f"{op}_backward": partial(draw, backward=True) for op, draw in PAIRS.items()},
    "reshape": _reshape,
    "unbind": _unbind,
    "stack": _stack,
    "permute": _permute,
    "cat": _cat,
    "constant_pad_nd": _pad,
    "flip": _flip,
    "embedding": partial(_embedding, backward=False),
    "embedding_dense_backward": partial(_embedding, backward=True),
    "index_of": _index_of,
    "arange": _arange,
    "one_hot": _one_hot,
    "sort": partial(_in_order, flag="descending"),
    "topk": partial(_in_order, flag="largest"),
}
