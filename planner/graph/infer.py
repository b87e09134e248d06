"""Output shapes and dtypes of a node, from its operator's description; remembered per signature."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import tdl
from planner.errors import GraphError
from planner.graph.ir import Value

Shape = tuple[int, ...]
Kind = tuple[Shape, str]
"""A tensor's shape and dtype."""

INTEGER_OPERANDS = frozenset({"labels", "indices"})
LEAST = {"stride": 1, "kernel": 1, "padding": 0}
"""Least value of window attributes. A description is defined for others too, but nobody means them."""


class _Frozen(tuple[tuple[str, "Value"], ...]):
    """A mapping's items: what a mapping becomes in a cache key."""

    __slots__ = ()


def infer(op: str, operands: Sequence[Kind], attrs: Mapping[str, Value]) -> tuple[Kind, ...]:
    """Return (shape, dtype) of each output of `op` applied to operands of the given shapes and dtypes.

    Raises GraphError for an unknown operator, a wrong number of operands, wrong attributes, or shapes and dtypes
    that do not fit together; the message names neither node nor tensors, the caller does.
    """
    if not attrs:
        return _infer(op, tuple(operands), _EMPTY)
    return _infer(op, tuple(operands), _freeze_attributes(attrs))


_EMPTY = _Frozen()


def _freeze_attributes(attrs: Mapping[str, Value]) -> _Frozen:
    return _Frozen((name, _freeze(value, name)) for name, value in attrs.items())


def _freeze(value: Value, where: str) -> Value:
    if isinstance(value, tuple):
        return tuple(_freeze(item, where) for item in value)
    if isinstance(value, Mapping):
        return _Frozen((key, _freeze(item, f"{where}.{key}")) for key, item in value.items())
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        raise GraphError(f"attribute {where} must be finite, found {value}")
    raise GraphError(
        f"attribute {where} must be a number, a string, None, a tuple or a mapping of them, "
        f"found {type(value).__name__}"
    )


def _thaw(value: Value) -> Value:
    if isinstance(value, _Frozen):
        return {key: _thaw(item) for key, item in value}
    if isinstance(value, tuple):
        return tuple(_thaw(item) for item in value)
    return value


# `typed`: an attribute 1 is neither True nor 1.0.
@lru_cache(maxsize=1 << 16, typed=True)
def _infer(op: str, operands: tuple[Kind, ...], frozen: _Frozen) -> tuple[Kind, ...]:
    operator = tdl.catalog.get(op)
    if operator is None:
        raise GraphError(f"unknown operator {op!r}")
    attrs = {key: _thaw(value) for key, value in frozen}
    _check_ranges(attrs)
    shapes = [shape for shape, _ in operands]
    dtypes = [dtype for _, dtype in operands]
    try:
        description = operator.describe(tuple(len(shape) for shape in shapes), attrs)
        extents = description.extents(shapes, attrs)
    except tdl.TDLError as error:
        raise GraphError(str(error).removeprefix(f"{op}: ")) from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # A description is ordinary Python over the attributes: "3" for a stride fails wherever it is first used.
        raise GraphError(f"attributes {attrs} do not suit the operator: {error}") from error
    _check_dtypes(description.operands, dtypes)
    return tuple(zip(description.output_shapes(extents), description.output_dtypes(dtypes), strict=True))


def _check_ranges(attrs: Mapping[str, Value]) -> None:
    for name, least in LEAST.items():
        values = attrs.get(name, ())
        if not isinstance(values, tuple) or any(type(value) is not int or value < least for value in values):
            raise GraphError(f"attribute {name} must be a tuple of integers from {least}, found {values!r}")
    count = attrs.get("count", 1)
    if isinstance(count, bool) or not isinstance(count, int | float) or count <= 0:
        raise GraphError(f"attribute count must be a number above 0, found {count!r}")


def _check_dtypes(names: Sequence[str], dtypes: Sequence[str]) -> None:
    """Labels and indices are int32; all other operands have one floating dtype."""
    common: str | None = None
    for name, dtype in zip(names, dtypes, strict=True):
        if name in INTEGER_OPERANDS:
            if dtype != "int32":
                raise GraphError(f"operand {name} must be int32, found {dtype}")
        elif dtype == "int32":
            raise GraphError(f"operand {name} must be a floating-point tensor, found {dtype}")
        elif common is not None and dtype != common:
            raise GraphError(f"operand {name} has dtype {dtype}, the operands before it {common}")
        else:
            common = dtype
