"""Sigmoid, sums and conversion, element by element."""

from __future__ import annotations

from functools import reduce
from operator import add

import numpy as np

from executor.kernels.call import BEYOND, Blocked, Kernel, KernelCall, require_room


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


KERNELS: dict[str, Kernel] = {"sigmoid": Blocked(sigmoid), "add_n": Blocked(add_n), "cast": cast}
