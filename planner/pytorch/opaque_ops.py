"""Operators of PyTorch that have none here, taken whole: one opaque node that calls them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from planner.graph.ir import Value as Attribute
from planner.graph.opaque_ops import CALL, register_called
from planner.pytorch.axes import Value
from planner.pytorch.contents import DTYPES
from planner.pytorch.operators.call import UnsupportedError
from planner.pytorch.private import OpOverload
from planner.pytorch.translation import Translation
from planner.pytorch.views import dense


def called(t: Translation, node: torch.fx.Node, arguments: Mapping[str, Any]) -> Value | tuple[Value, ...]:
    """Add the node that calls an operator of PyTorch with these arguments, values in place of tensors.

    Raises UnsupportedError for what draws random numbers, as every worker would draw its own, and for what no attribute
    can hold.
    """
    target = node.target
    assert isinstance(target, OpOverload)
    if torch.Tag.nondeterministic_seeded in target.tags:
        raise UnsupportedError(f"{target} draws random numbers, so that it cannot be called on several workers")
    operands: list[Value] = []
    encoded = {name: _encoded(target, value, operands) for name, value in arguments.items()}
    examples = [one.meta["val"] for one in node.all_input_nodes]
    of_dtype = {str(one.dtype): one for one in examples if isinstance(one, torch.Tensor)}
    made = node.meta["val"]
    results = list(made) if isinstance(made, list | tuple) else [made]
    if unknown := [one for one in results if not isinstance(one, torch.Tensor) or one.dtype not in DTYPES]:
        raise UnsupportedError(f"{target} returns {unknown[0]!r}, which the graph has no dtype for")
    register_called()
    names = t.emit_as(
        str(target).replace(".", "_"),
        CALL,
        *(dense(t, value) for value in operands),
        target=str(target),
        arguments=encoded,
        given=tuple(_given(t, value, of_dtype) for value in operands),
        differentiable=_differentiable(t, operands, results),
        shapes=tuple(tuple(map(int, one.shape)) for one in results),
        dtypes=tuple(DTYPES[one.dtype] for one in results),
    )
    found = tuple(map(t.plain, names))
    return found if isinstance(made, list | tuple) else found[0]


def _encoded(target: object, value: Any, operands: list[Value]) -> Attribute:
    """Return an argument as an attribute; tensors are numbered as they come, and added to the operands."""
    if isinstance(value, Value):
        operands.append(value)
        return {"tensor": len(operands) - 1}
    if isinstance(value, list | tuple):
        return tuple(_encoded(target, one, operands) for one in value)
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UnsupportedError(f"{target} is given {value!r}, which no attribute can hold")


def _given(t: Translation, value: Value, of_dtype: Mapping[str, torch.Tensor]) -> str:
    """Return what PyTorch's dtype of an operand is: whole numbers may have more bits there."""
    own = t.dtype(value)
    return "int64" if own == "int32" and "torch.int64" in of_dtype else own


def _differentiable(t: Translation, operands: list[Value], results: list[torch.Tensor]) -> tuple[int, ...]:
    """Return which operands may have a gradient: those that are no whole numbers, if a result is none."""
    if not any(one.is_floating_point() for one in results):
        return ()
    return tuple(number for number, value in enumerate(operands) if "float" in t.dtype(value))
