"""Data-dependent indexing as selection by value: a sum over the indexed dimension of `where(index == v, x[v], 0)`.

Nothing but affine indices is read, so the indexed dimension is found to split, with a sum.
"""

from __future__ import annotations

from tdl.expr import Expr
from tdl.language import Body, Lambda, Max, Operand, Sum, maximum, tensor, where
from tdl.operator import op


@op
def pick(x: Operand, index: Operand, *, axis: int) -> Lambda:
    return tensor(lambda *i: Sum(lambda c: where(index[i] == c, x[*i[:axis], c, *i[axis:]], 0)), rank=x.rank - 1)


@op
def pick_backward(grad: Operand, index: Operand, *, axis: int) -> Lambda:
    def element(*i: Expr) -> Expr:
        kept = i[:axis] + i[axis + 1 :]
        return where(index[kept] == i[axis], grad[kept], 0)

    return tensor(element, rank=grad.rank + 1)


@op
def fill_element(x: Operand, values: Operand, index: Operand) -> Body:
    return lambda b, c: where(index[b] == c, values[b], x[b, c])


@op
def sequence_mask(x: Operand, length: Operand, *, value: float = 0.0) -> Body:
    return lambda *i: where(i[0] < length[i[1]], x[i], value)


@op
def sequence_last(x: Operand, length: Operand) -> Lambda:
    return tensor(lambda *i: Sum(lambda t: where(length[i[0]] == t + 1, x[t, *i], 0)), rank=x.rank - 1)


@op
def sequence_last_backward(grad: Operand, length: Operand) -> Lambda:
    return tensor(lambda t, *i: where(length[i[0]] == t + 1, grad[i], 0), rank=grad.rank)


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
def count_sketch_backward(grad: Operand, bucket: Operand, sign: Operand) -> Body:
    return lambda b, c: Sum(lambda d: where(bucket[c] == d, sign[c] * grad[b, d], 0))


@op
def scatter_last(values: Operand, index: Operand) -> Lambda:
    """Add every value at its index along a new last dimension, in place of the old."""
    return tensor(lambda *i: Sum(lambda s: where(index[*i[:-1], s] == i[-1], values[*i[:-1], s], 0)), rank=values.rank)


@op
def hinge_backward(x: Operand, label: Operand, *, margin: float, squared: bool) -> Body:
    """Gradient of the one-against-all hinge loss of scores x[b, c]."""

    def element(b: Expr, c: Expr) -> Expr:
        side = where(label[b] == c, -1, 1)
        short = margin + side * x[b, c]
        return side * (2 * maximum(short, 0) if squared else where(short > 0, 1, 0))

    return element


@op
def roi_max_backward(grad: Operand, winner: Operand, rois: Operand, *, size: tuple[int, int]) -> Lambda:
    """Gradient of the image; `winner` is the pixel (in row order) that was the maximum of a bin."""
    rows, columns = size

    def element(n: Expr, c: Expr, y: Expr, x: Expr) -> Expr:
        def term(r: Expr, py: Expr, px: Expr) -> Expr:
            won = (rois[r, 0] == n) & (winner[r, c, py, px] == y * columns + x)
            return where(won, grad[r, c, py, px], 0)

        return Sum(term)

    return tensor(lambda n, c, y=rows, x=columns: element(n, c, y, x))


@op
def scatter(x: Operand, index: Operand, source: Operand, *, dim: int) -> Body:
    """`x` with source[.., s, ..] at index[.., s, ..]; of equal indices the last one's."""

    def element(*i: Expr) -> Expr:
        def at(s: Expr) -> tuple[Expr, ...]:
            return (*i[:dim], s, *i[dim + 1 :])

        last = Max(lambda s: where(index[at(s)] == i[dim], s, -1))
        return where(last < 0, x[i], Sum(lambda t: where(last == t, source[at(t)], 0)))

    return element


@op
def scatter_rows(x: Operand, index: Operand, values: Operand) -> Body:
    """`x` with its row index[s] replaced by values[s]; of equal indices the last one's."""

    def element(*i: Expr) -> Expr:
        last = Max(lambda s: where(index[s] == i[0], s, -1))
        return where(last < 0, x[i], Sum(lambda t: where(last == t, values[t, *i[1:]], 0)))

    return element
