"""Kernels that call one of PyTorch's operators by name, and its autograd for their gradients."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache, reduce
from typing import Any, cast

import torch

from executor.kernels import Array, KernelCall
from executor.kernels.call import require_room
from executor.torch.tensors import array_of, tensor_of
from planner.errors import DataError, InputError
from planner.graph.opaque_ops import OWN_NAMESPACES

_VALUE = "Tensor|int|float|bool|number|Device|Generator"
VALUES = re.compile(rf"(Optional\[)?(List\[)?(Optional\[)?({_VALUE})\]*")
"""Types of arguments that name neither files nor handles. A plan only names its own devices and generators."""

TEXT = re.compile(r"(Optional\[)?str\]?")
CHOICES = re.compile(
    "UPLO|activation|algorithm|approximate|driver|equation|indexing|interpolation|mode|norm|ord|p|pad_mode|padding|"
    "padding_side|reduce|rounding_mode|side"
)
"""String arguments that select a method of computation."""


def call_operator(call: KernelCall) -> None:
    """Write the results of the operator."""
    with torch.no_grad():
        results = _results(call, _operands(call))
    for out, result in zip(call.outputs, results, strict=True):
        if result.shape != out.shape:
            raise DataError(
                f"{call.attributes['target']} returns shape {tuple(result.shape)} in this batch, {out.shape} in the "
                f"example that was planned: select the same number in every batch, or use torch.where"
            )
        if result.dtype == torch.int64:
            require_room(call, array_of(call.xp, result != result.int()))
        tensor_of(out).copy_(result)


def call_gradient(call: KernelCall) -> None:
    """Write the gradients of the operands in `differentiable`, given those of the results in `arriving`."""
    operands = _operands(call)
    count = len(operands)
    differentiable = [operands[number].requires_grad_() for number in call.integers("differentiable")]
    with torch.enable_grad():
        results = _results(call, operands)
    arriving = zip(call.integers("arriving"), call.inputs[count:], strict=True)
    pairs = [(results[number], _copied(call, array)) for number, array in arriving if results[number].requires_grad]
    gradients: Sequence[torch.Tensor | None] = [None] * len(differentiable)
    if pairs:
        ends, of_ends = zip(*pairs, strict=True)
        gradients = torch.autograd.grad(ends, differentiable, of_ends, allow_unused=True)
    for out, gradient in zip(call.outputs, gradients, strict=True):
        tensor_of(out).copy_(torch.zeros(()) if gradient is None else gradient)


def _operands(call: KernelCall) -> list[torch.Tensor]:
    """Return copies of the operands, because an operator may change them, in the dtypes that it expects."""
    dtypes = cast("tuple[str, ...]", call.attributes["given"])
    arrays = call.inputs[: len(dtypes)]
    return [_copied(call, array).to(getattr(torch, dtype)) for array, dtype in zip(arrays, dtypes, strict=True)]


def _copied(call: KernelCall, array: Array) -> torch.Tensor:
    return tensor_of(call.xp.array(array, copy=True, order="C"))


def _results(call: KernelCall, operands: list[torch.Tensor]) -> list[torch.Tensor]:
    """Run the operator. Raises as `_operator`."""
    function = _operator(str(call.attributes["target"]))
    attributes = cast("Mapping[str, Any]", call.attributes["arguments"])
    named = {name: _decoded(value, operands) for name, value in attributes.items()}
    in_order = [named.pop(argument.name) for argument in function._schema.arguments if not argument.kwarg_only]
    results = function(*in_order, **named)
    return list(results) if isinstance(results, list | tuple) else [results]


@lru_cache(1 << 10)
def _operator(target: str) -> Any:
    """Return an operator by name.

    Raises InputError if it is one of PyTorch's that does more than compute tensors, or does not exist in this process.
    """
    namespace, *path = target.split(".")
    try:
        function: Any = reduce(getattr, path, getattr(torch.ops, namespace))
        schema = function._schema
    except AttributeError as error:
        raise InputError(
            f"PyTorch has no operator {target} here: name the file that defines it, as in --operators FILE.py"
        ) from error
    if namespace in OWN_NAMESPACES and not is_pure(schema):
        raise InputError(f"{target}: expected an operator that computes tensors from tensors and numbers")
    return function


def is_pure(schema: Any) -> bool:
    """Return whether an operator computes tensors from tensors and numbers, and changes nothing else, by its schema."""
    arguments = all(
        VALUES.fullmatch(str(argument.type))
        or (TEXT.fullmatch(str(argument.type)) and CHOICES.fullmatch(argument.name))
        for argument in schema.arguments
    )
    results = all(str(result.type) in ("Tensor", "List[Tensor]") for result in schema.returns)
    return bool(arguments and schema.returns and results and not schema.is_mutable)


def _decoded(value: Any, operands: list[torch.Tensor]) -> Any:
    """Return an argument as it was given. Tensors are this worker's, on its device."""
    if isinstance(value, tuple):
        return [_decoded(entry, operands) for entry in value]
    if not isinstance(value, Mapping):
        return value
    ((kind, content),) = value.items()
    match kind:
        case "tensor":
            return operands[content]
        case "device":
            return operands[0].device if operands else torch.device("cpu")
    constant = getattr(torch, content, None)
    if not isinstance(constant, torch.dtype | torch.layout | torch.memory_format):
        raise InputError(f"expected a dtype, layout or memory format of PyTorch, found {content!r}")
    return constant
