"""Output shapes and dtypes of a node, from its operator's description; cached per signature."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import tdl
from planner.errors import GraphError
from planner.graph.ir import FLOATING, ITEM_BYTES, Node, Tensor, Value
from tdl.operator import freeze

Shape = tuple[int, ...]
Kind = tuple[Shape, str]
"""A tensor's shape and dtype."""

INTEGER_OPERANDS = {
    **dict.fromkeys(("labels", "indices", "step"), ("int32",)),
    **dict.fromkeys(("mask", "other_mask", "bits", "other_bits"), ("bool", "int32")),
}
"""Allowed dtypes of integer and boolean operands, by the operand's name."""

LEAST = {"stride": 1, "kernel": 1, "dilation": 1, "padding": 0}
"""Smallest values of window attributes. Descriptions allow smaller ones, but those are never intended."""


def describe(node: Node, tensors: Mapping[str, Tensor]) -> tdl.Description:
    """Return the description of a node's operator for its operands and attributes."""
    return tdl.catalog[node.op].describe([len(tensors[name].shape) for name in node.inputs], node.attrs)


def told_apart(op: str, attributes: Mapping[str, Value]) -> dict[str, Value]:
    """Return the attributes that distinguish nodes of an operator by more than the random numbers they draw."""
    random_keys = tdl.catalog[op].random_keys
    return {name: value for name, value in attributes.items() if name not in random_keys}


def infer(op: str, operands: Sequence[Kind], attrs: Mapping[str, Value]) -> tuple[Kind, ...]:
    """Return (shape, dtype) of each output of `op` for operands of the given shapes and dtypes.

    Raises GraphError for an unknown operator, a wrong number of operands, wrong attributes, and shapes or dtypes that
    do not match. The message names neither node nor tensors; the caller adds these.
    """
    for name, value in attrs.items():
        _check_value(value, name)
    return _infer(op, tuple(operands), _Attributes(freeze(attrs), attrs))


def _check_value(value: Value, where: str) -> None:
    if isinstance(value, tuple):
        for item in value:
            _check_value(item, where)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _check_value(item, f"{where}.{key}")
    elif isinstance(value, float) and math.isnan(value):
        raise GraphError(f"attribute {where} must be a number, found {value}")
    elif not isinstance(value, bool | int | float | str | None):
        raise GraphError(
            f"attribute {where} must be a number, a string, None, a tuple or a mapping of them, "
            f"found {type(value).__name__}"
        )


@dataclass(frozen=True, slots=True)
class _Attributes:
    """A node's attributes, with the key under which they are cached."""

    key: Hashable
    values: Mapping[str, Value] = field(compare=False)


@lru_cache(maxsize=1 << 16)
def _infer(op: str, operands: tuple[Kind, ...], attributes: _Attributes) -> tuple[Kind, ...]:
    operator = tdl.catalog.get(op)
    if operator is None:
        raise GraphError(f"unknown operator {op!r}; add your own with --operators FILE.py")
    attrs = attributes.values
    _check_ranges(attrs)
    shapes = [shape for shape, _ in operands]
    dtypes = [dtype for _, dtype in operands]
    try:
        description = operator.describe(tuple(len(shape) for shape in shapes), attrs)
        extents = description.extents(shapes, attrs)
    except tdl.TDLError as error:
        raise GraphError(str(error).removeprefix(f"{op}: ")) from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # A description is ordinary Python code over the attributes: a stride of "3" fails wherever it is first used.
        raise GraphError(f"attributes {attrs} are not valid for the operator: {error}") from error
    if not description.is_opaque:
        check_dtypes(description, dtypes)
    return tuple(zip(description.output_shapes(extents), description.output_dtypes(dtypes), strict=True))


def _check_ranges(attrs: Mapping[str, Value]) -> None:
    for name, least in LEAST.items():
        values = attrs.get(name, ())
        if not isinstance(values, tuple) or any(type(value) is not int or value < least for value in values):
            raise GraphError(f"attribute {name} must be a tuple of integers of at least {least}, found {values!r}")
    count = attrs.get("count", 1)
    if isinstance(count, bool) or not isinstance(count, int | float) or count <= 0:
        raise GraphError(f"attribute count must be a number above 0, found {count!r}")
    dtype = attrs.get("dtype", FLOATING[0])
    if dtype not in ITEM_BYTES:
        raise GraphError(f"attribute dtype must be one of {', '.join(ITEM_BYTES)}, found {dtype!r}")


def check_dtypes(description: tdl.Description, dtypes: Sequence[str]) -> None:
    """Raise GraphError unless an operator accepts operands of these dtypes.

    Labels, indices and steps are int32; masks and bits may also be bool. All other operands share one dtype. It may be
    int32 or bool only if the results have it too, or if their dtype is an attribute.
    """
    others: list[tuple[str, str]] = []
    for name, dtype in zip(description.operands, dtypes, strict=True):
        if name not in INTEGER_OPERANDS:
            others.append((name, dtype))
        elif dtype not in INTEGER_OPERANDS[name]:
            raise GraphError(f"operand {name} must be {' or '.join(INTEGER_OPERANDS[name])}, found {dtype}")
    for name, dtype in others:
        if dtype != others[0][1]:
            raise GraphError(f"operand {name} has dtype {dtype}, but the operands before it have {others[0][1]}")
    if others and others[0][1] not in FLOATING and description.dtype is None:
        _check_closed(*others[0], description.output_kinds(dtypes))


def _check_closed(name: str, dtype: str, kinds: Sequence[str]) -> None:
    """Raise GraphError if integers would give fractions, or booleans would give numbers."""
    if "float" in kinds:
        raise GraphError(f"operand {name} must be a floating-point tensor, found {dtype}; cast it first")
    if dtype == "bool" and "int" in kinds:
        raise GraphError(f"operand {name} must hold numbers, found bool; cast it to int32 first")
