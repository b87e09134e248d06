"""What ranks that read each other's arenas have to wait for, derived from the order of each one's tasks.

Who reads a transfer's pieces, at its `Wait`, waits until their owner is past its `Send` (read after write). Who
overwrites bytes waits until everybody who reads them is past that `Wait` (write after read). As the tasks of all ranks
are parts of one order, a rank only ever waits for tasks before its own, so that the rank that is least far can go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from planner.program.tasks import Compute, Receive, Send, Task, Wait, WorkerProgram

Finished = dict[int, int]
"""How many tasks some ranks must have finished, by rank."""


@dataclass(frozen=True, slots=True)
class Positions:
    """Which of a worker's `count` tasks start sending, and end, the transfers that it takes part in."""

    count: int
    sends: Mapping[int, int]
    ends: Mapping[int, int]


def positions(tasks: tuple[Task, ...]) -> Positions:
    """Return where a worker's transfers are among its tasks."""
    return Positions(len(tasks), _positions(tasks, Send), _positions(tasks, Wait))


def waits(program: WorkerProgram, positions_of: Sequence[Positions], near: Callable[[int], bool]) -> list[Finished]:
    """Return what must be so before each task of a worker, and at last before the end of the iteration.

    `positions_of` are all workers' transfers; `near` says which peers read straight out of this worker's arena, and
    are read so. What an earlier task waits for is not repeated. Raises ValueError where a task overwrites what others
    read before the transfer's `Wait`.
    """
    required: list[Finished] = [{} for _ in range(len(program.tasks) + 1)]
    ends = positions_of[program.worker].ends
    writes = _Writes(program, near)
    for position, task in enumerate(program.tasks):
        if isinstance(task, Compute | Wait):
            continue
        end = ends[task.transfer]
        peers = [message.peer for message in task.messages if message.nbytes and near(message.peer)]
        if isinstance(task, Send) and peers:
            overwritten = writes.first(task.buffer, position)
            if overwritten <= end:
                raise ValueError(
                    f"transfer {task.transfer} of worker {program.worker}: expected its source to stay until task "
                    f"{end}, found it overwritten by task {overwritten}"
                )
            _require(required[overwritten], {peer: positions_of[peer].ends[task.transfer] for peer in peers})
        elif peers:
            _require(required[end], {peer: positions_of[peer].sends[task.transfer] for peer in peers})
    _leave_out_repeated(required)
    return required


def announcements(
    tasks: tuple[Task, ...], wanted: Mapping[int, Iterable[int]], at_once: bool
) -> dict[int, frozenset[int]]:
    """Return after which tasks others must be told that a worker is so far, and who waits for that.

    `wanted` are the ranks that wait until so many tasks are finished. Tasks that start transfers take no time, so that
    one announcement serves all in a row, unless it must come `at_once`.
    """
    announced, waiting = {}, frozenset[int]()
    kinds = [*map(_kind, tasks), ""]
    for position, (kind, following) in enumerate(pairwise(kinds)):
        waiting |= frozenset(wanted.get(position + 1, ()))
        if waiting and (at_once or kind != following or kind != START):
            announced[position] = waiting
            waiting = frozenset()
    return announced


START = "start"
"""The kind of tasks that start transfers."""


FIRST_LOOKED_AT = 256
"""Writes that are looked at together at first, then twice as many: mostly one of the next few overwrites."""


class _Writes:
    """Which bytes of the arena which task overwrites."""

    def __init__(self, program: WorkerProgram, near: Callable[[int], bool]) -> None:
        self._buffers = program.buffers
        self._end = len(program.tasks)
        written = list(_written(program, near))
        self._positions = np.array([position for position, _ in written], np.int64)
        self._starts = np.array([program.buffers[number].offset for _, number in written], np.int64)
        self._stops = self._starts + [program.buffers[number].nbytes for _, number in written]

    def first(self, buffer: int, after: int) -> int:
        """Return the first task after a position that overwrites bytes of a buffer; else the number of tasks."""
        start, later = self._buffers[buffer].offset, int(np.searchsorted(self._positions, after, "right"))
        stop, size = start + self._buffers[buffer].nbytes, FIRST_LOOKED_AT
        while later < len(self._positions):
            part = slice(later, later + size)
            meets = (self._starts[part] < stop) & (self._stops[part] > start)
            if meets.any():
                return int(self._positions[later + np.argmax(meets)])
            later, size = part.stop, 2 * size
        return self._end


def _written(program: WorkerProgram, near: Callable[[int], bool]) -> Iterator[tuple[int, int]]:
    """Yield positions, ascending, and the buffers written there; what far messages are packed or received into, too."""
    targets: dict[int, int] = {}
    for position, task in enumerate(program.tasks):
        if isinstance(task, Compute):
            calls = (call for kernel in task.kernels for call in kernel.calls)
            yield from ((position, number) for number in {buffer for call in calls for buffer, _ in call.outputs})
        elif isinstance(task, Wait):
            yield position, targets[task.transfer]
        else:
            if isinstance(task, Receive):
                targets[task.transfer] = task.buffer
            if task.staging is not None and not all(near(message.peer) for message in task.messages):
                yield position, task.staging


def _positions(tasks: tuple[Task, ...], kind: type[Send | Wait]) -> dict[int, int]:
    return {task.transfer: position for position, task in enumerate(tasks) if isinstance(task, kind)}


def _require(finished: Finished, passed: Mapping[int, int]) -> None:
    """Add that peers must be past some of their tasks."""
    for peer, position in passed.items():
        finished[peer] = max(position + 1, finished.get(peer, 0))


def _leave_out_repeated(required: list[Finished]) -> None:
    known: Finished = {}
    for finished in required:
        for peer, tasks in list(finished.items()):
            if known.get(peer, 0) >= tasks:
                del finished[peer]
            else:
                known[peer] = tasks


def _kind(task: Task) -> str:
    return type(task).__name__ if isinstance(task, Wait | Compute) else START
