"""Measure a host without any plan: memory, messages, calls from Python, and how ranks share cores."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.optimize import nnls

from executor.backend import HostClock
from executor.calibration.bench import Bench, call_s, rate, streamed_bytes_per_s
from executor.cluster import Cluster

COPIED_BYTES = 64 << 20
PINGS, ROWS = 100, 1024
MESSAGES = (1, 1 << 12, 1 << 16, 1 << 20, 1 << 24)
TENTH = 10
WAITS_S, TRIES = (0.0003, 0.001, 0.003, 0.01), 5
WORK_S = 0.05
LIMIT_S = 1.0  # for the messages of one size
CORE = HostClock(time.thread_time)
"""The clock of this rank's thread."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """The figures of a host's ranks: memory bandwidth (reading and writing), and seconds of messages by their bytes.

    `products_flop_per_s` is the rate of large matrix products, by dtype.
    """

    products_flop_per_s: dict[str, float]
    memory_alone_bytes_per_s: float
    memory_bytes_per_s: float
    memory_bytes: int
    call_s: float
    messages_s: dict[int, float]
    cores: float
    wake_s: float
    waiting_share: float


def hardware_of(bench: Bench) -> Hardware:
    """Measure the figures (collective). They are medians over repetitions and ranks."""
    cluster, threads = bench.ranks, bench.threads
    cluster.connect()  # collective: also ranks without a neighbour
    waits = cluster.all_gather(_waits(cluster)) if cluster.ranks_on_host * threads > cluster.cores else []
    wake_s, waiting_share = fitted_line([wait for of_rank in waits for wait in of_rank])
    alone = bench.shared(streamed_bytes_per_s(np, CORE, COPIED_BYTES) if cluster.rank == 0 else 0.0, max)
    cluster.barrier()
    return Hardware(
        products_flop_per_s={name: bench.shared(_product(bench, name), max) for name in ("float32", "float64")},
        memory_alone_bytes_per_s=alone,
        memory_bytes_per_s=bench.shared(streamed_bytes_per_s(np, CORE, COPIED_BYTES), statistics.median),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        call_s=bench.shared(call_s(np, CORE), statistics.median),
        messages_s={n: bench.shared(_message_s(cluster, n), statistics.median) for n in MESSAGES},
        cores=_cores(cluster, threads),
        wake_s=wake_s,
        waiting_share=waiting_share,
    )


def _product(bench: Bench, dtype: str) -> float:
    """Return the flop/s of a large matrix product."""
    operand = np.ones((ROWS, ROWS), dtype)
    return rate(bench.clock, 2 * ROWS**3, partial(np.matmul, operand, operand, out=np.empty_like(operand)))


def _message_s(cluster: Cluster, nbytes: int) -> float:
    """Return half of the seconds of a message to a neighbour and back, all pairs at once."""
    peer, data = cluster.rank ^ 1, np.zeros(nbytes, np.uint8)
    seconds: list[float] = []
    begun = time.perf_counter()
    cluster.barrier()
    for _ in range(PINGS):
        start = time.perf_counter()
        for receives in (cluster.rank % 2 == 1, cluster.rank % 2 == 0):
            if peer < cluster.size:
                cluster.pass_on(data, peer, receives=receives)
        seconds.append((time.perf_counter() - start) / 2)
        if any(cluster.all_gather(time.perf_counter() - begun > LIMIT_S)):
            break
    return sorted(seconds)[len(seconds) // TENTH]  # of a time between two ranks the usual, without what others add


def _waits(cluster: Cluster) -> list[tuple[float, float]]:
    """Return measured waits for a neighbour that works: the seconds waited, and the core seconds that this took."""
    peer, data = cluster.rank ^ 1, np.zeros(1, np.uint8)
    points = []
    for work_s in WAITS_S * TRIES:
        cluster.barrier()
        if peer >= cluster.size:
            continue
        if cluster.rank % 2:
            start, used = time.perf_counter(), CORE.read()
            cluster.pass_on(data, peer, receives=True)
            points.append((time.perf_counter() - start, CORE.read() - used))
        else:
            _work(work_s)
            cluster.pass_on(data, peer, receives=False)
    return points


def fitted_line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Return a constant and a slope, both non-negative, by least squares of relative errors; zeros without points."""
    if not points:
        return 0.0, 0.0
    x, y = np.array(points).T
    y = np.maximum(y, 1e-9)
    line, _ = nnls(np.column_stack([1 / y, x / y]), np.ones(len(y)))
    return float(line[0]), float(line[1])


def _work(seconds: float) -> float:
    """Use a core for `seconds`; return the seconds actually used."""
    values, start = np.ones(4096), CORE.read()
    while CORE.read() - start < seconds:
        np.sqrt(values, out=values)
    return CORE.read() - start


def _cores(cluster: Cluster, threads: int) -> float:
    """Return how many cores' work all ranks do together: the best of several tries, at most all cores."""
    if cluster.ranks_on_host * threads <= cluster.cores:
        return float(cluster.cores)
    return min(float(cluster.cores), max(1.0, *(_worked(cluster) for _ in range(TRIES))))


def _worked(cluster: Cluster) -> float:
    """Return how many cores' work all ranks did together."""
    cluster.barrier()
    start = time.perf_counter()
    worked_s = _work(WORK_S)
    cluster.barrier()
    wall_s = max(cluster.all_gather(time.perf_counter() - start))
    return sum(cluster.all_gather(worked_s)) / wall_s
