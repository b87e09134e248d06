"""Replicas of a model: the work of each worker of one replica, for any number of samples in a micro-batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Protocol, TypeVar

import planner
import tdl
from planner.errors import PlanError
from planner.graph.facts import batch_size, recomputed
from planner.graph.ir import Graph, Node, depending_on_samples
from planner.graph.order import in_structural_order
from planner.graph.repeats import FEW, FewSegments, few_segments
from planner.layout.geometry import PRODUCTS
from planner.layout.ways import STAGES
from planner.models.zoo import MIXED_FLOAT8, buildable, with_few_layers
from planner.parallel import RECOMPUTE, Parallel
from planner.plans.plan import Plan, undivided
from planner.search import SearchOptions
from planner.search.coarse import Coarsenings
from planner.search.run import search_result
from simulator.projection.replica import NodeShare, Replica, Transfer, replica, rows_read
from simulator.projection.stack import added, times
from topologies.kernels import Attention, Product

Shape = TypeVar("Shape", Product, Attention)
EXTENTS = {Product: ("batch", "m", "n", "k"), Attention: ("rows", "scores")}


def between(low: Replica, high: Replica, part: float, samples: float) -> Replica:
    """Return the replica for `samples`, by linear interpolation between two replicas.

    The samples of `high` are the unit: `low` has `part` of them. Exchanges that reduce sums are those of `high`, in
    which there is no data parallelism within a replica; other exchanges that the two do not share grow with the
    samples. Reads of tensors that do not depend on samples, such as weights, are bounded by their size.
    """
    line = _Line(low, high, samples, (samples - part) / (1 - part))
    shares = tuple(map(line.share, low.shares, high.shares))
    return replace(high, shares=shares, held=line.sizes(low.held, high.held))


@dataclass(frozen=True, slots=True)
class _Line:
    """The line through the figures of two replicas: `at` is 0 at `low`, 1 at `high`."""

    low: Replica
    high: Replica
    samples: float
    at: float

    def share(self, first: NodeShare, second: NodeShare) -> NodeShare:
        reads, writes = self._reads(first.reads, second.reads), self.sizes(first.writes, second.writes)
        alike = len(first.products) == len(second.products)
        return replace(
            second, operations=max(0.0, first.operations + (second.operations - first.operations) * self.at),
            reads=rows_read(second.node, second.traits, reads, writes, self.high.held), writes=writes,
            products=tuple(map(self._shape, first.products, second.products)) if alike else second.products,
            attention=self._shape(first.attention, second.attention) if first.attention and second.attention else None,
            before=self._transfers(first.before, second.before), after=self._transfers(first.after, second.after),
        )  # fmt: skip

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


SMALL = 1, 2
"""Samples of the two micro-batches from which larger ones are extrapolated."""

MOST = 512


class Inner(NamedTuple):
    """One replica that works on a micro-batch.

    `layers` has the number of layers in each run of equal layers of which the replica has only a few; () if it has all.
    `products` is the dtype of products with weights in layers, if it differs from `dtype`.
    """

    replica: Replica
    layers: tuple[int, ...]
    dtype: str
    products: str | None = None


class Source(Protocol):
    """A model that can be divided over the workers of a replica, with any number of samples."""

    @property
    def name(self) -> str:
        """The name of the model."""

    @property
    def options(self) -> tuple[tuple[str, object], ...]:
        """Options of the model by name, without the batch if that is free."""

    def whole(self, batch: int, parallel: Parallel | None = None) -> Graph:
        """Return the complete training graph, with the micro-batches and the recomputation of named parallelism.

        Raises GraphError or PlanError if it cannot be built.
        """

    def inner(self, within: Parallel, micro_batch: int) -> Inner:
        """Return a replica under tensor and context parallelism, with experts sharded over data parallel workers.

        Each data parallel worker within the replica has a micro-batch. Raises PlanError if the model cannot be divided
        so.
        """


@dataclass(frozen=True, slots=True)
class ZooModel:
    """A model of the zoo: its name, and its options without the batch."""

    name: str
    options: tuple[tuple[str, object], ...]

    @classmethod
    def of(cls, name: str, options: Mapping[str, object]) -> ZooModel:
        """Return a model of the zoo. Raises GraphError if its configuration is invalid."""
        with_few_layers(name, options, 1)
        return cls(name, tuple(sorted(options.items())))

    def whole(self, batch: int, parallel: Parallel | None = None) -> Graph:
        """Build the graph with all layers."""
        cut = {} if parallel is None else _cut(batch, parallel)
        return planner.model(self.name, **buildable(self.options), batch=batch, **cut)

    def inner(self, within: Parallel, micro_batch: int) -> Inner:
        """Return a replica, built with few layers. Large micro-batches are extrapolated from two small ones."""
        return _inner_of_zoo(self, within, micro_batch)


def _cut(batch: int, parallel: Parallel) -> dict[str, object]:
    """Return the model options for the micro-batches and the recomputation of named parallelism."""
    return {"micro_batches": parallel.micro_batches(batch), "recompute": RECOMPUTE[parallel.recompute]}


@lru_cache(MOST)
def _inner_of_zoo(model: ZooModel, within: Parallel, micro_batch: int) -> Inner:
    graph, layers = _zoo_graph(model, SMALL[0])
    products = "float8" if dict(model.options).get("dtype") == MIXED_FLOAT8 else None
    low, high = SMALL
    divided = _built_of_zoo(model, within, low)
    if micro_batch != low:
        divided = between(divided, _built_of_zoo(model, within, high), low / high, micro_batch / high)
    return Inner(divided, layers, computed_dtype(graph), products)


@lru_cache(MOST)
def _built_of_zoo(model: ZooModel, within: Parallel, samples: int) -> Replica:
    """Return the replica for few samples.

    Its division is that for the fewest samples, which does not split the batch.
    """
    divided = replace(_plan_of_zoo(model, within), graph=_zoo_graph(model, samples * within.ep)[0])
    return replica(divided)


@lru_cache(MOST)
def _plan_of_zoo(model: ZooModel, within: Parallel) -> Plan:
    samples = SMALL[0] * within.ep
    return _plan(_zoo_graph(model, samples)[0], within, _coarsenings_of_zoo(model, samples))


@lru_cache(MOST)
def _coarsenings_of_zoo(model: ZooModel, samples: int) -> Coarsenings:
    """Return the coarsened graphs that plans for few samples share."""
    return Coarsenings(_zoo_graph(model, samples)[0])


@lru_cache(MOST)
def _zoo_graph(model: ZooModel, micro_batch: int) -> tuple[Graph, tuple[int, ...]]:
    """Return the graph with few layers and the number of layers in each run.

    The graph has two micro-batches, to tell work per micro-batch from work per step.
    """
    name, options, layers = with_few_layers(model.name, buildable(model.options), FEW)
    return in_structural_order(planner.model(name, **options, batch=2 * micro_batch, micro_batches=2)), layers


def computed_dtype(graph: Graph) -> str:
    """Return the most frequent dtype of products, or of activations if there are no products."""
    products = [node.outputs[0] for node in graph.nodes if tdl.catalog[node.op].category in PRODUCTS]
    computed = products or [name for name, tensor in graph.tensors.items() if tensor.role == "activation"]
    return Counter(graph.tensors[name].dtype for name in computed).most_common(1)[0][0]


def _plan(graph: Graph, parallel: Parallel, coarsenings: Coarsenings | None = None) -> Plan:
    """Return the plan of named parallelism within a replica. Unlike the command, search no rivals."""
    if not parallel.axes:
        return undivided(graph)
    return search_result(graph, SearchOptions(parallel=parallel), coarsenings or Coarsenings(graph)).plan


@dataclass(eq=False)
class GraphModel:
    """A model given by its graph.

    Replicas for other numbers of samples are interpolated between the graph and its half.

    Each product and each byte count is linear in the samples. Of repeated layers only three are planned; `layers` has
    the number in each run if the graph itself has only a few. If the graph `is_made` by `options`, it can be made again
    with others.
    """

    graph: Graph
    layers: tuple[int, ...] = ()
    options: tuple[tuple[str, object], ...] = ()
    is_made: bool = False
    _replicas: dict[tuple[Parallel, int], Replica] = field(default_factory=dict)
    _inner: dict[tuple[Parallel, int], Inner] = field(default_factory=dict)
    _few_do: dict[Parallel, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Sort the graph into structural order, so that results do not depend on how it was written."""
        self.graph = in_structural_order(self.graph)

    @property
    def name(self) -> str:
        """The name of the graph."""
        return self.graph.name

    @property
    def samples(self) -> int:
        """Samples in a micro-batch of the graph. Raises PlanError if its inputs have none."""
        samples = batch_size(self.graph)
        if samples is None:
            raise PlanError(f"{self.name}: expected inputs with samples, found none")
        return samples // self.graph.micro_batches

    def whole(self, batch: int, parallel: Parallel | None = None) -> Graph:
        """Return the graph, made again if its micro-batches or recomputation differ."""
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
        """Return a replica that works on a micro-batch."""
        if (within, micro_batch) not in self._inner:
            divided = self._replica_of(within, micro_batch)
            layers = (self.layers or self._few_segments[1]) if self._few_do[within] else ()
            self._inner[within, micro_batch] = Inner(divided, layers, computed_dtype(self.graph))
        return self._inner[within, micro_batch]

    def _replica_of(self, within: Parallel, samples: int) -> Replica:
        """Return the replica for `samples`."""
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
    def _few_segments(self) -> FewSegments:
        return few_segments(self._in_two_micro_batches)

    @cached_property
    def _few_coarsenings(self) -> Coarsenings:
        return Coarsenings(self._few_segments[0])

    @cached_property
    def _coarsenings(self) -> Coarsenings:
        return Coarsenings(self._in_two_micro_batches)

    def _replica(self, within: Parallel, parts: int) -> Replica:
        """Return the replica whose samples are divided by `parts`: of few segments, if all are divided alike."""
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
    """Return the graph with two micro-batches, which tells work per micro-batch from work per step."""
    return replace(graph, micro_batches=2, accumulated=sums_of_gradients(graph))


def of_plan(plan: Plan, layers: tuple[int, ...] = ()) -> Inner:
    """Return the workers of a plan as one replica. Raises PlanError if they do not all do the same.

    `layers` has the number of layers in each run if the plan's graph has only a few.
    """
    if plan.ways.shares or STAGES in plan.ways.axes:
        raise PlanError("expected a plan whose workers all do the same, found one with stages or uneven shares")
    whole = replace(plan, graph=in_two_micro_batches(plan.graph))
    return Inner(replica(whole), layers, computed_dtype(plan.graph))


def sums_of_gradients(graph: Graph) -> tuple[str, ...]:
    """Return the tensors summed over micro-batches: the loss, and what updates read that depends on samples."""
    if graph.micro_batches > 1:
        return graph.accumulated
    dependent = depending_on_samples(graph.tensors, graph.nodes)
    makers = {name: node for node in graph.nodes for name in node.outputs}
    read = [name for new in graph.updates.values() if new in makers for name in makers[new].inputs]
    sums = [_before_casts(graph, makers, name) for name in read if name in dependent and name in makers]
    return tuple(dict.fromkeys((*sums, *([graph.metrics["loss"]] if "loss" in graph.metrics else []))))


def _before_casts(graph: Graph, makers: Mapping[str, Node], name: str) -> str:
    """Return the tensor that `name` is a cast of; summing that one is equivalent."""
    inputs = makers[name].inputs
    while len(inputs) == 1 and inputs[0] in makers and graph.tensors[inputs[0]].shape == graph.tensors[name].shape:
        if graph.tensors[inputs[0]].dtype == graph.tensors[name].dtype:
            break
        name, inputs = inputs[0], makers[inputs[0]].inputs
    return name
