"""Gradients of reductions and of `expand`."""

from __future__ import annotations

from typing import cast

from planner.graph.ir import Value
from planner.graph.rules.base import Backward, Gradients, Rule, expand, integers, number
from tdl.operator import named


def _dims(b: Backward) -> tuple[int, ...]:
    return tuple(sorted(integers(b, "dims")))


def _expand_backward(b: Backward) -> Gradients:
    factor = b.node.attrs.get("factor", 1.0)
    if factor == 1.0:
        return (b.emit("sum", (b.gradient,), 0, **b.attrs("dims")),)
    summed = b.emit_step("sum", (b.gradient,), 0, "sum", **b.attrs("dims"))
    return (b.emit("scale", (summed,), 0, factor=factor),)


def _extreme(b: Backward) -> Gradients:
    """Share the gradient equally among the elements that attain the extreme."""
    x, dims = b.node.inputs[0], b.attrs("dims")
    count = b.emit_step("count_extremes", (x, b.result), 0, "count", **dims)
    share = b.emit_step("div", (b.gradient, count), 0, "share")
    return (b.emit("extreme_backward", (share, x, b.result), 0, **dims, **b.attrs("chosen")),)


def _prod(b: Backward) -> Gradients:
    """Divide the product by each factor; the gradient is not defined where a factor is zero."""
    dims = _dims(b)
    extents: dict[str, Value] = {f"e{place}": b.shape(0)[dim] for place, dim in enumerate(dims)}
    product = b.emit_step("mul", (b.gradient, b.result), 0, "product")
    wide = b.emit_step("expand", (product,), 0, "wide", dims=dims, extents=extents)
    return (b.emit("div", (wide, b.node.inputs[0]), 0),)


def _variance(b: Backward) -> Gradients:
    """Return the gradients of x and of the mean; if the mean is that of x, the second is zero."""
    x, mean = b.node.inputs
    dims = _dims(b) if "dims" in b.node.attrs else (0, 2, 3)
    gradient = b.emit("var_backward", (b.gradient, x, mean), 0, **b.attrs("count"), dims=dims)
    producer = b.producers.get(mean)
    if producer is not None and producer.op == "mean" and producer.inputs == (x,):
        return gradient, None
    summed = b.emit_step("sum", (gradient,), 1, "sum", dims=dims)
    return gradient, b.emit("neg", (summed,), 1)


def _sum_exp(b: Backward) -> Gradients:
    """Return the gradients of x and of the maximum subtracted from it."""
    x, maximum = b.node.inputs
    dim = int(cast("int", b.node.attrs.get("dim", -1))) % b.rank()
    rows = tuple(other for other in range(b.rank()) if other != dim)
    product = b.emit_step("mul", (b.gradient, b.result), 1, "product")
    second = b.emit("neg", (product,), 1)
    shifted = b.emit_step("sub", (x, maximum), 0, "shifted", dims=rows)
    exponential = b.emit_step("exp", (shifted,), 0, "exponential")
    return b.emit("mul", (exponential, b.gradient), 0, dims=rows), second


def _cumsum(b: Backward) -> Gradients:
    reverse = not b.node.attrs.get("reverse", False)
    return (b.emit("cumsum", (b.gradient,), 0, **b.attrs("dim", "extents"), reverse=reverse),)


RULES: dict[str, Rule] = {
    **named(_prod, _sum_exp, _cumsum),
    "sum": lambda b: (expand(b, b.gradient, 0, _dims(b), 1.0),),
    "mean": lambda b: (expand(b, b.gradient, 0, _dims(b), 1.0 / number(b, "count")),),
    "amax": _extreme,
    "amin": _extreme,
    "var": _variance,
    "batch_norm_var": _variance,
    "expand": _expand_backward,
}
