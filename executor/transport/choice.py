"""The transports of MPI's ranks, and which one runs: the one asked for, or the fastest that there is."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from mpi4py import MPI

from executor.progress import ORDERED
from executor.shared_memory import first_reason, neighbours, obstacle
from executor.transport import CHOICES, REGISTERED, TransportError, TransportSpec, plain_arena
from executor.transport.ipc import ipc, ipc_arena
from executor.transport.ipc import obstacle as ipc_obstacle
from executor.transport.nccl import Nccl, nccl_of
from executor.transport.point_to_point import PointToPoint
from executor.transport.shared import Shared, shared_arena
from executor.values import ArrayModule

UNORDERED = "expected an x86-64 processor, which keeps the order of stores"

TRANSPORTS: Mapping[str, TransportSpec] = MappingProxyType(
    {
        "shared": TransportSpec(shared_arena, Shared),
        "ipc": TransportSpec(ipc_arena, ipc),
        "nccl": TransportSpec(plain_arena, Nccl),
        "p2p": TransportSpec(plain_arena, PointToPoint),
    }
)
"""Transports by name."""


def choose(name: str, xp: ArrayModule, comm: MPI.Intracomm) -> str:
    """Return the name of the transport that a job uses (collective).

    "auto" is "shared" where some ranks share a host and can map each other's memory, else "p2p". Raises TransportError
    on every rank where another is asked for and cannot be.
    """
    if name == "p2p" or name in REGISTERED:
        return name
    if name not in CHOICES:
        raise TransportError(f"transport {name!r}: expected one of {', '.join((*CHOICES, *REGISTERED))}")
    if name not in ("auto", *TRANSPORTS):
        raise TransportError(f"transport {name!r} is of ranks that torchrun starts: use --transport auto")
    here = neighbours(comm)
    reason = _why_not_device(name, xp, comm) if name in ("ipc", "nccl") else _why_not_shared(xp, comm, here)
    if name == "auto":
        together = comm.allreduce(len(here), MPI.MAX) > 1
        return "shared" if together and reason is None else "p2p"
    if reason is not None:
        raise TransportError(f"transport {name!r}: {reason}: use --transport p2p")
    return name


def _why_not_shared(xp: ArrayModule, comm: MPI.Intracomm, here: tuple[int, ...]) -> str | None:
    reason = None
    if xp is not np:
        reason = f"expected arrays of NumPy, found {xp.__name__}"
    elif not ORDERED:
        reason = UNORDERED
    return first_reason(comm, reason) or obstacle(comm, here)


def _why_not_device(name: str, xp: ArrayModule, comm: MPI.Intracomm) -> str | None:
    reason = None
    if xp is np:
        reason = "expected arrays of CuPy, found numpy"
    elif name == "nccl" and not nccl_of(xp).available:
        reason = "CuPy finds no NCCL: pip install nvidia-nccl-cu12 (or -cu13)"
    elif name == "ipc" and not ORDERED:
        reason = UNORDERED
    return first_reason(comm, reason) or (ipc_obstacle(xp, comm) if name == "ipc" else None)
