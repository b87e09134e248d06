"""Compound operators, whose statistics are operands: normalization, softmax, and losses.

`batch_norm` is for NCHW images; their mean is `mean(dims=(0, 2, 3))`. `normalize` covers layer, group and instance
norm: mean and variance (`mean`, `var`) have the dimensions `statistics` of x, and weight and bias have the dimensions
`weights`. `rms_norm` normalizes over the last dimension, which the weight also has; `mean_square` gives each row's mean
of squares.

Losses are sums over all elements divided by `count`, of a function of (x, target), or of classes with labels. A row
`name: f` of `LOSSES` defines `name(x, target, *, count)`, a scalar, and its gradients `name_backward(grad, x, target,
*, count)`, from the derivative of f. The classes lie along dimension `dim` of x; labels have the other dimensions of x.
In softmax cross entropy, `maximum` is `amax(dims=(dim,))` of the logits x and `total` is `sum_exp`; the gradient is the
total derivative through both. A negative label is that of no class: its row has neither loss nor gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tdl.catalog.elementwise import spread
from tdl.evaluate import gradients
from tdl.expr import Expr
from tdl.language import (
    Body,
    Lambda,
    Operand,
    Sum,
    absolute,
    exp,
    log,
    logaddexp,
    maximum,
    minimum,
    rsqrt,
    tensor,
    where,
)
from tdl.operator import Operator, op

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


# Softmax along one dimension as several operators, so that each can be split along every dimension.
#
# `maximum` is `amax(dims=(dim,))` of x, `total` is `sum_exp`; gradients are total derivatives through both. `inner`
# is `softmax_backward_sum` for softmax, and `sum(dims=(dim,))` of the gradient for log-softmax.


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


# Losses.


Function = Callable[[Expr, Expr], Expr]


LEAST_LOG, LEAST_VARIANCE = -100.0, 1e-12
"""Lower bounds of binary cross entropy: of a logarithm, and of p (1 - p), which the gradient is divided by."""


def bounded_log(x: Expr) -> Expr:
    """Return the logarithm, but at least LEAST_LOG."""
    return maximum(log(x), LEAST_LOG)


def smooth(distance: Expr) -> Expr:
    """Return half the square up to distance 1, and a straight line beyond (smooth L1)."""
    return where(absolute(distance) < 1, 0.5 * (distance * distance), absolute(distance) - 0.5)


LOSSES: Mapping[str, Function] = {
    "mse_loss": lambda x, t: (x - t) ** 2,
    "l1_loss": lambda x, t: absolute(x - t),
    "smooth_l1_loss": lambda x, t: smooth(x - t),
    "binary_cross_entropy": lambda x, t: -t * bounded_log(x) - (1 - t) * bounded_log(1 - x),
    "binary_cross_entropy_with_logits": lambda x, t: logaddexp(0, x) - x * t,
    "kl_div": lambda x, t: t * (log(t) - x),
}


SLOPES: Mapping[str, Callable[[Expr, Expr, Expr], tuple[Expr, Expr]]] = {
    "binary_cross_entropy": lambda grad, x, t: (
        grad * (x - t) / maximum(x * (1 - x), LEAST_VARIANCE), grad * (bounded_log(1 - x) - bounded_log(x)),
    ),
    "smooth_l1_loss": lambda grad, x, t: (grad * bounded(x - t), grad * bounded(t - x)),
}  # fmt: skip
"""Gradients of x and target with PyTorch's bounds, or with fewer operations than the derived ones."""


def bounded(distance: Expr) -> Expr:
    """Return the distance clamped to [-1, 1]."""
    return minimum(maximum(distance, -1), 1)


def _loss(name: str, element: Function) -> Operator:
    def description(x: Operand, target: Operand, *, count: float) -> Body:
        return lambda: Sum(lambda *r: element(x[r], target[r]), rank=x.rank) / count

    description.__name__ = name
    return op(category="reduction")(description)


def _loss_backward(name: str, element: Function) -> Operator:
    def of_elements(grad: Expr, x: Expr, t: Expr) -> tuple[Expr, ...]:
        return SLOPES[name](grad, x, t) if name in SLOPES else gradients(element(x, t), grad, (x, t))

    def description(grad: Operand, x: Operand, target: Operand, *, count: float) -> Lambda:
        return tensor(lambda *i: of_elements(grad[()] / count, x[i], target[i]), rank=x.rank)

    description.__name__ = f"{name}_backward"
    return op(category="elementwise")(description)


def _operators() -> dict[str, Operator]:
    operators: dict[str, Operator] = {}
    for name, element in LOSSES.items():
        operators |= {name: _loss(name, element), f"{name}_backward": _loss_backward(name, element)}
    return operators


OPERATORS: Mapping[str, Operator] = _operators()


def _names(rank: int, dim: int) -> list[str]:
    """Return the names of the coordinates; the class coordinate is called c."""
    at, others = along(rank, dim)
    return [*others[:at], "c", *others[at:]]


@op(category="reduction")
def nll_loss(x: Operand, labels: Operand, *, count: float, dim: int = -1) -> Body:
    def loss(*i: Expr) -> Expr:
        return where(labels[rows(i, dim)] == i[dim], -x[i], 0)

    return lambda: Sum(loss, names=_names(x.rank, dim)) / count


@op(category="elementwise")
def nll_loss_backward(grad: Operand, labels: Operand, *, count: float, dim: int = -1) -> Lambda:
    def slope(*i: Expr) -> Expr:
        return where(labels[rows(i, dim)] == i[dim], -grad[()] / count, 0)

    return tensor(slope, names=_names(labels.rank + 1, dim))


@op(category="reduction", parts=("maximum", "total"))
def cross_entropy(
    x: Operand, maximum: Operand, total: Operand, labels: Operand, *, count: float, dim: int = -1
) -> Body:
    def loss(*i: Expr) -> Expr:
        row = rows(i, dim)
        return where(labels[row] == i[dim], log(total[row]) + maximum[row] - x[i], 0)

    return lambda: Sum(loss, names=_names(x.rank, dim)) / count


@op(category="elementwise")
def cross_entropy_backward(
    x: Operand, maximum: Operand, total: Operand, labels: Operand, *, factor: float, dim: int = -1
) -> Lambda:
    def slope(*i: Expr) -> Expr:
        row = rows(i, dim)
        slope = (exp(x[i] - maximum[row]) / total[row] - where(labels[row] == i[dim], 1, 0)) * factor
        return where(labels[row] < 0, 0, slope)

    return tensor(slope, names=_names(x.rank, dim))
