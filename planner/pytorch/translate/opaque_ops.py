"""Call unsupported PyTorch operators as a whole, through one opaque node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from planner.graph.ir import Value as Attribute
from planner.graph.opaque_ops import CALL, register_called
from planner.pytorch.nodes import example, leaves
from planner.pytorch.private import OpOverload
from planner.pytorch.rewrite.axes import Value
from planner.pytorch.rewrite.views import dense
from planner.pytorch.state.contents import DTYPES
from planner.pytorch.translate.call import UnsupportedError
from planner.pytorch.translate.translation import Translation


def called(t: Translation, node: torch.fx.Node, arguments: Mapping[str, Any]) -> Value | tuple[Value, ...]:
    """Add the node that calls a PyTorch operator with these arguments, values in place of tensors.

    Raises UnsupportedError for operators that draw random numbers, since every worker would draw its own, and for
    arguments that no attribute can hold.
    """
    target = node.target
    assert isinstance(target, OpOverload)
    if torch.Tag.nondeterministic_seeded in target.tags:
        raise UnsupportedError(f"{target} draws random numbers, so it cannot be called on several workers")
    operands: list[Value] = []
    encoded = {name: _encoded(target, value, operands) for name, value in arguments.items()}
    dtypes = {example(operand).dtype for operand in node.all_input_nodes if isinstance(example(operand), torch.Tensor)}
    results: list[Any] = leaves(example(node))
    for result in results:
        if not isinstance(result, torch.Tensor) or result.dtype not in DTYPES:
            raise UnsupportedError(f"{target} returns {result!r}, which the graph cannot represent")
        if result.layout is not torch.strided:
            raise UnsupportedError(f"{target} returns a sparse tensor, which is not supported: keep it dense")
    register_called()
    names = t.emit_as(
        str(target).replace(".", "_"),
        CALL,
        *(dense(t, value) for value in operands),
        target=str(target),
        arguments=encoded,
        given=tuple(_dtype_in_torch(t.dtype(value), dtypes) for value in operands),
        differentiable=_differentiable(t, operands, results),
        shapes=tuple(tuple(map(int, result.shape)) for result in results),
        dtypes=tuple(DTYPES[result.dtype] for result in results),
    )
    values = tuple(map(t.plain, names))
    return values if isinstance(example(node), list | tuple) else values[0]


def _encoded(target: object, value: Any, operands: list[Value]) -> Attribute:
    """Return an argument as an attribute; tensors are numbered and added to the operands."""
    if isinstance(value, Value):
        operands.append(value)
        return {"tensor": len(operands) - 1}
    if isinstance(value, list | tuple):
        return tuple(_encoded(target, entry, operands) for entry in value)
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UnsupportedError(f"{target} has the argument {value!r}, which no attribute can hold")


def _dtype_in_torch(dtype: str, dtypes: set[torch.dtype]) -> str:
    """Return PyTorch's dtype of an operand, whose integers may have 64 bits there."""
    return "int64" if dtype == "int32" and torch.int64 in dtypes else dtype


def _differentiable(t: Translation, operands: list[Value], results: list[torch.Tensor]) -> tuple[int, ...]:
    """Return the operands that may have a gradient: floating-point ones, if some result is floating-point."""
    if not any(result.is_floating_point() for result in results):
        return ()
    return tuple(number for number, value in enumerate(operands) if "float" in t.dtype(value))
