"""Which nodes share what they fetch: a few backward nodes of one forward node that read one tensor, in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from planner.graph.ir import Graph

MOST_TOGETHER = 4
"""What is fetched by so many nodes together is a cost of 2^n terms: of 50 slices of a gradient too many to count."""


def backward_groups(graph: Graph) -> Mapping[tuple[str, str], int]:
    """Return, per backward node and tensor that it reads, the number of its group among its forward node's.

    >>> from planner.models import build
    >>> backward_groups(build("mlp-2-4", batch=2))["fc2.grad_a", "fc2.grad"]
    0
    """
    before: Counter[tuple[str, str]] = Counter()
    groups: dict[tuple[str, str], int] = {}
    for node in graph.nodes:
        for tensor in dict.fromkeys(node.inputs) if node.forward is not None else ():
            read = str(node.forward), tensor
            groups[node.name, tensor] = before[read] // MOST_TOGETHER
            before[read] += 1
    return groups
