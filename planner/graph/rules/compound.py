"""Gradients of compound operators, including those through the nodes that compute their statistics, and of attention.

Attention has one backward node for the queries, one for keys and values, and one for a bias.
"""

from __future__ import annotations

from typing import cast

from planner.errors import GraphError
from planner.graph.ir import Node, Value
from planner.graph.rules.base import Backward, Gradients, Rule, flat, materialize, number
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
    **named(_batch_norm, _normalize, _mean_square, _rms_norm, _softmax, _log_softmax, _cross_entropy, _nll_loss),
    **dict.fromkeys(LOSSES, _loss),
    **named(_attention, _rotary, _dispatch, _collect),
    "biased_attention": _attention,
    "expert_slots": flat,
}
