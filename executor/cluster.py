"""The ranks of a job: who they are, and how they communicate apart from the program's transfers."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from executor.backend import require_libraries
from executor.transport import Choice, TransportError, TransportSpec, plain_arena
from executor.transport.messages import Messages
from executor.values import Array, ArrayModule, indices
from planner.graph.ir import Tensor
from planner.layout import Region
from planner.layout.region import holders

T = TypeVar("T")
HostArray = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Cluster(ABC):
    """The ranks of a job, from the view of one. Transports get `comm`; `cores` are those of this rank's host."""

    comm: Any
    rank: int
    size: int
    host_rank: int
    ranks_on_host: int
    cores: int
    library: str = field(default="arrays", kw_only=True)
    """The library whose kernels jobs run; see `executor.worker`."""

    @property
    def crowded(self) -> bool:
        """True if this host has more ranks than cores."""
        return self.ranks_on_host > self.cores

    @abstractmethod
    def transport(self, name: str) -> TransportSpec:
        """Return the specification of a transport."""

    @abstractmethod
    def choose_transport(self, name: str, xp: ArrayModule) -> Choice:
        """Return the transport that a job uses (collective).

        Raises TransportError if the requested one is unavailable.
        """

    def with_collectives(self, choice: str) -> Cluster:
        """Return the ranks with the chosen kind of collectives. Raises TransportError if they only have messages."""
        if choice != "pairs":
            raise TransportError(f"collectives {choice}: expected ranks of torchrun: use --collectives pairs")
        return self

    @abstractmethod
    def launch_advice(self, count: int) -> str:
        """Return the command that starts a job of `count` ranks."""

    @abstractmethod
    def least(self, number: int) -> int:
        """Return the least of all ranks' numbers, on every rank.

        Waiting leaves the cores to ranks that are not here yet.
        """

    def barrier(self) -> None:
        """Wait for all ranks. Waiting leaves the cores to ranks that are not here yet."""
        self.least(0)

    def meet(self) -> None:
        """Wait for all ranks in the way a transfer waits, because a core that slept starts slowly."""
        self.barrier()

    @abstractmethod
    def all_gather(self, value: T) -> list[T]:
        """Return every rank's value, on every rank."""

    @abstractmethod
    def gather(self, value: T) -> list[T]:
        """Return every rank's value on rank 0, an empty list elsewhere."""

    @abstractmethod
    def broadcast(self, value: T | None) -> T:
        """Return rank 0's value, on every rank."""

    def connect(self) -> None:  # noqa: B027 -- optional
        """Prepare for `pass_on` (collective)."""

    @abstractmethod
    def pass_on(self, data: NDArray[np.uint8], peer: int, *, receives: bool) -> None:
        """Send these bytes to another rank as a transfer does, or receive them into `data`, and wait."""

    def collective(self, transport: str, operation: str, data: Array) -> Callable[[], object] | None:
        """Return an action in which all ranks run a library's operation on an array; None if there is no library.

        The library belongs to the transport. `operation` is "all-gather", "reduce-scatter" or "all-reduce", and `data`
        is the payload of each rank, whose length the ranks must divide.
        """
        return None

    @abstractmethod
    def abort(self, status: int) -> None:
        """End all ranks, and this process, at once."""

    def use_device(self, xp: ArrayModule) -> None:
        """Compute on this rank's device from now on, on a stream of its own. Raises as `require_libraries`."""
        if xp is not np:
            xp.cuda.Device(self.host_rank % xp.cuda.runtime.getDeviceCount()).use()
            xp.cuda.Stream(non_blocking=True).use()
            require_libraries(xp)

    def assemble(self, tensor: Tensor, regions: Sequence[Region], tile: HostArray) -> HostArray | None:
        """Return a tensor assembled on rank 0 from all ranks' tiles (host memory); None on other ranks.

        Of workers with equal regions, only the first sends its tile.
        """
        firsts = {region: workers[0] for region, workers in holders(regions).items()}
        tiles = self.gather(tile if self.rank in firsts.values() else None)
        if self.rank != 0:
            return None
        whole = np.empty(tensor.shape, tensor.dtype)
        for region, worker in firsts.items():
            whole[np.ix_(*map(indices, region))] = tiles[worker]
        return whole


def raw_bytes(array: HostArray) -> NDArray[np.uint8]:
    """Return a contiguous array's bytes. Transports do not support every dtype."""
    return array.reshape(-1).view(np.uint8)


class SingleRank(Cluster):
    """This process as a job of its own."""

    __slots__ = ()

    def transport(self, _name: str) -> TransportSpec:
        """Return the only transport. There are no other ranks."""
        return TransportSpec(plain_arena, lambda memory, _comm, _crowded: Messages(memory, 1))

    def choose_transport(self, name: str, _xp: ArrayModule) -> Choice:
        """Return the requested transport. Raises TransportError if it needs other ranks."""
        if name not in ("auto", "p2p"):
            raise TransportError(f"transport {name!r}: expected several ranks, found one process")
        return Choice("p2p")

    def launch_advice(self, count: int) -> str:
        """Return the command that starts several ranks."""
        return f"mpirun -n {count}"

    def least(self, number: int) -> int:
        """Return the number."""
        return number

    def all_gather(self, value: T) -> list[T]:
        """Return the value, in a list."""
        return [value]

    gather = all_gather

    def broadcast(self, value: T | None) -> T:
        """Return the value."""
        return cast(T, value)

    def pass_on(self, data: NDArray[np.uint8], peer: int, *, receives: bool) -> None:
        """Raise ValueError: there is no other rank."""
        raise ValueError(f"expected no messages in a job of one rank, found {data.nbytes} bytes and {peer=}")

    def abort(self, status: int) -> None:
        """End this process."""
        os._exit(status)


def single_rank(cores: int) -> Cluster:
    """Return this process as a job of its own."""
    return SingleRank(None, 0, 1, 0, 1, cores)
