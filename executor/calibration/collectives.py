"""What operations of a library take among all ranks, where there is one, and what that says of their links."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from executor.calibration.bench import REPETITIONS, Bench
from executor.clocks import elapsed_s
from topologies.collectives import ROUNDS
from topologies.schema import CollectiveEntry, Operation

ITEM_BYTES, SMALL, LARGE_BYTES, LEAST_SHARE = 4, 256, 1 << 26, 0.01


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds of an operation on a payload that is latency alone, and on one of so many bytes more."""

    small_s: float
    large_s: float
    more_bytes: int


def timed_collectives(bench: Bench, most_bytes: int = LARGE_BYTES) -> dict[Operation, Taken]:
    """Time the operations of the ranks' library (collective); none where they have messages alone."""
    ranks = bench.ranks
    small, large = SMALL * ranks.size, most_bytes // ITEM_BYTES // ranks.size * ranks.size
    taken: dict[Operation, Taken] = {}
    for operation in ROUNDS if ranks.size > 1 else ():
        seconds = [_seconds(bench, operation, elements) for elements in (small, large)]
        if seconds[0] is not None and seconds[1] is not None:
            taken[operation] = Taken(seconds[0], seconds[1], (large - small) * ITEM_BYTES)
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
    """Yield an entry of every operation as rings that attain a share of what the ranks' links do for messages.

    Each link carries, for every round, the share of the payload that its rank lacks.
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
