"""Gradients of operators of language models."""

from __future__ import annotations

from planner.graph.ir import Value
from planner.graph.rules.base import Backward, Gradients, Rule, flat


def _rotary(b: Backward) -> Gradients:
    """Turn the gradient back."""
    (_, cos, sin), how = b.node.inputs, b.attrs("half")
    inverse = bool(b.node.attrs.get("inverse", False))
    gradient = b.emit("rotary", (b.gradient, cos, sin), 0, **how, inverse=not inverse)
    return gradient, *(_angle(b, operand, inverse) if b.wanted[operand] else None for operand in (1, 2))


def _angle(b: Backward, operand: int, inverse: bool) -> str:
    """Gradient of cosines or sines: a product, of which one factor is turned by a quarter, over samples and heads."""
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


RULES: dict[str, Rule] = {"rotary": _rotary, "expert_slots": flat, "dispatch": _dispatch, "collect": _collect}
