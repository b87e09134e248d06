"""Compute units: single nodes, or chains of element-wise nodes without buffers between them; and sums in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from planner.graph.ir import Graph
from planner.plans.traffic import NodeTraffic, Read

Unit = tuple[NodeTraffic, ...]


def compute_units(graph: Graph, work: Sequence[NodeTraffic], kept: frozenset[str]) -> list[Unit]:
    """Group neighbouring element-wise nodes into chains.

    A node joins the chain before it if it is the only reader of the chain's result, reads it as it lies, and produces
    an equal region in its place. `kept` names results that must be stored anyway. A tensor that accumulates over
    micro-batches is already in place, and a chain stays within its phase.
    """
    readers = Counter(name for node in graph.nodes for name in node.inputs)
    units: list[Unit] = []
    for item in work:
        if units and _continues(graph, units[-1][-1], item, readers, kept):
            units[-1] = (*units[-1], item)
        else:
            units.append((item,))
    return units


def _continues(
    graph: Graph, before: NodeTraffic, after: NodeTraffic, readers: Counter[str], kept: frozenset[str]
) -> bool:
    if not (before.signature.description.is_elementwise and after.signature.description.is_elementwise):
        return False
    if before.accumulates or len(before.writes) != 1 or len(after.writes) != 1:
        return False
    (write,), (following,) = before.writes, after.writes
    if before.phase != after.phase or following.adds_up:
        return False
    if write.hops or write.tensor in kept or readers[write.tensor] != 1:
        return False
    reads = [read for read in after.reads if read.tensor == write.tensor]
    return (
        len(reads) == 1
        and is_direct(reads[0])
        and write.production.regions == following.production.regions
        and graph.tensors[write.tensor].dtype == graph.tensors[following.tensor].dtype
    )


def is_direct(read: Read) -> bool:
    """Return True if a read needs exactly what the worker holds."""
    return read.exchange is None and read.same_as is None


def add_in_place(graph: Graph, work: Sequence[NodeTraffic]) -> list[NodeTraffic]:
    """Return the work without the sums that are computed in place.

    The last node that computes a term writes the sum.
    """
    readers = Counter(name for node in graph.nodes for name in node.inputs)
    makers = {write.tensor: item for item in work for write in item.writes if readers[write.tensor] == 1}
    result: dict[str, NodeTraffic] = {}
    for item in work:
        mine = (name for name in item.node.inputs if name in makers and makers[name].phase == item.phase)
        terms = dict.fromkeys(name for name in mine if _is_term(makers[name]))
        direct = all(map(is_direct, item.reads))
        if item.signature.description.adds_operands and direct and 1 < len(terms) == len(item.node.inputs):
            result |= _summands([result[makers[name].node.name] for name in terms], item, result)
        else:
            result[item.node.name] = item
    return list(result.values())


def _is_term(item: NodeTraffic) -> bool:
    """Return True if a node's only result is a sum that stays where it is computed."""
    (output, *others), writes = item.signature.description.outputs, item.writes
    return not others and output.reducer == "Sum" and not writes[0].hops


def _summands(terms: Sequence[NodeTraffic], total: NodeTraffic, order: Mapping[str, object]) -> dict[str, NodeTraffic]:
    """Return the nodes that compute terms, changed to add to the sum."""
    place = {name: number for number, name in enumerate(order)}
    last = max(terms, key=lambda item: place[item.node.name])
    return {
        item.node.name: replace(item, writes=total.writes if item is last else (), accumulates=total.node.name)
        for item in terms
    }
