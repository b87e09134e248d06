"""The transports of MPI's ranks, and which one runs: the one asked for, or the fastest that works."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from mpi4py import MPI

from executor.progress import obstacle as counters_obstacle
from executor.shared_memory import first_reason, neighbours
from executor.transport import CHOICES, REGISTERED, Choice, TransportError, TransportSpec, plain_arena
from executor.transport.ipc import ipc, ipc_arena
from executor.transport.ipc import obstacle as ipc_obstacle
from executor.transport.nccl import Nccl
from executor.transport.nccl import obstacle as nccl_obstacle
from executor.transport.point_to_point import PointToPoint
from executor.transport.shared import Shared, shared_arena
from executor.values import ArrayModule

TRANSPORTS: Mapping[str, TransportSpec] = MappingProxyType(
    {
        "shared": TransportSpec(shared_arena, Shared),
        "ipc": TransportSpec(ipc_arena, ipc),
        "nccl": TransportSpec(plain_arena, Nccl),
        "p2p": TransportSpec(plain_arena, PointToPoint),
    }
)
"""Transports by name."""

BEST_FIRST: Mapping[str, tuple[str, ...]] = MappingProxyType({"numpy": ("shared",), "cupy": ("nccl", "ipc")})
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


OBSTACLES: Mapping[str, Callable[[ArrayModule, MPI.Intracomm], str | None]] = MappingProxyType(
    {"shared": _shared_obstacle, "ipc": ipc_obstacle, "nccl": nccl_obstacle}
)
"""What says why some rank cannot use a transport, or None where all can; collective."""
