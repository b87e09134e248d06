"""The ranks started by mpirun, and the choice of their transport."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from executor.cluster import Cluster, T
from executor.process import launcher_place
from executor.process.guard import end_job
from executor.shared_memory import counters_obstacle, first_reason, neighbours, unlink_segments
from executor.transport import CHOICES, REGISTERED, Choice, TransportError, TransportSpec, plain_arena
from executor.transport.gpus import Nccl, ipc, ipc_arena, ipc_obstacle, nccl_obstacle
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
"""Transports that "auto" tries, by array module, before "p2p", which always works."""

WITHIN_HOST = ("shared", "ipc")
"""Transports that only differ from "p2p" for ranks on the same host."""


def choose(name: str, xp: ArrayModule, comm: MPI.Intracomm) -> Choice:
    """Return the transport that a job uses (collective). Every one better than "p2p" is tested before it is chosen.

    Raises TransportError on every rank if a specific transport is requested and unavailable.
    """
    if name == "p2p" or name in REGISTERED:
        return Choice(name)
    if name not in CHOICES:
        raise TransportError(f"transport {name!r}: expected one of {', '.join((*CHOICES, *REGISTERED))}")
    if name not in ("auto", *TRANSPORTS):
        raise TransportError(f"transport {name!r} needs ranks started by torchrun: use --transport auto")
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
"""Functions that say why some rank cannot use a transport, or return None (collective)."""


@dataclass(frozen=True, slots=True)
class MpiCluster(Cluster):
    """The ranks of MPI. Transfers and diagnostics have communicators of their own, so their messages never mix."""

    comm: MPI.Intracomm
    diagnostics: MPI.Intracomm

    def transport(self, name: str) -> TransportSpec:
        """Return the specification of a transport."""
        return REGISTERED[name] if name in REGISTERED else TRANSPORTS[name]

    def choose_transport(self, name: str, xp: ArrayModule) -> Choice:
        """Return the transport that a job uses (collective)."""
        return choose(name, xp, self.comm)

    def launch_advice(self, count: int) -> str:
        """Return the command that starts `count` ranks, and why there may be only one now."""
        return start_advice(count, self.size, os.environ)

    def least(self, number: int) -> int:
        """Return the least of all ranks' numbers, on every rank.

        Waiting leaves the cores to ranks that are not here yet.
        """
        least = np.array(number)
        doze([self.diagnostics.Iallreduce(MPI.IN_PLACE, least, MPI.MIN)])
        return int(least)

    def meet(self) -> None:
        """Wait for all ranks in the way a transfer waits, because a core that slept starts slowly."""
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
        """Send these bytes to another rank as a transfer does, or receive them into `data`, and wait."""
        message = [data, MPI.BYTE]
        request = self.comm.Irecv(message, peer) if receives else self.comm.Isend(message, peer)
        wait_for(self.crowded)([request])

    def abort(self, status: int) -> None:
        """End all ranks, and this process, at once."""
        if self.size > 1:
            end_job(status, os.environ)
            MPI.COMM_WORLD.Abort(status)
        os._exit(status)


def job_cluster() -> MpiCluster:
    """Return all ranks that mpirun started (collective)."""
    comm = MPI.COMM_WORLD
    unlink_segments(comm)
    return MpiCluster(comm, comm.Get_rank(), comm.Get_size(), *host_place(comm), diagnostics=comm.Dup())


def start_advice(workers: int, size: int, environ: Mapping[str, str]) -> str:
    """Return the command that starts a job of `workers` ranks, and what else causes jobs of size 1."""
    advice, place = f"mpirun -n {workers}", launcher_place(environ)
    if size > 1:
        return advice
    if place is None or place[0] == 1:
        return f"{advice} (an mpirun of one MPI with the libraries of another also makes jobs of size 1)"
    return (
        f"{advice}; the launcher started {place[0]} processes, but {MPI.Get_library_version().splitlines()[0].strip()} "
        "sees jobs of size 1: this mpirun belongs to another MPI than the library that mpi4py loads"
    )
