"""Cases of attention (grouped heads, causal or not, biases of some dimensions) and related operators."""

from __future__ import annotations

from functools import partial

import numpy as np

from executor.cases import Case, Draw, Generate
from planner.graph.ir import Value


def _attention(draw: Draw, *, biased: bool = False, of: str = "") -> Case:
    """Return operands of attention, or of the gradient named by `of`, with the matching log-sum-exp."""
    batch, groups, share, queries, c, e = draw.sizes(6, 1, 4)
    keys = draw.size(1, 4)
    heads = groups * share
    query, key, value = (
        draw.array(batch, heads, queries, c),
        draw.array(batch, groups, keys, c),
        draw.array(batch, groups, keys, e),
    )
    dims = draw.subset(4, 1)
    bias = draw.array(*((batch, heads, queries, keys)[dim] for dim in dims))
    attributes: dict[str, Value] = {"scale": 0.25, "causal": draw.flag(), **({"dims": dims} if biased else {})}
    given = (query, key, value, *((bias,) if biased else ()))
    if not of:
        if draw.flag():  # hide keys, for some queries all
            bias[draw.array(*bias.shape) > 0] = -np.inf
        return Case(given, attributes, shapes=((batch, heads, queries, e), (batch, heads, queries)))
    scores = 0.25 * np.einsum("bgrqc,bgkc->bgrqk", query.reshape(batch, groups, share, queries, c), key)
    total = np.log(np.exp(scores).sum(axis=-1)).reshape(batch, heads, queries)
    operands = (draw.array(batch, heads, queries, e), *given, total, draw.array(*total.shape))
    shapes = {"query": (query.shape,), "keys": (key.shape, value.shape), "bias": (bias.shape,)}
    return Case(operands, attributes, shapes=shapes[of])


def _rotary(draw: Draw) -> Case:
    batch, heads, length, half = draw.sizes(4, 1, 4)
    tables = (draw.array(length, 2 * half) for _ in range(2))
    return Case((draw.array(batch, heads, length, 2 * half), *tables), {"half": half, "inverse": draw.flag()})


def _slots(draw: Draw) -> Case:
    indices = draw.below(draw.size(1, 3), *draw.sizes(3, 1, 5))
    return Case((indices,), {"capacity": draw.size(1, 4)}, shapes=(indices.shape,))


def _places(draw: Draw, *, collect: bool) -> Case:
    """Return tokens and their slots, which several may share; or slots and the tokens collected from them."""
    batch, tokens, ranks, experts, capacity, width = draw.sizes(6, 1, 4)
    slots = draw.below(experts * capacity + 1, batch, tokens, ranks) - 1
    slots = slots.astype(np.int32)
    if collect:
        return Case((draw.array(batch, experts, capacity, width), slots), {"capacity": capacity})
    extents = {"e": experts, "c": capacity}
    return Case((draw.array(batch, tokens, ranks, width), slots), {"capacity": capacity, "extents": extents})


CASES: dict[str, Generate] = {
    **{f"{prefix}attention": partial(_attention, biased=bool(prefix)) for prefix in ("", "biased_")},
    **{
        f"{prefix}attention_backward_{of}": partial(_attention, biased=bool(prefix), of=of)
        for prefix in ("", "biased_")
        for of in ("query", "keys")
    },
    "biased_attention_backward_bias": partial(_attention, biased=True, of="bias"),
    "rotary": _rotary,
    "expert_slots": _slots,
    "dispatch": partial(_places, collect=False),
    "collect": partial(_places, collect=True),
}
