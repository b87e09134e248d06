"""Tools of calibration: clocks, programs of single tasks, and measured rates of the hardware."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod

import numpy as np
from scipy.optimize import nnls

from executor.backend import Clock, EventClock, HostClock, elapsed_s
from executor.cluster import Cluster
from executor.kernels import KERNELS, KernelCall, run
from executor.values import ArrayModule
from planner.graph.ir import ITEM_BYTES
from planner.program.tasks import (
    Buffer,
    Compute,
    Kernel,
    Message,
    Piece,
    Receive,
    Send,
    SlicedCall,
    Slices,
    Task,
    Wait,
    WorkerProgram,
    align,
)
from topologies.kernels import Product
from topologies.schema import CollectiveEntry, Operation
from topologies.traffic import ROUNDS

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
        """The clock of a rank's work: a device's, or, for a rank with one thread, the thread's CPU time."""
        if self.is_device:
            return EventClock(self.xp)
        return HostClock(time.thread_time) if self.threads == 1 else HostClock()

    def shared(self, value: float, by: Callable[[list[float]], float]) -> float:
        """Return one figure for all ranks, combined from theirs by a function (collective)."""
        return by(self.ranks.all_gather(value))


def rate(clock: Clock, amount: float, work: Callable[[], object]) -> float:
    """Return the amount done per second, the median of several repetitions."""
    return statistics.median(amount / max(elapsed_s(clock, work), LEAST_S) for _ in range(REPETITIONS))


def seconds_in_a_row(clock: Clock, work: Callable[[], object]) -> float:
    """Return the seconds of work that is queued repeatedly, the median of several batches.

    The first run is a warm-up.
    """
    work()
    once_s = max(elapsed_s(clock, work), LEAST_S)
    count = max(1, min(LARGEST_BATCH, int(BATCH_S / once_s)))
    batch = partial(_repeated, work, count)
    return statistics.median(elapsed_s(clock, batch) / count for _ in range(REPETITIONS))


def _repeated(work: Callable[[], object], count: int) -> None:
    for _ in range(count):
        work()


def streamed_bytes_per_s(xp: ArrayModule, clock: Clock, nbytes: int) -> float:
    """Return the bytes per second, read and written, of a copy larger than the caches."""
    source = xp.ones(nbytes // 8)
    return rate(clock, 2 * nbytes, partial(xp.copyto, xp.zeros_like(source), source))


def call_s(xp: ArrayModule, clock: Clock) -> float:
    """Return the overhead of calling a kernel, in seconds: relu of one element."""
    element = xp.ones((1,), np.float32)
    call = KernelCall(xp, (element,), (xp.empty_like(element),), {"extents": {"i": 1}}, {"i": (0, 1)}, ((0,),))
    return elapsed_s(clock, partial(_repeated, partial(run, KERNELS["relu"], call), CALLS)) / CALLS


FLOAT_BYTES, SMALL, LARGE_BYTES, LEAST_SHARE = 4, 256, 1 << 26, 0.01


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds of an operation on a small payload, which is mostly latency, and on one of `more_bytes` more."""

    small_s: float
    large_s: float
    more_bytes: int


def timed_collectives(bench: Bench, most_bytes: int = LARGE_BYTES) -> dict[Operation, Taken]:
    """Time the operations of the ranks' library (collective). Returns an empty dict if ranks only have messages."""
    ranks = bench.ranks
    small, large = SMALL * ranks.size, most_bytes // FLOAT_BYTES // ranks.size * ranks.size
    taken: dict[Operation, Taken] = {}
    for operation in ROUNDS if ranks.size > 1 else ():
        seconds = [_seconds(bench, operation, elements) for elements in (small, large)]
        if seconds[0] is not None and seconds[1] is not None:
            taken[operation] = Taken(seconds[0], seconds[1], (large - small) * FLOAT_BYTES)
    return taken


def _seconds(bench: Bench, operation: Operation, elements: int) -> float | None:
    work = bench.ranks.collective(bench.transport, operation, bench.xp.zeros(elements, np.float32))
    if work is None:
        return None
    seconds = []
    for _ in range(1 + REPETITIONS):
        bench.ranks.barrier()
        seconds.append(elapsed_s(bench.clock, work))
    return bench.shared(statistics.median(seconds[1:]), statistics.median)


def collective_entries(
    taken: Mapping[Operation, Taken], ranks: int, bandwidth_bytes_per_s: float
) -> Iterator[CollectiveEntry]:
    """Yield an entry for each operation, as rings that attain a share of the bandwidth that messages have on the links.

    In each round, every link carries the share of the payload that its rank lacks.
    """
    for operation, seconds in taken.items():
        by_links_s = ROUNDS[operation] * (ranks - 1) / ranks * seconds.more_bytes / bandwidth_bytes_per_s
        share = by_links_s / max(seconds.large_s - seconds.small_s, 1e-9)
        yield CollectiveEntry(
            algorithm="ring",
            operations=(operation,),
            latency_s=seconds.small_s,
            hop_s=0.0,
            bandwidth_share=min(1.0, max(LEAST_SHARE, share)),
        )


Array = tuple[str, tuple[int, ...], str, str]
"""A buffer's name, shape, dtype and kind."""


def product_program(dtype: str, m: int, n: int, k: int) -> WorkerProgram:
    """Return the program of one product of matrices [m, k] and [k, n]."""
    arrays = (("a", (m, k), dtype, "persistent"), ("b", (k, n), dtype, "persistent"), ("c", (m, n), dtype, "tensor"))
    places = [(number, _whole(shape)) for number, (_, shape, _, _) in enumerate(arrays)]
    ranges = {"i": (0, m), "j": (0, n), "k": (0, k)}
    call = SlicedCall(tuple(places[:2]), tuple(places[2:]), ranges, ((0, 0), (0, 0)), None)
    kernel = Kernel("product", "mm", {"extents": {"i": m, "j": n, "k": k}}, (call,))
    touched = sum(prod(shape) * ITEM_BYTES[dtype] for _, shape, dtype, _ in arrays)
    return _program(0, (Compute((kernel,), "matmul", 2.0 * m * n * k, touched, (Product(1, m, n, k),)),), *arrays)


def exchange_program(rank: int, size: int, nbytes: int) -> WorkerProgram:
    """Return the program in which a rank exchanges `nbytes` with its neighbour, if any: 0 with 1, 2 with 3."""
    everything = (slice(0, nbytes),)
    message = Message(rank ^ 1, (Piece(everything, everything, nbytes),), nbytes, 0)
    tasks = Send(0, 0, 2, (message,)), Receive(0, 1, 3, (message,), ()), Wait(0)
    kinds = {"own": "persistent", "received": "fetch", "out": "staging", "in": "staging"}
    arrays = [(name, (nbytes,), "uint8", kind) for name, kind in kinds.items()]
    return _program(rank, tasks if rank ^ 1 < size else (), *arrays)


def _program(worker: int, tasks: tuple[Task, ...], *arrays: Array) -> WorkerProgram:
    """Return a program whose buffers lie next to each other and live throughout."""
    buffers: list[Buffer] = []
    offset = 0
    for name, shape, dtype, kind in arrays:
        nbytes = prod(shape) * ITEM_BYTES.get(dtype, 1)
        buffers.append(Buffer(name, shape, dtype, nbytes, offset, 0, max(0, len(tasks) - 1), kind))
        offset += align(nbytes)
    return WorkerProgram(worker, tasks, tuple(buffers), offset)


def _whole(shape: tuple[int, ...]) -> Slices:
    return tuple(slice(0, extent) for extent in shape)


# Measure a host without any plan: memory, messages, calls from Python, and how ranks share cores.


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
