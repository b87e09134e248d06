"""Deciding: candidates in the order of their bounds, projected until no other can be faster."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from pathlib import Path

from planner.errors import GraphError, PlanError
from planner.graph.facts import sequence_length
from planner.graph.ir import Graph
from planner.parallel import Parallel
from planner.search.alternatives.axes import experts_of
from planner.search.pins import Degree
from simulator.projection.block import Block
from simulator.projection.blocks import blocks_of, repeated
from simulator.projection.cluster import Cluster, cluster, cluster_of
from simulator.projection.network import Grid, Network
from simulator.projection.result import Projection
from simulator.projection.stack import OURS, Stack, stack_named
from tensor_partitioner.decision.bounds import LeastWork, least_bytes, micro_batch_s, with_bubble
from tensor_partitioner.decision.candidates import KEPT, Shape, by_hand, candidate_name, candidates, family, undivided
from tensor_partitioner.decision.checks import is_alike, require_types
from tensor_partitioner.decision.record import ALL_ALIKE, OWN, SEARCHED, Candidate, Decision
from tensor_partitioner.decision.recording import Projected, Tally, machine_facts, model_facts, ranked, warning
from tensor_partitioner.decision.simulating import Simulating
from tensor_partitioner.decision.sources import degrees_of, source_of
from tensor_partitioner.decision.typed import STACK, commands
from tensor_partitioner.decision.why import AS_FAST, verdict
from tensor_partitioner.projection import project_inner, project_source, within_replica
from tensor_partitioner.replicas import Inner, Source
from topologies import Machine

BUDGET_S = 30.0
MOST_SAMPLES = 4096
"""A device, of a batch that nobody gave."""

SEARCHED_WORKERS = 16
"""Up to so many devices the plan of least bytes is a candidate; up to half as many, that of least time."""

UNDIVIDED = Parallel()

Bounded = tuple[float, int, Parallel]
"""A bound in seconds, a number, and the candidate."""


def decide(  # noqa: PLR0913 -- the settings by their names
    model: str | Graph,
    machine: str | Path | Machine,
    *,
    batch: int | None = None,
    stack: str = STACK,
    budget_s: float = BUDGET_S,
    pins: Sequence[str] = (),
    **options: object,
) -> Decision:
    """Decide how to train a model on all devices of a machine: the fastest way, in our model, whose memory fits.

    `model` is a name of the zoo, a graph or what `planner.model` takes; `options` are the model's. `batch` is that of a
    step over all devices (default: a graph's own; of a zoo's model the largest that fits with no accumulation,
    by powers of two, up to 4096 samples a device). `pins` fix degrees, as in `tp=4`. No candidate that is left out is
    faster than `search.lower_bound_s`. Where no device stands for all, as on a calibrated host, plans are simulated
    worker by worker, of a graph's own batch. Raises GraphError, PlanError and TopologyError.

    >>> decision = decide("gpt2", "hgx-h100", batch=64)
    >>> decision.best.fits, decision.best.seconds_per_step <= min(c.seconds_per_step for c in decision.candidates)
    (True, True)
    """
    begin = time.monotonic()
    require_types(model, machine, batch, budget_s, pins)
    whole = cluster_of(machine) if isinstance(machine, Machine) else cluster(machine)
    source, samples = source_of(model, whole, batch, options)
    if stack == OURS or not is_alike(whole):
        return Simulating(source, source.whole(batch), whole.built, degrees_of(pins)).decision(budget_s)
    deciding = _Deciding(source, whole, stack_named(stack), stack, degrees_of(pins))
    return deciding.decision(deciding.largest_batch() if samples is None else samples, begin, budget_s)


@dataclass(eq=False)
class _Deciding:
    source: Source
    cluster: Cluster
    stack: Stack
    stack_name: str
    pins: tuple[Degree, ...] = ()
    impossible: int = 0
    _failed: set[tuple[Parallel, int]] = field(default_factory=set)
    _micro_batch_s: dict[tuple[Parallel, int, str], float] = field(default_factory=dict)

    @cached_property
    def _single(self) -> tuple[Inner, tuple[Block, ...]]:
        """One device at work on one sample, with all layers."""
        inner = self.source.inner(UNDIVIDED, 1)
        return inner, self._blocks(inner, UNDIVIDED)

    def _blocks(self, inner: Inner, within: Parallel) -> tuple[Block, ...]:
        """Return all blocks of a replica at work on a micro-batch, as they are projected."""
        network = Network(self.cluster, Grid(1, 1, within.workers, within.cp, within.ep))
        stack = self.stack.multiplying_in(inner.products)
        blocks = blocks_of(inner.replica, stack, self.cluster.built.devices[0], network)
        return repeated(blocks, inner.layers)

    @cached_property
    def _least_work(self) -> LeastWork:
        device, (inner, blocks) = self.cluster.built.devices[0], self._single
        dtypes = {inner.dtype, inner.products or inner.dtype}
        return LeastWork.of(blocks, 1, max(map(device.attained, dtypes)))

    @property
    def _sequence(self) -> int | None:
        """Tokens of a sample."""
        return sequence_length(self._single[0].replica.graph)

    def _shape(self, batch: int) -> Shape:
        blocks = self._single[1]
        return Shape(
            devices=self.cluster.devices,
            per_node=self.cluster.per_node if self.cluster.per_node > 1 else self.cluster.devices,
            batch=batch,
            layers=sum(block.is_layer for block in blocks),
            sequence=self._sequence or 1,
            stores_scores=any(block.selected_bytes for block in blocks),
            updates=bool(self._single[0].replica.graph.updates),
            experts=experts_of(self._single[0].replica.graph),
        )

    def largest_batch(self) -> int:
        """Return the largest power of two times the devices that fits with no accumulation, or one sample a device."""
        batch = self.cluster.devices
        while batch < MOST_SAMPLES * self.cluster.devices and self._any_fits(2 * batch):
            batch *= 2
        return batch

    def _any_fits(self, batch: int) -> bool:
        ways = undivided(self._shape(batch), {pin.axis: pin.degree for pin in self.pins})
        return any(step.fits for way in ways if (step := self._projected(way, batch)) is not None)

    def decision(self, batch: int, begin: float, budget_s: float) -> Decision:
        """Project candidates, and say which is best; plans are searched for where time is left."""
        until = begin + budget_s
        pinned = [c for c in candidates(self._shape(batch)) if all(getattr(c, p.axis) == p.degree for p in self.pins)]
        every = sorted((self._least_work.bound_s(c, batch), number, c) for number, c in enumerate(pinned))
        if not every and self.pins:
            raise PlanError(
                f"{', '.join(map(str, self.pins))}: no way to divide {self.source.name} over {self.cluster.devices} "
                f"devices with a batch of {batch} keeps to it"
            )
        if not every:
            raise PlanError(
                f"{self.source.name}: expected a batch that data parallelism can divide over {self.cluster.devices} "
                f"devices, found {batch}"
            )
        projected, left_out, lower_s = self._best_first(every, batch, until)
        goals: Mapping[str, Machine | None] = {} if self.pins or time.monotonic() > until else self._goals()
        projected += self._searched(batch, goals)
        return self._record(
            batch, projected, Tally(len(every) + len(goals), left_out, lower_s, time.monotonic() - begin)
        )

    def _best_first(self, every: Sequence[Bounded], batch: int, until: float) -> tuple[list[Projected], int, float]:
        """Project candidates, that of least bound first, until bounds are above what is best in their families.

        What people would do anyway comes before all, however late it is: of each way the first that fits.
        Those of one replica, divided over as many inner workers, come together, the fewest workers first: building it
        takes longest. A bound is made a nearer one when its turn comes, and has another turn. What weights, states and
        a micro-batch alone do not let fit comes last, least bytes first, and once for each family that nothing else is
        of. Families with context parallelism need not go on once none of them is faster than the best of all. Return
        also how many are left out, and seconds that none of these is below: infinite where each is above what is best
        in its family. However late it is, it goes on until one fits; families that were not gone through are not said
        to fit nowhere.
        """
        capacity = self.cluster.built.devices[0].spec.memory_bytes or float("inf")
        sizes = {c: c.micro_batch or 1 for *_, c in every}
        alone = {size: self._blocks(self.source.inner(UNDIVIDED, size), UNDIVIDED) for size in set(sizes.values())}
        least = {c: least_bytes(alone[size], c, self.stack) for c, size in sizes.items()}
        excess = {c: (nbytes, -KEPT.index(c.recompute)) if nbytes > capacity else () for c, nbytes in least.items()}
        tried, projected = self._by_hand(every, excess, batch)
        rest = (row for row in every if row[-1] not in tried)
        waiting = [
            (excess[c], (c.tp * c.cp * c.ep, c.cp, c.ep), bound_s, number, False, c) for bound_s, number, c in rest
        ]
        heapify(waiting)
        seen, unfinished, left_out, lower_s = {kind for _, kind, *_ in projected}, set[str](), 0, float("inf")
        best_s = {kind: step.seconds for _, kind, _, step in sorted(projected, key=_slowest_first) if step.fits}
        while waiting:
            too_large, inner, bound_s, number, is_near, candidate = heappop(waiting)
            kind = family(candidate)
            most_s = best_s.get(kind, float("inf"))
            if candidate.cp > 1 and kind in best_s:
                most_s = min(best_s.values())
            if bound_s >= most_s or (too_large and kind in seen):
                left_out += 1
            elif best_s and time.monotonic() > until:
                left_out += 1
                if not too_large:
                    lower_s = min(lower_s, bound_s)
                    unfinished.add(kind)
            elif not is_near:
                near_s = max(bound_s, self._nearer_bound_s(candidate, batch))
                heappush(waiting, (too_large, inner, near_s, number, True, candidate))
            elif (projection := self._projected(candidate, batch)) is not None:
                seen.add(kind)
                projected.append((candidate_name(candidate), kind, bound_s, projection))
                if projection.fits:
                    best_s[kind] = min(projection.seconds, best_s.get(kind, float("inf")))
        told = [row for row in projected if row[-1].fits or row[1] not in unfinished or row[1] in best_s]
        return told, left_out + len(projected) - len(told), lower_s

    def _by_hand(
        self, every: Sequence[Bounded], excess: Mapping[Parallel, tuple[float, ...]], batch: int
    ) -> tuple[set[Parallel], list[Projected]]:
        """Project what people would do anyway until one of each way fits; return what was tried, and what came of it.

        Where nothing of a way may fit it is that of least bytes.
        """
        bounds, tried, projected = {c: bound_s for bound_s, _, c in every}, set[Parallel](), list[Projected]()
        for ways in by_hand(bounds):
            for candidate in [way for way in ways if not excess[way]] or sorted(ways, key=excess.__getitem__)[:1]:
                tried.add(candidate)
                projection = self._projected(candidate, batch)
                if projection is not None:
                    projected.append((candidate_name(candidate), family(candidate), bounds[candidate], projection))
                    if projection.fits:
                        break
        return tried, projected

    def _nearer_bound_s(self, candidate: Parallel, batch: int) -> float:
        """Return a bound of a candidate by what its inner workers take for a micro-batch; 0 where they cannot be."""
        within = within_replica(candidate)
        key = within, candidate.micro_batch or 0, candidate.recompute
        if key not in self._micro_batch_s:
            self._micro_batch_s[key] = self._inner_s(within, *key[1:])
        work_s = candidate.micro_batches(batch) * self._micro_batch_s[key] / candidate.pp
        return with_bubble(work_s, candidate, batch)

    def _inner_s(self, within: Parallel, micro_batch: int, recompute: str) -> float:
        try:
            inner = self.source.inner(within, micro_batch)
        except (PlanError, GraphError):
            return 0.0
        return micro_batch_s(self._blocks(inner, within), recompute)

    def _projected(self, candidate: Parallel, batch: int) -> Projection | None:
        """Project a candidate; None where the model cannot be divided so, which is not tried twice."""
        within = within_replica(candidate)
        if (within, candidate.micro_batch or 0) in self._failed:
            self.impossible += 1
            return None
        try:
            return project_source(self.source, batch, candidate, self.cluster, self.stack)
        except (PlanError, GraphError):
            if candidate.pp == 1:
                self._failed.add((within, candidate.micro_batch or 0))
            self.impossible += 1
            return None

    def _goals(self) -> Mapping[str, Machine | None]:
        """Return what plans are searched for, and the machine whose time it is; nothing where that takes too long."""
        count = self.cluster.devices
        goals: dict[str, Machine | None] = {"bytes": None} if 1 < count <= SEARCHED_WORKERS else {}
        if 1 < count <= SEARCHED_WORKERS // 2:
            goals["time"] = self.cluster.built
        return goals

    def _searched(self, batch: int, goals: Mapping[str, Machine | None]) -> list[Projected]:
        """Project the plans that a search finds for all devices, one for each goal."""
        count, projected = self.cluster.devices, list[Projected]()
        for goal, machine in goals.items():
            try:
                inner = self.source.searched(count, batch, machine)
            except (PlanError, GraphError):
                self.impossible += 1
                continue
            whole = Parallel(tp=count, micro_batch=batch)
            projection = project_inner(inner, batch, whole, self.cluster, self.stack)
            plan = inner.replica.plan
            alike = ALL_ALIKE if plan.graph.updates and not plan.total_bytes else ""
            projected.append((f"{SEARCHED[goal]}{alike}", f"{OWN}, least {goal}", 0.0, projection))
        return projected

    def _record(self, batch: int, projected: Sequence[Projected], tally: Tally) -> Decision:
        inner, blocks = self._single
        operations = (self._least_work.forward + self._least_work.backward) * batch
        model = model_facts(self.source.name, inner, blocks, batch, operations)
        machine = machine_facts(self.cluster, inner.dtype)
        told = ranked(projected, model, inner.replica.graph)
        if not told:
            raise PlanError(f"{self.source.name}: none of {tally.considered} candidates can divide it")
        alone_s = self._alone_s(batch, told[0])
        search = tally.search(told, self.impossible)
        return Decision(
            model=model,
            machine=machine,
            stack=self.stack_name,
            verdict=warning(search) + verdict(model, machine, told, alone_s),
            search=search,
            candidates=told,
            commands=tuple(commands(self.source, batch, machine, told[0], stack=self.stack_name, pins=self.pins)),
            one_device_s=alone_s,
        )

    def _alone_s(self, batch: int, best: Candidate) -> float | None:
        """Return the seconds of a step on one device alone; None where they are more than the best's, or do not fit."""
        if not best.fits or self._least_work.bound_s(UNDIVIDED, batch) > best.seconds_per_step:
            return None
        shape = replace(self._shape(batch), devices=1, per_node=1)
        steps = [self._projected(candidate, batch) for candidate in candidates(shape)]
        seconds = [step.seconds for step in steps if step is not None and step.fits]
        return min((s for s in seconds if s <= AS_FAST * best.seconds_per_step), default=None)


def _slowest_first(row: Projected) -> float:
    return -row[-1].seconds
