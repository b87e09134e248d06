"""Gradients of operators that only move elements."""

from __future__ import annotations

import tdl
from planner.graph.rules.base import Backward, Gradients, Rule, materialise


def _reshape(b: Backward) -> Gradients:
    source, target = b.node.attrs["source"], b.node.attrs["target"]
    # What the operand's shape says of the extents, the gradient's need not.
    extents = tdl.catalog["reshape"].describe((b.rank(),), b.node.attrs).extents((b.shape(0),), b.node.attrs)
    return (b.emit("reshape", (b.gradient,), 0, source=target, target=source, extents=extents),)


def _unbind(b: Backward) -> Gradients:
    """Stack the outputs' gradients; an output that nobody reads contributes zeros."""
    parts = []
    for number, (output, gradient) in enumerate(zip(b.node.outputs, b.arriving, strict=True)):
        if gradient is None:
            parts.append(b.emit_step("scale", (output,), 0, f"zeros.{number}", factor=0.0))
        else:
            parts.append(materialise(b.builder, gradient))
    return (b.emit("stack", tuple(parts), 0, **b.attrs("dim")),)


def _stack(b: Backward) -> Gradients:
    count = len(b.node.inputs)
    return b.emit_all("unbind", (b.gradient,), "grad_tensors", **b.attrs("dim"), n=count)


RULES: dict[str, Rule] = {"reshape": _reshape, "unbind": _unbind, "stack": _stack}
