"""Regions of a trace that PyTorch keeps apart, such as those without gradients, put in line with the rest."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch.fx import GraphModule, Node

from planner.errors import GraphError
from planner.pytorch.graphs import line_of, where

GRADIENTS, AUTOCAST = "wrap_with_set_grad_enabled", "wrap_with_autocast"

FIRST_OPERAND = {GRADIENTS: 2, AUTOCAST: 5}
"""Where, among the arguments, those of the region's own graph begin; the argument before is the graph."""


def inline_regions(module: GraphModule) -> None:
    """Put the nodes of every region among the others; what leaves one without gradients is detached.

    Raises a GraphError, with the line, for a region in which autocast chooses dtypes.
    """
    for node in list(module.graph.nodes):
        name = str(node.target)
        if name in FIRST_OPERAND:
            _inline(module, node, name)


def _inline(module: GraphModule, node: Node, name: str) -> None:
    first = FIRST_OPERAND[name]
    region = _part(module, node.args[first - 1])
    inline_regions(region)
    if name == AUTOCAST and node.args[2]:
        inner = next(filter(None, map(line_of, region.graph.nodes)), "an unknown line")
        raise GraphError(f"{inner}: autocast chooses dtypes by operator, which no graph here does: cast explicitly")
    results = _copied(module, node, region, node.args[first:])
    if name == GRADIENTS and not node.args[0]:
        results = [_detached(module, node, result) for result in results]
    for user in list(node.users):
        if user.target is not operator.getitem:
            raise GraphError(f"{where(user)}: reads a region of {name} as a whole")
        user.replace_all_uses_with(results[user.args[1]])  # type: ignore[index]
        module.graph.erase_node(user)
    module.graph.erase_node(node)


def _part(module: GraphModule, node: object) -> GraphModule:
    """Return the graph that a node names."""
    assert isinstance(node, Node)
    return module.get_submodule(str(node.target))  # type: ignore[return-value]


def _copied(module: GraphModule, node: Node, region: GraphModule, operands: Sequence[object]) -> list[Node]:
    """Copy a region's nodes to where it stands; return what it returns."""
    inputs = [inner for inner in region.graph.nodes if inner.op == "placeholder"]
    for inner in region.graph.nodes:
        if inner.op == "get_attr":
            name = f"{node.name}_{inner.target}"
            module.register_buffer(name, getattr(region, inner.target), persistent=False)
            inner.target = name
    with module.graph.inserting_before(node):
        result = module.graph.graph_copy(region.graph, dict(zip(inputs, operands, strict=True)))  # type: ignore[arg-type]
    return list(result) if isinstance(result, list | tuple) else [result]  # type: ignore[list-item]


def _detached(module: GraphModule, node: Node, result: Node) -> Node:
    with module.graph.inserting_before(node):
        detached = module.graph.call_function(torch.ops.aten.detach.default, (result,))
    detached.meta = dict(result.meta)
    return detached
