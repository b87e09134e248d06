"""What an export would leave out without a word, and what PyTorch says when it fails, as one line."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import CheckpointFunction

from planner.errors import GraphError
from planner.pytorch.graphs import is_users, spelled

HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
    "_post_accumulate_grad_hooks",
)  # fmt: skip


def refuse_hooks(module: nn.Module) -> None:
    """Raise GraphError for hooks of modules and of parameters."""
    for name, part in (*module.named_modules(), *module.named_parameters()):
        if any(getattr(part, kind, None) for kind in HOOKS):
            where = name.removeprefix("module").removeprefix(".") or "the module"
            raise GraphError(f"{where}: has hooks, which would not run: remove them")


def refuse_averages_of_all(module: nn.Module) -> None:
    """Raise GraphError for running statistics that are those of all batches so far."""
    for name, part in module.named_modules():
        follows = isinstance(part, _NormBase) and part.training and part.track_running_stats
        if follows and part.momentum is None:
            where = name.removeprefix("module").removeprefix(".") or "the module"
            raise GraphError(f"{where}: {type(part).__name__} with momentum=None has no operator here: give a number")


def refuse_functions_of_ones_own(result: Any) -> None:
    """Raise GraphError where a `torch.autograd.Function` was used, of which an export keeps the forward pass alone."""
    waiting, seen = [getattr(result, "grad_fn", None)], set()
    while waiting:
        function = waiting.pop()
        if function is None or function in seen:
            continue
        seen.add(function)
        name = type(function).__name__.removesuffix("Backward")
        if isinstance(function, torch.autograd.function.BackwardCFunction) and not name.startswith(OF_OPERATOR):
            raise GraphError(
                f"{name}: a torch.autograd.Function has a gradient of its own, which an export drops: write it with "
                "PyTorch's operators, or as an operator with a gradient here (docs/operators.md)"
            )
        waiting += [one for one, _ in function.next_functions]


OF_OPERATOR = "GeneratedBackwardFor_"
"""How PyTorch calls the gradient of an operator that somebody registered: the trace names the operator."""


def refuse_devices(module: nn.Module, inputs: dict[str, Any]) -> None:
    """Raise GraphError for inputs that lie on another device than the parameters."""
    own = {one.device.type for one in module.parameters()}
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor) and own and value.device.type not in own:
            raise GraphError(f"input {name} is on {value.device}, the module on {', '.join(sorted(own))}: move one")


def failure(error: Exception) -> GraphError:
    """Return what PyTorch could not do with a module as one line, with the user's own line where there is one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    where, advice = _line(traceback.extract_tb(error.__traceback__)), ADVICE.get(type(error).__name__, "")
    said = f"{type(error).__name__}: {lines[0] if lines else 'no message'}{advice}"
    return GraphError(f"{where}PyTorch cannot export the module: {said}")


ADVICE = {"GuardOnDataDependentSymNode": "; where data decides, use torch.where"}
"""By PyTorch's error, what to do."""


def _line(stack: traceback.StackSummary) -> str:
    """Return the user's innermost line of a stack and a colon, or nothing."""
    own = [spelled(frame.filename, frame.lineno or 0) for frame in stack if is_users(frame.filename)]
    return f"{own[-1]}: " if own else ""


@contextmanager
def uses_refused() -> Iterator[None]:
    """Within, a GraphError, with the line, is raised at what an export would leave out."""
    hook, reentrant = (_refused(why) for why in (HOOK, REENTRANT))
    with (
        mock.patch.object(torch.Tensor, "register_hook", hook),
        mock.patch.object(CheckpointFunction, "apply", reentrant),
    ):
        yield


HOOK = "register_hook: a hook of a tensor would not run: remove it"
REENTRANT = "a reentrant checkpoint has a gradient of its own, which an export drops: give it use_reentrant=False"


def _refused(why: str) -> Callable[..., None]:
    def function(*_: object) -> None:
        raise GraphError(f"{_line(traceback.extract_stack())}{why}")

    return function


@contextmanager
def silent() -> Iterator[None]:
    """Within, PyTorch logs nothing of what it raises as well."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


LOGGERS = ("torch._subclasses", "torch.fx.experimental.symbolic_shapes", "torch._dynamo", "torch._export")
"""What says at length, as an export fails, what the error says."""
