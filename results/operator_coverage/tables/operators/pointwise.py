"""Element-wise operators that the kernels' catalog does not have."""

from __future__ import annotations

from math import pi

from scipy.special import digamma

from tdl.catalog.elementwise import pointwise
from tdl.expr import Expr
from tdl.language import (
    Body,
    OpaqueFunction,
    Operand,
    absolute,
    exp,
    floor,
    maximum,
    minimum,
    power,
    sign,
    sin,
    sqrt,
    where,
)
from tdl.language import (
    lgamma as log_gamma,
)
from tdl.operator import op


@pointwise
def round_away(x: Expr) -> Expr:
    """Nearest integer, halves away from zero."""
    return sign(x) * floor(absolute(x) + 0.5)


@pointwise
def degrees(x: Expr) -> Expr:
    return x * (180 / pi)


@pointwise
def radians(x: Expr) -> Expr:
    return x * (pi / 180)


@pointwise
def smooth_l1(x: Expr, *, scalar: float) -> Expr:
    square = scalar * scalar
    return where(absolute(x) < 1 / square, square * x * x / 2, absolute(x) - 0.5 / square)


@pointwise
def smooth_l1_backward(grad: Expr, x: Expr, *, scalar: float) -> Expr:
    square = scalar * scalar
    return grad * where(absolute(x) < 1 / square, square * x, sign(x))


@pointwise
def hypotenuse_scalar(x: Expr, *, scalar: float) -> Expr:
    return sqrt(x * x + scalar * scalar)


@pointwise
def quantize_linear(x: Expr, low: Expr, high: Expr, *, levels: int) -> Expr:
    """Round [low, high] to 0..levels."""
    return floor((x - low) * (levels / (high - low)) + 0.5)


@pointwise
def dequantize_linear(x: Expr, low: Expr, high: Expr, *, levels: int) -> Expr:
    return x * ((high - low) / levels) + low


@pointwise
def affine_quantize(x: Expr, scale: Expr, zero: Expr, *, low: int, high: int) -> Expr:
    """Round to a scale, halves to even, add the zero point, saturate."""
    scaled = x / scale
    below = floor(scaled)
    halves = where(below % 2 == 0, below, below + 1)
    rounded = where(scaled - below == 0.5, halves, floor(scaled + 0.5))
    return minimum(maximum(rounded + zero, low), high)


@pointwise
def lgamma(x: Expr) -> Expr:
    return log_gamma(x)


@pointwise
def gamma(x: Expr) -> Expr:
    """Gamma function, by reflection where x is negative."""
    return where(x > 0, exp(log_gamma(x)), pi / (sin(pi * x) * exp(log_gamma(1 - x))))


@op
def lgamma_backward(grad: Operand, x: Operand) -> Body:
    psi = OpaqueFunction(digamma, like=None, name="digamma")
    return lambda *i: grad[i] * psi(x[i])[()]


@pointwise
def remainder_by(x: Expr, *, scalar: float) -> Expr:
    """A number modulo the element."""
    return scalar - floor(scalar / x) * x


@pointwise
def rectified(x: Expr, slope: Expr) -> Expr:
    """Elements, scaled by a slope of their own where negative."""
    return where(x > 0, x, slope * x)


@pointwise
def remainder_by_backward(grad: Expr, x: Expr, *, scalar: float) -> Expr:
    return -grad * floor(scalar / x)


@pointwise
def hypotenuse_scalar_backward(grad: Expr, x: Expr, *, scalar: float) -> Expr:
    return grad * x / sqrt(x * x + scalar * scalar)


@op
def gamma_backward(grad: Operand, x: Operand) -> Body:
    """Gamma times digamma, for positive x."""
    psi = OpaqueFunction(digamma, like=None, name="digamma")
    return lambda *i: grad[i] * exp(log_gamma(x[i])) * psi(x[i])[()]


@pointwise
def shrink(x: Expr, *, threshold: float, bias: float) -> Expr:
    return where(x < -threshold, x + bias, where(x > threshold, x - bias, 0))


@pointwise
def shift_bits(x: Expr, bits: Expr) -> Expr:
    """Shift to the left."""
    return x * power(2, bits)
