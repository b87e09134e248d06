"""Functions in `torch.utils.checkpoint`, which PyTorch runs again in the backward pass, with what they change.

Parameters that forward changes, as masks and norms do: PyTorch's optimizer updates what forward left in a parameter, by
the gradient of that. So the last content is a leaf of its own, `planner::changed` in a trace, to which gradients flow,
and no further; what it is made of reads the parameter without a gradient. A parameter that no gradient reaches is just
what forward leaves of it.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.fx import Graph, Node

from planner.errors import GraphError
from planner.pytorch.capture.export_errors import users_line
from planner.pytorch.capture.functionalization import changes_first
from planner.pytorch.capture.regions import UNTRACKED, detach
from planner.pytorch.nodes import example, leaves, packet, where
from planner.pytorch.private import CheckpointHook


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
    detached = detach(source.next, source)
    source.replace_all_uses_with(detached, delete_user_cb=lambda user: user is not detached)
    with graph.inserting_before(content.next):
        leaf = graph.call_function(torch.ops.planner.changed.default, (source, content))
    content.replace_all_uses_with(leaf, delete_user_cb=lambda user: user is not leaf)
    leaf.meta = {**content.meta, "val": example(source), UNTRACKED: False}
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


AROUND: ContextVar[bool] = ContextVar("within a checkpoint", default=False)

INSTEAD = (
    "batch norm changes running statistics within torch.utils.checkpoint, whose function PyTorch runs again in the "
    "backward pass: leave the checkpoint out, as --recompute plans what is kept"
)


@contextmanager
def run_again() -> Iterator[None]:
    """Within, what is traced runs twice in PyTorch."""
    token = AROUND.set(True)
    try:
        yield
    finally:
        AROUND.reset(token)


@contextmanager
def checkpoints_traced() -> Iterator[None]:
    """Within, functions in checkpoints are traced as what runs again; what they save is not looked at.

    PyTorch's own hooks would, and leave gradients switched off in the trace where one is within another.
    """
    tokens: list[Token[bool]] = []

    def enter(_: object) -> None:
        tokens.append(AROUND.set(True))

    def leave(_: object, *error: Any) -> None:
        AROUND.reset(tokens.pop())

    CheckpointHook.__enter__, CheckpointHook.__exit__ = enter, leave  # type: ignore[method-assign]
    try:
        yield
    finally:
        del CheckpointHook.__enter__, CheckpointHook.__exit__


def batch_norm(x: Tensor, mean: Tensor | None, var: Tensor | None, *others: Any, **named: Any) -> Tensor:
    """Normalize as F.batch_norm does; a GraphError where running statistics follow a batch in a checkpoint."""
    is_training = others[2] if len(others) > 2 else named.get("training", False)
    if AROUND.get() and is_training and mean is not None:
        raise GraphError(f"{users_line(traceback.extract_stack())}{INSTEAD}")
    return F.batch_norm(x, mean, var, *others, **named)


def plain_batch_norm(x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, *others: Any, **named: Any) -> Tensor:
    """Normalize as torch.batch_norm does, whose arguments are in another order."""
    named.pop("cudnn_enabled", None)
    return batch_norm(x, mean, var, weight, bias, *others[:3], **named)
