"""Casts, comparisons, boolean operators and selection."""

from __future__ import annotations

from math import isnan

from planner.graph.ir import FLOATING, ITEM_BYTES
from planner.pytorch.rewrite.axes import Value
from planner.pytorch.rewrite.views import densely
from planner.pytorch.translate.call import TracedCall, converter, refuse_if
from planner.pytorch.translate.elementwise import full, in_dtype, of_truth_values
from planner.pytorch.translate.operations import as_dtype, binary, unary
from planner.pytorch.translate.shapes import expanded
from planner.pytorch.translate.translation import Translation

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
