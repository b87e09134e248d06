"""Functions in `torch.utils.checkpoint`, which PyTorch runs again in the backward pass, with what they change.

Batch norm's running statistics follow the batch twice, then, which is one step by another momentum: `planner::again`
marks its result in a trace.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.nn.modules.batchnorm import _BatchNorm

from planner.errors import GraphError
from planner.pytorch.capture.export_errors import users_line
from planner.pytorch.nodes import packet, where
from planner.pytorch.private import CheckpointHook, is_selective
from planner.pytorch.state.changed_parameters import dependent

AROUND: ContextVar[int] = ContextVar("checkpoints around what is traced", default=0)
TRACED: ContextVar[nn.Module] = ContextVar("the module that is traced")
COUNTED: ContextVar[list[tuple[Tensor, int]]] = ContextVar("counters in checkpoints, and how often they counted")

INSTEAD = (
    "within torch.utils.checkpoint, whose function PyTorch runs again in the backward pass: take that out of the "
    "function, or leave the checkpoint out, as --recompute plans what is kept"
)


@contextmanager
def checkpoints_traced(module: nn.Module) -> Iterator[None]:
    """Within, functions in checkpoints of a module are traced as what runs again; what they save is not looked at.

    PyTorch's own hooks would, and leave gradients switched off in the trace where one is within another.
    """
    regions: list[RunAgain] = []

    def enter(_: object) -> None:
        regions.append(RunAgain())
        regions[-1].__enter__()

    def leave(_: object, *error: Any) -> None:
        regions.pop().__exit__(*error)

    token = TRACED.set(module)
    CheckpointHook.__enter__, CheckpointHook.__exit__ = enter, leave  # type: ignore[method-assign]
    try:
        yield
    finally:
        del CheckpointHook.__enter__, CheckpointHook.__exit__
        TRACED.reset(token)


class RunAgain:
    """Within, what is traced runs twice in PyTorch; what counts batches for batch norm counts twice."""

    def __enter__(self) -> None:
        """Note what has been counted."""
        self._before, self._token = _counts(), AROUND.set(AROUND.get() + 1)

    def __exit__(self, *_: object) -> None:
        """Note what counts since."""
        AROUND.reset(self._token)
        before = {id(counter): version for counter, version in self._before}
        COUNTED.get().extend((x, version - before.get(id(x), version)) for x, version in _counts())


@contextmanager
def counted_again() -> Iterator[None]:
    """Within, forward runs; what counts batches in a checkpoint counts again when that is over, as in PyTorch."""
    counted: list[tuple[Tensor, int]] = []
    token = COUNTED.set(counted)
    try:
        yield
    finally:
        COUNTED.reset(token)
    for counter, times in counted:
        if times:
            counter.add_(times)


def _counts() -> list[tuple[Tensor, int]]:
    """Return what counts batches in the module that is traced, and how often each was changed in place."""
    counters = (part.num_batches_tracked for part in TRACED.get().modules() if isinstance(part, _BatchNorm))
    return [(counter, counter._version) for counter in counters if counter is not None]


def _refused(line: str, what: str) -> GraphError:
    return GraphError(f"{line}{what} {INSTEAD}")


def batch_norm(x: Tensor, mean: Tensor | None, var: Tensor | None, *others: Any, **named: Any) -> Tensor:
    """Normalize as F.batch_norm does; mark the result where running statistics follow a batch in a checkpoint."""
    result = F.batch_norm(x, mean, var, *others, **named)
    is_training = others[2] if len(others) > 2 else named.get("training", False)
    if not AROUND.get() or not is_training or mean is None:
        return result
    if AROUND.get() > 1 or is_selective() or not result.requires_grad:
        raise _refused(users_line(traceback.extract_stack()), BATCH_NORM)
    marked: Tensor = torch.ops.planner.again(result)
    return marked


def plain_batch_norm(x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, *others: Any, **named: Any) -> Tensor:
    """Normalize as torch.batch_norm does, whose arguments are in another order."""
    named.pop("cudnn_enabled", None)
    return batch_norm(x, mean, var, weight, bias, *others[:3], **named)


BATCH_NORM = (
    "batch norm follows several batches, or one to which no gradient flows, or one in nested or selective checkpoints,"
)
"""Why how often PyTorch changes them, and in what order, is not known."""


def follow_twice(graph: Graph, loss: Node) -> None:
    """Let running statistics follow the batches that PyTorch normalizes again as it does.

    Raises a GraphError, with the line, where others follow as well, or no gradient of the loss asks for it.
    """
    for node in [node for node in graph.nodes if packet(node) == "planner::again"]:
        (norm,) = node.all_input_nodes
        mean, momentum = norm.args[MEAN], norm.args[MOMENTUM]
        assert isinstance(mean, Node)
        assert isinstance(momentum, float)
        if sum(packet(user) == "batch_norm" for user in mean.users) > 1 or loss not in dependent(graph, [node], ()):
            raise _refused(f"{where(norm)}: ", BATCH_NORM)
        norm.update_arg(MOMENTUM, 1 - (1 - momentum) ** 2)
        node.replace_all_uses_with(norm)
        graph.erase_node(node)


MEAN, MOMENTUM = 3, 6
"""Where the running mean and the momentum are among batch norm's arguments."""
