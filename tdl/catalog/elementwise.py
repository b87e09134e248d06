"""Element-wise operators: each output element depends on the operands' elements at the same coordinates."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from tdl.errors import TDLError
from tdl.expr import Expr
from tdl.language import Body, Lambda, Operand, power, sqrt, tensor, trunc
from tdl.operator import Operator, op

Dims = tuple[int, ...] | None


def pointwise(function: Callable[..., Any]) -> Operator:
    """Return the operator that applies a function to elements. Operands of rank 0 are broadcast."""
    return op(category="elementwise")(of_elements(function))


def of_elements(function: Callable[..., Any]) -> Callable[..., Body]:
    """Return the description that applies a function to elements."""

    @wraps(function)
    def description(*operands: Operand, **attributes: Any) -> Body:
        return lambda *i: function(*(x[i] if x.rank else x[()] for x in operands), **attributes)

    return description


def of_broadcast_elements(function: Callable[..., Any]) -> Callable[..., Lambda]:
    """Return a description that broadcasts the last two operands, a and b, as `spread` says, and no others."""

    def description(*operands: Operand, dims: Dims = None, a_dims: Dims = None) -> Lambda:
        *full, a, b = operands
        rank = full[0].rank if full else broadcast_rank(a.rank, b.rank, dims, a_dims)
        return tensor(lambda *i: function(*(x[i] for x in full), a[spread(i, a_dims)], b[spread(i, dims)]), rank=rank)

    return description


def spread(i: tuple[Expr, ...], dims: Dims) -> tuple[Expr, ...]:
    """Return the coordinates at which to read an operand whose dimension j is the result's dimension dims[j].

    If `dims` is None, the operand has all dimensions of the result.
    """
    return i if dims is None else tuple(i[dim] for dim in dims)


def broadcast_rank(a_rank: int, b_rank: int, dims: Dims, a_dims: Dims) -> int:
    """Return the rank of the result of two broadcast operands. Raises TDLError if a dimension belongs to neither."""
    if a_dims is None or dims is None:
        return a_rank if a_dims is None else b_rank
    rank = 1 + max((*a_dims, *dims), default=-1)
    if {*a_dims, *dims} != set(range(rank)):
        raise TDLError(f"dims {dims} and a_dims {a_dims} leave out a dimension of the result")
    return rank


@pointwise
def add_n(*tensors: Expr) -> Expr:
    return total(*tensors)


@pointwise
def cast(x: Expr, *, dtype: str) -> Expr:
    return x if "float" in dtype else x != 0 if dtype == "bool" else trunc(x)


@pointwise
def sgd(w: Expr, grad: Expr, *, lr: float) -> Expr:
    return w - lr * grad


@pointwise
def sgd_momentum(w: Expr, grad: Expr, velocity: Expr, *, lr: float, momentum: float) -> tuple[Expr, Expr]:
    moved = momentum * velocity + grad
    return w - lr * moved, moved


@pointwise
def adam(
    w: Expr, grad: Expr, m: Expr, v: Expr, t: Expr, *, lr: float, beta1: float, beta2: float, eps: float
) -> tuple[Expr, Expr, Expr]:
    mean, square = beta1 * m + (1 - beta1) * grad, beta2 * v + (1 - beta2) * grad * grad
    rate, root = lr / (1 - power(beta1, t)), sqrt(square / (1 - power(beta2, t)))
    return w - rate * mean / (root + eps), mean, square


@pointwise
def adamw(
    w: Expr, grad: Expr, m: Expr, v: Expr, t: Expr, *, lr: float, beta1: float, beta2: float, eps: float, decay: float
) -> tuple[Expr, Expr, Expr]:
    mean, square = beta1 * m + (1 - beta1) * grad, beta2 * v + (1 - beta2) * grad * grad
    rate, root = lr / (1 - power(beta1, t)), sqrt(square / (1 - power(beta2, t)))
    return w * (1 - lr * decay) - rate * mean / (root + eps), mean, square


@pointwise
def rmsprop(w: Expr, grad: Expr, v: Expr, *, lr: float, alpha: float, eps: float) -> tuple[Expr, Expr]:
    square = alpha * v + (1 - alpha) * grad * grad
    return w - lr * grad / (sqrt(square) + eps), square


@pointwise
def adagrad(w: Expr, grad: Expr, total: Expr, *, lr: float, eps: float) -> tuple[Expr, Expr]:
    square = total + grad * grad
    return w - lr * grad / (sqrt(square) + eps), square


def total(*terms: Expr) -> Expr:
    """Return the sum of any number of terms, as a balanced tree."""
    half = len(terms) // 2
    return total(*terms[:half]) + total(*terms[half:]) if half else terms[0]
