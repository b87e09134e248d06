"""Gradients of compound operators, through the nodes that compute their statistics."""

from __future__ import annotations

from planner.errors import GraphError
from planner.graph.ir import Node
from planner.graph.rules.base import Backward, Gradients, Rule, number


def _produced_by(b: Backward, operand: int, op: str, *operands: int) -> Node:
    """Return the producer of an operand, which must be `op` of the given operands of this node."""
    producer = b.producers.get(b.node.inputs[operand])
    inputs = tuple(b.node.inputs[number] for number in operands)
    if producer is None or producer.op != op or producer.inputs != inputs:
        raise GraphError(
            f"node {b.node.name!r} ({b.node.op}): to be differentiated, its operand {b.node.inputs[operand]!r} must "
            f"be {op}({', '.join(inputs)})"
        )
    return producer


def _batch_norm(b: Backward) -> Gradients:
    x, mean, var, weight, _ = b.node.inputs
    _produced_by(b, 1, "mean", 0)
    count = _produced_by(b, 2, "batch_norm_var", 0, 1).attrs["count"]
    eps = b.node.attrs["eps"]
    grad_weight, grad_bias = b.emit_all(
        "batch_norm_backward_reduce", (b.gradient, x, mean, var), "grad_parameters", eps=eps
    )
    grad_x = None
    if b.wanted[0]:
        inputs = (b.gradient, x, mean, var, weight, grad_weight, grad_bias)
        grad_x = b.emit("batch_norm_backward", inputs, 0, eps=eps, count=count)
    return grad_x, None, None, grad_weight, grad_bias


def _cross_entropy(b: Backward) -> Gradients:
    logits, maximum, total, labels = b.node.inputs
    _produced_by(b, 1, "amax", 0)
    _produced_by(b, 2, "sum_exp", 0, 1)
    count = number(b, "count")
    inputs = (logits, maximum, total, labels)
    arriving = b.arriving[0]
    if isinstance(arriving, float):
        return b.emit("cross_entropy_backward", inputs, 0, factor=arriving / count), None, None, None
    unscaled = b.emit_step("cross_entropy_backward", inputs, 0, "unscaled", factor=1.0 / count)
    return b.emit("mul", (unscaled, b.gradient), 0, dims=()), None, None, None


RULES: dict[str, Rule] = {"batch_norm": _batch_norm, "cross_entropy": _cross_entropy}
