"""Blocks (a buffer, with those that overwrite it in place) that one worker's tasks use, and other orders of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np

from planner.graph.ir import Graph
from planner.plans.plan import undivided
from planner.program.in_order import in_order
from planner.program.lower import lower
from planner.program.tasks import Compute, Program, Receive, Task, Wait, WorkerProgram
from results.lifetimes import holders, uses
from simulator.interpreter import interpret
from topologies import Machine

PERSISTENT = "persistent"


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """The blocks of a program of one worker, and what its tasks, by position, do with them.

    A block has the number of the first of its buffers. `made_by` gives, per task, the task that made the version of
    each block that it reads: None for what is there before the iteration. `after` are the earlier tasks that a task
    must follow: those that made what it reads, and those that read, or made, what it overwrites.
    """

    worker: WorkerProgram
    nbytes: Mapping[int, int]
    persistent: frozenset[int]
    reads: tuple[tuple[int, ...], ...]
    writes: tuple[tuple[int, ...], ...]
    made_by: tuple[Mapping[int, int | None], ...]
    after: tuple[frozenset[int], ...]
    rewritten: Mapping[int, int]  # by block, the task that writes it last


def worker_program(graph: Graph) -> WorkerProgram:
    """Lower a graph for a single device; every micro-batch has its own buffers."""
    return in_order(lower(undivided(graph)).workers[0], apart=True)


def flow_of(worker: WorkerProgram, layers: Mapping[str, int]) -> Flow:
    """Follow the blocks of a program that has no messages through its tasks; `layers` are its nodes'.

    Where results are added up in one buffer, those of later layers come first, so that no layer waits for one before it
    to begin a sum (`_later_layers_first`).
    """
    return blocks_in_order(_later_layers_first(worker, holders(worker), layers))


def blocks_in_order(worker: WorkerProgram) -> Flow:
    """Follow the blocks through the tasks in their order."""
    held = holders(worker)
    nbytes: dict[int, int] = {}
    for number, buffer in enumerate(worker.buffers):
        nbytes[held[number]] = max(nbytes.get(held[number], 0), buffer.nbytes)
    writer: dict[int, int] = {}
    readers: dict[int, set[int]] = {}
    reads, writes, made_by, after = [], [], [], []
    for position, (read, written) in enumerate(uses(worker)):
        read_blocks, written_blocks = (tuple(dict.fromkeys(held[n] for n in numbers)) for numbers in (read, written))
        makers: dict[int, int | None] = {block: writer.get(block) for block in read_blocks}
        before = {maker for maker in makers.values() if maker is not None}
        for block in written_blocks:
            before |= readers.pop(block, set()) | ({writer[block]} if block in writer else set())
            writer[block] = position
        for block in read_blocks:
            readers.setdefault(block, set()).add(position)
        if isinstance(worker.tasks[position], Receive | Wait):
            before.add(position - 1)  # a transfer to oneself is one thing
        reads.append(read_blocks)
        writes.append(written_blocks)
        made_by.append(makers)
        after.append(frozenset(before - {position}))
    persistent = frozenset(held[n] for n, buffer in enumerate(worker.buffers) if buffer.kind == PERSISTENT)
    return Flow(worker, nbytes, persistent, tuple(reads), tuple(writes), tuple(made_by), tuple(after), dict(writer))


def _later_layers_first(worker: WorkerProgram, held: Sequence[int], layers: Mapping[str, int]) -> WorkerProgram:
    """Return the program in which, of tasks that add to one buffer, those of later layers go before the others.

    Of sums of two, that is: the first task moves behind the second. It stays where what it reads is overwritten before.
    """
    tasks, used = list(worker.tasks), list(uses(worker))
    sums: dict[int, list[int]] = {}  # by its first task
    begun: dict[int, int] = {}
    for position, (task, (_, written)) in enumerate(zip(tasks, used, strict=True)):
        if isinstance(task, Compute) and len(written) == 1:
            if _combines(task):
                sums.setdefault(begun[written[0]], []).append(position)
            else:
                begun[written[0]] = position
    places = [float(position) for position in range(len(tasks))]
    for first, rest in sums.items():
        head, last = tasks[first], tasks[rest[-1]]
        early, late = (layers[task.nodes[-1]] for task in (head, last) if isinstance(task, Compute))
        read = {held[n] for n in used[first][0]}
        kept = all(read.isdisjoint(held[n] for n in used[at][1]) for at in range(first + 1, rest[-1] + 1))
        if len(rest) == 1 and early < late and kept:
            tasks[first], tasks[rest[0]] = _combined(tasks[first], "Sum"), _combined(tasks[rest[0]], None)
            places[first] = rest[0] + 0.5
    return replace(worker, tasks=tuple(tasks[at] for at in sorted(range(len(tasks)), key=places.__getitem__)))


def _combines(task: Compute) -> bool:
    return all(call.combine is not None for kernel in task.kernels[-1:] for call in kernel.calls)


def _combined(task: Task, reducer: str | None) -> Task:
    """Return a task of one call whose result is combined so with what is there."""
    assert isinstance(task, Compute)
    kernel = task.kernels[-1]
    calls = tuple(replace(call, combine=reducer) for call in kernel.calls)
    return replace(task, kernels=(*task.kernels[:-1], replace(kernel, calls=calls)))


class _Ready:
    """The tasks that can be done, by group, each group's a heap by a key; doing one may add those that follow it."""

    def __init__(self, after: Sequence[frozenset[int]], group_of: Sequence[int]) -> None:
        self._followers: list[list[int]] = [[] for _ in after]
        for position, before in enumerate(after):
            for earlier in before:
                self._followers[earlier].append(position)
        self._missing = [len(before) for before in after]
        self._group_of = group_of
        self.groups: dict[int, list[tuple[float, int]]] = {group: [] for group in sorted({*group_of})}
        for position, count in enumerate(self._missing):
            if not count:
                heappush(self.groups[group_of[position]], (0.0, position))
        self._keys = [0.0] * len(after)

    def do(self, group: int, key: float) -> None:
        """Do the first task of a group; those that follow have the greatest key of the tasks that they follow."""
        for follower in self._followers[heappop(self.groups[group])[1]]:
            self._missing[follower] -= 1
            self._keys[follower] = max(self._keys[follower], key)
            if not self._missing[follower]:
                heappush(self.groups[self._group_of[follower]], (self._keys[follower], follower))


def in_order_of_start(after: Sequence[frozenset[int]], device_of: Sequence[int], seconds: Sequence[float]) -> list[int]:
    """Return tasks in the order in which they start, where each starts as soon as it can on its device.

    Of those that can start on a device, that comes first which could the earliest. Messages take no time here.
    """
    ready, order = _Ready(after, device_of), []
    free_s = dict.fromkeys(ready.groups, 0.0)
    for _ in after:
        start_s, device = min((max(free_s[d], queue[0][0]), d) for d, queue in ready.groups.items() if queue)
        order.append(ready.groups[device][0][1])
        free_s[device] = start_s + seconds[order[-1]]
        ready.do(device, free_s[device])
    return order


def layer_by_layer(after: Sequence[frozenset[int]], layer_of: Sequence[int]) -> list[int]:
    """Return tasks in an order that stays with a layer for as long as it has any that can be done."""
    ready, order, layer = _Ready(after, layer_of), [], -1
    for _ in after:
        if not ready.groups.get(layer):
            _, layer = min((queue[0][1], layer) for layer, queue in ready.groups.items() if queue)
        order.append(ready.groups[layer][0][1])
        ready.do(layer, 0.0)
    return order


def next_transfer(worker: WorkerProgram) -> int:
    """Find the first number that no transfer has."""
    return 1 + max((task.transfer for task in worker.tasks if not isinstance(task, Compute)), default=-1)


def seconds_alone(worker: WorkerProgram, machine: Machine) -> list[float]:
    """Seconds of every task on the machine's first device."""
    timeline = interpret(Program((), (worker,), {}, {}, np.zeros((1, 1), dtype=np.int64)), machine)
    return [stop - start for start, stop in zip(timeline.starts_s[0], timeline.stops_s[0], strict=True)]
