"""Softmax along one dimension as several operators, so that each can be split along every dimension.

`maximum` is `amax(dims=(dim,))` of x, `total` is `sum_exp`; gradients are total derivatives through both. `inner` is
`softmax_backward_sum` for softmax, and `sum(dims=(dim,))` of the gradient for log-softmax.
"""

from __future__ import annotations

from tdl.expr import Expr
from tdl.language import Body, Lambda, Operand, Sum, exp, log, tensor
from tdl.operator import op


def rows(i: tuple[Expr, ...], dim: int) -> tuple[Expr, ...]:
    """Return the coordinates without that of dimension `dim`."""
    dim %= len(i)
    return i[:dim] + i[dim + 1 :]


def along(rank: int, dim: int) -> tuple[int, list[str]]:
    """Return the dimension's non-negative number, and names for the other dimensions: b, b1, b2, ..."""
    return dim % rank, ["b", *(f"b{number}" for number in range(1, rank))][: rank - 1]


@op(category="reduction")
def sum_exp(x: Operand, maximum: Operand, *, dim: int = -1) -> Lambda:
    at, names = along(x.rank, dim)
    return tensor(lambda *b: Sum(lambda c: exp(x[*b[:at], c, *b[at:]] - maximum[b])), names=names)


@op(category="elementwise", parts=("maximum", "total"))
def softmax(x: Operand, maximum: Operand, total: Operand, *, dim: int = -1) -> Body:
    return lambda *i: exp(x[i] - maximum[rows(i, dim)]) / total[rows(i, dim)]


@op(category="reduction")
def softmax_backward_sum(grad: Operand, result: Operand, *, dim: int = -1) -> Lambda:
    at, names = along(grad.rank, dim)
    return tensor(lambda *b: Sum(lambda c: grad[*b[:at], c, *b[at:]] * result[*b[:at], c, *b[at:]]), names=names)


@op(category="elementwise")
def softmax_backward(grad: Operand, result: Operand, inner: Operand, *, dim: int = -1) -> Body:
    return lambda *i: result[i] * (grad[i] - inner[rows(i, dim)])


@op(category="elementwise", parts=("maximum", "total"))
def log_softmax(x: Operand, maximum: Operand, total: Operand, *, dim: int = -1) -> Body:
    return lambda *i: x[i] - (maximum[rows(i, dim)] + log(total[rows(i, dim)]))


@op(category="elementwise")
def log_softmax_backward(grad: Operand, result: Operand, inner: Operand, *, dim: int = -1) -> Body:
    return lambda *i: grad[i] - exp(result[i]) * inner[rows(i, dim)]
