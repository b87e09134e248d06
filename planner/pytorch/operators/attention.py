"""Scaled dot product attention, from products and softmax."""

from __future__ import annotations

import math

import torch

from planner.pytorch.axes import Value
from planner.pytorch.contents import Content, value_of
from planner.pytorch.operations import as_dtype, binary, contract, dropped, reduce, unary
from planner.pytorch.operators.call import TracedCall, converter
from planner.pytorch.operators.comparing import masked, negated
from planner.pytorch.operators.elementwise import of_truth_values
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
    mask, blind = call.content("attn_mask"), None
    if call.flag("is_causal") or (mask is not None and mask.is_causal):
        scores = causal(t, scores)
    elif mask is not None and mask.tensor.dtype is torch.bool and bool(mask.tensor.any(-1).all()):
        # What hides is a constant of its own: nothing has to be negated.
        hidden = Content(~mask.distinct.expand(mask.shape))
        scores = scores if hidden.number == 0 else masked(t, scores, value_of(t, hidden), -math.inf)
    elif (shown := call.optional("attn_mask")) is not None and t.dtype(shown) == "bool":
        scores, blind = _hidden(t, scores, shown)
    elif shown is not None:
        scores = binary(t, "add", scores, shown)
    probabilities = softmax(t, scores, scores.rank - 1)
    probabilities = probabilities if blind is None else masked(t, probabilities, blind, 0.0)
    probabilities = dropped(t, probabilities, call.number("dropout_p"))
    return contract(t, probabilities, v, [(scores.rank - 1, v.rank - 2)], batch)


def _hidden(t: Translation, scores: Value, shown: Value) -> tuple[Value, Value]:
    """Return scores without those that a mask does not show, and which queries it shows no key at all.

    These keep their scores: their probabilities are to be zero, which no softmax gives.
    """
    blind = unary(t, "eq_scalar", reduce(t, "amax", as_dtype(t, shown, "int32"), (shown.rank - 1,), keep=True), value=0)
    hidden = negated(t, of_truth_values(t, "logical_or", shown, blind, shown.shape))
    return masked(t, scores, hidden, -math.inf), blind


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
