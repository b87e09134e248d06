"""Memory over time: a buffer occupies its worker's memory from the start of its first task to the end of its last.

Beside what lives, a device's memory holds what its allocation does not use at its fullest moment, the workspace of
kernels, and what is reserved. These sum to what must fit: to the byte, the workers' arenas with workspace and reserve.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from planner.program.tasks import Buffer, Program, WorkerProgram
from planner.program.workspace import worker_workspace_bytes
from planner.report.schema import BufferUse, DeviceMemory
from simulator.caching import peak_reserved_bytes
from simulator.interpreter import Timeline
from simulator.lifetimes import overwritten, requests
from topologies import Machine, Memory

Allocator = Literal["static", "caching"]
ALLOCATORS: tuple[Allocator, ...] = get_args(Allocator)

LARGEST = 5  # buffers named at a peak
PERSISTENT = "persistent"
KINDS = {"fetch": "fetches", "partial": "partials", "reduce": "partials", "staging": "staging"}
UNKNOWN = {PERSISTENT: "persistent", "tensor": "results"}
"""Kinds of tensors where the graph is not given that tells more."""


@dataclass(frozen=True, slots=True)
class Accounting:
    """The phase of every node, in the graph's order, and the use of each tensor (`contents`), by name.

    The `allocator` is "static" for the workers' arenas, which are allocated whole; a "caching" one takes segments.
    """

    phases: Mapping[str, str] = field(default_factory=dict)
    contents: Mapping[str, str] = field(default_factory=dict)
    allocator: Allocator = "static"


STATIC = Accounting()

HANDED_OVER, TAKEN, GIVEN_BACK = range(3)
"""Events of a buffer, in their order at one task."""


@dataclass(frozen=True, slots=True, eq=False)
class Usage:
    """Live bytes in a memory: after each change, `at_s`, of each kind ([change, kind])."""

    kinds: tuple[str, ...]
    at_s: NDArray[np.float64]
    nbytes: NDArray[np.int64]
    peak: int  # the change after which most lives

    def moments(self) -> Iterator[tuple[float, Mapping[str, int]]]:
        """Yield (seconds from the start of the step, bytes by kind) wherever time passes before the next change."""
        lasting = np.append(self.at_s[1:] > self.at_s[:-1], True)[: len(self.at_s)]
        for at_s, row in zip(self.at_s[lasting].tolist(), self.nbytes[lasting].tolist(), strict=True):
            yield at_s, dict(zip(self.kinds, row, strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class _Changes:
    """Changes of what lives, in the order in which they happen: of which buffer, when, and by how many bytes."""

    buffers: tuple[tuple[int, int], ...]  # worker and buffer
    at_s: NDArray[np.float64]
    of: NDArray[np.int64]
    nbytes: NDArray[np.int64]


def usage(program: Program, timeline: Timeline, workers: Sequence[int], contents: Mapping[str, str]) -> Usage:
    """Live bytes on these workers over time; `contents` is `planner.graph.facts.contents`."""
    return _usage(program, _changes(program, timeline, workers), contents)


def device_memories(
    program: Program, timeline: Timeline, machine: Machine, accounting: Accounting = STATIC
) -> tuple[DeviceMemory, ...]:
    """Account for every memory that workers use, with a verdict."""
    return tuple(
        _device_memory(program, timeline, (machine, memory), accounting)
        for memory in machine.memories
        if _workers_of(program, memory)
    )


def _workers_of(program: Program, memory: Memory) -> tuple[int, ...]:
    """Return the workers that use a memory."""
    return tuple(device for device in memory.devices if device < len(program.workers))


def _device_memory(
    program: Program, timeline: Timeline, place: tuple[Machine, Memory], accounting: Accounting
) -> DeviceMemory:
    machine, memory = place
    workers = _workers_of(program, memory)
    changes = _changes(program, timeline, workers)
    alive = _usage(program, changes, accounting.contents)
    fullest = alive.nbytes[alive.peak] if len(alive.at_s) else np.zeros(len(alive.kinds), dtype=np.int64)
    live = int(fullest.sum())
    devices = [machine.devices[worker] for worker in workers]
    reserve = sum(math.ceil(device.spec.reserved_bytes) for device in devices)
    workspace = sum(
        worker_workspace_bytes(program.workers[worker], device.spec.workspace_bytes)
        for worker, device in zip(workers, devices, strict=True)
    )
    room = (memory.nbytes - reserve - workspace) / len(workers)
    allocated = sum(_allocated_bytes(program.workers[worker], accounting.allocator, room) for worker in workers)
    filled = {kind: int(nbytes) for kind, nbytes in zip(alive.kinds, fullest, strict=True) if nbytes}
    filled |= {"unused": allocated - live, "workspace": workspace, "reserve": reserve}
    peak = sum(filled.values())
    return DeviceMemory(
        device=memory.name,
        workers=workers,
        peak_bytes=peak,
        capacity_bytes=int(memory.nbytes),
        verdict="out of memory" if peak > memory.nbytes else "fits",
        peak_at_s=float(alive.at_s[alive.peak]) if len(alive.at_s) else 0.0,
        by_kind={kind: nbytes for kind, nbytes in filled.items() if nbytes},
        largest=_largest(program, changes, alive.peak),
    )


def _allocated_bytes(worker: WorkerProgram, allocator: Allocator, room_bytes: float) -> int:
    return worker.arena_bytes if allocator == "static" else peak_reserved_bytes(requests(worker), room_bytes)


def _changes(program: Program, timeline: Timeline, workers: Sequence[int]) -> _Changes:
    """Return all changes in the order in which they happen.

    At one moment tasks follow each other by position. A task takes what is new, where it overwrites something in that
    one's place, before it gives back what it was the last to use. Persistent buffers are there from the start.
    """
    changes = sorted(change for worker in workers for change in _worker_changes(program, timeline, worker))
    named = {name: number for number, name in enumerate(sorted({change[3] for change in changes}))}
    return _Changes(
        buffers=tuple(named),
        at_s=np.array([change[0] for change in changes]),
        of=np.array([named[change[3]] for change in changes], dtype=np.int64),
        nbytes=np.array([change[4] for change in changes], dtype=np.int64),
    )


def _worker_changes(
    program: Program, timeline: Timeline, number: int
) -> Iterator[tuple[float, int, int, tuple[int, int], int]]:
    """Yield (seconds, task, what happens, worker and buffer, bytes)."""
    worker, starts, stops = program.workers[number], timeline.starts_s[number], timeline.stops_s[number]
    heirs = overwritten(worker)
    for i, buffer in enumerate(worker.buffers):
        first, last = _span(buffer, len(starts))
        if buffer.kind == PERSISTENT:
            yield 0.0, -1, TAKEN, (number, i), buffer.nbytes
            continue
        yield starts[first], first, TAKEN, (number, i), buffer.nbytes
        if i in heirs:
            until = worker.buffers[heirs[i]].first
            yield starts[until], until, HANDED_OVER, (number, i), -buffer.nbytes
        else:
            yield stops[last], last, GIVEN_BACK, (number, i), -buffer.nbytes


def _usage(program: Program, changes: _Changes, contents: Mapping[str, str]) -> Usage:
    what = [_kind(program.workers[worker].buffers[number], contents) for worker, number in changes.buffers]
    kinds = tuple(dict.fromkeys(what))
    number_of = {kind: number for number, kind in enumerate(kinds)}
    kind_of = np.array([number_of[kind] for kind in what], dtype=np.int64)
    table = np.zeros((len(changes.of), len(kinds)), dtype=np.int64)
    table[np.arange(len(changes.of)), kind_of[changes.of]] = changes.nbytes
    table = table.cumsum(axis=0)
    return Usage(kinds, changes.at_s, table, int(table.sum(axis=1).argmax()) if len(table) else 0)


def _kind(buffer: Buffer, contents: Mapping[str, str]) -> str:
    return KINDS.get(buffer.kind) or contents.get(buffer.name) or UNKNOWN[buffer.kind]


def _largest(program: Program, changes: _Changes, peak: int) -> tuple[BufferUse, ...]:
    """Return the largest buffers that live after a change."""
    alive = np.zeros(len(changes.buffers), dtype=np.int64)
    np.add.at(alive, changes.of[: peak + 1], changes.nbytes[: peak + 1])
    largest = sorted(np.flatnonzero(alive).tolist(), key=lambda of: (-alive[of], changes.buffers[of]))[:LARGEST]
    found = [(*changes.buffers[of], int(alive[of])) for of in largest]
    return tuple(
        BufferUse(name=program.workers[worker].buffers[number].name, worker=worker, nbytes=nbytes)
        for worker, number, nbytes in found
    )


def _span(buffer: Buffer, tasks: int) -> tuple[int, int]:
    if not 0 <= buffer.first <= buffer.last < tasks:
        raise ValueError(
            f"buffer {buffer.name}: expected tasks within 0 to {tasks - 1}, found {buffer.first} to {buffer.last}"
        )
    return buffer.first, buffer.last
