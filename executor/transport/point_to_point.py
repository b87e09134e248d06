"""The transport of nonblocking MPI messages, packed contiguously; works across machines.

Messages lie where MPI reads and writes them: in the arena itself, or in host memory beside a GPU's arena.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from executor.arena import Memory
from executor.exchange import Action
from executor.multifetch import address
from executor.shared_memory import neighbours
from executor.transport.messages import Messages, Staged
from executor.values import Array
from executor.waiting import Requests, wait_for
from planner.layout.split import normalize
from planner.program.tasks import Compute

HostBytes = NDArray[np.uint8]
_Place = tuple[int, int]

CHUNK_BYTES = 1 << 18
"""What a message to another host is cut into: whole ones wait there until their receiver looks, small ones are on their
way meanwhile. Within a host cutting only costs."""


TAGS = 1 << 15
"""How many tags every MPI has."""


class Staging:
    """Host bytes of messages, which lie in staging buffers of an arena that is host memory: nothing is to copy."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.outside_arena: dict[str, int] = {}

    def host(self, data: Array) -> HostBytes:
        """Return a message's bytes that MPI may read and write."""
        raw: HostBytes = data
        return raw

    def download(self, data: Array) -> None:
        """Bring a message to its host bytes."""

    def upload(self, data: Array) -> None:
        """Bring its host bytes to a message; they must not be written before `await_uploads`."""

    def await_uploads(self, data: Array) -> None:
        """Wait until no upload reads a message's host bytes any more."""


class Mirrored(Staging):
    """Staging of a device arena, mirrored in page-locked host memory.

    The mirror holds just the parts of the arena that staging buffers ever occupy, laid one after the other, so it
    reuses memory exactly where the arena does. An upload runs behind what the device still has to do, long after the
    call: an event says when the host bytes are free again.
    """

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self._runs = normalize((b.offset, b.offset + b.nbytes) for b in memory.buffers if b.kind == "staging")
        self._uploads: dict[_Place, Any] = {}
        self._overlapping: dict[_Place, list[_Place]] = {}

    @cached_property
    def _mirror(self) -> HostBytes:
        """The mirror, allocated when it is first asked for."""
        nbytes = sum(stop - start for start, stop in self._runs)
        block: Any = self._memory.xp.cuda.alloc_pinned_memory(max(1, nbytes))
        self.outside_arena["host copy of staging"] = nbytes
        return np.frombuffer(block, np.uint8, nbytes)

    def _place(self, data: Array) -> _Place:
        """Return from where to where in the arena a message lies."""
        start = address(data) - address(self._memory.arena.bytes)
        return start, start + data.nbytes

    def host(self, data: Array) -> HostBytes:
        """Return a message's bytes in the mirror."""
        first, _ = self._place(data)
        start = sum(min(stop, first) - start for start, stop in self._runs if start < first)
        return self._mirror[start : start + data.nbytes]

    def download(self, data: Array) -> None:
        """Copy from the device; waits for the kernels that packed the messages."""
        data.get(out=self.host(data))

    def upload(self, data: Array) -> None:
        """Start copying to the device."""
        data.set(self.host(data))
        place = self._place(data)
        if place not in self._uploads:
            self._uploads[place] = self._memory.xp.cuda.Event(disable_timing=True)
            self._overlapping.clear()
        self._uploads[place].record()

    def await_uploads(self, data: Array) -> None:
        """Wait until no upload reads the host bytes any more, be it of this message or of one that shares its bytes."""
        start, stop = place = self._place(data)
        if place not in self._overlapping:
            self._overlapping[place] = [(a, b) for a, b in self._uploads if a < stop and start < b]
        for other in self._overlapping[place]:
            self._uploads[other].synchronize()


def staging(memory: Memory) -> Staging:
    """Return the staging that fits the arena's array module."""
    return Staging(memory) if memory.xp is np else Mirrored(memory)


class PointToPoint(Messages):
    """Nonblocking MPI messages, packed contiguously; works across machines. Made by all ranks together (collective).

    Large messages move only while both ends are within MPI, which is why it is looked in on between kernels. Tags are
    the numbers of transfers; of those of equal tags both ends keep one order.
    """

    def __init__(self, memory: Memory, comm: MPI.Intracomm, crowded: bool) -> None:
        super().__init__(memory, comm.Get_size())
        self._comm = comm
        self._wait_for = wait_for(crowded)
        self._staging = staging(memory)
        self._here = frozenset(neighbours(comm))
        self._moving = 0  # requests that are not complete, or not known to be

    @property
    def outside_arena(self) -> Mapping[str, int]:
        """Bytes allocated beside the arena, by what they are."""
        return self._staging.outside_arena

    def exchange(self, outgoing: Staged, incoming: Staged) -> tuple[Action, Action]:
        """Return the actions that start sending and receiving a transfer's messages, and that complete both."""
        comm, sent, received = self._comm, self._hosted(outgoing), self._hosted(incoming)
        requests: Requests = []
        tag = self.transfer % TAGS

        def start() -> None:
            for _, data in outgoing:
                self._staging.download(data)
            for _, data in incoming:
                self._staging.await_uploads(data)
            requests.extend(comm.Isend([data, MPI.BYTE], peer, tag) for peer, data in sent)
            requests.extend(comm.Irecv([data, MPI.BYTE], peer, tag) for peer, data in received)
            self._moving += len(requests)

        def end() -> None:
            begun = time.perf_counter()
            self._wait_for(requests)
            self._moving -= len(requests)
            self.waits.append((begun, time.perf_counter()))
            requests.clear()
            for _, data in incoming:
                self._staging.upload(data)

        return start, end

    def _hosted(self, messages: Staged) -> list[tuple[int, HostBytes]]:
        """Return every message's peer and bytes in host memory, in pieces as they are sent."""
        parts = []
        for peer, data in messages:
            host = self._staging.host(data)
            step = host.nbytes if peer in self._here else CHUNK_BYTES
            parts += [(peer, host[start : start + step]) for start in range(0, host.nbytes, step)]
        return parts

    def ordered(self, position: int, action: Action) -> Action:
        """Return the action, before which messages move on if it is a kernel's; they bring their own order."""
        if not isinstance(self._memory.program.tasks[position], Compute):
            return action

        def looking() -> None:
            if self._moving:
                self._comm.Iprobe()
            action()

        return looking
