"""Transports of ranks that map each other's arenas: who needs pieces copies or sums them right where they lie.

Nothing is packed and nobody is called: the ranks' counters (`executor/progress.py`) say when pieces are there, and when
they may be overwritten. Messages to and from ranks of other hosts go another way, by default that of `PointToPoint`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from mpi4py import MPI

from executor.arena import Arena, Memory
from executor.exchange import Action, arrival, in_order, nothing
from executor.multifetch import Pair, address
from executor.progress import Progress
from executor.shared_memory import exchanged, neighbours
from executor.transport.messages import Messages
from executor.transport.order import Finished, announcements, positions, waits
from executor.transport.point_to_point import PointToPoint
from executor.values import Array, ArrayModule
from planner.program.tasks import Message, Receive, Send, Wait, distinct


@dataclass(frozen=True, slots=True)
class Place:
    """Where a piece lies in its owner's arena."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


Places = dict[int, tuple[Place, ...]]
"""The pieces of one worker's messages to another, by transfer."""


def shared_arena(_xp: ArrayModule, nbytes: int, comm: MPI.Intracomm) -> Arena:
    """Make an arena that the ranks of this host map, and map theirs (collective)."""
    memory, others = exchanged(comm, neighbours(comm), nbytes)
    return Arena(np, nbytes, memory, others)


class Fence:
    """Work queued on a device and not done, of which counters say nothing; ranks with NumPy queue none."""

    def mark(self) -> None:
        """Mark what is queued by now, before this rank's counter is raised."""

    def join(self, rank: int) -> None:
        """Let what will be queued come behind a rank's last mark, once its counter was seen raised."""


NO_FENCE = Fence()


class Shared:
    """Reads out of the arenas of this host's ranks; made by all ranks together (collective)."""

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
        # Nothing may be left unsaid while this rank waits for another host; messages move only while somebody looks.
        self._progress = Progress(comm, here, crowded, comm.Iprobe if mixed else None)
        self._places: Sequence[Places] = comm.alltoall([self._placed(rank) for rank in range(comm.Get_size())])
        positions_of = comm.allgather(positions(tasks))
        self._counts = [rank_positions.count for rank_positions in positions_of]
        self._waits = waits(memory.program, positions_of, self._near)
        self._announced = announcements(tasks, _wanted(comm, self._waits), at_once=mixed)
        self._iteration = 0

    @property
    def outside_arena(self) -> Mapping[str, int]:
        """Bytes allocated beside the arena, by what they are."""
        return self._far.outside_arena

    def send(self, task: Send) -> Action:
        """Return the action that counts the bytes of what others copy out of this arena, and sends what they cannot."""
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
        """Return the action that completes what other hosts send, and copies or combines the pieces."""
        return self._far.wait(task)

    def ordered(self, position: int, action: Action) -> Action:
        """Put what must be waited for before a task's action, and behind it what others must be told."""
        actions = [self._waiting(position), self._far.ordered(position, action), self._announcing(position)]
        return in_order([step for step in actions if step is not nothing])

    def finish(self) -> Action:
        """Return the action that ends an iteration: once nobody reads this worker's arena any more."""
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
                    progress.raise_to(self._finished(position))  # others may wait for what was to be announced later
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
        """Return how many tasks this rank has finished in all, so many of this iteration."""
        return self._iteration * len(self._memory.program.tasks) + tasks

    def _placed(self, rank: int) -> Places:
        """Say where what a rank may read of this worker's arena lies."""
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
        """Return the copies of a message's pieces right out of the peer's arena."""
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
    """Return, by how many tasks this worker has then finished, who waits for it (collective)."""
    counts_by_rank: list[list[int]] = [[] for _ in range(comm.Get_size())]
    for finished in waited:
        for peer, tasks in finished.items():
            counts_by_rank[peer].append(tasks)
    wanted: dict[int, list[int]] = {}
    for rank, counts in enumerate(comm.alltoall(counts_by_rank)):
        for tasks in counts:
            wanted.setdefault(tasks, []).append(rank)
    return wanted
