"""Transfers that are collectives, as operations of `torch.distributed`, with a process group for each group of workers.

All other transfers are messages. Operands that PyTorch needs contiguous are packed outside the arena, with padding for
parts of different sizes. Sums are computed in the order of the backend's algorithm, so results equal those of messages
up to rounding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType
from typing import Any

import numpy as np
import torch.distributed as dist

from executor.arena import Action, Memory, copying, in_order, local, nothing
from executor.multifetch import Pair
from executor.torch.tensors import tensor_of
from executor.torch.transport import LocalSockets, ProcessGroupMessages, others_may_be_lost
from executor.values import Array
from planner.program.tasks import Piece, Receive, Send, Wait, WorkerProgram

REDUCTIONS: Mapping[str, Any] = MappingProxyType(
    {"Sum": dist.ReduceOp.SUM, "Prod": dist.ReduceOp.PRODUCT, "Max": dist.ReduceOp.MAX, "Min": dist.ReduceOp.MIN}
)
ALL_GATHER = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
"""The names in newer and older versions of PyTorch."""

Members = tuple[int, ...]
Pieces = tuple[Piece, ...]
MakeGroup = Callable[[Members], dist.ProcessGroup]


@dataclass(frozen=True, slots=True)
class Steps:
    """An operation: the copies before it, the function that starts it, and the copies after it."""

    packing: list[Pair]
    start: Callable[[], Any]
    unpacking: list[Pair]


class Scratch:
    """Memory outside the arena that transfers use from start to end."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._free: list[Array] = []
        self._taken: dict[int, list[Array]] = {}
        self.nbytes = 0

    def take(self, transfer: int, elements: int, dtype: np.dtype[Any]) -> Array:
        """Return memory for `elements`: the smallest free block that is large enough, or a new one."""
        nbytes = max(elements, 1) * dtype.itemsize
        block = min(
            (block for block in self._free if block.nbytes >= nbytes), key=lambda block: block.nbytes, default=None
        )
        if block is None:
            self.nbytes += nbytes
            block = self._memory.xp.empty(nbytes, np.uint8)
        self._free = [other for other in self._free if other is not block]
        self._taken.setdefault(transfer, []).append(block)
        return block[: elements * dtype.itemsize].view(dtype)

    def give_back(self, transfer: int) -> None:
        """Make the memory of a transfer available to later ones."""
        self._free += self._taken.pop(transfer, [])


class CollectiveMessages(ProcessGroupMessages):
    """Messages of a process group, with operations for transfers that are collectives.

    `among` returns the process group of some ranks; only these ranks create it. All create their groups in the same
    order.
    """

    def __init__(self, memory: Memory, group: dist.ProcessGroup, sockets: LocalSockets, among: MakeGroup) -> None:
        super().__init__(memory, group, sockets)
        groups = {members for members in _groups(memory.program) if memory.worker in members}
        self._groups = {members: among(members) for members in sorted(groups)}
        self._scratch = Scratch(memory)
        self._sends: dict[int, Send] = {}

    @property
    def outside_arena(self) -> Mapping[str, int]:
        """Bytes allocated outside the arena, by purpose."""
        scratch = {"operands of collectives": self._scratch.nbytes} if self._scratch.nbytes else {}
        return {**super().outside_arena, **scratch}

    def send(self, task: Send) -> Action:
        """Return the action that packs messages. For an operation, `receive` does everything."""
        self._sends[task.transfer] = task
        return super().send(task) if task.collective is None or not task.messages else nothing

    def receive(self, task: Receive) -> Action:
        """Return the action that starts a transfer."""
        groups = () if task.collective is None else task.collective.groups
        members = next((group.workers for group in groups if self._memory.worker in group.workers), None)
        if task.collective is None or members is None:
            return super().receive(task)
        send = self._sends.pop(task.transfer)
        operation = Operation(self._memory, self._scratch, (send, task), members, self._groups[members])
        return self._started(task, send, operation.steps(task.collective.kind))

    def wait(self, task: Wait) -> Action:
        """Return the action that ends a transfer."""
        self._scratch.give_back(task.transfer)
        return super().wait(task)

    def _started(self, task: Receive, send: Send, steps: Steps) -> Action:
        works: list[dist.Work] = []
        sent = [(message.peer, message.nbytes) for message in send.messages]

        def start() -> None:
            with others_may_be_lost():
                works.append(steps.start())
            for peer, nbytes in sent:
                self.sent_bytes[peer] += nbytes

        def end() -> None:
            begun = time.perf_counter()
            with others_may_be_lost():
                works.pop().wait()
            self.waits.append((begun, time.perf_counter()))

        xp = self._memory.xp
        self._arrivals[task.transfer] = in_order([end, copying(xp, steps.unpacking)])
        return in_order([copying(xp, steps.packing), start])


class Operation:
    """A worker's part of a transfer as an operation: it packs into scratch memory, starts, and unpacks."""

    def __init__(
        self, memory: Memory, scratch: Scratch, halves: tuple[Send, Receive], members: Members, group: dist.ProcessGroup
    ) -> None:
        send, receive = halves
        self._memory, self._scratch, self._group, self._members = memory, scratch, group, members
        self._source, self._target, self._transfer = send.buffer, receive.buffer, receive.transfer
        self._dtype = memory.views[send.buffer].dtype
        self._sent = {message.peer: message.pieces for message in send.messages}
        self._received = {message.peer: message.pieces for message in receive.messages}
        self._own: Pieces = tuple(piece for copy in receive.local for piece in copy.pieces)
        self._copied = local(memory, receive.buffer, receive.local)
        self._reduction = REDUCTIONS[receive.reducer] if receive.reducer is not None else None

    def steps(self, kind: str) -> Steps:
        """Return the steps for a kind of collective."""
        kinds: Mapping[str, Callable[[], Steps]] = {
            "all-gather": self._all_gather,
            "reduce-scatter": self._reduce_scatter,
            "all-to-all": self._all_to_all,
            "all-reduce": self._all_reduce,
            "broadcast": self._broadcast,
            "reduce": self._reduce,
        }
        return kinds[kind]()

    def _all_gather(self) -> Steps:
        """All-gather. Parts are padded to the longest."""
        length = max(map(_elements, (self._own, *self._received.values())))
        own, every = self._take(length), self._take(length * len(self._members))
        unpacking = [
            pair
            for place, member in enumerate(self._members)
            for pair in self._unpacked(self._received.get(member, ()), every[place * length :])
        ]
        return Steps(
            self._packed(self._own, own),
            lambda: ALL_GATHER(tensor_of(every), tensor_of(own), self._group, async_op=True),
            [*unpacking, *self._copied],
        )

    def _reduce_scatter(self) -> Steps:
        """Reduce-scatter. Shares are padded to the longest."""
        pieces_of = {self._memory.worker: self._own, **self._sent}
        shares = [pieces_of.get(member, ()) for member in self._members]
        length = max(map(_elements, shares))
        every, own = self._take(length * len(shares)), self._take(length)
        packing = [
            pair for place, pieces in enumerate(shares) for pair in self._packed(pieces, every[place * length :])
        ]
        return Steps(
            packing,
            lambda: REDUCE_SCATTER(tensor_of(own), tensor_of(every), self._reduction, self._group, async_op=True),
            self._unpacked(self._own, own),
        )

    def _all_to_all(self) -> Steps:
        outgoing, incoming = (
            [pieces.get(member, ()) for member in self._members] for pieces in (self._sent, self._received)
        )
        sizes, wanted = list(map(_elements, outgoing)), list(map(_elements, incoming))
        sent, received = self._take(sum(sizes)), self._take(sum(wanted))
        starts, ends = (list(accumulate(counts, initial=0)) for counts in (sizes, wanted))
        packing = [
            pair for at, pieces in zip(starts, outgoing, strict=False) for pair in self._packed(pieces, sent[at:])
        ]
        unpacking = [
            pair for at, pieces in zip(ends, incoming, strict=False) for pair in self._unpacked(pieces, received[at:])
        ]
        return Steps(
            packing,
            lambda: dist.all_to_all_single(
                tensor_of(received), tensor_of(sent), wanted, sizes, self._group, async_op=True
            ),
            [*unpacking, *self._copied],
        )

    def _all_reduce(self) -> Steps:
        every = self._take(_elements(self._own))
        return Steps(
            self._packed(self._own, every),
            lambda: dist.all_reduce(tensor_of(every), self._reduction, self._group, async_op=True),
            self._unpacked(self._own, every),
        )

    def _broadcast(self) -> Steps:
        root = self._memory.worker if self._sent else next(iter(self._received))
        pieces = next(iter(self._sent.values()), ())
        arriving = self._received.get(root, ())
        every = self._take(_elements(pieces or arriving))
        return Steps(
            self._packed(pieces, every),
            lambda: dist.broadcast(tensor_of(every), root, self._group, async_op=True),
            [*self._unpacked(arriving, every), *self._copied],
        )

    def _reduce(self) -> Steps:
        root = self._memory.worker if self._received else next(iter(self._sent))
        every = self._take(_elements(self._sent.get(root, self._own)))
        return Steps(
            self._packed(self._sent.get(root, self._own), every),
            lambda: dist.reduce(tensor_of(every), root, self._reduction, self._group, async_op=True),
            self._unpacked(self._own, every) if root == self._memory.worker else [],
        )

    def _take(self, elements: int) -> Array:
        return self._scratch.take(self._transfer, elements, self._dtype)

    def _packed(self, pieces: Pieces, room: Array) -> list[Pair]:
        """Return the copies of pieces of the source, in sequence, into scratch memory."""
        parts = [self._memory.part(self._source, piece.source_slices) for piece in pieces]
        return list(zip(_laid_out(parts, room), parts, strict=True))

    def _unpacked(self, pieces: Pieces, room: Array) -> list[Pair]:
        """Return the copies of pieces from scratch memory into the target."""
        parts = [self._memory.part(self._target, piece.target_slices) for piece in pieces]
        return list(zip(parts, _laid_out(parts, room), strict=True))


def _groups(program: WorkerProgram) -> Iterator[Members]:
    """Yield the groups of all workers in every operation, in the common order."""
    for task in program.tasks:
        if isinstance(task, Receive) and task.collective is not None:
            yield from (group.workers for group in task.collective.groups)


def _elements(pieces: Pieces) -> int:
    return sum(piece.elements for piece in pieces)


def _laid_out(parts: Sequence[Array], room: Array) -> list[Array]:
    """Return consecutive views of memory for arrays of these shapes."""
    ends = accumulate((part.size for part in parts), initial=0)
    return [room[at : at + part.size].reshape(part.shape) for at, part in zip(ends, parts, strict=False)]
