"""Gradients of attention: a node for the queries, one for keys and values, one for a bias."""

from __future__ import annotations

from planner.graph.rules.base import Backward, Gradients, Rule, materialize, zeros


def _attention(b: Backward) -> Gradients:
    inputs, attrs = _operands(b), b.attrs("scale", "causal", "dims")
    of_query = b.emit(f"{b.node.op}_backward_query", inputs, 0, **attrs)
    of_keys = b.emit_all(f"{b.node.op}_backward_keys", inputs, "grad_keys", **attrs)
    return of_query, *of_keys, *(b.emit(f"{b.node.op}_backward_bias", inputs, 3, **attrs) for _ in b.node.inputs[3:])


def _operands(b: Backward) -> tuple[str, ...]:
    """Return the operands of the backward operators."""
    result, total = b.node.outputs
    arriving, of_total = b.arriving
    gradient = zeros(b.builder, result) if arriving is None else b.gradient
    inner = b.emit_step("softmax_backward_sum", (gradient, result), 0, "inner", dim=3)
    if of_total is not None:
        inner = b.emit_step("sub", (inner, materialize(b.builder, of_total, total)), 0, "less")
    return gradient, *b.node.inputs, total, inner


RULES: dict[str, Rule] = {"attention": _attention, "biased_attention": _attention}
