"""Gradients scattered after each micro-batch, as DeepSpeed's ZeRO-2 and FSDP2 do: no worker adds up a whole one.

A micro-batch's term is reduced into the parts that workers store, and these parts add up. It moves a gradient for each
micro-batch. Without, every worker adds up the whole gradient, which is reduced once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.graph.ir import Node
from planner.layout import Shard
from planner.plans.plan import Plan
from planner.plans.rewriting import Copying, Names, copied_where_stored, rewritten
from planner.plans.traffic import NodeTraffic


def scatter_each_micro_batch(plan: Plan) -> Plan:
    """Return the plan in which sums over micro-batches that are stored in parts are sums of these parts."""
    names = Names(plan.graph)
    copying = {work.node.name: list(_sums_of_parts(plan, work, names)) for work in plan.traffic().work}
    nodes = (new for node in plan.graph.nodes for new in _scattering(node, copying[node.name]))
    return rewritten(plan, nodes, (copy for copies in copying.values() for copy in copies))


def _sums_of_parts(plan: Plan, work: NodeTraffic, names: Names) -> Iterator[Copying]:
    """Yield a node for each result of which workers add up terms of the whole, though they store parts."""
    for write in work.writes:
        layout = plan.layouts[write.tensor]
        if write.adds_up and any(isinstance(layout[step], Shard) for step in write.production.reducing):
            name = names.unused(f"{write.tensor}.scattered")
            node = Node(name, "clone", (name,), (write.tensor,), {}, forward=work.node.forward)
            yield Copying(node, name, layout, copied_where_stored(layout, work.strategy))


def _scattering(node: Node, copies: list[Copying]) -> Iterator[Node]:
    """Yield a node that makes terms of a micro-batch alone, and those that add up parts of them."""
    terms = {copy.node.outputs[0]: copy.new for copy in copies}
    yield replace(node, outputs=tuple(terms.get(name, name) for name in node.outputs))
    yield from (copy.node for copy in copies)
