"""The objective time: seconds of one iteration on a described machine, without overlap.

The time is the sum of three parts: the bytes across each level at the aggregate bandwidth of all workers there, the
latency of every transfer (that of its slowest level), and the computation of each node on its slowest worker. Times are
whole ticks, so the solver stays exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from msgspec import Struct

import topologies
from planner.layout import Ways
from planner.search.coarse.coarsen import CoarseGraph, Factor
from planner.search.costs.cost import Cost
from planner.search.costs.domains import Domain, Layouts, Strategies, strategies_domain
from planner.search.costs.tables import Table, Tables
from planner.search.objectives.objective import Priced, domains_of_factor
from planner.search.objectives.roofline import (
    NodeKernel,
    Worker,
    kernels_of_nodes,
    slowest_worker_seconds,
    workers_of_machine,
)

COPIES = 2
"""Copies per byte sent: into a message at the sender and out of it at the receiver."""

MOST_TICKS = 1 << 48
"""Upper limit of a plan's cost. Penalties for infeasible choices are larger, and sums of them fit in 64 bits."""


class Time(Struct, frozen=True, eq=False):
    """Predicted time on a machine, in ticks of `tick_s` seconds.

    `byte_ticks`, `latency_ticks` and `message_ticks` are per level: for one byte that crosses the level while all
    workers send, for the latency of a transfer that crosses it, and for its messages beyond their bytes, which add up
    over levels. The first two include copying into and out of messages. `workers` are the devices that compute.
    """

    machine: topologies.Machine
    workers: tuple[Worker, ...]
    tick_s: float
    byte_ticks: tuple[int, ...]
    latency_ticks: tuple[int, ...]
    message_ticks: tuple[int, ...]
    allows_everywhere: bool = True

    def priced_tables(self, coarse: CoarseGraph, domains: Sequence[Domain], tables: Tables) -> Iterator[Priced]:
        """Yield the time of bytes moved, of latencies, and of every node's computation."""
        for factor in coarse.factors:
            moving, waiting = self._tables_of_byte_and_latency_ticks(factor, domains, tables)
            yield Priced(factor.scope, moving, factor.weight)
            yield Priced(factor.scope, waiting, factor.count)
        yield from self._priced_computation_tables(coarse, domains, tables)

    def breakdown(self, coarse: CoarseGraph, domains: Sequence[Domain], tables: Tables) -> Breakdown:
        """Return where the time of one plan goes; every domain must have a single state."""
        crossing = np.zeros(len(self.byte_ticks), dtype=np.int64)
        latency = 0
        for factor in coarse.factors:
            strategies, layouts, key = domains_of_factor(factor, domains)
            levels_of = partial(_elements_crossing_levels, factor.cost, strategies, layouts)
            crossing += factor.weight * tables[
                tables.remembered_tables((_elements_crossing_levels, *key), levels_of)[0]
            ].reshape(len(crossing))
            latency += factor.count * int(
                tables[self._tables_of_byte_and_latency_ticks(factor, domains, tables)[1]].sum()
            )
        computing = sum(
            priced.times * int(tables[priced.table].sum())
            for priced in self._priced_computation_tables(coarse, domains, tables)
        )
        nbytes = crossing.tolist()
        seconds = tuple(n * ticks * self.tick_s for n, ticks in zip(nbytes, self.byte_ticks, strict=True))
        return Breakdown(tuple(nbytes), seconds, latency * self.tick_s, computing * self.tick_s)

    def _tables_of_byte_and_latency_ticks(
        self, factor: Factor, domains: Sequence[Domain], tables: Tables
    ) -> tuple[int, ...]:
        """Return the numbers of two tables: ticks per byte of the element type, and ticks of latency."""
        strategies, layouts, key = domains_of_factor(factor, domains)
        return tables.remembered_tables(
            (self, *key), partial(self._byte_and_latency_ticks, factor.cost, strategies, layouts)
        )

    def _byte_and_latency_ticks(self, cost: Cost, strategies: Sequence[Strategies], layouts: Layouts) -> list[Table]:
        traffic, steps = cost.level_traffic(strategies, layouts), len(layouts.ways)
        moving = np.tensordot(np.array(self.byte_ticks[:steps], dtype=np.int64), traffic.table_by_level(), axes=1)
        latencies, messages = (
            np.array(ticks[:steps], dtype=np.int64).reshape(-1, *(1 for _ in moving.shape))
            for ticks in (self.latency_ticks, self.message_ticks)
        )
        waiting = np.zeros_like(moving)
        for sign, part in traffic.parts:
            crossed = part > 0
            waiting = waiting + sign * ((latencies * crossed).max(axis=0, initial=0) + (messages * crossed).sum(axis=0))
        return [traffic.table_over_strategies(moving), traffic.table_over_strategies(waiting)]

    def _priced_computation_tables(
        self, coarse: CoarseGraph, domains: Sequence[Domain], tables: Tables
    ) -> Iterator[Priced]:
        for v, kernel, count in kernels_of_nodes(coarse):
            domain = domains[v]
            if isinstance(domain, Strategies):
                number = tables.remembered_tables(
                    (self, kernel, domain), partial(self._ticks_of_computation, kernel, domain)
                )[0]
                yield Priced((v,), number, count)

    def _ticks_of_computation(self, kernel: NodeKernel, strategies: Strategies) -> list[Table]:
        return [np.rint(slowest_worker_seconds(kernel, strategies, self.workers) / self.tick_s).astype(np.int64)]


def _elements_crossing_levels(cost: Cost, strategies: Sequence[Strategies], layouts: Layouts) -> list[Table]:
    return [cost.level_traffic(strategies, layouts).table_by_level()]


class Breakdown(Struct, frozen=True):
    """Where a plan's predicted time goes: bytes and seconds per level, seconds of latency and of computation."""

    level_bytes: tuple[int, ...]
    level_s: tuple[float, ...]
    latency_s: float
    compute_s: float


def time_objective(machine: topologies.Machine, ways: Ways, coarse: CoarseGraph) -> Time:
    """Return the objective time for a graph on a machine; ticks are so long that no plan takes more than MOST_TICKS.

    Raises TopologyError if the machine has too few devices or cannot compute in the graph's dtypes.
    """
    levels, workers = topologies.levels(machine, ways.factors), workers_of_machine(machine, ways)
    copying_s = sum(worker.copy_s_per_byte for worker in workers if not worker.device.spec.streams_messages)
    packing_s = COPIES * copying_s / len(workers) ** 2
    byte_s = [1 / level.bandwidth_bytes_per_s + packing_s for level in levels]
    copy_start_s = max(worker.copy_start_s for worker in workers)
    latency_s = [level.latency_s + COPIES * copy_start_s for level in levels]
    message_s = [level.message_s for level in levels]
    transfer_s = max(latency_s, default=0.0) + sum(message_s)
    tick_s = _upper_bound_seconds(coarse, byte_s, transfer_s, workers) / MOST_TICKS
    byte_ticks = tuple(max(1, round(seconds / tick_s)) for seconds in byte_s)
    latency_ticks, message_ticks = (
        tuple(round(seconds / tick_s) for seconds in times) for times in (latency_s, message_s)
    )
    return Time(machine, workers, tick_s, byte_ticks, latency_ticks, message_ticks)


def _upper_bound_seconds(
    coarse: CoarseGraph, byte_s: Sequence[float], transfer_s: float, workers: tuple[Worker, ...]
) -> float:
    """Return seconds that no plan exceeds by much: every worker fetches, stores and computes everything."""
    tensors, total = coarse.graph.tensors, 0.0
    for node in coarse.graph.nodes:
        names, runs = (*node.inputs, *node.outputs), coarse.graph.micro_batches
        total += runs * len(names) * transfer_s
        total += runs * len(workers) * sum(tensors[name].nbytes for name in names) * max(byte_s, default=0.0)
    counts: Counter[NodeKernel] = Counter()
    for _, kernel, count in kernels_of_nodes(coarse):
        counts[kernel] += count
    for kernel, count in counts.items():
        alone = slowest_worker_seconds(kernel, strategies_domain(kernel.signature, Ways(), ((),)), workers)
        total += count * len(workers) * float(alone[0])
    return max(total, 1e-12)
