"""Which transport runs: the one asked for, or the fastest that there is."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from mpi4py import MPI

from executor.progress import ORDERED
from executor.shared_memory import neighbours, obstacle
from executor.transport import TRANSPORTS
from executor.transport.ipc import obstacle as ipc_obstacle
from executor.transport.nccl import nccl_of
from executor.values import ArrayModule

UNORDERED = "expected an x86-64 processor, which keeps the order of stores"
CHOICES = ("auto", *TRANSPORTS)


class TransportError(ValueError):
    """The transport asked for cannot be used here; the message says why."""


def chosen(asked: str, xp: ArrayModule, comm: MPI.Intracomm) -> str:
    """Return the name of the transport that a job uses (collective).

    "auto" is "shared" where some ranks share a host and can map each other's memory, else "p2p". Raises TransportError
    on every rank where another is asked for and cannot be.
    """
    if asked == "p2p":
        return asked
    here = neighbours(comm)
    reason = _why_not_device(asked, xp, comm) if asked in ("ipc", "nccl") else _why_not_shared(xp, comm, here)
    if asked == "auto":
        together = comm.allreduce(len(here), MPI.MAX) > 1
        return "shared" if together and reason is None else "p2p"
    if reason is not None:
        raise TransportError(f"transport {asked!r}: {reason}: use --transport p2p")
    return asked


def described(name: str, ranks: int, ranks_on_host: int) -> str:
    """Say which transports carry a job's messages."""
    far = {"shared": ", p2p between hosts", "ipc": ", nccl or p2p between hosts"}
    return name + far.get(name, "") if ranks_on_host < ranks else name


def _why_not_shared(xp: ArrayModule, comm: MPI.Intracomm, here: tuple[int, ...]) -> str | None:
    found = None
    if xp is not np:
        found = f"expected arrays of NumPy, found {xp.__name__}"
    elif not ORDERED:
        found = UNORDERED
    return _first(comm.allgather(found)) or obstacle(comm, here)


def _why_not_device(asked: str, xp: ArrayModule, comm: MPI.Intracomm) -> str | None:
    found = None
    if xp is np:
        found = "expected arrays of CuPy, found numpy"
    elif asked == "nccl" and not nccl_of(xp).available:
        found = "CuPy finds no NCCL: pip install nvidia-nccl-cu12 (or -cu13)"
    elif asked == "ipc" and not ORDERED:
        found = UNORDERED
    return _first(comm.allgather(found)) or (ipc_obstacle(xp, comm) if asked == "ipc" else None)


def _first(reasons: Iterable[str | None]) -> str | None:
    return next((reason for reason in reasons if reason is not None), None)
