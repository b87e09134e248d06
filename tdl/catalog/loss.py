"""Softmax cross entropy in parts, so that each splits over the batch or the classes.

`maximum` is `amax(dims=(1,))` of the logits x, `total` is `sum_exp`; the gradient is the total derivative through both.
"""

from __future__ import annotations

from tdl.language import Body, Operand, Sum, exp, log, where
from tdl.operator import op


@op(category="reduction")
def sum_exp(x: Operand, maximum: Operand) -> Body:
    return lambda b: Sum(lambda c: exp(x[b, c] - maximum[b]))


@op(category="reduction")
def cross_entropy(x: Operand, maximum: Operand, total: Operand, labels: Operand, *, count: float) -> Body:
    return lambda: Sum(lambda b, c: where(labels[b] == c, log(total[b]) + maximum[b] - x[b, c], 0)) / count


@op(category="elementwise")
def cross_entropy_backward(x: Operand, maximum: Operand, total: Operand, labels: Operand, *, factor: float) -> Body:
    return lambda b, c: (exp(x[b, c] - maximum[b]) / total[b] - where(labels[b] == c, 1, 0)) * factor
