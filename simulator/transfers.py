"""Transfers: who sends how much to whom, which halves have started, and which messages are complete.

Senders and receivers are classes of workers; messages are classes of messages (`simulator.classes`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from simpy import Event

from planner.graph.ir import ITEM_BYTES
from planner.layout import Collective
from planner.layout.communication import Group
from planner.program.tasks import Message, Program, Receive, Send
from simulator.classes import WorkerClasses

NO_MESSAGE = -1

Numbers = NDArray[np.intp]
Sizes = NDArray[np.int64]
Posts = list[tuple[Message, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """Messages of one transfer that started together, as columns: class, sender, receiver, size.

    `outgoing` is the number of messages of a class per sender, `incoming` that per receiver.
    """

    pairs: Numbers
    sources: Numbers
    targets: Numbers
    nbytes: Sizes
    outgoing: Sizes
    incoming: Sizes

    def __getitem__(self, chosen: Numbers | NDArray[np.bool_]) -> Sent:
        """Return the chosen messages."""
        columns = (self.pairs, self.sources, self.targets, self.nbytes, self.outgoing, self.incoming)
        return Sent(*(column[chosen] for column in columns))

    def __len__(self) -> int:
        """Return the number of message classes."""
        return len(self.pairs)

    def count(self, workers: int) -> Sizes:
        """Return the number of messages of each worker, incoming and outgoing."""
        count = np.bincount(self.sources, self.outgoing, workers) + np.bincount(self.targets, self.incoming, workers)
        return count.astype(np.int64)


class Shape:
    """The messages of a transfer. Transfers that move the same messages share one.

    `sent` has all messages that either end declares; the mask `exists` marks those that both ends declare. A worker
    waits forever for the others. `count` is the number of messages of each worker, incoming and outgoing.
    """

    def __init__(self, sent: Sent, exists: NDArray[np.bool_], workers: int) -> None:
        self.sent = sent
        self.exists = exists
        self.count = sent.count(workers)


@dataclass(frozen=True, slots=True)
class Together:
    """The messages of each group of a class, as one operation of a library on a payload of `nbytes`.

    `members` are the classes of the group's workers.
    """

    collective: Collective
    groups: tuple[Group, ...]
    members: tuple[int, ...]
    nbytes: int


class Transfer:
    """A transfer in progress. Messages are `combined` with the target's data, or copied.

    `together` are the groups that have not started, whose messages are one operation each; it starts when all members
    have arrived. `left` marks workers that do not wait for the end, even without overlap. `pending` counts the
    incomplete messages of each worker, incoming and outgoing. `last_start_s` and `last_latency_s` belong to the last
    completed message of each worker; `waiting` are the events that workers wait for.
    """

    def __init__(
        self, number: int, shape: Shape, starters: Sequence[int], combined: bool, together: Iterable[Together]
    ) -> None:
        k = len(shape.count)
        self.number = number
        self.combined = combined
        self.together = list(together)
        self.is_together = bool(self.together)
        self.shape = shape
        self.pending = shape.count.copy()
        self.posted = np.zeros(k, dtype=np.bool_)
        self.wanted = np.zeros(k, dtype=np.bool_)
        self.waited_for = shape.exists.copy()
        self.starters = list(starters)
        self.left = [False] * k
        self.last_start_s = np.zeros(k)
        self.last_latency_s = np.zeros(k)
        self.waiting: dict[int, Event] = {}

    def start(self, senders: Sequence[int], receivers: Sequence[int]) -> Sent:
        """Record the halves that workers start, and return the messages whose other half has also started."""
        self.posted[senders] = True
        self.wanted[receivers] = True
        sent = self.shape.sent
        starting = self.waited_for & self.posted[sent.sources] & self.wanted[sent.targets]
        self.waited_for &= ~starting
        return sent[starting]

    def start_together(self, senders: Sequence[int], receivers: Sequence[int]) -> list[tuple[Together, Sent]]:
        """Record the halves that workers start, and return the groups that are now complete, with their messages."""
        self.posted[senders] = True
        self.wanted[receivers] = True
        ready = [group for group in self.together if (self.posted & self.wanted)[[*group.members]].all()]
        self.together = [group for group in self.together if group not in ready]
        sent, exists = self.shape.sent, self.shape.exists
        return [(group, sent[exists & np.isin(sent.sources, group.members)]) for group in ready]

    def complete(self, sent: Sent, start_s: float, latency_s: float) -> None:
        """Record the completion of messages, and wake workers that have none left."""
        self.pending -= sent.count(len(self.pending))
        for workers in (sent.sources, sent.targets):
            self.last_start_s[workers] = start_s
            self.last_latency_s[workers] = latency_s
        for worker in [worker for worker in self.waiting if not self.pending[worker]]:
            self.waiting.pop(worker).succeed()


def transfers(program: Program, classes: WorkerClasses, by_library: bool) -> dict[int, Transfer]:
    """Return the transfers of the representatives, by number. With `by_library`, collectives are single operations.

    Raises ValueError if the two ends of a message disagree on its size.
    """
    k = len(program.workers)
    sends: defaultdict[int, Posts] = defaultdict(lambda: [()] * k)
    receives: defaultdict[int, Posts] = defaultdict(lambda: [()] * k)
    starters: defaultdict[int, list[int]] = defaultdict(lambda: [0] * k)
    tasks: dict[int, Send | Receive] = {}
    combined = {
        task.transfer
        for worker in program.workers
        for task in worker.tasks
        if isinstance(task, Receive) and task.reducer is not None
    }
    for index, worker in enumerate(program.workers):
        for task in worker.tasks:
            if isinstance(task, Send | Receive):
                posts = sends if isinstance(task, Send) else receives
                posts[task.transfer][index] += task.messages
                starters[task.transfer][index] += 1
                tasks[task.transfer] = task
    shapes: dict[tuple[int, ...], Shape] = {}  # by ids of the messages
    result = {}
    for number, counts in starters.items():
        key = (*map(id, sends[number]), *map(id, receives[number]))
        if key not in shapes:
            shapes[key] = _shape(number, classes, sends[number], receives[number])
        together = _together(program, classes, tasks[number]) if by_library else ()
        result[number] = Transfer(number, shapes[key], counts, number in combined, together)
    return result


def _together(program: Program, classes: WorkerClasses, task: Send | Receive) -> Iterator[Together]:
    """Yield the groups of a transfer that is a collective, by class, given any of its tasks."""
    if task.collective is not None:
        item = ITEM_BYTES[program.workers[0].buffers[task.buffer].dtype]
        for groups in classes.groups_of(task.collective, item):
            members = np.unique(classes.workers[[*groups[0].workers]])
            yield Together(task.collective, groups, tuple(members.tolist()), groups[0].elements * item)


def _shape(transfer: int, classes: WorkerClasses, sends: Posts, receives: Posts) -> Shape:
    """Return the shape of a transfer. Raises ValueError if the ends disagree."""
    sent, received = dict[int, list[int]](), dict[int, list[int]]()  # by message class: [bytes, number]
    for worker, messages in zip(classes.representatives.tolist(), sends, strict=True):
        for message in messages:
            sent.setdefault(int(classes.pairs[worker, message.peer]), [message.nbytes, 0])[1] += 1
    for worker, messages in zip(classes.representatives.tolist(), receives, strict=True):
        for message in messages:
            received.setdefault(int(classes.pairs[message.peer, worker]), [message.nbytes, 0])[1] += 1
    pairs = np.array(sorted({*sent, *received}), dtype=np.intp)
    none = [NO_MESSAGE, 0]
    going, coming = (
        np.array([posts.get(pair, none) for pair in pairs.tolist()], dtype=np.int64).reshape(len(pairs), 2)
        for posts in (sent, received)
    )
    exists = (going[:, 1] > 0) & (coming[:, 1] > 0)
    for place in np.flatnonzero(exists & (going[:, 0] != coming[:, 0]))[:1]:
        u, w = classes.ends[pairs[place]].tolist()
        raise ValueError(
            f"transfer {transfer}: expected one size of the message from worker {u} to {w} at both ends,"
            f" found {going[place, 0]} and {coming[place, 0]}"
        )
    sources, targets = classes.workers[classes.ends[pairs]].T
    return Shape(Sent(pairs, sources, targets, going[:, 0], going[:, 1], coming[:, 1]), exists, len(sends))
