"""Functions in `torch.utils.checkpoint`, which PyTorch runs again in the backward pass, with what they change.

Batch norm's running statistics follow the batch twice, then, which is one step by another momentum: `planner::again`
marks its result in a trace.

Parameters that forward changes, as masks and norms do: PyTorch's optimizer updates what forward left in a parameter, by
the gradient of that. So the last content is a leaf of its own, `planner::changed` in a trace, to which gradients flow,
and no further; what it is made of reads the parameter without a gradient. A parameter that no gradient reaches is just
what forward leaves of it.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from planner.pytorch.capture.functionalization import changes_first
from planner.pytorch.capture.regions import UNTRACKED
from planner.pytorch.nodes import example, leaves, packet, where
from planner.pytorch.private import CheckpointHook, is_selective


def leaves_of_their_own(
    graph: Graph, contents: Mapping[Node, Sequence[Node]], trained: Mapping[str, str], loss: Node
) -> dict[Node, Node]:
    """Make leaves of what parameters become; return the last content of everything that changes, by placeholder.

    `contents` are those of every placeholder that changes, in order, the first its own; `trained` the names of
    parameters that may have gradients by placeholder. Raises a GraphError, with the line, for a parameter that is
    changed after something has read it through which the loss's gradient flows.
    """
    last = {}
    for source, (*before, content) in contents.items():
        last[source] = content
        if source.name not in trained:
            continue
        if loss in dependent(graph, before, contents[source]):
            raise GraphError(
                f"{where(content)}: forward changes the parameter {trained[source.name]} after it was read, and its "
                "gradient would be that of either: change it before anything reads it, or a copy, as weight * mask"
            )
        last[source] = _leaf(graph, source, content)
    return last


def _leaf(graph: Graph, source: Node, content: Node) -> Node:
    """Let what reads a parameter's last content read a leaf instead, and what reads the parameter do so detached."""
    with graph.inserting_before(source.next):
        detached = graph.call_function(torch.ops.aten.detach.default, (source,))
    source.replace_all_uses_with(detached, delete_user_cb=lambda user: user is not detached)
    with graph.inserting_before(content.next):
        leaf = graph.call_function(torch.ops.planner.changed.default, (source, content))
    content.replace_all_uses_with(leaf, delete_user_cb=lambda user: user is not leaf)
    detached.meta, leaf.meta = dict(source.meta), {**content.meta, "val": example(source), UNTRACKED: False}
    return leaf


def dependent(graph: Graph, before: Iterable[Node], contents: Sequence[Node]) -> set[Node]:
    """Return the nodes to which a gradient may flow from what a parameter was before its last content."""
    dependent = set(before)
    for node in graph.nodes:
        is_cut = packet(node) == "detach" or node in contents or (changes_first(node) and node.meta.get(UNTRACKED))
        if not is_cut and not dependent.isdisjoint(node.all_input_nodes) and _is_real(node):
            dependent.add(node)
    return dependent


def _is_real(node: Node) -> bool:
    """Return True for a node that has a gradient, or none in it that could be told, as the trace's output."""
    results = [leaf for leaf in leaves(example(node)) if isinstance(leaf, torch.Tensor)]
    return not results or any(tensor.is_floating_point() or tensor.is_complex() for tensor in results)


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
