"""The transport of nonblocking MPI messages, packed contiguously; works across machines."""

from __future__ import annotations

import time
from collections.abc import Mapping

from mpi4py import MPI

from executor.arena import Memory
from executor.exchange import Action, copying, in_order, nothing, packing
from executor.shared_memory import neighbours
from executor.transport.messages import Messages
from executor.transport.staging import HostBytes, staging
from executor.waiting import Requests, wait_for
from planner.program.tasks import Compute, Message, Receive, Send, Wait

CHUNK_BYTES = 1 << 18
"""What a message to another host is cut into: whole ones wait there until their receiver looks, small ones are on their
way meanwhile. Within a host cutting only costs."""

SMALLEST_TAG_LIMIT = 32767
"""What MPI guarantees where an implementation does not tell its largest tag."""


class PointToPoint(Messages):
    """Nonblocking MPI messages, packed contiguously; works across machines. Made by all ranks together (collective).

    Large messages move only while both ends are within MPI, which is why it is looked in on between kernels.

    The tag is the transfer's number. Tags wrap at MPI's largest: every worker starts its transfers in one common
    order, and MPI keeps the order of messages of one pair and tag, so a repeated tag cannot confuse two of them.
    """

    def __init__(self, memory: Memory, comm: MPI.Intracomm, crowded: bool) -> None:
        super().__init__(memory, comm.Get_size())
        self._comm = comm
        self._wait_for = wait_for(crowded)
        self._tags = 1 + int(comm.Get_attr(MPI.TAG_UB) or SMALLEST_TAG_LIMIT)
        self._staging = staging(memory)
        self._here = frozenset(neighbours(comm))
        self._moving = 0  # requests that are not complete, or not known to be
        self._requests: dict[int, Requests] = {}

    @property
    def outside_arena(self) -> Mapping[str, int]:
        """Bytes allocated beside the arena, by what they are."""
        return self._staging.outside_arena

    def _hosted(self, buffer: int, messages: list[Message]) -> list[tuple[int, HostBytes]]:
        """Return every message's peer and bytes in host memory, in pieces as they are sent."""
        host, parts = self._staging.host(buffer), []
        for message in messages:
            end = message.staging_offset + message.nbytes
            step = message.nbytes if message.peer in self._here else CHUNK_BYTES
            starts = range(message.staging_offset, end, step)
            parts += [(message.peer, host[start : min(start + step, end)]) for start in starts]
        return parts

    def send(self, task: Send) -> Action:
        """Return the action that packs every outgoing message and starts sending."""
        requests = self._requests.setdefault(task.transfer, [])
        messages = [message for message in task.messages if message.nbytes]
        if task.staging is None or not messages:
            return nothing
        comm, packed, tag = self._comm, task.staging, task.transfer % self._tags
        pairs = [pair for message in messages for pair in packing(self._memory, packed, task.buffer, message)]
        pack = copying(self._memory.xp, pairs)
        hosted = self._hosted(packed, messages)

        def action() -> None:
            pack()
            self._staging.download(packed)
            self._moving += len(hosted)
            for peer, data in hosted:
                requests.append(comm.Isend([data, MPI.BYTE], peer, tag))
                self.sent_bytes[peer] += data.nbytes

        return action

    def post(self, task: Receive, arrived: Action) -> Action:
        """Return the action that posts the receives; `arrived` is done by `wait` once all is there."""
        requests = self._requests.setdefault(task.transfer, [])
        messages = [message for message in task.messages if message.nbytes]
        self._arrivals[task.transfer] = arrived
        if task.staging is None or not messages:
            return nothing
        comm, packed, tag = self._comm, task.staging, task.transfer % self._tags
        hosted = self._hosted(packed, messages)
        self._arrivals[task.transfer] = in_order([lambda: self._staging.upload(packed), arrived])

        def action() -> None:
            self._staging.await_uploads(packed)
            self._moving += len(hosted)
            requests.extend(comm.Irecv([data, MPI.BYTE], peer, tag) for peer, data in hosted)

        return action

    def wait(self, task: Wait) -> Action:
        """Return the action that completes a transfer's messages, in and out, and unpacks or combines what came."""
        requests = self._requests.pop(task.transfer, [])
        arrived = super().wait(task)
        wait_for = self._wait_for

        def action() -> None:
            if requests:
                start = time.perf_counter()
                wait_for(requests)
                self._moving -= len(requests)
                self.waits.append((start, time.perf_counter()))
                requests.clear()
            arrived()

        return action

    def ordered(self, position: int, action: Action) -> Action:
        """Return the action, before which messages move on if it is a kernel's; they bring their own order."""
        if not isinstance(self._memory.program.tasks[position], Compute):
            return action

        def looking() -> None:
            if self._moving:
                self._comm.Iprobe()
            action()

        return looking
