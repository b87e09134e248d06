"""Weights gathered for each pass, as FSDP2 gathers them: ahead of their readers, freed, and gathered again.

A copy of a weight is made for the forward pass, and one for the backward pass. A plan that shards the weight and
replicates its copies gathers it twice, however many operators read it. A copy lives while its pass reads it; it is
made one weight ahead of where it is read first, so that it arrives while others are computed with.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.graph.facts import phases
from planner.graph.ir import Graph, Node


@dataclass(frozen=True, slots=True)
class _Gather:
    """A copy for one pass: the node that makes it, where in the graph that pass begins with it, and who reads it."""

    node: Node
    first: int
    readers: tuple[str, ...]


def gather_for_each_pass(graph: Graph, weights: Collection[str]) -> tuple[Graph, tuple[Node, ...]]:
    """Return the graph whose passes read copies of weights, and the nodes that copy."""
    phase = phases(graph)
    gathers = sorted(
        (gather for weight in weights for gather in _gathers(graph, weight, phase)), key=lambda gather: gather.first
    )
    source = {
        (reader, gather.node.inputs[0]): gather.node.outputs[0] for gather in gathers for reader in gather.readers
    }
    starting = _copies_by_place(graph, gathers)

    def nodes() -> Iterator[Node]:
        for place, node in enumerate(graph.nodes):
            yield from starting.get(place, ())
            yield replace(node, inputs=tuple(source.get((node.name, name), name) for name in node.inputs))

    copies = (
        replace(graph.tensors[gather.node.inputs[0]], name=gather.node.name, role="activation", init=None)
        for gather in gathers
    )
    tensors = {**graph.tensors, **{copy.name: copy for copy in copies}}
    return replace(graph, tensors=tensors, nodes=tuple(nodes())), tuple(gather.node for gather in gathers)


def without_copies(graph: Graph) -> Graph:
    """Return the graph without copies of tensors in their own dtype, as plans add them, whose readers read the tensors.

    >>> import planner
    >>> graph = planner.model("mlp-2-16", batch=8)
    >>> copied, nodes = gather_for_each_pass(graph, ["fc1.w"])
    >>> len(nodes), without_copies(copied) == graph
    (2, True)
    """
    copied: dict[str, str] = {}
    nodes = []
    for node in graph.nodes:
        reading = replace(node, inputs=tuple(copied.get(name, name) for name in node.inputs))
        if node.op == "cast" and node.attrs["dtype"] == graph.tensors[node.inputs[0]].dtype:
            copied[node.outputs[0]] = reading.inputs[0]
        else:
            nodes.append(reading)
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name not in copied}
    return replace(graph, tensors=tensors, nodes=tuple(nodes))


def _gathers(graph: Graph, weight: str, phase: Mapping[str, str]) -> Iterator[_Gather]:
    """Yield a weight's copy for each pass that begins with its readers or with what differentiates these.

    So a bias is gathered for the backward pass, too, which does not read it.
    """
    readers = [(place, node) for place, node in enumerate(graph.nodes) if weight in node.inputs]
    forward = {node.name for _, node in readers if phase[node.name] == "forward"}
    for during in ("forward", "backward"):
        names = tuple(node.name for _, node in readers if phase[node.name] == during)
        places = (
            place
            for place, node in enumerate(graph.nodes)
            if phase[node.name] == during and (weight in node.inputs or node.forward in forward)
        )
        if (first := next(places, None)) is not None:
            name = f"{weight}.{during}"
            yield _Gather(Node(name, "cast", (weight,), (name,), {"dtype": graph.tensors[weight].dtype}), first, names)


def _copies_by_place(graph: Graph, gathers: Sequence[_Gather]) -> dict[int, list[Node]]:
    """Return the copies by the node before which they are made: where the copies before them are first read."""
    available = {name: place + 1 for place, node in enumerate(graph.nodes) for name in node.outputs}
    firsts = sorted({gather.first for gather in gathers})
    ahead = dict(zip(firsts, (0, *firsts), strict=False))
    copies: dict[int, list[Node]] = {}
    for gather in gathers:
        copies.setdefault(max(ahead[gather.first], available.get(gather.node.inputs[0], 0)), []).append(gather.node)
    return copies
