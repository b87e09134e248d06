"""Parameters that forward changes: states where no gradient reaches them, and refused where one does."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.fx import Graph, Node

from planner.errors import GraphError
from planner.pytorch.functional import ancestry, changes_first
from planner.pytorch.graphs import example, leaves, packet, where
from planner.pytorch.regions import UNTRACKED


def refuse_changed(graph: Graph, loss: Node, trained: Mapping[str, str]) -> None:
    """Raise a GraphError, with the line, for a parameter that is changed in place and that has a gradient as well.

    `trained` are the names of parameters by placeholder. The graph is as it was traced, with what is in place.
    """
    first: dict[Node, Node] = {}
    for node in graph.nodes:
        if changes_first(node):
            first.setdefault(ancestry(node.all_input_nodes[0])[0], node)
    for parameter, node in first.items():
        if parameter.name in trained and loss in _dependent(graph, parameter):
            raise GraphError(
                f"{where(node)}: forward changes the parameter {trained[parameter.name]}, which has a gradient as "
                "well: keep what forward changes in a buffer, or compute with a changed copy, as weight * mask"
            )


def _dependent(graph: Graph, source: Node) -> set[Node]:
    """Return the nodes to which a gradient may flow from a source, with what is written in place of them."""
    dependent, before = {source}, 0
    while len(dependent) > before:
        before = len(dependent)
        for node in graph.nodes:
            if packet(node) == "detach" or dependent.isdisjoint(node.all_input_nodes) or not _is_real(node):
                continue
            dependent.add(node)
            if changes_first(node) and not node.meta.get(UNTRACKED):
                dependent.add(ancestry(node.all_input_nodes[0])[0])
    return dependent


def _is_real(node: Node) -> bool:
    """Return True for a node that has a gradient, or none in it that could be told, as the trace's output."""
    results = [leaf for leaf in leaves(example(node)) if isinstance(leaf, torch.Tensor)]
    return not results or any(tensor.is_floating_point() or tensor.is_complex() for tensor in results)
