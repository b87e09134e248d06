"""Gradients of element-wise operators; those of `tdl.catalog.pointwise` come from its table."""

from __future__ import annotations

from planner.graph.rules.base import Backward, Gradients, Rule, integers, number
from tdl.catalog.pointwise import BINARY, OPERATORS, SCALAR, UNARY


def _of_result(op: str) -> Rule:
    """Return the rule: `op` of the arriving gradient and the forward result."""
    return lambda b: (b.emit(op, (b.gradient, b.result), 0),)


def _log(b: Backward) -> Gradients:
    return (b.emit("div", (b.gradient, b.node.inputs[0]), 0),)


def _neg(b: Backward) -> Gradients:
    return (b.emit("neg", (b.gradient,), 0),)


def _scale(b: Backward) -> Gradients:
    factor = number(b, "factor")
    if isinstance(b.arriving[0], float):
        return (b.arriving[0] * factor,)
    return (b.emit("scale", (b.gradient,), 0, factor=factor),)


def _cast(b: Backward) -> Gradients:
    """Cast back."""
    if isinstance(b.arriving[0], float):
        return b.arriving
    return (b.emit("cast", (b.gradient,), 0, dtype=b.builder.tensors[b.node.inputs[0]].dtype),)


def _add_n(b: Backward) -> Gradients:
    return (b.arriving[0],) * len(b.node.inputs)


def _narrow(b: Backward, gradient: str) -> str:
    """Sum a gradient of the first operand's shape over the dimensions along which the second is broadcast."""
    rank = b.rank()
    if b.node.attrs.get("dims") is None:
        return gradient
    dims = integers(b, "dims")
    reduced = tuple(dim for dim in range(rank) if dim not in dims)
    if reduced:
        gradient = b.emit_step("sum", (gradient,), 1, "sum", dims=reduced)
    kept = tuple(sorted(dims))
    if kept == dims:
        return gradient
    letters = "abcdefghijklmnopqrstuvwxyz"
    source, target = letters[: len(kept)], "".join(letters[kept.index(dim)] for dim in dims)
    return b.emit_step("einsum", (gradient,), 1, "transpose", equation=f"{source}->{target}")


def _add(b: Backward) -> Gradients:
    if isinstance(b.arriving[0], float):
        return b.arriving * 2
    return b.gradient, _narrow(b, b.gradient) if b.wanted[1] else None


def _sub(b: Backward) -> Gradients:
    second = None
    if b.wanted[1]:
        second = b.emit("neg", (_narrow(b, b.gradient),), 1)
    return b.gradient, second


def _mul(b: Backward) -> Gradients:
    left, right = b.node.inputs
    first = b.emit("mul", (b.gradient, right), 0, **b.attrs("dims")) if b.wanted[0] else None
    second = _narrow(b, b.emit("mul", (b.gradient, left), 1)) if b.wanted[1] else None
    return first, second


def _div(b: Backward) -> Gradients:
    right = b.node.inputs[1]
    dims = b.attrs("dims")
    quotient = b.emit("div", (b.gradient, right), 0, **dims)
    if not b.wanted[1]:
        return quotient, None
    product = b.emit_step("mul", (quotient, b.result), 1, "product")
    return quotient, b.emit("neg", (_narrow(b, product),), 1)


def _of_row(op: str) -> Rule:
    """Return the rule of a table's row with a slope: `op`_backward of the arriving gradient and the operand."""

    def rule(b: Backward) -> Gradients:
        attrs = b.attrs(*OPERATORS[op].attributes)
        return (b.emit(f"{op}_backward", (b.gradient, b.node.inputs[0]), 0, **attrs),)

    return rule


def _of_binary_row(op: str) -> Rule:
    """Return the rule of a binary row: both gradients from one node, the second summed over what it is spread over."""

    def rule(b: Backward) -> Gradients:
        first, second = b.emit_all(f"{op}_backward", (b.gradient, *b.node.inputs), "grad_operands", **b.attrs("dims"))
        return first, _narrow(b, second) if b.wanted[1] else None

    return rule


def _passed(b: Backward) -> Gradients:
    return b.arriving


def _flat(b: Backward) -> Gradients:
    """No gradient flows: the slope is zero wherever there is one."""
    return (None,) * len(b.node.inputs)


def _same(b: Backward) -> Gradients:
    """Apply the operator itself to the gradient: it only selects and scales elements, whatever their values."""
    attrs = b.attrs(*(name for name in b.node.attrs if name != "value"))
    rest = (None,) * (len(b.node.inputs) - 1)
    return b.emit(b.node.op, (b.gradient, *b.node.inputs[1:]), 0, **attrs), *rest


def _filled(b: Backward) -> Gradients:
    rest = b.node.inputs[1:]
    attrs = b.attrs("dims") | {"value": 0.0}
    return b.emit(b.node.op, (b.gradient, *rest), 0, **attrs), *(None for _ in rest)


def _where(b: Backward) -> Gradients:
    mask, _, other = b.node.inputs
    dims = b.attrs("dims")
    second = third = None
    if b.wanted[2]:
        third = b.emit_step("masked_fill", (b.gradient, mask), 2, "kept", **dims, value=0.0)
        if not b.builder.shape(other) and b.builder.shape(b.gradient):
            third = b.emit("sum", (third,), 2, dims=tuple(range(len(b.builder.shape(b.gradient)))))
    if b.wanted[1]:
        unmasked = b.emit_step("logical_not", (mask,), 1, "unmasked")
        second = b.emit("masked_fill", (b.gradient, unmasked), 1, **dims, value=0.0)
    return None, second, third


def _lerp(b: Backward) -> Gradients:
    weight = number(b, "weight")
    return tuple(
        b.emit("scale", (b.gradient,), operand, factor=factor) if b.wanted[operand] else None
        for operand, factor in enumerate((1 - weight, weight))
    )


FLAT = (
    *(name for name, (_, slope) in UNARY.items() if slope is None and name != "clone"),
    *(name for name, slopes in BINARY.items() if None in slopes),
    *(f"{comparison}_scalar" for comparison in ("eq", "ne", "lt", "le", "gt", "ge")),
)
"""Operators whose slope is zero wherever there is one."""

RULES: dict[str, Rule] = {
    "relu": _of_result("threshold_backward"),
    "sigmoid": _of_result("sigmoid_backward"),
    "tanh": _of_result("tanh_backward"),
    "exp": _of_result("mul"),
    "log": _log,
    "neg": _neg,
    "scale": _scale,
    "cast": _cast,
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "add_n": _add_n,
    **{name: _of_row(name) for name, (_, slope) in {**UNARY, **SCALAR}.items() if slope is not None},
    **{name: _of_binary_row(name) for name, slopes in BINARY.items() if None not in slopes},
    **dict.fromkeys(FLAT, _flat),
    **dict.fromkeys(("clone", "add_scalar", "fmod_scalar", "remainder_scalar"), _passed),
    "rsub_scalar": _neg,
    **dict.fromkeys(("tril", "triu", "dropout"), _same),
    "masked_fill": _filled,
    "causal_mask": _filled,
    "where": _where,
    "lerp": _lerp,
}
