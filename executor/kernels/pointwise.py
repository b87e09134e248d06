"""Kernels of element-wise functions, a row per operator: a function of the array module, the operands, the attributes.

A row's result is a new array, complete before the output is written, so outputs may be the memory of operands. The rows
are written apart from the descriptions, often in another form, so that each is a check of the other. A gradient that
PyTorch chooses is chosen here, too, not multiplied by zero, which of what is no number makes none.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from types import ModuleType
from typing import Any

from executor.kernels.blocks import blocks
from executor.kernels.call import Array, Kernel, KernelCall, kept_where
from executor.kernels.elementwise import broadcast, require_room
from executor.kernels.special import logistic, sign, special
from tdl.catalog.pointwise import SIXTH, log_of


def elu(xp: ModuleType, x: Array, alpha: float = 1.0, scale: float = 1.0) -> Array:
    """Exponential linear unit."""
    return scale * (xp.maximum(x, 0) + alpha * xp.expm1(xp.minimum(x, 0)))


def clamp(xp: ModuleType, x: Array, min: float = -math.inf, max: float = math.inf) -> Array:
    """Bound from below and above, where not by infinity, which whole numbers do not have."""
    x = x if min == -math.inf else xp.maximum(x, min)
    return x if max == math.inf else xp.minimum(x, max)


def tied(xp: ModuleType, grad: Array, first: Array, second: Array) -> Array:
    """Share of a gradient that goes to `first`: all unless it is the lesser, half where they are equal."""
    return xp.where(first < second, 0, xp.where(first == second, 0.5 * grad, grad))


def atan2_backward(xp: ModuleType, grad: Array, a: Array, b: Array) -> tuple[Array, Array]:
    """Gradients of an angle, which are zero where both coordinates are."""
    squares = a * a + b * b
    share = xp.where(squares == 0, 0, grad / squares)
    return share * b, -share * a


ARRAY_FUNCTIONS = {
    **{name: name for name in (
        "abs", "cbrt", "ceil", "cos", "cosh", "expm1", "floor", "isinf", "isnan", "log10", "log1p", "log2",
        "reciprocal", "sin", "sinh", "sqrt", "square", "tan", "trunc", "fmod", "hypot", "maximum", "minimum",
        "remainder", "logical_and", "logical_or", "logical_xor", "logical_not",
    )},
    "acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan", "atanh": "arctanh",
    "round": "rint", "atan2": "arctan2", "pow": "power",
}  # fmt: skip
"""Operators that a function of the array module computes, which may have another name there."""


PYTHON_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
}
"""Operators of Python, of two operands, or with `_scalar` behind the name of an operand and a number."""


def _array_function(function: str) -> Callable[..., Array]:
    return lambda xp, *operands: getattr(xp, function)(*operands)


def _python_operator(function: Callable[[Any, Any], Any]) -> Callable[..., Array]:
    return lambda xp, *operands, **number: function(*operands, *number.values())


ROWS: dict[str, Callable[..., Array]] = {
    **{name: _array_function(function) for name, function in ARRAY_FUNCTIONS.items()},
    **{name: _python_operator(function) for name, function in PYTHON_OPERATORS.items()},
    **{f"{name}_scalar": _python_operator(function) for name, function in PYTHON_OPERATORS.items()},
    "abs_backward": lambda xp, g, x: g * sign(xp, x),
    "acos_backward": lambda xp, g, x: -g / xp.sqrt((1 - x) * (1 + x)),
    "acosh_backward": lambda xp, g, x: g / xp.sqrt((x - 1) * (x + 1) + 0.0),
    "asin_backward": lambda xp, g, x: g / xp.sqrt((1 - x) * (1 + x)),
    "asinh_backward": lambda xp, g, x: g / xp.hypot(x, 1),
    "atan_backward": lambda xp, g, x: g / (1 + x * x),
    "atanh_backward": lambda xp, g, x: g / ((1 - x) * (1 + x)),
    "cbrt_backward": lambda xp, g, x: g / (3 * xp.cbrt(x) ** 2),
    "clamp": clamp,
    "clamp_backward": lambda xp, g, x, min=-math.inf, max=math.inf: kept_where((x >= min) & (x <= max), g),
    "clone": lambda xp, x: x,
    "cos_backward": lambda xp, g, x: -g * xp.sin(x),
    "cosh_backward": lambda xp, g, x: g * xp.sinh(x),
    "elu": elu,
    "elu_backward": lambda xp, g, x, alpha=1.0, scale=1.0: (
        g * scale * xp.where(x <= 0, alpha * xp.exp(xp.minimum(x, 0)), 1)
    ),
    "erf": lambda xp, x: special(xp).erf(x),
    "erf_backward": lambda xp, g, x: g * xp.exp(-x * x) * (2 / math.sqrt(math.pi)),
    "expm1_backward": lambda xp, g, x: g * xp.exp(x),
    "hardsigmoid": lambda xp, x: xp.clip(x / 6 + 0.5, 0, 1),
    "hardsigmoid_backward": lambda xp, g, x: xp.where(xp.abs(x) < 3, g * SIXTH, 0),
    "hardswish": lambda xp, x: x * xp.clip(x + 3, 0, 6) / 6,
    "hardswish_backward": lambda xp, g, x: xp.where(x <= -3, 0, g * xp.where(x < 3, (2 * x + 3) / 6, 1)),
    "hardtanh": clamp,
    "hardtanh_backward": lambda xp, g, x, min=-1.0, max=1.0: xp.where((x <= min) | (x >= max), 0, g),
    "leaky_relu": lambda xp, x, negative_slope=0.01: xp.where(x > 0, x, x * negative_slope),
    "leaky_relu_backward": lambda xp, g, x, negative_slope=0.01: xp.where(x > 0, g, g * negative_slope),
    "log10_backward": lambda xp, g, x: g / x * (1 / math.log(10)),
    "log1p_backward": lambda xp, g, x: g / (x + 1),
    "log2_backward": lambda xp, g, x: g / x * (1 / math.log(2)),
    "log_sigmoid": lambda xp, x: -xp.logaddexp(0, -x),
    "log_sigmoid_backward": lambda xp, g, x: g * logistic(xp, -x),
    "reciprocal_backward": lambda xp, g, x: -g / (x * x),
    "rsqrt": lambda xp, x: 1 / xp.sqrt(x),
    "rsqrt_backward": lambda xp, g, x: -0.5 * g * (1 / xp.sqrt(x)) ** 3,
    "sign": sign,
    "silu": lambda xp, x: x * logistic(xp, x),
    "silu_backward": lambda xp, g, x: g * logistic(xp, x) * (1 + x * logistic(xp, -x)),
    "sin_backward": lambda xp, g, x: g * xp.cos(x),
    "sinh_backward": lambda xp, g, x: g * xp.cosh(x),
    "softplus": lambda xp, x: xp.logaddexp(0, x),
    "softplus_backward": lambda xp, g, x: g * logistic(xp, x),
    "softsign": lambda xp, x: x / (1 + xp.abs(x)),
    "softsign_backward": lambda xp, g, x: g / (1 + xp.abs(x)) ** 2,
    "sqrt_backward": lambda xp, g, x: 0.5 * g / xp.sqrt(x),
    "square_backward": lambda xp, g, x: 2 * g * x,
    "stop_gradient": lambda xp, x: x,
    "tan_backward": lambda xp, g, x: g / xp.cos(x) ** 2,
    "atan2_backward": atan2_backward,
    "fmod_backward": lambda xp, g, a, b: (g, -g * xp.trunc(a / b)),
    "hypot_backward": lambda xp, g, a, b: (g * a / xp.hypot(a, b), g * b / xp.hypot(a, b)),
    "maximum_backward": lambda xp, g, a, b: (tied(xp, g, a, b), tied(xp, g, b, a)),
    "minimum_backward": lambda xp, g, a, b: (tied(xp, g, b, a), tied(xp, g, a, b)),
    "pow_backward": lambda xp, g, a, b: (
        xp.where(b == 0, 0, g * b * xp.power(a, b - 1)),
        xp.where((a == 0) & (b >= 0), 0, g * xp.power(a, b) * xp.log(a)),
    ),
    "prelu": lambda xp, a, b: xp.where(a > 0, a, a * b),
    "prelu_backward": lambda xp, g, a, b: (xp.where(a > 0, g, g * b), xp.where(a > 0, 0, g * a)),
    "remainder_backward": lambda xp, g, a, b: (g, -g * xp.floor_divide(a, b)),
    "add_scalar": lambda xp, a, value: a + value,
    "rsub_scalar": lambda xp, a, value: value - a,
    "pow_scalar": lambda xp, a, value: 1 / xp.sqrt(a) if value == -0.5 else a**value,
    "pow_scalar_backward": lambda xp, g, a, value: g * value * a ** (value - 1) if value else xp.zeros_like(g),
    "rpow_scalar": lambda xp, a, value: value**a,
    "rpow_scalar_backward": lambda xp, g, a, value: g * xp.where((a >= 0) & (value == 0), 0, value**a * log_of(value)),
    "fmod_scalar": lambda xp, a, value: xp.fmod(a, value),
    "remainder_scalar": lambda xp, a, value: xp.remainder(a, value),
    "lerp": lambda xp, a, b, weight: (1 - weight) * a + weight * b,
    "bitwise_not": lambda xp, a: ~a,
}

NOT_OF_ELEMENTS = ("extents", "dims", "a_dims")
"""Attributes that say where elements are, so that no row takes them."""


def _kernel(row: Callable[..., Array]) -> Kernel:
    """Return the kernel of a row."""

    def kernel(call: KernelCall) -> None:
        attributes = {name: value for name, value in call.attributes.items() if name not in NOT_OF_ELEMENTS}
        operands = call.inputs if len(call.inputs) == 1 else call.once(broadcast)
        count = len(call.outputs)
        is_whole = call.outputs[0].dtype.kind == "i"
        for parts in blocks(call.xp, *call.outputs, *operands):
            given = [part.astype("int64") if is_whole and part.dtype.kind == "i" else part for part in parts[count:]]
            results = row(call.xp, *given, **attributes)
            for out, result in zip(parts, results if isinstance(results, tuple) else (results,), strict=False):
                # What rows make of whole numbers may be fractions of the same values.
                call.xp.copyto(out, result, casting="unsafe")
                if is_whole and getattr(result, "dtype", out.dtype).kind == "i":
                    require_room(call, result != out)

    return kernel


KERNELS: dict[str, Kernel] = {name: _kernel(row) for name, row in ROWS.items()}
