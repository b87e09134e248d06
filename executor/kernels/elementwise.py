"""Sigmoid, sums, conversion and gelu, element by element.

Gelu is x times the normal distribution function. It and its gradient have a faster form in single precision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np

import tdl
from executor.kernels.call import BEYOND, NARROW, Array, Blocked, Kernel, KernelCall, require_room
from executor.kernels.derived import DerivedKernel


def sigmoid(call: KernelCall) -> None:
    """Compute 1 / (1 + exp(-x)). Unlike the form with tanh, it is as exact for small results as for large ones."""
    xp, (x,), (out,) = call.xp, call.inputs, call.outputs
    xp.negative(x, out=out)
    with np.errstate(over="ignore"):
        xp.exp(out, out=out)
    out += 1
    xp.reciprocal(out, out=out)


def add_n(call: KernelCall) -> None:
    """Sum all operands from first to last, as micro-batches' gradients are added. A derived kernel sums a tree."""
    *firsts, last = call.inputs
    if firsts:
        call.xp.add(reduce(add, firsts), last, out=call.outputs[0])
    else:
        call.xp.copyto(call.outputs[0], last)


def cast(call: KernelCall) -> None:
    """Convert to the dtype of the output: to integers towards zero, to booleans by "is not zero"."""
    xp, (x,), (out,) = call.xp, call.inputs, call.outputs
    if out.dtype.kind == "i" and x.dtype.kind == "f":
        require_room(call, xp.isfinite(x) & (xp.abs(x) >= BEYOND))
    xp.copyto(out, x, casting="unsafe")


ARGUMENT = tuple(
    np.array(figure, np.float32)  # converting Python numbers takes NumPy a quarter of a microsecond each
    for figure in (0.019599186077283497, 1.0871487873923817, -90.41952476223209, 9.048416720042429, 230.70691514154484)
)
"""Coefficients a to e, with u = x^2, of 2 Phi(x) = 1 + tanh(x * (a u + b + c / ((u + d)^2 + e))).

The error of half of this, before rounding, is below 3.8e-7, both absolute and times |x|. Fitted to atanh(2 Phi(x) - 1)
/ x up to |x| = 6, beyond which both sides are 1 in single precision. A polynomial of the same accuracy needs more
passes over the cache.
"""

DENSITY = math.log(2 / math.sqrt(2 * math.pi))


def gelu(call: KernelCall) -> None:
    """Compute x times the normal distribution function."""
    (x,), (out,) = call.inputs, call.outputs
    twice = _twice_less_one(x, x * x, _room(out, x))
    twice += 1
    twice *= x
    np.multiply(twice, 0.5, out=out)


def gelu_backward(call: KernelCall) -> None:
    """Compute the gradient of gelu."""
    (grad, x), (out,) = call.inputs, call.outputs
    np.multiply(_twice_slope(x, _room(out, grad, x)), grad, out=out)
    out *= 0.5


@dataclass(frozen=True, slots=True)
class Gelu:
    """A kernel for single precision on a host, where SciPy's erf is far slower than tanh; else the derived one."""

    single: Blocked
    derived: DerivedKernel

    def __call__(self, call: KernelCall) -> None:
        """Run the kernel that fits the call."""
        x, is_exact = call.inputs[-1], call.attributes.get("approximate", "none") == "none"
        is_single = call.xp is np and x.ndim > 0 and x.dtype in (np.float32, *NARROW)
        (self.single if is_exact and is_single else self.derived)(call)


def _room(out: Array, *operands: Array) -> Array:
    """Return `out` as scratch memory, or new memory if it shares memory with an operand. Reuse saves cache."""
    return np.empty_like(out) if any(np.may_share_memory(out, operand) for operand in operands) else out


def _twice_less_one(x: Array, squares: Array, room: Array) -> Array:
    """Return 2 Phi(x) - 1 in single precision, written to `room`. `squares` (x * x) is overwritten."""
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


KERNELS: dict[str, Kernel] = {
    "sigmoid": Blocked(sigmoid),
    "add_n": Blocked(add_n),
    "cast": cast,
    "gelu": Gelu(Blocked(gelu), DerivedKernel(tdl.catalog["gelu"])),
    "gelu_backward": Gelu(Blocked(gelu_backward), DerivedKernel(tdl.catalog["gelu_backward"])),
}
