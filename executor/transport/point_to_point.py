"""The transport of nonblocking MPI messages, packed contiguously; works across machines."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np
from mpi4py import MPI

from executor.arena import Memory
from executor.exchange import Action, arrival, copy_all, nothing, packing
from executor.transport.staging import HostBytes, staging
from executor.waiting import Requests, WaitFor
from planner.program.tasks import Fetch, Message, Reduce, Send, Wait

SMALLEST_TAG_LIMIT = 32767
"""What MPI guarantees where an implementation does not tell its largest tag."""


class PointToPoint:
    """Nonblocking MPI messages, packed contiguously; works across machines.

    The tag is the transfer's number. Tags wrap at MPI's largest: every worker starts its transfers in one common
    order, and MPI keeps the order of messages of one pair and tag, so a repeated tag cannot confuse two of them.
    """

    def __init__(self, memory: Memory, comm: MPI.Comm, wait_for: WaitFor) -> None:
        self.sent_bytes = np.zeros(comm.Get_size(), np.int64)
        self.waits: list[tuple[float, float]] = []
        self._memory = memory
        self._comm = comm
        self._wait_for = wait_for
        self._tags = 1 + int(comm.Get_attr(MPI.TAG_UB) or SMALLEST_TAG_LIMIT)
        self._staging = staging(memory)
        self._requests: dict[int, Requests] = {}
        self._arrivals: dict[int, Action] = {}

    @property
    def outside_arena(self) -> Mapping[str, int]:
        """Bytes allocated beside the arena, by what they are."""
        return self._staging.outside_arena

    def _hosted(self, buffer: int, messages: Sequence[Message]) -> list[tuple[int, HostBytes]]:
        """Return every message's peer and bytes in host memory."""
        host = self._staging.host(buffer)
        return [(m.peer, host[m.staging_offset : m.staging_offset + m.nbytes]) for m in messages]

    def send(self, task: Send) -> Action:
        """Return the action that packs every outgoing message and starts sending."""
        requests = self._requests.setdefault(task.transfer, [])
        messages = [message for message in task.messages if message.nbytes]
        if task.staging is None or not messages:
            return nothing
        xp, comm, packed, tag = self._memory.xp, self._comm, task.staging, task.transfer % self._tags
        copies = [pair for message in messages for pair in packing(self._memory, packed, task.buffer, message)]
        hosted = self._hosted(packed, messages)

        def action() -> None:
            copy_all(xp, copies)
            self._staging.download(packed)
            for peer, data in hosted:
                requests.append(comm.Isend([data, MPI.BYTE], peer, tag))
                self.sent_bytes[peer] += data.nbytes

        return action

    def receive(self, task: Fetch | Reduce) -> Action:
        """Return the action that posts the receives; unpacking or combining is left to `wait`."""
        requests = self._requests.setdefault(task.transfer, [])
        arrived = arrival(self._memory, task)
        messages = [message for message in task.messages if message.nbytes]
        if task.staging is None or not messages:
            self._arrivals[task.transfer] = arrived
            return nothing
        comm, packed, tag = self._comm, task.staging, task.transfer % self._tags
        hosted = self._hosted(packed, messages)

        def action() -> None:
            requests.extend(comm.Irecv([data, MPI.BYTE], peer, tag) for peer, data in hosted)

        def uploaded() -> None:
            self._staging.upload(packed)
            arrived()

        self._arrivals[task.transfer] = uploaded
        return action

    def wait(self, task: Wait) -> Action:
        """Return the action that completes a transfer's messages, in and out, and unpacks or combines what came."""
        requests = self._requests.pop(task.transfer, [])
        arrived = self._arrivals.pop(task.transfer, nothing)
        wait_for = self._wait_for

        def action() -> None:
            if requests:
                start = time.perf_counter()
                wait_for(requests)
                self.waits.append((start, time.perf_counter()))
                requests.clear()
            arrived()

        return action
