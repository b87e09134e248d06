"""Cases of operators of language models."""

from __future__ import annotations

from functools import partial

import numpy as np

from executor.cases import Case, Draw, Generate


def _rotary(draw: Draw) -> Case:
    batch, heads, length, half = draw.sizes(4, 1, 4)
    tables = (draw.array(length, 2 * half) for _ in range(2))
    return Case((draw.array(batch, heads, length, 2 * half), *tables), {"half": half, "inverse": draw.flag()})


def _slots(draw: Draw) -> Case:
    indices = draw.below(draw.size(1, 3), *draw.sizes(3, 1, 5))
    return Case((indices,), {"capacity": draw.size(1, 4)}, shapes=(indices.shape,))


def _places(draw: Draw, *, collect: bool) -> Case:
    """Tokens and their places, of which several may have one, or places and the tokens that come from them."""
    batch, tokens, ranks, experts, capacity, width = draw.sizes(6, 1, 4)
    slots = draw.below(experts * capacity + 1, batch, tokens, ranks) - 1
    slots = slots.astype(np.int32)
    if collect:
        return Case((draw.array(batch, experts, capacity, width), slots), {"capacity": capacity})
    extents = {"e": experts, "c": capacity}
    return Case((draw.array(batch, tokens, ranks, width), slots), {"capacity": capacity, "extents": extents})


CASES: dict[str, Generate] = {
    "rotary": _rotary,
    "expert_slots": _slots,
    "dispatch": partial(_places, collect=False),
    "collect": partial(_places, collect=True),
}
