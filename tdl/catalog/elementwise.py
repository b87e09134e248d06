"""Element-wise operators: each output element depends on the operands' elements at the same coordinates."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any

from tdl import language as fn
from tdl.evaluate import gradients
from tdl.expr import RANDOM_BITS, Expr
from tdl.index import TDLError
from tdl.language import Body, Lambda, Operand, cos, log, power, random_bits, sqrt, tensor, trunc, where as select
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


# Element-wise operators from tables: one row per operator, with its function of elements.
#
# A unary row `name: f` defines the operators `name(x)` and `name_backward(grad, x)`, the derivative of f times grad.
# A binary row defines `name(a, b, *, dims, a_dims)` and `name_backward(grad, a, b, *, dims, a_dims)`, which returns
# the gradients of a and b, both in the shape of the result. Dimension j of b is dimension dims[j] of the result, and
# dimension j of a is dimension a_dims[j]. A scalar row takes its second operand as the attribute `value`. Functions
# in LEVEL, FLAT and PASSING have no backward operator.


Function = Callable[..., Any]

SIXTH = 11184811 / 2**26
"""1/6 in single precision. PyTorch multiplies by it in double precision too."""

ROOT_HALF = math.sqrt(0.5)
TANH_SCALE, TANH_CUBE = math.sqrt(2 / math.pi), 0.044715


def gelu(x: Expr, *, approximate: str = "none") -> Expr:
    if approximate == "none":
        return x * (0.5 + 0.5 * fn.erf(x * ROOT_HALF))
    return x * (0.5 + 0.5 * fn.tanh(TANH_SCALE * (x + TANH_CUBE * x * x * x)))


def elu(x: Expr, *, alpha: float = 1.0, scale: float = 1.0) -> Expr:
    return fn.where(x > 0, scale * x, scale * alpha * fn.expm1(x))


def clamp(x: Expr, *, min: float = -math.inf, max: float = math.inf) -> Expr:
    x = x if min == -math.inf else fn.maximum(x, min)
    return x if max == math.inf else fn.minimum(x, max)


def hard(x: Expr) -> Expr:
    """Return a piecewise linear approximation of the sigmoid."""
    return fn.minimum(fn.maximum(x + 3, 0), 6) / 6


PLAIN: Mapping[str, Function] = {
    **{name: getattr(fn, name) for name in ("exp", "log", "sigmoid", "tanh")},
    "increment": lambda t: t + 1,
    "lerp": lambda a, b, *, weight: a + weight * (b - a) if weight < 0.5 else b - (b - a) * (1 - weight),
    "neg": lambda x: -x,
    "relu": lambda x: fn.maximum(x, 0),
    "scale": lambda x, *, factor: x * factor,
    "sigmoid_backward": lambda grad, result: grad * result * (1 - result),
    "tanh_backward": lambda grad, result: grad * (1 - result * result),
    "threshold_backward": lambda grad, result: fn.where(result <= 0, 0, grad),
}

ARITHMETIC: Mapping[str, Function] = {
    "add": lambda a, b: a + b,
    "div": lambda a, b: a / b,
    "mul": lambda a, b: a * b,
    "sub": lambda a, b: a - b,
}

UNARY: Mapping[str, Function] = {
    **{name: getattr(fn, name) for name in (
        "acos", "acosh", "asin", "asinh", "atan", "atanh", "cbrt", "ceil", "cos", "cosh", "erf", "expm1", "floor",
        "isinf", "isnan", "log10", "log1p", "log2", "sign", "sin", "sinh", "sqrt", "tan", "trunc",
    )},
    "abs": fn.absolute,
    "clamp": clamp,
    "clone": lambda x: x,
    "elu": elu,
    "gelu": gelu,
    "hardsigmoid": hard,
    "hardswish": lambda x: x * hard(x),
    "hardtanh": lambda x, *, min=-1.0, max=1.0: clamp(x, min=min, max=max),
    "leaky_relu": lambda x, *, negative_slope=0.01: fn.where(x > 0, x, x * negative_slope),
    "log_sigmoid": lambda x: -fn.logaddexp(0, -x),
    "reciprocal": lambda x: 1 / x,
    "round": fn.round_,
    "rsqrt": lambda x: 1 / fn.sqrt(x),
    "silu": lambda x: x * fn.sigmoid(x),
    "softplus": lambda x: fn.logaddexp(0, x),
    "softsign": lambda x: x / (1 + fn.absolute(x)),
    "square": lambda x: x * x,
    "stop_gradient": lambda x: x,
}  # fmt: skip

COMPARISONS = ("eq", "ge", "gt", "le", "lt", "ne")

BINARY: Mapping[str, Function] = {
    **{name: getattr(fn, name) for name in ("atan2", "fmod", "hypot", "maximum", "minimum")},
    **{name: getattr(operator, name) for name in COMPARISONS},
    "pow": fn.power,
    "prelu": lambda a, b: fn.where(a > 0, a, b * a),
    "remainder": lambda a, b: a % b,
}


def _of_number(function: Function) -> Function:
    """Return a function of two elements as a function of one element and the attribute `value`."""
    return lambda a, *, value: function(a, value)


SCALAR: Mapping[str, Function] = {
    "add_scalar": lambda a, *, value: a + value,
    "rsub_scalar": lambda a, *, value: value - a,
    "rpow_scalar": lambda a, *, value: fn.power(value, a),
    **{f"{name}_scalar": _of_number(BINARY[name]) for name in ("fmod", "pow", "remainder", *COMPARISONS)},
}

LEVEL = ("ceil", "floor", "round", "sign", "trunc")
"""Functions whose derivative is zero wherever it exists."""

FLAT = (*COMPARISONS, *(f"{name}_scalar" for name in COMPARISONS), "isinf", "isnan", "stop_gradient")
"""Functions that pass no gradient."""

PASSING = ("clone", "add_scalar", "fmod_scalar", "remainder_scalar", "rsub_scalar")
"""Functions whose derivative is 1 or -1."""

SLOPES: Mapping[str, Function] = {
    "clamp": lambda grad, x, *, min=-math.inf, max=math.inf: fn.where((x >= min) & (x <= max), grad, 0),
    "hardsigmoid": lambda grad, x: fn.where((x > -3) & (x < 3), grad * SIXTH, 0),
    "hardswish": lambda grad, x: fn.where(x <= -3, 0, fn.where(x >= 3, grad, grad * (x / 3 + 0.5))),
    "hardtanh": lambda grad, x, *, min=-1.0, max=1.0: fn.where((x <= min) | (x >= max), 0, grad),
    "softsign": lambda grad, x: grad / fn.power(1 + fn.absolute(x), 2),
}
"""Gradients whose values at bounds differ in PyTorch from those of maximum and minimum, which are half."""

MASKS: Mapping[str, Function] = {
    "logical_and": lambda a, b: a & b,
    "logical_or": lambda a, b: a | b,
    "logical_xor": fn.logical_xor,
    "logical_not": lambda x: ~x,
}

BITS: Mapping[str, Function] = {
    **{f"bitwise_{name}": getattr(fn, f"bitwise_{name}") for name in ("and", "or", "xor", "not")},
    **{f"bitwise_{name}_scalar": _of_number(getattr(fn, f"bitwise_{name}")) for name in ("and", "or", "xor")},
}


def _unary(name: str, function: Function, operands: tuple[str, ...] = ()) -> Operator:
    """Return the operator of an element-wise function. `operands` replaces the function's parameter names."""
    described = pointwise(function)
    return replace(described, name=name, operands=operands[: len(described.operands)] or described.operands)


def _binary(name: str, function: Function) -> Operator:
    description, attributes = of_broadcast_elements(function), {"dims": None, "a_dims": None}
    return Operator(name, "elementwise", description, ("a", "b"), False, attributes)


def _backward(forward: Operator, describe: Callable[[Function], Function], function: Function) -> Operator:
    """Return the backward operator: from grad and the forward operands to the gradients of these operands."""

    def derived(grad: Expr, *elements: Expr, **attributes: Any) -> Any:
        each = gradients(function(*elements, **attributes), grad, elements)
        return each if len(each) > 1 else each[0]

    name, operands = f"{forward.name}_backward", ("grad", *forward.operands)
    description = describe(SLOPES.get(forward.name, derived))
    return replace(forward, name=name, function=description, operands=operands, descriptions={})


def _operators() -> Iterator[Operator]:
    """Yield the operators of all rows, and their backward operators."""
    for rows, make, describe in (({**UNARY, **SCALAR}, _unary, of_elements), (BINARY, _binary, of_broadcast_elements)):
        for name, function in rows.items():
            yield (forward := make(name, function))
            if name not in (*LEVEL, *FLAT, *PASSING):
                yield _backward(forward, describe, function)
    yield from (_unary(name, function, ("mask", "other_mask")) for name, function in MASKS.items())
    yield from (_unary(name, function, ("bits", "other_bits")) for name, function in BITS.items())
    yield from (_unary(name, function) for name, function in PLAIN.items())
    yield from (_binary(name, function) for name, function in ARITHMETIC.items())


OPERATORS: Mapping[str, Operator] = {each.name: each for each in _operators()}


# Selection by a mask or by position, and random masks keyed by the global index, which are equal in every split.


DRAWS = 1 << RANDOM_BITS


@op(category="elementwise")
def where(mask: Operand, a: Operand, b: Operand, *, dims: Dims = None) -> Lambda:
    """Select a where the mask is true, otherwise b. Either may be a scalar."""
    rank = max(a.rank, b.rank, mask.rank if dims is None else 0)
    return tensor(lambda *i: select(mask[spread(i, dims)] != 0, *(x[i if x.rank else ()] for x in (a, b))), rank=rank)


@op(category="elementwise")
def masked_fill(x: Operand, mask: Operand, *, value: float, dims: Dims = None) -> Body:
    return lambda *i: select(mask[spread(i, dims)] != 0, value, x[i])


@op(category="elementwise")
def causal_mask(x: Operand, *, value: float = -math.inf) -> Body:
    return lambda *i: select(i[-1] <= i[-2], x[i], value)


@op(category="elementwise")
def tril(x: Operand, *, diagonal: int = 0) -> Body:
    return lambda *i: select(i[-1] - i[-2] <= diagonal, x[i], 0)


@op(category="elementwise")
def triu(x: Operand, *, diagonal: int = 0) -> Body:
    return lambda *i: select(i[-1] - i[-2] >= diagonal, x[i], 0)


@op(category="elementwise", random_keys=("seed", "row"), only_in_training=True)
def dropout(x: Operand, step: Operand, *, p: float, seed: int = 0, row: int = 0) -> Body:
    """Drop each element with probability p. `row` is the position of x's first row in the whole batch."""
    kept = math.ceil(p * DRAWS)

    def element(*i: Expr) -> Expr:
        rows = (i[0] + row, *i[1:]) if row else i
        return select(random_bits(seed, step[()], *rows) >= kept, x[i] * (1 / (1 - p)), 0)

    return element


@op(random_keys=("seed",))
def bernoulli(step: Operand, *, p: float, rank: int, seed: int = 0, dtype: str = "float32") -> Lambda:
    dropped = math.ceil((1 - p) * DRAWS)
    return tensor(lambda *i: select(random_bits(seed, step[()], *i) >= dropped, 1.0, 0.0), rank=rank)


@op(random_keys=("seed",))
def rand(step: Operand, *, rank: int, seed: int = 0, dtype: str = "float32") -> Lambda:
    return tensor(lambda *i: random_bits(seed, step[()], *i) * (1 / DRAWS), rank=rank)


@op(random_keys=("seed",))
def randn(step: Operand, *, rank: int, seed: int = 0, dtype: str = "float32") -> Lambda:
    def normal(*i: Expr) -> Expr:
        radius = sqrt(-2 * log((random_bits(seed, step[()], *i, 0) + 1) / DRAWS))
        return radius * cos(random_bits(seed, step[()], *i, 1) * (2 * math.pi / DRAWS))

    return tensor(normal, rank=rank)
