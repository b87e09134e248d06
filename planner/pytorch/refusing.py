"""What an export would leave out without a word, and what PyTorch says when it fails, as one line."""

from __future__ import annotations

import logging
import random
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from inspect import getsourcefile
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointFunction

from planner.errors import GraphError
from planner.pytorch.graphs import is_users, line_of, spelled
from planner.pytorch.private import HOOKS, LOGGERS, forward_class


def refuse_hooks(module: nn.Module) -> None:
    """Raise GraphError for hooks of modules and of parameters."""
    for name, part in (*module.named_modules(), *module.named_parameters()):
        if any(getattr(part, kind, None) for kind in HOOKS):
            raise GraphError(f"{_shown(name)}: has hooks, which would not run: remove them")


def refuse_averages_of_all(module: nn.Module) -> None:
    """Raise GraphError for running statistics that are those of all batches so far."""
    for name, part in module.named_modules():
        follows = part.training and getattr(part, "track_running_stats", False)
        if follows and getattr(part, "momentum", 0) is None:
            kind = type(part).__name__
            raise GraphError(f"{_shown(name)}: {kind} with momentum=None has no operator here: give a number")


def _shown(name: str) -> str:
    return name.removeprefix("module").removeprefix(".") or "the module"


def own_functions(result: torch.Tensor) -> set[type]:
    """Return every `torch.autograd.Function` that a result was computed by."""
    waiting, seen = [result.grad_fn], set()
    while waiting:
        function = waiting.pop()
        if function is not None and function not in seen:
            seen.add(function)
            waiting += [before for before, _ in function.next_functions]
    functions = {forward_class(function) for function in seen if isinstance(function, BackwardCFunction)}
    return {function for function in functions if not function.__name__.startswith(OF_OPERATOR)}


def refuse_functions(functions: Iterable[type], module: torch.fx.GraphModule) -> None:
    """Raise GraphError for a `torch.autograd.Function`, of which an export keeps the forward pass alone."""
    nodes = [node for part in module.modules() if isinstance(part, torch.fx.GraphModule) for node in part.graph.nodes]
    for function in sorted(functions, key=lambda function: function.__name__):
        file, name = getsourcefile(function) or "", function.__name__
        lines = [line_of(node) for node in nodes if f'"{file}"' in node.meta.get("stack_trace", "")]
        instead = "write it with PyTorch's operators, or as an operator with a gradient here (docs/how-to/operator.md)"
        if function is CheckpointFunction:
            instead = "give checkpoint use_reentrant=False"
        raise GraphError(
            f"{f'{lines[0]}: ' if lines else ''}{name}: a torch.autograd.Function has a gradient of its own, which "
            f"an export drops: {instead}"
        )


OF_OPERATOR = "GeneratedBackwardFor_"
"""How PyTorch calls the gradient of an operator that somebody registered: the trace names the operator."""


def refuse_devices(module: nn.Module, inputs: dict[str, Any]) -> None:
    """Raise GraphError for inputs that lie on another device than the parameters."""
    devices = {parameter.device.type for parameter in module.parameters()}
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor) and devices and value.device.type not in devices:
            raise GraphError(f"input {name} is on {value.device}, the module on {', '.join(sorted(devices))}: move one")


def failure(error: Exception) -> GraphError:
    """Return what PyTorch could not do with a module as one line, with the user's own line where there is one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    where, advice = _line(traceback.extract_tb(error.__traceback__)), ADVICE.get(type(error).__name__, "")
    reason = f"{type(error).__name__}: {lines[0] if lines else 'no message'}{advice}"
    return GraphError(f"{where}PyTorch cannot export the module: {reason}")


ADVICE = {
    "GuardOnDataDependentSymNode": "; where data decides, use torch.where",
    "UserWarning": " Cast explicitly",
}
"""By PyTorch's error, what to do."""


def _line(stack: traceback.StackSummary) -> str:
    """Return the user's innermost line of a stack and a colon, or nothing."""
    lines = [spelled(frame.filename, frame.lineno or 0) for frame in stack if is_users(frame.filename)]
    return f"{lines[-1]}: " if lines else ""


class HooksRefused(TorchFunctionMode):
    """Within, a hook of a tensor, which an export leaves out, raises a GraphError with the user's line."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of PyTorch, unless it registers a hook."""
        if function is torch.Tensor.register_hook:
            where = _line(traceback.extract_stack())
            raise GraphError(f"{where}register_hook: a hook of a tensor would not run: remove it")
        return function(*args, **(kwargs or {}))


def python_numbers(module: nn.Module) -> dict[str, float]:
    """Return the numbers that modules keep in attributes, and how much is in their containers, by name."""
    kept: dict[str, float] = {}
    for path, part in module.named_modules():
        for name in vars(part).keys() - OF_MODULES:
            value = vars(part)[name]
            if isinstance(value, int | float):
                kept[f"{path}.{name}".removeprefix(".")] = value
            elif isinstance(value, list | dict | set):
                kept[f"{path}.{name}".removeprefix(".")] = len(value)
    return kept


OF_MODULES = frozenset(vars(nn.Module()))
"""Attributes that every module has."""


def random_states() -> tuple[object, object]:
    """Return the states of the generators of Python and of NumPy."""
    return random.getstate(), str(np.random.get_state(legacy=False))


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
