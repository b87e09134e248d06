"""Parameters that forward changes, as masks and norms do: what they become is trained, and read by all that follows.

PyTorch's optimizer updates what forward left in a parameter, by the gradient of that. So the last content is a leaf of
its own, `planner::changed` in a trace, to which gradients flow, and no further; what it is made of reads the parameter
without a gradient. A parameter that no gradient reaches is just what forward leaves of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

import torch
from torch.fx import Graph, Node

from planner.errors import GraphError
from planner.pytorch.functional import aliases_of, ancestry, changes_first
from planner.pytorch.graphs import example, leaves, packet, where
from planner.pytorch.regions import UNTRACKED


def written_data(graph: Graph) -> None:
    """Let tensors that are assigned to `data` be written there; a GraphError, with the line, where others share them.

    In PyTorch what was read from `data` before is still what it was, and what is assigned is what is read there.
    """
    for node in [node for node in graph.nodes if packet(node) == "planner::assigned"]:
        (write,), (content,) = node.users, node.all_input_nodes
        roots = [ancestry(tensor)[0] for tensor in (write.all_input_nodes[0], content)]
        if roots[0] is not roots[1] and _is_told_apart(write, *roots):
            raise GraphError(
                f"{where(write)}: what is assigned to data, or was there before, is another tensor as well, which is "
                "read or changed: write it by data.copy_(), or assign a copy"
            )
        node.replace_all_uses_with(content)
        graph.erase_node(node)


def _is_told_apart(write: Node, before: Node, after: Node) -> bool:
    """Return True where it matters that a root has the memory of another from a write on, and not what it had."""
    old, new = aliases_of(before, write), aliases_of(after, write)
    changes = [node for node in write.graph.nodes if node > write and changes_first(node)]
    is_read = any(user > write for alias in old - {before, write.args[0]} for user in alias.users)
    is_shared = any(user > write for alias in new for user in alias.users)
    is_changed = any(ancestry(node.all_input_nodes[0])[0] in (before, after) for node in changes)
    return is_read or (is_shared and is_changed) or after.op == "placeholder"


BOUND = "embedding_renorm_"
"""What bounds the norms of those rows of a table that are looked up next."""

LOOKUPS = ("embedding", "embedding_bag")


def bounded_first(graph: Graph) -> None:
    """Bound rows of a table, that is looked up in several times, before it is looked up in at all.

    Rows that were bounded and looked up stay as they are where others are bounded by the same norm.
    """
    bounds = [node for node in graph.nodes if packet(node) == BOUND]
    for place, first in enumerate(bounds):
        table = ancestry(first.all_input_nodes[0])[0]
        for later in bounds[place + 1 :]:
            if ancestry(later.all_input_nodes[0])[0] is table and later.args[2:] == first.args[2:]:
                since = _nodes_since(first, later)
                if _may_be_first(table, first, later, since):
                    for node in sorted(since):
                        first.prepend(node)


def _nodes_since(first: Node, later: Node) -> set[Node]:
    """Return a node, and what it follows from that comes after another."""
    waiting, since = [later], {later}
    while waiting:
        before = {node for node in waiting.pop().all_input_nodes if node > first} - since
        waiting += before
        since |= before
    return since


def _may_be_first(table: Node, first: Node, later: Node, moved: Set[Node]) -> bool:
    """Return True if nodes do not depend on what is changed or looked up since, and bounded rows alone are read."""
    read = {ancestry(operand)[0] for node in moved for operand in node.all_input_nodes} - {table}
    aliases, bounded = aliases_of(table, later), set[object]()
    for node in (node for node in later.graph.nodes if first <= node < later):
        is_read = node not in aliases and not aliases.isdisjoint(node.all_input_nodes)
        is_changed = changes_first(node) and ancestry(node.all_input_nodes[0])[0] in {table, *read}
        is_bounded = packet(node) in LOOKUPS and node.args[1] in bounded and node not in moved
        if packet(node) == BOUND and node.args[0] in aliases:
            bounded.add(node.args[1])
        elif is_changed or (is_read and not is_bounded):
            return False
    return True


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
