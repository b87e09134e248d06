"""The ranks that an MPI's mpirun starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from executor.cluster import Cluster
from executor.process.environment import launcher_place
from executor.process.guard import end_job
from executor.transport import REGISTERED, Choice, TransportSpec
from executor.transport.choice import TRANSPORTS, choose
from executor.values import ArrayModule
from executor.waiting import doze, host_place, wait_for

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

    def barrier(self) -> None:
        """Wait until every rank is here, leaving the cores to those that are not yet."""
        doze([self.diagnostics.Ibarrier()])

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
