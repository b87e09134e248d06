"""Call unsupported PyTorch operators as a whole, through one opaque node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch

from planner.errors import DataError, InputError
from planner.graph.ir import Value as Attribute
from planner.graph.opaque_ops import CALL, GRADIENT, register_called
from planner.pytorch.nodes import ANY, example, leaves
from planner.pytorch.private import OpOverload
from planner.pytorch.rewrite.axes import Value
from planner.pytorch.rewrite.views import dense
from planner.pytorch.state.contents import DTYPES
from planner.pytorch.translate.call import UnsupportedError
from planner.pytorch.translate.translation import Translation

TAKEN_WHOLE = (
    "linalg_cholesky", "cholesky", "linalg_cholesky_ex", "cholesky_solve", "cholesky_inverse", "linalg_inv_ex",
    "linalg_inv", "inverse", "linalg_solve", "linalg_solve_ex", "_linalg_solve_ex", "linalg_solve_triangular",
    "triangular_solve", "linalg_lstsq", "linalg_pinv", "pinverse", "linalg_det", "_linalg_det", "det", "logdet",
    "linalg_slogdet", "_linalg_slogdet", "slogdet", "linalg_eigh", "_linalg_eigh", "linalg_eigvalsh", "linalg_svd",
    "_linalg_svd", "linalg_svdvals", "svd", "linalg_qr", "qr", "linalg_matrix_exp", "matrix_exp",
    "linalg_householder_product", "median", "nanmedian", "kthvalue", "mode", "pdist",
    "lgamma", "digamma", "polygamma", "mvlgamma", "erfc", "erfinv",
)  # fmt: skip
"""Operators called as they are, with their gradients: most work on whole matrices, rows or sequences."""


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


WHOLE: Mapping[str, Callable[..., Any]] = dict.fromkeys((ANY, *TAKEN_WHOLE), called)
"""What adds the node of an operator, by its name."""


def _kernel(call: Any) -> None:
    """Run the kernel of a call, which the import itself never needs."""
    kernels: Any = import_module("rare_operators.called_kernels")
    try:
        (kernels.call_gradient if "arriving" in call.attributes else kernels.call_operator)(call)
    except InputError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise DataError(f"{call.attributes['target']}: {reason}") from error


CALLS: Mapping[str, Callable[..., Any]] = dict.fromkeys((CALL, GRADIENT), _kernel)
"""Kernels by operator of the graph."""
