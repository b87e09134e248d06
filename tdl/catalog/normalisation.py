"""Batch normalisation of NCHW images, with the statistics as operands; their mean is `mean(dims=(0, 2, 3))`."""

from __future__ import annotations

from tdl.expr import Expr
from tdl.language import Body, Operand, Sum, sqrt
from tdl.operator import op


@op(category="reduction")
def batch_norm_var(input: Operand, mean: Operand, *, count: float) -> Body:
    return lambda c: Sum(lambda n, y, x: (input[n, c, y, x] - mean[c]) ** 2) / count


@op(category="elementwise")
def batch_norm(input: Operand, mean: Operand, var: Operand, weight: Operand, bias: Operand, *, eps: float) -> Body:
    return lambda n, c, y, x: (input[n, c, y, x] - mean[c]) * (weight[c] / sqrt(var[c] + eps)) + bias[c]


@op(category="reduction")
def batch_norm_backward_reduce(grad: Operand, input: Operand, mean: Operand, var: Operand, *, eps: float) -> Body:
    return lambda c: (
        Sum(lambda n, y, x: grad[n, c, y, x] * (input[n, c, y, x] - mean[c])) / sqrt(var[c] + eps),
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
        deviation = 1 / sqrt(var[c] + eps)
        normal = (input[n, c, y, x] - mean[c]) * deviation
        through_statistics = (grad_bias[c] + normal * grad_weight[c]) / count
        return weight[c] * deviation * (grad[n, c, y, x] - through_statistics)

    return output
