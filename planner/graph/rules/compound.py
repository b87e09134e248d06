"""Gradients of compound operators, including those through the nodes that compute their statistics."""

from __future__ import annotations

from typing import cast

from planner.errors import GraphError
from planner.graph.ir import Node
from planner.graph.rules.base import Backward, Gradients, Rule, number
from tdl.catalog.compound import LOSSES
from tdl.operator import named


def _produced_by(b: Backward, operand: int, op: str, *operands: int) -> Node:
    """Return the producer of an operand, which must be `op` of the given operands of this node."""
    producer = b.producers.get(b.node.inputs[operand])
    inputs = tuple(b.node.inputs[number] for number in operands)
    if producer is None or producer.op != op or producer.inputs != inputs:
        raise GraphError(
            f"node {b.node.name!r} ({b.node.op}): its operand {b.node.inputs[operand]!r} must be "
            f"{op}({', '.join(inputs)}), or it has no gradient"
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
    inputs = (b.gradient, x, mean, var, weight, grad_weight, grad_bias)
    grad_x = b.emit("batch_norm_backward", inputs, 0, eps=eps, count=count)
    return grad_x, None, None, grad_weight, grad_bias


def _cross_entropy(b: Backward) -> Gradients:
    _produced_by(b, 1, "amax", 0)
    _produced_by(b, 2, "sum_exp", 0, 1)
    count, arriving = number(b, "count"), b.arriving[0]
    if isinstance(arriving, float):
        factor = arriving / count
        return b.emit("cross_entropy_backward", b.node.inputs, 0, factor=factor, **b.attrs("dim")), None, None, None
    unscaled = b.emit_step("cross_entropy_backward", b.node.inputs, 0, "unscaled", factor=1.0 / count, **b.attrs("dim"))
    return b.emit("mul", (unscaled, b.gradient), 0, dims=()), None, None, None


def _normalize(b: Backward) -> Gradients:
    x, mean, var, weight, _ = b.node.inputs
    _produced_by(b, 1, "mean", 0)
    count = _produced_by(b, 2, "var", 0, 1).attrs["count"]
    attrs = b.attrs("statistics", "weights", "eps")
    grad_weight, grad_bias = b.emit_all(
        "normalize_backward_weights", (b.gradient, x, mean, var), "grad_parameters", **attrs
    )
    inputs = (b.gradient, x, mean, var, weight)
    sums = b.emit_all("normalize_backward_statistics", inputs, "grad_statistics", **attrs)
    grad_x = b.emit("normalize_backward", (*inputs, *sums), 0, **attrs, count=count)
    return grad_x, None, None, grad_weight, grad_bias


def _mean_square(b: Backward) -> Gradients:
    rows = tuple(range(b.rank() - 1))
    product = b.emit_step("mul", (b.node.inputs[0], b.gradient), 0, "product", dims=rows)
    return (b.emit("scale", (product,), 0, factor=2.0 / number(b, "count")),)


def _rms_norm(b: Backward) -> Gradients:
    x, square, weight = b.node.inputs
    count, eps = _produced_by(b, 1, "mean_square", 0).attrs["count"], b.node.attrs["eps"]
    grad_weight = b.emit("rms_norm_backward_weight", (b.gradient, x, square), 2, eps=eps)
    inner = b.emit_step("rms_norm_backward_sum", (b.gradient, x, weight), 0, "inner")
    inputs = (b.gradient, x, square, weight, inner)
    return b.emit("rms_norm_backward", inputs, 0, eps=eps, count=count), None, grad_weight


def _softmax(b: Backward) -> Gradients:
    _produced_by(b, 1, "amax", 0)
    _produced_by(b, 2, "sum_exp", 0, 1)
    inner = b.emit_step("softmax_backward_sum", (b.gradient, b.result), 0, "inner", **b.attrs("dim"))
    return b.emit("softmax_backward", (b.gradient, b.result, inner), 0, **b.attrs("dim")), None, None


def _log_softmax(b: Backward) -> Gradients:
    _produced_by(b, 1, "amax", 0)
    _produced_by(b, 2, "sum_exp", 0, 1)
    dim = int(cast("int", b.node.attrs.get("dim", -1))) % b.rank()
    inner = b.emit_step("sum", (b.gradient,), 0, "inner", dims=(dim,))
    return b.emit("log_softmax_backward", (b.gradient, b.result, inner), 0, **b.attrs("dim")), None, None


def _nll_loss(b: Backward) -> Gradients:
    classes = b.shape(0)[int(cast("int", b.node.attrs.get("dim", -1)))]
    inputs = (b.gradient, b.node.inputs[1])
    return b.emit("nll_loss_backward", inputs, 0, **b.attrs("count", "dim"), extents={"c": classes}), None


def _loss(b: Backward) -> Gradients:
    """Return the gradients of a table's loss: one node computes those of x and of the target."""
    return b.emit_all(f"{b.node.op}_backward", (b.gradient, *b.node.inputs), "grad_operands", **b.attrs("count"))


RULES: dict[str, Rule] = {
    **named(_batch_norm, _normalize, _mean_square, _rms_norm, _softmax, _log_softmax, _cross_entropy, _nll_loss),
    **dict.fromkeys(LOSSES, _loss),
}
