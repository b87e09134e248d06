"""Gradient clipping, by value and by the norm of all gradients together, as nodes of the graph.

Every worker sums the squares of the parts that it has, so that only scalars move, and all multiply by one coefficient.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from string import ascii_lowercase

from planner.graph.build import GraphBuilder

LEAST_NORM = 1e-6
"""What is added to the norm that is divided by; as PyTorch does."""

NARROW = ("float16", "bfloat16")


def clip_by_value(builder: GraphBuilder, gradients: Mapping[str, str], most: float) -> dict[str, str]:
    """Append the nodes that bound every element from -most to most; return the gradients' new names, by weight."""
    emit = partial(builder.apply, "clamp", role="gradient", min=-most, max=most)
    return {weight: emit(gradient, name=f"{weight}.grad.bounded") for weight, gradient in gradients.items()}


def clip_by_norm(builder: GraphBuilder, gradients: Mapping[str, str], most: float) -> dict[str, str]:
    """Append the nodes that scale all gradients alike where their norm is above `most`; return their new names.

    The norm is the root of the sum of all elements' squares. What `torch.nn.utils.clip_grad_norm_` computes.
    """
    if not gradients:
        return {}
    emit = partial(builder.apply, role="gradient")
    squares = [_sum_of_squares(builder, weight, gradient) for weight, gradient in gradients.items()]
    # One operand of an operator for each, where a sum of them would tie how alike gradients are split.
    stacked = emit("stack", *squares, name="clip.squares", dim=0)
    norm = emit("sqrt", emit("sum", stacked, name="clip.total", dims=(0,)), name="clip.norm")
    above = emit("add_scalar", norm, name="clip.above", value=LEAST_NORM)
    ratio = emit("scale", emit("reciprocal", above, name="clip.inverse"), name="clip.ratio", factor=most)
    factor = emit("clamp", ratio, name="clip.factor", max=1.0)
    return {weight: _scaled(builder, weight, gradient, factor) for weight, gradient in gradients.items()}


def _sum_of_squares(builder: GraphBuilder, weight: str, gradient: str) -> str:
    """Return the sum of a gradient's squares, in single precision at least."""
    emit = partial(builder.apply, role="gradient")
    if builder.tensors[gradient].dtype in NARROW:
        gradient = emit("cast", gradient, name=f"{weight}.grad.wide", dtype="float32")
    letters = ascii_lowercase[: len(builder.shape(gradient))]
    return emit("einsum", gradient, gradient, name=f"{weight}.grad.squares", equation=f"{letters},{letters}->")


def _scaled(builder: GraphBuilder, weight: str, gradient: str, factor: str) -> str:
    emit = partial(builder.apply, role="gradient")
    dtype = builder.tensors[gradient].dtype
    if builder.tensors[factor].dtype != dtype:
        factor = emit("cast", factor, name=f"{weight}.grad.factor", dtype=dtype)
    return emit("mul", gradient, factor, name=f"{weight}.grad.clipped", dims=())
