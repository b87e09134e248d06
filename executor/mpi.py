"""The ranks that an MPI's mpirun starts, and the transport that they choose."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from executor.cluster import Cluster
from executor.process.environment import launcher_place
from executor.process.guard import end_job
from executor.progress import obstacle as counters_obstacle
from executor.shared_memory import first_reason, neighbours
from executor.transport import CHOICES, REGISTERED, Choice, TransportError, TransportSpec, plain_arena
from executor.transport.ipc import ipc, ipc_arena
from executor.transport.ipc import obstacle as ipc_obstacle
from executor.transport.nccl import Nccl
from executor.transport.nccl import obstacle as nccl_obstacle
from executor.transport.point_to_point import PointToPoint, doze, host_place, wait_for
from executor.transport.shared import Shared, shared_arena
from executor.values import ArrayModule

TRANSPORTS: Mapping[str, TransportSpec] = {
    "shared": TransportSpec(shared_arena, Shared),
    "ipc": TransportSpec(ipc_arena, ipc),
    "nccl": TransportSpec(plain_arena, Nccl),
    "p2p": TransportSpec(plain_arena, PointToPoint),
}
"""Transports by name."""

BEST_FIRST: Mapping[str, tuple[str, ...]] = {"numpy": ("shared",), "cupy": ("nccl", "ipc")}
"""What "auto" tries before "p2p", which always works, by the array module."""

WITHIN_HOST = ("shared", "ipc")
"""Transports that differ from those between hosts only where ranks share a host."""


def choose(name: str, xp: ArrayModule, comm: MPI.Intracomm) -> Choice:
    """Return the transport that a job uses (collective): every one better than "p2p" is tried before it is taken.

    Raises TransportError on every rank where another than "auto" is asked for and cannot be.
    """
    if name == "p2p" or name in REGISTERED:
        return Choice(name)
    if name not in CHOICES:
        raise TransportError(f"transport {name!r}: expected one of {', '.join((*CHOICES, *REGISTERED))}")
    if name not in ("auto", *TRANSPORTS):
        raise TransportError(f"transport {name!r} is of ranks that torchrun starts: use --transport auto")
    better = BEST_FIRST[xp.__name__]
    if name == "auto":
        return _best(better if comm.Get_size() > 1 else (), xp, comm)
    reason = OBSTACLES[name](xp, comm)
    if reason is not None:
        others = " or ".join((*(other for other in better if other != name), "p2p"))
        raise TransportError(f"transport {name!r}: {reason}: use --transport {others}")
    return Choice(name)


def _best(better: tuple[str, ...], xp: ArrayModule, comm: MPI.Intracomm) -> Choice:
    refused: dict[str, str] = {}
    for name in better:
        alone = name in WITHIN_HOST and comm.allreduce(len(neighbours(comm)), MPI.MAX) == 1
        reason = "no two ranks share a host" if alone else OBSTACLES[name](xp, comm)
        if reason is None:
            return Choice(name, refused)
        refused[name] = reason
    return Choice("p2p", refused)


def _shared_obstacle(xp: ArrayModule, comm: MPI.Intracomm) -> str | None:
    reason = None if xp is np else f"expected arrays of NumPy, found {xp.__name__}"
    return first_reason(comm, reason) or counters_obstacle(comm)


Obstacle = Callable[[ArrayModule, MPI.Intracomm], str | None]
OBSTACLES: Mapping[str, Obstacle] = {"shared": _shared_obstacle, "ipc": ipc_obstacle, "nccl": nccl_obstacle}
"""What says why some rank cannot use a transport, or None where all can; collective."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MpiCluster(Cluster):
    """A communicator for the program's transfers and one of its own for diagnostics, so that they never mix."""

    comm: MPI.Intracomm
    diagnostics: MPI.Intracomm

    def transport(self, name: str) -> TransportSpec:
        """Return what a transport of this name needs."""
        return REGISTERED[name] if name in REGISTERED else TRANSPORTS[name]

    def choose_transport(self, name: str, xp: ArrayModule) -> Choice:
        """Return the transport that a job uses (collective)."""
        return choose(name, xp, self.comm)

    def launch_advice(self, count: int) -> str:
        """Say how a job of so many ranks is started, and why there may be one alone."""
        return start_advice(count, self.size, os.environ)

    def least(self, number: int) -> int:
        """Return the least of every rank's numbers, on every rank, leaving the cores to those that are not here yet."""
        least = np.array(number)
        doze([self.diagnostics.Iallreduce(MPI.IN_PLACE, least, MPI.MIN)])
        return int(least)

    def meet(self) -> None:
        """Wait until every rank is here, as a transfer is waited for: a core that slept starts slowly."""
        wait_for(self.crowded)([self.diagnostics.Ibarrier()])

    def gather(self, value: T) -> list[T]:
        """Return every rank's value on rank 0, an empty list elsewhere."""
        self.barrier()
        return self.diagnostics.gather(value) or []

    def all_gather(self, value: T) -> list[T]:
        """Return every rank's value, on every rank."""
        self.barrier()
        return self.diagnostics.allgather(value)

    def broadcast(self, value: T | None) -> T:
        """Return rank 0's value, on every rank."""
        self.barrier()
        return cast(T, self.diagnostics.bcast(value))

    def pass_on(self, data: NDArray[np.uint8], peer: int, *, receives: bool) -> None:
        """Send these bytes to another rank as a transfer does, or receive them from there, and wait for it."""
        message = [data, MPI.BYTE]
        request = self.comm.Irecv(message, peer) if receives else self.comm.Isend(message, peer)
        wait_for(self.crowded)([request])

    def abort(self, status: int) -> None:
        """End every rank, and this process, at once."""
        if self.size > 1:
            end_job(status, os.environ)
            MPI.COMM_WORLD.Abort(status)
        os._exit(status)


def job_cluster() -> MpiCluster:
    """Describe all ranks that mpirun started (collective)."""
    comm = MPI.COMM_WORLD
    return MpiCluster(comm, comm.Get_rank(), comm.Get_size(), *host_place(comm), diagnostics=comm.Dup())


def start_advice(workers: int, size: int, environ: Mapping[str, str]) -> str:
    """Say how a job of so many ranks is started, and what else makes jobs of size 1."""
    advice, place = f"mpirun -n {workers}", launcher_place(environ)
    if size > 1:
        return advice
    if place is None or place[0] == 1:
        return f"{advice} (an mpirun of one MPI with the libraries of another also makes jobs of size 1)"
    return (
        f"{advice}; the launcher started {place[0]} processes, but {MPI.Get_library_version().splitlines()[0].strip()} "
        "sees jobs of size 1: this mpirun belongs to another MPI than the library that mpi4py loads"
    )
