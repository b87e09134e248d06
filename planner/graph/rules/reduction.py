"""Gradients of reductions and of `expand`."""

from __future__ import annotations

from planner.graph.rules.base import Backward, Gradients, Rule, expand, integers, number


def _sum(b: Backward) -> Gradients:
    return (expand(b, b.gradient, 0, _dims(b), 1.0),)


def _mean(b: Backward) -> Gradients:
    return (expand(b, b.gradient, 0, _dims(b), 1.0 / number(b, "count")),)


def _dims(b: Backward) -> tuple[int, ...]:
    return tuple(sorted(integers(b, "dims")))


def _expand_backward(b: Backward) -> Gradients:
    factor = b.node.attrs.get("factor", 1.0)
    if factor == 1.0:
        return (b.emit("sum", (b.gradient,), 0, **b.attrs("dims")),)
    summed = b.emit_step("sum", (b.gradient,), 0, "sum", **b.attrs("dims"))
    return (b.emit("scale", (summed,), 0, factor=factor),)


RULES: dict[str, Rule] = {"sum": _sum, "mean": _mean, "expand": _expand_backward}
