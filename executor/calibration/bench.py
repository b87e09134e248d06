"""What calibration measures with, and how long a piece of work takes by it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from executor.clocks import Clock, EventClock, HostClock, elapsed_s
from executor.cluster import Cluster
from executor.kernels import KERNELS, KernelCall, run
from executor.values import ArrayModule

REPETITIONS, CALLS = 5, 2000
BATCH_S, LARGEST_BATCH = 0.02, 200
LEAST_S = 1e-9


@dataclass(frozen=True)
class Bench:
    """The ranks, the array module of their memory, their transport, and the BLAS threads of each."""

    ranks: Cluster
    xp: ArrayModule
    transport: str
    threads: int

    @property
    def is_device(self) -> bool:
        """True if ranks compute on devices."""
        return self.xp is not np

    @cached_property
    def clock(self) -> Clock:
        """The clock of a rank's work: a device's, or its core's, which others' work does not add to, if it has one."""
        if self.is_device:
            return EventClock(self.xp)
        return HostClock(time.thread_time) if self.threads == 1 else HostClock()

    def shared(self, value: float, by: Callable[[list[float]], float]) -> float:
        """Return one figure for all ranks (collective)."""
        return by(self.ranks.all_gather(value))


def rate(clock: Clock, amount: float, work: Callable[[], object]) -> float:
    """Return how much of something is done per second, the median of some repetitions."""
    return statistics.median(amount / max(elapsed_s(clock, work), LEAST_S) for _ in range(REPETITIONS))


def seconds_in_a_row(clock: Clock, work: Callable[[], object]) -> float:
    """Return the seconds of work that is queued behind itself, the median of some batches; the first run is warm-up."""
    work()
    once_s = max(elapsed_s(clock, work), LEAST_S)
    count = max(1, min(LARGEST_BATCH, int(BATCH_S / once_s)))
    batch = partial(_repeated, work, count)
    return statistics.median(elapsed_s(clock, batch) / count for _ in range(REPETITIONS))


def _repeated(work: Callable[[], object], count: int) -> None:
    for _ in range(count):
        work()


def streamed_bytes_per_s(xp: ArrayModule, clock: Clock, nbytes: int) -> float:
    """Return the bytes per second of a copy larger than caches, read and written."""
    source = xp.ones(nbytes // 8)
    return rate(clock, 2 * nbytes, partial(xp.copyto, xp.zeros_like(source), source))


def call_s(xp: ArrayModule, clock: Clock) -> float:
    """Return what calling a kernel takes beyond its work: one element passes through relu."""
    element = xp.ones((1,), np.float32)
    call = KernelCall(xp, (element,), (xp.empty_like(element),), {"extents": {"i": 1}}, {"i": (0, 1)}, ((0,),))
    return elapsed_s(clock, partial(_repeated, partial(run, KERNELS["relu"], call), CALLS)) / CALLS
