"""Transfers in bulk: who sends how much to whom, which halves have started, and which messages are complete."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from simpy import Event

from planner.graph.ir import ITEM_BYTES
from planner.layout import Collective
from planner.program.tasks import Message, Program, Receive, Send

NO_MESSAGE = -1

Numbers = NDArray[np.intp]
Sizes = NDArray[np.int64]
Posts = list[tuple[Message, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """Messages of one transfer that started together: senders, receivers and sizes, side by side."""

    sources: Numbers
    targets: Numbers
    nbytes: Sizes

    def __getitem__(self, chosen: Numbers | NDArray[np.bool_]) -> Sent:
        """Return some of them."""
        return Sent(self.sources[chosen], self.targets[chosen], self.nbytes[chosen])

    def __len__(self) -> int:
        """Count the messages."""
        return len(self.sources)

    def count(self, workers: int) -> Sizes:
        """Count the messages of every worker, in and out."""
        return np.bincount(self.sources, minlength=workers) + np.bincount(self.targets, minlength=workers)


class Shape:
    """The messages of a transfer; transfers that move alike share one.

    `nbytes[u, w]` is the size of the message from worker u to worker w, and whether it `exists` at both ends; `count`
    is how many messages each worker has, in and out. What exists at one end only is waited for in vain.
    """

    def __init__(self, sent: Sizes, received: Sizes) -> None:
        self.nbytes = sent
        self.exists = (sent != NO_MESSAGE) & (received != NO_MESSAGE)
        stated = (sent != NO_MESSAGE).astype(np.int64), (received != NO_MESSAGE).astype(np.int64)
        self.count = stated[0].sum(axis=1) + stated[1].sum(axis=0)


@dataclass(frozen=True, slots=True)
class Together:
    """The messages of a group of workers as one operation of a library on a payload of so many bytes."""

    collective: Collective
    workers: tuple[int, ...]
    nbytes: int


class Transfer:
    """One transfer while it is under way; what arrives is `combined` with what is there, or copied.

    `together` are the groups, not started yet, whose messages are one operation each: it starts when all are there.
    `left` says of workers that they do not stay for it, even without overlap.
    `pending` counts each worker's messages, in and out, that are not complete. `last_start_s` and `last_latency_s` are
    of the message that each worker completed last; `waiting` are the events that workers wait for.
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
        self.starters = list(starters)
        self.left = [False] * k
        self.last_start_s = np.zeros(k)
        self.last_latency_s = np.zeros(k)
        self.waiting: dict[int, Event] = {}

    def start(self, senders: Sequence[int], receivers: Sequence[int]) -> Sent:
        """Note the halves that workers start now, and return the messages whose other half has started, too."""
        before = self.posted[:, None] & self.wanted
        self.posted[senders] = True
        self.wanted[receivers] = True
        sources, targets = np.nonzero(self.shape.exists & self.posted[:, None] & self.wanted & ~before)
        return Sent(sources, targets, self.shape.nbytes[sources, targets])

    def start_together(self, senders: Sequence[int], receivers: Sequence[int]) -> list[tuple[Together, Sent]]:
        """Note the halves that workers start now, and return the groups that these complete, with their messages."""
        self.posted[senders] = True
        self.wanted[receivers] = True
        ready = [group for group in self.together if (self.posted & self.wanted)[[*group.workers]].all()]
        self.together = [group for group in self.together if group not in ready]
        return [(group, self._among(group.workers)) for group in ready]

    def _among(self, workers: tuple[int, ...]) -> Sent:
        here = np.array(workers)
        sources, targets = (here[places] for places in np.nonzero(self.shape.exists[np.ix_(here, here)]))
        return Sent(sources, targets, self.shape.nbytes[sources, targets])

    def complete(self, sent: Sent, start_s: float, latency_s: float) -> None:
        """Note that messages are complete, and wake those who have none left."""
        self.pending -= sent.count(len(self.pending))
        for workers in (sent.sources, sent.targets):
            self.last_start_s[workers] = start_s
            self.last_latency_s[workers] = latency_s
        for worker in [worker for worker in self.waiting if not self.pending[worker]]:
            self.waiting.pop(worker).succeed()


def transfers(program: Program, by_library: bool) -> dict[int, Transfer]:
    """Return a program's transfers by number; `by_library`, collectives are done together.

    Raises ValueError where the two ends of a message disagree on its size.
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
    for worker in program.workers:
        for task in worker.tasks:
            if isinstance(task, Send | Receive):
                posts = sends if isinstance(task, Send) else receives
                posts[task.transfer][worker.worker] += task.messages
                starters[task.transfer][worker.worker] += 1
                tasks[task.transfer] = task
    shapes: dict[tuple[int, ...], Shape] = {}  # by the identities of their messages
    result = {}
    for number, counts in starters.items():
        key = (*map(id, sends[number]), *map(id, receives[number]))
        if key not in shapes:
            shapes[key] = _shape(number, sends[number], receives[number])
        together = _together(program, tasks[number]) if by_library else ()
        result[number] = Transfer(number, shapes[key], counts, number in combined, together)
    return result


def _together(program: Program, task: Send | Receive) -> Iterator[Together]:
    """Yield the groups of a transfer that is a collective, given any of its tasks."""
    if task.collective is not None:
        item = ITEM_BYTES[program.workers[0].buffers[task.buffer].dtype]
        for group in task.collective.groups:
            yield Together(task.collective, group.workers, group.elements * item)


def _shape(transfer: int, sends: Posts, receives: Posts) -> Shape:
    """Return the shape on which both ends agree."""
    sent, received = _matrix(sends), _matrix(receives).T
    differ = (sent != received) & (sent != NO_MESSAGE) & (received != NO_MESSAGE)
    if differ.any():
        u, w = np.argwhere(differ)[0].tolist()
        raise ValueError(
            f"transfer {transfer}: expected one size of the message from worker {u} to {w} at both ends,"
            f" found {sent[u, w]} and {received[u, w]}"
        )
    return Shape(sent, received)


def _matrix(posts: Posts) -> Sizes:
    sizes = np.full((len(posts),) * 2, NO_MESSAGE, dtype=np.int64)
    for worker, messages in enumerate(posts):
        for message in messages:
            sizes[worker, message.peer] = message.nbytes
    return sizes
