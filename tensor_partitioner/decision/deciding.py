"""Decide: find the fastest strategy that fits, among named parallelism and searched plans."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import prod
from pathlib import Path

from planner.errors import GraphError, InputError, PlanError
from planner.export.setup import Launch, Setup
from planner.export.targets import engine_named, known_engines
from planner.graph.facts import batch_size
from planner.graph.ir import Graph
from planner.graph.order import in_structural_order
from planner.layout import Shard
from planner.parallel import Parallel
from planner.plans.plan import Plan
from planner.search.alternatives.labels import experts_of
from planner.search.pins import Degree
from simulator.projection.block import Block
from simulator.projection.network import Cluster, cluster
from simulator.projection.result import Projection
from simulator.projection.stack import OURS, Stack, stack_named
from tensor_partitioner.decision.bounds import UNDIVIDED, Bounds
from tensor_partitioner.decision.candidates import ParallelSpace, family
from tensor_partitioner.decision.measured import measured_anchor
from tensor_partitioner.decision.record import (
    ALL_ALIKE,
    FAMILIES,
    SEARCHED,
    Anchor,
    Decision,
    RankedCandidate,
    SearchFacts,
    band,
    memory_margin,
    memory_risk,
    published_scores,
)
from tensor_partitioner.decision.searching import Search
from tensor_partitioner.decision.sources import STACK, commands, degrees_of, is_alike, plan_named, source_of
from tensor_partitioner.decision.why import AS_FAST, Projected, left_open, machine_facts, model_facts, ranked, verdict
from tensor_partitioner.plan_search import PlanSearch
from tensor_partitioner.projection import Work, project_plan, project_source, simulated_step
from tensor_partitioner.replicas import Inner, Source
from topologies import Machine, TopologyError


def weights_by_split(plan: Plan) -> str:
    """Return how the weights are split, by share of their elements: "99% of weights by columns, 1% replicated"."""
    sizes = Counter[str]()
    for tensor in plan.graph.tensors.values():
        if tensor.role == "weight":
            dims = sorted({placement.dim for placement in plan.layouts[tensor.name] if isinstance(placement, Shard)})
            words = ["rows" if dim == 0 else "columns" if dim == 1 else f"dimension {dim}" for dim in dims]
            sizes[f"by {' and '.join(words)}" if words else "replicated"] += prod(tensor.shape)
    shares = [(split, f"{size / sizes.total():.0%}") for split, size in sizes.most_common(2)]
    return ", ".join(f"{share} {split}" for split, share in shares if share != "0%").replace("%", "% of weights", 1)


MOST_DEVICES = 1 << 16
"""Largest machine. Pricing collectives rank by rank would take long on a larger one."""

BUDGET_S = 30.0
MOST_SAMPLES = 4096
"""Largest default batch, in samples per device."""

SEARCHED_WORKERS = 16
"""Largest number of devices for which the plan with the fewest bytes is a candidate; for the fastest plan it is half.
"""


def decide(  # noqa: PLR0913 -- keyword settings
    model: str | Graph,
    machine: str | Path | Machine,
    *,
    batch: int | None = None,
    engine: str | None = None,
    stack: str | None = None,
    budget_s: float = BUDGET_S,
    pins: Sequence[str] = (),
    measured: str | None = None,
    **options: object,
) -> Decision:
    """Decide how to train a model on all devices of a machine.

    Return the strategy that is predicted fastest among those that fit in memory, and all others that were priced.

    `model` is a name of the zoo, a graph or anything that `planner.model` takes; `options` are the model's. `batch` is
    the number of samples of a step over all devices. By default it is that of the graph, or for a model of the zoo the
    largest power of two per device, up to 4096, that fits with memory to spare and without accumulation. With an
    `engine`, only candidates that its exporter accepts are searched, priced by its stack unless `stack` is given.
    `pins` fix degrees, as in `tp=4`. `measured` is a measured step of the model with this batch, as in "dp=8 = 4.97 s",
    by which predictions are corrected. No candidate that was left out is faster than `search.lower_bound_s`. With the
    stack "ours", and on machines where one device does not stand for all, such as a calibrated host, candidates are
    planned and simulated message by message. Raises GraphError, PlanError and TopologyError.

    >>> decision = decide("gpt2", "hgx-h100", batch=64)
    >>> decision.best.fits, decision.best.seconds_per_step <= min(c.seconds_per_step for c in decision.candidates)
    (True, True)
    """
    runs = None if engine is None else engine_named(engine)
    stack = stack or (STACK if runs is None else runs.stack)
    whole = cluster(machine)
    if whole.devices > MOST_DEVICES:
        raise TopologyError(
            f"{whole.name}: expected at most {MOST_DEVICES} devices to decide for, found {whole.devices}; "
            "simulate MODEL --parallel takes more"
        )
    source, samples = source_of(model, whole.built, batch, options)
    stack, begin = stack if is_alike(whole) else OURS, time.monotonic()
    if stack == OURS and measured is not None:
        raise InputError(f"--measured: expected equal devices and a framework's stack, found {whole.name}, {stack}")
    anchor = None if measured is None else measured_anchor(measured, source, samples, whole, stack_named(stack))
    deciding = _Deciding(source, whole, stack, degrees_of(pins), begin, budget_s, anchor, runs)
    with _uncollected():
        return deciding.decision(deciding.largest_batch() if samples is None else samples)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disable garbage collection. It takes a third of a search's time, and the search makes few cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass(eq=False)
class _Deciding:
    source: Source
    cluster: Cluster
    stack: str
    pins: tuple[Degree, ...] = ()
    begin: float = field(default_factory=time.monotonic)
    budget_s: float = float("inf")
    anchor: Anchor | None = None
    engine: Launch | None = None
    considered: int = 0
    impossible: int = 0

    @cached_property
    def _stack(self) -> Stack:
        """The stack whose steps are predicted. If steps are simulated, it only provides facts of the model."""
        stack = stack_named(STACK if self._simulates else self.stack)
        return stack if self.anchor is None else self.anchor.of(stack)

    @property
    def _simulates(self) -> bool:
        return self.stack == OURS

    @cached_property
    def _single(self) -> tuple[Inner, tuple[Block, ...]]:
        """One device with one sample and all layers, and the blocks of its network."""
        inner = self.source.inner(UNDIVIDED, 1)  # raises if invalid
        division = self._bounds(ParallelSpace(self.cluster.devices, 1, 1)).division(UNDIVIDED, 1)
        assert division is not None
        return inner, division.job.blocks

    @cached_property
    def _experts(self) -> int:
        return experts_of(self._single[0].replica.graph)

    def _bounds(self, space: ParallelSpace) -> Bounds:
        return Bounds(self.source, self.cluster, self._stack, space)

    @property
    def _per_node(self) -> int:
        return self.cluster.per_node if self.cluster.per_node > 1 else self.cluster.devices

    def space(self, batch: int) -> ParallelSpace:
        """Return all strategies for a batch."""
        (inner, blocks), keeps = self._single, "none"
        selects, repeats = any(block.selected_bytes for block in blocks), any(block.is_layer for block in blocks)
        return ParallelSpace(
            devices=self.cluster.devices, batch=batch, blocks=len(blocks), experts=self._experts,
            recompute=(keeps, *["selective"] * selects, *["full"] * repeats), updated=bool(inner.replica.graph.updates),
            pins={pin.axis: pin.degree for pin in self.pins},
            allowed=(lambda way: self._some_engine_runs(way, batch)) if self._engines else None,
        )  # fmt: skip

    @cached_property
    def _engines(self) -> tuple[Launch, ...]:
        """The engines that candidates are for: the given one, or all with float8 products if the model has them."""
        if self.engine is not None:
            return (self.engine,)
        return tuple(engine for engine in known_engines().values() if engine.float8 and self._single[0].products)

    def _some_engine_runs(self, way: Parallel, batch: int) -> bool:
        setup = self._setup.divided(way, batch)
        return not all(engine.cannot(setup) for engine in self._engines)

    @cached_property
    def _setup(self) -> Setup:
        """The model as engines are told of it."""
        float8 = self._single[0].products is not None
        return Setup(self.source.whole(1), Parallel(), self._per_node, float8=float8)

    def largest_batch(self) -> int:
        """Return the largest batch that has room without accumulation: a power of two per device, at least 1."""
        batch = self.cluster.devices
        while batch < MOST_SAMPLES * self.cluster.devices and self._any_has_room(2 * batch):
            batch *= 2
        return batch

    def _any_has_room(self, batch: int) -> bool:
        ways = self.space(batch).undivided(self._per_node)
        steps = (self._priced(way, batch) for way in ways)
        return any(step.needed_bytes * self._margin <= step.capacity_bytes for step in steps if step is not None)

    @cached_property
    def _margin(self) -> float:
        """The ratio of measured to predicted memory for which the recommended candidate has room."""
        return 1.0 if self._simulates else memory_margin(published_scores())

    def decision(self, batch: int) -> Decision:
        """Search the candidates and return the decision. Plans are searched for if time is left.

        Candidates with room for `_margin` are searched first, then faster ones that fit without it.
        """
        space, until = self.space(batch), self.begin + self.budget_s
        if next(iter(space), None) is None:
            raise PlanError(self._nothing(batch))
        rows = self._searched(batch) if self._simulates else []  # first, because pricing candidates is slow here
        roomy, whole = self._search(space, until, 1 / self._margin), self._search(space, until)
        roomy.run(self._per_node)
        if self._margin > 1:
            whole.run(self._per_node, roomy.best_s)
        projected = roomy.projected | whole.projected
        rows += [(str(way) or "dp=1", family(way), *of) for way, of in projected.items()]
        rows += [] if self._simulates or time.monotonic() > until else self._searched(batch)
        return self._record(batch, rows, whole if whole.unfinished or roomy.best_s == float("inf") else roomy)

    def _nothing(self, batch: int) -> str:
        """Return why there is no candidate."""
        if self._engines and (way := next(iter(replace(self.space(batch), allowed=None)), None)) is not None:
            setup = self._setup.divided(way, batch)
            refusals = "; ".join(engine.refusal(setup) for engine in self._engines)
            return refusals if self.engine else f"float8 products: {refusals}"
        if self.pins:
            return (
                f"{', '.join(map(str, self.pins))}: no way to divide {self.source.name} over {self.cluster.devices} "
                f"devices with a batch of {batch} keeps to it"
            )
        return (
            f"{self.source.name}: expected a batch that data parallelism can divide over {self.cluster.devices} "
            f"devices, found {batch}"
        )

    def _search(self, space: ParallelSpace, until: float, share: float = 1.0) -> Search:
        price, devices = partial(self._priced, batch=space.batch), self.cluster.built.devices[: space.devices]
        capacity = max(device.spec.memory_bytes or float("inf") for device in devices)
        floor_s = self._work(space.batch).seconds(devices) if self._simulates else None
        return Search(self._bounds(space), price, share * capacity, until, floor_s, share)

    def _work(self, batch: int) -> Work:
        """Return the work of a step."""
        inner = self._single[0]
        convolutions = any(share.category == "convolution" for share in inner.replica.shares)
        return Work(batch * self._operations, inner.products or inner.dtype, convolutions)

    @property
    def _operations(self) -> float:
        """Operations of one sample's products, in flop."""
        blocks = self._single[1]
        return sum(part.work.product_operations for block in blocks for part in (block.forward, block.backward))

    def _priced(self, candidate: Parallel, batch: int) -> Projection | None:
        """Return the predicted step of a candidate; None if the model cannot be divided so."""
        try:
            if self._simulates:
                return self._simulated(plan_named(self.source, batch, candidate), batch)
            return project_source(self.source, batch, candidate, self.cluster, self._stack)
        except (PlanError, GraphError):
            return None

    def _simulated(self, plan: Plan, batch: int) -> Projection:
        return simulated_step(plan, batch, self.cluster.built, self._work(batch))

    def _searched(self, batch: int) -> list[Projected]:
        """Return searched plans for all devices, for the fewest bytes and the shortest time, if the search is quick."""
        most = {"bytes": SEARCHED_WORKERS, "time": SEARCHED_WORKERS // 2}
        any_plan = not self.pins and all(engine.any_plan for engine in self._engines)
        goals = [goal for goal in most if any_plan and 1 < self.cluster.devices <= most[goal]]
        projected = list(self._of_goals(goals, batch)) if goals else []
        self.considered += len(goals)
        self.impossible += len(goals) - len(projected)
        return projected

    def _of_goals(self, goals: Sequence[str], batch: int) -> Iterator[Projected]:
        """Yield the plan of each goal that can be planned. The searches share the coarsened graph."""
        try:
            graph = in_structural_order(self.source.whole(batch))
        except (PlanError, GraphError):
            return
        if batch_size(graph) != batch:
            return
        search = PlanSearch(graph, self.cluster.devices)
        for goal in goals:
            try:
                few, layers = search.best(self.cluster.built if goal == "time" else None)
                plan = search.whole(few)
                if self._simulates:
                    step = self._simulated(plan, batch)
                else:
                    step = project_plan(few, self.cluster, self._stack, layers)
            except (PlanError, GraphError):
                continue
            alike = plan.graph.updates and not few.total_bytes
            split = ALL_ALIKE if alike else f": {weights_by_split(plan)}"
            yield f"{SEARCHED[goal]}{split}", FAMILIES[goal], 0.0, step

    def _record(self, batch: int, projected: Sequence[Projected], search: Search) -> Decision:
        inner, blocks = self._single
        operations = batch * self._operations
        model = model_facts(self.source, inner, blocks, batch, operations)
        machine = machine_facts(self.cluster, inner.dtype)
        told = ranked(projected, model, inner.replica.graph, self._margin)
        if not told:
            raise PlanError(f"{self.source.name}: none of {search.considered} candidates by name can divide it")
        alone_s = self._alone_s(batch, told[0], operations)
        best_s, parallel = told[0].seconds_per_step, Parallel.read(told[0].parallel) or Parallel()
        setup = self._setup.divided(parallel, batch)
        lower_s = min(best_s, search.lower_s)
        considered, impossible = search.considered + self.considered, search.impossible + self.impossible
        record = SearchFacts(
            considered=considered, bounded_away=considered - search.unfinished - impossible - len(told),
            unfinished=search.unfinished, impossible=impossible, projected=len(told), lower_bound_s=lower_s,
            gap=best_s / lower_s - 1, seconds=time.monotonic() - self.begin,
        )  # fmt: skip
        warning = f"Time ran out: {left_open(record)}. " if record.unfinished else ""
        return Decision(
            model=model, machine=machine, stack=self.stack, verdict=warning + verdict(model, machine, told, alone_s),
            search=record, candidates=told,
            commands=tuple(commands(self.source, setup, machine, told[0], self.pins, self.engine, self.stack)),
            engine=next((name for name, launch in known_engines().items() if launch is self.engine), None),
            one_device_s=alone_s, band=None if self._simulates else band(published_scores(), experts=self._experts > 1),
            memory_risk=None if self._simulates else memory_risk(published_scores(), told[0]),
            memory_margin=self._margin, anchor=self.anchor,
        )  # fmt: skip

    def _alone_s(self, batch: int, best: RankedCandidate, operations: float) -> float | None:
        """Return the seconds of a step on one device; None if it does not fit or is slower than the best."""
        inner, device = self._single[0], self.cluster.built.devices[0]
        attained = max(map(device.attained, {inner.dtype, inner.products or inner.dtype}))
        most_s = AS_FAST * best.seconds_per_step
        if not best.fits or operations / attained > most_s:
            return None
        alone = replace(self.space(batch), devices=1, pins={}, allowed=None)
        search = self._search(alone, self.begin + self.budget_s if self._simulates else float("inf"))
        search.run(1, most_s)
        return min((step.seconds for _, step in search.projected.values() if step.fits), default=None)
