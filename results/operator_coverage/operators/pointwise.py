"""Element-wise operators that the kernels' catalog does not have."""

from __future__ import annotations

from math import pi

from tdl.catalog.elementwise import pointwise
from tdl.expr import Expr
from tdl.language import absolute, exp, floor, lgamma as log_gamma, sign, sin, sqrt, where


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
def lgamma(x: Expr) -> Expr:
    return log_gamma(x)


@pointwise
def gamma(x: Expr) -> Expr:
    """Gamma function, by reflection where x is negative."""
    return where(x > 0, exp(log_gamma(x)), pi / (sin(pi * x) * exp(log_gamma(1 - x))))


@pointwise
def remainder_by(x: Expr, *, scalar: float) -> Expr:
    """A number modulo the element."""
    return scalar - floor(scalar / x) * x
