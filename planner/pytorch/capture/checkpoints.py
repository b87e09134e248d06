"""Functions in `torch.utils.checkpoint`, which PyTorch runs again in the backward pass; and changed parameters.

Forward may change parameters, as masks and norms do. PyTorch's optimizer then updates what forward left in the
parameter, with the gradient of that content. Therefore the last content becomes a leaf, `planner::changed` in a trace,
to which gradients flow and no further; its computation reads the parameter without a gradient. A parameter that no
gradient reaches simply keeps what forward leaves in it.
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
    """Make leaves of the last contents of parameters; return the last content of everything that changes.

    The result is by placeholder. `contents` lists all contents of every placeholder that changes, in order, starting
    with its own; `trained` names, by placeholder, the parameters that may have gradients. Raises GraphError, with the
    line, for a parameter that changes after a read through which the loss's gradient flows.
    """
    last = {}
    for source, (*before, content) in contents.items():
        last[source] = content
        if source.name not in trained:
            continue
        if loss in dependent(graph, before, contents[source]):
            raise GraphError(
                f"{where(content)}: forward changes the parameter {trained[source.name]} after it was read, so its "
                "gradient is ambiguous: change it before anything reads it, or change a copy, as in weight * mask"
            )
        last[source] = _leaf(graph, source, content)
    return last


def _leaf(graph: Graph, source: Node, content: Node) -> Node:
    """Let readers of a parameter's last content read a leaf instead, and readers of the parameter a detached tensor."""
    detached = detach(source.next, source)
    source.replace_all_uses_with(detached, delete_user_cb=lambda user: user is not detached)
    with graph.inserting_before(content.next):
        leaf = graph.call_function(torch.ops.planner.changed.default, (source, content))
    content.replace_all_uses_with(leaf, delete_user_cb=lambda user: user is not leaf)
    leaf.meta = {**content.meta, "val": example(source), UNTRACKED: False}
    return leaf


def dependent(graph: Graph, before: Iterable[Node], contents: Sequence[Node]) -> set[Node]:
    """Return the nodes to which a gradient may flow from earlier contents of a parameter."""
    dependent = set(before)
    for node in graph.nodes:
        is_cut = packet(node) == "detach" or node in contents or (changes_first(node) and node.meta.get(UNTRACKED))
        if not is_cut and not dependent.isdisjoint(node.all_input_nodes) and _is_real(node):
            dependent.add(node)
    return dependent


def _is_real(node: Node) -> bool:
    """Return True unless a node's results are known to be neither real nor complex, so that it has no gradient."""
    results = [leaf for leaf in leaves(example(node)) if isinstance(leaf, torch.Tensor)]
    return not results or any(tensor.is_floating_point() or tensor.is_complex() for tensor in results)


AROUND: ContextVar[bool] = ContextVar("within a checkpoint", default=False)

INSTEAD = (
    "batch norm changes running statistics within torch.utils.checkpoint, whose function PyTorch runs again in the "
    "backward pass: remove the checkpoint and plan recomputation with --recompute"
)


@contextmanager
def run_again() -> Iterator[None]:
    """Within this context, traced code runs twice in PyTorch."""
    token = AROUND.set(True)
    try:
        yield
    finally:
        AROUND.reset(token)


@contextmanager
def checkpoints_traced() -> Iterator[None]:
    """Within this context, checkpointed functions are traced as code that runs again; saved tensors are ignored.

    PyTorch's own hooks would inspect saved tensors, and leave gradients disabled in a trace of nested checkpoints.
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
    """Normalize as F.batch_norm; raise GraphError if running statistics are updated inside a checkpoint."""
    is_training = others[2] if len(others) > 2 else named.get("training", False)
    if AROUND.get() and is_training and mean is not None:
        raise GraphError(f"{users_line(traceback.extract_stack())}{INSTEAD}")
    return F.batch_norm(x, mean, var, *others, **named)


def plain_batch_norm(x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, *others: Any, **named: Any) -> Tensor:
    """Normalize as torch.batch_norm, which has another order of arguments."""
    named.pop("cudnn_enabled", None)
    return batch_norm(x, mean, var, weight, bias, *others[:3], **named)
