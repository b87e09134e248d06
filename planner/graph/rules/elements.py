"""Gradients of element-wise operators, of reductions, and of operators that move elements.

Those of the operators in the table of `tdl.catalog.elementwise` come from that table.
"""

from __future__ import annotations

from functools import partial
from typing import cast

import tdl
from planner.graph.ir import Value
from planner.graph.rules.base import (
    Backward,
    Gradient,
    Gradients,
    Rule,
    expand,
    flat,
    integers,
    level,
    materialize,
    number,
)
from tdl.catalog.elementwise import BINARY, FLAT, LEVEL, OPERATORS, PASSING, SCALAR, UNARY
from tdl.operator import named


def _of_result(op: str) -> Rule:
    """Return the rule that applies `op` to the arriving gradient and the forward result."""
    return lambda b: (b.emit(op, (b.gradient, b.result), 0),)


def _neg(b: Backward) -> Gradients:
    return (b.emit("neg", (b.gradient,), 0),)


def _scale(b: Backward) -> Gradients:
    factor = number(b, "factor")
    if isinstance(b.arriving[0], float):
        return (b.arriving[0] * factor,)
    return (b.emit("scale", (b.gradient,), 0, factor=factor),)


def _cast(b: Backward) -> Gradients:
    if isinstance(b.arriving[0], float):
        return b.arriving
    return (b.emit("cast", (b.gradient,), 0, dtype=b.builder.tensors[b.node.inputs[0]].dtype),)


def _narrow(b: Backward, gradient: str, operand: int) -> str:
    """Sum a gradient of the result's shape over the dimensions along which an operand is broadcast."""
    attribute = ("a_dims", "dims")[operand]
    if b.node.attrs.get(attribute) is None:
        return gradient
    dims = integers(b, attribute)
    reduced = tuple(dim for dim in range(len(b.builder.shape(b.result))) if dim not in dims)
    if reduced:
        gradient = b.emit_step("sum", (gradient,), operand, "sum", dims=reduced)
    kept = tuple(sorted(dims))
    if kept == dims:
        return gradient
    letters = "abcdefghijklmnopqrstuvwxyz"
    source, target = letters[: len(kept)], "".join(letters[kept.index(dim)] for dim in dims)
    return b.emit_step("einsum", (gradient,), operand, "transpose", equation=f"{source}->{target}")


def _add(b: Backward) -> Gradients:
    if isinstance(b.arriving[0], float):
        return b.arriving * 2
    return tuple(_narrow(b, b.gradient, operand) for operand in (0, 1))


def _sub(b: Backward) -> Gradients:
    return _narrow(b, b.gradient, 0), b.emit("neg", (_narrow(b, b.gradient, 1),), 1)


def _mul(b: Backward) -> Gradients:
    left, right = b.node.inputs
    dims = {"dims": b.node.attrs["a_dims"]} if "a_dims" in b.node.attrs else {}
    first = b.emit("mul", (b.gradient, right), 0, **b.attrs("dims"))
    return _narrow(b, first, 0), _narrow(b, b.emit("mul", (b.gradient, left), 1, **dims), 1)


def _div(b: Backward) -> Gradients:
    quotient = b.emit("div", (b.gradient, b.node.inputs[1]), 0, **b.attrs("dims"))
    product = b.emit_step("mul", (quotient, b.result), 1, "product")
    second = b.emit("neg", (_narrow(b, product, 1),), 1)
    return _narrow(b, quotient, 0), second


def _of_row(op: str) -> Rule:
    """Return the rule of a table's row with a slope: `op`_backward of the arriving gradient and the operand."""

    def rule(b: Backward) -> Gradients:
        attrs = b.attrs(*OPERATORS[op].attributes)
        return (b.emit(f"{op}_backward", (b.gradient, b.node.inputs[0]), 0, **attrs),)

    return rule


def _of_binary_row(op: str) -> Rule:
    """Return the rule of a binary row: one node computes both gradients, each summed over broadcast dimensions."""

    def rule(b: Backward) -> Gradients:
        inputs, spread = (b.gradient, *b.node.inputs), b.attrs("dims", "a_dims")
        gradients = b.emit_all(f"{op}_backward", inputs, "grad_operands", **spread)
        return tuple(_narrow(b, gradient, operand) for operand, gradient in enumerate(gradients))

    return rule


def _same(b: Backward, **replaced: Value) -> Gradients:
    """Apply the operator itself to the gradient, because it selects and scales elements regardless of their values."""
    attrs = b.attrs(*(name for name in b.node.attrs if name not in replaced)) | replaced
    rest = b.node.inputs[1:]
    return b.emit(b.node.op, (b.gradient, *rest), 0, **attrs), *(None for _ in rest)


def _where(b: Backward) -> Gradients:
    mask = b.node.inputs[0]
    unmasked = b.emit_step("logical_not", (mask,), 1, "unmasked")
    return None, _where_kept(b, unmasked, 1), _where_kept(b, mask, 2)


def _where_kept(b: Backward, hidden: str, operand: int) -> str:
    """Return the gradient of an operand of `where`, which may be a scalar, where the mask does not hide it."""
    kept = b.emit_step("masked_fill", (b.gradient, hidden), operand, "kept", **b.attrs("dims"), value=0.0)
    dims = tuple(range(len(b.builder.shape(b.gradient))))
    return kept if b.shape(operand) or not dims else b.emit("sum", (kept,), operand, dims=dims)


def _lerp(b: Backward) -> Gradients:
    weight = number(b, "weight")
    return tuple(
        b.emit("scale", (b.gradient,), operand, factor=factor) for operand, factor in enumerate((1 - weight, weight))
    )


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
    **named(_scale, _cast, _add, _sub, _mul, _div, _where, _lerp),
    "relu": _of_result("threshold_backward"),
    "sigmoid": _of_result("sigmoid_backward"),
    "tanh": _of_result("tanh_backward"),
    "exp": _of_result("mul"),
    "log": lambda b: (b.emit("div", (b.gradient, b.node.inputs[0]), 0),),
    "add_n": lambda b: (b.arriving[0],) * len(b.node.inputs),
    **{name: _of_row(name) for name in (*UNARY, *SCALAR)},
    **{name: _of_binary_row(name) for name in BINARY},
    **dict.fromkeys(FLAT, flat),
    **dict.fromkeys(LEVEL, level),
    **dict.fromkeys(PASSING, lambda b: b.arriving),
    **dict.fromkeys(("neg", "rsub_scalar"), _neg),
    **dict.fromkeys(("tril", "triu", "dropout"), _same),
    **dict.fromkeys(("masked_fill", "causal_mask"), partial(_same, value=0.0)),
    **named(_prod, _sum_exp, _cumsum),
    "sum": lambda b: (expand(b, b.gradient, 0, _dims(b), 1.0),),
    "mean": lambda b: (expand(b, b.gradient, 0, _dims(b), 1.0 / number(b, "count")),),
    "amax": _extreme,
    "amin": _extreme,
    "var": _variance,
    "batch_norm_var": _variance,
    "expand": _expand_backward,
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
