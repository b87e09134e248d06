"""Parameters that forward changes, as masks and norms do: what they become is trained, and read by all that follows.

PyTorch's optimizer updates what forward left in a parameter, by the gradient of that. So the last content is a leaf of
its own, `planner::changed` in a trace, to which gradients flow, and no further; what it is made of reads the parameter
without a gradient. A parameter that no gradient reaches is just what forward leaves of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch.fx import Graph, Node

from planner.errors import GraphError
from planner.pytorch.capture.functionalization import changes_first
from planner.pytorch.capture.regions import UNTRACKED
from planner.pytorch.nodes import example, leaves, packet, where


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
