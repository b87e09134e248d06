"""The objective time: seconds of one iteration on a described machine, without overlap.

The time is the sum of three parts: the bytes across each level at the aggregate bandwidth of all workers there, the
latency of every transfer (that of its slowest level), and the computation of each node on its slowest worker. Times are
whole ticks, so the solver stays exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from math import prod

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

import tdl
import topologies
from planner.graph.ir import ITEM_BYTES, Node, Tensor
from planner.graph.micro_batches import phases_of_nodes, runs_of
from planner.grouping import numbered_values, summed
from planner.layout import Signature, Ways
from planner.layout.geometry import contraction, share_of_groups
from planner.layout.region import REMEMBERED, iteration_runs
from planner.search.coarse import CoarseGraph, Factor, NodeVariable
from planner.search.costs.cost import Cost
from planner.search.costs.domains import (
    Domain,
    Layouts,
    Strategies,
    counts_held,
    counts_of_common_reach_held,
    steps_of_mask,
    strategies_domain,
)
from planner.search.costs.tables import Table, Tables
from planner.search.costs.volumes import Need, operand_need, output_reach, strategy_classes_by_need
from planner.search.objectives import Priced, domains_of_factor
from topologies.kernels import WRITE_AND_READ, Kernel

# Seconds of computation as tables over strategies: for each node, those of the slowest worker.
#
# A kernel costs what it costs in the simulator (`Device.kernel_s`). A step takes as long as the slower of the device
# and the host that launches its kernels. A sum of terms cannot express this choice, so every node takes the longer
# of its two times. That is never less than the step's time, and equal if one of the two dominates throughout.


Seconds = NDArray[np.float64]
MANY_BYTES = 1 << 40

PerWorker = NDArray[np.float64]
"""[state, worker]"""


class NodeKernel(Struct, frozen=True):
    """Everything that a node's time depends on besides its strategy: item sizes and the dtype of the computation.

    `inputs` and `outputs` are the bytes per element of operands and outputs.
    """

    signature: Signature
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    dtype: str


def kernel_of_node(node: Node, signature: Signature, tensors: Mapping[str, Tensor]) -> NodeKernel:
    """Return the kernel of a node, which computes in the dtype of its first floating-point result, if it has one."""
    inputs, outputs = ([tensors[name].dtype for name in names] for names in (node.inputs, node.outputs))
    dtype = next((dtype for dtype in outputs if "float" in dtype), outputs[0])
    items = [tuple(ITEM_BYTES[dtype] for dtype in dtypes) for dtypes in (inputs, outputs)]
    return NodeKernel(signature, items[0], items[1], dtype)


def kernels_of_nodes(coarse: CoarseGraph) -> Iterator[tuple[int, NodeKernel, int]]:
    """Yield (variable, kernel, executions per iteration); adding up terms takes no extra time."""
    phases = phases_of_nodes(coarse.graph)
    counts: Counter[tuple[int, NodeKernel]] = Counter()
    for node in coarse.graph.nodes:
        v = coarse.variable_of["node", node.name]
        variable = coarse.variables[v]
        adds = node.name in coarse.as_terms and coarse.signatures[node.name].description.adds_operands
        if not adds and isinstance(variable, NodeVariable):
            kernel = kernel_of_node(node, variable.signature, coarse.graph.tensors)
            counts[v, kernel] += coarse.times.get(node.name, 1) * runs_of(phases[node.name], coarse.graph)
    return ((v, kernel, count) for (v, kernel), count in counts.items())


class Worker(Struct, frozen=True, eq=False):
    """A worker: its device, the slowdown of processor and memory while all workers compute, and its share."""

    device: topologies.Device
    processor: float
    memory: float
    share: int = 1

    @property
    def speed_key(self) -> tuple[str, float, float]:
        """Key that workers of equal speed share."""
        return self.device.spec.name, self.processor, self.memory

    @property
    def copy_s_per_byte(self) -> float:
        """Seconds per byte to copy many bytes within the worker's memory."""
        copy = Kernel("elementwise", "", 0.0, WRITE_AND_READ * MANY_BYTES)
        return self.device.kernel_s(copy, self.processor, self.memory) / MANY_BYTES

    @property
    def copy_start_s(self) -> float:
        """Seconds that a copy takes even if it copies nothing."""
        knee_s = self.device.spec.knee_bytes / WRITE_AND_READ * self.copy_s_per_byte
        return max(self.device.spec.launch_latency_s + knee_s, self.device.spec.host_launch_s)

    def kernel_seconds(self, kernel: Kernel, calls: float, share: float) -> float:
        """Return the seconds of `calls` calls of a share of a kernel, or the host's seconds if they are longer."""
        device = self.device
        alone_s = share * device.kernel_s(kernel, self.processor, self.memory)
        return calls * max(alone_s + device.spec.launch_latency_s, device.spec.host_launch_s)


def workers_of_machine(machine: topologies.Machine, ways: Ways) -> tuple[Worker, ...]:
    """Return the first devices of a machine as workers that compute at the same time."""
    devices = machine.devices[: prod(ways)]
    cores = summed((device.processor, device.spec.cores) for device in devices)
    bandwidth = summed((device.memory, device.spec.memory_bandwidth_bytes_per_s) for device in devices)

    def worker_on_device(device: topologies.Device, share: int) -> Worker:
        bus = machine.resources[machine.memories[device.memory].resource].capacity
        shared = None if device.processor is None else machine.resources[device.processor].capacity
        processor = 1.0 if shared is None else max(1.0, cores[device.processor] / shared)
        return Worker(device, processor, max(1.0, bandwidth[device.memory] / bus), share)

    return tuple(map(worker_on_device, devices, ways.shares or (1,) * len(devices)))


def slowest_worker_seconds(node: NodeKernel, strategies: Strategies, workers: tuple[Worker, ...]) -> Seconds:
    """Return the seconds of the slowest worker of a node: [state].

    If the strategies cover only the first few steps, the work of a part is divided among its workers by their shares.
    """
    members, kinds = _members_of_groups(workers, prod(strategies.ways))
    columns = [
        _kernel_call_counts(node, strategies),
        _operation_counts(node, strategies),
        _bytes_touched(node, strategies),
        *_call_extents(node, strategies),
    ]
    of_member = [column[:, [group for group, _ in members]] for column in columns]
    rows = np.stack(np.broadcast_arrays(np.array([kind for _, kind in members]), *of_member), axis=-1)
    at, distinct = numbered_values(map(tuple, rows.reshape(-1, len(columns) + 1).tolist()))
    times = [_seconds(node, *kinds[int(kind)], row) for kind, *row in distinct]
    return np.asarray(np.array(times)[np.array(at).reshape(rows.shape[:-1])].max(axis=1))


def _members_of_groups(
    workers: tuple[Worker, ...], groups: int
) -> tuple[list[tuple[int, int]], list[tuple[Worker, float]]]:
    """Return (group, kind) of the members that differ in speed or share, and a representative worker of each kind.

    Each representative comes with its share of its group's work.
    """
    size, members = len(workers) // groups, dict[tuple[int, int], None]()
    kinds = dict[object, tuple[int, Worker, float]]()
    for at, worker in enumerate(workers):
        first = at - at % size
        share = worker.share / sum(member.share for member in workers[first : first + size])
        number, *_ = kinds.setdefault((worker.speed_key, share), (len(kinds), worker, share))
        members[at // size, number] = None
    return list(members), [(worker, share) for _, worker, share in kinds.values()]


def _seconds(node: NodeKernel, worker: Worker, share: float, row: Sequence[float]) -> float:
    """Return a worker's seconds for its share of a part.

    `row` holds calls, operations, bytes, and the extents of a call.
    """
    calls, operations, nbytes, *extents = row
    if not calls:
        return 0.0
    contracted = contraction(node.signature)
    product = (
        None if contracted is None else contracted.product(dict(zip(contracted.roles, map(int, extents), strict=True)))
    )
    kernel = Kernel(node.signature.category, node.dtype, operations / calls, nbytes / calls, product)
    return worker.kernel_seconds(kernel, calls, share)


def _call_extents(node: NodeKernel, strategies: Strategies) -> list[PerWorker]:
    """Return the iterations of a call for every variable of a product: [state, worker]; the mean if calls differ."""
    signature, contracted = node.signature, contraction(node.signature)
    masks = {name: strategies.steps_choosing(name) for name in (contracted.roles if contracted else ())}
    extents = {name: counts_held(signature.extents[name], strategies.ways)[mask] for name, mask in masks.items()}
    for name in signature.description.contiguous.intersection(extents):
        runs = _counts_of_contiguous_runs(signature.extents[name], strategies.ways)[masks[name]]
        extents[name] = -(-extents[name] // np.maximum(runs, 1))
    return [extent.astype(np.float64) for extent in extents.values()]


def _operation_counts(node: NodeKernel, strategies: Strategies) -> PerWorker:
    iterations = {
        name: counts_held(extent, strategies.ways)[strategies.steps_choosing(name)]
        for name, extent in node.signature.extents.items()
    }
    total = np.zeros((len(strategies.states), prod(strategies.ways)))
    for count, names in node.signature.description.work.terms:
        total += count * prod(iterations[name] for name in names)
    return np.asarray(total * share_of_groups(node.signature, iterations))


def _bytes_touched(node: NodeKernel, strategies: Strategies) -> PerWorker:
    signature = node.signature
    parts = [
        item * _elements_reached(operand_need(signature, operand), strategies)
        for operand, item in enumerate(node.inputs)
    ]
    parts += [
        item * _elements_reached(output_reach(signature, output), strategies)
        for output, item in enumerate(node.outputs)
    ]
    return np.asarray(sum(parts), dtype=np.float64)


def _elements_reached(need: Need, strategies: Strategies) -> NDArray[np.int64]:
    """Return how many elements a worker reaches: [state, worker]."""
    total = np.ones((len(strategies.states), prod(strategies.ways)), dtype=np.int64)
    for dimension in need:
        classes = strategy_classes_by_need(((dimension,),), strategies)
        chosen = map(tuple, classes.masks.tolist())
        counts = [counts_of_common_reach_held(((dimension, masks),), strategies.ways)[0] for masks in chosen]
        total *= np.stack(counts)[classes.of]
    return total


def _kernel_call_counts(node: NodeKernel, strategies: Strategies) -> NDArray[np.int64]:
    """Return the kernel calls: [state, worker].

    There is one call per contiguous run of the variables that need contiguous ranges, and none if the node runs on
    another worker.
    """
    total = counts_held(1, strategies.ways)[strategies.steps_choosing(tdl.ON_ONE)]
    for name in node.signature.description.contiguous:
        counts = _counts_of_contiguous_runs(node.signature.extents[name], strategies.ways)
        total = total * counts[strategies.steps_choosing(name)]
    return total


@lru_cache(maxsize=REMEMBERED)
def _counts_of_contiguous_runs(extent: int, ways: Ways) -> NDArray[np.int64]:
    """Return how many contiguous runs a worker has if split at the mask's steps: [mask, worker]."""
    return np.array(
        [
            [len(iteration_runs(extent, steps_of_mask(mask), ways, worker)) for worker in range(prod(ways))]
            for mask in range(1 << len(ways))
        ],
        dtype=np.int64,
    )


# The objective time.


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
        runs = coarse.times.get(node.name, 1) * coarse.graph.micro_batches
        names = (*node.inputs, *node.outputs)
        total += runs * len(names) * transfer_s
        total += runs * len(workers) * sum(tensors[name].nbytes for name in names) * max(byte_s, default=0.0)
    counts = summed((kernel, count) for _, kernel, count in kernels_of_nodes(coarse))
    for kernel, count in counts.items():
        alone = slowest_worker_seconds(kernel, strategies_domain(kernel.signature, Ways(), ((),)), workers)
        total += count * len(workers) * float(alone[0])
    return max(total, 1e-12)
