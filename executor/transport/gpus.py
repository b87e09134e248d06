"""The transports between GPUs: NCCL, and memory that ranks of one host open.

NCCL carries packed messages, also between hosts, concurrent with the GPU's computation. A transfer is one group of
sends and receives on a stream shared by all transfers, after the work queued when it starts. Work queued after its
`Wait` runs after it. All ranks start transfers in one common order, so dependent groups are queued in one order too, as
NCCL requires. The host never waits.

Within a host (`ipc`) every rank opens the others' arenas and reads from them in one launch. This is `Shared` with two
differences. Arenas are device allocations, whose handles ranks exchange once. Work that a rank has queued is not done
when its counter says so: others' queues wait for an event that is recorded before the counter is raised. No rank waits
for a device before the end of an iteration.
"""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from mpi4py import MPI

from executor.arena import Action, Arena, Memory
from executor.backend import advice, chain
from executor.multifetch import address
from executor.shared_memory import counters_obstacle, first_reason, neighbours
from executor.transport import shared_gpu
from executor.transport.messages import Messages, Staged
from executor.transport.point_to_point import PointToPoint
from executor.transport.shared import Fence, Shared
from executor.values import Array, ArrayModule


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


def nccl_obstacle(xp: ArrayModule, comm: MPI.Intracomm) -> str | None:
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


_retired: list[Any] = []
"""Exported allocations that this rank no longer needs but others may still have open."""


def ipc_arena(xp: ArrayModule, nbytes: int, comm: MPI.Intracomm) -> Arena:
    """Create an arena on this rank's device, and open those of this host's ranks (collective).

    A rank may only free memory that no other rank has open. Allocations of earlier arenas are freed here, after all
    ranks have closed them.
    """
    gc.collect()
    comm.Barrier()
    _retired.clear()
    block = xp.cuda.Memory(max(1, nbytes))
    memory = xp.ndarray((nbytes,), np.uint8, xp.cuda.MemoryPointer(block, 0))
    shared = comm.allgather((xp.cuda.runtime.ipcGetMemHandle(block.ptr), nbytes))
    arena = Arena(xp, nbytes, memory, {rank: _open(xp, *shared[rank]) for rank in _others(comm)})
    weakref.finalize(arena, _retired.append, block).atexit = False
    return arena


def ipc(memory: Memory, comm: MPI.Intracomm, crowded: bool) -> Shared:
    """Return the transport of a worker whose arena `ipc_arena` made (collective).

    Between hosts it uses NCCL, if available.
    """
    others = _others(comm)
    several_hosts = comm.allreduce(len(others) + 1, MPI.MIN) < comm.Get_size()
    far = Nccl if several_hosts and nccl_obstacle(memory.xp, comm) is None else PointToPoint
    return Shared(memory, comm, crowded, Events(memory.xp, comm, others), far)


def ipc_obstacle(xp: ArrayModule, comm: MPI.Intracomm) -> str | None:
    """Return why some rank cannot open another's memory and events on its host; None if all can (collective)."""
    if xp is np:
        return f"expected arrays of CuPy, found {xp.__name__}"
    if reason := counters_obstacle(comm):
        return reason
    runtime, me, refused = xp.cuda.runtime, comm.Get_rank(), None
    try:
        block, event = xp.cuda.Memory(1), xp.cuda.Event(disable_timing=True, interprocess=True)
        handles = runtime.ipcGetMemHandle(block.ptr), runtime.ipcGetEventHandle(event.ptr)
    except RuntimeError as error:  # CUDA's errors
        handles, refused = None, f"rank {me} cannot share its GPU's memory: {error}"
    shared = comm.allgather(handles)
    for other in _others(comm):
        try:
            if shared[other] is not None:
                _open(xp, shared[other][0], 1)
                runtime.eventDestroy(runtime.ipcOpenEventHandle(shared[other][1]))
        except RuntimeError as error:
            refused = f"rank {me} cannot open GPU memory of rank {other}: {error}"
    return first_reason(comm, refused)


def _others(comm: MPI.Intracomm) -> tuple[int, ...]:
    return tuple(rank for rank in neighbours(comm) if rank != comm.Get_rank())


def _open(xp: ArrayModule, handle: bytes, nbytes: int) -> Array:
    """Return another rank's allocation as bytes. It is closed when no array refers to it."""
    runtime = xp.cuda.runtime
    pointer = runtime.ipcOpenMemHandle(handle)
    owner = _Owner()
    weakref.finalize(owner, runtime.ipcCloseMemHandle, pointer).atexit = False
    memory = xp.cuda.UnownedMemory(pointer, max(1, nbytes), owner)
    return xp.ndarray((nbytes,), np.uint8, xp.cuda.MemoryPointer(memory, 0))


class _Owner:
    """Lives as long as arrays refer to opened memory."""


class Events(Fence):
    """The fence between devices: each rank records one event repeatedly, which the others open once."""

    def __init__(self, xp: ArrayModule, comm: MPI.Intracomm, ranks: Sequence[int]) -> None:
        self._stream = xp.cuda.get_current_stream
        runtime = xp.cuda.runtime
        self._own = xp.cuda.Event(disable_timing=True, interprocess=True)
        handles = comm.allgather(runtime.ipcGetEventHandle(self._own.ptr))
        self._others = {rank: runtime.ipcOpenEventHandle(handles[rank]) for rank in ranks}
        self._wait = runtime.streamWaitEvent

    def mark(self) -> None:
        """Record this rank's event after all queued work."""
        self._own.record(self._stream())

    def join(self, rank: int) -> None:
        """Make this rank's queue wait for another rank's last recorded event."""
        self._wait(self._stream().ptr, self._others[rank])
