"""Rewriting the graph of a plan that was found: nodes that copy, with where their results lie and who computes them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, product

from msgspec import structs

from planner.graph.ir import Graph, Node
from planner.graph.micro_batches import can_add_up
from planner.layout import EVERYWHERE, REPLICATE, Layout, Region, Shard, Strategy, fetch
from planner.plans.plan import Plan


@dataclass(frozen=True, slots=True)
class Copying:
    """A node that copies a tensor, the name of what is new, where that lies, and how the node is split.

    `readers` are nodes and operands that read the copy, which is made before the node at `place` of the graph.
    """

    node: Node
    new: str
    layout: Layout
    strategy: Strategy
    readers: tuple[tuple[str, int], ...] = ()
    place: int = 0


def with_copies(plan: Plan, copies: Sequence[Copying]) -> Plan:
    """Return the plan in which readers have copies, each made before the node that it says."""
    source = {reader: copy.new for copy in copies for reader in copy.readers}
    before = defaultdict[int, list[Node]](list)
    for copy in copies:
        before[copy.place].append(copy.node)

    def nodes() -> Iterator[Node]:
        for place, node in enumerate(plan.graph.nodes):
            yield from before[place]
            inputs = (source.get((node.name, operand), name) for operand, name in enumerate(node.inputs))
            yield replace(node, inputs=tuple(inputs))

    return rewritten(plan, nodes(), copies)


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


def without_copies(graph: Graph) -> Graph:
    """Return the graph without the copies that plans add: readers read what was copied, and terms add up where made.

    >>> import planner
    >>> graph = planner.model("mlp-2-16", batch=8, micro_batches=2)
    >>> whole, sharded = (planner.plan(graph, parallel=parallel).graph for parallel in ("dp=2", "dp=2,zero=3"))
    >>> len(sharded.nodes) > len(whole.nodes), without_copies(sharded) == whole
    (True, True)
    """
    readers = Counter(name for node in graph.nodes for name in node.inputs)
    makers = {name: node for node in graph.nodes for name in node.outputs}
    copied, added_up = dict[str, str](), dict[str, str]()
    for node in graph.nodes:
        if node.op == "cast" and node.attrs["dtype"] == graph.tensors[node.inputs[0]].dtype:
            copied[node.outputs[0]] = copied.get(node.inputs[0], node.inputs[0])
        elif node.op == "clone" and node.outputs[0] in graph.accumulated:
            (term,) = node.inputs
            if readers[term] == 1 and term in makers and can_add_up(makers[term], graph.tensors):
                added_up[term] = node.outputs[0]
    dropped = {*copied, *added_up.values()}
    nodes = tuple(
        replace(
            node,
            inputs=tuple(copied.get(name, name) for name in node.inputs),
            outputs=tuple(added_up.get(name, name) for name in node.outputs),
        )
        for node in graph.nodes
        if dropped.isdisjoint(node.outputs)
    )
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name not in {*copied, *added_up}}
    return replace(graph, tensors=tensors, nodes=nodes)


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
        free = next(n for n in chain((name,), (f"{name}.{number}" for number in count(2))) if n not in self._taken)
        self._taken.add(free)
        return free
