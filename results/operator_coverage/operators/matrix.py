"""Products with a triangular matrix, and distances between rows."""

from __future__ import annotations

from tdl.expr import Expr
from tdl.language import Body, Lambda, Operand, Sum, absolute, log, power, tensor, where
from tdl.operator import op


@op(category="matmul")
def trmm(a: Operand, b: Operand, *, alpha: float = 1.0) -> Lambda:
    """Multiply b by the lower triangle of a."""

    def element(*i: Expr) -> Expr:
        *batch, row, column = i
        return alpha * Sum(lambda k: where(k <= row, a[*batch, row, k], 0) * b[*batch, k, column])

    return tensor(element, rank=a.rank)


@op(category="matmul")
def distance(a: Operand, b: Operand, *, p: float) -> Body:
    """Sum of |a[i, k] - b[j, k]| ** p; its p-th root is the distance between rows."""
    return lambda i, j: Sum(lambda k: power(absolute(a[i, k] - b[j, k]), p))


@op(category="reduction")
def sum_log_diagonal(a: Operand) -> Lambda:
    """Sum of the logarithms of every matrix's diagonal."""
    return tensor(lambda *i: Sum(lambda d: log(a[*i, d, d])), rank=a.rank - 2)
