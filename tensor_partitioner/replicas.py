"""Replicas of models: a zoo's or a graph's, for the inner workers of one replica and any number of samples at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Protocol, TypeVar

import planner
import tdl
from planner.errors import PlanError
from planner.graph.facts import batch_size, recomputed
from planner.graph.few_segments import FEW, few_segments
from planner.graph.ir import Graph, Node
from planner.graph.order import PRODUCTS, in_structural_order
from planner.graph.samples import depending_on_samples
from planner.layout import Ways
from planner.layout.ways import STAGES
from planner.models.zoo import with_few_layers
from planner.parallel import RECOMPUTE, Parallel
from planner.planning import planned, request_of
from planner.plans.plan import Plan
from planner.search import SearchOptions
from planner.search.coarse.coarsen import Coarsenings
from planner.search.run import search_result
from simulator.projection.replica import NodeShare, Replica, Transfer, replica, rows_read
from simulator.projection.sent import added, times
from topologies import Machine
from topologies.kernels import Attention, Product

Shape = TypeVar("Shape", Product, Attention)
EXTENTS = {Product: ("batch", "m", "n", "k"), Attention: ("rows", "scores")}


def between(low: Replica, high: Replica, part: float, samples: float) -> Replica:
    """Return the replica at work on so many `samples`, as parts of the second's, of which the first has `part`.

    Exchanges of sums are those of the second, in which data parallel workers have none; others that the two have not
    in common grow with samples. Of what does not, as weights, no more is read than there is.
    """
    line = _Line(low, high, samples, (samples - part) / (1 - part))
    shares = tuple(map(line.share, low.shares, high.shares))
    return replace(high, shares=shares, held=line.sizes(low.held, high.held))


@dataclass(frozen=True, slots=True)
class _Line:
    """The line through what two replicas do; the one sought is `at` 0 where the first is, at 1 where the second is."""

    low: Replica
    high: Replica
    samples: float
    at: float

    def share(self, first: NodeShare, second: NodeShare) -> NodeShare:
        reads, writes = self._reads(first.reads, second.reads), self.sizes(first.writes, second.writes)
        alike = len(first.products) == len(second.products)
        return replace(
            second,
            operations=max(0.0, first.operations + (second.operations - first.operations) * self.at),
            reads=rows_read(second.node, second.traits, reads, writes, self.high.held),
            writes=writes,
            products=tuple(map(self._shape, first.products, second.products)) if alike else second.products,
            attention=self._shape(first.attention, second.attention) if first.attention and second.attention else None,
            before=self._transfers(first.before, second.before),
            after=self._transfers(first.after, second.after),
        )

    def sizes(self, first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
        return {name: self._size(first[name], nbytes) for name, nbytes in second.items()}

    def _size(self, first: float, second: float) -> int:
        return max(0, round(first + (second - first) * self.at))

    def _reads(self, first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
        low, high = self.low.held, self.high.held
        most = {name: max(high[name], nbytes) for name, nbytes in second.items() if low[name] == high[name]}
        return {name: min(nbytes, most.get(name, nbytes)) for name, nbytes in self.sizes(first, second).items()}

    def _shape(self, first: Shape, second: Shape) -> Shape:
        extents = ((name, getattr(first, name), getattr(second, name)) for name in EXTENTS[type(second)])
        sizes: dict[str, Any] = {name: max(1, self._size(*ends)) for name, *ends in extents}
        return replace(second, **sizes)

    def _transfers(self, first: tuple[Transfer, ...], second: tuple[Transfer, ...]) -> tuple[Transfer, ...]:
        if [transfer.kind for transfer in first] != [transfer.kind for transfer in second]:
            often = self.samples
            return tuple(replace(t, nbytes=round(often * t.nbytes), sent=times(often, t.sent)) for t in second)
        return tuple(map(self._transfer, first, second))

    def _transfer(self, first: Transfer, second: Transfer) -> Transfer:
        sent = added((times(1 - self.at, first.sent), times(self.at, second.sent)))
        return replace(second, nbytes=self._size(first.nbytes, second.nbytes), sent=sent)


MIXED_FLOAT8 = "mixed-float8"
"""The dtype of `mixed` training whose layers multiply with weights in 8 bits, as Transformer Engine does."""

SMALL = 1, 2
"""Samples of the micro-batches from which those of larger ones follow."""

MOST = 512


class Inner(NamedTuple):
    """A replica at work on a micro-batch, how many layers each run has of which it has few (none: all), its dtype.

    `products` is the dtype that layers multiply with weights in, where that is another.
    """

    replica: Replica
    layers: tuple[int, ...]
    dtype: str
    products: str | None = None


class Source(Protocol):
    """A model that can be divided over the inner workers of a replica, with any samples at once."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def options(self) -> tuple[tuple[str, object], ...]:
        """What it is made with, by name; without the batch where it can be of any."""

    def whole(self, batch: int, parallel: Parallel | None = None) -> Graph:
        """Return the whole training graph, in the micro-batches of named parallelism, with its recomputation.

        Raises GraphError and PlanError where there is none.
        """

    def inner(self, within: Parallel, micro_batch: int) -> Inner:
        """Return a replica under tensor and context parallelism, its experts shared out by data parallel workers.

        A micro-batch is one of these. Raises PlanError where it cannot be divided so.
        """


@dataclass(frozen=True, slots=True)
class ZooModel:
    """A model of the zoo, by its name and options but the batch."""

    name: str
    options: tuple[tuple[str, object], ...]

    @classmethod
    def of(cls, name: str, options: Mapping[str, object]) -> ZooModel:
        """Take options by name; GraphError for a configuration that cannot be read."""
        with_few_layers(name, options, 1)
        return cls(name, tuple(sorted(options.items())))

    def whole(self, batch: int, parallel: Parallel | None = None) -> Graph:
        """Build it with all layers."""
        cut = {} if parallel is None else _cut(batch, parallel)
        return planner.model(self.name, **_buildable(self.options), batch=batch, **cut)

    def inner(self, within: Parallel, micro_batch: int) -> Inner:
        """Build it with few layers and the micro-batch; a large one follows from two small ones."""
        return _inner_of_zoo(self, within, micro_batch)


def _cut(batch: int, parallel: Parallel) -> dict[str, object]:
    """Return the options of a model in the micro-batches of named parallelism, with its recomputation."""
    return {"micro_batches": parallel.micro_batches(batch), "recompute": RECOMPUTE[parallel.recompute]}


@lru_cache(MOST)
def _inner_of_zoo(model: ZooModel, within: Parallel, micro_batch: int) -> Inner:
    graph, layers = _zoo_graph(model, SMALL[0])
    products = "float8" if dict(model.options).get("dtype") == MIXED_FLOAT8 else None
    return Inner(_replica_of_zoo(model, within, micro_batch), layers, computed_dtype(graph), products)


def _replica_of_zoo(model: ZooModel, within: Parallel, samples: int) -> Replica:
    """Return a replica at work on so many samples."""
    low, high = SMALL
    if samples == low:
        return _built_of_zoo(model, within, low)
    return between(_built_of_zoo(model, within, low), _built_of_zoo(model, within, high), low / high, samples / high)


@lru_cache(MOST)
def _built_of_zoo(model: ZooModel, within: Parallel, samples: int) -> Replica:
    """Return a replica at work on few samples, divided as with the fewest, which leaves its samples whole."""
    divided = replace(_plan_of_zoo(model, within), graph=_zoo_graph(model, samples * within.ep)[0])
    return replica(divided)


@lru_cache(MOST)
def _plan_of_zoo(model: ZooModel, within: Parallel) -> Plan:
    samples = SMALL[0] * within.ep
    return _plan(_zoo_graph(model, samples)[0], within, _coarsenings_of_zoo(model, samples))


@lru_cache(MOST)
def _coarsenings_of_zoo(model: ZooModel, samples: int) -> Coarsenings:
    """Return what plans of a graph for few samples have in common."""
    return Coarsenings(_zoo_graph(model, samples)[0])


def _buildable(options: Iterable[tuple[str, object]]) -> dict[str, object]:
    """Return options that a graph is built with; it has none of products in 8 bits."""
    named = dict(options)
    return {**named, "dtype": "mixed"} if named.get("dtype") == MIXED_FLOAT8 else named


@lru_cache(MOST)
def _zoo_graph(model: ZooModel, micro_batch: int) -> tuple[Graph, tuple[int, ...]]:
    """Return the graph of one of two micro-batches, so that what is done for each shows, and how many layers it has."""
    name, options, layers = with_few_layers(model.name, _buildable(model.options), FEW)
    return in_structural_order(planner.model(name, **options, batch=2 * micro_batch, micro_batches=2)), layers


def searched_plan(graph: Graph, workers: int, machine: Machine | None, coarsenings: Coarsenings) -> Plan:
    """Search the plan of least bytes or, on a machine, of least time, of a graph in structural order."""
    request = request_of(graph, workers, machine=machine, objective="bytes" if machine is None else "time")
    return planned(graph, request, coarsenings)


def computed_dtype(graph: Graph) -> str:
    """Return the dtype that most products have, or else most activations."""
    products = [node.outputs[0] for node in graph.nodes if tdl.catalog[node.op].category in PRODUCTS]
    computed = products or [name for name, tensor in graph.tensors.items() if tensor.role == "activation"]
    return Counter(graph.tensors[name].dtype for name in computed).most_common(1)[0][0]


def _plan(graph: Graph, parallel: Parallel, coarsenings: Coarsenings | None = None) -> Plan:
    """Return the plan that parallelism within a replica names, without what a command would compare it with."""
    if not parallel.axes:
        layouts, strategies = dict.fromkeys(graph.tensors, ()), {node.name: () for node in graph.nodes}
        return Plan(graph, 0, Ways(()), layouts, strategies)
    return search_result(graph, SearchOptions(parallel=parallel), coarsenings or Coarsenings(graph)).plan


@dataclass(eq=False)
class GraphModel:
    """A graph's model, whose graph is that of some samples; those of others follow from it and from its half.

    What a worker does with a node is a line over the samples, product by product and byte by byte. Of layers that
    repeat three are looked at; `layers` says how many there are in each run where the graph has no more than these.
    `options` are those that it was made with, by what its name says, if it `is_made` so.
    """

    graph: Graph
    layers: tuple[int, ...] = ()
    options: tuple[tuple[str, object], ...] = ()
    is_made: bool = False
    _replicas: dict[tuple[Parallel, int], Replica] = field(default_factory=dict)
    _inner: dict[tuple[Parallel, int], Inner] = field(default_factory=dict)
    _few_do: dict[Parallel, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Forget in which order the graph was written."""
        self.graph = in_structural_order(self.graph)

    @property
    def name(self) -> str:
        """What it is called."""
        return self.graph.name

    @property
    def samples(self) -> int:
        """Samples of its graph's micro-batch; a PlanError where it has none."""
        samples = batch_size(self.graph)
        if samples is None:
            raise PlanError(f"{self.name}: expected inputs with samples, found none")
        return samples // self.graph.micro_batches

    def whole(self, batch: int, parallel: Parallel | None = None) -> Graph:
        """Return it, or make it again where it is to be cut otherwise."""
        if parallel is None:
            return self.graph
        asked = _cut(batch, parallel)
        again = asked["recompute"] if recomputed(self.graph) else RECOMPUTE["none"]
        own = {"micro_batches": self.graph.micro_batches, "recompute": again}
        changed = {name: value for name, value in asked.items() if value != own[name]}
        if changed and not self.is_made:
            raise PlanError(f"{self.name}: expected a model that can be made in other micro-batches, found a graph")
        return planner.model(self.name, **{**dict(self.options), **changed}) if changed else self.graph

    def inner(self, within: Parallel, micro_batch: int) -> Inner:
        """Return what a replica of its graph does with a micro-batch."""
        if (within, micro_batch) not in self._inner:
            divided = self._replica_of(within, micro_batch)
            layers = (self.layers or self._few_segments[1]) if self._few_do[within] else ()
            self._inner[within, micro_batch] = Inner(divided, layers, computed_dtype(self.graph))
        return self._inner[within, micro_batch]

    def _replica_of(self, within: Parallel, samples: int) -> Replica:
        """Return a replica at work on so many samples."""
        whole, most = self._replica(within, 1), self.samples // within.ep
        if samples == most:
            return whole
        parts = next((part for part in range(2, most + 1) if most % part == 0), None)
        if parts is None:
            raise PlanError(f"{self.name}: expected a graph of several samples for each, found one of {self.samples}")
        return between(self._replica(within, parts), whole, 1 / parts, samples / most)

    @cached_property
    def _in_two_micro_batches(self) -> Graph:
        return in_two_micro_batches(self.graph)

    @cached_property
    def _few_segments(self) -> tuple[Graph, tuple[int, ...]]:
        """It with three of the segments of each run, and how many these have, where they repeat."""
        return few_segments(self._in_two_micro_batches)

    @cached_property
    def _few_coarsenings(self) -> Coarsenings:
        return Coarsenings(self._few_segments[0])

    @cached_property
    def _coarsenings(self) -> Coarsenings:
        return Coarsenings(self._in_two_micro_batches)

    def _replica(self, within: Parallel, parts: int) -> Replica:
        """Return a replica with so many parts of the samples: of few segments, if all are divided alike."""
        if (within, parts) not in self._replicas:
            divided = self._divided(within, parts, few=self._few_do.setdefault(within, True))
            if parts == 1 and self._few_segments[1] and not divided.divides_segments_alike:
                self._few_do[within], divided = False, self._divided(within, parts, few=False)
            self._replicas[within, parts] = divided
        return self._replicas[within, parts]

    def _divided(self, within: Parallel, parts: int, *, few: bool) -> Replica:
        graph = self._few_segments[0] if few else self._in_two_micro_batches
        coarsenings = self._few_coarsenings if few else self._coarsenings
        return replica(_plan(graph, replace(within, dp=parts * within.ep), coarsenings))


def in_two_micro_batches(graph: Graph) -> Graph:
    """Return a graph as one of two micro-batches, which tells what is done for each."""
    return replace(graph, micro_batches=2, accumulated=sums_of_gradients(graph))


def of_plan(plan: Plan) -> Inner:
    """Return what a plan's workers do as those of one replica; a PlanError where not all of them do the same."""
    if plan.ways.shares or STAGES in plan.ways.axes:
        raise PlanError("expected a plan of alike workers for a projection, found one of stages or of uneven shares")
    whole = replace(plan, graph=in_two_micro_batches(plan.graph))
    return Inner(replica(whole), (), computed_dtype(plan.graph))


def sums_of_gradients(graph: Graph) -> tuple[str, ...]:
    """Return what would add up over micro-batches: what updates read that depends on samples, and the loss."""
    if graph.micro_batches > 1:
        return graph.accumulated
    dependent = depending_on_samples(graph.tensors, graph.nodes)
    makers = {name: node for node in graph.nodes for name in node.outputs}
    read = [name for new in graph.updates.values() if new in makers for name in makers[new].inputs]
    sums = [_before_casts(graph, makers, name) for name in read if name in dependent and name in makers]
    return tuple(dict.fromkeys((*sums, *([graph.metrics["loss"]] if "loss" in graph.metrics else []))))


def _before_casts(graph: Graph, makers: Mapping[str, Node], name: str) -> str:
    """Return what a tensor is a copy of in another dtype, which adds up as well."""
    inputs = makers[name].inputs
    while len(inputs) == 1 and inputs[0] in makers and graph.tensors[inputs[0]].shape == graph.tensors[name].shape:
        if graph.tensors[inputs[0]].dtype == graph.tensors[name].dtype:
            break
        name, inputs = inputs[0], makers[inputs[0]].inputs
    return name
