"""The terms of a graph's cost: every fetch, what nodes save that share one, every store, what sums save."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from planner.graph.ir import Graph
from planner.layout import Signature
from planner.search.costs.cost import AgreementSaving, Cost, FetchCost, StoreCost
from planner.search.costs.needs import Need, needs_of_operands

CostTerm = tuple[tuple[str, ...], str, Cost]
"""(nodes, tensor, cost) of a fetch, a shared fetch or a store."""


def cost_terms(
    graph: Graph,
    found: Mapping[str, Signature],
    sums: Mapping[str, tuple[str, ...]],
    may_differ: Mapping[str, tuple[str, ...]],
    *,
    partial: bool,
) -> Iterator[CostTerm]:
    """Yield every fetch, shared fetch and store.

    A sum that can accumulate locally, one of `sums`, does, unless it is in `may_differ`: then it does where these nodes
    agree, which stand for all that it sums. `partial`: tensors may be partial.
    """
    certain = {total: names for total, names in sums.items() if total not in may_differ}
    summands = {name for names in certain.values() for name in names}
    groups: dict[tuple[str, str], dict[str, Reader]] = {}
    for node in graph.nodes:
        signature = found[node.name]
        if node.name in certain:
            first = certain[node.name][0]
            yield (first,), node.outputs[0], StoreCost(found[first], 0)
            continue
        if node.name in may_differ:
            agreeing = may_differ[node.name]
            stored_alone = StoreCost(found[agreeing[0]], 0)
            yield agreeing, node.outputs[0], AgreementSaving(stored_alone, len(node.inputs) - 1)
        for tensor in dict.fromkeys(node.inputs):
            operands = tuple(operand for operand, name in enumerate(node.inputs) if name == tensor)
            reader = needs_of_operands(signature, operands), operands if partial else None
            yield (node.name,), tensor, _fetch_cost_of_readers(graph.tensors[tensor].shape, [reader])
            if node.forward is not None:
                groups.setdefault((node.forward, tensor), {})[node.name] = reader
        if node.name not in summands:
            for output, tensor in enumerate(node.outputs):
                yield (node.name,), tensor, StoreCost(signature, output)
    for (_, tensor), readers in groups.items():
        for size in range(2, len(readers) + 1):
            for nodes in combinations(readers, size):
                yield (
                    nodes,
                    tensor,
                    _fetch_cost_of_readers(graph.tensors[tensor].shape, [readers[node] for node in nodes]),
                )


Reader = tuple[tuple[Need, ...], tuple[int, ...] | None]
"""A node's needs of a tensor, and the operands through which it reads it where those matter."""


def _fetch_cost_of_readers(shape: tuple[int, ...], readers: Sequence[Reader]) -> FetchCost:
    operands = tuple(positions for _, positions in readers if positions is not None)
    return FetchCost(shape, tuple(needs for needs, _ in readers), operands)
