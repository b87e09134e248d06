"""Scaled dot product attention, from products and softmax."""

from __future__ import annotations

import math

import torch

from planner.pytorch.axes import Value
from planner.pytorch.contents import Content, value_of
from planner.pytorch.operations import binary, contract, dropped, unary
from planner.pytorch.operators.call import TracedCall, converter
from planner.pytorch.operators.comparing import masked, negated
from planner.pytorch.operators.losses import softmax
from planner.pytorch.translation import Translation
from planner.pytorch.views import densely, merged, view


@converter("scaled_dot_product_attention")
def _attention(t: Translation, call: TracedCall) -> Value:
    q, k, v = call["query"], call["key"], call["value"]
    factor = call.argument("scale")
    if call.flag("enable_gqa"):
        k, v = (_repeated_heads(t, heads, q.shape[-3] // heads.shape[-3]) for heads in (k, v))
    q = unary(t, "scale", q, factor=1.0 / math.sqrt(q.shape[-1]) if factor is None else float(factor))
    batch = [(dim, dim) for dim in range(q.rank - 2)]
    scores = contract(t, q, k, [(q.rank - 1, k.rank - 1)], batch)
    mask = call.content("attn_mask")
    if call.flag("is_causal") or (mask is not None and mask.is_causal):
        scores = causal(t, scores)
    elif mask is not None and mask.tensor.dtype is torch.bool:
        # What hides is a constant of its own: nothing has to be negated.
        hidden = Content(~mask.distinct.expand(mask.shape))
        scores = scores if hidden.number == 0 else masked(t, scores, value_of(t, hidden), -math.inf)
    elif call.optional("attn_mask") is not None:
        scores = _masked(t, scores, call["attn_mask"])
    probabilities = dropped(t, softmax(t, scores, scores.rank - 1), call.number("dropout_p"))
    return contract(t, probabilities, v, [(scores.rank - 1, v.rank - 2)], batch)


def _repeated_heads(t: Translation, value: Value, times: int) -> Value:
    """Repeat each head, which is the dimension before the last two."""
    heads = value.rank - 3
    return view(t, value.repeated(heads + 1, times), value.resized(heads, value.shape[heads] * times).shape)


def causal(t: Translation, scores: Value) -> Value:
    """Leave out keys after the query; both must be single axes, the tensor's last."""
    rows, columns = scores.rank - 2, scores.rank - 1
    scores = merged(t, merged(t, scores, rows), columns)
    axes = (*scores.dims[rows], *scores.dims[columns])
    last = t.rank(scores.tensor)
    if axes != (last - 2, last - 1):
        scores = densely(t, scores)
    return unary(t, "causal_mask", scores)


def _masked(t: Translation, scores: Value, mask: Value) -> Value:
    if t.dtype(mask) == "bool":
        return masked(t, scores, negated(t, mask), -math.inf)
    return binary(t, "add", scores, mask)
