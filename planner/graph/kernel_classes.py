"""Kernel classes, for comparing profiles with predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import tdl
from planner.graph.facts import phases
from planner.graph.infer import describe
from planner.graph.ir import Graph, Node
from planner.graph.micro_batches import UPDATE
from planner.graph.order import parts_of_operators
from tdl.traits import Function, traits_of

KernelClass = Literal[
    "product", "attention", "normalization", "reduction", "element-wise", "movement", "optimizer", "other"
]

OF_CATEGORY: Mapping[str, KernelClass] = {
    "matmul": "product", "convolution": "product", "reduction": "reduction", "elementwise": "element-wise",
    "other": "movement",
}  # fmt: skip
"""Classes by operator category, for operators that are neither attention nor a normalization."""


def class_of(category: str, function: Function | None, *, attends: bool) -> KernelClass:
    """Return the class of a kernel that is not part of the update.

    `function` is that of the kernel's operator, or of the operator whose gradient it computes.

    >>> class_of("elementwise", "norm", attends=False), class_of("matmul", None, attends=False)
    ('normalization', 'product')
    """
    if attends:
        return "attention"
    if function in {"norm", "root mean square norm"}:
        return "normalization"
    return OF_CATEGORY[category]


def kernel_classes(graph: Graph) -> Mapping[str, KernelClass]:
    """Return the class of every node of a graph, by name."""
    nodes, phase = {node.name: node for node in graph.nodes}, phases(graph)
    operators = dict(parts_of_operators(graph.nodes))

    def of(node: Node) -> KernelClass:
        forward = nodes[node.forward or node.name]
        computed = nodes[operators.get(forward.name, forward.name)]
        function = traits_of(describe(computed, graph.tensors)).function
        attends = traits_of(describe(node, graph.tensors)).attended is not None
        return class_of(tdl.catalog[node.op].category, function, attends=attends)

    return {name: "optimizer" if phase[name] == UPDATE else of(node) for name, node in nodes.items()}
