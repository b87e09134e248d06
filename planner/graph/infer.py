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
INTEGER_OUTPUTS = frozenset({("max_pool2d_with_indices", 1)})


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


def operator(op: str) -> tdl.Operator:
    """Return the catalog's operator; GraphError if there is none of that name."""
    found = tdl.catalog.get(op)
    if found is None:
        raise GraphError(f"unknown operator {op!r}")
    return found


_EMPTY = _Frozen()


def _freeze_attributes(attrs: Mapping[str, Value]) -> _Frozen:
    return _Frozen((name, _freeze(value, name)) for name, value in attrs.items())


def _freeze(value: Value, where: str) -> Value:
    if isinstance(value, tuple):
        return tuple(_freeze(item, where) for item in value)
    if isinstance(value, Mapping):
        return _Frozen((key, _freeze(item, f"{where}.{key}")) for key, item in value.items())  # type: ignore[return-value]
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
    described = operator(op)
    names = operand_names(described, len(operands))
    attrs = {key: _thaw(value) for key, value in frozen}
    _check_attributes(described, attrs)
    dtype = _common_dtype(names, operands)
    shapes = [shape for shape, _ in operands]
    try:
        description = described.describe(tuple(len(shape) for shape in shapes), attrs)
        outputs = description.output_shapes(description.extents(shapes, attrs))
    except tdl.TDLError as error:
        raise GraphError(str(error)) from error
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        # A description is ordinary Python over the attributes: "3" for a stride fails wherever it is first used.
        raise GraphError(f"attributes {attrs} do not suit the operator: {error}") from error
    return tuple(
        (tuple(shape), "int32" if (op, number) in INTEGER_OUTPUTS else dtype)
        for number, shape in enumerate(outputs)
    )


def operand_names(described: tdl.Operator, count: int) -> tuple[str, ...]:
    """Return a name per operand, a variadic operator's numbered; GraphError for a wrong number of operands."""
    names = tuple(described.operands)
    if described.variadic:
        if count < 1:
            raise GraphError("expected at least 1 operand, found none")
        return tuple(f"{names[0]}{number}" for number in range(count))
    if len(names) != count:
        raise GraphError(f"expected {len(names)} operands ({', '.join(names)}), found {count}")
    return names


def _check_attributes(described: tdl.Operator, attrs: Mapping[str, Value]) -> None:
    for name in attrs:
        if name != "extents" and name not in described.attributes:
            known = ", ".join(described.attributes) or "none"
            raise GraphError(f"unexpected attribute {name!r}, the operator has: {known}")
    for name in described.required:
        if name not in attrs:
            raise GraphError(f"missing attribute {name!r}")


def _common_dtype(names: Sequence[str], operands: Sequence[Kind]) -> str:
    """All operands have one dtype, except that labels and indices are int32; that dtype is the outputs'."""
    common: str | None = None
    for name, (_, dtype) in zip(names, operands, strict=True):
        if name in INTEGER_OPERANDS:
            if dtype != "int32":
                raise GraphError(f"operand {name} must be int32, found {dtype}")
        elif common is None:
            common = dtype
        elif dtype != common:
            raise GraphError(f"operand {name} has dtype {dtype}, the operands before it {common}")
    return common or "int32"
