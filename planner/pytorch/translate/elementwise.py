"""Element-wise operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isnan, prod

import torch

from planner.graph.ir import FLOATING, ITEM_BYTES, Value as Attribute
from planner.graph.training import iteration
from planner.pytorch.rewrite.axes import Value
from planner.pytorch.rewrite.views import densely, view
from planner.pytorch.state.contents import DTYPES, Content, value_of
from planner.pytorch.translate.call import TracedCall, converter, refuse_if
from planner.pytorch.translate.operations import as_dtype, binary, dropped, unary
from planner.pytorch.translate.shapes import expanded
from planner.pytorch.translate.translation import Translation

UNARY = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp", "expm1", "floor",
    "gelu", "hardsigmoid", "hardswish", "leaky_relu", "log", "log10", "log1p", "log2", "log_sigmoid", "neg",
    "reciprocal", "relu", "round", "rsqrt", "sigmoid", "sign", "silu", "sin", "sinh", "sqrt", "square", "tan", "tanh",
    "trunc",
)  # fmt: skip
"""Unary operators with the same name in PyTorch and in the catalog."""

ATTRIBUTES: Mapping[str, Mapping[str, type[str | float]]] = {
    "gelu": {"approximate": str},
    "leaky_relu": {"negative_slope": float},
}
"""Arguments of some operators that are attributes in the catalog, and their types."""

CLAMPS: Mapping[str, tuple[str, str | float, str | float]] = {
    "clamp": ("clamp", "min", "max"),
    "clamp_min": ("clamp", "min", "max"),
    "hardtanh": ("hardtanh", "min_val", "max_val"),
    "relu6": ("hardtanh", 0.0, 6.0),
}
"""Operators that clamp: the catalog's name, and the arguments or numbers that bound the result."""

TORCH = {name: dtype for dtype, name in reversed(DTYPES.items())}


def in_dtype(number: float, dtype: str) -> float:
    """Return a number in a dtype: as a float or an integer."""
    return float(number) if dtype in FLOATING else int(number)


def full(t: Translation, shape: tuple[int, ...], number: float, dtype: str) -> Value:
    """Return a number repeated to a shape."""
    return value_of(t, Content(torch.full((), number, dtype=TORCH[dtype]).expand(shape)))


@converter(*UNARY)
def _unary(t: Translation, call: TracedCall) -> Value:
    refuse_if(call.argument("decimals"), f"{call.op} with decimals is not supported: scale before and after")
    attributes = {name: kind(call.argument(name)) for name, kind in ATTRIBUTES.get(call.op, {}).items()}
    return unary(t, call.op, call["self"], **attributes)


@converter("clone", "contiguous", "alias", "lift_fresh_copy")
def _same(t: Translation, call: TracedCall) -> Value:
    return call["self"]


@converter("detach")
def _detach(t: Translation, call: TracedCall) -> Value:
    return unary(t, "stop_gradient", call["self"])


@converter("elu")
def _elu(t: Translation, call: TracedCall) -> Value:
    refuse_if(call.number("input_scale") != 1, "elu with an input_scale is not supported")
    return unary(t, "elu", call["self"], alpha=call.number("alpha"), scale=call.number("scale"))


@converter("softplus")
def _softplus(t: Translation, call: TracedCall) -> Value:
    """Scale before and after; beyond the threshold PyTorch's result differs by less than rounding."""
    beta = call.number("beta")
    return scaled(t, unary(t, "softplus", scaled(t, call["self"], beta)), 1.0 / beta)


@converter("prelu")
def _prelu(t: Translation, call: TracedCall) -> Value:
    """Apply a slope to negative elements, per channel or a single one."""
    value, slope = call["self"], call["weight"]
    if prod(slope.shape) != 1:
        slope = along(slope, 1, value.rank)
    return view(t, binary(t, "prelu", value, slope), call.shapes[0])


def along(vector: Value, dim: int, rank: int) -> Value:
    """Return a vector placed along a dimension of a tensor of this rank."""
    dims = tuple(vector.dims[0] if place == dim else () for place in range(rank))
    return Value(vector.tensor, dims, tuple(vector.shape[0] if place == dim else 1 for place in range(rank)))


@converter(*CLAMPS)
def _clamp(t: Translation, call: TracedCall) -> Value:
    op, *ends = CLAMPS[call.op]
    bounds = [call.value(call.argument(end)) if isinstance(end, str) else end for end in ends]
    refuse_if(any(isinstance(b, Value) for b in bounds), "clamp by tensors: use torch.maximum and torch.minimum")
    pairs = zip(("min", "max"), bounds, strict=True)
    attributes: dict[str, Attribute] = {name: float(bound) for name, bound in pairs if bound is not None}
    return unary(t, op, call["self"], **attributes)


def scaled(t: Translation, value: Value, factor: float) -> Value:
    """Return the value times a number."""
    return value if factor == 1 else unary(t, "scale", value, factor=in_dtype(factor, t.dtype(value)))


def _shifted(t: Translation, value: Value, shift: float) -> Value:
    return unary(t, "add_scalar", value, value=in_dtype(shift, t.dtype(value))) if shift else value


OF_NUMBERS = ("add", "sub", "mul", "div", "pow")
"""Operators that accept a number for either operand."""


@converter(*OF_NUMBERS, "maximum", "minimum", "atan2", "hypot")
def _binary(t: Translation, call: TracedCall) -> Value:
    """Apply an operator to two tensors, or to a tensor and a number."""
    dtype, second = call.dtypes[0], "other" if "other" in call.arguments else "exponent"
    refuse_if(call.argument("rounding_mode") is not None, f"{call.op} with rounding_mode: round the quotient")
    alpha, takes_number = call.argument("alpha", 1), dtype != "bool" and call.op in OF_NUMBERS
    if takes_number and (number := call.constant(second)) is not None:
        result = _with_number(t, call, as_dtype(t, call["self"], dtype), number * alpha)
        return expanded(t, result, call.shapes[0])
    if takes_number and (number := call.constant("self")) is not None:
        result = _of_number(t, call, number, scaled(t, as_dtype(t, call[second], dtype), alpha))
        return expanded(t, result, call.shapes[0])
    left, right = (as_dtype(t, call[name], dtype) for name in ("self", second))
    if dtype == "bool":
        return of_truth_values(t, OF_TRUTH_VALUES[call.op], left, right, call.shapes[0])
    return binary(t, call.op, left, scaled(t, right, alpha))


@converter("remainder", "fmod")
def _remainder(t: Translation, call: TracedCall) -> Value:
    dtype = call.dtypes[0]
    value, number = as_dtype(t, call["self"], dtype), call.constant("other")
    if number is None:
        return binary(t, call.op, value, as_dtype(t, call["other"], dtype))
    return expanded(t, unary(t, f"{call.op}_scalar", value, value=in_dtype(number, dtype)), call.shapes[0])


OF_TRUTH_VALUES = {"add": "logical_or", "mul": "logical_and", "maximum": "logical_or", "minimum": "logical_and"}
"""Arithmetic of booleans as boolean operators."""


def of_truth_values(t: Translation, op: str, left: Value, right: Value, shape: tuple[int, ...]) -> Value:
    """Apply an operator to two booleans."""
    if left.dims != right.dims or left.shape != right.shape:
        left, right = (densely(t, expanded(t, value, shape)) for value in (left, right))
    return binary(t, op, left, right)


def _with_number(t: Translation, call: TracedCall, value: Value, number: float) -> Value:
    """Apply an operator whose second operand is a number."""
    by_number: Mapping[str, Callable[[], Value]] = {
        "add": lambda: _shifted(t, value, number),
        "sub": lambda: _shifted(t, value, -number),
        "mul": lambda: scaled(t, value, number),
        "div": lambda: _divided(t, call, value, number),
        "pow": lambda: _power(t, value, number),
    }
    return by_number[call.op]()


def _power(t: Translation, value: Value, number: float) -> Value:
    """Raise to a power, with the functions that PyTorch uses for some exponents."""
    if number in POWERS:
        return unary(t, POWERS[number], value)
    return unary(t, "pow_scalar", value, value=float(number))


POWERS: Mapping[float, str] = {2: "square", 0.5: "sqrt"}


def _divided(t: Translation, call: TracedCall, value: Value, number: float) -> Value:
    """Divide by a number; divide exactly if both are integers, since the quotient may be one."""
    if number and t.dtype(call["self"]) in FLOATING:
        return scaled(t, value, 1.0 / number)
    return binary(t, "div", value, full(t, (), number, t.dtype(value)))


def _of_number(t: Translation, call: TracedCall, number: float, value: Value) -> Value:
    """Apply an operator whose first operand is a number."""
    match call.op:
        case "sub" | "pow":
            return unary(t, f"r{call.op}_scalar", value, value=float(number))
        case "div":
            return scaled(t, unary(t, "reciprocal", value), number)
    return _with_number(t, call, value, number)


@converter("copy")
def _overwritten(t: Translation, call: TracedCall) -> Value:
    """Return what overwrites a tensor."""
    call.ignore("self")
    return expanded(t, as_dtype(t, call["src"], call.dtypes[0]), call.shapes[0])


@converter("dropout", "feature_dropout")
def _dropout(t: Translation, call: TracedCall) -> Value:
    """Drop elements, or whole channels, in training."""
    value, p = call.first("input", "self"), call.number("p")
    if not call.flag("train") or not p:
        return value
    if call.op == "dropout":
        return dropped(t, value, p)
    channels = (*value.shape[:2], *(1 for _ in value.shape[2:]))
    return binary(t, "mul", value, dropped(t, full(t, channels, 1.0, t.dtype(value)), p))


@converter("bernoulli")
def _bernoulli(t: Translation, call: TracedCall) -> Value:
    """Return ones with probability p, else zeros: the non-zero elements after dropout of ones (stochastic depth)."""
    refuse_if("p" not in call.arguments, "bernoulli of probabilities in a tensor: compare torch.rand with them")
    call.ignore("self")
    kept = dropped(t, full(t, call.shapes[0], 1.0, t.builder.dtype), 1 - call.number("p"))
    return as_dtype(t, unary(t, "ne_scalar", kept, value=0.0), call.dtypes[0])


@converter("rand", "rand_like", "randn", "randn_like", "uniform", "normal")
def _random(t: Translation, call: TracedCall) -> Value:
    """Draw new random numbers for every element in every step, from the graph's own generator."""
    call.ignore("self", "size")
    is_normal, shape = call.op.startswith("n") or "randn" in call.op, call.shapes[0]
    names = [f"i{dim}" for dim in range(len(shape))]
    seed, extents = len(t.builder.nodes), dict(zip(names, shape, strict=True))
    kind = "randn" if is_normal else "rand"
    drawn = t.plain(
        t.emit(kind, iteration(t.builder), rank=len(shape), seed=seed, dtype=call.dtypes[0], extents=extents)
    )
    least, other = ("mean", "std") if is_normal else ("from", "to")
    start, end = (call.argument(name, value) for name, value in ((least, 0.0), (other, 1.0)))
    drawn_by_tensors = not all(isinstance(bound, int | float) for bound in (start, end))
    refuse_if(
        drawn_by_tensors, f"{call.op} with a tensor {least} or {other} is not supported: scale and shift torch.randn"
    )
    return _shifted(t, scaled(t, drawn, end if is_normal else end - start), start)


# Casts, comparisons, boolean operators and selection.


LOGICAL = {
    f"{prefix}_{name}{suffix}": f"logical_{name}"
    for name in ("and", "or", "xor")
    for prefix, suffix in (("logical", ""), ("bitwise", ""), ("_", "__"))
}
"""Boolean operators by PyTorch's operators."""


@converter("to", "_to_copy", "type_as", "float", "double", "half", "int", "long", "bool", "prims::convert_element_type")
def _cast(t: Translation, call: TracedCall) -> Value:
    call.ignore()
    return as_dtype(t, call.first("self", "a"), call.dtypes[0])


@converter("eq", "ne", "lt", "le", "gt", "ge")
def _compared(t: Translation, call: TracedCall) -> Value:
    value = call["self"]
    if (limit := call.constant("other")) is None:
        return binary(t, call.op, *in_wider_dtype(t, value, call["other"]))
    if t.dtype(value) == "bool":
        value = as_dtype(t, value, "int32")
    if t.dtype(value) not in FLOATING and not (float(limit).is_integer() and abs(limit) < 2**31):
        value = as_dtype(t, value, "float64")  # exact for every int32, and for fractions between them
    limit = limit if t.dtype(value) in FLOATING else int(limit)
    return expanded(t, unary(t, f"{call.op}_scalar", value, value=limit), call.shapes[0])


def in_wider_dtype(t: Translation, left: Value, right: Value) -> tuple[Value, Value]:
    """Return two values in the dtype that can hold both."""
    dtypes = {t.dtype(left), t.dtype(right)}
    dtypes |= {"int32"} if "bool" in dtypes else set()
    wider = max(dtypes, key=lambda name: (name in FLOATING, ITEM_BYTES[name]))
    return as_dtype(t, left, wider), as_dtype(t, right, wider)


@converter(*LOGICAL)
def _logical(t: Translation, call: TracedCall) -> Value:
    left, right = call["self"], call["other"]
    _refuse_whole_numbers(t, call.op, left, right)
    return of_truth_values(t, LOGICAL[call.op], left, right, call.shapes[0])


def _refuse_whole_numbers(t: Translation, op: str, *values: Value) -> None:
    is_other = any(t.dtype(value) != "bool" for value in values)
    refuse_if(is_other, f"{op} of integers is not supported: expected booleans")


def negated(t: Translation, value: Value) -> Value:
    """Return the negation of a value."""
    return unary(t, "logical_not", as_dtype(t, value, "bool"))


@converter("logical_not", "bitwise_not")
def _not(t: Translation, call: TracedCall) -> Value:
    if call.op == "bitwise_not":
        _refuse_whole_numbers(t, call.op, call["self"])
    return negated(t, call["self"])


def masked(t: Translation, value: Value, hidden: Value, filling: float) -> Value:
    """Return the value with a number, or NaN, where `hidden` is true."""
    if isnan(filling):
        return _either(t, full(t, value.shape, filling, t.dtype(value)), value, hidden)
    return binary(t, "masked_fill", value, hidden, value=filling)


@converter("masked_fill")
def _masked_fill(t: Translation, call: TracedCall) -> Value:
    if (filling := call.constant("value")) is None:
        return _chosen(t, call["mask"], call["value"], call["self"], call)
    return masked(t, expanded(t, call["self"], call.shapes[0]), call["mask"], in_dtype(filling, call.dtypes[0]))


@converter("where")
def _where(t: Translation, call: TracedCall) -> Value:
    """Fill with a number if one operand is a number; otherwise select."""
    mask, dtype = call["condition"], call.dtypes[0]
    numbers = call.constant("self"), call.constant("other")
    if numbers == (None, None):
        return _chosen(t, mask, call["self"], call["other"], call)
    fills_false = numbers[1] is not None
    value = _as_result(t, call, call["self" if fills_false else "other"])
    hidden = negated(t, mask) if fills_false else mask
    return masked(t, value, hidden, in_dtype(numbers[fills_false] or 0, dtype))


def _chosen(t: Translation, mask: Value, chosen: Value, other: Value, call: TracedCall) -> Value:
    """Select one value where the mask is true, else the other."""
    return _either(t, _as_result(t, call, chosen), _as_result(t, call, other), mask)


def _either(t: Translation, chosen: Value, other: Value, mask: Value) -> Value:
    """Select one value where the mask is true, else the other, which has the same shape and dtype."""
    nothing = in_dtype(0, t.dtype(chosen))
    pairs = (chosen, negated(t, mask)), (other, mask)
    dense = [(densely(t, value), densely(t, expanded(t, hidden, chosen.shape))) for value, hidden in pairs]
    parts = [masked(t, value, hidden, nothing) for value, hidden in dense]
    return binary(t, "add", *parts)


def _as_result(t: Translation, call: TracedCall, value: Value | float) -> Value:
    """Return a value or number in the dtype and shape of the result."""
    if not isinstance(value, Value):
        return full(t, call.shapes[0], value, call.dtypes[0])
    return expanded(t, as_dtype(t, value, call.dtypes[0]), call.shapes[0])
