"""Gelu and its gradient: x times the normal distribution function, or the approximation of that by tanh."""

from __future__ import annotations

import math
from types import ModuleType

import numpy as np

from executor.kernels.call import Array
from executor.kernels.special import logistic, special

ARGUMENT = (0.797884231, 0.0363342526, -3.31096894e-5, -5.52458751e-5, 3.96987047e-6, -1.33493133e-7, 1.80667089e-9)
"""Coefficients c of u = x^2 in 2 Phi(x) = 1 + tanh(x * (c0 + c1 u + ...)), whose error times |x| is below 7e-8.

Fitted to atanh(2 Phi(x) - 1) / x up to |x| = 5.6, beyond which either side is 1 in single precision.
"""

DENSITY = math.log(2 / math.sqrt(2 * math.pi))


def gelu(xp: ModuleType, x: Array, approximate: str = "none") -> Array:
    """X times the normal distribution function, or its approximation by tanh."""
    if approximate != "none":
        return x * logistic(xp, math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))
    if _is_short(xp, x):
        half, twice = 0.5 * x, _twice_less_one(x, x * x)
        twice *= half
        twice += half
        return twice
    return 0.5 * x * (1 + special(xp).erf(x * math.sqrt(0.5)))


def gelu_backward(xp: ModuleType, grad: Array, x: Array, approximate: str = "none") -> Array:
    """Gradient of gelu."""
    if approximate != "none":
        share = logistic(xp, math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))
        return grad * share * (1 + x * (1 - share) * math.sqrt(8 / math.pi) * (1 + 0.134145 * x * x))
    if _is_short(xp, x):
        return _short_backward(grad, x)
    density = xp.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    return grad * (0.5 * special(xp).erfc(-x * math.sqrt(0.5)) + x * density)


def _is_short(xp: ModuleType, x: Array) -> bool:
    """Whether x is in single precision on a host, where SciPy's erf takes many times as long as tanh."""
    return xp is np and x.dtype == np.float32


def _twice_less_one(x: Array, square: Array) -> Array:
    """Return 2 Phi(x) - 1 of numbers in single precision, a new array."""
    argument = square * ARGUMENT[-1]
    for coefficient in ARGUMENT[-2:0:-1]:
        argument += coefficient
        argument *= square
    argument += ARGUMENT[0]
    argument *= x
    return np.tanh(argument, out=argument)


def _short_backward(grad: Array, x: Array) -> Array:
    square = x * x
    twice = _twice_less_one(x, square)
    square *= -0.5
    square += DENSITY
    slope = np.exp(square, out=square)
    slope *= x
    slope += twice
    slope += 1
    slope *= grad
    slope *= 0.5
    return slope
