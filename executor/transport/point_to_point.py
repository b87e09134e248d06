"""The transport of nonblocking MPI messages, packed contiguously, and how ranks wait. It works across machines."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from mpi4py import MPI

from executor.arena import Action, Memory
from executor.shared_memory import neighbours
from executor.transport.messages import HostBytes, Messages, Staged, staging
from planner.program.tasks import Compute

Requests = list[MPI.Request]
WaitFor = Callable[[Requests], None]

FIRST_SLEEP_S = 20e-6
LONGEST_SLEEP_S = 0.5e-3
GROWTH = 1.1  # slow growth: large messages only progress while their ranks poll


def spin(requests: Requests) -> None:
    """Wait with the lowest latency, keeping the core busy."""
    MPI.Request.Waitall(requests)


def doze(requests: Requests) -> None:
    """Wait with growing sleeps between polls, so that ranks with work get the cores."""
    pause = FIRST_SLEEP_S
    while not MPI.Request.Testall(requests):
        time.sleep(pause)
        pause = min(LONGEST_SLEEP_S, pause * GROWTH)


def host_place(comm: MPI.Comm) -> tuple[int, int, int]:
    """Return this rank's number among its host's ranks, the number of these, and the cores they may use."""
    host = comm.Split_type(MPI.COMM_TYPE_SHARED)
    cores: set[int] = set().union(*host.allgather(os.sched_getaffinity(0)))
    place = host.Get_rank(), host.Get_size(), len(cores)
    host.Free()
    return place


def wait_for(crowded: bool) -> WaitFor:
    """Return how to wait, depending on whether ranks outnumber cores."""
    return doze if crowded else spin


CHUNK_BYTES = 1 << 18
"""Size of the pieces of a message to another host. Whole messages only move when their receiver polls; small ones move
meanwhile. Within a host, splitting only costs time."""


TAGS = 1 << 15
"""Number of tags that every MPI has."""


class PointToPoint(Messages):
    """Nonblocking MPI messages, packed contiguously, created by all ranks together (collective). Works across machines.

    Large messages only progress while both ends are within MPI, so it is polled between kernels. Tags are the numbers
    of transfers; messages with equal tags keep their order at both ends.
    """

    def __init__(self, memory: Memory, comm: MPI.Intracomm, crowded: bool) -> None:
        super().__init__(memory, comm.Get_size())
        self._comm = comm
        self._wait_for = wait_for(crowded)
        self._staging = staging(memory)
        self._here = frozenset(neighbours(comm))
        self._moving = 0  # requests not known to be complete

    @property
    def outside_arena(self) -> Mapping[str, int]:
        """Bytes allocated outside the arena, by purpose."""
        return self._staging.outside_arena

    def exchange(self, outgoing: Staged, incoming: Staged) -> tuple[Action, Action]:
        """Return the actions that start sending and receiving a transfer's messages, and that complete both."""
        comm, sent, received = self._comm, self._hosted(outgoing), self._hosted(incoming)
        requests: Requests = []
        tag = self.transfer % TAGS

        def start() -> None:
            self._staging.start(outgoing, incoming)
            requests.extend(comm.Isend([data, MPI.BYTE], peer, tag) for peer, data in sent)
            requests.extend(comm.Irecv([data, MPI.BYTE], peer, tag) for peer, data in received)
            self._moving += len(requests)

        def end() -> None:
            begun = time.perf_counter()
            self._wait_for(requests)
            self._moving -= len(requests)
            self.waits.append((begun, time.perf_counter()))
            requests.clear()
            self._staging.end(incoming)

        return start, end

    def _hosted(self, messages: Staged) -> list[tuple[int, HostBytes]]:
        """Return every message's peer and bytes in host memory, in the pieces in which they are sent."""
        parts = []
        for peer, data in messages:
            host = self._staging.host(data)
            step = host.nbytes if peer in self._here else CHUNK_BYTES
            parts += [(peer, host[start : start + step]) for start in range(0, host.nbytes, step)]
        return parts

    def ordered(self, position: int, action: Action) -> Action:
        """Return the action, with a poll before kernels to make messages progress."""
        if not isinstance(self._memory.program.tasks[position], Compute):
            return action

        def looking() -> None:
            if self._moving:
                self._comm.Iprobe()
            action()

        return looking
