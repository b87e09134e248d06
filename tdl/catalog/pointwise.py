"""Element-wise operators from tables: one row per operator, with its function of elements.

A unary row `name: f` defines the operators `name(x)` and `name_backward(grad, x)`, the derivative of f times grad. A
binary row defines `name(a, b, *, dims, a_dims)` and `name_backward(grad, a, b, *, dims, a_dims)`, which returns the
gradients of a and b, both in the shape of the result. Dimension j of b is dimension dims[j] of the result, and
dimension j of a is dimension a_dims[j]. A scalar row takes its second operand as the attribute `value`. Functions in
LEVEL, FLAT and PASSING have no backward operator.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tdl import language as fn
from tdl.catalog.elementwise import of_broadcast_elements, of_elements, pointwise
from tdl.derivative import gradients
from tdl.expr import Expr
from tdl.operator import Operator

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
    for rows, make, describe in (
        ({**UNARY, **SCALAR}, _unary, of_elements),
        (BINARY, _binary, of_broadcast_elements),
    ):
        for name, function in rows.items():
            yield (forward := make(name, function))
            if name not in (*LEVEL, *FLAT, *PASSING):
                yield _backward(forward, describe, function)
    yield from (_unary(name, function, ("mask", "other_mask")) for name, function in MASKS.items())
    yield from (_unary(name, function, ("bits", "other_bits")) for name, function in BITS.items())
    yield from (_unary(name, function) for name, function in PLAIN.items())
    yield from (_binary(name, function) for name, function in ARITHMETIC.items())


OPERATORS: Mapping[str, Operator] = {each.name: each for each in _operators()}
