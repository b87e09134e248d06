"""What is measured of a GPU without any plan: memory, launches, copies from and to the host, messages, libraries."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from executor.backend import device_place
from executor.calibration.bench import Bench, call_s, rate, streamed_bytes_per_s
from executor.calibration.collectives import LARGE_BYTES, Taken, timed_collectives
from executor.calibration.programs import exchange_program
from executor.clocks import HOST_CLOCK, elapsed_s
from executor.needs import release
from executor.worker import Worker
from topologies.schema import Operation

MOST_COPIED_BYTES, MOST_PINNED_BYTES, SHARE_OF_MEMORY = 1 << 30, 1 << 28, 16
MESSAGES = (1, 1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 26)
EXCHANGES, TENTH, BUFFERS = 20, 10, 4


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """What each rank's GPU has: bytes per second in memory (read and written), alone and with all ranks at work.

    `call_s` is what a kernel of no work takes in a row of its like, `host_call_s` what queueing it takes the host.
    `messages_s` are seconds of messages to a neighbour by their bytes, as transported, `collectives` what operations of
    a library take, where there is one, `places` the GPU of every rank.
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
    """Measure them (collective); figures are medians over repetitions and ranks."""
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
    """Return the bytes per second that page-locked memory of the host sends to the device, and gets from there."""
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
    return sorted(seconds)[EXCHANGES // TENTH]  # of a time between two ranks the usual, without what others add


def reserved_bytes(bench: Bench, places: Sequence[str]) -> int:
    """Return what a rank's context and libraries take of its GPU, arena and what allocators hold apart (collective).

    Ranks of one GPU share what is used there, by whomever.
    """
    xp, ranks = bench.xp, bench.ranks
    ranks.transport(bench.transport).arena(xp, 1, ranks.comm)  # others' arenas are closed, and freed
    release(xp)
    ranks.barrier()
    free, total = xp.cuda.runtime.memGetInfo()
    return max(ranks.all_gather(int(total - free) // places.count(places[ranks.rank])))
