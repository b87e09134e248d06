"""Kernels of element-wise functions, a row per operator: a function of the array module, the operands, the attributes.

A row's result is a new array, complete before the output is written, so outputs may be the memory of operands. The rows
are written apart from the descriptions, often in another form, so that each is a check of the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType

from executor.kernels.blocks import blocks
from executor.kernels.call import Array, Kernel, KernelCall
from executor.kernels.elementwise import broadcast
from executor.kernels.special import logistic, special

Rows = dict[str, Callable[..., Array]]


def elu(xp: ModuleType, x: Array, alpha: float = 1.0, scale: float = 1.0) -> Array:
    """Exponential linear unit."""
    return scale * (xp.maximum(x, 0) + alpha * xp.expm1(xp.minimum(x, 0)))


def clamp(xp: ModuleType, x: Array, min: float = -math.inf, max: float = math.inf) -> Array:
    """Bound from below and above, where not by infinity, which whole numbers do not have."""
    x = x if min == -math.inf else xp.maximum(x, min)
    return x if max == math.inf else xp.minimum(x, max)


def tied(xp: ModuleType, grad: Array, first: Array, second: Array) -> Array:
    """Share of a gradient that goes to `first`: where it is the greater, half where they are equal."""
    return grad * ((first > second) + 0.5 * (first == second))


UNARY: Rows = {
    "abs": lambda xp, x: xp.abs(x),
    "abs_backward": lambda xp, g, x: xp.copysign(g, g * x) * (x != 0),
    "acos": lambda xp, x: xp.arccos(x),
    "acos_backward": lambda xp, g, x: -g / xp.sqrt((1 - x) * (1 + x)),
    "acosh": lambda xp, x: xp.arccosh(x),
    "acosh_backward": lambda xp, g, x: g / xp.sqrt((x - 1) * (x + 1)),
    "asin": lambda xp, x: xp.arcsin(x),
    "asin_backward": lambda xp, g, x: g / xp.sqrt((1 - x) * (1 + x)),
    "asinh": lambda xp, x: xp.arcsinh(x),
    "asinh_backward": lambda xp, g, x: g / xp.hypot(x, 1),
    "atan": lambda xp, x: xp.arctan(x),
    "atan_backward": lambda xp, g, x: g / (1 + x * x),
    "atanh": lambda xp, x: xp.arctanh(x),
    "atanh_backward": lambda xp, g, x: g / ((1 - x) * (1 + x)),
    "cbrt": lambda xp, x: xp.cbrt(x),
    "cbrt_backward": lambda xp, g, x: g / (3 * xp.cbrt(x) ** 2),
    "ceil": lambda xp, x: xp.ceil(x),
    "clamp": clamp,
    "clamp_backward": lambda xp, g, x, min=-math.inf, max=math.inf: g * ((x >= min) & (x <= max)),
    "clone": lambda xp, x: x,
    "cos": lambda xp, x: xp.cos(x),
    "cos_backward": lambda xp, g, x: -g * xp.sin(x),
    "cosh": lambda xp, x: xp.cosh(x),
    "cosh_backward": lambda xp, g, x: g * xp.sinh(x),
    "elu": elu,
    "elu_backward": lambda xp, g, x, alpha=1.0, scale=1.0: (
        g * scale * xp.where(x > 0, 1, alpha * xp.exp(xp.minimum(x, 0)))
    ),
    "erf": lambda xp, x: special(xp).erf(x),
    "erf_backward": lambda xp, g, x: g * xp.exp(-x * x) * (2 / math.sqrt(math.pi)),
    "expm1": lambda xp, x: xp.expm1(x),
    "expm1_backward": lambda xp, g, x: g * xp.exp(x),
    "floor": lambda xp, x: xp.floor(x),
    "hardsigmoid": lambda xp, x: xp.clip(x / 6 + 0.5, 0, 1),
    "hardsigmoid_backward": lambda xp, g, x: g * (xp.abs(x) < 3) / 6,
    "hardswish": lambda xp, x: x * xp.clip(x + 3, 0, 6) / 6,
    "hardswish_backward": lambda xp, g, x: g * xp.where(x > 3, 1, xp.where(x < -3, 0, (2 * x + 3) / 6)),
    "isinf": lambda xp, x: xp.isinf(x),
    "isnan": lambda xp, x: xp.isnan(x),
    "leaky_relu": lambda xp, x, negative_slope=0.01: xp.where(x > 0, x, x * negative_slope),
    "leaky_relu_backward": lambda xp, g, x, negative_slope=0.01: xp.where(x > 0, g, g * negative_slope),
    "log10": lambda xp, x: xp.log10(x),
    "log10_backward": lambda xp, g, x: g / x * (1 / math.log(10)),
    "log1p": lambda xp, x: xp.log1p(x),
    "log1p_backward": lambda xp, g, x: g / (x + 1),
    "log2": lambda xp, x: xp.log2(x),
    "log2_backward": lambda xp, g, x: g / x * (1 / math.log(2)),
    "log_sigmoid": lambda xp, x: -xp.logaddexp(0, -x),
    "log_sigmoid_backward": lambda xp, g, x: g * logistic(xp, -x),
    "reciprocal": lambda xp, x: xp.reciprocal(x),
    "reciprocal_backward": lambda xp, g, x: -g / (x * x),
    "round": lambda xp, x: xp.rint(x),
    "rsqrt": lambda xp, x: 1 / xp.sqrt(x),
    "rsqrt_backward": lambda xp, g, x: -0.5 * g * x**-1.5,
    "sign": lambda xp, x: xp.sign(x),
    "silu": lambda xp, x: x * logistic(xp, x),
    "silu_backward": lambda xp, g, x: g * logistic(xp, x) * (1 + x * logistic(xp, -x)),
    "sin": lambda xp, x: xp.sin(x),
    "sin_backward": lambda xp, g, x: g * xp.cos(x),
    "sinh": lambda xp, x: xp.sinh(x),
    "sinh_backward": lambda xp, g, x: g * xp.cosh(x),
    "softplus": lambda xp, x: xp.logaddexp(0, x),
    "softplus_backward": lambda xp, g, x: g * logistic(xp, x),
    "softsign": lambda xp, x: x / (1 + xp.abs(x)),
    "softsign_backward": lambda xp, g, x: g / (1 + xp.abs(x)) ** 2,
    "sqrt": lambda xp, x: xp.sqrt(x),
    "sqrt_backward": lambda xp, g, x: 0.5 * g / xp.sqrt(x),
    "square": lambda xp, x: xp.square(x),
    "square_backward": lambda xp, g, x: 2 * g * x,
    "stop_gradient": lambda xp, x: x,
    "tan": lambda xp, x: xp.tan(x),
    "tan_backward": lambda xp, g, x: g / xp.cos(x) ** 2,
    "trunc": lambda xp, x: xp.trunc(x),
}

BINARY: Rows = {
    "atan2": lambda xp, a, b: xp.arctan2(a, b),
    "atan2_backward": lambda xp, g, a, b: (g * b / (a * a + b * b), -g * a / (a * a + b * b)),
    "eq": lambda xp, a, b: a == b,
    "fmod": lambda xp, a, b: xp.fmod(a, b),
    "fmod_backward": lambda xp, g, a, b: (g, -g * xp.trunc(a / b)),
    "ge": lambda xp, a, b: a >= b,
    "gt": lambda xp, a, b: a > b,
    "hypot": lambda xp, a, b: xp.hypot(a, b),
    "hypot_backward": lambda xp, g, a, b: (g * a / xp.hypot(a, b), g * b / xp.hypot(a, b)),
    "le": lambda xp, a, b: a <= b,
    "lt": lambda xp, a, b: a < b,
    "maximum": lambda xp, a, b: xp.maximum(a, b),
    "maximum_backward": lambda xp, g, a, b: (tied(xp, g, a, b), tied(xp, g, b, a)),
    "minimum": lambda xp, a, b: xp.minimum(a, b),
    "minimum_backward": lambda xp, g, a, b: (tied(xp, g, b, a), tied(xp, g, a, b)),
    "ne": lambda xp, a, b: a != b,
    "pow": lambda xp, a, b: xp.power(a, b),
    "pow_backward": lambda xp, g, a, b: (g * b * xp.power(a, b - 1), g * xp.power(a, b) * xp.log(a)),
    "remainder": lambda xp, a, b: xp.remainder(a, b),
    "remainder_backward": lambda xp, g, a, b: (g, -g * xp.floor(a / b)),
}
"""Of these the last two operands may be spread over dimensions of the result."""

SCALAR: Rows = {
    "add_scalar": lambda xp, a, value: a + value,
    "rsub_scalar": lambda xp, a, value: value - a,
    "pow_scalar": lambda xp, a, value: a**value,
    "pow_scalar_backward": lambda xp, g, a, value: g * value * a ** (value - 1),
    "rpow_scalar": lambda xp, a, value: value**a,
    "rpow_scalar_backward": lambda xp, g, a, value: g * value**a * math.log(value),
    "fmod_scalar": lambda xp, a, value: xp.fmod(a, value),
    "remainder_scalar": lambda xp, a, value: xp.remainder(a, value),
    "eq_scalar": lambda xp, a, value: a == value,
    "ne_scalar": lambda xp, a, value: a != value,
    "lt_scalar": lambda xp, a, value: a < value,
    "le_scalar": lambda xp, a, value: a <= value,
    "gt_scalar": lambda xp, a, value: a > value,
    "ge_scalar": lambda xp, a, value: a >= value,
    "lerp": lambda xp, a, b, weight: (1 - weight) * a + weight * b,
}

MASKS: Rows = {
    "logical_and": lambda xp, a, b: xp.logical_and(a, b),
    "logical_or": lambda xp, a, b: xp.logical_or(a, b),
    "logical_xor": lambda xp, a, b: xp.logical_xor(a, b),
    "logical_not": lambda xp, a: xp.logical_not(a),
    "bitwise_and": lambda xp, a, b: a & b,
    "bitwise_or": lambda xp, a, b: a | b,
    "bitwise_xor": lambda xp, a, b: a ^ b,
    "bitwise_not": lambda xp, a: ~a,
    "bitwise_and_scalar": lambda xp, a, value: a & value,
    "bitwise_or_scalar": lambda xp, a, value: a | value,
    "bitwise_xor_scalar": lambda xp, a, value: a ^ value,
}


NOT_OF_ELEMENTS = ("extents", "dims", "a_dims")
"""Attributes that say where elements are, so that no row takes them."""


def _kernel(row: Callable[..., Array]) -> Kernel:
    """Return the kernel of a row."""

    def kernel(call: KernelCall) -> None:
        attributes = {name: value for name, value in call.attributes.items() if name not in NOT_OF_ELEMENTS}
        operands = call.inputs if len(call.inputs) == 1 else broadcast(call)
        count = len(call.outputs)
        for parts in blocks(call.xp, *call.outputs, *operands):
            results = row(call.xp, *parts[count:], **attributes)
            for out, result in zip(parts, results if isinstance(results, tuple) else (results,), strict=False):
                # What rows make of whole numbers may be fractions of the same values.
                call.xp.copyto(out, result, casting="unsafe")

    return kernel


KERNELS: dict[str, Kernel] = {name: _kernel(row) for name, row in {**UNARY, **BINARY, **SCALAR, **MASKS}.items()}
