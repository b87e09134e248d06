"""Casts, comparisons, truth values and what they select."""

from __future__ import annotations

from planner.graph.ir import FLOATING, ITEM_BYTES
from planner.pytorch.axes import Value
from planner.pytorch.operations import as_dtype, binary, unary
from planner.pytorch.operators.call import Converter, TracedCall, UnsupportedError, number
from planner.pytorch.operators.shapes import expanded
from planner.pytorch.translation import Translation
from planner.pytorch.views import dense

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")

LOGICAL = {
    "logical_and": "logical_and", "bitwise_and": "logical_and", "__and__": "logical_and",
    "logical_or": "logical_or", "bitwise_or": "logical_or", "__or__": "logical_or",
    "logical_xor": "logical_xor", "bitwise_xor": "logical_xor", "__xor__": "logical_xor",
}  # fmt: skip


def _cast(t: Translation, call: TracedCall) -> Value:
    call.need_not()
    return as_dtype(t, call["self"], call.dtypes[0])


def _compared(t: Translation, call: TracedCall) -> Value:
    value = call["self"]
    if (limit := number(call, "other")) is not None:
        if t.dtype(value) == "bool":
            value = as_dtype(t, value, "int32")
        if t.dtype(value) not in FLOATING and not (float(limit).is_integer() and abs(limit) < 2**31):
            value = as_dtype(t, value, "float64")  # which holds every whole number, and what lies between
        found = unary(t, f"{call.op}_scalar", value, value=limit if t.dtype(value) in FLOATING else int(limit))
        return expanded(t, found, call.shapes[0])
    one, other = alike(t, value, call["other"])
    return binary(t, call.op, one, other)


def alike(t: Translation, one: Value, other: Value) -> tuple[Value, Value]:
    """Return two values in the dtype that holds both."""
    dtypes = {t.dtype(one), t.dtype(other)} | ({"int32"} if "bool" in (t.dtype(one), t.dtype(other)) else set())
    wider = max(dtypes, key=lambda name: (name in FLOATING, ITEM_BYTES[name]))
    return as_dtype(t, one, wider), as_dtype(t, other, wider)


def _logical(t: Translation, call: TracedCall) -> Value:
    one, other = call["self"], call["other"]
    if not t.dtype(one) == t.dtype(other) == "bool":
        raise UnsupportedError(f"{call.op} of whole numbers has no operator here: expected truth values")
    if one.dims == other.dims and one.shape == other.shape:
        return binary(t, LOGICAL[call.op], one, other)
    one, other = (t.plain(dense(t, expanded(t, value, call.shapes[0]))) for value in (one, other))
    return binary(t, LOGICAL[call.op], one, other)


def negated(t: Translation, value: Value) -> Value:
    """Return whether a value is false."""
    return unary(t, "logical_not", as_dtype(t, value, "bool"))


def _not(t: Translation, call: TracedCall) -> Value:
    if call.op == "bitwise_not" and t.dtype(call["self"]) != "bool":
        raise UnsupportedError("bitwise_not of whole numbers has no operator here: expected truth values")
    return negated(t, call["self"])


def masked(t: Translation, value: Value, hidden: Value, filling: float) -> Value:
    """Return the value with a number where `hidden` is true."""
    return binary(t, "masked_fill", value, hidden, value=filling)


def _masked_fill(t: Translation, call: TracedCall) -> Value:
    filling = number(call, "value")
    if filling is None:
        return _chosen(t, call["mask"], call["value"], call["self"], call)
    value = expanded(t, call["self"], call.shapes[0])
    return masked(t, value, call["mask"], filling if call.dtypes[0] in FLOATING else int(filling))


def _where(t: Translation, call: TracedCall) -> Value:
    """Fill with a number where one operand is that, and else choose."""
    mask, dtype = call["condition"], call.dtypes[0]
    numbers = number(call, "self"), number(call, "other")
    if (filling := numbers[1]) is not None:
        value = expanded(t, as_dtype(t, call["self"], dtype), call.shapes[0])
        return masked(t, value, negated(t, mask), filling if dtype in FLOATING else int(filling))
    if (filling := numbers[0]) is not None:
        value = expanded(t, as_dtype(t, call["other"], dtype), call.shapes[0])
        return masked(t, value, mask, filling if dtype in FLOATING else int(filling))
    return _chosen(t, mask, call["self"], call["other"], call)


def _chosen(t: Translation, mask: Value, one: Value, other: Value, call: TracedCall) -> Value:
    """Take an element of one value where the mask is true, else of the other."""
    hidden = negated(t, mask)
    dtype = call.dtypes[0]
    parts = [
        masked(t, expanded(t, as_dtype(t, value, dtype), call.shapes[0]), where, 0.0 if dtype in FLOATING else 0)
        for value, where in ((one, hidden), (other, mask))
    ]
    return binary(t, "add", parts[0], parts[1])


CONVERTERS: dict[str, Converter] = {
    **dict.fromkeys(("to", "_to_copy", "type_as", "float", "double", "half", "int", "long", "bool"), _cast),
    **dict.fromkeys(COMPARISONS, _compared),
    **dict.fromkeys(LOGICAL, _logical),
    **dict.fromkeys(("logical_not", "bitwise_not"), _not),
    "masked_fill": _masked_fill,
    "where": _where,
}
