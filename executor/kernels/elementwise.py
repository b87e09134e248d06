"""Sigmoid and conversion, and helpers that kernels share: views of spread operands, and checks of integers."""

from __future__ import annotations

from functools import reduce
from operator import add

import numpy as np

from executor.kernels.call import Array, Blocked, Kernel, KernelCall
from planner.errors import DataError

BEYOND = 2.0**31
"""The least integer that does not fit in 32 bits."""

BEYOND_32_BITS = (
    "integers beyond 32 bits, which a graph cannot hold: compute with them in double precision, as "
    "x.double() * 1000003 % 97 does"
)


def copy_whole(call: KernelCall, out: Array, exact: Array) -> None:
    """Write 64-bit integers to a 32-bit output. Raises DataError if one does not fit."""
    call.xp.copyto(out, exact, casting="unsafe")
    require_room(call, exact != out)


def require_room(call: KernelCall, is_beyond: Array) -> None:
    """Raise a DataError if an integer of a call does not fit in 32 bits. A GPU records it in `faults` instead."""
    if call.faults is not None:
        call.xp.logical_or(call.faults, is_beyond.any(), out=call.faults)
    elif bool(is_beyond.any()):
        raise DataError(BEYOND_32_BITS)


def spread(array: Array, dims: tuple[int, ...], rank: int) -> Array:
    """Return a view of `array` with `rank` dimensions: its dimension j becomes dims[j], the others have extent 1."""
    order = sorted(range(len(dims)), key=lambda j: dims[j])
    shape = [1] * rank
    for extent, dim in zip(array.shape, dims, strict=True):
        shape[dim] = extent
    return array.transpose(order).reshape(shape)


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
