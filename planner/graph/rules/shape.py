"""Gradients of operators that only move elements."""

from __future__ import annotations

from typing import cast

import tdl
from planner.graph.rules.base import Backward, Gradient, Gradients, Rule, integers, materialize, number
from tdl.operator import named


def _reshape(b: Backward) -> Gradients:
    source, target = b.node.attrs["source"], b.node.attrs["target"]
    # The gradient's description needs extents that follow from the operand's shape but not from the gradient's.
    extents = tdl.catalog["reshape"].describe((b.rank(),), b.node.attrs).extents((b.shape(0),), b.node.attrs)
    return (b.emit("reshape", (b.gradient,), 0, source=target, target=source, extents=extents),)


def _unbind(b: Backward) -> Gradients:
    """Stack the gradients of the outputs; an output without readers contributes zeros."""
    pairs = zip(b.arriving, b.node.outputs, strict=True)
    parts = tuple(materialize(b.builder, gradient, output) for gradient, output in pairs)
    return (b.emit("stack", parts, 0, **b.attrs("dim")),)


def _stack(b: Backward) -> Gradients:
    count = len(b.node.inputs)
    return b.emit_all("unbind", (b.gradient,), "grad_tensors", **b.attrs("dim"), n=count)


def _permute(b: Backward) -> Gradients:
    dims = integers(b, "dims")
    return (b.emit("permute", (b.gradient,), 0, dims=tuple(dims.index(dim) for dim in range(len(dims)))),)


def _cat(b: Backward) -> Gradients:
    """Split the gradient into the operands' parts."""
    sizes, total = integers(b, "sizes"), sum(integers(b, "sizes"))
    if len(sizes) == 1:
        return b.arriving
    starts = [sum(sizes[:operand]) for operand in range(len(sizes))]
    return tuple(
        b.emit("slice", (b.gradient,), operand, **b.attrs("dim"), start=start, skip=total - start - size)
        for operand, (start, size) in enumerate(zip(starts, sizes, strict=True))
    )


def _scattered(b: Backward, op: str, dim: int, *names: str, inputs: tuple[str, ...] = ()) -> Gradients:
    """Apply `op`, which restores the operand's extent along a dimension."""
    extents = {f"i{dim}": b.shape(0)[dim]}
    return b.emit(op, (b.gradient, *inputs), 0, **b.attrs(*names), extents=extents), *(None for _ in inputs)


def _slice(b: Backward) -> Gradients:
    """Pad the gradient with zeros; with steps, put zeros between elements too."""
    dim = int(number(b, "dim"))
    if b.node.attrs.get("step", 1) != 1:
        return _scattered(b, "slice_backward", dim, "dim", "start", "step")
    low, high = ([0] * b.rank() for _ in range(2))
    low[dim], high[dim] = (int(cast("int", b.node.attrs.get(name, 0))) for name in ("start", "skip"))
    return (b.emit("constant_pad_nd", (b.gradient,), 0, low=tuple(low), high=tuple(high)),)


def _pad(b: Backward) -> Gradients:
    """Cut off the padding, dimension by dimension."""
    gradient: Gradient | None = b.arriving[0]
    padded = [(dim, *ends) for dim, ends in enumerate(zip(integers(b, "low"), integers(b, "high"), strict=True))]
    for dim, low, high in padded:
        if low or high:
            gradient = b.emit_step("slice", (str(gradient),), 0, f"cut{dim}", dim=dim, start=low, skip=high)
    return (gradient,)


def _diagonal(b: Backward) -> Gradients:
    dim2 = int(cast("int", b.node.attrs.get("dim2", 1)))
    return _scattered(b, "diagonal_backward", dim2, "dim1", "dim2")


def _embedding(b: Backward) -> Gradients:
    inputs = (b.gradient, b.node.inputs[1])
    return b.emit("embedding_dense_backward", inputs, 0, extents={"v": b.shape(0)[0]}), None


def _by_indices(b: Backward) -> Gradients:
    return _scattered(b, f"{b.node.op}_backward", int(number(b, "dim")), "dim", inputs=b.node.inputs[1:])


def _read_back(b: Backward) -> Gradients:
    """Read the gradient where the operand's elements were added."""
    op = b.node.op.removesuffix("_backward")
    return b.emit(op, (b.gradient, b.node.inputs[1]), 0, **b.attrs("dim")), None


def _in_order(b: Backward) -> Gradients:
    """Scatter the gradient of the values to where they came from; the indices have none."""
    if b.arriving[0] is None:
        return (None,)
    return _scattered(b, "gather_backward", int(number(b, "dim")), "dim", inputs=b.node.outputs[1:])[:1]


RULES: dict[str, Rule] = {
    **named(_reshape, _unbind, _stack, _permute, _cat, _slice, _diagonal, _embedding),
    "select": lambda b: _scattered(b, "select_backward", int(number(b, "dim")), "dim", "index"),
    "constant_pad_nd": _pad,
    "flip": lambda b: (b.emit("flip", (b.gradient,), 0, **b.attrs("dims", "sizes")),),
    "index_select": _by_indices,
    "gather": _by_indices,
    "embedding_dense_backward": lambda b: (b.emit("embedding", (b.gradient, b.node.inputs[1]), 0), None),
    "index_select_backward": _read_back,
    "gather_backward": _read_back,
    "sort": _in_order,
    "topk": _in_order,
}
