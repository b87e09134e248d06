"""Trace both passes of `torch.autograd.Function`, so that the user's gradient becomes ordinary operators.

A call appears in the trace as `operand` for every tensor that has a gradient, the forward pass on these, `arriving` for
the gradient of every result, the backward pass on these, and `with_gradient`, which ties them together.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.utils.checkpoint import CheckpointFunction

from planner.errors import GraphError
from planner.pytorch.capture.checkpoints import run_again
from planner.pytorch.capture.export_errors import users_line
from planner.pytorch.nodes import leaves
from planner.pytorch.private import FunctionBase

Kernels = Mapping[str, Callable[..., Any]]
"""Functions by the schema of the operator that each implements."""


def define(kernels: Kernels) -> torch.library.Library:
    """Define operators in PyTorch's namespace `planner`; return the library, which keeps them alive."""
    library = torch.library.Library("planner", "FRAGMENT")  # type: ignore[no-untyped-call]
    for schema, kernel in kernels.items():
        library.define(schema)  # type: ignore[no-untyped-call]
        library.impl(schema.partition("(")[0], kernel, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    return library


LIBRARY = define({
    "changed(Tensor parameter, Tensor content) -> Tensor": lambda _, content: content.clone(),
    "operand(Tensor self) -> Tensor": lambda x: x.clone(),
    "arriving(Tensor self, Tensor[] operands) -> Tensor": lambda x, operands: torch.zeros_like(x),
    "with_gradient(Tensor[] results, Tensor[] operands, Tensor[] arriving, Tensor[] gradients) -> Tensor[]": (
        lambda results, *_: [result.clone() for result in results]
    ),
})  # fmt: skip

OF_OPERATOR = "GeneratedBackwardFor_"
"""Name prefix of PyTorch's gradients of registered operators, which the trace shows as one operator."""


class _Context(FunctionCtx):
    """The `ctx` argument of both passes of a function."""

    def __init__(self, needs: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs
        self.to_save: tuple[Any, ...] = ()
        self.non_differentiable: tuple[Tensor, ...] = ()
        self.dirty_tensors: tuple[Tensor, ...] = ()
        self.materialize_grads = True

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What the forward pass saved."""
        return self.to_save

    saved_variables = saved_tensors  # PyTorch's older name


@contextmanager
def functions_traced() -> Iterator[None]:
    """Within this context, calls of a `torch.autograd.Function` trace both passes."""

    def apply(function: Any, *arguments: Any) -> Any:
        if function.__name__.startswith(OF_OPERATOR):
            return super(FunctionBase, function).apply(*arguments)
        return _called(function, arguments)

    FunctionBase.apply = classmethod(apply)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del FunctionBase.apply  # type: ignore[attr-defined]


def _called(function: Any, arguments: tuple[Any, ...]) -> Any:
    """Call a function; its results have the gradient that its backward pass computes."""
    if function is CheckpointFunction:
        return _checkpointed(*arguments)
    needs = tuple(torch.is_grad_enabled() and isinstance(x, Tensor) and x.requires_grad for x in arguments)
    context = _Context(needs)
    given = [torch.ops.planner.operand(x) if need else x for x, need in zip(arguments, needs, strict=True)]
    operands = [x for x, need in zip(given, needs, strict=True) if need]
    with torch.no_grad():
        result = _forward(function, context, given)
    if context.dirty_tensors or any(operand._version for operand in operands):
        raise _refused(function, "changes its inputs in place: return a new tensor instead")
    results: list[Any] = leaves(result)
    tracked = [x for x in results if _has_gradient(x) and all(x is not other for other in context.non_differentiable)]
    if not operands or not tracked:
        return result
    if len(tracked) > 1 and not context.materialize_grads:
        raise _refused(function, "uses set_materialize_grads(False): remove it")
    arriving = [torch.ops.planner.arriving(x, operands) for x in tracked]
    with torch.no_grad():
        others = [_without_gradient(x) if context.materialize_grads else None for x in results]
        gradients = _backward(function, context, given, _in_place_of(results, tracked, arriving, others))
    pairs = [(x, gradient) for x, gradient in zip(operands, gradients, strict=True) if gradient is not None]
    if not pairs:
        return result
    reached, gradients = map(list, zip(*pairs, strict=True))
    again = torch.ops.planner.with_gradient(tracked, reached, arriving, gradients)
    replaced = _in_place_of(results, tracked, again)
    return type(result)(replaced) if isinstance(result, list | tuple) else replaced[0]


def _checkpointed(run: Any, keeps_random_state: bool, *arguments: Any) -> Any:
    """Call a checkpointed function; without an operand that requires gradients its result has none."""
    if not torch.is_grad_enabled():
        return run(*arguments)
    if not any(map(_requires_gradient, arguments)):
        with torch.no_grad():
            return run(*arguments)
    with run_again():
        return run(*arguments)


def _requires_gradient(argument: object) -> bool:
    return isinstance(argument, Tensor) and argument.requires_grad


def _forward(function: Any, context: _Context, given: Sequence[Any]) -> Any:
    if function.setup_context == FunctionBase.setup_context:
        return function.forward(context, *given)
    result = function.forward(*given)
    function.setup_context(context, tuple(given), result)
    return result


def _backward(function: Any, context: _Context, given: Sequence[Any], arriving: Sequence[Any]) -> list[Tensor | None]:
    """Return the gradients of the operands that need one, in their shapes and dtypes, or None."""
    gradients = leaves(function.backward(context, *arriving))
    return [
        gradient.sum_to_size(x.shape).to(x.dtype) if isinstance(gradient, Tensor) else None
        for x, gradient, need in zip(given, gradients, context.needs_input_grad, strict=False)
        if need
    ]


def _in_place_of(
    results: Sequence[Any], tracked: Sequence[Tensor], others: Sequence[Tensor], rest: Sequence[Any] | None = None
) -> list[Any]:
    """Return results with `others` in place of tracked ones and, if given, `rest` in place of the remaining ones."""
    other = {id(x): y for x, y in zip(tracked, others, strict=True)}
    return [other.get(id(x), y) for x, y in zip(results, results if rest is None else rest, strict=True)]


def _without_gradient(result: Any) -> Any:
    """Return the gradient that the backward pass receives for a result without one."""
    return torch.zeros_like(result) if isinstance(result, Tensor) else None


def _has_gradient(result: object) -> bool:
    return isinstance(result, Tensor) and result.is_floating_point()


def _refused(function: Any, why: str) -> GraphError:
    return GraphError(f"{users_line(traceback.extract_stack())}{function.__name__}, a torch.autograd.Function, {why}")
