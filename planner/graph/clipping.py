"""Gradient clipping, by value and by the norm of all gradients together, as nodes of the graph.

Every worker sums the squares of the parts that it has, so that only scalars move, and all multiply by one coefficient.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import ascii_lowercase

from planner.graph.build import GraphBuilder
from planner.graph.ir import Node, Value

LEAST_NORM = 1e-6
"""What is added to the norm that is divided by; as PyTorch does."""

NARROW = ("float16", "bfloat16")


def clip_by_value(builder: GraphBuilder, gradients: Mapping[str, str], most: float) -> dict[str, str]:
    """Append the nodes that bound every element from -most to most; return the gradients' new names, by weight."""
    return {
        weight: _emit(builder, f"{weight}.grad.bounded", "clamp", gradient, min=-most, max=most)
        for weight, gradient in gradients.items()
    }


def clip_by_norm(builder: GraphBuilder, gradients: Mapping[str, str], most: float) -> dict[str, str]:
    """Append the nodes that scale all gradients alike where their norm is above `most`; return their new names.

    The norm is the root of the sum of all elements' squares. What `torch.nn.utils.clip_grad_norm_` computes.
    """
    if not gradients:
        return {}
    squares = [_sum_of_squares(builder, weight, gradient) for weight, gradient in gradients.items()]
    # One operand of an operator for each, where a sum of them would tie how alike gradients are split.
    stacked = _emit(builder, "clip.squares", "stack", *squares, dim=0)
    norm = _emit(builder, "clip.norm", "sqrt", _emit(builder, "clip.total", "sum", stacked, dims=(0,)))
    inverse = _emit(
        builder, "clip.inverse", "reciprocal", _emit(builder, "clip.above", "add_scalar", norm, value=LEAST_NORM)
    )
    factor = _emit(
        builder, "clip.factor", "clamp", _emit(builder, "clip.ratio", "scale", inverse, factor=most), max=1.0
    )
    return {weight: _scaled(builder, weight, gradient, factor) for weight, gradient in gradients.items()}


def _sum_of_squares(builder: GraphBuilder, weight: str, gradient: str) -> str:
    """Return the sum of a gradient's squares, in single precision at least."""
    if builder.tensors[gradient].dtype in NARROW:
        gradient = _emit(builder, f"{weight}.grad.wide", "cast", gradient, dtype="float32")
    letters = ascii_lowercase[: len(builder.shape(gradient))]
    return _emit(builder, f"{weight}.grad.squares", "einsum", gradient, gradient, equation=f"{letters},{letters}->")


def _scaled(builder: GraphBuilder, weight: str, gradient: str, factor: str) -> str:
    dtype = builder.tensors[gradient].dtype
    if builder.tensors[factor].dtype != dtype:
        factor = _emit(builder, f"{weight}.grad.factor", "cast", factor, dtype=dtype)
    return _emit(builder, f"{weight}.grad.clipped", "mul", gradient, factor, dims=())


def _emit(builder: GraphBuilder, name: str, op: str, *inputs: str, **attrs: Value) -> str:
    return builder.emit(Node(name, op, inputs, (), attrs), "gradient")[0]
