"""The ranks of a job: who they are, and what they tell each other beside the program's transfers."""

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
    """The ranks of a job as one of them sees it; transports are given `comm`, `cores` are those of this rank's host."""

    comm: Any
    rank: int
    size: int
    host_rank: int
    ranks_on_host: int
    cores: int
    library: str = field(default="arrays", kw_only=True)
    """Whose kernels jobs run; see `executor.kernel_calls`."""

    @property
    def crowded(self) -> bool:
        """True if this host has more ranks than cores."""
        return self.ranks_on_host > self.cores

    @abstractmethod
    def transport(self, name: str) -> TransportSpec:
        """Return what a transport of this name needs."""

    @abstractmethod
    def choose_transport(self, name: str, xp: ArrayModule) -> Choice:
        """Return the transport that a job uses (collective); a TransportError where the one asked for cannot be."""

    def with_collectives(self, choice: str) -> Cluster:
        """Return the ranks that carry out collectives as chosen; a TransportError where they have messages alone."""
        if choice != "pairs":
            raise TransportError(f"collectives {choice}: expected ranks of torchrun: use --collectives pairs")
        return self

    @abstractmethod
    def launch_advice(self, count: int) -> str:
        """Say how a job of so many ranks is started."""

    @abstractmethod
    def least(self, number: int) -> int:
        """Return the least of every rank's numbers, on every rank, leaving the cores to those that are not here yet."""

    def barrier(self) -> None:
        """Wait until every rank is here, leaving the cores to those that are not yet."""
        self.least(0)

    def meet(self) -> None:
        """Wait until every rank is here, as a transfer is waited for: a core that slept starts slowly."""
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

    def connect(self) -> None:  # noqa: B027 -- most have nothing to do
        """Make what `pass_on` needs (collective)."""

    @abstractmethod
    def pass_on(self, data: NDArray[np.uint8], peer: int, *, receives: bool) -> None:
        """Send these bytes to another rank as a transfer does, or receive them from there, and wait for it."""

    def collective(self, transport: str, operation: str, data: Array) -> Callable[[], object] | None:
        """Return the action in which all ranks do an operation on such an array, the payload of each; None without one.

        The library is the transport's. The operations are "all-gather", "reduce-scatter" and "all-reduce", of a length
        that ranks share equally.
        """
        return None

    @abstractmethod
    def abort(self, status: int) -> None:
        """End every rank, and this process, at once."""

    def use_device(self, xp: ArrayModule) -> None:
        """Compute on this rank's device from now on, on a stream that waits for no other; see `require_libraries`."""
        if xp is not np:
            xp.cuda.Device(self.host_rank % xp.cuda.runtime.getDeviceCount()).use()
            xp.cuda.Stream(non_blocking=True).use()
            require_libraries(xp)

    def assemble(self, tensor: Tensor, regions: Sequence[Region], tile: HostArray) -> HostArray | None:
        """Put a tensor together on rank 0 from every rank's tile (host memory); None elsewhere.

        Of workers that hold equal regions only the first sends.
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
    """View a contiguous array's bytes; transports do not know every dtype."""
    return array.reshape(-1).view(np.uint8)


class SingleRank(Cluster):
    """This process as a job of its own."""

    __slots__ = ()

    def transport(self, _name: str) -> TransportSpec:
        """Return the only one: nobody else is there."""
        return TransportSpec(plain_arena, lambda memory, _comm, _crowded: Messages(memory, 1))

    def choose_transport(self, name: str, _xp: ArrayModule) -> Choice:
        """Return what is asked for, unless it needs others."""
        if name not in ("auto", "p2p"):
            raise TransportError(f"transport {name!r}: expected several ranks, found one process")
        return Choice("p2p")

    def launch_advice(self, count: int) -> str:
        """Say how a job of several ranks is started."""
        return f"mpirun -n {count}"

    def least(self, number: int) -> int:
        """Return the only number."""
        return number

    def all_gather(self, value: T) -> list[T]:
        """Return the only value."""
        return [value]

    gather = all_gather

    def broadcast(self, value: T | None) -> T:
        """Return the value."""
        return cast(T, value)

    def pass_on(self, data: NDArray[np.uint8], peer: int, *, receives: bool) -> None:
        """Raise ValueError: there is no other rank."""
        raise ValueError(f"expected no messages, as nobody else is there, found {data.nbytes} bytes and {peer=}")

    def abort(self, status: int) -> None:
        """End this process."""
        os._exit(status)


def single_rank(cores: int) -> Cluster:
    """Describe this process as a job of its own."""
    return SingleRank(None, 0, 1, 0, 1, cores)
