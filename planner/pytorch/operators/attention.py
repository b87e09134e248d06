"""Scaled dot product attention, from products and softmax."""

from __future__ import annotations

import math

from planner.pytorch.axes import Value
from planner.pytorch.operators.call import Converter, TracedCall, Unsupported
from planner.pytorch.operators.layers import softmax
from planner.pytorch.translation import Translation


def _attention(t: Translation, call: TracedCall) -> Value:
    q, k, v = call["query"], call["key"], call["value"]
    if call["dropout_p"]:
        raise Unsupported("attention with dropout: expected dropout_p=0")
    if call.get("enable_gqa"):
        raise Unsupported("attention with fewer heads of keys than of queries: repeat them before")
    factor = call["scale"] if call["scale"] is not None else 1.0 / math.sqrt(q.shape[-1])
    q = t.unary("scale", q, name="q_scaled", factor=float(factor))
    batch = [(dim, dim) for dim in range(q.rank - 2)]
    scores = t.contract(q, k, [(q.rank - 1, k.rank - 1)], batch)
    if call["is_causal"]:
        scores = causal(t, scores)
    if call["attn_mask"] is not None:
        scores = _masked(t, scores, call["attn_mask"])
    probabilities = softmax(t, scores, scores.rank - 1)
    return t.contract(probabilities, v, [(scores.rank - 1, v.rank - 2)], batch)


def causal(t: Translation, scores: Value) -> Value:
    """Leave out keys after the query; both must be single axes, the tensor's last."""
    rows, columns = scores.rank - 2, scores.rank - 1
    scores = t.merged(t.merged(scores, rows), columns)
    axes = (*scores.dims[rows], *scores.dims[columns])
    last = len(t.builder.shape(scores.tensor))
    if axes != (last - 2, last - 1):
        scores = t.densely(scores)
    return t.unary("causal_mask", scores)


def _masked(t: Translation, scores: Value, mask: Value) -> Value:
    if t.dtype(mask) == "int32":
        raise Unsupported("attention with a mask of truth values: use is_causal, or a mask that is added")
    return t.binary("add", scores, mask)


CONVERTERS: dict[str, Converter] = {"scaled_dot_product_attention": _attention}
