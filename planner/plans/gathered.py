"""Weights gathered for each pass, as FSDP2 gathers them: ahead of their readers, freed, and gathered again.

A copy of a weight is made for the forward pass, and one for the backward pass. A plan that shards the weight and
replicates its copies gathers it twice, however many operators read it. A copy lives while its pass reads it; it is
made one weight ahead of where it is read first, so that it arrives while others are computed with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter

from planner.graph.facts import copies_of_weights, phases
from planner.graph.ir import Graph, Node
from planner.layout import Layout
from planner.plans.plan import Plan
from planner.plans.rewriting import Copying, Names, copied_where_stored, layout_of, with_copies

PASSES = "forward", "backward"

Gather = tuple[int, str, str, tuple[tuple[str, int], ...]]
"""The place of the first node of a pass that begins with a weight, the weight, the pass, its nodes and operands."""


def gather_for_each_pass(plan: Plan) -> Plan:
    """Return the plan whose passes read copies of the weights that are stored in parts and read whole."""
    phase, layouts = phases(plan.graph), dict(_layouts_of_readers(plan))
    of_weights = (gather for weight in layouts for gather in _gathers(plan.graph, weight, phase))
    gathers = sorted(of_weights, key=itemgetter(0))
    places, names = _places(plan.graph, gathers, phase), Names(plan.graph)

    def copying(first: int, weight: str, during: str, readers: tuple[tuple[str, int], ...]) -> Copying:
        name, dtype = names.unused(f"{weight}.{during}"), plan.graph.tensors[weight].dtype
        strategy = copied_where_stored(plan.layouts[weight], plan.strategies[plan.graph.nodes[first].name])
        node = Node(name, "cast", (weight,), (name,), {"dtype": dtype})
        return Copying(node, name, layouts[weight], strategy, readers, places[first, weight])

    return with_copies(plan, [copying(*gather) for gather in gathers])


def _layouts_of_readers(plan: Plan) -> Iterator[tuple[str, Layout]]:
    """Yield the weights, and copies of weights in another dtype, that passes fetch, and how readers have them."""
    phase, copies = phases(plan.graph), copies_of_weights(plan.graph)
    for work in plan.traffic().work:
        is_of_pass = phase[work.node.name] in PASSES and copies.isdisjoint(work.node.outputs)
        for read in work.reads if is_of_pass else ():
            is_weight = plan.graph.tensors[read.tensor].role == "weight" or read.tensor in copies
            if is_weight and read.exchange is not None and (layout := layout_of(plan, read.tensor, read.need)):
                yield read.tensor, layout


def _gathers(graph: Graph, weight: str, phase: Mapping[str, str]) -> Iterator[Gather]:
    """Yield a weight's copy for each pass that begins with its readers or with what differentiates these.

    So a bias is gathered for the backward pass, too, which does not read it.
    """
    readers = [
        (node.name, operand)
        for node in graph.nodes
        for operand, name in enumerate(node.inputs)
        if name == weight and phase[node.name] in PASSES
    ]
    forward = {name for name, _ in readers if phase[name] == "forward"}
    for during in PASSES:
        own = tuple(reader for reader in readers if phase[reader[0]] == during)
        places = (
            place
            for place, node in enumerate(graph.nodes)
            if phase[node.name] == during and (weight in node.inputs or node.forward in forward)
        )
        if (first := next(places, None)) is not None:
            yield first, weight, during, own


def _places(graph: Graph, gathers: Sequence[Gather], phase: Mapping[str, str]) -> Mapping[tuple[int, str], int]:
    """Return before which node each copy is made: the one that first reads the copy before it.

    None of the backward pass is made before its first node.
    """
    backward = next(place for place, node in enumerate(graph.nodes) if phase[node.name] == "backward")
    available = {name: place + 1 for place, node in enumerate(graph.nodes) for name in node.outputs}
    firsts = sorted({first for first, *_ in gathers})
    ahead = dict(zip(firsts, (0, *firsts), strict=False))
    return {
        (first, weight): max(backward if first >= backward else 0, ahead[first], available.get(weight, 0))
        for first, weight, *_ in gathers
    }
