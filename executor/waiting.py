"""How a rank waits: spinning where it has a core to itself, sleeping where ranks outnumber cores."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from mpi4py import MPI

Requests = list[MPI.Request]
WaitFor = Callable[[Requests], None]

FIRST_SLEEP_S = 20e-6
LONGEST_SLEEP_S = 0.5e-3
GROWTH = 1.1  # slow, so that large messages, which move only while their ranks look, keep moving


def spin(requests: Requests) -> None:
    """Wait at the lowest latency; the core is busy meanwhile."""
    MPI.Request.Waitall(requests)


def doze(requests: Requests) -> None:
    """Wait with a growing sleep between looks, so that the ranks that have work get the cores."""
    pause = FIRST_SLEEP_S
    while not MPI.Request.Testall(requests):
        time.sleep(pause)
        pause = min(LONGEST_SLEEP_S, pause * GROWTH)


def host_place(comm: MPI.Comm) -> tuple[int, int, int]:
    """Return this rank's number among its host's ranks, how many those are, and on how many cores they may run."""
    host = comm.Split_type(MPI.COMM_TYPE_SHARED)
    cores: set[int] = set().union(*host.allgather(os.sched_getaffinity(0)))
    place = host.Get_rank(), host.Get_size(), len(cores)
    host.Free()
    return place


def chosen_wait(ranks: int, cores: int) -> WaitFor:
    """Return `spin` or `doze`."""
    return doze if ranks > cores else spin
