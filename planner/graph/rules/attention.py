"""Gradients of attention and related operators.

Attention has one backward node for the queries, one for keys and values, and one for a bias.
"""

from __future__ import annotations

from planner.graph.ir import Value
from planner.graph.rules.base import Backward, Gradients, Rule, flat, materialize
from tdl.operator import named


def _attention(b: Backward) -> Gradients:
    inputs, attrs = _operands(b), b.attrs("scale", "causal", "dims")
    of_query = b.emit(f"{b.node.op}_backward_query", inputs, 0, **attrs)
    of_keys = b.emit_all(f"{b.node.op}_backward_keys", inputs, "grad_keys", **attrs)
    return of_query, *of_keys, *(b.emit(f"{b.node.op}_backward_bias", inputs, 3, **attrs) for _ in b.node.inputs[3:])


def _operands(b: Backward) -> tuple[str, ...]:
    """Return the operands of the backward operators."""
    result, total = b.node.outputs
    arriving, of_total = b.arriving
    gradient = materialize(b.builder, arriving, result)
    inner = b.emit_step("softmax_backward_sum", (gradient, result), 0, "inner", dim=3)
    if of_total is not None:
        inner = b.emit_step("sub", (inner, materialize(b.builder, of_total, total)), 0, "less")
    return gradient, *b.node.inputs, total, inner


def _rotary(b: Backward) -> Gradients:
    """Rotate the gradient back."""
    (_, cos, sin), how = b.node.inputs, b.attrs("half")
    inverse = bool(b.node.attrs.get("inverse", False))
    gradient = b.emit("rotary", (b.gradient, cos, sin), 0, **how, inverse=not inverse)
    return gradient, *(_angle(b, operand, inverse) if b.wanted[operand] else None for operand in (1, 2))


def _angle(b: Backward, operand: int, inverse: bool) -> str:
    """Return the gradient of cosines or sines: a product summed over samples and heads.

    For sines, one factor is rotated by a quarter turn.
    """
    (x, cos, sin), gradient = b.node.inputs, b.gradient
    if operand == 2:
        nothing = b.emit_step("scale", (cos,), 2, "nothing", factor=0.0)
        ones = b.emit_step("add_scalar", (b.emit_step("scale", (sin,), 2, "zero", factor=0.0),), 2, "one", value=1.0)
        x, gradient = (gradient, x) if inverse else (x, gradient)
        x = b.emit_step("rotary", (x, nothing, ones), 2, "quarter", **b.attrs("half"))
    product = b.emit_step("mul", (gradient, x), operand, "product")
    return b.emit("sum", (product,), operand, dims=(0, 1))


def _dispatch(b: Backward) -> Gradients:
    return b.emit("collect", (b.gradient, b.node.inputs[1]), 0, **b.attrs("capacity")), None


def _collect(b: Backward) -> Gradients:
    extents: dict[str, Value] = dict(zip("ec", b.shape(0)[1:3], strict=True))
    return b.emit("dispatch", (b.gradient, b.node.inputs[1]), 0, **b.attrs("capacity"), extents=extents), None


RULES: dict[str, Rule] = {
    **named(_attention, _rotary, _dispatch, _collect),
    "biased_attention": _attention,
    "expert_slots": flat,
}
