"""Element-wise operators."""

from __future__ import annotations

from planner.graph.ir import Value as Attribute
from planner.pytorch.axes import Value
from planner.pytorch.operations import binary, promoted, unary
from planner.pytorch.operators.call import Converter, TracedCall, UnsupportedError
from planner.pytorch.translation import Translation

UNARY = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp", "expm1", "floor",
    "hardsigmoid", "hardswish", "log", "log10", "log1p", "log2", "neg", "reciprocal", "relu", "round", "rsqrt",
    "sigmoid", "sign", "silu", "sin", "sinh", "sqrt", "square", "tan", "tanh", "trunc",
)  # fmt: skip

BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "pow", "atan2")


def _unary(op: str) -> Converter:
    def converter(t: Translation, call: TracedCall) -> Value:
        if call.get("decimals"):
            raise UnsupportedError(f"{op} to decimals: scale before and after")
        return unary(t, op, call["self"])

    return converter


def _same(t: Translation, call: TracedCall) -> Value:
    value: Value = call["self"]
    return value


def _gelu(t: Translation, call: TracedCall) -> Value:
    return unary(t, "gelu", call["self"], approximate=call["approximate"])


def _leaky_relu(t: Translation, call: TracedCall) -> Value:
    return unary(t, "leaky_relu", call["self"], negative_slope=float(call["negative_slope"]))


def _elu(t: Translation, call: TracedCall) -> Value:
    if float(call["input_scale"]) != 1.0:
        raise UnsupportedError("elu with an input_scale has no operator here")
    return unary(t, "elu", call["self"], alpha=float(call["alpha"]), scale=float(call["scale"]))


def _softplus(t: Translation, call: TracedCall) -> Value:
    """Scale before and after; beyond the threshold PyTorch's result differs by less than rounding."""
    beta = float(call["beta"])
    value = unary(t, "softplus", _scaled(t, call["self"], beta))
    return _scaled(t, value, 1.0 / beta)


def _clamp(t: Translation, call: TracedCall) -> Value:
    low, high = call.get("min"), call.get("max")
    if isinstance(low, Value) or isinstance(high, Value):
        raise UnsupportedError("clamp by tensors: use torch.maximum and torch.minimum")
    attrs: dict[str, Attribute] = {name: float(end) for name, end in (("min", low), ("max", high)) if end is not None}
    return unary(t, "clamp", call["self"], **attrs)


def _hardtanh(t: Translation, call: TracedCall) -> Value:
    return unary(t, "clamp", call["self"], min=float(call["min_val"]), max=float(call["max_val"]))


def _scaled(t: Translation, value: Value, factor: float) -> Value:
    return value if factor == 1.0 else unary(t, "scale", value, factor=factor)


def _number(operand: object) -> float | None:
    return float(operand) if isinstance(operand, int | float) else None


def _binary(t: Translation, call: TracedCall) -> Value:
    """Apply an operator of two tensors, or of a tensor and a number."""
    if call.get("rounding_mode") is not None:
        raise UnsupportedError(f"{call.op} with a rounding_mode: round the quotient")
    one, other = call["self"], call["other"] if "other" in call.arguments else call["exponent"]
    alpha = float(call.get("alpha", 1.0))
    value = _number(other)
    if value is not None:
        return _with_number(t, call, one, value * alpha)
    if _number(one) is not None:
        return unary(t, "rpow_scalar", other, value=float(one))
        other = _scaled(t, other, alpha)
    if not t.same_dtype(one, other):
        one, other = promoted(t, one, other)
    return binary(t, call.op, one, other)


def _with_number(t: Translation, call: TracedCall, one: Value, value: float) -> Value:
    match call.op:
        case "add":
            return one if not value else unary(t, "add_scalar", one, value=value)
        case "sub":
            return one if not value else unary(t, "add_scalar", one, value=-value)
        case "mul":
            return _scaled(t, one, value)
        case "div":
            return _scaled(t, one, 1.0 / value)
        case "pow":
            return unary(t, "square", one) if value == 2 else unary(t, "pow_scalar", one, value=value)
    raise UnsupportedError(f"{call.op} of a tensor and a number has no operator here")


def _rsub(t: Translation, call: TracedCall) -> Value:
    value = _number(call["other"])
    if value is None or float(call["alpha"]) != 1.0:
        raise UnsupportedError("rsub with a tensor or alpha: write other - self")
    return unary(t, "rsub_scalar", call["self"], value=value)


def _masked_fill(t: Translation, call: TracedCall) -> Value:
    value = _number(call["value"])
    if value is None:
        raise UnsupportedError("masked_fill with a tensor: give the value as a number")
    return binary(t, "masked_fill", call["self"], call["mask"], value=value)


def _dropout(t: Translation, call: TracedCall) -> Value:
    if not call["train"] or not call["p"]:
        value: Value = call["input"]
        return value
    raise UnsupportedError(f"dropout of {call['p']:g} in training: build the model with p=0")


CONVERTERS: dict[str, Converter] = {
    **{name: _unary(name) for name in UNARY},
    **dict.fromkeys(BINARY, _binary),
    **dict.fromkeys(("clone", "contiguous", "alias", "lift_fresh_copy"), _same),
    "gelu": _gelu,
    "leaky_relu": _leaky_relu,
    "elu": _elu,
    "softplus": _softplus,
    "clamp": _clamp,
    "clamp_min": _clamp,
    "hardtanh": _hardtanh,
    "relu6": lambda t, call: unary(t, "clamp", call["self"], min=0.0, max=6.0),
    "rsub": _rsub,
    "masked_fill": _masked_fill,
    "dropout": _dropout,
    "feature_dropout": _dropout,
}
