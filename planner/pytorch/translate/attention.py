"""Matrix products, and scaled dot product attention with or without a stored score matrix."""

from __future__ import annotations

import math

import torch

from planner.pytorch.rewrite.axes import Axis, Value
from planner.pytorch.rewrite.views import densely, merged, regrouped, squeezed, view
from planner.pytorch.state.contents import Content, value_of
from planner.pytorch.translate.call import TracedCall, converter, refuse_if
from planner.pytorch.translate.elementwise import masked, negated, of_truth_values
from planner.pytorch.translate.losses import softmax
from planner.pytorch.translate.operations import as_dtype, binary, contract, dropped, padded, reduce, unary
from planner.pytorch.translate.translation import Translation


@converter("linear")
def _linear(t: Translation, call: TracedCall) -> Value:
    x, weight, bias = call["input"], call["weight"], call.optional("bias")
    product = contract(t, x, weight, [(x.rank - 1, 1)])
    return product if bias is None else binary(t, "add", product, bias)


@converter("matmul", "mm", "bmm")
def _matmul(t: Translation, call: TracedCall) -> Value:
    return matmul(t, call["self"], call.first("other", "mat2"))


def matmul(t: Translation, left: Value, right: Value) -> Value:
    """Multiply two values as torch.matmul does."""
    if left.rank == 1 or right.rank == 1:
        return contract(t, left, right, [(left.rank - 1, max(0, right.rank - 2))])
    rows, columns = left.rank - 2, right.rank - 2
    shared = [(rows - 1 - place, columns - 1 - place) for place in reversed(range(min(rows, columns)))]
    product = contract(t, left, right, [(left.rank - 1, right.rank - 2)], shared)
    # Leading dimensions that only one operand has come first in the result, in their own order.
    first = len(shared) + (rows < columns)
    extra = range(first, first + abs(rows - columns))
    return product.permuted([*extra, *(dim for dim in range(product.rank) if dim not in extra)])


@converter("einsum")
def _einsum(t: Translation, call: TracedCall) -> Value:
    """Multiply operands pairwise, in order; letters that only one operand has are summed first."""
    equation, operands = call.argument("equation").replace(" ", ""), call.tensors("tensors")
    left, arrow, output = equation.partition("->")
    inputs = left.split(",")
    is_other = "." in equation or not arrow or any(len(set(letters)) < len(letters) for letters in inputs)
    refuse_if(is_other, f"einsum {equation!r}: expected an arrow, no dots, and no letter twice in an operand")
    letters, value = inputs[0], operands[0]
    for number, following in enumerate(zip(inputs[1:], operands[1:], strict=True), 2):
        kept = {*output, *"".join(inputs[number:])}
        letters, value = _pair(t, (letters, value), following, kept)
    letters, value = _alone(t, letters, value, set(output))
    return value.permuted([letters.index(letter) for letter in output])


Lettered = tuple[str, Value]


def _alone(t: Translation, letters: str, value: Value, kept: set[str]) -> Lettered:
    """Sum over the letters that are not kept."""
    gone = [dim for dim, letter in enumerate(letters) if letter not in kept]
    return ("".join(x for x in letters if x in kept), reduce(t, "sum", value, gone)) if gone else (letters, value)


def _pair(t: Translation, left: Lettered, right: Lettered, kept: set[str]) -> Lettered:
    """Multiply two operands and sum over their common letters that are not kept."""
    (first, x), (second, y) = _alone(t, *left, kept | {*right[0]}), _alone(t, *right, kept | {*left[0]})
    common = [letter for letter in first if letter in second]
    pairs = {letter: (first.index(letter), second.index(letter)) for letter in common}
    shared = [letter for letter in common if letter in kept]
    summed = [pairs[letter] for letter in common if letter not in kept]
    product = contract(t, x, y, summed, [pairs[letter] for letter in shared])
    return "".join([*shared, *(letter for letter in first + second if letter not in common)]), product


@converter("scaled_dot_product_attention")
def _attention(t: Translation, call: TracedCall) -> Value:
    q, k, v = call["query"], call["key"], call["value"]
    factor, is_grouped = call.argument("scale"), call.flag("enable_gqa")
    scale = 1.0 / math.sqrt(q.shape[-1]) if factor is None else float(factor)
    shared = _shared_heads(t, k, v)
    if not call.number("dropout_p") and _are_heads(q, *shared) and not _learns_mask(t, call):
        return _stored_nowhere(t, call, (q, *shared), scale)
    if is_grouped:
        k, v = (_repeated_heads(t, heads, q.shape[-3] // heads.shape[-3]) for heads in (k, v))
    return _stored(t, call, (unary(t, "scale", q, factor=scale), k, v))


def _shared_heads(t: Translation, k: Value, v: Value) -> tuple[Value, Value]:
    """Return keys and values [b, g, k, c] without the repetition of each head for several queries, if both repeat."""
    keys, values = _unrepeated(t, k), _unrepeated(t, v)
    return (keys, values) if keys.shape[1:2] == values.shape[1:2] else (k, v)


def _unrepeated(t: Translation, heads: Value) -> Value:
    """Return heads [b, h, k, c] before an `expand` that repeats each of them."""
    group, node = heads.dims[1] if heads.rank == 4 else (), t.maker(heads.tensor)
    if not group or node is None or node.op != "expand" or node.attrs["dims"] != group[-1:]:
        return heads
    gone, (source,) = group[-1], node.inputs
    dims = (tuple(axis - (axis > gone) for axis in dim if axis != gone) for dim in heads.dims)
    value = Value(source, tuple(dims), heads.shape)
    return value.resized(1, heads.shape[1] // t.builder.shape(heads.tensor)[gone])


def _are_heads(q: Value, k: Value, v: Value) -> bool:
    """Return True for tensors [b, h, q, c], [b, g, k, c] and [b, g, k, e] without repetition, where g divides h."""
    if not q.rank == k.rank == v.rank == 4 or not q.shape[0] == k.shape[0] == v.shape[0]:
        return False
    is_repeated = any(
        not group and extent > 1 for x in (q, k, v) for group, extent in zip(x.dims, x.shape, strict=True)
    )
    return not is_repeated and k.shape[1] == v.shape[1] and q.shape[1] % k.shape[1] == 0


def _learns_mask(t: Translation, call: TracedCall) -> bool:
    """Return True if the mask has a gradient, in which case PyTorch stores the score matrix."""
    mask = call.argument("attn_mask")
    return isinstance(mask, Value) and t.is_trained(mask)


def _stored_nowhere(t: Translation, call: TracedCall, heads: tuple[Value, Value, Value], scale: float) -> Value:
    """Return attention as one operator, which recomputes the score matrix wherever it is read."""
    q, k, v = (densely(t, x) for x in heads)
    tensors, is_causal = (q.tensor, k.tensor, v.tensor), _is_causal(call)
    bias = None if is_causal else _bias(t, call, t.dtype(q))
    if bias is None:
        mixed, _ = t.emit_as("attention", "attention", *tensors, scale=scale, causal=is_causal)
    else:
        bias = squeezed(t, padded(bias, q.rank))
        dims = tuple(dim for dim, group in enumerate(bias.dims) if group)
        added = regrouped(t, bias, [bias.dims[dim] for dim in dims]).tensor
        mixed, _ = t.emit_as("attention", "biased_attention", *tensors, added, scale=scale, dims=dims)
        for axis, dim in enumerate(dims):
            t.axes.unite((added, axis), (k.tensor, 2) if dim == KEYS else (q.tensor, dim))
    for axes in _same_axes(mixed, *tensors, is_grouped=q.shape[1] != k.shape[1]):
        t.axes.unite(*axes)
    return t.plain(mixed)


KEYS = 3
"""The dimension of keys in scores, [b, h, q, k]."""


def _same_axes(mixed: str, q: str, k: str, v: str, is_grouped: bool) -> list[tuple[Axis, Axis]]:
    """Return the pairs of axes of results, queries, keys and values that are the same axis."""
    heads = [] if is_grouped else [((q, 1), (k, 1))]
    of_samples = [((x, 0), (q, 0)) for x in (mixed, k, v)]
    return [*of_samples, *heads, ((mixed, 1), (q, 1)), ((mixed, 2), (q, 2)), ((mixed, 3), (v, 3)),
            ((k, 1), (v, 1)), ((k, 2), (v, 2)), ((q, 3), (k, 3))]  # fmt: skip


def _is_causal(call: TracedCall) -> bool:
    mask = call.content("attn_mask")
    return call.flag("is_causal") or (mask is not None and mask.is_causal)


def _bias(t: Translation, call: TracedCall, dtype: str) -> Value | None:
    """Return what a mask adds to scores (for a boolean mask, its logarithm); None if it has no effect."""
    content, mask = call.content("attn_mask"), call.optional("attn_mask")
    is_shown = content is not None and content.number == (content.tensor.dtype is torch.bool)
    if mask is None or is_shown:
        return None
    added = as_dtype(t, mask, dtype)
    return unary(t, "log", added) if t.dtype(mask) == "bool" else added


def _stored(t: Translation, call: TracedCall, heads: tuple[Value, Value, Value]) -> Value:
    """Return attention as products and a softmax; the queries are already scaled."""
    q, k, v = heads
    batch = [(dim, dim) for dim in range(q.rank - 2)]
    scores = contract(t, q, k, [(q.rank - 1, k.rank - 1)], batch)
    mask, blind = call.content("attn_mask"), None
    if _is_causal(call):
        scores = causal(t, scores)
    elif mask is not None and mask.tensor.dtype is torch.bool and bool(mask.tensor.any(-1).all()):
        # The hiding mask is a constant of its own, so nothing has to be negated at run time.
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
    """Return scores without those hidden by a mask, and the queries for which it hides all keys.

    Such queries keep their scores. Their probabilities are set to zero later, because a softmax cannot yield only
    zeros.
    """
    blind = unary(t, "eq_scalar", reduce(t, "amax", as_dtype(t, shown, "int32"), (shown.rank - 1,), keep=True), value=0)
    hidden = negated(t, of_truth_values(t, "logical_or", shown, blind, shown.shape))
    return masked(t, scores, hidden, -math.inf), blind


def _repeated_heads(t: Translation, value: Value, times: int) -> Value:
    """Repeat each head; heads are the dimension before the last two."""
    heads = value.rank - 3
    return view(t, value.repeated(heads + 1, times), value.resized(heads, value.shape[heads] * times).shape)


def causal(t: Translation, scores: Value) -> Value:
    """Mask keys after the query; both must be single axes, the tensor's last."""
    rows, columns = scores.rank - 2, scores.rank - 1
    scores = merged(t, merged(t, scores, rows), columns)
    axes = (*scores.dims[rows], *scores.dims[columns])
    last = t.rank(scores.tensor)
    if axes != (last - 2, last - 1):
        scores = densely(t, scores)
    return unary(t, "causal_mask", scores)
