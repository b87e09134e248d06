"""Reductions along dimensions, and their gradient."""

from __future__ import annotations

from collections.abc import Callable

from tdl.errors import TDLError
from tdl.expr import Expr
from tdl.language import Lambda, Max, Operand, Sum, tensor
from tdl.operator import op

Dims = tuple[int, ...]


def _along(x: Operand, dims: Dims, element: Callable[[Callable[..., Expr]], Expr]) -> Lambda:
    """Reduce dimensions `dims` (variables r0, r1, ...), keep the others in order (i0, i1, ...)."""
    if len(set(dims)) != len(dims) or not set(dims) <= set(range(x.rank)):
        raise TDLError(f"dims {tuple(dims)} are not distinct dimensions of '{x.name}', which has {x.rank}")

    def reduced(i: tuple[Expr, ...]) -> Expr:
        def read(*r: Expr) -> Expr:
            over, kept = iter(r), iter(i)
            return x[tuple(next(over if dim in dims else kept) for dim in range(x.rank))]

        return element(read)

    return tensor(lambda *i: reduced(i), rank=x.rank - len(dims))


@op(category="reduction")
def sum_(x: Operand, *, dims: Dims) -> Lambda:
    return _along(x, dims, lambda read: Sum(read, rank=len(dims)))


@op(category="reduction")
def mean(x: Operand, *, dims: Dims, count: float) -> Lambda:
    return _along(x, dims, lambda read: Sum(read, rank=len(dims)) / count)


@op(category="reduction")
def amax(x: Operand, *, dims: Dims) -> Lambda:
    return _along(x, dims, lambda read: Max(read, rank=len(dims)))


@op(category="elementwise")
def expand(x: Operand, *, dims: Dims, factor: float = 1.0) -> Lambda:
    rank = x.rank + len(dims)
    if len(set(dims)) != len(dims) or not set(dims) <= set(range(rank)):
        raise TDLError(f"dims {tuple(dims)} are not distinct dimensions of an output that has {rank}")
    inserted, kept = sorted(dims), [dim for dim in range(rank) if dim not in dims]
    names = [f"e{inserted.index(dim)}" if dim in dims else f"i{kept.index(dim)}" for dim in range(rank)]
    return tensor(lambda *v: x[tuple(v[dim] for dim in kept)] * factor, names=names)
