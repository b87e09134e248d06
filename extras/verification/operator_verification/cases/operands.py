"""Cases of operands of one shape, from which generators of several operators are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from executor.cases import Array, Case, Draw
from planner.graph.ir import Value


def same_shape(draw: Draw, count: int, **attributes: Value) -> Case:
    """Return a case of `count` operands of one shape, with values of both signs."""
    shape = draw.shape()
    return Case(tuple(draw.array(*shape) for _ in range(count)), attributes)


def positive_shape(draw: Draw) -> Case:
    """Return a case of one positive operand."""
    return Case((draw.positive(*draw.shape()),))


def binary(draw: Draw) -> Case:
    """Return a case of two operands, the second positive."""
    return spread(draw, [draw.array(*draw.shape())], Draw.positive)


def spread(draw: Draw, arrays: Sequence[Array], last: Callable[..., Array]) -> Case:
    """Return a case of operands of one shape and a last one. Either of the last two, or both, may lack dimensions."""
    *full, a = arrays
    shape, way = a.shape, draw.size(0, 3)
    attributes: dict[str, Value] = {}
    dims = every = tuple(range(len(shape)))
    if way > 1:
        a_dims = draw.subset(len(shape))
        attributes["a_dims"] = a_dims
        dims = tuple(draw.generator.permutation([dim for dim in every if dim not in a_dims or draw.flag()]).tolist())
        a = a.transpose(*a_dims, *(dim for dim in every if dim not in a_dims))
        a = a.reshape(*(shape[dim] for dim in a_dims), -1)[..., 0]
    if way in (1, 3):
        dims = draw.subset(len(shape)) if way == 1 else dims
        attributes["dims"] = dims
    else:
        dims = every
    return Case((*full, a, last(draw, *(shape[dim] for dim in dims))), attributes)


def groups(side: str) -> tuple[tuple[str, ...], ...]:
    """Read dimensions such as "n (cyx)" as groups of variables."""
    return tuple(tuple(group.strip("()")) for group in side.split())
