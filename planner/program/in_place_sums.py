"""Sums added up in place: each term goes into the sum as it is computed, where all terms lie where they are added."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from planner.graph.ir import Graph
from planner.plans.traffic import NodeTraffic
from planner.program.fusion import is_direct


def add_in_place(graph: Graph, work: Sequence[NodeTraffic]) -> list[NodeTraffic]:
    """Return the work without sums that are added up in place; the last node that makes a term writes such a sum."""
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
    """Whether a node's only result is a sum that stays where it is computed."""
    (output, *others), writes = item.signature.description.outputs, item.writes
    return not others and output.reducer == "Sum" and not writes[0].hops


def _summands(terms: Sequence[NodeTraffic], total: NodeTraffic, order: Mapping[str, object]) -> dict[str, NodeTraffic]:
    """Return the nodes that make terms as they add to a sum."""
    place = {name: number for number, name in enumerate(order)}
    last = max(terms, key=lambda item: place[item.node.name])
    return {
        item.node.name: replace(item, writes=total.writes if item is last else (), accumulates=total.node.name)
        for item in terms
    }
