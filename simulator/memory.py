"""Memory over time. A buffer occupies memory from the start of its first task to the end of its last.

Live buffers, the unused rest of the arena, workspaces and the reserve must fit together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from planner.program.in_order import PERSISTENT
from planner.program.tasks import Buffer, Program, WorkerProgram
from planner.program.workspace import device_needs
from planner.report.schema import BufferUse, DeviceMemory
from simulator.classes import WorkerClasses
from simulator.interpreter import Timeline
from topologies import Machine, Memory

LARGEST = 5  # buffers that are named at the peak
KINDS = {"fetch": "fetches", "partial": "partials", "reduce": "partials", "staging": "staging"}
UNKNOWN = {PERSISTENT: "persistent", "tensor": "results"}
"""Kinds of tensors when no graph says more."""


@dataclass(frozen=True, slots=True)
class Accounting:
    """The phase of each node, in the order of the graph, and the use of each tensor (`contents`), by name."""

    phases: Mapping[str, str] = field(default_factory=dict)
    contents: Mapping[str, str] = field(default_factory=dict)


STATIC = Accounting()

HANDED_OVER, TAKEN, GIVEN_BACK = range(3)
"""Events of a buffer at a task, in the order in which they take effect."""


@dataclass(frozen=True, slots=True, eq=False)
class Usage:
    """Live bytes in a memory after each change at `at_s` seconds: [change, kind]."""

    kinds: tuple[str, ...]
    at_s: NDArray[np.float64]
    nbytes: NDArray[np.int64]
    peak: int  # index of the change after which most bytes are live
    largest: tuple[BufferUse, ...]  # of the buffers that are live then

    def moments(self) -> Iterator[tuple[float, Mapping[str, int]]]:
        """Yield (seconds from the start of the step, bytes by kind) at each change that lasts for some time."""
        lasting = np.append(self.at_s[1:] > self.at_s[:-1], True)[: len(self.at_s)]
        for at_s, row in zip(self.at_s[lasting].tolist(), self.nbytes[lasting].tolist(), strict=True):
            yield at_s, dict(zip(self.kinds, row, strict=True))


def usage(
    program: Program, timeline: Timeline, classes: WorkerClasses, workers: Sequence[int], contents: Mapping[str, str]
) -> Usage:
    """Return the live bytes on these workers over time. `contents` is that of `planner.graph.facts.contents`.

    Simultaneous tasks are ordered by position. A task first allocates its new buffers, in place of those it overwrites,
    then frees those that it is the last to use. Persistent buffers are live from the start.
    """
    class_of = classes.workers.tolist()
    changes = sorted(change for worker in workers for change in _changes(program, timeline, worker, class_of[worker]))
    buffers = sorted({buffer for _, _, _, buffer, _ in changes})
    buffer_of = {buffer: program.workers[class_of[buffer[0]]].buffers[buffer[1]] for buffer in buffers}
    kind_of = {buffer: _kind(buffer_of[buffer], contents) for buffer in buffers}
    kinds = tuple(dict.fromkeys(kind_of.values()))
    table = np.zeros((len(changes), len(kinds)), dtype=np.int64)
    for row, (_, _, _, buffer, nbytes) in zip(table, changes, strict=True):
        row[kinds.index(kind_of[buffer])] = nbytes
    table = table.cumsum(axis=0)
    peak = int(table.sum(axis=1).argmax()) if changes else 0
    alive: Counter[tuple[int, int]] = Counter()
    for _, _, _, buffer, nbytes in changes[: peak + 1]:
        alive[buffer] += nbytes
    return Usage(kinds, np.array([change[0] for change in changes]), table, peak, _largest(buffer_of, +alive))


def device_memories(
    program: Program, timeline: Timeline, machine: Machine, classes: WorkerClasses, accounting: Accounting = STATIC
) -> tuple[DeviceMemory, ...]:
    """Return the use of each memory, with a verdict. Memories whose workers are equivalent are computed once."""
    class_of, result = classes.workers.tolist(), list[DeviceMemory]()
    alike: dict[tuple[object, ...], DeviceMemory] = {}
    for memory in machine.memories:
        workers = tuple(device for device in memory.devices if device < len(class_of))
        if not workers:
            continue
        key = memory.nbytes, *((class_of[worker], id(machine.devices[worker].spec)) for worker in workers)
        first = alike.get(key)
        if first is None:
            place = machine, memory, workers
            result.append(alike.setdefault(key, _device_memory(program, timeline, place, classes, accounting)))
            continue
        number_of = dict(zip(first.workers, workers, strict=True))
        largest = tuple(structs.replace(use, worker=number_of[use.worker]) for use in first.largest)
        result.append(structs.replace(first, device=memory.name, workers=workers, largest=largest))
    return tuple(result)


def _device_memory(
    program: Program,
    timeline: Timeline,
    place: tuple[Machine, Memory, tuple[int, ...]],
    classes: WorkerClasses,
    accounting: Accounting,
) -> DeviceMemory:
    machine, memory, workers = place
    programs = [program.workers[index] for index in classes.workers[[*workers]].tolist()]
    alive = usage(program, timeline, classes, workers, accounting.contents)
    fullest = alive.nbytes[alive.peak] if len(alive.at_s) else np.zeros(len(alive.kinds), dtype=np.int64)
    live = int(fullest.sum())
    devices = [machine.devices[worker] for worker in workers]
    filled = Counter({kind: int(nbytes) for kind, nbytes in zip(alive.kinds, fullest, strict=True)})
    filled["unused"] = sum(worker.arena_bytes for worker in programs) - live
    for worker, device in zip(programs, devices, strict=True):
        _, *others = device_needs(worker, device)  # the arena is counted as live and unused bytes
        filled.update({need.what: need.nbytes for need in others})
    peak = sum(filled.values())
    return DeviceMemory(
        device=memory.name,
        workers=workers,
        peak_bytes=peak,
        capacity_bytes=int(memory.nbytes),
        verdict="out of memory" if peak > memory.nbytes else "fits",
        peak_at_s=float(alive.at_s[alive.peak]) if len(alive.at_s) else 0.0,
        by_kind={kind: nbytes for kind, nbytes in filled.items() if nbytes},
        largest=alive.largest,
    )


def _changes(
    program: Program, timeline: Timeline, number: int, index: int
) -> Iterator[tuple[float, int, int, tuple[int, int], int]]:
    """Yield the changes (seconds, task, event, (worker, buffer), bytes) of a worker, given its class `index`."""
    worker, starts, stops = program.workers[index], timeline.starts_s[index], timeline.stops_s[index]
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


def _kind(buffer: Buffer, contents: Mapping[str, str]) -> str:
    return KINDS.get(buffer.kind) or contents.get(buffer.name) or UNKNOWN[buffer.kind]


def _largest(
    buffer_of: Mapping[tuple[int, int], Buffer], alive: Mapping[tuple[int, int], int]
) -> tuple[BufferUse, ...]:
    largest = sorted(alive, key=lambda buffer: (-alive[buffer], buffer))[:LARGEST]
    return tuple(BufferUse(name=buffer_of[buffer].name, worker=buffer[0], nbytes=alive[buffer]) for buffer in largest)


def _span(buffer: Buffer, tasks: int) -> tuple[int, int]:
    if not 0 <= buffer.first <= buffer.last < tasks:
        raise ValueError(
            f"buffer {buffer.name}: expected tasks within 0 to {tasks - 1}, found {buffer.first} to {buffer.last}"
        )
    return buffer.first, buffer.last


def overwritten(worker: WorkerProgram) -> Mapping[int, int]:
    """Return, for each buffer that another overwrites in place, the number of that other buffer."""
    heirs: dict[int, int] = {}
    latest: dict[int, int] = {}
    for number in sorted(range(len(worker.buffers)), key=lambda n: (worker.buffers[n].first, n)):
        buffer = worker.buffers[number]
        if buffer.nbytes:
            old = latest.get(buffer.offset)
            if old is not None and worker.buffers[old].last >= buffer.first:
                heirs[old] = number
            latest[buffer.offset] = number
    return heirs
