"""Operators that only move elements."""

from __future__ import annotations

from itertools import chain

from tdl.errors import TDLError
from tdl.expr import Expr
from tdl.language import Body, Lambda, Operand, Placed, at, tensor, where
from tdl.operator import op

Grouping = tuple[tuple[str, ...], ...]


@op
def reshape(x: Operand, *, source: Grouping, target: Grouping) -> Lambda:
    names = tuple(chain.from_iterable(target))
    if sorted(names) != sorted(chain.from_iterable(source)):
        raise TDLError(f"source {source} and target {target} are not groupings of the same variables")

    def placed(*v: Expr) -> Placed:
        digit = dict(zip(names, v, strict=True))
        read, write = (tuple(tuple(digit[name] for name in group) for group in side) for side in (source, target))
        return at(write, x[read])

    return tensor(placed, names=names)


@op
def unbind(x: Operand, *, dim: int, n: int) -> Lambda:
    return tensor(lambda *i: tuple(x[*i[:dim], k, *i[dim:]] for k in range(n)), rank=x.rank - 1)


@op
def stack(*tensors: Operand, dim: int) -> Body:
    n = len(tensors)
    return lambda *i, s=n: at((*i[:dim], s, *i[dim:]), _choose(s, 0, [x[i] for x in tensors]))


def _choose(s: Expr, first: int, elements: list[Expr]) -> Expr:
    """Element number s - first, as a balanced tree of selections."""
    half = len(elements) // 2
    if not half:
        return elements[0]
    return where(s < first + half, _choose(s, first, elements[:half]), _choose(s, first + half, elements[half:]))
