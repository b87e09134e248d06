"""Rewrite a plan's graph: insert nodes that copy, with the layouts of their results and their strategies.

*Gathered weights*, as in FSDP2: one copy is made for the forward pass and one for the backward pass, one weight ahead
of its first reader, and lives while its pass reads it. However many operators read a weight, it is gathered twice.
*Scattered gradients*, as in ZeRO-2 and FSDP2: the term of each micro-batch is reduced into the parts that workers
store, which moves a gradient per micro-batch. *Shared reads*, as in Megatron-LM's sequence parallelism (Korthikanti and
others 2022, section 4.2.2): what several nodes of a pass fetch alike is gathered once for all of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, product
from operator import itemgetter

from msgspec import structs

from planner.graph.facts import copies_of_weights, phases
from planner.graph.ir import Graph, Node
from planner.graph.micro_batches import can_add_up
from planner.grouping import grouped
from planner.layout import EVERYWHERE, REPLICATE, Layout, Region, Shard, Strategy, fetch
from planner.plans.plan import Plan
from planner.plans.traffic import NodeTraffic, Read


@dataclass(frozen=True, slots=True)
class Copying:
    """A node that copies a tensor, the name of the new tensor, its layout, and the node's strategy.

    `readers` are the nodes and operands that read the copy; it is made before the node at `place` of the graph.
    """

    node: Node
    new: str
    layout: Layout
    strategy: Strategy
    readers: tuple[tuple[str, int], ...] = ()
    place: int = 0


def with_copies(plan: Plan, copies: Sequence[Copying]) -> Plan:
    """Return the plan in which readers use copies, each made before the node at its `place`."""
    source = {reader: copy.new for copy in copies for reader in copy.readers}
    before = grouped((copy.place, copy.node) for copy in copies)

    def nodes() -> Iterator[Node]:
        for place, node in enumerate(plan.graph.nodes):
            yield from before.get(place, ())
            inputs = (source.get((node.name, operand), name) for operand, name in enumerate(node.inputs))
            yield replace(node, inputs=tuple(inputs))

    return rewritten(plan, nodes(), copies)


def rewritten(plan: Plan, nodes: Iterable[Node], copying: Iterable[Copying]) -> Plan:
    """Return the plan with these nodes, including the copying ones; its search record then holds the new bytes."""
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
    """Return the graph without copies added by plans: readers read the original, and terms accumulate where computed.

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
    """Return the strategy of a copy: each worker copies what it stores, on the stages that `beside` is split over."""
    return tuple(
        f"i{placement.dim}" if isinstance(placement, Shard) else EVERYWHERE if placement == REPLICATE else of_all
        for placement, of_all in zip(layout, beside, strict=True)
    )


def layout_of(plan: Plan, tensor: str, need: tuple[Region, ...]) -> Layout | None:
    """Return the layout in which workers hold what they need of a tensor, or None.

    Each placement is as stored, or replicated along its step.
    """
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
        """Return the name, with a number appended if it is taken, and reserve it."""
        free = next(n for n in chain((name,), (f"{name}.{number}" for number in count(2))) if n not in self._taken)
        self._taken.add(free)
        return free


PASSES = "forward", "backward"

Gather = tuple[int, str, str, tuple[tuple[str, int], ...]]
"""Place of the first node of a pass that needs a weight, the weight, the pass, and its readers with operands."""


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
    """Yield the weights, and their copies in another dtype, that passes fetch, with the layout that readers need."""
    phase, copies = phases(plan.graph), copies_of_weights(plan.graph)
    for work in plan.traffic().work:
        is_of_pass = phase[work.node.name] in PASSES and copies.isdisjoint(work.node.outputs)
        for read in work.reads if is_of_pass else ():
            is_weight = plan.graph.tensors[read.tensor].role == "weight" or read.tensor in copies
            if is_weight and read.exchange is not None and (layout := layout_of(plan, read.tensor, read.need)):
                yield read.tensor, layout


def _gathers(graph: Graph, weight: str, phase: Mapping[str, str]) -> Iterator[Gather]:
    """Yield a weight's copy for each pass that has its readers or their backward nodes.

    So a bias is gathered for the backward pass too, although that does not read it.
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
    """Return the node before which each copy is made: the first reader of the previous copy.

    Copies for the backward pass are made no earlier than its first node.
    """
    backward = next(place for place, node in enumerate(graph.nodes) if phase[node.name] == "backward")
    available = {name: place + 1 for place, node in enumerate(graph.nodes) for name in node.outputs}
    firsts = sorted({first for first, *_ in gathers})
    ahead = dict(zip(firsts, (0, *firsts), strict=False))
    return {
        (first, weight): max(backward if first >= backward else 0, ahead[first], available.get(weight, 0))
        for first, weight, *_ in gathers
    }


def scatter_each_micro_batch(plan: Plan) -> Plan:
    """Return the plan in which sums over micro-batches that are stored in parts accumulate in parts."""
    names = Names(plan.graph)
    copying = {work.node.name: list(_sums_of_parts(plan, work, names)) for work in plan.traffic().work}
    nodes = (new for node in plan.graph.nodes for new in _scattering(node, copying[node.name]))
    return rewritten(plan, nodes, (copy for copies in copying.values() for copy in copies))


def _sums_of_parts(plan: Plan, work: NodeTraffic, names: Names) -> Iterator[Copying]:
    """Yield a node for each result whose whole terms workers accumulate although they store parts."""
    for write in work.writes:
        layout = plan.layouts[write.tensor]
        if write.adds_up and any(isinstance(layout[step], Shard) for step in write.production.reducing):
            name = names.unused(f"{write.tensor}.scattered")
            node = Node(name, "clone", (name,), (write.tensor,), {}, forward=work.node.forward)
            yield Copying(node, name, layout, copied_where_stored(layout, work.strategy))


def _scattering(node: Node, copies: list[Copying]) -> Iterator[Node]:
    """Yield a node whose results are terms of one micro-batch, and the nodes that accumulate parts of them."""
    terms = {copy.node.outputs[0]: copy.new for copy in copies}
    yield replace(node, outputs=tuple(terms.get(name, name) for name in node.outputs))
    yield from (copy.node for copy in copies)


def gather_once(plan: Plan) -> Plan:
    """Return the plan in which equal fetches of several nodes of a pass are gathered once, into a copy.

    It moves at most as many bytes. Partial sums, and needs that no layout describes, are fetched as before.
    """
    return with_copies(plan, tuple(_copies(plan)))


def _copies(plan: Plan) -> Iterator[Copying]:
    """Yield a copy for each group of nodes of a pass that fetch equal parts of a tensor."""
    phase_of, names = phases(plan.graph), Names(plan.graph)
    places = {node.name: place for place, node in enumerate(plan.graph.nodes)}
    makers = {name: node for node in plan.graph.nodes for name in node.outputs}
    groups = defaultdict[tuple[str, str, tuple[Region, ...]], list[Read]](list)
    for work in plan.traffic().work:
        for read in work.reads:
            if read.exchange is not None or read.same_as is not None:
                groups[read.tensor, phase_of[work.node.name], read.need].append(read)
    for (tensor, phase, need), reads in groups.items():
        layout = layout_of(plan, tensor, need)
        if sum(read.exchange is not None for read in reads) < 2 or layout is None or tensor not in makers:
            continue
        maker, name = makers[tensor], names.unused(f"{tensor}.gathered.{phase}")
        kin = None if phase == "forward" else maker.forward or maker.name
        node = Node(name, "cast", (tensor,), (name,), {"dtype": plan.graph.tensors[tensor].dtype}, forward=kin)
        strategy = copied_where_stored(plan.layouts[tensor], plan.strategies[reads[0].node])
        readers = tuple((read.node, operand) for read in reads for operand in read.operands)
        yield Copying(node, name, layout, strategy, readers, min(places[read.node] for read in reads))
