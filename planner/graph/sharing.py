"""Which nodes share what they fetch: a few backward nodes of one forward node, in the graph's order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from planner.graph.ir import Graph

MOST_TOGETHER = 4
"""What is fetched by so many nodes together is a cost of 2^n terms: of 50 slices of a gradient too many to count."""


def backward_groups(graph: Graph) -> Mapping[str, tuple[str, int]]:
    """Return, per backward node, its forward node and the number of its group among that one's backward nodes.

    >>> from planner.models import build
    >>> backward_groups(build("mlp-2-4", batch=2))["fc2.grad_a"]
    ('fc2', 0)
    """
    before: Counter[str] = Counter()
    groups: dict[str, tuple[str, int]] = {}
    for node in graph.nodes:
        if node.forward is not None:
            groups[node.name] = node.forward, before[node.forward] // MOST_TOGETHER
            before[node.forward] += 1
    return groups
