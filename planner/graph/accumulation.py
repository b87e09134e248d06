"""Sums whose operands can accumulate where they are computed: the gradient of a weight used at many timesteps.

Such a sum moves nothing but its result: every worker adds its partial results locally, in order, and they are reduced
once. It happens in every plan that gives the operands' nodes one strategy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import tdl
from planner.graph.ir import Graph, Node
from tdl.operator import freeze

SUM = "add_n"


def accumulation_groups(graph: Graph) -> Mapping[str, tuple[str, ...]]:
    """Return, per sum that can accumulate locally, the nodes that produce its operands, in operand order.

    It can where it has two or more operands, each the only output of a node and used nowhere else, and these nodes are
    alike: the same operator with outermost reducer Sum, attributes, operand shapes and dtype.
    """
    uses = Counter(name for node in graph.nodes for name in node.inputs)
    uses.update(graph.updates.values())
    uses.update(graph.metrics.values())
    producers = {name: node for node in graph.nodes for name in node.outputs}
    found = {}
    for node in graph.nodes:
        if node.op != SUM or len(node.inputs) < 2 or any(uses[name] != 1 for name in node.inputs):
            continue
        operands = [producers.get(name) for name in node.inputs]
        if alike := [operand for operand in operands if operand is not None and _sums(graph, operand)]:
            same = {_likeness(graph, operand) for operand in alike}
            if len(alike) == len(operands) and len(same) == 1:
                found[node.name] = tuple(operand.name for operand in alike)
    return found


def _sums(graph: Graph, node: Node) -> bool:
    ranks = tuple(len(graph.tensors[name].shape) for name in node.inputs)
    outputs = tdl.catalog[node.op].describe(ranks, node.attrs).outputs
    return len(outputs) == 1 and outputs[0].reducer == "Sum"


def _likeness(graph: Graph, node: Node) -> object:
    shapes = tuple(graph.tensors[name].shape for name in node.inputs)
    return node.op, freeze(node.attrs), shapes, graph.tensors[node.outputs[0]].dtype
