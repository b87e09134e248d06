"""What an export would leave out without a word, and what PyTorch says when it fails, as one line."""

from __future__ import annotations

import traceback
from typing import Any

import torch
from torch import nn

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
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    where = f"{spelled(own[-1].filename, own[-1].lineno or 0)}: " if own else ""
    return GraphError(
        f"{where}PyTorch cannot export the module: {type(error).__name__}: {lines[0] if lines else 'no message'}"
    )
