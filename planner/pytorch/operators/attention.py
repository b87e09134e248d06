"""Scaled dot product attention, from products and softmax."""

from __future__ import annotations

import math

from planner.pytorch.axes import Value
from planner.pytorch.forms import densely, merged
from planner.pytorch.operations import binary, contract, unary
from planner.pytorch.operators.call import Converter, TracedCall, UnsupportedError
from planner.pytorch.operators.layers import softmax
from planner.pytorch.translation import Translation


def _attention(t: Translation, call: TracedCall) -> Value:
    q, k, v = call["query"], call["key"], call["value"]
    if call["dropout_p"]:
        raise UnsupportedError("attention with dropout: expected dropout_p=0")
    if call.get("enable_gqa"):
        raise UnsupportedError("attention with fewer heads of keys than of queries: repeat them before")
    factor = call["scale"] if call["scale"] is not None else 1.0 / math.sqrt(q.shape[-1])
    q = unary(t, "scale", q, factor=float(factor))
    batch = [(dim, dim) for dim in range(q.rank - 2)]
    scores = contract(t, q, k, [(q.rank - 1, k.rank - 1)], batch)
    if call["is_causal"]:
        scores = causal(t, scores)
    if call["attn_mask"] is not None:
        scores = _masked(t, scores, call["attn_mask"])
    probabilities = softmax(t, scores, scores.rank - 1)
    return contract(t, probabilities, v, [(scores.rank - 1, v.rank - 2)], batch)


def causal(t: Translation, scores: Value) -> Value:
    """Leave out keys after the query; both must be single axes, the tensor's last."""
    rows, columns = scores.rank - 2, scores.rank - 1
    scores = merged(t, merged(t, scores, rows), columns)
    axes = (*scores.dims[rows], *scores.dims[columns])
    last = len(t.builder.shape(scores.tensor))
    if axes != (last - 2, last - 1):
        scores = densely(t, scores)
    return unary(t, "causal_mask", scores)


def _masked(t: Translation, scores: Value, mask: Value) -> Value:
    if t.dtype(mask) == "int32":
        raise UnsupportedError("attention with a mask of truth values: use is_causal, or a mask that is added")
    return binary(t, "add", scores, mask)


CONVERTERS: dict[str, Converter] = {"scaled_dot_product_attention": _attention}
