"""What a worker's program would ask an allocator for under the rules that Tofu's Section 6 tells of.

In the program, a common order tells when a buffer is last used (`results.lifetimes`). Tofu tells what a framework
does without that, and how it fetches without a kernel of its own:

- `Reuse.ORDER`: a buffer is free after its last user in the common order.
- `Reuse.OPERATORS`: ... before the first task that depends on all its users; a task that ends a transfer depends on the
  one that sends the worker's own part, so that operators depend on each other as in the graph before it was split.
- `Reuse.DATA`: ... that depends on them by data of this worker alone.

What no later task depends on is free at the end only.

- `Fetching.STAGED`: the program as it is: messages are packed into one buffer and received into one.
- `Fetching.FUSED`: workers read each other's memory and assemble pieces in place, so that there is no staging.
- `Fetching.SPLIT`: every message, and every piece of the worker's own, is a buffer before pieces are put together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from operator import and_

import numpy as np

from planner.graph.ir import ITEM_BYTES
from planner.program.tasks import Receive, Send, Storage, Wait, WorkerProgram
from results.lifetimes import holders, uses

STAGING = "staging"


class Reuse(Enum):
    """When the bytes of a buffer may be used again."""

    ORDER = "order"
    OPERATORS = "operators"
    DATA = "data"


class Fetching(Enum):
    """Through which buffers data comes from other workers."""

    STAGED = "staged"
    FUSED = "fused"
    SPLIT = "split"


@dataclass(frozen=True, slots=True)
class _Transfer:
    """What a worker sends and receives in a transfer, each with its position, and the position at which it ended.

    Of a plan's transfers a worker has both; programs of other systems send and receive in transfers of their own.
    """

    sent: tuple[int, Send] | None
    received: tuple[int, Receive] | None
    ended: int


@dataclass(frozen=True, slots=True)
class _Request:
    """A request in the common order, and the positions of its users."""

    storage: Storage
    users: frozenset[int]


def requests(
    worker: WorkerProgram, reuse: Reuse = Reuse.ORDER, fetching: Fetching = Fetching.STAGED
) -> tuple[Storage, ...]:
    """Return what a worker asks for; buffers of which one overwrites the other in place are one request."""
    held, transfers = holders(worker), tuple(_transfers(worker))
    wanted = list(_of_buffers(worker, held, transfers, staged=fetching is Fetching.STAGED))
    if fetching is Fetching.SPLIT:
        wanted += [piece for transfer in transfers for piece in _pieces(worker, transfer)]
    if reuse is not Reuse.ORDER:
        after = _descendants(worker, held, transfers, reuse)
        end = len(worker.tasks) - 1
        return tuple(_until_reusable(request, after, end) for request in wanted)
    return tuple(request.storage for request in wanted)


def peak_live_bytes(wanted: Sequence[Storage]) -> int:
    """Return the most bytes that are held at one position."""
    change = np.zeros(max((storage.last for storage in wanted), default=0) + 2, dtype=np.int64)
    for storage in wanted:
        change[storage.first] += storage.nbytes
        change[storage.last + 1] -= storage.nbytes
    return int(change.cumsum().max())


def _transfers(worker: WorkerProgram) -> Iterator[_Transfer]:
    sent: dict[int, tuple[int, Send]] = {}
    received: dict[int, tuple[int, Receive]] = {}
    for position, task in enumerate(worker.tasks):
        match task:
            case Send():
                sent[task.transfer] = position, task
            case Receive():
                received[task.transfer] = position, task
            case Wait():
                yield _Transfer(sent.get(task.transfer), received.get(task.transfer), position)


def _of_buffers(
    worker: WorkerProgram, held: Sequence[int], transfers: Sequence[_Transfer], *, staged: bool
) -> Iterator[_Request]:
    """Yield one request per place that the program's buffers have."""
    users = defaultdict(set)
    for position, (reads, writes) in enumerate(uses(worker)):
        for number in (*reads, *writes):
            users[held[number]].add(position)
    for transfer in transfers:
        if transfer.sent is not None and (staging := transfer.sent[1].staging) is not None:
            users[held[staging]].add(transfer.ended)
    groups = defaultdict(list)
    for number, buffer in enumerate(worker.buffers):
        if buffer.nbytes and (staged or buffer.kind != STAGING):
            groups[held[number]].append(buffer)
    for number, group in groups.items():
        storage = Storage(max(b.nbytes for b in group), min(b.first for b in group), max(b.last for b in group))
        yield _Request(storage, frozenset(users[number]))


def _pieces(worker: WorkerProgram, transfer: _Transfer) -> Iterator[_Request]:
    """Yield the buffers of a transfer whose messages and own pieces have one each."""
    parts: list[tuple[int, int]] = []
    if transfer.sent is not None:
        at, send = transfer.sent
        parts += [(message.nbytes, at) for message in send.messages]
    if transfer.received is not None:
        at, receive = transfer.received
        item_bytes = ITEM_BYTES[worker.buffers[receive.buffer].dtype]
        own = [sum(piece.elements for piece in copy.pieces) * item_bytes for copy in receive.local]
        parts += [(message.nbytes, at) for message in receive.messages]
        parts += [(nbytes, transfer.ended) for nbytes in own]
    for nbytes, first in parts:
        yield _Request(Storage(nbytes, first, transfer.ended), frozenset({first, transfer.ended}))


def _until_reusable(request: _Request, after: Sequence[int], end: int) -> Storage:
    """Keep a request until before the first task that comes after all its users."""
    common = reduce(and_, (after[position] for position in request.users)) if request.users else 0
    free = (common & -common).bit_length() - 1 if common else end + 1
    return Storage(request.storage.nbytes, request.storage.first, max(request.storage.last, free - 1))


def _descendants(worker: WorkerProgram, held: Sequence[int], transfers: Sequence[_Transfer], reuse: Reuse) -> list[int]:
    """Return, per task, the tasks that depend on it, as bits by position.

    What reads depends on what wrote before it, and what writes on what read or wrote before it.
    """
    following: list[set[int]] = [set() for _ in worker.tasks]
    for transfer in transfers:
        if transfer.received is not None:
            following[transfer.received[0]].add(transfer.ended)
        if transfer.sent is not None and reuse is Reuse.OPERATORS:
            following[transfer.sent[0]].add(transfer.ended)
    written: dict[int, int] = {}
    read: defaultdict[int, set[int]] = defaultdict(set)
    for position, (reads, writes) in enumerate(uses(worker)):
        for number in (held[n] for n in reads):
            following[written.get(number, position)].add(position)
            read[number].add(position)
        for number in (held[n] for n in writes):
            for earlier in {written.get(number, position), *read.pop(number, ())}:
                following[earlier].add(position)
            written[number] = position
    after = [0] * len(worker.tasks)
    for position in reversed(range(len(worker.tasks))):
        for later in following[position] - {position}:
            after[position] |= after[later] | 1 << later
    return after
