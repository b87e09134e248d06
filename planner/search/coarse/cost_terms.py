"""The terms of a graph's cost: every fetch, every saving of nodes that share a fetch, and every store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from planner.graph.ir import Graph
from planner.graph.micro_batches import phases_of_nodes, runs_of
from planner.layout import Signature
from planner.plans.traffic import backward_groups
from planner.search.costs.cost import Cost, FetchCost, StoreCost
from planner.search.costs.needs import Need, needs_of_operands

CostTerm = tuple[tuple[str, ...], str, Cost, int]
"""(nodes, tensor, cost, executions per iteration) of a fetch, a shared fetch or a store."""


def cost_terms(
    graph: Graph,
    signatures: Mapping[str, Signature],
    as_terms: Mapping[str, frozenset[int]],
    *,
    partial: bool,
) -> Iterator[CostTerm]:
    """Yield every fetch, shared fetch and store.

    Nodes may read terms through the operands `as_terms`, all of them together. With `partial`, any node may read terms
    through any operands.
    """
    phases, adding_up = phases_of_nodes(graph), frozenset(graph.accumulated)
    group_of = backward_groups(graph)
    groups: dict[tuple[str, int, str, str], dict[str, Reader]] = {}
    for node in graph.nodes:
        signature, runs = signatures[node.name], runs_of(phases[node.name], graph)
        together = as_terms.get(node.name, frozenset())
        for tensor in dict.fromkeys(node.inputs):
            operands = tuple(operand for operand, name in enumerate(node.inputs) if name == tensor)
            terms = tuple(sorted(together)) if together.issuperset(operands) else operands if partial else None
            reader = needs_of_operands(signature, operands), terms
            yield (node.name,), tensor, _fetch_cost_of_readers(graph.tensors[tensor].shape, [reader]), runs
            if node.forward is not None:
                group = node.forward, group_of[node.name, tensor], tensor, phases[node.name]
                groups.setdefault(group, {})[node.name] = reader
        for output, tensor in enumerate(node.outputs):
            yield (node.name,), tensor, StoreCost(signature, output), 1 if tensor in adding_up else runs
    for (*_, tensor, phase), readers in groups.items():
        for size in range(2, len(readers) + 1):
            for nodes in combinations(readers, size):
                yield (
                    nodes,
                    tensor,
                    _fetch_cost_of_readers(graph.tensors[tensor].shape, [readers[node] for node in nodes]),
                    runs_of(phase, graph),
                )


Reader = tuple[tuple[Need, ...], tuple[int, ...] | None]
"""A node's needs of a tensor, and the operands through which it reads the tensor if those matter."""


def _fetch_cost_of_readers(shape: tuple[int, ...], readers: Sequence[Reader]) -> FetchCost:
    operands = tuple(positions for _, positions in readers if positions is not None)
    return FetchCost(shape, tuple(needs for needs, _ in readers), operands)
