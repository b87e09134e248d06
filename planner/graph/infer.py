"""Output shapes and dtypes of a node, from its operator's description; remembered per signature."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

import tdl
from planner.errors import GraphError
from planner.graph.ir import FLOATING, Value

Shape = tuple[int, ...]
Kind = tuple[Shape, str]
"""A tensor's shape and dtype."""

INTEGER_OPERANDS = frozenset({"labels", "indices", "mask", "other_mask", "bits", "other_bits"})
MOVES = frozenset(
    {"reshape", "permute", "select", "slice", "cat", "stack", "unbind", "expand", "flip", "diagonal", "clone"}
)
"""Operators that only move elements, so that they move whole numbers too."""

LEAST = {"stride": 1, "kernel": 1, "dilation": 1, "padding": 0}
"""Least value of window attributes. A description is defined for others too, but nobody means them."""


def infer(op: str, operands: Sequence[Kind], attrs: Mapping[str, Value]) -> tuple[Kind, ...]:
    """Return (shape, dtype) of each output of `op` applied to operands of the given shapes and dtypes.

    Raises GraphError for an unknown operator, a wrong number of operands, wrong attributes, or shapes and dtypes
    that do not fit together; the message names neither node nor tensors, the caller does.
    """
    return _infer(op, tuple(operands), tuple((name, _freeze(value, name)) for name, value in attrs.items()))


def _freeze(value: Value, where: str) -> Hashable:
    """Return a cache key; anything but an int, a string or None carries its type, since 1 == 1.0 == True."""
    if isinstance(value, tuple):
        return tuple, tuple(_freeze(item, where) for item in value)
    if isinstance(value, Mapping):
        return dict, tuple((key, _freeze(item, f"{where}.{key}")) for key, item in value.items())
    if value is None or type(value) in (int, str):
        return value
    if isinstance(value, float) and not math.isfinite(value):
        raise GraphError(f"attribute {where} must be finite, found {value}")
    if isinstance(value, bool | int | float | str):
        return type(value), value
    raise GraphError(
        f"attribute {where} must be a number, a string, None, a tuple or a mapping of them, "
        f"found {type(value).__name__}"
    )


def _thaw(frozen: Any) -> Value:
    if not isinstance(frozen, tuple):
        return cast("Value", frozen)
    kind, content = frozen
    if kind is tuple:
        return tuple(_thaw(item) for item in content)
    if kind is dict:
        return {key: _thaw(item) for key, item in content}
    return cast("Value", content)


@lru_cache(maxsize=1 << 16)
def _infer(op: str, operands: tuple[Kind, ...], frozen: tuple[tuple[str, Hashable], ...]) -> tuple[Kind, ...]:
    operator = tdl.catalog.get(op)
    if operator is None:
        raise GraphError(f"unknown operator {op!r}; one of your own comes with the option --operators FILE.py")
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
    if not description.is_opaque:
        check_dtypes(description.operands, dtypes, moves=op in MOVES)
    return tuple(zip(description.output_shapes(extents), description.output_dtypes(dtypes), strict=True))


def _check_ranges(attrs: Mapping[str, Value]) -> None:
    for name, least in LEAST.items():
        values = attrs.get(name, ())
        if not isinstance(values, tuple) or any(type(value) is not int or value < least for value in values):
            raise GraphError(f"attribute {name} must be a tuple of integers from {least}, found {values!r}")
    count = attrs.get("count", 1)
    if isinstance(count, bool) or not isinstance(count, int | float) or count <= 0:
        raise GraphError(f"attribute count must be a number above 0, found {count!r}")
    dtype = attrs.get("dtype", FLOATING[0])
    if dtype not in FLOATING:
        raise GraphError(f"attribute dtype must be one of {', '.join(FLOATING)}, found {dtype!r}")


def check_dtypes(names: Sequence[str], dtypes: Sequence[str], *, moves: bool = False) -> None:
    """Labels, indices, masks and bits are int32; all other operands have one dtype, int32 only if they are moved."""
    common: str | None = None
    for name, dtype in zip(names, dtypes, strict=True):
        if name in INTEGER_OPERANDS:
            if dtype != "int32":
                raise GraphError(f"operand {name} must be int32, found {dtype}")
        elif dtype == "int32" and not moves:
            called = ", ".join(sorted(INTEGER_OPERANDS))
            raise GraphError(
                f"operand {name} must be a floating-point tensor, found {dtype}; one of integers is called {called}"
            )
        elif common is not None and dtype != common:
            raise GraphError(f"operand {name} has dtype {dtype}, the operands before it {common}")
        else:
            common = dtype
