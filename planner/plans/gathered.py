"""Weights gathered for each pass, as FSDP2 gathers them: ahead of their readers, freed, and gathered again.

A copy of a weight is made for the forward pass, and one for the backward pass. A plan that shards the weight and
replicates its copies gathers it twice, however many operators read it. A copy lives while its pass reads it; it is
made one weight ahead of where it is read first, so that it arrives while others are computed with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.graph.facts import copies_of_weights, phases
from planner.graph.ir import Graph, Node
from planner.layout import Layout
from planner.plans.plan import Plan
from planner.plans.rewriting import Copying, Names, copied_where_stored, layout_of, rewritten

PASSES = "forward", "backward"


@dataclass(frozen=True, slots=True)
class _Gather:
    """A copy for one pass: the node that makes it, where in the graph that pass begins with it, and who reads it."""

    node: Node
    first: int
    readers: tuple[str, ...]


def gather_for_each_pass(plan: Plan) -> Plan:
    """Return the plan whose passes read copies of the weights that are stored in parts and read whole."""
    phase, names, layouts = phases(plan.graph), Names(plan.graph), dict(_layouts_of_readers(plan))
    gathers = sorted(
        (gather for weight in layouts for gather in _gathers(plan.graph, weight, phase, names)),
        key=lambda gather: gather.first,
    )
    source = {
        (reader, gather.node.inputs[0]): gather.node.outputs[0] for gather in gathers for reader in gather.readers
    }
    backward = next(place for place, node in enumerate(plan.graph.nodes) if phase[node.name] == "backward")
    starting = _copies_by_place(plan.graph, gathers, backward)

    def nodes() -> Iterator[Node]:
        for place, node in enumerate(plan.graph.nodes):
            yield from starting.get(place, ())
            yield replace(node, inputs=tuple(source.get((node.name, name), name) for name in node.inputs))

    def copying() -> Iterator[Copying]:
        for gather in gathers:
            (weight,), beside = gather.node.inputs, plan.strategies[plan.graph.nodes[gather.first].name]
            strategy = copied_where_stored(plan.layouts[weight], beside)
            yield Copying(gather.node, gather.node.name, layouts[weight], strategy)

    return rewritten(plan, nodes(), copying())


def _layouts_of_readers(plan: Plan) -> Iterator[tuple[str, Layout]]:
    """Yield the weights, and copies of weights in another dtype, that passes fetch, and how readers have them."""
    phase, copies = phases(plan.graph), copies_of_weights(plan.graph)
    for work in plan.traffic().work:
        is_of_pass = phase[work.node.name] in PASSES and copies.isdisjoint(work.node.outputs)
        for read in work.reads if is_of_pass else ():
            is_weight = plan.graph.tensors[read.tensor].role == "weight" or read.tensor in copies
            if is_weight and read.exchange is not None and (layout := layout_of(plan, read.tensor, read.need)):
                yield read.tensor, layout


def _gathers(graph: Graph, weight: str, phase: Mapping[str, str], taken: Names) -> Iterator[_Gather]:
    """Yield a weight's copy for each pass that begins with its readers or with what differentiates these.

    So a bias is gathered for the backward pass, too, which does not read it.
    """
    readers = [(place, node) for place, node in enumerate(graph.nodes) if weight in node.inputs]
    forward = {node.name for _, node in readers if phase[node.name] == "forward"}
    for during in PASSES:
        names = tuple(node.name for _, node in readers if phase[node.name] == during)
        places = (
            place
            for place, node in enumerate(graph.nodes)
            if phase[node.name] == during and (weight in node.inputs or node.forward in forward)
        )
        if (first := next(places, None)) is not None:
            name = taken.unused(f"{weight}.{during}")
            yield _Gather(Node(name, "cast", (weight,), (name,), {"dtype": graph.tensors[weight].dtype}), first, names)


def _copies_by_place(graph: Graph, gathers: Sequence[_Gather], backward: int) -> dict[int, list[Node]]:
    """Return the copies by the node before which they are made: where the copies before them are first read.

    None of the backward pass is made before its first node.
    """
    available = {name: place + 1 for place, node in enumerate(graph.nodes) for name in node.outputs}
    firsts = sorted({gather.first for gather in gathers})
    ahead = dict(zip(firsts, (0, *firsts), strict=False))
    copies: dict[int, list[Node]] = {}
    for gather in gathers:
        begin = backward if gather.first >= backward else 0
        place = max(begin, ahead[gather.first], available.get(gather.node.inputs[0], 0))
        copies.setdefault(place, []).append(gather.node)
    return copies
