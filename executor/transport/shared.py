"""Transports of ranks that map each other's arenas: the receiver of pieces copies or sums them directly from there.

Nothing is packed and no rank is interrupted. The ranks' counters (`executor/shared_memory.py`) say when pieces are
available, and when they may be overwritten. Messages to and from ranks of other hosts use another transport, by default
`PointToPoint`.

What a rank must wait for follows from the order of each rank's tasks. The reader of a transfer's pieces, at its `Wait`,
waits until their owner is past its `Send` (read after write). A task that overwrites bytes waits until all their
readers are past that `Wait` (write after read). The tasks of all ranks are parts of one order, so a rank only waits for
tasks before its own, and the rank that is furthest behind can always proceed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from mpi4py import MPI

from executor.arena import Action, Arena, Memory, arrival, in_order, nothing
from executor.multifetch import Pair, address
from executor.shared_memory import Progress, exchanged, neighbours
from executor.transport.messages import Messages
from executor.transport.point_to_point import PointToPoint
from executor.values import Array, ArrayModule
from planner.grouping import grouped
from planner.program.tasks import Compute, Message, Receive, Send, Task, Wait, WorkerProgram, distinct

Finished = dict[int, int]
"""Number of tasks that ranks must have finished, by rank."""


@dataclass(frozen=True, slots=True)
class Positions:
    """Which of a worker's `count` tasks start to send, and which end, its transfers."""

    count: int
    sends: Mapping[int, int]
    ends: Mapping[int, int]


def positions(tasks: tuple[Task, ...]) -> Positions:
    """Return the positions of a worker's transfers among its tasks."""
    return Positions(len(tasks), _positions(tasks, Send), _positions(tasks, Wait))


def waits(program: WorkerProgram, positions_of: Sequence[Positions], near: Callable[[int], bool]) -> list[Finished]:
    """Return what must hold before each task of a worker, and before the end of the iteration.

    `positions_of` are the transfers of all workers; `near` says which peers read directly from this worker's arena, and
    this worker from theirs. Conditions that an earlier task waits for are omitted. Raises ValueError if a task
    overwrites what others read before the transfer's `Wait`.
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
    """Return the tasks after which a worker must announce its progress, and which ranks wait for that.

    `wanted` has the ranks that wait until a number of tasks are finished. Tasks that start transfers take no time, so
    one announcement serves a sequence of them, unless it must come `at_once`.
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
"""Number of writes examined together at first, doubled each time. Usually one of the next few overwrites."""


class _Writes:
    """The bytes of the arena that each task overwrites."""

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
    """Yield positions, ascending, and the buffers written there, including staging of messages to other hosts."""
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
    """Add the condition that peers are past these tasks."""
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


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a piece in its owner's arena."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


Places = dict[int, tuple[Place, ...]]
"""The pieces of one worker's messages to another, by transfer."""


def shared_arena(_xp: ArrayModule, nbytes: int, comm: MPI.Intracomm) -> Arena:
    """Return an arena that the ranks of this host map, with theirs mapped as peers (collective)."""
    memory, others = exchanged(comm, neighbours(comm), nbytes)
    return Arena(np, nbytes, memory, others)


class Fence:
    """Orders work that is queued on a device, of which counters say nothing. With NumPy nothing is queued."""

    def mark(self) -> None:
        """Mark the work queued so far, before this rank's counter is raised."""

    def join(self, rank: int) -> None:
        """Let later work run after another rank's last mark, after its counter was seen."""


NO_FENCE = Fence()


class Shared:
    """Reads from the arenas of this host's ranks; created by all ranks together (collective)."""

    def __init__(
        self,
        memory: Memory,
        comm: MPI.Intracomm,
        crowded: bool,
        fence: Fence = NO_FENCE,
        far: Callable[[Memory, MPI.Intracomm, bool], Messages] = PointToPoint,
    ) -> None:
        self._memory = memory
        self._peers = memory.arena.peers
        self._fence = fence
        self._far = far(memory, comm, crowded)
        self.sent_bytes, self.waits = self._far.sent_bytes, self._far.waits
        tasks = memory.program.tasks
        mixed = any(not self._near(m.peer) for task in tasks if isinstance(task, Send) for m in task.messages)
        here = sorted({comm.Get_rank(), *self._peers})
        # With other hosts, progress is announced at once and MPI is polled while waiting: messages only move then.
        self._progress = Progress(comm, here, crowded, comm.Iprobe if mixed else None)
        self._places: Sequence[Places] = comm.alltoall([self._placed(rank) for rank in range(comm.Get_size())])
        positions_of = comm.allgather(positions(tasks))
        self._counts = [rank_positions.count for rank_positions in positions_of]
        self._waits = waits(memory.program, positions_of, self._near)
        self._announced = announcements(tasks, _wanted(comm, self._waits), at_once=mixed)
        self._iteration = 0

    @property
    def outside_arena(self) -> Mapping[str, int]:
        """Bytes allocated outside the arena, by purpose."""
        return self._far.outside_arena

    def send(self, task: Send) -> Action:
        """Return the action that counts the bytes that others copy from this arena, and sends the rest."""
        counts = np.zeros_like(self.sent_bytes)
        for message in task.messages:
            if self._near(message.peer):
                counts[message.peer] += sum(view.nbytes for view in self._views(task.buffer, message))
        far = self._far.send(replace(task, messages=self._distant(task.messages)))

        def action() -> None:
            np.add(self.sent_bytes, counts, out=self.sent_bytes)
            far()

        return action if counts.any() else far

    def receive(self, task: Receive) -> Action:
        """Return the action that posts the receives from other hosts."""
        distant = replace(task, messages=self._distant(task.messages))
        received = [(m.peer, self._readable(task, m)) for m in task.messages if m.nbytes and self._near(m.peer)]
        return self._far.post(distant, arrival(self._memory, task, received + self._far.received(distant)))

    def wait(self, task: Wait) -> Action:
        """Return the action that completes messages from other hosts, and copies or combines the pieces."""
        return self._far.wait(task)

    def ordered(self, position: int, action: Action) -> Action:
        """Return a task's action, preceded by its waits and followed by its announcement."""
        actions = [self._waiting(position), self._far.ordered(position, action), self._announcing(position)]
        return in_order([step for step in actions if step is not nothing])

    def finish(self) -> Action:
        """Return the action that ends an iteration once no other rank reads this worker's arena."""
        waiting = self._waiting(len(self._memory.program.tasks))

        def action() -> None:
            waiting()
            self._iteration += 1

        return action

    def _near(self, peer: int) -> bool:
        return peer in self._peers

    def _distant(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        return tuple(message for message in messages if not self._near(message.peer))

    def _waiting(self, position: int) -> Action:
        finished = tuple(self._waits[position].items())
        if not finished:
            return nothing
        progress, fence, counts = self._progress, self._fence, self._counts

        def action() -> None:
            for rank, tasks in finished:
                target = self._iteration * counts[rank] + tasks
                if not progress.reached(rank, target):
                    fence.mark()
                    progress.raise_to(self._finished(position))  # others may wait for a delayed announcement
                    start = time.perf_counter()
                    progress.wait(rank, target)
                    self.waits.append((start, time.perf_counter()))
                fence.join(rank)

        return action

    def _announcing(self, position: int) -> Action:
        if position not in self._announced:
            return nothing
        progress, woken = self._progress, self._progress.wakes(self._announced[position])

        def action() -> None:
            self._fence.mark()
            progress.raise_to(self._finished(position + 1), woken)

        return action

    def _finished(self, tasks: int) -> int:
        """Return the total number of tasks that this rank has finished, given those of this iteration."""
        return self._iteration * len(self._memory.program.tasks) + tasks

    def _placed(self, rank: int) -> Places:
        """Return the positions of what a rank may read in this worker's arena."""
        if not self._near(rank):
            return {}
        return {
            task.transfer: tuple(self._place(task.buffer, message))
            for task in distinct(self._memory.program.tasks)
            if isinstance(task, Send)
            for message in task.messages
            if message.peer == rank
        }

    def _place(self, buffer: int, message: Message) -> list[Place]:
        start = address(self._memory.arena.bytes)
        return [Place(address(view) - start, view.shape, view.strides) for view in self._views(buffer, message)]

    def _views(self, buffer: int, message: Message) -> list[Array]:
        """Return the parts of this worker's arena that another copies as a message."""
        return [self._memory.part(buffer, piece.source_slices) for piece in message.pieces]

    def _readable(self, task: Receive, message: Message) -> list[Pair]:
        """Return the copies of a message's pieces directly from the peer's arena."""
        targets = [self._memory.part(task.buffer, piece.target_slices) for piece in message.pieces]
        sources = [self._source(message.peer, task, place) for place in self._places[message.peer][task.transfer]]
        if [target.shape for target in targets] != [source.shape for source in sources]:
            raise ValueError(
                f"transfer {task.transfer} from worker {message.peer}: expected its pieces to be those of worker "
                f"{self._memory.worker}, found others"
            )
        return list(zip(targets, sources, strict=True))

    def _source(self, peer: int, task: Receive, place: Place) -> Array:
        dtype = self._memory.views[task.buffer].dtype
        first = self._peers[peer][place.offset : place.offset + dtype.itemsize].view(dtype)
        return self._memory.xp.lib.stride_tricks.as_strided(first, place.shape, place.strides)


def _wanted(comm: MPI.Intracomm, waited: Sequence[Finished]) -> dict[int, list[int]]:
    """Return the ranks that wait for this worker, by the number of tasks it must have finished (collective)."""
    counts_by_rank: list[list[int]] = [[] for _ in range(comm.Get_size())]
    for finished in waited:
        for peer, tasks in finished.items():
            counts_by_rank[peer].append(tasks)
    return grouped((tasks, rank) for rank, counts in enumerate(comm.alltoall(counts_by_rank)) for tasks in counts)
