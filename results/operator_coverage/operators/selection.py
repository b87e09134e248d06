"""Data-dependent indexing as selection by value: a sum over the indexed dimension of `where(index == v, x[v], 0)`.

Nothing but affine indices is read, so the indexed dimension is found to split, with a sum.
"""

from __future__ import annotations

from tdl.expr import Expr
from tdl.language import Body, Lambda, Max, Operand, Sum, tensor, where
from tdl.operator import op


@op
def pick(x: Operand, index: Operand, *, axis: int) -> Lambda:
    return tensor(lambda *i: Sum(lambda c: where(index[i] == c, x[*i[:axis], c, *i[axis:]], 0)), rank=x.rank - 1)


@op
def sequence_mask(x: Operand, length: Operand, *, value: float = 0.0) -> Body:
    return lambda *i: where(i[0] < length[i[1]], x[i], value)


@op
def sequence_last(x: Operand, length: Operand) -> Lambda:
    return tensor(lambda *i: Sum(lambda t: where(length[i[0]] == t + 1, x[t, *i], 0)), rank=x.rank - 1)


@op
def sequence_reverse(x: Operand, length: Operand) -> Body:
    """Reverse the first `length` elements along dimension 0, keep the rest."""

    def element(*i: Expr) -> Expr:
        t, n = i[0], length[i[1]]
        return Sum(lambda s: where(where(t < n, n - 1 - t, t) == s, x[s, *i[1:]], 0))

    return element


@op
def count_sketch(x: Operand, bucket: Operand, sign: Operand, *, buckets: int) -> Body:
    return lambda b, d=buckets: Sum(lambda c: where(bucket[c] == d, sign[c] * x[b, c], 0))


@op
def scatter_last(values: Operand, index: Operand) -> Lambda:
    """Add every value at its index along a new last dimension, in place of the old."""
    return tensor(lambda *i: Sum(lambda s: where(index[*i[:-1], s] == i[-1], values[*i[:-1], s], 0)), rank=values.rank)


@op
def scatter(x: Operand, index: Operand, source: Operand, *, dim: int) -> Body:
    """`x` with source[.., s, ..] at index[.., s, ..]; of equal indices the last one's."""

    def element(*i: Expr) -> Expr:
        def at(s: Expr) -> tuple[Expr, ...]:
            return (*i[:dim], s, *i[dim + 1 :])

        last = Max(lambda s: where(index[at(s)] == i[dim], s, -1))
        return where(last < 0, x[i], Sum(lambda t: where(last == t, source[at(t)], 0)))

    return element
