"""The work of one worker of a replica on one micro-batch: its share of every node, and its exchanges.

It is the last worker: if an extent does not divide evenly, such as 25 heads over 8 workers, no part is larger than the
last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from planner.graph.ir import FLOATING, ITEM_BYTES, Graph, Node, depending_on_samples
from planner.graph.micro_batches import EVERY, accumulates
from planner.graph.order import parts_of_operators
from planner.graph.repeats import Repeats, repeats_of
from planner.layout import Exchange, Region, Strategy, Ways, collectives, elements, exchanged_by_axis, owned_by_all
from planner.layout.geometry import PRODUCTS
from planner.plans.plan import Plan
from planner.plans.traffic import NodeTraffic
from planner.program.calls import NodeWork, node_work
from simulator.projection.stack import Sent, times
from tdl.traits import Function, Traits, traits_of
from topologies.kernels import Attention, Product
from topologies.schema import Operation

Bytes = Mapping[str, int]

PAIRS = "pairs"
"""Messages between pairs, for exchanges that are no collective."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """An exchange of the worker: a collective among some workers of the replica.

    `nbytes` is the payload: the whole that is gathered or reduced; for messages between pairs, what the worker
    receives. `sent` are the bytes that a worker sends, by axis, averaged over the replica.
    """

    kind: Operation | str
    workers: tuple[int, ...]
    nbytes: int
    sent: Sent = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeShare:
    """The worker's share of a node: flop, bytes by tensor, shapes of products, exchanges before and after it.

    `dtype` is that of the computation. `once` are the exchanges of sums over all micro-batches. A view moves no
    elements. All workers together do `repeats` times the work of a product. A product `with_weights` reads or writes
    weights or their gradient. Nodes with the same `operator` are one operator of a library, such as a norm and its
    mean. `function` is what the operator computes, or whose gradient it computes. A node that `adds_terms` sums
    gradients of a tensor from several nodes, which automatic differentiation does by itself.
    """

    node: Node
    operator: str
    phase: str
    traits: Traits
    function: Function | None
    category: str
    dtype: str
    operations: float
    reads: Bytes
    writes: Bytes
    products: tuple[Product, ...]
    before: tuple[Transfer, ...]
    after: tuple[Transfer, ...]
    once: tuple[Transfer, ...] = ()
    is_view: bool = False
    adds_terms: bool = False
    attention: Attention | None = None
    repeats: float = 1.0
    with_weights: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Replica:
    """A worker's shares of all nodes of a micro-batch's graph, in order, and the bytes that it holds of each tensor.

    `repeats` are the repeated segments of the graph.
    """

    plan: Plan
    shares: tuple[NodeShare, ...]
    held: Bytes
    repeats: Repeats

    @property
    def graph(self) -> Graph:
        """The training graph of a micro-batch."""
        return self.plan.graph

    @property
    def divides_segments_alike(self) -> bool:
        """True if all segments of each run are divided alike. False if, say, every second product is split by rows."""
        divided: dict[tuple[int, int], Strategy] = {}
        return all(
            divided.setdefault((self.repeats.run_of(segment), position), self.plan.strategies[name])
            == self.plan.strategies[name]
            for name, (segment, position) in self.repeats.nodes.items()
        )

    def bases(self, *, parts: bool = False) -> Mapping[str, str]:
        """Return the tensor whose memory each view uses, by name; with `parts`, also that of parts of tensors.

        Elements that are repeated and then laid out have memory of their own.
        """
        bases: dict[str, str] = {}
        for share in self.shares:
            if share.traits.is_view or (parts and share.traits.is_part):
                base = bases.get(operand := share.node.inputs[0], operand)
                if share.traits.repeats or self.held[operand] <= self.held[base]:
                    bases |= dict.fromkeys(share.node.outputs, base)
        return bases


def replica(plan: Plan) -> Replica:
    """Return the last worker of the plan of one replica.

    >>> import planner
    >>> shares = replica(planner.plan(planner.model("mlp-2-16", batch=8), workers=1)).shares
    >>> [share.operations for share in shares if share.node.op == "mm"][:1]
    [4096.0]
    """
    shares = _Shares(plan)
    held = {
        name: elements(owned_by_all(tensor.shape, plan.layouts[name], plan.ways)[-1]) * ITEM_BYTES[tensor.dtype]
        for name, tensor in plan.graph.tensors.items()
    }
    loss = plan.graph.metrics.get("loss")
    work = (w for w in plan.traffic().work if w.phase in EVERY or loss not in w.node.outputs)  # loss: only displayed
    return Replica(plan, tuple(map(shares.share, work)), held, repeats_of(plan.graph))


def rows_read(node: Node, traits: Traits, reads: Bytes, writes: Bytes, held: Bytes) -> dict[str, int]:
    """Return the bytes that a node reads. Of a lookup table it reads no more rows than it writes."""
    table = None if traits.table is None else node.inputs[traits.table]
    return {name: min(held[name], sum(writes.values())) if name == table else n for name, n in reads.items()}


def same_elements(work: NodeWork) -> bool:
    """Return whether a node writes as many elements as it reads of its only operand, as reshapes and transposes do."""
    return len(work.input_elements) == 1 and work.input_elements[0] == sum(work.output_elements)


class _Shares:
    """Computes the shares of nodes. Equal nodes are computed once."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._worker = plan.workers - 1
        self._work: dict[object, NodeWork] = {}
        self._whole: dict[object, float] = {}
        self._fetched: set[tuple[str, str, tuple[Region, ...]]] = set()
        graph = plan.graph
        self._operators = dict(parts_of_operators(graph.nodes))
        signatures = plan.traffic().signatures
        self._traits = {name: traits_of(signature.description) for name, signature in signatures.items()}
        self._of_samples = depending_on_samples(graph.tensors, graph.nodes).difference(graph.accumulated)

    def share(self, work: NodeTraffic) -> NodeShare:
        """Return the worker's share of a node."""
        node, share, traits = work.node, self._node_work(work), self._traits[work.node.name]
        adds_terms = accumulates(node, self._plan.graph.tensors)
        reads = dict[str, int]()
        for name, count in zip(node.inputs, share.input_elements, strict=True):
            reads[name] = max(reads.get(name, 0), count * self._item(name))
        writes = {
            name: count * self._item(name) for name, count in zip(node.outputs, share.output_elements, strict=True)
        }
        reads = rows_read(node, traits, reads, writes, reads)
        dtypes = [self._plan.graph.tensors[name].dtype for name in node.outputs]
        return NodeShare(
            node=node,
            operator=self._operators.get(node.name, node.name) if node.forward is None else f"{node.forward}.grad",
            phase=work.phase,
            traits=traits,
            function=None if adds_terms else self._traits[node.forward or node.name].function,
            category=work.signature.category,
            dtype=next((dtype for dtype in dtypes if dtype in FLOATING), dtypes[0]),
            operations=share.operations,
            reads=reads,
            writes=writes,
            products=share.products,
            before=tuple(self._fetches(work)),
            after=tuple(self._stores(work, adding_up=False)),
            once=tuple(self._stores(work, adding_up=True)),
            is_view=work.signature.description.moves_elements and same_elements(share),
            adds_terms=adds_terms,
            attention=self._attention(node, traits, share),
            repeats=self._repeats(work, share),
            with_weights=not self._of_samples.issuperset((*node.inputs, *node.outputs)),
        )

    def _node_work(self, work: NodeTraffic) -> NodeWork:
        key = work.signature, work.strategy
        if key not in self._work:
            self._work[key] = node_work(work.signature, work.strategy, self._plan.ways, self._worker)
        return self._work[key]

    def _repeats(self, work: NodeTraffic, share: NodeWork) -> float:
        """Return how often all workers together do the work of a product; more than once if they replicate it."""
        if work.signature.category not in PRODUCTS or self._plan.workers == 1:
            return 1.0
        if work.signature not in self._whole:
            self._whole[work.signature] = node_work(work.signature, (), Ways(()), 0).operations
        whole = self._whole[work.signature]  # 0 if it only computes a maximum or minimum
        return share.operations * self._plan.workers / whole if whole else 1.0

    def _attention(self, node: Node, traits: Traits, share: NodeWork) -> Attention | None:
        """Return the shape of attention that stores no matrix; None for other operators."""
        attended = traits.attended
        if attended is None:
            return None
        queries = attended.queries
        width = self._plan.graph.tensors[node.inputs[queries]].shape[attended.dimension]
        scores, rows = share.operations / (2 * attended.described * width), share.input_elements[queries] // width
        return Attention(max(1, rows), max(1.0, scores), width, attended.computed, traits.is_causal)

    def _item(self, name: str) -> int:
        return ITEM_BYTES[self._plan.graph.tensors[name].dtype]

    def _fetches(self, work: NodeTraffic) -> Iterator[Transfer]:
        """Yield the fetches of a node. Nodes of a phase that read the same of a tensor share one fetch."""
        for read in work.reads:
            if read.exchange is None:
                continue
            fetched = work.phase, read.tensor, read.exchange.targets
            if fetched not in self._fetched:
                self._fetched.add(fetched)
                yield from self._transfers(read.tensor, (read.exchange,))

    def _stores(self, work: NodeTraffic, *, adding_up: bool) -> Iterator[Transfer]:
        for write in work.writes:
            if write.adds_up == adding_up:
                yield from self._transfers(write.tensor, write.hops)

    def _transfers(self, tensor: str, hops: tuple[Exchange, ...]) -> Iterator[Transfer]:
        item = self._item(tensor)
        for hop, collective in zip(hops, collectives(hops), strict=True):
            sent = times(item / self._plan.workers, exchanged_by_axis(hop))
            if collective is None:
                if received := int(hop.moved().sum(axis=0).max(initial=0)) * item:
                    yield Transfer(PAIRS, tuple(range(self._plan.workers)), received, sent)
                continue
            group = next((group for group in collective.groups if self._worker in group.workers), collective.groups[0])
            if not (collective.is_half and hop is hops[-1]):  # both halves of an all-reduce are one exchange
                nbytes = group.elements * item
                yield Transfer(collective.operation[0], group.workers, nbytes, times(1 + collective.is_half, sent))
