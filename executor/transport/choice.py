"""Which transport runs: the one asked for, or the fastest that there is."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from executor.progress import ORDERED
from executor.shared_memory import neighbours, obstacle
from executor.transport import TRANSPORTS
from executor.values import ArrayModule

CHOICES = ("auto", *TRANSPORTS)


class TransportError(ValueError):
    """The transport asked for cannot be used here; the message says why."""


def chosen(asked: str, xp: ArrayModule, comm: MPI.Intracomm) -> str:
    """Return the name of the transport that a job uses (collective).

    "auto" is "shared" where some ranks share a host and can map each other's memory, else "p2p". Raises TransportError
    on every rank where "shared" is asked for and cannot be.
    """
    if asked == "p2p":
        return asked
    here = neighbours(comm)
    reasons = [*comm.allgather(_why_not_shared(xp)), obstacle(comm, here)]
    reason = next((reason for reason in reasons if reason is not None), None)
    if asked == "auto":
        together = comm.allreduce(len(here), MPI.MAX) > 1
        return "shared" if together and reason is None else "p2p"
    if reason is not None:
        raise TransportError(f"transport 'shared': {reason}: use --transport p2p")
    return asked


def described(name: str, ranks: int, ranks_on_host: int) -> str:
    """Say which transports carry a job's messages."""
    return "shared, p2p between hosts" if name == "shared" and ranks_on_host < ranks else name


def _why_not_shared(xp: ArrayModule) -> str | None:
    if xp is not np:
        return f"expected arrays of NumPy, found {xp.__name__}"
    if not ORDERED:
        return "expected an x86-64 processor, which keeps the order of stores"
    return None
