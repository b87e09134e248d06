"""Memory over time: a buffer occupies its worker's memory from the start of its first task to the end of its last."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from planner.program.tasks import Buffer, Program
from planner.report.schema import BufferUse, DeviceMemory
from simulator.interpreter import Timeline
from topologies import Machine, Memory

LARGEST = 5  # buffers named at a peak
PERSISTENT = "persistent"


class Change(NamedTuple):
    """A buffer taken (or given back) at a moment; the order is the one in which changes happen.

    At one moment tasks follow each other by position, and a task takes its new buffers before it gives back old ones.
    """

    at_s: float
    position: int
    releases: bool
    worker: int
    buffer: int


class Live:
    """The buffers alive at a moment. Buffers at one offset share its bytes: one overwrites the other in place."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._places: defaultdict[tuple[int, int], dict[int, int]] = defaultdict(dict)
        self.nbytes = 0

    def apply(self, change: Change) -> None:
        """Take or give back a buffer."""
        buffer = self._program.workers[change.worker].buffers[change.buffer]
        place = self._places[change.worker, buffer.offset]
        before = max(place.values(), default=0)
        if change.releases:
            del place[change.buffer]
        else:
            place[change.buffer] = buffer.nbytes
        self.nbytes += max(place.values(), default=0) - before

    def largest(self, count: int) -> tuple[BufferUse, ...]:
        """Return the `count` largest buffers, largest first; of buffers at one offset, the largest."""
        found = []
        for (worker, _), place in self._places.items():
            if place:
                buffer, nbytes = max(place.items(), key=lambda item: (item[1], item[0]))
                found.append((-nbytes, worker, buffer))
        return tuple(
            BufferUse(name=self._program.workers[worker].buffers[buffer].name, worker=worker, nbytes=-negative)
            for negative, worker, buffer in sorted(found)[:count]
        )


def changes(program: Program, timeline: Timeline, workers: Sequence[int]) -> list[Change]:
    """Return every change of what lives on these workers; persistent buffers are there from the start."""
    return sorted(change for worker in workers for change in _changes(program, timeline, worker))


def device_memories(program: Program, timeline: Timeline, machine: Machine) -> tuple[DeviceMemory, ...]:
    """Return peak and verdict of every memory that workers use.

    The verdict compares the arenas, which are allocated whole, with what the memory holds.
    """
    used = range(len(program.workers))
    return tuple(
        _device_memory(program, timeline, memory)
        for memory in machine.memories
        if any(device in used for device in memory.devices)
    )


def _changes(program: Program, timeline: Timeline, number: int) -> Iterator[Change]:
    starts, stops = timeline.starts_s[number], timeline.stops_s[number]
    for i, buffer in enumerate(program.workers[number].buffers):
        if buffer.kind == PERSISTENT:
            yield Change(0.0, -1, False, number, i)
        else:
            first, last = _span(buffer, len(starts))
            yield Change(starts[first], first, False, number, i)
            yield Change(stops[last], last, True, number, i)


def _device_memory(program: Program, timeline: Timeline, memory: Memory) -> DeviceMemory:
    workers = tuple(device for device in memory.devices if device < len(program.workers))
    history = changes(program, timeline, workers)
    live, peak, peak_changes = Live(program), 0, 0
    for i, change in enumerate(history, start=1):
        live.apply(change)
        if live.nbytes > peak:
            peak, peak_changes = live.nbytes, i
    then = Live(program)
    for change in history[:peak_changes]:
        then.apply(change)
    arenas = sum(program.workers[worker].arena_bytes for worker in workers)
    return DeviceMemory(
        device=memory.name,
        workers=workers,
        peak_bytes=peak,
        capacity_bytes=int(memory.nbytes),
        verdict="out of memory" if max(arenas, peak) > memory.nbytes else "fits",
        peak_at_s=history[peak_changes - 1].at_s if peak_changes else 0.0,
        largest=then.largest(LARGEST),
    )


def _span(buffer: Buffer, tasks: int) -> tuple[int, int]:
    if not 0 <= buffer.first <= buffer.last < tasks:
        raise ValueError(
            f"buffer {buffer.name}: expected tasks within 0 to {tasks - 1}, found {buffer.first} to {buffer.last}"
        )
    return buffer.first, buffer.last
