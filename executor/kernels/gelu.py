"""Gelu and its gradient: x times the normal distribution function, or the approximation of that by tanh."""

from __future__ import annotations

import math
from types import ModuleType

import numpy as np

from executor.kernels.blocks import Blocked
from executor.kernels.call import Array, Kernel, KernelCall
from executor.kernels.special import logistic, special

ARGUMENT = tuple(
    np.array(figure, np.float32)  # not Python's numbers, which NumPy takes a quarter of a microsecond to convert
    for figure in (0.019599186077283497, 1.0871487873923817, -90.41952476223209, 9.048416720042429, 230.70691514154484)
)
"""Figures a to e, of u = x^2, in 2 Phi(x) = 1 + tanh(x * (a u + b + c / ((u + d)^2 + e))).

The error of half of this, before rounding, is below 3.8e-7, as it is and times |x|. Fitted to atanh(2 Phi(x) - 1) / x
up to |x| = 6, beyond which either side is 1 in single precision; a polynomial that is as near takes more passes over
the cache.
"""

DENSITY = math.log(2 / math.sqrt(2 * math.pi))


def gelu(call: KernelCall) -> None:
    """X times the normal distribution function, or its approximation by tanh."""
    xp, (x,), (out,) = call.xp, call.inputs, call.outputs
    if _by_tanh(call):
        out[...] = x * logistic(xp, math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))
    elif _is_short(xp, x):
        twice = _twice_less_one(x, x * x, _room(out, x))
        twice += 1
        twice *= x
        np.multiply(twice, 0.5, out=out)
    else:
        out[...] = 0.5 * x * (1 + special(xp).erf(x * math.sqrt(0.5)))


def gelu_backward(call: KernelCall) -> None:
    """Gradient of gelu."""
    xp, (grad, x), (out,) = call.xp, call.inputs, call.outputs
    if _by_tanh(call):
        share = logistic(xp, math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))
        out[...] = grad * share * (1 + x * (1 - share) * math.sqrt(8 / math.pi) * (1 + 0.134145 * x * x))
    elif _is_short(xp, x):
        np.multiply(_twice_slope(x, _room(out, grad, x)), grad, out=out)
        out *= 0.5
    else:
        density = xp.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
        out[...] = grad * (0.5 * special(xp).erfc(-x * math.sqrt(0.5)) + x * density)


def _by_tanh(call: KernelCall) -> bool:
    return call.attributes.get("approximate", "none") != "none"


def _is_short(xp: ModuleType, x: Array) -> bool:
    """True if x is an array in single precision on a host, where SciPy's erf takes many times as long as tanh."""
    return xp is np and x.dtype == np.float32 and x.ndim > 0


def _room(out: Array, *operands: Array) -> Array:
    """Return the memory of a result that is not an operand's, too, else other memory: less of the cache is taken."""
    return np.empty_like(out) if any(np.may_share_memory(out, operand) for operand in operands) else out


def _twice_less_one(x: Array, squares: Array, room: Array) -> Array:
    """Return 2 Phi(x) - 1 of numbers in single precision, written into `room`; `squares`, theirs, are overwritten."""
    a, b, c, d, e = ARGUMENT
    np.add(squares, d, out=room)
    np.square(room, out=room)
    room += e
    np.divide(c, room, out=room)
    squares *= a
    room += squares
    room += b
    room *= x
    return np.tanh(room, out=room)


def _twice_slope(x: Array, room: Array) -> Array:
    squares = x * x
    slope = squares * -0.5
    slope += DENSITY
    np.exp(slope, out=slope)
    slope *= x
    slope += _twice_less_one(x, squares, room)
    slope += 1
    return slope


KERNELS: dict[str, Kernel] = {"gelu": Blocked(gelu), "gelu_backward": Blocked(gelu_backward)}
