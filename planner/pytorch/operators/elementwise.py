"""Element-wise operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import torch

from planner.graph.ir import FLOATING
from planner.graph.ir import Value as Attribute
from planner.pytorch.axes import Value
from planner.pytorch.contents import DTYPES, Content, value_of
from planner.pytorch.operations import as_dtype, binary, dropped, unary
from planner.pytorch.operators.call import Converter, TracedCall, UnsupportedError, number
from planner.pytorch.operators.shapes import expanded
from planner.pytorch.translation import Translation

UNARY = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp", "expm1", "floor",
    "hardsigmoid", "hardswish", "log", "log10", "log1p", "log2", "log_sigmoid", "neg", "reciprocal", "relu", "round",
    "rsqrt", "sigmoid", "sign", "silu", "sin", "sinh", "sqrt", "square", "tan", "tanh", "trunc",
)  # fmt: skip

BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "pow", "atan2")
TORCH = {name: dtype for dtype, name in reversed(DTYPES.items())}


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
    value = unary(t, "softplus", scaled(t, call["self"], beta))
    return scaled(t, value, 1.0 / beta)


def _prelu(t: Translation, call: TracedCall) -> Value:
    """Give what is negative a slope, by channel or the same everywhere."""
    value, slope = call["self"], call["weight"]
    if prod(slope.shape) != 1:
        rest = (1,) * (value.rank - 2)
        slope = Value(slope.tensor, ((), slope.dims[0], *((),) * len(rest)), (1, *slope.shape, *rest))
    below = unary(t, "clamp", value, max=0.0)
    return binary(t, "add", unary(t, "relu", value), binary(t, "mul", below, slope))


def _mish(t: Translation, call: TracedCall) -> Value:
    value = call["self"]
    return binary(t, "mul", value, unary(t, "tanh", unary(t, "softplus", value)))


def _clamp(t: Translation, call: TracedCall) -> Value:
    low, high = call.get("min"), call.get("max")
    if isinstance(low, Value) or isinstance(high, Value):
        raise UnsupportedError("clamp by tensors: use torch.maximum and torch.minimum")
    attrs: dict[str, Attribute] = {name: float(end) for name, end in (("min", low), ("max", high)) if end is not None}
    return unary(t, "clamp", call["self"], **attrs)


def _hardtanh(t: Translation, call: TracedCall) -> Value:
    return unary(t, "clamp", call["self"], min=float(call["min_val"]), max=float(call["max_val"]))


def scaled(t: Translation, value: Value, factor: float) -> Value:
    """Return the value times a number."""
    if factor == 1:
        return value
    return unary(t, "scale", value, factor=float(factor) if t.dtype(value) in FLOATING else int(factor))


def _binary(t: Translation, call: TracedCall) -> Value:
    """Apply an operator of two tensors, or of a tensor and a number."""
    dtype, second = call.dtypes[0], "other" if "other" in call.arguments else "exponent"
    if call.get("rounding_mode") is not None:
        raise UnsupportedError(f"{call.op} with a rounding_mode: round the quotient")
    alpha = call.get("alpha", 1)
    if (value := number(call, second)) is not None:
        found = _with_number(t, call, as_dtype(t, call["self"], dtype), value * alpha)
        return expanded(t, found, call.shapes[0])
    if (value := number(call, "self")) is not None:
        found = _of_number(t, call, value, scaled(t, as_dtype(t, call[second], dtype), alpha))
        return expanded(t, found, call.shapes[0])
    one, other = (as_dtype(t, value, dtype) for value in (call["self"], call[second]))
    return binary(t, call.op, one, scaled(t, other, alpha))


def _with_number(t: Translation, call: TracedCall, one: Value, value: float) -> Value:
    """Apply an operator whose second operand is a number."""
    by_number: Mapping[str, Callable[[], Value]] = {
        "add": lambda: _shifted(t, one, value),
        "sub": lambda: _shifted(t, one, -value),
        "mul": lambda: scaled(t, one, value),
        "div": lambda: scaled(t, one, 1.0 / value),
        "pow": lambda: unary(t, "square", one) if value == 2 else unary(t, "pow_scalar", one, value=float(value)),
        "maximum": lambda: unary(t, "clamp", one, min=float(value)),
        "minimum": lambda: unary(t, "clamp", one, max=float(value)),
    }
    if call.op not in by_number:
        raise UnsupportedError(f"{call.op} of a tensor and a number has no operator here")
    return by_number[call.op]()


def _of_number(t: Translation, call: TracedCall, value: float, other: Value) -> Value:
    """Apply an operator whose first operand is a number."""
    match call.op:
        case "sub":
            return unary(t, "rsub_scalar", other, value=float(value))
        case "div":
            return scaled(t, unary(t, "reciprocal", other), value)
        case "pow":
            return unary(t, "rpow_scalar", other, value=float(value))
    return _with_number(t, call, other, value)


def _shifted(t: Translation, value: Value, by: float) -> Value:
    if not by:
        return value
    return unary(t, "add_scalar", value, value=float(by) if t.dtype(value) in FLOATING else int(by))


def _floor_divide(t: Translation, call: TracedCall) -> Value:
    """Divide whole numbers by one, which fractions of 64 bits do exactly."""
    divisor, value = number(call, "other"), call["self"]
    if divisor is None or t.dtype(value) != "int32":
        raise UnsupportedError("floor_divide of anything but whole numbers by a number: round the quotient")
    one = value_of(t, Content(torch.tensor(float(divisor), dtype=torch.float64)))
    quotient = unary(t, "floor", binary(t, "div", as_dtype(t, value, "float64"), one))
    return as_dtype(t, quotient, "int32")


def _copied(t: Translation, call: TracedCall) -> Value:
    """Return what is written over a tensor."""
    call.need_not("self")
    return expanded(t, as_dtype(t, call["src"], call.dtypes[0]), call.shapes[0])


def _filled(t: Translation, call: TracedCall) -> Value:
    call.need_not("self")
    value = number(call, "value")
    if value is None:
        return expanded(t, as_dtype(t, call["value"], call.dtypes[0]), call.shapes[0])
    return value_of(t, Content(torch.full((), value, dtype=TORCH[call.dtypes[0]]).expand(call.shapes[0])))


def _rsub(t: Translation, call: TracedCall) -> Value:
    value = number(call, "other")
    if value is None or float(call["alpha"]) != 1.0:
        raise UnsupportedError("rsub with a tensor or alpha: write other - self")
    return unary(t, "rsub_scalar", call["self"], value=value)


def _dropout(t: Translation, call: TracedCall) -> Value:
    value: Value = call["input" if "input" in call.arguments else "self"]
    p = float(call["p"])
    if not call["train"] or not p:
        return value
    if call.op == "feature_dropout":
        raise UnsupportedError("dropout of whole channels in training: build the model with p=0")
    return dropped(t, value, p)


CONVERTERS: dict[str, Converter] = {
    **{name: _unary(name) for name in UNARY},
    **dict.fromkeys(BINARY, _binary),
    **dict.fromkeys(("clone", "contiguous", "alias", "lift_fresh_copy"), _same),
    "gelu": _gelu,
    "leaky_relu": _leaky_relu,
    "elu": _elu,
    "softplus": _softplus,
    "mish": _mish,
    "prelu": _prelu,
    "clamp": _clamp,
    "clamp_min": _clamp,
    "hardtanh": _hardtanh,
    "relu6": lambda t, call: unary(t, "clamp", call["self"], min=0.0, max=6.0),
    "rsub": _rsub,
    "floor_divide": _floor_divide,
    "copy": _copied,
    "fill": _filled,
    "detach": lambda t, call: unary(t, "stop_gradient", call["self"]),
    "dropout": _dropout,
    "feature_dropout": _dropout,
}
