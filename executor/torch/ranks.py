"""The ranks started by torchrun, or any others with a process group of `torch.distributed`."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any, cast
from uuid import uuid4

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from executor.backend import BackendError, device_place
from executor.cluster import Cluster, T
from executor.torch.collectives import ALL_GATHER, REDUCE_SCATTER, CollectiveMessages
from executor.torch.tensors import obstacle, tensor_of
from executor.torch.transport import LocalSockets, ProcessGroupMessages, connected, others_may_be_lost
from executor.transport import Choice, TransportError, TransportSpec, plain_arena, shared_gpu
from executor.values import Array, ArrayModule
from planner.failures import JobError

PATIENCE = timedelta(days=365)
"""How long ranks wait for each other. One may check or evaluate alone; a rank that ended is noticed at once."""

LET_GO_S = 0.05
POLL_S = 0.01
"""Interval at which rank 0 checks which ranks have arrived."""

BACKENDS = {"numpy": ("gloo",), "cupy": ("nccl", "gloo")}
"""Backends of `torch.distributed` for messages of an array module's memory, best first."""


COLLECTIVES = ("pairs", "library")

_SOCKETS: dict[dist.ProcessGroup, LocalSockets] = {}
"""The sockets of each process group of all ranks."""


@dataclass(frozen=True, slots=True)
class ProcessGroupCluster(Cluster):
    """All ranks of the default process group. Diagnostics have a group of their own, with gloo."""

    diagnostics: dist.ProcessGroup
    timeout: timedelta
    library: str = field(default="torch", kw_only=True)
    collectives: str = field(default="pairs", kw_only=True)

    def transport(self, name: str) -> TransportSpec:
        """Return PyTorch's messages, with its collectives if requested."""
        world = cast(dist.ProcessGroup, dist.group.WORLD)

        def transport(memory: Any, _comm: object, _crowded: bool) -> ProcessGroupMessages:
            group, sockets = group_of(name, world, self.timeout), self._sockets(name, world)
            if self.collectives == "pairs":
                return ProcessGroupMessages(memory, group, sockets)
            return CollectiveMessages(memory, group, sockets, partial(group_among, name, world, self.timeout))

        return TransportSpec(plain_arena, transport)

    def _sockets(self, backend: str, world: dist.ProcessGroup) -> LocalSockets:
        """Return the sockets for small messages between host memories (collective on first use)."""
        timeout_s = self.timeout.total_seconds()
        if backend != "gloo":
            return LocalSockets({}, timeout_s)
        if world not in _SOCKETS:
            _SOCKETS[world] = connected(self.rank, self.all_gather, timeout_s)
        return _SOCKETS[world]

    def with_collectives(self, choice: str) -> ProcessGroupCluster:
        """Return the ranks with collectives as operations of PyTorch ("library") or as messages ("pairs")."""
        if choice not in COLLECTIVES:
            raise TransportError(f"collectives: expected one of {', '.join(COLLECTIVES)}, found {choice!r}")
        return replace(self, collectives=choice)

    def choose_transport(self, asked: str, xp: ArrayModule) -> Choice:
        """Return the backend for the arrays' messages (collective). "auto" is the best that works."""
        backends = BACKENDS[xp.__name__]
        if asked not in ("auto", *backends):
            raise TransportError(
                f"transport {asked!r}: ranks of torchrun exchange {xp.__name__} arrays by {' or '.join(backends)}: "
                "use --transport auto"
            )
        choice = Choice(backends[0] if asked == "auto" else asked)
        if choice.name == "nccl" and (reason := self._nccl_obstacle(xp)) is not None:
            if asked == "nccl":
                raise TransportError(f"transport 'nccl': {reason}: use --transport gloo")
            choice = Choice("gloo", {"nccl": reason})
        if choice.name == "gloo" and xp is not np and self.collectives == "library":
            raise TransportError("collectives library: gloo does not support GPU memory: use --collectives pairs")
        return choice

    def _nccl_obstacle(self, xp: ArrayModule) -> str | None:
        """Return why some rank cannot use PyTorch's NCCL; None if all can (collective)."""
        absent = None
        if not torch.cuda.is_available():
            absent = "PyTorch finds no GPU"
        elif not dist.is_nccl_available():
            absent = "this PyTorch has no NCCL"
        places = self.all_gather((absent, device_place(xp)))
        shared = shared_gpu([gpu for _, gpu in places])
        reasons = [reason for reason, _ in places]
        return _first(reasons) or shared or _first(self.all_gather(self._nccl_failure()))

    def _nccl_failure(self) -> str | None:
        try:
            group_of("nccl", cast(dist.ProcessGroup, dist.group.WORLD), self.timeout)
        except RuntimeError as error:
            return f"NCCL fails on rank {self.rank} ({str(error).partition(chr(10))[0]}): NCCL_DEBUG=INFO says more"
        return None

    def launch_advice(self, count: int) -> str:
        """Return the command that starts a job of `count` ranks."""
        return f"torchrun --nproc-per-node {count}, or as many in all over several hosts"

    def use_device(self, xp: ArrayModule) -> None:
        """Compute on this rank's device from now on. Raises BackendError if the kernels are PyTorch's and it cannot."""
        Cluster.use_device(self, xp)
        if xp is np:
            return
        if torch.cuda.is_available():
            torch.cuda.set_device(xp.cuda.Device().id)
        if self.library == "torch" and (reason := obstacle(xp)) is not None:
            raise BackendError(f"backend 'cupy': {reason}, or use --kernels arrays or --backend numpy")

    def least(self, number: int) -> int:
        """Return the least of all ranks' numbers, on every rank."""
        least = torch.tensor(number, device="cpu")
        with others_may_be_lost():
            dist.all_reduce(least, dist.ReduceOp.MIN, self.diagnostics)
        return int(least)

    def all_gather(self, value: T) -> list[T]:
        """Return every rank's value, on every rank. Sockets, if they connect all ranks, take a tenth of the time."""
        values: list[Any] = [value] * self.size
        sockets = _SOCKETS.get(cast(dist.ProcessGroup, dist.group.WORLD))
        with others_may_be_lost():
            if sockets is None or len(sockets.others) < self.size - 1:
                dist.all_gather_object(values, value, self.diagnostics)
            else:
                for rank in sockets.others:
                    sockets.tell(rank, value)
                for rank in sockets.others:
                    values[rank] = sockets.told(rank)
        return values

    def gather(self, value: T) -> list[T]:
        """Return every rank's value on rank 0, an empty list elsewhere."""
        values: list[Any] | None = [None] * self.size if self.rank == 0 else None
        with others_may_be_lost():
            dist.gather_object(value, values, 0, self.diagnostics)
        return values or []

    def broadcast(self, value: T | None) -> T:
        """Return rank 0's value, on every rank."""
        values = [value]
        with others_may_be_lost():
            dist.broadcast_object_list(values, 0, self.diagnostics)
        return cast(T, values[0])

    def connect(self) -> None:
        """Prepare for `pass_on` (collective)."""
        self._connected()

    def _connected(self) -> tuple[LocalSockets, dist.ProcessGroup]:
        """Return the carriers of small and of large messages (collective on first use)."""
        world = cast(dist.ProcessGroup, dist.group.WORLD)
        return self._sockets("gloo", world), group_of("gloo", world, self.timeout)

    def pass_on(self, data: NDArray[np.uint8], peer: int, *, receives: bool) -> None:
        """Send these bytes to another rank as a transfer does, or receive them into `data`, and wait."""
        sockets, group = self._connected()
        with others_may_be_lost():
            if sockets.carries(peer, data.nbytes):
                (sockets.receive if receives else sockets.send)(peer, 0, data.data)
            else:
                (dist.recv if receives else dist.send)(torch.from_numpy(data), peer, group)

    def collective(self, transport: str, operation: str, data: Array) -> Callable[[], object] | None:
        """Return an action in which all ranks run a PyTorch operation on an array; None if it is unsupported.

        `data` is the payload of each rank.
        """
        if transport == "gloo" and not isinstance(data, np.ndarray):
            return None  # gloo does not support GPU memory
        group = group_of(transport, cast(dist.ProcessGroup, dist.group.WORLD), self.timeout)
        whole = tensor_of(data)
        part = whole[: len(whole) // self.size].clone()
        operations: dict[str, Callable[[], object]] = {
            "all-gather": partial(ALL_GATHER, whole, part, group),
            "reduce-scatter": partial(REDUCE_SCATTER, part, whole, group=group),
            "all-reduce": partial(dist.all_reduce, whole, group=group),
        }
        return operations.get(operation)

    def abort(self, status: int) -> None:
        """End this process at once. The launcher ends the others."""
        os._exit(status)


def _first(reasons: Iterable[str | None]) -> str | None:
    """Return the first reason against something; None if there is none."""
    return next(filter(None, reasons), None)


@lru_cache(maxsize=4)
def group_of(backend: str, world: dist.ProcessGroup, timeout: timedelta) -> dist.ProcessGroup:
    """Return a group of all ranks for the program's transfers (collective on first use)."""
    group: Any = dist.new_group(backend=backend, timeout=timeout)
    if backend == "nccl":  # NCCL requires all ranks in the first call
        dist.all_reduce(torch.zeros(1, device="cuda"), group=group)
    return cast(dist.ProcessGroup, group)


@lru_cache(maxsize=1 << 10)
def group_among(
    backend: str, _world: dist.ProcessGroup, timeout: timedelta, members: tuple[int, ...]
) -> dist.ProcessGroup:
    """Return a group of some ranks for their collectives (collective among these on first use)."""
    group = dist.new_group(list(members), timeout, backend, use_local_synchronization=True)
    return cast(dist.ProcessGroup, group)


def cluster(timeout: timedelta = PATIENCE) -> ProcessGroupCluster:
    """Return the ranks of the default process group, which wait for each other until `timeout` (collective)."""
    diagnostics: Any = dist.new_group(backend="gloo", timeout=timeout)
    atexit.register(_leave)
    rank, size = dist.get_rank(), dist.get_world_size()
    places: list[Any] = [None] * size
    dist.all_gather_object(places, (os.uname().nodename, os.sched_getaffinity(0)), diagnostics)
    here = [other for other in range(size) if places[other][0] == places[rank][0]]
    cores: set[int] = set().union(*(places[other][1] for other in here))
    return ProcessGroupCluster(None, rank, size, here.index(rank), len(here), len(cores), diagnostics, timeout)


def job_cluster() -> ProcessGroupCluster:
    """Return all ranks that torchrun started (collective). Exit with status 2 if PyTorch cannot connect them."""
    if not (dist.is_available() and dist.is_gloo_available()):
        print("error: this PyTorch has no gloo: install one with gloo, or use mpirun", file=sys.stderr)
        sys.exit(2)
    join(PATIENCE, "gloo")
    return cluster()


def join(timeout: timedelta, backend: str | None = None) -> None:
    """Create the default process group of all ranks (collective). Raises JobError for missing ranks."""
    store, rank, size = next(rendezvous("env://", timeout=timeout))
    fresh = PrefixStore(_agreed_prefix(store, rank, size, timeout), store)
    dist.init_process_group(backend, store=fresh, rank=rank, world_size=size, timeout=timeout)


def _agreed_prefix(store: Store, rank: int, size: int, timeout: timedelta) -> str:
    """Return a name of this start that all ranks agree on, by the store that torchrun keeps across restarts.

    The store also has entries from before a restart, such as addresses, which must not be read. So every rank posts a
    new name, and rank 0 answers with its own until all have read it.
    """
    name = uuid4().hex
    store.set(f"arrived/{rank}", name)
    if rank != 0:
        prefix = str(store.get(f"start/{name}"), "ascii")
        store.set(f"joined/{prefix}/{rank}", "")
        return prefix
    end = time.monotonic() + timeout.total_seconds()
    while missing := [other for other in range(1, size) if not store.check([f"joined/{name}/{other}"])]:
        if time.monotonic() > end:
            raise JobError(f"ranks {', '.join(map(str, missing))} did not arrive within {timeout}")
        for other in missing:
            if store.check([f"arrived/{other}"]):
                store.set(f"start/{store.get(f'arrived/{other}').decode()}", name)
        time.sleep(POLL_S)
    return name


def _leave() -> None:
    """Destroy the process group before Python shuts down, if the program has not.

    The group's threads release the memory of a message a moment after they report its arrival.
    """
    time.sleep(LET_GO_S)
    while _SOCKETS:
        _SOCKETS.popitem()[1].close()
    group_of.cache_clear()
    group_among.cache_clear()
    if dist.is_initialized():
        dist.destroy_process_group()
