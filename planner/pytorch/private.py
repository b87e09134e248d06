"""Private parts of PyTorch that the import needs, in one place: a new release of PyTorch may change them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from traceback import StackSummary, walk_stack
from typing import Any

import torch
from torch._decomp import decomposition_table  # what operators are made of
from torch._functorch import vmap as vmap  # what calls a function with batched tensors
from torch._guards import detect_fake_mode
from torch._ops import OpOverload as OpOverload  # the type of a traced operator
from torch._subclasses import (
    FakeTensor as FakeTensor,  # tensors without memory
    FakeTensorMode as FakeTensorMode,
)
from torch._subclasses.complex_tensor import ComplexTensor as ComplexTensor  # operators on the parts of complex numbers
from torch._subclasses.fake_tensor import DataDependentOutputException as NoContentError  # what has no memory was read
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast  # the ends of a region
from torch.autograd.function import _SingleLevelFunction as FunctionBase  # what calls a torch.autograd.Function
from torch.fx import proxy
from torch.fx.experimental.proxy_tensor import PreDispatchTorchFunctionMode
from torch.fx.experimental.symbolic_shapes import _ignore_fresh_unbacked_symbols_tls_context
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import (
    TorchDispatchMode as TorchDispatchMode,  # sees what makes a tensor from nothing
    _disable_current_modes,  # within, tensors have content
)
from torch.utils.checkpoint import _checkpoint_hook as CheckpointHook  # noqa: N812 -- for functions that run again

__all__ = ["CheckpointHook", "FunctionBase", "NoContentError"]
"""Private names of PyTorch under names of ours."""

HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_post_accumulate_grad_hooks")
"""Attributes of modules and parameters that hold gradient hooks; no public function lists them."""

HOOKS_OF_STEPS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
"""Attributes of optimizers that hold hooks of their steps."""

LOGGERS = ("torch._subclasses", "torch.fx.experimental.symbolic_shapes", "torch._dynamo", "torch._export")
"""Names of the loggers that repeat an error at length when an export fails."""


DECOMPOSITIONS: Mapping[OpOverload, Callable[..., Any]] = decomposition_table  # type: ignore[assignment]
"""Functions of other operators, by the equivalent operator."""


def is_composite(operator: OpOverload) -> bool:
    """Return True if an operator is a function of others, which are differentiated one by one."""
    return operator.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)


@contextmanager
def fake_mode_of(examples: Sequence[object]) -> Iterator[None]:
    """Enter the mode in which fake tensors were created, if any is among the examples.

    An operator that runs again creates data-dependent numbers again; these are discarded.
    """
    with detect_fake_mode(examples) or nullcontext(), _ignore_fresh_unbacked_symbols_tls_context():
        yield


REGION = _enter_autocast, _exit_autocast
"""The records of an export that mark where a region of autocast begins and where it ends."""


def forget_conversions(mode: FakeTensorMode) -> None:
    """Drop a mode's weak references to fake tensors: `Module.to` does not replace tensors that have any."""
    mode.fake_tensor_converter.meta_converter.tensor_memo.clear()


def content_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor with its content, even during an export."""
    with _disable_current_modes():
        return tensor.detach().clone()


def exporting_modes() -> list[PreDispatchTorchFunctionMode]:
    """Return the modes that record regions during an export, if they are inside the caller's mode."""
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return [mode for mode in modes if isinstance(mode, PreDispatchTorchFunctionMode)]


@contextmanager
def lines_of_nodes() -> Iterator[None]:
    """Within, nodes of a trace record the lines of `forward` without their text, which takes a fifth of an export."""
    tracing: Any = proxy
    recorded, tracing.CapturedTraceback = tracing.CapturedTraceback, _Lines
    try:
        yield
    finally:
        tracing.CapturedTraceback = recorded


class _Lines:
    """The lines of `forward` that are being run, which are all that a trace keeps of a traceback."""

    @classmethod
    def extract(cls) -> _Lines:
        return cls()

    def summary(self) -> StackSummary:
        frames = (frame for frame, _ in walk_stack(None) if frame.f_code.co_name == "forward")
        return StackSummary.from_list([(f.f_code.co_filename, f.f_lineno, "forward", "") for f in frames][::-1])


def schema_of(operator: str | Callable[..., object]) -> torch.FunctionSchema | None:
    """Return an operator's schema, with names and defaults of its arguments; None for anything else."""
    schema = getattr(operator, "_schema", None)
    return schema if isinstance(schema, torch.FunctionSchema) else None
