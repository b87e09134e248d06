"""The transport of NCCL: packed messages from GPU to GPU, also of other hosts, beside what the GPU computes.

A transfer is one group of sends and receives on a stream that all share, behind what was queued when it starts. What
is queued after its `Wait` comes behind it. As transfers start in one common order on all ranks, groups that depend on
each other are queued in one order, too, as NCCL asks. The host waits for nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from mpi4py import MPI

from executor.arena import Memory
from executor.exchange import Action
from executor.multifetch import address
from executor.transport.messages import Messages, Staged
from executor.values import ArrayModule


def nccl_of(xp: ArrayModule) -> Any:
    """Return CuPy's NCCL, which knows by `available` whether the library is there."""
    return import_module(f"{xp.__name__}.cuda.nccl")


class Nccl(Messages):
    """Messages by NCCL; made by all ranks together (collective), each with a GPU of its own."""

    def __init__(self, memory: Memory, comm: MPI.Intracomm, _crowded: bool) -> None:
        super().__init__(memory, comm.Get_size())
        self._cuda = memory.xp.cuda
        self._nccl = nccl_of(memory.xp)
        name = comm.bcast(self._nccl.get_unique_id() if comm.Get_rank() == 0 else None)
        self._communicator = self._nccl.NcclCommunicator(comm.Get_size(), name, comm.Get_rank())
        self._stream = self._cuda.Stream(non_blocking=True)

    def exchange(self, outgoing: Staged, incoming: Staged) -> tuple[Action, Action]:
        """Return the actions that queue a transfer, and that queue what comes behind it."""
        ready, done = (self._cuda.Event(disable_timing=True) for _ in range(2))

        def start() -> None:
            ready.record(self._cuda.get_current_stream())
            self._stream.wait_event(ready)
            self._exchange(outgoing, incoming)
            done.record(self._stream)

        return start, lambda: self._cuda.get_current_stream().wait_event(done)

    def _exchange(self, outgoing: Staged, incoming: Staged) -> None:
        nccl, communicator, stream = self._nccl, self._communicator, self._stream.ptr
        nccl.groupStart()
        for peer, data in outgoing:
            communicator.send(address(data), data.nbytes, nccl.NCCL_UINT8, peer, stream)
        for peer, data in incoming:
            communicator.recv(address(data), data.nbytes, nccl.NCCL_UINT8, peer, stream)
        nccl.groupEnd()
