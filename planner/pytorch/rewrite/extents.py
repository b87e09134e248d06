"""Extents that data decide, as of a mask that selects: those of the example, which every batch must have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Node, map_arg

from planner.pytorch.capture.trace import TracedModule
from planner.pytorch.nodes import example, leaves, packet
from planner.pytorch.private import fake_mode_of
from planner.pytorch.rewrite.constants import computed_nodes, needed_for

aten = torch.ops.aten


def fix_extents(trace: TracedModule, data: Mapping[str, torch.Tensor]) -> None:
    """Give extents that depend on data the numbers of an example, where data and constants alone decide them.

    A mask that selects becomes the numbers of what it selects. Where data decide it, PyTorch is called for these in
    every step, and its result must have the extent that is noted here.
    """
    selecting = {node: masks for node in trace.nodes if (masks := _masks(node))}
    before = {node for masks in selecting.values() for mask in masks for node in needed_for(mask)}
    contents = computed_nodes(trace, before, data)
    changed = set[Node]()
    for node in list(trace.nodes):
        if node in selecting and all(mask in contents for mask in selecting[node]):
            changed.update(_number(node, selecting[node], contents))
        if node.op == "call_function" and not changed.isdisjoint(node.all_input_nodes):
            _follow(node)
            changed.add(node)


def _masks(node: Node) -> list[Node]:
    """Return the masks of truth values by which a node selects as many elements as they show."""
    if not any(map(is_open, (node, *node.all_input_nodes))):
        return []
    masks: list[Node] = []
    match packet(node), node.args:
        case "nonzero" | "where", [Node() as mask]:
            masks = [mask]
        case "masked_select", [Node() as value, Node() as mask] if example(value).shape == example(mask).shape:
            masks = [mask]
        case "index" | "index_put" | "index_put_", [_, [*indices], *_]:
            masks = [index for index in indices if isinstance(index, Node) and example(index).dtype is torch.bool]
    return masks if all(example(mask).dim() for mask in masks) else []  # a scalar has no places


def is_open(node: Node) -> bool:
    """Return True if a result has an extent that is no number."""
    return any(
        isinstance(leaf, torch.Tensor) and not all(isinstance(extent, int) for extent in leaf.shape)
        for leaf in leaves(example(node))
    )


def _number(node: Node, masks: list[Node], contents: Mapping[Node, Any]) -> list[Node]:
    """Let a node select by the places that its masks show; return the nodes that make these."""
    columns = {mask: _columns(node, mask, contents[mask].nonzero()) for mask in masks}
    match packet(node):
        case "nonzero":
            node.replace_all_uses_with(columns[masks[0]][0].all_input_nodes[0])
        case "where":
            for user in list(node.users):
                user.replace_all_uses_with(columns[masks[0]][user.args[1]])  # type: ignore[index]
        case "masked_select":
            node.target, node.args = aten.index.Tensor, (node.args[0], columns[masks[0]])
        case _:
            given: Any = node.args[1]
            indices = [column for index in given for column in columns.get(index, [index])]
            node.args = (node.args[0], indices, *node.args[2:])
    return [column for of_mask in columns.values() for column in (of_mask[0].all_input_nodes[0], *of_mask)]


def _columns(node: Node, mask: Node, places: torch.Tensor) -> list[Node]:
    """Return, before a node, for every dimension of a mask where along it what is shown is."""
    with node.graph.inserting_before(node):
        numbers = node.graph.call_function(aten.nonzero.default, (mask,))
        columns = [node.graph.call_function(aten.select.int, (numbers, 1, dim)) for dim in range(places.shape[1])]
    with fake_mode_of([example(mask)]):
        for added, shape in ((numbers, places.shape), *((column, places.shape[:1]) for column in columns)):
            added.meta = {**node.meta, "val": torch.empty(shape, dtype=torch.int64)}
    return columns


def _follow(node: Node) -> None:
    """Work out again what a node returns, with numbers in place of those that followed from data."""
    if packet(node) == "_assert_scalar":
        node.graph.erase_node(node)
        return
    node.args, node.kwargs = map_arg((node.args, node.kwargs), _number_or_node)
    with fake_mode_of([example(operand) for operand in node.all_input_nodes]), torch.no_grad():
        arguments, named = map_arg((node.args, node.kwargs), example)
        node.meta["val"] = node.target(*arguments, **named)  # type: ignore[operator]


def _number_or_node(node: Node) -> Any:
    return example(node) if isinstance(example(node), int | float) else node
