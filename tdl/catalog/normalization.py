"""Normalization, with the statistics as operands.

`batch_norm` is for NCHW images; their mean is `mean(dims=(0, 2, 3))`. `normalize` covers layer, group and instance
norm: mean and variance (`mean`, `var`) have the dimensions `statistics` of x, and weight and bias have the dimensions
`weights`. `rms_norm` normalizes over the last dimension, which the weight also has; `mean_square` gives each row's mean
of squares.
"""

from __future__ import annotations

from collections.abc import Callable

from tdl.catalog.elementwise import spread
from tdl.expr import Expr
from tdl.language import Body, Lambda, Operand, Sum, rsqrt, tensor
from tdl.operator import op

Dims = tuple[int, ...]


@op(category="reduction")
def batch_norm_var(input: Operand, mean: Operand, *, count: float) -> Body:
    return lambda c: Sum(lambda n, y, x: (input[n, c, y, x] - mean[c]) ** 2) / count


@op(category="elementwise", parts=("mean", "var"))
def batch_norm(input: Operand, mean: Operand, var: Operand, weight: Operand, bias: Operand, *, eps: float) -> Body:
    return lambda n, c, y, x: (input[n, c, y, x] - mean[c]) * (weight[c] * rsqrt(var[c] + eps)) + bias[c]


@op(category="reduction")
def batch_norm_backward_reduce(grad: Operand, input: Operand, mean: Operand, var: Operand, *, eps: float) -> Body:
    return lambda c: (
        Sum(lambda n, y, x: grad[n, c, y, x] * (input[n, c, y, x] - mean[c])) * rsqrt(var[c] + eps),
        Sum(lambda n, y, x: grad[n, c, y, x]),
    )


@op(category="elementwise")
def batch_norm_backward(  # noqa: PLR0917
    grad: Operand,
    input: Operand,
    mean: Operand,
    var: Operand,
    weight: Operand,
    grad_weight: Operand,
    grad_bias: Operand,
    *,
    eps: float,
    count: float,
) -> Body:
    def output(n: Expr, c: Expr, y: Expr, x: Expr) -> Expr:
        inverse = rsqrt(var[c] + eps)
        through_variance = (input[n, c, y, x] - mean[c]) * (inverse * grad_weight[c] / count)
        return (grad[n, c, y, x] - (through_variance + grad_bias[c] / count)) * (inverse * weight[c])

    return output


@op(category="elementwise", parts=("mean", "var"))
def normalize(
    x: Operand,
    mean: Operand,
    var: Operand,
    weight: Operand,
    bias: Operand,
    *,
    statistics: Dims,
    weights: Dims,
    eps: float,
) -> Body:
    def output(*i: Expr) -> Expr:
        s, w = spread(i, statistics), spread(i, weights)
        return (x[i] - mean[s]) * rsqrt(var[s] + eps) * weight[w] + bias[w]

    return output


@op(category="reduction")
def normalize_backward_weights(
    grad: Operand, x: Operand, mean: Operand, var: Operand, *, statistics: Dims, weights: Dims, eps: float
) -> Lambda:
    def normal(*i: Expr) -> Expr:
        s = spread(i, statistics)
        return grad[i] * ((x[i] - mean[s]) * rsqrt(var[s] + eps))

    return _sums(x.rank, weights, normal, lambda *i: grad[i])


@op(category="reduction")
def normalize_backward_statistics(
    grad: Operand,
    x: Operand,
    mean: Operand,
    var: Operand,
    weight: Operand,
    *,
    statistics: Dims,
    weights: Dims,
    eps: float,
) -> Lambda:
    def normal(*i: Expr) -> Expr:
        s = spread(i, statistics)
        return grad[i] * weight[spread(i, weights)] * ((x[i] - mean[s]) * rsqrt(var[s] + eps))

    return _sums(x.rank, statistics, normal, lambda *i: grad[i] * weight[spread(i, weights)])


@op(category="elementwise")
def normalize_backward(  # noqa: PLR0917
    grad: Operand,
    x: Operand,
    mean: Operand,
    var: Operand,
    weight: Operand,
    products: Operand,
    sums: Operand,
    *,
    statistics: Dims,
    weights: Dims,
    eps: float,
    count: float,
) -> Body:
    def output(*i: Expr) -> Expr:
        s = spread(i, statistics)
        inverse = rsqrt(var[s] + eps)
        through_variance = (x[i] - mean[s]) * (inverse * products[s] / count)
        return (grad[i] * weight[spread(i, weights)] - (through_variance + sums[s] / count)) * inverse

    return output


@op(category="reduction")
def mean_square(x: Operand, *, count: float) -> Lambda:
    return tensor(lambda *i: Sum(lambda c: x[*i, c] ** 2) / count, rank=x.rank - 1)


@op(category="elementwise", parts=("square",))
def rms_norm(x: Operand, square: Operand, weight: Operand, *, eps: float) -> Body:
    return lambda *i: x[i] * rsqrt(square[i[:-1]] + eps) * weight[i[-1]]


@op(category="reduction")
def rms_norm_backward_weight(grad: Operand, x: Operand, square: Operand, *, eps: float) -> Lambda:
    return _sums(x.rank, (x.rank - 1,), lambda *i: grad[i] * (x[i] * rsqrt(square[i[:-1]] + eps)))


@op(category="reduction")
def rms_norm_backward_sum(grad: Operand, x: Operand, weight: Operand) -> Lambda:
    return tensor(lambda *i: Sum(lambda c: grad[*i, c] * weight[c] * x[*i, c]), rank=x.rank - 1)


@op(category="elementwise")
def rms_norm_backward(
    grad: Operand, x: Operand, square: Operand, weight: Operand, inner: Operand, *, eps: float, count: float
) -> Body:
    def output(*i: Expr) -> Expr:
        row, inverse = i[:-1], rsqrt(square[i[:-1]] + eps)
        return (grad[i] * weight[i[-1]] - x[i] * (inverse * inverse * inner[row] / count)) * inverse

    return output


def _sums(rank: int, kept: Dims, *elements: Callable[..., Expr]) -> Lambda:
    """Return the sums of functions of all coordinates over the dimensions not in `kept` (variables r0, r1, ...)."""
    order = [*kept, *(dim for dim in range(rank) if dim not in kept)]

    def outputs(*i: Expr) -> tuple[Expr, ...]:
        def total(element: Callable[..., Expr]) -> Expr:
            def body(*r: Expr) -> Expr:
                every = (*i, *r)
                return element(*(every[order.index(dim)] for dim in range(rank)))

            return Sum(body, rank=rank - len(kept)) if rank > len(kept) else body()

        return tuple(total(element) for element in elements)

    return tensor(outputs, rank=len(kept))
