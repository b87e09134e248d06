"""Gradients of matrix products, convolutions and pooling."""

from __future__ import annotations

from typing import cast

from planner.graph.ir import Value
from planner.graph.rules.base import Backward, Gradients, Rule, expand, integers
from tdl.operator import named


def _matrix_product(b: Backward) -> Gradients:
    """Return the gradients of `mm` or `bmm`: products of the same kind."""
    left, right = b.node.inputs
    transpose_a, transpose_b = (bool(b.node.attrs.get(name, False)) for name in ("transpose_a", "transpose_b"))
    first = (b.gradient, right), {"transpose_a": False, "transpose_b": not transpose_b}
    second = (left, b.gradient), {"transpose_a": not transpose_a, "transpose_b": False}
    if transpose_a:
        first = (right, b.gradient), {"transpose_a": transpose_b, "transpose_b": True}
    if transpose_b:
        second = (b.gradient, left), {"transpose_a": True, "transpose_b": transpose_a}
    return tuple(b.emit(b.node.op, inputs, at, **attrs) for at, (inputs, attrs) in enumerate((first, second)))


def _grouped_product(b: Backward) -> Gradients:
    rows, matrices, groups = b.node.inputs
    transpose = bool(b.node.attrs.get("transpose", False))
    pair = (b.gradient, rows) if transpose else (rows, b.gradient)
    return (
        b.emit("grouped_mm", (b.gradient, matrices, groups), 0, transpose=not transpose),
        b.emit("grouped_mm_backward", (*pair, groups), 1, extents={"g": b.shape(1)[0]}),
        None,
    )


def _grouped_outer_product(b: Backward) -> Gradients:
    first, second, groups = b.node.inputs
    return (
        b.emit("grouped_mm", (second, b.gradient, groups), 0, transpose=True),
        b.emit("grouped_mm", (first, b.gradient, groups), 1, transpose=False),
        None,
    )


def _einsum(b: Backward) -> Gradients:
    equation = cast("str", b.node.attrs["equation"])
    sources, target = equation.replace(" ", "").split("->")
    terms = sources.split(",")
    return tuple(_einsum_operand(b, terms, target, operand) for operand in range(len(terms)))


def _einsum_operand(b: Backward, terms: list[str], target: str, operand: int) -> str:
    """Contract the gradient with the other operands; expand along letters that only this operand has."""
    others = [
        (term, tensor)
        for number, (term, tensor) in enumerate(zip(terms, b.node.inputs, strict=True))
        if number != operand
    ]
    term_of_operand = terms[operand]
    known = set(target).union(*(term for term, _ in others))
    reached = "".join(letter for letter in term_of_operand if letter in known)
    equation = ",".join([target, *(term for term, _ in others)]) + "->" + reached
    inputs = (b.gradient, *(tensor for _, tensor in others))
    if reached == term_of_operand:
        return b.emit("einsum", inputs, operand, equation=equation)
    contracted = b.emit_step("einsum", inputs, operand, "contract", equation=equation)
    missing = tuple(dim for dim, letter in enumerate(term_of_operand) if letter not in known)
    return expand(b, contracted, operand, missing, 1.0)


def _convolution(b: Backward) -> Gradients:
    source, weight = b.node.inputs
    window = b.attrs("stride", "padding", "dilation", "groups")
    image, taps = dict(zip("yx", b.shape(0)[2:], strict=True)), dict(zip(("dy", "dx"), b.shape(1)[2:], strict=True))
    return (
        b.emit("convolution_backward_input", (b.gradient, weight), 0, **window, extents=image),
        b.emit("convolution_backward_weight", (b.gradient, source), 1, **window, extents=taps),
    )


def _transposed_convolution(b: Backward) -> Gradients:
    """Apply the convolution itself; in the weight's gradient, image and gradient swap places."""
    source, weight = b.node.inputs
    window = b.attrs("stride", "padding", "dilation", "groups")
    taps = dict(zip(("dy", "dx"), b.shape(1)[2:], strict=True))
    return (
        b.emit("convolution", (b.gradient, weight), 0, **window),
        b.emit("convolution_backward_weight", (source, b.gradient), 1, **window, extents=taps),
    )


def _pool(b: Backward) -> Gradients:
    inputs, window = (b.gradient, *b.node.outputs[1:]), b.attrs("stride", "padding", "kernel", "dilation")
    extents: Value = dict(zip(("y", "x", "dy", "dx"), (*b.shape(0)[2:], *integers(b, "kernel")), strict=True))
    return (b.emit(f"{b.node.op}_backward", inputs, 0, **window, extents=extents),)


def _im2col(b: Backward) -> Gradients:
    extents = dict(zip("yx", b.shape(0)[2:], strict=True))
    return (b.emit("col2im", (b.gradient,), 0, **b.attrs("stride", "padding", "dilation"), extents=extents),)


def _col2im(b: Backward) -> Gradients:
    extents = dict(zip(("dy", "dx", "y", "x"), b.shape(0)[2:], strict=True))
    return (b.emit("im2col", (b.gradient,), 0, **b.attrs("stride", "padding", "dilation"), extents=extents),)


RULES: dict[str, Rule] = {
    **named(_einsum, _convolution, _im2col, _col2im),
    "mm": _matrix_product,
    "bmm": _matrix_product,
    "grouped_mm": _grouped_product,
    "grouped_mm_backward": _grouped_outer_product,
    "convolution_backward_input": _transposed_convolution,
    "max_pool2d_with_indices": _pool,
    "avg_pool2d": _pool,
}
