"""Sums whose operands can accumulate where they are computed: the gradient of a weight used at many timesteps.

Such a sum moves nothing but its result: every worker adds its partial results locally, in order, and they are reduced
once. It happens in every plan that gives the operands' nodes one strategy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import tdl
from planner.graph.infer import describe
from planner.graph.ir import Graph, Node, Tensor
from tdl.operator import freeze


def accumulation_groups(graph: Graph) -> Mapping[str, tuple[str, ...]]:
    """Nodes that produce the operands of each sum that can accumulate locally, in operand order, by the sum's name.

    It can where it has two or more operands, each the only output of a node and used nowhere else, and these nodes are
    alike: the same operator with outermost reducer Sum, attributes, operand shapes and dtype.
    """
    uses = Counter(name for node in graph.nodes for name in node.inputs)
    uses.update(graph.updates.values())
    uses.update(graph.metrics.values())
    producers = {name: node for node in graph.nodes for name in node.outputs}
    groups = {}
    for node in graph.nodes:
        terms = [producers[name] for name in node.inputs if name in producers and uses[name] == 1]
        if 2 <= len(terms) == len(node.inputs) and accumulates(node, graph.tensors) and _alike(graph, terms):
            groups[node.name] = tuple(term.name for term in terms)
    return groups


def accumulates(node: Node, tensors: Mapping[str, Tensor]) -> bool:
    """True if a node adds up any number of tensors, as `add_n` does."""
    return tdl.catalog[node.op].variadic and describe(node, tensors).adds_operands


def _alike(graph: Graph, nodes: list[Node]) -> bool:
    kinds = set()
    for node in nodes:
        shapes = tuple(graph.tensors[name].shape for name in node.inputs)
        kinds.add((node.op, freeze(node.attrs), shapes, graph.tensors[node.outputs[0]].dtype))
    outputs = describe(nodes[0], graph.tensors).outputs
    return len(kinds) == 1 and len(outputs) == 1 and outputs[0].reducer == "Sum"
