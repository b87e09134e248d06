"""Errors of an export: what it would silently drop, and PyTorch's failures as one-line messages."""

from __future__ import annotations

import logging
import random
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from planner.errors import GraphError
from planner.pytorch.nodes import advice, example, is_users, leaves, packet, spelled, where
from planner.pytorch.private import HOOKS, LOGGERS
from planner.pytorch.state.contents import is_known


def refuse_hooks(module: nn.Module) -> None:
    """Raise GraphError for gradient hooks; forward hooks are traced."""
    for name, part in (*module.named_modules(), *module.named_parameters()):
        if any(getattr(part, kind, None) for kind in HOOKS):
            raise GraphError(f"{_shown(name)}: has gradient hooks, which would not run: remove them")


def _shown(name: str) -> str:
    return name.removeprefix("module").removeprefix(".") or "the module"


def refuse_devices(module: nn.Module, inputs: dict[str, Any]) -> None:
    """Raise GraphError for inputs on another device than the parameters."""
    devices = {parameter.device.type for parameter in module.parameters()}
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor) and devices and value.device.type not in devices:
            raise GraphError(f"input {name} is on {value.device}, the module on {', '.join(sorted(devices))}: move one")


def refuse_complex_parameters(module: nn.Module) -> None:
    """Raise GraphError for complex parameters, which no extension replaces."""
    if names := [name for name, parameter in module.named_parameters() if parameter.is_complex()]:
        raise GraphError(
            f"parameter {_shown(names[0])} is complex: store its real and imaginary parts in a parameter with a last "
            "dimension of 2, and read it with torch.view_as_complex"
        )


def refuse_complex_numbers(graph: torch.fx.Graph, names: Mapping[str, str]) -> None:
    """Raise GraphError, with the line, for complex results without the extension that replaces them by their parts.

    `names` are the user's names of placeholders. A placeholder without readers is no result.
    """
    for node in graph.nodes if advice() else ():
        reader = next(iter(node.users), None) if node.op == "placeholder" else node
        if reader and any(isinstance(leaf, torch.Tensor) and leaf.is_complex() for leaf in leaves(example(node))):
            name = names.get(node.name) or packet(node) or node.name
            raise GraphError(f"{where(reader)}: {name} is complex{advice()}")


LEAST_LONG = 1 << 31
"""Smallest integer that needs more than 32 bits."""


def refuse_layouts(module: nn.Module, inputs: dict[str, Any]) -> None:
    """Raise GraphError for inputs and buffers that are not dense, and for inputs with integers beyond 32 bits.

    Other constants of a module may be sparse.
    """
    for name, value in inputs.items():
        is_long = is_known(value) and value.dtype is torch.int64 and value.numel()
        if is_long and int(value.abs().max()) >= LEAST_LONG:
            raise GraphError(f"input {name} has integers of more than 32 bits: take them modulo the table's rows")
    for name, value in (*inputs.items(), *module.named_buffers()):
        if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
            layout = str(value.layout).removeprefix("torch.")
            raise GraphError(f"{_shown(name)} is {layout}: pass its to_dense(), or keep it in a plain attribute")


def failure(error: Exception) -> GraphError:
    """Return PyTorch's failure to export a module as one line, with the user's own line if there is one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    frames = _users(traceback.extract_tb(error.__traceback__))
    where, reason = users_line(frames), lines[0] if lines else "no message"
    if frames and type(error).__name__ == "GuardOnDataDependentSymNode":
        return GraphError(
            f"{where}control flow depends on tensors ({frames[-1].line}): {OTHERWISE.format(frames[-1].name)}{advice()}"
        )
    known = next((known for text, known in ADVICE.items() if text in reason), "")
    return GraphError(f"{where}PyTorch cannot export the module: {type(error).__name__}: {known or reason}{advice()}")


OTHERWISE = (
    "use torch.where, remove an if that only skips work on empty tensors, or configure the model without this branch, "
    "for example with a layer drop rate of 0; in a file that is not yours, override {0}() in a subclass"
)

ADVICE = {
    "aten.equal": (
        "the result of a comparison of whole tensors (torch.equal, or torch.cov with weights) depends on data: write "
        "it with element-wise operators"
    ),
    "unhashable type: non-nested SymInt": (
        "tolist() or item() converts a tensor to Python numbers, fixed for all batches: keep it a tensor"
    ),
    ".numpy() is not supported": ("numpy() converts a tensor to an array, fixed for all batches: keep it a tensor"),
    "Sparse CSR tensors": "a sparse CSR tensor: convert it with to_dense() or to_sparse_coo()",
    "Disabling autocast": "autocast is for an unavailable device (Disabling autocast): cast explicitly",
    "fake tensor in the exported program": (
        "forward creates a tensor from Python numbers, as torch.distributions does, or a file or class keeps one from "
        "an earlier import: create it in __init__, as a buffer"
    ),
}
"""Explanations and advice by a part of PyTorch's message."""


def _users(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    return [frame for frame in stack if is_users(frame.filename)]


def users_line(stack: Iterable[traceback.FrameSummary]) -> str:
    """Return the user's innermost line of a stack with a colon, or an empty string."""
    lines = [spelled(frame.filename, frame.lineno or 0) for frame in stack if is_users(frame.filename)]
    return f"{lines[-1]}: " if lines else ""


OF_MODULES = frozenset(vars(nn.Module()))
"""Attributes that every module has."""


def random_states() -> tuple[object, object]:
    """Return the states of Python's and NumPy's random generators."""
    return random.getstate(), str(np.random.get_state(legacy=False))


@contextmanager
def silent() -> Iterator[None]:
    """Within this context, PyTorch does not log what it also raises."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
