"""The ranks that torchrun starts, or any others with a process group of `torch.distributed`."""

from __future__ import annotations

import atexit
import os
import sys
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist

from executor.backend import BackendError
from executor.cluster import Cluster
from executor.torch.tensors import torch_arena
from executor.torch.transport import ProcessGroupMessages, others_may_be_lost
from executor.transport import TransportError, TransportSpec
from executor.values import ArrayModule

T = TypeVar("T")

PATIENCE = timedelta(days=365)
"""How long ranks wait for each other: one may check or evaluate alone; that one has ended is noticed at once."""

BACKENDS = {"gloo": "numpy", "nccl": "cupy"}
"""Of which array module's memory a backend of `torch.distributed` carries messages."""


@dataclass(frozen=True, slots=True)
class ProcessGroupCluster(Cluster):
    """All ranks of the default process group; what they tell each other goes by a group of its own, over gloo."""

    diagnostics: dist.ProcessGroup
    library: str = field(default="torch", kw_only=True)

    def transport(self, name: str) -> TransportSpec:
        """Return PyTorch's memory and messages."""

        def transport(memory: Any, _comm: object, crowded: bool) -> ProcessGroupMessages:
            return ProcessGroupMessages(memory, group_of(name, dist.group.WORLD), crowded)

        return TransportSpec(torch_arena, transport)

    def choose_transport(self, asked: str, xp: ArrayModule) -> str:
        """Return the backend that carries the arrays' messages."""
        (name,) = (name for name, module in BACKENDS.items() if module == xp.__name__)
        if asked not in ("auto", name):
            raise TransportError(
                f"transport {asked!r}: ranks of torchrun exchange arrays of {xp.__name__} by {name}: use --transport "
                "auto"
            )
        return name

    def launch_advice(self, count: int) -> str:
        """Say how a job of so many ranks is started."""
        return f"torchrun --nproc-per-node {count}, or as many in all over several hosts"

    def use_device(self, xp: ArrayModule) -> None:
        """Compute on this rank's device from now on; a BackendError where PyTorch cannot."""
        if xp is np:
            return
        if not torch.cuda.is_available():
            raise BackendError("backend 'cupy': PyTorch finds no GPU: install one with CUDA, or use --backend numpy")
        if not dist.is_nccl_available():
            raise BackendError("backend 'cupy': this PyTorch has no NCCL: install one that has, or use --backend numpy")
        torch.cuda.set_device(self.host_rank % torch.cuda.device_count())
        Cluster.use_device(self, xp)

    def barrier(self) -> None:
        """Wait until every rank is here."""
        with others_may_be_lost():
            dist.barrier(self.diagnostics)

    def all_gather(self, value: T) -> list[T]:
        """Return every rank's value, on every rank."""
        values: list[Any] = [None] * self.size
        with others_may_be_lost():
            dist.all_gather_object(values, value, self.diagnostics)
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

    def abort(self, status: int) -> None:
        """End this process at once; the launcher ends the others."""
        os._exit(status)


@lru_cache(maxsize=4)
def group_of(backend: str, world: dist.ProcessGroup) -> dist.ProcessGroup:
    """Return a group of all ranks for the program's transfers (collective, the first time)."""
    group: Any = dist.new_group(backend=backend, timeout=PATIENCE)
    if backend == "nccl":  # as it asks, all ranks take part in the first call
        dist.all_reduce(torch.zeros(1, device="cuda"), group=group)
    return cast(dist.ProcessGroup, group)


def cluster() -> ProcessGroupCluster:
    """Describe the ranks of the default process group (collective)."""
    diagnostics: Any = dist.new_group(backend="gloo", timeout=PATIENCE)
    rank, size = dist.get_rank(), dist.get_world_size()
    places: list[Any] = [None] * size
    dist.all_gather_object(places, (os.uname().nodename, os.sched_getaffinity(0)), diagnostics)
    here = [other for other in range(size) if places[other][0] == places[rank][0]]
    cores: set[int] = set().union(*(places[other][1] for other in here))
    return ProcessGroupCluster(None, rank, size, here.index(rank), len(here), len(cores), diagnostics)


def job_cluster() -> ProcessGroupCluster:
    """Describe all ranks that torchrun started (collective); exit with status 2 where PyTorch cannot connect them."""
    if not (dist.is_available() and dist.is_gloo_available()):
        print("error: this PyTorch has no gloo: install one that has, or use mpirun", file=sys.stderr)
        sys.exit(2)
    dist.init_process_group("gloo")
    atexit.register(dist.destroy_process_group)
    return cluster()
