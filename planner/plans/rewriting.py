"""Rewriting the graph of a plan that was found: nodes that copy, with where their results lie and who computes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, count, product

from msgspec import structs

from planner.graph.ir import Graph, Node
from planner.layout import EVERYWHERE, REPLICATE, Layout, Region, Shard, Strategy, fetch
from planner.plans.plan import Plan


@dataclass(frozen=True, slots=True)
class Copying:
    """A node that copies a tensor, the name of what is new, where that lies, and how the node is split."""

    node: Node
    new: str
    layout: Layout
    strategy: Strategy


def rewritten(plan: Plan, nodes: Iterable[Node], copying: Iterable[Copying]) -> Plan:
    """Return the plan of other nodes, of which these copy; what its search said of bytes is then what it moves."""
    tensors, layouts, strategies = dict(plan.graph.tensors), dict(plan.layouts), dict(plan.strategies)
    for copy in copying:
        (name,) = {*copy.node.inputs, *copy.node.outputs} - {copy.new}
        role = "activation" if tensors[name].role == "weight" else tensors[name].role
        tensors[copy.new] = replace(tensors[name], name=copy.new, role=role, init=None)
        layouts[copy.new], strategies[copy.node.name] = copy.layout, copy.strategy
    graph = replace(plan.graph, tensors=tensors, nodes=tuple(nodes))
    changed = replace(plan, graph=graph, layouts=layouts, strategies=strategies)
    moved = {plan.search.winner: changed.total_bytes} if plan.search.winner else {}
    return replace(changed, search=structs.replace(plan.search, bytes=moved, lower_bound=None, bound_by=""))


def copied_where_stored(layout: Layout, beside: Strategy) -> Strategy:
    """Return how a tensor is copied: each worker copies what it stores, of those stages that `beside` is split over."""
    return tuple(
        f"i{placement.dim}" if isinstance(placement, Shard) else EVERYWHERE if placement == REPLICATE else of_all
        for placement, of_all in zip(layout, beside, strict=True)
    )


def layout_of(plan: Plan, tensor: str, need: tuple[Region, ...]) -> Layout | None:
    """Return the layout by which workers hold what they need of a tensor, stored or gathered along steps."""
    shape, stored = plan.graph.tensors[tensor].shape, plan.layouts[tensor]
    for layout in product(*((placement, REPLICATE) for placement in stored)):
        exchange = fetch(shape, layout, need, plan.ways, frozenset())
        if exchange.reducer is None and exchange.sources == need:
            return layout
    return None


class Names:
    """Names that no tensor and no node of a graph has."""

    def __init__(self, graph: Graph) -> None:
        self._taken = {*graph.tensors, *(node.name for node in graph.nodes)}

    def unused(self, name: str) -> str:
        """Return the name, with a number behind it if it must be, and take it."""
        numbered: Iterator[str] = (f"{name}.{number}" for number in count(2))
        free = next(candidate for candidate in chain((name,), numbered) if candidate not in self._taken)
        self._taken.add(free)
        return free
