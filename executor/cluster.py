"""The ranks of a job: who they are, how they wait, and the diagnostics they exchange beside the program's transfers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from executor.values import indices
from executor.waiting import doze, host_place
from planner.graph.ir import Tensor
from planner.layout import Region, local_shape
from planner.layout.region import holders

T = TypeVar("T")
HostArray = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Cluster:
    """A communicator for the program's transfers and one of its own for diagnostics, so that they never mix.

    `host_rank` counts this host's ranks, of which there are `ranks_on_host`, on `cores` cores in all.
    """

    comm: MPI.Intracomm
    diagnostics: MPI.Intracomm
    host_rank: int
    ranks_on_host: int
    cores: int

    @property
    def rank(self) -> int:
        """This rank."""
        return self.comm.Get_rank()

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.comm.Get_size()

    @property
    def crowded(self) -> bool:
        """Whether this host has more ranks than cores."""
        return self.ranks_on_host > self.cores

    def meet(self) -> None:
        """Wait until every rank is here, leaving the cores to those that are not yet."""
        doze([self.diagnostics.Ibarrier()])

    def gather(self, value: T) -> list[T]:
        """Return every rank's value on rank 0, an empty list elsewhere."""
        self.meet()
        return self.diagnostics.gather(value) or []

    def share(self, value: T) -> list[T]:
        """Return every rank's value, on every rank."""
        self.meet()
        return self.diagnostics.allgather(value)

    def tell(self, value: T | None) -> T:
        """Return rank 0's value, on every rank."""
        self.meet()
        return cast(T, self.diagnostics.bcast(value))

    def assemble(self, tensor: Tensor, regions: Sequence[Region], tile: HostArray) -> HostArray | None:
        """Put a tensor together on rank 0 from every rank's tile (host memory); None elsewhere.

        Of workers that hold equal regions only the first sends.
        """
        firsts = {region: workers[0] for region, workers in holders(regions).items()}
        if self.rank != 0:
            if firsts.get(regions[self.rank]) == self.rank:
                doze([self.diagnostics.Isend([raw_bytes(np.ascontiguousarray(tile)), MPI.BYTE], 0)])
            return None
        whole = np.empty(tensor.shape, tensor.dtype)
        for region, worker in firsts.items():
            received = tile
            if worker != 0:
                received = np.empty(local_shape(region), tensor.dtype)
                doze([self.diagnostics.Irecv([raw_bytes(received), MPI.BYTE], worker)])
            whole[np.ix_(*map(indices, region))] = received
        return whole


def raw_bytes(array: HostArray) -> NDArray[np.uint8]:
    """View a contiguous array's bytes; MPI does not know every dtype."""
    return array.reshape(-1).view(np.uint8)


def cluster(comm: MPI.Intracomm) -> Cluster:
    """Describe a communicator's ranks (collective)."""
    return Cluster(comm, comm.Dup(), *host_place(comm))


def alone(cores: int) -> Cluster:
    """Describe this process as a job of its own."""
    return Cluster(MPI.COMM_SELF, MPI.COMM_SELF, 0, 1, cores)
