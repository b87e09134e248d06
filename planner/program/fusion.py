"""Compute units: one node each, or a chain of element-wise nodes that needs no buffers between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from planner.graph.ir import Graph
from planner.plans.traffic import NodeTraffic, Read

Unit = tuple[NodeTraffic, ...]


def compute_units(graph: Graph, work: Sequence[NodeTraffic], kept: frozenset[str]) -> list[Unit]:
    """Group neighbouring element-wise nodes into chains.

    A node joins the chain before it if it alone reads the chain's result, as it lies, and produces as much in its
    place, and nobody else wants that result (`kept` names what must be stored whoever reads it). What adds up over
    micro-batches is in place already, and a chain stays in its phase.
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
    """Whether a need is just what the worker holds."""
    return read.exchange is None and read.same_as is None
