"""What an export would leave out without a word, and what PyTorch says when it fails, as one line."""

from __future__ import annotations

import logging
import random
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from planner.errors import GraphError
from planner.pytorch.extensions import advice
from planner.pytorch.nodes import is_users, spelled
from planner.pytorch.private import HOOKS, LOGGERS
from planner.pytorch.state.contents import is_known


def refuse_hooks(module: nn.Module) -> None:
    """Raise GraphError for hooks of gradients; those of forward passes are traced with these."""
    for name, part in (*module.named_modules(), *module.named_parameters()):
        if any(getattr(part, kind, None) for kind in HOOKS):
            raise GraphError(f"{_shown(name)}: has hooks, which would not run: remove them")


def _shown(name: str) -> str:
    return name.removeprefix("module").removeprefix(".") or "the module"


def refuse_devices(module: nn.Module, inputs: dict[str, Any]) -> None:
    """Raise GraphError for inputs that lie on another device than the parameters."""
    devices = {parameter.device.type for parameter in module.parameters()}
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor) and devices and value.device.type not in devices:
            raise GraphError(f"input {name} is on {value.device}, the module on {', '.join(sorted(devices))}: move one")


LEAST_LONG = 1 << 31
"""The least whole number of more than 32 bits."""


def refuse_layouts(module: nn.Module, inputs: dict[str, Any]) -> None:
    """Raise GraphError for inputs and buffers that are not dense, and inputs that hold numbers of more than 32 bits.

    Other constants of a module may be sparse.
    """
    for name, value in inputs.items():
        is_long = is_known(value) and value.dtype is torch.int64 and value.numel()
        if is_long and int(value.abs().max()) >= LEAST_LONG:
            raise GraphError(f"input {name} holds whole numbers of more than 32 bits: take them modulo a table's rows")
    for name, value in (*inputs.items(), *module.named_buffers()):
        if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
            layout = str(value.layout).removeprefix("torch.")
            raise GraphError(f"{_shown(name)} is {layout}: give to_dense() of it, or keep it in a plain attribute")


def failure(error: Exception) -> GraphError:
    """Return what PyTorch could not do with a module as one line, with the user's own line where there is one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    frames = _users(traceback.extract_tb(error.__traceback__))
    where, reason = users_line(frames), lines[0] if lines else "no message"
    if frames and type(error).__name__ == "GuardOnDataDependentSymNode":
        return GraphError(
            f"{where}data decide what Python does ({frames[-1].line}): {OTHERWISE.format(frames[-1].name)}{advice()}"
        )
    known = next((known for text, known in ADVICE.items() if text in reason), "")
    return GraphError(f"{where}PyTorch cannot export the module: {type(error).__name__}: {known or reason}{advice()}")


OTHERWISE = (
    "let torch.where choose, leave out an if that only skips work on no rows, or keep {0}() from coming here by other "
    "inputs or another configuration; where the file is not yours, by a subclass with a {0}() of its own"
)

ADVICE = {
    "aten.equal": (
        "whether two tensors are equal, as torch.equal or torch.cov with weights ask, is for data to decide: write it "
        "with operators on elements"
    ),
    "unhashable type: non-nested SymInt": (
        "tolist() or item() makes numbers of a tensor, which would be one for all batches: keep it a tensor"
    ),
    ".numpy() is not supported": (
        "numpy() makes an array of a tensor, which would be one for all batches: keep it a tensor"
    ),
    "Sparse CSR tensors": "a sparse tensor of compressed rows: keep to_dense() of it, or to_sparse_coo()",
    "Disabling autocast": "autocast names a device that is not here (Disabling autocast): cast explicitly",
    "fake tensor in the exported program": (
        "forward makes a tensor of Python's numbers, as torch.distributions does, or a file or a class keeps one of an "
        "import before: make it in __init__, as a buffer"
    ),
}
"""By what PyTorch says, what is wrong and what to do."""


def _users(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    return [frame for frame in stack if is_users(frame.filename)]


def users_line(stack: Iterable[traceback.FrameSummary]) -> str:
    """Return the user's innermost line of a stack and a colon, or nothing."""
    lines = [spelled(frame.filename, frame.lineno or 0) for frame in stack if is_users(frame.filename)]
    return f"{lines[-1]}: " if lines else ""


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
