"""The NCCL transport: packed messages between GPUs, also of different hosts, concurrent with the GPU's computation.

A transfer is one group of sends and receives on a stream shared by all transfers, after the work queued when it starts.
Work queued after its `Wait` runs after it. All ranks start transfers in one common order, so dependent groups are
queued in one order too, as NCCL requires. The host never waits.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

import numpy as np
from mpi4py import MPI

from executor.arena import Memory
from executor.backend import advice, chain
from executor.exchange import Action
from executor.multifetch import address
from executor.shared_memory import first_reason, neighbours
from executor.transport import shared_gpu
from executor.transport.messages import Messages, Staged
from executor.values import ArrayModule


def nccl_of(xp: ArrayModule) -> Any:
    """Return CuPy's NCCL module. Its `available` says whether the library is installed."""
    with warnings.catch_warnings(action="ignore"):  # if it is not installed
        return import_module(f"{xp.__name__}.cuda.nccl")


class Link:
    """NCCL between all ranks, each with its own GPU, on a separate stream (collective).

    Raises RuntimeError with NCCL's error.
    """

    def __init__(self, xp: ArrayModule, comm: MPI.Intracomm) -> None:
        self._nccl, rank = nccl_of(xp), comm.Get_rank()
        name, failure = comm.bcast(_unique_id(self._nccl) if rank == 0 else None)
        if failure is not None:
            raise RuntimeError(failure)
        self._communicator = self._nccl.NcclCommunicator(comm.Get_size(), name, rank)
        self.stream = xp.cuda.Stream(non_blocking=True)

    def exchange(self, outgoing: Staged, incoming: Staged) -> None:
        """Queue messages as one group."""
        nccl, communicator, stream = self._nccl, self._communicator, self.stream.ptr
        nccl.groupStart()
        for peer, data in outgoing:
            communicator.send(address(data), data.nbytes, nccl.NCCL_UINT8, peer, stream)
        for peer, data in incoming:
            communicator.recv(address(data), data.nbytes, nccl.NCCL_UINT8, peer, stream)
        nccl.groupEnd()


def _unique_id(nccl: Any) -> tuple[Any, str | None]:
    """Return the name of a new NCCL communicator, or NCCL's error."""
    try:
        return nccl.get_unique_id(), None
    except RuntimeError as error:
        return None, str(error)


def obstacle(xp: ArrayModule, comm: MPI.Intracomm) -> str | None:
    """Return why some rank cannot use NCCL; None if each could send a byte to the next (collective)."""
    if xp is np:
        return f"expected arrays of CuPy, found {xp.__name__}"
    absent = None if nccl_of(xp).available else f"CuPy finds no NCCL: {advice(xp)}"
    gpus = comm.allgather((neighbours(comm)[0], xp.cuda.Device().pci_bus_id))
    return first_reason(comm, absent) or shared_gpu(gpus) or _failure(xp, comm)


def _failure(xp: ArrayModule, comm: MPI.Intracomm) -> str | None:
    rank, size, links = comm.Get_rank(), comm.Get_size(), list[Link]()
    first, second = xp.empty((2, 1), np.uint8)

    def start() -> None:
        links.append(Link(xp, comm))

    def pass_on() -> None:
        links[0].exchange([((rank + 1) % size, first)], [((rank - 1) % size, second)])
        links[0].stream.synchronize()

    for attempt in (start, pass_on):
        failure = None
        try:
            attempt()
        except RuntimeError as error:
            failure = f"NCCL fails on rank {rank} ({error}): NCCL_DEBUG=INFO says more"
        if (reason := first_reason(comm, failure)) is not None:
            return reason
    return None


class Nccl(Messages):
    """Messages by NCCL, created by all ranks together (collective), each with its own GPU."""

    def __init__(self, memory: Memory, comm: MPI.Intracomm, _crowded: bool) -> None:
        super().__init__(memory, comm.Get_size())
        self._cuda = memory.xp.cuda
        self._link = Link(memory.xp, comm)

    def exchange(self, outgoing: Staged, incoming: Staged) -> tuple[Action, Action]:
        """Return the actions that queue a transfer, and that make later work wait for it."""
        ready, done = (self._cuda.Event(disable_timing=True) for _ in range(2))

        def start() -> None:
            chain(ready, self._cuda.get_current_stream(), self._link.stream)
            self._link.exchange(outgoing, incoming)
            done.record(self._link.stream)

        return start, lambda: self._cuda.get_current_stream().wait_event(done)
