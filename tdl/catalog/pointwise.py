"""Element-wise functions from tables: one row per operator, its function of elements and its slope, if it has one.

A row `name: (f, slope)` makes the operators `name(x)` and `name_backward(grad, x)`, which is grad * slope(x). A binary
row has two slopes and makes `name(a, b, *, dims, a_dims)` and `name_backward(grad, a, b, *, dims, a_dims)`, the
gradients of a and b, both in the shape of the result. Dimension j of b is dimension dims[j] of it, and of a a_dims[j].
A scalar row has the second operand as `value`. Rows without slopes have gradients of other operators, if any.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tdl import language as fn
from tdl.catalog.elementwise import of_broadcast_elements, of_elements, pointwise
from tdl.expr import Expr
from tdl.language import power
from tdl.operator import Operator

Function = Callable[..., Any]

SIXTH = 11184811 / 2**26
"""1/6 in single precision, which PyTorch multiplies by in double precision as well."""

ROOT_HALF, ROOT_TWO_PI = math.sqrt(0.5), math.sqrt(2 * math.pi)
TANH_SCALE, TANH_CUBE = math.sqrt(2 / math.pi), 0.044715


def gelu(x: Expr, *, approximate: str = "none") -> Expr:
    if approximate == "none":
        return x * (0.5 + 0.5 * fn.erf(x * ROOT_HALF))
    return x * (0.5 + 0.5 * fn.tanh(TANH_SCALE * (x + TANH_CUBE * x * x * x)))


def gelu_slope(x: Expr, *, approximate: str = "none") -> Expr:
    if approximate == "none":
        return 0.5 + 0.5 * fn.erf(x * ROOT_HALF) + x * fn.exp(-0.5 * x * x) / ROOT_TWO_PI
    inner = fn.tanh(TANH_SCALE * (x + TANH_CUBE * x * x * x))
    return 0.5 + 0.5 * inner + 0.5 * x * (1 - inner * inner) * TANH_SCALE * (1 + 3 * TANH_CUBE * x * x)


def elu(x: Expr, *, alpha: float = 1.0, scale: float = 1.0) -> Expr:
    return fn.where(x > 0, scale * x, scale * alpha * fn.expm1(x))


def clamp(x: Expr, *, min: float = -math.inf, max: float = math.inf) -> Expr:
    x = x if min == -math.inf else fn.maximum(x, min)
    return x if max == math.inf else fn.minimum(x, max)


def hard(x: Expr) -> Expr:
    """Approximate the sigmoid by straight lines."""
    return fn.minimum(fn.maximum(x + 3, 0), 6) / 6


def hardtanh(x: Expr, *, min: float = -1.0, max: float = 1.0) -> Expr:
    """Clamp; unlike the clamp's the slope at the bounds is zero."""
    return clamp(x, min=min, max=max)


def softplus(x: Expr) -> Expr:
    """log(1 + exp(x)), in which nothing overflows."""
    return fn.maximum(x, 0) + fn.log1p(fn.exp(-fn.absolute(x)))


def ahead(a: Expr, b: Expr) -> Expr:
    """Share of the greater's gradient that is a's: all, none, or half at a tie."""
    return fn.where(a < b, 0, fn.where(a == b, 0.5, 1))


def unless(condition: Expr, value: Expr) -> Expr:
    """Return zero where a condition holds, whatever the value there."""
    return fn.where(condition, 0, value)


def behind(a: Expr, b: Expr) -> Expr:
    """Share of the lesser's gradient that is a's."""
    return ahead(b, a)


def rpow_slope(a: Expr, *, value: float) -> Expr:
    """Slope of a power of a number; of zero's it is zero from 0 on."""
    slope = power(value, a) * log_of(value)
    return slope if value else fn.where(a >= 0, 0, slope)


def log_of(value: float) -> float:
    """Logarithm of any number, as that of an array's elements."""
    return math.log(value) if value > 0 else math.nan if value < 0 else -math.inf


PLAIN: Mapping[str, Function] = {
    "exp": fn.exp,
    "increment": lambda t: t + 1,
    "lerp": lambda a, b, *, weight: a + weight * (b - a),
    "log": fn.log,
    "neg": lambda x: -x,
    "relu": lambda x: fn.maximum(x, 0),
    "scale": lambda x, *, factor: x * factor,
    "sigmoid": fn.sigmoid,
    "sigmoid_backward": lambda grad, result: grad * result * (1 - result),
    "tanh": fn.tanh,
    "tanh_backward": lambda grad, result: grad * (1 - result * result),
    "threshold_backward": lambda grad, result: fn.where(result <= 0, 0, grad),
}

ARITHMETIC: Mapping[str, Function] = {
    "add": lambda a, b: a + b,
    "div": lambda a, b: a / b,
    "mul": lambda a, b: a * b,
    "sub": lambda a, b: a - b,
}

UNARY: Mapping[str, tuple[Function, Function | None]] = {
    "abs": (fn.absolute, fn.sign),
    "acos": (fn.acos, lambda x: -1 / fn.sqrt(1 - x * x)),
    "acosh": (fn.acosh, lambda x: 1 / fn.sqrt(x * x - 1)),
    "asin": (fn.asin, lambda x: 1 / fn.sqrt(1 - x * x)),
    "asinh": (fn.asinh, lambda x: 1 / fn.sqrt(x * x + 1)),
    "atan": (fn.atan, lambda x: 1 / (x * x + 1)),
    "atanh": (fn.atanh, lambda x: 1 / (1 - x * x)),
    "cbrt": (fn.cbrt, lambda x: 1 / (3 * fn.cbrt(x) * fn.cbrt(x))),
    "ceil": (fn.ceil, None),
    "clamp": (
        clamp,
        lambda x, *, min=-math.inf, max=math.inf: fn.where((x >= min) & (x <= max), 1, 0),
    ),
    "clone": (lambda x: x, None),
    "cos": (fn.cos, lambda x: -fn.sin(x)),
    "cosh": (fn.cosh, fn.sinh),
    "elu": (elu, lambda x, *, alpha=1.0, scale=1.0: fn.where(x <= 0, scale * alpha * fn.exp(x), scale)),
    "erf": (fn.erf, lambda x: fn.exp(-x * x) * (2 / math.sqrt(math.pi))),
    "expm1": (fn.expm1, fn.exp),
    "floor": (fn.floor, None),
    "gelu": (gelu, gelu_slope),
    "hardsigmoid": (hard, lambda x: fn.where((x > -3) & (x < 3), SIXTH, 0)),
    "hardswish": (lambda x: x * hard(x), lambda x: fn.where(x <= -3, 0, fn.where(x < 3, x / 3 + 0.5, 1))),
    "hardtanh": (hardtanh, lambda x, *, min=-1.0, max=1.0: fn.where((x <= min) | (x >= max), 0, 1)),
    "isinf": (fn.isinf, None),
    "isnan": (fn.isnan, None),
    "leaky_relu": (
        lambda x, *, negative_slope=0.01: fn.where(x > 0, x, negative_slope * x),
        lambda x, *, negative_slope=0.01: fn.where(x > 0, 1, negative_slope),
    ),
    "log10": (fn.log10, lambda x: 1 / (x * math.log(10))),
    "log1p": (fn.log1p, lambda x: 1 / (1 + x)),
    "log2": (fn.log2, lambda x: 1 / (x * math.log(2))),
    "log_sigmoid": (lambda x: -softplus(-x), lambda x: fn.sigmoid(-x)),
    "reciprocal": (lambda x: 1 / x, lambda x: -1 / (x * x)),
    "round": (fn.round_, None),
    "rsqrt": (lambda x: 1 / fn.sqrt(x), lambda x: -0.5 / (x * fn.sqrt(x))),
    "sign": (fn.sign, None),
    "silu": (lambda x: x * fn.sigmoid(x), lambda x: fn.sigmoid(x) * (1 + x * (1 - fn.sigmoid(x)))),
    "sin": (fn.sin, fn.cos),
    "sinh": (fn.sinh, fn.cosh),
    "softplus": (softplus, fn.sigmoid),
    "softsign": (lambda x: x / (1 + fn.absolute(x)), lambda x: 1 / ((1 + fn.absolute(x)) * (1 + fn.absolute(x)))),
    "sqrt": (fn.sqrt, lambda x: 0.5 / fn.sqrt(x)),
    "square": (lambda x: x * x, lambda x: 2 * x),
    "stop_gradient": (lambda x: x, None),
    "tan": (fn.tan, lambda x: 1 + fn.tan(x) * fn.tan(x)),
    "trunc": (fn.trunc, None),
}

BINARY: Mapping[str, tuple[Function, Function | None, Function | None]] = {
    "atan2": (
        fn.atan2,
        lambda a, b: unless((a == 0) & (b == 0), b / (a * a + b * b)),
        lambda a, b: unless((a == 0) & (b == 0), -a / (a * a + b * b)),
    ),
    "eq": (lambda a, b: a == b, None, None),
    "fmod": (fn.fmod, lambda a, b: 1, lambda a, b: -fn.trunc(a / b)),
    "ge": (lambda a, b: a >= b, None, None),
    "gt": (lambda a, b: a > b, None, None),
    "hypot": (
        lambda a, b: fn.sqrt(a * a + b * b),
        lambda a, b: a / fn.sqrt(a * a + b * b),
        lambda a, b: b / fn.sqrt(a * a + b * b),
    ),
    "le": (lambda a, b: a <= b, None, None),
    "lt": (lambda a, b: a < b, None, None),
    "maximum": (fn.maximum, ahead, behind),
    "minimum": (fn.minimum, behind, ahead),
    "ne": (lambda a, b: a != b, None, None),
    "pow": (
        power,
        lambda a, b: unless(b == 0, b * power(a, b - 1)),
        lambda a, b: unless((a == 0) & (b >= 0), power(a, b) * fn.log(a)),
    ),
    "prelu": (
        lambda a, b: fn.where(a > 0, a, b * a),
        lambda a, b: fn.where(a > 0, 1, b),
        lambda a, b: unless(a > 0, a),
    ),
    "remainder": (lambda a, b: a % b, lambda a, b: 1, lambda a, b: -fn.floor(a / b)),
}

SCALAR: Mapping[str, tuple[Function, Function | None]] = {
    "add_scalar": (lambda a, *, value: a + value, None),
    "rsub_scalar": (lambda a, *, value: value - a, None),
    "pow_scalar": (
        lambda a, *, value: power(a, value),
        lambda a, *, value: value * power(a, value - 1 if value else 1),
    ),
    "rpow_scalar": (lambda a, *, value: power(value, a), rpow_slope),
    "fmod_scalar": (lambda a, *, value: fn.fmod(a, value), None),
    "remainder_scalar": (lambda a, *, value: a % value, None),
    "eq_scalar": (lambda a, *, value: a == value, None),
    "ne_scalar": (lambda a, *, value: a != value, None),
    "lt_scalar": (lambda a, *, value: a < value, None),
    "le_scalar": (lambda a, *, value: a <= value, None),
    "gt_scalar": (lambda a, *, value: a > value, None),
    "ge_scalar": (lambda a, *, value: a >= value, None),
}

MASKS: Mapping[str, Function] = {
    "logical_and": lambda a, b: (a != 0) & (b != 0),
    "logical_or": lambda a, b: (a != 0) | (b != 0),
    "logical_xor": fn.logical_xor,
    "logical_not": lambda x: x == 0,
}

BITS: Mapping[str, Function] = {
    "bitwise_and": fn.bitwise_and,
    "bitwise_or": fn.bitwise_or,
    "bitwise_xor": fn.bitwise_xor,
    "bitwise_not": fn.bitwise_not,
    "bitwise_and_scalar": lambda x, *, value: fn.bitwise_and(x, value),
    "bitwise_or_scalar": lambda x, *, value: fn.bitwise_or(x, value),
    "bitwise_xor_scalar": lambda x, *, value: fn.bitwise_xor(x, value),
}


def _unary(name: str, function: Function, operands: tuple[str, ...] = ()) -> Operator:
    """Return the operator of a function of elements, its operands named if they are not as in the function."""
    operator = pointwise(function)
    return replace(operator, name=name, operands=operands[: len(operator.operands)] or operator.operands)


def _binary(name: str, function: Function) -> Operator:
    attributes = {"dims": None, "a_dims": None}
    return Operator(name, "elementwise", of_broadcast_elements(function), ("a", "b"), False, attributes)


def _backward(forward: Operator, describe: Callable[[Function], Function], *slopes: Function) -> Operator:
    """Return the operator of grad and an operator's operands that is grad times each slope."""

    def products(grad: Expr, *elements: Expr, **attributes: Any) -> Any:
        gradients = tuple(grad * slope(*elements, **attributes) for slope in slopes)
        return gradients if len(gradients) > 1 else gradients[0]

    name, operands = f"{forward.name}_backward", ("grad", *forward.operands)
    return replace(forward, name=name, function=describe(products), operands=operands, descriptions={})


def _operators() -> Iterator[Operator]:
    """Make the operators of every row, and those of the rows' slopes."""
    for name, (function, slope) in {**UNARY, **SCALAR}.items():
        yield (forward := _unary(name, function))
        if slope is not None:
            yield _backward(forward, of_elements, slope)
    for name, (function, first, second) in BINARY.items():
        yield (forward := _binary(name, function))
        if first is not None and second is not None:
            yield _backward(forward, of_broadcast_elements, first, second)
    yield from (_unary(name, function, ("mask", "other_mask")) for name, function in MASKS.items())
    yield from (_unary(name, function, ("bits", "other_bits")) for name, function in BITS.items())
    yield from (_unary(name, function) for name, function in PLAIN.items())
    yield from (_binary(name, function) for name, function in ARITHMETIC.items())


OPERATORS: Mapping[str, Operator] = {operator.name: operator for operator in _operators()}
