"""Selection by masks and positions, and random masks from a counter-based generator."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from types import ModuleType

from executor.kernels.call import Array, Kernel, KernelCall, kept_where
from executor.kernels.elementwise import spread

BITS = 24
"""How many random bits are drawn per element."""


def _mask(call: KernelCall, operand: int, rank: int) -> Array:
    """Where an operand is true, spread over the dimensions `dims` of an array of the given rank."""
    mask = call.inputs[operand] != 0
    return mask if call.attributes.get("dims") is None else spread(mask, call.integers("dims"), rank)


def where(call: KernelCall) -> None:
    """Take a where the mask is true, else b."""
    _, a, b = call.inputs
    call.xp.copyto(call.outputs[0], call.xp.where(_mask(call, 0, call.outputs[0].ndim), a, b))


def masked_fill(call: KernelCall) -> None:
    """Replace by `value` where the mask is true."""
    x = call.inputs[0]
    call.xp.copyto(call.outputs[0], call.xp.where(_mask(call, 1, x.ndim), call.number("value"), x))


def _distance(call: KernelCall) -> Array:
    """Column number minus row number of every element of the last two dimensions."""
    last = call.inputs[0].ndim - 1
    rows, columns = (call.xp.arange(*call.ranges[f"i{dim}"]) for dim in (last - 1, last))
    return columns - rows[:, None]


def causal_mask(call: KernelCall) -> None:
    """Keep the elements up to the diagonal; the others become `value`."""
    call.xp.copyto(call.outputs[0], call.inputs[0])
    call.xp.copyto(call.outputs[0], call.number("value", -math.inf), where=_distance(call) > 0)


def _triangle(is_kept: Callable[[Array, float], Array]) -> Kernel:
    """Return the kernel that keeps elements by their distance from the main diagonal; the others become zero."""

    def kernel(call: KernelCall) -> None:
        kept = is_kept(_distance(call), call.number("diagonal", 0))
        call.xp.copyto(call.outputs[0], call.xp.where(kept, call.inputs[0], 0))

    return kernel


def mixed(xp: ModuleType, words: Array) -> Array:
    """Apply the finalizer of MurmurHash3 to an array of uint32, in place; overflow is meant."""
    words ^= words >> xp.uint32(16)
    words *= xp.uint32(0x85EBCA6B)
    words ^= words >> xp.uint32(13)
    words *= xp.uint32(0xC2B2AE35)
    words ^= words >> xp.uint32(16)
    return words


def random_bits(call: KernelCall, rank: int, step: Array, draw: int | None = None) -> Array:
    """BITS random bits per element of the run's part of a tensor, from its global indices.

    The hash goes dimension by dimension, so only the last works on the whole part.
    """
    xp, golden = call.xp, call.xp.uint32(0x9E3779B9)
    state = mixed(xp, xp.full((1,) * rank, call.integer("seed") if "seed" in call.attributes else 0, "uint32") + golden)
    state = mixed(xp, state + step.astype("int64").astype("uint32") + golden)
    for dim in range(rank):
        shape = [-1 if other == dim else 1 for other in range(rank)]
        first = call.integer("row") if dim == 0 and "row" in call.attributes else 0
        places = xp.arange(*call.ranges[f"i{dim}"]) + first
        state = mixed(xp, state + places.astype("uint32").reshape(shape) + golden)
    if draw is not None:
        state = mixed(xp, state + xp.uint32(draw) + golden)
    return state >> xp.uint32(32 - BITS)


def dropout(call: KernelCall) -> None:
    """Zero with probability p, else x / (1 - p)."""
    x, step = call.inputs
    p = call.number("p")
    kept = random_bits(call, x.ndim, step) >= math.ceil(p * 2**BITS)
    call.xp.copyto(call.outputs[0], kept_where(kept, x * (1 / (1 - p))))


def bernoulli(call: KernelCall) -> None:
    """One with probability p, else zero."""
    drawn = random_bits(call, call.integer("rank"), call.inputs[0])
    call.xp.copyto(call.outputs[0], drawn >= math.ceil((1 - call.number("p")) * 2**BITS))


def rand(call: KernelCall) -> None:
    """Draw uniform values in [0, 1)."""
    drawn = random_bits(call, call.integer("rank"), call.inputs[0])
    call.xp.multiply(drawn, 2.0**-BITS, out=call.outputs[0], casting="same_kind")


def randn(call: KernelCall) -> None:
    """Draw normal values, from pairs of uniform ones (Box and Muller)."""
    xp, rank = call.xp, call.integer("rank")
    length, angle = (random_bits(call, rank, call.inputs[0], draw).astype("float64") for draw in (0, 1))
    radius = xp.sqrt(-2 * xp.log((length + 1) * 2.0**-BITS))
    xp.copyto(call.outputs[0], radius * xp.cos(angle * (2 * math.pi * 2.0**-BITS)), casting="same_kind")


KERNELS: dict[str, Kernel] = {
    "where": where,
    "masked_fill": masked_fill,
    "causal_mask": causal_mask,
    "tril": _triangle(operator.le),
    "triu": _triangle(operator.ge),
    "dropout": dropout,
    "bernoulli": bernoulli,
    "rand": rand,
    "randn": randn,
}
