"""Gradients of element-wise operators; those of `tdl.catalog.elementwise` come from its table."""

from __future__ import annotations

from functools import partial

from planner.graph.ir import Value
from planner.graph.rules.base import Backward, Gradients, Rule, flat, integers, level, number
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
}
