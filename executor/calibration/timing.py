"""Time a device alone, and every task of a plan on each rank: in the order of the plan, with all ranks at work.

Ranks meet before a transfer starts, before it ends and after it, so that waiting for others is not timed. A rank with
one thread is timed by its thread's CPU time, which excludes other ranks on the core; a rank on a device by events.

Only kernels are timed for ranks of different pipeline stages, which do not have the same tasks and cannot meet, and for
devices, whose transfers follow from their memory and links.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from executor.arena import Action, Arena, Memory
from executor.backend import HOST_CLOCK, BackendError, device_place, elapsed_s, require_dtypes
from executor.calibration.bench import (
    LARGE_BYTES,
    Bench,
    Taken,
    call_s,
    exchange_program,
    product_program,
    rate,
    seconds_in_a_row,
    streamed_bytes_per_s,
    timed_collectives,
)
from executor.check import release
from executor.cluster import Cluster
from executor.data import DATA_SETS
from executor.schedules import Rate
from executor.training import RankPrograms, Trainer
from executor.values import Array
from executor.worker import KernelCalls, Worker, kernel_calls, kernel_set
from planner.graph.ir import ITEM_BYTES
from planner.grouping import grouped
from planner.program.calls import computed_dtype, posted, received, sent, spelled_compute
from planner.program.tasks import Compute, Receive, Send, Wait, WorkerProgram
from topologies import TransferAmounts
from topologies.schema import Operation

STABLE = 0.03
"""Relative spread of the measurements at which they count as stable."""

FEWEST_ROUNDS, MOST_ROUNDS = 3, 100
HALF = 0.5


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a compute task: its category, the dtype it computes in, flop, and bytes touched."""

    category: str
    dtype: str
    operations: float
    nbytes: int


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of tasks by spelling, the amounts of transfers, the work of kernels, and the spread of rounds."""

    seconds: Mapping[str, float]
    moved: Mapping[str, tuple[str, TransferAmounts]]
    work: Mapping[str, Work]
    rounds: int
    spread: float


def timed(part: RankPrograms, bench: Bench, limit_s: float) -> Timed:
    """Time a rank's tasks until the median of their sum is stable or `limit_s` is over (collective)."""
    cluster = bench.ranks
    trainer = Trainer(part, cluster, bench.xp, bench.transport)
    trainer.load(DATA_SETS["random"](part.plan.graph, part.plan.seed), 0)
    program = part.training.worker
    together = len(set(cluster.all_gather(tuple(type(task).__name__ for task in program.tasks)))) == 1
    names, moved = _named(program, transfers=together and not bench.is_device)
    rounds: list[list[float]] = []
    started = time.perf_counter()
    _round(trainer, bench, together=together)  # warm-up: first touch of memory and caches
    while _goes_on(cluster, [sum(durations) for durations in rounds], time.perf_counter() - started, limit_s):
        rounds.append(_round(trainer, bench, together=together))
    medians = [statistics.median(column) for column in zip(*rounds, strict=True)]
    seconds = means((name, median) for name, median in zip(names, medians, strict=True) if name)
    return Timed(seconds, moved, _work(program, names), len(rounds), spread_of([sum(row) for row in rounds]))


def means(durations: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the mean duration by name."""
    return {name: statistics.fmean(values) for name, values in grouped(durations).items()}


def spread_of(values: list[float]) -> float:
    """Return the relative uncertainty of the median: half the interquartile range over the root of their number."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    middle = statistics.median(values)
    return HALF * (high - low) / middle / (len(values) - 1) ** HALF if middle else 0.0


def _goes_on(cluster: Cluster, totals: list[float], elapsed_s: float, limit_s: float) -> bool:
    """Decide, equally on all ranks, whether another round is worth its time."""
    enough = len(totals) >= FEWEST_ROUNDS and spread_of(totals) <= STABLE
    late = bool(totals) and elapsed_s * (1 + 1 / (1 + len(totals))) > limit_s
    wants = cluster.all_gather((enough or len(totals) >= MOST_ROUNDS, late))
    return not (all(stable for stable, _ in wants) or any(late for _, late in wants))


def _named(program: WorkerProgram, *, transfers: bool) -> tuple[list[str], dict[str, tuple[str, TransferAmounts]]]:
    """Return the spelling of every timed task, "" for others, and the amounts of transfers if they are timed."""
    moved: dict[str, tuple[str, TransferAmounts]] = {}

    def transfer(kind: str, amounts: TransferAmounts) -> str:
        if not transfers or not (amounts.messages or amounts.pieces):
            return ""
        name = amounts.spelled(kind)
        moved[name] = kind, amounts
        return name

    def names() -> Iterator[str]:
        started: dict[int, Receive] = {}
        for task in program.tasks:
            match task:
                case Compute():
                    yield spelled_compute(program, task) if any(kernel.calls for kernel in task.kernels) else ""
                case Send():
                    yield transfer("send", sent(program, task))
                case Receive():
                    started[task.transfer] = task
                    yield transfer("post", posted(task))
                case Wait():
                    ended = started.pop(task.transfer)
                    kind = "reduce" if ended.reducer is not None else "fetch"
                    yield transfer(kind, received(program, ended))

    return list(names()), moved


def _work(program: WorkerProgram, names: list[str]) -> dict[str, Work]:
    return {
        name: Work(task.category, computed_dtype(program, task), task.operations, task.touched_bytes)
        for name, task in zip(names, program.tasks, strict=True)
        if isinstance(task, Compute) and name
    }


def _round(trainer: Trainer, bench: Bench, *, together: bool) -> list[float]:
    """Run one step and return the seconds of every task. Ranks that have the same tasks meet."""
    moments: list[Any] = []
    waits: list[int] = []

    def note() -> None:
        moments.append(bench.clock.read())

    def meet() -> None:
        note()
        if bench.is_device:
            bench.xp.cuda.Device().synchronize()
        bench.ranks.meet()

    looks: list[tuple[int, Action]] = []
    tasks = trainer.worker.program.tasks
    for position, task in enumerate(tasks):
        begins = isinstance(task, Send | Wait)  # a receive starts right after the send
        follows = isinstance(task, Compute) and position > 0 and not isinstance(tasks[position - 1], Compute)
        if bench.ranks.size > 1 and together and (begins or follows):
            waits.append(len(looks))
            looks.append((position, meet))
        looks.append((position, note))
    looks.append((len(tasks), note))
    bench.ranks.barrier()
    trainer.worker.run(looks=looks)
    met = set(waits)
    seconds = bench.clock.seconds(moments)
    durations = [stop - start for number, (start, stop) in enumerate(pairwise(seconds)) if number not in met]
    ends = list(accumulate(durations, initial=0.0))
    trainer.worker.divide(ends)
    return [stop - start for start, stop in pairwise(ends)]


# Measure a GPU without any plan: memory, launches, copies, messages, collectives and products.


MOST_COPIED_BYTES, MOST_PINNED_BYTES, SHARE_OF_MEMORY = 1 << 30, 1 << 28, 16
MESSAGES = (1, 1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 26)
EXCHANGES, TENTH, BUFFERS = 20, 10, 4


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """The figures of each rank's GPU.

    Memory bandwidth, reading and writing, is measured alone and with all ranks at work.

    `call_s` is the time of an empty kernel within a sequence of such kernels, `host_call_s` the host's time to queue
    it. `messages_s` are the seconds of messages to a neighbour by their bytes, including the transport; `collectives`
    the times of a library's operations, if there is one; `places` names the GPU of every rank.
    """

    memory_alone_bytes_per_s: float
    memory_bytes_per_s: float
    memory_bytes: int
    call_s: float
    host_call_s: float
    to_device_bytes_per_s: float
    to_host_bytes_per_s: float
    messages_s: dict[int, float]
    collectives: dict[Operation, Taken]
    places: tuple[str, ...]


def device_figures(bench: Bench) -> DeviceFigures:
    """Measure the figures (collective). They are medians over repetitions and ranks."""
    xp, ranks = bench.xp, bench.ranks
    free, total = xp.cuda.runtime.memGetInfo()
    copied = min(MOST_COPIED_BYTES, *(other // SHARE_OF_MEMORY for other in ranks.all_gather(free)))
    alone = bench.shared(streamed_bytes_per_s(xp, bench.clock, copied) if ranks.rank == 0 else 0.0, max)
    ranks.barrier()
    to_device, to_host = _copied_bytes_per_s(bench, min(copied, MOST_PINNED_BYTES))
    sizes = [n for n in MESSAGES if ranks.size > 1 and n * BUFFERS <= copied]
    return DeviceFigures(
        memory_alone_bytes_per_s=alone,
        memory_bytes_per_s=bench.shared(streamed_bytes_per_s(xp, bench.clock, copied), statistics.median),
        memory_bytes=total,
        call_s=bench.shared(call_s(xp, bench.clock), statistics.median),
        host_call_s=bench.shared(call_s(xp, HOST_CLOCK), statistics.median),
        to_device_bytes_per_s=bench.shared(to_device, statistics.median),
        to_host_bytes_per_s=bench.shared(to_host, statistics.median),
        messages_s={n: bench.shared(_message_s(bench, n), statistics.median) for n in sizes},
        collectives=timed_collectives(bench, min(LARGE_BYTES, copied)),
        places=tuple(ranks.all_gather(device_place(xp))),
    )


def _copied_bytes_per_s(bench: Bench, nbytes: int) -> tuple[float, float]:
    """Return the bytes per second from page-locked host memory to the device, and back."""
    host = np.frombuffer(bench.xp.cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes)
    device = bench.xp.zeros(nbytes, np.uint8)
    to_device = rate(bench.clock, nbytes, partial(device.set, host))
    return to_device, rate(bench.clock, nbytes, partial(device.get, out=host, blocking=False))


def _message_s(bench: Bench, nbytes: int) -> float:
    """Return the seconds in which a rank exchanges a message with its neighbour, all pairs at once."""
    ranks = bench.ranks
    program, spec = exchange_program(ranks.rank, ranks.size, nbytes), ranks.transport(bench.transport)
    arena = spec.arena(bench.xp, program.arena_bytes, ranks.comm)
    worker = Worker(program, arena, lambda memory: spec.transport(memory, ranks.comm, ranks.crowded))
    seconds = []
    for _ in range(EXCHANGES):
        ranks.barrier()
        seconds.append(elapsed_s(bench.clock, worker.run))
    return sorted(seconds)[EXCHANGES // TENTH]  # the tenth percentile excludes disturbances by other processes


def reserved_bytes(bench: Bench, places: Sequence[str]) -> int:
    """Return the bytes of a rank's context and libraries on its GPU, without arena and allocator caches (collective).

    Ranks of one GPU share its use equally.
    """
    xp, ranks = bench.xp, bench.ranks
    ranks.transport(bench.transport).arena(xp, 1, ranks.comm)  # other arenas are closed and freed
    release(xp)
    ranks.barrier()
    free, total = xp.cuda.runtime.memGetInfo()
    return max(ranks.all_gather(int(total - free) // places.count(places[ranks.rank])))


DTYPES = ("float32", "float16", "bfloat16", "float64")
FORMAT_BYTES = {"tf32": 4, "float8": 1, **ITEM_BYTES}
SHAPES = (
    (128, 128, 128), (512, 512, 512), (16, 4096, 4096), (300, 3000, 700), (1024, 1024, 1024), (128, 4096, 4096),
    (8192, 768, 768), (8192, 128, 8192), (8192, 2304, 768), (4096, 1024, 4096), (8192, 3072, 768), (8192, 768, 3072),
    (768, 3072, 8192), (4096, 4096, 4096), (4095, 4097, 4093), (2048, 2048, 32768), (4096, 11008, 4096),
    (4096, 4096, 11008), (8192, 50257, 768), (8192, 8192, 8192),
)  # fmt: skip
"""(m, n, k) of products: those of transformers, and others that fill tiles well or badly. The smallest comes first."""

PRODUCT_SHARE_OF_MEMORY = 8
"""A product may use this fraction (1/8) of the free memory, because kernels may make single-precision copies."""

Product = tuple[str, Callable[[], None]]
"""A product's format, and the action that computes it."""


def timed_products(bench: Bench, limit_s: float) -> tuple[Timed, dict[str, float]]:
    """Time products until `limit_s` is over, at least the smallest.

    Also return the highest operations per second by format.

    Formats are dtypes, and others in which the library multiplies, such as TF32.
    """
    until = time.perf_counter() + limit_s
    seconds: dict[str, float] = {}
    work: dict[str, Work] = {}
    fastest = defaultdict[str, float](float)
    for m, n, k in SHAPES:
        if seconds and (time.perf_counter() > until or not _fits(bench, m, n, k)):
            break
        for name, action in _products(bench, m, n, k):
            spelled = f"mm {name}[{m},{k}] {name}[{k},{n}] -> {name}[{m},{n}]"
            seconds[spelled], operations = seconds_in_a_row(bench.clock, action), 2.0 * m * n * k
            touched = (m * k + k * n + m * n) * FORMAT_BYTES[name]
            work[spelled] = Work("matmul", name, operations, touched)
            fastest[name] = max(fastest[name], operations / seconds[spelled])
    return Timed(seconds, {}, work, FEWEST_ROUNDS, 0.0), dict(fastest)


def _fits(bench: Bench, m: int, n: int, k: int) -> bool:
    free, _ = bench.xp.cuda.runtime.memGetInfo()
    return PRODUCT_SHARE_OF_MEMORY * product_program("float32", m, n, k).arena_bytes < int(free)


def _products(bench: Bench, m: int, n: int, k: int) -> Iterator[Product]:
    """Yield the product of one shape in every available format."""
    for dtype in DTYPES:
        try:
            require_dtypes(bench.xp, [dtype])
        except BackendError:
            continue
        program = product_program(dtype, m, n, k)
        memory = Memory(Arena(bench.xp, program.arena_bytes), program)
        for operand in memory.views[:2]:
            _fill(bench, operand)
        kernels = kernel_set(bench.ranks.library, memory, bench.ranks)
        ((kernel, call),) = kernel_calls(program.tasks)
        yield dtype, KernelCalls(memory, kernels, Rate()).action(kernel, call)
        if dtype == "float32":
            for name, make in kernels.products.items():
                if (action := make(*memory.views[:2])) is not None:
                    yield name, action


def _fill(bench: Bench, operand: Array) -> None:
    """Fill a matrix with different values, because a GPU multiplies zeros faster."""
    rows, columns = (bench.xp.sin(bench.xp.arange(extent, dtype="float32")) for extent in operand.shape)
    operand[...] = (rows[:, None] * columns).astype(operand.dtype)
