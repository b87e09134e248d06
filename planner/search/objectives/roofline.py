"""Seconds of computation as tables over strategies: the roofline of the worker that takes longest over a node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from planner.graph.ir import ITEM_BYTES
from planner.layout import Signature
from planner.layout.split import REMEMBERED, iteration_runs
from planner.search.coarse.coarsen import CoarseGraph, NodeVariable
from planner.search.costs.counts import common_counts, held_counts, steps_of
from planner.search.costs.domains import Strategies
from planner.search.costs.needs import Need, operand_need, output_reach
from topologies import Device, Machine

Seconds = NDArray[np.float64]
READ_AND_WRITE = 2

PerWorker = NDArray[np.float64]
"""[state, worker]"""


@dataclass(frozen=True, slots=True)
class Kernel:
    """What a node's time depends on beside its strategy: item sizes of operands and outputs, the dtype computed in."""

    signature: Signature
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    dtype: str


def kernels_of_nodes(coarse: CoarseGraph) -> Iterator[tuple[int, Kernel, int]]:
    """Yield (variable, kernel, how many of its nodes are alike); a sum that accumulates locally takes no time."""
    working = {v for factor in coarse.factors for v in factor.scope}
    tensors = coarse.graph.tensors
    found: Counter[tuple[int, Kernel]] = Counter()
    for node in coarse.graph.nodes:
        v = coarse.variable_of["node", node.name]
        variable = coarse.variables[v]
        if v in working and isinstance(variable, NodeVariable):
            inputs, outputs = ([tensors[name].dtype for name in names] for names in (node.inputs, node.outputs))
            dtype = next((dtype for dtype in outputs if "float" in dtype), outputs[0])
            items = [tuple(ITEM_BYTES[dtype] for dtype in dtypes) for dtypes in (inputs, outputs)]
            found[v, Kernel(variable.signature, items[0], items[1], dtype)] += 1
    return ((v, kernel, count) for (v, kernel), count in found.items())


@dataclass(frozen=True, slots=True, eq=False)
class Worker:
    """A worker's device, and how much slower its processor and its memory are while all workers compute."""

    device: Device
    processor: float
    memory: float

    @property
    def kind(self) -> tuple[str, float, float]:
        """What workers that are equally fast share."""
        return self.device.type, self.processor, self.memory

    @property
    def copy_s_per_byte(self) -> float:
        """Seconds of copying one byte from one place of its memory to another."""
        touched = READ_AND_WRITE * max(self.processor, self.memory)
        return self.device.roofline_s("elementwise", next(iter(self.device.peak_flop_per_s)), 0.0, touched)

    def seconds(self, kernel: Kernel, operations: float, nbytes: float, calls: float) -> float:
        """Return the time of so many calls of a kernel that do this much between them."""
        category = kernel.signature.category
        dtype = kernel.dtype if operations else next(iter(self.device.peak_flop_per_s))
        slower = operations * self.processor, nbytes * max(self.processor, self.memory)
        return self.device.roofline_s(category, dtype, *slower) + calls * self.device.launch_latency_s


def workers_of(machine: Machine, count: int) -> tuple[Worker, ...]:
    """Return the first `count` devices of a machine as workers that compute at the same time."""
    devices = machine.devices[:count]
    cores: Counter[int | None] = Counter()
    bandwidth: Counter[int] = Counter()
    for device in devices:
        cores[device.processor] += device.cores  # type: ignore[assignment]
        bandwidth[device.memory] += device.memory_bandwidth_bytes_per_s  # type: ignore[assignment]

    def one(device: Device) -> Worker:
        bus = machine.resources[machine.memories[device.memory].resource].capacity
        shared = None if device.processor is None else machine.resources[device.processor].capacity
        processor = 1.0 if shared is None else max(1.0, cores[device.processor] / shared)
        return Worker(device, processor, max(1.0, bandwidth[device.memory] / bus))

    return tuple(map(one, devices))


def slowest_worker_seconds(kernel: Kernel, strategies: Strategies, workers: tuple[Worker, ...]) -> Seconds:
    """Return [state]: the longest time any worker takes over a node.

    Where the strategies are of the first few steps only, a part's work is shared out evenly over its workers.
    """
    groups = prod(strategies.ways)
    share = groups / len(workers)
    operations, nbytes, calls = (
        _operation_counts(kernel, strategies),
        _bytes_touched(kernel, strategies),
        _kernel_calls(kernel, strategies),
    )
    firsts = workers[:: len(workers) // groups]
    kinds = {worker.kind: worker for worker in firsts}
    of = [list(kinds).index(worker.kind) for worker in firsts]
    rows = np.stack(np.broadcast_arrays(operations, nbytes, calls, np.array(of, dtype=np.float64)), axis=-1)
    distinct, at = np.unique(rows.reshape(-1, 4), axis=0, return_inverse=True)
    times = [
        list(kinds.values())[int(kind)].seconds(kernel, done * share, touched * share, launched)
        for done, touched, launched, kind in distinct.tolist()
    ]
    return np.asarray(np.array(times)[at.reshape(rows.shape[:-1])].max(axis=1))


def _operation_counts(kernel: Kernel, strategies: Strategies) -> PerWorker:
    description, extents = kernel.signature.description, kernel.signature.extents
    iterations = {
        name: held_counts(extent, strategies.ways)[strategies.steps_choosing(name)] for name, extent in extents.items()
    }
    total = np.zeros((len(strategies.states), prod(strategies.ways)))
    for count, names in description.work.terms:
        total += count * prod(iterations[name] for name in names)
    return total


def _bytes_touched(kernel: Kernel, strategies: Strategies) -> PerWorker:
    signature = kernel.signature
    parts = [
        item * _elements_reached(operand_need(signature, operand), strategies)
        for operand, item in enumerate(kernel.inputs)
    ]
    parts += [
        item * _elements_reached(output_reach(signature, output), strategies)
        for output, item in enumerate(kernel.outputs)
    ]
    return np.asarray(sum(parts), dtype=np.float64)


def _elements_reached(need: Need, strategies: Strategies) -> NDArray[np.int64]:
    """Return [state, worker]: how many elements a worker reaches."""
    total = np.ones((len(strategies.states), prod(strategies.ways)), dtype=np.int64)
    for dimension in need:
        masks = np.array([strategies.steps_choosing(name) for name in dimension.variables], dtype=np.int64)
        chosen, of = np.unique(masks.reshape(len(masks), len(strategies.states)), axis=1, return_inverse=True)
        counts = [common_counts(((dimension, tuple(column)),), strategies.ways)[0] for column in chosen.T.tolist()]
        total *= np.stack(counts)[of.reshape(-1)]
    return total


def _kernel_calls(kernel: Kernel, strategies: Strategies) -> NDArray[np.int64]:
    """Return [state, worker]: one call per contiguous run of the variables that need them."""
    total = np.ones((len(strategies.states), prod(strategies.ways)), dtype=np.int64)
    for name in kernel.signature.description.contiguous:
        total *= _run_counts(kernel.signature.extents[name], strategies.ways)[strategies.steps_choosing(name)]
    return total


@lru_cache(maxsize=REMEMBERED)
def _run_counts(extent: int, ways: tuple[int, ...]) -> NDArray[np.int64]:
    """Return [mask, worker]: how many contiguous runs a worker has when split at the mask's steps."""
    return np.array(
        [
            [len(iteration_runs(extent, steps_of(mask), ways, worker)) for worker in range(prod(ways))]
            for mask in range(1 << len(ways))
        ],
        dtype=np.int64,
    )
