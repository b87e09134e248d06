"""Seconds of computation as tables over strategies: for each node, those of the slowest worker.

A kernel costs what it costs in the simulator (`Device.kernel_s`). A step takes as long as the slower of the device and
the host that launches its kernels. A sum of terms cannot express this choice, so every node takes the longer of its two
times. That is never less than the step's time, and equal if one of the two dominates throughout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

import tdl
import topologies
from planner.graph.ir import ITEM_BYTES
from planner.graph.micro_batches import phases_of_nodes, runs_of
from planner.layout import Signature, Ways
from planner.layout.products import contraction
from planner.layout.split import REMEMBERED, iteration_runs
from planner.search.coarse.coarsen import CoarseGraph, NodeVariable
from planner.search.costs.counts import counts_held, counts_of_common_reach_held, steps_of_mask
from planner.search.costs.domains import Strategies
from planner.search.costs.needs import Need, operand_need, output_reach
from topologies.kernels import Kernel

Seconds = NDArray[np.float64]
READ_AND_WRITE = 2
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


def kernels_of_nodes(coarse: CoarseGraph) -> Iterator[tuple[int, NodeKernel, int]]:
    """Yield (variable, kernel, executions per iteration); adding up terms takes no extra time."""
    tensors, phases = coarse.graph.tensors, phases_of_nodes(coarse.graph)
    counts: Counter[tuple[int, NodeKernel]] = Counter()
    for node in coarse.graph.nodes:
        v = coarse.variable_of["node", node.name]
        variable = coarse.variables[v]
        adds = node.name in coarse.as_terms and coarse.signatures[node.name].description.adds_operands
        if not adds and isinstance(variable, NodeVariable):
            inputs, outputs = ([tensors[name].dtype for name in names] for names in (node.inputs, node.outputs))
            dtype = next((dtype for dtype in outputs if "float" in dtype), outputs[0])
            items = [tuple(ITEM_BYTES[dtype] for dtype in dtypes) for dtypes in (inputs, outputs)]
            kernel = NodeKernel(variable.signature, items[0], items[1], dtype)
            counts[v, kernel] += runs_of(phases[node.name], coarse.graph)
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
        copy = Kernel("elementwise", "", 0.0, READ_AND_WRITE * MANY_BYTES)
        return self.device.kernel_s(copy, self.processor, self.memory) / MANY_BYTES

    @property
    def copy_start_s(self) -> float:
        """Seconds that a copy takes even if it copies nothing."""
        knee_s = self.device.spec.knee_bytes / READ_AND_WRITE * self.copy_s_per_byte
        return max(self.device.spec.launch_latency_s + knee_s, self.device.spec.host_launch_s)

    def kernel_seconds(self, kernel: Kernel, calls: float, share: float) -> float:
        """Return the seconds of `calls` calls of a share of a kernel, or the host's seconds if they are longer."""
        device = self.device
        alone_s = share * device.kernel_s(kernel, self.processor, self.memory)
        return calls * max(alone_s + device.spec.launch_latency_s, device.spec.host_launch_s)


def workers_of_machine(machine: topologies.Machine, ways: Ways) -> tuple[Worker, ...]:
    """Return the first devices of a machine as workers that compute at the same time."""
    devices = machine.devices[: prod(ways)]
    cores: Counter[int | None] = Counter()
    bandwidth: Counter[int] = Counter()
    for device in devices:
        cores[device.processor] += device.spec.cores  # type: ignore[assignment]
        bandwidth[device.memory] += device.spec.memory_bandwidth_bytes_per_s  # type: ignore[assignment]

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
    distinct, at = np.unique(rows.reshape(-1, len(columns) + 1), axis=0, return_inverse=True)
    times = [_seconds(node, *kinds[int(row[0])], row[1:]) for row in distinct.tolist()]
    return np.asarray(np.array(times)[at.reshape(rows.shape[:-1])].max(axis=1))


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
    description, extents = node.signature.description, node.signature.extents
    iterations = {
        name: counts_held(extent, strategies.ways)[strategies.steps_choosing(name)] for name, extent in extents.items()
    }
    total = np.zeros((len(strategies.states), prod(strategies.ways)))
    for count, names in description.work.terms:
        total += count * prod(iterations[name] for name in names)
    return total


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
        masks = np.array([strategies.steps_choosing(name) for name in dimension.variables], dtype=np.int64)
        chosen, of = np.unique(masks.reshape(len(masks), len(strategies.states)), axis=1, return_inverse=True)
        counts = [
            counts_of_common_reach_held(((dimension, tuple(column)),), strategies.ways)[0]
            for column in chosen.T.tolist()
        ]
        total *= np.stack(counts)[of.reshape(-1)]
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
